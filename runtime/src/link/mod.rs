//! Links between ranks. *Direct*: through memory that both ranks map. *Message*: over a network.

pub mod control;
pub mod direct;
pub mod message;
pub mod notice;

use crate::error::Result;
use crate::op::descriptor::{Descriptor, Label};
use std::sync::Arc;

/// Returns the bytes of an edge's slot in a communicator of `nranks` ranks. Slots shrink with more
/// ranks, as the number of edges is quadratic in the ranks of a host.
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
    /// The number of bytes.
    pub len: usize,
    /// The tag of the operation that sent it.
    pub tag: u32,
    /// The operation that sent the message, if the message says so. Collectives of ranks of one
    /// host can be looked up instead.
    pub descriptor: Option<Descriptor>,
    /// The number of collectives that the sender had begun (its last 32 bits), if the message says
    /// so.
    pub begun: Option<u32>,
}

/// Both directions of the link to one peer: bounded queues of slots.
pub enum Edge {
    /// The edge of a rank to itself.
    Own,
    /// An edge through the shared segment.
    Direct(direct::DirectEdge),
    /// An edge through the network.
    Message(Box<message::MessageEdge>),
    /// An edge through the network that is connected when it is used first.
    Unconnected(Arc<message::Unconnected>),
}

impl Edge {
    /// Takes over the connections that somebody has made.
    fn connect(&mut self) {
        if let Edge::Unconnected(edge) = self
            && let Some(made) = edge.take()
        {
            *self = Edge::Message(Box::new(made));
        }
    }

    /// Asks for connections, and takes those that have been made.
    fn use_connections(&mut self) {
        if let Edge::Unconnected(edge) = self {
            edge.ask();
            self.connect();
        }
    }

    /// Returns a free slot to fill; `None` if the peer has not taken enough messages yet.
    pub fn reserve(&mut self) -> Result<Option<*mut u8>> {
        self.use_connections();
        match self {
            Edge::Own | Edge::Unconnected(_) => Ok(None),
            Edge::Direct(edge) => Ok(edge.reserve()),
            Edge::Message(edge) => edge.reserve(),
        }
    }

    /// Sends the first `len` bytes of the slot that was reserved last. The message is of the
    /// operation `label`; the sender has begun `begun` collectives.
    pub fn commit(&mut self, len: usize, label: &Label, begun: u64) -> Result<()> {
        match self {
            Edge::Own | Edge::Unconnected(_) => Ok(()),
            Edge::Direct(edge) => {
                edge.commit(len, label.tag, label.descriptor.to_words().1);
                Ok(())
            }
            Edge::Message(edge) => edge.commit(len, label.descriptor, begun as u32),
        }
    }

    /// Returns the oldest message that was not released; `None` if there is none.
    pub fn peek(&mut self) -> Result<Option<Message>> {
        self.use_connections();
        match self {
            Edge::Own | Edge::Unconnected(_) => Ok(None),
            Edge::Direct(edge) => Ok(edge.peek()),
            Edge::Message(edge) => edge.peek(),
        }
    }

    /// Returns the oldest message as [`peek`](Self::peek) does, for those that do not wait for one.
    pub fn look(&mut self) -> Result<Option<Message>> {
        self.connect();
        match self {
            Edge::Message(edge) => edge.look(),
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
            Edge::Message(edge) => edge.release(),
        }
    }

    /// Returns whether everything sent has left this process's memory.
    pub fn flushed(&mut self) -> Result<bool> {
        match self {
            Edge::Message(edge) => edge.flushed(),
            Edge::Own | Edge::Direct(_) | Edge::Unconnected(_) => Ok(true),
        }
    }

    /// Returns whether the peer has taken everything sent. Over a network the peer reports this:
    /// `told` is the number of messages that it has taken.
    pub fn is_taken(&mut self, told: u64) -> bool {
        match self {
            Edge::Own | Edge::Unconnected(_) => true,
            Edge::Direct(edge) => edge.is_taken(),
            Edge::Message(edge) => told >= edge.sent(),
        }
    }

    /// Returns the number of messages over a network so far: (sent, taken).
    pub fn messages(&self) -> (u64, u64) {
        match self {
            Edge::Message(edge) => (edge.sent(), edge.taken()),
            Edge::Own | Edge::Direct(_) | Edge::Unconnected(_) => (0, 0),
        }
    }

    /// Returns the bytes of slots that are not in the shared segment.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Edge::Message(edge) => edge.memory_bytes(),
            Edge::Own | Edge::Direct(_) | Edge::Unconnected(_) => 0,
        }
    }
}
