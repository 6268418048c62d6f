//! Captured operations.

use crate::order::group;
use crate::rank::{Call, Memory, Outcome, Rank, Replay, last_error, ok, stream, synchronize};
use oxccl::nccl::comm::ncclCommDestroy;
use oxccl::oxccl::types::oxcclCaptureMode_t::{
    self, oxcclCaptureGlobal, oxcclCaptureRelaxed, oxcclCaptureThreadLocal,
};
use oxccl_plan::{Collective, DataType, ReduceOp};
use std::sync::Barrier;

const COUNT: usize = 5000;
const BYTES: usize = COUNT * 4;

fn sum() -> Call {
    let (collective, dtype, op) = (Collective::AllReduce, DataType::Int32, ReduceOp::Sum);
    Call { collective, count: COUNT, dtype, op, root: 0 }
}

fn words(value: i32) -> Vec<u8> {
    value.to_ne_bytes().repeat(COUNT)
}

fn one(ranks: &[Rank]) -> Outcome<&Rank> {
    ranks.first().ok_or_else(|| "no rank".to_owned())
}

fn expect(rank: &Rank, memory: &Memory, part: usize, value: i32) -> Outcome {
    let found = rank.download(memory.at.wrapping_byte_add(part * BYTES), BYTES)?;
    let word =
        |at: usize| i32::from_ne_bytes([found[at], found[at + 1], found[at + 2], found[at + 3]]);
    match (0..COUNT).find(|i| word(i * 4) != value) {
        Some(i) => Err(format!("rank {}: element {i} is {} not {value}", rank.rank, word(i * 4))),
        None => Ok(()),
    }
}

/// No warm-up: the communicator's first operation is captured, in every mode.
pub(crate) fn first_captured(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let scale: i32 = (1..=rank.nranks).sum();
    let memory = Memory::new(2 * BYTES)?;
    let to = memory.at.wrapping_byte_add(BYTES);
    let modes: [oxcclCaptureMode_t; 3] =
        [oxcclCaptureGlobal, oxcclCaptureThreadLocal, oxcclCaptureRelaxed];
    for (round, mode) in (1..).zip(modes) {
        let replay = Replay::capture(rank.stream, mode, || ok(rank.call(sum(), memory.at, to)))?;
        rank.upload(memory.at, &words(round * (rank.rank + 1)))?;
        replay.launch(rank.stream)?;
        rank.synchronize()?;
        expect(rank, &memory, 1, round * scale)?;
    }
    rank.leave()
}

/// Each replay adds up what the one before left.
pub(crate) fn replays(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(2 * BYTES)?;
    let to = memory.at.wrapping_byte_add(BYTES);
    let call = Call { op: ReduceOp::Max, ..sum() };
    let replay = Replay::capture(rank.stream, oxcclCaptureGlobal, || {
        ok(rank.call(call, memory.at, to))?;
        ok(rank.call(sum(), memory.at, memory.at.wrapping_byte_add(BYTES)))
    })?;
    let scale: i32 = (1..=rank.nranks).sum();
    for round in 0..50 {
        rank.upload(memory.at, &words((rank.rank + 1) * (round + 1)))?;
        for number in 0..2000 {
            replay.launch(rank.stream)?;
            // Ranks that share a GPU share the room for launches: who fills it keeps the others out.
            if number % 50 == 0 {
                rank.synchronize()?;
            }
        }
        rank.synchronize()?;
        expect(rank, &memory, 1, (round + 1) * scale)?;
    }
    rank.leave()
}

/// Replays and eager calls of one communicator, outstanding together on two streams.
pub(crate) fn mixed(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(4 * BYTES)?;
    let at = |part: usize| memory.at.wrapping_byte_add(part * BYTES);
    let second = stream()?;
    let replay = Replay::capture(rank.stream, oxcclCaptureThreadLocal, || {
        ok(rank.call(sum(), at(0), at(1)))
    })?;
    let scale: i32 = (1..=rank.nranks).sum();
    for round in 1..200 {
        rank.upload(at(0), &words((rank.rank + 1) * round))?;
        rank.upload(at(2), &words((rank.rank + 1) * -round))?;
        for _ in 0..5 {
            replay.launch(rank.stream)?;
            ok(rank.call_on(second, sum(), at(2), at(3)))?;
        }
        synchronize(second)?;
        rank.synchronize()?;
        expect(rank, &memory, 1, round * scale)?;
        expect(rank, &memory, 3, -round * scale)?;
    }
    rank.leave()
}

/// The first messages to a peer are captured, in global mode.
pub(crate) fn messages(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(2 * BYTES)?;
    let to = memory.at.wrapping_byte_add(BYTES);
    let (next, last) = ((rank.rank + 1) % rank.nranks, (rank.rank + rank.nranks - 1) % rank.nranks);
    let replay = Replay::capture(rank.stream, oxcclCaptureGlobal, || {
        group(|| {
            ok(rank.message(true, memory.at, BYTES, next))?;
            ok(rank.message(false, to, BYTES, last))
        })
    })?;
    for round in 1..100 {
        rank.upload(memory.at, &words(rank.rank + round))?;
        replay.launch(rank.stream)?;
        rank.synchronize()?;
        expect(rank, &memory, 1, last + round)?;
    }
    rank.leave()
}

/// A graph outlives its communicator: a replay then ends, and harms nothing.
pub(crate) fn destroyed_first(ranks: &[Rank]) -> Outcome {
    static MET: std::sync::OnceLock<Barrier> = std::sync::OnceLock::new();
    let rank = one(ranks)?;
    let met = MET.get_or_init(|| Barrier::new(rank.nranks as usize));
    let memory = Memory::new(2 * BYTES)?;
    let to = memory.at.wrapping_byte_add(BYTES);
    let replay =
        Replay::capture(rank.stream, oxcclCaptureGlobal, || ok(rank.call(sum(), memory.at, to)))?;
    replay.launch(rank.stream)?;
    rank.synchronize()?;
    met.wait();
    // SAFETY: a living handle.
    ok(unsafe { ncclCommDestroy(rank.comm) })?;
    met.wait();
    // What it tells is up to the device; it must come back.
    let _ = replay.launch(rank.stream);
    let _ = rank.synchronize();
    met.wait();
    drop(replay);
    // Nothing stuck: the device still works.
    rank.upload(memory.at, &words(5))?;
    expect(rank, &memory, 0, 5)
}

/// Captured at even ranks and eager at odd ones.
pub(crate) fn some_captured(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(2 * BYTES)?;
    let to = memory.at.wrapping_byte_add(BYTES);
    let scale: i32 = (1..=rank.nranks).sum();
    let replay = (rank.rank % 2 == 0)
        .then(|| {
            Replay::capture(rank.stream, oxcclCaptureGlobal, || ok(rank.call(sum(), memory.at, to)))
        })
        .transpose()?;
    for round in 1..50 {
        rank.upload(memory.at, &words(round * (rank.rank + 1)))?;
        match &replay {
            Some(replay) => replay.launch(rank.stream)?,
            None => ok(rank.call(sum(), memory.at, to))?,
        }
        rank.synchronize().map_err(|e| format!("{e} {}", last_error()))?;
        expect(rank, &memory, 1, round * scale)?;
    }
    rank.leave()
}
