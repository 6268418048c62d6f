//! The one table of variables. No other code of the library reads the environment or configuration
//! files.
//!
//! A value comes from the process's environment, else from the file that `NCCL_CONF_FILE` names
//! (else `~/.nccl.conf`), else from `/etc/nccl.conf`. The library writes to the environment only
//! before it looks for plugins: what files say is put there for them.

pub(crate) mod accepted;
pub mod file;
mod source;
mod suggest;
mod table;
mod value;
mod verbosity;

pub(crate) use source::foreign_variable;
pub use table::Config;
pub use value::{DeviceChoice, Kind, Value};
pub use verbosity::{Level, Levels, Subsystem, Subsystems};

use crate::error::{Error, Result};
use std::fmt;
use std::sync::{Arc, OnceLock};
use value::Parse;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// The section of the documentation that the variable belongs to.
    pub section: &'static str,
    /// The name in the environment.
    pub name: &'static str,
    /// The kind of the value.
    pub kind: Kind,
    /// The default value as text; empty if there is none.
    pub default: &'static str,
    /// The documentation of the variable.
    pub doc: &'static str,
    /// The effect of the variable in this library.
    pub status: Status,
}

impl Variable {
    /// Returns whether the variable is this library's own, not NCCL's.
    fn is_own(&self) -> bool {
        self.name.starts_with("OXCCL_")
    }

    /// Returns whether the variable is documented for users, by this library or by NCCL.
    pub fn is_documented(&self) -> bool {
        self.section != accepted::UNDOCUMENTED
    }
}

/// The effect of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The variable has an effect.
    Honoured,
    /// The variable has no effect, for this reason.
    Accepted(&'static str),
    /// Network plugins read the variable, from the process's environment.
    Plugins,
}

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The default of the table.
    Default,
    /// The process's environment.
    Environment,
    /// A configuration file.
    File {
        /// The path of the file.
        path: Arc<str>,
        /// The number of the line, from 1.
        line: usize,
    },
    /// An environment plugin, by its name.
    Plugin(Arc<str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Environment => f.write_str("environment"),
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Plugin(name) => f.write_str(name),
        }
    }
}

/// The value of a variable in effect.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The variable.
    pub variable: &'static Variable,
    /// The value of the variable.
    pub value: Value,
    /// The origin of the value.
    pub origin: Origin,
    /// The reason why a value that was given is not the one in effect; `None` if none was refused.
    pub refused: Option<String>,
}

/// The findings of reading the variables.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// A value for each row, in the order of [`variables`].
    pub settings: Vec<Setting>,
    /// Complaints about values, names and files that cannot be used.
    pub warnings: Vec<String>,
    /// The variables of files, by which plugins may be set: names and values, of files that count,
    /// without those that the environment has.
    pub of_files: Vec<(String, String)>,
    /// Values of this library's own variables that cannot be read. No communicator is made while
    /// there are any.
    pub unreadable: Vec<Error>,
}

impl Report {
    /// Returns a line of text for each variable that was given.
    pub fn given(&self) -> impl Iterator<Item = String> {
        let given = self.settings.iter().filter(|s| s.origin != Origin::Default);
        given.map(|Setting { variable, value, origin, .. }| match variable.status {
            Status::Honoured | Status::Plugins => {
                format!("{}={value} ({origin})", variable.name)
            }
            Status::Accepted(why) => {
                format!("{}={value} ({origin}) has no effect: {why}", variable.name)
            }
        })
    }
}

/// Returns all rows: those that the library reads, then the others.
pub fn variables() -> impl Iterator<Item = &'static Variable> {
    table::FIELDS.iter().chain(accepted::ACCEPTED)
}

/// Returns the variable whose name is most like `name`; `None` if no name is like it.
pub fn nearest(name: &str) -> Option<&'static str> {
    suggest::nearest(name, variables().map(|variable| variable.name))
}

/// A function that finds the text given for a variable.
type Lookup<'a> = dyn Fn(&str) -> Option<(String, Origin)> + 'a;

/// Returns the error for a text that is no value of a variable.
fn unreadable(name: &str, text: &str, origin: &Origin, expected: &str) -> Error {
    let given = format!("{name}={text} ({origin})");
    Error::Variable { given, why: "cannot be read", expected: expected.to_owned() }
}

/// Reads the value of a row; if it cannot be read, the default is used. Only texts can be empty:
/// for other kinds an empty text means that nothing was given.
fn read<T: Parse>(row: &'static Variable, lookup: &Lookup<'_>, report: &mut Report) -> T {
    let Variable { name, default, .. } = *row;
    let blank = |text: &str| T::KIND != Kind::Text && text.trim().is_empty();
    let mut take = |value: T, text: &str, origin, refused| {
        report.settings.push(Setting { variable: row, value: value.value(text), origin, refused });
        value
    };
    let mut refused = None;
    if let Some((text, origin)) = lookup(name).filter(|(text, _)| !blank(text)) {
        match T::parse(&text) {
            Some(value) => return take(value, &text, origin, None),
            None => {
                let error = unreadable(name, &text, &origin, T::EXPECTED);
                refused = Some(error.to_string());
                if row.is_own() {
                    report.unreadable.push(error);
                } else {
                    let instead = if default.is_empty() { "no value" } else { default };
                    report.warnings.push(format!("{error}; using {instead}"));
                }
            }
        }
    }
    let value = T::parse(default).expect("the default of a variable parses");
    take(value, default, Origin::Default, refused)
}

impl Config {
    /// Returns the process's values, read at the first call.
    pub fn get() -> &'static Config {
        static CONFIG: OnceLock<Config> = OnceLock::new();
        CONFIG.get_or_init(Config::fresh)
    }

    /// Returns the process's values if all of this library's own variables could be read, else the
    /// error of the first one that could not.
    pub fn checked() -> Result<&'static Config> {
        let config = Config::get();
        config.report.unreadable.first().map_or(Ok(config), |error| Err(error.clone()))
    }

    /// Returns the error for the value of a variable that could be read but cannot be used.
    pub(crate) fn refused(&self, name: &str, why: &'static str, expected: String) -> Error {
        let given = self.setting(name).map_or_else(
            || name.to_owned(),
            |(_, Setting { value, origin, .. })| format!("{name}={value} ({origin})"),
        );
        Error::Variable { given, why, expected }
    }

    /// Reads the present values from the process's environment and files.
    pub fn fresh() -> Config {
        source::Sources::of_process().config()
    }

    /// Returns whether GPUs may not reach each other's memory.
    pub fn forbids_peer_access(&self) -> bool {
        self.p2p_disable || ["LOC", "0"].contains(&self.p2p_level.trim())
    }

    /// Returns whether data between GPUs may travel in lines of 128 bytes.
    pub fn wants_lines(&self) -> bool {
        let text = self.proto.trim();
        // Lists for single functions are not followed.
        if text.is_empty() || text.contains(':') {
            return true;
        }
        let excluded = text.strip_prefix('^');
        let mut names = excluded.unwrap_or(text).split(',');
        names.any(|name| name.trim().eq_ignore_ascii_case("LL128")) != excluded.is_some()
    }

    /// Reads the values from `lookup` as if it were the environment.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        Self::from_origins(&|name| lookup(name).map(|text| (text, Origin::Environment)))
    }

    fn from_origins(lookup: &Lookup<'_>) -> Self {
        let mut config = Self::from_rows(lookup);
        accepted::read_all(lookup, &mut config.report);
        config
    }

    /// Returns the text of a variable that was given a value; `None` if no value was given, or none
    /// that can be read.
    pub fn given(&self, name: &str) -> Option<String> {
        let (_, Setting { value, origin, .. }) = self.setting(name)?;
        (*origin != Origin::Default && *value != Value::Unset).then(|| value.to_string())
    }

    /// Returns the setting of a variable, and its index in the order of [`variables`].
    pub fn setting(&self, name: &str) -> Option<(usize, &Setting)> {
        self.report.settings.iter().enumerate().find(|(_, s)| s.variable.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use std::collections::HashSet;
    use std::time::Duration;

    #[test]
    fn a_list_of_protocols_may_exclude_lines() {
        let wants = |text: &str| {
            let lookup = |name: &str| (name == "NCCL_PROTO").then(|| text.to_owned());
            Config::from_lookup(lookup).wants_lines()
        };
        let with = ["", "LL128", "ll, ll128", "LL128,Simple", "^LL", "^LL,Simple", "allreduce:LL"];
        assert!(with.into_iter().all(wants));
        let without = ["LL", "Simple", "^LL128", "^LL,LL128", "^Simple, ll128", "LL,Simple"];
        assert!(!without.into_iter().any(wants));
    }

    #[test]
    fn every_row_is_unique_documented_and_has_a_readable_default() {
        let mut names = HashSet::new();
        for row in variables() {
            let name = row.name;
            assert!(name.starts_with("NCCL_") || name.starts_with("OXCCL_"), "{name}");
            assert!(names.insert(name), "{name} is there twice");
            assert!(row.doc.ends_with('.') && !row.doc.starts_with(' '), "{name}: {}", row.doc);
            if let Status::Accepted(why) = row.status {
                assert!(!why.is_empty() && !why.ends_with('.'), "{name}: {why}");
            }
        }
        let config = Config::from_lookup(|_| None);
        let order = config.report.settings.iter().map(|s| s.variable.name);
        assert!(order.eq(variables().map(|v| v.name)));
        assert!(config.report.warnings.is_empty(), "{:?}", config.report.warnings);
        assert_eq!(config.report.given().count(), 0);
    }

    #[test]
    fn what_our_plugin_for_rdma_reads_is_known() {
        let text = include_str!("../../../plugins/net-ib/src/options.rs");
        let known: HashSet<&str> = variables().map(|row| row.name).collect();
        let names = text.split('"').filter(|name| name.starts_with("NCCL_IB_"));
        let names: HashSet<&str> = names.collect();
        assert!(names.len() > 10);
        assert_eq!(names.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new());
    }

    #[test]
    fn by_default_operations_wait_for_ever_and_the_making_of_communicators_a_minute() {
        let config = Config::from_lookup(|_| None);
        // 0 means no limit: a rank may compute for as long as it likes before it calls.
        assert_eq!(
            (config.timeout, config.init_timeout),
            (Duration::ZERO, Duration::from_secs(60))
        );
    }

    #[test]
    fn values_come_from_the_lookup_and_bad_ones_are_reported() {
        let config = Config::from_lookup(|name| match name {
            "OXCCL_TIMEOUT" => Some("1500ms".to_owned()),
            "OXCCL_INIT_TIMEOUT" => Some("2 parsecs".to_owned()),
            "OXCCL_INSECURE" => Some("perhaps".to_owned()),
            "OXCCL_DETERMINISTIC" => Some(String::new()),
            "OXCCL_COUNTER_START" => Some("0xfffffffffffffff0".to_owned()),
            "NCCL_COMM_BLOCKING" => Some("0".to_owned()),
            "NCCL_MIN_CTAS" => Some("many".to_owned()),
            "NCCL_IB_AR_THRESHOLD" => Some("22".to_owned()),
            "NCCL_IB_SL" => Some("-1".to_owned()),
            "NCCL_NET" => Some(String::new()),
            _ => None,
        });
        assert_eq!(
            (config.timeout, config.insecure, config.deterministic),
            (Duration::from_millis(1500), false, false)
        );
        assert_eq!(config.counter_start, u64::MAX - 15);
        assert_eq!(
            (config.comm_blocking, config.min_ctas, &config.net),
            (Some(false), None, &None)
        );
        let warnings = [
            "NCCL_MIN_CTAS=many (environment) cannot be read; expected a number from -2^63 to 2^63 \
             - 1; using no value",
            "NCCL_IB_SL=-1 (environment) cannot be read; expected a number from 0 to 2^64 - 1; using 0",
        ];
        assert_eq!(config.report.warnings, warnings);
        let unreadable: Vec<String> =
            config.report.unreadable.iter().map(ToString::to_string).collect();
        let errors = [
            "OXCCL_INSECURE=perhaps (environment) cannot be read; expected 0 or 1",
            "OXCCL_INIT_TIMEOUT=2 parsecs (environment) cannot be read; expected a duration of at \
             most 292 years in ns, us, ms, s, m or h, as 500ms or 1.5s; without a unit it is in \
             seconds",
        ];
        assert_eq!(unreadable, errors);
        let refused = |name| config.setting(name).and_then(|(_, s)| s.refused.as_deref());
        assert_eq!(refused("OXCCL_INSECURE"), Some(errors[0]));
        assert_eq!(refused("NCCL_MIN_CTAS"), warnings[0].strip_suffix("; using no value"));
        assert_eq!((refused("OXCCL_TIMEOUT"), refused("NCCL_NET")), (None, None));
        assert!(config.report.unreadable.iter().all(|e| e.code() == Code::InvalidArgument));
        let given: Vec<String> = config.report.given().collect();
        assert_eq!(given.len(), 5);
        let no_effect = "NCCL_IB_AR_THRESHOLD=22 (environment) has no effect: the InfiniBand \
                         plugin has no use for it";
        assert!(given.iter().any(|line| line == no_effect), "{given:?}");
        assert_eq!(config.setting("NCCL_IB_AR_THRESHOLD").unwrap().1.value, Value::Uint(22));
        assert_eq!(config.given("OXCCL_COUNTER_START").unwrap(), (u64::MAX - 15).to_string());
        for name in ["NCCL_MIN_CTAS", "NCCL_NET", "OXCCL_INIT_TIMEOUT", "OXCCL_NONE"] {
            assert_eq!(config.given(name), None, "{name}");
        }
    }
}
