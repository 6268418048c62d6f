//! Sends and receives.

use oxccl_plan::DataType;

/// A send or receive of a group.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The peer; this rank itself for a message to itself.
    pub peer: u32,
    /// True if this rank sends.
    pub send: bool,
    /// The buffer.
    pub data: *mut u8,
    /// The size of the buffer in bytes.
    pub bytes: usize,
    /// The type of the data; both sides have to give the same type.
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
    /// The name of the operation that the transfers make up, for errors.
    pub operation: &'static str,
    /// The transfers in the order of calls; messages of a rank to itself come in equal pairs.
    pub list: Vec<Transfer>,
}
