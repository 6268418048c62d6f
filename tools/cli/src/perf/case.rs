//! A row of the table: what the ranks call, and what has to come out.

use super::options::Kind;
use super::report::Place;
use oxccl_plan::{Collective, DataType, ReduceOp, Spec};

/// The parameters of one row of the table.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) kind: Kind,
    pub(super) spec: Spec,
    pub(super) dtype: DataType,
    pub(super) op: ReduceOp,
    /// Elements per block.
    pub(super) count: u64,
    /// The size that the row shows: that of the larger buffer.
    pub(super) bytes: u64,
    /// The ranks of `sendrecv_pairs` that exchange while the others wait; without this all do.
    pub(super) pair: Option<[u32; 2]>,
}

impl Case {
    pub(super) fn new(
        kind: Kind,
        nranks: u32,
        root: u32,
        dtype: DataType,
        op: ReduceOp,
        bytes: u64,
    ) -> Self {
        // Sends and receives move one block like a broadcast does.
        let spec = Spec::new(kind.collective().unwrap_or(Collective::AllReduce), nranks, root);
        let blocks = u64::from(spec.input_blocks(root).max(spec.output_blocks(root)));
        let parts = kind.messages();
        let count = bytes / dtype.size() as u64 / blocks / parts * parts;
        let bytes = count * blocks * dtype.size() as u64;
        Self { kind, spec, dtype, op, count, bytes, pair: None }
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.count as usize * self.dtype.size()
    }

    /// Returns nccl-tests' factor from algorithm to bus bandwidth.
    pub(super) fn bus_factor(&self) -> f64 {
        let n = f64::from(self.spec.nranks);
        match self.kind {
            Kind::AllReduce => 2.0 * (n - 1.0) / n,
            Kind::AllGather
            | Kind::ReduceScatter
            | Kind::AllToAll
            | Kind::Gather
            | Kind::Scatter => (n - 1.0) / n,
            _ => 1.0,
        }
    }

    /// Returns whether a rank does anything.
    pub(super) fn has_part(&self, rank: u32) -> bool {
        self.pair.is_none_or(|pair| pair.contains(&rank))
    }

    /// Returns the ranks that a rank sends to and receives from.
    pub(super) fn peers(&self, rank: u32) -> (u32, u32) {
        let n = self.spec.nranks;
        if let Some([a, b]) = self.pair {
            return (a + b - rank, a + b - rank);
        }
        match self.kind {
            Kind::SendRecvPairs => (rank ^ 1, rank ^ 1),
            _ => ((rank + 1) % n, (rank + n - 1) % n),
        }
    }

    /// Returns the spec of the expected result. Sends and receives must leave at a rank the input
    /// of the rank that it receives from.
    pub(super) fn expected_spec(&self, rank: u32) -> Spec {
        if self.kind.collective().is_some() {
            return self.spec;
        }
        Spec::new(Collective::Broadcast, self.spec.nranks, self.peers(rank).1)
    }

    /// Returns whether the operation exists out of place or in place: sends and receives have no
    /// form in place.
    pub(super) fn has(&self, place: Place) -> bool {
        place == Place::Out || self.kind.collective().is_some()
    }
}
