//! How long something may take, and whether it is still wanted.

use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pause between looks at whether what one waits for is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// Longer than anyone waits.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Set when what is under way is wanted no more.
pub type Cancel = Arc<AtomicBool>;

/// Finds out why waiting is in vain, for example because a rank that is needed has died.
pub type InVain = Arc<dyn Fn() -> Option<Error> + Send + Sync>;

/// A point in time after which, or a flag or a finding upon which, waiting ends.
#[derive(Clone)]
pub struct Deadline {
    at: Instant,
    cancel: Cancel,
    in_vain: Option<InVain>,
}

impl Deadline {
    /// So much time from now, unless the flag is set before.
    pub fn new(limit: Duration, cancel: &Cancel) -> Self {
        // What is beyond the clock's range will not be lived to see.
        let at = |limit| Instant::now().checked_add(limit);
        let at = at(limit).or_else(|| at(FAR)).unwrap_or_else(Instant::now);
        Self { at, cancel: cancel.clone(), in_vain: None }
    }

    /// The same, which also ends when `in_vain` finds a reason.
    pub fn unless(self, in_vain: Option<InVain>) -> Self {
        Self { in_vain, ..self }
    }

    /// Why waiting is in vain, if it is.
    pub fn finding(&self) -> Option<Error> {
        self.in_vain.as_ref().and_then(|in_vain| in_vain())
    }

    /// The time left; none when it is cancelled or waiting is in vain.
    pub fn left(&self) -> Duration {
        if self.is_cancelled() || self.finding().is_some() {
            return Duration::ZERO;
        }
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether it is over.
    pub fn passed(&self) -> bool {
        self.left().is_zero()
    }

    /// How long to wait at a time.
    pub fn slice(&self) -> Duration {
        self.left().min(LOOK)
    }

    /// Whether the flag was set.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Acquire)
    }

    /// The error for the end of waiting: what was found, the time-out, or that it was cancelled.
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
