//! A model of a channel of lines (`kernels/cuda/lines.cuh`) under sequences of operations.
//!
//! The verifier knows edges with slots for whole messages. Here a message takes several slots,
//! counters outlive an operation, and a unit is put before the one before it is taken. Between two
//! ranks one warp puts and another takes, which stores a unit only when that unit of the user's
//! memory was put. Warps are a Kahn network: one schedule finds every deadlock.

use oxccl_plan::lines::{self, Phases};
use oxccl_plan::{Collective, Plan, Spec};

/// The rules of the kernels, and what they would be without one of them.
#[derive(Clone, Copy)]
struct Rules {
    /// The slots that go back at a time.
    back: u64,
    /// The most slots of a unit of a collective, of so many slots.
    most: fn(u64) -> u64,
    /// The most slots of a unit of a message: its header goes back with the first unit.
    most_of_message: fn(u64) -> u64,
    /// True if units are put ahead also where something is passed on.
    always_ahead: bool,
}

/// As in `give_back`, `collective`, `spread_message` and `LineRun::run`.
const RULES: Rules = Rules {
    back: 1,
    most: |slots| slots / 2,
    most_of_message: |slots| slots / 2,
    always_ahead: false,
};

/// A message: the operation, the unit, and its number among those of the unit on its edge.
type Message = (u64, u64, usize);

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
    from: usize,
    to: usize,
    message: Message,
    slots: u64,
    /// The units that the receiver has put before it takes.
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

struct Model {
    nranks: usize,
    slots: u64,
    rules: Rules,
    /// By sender × ranks + receiver.
    edges: Vec<Edge>,
    operations: u64,
}

impl Model {
    fn new(nranks: usize, slots: u64, rules: Rules) -> Self {
        let edge = Edge { slots: vec![None; slots as usize], put: 0, taken: 0, credit: 0 };
        Self { nranks, slots, rules, edges: vec![edge; nranks * nranks], operations: 0 }
    }

    /// Does what a warp does next; false when it has to wait.
    fn act(&mut self, action: &Action) -> Result<bool, Fault> {
        let (room, back) = (self.slots, self.rules.back);
        let edge = &mut self.edges[action.from * self.nranks + action.to];
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
    fn run(&mut self, mut warps: Vec<std::vec::IntoIter<Action>>) -> Result<(), Fault> {
        self.operations += 1;
        // By rank, the units that a warp of two has put.
        let mut put = vec![0; self.nranks];
        loop {
            let mut moved = false;
            for warp in &mut warps {
                while let Some(action) = warp.as_slice().first().copied() {
                    if action.after > put[action.to] || !self.act(&action)? {
                        break;
                    }
                    put[action.from] += u64::from(action.puts);
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

    /// Runs a collective with so many units for the channel, of so many slots each.
    fn collective(&mut self, plan: &Plan, units: u64, slots: u64) -> Result<(), Fault> {
        let warps = (0..self.nranks).flat_map(|rank| {
            let phases = Phases::of(&plan.program(rank as u32).ops).expect("phases");
            let all = self.warp(rank, &phases, units, slots);
            if self.nranks > 2 {
                return vec![all.into_iter()];
            }
            let (puts, mut takes): (Vec<_>, Vec<_>) = all.into_iter().partition(|a| a.puts);
            if !puts.is_empty() {
                takes.iter_mut().for_each(|take| take.after = take.message.1 + 1);
            }
            vec![puts.into_iter(), takes.into_iter()]
        });
        let warps = warps.collect();
        self.run(warps)
    }

    /// The actions of a rank's warp.
    fn warp(&self, rank: usize, phases: &Phases, units: u64, slots: u64) -> Vec<Action> {
        let passes = phases.middle.as_ref().is_some_and(|middle| !middle.to.is_empty());
        let ahead = u64::from(self.rules.always_ahead || !passes);
        let mut sent = vec![vec![0; self.nranks]; units as usize];
        let mut put = |to: u32, unit: u64| {
            let number = &mut sent[unit as usize][to as usize];
            *number += 1;
            let message = (self.operations, unit, *number);
            Action {
                puts: true,
                from: rank,
                to: to as usize,
                message,
                slots,
                after: 0,
                kept: false,
            }
        };
        let mut all: Vec<Action> = Vec::new();
        if ahead > 0 && units > 0 {
            all.extend(phases.puts.iter().map(|(to, _)| put(*to, 0)));
        }
        for unit in 0..units {
            if unit + ahead < units {
                all.extend(phases.puts.iter().map(|(to, _)| put(*to, unit + ahead)));
            }
            let mut received = vec![0; self.nranks];
            let mut take = |from: u32| {
                let number = &mut received[from as usize];
                *number += 1;
                let message = (self.operations, unit, *number);
                Action {
                    puts: false,
                    from: from as usize,
                    to: rank,
                    message,
                    slots,
                    after: 0,
                    kept: false,
                }
            };
            if let Some(middle) = &phases.middle {
                all.extend(middle.from.iter().map(|(from, _)| take(*from)));
                all.extend(middle.to.iter().map(|to| put(*to, unit)));
            }
            all.extend(phases.takes.iter().map(|(from, _)| take(*from)));
        }
        all
    }

    /// Runs an exchange of messages between some ranks, each with a header of one slot.
    fn exchange(&mut self, pairs: &[(usize, usize)], units: u64, slots: u64) -> Result<(), Fault> {
        let ends = pairs.iter().flat_map(|pair| [(pair, true), (pair, false)]);
        let warps = ends.map(|(&(from, to), puts)| {
            let action = |unit| {
                let (message, slots) =
                    ((self.operations, unit, 0), if unit == 0 { 1 } else { slots });
                let kept = !puts && unit == 0 && units > 0;
                Action { puts, from, to, message, slots, after: 0, kept }
            };
            (0..=units).map(action).collect::<Vec<_>>().into_iter()
        });
        let warps = warps.collect();
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
            let each = 1 + random.below((rules.most)(slots).min(4));
            model.collective(plan, units, each)?;
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
fn units_of_more_than_half_the_slots_stop() {
    for rules in
        [Rules { most: |slots| slots, ..RULES }, Rules { most_of_message: |slots| slots, ..RULES }]
    {
        assert!(faults(rules).contains(&Fault::Deadlock));
    }
}

#[test]
fn slots_that_are_given_back_by_pairs_stop() {
    let faults = faults(Rules { back: 2, ..RULES });
    assert!(faults.contains(&Fault::Deadlock));
}

#[test]
fn what_is_passed_on_does_not_go_behind_what_is_put_ahead() {
    let faults = faults(Rules { always_ahead: true, ..RULES });
    assert!(faults.contains(&Fault::Swapped));
}
