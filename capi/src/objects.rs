//! The tables of objects that C holds handles of.

use crate::boundary;
use oxccl_runtime::comm::{Communicator, Holder};
use oxccl_runtime::device::host::event::Event;
use oxccl_runtime::device::host::graph::Graph;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::device::{self, Device, Target, cuda, host};
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::fork;
use oxccl_runtime::handle::{Cache, Dead, Handles, Lent, may_be_cuda};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::thread::panicking;

/// A graph made ready to launch.
pub type Executable = Mutex<Arc<Graph>>;

/// Communicators.
pub static COMMS: Handles<Holder> = Handles::new(1);
/// Streams of the host device.
pub static STREAMS: Handles<Stream> = Handles::new(2);
/// Events of the host device.
pub static EVENTS: Handles<Event> = Handles::new(3);
/// Graphs of the host device.
pub static GRAPHS: Handles<Graph> = Handles::new(4);
/// Executable graphs of the host device.
pub static EXECUTABLES: Handles<Executable> = Handles::new(5);

/// Something of the host device, or its counterpart of CUDA.
pub(crate) enum On<H, C> {
    /// The host's.
    Host(H),
    /// CUDA's.
    Cuda(C),
}

thread_local! {
    /// What this thread used last: most calls name the same communicator and stream again.
    static LAST_COMM: Cache<Holder> = const { Cache::new() };
    static LAST_STREAM: Cache<Stream> = const { Cache::new() };
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
pub(crate) fn get<T: 'static, H>(
    table: &Handles<T>,
    handle: *mut H,
    function: &'static str,
    argument: &'static str,
) -> Result<Arc<T>> {
    fork::check()?;
    table.get(handle as usize).map_err(|why| dead(function, argument, handle as usize, why))
}

/// The communicator of a call, which the call holds until its end: where it panics, the boundary
/// hears whose it was.
pub(crate) struct Called {
    holder: Lent<Holder>,
    /// Whether the caller was panicking before.
    within_panic: bool,
}

impl Called {
    /// Of a handle that was looked up; fails where the communicator is not made yet.
    #[inline]
    pub(crate) fn new(holder: impl Into<Lent<Holder>>) -> Result<Self> {
        let holder = holder.into();
        holder.ready()?;
        Ok(Self { holder, within_panic: panicking() })
    }
}

impl Deref for Called {
    type Target = Arc<Communicator>;

    #[inline]
    fn deref(&self) -> &Arc<Communicator> {
        self.holder.ready().expect("a communicator that is made stays so")
    }
}

impl Drop for Called {
    #[inline]
    fn drop(&mut self) {
        if panicking() && !self.within_panic {
            boundary::involve(self);
        }
    }
}

/// Looks a communicator up, for calls that have to be fast.
pub(crate) fn comm<H>(handle: *mut H, function: &'static str) -> Result<Called> {
    fork::check()?;
    let found = COMMS.get_cached(handle as usize, &LAST_COMM);
    Called::new(found.map_err(|why| dead(function, "comm", handle as usize, why))?)
}

/// Ends a handle.
pub(crate) fn remove<T: 'static, H>(
    table: &Handles<T>,
    handle: *mut H,
    function: &'static str,
    argument: &'static str,
) -> Result<Arc<T>> {
    fork::check()?;
    table.remove(handle as usize).map_err(|why| dead(function, argument, handle as usize, why))
}

/// Returns whether an alien handle is one of CUDA: so are all that are not ours, where there is
/// CUDA. As there, they have to be alive.
#[cold]
fn is_cuda(handle: usize) -> bool {
    may_be_cuda(handle) && cuda::driver::count().is_ok()
}

/// What a table says of a handle, or that it is one of CUDA.
fn on<T, H, C: From<*mut H>>(
    found: Result<T, Dead>,
    handle: *mut H,
    function: &'static str,
    argument: &'static str,
) -> Result<On<T, C>> {
    match found {
        Ok(object) => Ok(On::Host(object)),
        Err(Dead::Alien) if is_cuda(handle as usize) => Ok(On::Cuda(handle.into())),
        Err(why) => Err(dead(function, argument, handle as usize, why)),
    }
}

/// Looks a handle up that the host or CUDA made.
pub(crate) fn find<T: 'static, H, C: From<*mut H>>(
    table: &Handles<T>,
    handle: *mut H,
    function: &'static str,
    argument: &'static str,
) -> Result<On<Arc<T>, C>> {
    fork::check()?;
    on(table.get(handle as usize), handle, function, argument)
}

/// Ends a handle of the host, or returns that of CUDA to be ended.
pub(crate) fn take<T: 'static, H, C: From<*mut H>>(
    table: &Handles<T>,
    handle: *mut H,
    function: &'static str,
    argument: &'static str,
) -> Result<On<Arc<T>, C>> {
    fork::check()?;
    on(table.remove(handle as usize), handle, function, argument)
}

/// Two objects that only work together when both are of the host or both of CUDA; `argument` is the
/// second one.
pub(crate) fn both<A, B, C, D>(
    first: On<A, C>,
    second: On<B, D>,
    function: &'static str,
    argument: &'static str,
) -> Result<On<(A, B), (C, D)>> {
    let (got, expected) = match (first, second) {
        (On::Host(a), On::Host(b)) => return Ok(On::Host((a, b))),
        (On::Cuda(c), On::Cuda(d)) => return Ok(On::Cuda((c, d))),
        (On::Host(_), On::Cuda(_)) => ("CUDA's", "one of the host device, as the other argument"),
        (On::Cuda(_), On::Host(_)) => ("the host device's", "one of CUDA, as the other argument"),
    };
    Err(Error::argument(function, argument, got, expected))
}

/// The device on which the calling thread makes objects.
pub(crate) fn device() -> Result<Device> {
    fork::check()?;
    device::current()
}

/// Makes a handle and stores it for the caller.
///
/// # Safety
/// `out` is null or writable.
pub(crate) unsafe fn put<T: 'static, H>(
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
    if comm.cuda_rank().is_some() {
        let hint = "on a GPU use ncclSend and ncclRecv";
        return Err(Error::usage(format!("{function}: the communicator is on a GPU"), hint));
    }
    if handle as usize <= LAST_DEFAULT {
        return Ok(comm.default_stream().into());
    }
    STREAMS.get_cached(handle as usize, &LAST_STREAM).map_err(|why| match why {
        Dead::Alien => {
            let got = format!("{handle:?}, which is no stream of the host device");
            let expected = "a stream from oxcclStreamCreate: the communicator is on the host";
            Error::argument(function, "stream", got, expected)
        }
        Dead::Destroyed => dead(function, "stream", handle as usize, why),
    })
}

/// The CUDA stream of a call on a communicator on a GPU.
pub(crate) fn cuda_stream<H>(
    handle: *mut H,
    function: &'static str,
) -> Result<cuda::stream::Stream> {
    if handle as usize > LAST_DEFAULT && !may_be_cuda(handle as usize) {
        let got = format!("{handle:?}, which is no CUDA stream");
        let expected = "a CUDA stream: the communicator is on a GPU";
        return Err(Error::argument(function, "stream", got, expected));
    }
    Ok(handle.into())
}

/// The stream of a call, of the communicator's kind.
pub(crate) fn target_of<H>(
    comm: &Communicator,
    handle: *mut H,
    function: &'static str,
) -> Result<Target> {
    match comm.cuda_rank() {
        Some(_) => cuda_stream(handle, function).map(Target::Cuda),
        None => stream_of(comm, handle, function).map(|stream| Target::Host(stream.clone())),
    }
}

/// A stream named without a communicator: default streams are those of the current device.
#[inline]
pub(crate) fn stream<H>(
    handle: *mut H,
    function: &'static str,
) -> Result<On<Lent<Stream>, cuda::stream::Stream>> {
    fork::check()?;
    if handle as usize <= LAST_DEFAULT {
        return Ok(match device::current()? {
            Device::Host(index) => On::Host(host::default_stream(index).into()),
            Device::Cuda(_) => On::Cuda(handle.into()),
        });
    }
    on(STREAMS.get_cached(handle as usize, &LAST_STREAM), handle, function, "stream")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl::comm::{ncclCommDestroy, ncclCommInitAll};
    use crate::nccl::types::ncclResult_t;
    use std::ffi::c_void;
    use std::ptr::{null, null_mut, without_provenance_mut};
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    /// An address in this process, as CUDA's handles are.
    const ADDRESS: *mut c_void = std::ptr::without_provenance_mut(0x7f00_1234_5678);

    fn event(handle: *mut c_void) -> Result<On<Arc<Event>, cuda::event::Event>> {
        find(&EVENTS, handle, "f", "event")
    }

    #[test]
    fn every_handle_of_ours_is_the_hosts_and_others_are_cudas_where_there_is_cuda() {
        let mut handle: *mut c_void = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        unsafe { put(&EVENTS, Arc::new(Event::default()), &mut handle, "f") }.unwrap();
        assert!(matches!(event(handle), Ok(On::Host(_))));
        let wrong_kind = stream(handle, "f").err().expect("it is no stream").to_string();
        assert!(wrong_kind.contains("no handle of that kind"), "{wrong_kind}");
        let taken = take::<_, _, cuda::event::Event>(&EVENTS, handle, "f", "event");
        assert!(matches!(taken, Ok(On::Host(_))));
        let destroyed = event(handle).err().expect("it is dead").to_string();
        assert!(destroyed.contains("which was destroyed"), "{destroyed}");
        assert!(event(std::ptr::null_mut()).is_err(), "null is no event of CUDA's");
        match (event(ADDRESS), stream(ADDRESS, "f"), cuda::driver::count()) {
            (Ok(On::Cuda(event)), Ok(On::Cuda(stream)), Ok(_)) => {
                assert_eq!((event.0.cast(), stream.0.cast()), (ADDRESS, ADDRESS));
            }
            (Err(event), Err(stream), Err(_)) => {
                assert!(event.to_string().contains("no handle of that kind"), "{event}");
                assert!(stream.to_string().contains("no handle of that kind"), "{stream}");
            }
            _ => panic!("the driver is there, or it is not"),
        }
    }

    #[test]
    fn default_streams_are_those_of_the_chosen_device() {
        device::choose(Device::Host(3)).unwrap();
        for number in 0..=LAST_DEFAULT {
            let handle = std::ptr::without_provenance_mut::<c_void>(number);
            let On::Host(found) = stream(handle, "f").unwrap() else { panic!("{number}") };
            assert!(Arc::ptr_eq(&found, &host::default_stream(3)));
        }
    }

    #[test]
    fn a_destroyed_communicator_is_gone_though_a_thread_that_called_it_lives() {
        let mut handle = null_mut();
        // SAFETY: a place for the handle.
        let made = unsafe { ncclCommInitAll(&mut handle, 1, null()) };
        assert_eq!(made, ncclResult_t::ncclSuccess);
        let (number, left) = (handle as usize, Arc::downgrade(&*comm(handle, "f").unwrap()));
        std::thread::scope(|scope| {
            let ((destroyed, wait), (called, ready)) = (channel(), channel());
            scope.spawn(move || {
                let found = comm(without_provenance_mut::<c_void>(number), "f").unwrap();
                assert_eq!(found.nranks(), 1);
                drop(found);
                called.send(()).unwrap();
                wait.recv().unwrap();
            });
            ready.recv().unwrap();
            // SAFETY: any handle may be passed.
            assert_eq!(unsafe { ncclCommDestroy(handle) }, ncclResult_t::ncclSuccess);
            // The thread that made it may hold it for a moment.
            let deadline = Instant::now() + Duration::from_secs(30);
            while left.strong_count() > 0 {
                assert!(Instant::now() < deadline, "it is kept");
                std::thread::yield_now();
            }
            destroyed.send(()).unwrap();
        });
    }

    #[test]
    fn what_is_of_the_host_does_not_mix_with_what_is_of_cuda() {
        let mix = |a: On<i32, u8>, b: On<i32, u8>| both(a, b, "f", "event");
        assert!(matches!(mix(On::Host(1), On::Host(2)), Ok(On::Host((1, 2)))));
        assert!(matches!(mix(On::Cuda(1), On::Cuda(2)), Ok(On::Cuda((1, 2)))));
        let text = |a, b| mix(a, b).err().expect("they differ").to_string();
        let host_first = text(On::Host(1), On::Cuda(2));
        assert!(host_first.contains("event is CUDA's; expected one of the host"), "{host_first}");
        let cuda_first = text(On::Cuda(1), On::Host(2));
        assert!(cuda_first.contains("event is the host device's; expected one of CUDA"));
    }
}
