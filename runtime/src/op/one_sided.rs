//! Puts, signals, and waits for signals.

use super::Address;
use crate::error::Error;
use oxccl_plan::words::counted;

/// The bytes of a put into a peer's window.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// The address of the bytes.
    pub from: Address,
    /// The number of bytes.
    pub bytes: usize,
    /// The number of the window, the same on all ranks.
    pub window: u64,
    /// The address of this rank's own window, for puts to itself.
    pub own: Address,
    /// The offset in the window, in bytes.
    pub offset: usize,
}

/// The signals of a rank that an operation waits for.
#[derive(Clone, Copy, Debug)]
pub struct Awaiting {
    /// The rank that sends the signals.
    pub peer: u32,
    /// The number of the signal.
    pub signal: u32,
    /// The number of further signals to wait for.
    pub count: u64,
}

/// A one-sided operation.
#[derive(Clone, Debug)]
pub enum OneSided {
    /// Writes a put, if there is one, then increments a signal of the peer.
    Signal(u32, Option<Put>, u32),
    /// Waits for signals.
    Wait(Vec<Awaiting>),
}

impl OneSided {
    /// Returns whether the operation gives peers nothing.
    pub fn only_waits(&self) -> bool {
        matches!(self, OneSided::Wait(_))
    }

    /// Returns the name of the operation.
    pub fn name(&self) -> &'static str {
        match self {
            OneSided::Signal(_, Some(_), _) => "put_signal",
            OneSided::Signal(_, None, _) => "signal",
            OneSided::Wait(_) => "wait_signal",
        }
    }
}

/// Returns the error of a put of so many bytes at an offset that exceeds the peer's window.
pub(crate) fn beyond(rank: u32, (bytes, offset): (u64, u64), (peer, len): (u32, u64)) -> Error {
    let what = format!(
        "rank {rank} puts {} at offset {offset} into the window of rank {peer}, of which it \
         reaches {}",
        counted(bytes, "byte", "bytes"),
        counted(len, "byte", "bytes")
    );
    Error::usage(what, "register windows of equal size on all ranks, in memory from ncclMemAlloc")
}
