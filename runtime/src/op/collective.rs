//! Collectives with equal blocks.

use super::Address;
use oxccl_plan::select::{Choice, Route};
use oxccl_plan::{Carrier, DataType, Plan, Program, ReduceOp, Spec};

/// A plan, what moves its data, and the program of one rank.
#[derive(Clone)]
pub struct Bound {
    /// The plan.
    pub plan: Plan,
    /// What moves its data.
    pub carrier: Carrier,
    /// The rank's program.
    pub program: Program,
}

impl Bound {
    /// For a rank.
    pub fn new(Route { plan, carrier }: Route, rank: u32) -> Self {
        Self { plan, carrier, program: plan.program(rank) }
    }
}

/// What this rank does for one kind of call.
pub struct Programs {
    /// For any user memory.
    pub any: Bound,
    /// For user memory that all ranks map.
    pub mapped: Option<Bound>,
    /// Whether copy engines do the latter where that memory lies in windows.
    pub engines: bool,
}

impl Programs {
    /// For a rank, by what was chosen.
    pub fn new(choice: &Choice, rank: u32) -> Self {
        let bound = |route| Bound::new(route, rank);
        Self {
            any: bound(choice.any_memory),
            mapped: choice.mapped.map(bound),
            engines: choice.engines,
        }
    }
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
