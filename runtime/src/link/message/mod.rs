//! The edges between ranks of different hosts, over a network transport.

mod incoming;
mod joining;
mod outgoing;

use super::{EDGE_SLOTS, Message};
use crate::error::Result;
use crate::op::descriptor::Descriptor;
pub use incoming::Incoming;
pub use joining::{Identity, Joining};
pub use outgoing::Outgoing;
use oxccl_net::Memory;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// Bytes of a message's header, the descriptor of its operation: `what u32 · begun u32 · count
/// u64`. There `begun` counts the collectives that the sender has begun. A shorter message is an
/// error.
pub const HEADER_BYTES: usize = 16;

/// The edges from and to one remote peer. The slots belong to the edges.
pub struct MessageEdge {
    outgoing: Outgoing,
    incoming: Incoming,
    memory_bytes: usize,
}

impl MessageEdge {
    /// Joins the two directions, which have slots of `slot_bytes`.
    pub fn new(outgoing: Outgoing, incoming: Incoming, slot_bytes: usize) -> Self {
        let memory_bytes = (EDGE_SLOTS + 1) * (HEADER_BYTES + slot_bytes);
        Self { outgoing, incoming, memory_bytes }
    }

    pub(super) fn reserve(&mut self) -> Result<Option<*mut u8>> {
        self.outgoing.reserve()
    }

    pub(super) fn commit(&mut self, len: usize, descriptor: Descriptor, begun: u32) -> Result<()> {
        self.outgoing.commit(len, descriptor, begun)
    }

    pub(crate) fn peek(&mut self) -> Result<Option<Message>> {
        // Messages that could not leave at once leave while this rank waits for its peers.
        self.flushed()?;
        self.incoming.peek()
    }

    pub(crate) fn release(&mut self) {
        self.incoming.release();
    }

    pub(super) fn flushed(&mut self) -> Result<bool> {
        self.outgoing.flushed()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Returns the number of messages sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.outgoing.sent()
    }

    /// Returns the number of messages taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.incoming.taken()
    }
}

/// The slots of one direction, each with room for a header and data, in one piece of memory. A
/// transport may own it too.
struct Slots {
    memory: Arc<Cells>,
    slot_bytes: usize,
}

struct Cells(Box<[UnsafeCell<u8>]>);

// SAFETY: a slot is accessed by the holder of the slots, or by the transport while a request of the
// slot is under way, never by both.
unsafe impl Sync for Cells {}

impl Slots {
    fn new(number: usize, data_bytes: usize) -> Self {
        let slot_bytes = HEADER_BYTES + data_bytes;
        let zeros = vec![0u8; number * slot_bytes].into_boxed_slice();
        // SAFETY: a cell of a byte has the layout of a byte.
        let cells = unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [UnsafeCell<u8>]) };
        Self { memory: Arc::new(Cells(cells)), slot_bytes }
    }

    /// Returns all slots together, to be registered.
    fn memory(&self) -> Memory {
        let owner = self.memory.clone();
        Memory { data: self.slot(0), len: self.memory.0.len(), owner }
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn slot(&self, index: usize) -> *mut u8 {
        UnsafeCell::raw_get(self.memory.0[index * self.slot_bytes..][..self.slot_bytes].as_ptr())
    }

    /// Returns the contents of a slot that no request uses.
    fn bytes(&self, index: usize) -> &[u8] {
        // SAFETY: within the memory; the transport does not write it now.
        unsafe { std::slice::from_raw_parts(self.slot(index), self.slot_bytes) }
    }

    /// Returns the contents of a slot that no request uses, to be written.
    fn bytes_mut(&mut self, index: usize) -> &mut [u8] {
        // SAFETY: within the memory; the transport does not use it now.
        unsafe { std::slice::from_raw_parts_mut(self.slot(index), self.slot_bytes) }
    }
}
