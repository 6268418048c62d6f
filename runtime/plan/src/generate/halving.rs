//! All-reduce by recursive halving (reduce-scatter) and doubling (all-gather), for any number of
//! ranks: `2 log₂ n` steps and the traffic of a ring. If `n` is no power of two, the first ranks
//! pair up before and after. (R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
//! communication operations in MPICH", 2005.) The fold tree is balanced over rank order.

use super::{Algorithm, Generator, Needs, edge_layout, in_rounds, rounds_at_receives};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Order, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::Halving,
    name: "halving",
    needs: Needs::Edges,
    canonical: false,
    layout,
    program: |spec, rank| rounds_at_receives(ops(spec, rank)),
    cost_us,
};

fn layout(spec: &Spec) -> Option<Layout> {
    let power = spec.nranks.checked_ilog2().map_or(0, |bits| 1 << bits);
    let serves = spec.collective == Collective::AllReduce && spec.nranks > 1;
    let layout = edge_layout(power, (power / 2).max(1), 0);
    // Ranks that pair up before and after have other rounds than the rest.
    let alike = spec.nranks == power;
    let rounds = || in_rounds(spec, layout, (2 * power.ilog2() + 1, 2));
    serves.then(|| if alike { rounds() } else { layout })
}

fn parts(buffer: Buffer, part: u32, parts: u32) -> Slice {
    Slice { buffer, block: 0, part, parts }
}

fn ops(spec: &Spec, rank: u32) -> Vec<Op> {
    let power = 1 << spec.nranks.ilog2();
    let paired = 2 * (spec.nranks - power);
    // Messages carry at most half of the parts.
    let halves = [(0, power.div_ceil(2)), (power.div_ceil(2), power / 2)];
    let halves = halves.into_iter().filter(|&(_, len)| len > 0);
    if rank < paired && rank.is_multiple_of(2) {
        let peer = rank + 1;
        let give = halves.clone().map(|(p, len)| {
            let src = parts(Buffer::Input, p, len);
            Op::Send { peer, src }
        });
        let get = halves.map(|(p, len)| Op::Recv { peer, dst: parts(Buffer::Output, p, len) });
        return give.chain(get).collect();
    }
    let mut ops = Vec::new();
    let mut held = Buffer::Input;
    if rank < paired {
        for (p, len) in halves.clone() {
            ops.push(Op::RecvReduce {
                peer: rank - 1,
                local: parts(Buffer::Input, p, len),
                dst: parts(Buffer::Output, p, len),
                order: Order::IncomingFirst,
                finish: power == 1,
            });
        }
        held = Buffer::Output;
    }
    let id = if rank < paired { rank / 2 } else { rank - paired / 2 };
    ops.extend(exchange(id, power, held, &|id| {
        if id < paired / 2 { 2 * id + 1 } else { id + paired / 2 }
    }));
    if rank < paired {
        ops.extend(halves.map(|(p, len)| {
            let src = parts(Buffer::Output, p, len);
            Op::Send { peer: rank - 1, src }
        }));
    }
    ops
}

/// Returns the operations of halving and doubling among a power of two of participants.
fn exchange(id: u32, power: u32, held: Buffer, rank_of: &dyn Fn(u32) -> u32) -> Vec<Op> {
    let (mut ops, mut first, mut len, mut held) = (Vec::new(), 0, power, held);
    let mut distance = power / 2;
    while distance > 0 {
        let peer = rank_of(id ^ distance);
        len /= 2;
        let upper = id & distance != 0;
        let (keep, give) = if upper { (first + len, first) } else { (first, first + len) };
        ops.push(Op::Send { peer, src: parts(held, give, len) });
        ops.push(Op::RecvReduce {
            peer,
            local: parts(held, keep, len),
            dst: parts(Buffer::Output, keep, len),
            order: if upper { Order::IncomingFirst } else { Order::LocalFirst },
            finish: distance == 1,
        });
        (first, held) = (keep, Buffer::Output);
        distance /= 2;
    }
    distance = 1;
    while distance < power {
        let peer = rank_of(id ^ distance);
        let other = if id & distance != 0 { first - len } else { first + len };
        ops.push(Op::Send { peer, src: parts(Buffer::Output, first, len) });
        ops.push(Op::Recv { peer, dst: parts(Buffer::Output, other, len) });
        first = first.min(other);
        len *= 2;
        distance *= 2;
    }
    ops
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let steps = spec.nranks.ilog2();
    let mut time = 0.0;
    for step in 1..=steps {
        time += model.hop_us(bytes >> step, true) + model.hop_us(bytes >> step, false);
        // A message has at most half of a window.
        time += 2.0 * model.further_latency_us(layout(spec), bytes / 2);
    }
    if !spec.nranks.is_power_of_two() {
        time += model.hop_us(bytes, true) + model.hop_us(bytes, false);
    }
    time
}
