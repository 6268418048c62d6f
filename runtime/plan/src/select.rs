//! The choice of a plan: the cheapest by the cost model, from facts that all ranks share; ties go
//! by the order of the table.

use crate::carrier::{Carrier, Packets};
use crate::cost::CostModel;
use crate::generate::{Algorithm, Needs, Plan};
use crate::ir::UserMemory;
use crate::lines;
use crate::nccl::CostTable;
use crate::selection::Selection;
use crate::spec::{Collective, Spec};
use std::fmt;

/// The facts that all ranks know about the links between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Topology {
    /// True if all ranks share memory; they are one team then.
    pub direct: bool,
    /// The number of ranks of a team ([`Spec::team`]).
    pub team: u32,
    /// True if programs can use edges.
    pub edges: bool,
    /// True if lines are the edges: then they carry all plans ([`lines::carry_plan`]).
    pub lines: bool,
    /// True if the network reduces, with the type and operation of the call.
    pub switch: bool,
    /// True if each rank can have the system copy from the memory of every other.
    pub remote_reads: bool,
    /// True if stores to the memory of a peer may be faster than loads from it.
    pub push: bool,
    /// The smallest block, in bytes, for which user memory is used in place where all ranks map it:
    /// for smaller blocks the agreement on that costs more than it gives.
    pub mapped_from_bytes: u64,
    /// True if plans that copy to scratch may work on user memory.
    pub scratch: bool,
    /// The plans that packets carry.
    pub packets: Packets,
    /// The smallest number of bytes that a rank gets from the others for which copy engines move
    /// them. No plan depends on this number, so each rank may have its own.
    pub engine_bytes: u64,
    /// The costs of the slowest kind of link in use.
    pub model: CostModel,
}

impl Topology {
    /// Returns the carriers that data may have among several ranks, of which [`Carrier::of`] gives
    /// each plan one.
    pub fn carriers(&self) -> Vec<Carrier> {
        let shared = self.direct && !self.lines;
        let packets = self.packets != Packets::Nowhere;
        let engines = shared && self.engine_bytes < u64::MAX;
        let all = [
            (packets && !self.lines, Carrier::Packets),
            (shared, Carrier::Stage),
            (shared && self.push, Carrier::Inbox),
            (shared, Carrier::InPlace),
            (shared && self.remote_reads, Carrier::RemoteRead),
            (engines, Carrier::CopyEngines),
            (self.lines, Carrier::Lines),
            (self.edges && !self.lines, Carrier::Edges),
        ];
        all.into_iter().filter(|(may, _)| *may).map(|(_, carrier)| carrier).collect()
    }

    /// Returns the topology for a call that takes at most so many thread blocks.
    pub fn in_blocks(mut self, most: u8) -> Self {
        if let Packets::Kernels { room, .. } = &mut self.packets {
            room.channels = room.channels.min(u64::from(most));
        }
        self
    }
}

/// The restrictions of the choice; equal on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The algorithms to choose from wherever one of them serves; `None` for all.
    pub only: Option<Selection>,
    /// True if reductions give the same bits whatever is chosen: only canonical algorithms reduce.
    pub deterministic: bool,
}

impl Policy {
    /// Returns the algorithm, if no other one may be chosen.
    pub fn single(&self) -> Option<Algorithm> {
        self.only.and_then(|only| only.single())
    }
}

/// A plan with its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// The carrier of its data.
    pub carrier: Carrier,
    /// Time by the cost model in µs.
    pub cost_us: f64,
}

/// A plan, and the carrier of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The plan.
    pub plan: Plan,
    /// The carrier of its data.
    pub carrier: Carrier,
}

impl Route {
    /// Returns the route of a plan for blocks of `bytes` bytes in this kind of memory.
    pub fn new(plan: Plan, bytes: u64, topology: &Topology, memory: Memory) -> Self {
        Self { plan, carrier: Carrier::of(&plan, bytes, topology, memory) }
    }
}

/// The routes that a communicator takes for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The route that works for any user memory.
    pub any_memory: Route,
    /// The route when all ranks map the user memory of every rank, where that route pays.
    pub mapped: Option<Route>,
    /// True if copy engines execute `mapped` when the user memory lies in windows.
    pub engines: bool,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            |route: Route| format!("{}, {}", route.plan.algorithm.name(), route.carrier.name());
        f.write_str(&name(self.any_memory))?;
        let Some(mapped) = self.mapped else { return Ok(()) };
        write!(f, "; where all ranks map the buffers: {}", name(mapped))?;
        if self.engines { f.write_str("; in windows: copy engines") } else { Ok(()) }
    }
}

/// The kind of memory that a plan has to cope with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Any memory, for example from malloc.
    Any,
    /// Memory that all ranks map.
    Mapped,
    /// Memory in windows, at the same place of the windows on all ranks.
    Windows,
}

/// Returns the time of a plan by the cost model, in µs, for blocks of `bytes` bytes.
pub fn cost_us(plan: &Plan, bytes: u64, topology: &Topology, memory: Memory) -> f64 {
    let spec = &plan.spec;
    let model = topology.model.for_buffer(bytes * u64::from(spec.largest_blocks()));
    let of_plan = plan.algorithm.generator().cost_us;
    match Carrier::of(plan, bytes, topology, memory) {
        Carrier::RemoteRead => of_plan(spec, bytes, &model.pulled()),
        Carrier::Lines => of_plan(spec, bytes, &model.lines(spec, lines::is_chain(plan))),
        Carrier::CopyEngines => model.engines_us(bytes * u64::from(spec.nranks - 1)),
        _ => of_plan(spec, bytes, &model),
    }
}

/// Returns all plans that can serve, the cheapest first. The topology tells the teams.
pub fn candidates(
    spec: Spec,
    bytes: u64,
    topology: &Topology,
    memory: Memory,
    policy: Policy,
) -> Vec<Candidate> {
    let spec = spec.in_teams(topology.team);
    let usable = |plan: &Plan| match (plan.algorithm.generator().needs, memory) {
        (Needs::Nothing, _) => true,
        (Needs::Edges, _) if topology.lines => lines::carry_plan(plan),
        (Needs::Edges, _) => topology.edges,
        (Needs::Switch, _) => topology.edges && topology.switch,
        (Needs::Stage | Needs::Inbox | Needs::UserMemory, _) if topology.lines => false,
        (Needs::Inbox, _) => {
            let named = policy.only.is_some_and(|only| only.names(plan.algorithm));
            topology.direct && (topology.push || named)
        }
        (Needs::Stage, _) | (Needs::UserMemory, Memory::Mapped | Memory::Windows) => {
            topology.direct
        }
        // All-to-all in place overwrites data that others still read, and only the rank itself
        // knows whether its call is in place.
        (Needs::UserMemory, Memory::Any) => {
            topology.direct
                && topology.remote_reads
                && plan.layout.user_memory == UserMemory::Read
                && spec.collective != Collective::AllToAll
        }
    };
    let any_order = !(policy.deterministic && spec.collective.reduces());
    let wanted = |plan: &Plan, carrier: Carrier| {
        let selected = |only: Selection| only.contains(plan.algorithm, carrier);
        policy.only.is_none_or(|only| selected(only) || spec.nranks == 1)
            && (any_order || plan.algorithm.generator().canonical)
    };
    let serving = Plan::candidates(spec).filter(usable);
    let carried = serving.map(|plan| (plan, Carrier::of(&plan, bytes, topology, memory)));
    let mut list: Vec<_> = carried
        .filter(|(plan, carrier)| wanted(plan, *carrier))
        .map(|(plan, carrier)| Candidate {
            plan,
            carrier,
            cost_us: cost_us(&plan, bytes, topology, memory),
        })
        .collect();
    list.sort_by(|a, b| a.cost_us.total_cmp(&b.cost_us));
    list
}

/// The plans among which the routes of a call are chosen, the cheapest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates {
    bytes: u64,
    /// The plans for any user memory.
    any: Vec<Candidate>,
    /// The plans for user memory that all ranks map.
    mapped: Vec<Candidate>,
    /// True if a plan for mapped memory is taken whatever its cost.
    forced: bool,
    /// True if a tuner has decided about mapped memory.
    tuned: bool,
}

impl Candidates {
    /// Returns the candidates for blocks of `bytes` bytes. `None` if no algorithm that the policy
    /// selects serves.
    pub fn new(spec: Spec, bytes: u64, topology: &Topology, policy: Policy) -> Option<Self> {
        let all = |memory, policy| candidates(spec, bytes, topology, memory, policy);
        let (mut any, mapped) = (all(Memory::Any, policy), all(Memory::Mapped, policy));
        let mut forced = policy.single().is_some();
        if any.is_empty() {
            // What the policy selects needs mapped memory: add a route that works for any memory.
            mapped.iter().find(|c| needs_mapping(c))?;
            any = all(Memory::Any, Policy { only: None, ..policy });
            forced = true;
        }
        (!any.is_empty()).then_some(Self { bytes, any, mapped, forced, tuned: false })
    }

    /// Has a tuner change the times of the plans for memory of both kinds; `ask` is told whether
    /// all ranks map the memory, and returns the changed table.
    pub fn tune<E>(
        &mut self,
        mut ask: impl FnMut(CostTable, bool) -> Result<CostTable, E>,
    ) -> Result<(), E> {
        let table = CostTable::of(&self.any);
        table.apply(ask(table, false)?, &mut self.any);
        if self.mapped.iter().any(needs_mapping) {
            let table = CostTable::of(&self.mapped);
            self.tuned = table.apply(ask(table, true)?, &mut self.mapped);
        }
        Ok(())
    }

    /// Returns the names of the algorithms.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for candidate in self.any.iter().chain(&self.mapped) {
            let name = candidate.plan.algorithm.name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the routes of the cheapest plans.
    pub fn choose(&self, topology: &Topology) -> Choice {
        let any = self.any[0];
        let mapped = match self.tuned {
            true => self.mapped.first().filter(|c| needs_mapping(c)),
            false => self.mapped.iter().find(|c| needs_mapping(c)),
        };
        // Where loads from peers are slow, plans that only add copies to the loads are slow, too.
        // By the cost model on both sides: a tuner's times are for one of them.
        let any_us = cost_us(&any.plan, self.bytes, topology, Memory::Any);
        let cheaper = |c: &Candidate| self.forced || topology.push || c.cost_us < any_us;
        let pays =
            |c: &Candidate| self.tuned || (self.bytes >= topology.mapped_from_bytes && cheaper(c));
        let route = |c: Candidate, memory| Route::new(c.plan, self.bytes, topology, memory);
        let any_memory = route(any, Memory::Any);
        // Kernels of packets do not agree on buffers.
        let packets = matches!(topology.packets, Packets::Kernels { .. })
            && any_memory.carrier == Carrier::Packets;
        let possible =
            |c: &Candidate| !packets && (topology.scratch || c.plan.layout.scratch_blocks == 0);
        let mapped = mapped.filter(|c| c.plan != any.plan && pays(c) && possible(c)).copied();
        let windows = mapped.map(|c| route(c, Memory::Windows).carrier);
        Choice {
            any_memory,
            mapped: mapped.map(|c| route(c, Memory::Mapped)),
            engines: windows == Some(Carrier::CopyEngines),
        }
    }
}

fn needs_mapping(candidate: &Candidate) -> bool {
    candidate.plan.layout.user_memory != UserMemory::Private
}

/// Chooses the routes for blocks of `bytes` bytes. `None` if no algorithm that the policy selects
/// serves.
pub fn choose(spec: Spec, bytes: u64, topology: &Topology, policy: Policy) -> Option<Choice> {
    Candidates::new(spec, bytes, topology, policy).map(|candidates| candidates.choose(topology))
}
