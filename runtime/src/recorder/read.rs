//! Reading what the processes of this machine record. Nothing that a process does, or has stopped
//! doing, holds the reader up.

use super::entry::{SENDS, TRANSFERS_AT};
use super::file::{self, Head};
use super::kernels::KernelRun;
use super::ticks::{Scale, moment};
use super::{ASKED, COLLECTIVES, End, Entry, IN_A_KERNEL, KernelCollective, Kind, ON_GPU};
use super::{Section, Source, Stage, Waiting};
use crate::op::descriptor::Descriptor;
use oxccl_plan::Carrier;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Kernels that wait say so more often than this, and the monitor passes it on.
const KERNELS_SPEAK_NS: u64 = 500_000_000;

/// A process and the ranks of communicators in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// The name of the host.
    pub host: String,
    /// The address by which other hosts reach it; empty if it is not known.
    pub address: String,
    /// The address and port at which its RAS service listens; empty if it has none.
    #[serde(default)]
    pub service: String,
    /// The name of the program.
    pub command: String,
    /// The state of the process: running, stopped (by a signal, or by a debugger), or ended.
    pub state: ProcessState,
    /// The time of day at which this was read, in ns since 1970.
    pub read_ns: u64,
    /// By how much the host's time of day was set since the process began, in ns.
    pub clock_set_ns: i64,
    /// The ranks, in the order in which their memory was taken.
    pub ranks: Vec<RankReport>,
    /// True if ranks were left out for want of room, on the way from another host.
    #[serde(default)]
    pub left_out: bool,
    /// The ranks whose processes have not answered it; empty unless its RAS service asked them.
    #[serde(default)]
    pub unanswered: Vec<Unanswered>,
}

/// A rank whose process has not answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unanswered {
    /// The number of the communicator.
    pub comm: u64,
    /// The rank.
    pub rank: u32,
    /// The address of its host.
    pub host: String,
    /// The id of its process.
    pub pid: u32,
    /// The time in ns for which nothing has come from its host, though data are sent there again
    /// and again: the connection is cut. `None` where that is not so, or not known.
    #[serde(default)]
    pub cut_ns: Option<u64>,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It runs, or waits.
    Alive,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It has ended, and its parent has not asked for its exit code yet.
    Ended,
}

/// The failure of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The text of the error; empty if there is none.
    #[serde(rename = "failure")]
    pub text: String,
    /// The code among NCCL's results; 0 if there is none.
    #[serde(rename = "failure_code")]
    pub code: u32,
    /// The origin.
    #[serde(rename = "failure_source")]
    pub source: Source,
    /// The time; `None` if there is none.
    #[serde(rename = "failed_ns", default)]
    pub since_ns: Option<u64>,
}

/// A rank of a communicator. Times are times of day in ns since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// The number of the communicator, the same on all its ranks; while it is being made, that of
    /// its id.
    pub comm: u64,
    /// The number of the communicator that it is made from; `None` for one with an id of its own.
    #[serde(default)]
    pub parent: Option<u64>,
    /// The name that the user gave the communicator; empty if none.
    pub name: String,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub nranks: u32,
    /// The GPU; `None` in host memory.
    pub gpu: Option<u32>,
    /// The number of the device, as `ncclCommCuDevice` tells it: of the GPU, or of a device of host
    /// memory.
    pub device: u32,
    /// The stage of the rank.
    pub stage: Stage,
    /// The time at which it began to make the communicator.
    pub begun_ns: u64,
    /// The number of operations called so far.
    pub issued: u64,
    /// The number of operations done so far; they run in the order of their calls.
    pub finished: u64,
    /// The number of collectives called so far, of which those of a batch count as one.
    pub collectives: u64,
    /// All of them by their kinds, in the order of
    /// [`Collective::ALL`](oxccl_plan::Collective::ALL).
    pub collectives_by_kind: [u64; COLLECTIVES],
    /// The bytes of these: of a block of each.
    #[serde(default)]
    pub bytes_by_kind: [u64; COLLECTIVES],
    /// The bytes of all other operations called so far.
    #[serde(default)]
    pub other_bytes: u64,
    /// The time for which operations in host memory have waited, as far as that was recorded: from
    /// waits of a moment on.
    #[serde(default)]
    pub waited_ns: u64,
    /// True once the user has finalized the communicator.
    pub finalized: bool,
    /// True once the user has begun to destroy the communicator.
    pub destroyed: bool,
    /// True once the user has aborted or revoked the communicator, or shrunk it with an abort.
    pub aborted: bool,
    /// The peer and step for which the operation under way waits; `None` if it waits for none.
    pub waiting: Option<Awaited>,
    /// The failure of the rank.
    #[serde(flatten)]
    pub failure: Failure,
    /// The latest operations, in the order of their calls.
    pub operations: Vec<OperationReport>,
    /// The latest collectives and messages of which kernels have told, in their order; empty in
    /// host memory. Each 32nd tells of itself, and they are looked at every 20 ms.
    #[serde(default)]
    pub kernels: Vec<KernelReport>,
    /// By how much their times may be wrong beside those of the host, in ns.
    #[serde(default)]
    pub kernels_error_ns: u64,
}

/// A collective, or messages, that ran, or run, on a GPU. Times are times of day in ns since 1970:
/// that of the GPU is compared with the host's by when calls were made and kernels looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelReport {
    /// The number among the collectives that ran on the GPU for this communicator, those of graphs
    /// included; `None` for messages.
    pub number: Option<u64>,
    /// The number of its call among the operations of the rank; `None` in a graph.
    pub call: Option<u64>,
    /// The collective, or the first message, in words.
    pub what: String,
    /// The descriptor, for comparisons.
    pub descriptor: Descriptor,
    /// The time at which its kernel began.
    pub begun_ns: u64,
    /// The time at which its first block ended; `None` if it runs, as far as that was looked at.
    pub ended_ns: Option<u64>,
}

/// The peer and step for which an operation waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Awaited {
    /// The number of the operation; `None` if a kernel waits, of which the host knows no number.
    pub number: Option<u64>,
    /// The collective of the kernel that waits; `None` if it is in none, or the host waits.
    pub collective: Option<KernelCollective>,
    /// The awaited rank; `None` if it waits for no rank in particular.
    pub peer: Option<u32>,
    /// The step of its plan; `None` if it has none.
    pub step: Option<u32>,
    /// The time since when nothing has moved.
    pub since_ns: u64,
    /// The time at which it looked last.
    pub looked_ns: u64,
}

/// An operation. Times are times of day in ns since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationReport {
    /// The number among the operations of the rank on this communicator.
    pub number: u64,
    /// The kind of the operation.
    pub kind: Kind,
    /// The number among the rank's collectives or, for other kinds, among the rest.
    pub of_kind: u64,
    /// The operation in words: what must be the same on all ranks.
    pub what: String,
    /// The algorithm of a collective, and that for memory that all ranks map, if there is another
    /// one; `None` for other operations.
    #[serde(default)]
    pub plan: Option<String>,
    /// The carriers of a collective's data, by the names of `oxccl plan`: which one of several it
    /// is depends on the memory of its buffers. `None` for other operations.
    #[serde(default)]
    pub carrier: Option<String>,
    /// Bytes of a block, of a block of each collective of a batch, or of all sends and receives.
    pub bytes: u64,
    /// The peer of the first send or receive, or of a one-sided operation.
    pub peer: Option<u32>,
    /// True if that is a send; `None` without a peer.
    pub sends: Option<bool>,
    /// The number of sends and receives, or of the collectives of a batch.
    pub transfers: u32,
    /// The number of the stream.
    pub stream: u64,
    /// The number that the caller gave it by `oxcclTag`; 0 for none.
    pub tag: u64,
    /// The time of its call.
    pub called_ns: u64,
    /// The time at which it began to run; `None` if it has not, or if that is not known.
    pub begun_ns: Option<u64>,
    /// The time at which it ended, that of its call if all ranks are on one host and it was over
    /// within the call; `None` if it has not ended, or if that is not known.
    pub ended_ns: Option<u64>,
    /// The descriptor, for comparisons.
    pub descriptor: Descriptor,
}

/// The most ranks of a communicator: descriptors have 16 bits for the root.
pub(super) const MAX_RANKS: u32 = 1 << 16;

/// Returns a text without control characters, which a terminal would obey.
pub(super) fn plain(text: String) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns the processes of this machine in which ranks record what they do, as far as this user
/// may look at them. `root` is where the folder of processes is: `/proc`.
pub fn processes(root: &Path) -> Vec<Process> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut processes: Vec<_> = pids.filter_map(|pid| process(root, pid)).collect();
    processes.sort_by_key(|process| process.pid);
    processes
}

/// The folder of processes of this machine.
pub const PROC: &str = "/proc";

/// Returns the number of this process as a folder of processes has it.
pub fn own_pid(root: &Path) -> u32 {
    let own = std::fs::read_link(root.join("self")).ok();
    own.and_then(|path| path.to_str()?.parse().ok()).unwrap_or_else(std::process::id)
}

/// Returns the state of a process; `None` if there is none with this number.
pub fn state(root: &Path, pid: u32) -> Option<ProcessState> {
    status(&root.join(pid.to_string())).map(|(_, state)| state)
}

/// Returns a process; `None` if no rank in it records what it does, or it may not be looked at.
pub fn process(root: &Path, pid: u32) -> Option<Process> {
    let folder = root.join(pid.to_string());
    let (inside, state) = status(&folder)?;
    let (fd, head) = recorder_of(&folder, inside)?;
    let word = |at: usize| head.moment[at].load(Ordering::Relaxed);
    let (now, monotonic, time) = moment(head.counter.load(Ordering::Relaxed) == 1);
    // Recorded times are differences to now, by a clock that nobody sets.
    let age = monotonic.saturating_sub(word(1));
    let scale = Scale { first: (word(0), time.saturating_sub(age)), last: (now, time) };
    let used = (head.used.load(Ordering::Relaxed) as usize).min(file::SECTIONS);
    let clocks = Clocks { scale, to_time: (time as i64).wrapping_sub(monotonic as i64) };
    let ranks = (0..used).filter_map(|number| rank(&fd, number, &clocks)).collect();
    let command = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
    Some(Process {
        pid,
        host: host_name(),
        address: plain(head.address.read()),
        service: plain(head.service.read()),
        command: plain(command.trim_end().to_owned()),
        state,
        read_ns: time,
        clock_set_ns: (time as i64).wrapping_sub(word(2) as i64).wrapping_sub(age as i64),
        ranks,
        left_out: false,
        unanswered: Vec::new(),
    })
}

/// Returns the name of this host.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Opens the recorder of a process, which has this number for itself.
fn recorder_of(folder: &Path, pid: u32) -> Option<(OwnedFd, Page<Head>)> {
    let names = |path: &PathBuf| {
        let to = std::fs::read_link(path).ok();
        to.is_some_and(|to| to.as_os_str() == format!("/memfd:{} (deleted)", file::NAME).as_str())
    };
    let fds = std::fs::read_dir(folder.join("fd")).ok()?.flatten();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    // The process itself may read its recorder: that descriptor is gone, or another file's, by now.
    // A forked child has inherited the file of its parent.
    fds.map(|entry| entry.path()).filter(names).find_map(|path| {
        let fd = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let head = Page::<Head>::read(&fd, 0)?;
        let is = |word: &AtomicU64, value: u64| word.load(Ordering::Relaxed) == value;
        (is(&head.magic, file::MAGIC) && is(&head.pid, pid.into())).then_some((fd, head))
    })
}

/// Returns the process id as the process itself sees it, and its state.
fn status(folder: &Path) -> Option<(u32, ProcessState)> {
    let text = std::fs::read_to_string(folder.join("status")).ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let state = match field("State:")?.trim_start().chars().next()? {
        'T' | 't' => ProcessState::Stopped,
        'Z' | 'X' => ProcessState::Ended,
        _ => ProcessState::Alive,
    };
    let pid = field("NSpid:").or_else(|| field("Pid:"))?;
    Some((pid.split_whitespace().last()?.parse().ok()?, state))
}

/// A copy of a part of a file that consists of atomic words.
struct Page<T>(Box<T>);

impl<T> std::ops::Deref for Page<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Parts of the file: structures of atomic words, for which any bytes are right.
trait Words {}
impl Words for Head {}
impl Words for Section {}

impl<T: Words> Page<T> {
    fn read(fd: &OwnedFd, at: usize) -> Option<Self> {
        let mut page = Box::<T>::new_uninit();
        // SAFETY: the bytes of the allocation, set to zero before they are lent.
        let bytes = unsafe {
            std::ptr::write_bytes(page.as_mut_ptr(), 0, 1);
            std::slice::from_raw_parts_mut(page.as_mut_ptr().cast::<u8>(), size_of::<T>())
        };
        let read = rustix::io::pread(fd, &mut *bytes, at as u64).ok()?;
        // SAFETY: all bytes are set, and any bytes are right for `T`.
        (read == size_of::<T>()).then(|| Self(unsafe { page.assume_init() }))
    }
}

/// The clocks of a process: of what it records in ticks, and by how much the time of day is ahead
/// of the monotonic clock, in ns.
struct Clocks {
    scale: Scale,
    to_time: i64,
}

/// Returns the rank that a section describes; `None` if none uses it.
fn rank(fd: &OwnedFd, number: usize, clocks: &Clocks) -> Option<RankReport> {
    let scale = &clocks.scale;
    let read = || Page::<Section>::read(fd, file::section_at(number));
    // What was overwritten while it was read shows in a second look.
    let (section, again) = (read()?, read()?);
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let (state, later) = (load(&section.state), load(&again.state));
    let stage = *Stage::ALL.iter().find(|stage| **stage as u32 == state as u32)?;
    if state >> 32 != later >> 32 {
        return None;
    }
    let rank = load(&section.rank);
    let (own, nranks) = (rank as u32, (rank >> 32) as u32);
    // The identity is not there yet, or what is there is none of ours.
    if own >= nranks || nranks > MAX_RANKS {
        return None;
    }
    let kept = section.entries.iter().zip(&again.entries);
    let kept = kept.filter(|(entry, later)| load(&entry.number) == load(&later.number));
    let mut operations: Vec<_> = kept.filter_map(|(entry, _)| operation(entry, scale)).collect();
    operations.sort_by_key(|operation| operation.number);
    let kernels = kernels(&section, &again, clocks);
    for run in &kernels {
        // A group of many messages has several kernels.
        if let Some(of) = operations.iter_mut().find(|op| Some(op.number) == run.call) {
            of.begun_ns.get_or_insert(run.begun_ns);
            of.ended_ns = run.ended_ns;
        }
    }
    let device = load(&section.device);
    let ends = |end: End| load(&section.ends) & end as u64 != 0;
    Some(RankReport {
        comm: load(&section.comm),
        parent: Some(load(&section.parent)).filter(|parent| *parent != 0),
        name: plain(section.name.read()),
        rank: own,
        nranks,
        gpu: (device & ON_GPU != 0).then_some(device as u32),
        device: device as u32,
        stage,
        begun_ns: scale.ns(load(&section.begun)).unwrap_or(0),
        issued: load(&section.issued),
        finished: load(&section.finished),
        collectives: section.collectives_so_far(),
        collectives_by_kind: section.collectives.each_ref().map(|count| load(&count.calls)),
        bytes_by_kind: section.collectives.each_ref().map(|count| load(&count.bytes)),
        other_bytes: load(&section.others.bytes),
        waited_ns: scale.span_ns(load(&section.waited)),
        finalized: ends(End::Finalize),
        destroyed: ends(End::Destroy),
        aborted: ends(End::Abort) || load(&section.source) == ASKED,
        waiting: awaited(&section.waiting, load(&section.finished), scale),
        failure: Failure {
            text: plain(section.failure.read()),
            code: load(&section.code) as u32,
            source: match load(&section.source) {
                0 => Source::Here,
                ASKED => Source::Asked,
                peer => Source::Peer((peer - 1) as u32),
            },
            since_ns: scale.ns(load(&section.failed)),
        },
        operations,
        kernels,
        kernels_error_ns: load(&section.gpu_clock_error),
    })
}

/// Returns what ran on the GPU, in its order, by a first and a second look.
fn kernels(section: &Section, again: &Section, clocks: &Clocks) -> Vec<KernelReport> {
    let gpu = section.gpu_clock.load(Ordering::Relaxed) as i64;
    let time =
        |of_gpu: u64| (of_gpu as i64).wrapping_add(gpu).wrapping_add(clocks.to_time).max(0) as u64;
    let report = |KernelRun { number, call, descriptor, begun_ns, ended_ns }| KernelReport {
        number,
        call,
        what: descriptor.to_string(),
        descriptor,
        begun_ns: time(begun_ns),
        ended_ns: ended_ns.map(time),
    };
    let looks = section.kernels.iter().zip(&again.kernels);
    let kept = looks.map(|(words, later)| (words.read(), later.read()));
    let same =
        kept.filter_map(|(run, later)| run.filter(|run| later.is_some_and(|l| l.is_same(run))));
    let mut all: Vec<_> = same.map(report).collect();
    all.sort_by_key(|run| run.begun_ns);
    all
}

/// Returns what the operation under way waits for; `None` if it is not known to wait.
pub(super) fn awaited(waiting: &Waiting, finished: u64, scale: &Scale) -> Option<Awaited> {
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let number = load(&waiting.number).checked_sub(1)?;
    let in_a_kernel = number == IN_A_KERNEL;
    let age_ns = scale.last.1.saturating_sub(scale.ns(load(&waiting.looked))?);
    if in_a_kernel && age_ns > KERNELS_SPEAK_NS || !in_a_kernel && number != finished {
        return None;
    }
    let peer_step = load(&waiting.peer_step);
    let [peer, step] = [peer_step as u32, (peer_step >> 32) as u32].map(|n| n.checked_sub(1));
    let looked_ns = scale.last.1.saturating_sub(age_ns);
    let since_ns = match in_a_kernel {
        true => looked_ns.saturating_sub(load(&waiting.waited_ns)),
        false => scale.ns(load(&waiting.since))?,
    };
    let collective = load(&waiting.collective).checked_sub(1).filter(|_| in_a_kernel);
    let collective = collective.map(|number| KernelCollective {
        number,
        descriptor: Descriptor::from_words(load(&waiting.what) as u32, load(&waiting.count)),
        peer_has_begun: match load(&waiting.peer_has_begun) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        },
    });
    let number = (!in_a_kernel).then_some(number);
    Some(Awaited { number, collective, peer, step, since_ns, looked_ns })
}

fn operation(entry: &Entry, scale: &Scale) -> Option<OperationReport> {
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let number = load(&entry.number).checked_sub(1)?;
    let (what, peer) = (load(&entry.what), load(&entry.peer));
    let kind = *Kind::ALL.iter().find(|kind| **kind as u64 == what >> 32 & 0xff)?;
    let descriptor = Descriptor::from_words(what as u32, load(&entry.count));
    Some(OperationReport {
        number,
        kind,
        of_kind: load(&entry.of_kind),
        what: words(kind, descriptor),
        plan: descriptor.plans().filter(|_| kind == Kind::Collective),
        carrier: carriers(load(&entry.carriers)),
        bytes: load(&entry.bytes),
        peer: (peer as u32).checked_sub(1),
        sends: (peer as u32 != 0).then_some(peer & SENDS != 0),
        transfers: (what >> TRANSFERS_AT) as u32,
        stream: load(&entry.stream),
        tag: load(&entry.tag),
        called_ns: scale.ns(load(&entry.called))?,
        begun_ns: scale.ns(load(&entry.begun)),
        ended_ns: scale.ns(load(&entry.ended)),
        descriptor,
    })
}

/// Returns the names of a set of carriers; `None` for an empty one.
fn carriers(set: u64) -> Option<String> {
    let names = Carrier::ALL.iter().filter(|carrier| set >> **carrier as u64 & 1 != 0);
    let names: Vec<_> = names.map(|carrier| carrier.name()).collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

fn words(kind: Kind, descriptor: Descriptor) -> String {
    match kind {
        Kind::Collective | Kind::Exchange | Kind::Wait => descriptor.to_string(),
        Kind::Put => "put_signal".to_owned(),
        Kind::Signal => "signal".to_owned(),
    }
}
