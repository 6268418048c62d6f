//! The choice of a plan: from facts that all ranks share, by the cost model, ties by table order.

use crate::cost::CostModel;
use crate::generate::{Algorithm, Needs, Plan};
use crate::ir::UserMemory;
use crate::spec::{Collective, Spec};

/// What all ranks know about the links between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Topology {
    /// Whether all ranks share memory.
    pub direct: bool,
    /// Whether all ranks can have the system copy from each other's memory.
    pub pull: bool,
    /// Whether stores to a peer's memory may be faster than loads from it.
    pub push: bool,
    /// Bytes of a block from which on user memory is used in place where all ranks map it: below,
    /// to agree on that costs more than it gives.
    pub mapped_from_bytes: u64,
    /// The costs of the slowest kind of link in use.
    pub model: CostModel,
}

impl Topology {
    /// GPUs of one host that reach each other's memory.
    pub const GPUS: Self = Self {
        direct: true,
        pull: false,
        push: true,
        mapped_from_bytes: 512 << 10,
        model: CostModel::NVLINK,
    };
}

/// What restricts the choice; equal on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The algorithm to use wherever it serves.
    pub only: Option<Algorithm>,
    /// Whether reductions give the same bits whatever is chosen: only canonical algorithms reduce.
    pub deterministic: bool,
}

/// A plan with its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// Time by the cost model in µs.
    pub cost_us: f64,
}

/// What a communicator does for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The plan that works for any user memory. Where it reads user memory, the system copies.
    pub any_memory: Plan,
    /// The plan to take when every rank's user memory is mapped by all, where that pays.
    pub mapped: Option<Plan>,
}

/// Which memory a plan has to cope with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Any, from malloc for example.
    Any,
    /// Mapped by all ranks.
    Mapped,
}

/// Time by the cost model, in µs, of a plan for blocks of `bytes` bytes.
pub fn cost_us(plan: &Plan, bytes: u64, topology: &Topology, memory: Memory) -> f64 {
    let spec = &plan.spec;
    let blocks = spec.input_blocks(spec.root).max(spec.output_blocks(spec.root));
    let model = topology.model.for_buffer(bytes * u64::from(blocks));
    let generator = plan.algorithm.generator();
    let reads = generator.needs == Needs::UserMemory && memory == Memory::Any;
    (generator.cost_us)(spec, bytes, &if reads { model.pulled() } else { model })
}

/// All plans that can serve, the cheapest first.
pub fn candidates(
    spec: Spec,
    bytes: u64,
    topology: &Topology,
    memory: Memory,
    policy: Policy,
) -> Vec<Candidate> {
    let usable = |plan: &Plan| match (plan.algorithm.generator().needs, memory) {
        (Needs::Nothing | Needs::Edges, _) => true,
        (Needs::Inbox, _) => {
            topology.direct && (topology.push || policy.only == Some(plan.algorithm))
        }
        (Needs::Stage, _) | (Needs::UserMemory, Memory::Mapped) => topology.direct,
        // In place, all-to-all overwrites what others still read: only one's own rank knows.
        (Needs::UserMemory, Memory::Any) => {
            topology.direct
                && topology.pull
                && plan.layout.user_memory == UserMemory::Read
                && spec.collective != Collective::AllToAll
        }
    };
    let any_order = !(policy.deterministic && spec.collective.reduces());
    let wanted = |plan: &Plan| {
        policy.only.is_none_or(|a| a == plan.algorithm || spec.nranks == 1)
            && (any_order || plan.algorithm.generator().canonical)
    };
    let mut list: Vec<_> = Plan::candidates(spec)
        .filter(|plan| usable(plan) && wanted(plan))
        .map(|plan| Candidate { plan, cost_us: cost_us(&plan, bytes, topology, memory) })
        .collect();
    list.sort_by(|a, b| a.cost_us.total_cmp(&b.cost_us));
    list
}

/// Chooses for blocks of `bytes` bytes. None when the policy names an algorithm that does not
/// serve.
pub fn choose(spec: Spec, bytes: u64, topology: &Topology, policy: Policy) -> Option<Choice> {
    let all = |memory, policy| candidates(spec, bytes, topology, memory, policy).into_iter();
    let needs_mapping = |c: &Candidate| c.plan.layout.user_memory != UserMemory::Private;
    let mapped = all(Memory::Mapped, policy).find(needs_mapping);
    let any = match all(Memory::Any, policy).next() {
        Some(any) => any,
        // What was asked for needs mapped memory: beside it stands what works for any.
        None => mapped.and(all(Memory::Any, Policy { only: None, ..policy }).next())?,
    };
    // Where loads from peers are slow, so is all that only adds copies to them.
    let cheaper = |c: &Candidate| policy.only.is_some() || topology.push || c.cost_us < any.cost_us;
    let pays = |c: &Candidate| bytes >= topology.mapped_from_bytes && cheaper(c);
    let mapped = mapped.filter(|c| c.plan != any.plan && pays(c));
    Some(Choice { any_memory: any.plan, mapped: mapped.map(|c| c.plan) })
}

/// Why a plan was chosen, in lines for a person.
pub fn explain(spec: Spec, bytes: u64, topology: &Topology, policy: Policy) -> String {
    let mut text = format!(
        "{} of {bytes} bytes per block on {} ranks, {}\n",
        spec.collective.name(),
        spec.nranks,
        if topology.direct { "all sharing memory" } else { "over the network" }
    );
    let choice = choose(spec, bytes, topology, policy);
    for (memory, title) in [(Memory::Any, "any memory"), (Memory::Mapped, "mapped memory")] {
        text += &format!(" {title}:\n");
        for Candidate { plan, cost_us } in candidates(spec, bytes, topology, memory, policy) {
            let chosen = match (memory, choice) {
                (Memory::Any, Some(c)) => c.any_memory == plan,
                (Memory::Mapped, Some(c)) => c.mapped.unwrap_or(c.any_memory) == plan,
                (_, None) => false,
            };
            let mark = if chosen { "chosen" } else { "" };
            text += &format!("  {:<16} {cost_us:>12.2} us  {mark}\n", plan.algorithm.name());
        }
    }
    text
}
