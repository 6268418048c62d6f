//! The cost model: latency and bandwidth of the things that plans do, per kind of link.

/// Costs of one rank's actions. Times in µs, bandwidths in GB/s (10⁹ bytes per second).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// From a signal or a message to when the other side can see it.
    pub latency_us: f64,
    /// Raising a signal.
    pub signal_us: f64,
    /// Looking at one peer's signal.
    pub poll_us: f64,
    /// Fixed cost at each end of a message on an edge.
    pub message_us: f64,
    /// Copies that stay in a core's cache.
    pub cached_gbps: f64,
    /// Copies that go through memory.
    pub memory_gbps: f64,
    /// Up to this size a copy stays in the cache, in bytes.
    pub cache_bytes: u64,
    /// Bandwidth of a link where it is below the memory's.
    pub link_gbps: f64,
    /// Folding one operand.
    pub fold_gbps: f64,
    /// Fixed cost of reading from one peer.
    pub read_call_us: f64,
    /// Bandwidth of reading from peers where it is below that of a copy.
    pub read_gbps: f64,
    /// The same of reading from a single peer, of which less is under way at a time.
    pub peer_read_gbps: f64,
    /// Bandwidth of writing to peers' memory while reading from them.
    pub push_gbps: f64,
    /// Lines that change hands between cores, on top of their copying: stages and edges.
    pub handover_gbps: f64,
    /// Fixed cost of having copy engines move blocks.
    pub engine_call_us: f64,
    /// Bandwidth of copy engines.
    pub engine_gbps: f64,
    /// Size of a stage slot in bytes.
    pub stage_slot_bytes: u64,
    /// Size of an edge's slot in bytes.
    pub edge_slot_bytes: u64,
}

impl CostModel {
    /// Ranks on one host that share memory. Fitted to all-reduces of 2, 4 and 8 ranks on a Xeon
    /// with 16 cores, every algorithm forced in turn (`docs/results/host-2026-11-21.md`).
    pub const SHARED_MEMORY: CostModel = CostModel {
        latency_us: 0.15,
        signal_us: 0.02,
        poll_us: 0.02,
        message_us: 0.08,
        cached_gbps: 40.0,
        memory_gbps: 12.0,
        cache_bytes: 2 << 20,
        link_gbps: f64::INFINITY,
        fold_gbps: 32.0,
        read_call_us: 0.0,
        read_gbps: f64::INFINITY,
        peer_read_gbps: f64::INFINITY,
        push_gbps: f64::INFINITY,
        handover_gbps: 24.0,
        engine_call_us: 0.0,
        engine_gbps: f64::INFINITY,
        stage_slot_bytes: 256 << 10,
        edge_slot_bytes: 64 << 10,
    };

    /// Ranks that talk over TCP: 15 µs from a write to the reader, 1.5 µs per system call, and
    /// what a stream carries over loopback.
    pub const TCP: CostModel = CostModel {
        latency_us: 15.0,
        message_us: 1.5,
        link_gbps: 2.0,
        edge_slot_bytes: 128 << 10,
        ..CostModel::SHARED_MEMORY
    };

    /// GPUs that reach each other over NVLink: a signal with its fence takes 2.3 µs, loads 400
    /// GB/s, from one peer 250 GB/s, stores 350 GB/s alone and 284 GB/s beside loads (H200,
    /// measured before signals and folds became faster, which `docs/gpu-results.md` tells of). Copy
    /// engines take 38 µs and move 374 GB/s.
    pub const NVLINK: CostModel = CostModel {
        latency_us: 1.5,
        signal_us: 0.8,
        poll_us: 0.1,
        message_us: 2.0,
        cached_gbps: 400.0,
        memory_gbps: 400.0,
        cache_bytes: 1 << 20,
        link_gbps: 350.0,
        fold_gbps: 2000.0,
        read_call_us: 0.0,
        read_gbps: 400.0,
        peer_read_gbps: 250.0,
        push_gbps: 284.0,
        handover_gbps: f64::INFINITY,
        engine_call_us: 38.0,
        engine_gbps: 374.0,
        stage_slot_bytes: 4 << 20,
        edge_slot_bytes: 32 << 10,
    };

    /// The model for calls whose largest buffer has so many bytes: pieces of a large buffer come
    /// from memory, however small they are.
    pub fn for_buffer(&self, bytes: u64) -> Self {
        let cached = bytes <= self.cache_bytes;
        Self { cached_gbps: if cached { self.cached_gbps } else { self.memory_gbps }, ..*self }
    }

    fn at_gbps(bytes: u64, gbps: f64) -> f64 {
        bytes as f64 / (gbps * 1e3)
    }

    /// Copying within a rank.
    pub fn copy_us(&self, bytes: u64) -> f64 {
        let gbps = if bytes <= self.cache_bytes { self.cached_gbps } else { self.memory_gbps };
        Self::at_gbps(bytes, gbps)
    }

    /// The same links, with user memory that the system has to copy (`process_vm_readv`):
    /// 0.7 µs per call alone, several when the ranks read from each other at once, and 7 GB/s of
    /// what the others have just written.
    pub fn pulled(&self) -> Self {
        Self { read_call_us: 4.0, read_gbps: 7.0, ..*self }
    }

    /// Publishing what `readers` cores read: a copy, and lines that change hands.
    pub fn publish_us(&self, bytes: u64, readers: u32) -> f64 {
        self.copy_us(bytes) + f64::from(readers) * Self::at_gbps(bytes, self.handover_gbps)
    }

    /// Reading so many bytes from the memory of `peers` peers, folding them when `reduces`.
    pub fn read_us(&self, bytes: u64, peers: u32, reduces: bool) -> f64 {
        let fold = if reduces { Self::at_gbps(bytes, self.fold_gbps) / 2.0 } else { 0.0 };
        let gbps = self.read_gbps.min(self.peer_read_gbps * f64::from(peers.max(1)));
        let read = self.copy_us(bytes).max(Self::at_gbps(bytes, gbps));
        read + fold + f64::from(peers) * self.read_call_us
    }

    /// Everyone signals and waits for everyone.
    pub fn exchange_us(&self, nranks: u32) -> f64 {
        self.signal_us + self.latency_us + f64::from(nranks - 1) * self.poll_us
    }

    /// Writing so many bytes to the memory of peers, beside reading.
    pub fn push_us(&self, bytes: u64) -> f64 {
        Self::at_gbps(bytes, self.push_gbps)
    }

    /// Writing so many bytes to peers' inboxes.
    pub fn put_us(&self, bytes: u64) -> f64 {
        Self::at_gbps(bytes, self.push_gbps.min(self.memory_gbps))
    }

    /// Going over so many bytes that lie at this rank, written by the others.
    pub fn inbox_us(&self, bytes: u64) -> f64 {
        Self::at_gbps(bytes, self.fold_gbps)
    }

    /// Having copy engines take so many bytes from the peers.
    pub fn engines_us(&self, bytes: u64) -> f64 {
        self.engine_call_us + Self::at_gbps(bytes, self.engine_gbps)
    }

    /// Putting a message on an edge.
    pub fn send_us(&self, bytes: u64) -> f64 {
        let messages = bytes.div_ceil(self.edge_slot_bytes).max(1);
        messages as f64 * self.message_us
            + self.publish_us(bytes, 1).max(Self::at_gbps(bytes, self.link_gbps))
    }

    /// Taking a message from an edge, folding it when `reduces`.
    pub fn receive_us(&self, bytes: u64, reduces: bool) -> f64 {
        let fold = if reduces { Self::at_gbps(bytes, self.fold_gbps) } else { 0.0 };
        let messages = bytes.div_ceil(self.edge_slot_bytes).max(1);
        let copy = self.copy_us(bytes).max(Self::at_gbps(bytes, self.link_gbps));
        messages as f64 * self.message_us + copy + fold
    }

    /// From a rank's memory to the next one's.
    pub fn hop_us(&self, bytes: u64, reduces: bool) -> f64 {
        self.latency_us + self.next_hop_us(bytes, reduces)
    }

    /// A further message, sent while the one before is on its way.
    pub fn next_hop_us(&self, bytes: u64, reduces: bool) -> f64 {
        self.send_us(bytes) + self.receive_us(bytes, reduces)
    }

    /// A rank's own copy of what it contributes, each element multiplied on the way.
    pub fn scale_us(&self, bytes: u64) -> f64 {
        self.copy_us(bytes) + Self::at_gbps(bytes, self.fold_gbps)
    }

    /// A rank's messages to others, as (bytes, whether it sends), and what it copies for itself.
    pub fn messages_us(&self, messages: &[(u64, bool)], own_bytes: u64) -> f64 {
        let ends = messages.iter().map(|&(bytes, send)| {
            if send { self.send_us(bytes) } else { self.receive_us(bytes, false) }
        });
        let latency = if messages.is_empty() { 0.0 } else { self.latency_us };
        latency + ends.sum::<f64>() + self.copy_us(own_bytes)
    }
}
