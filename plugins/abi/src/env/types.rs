//! Environment plugins, versions 1 and 2: they answer for the variables of the library.

use crate::{ncclDebugLogger_t, ncclResult_t};
use std::ffi::c_char;

/// The functions of an environment plugin, `ncclEnvPlugin_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclEnv_v2_t {
    /// The name.
    pub name: *const c_char,
    /// Comes first, with the version of NCCL whose interface the library has.
    pub init: Option<
        unsafe extern "C" fn(
            ncclMajor: u8,
            ncclMinor: u8,
            ncclPatch: u8,
            suffix: *const c_char,
            logFunction: ncclDebugLogger_t,
        ) -> ncclResult_t,
    >,
    /// Comes last, while the process exits; may be null.
    pub finalize: Option<unsafe extern "C" fn() -> ncclResult_t>,
    /// Returns the value of a variable, or null. The text is the plugin's, and is copied.
    pub getEnv: Option<unsafe extern "C" fn(name: *const c_char) -> *const c_char>,
}

/// The functions of an environment plugin, `ncclEnvPlugin_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclEnv_v1_t {
    /// The same as in version 2.
    pub name: *const c_char,
    /// The same as in version 2, without a logger.
    pub init: Option<
        unsafe extern "C" fn(
            ncclMajor: u8,
            ncclMinor: u8,
            ncclPatch: u8,
            suffix: *const c_char,
        ) -> ncclResult_t,
    >,
    /// The same as in version 2.
    pub finalize: Option<unsafe extern "C" fn() -> ncclResult_t>,
    /// The same as in version 2.
    pub getEnv: Option<unsafe extern "C" fn(name: *const c_char) -> *const c_char>,
}
