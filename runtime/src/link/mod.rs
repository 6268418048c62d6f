//! Links between ranks. *Direct*: through memory that both ranks map. *Message*: over a network.

pub mod control;
pub mod direct;
mod lanes;
pub mod message;
pub mod notice;

use crate::error::Result;
use crate::op::descriptor::{Descriptor, Label};
use crate::op::follow::Carried;
pub use lanes::{Lanes, Observe};
use std::sync::Arc;
use std::time::Instant;

/// The most bytes of a usual message. Those of large collectives between hosts are larger, as far
/// as slots have room.
pub const MESSAGE_BYTES: usize = 64 << 10;

/// The bytes of all slots of a rank whose peers are on hosts of their own, in each lane.
const NETWORK_BYTES: usize = 16 << 20;

/// Returns the bytes of an edge's slot in a communicator of `nranks` ranks on several hosts. With
/// few peers a slot is large: four messages on their way should fill a network of 100 Gbit/s with
/// round trips of 50 µs (625 KB), or one of 400 Mbit/s with 40 ms (2 MB).
pub fn network_slot_bytes(nranks: u32) -> usize {
    const LEAST: usize = 8 << 10;
    const MOST: usize = 512 << 10;
    let slots = 2 * EDGE_SLOTS * nranks.saturating_sub(1).max(1) as usize;
    1 << (NETWORK_BYTES / slots).clamp(LEAST, MOST).ilog2()
}

/// Returns the bytes of an edge's slot in a communicator of `nranks` ranks on one host. Slots
/// shrink with more ranks, as the number of edges is quadratic in the ranks of a host.
pub fn edge_slot_bytes(nranks: u32) -> usize {
    match nranks {
        0..=8 => 64 << 10,
        9..=16 => 32 << 10,
        17..=32 => 16 << 10,
        _ => 8 << 10,
    }
}

/// Messages that an edge holds before its sender has to wait.
pub const EDGE_SLOTS: usize = 4;

/// The oldest message of an edge.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The bytes of the message.
    pub data: *const u8,
    /// The number of bytes; `None` where the transport does not tell it.
    pub len: Option<usize>,
    /// The tag of the operation that sent it.
    pub tag: u32,
    /// The operation that sent the message, if the message says so. Collectives of ranks of one
    /// host can be looked up instead.
    pub descriptor: Option<Descriptor>,
    /// The number of collectives that the sender had begun (its last 32 bits), if the message says
    /// so.
    pub begun: Option<u32>,
}

/// Where the data of a message are that was received.
#[derive(Clone, Copy, Debug)]
pub enum Received {
    /// Where they were wanted; the message is released.
    InPlace,
    /// Here, until the message is released.
    Slot(*const u8),
}

/// Both directions of the link to one peer: bounded queues of slots.
pub enum Edge {
    /// The edge of a rank to itself.
    Own,
    /// An edge through the shared segment.
    Direct(direct::DirectEdge),
    /// An edge through the network.
    Message(Lanes),
    /// An edge through the network that is connected when it is used first.
    Unconnected(Arc<message::Unconnected>),
}

impl Edge {
    /// Takes over the connections that somebody has made.
    fn connect(&mut self) {
        if let Edge::Unconnected(edge) = self
            && let Some(made) = edge.take()
        {
            *self = Edge::Message(made);
        }
    }

    /// Asks for connections, and takes those that have been made.
    fn use_connections(&mut self) {
        if let Edge::Unconnected(edge) = self {
            edge.ask();
            self.connect();
        }
    }

    /// Sends a message of the operation `label`; the sender has begun `begun` collectives. Returns
    /// false, and sends nothing, if the peer has not taken enough messages yet. The data may be
    /// written again at once.
    ///
    /// # Safety
    /// `data` is readable for `len` bytes, which fit a slot.
    pub unsafe fn send(
        &mut self,
        data: *const u8,
        len: usize,
        label: &Label,
        begun: u64,
    ) -> Result<bool> {
        self.use_connections();
        match self {
            Edge::Own | Edge::Unconnected(_) => Ok(false),
            Edge::Direct(edge) => {
                let Some(slot) = edge.reserve() else { return Ok(false) };
                // SAFETY: readable by the contract; the slot is this rank's now.
                unsafe { edge.handover().copy(slot, data, len) };
                edge.commit(len, label.tag, label.descriptor.to_words().1);
                Ok(true)
            }
            // SAFETY: passed on from the caller.
            Edge::Message(lanes) => unsafe {
                lanes.outgoing().send(data, len, label.descriptor, begun as u32)
            },
        }
    }

    /// Sends a message to a switch as [`send`](Self::send) does; its result will be received to
    /// `to`. If both places lie in registered memory, the network reads and writes them itself.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, which fit a slot. Both are nobody
    /// else's until the result is received, or the edge has ended.
    pub unsafe fn reduce(
        &mut self,
        (from, to): (*const u8, *mut u8),
        len: usize,
        label: &Label,
        begun: u64,
    ) -> Result<bool> {
        // SAFETY: passed on from the caller.
        unsafe {
            match self {
                Edge::Message(lanes) => {
                    lanes.outgoing().reduce((from, to), len, label.descriptor, begun as u32)
                }
                _ => self.send(from, len, label, begun),
            }
        }
    }

    /// Returns the oldest message that was not released; `None` if there is none.
    pub fn peek(&mut self) -> Result<Option<Message>> {
        self.use_connections();
        match self {
            Edge::Own | Edge::Unconnected(_) => Ok(None),
            Edge::Direct(edge) => Ok(edge.peek()),
            Edge::Message(lanes) => {
                lanes.incoming().await_next();
                lanes.incoming().peek()
            }
        }
    }

    /// Receives the oldest message; `None` if it is not there yet, and the same has to be received
    /// then. `expect` says whether it is what is expected, before anything is written.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and `expect` takes no message of another size.
    pub unsafe fn receive(
        &mut self,
        to: *mut u8,
        len: usize,
        expect: impl FnOnce(&Message) -> Result<()>,
    ) -> Result<Option<Received>> {
        self.use_connections();
        if let Edge::Message(lanes) = self {
            lanes.incoming().await_next();
            // SAFETY: passed on from the caller.
            return unsafe { lanes.incoming().receive(to, len, expect) };
        }
        let Some(message) = self.peek()? else { return Ok(None) };
        expect(&message).map(|()| Some(Received::Slot(message.data)))
    }

    /// Returns the oldest message as [`peek`](Self::peek) does, for those that do not wait for one.
    pub fn look(&mut self) -> Result<Option<Message>> {
        self.connect();
        match self {
            Edge::Message(lanes) => lanes.incoming().look(),
            Edge::Unconnected(_) => Ok(None),
            other => other.peek(),
        }
    }

    /// Returns whether the peer is known to be unable to send more until this rank takes a message.
    pub fn is_full(&self) -> bool {
        matches!(self, Edge::Direct(edge) if edge.is_full())
    }

    /// Gives back the slot of the oldest message.
    pub fn release(&mut self) {
        match self {
            Edge::Own | Edge::Unconnected(_) => {}
            Edge::Direct(edge) => edge.release(),
            Edge::Message(lanes) => lanes.incoming().release(),
        }
    }

    /// Returns whether everything sent has left this process's memory.
    pub fn flushed(&mut self) -> Result<bool> {
        match self {
            Edge::Message(lanes) => lanes.flushed(),
            Edge::Own | Edge::Direct(_) | Edge::Unconnected(_) => Ok(true),
        }
    }

    /// Waits until everything that has come has left the transport, too; only edges of messages
    /// have one.
    pub fn finish(&mut self, until: Instant) {
        if let Edge::Message(lanes) = self {
            lanes.all().iter_mut().for_each(|lane| lane.finish(until));
        }
    }

    /// Returns whether the peer has taken everything sent. Over a network the peer reports this:
    /// `told` is the number of messages that it has taken.
    pub fn is_taken(&mut self, told: u64) -> bool {
        match self {
            Edge::Own | Edge::Unconnected(_) => true,
            Edge::Direct(edge) => edge.is_taken(),
            Edge::Message(lanes) => told >= lanes.sent(),
        }
    }

    /// Has the messages over a network observed, where the transport can.
    pub fn observe(&mut self, observe: Observe) {
        match self {
            Edge::Message(lanes) => lanes.observe(&observe),
            Edge::Unconnected(edge) => edge.observe(observe),
            Edge::Own | Edge::Direct(_) => {}
        }
    }

    /// Returns the number of lanes over a network whose messages nobody observes, 0 while there are
    /// none.
    pub fn unobserved_lanes(&self) -> u32 {
        match self {
            Edge::Message(lanes) => lanes.unobserved(),
            Edge::Own | Edge::Direct(_) | Edge::Unconnected(_) => 0,
        }
    }

    /// Returns how far the messages over a lane have come: those sent, and those received.
    pub fn carried(&self, lane: u32) -> [Carried; 2] {
        match self {
            Edge::Message(lanes) => lanes.carried(lane),
            Edge::Own | Edge::Direct(_) | Edge::Unconnected(_) => Default::default(),
        }
    }

    /// Returns the number of messages over a network so far: (sent, taken).
    pub fn messages(&self) -> (u64, u64) {
        match self {
            Edge::Message(lanes) => (lanes.sent(), lanes.taken()),
            Edge::Own | Edge::Direct(_) | Edge::Unconnected(_) => (0, 0),
        }
    }

    /// Returns the bytes of slots that are not in the shared segment.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Edge::Message(lanes) => lanes.memory_bytes(),
            Edge::Own | Edge::Direct(_) | Edge::Unconnected(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_between_few_hosts_are_large_and_all_of_a_rank_stay_small() {
        let kib = [2, 5, 6, 9, 17, 33, 256, u32::MAX].map(|n| network_slot_bytes(n) >> 10);
        assert_eq!(kib, [512, 512, 256, 256, 128, 64, 8, 8]);
        for nranks in 2..=257 {
            let slot = network_slot_bytes(nranks);
            assert!(slot >= edge_slot_bytes(nranks), "{nranks}");
            assert!(slot * 2 * EDGE_SLOTS * (nranks as usize - 1) <= NETWORK_BYTES, "{nranks}");
        }
    }
}
