//! Lines: edges between GPUs that reach each other's memory, on which data and their number travel
//! in one store. A kernel carries out a program in four phases for each unit of the data: it puts
//! what the peers get of its input, copies, folds what comes in and passes it on, and takes what
//! remains. [`Phases`] is a program in that form, with the operations of the program and no others.

use crate::generate::{Algorithm, Plan};
use crate::ir::{Buffer, Op, Program, Slice};
use crate::spec::Collective;

/// Returns whether lines carry plans of an algorithm, whose programs are then all [`Phases`].
pub fn carry(algorithm: Algorithm) -> bool {
    use Algorithm::{OneShotEdges, Pairwise, TwoShotEdges};
    [OneShotEdges, TwoShotEdges, Pairwise].contains(&algorithm)
}

/// Returns whether lines carry a plan. Between two ranks nothing is passed on: one shot has the
/// same traffic, and the kernels for two ranks do without.
pub fn carry_plan(plan: &Plan) -> bool {
    let two = plan.spec.nranks == 2;
    let passes = two && plan.algorithm == Algorithm::TwoShotEdges && plan.layout.parts > 1;
    (carry(plan.algorithm) && !passes) || is_chain(plan)
}

/// Returns whether a plan is a reduce in a chain of more than two ranks, for which there are
/// kernels: each rank folds what comes from the one before it with its own operand, and passes it
/// on to the next one. Broadcasts in a chain were not faster than in two shots
/// (docs/performance.md).
pub fn is_chain(plan: &Plan) -> bool {
    let reduce = plan.spec.collective == Collective::Reduce;
    plan.algorithm == Algorithm::Ring && reduce && plan.spec.nranks > 2
}

/// Returns whether what the ranks of a plan pass on travels on channels of its own, since they put
/// something else to the same peers.
pub fn results_apart(plan: &Plan) -> bool {
    plan.algorithm == Algorithm::TwoShotEdges && plan.spec.collective != Collective::ReduceScatter
}

/// The middle phase: a fold of what every other rank sends with a slice of this rank, or the
/// message of one rank as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Middle {
    /// The ranks whose next messages come in, in the order of the program, each with the place
    /// where the program puts it, or with that of the operand with which it is folded at once.
    pub from: Vec<(u32, Slice)>,
    /// The fold, [`Op::Fold`] or [`Op::RecvReduce`]; `None` if the message is passed on as it came.
    pub fold: Option<Op>,
    /// The place of the result in the program: output or, where this rank keeps none, scratch.
    pub result: Slice,
    /// The ranks to which the result is sent.
    pub to: Vec<u32>,
}

/// A program in the phases of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// The slices of the input that are sent, each with its receiver.
    pub puts: Vec<(u32, Slice)>,
    /// The slices of the input that are copied to the output, as (from, to).
    pub copies: Vec<(Slice, Slice)>,
    /// The middle phase.
    pub middle: Option<Middle>,
    /// The slices of the output that are received, each with its sender.
    pub takes: Vec<(u32, Slice)>,
}

impl Phases {
    /// Returns the phases of a program; `None` if it has another form.
    pub fn of(ops: &[Op]) -> Option<Self> {
        let mut phases = Phases::default();
        // What was received so far, and no fold has read.
        let mut received: Vec<(u32, Slice)> = Vec::new();
        for &op in ops {
            match op {
                Op::Send { peer, src } if src.buffer == Buffer::Input => {
                    phases.puts.push((peer, src));
                }
                Op::Send { peer, src } => phases.pass_on(peer, src, &mut received)?,
                Op::Copy { src, dst } => {
                    let user = src.buffer == Buffer::Input && dst.buffer == Buffer::Output;
                    user.then(|| phases.copies.push((src, dst)))?;
                }
                Op::Recv { peer, dst } => received.push((peer, dst)),
                Op::RecvReduce { peer, local, dst, .. } => {
                    let alone = received.is_empty() && phases.middle.is_none();
                    let (from, fold, to) = (vec![(peer, local)], Some(op), Vec::new());
                    let middle = Middle { from, fold, result: dst, to };
                    phases.middle = alone.then_some(Some(middle))?;
                }
                Op::Fold { src, count, at, dst, .. } => {
                    let block = |number| Slice { block: src.block + number, ..src };
                    let read = (0..count).filter(|number| *number != at).map(block);
                    let all = read.clone().all(|slice| received.iter().any(|(_, s)| *s == slice));
                    let from = std::mem::take(&mut received);
                    let whole = all && from.len() == read.count() && phases.middle.is_none();
                    let middle = Middle { from, fold: Some(op), result: dst, to: Vec::new() };
                    phases.middle = whole.then_some(Some(middle))?;
                }
                _ => return None,
            }
        }
        phases.takes = received;
        let kept = phases.takes.iter().all(|(_, slice)| slice.buffer == Buffer::Output);
        kept.then_some(phases)
    }

    /// Takes in that a slice which is not input is sent: the result of the middle phase, or what
    /// has come before.
    fn pass_on(&mut self, peer: u32, src: Slice, received: &mut Vec<(u32, Slice)>) -> Option<()> {
        if self.middle.is_none() {
            let at = received.iter().position(|(_, slice)| *slice == src)?;
            let from = vec![received.remove(at)];
            self.middle = Some(Middle { from, fold: None, result: src, to: Vec::new() });
        }
        let middle = self.middle.as_mut().filter(|middle| middle.result == src)?;
        middle.to.push(peer);
        Some(())
    }

    /// Returns the program that a kernel carries out.
    pub fn program(&self) -> Program {
        let Self { puts, copies, middle, takes } = self;
        let mut ops: Vec<Op> = puts.iter().map(|&(peer, src)| Op::Send { peer, src }).collect();
        ops.extend(copies.iter().map(|&(src, dst)| Op::Copy { src, dst }));
        let receive = |&(peer, dst): &(u32, Slice)| Op::Recv { peer, dst };
        if let Some(Middle { from, fold, result, to }) = middle {
            if !matches!(fold, Some(Op::RecvReduce { .. })) {
                ops.extend(from.iter().map(receive));
            }
            ops.extend(fold);
            ops.extend(to.iter().map(|&peer| Op::Send { peer, src: *result }));
        }
        ops.extend(takes.iter().map(receive));
        ops.into()
    }
}
