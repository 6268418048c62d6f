//! Memory of the user that a network which reduces reads and writes itself: messages to a switch
//! go *unstaged* where their data and the place of their result lie in such memory.
//!
//! Each rank decides that for itself, message by message: the others see the same messages.

use super::MessageEdge;
use crate::error::{Error, Result};
use crate::op::descriptor::Descriptor;
use oxccl_net::{Connection, Memory, Place, Region, Unstaged};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

/// A way to register memory beside the ends of an edge. It may block for a plugin.
pub type Registrar = Arc<Mutex<Box<dyn Connection>>>;

/// A registered buffer.
struct Buffer {
    number: u64,
    base: usize,
    len: usize,
    region: Region,
}

/// The registered buffers of an edge, and the messages that use them.
#[derive(Default)]
pub(super) struct Registered {
    registrar: Option<Registrar>,
    buffers: Vec<Buffer>,
    /// The number of the next buffer.
    next: u64,
    /// The numbers of the buffers of each message to a switch whose result was not received yet,
    /// the oldest first; `None` for a message in slots.
    under_way: VecDeque<Option<[u64; 2]>>,
    /// Everything that may use a buffer has a clone.
    owner: Arc<()>,
}

impl Registered {
    fn buffer(&self, at: *const u8, len: usize) -> Option<&Buffer> {
        let contains = |buffer: &&Buffer| {
            let offset = at.addr().checked_sub(buffer.base);
            offset.is_some_and(|offset| offset <= buffer.len && len <= buffer.len - offset)
        };
        self.buffers.iter().find(contains)
    }

    /// Returns how a message goes unstaged, and the numbers of the buffers; `None` if it cannot.
    fn places(&self, from: *const u8, to: *mut u8, len: usize) -> Option<(Unstaged, [u64; 2])> {
        let (data, result) = (self.buffer(from, len)?, self.buffer(to, len)?);
        let regions = [data.region, result.region];
        Some((Unstaged { from, to, len, regions }, [data.number, result.number]))
    }

    /// Takes note that the result of the oldest message is received; returns whether it was written
    /// where it is wanted.
    pub(super) fn received(&mut self) -> bool {
        self.under_way.pop_front().flatten().is_some()
    }
}

impl MessageEdge {
    /// Returns the edge to a switch for which memory of the user can be registered.
    pub fn with_registrar(mut self, registrar: Box<dyn Connection>) -> Self {
        self.registered.registrar = Some(Arc::new(Mutex::new(registrar)));
        self
    }

    /// Sends as [`Edge::reduce`](crate::link::Edge::reduce) does.
    ///
    /// # Safety
    /// That of `Edge::reduce`.
    pub(in crate::link) unsafe fn reduce(
        &mut self,
        (from, to): (*const u8, *mut u8),
        len: usize,
        descriptor: Descriptor,
        begun: u32,
    ) -> Result<bool> {
        let (unstaged, numbers) = self.registered.places(from, to, len).unzip();
        // SAFETY: passed on from the caller; the places are registered.
        let sent = unsafe {
            match unstaged {
                Some(unstaged) => self.outgoing.send_unstaged(unstaged, descriptor, begun),
                None => self.outgoing.send(from, len, descriptor, begun),
            }
        };
        // The network may have a message that has failed.
        if !matches!(sent, Ok(false)) {
            self.registered.under_way.push_back(numbers);
        }
        sent
    }

    /// Returns what registers a buffer, and as what; `None` if nobody would use it.
    pub fn registration(&self, data: *mut u8, len: usize) -> Option<(Registrar, Memory)> {
        let owner = self.registered.owner.clone();
        let registrar = self.registered.registrar.clone()?;
        Some((registrar, Memory { data, len, place: Place::Host, owner }))
    }

    /// Takes a buffer that was registered; returns its number.
    pub fn add_buffer(&mut self, data: *mut u8, len: usize, region: Region) -> u64 {
        let registered = &mut self.registered;
        registered.next += 1;
        let (number, base) = (registered.next, data.addr());
        registered.buffers.push(Buffer { number, base, len, region });
        number
    }

    /// Gives up the buffer of a number, which no later message uses; returns what ends its
    /// registration. `None` for a number that is not there. Fails if a message still uses it.
    pub fn remove_buffer(&mut self, number: u64) -> Result<Option<(Registrar, Region)>> {
        let Registered { registrar, buffers, under_way, .. } = &mut self.registered;
        let Some(at) = buffers.iter().position(|buffer| buffer.number == number) else {
            return Ok(None);
        };
        if under_way.iter().flatten().flatten().any(|used| *used == number) {
            let what = "an operation that is under way uses the registered buffer";
            return Err(Error::usage(what, "synchronize its stream before"));
        }
        let region = buffers.swap_remove(at).region;
        Ok(registrar.clone().map(|registrar| (registrar, region)))
    }

    /// Returns what lives as long as anything else may use the buffers, if messages use some now.
    pub fn buffers_in_use(&self) -> Option<Weak<()>> {
        let used = self.registered.under_way.iter().any(Option::is_some);
        used.then(|| Arc::downgrade(&self.registered.owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Received;
    use crate::link::message::{HEADER_BYTES, Incoming, Outgoing};
    use oxccl_net::{Receiver, Request, Sender, UNTOLD};
    use oxccl_plan::DataType;

    /// A switch of one rank: what is sent comes back as it is.
    #[derive(Clone, Default)]
    struct Echo(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        slots: Vec<*mut u8>,
        results: Vec<usize>,
    }

    // SAFETY: used by one thread.
    unsafe impl Send for State {}

    impl Connection for Echo {
        fn register(&mut self, memory: Memory) -> oxccl_net::Result<Region> {
            Ok(Region(memory.len))
        }
    }

    impl Sender for Echo {
        unsafe fn isend(
            &mut self,
            data: *const u8,
            len: usize,
            _tag: u32,
            _region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            let mut state = self.0.lock().unwrap();
            let Some(&slot) = state.slots.get(state.results.len()) else { return Ok(None) };
            let mut result = len;
            // SAFETY: readable by the contract; slots are as large as each other, and a message
            // without data says where they are.
            unsafe {
                slot.copy_from_nonoverlapping(data, len);
                if len == HEADER_BYTES {
                    let unstaged = data.add(len).cast::<Unstaged>().read_unaligned();
                    assert_eq!(unstaged.regions, [Region(32); 2]);
                    unstaged.to.copy_from(unstaged.from, unstaged.len);
                    result = UNTOLD;
                }
            }
            state.results.push(result);
            Ok(Some(state.results.len() as Request))
        }

        fn test(&mut self, _request: Request) -> oxccl_net::Result<bool> {
            Ok(true)
        }
    }

    impl Receiver for Echo {
        unsafe fn irecv(
            &mut self,
            data: *mut u8,
            _capacity: usize,
            _tag: u32,
            _region: Region,
        ) -> oxccl_net::Result<Option<Request>> {
            let mut state = self.0.lock().unwrap();
            state.slots.push(data);
            Ok(Some(state.slots.len() as Request - 1))
        }

        fn test(&mut self, request: Request) -> oxccl_net::Result<Option<usize>> {
            Ok(self.0.lock().unwrap().results.get(request as usize).copied())
        }
    }

    /// Sends 16 bytes of the memory to the switch, from one place; the result is for another one.
    fn send(edge: &mut MessageEdge, memory: *mut u8, from: usize, to: usize) {
        let places = (memory.wrapping_add(from).cast_const(), memory.wrapping_add(to));
        let descriptor = Descriptor::message(DataType::Int8, 16);
        // SAFETY: both lie in the memory of the test.
        assert!(unsafe { edge.reduce(places, 16, descriptor, 0) }.unwrap());
    }

    /// Receives a result; returns its bytes if it is in a slot.
    fn receive(edge: &mut MessageEdge, to: *mut u8) -> Option<Vec<u8>> {
        loop {
            // SAFETY: the place lies in the memory of the test.
            match unsafe { edge.receive(to, 16, |_| Ok(())) }.unwrap() {
                None => {}
                Some(Received::InPlace) => return None,
                Some(Received::Slot(data)) => {
                    // SAFETY: as many bytes were sent.
                    let bytes = unsafe { std::slice::from_raw_parts(data, 16) }.to_vec();
                    edge.release();
                    return Some(bytes);
                }
            }
        }
    }

    #[test]
    fn messages_go_unstaged_where_both_places_are_registered_until_that_ends() {
        let echo = Echo::default();
        let outgoing = Outgoing::new(Box::new(echo.clone()), 0, 64);
        let incoming = Incoming::new(Box::new(echo.clone()), 1, 64);
        let mut edge = MessageEdge::new(outgoing, incoming).with_registrar(Box::new(echo));
        let mut memory: Vec<u8> = (0..64).collect();
        let at = memory.as_mut_ptr();
        let (registrar, made) = edge.registration(at, 32).unwrap();
        let region = registrar.lock().unwrap().register(made).unwrap();
        let number = edge.add_buffer(at, 32, region);
        assert!(edge.buffers_in_use().is_none());
        send(&mut edge, at, 0, 16);
        let in_use = edge.buffers_in_use().unwrap();
        assert_eq!(in_use.strong_count(), 1, "of the edge itself");
        let text = edge.remove_buffer(number).err().unwrap().to_string();
        assert!(text.contains("under way"), "{text}");
        // Mixed with messages in slots.
        send(&mut edge, at, 32, 0);
        send(&mut edge, at, 0, 0);
        assert_eq!(receive(&mut edge, at.wrapping_add(16)), None);
        assert_eq!(receive(&mut edge, at), Some((32..48).collect()));
        assert_eq!(receive(&mut edge, at), None);
        assert_eq!(memory[..32], [(0..16).collect::<Vec<u8>>(), (0..16).collect()].concat());
        // Not all of the result is in the buffer.
        send(&mut edge, at, 0, 17);
        assert!(edge.buffers_in_use().is_none());
        assert!(receive(&mut edge, at.wrapping_add(17)).is_some());
        assert_eq!(edge.remove_buffer(number).unwrap().map(|(_, region)| region), Some(region));
        assert!(edge.remove_buffer(number).unwrap().is_none());
        send(&mut edge, at, 0, 16);
        assert!(receive(&mut edge, at.wrapping_add(16)).is_some());
    }
}
