//! A model of channels of lines and chunks (`kernels/cuda/lines.cuh`, `chunks.cuh`) under sequences
//! of operations.
//!
//! The verifier knows edges with slots for whole messages. Here a message takes several slots,
//! counters outlive an operation, and each warp of a channel has one phase of a program: one puts,
//! one folds or passes on, and one takes; in packets those that put and take have one edge each. A
//! warp that stores over what is put waits until that unit of the user's memory was put. Warps are
//! a Kahn network: one schedule finds every deadlock.

use oxccl_plan::lines::{self, Middle, Phases};
use oxccl_plan::{Collective, Plan, Spec};
use std::collections::BTreeMap;

/// The rules of the kernels, and what they would be without one of them.
#[derive(Clone, Copy)]
struct Rules {
    /// The slots that go back at a time.
    back: u64,
    /// The most slots of a unit of a message: its header goes back with the first unit.
    most_of_message: fn(u64) -> u64,
    /// True if what is passed on has channels of its own.
    apart: bool,
}

/// As in `give_back`, `spread_message` and `abi::LineProgram::second`.
const RULES: Rules = Rules { back: 1, most_of_message: |slots| slots / 2, apart: true };

/// A message: the operation, the unit, and whether it is a result that is passed on.
type Message = (u64, u64, bool);

/// A channel's edge from one rank to another.
#[derive(Clone)]
struct Edge {
    /// By slot: the number of the lines there, from 1, and what they carry.
    slots: Vec<Option<(u64, Message)>>,
    put: u64,
    taken: u64,
    credit: u64,
}

/// The next action of a warp.
#[derive(Clone, Copy, Debug)]
struct Action {
    puts: bool,
    /// The number of the edge.
    edge: usize,
    /// The rank of the warp.
    rank: usize,
    message: Message,
    slots: u64,
    /// The messages that the rank has put of its input before this action.
    after: u64,
    /// True if the slots that are taken go back with the next ones.
    kept: bool,
}

#[derive(Debug, PartialEq)]
enum Fault {
    Deadlock,
    /// Slots are written that were not read.
    Overwritten,
    /// The next message on the edge is another than the program takes.
    Swapped,
}

type Warp = std::vec::IntoIter<Action>;

struct Model {
    nranks: usize,
    slots: u64,
    rules: Rules,
    edges: Vec<Edge>,
    operations: u64,
}

impl Model {
    fn new(nranks: usize, slots: u64, rules: Rules) -> Self {
        let edge = Edge { slots: vec![None; slots as usize], put: 0, taken: 0, credit: 0 };
        Self { nranks, slots, rules, edges: vec![edge; 2 * nranks * nranks], operations: 0 }
    }

    /// Returns the number of an edge; results that are passed on have edges of their own.
    fn edge(&self, from: usize, to: usize, is_result: bool) -> usize {
        let set = usize::from(is_result && self.rules.apart);
        (set * self.nranks + from) * self.nranks + to
    }

    /// Does what a warp does next; false when it has to wait.
    fn act(&mut self, action: &Action) -> Result<bool, Fault> {
        let (room, back) = (self.slots, self.rules.back);
        let edge = &mut self.edges[action.edge];
        if action.puts {
            if edge.put + action.slots > edge.credit + room {
                return Ok(false);
            }
            for number in edge.put + 1..=edge.put + action.slots {
                let slot = &mut edge.slots[(number % room) as usize];
                if slot.replace((number, action.message)).is_some_and(|(old, _)| old > edge.taken) {
                    return Err(Fault::Overwritten);
                }
            }
            edge.put += action.slots;
            return Ok(true);
        }
        for number in edge.taken + 1..=edge.taken + action.slots {
            match edge.slots[(number % room) as usize] {
                Some((there, message)) if there == number => {
                    if message != action.message {
                        return Err(Fault::Swapped);
                    }
                }
                _ => return Ok(false),
            }
        }
        let now = edge.taken + action.slots;
        if (now ^ edge.taken) & !(back - 1) != 0 && !action.kept {
            edge.credit = now;
        }
        edge.taken = now;
        Ok(true)
    }

    /// Runs the warps of an operation to their ends.
    fn run(&mut self, mut warps: Vec<Warp>) -> Result<(), Fault> {
        self.operations += 1;
        // By rank, the messages that it has put of its input.
        let mut put = vec![0; self.nranks];
        loop {
            let mut moved = false;
            for warp in &mut warps {
                while let Some(action) = warp.as_slice().first().copied() {
                    if action.after > put[action.rank] || !self.act(&action)? {
                        break;
                    }
                    put[action.rank] += u64::from(action.puts && !action.message.2);
                    moved = true;
                    warp.next();
                }
            }
            if warps.iter().all(|warp| warp.len() == 0) {
                return Ok(());
            }
            if !moved {
                return Err(Fault::Deadlock);
            }
        }
    }

    /// Runs a collective with so many units for the channel, of so many slots each, with a warp for
    /// each edge or for all of a phase.
    fn collective(
        &mut self,
        plan: &Plan,
        (units, slots): (u64, u64),
        warp_per_edge: bool,
    ) -> Result<(), Fault> {
        let of_rank = |rank: usize| Phases::of(&plan.program(rank as u32).ops).expect("phases");
        let all: Vec<_> = (0..self.nranks).map(of_rank).collect();
        let passes = lines::results_apart(plan);
        let warps = all.iter().enumerate().flat_map(|(rank, phases)| {
            let of_unit = |unit| self.unit(rank, phases, (unit, slots), passes);
            let units: Vec<_> = (0..units).map(of_unit).collect();
            let phase = |role: usize| units.iter().flat_map(move |unit| unit[role].clone());
            let mut warps: Vec<Vec<Action>> = vec![phase(1).collect()];
            for actions in [phase(0), phase(2)] {
                let mut by_edge: BTreeMap<usize, Vec<Action>> = BTreeMap::new();
                for action in actions {
                    let warp = if warp_per_edge { action.edge } else { 0 };
                    by_edge.entry(warp).or_default().push(action);
                }
                warps.extend(by_edge.into_values());
            }
            warps.into_iter().map(Vec::into_iter)
        });
        let warps = warps.collect();
        self.run(warps)
    }

    /// The actions of a rank's three warps for a unit of so many slots.
    fn unit(
        &self,
        rank: usize,
        phases: &Phases,
        (unit, slots): (u64, u64),
        passes: bool,
    ) -> [Vec<Action>; 3] {
        // Where nothing is passed on, what comes may be stored over what is put.
        let after = if passes { 0 } else { (unit + 1) * phases.puts.len() as u64 };
        let put = |to: u32, is_result: bool| {
            let edge = self.edge(rank, to as usize, is_result);
            let message = (self.operations, unit, is_result);
            Action { puts: true, edge, rank, message, slots, after: 0, kept: false }
        };
        let take = |from: u32, is_result: bool| {
            let edge = self.edge(from as usize, rank, is_result);
            let message = (self.operations, unit, is_result);
            Action { puts: false, edge, rank, message, slots, after, kept: false }
        };
        let puts = phases.puts.iter().map(|(to, _)| put(*to, false)).collect();
        let middle = phases.middle.as_ref().map_or(Vec::new(), |Middle { from, to, .. }| {
            let takes = from.iter().map(|(from, _)| take(*from, false));
            takes.chain(to.iter().map(|to| put(*to, passes))).collect()
        });
        let takes = phases.takes.iter().map(|(from, _)| take(*from, passes)).collect();
        [puts, middle, takes]
    }

    /// Runs an exchange of messages between some ranks, each with a header of one slot.
    fn exchange(&mut self, pairs: &[(usize, usize)], units: u64, slots: u64) -> Result<(), Fault> {
        let ends = pairs.iter().flat_map(|pair| [(pair, true), (pair, false)]);
        let warps = ends.map(|(&(from, to), puts)| {
            let action = |unit| {
                let slots = if unit == 0 { 1 } else { slots };
                let message = (self.operations, unit, false);
                let kept = !puts && unit == 0 && units > 0;
                let edge = self.edge(from, to, false);
                Action { puts, edge, rank: from, message, slots, after: 0, kept }
            };
            (0..=units).map(action).collect::<Vec<_>>().into_iter()
        });
        let warps = warps.collect();
        self.run(warps)
    }

    /// Runs a queue of messages with lanes, an edge each, and so many units in a lane. The blocks
    /// at each end carry one lane after the other.
    fn lanes(&mut self, messages: &[(usize, u64)], blocks: [usize; 2]) -> Result<(), Fault> {
        let lanes = messages.iter().map(|(lanes, _)| *lanes).max().unwrap_or(0);
        let mut warps: Vec<Warp> = Vec::new();
        for (puts, blocks) in [true, false].into_iter().zip(blocks) {
            for block in 0..blocks {
                let mut actions = Vec::new();
                for lane in (block..lanes).step_by(blocks) {
                    for (number, &(lanes, units)) in (0..).zip(messages) {
                        let action = |unit| {
                            let message = (number, unit, false);
                            let (slots, after) = (1, 0);
                            Action { puts, edge: lane, rank: 0, message, slots, after, kept: false }
                        };
                        let units = if lane < lanes { 0..units } else { 0..0 };
                        actions.extend(units.map(action));
                    }
                }
                warps.push(actions.into_iter());
            }
        }
        self.run(warps)
    }
}

/// All plans of so many ranks that lines carry.
fn plans(nranks: usize) -> Vec<Plan> {
    let specs = Collective::ALL.into_iter().flat_map(|collective| {
        let roots = if collective.rooted() { nranks as u32 } else { 1 };
        (0..roots).map(move |root| Spec::new(collective, nranks as u32, root))
    });
    specs.flat_map(Plan::candidates).filter(lines::carry_plan).collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Runs random operations one after the other, up to the first fault.
fn sequence(seed: u64, nranks: usize, slots: u64, rules: Rules) -> Result<(), Fault> {
    let (mut model, mut random) = (Model::new(nranks, slots, rules), Random(seed));
    let plans = plans(nranks);
    for _ in 0..60 {
        let units = random.below(9);
        if random.below(4) == 0 {
            let mut rank = || random.below(nranks as u64) as usize;
            let mut pairs: Vec<_> = (0..nranks).map(|_| (rank(), rank())).collect();
            pairs.retain(|(from, to)| from != to);
            pairs.sort_unstable();
            pairs.dedup();
            let each = 1 + random.below((rules.most_of_message)(slots).min(4));
            model.exchange(&pairs, units, each)?;
        } else {
            let plan = &plans[random.below(plans.len() as u64) as usize];
            let each = 1 + random.below((slots / 2).min(4));
            model.collective(plan, (units, each), random.below(2) == 0)?;
        }
    }
    Ok(())
}

#[test]
fn no_sequence_of_operations_stops_or_overwrites_what_is_not_read() {
    for nranks in 2..=6 {
        for slots in [2, 4, 8, 16] {
            for seed in 0..60 {
                let result = sequence(seed, nranks, slots, RULES);
                assert_eq!(result, Ok(()), "{nranks} ranks, {slots} slots, seed {seed}");
            }
        }
    }
}

/// Returns the faults of random sequences.
fn faults(rules: Rules) -> Vec<Fault> {
    let all = (0..40).flat_map(|seed| [2, 4, 8].map(|slots| sequence(seed, 3, slots, rules)));
    all.filter_map(Result::err).collect()
}

#[test]
fn units_of_a_message_of_more_than_half_the_slots_stop() {
    let rules = Rules { most_of_message: |slots| slots, ..RULES };
    assert!(faults(rules).contains(&Fault::Deadlock));
}

#[test]
fn slots_that_are_given_back_by_pairs_stop() {
    let faults = faults(Rules { back: 2, ..RULES });
    assert!(faults.contains(&Fault::Deadlock));
}

#[test]
fn results_on_the_channels_of_inputs_are_mistaken_for_them() {
    let faults = faults(Rules { apart: false, ..RULES });
    assert!(faults.contains(&Fault::Swapped));
}

#[test]
fn ends_with_different_numbers_of_blocks_carry_all_lanes() {
    let mut random = Random(7);
    for round in 0..400 {
        let mut model = Model::new(5, 1 << random.below(4), RULES);
        for _ in 0..4 {
            let mut message = || (1 + random.below(18) as usize, random.below(20));
            let messages = [message(), message(), message()];
            let blocks = [(); 2].map(|()| 1 + random.below(18) as usize);
            assert_eq!(model.lanes(&messages, blocks), Ok(()), "{round}: {messages:?} {blocks:?}");
        }
    }
}
