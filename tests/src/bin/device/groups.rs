//! Collectives in groups, of which those of one kind run together.

use crate::conformance::{self, Buffers, Case, Laid, Manner};
use crate::failures::{abort_now, told};
use crate::rank::{
    Call, Memory, Outcome, Rank, Replay, choose, group, ok, one, stream, sum, synchronize, words,
};
use crate::windows::{Window, wait};
use oxccl::oxccl::types::oxcclCaptureMode_t;
use oxccl_plan::{Collective, DataType};
use oxccl_tests::sequence::Random;
use std::collections::BTreeMap;
use std::ffi::c_void;

/// The most calls of a group: more than run together.
const CALLS: u64 = 40;
/// The most bytes of a block.
const BYTES: usize = 192 << 10;

/// The calls of a group. Most are of the kind and the type of the one before.
fn draw(nranks: i32, random: &mut Random) -> Vec<Case> {
    let kind = |random: &mut Random| {
        let collective = Collective::ALL[random.below(Collective::ALL.len() as u64) as usize];
        (collective, DataType::ALL[random.below(DataType::ALL.len() as u64) as usize])
    };
    let count = 1 + random.below(CALLS);
    let most = BYTES >> (2 * random.below(7));
    let mut latest = kind(random);
    let all = (0..count).map(|_| {
        if random.below(8) == 0 {
            latest = kind(random);
        }
        let (collective, dtype) = latest;
        let call = Call {
            collective,
            dtype,
            count: random.below((most / dtype.size()) as u64 + 1) as usize,
            op: oxccl_plan::ReduceOp::ALL[random.below(5) as usize],
            root: random.below(nranks as u64) as i32,
        };
        Case {
            call,
            in_place: random.below(3) == 0 && collective != Collective::AllToAll,
            skew: random.below(3) as usize * dtype.size(),
            seed: random.draw() >> 16,
            manner: Manner::Eager,
            factors: None,
        }
    });
    all.collect()
}

/// Random groups, on one stream and on two, some of them captured.
pub(crate) fn random(ranks: &[Rank]) -> Outcome {
    let nranks = ranks[0].nranks;
    let (mut all, mut others) = (Vec::new(), Vec::new());
    for rank in ranks {
        choose(rank.rank)?;
        let room = nranks as usize * BYTES + 4096;
        all.push((0..CALLS).map(|_| Buffers::new(room)).collect::<Outcome<Vec<_>>>()?);
        others.push(stream()?);
    }
    let mut random = Random(20);
    for round in 0..60 {
        let cases = draw(nranks, &mut random);
        let two_streams = random.below(3) == 0;
        let mut laid: Vec<Vec<Laid>> = Vec::new();
        for (rank, buffers) in ranks.iter().zip(&all) {
            choose(rank.rank)?;
            let each = cases.iter().zip(buffers);
            laid.push(each.map(|(c, b)| conformance::lay(c, rank, b)).collect::<Outcome<_>>()?);
        }
        let call = || {
            let calls = cases.iter().enumerate();
            calls.into_iter().try_for_each(|(i, case)| {
                let of = ranks.iter().zip(&laid).zip(&others);
                of.into_iter().try_for_each(|((rank, laid), other)| {
                    let on = if two_streams && i % 3 == 1 { *other } else { rank.stream };
                    ok(rank.call_on(on, case.call, laid[i].from, laid[i].to))
                })
            })
        };
        match ranks {
            [rank] if round % 4 == 3 && !two_streams => {
                let mode = oxcclCaptureMode_t::oxcclCaptureGlobal;
                let replay = Replay::capture(rank.stream, mode, || group(call))?;
                replay.launch(rank.stream)?;
                rank.synchronize()?;
            }
            _ => group(call)?,
        }
        for ((rank, laid), other) in ranks.iter().zip(&laid).zip(&others) {
            rank.synchronize()?;
            synchronize(*other)?;
            let each = cases.iter().zip(laid);
            each.into_iter().try_for_each(|(case, laid)| conformance::verify(case, rank, laid))?;
        }
    }
    ranks.iter().try_for_each(|rank| rank.leave())
}

/// Checks that calls before and behind a group, on either of its streams, are in order with it.
pub(crate) fn ordered(ranks: &[Rank]) -> Outcome {
    const COUNT: usize = 1000;
    let rank = one(ranks)?;
    let (memory, other) = (Memory::new(1 << 20)?, stream()?);
    let (first, second) = (memory.at, memory.part(1 << 18));
    let n = rank.nranks;
    for round in 0..100 {
        for at in [first, second] {
            rank.upload(at, &words(1, COUNT))?;
        }
        let call = |on, at: *mut c_void| ok(rank.call_on(on, sum(COUNT), at, at));
        call(other, second)?;
        group(|| {
            call(rank.stream, first)?;
            call(other, second)
        })?;
        call(rank.stream, second)?;
        rank.synchronize()?;
        synchronize(other)?;
        for (at, wanted) in [(first, n), (second, n * n * n)] {
            if rank.download(at, COUNT * 4)? != words(wanted, COUNT) {
                return Err(format!("rank {}, round {round}: not {wanted}", rank.rank));
            }
        }
    }
    rank.leave()
}

/// Checks groups in which each rank puts between other collectives: which ones run together is
/// the same on all ranks all the same.
pub(crate) fn puts_between(ranks: &[Rank]) -> Outcome {
    const COUNT: usize = 1000;
    const BYTES: usize = COUNT * 4;
    const NUMBER: usize = 6;
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    let (inbox, from) = (memory.part(1 << 18), memory.part(1 << 19));
    let (next, before) = rank.neighbours();
    let window = Window::new(rank, inbox, BYTES)?;
    for round in 0..NUMBER as i32 * 2 {
        let own = |of: i32| words(100 * of + round, COUNT);
        rank.upload(from, &own(rank.rank))?;
        for i in 0..NUMBER {
            rank.upload(memory.part(i << 13), &words(i as i32, COUNT))?;
        }
        let puts_behind = (rank.rank + round) as usize % NUMBER;
        group(|| {
            (0..NUMBER).try_for_each(|i| {
                let at = memory.part(i << 13);
                ok(rank.call(sum(COUNT), at, at))?;
                match i == puts_behind {
                    true => window.put((from, BYTES), (next, 0), (0, 0)),
                    false => Ok(()),
                }
            })
        })?;
        wait(rank, &BTreeMap::from([((before, (0, 0)), 1)]))?;
        rank.synchronize()?;
        rank.expect(inbox, &own(before))?;
        for i in 0..NUMBER {
            rank.expect(memory.part(i << 13), &words(i as i32 * rank.nranks, COUNT))?;
        }
        // All have read what was put before it is overwritten.
        rank.meet(from)?;
    }
    window.end()?;
    rank.leave()
}

/// How the group of the last rank differs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Difference {
    /// One call has another count.
    Count,
    /// One call has another count, and the first ones have no elements.
    CountBehindEmpty,
    /// A call is missing.
    Missing,
    /// Two broadcasts are in the other order.
    Roots,
}

/// The groups of ranks differ: all are told.
pub(crate) fn differing(ranks: &[Rank]) -> Outcome {
    use Difference::{Count, CountBehindEmpty, Missing, Roots};
    let rank = one(ranks)?;
    let is_last = rank.rank + 1 == rank.nranks;
    let memory = Memory::new(1 << 20)?;
    for difference in [Count, CountBehindEmpty, Missing, Roots] {
        let rank = rank.again()?;
        let differs = |of| is_last && difference == of;
        let count = |i| match i {
            0 | 1 if difference == CountBehindEmpty => 0,
            2 if differs(Count) || differs(CountBehindEmpty) => 500,
            _ => 100,
        };
        let call = |i: usize| {
            let root = i32::from(i % 2 == usize::from(!is_last));
            let collective = Collective::Broadcast;
            match difference {
                Roots => Call { collective, root, ..sum(100) },
                _ => sum(count(i)),
            }
        };
        let number = if differs(Missing) { 4 } else { 5 };
        let called = group(|| {
            (0..number).try_for_each(|i| {
                let at = memory.part(i << 12);
                ok(rank.call(call(i), at, at))
            })
        });
        // Who comes late hears of it at the call.
        let _ = called.and_then(|()| rank.synchronize());
        let parts = match difference {
            Count | CountBehindEmpty => ["a group of 5 all_reduce", "with other counts"],
            Missing => ["a group of 5 all_reduce", "a group of 4 all_reduce"],
            Roots => ["root 0", "root 1"],
        };
        told(&rank, &parts)?;
        abort_now(&rank)?;
    }
    abort_now(rank)
}
