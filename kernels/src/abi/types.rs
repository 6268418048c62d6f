//! What the host and the kernels share: structures, places in a rank's shared memory, numbers.
//! `kernels/cuda/abi.h` is generated from here.

/// Bytes of a rank's shared memory before the packets: signals, announcements, arrivals, credits,
/// entries, the users' signals.
pub const WORDS_BYTES: usize = 96 * 1024;
/// Ranks that can reach each other's GPU memory.
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
/// The stage of a channel has two slots of so many bytes, until the large one is there.
pub const SMALL_STAGE_SLOT_BYTES: usize = 32 * 1024;
/// The same of the large stage, which comes with the first large operation.
pub const STAGE_SLOT_BYTES: usize = 128 * 1024;
/// Bytes of the large stage.
pub const STAGE_BYTES: usize = MAX_CHANNELS * 2 * STAGE_SLOT_BYTES;
/// Buffers of a rank that its peers can map at a time.
pub const BUFFERS: usize = 256;
/// The first of them is the rank's large stage.
pub const STAGE_BUFFER: u32 = 0;
/// Windows that a rank has at a time.
pub const WINDOWS: usize = 64;
/// Signals of one-sided operations from a rank to another.
pub const USER_SIGNALS: usize = 64;
/// Signals that a launch waits for.
pub const AWAITED: usize = 64;
/// Queues of a rank: one per rank and direction.
pub const QUEUES: usize = 32;
/// Where each of them begins, and the end.
pub const QUEUE_BOUNDS: usize = 33;
/// The most lanes of a queue, which carry their parts of a message side by side.
pub const LANES: usize = 4;
/// Messages of at most so many bytes use the first of them only.
pub const SMALL_MESSAGE_BYTES: usize = 64 * 1024;
/// Slots of such a queue.
pub const LANE_SLOTS: usize = 2;
/// Bytes of such a slot.
pub const LANE_SLOT_BYTES: usize = 32 * 1024;
/// Operations of which a rank remembers what its peers called.
pub const ANNOUNCEMENTS: usize = 4;
/// Operations of a program.
pub const MAX_STEPS: usize = 64;
/// Messages that a launch with a small argument sends and receives.
pub const FEW_MESSAGES: usize = 32;
/// Messages that any launch does.
pub const MAX_MESSAGES: usize = 512;
/// Threads of a block, the last warp of which watches: 128 registers each.
pub const BLOCK_THREADS: usize = 512;
/// Threads of a block that sends or receives: many blocks have to run at once.
pub const EXCHANGE_THREADS: usize = 288;
/// Threads of the one block that goes before copy engines: a warp that agrees and one that watches.
pub const EXPECT_THREADS: usize = 64;

/// Kinds of [`Step`].
pub const STEP_COPY: u8 = 0;
/// See [`Step`].
pub const STEP_ACQUIRE: u8 = 1;
/// See [`Step`].
pub const STEP_SIGNAL: u8 = 2;
/// See [`Step`].
pub const STEP_WAIT: u8 = 3;
/// See [`Step`].
pub const STEP_GET: u8 = 4;
/// See [`Step`].
pub const STEP_REDUCE: u8 = 5;
/// See [`Step`].
pub const STEP_PUT: u8 = 6;

/// Where the result of a fold goes: one slice of this rank.
pub const TO_OWN: u8 = 0;
/// Two slices of this rank.
pub const TO_BOTH: u8 = 1;
/// A slice of a peer's.
pub const TO_PEER: u8 = 2;
/// A slice of every rank's.
pub const TO_EVERYONE: u8 = 3;

/// A slice of this rank, and one of all others' inboxes.
pub const TO_INBOXES: u8 = 4;

/// In the place of a peer: all of them.
pub const ALL_PEERS: u8 = 255;

/// A buffer of the user's that the peers cannot reach.
pub const REACH_NONE: u32 = 0;
/// One that no peer needs to reach.
pub const REACH_NEEDLESS: u32 = 1;
/// One that all peers reach at the address that it has here.
pub const REACH_ADDRESS: u32 = 2;
/// One that the peers may have mapped.
pub const REACH_BUFFER: u32 = 3;

/// A program through the stage.
pub const WAY_STAGED: usize = 0;
/// A program on user memory.
pub const WAY_IN_PLACE: usize = 1;
/// Programs that a launch may bring.
pub const WAYS: usize = 2;

/// Why a kernel gave up.
pub const FAULT_NONE: u32 = 0;
/// The host said so.
pub const FAULT_ABORTED: u32 = 1;
/// It waited longer than the limit.
pub const FAULT_DEADLINE: u32 = 2;
/// A peer called something else.
pub const FAULT_MISMATCH: u32 = 3;
/// Another operation of the communicator was running.
pub const FAULT_OVERLAP: u32 = 4;
/// A put goes beyond what is reached of a peer's window.
pub const FAULT_WINDOW: u32 = 5;
/// A peer has left the communicator without what is awaited of it.
pub const FAULT_LEFT: u32 = 6;

/// Inputs are not multiplied.
pub const SCALE_NONE: u8 = 0;
/// They are, by a value.
pub const SCALE_VALUE: u8 = 1;
/// They are, by what lies at an address when the kernel runs.
pub const SCALE_AT: u8 = 2;

/// A slice of a plan (`oxccl_plan::Slice`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Slice {
    /// Number of the buffer (`oxccl_plan::Buffer`).
    pub buffer: u16,
    /// Block.
    pub block: u16,
    /// First part.
    pub part: u16,
    /// Number of parts.
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
    /// `TO_*`, of a fold.
    pub to: u8,
    /// Whether a fold completes the reduction.
    pub finish: u8,
    /// Which signal a wait is for.
    pub signal: u16,
    /// Whether it depends on what steps since the last synchronisation of the block wrote.
    pub after: u16,
    /// What is read; of a fold, at the others.
    pub src: Slice,
    /// What is written.
    pub dst: Slice,
    /// Of a fold: what is read at this rank.
    pub own: Slice,
    /// Of a fold with [`TO_BOTH`] or [`TO_INBOXES`]: the second slice written.
    pub second: Slice,
}

/// What a kernel tells the host, and the host a running kernel: in host memory.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Control {
    /// Set by the host: give up.
    pub abort: u32,
    /// `FAULT_*`, set last.
    pub fault: u32,
    /// Rank waited for, or at fault; −1 for none.
    pub peer: i32,
    /// Step of the program.
    pub step: i32,
    /// Number of the operation on the communicator.
    pub operation: u64,
    /// What this rank called (`Descriptor::to_words`).
    pub own_what: u32,
    /// What the peer called.
    pub their_what: u32,
    /// See `own_what`; of a put, its bytes.
    pub own_count: u64,
    /// See `their_what`; of a put, the bytes of the window that are reached.
    pub their_count: u64,
    /// Of a put, where it begins in the window.
    pub offset: u64,
    /// How long a kernel may wait, in ns; 0: as long as it takes.
    pub limit_ns: u64,
    /// Set by the host, a bit per rank: those that have left in order. What they wrote before is
    /// here.
    pub left: u64,
    /// Collectives so far that read or wrote user memory of peers.
    pub in_place: u64,
    /// Of these, whose blocks copy engines move, as far as they have begun.
    pub by_engines: u64,
    /// Collectives for which they took blocks from other places than the peers told, so that
    /// kernels moved them once more.
    pub engine_mispredictions: u64,
}

/// A channel's counters, in the rank's own GPU memory: they are what changes from launch to launch.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counters {
    /// Windows in packets that its blocks ran so far; the parity chooses the half.
    pub packets: u64,
    /// Signals so far.
    pub phase: u64,
    /// Windows that used the stage so far; the parity chooses the slot.
    pub windows: u64,
    /// Signals that all peers must have made before a slot may be written again.
    pub slot_need: [u64; 2],
    /// Messages so far, of the lane that is this block.
    pub messages: u64,
    /// Agreements so far.
    pub agreements: u64,
    /// Whether a block of this channel is running.
    pub busy: u32,
    /// Whether all ranks have said in packets that they have mapped all large stages.
    pub large: u32,
}

/// The part of the private memory that all channels share.
#[repr(C)]
#[derive(Debug)]
pub struct Shared {
    /// `FAULT_*`: nothing runs any more.
    pub fault: u32,
    /// Blocks of a put that have written their part.
    pub written: u32,
    /// Collectives so far.
    pub operations: u64,
    /// Of these, on user memory.
    pub in_place: u64,
    /// Whether copy engines move the blocks of the collective that is under way.
    pub moved: u64,
    /// What its first block has told the peers of its input, before they did.
    pub told_input: u64,
    /// The same of its output.
    pub told_output: u64,
    /// When the host's memory is to be looked at again.
    pub next_look_ns: u64,
    /// How long a kernel may wait, as it was found there.
    pub limit_ns: u64,
    /// Ranks that have left, as it was found there.
    pub left: u64,
    /// Signals that this rank gave each one.
    pub signals_given: [[u64; USER_SIGNALS]; MAX_RANKS],
    /// Signals of each rank that were waited for.
    pub signals_taken: [[u64; USER_SIGNALS]; MAX_RANKS],
}

/// What ranks have mapped of each other, in the rank's own GPU memory; the host writes it.
#[repr(C)]
#[derive(Debug)]
pub struct Maps {
    /// Generations of this rank's buffers that all peers have mapped; 0 for none.
    pub ready: [u64; BUFFERS],
    /// Where the peers' buffers are mapped here; 0 for nowhere.
    pub bases: [[u64; BUFFERS]; MAX_RANKS],
    /// The peers' windows, by their numbers modulo [`WINDOWS`].
    pub windows: [[Window; WINDOWS]; MAX_RANKS],
}

/// A peer's window.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its number among the communicator's windows, from 1; 0 for none. It is written last.
    pub number: u64,
    /// Where it is mapped here.
    pub base: u64,
    /// Its bytes; 0 where it cannot be mapped.
    pub bytes: u64,
}

/// A rank of a communicator, as kernels see it. Nothing of it changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Lanes of a queue.
    pub lanes: u32,
    /// Packets that a channel has room for behind the large stage, per rank and half.
    pub large_packets: u32,
    /// The memory that ranks write at each other, as mapped here, by rank.
    pub shared: [u64; MAX_RANKS],
    /// Offset of the packets there.
    pub packets_at: u64,
    /// Offset of the lanes' slots there.
    pub lanes_at: u64,
    /// Offset of the stage there.
    pub stage_at: u64,
    /// [`Counters`] of [`MAX_CHANNELS`] channels, then of all lanes: private.
    pub counters: u64,
    /// [`Shared`]: private.
    pub common: u64,
    /// [`Control`], as mapped here.
    pub control: u64,
    /// [`Maps`]: private.
    pub maps: u64,
}

/// A buffer of the user's, as peers find it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// `REACH_*`.
    pub reach: u32,
    /// Number of the registered buffer.
    pub buffer: u32,
    /// Its generation.
    pub generation: u64,
    /// Offset there, or the address.
    pub at: u64,
}

/// A collective.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// Who calls it.
    pub rank: Rank,
    /// The send buffer.
    pub input: u64,
    /// The receive buffer.
    pub output: u64,
    /// Elements per block.
    pub count: u64,
    /// The user's scalar: its bits, or its address.
    pub scale: u64,
    /// Of the descriptor.
    pub descriptor_count: u64,
    /// Of the descriptor.
    pub descriptor_what: u32,
    /// Bytes of an element.
    pub element_bytes: u32,
    /// Number of the element type (`oxccl_plan::DataType`).
    pub dtype: u8,
    /// Number of the reduction (`oxccl_plan::ReduceOp`).
    pub op: u8,
    /// Number of the collective (`oxccl_plan::Collective`).
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
    /// The same with the large stage.
    pub large_window_elems: u64,
    /// Part boundaries fall on multiples of this.
    pub align_elems: u64,
    /// Parts per window.
    pub parts: u32,
    /// Signals per window.
    pub signals: u32,
    /// The signal by which peers have read what was staged.
    pub done_signal: u32,
    /// Whether the stage is used.
    pub staged: u32,
    /// Number of steps.
    pub nsteps: u32,
    /// Signals that the agreement stands for: the steps begin behind them.
    pub entered: u32,
    /// The steps.
    pub steps: [Step; MAX_STEPS],
}

/// A collective as programs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// What is called.
    pub call: Collective,
    /// The rank's send buffer, as peers find it.
    pub input: Place,
    /// Its receive buffer.
    pub output: Place,
    /// Elements of each block that are a channel's, whatever the way: the blocks of a launch may
    /// agree on different ones.
    pub share_elems: u64,
    /// Whether the ranks agree on a way, and on the large stage; else it is [`WAY_STAGED`].
    pub agrees: u32,
    /// Whether copy engines are at work between `oxccl_expect` and the program.
    pub engines: u32,
    /// Where they take blocks from: the peers' send buffers, by rank; 0 where they take none.
    pub expected: [u64; MAX_RANKS],
    /// `WAY_*`.
    pub ways: [Way; WAYS],
}

/// A message of send and receive.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Message {
    /// The user's buffer.
    pub data: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Of the descriptor.
    pub what: u32,
    /// Padding.
    pub unused: u32,
}

/// Whose messages a group's are. A queue is a peer and a direction; each lane of a queue is a
/// block, and carries its part of the queue's large messages, the first one all of the small ones.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// Who calls it.
    pub rank: Rank,
    /// Lanes that this launch uses of each queue: one where all messages are small.
    pub lanes: u32,
    /// Padding.
    pub unused: u32,
    /// The queues: peer × 2, + 1 for sending.
    pub queues: [u32; QUEUES],
    /// The messages of `queues[i]` are those from `first[i]` to before `first[i + 1]`.
    pub first: [u32; QUEUE_BOUNDS],
    /// Padding.
    pub unused_too: u32,
}

/// A group with few messages: launches hold their arguments until they run, and there is not much
/// room for those that wait.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FewMessages {
    /// Whose.
    pub exchange: Exchange,
    /// The messages.
    pub messages: [Message; FEW_MESSAGES],
}

/// A group with many messages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ManyMessages {
    /// Whose.
    pub exchange: Exchange,
    /// The messages.
    pub messages: [Message; MAX_MESSAGES],
}

/// Writes into a peer's window, and signals; or only signals.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// Who calls it.
    pub rank: Rank,
    /// To whom.
    pub peer: u32,
    /// Which signal.
    pub signal: u32,
    /// What is written.
    pub data: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Number of the window, from 1; 0 where nothing is written.
    pub window: u64,
    /// Where this rank's own window begins, for puts to itself.
    pub own: u64,
    /// Offset in the window.
    pub offset: u64,
}

/// Signals of a rank.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Awaited {
    /// Which rank.
    pub peer: u32,
    /// Which signal.
    pub signal: u32,
    /// How many more.
    pub count: u64,
}

/// Waits for signals; each is named once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SignalWait {
    /// Who calls it.
    pub rank: Rank,
    /// How many.
    pub count: u32,
    /// Of the descriptor.
    pub what: u32,
    /// Which.
    pub awaited: [Awaited; AWAITED],
}
