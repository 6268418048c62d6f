//! The executor: the one interface by which both devices carry out a communicator's operations.

use super::{Device, Stream, cuda, host};
use crate::bootstrap::Gather;
use crate::cancel::Uncancelled;
use crate::error::{Error, Quick, Result};
use crate::link::message::{DONE_WITHIN, MessageEdge};
use crate::link::{Edge, Lanes};
use crate::log::{self, Level, Subsystem};
use crate::op::follow::{Runs, Watcher};
use crate::op::{Call, Operation, Programs, Transfer};
use crate::rank::Rank;
use crate::recorder::{Tick, What};
use cuda::create::Wishes;
use cuda::layout::Membership;
use cuda::network::{Network, Remote};
use cuda::rank::CudaRank;
use cuda::reaper;
use cuda::run::launch::Launch;
use cuda::run::timing::{Mark, TimedBlocks};
use cuda::sharing::registry::Key;
use host::endpoint::{Endpoint, MAPPED, PeerMemory};
use host::reach::{self, Process};
use host::task::Work;
use host::worker::{pause_while, ranks_per_processor};
use oxccl_net::Properties;
use oxccl_plan::lines;
use oxccl_plan::select::Topology;
use oxccl_plan::{Algorithm, Carrier};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The executor of the operations of one rank of a communicator.
pub enum Executor {
    /// Threads of this process, on host memory.
    Host(Arc<Endpoint>),
    /// Kernels of a GPU.
    Cuda(Arc<Rank>, Arc<CudaRank>),
}

/// A registered buffer of user memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// A buffer of a GPU that the peers map.
    Mapped(Key),
    /// A buffer of the host, by its number, that a network which reduces reads and writes itself.
    Unstaged(u64),
}

/// The parts that an executor is made of.
pub struct Parts {
    /// The rank.
    pub rank: Arc<Rank>,
    /// Links to the ranks of this host, by rank.
    pub edges: Vec<Edge>,
    /// Links to the ranks of other hosts, one for each lane.
    pub remote: Vec<(u32, Vec<MessageEdge>)>,
    /// The device of the network of these links; `None` without one.
    pub net_device: Option<Properties>,
    /// The link to the switch of this rank's rail, if the network reduces, and the ranks of a team.
    pub switch: Option<(MessageEdge, u32)>,
    /// Bytes of an edge's slot.
    pub edge_slot_bytes: usize,
    /// The start value of all counters.
    pub counter_start: u64,
    /// The processes of all ranks, by rank.
    pub processes: Vec<Process>,
    /// The reach into the user memory of the ranks, by rank, as [`reach()`] returned it; empty for
    /// a communicator of one rank.
    pub memory: Vec<PeerMemory>,
}

/// An executor before the last round of its communicator's creation.
pub enum Unfinished {
    /// A rank in host memory. The flag is true if the system can copy from the peers' memory.
    Host(Box<Endpoint>, bool),
    /// A rank on a GPU.
    Cuda(Arc<Rank>, Box<CudaRank>),
}

impl Unfinished {
    /// Creates the executor of a rank on a device. May block until all ranks do the same.
    pub fn make(
        device: Device,
        parts: Parts,
        wishes: &Wishes,
        members: &mut dyn Gather,
    ) -> Result<Self> {
        let Parts { rank, mut edges, remote, switch, edge_slot_bytes, counter_start, .. } = parts;
        let Parts { processes, mut memory, net_device, .. } = parts;
        let Device::Cuda(index) = device else {
            for (peer, lanes) in remote {
                edges[peer as usize] = Edge::Message(Lanes::new(lanes));
            }
            let one_process = reach::is_one(&processes);
            memory.resize_with(processes.len(), || PeerMemory::SameProcess);
            let edges = (edges, switch.map(|(edge, _)| edge));
            let endpoint =
                Endpoint::new(rank, one_process, edge_slot_bytes, edges, memory, counter_start);
            let copies = reach::can_copy(&processes, &endpoint);
            return Ok(Unfinished::Host(Box::new(endpoint), copies));
        };
        let own = &processes[rank.number as usize];
        let here: Vec<bool> = processes.iter().map(|process| process.id == own.id).collect();
        let membership = Membership { rank: rank.number, local: &rank.local };
        let (slot_bytes, start) = (edge_slot_bytes, counter_start);
        let remote = Remote { edges: remote, switch, device: net_device, slot_bytes, start };
        let made = cuda::create::create(index, membership, &here, *wishes, remote, members);
        // Where it failed, nothing of this rank will run there.
        let made = made.inspect_err(|_| rank.set_quiescent())?;
        Ok(Unfinished::Cuda(rank, Box::new(made)))
    }

    /// Makes thread blocks of a GPU able to tell their times, for a profiler. Without memory for
    /// that they tell none, and the log says so. Before operations may run: the driver may wait for
    /// the work of the GPU.
    pub fn allocate_times(&self) {
        let Unfinished::Cuda(rank, cuda_rank) = self else { return };
        if let Err(error) = cuda_rank.timing.allocate(cuda_rank.gpu) {
            let text = format!("a profiler is told of no channels: {error}");
            log::line_of(Some(rank.number), Level::Warn, Subsystem::Profile, &text);
        }
    }

    /// Returns what the other ranks must know about this rank before anything runs.
    pub fn abilities(&self) -> Vec<u8> {
        match self {
            Unfinished::Host(endpoint, copies) => {
                let here = endpoint.rank.local.iter().flatten().count();
                let turns = ranks_per_processor(here);
                vec![u8::from(*copies), u8::from(endpoint.maps_all()), turns]
            }
            Unfinished::Cuda(_, cuda_rank) => vec![u8::from(cuda_rank.has_lines())],
        }
    }

    /// Completes the executor with the abilities of all ranks, in teams of `team` ranks; `only` is
    /// the algorithm that the policy names. Returns it, and how plans run there.
    pub fn finish(
        self,
        answers: &[Vec<u8>],
        team: u32,
        only: Option<Algorithm>,
    ) -> (Executor, Topology) {
        let all = |i: usize| answers.iter().all(|answer| answer.get(i) == Some(&1));
        match self {
            Unfinished::Host(mut endpoint, _) => {
                endpoint.all_mapped = all(1);
                let (nranks, remote_reads) = (endpoint.rank.nranks, all(0));
                let most = answers.iter().filter_map(|answer| answer.get(2)).max();
                let turns = most.copied().unwrap_or(1);
                let slot_bytes = endpoint.edge_slot_bytes;
                let topology = host::topology(nranks, team, remote_reads, slot_bytes, turns);
                (Executor::Host(endpoint.share()), topology)
            }
            Unfinished::Cuda(rank, cuda_rank) => {
                // Where there are lines, there is no memory for what other algorithms need.
                let lines = all(0) && only.is_none_or(lines::carry);
                if lines {
                    let text = "data between the GPUs travel in lines of 128 bytes";
                    log::line(Level::Info, Subsystem::Init, text);
                }
                let cuda_rank = cuda_rank.attach(&rank, lines);
                let topology = cuda::run::launch::topology(&cuda_rank, rank.nranks, team);
                (Executor::Cuda(rank, cuda_rank), topology)
            }
        }
    }

    /// Ends the executor of a communicator that cannot be made after all.
    pub fn abandon(self) {
        if let Unfinished::Cuda(rank, cuda_rank) = self {
            reaper::retire(cuda_rank.attach(&rank, false), rank);
        }
    }
}

/// Maps the arenas of the other processes of this host, if operations on the device use them.
/// `arenas` holds them, each with the number of a rank of its process. Returns the reach by rank.
pub fn reach(device: Device, processes: &[Process], arenas: &[(u32, OwnedFd)]) -> Vec<PeerMemory> {
    match device {
        Device::Host(_) => reach::map(processes, arenas),
        Device::Cuda(_) => Vec::new(),
    }
}

/// The listener to an operation, for a profiler.
pub enum Told<'a> {
    /// Nobody.
    Nobody,
    /// The thread blocks of the operation on a GPU.
    Blocks(&'a TimedBlocks),
    /// The listener to the runs of the operation in host memory.
    Runs(Arc<dyn Runs>),
}

impl<'a> Told<'a> {
    fn runs(self) -> Option<Arc<dyn Runs>> {
        if let Told::Runs(runs) = self { Some(runs) } else { None }
    }

    fn blocks(&self) -> Option<&'a TimedBlocks> {
        if let Told::Blocks(blocks) = self { Some(blocks) } else { None }
    }
}

fn wrong_device() -> Error {
    Error::Internal { what: "a stream of another device than the communicator's".to_owned() }
}

impl Executor {
    /// Returns the rank whose operations the executor carries out.
    #[inline]
    pub fn rank(&self) -> &Arc<Rank> {
        match self {
            Executor::Host(endpoint) => &endpoint.rank,
            Executor::Cuda(rank, _) => rank,
        }
    }

    /// Returns the endpoint of a rank in host memory; `None` on a GPU.
    pub fn host(&self) -> Option<&Arc<Endpoint>> {
        match self {
            Executor::Host(endpoint) => Some(endpoint),
            Executor::Cuda(..) => None,
        }
    }

    /// Returns the rank on a GPU; `None` in host memory.
    fn cuda(&self) -> Option<&Arc<CudaRank>> {
        match self {
            Executor::Cuda(_, cuda_rank) => Some(cuda_rank),
            Executor::Host(_) => None,
        }
    }

    /// Appends a collective to a stream, or to the graph that the stream captures; the calling
    /// thread may begin it. Blocks: as [`prepare`](Self::prepare).
    #[inline]
    pub fn launch(&self, programs: &Arc<Programs>, call: &Call, stream: &Stream) -> Quick<()> {
        if let (Executor::Host(endpoint), Stream::Host(stream)) = (self, stream) {
            return stream.launch(endpoint, programs, call, None);
        }
        let _whole = Uncancelled::begin();
        let operation = Operation::Collective(programs.clone(), *call);
        Ok(self.submit(operation, stream, false, Told::Nobody)?)
    }

    /// Returns whether a collective runs together with the one or more that come before it in its
    /// group, which is the same on all ranks.
    pub fn can_batch(&self, before: &Operation, next: &Operation) -> bool {
        self.cuda().is_some_and(|cuda_rank| cuda::run::batch::can_batch(cuda_rank, before, next))
    }

    /// Appends an operation to a stream, or to the graph that the stream captures. With `inline`
    /// the calling thread may begin the operation. `told` is for a profiler. Blocks: as
    /// [`prepare`](Self::prepare).
    pub fn submit(
        &self,
        operation: Operation,
        stream: &Stream,
        inline: bool,
        told: Told<'_>,
    ) -> Result<()> {
        match (self, stream) {
            (Executor::Host(endpoint), Stream::Host(stream)) => match operation {
                Operation::Collective(programs, call) if inline => {
                    Ok(stream.launch(endpoint, &programs, &call, told.runs())?)
                }
                Operation::Batch(_) => {
                    let what = "a batch of collectives in host memory".to_owned();
                    Err(Error::Internal { what })
                }
                operation => {
                    let work = Work::Operation(endpoint.clone(), operation, told.runs());
                    stream.enqueue(work, inline)
                }
            },
            (Executor::Cuda(rank, cuda_rank), Stream::Cuda(on)) => {
                // What is captured runs when its graph is launched, which is not seen here.
                let captured = stream.is_capturing();
                let (at, number) = (Tick::now(), rank.recorder.issued.load(Ordering::Relaxed));
                let number = (!captured).then_some(number);
                let launch = Launch { number, stream: *on, blocks: told.blocks() };
                cuda::run::chunks::prepare(cuda_rank, &operation)?;
                cuda::run::launch::submit(cuda_rank, &operation, &launch)?;
                if !captured {
                    rank.recorder.call_on_gpu(&What::of(&operation), on.0.addr(), at);
                }
                Ok(())
            }
            _ => Err(wrong_device()),
        }
    }

    /// Waits until an operation has the memory that it cannot do without, which another thread
    /// makes here and at the peers, whatever their callers do. [`submit`](Self::submit) does so
    /// itself; in a group that waits for all of its operations before the first one, no peer waits
    /// meanwhile for the other part of a group. Blocks: about 1 ms at the first large operation of
    /// a communicator on a GPU, at most for its limit, and else never.
    pub fn prepare(&self, operation: &Operation) -> Result<()> {
        self.cuda().map_or(Ok(()), |cuda_rank| cuda::run::chunks::prepare(cuda_rank, operation))
    }

    /// The same for the sends and receives of a group.
    pub fn prepare_messages(&self, transfers: &[Transfer]) -> Result<()> {
        match self.cuda() {
            Some(cuda_rank) => cuda::run::chunks::prepare_messages(cuda_rank, transfers),
            None => Ok(()),
        }
    }

    /// Returns the number that the next operation has among those of the rank.
    pub fn next_number(&self) -> u64 {
        self.rank().recorder.issued.load(Ordering::Relaxed)
    }

    /// Has the messages with ranks of other hosts followed.
    pub fn watch_messages(&self, watcher: &Arc<dyn Watcher>) {
        match self {
            Executor::Host(endpoint) => endpoint.watch_messages(watcher.clone()),
            Executor::Cuda(_, cuda_rank) => cuda_rank.watch_messages(watcher.as_ref()),
        }
    }

    /// Marks the present end of a stream of a GPU, which is not captured. `None` in host memory,
    /// and where the driver refuses.
    pub fn mark(&self, stream: &Stream) -> Option<Mark> {
        let (Executor::Cuda(_, cuda_rank), Stream::Cuda(on)) = (self, stream) else { return None };
        cuda_rank.timing.mark(cuda_rank.gpu, *on).ok()
    }

    /// Returns the thread blocks of an operation that follows in a stream of a GPU, or in the graph
    /// that the stream captures; `None` in host memory, and where the driver refuses. `timed` tells
    /// whether a profiler asks for their times.
    pub fn timed_blocks(&self, stream: &Stream, timed: bool) -> Option<TimedBlocks> {
        let (cuda_rank, Stream::Cuda(on)) = (self.cuda()?, stream) else { return None };
        if !stream.is_capturing() {
            return Some(TimedBlocks::new(&cuda_rank.timing, timed));
        }
        let graph = cuda_rank.life_of_graph(*on).ok()?;
        Some(TimedBlocks::captured(&cuda_rank.timing, timed, graph))
    }

    /// Runs an operation on the first of several streams. The other streams wait for the operation,
    /// and the operation waits for all earlier work of the other streams. Blocks: as
    /// [`prepare`](Self::prepare).
    pub fn submit_on_all(
        &self,
        operation: Operation,
        first: &Stream,
        others: &[Stream],
        told: Told<'_>,
    ) -> Result<()> {
        let _context = self.cuda().map(|cuda_rank| cuda_rank.gpu.enter()).transpose()?;
        others.iter().try_for_each(|other| first.join(other))?;
        self.submit(operation, first, others.is_empty(), told)?;
        others.iter().try_for_each(|other| other.join(first))
    }

    /// Returns whether operations are under way.
    pub fn busy(&self) -> bool {
        match self {
            Executor::Host(endpoint) => endpoint.rank.busy(),
            Executor::Cuda(_, cuda_rank) => cuda_rank.busy(),
        }
    }

    /// Returns whether an operation has ended early, because the communicator has failed: its
    /// results are not those that were asked for.
    pub fn is_cut_short(&self) -> bool {
        match self {
            Executor::Host(endpoint) => endpoint.rank.is_cut_short(),
            Executor::Cuda(_, cuda_rank) => cuda_rank.is_cut_short(),
        }
    }

    /// Limits the waiting time of every operation; `None` removes the limit.
    pub fn set_limit(&self, limit: Option<Duration>) {
        self.rank().set_limit(limit);
        if let Some(cuda_rank) = self.cuda() {
            let ns = limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
            cuda_rank.set_limit(ns);
        }
    }

    /// Waits, after the rank has failed, until nothing accesses the user's memory any more, for at
    /// most `limit`. Returns the peers that may still access it.
    pub fn stop(&self, limit: Duration) -> Result<Vec<u32>> {
        let start = Instant::now();
        match self {
            Executor::Host(endpoint) => {
                endpoint.end_unstaged();
                let rank = &endpoint.rank;
                pause_while(|| !rank.writers().is_empty() && start.elapsed() < limit);
                Ok(rank.writers())
            }
            Executor::Cuda(rank, cuda_rank) => {
                // Running kernels read the host's word twice per millisecond. Kernels that wait for
                // their turn end when it comes.
                cuda_rank.close()?;
                let sharing = cuda_rank.sharing();
                sharing.inspect(|sharing| sharing.fence());
                // A peer that has left may be freeing memory; meanwhile the driver lets no thread
                // answer.
                let inside = |peer: &u32| !rank.is_quiescent(*peer);
                let number = |place: u32| cuda_rank.ranks[place as usize];
                let asked = || {
                    let fenced = sharing.map_or_else(Vec::new, |sharing| sharing.fenced());
                    fenced.into_iter().map(number).any(|peer| inside(&peer))
                };
                pause_while(|| (cuda_rank.busy() || asked()) && start.elapsed() < limit);
                let missing = sharing.map_or_else(Vec::new, |sharing| sharing.end_fence());
                Ok(missing.into_iter().map(number).filter(inside).collect())
            }
        }
    }

    /// Asks the peers to report when they have taken what was sent to them.
    pub fn ask_taken(&self) {
        match self {
            Executor::Host(endpoint) => endpoint.ask_taken(),
            Executor::Cuda(rank, cuda_rank) => {
                let network = cuda_rank.network();
                network.into_iter().flat_map(|network| network.ask_taken(rank)).for_each(drop);
            }
        }
    }

    /// Returns the number of collectives so far. `None` on GPUs, which publish nothing of them.
    pub fn collectives(&self) -> Option<u64> {
        match self {
            Executor::Host(endpoint) => Some(endpoint.collectives()),
            Executor::Cuda(..) => None,
        }
    }

    /// Returns a peer that has not taken all that was sent to it, and whether that peer takes no
    /// more.
    pub fn untaken(&self) -> Option<(u32, bool)> {
        match self {
            Executor::Host(endpoint) => endpoint.untaken(),
            Executor::Cuda(rank, cuda_rank) => {
                // What was written since the peers were asked is asked about, too.
                cuda_rank.network()?.ask_taken(rank).find_map(|(peer, sent)| {
                    // This is looked up first: by then a peer has taken all that it takes.
                    let left = rank.takes_no_more(peer);
                    let taken = rank.taken(peer);
                    (taken < sent).then_some((peer, left))
                })
            }
        }
    }

    /// Leaves the communicator in order: the peers are told, and no operation can follow.
    pub fn leave(&self) {
        match self {
            Executor::Host(endpoint) => endpoint.leave(),
            Executor::Cuda(rank, cuda_rank) => {
                rank.leave(|in_order| {
                    let mut edges = cuda_rank.network().map_or_else(Vec::new, Network::end);
                    if in_order {
                        let until = Instant::now() + DONE_WITHIN;
                        edges.iter_mut().for_each(|(_, edge)| edge.finish(until));
                    }
                    let mut taken = vec![0; rank.nranks as usize];
                    // Behind the ranks there may be a switch.
                    for (peer, edge) in &edges {
                        taken.get_mut(*peer as usize).into_iter().for_each(|t| *t += edge.taken());
                    }
                    (taken, edges)
                });
                // Resources that cannot be closed any more end with the process.
                if let Err(error) = cuda_rank.close() {
                    let text = error.to_string();
                    log::line_of(Some(rank.number), Level::Info, Subsystem::Init, &text);
                }
                reaper::retire(cuda_rank.clone(), rank.clone());
            }
        }
    }

    /// Returns the bytes that [`release_memory`](Self::release_memory) gives back and the bytes
    /// that stay, of the host's and the GPU's memory together.
    pub fn memory_bytes(&self) -> (u64, u64) {
        match self {
            Executor::Host(endpoint) => endpoint.memory_bytes(),
            Executor::Cuda(rank, cuda_rank) => {
                let place = rank.segment.as_ref().zip(rank.local[rank.number as usize]);
                let (releasable, kept) = place.map_or((0, 0), |(s, own)| s.resident(own));
                let network = cuda_rank.network().map_or(0, Network::bytes);
                (releasable, kept + cuda_rank.bytes() + network)
            }
        }
    }

    /// Gives back memory that later operations take again. No operation may be under way. `inboxes`
    /// is true if peers may write into the stage's slots at any time.
    pub fn release_memory(&self, inboxes: bool) {
        if let Executor::Host(endpoint) = self {
            endpoint.release_memory(inboxes);
        }
    }

    /// Returns the number of collectives so far that read or wrote the peers' user memory in place.
    pub fn in_place(&self) -> u64 {
        match self {
            Executor::Host(endpoint) => {
                let counts = endpoint.state().carriers;
                counts[Carrier::InPlace as usize] + counts[Carrier::RemoteRead as usize]
            }
            Executor::Cuda(_, cuda_rank) => cuda_rank.in_place(),
        }
    }

    /// Returns the least bytes that a rank gets from the others for which copy engines of a GPU
    /// move them; `spares` tells whether thread blocks are to be left for other things. `None`
    /// where there are none.
    pub fn engine_bytes(&self, spares: bool) -> Option<u64> {
        let engines = self.cuda().filter(|cuda_rank| cuda_rank.network().is_none());
        engines.map(|_| cuda::run::engines::least_bytes(spares))
    }

    /// Returns the number of operations so far whose data copy engines of a GPU moved.
    pub fn by_copy_engines(&self) -> u64 {
        self.cuda().map_or(0, |cuda_rank| cuda_rank.by_engines())
    }

    /// Returns whether all peers map a buffer of user memory.
    pub fn is_mapped(&self, ptr: *const u8, bytes: usize) -> bool {
        match self {
            Executor::Host(endpoint) => endpoint.token(ptr, bytes) & MAPPED != 0,
            Executor::Cuda(_, cuda_rank) => cuda_rank.is_known(ptr as u64, bytes as u64),
        }
    }

    /// Returns whether a buffer of user memory lies in a window: copy engines may take it.
    pub fn is_in_window(&self, ptr: *const u8, bytes: usize) -> bool {
        let sharing = self.cuda().and_then(|cuda_rank| cuda_rank.sharing());
        let (at, bytes) = (ptr as u64, bytes as u64);
        sharing.is_some_and(|sharing| sharing.registry().window(at, bytes).is_some())
    }

    /// Registers a buffer: the peers map one of a GPU in the background, and a network that reduces
    /// is told of one of the host. `None` if nobody uses that. May block for a plugin on the host.
    pub fn register(&self, base: usize, bytes: usize) -> Result<Option<Registration>> {
        match self {
            Executor::Host(endpoint) => {
                let base = std::ptr::with_exposed_provenance_mut(base);
                Ok(endpoint.register(base, bytes).map(Registration::Unstaged))
            }
            Executor::Cuda(_, cuda_rank) => {
                let _context = cuda_rank.gpu.enter()?;
                Ok(cuda_rank.hold(base as u64, bytes as u64).map(Registration::Mapped))
            }
        }
    }

    /// Ends a registration. In host memory this fails if an operation under way uses the buffer, or
    /// if a plugin fails, for which it may block.
    pub fn deregister(&self, registration: Registration) -> Result<()> {
        match (self, registration) {
            (Executor::Host(endpoint), Registration::Unstaged(number)) => {
                return endpoint.deregister(number);
            }
            (Executor::Cuda(_, cuda_rank), Registration::Mapped(key)) => cuda_rank.release(key),
            // The other device's.
            _ => {}
        }
        Ok(())
    }

    /// Makes a buffer the communicator's window of a number, which the peers find in the
    /// background. `copied` is true if the system copies from the peers' memory.
    pub fn open_window(
        &self,
        base: *mut u8,
        bytes: usize,
        number: u64,
        copied: bool,
    ) -> Result<Option<Registration>> {
        match self {
            Executor::Host(endpoint) => {
                endpoint.open_window(base, bytes, number, copied).map(|()| None)
            }
            Executor::Cuda(_, cuda_rank) => {
                let held = cuda_rank.hold_window(base as u64, bytes as u64, number + 1)?;
                Ok(held.map(Registration::Mapped))
            }
        }
    }

    /// Ends a window.
    pub fn close_window(&self, number: u64, registration: Option<Registration>) {
        match (self, registration) {
            (Executor::Host(endpoint), _) => endpoint.close_window(number),
            (Executor::Cuda(_, cuda_rank), Some(Registration::Mapped(key))) => {
                cuda_rank.release(key);
            }
            (Executor::Cuda(..), _) => {}
        }
    }
}
