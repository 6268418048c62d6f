//! Captured operations.

use crate::rank::{
    Call, Memory, Outcome, Rank, Replay, choose, group, last_error, ok, on_gpu, one, stream, sum,
    synchronize, unique_id, words,
};
use cudarc::driver::sys;
use oxccl::nccl::comm::ncclCommDestroy;
use oxccl::nccl::lifetime::ncclCommAbort;
use oxccl::oxccl::stream::oxcclStreamHostFunc;
use oxccl::oxccl::types::oxcclCaptureMode_t::{
    self, oxcclCaptureGlobal, oxcclCaptureRelaxed, oxcclCaptureThreadLocal,
};
use oxccl::oxccl::types::oxcclStream_t;
use oxccl_plan::ReduceOp;
use std::ffi::c_void;
use std::sync::{Barrier, Condvar, Mutex};

const COUNT: usize = 5000;
const BYTES: usize = COUNT * 4;

/// No warm-up: the communicator's first operation is captured, in every mode.
pub(crate) fn first_captured(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let scale: i32 = (1..=rank.nranks).sum();
    let memory = Memory::new(2 * BYTES)?;
    let to = memory.at.wrapping_byte_add(BYTES);
    let modes: [oxcclCaptureMode_t; 3] =
        [oxcclCaptureGlobal, oxcclCaptureThreadLocal, oxcclCaptureRelaxed];
    for (round, mode) in (1..).zip(modes) {
        let replay =
            Replay::capture(rank.stream, mode, || ok(rank.call(sum(COUNT), memory.at, to)))?;
        rank.upload(memory.at, &words(round * (rank.rank + 1), COUNT))?;
        replay.launch(rank.stream)?;
        rank.synchronize()?;
        rank.expect(memory.part(BYTES), &words(round * scale, COUNT))?;
    }
    rank.leave()
}

/// Communicators come and go in other threads during captures. Memory is freed after them.
pub(crate) fn others_work(ranks: &[Rank]) -> Outcome {
    let modes: [oxcclCaptureMode_t; 3] =
        [oxcclCaptureGlobal, oxcclCaptureThreadLocal, oxcclCaptureRelaxed];
    let scale: i32 = (1..=ranks.len() as i32).sum();
    for (round, mode) in (1..).zip(modes) {
        let mut all = Vec::new();
        // No kernel runs meanwhile: the driver makes some streams only when the GPU is idle.
        for rank in ranks {
            choose(rank.rank)?;
            let memory = Memory::new(4 * BYTES)?;
            let to = memory.part(BYTES);
            let replay = Replay::capture(rank.stream, mode, || {
                ok(rank.call(sum(COUNT), memory.at, to))?;
                let (number, at) = (rank.rank, memory.part(2 * BYTES).expose_provenance());
                let other = std::thread::scope(|s| s.spawn(|| alone(number, at)).join());
                other.unwrap_or_else(|_| Err("a panic".to_owned()))?;
                ok(rank.call(Call { op: ReduceOp::Max, ..sum(COUNT) }, to, to))
            })?;
            rank.upload(memory.at, &words(round * (rank.rank + 1), COUNT))?;
            all.push((rank, memory, replay));
        }
        for (rank, _, replay) in &all {
            choose(rank.rank)?;
            replay.launch(rank.stream)?;
        }
        for (rank, memory, _) in &all {
            choose(rank.rank)?;
            rank.synchronize()?;
            rank.expect(memory.part(BYTES), &words(round * scale, COUNT))?;
        }
    }
    ranks.iter().try_for_each(|rank| rank.leave())
}

/// A communicator of one rank on the GPU of rank `number`, which uses the memory there.
fn alone(number: i32, at: usize) -> Outcome {
    choose(number)?;
    let from = std::ptr::with_exposed_provenance_mut::<c_void>(at);
    let to = from.wrapping_byte_add(BYTES);
    let alone = Rank::join_on(number, unique_id()?, 1, 0)?;
    alone.upload(from, &words(number, COUNT))?;
    ok(alone.call(sum(COUNT), from, to))?;
    alone.synchronize()?;
    alone.expect(to, &words(number, COUNT))?;
    alone.leave()
}

/// Each replay adds up what the one before left.
pub(crate) fn replays(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(2 * BYTES)?;
    let to = memory.at.wrapping_byte_add(BYTES);
    let call = Call { op: ReduceOp::Max, ..sum(COUNT) };
    let replay = Replay::capture(rank.stream, oxcclCaptureGlobal, || {
        ok(rank.call(call, memory.at, to))?;
        ok(rank.call(sum(COUNT), memory.at, memory.at.wrapping_byte_add(BYTES)))
    })?;
    let scale: i32 = (1..=rank.nranks).sum();
    for round in 0..50 {
        rank.upload(memory.at, &words((rank.rank + 1) * (round + 1), COUNT))?;
        for number in 0..2000 {
            replay.launch(rank.stream)?;
            // Ranks that share a GPU share the room for launches: who fills it keeps the others
            // out.
            if number % 50 == 0 {
                rank.synchronize()?;
            }
        }
        rank.synchronize()?;
        rank.expect(memory.part(BYTES), &words((round + 1) * scale, COUNT))?;
    }
    rank.leave()
}

/// Replays of several calls and eager calls of one communicator, outstanding together on two
/// streams.
pub(crate) fn mixed(ranks: &[Rank]) -> Outcome {
    beside_eager_calls(ranks, |_| Ok(()))
}

/// The same with memory of the graph between the calls: there no dependency can be taken away.
pub(crate) fn allocating(ranks: &[Rank]) -> Outcome {
    beside_eager_calls(ranks, |stream| {
        if !on_gpu() {
            return Ok(());
        }
        let (mut at, stream) = (0, stream.cast());
        // SAFETY: a place for the address, and a living stream of CUDA.
        let freed = unsafe {
            let allocated = sys::cuMemAllocAsync(&mut at, BYTES, stream).result();
            allocated.and_then(|()| sys::cuMemFreeAsync(at, stream).result())
        };
        freed.map_err(|e| e.to_string())
    })
}

fn beside_eager_calls(ranks: &[Rank], between: fn(oxcclStream_t) -> Outcome) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(4 * BYTES)?;
    let at = |part: usize| memory.at.wrapping_byte_add(part * BYTES);
    let second = stream()?;
    let most = Call { op: ReduceOp::Max, ..sum(COUNT) };
    let replay = Replay::capture(rank.stream, oxcclCaptureThreadLocal, || {
        ok(rank.call(sum(COUNT), at(0), at(1)))?;
        (0..2).try_for_each(|_| {
            between(rank.stream)?;
            ok(rank.call(most, at(1), at(1)))
        })
    })?;
    replay.upload(rank.stream)?;
    rank.all_idle()?;
    let scale: i32 = (1..=rank.nranks).sum();
    for round in 1..200 {
        rank.upload(at(0), &words((rank.rank + 1) * round, COUNT))?;
        rank.upload(at(2), &words((rank.rank + 1) * -round, COUNT))?;
        for _ in 0..5 {
            replay.launch(rank.stream)?;
            ok(rank.call_on(second, sum(COUNT), at(2), at(3)))?;
        }
        synchronize(second)?;
        rank.synchronize()?;
        rank.expect(memory.part(BYTES), &words(round * scale, COUNT))?;
        rank.expect(memory.part(3 * BYTES), &words(-round * scale, COUNT))?;
    }
    rank.leave()
}

/// The first messages to a peer are captured, in global mode.
pub(crate) fn messages(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(2 * BYTES)?;
    let to = memory.at.wrapping_byte_add(BYTES);
    let (next, last) = rank.neighbours();
    let replay = Replay::capture(rank.stream, oxcclCaptureGlobal, || {
        group(|| {
            ok(rank.message(true, memory.at, BYTES, next))?;
            ok(rank.message(false, to, BYTES, last))
        })
    })?;
    for round in 1..100 {
        rank.upload(memory.at, &words(rank.rank + round, COUNT))?;
        replay.launch(rank.stream)?;
        rank.synchronize()?;
        rank.expect(memory.part(BYTES), &words(last + round, COUNT))?;
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
    let replay = Replay::capture(rank.stream, oxcclCaptureGlobal, || {
        ok(rank.call(sum(COUNT), memory.at, to))
    })?;
    // Ranks that share a GPU must not launch while another one's graph is made.
    replay.upload(rank.stream)?;
    met.wait();
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
    rank.upload(memory.at, &words(5, COUNT))?;
    rank.expect(memory.part(0), &words(5, COUNT))
}

/// Captured at even ranks and eager at odd ones.
pub(crate) fn some_captured(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(2 * BYTES)?;
    let to = memory.at.wrapping_byte_add(BYTES);
    let scale: i32 = (1..=rank.nranks).sum();
    let replay = (rank.rank % 2 == 0)
        .then(|| {
            Replay::capture(rank.stream, oxcclCaptureGlobal, || {
                ok(rank.call(sum(COUNT), memory.at, to))
            })
        })
        .transpose()?;
    for round in 1..50 {
        rank.upload(memory.at, &words(round * (rank.rank + 1), COUNT))?;
        match &replay {
            Some(replay) => replay.launch(rank.stream)?,
            None => ok(rank.call(sum(COUNT), memory.at, to))?,
        }
        rank.synchronize().map_err(|e| format!("{e} {}", last_error()))?;
        rank.expect(memory.part(BYTES), &words(round * scale, COUNT))?;
    }
    rank.leave()
}

/// An executable graph takes other buffers.
pub(crate) fn updated(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(4 * BYTES)?;
    let at = |part: usize| memory.part(part * BYTES);
    let scale: i32 = (1..=rank.nranks).sum();
    let capture = |from: usize, to: usize| {
        let call = || ok(rank.call(sum(COUNT), at(from), at(to)));
        Replay::capture(rank.stream, oxcclCaptureThreadLocal, call)
    };
    let mut replay = capture(0, 1)?;
    for number in 1..20 {
        let (from, to) = if number % 2 == 0 { (0, 1) } else { (2, 3) };
        replay.update(capture(from, to)?)?;
        rank.upload(at(from), &words((rank.rank + 1) * number, COUNT))?;
        rank.upload(at(to), &words(-1, COUNT))?;
        replay.launch(rank.stream)?;
        rank.synchronize()?;
        rank.expect(memory.part(to * BYTES), &words(number * scale, COUNT))?;
    }
    rank.leave()
}

/// Two graphs of one communicator, launched on two streams: one waits for the other.
pub(crate) fn two_at_once(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(4 * BYTES)?;
    let at = |part: usize| memory.part(part * BYTES);
    let second = stream()?;
    let mode = oxcclCaptureThreadLocal;
    let a = Replay::capture(rank.stream, mode, || ok(rank.call(sum(COUNT), at(0), at(1))))?;
    let b = Replay::capture(second, mode, || ok(rank.call_on(second, sum(COUNT), at(2), at(3))))?;
    a.upload(rank.stream)?;
    b.upload(second)?;
    rank.all_idle()?;
    let scale: i32 = (1..=rank.nranks).sum();
    for round in 1..100 {
        rank.upload(at(0), &words((rank.rank + 1) * round, COUNT))?;
        rank.upload(at(2), &words((rank.rank + 1) * -round, COUNT))?;
        for _ in 0..3 {
            a.launch(rank.stream)?;
            b.launch(second)?;
        }
        synchronize(second)?;
        rank.synchronize()?;
        rank.expect(memory.part(BYTES), &words(round * scale, COUNT))?;
        rank.expect(memory.part(3 * BYTES), &words(-round * scale, COUNT))?;
    }
    rank.leave()
}

/// One thread launches a graph of every rank, one after the other, in changing order.
pub(crate) fn one_launcher(ranks: &[Rank]) -> Outcome {
    let mut all = Vec::new();
    for rank in ranks {
        choose(rank.rank)?;
        let memory = Memory::new(2 * BYTES)?;
        let call = || ok(rank.call(sum(COUNT), memory.at, memory.part(BYTES)));
        let replay = Replay::capture(rank.stream, oxcclCaptureThreadLocal, call)?;
        all.push((memory, replay));
    }
    let scale: i32 = (1..=ranks.len() as i32).sum();
    for round in 1..100usize {
        for (rank, (memory, _)) in ranks.iter().zip(&all) {
            choose(rank.rank)?;
            rank.upload(memory.at, &words((rank.rank + 1) * round as i32, COUNT))?;
        }
        for i in 0..ranks.len() {
            let rank = &ranks[(i + round) % ranks.len()];
            choose(rank.rank)?;
            for _ in 0..3 {
                all[rank.rank as usize].1.launch(rank.stream)?;
            }
        }
        for (rank, (memory, _)) in ranks.iter().zip(&all) {
            choose(rank.rank)?;
            rank.synchronize()?;
            rank.expect(memory.part(BYTES), &words(round as i32 * scale, COUNT))?;
        }
    }
    drop(all);
    ranks.iter().try_for_each(|rank| rank.leave())
}

/// The first operations of two communicators are captured in opposite order on even and odd ranks,
/// while a stream hangs and another thread captures in global mode; the replays come in any order.
pub(crate) fn opposite(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let second = rank.again()?;
    let memory = Memory::new(4 * BYTES)?;
    let held = Held::on(stream()?)?;
    let scale: i32 = (1..=rank.nranks).sum();
    let capture = |rank: &Rank, part: usize| {
        let call = || {
            ok(rank.call(sum(COUNT), memory.part(part * BYTES), memory.part((part + 1) * BYTES)))
        };
        Replay::capture(rank.stream, oxcclCaptureGlobal, call)
    };
    let graphs = std::thread::scope(|scope| {
        let (started, go) = std::sync::mpsc::channel();
        let (done, end) = std::sync::mpsc::channel::<()>();
        let own = rank.rank;
        let capturing = scope.spawn(move || {
            choose(own)?;
            let stream = stream()?;
            Replay::capture(stream, oxcclCaptureGlobal, || {
                let _ = started.send(());
                let _ = end.recv();
                Ok(())
            })
            .map(drop)
        });
        let _ = go.recv();
        let graphs = (|| {
            if rank.rank % 2 == 0 {
                let a = capture(rank, 0)?;
                Ok((a, capture(&second, 2)?))
            } else {
                let b = capture(&second, 2)?;
                Ok((capture(rank, 0)?, b))
            }
        })();
        drop(done);
        let other = capturing.join().map_err(|_| "a panic".to_owned())?;
        other.and(graphs)
    });
    held.release()?;
    let (a, b) = graphs?;
    a.upload(rank.stream)?;
    b.upload(second.stream)?;
    rank.all_idle()?;
    for round in 1..50 {
        rank.upload(memory.at, &words((rank.rank + 1) * round, COUNT))?;
        rank.upload(memory.part(2 * BYTES), &words((rank.rank + 1) * -round, COUNT))?;
        // Both fit the GPU at a time, so their order is free.
        if (rank.rank + round) % 2 == 0 {
            a.launch(rank.stream)?;
            b.launch(second.stream)?;
        } else {
            b.launch(second.stream)?;
            a.launch(rank.stream)?;
        }
        rank.synchronize()?;
        second.synchronize()?;
        rank.expect(memory.part(BYTES), &words(round * scale, COUNT))?;
        rank.expect(memory.part(3 * BYTES), &words(-round * scale, COUNT))?;
    }
    drop((a, b));
    second.leave()?;
    rank.leave()
}

/// A stream that hangs until it is released.
pub(crate) struct Held {
    stream: oxcclStream_t,
    gate: std::sync::Arc<(Mutex<bool>, Condvar)>,
}

impl Held {
    /// Makes a stream hang.
    pub(crate) fn on(stream: oxcclStream_t) -> Outcome<Self> {
        unsafe extern "C" fn wait(gate: *mut std::ffi::c_void) {
            // SAFETY: what `on` gave away, once.
            let gate = unsafe { std::sync::Arc::from_raw(gate.cast::<(Mutex<bool>, Condvar)>()) };
            let open = gate.0.lock().unwrap_or_else(|e| e.into_inner());
            let limit = std::time::Duration::from_secs(60);
            drop(gate.1.wait_timeout_while(open, limit, |open| !*open));
        }
        let held = Self { stream, gate: std::sync::Arc::default() };
        let gate = std::sync::Arc::into_raw(held.gate.clone()).cast_mut().cast();
        // SAFETY: the function takes what it is given, once.
        ok(unsafe { oxcclStreamHostFunc(held.stream, Some(wait), gate) })?;
        Ok(held)
    }

    /// Lets it go on, and waits for it.
    pub(crate) fn release(self) -> Outcome {
        *self.gate.0.lock().unwrap_or_else(|e| e.into_inner()) = true;
        self.gate.1.notify_all();
        synchronize(self.stream)
    }
}

/// A rank aborts while the others' replays wait for it: they end with an error, later ones too, and
/// the device is as good as before.
pub(crate) fn aborted(ranks: &[Rank]) -> Outcome {
    static MET: std::sync::OnceLock<Barrier> = std::sync::OnceLock::new();
    let rank = one(ranks)?;
    let met = MET.get_or_init(|| Barrier::new(rank.nranks as usize));
    let memory = Memory::new(2 * BYTES)?;
    let call = || ok(rank.call(sum(COUNT), memory.at, memory.part(BYTES)));
    let replay = Replay::capture(rank.stream, oxcclCaptureGlobal, call)?;
    // Ranks that share a GPU must not launch while another one's graph is made.
    replay.upload(rank.stream)?;
    met.wait();
    for _ in 0..20 {
        replay.launch(rank.stream)?;
    }
    rank.synchronize()?;
    met.wait();
    if rank.rank > 0 {
        // Rank 0 does not come.
        (0..3).try_for_each(|_| replay.launch(rank.stream))?;
    } else {
        // SAFETY: a living handle.
        ok(unsafe { ncclCommAbort(rank.comm) })?;
    }
    let start = std::time::Instant::now();
    let ended = rank.synchronize();
    let took = start.elapsed();
    met.wait();
    if rank.rank > 0 && ended.is_ok() {
        return Err("the replays went through".to_owned());
    }
    if took > std::time::Duration::from_secs(5) {
        return Err(format!("the replays ended after {took:?}"));
    }
    // Once more: at once, whatever it tells.
    let _ = replay.launch(rank.stream);
    let _ = rank.synchronize();
    if rank.rank > 0 {
        // SAFETY: a living handle.
        ok(unsafe { ncclCommAbort(rank.comm) })?;
    }
    drop(replay);
    rank.upload(memory.at, &words(5, COUNT))?;
    rank.expect(memory.part(0), &words(5, COUNT))
}
