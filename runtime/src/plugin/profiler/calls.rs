//! The calls about events that are under way, in whichever threads, and which of them do not
//! return.

use crate::proxy::LIMIT;
use crossbeam::utils::CachePadded;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Calls that may be under way at a time; further ones wait for a place.
const PLACES: usize = 32;

/// The longest time between two looks that counts: the process may have been stopped meanwhile.
const GAP: Duration = Duration::from_secs(1);

/// A function that is called about events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    StartEvent = 1,
    StopEvent = 2,
    RecordEventState = 3,
}

/// The bits of a word that have the function of a call.
const FUNCTION_BITS: u32 = 2;
/// The bits of a word that have the number of its thread.
const THREAD_BITS: u32 = 20;

impl Function {
    /// Returns the function of the call in a word; `None` for 0.
    fn of(word: u64) -> Option<Self> {
        match word & ((1 << FUNCTION_BITS) - 1) {
            1 => Some(Self::StartEvent),
            2 => Some(Self::StopEvent),
            3 => Some(Self::RecordEventState),
            _ => None,
        }
    }

    /// Returns the name in the plugin's interface.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::StartEvent => "startEvent",
            Self::StopEvent => "stopEvent",
            Self::RecordEventState => "recordEventState",
        }
    }
}

/// The calls under way.
#[derive(Default)]
pub(super) struct UnderWay {
    /// The number of the call in each place among those of its thread, that of the thread and the
    /// function; 0 in a free one. Each thread begins its search at a place of its own.
    places: [CachePadded<AtomicU64>; PLACES],
    closed: AtomicBool,
}

/// Returns the number of the next call of this thread, and that of the thread.
fn next_call() -> (u64, u64) {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static CALLS: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    }
    let next = |of: &Cell<Option<(u64, u64)>>| {
        let (call, thread) =
            of.get().unwrap_or_else(|| (0, THREADS.fetch_add(1, Ordering::Relaxed)));
        of.set(Some((call + 1, thread)));
        (call, thread)
    };
    CALLS.with(next)
}

impl UnderWay {
    /// Makes a call, unless none is to be made any more. Reads no clock and takes no lock, as small
    /// operations take a microsecond.
    pub(super) fn call<T>(&self, function: Function, call: impl FnOnce() -> T) -> Option<T> {
        let place = self.enter(function)?;
        // Either this thread sees that calls are closed, or who closes them sees the place.
        let result = (!self.is_closed()).then(call);
        place.store(0, Ordering::Release);
        result
    }

    /// Takes a place for a call; `None` if none is free before calls are closed.
    fn enter(&self, function: Function) -> Option<&AtomicU64> {
        let (call, thread) = next_call();
        let number = call << THREAD_BITS | thread & ((1 << THREAD_BITS) - 1);
        let word = number << FUNCTION_BITS | function as u64;
        loop {
            let at = |i| &*self.places[(thread as usize).wrapping_add(i) % PLACES];
            let mut places = (0..PLACES).map(at);
            let takes = |place: &&AtomicU64| {
                let taken = place.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed);
                taken.is_ok()
            };
            if let Some(place) = places.find(takes) {
                return Some(place);
            }
            if self.is_closed() {
                return None;
            }
            std::thread::yield_now();
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Lets no further call begin.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Returns the function of a call that is under way.
    pub(super) fn any(&self) -> Option<Function> {
        self.places.iter().find_map(|place| Function::of(place.load(Ordering::SeqCst)))
    }
}

/// For how long calls have been under way, as far as looks at them tell.
#[derive(Default)]
pub(super) struct Looks {
    latest: Option<Instant>,
    /// The word in each place, and the time for which it has been there.
    seen: [(u64, Duration); PLACES],
}

impl Looks {
    /// Looks at the calls; returns the function of one that has not returned for [`LIMIT`].
    pub(super) fn look(&mut self, calls: &UnderWay, now: Instant) -> Option<Function> {
        let before = self.latest.replace(now).unwrap_or(now);
        let gap = now.saturating_duration_since(before).min(GAP);
        let mut stuck = None;
        for (place, (word, lasted)) in calls.places.iter().zip(&mut self.seen) {
            let present = place.load(Ordering::Relaxed);
            *lasted = if present == *word { *lasted + gap } else { Duration::ZERO };
            *word = present;
            if *lasted >= LIMIT {
                stuck = stuck.or(Function::of(present));
            }
        }
        stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_return_is_named_beside_many_that_do() {
        let (calls, mut looks) = (UnderWay::default(), Looks::default());
        let start = Instant::now();
        let mut named = Vec::new();
        calls.call(Function::StopEvent, || {
            for look in 0..48 {
                for _ in 0..3 * PLACES {
                    let done = calls.call(Function::StartEvent, || calls.any().is_some());
                    assert_eq!(done, Some(true));
                }
                let now = start + look * Duration::from_millis(250);
                named.push(looks.look(&calls, now));
            }
        });
        // It is seen from the first look on.
        let first = named.iter().position(Option::is_some);
        assert_eq!(first, Some(40), "{named:?}");
        assert_eq!(named[40], Some(Function::StopEvent));
        assert_eq!((calls.any(), looks.look(&calls, start)), (None, None));
    }

    #[test]
    fn the_time_in_which_nobody_looked_does_not_count() {
        let (calls, mut looks) = (UnderWay::default(), Looks::default());
        let start = Instant::now();
        calls.call(Function::RecordEventState, || {
            for look in 0..10 {
                assert_eq!(looks.look(&calls, start + look * Duration::from_secs(3600)), None);
            }
            let stuck = looks.look(&calls, start + Duration::from_secs(36_000));
            assert_eq!(stuck.map(Function::name), Some("recordEventState"));
        });
    }

    #[test]
    fn once_calls_are_closed_none_begins_and_none_waits_for_a_place() {
        let calls = UnderWay::default();
        // All places are taken by calls that do not return.
        let taken = (0..PLACES).map(|_| calls.enter(Function::StartEvent).is_some());
        assert!(taken.collect::<Vec<_>>().into_iter().all(|taken| taken));
        std::thread::scope(|scope| {
            let late = scope.spawn(|| calls.call(Function::StopEvent, || ()));
            calls.close();
            assert_eq!(late.join().unwrap(), None);
        });
        calls.places[0].store(0, Ordering::Relaxed);
        assert_eq!(calls.call(Function::StopEvent, || ()), None);
        assert_eq!(calls.any(), Some(Function::StartEvent));
    }
}
