//! Options of one call.

use crate::failures::told;
use crate::rank::{Memory, Outcome, Rank, devices, last_error, ok, one, sum, words};
use oxccl::nccl::coll_config::{
    ncclCollConfig_t, ncclConfigExt, ncclConfigExtKey_t, ncclConfigExtValue_t,
};
use oxccl::nccl::configured::{ncclAllGatherConfig, ncclAllReduceConfig, ncclAlltoAllConfig};
use oxccl::nccl::types::{ncclDataType_t, ncclRedOp_t, ncclResult_t};
use oxccl::oxccl::event::{oxcclEventCreate, oxcclEventDestroy, oxcclEventQuery};
use oxccl::oxccl::types::{OXCCL_VENDOR_ID, oxcclCallOption_t, oxcclDeviceKind_t, oxcclEvent_t};
use oxccl_tests::number;
use oxccl_tests::sequence::Random;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

/// Lists of algorithms, of which some serve on no device.
const SELECTIONS: [&CStr; 5] = [
    c"",
    c"^one_shot",
    c"RING,TREE,NVLS,PAT",
    c"two_shot_edges,two_shot,two_shot_mapped",
    c"SYMK_ST",
];

/// Options that all ranks draw alike.
fn draw(random: &mut Random, event: oxcclEvent_t) -> ncclCollConfig_t {
    let mut config = ncclCollConfig_t { forceAlgSelection: 0, ..ncclCollConfig_t::default() };
    if random.below(2) == 0 {
        config.maxCTAs = [1, 2, 5, 16, 32][random.below(5) as usize];
    }
    if random.below(2) == 0 {
        config.CTAPolicy = random.below(3) as c_int;
    }
    if random.below(2) == 0 {
        config.launchCompletionEvent = event;
    }
    config.algSelection = SELECTIONS[random.below(5) as usize].as_ptr();
    config.userProfilerTag = random.below(3);
    config
}

/// Calls one of three collectives of integers.
fn call(
    rank: &Rank,
    kind: u64,
    count: usize,
    (from, to): (*const c_void, *mut c_void),
    config: &ncclCollConfig_t,
) -> ncclResult_t {
    let (comm, on, int) = (rank.comm, rank.stream, number(ncclDataType_t::ncclInt32 as i32));
    let op = number(ncclRedOp_t::ncclSum as i32);
    // SAFETY: the caller's memory, which has room for the blocks of all ranks.
    unsafe {
        match kind {
            0 => ncclAllReduceConfig(from, to, count, int, op, comm, on, config),
            1 => ncclAllGatherConfig(from, to, count, int, comm, on, config),
            _ => ncclAlltoAllConfig(from, to, count, int, comm, on, config),
        }
    }
}

/// Calls with options between plain ones, in one order on all ranks: the last results tell.
pub(crate) fn random(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let (most, nranks) = (400_000, rank.nranks as usize);
    let memory = Memory::new(3 * most * 4)?;
    let at = |part: usize| memory.at.wrapping_byte_add(part * most * 4);
    let (mut random, mut event) = (Random(17), null_mut());
    // SAFETY: a place for the handle.
    ok(unsafe { oxcclEventCreate(&mut event) })?;
    let scale: i32 = (1..=rank.nranks).sum();
    for round in 0..60 {
        rank.upload(at(0), &words(rank.rank + 1, most))?;
        for _ in 0..30 {
            let power = 1usize << random.below(18);
            let count = (power + random.below(power as u64) as usize).min(most / nranks);
            let config = draw(&mut random, event);
            ok(call(rank, random.below(3), count, (at(0), at(2)), &config))?;
            if random.below(3) == 0 {
                ok(rank.call(sum(count), at(0), at(1)))?;
            }
        }
        let (count, config) =
            (1 + random.below(most as u64 - 1) as usize, draw(&mut random, event));
        ok(call(rank, 0, count, (at(0), at(1)), &config))?;
        rank.synchronize()?;
        // SAFETY: a living handle.
        ok(unsafe { oxcclEventQuery(event) })?;
        if rank.download(at(1), count * 4)? != words(scale, count) {
            return Err(format!("the sum of {count} after {round} rounds is wrong"));
        }
    }
    // SAFETY: as above.
    ok(unsafe { oxcclEventDestroy(event) })?;
    deadline(rank, (at(0), at(1)))?;
    rank.leave()
}

/// Calls a sum of 1000 integers with a deadline.
pub(crate) fn sum_until(
    rank: &Rank,
    deadline_ms: c_int,
    buffers: (*const c_void, *mut c_void),
) -> ncclResult_t {
    let option = oxcclCallOption_t::oxcclOptionDeadlineMs as c_int;
    let key = ncclConfigExtKey_t { vendorId: OXCCL_VENDOR_ID, optionId: option };
    let val = ncclConfigExtValue_t { i: deadline_ms };
    let mut ext = ncclConfigExt { next: null_mut(), key, val };
    let config = ncclCollConfig_t { ext: &mut ext, ..ncclCollConfig_t::default() };
    call(rank, 0, 1000, buffers, &config)
}

/// A call with a deadline, which a GPU refuses.
fn deadline(rank: &Rank, buffers: (*const c_void, *mut c_void)) -> Outcome {
    let called = sum_until(rank, 60_000, buffers);
    if devices().0 == oxcclDeviceKind_t::oxcclDeviceHost {
        ok(called)?;
        return rank.synchronize();
    }
    match called {
        ncclResult_t::ncclInvalidUsage if last_error().contains("no deadline of its own") => Ok(()),
        other => Err(format!("{other:?}: {}", last_error())),
    }
}

/// The last rank lets fewer thread blocks work.
pub(crate) fn differing(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    let last = rank.rank + 1 == rank.nranks;
    let most = if last { 3 } else { 4 };
    let config = ncclCollConfig_t { maxCTAs: most, ..ncclCollConfig_t::default() };
    let buffers = (memory.at.cast_const(), memory.at.wrapping_byte_add(1 << 19));
    // Who comes late hears of it at the call.
    let _ = call(rank, 0, 100_000, buffers, &config);
    told(rank, &["all_reduce of 100000 × int32, sum, maxCTAs 4", "maxCTAs 3"])?;
    rank.finalize()?;
    rank.end_stream()?;
    rank.end_communicator()
}
