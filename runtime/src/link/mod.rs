//! Links: where bytes go between ranks. *Direct*: memory that both map. *Message*: a network.

pub mod control;
pub mod direct;
pub mod message;
pub mod notice;

use crate::error::Result;
use crate::op::descriptor::{Descriptor, Label};

/// Returns the bytes of an edge's slot in a communicator of so many ranks: edges are quadratic in
/// the ranks of a host.
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
    /// Its bytes.
    pub data: *const u8,
    /// How many.
    pub len: usize,
    /// The tag of the operation that sent it.
    pub tag: u32,
    /// That operation, where the message says so; collectives of ranks of one host can be looked
    /// up.
    pub descriptor: Option<Descriptor>,
    /// How many collectives its sender had begun, the last 32 bits of it, where the message says
    /// so.
    pub begun: Option<u32>,
}

/// Both directions of the link to one peer: bounded queues of slots.
pub enum Edge {
    /// The rank itself.
    Own,
    /// Through the shared segment.
    Direct(direct::DirectEdge),
    /// Through the network.
    Message(Box<message::MessageEdge>),
}

impl Edge {
    /// A free slot to fill, or None when the peer has not taken enough messages yet.
    pub fn reserve(&mut self) -> Result<Option<*mut u8>> {
        match self {
            Edge::Own => Ok(None),
            Edge::Direct(edge) => Ok(edge.reserve()),
            Edge::Message(edge) => edge.reserve(),
        }
    }

    /// Sends the slot that was reserved last, with its first `len` bytes, for the operation `label`
    /// of a rank that has begun so many collectives.
    pub fn commit(&mut self, len: usize, label: &Label, begun: u64) -> Result<()> {
        match self {
            Edge::Own => Ok(()),
            Edge::Direct(edge) => {
                edge.commit(len, label.tag, label.descriptor.to_words().1);
                Ok(())
            }
            Edge::Message(edge) => edge.commit(len, label.descriptor, begun as u32),
        }
    }

    /// The oldest message that was not released, or None when there is none.
    pub fn peek(&mut self) -> Result<Option<Message>> {
        match self {
            Edge::Own => Ok(None),
            Edge::Direct(edge) => Ok(edge.peek()),
            Edge::Message(edge) => edge.peek(),
        }
    }

    /// Whether the peer is known to be unable to send more until this rank takes a message.
    pub fn is_full(&self) -> bool {
        matches!(self, Edge::Direct(edge) if edge.is_full())
    }

    /// Gives the slot of the oldest message back.
    pub fn release(&mut self) -> Result<()> {
        match self {
            Edge::Own => Ok(()),
            Edge::Direct(edge) => {
                edge.release();
                Ok(())
            }
            Edge::Message(edge) => edge.release(),
        }
    }

    /// Whether everything sent has left this process's memory.
    pub fn flushed(&mut self) -> Result<bool> {
        match self {
            Edge::Message(edge) => edge.flushed(),
            Edge::Own | Edge::Direct(_) => Ok(true),
        }
    }

    /// Whether the peer has taken everything sent. Over a network it says so: `told` is how many
    /// messages it has taken.
    pub fn is_taken(&mut self, told: u64) -> bool {
        match self {
            Edge::Own => true,
            Edge::Direct(edge) => edge.is_taken(),
            Edge::Message(edge) => told >= edge.sent(),
        }
    }

    /// Messages over a network so far: (sent, taken).
    pub fn messages(&self) -> (u64, u64) {
        match self {
            Edge::Message(edge) => (edge.sent(), edge.taken()),
            Edge::Own | Edge::Direct(_) => (0, 0),
        }
    }

    /// Bytes of slots that are not in the shared segment.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Edge::Message(edge) => edge.memory_bytes(),
            Edge::Own | Edge::Direct(_) => 0,
        }
    }
}
