//! Push: every rank writes the data that the others need into their inboxes, and reads the data
//! that arrive in its own inbox.
//!
//! If memory is far, stores are under way while the next ones are issued, but a rank waits for
//! its loads. An all-reduce folds part `r` at rank `r`, which writes the result into all inboxes.

use super::{Algorithm, Generator, Needs, others};
use crate::cost::CostModel;
use crate::ir::{Buffer, Destination, From, Layout, Op, Slice, UserMemory};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::Push,
    name: "push",
    needs: Needs::Inbox,
    canonical: true,
    layout,
    program: |spec, rank| ops(spec, rank).into(),
    cost_us,
};

fn layout(spec: &Spec) -> Option<Layout> {
    use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
    let serves = [AllReduce, AllGather, ReduceScatter, AllToAll].contains(&spec.collective);
    let two_shots = spec.collective == AllReduce;
    let shots = if two_shots { 2 } else { 1 };
    (serves && spec.nranks > 1).then(|| Layout {
        parts: if two_shots { spec.nranks } else { 1 },
        stage_blocks: 0,
        scratch_blocks: 0,
        inbox_blocks: shots * (spec.nranks - 1),
        message_parts: 0,
        signals: shots,
        done_signal: shots + 1,
        user_memory: UserMemory::Private,
        rounds: 1,
        scratch_windows: 1,
    })
}

fn ops(spec: &Spec, rank: u32) -> Vec<Op> {
    match spec.collective {
        Collective::AllReduce => all_reduce(spec.nranks, rank),
        _ => one_shot(spec, rank),
    }
}

fn all_reduce(nranks: u32, rank: u32) -> Vec<Op> {
    let part = |buffer, part| Slice::part(buffer, 0, part);
    // The blocks with the parts to be folded come first, then those with the results.
    let inbox = |shot, from, part| Slice::part(Buffer::Inbox, shot * nranks + from, part);
    let mut ops = vec![Op::Acquire];
    for peer in others(rank, nranks) {
        ops.push(Op::Put { peer, src: part(Buffer::Input, peer), dst: inbox(0, rank, peer) });
    }
    ops.extend([
        Op::Signal,
        Op::Wait { from: From::All, signal: 1 },
        Op::Reduce {
            src: inbox(0, 0, rank),
            own: part(Buffer::Input, rank),
            dst: Destination::Inboxes(part(Buffer::Output, rank), inbox(1, rank, rank)),
            finish: true,
        },
        Op::Signal,
    ]);
    for peer in others(rank, nranks) {
        ops.push(Op::Wait { from: From::One(peer), signal: 2 });
        ops.push(Op::Copy { src: inbox(1, peer, peer), dst: part(Buffer::Output, peer) });
    }
    ops
}

fn one_shot(spec: &Spec, rank: u32) -> Vec<Op> {
    let block = Slice::block;
    let own = block(Buffer::Input, spec.source_block(rank));
    let mut ops = vec![Op::Acquire];
    for peer in others(rank, spec.nranks) {
        let src = block(Buffer::Input, spec.source_block(peer));
        ops.push(Op::Put { peer, src, dst: block(Buffer::Inbox, rank) });
    }
    ops.push(Op::Signal);
    if spec.collective.reduces() {
        let dst = Destination::Own(block(Buffer::Output, 0));
        ops.push(Op::Wait { from: From::All, signal: 1 });
        ops.push(Op::Reduce { src: block(Buffer::Inbox, 0), own, dst, finish: true });
        return ops;
    }
    ops.push(Op::Copy { src: own, dst: block(Buffer::Output, rank) });
    for peer in others(rank, spec.nranks) {
        ops.push(Op::Wait { from: From::One(peer), signal: 1 });
        ops.push(Op::Copy { src: block(Buffer::Inbox, peer), dst: block(Buffer::Output, peer) });
    }
    ops
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let (nranks, peers) = (u64::from(spec.nranks), u64::from(spec.nranks - 1));
    let (shots, part) = match spec.collective {
        Collective::AllReduce => (2, bytes / nranks),
        _ => (1, bytes),
    };
    let windows = (shots * peers * part).div_ceil(model.stage_slot_bytes).max(1);
    let shots = shots as f64;
    shots * windows as f64 * model.exchange_us(spec.nranks)
        + shots * model.put_us(peers * part)
        + shots * model.inbox_us(nranks * part)
}
