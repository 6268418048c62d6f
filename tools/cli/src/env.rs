//! `oxccl env`: all variables, with their values in effect and the origins of these.

use crate::error::{Error, Result, say};
use clap::Args;
use oxccl_runtime::comm;
use oxccl_runtime::config::{Config, Origin, Setting, Status, Value};
use std::io::Write;
use std::process::ExitCode;

/// Examples, environment and exit codes of `oxccl env`, the end of its help and manual page.
const MORE: &str = "\
Examples:
  oxccl env --changed
  oxccl env socket timeout
  oxccl env --json

Environment: all variables of the library. Those that it lacks are taken from the file that
NCCL_CONF_FILE names, else ~/.nccl.conf; then from /etc/nccl.conf.

Exit code: 0, or 2 if a variable has a value with which no communicator is made.";

/// Options of `oxccl env`.
#[derive(Args, Default)]
#[command(after_long_help = MORE)]
pub(crate) struct Options {
    /// Only variables with these texts in their names, in capitals or not.
    text: Vec<String>,
    /// Only variables that are given a value, also one that is refused.
    #[arg(long)]
    changed: bool,
    /// Print a JSON object for each variable, a line each.
    #[arg(long)]
    json: bool,
}

impl Options {
    fn want(&self, Setting { variable, origin, refused, .. }: &Setting) -> bool {
        let has = |text: &String| variable.name.contains(&text.to_ascii_uppercase());
        let named = self.text.is_empty() || self.text.iter().any(has);
        named && !(self.changed && *origin == Origin::Default && refused.is_none())
    }
}

/// Returns all settings, with the reasons also why values that could be read are refused.
fn settings(config: &Config) -> Vec<Setting> {
    let mut settings = config.report.settings.clone();
    // Names of algorithms are read, but not every one serves.
    let algorithm = comm::policy_of(config).err().map(|error| error.to_string());
    for text in comm::Options::ignored(config).into_iter().chain(algorithm) {
        let is_of = |s: &&mut Setting| text.split('=').next() == Some(s.variable.name);
        if let Some(setting) = settings.iter_mut().find(is_of) {
            setting.refused = Some(text);
        }
    }
    settings
}

/// A variable in JSON.
#[derive(serde::Serialize)]
struct Row<'a> {
    name: &'a str,
    /// The value in effect; null if there is none.
    value: Option<String>,
    /// The origin of the value: `default`, `environment`, or a file and line.
    origin: String,
    default: &'a str,
    section: &'a str,
    meaning: &'a str,
    /// The reason why the variable has no effect; null if it has one.
    without_effect: Option<&'a str>,
    /// The reason why a value that was given is not in effect; null if none was refused.
    refused: Option<&'a str>,
}

fn json(config: &Config, options: &Options) -> String {
    let row = |Setting { variable, value, origin, refused }: &Setting| {
        let without_effect = match variable.status {
            Status::Accepted(why) => Some(why),
            Status::Honoured | Status::Plugins => None,
        };
        let row = Row {
            name: variable.name,
            value: (*value != Value::Unset).then(|| value.to_string()),
            origin: named(origin),
            default: variable.default,
            section: variable.section,
            meaning: variable.doc,
            without_effect,
            refused: refused.as_deref(),
        };
        serde_json::to_string(&row).map_or_else(|e| e.to_string(), |line| line + "\n")
    };
    settings(config).iter().filter(|s| options.want(s)).map(row).collect()
}

fn named(origin: &Origin) -> String {
    match origin {
        Origin::Default => "default".to_owned(),
        origin => origin.to_string(),
    }
}

/// The column at which lines are broken.
const WIDTH: usize = 100;

/// Returns `words` in lines of [`WIDTH`], each after `indent` spaces.
fn wrapped(words: &str, indent: usize) -> String {
    let mut text = String::new();
    let mut column = WIDTH;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if column + 1 + length > WIDTH {
            text += &format!("\n{:indent$}{word}", "");
            column = indent + length;
        } else {
            text += &format!(" {word}");
            column += 1 + length;
        }
    }
    text
}

/// Returns `NAME = value (origin)`.
fn line(Setting { variable, value, origin, .. }: &Setting) -> String {
    let shown = match value {
        Value::Unset => "unset".to_owned(),
        Value::Text(text) => format!("{text:?}"),
        value => value.to_string(),
    };
    let source = match origin {
        Origin::Default => named(origin),
        origin if variable.default.is_empty() => named(origin),
        origin => format!("{origin}; default {}", variable.default),
    };
    format!("{} = {shown} ({source})", variable.name)
}

/// Returns the reason for which a value was refused, in lines of its own; empty if none was.
fn refusal(setting: &Setting) -> String {
    let text = |why: &String| wrapped(&format!("Refused: {why}"), 4);
    setting.refused.as_ref().map(text).unwrap_or_default()
}

/// Returns a variable with an effect as text: its value, why another one was refused, its meaning.
fn entry(setting: &Setting) -> String {
    format!("{}{}{}\n", line(setting), refusal(setting), wrapped(setting.variable.doc, 4))
}

/// Returns the text to print: the variables with an effect and their meaning, then the others and
/// the reason why they have none.
fn listing(config: &Config, options: &Options) -> String {
    let mut text = String::new();
    let mut section = "";
    let mut head = |of: &'static str| {
        let gap = if section.is_empty() { "" } else { "\n" };
        let is_new = std::mem::replace(&mut section, of) != of;
        if is_new { format!("{gap}# {of}\n") } else { String::new() }
    };
    let all = settings(config);
    let settings = || all.iter().filter(|s| options.want(s));
    for setting in settings().filter(|s| s.variable.status == Status::Honoured) {
        text += &head(setting.variable.section);
        text += &entry(setting);
    }
    for setting in settings().filter(|s| s.variable.status == Status::Plugins) {
        text += &head("Read by network plugins, from the environment");
        text += &entry(setting);
    }
    for setting in settings() {
        if let Status::Accepted(why) = setting.variable.status {
            text += &head("Accepted without effect; docs/environment.md says what NCCL does");
            text += &format!("{}: {why}{}\n", line(setting), refusal(setting));
        }
    }
    if text.is_empty() {
        text += if options.changed { "# nothing differs from the defaults\n" } else { "# none\n" };
    }
    text
}

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    let config = Config::get();
    let text = if options.json { json(config, options) } else { listing(config, options) };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|e| Error::File { path: "standard output".to_owned(), cause: e.to_string() })?;
    // Names of algorithms are read, but not every one serves.
    let refused = comm::policy_of(config).err();
    let errors: Vec<_> = config.report.unreadable.iter().chain(&refused).collect();
    errors.iter().for_each(|error| say(&error.to_string()));
    config.report.warnings.iter().for_each(|warning| say(warning));
    // With those values no communicator is made.
    Ok(ExitCode::from(if errors.is_empty() { 0 } else { 2 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_variables_are_listed_with_value_origin_and_meaning_or_reason() {
        let config = Config::from_lookup(|name| match name {
            "OXCCL_TIMEOUT" => Some("1500ms".to_owned()),
            "NCCL_IB_HCA" => Some("mlx5_0".to_owned()),
            _ => None,
        });
        let text = listing(&config, &Options::default());
        let timeout = "OXCCL_TIMEOUT = 1500ms (environment; default 0s)\n    How long an";
        assert!(text.contains(timeout), "{text}");
        let hca = "NCCL_IB_HCA = \"mlx5_0\" (environment)\n    Adapters to use: ";
        assert!(text.contains(hca), "{text}");
        assert!(text.contains("NCCL_MIN_CTAS = unset (default): "), "{text}");
        for setting in &config.report.settings {
            let name = setting.variable.name;
            assert_eq!(text.matches(&format!("\n{name} = ")).count(), 1, "{name}");
        }
        let honoured = text.split("# Accepted").next().unwrap();
        assert!(honoured.lines().all(|line| line.chars().count() <= WIDTH), "{honoured}");

        let changed = Options { changed: true, ..Options::default() };
        let text = listing(&config, &changed);
        let none = Options { text: vec!["no_such".to_owned()], ..Options::default() };
        assert_eq!(listing(&config, &none), "# none\n");
        let unchanged = Options { changed: true, ..none };
        assert_eq!(listing(&config, &unchanged), "# nothing differs from the defaults\n");
        let names: Vec<&str> = text.lines().filter_map(|l| Some(l.split_once(" = ")?.0)).collect();
        assert_eq!(names, ["OXCCL_TIMEOUT", "NCCL_IB_HCA"], "{text}");
        let lines = json(&config, &Options { text: vec!["ib_h".to_owned()], ..changed });
        let row: serde_json::Value = serde_json::from_str(&lines).expect("one object");
        assert_eq!((&row["name"], &row["value"]), (&"NCCL_IB_HCA".into(), &"mlx5_0".into()));
        assert_eq!(row["origin"], "environment");
        let all = json(&config, &Options::default());
        assert_eq!(all.lines().count(), config.report.settings.len());
    }

    #[test]
    fn values_that_are_refused_are_listed_with_the_reason() {
        let config = Config::from_lookup(|name| match name {
            "OXCCL_TIMEOUT" => Some("soon".to_owned()),
            "OXCCL_ALGORITHM" => Some("no_such".to_owned()),
            "NCCL_MAX_CTAS" => Some("0".to_owned()),
            "NCCL_BUFFSIZE" => Some("much".to_owned()),
            _ => None,
        });
        let changed = Options { changed: true, ..Options::default() };
        let text = listing(&config, &changed);
        for line in [
            "OXCCL_TIMEOUT = 0s (default)\n    Refused: OXCCL_TIMEOUT=soon (environment) cannot be",
            "OXCCL_ALGORITHM = \"no_such\" (environment)\n    Refused: OXCCL_ALGORITHM=no_such",
            "NCCL_MAX_CTAS = 0 (environment)\n    Refused: NCCL_MAX_CTAS=0 is ignored: maxCTAs",
            "NCCL_BUFFSIZE = 4194304 (default): ",
            "\n    Refused: NCCL_BUFFSIZE=much (environment) cannot be read; expected a number",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let lines = json(&config, &changed);
        let rows: Vec<serde_json::Value> =
            lines.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        assert_eq!(rows.len(), 4, "{lines}");
        for row in rows {
            let (name, why) = (row["name"].as_str(), row["refused"].as_str());
            assert!(why.is_some_and(|why| why.starts_with(name.expect("a text"))), "{row}");
        }
    }
}
