//! The variables that are given a value, as hosts and ranks of a job are compared by them.

use oxccl_runtime::config::{Config, Origin};
use serde::{Deserialize, Serialize};

/// A variable that is given a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Variable {
    pub(crate) variable: String,
    pub(crate) value: String,
    /// The environment, or a file and line.
    pub(crate) origin: String,
}

/// The variables by which `oxccl run` tells a rank who it is.
pub(crate) const OF_RANKS: [&str; 4] =
    ["OXCCL_RANK", "OXCCL_NRANKS", "OXCCL_LOCAL_RANK", "OXCCL_SECRET_FILE"];

/// Variables of the system that decide which libraries a process loads.
const OF_LOADER: [&str; 2] = ["LD_LIBRARY_PATH", "LD_PRELOAD"];

/// Returns the variables that are given a value here: those of the library, without those of single
/// ranks, and those by which libraries are found.
pub(crate) fn variables(config: &Config) -> Vec<Variable> {
    let given = config.report.settings.iter().filter(|s| s.origin != Origin::Default);
    let of_job = given.filter(|setting| !OF_RANKS.contains(&setting.variable.name));
    let of_job = of_job.map(|setting| Variable {
        variable: setting.variable.name.to_owned(),
        value: setting.value.to_string(),
        origin: setting.origin.to_string(),
    });
    let of_loader = OF_LOADER.into_iter().filter_map(|name| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
        let value = value.to_string_lossy().into_owned();
        Some(Variable { variable: name.to_owned(), value, origin: "environment".to_owned() })
    });
    of_job.chain(of_loader).collect()
}
