//! The clock of everything that waits for peers: the system's, or one that a simulation moves.

use std::cell::Cell;
use std::time::Instant;

thread_local! {
    static SIMULATED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time now, as this thread's waiting sees it.
pub fn now() -> Instant {
    SIMULATED.get().unwrap_or_else(Instant::now)
}

/// Moves this thread's clock on; from the first call on it stands still in between. For
/// simulations.
#[cfg(feature = "testing")]
pub fn advance(by: std::time::Duration) {
    SIMULATED.set(Some(now() + by));
}
