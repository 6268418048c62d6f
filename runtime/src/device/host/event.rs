//! Events: marks in streams, to wait for and to measure time between.

use super::graph::Captured;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An event of the host device.
#[derive(Default)]
pub struct Event {
    /// Number of the last call that recorded it, and of the last that came up in its stream.
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

    /// A record was called; its number.
    pub(super) fn announce(&self) -> u64 {
        self.inner().captured = None;
        self.announced.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The number of the last record.
    pub(super) fn announced(&self) -> u64 {
        self.announced.load(Ordering::Acquire)
    }

    /// A record came up.
    pub(super) fn reach(&self, number: u64) {
        self.inner().at = Some(Instant::now());
        self.reached.fetch_max(number, Ordering::AcqRel);
    }

    /// Whether a record has come up.
    pub(super) fn reached(&self, number: u64) -> bool {
        self.reached.load(Ordering::Acquire) >= number
    }

    /// The event now stands for a point of a capture.
    pub(super) fn capture(&self, at: Captured) {
        self.inner().captured = Some(at);
    }

    pub(super) fn captured(&self) -> Option<Captured> {
        let mut inner = self.inner();
        // Once the capture is over the event stands for nothing.
        if inner.captured.as_ref().is_some_and(Captured::is_over) {
            inner.captured = None;
        }
        inner.captured.clone()
    }

    /// Whether the last record has come up (also when there was none).
    pub fn query(&self) -> bool {
        self.reached(self.announced())
    }

    /// Time from `earlier` to this event; None when one has not come up.
    pub fn since(&self, earlier: &Event) -> Option<Duration> {
        if !self.query() || !earlier.query() {
            return None;
        }
        let (from, to) = (earlier.inner().at?, self.inner().at?);
        Some(to.saturating_duration_since(from))
    }
}
