//! Packets of kernels on GPUs: the calls that packets carry, and the thread blocks that a call
//! takes.
//!
//! A line is the data that one packet carries. The channel of a thread block has, for each rank,
//! two halves of room for packets; windows use the halves in turn. A thread block counts its
//! windows in `run_windows` of `kernels/cuda/packets.cuh`; `tests/packets.rs` has a model of both.

use crate::Collective;

/// The room for packets that a communicator has: facts that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Channels: the thread blocks that a launch may have.
    pub channels: u64,
    /// Lines of a rank that a channel has room for at first, in each half.
    pub lines: u64,
    /// Threads of a thread block that move data.
    pub movers: u64,
}

impl Room {
    /// Returns the number of lines of a rank for which all channels together have room at a time.
    pub fn all_lines(&self) -> u64 {
        self.channels * self.lines
    }

    /// Returns whether packets carry so many lines per block of a collective. More lines than there
    /// is room for, up to `most`, take several windows; for these all ranks have to hear from all.
    pub fn fits(&self, collective: Collective, lines: u64, most: u64) -> bool {
        lines <= self.all_lines() || (!collective.rooted() && lines <= most)
    }

    /// Returns the number of thread blocks for so many lines per block of a collective.
    pub fn blocks(&self, lines: u64, nranks: u32) -> u64 {
        let least = lines.div_ceil(self.lines).clamp(1, self.channels);
        (lines * u64::from(nranks)).div_ceil(self.movers).clamp(least, self.channels)
    }
}
