//! The sum of all ranks' numbers, on every rank: `oxccl run -n 4 01_hello`

use oxccl::nccl::collectives::ncclAllReduce;
use oxccl::nccl::types::{ncclDataType_t, ncclRedOp_t};
use oxccl_examples::{Outcome, Rank, check, verdict};
use std::mem::MaybeUninit;
use std::process::ExitCode;

const COUNT: usize = 1000;

fn sum(r: &Rank<f32>) -> Outcome<bool> {
    let mut host: Vec<f32> = (0..COUNT).map(|i| (r.rank as usize + i) as f32).collect();
    r.put(0, &host)?;
    let float = MaybeUninit::new(ncclDataType_t::ncclFloat32);
    let sum = MaybeUninit::new(ncclRedOp_t::ncclSum);
    // SAFETY: the buffer has so many elements and lives until the stream is synchronized.
    check(unsafe { ncclAllReduce(r.x.cast(), r.x.cast(), COUNT, float, sum, r.comm, r.stream) })?;
    r.get(0, &mut host)?;
    let n = r.nranks as usize;
    Ok(host.iter().enumerate().all(|(i, &x)| x == (n * (n - 1) / 2 + n * i) as f32))
}

fn main() -> ExitCode {
    match Rank::from_env(|_| COUNT) {
        Ok(r) => verdict(sum(&r), r.rank, r.nranks, "sum"),
        Err(error) => verdict(Err(error), 0, 1, "start"),
    }
}
