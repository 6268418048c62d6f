//! The state of a job as a JSON document.

use super::verdict::Verdict;
use crate::recorder::read::Process;
use serde::Serialize;

#[derive(Serialize)]
struct Status<'a> {
    version: &'static str,
    causes: &'a [Verdict],
    processes: &'a [Process],
}

/// Returns the state of a job: what holds it up, and what each rank records. Times are in ns since
/// 1970.
pub fn json(processes: &[Process], causes: &[Verdict]) -> String {
    let status = Status { version: env!("CARGO_PKG_VERSION"), causes, processes };
    // Numbers, texts and lists can always be written.
    serde_json::to_string_pretty(&status).unwrap_or_default()
}
