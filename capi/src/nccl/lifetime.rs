//! Aborting, revoking, suspending and resuming communicators.

use super::types::{
    NCCL_REVOKE_DEFAULT, NCCL_SUSPEND_MEM, ncclComm_t, ncclCommMemStat_t, ncclResult_t,
};
use crate::boundary::boundary;
use crate::{convert, objects};
use oxccl_runtime::error::{Error, Result};
use oxccl_twin::twin;
use std::ffi::c_int;
use std::mem::MaybeUninit;

unsafe fn comm_abort(comm: ncclComm_t) -> Result<()> {
    if comm.is_null() {
        return Ok(());
    }
    objects::remove(comm, "ncclCommAbort")?.abort()
}

unsafe fn comm_revoke(comm: ncclComm_t, revokeFlags: c_int) -> Result<()> {
    const FUNCTION: &str = "ncclCommRevoke";
    let comm = objects::comm(comm, FUNCTION)?;
    if revokeFlags != NCCL_REVOKE_DEFAULT {
        let expected = "NCCL_REVOKE_DEFAULT (0)";
        return Err(Error::argument(FUNCTION, "revokeFlags", revokeFlags, expected));
    }
    comm.revoke()
}

unsafe fn comm_suspend(comm: ncclComm_t, flags: c_int) -> Result<()> {
    const FUNCTION: &str = "ncclCommSuspend";
    let comm = objects::comm(comm, FUNCTION)?;
    if flags != NCCL_SUSPEND_MEM {
        return Err(Error::argument(FUNCTION, "flags", flags, "NCCL_SUSPEND_MEM (1)"));
    }
    comm.suspend()
}

unsafe fn comm_resume(comm: ncclComm_t) -> Result<()> {
    objects::comm(comm, "ncclCommResume")?.resume()
}

unsafe fn comm_mem_stats(
    comm: ncclComm_t,
    stat: MaybeUninit<ncclCommMemStat_t>,
    value: *mut u64,
) -> Result<()> {
    const FUNCTION: &str = "ncclCommMemStats";
    let memory = objects::comm(comm, FUNCTION)?.memory();
    // SAFETY: C passed an initialised int; any int is a valid i32.
    let found = match unsafe { stat.as_ptr().cast::<i32>().read() } {
        0 => memory.releasable,
        1 => u64::from(memory.suspended),
        2 => memory.persistent,
        3 => memory.releasable + memory.persistent,
        other => {
            let expected = "an ncclCommMemStat_t, 0 to 3";
            return Err(Error::argument(FUNCTION, "stat", other, expected));
        }
    };
    // SAFETY: passed on from the caller.
    unsafe { convert::store(value, found, FUNCTION, "value") }
}

/// Ends a communicator at once, also one that is still being made: its operations end with an
/// error, the other ranks get ncclRemoteError. Null is ignored.
///
/// Afterwards no rank accesses the buffers of its operations any more; if a rank does not answer,
/// the error names it. Blocks: a second at most, whatever the other ranks do. Not for signal
/// handlers, which may interrupt the code that this call waits for: let the handler set a flag or
/// write to a pipe, or read signals from a signalfd, and call this in a thread.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_abort(comm) })
}

/// Ends the operations of a communicator, which can then only be split, shrunk, destroyed or
/// aborted.
///
/// `revokeFlags`: NCCL_REVOKE_DEFAULT. Blocks: a second at most.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_revoke(comm, revokeFlags) })
}

/// Gives memory of a communicator back to the system; until ncclCommResume it takes no operations.
///
/// `flags`: NCCL_SUSPEND_MEM. No operation may be under way. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_suspend(comm, flags) })
}

/// Lets a suspended communicator take operations again. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_resume(comm) })
}

/// Returns how much memory a communicator takes in this process: all of it, or the part that
/// ncclCommSuspend gives back or keeps.
///
/// `stat`: what is asked, bytes but for ncclStatGpuMemSuspended (0 or 1). `value`: out. Memory that
/// all ranks of a host share is counted where it belongs to this rank. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommMemStats(
    comm: ncclComm_t,
    stat: MaybeUninit<ncclCommMemStat_t>,
    value: *mut u64,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_mem_stats(comm, stat, value) })
}
