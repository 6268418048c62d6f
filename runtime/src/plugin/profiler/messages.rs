//! The events of messages: `ProxyOp` for what an operation sends to a rank of another host over a
//! lane, or receives from it, and `ProxyStep` for each of those messages. Where a thread of its own
//! calls the transport, it tells of each message; else messages are looked at: those of host memory
//! by who moves them, those of GPUs by the thread of the profiler.

use super::functions::*;
use super::net_events::Parent;
use super::{Event, Instance, MASK, handle};
use crate::op::follow::{Carried, Follower, Lane, Look, Present, Watcher};
use oxccl_net::{Observation, Observer, UNTOLD};
use oxccl_plugin_abi::profiler::{ncclProfilerProxyOp_v1_t, ncclProfilerProxyStep_v1_t};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The kinds of events of messages, and of parts of them.
pub(super) const MESSAGES: c_int = PROXY_OP | PROXY_STEP | NET_PLUGIN;

/// The place of messages that are sent in what is told of both directions.
const SENT: usize = 0;

/// The states of a message from its beginning on, and once it has moved, by direction.
const BEGUN: [&[c_int]; 2] = [&[SEND_GPU_WAIT, SEND_PEER_WAIT], &[RECV_WAIT]];
const MOVED: [&[c_int]; 2] = [&[SEND_WAIT], &[RECV_FLUSH_WAIT, RECV_GPU_WAIT]];

fn asks() -> bool {
    MASK.load(Ordering::Relaxed) & MESSAGES != 0
}

/// The events of an operation. They end once neither its work nor any of its messages is under way.
pub(super) struct OpEvents {
    // End before the operation.
    queues: Mutex<Vec<Queue>>,
    pub(super) events: Vec<Event>,
    /// The peer and the direction of each send and receive; empty for collectives.
    transfers: Vec<(u32, bool)>,
}

/// The messages of an operation in one direction of a lane.
struct Queue {
    lane: Lane,
    sends: bool,
    /// Messages so far.
    steps: c_int,
    event: Event,
}

impl OpEvents {
    pub(super) fn new(events: Vec<Event>, transfers: Vec<(u32, bool)>) -> Self {
        Self { queues: Mutex::default(), events, transfers }
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Queue>> {
        self.queues.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Begins the next message in a direction of a lane; `None` if nobody asks for each of them.
    fn message(self: Arc<Self>, instance: &Arc<Instance>, lane: Lane, sends: bool) -> Option<Step> {
        let is_it = |queue: &&mut Queue| queue.lane == lane && queue.sends == sends;
        let next = |queue: &mut Queue| {
            queue.steps += 1;
            (queue.steps - 1, queue.event.handle)
        };
        let known = self.queues().iter_mut().find(is_it).map(next);
        let (step, parent) = known.unwrap_or_else(|| self.begin(instance, lane, sends));
        instance.wants(PROXY_STEP | NET_PLUGIN).then(|| {
            let body = ncclProfilerProxyStep_v1_t { step };
            let event = instance.begin(parent, Body::ProxyStep(body));
            Step { event, _operation: self }
        })
    }

    /// Begins the messages in a direction of a lane, with the first one. Returns its number and the
    /// event. The lock is not held meanwhile, as the plugin may not return.
    fn begin(&self, instance: &Arc<Instance>, lane: Lane, sends: bool) -> (c_int, *mut c_void) {
        let body = ncclProfilerProxyOp_v1_t {
            pid: std::process::id() as c_int,
            channelId: lane.number as u8,
            peer: lane.peer as c_int,
            // Not known beforehand.
            nSteps: 0,
            chunkSize: lane.slot_bytes as c_int,
            isSend: sends.into(),
        };
        let of = (lane.peer, sends);
        let at = self.transfers.iter().position(|transfer| *transfer == of);
        let parent = handle(self.events.get(at.unwrap_or(0)));
        let event = instance.begin(parent, Body::ProxyOp(body));
        if instance.plugin.functions.version >= 4 {
            event.record(PROXY_OP_IN_PROGRESS, 0);
        }
        let begun = (0, event.handle);
        self.queues().push(Queue { lane, sends, steps: 1, event });
        begun
    }
}

/// A message under way.
struct Step {
    // Ends before the operation.
    event: Event,
    _operation: Arc<OpEvents>,
}

impl Step {
    fn enter(&self, states: &[c_int], bytes: usize) {
        let version = self.event.instance.plugin.functions.version;
        let known = |state: &&c_int| version >= 4 || **state != SEND_PEER_WAIT;
        states.iter().filter(known).for_each(|state| self.event.record(*state, bytes as u64));
    }
}

/// The operations of a communicator that may have messages, the oldest first, with their numbers
/// among those of the rank.
#[derive(Default)]
pub(super) struct Numbered(Mutex<VecDeque<(u64, Weak<OpEvents>)>>);

impl Numbered {
    fn known(&self) -> MutexGuard<'_, VecDeque<(u64, Weak<OpEvents>)>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds the latest operation.
    pub(super) fn add(&self, number: u64, events: &Arc<OpEvents>) {
        let mut known = self.known();
        while known.front().is_some_and(|(_, events)| events.strong_count() == 0) {
            known.pop_front();
        }
        // One that was refused has left its number to this one.
        while known.back().is_some_and(|(of, _)| *of >= number) {
            known.pop_back();
        }
        known.push_back((number, Arc::downgrade(events)));
    }

    /// Returns whether an operation has a higher number than all that were added.
    fn is_to_come(&self, number: u64) -> bool {
        self.known().back().is_none_or(|(of, _)| *of < number)
    }

    /// Returns the operation with a number, unless its events have ended.
    fn find(&self, number: u64) -> Option<Arc<OpEvents>> {
        let known = self.known();
        let at = known.partition_point(|(of, _)| *of < number);
        let (of, events) = known.get(at)?;
        if *of == number { events.upgrade() } else { None }
    }
}

/// Who has the messages of a communicator followed.
pub(super) struct Messages(pub(super) Weak<Instance>);

impl Messages {
    fn followed(&self, lane: Lane) -> Followed {
        let (instance, last, open) = (self.0.clone(), Some(Default::default()), Default::default());
        Followed { instance, lane, last, open }
    }
}

impl Watcher for Messages {
    fn asks(&self) -> bool {
        asks()
    }

    fn follow(&self, lane: Lane) -> Box<dyn Follower> {
        Box::new(self.followed(lane))
    }

    fn look_at(&self, lane: Lane, look: Look) {
        if let Some(instance) = self.0.upgrade() {
            instance.looked_at().push((self.followed(lane), look));
        }
    }

    fn observe(&self, lane: Lane, sends: bool, present: Present) -> Arc<dyn Observer> {
        Arc::new(Observed { instance: self.0.clone(), lane, sends, present })
    }
}

/// A direction of a lane whose messages a thread tells of that calls its transport.
struct Observed {
    instance: Weak<Instance>,
    lane: Lane,
    sends: bool,
    present: Present,
}

impl Observer for Observed {
    fn message(&self) -> Option<Box<dyn Observation>> {
        if !asks() {
            return None;
        }
        let instance = self.instance.upgrade()?;
        let operation = instance.numbered.find(self.present.get()?)?;
        let (lane, sends, step, parent) = (self.lane, self.sends, None, None);
        Some(Box::new(Message { parent, step, lane, sends, instance, operation }))
    }
}

/// A message of which the thread tells that calls its transport.
struct Message {
    // Ends before the step.
    parent: Option<Parent>,
    step: Option<Step>,
    lane: Lane,
    sends: bool,
    instance: Arc<Instance>,
    operation: Arc<OpEvents>,
}

impl Message {
    fn enter(&self, states: [&[c_int]; 2], bytes: usize) {
        let states = states[usize::from(!self.sends)];
        self.step.iter().for_each(|step| step.enter(states, bytes));
    }
}

impl Observation for Message {
    fn begin(&mut self) -> oxccl_net::Event {
        let operation = self.operation.clone();
        self.step = operation.message(&self.instance, self.lane, self.sends);
        self.enter(BEGUN, 0);
        let step = self.step.iter().find(|_| self.instance.wants(NET_PLUGIN));
        self.parent = step.map(|step| Parent::new(&self.instance, step.event.handle));
        self.parent.as_ref().map(Parent::event).unwrap_or_default()
    }

    fn moved(&mut self, len: usize) {
        let of_data = len.saturating_sub(self.lane.header_bytes);
        self.enter(MOVED, if len == UNTOLD { 0 } else { of_data });
    }
}

/// A lane whose messages are followed.
pub(super) struct Followed {
    instance: Weak<Instance>,
    lane: Lane,
    /// How far the messages had come; `None` if nobody asked.
    last: Option<[Carried; 2]>,
    /// The messages under way with their numbers, the oldest first, by direction.
    open: [VecDeque<(u64, Option<Step>)>; 2],
}

impl Followed {
    /// Notes how far the messages have come; returns whether they have come further.
    pub(super) fn has_noted(&mut self, look: &mut Look) -> bool {
        let before = self.last;
        self.note(look);
        self.last != before
    }

    /// Returns whether messages are under way of which the end was not seen.
    pub(super) fn is_open(&self) -> bool {
        self.open.iter().any(|open| !open.is_empty())
    }

    /// Reports what became of the messages in a direction from one look to the next one. Returns
    /// how far they had come as far as that was reported: kernels may be ahead of those who report
    /// their operations.
    fn compare(
        &mut self,
        instance: &Arc<Instance>,
        direction: usize,
        (last, now): (&Carried, Carried),
    ) -> Carried {
        let open = &mut self.open[direction];
        let mut now = now;
        for number in last.asked.max(now.first_known())..now.asked {
            let operation = now.operation(number);
            let is_to_come = |operation| now.is_ahead() && instance.numbered.is_to_come(operation);
            if operation.is_some_and(is_to_come) {
                now = now.up_to(number);
                break;
            }
            let operation = operation.and_then(|number| instance.numbered.find(number));
            let step = operation.and_then(|o| o.message(instance, self.lane, direction == SENT));
            step.iter().for_each(|step| step.enter(BEGUN[direction], 0));
            open.push_back((number, step));
        }
        let moved = last.moved..now.moved;
        for (number, step) in open.iter().filter(|(number, _)| moved.contains(number)) {
            step.iter().for_each(|step| step.enter(MOVED[direction], now.bytes_of(*number)));
        }
        while open.front().is_some_and(|(number, _)| *number < now.over) {
            open.pop_front();
        }
        now
    }
}

impl Follower for Followed {
    fn note(&mut self, look: &mut dyn FnMut() -> [Carried; 2]) {
        if !asks() {
            if self.last.take().is_some() {
                self.end();
            }
            return;
        }
        let Some(instance) = self.instance.upgrade() else { return };
        let mut now = look();
        for (direction, last) in self.last.into_iter().flatten().enumerate() {
            now[direction] = self.compare(&instance, direction, (&last, now[direction]));
        }
        self.last = Some(now);
    }

    fn end(&mut self) {
        self.open.iter_mut().for_each(VecDeque::clear);
    }

    fn pass(&mut self) {
        self.last = None;
    }
}
