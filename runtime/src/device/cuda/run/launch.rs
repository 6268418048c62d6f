//! Launching collectives and groups of sends and receives on a GPU.

use crate::device::cuda::driver::cu;
use crate::device::cuda::driver::library::{self, CLUSTER_BLOCKS, Kernel};
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::run::batch;
use crate::device::cuda::run::edges;
use crate::device::cuda::run::engines;
use crate::device::cuda::run::lines;
use crate::device::cuda::run::one_sided;
use crate::device::cuda::run::order;
use crate::device::cuda::run::timing::TimedBlocks;
use crate::device::cuda::stream::Stream;
use crate::error::{Error, Result};
use crate::op::descriptor::Descriptor;
use crate::op::{Address, Bound, Call, Operation, Programs, Scale, Transfer};
use oxccl_kernels::abi;
use oxccl_plan::carrier::Packets;
use oxccl_plan::cost::CostModel;
use oxccl_plan::ir::{Capacity, UserMemory};
use oxccl_plan::packets::Room;
use oxccl_plan::select::Topology;
use oxccl_plan::{Buffer, Carrier, Collective, Destination, From, Geometry, Op, Plan, Slice};
use std::sync::Arc;

/// Threads of a warp; the last warp of a block is its watcher.
const WARP: u32 = 32;
/// The least bytes of a block that a channel moves, so that small calls take few channels.
const CHANNEL_BYTES: u64 = 8 << 10;
/// The least bytes of a block for which the ranks agree on a way: for smaller blocks the agreement
/// costs more than running in place saves.
const AGREE_BYTES: u64 = 512 << 10;
/// The most bytes of all ranks' blocks for which packets are faster than a stage, in collectives in
/// which every rank hears from every other one.
const PACKET_BYTES: u64 = 1 << 20;
/// Parts begin at multiples of this number of bytes.
const ALIGN_BYTES: u64 = 16;

/// How an operation is launched.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The number of the operation among those of the rank; `None` in a graph.
    pub number: Option<u64>,
    /// The stream.
    pub stream: Stream,
    /// The thread blocks of the operation, for a profiler; `None` if none is told.
    pub blocks: Option<&'a TimedBlocks>,
}

impl Launch<'_> {
    /// Returns whether kernels tell a profiler of messages: in a graph they have no number.
    pub fn is_followed(&self) -> bool {
        self.blocks.is_some() && self.number.is_some()
    }

    /// Launches a kernel of the operation.
    ///
    /// # Safety
    /// The kernel takes a `T`, and what `T` points to stays valid until the kernel has ended.
    pub unsafe fn kernel<T>(&self, kernel: Kernel, shape: (u32, u32), argument: &T) -> Result<()> {
        let stamps = self.blocks.map_or(0, |blocks| blocks.add(shape.0));
        // SAFETY: by the contract of this function; the rank keeps the stamps while kernels run.
        unsafe { library::launch(kernel, shape, argument, stamps, self.stream.0) }
    }
}

/// Returns a call as kernels see it, of which all ranks are told what its descriptor says.
pub fn head(
    cuda_rank: &CudaRank,
    descriptor: Descriptor,
    call: &Call,
    number: Option<u64>,
) -> abi::Collective {
    let Call { spec, dtype, op, count, .. } = *call;
    let (descriptor_what, descriptor_count) = descriptor.to_words();
    let (scaled, scale) = match call.scale {
        None => (abi::SCALE_NONE, 0),
        Some(Scale::Value(word)) => (abi::SCALE_VALUE, word),
        Some(Scale::At(Address(at))) => (abi::SCALE_AT, at as u64),
    };
    abi::Collective {
        rank: cuda_rank.with_chunks(),
        input: call.input as u64,
        output: call.output as u64,
        count,
        scale,
        descriptor_count,
        call: call_of(number),
        descriptor_what,
        element_bytes: dtype.size() as u32,
        dtype: dtype as u8,
        op: op as u8,
        kind: spec.collective as u8,
        scaled,
        root: spec.root,
    }
}

/// Returns what kernels are told of the number of a call, which it has outside of graphs.
fn call_of(number: Option<u64>) -> u64 {
    number.map_or(0, |number| number + 1)
}

/// Returns the room for packets in a number of channels.
fn room(channels: u32) -> Room {
    let movers = abi::BLOCK_THREADS as u64 - u64::from(WARP);
    Room { channels: u64::from(channels), lines: abi::CHANNEL_PACKETS as u64, movers }
}

/// Returns the number of packets that the bytes of a block take.
fn packet_lines(bytes: u64) -> u64 {
    bytes.div_ceil(abi::PACKET_DATA_BYTES as u64)
}

/// Returns how plans run on GPUs of one host with a number of channels; `reach` tells whether the
/// GPUs reach each other's memory, and `engine_bytes` is that of [`Topology`].
fn topology_of(
    nranks: u32,
    channels: u32,
    (reach, lines): (bool, bool),
    engine_bytes: u64,
) -> Topology {
    let packets = Packets::Kernels {
        room: room(channels),
        line_bytes: abi::PACKET_DATA_BYTES as u64,
        windows_bytes: if reach { PACKET_BYTES } else { 0 },
    };
    Topology {
        direct: true,
        team: nranks,
        edges: false,
        lines,
        switch: false,
        remote_reads: false,
        push: !lines,
        mapped_from_bytes: AGREE_BYTES,
        scratch: false,
        packets: if lines { Packets::Nowhere } else { packets },
        engine_bytes,
        model: CostModel::NVLINK,
    }
}

/// Returns how plans run on the GPUs of a communicator.
pub fn topology(cuda_rank: &CudaRank, nranks: u32, team: u32) -> Topology {
    if let Some(network) = cuda_rank.network() {
        return edges::topology(team, network.data_bytes());
    }
    let reach = cuda_rank.sharing().is_some_and(|sharing| !sharing.lacks_peer_access());
    topology_of(nranks, cuda_rank.channels, (reach, cuda_rank.has_lines()), cuda_rank.engine_bytes)
}

/// Returns how plans run on GPUs that reach each other's memory, each of one rank.
pub fn usual_topology(nranks: u32, lines: bool) -> Topology {
    topology_of(nranks, abi::MAX_CHANNELS as u32, (true, lines), engines::least_bytes(false))
}

/// Launches an operation after all that the communicator has launched, which has the memory that it
/// needs ([`chunks::prepare`](super::chunks::prepare)). Blocks: never.
pub fn submit(cuda_rank: &Arc<CudaRank>, operation: &Operation, launch: &Launch<'_>) -> Result<()> {
    match operation {
        Operation::Collective(programs, call) => {
            let head = head(cuda_rank, programs.descriptor(call), call, launch.number);
            collective(cuda_rank, head, (programs, call), launch)
        }
        Operation::Batch(batch) => batch::run(cuda_rank, batch, launch),
        Operation::Exchange(transfers) => exchange(cuda_rank, &transfers.list, launch),
        Operation::OneSided(item) => one_sided::run(cuda_rank, item, launch.stream),
    }
}

fn collective(
    cuda_rank: &Arc<CudaRank>,
    head: abi::Collective,
    (programs, call): (&Programs, &Call),
    launch: &Launch<'_>,
) -> Result<()> {
    if let Some(network) = cuda_rank.network() {
        return edges::collective(cuda_rank, network, head, (programs, call), launch);
    }
    if programs.any.carrier == Carrier::Lines {
        return lines::collective(cuda_rank, head, (programs, call), launch);
    }
    if programs.any.carrier == Carrier::Packets {
        let bytes = call.count * call.dtype.size() as u64;
        let (room, lines) = (room(programs.blocks(cuda_rank.channels)), packet_lines(bytes));
        if lines > room.all_lines()
            && let Some(sharing) = cuda_rank.sharing()
        {
            sharing.want();
        }
        let (function, shape) =
            (cuda_rank.functions.packets[call.dtype as usize], packets(&room, call, lines));
        // SAFETY: the kernel takes this structure; what it points to is the communicator's, or the
        // user's by the contract of the call.
        return cuda_rank
            .launch(launch.stream, || unsafe { launch.kernel(function, shape, &head) });
    }
    let _context = cuda_rank.gpu.enter()?;
    let (mut argument, blocks) = bind(cuda_rank, head, programs, call, launch.stream)?;
    let function = cuda_rank.functions.programs[call.dtype as usize];
    let shape = (blocks, abi::BLOCK_THREADS as u32);
    cuda_rank.launch(launch.stream, || {
        if argument.engines != 0 {
            engines::launch_before(cuda_rank, call, &mut argument, launch.stream)?;
        }
        // SAFETY: as above.
        unsafe { launch.kernel(function, shape, &argument) }
    })
}

/// Returns the blocks and threads of a packet kernel, from facts that all ranks share.
fn packets(room: &Room, call: &Call, lines: u64) -> (u32, u32) {
    let nranks = call.spec.nranks;
    let blocks = room.blocks(lines, nranks);
    let each = (lines * u64::from(nranks)).div_ceil(blocks);
    let movers = each.clamp(1, room.movers).next_multiple_of(u64::from(WARP));
    (blocks as u32, movers as u32 + WARP)
}

/// Returns the number of channels of a call, at most `most`, the same for all its ways.
fn channels(most: u32, call: &Call) -> u64 {
    let bytes = call.count * call.dtype.size() as u64;
    bytes.div_ceil(CHANNEL_BYTES).clamp(1, u64::from(most))
}

/// Returns the elements of each block that one of `channels` channels moves: the same number for
/// all ways, divided evenly into their parts.
fn share(call: &Call, channels: u64) -> u64 {
    let unit = u64::from(call.spec.nranks) * align_elems(call);
    call.count.div_ceil(channels).max(1).next_multiple_of(unit)
}

/// Returns the multiple, in elements, at which parts of a call begin.
pub fn align_elems(call: &Call) -> u64 {
    (ALIGN_BYTES / call.dtype.size() as u64).max(1)
}

/// Returns how a plan cuts the share of a channel, with stage slots of `slot_bytes` bytes.
fn geometry(plan: &Plan, call: &Call, share: u64, slot_bytes: usize) -> Geometry {
    let stage_slot_elems = (slot_bytes / call.dtype.size()) as u64;
    let align_elems = align_elems(call);
    let (edge_slot_elems, message_elems) = (0, 0);
    let room = Capacity { edge_slot_elems, message_elems, stage_slot_elems, align_elems };
    let mut geometry = Geometry::new(&plan.layout, share, &room);
    if !plan.layout.uses_slots() {
        geometry.window_elems = share;
    }
    geometry
}

/// Returns a slice for a kernel.
pub fn slice(slice: Slice) -> abi::Slice {
    let Slice { buffer, block, part, parts } = slice;
    let (block, part, parts) = (block as u16, part as u16, parts as u16);
    abi::Slice { buffer: buffer as u16, block, part, parts }
}

/// Returns whether two slices of a rank's own memory may share bytes; in place, input and output
/// do.
fn overlap(a: Slice, b: Slice) -> bool {
    let user = |s: Slice| matches!(s.buffer, Buffer::Input | Buffer::Output);
    let same = if user(a) { user(b) } else { a.buffer == b.buffer };
    let blocks = a.block == b.block || (user(a) && a.buffer != b.buffer);
    same && blocks && a.part < b.part + b.parts && b.part < a.part + a.parts
}

/// Returns the slices of its own memory that a rank reads and writes in a step.
fn touched(op: Op) -> (Option<Slice>, Vec<Slice>) {
    match op {
        Op::Copy { src, dst } => (Some(src), vec![dst]),
        Op::Get { dst, .. } => (None, vec![dst]),
        Op::Put { src, .. } => (Some(src), Vec::new()),
        Op::Reduce { own, dst, .. } => match dst {
            Destination::Own(dst) | Destination::Everyone(dst) | Destination::Inboxes(dst, _) => {
                (Some(own), vec![dst])
            }
            Destination::Both(dst, second) => (Some(own), vec![dst, second]),
            Destination::Peer(..) => (Some(own), Vec::new()),
        },
        _ => (None, Vec::new()),
    }
}

/// Returns the steps of a program for a kernel; `after` marks those before which the threads of a
/// block have to meet. Waits and signals bring the threads together anyway. `None` if a step does
/// not run on a GPU.
fn steps(ops: &[Op]) -> Option<Vec<abi::Step>> {
    let (mut read, mut written) = (Vec::new(), Vec::new());
    let all = ops.iter().map(|&op| {
        let mut encoded = step(op)?;
        let (reads, writes) = touched(op);
        let hits = |slices: &[Slice], with: &Slice| slices.iter().any(|s| overlap(*s, *with));
        let depends = reads.iter().any(|s| hits(&written, s))
            || writes.iter().any(|s| hits(&written, s) || hits(&read, s));
        let meets = matches!(op, Op::Signal | Op::Wait { .. } | Op::Acquire);
        if depends || meets {
            read.clear();
            written.clear();
        }
        encoded.after = u16::from(depends);
        read.extend(reads);
        written.extend(writes);
        Some(encoded)
    });
    all.collect()
}

fn step(op: Op) -> Option<abi::Step> {
    let none = abi::Step::default();
    Some(match op {
        Op::Copy { src, dst } => {
            abi::Step { kind: abi::STEP_COPY, src: slice(src), dst: slice(dst), ..none }
        }
        Op::Acquire => abi::Step { kind: abi::STEP_ACQUIRE, ..none },
        Op::Signal => abi::Step { kind: abi::STEP_SIGNAL, ..none },
        Op::Wait { from, signal } => {
            let peer = match from {
                From::All => abi::ALL_PEERS,
                From::One(peer) => peer as u8,
            };
            abi::Step { kind: abi::STEP_WAIT, peer, signal: signal as u16, ..none }
        }
        Op::Get { peer, src, dst } => {
            let (peer, src, dst) = (peer as u8, slice(src), slice(dst));
            abi::Step { kind: abi::STEP_GET, peer, src, dst, ..none }
        }
        Op::Put { peer, src, dst } => {
            let (peer, src, dst) = (peer as u8, slice(src), slice(dst));
            abi::Step { kind: abi::STEP_PUT, peer, src, dst, ..none }
        }
        Op::Reduce { src, own, dst, finish } => {
            let (to, peer, dst, second) = match dst {
                Destination::Own(dst) => (abi::TO_OWN, 0, dst, dst),
                Destination::Both(dst, second) => (abi::TO_BOTH, 0, dst, second),
                Destination::Peer(peer, dst) => (abi::TO_PEER, peer as u8, dst, dst),
                Destination::Everyone(dst) => (abi::TO_EVERYONE, 0, dst, dst),
                Destination::Inboxes(dst, second) => (abi::TO_INBOXES, 0, dst, second),
            };
            let (src, own) = (slice(src), slice(own));
            let (dst, second, finish) = (slice(dst), slice(second), u8::from(finish));
            abi::Step { kind: abi::STEP_REDUCE, peer, to, finish, src, dst, own, second, ..none }
        }
        // Edges are for networks, and only their plans copy to scratch here.
        Op::Send { .. } | Op::Recv { .. } | Op::RecvReduce { .. } | Op::Fold { .. } => return None,
    })
}

/// Returns a plan and its program as kernels run them.
fn way(plan: &Plan, ops: &[Op], call: &Call, share: u64) -> Result<abi::Way> {
    let mut room = [abi::Step::default(); abi::MAX_STEPS];
    let unfit =
        || Error::Internal { what: format!("{} does not run on a GPU", plan.algorithm.name()) };
    if ops.len() > room.len() {
        return Err(unfit());
    }
    room.iter_mut().zip(steps(ops).ok_or_else(unfit)?).for_each(|(to, from)| *to = from);
    let small = geometry(plan, call, share, abi::SMALL_STAGE_SLOT_BYTES);
    let large = geometry(plan, call, share, abi::STAGE_SLOT_BYTES);
    Ok(abi::Way {
        window_elems: small.window_elems,
        large_window_elems: large.window_elems,
        align_elems: small.align_elems,
        parts: small.parts,
        signals: plan.layout.signals,
        done_signal: plan.layout.done_signal,
        staged: u32::from(plan.layout.uses_slots()),
        nsteps: ops.len() as u32,
        entered: 0,
        steps: room,
    })
}

/// Returns the steps of a program on user memory that remain when the ranks have agreed on it: the
/// agreement stands for the first signal, which says that all ranks have entered.
fn entered(ops: &[Op]) -> Vec<Op> {
    let rest = ops.strip_prefix(&[Op::Signal]).unwrap_or(ops);
    let known = |op: &&Op| matches!(op, Op::Wait { signal: 1, .. });
    rest.iter().filter(|op| !known(op)).copied().collect()
}

/// Returns whether ranks read each other's results.
fn collects(ops: &[Op]) -> bool {
    ops.iter().any(|op| matches!(op, Op::Get { src, .. } if src.buffer == Buffer::Output))
}

/// Returns the program on user memory that may be taken for a call; `None` if there is none that
/// pays or is possible.
fn in_place<'a>(programs: &'a Programs, call: &Call) -> Option<&'a Bound> {
    // Peers read inputs that are not multiplied, and what they still read must not be overwritten.
    let overlap =
        call.spec.collective == Collective::AllToAll && call.input as u64 == call.output as u64;
    programs.mapped.as_ref().filter(|_| call.scale.is_none() && !overlap)
}

/// Returns the argument of a program kernel, with the programs of a call and all that this rank
/// brings to it, and the number of blocks that run it.
fn bind(
    cuda_rank: &Arc<CudaRank>,
    head: abi::Collective,
    programs: &Programs,
    call: &Call,
    stream: Stream,
) -> Result<(abi::Program, u32)> {
    let Bound { plan, program, .. } = &programs.any;
    let (rank, spec) = (cuda_rank.view.rank, &call.spec);
    let share = share(call, channels(programs.blocks(cuda_rank.channels), call));
    let staged = way(plan, &program.ops, call, share)?;
    let blocks = call.count.div_ceil(share).max(1) as u32;
    let none = abi::Place::default();
    let mut argument = abi::Program {
        call: head,
        input: none,
        output: none,
        share_elems: share,
        agrees: 0,
        engines: 0,
        expected: [0; abi::MAX_RANKS],
        ways: [staged; abi::WAYS],
    };
    let bytes = call.count * call.dtype.size() as u64;
    if bytes < AGREE_BYTES || spec.nranks == 1 {
        return Ok((argument, blocks));
    }
    argument.agrees = 1;
    if let Some(sharing) = cuda_rank.sharing() {
        sharing.want();
    }
    if let Some(Bound { plan, program, .. }) = in_place(programs, call) {
        let ops = &entered(&program.ops);
        argument.ways[abi::WAY_IN_PLACE] = abi::Way { entered: 1, ..way(plan, ops, call, share)? };
        let graph = order::graph_of(stream)?;
        let needless = abi::Place { reach: abi::REACH_NEEDLESS, ..none };
        let place = |at: u64, blocks: u32, needed: bool| match needed && blocks > 0 {
            true => cuda_rank.place(at, bytes * u64::from(blocks), graph),
            false => needless,
        };
        let written = plan.layout.user_memory == UserMemory::Written || collects(&program.ops);
        argument.input = place(head.input, spec.input_blocks(rank), true);
        argument.output = place(head.output, spec.output_blocks(rank), written);
        let reached = argument.input.reach != abi::REACH_NONE && graph.is_none();
        let engines = programs.engines && engines::are_worth_it(cuda_rank);
        argument.engines = u32::from(reached && engines);
    }
    Ok((argument, blocks))
}

/// Launches the sends and receives of a group.
fn exchange(cuda_rank: &Arc<CudaRank>, transfers: &[Transfer], launch: &Launch<'_>) -> Result<()> {
    let (rank, nranks) = (cuda_rank.number, cuda_rank.nranks);
    let own = |send| transfers.iter().filter(move |t| t.peer == rank && t.send == send);
    let pairs: Vec<_> = own(true).zip(own(false)).filter(|(from, _)| from.bytes > 0).collect();
    let (queues, depth) = (queues(transfers, rank), depth(nranks));
    let rounds = rounds(&queues, (rank, nranks), depth);
    if pairs.is_empty() && rounds.is_empty() {
        return Ok(());
    }
    cuda_rank.launch(launch.stream, || {
        for (from, to) in &pairs {
            // SAFETY: the user's buffers, of these sizes by the contract of the call.
            unsafe {
                cu!(cuMemcpyAsync(to.data as u64, from.data as u64, from.bytes, launch.stream.0))
            }?;
        }
        rounds.iter().try_for_each(|queues| launch_messages(cuda_rank, queues, launch))
    })?;
    if let Some(blocks) = launch.blocks {
        blocks.spread(transfers.iter().map(queue_of), depth);
    }
    Ok(())
}

/// A queue (a peer × 2, + 1 for sending) and its messages.
type Queue<'a> = (u32, &'a [abi::Message]);

fn launch_messages(cuda_rank: &CudaRank, queues: &[Queue<'_>], launch: &Launch<'_>) -> Result<()> {
    let mut exchange = abi::Exchange {
        rank: cuda_rank.with_chunks(),
        call: call_of(launch.number),
        lanes: 1,
        blocks: 1,
        queues: [0; abi::QUEUES],
        first: [0; abi::QUEUE_BOUNDS],
        count: queues.len() as u32,
        followed: launch.is_followed().into(),
    };
    let mut messages = Vec::new();
    for (index, (queue, of_queue)) in queues.iter().enumerate() {
        exchange.queues[index] = *queue;
        messages.extend_from_slice(of_queue);
        exchange.first[index + 1] = messages.len() as u32;
    }
    let (view, functions) = (&cuda_rank.view, cuda_rank.functions);
    let [few, many] = match cuda_rank.has_lines() {
        true => functions.line_messages,
        false => functions.messages,
    };
    for m in &mut messages {
        let small = m.bytes <= abi::SMALL_MESSAGE_BYTES as u64;
        (m.lanes, m.slots) = match cuda_rank.has_lines() {
            true => lines::spread_message(m.bytes, view),
            false => (if small { 1 } else { view.lanes }, 0),
        };
        exchange.lanes = exchange.lanes.max(m.lanes);
    }
    // All blocks of a launch have to run at once.
    let most = match cuda_rank.has_lines() {
        true => (2 * cuda_rank.channels / exchange.count).max(1),
        false => u32::MAX,
    };
    exchange.blocks = exchange.lanes.min(most);
    let shape = match (cuda_rank.has_lines(), exchange.count * exchange.blocks) {
        (true, 1) => (1, abi::MESSAGE_THREADS as u32),
        (true, halves) => (halves.div_ceil(2), abi::BLOCK_THREADS as u32),
        (false, blocks) => (blocks, abi::EXCHANGE_THREADS as u32),
    };
    if let Some(blocks) = launch.blocks {
        let of_block = if cuda_rank.has_lines() { 2 } else { 1 };
        blocks.note_queues(queues.iter().map(|(queue, _)| *queue), (exchange.blocks, of_block));
    }
    // As for collectives in chunks, whose units have no slots.
    let large = cuda_rank.has_lines() && messages.iter().any(|m| m.slots == 0);
    let whole = shape.0.is_multiple_of(CLUSTER_BLOCKS);
    let [few, many] = match large && whole && cuda_rank.has_room_for_clusters() {
        true => [few.clustered(), many.clustered()],
        false => [few, many],
    };
    if messages.len() <= abi::FEW_MESSAGES {
        let argument = abi::FewMessages { exchange, messages: filled(&messages) };
        // SAFETY: the kernel takes this structure; the buffers are the user's by the contract of
        // the call.
        unsafe { launch.kernel(few, shape, &argument) }
    } else {
        let argument = abi::ManyMessages { exchange, messages: filled(&messages) };
        // SAFETY: as above.
        unsafe { launch.kernel(many, shape, &argument) }
    }
}

/// The most peers with which a launch exchanges messages.
const PEERS: u32 = abi::QUEUES as u32 / 2;

/// Returns the most messages of a queue that a launch takes; both ends of a queue find the same
/// number.
fn depth(nranks: u32) -> usize {
    abi::MAX_MESSAGES / (2 * (nranks - 1).min(PEERS) as usize).max(1)
}

/// Returns the launches of a group: each holds the n-th stretch of the queues with some of the
/// peers. Both ends of a queue find the same launches, in the same order: so a launch waits only
/// for its like at its peers. A rank has at most [`PEERS`] peers for which the sum of both numbers,
/// modulo the number of ranks, lies in a range of that size.
fn rounds<'a>(
    queues: &'a [(u32, Vec<abi::Message>)],
    (rank, nranks): (u32, u32),
    depth: usize,
) -> Vec<Vec<Queue<'a>>> {
    let class = |queue: u32| (rank + queue / 2) % nranks / PEERS;
    let mut rounds = Vec::new();
    for wanted in 0..nranks.div_ceil(PEERS) {
        let of_class = || queues.iter().filter(|(queue, _)| class(*queue) == wanted);
        let longest = of_class().map(|(_, all)| all.len().div_ceil(depth)).max().unwrap_or(0);
        rounds.extend((0..longest).map(|round| -> Vec<Queue<'a>> {
            let stretch = of_class().map(|(queue, all)| (*queue, all.chunks(depth).nth(round)));
            stretch.filter_map(|(queue, some)| some.map(|some| (queue, some))).collect()
        }));
    }
    rounds
}

/// Returns the messages in an array that is filled up with empty ones.
fn filled<const N: usize>(messages: &[abi::Message]) -> [abi::Message; N] {
    let mut all = [abi::Message::default(); N];
    all.iter_mut().zip(messages).for_each(|(to, from)| *to = *from);
    all
}

/// Returns the queue of a message: the peer × 2, + 1 for sending.
fn queue_of(transfer: &Transfer) -> u32 {
    transfer.peer * 2 + u32::from(transfer.send)
}

/// Returns the messages with other ranks, by queue.
fn queues(transfers: &[Transfer], rank: u32) -> Vec<(u32, Vec<abi::Message>)> {
    let mut queues: Vec<(u32, Vec<abi::Message>)> = Vec::new();
    for t in transfers.iter().filter(|t| t.peer != rank) {
        let (what, bytes) = Descriptor::message(t.dtype, t.bytes as u64).to_words();
        let message = abi::Message {
            data: t.data as u64,
            bytes,
            what,
            slots: 0,
            digest: lines::message_digest(what, bytes),
            lanes: 0,
        };
        let queue = queue_of(t);
        match queues.binary_search_by_key(&queue, |(known, _)| *known) {
            Ok(at) => queues[at].1.push(message),
            Err(at) => queues.insert(at, (queue, vec![message])),
        }
    }
    queues
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::select::{Choice, Policy, choose};
    use oxccl_plan::{Algorithm, Spec};

    /// Returns all choices of plans that a communicator on GPUs may make, whether or not it has
    /// lines.
    fn chosen(lines: bool) -> impl Iterator<Item = Choice> {
        let specs = (1..=abi::MAX_RANKS as u32).flat_map(|nranks| {
            Collective::ALL.map(|collective| Spec::new(collective, nranks, nranks / 2))
        });
        specs.flat_map(move |spec| {
            let (nranks, channels) = (spec.nranks, abi::MAX_CHANNELS as u32);
            let topology = topology_of(nranks, channels, (true, lines), u64::MAX);
            (0..31).map(move |power| {
                choose(spec, 1 << power, &topology, Policy::default()).expect("a plan")
            })
        })
    }

    #[test]
    fn lines_carry_every_chosen_plan_where_links_have_them() {
        for route in chosen(true).map(|choice| choice.any_memory) {
            let alone = route.plan.spec.nranks == 1;
            let wanted = if alone { Carrier::Local } else { Carrier::Lines };
            assert_eq!(route.carrier, wanted, "{route:?}");
            let has_phases =
                |rank| oxccl_plan::lines::Phases::of(&route.plan.program(rank).ops).is_some();
            assert!(alone || (0..route.plan.spec.nranks).all(has_phases), "{route:?}");
        }
    }

    /// As measured on four H100 and H200 (docs/performance.md).
    #[test]
    fn one_shot_is_chosen_among_four_up_to_the_size_at_which_others_are_faster() {
        let topology = topology_of(4, abi::MAX_CHANNELS as u32, (true, true), u64::MAX);
        let algorithm = |collective, bytes| {
            let choice = choose(Spec::new(collective, 4, 1), bytes, &topology, Policy::default());
            choice.expect("a plan").any_memory.plan.algorithm
        };
        let limits = [
            (Collective::AllReduce, 64 << 10, 128 << 10, Algorithm::TwoShotEdges),
            (Collective::Broadcast, 64 << 10, 192 << 10, Algorithm::TwoShotEdges),
            (Collective::Reduce, 768 << 10, 1280 << 10, Algorithm::Ring),
        ];
        for (collective, one_shot, larger, then) in limits {
            assert_eq!(algorithm(collective, one_shot), Algorithm::OneShotEdges, "{collective:?}");
            assert_eq!(algorithm(collective, larger), then, "{collective:?}");
            assert_eq!(algorithm(collective, 512 << 20), then, "{collective:?}");
        }
    }

    #[test]
    fn every_chosen_plan_fits_a_launch_and_needs_no_edges() {
        for plan in chosen(false).map(|choice| choice.any_memory.plan) {
            for rank in 0..plan.spec.nranks {
                let program = plan.program(rank);
                let steps = steps(&program.ops).unwrap_or_else(|| panic!("{plan:?} needs edges"));
                assert!(steps.len() <= abi::MAX_STEPS, "{} steps: {plan:?}", steps.len());
            }
        }
    }

    #[test]
    fn every_plan_in_place_begins_with_a_signal_of_all_and_needs_none_of_it_when_all_agreed() {
        let mapped = chosen(false).filter_map(|choice| choice.mapped);
        let mut any = false;
        for plan in mapped.map(|route| route.plan) {
            for rank in 0..plan.spec.nranks {
                let ops = plan.program(rank).ops;
                assert_eq!(ops[0], Op::Signal, "{plan:?}");
                let rest = entered(&ops);
                assert!(steps(&rest).is_some_and(|steps| steps.len() <= abi::MAX_STEPS));
                let signals = rest.iter().filter(|op| **op == Op::Signal).count() as u32;
                assert_eq!(signals + 1, plan.layout.signals, "{plan:?}");
                assert!(!rest.iter().any(|op| matches!(op, Op::Wait { signal: 1, .. })));
                assert_eq!(collects(&ops), collects(&plan.program(0).ops), "{plan:?}");
                any = true;
            }
        }
        assert!(any);
    }

    #[test]
    fn the_stretches_of_a_queue_are_in_the_same_launches_at_both_ends() {
        let transfer = |peer, send, bytes| {
            let (data, dtype) =
                (std::ptr::without_provenance_mut(bytes), oxccl_plan::DataType::Int8);
            Transfer { peer, send, data, bytes, dtype }
        };
        let few = (0..3).flat_map(|i| [transfer(0, true, i), transfer(2, false, 10 + i)]);
        let all: Vec<_> = few.chain((0..5).map(|i| transfer(2, true, 20 + i))).collect();
        let queues = queues(&all, 1);
        let bytes =
            |(queue, some): &Queue<'_>| (*queue, some.iter().map(|m| m.bytes).collect::<Vec<_>>());
        let rounds = rounds(&queues, (1, 3), 2);
        let seen: Vec<Vec<_>> = rounds.iter().map(|r| r.iter().map(bytes).collect()).collect();
        let first = vec![(1, vec![0, 1]), (4, vec![10, 11]), (5, vec![20, 21])];
        let second = vec![(1, vec![2]), (4, vec![12]), (5, vec![22, 23])];
        assert_eq!(seen, [first, second, vec![(5, vec![24])]]);
        for nranks in 2..=abi::MAX_RANKS as u32 {
            let most = depth(nranks) * 2 * (nranks as usize - 1);
            assert!(most <= abi::MAX_MESSAGES && depth(nranks) > 0, "{nranks} ranks");
        }
    }

    /// Every rank sends to all others, and carries its launches out in order; a launch ends once
    /// all of its queues have met their other ends.
    #[test]
    fn launches_with_any_number_of_peers_meet_their_likes() {
        for nranks in [2, 16, 17, 18, 33, 50] {
            let queues_of = |rank: u32| -> Vec<(u32, Vec<abi::Message>)> {
                let messages = |from: u32, to: u32| {
                    let number = (from * 7 + to * 3) % 40;
                    (0..number).map(|_| abi::Message::default()).collect()
                };
                let both =
                    |peer| [(peer * 2, messages(peer, rank)), (peer * 2 + 1, messages(rank, peer))];
                (0..nranks).filter(|peer| *peer != rank).flat_map(both).collect()
            };
            let queues: Vec<_> = (0..nranks).map(queues_of).collect();
            // The queues that each launch waits for, by rank: (from, to).
            let mut waiting: Vec<_> = (0u32..)
                .zip(&queues)
                .map(|(rank, queues)| {
                    let ends = |(queue, _): &Queue<'_>| match queue % 2 {
                        0 => (queue / 2, rank),
                        _ => (rank, queue / 2),
                    };
                    let of_launch = |launch: &Vec<Queue<'_>>| {
                        assert!(launch.len() <= abi::QUEUES, "{nranks} ranks");
                        launch.iter().map(ends).collect::<Vec<_>>()
                    };
                    let launches = rounds(queues, (rank, nranks), depth(nranks));
                    launches.iter().map(of_launch).collect::<std::collections::VecDeque<_>>()
                })
                .collect();
            while waiting.iter().any(|launches| !launches.is_empty()) {
                let now: Vec<Vec<_>> =
                    waiting.iter().map(|all| all.front().cloned().unwrap_or_default()).collect();
                let mut moved = false;
                for (rank, launches) in (0u32..).zip(&mut waiting) {
                    let Some(launch) = launches.front_mut() else { continue };
                    let other = |(from, to): &(u32, u32)| if *from == rank { *to } else { *from };
                    let before = launch.len();
                    launch.retain(|queue| !now[other(queue) as usize].contains(queue));
                    moved |= launch.len() < before || launch.is_empty();
                    if launch.is_empty() {
                        launches.pop_front();
                    }
                }
                assert!(moved, "{nranks} ranks wait for each other");
            }
        }
    }

    #[test]
    fn a_step_that_touches_what_one_before_wrote_waits_for_it() {
        let part = |buffer, part| Slice::part(buffer, 0, part);
        let copy = |src, dst| Op::Copy { src, dst };
        let (input, output) = (part(Buffer::Input, 0), part(Buffer::Output, 1));
        let stage = part(Buffer::Stage, 0);
        let after = |ops: Vec<Op>| {
            let steps = steps(&ops).expect("no edges");
            steps.into_iter().map(|s| s.after).collect::<Vec<_>>()
        };
        assert_eq!(after(vec![copy(input, stage), copy(stage, output)]), [0, 1]);
        assert_eq!(after(vec![copy(input, stage), Op::Signal, copy(stage, output)]), [0, 0, 0]);
        assert_eq!(after(vec![copy(input, stage), copy(output, part(Buffer::Stage, 1))]), [0, 0]);
        // In place, the output is the input.
        assert_eq!(after(vec![copy(input, stage), copy(stage, part(Buffer::Output, 0))]), [0, 1]);
        let over = [copy(stage, output), copy(part(Buffer::Stage, 1), output)];
        assert_eq!(after(over.to_vec()), [0, 1]);
    }
}
