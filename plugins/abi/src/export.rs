//! The parts that plugins of our own share: results, structures as symbols, and lines in the log.

use crate::{ncclDebugLogLevel, ncclDebugLogger_t, ncclResult_t};
use std::ffi::{CStr, CString, c_ulong};

/// The result of a call that succeeded.
pub const SUCCESS: ncclResult_t = 0;
/// The result of a call of the system that failed.
pub const SYSTEM_ERROR: ncclResult_t = 2;
/// The result of a panic.
pub const INTERNAL_ERROR: ncclResult_t = 3;
/// The result of wrong input by the user.
pub const INVALID_USAGE: ncclResult_t = 5;

/// The level of warnings (`NCCL_LOG_WARN`).
pub const WARN: ncclDebugLogLevel = 2;
/// The level of information (`NCCL_LOG_INFO`).
pub const INFO: ncclDebugLogLevel = 3;

/// A structure of functions and constant texts, as a plugin exports it.
#[repr(transparent)]
pub struct Table<T>(T);

// SAFETY: nothing of a table is ever written, and its pointers are to what stays.
unsafe impl<T> Sync for Table<T> {}

impl<T> Table<T> {
    /// Returns the symbol of a structure, whose pointers have to be to functions and constants.
    pub const fn new(of: T) -> Self {
        Self(of)
    }
}

/// Writes a line to the log of the library that loaded the plugin; `subsystem` is one of
/// `NCCL_NET`, `NCCL_TUNING` and others. A text with a zero in it is left out.
pub fn say(
    log: ncclDebugLogger_t,
    (level, subsystem): (ncclDebugLogLevel, c_ulong),
    plugin: &CStr,
    text: &str,
) {
    if let Ok(text) = CString::new(text) {
        // SAFETY: the format takes one text.
        unsafe { log(level, subsystem, plugin.as_ptr(), 0, c"%s".as_ptr(), text.as_ptr()) };
    }
}
