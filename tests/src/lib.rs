//! What the tests across crates share: starting ranks with deadlines, and random sequences.

pub mod c;
pub mod deterministic;
pub mod hostile;
pub mod job;
pub mod mismatch;
pub mod sequence;
pub mod simulation;
pub mod windows;

/// Skips a test with a reason, or fails it where `OXCCL_TEST_REQUIRE` names what is missing (or
/// says `all`).
pub fn missing(what: &str, reason: &str) {
    let required = std::env::var("OXCCL_TEST_REQUIRE").unwrap_or_default();
    let listed = required.split(',').any(|r| r == what || r == "all");
    assert!(!listed, "OXCCL_TEST_REQUIRE={required}, but {what} is missing: {reason}");
    println!("skipped: {what} is missing: {reason}");
}
