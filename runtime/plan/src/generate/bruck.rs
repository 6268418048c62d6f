//! All-gather and reduce-scatter in `⌈log₂ n⌉` rounds for any number of ranks: Bruck's all-gather
//! (J. Bruck et al., 1997) and its transpose, the shape of NCCL's PAT (arXiv 2506.20252).

use super::{
    Algorithm, Generator, Needs, edge_layout, in_rounds, keeps_scratch, rounds_at_receives,
};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Order, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::Bruck,
    name: "bruck",
    needs: Needs::Edges,
    canonical: false,
    layout,
    program: |spec, rank| rounds_at_receives(ops(spec, rank)),
    cost_us,
};

fn layout(spec: &Spec) -> Option<Layout> {
    if spec.nranks < 2 {
        return None;
    }
    // The last round of all-gather, and the first of its transpose, moves most blocks.
    let n = spec.nranks;
    let most = rounds(n).iter().map(|(_, count)| *count).max().unwrap_or(0);
    match spec.collective {
        Collective::AllGather => Some(in_rounds(spec, edge_layout(1, 1, 0), (n, most))),
        // A rank keeps a partial result for itself and one for each rank that it still has to
        // serve.
        Collective::ReduceScatter => {
            let layout = edge_layout(1, 1, rounds(n)[0].0);
            Some(keeps_scratch(in_rounds(spec, layout, (n, most))))
        }
        _ => None,
    }
}

/// Returns the rounds of the transpose as (distance, blocks moved), the farthest first.
fn rounds(n: u32) -> Vec<(u32, u32)> {
    let near_first = (0..32).map(|k| 1u32 << k).take_while(|&distance| distance < n);
    let mut rounds: Vec<_> = near_first.map(|d| (d, d.min(n - d))).collect();
    rounds.reverse();
    rounds
}

fn ops(spec: &Spec, rank: u32) -> Vec<Op> {
    match spec.collective {
        Collective::AllGather => all_gather(spec.nranks, rank),
        _ => reduce_scatter(spec.nranks, rank),
    }
}

/// Returns the operations of the all-gather: after the round of distance `d` a rank holds its own
/// block and those of the next `2d − 1` ranks.
fn all_gather(n: u32, rank: u32) -> Vec<Op> {
    let block = |offset: u32| Slice::block(Buffer::Output, (rank + offset) % n);
    let mut ops = vec![Op::Copy { src: Slice::block(Buffer::Input, 0), dst: block(0) }];
    for (distance, count) in rounds(n).into_iter().rev() {
        let (to, from) = ((rank + n - distance) % n, (rank + distance) % n);
        for offset in 0..count {
            ops.push(Op::Send { peer: to, src: block(offset) });
            ops.push(Op::Recv { peer: from, dst: block(distance + offset) });
        }
    }
    ops
}

/// Returns the operations of the transpose, in which time runs backwards: a rank sends the blocks
/// that it received there, and folds in those that it sent.
fn reduce_scatter(n: u32, rank: u32) -> Vec<Op> {
    let input = |offset: u32| Slice::block(Buffer::Input, (rank + offset) % n);
    let mut folded = vec![false; n as usize];
    let mut ops = Vec::new();
    for (distance, count) in rounds(n) {
        let (to, from) = ((rank + distance) % n, (rank + n - distance) % n);
        for offset in 0..count {
            let away = distance + offset;
            let src = if folded[away as usize] {
                Slice::block(Buffer::Scratch, away)
            } else {
                input(away)
            };
            ops.push(Op::Send { peer: to, src });
            let partial = Slice::block(Buffer::Scratch, offset);
            let finish = distance == 1;
            ops.push(Op::RecvReduce {
                peer: from,
                local: if folded[offset as usize] { partial } else { input(offset) },
                dst: if finish { Slice::block(Buffer::Output, 0) } else { partial },
                order: Order::LocalFirst,
                finish,
            });
            folded[offset as usize] = true;
        }
    }
    ops
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let reduces = spec.collective.reduces();
    rounds(spec.nranks)
        .into_iter()
        .map(|(_, count)| {
            let first =
                model.hop_us(bytes, reduces) + model.further_latency_us(layout(spec), bytes);
            first + (count - 1) as f64 * model.next_hop_us(bytes, reduces)
        })
        .sum()
}
