//! The frame of the examples: a rank's part of the communicator, and the verdict.

use oxccl::Comm;
use std::error::Error;
use std::process::ExitCode;

/// The result of what can fail.
pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Runs an example as one of the ranks that oxccl run, mpirun, srun or torchrun started; returns
/// the program's status. Blocks for the other ranks.
pub fn as_rank(what: &str, example: impl FnOnce(&Comm) -> Outcome<bool>) -> ExitCode {
    match Comm::from_env() {
        Ok(comm) => verdict(example(&comm), comm.rank(), comm.size(), what),
        Err(error) => verdict(Err(error.into()), 0, 1, "start"),
    }
}

/// Says whether the result is right; returns the program's status.
pub fn verdict(outcome: Outcome<bool>, rank: usize, size: usize, what: &str) -> ExitCode {
    let right = matches!(outcome, Ok(true));
    let word = match outcome {
        Ok(true) => "verified".to_owned(),
        Ok(false) => "WRONG".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("rank {rank} of {size}: {what} {word}");
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
