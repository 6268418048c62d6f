//! The recorder of operations: what each rank of this process has called, begun and ended, and what
//! it waits for, in memory that other processes of the same user can read, also while the rank is
//! stuck. Recording takes no lock and no system call.

mod entry;
mod file;
pub mod kernels;
pub mod read;
mod text;
mod ticks;
pub mod wire;

use crate::fork;
use crate::op::descriptor::Descriptor;
use crate::os::memory::Mapping;
pub use entry::{Called, Entry, Kind, What};
use oxccl_plan::Collective;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use text::Text;
use ticks::ticks;

/// Operations of a rank that the recorder keeps.
pub const OPERATIONS: usize = 64;

/// The stage of a rank of a communicator, from the beginning of its creation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The communicator is being made.
    Creating = 1,
    /// Operations run.
    Running = 2,
    /// The communicator has failed.
    Failed = 3,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Creating, Self::Running, Self::Failed];

    /// Returns the stage in a word.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Creating => "creating",
            Stage::Running => "running",
            Stage::Failed => "failed",
        }
    }
}

/// The part of the memory that describes one rank. All words are zero while nobody uses it.
#[repr(C, align(4096))]
pub struct Section {
    /// A number that changes when another rank takes the section, in the upper half, and the
    /// [`Stage`]; 0 while the section is free.
    state: AtomicU64,
    /// The number of the communicator, and of the one that it is made from; 0 for none.
    comm: AtomicU64,
    parent: AtomicU64,
    /// The rank, and in the upper half the number of ranks.
    rank: AtomicU64,
    /// The device's number, and [`ON_GPU`] if it is a GPU's.
    device: AtomicU64,
    /// The time at which the rank began to make the communicator.
    begun: AtomicU64,
    /// The origin of the failure: a [`Source`]; and its code among NCCL's results.
    source: AtomicU64,
    code: AtomicU64,
    /// The time of the failure.
    failed: AtomicU64,
    /// The user's requests at the end of the communicator: bits of [`End`].
    ends: AtomicU64,
    /// Collectives called so far, by their kinds; and other operations.
    collectives: [Count; COLLECTIVES],
    others: Count,
    /// By how much these are more than the operations: collectives of a group may be one.
    batched: AtomicU64,
    /// Ticks for which operations in host memory have waited, as far as that was recorded.
    waited: AtomicU64,
    /// Operations called so far; operations run in the order of their calls.
    pub issued: AtomicU64,
    /// Operations done so far.
    pub finished: AtomicU64,
    /// By how much the monotonic clock is ahead of the GPU's, in ns, as a signed number.
    gpu_clock: AtomicU64,
    /// By how much that may be wrong, in ns.
    gpu_clock_error: AtomicU64,
    waiting: Waiting,
    name: Text<8>,
    failure: Text<64>,
    entries: [Entry; OPERATIONS],
    /// The latest collectives and messages on the GPU.
    kernels: [kernels::Words; OPERATIONS],
}

/// Operations called so far, and their bytes.
#[repr(C)]
struct Count {
    calls: AtomicU64,
    bytes: AtomicU64,
}

/// The kinds of collectives.
pub const COLLECTIVES: usize = Collective::ALL.len();

/// The bit of [`Section::device`] that marks GPUs.
const ON_GPU: u64 = 1 << 63;

/// The device that holds a rank's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Host memory, by the number of its device, which is the rank's choice.
    Host(i32),
    /// The memory of a GPU, by its number.
    Gpu(i32),
}

/// A way in which the user ends a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// No operation follows, and those under way are completed.
    Finalize = 1,
    /// The communicator is destroyed.
    Destroy = 2,
    /// Operations under way are given up: by an abort, by a revocation, or by a shrink.
    Abort = 4,
}

/// The origin of a rank's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The rank has found it.
    Here,
    /// The user has asked for it, as by an abort.
    Asked,
    /// This rank has found it.
    Peer(u32),
}

/// Stands for [`Source::Asked`]; other numbers are those of ranks plus one, or 0.
const ASKED: u64 = u64::MAX;

/// Stands for the number of the operation that a kernel carries out, which the host does not know.
const IN_A_KERNEL: u64 = u64::MAX - 1;

/// The collective in which a kernel waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KernelCollective {
    /// The number among the collectives that ran on the GPU for this communicator, those of graphs
    /// included.
    pub number: u64,
    /// The descriptor of the collective.
    pub descriptor: Descriptor,
    /// True if a kernel of the awaited rank has begun this collective; `None` of ranks on other
    /// hosts, which do not tell.
    pub peer_has_begun: Option<bool>,
}

/// The peer and step for which the operation under way waits.
#[repr(C)]
struct Waiting {
    /// The operation's number plus one; 0 for none.
    number: AtomicU64,
    /// The awaited rank plus one, or 0, and in the upper half the step plus one, or 0.
    peer_step: AtomicU64,
    /// The time since when nothing has moved, in host memory; and the time of the latest look.
    since: AtomicU64,
    looked: AtomicU64,
    /// The time for which a kernel had waited at that look, in ns.
    waited_ns: AtomicU64,
    /// The kernel's collective: its number on the GPU, from 1, or 0 if it is in none, the two words
    /// of its descriptor, and 1 if the awaited rank has begun it, 0 if not, 2 if it does not tell.
    collective: AtomicU64,
    what: AtomicU64,
    count: AtomicU64,
    peer_has_begun: AtomicU64,
}

const _: () = assert!(size_of::<Section>() == 12 << 10);

impl Section {
    /// Returns the place of an operation.
    #[inline]
    fn entry(&self, number: u64) -> &Entry {
        &self.entries[number as usize % OPERATIONS]
    }

    /// Takes the next number for an operation, and records its call on a stream. The operation
    /// under way and those after it stay recorded: a caller that is far ahead is recorded when its
    /// operation [begins](Self::begin).
    #[inline]
    pub fn call(&self, what: &What, stream: usize) -> Called {
        let called = self.count(what, stream);
        let ahead = called.number.wrapping_sub(self.finished.load(Ordering::Relaxed));
        if ahead < OPERATIONS as u64 {
            self.entry(called.number).write(&called, what, (ticks(), 0));
        }
        called
    }

    /// Records the call of an operation on a GPU at a time, in the place of the oldest one.
    #[inline]
    pub fn call_on_gpu(&self, what: &What, stream: usize, at: Tick) {
        let called = self.count(what, stream);
        self.entry(called.number).write(&called, what, (at.0, 0));
    }

    #[inline]
    fn count(&self, what: &What, stream: usize) -> Called {
        // Two threads that call at once without an order between them, which is an error of the
        // program, may lose a count, by which reports tell what the ranks have called; an addition
        // that cannot takes 6 ns more.
        let add = |sum: &AtomicU64, number: u64| {
            let before = sum.load(Ordering::Relaxed);
            sum.store(before.wrapping_add(number), Ordering::Relaxed);
            before
        };
        let collectives = what.collective_kind().map(|kind| (kind, self.collectives_so_far()));
        let Count { calls, bytes } = match collectives {
            Some((kind, _)) => &self.collectives[kind % COLLECTIVES],
            None => &self.others,
        };
        let in_batch = what.collectives().max(1);
        let of_kind = add(calls, in_batch);
        if in_batch > 1 {
            add(&self.batched, in_batch - 1);
        }
        add(bytes, what.bytes);
        let of_kind = collectives.map_or(of_kind, |(_, so_far)| so_far);
        let number = self.issued.fetch_add(1, Ordering::AcqRel);
        Called { number, of_kind, stream, tag: if what.tag == 0 { tag() } else { what.tag } }
    }

    /// Records that an operation begins to run.
    pub fn begin(&self, called: &Called, what: &What) {
        let (entry, now) = (self.entry(called.number), ticks());
        if entry.is_of(called.number) {
            entry.begun.store(now, Ordering::Relaxed);
        } else {
            entry.write(called, what, (now, now));
        }
    }

    /// Records that the operation under way has ended, and lets the next one run.
    #[inline]
    pub fn end(&self, number: u64) {
        self.end_at(number, |_| ticks());
    }

    /// Records the same of an operation of one host that was over within its call, whose time it
    /// gets: to ask for it again would take a tenth of a small call.
    #[inline]
    pub fn end_within_call(&self, number: u64) {
        self.end_at(number, |entry| entry.called.load(Ordering::Relaxed));
    }

    #[inline]
    fn end_at(&self, number: u64, time: impl FnOnce(&Entry) -> u64) {
        let entry = self.entry(number);
        if entry.is_of(number) {
            entry.ended.store(time(entry), Ordering::Relaxed);
        }
        if self.waiting.number.load(Ordering::Relaxed) == number + 1 {
            self.go_on();
        }
        self.finished.store(number + 1, Ordering::Release);
    }

    /// Returns the number of collectives called so far, of which those of a batch count as one.
    #[inline]
    fn collectives_so_far(&self) -> u64 {
        let counts = self.collectives.iter().map(|count| count.calls.load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add).wrapping_sub(self.batched.load(Ordering::Relaxed))
    }

    /// Records what the operation under way waits for; `first` if something has moved since the
    /// last such record.
    pub fn wait(&self, number: u64, peer: i32, step: i32, first: bool) {
        let Waiting { number: of, peer_step, since, looked, .. } = &self.waiting;
        let now = ticks();
        if first || of.load(Ordering::Relaxed) != number + 1 {
            since.store(now, Ordering::Relaxed);
        }
        let [peer, step] = [peer, step].map(|n| u64::from((n.saturating_add(1)).max(0) as u32));
        peer_step.store(peer | step << 32, Ordering::Relaxed);
        looked.store(now, Ordering::Relaxed);
        of.store(number + 1, Ordering::Release);
    }

    /// Returns the step at which an operation waits, as far as that was recorded; −1 if it waits at
    /// none.
    pub fn step_of(&self, number: u64) -> i32 {
        let Waiting { number: of, peer_step, .. } = &self.waiting;
        let waits = of.load(Ordering::Acquire) == number + 1;
        let step = (peer_step.load(Ordering::Relaxed) >> 32) as i32 - 1;
        if waits { step } else { -1 }
    }

    /// Returns the collective in which a kernel waits, and the step, −1 if it waits at none; `None`
    /// if none has said so lately.
    pub fn kernel_waits_in(&self) -> Option<(KernelCollective, i32)> {
        /// Kernels say so every half millisecond, and the monitor looks each [`kernels::LOOKS`].
        const LATELY_NS: u64 = 25_000_000;
        let scale = file::monotonic()?;
        let waiting = read::awaited(&self.waiting, 0, &scale)?;
        let is_late = scale.last.1.saturating_sub(waiting.looked_ns) > LATELY_NS;
        if is_late {
            return None;
        }
        let step = waiting.step.map_or(-1, |step| step as i32);
        let collective = waiting.collective?;
        let mut runs = self.kernels.iter().filter_map(kernels::Words::read);
        // Kernels tell of a part of what they run.
        let number = Some(collective.number);
        let has_ended =
            runs.any(|run| run.number > number || run.number == number && run.ended_ns.is_some());
        (!has_ended).then_some((collective, step))
    }

    /// Records what a kernel has waited for, in which collective if it is in one, and for how long.
    pub fn kernel_waits(
        &self,
        (peer, step): (i32, i32),
        collective: Option<KernelCollective>,
        waited_ns: u64,
    ) {
        let words = &self.waiting;
        words.waited_ns.store(waited_ns, Ordering::Relaxed);
        words.collective.store(collective.map_or(0, |of| of.number + 1), Ordering::Relaxed);
        if let Some(of) = collective {
            let (what, count) = of.descriptor.to_words();
            words.what.store(what.into(), Ordering::Relaxed);
            words.count.store(count, Ordering::Relaxed);
            let begun = of.peer_has_begun.map_or(2, u64::from);
            words.peer_has_begun.store(begun, Ordering::Relaxed);
        }
        self.wait(IN_A_KERNEL, peer, step, false);
    }

    /// Records that the operation under way waits no more.
    pub fn go_on(&self) {
        let Waiting { number, since, .. } = &self.waiting;
        let waited = ticks().wrapping_sub(since.load(Ordering::Relaxed));
        let sum = self.waited.load(Ordering::Relaxed).wrapping_add(waited);
        self.waited.store(sum, Ordering::Relaxed);
        number.store(0, Ordering::Relaxed);
    }

    /// Records the failure of the rank: its text, its code among NCCL's results, and where it comes
    /// from.
    pub fn fail(&self, text: &str, code: i32, source: Source) {
        let source = match source {
            Source::Here => 0,
            Source::Asked => ASKED,
            Source::Peer(rank) => u64::from(rank) + 1,
        };
        self.source.store(source, Ordering::Relaxed);
        self.code.store(u64::from(code.unsigned_abs()), Ordering::Relaxed);
        self.failed.store(ticks(), Ordering::Relaxed);
        self.failure.write(text);
        self.enter(Stage::Failed);
    }

    /// Records the stage of the rank. A failure stays.
    pub fn enter(&self, stage: Stage) {
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |state| {
            let failed = state as u32 == Stage::Failed as u32;
            (!failed).then_some(state >> 32 << 32 | stage as u64)
        });
    }

    /// Records that the user ends the communicator.
    pub fn note(&self, end: End) {
        self.ends.fetch_or(end as u64, Ordering::Relaxed);
    }

    /// Records which communicator this is: its number, this rank and the number of ranks, the
    /// device, and the name that the user gave.
    pub fn identify(&self, comm: u64, (rank, nranks): (u32, u32), on: Memory, name: &str) {
        self.comm.store(comm, Ordering::Relaxed);
        self.rank.store(u64::from(rank) | u64::from(nranks) << 32, Ordering::Relaxed);
        let device = match on {
            Memory::Host(index) => u64::from(index.unsigned_abs()),
            Memory::Gpu(index) => u64::from(index.unsigned_abs()) | ON_GPU,
        };
        self.device.store(device, Ordering::Relaxed);
        self.name.write(name);
    }

    /// Records the number of the communicator that this one is made from.
    pub fn descend_from(&self, parent: u64) {
        self.parent.store(parent, Ordering::Relaxed);
    }

    /// Returns the number of the communicator.
    pub fn comm(&self) -> u64 {
        self.comm.load(Ordering::Relaxed)
    }

    fn start(&self, generation: u64) {
        self.begun.store(ticks(), Ordering::Relaxed);
        self.state.store(generation << 32 | Stage::Creating as u64, Ordering::Release);
    }

    /// Makes the section free, and zero for the next rank.
    fn clear(&self) {
        self.state.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let Waiting { number, peer_step, since, looked, waited_ns, .. } = &self.waiting;
        let words = [&self.comm, &self.rank, &self.device, &self.begun, &self.source, &self.code];
        let more = [&self.parent, &self.ends, &self.waited, &self.issued, &self.finished];
        let more = more.into_iter().chain([&self.failed, &self.batched]);
        let more = more.chain([&self.gpu_clock, &self.gpu_clock_error]);
        let counts = self.collectives.iter().chain([&self.others]);
        let counts = counts.flat_map(|count| [&count.calls, &count.bytes]);
        let waiting = [number, peer_step, since, looked, waited_ns];
        let Waiting { collective, what, count, peer_has_begun, .. } = &self.waiting;
        let kernels = [collective, what, count, peer_has_begun];
        let all = words.into_iter().chain(counts).chain(more).chain(waiting);
        let all = all.chain(kernels);
        all.for_each(|word| word.store(0, Ordering::Relaxed));
        self.name.write("");
        self.failure.write("");
        self.entries.iter().for_each(Entry::clear);
        self.kernels.iter().for_each(kernels::Words::clear);
    }
}

/// A time of this process.
#[derive(Clone, Copy, Debug)]
pub struct Tick(u64);

impl Tick {
    /// Returns the present time.
    #[inline]
    pub fn now() -> Self {
        Self(ticks())
    }
}

thread_local! {
    static TAG: Cell<u64> = const { Cell::new(0) };
}

/// Sets the number by which this thread's operations are recorded from now on; 0 for none.
pub fn set_tag(tag: u64) {
    // In exit handlers of threads there is no tag any more.
    let _ = TAG.try_with(|own| own.set(tag));
}

/// Records the address by which other hosts reach this one.
pub fn set_address(address: IpAddr) {
    file::set_address(address);
}

/// Records the address at which the RAS service of this process listens.
pub fn set_service(address: SocketAddr) {
    file::set_service(address);
}

fn tag() -> u64 {
    TAG.try_with(Cell::get).unwrap_or(0)
}

/// The recorder of one rank of a communicator.
pub struct Recorder {
    home: Home,
}

enum Home {
    /// A section of the process's file, by its number.
    File(&'static Section, usize),
    /// Memory of its own, which no other process reads.
    Own(Box<Section>),
}

impl Recorder {
    /// Returns the recorder of a rank whose communicator is about to be made. Where the system
    /// gives no memory for it that others can read, nobody reads it.
    pub fn new() -> Self {
        let home = file::take()
            .map_or_else(|| Home::Own(zeroed()), |(section, number)| Home::File(section, number));
        Self { home }
    }
}

impl Recorder {
    /// Returns whether other processes can read it.
    pub fn is_read_by_others(&self) -> bool {
        matches!(self.home, Home::File(..))
    }
}

impl Default for Recorder {
    /// Returns a recorder that no other process reads.
    fn default() -> Self {
        Self { home: Home::Own(zeroed()) }
    }
}

fn zeroed() -> Box<Section> {
    let mut section = Box::<Section>::new_uninit();
    // SAFETY: a section consists of atomic words, all of which may be zero.
    let section = unsafe {
        section.as_mut_ptr().write_bytes(0, 1);
        section.assume_init()
    };
    section.start(1);
    section
}

impl Deref for Recorder {
    type Target = Section;

    #[inline]
    fn deref(&self) -> &Section {
        match &self.home {
            Home::File(section, _) => section,
            Home::Own(section) => section,
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // What a forked child has is its parent's.
        if let Home::File(section, number) = self.home
            && !fork::forked()
        {
            section.clear();
            file::give_back(number);
        }
    }
}

/// Returns the section `number` of a mapped file.
fn section_at(mapping: &Mapping, number: usize) -> &Section {
    // SAFETY: the caller knows that the file has so many sections after its first page; a section
    // consists of atomic words, so that no contents are wrong.
    unsafe { &*mapping.base().add(file::section_at(number)).cast::<Section>() }
}

#[cfg(test)]
mod tests;
