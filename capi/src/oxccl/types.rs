//! Types of `oxccl.h`.

use std::ffi::{c_char, c_int};

/// A captured graph; on the host device use only through its handle.
pub struct CUgraph_st {
    _private: [u8; 0],
}

/// An executable graph; on the host device use only through its handle.
pub struct CUgraphExec_st {
    _private: [u8; 0],
}

/// Handle of a stream, CUDA's own type.
pub type oxcclStream_t = *mut crate::nccl::types::CUstream_st;
/// Handle of an event, CUDA's own type.
pub type oxcclEvent_t = *mut crate::nccl::types::CUevent_st;
/// Handle of a graph, CUDA's own type.
pub type oxcclGraph_t = *mut CUgraph_st;
/// Handle of an executable graph, CUDA's own type.
pub type oxcclGraphExec_t = *mut CUgraphExec_st;

/// A function that a stream calls.
pub type oxcclHostFn_t = Option<unsafe extern "C" fn(*mut std::ffi::c_void)>;

/// A function that receives log lines: the user's argument, the level as in NCCL_DEBUG (1 VERSION,
/// 2 WARN, 3 INFO, 5 TRACE), and the line. It is called in a thread of its own, one line after the
/// other, soon after each was written, and may call any function of this library.
pub type oxcclLogFn_t = Option<unsafe extern "C" fn(*mut std::ffi::c_void, c_int, *const c_char)>;

/// Kinds of devices.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum oxcclDeviceKind_t {
    /// Host memory.
    oxcclDeviceHost = 0,
    /// CUDA.
    oxcclDeviceCuda = 1,
}

/// The threads whose calls a capture checks; on the host device no call disturbs a capture.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum oxcclCaptureMode_t {
    /// Checks calls of all threads.
    oxcclCaptureGlobal = 0,
    /// Checks calls of this thread.
    oxcclCaptureThreadLocal = 1,
    /// Checks no calls.
    oxcclCaptureRelaxed = 2,
}

/// The description of an error. Set `size` to sizeof(oxcclErrorInfo_t) before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct oxcclErrorInfo_t {
    /// Size of the structure as the caller knows it.
    pub size: usize,
    /// The ncclResult_t.
    pub code: c_int,
    /// Rank that reports; −1 outside a communicator.
    pub rank: c_int,
    /// Rank at fault or waited for; −1 when unknown, as where calls differ: the text names two
    /// ranks then, either of which may be wrong.
    pub peer: c_int,
    /// Step of the plan; −1 outside a plan.
    pub step: c_int,
    /// Number of the operation on its communicator.
    pub opSeq: u64,
    /// Name of the operation; empty outside an operation.
    pub operation: [c_char; 32],
    /// The whole message.
    pub text: [c_char; 2048],
}

/// The vendorId of this library's options in the list `ext` of ncclCollConfig_t.
pub const OXCCL_VENDOR_ID: c_int = 0x4f7843;

/// This library's options of one collective: the optionId in the list `ext` of ncclCollConfig_t.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum oxcclCallOption_t {
    /// `val.i`: the milliseconds, at least 1, that the call may wait for a peer before the
    /// communicator fails, as oxcclCommSetTimeout has it for all calls; the smaller limit holds.
    /// Each rank has its own. On GPUs the call fails with ncclInvalidUsage.
    oxcclOptionDeadlineMs = 1,
    /// `val.i`: 1 lets only algorithms reduce that always give the same bits, as
    /// OXCCL_DETERMINISTIC; 0 leaves it to the communicator.
    oxcclOptionDeterministic = 2,
    /// `val.s`: the algorithm, by a name of `oxccl plan`. The call fails if it does not serve; not
    /// together with algSelection. An algorithm for buffers that all ranks map has a substitute
    /// where they do not.
    oxcclOptionPlan = 3,
}
