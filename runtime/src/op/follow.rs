//! The messages between hosts that carry operations, for those who follow how far they have come.

use oxccl_net::Observer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The latest messages of a direction of which the size and the operation are known.
pub const LATEST: usize = 4;

/// How far the messages with a peer over a lane have come, in one direction: the numbers of those
/// so far that have reached each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Messages that operations have handed over, or for which they wait or have waited.
    pub asked: u64,
    /// Messages that the transport has taken, or that have come.
    pub moved: u64,
    /// Messages that have left, or that operations have taken.
    pub over: u64,
    /// The bytes of data of the latest messages, by number modulo [`LATEST`]; 0 where the transport
    /// does not tell.
    pub bytes: [usize; LATEST],
    /// The numbers of their operations plus one; 0 for none that is known.
    pub operations: [u64; LATEST],
}

impl Carried {
    /// Returns the same with all messages as those of one operation.
    pub fn of(self, operation: u64) -> Self {
        Self { operations: [operation + 1; LATEST], ..self }
    }
}

/// A lane with a rank of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The other rank.
    pub peer: u32,
    /// The number of the lane.
    pub number: u32,
    /// The most bytes of data of a message.
    pub slot_bytes: usize,
    /// The bytes of a message beside its data.
    pub header_bytes: usize,
}

/// The operation to which the messages belong that are handed over or awaited at present.
#[derive(Clone, Default)]
pub struct Present(Arc<AtomicU64>);

impl Present {
    /// Sets the number of the operation.
    pub fn set(&self, operation: u64) {
        self.0.store(operation + 1, Ordering::Relaxed);
    }

    /// Returns the number of the operation; `None` before the first one.
    pub fn get(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// Who has messages followed.
pub trait Watcher: Send + Sync {
    /// Returns whether it asks for that at present.
    fn asks(&self) -> bool;
    /// Returns what follows the messages of a lane, of which there are none so far.
    fn follow(&self, lane: Lane) -> Box<dyn Follower>;
    /// Returns what observes the messages of a lane in one direction, where a thread of its own
    /// calls the transport and tells of each of them.
    fn observe(&self, lane: Lane, sends: bool, present: Present) -> Arc<dyn Observer>;
}

/// What follows the messages of a lane. Its functions may never return: nobody may wait for a lock
/// that the caller holds.
pub trait Follower: Send {
    /// Notes how far the messages have come: those sent, and those received, as `look` tells. It is
    /// called only if somebody asks for that.
    fn note(&mut self, look: &mut dyn FnMut() -> [Carried; 2]);
    /// Notes that the operation has ended, whose messages are all those under way.
    fn end(&mut self);
}
