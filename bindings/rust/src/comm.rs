//! Communicators: how they are made, asked and ended.

use crate::call::{Device, HOST, check, failure, number, on_device};
use crate::error::{Error, Result};
use crate::scope::{Stream, outside_group};
use capi::nccl::children::{ncclCommGetUniqueId, ncclCommGrow, ncclCommShrink, ncclCommSplit};
use capi::nccl::comm::{
    ncclCommCount, ncclCommDestroy, ncclCommGetAsyncError, ncclCommInitAll, ncclCommInitRankConfig,
    ncclCommUserRank, ncclGetUniqueId,
};
use capi::nccl::lifetime::{ncclCommAbort, ncclCommResume, ncclCommRevoke, ncclCommSuspend};
use capi::nccl::types::{
    NCCL_REVOKE_DEFAULT, NCCL_SHRINK_ABORT, NCCL_SHRINK_DEFAULT, NCCL_SPLIT_NOCOLOR,
    NCCL_SUSPEND_MEM, ncclComm_t, ncclResult_t, ncclUniqueId,
};
use capi::oxccl::info::{oxcclCommInPlace, oxcclTag};
use capi::oxccl::launch::{oxcclCommInitEnv, oxcclCommSetTimeout};
use std::ffi::{c_char, c_int};
use std::fmt;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::panicking;
use std::time::Duration;

/// The id of a communicator that is to be made. One process makes it and gives it to all ranks.
/// Keep it secret: everyone who has it can join.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Id([u8; 128]);

impl Id {
    /// Makes an id. This process then receives the ranks that meet under it.
    pub fn new() -> Result<Self> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: a place for the id.
        check(unsafe { ncclGetUniqueId(&mut id) })?;
        Ok(id.into())
    }

    /// Returns the id whose bytes another process has sent.
    pub fn from_bytes(bytes: [u8; 128]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to be sent to the other processes.
    pub fn to_bytes(self) -> [u8; 128] {
        self.0
    }

    fn raw(self) -> ncclUniqueId {
        ncclUniqueId { internal: self.0.map(|byte| byte as c_char) }
    }
}

impl From<ncclUniqueId> for Id {
    fn from(id: ncclUniqueId) -> Self {
        Self(id.internal.map(|byte| byte as u8))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Id(secret)")
    }
}

/// The state in which [`Comm::shrink`] finds the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shrink {
    /// No operation is under way.
    Idle,
    /// Operations are under way or have failed: they are ended first.
    Abort,
}

/// A rank's part of a communicator on host memory.
///
/// Several threads may use a communicator at once: calls take effect one by one, and all ranks have
/// to make the calls of a communicator in the same order, which the program has to see to.
/// [`abort`](Self::abort) ends the operations in which other threads wait.
///
/// A communicator that is dropped completes its operations and leaves, which may wait for the other
/// ranks; while the thread panics it aborts instead, so that the other ranks are told.
/// [`close`](Self::close) does the same with a result.
pub struct Comm {
    handle: usize,
    rank: usize,
    size: usize,
    ended: AtomicBool,
    /// Streams of operations that nobody gave a stream to, while they are not in use.
    streams: Mutex<Vec<Stream>>,
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Comm, rank {} of {}", self.rank, self.size)
    }
}

/// Ending, and what is asked of a communicator.
impl Comm {
    /// Returns the number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the error with which the communicator failed; `None` while it works.
    pub fn async_error(&self) -> Option<Error> {
        self.state().err()
    }

    /// Limits how long an operation may wait for another rank without progress; `None` removes the
    /// limit. An operation that exceeds it fails, and the communicator with it.
    pub fn set_timeout(&self, limit: Option<Duration>) -> Result<()> {
        let limit = limit.map_or(-1, |limit| i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX));
        // SAFETY: any handle may be passed.
        check(unsafe { oxcclCommSetTimeout(self.raw(), limit) })
    }

    /// Returns the number of collectives so far that read or wrote the buffers of other ranks in
    /// place, as they do with a [`Buffer`](crate::Buffer).
    pub fn in_place(&self) -> Result<u64> {
        let mut count = 0;
        // SAFETY: a place for the result.
        check(unsafe { oxcclCommInPlace(self.raw(), &mut count) })?;
        Ok(count)
    }

    /// Completes all operations and ends this rank's part of the communicator.
    ///
    /// Blocks until the other ranks have received what was sent to them. Fails if they do not
    /// receive it, or if calls of the ranks differ; the communicator is ended nevertheless.
    pub fn close(self) -> Result<()> {
        self.end(false)
    }

    /// Ends the communicator at once: all its operations, also those in which other threads wait,
    /// fail, and the other ranks are told.
    ///
    /// Blocks for a second at most. Afterwards no rank touches the buffers of its operations; fails
    /// with the rank that does not confirm this, since its process is stopped. Further calls do
    /// nothing.
    pub fn abort(&self) -> Result<()> {
        self.end(true)
    }

    /// Ends all operations. Only [`split`](Self::split), [`shrink`](Self::shrink) and the end of
    /// the communicator are left. Blocks for a second at most.
    pub fn revoke(&self) -> Result<()> {
        // SAFETY: any handle may be passed.
        check(unsafe { ncclCommRevoke(self.raw(), NCCL_REVOKE_DEFAULT) })
    }

    /// Gives memory of the communicator back to the system. No operation may be under way, and
    /// until [`resume`](Self::resume) none is possible. Blocks: never.
    pub fn suspend(&self) -> Result<()> {
        // SAFETY: any handle may be passed.
        check(unsafe { ncclCommSuspend(self.raw(), NCCL_SUSPEND_MEM) })
    }

    /// Lets a suspended communicator take operations again. Blocks: never.
    pub fn resume(&self) -> Result<()> {
        // SAFETY: any handle may be passed.
        check(unsafe { ncclCommResume(self.raw()) })
    }

    fn end(&self, abort: bool) -> Result<()> {
        if self.ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let end = if abort { ncclCommAbort } else { ncclCommDestroy };
        // SAFETY: any handle may be passed.
        check(unsafe { end(self.raw()) })
    }

    /// Returns false while the communicator is being made.
    fn state(&self) -> Result<bool> {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: a place for the result.
        check(unsafe { ncclCommGetAsyncError(self.raw(), &mut state) })?;
        match state {
            ncclResult_t::ncclSuccess => Ok(true),
            ncclResult_t::ncclInProgress => Ok(false),
            code => Err(failure(self.raw(), code)),
        }
    }

    pub(crate) fn raw(&self) -> ncclComm_t {
        without_provenance_mut(self.handle)
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.streams.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lends a stream on which nothing is under way.
    pub(crate) fn lend_stream(&self) -> Result<Stream> {
        let idle = self.streams().pop();
        idle.map_or_else(Stream::new, Ok)
    }

    pub(crate) fn take_back(&self, stream: Stream) {
        self.streams().push(stream);
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // A destructor has nobody to tell an error to, and the library has logged it.
        let _ = self.end(panicking());
    }
}

/// Making communicators. All of these block until all ranks have come, or fail if they do not come
/// within `OXCCL_INIT_TIMEOUT`, and cannot be called within a group.
impl Comm {
    /// Makes the communicator of all processes that `oxccl run`, mpirun, srun or torchrun started;
    /// without a launcher, of this process alone.
    pub fn from_env() -> Result<Self> {
        // SAFETY: a place for the handle, and no options.
        one("from_env", HOST, |place| unsafe { oxcclCommInitEnv(place, null()) })
    }

    /// Makes the part of rank `rank` in a communicator of `size` ranks, which all have the same id.
    pub fn from_rank(rank: usize, size: usize, id: Id) -> Result<Self> {
        Self::on(HOST, rank, size, id)
    }

    /// Makes the part of a rank on a device.
    pub(crate) fn on(device: Device, rank: usize, size: usize, id: Id) -> Result<Self> {
        let (id, rank, size) = (id.raw(), number(rank), number(size));
        // SAFETY: a place for the handle, and no options.
        let make = |place| unsafe { ncclCommInitRankConfig(place, size, id, rank, null_mut()) };
        one("from_rank", device, make)
    }

    /// Makes a communicator of `size` ranks in this process; returns the parts of all ranks. One
    /// thread can make their calls together in a [`group`](crate::group()).
    pub fn all_in_process(size: usize) -> Result<Vec<Self>> {
        outside_group("all_in_process")?;
        on_device(HOST, move || {
            // More than the library allows, which it refuses.
            let room = size.clamp(1, 1 << 16);
            let mut handles = vec![null_mut(); room];
            let count = if size > room { c_int::MAX } else { number(size) };
            // SAFETY: room for the handles, of which the library makes no more than there is room.
            check(unsafe { ncclCommInitAll(handles.as_mut_ptr(), count, null()) })?;
            handles.into_iter().map(Self::of).collect()
        })
    }

    /// Makes a communicator of the ranks with the same color, ordered by key and then by rank.
    /// Without a color this rank joins none, and gets `None`. All ranks have to call.
    pub fn split(&self, color: Option<usize>, key: i32) -> Result<Option<Self>> {
        let color = color.map_or(NCCL_SPLIT_NOCOLOR, number);
        let parent = self.handle;
        // SAFETY: any handle may be passed, a place for the new one, and no options.
        made("split", HOST, move |place| unsafe {
            ncclCommSplit(without_provenance_mut(parent), color, key, place, null_mut())
        })
    }

    /// Makes a communicator without some ranks, which need not be alive. All others have to call
    /// with the same list.
    pub fn shrink(&self, exclude: &[usize], state: Shrink) -> Result<Self> {
        let mut list: Vec<_> = exclude.iter().copied().map(number).collect();
        let flags = match state {
            Shrink::Idle => NCCL_SHRINK_DEFAULT,
            Shrink::Abort => NCCL_SHRINK_ABORT,
        };
        let (parent, count) = (self.handle, number(list.len()));
        // SAFETY: any handle may be passed, the list has `count` ranks, a place for the handle.
        one("shrink", HOST, move |place| unsafe {
            let parent = without_provenance_mut(parent);
            ncclCommShrink(parent, list.as_mut_ptr(), count, place, null_mut(), flags)
        })
    }

    /// Makes the id by which ranks [`join`](Self::join) one growth of this communicator. The rank
    /// that makes it passes it to [`grow`](Self::grow). Blocks: never.
    pub fn growth_id(&self) -> Result<Id> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: any handle may be passed, and a place for the id.
        check(unsafe { ncclCommGetUniqueId(self.raw(), &mut id) })?;
        Ok(id.into())
    }

    /// Makes a communicator of `size` ranks, more than this one has. All ranks of this one have to
    /// call and keep their numbers; the one that made the id passes it, the others pass `None`.
    pub fn grow(&self, size: usize, id: Option<Id>) -> Result<Self> {
        grown("grow", HOST, self.handle, size, id, -1)
    }

    /// Makes the part of a rank that is new in the `size` ranks of a communicator that grows.
    pub fn join(rank: usize, size: usize, id: Id) -> Result<Self> {
        Self::join_on(HOST, rank, size, id)
    }

    /// The same on a device.
    pub(crate) fn join_on(device: Device, rank: usize, size: usize, id: Id) -> Result<Self> {
        grown("join", device, 0, size, Some(id), number(rank))
    }

    /// Takes over the handle of a communicator that was just made; waits if the environment makes
    /// it non-blocking.
    fn of(handle: ncclComm_t) -> Result<Self> {
        let (handle, streams) = (handle.addr(), Mutex::default());
        let mut comm = Self { handle, rank: 0, size: 0, ended: AtomicBool::new(false), streams };
        while matches!(comm.state(), Ok(false)) {
            std::thread::sleep(Duration::from_micros(100));
        }
        // These fail if it was not made. If it has failed since, the first operation tells.
        let made = || -> Result<(c_int, c_int)> {
            let (mut rank, mut size) = (0, 0);
            // SAFETY: places for the results.
            unsafe {
                check(ncclCommUserRank(comm.raw(), &mut rank))?;
                check(ncclCommCount(comm.raw(), &mut size))?;
            }
            Ok((rank, size))
        };
        let (rank, size) = made().inspect_err(|_| drop(comm.abort()))?;
        (comm.rank, comm.size) = (rank as usize, size as usize);
        Ok(comm)
    }
}

/// Sets the number by which `oxccl ras` knows the later operations of this thread, such as that of
/// a training step; 0 for none. Blocks: never.
pub fn set_tag(tag: u64) -> Result<()> {
    // SAFETY: any number may be passed.
    check(unsafe { oxcclTag(tag) })
}

fn grown(
    call: &str,
    device: Device,
    parent: usize,
    size: usize,
    id: Option<Id>,
    rank: c_int,
) -> Result<Comm> {
    let (size, id) = (number(size), id.map(Id::raw));
    // SAFETY: any handle may be passed, null or an id, a place for the new handle, and no options.
    one(call, device, move |place| unsafe {
        let id = id.as_ref().map_or(null(), |id| id);
        ncclCommGrow(without_provenance_mut(parent), size, id, rank, place, null_mut())
    })
}

/// Makes a communicator of which this rank is certainly a part.
fn one(
    call: &str,
    device: Device,
    make: impl FnOnce(*mut ncclComm_t) -> ncclResult_t + Send,
) -> Result<Comm> {
    let comm = made(call, device, make)?;
    comm.ok_or_else(|| Error::new(crate::Code::Internal, format!("{call}: no communicator")))
}

/// Makes a communicator on a device, or on that of its parent; `None` if this rank is no part.
fn made(
    call: &str,
    device: Device,
    make: impl FnOnce(*mut ncclComm_t) -> ncclResult_t + Send,
) -> Result<Option<Comm>> {
    // The place for the handle would be gone when the group ends.
    outside_group(call)?;
    on_device(device, move || {
        let mut handle = null_mut();
        check(make(&mut handle))?;
        (!handle.is_null()).then(|| Comm::of(handle)).transpose()
    })
}
