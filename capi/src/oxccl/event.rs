//! Events.

use super::types::{oxcclEvent_t, oxcclStream_t};
use crate::boundary::boundary;
use crate::nccl::types::ncclResult_t;
use crate::objects::On;
use crate::{convert, objects};
use oxccl_runtime::device::Device;
use oxccl_runtime::device::cuda::event::Event as CudaEvent;
use oxccl_runtime::device::host::event::Event;
use oxccl_runtime::error::Error;
use std::sync::Arc;

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
        unsafe {
            match objects::device()? {
                Device::Host(_) => {
                    objects::put(&objects::EVENTS, Arc::new(Event::default()), event, FUNCTION)
                }
                Device::Cuda(gpu) => {
                    convert::store(event, CudaEvent::new(gpu)?.0.cast(), FUNCTION, "event")
                }
            }
        }
    })
}

/// Ends an event. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclEventDestroy(event: oxcclEvent_t) -> ncclResult_t {
    boundary(|| match objects::take(&objects::EVENTS, event, "oxcclEventDestroy", "event")? {
        On::Host(_) => Ok(()),
        On::Cuda(event) => CudaEvent::destroy(event),
    })
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
        const FUNCTION: &str = "oxcclEventRecord";
        let event = objects::find(&objects::EVENTS, event, FUNCTION, "event")?;
        match objects::both(event, objects::stream(stream, FUNCTION)?, FUNCTION, "stream")? {
            On::Host((event, stream)) => stream.record(&event),
            On::Cuda((event, stream)) => stream.record(event),
        }
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
        let done = match objects::find(&objects::EVENTS, event, "oxcclEventQuery", "event")? {
            On::Host(event) => event.query(),
            On::Cuda(event) => CudaEvent::query(event)?,
        };
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
        let start = objects::find(&objects::EVENTS, start, FUNCTION, "start")?;
        let end = objects::find(&objects::EVENTS, end, FUNCTION, "end")?;
        convert::place(ms, FUNCTION, "ms")?;
        let hint = "record and synchronise both first";
        let open = || Error::usage(format!("{FUNCTION}: an event has not come up"), hint);
        let time = match objects::both(start, end, FUNCTION, "end")? {
            On::Host((start, end)) => end.since(&start).map(|time| time.as_secs_f32() * 1e3),
            On::Cuda((start, end)) => CudaEvent::since(end, start)?,
        };
        // SAFETY: passed on from the caller.
        unsafe { convert::store(ms, time.ok_or_else(open)?, FUNCTION, "ms") }
    })
}
