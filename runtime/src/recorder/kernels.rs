//! Records of the collectives and messages that kernels run, those of graphs included, and their
//! times.

use super::ticks::{Scale, clock_ns};
use super::{Section, file};
use crate::op::descriptor::Descriptor;
use libc::CLOCK_MONOTONIC;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// The least time in ns in which the clocks of GPU and host drift apart by 1 ns: 50 parts per
/// million is what quartzes without a correction are sold with.
const DRIFT: i64 = 20_000;

/// The time in ns for which what was heard of the clocks counts: they may drift by more.
const KEPT_NS: u64 = 10_000_000_000;

/// The time between two looks at what kernels tell, while something runs.
pub const LOOKS: Duration = Duration::from_millis(20);

/// A collective, or messages, that a kernel runs, or has run. Times are those of the GPU's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRun {
    /// The number among the collectives that ran on the GPU for this communicator, from 0; `None`
    /// for messages.
    pub number: Option<u64>,
    /// The number of its call among the rank's operations; `None` in a graph.
    pub call: Option<u64>,
    /// The collective, or the first message.
    pub descriptor: Descriptor,
    /// The time at which it began, in ns.
    pub begun_ns: u64,
    /// The time at which it ended, in ns; `None` while it runs.
    pub ended_ns: Option<u64>,
}

/// In place of the number of a collective: messages.
const MESSAGES: u64 = u64::MAX;

/// The words of a [`KernelRun`].
#[repr(C)]
pub(super) struct Words {
    /// The number plus one, or [`MESSAGES`]; 0 for none.
    pub(super) number: AtomicU64,
    /// The number of the call plus one; 0 in a graph.
    pub(super) call: AtomicU64,
    /// The two words of the descriptor.
    pub(super) what: AtomicU64,
    pub(super) count: AtomicU64,
    /// The times by the GPU's clock; the end is 0 while it runs.
    pub(super) begun_ns: AtomicU64,
    pub(super) ended_ns: AtomicU64,
}

impl KernelRun {
    /// Returns whether both are one run, looked at at different times.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Self { ended_ns: None, ..*self } == Self { ended_ns: None, ..*other }
    }
}

impl Words {
    fn write(&self, run: &KernelRun) {
        let (what, count) = run.descriptor.to_words();
        // Who reads takes the words only if the number is right before and after them.
        self.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.call.store(run.call.map_or(0, |number| number + 1), Ordering::Relaxed);
        self.what.store(what.into(), Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        self.begun_ns.store(run.begun_ns, Ordering::Relaxed);
        self.ended_ns.store(run.ended_ns.unwrap_or(0), Ordering::Relaxed);
        self.number.store(run.number.map_or(MESSAGES, |number| number + 1), Ordering::Release);
    }

    /// Returns the words; `None` if they are none.
    pub(super) fn read(&self) -> Option<KernelRun> {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let number = load(&self.number).checked_sub(1)?;
        Some(KernelRun {
            number: Some(number).filter(|number| *number != MESSAGES - 1),
            call: load(&self.call).checked_sub(1),
            descriptor: Descriptor::from_words(load(&self.what) as u32, load(&self.count)),
            begun_ns: load(&self.begun_ns),
            ended_ns: Some(load(&self.ended_ns)).filter(|ended| *ended != 0),
        })
    }

    pub(super) fn clear(&self) {
        let Self { number, call, what, count, begun_ns, ended_ns } = self;
        let all = [number, call, what, count, begun_ns, ended_ns];
        all.into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// By how much the host's monotonic clock is ahead of a GPU's, as far as that can be told without a
/// kernel that asks: a collective begins after its call, by any time where the processor runs ahead
/// of the GPU, and what it tells is read later, by up to [`LOOKS`].
#[derive(Debug, Default)]
pub struct GpuClock {
    least: Option<Bound>,
    most: Option<Bound>,
}

/// A difference of the two clocks in ns, and the time at which it was found.
#[derive(Clone, Copy, Debug)]
struct Bound {
    offset_ns: i64,
    at_ns: u64,
}

impl Bound {
    /// Returns the bound after the clocks have drifted for a while.
    fn relaxed(&self, now_ns: u64, way: i64) -> i64 {
        let age = now_ns.saturating_sub(self.at_ns) as i64;
        self.offset_ns.saturating_add(way * (age / DRIFT))
    }
}

impl GpuClock {
    /// Notes the latest time that a GPU has told, as it was read at a time of the host, and by how
    /// much calls were ahead of the times at which their kernels began. Returns the difference, and
    /// by how much that may be wrong.
    fn hear(&mut self, now_ns: u64, told_ns: u64, calls: impl Iterator<Item = i64>) -> (i64, u64) {
        let bound = |offset_ns| Bound { offset_ns, at_ns: now_ns };
        for known in [&mut self.least, &mut self.most] {
            known.take_if(|known| now_ns.saturating_sub(known.at_ns) > KEPT_NS);
        }
        let most = (now_ns as i64).wrapping_sub(told_ns as i64);
        if self.most.is_none_or(|known| most < known.relaxed(now_ns, 1)) {
            self.most = Some(bound(most));
        }
        if let Some(least) = calls.max()
            && self.least.is_none_or(|known| least > known.relaxed(now_ns, -1))
        {
            self.least = Some(bound(least));
        }
        let most = self.most.map_or(most, |known| known.relaxed(now_ns, 1));
        let least = self.least.map(|known| known.relaxed(now_ns, -1));
        // Below 0 where the clocks drift by more than is usual.
        let gap_ns = least.and_then(|least| u64::try_from(most.saturating_sub(least)).ok());
        let looks_ns = LOOKS.as_nanos() as u64;
        match (least, gap_ns) {
            (Some(least), Some(gap_ns)) if gap_ns <= looks_ns => (least, gap_ns),
            _ => (most, looks_ns),
        }
    }
}

impl Section {
    /// Records what kernels tell of what they run, each at its place.
    pub fn kernels_run(&self, clock: &mut GpuClock, runs: &[Option<KernelRun>]) {
        let told = runs.iter().flatten().map(|run| run.ended_ns.unwrap_or(run.begun_ns));
        // Nobody else reads it.
        let (Some(told_ns), Some(scale)) = (told.max(), file::monotonic()) else { return };
        let places = || self.kernels.iter().zip(runs);
        let changed = || places().filter_map(|(words, run)| Some((words, words.read(), (*run)?)));
        // What old calls say of the clocks was heard when they were new.
        let new = changed().filter(|(_, known, run)| !known.is_some_and(|k| k.is_same(run)));
        let calls = new.filter_map(|(_, _, run)| self.called_before(&run, &scale));
        let (offset_ns, error_ns) = clock.hear(clock_ns(CLOCK_MONOTONIC), told_ns, calls);
        self.gpu_clock.store(offset_ns as u64, Ordering::Relaxed);
        self.gpu_clock_error.store(error_ns, Ordering::Relaxed);
        let changed = changed().filter(|(_, known, run)| *known != Some(*run));
        changed.for_each(|(words, _, run)| words.write(&run));
    }

    /// Returns by how much the call of what a kernel runs, by the host's clock, was ahead of its
    /// beginning, by the GPU's.
    fn called_before(&self, run: &KernelRun, scale: &Scale) -> Option<i64> {
        let entry = self.entry(run.call?);
        let called_ns = scale.ns(entry.called.load(Ordering::Relaxed))?;
        entry.is_of(run.call?).then_some((called_ns as i64).wrapping_sub(run.begun_ns as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// The host's clock is 5 s ahead.
    const AHEAD: u64 = 5 * SECOND;
    const LOOKS_NS: u64 = LOOKS.as_nanos() as u64;

    fn gpu(host_ns: u64) -> u64 {
        host_ns - AHEAD
    }

    /// By how much a call was ahead of the beginning of its kernel, both by the host's clock.
    fn ahead(called: u64, begun: u64) -> i64 {
        called as i64 - gpu(begun) as i64
    }

    fn none() -> std::iter::Empty<i64> {
        std::iter::empty()
    }

    #[test]
    fn clocks_are_as_far_apart_as_calls_and_looks_allow() {
        let mut clock = GpuClock::default();
        // In a graph: 15 ms pass before somebody looks.
        let now = 10 * SECOND;
        assert_eq!(clock.hear(now, gpu(now - 15_000_000), none()), (5_015_000_000, LOOKS_NS));
        // Later looks come sooner after the end.
        let now = 11 * SECOND;
        assert_eq!(clock.hear(now, gpu(now - 40_000), none()), (5_000_040_000, LOOKS_NS));
        // A call after which the kernel began at once.
        let now = 12 * SECOND;
        let calls = [ahead(now - 90_000_000, now - 89_996_000), ahead(now - 80_000_000, now - 9)];
        let heard = clock.hear(now, gpu(now - 80_000_000), calls.into_iter());
        assert_eq!(heard, (4_999_996_000, 44_000 + 50_000));
        // Where nothing new is heard of, the clocks may have drifted.
        let later = now + 8 * SECOND;
        let heard = clock.hear(later, gpu(now), none());
        assert_eq!(heard, (4_999_996_000 - 8 * 50_000, 44_000 + (8 + 9) * 50_000));
        // What is older counts no more.
        let later = now + 100 * SECOND;
        let heard = clock.hear(later, gpu(later - 1_000_000), none());
        assert_eq!(heard, (5_001_000_000, LOOKS_NS));
    }

    #[test]
    fn a_processor_that_runs_ahead_of_the_gpu_does_not_set_the_clock() {
        let mut clock = GpuClock::default();
        for n in 0..600 {
            let now = 10 * SECOND + n * 100_000_000;
            // From 200 to 250 ms pass between call and kernel, and up to 20 ms until a look.
            let (before, late) =
                (200_000_000 + n * 7 % 50 * 1_000_000, 1000 + n * 13 % 20 * 1_000_000);
            let calls = std::iter::once(ahead(now - late - before, now - late));
            let (offset_ns, error_ns) = clock.hear(now, gpu(now - late), calls);
            let wrong_ns = offset_ns.abs_diff(AHEAD as i64);
            assert!(wrong_ns <= error_ns, "{n}: {wrong_ns} and {error_ns}");
        }
    }

    #[test]
    fn clocks_that_drift_more_than_is_usual_are_found_again() {
        // By 200 parts per million, either way: a look at 1 ms, and a call at 4 µs or none.
        for (way, has_calls) in [(-1, true), (1, true), (-1, false), (1, false)] {
            let mut clock = GpuClock::default();
            for n in 0..600u64 {
                let now = 10 * SECOND + n * 100_000_000;
                let drifted = way * (n * 20_000) as i64;
                let told = gpu(now - 1_000_000).saturating_add_signed(-drifted);
                let call = ahead(now - 1_004_000, now - 1_000_000) + drifted;
                let (offset_ns, _) = clock.hear(now, told, has_calls.then_some(call).into_iter());
                let wrong_ns = offset_ns.abs_diff(AHEAD as i64 + drifted);
                assert!(wrong_ns <= 3_500_000, "{way}, {n}: {wrong_ns}");
            }
        }
        let mut clock = GpuClock::default();
        let now = 10 * SECOND;
        assert_eq!(clock.hear(now, now, [7].into_iter()), (0, LOOKS_NS), "before its call");
    }
}
