//! The work of the monitor for GPUs: it hears of kernels that gave up, and frees memory when no
//! peer can write there any more.

use crate::device::cuda::rank::CudaRank;
use crate::exit;
use crate::rank::{Accelerator, Rank, monitor};
use rustix::process::{Pid, test_kill_process};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A `CudaRank` whose communicator is gone, or a graph's reference to one.
struct RetiredRank {
    cuda_rank: Arc<CudaRank>,
    /// The rank of the communicator, to see which peers are still there; `None` for a graph's
    /// reference.
    rank: Option<Arc<Rank>>,
}

impl RetiredRank {
    /// Returns whether the reference is still needed: that of the communicator is the last one to
    /// be dropped, and stays while a peer may write to the memory.
    fn needed(&self) -> bool {
        let Some(rank) = &self.rank else { return false };
        let out = announce_quiescent(&self.cuda_rank, rank);
        !out || Arc::strong_count(&self.cuda_rank) > 1 || peers_may_write(rank)
    }
}

static WATCHED: Mutex<Vec<Weak<CudaRank>>> = Mutex::new(Vec::new());
static RETIRED: Mutex<Vec<RetiredRank>> = Mutex::new(Vec::new());

fn lock<T>(list: &'static Mutex<Vec<T>>) -> MutexGuard<'static, Vec<T>> {
    list.lock().unwrap_or_else(|e| e.into_inner())
}

/// Makes the monitor look for faults of a rank's kernels from now on.
pub fn watch(cuda_rank: &Arc<CudaRank>) {
    lock(&WATCHED).push(Arc::downgrade(cuda_rank));
    monitor::also(look);
}

/// Passes a graph's reference to the monitor, which drops it: CUDA must not be called in the
/// callback by which the graph releases it.
pub fn retire_graph_ref(cuda_rank: Arc<CudaRank>) {
    lock(&RETIRED).push(RetiredRank { cuda_rank, rank: None });
}

/// Tells the peers if nothing of a rank runs any more; returns whether that is so.
fn announce_quiescent(cuda_rank: &CudaRank, rank: &Rank) -> bool {
    let out = cuda_rank.is_quiescent();
    if out {
        rank.set_quiescent();
    }
    out
}

/// Drops the communicator's reference once all peers have left.
pub fn retire(cuda_rank: Arc<CudaRank>, rank: Arc<Rank>) {
    // The peers are told at once if possible: the process may end before the monitor looks.
    announce_quiescent(&cuda_rank, &rank);
    lock(&RETIRED).push(RetiredRank { cuda_rank, rank: Some(rank) });
    monitor::also(look);
}

/// Returns whether a peer's kernels may still write here. A peer that has failed may have kernels
/// that wait for their turn, too.
fn peers_may_write(rank: &Rank) -> bool {
    let mut peers = (0..rank.nranks).filter(|&peer| peer != rank.number);
    peers.any(|peer| {
        let here = rank.segment.is_some() && rank.local[peer as usize].is_some();
        let process = Pid::from_raw(rank.pids[peer as usize]);
        let lives = process.is_none_or(|pid| test_kill_process(pid).is_ok());
        here && !rank.is_quiescent(peer) && lives
    })
}

/// Makes all running kernels give up, without a call of the driver: the process exits, and a thread
/// of the library waits for them.
pub(crate) fn give_up() {
    let cuda_ranks: Vec<_> = lock(&WATCHED).iter().filter_map(Weak::upgrade).collect();
    cuda_ranks.iter().for_each(|cuda_rank| cuda_rank.abort());
    // The last reference must not be dropped here.
    cuda_ranks.into_iter().for_each(std::mem::forget);
}

/// Returns the parts on GPUs of all ranks of this process, also of those that have ended, as long
/// as they are there.
pub fn cuda_ranks() -> Vec<Arc<CudaRank>> {
    let mut watched = lock(&WATCHED);
    watched.retain(|cuda_rank| cuda_rank.strong_count() > 0);
    watched.iter().filter_map(Weak::upgrade).collect()
}

/// Looks once for faults and for memory to free; returns true while there is something to look at
/// again soon.
pub fn look() -> bool {
    let places = cuda_ranks();
    let any = !places.is_empty();
    for cuda_rank in places {
        cuda_rank.hear();
        cuda_rank.record();
    }
    // The list is not locked here: `needed` calls the driver, whose callbacks release graphs.
    let retired = std::mem::take(&mut *lock(&RETIRED));
    let (keep, free): (Vec<RetiredRank>, Vec<RetiredRank>) =
        retired.into_iter().partition(RetiredRank::needed);
    let waiting = any || !keep.is_empty();
    lock(&RETIRED).extend(keep);
    if !free.is_empty() {
        // Freeing waits for all work of the GPU, which the monitor may have to end.
        let thread = std::thread::Builder::new().name("oxccl-free".to_owned());
        // Without a thread they are freed here.
        let _ = thread.spawn(move || {
            // Memory that is not freed when the process exits ends with it.
            match exit::visit_driver() {
                Some(_visit) => drop(free),
                None => std::mem::forget(free),
            }
        });
    }
    waiting
}
