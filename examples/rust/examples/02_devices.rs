//! One process has many ranks, whose calls one thread makes together. `02_devices`

use oxccl::{Comm, ReduceOp, group};
use oxccl_examples::{Outcome, verdict};
use std::process::ExitCode;

const RANKS: usize = 4;

fn sums() -> Outcome<bool> {
    let comms = Comm::all_in_process(RANKS)?;
    let mut x: Vec<_> = comms.iter().map(|comm| [comm.rank() as i32 + 1]).collect();
    // One thread makes the calls of all ranks: they belong together.
    group(|g| {
        let mut both = comms.iter().zip(&mut x);
        both.try_for_each(|(comm, x)| comm.all_reduce_in_place_on(g, x, ReduceOp::Sum))
    })?;
    let sum = RANKS * (RANKS + 1) / 2;
    Ok(x == [[sum as i32]; RANKS])
}

fn main() -> ExitCode {
    verdict(sums(), 0, 1, "sums on all devices")
}
