//! Buffers that peers map: used where they lie once all ranks can, and right all along.

use crate::rank::{Call, Memory, Outcome, Rank, Replay, devices, ok, one, sum, words};
use oxccl::nccl::window::{ncclCommDeregister, ncclCommRegister};
use oxccl::oxccl::types::oxcclCaptureMode_t::{oxcclCaptureGlobal, oxcclCaptureThreadLocal};
use oxccl::oxccl::types::oxcclDeviceKind_t;
use oxccl_plan::select::{Policy, choose};
use oxccl_plan::{Carrier, Collective, Spec};
use oxccl_runtime::device::usual_topology;
use oxccl_tests::sequence::Random;
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// Elements of a call: large enough to be worth an agreement.
const COUNT: usize = 600_000;
const BYTES: usize = COUNT * 4;
/// How long buffers may take until all ranks map them.
const PATIENCE: Duration = Duration::from_secs(30);

/// Fills the input of a round, runs it, and compares what comes out.
fn round(
    rank: &Rank,
    number: i32,
    from: *mut c_void,
    to: *mut c_void,
    run: impl FnOnce() -> Outcome,
) -> Outcome {
    let own = (rank.rank + 1) * (number + 1);
    rank.upload(to, &vec![0xa5; BYTES])?;
    rank.upload(from, &words(own, COUNT))?;
    run()?;
    let sum = (1..=rank.nranks).sum::<i32>() * (number + 1);
    rank.expect(to, &words(sum, COUNT)).map_err(|e| format!("{e} in round {number}"))
}

/// Runs rounds until operations use the buffers in place; all ranks see that in the same round.
fn until_in_place(rank: &Rank, mut run: impl FnMut(i32) -> Outcome) -> Outcome {
    let (start, before) = (Instant::now(), rank.in_place()?);
    for number in 0.. {
        run(number)?;
        if rank.in_place()? > before {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            break;
        }
    }
    Err(format!("rank {}: nothing was done in place", rank.rank))
}

fn register(rank: &Rank, at: *mut c_void, bytes: usize) -> Outcome<*mut c_void> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: a buffer that lives longer than its registration.
    ok(unsafe { ncclCommRegister(rank.comm, at, bytes, &mut handle) })?;
    Ok(handle)
}

fn deregister(rank: &Rank, handle: *mut c_void) -> Outcome {
    // SAFETY: a handle of this communicator.
    ok(unsafe { ncclCommDeregister(rank.comm, handle) })
}

/// What ncclMemAlloc gives is used in place without being asked, at other offsets on each rank.
pub(crate) fn from_library(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(3 * BYTES)?;
    rank.all_idle()?;
    let (from, to) = (memory.part(rank.rank as usize * 64), memory.part(2 * BYTES));
    let play = |number| round(rank, number, from, to, || ok(rank.call(sum(COUNT), from, to)));
    until_in_place(rank, play)?;
    let before = rank.in_place()?;
    (0..10).try_for_each(play)?;
    match rank.in_place()? - before {
        10 => as_planned(rank, from, to)?,
        some => return Err(format!("{some} of 10 calls were done in place")),
    }
    rank.leave()
}

/// Calls of all sizes are done in place where `oxccl plan` says so, and only there. The buffers are
/// mapped by all ranks.
fn as_planned(rank: &Rank, from: *mut c_void, to: *mut c_void) -> Outcome {
    let (nranks, is_host) = (rank.nranks as u32, devices().0 == oxcclDeviceKind_t::oxcclDeviceHost);
    let topology = usual_topology(is_host, nranks, nranks, false).map_err(|e| e.to_string())?;
    for count in [2, 1000, 16 << 10, (128 << 10) - 1, 128 << 10, COUNT] {
        let spec = Spec::new(Collective::AllReduce, nranks, 0);
        let choice = choose(spec, count as u64 * 4, &topology, Policy::default());
        let carrier = choice.map(|c| c.mapped.unwrap_or(c.any_memory).carrier);
        let carrier = carrier.ok_or("no plan")?;
        let planned = matches!(carrier, Carrier::InPlace | Carrier::RemoteRead);
        let before = rank.in_place()?;
        rank.upload(from, &words(rank.rank + 1, count))?;
        ok(rank.call(sum(count), from, to))?;
        rank.synchronize()?;
        rank.expect(to, &words((1..=rank.nranks).sum::<i32>(), count))?;
        if rank.in_place()? - before != u64::from(planned) {
            return Err(format!("{count} elements are not moved by {}", carrier.name()));
        }
    }
    Ok(())
}

/// What came from elsewhere is used in place while it is registered on all ranks: sub-buffers of
/// one registration.
pub(crate) fn foreign(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    registered_from(rank, Memory::foreign(4 * BYTES)?)
}

/// The same of an allocator that grows: a registration lies across its pieces.
pub(crate) fn in_pieces(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    registered_from(rank, Memory::in_pieces(4 * BYTES)?)
}

fn registered_from(rank: &Rank, memory: Memory) -> Outcome {
    rank.all_idle()?;
    let (from, to) = (memory.part((rank.rank as usize + 1) * 256), memory.part(3 * BYTES));
    let play = |number| round(rank, number, from, to, || ok(rank.call(sum(COUNT), from, to)));
    for again in 0..3 {
        // All but one: nothing changes but that all must see it.
        let handle =
            (rank.rank != again % rank.nranks).then(|| register(rank, memory.at, 4 * BYTES));
        let handle = handle.transpose()?;
        (0..5).try_for_each(play)?;
        let whole = register(rank, memory.at, 4 * BYTES)?;
        until_in_place(rank, play)?;
        for handle in handle.into_iter().chain([whole]) {
            deregister(rank, handle)?;
        }
        (0..5).try_for_each(play)?;
    }
    // No peer reads it any more.
    rank.meet(memory.at)?;
    rank.leave()
}

/// Bytes for [`a_few`].
pub(crate) const ROOM: usize = 2 * BYTES;

/// A few calls with registered memory from elsewhere.
pub(crate) fn a_few(rank: &Rank, memory: &Memory) -> Outcome {
    let handle = register(rank, memory.at, ROOM)?;
    let (from, to) = (memory.at, memory.part(BYTES));
    for number in 0..5 {
        round(rank, number, from, to, || ok(rank.call(sum(COUNT), from, to)))?;
    }
    deregister(rank, handle)
}

/// Buffers of captured operations are mapped while their graph lives.
pub(crate) fn captured(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    for again in 0..3 {
        let memory = Memory::foreign(2 * BYTES)?;
        rank.all_idle()?;
        let (from, to) = (memory.at, memory.part(BYTES));
        let call = || ok(rank.call(sum(COUNT), from, to));
        let replay = Replay::capture(rank.stream, oxcclCaptureThreadLocal, call)?;
        let launch = |number| round(rank, number + again, from, to, || replay.launch(rank.stream));
        until_in_place(rank, launch)?;
        (0..20).try_for_each(launch)?;
        drop(replay);
        (0..3).try_for_each(|number| round(rank, number, from, to, call))?;
        rank.all_idle()?;
        drop(memory);
        rank.all_idle()?;
    }
    rank.leave()
}

/// Memory that is freed and allocated again at the same place is other memory.
pub(crate) fn reused(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let mut random = Random(rank.rank as u64);
    let mut kept = None;
    for number in 0..60 {
        let ours = random.below(2) == 0;
        let make = |bytes| if ours { Memory::new(bytes) } else { Memory::foreign(bytes) };
        let memory = make(2 * BYTES)?;
        rank.all_idle()?;
        let (from, to) = (memory.at, memory.part(BYTES));
        // A registration that outlives its memory must do no harm, and can be ended.
        let handle = register(rank, memory.at, 2 * BYTES)?;
        round(rank, number, from, to, || ok(rank.call(sum(COUNT), from, to)))?;
        if random.below(2) == 0 {
            deregister(rank, handle)?;
        } else if let Some(old) = kept.replace(handle) {
            deregister(rank, old)?;
        }
        rank.all_idle()?;
        // Sometimes it stays a while, and something else gets the next addresses.
        if random.below(3) == 0 {
            let other = Memory::new(BYTES)?;
            drop(memory);
            drop(other);
        } else {
            drop(memory);
        }
        rank.all_idle()?;
    }
    if let Some(old) = kept {
        deregister(rank, old)?;
    }
    rank.leave()
}

/// Kinds of memory.
const KINDS: usize = 3;

/// Whose memory, which offset, registered or not, captured or not, in place or not: each rank draws
/// for itself.
pub(crate) fn random(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let mut own = Random(1000 + rank.rank as u64);
    let mut shared = Random(5);
    let make: [fn(usize) -> Outcome<Memory>; KINDS] =
        [Memory::new, Memory::foreign, Memory::in_pieces];
    let memory = make.into_iter().map(|make| make(3 * BYTES)).collect::<Outcome<Vec<_>>>()?;
    rank.all_idle()?;
    let mut handles: [Option<*mut c_void>; KINDS] = [None; KINDS];
    for number in 0..300 {
        let of = own.below(KINDS as u64) as usize;
        match (own.below(5), handles[of]) {
            (0, None) => handles[of] = Some(register(rank, memory[of].at, 3 * BYTES)?),
            (1, Some(handle)) => {
                deregister(rank, handle)?;
                handles[of] = None;
            }
            _ => {}
        }
        let count = 1 + shared.below(COUNT as u64) as usize;
        let collective = [Collective::AllReduce, Collective::Broadcast][shared.below(2) as usize];
        let root = shared.below(rank.nranks as u64) as i32;
        let call = Call { collective, count, root, ..sum(COUNT) };
        let mut any = || &memory[own.below(KINDS as u64) as usize];
        let (from, to) = (any(), any());
        let from = from.part(own.below(2000) as usize * 4);
        let in_place = own.below(3) == 0;
        let other = to.part(2 * BYTES - own.below(2000) as usize * 4);
        let to = if in_place { from } else { other };
        let value = (rank.rank + 1) * (number + 1);
        rank.upload(to, &vec![0xa5; count * 4])?;
        rank.upload(from, &words(value, count))?;
        let run = || ok(rank.call(call, from, to));
        if own.below(3) == 0 {
            Replay::capture(rank.stream, oxcclCaptureGlobal, run)?.launch(rank.stream)?;
            rank.synchronize()?;
        } else {
            run()?;
        }
        let expected = match collective {
            Collective::Broadcast => (root + 1) * (number + 1),
            _ => (1..=rank.nranks).sum::<i32>() * (number + 1),
        };
        let checked = rank.expect(to, &words(expected, count));
        checked.map_err(|e| format!("{e} in call {number}: {call:?}"))?;
    }
    rank.leave()
}
