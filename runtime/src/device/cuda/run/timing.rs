//! The times of operations by the GPU's clock, for profilers.

use crate::device::cuda::driver::{Gpu, cu};
use crate::device::cuda::event::Event;
use crate::device::cuda::stream::Stream;
use crate::error::Result;
use std::sync::{Mutex, MutexGuard};

/// A mark in a stream: an event that was recorded there, and its GPU. Its context has to be current
/// on threads that ask: in their own they would get one on the first GPU.
pub struct Mark {
    event: Event,
    gpu: &'static Gpu,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Mark {}

impl Mark {
    /// Returns whether the GPU has come to the mark. What the driver does not tell any more counts
    /// as over.
    fn is_over(&self) -> bool {
        self.gpu.enter().and_then(|_context| self.event.query()).unwrap_or(true)
    }

    fn ns_since(&self, earlier: &Mark) -> u64 {
        let ms = self.gpu.enter().and_then(|_context| self.event.since(earlier.event));
        let ms = ms.ok().flatten().unwrap_or(0.0);
        (f64::from(ms.max(0.0)) * 1e6) as u64
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // An event that cannot be destroyed any more ends with the process.
        let _ = self.gpu.enter().and_then(|_context| self.event.destroy());
    }
}

/// The time of a communicator: CUDA tells only the time between two events, and the less exactly
/// the longer it is, so that each operation is timed by the one before.
#[derive(Default)]
pub struct Timeline(Mutex<Marks>);

#[derive(Default)]
struct Marks {
    /// The end of the last operation, and its time in ns.
    last: Option<(Mark, u64)>,
    /// Marks to use again: making one takes longer than using it.
    free: Vec<Mark>,
}

impl Timeline {
    /// Takes all that is to be destroyed.
    pub fn take(&self) -> impl Sized + use<> {
        std::mem::take(&mut *self.marks())
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Marks the present end of a stream, which is not captured.
    pub fn mark(&self, gpu: &'static Gpu, stream: Stream) -> Result<Mark> {
        let free = self.marks().free.pop();
        let new = || Event::new(gpu.index).map(|event| Mark { event, gpu });
        let mark = free.map_or_else(new, Ok)?;
        let _context = gpu.enter()?;
        // SAFETY: a living event, and a living stream by the contract of the call.
        unsafe { cu!(cuEventRecord(mark.event.0, stream.0)) }?;
        Ok(mark)
    }

    /// Returns the times in ns of an operation between two marks, once the GPU has come to the
    /// second one; then the marks are taken. The first operation begins when it is launched, so
    /// that the times of several communicators fit together.
    pub fn times(&self, marks: &mut Option<(Mark, Mark)>, launched_ns: u64) -> Option<(u64, u64)> {
        let (_, end) = marks.as_ref()?;
        if !end.is_over() {
            return None;
        }
        let (begin, end) = marks.take()?;
        let Marks { last, free } = &mut *self.marks();
        let begin_ns = last.as_ref().map_or(launched_ns, |(mark, ns)| ns + begin.ns_since(mark));
        let end_ns = begin_ns + end.ns_since(&begin);
        free.push(begin);
        free.extend(last.replace((end, end_ns)).map(|(mark, _)| mark));
        Some((begin_ns, end_ns))
    }
}
