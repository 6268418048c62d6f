//! Copy engines: they take the blocks of large all-gathers and all-to-alls from the peers, if the
//! send buffers of all ranks lie at the same offset of a window, and carry out large puts.
//!
//! The peers tell only kernels in time for a call where their buffers lie; for buffers in windows
//! this rank knows it beforehand. So a kernel of one block runs before the engines (`expect.cuh`):
//! it waits until the peers' blocks are ready, and compares the addresses that the peers tell with
//! those assumed here. The program that follows then only signals and waits, or moves everything
//! itself if they differ. To the peers all this is the same operation, so the ranks need not agree
//! on which of them use engines. Graphs do not use engines: a graph may be launched when a peer's
//! memory is gone, and engines cannot give up.

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

/// The least bytes received from the peers for which engines are faster than kernels: engines take
/// 38 µs and move 374 GB/s, kernels 24 µs and 333 GB/s (2 × H200, all-gather in place).
const FASTER_BYTES: u64 = 64 << 20;

/// The same limit for a communicator that leaves thread blocks for other things.
const LEAST_BYTES: u64 = 512 << 10;

/// The number of calls with send buffers at different offsets after which engines are not used any
/// more. Some such calls are expected: while windows are registered, ranks may find their buffers
/// in different windows.
const ASTRAY: u64 = 8;

/// Returns the least bytes, received from the peers or sent to them, that engines move; `sparing`
/// if thread blocks are to be left for other things.
pub fn least_bytes(sparing: bool) -> u64 {
    if sparing { LEAST_BYTES } else { FASTER_BYTES }
}

/// Returns whether copy engines were given wrong source addresses seldom enough: ranks that bring
/// buffers at different offsets do so again and again.
pub fn are_worth_it(cuda_rank: &CudaRank) -> bool {
    cuda_rank.engine_mispredictions() < ASTRAY
}

/// Returns whether a launch may use engines now. Not after a failure: nothing stops engines, and
/// the peers have been told that nothing begins after the failure. Not on a default stream: copies
/// there wait for both GPUs.
fn may_run(cuda_rank: &CudaRank, stream: Stream) -> bool {
    let sound = cuda_rank.owner().is_some_and(|rank| rank.failure().is_none());
    sound && !stream.is_default()
}

/// A copy that an engine carries out.
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

/// The location of a call's send buffers: a part of a window, at the same offset at all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site {
    /// The address of the part of the window that holds them.
    at: u64,
    /// Bytes of that part.
    len: u64,
    /// Bytes from a rank's buffer in that part to that of the next rank.
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

/// Launches the kernel that runs before the engines, and then the copies, in the order of the
/// stream, if engines can be used; tells `program` whether they are. Call this only within
/// [`CudaRank::launch`], which keeps windows mapped.
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
    unsafe { launch(cuda_rank.functions.expect, shape, program, 0, stream.0) }?;
    moves.iter().try_for_each(|one| one.launch(stream))
}

/// Returns the copies of the blocks that a rank takes from its peers, and sets `expected` to the
/// addresses at which it expects their send buffers; `None` if these are not known.
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

/// Launches the copy of a put, without its signal, if engines can carry it out and that pays.
/// Returns whether it was launched. Call this only within [`CudaRank::launch`].
pub fn launch_put(cuda_rank: &CudaRank, peer: u32, put: &Put, stream: Stream) -> Result<bool> {
    let large = put.bytes as u64 >= cuda_rank.engine_bytes && peer != cuda_rank.view.rank;
    if !large || !may_run(cuda_rank, stream) || order::graph_of(stream)?.is_some() {
        return Ok(false);
    }
    let window = cuda_rank.sharing().and_then(|sharing| sharing.window(peer, put.window + 1));
    let (offset, bytes) = (put.offset as u64, put.bytes as u64);
    // The kernel reports a put that does not fit the window.
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
