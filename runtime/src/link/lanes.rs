//! The lanes of an edge over a network: connections that carry its messages in turn.

use super::message::MessageEdge;
use crate::error::Result;
use crate::op::follow::Carried;
use oxccl_net::Observer;
use std::sync::Arc;

/// The edges from and to one remote peer. Both ranks count the messages of each direction, so both
/// know which lane carries the next one.
pub struct Lanes {
    all: Vec<MessageEdge>,
    /// True if the transport tells of the messages.
    observed: bool,
}

/// A function that returns the observers of a lane: of the messages sent, and of those received.
pub type Observe = Box<dyn Fn(u32) -> [Arc<dyn Observer>; 2] + Send + Sync>;

impl From<MessageEdge> for Lanes {
    fn from(lane: MessageEdge) -> Self {
        Self::new(vec![lane])
    }
}

impl Lanes {
    /// Joins one or more lanes with a peer, which has them in the same order.
    pub fn new(lanes: Vec<MessageEdge>) -> Self {
        assert!(!lanes.is_empty(), "an edge without connections");
        Self { all: lanes, observed: false }
    }

    /// Has the messages from now on observed, where the transport can.
    pub(super) fn observe(&mut self, observe: &Observe) {
        let mut lanes = (0u32..).zip(&mut self.all);
        self.observed = lanes.all(|(number, lane)| lane.observe(observe(number)));
    }

    /// Returns the number of lanes whose messages nobody observes.
    pub(super) fn unobserved(&self) -> u32 {
        if self.observed { 0 } else { self.all.len() as u32 }
    }

    /// Returns the lane of the next message to the peer.
    pub(crate) fn outgoing(&mut self) -> &mut MessageEdge {
        let lane = self.sent() % self.all.len() as u64;
        &mut self.all[lane as usize]
    }

    /// Returns the lane of the oldest message from the peer that was not released.
    pub(super) fn incoming(&mut self) -> &mut MessageEdge {
        let lane = self.taken() % self.all.len() as u64;
        &mut self.all[lane as usize]
    }

    /// Returns all lanes.
    pub(super) fn all(&mut self) -> &mut [MessageEdge] {
        &mut self.all
    }

    /// Returns whether everything sent has left this process's memory.
    pub(super) fn flushed(&mut self) -> Result<bool> {
        self.all.iter_mut().try_fold(true, |all, lane| Ok(lane.flushed()? && all))
    }

    /// Returns the size of the memory of all lanes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.all.iter().map(MessageEdge::memory_bytes).sum()
    }

    /// Returns how far the messages over a lane have come: those sent, and those received.
    pub(super) fn carried(&self, lane: u32) -> [Carried; 2] {
        self.all.get(lane as usize).map(MessageEdge::carried).unwrap_or_default()
    }

    /// Returns the number of messages sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.all.iter().map(MessageEdge::sent).sum()
    }

    /// Returns the number of messages taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.all.iter().map(MessageEdge::taken).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::message::{Incoming, Outgoing};
    use crate::link::{EDGE_SLOTS, Edge};
    use crate::op::descriptor::{Descriptor, Label};
    use oxccl_net::{Connection, Receiver, Region, Request, Sender};
    use oxccl_plan::DataType;
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    /// A direction of a connection in memory, which holds its messages back while it is stopped.
    #[derive(Clone, Default)]
    struct Wire(Arc<Mutex<Inside>>);

    #[derive(Default)]
    struct Inside {
        stopped: bool,
        messages: VecDeque<Vec<u8>>,
        room: Option<*mut u8>,
    }

    // SAFETY: the pointer is followed by the test's thread alone.
    unsafe impl Send for Inside {}

    impl Connection for Wire {}

    impl Sender for Wire {
        unsafe fn isend(
            &mut self,
            data: *const u8,
            len: usize,
            _tag: u32,
            _region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            // SAFETY: readable by the contract.
            let bytes = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
            self.0.lock().unwrap().messages.push_back(bytes);
            Ok(Some(0))
        }

        fn test(&mut self, _request: Request) -> oxccl_net::Result<bool> {
            Ok(true)
        }
    }

    impl Receiver for Wire {
        unsafe fn irecv(
            &mut self,
            data: *mut u8,
            _capacity: usize,
            _tag: u32,
            _region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            self.0.lock().unwrap().room = Some(data);
            Ok(Some(0))
        }

        fn test(&mut self, _request: Request) -> oxccl_net::Result<Option<usize>> {
            let inside = &mut *self.0.lock().unwrap();
            if inside.stopped || inside.messages.is_empty() {
                return Ok(None);
            }
            let (Some(bytes), Some(to)) = (inside.messages.pop_front(), inside.room.take()) else {
                return Ok(None);
            };
            // SAFETY: a slot, which has room for every message of the test.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            Ok(Some(bytes.len()))
        }
    }

    #[test]
    fn lanes_carry_messages_in_turn_and_the_order_stays() {
        const LANES: usize = 3;
        let wires: [Wire; LANES] = Default::default();
        let end = |from: &Wire, to: &Wire| {
            let outgoing = Outgoing::new(Box::new(to.clone()), 0, 8);
            MessageEdge::new(outgoing, Incoming::new(Box::new(from.clone()), 1, 8))
        };
        let none = Wire::default();
        let to_peer: Vec<_> = wires.iter().map(|wire| end(&none, wire)).collect();
        let from_rank: Vec<_> = wires.iter().map(|wire| end(wire, &none)).collect();
        let [mut near, mut far] = [to_peer, from_rank].map(|l| Edge::Message(Lanes::new(l)));
        let label = Label::from(Descriptor::message(DataType::Int8, 1));
        let held = |lane: usize| wires[lane].0.lock().unwrap().messages.len();
        let number = (EDGE_SLOTS * LANES) as u8;
        for message in 0..number {
            // SAFETY: a byte.
            assert!(unsafe { near.send(&message, 1, &label, 0) }.unwrap());
        }
        assert_eq!([held(0), held(1), held(2)], [EDGE_SLOTS; LANES]);
        assert!(near.flushed().unwrap());
        for message in 0..number {
            let lane = usize::from(message) % LANES;
            // What the other lanes have brought waits for the message whose turn it is.
            wires[lane].0.lock().unwrap().stopped = true;
            assert!(far.peek().unwrap().is_none());
            wires[lane].0.lock().unwrap().stopped = false;
            let came = far.peek().unwrap().unwrap();
            // SAFETY: a byte, as long as the message is not released.
            assert_eq!((came.len, unsafe { *came.data }), (Some(1), message));
            far.release();
        }
        let all = u64::from(number);
        assert_eq!((near.messages(), far.messages()), ((all, 0), (0, all)));
        assert!(!near.is_taken(all - 1) && near.is_taken(all));
    }
}
