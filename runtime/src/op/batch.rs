//! Collectives of a group that run as one operation.

use super::descriptor::Descriptor;
use super::{Call, Programs};
use oxccl_plan::Collective;
use std::sync::Arc;

/// At least two collectives of one kind that a communicator carries out side by side. All ranks
/// make the same batches of a group's calls.
pub struct Batch {
    calls: Vec<(Arc<Programs>, Call)>,
}

impl Batch {
    /// Makes a batch of two calls.
    pub fn new(first: (Arc<Programs>, Call), second: (Arc<Programs>, Call)) -> Self {
        Self { calls: vec![first, second] }
    }

    /// Adds a call.
    pub fn push(&mut self, call: (Arc<Programs>, Call)) {
        self.calls.push(call);
    }

    /// Returns the calls, in their order, each with its programs.
    pub fn calls(&self) -> &[(Arc<Programs>, Call)] {
        &self.calls
    }

    /// Returns the kind of all calls.
    pub fn collective(&self) -> Collective {
        self.calls[0].1.spec.collective
    }

    /// Returns the bytes of one block of each call, in all.
    pub fn bytes(&self) -> u64 {
        self.calls.iter().map(|(_, call)| call.count * call.dtype.size() as u64).sum()
    }

    /// Returns the descriptor of the batch.
    pub fn descriptor(&self) -> Descriptor {
        let calls = self.calls.iter().map(|(programs, call)| programs.descriptor(call));
        Descriptor::batch(self.calls[0].1.dtype, self.collective(), calls)
    }
}
