//! The mapper: a thread that makes the ranks' buffers known to their peers and maps those of the
//! peers. No operation waits for it but for memory of chunks, and the monitor is not held up by a
//! driver that waits for a GPU.

use crate::bootstrap::deadline::Deadline;
use crate::device::cuda::driver::{Gpu, Relaxed, cu};
use crate::device::cuda::memory::closing;
use crate::device::cuda::memory::export::{self, Exported, Mapping};
use crate::device::cuda::memory::shared::Memory;
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::sharing::chunks::{self, Known};
use crate::device::cuda::sharing::exchange::{
    Address, BufferEvent, BufferMessage, Datagram, Inbound, Offered, Sent,
};
use crate::device::cuda::sharing::registry::{self, Buffer, Key, Registry, State};
use crate::device::cuda::stream::{Private, Stream};
use crate::error::{Error, Result};
use crate::exit;
use crate::log::{self, Level, Subsystem};
use cudarc::driver::sys::{self, CUdeviceptr, CUevent};
use oxccl_kernels::abi;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::mem::offset_of;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The time between looks while peers have to answer or a socket is full.
const SOON: Duration = Duration::from_millis(2);
/// Bytes of the large stage, with room for more packets behind it.
pub(in crate::device::cuda) const STAGE_BYTES: usize = abi::STAGE_BYTES + abi::LARGE_PACKETS_BYTES;
/// The most messages that are taken from a socket at a time.
const AT_A_TIME: usize = 64;
/// The time between questions to a peer that does not answer.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// The time between looks otherwise, and between checks whether the memory of buffers is still
/// there.
const LATER: Duration = Duration::from_secs(1);

/// The way to send messages to a peer.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The number of the peer.
    pub rank: u32,
    /// The address of the peer's socket.
    pub address: Address,
    /// True if the peer lives in this process.
    pub here: bool,
}

/// The memory that a rank makes when an operation first gains by it, and shares with its peers.
#[derive(Clone, Copy, Debug)]
pub enum OnDemand {
    /// The large stage, which operations do without until all ranks have it.
    Stage,
    /// The memory of chunks, for which operations wait.
    Chunks,
}

/// The state of what a rank shares with its peers beyond the memory that it began with.
pub struct Sharing {
    gpu: &'static Gpu,
    rank: u32,
    inbound: Inbound,
    peers: Vec<Peer>,
    /// The address of [`abi::Maps`] in GPU memory.
    maps: CUdeviceptr,
    registry: Mutex<Registry>,
    state: Mutex<MapperState>,
    /// The peers' windows as they are mapped here, by peer and place.
    windows: Mutex<HashMap<(u32, u64), abi::Window>>,
    on_demand: OnDemand,
    /// The number at which the counters of chunks begin.
    pub begins_at: u64,
    wanted: AtomicBool,
    /// The ranks' memory of chunks.
    pub chunks: Known,
    /// A bit per peer whose kernels may still use this rank's memory after this rank has given up.
    fenced: AtomicU32,
    /// True if GPUs do not reach each other: then no memory of them is mapped.
    apart: bool,
    /// Bytes of the memory that was made on demand.
    pub bytes: AtomicU64,
}

/// The state of the mapper's work for a rank.
#[derive(Default)]
struct MapperState {
    mapped: HashMap<(u32, u32), Mapping>,
    /// The buffers that are the peers' windows, by peer and place.
    windows: HashMap<(u32, u64), Key>,
    datagrams: VecDeque<Queued>,
    /// The memory that was made on demand.
    made: Option<Arc<Memory>>,
    stream: Option<Private>,
    /// The stream that waits for operations, apart from `stream`, as no other work may wait for
    /// them.
    marks: Option<Private>,
    /// The actions to take when the operations launched before them have ended, in that order.
    later: VecDeque<(Mark, Later)>,
    /// The last time that peers were asked whether their kernels are out.
    asked: Option<Instant>,
    /// The last time that the memory of the buffers was checked.
    looked: Option<Instant>,
}

/// A datagram that is to be sent.
struct Queued {
    to: u32,
    /// The buffer that the datagram is about, if the peer's answer is awaited.
    about: Option<Key>,
    datagram: Datagram,
}

/// An action that waits for operations to end.
enum Later {
    /// Asks the peers to unmap a buffer.
    Withdraw(Key),
    /// Unmaps a peer's buffer and tells the peer so; also answers a peer's fence.
    Return { peer: u32, key: Key, mapping: Option<Mapping> },
}

/// A point in the order of operations.
struct Mark(CUevent);

// SAFETY: events may be used from any thread.
unsafe impl Send for Mark {}

impl Mark {
    fn is_over(&self) -> bool {
        // SAFETY: a living event.
        unsafe { sys::cuEventQuery(self.0) != sys::CUresult::CUDA_ERROR_NOT_READY }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: this value's alone.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// The number, in place of a buffer's, of a fence: a rank that has given up asks whether the peers'
/// kernels are out of its memory.
const FENCE: u32 = u32::MAX;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Sharing {
    /// Creates the state of a rank that shares nothing yet. `maps` is zeroed memory of the GPU.
    pub fn new(gpu: &'static Gpu, rank: u32, nranks: u32, maps: CUdeviceptr) -> Result<Self> {
        mapper()?;
        Ok(Self {
            gpu,
            rank,
            inbound: Inbound::new()?,
            peers: Vec::new(),
            maps,
            registry: Mutex::new(Registry::new(rank, nranks)),
            state: Mutex::default(),
            windows: Mutex::default(),
            on_demand: OnDemand::Stage,
            begins_at: 0,
            wanted: AtomicBool::new(false),
            chunks: Known::default(),
            fenced: AtomicU32::new(0),
            apart: false,
            bytes: AtomicU64::new(0),
        })
    }

    /// Returns the address at which this rank takes messages.
    pub fn address(&self) -> Address {
        self.inbound.address
    }

    /// Sets the ranks of the communicator, by number.
    pub fn connect(&mut self, peers: Vec<Peer>) {
        self.peers = peers;
    }

    /// Returns whether all ranks live in this process.
    pub fn all_here(&self) -> bool {
        self.peers.iter().all(|peer| peer.here)
    }

    /// Notes that GPUs do not reach each other: no memory of them is mapped from here on.
    pub fn note_no_peer_access(&mut self) {
        self.apart = true;
    }

    /// Sets what is made on demand.
    pub fn set_on_demand(&mut self, on_demand: OnDemand) {
        self.on_demand = on_demand;
    }

    /// Returns whether GPUs do not reach each other.
    pub fn lacks_peer_access(&self) -> bool {
        self.apart
    }

    /// Sends a descriptor to some ranks, and returns theirs by rank. Blocks until all have come, at
    /// most until the deadline.
    pub fn swap_descriptors(
        &self,
        own: Option<OwnedFd>,
        ranks: &[usize],
        deadline: &Deadline,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        let segments: Vec<_> = own.into_iter().map(|fd| (0, Arc::new(fd))).collect();
        let mut datagrams: VecDeque<_> = ranks
            .iter()
            .map(|&rank| {
                let exported = Exported { segments: segments.clone(), ..Exported::default() };
                let event = BufferEvent::Offer(Offered { exported, ..Offered::default() });
                let message =
                    BufferMessage { from: self.rank, number: u32::MAX, generation: 0, event };
                (rank, Datagram::new(&self.peers[rank].address.key, &message))
            })
            .collect();
        let mut taken = Vec::new();
        while taken.len() < ranks.len() || !datagrams.is_empty() {
            for _ in 0..datagrams.len() {
                let Some((rank, datagram)) = datagrams.pop_front() else { break };
                match datagram.send(&self.peers[rank].address) {
                    Sent::Delivered => {}
                    Sent::Later => datagrams.push_back((rank, datagram)),
                    Sent::Gone => {
                        let why = format!("rank {} has left", self.peers[rank].rank);
                        return Err(Error::Init { why });
                    }
                }
            }
            for _ in 0..AT_A_TIME {
                let Some(message) = self.inbound.take() else { break };
                let Some(message) = message else { continue };
                let from = message.from as usize;
                if let BufferEvent::Offer(mut offered) = message.event
                    && let Some((_, fd)) = offered.exported.segments.pop()
                    && let Some(fd) = Arc::into_inner(fd)
                    && ranks.contains(&from)
                {
                    taken.push((from, fd));
                }
            }
            if deadline.passed() {
                let missing = ranks.iter().find(|rank| taken.iter().all(|(from, _)| from != *rank));
                let rank = missing.map_or(0, |place| self.peers[*place].rank);
                let why = format!("rank {rank} did not pass its host memory on in time");
                return Err(deadline.error(|| Error::Init { why }));
            }
            let mut fds = [PollFd::new(&*self.inbound.socket, PollFlags::IN)];
            crate::bootstrap::wire::wait_for(&mut fds, deadline.slice().min(SOON));
        }
        Ok(taken)
    }

    /// Locks the registry of this rank's buffers.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    /// Requests the memory that is made on demand, in the background.
    pub fn want(&self) {
        if !self.apart && !self.wanted.swap(true, Ordering::Relaxed) {
            wake();
        }
    }

    /// Returns a peer's window by its number, if it is mapped here. What is launched within
    /// [`CudaRank::launch`] may use the window: it stays mapped until that has ended.
    pub fn window(&self, peer: u32, number: u64) -> Option<abi::Window> {
        let place = (number - 1) % abi::WINDOWS as u64;
        let known = lock(&self.windows).get(&(peer, place)).copied();
        known.filter(|window| window.number == number && window.bytes > 0)
    }

    /// Writes a word of the maps.
    fn set(&self, state: &mut MapperState, at: usize, value: u64) -> Result<()> {
        let (to, from, stream) =
            (self.maps + at as u64, &raw const value, Private::of(&mut state.stream)?);
        // SAFETY: a word of memory that this rank owns; the value is read before this returns.
        unsafe {
            cu!(cuMemcpyAsync(to, from as u64, size_of::<u64>(), stream))?;
            cu!(cuStreamSynchronize(stream))
        }
    }

    fn set_ready(&self, state: &mut MapperState, number: u32, generation: u64) -> Result<()> {
        let at = offset_of!(abi::Maps, ready) + number as usize * size_of::<u64>();
        self.set(state, at, generation)
    }

    fn set_base(&self, state: &mut MapperState, peer: u32, number: u32, base: u64) -> Result<()> {
        let index = peer as usize * abi::BUFFERS + number as usize;
        self.set(state, offset_of!(abi::Maps, bases) + index * size_of::<u64>(), base)
    }

    /// Stores the address of a peer's window, or that there is none any more, also in the maps that
    /// kernels read. The number, for which kernels wait, is written last.
    fn set_window(
        &self,
        state: &mut MapperState,
        peer: u32,
        place: u64,
        now: abi::Window,
    ) -> Result<()> {
        lock(&self.windows).insert((peer, place), now);
        let index = peer as usize * abi::WINDOWS + place as usize;
        let at = offset_of!(abi::Maps, windows) + index * size_of::<abi::Window>();
        self.set(state, at + offset_of!(abi::Window, base), now.base)?;
        self.set(state, at + offset_of!(abi::Window, bytes), now.bytes)?;
        self.set(state, at + offset_of!(abi::Window, number), now.number)
    }

    fn write(&self, state: &mut MapperState, to: u32, message: &BufferMessage) {
        let Some(peer) = self.peers.get(to as usize) else { return };
        let key = Key { number: message.number, generation: message.generation };
        let awaited = matches!(message.event, BufferEvent::Offer(..) | BufferEvent::Withdraw);
        let datagram = Datagram::new(&peer.address.key, message);
        state.datagrams.push_back(Queued { to, about: awaited.then_some(key), datagram });
    }

    fn write_all(&self, state: &mut MapperState, message: &BufferMessage) {
        let others = (0..self.peers.len() as u32).filter(|&peer| peer != self.rank);
        others.for_each(|peer| self.write(state, peer, message));
    }

    /// Queues an action that is taken when all operations launched so far have ended.
    fn after_operations(
        &self,
        state: &mut MapperState,
        cuda_rank: &CudaRank,
        later: Later,
    ) -> Result<()> {
        let (stream, mut event) = (Private::of(&mut state.marks)?, std::ptr::null_mut());
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        cuda_rank.mark(Stream(stream))?;
        // SAFETY: a place for the event, and a living stream.
        let mark = unsafe {
            cu!(cuEventCreate(&mut event, flags))?;
            let mark = Mark(event);
            cu!(cuEventRecord(event, stream))?;
            mark
        };
        state.later.push_back((mark, later));
        Ok(())
    }

    /// Returns whether an operation may wait for this rank's memory of chunks.
    fn is_awaited(&self) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        wanted
            && self.is_of_chunks(abi::ON_DEMAND_BUFFER)
            && self.chunks.missing(1 << self.rank) != 0
    }

    /// Returns whether a buffer is memory of chunks.
    fn is_of_chunks(&self, number: u32) -> bool {
        number == abi::ON_DEMAND_BUFFER && matches!(self.on_demand, OnDemand::Chunks)
    }

    /// Makes the memory that is made on demand, if it is wanted. Without memory of chunks the
    /// communicator fails.
    fn make_wanted(&self, state: &mut MapperState, cuda_rank: &CudaRank) -> Result<()> {
        let lives = || cuda_rank.owner().is_some_and(|rank| rank.failure().is_none());
        if state.made.is_some() || !self.wanted.load(Ordering::Relaxed) || !lives() {
            return Ok(());
        }
        let stream = Private::of(&mut state.stream);
        let made = stream.and_then(|stream| match self.on_demand {
            OnDemand::Stage => Ok((Memory::new(self.gpu, STAGE_BYTES, stream)?, STAGE_BYTES)),
            OnDemand::Chunks => {
                chunks::make(self.gpu, self.peers.len() as u32, self.begins_at, stream)
            }
        });
        let (memory, bytes) = made.inspect_err(|error| {
            self.wanted.store(false, Ordering::Relaxed);
            match self.on_demand {
                // Operations continue with the small stage; the next large operation asks again.
                OnDemand::Stage => say(&format!("there is no room for a large stage: {error}")),
                OnDemand::Chunks => cuda_rank.fail(error),
            }
        })?;
        let base = memory.at();
        if !self.is_of_chunks(abi::ON_DEMAND_BUFFER) {
            self.set_base(state, self.rank, abi::ON_DEMAND_BUFFER, base)?;
        }
        self.bytes.store(bytes as u64, Ordering::Relaxed);
        state.made = Some(memory);
        self.registry().hold_on_demand(base, bytes as u64);
        Ok(())
    }

    /// Makes the own memory of chunks known to operations once all peers are told of it: who waits
    /// for the others' memory then holds up no peer.
    fn note_told(&self, state: &MapperState) {
        let Some(memory) = state.made.as_ref().filter(|_| self.is_of_chunks(abi::ON_DEMAND_BUFFER))
        else {
            return;
        };
        let is_about =
            |queued: &Queued| queued.about.is_some_and(|key| key.number == abi::ON_DEMAND_BUFFER);
        if self.chunks.missing(1 << self.rank) == 0 {
            return;
        }
        let told = self.registry().get(abi::ON_DEMAND_BUFFER).state != State::Wanted;
        if told && !state.datagrams.iter().any(is_about) {
            self.chunks.set(self.rank, memory.at());
        }
    }

    fn offer(&self, state: &mut MapperState, cuda_rank: &CudaRank, number: u32) {
        let buffer = self.registry().get(number);
        let exported = match self.all_here() {
            true => Ok(Exported::default()),
            false => export::export(buffer.base, buffer.len),
        };
        let told = exported.map(|exported| {
            let Buffer { base, len, window, generation, .. } = buffer;
            let event = BufferEvent::Offer(Offered { base, len, window, exported });
            self.write_all(state, &BufferMessage { from: self.rank, number, generation, event });
        });
        match &told {
            Err(error) if self.is_of_chunks(number) => cuda_rank.fail(error),
            Err(error) => {
                say(&format!("a buffer at {:#x} is not used in place: {error}", buffer.base));
            }
            Ok(()) => {}
        }
        let key = Key { number, generation: buffer.generation };
        self.registry().offered(key, told.is_ok());
    }

    /// Makes what is made on demand if it is wanted, offers wanted buffers, begins to take back
    /// those that are leaving, and asks peers about the fence.
    fn tell(&self, state: &mut MapperState, cuda_rank: &CudaRank) -> Result<()> {
        let made = self.make_wanted(state, cuda_rank);
        let wanted = self.registry().all(|state| state == State::Wanted);
        wanted.into_iter().for_each(|number| self.offer(state, cuda_rank, number));
        let leaving = self.registry().leaving();
        for key in leaving {
            // Operations that still found the buffer ready have to end first.
            self.set_ready(state, key.number, 0)?;
            self.after_operations(state, cuda_rank, Later::Withdraw(key))?;
        }
        self.ask_fenced(state);
        made
    }

    /// Takes back the buffers whose memory was freed or replaced. If no call uses them again,
    /// nothing else would end the peers' mappings, which keep the memory.
    fn look_over(&self, state: &mut MapperState) {
        if state.looked.is_some_and(|at| at.elapsed() < LATER) {
            return;
        }
        state.looked = Some(Instant::now());
        let living = self.registry().living();
        // The registry is not locked here, as calls take its lock.
        for (key, pieces) in living {
            if !registry::unchanged(&pieces, export::id_of) {
                self.registry().take_back(key);
            }
        }
    }

    /// Asks the peers that have not answered the fence, again and again: a peer that ends while the
    /// datagram is in its socket does not answer, but the next datagram finds no socket.
    fn ask_fenced(&self, state: &mut MapperState) {
        let missing = self.fenced();
        let asked = |posted: &Queued| posted.about.is_some_and(|key| key.number == FENCE);
        let early = state.asked.is_some_and(|at| at.elapsed() < ASK_AGAIN);
        if missing.is_empty() || early || state.datagrams.iter().any(asked) {
            return;
        }
        state.asked = Some(Instant::now());
        let (from, number, generation) = (self.rank, FENCE, 0);
        let message = BufferMessage { from, number, generation, event: BufferEvent::Withdraw };
        missing.into_iter().for_each(|peer| self.write(state, peer, &message));
    }

    /// Takes the actions that waited for operations which have ended.
    fn settle(&self, state: &mut MapperState) {
        while state.later.front().is_some_and(|(mark, _)| mark.is_over()) {
            let Some((_, later)) = state.later.pop_front() else { break };
            let from = self.rank;
            match later {
                Later::Withdraw(Key { number, generation }) => {
                    self.write_all(
                        state,
                        &BufferMessage { from, number, generation, event: BufferEvent::Withdraw },
                    );
                }
                Later::Return { peer, key: Key { number, generation }, mapping } => {
                    self.close_later(mapping);
                    let event = BufferEvent::Returned;
                    self.write(state, peer, &BufferMessage { from, number, generation, event });
                }
            }
        }
    }

    /// Closes a mapping that no kernel finds any more: when the GPU is quiet, if the driver may
    /// wait for kernels there.
    fn close_later(&self, mapping: Option<Mapping>) {
        if let Some(mapping) = mapping.filter(Mapping::waits_for_kernels) {
            closing::when_quiet(self.gpu, move || drop(mapping));
        }
    }

    fn map(&self, state: &mut MapperState, from: u32, key: Key, offered: Offered) -> Result<()> {
        let Offered { base, len, window: number, exported } = offered;
        let place = (number > 0).then(|| (number - 1) % abi::WINDOWS as u64);
        let mapped = match self.peers[from as usize].here {
            true => export::map_here(self.gpu, base),
            false => export::map(self.gpu, exported),
        };
        let Ok(mapping) = mapped else {
            // A put into the window has to find out that the window will not come.
            let window = abi::Window { number, base: 0, bytes: 0 };
            place.map_or(Ok(()), |place| self.set_window(state, from, place, window))?;
            return mapped.map(drop);
        };
        let base = mapping.address();
        self.close_later(state.mapped.insert((from, key.number), mapping));
        if self.is_of_chunks(key.number) {
            // All ranks have this memory, or none.
            self.wanted.store(true, Ordering::Relaxed);
            self.chunks.set(from, base);
            return Ok(());
        }
        if let Some(place) = place {
            state.windows.insert((from, place), key);
            self.set_window(state, from, place, abi::Window { number, base, bytes: len })?;
        }
        self.set_base(state, from, key.number, base)
    }

    /// Removes a peer's buffer from the maps, where kernels find it, and returns its mapping. The
    /// place of a window may have been given to a newer window already.
    fn unmap(&self, state: &mut MapperState, from: u32, key: Key) -> Result<Option<Mapping>> {
        let place = state.windows.iter().find(|((peer, _), k)| *peer == from && **k == key);
        if let Some((&(_, place), _)) = place {
            state.windows.remove(&(from, place));
            self.set_window(state, from, place, abi::Window { number: 0, base: 0, bytes: 0 })?;
        }
        self.set_base(state, from, key.number, 0)?;
        Ok(state.mapped.remove(&(from, key.number)))
    }

    fn hear(
        &self,
        state: &mut MapperState,
        cuda_rank: &CudaRank,
        message: BufferMessage,
    ) -> Result<()> {
        let BufferMessage { from, number, generation, event } = message;
        let key = Key { number, generation };
        let fence =
            number == FENCE && matches!(event, BufferEvent::Withdraw | BufferEvent::Returned);
        if from as usize >= self.peers.len() || !(fence || (number as usize) < abi::BUFFERS) {
            return Ok(());
        }
        match event {
            BufferEvent::Offer(offered) => {
                let mapped = self.map(state, from, key, offered);
                let rank = self.peers[from as usize].rank;
                match &mapped {
                    Err(error) if self.is_of_chunks(number) => {
                        // Who needs memory of a rank that has left is told so.
                        let owner = cuda_rank.owner().filter(|own| !own.has_left(rank));
                        let why = format!("its GPU memory cannot be mapped: {error}");
                        owner.inspect(|own| own.fail(own.lost(rank, why)));
                    }
                    Err(error) => {
                        say(&format!("a buffer of rank {rank} is not used in place: {error}"));
                    }
                    Ok(()) => {}
                }
                let event = BufferEvent::Answer(mapped.is_ok());
                self.write(
                    state,
                    from,
                    &BufferMessage { from: self.rank, number, generation, event },
                );
            }
            BufferEvent::Answer(has) => {
                let ready = self.registry().answered(key, from, has);
                if ready && !self.is_of_chunks(number) {
                    self.set_ready(state, number, generation)?;
                }
            }
            BufferEvent::Withdraw if fence => {
                // Kernels that start after the mark find the communicator closed.
                cuda_rank.give_up(from, Private::of(&mut state.marks)?)?;
                let (peer, mapping) = (from, None);
                self.after_operations(state, cuda_rank, Later::Return { peer, key, mapping })?;
            }
            BufferEvent::Withdraw => {
                let (peer, mapping) = (from, self.unmap(state, from, key)?);
                self.after_operations(state, cuda_rank, Later::Return { peer, key, mapping })?;
            }
            BufferEvent::Returned => self.let_go(key, from),
        }
        Ok(())
    }

    /// Notes that a peer has unmapped a buffer or answered the fence, or is gone itself.
    fn let_go(&self, key: Key, peer: u32) {
        if key.number == FENCE {
            self.fenced.fetch_and(!(1 << peer), Ordering::AcqRel);
        } else {
            self.registry().returned(key, peer);
        }
    }

    /// Sends the queued datagrams. Those to a peer whose socket is full stay queued, in order.
    fn post(&self, state: &mut MapperState) {
        let mut full = 0u32;
        for posted in std::mem::take(&mut state.datagrams) {
            let Queued { to, about, ref datagram } = posted;
            let sent = match full & 1 << to {
                0 => datagram.send(&self.peers[to as usize].address),
                _ => Sent::Later,
            };
            match sent {
                Sent::Delivered => {}
                Sent::Later => {
                    full |= 1 << to;
                    state.datagrams.push_back(posted);
                }
                Sent::Gone => {
                    if let Some(key) = about {
                        self.registry().answered(key, to, false);
                        self.let_go(key, to);
                    }
                }
            }
        }
    }

    /// Asks all peers whether their kernels are out of this rank's memory, after this rank has
    /// given up.
    pub fn fence(&self) {
        let others = (0..self.peers.len() as u32).filter(|&peer| peer != self.rank);
        self.fenced.store(others.fold(0, |bits, peer| bits | 1 << peer), Ordering::Release);
        wake();
    }

    /// Returns the peers that have not answered the [`fence`](Self::fence).
    pub fn fenced(&self) -> Vec<u32> {
        self.peers_in(self.fenced.load(Ordering::Acquire))
    }

    /// Ends the fence, and returns the peers that have not answered it.
    pub fn end_fence(&self) -> Vec<u32> {
        self.peers_in(self.fenced.swap(0, Ordering::AcqRel))
    }

    fn peers_in(&self, bits: u32) -> Vec<u32> {
        (0..self.peers.len() as u32).filter(|peer| bits & 1 << peer != 0).collect()
    }

    /// Does all work that is pending for the rank; returns true while more comes soon. A failure
    /// does not hold up the rest.
    fn work(&self, cuda_rank: &CudaRank) -> Result<bool> {
        let _place = (self.gpu.enter()?, Relaxed::begin()?);
        let mut state = lock(&self.state);
        let mut outcome = Ok(());
        for _ in 0..AT_A_TIME {
            let Some(message) = self.inbound.take() else { break };
            let Some(message) = message else { continue };
            outcome = outcome.and(self.hear(&mut state, cuda_rank, message));
        }
        self.look_over(&mut state);
        outcome = outcome.and(self.tell(&mut state, cuda_rank));
        self.settle(&mut state);
        self.post(&mut state);
        self.note_told(&state);
        outcome?;
        let asks = self.fenced.load(Ordering::Acquire) != 0;
        let busy = asks || !state.datagrams.is_empty() || !state.later.is_empty();
        Ok(busy || !self.registry().all(|state| state == State::Wanted).is_empty())
    }

    /// Ends the work for the rank, and returns the mappings of other processes' memory whose
    /// closing waits for kernels. Requires the GPU's context to be current on this thread.
    pub fn close(&self) -> Vec<Mapping> {
        let mut state = std::mem::take(&mut *lock(&self.state));
        let later = state.later.drain(..).filter_map(|(_, later)| match later {
            Later::Return { mapping, .. } => mapping,
            Later::Withdraw(_) => None,
        });
        let mapped = state.mapped.drain().map(|(_, mapping)| mapping);
        later.chain(mapped).filter(Mapping::waits_for_kernels).collect()
    }
}

fn say(text: &str) {
    log::line(Level::Info, Subsystem::Reg, text);
}

struct Mapper {
    cuda_ranks: Mutex<Vec<Weak<CudaRank>>>,
    wake: UnixStream,
}

fn mapper() -> Result<&'static Mapper> {
    static MAPPER: OnceLock<Result<Mapper>> = OnceLock::new();
    let made = MAPPER.get_or_init(|| {
        let failed = |e| Error::system("starting a thread", e, "raise ulimit -n and -u");
        let (wake, woken) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        woken.set_nonblocking(true).map_err(failed)?;
        let thread = std::thread::Builder::new().name("oxccl-map".to_owned());
        thread.spawn(move || run(&woken)).map_err(failed)?;
        Ok(Mapper { cuda_ranks: Mutex::default(), wake })
    });
    made.as_ref().map_err(Clone::clone)
}

/// Makes the mapper serve a rank from now on.
pub fn attend(cuda_rank: &Arc<CudaRank>) {
    // The thread was started when the rank was created.
    if let Ok(mapper) = mapper() {
        lock(&mapper.cuda_ranks).push(Arc::downgrade(cuda_rank));
        wake();
    }
}

/// Wakes the mapper, which then looks at once.
pub fn wake() {
    if let Ok(mapper) = mapper() {
        let _ = (&mapper.wake).write(&[1]);
    }
}

/// Returns the parts on GPUs of all ranks that the mapper serves.
fn cuda_ranks() -> Vec<Arc<CudaRank>> {
    let Ok(mapper) = mapper() else { return Vec::new() };
    let mut cuda_ranks = lock(&mapper.cuda_ranks);
    cuda_ranks.retain(|cuda_rank| cuda_rank.strong_count() > 0);
    cuda_ranks.iter().filter_map(Weak::upgrade).collect()
}

/// Takes back all buffers that touch memory which is about to be freed.
pub fn forget(base: u64, len: u64) {
    let mut any = false;
    for cuda_rank in cuda_ranks() {
        if let Some(sharing) = cuda_rank.sharing() {
            sharing.registry().forget(base, len);
            any = true;
        }
    }
    if any {
        wake();
    }
}

fn run(mut woken: &UnixStream) {
    loop {
        let (mut limit, mut boxes) = (LATER, Vec::new());
        let Some(visit) = exit::visit_driver() else { return };
        // No rank is kept while this thread waits: a rank ends with its communicator and graphs.
        for cuda_rank in cuda_ranks() {
            let Some(sharing) = cuda_rank.sharing() else { continue };
            boxes.push(sharing.inbound.socket.clone());
            let worked = catch_unwind(AssertUnwindSafe(|| sharing.work(&cuda_rank)));
            match worked.unwrap_or_else(|panic| Err(Error::panicked(&*panic))) {
                Ok(false) => {}
                Ok(true) => limit = SOON,
                // The communicator continues without this work, unless calls wait for it.
                Err(error) => {
                    say(&error.to_string());
                    if sharing.is_awaited() {
                        cuda_rank.fail(&error);
                    }
                    limit = limit.min(Duration::from_millis(100));
                }
            }
        }
        drop(visit);
        let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
        fds.extend(boxes.iter().map(|socket| PollFd::new(&**socket, PollFlags::IN)));
        crate::bootstrap::wire::wait_for(&mut fds, limit);
        drop(fds);
        let _ = woken.read(&mut [0; 64]);
    }
}
