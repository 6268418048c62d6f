//! Connections: the sender's ring of offers, and the requests of both sides.

use crate::device::{Device, PortAddress};
use crate::options::{MAX_QUEUE_PAIRS, Options};
use crate::verbs::{Completion, CompletionQueue, HINT, MemoryRegion, Place, QueuePair};
use oxccl_net::{Connection, Error, Memory, Receiver, Region, Request, Result, Sender};
use serde::{Deserialize, Serialize};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The most messages under way: NCCL's limit from version 9 of its interface on
/// (`NCCL_NET_MAX_REQUESTS`).
const MESSAGES: usize = 32;
/// Requests of a queue pair in each direction: a message and an offer each, while others wait to be
/// taken from the completion queue.
const REQUESTS: u32 = 4 * MESSAGES as u32;
/// The mark of requests that write offers, in their numbers.
const OFFER: u64 = 1 << 63;
/// The alignment of the parts into which a message is split, in bytes.
const PART_ALIGN: usize = 128;

/// An offer of memory for a message. The number is at both ends, so that an offer that is written
/// in part is not taken for a whole one.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Offer {
    first: u64,
    address: u64,
    size: u64,
    key: u64,
    _unused: [u64; 3],
    last: u64,
}

/// The offers of messages, by number. It has a page for itself, of the largest size that is common:
/// pages that adapters use are not inherited by children.
#[repr(C, align(65536))]
struct Ring([UnsafeCell<Offer>; MESSAGES]);

impl Ring {
    fn at(&self, number: u64) -> *mut Offer {
        self.0[number as usize % MESSAGES].get()
    }
}

// SAFETY: each end is used by one thread at a time, and the adapter writes as the protocol says.
unsafe impl Send for Ring {}

/// The queue pairs of an end, and the ring that it has registered.
pub(crate) struct Ends {
    // Requests end with the queue pairs, hence before the memory.
    pairs: Vec<QueuePair>,
    completions: Arc<CompletionQueue>,
    ring_region: MemoryRegion,
    ring: Box<Ring>,
    regions: Vec<Option<(MemoryRegion, Memory)>>,
    device: Arc<Device>,
    peer: Peer,
    split: bool,
    /// The error that ended the connection.
    failed: Option<Error>,
}

/// The name of the other end, for texts, and the place of its ring.
struct Peer {
    name: String,
    ring: Place,
}

/// The address of an end, for the other one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndsAddress {
    /// The device and host, for texts.
    name: String,
    port: PortAddress,
    queue_pairs: Vec<u32>,
    ring: (u64, u32),
    split: bool,
}

impl EndsAddress {
    /// Returns the number of queue pairs.
    pub(crate) fn queue_pairs(&self) -> usize {
        self.queue_pairs.len()
    }
}

impl Ends {
    /// Makes an end that is not connected yet.
    pub(crate) fn new(device: &Arc<Device>, number: usize, options: &Options) -> Result<Self> {
        if !(1..=MAX_QUEUE_PAIRS).contains(&number) {
            let cause = format!("{number} queue pairs; 1 to {MAX_QUEUE_PAIRS} are possible");
            return Err(Error::new("making a connection", cause, HINT));
        }
        let adapter = &device.adapter;
        let completions = CompletionQueue::new(adapter, number * 2 * REQUESTS as usize)?;
        let pairs = (0..number).map(|_| QueuePair::new(&completions, REQUESTS));
        let pairs = pairs.collect::<Result<_>>()?;
        let ring = Box::new(Ring(std::array::from_fn(|_| UnsafeCell::default())));
        let at = ring.at(0).cast();
        Ok(Self {
            pairs,
            completions,
            ring_region: MemoryRegion::new(adapter, at, size_of::<Ring>())?,
            ring,
            regions: Vec::new(),
            device: device.clone(),
            peer: Peer { name: "a peer".to_owned(), ring: Place { address: 0, key: 0 } },
            split: options.split,
            failed: None,
        })
    }

    /// Returns the address for the other end.
    pub(crate) fn address(&self) -> EndsAddress {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        EndsAddress {
            name: format!("{} of {}", self.device.name(), host.trim()),
            port: self.device.address(),
            queue_pairs: self.pairs.iter().map(QueuePair::number).collect(),
            ring: (self.ring.at(0) as u64, self.ring_region.remote_key()),
            split: self.split,
        }
    }

    /// Connects with the other end; what this one sends is of a traffic class.
    pub(crate) fn connect(
        &mut self,
        to: &EndsAddress,
        traffic_class: u8,
        options: &Options,
    ) -> Result<()> {
        let (own, theirs) = (self.pairs.len(), to.queue_pairs.len());
        if own != theirs || self.split != to.split {
            let cause = format!(
                "this side has {own} queue pairs and split {}, {} has {theirs} and {}; set \
                 NCCL_IB_QPS_PER_CONNECTION and NCCL_IB_SPLIT_DATA_ON_QPS alike",
                self.split, to.name, to.split
            );
            return Err(Error::new("connecting", cause, HINT));
        }
        let path = self.device.path(&to.port, traffic_class, options)?;
        for (pair, number) in self.pairs.iter_mut().zip(&to.queue_pairs) {
            pair.connect(&path, *number)?;
        }
        let (address, key) = to.ring;
        self.peer = Peer { name: to.name.clone(), ring: Place { address, key } };
        Ok(())
    }

    /// Returns the places of the queue pairs that a message takes.
    fn pairs_of(&self, number: u64) -> std::ops::Range<usize> {
        let pairs = self.pairs.len();
        let one = number as usize % pairs;
        if self.split { 0..pairs } else { one..one + 1 }
    }

    /// Calls a function with each request that is complete; fails once and for all if one failed.
    fn poll(&mut self, each: impl FnMut(Completion)) -> Result<()> {
        let result = self.failed.clone().map_or_else(|| self.completions.poll(each), Err);
        self.kept(result)
    }

    /// Keeps the first error, and says whose connection it ended.
    fn kept<T>(&mut self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let (own, peer) = (self.device.name(), &self.peer.name);
            let named = || Error {
                call: format!("{} between {own} and {peer}", error.call),
                ..error.clone()
            };
            self.failed.get_or_insert_with(named).clone()
        })
    }

    fn register(&mut self, memory: Memory) -> Result<Region> {
        let region = MemoryRegion::new(&self.device.adapter, memory.data, memory.len)?;
        let free = self.regions.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.regions.push(None);
            self.regions.len() - 1
        });
        self.regions[place] = Some((region, memory));
        Ok(Region(place))
    }

    fn deregister(&mut self, region: Region) {
        if let Some(place) = self.regions.get_mut(region.0) {
            *place = None;
        }
    }

    /// Returns the keys of registered memory, of which the bytes have to be a part: for this side's
    /// requests, and for the peer's.
    fn keys(&self, region: Region, data: *const u8, len: usize) -> Result<(u32, u32)> {
        if len == 0 {
            return Ok((0, 0));
        }
        let found = self.regions.get(region.0).and_then(Option::as_ref);
        let offset = |memory: &Memory| (data as usize).wrapping_sub(memory.data as usize);
        let holds = |memory: &Memory| len <= memory.len && offset(memory) <= memory.len - len;
        let found = found.filter(|(_, memory)| holds(memory));
        let none = || Error::new("a request", "its memory is not registered", HINT);
        found.map(|(region, _)| (region.local_key(), region.remote_key())).ok_or_else(none)
    }
}

/// Returns the part of a message that goes over one of several queue pairs: offset and length.
fn part(len: usize, at: usize, parts: usize) -> (usize, usize) {
    let share = len.div_ceil(parts).next_multiple_of(PART_ALIGN);
    let first = (share * at).min(len);
    (first, share.min(len - first))
}

/// The sending end.
pub(crate) struct IbSender {
    ends: Ends,
    /// The number of messages that were begun.
    begun: u64,
    /// By message: the parts that are not complete.
    left: [usize; MESSAGES],
}

impl IbSender {
    pub(crate) fn new(ends: Ends) -> Self {
        Self { ends, begun: 0, left: [0; MESSAGES] }
    }

    fn poll(&mut self) -> Result<()> {
        let left = &mut self.left;
        self.ends.poll(|done| left[done.id as usize % MESSAGES] -= 1)
    }

    /// Returns the offer for the next message, if the peer has made it.
    fn offer(&self) -> Option<Offer> {
        let number = self.begun + 1;
        // SAFETY: within the ring; the adapter may be writing it, which the numbers show.
        let offer = unsafe { self.ends.ring.at(self.begun).read_volatile() };
        if offer.first != number || offer.last != number {
            return None;
        }
        fence(Ordering::Acquire);
        // SAFETY: as above. The first reading may have been torn; now both numbers were there.
        Some(unsafe { self.ends.ring.at(self.begun).read_volatile() })
    }

    /// Writes a message to where it was offered to.
    ///
    /// # Safety
    /// As for `isend`.
    unsafe fn write(&mut self, data: *const u8, len: usize, key: u32, to: Offer) -> Result<()> {
        let (number, pairs) = (self.begun, self.ends.pairs_of(self.begun));
        for (at, pair) in pairs.clone().enumerate() {
            let (first, len_here) = part(len, at, pairs.len());
            let from = Place { address: data as u64 + first as u64, key };
            let to = Place { address: to.address.wrapping_add(first as u64), key: to.key as u32 };
            let pair = &mut self.ends.pairs[pair];
            // SAFETY: by the contract.
            unsafe { pair.write(number, (from, len_here), to, Some(len as u32))? };
            self.left[number as usize % MESSAGES] += 1;
        }
        self.begun += 1;
        Ok(())
    }
}

impl Connection for IbSender {
    fn register(&mut self, memory: Memory) -> Result<Region> {
        self.ends.register(memory)
    }

    fn deregister(&mut self, region: Region) -> Result<()> {
        self.ends.deregister(region);
        Ok(())
    }
}

impl Sender for IbSender {
    unsafe fn isend(
        &mut self,
        data: *const u8,
        len: usize,
        _tag: u32,
        region: Region,
    ) -> Result<Option<Request>> {
        let is_free = self.left[self.begun as usize % MESSAGES] == 0;
        let Some(offer) = self.offer().filter(|_| is_free) else {
            self.poll()?;
            return Ok(None);
        };
        let most = offer.size.min(self.ends.device.max_bytes());
        if len as u64 > most {
            let cause = format!("{len} bytes; {} takes {most}", self.ends.peer.name);
            return Err(Error::new("sending a message", cause, HINT));
        }
        let (key, _) = self.ends.keys(region, data, len)?;
        let request = self.begun;
        // SAFETY: by the contract.
        let result = unsafe { self.write(data, len, key, offer) };
        self.ends.kept(result)?;
        Ok(Some(request))
    }

    fn test(&mut self, request: Request) -> Result<bool> {
        // A message that is complete is so whatever became of others.
        let polled = self.poll();
        match self.left[request as usize % MESSAGES] {
            0 => Ok(true),
            _ => polled.map(|()| false),
        }
    }
}

/// The receiving end.
pub(crate) struct IbReceiver {
    ends: Ends,
    /// The number of messages for which memory was offered, and of offers that have arrived.
    offered: u64,
    arrived: u64,
    /// By message.
    awaited: [Awaited; MESSAGES],
}

/// A message that is received.
#[derive(Clone, Copy, Default)]
struct Awaited {
    /// The parts that have not come.
    parts: usize,
    capacity: usize,
    /// The size by the peer's word.
    size: usize,
}

impl IbReceiver {
    pub(crate) fn new(ends: Ends) -> Self {
        Self { ends, offered: 0, arrived: 0, awaited: [Awaited::default(); MESSAGES] }
    }

    fn poll(&mut self) -> Result<()> {
        let (awaited, arrived) = (&mut self.awaited, &mut self.arrived);
        self.ends.poll(|done| {
            if done.id & OFFER != 0 {
                *arrived += 1;
                return;
            }
            let of = &mut awaited[done.id as usize % MESSAGES];
            // A peer of ours always says the size; without it the message is refused as too long.
            let size = done.immediate.map_or(usize::MAX, |size| size as usize);
            (of.parts, of.size) = (of.parts - 1, of.size.max(size));
        })
    }

    /// Takes the next message into memory, and offers it to the peer.
    fn offer(&mut self, data: *mut u8, size: usize, key: u32) -> Result<()> {
        let number = self.offered;
        let pairs = self.ends.pairs_of(number);
        let awaited = Awaited { parts: pairs.len(), capacity: size, size: 0 };
        self.awaited[number as usize % MESSAGES] = awaited;
        for pair in pairs {
            self.ends.pairs[pair].take(number)?;
        }
        let (at, own_key) = (self.ends.ring.at(number), self.ends.ring_region.local_key());
        let (address, size, sequence) = (data as u64, size as u64, number + 1);
        let (key, unused) = (u64::from(key), [0; 3]);
        let offer = Offer { first: sequence, address, size, key, _unused: unused, last: sequence };
        // SAFETY: the request that has written the offer before this one is complete.
        unsafe { at.write_volatile(offer) };
        let from = Place { address: at as u64, key: own_key };
        let offset = (number as usize % MESSAGES * size_of::<Offer>()) as u64;
        let Place { address, key } = self.ends.peer.ring;
        let to = Place { address: address.wrapping_add(offset), key };
        // All offers take the same queue pair, so that they arrive in order.
        let pair = &mut self.ends.pairs[0];
        // SAFETY: the ring is registered, and the offer stays until its request is complete.
        unsafe { pair.write(OFFER | number, (from, size_of::<Offer>()), to, None)? };
        self.offered += 1;
        Ok(())
    }
}

impl Connection for IbReceiver {
    fn register(&mut self, memory: Memory) -> Result<Region> {
        self.ends.register(memory)
    }

    fn deregister(&mut self, region: Region) -> Result<()> {
        self.ends.deregister(region);
        Ok(())
    }
}

impl Receiver for IbReceiver {
    unsafe fn irecv(
        &mut self,
        data: *mut u8,
        capacity: usize,
        _tag: u32,
        region: Region,
    ) -> Result<Option<Request>> {
        let request = self.offered;
        let is_free = |of: &Self| {
            of.awaited[request as usize % MESSAGES].parts == 0
                && request - of.arrived < MESSAGES as u64
        };
        if !is_free(self) {
            self.poll()?;
            if !is_free(self) {
                return Ok(None);
            }
        }
        let (_, key) = self.ends.keys(region, data, capacity)?;
        let result = self.offer(data, capacity, key);
        self.ends.kept(result)?;
        Ok(Some(request))
    }

    fn ends_with_requests(&self) -> bool {
        true
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        let polled = self.poll();
        let Awaited { parts, capacity, size } = self.awaited[request as usize % MESSAGES];
        match parts {
            0 if size > capacity => {
                let (peer, limit) = (&self.ends.peer.name, format!("; {capacity} were offered"));
                let cause = format!("{peer} says that it has sent {size} bytes{limit}");
                Err(Error::new("receiving a message", cause, HINT))
            }
            0 => Ok(Some(size)),
            // A message that is complete is so whatever became of others.
            _ => polled.map(|()| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_message_are_all_of_it_once() {
        for parts in 1..=MAX_QUEUE_PAIRS {
            for len in [0, 1, 127, 128, 129, 1000, 65536, 65552] {
                let mut next = 0;
                for at in 0..parts {
                    let (first, here) = part(len, at, parts);
                    assert!(first == next && (here == 0 || first % PART_ALIGN == 0));
                    next = first + here;
                }
                assert_eq!(next, len, "{parts} parts");
            }
        }
    }
}
