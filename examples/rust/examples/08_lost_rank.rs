//! The last rank vanishes; the others learn which one it was and go on without it:
//! `oxccl run -n 4 08_lost_rank`

use oxccl::nccl::children::ncclCommShrink;
use oxccl::nccl::collectives::ncclAllReduce;
use oxccl::nccl::types::{NCCL_SHRINK_ABORT, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use oxccl::oxccl::info::oxcclCommLastError;
use oxccl::oxccl::types::oxcclErrorInfo_t;
use oxccl_examples::{Outcome, Rank, check, verdict};
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::ptr::null_mut;

/// The number of ranks by an all-reduce.
fn count(r: &Rank<i32>) -> Outcome<i32> {
    r.put(0, &[1])?;
    let int = MaybeUninit::new(ncclDataType_t::ncclInt32);
    let sum = MaybeUninit::new(ncclRedOp_t::ncclSum);
    // SAFETY: the buffer has an element, until the stream is synchronized.
    check(unsafe { ncclAllReduce(r.x.cast(), r.x.cast(), 1, int, sum, r.comm, r.stream) })?;
    let mut ranks = [0];
    r.get(0, &mut ranks)?;
    Ok(ranks[0])
}

fn survive(r: &Rank<i32>) -> Outcome<bool> {
    if r.nranks < 2 {
        return Err("needs two ranks or more".to_owned());
    }
    let whole = count(r)? == r.nranks;
    if r.rank == r.nranks - 1 {
        // Without a word to anyone.
        std::process::exit(0);
    }
    while count(r).is_ok() {}
    // SAFETY: a structure of numbers and characters may be zero; its size is told, and all places
    // are valid.
    let rest = unsafe {
        let mut error: oxcclErrorInfo_t = std::mem::zeroed();
        error.size = size_of::<oxcclErrorInfo_t>();
        check(oxcclCommLastError(r.comm, &mut error))?;
        let last = error.peer == r.nranks - 1;
        if error.code != ncclResult_t::ncclRemoteError as i32 || !last {
            return Err(format!("rank {} is blamed", error.peer));
        }
        let (mut comm, flags) = (null_mut(), NCCL_SHRINK_ABORT);
        check(ncclCommShrink(r.comm, &mut error.peer, 1, &mut comm, null_mut(), flags))?;
        Rank::of(comm, |_| 1)?
    };
    Ok(whole && count(&rest)? == r.nranks - 1)
}

fn main() -> ExitCode {
    match Rank::from_env(|_| 1) {
        Ok(r) => verdict(survive(&r), r.rank, r.nranks, "count of those who are left"),
        Err(error) => verdict(Err(error), 0, 1, "start"),
    }
}
