//! The layout of a rank's memory on its GPU: the part that it shares with the ranks of its host,
//! and its own.

use oxccl_kernels::abi;
pub use oxccl_kernels::abi::LANE_SLOT_BYTES;

/// The slots' worth of scratch that a lane has for each rank: a window needs a block of scratch for
/// each rank at most, and some plans keep those of several windows.
pub const SCRATCH_SLOTS: usize = 2;

/// The offsets of the parts of a rank's shared memory, and its size in bytes, for a number of
/// ranks. A communicator whose links carry lines uses them alone: they lie in the place of packets,
/// slots of lanes and stage.
pub struct Layout {
    /// The offset of the packets.
    pub packets_at: u64,
    /// The offset of the slots of lanes.
    pub lanes_at: u64,
    /// The offset of the small stage.
    pub stage_at: u64,
    /// The offset of the credits of lines.
    pub line_credits_at: u64,
    /// The offset of the slots of lines.
    pub lines_at: u64,
    /// Bytes of the whole.
    pub bytes: u64,
}

impl Layout {
    /// Returns the layout for `nranks` ranks of a host, with room for lines if `lines`.
    pub fn new(nranks: u32, lines: bool) -> Self {
        let n = u64::from(nranks);
        let packet = 2 * abi::PACKET_DATA_BYTES as u64;
        let halves = 2 * abi::MAX_CHANNELS as u64;
        let (slots, channels) = line_rings(nranks);
        let line_credits_at = abi::WORDS_BYTES as u64;
        let credits = n * u64::from(channels) * size_of::<u64>() as u64;
        let lines_at = (line_credits_at + credits).next_multiple_of(abi::UNIT_BYTES as u64);
        let slots = u64::from(slots * channels) * if lines { n - 1 } else { 0 };
        let lines_end = lines_at + slots * abi::UNIT_BYTES as u64;
        let packets_at = lines_at;
        let lanes_at = packets_at + halves * n * abi::CHANNEL_PACKETS as u64 * packet;
        let stage_at = lanes_at + n * (abi::LANES * abi::LANE_SLOTS * abi::LANE_SLOT_BYTES) as u64;
        let end = stage_at + (abi::MAX_CHANNELS * 2 * abi::SMALL_STAGE_SLOT_BYTES) as u64;
        let bytes = lines_end.max(end);
        Self { packets_at, lanes_at, stage_at, line_credits_at, lines_at, bytes }
    }
}

/// The offsets of the parts of a rank's memory of chunks, and its size in bytes. The words of the
/// channels come first.
pub struct Chunks {
    /// The offset of the credits.
    pub credits_at: u64,
    /// The offset of the counters, which no peer touches.
    pub counters_at: u64,
    /// The offset of the slots.
    pub slots_at: u64,
    /// Bytes of the whole.
    pub bytes: u64,
}

impl Chunks {
    /// Returns the layout for `nranks` ranks of a host, of which there is more than one.
    pub fn new(nranks: u32) -> Self {
        let (slots, channels) = chunk_rings(nranks);
        let edges = u64::from(nranks * channels);
        let credits_at = edges * size_of::<abi::ChunkWords>() as u64;
        let credits_end = credits_at + edges * size_of::<u64>() as u64;
        let counters_at = credits_end.next_multiple_of(128);
        let counters_end = counters_at + edges * size_of::<abi::LineCounters>() as u64;
        let slots_at = counters_end.next_multiple_of(abi::CHUNK_BYTES as u64);
        // The channels of all senders but the last one lie where those of the last begin.
        let before = u64::from(nranks.saturating_sub(2)) * abi::CHUNK_CHANNELS as u64;
        let ring = u64::from(slots) * abi::CHUNK_BYTES as u64;
        let bytes = slots_at + (before + u64::from(channels)) * ring;
        Self { credits_at, counters_at, slots_at, bytes }
    }
}

/// Returns the slots of a channel of lines on an edge, and the channels that have slots. With more
/// peers, each of them gets less of what a rank sends; a unit is put before the one before it is
/// taken, so there are two slots at least; with four, slices of 256 KiB to 2 MiB are 5 to 15 %
/// faster (docs/performance.md). Between two ranks few blocks with much under way are faster than
/// many.
pub fn line_rings(nranks: u32) -> (u32, u32) {
    match nranks {
        0..=1 => (0, 0),
        2 => (16, abi::LINE_CHANNELS as u32 / 2),
        3..=4 => (4, 2 * abi::SECOND_LINES as u32),
        _ => (2, 2 * abi::SECOND_LINES as u32),
    }
}

/// Returns the slots of a channel of chunks on an edge, and the channels that have slots. With more
/// peers, a warp takes longer from one chunk for a peer to the next one.
pub fn chunk_rings(nranks: u32) -> (u32, u32) {
    match nranks {
        0..=1 => (0, 0),
        2 => (abi::CHUNK_SLOTS as u32, (abi::CHUNK_BLOCKS * (abi::LINE_WARPS / 2)) as u32),
        3..=4 => (4, abi::CHUNK_CHANNELS as u32),
        _ => (2, abi::CHUNK_CHANNELS as u32),
    }
}

/// Returns the number of packets, per rank and half, that a channel has room for behind the large
/// stage.
fn large_packets(nranks: u32) -> u32 {
    let packet = 2 * abi::PACKET_DATA_BYTES as u32;
    abi::LARGE_PACKETS_BYTES as u32 / (packet * 2 * abi::MAX_CHANNELS as u32 * nranks)
}

/// The parts of a rank's private memory: the counters of the channels, those of the lanes with all
/// ranks of the communicator and a switch, those of lines with the ranks of its host,
/// [`abi::Shared`], [`abi::Maps`] and, where there are other hosts, an [`abi::Peer`] for each lane,
/// and scratch memory.
pub struct Private {
    /// The number of lanes.
    pub lanes: usize,
    /// The offset of the counters of lanes.
    pub lanes_at: u64,
    /// The offset of the counters of lines.
    pub line_counters_at: u64,
    /// The offset of [`abi::Shared`].
    pub common_at: u64,
    /// The offset of [`abi::Maps`].
    pub maps_at: u64,
    /// The offset of the [`abi::Peer`]s.
    pub peers_at: u64,
    /// The offset of scratch memory.
    pub scratch_at: u64,
    /// Bytes of the whole.
    pub bytes: u64,
}

impl Private {
    /// Returns the layout in a communicator with lanes to so many peers, itself and a switch among
    /// them; `local` of its ranks are on this host. [`SCRATCH_SLOTS`] times `scratch_bytes` of
    /// scratch memory are for each peer and lane, 0 if there are no other hosts.
    pub fn new(peers: u32, local: u32, scratch_bytes: usize) -> Self {
        let n = peers as usize;
        let lanes = 2 * n * abi::LANES;
        let lanes_at = (abi::MAX_CHANNELS * size_of::<abi::Counters>()) as u64;
        let line_counters_at = lanes_at + (lanes * size_of::<abi::LaneCounters>()) as u64;
        let lines = (local * line_rings(local).1) as usize * size_of::<abi::LineCounters>();
        let common_at = line_counters_at + lines as u64;
        let maps_at = common_at + size_of::<abi::Shared>() as u64;
        let peers_at = maps_at + size_of::<abi::Maps>() as u64;
        let peers = if scratch_bytes > 0 { n * abi::LANES * size_of::<abi::Peer>() } else { 0 };
        let scratch_at = (peers_at + peers as u64).next_multiple_of(16);
        let bytes = scratch_at + (n * SCRATCH_SLOTS * abi::LANES * scratch_bytes) as u64;
        Self { lanes, lanes_at, line_counters_at, common_at, maps_at, peers_at, scratch_at, bytes }
    }
}

/// Returns a rank as kernels see it, at its place among so many ranks of a host; its own memory is
/// at `private`. The rest depends on the peers.
pub fn view(
    (place, nranks): (u32, u32),
    layout: &Layout,
    (private, parts): (u64, &Private),
) -> abi::Rank {
    let (line_slots, line_channels) = line_rings(nranks);
    let (chunk_slots, _) = chunk_rings(nranks);
    let chunks = Chunks::new(nranks);
    abi::Rank {
        rank: place,
        nranks,
        lanes: abi::LANES as u32,
        net_lanes: 0,
        line_slots,
        line_lanes: 1,
        line_channels,
        chunk_slots,
        large_packets: large_packets(nranks),
        unused: 0,
        shared: [0; abi::MAX_RANKS],
        packets_at: layout.packets_at,
        lanes_at: layout.lanes_at,
        stage_at: layout.stage_at,
        lines_at: layout.lines_at,
        line_credits_at: layout.line_credits_at,
        chunks: [0; abi::MAX_RANKS],
        chunk_credits_at: chunks.credits_at,
        chunk_counters_at: chunks.counters_at,
        chunk_slots_at: if nranks > 1 { chunks.slots_at } else { 0 },
        line_counters: private + parts.line_counters_at,
        counters: private,
        common: private + parts.common_at,
        control: 0,
        maps: private + parts.maps_at,
        peers: 0,
        scratch: 0,
    }
}

/// A rank in the making: its number, and who of the communicator is on its host.
#[derive(Clone, Copy)]
pub struct Membership<'a> {
    /// The number of the rank.
    pub rank: u32,
    /// The places of the ranks of this host among these, by rank; `None` for ranks of others.
    pub local: &'a [Option<usize>],
}

impl Membership<'_> {
    /// Returns the ranks of this host, by place.
    pub fn ranks(&self) -> Vec<u32> {
        (0u32..).zip(self.local).filter_map(|(rank, place)| place.map(|_| rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::sharing::mapper;

    #[test]
    fn four_ranks_take_less_than_four_megabytes_each_and_sixteen_with_large_operations() {
        for lines in [false, true] {
            let bytes = Layout::new(4, lines).bytes + Private::new(4, 4, 0).bytes;
            // What the host holds for its part counts as well.
            assert!(bytes + (32 << 10) <= 4 << 20, "{bytes}");
            let later = if lines { Chunks::new(4).bytes } else { mapper::STAGE_BYTES as u64 };
            assert!(bytes + later <= 16 << 20, "{bytes} {later}");
        }
    }

    #[test]
    fn parts_are_aligned_and_follow_each_other() {
        for nranks in 1..=abi::MAX_RANKS as u32 {
            let layout = Layout::new(nranks, nranks % 2 == 0);
            let Layout { packets_at, lanes_at, stage_at, line_credits_at, lines_at, bytes } =
                layout;
            let packets = [0, line_credits_at, packets_at, lanes_at, stage_at, bytes];
            let lines = [line_credits_at, lines_at, bytes];
            let Chunks { credits_at, counters_at, slots_at, bytes } = Chunks::new(nranks.max(2));
            let chunks = [0, credits_at, counters_at, slots_at, bytes];
            for places in [&packets[..], &lines, &chunks] {
                let aligned = places.iter().all(|at| at.is_multiple_of(128));
                assert!(places.is_sorted() && aligned, "{nranks} {places:?}");
            }
        }
    }
}
