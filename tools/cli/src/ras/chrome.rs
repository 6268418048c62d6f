//! Trace events, as Perfetto and Chrome show them.

use super::flight::state;
use oxccl_runtime::recorder::read::{OperationReport, Process, RankReport};
use serde_json::{Value, json};

/// Returns the operations of all ranks as trace events on the time axis of the time of day: a
/// process for each process, a thread for each rank of a communicator in it.
pub(super) fn events(processes: &[Process]) -> String {
    let mut events = Vec::new();
    for (number, process) in (1u64..).zip(processes) {
        let name = format!("{} {} ({})", process.host, process.pid, process.command);
        events.push(meta("process_name", number, 0, &name));
        for (thread, rank) in (1u64..).zip(&process.ranks) {
            let name = match rank.name.as_str() {
                "" => format!("rank {} of {:016x}", rank.rank, rank.comm),
                name => format!("rank {} of {name}", rank.rank),
            };
            events.push(meta("thread_name", number, thread, &name));
            let event = |op| event(process, rank, op, (number, thread));
            events.extend(rank.operations.iter().map(event));
        }
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events }).to_string()
}

fn meta(kind: &str, process: u64, thread: u64, name: &str) -> Value {
    json!({ "ph": "M", "name": kind, "pid": process, "tid": thread, "args": { "name": name } })
}

/// Returns the event of an operation: a span from its beginning to its end or, where it has not
/// ended, to the moment at which it was read. Which calls on a GPU have ended is not known: they
/// are instants, but for the latest one while a kernel waits.
fn event(
    process: &Process,
    rank: &RankReport,
    op: &OperationReport,
    (number, thread): (u64, u64),
) -> Value {
    let begin_ns = op.begun_ns.unwrap_or(op.called_ns);
    let state = state(rank, op);
    let end_ns = op.ended_ns.or((state != "completed").then_some(process.read_ns));
    let us = |ns: u64| ns as f64 / 1e3;
    let mut event = json!({
        "cat": op.kind,
        "name": op.what,
        "pid": number,
        "tid": thread,
        "ts": us(begin_ns),
        "args": {
            "plan": op.plan,
            "carrier": op.carrier,
            "operation": op.number,
            "of_kind": op.of_kind,
            "bytes": op.bytes,
            "peer": op.peer,
            "stream": op.stream,
            "tag": op.tag,
            "called_us": us(op.called_ns),
            "state": rank.gpu.is_none().then_some(state),
        },
    });
    match end_ns {
        Some(end_ns) => {
            event["ph"] = "X".into();
            event["dur"] = us(end_ns.saturating_sub(begin_ns)).into();
        }
        None => {
            event["ph"] = "i".into();
            event["s"] = "t".into();
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank on a GPU that has called three collectives at 1, 2 and 3 µs, as read after 9 µs.
    fn process(waiting: Value) -> Process {
        let operation = |number: u64| {
            json!({
                "number": number, "kind": "collective", "of_kind": number, "what": "all_reduce",
                "bytes": 4, "peer": null, "sends": null, "transfers": 0, "stream": 1, "tag": 0,
                "called_ns": 1000 * (number + 1), "begun_ns": null, "ended_ns": null,
                "descriptor": { "what": 0, "count": 1 },
            })
        };
        let operations = [0, 1, 2].map(operation);
        let rank = json!({
            "comm": 7, "name": "", "rank": 0, "nranks": 2, "gpu": 0, "device": 0,
            "stage": "running", "begun_ns": 0, "issued": 3, "finished": 0, "collectives": 3,
            "collectives_by_kind": [3, 0, 0, 0, 0, 0, 0, 0], "finalized": false,
            "destroyed": false, "aborted": false, "waiting": waiting, "failure": "",
            "failure_code": 0, "failure_source": "here", "operations": operations,
        });
        serde_json::from_value(json!({
            "pid": 5, "host": "node1", "address": "", "command": "train", "state": "alive",
            "read_ns": 9000, "clock_set_ns": 0, "ranks": [rank],
        }))
        .expect("a process")
    }

    #[test]
    fn calls_on_gpus_are_instants_but_the_latest_one_while_a_kernel_waits() {
        let waiting = json!({
            "number": null, "collective": null, "peer": 1, "step": null, "since_ns": 4000,
            "looked_ns": 8900,
        });
        let of = |waiting| {
            let text = events(&[process(waiting)]);
            let trace: Value = serde_json::from_str(&text).expect("JSON");
            let events = trace["traceEvents"].as_array().expect("events").clone();
            let operations = events.into_iter().filter(|event| event["ph"] != "M");
            operations.collect::<Vec<_>>()
        };
        let kinds = |events: &[Value]| events.iter().map(|e| e["ph"].clone()).collect::<Vec<_>>();
        let waits = of(waiting);
        assert_eq!(kinds(&waits), ["i", "i", "X"]);
        assert_eq!((&waits[2]["ts"], &waits[2]["dur"]), (&json!(3.0), &json!(6.0)));
        assert_eq!(kinds(&of(Value::Null)), ["i", "i", "i"]);
        assert!(waits.iter().all(|event| event["args"]["state"].is_null()), "{waits:?}");
    }
}
