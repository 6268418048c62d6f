//! A rank on the host device: its links, its counters, and its access to the memory of its peers.

use super::arena::Arena;
use super::lock::{CallGuard, CallMutex};
use crate::error::{Error, Result};
use crate::link::direct::{Segment, reached};
use crate::link::message::{DONE_WITHIN, HEADER_BYTES, MessageEdge};
use crate::link::{Edge, notice};
use crate::log::{self, Level, Subsystem};
use crate::op::descriptor::Descriptor;
use crate::op::follow::{Follower, Lane, Present, Watcher};
use crate::os::memory::Mapping;
use crate::rank::{Links, Rank, broken};
use oxccl_plan::Carrier;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The way in which this rank reaches the user memory of a peer.
pub enum PeerMemory {
    /// By pointer: the peer is in the same process.
    SameProcess,
    /// Through the peer's arena, mapped here.
    Arena(Arc<Mapping>),
    /// The peer's memory cannot be reached.
    Unreachable,
}

/// Collectives that a rank with peers on other hosts remembers.
pub const HISTORY: usize = 64;

/// The time within which threads that register buffers notice that the network ends.
const GIVEN_BACK: Duration = Duration::from_millis(100);

/// The followers of messages with ranks of other hosts.
struct Followers {
    watcher: Arc<dyn Watcher>,
    /// The operation under way.
    present: Present,
    edges: Mutex<Vec<Followed>>,
}

/// A rank of another host, and what follows the messages of each lane.
type Followed = (u32, Vec<Box<dyn Follower>>);

/// The number of collectives so far by each [`Carrier`], indexed by the carrier's number.
pub type CarrierCounts = [u64; Carrier::ALL.len()];

/// The state that only the running operation accesses.
pub struct State {
    /// Links, by rank.
    pub edges: Vec<Edge>,
    /// The edge to the switch of this rank's rail, or [`Edge::Own`].
    pub switch: Edge,
    /// True if some links go over a network.
    pub networked: bool,
    /// Signals of this rank so far.
    pub phase: u64,
    /// Signals of the other ranks, as last seen.
    pub known: Vec<u64>,
    /// Windows of staged plans so far; the parity of their number chooses the stage slot.
    pub stage_windows: u64,
    /// Signals that all peers must have made before each stage slot may be written again.
    pub slot_need: [u64; 2],
    /// Operations with entry words so far.
    pub entries: u64,
    /// Signals that all peers must have made before each slot of entry words may be written again.
    pub entry_need: [u64; 2],
    /// The number of collectives by carrier.
    pub carriers: CarrierCounts,
    /// Collectives begun so far.
    pub collectives: u64,
    /// The tag of all of these.
    pub calls_tag: u32,
    /// The last [`HISTORY`] collectives, with their numbers, for peers that cannot look them up.
    pub history: Vec<(u64, Descriptor)>,
    /// The last collective in which each peer was found to do the same as this rank.
    pub compared: Vec<u64>,
    /// Signals that this rank has sent to itself.
    pub own_signals: HashMap<u32, u64>,
    /// Signals that waits have consumed so far, by peer and number.
    pub taken_signals: HashMap<(u32, u32), u64>,
    /// The private memory of plans.
    pub scratch: Vec<u64>,
    /// The memory into which packets are unpacked, one stretch per rank.
    pub unpacked: Vec<u64>,
    /// Pointers to the sources of a fold, one per rank.
    pub sources: Vec<*const u8>,
    /// Pointers to the destinations of a fold, one per rank.
    pub destinations: Vec<*mut u8>,
    /// Access to the user memory of the peers, by rank.
    pub memory: Vec<PeerMemory>,
    /// The locations of the current operation's buffers: (input, output), by rank.
    pub user: Vec<(Place, Place)>,
}

/// The location of a rank's buffer.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// An address in this process.
    Here(*mut u8),
    /// An address in that rank's process, from which the system copies.
    There(usize),
}

impl Place {
    /// Returns the place so many bytes behind.
    #[inline]
    pub fn at(self, offset: usize) -> Self {
        match self {
            Place::Here(base) => Place::Here(base.wrapping_add(offset)),
            Place::There(base) => Place::There(base + offset),
        }
    }
}

// SAFETY: only the running operation uses the pointers in the state, under its contract.
unsafe impl Send for State {}

/// A rank of a communicator on the host device.
pub struct Endpoint {
    /// The rank.
    pub rank: Arc<Rank>,
    /// True if all ranks are in this process.
    pub one_process: bool,
    /// True if all ranks are on this host.
    pub one_host: bool,
    /// True if every rank maps the arenas of all other ranks. All ranks have the same value.
    pub all_mapped: bool,
    /// Bytes of an edge's slot.
    pub edge_slot_bytes: usize,
    /// True once the network that reduces has refused a buffer.
    refused: AtomicBool,
    state: CallMutex<State>,
    /// The followers of messages, if somebody has them followed.
    followers: OnceLock<Followers>,
}

impl Endpoint {
    /// Assembles an endpoint; all counters start at `start`.
    pub fn new(
        rank: Arc<Rank>,
        one_process: bool,
        edge_slot_bytes: usize,
        (edges, switch): (Vec<Edge>, Option<MessageEdge>),
        memory: Vec<PeerMemory>,
        start: u64,
    ) -> Self {
        let nranks = rank.nranks as usize;
        let networked = edges.iter().any(|e| matches!(e, Edge::Message(_) | Edge::Unconnected(_)));
        let state = State {
            edges,
            switch: switch.map_or(Edge::Own, |edge| Edge::Message(edge.into())),
            networked,
            phase: start,
            known: vec![start; nranks],
            stage_windows: 0,
            slot_need: [start; 2],
            entries: 0,
            entry_need: [start; 2],
            carriers: CarrierCounts::default(),
            collectives: 0,
            calls_tag: 0,
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
        let (all_mapped, refused, state) = (false, AtomicBool::new(false), CallMutex::new(state));
        let followers = OnceLock::new();
        let one_host = !networked;
        Self { rank, one_process, one_host, all_mapped, edge_slot_bytes, refused, state, followers }
    }

    /// Shares the endpoint, so that the monitor can look at its messages and calls.
    pub fn share(self) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| {
            self.rank.set_links(own.clone());
            self
        })
    }

    /// Returns the locked state, for the running operation.
    #[inline]
    pub fn state(&self) -> CallGuard<'_, State> {
        self.state.lock()
    }

    /// Returns whether this rank reaches the arenas of all other ranks.
    pub fn maps_all(&self) -> bool {
        !self.state().memory.iter().any(|m| matches!(m, PeerMemory::Unreachable))
    }

    /// Returns the locked state, unless an operation is running just now.
    pub fn try_state(&self) -> Option<CallGuard<'_, State>> {
        self.state.try_lock()
    }

    /// Leaves the communicator in order: the peers are told, and no operation can follow. The links
    /// end here, even if a graph still holds the endpoint.
    pub fn leave(&self) {
        self.rank.leave(|in_order| {
            let mut state = self.state();
            let mut links = (std::mem::take(&mut state.edges), state.take_switch());
            if in_order {
                let until = Instant::now() + DONE_WITHIN;
                links.0.iter_mut().chain([&mut links.1]).for_each(|edge| edge.finish(until));
            }
            (links.0.iter().map(|edge| edge.messages().1).collect(), links)
        });
    }

    /// Ends all links without notice, as the death of this process would.
    #[cfg(feature = "testing")]
    pub fn cut(&self) {
        self.state().edges.clear();
        drop(self.state().take_switch());
        self.rank.take_controls();
    }

    /// Has the messages with ranks of other hosts followed, if there are any.
    pub fn watch_messages(&self, watcher: Arc<dyn Watcher>) {
        let remote = (0u32..).zip(&self.rank.local).filter(|(_, place)| place.is_none());
        let remote: Vec<_> = remote.map(|(peer, _)| (peer, Vec::new())).collect();
        if remote.is_empty() {
            return;
        }
        let edges = Mutex::new(remote);
        let present = Present::default();
        for (peer, edge) in (0u32..).zip(&mut self.state().edges) {
            let (watcher, present) = (watcher.clone(), present.clone());
            let slot_bytes = self.edge_slot_bytes;
            edge.observe(Box::new(move |number| {
                let lane = lane(peer, number, slot_bytes);
                [true, false].map(|sends| watcher.observe(lane, sends, present.clone()))
            }));
        }
        let _ = self.followers.set(Followers { watcher, present, edges });
    }

    /// Returns whether somebody asks for the messages, who may not return when told of them.
    #[inline]
    pub fn is_followed(&self) -> bool {
        self.followers.get().is_some_and(|followers| followers.watcher.asks())
    }

    /// Notes that an operation runs whose messages nobody asked for before.
    #[inline]
    pub fn pass_followers(&self) {
        let edges = self.followers.get().map(|followers| followers.edges.try_lock());
        if let Some(Ok(mut all)) = edges {
            all.iter_mut().flat_map(|(_, lanes)| lanes).for_each(|follower| follower.pass());
        }
    }

    /// Notes that the messages from now on are those of the operation of this number.
    #[inline]
    pub fn note_operation(&self, operation: u64) {
        if let Some(followers) = self.followers.get() {
            followers.present.set(operation);
        }
    }

    /// Tells those who follow the messages how far they have come in the operation of this number,
    /// and whether that is over. They may never return: nobody may wait for a lock that the caller
    /// holds.
    #[inline]
    pub fn tell_followers(&self, operation: u64, over: bool) {
        if let Some(followers) = self.followers.get() {
            self.tell(followers, operation, over);
        }
    }

    fn tell(&self, followers: &Followers, operation: u64, over: bool) {
        // Only the operation under way tells anything.
        let Ok(mut all) = followers.edges.try_lock() else { return };
        for (peer, lanes) in all.iter_mut() {
            // Edges are connected at their first use.
            let connected =
                self.state().edges.get(*peer as usize).map_or(0, Edge::unobserved_lanes);
            for number in lanes.len() as u32..connected {
                let lane = lane(*peer, number, self.edge_slot_bytes);
                lanes.push(followers.watcher.follow(lane));
            }
            for (number, follower) in (0u32..).zip(lanes) {
                let mut look = || {
                    let state = self.state();
                    let carried = state.edges.get(*peer as usize).map(|edge| edge.carried(number));
                    carried.unwrap_or_default().map(|carried| carried.of(operation))
                };
                follower.note(&mut look);
                if over {
                    follower.end();
                }
            }
        }
    }

    /// Returns the number of collectives that have begun.
    pub fn collectives(&self) -> u64 {
        self.state().collectives
    }

    /// Returns a peer that has not taken all that was sent to it, and whether that peer takes no
    /// more.
    pub fn untaken(&self) -> Option<(u32, bool)> {
        let mut state = self.state();
        (0u32..).zip(&mut state.edges).find_map(|(peer, edge)| {
            // This is looked up first: by then a peer has taken all that it takes.
            let left = self.rank.takes_no_more(peer);
            let told = self.rank.taken(peer);
            (!edge.is_taken(told)).then_some((peer, left))
        })
    }

    /// Asks the ranks of other hosts to report when they have taken all that was sent to them.
    pub fn ask_taken(&self) {
        let state = self.state();
        for (peer, edge) in (0u32..).zip(&state.edges) {
            if let Some(control) = self.rank.control(peer) {
                control.tell(&notice::ask(edge.messages().0));
            }
        }
    }

    /// Returns the error of every operation if the communicator's links are gone.
    pub fn ended(&self, state: &State) -> Option<Error> {
        let gone = || Error::Internal { what: "a communicator without links".to_owned() };
        state.edges.is_empty().then(|| self.rank.failure().unwrap_or_else(gone))
    }

    /// Gives scratch memory back to the system, and the stage slots that no peer reads any more.
    /// The slots stay if peers write there (`inboxes`): peers may have begun the next operation.
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

    /// Returns the bytes that [`release_memory`](Self::release_memory) gives back and those kept.
    pub fn memory_bytes(&self) -> (u64, u64) {
        let state = self.state();
        let private = (state.scratch.capacity() + state.unpacked.capacity()) * 8;
        let place = self.rank.local[self.rank.number as usize];
        let shared =
            self.rank.segment.as_ref().zip(place).map_or((0, 0), |(s, own)| s.resident(own));
        let edges = state.edges.iter().chain([&state.switch]);
        let outgoing: usize = edges.map(Edge::memory_bytes).sum();
        ((private as u64) + shared.0, shared.1 + outgoing as u64)
    }

    /// Returns the token of a buffer: a word by which peers find the buffer, with
    /// [`State::resolve`].
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
    /// Publishes the location of the window of a number to the peers. `copied` is true if the
    /// system copies from the peers' memory.
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

impl Endpoint {
    /// Registers a buffer with the network that reduces; returns its number. `None` without such a
    /// network, and if it refuses the buffer. May block for a plugin.
    pub fn register(&self, base: *mut u8, len: usize) -> Option<u64> {
        let (registrar, memory) = self.state().switch_edge()?.registration(base, len)?;
        // Whatever the plugin takes, operations and their ends get on meanwhile.
        let made = registrar.lock().unwrap_or_else(|e| e.into_inner()).register(memory);
        match made {
            Ok(region) => Some(self.state().switch_edge()?.add_buffer(base, len, region)),
            Err(error) => {
                // One line for all buffers.
                let again = self.refused.swap(true, Ordering::Relaxed);
                let level = if again { Level::Info } else { Level::Warn };
                let text = format!("{len} bytes at {base:p} are copied for the network: {error}");
                log::line_of(Some(self.rank.number), level, Subsystem::Reg, &text);
                None
            }
        }
    }

    /// Ends the registration of a buffer. Fails if an operation uses it, which is under way. May
    /// block for a plugin.
    pub fn deregister(&self, number: u64) -> Result<()> {
        let removed = match self.state().switch_edge() {
            Some(edge) => edge.remove_buffer(number)?,
            None => None,
        };
        let Some((registrar, region)) = removed else { return Ok(()) };
        let ended = registrar.lock().unwrap_or_else(|e| e.into_inner()).deregister(region);
        ended.map_err(Error::from)
    }

    /// Ends the link to the switch if the network uses memory of the user, after the rank has
    /// failed. Waits less than a second for a plugin that does not return; it is logged then that
    /// the memory may still be in use.
    pub fn end_unstaged(&self) {
        // A visit under way ends before this thread gets the lock.
        let mut state = self.state();
        let in_use = state.switch_edge().and_then(|edge| edge.buffers_in_use());
        let Some(in_use) = in_use else { return };
        let switch = state.take_switch();
        drop(state);
        // Its end may wait for the plugin.
        drop(switch);
        // Another thread, which registers a buffer, may give the network back only later.
        let until = Instant::now() + GIVEN_BACK;
        while in_use.strong_count() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        if in_use.strong_count() > 0 {
            let text = "the plugin of the network does not return and may still write into the \
                        buffers of an all-reduce: keep them";
            log::line_of(Some(self.rank.number), Level::Warn, Subsystem::Coll, text);
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

fn lane(peer: u32, number: u32, slot_bytes: usize) -> Lane {
    Lane { peer, number, slot_bytes, header_bytes: HEADER_BYTES }
}

/// Set in the token of a buffer that all peers map. The rest of the token is then the buffer's
/// offset in the arena, or its address if all ranks are in one process. If not set, the rest is an
/// address in the owner's process.
pub const MAPPED: u64 = 1;
/// The token of a rank without a buffer (without input). It rules no plan out, and nothing is
/// reached by it.
const NOTHING: u64 = u64::MAX;

impl State {
    /// Returns the location of a peer's buffer by its token; `None` if this rank does not map it.
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

    /// Returns the edge to a peer, which may be a switch.
    pub fn edge(&mut self, peer: u32) -> &mut Edge {
        match self.edges.get_mut(peer as usize) {
            Some(edge) => edge,
            // It may have ended beside an operation that goes on until it hears of the failure.
            None => &mut self.switch,
        }
    }

    /// Returns the edge to the switch, if there is one.
    fn switch_edge(&mut self) -> Option<&mut MessageEdge> {
        match &mut self.switch {
            Edge::Message(lanes) => Some(lanes.outgoing()),
            _ => None,
        }
    }

    fn take_switch(&mut self) -> Edge {
        std::mem::replace(&mut self.switch, Edge::Own)
    }

    /// Sends pending messages to all peers over a network. Returns a peer for which some are left.
    /// Called whenever an operation waits, as its peers may wait for exactly these messages.
    pub fn flush(&mut self) -> Result<Option<u32>> {
        if !self.networked {
            return Ok(None);
        }
        let mut left = None;
        if !self.switch.flushed()? {
            left = Some(self.edges.len() as u32);
        }
        for (peer, edge) in (0u32..).zip(&mut self.edges) {
            if !edge.flushed().map_err(broken(peer))? {
                left = Some(peer);
            }
        }
        Ok(left)
    }

    /// Returns whether a peer has signalled `target` times. Remembers the signals seen.
    #[inline(always)]
    pub fn has_reached(&mut self, segment: &Segment, peer: u32, target: u64) -> bool {
        let known = &mut self.known[peer as usize];
        if reached(*known, target) {
            return true;
        }
        // With signals, all ranks share the segment: a rank's number is its place there.
        *known = segment.phase(peer as usize).load(Ordering::Acquire);
        reached(*known, target)
    }
}
