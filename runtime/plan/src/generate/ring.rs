//! Rings: bandwidth-optimal for large messages, in `O(n)` steps. Rooted collectives use the ring as
//! a chain that begins or ends at the root; windows follow each other along the chain.

use super::{
    Algorithm, Generator, Needs, edge_layout, in_rounds, keeps_scratch, rounds_at_receives,
};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Order, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::Ring,
    name: "ring",
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
    let n = spec.nranks;
    match spec.collective {
        Collective::AllReduce => {
            Some(in_rounds(spec, edge_layout(n, 1, 0), (2 * n - 1, 2 * (n - 1))))
        }
        Collective::AllGather => Some(in_rounds(spec, edge_layout(1, 1, 0), (n, n - 1))),
        Collective::ReduceScatter => {
            Some(keeps_scratch(in_rounds(spec, edge_layout(1, 1, 1), (n, n - 1))))
        }
        Collective::Broadcast => Some(edge_layout(1, 1, 0)),
        Collective::Reduce => Some(edge_layout(1, 1, 1)),
        Collective::AllToAll | Collective::Gather | Collective::Scatter => None,
    }
}

fn ops(spec: &Spec, rank: u32) -> Vec<Op> {
    match spec.collective {
        Collective::AllReduce => all_reduce(spec.nranks, rank),
        Collective::AllGather => all_gather(spec.nranks, rank),
        Collective::ReduceScatter => reduce_scatter(spec.nranks, rank),
        Collective::Broadcast => broadcast_chain(spec, rank),
        _ => reduce_chain(spec, rank),
    }
}

fn neighbours(n: u32, rank: u32) -> (u32, u32) {
    ((rank + n - 1) % n, (rank + 1) % n)
}

fn all_reduce(n: u32, rank: u32) -> Vec<Op> {
    let (prev, next) = neighbours(n, rank);
    let part = |buffer, step: u32| Slice::part(buffer, 0, (rank + n - step % n) % n);
    let mut ops = vec![Op::Send { peer: next, src: part(Buffer::Input, 0) }];
    for step in 1..n {
        let (local, dst) = (part(Buffer::Input, step), part(Buffer::Output, step));
        let (order, finish) = (Order::IncomingFirst, step == n - 1);
        ops.push(Op::RecvReduce { peer: prev, local, dst, order, finish });
        ops.push(Op::Send { peer: next, src: dst });
    }
    for step in 0..n - 1 {
        let dst = part(Buffer::Output, step);
        ops.push(Op::Recv { peer: prev, dst });
        if step + 2 < n {
            ops.push(Op::Send { peer: next, src: dst });
        }
    }
    ops
}

fn all_gather(n: u32, rank: u32) -> Vec<Op> {
    let (prev, next) = neighbours(n, rank);
    let own = Slice::block(Buffer::Input, 0);
    let mut ops = vec![
        Op::Send { peer: next, src: own },
        Op::Copy { src: own, dst: Slice::block(Buffer::Output, rank) },
    ];
    for step in 1..n {
        let dst = Slice::block(Buffer::Output, (rank + n - step) % n);
        ops.push(Op::Recv { peer: prev, dst });
        if step + 1 < n {
            ops.push(Op::Send { peer: next, src: dst });
        }
    }
    ops
}

fn reduce_scatter(n: u32, rank: u32) -> Vec<Op> {
    let (prev, next) = neighbours(n, rank);
    let input = |step: u32| Slice::block(Buffer::Input, (rank + 2 * n - 1 - step) % n);
    let partial = Slice::block(Buffer::Scratch, 0);
    let mut ops = vec![Op::Send { peer: next, src: input(0) }];
    for step in 1..n {
        let finish = step == n - 1;
        let dst = if finish { Slice::block(Buffer::Output, 0) } else { partial };
        let (local, order) = (input(step), Order::IncomingFirst);
        ops.push(Op::RecvReduce { peer: prev, local, dst, order, finish });
        if !finish {
            ops.push(Op::Send { peer: next, src: partial });
        }
    }
    ops
}

fn broadcast_chain(spec: &Spec, rank: u32) -> Vec<Op> {
    let (prev, next) = neighbours(spec.nranks, rank);
    let (input, output) = (Slice::block(Buffer::Input, 0), Slice::block(Buffer::Output, 0));
    if rank == spec.root {
        return vec![Op::Send { peer: next, src: input }, Op::Copy { src: input, dst: output }];
    }
    let mut ops = vec![Op::Recv { peer: prev, dst: output }];
    if next != spec.root {
        ops.push(Op::Send { peer: next, src: output });
    }
    ops
}

fn reduce_chain(spec: &Spec, rank: u32) -> Vec<Op> {
    let (prev, next) = neighbours(spec.nranks, rank);
    let local = Slice::block(Buffer::Input, 0);
    if prev == spec.root {
        return vec![Op::Send { peer: next, src: local }];
    }
    let finish = rank == spec.root;
    let dst = Slice::block(if finish { Buffer::Output } else { Buffer::Scratch }, 0);
    let mut ops =
        vec![Op::RecvReduce { peer: prev, local, dst, order: Order::IncomingFirst, finish }];
    if !finish {
        ops.push(Op::Send { peer: next, src: dst });
    }
    ops
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let n = u64::from(spec.nranks);
    let hop = |bytes: u64, reduces: bool| model.hop_us(bytes, reduces);
    // A rank that sends a window after the other hears from its neighbour once per hop of each.
    let step = |bytes, reduces| hop(bytes, reduces) + model.further_latency_us(layout(spec), bytes);
    match spec.collective {
        Collective::AllReduce => {
            (n - 1) as f64 * (step(bytes.div_ceil(n), true) + step(bytes.div_ceil(n), false))
        }
        Collective::AllGather => (n - 1) as f64 * step(bytes, false),
        Collective::ReduceScatter => (n - 1) as f64 * step(bytes, true),
        _ => {
            // The chain fills once; after that each step delivers a window.
            let window = bytes.min(model.bytes_at_a_time());
            let reduces = spec.collective.reduces();
            (n - 2) as f64 * hop(window, reduces) + hop(bytes, reduces)
        }
    }
}
