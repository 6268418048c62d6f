//! Ranks and sizes come from mpirun; MPI itself is not needed: `mpirun -n 4 03_mpi`

use oxccl::nccl::collectives::ncclAllGather;
use oxccl::nccl::types::ncclDataType_t;
use oxccl_examples::{Outcome, Rank, check, verdict};
use std::mem::MaybeUninit;
use std::process::ExitCode;

fn gather(r: &Rank<i32>) -> Outcome<bool> {
    // As mpirun of Open MPI numbers them.
    let told = std::env::var("OMPI_COMM_WORLD_RANK").map_err(|e| e.to_string())?;
    let told: i32 = told.parse().map_err(|e| format!("{told}: {e}"))?;
    r.put(r.rank as usize, &[told])?;
    let int = MaybeUninit::new(ncclDataType_t::ncclInt32);
    // SAFETY: there is an element for each rank, until the stream is synchronized.
    unsafe {
        let own = r.x.add(r.rank as usize).cast();
        check(ncclAllGather(own, r.x.cast(), 1, int, r.comm, r.stream))?;
    }
    let mut ranks = vec![-1; r.nranks as usize];
    r.get(0, &mut ranks)?;
    Ok(told == r.rank && ranks.into_iter().eq(0..r.nranks))
}

fn main() -> ExitCode {
    match Rank::from_env(|n| n as usize) {
        Ok(r) => verdict(gather(&r), r.rank, r.nranks, "ranks"),
        Err(error) => verdict(Err(error), 0, 1, "start"),
    }
}
