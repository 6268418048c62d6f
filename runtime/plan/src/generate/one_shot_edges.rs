//! One-shot over edges: every rank sends its whole input to the ranks that need it. Reductions fold
//! the contributions in rank order. This takes one message time; a reduction takes more traffic
//! than by any other algorithm, and so does a broadcast of the root.

use super::{Algorithm, Generator, Needs, edge_layout, in_rounds, others};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Program, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::OneShotEdges,
    name: "one_shot_edges",
    needs: Needs::Edges,
    canonical: true,
    layout,
    program,
    cost_us,
};

fn layout(spec: &Spec) -> Option<Layout> {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce};
    let serves = [AllReduce, Reduce, AllGather, Broadcast].contains(&spec.collective);
    let scratch_blocks = if spec.collective.reduces() { spec.nranks } else { 0 };
    let layout = || in_rounds(spec, edge_layout(1, 1, scratch_blocks), (2, 1));
    (serves && spec.nranks > 1).then(layout)
}

/// Returns whether the input of `from` goes to `to`.
fn goes(spec: &Spec, from: u32, to: u32) -> bool {
    match spec.collective {
        Collective::Broadcast => from == spec.root,
        Collective::Reduce => to == spec.root,
        _ => true,
    }
}

fn program(spec: &Spec, rank: u32) -> Program {
    let (own, result) = (Slice::block(Buffer::Input, 0), Slice::block(Buffer::Output, 0));
    let peers = || others(rank, spec.nranks);
    let receivers = peers().filter(|&peer| goes(spec, rank, peer));
    let senders = || peers().filter(|&peer| goes(spec, peer, rank));
    let sends: Vec<_> = receivers.map(|peer| Op::Send { peer, src: own }).collect();
    let mut program = Program::from(sends);
    program.begin_round();
    let ops = &mut program.ops;
    if !spec.collective.reduces() {
        let of = |peer| match spec.collective {
            Collective::AllGather => Slice::block(Buffer::Output, peer),
            _ => result,
        };
        if goes(spec, rank, rank) {
            ops.push(Op::Copy { src: own, dst: of(rank) });
        }
        ops.extend(senders().map(|peer| Op::Recv { peer, dst: of(peer) }));
    } else if goes(spec, rank, rank) {
        let of = |peer| Slice::block(Buffer::Scratch, peer);
        ops.extend(senders().map(|peer| Op::Recv { peer, dst: of(peer) }));
        let (src, count, at) = (of(0), spec.nranks, rank);
        ops.push(Op::Fold { src, count, own, at, dst: result, finish: true });
    }
    program
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let peers = f64::from(spec.nranks - 1);
    let sends = if spec.collective == Collective::Reduce { 0.0 } else { peers };
    let receives = if spec.collective == Collective::Broadcast { 1.0 } else { peers };
    let all = bytes * u64::from(spec.nranks);
    let fold_us = match spec.collective.reduces() {
        true => model.read_us(all, spec.nranks - 1, true),
        false => 0.0,
    };
    model.latency_us
        + model.further_latency_us(layout(spec), bytes)
        + sends * model.send_us(bytes)
        + receives * model.receive_us(bytes, false)
        + fold_us
}
