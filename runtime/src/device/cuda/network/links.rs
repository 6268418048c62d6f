//! The state of the edges for other threads than the proxies: counts of messages, the collectives
//! that kernels have begun, and the operations of messages for who follows these.

use super::packed::Packed;
use super::word;
use crate::link::message::HEADER_BYTES;
use crate::op::descriptor::Descriptor;
use crate::op::follow::{Carried, Lane, Operations, TOLD, Watcher};
use crate::rank::Links;
use oxccl_kernels::abi;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};

/// The ranks with the same place in their teams.
#[derive(Clone, Copy)]
pub(super) struct Rail {
    /// One of them.
    pub(super) rank: u32,
    /// The ranks of a team.
    pub(super) team: u32,
}

impl Rail {
    /// Returns whether a rank is one of them.
    pub(super) fn has(self, rank: u32) -> bool {
        rank % self.team == self.rank % self.team
    }
}

/// The words and counts of an edge, for its proxy and for other threads.
pub(super) struct Shared {
    /// The rank at the other end; behind the ranks the switch.
    pub(super) peer: u32,
    pub(super) lane: usize,
    /// The ranks that a switch serves; `None` where a rank is at the other end.
    pub(super) rail: Option<Rail>,
    words: *const abi::NetWords,
    pub(super) start: u64,
    /// The numbers of messages sent and taken.
    pub(super) sent: AtomicU64,
    pub(super) taken: AtomicU64,
    /// The number of messages to all lanes that the peer was asked about, in its first lane.
    pub(super) asked: AtomicU64,
    /// True once the peer has left in order.
    pub(super) left: AtomicBool,
    /// How far the messages had come when the proxy last looked, where somebody follows them.
    pub(super) carried: OnceLock<Mutex<[Carried; 2]>>,
}

// SAFETY: the words stay for as long as the network, and are accessed by atomics.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(super) fn new(
        (peer, lane): (u32, usize),
        rail: Option<Rail>,
        words: *const abi::NetWords,
        start: u64,
    ) -> Self {
        let (sent, taken, asked, left, carried) = Default::default();
        Self { peer, lane, rail, words, start, sent, taken, asked, left, carried }
    }

    /// Returns whether the other end is a switch.
    pub(super) fn is_switch(&self) -> bool {
        self.rail.is_some()
    }

    pub(super) fn words(&self) -> &abi::NetWords {
        // SAFETY: they live as long as the network; words that change are accessed by atomics.
        unsafe { &*self.words }
    }

    /// Returns the number of messages that kernels have written so far.
    pub(super) fn written(&self) -> u64 {
        let sent = self.sent.load(Ordering::Acquire);
        let is_written = |ahead: &u64| {
            let number = self.start.wrapping_add(sent + ahead);
            let slot = (number % abi::NET_SLOTS as u64) as usize;
            let (words, number) = (self.words(), number.wrapping_add(1));
            word(&words.outgoing[slot].mark).load(Ordering::Acquire) as u32 == number as u32
                || Packed::read(&words.outgoing_packed[slot], number).is_some()
        };
        let written = sent + (0..abi::NET_SLOTS as u64).take_while(is_written).count() as u64;
        // What is sent meanwhile is no longer found in its slot for a moment.
        written.max(self.sent.load(Ordering::Acquire))
    }
}

/// The operations of the latest messages in a direction, as kernels tell of them.
#[derive(Default)]
pub(super) struct KnownCalls {
    /// The messages so far.
    asked: u64,
    /// As [`Operations::Latest`] has them.
    pub(super) operations: [u64; TOLD],
}

impl KnownCalls {
    /// Reads those of the messages since the last time, with so many in all. Their numbers begin
    /// at `start`.
    pub(super) fn read(&mut self, start: u64, calls: &[u64; abi::NET_CALLS], asked: u64) {
        for message in self.asked.max(asked.saturating_sub(TOLD as u64))..asked {
            let number = start.wrapping_add(message);
            let told = word(&calls[(number % abi::NET_CALLS as u64) as usize]);
            let is_of_it = |told: &u64| told >> 48 == number.wrapping_add(1) & 0xffff;
            let told = std::iter::repeat_with(|| told.load(Ordering::Acquire)).take(LOOKS);
            let call = told.into_iter().find(is_of_it).unwrap_or(0);
            self.operations[message as usize % TOLD] = call & 0xffff_ffff_ffff;
        }
        self.asked = self.asked.max(asked);
    }
}

/// The edges, as other threads than the proxies see them.
pub struct Edges {
    pub(super) all: Vec<Shared>,
    /// The collectives that kernels have begun, until the network ends.
    pub(super) begun: Mutex<Option<Calls>>,
}

/// The address of [`abi::REMEMBERED`] collectives.
pub(super) struct Calls(pub(super) *const abi::Begun);

// SAFETY: the words are accessed by atomics, while the network lives.
unsafe impl Send for Calls {}

impl Links for Edges {
    fn taken_from(&self, peer: u32) -> Option<u64> {
        let edges = self.all.iter().filter(|edge| edge.peer == peer);
        Some(edges.map(|edge| edge.taken.load(Ordering::Acquire)).sum())
    }

    fn begun(&self) -> Option<u64> {
        None
    }

    fn remembered(&self, seq: u64) -> Option<Descriptor> {
        let begun = self.begun.lock().unwrap_or_else(|e| e.into_inner());
        let all = begun.as_ref()?.0;
        // SAFETY: within the memory, which is aligned, and stays while the lock is held; words that
        // change are accessed by atomics.
        let here = unsafe { &*all.add((seq % abi::REMEMBERED as u64) as usize) };
        let is_it = || word(&here.number).load(Ordering::Acquire) == seq;
        let known = is_it();
        let (what, count) = (word(&here.what), word(&here.count));
        let (what, count) = (what.load(Ordering::Relaxed), count.load(Ordering::Relaxed));
        // The kernel takes the number away before it writes other words.
        fence(Ordering::Acquire);
        (known && is_it()).then(|| Descriptor::from_words(what as u32, count))
    }
}

impl Edges {
    /// Has a thread of the watcher look how far the messages of all edges have come. `slot_bytes`
    /// are those of the data of a slot.
    pub fn watch(self: &Arc<Self>, watcher: &dyn Watcher, slot_bytes: usize) {
        for (i, edge) in self.all.iter().enumerate().filter(|(_, edge)| !edge.is_switch()) {
            let (peer, number) = (edge.peer, edge.lane as u32);
            let lane = Lane { peer, number, slot_bytes, header_bytes: HEADER_BYTES };
            edge.carried.get_or_init(Mutex::default);
            let (edges, mut known) = (self.clone(), Default::default());
            watcher.look_at(lane, Box::new(move || edges.carried(i, &mut known)));
        }
    }

    /// Returns how far the messages of an edge have come: those sent, and those received.
    fn carried(&self, edge: usize, known: &mut [KnownCalls; 2]) -> [Carried; 2] {
        let begun = self.begun.lock().unwrap_or_else(|e| e.into_inner());
        let shared = &self.all[edge];
        let carried = shared.carried.get().map(|c| *c.lock().unwrap_or_else(|e| e.into_inner()));
        let [sent, received] = carried.unwrap_or_default();
        if begun.is_none() {
            // The words are gone with the network, and kernels wait for nothing more.
            return [sent, Carried { asked: received.moved, ..received }];
        }
        let words = shared.words();
        let wanted = word(&words.wanted).load(Ordering::Acquire).wrapping_sub(shared.start);
        let of = |carried: Carried, asked, known: &mut KnownCalls, calls| {
            known.read(shared.start, calls, asked);
            let operations = Operations::Latest(known.operations);
            Carried { operations, ..carried }.up_to(asked)
        };
        let [outgoing, incoming] = known;
        let sent = of(sent, shared.written(), outgoing, &words.outgoing_calls);
        [sent, of(received, wanted, incoming, &words.incoming_calls)]
    }
}

/// Looks at what tells of the operation of a message: it may be seen after the message.
const LOOKS: usize = 100;

const _: () = assert!(TOLD == abi::NET_CALLS);
