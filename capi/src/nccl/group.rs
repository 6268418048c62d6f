//! Groups of calls.

use super::config::{ncclSimInfo_t, store_estimate};
use super::types::ncclResult_t;
use crate::boundary::boundary;
use oxccl_runtime::error::Result;
use oxccl_runtime::group::{self, Launched};
use oxccl_twin::twin;

unsafe fn group_simulate_end(simInfo: *mut ncclSimInfo_t) -> Result<()> {
    // The group ends whatever else is wrong.
    let Some(time_us) = group::simulate_end()? else { return Ok(()) };
    // SAFETY: passed on from the caller.
    unsafe { store_estimate(simInfo, time_us as f32, "ncclGroupSimulateEnd") }
}

unsafe fn group_start() -> Result<()> {
    group::start();
    Ok(())
}

unsafe fn group_end() -> Result<Launched> {
    group::end()
}

/// Begins a group: calls until ncclGroupEnd are launched together. Groups nest. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { group_start() })
}

/// Ends a group and launches its calls; if one of them failed, nothing is launched and its error is
/// returned. Blocks: for communicators that the group makes, and for memory at the first large
/// calls on GPUs.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { group_end() })
}

/// Ends a group without launching anything. Its calls are checked as by ncclGroupEnd, and
/// `estimatedTime` of the outermost group becomes the time in µs that the cost model predicts for
/// them: one after the other on each communicator, several communicators side by side.
///
/// `simInfo`: in and out; `size` and `magic` must be set. An inner group only ends, and
/// `estimatedTime` stays. Where the group makes communicators (NCCL makes them then), the answer is
/// ncclInvalidUsage and none is made. The group ends on errors, too. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { group_simulate_end(simInfo) })
}
