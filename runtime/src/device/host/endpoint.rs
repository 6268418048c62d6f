//! A rank's place in a communicator on the host device: its links, its counters, its failure.

use super::arena::Arena;
use crate::device::cuda::seat::Seat;
use crate::error::{Code, Error, Result, Site};
use crate::link::control::Control;
use crate::link::direct::{PeerState, Record, Segment, reached};
use crate::link::{Edge, notice};
use crate::log::{self, Level, Subsystem};
use crate::op::descriptor::Descriptor;
use crate::os::memory::Mapping;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The loss of a peer.
#[derive(Clone, Debug)]
pub struct Death {
    /// Why it is believed.
    pub why: String,
    /// Whether it is the peer that has lost this rank: one of the two, or the network between them, is
    /// at fault.
    pub mutual: bool,
}

/// How this rank reaches the user memory of a peer.
pub enum PeerMemory {
    /// Same process: by pointer.
    SameProcess,
    /// Through the peer's arena, mapped here.
    Arena(Arc<Mapping>),
    /// Not at all.
    Unreachable,
}

/// How long the end of a communicator waits for a peer that does not read its notices.
const FLUSHING: Duration = Duration::from_secs(1);

/// Collectives that a rank with peers on other hosts remembers.
pub const HISTORY: usize = 64;

/// Collectives so far, by the way in which they moved data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// In cache lines that carry their own signal.
    pub packets: u64,
    /// Through the library's own memory: stages or edges.
    pub copied: u64,
    /// In place: all ranks map all buffers.
    pub mapped: u64,
    /// In place: the system reads the other ranks' buffers.
    pub pulled: u64,
}

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
    pub modes: Modes,
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

/// A rank of a communicator, as the executor sees it.
pub struct Endpoint {
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Memory shared with the ranks of this host; None for one rank and where there is no other.
    pub segment: Option<Arc<Segment>>,
    /// Places of the ranks in the segment; None for ranks elsewhere.
    pub local: Vec<Option<usize>>,
    /// Whether all ranks are in this process.
    pub one_process: bool,
    /// Whether every rank maps the arenas of all others: a fact that all ranks share.
    pub all_mapped: bool,
    /// Process ids of the ranks of this host, for the system to copy from.
    pub pids: Vec<i32>,
    /// Bytes of an edge's slot.
    pub edge_slot_bytes: usize,
    /// Limit for an operation's waiting in ns; −1 for none.
    pub timeout_ns: AtomicI64,
    /// Operations called, and operations done: they run in the order of their calls.
    pub issued: AtomicU64,
    /// See `issued`.
    pub finished: AtomicU64,
    /// Its seat on a GPU, whose kernels end with it.
    gpu: OnceLock<Weak<Seat>>,
    /// Control connections with the ranks of other hosts, by rank.
    controls: Mutex<Vec<Option<Arc<Control>>>>,
    /// Peers that have died, in this order, and why that is believed.
    deaths: Mutex<Vec<(u32, Death)>>,
    failed: AtomicBool,
    failure: OnceLock<Error>,
    /// Whether the user was told of the failure.
    delivered: AtomicBool,
    /// Number and name of the operation that last had to wait.
    waiting: Mutex<(u64, &'static str)>,
    state: Mutex<State>,
}

impl Endpoint {
    /// Assembles an endpoint; all counters start at `start`.
    #[allow(clippy::too_many_arguments, reason = "the one constructor names every part")]
    pub fn new(
        rank: u32,
        local: Vec<Option<usize>>,
        segment: Option<Arc<Segment>>,
        one_process: bool,
        pids: Vec<i32>,
        edge_slot_bytes: usize,
        edges: Vec<Edge>,
        memory: Vec<PeerMemory>,
        start: u64,
    ) -> Self {
        let nranks = local.len();
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
            modes: Modes::default(),
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
        Self {
            rank,
            nranks: nranks as u32,
            segment,
            local,
            one_process,
            all_mapped: false,
            pids,
            edge_slot_bytes,
            timeout_ns: AtomicI64::new(-1),
            issued: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            gpu: OnceLock::new(),
            controls: Mutex::default(),
            deaths: Mutex::default(),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            delivered: AtomicBool::new(false),
            waiting: Mutex::default(),
            state: Mutex::new(state),
        }
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

    /// Latches a failure: the first one stays. All operations under way and to come fail with it,
    /// and the peers hear of it. The caller must not hold the state.
    pub fn fail(&self, error: Error) {
        self.note_loss(&error);
        if self.failure.set(error.clone()).is_err() {
            // Not before the peers can see it: then they write no more.
            while !self.failed.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            return;
        }
        let record = self.record(&error);
        if let (Some(segment), Some(local)) = (&self.segment, self.local[self.rank as usize]) {
            segment.publish_failure(local, &record);
        }
        // Before anyone here sees the failure: the process may end then, and the peers would know no more
        // than that this rank is gone.
        self.tell_all(&notice::failed(&record));
        // Operations end from here on, and their buffers are the user's again.
        self.failed.store(true, Ordering::Release);
        if let Some(seat) = self.gpu.get().and_then(Weak::upgrade) {
            seat.abort();
        }
        log::line_of(Some(self.rank), Level::Warn, Subsystem::Coll, &error.to_string());
    }

    /// Takes the control connections with the ranks of other hosts, by rank.
    pub fn set_controls(&mut self, controls: Vec<Option<Arc<Control>>>) {
        self.controls = Mutex::new(controls);
    }

    fn controls(&self) -> MutexGuard<'_, Vec<Option<Arc<Control>>>> {
        self.controls.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The control connection with a peer of another host, until the communicator ends.
    pub fn control(&self, peer: u32) -> Option<Arc<Control>> {
        self.controls().get(peer as usize).cloned().flatten()
    }

    /// Tells all ranks of other hosts.
    pub(super) fn tell_all(&self, notice: &[u8]) {
        self.controls().iter().flatten().for_each(|control| control.tell(notice));
    }

    /// Tells the ranks of this host that this one lives.
    pub(crate) fn pulse(&self) {
        if let Some((segment, own)) = self.segment.as_ref().zip(self.local[self.rank as usize]) {
            segment.pulse(own).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The count of signs of life of a peer of this host.
    pub(crate) fn pulse_of(&self, peer: u32) -> u64 {
        let place = self.local.get(peer as usize).copied().flatten();
        let place = self.segment.as_ref().zip(place);
        place.map_or(0, |(segment, local)| segment.pulse(local).load(Ordering::Relaxed))
    }

    /// What the peers are told of a failure: of what kind it is, whom it is about, and why. What a
    /// peer reported is passed on as it came.
    fn record(&self, error: &Error) -> Record {
        let own = self.rank as i32;
        let (code, culprit) = match error {
            Error::Reported { code: Code::RemoteError, lost: false, .. } => (Code::RemoteError, -1),
            Error::Reported { site, code, .. } => (*code, site.peer),
            Error::Remote { site, .. } => (Code::RemoteError, site.peer),
            // For whom it waited.
            Error::Deadline { site, .. } => (Code::Timeout, site.peer),
            // Nobody is lost.
            Error::Aborted { .. } => (Code::RemoteError, -1),
            error => (error.code(), own),
        };
        let reporter = match error {
            Error::Reported { reporter, .. } => *reporter,
            _ => self.rank,
        };
        Record { code, culprit, reporter, text: error.cause(self.rank) }
    }

    /// Ties it to the rank's seat on a GPU.
    pub fn attach(&self, seat: &Arc<Seat>) {
        let _ = self.gpu.set(Arc::downgrade(seat));
    }

    /// Whether its data lies on a GPU.
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.gpu.get().is_some()
    }

    /// A peer has left in order: kernels wait for it no more.
    pub(crate) fn note_left(&self, peer: u32) {
        if let Some(seat) = self.gpu.get().and_then(Weak::upgrade) {
            seat.note_left(peer);
        }
    }

    /// The failure of a peer of this host, as it tells.
    pub fn hear_from(&self, peer: u32) -> Option<Error> {
        let (segment, place) = self.segment.as_ref().zip(self.local[peer as usize])?;
        segment.failure(place).map(|record| self.told(peer, record))
    }

    /// The failure of any peer of this host.
    pub fn hear(&self) -> Option<Error> {
        (0..self.nranks).filter(|&p| p != self.rank).find_map(|p| self.hear_from(p))
    }

    /// The error here for a failure that a peer tells of.
    pub fn told(&self, peer: u32, record: Record) -> Error {
        let Record { code, culprit, reporter, text } = record;
        let own = self.rank as i32;
        let known = (0..self.nranks as i32).contains(&culprit);
        // It may have come by way of others.
        let by = if reporter < self.nranks { reporter } else { peer } as i32;
        // Who ended its communicator, or could not go on, says so itself.
        let lost = code == Code::RemoteError && known && culprit != by;
        let (code, whom, text) = match code {
            // The same mistake on all sides; the culprit is who found it.
            Code::InvalidUsage => (code, if known { culprit } else { by }, text),
            // It may be this rank that was awaited.
            Code::Timeout => (code, if known { culprit } else { -1 }, text),
            _ if culprit == own => (Code::RemoteError, by, format!("it lost rank {own}: {text}")),
            _ => (Code::RemoteError, if known { culprit } else { by }, text),
        };
        Error::Reported { site: self.site(whom), code, reporter: by as u32, lost, text }
    }

    fn site(&self, peer: i32) -> Site {
        let op_seq = self.finished.load(Ordering::Acquire);
        let (number, name) = *self.waiting();
        let operation = if number == op_seq { name } else { "" };
        Site { rank: self.rank as i32, peer, step: -1, op_seq, operation }
    }

    fn waiting(&self) -> MutexGuard<'_, (u64, &'static str)> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Says what this rank waits in: for failures that are found elsewhere.
    pub(super) fn waits_in(&self, number: u64, name: &'static str) {
        *self.waiting() = (number, name);
    }

    /// The error for the loss of a peer.
    pub fn lost(&self, peer: u32, why: String) -> Error {
        Error::Remote { site: self.site(peer as i32), why }
    }

    /// Asks whether this rank may write into the user memory of its peers; when true,
    /// [`end_writing`](Self::end_writing) has to follow. A rank that fails says so first and then
    /// looks at who writes; a rank that writes says so first and then looks at who failed: so one
    /// of the two sees the other.
    pub fn begin_writing(&self) -> bool {
        let Some((segment, own)) = self.segment.as_ref().zip(self.local[self.rank as usize]) else {
            return false;
        };
        segment.writing(own).store(1, Ordering::Relaxed);
        let clear = !self.someone_failed();
        if !clear {
            self.end_writing();
        }
        clear
    }

    /// Whether a rank of this host has said that it failed, this one included, before what this
    /// thread did or saw until now. Such a rank's user memory may be in use for something else.
    pub fn someone_failed(&self) -> bool {
        fence(Ordering::SeqCst);
        let failed = PeerState::Failed as u64;
        let places = || self.local.iter().flatten();
        self.segment.as_ref().is_some_and(|segment| {
            places().any(|&p| segment.state(p).load(Ordering::Relaxed) == failed)
        })
    }

    /// See [`begin_writing`](Self::begin_writing).
    pub fn end_writing(&self) {
        if let Some((segment, own)) = self.segment.as_ref().zip(self.local[self.rank as usize]) {
            segment.writing(own).store(0, Ordering::Release);
        }
    }

    /// Peers that may still be writing into this rank's user memory, after it failed.
    pub fn writers(&self) -> Vec<u32> {
        let Some(segment) = &self.segment else { return Vec::new() };
        fence(Ordering::SeqCst);
        let writes = |place: &usize| segment.writing(*place).load(Ordering::Acquire) != 0;
        let peers = (0u32..).zip(&self.local).filter(|(peer, _)| *peer != self.rank);
        peers.filter(|(_, place)| place.as_ref().is_some_and(writes)).map(|(p, _)| p).collect()
    }

    /// Leaves in order: the peers hear of it, and no operation can follow. The links end here.
    pub fn leave(&self) {
        if let Some((segment, own)) = self.segment.as_ref().zip(self.local[self.rank as usize]) {
            // Why it failed stays to be read.
            let (running, left) = (PeerState::Running as u64, PeerState::Left as u64);
            let state = segment.state(own);
            let _ = state.compare_exchange(running, left, Ordering::AcqRel, Ordering::Relaxed);
        }
        let hint = "make a new communicator";
        let _ = self.failure.set(Error::usage("the communicator was destroyed", hint));
        self.failed.store(true, Ordering::Release);
        let controls = std::mem::take(&mut *self.controls());
        {
            let mut state = self.state();
            for (control, edge) in controls.iter().zip(&state.edges) {
                let goodbye = || notice::goodbye(edge.messages().1);
                control.iter().for_each(|control| control.tell(&goodbye()));
            }
            // Connections end here, also when a graph still holds the endpoint.
            state.edges.clear();
        }
        // A peer that does not read for so long is stopped, or out of reach.
        let start = Instant::now();
        let left = || controls.iter().flatten().any(|control| !control.flush());
        while left() && start.elapsed() < FLUSHING {
            std::thread::yield_now();
        }
        controls.iter().flatten().for_each(|control| control.finish());
    }

    /// Ends all links without a word, as the death of this process would.
    pub fn cut(&self) {
        self.state().edges.clear();
        self.controls().clear();
    }

    /// On a GPU, after [`leave`](Self::leave): nothing of this rank runs there any more.
    pub fn be_out(&self) {
        if let Some((segment, own)) = self.segment.as_ref().zip(self.local[self.rank as usize]) {
            segment.out(own).store(1, Ordering::Release);
        }
    }

    /// Whether a peer on a GPU has left with nothing running there.
    pub fn is_out(&self, peer: u32) -> bool {
        let place = self.segment.as_ref().zip(self.local[peer as usize]);
        place.is_some_and(|(segment, local)| segment.out(local).load(Ordering::Acquire) != 0)
    }

    /// The failure, if there is one.
    pub fn failure(&self) -> Option<Error> {
        if self.failed.load(Ordering::Acquire) { self.failure.get().cloned() } else { None }
    }

    /// The failure, if there is one, for the user to be told of.
    pub fn deliver(&self) -> Option<Error> {
        let failure = self.failure()?;
        self.set_delivered();
        Some(failure)
    }

    /// The user is told that not all is well.
    pub fn set_delivered(&self) {
        self.delivered.store(true, Ordering::Release);
    }

    /// Whether the user was told.
    pub fn is_delivered(&self) -> bool {
        self.delivered.load(Ordering::Acquire)
    }

    /// Whether a peer has left in order.
    pub fn has_left(&self, peer: u32) -> bool {
        if let Some(control) = self.control(peer) {
            return control.has_left();
        }
        let place = self.segment.as_ref().zip(self.local[peer as usize]);
        let left = PeerState::Left as u64;
        place.is_some_and(|(segment, place)| segment.state(place).load(Ordering::Acquire) == left)
    }

    /// A peer that has not taken all that was sent to it, and whether it has left without.
    pub fn untaken(&self) -> Option<(u32, bool)> {
        let mut state = self.state();
        (0u32..).zip(&mut state.edges).find_map(|(peer, edge)| {
            // Looked up first: it leaves after it has taken all that it takes.
            let left = self.has_left(peer);
            let told = self.control(peer).map_or(0, |control| control.taken());
            (!edge.is_taken(told)).then_some((peer, left))
        })
    }

    /// Asks the ranks of other hosts to tell when they have taken all that was sent to them.
    pub fn ask_taken(&self) {
        let state = self.state();
        for (peer, edge) in (0u32..).zip(&state.edges) {
            if let Some(control) = self.control(peer) {
                control.tell(&notice::ask(edge.messages().0));
            }
        }
    }

    /// Why nothing can run any more, when the communicator's links are gone.
    pub fn ended(&self, state: &State) -> Option<Error> {
        let gone = || Error::Internal { what: "a communicator without links".to_owned() };
        state.edges.is_empty().then(|| self.failure().unwrap_or_else(gone))
    }

    /// Whether operations are under way or waiting.
    pub fn busy(&self) -> bool {
        self.issued.load(Ordering::Acquire) != self.finished.load(Ordering::Acquire)
    }

    fn deaths(&self) -> MutexGuard<'_, Vec<(u32, Death)>> {
        self.deaths.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The first of these peers that died, and why that is believed; also of a communicator that had
    /// failed before.
    pub fn first_death(&self, peers: &[u32]) -> Option<(u32, Death)> {
        self.deaths().iter().find(|(peer, _)| peers.contains(peer)).cloned()
    }

    /// Notes the death of a peer; whether it is news.
    fn note_death(&self, peer: u32, death: Death) -> bool {
        let mut deaths = self.deaths();
        let new = deaths.iter().all(|(known, _)| *known != peer);
        if new {
            deaths.push((peer, death));
        }
        new
    }

    /// Notes the loss that a peer reports, unless that one is believed to be lost itself: of a cut
    /// between two ranks both report the other.
    pub(crate) fn note_loss(&self, error: &Error) {
        let Error::Reported { site, lost: true, reporter, text, .. } = error else { return };
        let Ok(peer) = u32::try_from(site.peer) else { return };
        if self.first_death(&[*reporter]).is_none() {
            self.note_death(peer, Death { why: text.clone(), mutual: peer == *reporter });
        }
    }

    /// Latches the death of a peer: it writes no more.
    pub fn lose(&self, peer: u32, why: String) {
        if let Some((segment, place)) = self.segment.as_ref().zip(self.local[peer as usize]) {
            segment.writing(place).store(0, Ordering::Release);
        }
        let new = self.note_death(peer, Death { why: why.clone(), mutual: false });
        let error = self.lost(peer, why);
        if new && self.failure().is_some() {
            // Children may be made of a communicator that has failed: the others hear of it all the same.
            self.tell_all(&notice::failed(&self.record(&error)));
        }
        self.fail(error);
    }

    /// Gives scratch memory back to the system, and the stage slots that no peer reads any more, unless
    /// peers write there (`inboxes`): they may have begun the next operation.
    pub fn release_memory(&self, inboxes: bool) {
        let mut state = self.state();
        (state.scratch, state.unpacked) = (Vec::new(), Vec::new());
        let Some((segment, own)) = self.segment.as_ref().zip(self.local[self.rank as usize]) else {
            return;
        };
        for slot in 0..2 {
            let need = state.slot_need[slot];
            let all_direct = self.local.iter().all(Option::is_some);
            let mut peers = (0..self.nranks).filter(|&p| p != self.rank);
            if !inboxes && all_direct && peers.all(|p| state.has_reached(segment, p, need)) {
                segment.release_stage(own, slot);
            }
        }
    }

    /// Bytes that [`release_memory`](Self::release_memory) gives back, and that stay.
    pub fn memory_bytes(&self) -> (u64, u64) {
        let state = self.state();
        let private = (state.scratch.capacity() + state.unpacked.capacity()) * 8;
        let place = self.local[self.rank as usize];
        let shared = self.segment.as_ref().zip(place).map_or((0, 0), |(s, own)| s.resident(own));
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

    /// Moves what is on its way to all peers over a network; a peer to which something is left. Done
    /// whenever an operation waits: its peers may wait for just that.
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

/// What an operation is waiting for, for errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Awaited {
    /// The rank; −1 for none.
    pub peer: i32,
    /// The step of the plan.
    pub step: i32,
}

/// The error of an operation that waited too long.
pub fn deadline_error(
    endpoint: &Endpoint,
    awaited: Awaited,
    operation: &'static str,
    waited_ms: u64,
) -> Error {
    let site = Site {
        rank: endpoint.rank as i32,
        peer: awaited.peer,
        step: awaited.step,
        op_seq: endpoint.finished.load(Ordering::Acquire),
        operation,
    };
    Error::Deadline { site, waited_ms }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank of four, in an operation of this name.
    fn alone(rank: u32, operation: &'static str) -> Endpoint {
        let edges = (0..4).map(|_| Edge::Own).collect();
        let memory = (0..4).map(|_| PeerMemory::Unreachable).collect();
        let endpoint =
            Endpoint::new(rank, vec![None; 4], None, false, vec![0; 4], 64, edges, memory, 0);
        endpoint.waits_in(0, operation);
        endpoint
    }

    #[test]
    fn what_a_rank_reports_reaches_all_with_one_cause_one_reporter_and_one_remedy() {
        let first = alone(1, "reduce");
        let (second, third) = (alone(2, "all_reduce"), alone(3, "broadcast"));
        let texts = |error: &Error| {
            let record = first.record(error);
            let heard = second.told(1, record.clone());
            // It is passed on as it is.
            assert_eq!(second.record(&heard), record);
            let again = third.told(2, second.record(&heard));
            assert_eq!(again.code(), error.code());
            [heard, again].map(|error| error.to_string())
        };
        let remedy = "destroy or abort this communicator, the survivors can make a new one";
        let cause = "its process ended (reported by rank 1)";
        assert_eq!(
            texts(&first.lost(0, "its process ended".to_owned())),
            [
                format!("rank 2 lost rank 0 in all_reduce (operation 0): {cause}; {remedy}"),
                format!("rank 3 lost rank 0 in broadcast (operation 0): {cause}; {remedy}"),
            ]
        );
        let cause = "it lost rank 3: its connection closed (reported by rank 1)";
        let lost = first.record(&first.lost(3, "its connection closed".to_owned()));
        assert_eq!(
            third.told(1, lost).to_string(),
            format!("rank 3 lost rank 1 in broadcast (operation 0): {cause}; {remedy}")
        );
        let deadline = deadline_error(&first, Awaited { peer: 3, step: 2 }, "reduce", 500);
        let cause =
            "rank 1 gave up waiting for rank 3 after 500 ms at step 2 of reduce (operation 0)";
        assert_eq!(
            texts(&deadline),
            [
                format!("{cause}; look at what the awaited rank is doing"),
                format!("this rank, 3, was awaited: {cause}; come in time, or raise that limit"),
            ]
        );
        let site = first.site(2);
        let mismatch = Error::Mismatch { site, own: "this".to_owned(), theirs: "that".to_owned() };
        let expected = format!("{mismatch} (reported by rank 1)");
        assert_eq!(texts(&mismatch), [expected.clone(), expected]);
    }

    #[test]
    fn the_peers_are_told_of_a_failure_before_anyone_here_sees_it() {
        for _ in 0..100 {
            let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
            let far = Control::new(far.into());
            let mut endpoint = alone(0, "");
            endpoint.set_controls(vec![
                None,
                Some(Arc::new(Control::new(near.into()))),
                None,
                None,
            ]);
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let told = scope.spawn(|| {
                    both.wait();
                    while endpoint.failure().is_none() {
                        std::hint::spin_loop();
                    }
                    let mut notices = Vec::new();
                    far.receive(&mut notices);
                    notices
                });
                both.wait();
                endpoint.fail(endpoint.lost(2, "its process ended".to_owned()));
                assert!(!told.join().unwrap().is_empty());
            });
        }
    }

    #[test]
    fn a_record_that_blames_no_rank_of_the_communicator_is_about_who_sent_it() {
        let endpoint = alone(0, "");
        for (code, peer) in [(Code::RemoteError, 2), (Code::InvalidUsage, 2), (Code::Timeout, -1)] {
            for culprit in [-1, 4, i32::MIN, i32::MAX] {
                let told =
                    endpoint.told(2, Record { code, culprit, reporter: 2, text: "x".to_owned() });
                assert_eq!(told.site().map(|site| site.peer), Some(peer), "{code:?} {culprit}");
            }
        }
    }
}
