//! The state of a job in the terms of NCCL's RAS service, and the service's conversation and
//! formats. Everything here is computed from data that others have collected.

pub mod conversation;
pub mod event;
pub mod json;
mod layout;
#[cfg(test)]
pub(super) mod samples;
pub mod text;

use super::job::{Comm, Member, communicators};
use super::status;
use super::verdict::Verdict;
use crate::recorder::Stage;
use crate::recorder::read::Process;
use oxccl_plan::Collective;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The version of CUDA whose driver interface the library is built for.
const COMPILED_WITH: &str = "13.0";
/// The collectives that the service counts, with their names there, in its order.
const COUNTED: [(Collective, &str); 5] = [
    (Collective::Broadcast, "Broadcast"),
    (Collective::Reduce, "Reduce"),
    (Collective::AllGather, "AllGather"),
    (Collective::ReduceScatter, "ReduceScatter"),
    (Collective::AllReduce, "AllReduce"),
];
/// NCCL's result for what is still under way.
const IN_PROGRESS: u32 = 7;

/// The place of a rank: its host by its address, its process and its device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The address of the host.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The number of the device.
    pub device: u32,
}

/// The knowledge of a rank about a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The number of the communicator.
    pub comm: u64,
    /// The rank of the peer.
    pub rank: u32,
    /// The place of the peer.
    pub place: Place,
    /// True if the peer is known to be dead.
    pub dead: bool,
    /// True if its process has answered.
    pub answered: bool,
}

/// Returns what is known of each rank of each communicator: what was known first.
pub fn by_rank(known: &[Known]) -> HashMap<(u64, u32), &Known> {
    known.iter().rev().map(|peer| ((peer.comm, peer.rank), peer)).collect()
}

/// The status of a rank, in the order in which NCCL lets one of them stand for a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// The process has answered, and has no such communicator.
    NoComm,
    Init,
    Running,
    Finalize,
    Abort,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::NoComm => "NOCOMM",
            State::Init => "INIT",
            State::Running => "RUNNING",
            State::Finalize => "FINALIZE",
            State::Abort => "ABORT",
        }
    }
}

/// A rank that has answered.
#[derive(Clone, Debug)]
struct Answer {
    rank: u32,
    place: Place,
    init_state: u32,
    async_error: u32,
    finalized: bool,
    destroyed: bool,
    aborted: bool,
    counts: [u64; COUNTED.len()],
}

impl Answer {
    fn of(member: &Member<'_>) -> Self {
        let Member { process, rank } = *member;
        let counts = COUNTED.map(|(collective, _)| rank.collectives_by_kind[collective as usize]);
        Self {
            rank: rank.rank,
            place: Place { host: process.address.clone(), pid: process.pid, device: rank.device },
            init_state: if rank.stage == Stage::Creating { IN_PROGRESS } else { 0 },
            // What the user has asked for is no error.
            async_error: if rank.aborted { 0 } else { rank.failure.code },
            finalized: rank.finalized,
            destroyed: rank.destroyed,
            aborted: rank.aborted,
            counts,
        }
    }

    fn state(&self) -> State {
        match self {
            Self { aborted: true, .. } => State::Abort,
            Self { finalized: true, .. } | Self { destroyed: true, .. } => State::Finalize,
            Self { init_state: 0, .. } => State::Running,
            _ => State::Init,
        }
    }
}

/// A rank that has not answered.
#[derive(Clone, Debug)]
struct Missing {
    rank: u32,
    /// `None` if no rank that has answered knows it.
    place: Option<Place>,
    /// True if its process has not answered; else it has no such communicator any more.
    unresponsive: bool,
    dead: bool,
}

/// A communicator, with its ranks in ascending order.
#[derive(Clone, Debug)]
struct CommState {
    number: u64,
    size: u32,
    answers: Vec<Answer>,
    missing: Vec<Missing>,
}

impl CommState {
    fn new(comm: &Comm<'_>, known: &HashMap<(u64, u32), &Known>) -> Self {
        let missing = comm.unseen().into_iter().map(|rank| {
            let peer = known.get(&(comm.number, rank));
            Missing {
                rank,
                place: peer.map(|peer| peer.place.clone()),
                unresponsive: peer.is_none_or(|peer| !peer.answered),
                dead: peer.is_some_and(|peer| peer.dead),
            }
        });
        Self {
            number: comm.number,
            size: comm.nranks,
            missing: missing.collect(),
            answers: comm.members.iter().map(Answer::of).collect(),
        }
    }

    /// Returns the places of all ranks, as far as they are known.
    fn places(&self) -> impl Iterator<Item = &Place> {
        let missing = self.missing.iter().filter_map(|missing| missing.place.as_ref());
        self.answers.iter().map(|answer| &answer.place).chain(missing)
    }

    /// Returns the number of ranks on each host.
    fn ranks_of_hosts(&self) -> BTreeMap<&str, usize> {
        let mut hosts = BTreeMap::new();
        self.places().for_each(|place| *hosts.entry(&place.host[..]).or_default() += 1);
        hosts
    }

    /// Returns the states of the ranks that are known, and those ranks.
    fn states(&self) -> Vec<(State, u32)> {
        let gone = self.missing.iter().filter(|missing| !missing.unresponsive);
        let gone = gone.map(|missing| (State::NoComm, missing.rank));
        let mut states: Vec<_> =
            self.answers.iter().map(|answer| (answer.state(), answer.rank)).chain(gone).collect();
        states.sort_by_key(|(_, rank)| *rank);
        states
    }

    fn state(&self) -> State {
        self.states().into_iter().map(|(state, _)| state).max().unwrap_or(State::NoComm)
    }

    fn place_of(&self, rank: u32) -> Option<&Place> {
        if let Ok(at) = self.answers.binary_search_by_key(&rank, |answer| answer.rank) {
            return Some(&self.answers[at].place);
        }
        let at = self.missing.binary_search_by_key(&rank, |missing| missing.rank).ok()?;
        self.missing[at].place.as_ref()
    }

    fn troubles(&self) -> Troubles {
        let first = self.answers.first();
        let is_error = |code: u32| code != 0 && code != IN_PROGRESS;
        let states = self.states();
        Troubles {
            incomplete: self.missing.iter().any(|missing| missing.unresponsive),
            error: self.answers.iter().any(|a| is_error(a.init_state) || is_error(a.async_error)),
            mismatch: states.iter().any(|(state, _)| Some(*state) != states.first().map(|s| s.0))
                || self.answers.iter().any(|a| Some(a.counts) != first.map(|f| f.counts)),
        }
    }
}

/// The troubles of a communicator. The order is that of NCCL's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Troubles {
    incomplete: bool,
    error: bool,
    mismatch: bool,
}

impl Troubles {
    fn names(self) -> String {
        let all =
            [(self.incomplete, "INCOMPLETE"), (self.error, "ERROR"), (self.mismatch, "MISMATCH")];
        let names: Vec<_> = all.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        if names.is_empty() { "OK".to_owned() } else { names.join(",") }
    }
}

/// A process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address of its host.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The numbers of its devices.
    pub devices: BTreeSet<u32>,
    answered: bool,
    dead: bool,
}

impl Peer {
    /// Returns a process with one device, of which nothing is known.
    pub fn of_device(host: String, pid: u32, device: u32) -> Self {
        Self { host, pid, devices: BTreeSet::from([device]), answered: false, dead: false }
    }
}

/// The state of a job.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The processes that have answered.
    job: Vec<Process>,
    peers: Vec<Peer>,
    /// In the order of their numbers.
    comms: Vec<CommState>,
    causes: Vec<Verdict>,
    /// The number of processes for whose answers too long was waited.
    timeouts: usize,
    /// The duration of the collection.
    seconds: f64,
    /// The versions of CUDA's runtime and driver, as CUDA numbers them; 0 in host memory.
    pub cuda_versions: (i32, i32),
}

impl Survey {
    /// Returns the state of a job, of its processes that have answered and of what these know of
    /// the others; with the causes of a standstill, and the duration of the collection in seconds.
    /// The versions of CUDA are 0.
    pub fn new(job: &[Process], known: &[Known], causes: Vec<Verdict>, seconds: f64) -> Self {
        let (comms, known) = (communicators(job), by_rank(known));
        let comms: Vec<_> = comms.iter().map(|comm| CommState::new(comm, &known)).collect();
        let mut peers = peers(job);
        // Processes in containers may have the number of one that has answered.
        let numbers = job.iter().enumerate().rev();
        let mut numbers: HashMap<_, usize> =
            numbers.map(|(number, of)| ((&of.address, of.pid, true), number)).collect();
        let gone = comms.iter().flat_map(|comm| &comm.missing);
        for Missing { place, unresponsive, dead, .. } in gone {
            let Some(Place { host, pid, device }) = place else { continue };
            let answered = !unresponsive;
            let at = *numbers.entry((host, *pid, answered)).or_insert_with(|| {
                let (host, devices) = (host.clone(), BTreeSet::new());
                peers.push(Peer { host, pid: *pid, devices, answered, dead: *dead });
                peers.len() - 1
            });
            peers[at].devices.insert(*device);
            peers[at].dead |= *dead;
        }
        let silent = peers.iter().filter(|peer| !peer.answered && !peer.dead).count();
        let (job, cuda_versions) = (job.to_vec(), (0, 0));
        Self { job, peers, comms, causes, timeouts: silent, seconds, cuda_versions }
    }

    /// Returns what the processes record as a JSON document, as `oxccl ras --json` writes it.
    pub fn records(&self) -> String {
        status::json(&self.job, &self.causes)
    }
}

/// Returns processes as the peers that they are for NCCL.
pub fn peers(job: &[Process]) -> Vec<Peer> {
    let peer = |process: &Process| Peer {
        host: process.address.clone(),
        pid: process.pid,
        devices: process.ranks.iter().map(|rank| rank.device).collect(),
        answered: true,
        dead: false,
    };
    job.iter().map(peer).collect()
}
