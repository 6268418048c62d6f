//! The last rank vanishes; the others learn which one it was and go on without it:
//! `oxccl run -n 4 08_lost_rank`

use oxccl::{Code, Comm, ReduceOp, Shrink};
use oxccl_examples::{Outcome, as_rank};
use std::process::ExitCode;

/// The number of ranks by an all-reduce.
fn count(comm: &Comm) -> oxccl::Result<usize> {
    let mut ranks = [1];
    comm.all_reduce_in_place(&mut ranks, ReduceOp::Sum)?;
    Ok(ranks[0] as usize)
}

fn survive(comm: &Comm) -> Outcome<bool> {
    let last = comm.size() - 1;
    if last == 0 {
        return Err("needs two ranks or more".into());
    }
    let whole = count(comm)? == comm.size();
    if comm.rank() == last {
        // Without a word to anyone.
        std::process::exit(0);
    }
    let error = loop {
        if let Err(error) = count(comm) {
            break error;
        }
    };
    if (error.code(), error.peer()) != (Code::Remote, Some(last)) {
        return Err(error.into());
    }
    let rest = comm.shrink(&[last], Shrink::Abort)?;
    Ok(whole && count(&rest)? == last)
}

fn main() -> ExitCode {
    as_rank("count of those who are left", survive)
}
