//! The choice of a plan: from facts that all ranks share, by the cost model, ties by table order.

use crate::cost::CostModel;
use crate::generate::{Algorithm, Needs, Plan};
use crate::spec::Spec;

/// What all ranks know about the links between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Topology {
    /// Whether all ranks share memory.
    pub direct: bool,
    /// The costs of the slowest kind of link in use.
    pub model: CostModel,
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
    /// The plan that works for any user memory.
    pub any_memory: Plan,
    /// The plan to take when every rank's user memory is mapped by all, where that pays.
    pub mapped: Option<Plan>,
}

/// All plans that can serve, the cheapest first. `only` restricts the algorithms.
pub fn candidates(
    spec: Spec,
    bytes: u64,
    topology: &Topology,
    only: Option<Algorithm>,
) -> Vec<Candidate> {
    let usable = |plan: &Plan| match plan.algorithm.generator().needs {
        Needs::Nothing | Needs::Edges => true,
        Needs::Stage | Needs::UserMemory => topology.direct,
    };
    let wanted = |plan: &Plan| only.is_none_or(|a| a == plan.algorithm || spec.nranks == 1);
    let mut list: Vec<_> = Plan::candidates(spec)
        .filter(|plan| usable(plan) && wanted(plan))
        .map(|plan| {
            let generator = plan.algorithm.generator();
            Candidate { plan, cost_us: (generator.cost_us)(&plan.spec, bytes, &topology.model) }
        })
        .collect();
    list.sort_by(|a, b| a.cost_us.total_cmp(&b.cost_us));
    list
}

/// Chooses for blocks of `bytes` bytes. None when `only` names an algorithm that does not serve.
pub fn choose(
    spec: Spec,
    bytes: u64,
    topology: &Topology,
    only: Option<Algorithm>,
) -> Option<Choice> {
    let list = candidates(spec, bytes, topology, only);
    let mapped = |c: &&Candidate| c.plan.layout.user_memory;
    let any = list.iter().find(|c| !mapped(c));
    let best_mapped = list.iter().find(mapped);
    let any_memory = match any {
        Some(c) => *c,
        // Only a mapped algorithm was asked for: beside it stands what works for any memory.
        None => *candidates(spec, bytes, topology, None).iter().find(|c| !mapped(c))?,
    };
    let mapped = best_mapped.filter(|m| only.is_some() || m.cost_us < any_memory.cost_us);
    if only.is_some() && list.is_empty() {
        return None;
    }
    Some(Choice { any_memory: any_memory.plan, mapped: mapped.map(|c| c.plan) })
}

/// Why a plan was chosen, in lines for a person.
pub fn explain(spec: Spec, bytes: u64, topology: &Topology) -> String {
    let list = candidates(spec, bytes, topology, None);
    let mut text = format!(
        "{} of {bytes} bytes per block on {} ranks, {}\n",
        spec.collective.name(),
        spec.nranks,
        if topology.direct { "all sharing memory" } else { "over the network" }
    );
    let choice = choose(spec, bytes, topology, None);
    for Candidate { plan, cost_us } in list {
        let mark = match choice {
            Some(c) if c.any_memory == plan => "chosen for any memory",
            Some(c) if c.mapped == Some(plan) => "chosen when all buffers are mapped",
            _ => "",
        };
        text += &format!("  {:<16} {cost_us:>12.2} us  {mark}\n", plan.algorithm.name());
    }
    text
}
