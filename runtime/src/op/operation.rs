//! The operations that the entries of a stream perform for a communicator.

use super::{Batch, Call, OneSided, Programs, Transfers};
use crate::error::{Error, Result};
use std::sync::Arc;

/// An operation of a communicator: one entry of a stream, and one number in the communicator's
/// order of operations.
#[derive(Clone)]
pub enum Operation {
    /// A collective, with the programs that were chosen for it.
    Collective(Arc<Programs>, Call),
    /// Collectives of a group that run together.
    Batch(Arc<Batch>),
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

    /// Returns the collectives of the operation.
    pub fn collectives(&self) -> impl Iterator<Item = (&Arc<Programs>, &Call)> {
        let (one, more) = match self {
            Operation::Collective(programs, call) => (Some((programs, call)), &[][..]),
            Operation::Batch(batch) => (None, batch.calls()),
            Operation::Exchange(_) | Operation::OneSided(_) => (None, &[][..]),
        };
        one.into_iter().chain(more.iter().map(|(programs, call)| (programs, call)))
    }

    /// Returns the number of its collectives or transfers; 0 for a one-sided operation.
    pub fn parts(&self) -> usize {
        match self {
            Operation::Exchange(transfers) => transfers.list.len(),
            operation => operation.collectives().count(),
        }
    }

    /// Makes a batch of collectives, which nothing else has yet, and another one.
    pub fn batch(&mut self, other: Self) -> Result<()> {
        let unfit = || Error::Internal { what: "a batch of other operations".to_owned() };
        let Operation::Collective(programs, call) = other else { return Err(unfit()) };
        let next = (programs, call);
        match self {
            Operation::Collective(programs, call) => {
                let batch = Batch::new((programs.clone(), *call), next);
                *self = Operation::Batch(Arc::new(batch));
            }
            Operation::Batch(batch) => Arc::get_mut(batch).ok_or_else(unfit)?.push(next),
            Operation::Exchange(_) | Operation::OneSided(_) => return Err(unfit()),
        }
        Ok(())
    }

    /// Returns the name of the operation.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::Collective(_, call) => call.spec.collective.name(),
            Operation::Batch(batch) => batch.collective().name(),
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
