//! The events of operations in graphs, for each run of the graph.

use super::operation::{Route, Running};
use super::{Ended, Event, Instance, Reported, What, handle};
use crate::op::Operation;
use crate::op::follow::{Replayed, Runs};
use std::ops::Range;
use std::sync::{Arc, MutexGuard, Weak};

/// An operation that a graph has captured, whose events begin and end with each run of the graph,
/// as with NCCL.
pub(super) struct Replays {
    pub(super) instance: Weak<Instance>,
    pub(super) operation: Operation,
    pub(super) routes: Vec<Route>,
    /// The numbers of the channels of each of its collectives or transfers.
    pub(super) numbers: Vec<Range<u8>>,
    // The events of the calls that were captured have ended; plugins keep what refers to them.
    pub(super) of_group: Reported,
    pub(super) calls: Vec<Reported>,
}

impl Replays {
    /// Begins the events of a run, and of its group, which ends last; `None` once the profiler has
    /// ended.
    pub(super) fn begin_run(&self) -> Option<(Running, Option<Event>)> {
        let instance = self.instance.upgrade()?;
        let group = instance.begin_group(self.of_group.0);
        let of = (handle(group.as_ref()), self.calls.as_slice());
        let channels = |i: usize| self.numbers.get(i).cloned().unwrap_or_default();
        Some((instance.operation(&self.operation, &self.routes, &channels, of), group))
    }
}

impl Runs for Replays {
    fn begin(&self, number: u64) -> Box<dyn Send> {
        Box::new(self.begin_run().map(|(running, group)| (running.begun(number), group)))
    }
}

/// An operation in a graph on a GPU.
pub(super) struct InGraph {
    pub(super) replays: Arc<Replays>,
    /// Tells of its runs.
    pub(super) runs: Box<dyn Replayed>,
}

impl Instance {
    pub(super) fn replayed(&self) -> MutexGuard<'_, Vec<InGraph>> {
        self.replayed.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes the runs of operations in graphs that have ended, each with the times of its channels.
    pub(super) fn take_replayed(&self) -> Vec<Ended> {
        let mut replayed = self.replayed();
        let are_over: Vec<_> = replayed.iter().map(|of| of.runs.is_over()).collect();
        let mut all: Vec<Ended> = Vec::new();
        // What began before the latest one that was seen to have ended has ended by now, and is
        // told before it.
        let mut before_ns = u64::MAX;
        for _ in 0..2 {
            for InGraph { replays, runs } in replayed.iter_mut() {
                let ended = std::iter::from_fn(|| runs.next(before_ns));
                let run = |times| Ended { what: What::Run(replays.clone()), times };
                all.extend(ended.map(run));
            }
            before_ns = all.iter().filter_map(Ended::begun_ns).max().unwrap_or(0);
        }
        let mut are_over = are_over.into_iter();
        replayed.retain(|_| !are_over.next().unwrap_or_default());
        all
    }
}

/// Puts runs of graphs between other operations, which are in their order, by the times at which
/// they began.
pub(super) fn merge<T>(
    operations: Vec<T>,
    runs: Vec<T>,
    begun_ns: impl Fn(&T) -> Option<u64>,
) -> Vec<T> {
    // One without times stays behind the one before it.
    let mut latest_ns = 0;
    let operations = operations.into_iter().map(|ended| {
        latest_ns = begun_ns(&ended).unwrap_or(latest_ns).max(latest_ns);
        (latest_ns, ended)
    });
    let mut all: Vec<_> = operations.collect();
    all.extend(runs.into_iter().map(|run| (begun_ns(&run).unwrap_or(0), run)));
    all.sort_by_key(|(begun_ns, _)| *begun_ns);
    all.into_iter().map(|(_, ended)| ended).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_told_between_the_operations_in_the_order_of_their_beginnings() {
        let operations = vec![("a", Some(10)), ("b", Some(40)), ("c", None), ("d", Some(60))];
        let runs = vec![("y", Some(50)), ("z", Some(70)), ("x", Some(20))];
        let all = merge(operations, runs, |(_, begun_ns)| *begun_ns);
        let names: String = all.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, "axbcydz");
    }
}
