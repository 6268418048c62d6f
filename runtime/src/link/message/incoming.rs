//! The receiving half of the edges with a remote peer.

use super::{HEADER_BYTES, Header, Message, Slots};
use crate::error::{Error, Result};
use crate::link::EDGE_SLOTS;
use crate::link::Received;
use crate::op::follow::{Carried, LATEST};
use oxccl_net::{Head, Memory, Observer, Receiver, Request, Sender, UNTOLD};
use std::collections::VecDeque;
use std::sync::Arc;

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
    /// Messages of operations so far for which somebody waits or has waited.
    awaited: u64,
    /// The bytes of data of the latest messages taken, by number modulo [`LATEST`].
    bytes: [usize; LATEST],
}

/// A slot that was offered.
enum Offered {
    /// The request is under way.
    Waiting(Request),
    /// The head of the message is there and was found right; the rest goes to where it is wanted.
    Begun(Request),
    /// A message of this size is complete.
    Arrived(usize),
}

/// Returns the bytes of data of a message of so many bytes; 0 if that is not told.
fn data_bytes(len: usize) -> usize {
    if len == UNTOLD { 0 } else { len.saturating_sub(HEADER_BYTES) }
}

/// The least bytes of data that are received where they are wanted, and not in a slot first: for
/// fewer the head is not worth a look of its own.
const DIVIDED_BYTES: usize = 8 << 10;

impl Incoming {
    /// Creates the queue of a connection, over which rank `tag` sends messages of operations with
    /// up to `slot_bytes`.
    pub fn new(receiver: Box<dyn Receiver>, tag: u32, slot_bytes: usize) -> Self {
        let slots = Slots::new(EDGE_SLOTS, slot_bytes);
        let (messages, released, taken, awaited, bytes) = Default::default();
        Self { receiver, tag, slots, messages, released, taken, awaited, bytes }
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

    /// Returns the size of a message, which may be [`UNTOLD`], once it is complete; `index` counts
    /// from the oldest one.
    fn arrived(&mut self, index: usize) -> Result<Option<usize>> {
        self.offer(index + 1)?;
        let mut arrived = None;
        for message in self.messages.iter_mut().take(index + 1) {
            let len = match *message {
                Offered::Arrived(len) => len,
                // Somebody receives it.
                Offered::Begun(_) => return Ok(None),
                Offered::Waiting(request) => match self.receiver.test(request)? {
                    Some(len) => len,
                    None => return Ok(None),
                },
            };
            *message = Offered::Arrived(len);
            arrived = Some(len);
        }
        match arrived.filter(|_| self.messages.len() > index) {
            Some(len) if len != UNTOLD && len > self.slots.slot_bytes() => {
                let (tag, room) = (self.tag, self.slots.slot_bytes());
                let cause = format!("{len} bytes from rank {tag} for a slot of {room}");
                Err(Error::system("receiving a message", cause, "report it to the net's vendor"))
            }
            arrived => Ok(arrived),
        }
    }

    /// Receives a message as [`Edge::receive`](crate::link::Edge::receive) does.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    pub(super) unsafe fn receive(
        &mut self,
        to: *mut u8,
        len: usize,
        expect: impl FnOnce(&Message) -> Result<()>,
    ) -> Result<Option<Received>> {
        let mut expect = Some(expect);
        if let Some(request) = self.begin(len, &mut expect)? {
            let divided = self.receiver.divided();
            // SAFETY: writable by the contract; the head tells of as many bytes.
            if divided.map_or(Ok(false), |end| unsafe { end.test_rest(request, to) })? {
                self.messages[0] = Offered::Arrived(HEADER_BYTES + len);
                self.release();
                return Ok(Some(Received::InPlace));
            }
            return Ok(None);
        }
        let Some(message) = self.peek(0)? else { return Ok(None) };
        expect.map_or(Ok(()), |expect| expect(&message))?;
        Ok(Some(Received::Slot(message.data)))
    }

    /// Returns the request of the oldest message if its rest is to be received where it is wanted.
    fn begin(
        &mut self,
        len: usize,
        expect: &mut Option<impl FnOnce(&Message) -> Result<()>>,
    ) -> Result<Option<Request>> {
        self.offer(1)?;
        let request = match self.messages.front() {
            Some(Offered::Begun(request)) => return Ok(Some(*request)),
            Some(Offered::Waiting(request)) if len >= DIVIDED_BYTES => *request,
            _ => return Ok(None),
        };
        let Some(end) = self.receiver.divided() else { return Ok(None) };
        let head = end.test_head(request, HEADER_BYTES)?;
        if let Head::Whole(len) = head {
            self.messages[0] = Offered::Arrived(len);
        }
        let Head::Begun(whole) = head else { return Ok(None) };
        let message = self.message(0, Some(whole - HEADER_BYTES));
        if let Some(expect) = expect.take() {
            expect(&message)?;
        }
        self.messages[0] = Offered::Begun(request);
        Ok(Some(request))
    }

    /// Returns a message of an operation, if it has come; `index` counts from the oldest one that
    /// was not released, and is less than the number of slots.
    pub(crate) fn peek(&mut self, index: usize) -> Result<Option<Message>> {
        let Some(arrived) = self.arrived(index)? else { return Ok(None) };
        if arrived == UNTOLD {
            return Ok(Some(self.message(index, None)));
        }
        let Some(len) = arrived.checked_sub(HEADER_BYTES) else {
            let what = format!(
                "a message of {arrived} bytes is shorter than its header of {HEADER_BYTES}"
            );
            return Err(Error::Internal { what });
        };
        Ok(Some(self.message(index, Some(len))))
    }

    /// Returns what is known of a message whose header is there; it has `len` bytes of data, if
    /// that is known.
    fn message(&self, index: usize, len: Option<usize>) -> Message {
        let slot = self.slot_of(index);
        let data = self.slots.slot(slot).wrapping_add(HEADER_BYTES).cast_const();
        let on_host = self.slots.on_host().then(|| self.slots.bytes(slot));
        let header = on_host.and_then(Header::decode);
        let (descriptor, begun) = header.map(|h| (h.descriptor, h.begun)).unzip();
        let tag = descriptor.map_or(0, |descriptor| descriptor.tag());
        Message { data, len, tag, descriptor, begun }
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
        if let Some(Offered::Arrived(len)) = self.messages.front() {
            self.bytes[self.taken as usize % LATEST] = data_bytes(*len);
        }
        self.taken += 1;
        self.free_slot();
    }

    /// Notes that somebody waits for the next message of an operation.
    pub(super) fn await_next(&mut self) {
        self.awaited = self.taken + 1;
    }

    /// Returns how far the messages have come that somebody waits for, or has waited for.
    pub(super) fn carried(&self) -> Carried {
        let (mut moved, mut bytes) = (self.taken, self.bytes);
        let (asked, operations) = (self.awaited, Default::default());
        for message in &self.messages {
            let Offered::Arrived(len) = message else { break };
            if moved >= asked {
                break;
            }
            bytes[moved as usize % LATEST] = data_bytes(*len);
            moved += 1;
        }
        let (sized, moved) = (moved, moved.min(asked));
        Carried { asked, moved, over: self.taken, bytes, sized, operations }
    }

    fn free_slot(&mut self) {
        self.messages.pop_front();
        self.released += 1;
    }

    /// Takes a message that belongs to no operation, sent before all others: `usual` bytes, where
    /// the transport does not tell how many have come.
    pub(super) fn take_raw(&mut self, usual: usize) -> Result<Option<Vec<u8>>> {
        let Some(len) = self.arrived(0)? else { return Ok(None) };
        let len = if len == UNTOLD { usual } else { len };
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

    /// Has the messages from now on observed; returns false where the transport cannot.
    pub(super) fn observe(&mut self, observer: Arc<dyn Observer>) -> bool {
        self.receiver.observe(observer)
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
    use crate::op::descriptor::Descriptor;
    use oxccl_net::{Connection, Region};
    use oxccl_plan::DataType;
    use std::sync::{Arc, Mutex};

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
                if let Some(bytes) = incoming.take_raw(0).unwrap() {
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

    /// A stream that gives what was put in.
    #[derive(Clone, Default)]
    struct Fed(Arc<Mutex<VecDeque<u8>>>);

    impl std::io::Read for Fed {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            match self.0.lock().unwrap().read(into) {
                Ok(0) => Err(std::io::ErrorKind::WouldBlock.into()),
                read => read,
            }
        }
    }

    /// Returns a message of all ones as TCP carries it.
    fn ones(len: usize) -> Vec<u8> {
        let descriptor = Descriptor::message(DataType::Int8, len as u64);
        let header = Header { descriptor, begun: 0 }.encode();
        let length = (HEADER_BYTES + len) as u32;
        [&length.to_le_bytes()[..], &header, &vec![1; len]].concat()
    }

    #[test]
    fn the_rest_of_a_large_message_goes_where_it_is_wanted_and_nobody_else_takes_it() {
        const LEN: usize = 2 * DIVIDED_BYTES;
        let fed = Fed::default();
        let receiver = oxccl_net::tcp::TcpReceiver::new(fed.clone(), true);
        let mut incoming = Incoming::new(Box::new(receiver), 3, LEN);
        let mut to = vec![0u8; LEN];
        let at = to.as_mut_ptr();
        let right = |message: &Message| {
            assert_eq!((message.len, message.begun), (Some(LEN), Some(0)));
            Ok(())
        };
        let message = ones(LEN);
        let (first, rest) = message.split_at(DIVIDED_BYTES);
        fed.0.lock().unwrap().extend(first);
        for _ in 0..2 {
            // SAFETY: as long as the message.
            assert!(unsafe { incoming.receive(at, LEN, right) }.unwrap().is_none());
            assert!(incoming.peek(0).unwrap().is_none() && incoming.peek(1).unwrap().is_none());
        }
        fed.0.lock().unwrap().extend(rest);
        // SAFETY: as above.
        let received = unsafe { incoming.receive(at, LEN, right) }.unwrap();
        assert!(matches!(received, Some(Received::InPlace)) && to.iter().all(|byte| *byte == 1));
        assert_eq!(incoming.taken(), 1);
        // A small one, and one that somebody has looked at.
        let mut small = |len, look: bool| {
            fed.0.lock().unwrap().extend(ones(len));
            assert!(!look || incoming.peek(0).unwrap().is_some());
            // SAFETY: not longer than the message before.
            let received = unsafe { incoming.receive(at, len, |_| Ok(())) }.unwrap();
            assert!(matches!(received, Some(Received::Slot(_))), "{len}");
            incoming.release();
        };
        small(DIVIDED_BYTES - 1, false);
        small(LEN, true);
        assert_eq!(incoming.taken(), 3);
        assert_eq!(incoming.carried().bytes, [LEN, DIVIDED_BYTES - 1, LEN, 0]);
        // The next one is not awaited, and then it is, and has come.
        fed.0.lock().unwrap().extend(ones(5));
        assert!(incoming.peek(0).unwrap().is_some());
        let stages = |of: Carried| (of.asked, of.moved, of.over);
        assert_eq!(stages(incoming.carried()), (0, 0, 3));
        incoming.await_next();
        assert_eq!(stages(incoming.carried()), (4, 4, 3));
        assert_eq!(incoming.carried().bytes[3], 5);
    }

    #[test]
    fn nothing_is_written_of_a_message_that_is_not_expected() {
        const LEN: usize = DIVIDED_BYTES;
        let fed = Fed::default();
        let receiver = oxccl_net::tcp::TcpReceiver::new(fed.clone(), true);
        let mut incoming = Incoming::new(Box::new(receiver), 3, LEN);
        fed.0.lock().unwrap().extend(ones(LEN - 7));
        let mut to = vec![0u8; LEN];
        for _ in 0..2 {
            let wrong = |message: &Message| {
                assert_eq!(message.len, Some(LEN - 7));
                Err(Error::Internal { what: "too short".to_owned() })
            };
            // SAFETY: as long as is wanted.
            let refused = unsafe { incoming.receive(to.as_mut_ptr(), LEN, wrong) };
            assert!(refused.unwrap_err().to_string().contains("too short"));
        }
        assert!(to.iter().all(|byte| *byte == 0));
        assert_eq!(incoming.taken(), 0);
    }
}
