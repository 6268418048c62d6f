//! What goes wrong is told, on all ranks and in time.

use crate::rank::{Call, Memory, Outcome, Rank, last_error, ok};
use oxccl::nccl::lifetime::ncclCommAbort;
use oxccl::nccl::types::ncclResult_t;
use oxccl::oxccl::launch::oxcclCommSetTimeout;
use oxccl_plan::{Collective, DataType, ReduceOp};
use std::time::{Duration, Instant};

fn sum(count: usize) -> Call {
    let (collective, dtype, op) = (Collective::AllReduce, DataType::Int32, ReduceOp::Sum);
    Call { collective, count, dtype, op, root: 0 }
}

fn one(ranks: &[Rank]) -> Outcome<&Rank> {
    ranks.first().ok_or_else(|| "no rank".to_owned())
}

fn abort_now(rank: &Rank) -> Outcome {
    let start = Instant::now();
    // SAFETY: a living handle.
    ok(unsafe { ncclCommAbort(rank.comm) })?;
    match start.elapsed() {
        long if long > Duration::from_secs(2) => Err(format!("abort took {long:?}")),
        _ => Ok(()),
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

/// Rank 0 aborts while the others wait for it; they hear of it.
pub(crate) fn abort(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    ok(rank.call(sum(100), memory.at, memory.at))?;
    let first = rank.synchronize();
    if rank.rank == 0 {
        return first.and_then(|()| abort_now(rank));
    }
    // Rank 0 may be gone before this one has the result.
    if let Some(text) = first.err().filter(|text| !text.contains("ncclCommAbort")) {
        return Err(text);
    }
    let start = Instant::now();
    let heard = ok(rank.call(sum(100_000), memory.at, memory.at)).err();
    if let Some(text) = heard.filter(|text| !text.contains("ncclCommAbort")) {
        return Err(text);
    }
    while rank.async_error() == ncclResult_t::ncclSuccess {
        if start.elapsed() > Duration::from_secs(20) {
            return Err("nobody told of the abort".to_owned());
        }
        std::thread::yield_now();
    }
    let _ = rank.synchronize();
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
        if !text.contains("200 ms") && !text.contains("waited") {
            return Err(format!("not a deadline: {text}, {}", last_error()));
        }
    } else {
        let start = Instant::now();
        while rank.async_error() == ncclResult_t::ncclSuccess {
            if start.elapsed() > Duration::from_secs(20) {
                return Err("nobody told of the limit".to_owned());
            }
            std::thread::yield_now();
        }
    }
    abort_now(rank)
}
