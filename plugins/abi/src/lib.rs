//! The binary interface of NCCL's plugins: structures of C functions, frozen per version. Functions
//! return their result as a number, as a plugin may return any.

#![allow(non_camel_case_types, non_snake_case, reason = "the names are NCCL's")]
#![allow(clippy::type_complexity, reason = "the types are NCCL's")]

pub mod env;
pub mod export;
mod logger;
pub mod net;
pub mod profiler;
pub mod tuner;

pub use logger::{Sink, logger};

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// The result of a plugin's function; 0 is success.
pub type ncclResult_t = c_int;

/// The type of elements.
pub type ncclDataType_t = c_int;

/// A reduction.
pub type ncclRedOp_t = c_int;

/// The kind of a network's offload to GPUs.
pub type ncclNetDeviceType = c_int;
/// No offload.
pub const NCCL_NET_DEVICE_HOST: ncclNetDeviceType = 0;

/// The level of a line in the log.
pub type ncclDebugLogLevel = c_int;

/// The logger that plugins are given: level, subsystems, file, line, and a format with arguments as
/// of `printf`.
pub type ncclDebugLogger_t = unsafe extern "C" fn(
    level: ncclDebugLogLevel,
    flags: c_ulong,
    file: *const c_char,
    line: c_int,
    fmt: *const c_char,
    ...
);

/// The function by which net plugins report events to a profiler, if there is one.
pub type ncclProfilerCallback_t = Option<
    unsafe extern "C" fn(
        eHandle: *mut *mut c_void,
        kind: c_int,
        pHandle: *mut c_void,
        pluginId: i64,
        extData: *mut c_void,
    ) -> ncclResult_t,
>;
