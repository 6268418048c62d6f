//! Groups of calls.

use super::types::ncclResult_t;
use crate::boundary::boundary;
use oxccl_runtime::error::Result;
use oxccl_runtime::group::{self, Launched};

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
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { group_start() })
}

/// Same as ncclGroupStart, for wrappers that replace it.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGroupStart() -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { group_start() })
}

/// Ends a group and launches its calls; when one of them failed, nothing is launched and its error
/// returned. Blocks: only for communicators that the group makes.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { group_end() })
}

/// Same as ncclGroupEnd, for wrappers that replace it.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGroupEnd() -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { group_end() })
}
