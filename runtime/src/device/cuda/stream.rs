//! CUDA streams: those of this library and those of others.

use crate::device::cuda::driver::{self, Entered, Relaxed, cu};
use crate::device::cuda::event::Event;
use crate::device::cuda::failure_of;
use crate::device::cuda::graph::Graph;
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUresult, CUstream, CUstream_flags, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// A stream: its handle, which is alive, or null, 1 and 2 for the default ones of the thread's
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub CUstream);

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// Handles that mean a default stream: null, `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`.
const LAST_DEFAULT: usize = 2;
/// The time that a waiting thread spins, and the time that it sleeps between looks afterwards.
const SPIN: Duration = Duration::from_micros(20);
const NAP: Duration = Duration::from_micros(50);
/// The longest time between looks for failures.
const FAILURES: Duration = Duration::from_micros(100);

/// A stream that nobody else uses. Dropping it waits for its work: what it writes has to come
/// before its rank's memory is used by another rank.
pub(in crate::device::cuda) struct Private(CUstream);

impl Private {
    /// Returns the stream at a place, which is created if there is none yet. Requires the GPU's
    /// context to be current on this thread.
    pub(in crate::device::cuda) fn of(place: &mut Option<Self>) -> Result<CUstream> {
        if place.is_none() {
            let mut stream = std::ptr::null_mut();
            let nonblocking = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: a place for the handle.
            unsafe { cu!(cuStreamCreate(&mut stream, nonblocking)) }?;
            *place = Some(Self(stream));
        }
        Ok(place.as_ref().map_or(std::ptr::null_mut(), |stream| stream.0))
    }

    /// Returns whether all work that was given to the stream is done.
    pub(in crate::device::cuda) fn is_idle(&self) -> bool {
        let _relaxed = Relaxed::begin();
        // SAFETY: a living stream.
        unsafe { sys::cuStreamQuery(self.0) != CUresult::CUDA_ERROR_NOT_READY }
    }
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Private {}

impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: this value's alone.
        unsafe {
            sys::cuStreamSynchronize(self.0);
            sys::cuStreamDestroy_v2(self.0);
        }
    }
}

/// A function that a stream calls.
pub type Function = unsafe extern "C" fn(*mut c_void);

impl Stream {
    /// Creates a stream on the GPU of this number; no other stream waits for it, also no default
    /// one.
    pub fn new(gpu: i32) -> Result<Self> {
        let _place = (driver::gpu(gpu)?.enter()?, Relaxed::begin()?);
        let mut stream = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a place for the handle.
        unsafe { cu!(cuStreamCreate(&mut stream, flags)) }?;
        Ok(Self(stream))
    }

    /// Returns whether this is one of the default streams of the thread's device, whose handles are
    /// the same for all devices.
    pub(in crate::device::cuda) fn is_default(self) -> bool {
        self.0 as usize <= LAST_DEFAULT
    }

    /// Makes the stream's context current on this thread, until the returned guards are dropped.
    /// Nothing that is done with a stream here concerns captures of others.
    pub(in crate::device::cuda) fn enter(self) -> Result<(Entered, Relaxed)> {
        if self.is_default() {
            return Ok((driver::enter_any()?, Relaxed::begin()?));
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the stream is alive; a place for its context.
        unsafe { cu!(cuStreamGetCtx(self.0, &mut context)) }?;
        Ok((driver::enter(context)?, Relaxed::begin()?))
    }

    /// Destroys the stream; queued work still completes.
    pub fn destroy(self) -> Result<()> {
        if self.is_default() {
            let expected = "a stream from oxcclStreamCreate";
            let got = "a default stream";
            return Err(Error::argument("oxcclStreamDestroy", "stream", got, expected));
        }
        let _place = self.enter()?;
        // SAFETY: the caller's stream, which it gives up.
        unsafe { cu!(cuStreamDestroy_v2(self.0)) }
    }

    /// Returns an error if the stream is captured: CUDA ends a capture that is asked whether it is
    /// done.
    fn refuse_captured(self) -> Result<()> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive; a place for the answer.
        unsafe { cu!(cuStreamIsCapturing(self.0, &mut status)) }?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return Err(Error::usage("the stream is being captured", "end the capture first"));
        }
        Ok(())
    }

    fn is_done(self) -> Result<bool> {
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => driver::check(result, "cuStreamQuery").map(|()| true),
        }
    }

    /// Returns whether all work is complete. A failure of the work is delivered here or by
    /// [`synchronize`](Self::synchronize), also while the work hangs.
    pub fn query(self) -> Result<bool> {
        self.synchronize(Some(Duration::ZERO))
    }

    /// Waits for all work, at most for `limit`; returns false if the time is over.
    pub fn synchronize(self, limit: Option<Duration>) -> Result<bool> {
        let _place = self.enter()?;
        self.refuse_captured()?;
        let start = Instant::now();
        let mut look_at = FAILURES;
        loop {
            let done = self.is_done()?;
            let waited = start.elapsed();
            let over = limit.is_some_and(|limit| waited >= limit);
            if done || over || waited >= look_at {
                failure_of(self.0).map_or(Ok(()), Err)?;
                look_at = waited + FAILURES;
            }
            if done || over {
                return Ok(done);
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(limit.map_or(NAP, |limit| NAP.min(limit - waited)));
            }
        }
    }

    /// Makes the later work of the stream wait for an event.
    pub fn wait_event(self, event: Event) -> Result<()> {
        let _place = self.enter()?;
        // SAFETY: both are alive.
        unsafe { cu!(cuStreamWaitEvent(self.0, event.0, 0)) }
    }

    /// Records an event.
    pub fn record(self, event: Event) -> Result<()> {
        let _place = self.enter()?;
        // SAFETY: both are alive.
        unsafe { cu!(cuEventRecord(event.0, self.0)) }
    }

    /// Copies between any two memories of this process.
    ///
    /// # Safety
    /// Both are valid for `bytes` bytes until the stream has done the copy.
    pub unsafe fn copy(self, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        let _place = self.enter()?;
        // SAFETY: by the contract of the caller; addresses are unified.
        unsafe { cu!(cuMemcpyAsync(to as u64, from as u64, bytes, self.0)) }
    }

    /// Sets every byte of memory of a GPU, or of pinned memory of the host.
    ///
    /// # Safety
    /// The memory is valid for `bytes` bytes until the stream has done this.
    pub unsafe fn set(self, to: *mut u8, value: u8, bytes: usize) -> Result<()> {
        let _place = self.enter()?;
        // SAFETY: by the contract of the caller.
        unsafe { cu!(cuMemsetD8Async(to as u64, value, bytes, self.0)) }
    }

    /// Calls a function on a thread of the driver.
    ///
    /// # Safety
    /// The function may be called with this argument once for every time the stream reaches the
    /// call.
    pub unsafe fn call(self, function: Function, argument: *mut c_void) -> Result<()> {
        let _place = self.enter()?;
        // SAFETY: by the contract of the caller.
        unsafe { cu!(cuLaunchHostFunc(self.0, Some(function), argument)) }
    }

    /// Begins a capture; `mode` as in CUDA: 0 global, 1 of the thread, 2 relaxed.
    pub fn begin_capture(self, mode: i32) -> Result<()> {
        let mode = match mode {
            0 => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            1 => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            _ => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        let _place = self.enter()?;
        // SAFETY: the stream is alive.
        unsafe { cu!(cuStreamBeginCapture_v2(self.0, mode)) }
    }

    /// Ends the capture that began on this stream.
    pub fn end_capture(self) -> Result<Graph> {
        let _place = self.enter()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive; a place for the handle.
        unsafe { cu!(cuStreamEndCapture(self.0, &mut graph)) }?;
        Ok(Graph(graph))
    }
}

impl From<usize> for Stream {
    fn from(handle: usize) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(handle))
    }
}
