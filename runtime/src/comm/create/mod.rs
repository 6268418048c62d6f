//! The creation of a communicator: rendezvous, shared memory with the ranks of this host,
//! connections to the other ranks, and a last barrier after which every rank can run every
//! operation.

mod links;
mod members;
mod memory;
mod switch;

use super::{Communicator, Options, rank_info};
use crate::NCCL_VERSION;
use crate::bootstrap::deadline::InVain;
use crate::bootstrap::descriptors::Listener;
use crate::bootstrap::id::random;
use crate::bootstrap::session::{self, Meeting, Session};
use crate::bootstrap::{Cancel, Deadline, Gather, UniqueId, interface};
use crate::config::Config;
use crate::device::{self, Device, Parts, Process, Unfinished};
use crate::error::{Error, Result};
use crate::fork;
use crate::link::Edge;
use crate::link::message::Identity;
use crate::log::{self, Level, Subsystem};
use crate::plugin::Facts;
use crate::plugin::profiler::{self, Profiler};
use crate::plugin::tuner::Tuner;
use crate::rank::{Rank, monitor};
use crate::ras::service;
use crate::recorder::{self, Memory, Recorder, Stage};
use links::Links;
use members::Members;
use oxccl_plan::Carrier;
use oxccl_plan::select::Policy;
use std::collections::HashMap;
use std::mem::take;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A rank that asks to become a member of a communicator.
#[derive(Clone, Debug)]
pub struct Member {
    /// The communicator's id.
    pub id: UniqueId,
    /// The number of the rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// The device that holds the rank's data.
    pub device: Device,
    /// The options that the rank's creator asks for.
    pub options: Options,
}

/// A meeting of ranks, some of which make a communicator.
pub(super) struct Rendezvous {
    pub(super) session: Session,
    /// The members' numbers in the meeting, by their rank in the communicator.
    pub(super) participants: Vec<u32>,
    /// The numbers by which texts call the members, by their rank in the communicator.
    pub(super) names: Vec<u32>,
    /// The time at which this rank began to make the communicator.
    pub(super) begun: Instant,
    /// The record of this rank, from before the meeting on.
    pub(super) recorder: Recorder,
}

impl Gather for Rendezvous {
    fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.session.gather(own)?;
        Ok(self.select(all))
    }

    fn deadline(&self) -> &Deadline {
        self.session.deadline()
    }
}

impl Rendezvous {
    /// Returns an error that was found here with the name of the rank that it is about. Errors that
    /// come from the rendezvous or from known deaths already have the name.
    fn rename(&self, error: Error) -> Error {
        match error {
            Error::InitPeer { site, why, died: false } if !self.session.has_verdict() => {
                let name = self.names.get(site.peer as usize).copied();
                let here = || Error::init_peer(name.unwrap_or(site.peer as u32), why);
                // A rank that hears of a death leaves, and others lose its connection.
                self.session.deadline().finding().unwrap_or_else(here)
            }
            other => other,
        }
    }

    /// Returns the members' blobs, by rank, out of the blobs of all ranks that meet.
    fn select(&self, mut all: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut take = |number: &u32| all.get_mut(*number as usize).map(std::mem::take);
        self.participants.iter().filter_map(&mut take).collect()
    }
}

/// The state with which the ranks of a communicator meet again to make children. Nothing of its
/// data path belongs to this state.
pub(super) struct ChildMeetings {
    /// The id from which the ids of later meetings derive.
    pub(super) id: UniqueId,
    /// The socket on which this rank would hold a meeting.
    pub(super) listener: TcpListener,
    /// The addresses at which the ranks would hold a meeting, by rank.
    pub(super) addresses: Vec<SocketAddr>,
    /// The number of splits so far. This number and that of growths are the same on all ranks.
    pub(super) splits: AtomicU64,
    pub(super) grows: AtomicU64,
    /// The number of shrinks so far for each list of excluded ranks. The excluded ranks do not
    /// count them.
    pub(super) shrinks: Mutex<HashMap<Vec<u32>, u64>>,
}

/// Logs the version and the variables that are given, and warns of settings that are of no use,
/// once per process.
fn warn_once() {
    static WARN: std::sync::Once = std::sync::Once::new();
    WARN.call_once(|| {
        let own = env!("CARGO_PKG_VERSION");
        let version = format!("OxCCL {own}, interface of NCCL {NCCL_VERSION}");
        log::line(Level::Version, Subsystem::Init, &version);
        let report = &Config::get().report;
        report.warnings.iter().for_each(|line| log::line(Level::Warn, Subsystem::Env, line));
        let early = crate::plugin::env::take_lines(false);
        early.iter().for_each(|line| log::line(Level::Info, Subsystem::Env, line));
        report.given().for_each(|line| log::line(Level::Info, Subsystem::Env, &line));
    });
}

/// Makes a communicator. Blocks until all ranks have come, or the time limit of initialisation is
/// over.
pub fn create(member: &Member) -> Result<Communicator> {
    join(member, &Cancel::default(), (None, None))
}

/// Makes a communicator as [`create`] does, but fails when `cancel` is set or `in_vain` finds a
/// reason. `holder` is the rank whose process holds the rendezvous, if that is known.
pub(super) fn join(
    member: &Member,
    cancel: &Cancel,
    (in_vain, holder): (Option<InVain>, Option<u32>),
) -> Result<Communicator> {
    let Member { id, rank, nranks, device, options } = member;
    let begun = Instant::now();
    fork::check()?;
    fork::refuse_children()?;
    warn_once();
    service::start();
    device.cuda_versions().into_iter().for_each(service::set_cuda_versions);
    // Variables are read once: they hold for this communicator's children too.
    rank_info::algorithm(Config::checked()?)?;
    let limit = options.init_limit();
    let (rank, nranks) = (*rank, *nranks);
    let recorder = recorder_of(member, None);
    let reused = false;
    let meeting = Meeting { id, rank, nranks, reused, limit, cancel, in_vain, holder };
    let mut session = Session::open(&meeting)?;
    if nranks == 1 {
        // The rendezvous of the id ends when all ranks have joined and left it.
        session.gather(&[])?;
        session.close();
        return alone(*device, options);
    }
    let everyone: Vec<u32> = (0..nranks).collect();
    let participants = everyone.clone();
    let rendezvous = Rendezvous { session, participants, names: everyone, begun, recorder };
    assemble(rendezvous, member)
}

/// Makes a communicator of the participants of a rendezvous, who are all its ranks; this rank
/// becomes `member`, whose id distinguishes the communicator's connections from others.
pub(super) fn assemble(mut rendezvous: Rendezvous, member: &Member) -> Result<Communicator> {
    if member.nranks == 1 {
        rendezvous.session.close();
        return alone(member.device, &member.options);
    }
    match make(&mut rendezvous, member) {
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

fn memory_of(device: Device) -> Memory {
    match device {
        Device::Host(index) => Memory::Host(index),
        Device::Cuda(index) => Memory::Gpu(index),
    }
}

/// Returns the recorder of a rank that is about to meet the others of a communicator, or of the
/// one from which it is made.
pub(super) fn recorder_of(member: &Member, parent: Option<u64>) -> Recorder {
    let recorder = identified(Recorder::new(), member.id.comm, member);
    parent.into_iter().for_each(|parent| recorder.descend_from(parent));
    recorder
}

/// Returns the recorder of a rank, which knows its communicator now.
pub(super) fn identified(recorder: Recorder, comm: u64, member: &Member) -> Recorder {
    let Member { rank, nranks, device, .. } = *member;
    let name = member.options.name.as_deref().unwrap_or("");
    recorder.identify(comm, (rank, nranks), memory_of(device), name);
    recorder
}

fn make(rendezvous: &mut Rendezvous, member: &Member) -> Result<Communicator> {
    let Member { id, rank, nranks, device, options } = member;
    let (rank, nranks, device) = (*rank, *nranks, *device);
    let listener = Listener::new()?;
    let control = session::listen(interface::beside(id.address, Config::get())?)?;
    let members =
        Members::meet(rendezvous, (rank, device, options.collnet_enable), &listener, &control)?;
    // At a fixed address communicators follow each other: the salt binds connections to this one.
    let own = id.salted(&members.infos[0].socket);
    let slot_bytes = device.edge_slot_bytes(nranks, members.is_one_host());
    let (segment, arenas) = memory::share(&members, &own, listener, slot_bytes, rendezvous)?;
    let processes = members.processes();
    let memory = device::reach(device, &processes, &arenas);
    drop(arenas);
    let identity = Identity { comm: own.comm, secret: own.secret, rank, nranks };
    let mut links = match members.is_one_host() {
        true => Links::default(),
        false => links::connect(identity, &members, &control, rendezvous, (options, device))?,
    };
    let (switch, reductions) = links.switch.take().unzip();
    let (comm, name, hosts) = (own.comm, options.name.clone(), members.host_sizes());
    let facts = Facts { comm, name, hosts, rank };
    let between = links.net.take();
    let (tuner, profiler) = (Tuner::start(&facts)?, Profiler::start(&facts));
    let signs = links::signs(&members, &links.controls);
    let counter_start = members.counter_start();
    let mut edges = links::edges(&members, segment.as_ref(), counter_start);
    let recorder = take(&mut rendezvous.recorder);
    let own = Arc::new(members.own(segment).recorded_by(identified(recorder, facts.comm, member)));
    recorder::set_address(members.address(rank).ip());
    own.set_roster(members.roster(facts.comm));
    links.label.take().into_iter().for_each(|label| own.set_network(label));
    links.add_unconnected(&own, &members, &mut edges)?;
    let parts = Parts {
        edges,
        remote: links.edges,
        net_device: links.device,
        switch,
        rank: own.clone(),
        edge_slot_bytes: links.slot_bytes.unwrap_or(slot_bytes),
        counter_start,
        processes,
        memory,
    };
    own.set_controls(links.controls);
    let unfinished = Unfinished::make(device, parts, &options.of_device(), rendezvous)?;
    profiler.iter().for_each(|_| unfinished.allocate_times());
    let policy = members.infos[0].policy(&members.infos[rank as usize]);
    // The last round: all counters are set and connections made before any operation runs.
    let answers = match rendezvous.gather(&unfinished.abilities()) {
        Ok(answers) => answers,
        Err(error) => {
            let named = rendezvous.rename(error.clone());
            tell_peers(&own, culprit(&rendezvous.names, &named));
            unfinished.abandon();
            return Err(error);
        }
    };
    device::note_waiting_threads(members.on_this_machine() * (1 + links.threads));
    let (executor, topology) = unfinished.finish(&answers, members.team(), policy.single());
    let (parts, meetings) = ((executor, topology, policy), child_meetings(id, control, &members));
    let mut comm = Communicator::new(parts, device, options, Some(meetings));
    (comm.reductions, comm.tuner) = (reductions.unwrap_or_default(), tuner);
    attach(&mut comm, profiler);
    links::watch(&own, signs)?;
    apply_timeout(&comm);
    own.recorder.enter(Stage::Running);
    tell(&comm, &facts, between.as_deref(), rendezvous.begun);
    Ok(comm)
}

/// Logs what was made: one line for each communicator and rank.
fn tell(comm: &Communicator, facts: &Facts, between: Option<&str>, begun: Instant) {
    if !log::enabled(Level::Info, Subsystem::Init) {
        return;
    }
    let Facts { comm: number, name, hosts, rank } = facts;
    let name = name.as_ref().map_or_else(String::new, |name| format!(" {name:?}"));
    let (nranks, hosts) = (hosts.iter().sum::<u32>(), hosts.len());
    let device = match comm.device {
        Device::Host(_) => "host memory".to_owned(),
        Device::Cuda(gpu) => format!("GPU {gpu}"),
    };
    let names: Vec<_> = comm.topology.carriers().into_iter().map(Carrier::name).collect();
    let by = if nranks > 1 { format!(", by {}", names.join(", ")) } else { String::new() };
    let between = between.map_or_else(String::new, |net| format!(", {net} between hosts"));
    let kib = (comm.memory().releasable + comm.memory().persistent).div_ceil(1024);
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    let text = format!(
        "communicator {number:016x}{name}: rank {rank} of {nranks}, hosts {hosts}, {device}{by}{between}; \
         {kib} KiB, made in {ms:.1} ms"
    );
    log::line_of(Some(*rank), Level::Info, Subsystem::Init, &text);
}

fn child_meetings(id: &UniqueId, listener: TcpListener, members: &Members) -> ChildMeetings {
    let addresses = members.infos.iter().map(|info| info.control).collect();
    let (splits, grows, shrinks) = Default::default();
    ChildMeetings { id: id.clone(), listener, addresses, splits, grows, shrinks }
}

/// Returns the rank that an error of a meeting is about, by its number in the communicator, and the
/// reason.
fn culprit(names: &[u32], error: &Error) -> Option<(u32, String)> {
    let Error::InitPeer { site, why, .. } = error else { return None };
    let peer = (0u32..).zip(names).find(|(_, name)| **name as i32 == site.peer)?.0;
    Some((peer, why.clone()))
}

/// Tells the peers that this rank's communicator could not be made, and which rank is at fault, if
/// that is known. Otherwise the peers may believe that all is well.
fn tell_peers(rank: &Arc<Rank>, culprit: Option<(u32, String)>) {
    let culprit = culprit.filter(|(peer, _)| *peer != rank.number);
    let lost = culprit.map(|(peer, why)| rank.lost(peer, why));
    rank.fail(lost.unwrap_or(Error::Aborted { by: "its failed initialisation" }));
}

/// Gives a communicator its profiler, if there is one. The profiler is told of messages, too, and
/// if it does not return from a call about an event, the communicator fails.
fn attach(comm: &mut Communicator, profiler: Option<Profiler>) {
    let Some(profiler) = profiler else { return };
    let rank = Arc::downgrade(comm.executor.rank());
    profiler.watch(move |error| {
        let Some(rank) = rank.upgrade() else { return };
        if rank.failure().is_none() {
            return rank.fail(error.clone());
        }
        let text = error.to_string();
        log::line_of(Some(rank.number), Level::Warn, Subsystem::Profile, &text);
    });
    comm.executor.watch_messages(&profiler.messages());
    comm.profiler = Some(profiler);
    monitor::also(profiler::look);
}

fn apply_timeout(comm: &Communicator) {
    comm.set_timeout(Some(Config::get().timeout).filter(|limit| !limit.is_zero()));
}

/// Records the address of this host, for communicators whose rank has no need to know it.
fn record_address() {
    static RECORD: std::sync::Once = std::sync::Once::new();
    RECORD.call_once(|| {
        if let Ok(address) = interface::choose(Config::get()) {
            recorder::set_address(address.ip());
        }
    });
}

/// Makes a communicator of one rank.
pub(super) fn alone(device: Device, options: &Options) -> Result<Communicator> {
    let begun = Instant::now();
    let recorder = Recorder::new();
    // Profilers and records tell communicators of all processes apart by their numbers.
    let (number, name) = (u64::from_le_bytes(random()?), options.name.clone());
    record_address();
    recorder.identify(number, (0, 1), memory_of(device), name.as_deref().unwrap_or(""));
    let mut nobody = Nobody(Deadline::new(options.init_limit(), &Cancel::default()));
    let parts = Parts {
        rank: Arc::new(Rank::new(0, vec![Some(0)], None, vec![0]).recorded_by(recorder)),
        edges: vec![Edge::Own],
        remote: Vec::new(),
        net_device: None,
        switch: None,
        edge_slot_bytes: device.edge_slot_bytes(1, true),
        counter_start: 0,
        processes: vec![Process::without_arena()?],
        memory: Vec::new(),
    };
    let unfinished = Unfinished::make(device, parts, &options.of_device(), &mut nobody)?;
    let facts = Facts { comm: number, name, hosts: vec![1], rank: 0 };
    let profiler = Profiler::start(&facts);
    profiler.iter().for_each(|_| unfinished.allocate_times());
    let answers = [unfinished.abilities()];
    let (executor, topology) = unfinished.finish(&answers, 1, None);
    let parts = (executor, topology, Policy::default());
    let mut comm = Communicator::new(parts, device, options, None);
    attach(&mut comm, profiler);
    apply_timeout(&comm);
    comm.executor.rank().recorder.enter(Stage::Running);
    tell(&comm, &facts, None, begun);
    Ok(comm)
}

/// The gathering of a communicator of one rank, which has no peers.
struct Nobody(Deadline);

impl Gather for Nobody {
    fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![own.to_vec()])
    }

    fn deadline(&self) -> &Deadline {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_cannot_go_on_tells_its_peers_of_the_one_at_fault() {
        // Rank 1 of the communicator is called 5 in the meeting that makes it.
        let names = [2, 5, 7];
        let died = Error::init_death(5, "its process ended");
        assert_eq!(culprit(&names, &died), Some((1, "its process ended".to_owned())));
        assert_eq!(culprit(&names, &Error::init_death(1, "it is none of these")), None);
        assert_eq!(culprit(&names, &Error::Init { why: "nobody's fault".to_owned() }), None);
        let told = |culprit| {
            let rank = Arc::new(Rank::new(0, vec![None; 3], None, vec![0; 3]));
            tell_peers(&rank, culprit);
            rank.failure().expect("it failed").to_string()
        };
        let lost = told(culprit(&names, &died));
        assert!(lost.contains("rank 0 lost rank 1: its process ended"), "{lost}");
        assert!(told(None).contains("its failed initialisation"));
        assert!(told(Some((0, "itself".to_owned()))).contains("its failed initialisation"));
    }
}
