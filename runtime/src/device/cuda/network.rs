//! The edges with ranks of other hosts. Kernels write messages into slots, in memory of the host or
//! of the GPU, and read them from there; threads of the rank, the proxies, hand them to the
//! transport and take them from it. Graphs replay as they are, since proxies look at the words
//! beside the slots by themselves.

mod links;
mod packed;
mod programs;

use crate::device::cuda::driver::Gpu;
use crate::device::cuda::gpudirect::Reach;
use crate::device::cuda::memory::shared::{Pinned, Registration};
use crate::error::{Error, Result};
use crate::exit;
use crate::link::EDGE_SLOTS;
use crate::link::message::{HEADER_BYTES, MessageEdge};
use crate::link::notice;
use crate::op::descriptor::Descriptor;
use crate::op::follow::{Carried, LATEST};
use crate::os::memory::sealed_memfd;
use crate::rank::agreement::agree_on_rail;
use crate::rank::{Rank, VERDICT, broken};
use cudarc::driver::sys::CUstream;
pub use links::Edges;
use links::{Calls, Rail, Shared};
use oxccl_kernels::abi;
use oxccl_net::{Memory, Place, Properties};
use packed::Packed;
use programs::Programs;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

// Kernels find the slots of an edge, and write behind the header.
const _: () = assert!(EDGE_SLOTS == abi::NET_SLOTS && HEADER_BYTES == abi::NET_HEADER_BYTES);

/// The time for which the proxy looks without pauses after something has moved.
const EAGER: Duration = Duration::from_micros(500);
/// The shortest and the longest pause between two looks while nothing moves.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
/// Looks at what no kernel waits for yet, after a message of [`LARGE`] bytes or more has come.
const LOOKS_AHEAD: u32 = 64;
/// The least bytes of a message that is likely one of many.
const LARGE: usize = 4 << 10;
/// The part of the time without a movement that a pause takes: so much later than without pauses
/// comes, at most, what comes next.
const PAUSE_PART: u32 = 8;
/// The time after which a collective that waits tells the peer, and again.
const LONG: Duration = Duration::from_secs(1);
/// The time without messages after which a peer that has left has none under way any more.
const QUIET: Duration = Duration::from_millis(200);

/// The lanes that a rank asks for with each rank of other hosts.
pub const LANES: usize = abi::LANES;

/// The links of a rank with ranks of other hosts.
pub struct Remote {
    /// The edges, by the rank at the other end: as many lanes of each.
    pub edges: Vec<(u32, Vec<MessageEdge>)>,
    /// The edge to the switch of this rank's rail, and the ranks of a team; `None` unless the
    /// network reduces.
    pub switch: Option<(MessageEdge, u32)>,
    /// The network's device; `None` without edges.
    pub device: Option<Properties>,
    /// Bytes of data in a slot of an edge.
    pub slot_bytes: usize,
    /// The number at which counters begin.
    pub start: u64,
}

/// The edges of a rank on a GPU with ranks of other hosts: one for each peer and lane, and one for
/// its switch, if the network reduces.
pub struct Network {
    /// Lanes with each peer.
    pub lanes: usize,
    /// The [`abi::NetWords`] of all edges, and behind them [`abi::REMEMBERED`] times
    /// [`abi::Begun`].
    words: Pinned,
    /// The slots of each edge, outgoing and incoming, as the GPU reaches them.
    slots: Vec<[Slots; 2]>,
    /// Bytes of GPU memory that the slots take.
    gpu_bytes: u64,
    /// Bytes from a slot of an edge to the next one.
    slot_bytes: usize,
    /// The numbers by which the slot of a message is ahead of the message's own, by edge.
    skews: Vec<[u16; 2]>,
    edges: Arc<Edges>,
    proxies: Mutex<Vec<Proxy>>,
    programs: Mutex<Programs>,
}

fn word(word: &u64) -> &AtomicU64 {
    // SAFETY: an aligned word, which the kernels and the host access in single loads and stores.
    unsafe { AtomicU64::from_ptr(std::ptr::from_ref(word).cast_mut()) }
}

/// Returns the mark of an arrival, as `mark_of` in `lanes.cuh`.
fn mark_of(number: u64, count: u64, what: u64) -> u64 {
    let digest =
        what.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ count.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (digest >> 32) << 32 | u64::from(number as u32)
}

/// The slots of a direction of an edge, as the GPU reaches them.
struct Slots {
    at: u64,
    /// The size of the slots in memory of the host; 0 on the GPU.
    bytes_on_host: usize,
    /// `None` for memory of the GPU.
    _registration: Option<Registration>,
    /// The owner of the memory, dropped after the registration.
    _owner: Arc<dyn Any + Send + Sync>,
}

impl Slots {
    /// Requires a context to be current on this thread.
    fn new(Memory { data, len, place, owner }: Memory) -> Result<Self> {
        if let Place::Gpu { .. } = place {
            let at = data.expose_provenance() as u64;
            return Ok(Self { at, bytes_on_host: 0, _registration: None, _owner: owner });
        }
        // SAFETY: the owner keeps the memory, and is dropped after the registration.
        let registration = unsafe { Registration::new(data, len) }?;
        let (at, registration) = (registration.at(), Some(registration));
        Ok(Self { at, bytes_on_host: len, _registration: registration, _owner: owner })
    }

    fn is_on_gpu(&self) -> bool {
        self.bytes_on_host == 0
    }
}

impl Network {
    /// Takes the links of a rank with those of other hosts, of `nranks` in all. Requires the GPU's
    /// context to be current on this thread, whose stream is used. May block for a plugin.
    pub fn new(
        gpu: &'static Gpu,
        (rank, nranks): (u32, u32),
        remote: Remote,
        stream: CUstream,
    ) -> Result<Self> {
        let Remote { edges: mut peers, switch, device, slot_bytes, start } = remote;
        let lanes = peers.iter().map(|(_, lanes)| lanes.len()).min().unwrap_or(0);
        let mut gpu_bytes = 0;
        if let Some(device) = device {
            let mut used: Vec<_> =
                peers.iter_mut().flat_map(|(_, edges)| edges.iter_mut().take(lanes)).collect();
            gpu_bytes = Reach::of(gpu, &device)?.move_slots(&mut used, stream);
        }
        let number = peers.len() * lanes + usize::from(switch.is_some());
        let words_bytes = number * size_of::<abi::NetWords>();
        let words = pinned(words_bytes + abi::REMEMBERED * size_of::<abi::Begun>())?;
        let all: *mut abi::NetWords = words.base().cast();
        let mut served: Vec<Vec<Served>> = (0..lanes).map(|_| Vec::new()).collect();
        let (mut shared, mut slots, mut skews) = (Vec::new(), Vec::new(), Vec::new());
        let edges = peers.into_iter().flat_map(|(peer, edges)| {
            let lanes = edges.into_iter().take(lanes).enumerate();
            lanes.map(move |(lane, edge)| ((peer, lane), edge, None))
        });
        // The network that reduces writes headers, too, so its slots stay on the host.
        let switch = switch.map(|(edge, team)| ((nranks, 0), edge, Some(Rail { rank, team })));
        for (i, (other, edge, rail)) in edges.chain(switch).enumerate() {
            let at = all.wrapping_add(i);
            // SAFETY: within the memory, which is aligned; nobody else uses it yet.
            unsafe { at.write(words_from(start)) };
            let [outgoing, incoming] = edge.memory();
            slots.push([Slots::new(outgoing)?, Slots::new(incoming)?]);
            let skew = |slot: usize| (slot as u64).wrapping_sub(start) as u16 % EDGE_SLOTS as u16;
            skews.push(edge.next_slots().map(skew));
            shared.push(Shared::new(other, rail, at, start));
            served[other.1].push(Served::new(edge, start));
        }
        let begun = words.base().wrapping_add(words_bytes).cast();
        let edges = Arc::new(Edges { all: shared, begun: Mutex::new(Some(Calls(begun))) });
        let programs = Mutex::default();
        let proxies = Mutex::new(served.into_iter().map(Proxy::Waiting).collect());
        let slot_bytes = HEADER_BYTES + slot_bytes;
        Ok(Self { lanes, words, slots, gpu_bytes, slot_bytes, skews, edges, proxies, programs })
    }

    /// Returns the bytes of data in a slot.
    pub fn data_bytes(&self) -> usize {
        self.slot_bytes - HEADER_BYTES
    }

    /// Returns the rail that the switch serves; `None` without one.
    fn rail(&self) -> Option<Rail> {
        self.edges.all.last()?.rail
    }

    /// Returns whether the switch serves a rank, too.
    pub fn has_on_rail(&self, rank: u32) -> bool {
        self.rail().is_some_and(|rail| rail.has(rank))
    }

    /// Returns the number of peers for `nranks` ranks: the switch is one, too.
    pub fn peers_of(&self, nranks: u32) -> u32 {
        nranks + u32::from(self.rail().is_some())
    }

    /// Returns the lanes of the ranks of the communicator as kernels find them, by rank and lane,
    /// and behind them the one to the switch, in the place of all lanes; `local` has the places of
    /// those of this host.
    pub fn peers(&self, local: &[Option<usize>]) -> Vec<abi::Peer> {
        let place = |place: &Option<usize>| {
            [abi::Peer { place: place.unwrap_or(0) as u32, ..abi::Peer::default() }; abi::LANES]
        };
        let switch = self.edges.all.iter().filter(|edge| edge.is_switch()).map(|_| &Some(0));
        let mut peers: Vec<abi::Peer> = local.iter().chain(switch).flat_map(place).collect();
        for (i, edge) in self.edges.all.iter().enumerate() {
            let [outgoing, incoming] = &self.slots[i];
            let lanes = if edge.is_switch() { 0..abi::LANES } else { edge.lane..edge.lane + 1 };
            let first = edge.peer as usize * abi::LANES;
            let peer = abi::Peer {
                words: self.words.at() + (i * size_of::<abi::NetWords>()) as u64,
                place: 0,
                is_switch: edge.is_switch().into(),
                unused: 0,
                skews: self.skews[i],
                outgoing: outgoing.at,
                incoming: incoming.at,
                slot_bytes: self.slot_bytes as u64,
                on_gpu: [outgoing, incoming].map(|slots| slots.is_on_gpu().into()),
            };
            peers[first + lanes.start..first + lanes.end].fill(peer);
        }
        peers
    }

    /// Starts the proxies, one for each lane.
    pub fn start(&self, rank: &Arc<Rank>) -> Result<()> {
        for (lane, proxy) in self.lock().iter_mut().enumerate() {
            let Proxy::Waiting(served) = std::mem::take(proxy) else { continue };
            let ended = Arc::new(AtomicBool::new(false));
            let (edges, rank, end) = (self.edges.clone(), Arc::downgrade(rank), ended.clone());
            let run = move || {
                let edges: Vec<_> = edges.all.iter().filter(|edge| edge.lane == lane).collect();
                run(served, &edges, &rank, &end)
            };
            let thread = std::thread::Builder::new().name("oxccl-net".to_owned()).spawn(run);
            let failed = |e| Error::system("starting a thread", e, "raise ulimit -u");
            *proxy = Proxy::Running(ended, thread.map_err(failed)?);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Proxy>> {
        self.proxies.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the counts of messages and the collectives begun, for the monitor.
    pub fn links(&self) -> &Arc<Edges> {
        &self.edges
    }

    /// Ends the proxies. Returns the edges, with the peer at the other end; they end when they are
    /// dropped.
    pub fn end(&self) -> Vec<(u32, MessageEdge)> {
        let proxies = std::mem::take(&mut *self.lock());
        for proxy in &proxies {
            if let Proxy::Running(ended, _) = proxy {
                ended.store(true, Ordering::Release);
            }
        }
        let end = |(lane, proxy): (usize, Proxy)| {
            let served = match proxy {
                Proxy::Ended => Vec::new(),
                Proxy::Waiting(served) => served,
                // A panic has been logged, and its edges are gone.
                Proxy::Running(_, thread) => thread.join().unwrap_or_default(),
            };
            let peers = self.edges.all.iter().filter(move |edge| edge.lane == lane);
            peers.zip(served).map(|(of, served)| (of.peer, served.edge))
        };
        proxies.into_iter().enumerate().flat_map(end).collect()
    }

    /// Asks the peers to tell when they have taken what kernels have written to them so far, once
    /// for each number. Returns the peers and the numbers of messages written to them.
    pub fn ask_taken(&self, rank: &Rank) -> impl Iterator<Item = (u32, u64)> {
        let written = |edges: &[Shared]| {
            let (peer, written) = (edges[0].peer, edges.iter().map(Shared::written).sum());
            if edges[0].asked.fetch_max(written, Ordering::AcqRel) < written {
                rank.control(peer).inspect(|control| control.tell(&notice::ask(written)));
            }
            (peer, written)
        };
        let of_ranks = self.edges.all.len() - usize::from(self.rail().is_some());
        self.edges.all[..of_ranks].chunks(self.lanes.max(1)).map(written)
    }

    /// Notes that a peer has left in order.
    pub fn note_left(&self, peer: u32) {
        let is_of_it =
            |edge: &&Shared| edge.peer == peer || edge.rail.is_some_and(|rail| rail.has(peer));
        let edges = self.edges.all.iter().filter(is_of_it);
        edges.for_each(|edge| edge.left.store(true, Ordering::Release));
    }

    /// Returns the address, for kernels, of what they remember of collectives.
    pub fn begun_at(&self) -> u64 {
        self.words.at() + (self.edges.all.len() * size_of::<abi::NetWords>()) as u64
    }

    /// Returns the bytes of memory of the host that the edges take.
    pub fn bytes(&self) -> u64 {
        let slots = self.slots.iter().flatten().map(|slots| slots.bytes_on_host).sum::<usize>();
        (slots + self.words.bytes()) as u64
    }

    /// Returns the bytes of memory of the GPU that the edges take.
    pub fn gpu_bytes(&self) -> u64 {
        self.gpu_bytes
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.end();
        *self.edges.begun.lock().unwrap_or_else(|e| e.into_inner()) = None;
    }
}

/// Memory of the host for all GPUs. Requires a context to be current on this thread.
fn pinned(bytes: usize) -> Result<Pinned> {
    let bytes = bytes.next_multiple_of(4096);
    Pinned::new(sealed_memfd("oxccl-gpu-net", bytes)?, bytes)
}

/// Returns the words of an edge on which `start` messages were sent in both directions.
fn words_from(start: u64) -> abi::NetWords {
    let old = || abi::Arrival { mark: u64::from(start as u32), ..abi::Arrival::default() };
    let (outgoing, incoming) = (std::array::from_fn(|_| old()), std::array::from_fn(|_| old()));
    let words = abi::NetWords { taken: start, wanted: start, room: start, ..Default::default() };
    let words = abi::NetWords { outgoing, incoming, ..words };
    let packed = words.outgoing_packed.iter().chain(&words.incoming_packed);
    packed.for_each(|slot| packed::pass(slot, start));
    words
}

#[derive(Default)]
enum Proxy {
    Waiting(Vec<Served>),
    Running(Arc<AtomicBool>, JoinHandle<Vec<Served>>),
    #[default]
    Ended,
}

/// An edge as the proxy serves it. Numbers of messages begin at the start of the counters.
struct Served {
    edge: MessageEdge,
    sent: u64,
    /// The number up to which the kernels know of free slots.
    room: u64,
    arrived: u64,
    taken: u64,
    /// When the transport failed, and the error.
    broken: Option<(Instant, Error)>,
    /// The time since which nothing has come from a peer that has left.
    quiet: Option<Instant>,
    /// The message for which a collective waits, and since when or since when the peer knows.
    waits: Option<(u64, Instant)>,
    /// How many more looks follow at what no kernel waits for yet.
    looks_ahead: u32,
    /// The collective that the next rank of a switch's rail was told last.
    agreed_on: u64,
    /// The bytes of data of the latest messages that have come, by number modulo [`LATEST`].
    bytes: [usize; LATEST],
}

impl Served {
    fn new(edge: MessageEdge, start: u64) -> Self {
        let (broken, quiet, waits, looks_ahead) = (None, None, None, 0);
        let (sent, room, arrived, taken) = (start, start, start, start);
        let bytes = [0; LATEST];
        let agreed_on = 0;
        Self {
            edge,
            sent,
            room,
            arrived,
            taken,
            broken,
            quiet,
            waits,
            looks_ahead,
            agreed_on,
            bytes,
        }
    }

    /// Returns how far the messages have come that the proxy knows of, without their operations.
    fn carried(&self, start: u64) -> [Carried; 2] {
        let [sent, _] = self.edge.carried();
        let (moved, over) = (self.arrived.wrapping_sub(start), self.taken.wrapping_sub(start));
        [sent, Carried { moved, over, bytes: self.bytes, sized: moved, ..Carried::default() }]
    }

    /// Carries on what can be carried on; returns whether anything moved. Never blocks.
    fn progress(&mut self, shared: &Shared) -> Result<bool> {
        let sends = self.send(shared);
        // What a peer has sent before it ended is taken all the same.
        let receives = self.receive(shared)?;
        Ok(sends? || receives)
    }

    fn send(&mut self, shared: &Shared) -> Result<bool> {
        let words = shared.words();
        let mut moved = false;
        loop {
            let slot = (self.sent % abi::NET_SLOTS as u64) as usize;
            let (next, number) = (&words.outgoing[slot], self.sent.wrapping_add(1));
            let (what, count) = if word(&next.mark).load(Ordering::Acquire) as u32 == number as u32
            {
                let [what, count] = [&next.what, &next.count].map(word);
                (what.load(Ordering::Relaxed), count.load(Ordering::Relaxed))
            } else if let Some(packed) = Packed::read(&words.outgoing_packed[slot], number) {
                self.edge.next_data()[..packed.data().len()].copy_from_slice(packed.data());
                (packed.what, packed.count)
            } else {
                break;
            };
            let len = (what >> 32) as usize;
            self.edge.commit(len, Descriptor::from_words(what as u32, count), 0)?;
            self.sent = number;
            shared.sent.store(self.edge.sent(), Ordering::Release);
            // Neither form tells of an older message, whose number may end in the same 32 bits,
            // when the kernel writes there again, once it knows of room. Who counts what is written
            // sees the store above before these.
            fence(Ordering::Release);
            word(&next.mark).store(u64::from(number as u32), Ordering::Relaxed);
            packed::pass(&words.outgoing_packed[slot], number);
            moved = true;
        }
        self.edge.flushed()?;
        let room = self.sent.wrapping_add(self.edge.room()? as u64);
        if room != self.room {
            word(&words.room).store(room, Ordering::Release);
            (self.room, moved) = (room, true);
        }
        Ok(moved)
    }

    fn receive(&mut self, shared: &Shared) -> Result<bool> {
        let words = shared.words();
        let (mut moved, taken) = (false, word(&words.taken).load(Ordering::Acquire));
        while self.taken != taken {
            self.edge.release();
            self.taken = self.taken.wrapping_add(1);
            shared.taken.store(self.edge.taken(), Ordering::Release);
            moved = true;
        }
        let (number, held) = (self.arrived.wrapping_add(1), self.arrived.wrapping_sub(taken));
        let wanted = word(&words.wanted).load(Ordering::Acquire) == number;
        // What kernels do not wait for comes earlier, if the transport does not mind. After a large
        // message more is likely under way; without one, looks would only cost system calls.
        let ahead = (held > 0 || self.looks_ahead > 0) && self.edge.offers_ahead();
        // A switch begins once there is a slot for the result.
        let due = shared.is_switch() && self.sent != self.arrived;
        self.looks_ahead = self.looks_ahead.saturating_sub(1);
        if held >= EDGE_SLOTS as u64 || !(wanted || ahead || due) {
            return Ok(moved);
        }
        let Some(message) = self.edge.peek_at(held as usize)? else { return Ok(moved) };
        let (what, count) = message.descriptor.map_or((0, 0), |descriptor| descriptor.to_words());
        let slot = (self.arrived % abi::NET_SLOTS as u64) as usize;
        let here = &words.incoming[slot];
        let len = message.len.map_or(abi::NET_UNTOLD, |len| len as u32);
        let what = u64::from(what) | u64::from(len) << 32;
        let small = message.len.filter(|len| *len <= abi::NET_PACKED_BYTES);
        if let (Some(len), Some(_)) = (small, message.descriptor) {
            // SAFETY: data of a message in memory of the host, until it is released.
            let data = unsafe { std::slice::from_raw_parts(message.data, len) };
            packed::write(&words.incoming_packed[slot], number, [what, count], data);
        } else {
            packed::pass(&words.incoming_packed[slot], number);
        }
        word(&here.what).store(what, Ordering::Relaxed);
        word(&here.count).store(count, Ordering::Relaxed);
        word(&here.mark).store(mark_of(number, count, what), Ordering::Release);
        let latest = self.arrived.wrapping_sub(shared.start) as usize % LATEST;
        self.bytes[latest] = message.len.unwrap_or(0);
        self.arrived = number;
        let large = message.len.is_none_or(|len| len >= LARGE);
        self.looks_ahead = if large { LOOKS_AHEAD } else { 0 };
        Ok(true)
    }

    /// Tells the peer in which collective this rank waits for it, once it has waited long: the peer
    /// may be in another one.
    fn tell(&mut self, shared: &Shared, rank: &Weak<Rank>) {
        let words = shared.words();
        let wanted = word(&words.wanted).load(Ordering::Acquire);
        // More may have come than is wanted.
        if self.arrived.wrapping_sub(wanted) as i64 >= 0 {
            self.waits = None;
            return;
        }
        let now = Instant::now();
        let since = self.waits.filter(|(number, _)| *number == wanted).map_or(now, |(_, at)| at);
        self.waits = Some((wanted, since));
        let by = word(&words.wanted_by).load(Ordering::Relaxed);
        let is_time = match shared.rail {
            Some(_) if by != self.agreed_on => true,
            _ => now.saturating_duration_since(since) >= LONG,
        };
        if by == 0 || !is_time {
            return;
        }
        self.waits = Some((wanted, now));
        let (what, count) = (word(&words.wanted_what), word(&words.wanted_count));
        let (what, count) = (what.load(Ordering::Relaxed), count.load(Ordering::Relaxed));
        let descriptor = Descriptor::from_words(what as u32, count);
        let Some(rank) = rank.upgrade() else { return };
        let Some(rail) = shared.rail else {
            let control = rank.control(shared.peer);
            return drop(control.inspect(|c| c.tell(&notice::doing(by, descriptor))));
        };
        // No other rank of the rail shows what it calls.
        self.agreed_on = by;
        let agreed = agree_on_rail(&rank, rail.team, &descriptor.into(), by);
        if let Some((error, _visit)) = agreed.err().zip(exit::visit_driver()) {
            rank.fail(error);
        }
    }

    /// Tells the kernels once nothing more can come from a peer that has left.
    fn note_left(&mut self, shared: &Shared, moved: bool, now: Instant) {
        if moved {
            self.quiet = None;
        }
        let since = *self.quiet.get_or_insert(now);
        // A result of a switch may come long after a rank that has it has left.
        let quiet = if shared.is_switch() { LONG } else { QUIET };
        if self.broken.is_some() || now.saturating_duration_since(since) >= quiet {
            word(&shared.words().left).store(1, Ordering::Release);
        }
    }

    /// Serves the edge; returns whether anything moved. An edge that broke is served no more, and
    /// the rank fails unless somebody knows better why.
    fn serve(&mut self, shared: &Shared, rank: &Weak<Rank>) -> bool {
        let mut moved = false;
        let left = shared.left.load(Ordering::Acquire);
        if self.broken.is_none() {
            let progress = self.progress(shared);
            let progress = match shared.is_switch() {
                true => progress,
                false => progress.map_err(broken(shared.peer)),
            };
            moved = progress.unwrap_or_else(|error| {
                self.broken = Some((Instant::now(), error));
                false
            });
        }
        if let Some(carried) = shared.carried.get() {
            *carried.lock().unwrap_or_else(|e| e.into_inner()) = self.carried(shared.start);
        }
        if !moved {
            self.tell(shared, rank);
        }
        if left {
            self.note_left(shared, moved, Instant::now());
        } else if let Some((since, error)) = &self.broken
            && since.elapsed() >= VERDICT
            && let Some(rank) = rank.upgrade().filter(|rank| rank.failure().is_none())
            // Kernels are told in memory of the driver.
            && let Some(_visit) = exit::visit_driver()
        {
            rank.fail(match error {
                Error::Remote { why, .. } => rank.lost(shared.peer, why.clone()),
                other => other.clone(),
            });
        }
        moved
    }
}

/// The thread of a proxy. Words, slots and edges are no memory of the driver, so it may run while
/// the process exits.
fn run(
    mut served: Vec<Served>,
    edges: &[&Shared],
    rank: &Weak<Rank>,
    ended: &AtomicBool,
) -> Vec<Served> {
    let mut moved_at = Instant::now();
    loop {
        // What kernels did before the end is still carried on.
        let last = ended.load(Ordering::Acquire);
        let serve = || {
            let all = served.iter_mut().zip(edges);
            all.fold(false, |moved, (served, shared)| served.serve(shared, rank) | moved)
        };
        let moved = catch_unwind(AssertUnwindSafe(serve)).unwrap_or_else(|panic| {
            let visit = exit::visit_driver();
            rank.upgrade().zip(visit).inspect(|(rank, _)| rank.fail(Error::panicked(&*panic)));
            ended.store(true, Ordering::Release);
            false
        });
        if last {
            return served;
        }
        if moved {
            moved_at = Instant::now();
            continue;
        }
        let idle = moved_at.elapsed();
        // Kernels give up soon after a peer has left, so what it sent has to come at once.
        let any_left = edges.iter().any(|edge| edge.left.load(Ordering::Acquire));
        let longest = if any_left { PAUSES[0] } else { PAUSES[1] };
        match idle < EAGER {
            true => std::hint::spin_loop(),
            false => std::thread::sleep((idle / PAUSE_PART).clamp(PAUSES[0], longest)),
        }
    }
}

#[cfg(test)]
mod tests;
