//! Communicators made from others.

use super::comm::{self, begin, new_unique_id};
use super::config::{self, ncclConfig_t};
use super::types::{NCCL_SHRINK_ABORT, ncclComm_t, ncclResult_t, ncclUniqueId};
use crate::boundary::boundary;
use crate::objects::Called;
use crate::{convert, objects};
use oxccl_runtime::bootstrap::root::MAX_RANKS;
use oxccl_runtime::comm::{Communicator, Holder, NO_COLOR, Origin};
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::group::Launched;
use oxccl_twin::twin;
use std::ffi::c_int;
use std::sync::Arc;

/// Looks up the parent of a new communicator; fails if the parent is not made yet.
fn parent(comm: ncclComm_t, function: &'static str) -> Result<(Arc<Holder>, Called)> {
    let holder = objects::holder(comm, function)?;
    let ready = Called::new(holder.clone())?;
    Ok((holder, ready))
}

unsafe fn comm_split(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *const ncclConfig_t,
) -> Result<Launched> {
    const FUNCTION: &str = "ncclCommSplit";
    let (holder, parent) = parent(comm, FUNCTION)?;
    if color < 0 && color != NO_COLOR {
        let expected = "0 or more, or NCCL_SPLIT_NOCOLOR (-1)";
        return Err(Error::argument(FUNCTION, "color", color, expected));
    }
    // SAFETY: passed on from the caller.
    let options = unsafe { config::read(config, FUNCTION, Some(parent.options()))? };
    let device = parent.device();
    // Checked before the call is counted, so that this rank can repeat it together with the others.
    convert::place(newcomm, FUNCTION, "newcomm")?;
    let origin = parent.split(color, key);
    // SAFETY: passed on from the caller.
    unsafe { begin((FUNCTION, "newcomm"), newcomm, origin, Some(holder), (device, options)) }
}

/// # Safety
/// `list` is null or has `count` numbers.
unsafe fn excluded(
    parent: &Communicator,
    list: *const c_int,
    count: c_int,
    function: &'static str,
) -> Result<Vec<u32>> {
    let nranks = parent.nranks();
    let fewer = usize::try_from(count).ok().filter(|&n| n >= 1 && n < nranks as usize);
    let count = fewer.ok_or_else(|| {
        let expected = format!("at least 1 and fewer than the communicator's {nranks} ranks");
        Error::argument(function, "excludeRanksCount", count, expected)
    })?;
    if list.is_null() {
        let expected = "excludeRanksCount ranks";
        return Err(Error::argument(function, "excludeRanksList", "null", expected));
    }
    // SAFETY: by the contract of this function.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    let ranks = list.iter().map(|&rank| convert::rank(rank, nranks, function, "excludeRanksList"));
    let mut ranks: Vec<u32> = ranks.collect::<Result<_>>()?;
    ranks.sort_unstable();
    if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        let got = format!("rank {} twice", twice[0]);
        return Err(Error::argument(function, "excludeRanksList", got, "each rank once"));
    }
    if ranks.contains(&parent.rank()) {
        let got = format!("a list with the calling rank {}", parent.rank());
        let expected = "a list of other ranks: those that are excluded do not call";
        return Err(Error::argument(function, "excludeRanksList", got, expected));
    }
    Ok(ranks)
}

unsafe fn comm_shrink(
    comm: ncclComm_t,
    excludeRanksList: *const c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ncclComm_t,
    config: *const ncclConfig_t,
    shrinkFlags: c_int,
) -> Result<Launched> {
    const FUNCTION: &str = "ncclCommShrink";
    let (holder, parent) = parent(comm, FUNCTION)?;
    if !(0..=NCCL_SHRINK_ABORT).contains(&shrinkFlags) {
        let expected = "NCCL_SHRINK_DEFAULT (0) or NCCL_SHRINK_ABORT (1)";
        return Err(Error::argument(FUNCTION, "shrinkFlags", shrinkFlags, expected));
    }
    // SAFETY: passed on from the caller.
    let excluded = unsafe { excluded(&parent, excludeRanksList, excludeRanksCount, FUNCTION)? };
    // SAFETY: passed on from the caller.
    let options = unsafe { config::read(config, FUNCTION, Some(parent.options()))? };
    let device = parent.device();
    // Checked before the call is counted, so that this rank can repeat it together with the others.
    convert::place(newcomm, FUNCTION, "newcomm")?;
    let origin = parent.shrink(excluded, shrinkFlags == NCCL_SHRINK_ABORT);
    // SAFETY: passed on from the caller.
    unsafe { begin((FUNCTION, "newcomm"), newcomm, origin, Some(holder), (device, options)) }
}

unsafe fn comm_get_unique_id(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> Result<()> {
    const FUNCTION: &str = "ncclCommGetUniqueId";
    objects::comm(comm, FUNCTION)?;
    // SAFETY: passed on from the caller.
    unsafe { new_unique_id(uniqueId, FUNCTION) }
}

unsafe fn comm_grow(
    comm: ncclComm_t,
    nRanks: c_int,
    uniqueId: *const ncclUniqueId,
    rank: c_int,
    newcomm: *mut ncclComm_t,
    config: *const ncclConfig_t,
) -> Result<Launched> {
    const FUNCTION: &str = "ncclCommGrow";
    let id = if uniqueId.is_null() {
        None
    } else {
        // SAFETY: not null, and readable by the contract of the caller.
        let id = unsafe { &*uniqueId };
        Some(comm::id(id, FUNCTION, "uniqueId")?)
    };
    let nranks = u32::try_from(nRanks).ok().filter(|&n| n <= MAX_RANKS);
    if comm.is_null() {
        // A new rank.
        let Some(id) = id else {
            let expected = "the id, which new ranks get from the one that made it";
            return Err(Error::argument(FUNCTION, "uniqueId", "null", expected));
        };
        let nranks = nranks.filter(|&n| n > 1).ok_or_else(|| {
            Error::argument(FUNCTION, "nRanks", nRanks, format!("2 to {MAX_RANKS} ranks"))
        })?;
        let rank = convert::rank(rank, nranks, FUNCTION, "rank")?;
        // SAFETY: passed on from the caller.
        let options = unsafe { config::read(config, FUNCTION, None)? };
        let origin = Origin::Id { id, rank, nranks };
        let device = oxccl_runtime::device::current()?;
        // SAFETY: passed on from the caller.
        return unsafe { begin((FUNCTION, "newcomm"), newcomm, origin, None, (device, options)) };
    }
    let (holder, parent) = parent(comm, FUNCTION)?;
    if rank != -1 {
        let expected = "-1: a rank of the communicator keeps its number";
        return Err(Error::argument(FUNCTION, "rank", rank, expected));
    }
    let old = parent.nranks();
    let nranks = nranks.filter(|&n| n > old).ok_or_else(|| {
        let expected = format!("more than the communicator's {old}, up to {MAX_RANKS}");
        Error::argument(FUNCTION, "nRanks", nRanks, expected)
    })?;
    // SAFETY: passed on from the caller.
    let options = unsafe { config::read(config, FUNCTION, Some(parent.options()))? };
    let device = parent.device();
    // Checked before the call is counted, so that this rank can repeat it together with the others.
    convert::place(newcomm, FUNCTION, "newcomm")?;
    let origin = parent.grow(nranks, id);
    // SAFETY: passed on from the caller.
    unsafe { begin((FUNCTION, "newcomm"), newcomm, origin, Some(holder), (device, options)) }
}

/// Splits a communicator: ranks of equal color make a new one, ordered by key, then by rank.
///
/// All ranks of `comm` call. `color`: 0 or more, or NCCL_SPLIT_NOCOLOR for a rank that joins none
/// and gets a null handle. `newcomm`: out. `config`: as for ncclCommInitRankConfig; null takes the
/// parent's. Blocks for all ranks, or returns ncclInProgress where the new communicator does not
/// block.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_split(comm, color, key, newcomm, config) })
}

/// Makes a communicator without some ranks, which need not be alive.
///
/// All other ranks call, with the same list. `excludeRanksList`: in, excludeRanksCount ranks.
/// `newcomm`: out.
/// `config`: as for ncclCommSplit. `shrinkFlags`: NCCL_SHRINK_ABORT ends the parent's operations
/// first; the new communicator is made only when those of all survivors have ended, and the parent
/// can only be destroyed or aborted after. Without it no operation may be under way. Blocks as
/// ncclCommSplit.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommShrink(
    comm: ncclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    shrinkFlags: c_int,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe {
        comm_shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags)
    })
}

/// Makes an id for the ranks that join by ncclCommGrow. An id serves one growth.
///
/// Called on one rank of `comm`, the root. `uniqueId`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetUniqueId(
    comm: ncclComm_t,
    uniqueId: *mut ncclUniqueId,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_get_unique_id(comm, uniqueId) })
}

/// Makes a communicator with more ranks; those of `comm` keep their numbers.
///
/// The root passes `comm`, the id from ncclCommGetUniqueId and rank −1; the others of `comm` pass
/// null instead of the id; new ranks pass null instead of `comm`, the id and their rank. `nRanks`:
/// the number of ranks then. `newcomm`: out. `config`: as for ncclCommSplit. Blocks as
/// ncclCommSplit.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGrow(
    comm: ncclComm_t,
    nRanks: c_int,
    uniqueId: *const ncclUniqueId,
    rank: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_grow(comm, nRanks, uniqueId, rank, newcomm, config) })
}
