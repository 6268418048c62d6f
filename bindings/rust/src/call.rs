//! Calls of C: their results as errors, and the device on which things are made.

use crate::error::{Code, Error, Result};
use capi::nccl::types::{ncclComm_t, ncclResult_t};
use capi::oxccl::device::{oxcclDeviceGet, oxcclDeviceSet};
use capi::oxccl::info::{oxcclCommLastError, oxcclLastError};
use capi::oxccl::types::{oxcclDeviceKind_t, oxcclErrorInfo_t};
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// Converts the result of a call; an error is the last one of this thread.
pub(crate) fn check(code: ncclResult_t) -> Result<()> {
    // A communicator that the environment makes non-blocking answers that it is at work.
    if matches!(code, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) {
        return Ok(());
    }
    let mut info = empty();
    // SAFETY: a structure that says its size.
    unsafe { oxcclLastError(&mut info) };
    Err(error(code, &info))
}

/// Converts the result of a question; false while something is at work.
pub(crate) fn done(code: ncclResult_t) -> Result<bool> {
    check(code)?;
    Ok(code != ncclResult_t::ncclInProgress)
}

/// Returns the error with which a communicator failed.
pub(crate) fn failure(comm: ncclComm_t, code: ncclResult_t) -> Error {
    let mut info = empty();
    // SAFETY: any handle may be passed, and the structure says its size.
    unsafe { oxcclCommLastError(comm, &mut info) };
    error(code, &info)
}

fn empty() -> oxcclErrorInfo_t {
    oxcclErrorInfo_t {
        size: size_of::<oxcclErrorInfo_t>(),
        code: 0,
        rank: -1,
        peer: -1,
        step: -1,
        opSeq: 0,
        operation: [0; 32],
        text: [0; 2048],
    }
}

fn error(code: ncclResult_t, info: &oxcclErrorInfo_t) -> Error {
    let code = match code {
        ncclResult_t::ncclUnhandledCudaError => Code::Cuda,
        ncclResult_t::ncclSystemError => Code::System,
        ncclResult_t::ncclInvalidArgument => Code::InvalidArgument,
        ncclResult_t::ncclInvalidUsage => Code::InvalidUsage,
        ncclResult_t::ncclRemoteError => Code::Remote,
        ncclResult_t::ncclTimeout => Code::Timeout,
        _ => Code::Internal,
    };
    let text: Vec<u8> = info.text.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    let text = String::from_utf8_lossy(&text).into_owned();
    let rank = |number: c_int| usize::try_from(number).ok();
    Error { code, rank: rank(info.rank), peer: rank(info.peer), text }
}

/// Returns a number for C. One that is too large becomes the largest, which is too large as well.
pub(crate) fn number(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// A device: its kind, and its number among those of the kind.
pub(crate) type Device = (oxcclDeviceKind_t, c_int);

/// The host, in whose memory slices lie, also where there are GPUs.
pub(crate) const HOST: Device = (oxcclDeviceKind_t::oxcclDeviceHost, 0);

/// Makes something on a device.
pub(crate) fn on_device<T: Send>(
    device: Device,
    make: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let mut current = HOST;
    // SAFETY: places for both results.
    check(unsafe { oxcclDeviceGet(&mut current.0, &mut current.1) })?;
    if current == device {
        return make();
    }
    // Devices belong to threads, and this thread's to what else it does.
    let on_thread = || {
        // SAFETY: any numbers may be passed.
        check(unsafe { oxcclDeviceSet(MaybeUninit::new(device.0), device.1) })?;
        make()
    };
    let made = std::thread::scope(|scope| scope.spawn(on_thread).join());
    made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
