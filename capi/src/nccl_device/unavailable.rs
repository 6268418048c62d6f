//! Functions for kernels that communicate. They fail, because the host device has no such kernels.

#![allow(unused_variables, reason = "the names of parameters are for the header")]

use super::types::{
    ncclCftLeId, ncclDevComm_t, ncclDevCommRequirements_t, ncclDevResourceRequirements_t,
    ncclGinBarrierHandle_t, ncclGinInboxA2AHandle, ncclGinOutboxHandle, ncclLLA2AHandle_t,
    ncclLsaBarrierHandle_t, ncclMultimemHandle_t, ncclTeam_t,
};
use crate::boundary::boundary;
use crate::nccl::types::{ncclComm_t, ncclResult_t, ncclWindow_t};
use oxccl_runtime::error::{Error, Result};
use oxccl_twin::twin;
use std::ffi::{c_int, c_void};

fn unavailable(function: &'static str) -> Result<()> {
    let what =
        format!("{function}: there are no kernels on the host device that could communicate");
    let hint = "ask ncclCommQueryProperties for deviceApiSupport first, and use the collectives";
    Err(Error::usage(what, hint))
}

/// Returns the error of a function for counted transfers of NVLink switches.
pub(super) fn uncounted(function: &str) -> Error {
    let what = format!("{function}: this library uses no counted transfers of NVLink switches");
    Error::usage(what, "ask ncclCommQueryProperties for cftSupport first, and use the collectives")
}

/// Would make a communicator for kernels; fails with ncclInvalidUsage on the host device. Blocks:
/// never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclDevCommCreate(
    comm: ncclComm_t,
    reqs: *const ncclDevCommRequirements_t,
    outDevComm: *mut ncclDevComm_t,
) -> ncclResult_t {
    boundary(|| unavailable("ncclDevCommCreate"))
}

/// Would end a communicator for kernels; fails with ncclInvalidUsage on the host device. Blocks:
/// never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclDevCommDestroy(
    comm: ncclComm_t,
    devComm: *const ncclDevComm_t,
) -> ncclResult_t {
    boundary(|| unavailable("ncclDevCommDestroy"))
}

/// Would give a window's multicast address; fails with ncclInvalidUsage on the host device. Blocks:
/// never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLsaMultimemDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    boundary(|| unavailable("ncclGetLsaMultimemDevicePointer"))
}

/// Would give a window's address for a multicast handle; fails with ncclInvalidUsage on the host
/// device. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetMultimemDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    multimem: ncclMultimemHandle_t,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    boundary(|| unavailable("ncclGetMultimemDevicePointer"))
}

/// Would give a window's address in the memory of a rank of the block; fails with ncclInvalidUsage
/// on the host device. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLsaDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    lsaRank: c_int,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    boundary(|| unavailable("ncclGetLsaDevicePointer"))
}

/// Would give a window's address in the memory of a rank; fails with ncclInvalidUsage on the host
/// device. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetPeerDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    peer: c_int,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    boundary(|| unavailable("ncclGetPeerDevicePointer"))
}

/// Would give a window's endpoint of counted transfers to all ranks; fails with ncclInvalidUsage,
/// as there are none. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetMultimemDeviceLeInfo(
    window: ncclWindow_t,
    offset: usize,
    leId: *mut ncclCftLeId,
    leOffset: *mut usize,
) -> ncclResult_t {
    boundary(|| Err::<(), _>(uncounted("ncclGetMultimemDeviceLeInfo")))
}

/// Would give a window's endpoint of counted transfers to a member of a team; fails with
/// ncclInvalidUsage, as there are none. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetCftDeviceLeInfo(
    window: ncclWindow_t,
    offset: usize,
    peerCft: c_int,
    cftTeam: ncclTeam_t,
    leId: *mut ncclCftLeId,
    leOffset: *mut usize,
) -> ncclResult_t {
    boundary(|| Err::<(), _>(uncounted("ncclGetCftDeviceLeInfo")))
}

/// Would give a window's endpoint of counted transfers to a rank; fails with ncclInvalidUsage, as
/// there are none. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetPeerDeviceLeInfo(
    window: ncclWindow_t,
    offset: usize,
    peerWorld: c_int,
    leId: *mut ncclCftLeId,
    leOffset: *mut usize,
) -> ncclResult_t {
    boundary(|| Err::<(), _>(uncounted("ncclGetPeerDeviceLeInfo")))
}

/// Would describe a barrier of ranks that share memory; fails with ncclInvalidUsage on the host
/// device. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclLsaBarrierCreateRequirement(
    team: ncclTeam_t,
    nBarriers: c_int,
    outHandle: *mut ncclLsaBarrierHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    boundary(|| unavailable("ncclLsaBarrierCreateRequirement"))
}

/// Would describe a barrier over the network; fails with ncclInvalidUsage on the host device.
/// Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGinBarrierCreateRequirement(
    comm: ncclComm_t,
    team: ncclTeam_t,
    nBarriers: c_int,
    outHandle: *mut ncclGinBarrierHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    boundary(|| unavailable("ncclGinBarrierCreateRequirement"))
}

/// Would describe the slots of an all-to-all exchange; fails with ncclInvalidUsage on the host
/// device. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclLLA2ACreateRequirement(
    nBlocks: c_int,
    nSlots: c_int,
    outHandle: *mut ncclLLA2AHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    boundary(|| unavailable("ncclLLA2ACreateRequirement"))
}

/// Would describe a buffer for sending over the network; fails with ncclInvalidUsage on the host
/// device. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGinOutboxCreateRequirement(
    nBlocks: c_int,
    size_log2: c_int,
    outHandle: *mut ncclGinOutboxHandle,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    boundary(|| unavailable("ncclGinOutboxCreateRequirement"))
}

/// Would describe a buffer for receiving over the network; fails with ncclInvalidUsage on the host
/// device. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGinInboxA2ACreateRequirement(
    peers: ncclTeam_t,
    nBlocks: c_int,
    size_log2: c_int,
    outHandle: *mut ncclGinInboxA2AHandle,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    boundary(|| unavailable("ncclGinInboxA2ACreateRequirement"))
}
