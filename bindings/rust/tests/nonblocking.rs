//! Communicators that the environment makes non-blocking are ready when they are handed out.

extern crate oxccl_rs as oxccl;

mod common;

use common::on_ranks;
use oxccl::{Comm, ReduceOp, Result};

#[test]
fn communicators_are_ready_when_they_are_handed_out() -> Result<()> {
    // SAFETY: this is the only test of this process, and no other thread reads the environment.
    unsafe { std::env::set_var("NCCL_COMM_BLOCKING", "0") };
    let sum = |comm: Comm| -> Result<i32> {
        let child = comm.split(Some(0), 0)?.expect("a member");
        let mut sum = [comm.size() as i32];
        child.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        child.close()?;
        comm.close()?;
        Ok(sum[0])
    };
    assert_eq!(on_ranks(2, sum), [Ok(4), Ok(4)]);
    let all = Comm::all_in_process(3)?;
    assert!(all.iter().enumerate().all(|(rank, comm)| (comm.rank(), comm.size()) == (rank, 3)));
    Ok(())
}
