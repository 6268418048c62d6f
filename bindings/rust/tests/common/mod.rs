//! Ranks as threads of this process, and data that every rank can compute for all ranks.

use oxccl::{Comm, Id, Result};

/// Runs a function as every rank of a new communicator; returns the results by rank.
#[allow(dead_code, reason = "ranks on GPUs are made otherwise")]
pub(crate) fn on_ranks<T: Send>(size: usize, run: impl Fn(Comm) -> T + Sync) -> Vec<T> {
    let id = Id::new().expect("an id");
    let run = &run;
    std::thread::scope(|threads| {
        let rank = |rank| move || run(Comm::from_rank(rank, size, id).expect("a communicator"));
        let ranks: Vec<_> = (0..size).map(|r| threads.spawn(rank(r))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// Returns a number that looks random (SplitMix64), for a seed of any numbers.
#[allow(dead_code, reason = "not all tests have random data")]
pub(crate) fn random(seed: &[usize]) -> u64 {
    seed.iter().fold(0x0cc1, |state: u64, &number| {
        let mut z = (state ^ number as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Expects an error; returns its text.
#[allow(dead_code, reason = "not all tests expect errors")]
pub(crate) fn text<T>(outcome: Result<T>) -> String {
    outcome.err().expect("an error").to_string()
}
