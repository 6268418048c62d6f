//! Trace events, as Perfetto and Chrome show them.

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
/// ended, to the moment at which it was read.
fn event(
    process: &Process,
    rank: &RankReport,
    op: &OperationReport,
    (number, thread): (u64, u64),
) -> Value {
    let begin_ns = op.begun_ns.unwrap_or(op.called_ns);
    let ended = op.number < rank.finished;
    let end_ns = match op.ended_ns {
        Some(end) => end,
        None if ended => begin_ns,
        None => process.read_ns,
    };
    let us = |ns: u64| ns as f64 / 1e3;
    json!({
        "ph": "X",
        "cat": op.kind,
        "name": op.what,
        "pid": number,
        "tid": thread,
        "ts": us(begin_ns),
        "dur": us(end_ns.saturating_sub(begin_ns)),
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
            "ended": ended,
        },
    })
}
