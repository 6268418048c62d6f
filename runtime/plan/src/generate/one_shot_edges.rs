//! One-shot over edges: every rank sends its whole input to the ranks that need it, and these fold
//! the contributions in rank order. This takes one message time, and more traffic than any other
//! algorithm: it is for small calls.

use super::{Algorithm, Generator, Needs, edge_layout, others};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::OneShotEdges,
    name: "one_shot_edges",
    needs: Needs::Edges,
    canonical: true,
    layout,
    ops,
    cost_us,
};

fn layout(spec: &Spec) -> Option<Layout> {
    let serves = matches!(spec.collective, Collective::AllReduce | Collective::Reduce);
    (serves && spec.nranks > 1).then_some(edge_layout(1, 1, spec.nranks))
}

fn ops(spec: &Spec, rank: u32) -> Vec<Op> {
    let own = Slice::block(Buffer::Input, 0);
    let peers = || others(rank, spec.nranks);
    let folds = |rank| spec.collective == Collective::AllReduce || rank == spec.root;
    let receivers = peers().filter(|&peer| folds(peer));
    let mut ops: Vec<_> = receivers.map(|peer| Op::Send { peer, src: own }).collect();
    if folds(rank) {
        let of = |peer| Slice::block(Buffer::Scratch, peer);
        ops.extend(peers().map(|peer| Op::Recv { peer, dst: of(peer) }));
        let (src, dst) = (of(0), Slice::block(Buffer::Output, 0));
        let (count, at) = (spec.nranks, rank);
        ops.push(Op::Fold { src, count, own, at, dst, finish: true });
    }
    ops
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let peers = f64::from(spec.nranks - 1);
    let windows = bytes.div_ceil(model.edge_slot_bytes).max(1) as f64;
    let sends = if spec.collective == Collective::AllReduce { peers } else { 0.0 };
    let all = bytes * u64::from(spec.nranks);
    windows * model.latency_us
        + sends * model.send_us(bytes)
        + peers * model.receive_us(bytes, false)
        + model.read_us(all, spec.nranks - 1, true)
}
