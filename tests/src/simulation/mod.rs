//! Seeded histories of a communicator whose ranks live in one thread, with virtual time, a network
//! in memory, and faults.

mod history;
mod net;
mod plays;
mod standstill;
mod world;

pub use history::{Summary, run};
pub use standstill::{Standstill, stand_still};
