//! Generators: pure functions from a specification and a rank to a program.
//!
//! A new algorithm is one file here and one row in [`GENERATORS`]; the verifier's tests, the
//! simulator and the selection take it from the table.

mod bruck;
mod halving;
mod local;
mod one_shot;
mod one_shot_edges;
mod pairwise;
mod push;
mod rails;
mod ring;
mod switch;
mod tree;
mod two_shot;
mod two_shot_edges;

use crate::cost::CostModel;
use crate::ir::{Layout, MAX_ROUNDS, Op, Program, ROUND_MESSAGES, UserMemory, overlapping};
use crate::spec::{Collective, Spec};

/// The algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// One rank: a copy.
    Local = 0,
    /// One-shot: every rank publishes, and every rank reads the data that it needs.
    OneShot = 1,
    /// One-shot over mapped user memory.
    OneShotMapped = 2,
    /// Two-shot: every rank reduces its share, then all ranks collect the shares.
    TwoShot = 3,
    /// Two-shot over mapped user memory: pull, reduce, push.
    TwoShotMapped = 4,
    /// A ring (a chain for rooted collectives).
    Ring = 5,
    /// Double binary tree (a binary tree for rooted collectives).
    Tree = 6,
    /// Recursive halving and doubling.
    Halving = 7,
    /// Bruck's all-gather and its transpose (PAT), in a logarithmic number of rounds.
    Bruck = 8,
    /// Exchanges between pairs of ranks.
    Pairwise = 9,
    /// Two-shot that only reads user memory: pull and reduce, then pull the others' results.
    TwoShotPulled = 10,
    /// Two-shot over edges: shares are exchanged, folded in rank order, and passed on.
    TwoShotEdges = 11,
    /// Push: a rank's data are written into the inboxes of the ranks that need them.
    Push = 12,
    /// One-shot over edges: inputs are exchanged, and folded in rank order.
    OneShotEdges = 13,
    /// Rings between teams.
    RailsRing = 14,
    /// Trees between teams.
    RailsTree = 15,
    /// Recursive halving and doubling between teams.
    RailsHalving = 16,
    /// Bruck's all-gather, or its transpose, between teams.
    RailsBruck = 17,
    /// Two-shot over edges between teams.
    RailsTwoShot = 18,
    /// One-shot over edges between teams.
    RailsOneShot = 19,
    /// The network reduces.
    Switch = 20,
    /// The network reduces what the teams have folded.
    RailsSwitch = 21,
    /// One-shot over edges between teams, of all that each team has folded.
    RailsWhole = 22,
}

/// The requirements of a plan on the links between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A stage of each rank that all others map.
    Stage,
    /// A stage of each rank that all others map and write.
    Inbox,
    /// User memory that all ranks can access.
    UserMemory,
    /// Edges, which every kind of link offers.
    Edges,
    /// Edges, and a network that reduces.
    Switch,
}

impl Needs {
    /// Returns whether ranks reach each other's memory.
    pub const fn direct(self) -> bool {
        match self {
            Needs::Stage | Needs::Inbox | Needs::UserMemory => true,
            Needs::Nothing | Needs::Edges | Needs::Switch => false,
        }
    }
}

/// A row of the table of algorithms.
pub struct Generator {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The name in `oxccl plan` and in variables.
    pub name: &'static str,
    /// The requirements of the algorithm on the links.
    pub needs: Needs,
    /// True if each element of every reduction that the algorithm serves is one fold over all ranks
    /// in rank order with one rounding: all such algorithms give the same bits. The verifier
    /// enforces this.
    pub canonical: bool,
    /// Returns the facts that all programs of the plan share; `None` if the algorithm does not
    /// serve the specification. Algorithms by which ranks reach each other's memory are asked for
    /// one team only ([`Plan::new`]).
    pub layout: fn(&Spec) -> Option<Layout>,
    /// Returns the program of a rank.
    pub program: fn(&Spec, u32) -> Program,
    /// Returns the time in µs for blocks of so many bytes, by the formula of the algorithm.
    pub cost_us: fn(&Spec, u64, &CostModel) -> f64,
}

/// All algorithms, in the order in which ties of the cost model break.
pub static GENERATORS: [Generator; 23] = [
    local::GENERATOR,
    one_shot::STAGED,
    one_shot::MAPPED,
    two_shot::STAGED,
    two_shot::MAPPED,
    ring::GENERATOR,
    tree::GENERATOR,
    halving::GENERATOR,
    bruck::GENERATOR,
    pairwise::GENERATOR,
    two_shot::PULLED,
    two_shot_edges::GENERATOR,
    push::GENERATOR,
    one_shot_edges::GENERATOR,
    rails::RING,
    rails::TREE,
    rails::HALVING,
    rails::BRUCK,
    rails::TWO_SHOT,
    rails::ONE_SHOT,
    switch::GENERATOR,
    rails::SWITCH,
    rails::WHOLE,
];

impl Algorithm {
    /// Returns the row of the algorithm in the table.
    pub fn generator(self) -> &'static Generator {
        &GENERATORS[self as usize]
    }

    /// Returns the name of the algorithm.
    pub fn name(self) -> &'static str {
        self.generator().name
    }
}

/// A specification together with the algorithm that carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The operation.
    pub spec: Spec,
    /// The algorithm that carries the operation out.
    pub algorithm: Algorithm,
    /// The facts that all ranks' programs share.
    pub layout: Layout,
}

impl Plan {
    /// Returns the plan of an algorithm, or `None` if the algorithm does not serve the
    /// specification.
    pub fn new(spec: Spec, algorithm: Algorithm) -> Option<Self> {
        let generator = algorithm.generator();
        // Between teams there are edges alone.
        if generator.needs.direct() && spec.team < spec.nranks {
            return None;
        }
        let layout = (generator.layout)(&spec)?;
        Some(Self { spec, algorithm, layout })
    }

    /// Returns the program of one rank.
    pub fn program(&self, rank: u32) -> Program {
        let mut program = (self.algorithm.generator().program)(&self.spec, rank);
        if self.layout.rounds == 1 {
            program.rounds.clear();
        }
        program
    }

    /// Returns all plans that serve a specification.
    pub fn candidates(spec: Spec) -> impl Iterator<Item = Plan> {
        GENERATORS.iter().filter_map(move |g| Plan::new(spec, g.algorithm))
    }
}

/// Returns the layout of a plan that uses only edges.
const fn edge_layout(parts: u32, message_parts: u32, scratch_blocks: u32) -> Layout {
    Layout {
        parts,
        stage_blocks: 0,
        scratch_blocks,
        inbox_blocks: 0,
        message_parts,
        signals: 0,
        done_signal: 0,
        user_memory: UserMemory::Private,
        rounds: 1,
        scratch_windows: 1,
    }
}

/// Returns the layout of a plan over edges whose programs consist of so many rounds, in all of
/// which `messages` at most go over an edge between teams. Within one team nothing overlaps: there
/// messages take no time that would be worth it.
fn in_rounds(spec: &Spec, layout: Layout, (rounds, messages): (u32, u32)) -> Layout {
    let few = rounds as usize <= MAX_ROUNDS && messages <= ROUND_MESSAGES as u32;
    let overlap = few && spec.team < spec.nranks;
    Layout { rounds: if overlap { rounds } else { 1 }, ..layout }
}

/// Returns the layout of a plan that reads in a round what earlier ones have left in scratch.
fn keeps_scratch(layout: Layout) -> Layout {
    Layout { scratch_windows: overlapping(layout.rounds), ..layout }
}

/// Returns the program of these operations in which every receive begins a round.
fn rounds_at_receives(ops: Vec<Op>) -> Program {
    let mut program = Program::default();
    for op in ops {
        if matches!(op, Op::Recv { .. } | Op::RecvReduce { .. }) {
            program.begin_round();
        }
        program.ops.push(op);
    }
    program
}

/// Returns the ranks other than `rank`, beginning with the next one, so that no rank is the first
/// of all others.
fn others(rank: u32, nranks: u32) -> impl Iterator<Item = u32> {
    (1..nranks).map(move |d| (rank + d) % nranks)
}

/// Returns whether the output of `rank` takes in the contribution of every rank.
fn reads_everyone(spec: &Spec, rank: u32) -> bool {
    match spec.collective {
        Collective::Reduce | Collective::Gather => rank == spec.root,
        Collective::Broadcast | Collective::Scatter => false,
        Collective::AllReduce
        | Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll => true,
    }
}
