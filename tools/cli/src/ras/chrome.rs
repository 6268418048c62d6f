//! Trace events, as Perfetto and Chrome show them.

use super::flight::state;
use oxccl_runtime::ras::clocks::clocks;
use oxccl_runtime::recorder::Kind;
use oxccl_runtime::recorder::read::{KernelReport, OperationReport, Process, RankReport};
use serde_json::{Value, json};

/// Returns the operations of all ranks as trace events on the time axis of the time of day of the
/// first process: a process for each process, a thread for each rank of a communicator in it.
pub(super) fn events(processes: &[Process]) -> String {
    let mut events = Vec::new();
    for ((number, process), clock) in (1u64..).zip(processes).zip(clocks(processes)) {
        let first = events.len();
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
            if let Some(gpu) = rank.gpu {
                let row = (number, process.ranks.len() as u64 + thread);
                events.push(meta("thread_name", row.0, row.1, &format!("{name}, on GPU {gpu}")));
                events.extend(rank.kernels.iter().map(|run| kernel(process, run, row)));
            }
        }
        if clock.ahead_ns != 0 {
            events[first..].iter_mut().for_each(|event| set_back(event, clock.ahead_ns));
        }
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events }).to_string()
}

/// Sets the times of an event back.
fn set_back(event: &mut Value, ahead_ns: i64) {
    let back = |time: &mut Value| {
        if let Some(of) = time.as_f64() {
            *time = (of - ahead_ns as f64 / 1e3).into();
        }
    };
    for at in ["/ts", "/args/called_us"] {
        event.pointer_mut(at).into_iter().for_each(back);
    }
}

fn meta(kind: &str, process: u64, thread: u64, name: &str) -> Value {
    json!({ "ph": "M", "name": kind, "pid": process, "tid": thread, "args": { "name": name } })
}

/// Returns the event of an operation: a span from its beginning to its end or, where it has not
/// ended, to the moment at which it was read. Calls on a GPU are instants; what kernels tell of is
/// in rows of their own, and of other operations the latest one is a span while a kernel waits.
fn event(
    process: &Process,
    rank: &RankReport,
    op: &OperationReport,
    (number, thread): (u64, u64),
) -> Value {
    let state = state(process, rank, op);
    let until_now = (state != "completed").then_some(process.read_ns);
    let (begin_ns, end_ns) = match (rank.gpu, op.kind) {
        (Some(_), kind) if kind == Kind::Collective || op.begun_ns.is_some() => {
            (op.called_ns, None)
        }
        _ => (op.begun_ns.unwrap_or(op.called_ns), op.ended_ns.or(until_now)),
    };
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
            "state": state,
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

/// Returns the event of what runs on a GPU, which lasts until it was read if it has not ended.
fn kernel(process: &Process, run: &KernelReport, (number, thread): (u64, u64)) -> Value {
    let end_ns = run.ended_ns.unwrap_or(process.read_ns);
    json!({
        "ph": "X",
        "cat": run.number.map_or(Kind::Exchange, |_| Kind::Collective),
        "name": run.what,
        "pid": number,
        "tid": thread,
        "ts": us(run.begun_ns),
        "dur": us(end_ns.saturating_sub(run.begun_ns)),
        "args": { "on_gpu": run.number, "operation": run.call, "ended": run.ended_ns.is_some() },
    })
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    /// A rank on a GPU that has called operations of a kind at 1, 2 and 3 µs, of which collectives
    /// ran from 4 µs on, as read after 9 µs.
    fn process(kind: &str, waiting: Value) -> Process {
        let run = |number: u64, ended_ns: Option<u64>| {
            let begun_ns = 4000 + 2000 * number;
            let (what, call) = ("broadcast", Some(number));
            let ran = kind == "collective";
            let run = json!({ "number": number, "call": call, "what": what, "begun_ns": begun_ns,
                "ended_ns": ended_ns });
            ran.then_some(run)
        };
        let kernels: Vec<_> = [run(0, Some(5000)), run(1, None)].into_iter().flatten().collect();
        sample::on_gpu(kind, (1000, 9000), &kernels.into(), &waiting)
    }

    /// The events of operations, each with its phase, beginning, length and row.
    fn events_of(kind: &str, waiting: Value) -> Vec<(String, f64, Option<f64>, u64)> {
        let text = events(&[process(kind, waiting)]);
        let trace: Value = serde_json::from_str(&text).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events").clone();
        let operations = events.iter().filter(|event| event["ph"] != "M");
        let of = |event: &Value| {
            let phase = event["ph"].as_str().expect("a phase").to_owned();
            let begin = event["ts"].as_f64().expect("a time");
            (phase, begin, event["dur"].as_f64(), event["tid"].as_u64().expect("a row"))
        };
        operations.map(of).collect()
    }

    fn instant(us: f64) -> (String, f64, Option<f64>, u64) {
        ("i".to_owned(), us, None, 1)
    }

    fn span(us: f64, lasts: f64, row: u64) -> (String, f64, Option<f64>, u64) {
        ("X".to_owned(), us, Some(lasts), row)
    }

    #[test]
    fn collectives_on_gpus_are_instants_of_calls_and_spans_of_kernels() {
        let calls = [1.0, 2.0, 3.0].map(instant);
        let kernels = [span(4.0, 1.0, 2), span(6.0, 3.0, 2)];
        assert_eq!(events_of("collective", Value::Null), [&calls[..], &kernels].concat());
    }

    #[test]
    fn hosts_have_one_axis_of_time() {
        let of = |host: &str, shift_ns: u64| {
            let kernels = [0, 1].map(|number: u64| {
                let begun_ns = shift_ns + 4000 + 2000 * number;
                json!({ "number": number, "call": number, "what": "all_reduce",
                    "begun_ns": begun_ns, "ended_ns": begun_ns + 1000 })
            });
            let mut process =
                sample::on_gpu("collective", (1000, 9000), &kernels.clone().into(), &Value::Null);
            process.host = host.to_owned();
            for (number, op) in process.ranks[0].operations.iter_mut().enumerate() {
                op.called_ns += shift_ns;
                op.ended_ns = kernels.get(number).and_then(|run| run["ended_ns"].as_u64());
            }
            process
        };
        let text = events(&[of("a", 0), of("b", 5_000_000_000)]);
        let trace: Value = serde_json::from_str(&text).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events");
        let times = |process: u64| {
            let own = events.iter().filter(|event| event["pid"] == process && event["ph"] != "M");
            own.map(|event| (event["ts"].as_f64(), event["args"]["called_us"].as_f64()))
                .collect::<Vec<_>>()
        };
        assert!(times(1).len() == 5 && times(1) == times(2), "{:?} {:?}", times(1), times(2));
    }

    #[test]
    fn messages_on_gpus_are_instants_but_the_latest_one_while_a_kernel_waits() {
        let waiting = json!({
            "number": null, "collective": null, "peer": 1, "step": null, "since_ns": 4000,
            "looked_ns": 8900,
        });
        let waits = [instant(1.0), instant(2.0), span(3.0, 6.0, 1)];
        assert_eq!(events_of("exchange", waiting), waits);
        assert_eq!(events_of("exchange", Value::Null), [1.0, 2.0, 3.0].map(instant));
    }
}
