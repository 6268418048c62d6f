//! The messages between hosts that carry operations, for those who follow how far they have come.

use oxccl_net::Observer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The latest messages of a direction of which the size is known.
pub const LATEST: usize = 4;
/// The latest messages of kernels in a direction of which the operation is known.
pub const TOLD: usize = 16;

/// The operations of the messages in a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operations {
    /// None is known.
    #[default]
    Unknown,
    /// All messages are those of the operation with this number.
    One(u64),
    /// The numbers plus one of those of the latest messages, by number modulo [`TOLD`]; 0 for none
    /// that is known.
    Latest([u64; TOLD]),
}

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
    /// The number behind that of the latest message whose bytes are there.
    pub sized: u64,
    /// The operations that asked for them.
    pub operations: Operations,
}

impl Carried {
    /// Returns the same with all messages as those of one operation.
    pub fn of(self, operation: u64) -> Self {
        Self { operations: Operations::One(operation), ..self }
    }

    /// Returns the number of the first message whose operation may be known.
    pub fn first_known(&self) -> u64 {
        match self.operations {
            Operations::Latest(_) => self.asked.saturating_sub(TOLD as u64),
            _ => 0,
        }
    }

    /// Returns the number of the operation of a message from the first known one on.
    pub fn operation(&self, message: u64) -> Option<u64> {
        match &self.operations {
            Operations::Unknown => None,
            Operations::One(operation) => Some(*operation),
            Operations::Latest(plus_one) => plus_one[message as usize % TOLD].checked_sub(1),
        }
    }

    /// Returns whether an operation may be known here before it is reported.
    pub fn is_ahead(&self) -> bool {
        matches!(self.operations, Operations::Latest(_))
    }

    /// Returns the bytes of a message; 0 if they are not known.
    pub fn bytes_of(&self, message: u64) -> usize {
        let is_known = message < self.sized && message + LATEST as u64 >= self.sized;
        if is_known { self.bytes[message as usize % LATEST] } else { 0 }
    }

    /// Returns the same as of when so many messages had been asked for.
    pub fn up_to(self, asked: u64) -> Self {
        let (moved, over) = (self.moved.min(asked), self.over.min(asked));
        Self { asked, moved, over, ..self }
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

/// A function that returns how far the messages of a lane have come: those sent, those received.
pub type Look = Box<dyn FnMut() -> [Carried; 2] + Send>;

/// Who has messages followed.
pub trait Watcher: Send + Sync {
    /// Returns whether it asks for that at present.
    fn asks(&self) -> bool;
    /// Returns what follows the messages of a lane, of which there are none so far.
    fn follow(&self, lane: Lane) -> Box<dyn Follower>;
    /// Has a thread of the watcher look how far the messages of a lane have come, of which there
    /// are none so far.
    fn look_at(&self, lane: Lane, look: Look);
    /// Returns what observes the messages of a lane in one direction, where a thread of its own
    /// calls the transport and tells of each of them.
    fn observe(&self, lane: Lane, sends: bool, present: Present) -> Arc<dyn Observer>;
}

/// A listener to the runs of an operation in host memory: to the only one, or to those of the graph
/// that has captured it.
pub trait Runs: Send + Sync {
    /// Notes that the operation begins to move data now, with this number among those of its rank.
    /// Returns a guard, which is dropped when it has ended. The call and the drop may never return:
    /// nobody may wait for a lock that the caller holds.
    fn begin(&self, number: u64) -> Box<dyn Send>;
}

/// The runs of an operation that a graph on a GPU has captured.
pub trait Replayed: Send {
    /// Returns when each channel began and ended, in ns, in the next run that has ended; `None` if
    /// none has, or if it began at `before_ns` or later. Runs that came too fast are left out.
    fn next(&mut self, before_ns: u64) -> Option<Vec<(u64, u64)>>;
    /// Returns whether no run will follow, as the graph is gone.
    fn is_over(&self) -> bool;
}

/// A follower of the messages of a lane. [`note`](Self::note) and [`end`](Self::end) may never
/// return: nobody may wait for a lock that the caller holds.
pub trait Follower: Send {
    /// Notes how far the messages have come: those sent, and those received, as `look` tells. It is
    /// called only if somebody asks for that.
    fn note(&mut self, look: &mut dyn FnMut() -> [Carried; 2]);
    /// Notes that the operation has ended, whose messages are all those under way.
    fn end(&mut self);
    /// Notes that messages may move that nobody asks for, while none that is followed is under way.
    fn pass(&mut self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_later_is_not_known_before() {
        let latest = std::array::from_fn(|i| if i == 3 { 0 } else { 100 + i as u64 });
        let (operations, bytes) = (Operations::Latest(latest), [16, 17, 18, 19]);
        let carried = Carried { asked: 20, moved: 19, over: 18, bytes, sized: 20, operations };
        assert_eq!(carried.first_known(), 4);
        let known = [4, 18, 19].map(|message| carried.operation(message));
        assert_eq!(known, [Some(103), Some(101), None]);
        let before = carried.up_to(18);
        assert_eq!((before.asked, before.moved, before.over), (18, 18, 18));
        // Sizes are those of the latest messages, also of the ones that are told later.
        assert_eq!(
            [15, 16, 17, 19, 20].map(|message| before.bytes_of(message)),
            [0, 16, 17, 19, 0]
        );
        let one = carried.of(7);
        assert_eq!((one.first_known(), one.operation(0)), (0, Some(7)));
    }
}
