//! Buffers that the other ranks may read and write in place: from oxcclMemAlloc, and registered.
//! `oxccl run -n 4 07_registered`

use oxccl::nccl::collectives::ncclAllGather;
use oxccl::nccl::types::ncclDataType_t;
use oxccl::nccl::window::{ncclCommDeregister, ncclCommRegister};
use oxccl_examples::{Outcome, Rank, check, verdict};
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::ptr::null_mut;

const EACH: usize = 1 << 16;

fn gather(r: &Rank<i32>) -> Outcome<bool> {
    let first = r.rank as usize * EACH;
    let (int, mut handle) = (MaybeUninit::new(ncclDataType_t::ncclInt32), null_mut());
    // Once, for all calls to come.
    // SAFETY: the memory is deregistered before it is freed.
    check(unsafe { ncclCommRegister(r.comm, r.x.cast(), r.len * size_of::<i32>(), &mut handle) })?;
    let part: Vec<i32> = (first..first + EACH).map(|i| i as i32).collect();
    r.put(first, &part)?;
    // In place: this rank's part lies where it belongs.
    // SAFETY: there is a part for each rank, until the stream is synchronized.
    unsafe {
        let own = r.x.add(first).cast();
        check(ncclAllGather(own, r.x.cast(), EACH, int, r.comm, r.stream))?;
    }
    let mut all = vec![-1; r.len];
    r.get(0, &mut all)?;
    // SAFETY: the handle is the registration's own.
    check(unsafe { ncclCommDeregister(r.comm, handle) })?;
    Ok(all.into_iter().eq(0..(r.len as i32)))
}

fn main() -> ExitCode {
    match Rank::from_env(|n| n as usize * EACH) {
        Ok(r) => verdict(gather(&r), r.rank, r.nranks, "gathered numbers"),
        Err(error) => verdict(Err(error), 0, 1, "start"),
    }
}
