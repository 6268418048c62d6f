//! The multiprocessors of a GPU that communicators of this process may hold at a time, with blocks
//! that wait for their peers.

use crate::device::cuda::driver::Gpu;
use crate::device::cuda::driver::library::CLUSTER_BLOCKS;
use crate::log::{self, Level, Subsystem};
use oxccl_plan::words::counted;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns the multiprocessors of a GPU that may be at work, those in clusters included, so that
/// each cluster finds its place; 0 if the GPU runs none. The multiprocessors of a cluster are of
/// one part of the GPU, and of each part other blocks may leave three that are too few for a
/// cluster. A part has those of at least three clusters (16 or 18 on an H100 or H200).
pub fn room_for_clusters(multiprocessors: u32, clustered_blocks: u32) -> u32 {
    let parts = clustered_blocks.div_ceil(3 * CLUSTER_BLOCKS);
    if parts == 0 { 0 } else { multiprocessors.saturating_sub((CLUSTER_BLOCKS - 1) * parts) }
}

/// The multiprocessors of a GPU that one communicator holds, until this is dropped.
pub struct Held {
    /// The number that all communicators hold there.
    all: &'static AtomicU32,
    own: AtomicU32,
}

impl Held {
    /// Creates one that holds nothing yet. `all` is the GPU's sum.
    pub fn new(all: &'static AtomicU32) -> Self {
        Self { all, own: AtomicU32::new(0) }
    }

    /// Returns how many of `number` multiprocessors no communicator holds.
    pub fn free_of(&self, number: u32) -> u32 {
        number.saturating_sub(self.all.load(Ordering::Relaxed))
    }

    /// Returns how many the other communicators hold.
    pub fn of_others(&self) -> u32 {
        let (all, own) = (self.all.load(Ordering::Relaxed), self.own.load(Ordering::Relaxed));
        all.saturating_sub(own)
    }

    /// Holds `number` multiprocessors in place of those held before; returns the number that all
    /// communicators hold now.
    fn take(&self, number: u32) -> u32 {
        self.give_back();
        self.own.store(number, Ordering::Relaxed);
        self.all.fetch_add(number, Ordering::Relaxed) + number
    }

    /// Holds `number` multiprocessors, and logs whether all that communicators hold fits the GPU.
    pub fn settle(&self, gpu: &Gpu, number: u32, channels: u32) {
        let (all, there, index) = (self.take(number), gpu.multiprocessors, gpu.index);
        let (level, what) = if all > there {
            let hint = "at work together they may wait for each other for ever: destroy those that \
                        are not needed, or give the first ones a smaller maxCTAs";
            (Level::Warn, hint)
        } else {
            (Level::Info, "all of them may be at work together")
        };
        let text = format!(
            "a communicator takes {}; with it those of this process hold {all} of {there} \
             multiprocessors of GPU {index}: {what}",
            counted(channels, "channel", "channels")
        );
        log::line(level, Subsystem::Init, &text);
    }

    /// Gives back all multiprocessors that the communicator holds.
    pub fn give_back(&self) {
        let own = self.own.swap(0, Ordering::Relaxed);
        self.all.fetch_sub(own, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_find_their_place_on_every_part() {
        assert_eq!(room_for_clusters(132, 128), 132 - 3 * 11, "at most 11 parts");
        assert_eq!(room_for_clusters(14, 12), 11, "a part of a GPU alone");
        assert_eq!(room_for_clusters(108, 0), 0, "an older GPU");
    }

    #[test]
    fn what_ended_communicators_held_is_free_again_once() {
        static ALL: AtomicU32 = AtomicU32::new(0);
        let (first, second) = (Held::new(&ALL), Held::new(&ALL));
        assert_eq!((first.take(32), second.take(25)), (32, 57));
        assert_eq!(first.free_of(132), 75);
        assert_eq!((first.of_others(), second.of_others()), (25, 32));
        assert_eq!(first.free_of(50), 0, "more than there are");
        first.give_back();
        first.give_back();
        assert_eq!(second.free_of(132), 107);
        assert_eq!((first.of_others(), second.of_others()), (25, 0));
        drop(first);
        drop(second);
        assert_eq!(ALL.load(Ordering::Relaxed), 0);
    }
}
