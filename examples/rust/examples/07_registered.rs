//! Buffers that the other ranks read and write in place. `oxccl run -n 4 07_registered`

use oxccl::{Buffer, Comm};
use oxccl_examples::{Outcome, as_rank};
use std::process::ExitCode;

const EACH: usize = 1 << 16;

fn gather(comm: &Comm) -> Outcome<bool> {
    let mut all = Buffer::<i32>::new(comm.size() * EACH)?;
    let first = comm.rank() * EACH;
    for (i, x) in all[first..first + EACH].iter_mut().enumerate() {
        *x = (first + i) as i32;
    }
    // In place: this rank's part lies where it belongs.
    comm.all_gather_in_place(&mut all)?;
    Ok(all.iter().copied().eq(0..all.len() as i32))
}

fn main() -> ExitCode {
    as_rank("gathered numbers", gather)
}
