//! Links: where bytes go between ranks. *Direct*: memory that both map. *Message*: a network.

pub mod direct;
pub mod message;

use crate::error::Result;

/// Messages that an edge holds before its sender has to wait.
pub const EDGE_SLOTS: usize = 4;

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

    /// Sends the slot that was reserved last, with its first `len` bytes.
    pub fn commit(&mut self, len: usize) -> Result<()> {
        match self {
            Edge::Own => Ok(()),
            Edge::Direct(edge) => {
                edge.commit(len);
                Ok(())
            }
            Edge::Message(edge) => edge.commit(len),
        }
    }

    /// The oldest message that was not released, or None when there is none.
    pub fn peek(&mut self) -> Result<Option<(*const u8, usize)>> {
        match self {
            Edge::Own => Ok(None),
            Edge::Direct(edge) => Ok(edge.peek()),
            Edge::Message(edge) => edge.peek(),
        }
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

    /// Tells the peer that this rank leaves in order.
    pub fn farewell(&mut self) {
        if let Edge::Message(edge) = self {
            edge.farewell();
        }
    }
}
