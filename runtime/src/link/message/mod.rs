//! The edges between ranks of different hosts, over a network transport.

pub mod net;
pub mod socket;

use super::{EDGE_SLOTS, Message};
use crate::error::{Error, Result};
use crate::op::descriptor::Descriptor;
use net::{Receiver, Request, Sender};
use std::collections::VecDeque;

/// Bytes of a message's header, the descriptor of its operation: `what u32 · begun u32 · count
/// u64`. There `begun` counts the collectives that the sender has begun. A shorter message is an
/// error.
pub const HEADER_BYTES: usize = 16;

/// The edges from and to one remote peer. The slots belong to the edges: a message leaves from its
/// slot and arrives in one.
pub struct MessageEdge {
    sender: Box<dyn Sender>,
    receiver: Box<dyn Receiver>,
    slot_bytes: usize,
    outgoing: Vec<Box<[u8]>>,
    incoming: Vec<Box<[u8]>>,
    /// Requests under way, by slot.
    sends: [Option<Request>; EDGE_SLOTS],
    receives: [Option<Request>; EDGE_SLOTS],
    /// Messages for which the transport had no room, the oldest first: slot and size.
    unsent: VecDeque<(usize, usize)>,
    sent: usize,
    taken: usize,
    /// The size of the oldest message, once it has been seen complete.
    arrived: Option<usize>,
}

impl MessageEdge {
    /// Creates the edges and offers all slots to the receiver.
    pub fn new(
        sender: Box<dyn Sender>,
        receiver: Box<dyn Receiver>,
        slot_bytes: usize,
    ) -> Result<Self> {
        let slots = || {
            (0..EDGE_SLOTS).map(|_| vec![0; HEADER_BYTES + slot_bytes].into_boxed_slice()).collect()
        };
        let mut edge = Self {
            sender,
            receiver,
            slot_bytes,
            outgoing: slots(),
            incoming: slots(),
            sends: [None; EDGE_SLOTS],
            receives: [None; EDGE_SLOTS],
            unsent: VecDeque::new(),
            sent: 0,
            taken: 0,
            arrived: None,
        };
        (0..EDGE_SLOTS).try_for_each(|slot| edge.offer(slot))?;
        Ok(edge)
    }

    fn offer(&mut self, slot: usize) -> Result<()> {
        let data = self.incoming[slot].as_mut_ptr();
        // SAFETY: the slot lives as long as the receiver and is read only after its request is
        // done and before it is offered again.
        self.receives[slot] = unsafe { self.receiver.irecv(data, HEADER_BYTES + self.slot_bytes)? };
        Ok(())
    }

    pub(super) fn reserve(&mut self) -> Result<Option<*mut u8>> {
        let slot = self.sent % EDGE_SLOTS;
        self.send_more()?;
        let waits = self.unsent.iter().any(|(unsent, _)| *unsent == slot);
        if waits || !self.is_done(slot)? {
            return Ok(None);
        }
        Ok(Some(self.outgoing[slot][HEADER_BYTES..].as_mut_ptr()))
    }

    /// Returns whether the transport is done with the request of a slot.
    fn is_done(&mut self, slot: usize) -> Result<bool> {
        if let Some(request) = self.sends[slot] {
            if !self.sender.test(request)? {
                return Ok(false);
            }
            self.sends[slot] = None;
        }
        Ok(true)
    }

    /// Hands messages to the transport for which it had no room before, in order.
    fn send_more(&mut self) -> Result<()> {
        while let Some(&(slot, len)) = self.unsent.front() {
            // SAFETY: the slot lives as long as the sender and is written again only after the
            // request is done.
            let request = unsafe { self.sender.isend(self.outgoing[slot].as_ptr(), len)? };
            if request.is_none() {
                break;
            }
            self.sends[slot] = request;
            self.unsent.pop_front();
        }
        Ok(())
    }

    pub(super) fn commit(&mut self, len: usize, descriptor: Descriptor, begun: u32) -> Result<()> {
        let slot = self.sent % EDGE_SLOTS;
        let (what, count) = descriptor.to_words();
        self.outgoing[slot][..4].copy_from_slice(&what.to_le_bytes());
        self.outgoing[slot][4..8].copy_from_slice(&begun.to_le_bytes());
        self.outgoing[slot][8..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
        self.unsent.push_back((slot, HEADER_BYTES + len));
        self.sent += 1;
        self.send_more()
    }

    pub(crate) fn peek(&mut self) -> Result<Option<Message>> {
        // Messages that could not leave at once leave while this rank waits for its peers.
        self.flushed()?;
        let slot = self.taken % EDGE_SLOTS;
        if self.arrived.is_none() {
            if self.receives[slot].is_none() {
                self.offer(slot)?;
            }
            let Some(request) = self.receives[slot] else { return Ok(None) };
            self.arrived = self.receiver.test(request)?;
        }
        let Some(arrived) = self.arrived else { return Ok(None) };
        let Some(len) = arrived.checked_sub(HEADER_BYTES) else {
            let what = format!(
                "a message of {arrived} bytes is shorter than its header of {HEADER_BYTES}"
            );
            return Err(Error::Internal { what });
        };
        let Some((header, data)) = self.incoming[slot].split_first_chunk::<HEADER_BYTES>() else {
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

    pub(crate) fn release(&mut self) -> Result<()> {
        let slot = self.taken % EDGE_SLOTS;
        self.arrived = None;
        self.taken += 1;
        self.offer(slot)
    }

    pub(super) fn flushed(&mut self) -> Result<bool> {
        self.send_more()?;
        let mut all = self.unsent.is_empty();
        for slot in 0..EDGE_SLOTS {
            all &= self.is_done(slot)?;
        }
        Ok(all)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        2 * EDGE_SLOTS * (HEADER_BYTES + self.slot_bytes)
    }

    /// Returns the number of messages sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent as u64
    }

    /// Returns the number of messages taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A sender that takes only every third message and completes it at once.
    struct Reluctant {
        asked: u32,
        sent: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl Sender for Reluctant {
        unsafe fn isend(&mut self, data: *const u8, len: usize) -> Result<Option<Request>> {
            self.asked += 1;
            if !self.asked.is_multiple_of(3) {
                return Ok(None);
            }
            // SAFETY: readable by the contract.
            let bytes = unsafe { std::slice::from_raw_parts(data, len) };
            self.sent.lock().unwrap().push(bytes[HEADER_BYTES..].to_vec());
            Ok(Some(u64::from(self.asked)))
        }

        fn test(&mut self, _request: Request) -> Result<bool> {
            Ok(true)
        }
    }

    struct Silent;

    impl Receiver for Silent {
        unsafe fn irecv(&mut self, _data: *mut u8, _capacity: usize) -> Result<Option<Request>> {
            Ok(None)
        }

        fn test(&mut self, _request: Request) -> Result<Option<usize>> {
            Ok(None)
        }
    }

    #[test]
    fn what_the_transport_has_no_room_for_is_sent_later_in_order() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let sender = Reluctant { asked: 0, sent: sent.clone() };
        let mut edge = MessageEdge::new(Box::new(sender), Box::new(Silent), 8).unwrap();
        let message = Descriptor::message(oxccl_plan::DataType::Int8, 1);
        for number in 0u8..20 {
            let place = loop {
                if let Some(place) = edge.reserve().unwrap() {
                    break place;
                }
            };
            // SAFETY: a slot of eight bytes.
            unsafe { place.write(number) };
            edge.commit(1, message, 0).unwrap();
        }
        while !edge.flushed().unwrap() {}
        let expected: Vec<Vec<u8>> = (0..20).map(|number| vec![number]).collect();
        assert_eq!(*sent.lock().unwrap(), expected);
        assert_eq!(edge.sent(), 20);
    }
}
