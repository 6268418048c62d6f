//! Making a communicator: rendezvous, shared memory with the ranks of this host, connections to
//! the others, and a last barrier after which every rank can run everything.

use super::connect::{self, Links};
use super::rank_info::{self, RankInfo};
use super::{Communicator, Options, team};
use crate::bootstrap::deadline::InVain;
use crate::bootstrap::descriptors::{self, Group, Listener};
use crate::bootstrap::session::{self, Meeting, Session};
use crate::bootstrap::{Cancel, UniqueId, interface};
use crate::config::Config;
use crate::device::Device;
use crate::device::cuda::engines;
use crate::device::cuda::offer::Offer;
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::reaper;
use crate::device::host::arena::Arena;
use crate::device::host::endpoint::{Endpoint, PeerMemory};
use crate::device::host::{pull, worker};
use crate::error::{Error, Result};
use crate::fork;
use crate::link::Edge;
use crate::link::control::Control;
use crate::link::direct::{DirectEdge, Segment, SegmentLayout};
use crate::link::message::MessageEdge;
use crate::link::message::net::Identity;
use crate::log::{self, Level, Subsystem};
use crate::os::memory::{Mapping, sealed_memfd};
use crate::rank::Rank;
use crate::rank::monitor::{self, Sign};
use oxccl_plan::select::Policy;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

/// Who asks to become a member of a communicator.
#[derive(Clone, Debug)]
pub struct Member {
    /// The communicator's id.
    pub id: UniqueId,
    /// Rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Where its data lies.
    pub device: Device,
    /// What its creator asks for.
    pub options: Options,
}

/// A meeting of ranks, some of whom make a communicator.
pub(super) struct Rendezvous {
    pub(super) session: Session,
    /// The members' numbers in the meeting, by their rank in the communicator.
    pub(super) participants: Vec<u32>,
    /// What they are called in texts, by their rank in the communicator.
    pub(super) names: Vec<u32>,
}

impl Rendezvous {
    /// Gives every member the blobs of all, by rank. Blocks for all who meet.
    pub(super) fn gather(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.session.gather(blob)?;
        Ok(self.select(all))
    }

    /// An error that was found here, with the name of the rank that it is about; what the
    /// rendezvous says, and what is known of deaths, has it already.
    fn rename(&self, error: Error) -> Error {
        match error {
            Error::InitPeer { site, why, died: false } if !self.session.has_verdict() => {
                let name = self.names.get(site.peer as usize).copied();
                Error::init_peer(name.unwrap_or(site.peer as u32), why)
            }
            other => other,
        }
    }

    /// What the members gave, by rank, of what all gave who meet.
    fn select(&self, mut all: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut take = |number: &u32| all.get_mut(*number as usize).map(std::mem::take);
        self.participants.iter().filter_map(&mut take).collect()
    }
}

/// What a communicator needs to meet again, for children: nothing of its data path.
pub(super) struct ChildMeetings {
    /// From which the ids of later meetings derive.
    pub(super) id: UniqueId,
    /// Where this rank would hold a meeting.
    pub(super) listener: TcpListener,
    /// Where the ranks would.
    pub(super) addresses: Vec<SocketAddr>,
    /// Meetings of each kind so far: the same on all ranks.
    pub(super) splits: AtomicU64,
    pub(super) grows: AtomicU64,
    /// Those who are excluded do not count.
    pub(super) shrinks: Mutex<HashMap<Vec<u32>, u64>>,
}

/// Tells which variables are given, and complains about what is of no use.
fn warn_once() {
    static WARN: std::sync::Once = std::sync::Once::new();
    WARN.call_once(|| {
        let version = concat!("OxCCL ", env!("CARGO_PKG_VERSION"), ", interface of NCCL 2.30.7");
        log::line(Level::Version, Subsystem::Init, version);
        let report = &Config::get().report;
        report.warnings.iter().for_each(|line| log::line(Level::Warn, Subsystem::Env, line));
        report.given().for_each(|line| log::line(Level::Info, Subsystem::Env, &line));
    });
}

/// Bytes of an edge's slot: edges are quadratic in the ranks of a host.
fn edge_slot_bytes(nranks: u32) -> usize {
    match nranks {
        0..=8 => 64 << 10,
        9..=16 => 32 << 10,
        17..=32 => 16 << 10,
        _ => 8 << 10,
    }
}

/// Makes a communicator. Blocks until all ranks have come, or initialisation's time is over.
pub fn create(member: &Member) -> Result<Communicator> {
    join(member, &Cancel::default(), (None, None))
}

/// As [`create`], until `cancel` is set or `in_vain` finds a reason; `holder` is the rank whose
/// process holds the rendezvous, where that is known.
pub(super) fn join(
    member: &Member,
    cancel: &Cancel,
    (in_vain, holder): (Option<InVain>, Option<u32>),
) -> Result<Communicator> {
    let Member { id, rank, nranks, device, options } = member;
    fork::check()?;
    fork::refuse_children()?;
    warn_once();
    // Variables are read once: what is made of this communicator has them too.
    rank_info::algorithm(Config::checked()?)?;
    let limit = options.init_limit();
    let (rank, nranks) = (*rank, *nranks);
    let reused = false;
    let meeting = Meeting { id, rank, nranks, reused, limit, cancel, in_vain, holder };
    let mut session = Session::open(&meeting)?;
    if nranks == 1 {
        // The id's rendezvous ends when all have come and gone.
        session.gather(&[])?;
        session.close();
        return alone(*device, options);
    }
    let everyone: Vec<u32> = (0..nranks).collect();
    let rendezvous = Rendezvous { session, participants: everyone.clone(), names: everyone };
    assemble(rendezvous, id, rank, *device, options)
}

/// Makes a communicator of those who meet in a rendezvous; the calling one becomes `rank`. `id`
/// tells its connections from others.
pub(super) fn assemble(
    mut rendezvous: Rendezvous,
    id: &UniqueId,
    rank: u32,
    device: Device,
    options: &Options,
) -> Result<Communicator> {
    let nranks = rendezvous.participants.len() as u32;
    if nranks == 1 {
        rendezvous.session.close();
        return alone(device, options);
    }
    match make(&mut rendezvous, id, rank, device, options) {
        Ok(comm) => {
            rendezvous.session.close();
            Ok(comm)
        }
        Err(error) => {
            let error = rendezvous.rename(error);
            Err(rendezvous.session.give_up(error))
        }
    }
}

fn make(
    rendezvous: &mut Rendezvous,
    id: &UniqueId,
    rank: u32,
    device: Device,
    options: &Options,
) -> Result<Communicator> {
    let nranks = rendezvous.participants.len() as u32;
    let listener = Listener::new()?;
    let control = session::listen(interface::beside(id.address, Config::get())?)?;
    let members = Members::meet(rendezvous, (rank, device), &listener, &control)?;
    // At a fixed address one communicator follows the other: connections belong to this one.
    let own = id.salted(&members.blobs[0].socket);
    let (segment, memory) = share_memory(&members, &own, listener, rendezvous)?;
    let identity = Identity { comm: own.comm, secret: own.secret, rank, nranks };
    let links = match members.is_one_host() {
        true => Links::default(),
        false => {
            connect::connect(identity, &members, &control, rendezvous, edge_slot_bytes(nranks))?
        }
    };
    let signs = signs(&members.blobs, &links.controls, rank);
    let edges = edges(&members, segment.as_ref(), links.edges, members.start());
    let mut endpoint = members.endpoint(segment, edges, memory);
    endpoint.rank.set_controls(links.controls);
    let cuda_rank = match device {
        Device::Host(_) => None,
        Device::Cuda(index) => {
            let taken = make_cuda_rank(index, rendezvous, &members, options);
            let taken =
                taken.and_then(|cuda_rank| cuda_rank.start(members.start()).map(|()| cuda_rank));
            // Nothing of this rank will run there.
            Some(taken.inspect_err(|_| endpoint.rank.set_quiescent())?)
        }
    };
    let pull = match agree(rendezvous, &members.blobs, &mut endpoint) {
        Ok(pull) => pull,
        Err(error) => {
            abandon(
                &endpoint.rank,
                cuda_rank,
                culprit(&rendezvous.names, &rendezvous.rename(error.clone())),
            );
            return Err(error);
        }
    };
    worker::note_local_ranks(members.on_this_machine());
    let child_meetings = ChildMeetings {
        id: id.clone(),
        listener: control,
        addresses: members.blobs.iter().map(|b| b.control).collect(),
        splits: AtomicU64::new(0),
        grows: AtomicU64::new(0),
        shrinks: Mutex::default(),
    };
    let hosts = if members.is_one_host() { 1 } else { 2 };
    let comm = Communicator::new(endpoint, device, options, Some(child_meetings));
    let mut comm =
        comm.with_topology(hosts, pull, members.blobs[0].policy(&members.blobs[rank as usize]));
    if let Some(cuda_rank) = cuda_rank {
        comm = comm.with_cuda_rank(cuda_rank);
    }
    comm.lsa_size = team::lsa_size(members.blobs.iter().map(|b| b.host));
    watch(&comm.endpoint.rank, signs)?;
    apply_timeout(&comm);
    Ok(comm)
}

/// Has the monitor watch all peers by these signs. Those of which nothing can be seen are lost.
fn watch(rank: &Arc<Rank>, signs: Vec<(u32, std::result::Result<Sign, String>)>) -> Result<()> {
    for (peer, sign) in signs {
        match sign {
            Ok(sign) => monitor::watch(rank, peer, sign)?,
            Err(why) => rank.lose(peer, why),
        }
    }
    Ok(())
}

/// The rank that an error of a meeting is about, by its number in the communicator, and why.
fn culprit(names: &[u32], error: &Error) -> Option<(u32, String)> {
    let Error::InitPeer { site, why, .. } = error else { return None };
    let peer = (0u32..).zip(names).find(|(_, name)| **name as i32 == site.peer)?.0;
    Some((peer, why.clone()))
}

/// Ends what could not be made. Others may believe that all is well: they are told of the one who
/// is at fault, where that is known.
fn abandon(rank: &Arc<Rank>, cuda_rank: Option<CudaRank>, culprit: Option<(u32, String)>) {
    let culprit = culprit.filter(|(peer, _)| *peer != rank.number);
    let lost = culprit.map(|(peer, why)| rank.lost(peer, why));
    rank.fail(lost.unwrap_or(Error::Aborted { by: "its failed initialisation" }));
    if let Some(cuda_rank) = cuda_rank {
        reaper::retire(cuda_rank.attach(rank), rank.clone());
    }
}

/// The ranks of a communicator in the making.
pub(super) struct Members {
    /// This one.
    rank: u32,
    /// What each told of itself.
    blobs: Vec<RankInfo>,
    /// Those of this rank's host, in ascending order.
    ranks: Vec<u32>,
    /// The place of each among these; None for ranks elsewhere.
    local: Vec<Option<usize>>,
}

impl Members {
    /// Tells where this rank listens, and hears the same of all. Blocks for all who meet.
    fn meet(
        rendezvous: &mut Rendezvous,
        (rank, device): (u32, Device),
        listener: &Listener,
        control: &TcpListener,
    ) -> Result<Self> {
        let address = control.local_addr().map_err(|e| Error::system("getsockname", e, ""))?;
        let mut blob = RankInfo::own(*listener.name(), address, device)?;
        blob.holder = rendezvous.session.is_held_here();
        let answers = rendezvous.session.gather(&blob.encode())?;
        let holder = answers.iter().position(|bytes| RankInfo::is_holder(bytes));
        rendezvous.session.set_holder(holder.map(|rank| rank as u32));
        let answers = rendezvous.select(answers);
        let blobs: Vec<RankInfo> = answers
            .iter()
            .enumerate()
            .map(|(r, bytes)| RankInfo::decode(r, bytes))
            .collect::<Result<_>>()?;
        let host = blobs[rank as usize].host;
        same_device(&blobs)?;
        let (mut ranks, mut local) = (Vec::new(), Vec::new());
        for (r, blob) in (0u32..).zip(&blobs) {
            let here = blob.host == host;
            local.push(here.then_some(ranks.len()));
            ranks.extend(here.then_some(r));
        }
        Ok(Self { rank, blobs, ranks, local })
    }

    /// Where a rank takes control connections, and would hold a later meeting.
    pub(super) fn address(&self, rank: u32) -> SocketAddr {
        self.blobs[rank as usize].control
    }

    /// The ranks of other hosts.
    pub(super) fn remote(&self) -> Vec<u32> {
        (0u32..).zip(&self.local).filter(|(_, place)| place.is_none()).map(|(r, _)| r).collect()
    }

    fn is_one_host(&self) -> bool {
        self.ranks.len() == self.blobs.len()
    }

    /// Ranks on this machine, whatever they call their hosts: they share its processors.
    fn on_this_machine(&self) -> usize {
        let own = self.blobs[self.rank as usize].machine;
        self.blobs.iter().filter(|blob| blob.machine == own).count()
    }

    fn own_place(&self) -> usize {
        self.local[self.rank as usize].unwrap_or(0)
    }

    /// Where all counters start.
    fn start(&self) -> u64 {
        self.blobs[0].counter_start
    }

    fn one_process(&self) -> bool {
        let own = self.blobs[self.rank as usize].process;
        self.blobs.iter().all(|b| b.process == own)
    }

    fn endpoint(
        &self,
        segment: Option<Arc<Segment>>,
        edges: Vec<Edge>,
        memory: Vec<PeerMemory>,
    ) -> Endpoint {
        let pids = self.blobs.iter().map(|b| b.pid as i32).collect();
        let slot_bytes = edge_slot_bytes(self.blobs.len() as u32);
        let rank = Rank::new(self.rank, self.local.clone(), segment, pids);
        Endpoint::new(rank, self.one_process(), slot_bytes, edges, memory, self.start())
    }
}

/// The memory that the ranks of this host share, and the reach into each other's buffers.
fn share_memory(
    members: &Members,
    id: &UniqueId,
    listener: Listener,
    rendezvous: &mut Rendezvous,
) -> Result<(Option<Arc<Segment>>, Vec<PeerMemory>)> {
    let Members { rank, blobs, ranks, .. } = members;
    // Ranks of one process share an arena: many threads would fill the table of descriptors.
    let mut seen = HashSet::new();
    let first = |r: &&u32| seen.insert(blobs[**r as usize].process);
    let shown: Vec<u32> = ranks.iter().filter(first).copied().collect();
    let (comm, secret, deadline) = (id.comm, id.secret, rendezvous.session.deadline().clone());
    let group = Group { rank: *rank, ranks, shown: &shown, comm, secret, deadline };
    let leader = &blobs[ranks[0] as usize];
    let slot_bytes = edge_slot_bytes(blobs.len() as u32);
    let shared = share(&group, listener, leader, slot_bytes, &mut rendezvous.session)?;
    let (segment, fds) = shared.unzip();
    if let Some(segment) = &segment {
        segment.initialise(members.own_place(), members.start());
    }
    let fds = fds.as_ref().map(|fds| (&shown[..], &fds[..]));
    Ok((segment, user_memory(blobs, fds, members.one_process())))
}

/// Data lies in host memory on all ranks, or on GPUs of one host.
fn same_device(blobs: &[RankInfo]) -> Result<()> {
    let kind = |gpu| if gpu { "a GPU" } else { "host memory" };
    for (rank, blob) in blobs.iter().enumerate() {
        let (gpu, first) = (blob.gpu, blobs[0].gpu);
        let why = if gpu != first {
            let (own, theirs) = (kind(first), kind(gpu));
            format!("rank 0 uses {own} and rank {rank} {theirs}: set OXCCL_DEVICE on all alike")
        } else if gpu && blob.host != blobs[0].host {
            format!("ranks 0 and {rank} are on different hosts: GPUs of one host are supported")
        } else {
            continue;
        };
        return Err(Error::Init { why });
    }
    Ok(())
}

/// A rank on a GPU, with the memory of all others mapped: that of the GPUs, or, where not all reach
/// each other, memory of the host.
fn make_cuda_rank(
    index: i32,
    rendezvous: &mut Rendezvous,
    members: &Members,
    options: &Options,
) -> Result<CudaRank> {
    let nranks = members.blobs.len() as u32;
    let cuda_rank = CudaRank::new(index, members.rank, nranks, options.graph_usage_mode == 2);
    // The others hear of a failure by the end of the meeting.
    let mut cuda_rank = cuda_rank?;
    cuda_rank.engine_bytes = engines::least_bytes(options.wants_no_blocks());
    let max_blocks = u32::try_from(options.max_ctas).unwrap_or(1);
    let answers = rendezvous.gather(&cuda_rank.offer(max_blocks)?.encode())?;
    let offers = answers.iter().enumerate().map(|(rank, bytes)| Offer::decode(rank, bytes));
    let offers = offers.collect::<Result<Vec<_>>>()?;
    let own = members.blobs[members.rank as usize].process;
    let here = |rank: usize| members.blobs[rank].process == own;
    cuda_rank.meet(&offers, here);
    let connected = cuda_rank.connect(&offers, here);
    let answers = rendezvous.gather(&[u8::from(connected.is_ok())])?;
    let Some(apart) = answers.iter().position(|answer| answer != &[1]) else {
        return Ok(cuda_rank);
    };
    let why = connected.map_or_else(|e| e.to_string(), |()| format!("rank {apart} says so"));
    let text = format!("GPUs do not reach each other's memory ({why}): host memory lies between");
    log::line(Level::Info, Subsystem::Init, &text);
    if let Some(rank) = offers.iter().position(|offer| !offer.host_memory) {
        let what = format!("GPUs do not reach each other, and rank {rank} has NCCL_SHM_DISABLE=1");
        return Err(Error::usage(what, "allow peer access or shared memory"));
    }
    let answers = rendezvous.gather(&cuda_rank.move_to_host()?.to_le_bytes())?;
    let addresses: Vec<u64> = answers
        .iter()
        .map(|bytes| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes))
        .collect();
    cuda_rank.connect_by_host(&offers, &addresses, here, rendezvous.session.deadline())?;
    Ok(cuda_rank)
}

/// The last round: everyone's counters are set and connections made before anyone runs anything.
/// Tells whether all ranks may have the system copy, and notes whether all map each other's arenas.
fn agree(rendezvous: &mut Rendezvous, blobs: &[RankInfo], endpoint: &mut Endpoint) -> Result<bool> {
    let abilities = [u8::from(can_pull(blobs, endpoint)), u8::from(endpoint.maps_all())];
    let answers = rendezvous.gather(&abilities)?;
    let all = |i: usize| answers.iter().all(|answer| answer.get(i) == Some(&1));
    endpoint.all_mapped = all(1);
    Ok(all(0))
}

fn apply_timeout(comm: &Communicator) {
    comm.set_timeout(Some(Config::get().timeout).filter(|limit| !limit.is_zero()));
}

/// A communicator of one rank.
pub(super) fn alone(device: Device, options: &Options) -> Result<Communicator> {
    let memory = vec![PeerMemory::Unreachable];
    let (slot_bytes, edges) = (edge_slot_bytes(1), vec![Edge::Own]);
    let rank = Rank::new(0, vec![Some(0)], None, vec![0]);
    let endpoint = Endpoint::new(rank, true, slot_bytes, edges, memory, 0);
    let comm = Communicator::new(endpoint, device, options, None);
    let mut comm = comm.with_topology(1, false, Policy::default());
    if let Device::Cuda(index) = device {
        comm = comm.with_cuda_rank(CudaRank::new(index, 0, 1, options.graph_usage_mode == 2)?);
    }
    apply_timeout(&comm);
    Ok(comm)
}

/// Whether this rank can have the system copy from every other rank of its host: ptrace rules,
/// containers and seccomp may forbid it.
fn can_pull(blobs: &[RankInfo], endpoint: &Endpoint) -> bool {
    let own = &blobs[endpoint.rank.number as usize];
    let peers = blobs.iter().enumerate().filter(|(r, _)| endpoint.rank.local[*r].is_some());
    let mut answers = peers.map(|(rank, blob)| {
        let pulled = pull::pulled(blob.pid as i32, blob.probe as usize, rank as u32);
        blob.pid_namespace == own.pid_namespace && pulled.is_ok_and(|word| word == blob.process)
    });
    let able = answers.all(|answer| answer);
    if !able {
        let text = "process_vm_readv is forbidden here: buffers from malloc are copied twice";
        log::line(Level::Info, Subsystem::Init, text);
    }
    able
}

/// The shared segment and the arenas of the ranks of this host; None for a rank that is alone.
fn share(
    group: &Group<'_>,
    listener: Listener,
    leader: &RankInfo,
    edge_slot_bytes: usize,
    session: &mut Session,
) -> Result<Option<(Arc<Segment>, Vec<OwnedFd>)>> {
    if group.ranks.len() < 2 {
        return Ok(None);
    }
    let layout = SegmentLayout { nlocal: group.ranks.len(), edge_slot_bytes };
    let none;
    let own = match Arena::get() {
        Some(arena) => arena.fd(),
        None => {
            none = sealed_memfd("oxccl-none", 0)?;
            none.as_fd()
        }
    };
    let mut fds = if group.rank == group.ranks[0] {
        let segment = sealed_memfd("oxccl-comm", layout.bytes())?;
        descriptors::lead(group, listener, (own, segment.as_fd()), Some(session))?
    } else {
        descriptors::follow(group, &leader.socket, own, Some(session))?
    };
    let missing = || Error::Init { why: "the leader sent no segment".to_owned() };
    let segment = fds.pop().ok_or_else(missing)?;
    let mapping = Mapping::of(segment.as_fd(), layout.bytes())?;
    Ok(Some((Arc::new(Segment::new(mapping, layout)), fds)))
}

/// Maps the arenas of the other processes, each once per process.
fn user_memory(
    blobs: &[RankInfo],
    fds: Option<(&[u32], &[OwnedFd])>,
    one_process: bool,
) -> Vec<PeerMemory> {
    static MAPPED: Mutex<Option<HashMap<[u8; 16], Weak<Mapping>>>> = Mutex::new(None);
    let mut mapped = MAPPED.lock().unwrap_or_else(|e| e.into_inner());
    let mapped = mapped.get_or_insert_default();
    mapped.retain(|_, mapping| mapping.strong_count() > 0);
    let (ranks, fds) = fds.unwrap_or_default();
    let arenas: HashMap<[u8; 16], &OwnedFd> =
        ranks.iter().map(|&r| blobs[r as usize].process).zip(fds).collect();
    let mut reach = |blob: &RankInfo| -> Option<Arc<Mapping>> {
        let fd = arenas.get(&blob.process)?;
        if blob.arena_len == 0 {
            return None;
        }
        if let Some(mapping) = mapped.get(&blob.process).and_then(Weak::upgrade) {
            return Some(mapping);
        }
        match Mapping::of(fd.as_fd(), blob.arena_len as usize) {
            Ok(mapping) => {
                let mapping = Arc::new(mapping);
                mapped.insert(blob.process, Arc::downgrade(&mapping));
                Some(mapping)
            }
            Err(e) => {
                let text = format!("buffers of process {} will be copied: {e}", blob.pid);
                log::line(Level::Warn, Subsystem::Init, &text);
                None
            }
        }
    };
    blobs
        .iter()
        .map(|blob| match reach(blob) {
            _ if one_process => PeerMemory::SameProcess,
            Some(mapping) => PeerMemory::Arena(mapping),
            None => PeerMemory::Unreachable,
        })
        .collect()
}

/// The links to all ranks.
fn edges(
    members: &Members,
    segment: Option<&Arc<Segment>>,
    remote: Vec<(u32, MessageEdge)>,
    start: u64,
) -> Vec<Edge> {
    let own = members.own_place();
    let mut edges: Vec<Edge> = (0u32..)
        .zip(&members.local)
        .map(|(peer, place)| match (segment, place) {
            (Some(segment), &Some(place)) if peer != members.rank => {
                Edge::Direct(DirectEdge::new(segment.clone(), own, place, start))
            }
            _ => Edge::Own,
        })
        .collect();
    for (peer, edge) in remote {
        edges[peer as usize] = Edge::Message(Box::new(edge));
    }
    edges
}

/// What to watch for the end of each peer: one descriptor per process of this host, and each
/// control connection.
fn signs(
    blobs: &[RankInfo],
    controls: &[Option<Arc<Control>>],
    rank: u32,
) -> Vec<(u32, std::result::Result<Sign, String>)> {
    let own = &blobs[rank as usize];
    let sign = |(peer, blob): (u32, &RankInfo)| {
        let control = controls.get(peer as usize).cloned().flatten();
        let sign = match control {
            _ if peer == rank => return None,
            Some(control) => Ok(Sign::Control(control)),
            // In this process: what it says is read where all say it.
            None if blob.process == own.process => Ok(Sign::Memory),
            None if blob.pid_namespace != own.pid_namespace => Ok(Sign::Pulse),
            None => watch_process(blob.pid),
        };
        Some((peer, sign))
    };
    (0u32..).zip(blobs).filter_map(sign).collect()
}

fn watch_process(pid: u32) -> std::result::Result<Sign, String> {
    let pid = rustix::process::Pid::from_raw(pid as i32);
    let open = |pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    match pid.map(open) {
        Some(Ok(fd)) => Ok(Sign::Process(fd)),
        Some(Err(rustix::io::Errno::SRCH)) => Err("its process ended".to_owned()),
        _ => Ok(Sign::Pulse),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_cannot_go_on_tells_its_peers_of_the_one_at_fault() {
        // Rank 1 of the communicator is called 5 where it is made.
        let names = [2, 5, 7];
        let died = Error::init_death(5, "its process ended");
        assert_eq!(culprit(&names, &died), Some((1, "its process ended".to_owned())));
        assert_eq!(culprit(&names, &Error::init_death(1, "it is none of these")), None);
        assert_eq!(culprit(&names, &Error::Init { why: "nobody's fault".to_owned() }), None);
        let told = |culprit| {
            let rank = Arc::new(Rank::new(0, vec![None; 3], None, vec![0; 3]));
            abandon(&rank, None, culprit);
            rank.failure().expect("it failed").to_string()
        };
        let lost = told(culprit(&names, &died));
        assert!(lost.contains("rank 0 lost rank 1: its process ended"), "{lost}");
        assert!(told(None).contains("its failed initialisation"));
        assert!(told(Some((0, "itself".to_owned()))).contains("its failed initialisation"));
    }
}
