//! Sends and receives of a group, and messages between hosts.

use super::{
    FEW_MESSAGES, MAX_MESSAGES, NET_CALLS, NET_PACKETS, NET_SLOTS, QUEUE_BOUNDS, QUEUES, Rank,
};

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
    /// 1 if somebody has the messages followed.
    pub followed: u32,
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

/// The arrival of a message, or of a part of one, in a slot.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Arrival {
    /// The mark of the message, written last: the last 32 bits of its number on its queue, from 1,
    /// and above them a digest of the other words.
    pub mark: u64,
    /// The second word of the operation's descriptor.
    pub count: u64,
    /// The first word of the descriptor; in the upper half the bytes in the slot.
    pub what: u64,
    /// Padding.
    pub unused: u64,
}

/// A small message as packets, each of which tells by itself that it has come: the second word of
/// the operation's descriptor, the first one with the bytes of data as in [`Arrival`], and the
/// data. Packets behind the data stay as they were.
#[repr(C)]
#[derive(Debug, Default)]
pub struct PackedMessage {
    /// The packets: 4 bytes, the number of the message, 4 bytes, and the complement of the number
    /// without its last bit.
    pub packets: [[u64; 2]; NET_PACKETS],
}

/// The words by which kernels and the proxy tell each other of the messages with a rank of another
/// host. They lie in memory of the host.
#[repr(C)]
#[derive(Debug, Default)]
pub struct NetWords {
    /// Small messages that the kernels have written, by number modulo [`NET_SLOTS`].
    pub outgoing_packed: [PackedMessage; NET_SLOTS],
    /// Small messages that have come, which are in their slots as well.
    pub incoming_packed: [PackedMessage; NET_SLOTS],
    /// Other messages that the kernels have written, by number modulo [`NET_SLOTS`].
    pub outgoing: [Arrival; NET_SLOTS],
    /// The number of messages that the kernels have taken.
    pub taken: u64,
    /// The words of the descriptor of the operation that waits for a message, as in [`Arrival`].
    pub wanted_what: u64,
    /// The second word.
    pub wanted_count: u64,
    /// The number of that operation among the collectives.
    pub wanted_by: u64,
    /// The number of the latest message for which a kernel waits; written last.
    pub wanted: u64,
    /// The operations of messages that are sent, where somebody has them followed, by number of the
    /// message modulo [`NET_CALLS`]: the last 16 bits of the message's number, from 1, and in 48
    /// bits below them that of the call, as in [`Exchange::call`].
    pub outgoing_calls: [u64; NET_CALLS],
    /// The same of messages that are awaited.
    pub incoming_calls: [u64; NET_CALLS],
    /// Padding to a line that the other side writes.
    pub unused: [u64; 11],
    /// Messages that have come, by number modulo [`NET_SLOTS`].
    pub incoming: [Arrival; NET_SLOTS],
    /// The number of messages up to which there are free slots.
    pub room: u64,
    /// Not 0 once the peer has left, and nothing of it has come for a while.
    pub left: u64,
    /// Padding to the next words.
    pub unused_too: [u64; 14],
}
