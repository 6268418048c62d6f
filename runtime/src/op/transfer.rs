//! Sends and receives.

use oxccl_plan::DataType;

/// A send or receive of a group.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The other side; this rank itself for a message to itself.
    pub peer: u32,
    /// Whether this rank sends.
    pub send: bool,
    /// The buffer.
    pub data: *mut u8,
    /// Its size.
    pub bytes: usize,
    /// What it holds; both sides have to say the same.
    pub dtype: DataType,
}

// SAFETY: by the contract of send and receive the buffer stays valid until the call is complete,
// whichever thread runs it.
unsafe impl Send for Transfer {}
// SAFETY: as above; a `Transfer` is only read.
unsafe impl Sync for Transfer {}

/// Transfers that are launched together.
#[derive(Debug)]
pub struct Transfers {
    /// The name of the operation that they make up, for errors.
    pub operation: &'static str,
    /// In the order of calls; messages to itself come in equal pairs.
    pub list: Vec<Transfer>,
}
