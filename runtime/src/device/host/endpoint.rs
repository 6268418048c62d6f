//! A rank on the host device: its links, its counters, its reach into the memory of others.

use super::arena::Arena;
use crate::error::{Error, Result, Site};
use crate::link::direct::{Segment, reached};
use crate::link::{Edge, notice};
use crate::op::descriptor::Descriptor;
use crate::os::memory::Mapping;
use crate::rank::{Links, Rank};
use oxccl_plan::Carrier;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// How this rank reaches the user memory of a peer.
pub enum PeerMemory {
    /// Same process: by pointer.
    SameProcess,
    /// Through the peer's arena, mapped here.
    Arena(Arc<Mapping>),
    /// Not at all.
    Unreachable,
}

/// Collectives that a rank with peers on other hosts remembers.
pub const HISTORY: usize = 64;

/// Collectives so far by what moved their data, by the number of the [`Carrier`].
pub type CarrierCounts = [u64; Carrier::ALL.len()];

/// What only the operation that currently runs touches.
pub struct State {
    /// Links, by rank.
    pub edges: Vec<Edge>,
    /// Whether some links go over a network.
    pub networked: bool,
    /// Signals of this rank so far.
    pub phase: u64,
    /// Signals of the others, as last seen.
    pub known: Vec<u64>,
    /// Windows of staged plans so far; their parity chooses the slot.
    pub stage_windows: u64,
    /// Signals that all peers must have made before a stage slot may be written again.
    pub slot_need: [u64; 2],
    /// Operations with entry words so far.
    pub entries: u64,
    /// As `slot_need`, for the entry words.
    pub entry_need: [u64; 2],
    /// How collectives were carried out.
    pub carriers: CarrierCounts,
    /// Collectives begun so far.
    pub collectives: u64,
    /// The last collectives, by number, where peers cannot look them up: see [`HISTORY`].
    pub history: Vec<(u64, Descriptor)>,
    /// The collective in which each peer was last found to do the same.
    pub compared: Vec<u64>,
    /// Signals of this rank for itself.
    pub own_signals: HashMap<u32, u64>,
    /// Signals waited for so far, by peer and number.
    pub taken_signals: HashMap<(u32, u32), u64>,
    /// Private memory of plans.
    pub scratch: Vec<u64>,
    /// Where packets are unpacked, one stretch per rank.
    pub unpacked: Vec<u64>,
    /// Room for the sources and destinations of a fold, one per rank.
    pub sources: Vec<*const u8>,
    /// See `sources`.
    pub destinations: Vec<*mut u8>,
    /// Reach into the user memory of the others, by rank.
    pub memory: Vec<PeerMemory>,
    /// Where the buffers of the current operation lie: (input, output), by rank.
    pub user: Vec<(Place, Place)>,
}

/// Where a rank's buffer can be found.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// At this address of this process.
    Here(*mut u8),
    /// At this address of that rank's process, from which the system copies.
    There(usize),
}

// SAFETY: the pointers in it are used only by the running operation, under its contract.
unsafe impl Send for State {}

/// A rank of a communicator, as the host's executor sees it.
pub struct Endpoint {
    /// The rank.
    pub rank: Arc<Rank>,
    /// Whether all ranks are in this process.
    pub one_process: bool,
    /// Whether every rank maps the arenas of all others: a fact that all ranks share.
    pub all_mapped: bool,
    /// Bytes of an edge's slot.
    pub edge_slot_bytes: usize,
    state: Mutex<State>,
}

impl Endpoint {
    /// Assembles an endpoint; all counters start at `start`.
    pub fn new(
        rank: Arc<Rank>,
        one_process: bool,
        edge_slot_bytes: usize,
        edges: Vec<Edge>,
        memory: Vec<PeerMemory>,
        start: u64,
    ) -> Self {
        let nranks = rank.nranks as usize;
        let networked = edges.iter().any(|e| matches!(e, Edge::Message(_)));
        let state = State {
            edges,
            networked,
            phase: start,
            known: vec![start; nranks],
            stage_windows: 0,
            slot_need: [start; 2],
            entries: 0,
            entry_need: [start; 2],
            carriers: CarrierCounts::default(),
            collectives: 0,
            history: Vec::new(),
            compared: vec![u64::MAX; nranks],
            own_signals: HashMap::new(),
            taken_signals: HashMap::new(),
            scratch: Vec::new(),
            unpacked: Vec::new(),
            sources: vec![std::ptr::null(); nranks],
            destinations: vec![std::ptr::null_mut(); nranks.max(2)],
            memory,
            user: vec![(Place::There(0), Place::There(0)); nranks],
        };
        Self { rank, one_process, all_mapped: false, edge_slot_bytes, state: Mutex::new(state) }
    }

    /// Shares it, so that the monitor can ask what its messages and calls look like.
    pub fn share(self) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| {
            self.rank.set_links(own.clone());
            self
        })
    }

    /// The state, for the running operation.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether this rank reaches the arenas of all others.
    pub fn maps_all(&self) -> bool {
        !self.state().memory.iter().any(|m| matches!(m, PeerMemory::Unreachable))
    }

    /// The state, unless an operation is running just now.
    pub fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock().ok()
    }

    /// Leaves in order: the peers hear of it, and no operation can follow. The links end here, also
    /// where a graph still holds the endpoint.
    pub fn leave(&self) {
        self.rank.leave(|| {
            let edges = std::mem::take(&mut self.state().edges);
            edges.iter().map(|edge| edge.messages().1).collect()
        });
    }

    /// Ends all links without a word, as the death of this process would.
    #[cfg(feature = "testing")]
    pub fn cut(&self) {
        self.state().edges.clear();
        self.rank.take_controls();
    }

    /// A peer that has not taken all that was sent to it, and whether it has left without.
    pub fn untaken(&self) -> Option<(u32, bool)> {
        let mut state = self.state();
        (0u32..).zip(&mut state.edges).find_map(|(peer, edge)| {
            // Looked up first: it leaves after it has taken all that it takes.
            let left = self.rank.has_left(peer);
            let told = self.rank.control(peer).map_or(0, |control| control.taken());
            (!edge.is_taken(told)).then_some((peer, left))
        })
    }

    /// Asks the ranks of other hosts to tell when they have taken all that was sent to them.
    pub fn ask_taken(&self) {
        let state = self.state();
        for (peer, edge) in (0u32..).zip(&state.edges) {
            if let Some(control) = self.rank.control(peer) {
                control.tell(&notice::ask(edge.messages().0));
            }
        }
    }

    /// Why nothing can run any more, when the communicator's links are gone.
    pub fn ended(&self, state: &State) -> Option<Error> {
        let gone = || Error::Internal { what: "a communicator without links".to_owned() };
        state.edges.is_empty().then(|| self.rank.failure().unwrap_or_else(gone))
    }

    /// Gives scratch memory back to the system, and the stage slots that no peer reads any more,
    /// unless peers write there (`inboxes`): they may have begun the next operation.
    pub fn release_memory(&self, inboxes: bool) {
        let mut state = self.state();
        (state.scratch, state.unpacked) = (Vec::new(), Vec::new());
        let Some((segment, own)) = self.rank.place() else {
            return;
        };
        for slot in 0..2 {
            let need = state.slot_need[slot];
            let all_direct = self.rank.local.iter().all(Option::is_some);
            let mut peers = (0..self.rank.nranks).filter(|&p| p != self.rank.number);
            if !inboxes && all_direct && peers.all(|p| state.has_reached(segment, p, need)) {
                segment.release_stage(own, slot);
            }
        }
    }

    /// Bytes that [`release_memory`](Self::release_memory) gives back, and that stay.
    pub fn memory_bytes(&self) -> (u64, u64) {
        let state = self.state();
        let private = (state.scratch.capacity() + state.unpacked.capacity()) * 8;
        let place = self.rank.local[self.rank.number as usize];
        let shared =
            self.rank.segment.as_ref().zip(place).map_or((0, 0), |(s, own)| s.resident(own));
        let outgoing: usize = state.edges.iter().map(Edge::memory_bytes).sum();
        ((private as u64) + shared.0, shared.1 + outgoing as u64)
    }

    /// A word that lets peers find a buffer, by [`State::resolve`].
    pub fn token(&self, ptr: *const u8, len: usize) -> u64 {
        if self.one_process && !ptr.is_null() {
            return (ptr as u64) << 1 | MAPPED;
        }
        if ptr.is_null() {
            return NOTHING;
        }
        let offset = Arena::get().filter(|_| self.all_mapped).and_then(|a| a.offset(ptr, len));
        offset.map_or((ptr as u64) << 1, |offset| (offset as u64) << 1 | MAPPED)
    }
}

impl Endpoint {
    /// Tells the peers where the window of a number is. `copied`: whether the system copies from
    /// the peers' memory.
    pub fn open_window(&self, base: *mut u8, len: usize, number: u64, copied: bool) -> Result<()> {
        let token = self.token(base, len);
        if token & MAPPED == 0 && !copied && self.rank.nranks > 1 {
            let what = "this memory cannot be reached by the other ranks";
            return Err(Error::usage(what, "take a window's memory from ncclMemAlloc"));
        }
        if let Some((segment, own)) = self.rank.place() {
            segment.open_window(own, number, token, len as u64);
        }
        Ok(())
    }

    /// Ends a window.
    pub fn close_window(&self, number: u64) {
        if let Some((segment, own)) = self.rank.place() {
            segment.close_window(own, number);
        }
    }
}

impl Links for Endpoint {
    fn taken_from(&self, peer: u32) -> Option<u64> {
        let state = self.try_state()?;
        Some(state.edges.get(peer as usize).map_or(0, |edge| edge.messages().1))
    }

    fn begun(&self) -> Option<u64> {
        Some(self.try_state()?.collectives)
    }

    fn remembered(&self, seq: u64) -> Option<Descriptor> {
        let state = self.state();
        state.history.iter().find(|(number, _)| *number == seq).map(|(_, call)| *call)
    }
}

/// Set in the token of a buffer that all peers map: the rest is its offset in the arena, or its
/// address in the one process of all ranks. Not set, the rest is an address of the owner's.
pub const MAPPED: u64 = 1;
/// The token of no buffer at all (a rank without input): nothing hinders, nothing can be reached.
const NOTHING: u64 = u64::MAX;

impl State {
    /// Where a peer's buffer is, by its token; None when this rank does not map it after all.
    pub fn resolve(&self, peer: u32, token: u64) -> Option<Place> {
        let value = (token >> 1) as usize;
        if token == NOTHING {
            return Some(Place::There(0));
        }
        if token & MAPPED == 0 {
            return Some(Place::There(value));
        }
        match &self.memory[peer as usize] {
            PeerMemory::SameProcess => {
                Some(Place::Here(std::ptr::with_exposed_provenance_mut(value)))
            }
            PeerMemory::Arena(mapping) if value < mapping.bytes() => {
                // SAFETY: within the mapping.
                Some(Place::Here(unsafe { mapping.base().add(value) }))
            }
            PeerMemory::Arena(_) | PeerMemory::Unreachable => None,
        }
    }

    /// Moves what is on its way to all peers over a network; a peer to which something is left.
    /// Done whenever an operation waits: its peers may wait for just that.
    pub fn flush(&mut self) -> Result<Option<u32>> {
        if !self.networked {
            return Ok(None);
        }
        let mut left = None;
        for (peer, edge) in (0u32..).zip(&mut self.edges) {
            if !edge.flushed().map_err(broken(peer))? {
                left = Some(peer);
            }
        }
        Ok(left)
    }

    /// Whether a peer has signalled `target` times; remembers what it saw.
    #[inline(always)]
    pub fn has_reached(&mut self, segment: &Segment, peer: u32, target: u64) -> bool {
        let known = &mut self.known[peer as usize];
        if reached(*known, target) {
            return true;
        }
        // All ranks share the segment when there are signals: a rank is its own place.
        *known = segment.phase(peer as usize).load(Ordering::Acquire);
        reached(*known, target)
    }
}

/// Turns a failed system call on the link to a peer into the loss of that peer; the operation adds
/// the rest of the site.
pub fn broken(peer: u32) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::System { call, cause, .. } => Error::Remote {
            site: Site { peer: peer as i32, ..Site::default() },
            why: format!("{call}: {cause}"),
        },
        other => other,
    }
}
