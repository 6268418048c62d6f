//! Communicators that come from others.

use crate::failures::{abort_now, survive, told, total};
use crate::rank::{Memory, Outcome, Rank, ok, on_gpu, one, stream, sum, words};
use oxccl::nccl::lifetime::{ncclCommResume, ncclCommSuspend};
use oxccl::nccl::types::{NCCL_SHRINK_DEFAULT, NCCL_SUSPEND_MEM, ncclResult_t};

const COUNT: usize = 20_000;
const BYTES: usize = COUNT * 4;

/// Even and odd ranks apart, the last one in neither, beside all; then all without the last one,
/// which is first just left out and then gone.
pub(crate) fn split_and_shrunk(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let last = rank.rank + 1 == rank.nranks;
    let memory = Memory::new(4 * BYTES)?;
    let child = rank.split(if last { -1 } else { rank.rank % 2 })?;
    if child.is_some() == last {
        return Err(format!("rank {} has a child where it has no color", rank.rank));
    }
    beside(rank, child.as_ref(), &memory)?;
    child.map_or(Ok(()), Rank::leave)?;
    if !last {
        let rest = rank.without_last(NCCL_SHRINK_DEFAULT)?;
        total(&rest, &memory)?;
        rest.leave()?;
    }
    total(rank, &memory)?;
    let ending = rank.again()?;
    if last {
        abort_now(&ending)?;
    } else {
        // The last one may have ended it already.
        let _ = ok(ending.call(sum(COUNT), memory.at, memory.part(BYTES)));
        told(&ending, &["ncclCommAbort"])?;
        survive(&ending, &memory)?;
    }
    total(rank, &memory)?;
    rank.leave()
}

/// Memory is given back and used again while peers may still be at the end of what was called
/// before.
pub(crate) fn suspended(ranks: &[Rank]) -> Outcome {
    const MANY: usize = 600_000;
    let rank = one(ranks)?;
    let memory = Memory::new(2 * MANY * 4)?;
    let (from, to) = (memory.at, memory.part(MANY * 4));
    for round in 1..30 {
        let count = if round % 3 == 0 { 1000 } else { MANY - round as usize };
        rank.upload(from, &words((rank.rank + 1) * round, count))?;
        ok(rank.call(sum(count), from, to))?;
        rank.synchronize()?;
        // SAFETY: a living handle.
        ok(unsafe { ncclCommSuspend(rank.comm, NCCL_SUSPEND_MEM) })?;
        if rank.call(sum(count), from, to) != ncclResult_t::ncclInvalidUsage {
            return Err("a call of a suspended communicator is not refused".to_owned());
        }
        let sum = (1..=rank.nranks).sum::<i32>() * round;
        rank.expect(to, &words(sum, count)).map_err(|e| format!("{e} in round {round}"))?;
        // SAFETY: as above.
        ok(unsafe { ncclCommResume(rank.comm) })?;
    }
    rank.leave()
}

/// A stream may get the handle of one that has ended: what became of that one's communicator is
/// nothing to it.
pub(crate) fn one_after_the_other(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(4 * BYTES)?;
    let mut again = 0;
    for _ in 0..30 {
        let child = rank.again()?;
        total(&child, &memory)?;
        // What the others have of theirs stays until this one has left, too.
        let (ended, kept) = (child.stream, (rank.rank == 0).then_some(child));
        if kept.is_none() {
            child.end_communicator()?;
            child.end_stream()?;
        }
        let mut others = vec![Rank { stream: stream()?, ..*rank }];
        // Streams that the library made and ended meanwhile may be given again first.
        while rank.rank > 0 && others.len() < 32 && others.iter().all(|o| o.stream != ended) {
            others.push(Rank { stream: stream()?, ..*rank });
        }
        // The driver may make a stream only once the GPU is idle, which it is not any more when
        // another rank waits for this one there.
        rank.split(-1)?;
        let other = others.last().ok_or("no stream")?;
        again += u32::from(other.stream == ended && rank.rank > 0);
        total(other, &memory)?;
        others.iter().try_for_each(Rank::end_stream)?;
        kept.map_or(Ok(()), Rank::leave)?;
    }
    let cuda = on_gpu();
    if cuda && rank.rank > 0 && again == 0 {
        return Err("no handle was given again: this test tests nothing here".to_owned());
    }
    rank.leave()
}

/// Sums in a communicator and in its child, under way together.
fn beside(rank: &Rank, child: Option<&Rank>, memory: &Memory) -> Outcome {
    let at = |part: usize| memory.part(part * BYTES);
    for round in 1..100 {
        rank.upload(at(0), &words((rank.rank + 1) * round, COUNT))?;
        rank.upload(at(2), &words((rank.rank + 1) * -round, COUNT))?;
        for _ in 0..3 {
            // Each in an order of its own.
            let first = (rank.rank + round) % 2 == 0;
            if let Some(child) = child.filter(|_| first) {
                ok(child.call(sum(COUNT), at(2), at(3)))?;
            }
            ok(rank.call(sum(COUNT), at(0), at(1)))?;
            if let Some(child) = child.filter(|_| !first) {
                ok(child.call(sum(COUNT), at(2), at(3)))?;
            }
        }
        rank.synchronize()?;
        rank.expect(at(1), &words((1..=rank.nranks).sum::<i32>() * round, COUNT))?;
        if let Some(child) = child {
            child.synchronize()?;
            // Every second of all ranks but the last one.
            let all = (0..rank.nranks - 1).filter(|other| other % 2 == rank.rank % 2);
            let sum: i32 = all.map(|other| (other + 1) * -round).sum();
            child.expect(at(3), &words(sum, COUNT))?;
        }
    }
    Ok(())
}
