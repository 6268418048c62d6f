//! Bodies that call much in one order on all ranks.

use crate::conformance::{self, Buffers, Case};
use crate::messages::Mail;
use crate::rank::{
    Call, Memory, Outcome, Rank, Replay, group, ok, on_gpu, one, stream, sum, synchronize, words,
};
use oxccl::oxccl::types::oxcclCaptureMode_t::oxcclCaptureThreadLocal;
use oxccl_plan::{Collective, DataType};
use oxccl_tests::sequence::Random;

fn play_all(cases: &[Case], ranks: &[Rank]) -> Outcome {
    let _kept = play_each(cases, ranks)?;
    ranks.iter().try_for_each(|rank| rank.leave())
}

/// Plays cases one after the other; returns the memory, which is to be kept: freeing it would wait
/// for what other ranks on the same GPU run next.
fn play_each(cases: &[Case], ranks: &[Rank]) -> Outcome<Vec<Buffers>> {
    let blocks = ranks[0].nranks as usize;
    let most = cases.iter().map(|c| c.call.count * c.call.dtype.size()).max().unwrap_or(0);
    let room = blocks * most + 4096;
    let mut buffers = Vec::new();
    for rank in ranks {
        crate::rank::choose(rank.rank)?;
        buffers.push(Buffers::new(room)?);
    }
    cases.iter().try_for_each(|case| conformance::play(case, ranks, &buffers))?;
    Ok(buffers)
}

pub(crate) fn small(ranks: &[Rank]) -> Outcome {
    play_all(&conformance::small(ranks[0].nranks, ranks.len() == 1), ranks)
}

pub(crate) fn large(ranks: &[Rank]) -> Outcome {
    let (nranks, single) = (ranks[0].nranks, ranks.len() == 1);
    let mut cases = conformance::large(nranks, single, 64 << 10, 200);
    cases.extend(conformance::large(nranks, single, 4 << 20, 60));
    play_all(&cases, ranks)
}

/// Slices and messages that fill what lies between the ranks several times; between GPUs they
/// travel in chunks, and messages of 1 MiB among more than two in lines.
pub(crate) fn many_rounds(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let (bytes, message) = match rank.nranks {
        2 if on_gpu() => (9 << 20, 9 << 20),
        _ if on_gpu() => (3 << 20, 33 << 20),
        // More than the slots of a link, too.
        _ => (300 << 10, 300 << 10),
    };
    let mail = Mail::new(rank, vec![message + 3, 5, bytes, 1 << 20, 70_000])?;
    let _kept = play_each(&conformance::many_rounds(rank.nranks, bytes), ranks)?;
    for round in 0..3 {
        mail.fill(rank, round)?;
        group(|| mail.post(rank))?;
        mail.verify(rank, round)?;
    }
    drop(mail);
    rank.leave()
}

/// All-reduces of the same shape and other data on two streams: they never swap.
pub(crate) fn two_streams(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let (second, count) = (stream()?, 3000);
    let bytes = count * 4;
    let memory = Memory::new(4 * bytes)?;
    let at = |part: usize| memory.at.wrapping_byte_add(part * bytes);
    let mut random = Random(rank.rank as u64 + 7);
    let scale: i32 = (1..=rank.nranks).sum();
    for round in 0..300 {
        rank.upload(at(0), &words((rank.rank + 1) * (2 * round + 1), count))?;
        rank.upload(at(1), &words((rank.rank + 1) * (2 * round + 2), count))?;
        for _ in 0..random.below(2000) {
            std::hint::spin_loop();
        }
        ok(rank.call(sum(count), at(0), at(2)))?;
        ok(rank.call_on(second, sum(count), at(1), at(3)))?;
        synchronize(second)?;
        rank.synchronize()?;
        for (part, value) in [(2, 2 * round + 1), (3, 2 * round + 2)] {
            if rank.download(at(part), bytes)? != words(value * scale, count) {
                return Err(format!("round {round}: stream {part} has the sum of another one"));
            }
        }
    }
    rank.leave()
}

/// Calls of all kinds and sizes without a pause; the results of the last ones tell.
pub(crate) fn sequence(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let most = 200_000;
    let memory = Memory::new(3 * most * 4)?;
    let at = |part: usize| memory.at.wrapping_byte_add(part * most * 4);
    let mut random = Random(11);
    let nranks = rank.nranks as usize;
    let scale: i32 = (1..=rank.nranks).sum();
    for round in 0..100 {
        rank.upload(at(0), &words(rank.rank + 1, most))?;
        for _ in 0..100 {
            let power = 1usize << random.below(17);
            let count = (power + random.below(power as u64) as usize).clamp(nranks, most / nranks);
            match random.below(4) {
                0 => ok(rank.call(sum(count), at(0), at(1)))?,
                1 => {
                    let root = random.below(nranks as u64) as i32;
                    let call = Call { collective: Collective::Broadcast, root, ..sum(count) };
                    ok(rank.call(call, at(0), at(2)))?;
                }
                2 => {
                    let call = Call { collective: Collective::AllGather, ..sum(count) };
                    ok(rank.call(call, at(0), at(2)))?;
                }
                _ => {
                    let (to, from) = rank.neighbours();
                    group(|| {
                        ok(rank.message(true, at(0), count * 4, to))?;
                        ok(rank.message(false, at(2), count * 4, from))
                    })?;
                }
            }
        }
        let count = 1 + random.below(most as u64 - 1) as usize;
        ok(rank.call(sum(count), at(0), at(1)))?;
        if rank.download(at(1), count * 4)? != words(scale, count) {
            return Err(format!("the sum of {count} after {round} rounds is wrong"));
        }
    }
    rank.leave()
}

/// All-to-alls of few bytes, each with the result of the one before: after two of them everything
/// is where it was, or a packet was torn.
pub(crate) fn chained(ranks: &[Rank]) -> Outcome {
    /// All-to-alls between two looks at the data, in pairs.
    const PAIRS: usize = 25;
    const MOST: usize = 60_000;
    let rank = one(ranks)?;
    let blocks = rank.nranks as usize;
    let (one, other) = (Memory::new(blocks * MOST + 64)?, Memory::new(blocks * MOST + 64)?);
    let mut random = Random(rank.rank as u64 + 41);
    let pair = |count: usize, skew: usize| {
        let dtype = DataType::Uint8;
        let call = Call { collective: Collective::AllToAll, count, dtype, ..sum(count) };
        ok(rank.call(call, one.part(skew), other.part(skew)))?;
        ok(rank.call(call, other.part(skew), one.part(skew)))
    };
    let mut check = |count: usize, skew: usize, run: &dyn Fn() -> Outcome| {
        let data: Vec<u8> = (0..blocks * count + 16).map(|_| random.draw() as u8).collect();
        rank.upload(one.part(skew), &data)?;
        run()?;
        let checked = rank.expect(one.part(skew), &data);
        checked.map_err(|e| format!("{e} after all-to-alls of {count} bytes"))
    };
    // All ranks draw the same.
    let mut shared = Random(43);
    for _ in 0..400 {
        // Odd sizes of all magnitudes.
        let power = 1u64 << shared.below(15);
        let count = 2 * ((power + shared.below(power)) as usize).min(MOST / 2) - 1;
        let skew = shared.below(16) as usize;
        check(count, skew, &|| (0..PAIRS).try_for_each(|_| pair(count, skew)))?;
    }
    for count in [7, 121, 501, 1999, 30_001] {
        let replay = Replay::capture(rank.stream, oxcclCaptureThreadLocal, || {
            (0..PAIRS).try_for_each(|_| pair(count, 1))
        })?;
        for _ in 0..20 {
            check(count, 1, &|| replay.launch(rank.stream))?;
        }
    }
    rank.leave()
}
