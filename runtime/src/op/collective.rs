//! Collectives with equal blocks.

use super::descriptor::Descriptor;
use super::{Address, CallOptions};
use oxccl_plan::lines::Phases;
use oxccl_plan::select::{Choice, Route};
use oxccl_plan::{Carrier, DataType, Plan, Program, ReduceOp, Spec};

/// A plan, the carrier of its data, and the program of one rank.
#[derive(Clone)]
pub struct Bound {
    /// The plan.
    pub plan: Plan,
    /// The carrier of the plan's data.
    pub carrier: Carrier,
    /// The program of the rank.
    pub program: Program,
    /// The program in phases, if lines carry it.
    pub phases: Option<Phases>,
}

impl Bound {
    /// Binds a route to a rank.
    pub fn new(Route { plan, carrier }: Route, rank: u32) -> Self {
        let program = plan.program(rank);
        let phases = (carrier == Carrier::Lines).then(|| Phases::of(&program.ops)).flatten();
        Self { plan, carrier, program, phases }
    }
}

/// The programs of this rank for one kind of call.
#[derive(Clone)]
pub struct Programs {
    /// The plan and program for any user memory.
    pub any: Bound,
    /// The plan and program for user memory that all ranks map.
    pub mapped: Option<Bound>,
    /// True if copy engines execute `mapped` when that memory lies in windows.
    pub engines: bool,
    /// The options of the call.
    pub options: CallOptions,
    /// The options as descriptors have them.
    agreed: u16,
}

impl Programs {
    /// Returns the programs of a rank for a choice.
    pub fn new(choice: &Choice, rank: u32) -> Self {
        let bound = |route| Bound::new(route, rank);
        Self {
            any: bound(choice.any_memory),
            mapped: choice.mapped.map(bound),
            engines: choice.engines,
            options: CallOptions::default(),
            agreed: 0,
        }
    }

    /// Returns the programs for a call with options.
    pub fn under(self, options: CallOptions) -> Self {
        Self { agreed: options.agreed(), options, ..self }
    }

    /// Returns the most thread blocks of a call, of `most` that its communicator has.
    pub fn blocks(&self, most: u32) -> u32 {
        self.options.most_blocks().map_or(most, |own| most.min(own.into()))
    }

    /// Returns the descriptor of a call of these programs.
    #[inline]
    pub fn descriptor(&self, call: &Call) -> Descriptor {
        let Call { spec, dtype, op, count, .. } = call;
        Descriptor::collective(spec, *dtype, *op, call.scale.is_some(), *count)
            .by(self.any.plan.algorithm, self.mapped.as_ref().map(|bound| bound.plan.algorithm))
            .under(self.agreed)
    }
}

/// A call as the user made it.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The collective, the number of ranks, and the root.
    pub spec: Spec,
    /// The send buffer.
    pub input: *const u8,
    /// The receive buffer.
    pub output: *mut u8,
    /// Elements per block.
    pub count: u64,
    /// The type of the elements.
    pub dtype: DataType,
    /// The operation that combines the elements.
    pub op: ReduceOp,
    /// The factor by which this rank's input is multiplied first; the product is rounded once.
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
    /// The factor, whose bytes are the word's in memory, from the first one on.
    Value(u64),
    /// The address of the factor when the call runs.
    At(Address),
}
