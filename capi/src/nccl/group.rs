//! Groups of calls.

use super::types::ncclResult_t;
use crate::boundary::boundary;
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::group;

/// What ncclGroupSimulateEnd tells. Set `size` to its size and `magic` to 0x74685283.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ncclSimInfo_t {
    /// Size of the struct, as the caller knows it.
    pub size: usize,
    /// 0x74685283.
    pub magic: u32,
    /// Version of NCCL that the caller was written for.
    pub version: u32,
    /// Estimated time in µs; negative: none.
    pub estimatedTime: f32,
}

const SIM_INFO_MAGIC: u32 = 0x7468_5283;

unsafe fn group_simulate_end(simInfo: *mut ncclSimInfo_t) -> Result<()> {
    // The group ends whatever else is wrong.
    let estimate = group::simulate_end();
    // SAFETY: passed on from the caller.
    unsafe { check_sim_info(simInfo)? };
    if let Some(time_us) = estimate? {
        // SAFETY: it was checked, and is writable by the contract of the caller.
        unsafe { (&raw mut (*simInfo).estimatedTime).write_unaligned(time_us as f32) };
    }
    Ok(())
}

/// # Safety
/// `info` is null or points to an ncclSimInfo_t that is `size` bytes long.
unsafe fn check_sim_info(info: *const ncclSimInfo_t) -> Result<()> {
    const FUNCTION: &str = "ncclGroupSimulateEnd";
    if info.is_null() {
        return Err(Error::argument(FUNCTION, "simInfo", "null", "an initialised ncclSimInfo_t"));
    }
    // SAFETY: both members are there by the contract of the caller.
    let (size, magic) = unsafe {
        ((&raw const (*info).size).read_unaligned(), (&raw const (*info).magic).read_unaligned())
    };
    if magic != SIM_INFO_MAGIC {
        let expected = format!("{SIM_INFO_MAGIC:#x}: initialise the struct");
        return Err(Error::argument(FUNCTION, "simInfo.magic", format!("{magic:#x}"), expected));
    }
    let least = size_of::<ncclSimInfo_t>();
    if size < least {
        let expected = format!("at least {least}, the size of ncclSimInfo_t");
        return Err(Error::argument(FUNCTION, "simInfo.size", size, expected));
    }
    Ok(())
}

unsafe fn group_start() -> Result<()> {
    group::start();
    Ok(())
}

unsafe fn group_end() -> Result<()> {
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

/// Ends a group without launching anything: its calls are checked as by ncclGroupEnd, and
/// `estimatedTime` of the outermost group becomes the time in µs that they would take by the cost model,
/// one after the other on each communicator and side by side on several.
///
/// `simInfo`: in and out; `size` and `magic` must be set. An inner group only ends, and `estimatedTime` stays.
/// Where the group makes communicators (NCCL makes them then), the answer is ncclInvalidUsage and none
/// is made. The group ends on errors, too. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { group_simulate_end(simInfo) })
}

/// Same as ncclGroupSimulateEnd, for wrappers that replace it.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { group_simulate_end(simInfo) })
}
