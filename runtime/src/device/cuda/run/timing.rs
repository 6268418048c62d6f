//! The times of operations by the GPU's clock, for profilers.

use crate::device::cuda::driver::Gpu;
use crate::device::cuda::event::Event;
use crate::device::cuda::stream::Stream;
use crate::error::Result;
use std::sync::Mutex;

/// A mark in a stream: an event that was recorded there.
pub struct Mark(Event);

// SAFETY: events may be used from any thread.
unsafe impl Send for Mark {}

impl Mark {
    /// Marks the present end of a stream.
    pub fn record(gpu: &Gpu, stream: Stream) -> Result<Self> {
        let mark = Self(Event::new(gpu.index)?);
        stream.record(mark.0)?;
        Ok(mark)
    }

    fn ns_since(&self, earlier: &Mark) -> u64 {
        let ms = self.0.since(earlier.0).ok().flatten().unwrap_or(0.0);
        (f64::from(ms.max(0.0)) * 1e6) as u64
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // An event that cannot be destroyed any more ends with the process.
        let _ = self.0.destroy();
    }
}

/// The time of a communicator: CUDA tells only the time between two events, and the less exactly
/// the longer it is, so that each operation is timed by the one before.
#[derive(Default)]
pub struct Timeline(Mutex<Option<(Mark, u64)>>);

impl Timeline {
    /// Returns the times in ns of both ends of an operation once the GPU has come to the end. The
    /// first operation begins at 1.
    pub fn times(&self, begin: &Mark, end: &mut Option<Mark>) -> Option<(u64, u64)> {
        // What the driver does not tell any more counts as over.
        if !end.as_ref().is_none_or(|end| end.0.query().unwrap_or(true)) {
            return None;
        }
        let end = end.take()?;
        let mut last = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let begin_ns = last.as_ref().map_or(1, |(mark, ns)| ns + begin.ns_since(mark));
        let end_ns = begin_ns + end.ns_since(begin);
        *last = Some((end, end_ns));
        Some((begin_ns, end_ns))
    }
}
