//! Ranks and sizes come from mpirun; MPI itself is not needed: `mpirun -n 4 03_mpi`

use oxccl::Comm;
use oxccl_examples::{Outcome, as_rank};
use std::process::ExitCode;

fn gather(comm: &Comm) -> Outcome<bool> {
    // As mpirun of Open MPI numbers them.
    let told: u64 = std::env::var("OMPI_COMM_WORLD_RANK")?.parse()?;
    let mut ranks = vec![0; comm.size()];
    comm.all_gather(&[told], &mut ranks)?;
    Ok(told == comm.rank() as u64 && ranks.into_iter().eq(0..comm.size() as u64))
}

fn main() -> ExitCode {
    as_rank("ranks", gather)
}
