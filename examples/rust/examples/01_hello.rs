//! The sum of all ranks' numbers, on every rank: `oxccl run -n 4 01_hello`

use oxccl::{Comm, ReduceOp};
use oxccl_examples::{Outcome, as_rank};
use std::process::ExitCode;

const COUNT: usize = 1000;

fn sum(comm: &Comm) -> Outcome<bool> {
    let mut x: Vec<f32> = (0..COUNT).map(|i| (comm.rank() + i) as f32).collect();
    comm.all_reduce_in_place(&mut x, ReduceOp::Sum)?;
    let n = comm.size();
    Ok(x.iter().enumerate().all(|(i, &x)| x == (n * (n - 1) / 2 + n * i) as f32))
}

fn main() -> ExitCode {
    as_rank("sum", sum)
}
