//! Puts, signals and waits for them.

use super::Address;
use crate::error::Error;

/// Bytes for a peer's window.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// Where they are.
    pub from: Address,
    /// How many.
    pub bytes: usize,
    /// Number of the window, the same on all ranks.
    pub window: u64,
    /// Where this rank's own window lies, for puts to itself.
    pub own: Address,
    /// Where in the window they go, in bytes.
    pub offset: usize,
}

/// Signals to wait for.
#[derive(Clone, Copy, Debug)]
pub struct Awaiting {
    /// From which rank.
    pub peer: u32,
    /// Which signal.
    pub signal: u32,
    /// How many more.
    pub count: u64,
}

/// A one-sided operation.
#[derive(Clone, Debug)]
pub enum OneSided {
    /// Writes, if there is something to write, then counts up a signal of the peer.
    Signal(u32, Option<Put>, u32),
    /// Waits for signals.
    Wait(Vec<Awaiting>),
}

impl OneSided {
    /// Whether it gives peers nothing.
    pub fn only_waits(&self) -> bool {
        matches!(self, OneSided::Wait(_))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            OneSided::Signal(_, Some(_), _) => "put_signal",
            OneSided::Signal(_, None, _) => "signal",
            OneSided::Wait(_) => "wait_signal",
        }
    }
}

/// What a put of so many bytes at an offset is told, of which the peer's window has less.
pub(crate) fn beyond(rank: u32, (bytes, offset): (u64, u64), (peer, len): (u32, u64)) -> Error {
    let what = format!(
        "rank {rank} puts {bytes} bytes at offset {offset} into the window of rank {peer}, of which \
         it reaches {len} bytes"
    );
    Error::usage(what, "register windows of equal size on all ranks, in memory from ncclMemAlloc")
}
