//! The cost model: latency and bandwidth of the actions of plans, per kind of link.

use crate::ir::Layout;
use crate::spec::{Collective, Spec};

/// Costs of one rank's actions. Times in µs, bandwidths in GB/s (10⁹ bytes per second).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Time from a signal or a message until the other side can see it.
    pub latency_us: f64,
    /// Time to raise a signal.
    pub signal_us: f64,
    /// Time to look at one peer's signal.
    pub poll_us: f64,
    /// Fixed cost at each end of a message on an edge.
    pub message_us: f64,
    /// Bandwidth of copies that stay in the cache of a core.
    pub cached_gbps: f64,
    /// Bandwidth of copies that go through memory.
    pub memory_gbps: f64,
    /// The largest copy that stays in the cache, in bytes.
    pub cache_bytes: u64,
    /// Bandwidth of a link where it is below that of memory.
    pub link_gbps: f64,
    /// Bandwidth of folding one operand.
    pub fold_gbps: f64,
    /// Fixed cost of reading from one peer.
    pub read_call_us: f64,
    /// Bandwidth of reading from peers where it is below that of a copy.
    pub read_gbps: f64,
    /// Bandwidth of reading from a single peer, which keeps less data under way at a time.
    pub peer_read_gbps: f64,
    /// Bandwidth of writing to the memory of peers while reading from them.
    pub push_gbps: f64,
    /// Bandwidth of the lines of stages that change hands between cores, in addition to the copy.
    pub handover_gbps: f64,
    /// The same for edges, whose lines are read while they still lie in the writer's own cache.
    pub edge_handover_gbps: f64,
    /// Fixed cost of moving blocks by copy engines.
    pub engine_call_us: f64,
    /// Bandwidth of copy engines.
    pub engine_gbps: f64,
    /// The ranks that take turns on a processor, for which the model is.
    pub turns: u8,
    /// Size of a stage slot in bytes.
    pub stage_slot_bytes: u64,
    /// Size of an edge's slot in bytes.
    pub edge_slot_bytes: u64,
    /// Size of a message in bytes; those of large calls in windows that overlap are larger.
    pub message_bytes: u64,
    /// The messages of an edge that travel side by side.
    pub lanes: u64,
    /// The costs between ranks of a team, where they differ from those between teams.
    pub near: Option<&'static CostModel>,
}

impl CostModel {
    /// Ranks on one host that share memory. Fitted to all-reduces of 2, 4 and 8 ranks on a Xeon
    /// with 16 cores, every algorithm forced in turn (`docs/results/host-2026-11-21.md`), and for
    /// lines that change hands to 2 AMD processors (`docs/results/host-choices-2026-11-25.md`); a
    /// look at a signal between that and a bare exchange (`docs/results/host-bare-2026-11-28.md`).
    pub const SHARED_MEMORY: CostModel = CostModel {
        latency_us: 0.15,
        signal_us: 0.02,
        poll_us: 0.04,
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
        handover_gbps: 32.0,
        edge_handover_gbps: 14.0,
        engine_call_us: 0.0,
        engine_gbps: f64::INFINITY,
        turns: 1,
        stage_slot_bytes: 256 << 10,
        edge_slot_bytes: 64 << 10,
        message_bytes: 64 << 10,
        lanes: 1,
        near: None,
    };

    /// Ranks that communicate over TCP: 9 µs from a write to the reader, 2.5 µs at each end of a
    /// message, and the bandwidth of a stream over loopback (8 ranks of 16 processors, where 7
    /// messages in each direction take 50 µs, `docs/results/rails-2026-11-23.md`).
    pub const TCP: CostModel = CostModel {
        latency_us: 9.0,
        message_us: 2.5,
        link_gbps: 2.0,
        edge_slot_bytes: 128 << 10,
        message_bytes: 128 << 10,
        near: Some(&CostModel::SHARED_MEMORY),
        ..CostModel::SHARED_MEMORY
    };

    /// GPUs that reach each other over NVLink: a signal with its fence takes 2.3 µs; loads reach
    /// 400 GB/s, from one peer 250 GB/s; stores reach 350 GB/s alone and 284 GB/s beside loads
    /// (H200, measured before signals and folds became faster, as `docs/gpu-results.md` reports).
    /// Copy engines take 38 µs and move 374 GB/s.
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
        edge_handover_gbps: f64::INFINITY,
        engine_call_us: 38.0,
        engine_gbps: 374.0,
        turns: 1,
        stage_slot_bytes: 4 << 20,
        edge_slot_bytes: 32 << 10,
        message_bytes: 32 << 10,
        lanes: 1,
        near: None,
    };

    /// GPUs of several hosts, whose messages pass through memory of the host and TCP: a message of
    /// 8 bytes takes 21 µs (two H200, loopback, `docs/gpu-results.md`), and of many messages four
    /// lanes carry one each at a time; the bandwidth is that with which all-reduces of 32 MiB in
    /// windows that overlap take 6 ms (four H100 as two hosts,
    /// `docs/results/two-hosts-2026-11-27.md`).
    pub const GPUS_TCP: CostModel = CostModel {
        latency_us: 13.0,
        message_us: 4.0,
        link_gbps: 6.7,
        lanes: 4,
        near: Some(&CostModel::NVLINK),
        ..CostModel::NVLINK
    };

    /// Returns the model for calls whose largest buffer has so many bytes: pieces of a large buffer
    /// come from memory, however small they are.
    pub fn for_buffer(&self, bytes: u64) -> Self {
        let cached = bytes <= self.cache_bytes;
        Self { cached_gbps: if cached { self.cached_gbps } else { self.memory_gbps }, ..*self }
    }

    /// Returns the model for ranks of which so many take turns on a processor: what one tells is
    /// seen once the others had the processor, whose speed they share. A turn takes 4 µs (4 ranks
    /// on 2 processors of an AMD EPYC, all-reduces of 8 bytes).
    pub fn in_turns(&self, ranks: u8) -> Self {
        let share = |gbps: f64| gbps / f64::from(ranks.max(1));
        Self {
            latency_us: self.latency_us + 4.0 * f64::from(ranks.saturating_sub(1)),
            turns: ranks,
            cached_gbps: share(self.cached_gbps),
            memory_gbps: share(self.memory_gbps),
            fold_gbps: share(self.fold_gbps),
            read_gbps: share(self.read_gbps),
            peer_read_gbps: share(self.peer_read_gbps),
            push_gbps: share(self.push_gbps),
            handover_gbps: share(self.handover_gbps),
            edge_handover_gbps: share(self.edge_handover_gbps),
            ..*self
        }
    }

    /// Returns the costs between ranks of a team.
    pub fn near(&self) -> Self {
        let Self { cached_gbps, edge_slot_bytes, message_bytes, lanes, .. } = *self;
        let near = self.near.map_or(*self, |near| near.in_turns(self.turns));
        Self { cached_gbps, edge_slot_bytes, message_bytes, lanes, ..near }
    }

    fn at_gbps(bytes: u64, gbps: f64) -> f64 {
        bytes as f64 / (gbps * 1e3)
    }

    /// Returns the time to copy within a rank.
    pub fn copy_us(&self, bytes: u64) -> f64 {
        let gbps = if bytes <= self.cache_bytes { self.cached_gbps } else { self.memory_gbps };
        Self::at_gbps(bytes, gbps)
    }

    /// Returns the model for the same links with user memory that the system has to copy
    /// (`process_vm_readv`): a call takes 0.7 µs alone and several µs when the ranks read from each
    /// other at once; data that the others have just written are read at 7 GB/s, large buffers of a
    /// single peer at 3 to 8.
    pub fn pulled(&self) -> Self {
        let share = |gbps: f64| gbps / f64::from(self.turns.max(1));
        Self { read_call_us: 4.0, read_gbps: share(7.0), peer_read_gbps: share(5.7), ..*self }
    }

    /// Returns the model for lines between the same GPUs: a message is under way at both ends at
    /// once, so each end has half of its time, and it arrives in pieces. A kernel starts in 2 µs.
    /// Among more than two, small messages travel in packets of twice their size, and a warp has
    /// those of all peers: the bandwidth is that with which two shots are faster from 100 KB of an
    /// all-reduce or a broadcast on, and from 1 MiB of a reduce on, whose second shot waits for the
    /// folds of a few warps, as on four H200 and H100 (docs/performance.md). In a chain the next
    /// rank begins with the first chunks: its latency and the 64 KiB after which it begins are
    /// those with which a chain is faster from 1 MiB of a reduce on (four H100, there).
    pub fn lines(&self, spec: &Spec, chain: bool) -> Self {
        let shared = spec.nranks > 2 && spec.collective != Collective::Reduce;
        Self {
            latency_us: if chain { 1.25 } else { 1.5 },
            message_us: if chain { 0.0 } else { 0.1 },
            cached_gbps: 4000.0,
            memory_gbps: 4000.0,
            link_gbps: self.link_gbps * if shared { 0.37 } else { 2.0 },
            read_gbps: f64::INFINITY,
            peer_read_gbps: f64::INFINITY,
            message_bytes: if chain { 64 << 10 } else { u64::MAX },
            ..*self
        }
    }

    /// Returns the time to publish data that `readers` cores read: a copy, and lines that change
    /// hands.
    pub fn publish_us(&self, bytes: u64, readers: u32) -> f64 {
        self.copy_us(bytes) + f64::from(readers) * Self::at_gbps(bytes, self.handover_gbps)
    }

    /// Returns the time to read so many bytes from the memory of `peers` peers, and to fold them if
    /// `reduces`.
    pub fn read_us(&self, bytes: u64, peers: u32, reduces: bool) -> f64 {
        let fold = if reduces { Self::at_gbps(bytes, self.fold_gbps) / 2.0 } else { 0.0 };
        let gbps = self.read_gbps.min(self.peer_read_gbps * f64::from(peers.max(1)));
        let read = self.copy_us(bytes).max(Self::at_gbps(bytes, gbps));
        read + fold + f64::from(peers) * self.read_call_us
    }

    /// Returns the time in which all ranks signal and wait for all others.
    pub fn exchange_us(&self, nranks: u32) -> f64 {
        self.signal_us + self.latency_us + f64::from(nranks - 1) * self.poll_us
    }

    /// Returns the time to write so many bytes to the memory of peers, beside reading.
    pub fn push_us(&self, bytes: u64) -> f64 {
        Self::at_gbps(bytes, self.push_gbps)
    }

    /// Returns the time to write so many bytes to the inboxes of peers.
    pub fn put_us(&self, bytes: u64) -> f64 {
        Self::at_gbps(bytes, self.push_gbps.min(self.memory_gbps))
    }

    /// Returns the time to pass over so many bytes in this rank's own memory that the others wrote.
    pub fn inbox_us(&self, bytes: u64) -> f64 {
        Self::at_gbps(bytes, self.fold_gbps)
    }

    /// Returns the time in which copy engines take so many bytes from the peers.
    pub fn engines_us(&self, bytes: u64) -> f64 {
        self.engine_call_us + Self::at_gbps(bytes, self.engine_gbps)
    }

    /// Returns the bytes of the messages that an edge carries at a time.
    pub fn bytes_at_a_time(&self) -> u64 {
        self.message_bytes.saturating_mul(self.lanes)
    }

    /// Returns the model of edges of one lane.
    pub fn in_one_lane(&self) -> Self {
        Self { lanes: 1, link_gbps: self.link_gbps / self.lanes as f64, ..*self }
    }

    /// Returns the time to put a message on an edge.
    pub fn send_us(&self, bytes: u64) -> f64 {
        let messages = bytes.div_ceil(self.bytes_at_a_time()).max(1);
        let copy = self.copy_us(bytes) + Self::at_gbps(bytes, self.edge_handover_gbps);
        messages as f64 * self.message_us + copy.max(Self::at_gbps(bytes, self.link_gbps))
    }

    /// Returns the time to take a message from an edge, and to fold it if `reduces`.
    pub fn receive_us(&self, bytes: u64, reduces: bool) -> f64 {
        let fold = if reduces { Self::at_gbps(bytes, self.fold_gbps) } else { 0.0 };
        let messages = bytes.div_ceil(self.bytes_at_a_time()).max(1);
        let copy = self.copy_us(bytes).max(Self::at_gbps(bytes, self.link_gbps));
        messages as f64 * self.message_us + copy + fold
    }

    /// Returns the time from the memory of a rank to that of the next one.
    pub fn hop_us(&self, bytes: u64, reduces: bool) -> f64 {
        self.latency_us + self.next_hop_us(bytes, reduces)
    }

    /// Returns the latencies of the messages of so many bytes in all windows of a plan but the
    /// first; those of windows that overlap are hidden, but over a plugin's network that takes a
    /// message only once it is awaited.
    pub fn further_latency_us(&self, layout: Option<Layout>, bytes: u64) -> f64 {
        if layout.is_some_and(|layout| layout.rounds > 1) {
            return 0.0;
        }
        bytes.div_ceil(self.bytes_at_a_time()).saturating_sub(1) as f64 * self.latency_us
    }

    /// Returns the time of a further message, sent while the one before is under way.
    pub fn next_hop_us(&self, bytes: u64, reduces: bool) -> f64 {
        self.send_us(bytes) + self.receive_us(bytes, reduces)
    }

    /// Returns the time of a rank's own copy of its contribution, each element multiplied in the
    /// copy.
    pub fn scale_us(&self, bytes: u64) -> f64 {
        self.copy_us(bytes) + Self::at_gbps(bytes, self.fold_gbps)
    }

    /// Returns the time of a rank's messages, as (bytes, true if it sends), and of its copy to
    /// itself.
    pub fn messages_us(&self, messages: &[(u64, bool)], own_bytes: u64) -> f64 {
        let ends = messages.iter().map(|&(bytes, send)| {
            if send { self.send_us(bytes) } else { self.receive_us(bytes, false) }
        });
        let latency = if messages.is_empty() { 0.0 } else { self.latency_us };
        latency + ends.sum::<f64>() + self.copy_us(own_bytes)
    }
}
