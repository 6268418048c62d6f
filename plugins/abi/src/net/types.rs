//! The parts that all versions share.

use crate::ncclNetDeviceType;
use std::ffi::{c_int, c_void};

/// The bytes of a handle.
pub const NCCL_NET_HANDLE_MAXSIZE: c_int = 128;
/// The most requests under way on a connection.
pub const NCCL_NET_MAX_REQUESTS: c_int = 32;
/// Memory of the host.
pub const NCCL_PTR_HOST: c_int = 1;
/// Memory of a GPU, by its address.
pub const NCCL_PTR_CUDA: c_int = 2;
/// Memory of a GPU, by a dma-buf.
pub const NCCL_PTR_DMABUF: c_int = 4;
/// In the place of `request` when `irecv` is called: the completion need not be reported.
pub const NCCL_NET_OPTIONAL_RECV_COMPLETION: c_int = 1;
/// A traffic class, the use of a communicator, or a rail that is not known.
pub const NCCL_NET_TRAFFIC_CLASS_UNDEF: c_int = -1;

/// A connection's handle on GPUs, for offload.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetDeviceHandle_v7_t {
    /// The kind of offload.
    pub netDeviceType: ncclNetDeviceType,
    /// The version of that kind.
    pub netDeviceVersion: c_int,
    /// Memory on the GPU.
    pub handle: *mut c_void,
    /// The bytes of this memory.
    pub size: usize,
    /// 1 if the host has to help.
    pub needsProxyProgress: c_int,
}

/// The same as in version 7.
pub type ncclNetDeviceHandle_v8_t = ncclNetDeviceHandle_v7_t;

/// The same as in version 7.
pub type ncclNetDeviceHandle_v9_t = ncclNetDeviceHandle_v7_t;

/// The same as in version 7.
pub type ncclNetDeviceHandle_v10_t = ncclNetDeviceHandle_v7_t;

/// The same as in version 7.
pub type ncclNetDeviceHandle_v11_t = ncclNetDeviceHandle_v7_t;

/// The same as in version 7.
pub type ncclNetDeviceHandle_v12_t = ncclNetDeviceHandle_v7_t;
