//! CUDA events.

use crate::device::cuda::driver::{self, Relaxed, cu};
use crate::error::Result;
use cudarc::driver::sys::{self, CUevent, CUresult};

/// An event: its handle, which is alive.
#[derive(Clone, Copy, Debug)]
pub struct Event(pub CUevent);

impl Event {
    /// Creates an event on the GPU of this number, which takes the time.
    pub fn new(gpu: i32) -> Result<Self> {
        let _place = (driver::gpu(gpu)?.enter()?, Relaxed::begin()?);
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        unsafe { cu!(cuEventCreate(&mut event, 0)) }?;
        Ok(Self(event))
    }

    /// Destroys the event.
    pub fn destroy(self) -> Result<()> {
        let _place = (driver::enter_any()?, Relaxed::begin()?);
        // SAFETY: the caller's event, which it gives up.
        unsafe { cu!(cuEventDestroy_v2(self.0)) }
    }

    /// Returns whether the stream has come to the last record; also true if there was none.
    pub fn query(self) -> Result<bool> {
        let _place = (driver::enter_any()?, Relaxed::begin()?);
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => driver::check(result, "cuEventQuery").map(|()| true),
        }
    }

    /// Returns the time from `earlier` to this event in milliseconds; `None` if a stream has not
    /// come to one of them.
    pub fn since(self, earlier: Event) -> Result<Option<f32>> {
        let _place = (driver::enter_any()?, Relaxed::begin()?);
        let mut ms = 0.0;
        // SAFETY: both are alive; a place for the time.
        match unsafe { sys::cuEventElapsedTime_v2(&mut ms, earlier.0, self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(None),
            result => driver::check(result, "cuEventElapsedTime").map(|()| Some(ms)),
        }
    }
}

impl From<usize> for Event {
    fn from(handle: usize) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(handle))
    }
}
