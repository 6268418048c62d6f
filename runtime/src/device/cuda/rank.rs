//! A rank's part on its GPU, [`CudaRank`]: the memory that it shares with its peers, its counters,
//! and the control block by which the host and running kernels communicate.

use crate::bootstrap::deadline::Deadline;
use crate::config::{self, Config};
use crate::device::cuda::control::Control;
use crate::device::cuda::driver::library::{self, Functions};
use crate::device::cuda::driver::{self, Gpu, Relaxed, cu};
use crate::device::cuda::layout::{Layout, Membership, Private, view};
use crate::device::cuda::memory::closing;
use crate::device::cuda::memory::export::{self, Mapping};
use crate::device::cuda::memory::pool::Block;
use crate::device::cuda::memory::shared::{Memory, Pinned};
use crate::device::cuda::network::{Network, Remote};
use crate::device::cuda::run::held;
use crate::device::cuda::run::order::{self, Order};
use crate::device::cuda::run::streams::LaunchedStreams;
use crate::device::cuda::run::timing::Timing;
use crate::device::cuda::sharing::exchange::Address;
use crate::device::cuda::sharing::mapper::{self, OnDemand, Peer, Sharing};
use crate::device::cuda::sharing::offer::{self, Offer, Shares};
use crate::device::cuda::sharing::registry::Key;
use crate::device::cuda::start::upload;
use crate::device::cuda::stream::{Private as PrivateStream, Stream};
use crate::device::cuda::{Failing, reaper};
use crate::error::{Error, Result, Site};
use crate::log::{self, Level, Subsystem};
use crate::op;
use crate::op::descriptor::Descriptor;
use crate::op::follow::Watcher;
use crate::rank::{Accelerator, LEFT, Rank};
use cudarc::driver::sys::{self, CUgraph, CUstream};
use oxccl_kernels::abi;
use std::ffi::c_void;
use std::mem::{forget, take};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// A rank's part on its GPU.
pub struct CudaRank {
    /// The GPU.
    pub gpu: &'static Gpu,
    /// The kernels, loaded on that GPU.
    pub functions: &'static Functions,
    /// The number of the rank.
    pub number: u32,
    /// The number of ranks of the communicator.
    pub nranks: u32,
    /// The ranks of this host, by place.
    pub ranks: Vec<u32>,
    /// The rank as kernels see it, an argument of every launch; without the memory of chunks.
    pub view: abi::Rank,
    /// Channels that an operation may take: the same on all ranks.
    pub channels: u32,
    /// The least number of bytes, received from the peers or sent to them, that copy engines move.
    pub engine_bytes: u64,
    /// The number of puts that copy engines carried out.
    pub engine_puts: AtomicU64,
    /// The times of thread blocks, for profilers.
    pub timing: Arc<Timing>,
    owner: Weak<Rank>,
    shared: Arc<Memory>,
    /// The shared memory of the other ranks of this process, kept as long as kernels here may write
    /// there.
    neighbours: Vec<Arc<Memory>>,
    /// The private memory: counters and maps.
    _private: Block,
    imports: Vec<Mapping>,
    /// Host memory of ranks of other processes.
    pinned: Vec<Pinned>,
    /// The [`abi::Control`], in host memory.
    control: Control,
    order: Mutex<Option<Order>>,
    /// The stream on which this part is closed.
    closing: Mutex<Option<PrivateStream>>,
    /// The streams on which the communicator has launched operations.
    used: LaunchedStreams,
    /// `None` where no other rank is on this host.
    pub(in crate::device::cuda) sharing: Option<Sharing>,
    /// The edges with ranks of other hosts; `None` where there are no other hosts.
    network: Option<Network>,
    /// The multiprocessors that the communicator holds until it is closed.
    held: held::Held,
    /// The number of references that graphs hold to this part.
    graphs: AtomicU32,
    /// Bytes of GPU memory that were allocated when the communicator was created.
    first_bytes: u64,
}

// SAFETY: addresses of the GPU, and host memory that is only accessed by atomics.
unsafe impl Send for CudaRank {}
// SAFETY: as above.
unsafe impl Sync for CudaRank {}

/// Fails for more ranks of one host than a communicator on GPUs can have.
pub fn check_ranks(nranks: u32) -> Result<()> {
    if nranks as usize <= abi::MAX_RANKS {
        return Ok(());
    }
    let what = format!("a communicator of {nranks} GPUs of one host");
    Err(Error::usage(what, "up to 16 ranks of each host are supported on GPUs"))
}

impl CudaRank {
    /// Allocates the memory of a rank on the GPU `index`; [`connect`](Self::connect) makes it
    /// usable.
    pub fn new(
        index: i32,
        membership: Membership<'_>,
        mixes: bool,
        remote: Remote,
    ) -> Result<Self> {
        let gpu = driver::gpu(index)?;
        let ranks = membership.ranks();
        let place = ranks.partition_point(|rank| *rank < membership.rank) as u32;
        let nranks = ranks.len() as u32;
        check_ranks(nranks)?;
        let functions = library::functions(gpu)?;
        let _context = gpu.enter()?;
        let _relaxed = Relaxed::begin()?;
        let layout = Layout::new(nranks, Config::get().wants_lines());
        let mut zeroing = None;
        let stream = PrivateStream::of(&mut zeroing)?;
        let control = Control::new(gpu)?;
        let shared = Memory::new(gpu, layout.bytes as usize, stream)?;
        let hosts = !remote.edges.is_empty();
        let scratch_bytes = if hosts { remote.slot_bytes } else { 0 };
        let all = membership.local.len() as u32;
        let own = (membership.rank, all);
        let network = hosts.then(|| Network::new(gpu, own, remote, stream)).transpose()?;
        let slots_bytes = network.as_ref().map_or(0, Network::gpu_bytes);
        let peers = network.as_ref().map_or(all, |network| network.peers_of(all));
        let parts = Private::new(peers, nranks, scratch_bytes);
        let private = Block::on_gpu(gpu, parts.bytes as usize, stream)?;
        let mut view = view((place, nranks), &layout, (private.at(), &parts));
        view.control = control.at();
        view.shared[place as usize] = shared.at();
        if let Some(network) = &network {
            view.net_lanes = network.lanes as u32;
            view.peers = private.at() + parts.peers_at;
            view.scratch = private.at() + parts.scratch_at;
            upload(view.peers, &network.peers(membership.local))?;
        }
        let sharing =
            (nranks > 1).then(|| Sharing::new(gpu, place, nranks, view.maps)).transpose()?;
        Ok(Self {
            gpu,
            functions,
            number: membership.rank,
            nranks: membership.local.len() as u32,
            ranks,
            view,
            channels: abi::MAX_CHANNELS as u32,
            engine_bytes: u64::MAX,
            engine_puts: AtomicU64::new(0),
            owner: Weak::new(),
            shared,
            neighbours: Vec::new(),
            _private: private,
            imports: Vec::new(),
            pinned: Vec::new(),
            control,
            timing: Arc::default(),
            order: Mutex::new(Some(Order::new(mixes)?)),
            closing: Mutex::default(),
            used: LaunchedStreams::default(),
            sharing,
            network,
            held: held::Held::new(&gpu.held),
            graphs: AtomicU32::new(0),
            first_bytes: layout.bytes + parts.bytes + slots_bytes,
        })
    }

    /// Returns what the peers need to reach this rank's memory, and the most thread blocks that its
    /// creator allows.
    pub fn offer(&self, max_blocks: u32) -> Result<Offer> {
        let _context = self.gpu.enter()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: memory of cuMemAlloc, and a place for the handle.
        let made = unsafe { cu!(cuIpcGetMemHandle(&mut handle, self.shared.at())) };
        // A peer that needs the handle finds that it cannot be opened.
        if let Err(error) = made {
            log::line(Level::Info, Subsystem::Init, &error.to_string());
        }
        Ok(Offer {
            uuid: self.gpu.uuid,
            address: self.shared.at(),
            handle: handle.reserved.map(|b| b as u8),
            index: self.gpu.index,
            multiprocessors: self.gpu.multiprocessors,
            free: self.held.free_of(self.gpu.multiprocessors),
            exchange_blocks: self.functions.exchange_blocks,
            max_blocks,
            inbound: self.sharing.as_ref().map_or_else(Address::default, Sharing::address),
            lines: self.has_lines(),
            peer_access: !Config::get().forbids_peer_access(),
            host_memory: !Config::get().shm_disable,
        })
    }

    /// Takes the shares of the GPUs from the offers of all ranks.
    pub fn share(&mut self, offers: &[Offer]) {
        let Shares { ranks, channels, lanes, line_lanes, held } = offer::shares(offers);
        (self.channels, self.view.lanes) = (channels, lanes);
        self.view.line_lanes = line_lanes;
        self.view.net_lanes = self.view.net_lanes.min(lanes);
        self.held.settle(self.gpu, held, channels);
        if ranks > 1 && few_queues() {
            let text = format!(
                "{ranks} ranks share GPU {}: set CUDA_DEVICE_MAX_CONNECTIONS=32 before the program starts, \
                 or their kernels may wait for each other in one queue of the driver for ever",
                self.gpu.index
            );
            log::line(Level::Warn, Subsystem::Init, &text);
        }
    }

    /// Takes the addresses of the ranks of this host from their offers, by place; `here` tells
    /// which of them are in this process.
    pub fn meet(&mut self, offers: &[Offer], here: impl Fn(usize) -> bool) {
        let Some(sharing) = &mut self.sharing else { return };
        let peer = |(place, offer): (usize, &Offer)| Peer {
            rank: self.ranks[place],
            address: offer.inbound,
            here: here(place),
        };
        sharing.connect(offers.iter().enumerate().map(peer).collect());
    }

    /// Has the messages with ranks of other hosts followed by a thread of the watcher.
    pub fn watch_messages(&self, watcher: &dyn Watcher) {
        if let Some(network) = &self.network {
            network.links().watch(watcher, network.data_bytes());
        }
    }

    /// Returns whether lines carry the data; during the creation, whether this rank offers that.
    pub fn has_lines(&self) -> bool {
        self.view.line_slots > 0
    }

    /// Makes all ranks of the communicator that is being created do without lines.
    pub fn do_without_lines(&mut self) {
        self.view.line_slots = 0;
    }

    fn others(&self, offers: &[Offer]) -> Vec<usize> {
        (0..offers.len()).filter(|&rank| rank != self.view.rank as usize).collect()
    }

    /// Maps the GPU memory of all ranks of this host.
    pub fn connect(&mut self, offers: &[Offer], here: impl Fn(usize) -> bool) -> Result<()> {
        let refuses = |offer: &Offer| offers.len() > 1 && !offer.peer_access;
        if let Some(place) = offers.iter().position(refuses) {
            let rank = self.ranks[place];
            return Err(Error::Init { why: format!("NCCL_P2P_DISABLE is set at rank {rank}") });
        }
        if !offers.iter().all(|o| o.lines && driver::carries_lines(self.gpu, &o.uuid)) {
            self.do_without_lines();
        }
        let _context = self.gpu.enter()?;
        let _relaxed = Relaxed::begin()?;
        for rank in self.others(offers) {
            let offer = &offers[rank];
            self.view.shared[rank] = if here(rank) {
                self.reach(offer.index)?;
                self.join(rank, offer.address)?
            } else {
                self.import(rank, offer)?
            };
        }
        Ok(())
    }

    /// Keeps the shared memory of a rank of this process, and returns its address.
    fn join(&mut self, rank: usize, address: u64) -> Result<u64> {
        let gone = || Error::Init { why: format!("rank {} has left", self.ranks[rank]) };
        self.neighbours.push(Memory::find(address).ok_or_else(gone)?);
        Ok(address)
    }

    /// Replaces the shared memory on the GPU by memory of the host, as not all GPUs reach each
    /// other. Returns its address in this process, for [`connect_by_host`](Self::connect_by_host).
    pub fn move_to_host(&mut self) -> Result<u64> {
        let _context = self.gpu.enter()?;
        let _relaxed = Relaxed::begin()?;
        let imports = take(&mut self.imports);
        if !imports.is_empty() {
            closing::when_quiet(self.gpu, move || drop(imports));
        }
        self.neighbours.clear();
        self.do_without_lines();
        let bytes = Layout::new(self.view.nranks, false).bytes;
        self.shared = Memory::on_host(self.gpu, bytes as usize)?;
        self.view.shared[self.view.rank as usize] = self.shared.at();
        self.first_bytes -= Layout::new(self.view.nranks, Config::get().wants_lines()).bytes;
        Ok(self.shared.at())
    }

    /// Maps the host memory of all ranks of this host, each of which has called
    /// [`move_to_host`](Self::move_to_host). Blocks until the descriptors of all ranks in other
    /// processes have come, at most until the deadline.
    pub fn connect_by_host(
        &mut self,
        offers: &[Offer],
        addresses: &[u64],
        here: impl Fn(usize) -> bool,
        deadline: &Deadline,
    ) -> Result<()> {
        let _context = self.gpu.enter()?;
        let _relaxed = Relaxed::begin()?;
        let bytes = Layout::new(self.view.nranks, false).bytes as usize;
        let others = self.others(offers);
        let (near, far): (Vec<_>, Vec<_>) = others.into_iter().partition(|&rank| here(rank));
        for rank in near {
            self.view.shared[rank] = self.join(rank, addresses[rank])?;
        }
        let Some(sharing) = &mut self.sharing else { return Ok(()) };
        let own = self.shared.descriptor().map(|fd| fd.try_clone_to_owned()).transpose();
        let own = own.map_err(|e| Error::system("dup", e, "raise ulimit -n"))?;
        for (rank, fd) in sharing.swap_descriptors(own, &far, deadline)? {
            let pinned = Pinned::new(fd, bytes)?;
            self.view.shared[rank] = pinned.at();
            self.pinned.push(pinned);
        }
        sharing.note_no_peer_access();
        Ok(())
    }

    /// Lets kernels here use the memory of another GPU of this process.
    fn reach(&self, index: i32) -> Result<()> {
        if index == self.gpu.index {
            return Ok(());
        }
        let peer = driver::gpu(index)?;
        let mut can = 0;
        // SAFETY: a place for the answer, and living contexts.
        unsafe {
            cu!(cuDeviceCanAccessPeer(&mut can, self.gpu.device, peer.device))?;
            if can == 0 {
                let what = format!("GPU {} cannot reach GPU {index}", self.gpu.index);
                return Err(Error::usage(
                    what,
                    "use GPUs that NVLink or PCIe peer access connects",
                ));
            }
            match sys::cuCtxEnablePeerAccess(peer.context, 0) {
                sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
                other => driver::check(other, "cuCtxEnablePeerAccess"),
            }
        }
    }

    fn import(&mut self, rank: usize, offer: &Offer) -> Result<u64> {
        let opened = export::open(offer.handle, 0).map_err(|e| Error::Init {
            why: format!("the GPU memory of rank {} cannot be mapped: {e}", self.ranks[rank]),
        })?;
        let at = opened.address();
        self.imports.push(opened);
        Ok(at)
    }

    /// Attaches this part to its rank, so that a failure of one is a failure of both; the mapper
    /// and the monitor serve it from now on.
    pub fn attach(mut self, rank: &Arc<Rank>, lines: bool) -> Arc<Self> {
        self.view.line_slots *= u32::from(lines);
        if let Some(sharing) = self.sharing.as_mut().filter(|_| self.view.line_slots > 0) {
            sharing.set_on_demand(OnDemand::Chunks);
        }
        self.owner = Arc::downgrade(rank);
        let cuda_rank = Arc::new(self);
        if cuda_rank.sharing.is_some() {
            mapper::attend(&cuda_rank);
        }
        if let Some(network) = &cuda_rank.network {
            rank.set_links(Arc::downgrade(network.links()) as _);
            if let Err(error) = network.start(rank) {
                rank.fail(error);
            }
        }
        rank.set_accelerator(Arc::downgrade(&cuda_rank) as _);
        crate::device::cuda::register(Arc::downgrade(&cuda_rank) as _);
        reaper::watch(&cuda_rank);
        cuda_rank
    }

    /// Returns the edges with ranks of other hosts; `None` where there are no other hosts.
    pub fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// Returns the number of the rank that kernels call by a name.
    fn named(&self, name: i32) -> i32 {
        match usize::try_from(name) {
            Ok(place) if place < self.ranks.len() => self.ranks[place] as i32,
            Ok(other) => match &self.network {
                Some(network) => {
                    let number = other.checked_sub(abi::MAX_RANKS).map(|number| number as u32);
                    let is_rank = |number: &u32| *number < self.nranks;
                    // Of a switch's rail a rank is to be named that has left, if any has.
                    let others = (0..self.nranks).filter(|peer| *peer != self.number);
                    let mut rail = others.filter(|peer| network.has_on_rail(*peer));
                    let left = |peer: &u32| self.owner().is_some_and(|rank| rank.has_left(*peer));
                    let found = || number.and_then(|_| rail.find(left));
                    number.filter(is_rank).or_else(found).map_or(-1, |peer| peer as i32)
                }
                None => name,
            },
            _ => name,
        }
    }

    /// Returns the rank as kernels see it now, for those that may use chunks.
    pub fn with_chunks(&self) -> abi::Rank {
        let mut view = self.view;
        view.chunks = self.sharing.as_ref().map_or(view.chunks, |s| s.chunks.addresses());
        view
    }

    /// Returns what this rank shares with its peers; `None` where no other rank is on this host.
    pub fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_ref()
    }

    /// Returns the bytes of GPU memory that this part takes.
    pub fn bytes(&self) -> u64 {
        let later = self.sharing.as_ref().map_or(0, |s| s.bytes.load(Ordering::Relaxed));
        self.first_bytes + later
    }

    /// Returns the number of collectives that read or wrote user memory of peers; a collective is
    /// counted at the latest when it has ended.
    pub fn in_place(&self) -> u64 {
        Self::count(&self.control.words().in_place)
    }

    /// Returns the number of collectives that have begun and whose blocks copy engines move, plus
    /// the number of puts by copy engines.
    pub fn by_engines(&self) -> u64 {
        Self::count(&self.control.words().by_engines) + self.engine_puts.load(Ordering::Relaxed)
    }

    /// Returns the number of collectives for which copy engines were given wrong source addresses.
    pub fn engine_mispredictions(&self) -> u64 {
        Self::count(&self.control.words().engine_mispredictions)
    }

    fn count(word: &u64) -> u64 {
        Control::count(word)
    }

    /// Makes a stream wait for all operations launched so far.
    pub fn mark(&self, stream: Stream) -> Result<()> {
        match self.order().as_ref() {
            Some(order) => order.mark(stream),
            None => Ok(()),
        }
    }

    /// Handles the fence of the peer at a place, which has given up and wants its memory back: the
    /// communicator fails here too, and no operation begins any more once the stream has reached
    /// this point. Requires the GPU's context to be current on this thread.
    pub fn give_up(&self, place: u32, stream: CUstream) -> Result<()> {
        let peer = self.ranks[place as usize];
        if let Some(rank) = self.owner() {
            let told = rank.hear_from(peer);
            rank.fail(told.unwrap_or_else(|| rank.lost(peer, "it has given up".to_owned())));
        }
        self.close_on(stream)
    }

    /// Sets the longest time that kernels wait, in ns; `None` for no limit.
    pub fn set_limit(&self, limit_ns: Option<u64>) {
        self.control.set_limit(limit_ns.unwrap_or(0));
    }

    /// Returns the error for which a kernel gave up; `None` if none gave up, or if the host told it
    /// to.
    fn fault(&self) -> Option<Error> {
        let control = self.control.words();
        let fault = Control::word(&control.fault, Ordering::Acquire);
        let own = Descriptor::from_words(control.own_what, control.own_count);
        let site = Site {
            rank: self.number as i32,
            peer: self.named(control.peer),
            step: control.step,
            op_seq: control.operation,
            operation: own.kind().map_or("a kernel", |kind| kind.name()),
        };
        match fault {
            abi::FAULT_DEADLINE => {
                let waited_ms = control.limit_ns / 1_000_000;
                Some(Error::Deadline { site, waited_ms, over: String::new(), found: String::new() })
            }
            abi::FAULT_MISMATCH => {
                let theirs = Descriptor::from_words(control.their_what, control.their_count);
                let messages = own.is_message() && theirs.is_message();
                let [own, theirs] = own.texts(theirs);
                Some(Error::Mismatch { site, own, theirs, messages })
            }
            abi::FAULT_LEFT => Some(Error::Remote { site, why: LEFT.to_owned() }),
            abi::FAULT_WINDOW => {
                let put = (control.own_count, control.offset);
                let window = (self.named(control.peer).unsigned_abs(), control.their_count);
                Some(op::beyond(self.number, put, window))
            }
            abi::FAULT_OVERLAP => {
                let what = "two operations of a communicator ran at once";
                let hint = "order the graphs or streams that use it, or set graphUsageMode to 2";
                Some(Error::usage(what, hint))
            }
            _ => None,
        }
    }

    /// Returns the rank, while the communicator lives.
    pub fn owner(&self) -> Option<Arc<Rank>> {
        self.owner.upgrade()
    }

    fn order(&self) -> MutexGuard<'_, Option<Order>> {
        self.order.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns whether an operation is under way.
    pub fn busy(&self) -> bool {
        self.order().as_ref().is_some_and(Order::busy)
    }

    /// Returns whether a kernel has given up, whatever the reason.
    pub fn is_cut_short(&self) -> bool {
        Control::word(&self.control.words().fault, Ordering::Acquire) != abi::FAULT_NONE
    }

    /// Returns whether there are graphs with operations of the communicator.
    pub fn has_graphs(&self) -> bool {
        self.graphs.load(Ordering::Acquire) > 0
    }

    /// Returns whether a kernel of this communicator has room for its blocks in clusters, whatever
    /// the other communicators of the process have at work meanwhile.
    pub fn has_room_for_clusters(&self) -> bool {
        let all = self.held.of_others() + self.channels;
        all <= held::room_for_clusters(self.gpu.multiprocessors, self.functions.clustered_blocks)
    }

    /// Launches an operation after all that the communicator has launched; a graph into which the
    /// stream is captured keeps this `CudaRank`. If the driver refuses a launch outside of
    /// captures, the communicator fails: a part of the operation may be queued, and the peers wait
    /// for the whole.
    pub fn launch(
        self: &Arc<Self>,
        stream: Stream,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _context = self.gpu.enter()?;
        let _launching = self.gpu.closing.launch();
        let mut begun = false;
        let launch = || {
            begun = true;
            launch()
        };
        let launched = match self.order().as_mut() {
            Some(order) => order.launch(stream, |graph| self.keep(graph, None, None), launch),
            None => Err(Error::Internal { what: "no order".to_owned() }),
        };
        let number = launched.inspect_err(|error| {
            let eager = || order::graph_of(stream).is_ok_and(|graph| graph.is_none());
            if begun && eager() {
                self.fail(error);
            }
        })?;
        self.used.note(stream, number);
        Ok(())
    }

    /// Makes the communicator fail with an error.
    pub fn fail(&self, error: &Error) {
        if let Some(rank) = self.owner() {
            rank.fail(error.clone());
        }
    }

    /// Makes the communicator fail with the fault that a kernel found, if there is one. On return
    /// the communicator has failed, also if another thread was first.
    pub fn hear(&self) {
        let whole = self.owner().filter(|rank| rank.failure().is_none());
        if let Some((rank, error)) = whole.zip(self.fault()) {
            rank.fail(error);
        }
    }

    /// Closes this part: no operation begins any more, and kernels of remaining graphs end at once.
    /// Blocks until the GPU has executed this, or for 100 ms if the GPU is busy.
    pub fn close(&self) -> Result<()> {
        self.held.give_back();
        {
            let _context = self.gpu.enter()?;
            let _relaxed = Relaxed::begin()?;
            self.close_on(PrivateStream::of(&mut self.closing())?)?;
        }
        let begun = Instant::now();
        while !self.is_closed() && begun.elapsed() < CLOSING {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn closing(&self) -> MutexGuard<'_, Option<PrivateStream>> {
        self.closing.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns whether no operation begins here any more, once [`close`](Self::close) was called.
    fn is_closed(&self) -> bool {
        // Without a context, nothing runs.
        let Ok(_context) = self.gpu.enter() else { return true };
        self.closing().as_ref().is_none_or(PrivateStream::is_idle)
    }

    /// Returns whether no operation of a rank that has left runs here any more, nor will run.
    pub fn is_quiescent(&self) -> bool {
        self.is_closed() && !self.busy()
    }

    fn close_on(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the first byte of the fault word, in memory that this rank owns.
        unsafe { cu!(cuMemsetD8Async(self.view.common, abi::FAULT_ABORTED as u8, 1, stream)) }
    }

    /// Returns what is there for as long as the graph is into which a stream is captured. The graph
    /// holds this `CudaRank` meanwhile.
    pub fn life_of_graph(self: &Arc<Self>, stream: Stream) -> Result<Weak<()>> {
        let _context = self.gpu.enter()?;
        let Some(graph) = order::graph_of(stream)? else { return Ok(Weak::new()) };
        let life = Arc::new(());
        let watched = Arc::downgrade(&life);
        self.keep(graph, None, Some(life)).map(|()| watched)
    }

    /// Makes a graph hold this `CudaRank`, a registered buffer of the rank, and a sign of life,
    /// until the graph is destroyed.
    pub(in crate::device::cuda) fn keep(
        self: &Arc<Self>,
        graph: CUgraph,
        buffer: Option<Key>,
        life: Option<Arc<()>>,
    ) -> Result<()> {
        unsafe extern "C" fn release(held: *mut c_void) {
            // SAFETY: `held` is what `keep` gave away. CUDA is not called here: the reaper drops
            // the rank.
            let held = unsafe { Box::from_raw(held.cast::<Held>()) };
            if let Some(key) = held.buffer {
                held.cuda_rank.release(key);
            }
            held.cuda_rank.graphs.fetch_sub(1, Ordering::AcqRel);
            reaper::retire_graph_ref(held.cuda_rank);
        }
        self.graphs.fetch_add(1, Ordering::AcqRel);
        let held = Box::into_raw(Box::new(Held { cuda_rank: self.clone(), buffer, _life: life }));
        let mut object = null_mut();
        let no_sync = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        let moved = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: `release` takes `held` back, once; if there is no object to call it, it is called
        // here.
        unsafe {
            let made = cu!(cuUserObjectCreate(&mut object, held.cast(), Some(release), 1, no_sync));
            if let Err(error) = made {
                release(held.cast());
                return Err(error);
            }
            let kept = cu!(cuGraphRetainUserObject(graph, object, 1, moved));
            if kept.is_err() {
                sys::cuUserObjectRelease(object, 1);
            }
            kept
        }
    }
}

/// Returns whether streams may share queues of the driver, which has 8 by default: a kernel may
/// then stand in a queue before the kernel of another rank for which it waits.
fn few_queues() -> bool {
    let queues = config::foreign_variable("CUDA_DEVICE_MAX_CONNECTIONS");
    queues.and_then(|number| number.parse().ok()).unwrap_or(8) < 32
}

/// The references that a graph holds.
struct Held {
    cuda_rank: Arc<CudaRank>,
    buffer: Option<Key>,
    _life: Option<Arc<()>>,
}

/// The longest time that the end of a communicator waits for a busy GPU.
const CLOSING: Duration = Duration::from_millis(100);

impl Failing for CudaRank {
    fn failure_on(&self, stream: CUstream) -> Option<Error> {
        self.hear();
        let rank = self.owner()?;
        let failure = rank.failure()?;
        // Default streams have the same handles on all GPUs.
        if Stream(stream).is_default() && driver::current() != Some(self.gpu.index) {
            return None;
        }
        let tells = self.used.tell(Stream(stream));
        if tells {
            rank.set_delivered();
        }
        tells.then_some(failure)
    }
}

impl Accelerator for CudaRank {
    fn abort(&self) {
        self.control.abort();
    }

    fn record(&self) {
        if let Some(rank) = self.owner() {
            self.control.record(&rank.recorder, |name| self.named(name));
        }
    }

    fn is_idle(&self) -> bool {
        // Whoever launches holds the lock, and the driver may hold up who launches.
        let idle = |order: &Option<Order>| order.as_ref().is_none_or(|order| !order.busy());
        !self.has_graphs() && self.order.try_lock().is_ok_and(|order| idle(&order))
    }

    fn note_left(&self, peer: u32) {
        let Ok(place) = self.ranks.binary_search(&peer) else {
            self.network.iter().for_each(|network| network.note_left(peer));
            return;
        };
        self.control.note_left(place);
    }
}

impl Drop for CudaRank {
    fn drop(&mut self) {
        let (Ok(_context), Ok(_relaxed)) = (self.gpu.enter(), Relaxed::begin()) else {
            // The process exits, and the driver with it: nothing may be given back any more.
            let given = (take(&mut self.imports), take(&mut self.pinned), self.sharing.take());
            let (marks, network) = (self.timing.take(), self.network.take());
            forget((given, marks, network, self.order().take(), self.closing().take()));
            return;
        };
        *self.order() = None;
        *self.closing() = None;
        let network = self.network.take();
        network.iter().for_each(|network| drop(network.end()));
        let mut given = take(&mut self.imports);
        given.extend(self.sharing.iter().flat_map(Sharing::close));
        let pinned = take(&mut self.pinned);
        let apart = self.sharing.as_ref().is_some_and(Sharing::lacks_peer_access);
        let host = apart.then(|| (self.shared.clone(), take(&mut self.neighbours)));
        if !given.is_empty() || apart || network.is_some() {
            closing::when_quiet(self.gpu, move || drop((given, pinned, host, network)));
        }
    }
}
