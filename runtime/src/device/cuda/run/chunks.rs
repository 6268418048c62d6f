//! Which operations need the memory of chunks.

use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::run::batch;
use crate::device::cuda::run::lines::{Unit, longest, spread_message};
use crate::error::Result;
use crate::op::{Operation, Transfer};
use oxccl_plan::Carrier;

/// Waits until the ranks with which an operation exchanges chunks have memory for them
/// ([`CudaRank::await_chunks`]). Returns at once for an operation without chunks.
pub fn prepare(cuda_rank: &CudaRank, operation: &Operation) -> Result<()> {
    let everyone = match operation {
        Operation::Exchange(transfers) => return prepare_messages(cuda_rank, &transfers.list),
        Operation::Collective(programs, call) => {
            let plan = &programs.any.plan;
            programs.any.carrier == Carrier::Lines
                && Unit::of(plan, longest(plan, call)) == Unit::Chunks
        }
        Operation::Batch(batch) => batch::takes_chunks(batch),
        Operation::OneSided(_) => false,
    };
    if !everyone {
        return Ok(());
    }
    let all = (1u32 << cuda_rank.ranks.len()) - 1;
    let name = operation.collectives().next().map(|(_, call)| call.spec.collective.name());
    cuda_rank.await_chunks(all, name.unwrap_or("a group"))
}

/// The same for the sends and receives of a group.
pub fn prepare_messages(cuda_rank: &CudaRank, transfers: &[Transfer]) -> Result<()> {
    if !cuda_rank.has_lines() {
        return Ok(());
    }
    let in_chunks = |t: &&Transfer| {
        t.peer != cuda_rank.number && spread_message(t.bytes as u64, &cuda_rank.view).1 == 0
    };
    // Lines have no other hosts: ranks and their places are the same.
    let peers = transfers.iter().filter(in_chunks).fold(0, |peers, t| peers | 1 << t.peer);
    if peers == 0 { Ok(()) } else { cuda_rank.await_chunks(peers, "send/recv") }
}
