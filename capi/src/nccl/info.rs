//! Versions and error texts.

use super::types::{ncclComm_t, ncclResult_t};
use crate::boundary::{self, boundary};
use crate::{convert, objects};
use oxccl_runtime::NCCL_VERSION;
use oxccl_runtime::error::Result;
use oxccl_twin::twin;
use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

/// The version of NCCL whose interface this is: major · 10000 + minor · 100 + patch.
pub const NCCL_VERSION_CODE: c_int = 23203;

const _: () = assert!(code(NCCL_VERSION) == NCCL_VERSION_CODE, "one of them is out of date");

/// Returns the number of a version like 2.32.3, as the constants of versions have it.
pub(crate) const fn code(version: &str) -> c_int {
    let (text, mut at, mut code, mut part) = (version.as_bytes(), 0, 0, 0);
    while at < text.len() {
        match text[at] {
            b'.' => (code, part) = ((code + part) * 100, 0),
            digit => part = part * 10 + (digit - b'0') as c_int,
        }
        at += 1;
    }
    code + part
}

unsafe fn get_version(version: *mut c_int) -> Result<()> {
    // SAFETY: passed on from the caller.
    unsafe { convert::store(version, NCCL_VERSION_CODE, "ncclGetVersion", "version") }
}

fn error_string(result: MaybeUninit<ncclResult_t>) -> *const c_char {
    // SAFETY: C passed an initialised int; any int is a valid i32.
    let text: &CStr = match unsafe { result.as_ptr().cast::<i32>().read() } {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (ncclGetLastError tells which)",
        3 => c"internal error - please report this issue to the OxCCL developers",
        4 => c"invalid argument (ncclGetLastError tells which)",
        5 => c"invalid usage (ncclGetLastError tells why)",
        6 => c"remote process exited or there was a network error",
        7 => c"OxCCL operation in progress",
        8 => c"time-out",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// Returns the text of the last error, never null.
fn last_error(comm: ncclComm_t) -> *const c_char {
    let of_comm = objects::holder(comm, "ncclGetLastError").ok().and_then(|c| c.state().err());
    of_comm.or_else(boundary::last).map_or(c"".as_ptr(), boundary::remember)
}

/// Returns the version of the interface, as NCCL_VERSION_CODE. `version`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_version(version) })
}

/// Returns the meaning of a result code, a static text. Blocks: never.
///
/// # Safety
/// Any integer may be passed.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(result: MaybeUninit<ncclResult_t>) -> *const c_char {
    error_string(result)
}

/// Returns the text of the last error: of the communicator, if it has failed, else of this thread,
/// else of the process.
///
/// `comm`: a handle or null. The pointer stays valid until the calling thread ends; the thread's
/// next error, and its next call of this function, overwrite the text. It has at most 2047 bytes.
/// Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char {
    last_error(comm)
}
