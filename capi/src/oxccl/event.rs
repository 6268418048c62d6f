//! Events.

use super::types::{oxcclEvent_t, oxcclStream_t};
use crate::boundary::boundary;
use crate::nccl::types::ncclResult_t;
use crate::{convert, objects};
use oxccl_runtime::device::host::event::Event;
use oxccl_runtime::error::Error;
use std::sync::Arc;

/// Makes an event. `event`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclEventCreate(event: *mut oxcclEvent_t) -> ncclResult_t {
    boundary(|| {
        convert::place(event, "oxcclEventCreate", "event")?;
        let made = Arc::new(Event::default());
        // SAFETY: passed on from the caller.
        unsafe { objects::put(&objects::EVENTS, made, event, "oxcclEventCreate") }
    })
}

/// Ends an event. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclEventDestroy(event: oxcclEvent_t) -> ncclResult_t {
    boundary(|| objects::remove(&objects::EVENTS, event, "oxcclEventDestroy", "event").map(drop))
}

/// Marks the present end of a stream with an event. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclEventRecord(
    event: oxcclEvent_t,
    stream: oxcclStream_t,
) -> ncclResult_t {
    boundary(|| {
        let event = objects::get(&objects::EVENTS, event, "oxcclEventRecord", "event")?;
        objects::stream(stream, "oxcclEventRecord")?.record(&event)
    })
}

/// Tells whether the stream has come to the event's last mark: ncclSuccess, or ncclInProgress.
/// Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclEventQuery(event: oxcclEvent_t) -> ncclResult_t {
    boundary(|| {
        let done = objects::get(&objects::EVENTS, event, "oxcclEventQuery", "event")?.query();
        Ok(if done { ncclResult_t::ncclSuccess } else { ncclResult_t::ncclInProgress })
    })
}

/// The time from one event to another, in milliseconds; both must have come up.
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
        let start = objects::get(&objects::EVENTS, start, FUNCTION, "start")?;
        let end = objects::get(&objects::EVENTS, end, FUNCTION, "end")?;
        convert::place(ms, FUNCTION, "ms")?;
        let hint = "record and synchronise both first";
        let open = || Error::usage(format!("{FUNCTION}: an event has not come up"), hint);
        let time = end.since(&start).ok_or_else(open)?;
        // SAFETY: passed on from the caller.
        unsafe { convert::store(ms, time.as_secs_f32() * 1e3, FUNCTION, "ms") }
    })
}
