//! Collectives with equal blocks.

use super::Address;
use oxccl_plan::{DataType, Plan, Program, ReduceOp, Spec};

/// The programs of this rank for one kind of call.
pub struct Programs {
    /// For any user memory.
    pub any: (Plan, Program),
    /// For user memory that all ranks map.
    pub mapped: Option<(Plan, Program)>,
}

/// A call as the user made it.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What is done, by how many ranks, with which root.
    pub spec: Spec,
    /// The send buffer.
    pub input: *const u8,
    /// The receive buffer.
    pub output: *mut u8,
    /// Elements per block.
    pub count: u64,
    /// Their type.
    pub dtype: DataType,
    /// How they are combined.
    pub op: ReduceOp,
    /// By what this rank's input is multiplied first; the product is rounded once.
    pub scale: Option<Scale>,
}

// SAFETY: by the contract of the collectives the buffers and the factor stay valid until the call
// is complete, whichever thread runs it.
unsafe impl Send for Call {}
// SAFETY: as above; a `Call` is only read.
unsafe impl Sync for Call {}

/// A factor of the type of a call's elements.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    /// Its bytes, from the first one on.
    Value([u8; 8]),
    /// Where it is when the call runs.
    At(Address),
}
