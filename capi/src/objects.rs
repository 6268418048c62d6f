//! The tables of objects that C holds handles of.

use oxccl_runtime::comm::{Communicator, Holder};
use oxccl_runtime::device::cuda::order::StreamRef;
use oxccl_runtime::device::host::event::Event;
use oxccl_runtime::device::host::graph::Graph;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::device::{self, Target, host};
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::fork;
use oxccl_runtime::handle::{Cached, Dead, Handles, Lent, is_tagged};
use std::cell::Cell;
use std::sync::{Arc, Mutex};

/// A graph made ready to launch.
pub type Executable = Mutex<Arc<Graph>>;

/// Communicators.
pub static COMMS: Handles<Holder> = Handles::new(1);
/// Streams of the host device.
pub static STREAMS: Handles<Stream> = Handles::new(2);
/// Events.
pub static EVENTS: Handles<Event> = Handles::new(3);
/// Graphs.
pub static GRAPHS: Handles<Graph> = Handles::new(4);
/// Executable graphs.
pub static EXECUTABLES: Handles<Executable> = Handles::new(5);

thread_local! {
    /// What this thread used last: most calls name the same communicator and stream again.
    static LAST_COMM: Cell<Cached<Communicator>> = const { Cell::new(None) };
    static LAST_STREAM: Cell<Cached<Stream>> = const { Cell::new(None) };
}

/// Handles that mean a default stream: null, `cudaStreamLegacy`, `cudaStreamPerThread`.
const LAST_DEFAULT: usize = 2;

#[cold]
fn dead(function: &'static str, argument: &'static str, handle: usize, why: Dead) -> Error {
    let got = match why {
        Dead::Alien if handle == 0 => "null".to_owned(),
        Dead::Alien => format!("{handle:#x}, which is no handle of that kind"),
        Dead::Destroyed => format!("{handle:#x}, which was destroyed"),
    };
    Error::argument(function, argument, got, "a living handle from this library")
}

/// Looks a handle up.
pub(crate) fn get<T, H>(
    table: &Handles<T>,
    handle: *mut H,
    function: &'static str,
    argument: &'static str,
) -> Result<Arc<T>> {
    fork::check()?;
    table.get(handle as usize).map_err(|why| dead(function, argument, handle as usize, why))
}

/// Looks a communicator up, for calls that have to be fast.
pub(crate) fn comm<H>(handle: *mut H, function: &'static str) -> Result<Lent<Communicator>> {
    fork::check()?;
    COMMS
        .get_cached(handle as usize, &LAST_COMM, |holder| holder.ready().cloned())
        .map_err(|why| dead(function, "comm", handle as usize, why))?
}

/// Ends a handle.
pub(crate) fn remove<T, H>(
    table: &Handles<T>,
    handle: *mut H,
    function: &'static str,
    argument: &'static str,
) -> Result<Arc<T>> {
    fork::check()?;
    table.remove(handle as usize).map_err(|why| dead(function, argument, handle as usize, why))
}

/// Makes a handle and stores it for the caller.
///
/// # Safety
/// `out` is null or writable.
pub(crate) unsafe fn put<T, H>(
    table: &Handles<T>,
    object: Arc<T>,
    out: *mut *mut H,
    function: &'static str,
) -> Result<()> {
    if out.is_null() {
        return Err(Error::argument(function, "the output", "null", "a place for the handle"));
    }
    fork::check()?;
    let full = || Error::usage("there are a million objects of one kind", "destroy some");
    let handle = table.insert(object).ok_or_else(full)?;
    // SAFETY: not null, and writable by the contract of the caller.
    unsafe { out.write(handle as *mut H) };
    Ok(())
}

/// The stream of a call on a communicator.
pub(crate) fn stream_of<H>(
    comm: &Communicator,
    handle: *mut H,
    function: &'static str,
) -> Result<Lent<Stream>> {
    if comm.seat().is_some() {
        let hint = "on a GPU use ncclSend and ncclRecv";
        return Err(Error::usage(format!("{function}: the communicator is on a GPU"), hint));
    }
    if handle as usize <= LAST_DEFAULT {
        return Ok(comm.default_stream().into());
    }
    let found = STREAMS.get_cached(handle as usize, &LAST_STREAM, Ok);
    found.and_then(|stream| stream).map_err(|why| match why {
        Dead::Alien => {
            let got = format!("{handle:?}, which is no stream of the host device");
            let expected = "a stream from oxcclStreamCreate: the communicator is on the host";
            Error::argument(function, "stream", got, expected)
        }
        Dead::Destroyed => dead(function, "stream", handle as usize, why),
    })
}

/// The CUDA stream of a call on a communicator on a GPU.
pub(crate) fn cuda_stream<H>(handle: *mut H, function: &'static str) -> Result<StreamRef> {
    if is_tagged(handle as usize) {
        let got = format!("{handle:?}, which is a stream of the host device");
        let expected = "a CUDA stream: the communicator is on a GPU";
        return Err(Error::argument(function, "stream", got, expected));
    }
    Ok(StreamRef(handle.cast()))
}

/// The stream of a call, of the communicator's kind.
pub(crate) fn target_of<H>(
    comm: &Communicator,
    handle: *mut H,
    function: &'static str,
) -> Result<Target> {
    match comm.seat() {
        Some(_) => cuda_stream(handle, function).map(Target::Cuda),
        None => stream_of(comm, handle, function).map(|stream| Target::Host(stream.clone())),
    }
}

/// A stream named without a communicator: default streams are those of the current device.
pub(crate) fn stream<H>(handle: *mut H, function: &'static str) -> Result<Lent<Stream>> {
    fork::check()?;
    if handle as usize <= LAST_DEFAULT {
        return Ok(host::default_stream(device::told()).into());
    }
    STREAMS
        .get_cached(handle as usize, &LAST_STREAM, Ok)
        .and_then(|stream| stream)
        .map_err(|why| dead(function, "stream", handle as usize, why))
}
