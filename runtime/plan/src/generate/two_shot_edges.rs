//! Two-shot over edges: every rank gets its share of all inputs, folds the contributions at once in
//! rank order, and passes the result on. This takes two message times and the traffic of a ring,
//! and gives the bits of the direct plans, over any link and for any number of ranks.
//!
//! Received data wait in scratch, where block `p` stands for rank `p`. All sends of a phase go
//! before its receives, so that a phase takes one latency; as every edge carries one message per
//! phase, a rank is blocked only by a rank that is behind.

use super::{Algorithm, Generator, Needs, edge_layout, others};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::TwoShotEdges,
    name: "two_shot_edges",
    needs: Needs::Edges,
    canonical: true,
    layout,
    ops,
    cost_us,
};

fn layout(spec: &Spec) -> Option<Layout> {
    let n = spec.nranks;
    // A share is a part if the input is one block, else a block.
    let parts = if spec.collective == Collective::ReduceScatter { 1 } else { n };
    (spec.collective.reduces() && n > 1).then_some(edge_layout(parts, 1, n))
}

fn ops(spec: &Spec, rank: u32) -> Vec<Op> {
    let scatters = spec.collective == Collective::ReduceScatter;
    let share = |buffer, of: u32| match scatters {
        true => Slice::block(buffer, of),
        false => Slice::part(buffer, 0, of),
    };
    // The share of this rank in block `block` of a buffer.
    let own = |buffer, block| Slice::part(buffer, block, if scatters { 0 } else { rank });
    let peers = || others(rank, spec.nranks);
    let mut ops: Vec<_> =
        peers().map(|peer| Op::Send { peer, src: share(Buffer::Input, peer) }).collect();
    ops.extend(peers().map(|peer| Op::Recv { peer, dst: own(Buffer::Scratch, peer) }));
    let keeps = spec.collective != Collective::Reduce || rank == spec.root;
    let result = if keeps { own(Buffer::Output, 0) } else { own(Buffer::Scratch, rank) };
    ops.push(Op::Fold {
        src: own(Buffer::Scratch, 0),
        count: spec.nranks,
        own: share(Buffer::Input, rank),
        at: rank,
        dst: result,
        finish: true,
    });
    let collect = |peer| Op::Recv { peer, dst: Slice::part(Buffer::Output, 0, peer) };
    match spec.collective {
        Collective::AllReduce => {
            ops.extend(peers().map(|peer| Op::Send { peer, src: result }));
            ops.extend(peers().map(collect));
        }
        Collective::Reduce if keeps => ops.extend(peers().map(collect)),
        Collective::Reduce => ops.push(Op::Send { peer: spec.root, src: result }),
        _ => {}
    }
    ops
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let n = u64::from(spec.nranks);
    let share =
        if spec.collective == Collective::ReduceScatter { bytes } else { bytes.div_ceil(n) };
    let windows = share.div_ceil(model.edge_slot_bytes).max(1) as f64;
    let peers = (n - 1) as f64;
    let (send, receive) = (model.send_us(share), model.receive_us(share, false));
    let latency = windows * model.latency_us;
    let first =
        latency + peers * (send + receive) + model.read_us(share * n, spec.nranks - 1, true);
    match spec.collective {
        Collective::AllReduce => first + latency + peers * (send + receive),
        Collective::Reduce => first + latency + send + peers * receive,
        _ => first,
    }
}
