//! Closing of memory that other processes have given, or that lies on the host, when no kernel of
//! a communicator runs on the GPU. The driver may wait there for all work of the GPU, and launch
//! nothing meanwhile: a kernel that waits for a rank whose launch is held up by this would never
//! end.

use crate::device::cuda::driver::{Gpu, Relaxed};
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::reaper;
use crate::exit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

/// The time between looks whether the GPU is quiet.
const AGAIN: Duration = Duration::from_millis(5);

type Work = Box<dyn FnOnce() + Send>;

/// The work that is to be done on a GPU when it is quiet.
#[derive(Default)]
pub struct Closing {
    /// The gate, which launches share and closing takes alone.
    gate: RwLock<()>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Work>,
    /// True while a thread serves the queue.
    served: bool,
}

impl Closing {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns a guard, which is held while something is launched. Blocks while something is
    /// closed, which is done only when no kernel of a communicator runs.
    pub fn launch(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Queues work; returns true if a thread has to be started that serves the queue.
    fn add(&self, work: Work) -> bool {
        let mut queue = self.queue();
        queue.waiting.push(work);
        !std::mem::replace(&mut queue.served, true)
    }

    /// Does the queued work if nothing is being launched and the GPU is quiet; returns true if
    /// nothing is left to serve.
    fn serve(&self, quiet: impl FnOnce() -> bool) -> bool {
        // This never waits for the gate: launches would wait behind it.
        let gate = match self.gate.try_write() {
            Ok(gate) => Some(gate),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if gate.is_some() && quiet() {
            let waiting = std::mem::take(&mut self.queue().waiting);
            for work in waiting {
                // The rest of the work is done also after a panic.
                let _ = catch_unwind(AssertUnwindSafe(work));
            }
        }
        drop(gate);
        let mut queue = self.queue();
        queue.served = !queue.waiting.is_empty();
        !queue.served
    }
}

/// Does `work` in a thread of its own, with the GPU's context, when no communicator of this process
/// has a kernel there; until then no launch is held up. Launches of graphs are not seen here, so
/// the work also waits until there are no graphs.
pub(in crate::device::cuda) fn when_quiet(gpu: &'static Gpu, work: impl FnOnce() + Send + 'static) {
    if !gpu.closing.add(Box::new(work)) {
        return;
    }
    let serve = move || {
        // Once the process exits, what is left goes with it.
        while let Some(visit) = exit::visit_driver() {
            // Without a context there is nothing to close.
            let (Ok(context), Ok(relaxed)) = (gpu.enter(), Relaxed::begin()) else {
                // The next caller tries again.
                gpu.closing.queue().served = false;
                return;
            };
            if gpu.closing.serve(|| is_quiet(gpu)) {
                return;
            }
            drop((relaxed, context, visit));
            std::thread::sleep(AGAIN);
        }
    };
    let thread = std::thread::Builder::new().name("oxccl-free".to_owned());
    if thread.spawn(serve).is_err() {
        // The next caller tries again.
        gpu.closing.queue().served = false;
    }
}

/// Returns whether no kernel on a GPU may wait for another rank, be it of this host or of another.
fn is_quiet(gpu: &Gpu) -> bool {
    let cuda_ranks = reaper::cuda_ranks();
    let is_there = |cuda_rank: &&Arc<CudaRank>| cuda_rank.gpu.index == gpu.index;
    let mut there = cuda_ranks.iter().filter(is_there).filter(|cuda_rank| cuda_rank.nranks > 1);
    there.all(|cuda_rank| !cuda_rank.has_graphs() && !cuda_rank.busy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn nothing_is_closed_beside_launches_and_kernels_nor_launched_beside_closing() {
        let (closing, closed) = (Arc::new(Closing::default()), Arc::new(AtomicU32::new(0)));
        let close = || {
            let (closing, closed) = (closing.clone(), closed.clone());
            Box::new(move || {
                assert!(closing.gate.try_read().is_err(), "something may be launched");
                closed.fetch_add(1, Ordering::Relaxed);
            })
        };
        assert!(closing.add(close()), "nobody serves it yet");
        assert!(!closing.add(close()));
        let launching = closing.launch();
        assert!(!closing.serve(|| panic!("it is not asked while something is launched")));
        drop(launching);
        assert!(!closing.serve(|| false), "a kernel runs");
        assert!(closing.gate.try_read().is_ok(), "launches go on");
        assert_eq!(closed.load(Ordering::Relaxed), 0);
        // Work that panics does not keep the rest from being done.
        assert!(!closing.add(Box::new(|| panic!("on purpose"))));
        assert!(!closing.add(close()));
        assert!(closing.serve(|| true));
        assert_eq!(closed.load(Ordering::Relaxed), 3);
        drop(closing.launch());
        assert!(closing.add(close()), "who served it has gone");
    }
}
