//! Versions, errors, logging.

use super::types::{oxcclErrorInfo_t, oxcclLogFn_t};
use crate::boundary::{self, TEXT_BYTES, boundary};
use crate::nccl::types::{ncclComm_t, ncclResult_t};
use crate::{convert, objects};
use oxccl_runtime::error::{Code, Error, Result, Site};
use oxccl_runtime::fork;
use oxccl_runtime::log::{self, Level};
use oxccl_runtime::recorder;
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::offset_of;

/// The version of OxCCL: major · 10000 + minor · 100 + patch.
pub const OXCCL_VERSION_CODE: c_int = 100;

const _: () = assert!(
    crate::nccl::info::code(env!("CARGO_PKG_VERSION")) == OXCCL_VERSION_CODE,
    "one of them is out of date"
);

/// The room for the text in the first version of `oxcclErrorInfo_t`.
const FIRST_TEXT_BYTES: usize = 512;

/// Copies a text into a field, cut to the field's size, with a zero byte at its end.
fn put_text(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    field.fill(0);
    for (to, from) in field[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

unsafe fn fill(
    info: *mut oxcclErrorInfo_t,
    error: Option<Error>,
    function: &'static str,
) -> Result<()> {
    if info.is_null() {
        return Err(Error::argument(function, "info", "null", "a structure to fill"));
    }
    // SAFETY: not null; every version of the structure begins with its size.
    let size = unsafe { (&raw const (*info).size).read() };
    // The text is the last field, and was shorter.
    let least = offset_of!(oxcclErrorInfo_t, text) + FIRST_TEXT_BYTES;
    if size < least {
        let expected = format!("at least {least} bytes");
        return Err(Error::argument(function, "info->size", size, expected));
    }
    let room = size.min(size_of::<oxcclErrorInfo_t>());
    let outside = Site { rank: -1, peer: -1, step: -1, ..Site::default() };
    let site = error.as_ref().and_then(Error::site).unwrap_or(&outside).clone();
    let code = error.as_ref().map_or(0, |e| e.code() as c_int);
    // Of two ranks whose calls differ, either one may be wrong.
    let is_known = code != Code::InvalidUsage as c_int;
    let mut filled = oxcclErrorInfo_t {
        size,
        code,
        rank: site.rank,
        peer: if is_known { site.peer } else { -1 },
        step: site.step,
        opSeq: site.op_seq,
        operation: [0; 32],
        text: [0; TEXT_BYTES],
    };
    put_text(&mut filled.operation, site.operation);
    let text = &mut filled.text[..room - offset_of!(oxcclErrorInfo_t, text)];
    put_text(text, &error.map_or_else(String::new, |e| e.to_string()));
    // SAFETY: writable for this size by the contract of the caller; plain data.
    unsafe { std::ptr::copy_nonoverlapping((&raw const filled).cast::<u8>(), info.cast(), room) };
    Ok(())
}

/// Returns the version of OxCCL, as OXCCL_VERSION_CODE. `version`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclGetVersion(version: *mut c_int) -> ncclResult_t {
    boundary(|| {
        // SAFETY: passed on from the caller.
        unsafe { convert::store(version, OXCCL_VERSION_CODE, "oxcclGetVersion", "version") }
    })
}

/// Describes the last error of this thread, else of the process; code 0 when there was none.
///
/// `info`: in its size, out the rest. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclLastError(info: *mut oxcclErrorInfo_t) -> ncclResult_t {
    boundary(|| {
        // SAFETY: passed on from the caller.
        unsafe { fill(info, boundary::last(), "oxcclLastError") }
    })
}

/// Describes the error with which a communicator failed; code 0 when it has not failed.
///
/// `info`: in its size, out the rest. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclCommLastError(
    comm: ncclComm_t,
    info: *mut oxcclErrorInfo_t,
) -> ncclResult_t {
    boundary(|| {
        let comm = objects::holder(comm, "oxcclCommLastError")?;
        // SAFETY: passed on from the caller.
        unsafe { fill(info, comm.state().err(), "oxcclCommLastError") }
    })
}

/// Returns the number of collectives so far that read or wrote the other ranks' buffers in place,
/// without a stage in between. Memory from ncclMemAlloc, ncclCommRegister and captures allow this.
///
/// `count`: out; of operations that have ended at least. Blocks: for an operation that is under way
/// on host memory, while it moves on.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclCommInPlace(comm: ncclComm_t, count: *mut u64) -> ncclResult_t {
    boundary(|| {
        let comm = objects::comm(comm, "oxcclCommInPlace")?;
        // SAFETY: passed on from the caller.
        unsafe { convert::store(count, comm.executor().in_place(), "oxcclCommInPlace", "count") }
    })
}

/// Returns the number of operations so far whose data was moved by copy engines of a GPU: large
/// ncclAllGather and ncclAlltoAll between windows, and ncclPutSignal, outside graphs. With
/// CTAPolicy NCCL_CTA_POLICY_ZERO, all of more than 512 KiB per rank.
///
/// `count`: out; of operations that have begun at least. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclCommByCopyEngines(comm: ncclComm_t, count: *mut u64) -> ncclResult_t {
    boundary(|| {
        let comm = objects::comm(comm, "oxcclCommByCopyEngines")?;
        // SAFETY: passed on from the caller.
        unsafe {
            convert::store(
                count,
                comm.executor().by_copy_engines(),
                "oxcclCommByCopyEngines",
                "count",
            )
        }
    })
}

/// Sets the log level (0 none to 5 trace, as NCCL_DEBUG) and the receiver of lines: `func(user,
/// level, text)`, without NCCL's prefix of the text, or NCCL_DEBUG_FILE when `func` is null.
/// Blocks until the function before has had its lines and has returned: `user` may go then. Within
/// it: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclSetLog(
    level: c_int,
    func: oxcclLogFn_t,
    user: *mut c_void,
) -> ncclResult_t {
    boundary(|| {
        // Another thread of the parent may have been handing a line over.
        fork::check()?;
        if !(0..=Level::Trace as c_int).contains(&level) {
            let expected = "0 (nothing) to 5 (everything), as NCCL_DEBUG";
            return Err(Error::argument("oxcclSetLog", "level", level, expected));
        }
        let user = user as usize;
        let callback = func.map(|func| -> log::Callback {
            Box::new(move |level, line| {
                let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
                // SAFETY: the user gave the function with this argument, for any thread.
                unsafe { func(user as *mut c_void, level, line.as_ptr()) };
            })
        });
        log::set(level, callback);
        Ok(())
    })
}

/// Sets the number by which later operations of this thread are known in `oxccl ras` and in what it
/// dumps, such as the number of a training step; 0 for none. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclTag(tag: u64) -> ncclResult_t {
    boundary(|| {
        recorder::set_tag(tag);
        Ok(())
    })
}
