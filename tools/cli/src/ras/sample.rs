//! A rank on a GPU, for tests.

use oxccl_runtime::recorder::read::Process;
use serde_json::{Value, json};

/// Returns a process that called three operations of a kind on a GPU, at a time and twice and three
/// times that; with what its kernels tell and wait for, as read at another time.
pub(super) fn on_gpu(
    kind: &str,
    (called_ns, read_ns): (u64, u64),
    kernels: &Value,
    waiting: &Value,
) -> Process {
    let descriptor = json!({ "what": 0, "count": 1 });
    let mut kernels = kernels.clone();
    for run in kernels.as_array_mut().into_iter().flatten() {
        run["descriptor"] = descriptor.clone();
    }
    let operation = |number: u64| {
        json!({
            "number": number, "kind": kind, "of_kind": number, "what": "all_reduce",
            "bytes": 4, "peer": null, "sends": null, "transfers": 0, "stream": 1, "tag": 0,
            "called_ns": called_ns * (number + 1), "begun_ns": null, "ended_ns": null,
            "descriptor": descriptor,
        })
    };
    let operations = [0, 1, 2].map(operation);
    let rank = json!({
        "comm": 7, "name": "", "rank": 0, "nranks": 2, "gpu": 0, "device": 0,
        "stage": "running", "begun_ns": 0, "issued": 3, "finished": 0, "collectives": 3,
        "collectives_by_kind": [3, 0, 0, 0, 0, 0, 0, 0], "finalized": false,
        "destroyed": false, "aborted": false, "waiting": waiting, "failure": "",
        "failure_code": 0, "failure_source": "here", "operations": operations,
        "kernels": kernels,
    });
    serde_json::from_value(json!({
        "pid": 5, "host": "node1", "address": "", "command": "train", "state": "alive",
        "read_ns": read_ns, "clock_set_ns": 0, "ranks": [rank],
    }))
    .expect("a process")
}
