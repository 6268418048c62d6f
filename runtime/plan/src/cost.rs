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
    /// Lines that change hands between cores, on top of their copying: stages and edges.
    pub handover_gbps: f64,
    /// Size of a stage slot in bytes.
    pub stage_slot_bytes: u64,
    /// Size of an edge's slot in bytes.
    pub edge_slot_bytes: u64,
}

impl CostModel {
    /// Ranks on one host that share memory. Measured on 2 cores of a Xeon at 2.5 GHz: a flag takes
    /// 0.1 µs one way; memcpy runs at 24 GB/s within L2 and at 8 GB/s beyond.
    pub const SHARED_MEMORY: CostModel = CostModel {
        latency_us: 0.1,
        signal_us: 0.02,
        poll_us: 0.02,
        message_us: 0.05,
        cached_gbps: 20.0,
        memory_gbps: 8.0,
        cache_bytes: 512 << 10,
        link_gbps: f64::INFINITY,
        fold_gbps: 16.0,
        read_call_us: 0.0,
        read_gbps: f64::INFINITY,
        handover_gbps: 6.0,
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

    fn at_gbps(bytes: u64, gbps: f64) -> f64 {
        bytes as f64 / (gbps * 1e3)
    }

    /// Copying within a rank.
    pub fn copy_us(&self, bytes: u64) -> f64 {
        let gbps = if bytes <= self.cache_bytes { self.cached_gbps } else { self.memory_gbps };
        Self::at_gbps(bytes, gbps)
    }

    /// The same links, with user memory that the system has to copy (`process_vm_readv`): 0.7 µs per
    /// call and 12 GB/s.
    pub fn pulled(&self) -> Self {
        Self { read_call_us: 0.7, read_gbps: 12.0, ..*self }
    }

    /// Publishing in a stage: a copy whose lines another core holds.
    pub fn publish_us(&self, bytes: u64) -> f64 {
        self.copy_us(bytes) + Self::at_gbps(bytes, self.handover_gbps)
    }

    /// Reading so many bytes from the memory of `peers` peers, folding them when `reduces`.
    pub fn read_us(&self, bytes: u64, peers: u32, reduces: bool) -> f64 {
        let fold = if reduces { Self::at_gbps(bytes, self.fold_gbps) / 2.0 } else { 0.0 };
        let read = self.copy_us(bytes).max(Self::at_gbps(bytes, self.read_gbps));
        read + fold + f64::from(peers) * self.read_call_us
    }

    /// Everyone signals and waits for everyone.
    pub fn exchange_us(&self, nranks: u32) -> f64 {
        self.signal_us + self.latency_us + f64::from(nranks - 1) * self.poll_us
    }

    /// Putting a message on an edge.
    pub fn send_us(&self, bytes: u64) -> f64 {
        let messages = bytes.div_ceil(self.edge_slot_bytes).max(1);
        messages as f64 * self.message_us
            + self.publish_us(bytes).max(Self::at_gbps(bytes, self.link_gbps))
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
}
