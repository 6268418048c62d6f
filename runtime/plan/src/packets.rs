//! Packets of kernels on GPUs: which calls they carry, and how many thread blocks a call takes.
//!
//! A line is what a packet has room for. A thread block's channel has two halves of room for the
//! packets of each rank, which windows use in turn. How a thread block counts its windows is in
//! `kernels/cuda/packets.cuh` (`run_windows`); `tests/packets.rs` has a model of both.

use crate::Collective;

/// What a communicator has for packets: facts that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Channels: thread blocks that a launch may have.
    pub channels: u64,
    /// Lines of a rank that a channel has room for at first, in each half.
    pub lines: u64,
    /// Threads of a thread block that move data.
    pub movers: u64,
}

impl Room {
    /// Lines of a rank for which all channels have room at a time.
    pub fn all_lines(&self) -> u64 {
        self.channels * self.lines
    }

    /// Whether packets carry so many lines per block of a collective; `most`: where they take
    /// several windows, for which all ranks have to hear from all.
    pub fn fits(&self, collective: Collective, lines: u64, most: u64) -> bool {
        lines <= self.all_lines() || (!collective.rooted() && lines <= most)
    }

    /// Thread blocks for so many lines per block of a collective.
    pub fn blocks(&self, lines: u64, nranks: u32) -> u64 {
        let least = lines.div_ceil(self.lines).clamp(1, self.channels);
        (lines * u64::from(nranks)).div_ceil(self.movers).clamp(least, self.channels)
    }
}
