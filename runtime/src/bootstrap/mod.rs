//! The bootstrap, in which the ranks of a communicator find, check and come to know each other.

pub mod auth;
pub mod deadline;
pub mod descriptors;
pub mod dial;
pub mod door;
pub mod encryption;
mod handover;
pub mod id;
pub mod interface;
pub mod launch;
pub mod rendezvous;
pub mod root;
pub mod serve;
pub mod session;
pub mod wire;

pub use deadline::{Cancel, Deadline};
pub use id::{ID_BYTES, UniqueId};
pub use session::new_unique_id;

use crate::error::Result;

/// The members of a communicator in the making, which exchange blobs in rounds.
pub trait Gather {
    /// Gives every member the blobs of all, by rank. Blocks for all members, until the deadline.
    fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Returns the deadline for making the communicator.
    fn deadline(&self) -> &Deadline;
}
