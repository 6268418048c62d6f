//! Sends and receives of a group.

use super::{FEW_MESSAGES, MAX_MESSAGES, QUEUE_BOUNDS, QUEUES, Rank};

/// The bit of the numbers by which kernels tell of messages, which tells them from collectives.
pub const MESSAGES_BEGUN: u64 = 0x4000_0000_0000_0000;

/// A message that is sent or received.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Message {
    /// The address of the user's buffer.
    pub data: u64,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// The first word of the descriptor.
    pub what: u32,
    /// Slots of lines that a unit of the message takes; 0 if it travels in chunks, or
    /// [`SLOT_OF_PACKETS`](super::SLOT_OF_PACKETS).
    pub slots: u32,
    /// The upper half of the numbers of the message's lines.
    pub digest: u32,
    /// Lanes that carry the message in lines or chunks.
    pub lanes: u32,
}

/// The queues of a group of messages. A queue is a peer and a direction. Each lane of a queue
/// carries its part of the queue's large messages; the first lane carries all of the small ones.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// The rank that calls.
    pub rank: Rank,
    /// The number of the call among the rank's operations outside of graphs, from 1; 0 in a graph.
    pub call: u64,
    /// Lanes of each queue that this launch uses: one if all messages are small.
    pub lanes: u32,
    /// Blocks of each queue, as many as lanes; in lines halves of blocks, of which each takes one
    /// lane after the other.
    pub blocks: u32,
    /// The queues: the peer's number in the communicator × 2, + 1 for sending.
    pub queues: [u32; QUEUES],
    /// The messages of `queues[i]` are those from `first[i]` to before `first[i + 1]`.
    pub first: [u32; QUEUE_BOUNDS],
    /// The number of queues.
    pub count: u32,
}

/// A group with few messages, as a small argument: launches hold their arguments until they run,
/// and there is not much room for those that wait.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FewMessages {
    /// The queues of the messages.
    pub exchange: Exchange,
    /// The messages.
    pub messages: [Message; FEW_MESSAGES],
}

/// A group with many messages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ManyMessages {
    /// The queues of the messages.
    pub exchange: Exchange,
    /// The messages.
    pub messages: [Message; MAX_MESSAGES],
}
