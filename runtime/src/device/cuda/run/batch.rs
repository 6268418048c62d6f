//! Collectives of a group in one launch: each has warps and channels of its own, so that all are
//! under way at once. A launch takes longer than what a small one does.

use crate::device::cuda::driver::library::CLUSTER_BLOCKS;
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::run::launch::{Launch, head};
use crate::device::cuda::run::lines::{
    Shape, Unit, argument, channels, chunk_blocks, gains_by_clusters, longest, roles,
    whole_clusters,
};
use crate::error::{Error, Result};
use crate::op::{Batch, Bound, Call, Operation, Programs};
use oxccl_kernels::abi;
use oxccl_plan::lines::is_chain;
use oxccl_plan::words::counted;
use oxccl_plan::{Carrier, Plan};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// The longest slices, in bytes, of collectives that run together: larger ones fill the links
/// alone.
const SLICE_BYTES: u64 = 8 << 20;

/// The slices of a batch, in bytes and in all, up to which they travel in lines: 16 all-reduces of
/// 512 KiB take 3.8 µs each in lines, and 4.3 in chunks (four H100, docs/performance.md).
const LINES_BYTES: u64 = 4 << 20;

/// Returns the most calls of a batch like those of a plan, on so many thread blocks: each has a
/// channel, whatever unit they travel in, and whether or not blocks are in clusters.
fn most_calls(plan: &Plan, blocks: u64) -> u64 {
    let of = |unit| {
        let (roles, whole) = (roles(plan, unit), whole_clusters(blocks, true));
        let blocks = match unit {
            Unit::Packets | Unit::MediumPackets => blocks,
            Unit::Lines => whole,
            Unit::Chunks => whole.min(chunk_blocks(plan, 0)),
        };
        // Some have more ranks than packets have warps for.
        (roles <= abi::LINE_WARPS as u64).then(|| blocks * channels(plan, roles))
    };
    let most = [Unit::Packets, Unit::Lines, Unit::Chunks].into_iter().filter_map(of).min();
    most.unwrap_or(0).min(abi::BATCH as u64)
}

/// Returns whether a collective runs together with the one or more before it, from facts that all
/// ranks share. Calls that differ are found by the first thread block, where it waits: so a rank
/// has to wait in all calls of a batch or in none, and all have one root.
pub fn can_batch(cuda_rank: &CudaRank, before: &Operation, next: &Operation) -> bool {
    let (Operation::Collective(programs, call), Some((first, of_first))) =
        (next, before.collectives().next())
    else {
        return false;
    };
    let (plan, first_plan) = (&programs.any.plan, &first.any.plan);
    let alike = plan.algorithm == first_plan.algorithm
        && call.spec == of_first.spec
        && (call.dtype == of_first.dtype || !call.spec.collective.reduces());
    let blocks = |programs: &Programs| u64::from(programs.blocks(cuda_rank.channels));
    alike
        && blocks(programs) == blocks(first)
        && (before.collectives().count() as u64) < most_calls(plan, blocks(programs))
        && fits(programs, call)
        && fits(first, of_first)
}

/// Returns whether a call may run together with others.
fn fits(programs: &Programs, call: &Call) -> bool {
    let plan = &programs.any.plan;
    let in_lines = programs.any.carrier == Carrier::Lines && !is_chain(plan);
    in_lines && longest(plan, call) <= SLICE_BYTES
}

/// Returns whether a batch travels in chunks.
pub fn takes_chunks(batch: &Batch) -> bool {
    let longest = |(programs, call): &(Arc<Programs>, Call)| longest(&programs.any.plan, call);
    let sum = batch.calls().iter().map(longest).sum();
    let first = batch.calls().first();
    first.is_some_and(|(programs, _)| unit_of(&programs.any.plan, sum) == Unit::Chunks)
}

/// Returns the unit of a batch of calls like those of a plan, with longest slices of so many bytes
/// in all.
fn unit_of(plan: &Plan, sum: u64) -> Unit {
    match Unit::of(plan, sum) {
        Unit::MediumPackets => Unit::Lines,
        Unit::Chunks if sum <= LINES_BYTES => Unit::Lines,
        unit => unit,
    }
}

/// Launches the collectives of a batch.
pub fn run(cuda_rank: &Arc<CudaRank>, batch: &Batch, launch: &Launch<'_>) -> Result<()> {
    let descriptor = batch.descriptor();
    // One that waits where any does comes first, and has the first thread block.
    let mut calls: Vec<_> = batch.calls().iter().collect();
    let waits = calls.iter().position(|(_, call)| call.count > 0).unwrap_or(0);
    calls.swap(0, waits);
    let (first, of_first) = calls[0];
    let bytes: Vec<u64> =
        calls.iter().map(|(programs, call)| longest(&programs.any.plan, call)).collect();
    let most = u64::from(first.blocks(cuda_rank.channels));
    let spread = Spread::new(&first.any.plan, &bytes, most);
    let program = |i: usize| -> Result<abi::LineProgram> {
        let (programs, call) = calls[i];
        let Bound { plan, phases, .. } = &programs.any;
        let unfit =
            || Error::Internal { what: format!("lines carry no {}", plan.algorithm.name()) };
        let head = head(cuda_rank, descriptor, call, launch.number);
        let shape = Shape { units: spread.units(bytes[i]), ..spread.shape };
        let phases = phases.as_ref().ok_or_else(unfit)?;
        Ok(argument(head, phases, plan, call, (&shape, spread.roles)))
    };
    let count = calls.len() as u32;
    let Shape { blocks, channels, .. } = spread.shape;
    if blocks * channels < u64::from(count) {
        let blocks = counted(blocks, "thread block", "thread blocks");
        let channels = counted(channels, "channel", "channels");
        let what = format!("{count} collectives on {blocks} of {channels}");
        return Err(Error::Internal { what });
    }
    // Kernels read no more programs than there are, and to fill all of them takes microseconds.
    let mut argument = MaybeUninit::<abi::LineBatch>::uninit();
    let at = argument.as_mut_ptr();
    for i in 0..calls.len() {
        let program = program(i)?;
        // SAFETY: fields of the argument, and a program for which it has room.
        unsafe { (&raw mut (*at).programs[i]).write(program) };
    }
    // SAFETY: as above.
    unsafe {
        (&raw mut (*at).count).write(count);
        (&raw mut (*at).first).write(spread.bounds(&bytes));
    }
    let functions = cuda_rank.functions;
    let [packets, lines, chunks] = match of_first.spec.nranks {
        2 => [&functions.batches_two[0], &functions.batches_two[1], &functions.batches_two[1]],
        _ => functions.batches_more.each_ref(),
    };
    let kernels = match spread.unit {
        Unit::Packets | Unit::MediumPackets => packets,
        Unit::Lines => lines,
        Unit::Chunks => chunks,
    };
    let folds = of_first.spec.collective.reduces();
    let function = kernels.of(folds, of_first.dtype as usize);
    let whole = spread.clusters && blocks.is_multiple_of(u64::from(CLUSTER_BLOCKS));
    let clusters = whole && cuda_rank.has_room_for_clusters();
    let function = if clusters { function.clustered() } else { function };
    let shape = (blocks as u32, (channels * spread.roles + 1) as u32 * 32);
    // SAFETY: the kernel takes this structure; what it points to is the communicator's, or the
    // user's by the contract of the calls.
    cuda_rank.launch(launch.stream, || unsafe { launch.kernel(function, shape, &argument) })
}

/// How a batch is spread over warps: facts that all ranks share.
struct Spread {
    unit: Unit,
    /// The blocks, channels and slots of all calls; the units are theirs in all, or somewhat fewer.
    shape: Shape,
    /// Warps of a channel.
    roles: u64,
    /// True if thread blocks are in clusters where there is room.
    clusters: bool,
}

impl Spread {
    /// Spreads calls with longest slices of so many bytes over at most so many thread blocks.
    /// `plan` is the plan of one of them, which are alike.
    fn new(plan: &Plan, bytes: &[u64], most: u64) -> Self {
        let sum = bytes.iter().sum();
        let unit = unit_of(plan, sum);
        let clusters = gains_by_clusters(unit, sum);
        let slot = match unit {
            Unit::Packets | Unit::MediumPackets => abi::SLOT_DATA_BYTES,
            Unit::Lines => abi::UNIT_DATA_BYTES,
            Unit::Chunks => abi::CHUNK_BYTES,
        } as u64;
        // A call has a channel, whether or not it has a unit.
        let slots: u64 = bytes.iter().map(|bytes| bytes.div_ceil(slot).max(1)).sum();
        let shape = Shape::of(plan, unit, slots * slot, whole_clusters(most, clusters));
        let roles = roles(plan, unit);
        Self { unit, shape, roles, clusters }
    }

    /// Returns the units of a call with a longest slice of so many bytes.
    fn units(&self, bytes: u64) -> u64 {
        bytes.div_ceil(match self.unit {
            Unit::Packets | Unit::MediumPackets => abi::SLOT_DATA_BYTES as u64,
            Unit::Lines => u64::from(self.shape.slots) * abi::UNIT_DATA_BYTES as u64,
            Unit::Chunks => abi::CHUNK_BYTES as u64,
        })
    }

    /// Returns the bounds of the channels of each call: each has one, and of the others as many as
    /// are its part of all units.
    fn bounds(&self, bytes: &[u64]) -> [u32; abi::BATCH_BOUNDS] {
        let units = || bytes.iter().map(|bytes| self.units(*bytes));
        let free = (self.shape.blocks * self.shape.channels).saturating_sub(bytes.len() as u64);
        let (all, mut end, mut bounds) = (units().sum::<u64>().max(1), 0, [0; abi::BATCH_BOUNDS]);
        for (bound, units) in bounds[1..].iter_mut().zip(units()) {
            end += 1 + free * units / all;
            *bound = end as u32;
        }
        bounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::lines::carry_plan;
    use oxccl_plan::{Collective, Spec};

    #[test]
    fn every_call_has_channels_of_its_own_within_the_grid() {
        let specs = (2..=16).flat_map(|n| Collective::ALL.map(|c| Spec::new(c, n, n - 1)));
        let plans = specs.flat_map(Plan::candidates).filter(|p| carry_plan(p) && !is_chain(p));
        for (plan, most) in plans.flat_map(|plan| (1..=32).map(move |most| (plan, most))) {
            let room = most_calls(&plan, most);
            for bytes in [
                vec![8; room as usize],
                vec![0; room as usize],
                vec![200 << 10; room as usize],
                vec![400 << 10; room as usize],
                vec![SLICE_BYTES; room as usize],
                [vec![1 << 20], vec![8; room as usize - 1]].concat(),
                vec![100, 70_000, 3],
            ] {
                if bytes.len() as u64 > room {
                    continue;
                }
                let spread = Spread::new(&plan, &bytes, most);
                let Shape { blocks, channels: of_block, .. } = spread.shape;
                assert!(blocks <= most && of_block * spread.roles <= abi::LINE_WARPS as u64);
                let bounds = &spread.bounds(&bytes)[..=bytes.len()];
                assert!(bounds.is_sorted_by(|a, b| a < b), "{plan:?} {bytes:?} {bounds:?}");
                assert!(u64::from(bounds[bytes.len()]) <= blocks * of_block, "{bounds:?}");
            }
        }
    }
}
