//! All ranks of a communicator in one thread: endpoints over shared segments and wires, as the
//! creation of a communicator assembles them, and the monitor's watches.

use super::net::{self, Wire};
use crate::sequence::Random;
use oxccl_runtime::device::host::arena::Arena;
use oxccl_runtime::device::host::endpoint::{Endpoint, PeerMemory};
use oxccl_runtime::link::Edge;
use oxccl_runtime::link::control::Control;
use oxccl_runtime::link::direct::{DirectEdge, Segment, SegmentLayout};
use oxccl_runtime::link::message::{Incoming, MessageEdge, Outgoing};
use oxccl_runtime::os::memory::{Mapping, sealed_memfd};
use oxccl_runtime::rank::Rank;
use oxccl_runtime::rank::monitor::{self, Sign, Watch};
use oxccl_runtime::recorder::{Memory, Recorder};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

/// Where the ranks live.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The host of each rank.
    pub(super) hosts: Vec<u32>,
    /// Whether all of them are in one process; on one host only.
    pub(super) one_process: bool,
    pub(super) edge_slot_bytes: usize,
}

impl Place {
    pub(super) fn nranks(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Whether all ranks share memory.
    pub(super) fn direct(&self) -> bool {
        self.hosts.iter().all(|h| *h == self.hosts[0])
    }
}

/// A simulated communicator.
pub(super) struct World {
    pub(super) place: Place,
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    watches: Vec<Vec<Watch>>,
    /// While it is there, the rank's process lives.
    lives: Vec<Option<UnixStream>>,
    /// With the rank that sends.
    wires: Vec<(usize, Wire)>,
}

/// This process's arena, as a peer maps it.
fn arena_of_peer() -> Arc<Mapping> {
    static MAPPING: OnceLock<Arc<Mapping>> = OnceLock::new();
    let map = || {
        let arena = Arena::get().expect("an arena");
        Arc::new(Mapping::of(arena.fd(), arena.bytes()).expect("address space"))
    };
    MAPPING.get_or_init(map).clone()
}

fn segment(nlocal: usize, edge_slot_bytes: usize, start: u64) -> Arc<Segment> {
    let layout = SegmentLayout { nlocal, edge_slot_bytes };
    let fd = sealed_memfd("oxccl-simulation", layout.bytes()).expect("memory");
    let mapping = Mapping::of(fd.as_fd(), layout.bytes()).expect("address space");
    let segment = Arc::new(Segment::new(mapping, layout));
    (0..nlocal).for_each(|local| segment.initialise(local, start));
    segment
}

impl World {
    /// Makes a communicator. Where it has a number, what its ranks do is recorded where others read
    /// it.
    pub(super) fn new(place: Place, comm: Option<u64>, random: &mut Random) -> Self {
        let n = place.hosts.len();
        // Counters wrap in some worlds.
        let start = random.draw() | if random.below(2) == 0 { u64::MAX << 4 } else { 0 };
        let mut segments = HashMap::new();
        let (mut wires, mut senders, mut receivers) = (Vec::new(), HashMap::new(), HashMap::new());
        for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))) {
            if place.hosts[from] != place.hosts[to] {
                let (wire, sender, receiver) = net::connect(Random(random.draw()));
                wires.push((from, wire));
                senders.insert((from, to), sender);
                receivers.insert((from, to), receiver);
            }
        }
        let mut controls = controls(&place);
        let mut endpoints = Vec::new();
        for (rank, host) in place.hosts.iter().enumerate() {
            let ranks: Vec<usize> = (0..n).filter(|&r| place.hosts[r] == *host).collect();
            let local: Vec<_> = (0..n).map(|r| ranks.iter().position(|&l| l == r)).collect();
            let slot_bytes = place.edge_slot_bytes;
            let shared = segments
                .entry(*host)
                .or_insert_with(|| {
                    (ranks.len() > 1).then(|| segment(ranks.len(), slot_bytes, start))
                })
                .clone();
            let edges = (0..n).map(|peer| {
                let message = senders.remove(&(rank, peer)).zip(receivers.remove(&(peer, rank)));
                match (message, &shared, local[rank], local[peer]) {
                    (Some((sender, receiver)), ..) => {
                        let outgoing = Outgoing::new(sender, rank as u32, slot_bytes);
                        let incoming = Incoming::new(receiver, peer as u32, slot_bytes);
                        Edge::Message(MessageEdge::new(outgoing, incoming).into())
                    }
                    (None, Some(segment), Some(own), Some(place)) if peer != rank => {
                        Edge::Direct(DirectEdge::new(segment.clone(), own, place, start))
                    }
                    _ => Edge::Own,
                }
            });
            let reach = |peer: usize| match local[peer] {
                _ if place.one_process => PeerMemory::SameProcess,
                Some(_) => PeerMemory::Arena(arena_of_peer()),
                None => PeerMemory::Unreachable,
            };
            let (edges, memory) = ((edges.collect(), None), (0..n).map(reach).collect());
            let (pids, one) = (vec![std::process::id() as i32; n], place.one_process);
            let rank = rank as u32;
            let record = |comm| {
                let recorder = Recorder::new();
                recorder.identify(comm, (rank, n as u32), Memory::Host(0), "");
                recorder
            };
            let recorder = comm.map(record).unwrap_or_default();
            let rank = Arc::new(Rank::new(rank, local, shared, pids).recorded_by(recorder));
            rank.set_controls(std::mem::take(&mut controls[rank.number as usize]));
            let mut endpoint = Endpoint::new(rank, one, slot_bytes, edges, memory, start);
            endpoint.all_mapped = place.direct();
            endpoints.push(endpoint.share());
        }
        let lives: Vec<_> = (0..n).map(|_| UnixStream::pair().expect("descriptors")).collect();
        let watches = (0..n).map(|rank| watch(&place, &endpoints[rank], &lives)).collect();
        let lives = lives.into_iter().map(|(life, _)| Some(life)).collect();
        Self { place, endpoints, watches, lives, wires }
    }

    /// The monitor of a rank looks once; true while it waits for more.
    pub(super) fn look(&mut self, rank: usize) -> bool {
        monitor::look(&mut self.watches[rank])
    }

    /// The rank's process dies.
    pub(super) fn kill(&mut self, rank: usize) {
        self.wires.iter().filter(|(from, _)| *from == rank).for_each(|(_, wire)| wire.cut());
        self.endpoints[rank].cut();
        self.watches[rank].clear();
        self.lives[rank] = None;
    }

    /// The rank destroys its communicator.
    pub(super) fn leave(&mut self, rank: usize) {
        self.watches[rank].clear();
        self.endpoints[rank].leave();
    }

    /// The process of a rank that has left ends.
    pub(super) fn exit(&mut self, rank: usize) {
        self.lives[rank] = None;
    }
}

/// The control connections of each rank, by peer: real sockets, because the monitor polls them.
fn controls(place: &Place) -> Vec<Vec<Option<Arc<Control>>>> {
    let n = place.hosts.len();
    let mut all: Vec<Vec<_>> = (0..n).map(|_| vec![None; n]).collect();
    for (low, high) in (0..n).flat_map(|high| (0..high).map(move |low| (low, high))) {
        if place.hosts[low] != place.hosts[high] {
            let (a, b) = UnixStream::pair().expect("descriptors");
            all[low][high] = Some(Arc::new(Control::new(a.into())));
            all[high][low] = Some(Arc::new(Control::new(b.into())));
        }
    }
    all
}

/// What a rank's monitor watches.
fn watch(
    place: &Place,
    endpoint: &Arc<Endpoint>,
    lives: &[(UnixStream, UnixStream)],
) -> Vec<Watch> {
    let state = endpoint.state();
    let peers = (0u32..).zip(&state.edges);
    peers
        .filter_map(|(peer, edge)| {
            let sign = match edge {
                Edge::Own | Edge::Unconnected(_) => return None,
                Edge::Message(_) => {
                    Sign::Control(endpoint.rank.control(peer).expect("a connection"))
                }
                Edge::Direct(_) if place.one_process => Sign::Memory,
                Edge::Direct(_) => {
                    let life = lives[peer as usize].1.try_clone().expect("a descriptor");
                    Sign::Process(OwnedFd::from(life))
                }
            };
            Some(Watch::new(&endpoint.rank, peer, sign))
        })
        .collect()
}
