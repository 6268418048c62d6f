//! What goes wrong is told, on all ranks and in time.

use crate::options::sum_until;
use crate::rank::{
    Call, Memory, Outcome, Rank, group, last_error, ok, on_gpu, one, stream, sum, words,
};
use cudarc::driver::sys;
use oxccl::nccl::lifetime::ncclCommAbort;
use oxccl::nccl::types::NCCL_SHRINK_ABORT;
use oxccl::nccl::types::ncclResult_t;
use oxccl::oxccl::launch::oxcclCommSetTimeout;
use oxccl::oxccl::stream::oxcclStreamSynchronize;
use oxccl_plan::{Collective, DataType};
use rustix::process::{Signal, getpid, kill_process};
use std::time::{Duration, Instant};

pub(crate) fn abort_now(rank: &Rank) -> Outcome {
    abort_within(rank, Duration::from_secs(2))
}

fn abort_within(rank: &Rank, limit: Duration) -> Outcome {
    let start = Instant::now();
    // SAFETY: a living handle.
    ok(unsafe { ncclCommAbort(rank.comm) })?;
    match start.elapsed() {
        long if long > limit => Err(format!("abort took {long:?}")),
        _ => Ok(()),
    }
}

/// Waits until the communicator has failed; why it has.
pub(crate) fn hear(rank: &Rank) -> Outcome<String> {
    let start = Instant::now();
    while rank.async_error() == ncclResult_t::ncclSuccess {
        if start.elapsed() > Duration::from_secs(20) {
            return Err(format!("rank {}: nobody told of the failure", rank.rank));
        }
        std::thread::yield_now();
    }
    Ok(last_error())
}

/// The end of what was called, and of its communicator; every part has to be told.
pub(crate) fn told(rank: &Rank, parts: &[&str]) -> Outcome {
    // Who gives something small may be done before anyone knows.
    let ended = rank.synchronize();
    let text = hear(rank).map_err(|e| format!("{e}; its stream ended with {ended:?}"))?;
    // It is delivered there, too, and only once.
    let _ = rank.synchronize();
    match parts.iter().find(|part| !text.contains(**part)) {
        Some(part) => Err(format!("rank {}: {part} is not in: {text}", rank.rank)),
        None => Ok(()),
    }
}

/// The last rank calls something else.
pub(crate) fn mismatch(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    let to = memory.at.wrapping_byte_add(1 << 19);
    let count = if rank.rank + 1 == rank.nranks { 20_000 } else { 100 };
    // Who comes late hears of it at the call.
    let Err(text) = ok(rank.call(sum(count), memory.at, to)).and_then(|()| rank.synchronize())
    else {
        return Err("no error".to_owned());
    };
    for part in ["20000", "100"] {
        if !text.contains(part) {
            return Err(format!("{part} is not in: {text}"));
        }
    }
    abort_now(rank)
}

/// Every rank reduces to itself, so all wait for what nobody sends.
pub(crate) fn roots(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    let to = memory.at.wrapping_byte_add(1 << 19);
    let call = Call { collective: Collective::Reduce, root: rank.rank, ..sum(100) };
    let called = ok(rank.call(call, memory.at, to)).and_then(|()| rank.synchronize());
    let Err(text) = called else { return Err("no error".to_owned()) };
    if text.matches("root").count() < 2 {
        return Err(format!("two roots are not in: {text}"));
    }
    abort_now(rank)
}

/// Every rank broadcasts from itself, so that none waits; then all sum. It is told at the latest
/// then.
pub(crate) fn crossed(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    let to = memory.at.wrapping_byte_add(1 << 19);
    let calls = [Call { collective: Collective::Broadcast, root: rank.rank, ..sum(100) }, sum(100)];
    // Who comes late hears of it at the call.
    let _ = calls
        .into_iter()
        .try_for_each(|call| ok(rank.call(call, memory.at, to)).and_then(|()| rank.synchronize()));
    told(rank, &["broadcast", "root"])?;
    abort_now(rank)
}

/// Two ranks broadcast from different roots: each from the other one, so that both wait, or each
/// from itself, so that none waits before the sum that follows. Both are told of both roots.
pub(crate) fn two_roots(ranks: &[Rank]) -> Outcome {
    const ROOM: usize = 1 << 19;
    let rank = one(ranks)?;
    let memory = Memory::new(2 * ROOM)?;
    for (count, from_itself) in [1, 100, 10_000].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let pair = rank.split(if rank.rank < 2 { 0 } else { -1 })?;
        let Some(pair) = pair else { continue };
        let root = |of: i32| if from_itself { of } else { 1 - of };
        pair.upload(memory.part(ROOM), &vec![0xa5; ROOM])?;
        let call = Call { collective: Collective::Broadcast, root: root(pair.rank), ..sum(count) };
        // Who comes late hears of it at the call.
        let mut called = ok(pair.call(call, memory.at, memory.part(ROOM)));
        if from_itself {
            called = called.and_then(|()| ok(pair.call(sum(count), memory.at, memory.part(ROOM))));
        }
        let part = |of| format!("rank {of} calls broadcast of {count} × int32, root {}", root(of));
        told(&pair, &[&part(0), &part(1)])
            .map_err(|e| format!("{e}; from itself: {from_itself}, called: {called:?}"))?;
        abort_now(&pair)?;
        if !from_itself {
            pair.expect(memory.part(ROOM), &vec![0xa5; ROOM])?;
        }
    }
    total(rank, &memory)?;
    rank.leave()
}

/// Rank 0 sends to who calls something else; it may wait for nobody, but hears of it.
pub(crate) fn sends_only(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    let to = memory.at.wrapping_byte_add(1 << 19);
    let call = match rank.rank {
        0 => Call { collective: Collective::Broadcast, ..sum(100) },
        _ => sum(100),
    };
    // Who comes late hears of it at the call.
    let _ = ok(rank.call(call, memory.at, to));
    told(rank, &["all_reduce", "broadcast"])?;
    abort_now(rank)
}

/// Rank 0 aborts while the others wait for it, in a small call and in a large one; they hear of it.
pub(crate) fn abort(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let (beside, memory) = (rank.again()?, Memory::new(10 << 20)?);
    abort_in(&beside, 100_000, &memory)?;
    abort_in(rank, 2_500_000, &memory)
}

fn abort_in(rank: &Rank, count: usize, memory: &Memory) -> Outcome {
    ok(rank.call(sum(100), memory.at, memory.at))?;
    let first = rank.synchronize();
    if rank.rank == 0 {
        return first.and_then(|()| abort_now(rank));
    }
    // Rank 0 may be gone before this one has the result.
    if let Some(text) = first.err().filter(|text| !text.contains("ncclCommAbort")) {
        return Err(text);
    }
    let heard = ok(rank.call(sum(count), memory.at, memory.at)).err();
    if let Some(text) = heard.filter(|text| !text.contains("ncclCommAbort")) {
        return Err(text);
    }
    hear(rank)?;
    let _ = rank.synchronize();
    abort_now(rank)
}

/// All ranks abort what may stand still for ever: below a network plugin that does not return it
/// does, and otherwise ends. No abort takes longer than a second.
pub(crate) fn abort_what_stands(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(10 << 20)?;
    for _ in 0..4 {
        // A plugin that fails is heard of at a call.
        let _ = ok(rank.call(sum(2_500_000), memory.at, memory.at));
    }
    // SAFETY: a living handle.
    let _ = unsafe { oxcclStreamSynchronize(rank.stream, 500_000_000) };
    abort_within(rank, Duration::from_secs(1))?;
    // The stream is free for other work.
    let _ = rank.synchronize();
    rank.upload(memory.at, &[1; 64])?;
    rank.synchronize()
}

/// The last rank leaves in order, and the others call on.
pub(crate) fn left_behind(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    ok(rank.call(sum(100), memory.at, memory.at))?;
    rank.synchronize()?;
    if rank.rank + 1 == rank.nranks {
        return rank.end_communicator();
    }
    // It may have left before the call, and its departure may be heard of at the call.
    let called = ok(rank.call(sum(100), memory.at, memory.at)).and_then(|()| rank.synchronize());
    let Err(text) = called else { return Err("no error".to_owned()) };
    if !text.contains("destroyed its communicator") {
        return Err(format!("another error: {text}"));
    }
    abort_now(rank)
}

/// A group of two calls, the second of which cannot be launched: its stream's capture is broken.
/// The first one, of another kind, is under way already, so the communicator fails.
pub(crate) fn half_a_group(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    if !on_gpu() {
        return Ok(());
    }
    let memory = Memory::new(1 << 20)?;
    let broken = Rank { stream: stream()?, ..*rank };
    let handle: sys::CUstream = broken.stream.cast();
    let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: a living stream; to wait for it breaks its capture.
    unsafe {
        sys::cuStreamBeginCapture_v2(handle, relaxed).result().map_err(|e| e.to_string())?;
        sys::cuStreamSynchronize(handle).result().err().ok_or("a capture was waited for")?;
    }
    let launched = group(|| {
        ok(rank.call(sum(100), memory.at, memory.at))?;
        let other = Call { collective: Collective::Broadcast, ..sum(100) };
        ok(broken.call(other, memory.part(1 << 19), memory.part(1 << 19)))
    });
    let Err(text) = launched else { return Err("no error".to_owned()) };
    if !text.contains("capture is invalidated") {
        return Err(format!("another error: {text}"));
    }
    let text = hear(rank)?;
    if !text.contains("capture is invalidated") {
        return Err(format!("the communicator failed otherwise: {text}"));
    }
    abort_now(rank)
}

/// Nobody but rank 0 calls.
pub(crate) fn limit(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    if rank.rank == 0 {
        // SAFETY: a living handle.
        ok(unsafe { oxcclCommSetTimeout(rank.comm, 200_000_000) })?;
        ok(rank.call(sum(1000), memory.at, memory.at))?;
        let Err(text) = rank.synchronize() else { return Err("no error".to_owned()) };
        let parts = [
            " ms for rank ",
            " all_reduce (operation 0), the limit",
            " has not called all_reduce of 1000 × int32, sum (collective 0",
            "look at what that process does",
        ];
        let text = format!("{text}, {}", last_error());
        if let Some(lacks) = parts.iter().find(|part| !text.contains(**part)) {
            return Err(format!("no {lacks:?}: {text}"));
        }
        // The limit is noticed at the next look, which a busy machine makes later.
        let waited = text.split_once("rank 0 waited ").and_then(|(_, rest)| rest.split_once(' '));
        if waited.and_then(|(ms, _)| ms.parse().ok()).is_none_or(|ms: u64| ms < 200) {
            return Err(format!("rank 0 did not wait for 200 ms: {text}"));
        }
    } else {
        hear(rank)?;
    }
    rank.finalize()?;
    // Only the rank whose operation has ended early is told so ever after.
    match rank.async_error() {
        ncclResult_t::ncclSuccess if rank.rank == 0 => Err("the failure is forgotten".to_owned()),
        error if error != ncclResult_t::ncclSuccess && rank.rank != 0 => Err(format!("{error:?}")),
        _ => abort_now(rank),
    }
}

/// The last rank takes no part in a sum of the others, which has a deadline: its own, or on GPUs,
/// which refuse that, the limit of the communicator.
pub(crate) fn deadline(ranks: &[Rank]) -> Outcome {
    const LIMIT: Duration = Duration::from_millis(400);
    const SLACK: Duration = Duration::from_secs(3);
    let rank = one(ranks)?;
    let last = rank.nranks - 1;
    let memory = Memory::new(1 << 20)?;
    total(rank, &memory)?;
    let (start, to) = (Instant::now(), memory.part(1 << 19));
    if rank.rank != last {
        let called = if on_gpu() {
            // SAFETY: a living handle.
            ok(unsafe { oxcclCommSetTimeout(rank.comm, LIMIT.as_nanos() as i64) })?;
            rank.call(sum(1000), memory.at, to)
        } else {
            sum_until(rank, LIMIT.as_millis() as i32, (memory.at, to))
        };
        // Who comes late hears of it at the call.
        let _ = ok(called);
    }
    told(rank, &[&format!("rank {last}")])?;
    let took = start.elapsed();
    // Another rank may have called, and given up, a moment before.
    if took < LIMIT / 2 || took > LIMIT + SLACK {
        return Err(format!("rank {} was told after {took:?}", rank.rank));
    }
    abort_within(rank, Duration::from_secs(1))?;
    // The buffers belong to this rank again.
    rank.upload(to, &words(5, 1000))?;
    rank.expect(to, &words(5, 1000))
}

/// The last rank aborts a communicator on which all is done, as a program may that ends without
/// another word. The others have heard of it, or have not, and end theirs without an error.
pub(crate) fn abort_at_the_end(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    for hears in [true, false] {
        let ending = rank.again()?;
        total(&ending, &memory)?;
        // All ranks have finished the one before.
        total(rank, &memory)?;
        if rank.rank + 1 == rank.nranks {
            abort_now(&ending)?;
            ending.end_stream()?;
        } else {
            if hears {
                hear(&ending)?;
            }
            ending.finalize()?;
            let error = ending.async_error();
            if error != ncclResult_t::ncclSuccess {
                return Err(format!("{error:?} after all was done: {}", last_error()));
            }
            ending.leave()?;
        }
    }
    rank.leave()
}

/// What one of two ranks does with the other.
#[derive(Clone, Copy, Debug)]
enum CurrentOp {
    Send(DataType, usize),
    Receive(DataType, usize),
    /// Both, so many bytes.
    Exchange(usize),
    /// A collective.
    Sum(usize),
}

/// What ranks 0 and 1 do, at the same time.
const DIFFERENT: [(CurrentOp, CurrentOp); 7] = [
    (CurrentOp::Send(DataType::Uint8, 1000), CurrentOp::Receive(DataType::Uint8, 2000)),
    (CurrentOp::Receive(DataType::Uint8, 777), CurrentOp::Send(DataType::Uint8, 300_001)),
    (CurrentOp::Send(DataType::Uint8, 3), CurrentOp::Receive(DataType::Uint8, 300_000)),
    (CurrentOp::Send(DataType::Int32, 250), CurrentOp::Receive(DataType::Float32, 250)),
    (CurrentOp::Exchange(1000), CurrentOp::Sum(300)),
    (CurrentOp::Sum(100_000), CurrentOp::Exchange(100_000)),
    (CurrentOp::Send(DataType::Uint8, 0), CurrentOp::Receive(DataType::Uint8, 100)),
];

impl CurrentOp {
    /// How a text has to name it.
    fn name(self) -> String {
        match self {
            Self::Send(dtype, count) | Self::Receive(dtype, count) => {
                format!("send/recv of {} bytes of {}", count * dtype.size(), dtype.name())
            }
            Self::Exchange(_) => "send/recv".to_owned(),
            Self::Sum(count) => format!("all_reduce of {count} × int32, sum"),
        }
    }

    fn call(self, rank: &Rank, memory: &Memory, to: usize) -> Outcome {
        let (peer, from, to) = (1 - rank.rank, memory.at, memory.part(to));
        match self {
            Self::Send(dtype, count) => ok(rank.message_of(true, from, (dtype, count), peer)),
            Self::Receive(dtype, count) => ok(rank.message_of(false, to, (dtype, count), peer)),
            Self::Exchange(bytes) => group(|| {
                ok(rank.message(true, from, bytes, peer))?;
                ok(rank.message(false, to, bytes, peer))
            }),
            Self::Sum(count) => ok(rank.call(sum(count), from, to)),
        }
    }
}

/// Two ranks whose messages differ are told of both, and nothing is received.
pub(crate) fn messages(ranks: &[Rank]) -> Outcome {
    const ROOM: usize = 1 << 19;
    let rank = one(ranks)?;
    let memory = Memory::new(2 * ROOM)?;
    for (ours, theirs) in DIFFERENT {
        let pair = rank.split(if rank.rank < 2 { 0 } else { -1 })?;
        let Some(pair) = pair else { continue };
        let doing = if pair.rank == 0 { ours } else { theirs };
        pair.upload(memory.part(ROOM), &vec![0xa5; ROOM])?;
        // Who comes late hears of it at the call.
        let called = doing.call(&pair, &memory, ROOM);
        let parts = [ours.name(), theirs.name()];
        told(&pair, &parts.each_ref().map(String::as_str))
            .map_err(|e| format!("{e}; {ours:?} and {theirs:?}, called: {called:?}"))?;
        abort_now(&pair)?;
        // Of a sum it is unknown how far it came.
        if !matches!(doing, CurrentOp::Sum(_)) {
            let untouched = pair.expect(memory.part(ROOM), &vec![0xa5; ROOM]);
            untouched.map_err(|e| format!("{e}; {ours:?} and {theirs:?}"))?;
        }
    }
    total(rank, &memory)?;
    rank.leave()
}

/// Rank 0 sends to rank 1, which does not receive; then all ranks sum. Where messages and sums have
/// edges of their own that is right until the end, else it is told.
pub(crate) fn stray(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(20 << 20)?;
    for count in [100, 2_500_000] {
        let all = rank.split(0)?.ok_or("no communicator")?;
        if all.rank == 0 {
            ok(all.message(true, memory.at, 400, 1))?;
        }
        // Who comes late hears of it at the call.
        let summed = ok(all.call(sum(count), memory.at, memory.part(10 << 20)));
        if summed.and_then(|()| all.synchronize()).is_err() {
            told(&all, &["all_reduce", "send/recv"])?;
        }
        // Nobody is gone before the others have their results.
        total(rank, &memory)?;
        abort_now(&all)?;
    }
    rank.leave()
}

/// Rank 1 sends to rank 2, which does not receive, but waits in a collective for what rank 1 puts
/// or passes on; rank 1 does not call that. Lines tell of it.
pub(crate) fn stray_beside_results(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(40 << 20)?;
    for (collective, root) in [(Collective::Reduce, 2), (Collective::Broadcast, 0)] {
        // In packets, lines and chunks, and reduces in a chain.
        for count in [60_000, 300_000, 4_000_000] {
            let all = rank.split(0)?.ok_or("no communicator")?;
            let call = Call { collective, root, ..sum(count) };
            match all.rank {
                1 => ok(all.message(true, memory.at, 400, 2))?,
                // The root of a broadcast waits for nobody's data, but for room.
                0 | 2 => drop(ok(all.call(call, memory.at, memory.part(20 << 20)))),
                _ => (),
            }
            if all.rank == 2 {
                told(&all, &[collective.name(), "send/recv"])?;
            }
            // Nobody is gone before the receiver has heard.
            total(rank, &memory)?;
            abort_now(&all)?;
        }
    }
    rank.leave()
}

/// A sum of all ranks, which has to be right.
pub(crate) fn total(rank: &Rank, memory: &Memory) -> Outcome {
    const COUNT: usize = 30_000;
    rank.upload(memory.at, &words(rank.rank + 1, COUNT))?;
    ok(rank.call(sum(COUNT), memory.at, memory.part(COUNT * 4)))?;
    rank.synchronize()?;
    rank.expect(memory.part(COUNT * 4), &words((1..=rank.nranks).sum(), COUNT))
}

/// What the ranks but the last one do with a communicator that has lost it: they make one without
/// it, and end the old one.
pub(crate) fn survive(rank: &Rank, memory: &Memory) -> Outcome {
    let rest = rank.without_last(NCCL_SHRINK_ABORT)?;
    total(&rest, memory)?;
    rest.leave()?;
    abort_now(rank)
}

/// The last rank's process is killed while the others wait for it.
pub(crate) fn killed(ranks: &[Rank]) -> Outcome {
    const BYTES: usize = 1 << 20;
    let rank = one(ranks)?;
    let last = rank.nranks - 1;
    let memory = Memory::new(3 * BYTES)?;
    let beside = rank.again()?;
    total(rank, &memory)?;
    if rank.rank == last {
        // The others say that they wait.
        group(|| (0..last).try_for_each(|peer| ok(beside.message(false, memory.at, 1, peer))))?;
        beside.synchronize()?;
        kill_process(getpid(), Signal::KILL).map_err(|e| e.to_string())?;
        return Err("the signal did not kill".to_owned());
    }
    ok(rank.call(sum(BYTES / 4), memory.at, memory.part(BYTES)))?;
    ok(beside.message(true, memory.part(2 * BYTES), 1, last))?;
    told(rank, &[&format!("rank {last}")])?;
    abort_now(&beside)?;
    rank.upload(memory.at, &words(5, 1000))?;
    rank.expect(memory.at, &words(5, 1000))?;
    survive(rank, &memory)
}
