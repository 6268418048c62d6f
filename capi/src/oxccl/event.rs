//! Events.

use super::types::{oxcclEvent_t, oxcclStream_t};
use crate::boundary::boundary;
use crate::nccl::types::ncclResult_t;
use crate::{convert, objects};
use oxccl_runtime::device::Event;
use oxccl_runtime::error::Error;

/// Makes an event of the calling thread's device. `event`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclEventCreate(event: *mut oxcclEvent_t) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclEventCreate";
        convert::place(event, FUNCTION, "event")?;
        // SAFETY: passed on from the caller.
        unsafe { convert::store(event, Event::create()? as oxcclEvent_t, FUNCTION, "event") }
    })
}

/// Destroys an event. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclEventDestroy(event: oxcclEvent_t) -> ncclResult_t {
    boundary(|| Event::destroy(event as usize, ("oxcclEventDestroy", "event")))
}

/// Records an event at the present end of a stream. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclEventRecord(
    event: oxcclEvent_t,
    stream: oxcclStream_t,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclEventRecord";
        let event = Event::of_handle(event as usize, (FUNCTION, "event"))?;
        objects::stream(stream, FUNCTION)?.record(event, FUNCTION)
    })
}

/// Returns ncclSuccess when the stream has reached the last record of the event, else
/// ncclInProgress. Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclEventQuery(event: oxcclEvent_t) -> ncclResult_t {
    boundary(|| {
        let done = Event::of_handle(event as usize, ("oxcclEventQuery", "event"))?.query()?;
        Ok(if done { ncclResult_t::ncclSuccess } else { ncclResult_t::ncclInProgress })
    })
}

/// Returns the time from one event to another, in milliseconds; both must be complete.
///
/// `ms`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclEventElapsedTime(
    ms: *mut f32,
    start: oxcclEvent_t,
    end: oxcclEvent_t,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclEventElapsedTime";
        let start = Event::of_handle(start as usize, (FUNCTION, "start"))?;
        let end = Event::of_handle(end as usize, (FUNCTION, "end"))?;
        convert::place(ms, FUNCTION, "ms")?;
        let hint = "record and synchronise both first";
        let open = || Error::usage(format!("{FUNCTION}: an event has not come up"), hint);
        let time = end.since_ms(start, (FUNCTION, "end"))?;
        // SAFETY: passed on from the caller.
        unsafe { convert::store(ms, time.ok_or_else(open)?, FUNCTION, "ms") }
    })
}
