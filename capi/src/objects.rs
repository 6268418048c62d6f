//! The tables of objects that C holds handles of.

use crate::boundary;
use oxccl_runtime::comm::{Communicator, Holder};
use oxccl_runtime::device::Stream;
use oxccl_runtime::error::{Error, Quick, Result};
use oxccl_runtime::fork;
use oxccl_runtime::handle::{Cache, Handles, Lent};
use std::ops::Deref;
use std::sync::Arc;
use std::thread::panicking;

/// The communicators that C holds handles of.
static COMMS: Handles<Holder> = Handles::new(1);

thread_local! {
    /// The communicator that this thread used last: most calls name the same one again.
    static LAST_COMM: Cache<Holder> = const { Cache::new() };
}

/// Looks up the holder of a communicator by its handle.
pub fn holder<H>(comm: *mut H, function: &'static str) -> Result<Arc<Holder>> {
    fork::check()?;
    COMMS.get(comm as usize).map_err(|why| why.error(comm as usize, (function, "comm")))
}

/// Removes the handle of a communicator; returns the holder.
pub(crate) fn remove<H>(comm: *mut H, function: &'static str) -> Result<Arc<Holder>> {
    fork::check()?;
    COMMS.remove(comm as usize).map_err(|why| why.error(comm as usize, (function, "comm")))
}

/// The communicator of a call, which the call holds until its end. If the call panics, the boundary
/// learns which communicator was involved.
pub(crate) struct Called {
    holder: Lent<Holder>,
    /// True if the caller was already panicking before the call.
    within_panic: bool,
}

impl Called {
    /// Takes a holder that was looked up; fails if its communicator is not made yet.
    #[inline]
    pub(crate) fn new(holder: impl Into<Lent<Holder>>) -> Quick<Self> {
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

/// Looks up a communicator through this thread's cache, for calls that have to be fast.
#[inline]
pub(crate) fn comm<H>(handle: *mut H, function: &'static str) -> Quick<Called> {
    fork::check()?;
    let (handle, named) = (handle as usize, (function, "comm"));
    let found = COMMS.get_cached(handle, &LAST_COMM);
    Called::new(found.map_err(|why| why.error(handle, named))?)
}

/// Makes the handle of a communicator and stores it for the caller.
///
/// # Safety
/// `out` is null or writable.
pub(crate) unsafe fn put<H>(
    holder: Arc<Holder>,
    out: *mut *mut H,
    function: &'static str,
) -> Result<()> {
    if out.is_null() {
        return Err(Error::argument(function, "the output", "null", "a place for the handle"));
    }
    fork::check()?;
    let handle = COMMS.insert(holder)?;
    // SAFETY: not null, and writable by the contract of the caller.
    unsafe { out.write(handle as *mut H) };
    Ok(())
}

/// Looks up a stream that is named without a communicator.
#[inline]
pub(crate) fn stream<H>(handle: *mut H, function: &'static str) -> Result<Stream> {
    Stream::of_handle(handle as usize, function)
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
            // The thread that made the communicator may hold it for a moment.
            let deadline = Instant::now() + Duration::from_secs(30);
            while left.strong_count() > 0 {
                assert!(Instant::now() < deadline, "it is kept");
                std::thread::yield_now();
            }
            destroyed.send(()).unwrap();
        });
    }
}
