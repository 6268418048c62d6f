//! The sending half of the edges with a remote peer.

use super::{HEADER_BYTES, Header, Slots};
use crate::error::Result;
use crate::link::EDGE_SLOTS;
use crate::op::descriptor::Descriptor;
use crate::op::follow::{Carried, LATEST};
use oxccl_net::{Memory, Observer, Receiver, Request, Sender, Unstaged};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time within which a transport should notice that a message has left that has come.
pub(crate) const DONE_WITHIN: Duration = Duration::from_millis(500);

/// A queue of messages to a peer. A message leaves from the slot in which it was written.
pub struct Outgoing {
    sender: Box<dyn Sender>,
    /// The number of the rank that sends, the tag of its messages.
    tag: u32,
    slots: Slots,
    /// Requests under way, by slot.
    requests: [Option<Request>; EDGE_SLOTS],
    /// Messages for which the transport had no room, the oldest first: slot and size.
    unsent: VecDeque<(usize, usize)>,
    /// Messages so far, those of operations and [`raw`](Self::send_raw) ones.
    messages: usize,
    /// Messages of operations so far.
    sent: u64,
    /// The bytes of data of the latest ones, by number modulo [`LATEST`].
    bytes: [usize; LATEST],
}

impl Outgoing {
    /// Creates the queue of a connection, over which rank `tag` sends messages of operations with
    /// up to `slot_bytes`.
    pub fn new(sender: Box<dyn Sender>, tag: u32, slot_bytes: usize) -> Self {
        let slots = Slots::new(EDGE_SLOTS, slot_bytes);
        let (requests, unsent, bytes) = Default::default();
        Self { sender, tag, slots, requests, unsent, messages: 0, sent: 0, bytes }
    }

    /// Sends a message if its slot is free, and returns whether it is.
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
        let Some(slot) = self.free_slot()? else { return Ok(false) };
        self.label(descriptor, begun);
        self.count(len);
        let place = &mut self.slots.bytes_mut(slot)[..HEADER_BYTES + len];
        if !self.unsent.is_empty() {
            // SAFETY: readable by the contract.
            place[HEADER_BYTES..].copy_from_slice(unsafe { std::slice::from_raw_parts(data, len) });
            self.push(HEADER_BYTES + len)?;
            return Ok(true);
        }
        let place = (place.as_mut_ptr(), place.len());
        let region = self.slots.register(&mut *self.sender)?;
        // SAFETY: as of `isend` in `send_more`; the data are readable by the contract.
        self.requests[slot] =
            unsafe { self.sender.isend_from(data, HEADER_BYTES, place, self.tag, region)? };
        if self.requests[slot].is_none() {
            self.unsent.push_back((slot, place.1));
        }
        self.messages += 1;
        Ok(true)
    }

    /// Sends a message without data as [`send`](Self::send) does: behind its header it says where
    /// they are.
    ///
    /// # Safety
    /// Both places are nobody else's until the result is received, or the edge has ended.
    pub(super) unsafe fn send_unstaged(
        &mut self,
        unstaged: Unstaged,
        descriptor: Descriptor,
        begun: u32,
    ) -> Result<bool> {
        let Some(slot) = self.free_slot()? else { return Ok(false) };
        let place = &mut self.slots.bytes_mut(slot)[HEADER_BYTES..][..size_of::<Unstaged>()];
        // SAFETY: as large.
        unsafe { place.as_mut_ptr().cast::<Unstaged>().write_unaligned(unstaged) };
        self.commit(0, descriptor, begun).map(|()| true)
    }

    /// Returns the slot of the next message, once it is free.
    fn free_slot(&mut self) -> Result<Option<usize>> {
        self.send_more()?;
        let slot = self.next_slot();
        Ok(self.is_free(slot)?.then_some(slot))
    }

    /// Writes the header of the next message, one of an operation.
    fn label(&mut self, descriptor: Descriptor, begun: u32) {
        let slot = self.slots.bytes_mut(self.messages % EDGE_SLOTS);
        slot[..HEADER_BYTES].copy_from_slice(&Header { descriptor, begun }.encode());
    }

    /// Counts the next message of an operation, with `len` bytes of data.
    fn count(&mut self, len: usize) {
        self.bytes[self.sent as usize % LATEST] = len;
        self.sent += 1;
    }

    /// Returns the number of messages to come whose slots are free.
    pub(super) fn room(&mut self) -> Result<usize> {
        self.send_more()?;
        let (next, mut free) = (self.messages, 0);
        while free < EDGE_SLOTS && self.is_free((next + free) % EDGE_SLOTS)? {
            free += 1;
        }
        Ok(free)
    }

    /// Returns the slot of the next message.
    pub(super) fn next_slot(&self) -> usize {
        self.messages % EDGE_SLOTS
    }

    /// Returns all slots together.
    pub(super) fn memory(&self) -> Memory {
        self.slots.memory.clone()
    }

    /// Moves the slots to other memory, of the same size. Everything sent has come there.
    pub(super) fn move_to(&mut self, memory: Memory) -> Result<()> {
        if let Some(old) = self.slots.move_to(&mut *self.sender, memory)? {
            // What the transport may still read stays registered.
            if self.finish(Instant::now() + DONE_WITHIN)? {
                self.sender.deregister(old)?;
            }
        }
        Ok(())
    }

    /// Waits until the transport is done with everything sent, which has come; returns whether it
    /// is.
    pub(super) fn finish(&mut self, until: Instant) -> Result<bool> {
        loop {
            let mut all = true;
            for slot in 0..EDGE_SLOTS {
                all &= self.is_done(slot)?;
            }
            if all || Instant::now() >= until {
                return Ok(all);
            }
            std::thread::yield_now();
        }
    }

    fn is_free(&mut self, slot: usize) -> Result<bool> {
        let waits = self.unsent.iter().any(|(unsent, _)| *unsent == slot);
        Ok(!waits && self.is_done(slot)?)
    }

    /// Returns whether the transport is done with the request of a slot.
    fn is_done(&mut self, slot: usize) -> Result<bool> {
        if let Some(request) = self.requests[slot] {
            if !self.sender.test(request)? {
                return Ok(false);
            }
            self.requests[slot] = None;
        }
        Ok(true)
    }

    /// Returns the receiving end of the connection's other direction, once, if it has one.
    pub(super) fn reverse(&mut self) -> Option<Box<dyn Receiver>> {
        self.sender.reverse()
    }

    /// Registers the slots, if that was not done. May block for a plugin.
    pub(super) fn register(&mut self) -> Result<()> {
        self.slots.register(&mut *self.sender).map(drop)
    }

    /// Hands messages to the transport for which it had no room before, in order.
    fn send_more(&mut self) -> Result<()> {
        while let Some(&(slot, len)) = self.unsent.front() {
            let region = self.slots.register(&mut *self.sender)?;
            let data = self.slots.slot(slot);
            // SAFETY: the slot lives as long as the sender and is written again only after the
            // request is done. For what lies elsewhere the contract of `send_unstaged` holds.
            let request = unsafe { self.sender.isend(data, len, self.tag, region)? };
            if request.is_none() {
                break;
            }
            self.requests[slot] = request;
            self.unsent.pop_front();
        }
        Ok(())
    }

    fn push(&mut self, len: usize) -> Result<()> {
        self.unsent.push_back((self.messages % EDGE_SLOTS, len));
        self.messages += 1;
        self.send_more()
    }

    /// Returns the memory for the data of the next message, whose slot is free and in memory of the
    /// host.
    pub(super) fn next_data(&mut self) -> &mut [u8] {
        &mut self.slots.bytes_mut(self.next_slot())[HEADER_BYTES..]
    }

    /// Sends `len` bytes of data that are in the next slot, which is free. Slots in memory of a GPU
    /// have a header already.
    pub(super) fn commit(&mut self, len: usize, descriptor: Descriptor, begun: u32) -> Result<()> {
        if self.slots.on_host() {
            self.label(descriptor, begun);
        }
        self.count(len);
        self.push(HEADER_BYTES + len)
    }

    /// Sends a message that belongs to no operation, before all others: bytes that fit a slot.
    pub(super) fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.slots.bytes_mut(self.messages % EDGE_SLOTS)[..bytes.len()].copy_from_slice(bytes);
        self.push(bytes.len())
    }

    /// Returns whether everything sent gets on without further help.
    pub(super) fn flushed(&mut self) -> Result<bool> {
        self.send_more()?;
        let mut all = self.unsent.is_empty();
        for slot in 0..EDGE_SLOTS {
            // What gets on without further help is as good as gone.
            all &= self.is_done(slot)? || !self.sender.needs_progress();
        }
        Ok(all)
    }

    /// Has the messages from now on observed; returns false where the transport cannot.
    pub(super) fn observe(&mut self, observer: Arc<dyn Observer>) -> bool {
        self.sender.observe(observer)
    }

    /// Returns the size of the memory of the queue, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
    }

    /// Returns the number of messages of operations so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns how far the messages have come.
    pub(super) fn carried(&self) -> Carried {
        let moved = self.sent.saturating_sub(self.unsent.len() as u64);
        let is_under_way = |back: &usize| {
            let message = self.messages.checked_sub(*back);
            message.is_some_and(|message| self.requests[message % EDGE_SLOTS].is_some())
        };
        // From the oldest one on that may be under way.
        let under_way = (1..=EDGE_SLOTS).rev().find(is_under_way).unwrap_or(0);
        let over = self.sent.saturating_sub(under_way as u64).min(moved);
        let (bytes, operations) = (self.bytes, Default::default());
        Carried { asked: self.sent, moved, over, bytes, sized: self.sent, operations }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_net::{Connection, Place, Region};
    use std::sync::{Arc, Mutex};

    /// A sender that takes only every third message and completes it at once.
    struct Reluctant {
        asked: u32,
        sent: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl Connection for Reluctant {}

    impl Sender for Reluctant {
        unsafe fn isend(
            &mut self,
            data: *const u8,
            len: usize,
            tag: u32,
            _region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            assert_eq!(tag, 9);
            self.asked += 1;
            if !self.asked.is_multiple_of(3) {
                return Ok(None);
            }
            // SAFETY: readable by the contract.
            let bytes = unsafe { std::slice::from_raw_parts(data, len) };
            self.sent.lock().unwrap().push(bytes[HEADER_BYTES..].to_vec());
            Ok(Some(u64::from(self.asked)))
        }

        fn test(&mut self, _request: Request) -> oxccl_net::Result<bool> {
            Ok(true)
        }
    }

    /// A sender that keeps its requests, but gets on with them by itself.
    struct Independent;

    impl Connection for Independent {}

    impl Sender for Independent {
        unsafe fn isend(
            &mut self,
            _data: *const u8,
            _len: usize,
            _tag: u32,
            _region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            Ok(Some(1))
        }

        fn needs_progress(&self) -> bool {
            false
        }

        fn test(&mut self, _request: Request) -> oxccl_net::Result<bool> {
            Ok(false)
        }
    }

    #[test]
    fn messages_that_get_on_by_themselves_are_flushed_and_keep_their_slots() {
        let mut outgoing = Outgoing::new(Box::new(Independent), 0, 8);
        let message = Descriptor::message(oxccl_plan::DataType::Int8, 1);
        for sent in 0..EDGE_SLOTS {
            assert_eq!(outgoing.room().unwrap(), EDGE_SLOTS - sent);
            // SAFETY: a byte.
            assert!(unsafe { outgoing.send(&7, 1, message, 0) }.unwrap());
            assert!(outgoing.flushed().unwrap());
        }
        let Carried { asked, moved, over, bytes, .. } = outgoing.carried();
        assert_eq!((asked, moved, over, bytes), (4, 4, 0, [1; LATEST]));
        // SAFETY: a byte.
        assert!(!unsafe { outgoing.send(&7, 1, message, 0) }.unwrap());
    }

    /// A sender that notes what it registers, and is done when it is asked the second time.
    #[derive(Default)]
    struct Registering {
        regions: Arc<Mutex<Vec<String>>>,
        asked: usize,
    }

    impl Connection for Registering {
        fn register(&mut self, memory: Memory) -> oxccl_net::Result<Region> {
            let mut regions = self.regions.lock().unwrap();
            let host = matches!(memory.place, Place::Host);
            regions.push(format!("+{} {}", memory.len, if host { "host" } else { "GPU" }));
            Ok(Region(regions.len()))
        }

        fn deregister(&mut self, region: Region) -> oxccl_net::Result<()> {
            self.regions.lock().unwrap().push(format!("-{} after {}", region.0, self.asked));
            Ok(())
        }
    }

    impl Sender for Registering {
        unsafe fn isend(
            &mut self,
            _data: *const u8,
            _len: usize,
            _tag: u32,
            region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            Ok(Some(region.0 as u64))
        }

        fn test(&mut self, _request: Request) -> oxccl_net::Result<bool> {
            self.asked += 1;
            Ok(self.asked > 1)
        }
    }

    #[test]
    fn slots_move_once_the_transport_is_done_with_what_was_sent() {
        let sender = Registering::default();
        let regions = sender.regions.clone();
        let mut outgoing = Outgoing::new(Box::new(sender), 0, 8);
        outgoing.send_raw(b"proof").unwrap();
        let like = outgoing.memory();
        let file = std::fs::File::open("/dev/null").unwrap();
        let dma_buf = Arc::new(std::os::fd::OwnedFd::from(file));
        let place = Place::Gpu { flush: false, dma_buf: Some(dma_buf.clone()) };
        outgoing.move_to(Memory { place, ..like }).unwrap();
        let message = Descriptor::message(oxccl_plan::DataType::Int8, 1);
        outgoing.commit(1, message, 0).unwrap();
        assert_eq!(outgoing.requests[1], Some(2), "from the new region");
        let text = regions.lock().unwrap().join(", ");
        assert_eq!(text, "+96 host, +96 GPU, -1 after 2");
        assert_eq!(Arc::strong_count(&dma_buf), 1, "the descriptor is not kept");
    }

    #[test]
    fn what_the_transport_has_no_room_for_is_sent_later_in_order() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let sender = Reluctant { asked: 0, sent: sent.clone() };
        let mut outgoing = Outgoing::new(Box::new(sender), 9, 8);
        let message = Descriptor::message(oxccl_plan::DataType::Int8, 1);
        for number in 0u8..20 {
            // SAFETY: a byte.
            while !unsafe { outgoing.send(&number, 1, message, 0) }.unwrap() {}
            let Carried { asked, moved, over, .. } = outgoing.carried();
            assert_eq!(asked, u64::from(number) + 1);
            assert!(over <= moved && moved <= asked && asked - over <= LATEST as u64);
        }
        while !outgoing.flushed().unwrap() {}
        let expected: Vec<Vec<u8>> = (0..20).map(|number| vec![number]).collect();
        assert_eq!(*sent.lock().unwrap(), expected);
        let Carried { asked, moved, over, .. } = outgoing.carried();
        assert_eq!((outgoing.sent(), asked, moved, over), (20, 20, 20, 20));
    }
}
