//! The operations that the entries of a stream perform for a communicator.

use super::{Call, OneSided, Programs, Transfers};
use std::sync::Arc;

/// An operation of a communicator: one entry of a stream, and one number in the communicator's
/// order of operations.
#[derive(Clone)]
pub enum Operation {
    /// A collective, with the programs that were chosen for it.
    Collective(Arc<Programs>, Call),
    /// Sends and receives that run together.
    Exchange(Arc<Transfers>),
    /// A one-sided operation.
    OneSided(Arc<OneSided>),
}

impl Operation {
    /// Returns whether the operation only waits for peers, and gives them nothing.
    pub fn only_waits(&self) -> bool {
        matches!(self, Operation::OneSided(item) if item.only_waits())
    }

    /// Returns the name of the operation.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::Collective(_, call) => call.spec.collective.name(),
            Operation::Exchange(transfers) => transfers.operation,
            Operation::OneSided(item) => item.name(),
        }
    }
}

impl From<Transfers> for Operation {
    fn from(transfers: Transfers) -> Self {
        Operation::Exchange(Arc::new(transfers))
    }
}

impl From<OneSided> for Operation {
    fn from(item: OneSided) -> Self {
        Operation::OneSided(Arc::new(item))
    }
}
