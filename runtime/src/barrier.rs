//! A memory barrier between threads of this process of which one goes by seldom, and pays for both:
//! it has the system interrupt the others (`membarrier`), which then only keep the compiler from
//! moving accesses. A barrier of the processor takes as long as a fifth of a look-up.

use crate::cancel::Uncancelled;
use crossbeam::utils::CachePadded;
use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

/// Nobody has gone by yet.
const UNASKED: u8 = 0;
/// All take barriers of the processor: the system is being asked, or it refuses (Linux before 4.14,
/// some sandboxes, valgrind).
const FENCES: u8 = 1;
/// The system interrupts the threads of this process.
const INTERRUPTS: u8 = 2;
/// In a line of its own, as every look-up reads it.
static STATE: CachePadded<AtomicU8> = CachePadded::new(AtomicU8::new(UNASKED));

/// Takes a barrier of the processor, and once asks the system to interrupt the threads of this
/// process from now on. A process of several threads waits some 10 ms for that, which a thread of
/// its own does.
#[cold]
fn light_by_itself() {
    let first = STATE.compare_exchange(UNASKED, FENCES, Ordering::SeqCst, Ordering::SeqCst);
    if first.is_ok() && !cfg!(miri) {
        let _whole = Uncancelled::begin();
        let register = || {
            if membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() {
                STATE.store(INTERRUPTS, Ordering::SeqCst);
            }
        };
        // Without the thread it stays as it is.
        drop(std::thread::Builder::new().name("oxccl-barrier".to_owned()).spawn(register));
    }
    fence(Ordering::SeqCst);
}

/// Orders all accesses before it before those after it, for threads that call [`heavy`].
#[inline]
pub(crate) fn light() {
    if STATE.load(Ordering::Acquire) == INTERRUPTS {
        compiler_fence(Ordering::SeqCst);
    } else {
        light_by_itself();
    }
}

/// Orders all accesses before it before those after it. What another thread did before it went by
/// [`light`] is seen behind this barrier, or that thread sees what was done before this one.
/// Returns false if the system refuses, and nothing of this holds. Blocks: some microseconds.
pub(crate) fn heavy() -> bool {
    fence(Ordering::SeqCst);
    // Who learns of the interrupts only after this load sees what was done before it.
    let interrupts = STATE.load(Ordering::SeqCst) == INTERRUPTS;
    !interrupts || membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    /// Enough for the system to answer meanwhile.
    const ROUNDS: u32 = 4000;

    #[test]
    fn one_of_two_threads_sees_what_the_other_did_before_its_barrier() {
        let (first, second) = (AtomicU32::new(0), AtomicU32::new(0));
        let (both, missed) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (first, second, both, missed) = (&first, &second, &both, &missed);
            let seen_by_light: &'static AtomicU32 = Box::leak(Box::default());
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    both.wait();
                    first.store(round, Ordering::Relaxed);
                    light();
                    seen_by_light.store(second.load(Ordering::Relaxed), Ordering::Relaxed);
                    both.wait();
                }
            });
            for round in 1..=ROUNDS {
                both.wait();
                second.store(round, Ordering::Relaxed);
                let holds = heavy();
                let seen = first.load(Ordering::Relaxed);
                both.wait();
                assert!(holds, "the system refuses");
                if seen != round && seen_by_light.load(Ordering::Relaxed) != round {
                    missed.store(true, Ordering::Relaxed);
                }
            }
        });
        assert!(!missed.into_inner(), "neither saw the other");
    }
}
