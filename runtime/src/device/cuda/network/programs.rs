//! The programs of collectives over edges, as kernels read them.

use super::{Network, pinned};
use crate::device::cuda::driver::{Gpu, Relaxed};
use crate::device::cuda::memory::shared::Pinned;
use crate::error::{Error, Result};
use oxccl_kernels::abi;
use oxccl_plan::Plan;
use std::collections::HashMap;

/// Bytes of the pieces of memory that hold programs.
const PROGRAM_BYTES: usize = 128 << 10;

/// The programs that kernels have been given.
#[derive(Default)]
pub(super) struct Programs {
    pieces: Vec<Pinned>,
    /// Bytes of the last piece that are in use.
    used: usize,
    known: HashMap<Plan, (FirstSteps, u64)>,
}

/// The steps that the argument of a kernel has.
pub(in crate::device::cuda) type FirstSteps = [abi::EdgeStep; abi::ARGUMENT_STEPS];

impl Network {
    /// Returns the first steps of a plan's program, and the address, for kernels, of all; `encode`
    /// makes them at the first call.
    pub fn program(
        &self,
        gpu: &'static Gpu,
        plan: &Plan,
        encode: impl FnOnce() -> Result<Vec<abi::EdgeStep>>,
    ) -> Result<(FirstSteps, u64)> {
        let mut programs = self.programs.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(known) = programs.known.get(plan) {
            return Ok(*known);
        }
        let steps = encode()?;
        let bytes = size_of_val(&steps[..]);
        let Programs { pieces, used, known } = &mut *programs;
        if pieces.is_empty() || *used + bytes > PROGRAM_BYTES {
            let _context = gpu.enter()?;
            let _relaxed = Relaxed::begin()?;
            pieces.push(pinned(bytes.max(PROGRAM_BYTES))?);
            *used = 0;
        }
        let none = || Error::Internal { what: "no memory for programs".to_owned() };
        let piece = pieces.last().ok_or_else(none)?;
        let to: *mut abi::EdgeStep = piece.base().wrapping_add(*used).cast();
        // SAFETY: within the piece, behind what kernels read.
        unsafe { to.copy_from_nonoverlapping(steps.as_ptr(), steps.len()) };
        let at = piece.at() + *used as u64;
        *used += bytes;
        let first = std::array::from_fn(|i| steps.get(i).copied().unwrap_or_default());
        known.insert(*plan, (first, at));
        Ok((first, at))
    }
}
