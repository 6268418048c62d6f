//! The CUDA device: the driver, a rank on a GPU, the order of its operations, and launches.

mod control;
pub mod create;
pub mod driver;
pub mod event;
pub mod gpudirect;
pub mod graph;
pub mod layout;
pub mod memory;
pub mod network;
pub mod rank;
pub mod reaper;
pub mod run;
pub mod sharing;
mod start;
pub mod stream;

use crate::error::Error;
use cudarc::driver::sys::CUstream;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Returns whether this build has kernels, that is, whether there was nvcc.
pub fn built() -> bool {
    !oxccl_kernels::FATBIN.is_empty()
}

/// A source of failures: it launches on streams and may fail there later, which no call of CUDA
/// tells.
pub trait Failing {
    /// Returns the failure of what the source launched on this stream, if it was not delivered yet.
    /// Must not block, nor wait for a stream: it is called often, also while the stream hangs.
    fn failure_on(&self, stream: CUstream) -> Option<Error>;
}

type Source = dyn Failing + Send + Sync;

static FAILURES: Mutex<Vec<Weak<Source>>> = Mutex::new(Vec::new());

fn sources() -> MutexGuard<'static, Vec<Weak<Source>>> {
    FAILURES.lock().unwrap_or_else(|e| e.into_inner())
}

/// Registers a source, which is asked for failures from here on until it is dropped.
pub fn register(source: Weak<Source>) {
    let mut sources = sources();
    sources.retain(|known| known.strong_count() > 0);
    sources.push(source);
}

/// Returns the failure of something that was launched on this stream.
pub fn failure_of(stream: CUstream) -> Option<Error> {
    // The sources are asked and dropped without the lock: one of these may be the last reference.
    let living: Vec<Arc<Source>> = sources().iter().filter_map(Weak::upgrade).collect();
    living.iter().find_map(|source| source.failure_on(stream))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A source that has failed on one stream, and tells it once.
    struct Once(usize, AtomicBool);

    impl Failing for Once {
        fn failure_on(&self, stream: CUstream) -> Option<Error> {
            let told = stream as usize != self.0 || self.1.swap(true, Ordering::Relaxed);
            (!told).then_some(Error::Aborted { by: "the test" })
        }
    }

    #[test]
    fn failures_are_found_by_their_stream_until_their_source_is_gone() {
        let (stream, other) = (0x7f00_0000_1000, 0x7f00_0000_2000);
        let find = |stream: usize| failure_of(stream as CUstream);
        let make = || Arc::new(Once(stream, AtomicBool::new(false)));
        let (first, second) = (make(), make());
        register(Arc::downgrade(&first) as Weak<Source>);
        register(Arc::downgrade(&second) as Weak<Source>);
        assert!(find(other).is_none());
        assert!(matches!(find(stream), Some(Error::Aborted { by: "the test" })));
        drop(first);
        assert!(find(stream).is_some(), "the second one's");
        assert!(find(stream).is_none());
        drop(second);
        let third = make();
        register(Arc::downgrade(&third) as Weak<Source>);
        assert!(find(stream).is_some());
        let theirs = sources().iter().filter_map(Weak::upgrade).count();
        assert_eq!((theirs, sources().len()), (1, 1), "the dead are forgotten");
    }
}
