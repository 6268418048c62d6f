//! The edges between ranks of different hosts, over a network transport.

mod incoming;
mod joining;
mod outgoing;
mod registered;
#[cfg(test)]
pub(crate) mod test_net;
mod unconnected;

use super::{Message, Received};
use crate::error::Result;
use crate::op::descriptor::Descriptor;
use crate::op::follow::{Carried, LATEST};
pub use incoming::Incoming;
pub use joining::{Identity, Joining};
pub(crate) use outgoing::DONE_WITHIN;
pub use outgoing::Outgoing;
use oxccl_net::{Connection, Memory, Observer, Place, Region};
use registered::Registered;
pub use registered::Registrar;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{Layout, handle_alloc_error};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;
pub use unconnected::Unconnected;

const _: () = assert!(super::EDGE_SLOTS == LATEST);

/// The bytes of a [`Header`]. A shorter message is an error.
pub const HEADER_BYTES: usize = 16;

/// The header of a message: `what u32 · begun u32 · count u64`, little-endian.
pub struct Header {
    /// The operation of the message: `what` and `count`.
    pub descriptor: Descriptor,
    /// The number of collectives that the sender has begun.
    begun: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let (what, count) = self.descriptor.to_words();
        let [a, b, c, d] = what.to_le_bytes();
        let [e, f, g, h] = self.begun.to_le_bytes();
        let [i, j, k, l, m, n, o, p] = count.to_le_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }

    /// Returns the header at the beginning of a message; `None` for less than a header.
    pub fn decode(message: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, count @ ..] = *message.first_chunk::<HEADER_BYTES>()?;
        let (what, count) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(count));
        let begun = u32::from_le_bytes([e, f, g, h]);
        Some(Self { descriptor: Descriptor::from_words(what, count), begun })
    }
}

/// A direction of the edges with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the peer.
    Outgoing,
    /// From the peer.
    Incoming,
}

/// The edges from and to one remote peer. The slots belong to the edges.
pub struct MessageEdge {
    outgoing: Outgoing,
    incoming: Incoming,
    /// Memory of the user, for the edge to a switch.
    registered: Registered,
}

impl MessageEdge {
    /// Joins the two directions.
    pub fn new(outgoing: Outgoing, incoming: Incoming) -> Self {
        Self { outgoing, incoming, registered: Registered::default() }
    }

    /// Registers the slots of both directions, which otherwise the first messages do. Blocks for a
    /// plugin.
    pub fn register(&mut self) -> Result<()> {
        self.outgoing.register()?;
        self.incoming.register()
    }

    /// Sends as [`Edge::send`](super::Edge::send) does.
    ///
    /// # Safety
    /// `data` is readable for `len` bytes, which fit a slot.
    pub(super) unsafe fn send(
        &mut self,
        data: *const u8,
        len: usize,
        descriptor: Descriptor,
        begun: u32,
    ) -> Result<bool> {
        // SAFETY: passed on from the caller.
        unsafe { self.outgoing.send(data, len, descriptor, begun) }
    }

    /// Returns the memory of the slots, [`EDGE_SLOTS`](super::EDGE_SLOTS) of each direction, which
    /// are used in turn: outgoing, incoming. Data begin behind the header.
    pub fn memory(&self) -> [Memory; 2] {
        [self.outgoing.memory(), self.incoming.memory()]
    }

    /// Moves the slots of a direction to memory of a GPU, of the same size, before any message was
    /// asked for. Who writes there writes the headers, too; who reads there reads them: messages
    /// have no descriptor here. Waits for the transport.
    pub fn move_slots(&mut self, direction: Direction, memory: Memory) -> Result<()> {
        match direction {
            Direction::Outgoing => self.outgoing.move_to(memory),
            Direction::Incoming => self.incoming.move_to(memory),
        }
    }

    /// Returns the slots of the next messages: outgoing, incoming.
    pub fn next_slots(&self) -> [usize; 2] {
        [self.outgoing.next_slot(), self.incoming.next_slot()]
    }

    /// Returns the number of messages to come whose outgoing slots are free.
    pub fn room(&mut self) -> Result<usize> {
        self.outgoing.room()
    }

    /// Returns the memory for the data of the next message, whose slot is free and in memory of the
    /// host.
    pub(crate) fn next_data(&mut self) -> &mut [u8] {
        self.outgoing.next_data()
    }

    /// Sends the first `len` bytes of data of the next slot, which are there.
    pub(crate) fn commit(&mut self, len: usize, descriptor: Descriptor, begun: u32) -> Result<()> {
        self.outgoing.commit(len, descriptor, begun)
    }

    pub(crate) fn peek(&mut self) -> Result<Option<Message>> {
        // Messages that could not leave at once leave while this rank waits for its peers. What a
        // peer has sent before it ended is taken all the same.
        let flushed = self.flushed();
        match self.incoming.peek(0)? {
            None => flushed.map(|_| None),
            message => Ok(message),
        }
    }

    /// Receives as [`Edge::receive`](super::Edge::receive) does.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    pub(super) unsafe fn receive(
        &mut self,
        to: *mut u8,
        len: usize,
        expect: impl FnOnce(&Message) -> Result<()>,
    ) -> Result<Option<Received>> {
        // As in `peek`.
        let flushed = self.flushed();
        // SAFETY: passed on from the caller.
        let received = unsafe { self.incoming.receive(to, len, expect)? };
        if received.is_none() {
            return flushed.map(|_| None);
        }
        if self.registered.received() {
            self.incoming.release();
            return Ok(Some(Received::InPlace));
        }
        Ok(received)
    }

    /// Returns a message that has come; `index` counts from the oldest one that was not released.
    pub(crate) fn peek_at(&mut self, index: usize) -> Result<Option<Message>> {
        self.incoming.peek(index)
    }

    /// Returns whether messages may be offered room before somebody waits for them.
    pub(crate) fn offers_ahead(&self) -> bool {
        self.incoming.offers_ahead()
    }

    /// Returns the oldest message as [`peek`](Self::peek) does, but waits for none over a transport
    /// that takes that as a promise.
    pub(super) fn look(&mut self) -> Result<Option<Message>> {
        if self.incoming.may_look() { self.peek() } else { Ok(None) }
    }

    pub(crate) fn release(&mut self) {
        self.incoming.release();
    }

    pub(crate) fn flushed(&mut self) -> Result<bool> {
        self.outgoing.flushed()
    }

    /// Waits until the transport is done with everything sent, which has come: there are transports
    /// that fail where an end is closed before. An error is no matter at an end.
    pub(crate) fn finish(&mut self, until: Instant) {
        let _ = self.outgoing.finish(until);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.outgoing.memory_bytes() + self.incoming.memory_bytes()
    }

    /// Returns the number of messages sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.outgoing.sent()
    }

    /// Returns the number of messages taken so far.
    pub(crate) fn taken(&self) -> u64 {
        self.incoming.taken()
    }

    /// Notes that somebody waits for the next message.
    pub(super) fn await_next(&mut self) {
        self.incoming.await_next();
    }

    /// Has the messages from now on observed: those sent, and those received. Returns false where
    /// the transport cannot: then [`carried`](Self::carried) tells of them.
    pub(crate) fn observe(&mut self, [sends, receives]: [Arc<dyn Observer>; 2]) -> bool {
        self.outgoing.observe(sends) && self.incoming.observe(receives)
    }

    /// Returns how far the messages have come: those sent, and those received.
    pub(crate) fn carried(&self) -> [Carried; 2] {
        [self.outgoing.carried(), self.incoming.carried()]
    }
}

/// The slots of one direction, each with room for a header and data, in one piece of memory. A
/// transport may own it too.
struct Slots {
    memory: Memory,
    /// The registration, made with the first message.
    region: Option<Region>,
    slot_bytes: usize,
    number: usize,
}

/// Zeroed memory that shares its pages with nothing else: pages that networks register may be kept
/// from forked children. What is not used of it takes no memory of the machine.
struct Cells {
    data: *mut u8,
    len: usize,
}

/// The size of a page, or a part of it.
const PAGE_BYTES: usize = 4096;

impl Cells {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.next_multiple_of(PAGE_BYTES), PAGE_BYTES);
        let layout = layout.expect("slots are small");
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the system chooses overlaps no other mapping.
        let data = unsafe { mmap_anonymous(null_mut(), layout.size(), prot, flags) };
        let Ok(data) = data else { handle_alloc_error(layout) };
        Self { data: data.cast(), len: layout.size() }
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        // SAFETY: a mapping of this size, of which nobody has an address any more.
        let unmapped = unsafe { munmap(self.data.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

// SAFETY: a slot is accessed by the holder of the slots, or by the transport while a request of the
// slot is under way, never by both.
unsafe impl Send for Cells {}
// SAFETY: as above.
unsafe impl Sync for Cells {}

impl Slots {
    fn new(number: usize, data_bytes: usize) -> Self {
        let slot_bytes = HEADER_BYTES + data_bytes;
        let len = number * slot_bytes;
        let cells = Cells::new(len);
        let memory = Memory { data: cells.data, len, place: Place::Host, owner: Arc::new(cells) };
        Self { memory, region: None, slot_bytes, number }
    }

    /// Registers the memory, if that was not done. May block for a plugin.
    fn register(&mut self, end: &mut dyn Connection) -> Result<Region> {
        match self.region {
            Some(region) => Ok(region),
            None => Ok(*self.region.insert(end.register(self.memory.clone())?)),
        }
    }

    /// Moves to other memory, of the same size. Returns the registration of what was left, if it
    /// had one.
    fn move_to(&mut self, end: &mut dyn Connection, mut memory: Memory) -> Result<Option<Region>> {
        let region = end.register(memory.clone())?;
        if let Place::Gpu { dma_buf, .. } = &mut memory.place {
            // The registration holds the memory from here on.
            *dma_buf = None;
        }
        self.memory = memory;
        Ok(self.region.replace(region))
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns whether the slots are in memory of the host.
    fn on_host(&self) -> bool {
        matches!(self.memory.place, Place::Host)
    }

    /// Returns the size of the memory of the host that the slots take.
    fn memory_bytes(&self) -> usize {
        if self.on_host() { self.memory.len.next_multiple_of(PAGE_BYTES) } else { 0 }
    }

    fn slot(&self, index: usize) -> *mut u8 {
        assert!(index < self.number, "slot {index} of {}", self.number);
        self.memory.data.wrapping_add(index * self.slot_bytes)
    }

    /// Returns the contents of a slot on the host that no request uses.
    fn bytes(&self, index: usize) -> &[u8] {
        assert!(self.on_host());
        // SAFETY: within the memory; the transport does not write it now.
        unsafe { std::slice::from_raw_parts(self.slot(index), self.slot_bytes) }
    }

    /// Returns the contents of a slot on the host that no request uses, to be written.
    fn bytes_mut(&mut self, index: usize) -> &mut [u8] {
        assert!(self.on_host());
        // SAFETY: within the memory; the transport does not use it now.
        unsafe { std::slice::from_raw_parts_mut(self.slot(index), self.slot_bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_net::{Error, Receiver, Request, Sender};
    use oxccl_plan::DataType;

    /// The ends of a connection whose peer has ended, after it has sent one message.
    #[derive(Default)]
    struct Ended {
        slot: Option<*mut u8>,
        done: bool,
    }

    // SAFETY: used by one thread.
    unsafe impl Send for Ended {}

    impl Connection for Ended {}

    impl Sender for Ended {
        unsafe fn isend(
            &mut self,
            _data: *const u8,
            _len: usize,
            _tag: u32,
            _region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            Err(Error::new("sending", "the peer has ended", ""))
        }

        fn test(&mut self, _request: Request) -> oxccl_net::Result<bool> {
            Ok(false)
        }
    }

    impl Receiver for Ended {
        unsafe fn irecv(
            &mut self,
            data: *mut u8,
            _capacity: usize,
            _tag: u32,
            _region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            self.slot = Some(data);
            Ok(Some(1))
        }

        fn test(&mut self, _request: Request) -> oxccl_net::Result<Option<usize>> {
            let slot = self.slot.filter(|_| !std::mem::replace(&mut self.done, true));
            let message = Header { descriptor: Descriptor::message(DataType::Int8, 1), begun: 0 };
            Ok(slot.map(|slot| {
                let bytes = message.encode();
                // SAFETY: a slot of 16 bytes and more.
                unsafe { slot.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                bytes.len()
            }))
        }
    }

    #[test]
    fn what_a_peer_has_sent_before_it_ended_is_taken_before_its_end_is_told() {
        let outgoing = Outgoing::new(Box::new(Ended::default()), 0, 8);
        let incoming = Incoming::new(Box::new(Ended::default()), 1, 8);
        let mut edge = MessageEdge::new(outgoing, incoming);
        assert!(edge.commit(0, Descriptor::message(DataType::Int8, 1), 0).is_err());
        assert_eq!(edge.peek().unwrap().map(|message| message.len), Some(Some(0)));
        edge.release();
        assert!(edge.peek().unwrap_err().to_string().contains("the peer has ended"));
    }
}
