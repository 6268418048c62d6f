//! Streams of both devices.

use super::object::{OnDevice, both, destroy, on};
use super::{Device, Event, Executable, Graph, cuda, host};
use crate::error::{Error, Quick, Result};
use crate::fork;
use crate::handle::{Cache, Dead, Handles, Lent, may_be_cuda};
use crate::op::Address;
use host::task::{HostFunction, Work};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// A stream: an in-order queue of work.
pub type Stream = OnDevice<Lent<host::stream::Stream>, cuda::stream::Stream>;

static STREAMS: Handles<host::stream::Stream> = Handles::new(2);

thread_local! {
    /// The stream that this thread used last: most calls name it again.
    static LAST: Cache<host::stream::Stream> = const { Cache::new() };
}

/// The last handle of a default stream. They are null, `cudaStreamLegacy`, `cudaStreamPerThread`.
const LAST_DEFAULT: usize = 2;

/// Returns the default stream of a device of host memory, by a number that is no handle.
#[inline]
fn default_stream(index: i32) -> Lent<host::stream::Stream> {
    STREAMS.lasting_cached(index as u32 as usize, &LAST, || host::default_stream(index))
}

/// A function that a stream calls.
pub type Function = unsafe extern "C" fn(*mut c_void);

impl Stream {
    /// Creates a stream on the calling thread's device. On a GPU the default stream does not wait
    /// for it. Returns its handle.
    pub fn create() -> Result<usize> {
        fork::check()?;
        match super::current()? {
            Device::Host(_) => STREAMS.insert(host::stream::Stream::new()),
            Device::Cuda(gpu) => Ok(cuda::stream::Stream::new(gpu)?.0 as usize),
        }
    }

    /// Looks up a stream that is named without a communicator. A default stream is the one of the
    /// calling thread's device.
    #[inline]
    pub fn of_handle(handle: usize, function: &'static str) -> Result<Self> {
        fork::check()?;
        if handle <= LAST_DEFAULT {
            return Ok(match super::current()? {
                Device::Host(index) => Stream::Host(default_stream(index)),
                Device::Cuda(_) => Stream::Cuda(handle.into()),
            });
        }
        on(STREAMS.get_cached(handle, &LAST), handle, (function, "stream"))
    }

    /// Looks up the stream of a call on a communicator of a device.
    #[inline]
    pub fn of_call(device: Device, handle: usize, function: &'static str) -> Quick<Self> {
        let wrong = |got: String, expected: &str| {
            Err(Error::argument(function, "stream", got, expected.to_owned()).into())
        };
        match device {
            Device::Cuda(_) if handle > LAST_DEFAULT && !may_be_cuda(handle) => {
                let got = format!("{handle:#x}, which is no CUDA stream");
                wrong(got, "a CUDA stream: the communicator is on a GPU")
            }
            Device::Cuda(_) => Ok(Stream::Cuda(handle.into())),
            Device::Host(index) if handle <= LAST_DEFAULT => {
                Ok(Stream::Host(default_stream(index)))
            }
            Device::Host(_) => match STREAMS.get_cached(handle, &LAST) {
                Ok(stream) => Ok(Stream::Host(stream)),
                Err(Dead::Alien) => {
                    let got = format!("{handle:#x}, which is no stream of the host device");
                    wrong(got, "a stream from oxcclStreamCreate: the communicator is on the host")
                }
                Err(why) => Err(why.error(handle, (function, "stream")).into()),
            },
        }
    }

    /// Destroys a stream; queued work still completes.
    pub fn destroy(handle: usize, function: &'static str) -> Result<()> {
        destroy(&STREAMS, handle, (function, "stream"), cuda::stream::Stream::destroy)
    }

    /// Returns a pointer that tells streams apart; CUDA's own on a GPU.
    pub fn id(&self) -> *mut c_void {
        match self {
            Stream::Host(stream) => (&raw const **stream).cast_mut().cast(),
            Stream::Cuda(stream) => stream.0 as *mut c_void,
        }
    }

    /// Returns the stream for keeping beyond the call that looked it up.
    pub fn into_owned(self) -> Self {
        Self::from(&self)
    }

    /// Returns whether all work is complete. An error of the work is delivered once, here or by
    /// [`synchronize`](Self::synchronize).
    pub fn query(&self) -> Result<bool> {
        match self {
            Stream::Host(stream) => stream.query(),
            Stream::Cuda(stream) => stream.query(),
        }
    }

    /// Waits for all work, for at most `limit`. Returns whether all work is complete.
    pub fn synchronize(&self, limit: Option<Duration>) -> Result<bool> {
        match self {
            Stream::Host(stream) => stream.synchronize(limit),
            Stream::Cuda(stream) => stream.synchronize(limit),
        }
    }

    /// Records an event: marks the present end of the stream.
    pub fn record(self, event: Event, function: &'static str) -> Result<()> {
        match both(event, self, (function, "stream"))? {
            OnDevice::Host((event, stream)) => stream.record(&event),
            OnDevice::Cuda((event, stream)) => stream.record(event),
        }
    }

    /// Makes later work of this stream wait for the last record of an event.
    pub fn wait_event(self, event: Event, function: &'static str) -> Result<()> {
        match both(self, event, (function, "event"))? {
            OnDevice::Host((stream, event)) => stream.wait_event(&event),
            OnDevice::Cuda((stream, event)) => stream.wait_event(event),
        }
    }

    /// Makes later work of this stream wait for the present work of a stream of the same device.
    pub(super) fn join(&self, other: &Self) -> Result<()> {
        match (self, other) {
            (Stream::Host(stream), Stream::Host(other)) => {
                let event = Arc::default();
                other.record(&event)?;
                stream.wait_event(&event)
            }
            (Stream::Cuda(stream), Stream::Cuda(other)) => cuda::run::order::join(*other, *stream),
            _ => Err(Error::Internal { what: "streams of two devices in one call".to_owned() }),
        }
    }

    /// Begins a capture. `mode` is CUDA's: 0 global, 1 thread-local, 2 relaxed. The host device
    /// treats all modes alike.
    pub fn begin_capture(&self, mode: i32) -> Result<()> {
        match self {
            Stream::Host(stream) => stream.begin_capture(),
            Stream::Cuda(stream) => stream.begin_capture(mode),
        }
    }

    /// Ends the capture that began on this stream. Returns the graph's handle.
    pub fn end_capture(&self) -> Result<usize> {
        match self {
            Stream::Host(stream) => Graph::keep(stream.end_capture()?),
            Stream::Cuda(stream) => Ok(stream.end_capture()?.0 as usize),
        }
    }

    /// Returns whether work of the stream is recorded into a graph instead of executed.
    pub fn is_capturing(&self) -> bool {
        match self {
            Stream::Host(stream) => stream.is_capturing(),
            Stream::Cuda(stream) => !matches!(cuda::run::order::graph_of(*stream), Ok(None)),
        }
    }

    /// Runs a graph once.
    pub fn launch(self, graph: Executable, function: &'static str) -> Result<()> {
        match both(graph, self, (function, "stream"))? {
            OnDevice::Host((graph, stream)) => {
                let graph = graph.lock().unwrap_or_else(|e| e.into_inner()).clone();
                stream.enqueue(Work::Graph(graph), true)
            }
            OnDevice::Cuda((graph, stream)) => graph.launch(stream),
        }
    }

    /// Queues a copy of `bytes` bytes.
    ///
    /// # Safety
    /// Both pointers are valid for `bytes` bytes until the copy is complete: on the host device in
    /// host memory, on CUDA in memory of any kind.
    pub unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        match self {
            Stream::Host(stream) => {
                let (to, from) = (Address(to), Address(from.cast_mut()));
                stream.enqueue(Work::Copy(to, from, bytes), true)
            }
            // SAFETY: by the contract of the caller.
            Stream::Cuda(stream) => unsafe { stream.copy(to, from, bytes) },
        }
    }

    /// Queues a fill of `bytes` bytes with a value.
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    pub unsafe fn set(&self, to: *mut u8, value: u8, bytes: usize) -> Result<()> {
        match self {
            Stream::Host(stream) => stream.enqueue(Work::Set(Address(to), value, bytes), true),
            // SAFETY: by the contract of the caller.
            Stream::Cuda(stream) => unsafe { stream.set(to, value, bytes) },
        }
    }

    /// Queues a call of a function, on a thread of the library or of the driver.
    ///
    /// # Safety
    /// The function may be called with this argument once for each time the stream reaches it.
    pub unsafe fn call(&self, function: Function, argument: *mut c_void) -> Result<()> {
        match self {
            Stream::Host(stream) => {
                let argument = Address(argument.cast());
                stream.enqueue(Work::Function(HostFunction { function, argument }), true)
            }
            // SAFETY: by the contract of the caller.
            Stream::Cuda(stream) => unsafe { stream.call(function, argument) },
        }
    }

    /// Advances work of the host device for a moment, as a call does.
    pub fn nudge(&self) {
        const LOOK: host::collective::Budget =
            host::collective::Budget { polls: 4, bytes: 16 << 10 };
        if let Stream::Host(stream) = self {
            stream.advance(LOOK);
        }
    }
}

impl From<&Stream> for Stream {
    fn from(stream: &Stream) -> Self {
        match stream {
            Stream::Host(stream) => Stream::Host(Arc::clone(stream).into()),
            Stream::Cuda(stream) => Stream::Cuda(*stream),
        }
    }
}

impl From<&Arc<host::stream::Stream>> for Stream {
    fn from(stream: &Arc<host::stream::Stream>) -> Self {
        Stream::Host(stream.clone().into())
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Stream::Host(a), Stream::Host(b)) => Arc::ptr_eq(a, b),
            (Stream::Cuda(a), Stream::Cuda(b)) => a == b,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_streams_are_those_of_the_chosen_device() {
        super::super::choose(Device::Host(3)).unwrap();
        for handle in 0..=LAST_DEFAULT {
            let Stream::Host(found) = Stream::of_handle(handle, "f").unwrap() else {
                panic!("{handle}")
            };
            assert!(Arc::ptr_eq(&found, &host::default_stream(3)));
        }
    }
}
