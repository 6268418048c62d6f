//! Exchanges over edges: all-to-all between pairs of ranks, gather and scatter by the root.
//!
//! Rank `r` meets rank `(s − r) mod n` as the `s`-th, which meets `r` as its `s`-th. It sends to
//! all before it receives, so all-to-all takes one latency, and works in place.

use super::{Algorithm, Generator, Needs, edge_layout, in_rounds, others};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Program, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::Pairwise,
    name: "pairwise",
    needs: Needs::Edges,
    canonical: true,
    layout,
    program,
    cost_us,
};

fn layout(spec: &Spec) -> Option<Layout> {
    let serves =
        matches!(spec.collective, Collective::AllToAll | Collective::Gather | Collective::Scatter);
    // The root of a gather or scatter waits for nobody, or everybody for it.
    let rounds = if spec.collective == Collective::AllToAll { 2 } else { 1 };
    (serves && spec.nranks > 1).then(|| in_rounds(spec, edge_layout(1, 1, 0), (rounds, 1)))
}

fn program(spec: &Spec, rank: u32) -> Program {
    let n = spec.nranks;
    let input = |block| Slice::block(Buffer::Input, block);
    let output = |block| Slice::block(Buffer::Output, block);
    let ops: Vec<_> = match spec.collective {
        Collective::AllToAll => {
            let peers = || (0..n).map(|s| (s + n - rank) % n).filter(|&peer| peer != rank);
            let mut program = Program::default();
            program.ops.extend(peers().map(|peer| Op::Send { peer, src: input(peer) }));
            program.ops.push(Op::Copy { src: input(rank), dst: output(rank) });
            program.begin_round();
            program.ops.extend(peers().map(|peer| Op::Recv { peer, dst: output(peer) }));
            return program;
        }
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
    };
    ops.into()
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let n = f64::from(spec.nranks);
    match spec.collective {
        Collective::AllToAll => {
            let latency = model.latency_us + model.further_latency_us(layout(spec), bytes);
            latency + (n - 1.0) * model.next_hop_us(bytes, false)
        }
        // The root moves all data; the other ranks' halves of the hops overlap.
        _ => model.hop_us(bytes, false) + (n - 2.0) * model.next_hop_us(bytes, false),
    }
}
