//! Two-shot over edges: every rank gets its share of all inputs, folds the contributions at once in
//! rank order, and passes the result on. This takes two message times and the traffic of a ring,
//! and gives the bits of the direct plans, over any link and for any number of ranks.
//!
//! The root of a rooted collective has no share, as its edges carry everything anyway: in a
//! broadcast every other rank passes on the share that came from the root, and in a reduction the
//! others fold, and send their results to the root.
//!
//! Received data wait in scratch, where block `p` stands for rank `p`. All sends of a phase go
//! before its receives, so that a phase takes one latency; as every edge carries one message per
//! phase, a rank is blocked only by a rank that is behind.

use super::{Algorithm, Generator, Needs, edge_layout, in_rounds, others};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Program, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::TwoShotEdges,
    name: "two_shot_edges",
    needs: Needs::Edges,
    canonical: true,
    layout,
    program,
    cost_us,
};

/// Returns the number of the share of a rank; `None` for the root of a rooted collective.
fn share_of(spec: &Spec, rank: u32) -> Option<u32> {
    let behind_root = (rank + spec.nranks - spec.root - 1) % spec.nranks;
    let share = if spec.collective.rooted() { behind_root } else { rank };
    (share < shares(spec)).then_some(share)
}

/// Returns the number of shares.
fn shares(spec: &Spec) -> u32 {
    spec.nranks - u32::from(spec.collective.rooted())
}

fn layout(spec: &Spec) -> Option<Layout> {
    use Collective::{AllReduce, Broadcast, Reduce, ReduceScatter};
    let n = spec.nranks;
    let serves = match spec.collective {
        AllReduce | ReduceScatter => n > 1,
        // Between two ranks one shot has the same traffic.
        Broadcast | Reduce => n > 2,
        _ => false,
    };
    // A share is a part if the input is one block, else a block.
    let parts = if spec.collective == ReduceScatter { 1 } else { shares(spec) };
    let scratch_blocks = if spec.collective.reduces() { n } else { 0 };
    let rounds = if spec.collective == ReduceScatter { (2, 1) } else { (3, 2) };
    serves.then(|| in_rounds(spec, edge_layout(parts, 1, scratch_blocks), rounds))
}

fn program(spec: &Spec, rank: u32) -> Program {
    let own = share_of(spec, rank);
    // Every rank begins behind itself, so that not all send to the same one.
    let others_shares =
        || others(rank, spec.nranks).filter_map(|peer| Some((peer, share_of(spec, peer)?)));
    let scatters = spec.collective == Collective::ReduceScatter;
    let of_input = |share: u32| match scatters {
        true => Slice::block(Buffer::Input, share),
        false => Slice::part(Buffer::Input, 0, share),
    };
    let result = |share| Slice::part(Buffer::Output, 0, if scatters { 0 } else { share });
    let mut program = Program::default();
    let ops = &mut program.ops;
    if spec.collective != Collective::Broadcast || rank == spec.root {
        ops.extend(others_shares().map(|(peer, share)| Op::Send { peer, src: of_input(share) }));
    }
    program.begin_round();
    let ops = &mut program.ops;
    let kept = match (spec.collective, own) {
        (Collective::Broadcast, None) => {
            let whole = |buffer| Slice { parts: shares(spec), ..Slice::block(buffer, 0) };
            ops.push(Op::Copy { src: whole(Buffer::Input), dst: whole(Buffer::Output) });
            None
        }
        (Collective::Broadcast, Some(share)) => {
            ops.push(Op::Recv { peer: spec.root, dst: result(share) });
            Some(result(share))
        }
        (_, None) => None,
        (_, Some(share)) => {
            let part = if scatters { 0 } else { share };
            let scratch = |block| Slice::part(Buffer::Scratch, block, part);
            let receives = others(rank, spec.nranks);
            ops.extend(receives.map(|peer| Op::Recv { peer, dst: scratch(peer) }));
            let rooted = spec.collective == Collective::Reduce;
            let dst = if rooted { scratch(rank) } else { result(share) };
            let (count, at) = (spec.nranks, rank);
            let (src, own) = (scratch(0), of_input(share));
            ops.push(Op::Fold { src, count, own, at, dst, finish: true });
            Some(dst)
        }
    };
    let passes = |to: u32| match spec.collective {
        Collective::AllReduce => true,
        Collective::Broadcast => to != spec.root,
        Collective::Reduce => to == spec.root,
        _ => false,
    };
    if let Some(src) = kept {
        let receivers = others(rank, spec.nranks).filter(|&peer| passes(peer));
        ops.extend(receivers.map(|peer| Op::Send { peer, src }));
    }
    if !scatters {
        program.begin_round();
    }
    if passes(rank) {
        let receive = |(peer, share)| Op::Recv { peer, dst: result(share) };
        program.ops.extend(others_shares().map(receive));
    }
    program
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let n = u64::from(spec.nranks);
    let share = match spec.collective {
        Collective::ReduceScatter => bytes,
        _ => bytes.div_ceil(u64::from(shares(spec))),
    };
    let peers = (n - 1) as f64;
    let (send, receive) = (model.send_us(share), model.receive_us(share, false));
    let latency = model.latency_us + model.further_latency_us(layout(spec), share);
    let fold = model.read_us(share * n, spec.nranks - 1, true);
    match spec.collective {
        Collective::AllReduce => 2.0 * (latency + peers * (send + receive)) + fold,
        // The shares of the root on their way, beside those that the others pass on.
        Collective::Broadcast => 2.0 * latency + peers * (send + receive),
        Collective::Reduce => 2.0 * latency + peers * (send + receive) + receive + fold,
        _ => latency + peers * (send + receive) + fold,
    }
}
