//! Copy engines: between windows they move what all-gathers and all-to-alls move, and nothing else
//! changes. main.rs asks for them at all sizes.

use crate::conformance::{Buffers, Case, Laid, Manner, play, play_one};
use crate::failures::{abort_now, told};
use crate::rank::{Call, Memory, Outcome, Rank, Replay, ok, one, words};
use crate::windows::{Window, put_once, wait};
use oxccl::oxccl::types::oxcclCaptureMode_t::oxcclCaptureThreadLocal;
use oxccl_plan::{Collective, DataType, ReduceOp};
use oxccl_tests::sequence::Random;
use rustix::process::{Signal, getpid, kill_process};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Bytes of a block that do not fit packets.
const LEAST: usize = 600 << 10;
/// The most elements of a block.
const MOST: usize = 900_000;
/// How long windows may take until all ranks map them.
const PATIENCE: Duration = Duration::from_secs(30);

/// Two windows of a rank, and the memory in them: the library's, or cudaMalloc's.
struct Place<'a> {
    buffers: Buffers,
    windows: [Window<'a>; 2],
}

impl<'a> Place<'a> {
    fn new(rank: &'a Rank, ours: bool) -> Outcome<Self> {
        let bytes = rank.nranks as usize * MOST * 4 + 8192;
        let make = || if ours { Memory::new(bytes) } else { Memory::foreign(bytes) };
        let buffers = Buffers { input: make()?, output: make()? };
        rank.all_idle()?;
        let window = |memory: &Memory| Window::new(rank, memory.at, bytes);
        let windows = [window(&buffers.input)?, window(&buffers.output)?];
        Ok(Self { buffers, windows })
    }

    fn end(self, rank: &Rank) -> Outcome {
        self.windows.into_iter().try_for_each(Window::end)?;
        rank.all_idle()?;
        drop(self.buffers);
        rank.all_idle()?;
        Ok(())
    }
}

fn case(random: &mut Random, number: u64) -> Case {
    let collective = [Collective::AllGather, Collective::AllToAll][random.below(2) as usize];
    let dtype = [DataType::Uint8, DataType::Float16, DataType::Float32][random.below(3) as usize];
    let least = LEAST / dtype.size();
    let count = least + random.below((MOST * 4 / dtype.size() - least) as u64) as usize;
    Case {
        call: Call { collective, count, dtype, op: ReduceOp::Sum, root: 0 },
        in_place: collective == Collective::AllGather && random.below(2) == 0,
        skew: random.below(2) as usize * dtype.size() * random.below(40) as usize,
        seed: number,
        manner: if random.below(4) == 0 { Manner::Captured } else { Manner::Eager },
        factors: None,
    }
}

/// An all-gather of as much as engines are asked for.
fn gather(in_place: bool, skew: usize, seed: u64) -> Case {
    let (collective, dtype, op) = (Collective::AllGather, DataType::Uint8, ReduceOp::Sum);
    let call = Call { collective, count: LEAST, dtype, op, root: 0 };
    Case { call, in_place, skew, seed, manner: Manner::Eager, factors: None }
}

/// Whether all ranks say so.
fn all_say(rank: &Rank, scratch: &Memory, says: bool) -> Outcome<bool> {
    rank.upload(scratch.at, &words(i32::from(says), 1))?;
    rank.meet(scratch.at)?;
    Ok(rank.download(scratch.at, 4)? == words(rank.nranks, 1))
}

/// Gathers until engines of all ranks move what is in both windows.
fn until_moved(rank: &Rank, place: &Place<'_>, scratch: &Memory) -> Outcome {
    let start = Instant::now();
    for seed in 0.. {
        let before = rank.by_engines()?;
        for in_place in [false, true] {
            play(&gather(in_place, 0, seed), &[*rank], std::slice::from_ref(&place.buffers))?;
        }
        if all_say(rank, scratch, rank.by_engines()? == before + 2)? {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            break;
        }
    }
    Err(format!("rank {}: no engine moves anything", rank.rank))
}

/// All kinds of calls between windows that come and go.
pub(crate) fn gathers(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let (mut random, scratch) = (Random(12), Memory::new(4)?);
    for round in 0..6 {
        let place = Place::new(rank, round % 2 == 0)?;
        until_moved(rank, &place, &scratch)?;
        for number in 0..15 {
            let case = case(&mut random, round << 20 | number);
            let before = rank.by_engines()?;
            play(&case, &[*rank], std::slice::from_ref(&place.buffers))?;
            // Engines cannot give up when a graph comes too late.
            let expected = u64::from(case.manner == Manner::Eager);
            let moved = rank.by_engines()? - before;
            if moved != expected {
                return Err(format!("engines moved {moved} instead of {expected}: {case:?}"));
            }
        }
        place.end(rank)?;
    }
    rank.leave()
}

/// Puts to the next rank: large ones by engines, small and captured ones by kernels.
pub(crate) fn puts(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let (mut random, scratch) = (Random(4), Memory::new(4)?);
    let place = Place::new(rank, true)?;
    until_moved(rank, &place, &scratch)?;
    let Place { buffers: Buffers { input, output }, windows } = &place;
    let (next, before) = rank.neighbours();
    let data = |of: i32, number: u64, bytes: usize| {
        let mut random = Random(number << 8 | of as u64);
        (0..bytes).map(|_| random.draw() as u8).collect::<Vec<_>>()
    };
    for number in 0..30 {
        let bytes =
            [LEAST, MOST, 100, 300_000][random.below(4) as usize] + random.below(50) as usize;
        let (from, to) = (random.below(99) as usize, random.below(9999) as usize);
        let captured = random.below(3) == 0;
        rank.upload(input.part(from), &data(rank.rank, number, bytes))?;
        rank.upload(output.at, &vec![0xa5; to + bytes + 64])?;
        rank.meet(scratch.at)?;
        let known = rank.by_engines()?;
        let calls = || {
            windows[1].put((input.part(from), bytes), (next, to), (0, 0))?;
            wait(rank, &BTreeMap::from([((before, (0, 0)), 1)]))
        };
        if captured {
            Replay::capture(rank.stream, oxcclCaptureThreadLocal, calls)?.launch(rank.stream)?;
        } else {
            calls()?;
        }
        rank.synchronize()?;
        let mut expected = vec![0xa5; to + bytes + 64];
        expected[to..to + bytes].copy_from_slice(&data(before, number, bytes));
        rank.expect(output.at, &expected).map_err(|e| format!("{e} in put {number}"))?;
        let (moved, wanted) = (rank.by_engines()? - known, !captured && bytes >= LEAST);
        if moved != u64::from(wanted) {
            return Err(format!("engines did {moved} of put {number}: {bytes} bytes, {captured}"));
        }
        rank.meet(scratch.at)?;
    }
    place.end(rank)?;
    rank.leave()
}

/// Rank 0 brings another place of its window, again and again: the results are right, and no rank
/// sends its engines to the wrong place for long.
pub(crate) fn astray(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let scratch = Memory::new(4)?;
    let place = Place::new(rank, true)?;
    until_moved(rank, &place, &scratch)?;
    let before = rank.by_engines()?;
    for seed in 0..40 {
        let case = gather(false, if rank.rank == 0 { 160 } else { 0 }, seed);
        play(&case, &[*rank], std::slice::from_ref(&place.buffers))?;
    }
    // Now they would be right.
    play(&gather(false, 0, 0), &[*rank], std::slice::from_ref(&place.buffers))?;
    match rank.by_engines()? - before {
        0 => place.end(rank).and_then(|()| rank.leave()),
        some => Err(format!("rank {}: engines moved {some} times", rank.rank)),
    }
}

/// While engines of the others wait for rank 0, windows of another communicator come and are
/// written into: their mapping must not wait for those engines.
pub(crate) fn beside(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let scratch = Memory::new(4)?;
    let (place, memory) = (Place::new(rank, true)?, Memory::new(10_000)?);
    until_moved(rank, &place, &scratch)?;
    let other = rank.again()?;
    for seed in 0..5 {
        let case = gather(false, 0, seed);
        let call = |laid: &Laid| ok(rank.call(case.call, laid.from, laid.to));
        play_one(&case, rank, &place.buffers, |laid| {
            if rank.rank > 0 {
                call(laid)?;
            }
            put_once(&other, &memory)?;
            if rank.rank == 0 { call(laid) } else { Ok(()) }
        })?;
    }
    other.leave()?;
    place.end(rank)?;
    rank.leave()
}

/// The last rank's process is killed while the others' engines wait for it.
pub(crate) fn killed(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let scratch = Memory::new(4)?;
    let place = Place::new(rank, false)?;
    until_moved(rank, &place, &scratch)?;
    let (Case { call, .. }, last) = (gather(false, 0, 0), rank.nranks - 1);
    if rank.rank == last {
        // Rank 0 waits in its call, or comes to it.
        ok(rank.message(false, scratch.at, 1, 0))?;
        rank.synchronize()?;
        kill_process(getpid(), Signal::KILL).map_err(|e| e.to_string())?;
        return Err("the signal did not kill".to_owned());
    }
    if rank.rank == 0 {
        ok(rank.message(true, scratch.at, 1, last))?;
    }
    let (from, to) = (place.buffers.input.at, place.buffers.output.at);
    let called = ok(rank.call(call, from, to));
    told(rank, &[&format!("rank {last}")]).map_err(|e| format!("{e}; called: {called:?}"))?;
    abort_now(rank)
}

/// Rank 0 aborts while the others' engines wait for it, with more calls queued behind them.
pub(crate) fn aborted(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let scratch = Memory::new(4)?;
    let place = Place::new(rank, true)?;
    until_moved(rank, &place, &scratch)?;
    if rank.rank > 0 {
        let Case { call, .. } = gather(false, 0, 0);
        let (from, to) = (place.buffers.input.at, place.buffers.output.at);
        // Who comes late hears of it here.
        let called = (0..20).try_for_each(|_| ok(rank.call(call, from, to)));
        told(rank, &["rank 0"]).map_err(|e| format!("{e}; called: {called:?}"))?;
    }
    abort_now(rank)
}
