//! Streams.

use super::types::{oxcclEvent_t, oxcclHostFn_t, oxcclStream_t};
use crate::boundary::boundary;
use crate::nccl::types::ncclResult_t;
use crate::{convert, objects};
use oxccl_runtime::device::{Event, Stream};
use oxccl_runtime::error::Error;
use oxccl_runtime::group;
use std::ffi::c_void;

/// Makes a stream on the calling thread's device; on a GPU, the default stream does not wait for
/// it. `stream`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclStreamCreate(stream: *mut oxcclStream_t) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclStreamCreate";
        convert::place(stream, FUNCTION, "stream")?;
        // SAFETY: passed on from the caller.
        unsafe { convert::store(stream, Stream::create()? as oxcclStream_t, FUNCTION, "stream") }
    })
}

/// Destroys a stream; queued work still completes. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclStreamDestroy(stream: oxcclStream_t) -> ncclResult_t {
    boundary(|| Stream::destroy(stream as usize, "oxcclStreamDestroy"))
}

/// Returns ncclSuccess when a stream has done everything, else ncclInProgress. An asynchronous
/// error of its work is returned once. Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclStreamQuery(stream: oxcclStream_t) -> ncclResult_t {
    boundary(|| {
        let done = objects::stream(stream, "oxcclStreamQuery")?.query()?;
        Ok(if done { ncclResult_t::ncclSuccess } else { ncclResult_t::ncclInProgress })
    })
}

/// Waits until a stream has done everything, at most `timeoutNs` nanoseconds (−1: for ever);
/// ncclInProgress when time is over. An asynchronous error of its work is returned once. Blocks.
///
/// # Safety
/// Any handle may be passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclStreamSynchronize(
    stream: oxcclStream_t,
    timeoutNs: i64,
) -> ncclResult_t {
    boundary(|| {
        let stream = objects::stream(stream, "oxcclStreamSynchronize")?;
        let limit = convert::limit(timeoutNs, "oxcclStreamSynchronize")?;
        group::warn_of_wait("oxcclStreamSynchronize");
        let done = stream.synchronize(limit)?;
        Ok(if done { ncclResult_t::ncclSuccess } else { ncclResult_t::ncclInProgress })
    })
}

/// Makes the stream's later work wait for an event. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclStreamWaitEvent(
    stream: oxcclStream_t,
    event: oxcclEvent_t,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclStreamWaitEvent";
        let event = Event::of_handle(event as usize, (FUNCTION, "event"))?;
        objects::stream(stream, FUNCTION)?.wait_event(event, FUNCTION)
    })
}

/// Calls `func(arg)` on a thread of the library, or of CUDA, in the order of the stream. `func`
/// must not call functions of this library that block. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclStreamHostFunc(
    stream: oxcclStream_t,
    func: oxcclHostFn_t,
    arg: *mut c_void,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclStreamHostFunc";
        let function =
            func.ok_or_else(|| Error::argument(FUNCTION, "func", "null", "a function"))?;
        let stream = objects::stream(stream, FUNCTION)?;
        // SAFETY: passed on from the caller.
        unsafe { stream.call(function, arg) }
    })
}
