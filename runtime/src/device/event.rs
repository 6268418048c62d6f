//! Events of both devices.

use super::object::{OnDevice, both, destroy, find};
use super::{Device, cuda, host};
use crate::error::{Error, Result};
use crate::fork;
use crate::handle::{Handles, Named};
use std::sync::Arc;

/// An event marks a position in a stream, to wait for and to measure time between.
pub type Event = OnDevice<Arc<host::event::Event>, cuda::event::Event>;

static EVENTS: Handles<host::event::Event> = Handles::new(3);

impl Event {
    /// Creates an event on the calling thread's device. Returns its handle.
    pub fn create() -> Result<usize> {
        fork::check()?;
        match super::current()? {
            Device::Host(_) => EVENTS.insert(Arc::default()),
            Device::Cuda(gpu) => Ok(cuda::event::Event::new(gpu)?.0 as usize),
        }
    }

    /// Looks an event up.
    pub fn of_handle(handle: usize, named: Named) -> Result<Self> {
        find(&EVENTS, handle, named)
    }

    /// Looks up the event of a call on a communicator of a device.
    pub fn of_call(device: Device, handle: usize, named: Named) -> Result<Self> {
        let event = Self::of_handle(handle, named)?;
        if matches!(event, Event::Host(_)) == device.is_host() {
            return Ok(event);
        }
        let (got, expected) = match device.is_host() {
            true => ("an event of CUDA", "an event from oxcclEventCreate on the host device"),
            false => ("an event of the host device", "one of CUDA: the communicator is on a GPU"),
        };
        Err(Error::argument(named.0, named.1, got, expected))
    }

    /// Destroys an event.
    pub fn destroy(handle: usize, named: Named) -> Result<()> {
        destroy(&EVENTS, handle, named, cuda::event::Event::destroy)
    }

    /// Returns whether the stream has reached the event's last record; true if there is no record.
    pub fn query(&self) -> Result<bool> {
        match self {
            Event::Host(event) => Ok(event.query()),
            Event::Cuda(event) => event.query(),
        }
    }

    /// Returns the time from `earlier` to this event in ms; `None` while a stream has not reached
    /// the last record of one of them. `named` is the name of this event's argument in errors.
    pub fn since_ms(self, earlier: Self, named: Named) -> Result<Option<f32>> {
        match both(earlier, self, named)? {
            OnDevice::Host((start, end)) => {
                Ok(end.since(&start).map(|time| time.as_secs_f32() * 1e3))
            }
            OnDevice::Cuda((start, end)) => end.since(start),
        }
    }
}
