//! Events: positions in streams. Streams wait for them, and times between them are measured.

use super::graph::Captured;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An event of the host device.
#[derive(Default)]
pub struct Event {
    /// The numbers of the last record called and of the last record that its stream has reached.
    announced: AtomicU64,
    reached: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    at: Option<Instant>,
    captured: Option<Captured>,
}

impl Event {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes the call of a record and returns the number of the record.
    pub(super) fn announce(&self) -> u64 {
        self.inner().captured = None;
        self.announced.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns the number of the last record that was called.
    pub(super) fn announced(&self) -> u64 {
        self.announced.load(Ordering::Acquire)
    }

    /// Notes that the stream has reached a record.
    pub(super) fn reach(&self, number: u64) {
        self.inner().at = Some(Instant::now());
        self.reached.fetch_max(number, Ordering::AcqRel);
    }

    /// Returns whether the stream has reached a record.
    pub(super) fn reached(&self, number: u64) -> bool {
        self.reached.load(Ordering::Acquire) >= number
    }

    /// Makes the event stand for a point of a capture.
    pub(super) fn capture(&self, at: Captured) {
        self.inner().captured = Some(at);
    }

    pub(super) fn captured(&self) -> Option<Captured> {
        let mut inner = self.inner();
        // After the end of the capture the event stands for nothing.
        if inner.captured.as_ref().is_some_and(Captured::is_over) {
            inner.captured = None;
        }
        inner.captured.clone()
    }

    /// Returns whether the stream has reached the last record; true if there is no record.
    pub fn query(&self) -> bool {
        self.reached(self.announced())
    }

    /// Returns the time from `earlier` to this event; `None` if a stream has not reached both.
    pub fn since(&self, earlier: &Event) -> Option<Duration> {
        if !self.query() || !earlier.query() {
            return None;
        }
        let (from, to) = (earlier.inner().at?, self.inner().at?);
        Some(to.saturating_duration_since(from))
    }
}
