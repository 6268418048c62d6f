//! The verifier: runs the programs of all ranks on symbols and judges the resulting outputs.
//!
//! A plan is right if every output part is exactly the required contributions, if every wait has
//! its signal and every message its receiver, if no stage slot or user buffer is written while a
//! rank may still read it, if nothing is used that a switch still has, if ranks of different teams
//! meet on edges alone, and if nothing deadlocks with bounded slots. A plan of a canonical
//! algorithm must fold each part of a reduction at once, in rank order.

use crate::generate::Plan;
use crate::ir::{Capacity, Geometry, Program, UserMemory};
use crate::machine::{Fault, Machine, Options, Outputs, Place, Transfer, Values, Work};
use std::collections::HashMap;

/// A value: the index of its node.
type Symbol = u32;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Node {
    Input(Place),
    Fold(Vec<Symbol>, bool),
}

/// Symbols: hash-consed expressions over the parts of the inputs. Each node has a sum of one
/// pseudo-random number per contribution, so that the contributions of two nodes compare in
/// constant time.
#[derive(Default)]
pub struct Symbols {
    nodes: Vec<(Node, u128, u32)>,
    known: HashMap<Node, Symbol>,
}

/// Returns a well-mixed number for an input part (the finaliser of SplitMix64, twice).
fn fingerprint(place: Place) -> u128 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let ids =
        (u64::from(place.rank) << 40) ^ (u64::from(place.block) << 20) ^ u64::from(place.part);
    let low = mix(ids.wrapping_add(mix(place.window.wrapping_add(0x9e37_79b9_7f4a_7c15))));
    let high = mix(low ^ ids ^ 0xd1b5_4a32_d192_ed03);
    (u128::from(high) << 64) | u128::from(low)
}

impl Symbols {
    fn add(&mut self, node: Node, sum: u128, finished: u32) -> Symbol {
        if let Some(&symbol) = self.known.get(&node) {
            return symbol;
        }
        let symbol = self.nodes.len() as Symbol;
        self.nodes.push((node.clone(), sum, finished));
        self.known.insert(node, symbol);
        symbol
    }

    /// Returns whether a value is one fold of these input parts in this order.
    fn in_order(&self, node: &Node, places: &[Place]) -> bool {
        let Node::Fold(operands, _) = node else { return false };
        let given = operands.iter().map(|&s| &self.nodes[s as usize].0);
        given.eq(places.iter().map(|&p| Node::Input(p)).collect::<Vec<_>>().iter())
    }

    /// Counts how often each input part contributes to a value.
    fn contributions(&self, symbol: Symbol) -> HashMap<Place, u32> {
        let mut counts = HashMap::new();
        let mut open = vec![symbol];
        while let Some(next) = open.pop() {
            match &self.nodes[next as usize].0 {
                Node::Input(place) => *counts.entry(*place).or_insert(0) += 1,
                Node::Fold(operands, _) => open.extend(operands),
            }
        }
        counts
    }
}

impl Values for Symbols {
    type Value = Symbol;

    fn input(&mut self, at: Place) -> Symbol {
        self.add(Node::Input(at), fingerprint(at), 0)
    }

    fn fold(&mut self, operands: &[Symbol], finish: bool) -> Symbol {
        let of = |s: &Symbol| &self.nodes[*s as usize];
        let sum = operands.iter().fold(0u128, |sum, s| sum.wrapping_add(of(s).1));
        let finished = operands.iter().map(|s| of(s).2).sum::<u32>() + u32::from(finish);
        self.add(Node::Fold(operands.to_vec(), finish), sum, finished)
    }
}

/// One operation of a sequence to verify.
pub enum Step {
    /// A collective with `count` elements per block.
    Collective {
        /// The plan.
        plan: Plan,
        /// Elements per block.
        count: u64,
    },
    /// Grouped sends and receives, by rank.
    Exchange(Vec<Vec<Transfer>>),
}

/// The conditions under which plans are verified.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// The room from which the geometry is computed.
    pub room: Capacity,
    /// Slots per edge.
    pub edge_slots: usize,
    /// True if the order of accesses to shared memory is checked (quadratic in the number of
    /// ranks).
    pub races: bool,
    /// True if windows overlap, as in [`Options::overlap`].
    pub overlap: bool,
}

impl Conditions {
    /// Returns the smallest room: slots of `slot_elems` elements, and fewer slots than the
    /// executors have.
    pub fn tight(slot_elems: u64, nranks: u32) -> Self {
        Self {
            room: Capacity {
                edge_slot_elems: slot_elems,
                message_elems: slot_elems,
                stage_slot_elems: slot_elems.max(2 * u64::from(nranks)),
                align_elems: 1,
            },
            edge_slots: 2,
            races: nranks <= 64,
            overlap: false,
        }
    }
}

/// Verifies a plan with the programs of its generator, out of place and in place.
pub fn verify(plan: &Plan, count: u64, conditions: &Conditions) -> Result<(), Fault> {
    let programs: Vec<_> = (0..plan.spec.nranks).map(|r| plan.program(r)).collect();
    verify_programs(plan, &programs, count, conditions)
}

/// Verifies given programs, for example imported ones.
pub fn verify_programs(
    plan: &Plan,
    programs: &[Program],
    count: u64,
    conditions: &Conditions,
) -> Result<(), Fault> {
    let nranks = plan.spec.nranks as usize;
    let geometry = Geometry::new(&plan.layout, count, &conditions.room);
    let mixed = (0..nranks).map(|r| r % 2 == 1).collect();
    // With direct reads of user memory, all-to-all cannot be in place; the executor does not offer
    // it.
    let in_place_excluded = plan.layout.user_memory != UserMemory::Private
        && plan.spec.collective == crate::Collective::AllToAll;
    let variants = [vec![false; nranks], vec![true; nranks], mixed];
    for in_place in variants.iter().take(if in_place_excluded { 1 } else { 3 }) {
        let mut machine = machine((plan.spec.nranks, plan.spec.team), conditions);
        // Two runs: the second one meets the state that the first one left.
        for _ in 0..2 {
            let work = Work::Collective { plan, programs, geometry, in_place };
            let outputs = machine.run(&work)?;
            judge(machine.values(), plan, &geometry, &outputs)?;
        }
    }
    Ok(())
}

/// Verifies a sequence of operations on one communicator, whose ranks are in teams of `team`.
pub fn verify_sequence(
    (nranks, team): (u32, u32),
    steps: &[Step],
    conditions: &Conditions,
) -> Result<(), Fault> {
    let mut machine = machine((nranks, team), conditions);
    let in_place = vec![false; nranks as usize];
    for step in steps {
        match step {
            Step::Collective { plan, count } => {
                let programs: Vec<_> = (0..nranks).map(|r| plan.program(r)).collect();
                let geometry = Geometry::new(&plan.layout, *count, &conditions.room);
                let (programs, in_place) = (&programs[..], &in_place[..]);
                let work = Work::Collective { plan, programs, geometry, in_place };
                let outputs = machine.run(&work)?;
                judge(machine.values(), plan, &geometry, &outputs)?;
            }
            Step::Exchange(transfers) => {
                machine.run(&Work::Exchange(transfers))?;
            }
        }
    }
    Ok(())
}

fn machine(
    (nranks, team): (u32, u32),
    &Conditions { edge_slots, races, overlap, .. }: &Conditions,
) -> Machine<'static, Symbols> {
    let options = Options { edge_slots, races, costs: None, team, overlap };
    Machine::new(nranks, Symbols::default(), options)
}

/// Compares the outputs with the result that the collective requires.
fn judge(
    symbols: &Symbols,
    plan: &Plan,
    geometry: &Geometry,
    outputs: &Outputs<Symbol>,
) -> Result<(), Fault> {
    let spec = &plan.spec;
    let mut agreed: HashMap<(u32, u64, u32), (u32, Symbol)> = HashMap::new();
    for rank in 0..spec.nranks {
        let mut parts = outputs[rank as usize].iter();
        for window in 0..geometry.windows() {
            for block in 0..spec.output_blocks(rank) {
                for part in 0..geometry.parts {
                    let got = parts.next().expect("the machine returns every part");
                    if geometry.range(window, part, 1).1 == 0 {
                        continue;
                    }
                    let at = Place { rank, block, window, part };
                    let symbol = judge_part(symbols, plan, at, got)?;
                    if spec.collective == crate::Collective::AllReduce {
                        let first = *agreed.entry((block, window, part)).or_insert((rank, symbol));
                        if first.1 != symbol {
                            let what = format!("folded in another order than at rank {}", first.0);
                            let step = got.map_or(0, |(_, step)| step);
                            return Err(Fault::Wrong { rank, block, part, what, step });
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn judge_part(
    symbols: &Symbols,
    plan: &Plan,
    at: Place,
    got: &Option<(Symbol, usize)>,
) -> Result<Symbol, Fault> {
    let spec = &plan.spec;
    let Place { rank, block, window, part } = at;
    let wrong = |what: String, step| Fault::Wrong { rank, block, part, what, step };
    let &Some((symbol, step)) = got else {
        return Err(wrong("never written".to_owned(), 0));
    };
    let source = |rank| Place { rank, block: spec.source_block(at.rank), window, part };
    let required: Vec<Place> = match spec.source_rank(block) {
        Some(rank) => vec![source(rank)],
        None => (0..spec.nranks).map(source).collect(),
    };
    let sum = required.iter().fold(0u128, |sum, &p| sum.wrapping_add(fingerprint(p)));
    let (node, got_sum, finished) = &symbols.nodes[symbol as usize];
    if *got_sum != sum {
        let counts = symbols.contributions(symbol);
        for &place in &required {
            match counts.get(&place) {
                None => {
                    let missing = place.rank;
                    return Err(Fault::Missing { rank, block, part, missing, step });
                }
                Some(1) => {}
                Some(&times) => {
                    let twice = place.rank;
                    return Err(Fault::Double { rank, block, part, twice, times, step });
                }
            }
        }
        let alien = counts.keys().find(|p| !required.contains(p));
        return Err(wrong(format!("it contains {alien:?}"), step));
    }
    let expected = u32::from(spec.collective.reduces() && spec.nranks > 1);
    if *finished != expected {
        return Err(wrong(format!("finished {finished} times, not {expected}"), step));
    }
    if expected == 1 && plan.algorithm.generator().canonical && !symbols.in_order(node, &required) {
        return Err(wrong("not folded at once in rank order".to_owned(), step));
    }
    Ok(symbol)
}
