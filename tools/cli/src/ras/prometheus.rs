//! Counters in the text format of Prometheus.

use oxccl_plan::Collective;
use oxccl_runtime::recorder::read::{Process, RankReport};
use oxccl_runtime::recorder::{Kind, Stage};
use std::fmt::Write;

/// A metric: its name, type and meaning, and its values for a rank, by the kind of the operation
/// where there are several.
struct Metric {
    name: &'static str,
    of_type: &'static str,
    meaning: &'static str,
    values: fn(&Process, &RankReport) -> Vec<(&'static str, f64)>,
}

const METRICS: [Metric; 8] = [
    Metric {
        name: "oxccl_operations_called_total",
        of_type: "counter",
        meaning: "Operations called.",
        values: |_, rank| vec![("", rank.issued as f64)],
    },
    Metric {
        name: "oxccl_operations_done_total",
        of_type: "counter",
        meaning: "Operations done; in host memory.",
        values: |_, rank| in_host_memory(rank, ("", rank.finished as f64)),
    },
    Metric {
        name: "oxccl_collectives_called_total",
        of_type: "counter",
        meaning: "Collectives called.",
        values: |_, rank| by_kind(|kind| rank.collectives_by_kind[kind]),
    },
    Metric {
        name: "oxccl_bytes_total",
        of_type: "counter",
        meaning: "Bytes of a block of each collective, and of all other operations, called.",
        values: |_, rank| {
            let mut values = by_kind(|kind| rank.bytes_by_kind[kind]);
            values.push((OTHER, rank.other_bytes as f64));
            values
        },
    },
    Metric {
        name: "oxccl_bandwidth_bytes_per_second",
        of_type: "gauge",
        meaning: "Bytes of a block by the time from beginning to end, over the latest operations; \
                  on GPUs, over those of which kernels tell.",
        values: |_, rank| bandwidths(rank),
    },
    Metric {
        name: "oxccl_waited_seconds_total",
        of_type: "counter",
        meaning: "The time for which operations have waited for longer than a moment; in host \
                  memory.",
        values: |_, rank| in_host_memory(rank, ("", rank.waited_ns as f64 / 1e9)),
    },
    Metric {
        name: "oxccl_waiting_seconds",
        of_type: "gauge",
        meaning: "The time for which the operation under way has waited.",
        values: |process, rank| {
            let since_ns = rank.waiting.map_or(process.read_ns, |waiting| waiting.since_ns);
            vec![("", process.read_ns.saturating_sub(since_ns) as f64 / 1e9)]
        },
    },
    Metric {
        name: "oxccl_failed",
        of_type: "gauge",
        meaning: "1 if the communicator has failed.",
        values: |_, rank| vec![("", f64::from(u8::from(rank.stage == Stage::Failed)))],
    },
];

/// The kind of what is no collective: messages and one-sided operations.
const OTHER: &str = "other";

fn in_host_memory(rank: &RankReport, value: (&'static str, f64)) -> Vec<(&'static str, f64)> {
    if rank.gpu.is_none() { vec![value] } else { Vec::new() }
}

fn by_kind(value: impl Fn(usize) -> u64) -> Vec<(&'static str, f64)> {
    Collective::ALL.iter().map(|kind| (kind.name(), value(*kind as usize) as f64)).collect()
}

/// Returns the bandwidth of each kind of operations of which some are recorded from beginning to
/// end.
fn bandwidths(rank: &RankReport) -> Vec<(&'static str, f64)> {
    let kinds = Collective::ALL.iter().map(|kind| kind.name()).chain([OTHER]);
    let of_kind = |name: &'static str| {
        let (mut bytes, mut ns) = (0, 0);
        for op in &rank.operations {
            let kind = op.descriptor.kind().map_or(OTHER, |collective| collective.name());
            if let (Some(begun), Some(ended)) = (op.begun_ns, op.ended_ns)
                && kind == name
                // Waits for signals move nothing, and kernels tell of parts of messages.
                && op.kind != Kind::Wait
                && !(op.kind == Kind::Exchange && rank.gpu.is_some())
            {
                bytes += op.bytes;
                ns += ended.saturating_sub(begun);
            }
        }
        (ns > 0).then(|| (name, bytes as f64 / ns as f64 * 1e9))
    };
    kinds.filter_map(of_kind).collect()
}

/// Returns counters of all ranks.
pub(super) fn metrics(processes: &[Process]) -> String {
    let mut text = String::new();
    for Metric { name, of_type, meaning, values } in METRICS {
        let _ = writeln!(text, "# HELP {name} {meaning}\n# TYPE {name} {of_type}");
        let ranks = processes.iter().flat_map(|of| of.ranks.iter().map(move |rank| (of, rank)));
        for (process, rank) in ranks {
            let labels = format!(
                "comm=\"{:016x}\",name=\"{}\",rank=\"{}\",host=\"{}\",pid=\"{}\"",
                rank.comm,
                escaped(&rank.name),
                rank.rank,
                escaped(&process.host),
                process.pid
            );
            for (kind, value) in values(process, rank) {
                let kind =
                    if kind.is_empty() { String::new() } else { format!(",kind=\"{kind}\"") };
                let _ = writeln!(text, "{name}{{{labels}{kind}}} {value}");
            }
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_failed_communicator_and_a_kernel_that_waits_are_counted() {
        let waiting = json!({
            "number": null, "collective": null, "peer": 1, "step": null, "since_ns": 4_000_000_000u64,
            "looked_ns": 6_000_000_000u64,
        });
        let waits = sample::on_gpu("collective", (1000, 6_500_000_000), &json!([]), &waiting);
        let mut failed = waits.clone();
        failed.ranks[0].stage = Stage::Failed;
        failed.ranks[0].waiting = None;
        failed.ranks[0].name = "a \"b\"".to_owned();
        let text = metrics(&[waits, failed]);
        let values = |name: &str| {
            let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
            lines.filter_map(|line| line.rsplit(' ').next()).collect::<Vec<_>>()
        };
        assert_eq!(values("oxccl_failed"), ["0", "1"], "{text}");
        assert_eq!(values("oxccl_waiting_seconds"), ["2.5", "0"], "{text}");
        assert!(text.contains(r#",name="a \"b\"",rank="0""#), "{text}");
    }
}
