//! The receiving half of the edges with a remote peer.

use super::{HEADER_BYTES, Header, Message, Slots};
use crate::error::{Error, Result};
use crate::link::EDGE_SLOTS;
use oxccl_net::{Memory, Receiver, Request, Sender};
use std::collections::VecDeque;

/// The messages from a peer. They arrive in slots that are offered when somebody waits for a
/// message: one slot at a time, so that nothing is under way at the end of a communicator, which
/// plugins take ill; all of them where the transport does not mind.
pub struct Incoming {
    receiver: Box<dyn Receiver>,
    /// The number of the rank that sends, the tag of its messages.
    tag: u32,
    slots: Slots,
    /// The messages under way and those that have come, the oldest first.
    messages: VecDeque<Offered>,
    /// The number of messages so far whose slots were given back.
    released: usize,
    /// Messages of operations taken so far.
    taken: u64,
}

/// A slot that was offered.
enum Offered {
    /// The request is under way.
    Waiting(Request),
    /// A message of this size is complete.
    Arrived(usize),
}

impl Incoming {
    /// Creates the queue of a connection, over which rank `tag` sends messages of operations with
    /// up to `slot_bytes`.
    pub fn new(receiver: Box<dyn Receiver>, tag: u32, slot_bytes: usize) -> Self {
        let slots = Slots::new(EDGE_SLOTS, slot_bytes);
        Self { receiver, tag, slots, messages: VecDeque::new(), released: 0, taken: 0 }
    }

    fn slot_of(&self, index: usize) -> usize {
        (self.released + index) % EDGE_SLOTS
    }

    /// Returns the sending end of the connection's other direction, once, if it has one.
    pub(super) fn reverse(&mut self) -> Option<Box<dyn Sender>> {
        self.receiver.reverse()
    }

    /// Registers the slots, if that was not done. May block for a plugin.
    pub(super) fn register(&mut self) -> Result<()> {
        self.slots.register(&mut *self.receiver).map(drop)
    }

    /// Offers slots for `number` messages, or more; the transport may have no room.
    fn offer(&mut self, number: usize) -> Result<()> {
        let number = if self.offers_ahead() { EDGE_SLOTS } else { number };
        while self.messages.len() < number {
            let region = self.slots.register(&mut *self.receiver)?;
            let data = self.slots.slot(self.slot_of(self.messages.len()));
            let len = self.slots.slot_bytes();
            // SAFETY: the slot lives as long as the receiver and is read only after its request is
            // done and before it is offered again.
            let request = unsafe { self.receiver.irecv(data, len, self.tag, region)? };
            let Some(request) = request else { break };
            self.messages.push_back(Offered::Waiting(request));
        }
        Ok(())
    }

    /// Returns the size of a message once it is complete; `index` counts from the oldest one.
    fn arrived(&mut self, index: usize) -> Result<Option<usize>> {
        self.offer(index + 1)?;
        for message in self.messages.iter_mut().take(index + 1) {
            let Offered::Waiting(request) = *message else { continue };
            let Some(len) = self.receiver.test(request)? else { return Ok(None) };
            *message = Offered::Arrived(len);
        }
        let arrived = self.messages.get(index).map(|message| match message {
            Offered::Arrived(len) => *len,
            Offered::Waiting(_) => 0,
        });
        match arrived {
            Some(len) if len > self.slots.slot_bytes() => {
                let (tag, room) = (self.tag, self.slots.slot_bytes());
                let cause = format!("{len} bytes from rank {tag} for a slot of {room}");
                Err(Error::system("receiving a message", cause, "report it to the net's vendor"))
            }
            arrived => Ok(arrived),
        }
    }

    /// Returns a message of an operation, if it has come; `index` counts from the oldest one that
    /// was not released, and is less than the number of slots.
    pub(crate) fn peek(&mut self, index: usize) -> Result<Option<Message>> {
        let Some(arrived) = self.arrived(index)? else { return Ok(None) };
        let Some(len) = arrived.checked_sub(HEADER_BYTES) else {
            let what = format!(
                "a message of {arrived} bytes is shorter than its header of {HEADER_BYTES}"
            );
            return Err(Error::Internal { what });
        };
        let slot = self.slot_of(index);
        let data = self.slots.slot(slot).wrapping_add(HEADER_BYTES).cast_const();
        let on_host = self.slots.on_host().then(|| self.slots.bytes(slot));
        let header = on_host.and_then(Header::decode);
        let (descriptor, begun) = header.map(|h| (h.descriptor, h.begun)).unzip();
        Ok(Some(Message {
            data,
            len,
            tag: descriptor.map_or(0, |descriptor| descriptor.tag()),
            descriptor,
            begun,
        }))
    }

    /// Returns whether looking for a message leaves nothing under way that was not before, or
    /// nothing that matters at the end.
    pub(super) fn may_look(&self) -> bool {
        !self.messages.is_empty() || self.offers_ahead()
    }

    /// Returns whether the transport lets a connection end with slots that are offered.
    pub(super) fn offers_ahead(&self) -> bool {
        self.receiver.ends_with_requests()
    }

    pub(crate) fn release(&mut self) {
        self.taken += 1;
        self.free_slot();
    }

    fn free_slot(&mut self) {
        self.messages.pop_front();
        self.released += 1;
    }

    /// Takes a message that belongs to no operation, sent before all others.
    pub(super) fn take_raw(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(len) = self.arrived(0)? else { return Ok(None) };
        let bytes = self.slots.bytes(self.slot_of(0))[..len].to_vec();
        self.free_slot();
        Ok(Some(bytes))
    }

    /// Returns the memory of the slots.
    pub(super) fn memory(&self) -> Memory {
        self.slots.memory.clone()
    }

    /// Moves the slots to other memory, of the same size, before any message was asked for.
    pub(super) fn move_to(&mut self, memory: Memory) -> Result<()> {
        if !self.messages.is_empty() {
            return Err(Error::Internal { what: "slots in use cannot move".to_owned() });
        }
        let old = self.slots.move_to(&mut *self.receiver, memory)?;
        old.map_or(Ok(()), |old| Ok(self.receiver.deregister(old)?))
    }

    /// Returns the slot of the oldest message.
    pub(super) fn next_slot(&self) -> usize {
        self.slot_of(0)
    }

    /// Returns the size of the memory of the queue, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
    }

    /// Returns the number of messages of operations taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_net::{Connection, Region};

    /// A receiver that takes every second offer, and completes the requests in order.
    #[derive(Default)]
    struct Reluctant {
        asked: u64,
        offered: Vec<*mut u8>,
    }

    // SAFETY: used by one thread.
    unsafe impl Send for Reluctant {}

    impl Connection for Reluctant {}

    impl Receiver for Reluctant {
        unsafe fn irecv(
            &mut self,
            data: *mut u8,
            _capacity: usize,
            _tag: u32,
            _region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            self.asked += 1;
            if self.asked.is_multiple_of(2) {
                return Ok(None);
            }
            self.offered.push(data);
            Ok(Some(self.offered.len() as u64))
        }

        fn test(&mut self, request: Request) -> oxccl_net::Result<Option<usize>> {
            let data = self.offered[request as usize - 1];
            // SAFETY: writable until the request is done.
            unsafe { data.write(request as u8) };
            Ok(Some(1))
        }
    }

    #[test]
    fn a_slot_that_the_transport_has_no_room_for_is_offered_again() {
        let mut incoming = Incoming::new(Box::new(Reluctant::default()), 3, 8);
        for number in 1u8..30 {
            let bytes = loop {
                if let Some(bytes) = incoming.take_raw().unwrap() {
                    break bytes;
                }
            };
            assert_eq!(bytes, [number]);
        }
    }

    /// A receiver that lies about the size of a message.
    struct Liar;

    impl Connection for Liar {}

    impl Receiver for Liar {
        unsafe fn irecv(
            &mut self,
            _data: *mut u8,
            _capacity: usize,
            _tag: u32,
            _region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            Ok(Some(1))
        }

        fn test(&mut self, _request: Request) -> oxccl_net::Result<Option<usize>> {
            Ok(Some(1 << 20))
        }
    }

    #[test]
    fn a_size_beyond_what_was_offered_is_an_error() {
        let mut incoming = Incoming::new(Box::new(Liar), 3, 8);
        let text = incoming.peek(0).unwrap_err().to_string();
        assert!(text.contains("1048576 bytes from rank 3 for a slot of 24"), "{text}");
    }
}
