//! The multiprocessors of a GPU that communicators of this process may hold at a time, with blocks
//! that wait for their peers.

use crate::device::cuda::driver::Gpu;
use crate::log::{self, Level, Subsystem};
use std::sync::atomic::{AtomicU32, Ordering};

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
            "a communicator takes {channels} channels; with it those of this process hold {all} of \
             {there} multiprocessors of GPU {index}: {what}"
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
    fn what_ended_communicators_held_is_free_again_once() {
        static ALL: AtomicU32 = AtomicU32::new(0);
        let (first, second) = (Held::new(&ALL), Held::new(&ALL));
        assert_eq!((first.take(32), second.take(25)), (32, 57));
        assert_eq!(first.free_of(132), 75);
        assert_eq!(first.free_of(50), 0, "more than there are");
        first.give_back();
        first.give_back();
        assert_eq!(second.free_of(132), 107);
        drop(first);
        drop(second);
        assert_eq!(ALL.load(Ordering::Relaxed), 0);
    }
}
