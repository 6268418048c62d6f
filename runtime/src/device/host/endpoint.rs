//! A rank's place in a communicator on the host device: its links, its counters, its failure.

use super::arena::{Arena, Mapping};
use crate::error::{Error, Result, Site};
use crate::link::Edge;
use crate::link::direct::{Segment, reached};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// How this rank reaches the user memory of a peer.
pub enum PeerMemory {
    /// Same process: by pointer.
    SameProcess,
    /// Through the peer's arena, mapped here.
    Arena(Arc<Mapping>),
    /// Not at all.
    Unreachable,
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
    failed: AtomicBool,
    failure: OnceLock<Error>,
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
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            state: Mutex::new(state),
        }
    }

    /// The state, for the running operation.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Latches a failure: the first one stays. All operations under way and to come fail with it.
    pub fn fail(&self, error: Error) {
        let first = self.failure.set(error.clone()).is_ok();
        self.failed.store(true, Ordering::Release);
        if first {
            crate::log::line(crate::log::Level::Warn, &error.to_string());
        }
    }

    /// As [`fail`](Self::fail), for an end that is no failure to report.
    pub fn retire(&self, error: Error) {
        let _ = self.failure.set(error);
        self.failed.store(true, Ordering::Release);
    }

    /// The failure, if there is one.
    pub fn failure(&self) -> Option<Error> {
        if self.failed.load(Ordering::Acquire) { self.failure.get().cloned() } else { None }
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

    /// Latches the death of a peer.
    pub fn lose(&self, peer: u32, why: String) {
        let site = Site {
            rank: self.rank as i32,
            peer: peer as i32,
            step: -1,
            op_seq: self.finished.load(Ordering::Acquire),
            operation: "an operation",
        };
        self.fail(Error::Remote { site, why });
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
