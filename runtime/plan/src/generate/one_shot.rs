//! Direct one-shot: a rank that has data publishes it once, and the ranks that need the data read
//! it there.
//!
//! One shape serves all collectives. *Staged*: publishing is a copy into the stage; this works for
//! any user memory. *Mapped*: the peers read the user's buffer in place, between an entry and an
//! exit signal.

use super::{Algorithm, Generator, Needs, others, reads_everyone};
use crate::cost::CostModel;
use crate::ir::{Buffer, Destination, From, Layout, Op, Slice, UserMemory};
use crate::spec::{Collective, Spec};

pub(super) const STAGED: Generator = Generator {
    algorithm: Algorithm::OneShot,
    name: "one_shot",
    needs: Needs::Stage,
    canonical: true,
    layout: staged_layout,
    program: |spec, rank| staged_ops(spec, rank).into(),
    cost_us: staged_cost_us,
};

pub(super) const MAPPED: Generator = Generator {
    algorithm: Algorithm::OneShotMapped,
    name: "one_shot_mapped",
    needs: Needs::UserMemory,
    canonical: true,
    layout: mapped_layout,
    program: |spec, rank| mapped_ops(spec, rank).into(),
    cost_us: mapped_cost_us,
};

/// Returns the number of blocks that each publishing rank offers.
fn published_blocks(spec: &Spec) -> u32 {
    (0..2).map(|i| spec.input_blocks((spec.root + i) % spec.nranks)).max().unwrap_or(1)
}

fn publishes(spec: &Spec, rank: u32) -> bool {
    match spec.collective {
        Collective::Broadcast | Collective::Scatter => rank == spec.root,
        Collective::Reduce | Collective::Gather => rank != spec.root,
        Collective::AllReduce
        | Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll => true,
    }
}

fn staged_layout(spec: &Spec) -> Option<Layout> {
    // Where one rank publishes, a reader's only signal follows its reading. Elsewhere a rank
    // signals before it reads, and only its next signal shows that it has read.
    let one_publisher = matches!(spec.collective, Collective::Broadcast | Collective::Scatter);
    (spec.nranks > 1).then(|| Layout {
        parts: 1,
        stage_blocks: published_blocks(spec),
        scratch_blocks: 0,
        inbox_blocks: 0,
        message_parts: 0,
        signals: 1,
        done_signal: if one_publisher { 1 } else { 2 },
        user_memory: UserMemory::Private,
        rounds: 1,
        scratch_windows: 1,
    })
}

fn staged_ops(spec: &Spec, rank: u32) -> Vec<Op> {
    let mut ops = Vec::new();
    let root_only = matches!(spec.collective, Collective::Broadcast | Collective::Scatter);
    if publishes(spec, rank) {
        ops.push(Op::Acquire);
        for block in (0..published_blocks(spec)).filter(|&b| b != rank || !keeps_own(spec)) {
            ops.push(Op::Copy {
                src: Slice::block(Buffer::Input, block),
                dst: Slice::block(Buffer::Stage, block),
            });
        }
        ops.push(Op::Signal);
    } else if !root_only {
        ops.push(Op::Signal);
    }
    ops.extend(read(spec, rank, Buffer::Stage));
    if root_only && rank != spec.root {
        ops.push(Op::Signal);
    }
    ops
}

/// Returns whether block `rank` of a rank's own input is read by that rank alone.
fn keeps_own(spec: &Spec) -> bool {
    published_blocks(spec) > 1
}

fn mapped_layout(spec: &Spec) -> Option<Layout> {
    // In place, an all-reduce would overwrite data that the others still read: it copies first.
    let copies = spec.collective == Collective::AllReduce;
    (spec.nranks > 1).then_some(Layout {
        parts: 1,
        stage_blocks: 0,
        scratch_blocks: if copies { spec.nranks } else { 0 },
        inbox_blocks: 0,
        message_parts: 0,
        signals: 2,
        done_signal: 2,
        user_memory: UserMemory::Read,
        rounds: 1,
        scratch_windows: 1,
    })
}

fn mapped_ops(spec: &Spec, rank: u32) -> Vec<Op> {
    if spec.collective == Collective::AllReduce {
        return copying_all_reduce(spec.nranks, rank);
    }
    let mut ops = vec![Op::Signal];
    ops.extend(read(spec, rank, Buffer::Input));
    ops.push(Op::Signal);
    if publishes(spec, rank) {
        let readers = match spec.collective {
            Collective::Reduce | Collective::Gather => From::One(spec.root),
            _ => From::All,
        };
        ops.push(Op::Wait { from: readers, signal: 2 });
    }
    ops
}

/// Returns operations that copy the inputs of all ranks and, when all ranks have copied, fold the
/// copies.
fn copying_all_reduce(nranks: u32, rank: u32) -> Vec<Op> {
    let input = Slice::block(Buffer::Input, 0);
    let mut ops = vec![Op::Signal];
    for peer in others(rank, nranks) {
        ops.push(Op::Wait { from: From::One(peer), signal: 1 });
        ops.push(Op::Get { peer, src: input, dst: Slice::block(Buffer::Scratch, peer) });
    }
    ops.extend([
        Op::Signal,
        Op::Wait { from: From::All, signal: 2 },
        Op::Fold {
            src: Slice::block(Buffer::Scratch, 0),
            count: nranks,
            own: input,
            at: rank,
            dst: Slice::block(Buffer::Output, 0),
            finish: true,
        },
    ]);
    ops
}

/// Returns operations that wait for the publishers and read from their `place`.
fn read(spec: &Spec, rank: u32, place: Buffer) -> Vec<Op> {
    let (own, result) = (spec.source_block(rank), Slice::block(Buffer::Output, 0));
    let mut ops = Vec::new();
    match spec.collective {
        Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce => {
            if reads_everyone(spec, rank) {
                ops.push(Op::Wait { from: From::All, signal: 1 });
                ops.push(Op::Reduce {
                    src: Slice::block(place, own),
                    own: Slice::block(Buffer::Input, own),
                    dst: Destination::Own(result),
                    finish: true,
                });
            }
        }
        Collective::AllGather | Collective::AllToAll | Collective::Gather => {
            if reads_everyone(spec, rank) {
                let kept = Slice::block(Buffer::Input, own);
                ops.push(Op::Copy { src: kept, dst: Slice::block(Buffer::Output, rank) });
                for peer in others(rank, spec.nranks) {
                    ops.push(Op::Wait { from: From::One(peer), signal: 1 });
                    ops.push(Op::Get {
                        peer,
                        src: Slice::block(place, own),
                        dst: Slice::block(Buffer::Output, peer),
                    });
                }
            }
        }
        Collective::Broadcast | Collective::Scatter => {
            if rank == spec.root {
                ops.push(Op::Copy { src: Slice::block(Buffer::Input, own), dst: result });
            } else {
                ops.push(Op::Wait { from: From::One(spec.root), signal: 1 });
                let src = Slice::block(place, own);
                ops.push(Op::Get { peer: spec.root, src, dst: result });
            }
        }
    }
    ops
}

/// Returns the number of ranks that a reading rank reads from.
fn readers(spec: &Spec) -> u32 {
    match spec.collective {
        Collective::Broadcast | Collective::Scatter => 1,
        _ => spec.nranks - 1,
    }
}

/// Returns the bytes that a publishing rank offers, and those that a reading rank reads.
fn traffic(spec: &Spec, bytes: u64) -> (u64, u64) {
    let n = u64::from(spec.nranks);
    let published = bytes * u64::from(published_blocks(spec));
    let read = match spec.collective {
        Collective::Broadcast | Collective::Scatter => bytes,
        _ => bytes * n,
    };
    (published, read)
}

fn staged_cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let (published, read) = traffic(spec, bytes);
    let windows = published.div_ceil(model.stage_slot_bytes).max(1);
    // A block that is meant for one rank is read by one rank.
    let sharers = match spec.collective {
        Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter => 1,
        Collective::Reduce | Collective::Gather => 1,
        _ => spec.nranks - 1,
    };
    windows as f64 * model.exchange_us(spec.nranks)
        + model.publish_us(published, sharers)
        + model.read_us(read, readers(spec), spec.collective.reduces())
}

fn mapped_cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let (_, read) = traffic(spec, bytes);
    if spec.collective == Collective::AllReduce {
        let windows = (read).div_ceil(model.stage_slot_bytes).max(1);
        return windows as f64 * 2.0 * model.exchange_us(spec.nranks)
            + model.read_us(read - bytes, spec.nranks - 1, false)
            + model.copy_us(read);
    }
    2.0 * model.exchange_us(spec.nranks)
        + model.read_us(read, readers(spec), spec.collective.reduces())
}
