//! `oxccl env`: all variables, with their values in effect and the origins of these.

use crate::error::{Error, Result};
use oxccl_runtime::config::{Config, Origin, Setting, Status, Value};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

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
fn line(Setting { variable, value, origin }: &Setting) -> String {
    let shown = match value {
        Value::Unset => "unset".to_owned(),
        Value::Text(text) => format!("{text:?}"),
        value => value.to_string(),
    };
    let source = match origin {
        Origin::Default => "default".to_owned(),
        origin if variable.default.is_empty() => format!("{origin}"),
        origin => format!("{origin}; default {}", variable.default),
    };
    format!("{} = {shown} ({source})", variable.name)
}

/// Returns the text to print: the variables with an effect and their meaning, then the others and
/// the reason why they have none.
fn listing(config: &Config) -> String {
    let mut text = String::new();
    let settings = &config.report.settings;
    let mut section = "";
    for setting in settings.iter().filter(|s| s.variable.status == Status::Honoured) {
        if section != setting.variable.section {
            let gap = if section.is_empty() { "" } else { "\n" };
            section = setting.variable.section;
            text += &format!("{gap}# {section}\n");
        }
        text += &format!("{}{}\n", line(setting), wrapped(setting.variable.doc, 4));
    }
    text += "\n# Read by network plugins, from the environment\n";
    for setting in settings.iter().filter(|s| s.variable.status == Status::Plugins) {
        text += &format!("{}{}\n", line(setting), wrapped(setting.variable.doc, 4));
    }
    text += "\n# Accepted without effect; docs/environment.md says what NCCL does with them\n";
    for setting in settings {
        if let Status::Accepted(why) = setting.variable.status {
            text += &format!("{}: {why}\n", line(setting));
        }
    }
    text
}

pub(crate) fn main() -> Result<ExitCode> {
    let config = Config::get();
    match std::io::stdout().write_all(listing(config).as_bytes()) {
        // A pager that was closed is no error.
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            return Err(Error::File { path: "standard output".to_owned(), cause: e.to_string() });
        }
        _ => {}
    }
    config.report.unreadable.iter().for_each(|error| eprintln!("oxccl: {error}"));
    config.report.warnings.iter().for_each(|warning| eprintln!("oxccl: {warning}"));
    Ok(ExitCode::SUCCESS)
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
        let text = listing(&config);
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
    }
}
