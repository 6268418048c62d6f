//! Copy engines: they take the blocks of large all-gathers and all-to-alls from the peers, where
//! all ranks' send buffers lie at the same place of a window, and do large puts.
//!
//! Where a peer's buffer is mapped, only kernels hear in time for a call; of windows this side can
//! tell. So a kernel of one block goes before the engines (`expect.cuh`): it waits until the peers'
//! blocks are there, and compares what the peers tell with what was assumed here. The program that
//! comes after only signals and waits then, or moves everything itself. To the peers all that is
//! the same operation: which of the ranks use engines is nothing that they have to agree on. Not
//! for graphs, which may be launched when a peer's memory is gone: engines cannot give up.

use crate::device::cuda::driver::cu;
use crate::device::cuda::driver::library::launch;
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::run::order;
use crate::device::cuda::stream::Stream;
use crate::error::Result;
use crate::op::{Call, Put};
use oxccl_kernels::abi;
use oxccl_plan::Collective;
use std::sync::atomic::Ordering;

/// Bytes that a rank gets from the others, from which on engines are faster than kernels: they take
/// 38 µs and move 374 GB/s, kernels 24 µs and 333 GB/s (2 × H200, all-gather in place).
const FASTER_BYTES: u64 = 64 << 20;

/// The same where blocks of kernels are wanted for other things.
const LEAST_BYTES: u64 = 512 << 10;

/// Calls with send buffers at different places, after which engines are not used any more: when
/// windows come it happens that ranks find their buffers in different ones.
const ASTRAY: u64 = 8;

/// Bytes that a rank gets from the others or gives them, from which on engines move them; `sparing`
/// where blocks of kernels are wanted for other things.
pub fn least_bytes(sparing: bool) -> u64 {
    if sparing { LEAST_BYTES } else { FASTER_BYTES }
}

/// Returns whether copy engines have been sent to the right places often enough: ranks that bring
/// buffers at different places do so again and again.
pub fn are_worth_it(cuda_rank: &CudaRank) -> bool {
    cuda_rank.engine_mispredictions() < ASTRAY
}

/// Whether what is launched now may use engines: nothing stops them, so not after a failure, of
/// which the peers have heard that nothing begins after it; and copies on the default stream wait
/// for both GPUs.
fn may_run(cuda_rank: &CudaRank, stream: Stream) -> bool {
    let sound = cuda_rank.owner().is_some_and(|rank| rank.failure().is_none());
    sound && !stream.is_default()
}

/// Bytes that an engine moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Move {
    to: u64,
    from: u64,
    bytes: usize,
}

impl Move {
    fn launch(&self, stream: Stream) -> Result<()> {
        // SAFETY: the user's memory, of these sizes by the contract of the call, or a place within
        // a peer's window: what was mapped here stays until what is launched now has ended, and no
        // rank frees memory of its own while others call with that window.
        unsafe { cu!(cuMemcpyAsync(self.to, self.from, self.bytes, stream.0)) }
    }
}

/// Where a call's send buffers are: in a window, at the same place of it at all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site {
    /// Where the part of the window begins that holds them.
    at: u64,
    /// Its bytes.
    len: u64,
    /// From the place of a rank's buffer there to that of the next rank.
    step: u64,
}

impl Site {
    fn of(call: &Call, rank: u32) -> Self {
        let (input, output) = (call.input as u64, call.output as u64);
        let (n, bytes) = (u64::from(call.spec.nranks), call.count * call.dtype.size() as u64);
        // In place, a rank's input is its block of the output.
        let in_place = call.spec.collective == Collective::AllGather
            && input == output + u64::from(rank) * bytes;
        match in_place {
            true => Self { at: output, len: n * bytes, step: bytes },
            false => {
                Self { at: input, len: u64::from(call.spec.input_blocks(rank)) * bytes, step: 0 }
            }
        }
    }
}

/// Launches the engines, and what goes before them, in the order of the stream, where they can be
/// used, and tells `program` whether they are. Only within [`CudaRank::launch`], which keeps
/// windows mapped.
pub fn launch_before(
    cuda_rank: &CudaRank,
    call: &Call,
    program: &mut abi::Program,
    stream: Stream,
) -> Result<()> {
    program.engines = 0;
    if !may_run(cuda_rank, stream) {
        return Ok(());
    }
    let Some(moves) = moves(cuda_rank, call, &mut program.expected) else { return Ok(()) };
    program.engines = 1;
    let (rank, bytes) = (u64::from(cuda_rank.view.rank), call.count as usize * call.dtype.size());
    let block = |buffer: u64, number: u64| buffer + number * bytes as u64;
    let kept = u64::from(call.spec.source_block(cuda_rank.view.rank));
    let to = block(call.output as u64, rank);
    let own = Move { to, from: block(call.input as u64, kept), bytes };
    if own.from != own.to {
        own.launch(stream)?;
    }
    let shape = (1, abi::EXPECT_THREADS as u32);
    // SAFETY: the kernel takes this structure; what it points to is the communicator's.
    unsafe { launch(cuda_rank.functions.expect, shape, program, stream.0) }?;
    moves.iter().try_for_each(|one| one.launch(stream))
}

/// The blocks that a rank takes from the others, and where it expects their send buffers; None
/// where that is not known.
fn moves(
    cuda_rank: &CudaRank,
    call: &Call,
    expected: &mut [u64; abi::MAX_RANKS],
) -> Option<Vec<Move>> {
    let (rank, sharing) = (cuda_rank.view.rank, cuda_rank.sharing()?);
    let Site { at, len, step } = Site::of(call, rank);
    let own = sharing.registry().window(at, len)?;
    let bytes = call.count as usize * call.dtype.size();
    let taken = u64::from(call.spec.source_block(rank)) * bytes as u64;
    let others = (1..cuda_rank.view.nranks).map(|d| (rank + d) % cuda_rank.view.nranks);
    others
        .map(|peer| {
            let window = sharing.window(peer, own.window)?;
            let offset = at - own.base;
            let fits = window.bytes >= offset && len <= window.bytes - offset;
            let input = window.base + offset + u64::from(peer) * step;
            expected[peer as usize] = input;
            let to = call.output as u64 + u64::from(peer) * bytes as u64;
            fits.then_some(Move { to, from: input + taken, bytes })
        })
        .collect()
}

/// Launches a put without its signal where engines can do it, and that pays; whether it was. Only
/// within [`CudaRank::launch`].
pub fn launch_put(cuda_rank: &CudaRank, peer: u32, put: &Put, stream: Stream) -> Result<bool> {
    let large = put.bytes as u64 >= cuda_rank.engine_bytes && peer != cuda_rank.view.rank;
    if !large || !may_run(cuda_rank, stream) || order::graph_of(stream)?.is_some() {
        return Ok(false);
    }
    let window = cuda_rank.sharing().and_then(|sharing| sharing.window(peer, put.window + 1));
    let (offset, bytes) = (put.offset as u64, put.bytes as u64);
    // What does not fit is told by the kernel.
    let fitting = window.filter(|w| w.bytes >= offset && w.bytes - offset >= bytes);
    let Some(window) = fitting else { return Ok(false) };
    let (to, from) = (window.base + offset, put.from.0 as u64);
    Move { to, from, bytes: put.bytes }.launch(stream)?;
    cuda_rank.engine_puts.fetch_add(1, Ordering::Relaxed);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::{DataType, ReduceOp, Spec};

    fn call(collective: Collective, input: u64, output: u64) -> Call {
        let at = |address: u64| std::ptr::without_provenance_mut(address as usize);
        Call {
            spec: Spec::new(collective, 4, 0),
            input: at(input),
            output: at(output),
            count: 100,
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            scale: None,
        }
    }

    #[test]
    fn send_buffers_are_at_one_place_of_a_window_or_follow_each_other() {
        use Collective::{AllGather, AllToAll};
        let apart = call(AllGather, 0x1000, 0x8000);
        assert_eq!(Site::of(&apart, 2), Site { at: 0x1000, len: 400, step: 0 });
        let in_place = call(AllGather, 0x8000 + 2 * 400, 0x8000);
        assert_eq!(Site::of(&in_place, 2), Site { at: 0x8000, len: 1600, step: 400 });
        let of_another = Site { at: 0x8000 + 2 * 400, len: 400, step: 0 };
        assert_eq!(Site::of(&in_place, 1), of_another);
        let exchanged = call(AllToAll, 0x8000, 0x20_000);
        assert_eq!(Site::of(&exchanged, 0), Site { at: 0x8000, len: 1600, step: 0 });
    }
}
