//! Counters in the text format of Prometheus.

use oxccl_runtime::recorder::Stage;
use oxccl_runtime::recorder::read::{Awaited, Process, RankReport};
use std::fmt::Write;

/// The name, the type, the meaning and the value of a metric.
type Metric = (&'static str, &'static str, &'static str, fn(&Process, &RankReport) -> Option<f64>);

const METRICS: [Metric; 5] = [
    ("oxccl_operations_called_total", "counter", "Operations called.", |_, rank| {
        Some(rank.issued as f64)
    }),
    ("oxccl_operations_done_total", "counter", "Operations done; in host memory.", |_, rank| {
        rank.gpu.is_none().then_some(rank.finished as f64)
    }),
    (
        "oxccl_waiting_seconds",
        "gauge",
        "The time for which the operation under way has waited.",
        |process, rank| {
            let waited = |w: &_| process.read_ns.saturating_sub(since(w)) as f64 / 1e9;
            Some(rank.waiting.as_ref().map_or(0.0, waited))
        },
    ),
    ("oxccl_failed", "gauge", "1 if the communicator has failed.", |_, rank| {
        Some(f64::from(u8::from(rank.stage == Stage::Failed)))
    }),
    ("oxccl_collectives_called_total", "counter", "Collectives called.", |_, rank| {
        Some(rank.collectives as f64)
    }),
];

fn since(waiting: &Awaited) -> u64 {
    waiting.since_ns
}

/// Returns counters of all ranks.
pub(super) fn metrics(processes: &[Process]) -> String {
    let mut text = String::new();
    for (name, kind, meaning, value) in METRICS {
        let _ = writeln!(text, "# HELP {name} {meaning}\n# TYPE {name} {kind}");
        for process in processes {
            for rank in &process.ranks {
                let Some(value) = value(process, rank) else { continue };
                let _ = writeln!(
                    text,
                    "{name}{{comm=\"{:016x}\",name=\"{}\",rank=\"{}\",host=\"{}\",pid=\"{}\"}} {value}",
                    rank.comm,
                    escaped(&rank.name),
                    rank.rank,
                    escaped(&process.host),
                    process.pid
                );
            }
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}
