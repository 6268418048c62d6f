//! Creation, queries and destruction of communicators.

use super::config::{self, ncclConfig_t};
use super::types::{ncclComm_t, ncclResult_t, ncclUniqueId};
use crate::boundary::{self, boundary};
use crate::objects::Called;
use crate::{convert, objects};
use oxccl_runtime::bootstrap::{self, UniqueId};
use oxccl_runtime::comm::{Holder, Options, Origin};
use oxccl_runtime::device::{self, Device};
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::group::{self, Creation, Launched};
use oxccl_runtime::log::{self, Level, Subsystem};
use oxccl_twin::twin;
use std::ffi::c_int;
use std::sync::Arc;

unsafe fn get_unique_id(uniqueId: *mut ncclUniqueId) -> Result<()> {
    // SAFETY: passed on from the caller.
    unsafe { new_unique_id(uniqueId, "ncclGetUniqueId") }
}

/// Stores a new id, whose rendezvous waits in this process.
///
/// # Safety
/// `uniqueId` is null or writable.
pub(super) unsafe fn new_unique_id(
    uniqueId: *mut ncclUniqueId,
    function: &'static str,
) -> Result<()> {
    // Checked before a rendezvous is started in vain.
    if uniqueId.is_null() {
        return Err(Error::argument(function, "uniqueId", "null", "a place for the id"));
    }
    let internal = bootstrap::new_unique_id()?.encode().map(|b| b as std::ffi::c_char);
    // SAFETY: not null, and writable by the contract of this function.
    unsafe { convert::store(uniqueId, ncclUniqueId { internal }, function, "uniqueId") }
}

/// Reads an id that is an argument of a function.
pub(crate) fn id(
    id: &ncclUniqueId,
    function: &'static str,
    argument: &'static str,
) -> Result<UniqueId> {
    UniqueId::decode(&id.internal.map(|b| b as u8)).ok_or_else(|| {
        let expected = "an id from this library's ncclGetUniqueId, copied whole (128 bytes)";
        Error::argument(function, argument, "something else", expected)
    })
}

/// Checks a number of ranks.
fn ranks(number: c_int, function: &'static str, argument: &'static str) -> Result<u32> {
    let limit = bootstrap::root::MAX_RANKS;
    let nranks = u32::try_from(number).ok().filter(|n| (1..=limit).contains(n));
    nranks.ok_or_else(|| Error::argument(function, argument, number, format!("1 to {limit} ranks")))
}

/// Starts to make a communicator whose handle goes to `comm`; the names are those of the function
/// and of its arguments for the handle and the rank.
///
/// # Safety
/// `comm` is null or stays writable until the communicator is made.
pub(crate) unsafe fn make(
    (function, output, rank_name): (&'static str, &'static str, &'static str),
    comm: *mut ncclComm_t,
    nranks: c_int,
    id: UniqueId,
    rank: c_int,
    device: Device,
    options: Options,
) -> Result<Launched> {
    let nranks = ranks(nranks, function, "nranks")?;
    let rank = convert::rank(rank, nranks, function, rank_name)?;
    let origin = Origin::Id { id, rank, nranks };
    // SAFETY: passed on from the caller.
    unsafe { begin((function, output), comm, origin, None, (device, options)) }
}

/// Makes a communicator, or begins to make it; the names are those of the function and of its
/// argument for the handle.
///
/// # Safety
/// As for `make`.
pub(crate) unsafe fn begin(
    (function, output): (&'static str, &'static str),
    comm: *mut ncclComm_t,
    origin: Origin,
    parent: Option<Arc<Holder>>,
    (device, options): (Device, Options),
) -> Result<Launched> {
    // Checked before the id is used up.
    convert::place(comm, function, output)?;
    let name = options.name.as_deref().filter(|name| !name.is_empty());
    let name = name.unwrap_or("without a name");
    for line in options.without_effect() {
        log::line(Level::Info, Subsystem::Init, &format!("communicator {name}: {line}"));
    }
    let holder = Arc::new(Holder::new(device, options));
    let finish = Box::new(move |holder, member| {
        if member {
            // SAFETY: by the contract of this function.
            unsafe { objects::put(holder, comm, function) }
        } else {
            // SAFETY: not null, and writable by the contract of this function.
            unsafe { convert::store(comm, std::ptr::null_mut(), function, output) }
        }
    });
    group::create_communicator(Creation { origin, holder, parent, finish })
}

/// The names of a function and of its arguments for the handle, the rank and the id.
type Names = (&'static str, [&'static str; 3]);

fn names(function: &'static str) -> Names {
    (function, ["comm", "rank", "commId"])
}

unsafe fn comm_init_rank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
) -> Result<Launched> {
    // SAFETY: passed on from the caller.
    unsafe { join(names("ncclCommInitRank"), comm, nranks, commId, rank, std::ptr::null()) }
}

/// Makes a communicator on the current device with the options of a configuration.
///
/// # Safety
/// As for `make` and `config::read`.
unsafe fn join(
    (function, [output, rank_name, key]): Names,
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *const ncclConfig_t,
) -> Result<Launched> {
    let id = id(&commId, function, key)?;
    // SAFETY: passed on from the caller.
    let options = unsafe { config::read(config, function, None)? };
    // SAFETY: passed on from the caller.
    unsafe {
        let device = device::current()?;
        make((function, output, rank_name), comm, nranks, id, rank, device, options)
    }
}

unsafe fn comm_init_rank_config(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *const ncclConfig_t,
) -> Result<Launched> {
    // SAFETY: passed on from the caller.
    unsafe { join(names("ncclCommInitRankConfig"), comm, nranks, commId, rank, config) }
}

unsafe fn comm_init_rank_scalable(
    newcomm: *mut ncclComm_t,
    nranks: c_int,
    myrank: c_int,
    nId: c_int,
    commIds: *const ncclUniqueId,
    config: *const ncclConfig_t,
) -> Result<Launched> {
    const FUNCTION: &str = "ncclCommInitRankScalable";
    if commIds.is_null() {
        return Err(Error::argument(FUNCTION, "commIds", "null", "nId ids"));
    }
    ranks(nranks, FUNCTION, "nranks")?;
    if nId < 1 || nId > nranks {
        let expected = format!("1 to nranks, which is {nranks}");
        return Err(Error::argument(FUNCTION, "nId", nId, expected));
    }
    for i in 0..nId as usize {
        // SAFETY: nId ids by the contract of the caller.
        id(unsafe { &*commIds.add(i) }, FUNCTION, "commIds")?;
    }
    // All ranks meet at the first id: several meeting points would first have to exchange the
    // messages that they collected, and every rank needs everyone's message in the end.
    // SAFETY: at least one id; the rest is passed on from the caller.
    unsafe {
        let names = (FUNCTION, ["newcomm", "myrank", "commIds"]);
        join(names, newcomm, nranks, commIds.read(), myrank, config)
    }
}

unsafe fn comm_init_all(
    comm: *mut ncclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> Result<Launched> {
    const FUNCTION: &str = "ncclCommInitAll";
    if comm.is_null() {
        return Err(Error::argument(FUNCTION, "comm", "null", "room for ndev handles"));
    }
    ranks(ndev, FUNCTION, "ndev")?;
    let id = bootstrap::new_unique_id()?;
    // SAFETY: there is no configuration.
    let options = unsafe { config::read(std::ptr::null(), FUNCTION, None)? };
    let here = device::current()?;
    group::start();
    for i in 0..ndev {
        let device = if devlist.is_null() {
            i
        } else {
            // SAFETY: a list of ndev devices by the contract of the caller.
            unsafe { devlist.add(i as usize).read() }
        };
        let made = if device < 0 {
            Err(Error::argument(FUNCTION, "devlist", device, "indices of devices, from 0 on"))
        } else {
            // SAFETY: room for ndev handles by the contract of the caller.
            unsafe {
                let place = comm.add(i as usize);
                make(
                    (FUNCTION, "comm", "ndev"),
                    place,
                    ndev,
                    id.clone(),
                    i,
                    here.with_index(device),
                    options.clone(),
                )
            }
        };
        if let Err(error) = made {
            group::note_error(&error);
        }
    }
    group::end()
}

/// Fails if this thread's group has calls of a communicator that is about to end.
fn refuse_in_group(holder: &Holder, function: &str) -> Result<()> {
    match holder.ready() {
        Ok(comm) => group::refuse_end(comm, function),
        // There are no calls of one that is still made.
        Err(_) => Ok(()),
    }
}

unsafe fn comm_finalize(comm: ncclComm_t) -> Result<Launched> {
    const FUNCTION: &str = "ncclCommFinalize";
    let holder = objects::holder(comm, FUNCTION)?;
    let called = Called::new(holder.clone())?;
    refuse_in_group(&holder, FUNCTION)?;
    // Who was told of a failure is told by the answer that there is nothing more to tell.
    if holder.options().blocking || called.has_failed() {
        return called.finalize().map(|()| Launched::Done);
    }
    let ready = called.clone();
    holder.start(None, move |_| ready.finalize())?;
    Ok(Launched::InProgress)
}

unsafe fn comm_destroy(comm: ncclComm_t) -> Result<()> {
    if comm.is_null() {
        return Ok(());
    }
    const FUNCTION: &str = "ncclCommDestroy";
    let holder = objects::holder(comm, FUNCTION)?;
    refuse_in_group(&holder, FUNCTION)?;
    objects::remove(comm, FUNCTION)?.destroy()
}

unsafe fn comm_get_async_error(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> Result<()> {
    const FUNCTION: &str = "ncclCommGetAsyncError";
    let holder = objects::holder(comm, FUNCTION)?;
    let code = match holder.state() {
        Ok(true) => ncclResult_t::ncclInProgress,
        Ok(false) => ncclResult_t::ncclSuccess,
        Err(error) => {
            let code = boundary::result(error.code());
            boundary::remember(error);
            code
        }
    };
    // SAFETY: passed on from the caller.
    unsafe { convert::store(asyncError, code, FUNCTION, "asyncError") }
}

unsafe fn comm_count(comm: ncclComm_t, count: *mut c_int) -> Result<()> {
    let c = objects::comm(comm, "ncclCommCount")?;
    // SAFETY: passed on from the caller.
    unsafe { convert::store(count, c.nranks() as c_int, "ncclCommCount", "count") }
}

unsafe fn comm_cu_device(comm: ncclComm_t, device: *mut c_int) -> Result<()> {
    let c = objects::comm(comm, "ncclCommCuDevice")?;
    // SAFETY: passed on from the caller.
    unsafe { convert::store(device, c.device().index(), "ncclCommCuDevice", "device") }
}

unsafe fn comm_user_rank(comm: ncclComm_t, rank: *mut c_int) -> Result<()> {
    let c = objects::comm(comm, "ncclCommUserRank")?;
    // SAFETY: passed on from the caller.
    unsafe { convert::store(rank, c.rank() as c_int, "ncclCommUserRank", "rank") }
}

/// Makes an id for a new communicator, and starts its rendezvous in this process.
///
/// `uniqueId`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_unique_id(uniqueId) })
}

/// Makes a communicator, together with all other ranks.
///
/// `comm`: out, the handle. `nranks`: number of ranks. `commId`: the id that one rank got from
/// ncclGetUniqueId, copied to all. `rank`: this rank, 0 to nranks − 1. The device is the calling
/// thread's current one. Blocks until all ranks have come, at most OXCCL_INIT_TIMEOUT; within a
/// group at its end.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_init_rank(comm, nranks, commId, rank) })
}

/// Makes a communicator as ncclCommInitRank does, with options.
///
/// `comm`: out, the handle. `nranks`, `commId`, `rank`: as for ncclCommInitRank. `config`: in,
/// begun with NCCL_CONFIG_INITIALIZER of any version from 2.14 on, or null for the defaults;
/// environment variables override it. Blocks as ncclCommInitRank.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_init_rank_config(comm, nranks, commId, rank, config) })
}

/// Makes a communicator as ncclCommInitRankConfig does, with several ids.
///
/// `newcomm`: out, the handle. `nranks`: number of ranks. `myrank`: this rank. `nId`: number of
/// ids, 1 to nranks. `commIds`: in, nId ids, in the same order on all ranks. `config`: as for
/// ncclCommInitRankConfig. More ids bring nothing yet: all ranks meet at the first one, because
/// every rank needs everyone's message, and several meeting points would first have to exchange
/// theirs. Blocks as ncclCommInitRank.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankScalable(
    newcomm: *mut ncclComm_t,
    nranks: c_int,
    myrank: c_int,
    nId: c_int,
    commIds: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_init_rank_scalable(newcomm, nranks, myrank, nId, commIds, config) })
}

/// Makes all ranks of a communicator in this process, one for each device.
///
/// `comm`: out, ndev handles. `devlist`: in, ndev device indices, or null for 0 to ndev − 1.
/// Blocks.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitAll(
    comm: *mut ncclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_init_all(comm, ndev, devlist) })
}

/// Completes all operations of a communicator; no further ones may follow.
///
/// Blocks: also until the peers have received what was sent to them, as long as an operation may
/// wait, else 60 s; an error tells who has not, that the calls of the ranks differ, or why an
/// operation ended early, unless a call has told of a failure. Other failures of other ranks are
/// none here. With `blocking` 0 it answers at once; of a communicator that has failed already, as
/// with `blocking` 1, within a second.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_finalize(comm) })
}

/// Completes all operations of a communicator and destroys it, whatever the result; null is
/// ignored.
///
/// Blocks and answers as ncclCommFinalize does.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_destroy(comm) })
}

/// Returns whether the communicator has failed, and how; success once ncclCommFinalize found that
/// no operation of this rank has ended early.
///
/// `asyncError`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    asyncError: *mut ncclResult_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_get_async_error(comm, asyncError) })
}

/// Returns the number of ranks. `count`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_count(comm, count) })
}

/// Returns the index of the device. `device`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_cu_device(comm, device) })
}

/// Returns this rank's number. `rank`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_user_rank(comm, rank) })
}
