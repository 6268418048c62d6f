//! Time limits of operations that wait, and their cancellation.

use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest pause between checks of whether waiting is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// A time that is longer than any wait.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A flag that is set when the operation under way is not wanted any more.
pub type Cancel = Arc<AtomicBool>;

/// A check that finds out why waiting is in vain, for example because a rank that is needed has
/// died.
pub type InVain = Arc<dyn Fn() -> Option<Error> + Send + Sync>;

/// The end of waiting, by a point in time, a flag or a finding that waiting is in vain.
#[derive(Clone)]
pub struct Deadline {
    at: Instant,
    cancel: Cancel,
    in_vain: Option<InVain>,
}

impl Deadline {
    /// Returns a deadline after `limit` from now, or when the flag is set before.
    pub fn new(limit: Duration, cancel: &Cancel) -> Self {
        // A limit beyond the clock's range is as good as `FAR`.
        let at = |limit| Instant::now().checked_add(limit);
        let at = at(limit).or_else(|| at(FAR)).unwrap_or_else(Instant::now);
        Self { at, cancel: cancel.clone(), in_vain: None }
    }

    /// Returns this deadline, which also passes when `in_vain` finds a reason.
    pub fn unless(self, in_vain: Option<InVain>) -> Self {
        Self { in_vain, ..self }
    }

    /// Returns the reason why waiting is in vain, if it is.
    pub fn finding(&self) -> Option<Error> {
        self.in_vain.as_ref().and_then(|in_vain| in_vain())
    }

    /// Returns the time left; zero if the deadline was cancelled or waiting is in vain.
    pub fn left(&self) -> Duration {
        if self.is_cancelled() || self.finding().is_some() {
            return Duration::ZERO;
        }
        self.at.saturating_duration_since(Instant::now())
    }

    /// Returns whether the deadline has passed.
    pub fn passed(&self) -> bool {
        self.left().is_zero()
    }

    /// Returns the time to wait before the next check of the deadline.
    pub fn slice(&self) -> Duration {
        self.left().min(LOOK)
    }

    /// Returns whether the flag was set.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Acquire)
    }

    /// Returns the error for the end of waiting: the cancellation, the finding, or the time-out.
    pub fn error(&self, timed_out: impl FnOnce() -> Error) -> Error {
        if self.is_cancelled() {
            let hint = "it was aborted meanwhile";
            return Error::usage("the communicator was not made", hint);
        }
        self.finding().unwrap_or_else(timed_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_ends_by_time_or_by_its_flag() {
        let cancel = Cancel::default();
        let deadline = Deadline::new(Duration::from_secs(3600), &cancel);
        assert!(!deadline.passed() && deadline.slice() == LOOK);
        let text = || Error::Init { why: "late".to_owned() };
        assert!(deadline.error(text).to_string().contains("late"));
        cancel.store(true, Ordering::Release);
        assert!(deadline.passed() && deadline.error(text).to_string().contains("aborted"));
        assert!(Deadline::new(Duration::ZERO, &Cancel::default()).passed());
        let gone = || Some(Error::Init { why: "rank 2 is gone".to_owned() });
        let vain = Deadline::new(Duration::from_secs(3600), &Cancel::default());
        let vain = vain.unless(Some(Arc::new(gone)));
        assert!(vain.passed() && vain.error(text).to_string().contains("rank 2 is gone"));
    }
}
