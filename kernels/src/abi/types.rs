//! The structures, constants and offsets in a rank's shared memory that the host and the kernels
//! share.

/// Bytes of a rank's shared memory before the packets: signals, announcements, arrivals, credits,
/// entries, the users' signals.
pub const WORDS_BYTES: usize = 96 * 1024;
/// The most ranks that can reach each other's GPU memory.
pub const MAX_RANKS: usize = 16;
/// Channels of a communicator: a channel is one block of a kernel with counters, signals and memory
/// of its own, so that blocks of different indices never wait for each other.
pub const MAX_CHANNELS: usize = 32;
/// Packets that a channel has room for at first, per rank and half.
pub const CHANNEL_PACKETS: usize = 128;
/// Bytes of the packets' room behind the large stage, which all channels, ranks and halves share.
pub const LARGE_PACKETS_BYTES: usize = 4 << 20;
/// Bytes of data in a packet, which is twice as large.
pub const PACKET_DATA_BYTES: usize = 8;
/// Bytes of each of the two slots of a channel's stage, until the large stage is there.
pub const SMALL_STAGE_SLOT_BYTES: usize = 16 * 1024;
/// Bytes of each of the two slots of a channel in the large stage, which is made after the first
/// large operation.
pub const STAGE_SLOT_BYTES: usize = 128 * 1024;
/// Bytes of the large stage.
pub const STAGE_BYTES: usize = MAX_CHANNELS * 2 * STAGE_SLOT_BYTES;
/// The most buffers of a rank that its peers can map at a time.
pub const BUFFERS: usize = 256;
/// The number of the buffer that a rank makes when an operation first gains by it: the large stage
/// or, where there are lines, memory of chunks.
pub const ON_DEMAND_BUFFER: u32 = 0;
/// The most windows that a rank has at a time.
pub const WINDOWS: usize = 64;
/// Signals of one-sided operations from a rank to another.
pub const USER_SIGNALS: usize = 64;
/// The most signals that a launch waits for.
pub const AWAITED: usize = 64;
/// Queues of a rank: one per rank and direction.
pub const QUEUES: usize = 32;
/// Bounds of the queues: the beginning of each, and the end of the last one.
pub const QUEUE_BOUNDS: usize = 33;
/// The most lanes of a queue, which carry their parts of a message side by side.
pub const LANES: usize = 4;
/// The most bytes of a message that uses only the first lane of a queue.
pub const SMALL_MESSAGE_BYTES: usize = 64 * 1024;
/// Slots of a lane.
pub const LANE_SLOTS: usize = 4;
/// Bytes of a slot of a lane.
pub const LANE_SLOT_BYTES: usize = 32 * 1024;
/// Slots of the words for an edge with a rank of another host: at least as many as messages that
/// are under way there in a direction.
pub const NET_SLOTS: usize = 4;
/// The latest messages of an edge in a direction of which kernels tell the operation.
pub const NET_CALLS: usize = 16;
/// Packets of a small message between hosts: two words and its data, 8 bytes each. Beyond as many
/// threads as a warp has the wait for them would need a meeting of the block.
pub const NET_PACKETS: usize = 18;
/// Bytes of data of messages between hosts that are written as packets.
pub const NET_PACKED_BYTES: usize = (NET_PACKETS - 2) * 8;
/// Steps of a program over edges in the argument of its kernel: those of two hosts of eight ranks.
pub const ARGUMENT_STEPS: usize = 20;
/// Collectives between hosts of which a rank remembers what it called.
pub const REMEMBERED: usize = 64;
/// Bytes before the data in the slots of messages between hosts, where the proxy writes the header.
pub const NET_HEADER_BYTES: usize = 16;
/// The size of a message between hosts whose transport does not tell it.
pub const NET_UNTOLD: u32 = u32::MAX;
/// Operations of which a rank remembers what its peers called.
pub const ANNOUNCEMENTS: usize = 4;
/// The most collectives by which a rank is ahead of a peer that it waits for in none of them. A
/// peer has looked at all announcements but those of twice as many.
pub const CALLS_AHEAD: usize = ANNOUNCEMENTS / 2;
/// Collectives of which the host remembers what kernels told.
pub const RUNS: usize = 64;
/// The runs of a thread block in a graph that are kept for a profiler.
pub const KEPT_RUNS: usize = 16;
/// In place of the first word of a descriptor: a kernel was in no collective.
pub const NO_CALL: u32 = u32::MAX;
/// The most steps of a program.
pub const MAX_STEPS: usize = 64;
/// The most rounds of an [`EdgeProgram`].
pub const MAX_ROUNDS: usize = 8;
/// The turns from a round of a window to its next one, where windows overlap.
pub const ROUND_TURNS: usize = 2;
/// The most messages that a launch with a small argument sends and receives.
pub const FEW_MESSAGES: usize = 32;
/// The most messages that any launch sends and receives.
pub const MAX_MESSAGES: usize = 512;
/// Threads of a block, of which the last warp watches; each thread has 128 registers.
pub const BLOCK_THREADS: usize = 512;
/// Threads of a block that sends or receives: few, as many blocks have to run at once.
pub const EXCHANGE_THREADS: usize = 288;
/// Threads of the one block that runs before copy engines: a warp that agrees and one that watches.
pub const EXPECT_THREADS: usize = 64;

/// Kind of [`Step`]: copies a slice of this rank to another slice of it.
pub const STEP_COPY: u8 = 0;
/// Kind of [`Step`]: waits until the slot of the stage may be written again.
pub const STEP_ACQUIRE: u8 = 1;
/// Kind of [`Step`]: signals all peers.
pub const STEP_SIGNAL: u8 = 2;
/// Kind of [`Step`]: waits for a signal of a peer, or of all peers.
pub const STEP_WAIT: u8 = 3;
/// Kind of [`Step`]: reads a slice of a peer.
pub const STEP_GET: u8 = 4;
/// Kind of [`Step`]: folds slices of all ranks.
pub const STEP_REDUCE: u8 = 5;
/// Kind of [`Step`]: writes a slice of a peer.
pub const STEP_PUT: u8 = 6;

/// Kind of [`EdgeStep`]: puts a slice on the edge to a peer.
pub const STEP_SEND: u8 = 7;
/// Kind of [`EdgeStep`]: takes the next message of the edge from a peer.
pub const STEP_RECEIVE: u8 = 8;
/// Kind of [`EdgeStep`]: takes the next message of the edge from a peer, and folds it with a slice.
pub const STEP_RECEIVE_REDUCE: u8 = 9;
/// Kind of [`EdgeStep`]: folds blocks of scratch.
pub const STEP_FOLD: u8 = 10;

/// Destination of a fold: one slice of this rank.
pub const TO_OWN: u8 = 0;
/// Destination of a fold: two slices of this rank.
pub const TO_BOTH: u8 = 1;
/// Destination of a fold: a slice of a peer.
pub const TO_PEER: u8 = 2;
/// Destination of a fold: a slice of every rank.
pub const TO_EVERYONE: u8 = 3;

/// Destination of a fold: a slice of this rank, and one of the inboxes of all peers.
pub const TO_INBOXES: u8 = 4;

/// The value in place of a peer that stands for all peers.
pub const ALL_PEERS: u8 = 255;

/// Reach of a user's buffer: the peers cannot reach it.
pub const REACH_NONE: u32 = 0;
/// Reach of a user's buffer: no peer needs to reach it.
pub const REACH_NEEDLESS: u32 = 1;
/// Reach of a user's buffer: all peers reach it at the address that it has here.
pub const REACH_ADDRESS: u32 = 2;
/// Reach of a user's buffer: the peers may have mapped it.
pub const REACH_BUFFER: u32 = 3;

/// Index of the program through the stage.
pub const WAY_STAGED: usize = 0;
/// Index of the program on user memory.
pub const WAY_IN_PLACE: usize = 1;
/// The most programs that a launch may bring.
pub const WAYS: usize = 2;

/// Fault of a kernel: none.
pub const FAULT_NONE: u32 = 0;
/// Fault of a kernel: the host told it to give up.
pub const FAULT_ABORTED: u32 = 1;
/// Fault of a kernel: it waited longer than the limit.
pub const FAULT_DEADLINE: u32 = 2;
/// Fault of a kernel: a peer called something else.
pub const FAULT_MISMATCH: u32 = 3;
/// Fault of a kernel: another operation of the communicator was running.
pub const FAULT_OVERLAP: u32 = 4;
/// Fault of a kernel: a put goes beyond what is reached of a peer's window.
pub const FAULT_WINDOW: u32 = 5;
/// Fault of a kernel: a peer has left the communicator without what is awaited of it.
pub const FAULT_LEFT: u32 = 6;

/// Inputs are not multiplied.
pub const SCALE_NONE: u8 = 0;
/// Inputs are multiplied by a value.
pub const SCALE_VALUE: u8 = 1;
/// Inputs are multiplied by what lies at an address when the kernel runs.
pub const SCALE_AT: u8 = 2;

/// A slice of a plan (`oxccl_plan::Slice`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Slice {
    /// The number of the buffer (`oxccl_plan::Buffer`).
    pub buffer: u16,
    /// The block.
    pub block: u16,
    /// The first part.
    pub part: u16,
    /// The number of parts.
    pub parts: u16,
}

/// A step of a program (`oxccl_plan::Op`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// `STEP_*`.
    pub kind: u8,
    /// The peer, or [`ALL_PEERS`].
    pub peer: u8,
    /// The destination of a fold, `TO_*`.
    pub to: u8,
    /// Not 0 if a fold completes the reduction.
    pub finish: u8,
    /// The signal that a wait awaits.
    pub signal: u16,
    /// Not 0 if the step depends on what steps since the last synchronisation of the block read or
    /// wrote.
    pub after: u16,
    /// The slice that is read; a fold reads it at the peers.
    pub src: Slice,
    /// The slice that is written.
    pub dst: Slice,
    /// The slice that a fold reads at this rank.
    pub own: Slice,
    /// The second slice that a fold with [`TO_BOTH`] or [`TO_INBOXES`] writes.
    pub second: Slice,
}

/// A step of a program over edges (`oxccl_plan::Op`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EdgeStep {
    /// `STEP_*`.
    pub kind: u8,
    /// Not 0 if a fold completes the reduction.
    pub finish: u8,
    /// Not 0 if the data that came over the edge are the first operand of a fold.
    pub incoming_first: u8,
    /// Padding.
    pub unused: u8,
    /// The peer, by its number in the communicator; the number of the block of scratch in place of
    /// which a fold reads `own`.
    pub peer: u32,
    /// The number of blocks that are folded.
    pub count: u32,
    /// The slice that is read at this rank; the first block that is folded.
    pub src: Slice,
    /// The slice that is written.
    pub dst: Slice,
    /// The slice that a fold reads in place of a block of scratch.
    pub own: Slice,
}

/// A collective that a kernel has begun, for ranks of other hosts that wait in another one. It lies
/// in memory of the host.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Begun {
    /// The number of the collective; 0 while the words are written.
    pub number: u64,
    /// The first word of its descriptor.
    pub what: u64,
    /// The second word.
    pub count: u64,
    /// Padding.
    pub unused: u64,
}

/// A lane to and from a peer as kernels find it, in the rank's own GPU memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer {
    /// The address of the [`NetWords`](super::NetWords), as mapped here; 0 for a rank of this host.
    pub words: u64,
    /// The place of the rank among those of this host.
    pub place: u32,
    /// The numbers by which the slot of a message is ahead of the message's own: outgoing and
    /// incoming.
    pub skews: [u16; 2],
    /// The address of the outgoing slots, as mapped here.
    pub outgoing: u64,
    /// The address of the slots where messages come in.
    pub incoming: u64,
    /// Bytes from a slot to the next one.
    pub slot_bytes: u64,
    /// Not 0 if the slots are in memory of the GPU, where kernels write and read the headers of
    /// messages: outgoing and incoming.
    pub on_gpu: [u32; 2],
    /// Not 0 for the switch of the rank's rail.
    pub is_switch: u32,
    /// Not used.
    pub unused: u32,
}

/// The control block in host memory: what kernels tell the host, and the host a running kernel.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// Set by the host: kernels give up.
    pub abort: u32,
    /// `FAULT_*`, set last.
    pub fault: u32,
    /// The rank waited for, or at fault: its place on this host or, from [`MAX_RANKS`] on, its
    /// number in the communicator plus that; −1 for none.
    pub peer: i32,
    /// The step of the program.
    pub step: i32,
    /// The number of the collective; outside of collectives, of those so far.
    pub operation: u64,
    /// The first word of this rank's descriptor; [`NO_CALL`](super::NO_CALL) for none.
    pub own_what: u32,
    /// The first word of the peer's descriptor.
    pub their_what: u32,
    /// The second word of this rank's descriptor, or the bytes of a put.
    pub own_count: u64,
    /// The second word of the peer's descriptor, or the bytes of the window that a put reaches.
    pub their_count: u64,
    /// The offset in the window at which a put begins.
    pub offset: u64,
    /// The longest time that a kernel may wait, in ns; 0 for no limit.
    pub limit_ns: u64,
    /// Set by the host: a bit per rank that has left in order. What these ranks wrote before is
    /// visible here.
    pub left: u64,
    /// The number of collectives so far that read or wrote user memory of peers.
    pub in_place: u64,
    /// The number of these that have begun and whose blocks copy engines move.
    pub by_engines: u64,
    /// The number of collectives for which copy engines took blocks from other places than the
    /// peers told, so that kernels moved the blocks once more.
    pub engine_mispredictions: u64,
    /// The time in ns for which a kernel has waited. A kernel that waits for longer than a moment
    /// sets it, the awaited rank and the step every half millisecond, and `waits` last.
    pub waited_ns: u64,
    /// The awaited rank, an `i32` as `peer`.
    pub awaited: u32,
    /// The step of the program, an `i32` as `step`.
    pub awaited_step: u32,
    /// The number of the collective on the communicator; 0 outside of collectives.
    pub awaited_in: u64,
    /// The second word of its descriptor.
    pub awaited_count: u64,
    /// The first word of its descriptor.
    pub awaited_what: u32,
    /// Not 0 if the awaited rank has announced the collective. Ranks of other hosts announce none.
    pub awaited_has_begun: u32,
    /// The number of times that kernels have set the words before it.
    pub waits: u64,
    /// Padding to lines of their own.
    pub unused: [u64; 6],
    /// The latest of which kernels told, one after the other.
    pub runs: [Run; super::RUNS],
}

const _: () = assert!(std::mem::offset_of!(Control, runs) % size_of::<Run>() == 0);

/// A collective, or some messages, that a kernel runs, or has run, as the first block tells the
/// host: two words at a time, in one store. Times are those of the GPU's clock. Kernels tell once
/// in a while: a store to the host makes a kernel end 0.8 µs later.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The number of the collective on the communicator, from 1; for messages
    /// [`MESSAGES_BEGUN`](super::MESSAGES_BEGUN) and a number of their own; 0 for none.
    pub number: u64,
    /// The time at which it began, in ns.
    pub begun_ns: u64,
    /// [`Collective::call`], or [`Exchange::call`](super::Exchange::call).
    pub call: u64,
    /// The first word of its descriptor, or of the first message's, and above it the lower half of
    /// the number.
    pub what: u64,
    /// The second word.
    pub count: u64,
    /// The number once more.
    pub of: u64,
    /// The number once it has ended.
    pub ended: u64,
    /// The time at which it ended, in ns.
    pub ended_ns: u64,
}

/// The times at which a thread block began and ended, in ns of the GPU's clock, in memory of the
/// host. Each kernel has the address of those of its blocks as its second argument; 0 unless a
/// profiler asks for them. In graphs it is that of [`CapturedBlock`]s.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    /// The time at which it began.
    pub begun_ns: u64,
    /// The time at which all of its threads had ended.
    pub ended_ns: u64,
}

/// A time of a thread block in a run of its graph, at a multiple of 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockTime {
    /// The time, in ns of the GPU's clock.
    pub ns: u64,
    /// The number of the run among those of the block, from 1.
    pub run: u64,
}

/// A run of a thread block in a graph, in memory of the host.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockRun {
    /// The time at which it began.
    pub begun: BlockTime,
    /// The time at which all of its threads had ended.
    pub ended: BlockTime,
}

/// The count of a thread block's runs in a graph and the place of their times, in memory of the
/// GPU. The second argument of a kernel in a graph is the address of those of its blocks, plus one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CapturedBlock {
    /// The address of its last [`KEPT_RUNS`] runs, by their numbers modulo that.
    pub at: u64,
    /// The number of its runs so far.
    pub runs: u64,
}

/// The counters of a channel, in the rank's own GPU memory: they hold what changes from launch to
/// launch.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counters {
    /// Windows that the channel ran with packets so far; the parity chooses the half.
    pub packets: u64,
    /// Signals so far.
    pub phase: u64,
    /// Windows that used the stage so far; the parity chooses the slot.
    pub windows: u64,
    /// Signals that all peers must have made before a slot may be written again.
    pub slot_need: [u64; 2],
    /// Agreements so far.
    pub agreements: u64,
    /// Not 0 while a block of this channel is running.
    pub busy: u32,
    /// Not 0 once all ranks have said in packets that they have mapped all large stages.
    pub large: u32,
}

/// The counters of a lane, as [`Counters`] are those of a channel.
#[repr(C)]
#[derive(Debug, Default)]
pub struct LaneCounters {
    /// Messages so far: slots that were used.
    pub messages: u64,
    /// The number of messages up to which there are free slots, as far as this is known.
    pub room: u64,
    /// Not 0 while a block of this lane is running.
    pub busy: u32,
    /// Padding.
    pub unused: u32,
}

/// A collective that this rank has announced: the words of its descriptor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Called {
    /// The first word.
    pub what: u64,
    /// The second word.
    pub count: u64,
}

/// The part of the private memory that all channels share.
#[repr(C)]
#[derive(Debug)]
pub struct Shared {
    /// `FAULT_*`; after a fault nothing runs any more.
    pub fault: u32,
    /// Blocks of a put that have written their part.
    pub written: u32,
    /// Collectives so far.
    pub operations: u64,
    /// The number of the collective that was announced last: it is under way, or has ended.
    pub begun: u64,
    /// The collectives so far for which the peers' calls were compared with this rank's.
    pub compared: u64,
    /// The last collectives that this rank announced, by number modulo [`ANNOUNCEMENTS`].
    pub called: [Called; ANNOUNCEMENTS],
    /// Collectives so far on user memory.
    pub in_place: u64,
    /// Not 0 if copy engines move the blocks of the collective that is under way.
    pub moved: u64,
    /// The word for the input that was told to the peers before the copy engines ran: the first
    /// block of the program tells the same.
    pub told_input: u64,
    /// The word for the output that was told then.
    pub told_output: u64,
    /// The time, in ns, from which on the host's memory is to be looked at again.
    pub next_look_ns: u64,
    /// The number of times so far that messages were moved.
    pub exchanges: u64,
    /// The number of the latest collective, or messages, of which the host was told.
    pub told: u64,
    /// The number of times that the host was told of some.
    pub tellings: u64,
    /// The time, in ns, from which on the host is told again.
    pub next_telling_ns: u64,
    /// The longest time that a kernel may wait, in ns, as found in the host's memory.
    pub limit_ns: u64,
    /// A bit per rank that has left, as found in the host's memory.
    pub left: u64,
    /// Blocks that move messages in lines, and `LINE_COLLECTIVE` while a collective does.
    pub line_users: u32,
    /// Padding.
    pub unused: u32,
    /// Signals that this rank has given to each rank.
    pub signals_given: [[u64; USER_SIGNALS]; MAX_RANKS],
    /// Signals of each rank for which this rank has waited.
    pub signals_taken: [[u64; USER_SIGNALS]; MAX_RANKS],
}

/// The maps: what ranks have mapped of each other. They are in the rank's own GPU memory, and the
/// host writes them.
#[repr(C)]
#[derive(Debug)]
pub struct Maps {
    /// The generations of this rank's buffers that all peers have mapped; 0 for none.
    pub ready: [u64; BUFFERS],
    /// The addresses at which the peers' buffers are mapped here; 0 for those that are not.
    pub bases: [[u64; BUFFERS]; MAX_RANKS],
    /// The peers' windows, by their numbers modulo [`WINDOWS`].
    pub windows: [[Window; WINDOWS]; MAX_RANKS],
}

/// A peer's window.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The number of the window among the communicator's windows, from 1; 0 for none. It is written
    /// last.
    pub number: u64,
    /// The address at which the window is mapped here.
    pub base: u64,
    /// Bytes of the window; 0 if it cannot be mapped.
    pub bytes: u64,
}

/// A rank of a communicator, as kernels see it. It never changes, but for the memory of chunks that
/// comes later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    /// The place of this rank among those of its host.
    pub rank: u32,
    /// The number of ranks of this host.
    pub nranks: u32,
    /// Lanes of a queue.
    pub lanes: u32,
    /// Lanes of a queue between hosts, at most as many.
    pub net_lanes: u32,
    /// Slots of a channel of lines on an edge, a power of two; 0 if no edge has lines.
    pub line_slots: u32,
    /// Lanes of a queue of messages in lines.
    pub line_lanes: u32,
    /// Channels of lines that have slots.
    pub line_channels: u32,
    /// Chunks that a channel has room for, a power of two.
    pub chunk_slots: u32,
    /// Packets that a channel has room for behind the large stage, per rank and half.
    pub large_packets: u32,
    /// Padding.
    pub unused: u32,
    /// The addresses at which the ranks' shared memory is mapped here, by rank.
    pub shared: [u64; MAX_RANKS],
    /// Offset of the packets in the shared memory.
    pub packets_at: u64,
    /// Offset of the lanes' slots in the shared memory.
    pub lanes_at: u64,
    /// Offset of the stage in the shared memory.
    pub stage_at: u64,
    /// Offset of the slots of lines in the shared memory, by sender without this rank, channel and
    /// slot.
    pub lines_at: u64,
    /// Offset of the credits of lines in the shared memory, by channel and receiver.
    pub line_credits_at: u64,
    /// The addresses at which the ranks' memory of chunks is mapped here, by rank; 0 where none was
    /// needed yet. It begins with the `ChunkWords`, by channel and sender.
    pub chunks: [u64; MAX_RANKS],
    /// Offset of the credits of chunks in the memory of chunks, by channel and receiver.
    pub chunk_credits_at: u64,
    /// Offset of the `LineCounters` of chunks in the memory of chunks, by channel and rank.
    pub chunk_counters_at: u64,
    /// Offset of the chunks in the memory of chunks, by sender without this rank, channel and slot;
    /// 0 if no edge has chunks.
    pub chunk_slots_at: u64,
    /// The address of the `LineCounters`, by channel and rank, in private memory.
    pub line_counters: u64,
    /// The address of the [`Counters`] of [`MAX_CHANNELS`] channels, then of the [`LaneCounters`]
    /// of all lanes, in private memory.
    pub counters: u64,
    /// The address of [`Shared`], in private memory.
    pub common: u64,
    /// The address of [`Control`], as mapped here.
    pub control: u64,
    /// The address of [`Maps`], in private memory.
    pub maps: u64,
    /// The address of the [`Peer`]s, by rank of the communicator and lane, in private memory; 0
    /// where all ranks are on this host.
    pub peers: u64,
    /// The address of the scratch memory, in private memory; 0 where all ranks are on this host.
    pub scratch: u64,
}

/// The place of a user's buffer, as peers find it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// `REACH_*`.
    pub reach: u32,
    /// The number of the registered buffer.
    pub buffer: u32,
    /// The generation of the registered buffer.
    pub generation: u64,
    /// The offset in the registered buffer, or the address.
    pub at: u64,
}

/// A collective.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// The rank that calls.
    pub rank: Rank,
    /// The send buffer.
    pub input: u64,
    /// The receive buffer.
    pub output: u64,
    /// Elements per block.
    pub count: u64,
    /// The user's scalar: its bits, or its address.
    pub scale: u64,
    /// The second word of the descriptor (`Descriptor::to_words`).
    pub descriptor_count: u64,
    /// The number of the call among the rank's operations outside of graphs, from 1; 0 in a graph.
    pub call: u64,
    /// The first word of the descriptor.
    pub descriptor_what: u32,
    /// Bytes of an element.
    pub element_bytes: u32,
    /// The number of the element type (`oxccl_plan::DataType`).
    pub dtype: u8,
    /// The number of the reduction (`oxccl_plan::ReduceOp`).
    pub op: u8,
    /// The number of the collective (`oxccl_plan::Collective`).
    pub kind: u8,
    /// `SCALE_*`: whether inputs are multiplied by `scale`.
    pub scaled: u8,
    /// The root.
    pub root: u32,
}

/// A program, and how it cuts the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Elements of a window.
    pub window_elems: u64,
    /// Elements of a window with the large stage.
    pub large_window_elems: u64,
    /// Part boundaries fall on multiples of this.
    pub align_elems: u64,
    /// Parts per window.
    pub parts: u32,
    /// Signals per window.
    pub signals: u32,
    /// The signal by which the peers tell that they have read what was staged.
    pub done_signal: u32,
    /// Not 0 if the stage is used.
    pub staged: u32,
    /// The number of steps.
    pub nsteps: u32,
    /// Signals for which the agreement stands: the steps begin behind them.
    pub entered: u32,
    /// The steps.
    pub steps: [Step; MAX_STEPS],
}

/// The argument of a program kernel: a collective as programs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The collective.
    pub call: Collective,
    /// The rank's send buffer, as peers find it.
    pub input: Place,
    /// The rank's receive buffer, as peers find it.
    pub output: Place,
    /// Elements of each block that a channel moves, whatever the way: the blocks of a launch may
    /// agree on different ways.
    pub share_elems: u64,
    /// Not 0 if the ranks agree on a way, and on the large stage; else the way is [`WAY_STAGED`].
    pub agrees: u32,
    /// Not 0 if copy engines are at work between `oxccl_expect` and the program.
    pub engines: u32,
    /// The addresses from which copy engines take blocks: the peers' send buffers, by rank; 0 where
    /// they take none.
    pub expected: [u64; MAX_RANKS],
    /// The programs, by `WAY_*`.
    pub ways: [Way; WAYS],
}

/// The argument of an edge kernel: a collective as a program over edges, and how it cuts the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EdgeProgram {
    /// The collective.
    pub call: Collective,
    /// This rank in the communicator.
    pub rank: u32,
    /// The number of ranks of the communicator.
    pub nranks: u32,
    /// Elements of each block that a lane moves.
    pub share_elems: u64,
    /// Elements of a window.
    pub window_elems: u64,
    /// Part boundaries fall on multiples of this.
    pub align_elems: u64,
    /// Bytes of scratch of a lane.
    pub lane_scratch_bytes: u64,
    /// Bytes of scratch of a window.
    pub window_scratch_bytes: u64,
    /// Bytes from a block of scratch to the next one.
    pub scratch_bytes: u64,
    /// Parts per window.
    pub parts: u32,
    /// The number of rounds.
    pub rounds: u32,
    /// The number of windows that have scratch of their own, in turn.
    pub scratch_windows: u32,
    /// 1 if somebody has the messages followed.
    pub followed: u32,
    /// The number of peers that lanes lead to: the ranks and, as the last one, the switch of this
    /// rank's rail, if the network reduces.
    pub peers: u32,
    /// Not used.
    pub unused: u32,
    /// The number of the step behind the last one of each round.
    pub round_ends: [u32; MAX_ROUNDS],
    /// The first steps, which a kernel need not fetch.
    pub first_steps: [EdgeStep; ARGUMENT_STEPS],
    /// The address of all [`EdgeStep`]s, in memory of the host.
    pub steps: u64,
    /// The address of [`REMEMBERED`] times [`Begun`], by number, in memory of the host.
    pub begun: u64,
}

/// A put: writes into a peer's window and signals, or only signals.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// The rank that calls.
    pub rank: Rank,
    /// The rank to which the put goes.
    pub peer: u32,
    /// The number of the signal.
    pub signal: u32,
    /// The address of what is written.
    pub data: u64,
    /// Bytes that are written.
    pub bytes: u64,
    /// The number of the window, from 1; 0 if nothing is written.
    pub window: u64,
    /// The address of this rank's own window, for puts to itself.
    pub own: u64,
    /// The offset in the window.
    pub offset: u64,
}

/// Signals of a rank that are awaited.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Awaited {
    /// The rank that signals.
    pub peer: u32,
    /// The number of the signal.
    pub signal: u32,
    /// The number of further signals that are awaited.
    pub count: u64,
}

/// A wait for signals, each of which is named once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SignalWait {
    /// The rank that calls.
    pub rank: Rank,
    /// The number of signals that are named.
    pub count: u32,
    /// The first word of the descriptor.
    pub what: u32,
    /// The signals.
    pub awaited: [Awaited; AWAITED],
}
