//! Exchanges over edges: all-to-all in rounds of disjoint pairs, gather and scatter by the root.
//!
//! In round `s` rank `r` meets rank `(s − r) mod n`, which meets `r` in the same round. The blocks
//! that a rank sends and receives in a round have the same number, so all-to-all works in place.

use super::{Algorithm, Generator, Needs, edge_layout, others};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::Pairwise,
    name: "pairwise",
    needs: Needs::Edges,
    canonical: true,
    layout,
    ops,
    cost_us,
};

fn layout(spec: &Spec) -> Option<Layout> {
    let serves =
        matches!(spec.collective, Collective::AllToAll | Collective::Gather | Collective::Scatter);
    (serves && spec.nranks > 1).then_some(edge_layout(1, 1, 0))
}

fn ops(spec: &Spec, rank: u32) -> Vec<Op> {
    let n = spec.nranks;
    let input = |block| Slice::block(Buffer::Input, block);
    let output = |block| Slice::block(Buffer::Output, block);
    match spec.collective {
        Collective::AllToAll => (0..n)
            .flat_map(|round| {
                let peer = (round + n - rank) % n;
                if peer == rank {
                    vec![Op::Copy { src: input(rank), dst: output(rank) }]
                } else {
                    let send = Op::Send { peer, src: input(peer) };
                    vec![send, Op::Recv { peer, dst: output(peer) }]
                }
            })
            .collect(),
        Collective::Gather if rank == spec.root => {
            let own = Op::Copy { src: input(0), dst: output(rank) };
            let receives = others(rank, n).map(|peer| Op::Recv { peer, dst: output(peer) });
            std::iter::once(own).chain(receives).collect()
        }
        Collective::Gather => vec![Op::Send { peer: spec.root, src: input(0) }],
        _ if rank == spec.root => {
            let sends = others(rank, n).map(|peer| Op::Send { peer, src: input(peer) });
            let own = Op::Copy { src: input(rank), dst: output(0) };
            sends.chain(std::iter::once(own)).collect()
        }
        _ => vec![Op::Recv { peer: spec.root, dst: output(0) }],
    }
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let n = f64::from(spec.nranks);
    match spec.collective {
        Collective::AllToAll => (n - 1.0) * model.hop_us(bytes, false),
        // The root moves all data; the other ranks' halves of the hops overlap.
        _ => model.hop_us(bytes, false) + (n - 2.0) * model.next_hop_us(bytes, false),
    }
}
