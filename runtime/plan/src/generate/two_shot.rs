//! Direct two-shot: rank `r` reduces part `r` of all inputs, then the ranks collect the parts.
//!
//! *Staged*: inputs and reduced parts go through the stage. *Mapped*: rank `r` pulls part `r` from
//! the user buffers of all ranks, reduces, and pushes the result to the outputs of all ranks; each
//! element has one owner, so this is safe in place. *Pulled*: as mapped, but all ranks pull the
//! results too, so that user memory need only be readable for the others.

use super::{Algorithm, Generator, Needs, others};
use crate::cost::CostModel;
use crate::ir::{Buffer, Destination, From, Layout, Op, Slice, UserMemory};
use crate::spec::{Collective, Spec};

pub(super) const STAGED: Generator = Generator {
    algorithm: Algorithm::TwoShot,
    name: "two_shot",
    needs: Needs::Stage,
    canonical: true,
    layout: staged_layout,
    program: |spec, rank| staged_ops(spec, rank).into(),
    cost_us: staged_cost_us,
};

pub(super) const MAPPED: Generator = Generator {
    algorithm: Algorithm::TwoShotMapped,
    name: "two_shot_mapped",
    needs: Needs::UserMemory,
    canonical: true,
    layout: mapped_layout,
    program: |spec, rank| mapped_ops(spec, rank).into(),
    cost_us: mapped_cost_us,
};

pub(super) const PULLED: Generator = Generator {
    algorithm: Algorithm::TwoShotPulled,
    name: "two_shot_pulled",
    needs: Needs::UserMemory,
    canonical: true,
    layout: pulled_layout,
    program: |spec, rank| pulled_ops(spec, rank).into(),
    cost_us: pulled_cost_us,
};

fn serves(spec: &Spec) -> bool {
    spec.nranks > 1 && matches!(spec.collective, Collective::AllReduce | Collective::Reduce)
}

fn staged_layout(spec: &Spec) -> Option<Layout> {
    serves(spec).then_some(Layout {
        parts: spec.nranks,
        stage_blocks: 1,
        scratch_blocks: 0,
        inbox_blocks: 0,
        message_parts: 0,
        signals: 2,
        done_signal: 3,
        user_memory: UserMemory::Private,
        rounds: 1,
        scratch_windows: 1,
    })
}

fn staged_ops(spec: &Spec, rank: u32) -> Vec<Op> {
    let part = |buffer, part| Slice::part(buffer, 0, part);
    let mut ops = vec![Op::Acquire];
    // The parts of the others: those before and behind this rank's own.
    for (first, parts) in [(0, rank), (rank + 1, spec.nranks - rank - 1)] {
        let all = |buffer| Slice { parts, ..Slice::part(buffer, 0, first) };
        if parts > 0 {
            ops.push(Op::Copy { src: all(Buffer::Input), dst: all(Buffer::Stage) });
        }
    }
    let collects = spec.collective == Collective::AllReduce || rank == spec.root;
    let staged = part(Buffer::Stage, rank);
    ops.extend([
        Op::Signal,
        Op::Wait { from: From::All, signal: 1 },
        Op::Reduce {
            src: staged,
            own: part(Buffer::Input, rank),
            dst: match spec.collective {
                Collective::AllReduce => Destination::Both(part(Buffer::Output, rank), staged),
                _ if collects => Destination::Own(part(Buffer::Output, rank)),
                _ => Destination::Own(staged),
            },
            finish: true,
        },
        Op::Signal,
    ]);
    if collects {
        for peer in others(rank, spec.nranks) {
            ops.push(Op::Wait { from: From::One(peer), signal: 2 });
            let (src, dst) = (part(Buffer::Stage, peer), part(Buffer::Output, peer));
            ops.push(Op::Get { peer, src, dst });
        }
    }
    ops
}

fn mapped_layout(spec: &Spec) -> Option<Layout> {
    serves(spec).then_some(Layout {
        parts: spec.nranks,
        stage_blocks: 0,
        scratch_blocks: 0,
        inbox_blocks: 0,
        message_parts: 0,
        signals: 2,
        done_signal: 2,
        user_memory: UserMemory::Written,
        rounds: 1,
        scratch_windows: 1,
    })
}

fn mapped_ops(spec: &Spec, rank: u32) -> Vec<Op> {
    let input = Slice::part(Buffer::Input, 0, rank);
    let output = Slice::part(Buffer::Output, 0, rank);
    vec![
        Op::Signal,
        Op::Wait { from: From::All, signal: 1 },
        Op::Reduce {
            src: input,
            own: input,
            dst: match spec.collective {
                Collective::AllReduce => Destination::Everyone(output),
                _ if rank == spec.root => Destination::Own(output),
                _ => Destination::Peer(spec.root, output),
            },
            finish: true,
        },
        Op::Signal,
        Op::Wait { from: From::All, signal: 2 },
    ]
}

fn pulled_layout(spec: &Spec) -> Option<Layout> {
    // A reduce has no memory for results at ranks other than the root.
    (spec.nranks > 1 && spec.collective == Collective::AllReduce).then_some(Layout {
        parts: spec.nranks,
        stage_blocks: 0,
        scratch_blocks: 0,
        inbox_blocks: 0,
        message_parts: 0,
        signals: 3,
        done_signal: 3,
        user_memory: UserMemory::Read,
        rounds: 1,
        scratch_windows: 1,
    })
}

fn pulled_ops(spec: &Spec, rank: u32) -> Vec<Op> {
    let input = Slice::part(Buffer::Input, 0, rank);
    let output = |part| Slice::part(Buffer::Output, 0, part);
    let dst = Destination::Own(output(rank));
    let mut ops = vec![
        Op::Signal,
        Op::Wait { from: From::All, signal: 1 },
        Op::Reduce { src: input, own: input, dst, finish: true },
        Op::Signal,
    ];
    for peer in others(rank, spec.nranks) {
        ops.push(Op::Wait { from: From::One(peer), signal: 2 });
        ops.push(Op::Get { peer, src: output(peer), dst: output(peer) });
    }
    ops.extend([Op::Signal, Op::Wait { from: From::All, signal: 3 }]);
    ops
}

fn pulled_cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let peers = spec.nranks - 1;
    let others = bytes - bytes / u64::from(spec.nranks);
    3.0 * model.exchange_us(spec.nranks)
        + model.read_us(bytes, peers, true)
        + model.read_us(others, peers, false)
}

fn staged_cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let windows = bytes.div_ceil(model.stage_slot_bytes).max(1);
    let others = bytes - bytes / u64::from(spec.nranks);
    windows as f64 * 2.0 * model.exchange_us(spec.nranks)
        + model.publish_us(others, 1)
        + model.read_us(bytes, spec.nranks - 1, true)
        + model.publish_us(bytes - others, spec.nranks - 1)
        + model.copy_us(others)
}

fn mapped_cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let pushed = match spec.collective {
        Collective::AllReduce => bytes - bytes / u64::from(spec.nranks),
        _ => bytes / u64::from(spec.nranks),
    };
    2.0 * model.exchange_us(spec.nranks)
        + model.read_us(bytes, spec.nranks - 1, true)
        + model.push_us(pushed)
}
