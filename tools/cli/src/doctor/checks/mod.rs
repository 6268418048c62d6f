//! The checks: pure functions from what was read to a verdict.

pub(in crate::doctor) mod gpu;
pub(super) mod libraries;
pub(super) mod limits;
pub(super) mod network;
pub(super) mod pairs;
pub(super) mod processors;
pub(super) mod variables;

use oxccl_runtime::config::{Config, Origin};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The judgement of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// The machine lacks what the check is about, or does not show it.
    NotApplicable,
    /// All is well.
    Ok,
    /// Something is slower than it could be, or does not work for some programs.
    Warning,
    /// Jobs fail, or do not run where they should.
    Failure,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::NotApplicable => "not applicable",
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failure => "failure",
        }
    }
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Check {
    #[serde(rename = "check")]
    pub(super) name: String,
    pub(super) verdict: Verdict,
    /// The finding, in full sentences.
    pub(super) found: String,
    /// The remedy; empty if there is nothing to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) advice: String,
    /// Values that should be the same on all hosts of a job.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) facts: BTreeMap<String, String>,
}

impl Check {
    fn new(name: &str, verdict: Verdict, found: String, advice: &str) -> Self {
        let (name, advice, facts) = (name.to_owned(), advice.to_owned(), BTreeMap::new());
        Self { name, verdict, found, advice, facts }
    }

    pub(super) fn ok(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, found.into(), "")
    }

    pub(super) fn not_applicable(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::NotApplicable, found.into(), "")
    }

    pub(super) fn warning(name: &str, found: impl Into<String>, advice: &str) -> Self {
        Self::new(name, Verdict::Warning, found.into(), advice)
    }

    pub(super) fn failure(name: &str, found: impl Into<String>, advice: &str) -> Self {
        Self::new(name, Verdict::Failure, found.into(), advice)
    }

    /// Adds a value that should be the same on all hosts.
    pub(super) fn fact(mut self, name: &str, value: impl ToString) -> Self {
        self.facts.insert(name.to_owned(), value.to_string());
        self
    }
}

/// Judges the variables, and the device that they choose.
pub(super) fn environment(config: &Config, device: Result<(), String>) -> Check {
    const NAME: &str = "environment";
    let report = &config.report;
    let mut refused: Vec<String> = report.unreadable.iter().map(ToString::to_string).collect();
    if refused.is_empty() {
        // Else no device is chosen, for the same reason.
        refused.extend(device.err());
    }
    let given: Vec<&str> = (report.settings.iter())
        .filter(|setting| setting.origin != Origin::Default)
        .map(|setting| setting.variable.name)
        .collect();
    let advice = "See oxccl env for the names, values and meaning of all variables.";
    if !refused.is_empty() {
        return Check::failure(NAME, refused.join(" "), advice);
    }
    if !report.warnings.is_empty() {
        return Check::warning(NAME, report.warnings.join(" "), advice);
    }
    match given.is_empty() {
        true => Check::ok(NAME, "No variable of the library is set."),
        false => Check::ok(NAME, format!("The library takes what is set: {}.", given.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Check {
        let text = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        environment(&Config::from_lookup(text), Ok(()))
    }

    #[test]
    fn variables_that_cannot_be_read_fail_and_values_of_nccl_are_warned_of() {
        assert_eq!(of(&[]).verdict, Verdict::Ok);
        let check = of(&[("OXCCL_TIMEOUT", "2s"), ("NCCL_DEBUG", "INFO")]);
        assert_eq!(check.verdict, Verdict::Ok);
        assert!(check.found.contains("OXCCL_TIMEOUT"), "{check:?}");
        let check = of(&[("OXCCL_TIMEOUT", "soon")]);
        assert_eq!(check.verdict, Verdict::Failure);
        assert!(check.found.contains("OXCCL_TIMEOUT=soon"), "{check:?}");
        let check = of(&[("NCCL_P2P_DISABLE", "perhaps")]);
        assert_eq!(check.verdict, Verdict::Warning);
        assert!(check.found.contains("NCCL_P2P_DISABLE=perhaps"), "{check:?}");
        let device = Err("There is no GPU.".to_owned());
        let check = environment(&Config::from_lookup(|_| None), device);
        assert_eq!(check.verdict, Verdict::Failure);
    }

    #[test]
    fn a_check_is_a_line_of_json_and_back() {
        let check = Check::warning("a", "b", "c").fact("d", 1);
        let line = serde_json::to_string(&check).expect("a line");
        assert!(line.contains(r#""check":"a","verdict":"warning","found":"b""#), "{line}");
        assert_eq!(serde_json::from_str::<Check>(&line).expect("a check"), check);
        let check = Check::not_applicable("a", "b");
        let line = serde_json::to_string(&check).expect("a line");
        assert_eq!(line, r#"{"check":"a","verdict":"not_applicable","found":"b"}"#);
    }
}
