//! The memory of chunks: each rank makes its own when an operation of any rank first needs it.

use crate::device::cuda::driver::{Gpu, cu};
use crate::device::cuda::layout::{Chunks, chunk_rings};
use crate::device::cuda::memory::shared::Memory;
use crate::device::cuda::rank::CudaRank;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use crate::rank::{Awaited, LEFT, Rank};
use cudarc::driver::sys::CUstream;
use oxccl_kernels::abi;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The time between looks for failures while memory is awaited.
const SLICE: Duration = Duration::from_millis(1);
/// The time after which the log tells of a wait.
const LONG: Duration = Duration::from_secs(2);
/// The time within which memory that a rank made before it left becomes known.
const ON_ITS_WAY: Duration = Duration::from_millis(200);

/// The addresses at which the ranks' memory of chunks is mapped here, as far as they are known.
/// None changes once it is known.
#[derive(Default)]
pub struct Known {
    addresses: [AtomicU64; abi::MAX_RANKS],
    lock: Mutex<()>,
    changed: Condvar,
}

impl Known {
    /// Returns the addresses by place; 0 for those that are not known yet.
    pub fn addresses(&self) -> [u64; abi::MAX_RANKS] {
        self.addresses.each_ref().map(|address| address.load(Ordering::Acquire))
    }

    /// Sets the address for the rank at a place.
    pub fn set(&self, place: u32, address: u64) {
        let _guard = self.lock.lock().unwrap_or_else(|e| e.into_inner());
        self.addresses[place as usize].store(address, Ordering::Release);
        self.changed.notify_all();
    }

    /// Returns which of some ranks, a bit for each place, have no known address yet.
    pub fn missing(&self, ranks: u32) -> u32 {
        let known = |place: &usize| self.addresses[*place].load(Ordering::Acquire) != 0;
        let places = (0..abi::MAX_RANKS).filter(known);
        places.fold(ranks, |missing, place| missing & !(1 << place))
    }

    /// Waits until all of some ranks have an address, for at most `limit`; returns those that have
    /// none.
    fn wait(&self, ranks: u32, limit: Duration) -> u32 {
        let guard = self.lock.lock().unwrap_or_else(|e| e.into_inner());
        let lacks = |_: &mut ()| self.missing(ranks) != 0;
        drop(self.changed.wait_timeout_while(guard, limit, lacks));
        self.missing(ranks)
    }
}

/// Makes the memory of chunks of one of `nranks` ranks; returns it with its size in bytes. So many
/// chunks seem to have gone over every channel. Requires the GPU's context to be current on this
/// thread.
pub(super) fn make(
    gpu: &'static Gpu,
    nranks: u32,
    start: u64,
    stream: CUstream,
) -> Result<(Arc<Memory>, usize)> {
    let layout = Chunks::new(nranks);
    let memory = Memory::new(gpu, layout.bytes as usize, stream).map_err(|error| Error::Local {
        call: format!("allocating {} MiB of GPU memory for large calls", layout.bytes >> 20),
        cause: error.to_string(),
        hint: "leave room for it, or call something large before the GPU is full",
    })?;
    if start != 0 {
        let edges = (nranks * chunk_rings(nranks).1) as usize;
        let words = abi::ChunkWords { arrived: start, ..Default::default() };
        let counters = abi::LineCounters { put: start, taken: start, ..Default::default() };
        upload(memory.at(), &vec![words; edges], stream)?;
        upload(memory.at() + layout.credits_at, &vec![start; edges], stream)?;
        upload(memory.at() + layout.counters_at, &vec![counters; edges], stream)?;
    }
    Ok((memory, layout.bytes as usize))
}

/// Copies to memory of the GPU. Requires its context to be current on this thread.
fn upload<T>(to: u64, from: &[T], stream: CUstream) -> Result<()> {
    // SAFETY: memory of this size by the caller, and what is copied lives until it is done.
    unsafe {
        cu!(cuMemcpyAsync(
            to,
            from.as_ptr().expose_provenance() as u64,
            size_of_val(from),
            stream
        ))?;
        cu!(cuStreamSynchronize(stream))
    }
}

impl CudaRank {
    /// Waits until this rank and some others of its host, a bit for each place, have memory of
    /// chunks that the mapper has mapped. The peers' mappers make it, whatever the peers' callers
    /// do. Blocks: until that is done, about 1 ms once for a communicator; at most as long as
    /// operations may wait. If that is too long, or if a peer has left, the communicator fails.
    pub fn await_chunks(&self, others: u32, operation: &'static str) -> Result<()> {
        let Some(sharing) = self.sharing() else { return Ok(()) };
        let ranks = others | 1 << self.view.rank;
        if sharing.chunks.missing(ranks) == 0 {
            return Ok(());
        }
        sharing.want();
        let (begun, mut told) = (Instant::now(), false);
        while let missing @ 1.. = sharing.chunks.wait(ranks, SLICE) {
            let gone = || Error::Internal { what: "a communicator that has ended".to_owned() };
            let rank = self.owner().ok_or_else(gone)?;
            if let Some(failure) = rank.deliver() {
                return Err(failure);
            }
            if !told && begun.elapsed() >= LONG {
                told = true;
                let places = (0..).zip(&self.ranks).filter(|(place, _)| missing >> place & 1 == 1);
                let missing = Vec::from_iter(places.map(|(_, rank)| rank.to_string())).join(", ");
                let text = format!("{operation} waits for the GPU memory of ranks {missing}");
                log::line_of(Some(self.number), Level::Warn, Subsystem::Init, &text);
            }
            if let Some(error) = self.overdue(&rank, missing, begun.elapsed(), operation) {
                rank.fail(error.clone());
                return Err(rank.deliver().unwrap_or(error));
            }
        }
        Ok(())
    }

    /// Returns the error if one of the ranks whose memory is missing was awaited for too long.
    fn overdue(
        &self,
        rank: &Rank,
        missing: u32,
        waited: Duration,
        operation: &'static str,
    ) -> Option<Error> {
        let missing = || (0..).zip(&self.ranks).filter(|(place, _)| missing >> place & 1 == 1);
        let gone = missing().map(|(_, peer)| *peer).find(|peer| rank.has_left(*peer));
        if let Some(peer) = gone.filter(|_| waited >= ON_ITS_WAY) {
            return Some(rank.lost(peer, LEFT.to_owned()));
        }
        let limit_ns = u64::try_from(rank.timeout_ns.load(Ordering::Relaxed)).ok()?;
        let peer = missing().next().map_or(-1, |(_, peer)| *peer as i32);
        let over = waited >= Duration::from_nanos(limit_ns);
        let waited_ms = waited.as_millis() as u64;
        over.then(|| rank.deadline_error(Awaited { peer, step: -1 }, operation, waited_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_goes_on_once_all_addresses_are_known() {
        let known = Known::default();
        known.set(2, 0x200);
        assert_eq!(known.wait(0b1110, Duration::ZERO), 0b1010);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| known.wait(0b1110, Duration::from_secs(60)));
            known.set(1, 0x100);
            known.set(3, 0x300);
            assert_eq!(waiting.join().expect("no panic"), 0);
        });
        assert_eq!(known.missing(0b1_1111), 0b1_0001);
        assert_eq!(known.addresses()[..5], [0, 0x100, 0x200, 0x300, 0]);
    }
}
