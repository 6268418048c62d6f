//! Bodies that call much in one order on all ranks.

use crate::conformance::{self, Buffers, Case};
use crate::rank::{Call, Memory, Outcome, Rank, ok, stream, synchronize};
use oxccl::nccl::group::{ncclGroupEnd, ncclGroupStart};
use oxccl_plan::{Collective, DataType, ReduceOp};
use oxccl_tests::sequence::Random;

/// Runs calls as a group.
pub(crate) fn group(calls: impl FnOnce() -> Outcome) -> Outcome {
    // SAFETY: no arguments.
    ok(unsafe { ncclGroupStart() })?;
    let called = calls();
    // SAFETY: as above.
    called.and(ok(unsafe { ncclGroupEnd() }))
}

fn play_all(cases: &[Case], ranks: &[Rank]) -> Outcome {
    let blocks = ranks[0].nranks as usize;
    let most = cases.iter().map(|c| c.call.count * c.call.dtype.size()).max().unwrap_or(0);
    let room = blocks * most + 4096;
    let mut buffers = Vec::new();
    for rank in ranks {
        crate::rank::choose(rank.rank)?;
        buffers.push(Buffers::new(room)?);
    }
    cases.iter().try_for_each(|case| conformance::play(case, ranks, &buffers))?;
    drop(buffers);
    ranks.iter().try_for_each(|rank| rank.leave())
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

/// Where a message's bytes come from: sender, receiver, number.
fn pattern(from: i32, to: i32, number: usize, bytes: usize) -> Vec<u8> {
    let mut random = Random((from as u64) << 32 | (to as u64) << 16 | number as u64);
    (0..bytes).map(|_| random.draw() as u8).collect()
}

const SIZES: [usize; 8] = [1, 0, 4096, 65_536, 65_537, 100_001, 3, 3_000_000];

/// Every rank sends messages of many sizes to every rank, itself included, in one group.
pub(crate) fn messages(ranks: &[Rank]) -> Outcome {
    let nranks = ranks[0].nranks;
    let total: usize = SIZES.iter().sum::<usize>() * nranks as usize;
    let mut memory = Vec::new();
    for rank in ranks {
        crate::rank::choose(rank.rank)?;
        let (sends, receives) = (Memory::new(total)?, Memory::new(total)?);
        let mut at = 0;
        for peer in 0..nranks {
            for (number, &bytes) in SIZES.iter().enumerate() {
                let data = pattern(rank.rank, peer, number, bytes);
                rank.upload(sends.at.wrapping_byte_add(at), &data)?;
                at += bytes;
            }
        }
        rank.upload(receives.at, &vec![0xa5; total])?;
        memory.push((sends, receives));
    }
    for _ in 0..3 {
        group(|| {
            for (rank, (sends, receives)) in ranks.iter().zip(&memory) {
                let mut at = 0;
                for peer in 0..nranks {
                    for &bytes in &SIZES {
                        let (from, to) = (sends.at.wrapping_byte_add(at), receives.at);
                        ok(rank.message(true, from, bytes, peer))?;
                        ok(rank.message(false, to.wrapping_byte_add(at), bytes, peer))?;
                        at += bytes;
                    }
                }
            }
            Ok(())
        })?;
    }
    for (rank, (_, receives)) in ranks.iter().zip(&memory) {
        rank.synchronize()?;
        let found = rank.download(receives.at, total)?;
        let mut at = 0;
        for peer in 0..nranks {
            for (number, &bytes) in SIZES.iter().enumerate() {
                if found[at..at + bytes] != pattern(peer, rank.rank, number, bytes)[..] {
                    let own = rank.rank;
                    return Err(format!(
                        "message {number} of {bytes} from {peer} to {own} differs"
                    ));
                }
                at += bytes;
            }
        }
    }
    ranks.iter().try_for_each(|rank| rank.leave())
}

fn sum(count: usize) -> Call {
    let (collective, dtype, op) = (Collective::AllReduce, DataType::Int32, ReduceOp::Sum);
    Call { collective, count, dtype, op, root: 0 }
}

fn words(value: i32, count: usize) -> Vec<u8> {
    value.to_ne_bytes().repeat(count)
}

/// All-reduces of the same shape and other data on two streams: they never swap.
pub(crate) fn two_streams(ranks: &[Rank]) -> Outcome {
    let [rank] = ranks else { return Err("one rank per thread".to_owned()) };
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
    let [rank] = ranks else { return Err("one rank per thread".to_owned()) };
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
                    let (to, from) = (
                        (rank.rank + 1) % rank.nranks,
                        (rank.rank + rank.nranks - 1) % rank.nranks,
                    );
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
