//! The reference interpreter: executes a plan on plain bytes and is the oracle for all executors.

use crate::arith;
use crate::dtype::{DataType, ReduceOp};
use crate::generate::Plan;
use crate::ir::Geometry;
use crate::machine::{Fault, Machine, Options, Place, Values, Work};

struct Bytes<'a> {
    dtype: DataType,
    op: ReduceOp,
    nranks: u32,
    geometry: Geometry,
    inputs: &'a [Vec<u8>],
}

impl Values for Bytes<'_> {
    type Value = Vec<u8>;

    fn input(&mut self, at: Place) -> Vec<u8> {
        let range = byte_range(&self.geometry, self.dtype, at);
        self.inputs[at.rank as usize][range].to_vec()
    }

    fn fold(&mut self, operands: &[Vec<u8>], finish: bool) -> Vec<u8> {
        let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
        arith::fold(self.dtype, self.op, &operands, finish.then_some(self.nranks))
    }
}

/// Returns the byte range of a part within its buffer.
fn byte_range(geometry: &Geometry, dtype: DataType, at: Place) -> std::ops::Range<usize> {
    let (offset, len) = geometry.range(at.window, at.part, 1);
    let first =
        u64::from(at.block) * geometry.block_elems + geometry.window_start(at.window) + offset;
    first as usize * dtype.size()..(first + len) as usize * dtype.size()
}

/// Runs a plan on the inputs of all ranks (each `input_blocks × count` elements) and returns the
/// outputs of all ranks (each `output_blocks × count` elements).
pub fn interpret(
    plan: &Plan,
    geometry: Geometry,
    dtype: DataType,
    op: ReduceOp,
    inputs: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, Fault> {
    let spec = plan.spec;
    let programs: Vec<_> = (0..spec.nranks).map(|r| plan.program(r)).collect();
    let in_place = vec![false; spec.nranks as usize];
    let values = Bytes { dtype, op, nranks: spec.nranks, geometry, inputs };
    let options =
        Options { edge_slots: 2, races: false, costs: None, team: spec.team, overlap: false };
    let mut machine = Machine::new(spec.nranks, values, options);
    let (programs, in_place) = (&programs[..], &in_place[..]);
    let parts = machine.run(&Work::Collective { plan, programs, geometry, in_place })?;
    let mut outputs = Vec::new();
    for (rank, parts) in (0..).zip(parts) {
        let blocks = spec.output_blocks(rank);
        let mut bytes = vec![0; blocks as usize * geometry.block_elems as usize * dtype.size()];
        let mut parts = parts.into_iter();
        for window in 0..geometry.windows() {
            for block in 0..blocks {
                for part in 0..geometry.parts {
                    if let Some((value, _)) = parts.next().flatten() {
                        let at = Place { rank, block, window, part };
                        bytes[byte_range(&geometry, dtype, at)].copy_from_slice(&value);
                    }
                }
            }
        }
        outputs.push(bytes);
    }
    Ok(outputs)
}
