//! An all-reduce is captured once and launched many times: `oxccl run -n 4 06_graph`

use oxccl::{Comm, ReduceOp, Stream};
use oxccl_examples::{Outcome, as_rank};
use std::process::ExitCode;

fn launches(comm: &Comm) -> Outcome<bool> {
    let mut x = [1];
    Stream::new()?.scope(|s| {
        // Noted, not done.
        let graph = s.capture(|| comm.all_reduce_in_place_on(s, &mut x, ReduceOp::Sum))?;
        (0..10).try_for_each(|_| graph.launch())
    })?;
    Ok(x[0] == (comm.size() as u64).pow(10))
}

fn main() -> ExitCode {
    as_rank("ten launches", launches)
}
