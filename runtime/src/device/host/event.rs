//! Events: positions in streams. Streams wait for them, and times between them are measured.

use super::graph::Captured;
use super::worker;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// One record of an event, with the time at which its stream has reached it.
#[derive(Debug, Default)]
pub struct Record(OnceLock<Instant>);

impl Record {
    /// Notes that the stream has reached the record.
    pub(super) fn reach(&self) {
        self.0.get_or_init(Instant::now);
    }

    /// Returns whether the stream has reached the record.
    pub(super) fn is_reached(&self) -> bool {
        self.0.get().is_some()
    }
}

/// An event of the host device.
#[derive(Default)]
pub struct Event(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// The last record that was called, on whichever stream.
    last: Option<Arc<Record>>,
    captured: Option<Captured>,
}

impl Event {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes the call of a record and returns it.
    pub(super) fn announce(&self) -> Arc<Record> {
        let record = Arc::default();
        *self.inner() = Inner { last: Some(Arc::clone(&record)), captured: None };
        record
    }

    /// Returns the last record that was called, unless its stream has reached it.
    pub(super) fn ahead(&self) -> Option<Arc<Record>> {
        self.inner().last.clone().filter(|record| !record.is_reached())
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
        let is_reached = || self.ahead().is_none();
        is_reached() || {
            worker::stand_in();
            is_reached()
        }
    }

    /// Returns the time from `earlier` to this event; `None` if a stream has not reached both.
    pub fn since(&self, earlier: &Event) -> Option<Duration> {
        let at = |event: &Event| event.inner().last.as_ref()?.0.get().copied();
        Some(at(self)?.saturating_duration_since(at(earlier)?))
    }
}
