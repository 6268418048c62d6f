//! Launching one-sided operations on a GPU.

use crate::device::cuda::driver::library::launch;
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::run::engines;
use crate::device::cuda::stream::Stream;
use crate::error::{Error, Result};
use crate::link::direct::{SIGNALS, WINDOWS};
use crate::op::descriptor::Descriptor;
use crate::op::{Awaiting, OneSided, Put};
use oxccl_kernels::abi;
use std::sync::Arc;

// The kernels have places for all windows and signals to which a communicator gives numbers.
const _: () = assert!(abi::WINDOWS == WINDOWS && abi::USER_SIGNALS == SIGNALS as usize);

/// The least bytes of a put that a block writes, so that small puts take few blocks.
const BLOCK_BYTES: usize = 32 << 10;

/// Launches an operation after all that the communicator has launched. Blocks: never.
pub fn run(cuda_rank: &Arc<CudaRank>, item: &OneSided, stream: Stream) -> Result<()> {
    match item {
        OneSided::Signal(peer, put, signal) => {
            signal_peer(cuda_rank, place(cuda_rank, *peer)?, *put, *signal, stream)
        }
        OneSided::Wait(list) => {
            let at_place = |item: &Awaiting| {
                place(cuda_rank, item.peer).map(|peer| Awaiting { peer, ..*item })
            };
            let list = list.iter().map(at_place).collect::<Result<Vec<_>>>()?;
            wait(cuda_rank, &list, stream)
        }
    }
}

/// Returns the place of a peer among the ranks of this host, which are all that one-sided
/// operations reach.
fn place(cuda_rank: &CudaRank, peer: u32) -> Result<u32> {
    let far = |_| {
        let what = format!("a one-sided operation between GPUs with rank {peer} of another host");
        Error::usage(what, "send and receive, or use it among the ranks of a host")
    };
    cuda_rank.ranks.binary_search(&peer).map(|place| place as u32).map_err(far)
}

fn signal_peer(
    cuda_rank: &Arc<CudaRank>,
    peer: u32,
    put: Option<Put>,
    signal: u32,
    stream: Stream,
) -> Result<()> {
    let nothing = abi::Put {
        rank: cuda_rank.view,
        peer,
        signal,
        data: 0,
        bytes: 0,
        window: 0,
        own: 0,
        offset: 0,
    };
    let whole = put.map_or(nothing, |put| abi::Put {
        data: put.from.0 as u64,
        bytes: put.bytes as u64,
        window: put.window + 1,
        own: put.own.0 as u64,
        offset: put.offset as u64,
        ..nothing
    });
    cuda_rank.launch(stream, || {
        let done = put.map(|put| engines::launch_put(cuda_rank, peer, &put, stream)).transpose()?;
        let argument = if done == Some(true) { nothing } else { whole };
        let blocks = (argument.bytes as usize).div_ceil(BLOCK_BYTES);
        let shape =
            (blocks.clamp(1, cuda_rank.channels as usize) as u32, abi::BLOCK_THREADS as u32);
        // SAFETY: the kernel takes this structure; the memory is the user's by the contract of the
        // call.
        unsafe { launch(cuda_rank.functions.put, shape, &argument, 0, stream.0) }
    })
}

/// Returns every signal once, with the sum of what is awaited of it: each signal has a thread of
/// its own.
fn merged(list: &[Awaiting]) -> Vec<abi::Awaited> {
    let mut all: Vec<abi::Awaited> = Vec::new();
    for &Awaiting { peer, signal, count } in list {
        match all.iter_mut().find(|known| (known.peer, known.signal) == (peer, signal)) {
            Some(known) => known.count += count,
            None => all.push(abi::Awaited { peer, signal, count }),
        }
    }
    all
}

fn wait(cuda_rank: &Arc<CudaRank>, list: &[Awaiting], stream: Stream) -> Result<()> {
    let all = merged(list);
    if all.is_empty() {
        return Ok(());
    }
    let (what, _) = Descriptor::signals(0).to_words();
    let shape = (1, abi::AWAITED.next_multiple_of(32) as u32 + 32);
    cuda_rank.launch(stream, || {
        all.chunks(abi::AWAITED).try_for_each(|some| {
            let mut awaited = [abi::Awaited::default(); abi::AWAITED];
            awaited[..some.len()].copy_from_slice(some);
            let count = some.len() as u32;
            let argument = abi::SignalWait { rank: cuda_rank.view, count, what, awaited };
            // SAFETY: the kernel takes this structure, and points to the communicator's memory.
            unsafe { launch(cuda_rank.functions.wait_signal, shape, &argument, 0, stream.0) }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_named_twice_is_awaited_by_one_thread() {
        let one = |peer, signal, count| Awaiting { peer, signal, count };
        let all = merged(&[one(0, 3, 1), one(1, 3, 5), one(0, 3, 2), one(0, 4, 0)]);
        let seen: Vec<_> = all.iter().map(|a| (a.peer, a.signal, a.count)).collect();
        assert_eq!(seen, [(0, 3, 3), (1, 3, 5), (0, 4, 0)]);
    }
}
