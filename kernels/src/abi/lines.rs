//! Lines and chunks: what carries data between GPUs whose link takes 128 bytes at once.

use super::{BLOCK_THREADS, Collective, MAX_CHANNELS, MAX_RANKS};

/// Bytes of a slot of lines, which carries a unit of data.
pub const UNIT_BYTES: usize = 1024;
/// Bytes of data in a slot of lines: each line of 128 bytes has 120.
pub const UNIT_DATA_BYTES: usize = 960;
/// Bytes of data in a slot of packets: half of it are numbers.
pub const SLOT_DATA_BYTES: usize = UNIT_BYTES / 2;
/// In place of the number of slots of a unit: a unit is a slot of packets.
pub const SLOT_OF_PACKETS: u32 = u32::MAX;
/// Warps of a block that move lines.
pub const LINE_WARPS: usize = BLOCK_THREADS / 32 - 1;
/// Channels of lines.
pub const LINE_CHANNELS: usize = MAX_CHANNELS * LINE_WARPS;
/// The most slots of lines that a unit of a message takes.
pub const MESSAGE_SLOTS: usize = 4;
/// Threads that carry a lane of messages in lines: half of a block.
pub const MESSAGE_THREADS: usize = BLOCK_THREADS / 2;
/// Warps of these that move lines.
pub const MESSAGE_WARPS: usize = MESSAGE_THREADS / 32 - 1;
/// The most lanes of a queue of messages in lines.
pub const LINE_LANES: usize = 32;
/// Bytes of a chunk, which carries data alone.
pub const CHUNK_BYTES: usize = 4096;
/// The most chunks that a channel has room for: those between two ranks.
pub const CHUNK_SLOTS: usize = 8;
/// The most thread blocks that carry chunks between two ranks, and the lanes of large messages
/// there: more are not faster (docs/performance.md).
pub const CHUNK_BLOCKS: usize = 20;
/// The same among more than two ranks.
pub const MORE_CHUNK_BLOCKS: usize = 24;
/// The number of channels of chunks after which those begin, among more than two ranks, on which
/// results are passed on: one for each warp of a block that folds.
pub const SECOND_CHUNKS: usize = MORE_CHUNK_BLOCKS * (LINE_WARPS / 3);
/// The same of lines.
pub const SECOND_LINES: usize = MAX_CHANNELS * (LINE_WARPS / 3);
/// The most channels of chunks on an edge.
pub const CHUNK_CHANNELS: usize = 2 * SECOND_CHUNKS;
/// The bit of a collective in the word that counts the users of lines.
pub const LINE_COLLECTIVE: u32 = 1 << 30;
/// The offset in place of a slice that is not there.
pub const NO_SLICE: u64 = u64::MAX;

/// The counters of a channel of lines or chunks for a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LineCounters {
    /// Slots that this rank has put on its edge to the peer.
    pub put: u64,
    /// Slots that this rank has taken from the peer's edge.
    pub taken: u64,
    /// Not 0 while a block sends messages on this channel and those after it.
    pub putting: u32,
    /// Not 0 while a block receives messages there.
    pub taking: u32,
}

/// The words of a channel of chunks, in the receiver's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkWords {
    /// For each slot, the digest of the last call whose first chunk was put there, and the lower
    /// half of the number of that chunk.
    pub opened: [u64; CHUNK_SLOTS],
    /// Chunks that were put and have arrived.
    pub arrived: u64,
    /// Padding, so that the words of a channel have cache lines of their own.
    pub unused: [u64; 23],
}

/// The slices that a program over lines exchanges with a rank, as offsets in bytes;
/// [`NO_SLICE`] for none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LinePeer {
    /// The offset in the input of the slice that is put.
    pub put_at: u64,
    /// Bytes of that slice.
    pub put_bytes: u64,
    /// The offset in the output of the slice that is taken.
    pub take_at: u64,
    /// Bytes of that slice.
    pub take_bytes: u64,
}

/// The slices that a rank of two exchanges with the other one, as addresses; 0 for none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineFlow {
    /// The slice that is put.
    pub put: u64,
    /// Bytes of that slice.
    pub put_bytes: u64,
    /// The place at which what comes is stored, folded or as it is.
    pub to: u64,
    /// Bytes of what comes.
    pub to_bytes: u64,
    /// The slice with which it is folded.
    pub own: u64,
}

/// The argument of a kernel of lines: a collective as a program in phases
/// (`oxccl_plan::lines::Phases`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LineProgram {
    /// The collective.
    pub call: Collective,
    /// Units of the longest slice.
    pub units: u64,
    /// Slots of lines that a unit takes, each with [`UNIT_DATA_BYTES`] of a slice; 0 if units are
    /// chunks, or [`SLOT_OF_PACKETS`].
    pub slots: u32,
    /// Thread blocks that carry units; those behind them copy.
    pub blocks: u32,
    /// Not 0 if what comes is stored over what is put before it was read for that.
    pub overlaps: u32,
    /// A bit for each rank to which something of the input is put.
    pub puts: u32,
    /// A bit for each rank whose message comes into the middle phase; 0 if there is none.
    pub middle_from: u32,
    /// A bit for each rank to which the middle phase passes its result on.
    pub middle_to: u32,
    /// A bit for each rank from which something is taken.
    pub takes: u32,
    /// The number of channels after which those of results begin; 0 if no rank passes one on.
    pub second: u32,
    /// Warps of a channel.
    pub roles: u32,
    /// Not 0 if the fold completes the reduction.
    pub finish: u32,
    /// The upper half of the numbers of the call's lines.
    pub digest: u32,
    /// 2¹⁶ over the number of these warps, rounded up: a division takes kernels long.
    pub roles_inverse: u32,
    /// The offset in the input of the slice that is folded.
    pub own_at: u64,
    /// Bytes of the slices of the middle phase.
    pub middle_bytes: u64,
    /// The offset in the output of the result; [`NO_SLICE`] if it is not kept.
    pub result_at: u64,
    /// The offset in the input of the slice that is copied.
    pub copy_from: u64,
    /// The offset in the output to which it is copied; [`NO_SLICE`] for no copy.
    pub copy_to: u64,
    /// Bytes that are copied.
    pub copy_bytes: u64,
    /// The slices that are exchanged between two ranks, or the operand of a rank of a chain and the
    /// place of the result.
    pub flow: LineFlow,
    /// The slices that are exchanged, by rank.
    pub peers: [LinePeer; MAX_RANKS],
}

/// The most collectives of a batch: their programs are the argument of a kernel, which is at most
/// 32,764 bytes long, and the driver copies it for each launch.
pub const BATCH: usize = 16;
/// The bounds of the programs of a batch.
pub const BATCH_BOUNDS: usize = BATCH + 1;

/// The argument of a kernel that runs collectives of a group side by side, as one collective to the
/// peers. They are alike but for their buffers, counts and operations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LineBatch {
    /// The programs. The thread blocks of each are those of all.
    pub programs: [LineProgram; BATCH],
    /// The number of programs.
    pub count: u32,
    /// The channels of `programs[i]` are those from `first[i]` to before `first[i + 1]`, counted
    /// first over the first channels of all blocks.
    pub first: [u32; BATCH_BOUNDS],
}
