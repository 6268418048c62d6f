//! Launching collectives over lines and chunks.

use crate::device::cuda::driver::library::{CLUSTER_BLOCKS, Kernels};
use crate::device::cuda::layout::{chunk_rings, line_rings};
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::run::launch::{Launch, align_elems};
use crate::error::{Error, Result};
use crate::op::descriptor::{GOLDEN, mix};
use crate::op::{Bound, Call, Programs};
use oxccl_kernels::abi;
use oxccl_plan::lines::{Middle, Phases, is_chain, results_apart};
use oxccl_plan::{Buffer, Collective, Geometry, Op, Plan, Slice};
use std::sync::Arc;

/// The longest slices, in bytes, that travel in packets, in packets of which a warp has those of
/// all peers, and in lines; larger ones travel in chunks.
type Limits = [u64; 3];
/// Between two ranks, where both kinds of packets are the same (measured on two H100,
/// docs/performance.md).
const OF_TWO: Limits = [32 << 10, 32 << 10, 8 << 20];
/// Among more ranks (measured on four H200 and H100, docs/performance.md): of what is only moved,
const OF_MOVED: Limits = [128 << 10, 128 << 10, 2 << 20];
/// of what is moved and passed on,
const OF_PASSED_ON: Limits = [128 << 10, 128 << 10, 1 << 20];
/// of what one rank folds,
const OF_REDUCE: Limits = [128 << 10, 128 << 10, 2 << 20];
/// of what each rank folds,
const OF_REDUCE_SCATTER: Limits = [32 << 10, 128 << 10, 2 << 20];
/// and of what is folded and passed on.
const OF_FOLDED_AND_PASSED_ON: Limits = [64 << 10, 128 << 10, 1 << 20];
/// The longest message, in bytes, that travels in packets: between two ranks, and among more, whose
/// edges have few slots (measured on two H100 with two and four ranks).
const MESSAGE_PACKETS_BYTES: [u64; 2] = [128 << 10, 64 << 10];
/// The least slots of a slice for each thread block, so that small calls take few blocks.
const BLOCK_SLOTS: u64 = 4;

/// The longest message, in bytes, that travels in lines: between two ranks, among three or four,
/// and among more, whose edges have room for too few lines to fill a link (measured on two H100 and
/// four H200, docs/performance.md; not among more).
fn message_lines_bytes(nranks: u32) -> u64 {
    match nranks {
        0..=2 => 8 << 20,
        3..=4 => 32 << 20,
        _ => 512 << 10,
    }
}

/// The thread blocks that carry large slices between two ranks where not both fold: as many as fill
/// the link.
const FEW_BLOCKS: usize = 16;
/// The bytes above which so few carry lines, whatever is done with them.
const FEW_BLOCKS_BYTES: u64 = 4 << 20;
/// The least bytes of a slice for which thread blocks are in clusters, if it travels in lines:
/// below, blocks in clusters begin later than they gain (measured on two and four H100).
const CLUSTERED_LINES_BYTES: u64 = 1 << 20;
/// Bytes of a slice of a rank's own for each thread block that copies it.
const COPY_BYTES: u64 = 64 << 10;
/// The longest slices in chunks that all thread blocks of a gather among more than two ranks carry
/// (four H100: with all 32, 8 MiB take 20 to 22 µs and 128 MiB 305; with 24, 25 and 289).
const GATHERED_BY_ALL_BYTES: u64 = 2 << 20;
/// The longest slices that all of few thread blocks carry.
const CARRIED_BY_ALL_BYTES: u64 = 256 << 10;
/// The most thread blocks that do nothing but copy.
const COPY_BLOCKS: u64 = 8;
/// The thread blocks that keep up with the chunks of an all-gather.
const LEAST_COPY_BLOCKS: u64 = 6;

/// Launches a collective over lines.
pub fn collective(
    cuda_rank: &Arc<CudaRank>,
    call: abi::Collective,
    (programs, of_user): (&Programs, &Call),
    launch: &Launch<'_>,
) -> Result<()> {
    let Bound { plan, phases, .. } = &programs.any;
    let unfit = || Error::Internal { what: format!("lines carry no {}", plan.algorithm.name()) };
    let phases = phases.as_ref().ok_or_else(unfit)?;
    let (two, bytes) = (plan.spec.nranks == 2, longest(plan, of_user));
    let unit = Unit::of(plan, bytes);
    let functions = cuda_rank.functions;
    let dtype = of_user.dtype as usize;
    let folds = plan.spec.collective.reduces();
    let of_kind = |kernels: &Kernels| kernels.of(folds, dtype);
    let function = match (unit, two) {
        _ if is_chain(plan) => functions.chain[dtype],
        (Unit::Packets, true) => of_kind(&functions.packets_two),
        (_, true) => of_kind(&functions.lines_two),
        (Unit::Packets, false) => of_kind(&functions.more_packets),
        (Unit::MediumPackets, false) => functions.medium_packets[dtype],
        (Unit::Lines, false) => of_kind(&functions.more_lines),
        (Unit::Chunks, false) => of_kind(&functions.more_chunks),
    };
    let roles = roles(plan, unit);
    let clusters = gains_by_clusters(unit, bytes);
    let most_blocks = whole_clusters(u64::from(programs.blocks(cuda_rank.channels)), clusters);
    let shape = Shape::of(plan, unit, bytes, most_blocks);
    let argument = argument(call, phases, plan, of_user, (&shape, roles));
    let step = if clusters { u64::from(CLUSTER_BLOCKS) } else { 1 };
    let copiers = copiers(copied_bytes(&argument), most_blocks - shape.blocks, step);
    let blocks = shape.blocks + copiers;
    let clusters = clusters && blocks.is_multiple_of(step) && cuda_rank.has_room_for_clusters();
    let function = if clusters { function.clustered() } else { function };
    let shape = (blocks as u32, (shape.channels * roles + 1) as u32 * 32);
    // SAFETY: the kernel takes this structure; what it points to is the communicator's, or the
    // user's by the contract of the call.
    cuda_rank.launch(launch.stream, || unsafe { launch.kernel(function, shape, &argument) })
}

/// The kinds of units into which the slices of a call are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Slots of packets; among more than two ranks with a warp for each edge.
    Packets,
    /// Slots of packets, of which a warp has those of all peers.
    MediumPackets,
    /// Slots of lines.
    Lines,
    /// Chunks.
    Chunks,
}

impl Unit {
    /// Returns the unit for slices of so many bytes.
    pub fn of(plan: &Plan, bytes: u64) -> Self {
        if is_chain(plan) {
            return Unit::Chunks;
        }
        let collective = plan.spec.collective;
        let [packets, medium, lines] = match (collective.reduces(), results_apart(plan)) {
            _ if plan.spec.nranks == 2 => OF_TWO,
            (false, false) => OF_MOVED,
            (false, true) => OF_PASSED_ON,
            (true, false) if collective == Collective::Reduce => OF_REDUCE,
            (true, false) => OF_REDUCE_SCATTER,
            (true, true) => OF_FOLDED_AND_PASSED_ON,
        };
        let fits = roles(plan, Unit::Packets) <= abi::LINE_WARPS as u64;
        if bytes <= packets && fits {
            Unit::Packets
        } else if bytes <= medium && collective.reduces() {
            Unit::MediumPackets
        } else if bytes <= lines {
            Unit::Lines
        } else {
            Unit::Chunks
        }
    }
}

/// Returns the warps that a channel has: one puts, one folds or takes, and one takes what is passed
/// on. In packets, among more than two ranks, as many as the rank needs that needs most, with one
/// for each edge and direction, and one that folds or passes on. In rooted collectives in one shot,
/// among more than two ranks, each rank has only one of these roles; the root of a gather in chunks
/// has a warp for each edge.
pub fn roles(plan: &Plan, unit: Unit) -> u64 {
    let (others, apart) = (u64::from(plan.spec.nranks) - 1, results_apart(plan));
    let least = match apart {
        true => 3,
        false if unit == Unit::Chunks && plan.spec.collective == Collective::Gather => {
            others.clamp(2, abi::LINE_WARPS as u64)
        }
        false if plan.spec.collective.rooted() && others > 1 && unit != Unit::Chunks => 1,
        false => 2,
    };
    if is_chain(plan) {
        return 1;
    }
    if others == 1 || unit != Unit::Packets {
        return least;
    }
    let needed = match plan.spec.collective {
        Collective::AllReduce if apart => 2 * others + 1,
        Collective::Reduce if apart => 2 * others,
        Collective::Reduce => 1,
        Collective::AllReduce | Collective::ReduceScatter => others + 1,
        Collective::AllGather | Collective::AllToAll => 2 * others,
        Collective::Broadcast | Collective::Gather | Collective::Scatter => others,
    };
    needed.max(least)
}

/// Returns the channels of a thread block with so many warps each: as many as it has warps for, and
/// as have memory.
pub fn channels(plan: &Plan, roles: u64) -> u64 {
    let warps = abi::LINE_WARPS as u64 / roles;
    if is_chain(plan) {
        return warps;
    }
    let sets = if results_apart(plan) { 2 } else { 1 };
    let has = u64::from(line_rings(plan.spec.nranks).1) / sets / abi::MAX_CHANNELS as u64;
    warps.min(has)
}

/// Returns the factor by which kernels divide by so many warps (`LineProgram::roles_inverse`).
fn roles_inverse(roles: u32) -> u32 {
    (1u32 << 16).div_ceil(roles)
}

/// Returns the most thread blocks, of `most`, that carry slices of so many bytes in lines: where a
/// rank may have to copy its own block, some are left for that. Of few blocks, those of a second
/// communicator, all carry small slices: a rank that has nothing to copy would wait longer than the
/// others gain (measured on two H100).
fn line_blocks(two: bool, folds: bool, bytes: u64, most: u64) -> u64 {
    let few = FEW_BLOCKS as u64;
    let wanted = match two {
        true if bytes > FEW_BLOCKS_BYTES => few,
        true if !folds && (most == abi::MAX_CHANNELS as u64 || bytes > CARRIED_BY_ALL_BYTES) => {
            most.saturating_sub(COPY_BLOCKS).max(few)
        }
        _ => most,
    };
    wanted.min(most)
}

/// Returns the most thread blocks that carry slices of so many bytes in chunks: as many as fill the
/// links.
pub fn chunk_blocks(plan: &Plan, bytes: u64) -> u64 {
    let blocks = match (plan.spec.nranks > 2, plan.spec.collective) {
        _ if is_chain(plan) => abi::CHUNK_CHANNELS / abi::LINE_WARPS,
        // Above that others copy the root's own slice meanwhile.
        (true, Collective::Gather) if bytes <= GATHERED_BY_ALL_BYTES => abi::MAX_CHANNELS,
        (true, _) => abi::MORE_CHUNK_BLOCKS,
        (false, Collective::AllReduce | Collective::ReduceScatter) => abi::CHUNK_BLOCKS,
        (false, _) => FEW_BLOCKS,
    };
    blocks as u64
}

/// Returns whether slices of so many bytes are carried sooner by thread blocks in clusters.
pub fn gains_by_clusters(unit: Unit, bytes: u64) -> bool {
    match unit {
        Unit::Packets | Unit::MediumPackets => false,
        Unit::Lines => bytes >= CLUSTERED_LINES_BYTES,
        Unit::Chunks => true,
    }
}

/// Returns the most thread blocks of a launch, of so many that there may be: where they are in
/// clusters, as many as make up whole ones. All ranks find the same number, also those of them that
/// have no room for clusters.
pub fn whole_clusters(most: u64, clusters: bool) -> u64 {
    let step = u64::from(CLUSTER_BLOCKS);
    if clusters && most >= step { most / step * step } else { most }
}

/// Returns the thread blocks that do nothing but copy so many bytes, a multiple of `step`, of those
/// that are free. None where they are too few to keep up with the others, which copy after their
/// own part then.
fn copiers(bytes: u64, free: u64, step: u64) -> u64 {
    let wanted = bytes.div_ceil(COPY_BYTES).min(COPY_BLOCKS).next_multiple_of(step);
    let free = free / step * step;
    if free < wanted.min(LEAST_COPY_BLOCKS) { 0 } else { wanted.min(free) }
}

/// Returns the bytes that a rank copies of its own input to its output.
fn copied_bytes(program: &abi::LineProgram) -> u64 {
    let (from, to) = (program.call.input.wrapping_add(program.copy_from), program.copy_to);
    let copies = to != abi::NO_SLICE && from != program.call.output.wrapping_add(to);
    if copies { program.copy_bytes } else { 0 }
}

/// Returns the cut of a call, in one window.
fn geometry(plan: &Plan, call: &Call) -> Geometry {
    let (parts, align_elems) = (plan.layout.parts, align_elems(call));
    Geometry::of_windows(call.count, parts, call.count.max(1), align_elems)
}

/// Returns the bytes of the longest slice of a call.
pub fn longest(plan: &Plan, call: &Call) -> u64 {
    geometry(plan, call).range(0, 0, 1).1 * call.dtype.size() as u64
}

/// How a call is spread over warps: facts that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Thread blocks that carry units.
    pub blocks: u64,
    /// Channels of a block.
    pub channels: u64,
    /// Slots of lines in a unit; 0 if units are chunks, or [`abi::SLOT_OF_PACKETS`].
    pub slots: u32,
    /// Units of the longest slice.
    pub units: u64,
}

impl Shape {
    /// Returns the number of channels after which those of results begin.
    fn second(&self) -> u32 {
        if self.slots == 0 { abi::SECOND_CHUNKS as u32 } else { abi::SECOND_LINES as u32 }
    }

    /// Spreads slices of so many bytes over at most so many blocks, in units of a kind.
    pub fn of(plan: &Plan, unit: Unit, bytes: u64, most_blocks: u64) -> Self {
        let (two, folds) = (plan.spec.nranks == 2, plan.spec.collective.reduces());
        let channels = channels(plan, roles(plan, unit));
        match unit {
            Unit::Packets | Unit::MediumPackets => Self::of_packets(bytes, (most_blocks, channels)),
            Unit::Lines => {
                let blocks = line_blocks(two, folds, bytes, most_blocks);
                let most = if two { abi::MESSAGE_SLOTS as u64 } else { 1 };
                Self::of_lines(bytes, (blocks, channels), most)
            }
            Unit::Chunks => {
                let blocks = chunk_blocks(plan, bytes).min(most_blocks);
                Self::of_chunks(bytes, (blocks, channels))
            }
        }
    }

    /// Spreads a slice of so many bytes over at most so many blocks with at most so many channels
    /// each, in units of at most `most` slots.
    fn of_lines(bytes: u64, limits: (u64, u64), most: u64) -> Self {
        let slots = bytes.div_ceil(abi::UNIT_DATA_BYTES as u64);
        let (blocks, channels) = spread_slots(slots, limits);
        let each = unit_slots(slots, blocks * channels, most);
        Self { blocks, channels, slots: each as u32, units: slots.div_ceil(each) }
    }

    /// Spreads a small slice of so many bytes, as [`of_lines`](Self::of_lines), in packets.
    fn of_packets(bytes: u64, limits: (u64, u64)) -> Self {
        let units = bytes.div_ceil(abi::SLOT_DATA_BYTES as u64);
        let (blocks, channels) = spread_slots(units, limits);
        Self { blocks, channels, slots: abi::SLOT_OF_PACKETS, units }
    }

    /// Spreads a large slice of so many bytes in chunks.
    fn of_chunks(bytes: u64, (blocks, channels): (u64, u64)) -> Self {
        Self { blocks, channels, slots: 0, units: bytes.div_ceil(abi::CHUNK_BYTES as u64) }
    }
}

/// Returns the blocks, and the channels of each, over which so many slots are spread.
fn spread_slots(slots: u64, (blocks, channels): (u64, u64)) -> (u64, u64) {
    let blocks = slots.div_ceil(BLOCK_SLOTS.min(channels)).clamp(1, blocks);
    (blocks, slots.div_ceil(blocks).clamp(1, channels))
}

/// The bit of digests that tells messages from collectives.
const MESSAGE: u32 = 1 << 31;

/// Returns a digest of the words of a descriptor.
fn digest((what, count): (u32, u64)) -> u32 {
    (mix(count.wrapping_mul(GOLDEN) ^ u64::from(what)) >> 32) as u32
}

/// Returns the digest of a message, which differs from that of a header.
pub fn message_digest(what: u32, bytes: u64) -> u32 {
    (digest((what, bytes)) & !MESSAGE).max(1) | MESSAGE
}

/// The least slots of a message for each warp of a lane, so that small messages take few lanes:
/// between two ranks, and among more. There an edge has few slots, and a warp whose next slot waits
/// for the receiver ends late (measured with two slots).
const LANE_WARP_SLOTS: [u64; 2] = [2, 1];
/// Above so many bytes all lanes have work anyway, and each warp gets the first number.
const FULL_LANES_BYTES: u64 = 128 << 10;

/// Spreads a message of so many bytes over lanes, the same at both of its ends; returns the number
/// of lanes, and the slots of lines in a unit as in [`abi::Message`].
pub fn spread_message(bytes: u64, view: &abi::Rank) -> (u32, u32) {
    let more = usize::from(view.nranks > 2);
    if view.chunk_slots_at != 0 && bytes > message_lines_bytes(view.nranks) {
        let lanes = chunk_rings(view.nranks).1 / abi::MESSAGE_WARPS as u32;
        return (view.line_lanes.min(lanes), 0);
    }
    let packets = bytes <= MESSAGE_PACKETS_BYTES[more];
    let data_bytes = if packets { abi::SLOT_DATA_BYTES } else { abi::UNIT_DATA_BYTES };
    let (slots, warps) = (bytes.div_ceil(data_bytes as u64), abi::MESSAGE_WARPS as u64);
    let each = LANE_WARP_SLOTS[if bytes > FULL_LANES_BYTES { 0 } else { more }];
    let lanes = slots.div_ceil(warps * each).clamp(1, u64::from(view.line_lanes));
    if packets {
        return (lanes as u32, abi::SLOT_OF_PACKETS);
    }
    // The header of a message is given back with its first unit: an edge has room for both.
    let most = (abi::MESSAGE_SLOTS as u64).min(u64::from(view.line_slots / 2));
    (lanes as u32, unit_slots(slots, lanes * warps, most) as u32)
}

/// Returns the slots of a unit, at most `most`, for so many slots on so many channels: small units
/// arrive sooner, large ones take fewer instructions. Kernels have code for units of 1, 2 and 4.
fn unit_slots(slots: u64, channels: u64, most: u64) -> u64 {
    let each = slots.div_ceil(channels);
    let wanted = if each <= 2 {
        1
    } else if each <= 8 {
        2
    } else {
        4
    };
    wanted.min(most)
}

/// The offset of a slice in its buffer, and its length, in bytes.
type Place = (u64, u64);

/// The slices of a program, as places in the user's buffers.
struct Places {
    /// The slices that are exchanged, by rank.
    peers: [abi::LinePeer; abi::MAX_RANKS],
    /// The slice that is copied, and the offset to which.
    copy: Option<(Place, u64)>,
    /// The operand of this rank in the middle phase; without a fold, the result.
    middle: Option<Place>,
    /// The offset of the result of the middle phase in the output; `None` if it is not kept.
    result: Option<u64>,
}

/// Returns the places of the slices of a program.
fn places(phases: &Phases, plan: &Plan, call: &Call) -> Places {
    let (geometry, size) = (geometry(plan, call), call.dtype.size() as u64);
    let place = |slice: Slice| {
        let (offset, elems) = geometry.range(0, slice.part, slice.parts);
        ((u64::from(slice.block) * call.count + offset) * size, elems * size)
    };
    let none = abi::LinePeer {
        put_at: abi::NO_SLICE,
        put_bytes: 0,
        take_at: abi::NO_SLICE,
        take_bytes: 0,
    };
    let mut peers = [none; abi::MAX_RANKS];
    for (peer, slice) in &phases.puts {
        let with = &mut peers[*peer as usize];
        (with.put_at, with.put_bytes) = place(*slice);
    }
    for (peer, slice) in &phases.takes {
        let with = &mut peers[*peer as usize];
        (with.take_at, with.take_bytes) = place(*slice);
    }
    Places {
        peers,
        copy: phases.copies.first().map(|(from, to)| (place(*from), place(*to).0)),
        middle: phases.middle.as_ref().map(|middle| match middle.fold {
            Some(Op::Fold { own, .. } | Op::RecvReduce { local: own, .. }) => place(own),
            _ => place(middle.result),
        }),
        result: phases
            .middle
            .as_ref()
            .filter(|middle| middle.result.buffer == Buffer::Output)
            .map(|middle| place(middle.result).0),
    }
}

/// Returns the argument of the kernel.
pub fn argument(
    call: abi::Collective,
    phases: &Phases,
    plan: &Plan,
    of_user: &Call,
    (shape, roles): (&Shape, u64),
) -> abi::LineProgram {
    let Places { peers, copy, middle, result } = places(phases, plan, of_user);
    let (from, copy_to) = copy.unwrap_or(((abi::NO_SLICE, 0), abi::NO_SLICE));
    let (own_at, middle_bytes) = middle.unwrap_or((abi::NO_SLICE, 0));
    let mut argument = abi::LineProgram {
        call,
        units: shape.units,
        slots: shape.slots,
        blocks: shape.blocks as u32,
        overlaps: 0,
        puts: set_of(phases.puts.iter().map(|(peer, _)| *peer)),
        middle_from: 0,
        middle_to: 0,
        takes: set_of(phases.takes.iter().map(|(peer, _)| *peer)),
        second: if results_apart(plan) { shape.second() } else { 0 },
        roles: roles as u32,
        finish: 0,
        digest: digest((call.descriptor_what, call.descriptor_count)) & !MESSAGE,
        roles_inverse: roles_inverse(roles as u32),
        own_at,
        middle_bytes,
        result_at: result.unwrap_or(abi::NO_SLICE),
        copy_from: from.0,
        copy_to,
        copy_bytes: from.1,
        flow: abi::LineFlow::default(),
        peers,
    };
    if let Some(Middle { from, fold, to, .. }) = &phases.middle {
        argument.middle_from = set_of(from.iter().map(|(peer, _)| *peer));
        argument.middle_to = set_of(to.iter().copied());
        let finishes = |op: &Op| {
            matches!(op, Op::Fold { finish: true, .. } | Op::RecvReduce { finish: true, .. })
        };
        argument.finish = u32::from(fold.as_ref().is_some_and(finishes));
    }
    if plan.spec.nranks == 2 {
        argument.flow = flow(&argument, plan.spec.collective.reduces());
        argument.overlaps = u32::from(overlaps(&argument.flow));
    } else if is_chain(plan) {
        argument.flow = chain_flow(&argument);
    } else if !results_apart(plan) {
        // What is passed on was read before: the ranks that pass it on have it.
        argument.overlaps = u32::from(writes_what_it_reads(&argument));
    }
    argument
}

/// Returns a set of ranks with a bit for each.
fn set_of(ranks: impl Iterator<Item = u32>) -> u32 {
    ranks.fold(0, |all, rank| all | 1 << rank)
}

/// Returns whether a rank of more than two stores something over what it puts.
fn writes_what_it_reads(program: &abi::LineProgram) -> bool {
    let abi::Collective { input, output, .. } = program.call;
    let put = |peer: &abi::LinePeer| (input.wrapping_add(peer.put_at), peer.put_bytes);
    let taken = |peer: &abi::LinePeer| (output.wrapping_add(peer.take_at), peer.take_bytes);
    let is_there = |at: u64| at != abi::NO_SLICE;
    let result = (output.wrapping_add(program.result_at), program.middle_bytes);
    let puts = || program.peers.iter().filter(|peer| is_there(peer.put_at)).map(put);
    let takes = program.peers.iter().filter(|peer| is_there(peer.take_at)).map(taken);
    let mut stored = takes.chain(is_there(program.result_at).then_some(result));
    stored.any(|to| puts().any(|from| share_bytes(from, to)))
}

/// Returns what a rank of two exchanges with the other one.
fn flow(program: &abi::LineProgram, folds: bool) -> abi::LineFlow {
    let abi::Collective { rank, input, output, .. } = program.call;
    let abi::LinePeer { put_at, put_bytes, take_at, take_bytes } =
        program.peers[1 - rank.rank as usize];
    let mut flow = abi::LineFlow::default();
    if put_at != abi::NO_SLICE {
        (flow.put, flow.put_bytes) = (input.wrapping_add(put_at), put_bytes);
    }
    if folds && program.middle_from != 0 {
        (flow.to, flow.to_bytes) = (output.wrapping_add(program.result_at), program.middle_bytes);
        flow.own = input.wrapping_add(program.own_at);
    } else if !folds && take_at != abi::NO_SLICE {
        (flow.to, flow.to_bytes) = (output.wrapping_add(take_at), take_bytes);
    }
    flow
}

/// Returns the operand of a rank of a chain, and the place of the result if it is the last one.
fn chain_flow(program: &abi::LineProgram) -> abi::LineFlow {
    let abi::Collective { input, output, .. } = program.call;
    let begins = program.peers.get(program.puts.trailing_zeros() as usize);
    let (own_at, to_bytes) = match begins {
        Some(next) => (next.put_at, next.put_bytes),
        None => (program.own_at, program.middle_bytes),
    };
    let is_kept = program.result_at != abi::NO_SLICE;
    let to = if is_kept { output.wrapping_add(program.result_at) } else { 0 };
    abi::LineFlow { own: input.wrapping_add(own_at), to, to_bytes, ..Default::default() }
}

/// Returns whether what comes is stored over what is put.
fn overlaps(flow: &abi::LineFlow) -> bool {
    share_bytes((flow.put, flow.put_bytes), (flow.to, flow.to_bytes))
}

/// Returns whether two stretches of memory, as (address, bytes), share a byte.
fn share_bytes(one: (u64, u64), other: (u64, u64)) -> bool {
    let end = |(at, bytes): (u64, u64)| at.wrapping_add(bytes);
    one.0 < end(other) && other.0 < end(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::layout::{Layout, Private, line_rings, view};
    use oxccl_plan::lines::carry_plan;
    use oxccl_plan::{DataType, ReduceOp, Spec};

    #[test]
    fn units_cover_all_that_is_exchanged_and_slices_lie_within_the_buffers() {
        for (nranks, count) in (2..=9).flat_map(|n| [1, 7, 8, 1000, 4801].map(|c| (n, c))) {
            let roots = 0..nranks;
            let specs = roots.flat_map(|root| {
                Collective::ALL.map(|collective| Spec::new(collective, nranks, root))
            });
            for plan in specs.flat_map(Plan::candidates).filter(carry_plan) {
                let of_user = Call {
                    spec: plan.spec,
                    input: std::ptr::null(),
                    output: std::ptr::null_mut(),
                    count,
                    dtype: DataType::Float32,
                    op: ReduceOp::Sum,
                    scale: None,
                };
                let (longest, block) = (longest(&plan, &of_user), count * 4);
                for rank in 0..nranks {
                    let program = plan.program(rank);
                    let phases = Phases::of(&program.ops).expect("phases");
                    let Places { peers, copy, middle, result } = places(&phases, &plan, &of_user);
                    let puts = peers.iter().map(|with| (with.put_at, with.put_bytes));
                    let takes = peers.iter().map(|with| (with.take_at, with.take_bytes));
                    let is_there = |(at, _): &Place| *at != abi::NO_SLICE;
                    let of_result = |(at, (_, bytes)): (u64, Place)| at + bytes;
                    assert!(result.zip(middle).is_none_or(
                        |r| of_result(r) <= block * u64::from(plan.spec.output_blocks(rank))
                    ));
                    let input = block * u64::from(plan.spec.input_blocks(rank));
                    let output = block * u64::from(plan.spec.output_blocks(rank));
                    let fits = |(at, bytes): (u64, u64), of: u64| at + bytes <= of;
                    let fit = |p: Place, of| fits(p, of) && p.1 <= longest;
                    assert!(puts.filter(is_there).all(|p| fit(p, input)));
                    assert!(takes.filter(is_there).all(|p| fit(p, output)));
                    if let Some((from, to)) = copy {
                        assert!(fits(from, input) && fits((to, from.1), output), "{plan:?}");
                    }
                    assert!(middle.is_none_or(|(_, bytes)| bytes <= longest), "{plan:?}");
                }
            }
        }
    }

    #[test]
    fn chunks_cover_a_slice_and_every_warp_has_a_channel() {
        for bytes in [OF_TWO[2] + 1, 100 << 20, (1 << 40) + 13] {
            let Shape { units, .. } = Shape::of_chunks(bytes, (16, 7));
            let chunk = abi::CHUNK_BYTES as u64;
            assert!(units * chunk >= bytes && (units - 1) * chunk < bytes);
        }
        let specs = (2..=16).flat_map(|n| Collective::ALL.map(|c| Spec::new(c, n, 0)));
        for plan in specs.flat_map(Plan::candidates).filter(carry_plan) {
            let sets = if results_apart(&plan) && !is_chain(&plan) { 2 } else { 1 };
            let warps = roles(&plan, Unit::Chunks);
            let channels = chunk_blocks(&plan, 0) * (abi::LINE_WARPS as u64 / warps);
            assert!(sets * channels <= u64::from(chunk_rings(plan.spec.nranks).1), "{plan:?}");
            assert!(sets == 1 || channels <= abi::SECOND_CHUNKS as u64, "{plan:?}");
        }
    }

    #[test]
    fn there_is_memory_for_all_channels_of_lines() {
        let specs = (2..=16).flat_map(|n| Collective::ALL.map(|c| Spec::new(c, n, 0)));
        for plan in specs.flat_map(Plan::candidates).filter(|p| carry_plan(p) && !is_chain(p)) {
            let has = u64::from(line_rings(plan.spec.nranks).1);
            for unit in [Unit::Packets, Unit::MediumPackets, Unit::Lines] {
                let roles = roles(&plan, unit).min(abi::LINE_WARPS as u64);
                let sets = if results_apart(&plan) { 2 } else { 1 };
                let (warps, channels) = (abi::LINE_WARPS as u64 / roles, channels(&plan, roles));
                // There are more warps than memory only where each has a channel.
                assert!(channels == warps || roles == 1, "{plan:?} {unit:?}");
                let channels = abi::MAX_CHANNELS as u64 * channels;
                assert!(sets * channels <= has, "{plan:?} {unit:?}");
                assert!(sets == 1 || channels <= abi::SECOND_LINES as u64, "{plan:?} {unit:?}");
            }
        }
    }

    /// A peer folds, passes on or takes on the same channels all that a rank puts, and takes on
    /// those of results all that the rank passes on.
    #[test]
    fn both_ends_of_an_edge_use_the_same_channels() {
        let specs = (3..=9).flat_map(|n| {
            (0..n).flat_map(move |root| Collective::ALL.map(|c| Spec::new(c, n, root)))
        });
        for plan in specs.flat_map(Plan::candidates).filter(carry_plan) {
            let of_rank = |rank| Phases::of(&plan.program(rank).ops).expect("phases");
            let all: Vec<_> = (0..plan.spec.nranks).map(of_rank).collect();
            let has = |list: &[(u32, Slice)], rank: u32| {
                list.iter().filter(|(peer, _)| *peer == rank).count()
            };
            for (from, sender) in (0..).zip(&all) {
                for (to, receiver) in (0..).zip(&all) {
                    let middle = receiver.middle.as_ref().map_or(0, |m| has(&m.from, from));
                    let result = |m: &Middle| m.to.iter().filter(|peer| **peer == to).count();
                    let passed = sender.middle.as_ref().map_or(0, result);
                    let taken = has(&receiver.takes, from);
                    let put = has(&sender.puts, to);
                    let (found, expected) = match results_apart(&plan) {
                        true => ((put, passed), (middle, taken)),
                        false => ((put + passed, 0), (middle + taken, 0)),
                    };
                    assert_eq!(found, expected, "{plan:?} {from} {to}");
                    assert!(expected.0 <= 1 && expected.1 <= 1, "{plan:?} {from} {to}");
                }
            }
        }
    }

    #[test]
    fn a_channel_of_packets_has_the_warps_of_the_rank_that_needs_most() {
        let specs = (3..=9).flat_map(|n| Collective::ALL.map(|c| Spec::new(c, n, n - 1)));
        for plan in specs.flat_map(Plan::candidates).filter(|p| carry_plan(p) && !is_chain(p)) {
            let of_rank = |rank| Phases::of(&plan.program(rank).ops).expect("phases");
            let needed = (0..plan.spec.nranks).map(of_rank).map(|phases| {
                phases.puts.len() + usize::from(phases.middle.is_some()) + phases.takes.len()
            });
            let (roles, needed) = (roles(&plan, Unit::Packets), needed.max().unwrap_or(0));
            let rooted = plan.spec.collective.rooted();
            let least = if results_apart(&plan) { 3 } else { 2 - u64::from(rooted) };
            assert_eq!(roles, least.max(needed as u64), "{plan:?}");
        }
        for (roles, warps) in (1..=16u32).flat_map(|r| (0..16u32).map(move |w| (r, w))) {
            assert_eq!((warps * roles_inverse(roles)) >> 16, warps / roles);
        }
    }

    #[test]
    fn messages_have_lanes_that_there_are_and_units_that_leave_room_for_the_header() {
        let (layout, parts) = (|n| Layout::new(n, true), |n| Private::new(n, n, 0));
        let limits = [0, 1, 16 << 10, 64 << 10, FULL_LANES_BYTES, 512 << 10, 8 << 20, 32 << 20];
        for (nranks, line_lanes) in (2..=9).flat_map(|n| [1, 8, 32].map(|lanes| (n, lanes))) {
            let view = view((0, nranks), &layout(nranks), (0, &parts(nranks)));
            let view = abi::Rank { line_lanes, ..view };
            for bytes in limits.into_iter().flat_map(|at| [at, at + 1, at + 4097]) {
                let (lanes, slots) = spread_message(bytes, &view);
                assert!(
                    (1..=line_lanes).contains(&lanes),
                    "{nranks} {line_lanes} {bytes}: {lanes}"
                );
                let is_unit = [1, 2, 4].contains(&slots) && slots <= view.line_slots / 2;
                assert!(is_unit || [0, abi::SLOT_OF_PACKETS].contains(&slots), "{nranks} {bytes}");
            }
        }
    }

    #[test]
    fn blocks_in_clusters_make_up_whole_ones() {
        let most = [1, 3, 4, 17, 22, 32];
        assert_eq!(most.map(|most| whole_clusters(most, true)), [1, 3, 4, 16, 20, 32]);
        assert_eq!(most.map(|most| whole_clusters(most, false)), most);
    }

    #[test]
    fn own_slices_are_copied_by_enough_blocks_or_by_those_that_carry() {
        let carry = |most| line_blocks(true, false, 1 << 20, most);
        assert_eq!([32, 25, 24, 16, 6].map(carry), [24, 17, 16, 16, 6]);
        assert_eq!(line_blocks(true, true, 1 << 20, 25), 25);
        assert_eq!([32, 25].map(|most| line_blocks(true, false, 1 << 17, most)), [24, 25]);
        assert_eq!(copiers(0, 12, 1), 0);
        assert_eq!([0, 1, 12].map(|free| copiers(1, free, 1)), [0, 1, 1]);
        assert_eq!([0, 2, 5, 6, 7, 12].map(|free| copiers(64 << 20, free, 1)), [0, 0, 0, 6, 7, 8]);
        assert_eq!([1, 2, 3].map(|free| copiers(3 * COPY_BYTES, free, 1)), [0, 0, 3]);
        assert_eq!([3, 4, 7, 8, 12].map(|free| copiers(64 << 20, free, 4)), [0, 0, 0, 8, 8]);
        assert_eq!([3, 4, 8].map(|free| copiers(3 * COPY_BYTES, free, 4)), [0, 4, 4]);
    }

    #[test]
    fn what_comes_is_stored_over_what_is_put_where_they_share_a_byte() {
        let flow =
            |put, put_bytes, to, to_bytes| abi::LineFlow { put, put_bytes, to, to_bytes, own: 0 };
        assert!(overlaps(&flow(100, 50, 149, 1)) && overlaps(&flow(149, 1, 100, 50)));
        assert!(overlaps(&flow(100, 50, 100, 50)) && overlaps(&flow(120, 1, 100, 50)));
        assert!(!overlaps(&flow(100, 50, 150, 9)) && !overlaps(&flow(150, 9, 100, 50)));
        assert!(!overlaps(&flow(100, 50, 0, 0)) && !overlaps(&flow(0, 0, 100, 50)));
    }

    #[test]
    fn packets_cover_a_small_slice() {
        for bytes in [0, 1, 8, 511, 512, 513, 5000, OF_TWO[0]] {
            let Shape { blocks, channels, slots, units } = Shape::of_packets(bytes, (32, 7));
            let slot = abi::SLOT_DATA_BYTES as u64;
            assert!(slots == abi::SLOT_OF_PACKETS && units * slot >= bytes);
            assert!(units.saturating_sub(1) * slot <= bytes && units <= blocks * channels);
        }
    }

    #[test]
    fn units_cover_a_slice_and_channels_have_about_as_many() {
        for limits in [(1, 7), (4, 15), (32, 7)] {
            for most in [1, 2, 4] {
                for bytes in (0..40_000).step_by(97).chain([1 << 20, (1 << 30) + 13]) {
                    let shape = Shape::of_lines(bytes, limits, most);
                    let Shape { blocks, channels, slots, units } = shape;
                    assert!(blocks <= limits.0 && channels <= limits.1, "{shape:?}");
                    let slots = u64::from(slots);
                    assert!([1, 2, 4].contains(&slots) && slots <= most, "{shape:?}");
                    let unit = slots * abi::UNIT_DATA_BYTES as u64;
                    assert!(units * unit >= bytes && units.saturating_sub(1) * unit <= bytes);
                    // Small units: more channels have work.
                    let all = blocks * channels;
                    assert!(slots == 1 || units >= all, "{shape:?}");
                }
            }
        }
    }
}
