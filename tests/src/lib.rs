//! What the tests across crates share: starting ranks with deadlines, and random sequences.

pub mod c;
pub mod deterministic;
pub mod hostile;
pub mod job;
pub mod mismatch;
pub mod network;
pub mod registered;
pub mod relay;
pub mod sequence;
pub mod simulation;
pub mod stuck;
pub mod vcollectives;
pub mod windows;
pub mod world;

use oxccl_runtime::comm::Communicator;
use oxccl_runtime::device::host::endpoint::Endpoint;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Skips a test with a reason, or fails it where `OXCCL_TEST_REQUIRE` names what is missing (or
/// says `all`).
pub fn missing(what: &str, reason: &str) {
    let required = std::env::var("OXCCL_TEST_REQUIRE").unwrap_or_default();
    let listed = required.split(',').any(|r| r == what || r == "all");
    assert!(!listed, "OXCCL_TEST_REQUIRE={required}, but {what} is missing: {reason}");
    println!("skipped: {what} is missing: {reason}");
}

/// An enumerator, or what is none, as C passes it.
pub fn number<E>(value: i32) -> MaybeUninit<E> {
    assert_eq!(size_of::<E>(), size_of::<i32>());
    let mut out = MaybeUninit::<E>::uninit();
    // SAFETY: as large as an int.
    unsafe { out.as_mut_ptr().cast::<i32>().write(value) };
    out
}

/// The endpoint of a communicator in host memory.
pub fn endpoint(comm: &Communicator) -> &Arc<Endpoint> {
    comm.executor().host().expect("a communicator in host memory")
}
