//! An all-reduce is captured once and launched many times: `oxccl run -n 4 06_graph`

use oxccl::nccl::collectives::ncclAllReduce;
use oxccl::nccl::types::{ncclDataType_t, ncclRedOp_t};
use oxccl::oxccl::graph::{
    oxcclGraphDestroy, oxcclGraphInstantiate, oxcclGraphLaunch, oxcclStreamBeginCapture,
    oxcclStreamEndCapture,
};
use oxccl::oxccl::types::oxcclCaptureMode_t;
use oxccl_examples::{Outcome, Rank, check, verdict};
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::ptr::null_mut;

fn launches(r: &Rank<i64>) -> Outcome<bool> {
    r.put(0, &[1])?;
    let (int, sum) = (ncclDataType_t::ncclInt64, ncclRedOp_t::ncclSum);
    let (int, sum) = (MaybeUninit::new(int), MaybeUninit::new(sum));
    let mode = MaybeUninit::new(oxcclCaptureMode_t::oxcclCaptureThreadLocal);
    let (mut graph, mut exec) = (null_mut(), null_mut());
    // SAFETY: the buffer has an element, until the stream is synchronized; all places are valid.
    unsafe {
        check(oxcclStreamBeginCapture(r.stream, mode))?;
        // Noted, not done.
        check(ncclAllReduce(r.x.cast(), r.x.cast(), 1, int, sum, r.comm, r.stream))?;
        check(oxcclStreamEndCapture(r.stream, &mut graph))?;
        check(oxcclGraphInstantiate(&mut exec, graph))?;
        for _ in 0..10 {
            check(oxcclGraphLaunch(exec, r.stream))?;
        }
    }
    let mut got = [0];
    r.get(0, &mut got)?;
    // SAFETY: both are this rank's own.
    check(unsafe { oxcclGraphDestroy(graph, exec) })?;
    Ok(got[0] == i64::from(r.nranks).pow(10))
}

fn main() -> ExitCode {
    match Rank::from_env(|_| 1) {
        Ok(r) => verdict(launches(&r), r.rank, r.nranks, "ten launches"),
        Err(error) => verdict(Err(error), 0, 1, "start"),
    }
}
