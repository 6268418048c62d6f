//! The collectives with options for one call.

#![allow(clippy::too_many_arguments, reason = "C gives them one by one")]

use super::coll_config::ncclCollConfig_t;
use super::collectives::{
    all_gather, all_reduce, all_to_all, broadcast, gather, reduce, reduce_scatter, scatter,
};
use super::types::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use crate::boundary::boundary;
use oxccl_twin::twin;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// Same as ncclAllReduce, with options for this call.
///
/// `config`: in, begun with NCCL_COLLCONFIG_INITIALIZER, read before the call returns; null for
/// ncclAllReduce itself. Blocks: never, as ncclAllReduce.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduceConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    op: MaybeUninit<ncclRedOp_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    boundary(|| {
        let call = all_reduce(sendbuff, recvbuff, count, datatype, op, comm, stream);
        // SAFETY: passed on from the caller.
        unsafe { call.of("ncclAllReduceConfig").launch_under(config) }
    })
}

/// Same as ncclBroadcast, with options for this call.
///
/// `config`: in, begun with NCCL_COLLCONFIG_INITIALIZER, read before the call returns; null for
/// ncclBroadcast itself. Blocks: never, as ncclBroadcast.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcastConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    boundary(|| {
        let call = broadcast(sendbuff, recvbuff, count, datatype, root, comm, stream);
        // SAFETY: passed on from the caller.
        unsafe { call.of("ncclBroadcastConfig").launch_under(config) }
    })
}

/// Same as ncclReduce, with options for this call.
///
/// `config`: in, begun with NCCL_COLLCONFIG_INITIALIZER, read before the call returns; null for
/// ncclReduce itself. Blocks: never, as ncclReduce.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    op: MaybeUninit<ncclRedOp_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    boundary(|| {
        let call = reduce(sendbuff, recvbuff, count, datatype, op, root, comm, stream);
        // SAFETY: passed on from the caller.
        unsafe { call.of("ncclReduceConfig").launch_under(config) }
    })
}

/// Same as ncclAllGather, with options for this call.
///
/// `config`: in, begun with NCCL_COLLCONFIG_INITIALIZER, read before the call returns; null for
/// ncclAllGather itself. Blocks: never, as ncclAllGather.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGatherConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    boundary(|| {
        let call = all_gather(sendbuff, recvbuff, sendcount, datatype, comm, stream);
        // SAFETY: passed on from the caller.
        unsafe { call.of("ncclAllGatherConfig").launch_under(config) }
    })
}

/// Same as ncclReduceScatter, with options for this call.
///
/// `config`: in, begun with NCCL_COLLCONFIG_INITIALIZER, read before the call returns; null for
/// ncclReduceScatter itself. Blocks: never, as ncclReduceScatter.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatterConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    op: MaybeUninit<ncclRedOp_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    boundary(|| {
        let call = reduce_scatter(sendbuff, recvbuff, recvcount, datatype, op, comm, stream);
        // SAFETY: passed on from the caller.
        unsafe { call.of("ncclReduceScatterConfig").launch_under(config) }
    })
}

/// Same as ncclAlltoAll, with options for this call.
///
/// `config`: in, begun with NCCL_COLLCONFIG_INITIALIZER, read before the call returns; null for
/// ncclAlltoAll itself. Blocks: never, as ncclAlltoAll.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAlltoAllConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    boundary(|| {
        let call = all_to_all(sendbuff, recvbuff, count, datatype, comm, stream);
        // SAFETY: passed on from the caller.
        unsafe { call.of("ncclAlltoAllConfig").launch_under(config) }
    })
}

/// Same as ncclGather, with options for this call.
///
/// `config`: in, begun with NCCL_COLLCONFIG_INITIALIZER, read before the call returns; null for
/// ncclGather itself. Blocks: never, as ncclGather.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGatherConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    boundary(|| {
        let call = gather(sendbuff, recvbuff, count, datatype, root, comm, stream);
        // SAFETY: passed on from the caller.
        unsafe { call.of("ncclGatherConfig").launch_under(config) }
    })
}

/// Same as ncclScatter, with options for this call.
///
/// `config`: in, begun with NCCL_COLLCONFIG_INITIALIZER, read before the call returns; null for
/// ncclScatter itself. Blocks: never, as ncclScatter.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclScatterConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    boundary(|| {
        let call = scatter(sendbuff, recvbuff, count, datatype, root, comm, stream);
        // SAFETY: passed on from the caller.
        unsafe { call.of("ncclScatterConfig").launch_under(config) }
    })
}
