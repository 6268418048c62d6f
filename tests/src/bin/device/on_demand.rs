//! The memory that only large operations need comes with the first of them.

use crate::failures::{abort_now, hear, told, total};
use crate::rank::{
    Call, Memory, Outcome, Rank, Replay, choose, group, ok, one, sum, unique_id, words,
};
use oxccl::nccl::comm::ncclCommInitRank;
use oxccl::nccl::lifetime::ncclCommMemStats;
use oxccl::nccl::types::ncclCommMemStat_t::ncclStatGpuMemTotal;
use oxccl::oxccl::launch::oxcclCommSetTimeout;
use oxccl::oxccl::types::oxcclCaptureMode_t::*;
use oxccl_plan::{Collective, Spec};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
/// Words of what travels in chunks: between two ranks, slices of more than 8 MiB; among more,
/// slices of more than 2 MiB and messages of more than 32 MiB.
const LARGE: usize = 10 * MIB;

/// Bytes of memory of the communicator's device.
pub(crate) fn bytes(rank: &Rank) -> Outcome<u64> {
    let mut bytes = 0;
    // SAFETY: a place for the number.
    ok(unsafe { ncclCommMemStats(rank.comm, MaybeUninit::new(ncclStatGpuMemTotal), &mut bytes) })?;
    Ok(bytes)
}

/// A communicator of up to four GPUs takes at most 4 MiB of each until something large is called,
/// then 16, whatever is called.
pub(crate) fn grows(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let data = Memory::new(2 * 64 * MIB)?;
    let check = |what: &str, most_mib: u64| match bytes(rank)? {
        found if found > most_mib << 20 => Err(format!("{found} bytes {what}")),
        found => Ok(found),
    };
    let everything = |bytes: usize| {
        for collective in Collective::ALL {
            let spec = Spec::new(collective, rank.nranks as u32, 0);
            let blocks = spec.input_blocks(0).max(spec.output_blocks(0)) as usize;
            let call = Call { collective, ..sum(bytes / blocks / 4) };
            ok(rank.call(call, data.at, data.part(64 * MIB)))?;
        }
        let (next, before) = rank.neighbours();
        group(|| {
            ok(rank.message(true, data.at, bytes, next))?;
            ok(rank.message(false, data.part(64 * MIB), bytes, before))
        })?;
        rank.synchronize()
    };
    let first = check("at first", 4)?;
    everything(256 << 10)?;
    let small = check("after small operations", 4)?;
    if small != first {
        return Err(format!("{first} bytes at first, and {small} after small operations"));
    }
    everything(16 * MIB)?;
    check("after operations of 16 MiB", 16)?;
    everything(64 * MIB)?;
    let large = check("after operations of 64 MiB", 16)?;
    match large > small {
        true => rank.leave(),
        false => Err(format!("still {large} bytes after operations of 64 MiB")),
    }
}

/// Before anything else two ranks exchange large messages; then all sum.
pub(crate) fn pairs_first(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let bytes = 4 * LARGE;
    let memory = Memory::new(2 * bytes)?;
    if rank.rank < 2 {
        let peer = 1 - rank.rank;
        rank.upload(memory.at, &words(rank.rank + 7, LARGE))?;
        group(|| {
            ok(rank.message(true, memory.at, bytes, peer))?;
            ok(rank.message(false, memory.part(bytes), bytes, peer))
        })?;
        rank.synchronize()?;
        rank.expect(memory.part(bytes), &words(peer + 7, LARGE))?;
    }
    large_total(rank, &memory)?;
    rank.leave()
}

/// A large sum of all ranks, which has to be right.
fn large_total(rank: &Rank, memory: &Memory) -> Outcome {
    rank.upload(memory.at, &words(rank.rank + 1, LARGE))?;
    ok(rank.call(sum(LARGE), memory.at, memory.part(4 * LARGE)))?;
    rank.synchronize()?;
    rank.expect(memory.part(4 * LARGE), &words((1..=rank.nranks).sum(), LARGE))
}

/// In one group of one thread, small sums of one communicator and the first operation of another
/// one, which is large: the first rank must not wait for memory of the second one while a kernel
/// waits for that one.
pub(crate) fn beside_small(ranks: &[Rank]) -> Outcome {
    let id = unique_id()?;
    let mut comms = vec![null_mut(); ranks.len()];
    group(|| {
        for (rank, comm) in ranks.iter().zip(&mut comms) {
            choose(rank.rank)?;
            // SAFETY: a place for the handle.
            ok(unsafe { ncclCommInitRank(comm, rank.nranks, id, rank.rank) })?;
        }
        Ok(())
    })?;
    let mut others = Vec::new();
    for (rank, comm) in ranks.iter().zip(comms) {
        choose(rank.rank)?;
        let memory = Memory::new(8 * LARGE)?;
        rank.upload(memory.at, &words(rank.rank + 1, LARGE))?;
        others.push((Rank::with(comm, rank.nranks, rank.rank)?, memory));
    }
    group(|| {
        for (rank, (other, memory)) in ranks.iter().zip(&others) {
            let to = memory.part(4 * LARGE);
            ok(rank.call(sum(100), memory.at, to))?;
            ok(other.call(sum(LARGE - 100), memory.part(400), to.wrapping_byte_add(400)))?;
        }
        Ok(())
    })?;
    let scale = (1..=ranks.len() as i32).sum();
    for (rank, (other, memory)) in ranks.iter().zip(&others) {
        choose(rank.rank)?;
        rank.synchronize()?;
        other.synchronize()?;
        rank.expect(memory.part(4 * LARGE), &words(scale, LARGE))?;
    }
    others.iter().map(|(other, _)| other).chain(ranks).try_for_each(|rank| rank.leave())
}

/// The first operation of a communicator is large, and captured.
pub(crate) fn captured(ranks: &[Rank]) -> Outcome {
    let parent = one(ranks)?;
    let memory = Memory::new(8 * LARGE)?;
    let to = memory.part(4 * LARGE);
    for mode in [oxcclCaptureGlobal, oxcclCaptureThreadLocal, oxcclCaptureRelaxed] {
        let rank = parent.again()?;
        let (next, before) = rank.neighbours();
        let replay = Replay::capture(rank.stream, mode, || {
            ok(rank.call(sum(LARGE), memory.at, to))?;
            group(|| {
                ok(rank.message(true, to, 4 * LARGE, next))?;
                ok(rank.message(false, memory.at, 4 * LARGE, before))
            })
        })?;
        rank.all_idle()?;
        let mut expected = 1;
        rank.upload(memory.at, &words(expected, LARGE))?;
        for _ in 0..3 {
            replay.launch(rank.stream)?;
            expected *= rank.nranks;
        }
        rank.synchronize()?;
        rank.expect(memory.at, &words(expected, LARGE))?;
        rank.all_idle()?;
        drop(replay);
        rank.leave()?;
    }
    parent.leave()
}

/// The last rank leaves before anything large was called, then the others call that.
pub(crate) fn left_behind(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(8 * LARGE)?;
    total(rank, &memory)?;
    if rank.rank + 1 == rank.nranks {
        return rank.end_communicator();
    }
    let called = ok(rank.call(sum(LARGE), memory.at, memory.part(4 * LARGE)));
    let Err(text) = called.and_then(|()| rank.synchronize()) else {
        return Err("no error".to_owned());
    };
    if !text.contains("destroyed its communicator") {
        return Err(format!("another error: {text}"));
    }
    abort_now(rank)
}

/// The last rank dies before anything large was called, then the others call that.
pub(crate) fn killed(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let last = rank.nranks - 1;
    let memory = Memory::new(8 * LARGE)?;
    total(rank, &memory)?;
    if rank.rank == last {
        kill_process(getpid(), Signal::KILL).map_err(|e| e.to_string())?;
        return Err("the signal did not kill".to_owned());
    }
    // Who comes late hears of it at the call.
    let _ = ok(rank.call(sum(LARGE), memory.at, memory.part(4 * LARGE)));
    told(rank, &[&format!("rank {last}")])?;
    abort_now(rank)
}

/// The last rank is stopped before anything large was called: the others call that, wait for its
/// memory no longer than they may, and name it. Rank 0 lets it go on.
pub(crate) fn stopped(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let last = rank.nranks - 1;
    let memory = Memory::new(8 * LARGE)?;
    let own = if rank.rank == last { getpid().as_raw_nonzero().get() } else { 0 };
    rank.upload(memory.at, &words(own, 1))?;
    ok(rank.call(sum(1), memory.at, memory.at))?;
    let pid = rank.download(memory.at, 4)?;
    let pid = Pid::from_raw(i32::from_ne_bytes(pid.try_into().map_err(|_| "no number")?));
    let pid = pid.ok_or("no process")?;
    if rank.rank == last {
        kill_process(pid, Signal::STOP).map_err(|e| e.to_string())?;
        hear(rank)?;
        return abort_now(rank);
    }
    // SAFETY: a living handle.
    ok(unsafe { oxcclCommSetTimeout(rank.comm, 400_000_000) })?;
    while !is_stopped(pid)? {
        std::thread::yield_now();
    }
    let called = ok(rank.call(sum(LARGE), memory.at, memory.part(4 * LARGE)));
    let called = called.and_then(|()| rank.synchronize());
    if rank.rank == 0 {
        kill_process(pid, Signal::CONT).map_err(|e| e.to_string())?;
    }
    let Err(text) = called else { return Err("no error".to_owned()) };
    if !text.contains(&format!("rank {last}")) || !text.contains(" ms") {
        return Err(format!("not the limit: {text}"));
    }
    abort_now(rank)
}

/// Returns whether a process is stopped, by the state in its file.
fn is_stopped(pid: Pid) -> Outcome<bool> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    Ok(text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

/// The GPUs are full when the first large sum is called: all ranks are told what to do.
pub(crate) fn full(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(8 * LARGE)?;
    total(rank, &memory)?;
    let (mut taken, mut bytes) = (Vec::new(), 1 << 36);
    while bytes >= MIB {
        match Memory::foreign(bytes) {
            Ok(memory) => taken.push(memory),
            Err(_) => bytes /= 2,
        }
    }
    // Nobody frees memory before all have called.
    let called = ok(rank.call(sum(LARGE), memory.at, memory.part(4 * LARGE)));
    let told = told(rank, &["MiB of GPU memory for large calls", "leave room for it"]);
    told.map_err(|text| format!("{text}; the call: {called:?}"))?;
    rank.all_idle()?;
    drop(taken);
    abort_now(rank)
}
