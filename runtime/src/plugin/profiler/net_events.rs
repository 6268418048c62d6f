//! The events of network plugins (`NetPlugin`), which are parts of messages. Plugins tell of them
//! by a callback. They know messages and events by numbers, so that dead ones are found out.

use super::Instance;
use super::functions::*;
use oxccl_net::Event;
use oxccl_plugin_abi::ncclResult_t;
use oxccl_plugin_abi::profiler::ncclProfilerNetPlugin_v3_t;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// What network plugins tell of an event (`ncclProfilerNetEventStart` and so on); whatever follows
/// is an update and the end.
const START: c_int = 0;
const STOP: c_int = 1;
const UPDATE: c_int = 2;

/// An event of a profiler.
#[derive(Clone)]
struct Known {
    instance: Weak<Instance>,
    /// Null if the profiler has no use for it.
    handle: *mut c_void,
}

// SAFETY: the handle is the profiler's, which takes it from any thread.
unsafe impl Send for Known {}

impl Known {
    /// Ends the event, unless the profiler has ended.
    fn stop(&self) {
        self.instance.upgrade().into_iter().for_each(|of| of.stop(self.handle));
    }
}

/// What network plugins know, by number.
struct Numbers {
    latest: usize,
    messages: BTreeMap<usize, Known>,
    /// The events, each with the number of its message.
    events: BTreeMap<usize, (usize, Known)>,
}

static NUMBERS: Mutex<Numbers> =
    Mutex::new(Numbers { latest: 0, messages: BTreeMap::new(), events: BTreeMap::new() });

/// Returns the numbers. Nobody calls a plugin with the lock.
fn numbers() -> MutexGuard<'static, Numbers> {
    NUMBERS.lock().unwrap_or_else(|e| e.into_inner())
}

impl Numbers {
    /// Returns a new number, which is not 0.
    fn next(&mut self) -> usize {
        self.latest += 1;
        self.latest
    }
}

/// A message whose parts network plugins may tell of, until this is dropped: then those parts end
/// that they have not ended.
pub(super) struct Parent(Event);

impl Parent {
    /// Gives the event of a message a number.
    pub(super) fn new(instance: &Arc<Instance>, handle: *mut c_void) -> Self {
        let instance = Arc::downgrade(instance);
        let mut numbers = numbers();
        let number = numbers.next();
        numbers.messages.insert(number, Known { instance, handle });
        Self(Event(number))
    }

    /// Returns the number.
    pub(super) fn event(&self) -> Event {
        self.0
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let mut numbers = numbers();
        numbers.messages.remove(&self.0.0);
        let mut open = Vec::new();
        numbers.events.retain(|_, (of, event)| {
            let is_other = *of != self.0.0;
            open.extend((!is_other).then(|| event.clone()));
            is_other
        });
        drop(numbers);
        open.iter().for_each(Known::stop);
    }
}

/// Begins an event as a part of a message; returns its number, or 0 if nobody asks for it.
fn start(message: usize, plugin: i64, data: *mut c_void) -> usize {
    let Some(parent) = numbers().messages.get(&message).cloned() else { return 0 };
    let instance = parent.instance.upgrade().filter(|instance| instance.wants(NET_PLUGIN));
    let Some(instance) = instance else { return 0 };
    let body = Body::NetPlugin(ncclProfilerNetPlugin_v3_t { id: plugin, data });
    let handle = instance.start_event(parent.handle, body);
    if handle.is_null() {
        return 0;
    }
    let mut numbers = numbers();
    let number = numbers.next();
    numbers.events.insert(number, (message, Known { instance: parent.instance, handle }));
    number
}

fn update(event: usize, data: *mut c_void) {
    let known = numbers().events.get(&event).map(|(_, known)| known.clone());
    let Some(Known { instance, handle }) = known else { return };
    // The first version with this state is 4.
    let instance = instance.upgrade().filter(|of| of.plugin.functions.version >= 4);
    let data = data.expose_provenance() as u64;
    instance.into_iter().for_each(|of| of.record(handle, NET_PLUGIN_UPDATE, data));
}

fn stop(event: usize) {
    let known = numbers().events.remove(&event);
    known.into_iter().for_each(|(_, known)| known.stop());
}

/// Takes what a network plugin tells of an event (`ncclProfilerCallback_t`), in any of its threads.
/// `at` is the place of the event's handle, and `message` what came with the message.
pub(in crate::plugin) unsafe extern "C" fn net_event(
    at: *mut *mut c_void,
    kind: c_int,
    message: *mut c_void,
    plugin: i64,
    data: *mut c_void,
) -> ncclResult_t {
    if at.is_null() {
        return 0;
    }
    if kind == START {
        let event = start(message.addr(), plugin, data);
        // SAFETY: a place for a handle, by the interface.
        unsafe { at.write(event as *mut c_void) };
        return 0;
    }
    // SAFETY: as above; it was written when the event began.
    let event = unsafe { at.read() }.addr();
    if kind != STOP {
        update(event, data);
    }
    if kind != UPDATE {
        stop(event);
    }
    0
}
