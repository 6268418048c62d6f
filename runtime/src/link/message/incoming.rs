//! The receiving half of the edges with a remote peer.

use super::{HEADER_BYTES, Message, Slots};
use crate::error::{Error, Result};
use crate::op::descriptor::Descriptor;
use oxccl_net::{Receiver, Region, Request};

/// The messages from a peer. They arrive in one slot, which is offered when somebody waits for a
/// message: so nothing is under way at the end of a communicator, which plugins take ill.
pub struct Incoming {
    receiver: Box<dyn Receiver>,
    /// The number of the rank that sends, the tag of its messages.
    tag: u32,
    /// The slot's registration, made with the first offer.
    region: Option<Region>,
    slot: Slots,
    /// The request for the next message, if it is under way.
    request: Option<Request>,
    /// Messages of operations taken so far.
    taken: u64,
    /// The size of the oldest message, once it has been seen complete.
    arrived: Option<usize>,
}

impl Incoming {
    /// Creates the queue of a connection, over which rank `tag` sends messages of operations with
    /// up to `slot_bytes`.
    pub fn new(receiver: Box<dyn Receiver>, tag: u32, slot_bytes: usize) -> Self {
        Self {
            receiver,
            tag,
            region: None,
            slot: Slots::new(1, slot_bytes),
            request: None,
            taken: 0,
            arrived: None,
        }
    }

    /// Offers the slot of the next message. Returns the request, unless the transport has no room.
    fn offer(&mut self) -> Result<Option<Request>> {
        let len = self.slot.slot_bytes();
        let region = match self.region {
            Some(region) => region,
            None => *self.region.insert(self.receiver.register(self.slot.memory())?),
        };
        let data = self.slot.slot(0);
        // SAFETY: the slot lives as long as the receiver and is read only after its request is
        // done and before it is offered again.
        Ok(unsafe { self.receiver.irecv(data, len, self.tag, region)? })
    }

    /// Returns the size of the oldest message once it is complete.
    fn arrived(&mut self) -> Result<Option<usize>> {
        if self.arrived.is_none() {
            if self.request.is_none() {
                self.request = self.offer()?;
            }
            let Some(request) = self.request else { return Ok(None) };
            self.arrived = self.receiver.test(request)?;
        }
        match self.arrived {
            Some(len) if len > self.slot.slot_bytes() => {
                let (tag, room) = (self.tag, self.slot.slot_bytes());
                let cause = format!("{len} bytes from rank {tag} for a slot of {room}");
                Err(Error::system("receiving a message", cause, "report it to the net's vendor"))
            }
            arrived => Ok(arrived),
        }
    }

    pub(crate) fn peek(&mut self) -> Result<Option<Message>> {
        let Some(arrived) = self.arrived()? else { return Ok(None) };
        let Some(len) = arrived.checked_sub(HEADER_BYTES) else {
            let what = format!(
                "a message of {arrived} bytes is shorter than its header of {HEADER_BYTES}"
            );
            return Err(Error::Internal { what });
        };
        let slot = self.slot.bytes(0);
        let Some((header, data)) = slot.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Error::Internal { what: "a slot without room for a header".to_owned() });
        };
        let [a, b, c, d, e, f, g, h, count @ ..] = *header;
        let what = u32::from_le_bytes([a, b, c, d]);
        let descriptor = Descriptor::from_words(what, u64::from_le_bytes(count));
        Ok(Some(Message {
            data: data.as_ptr(),
            len,
            tag: descriptor.tag(),
            descriptor: Some(descriptor),
            begun: Some(u32::from_le_bytes([e, f, g, h])),
        }))
    }

    /// Returns whether looking for a message leaves nothing under way that was not before, or
    /// nothing that matters at the end.
    pub(super) fn may_look(&self) -> bool {
        self.request.is_some() || self.arrived.is_some() || self.receiver.ends_with_requests()
    }

    pub(crate) fn release(&mut self) {
        self.taken += 1;
        self.free_slot();
    }

    fn free_slot(&mut self) {
        (self.arrived, self.request) = (None, None);
    }

    /// Takes a message that belongs to no operation, sent before all others.
    pub(super) fn take_raw(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(len) = self.arrived()? else { return Ok(None) };
        let bytes = self.slot.bytes(0)[..len].to_vec();
        self.free_slot();
        Ok(Some(bytes))
    }

    /// Returns the size of the memory of the queue, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slot.memory_bytes()
    }

    /// Returns the number of messages of operations taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver that takes every second offer, and completes the requests in order.
    #[derive(Default)]
    struct Reluctant {
        asked: u64,
        offered: Vec<*mut u8>,
    }

    // SAFETY: used by one thread.
    unsafe impl Send for Reluctant {}

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
        let text = incoming.peek().unwrap_err().to_string();
        assert!(text.contains("1048576 bytes from rank 3 for a slot of 24"), "{text}");
    }
}
