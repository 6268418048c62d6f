//! Estimates of the time that calls take, by the cost model. Nothing is launched.

use super::Communicator;
use crate::op::{Bound, Call, OneSided, Operation, Programs, Put, Transfer};
use oxccl_plan::DataType;
use oxccl_plan::select::{self, Memory};

impl Communicator {
    /// Returns the time of an operation in µs.
    pub fn estimate_operation_us(&self, operation: &Operation) -> f64 {
        match operation {
            Operation::Collective(..) | Operation::Batch(_) => {
                let calls = operation.collectives();
                calls.map(|(programs, call)| self.estimate_us(programs, call)).sum()
            }
            Operation::Exchange(transfers) => self.estimate_exchange_us(&transfers.list),
            Operation::OneSided(item) => self.estimate_one_sided_us(item),
        }
    }

    /// Returns the time of a collective in µs.
    fn estimate_us(&self, programs: &Programs, call: &Call) -> f64 {
        let bytes = call.count * call.dtype.size() as u64;
        let (bound, memory) = self.likely(programs, call);
        let inputs = u64::from(call.spec.input_blocks(self.rank()));
        let scaled_bytes = call.scale.map_or(0, |_| inputs * bytes);
        let scale_us = self.topology.model.scale_us(scaled_bytes);
        select::cost_us(&bound.plan, bytes, &self.topology, memory) + scale_us
    }

    /// Returns the plan that runs when the peers' buffers lie in the same kind of memory as this
    /// rank's, and that kind.
    pub(crate) fn likely<'a>(&self, programs: &'a Programs, call: &Call) -> (&'a Bound, Memory) {
        let (spec, rank) = (call.spec, self.rank());
        let bytes = call.count * call.dtype.size() as u64;
        let (inputs, outputs) = (spec.input_blocks(rank), spec.output_blocks(rank));
        let buffers = [(call.input, inputs), (call.output.cast_const(), outputs)];
        let is_mapped = |(ptr, blocks): (*const u8, u32)| {
            let len = u64::from(blocks) * bytes;
            blocks == 0 || self.executor.is_mapped(ptr, len as usize)
        };
        let Some(mapped) = &programs.mapped else { return (&programs.any, Memory::Any) };
        // A scaled input is a private copy.
        if call.scale.is_some() || !buffers.into_iter().all(is_mapped) {
            return (&programs.any, Memory::Any);
        }
        let len = u64::from(inputs) * bytes;
        match programs.engines && self.executor.is_in_window(call.input, len as usize) {
            true => (mapped, Memory::Windows),
            false => (mapped, Memory::Mapped),
        }
    }

    /// Returns the time in µs of transfers that run together, by the costs of this rank's ends of
    /// them.
    pub fn estimate_exchange_us(&self, transfers: &[Transfer]) -> f64 {
        let rank = self.rank();
        let total: usize = transfers.iter().map(|t| t.bytes).sum();
        let own = transfers.iter().filter(|t| t.peer == rank && t.send).map(|t| t.bytes).sum();
        let others = transfers.iter().filter(|t| t.peer != rank && t.bytes > 0);
        let messages: Vec<_> = others.map(|t| (t.bytes as u64, t.send)).collect();
        let own: usize = own;
        self.topology.model.for_buffer(total as u64).messages_us(&messages, own as u64)
    }

    /// Returns the time in µs of a one-sided operation, without the time that it waits.
    fn estimate_one_sided_us(&self, item: &OneSided) -> f64 {
        let OneSided::Signal(peer, Some(put), _) = *item else { return 0.0 };
        let Put { from, bytes, .. } = put;
        let (send, dtype) = (true, DataType::Int8);
        self.estimate_exchange_us(&[Transfer { peer, send, data: from.0, bytes, dtype }])
    }
}
