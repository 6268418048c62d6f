//! The clock of all code that waits for peers: the system's clock, or one that a simulation
//! advances.

use std::cell::Cell;
use std::time::Instant;

thread_local! {
    static SIMULATED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the current time of this thread's clock.
pub fn now() -> Instant {
    SIMULATED.get().unwrap_or_else(Instant::now)
}

/// Advances this thread's clock, which from the first call on stands still between calls. For
/// simulations.
#[cfg(feature = "testing")]
pub fn advance(by: std::time::Duration) {
    SIMULATED.set(Some(now() + by));
}
