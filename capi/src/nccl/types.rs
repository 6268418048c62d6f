//! Types and constants of `nccl.h`, with NCCL's values.

use std::ffi::{c_char, c_int};

/// Size of an ncclUniqueId in bytes.
pub const NCCL_UNIQUE_ID_BYTES: usize = 128;

/// ncclCommSplit: this rank takes part, but is in no new communicator.
pub const NCCL_SPLIT_NOCOLOR: c_int = -1;

/// ncclCommWindowRegister: nothing special.
pub const NCCL_WIN_DEFAULT: c_int = 0;
/// ncclCommWindowRegister: all ranks use the same offsets.
pub const NCCL_WIN_COLL_SYMMETRIC: c_int = 1;
/// ncclCommWindowRegister: accesses keep their order.
pub const NCCL_WIN_STRICT_ORDERING: c_int = 2;
/// ncclCommWindowRegister: only for kernels that move data over the network; refused, as there are
/// none.
pub const NCCL_WIN_GIN_ONLY: c_int = 4;
/// ncclCommWindowRegister: only for counted transfers of NVLink switches; refused, as there are
/// none.
pub const NCCL_WIN_CFT_COUNTED: c_int = 8;
/// The alignment of a window's address, in bytes.
pub const NCCL_WIN_REQUIRED_ALIGNMENT: c_int = 4096;

/// CTAPolicy: neither efficiency nor zero.
pub const NCCL_CTA_POLICY_DEFAULT: c_int = 0;
/// CTAPolicy: few thread blocks.
pub const NCCL_CTA_POLICY_EFFICIENCY: c_int = 1;
/// CTAPolicy: no thread blocks.
pub const NCCL_CTA_POLICY_ZERO: c_int = 2;

/// ncclCommShrink: the parent has no operations under way.
pub const NCCL_SHRINK_DEFAULT: c_int = 0;
/// ncclCommShrink: ends the parent's operations first.
pub const NCCL_SHRINK_ABORT: c_int = 1;

/// ncclCommRevoke: the only flag.
pub const NCCL_REVOKE_DEFAULT: c_int = 0;

/// ncclCommSuspend: gives memory back.
pub const NCCL_SUSPEND_MEM: c_int = 1;

/// A communicator; use only through its handle.
pub struct ncclComm {
    _private: [u8; 0],
}

/// Handle of a communicator.
pub type ncclComm_t = *mut ncclComm;

/// A registered window; use only through its handle.
pub struct ncclWindow_vidmem {
    _private: [u8; 0],
}

/// Handle of a registered window.
pub type ncclWindow_t = *mut ncclWindow_vidmem;

/// The id of a communicator that is to be made. Copy it whole to all ranks, and keep it secret:
/// everyone who has it can join.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclUniqueId {
    /// Opaque.
    pub internal: [c_char; 128],
}

/// The result codes of functions.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclResult_t {
    /// Done.
    ncclSuccess = 0,
    /// CUDA failed.
    ncclUnhandledCudaError = 1,
    /// The operating system or the network failed.
    ncclSystemError = 2,
    /// A defect of the library.
    ncclInternalError = 3,
    /// A bad argument.
    ncclInvalidArgument = 4,
    /// A call that is not allowed now, or that does not match other ranks'.
    ncclInvalidUsage = 5,
    /// Another rank failed.
    ncclRemoteError = 6,
    /// Not complete yet.
    ncclInProgress = 7,
    /// A time limit has passed.
    ncclTimeout = 8,
    /// Number of codes.
    ncclNumResults = 9,
}

/// Types of elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclDataType_t {
    /// Signed 8-bit integer.
    ncclInt8 = 0,
    /// Unsigned 8-bit integer.
    ncclUint8 = 1,
    /// Signed 32-bit integer.
    ncclInt32 = 2,
    /// Unsigned 32-bit integer.
    ncclUint32 = 3,
    /// Signed 64-bit integer.
    ncclInt64 = 4,
    /// Unsigned 64-bit integer.
    ncclUint64 = 5,
    /// IEEE binary16.
    ncclFloat16 = 6,
    /// IEEE binary32.
    ncclFloat32 = 7,
    /// IEEE binary64.
    ncclFloat64 = 8,
    /// Upper half of a binary32.
    ncclBfloat16 = 9,
    /// OCP E4M3.
    ncclFloat8e4m3 = 10,
    /// OCP E5M2.
    ncclFloat8e5m2 = 11,
    /// Number of types.
    ncclNumTypes = 12,
}

/// Same as ncclInt8.
pub const ncclChar: ncclDataType_t = ncclDataType_t::ncclInt8;
/// Same as ncclInt32.
pub const ncclInt: ncclDataType_t = ncclDataType_t::ncclInt32;
/// Same as ncclFloat16.
pub const ncclHalf: ncclDataType_t = ncclDataType_t::ncclFloat16;
/// Same as ncclFloat32.
pub const ncclFloat: ncclDataType_t = ncclDataType_t::ncclFloat32;
/// Same as ncclFloat64.
pub const ncclDouble: ncclDataType_t = ncclDataType_t::ncclFloat64;

/// The operations that reduce elements of different ranks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclRedOp_t {
    /// Sum; integers wrap.
    ncclSum = 0,
    /// Product; integers wrap.
    ncclProd = 1,
    /// Maximum.
    ncclMax = 2,
    /// Minimum.
    ncclMin = 3,
    /// Sum divided by the number of ranks.
    ncclAvg = 4,
    /// Number of built-in operations.
    ncclNumOps = 5,
    /// Keeps the type 32 bits wide.
    ncclMaxRedOp = 0x7fff_ffff,
}

/// The location of the scalar of an operation with a factor.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclScalarResidence_t {
    /// In memory that the device reads when the operation runs.
    ncclScalarDevice = 0,
    /// In memory that is read before the call returns.
    ncclScalarHostImmediate = 1,
}

/// The figures that ncclCommMemStats returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclCommMemStat_t {
    /// Bytes that ncclCommSuspend would give back.
    ncclStatGpuMemSuspend = 0,
    /// 1 while suspended, else 0.
    ncclStatGpuMemSuspended = 1,
    /// Bytes that stay.
    ncclStatGpuMemPersist = 2,
    /// All bytes.
    ncclStatGpuMemTotal = 3,
}

/// Signals to wait for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ncclWaitSignalDesc_t {
    /// Number of signals.
    pub opCnt: c_int,
    /// The rank that they come from.
    pub peer: c_int,
    /// Index of the signal.
    pub sigIdx: c_int,
    /// Context.
    pub ctx: c_int,
}

/// A stream; on the host device use only through its handle.
pub struct CUstream_st {
    _private: [u8; 0],
}

/// Handle of a stream, CUDA's own type.
pub type cudaStream_t = *mut CUstream_st;

/// An event; on the host device use only through its handle.
pub struct CUevent_st {
    _private: [u8; 0],
}

/// Handle of an event, CUDA's own type.
pub type cudaEvent_t = *mut CUevent_st;
