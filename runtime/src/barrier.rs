//! A memory barrier between threads of this process of which one goes by seldom, and pays for both:
//! it has the system interrupt the others (`membarrier`), which then only keep the compiler from
//! moving accesses. A barrier of the processor takes as long as a fifth of a look-up.

use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// Returns whether the system interrupts this process's threads. Where it does not (Linux before
/// 4.14, some sandboxes, valgrind), both sides take the processor's barrier.
#[inline]
fn interrupts() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let register = || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
    *REGISTERED.get_or_init(|| !cfg!(miri) && register())
}

/// Orders all accesses before it before those after it, for threads that call [`heavy`].
#[inline]
pub(crate) fn light() {
    if interrupts() {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Orders all accesses before it before those after it. What another thread did before it went by
/// [`light`] is seen behind this barrier, or that thread sees what was done before this one.
/// Returns false if the system refuses, and nothing of this holds. Blocks: some microseconds.
pub(crate) fn heavy() -> bool {
    fence(Ordering::SeqCst);
    !interrupts() || membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    #[test]
    fn one_of_two_threads_sees_what_the_other_did_before_its_barrier() {
        let (first, second) = (AtomicU32::new(0), AtomicU32::new(0));
        let (both, missed) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (first, second, both, missed) = (&first, &second, &both, &missed);
            let seen_by_light: &'static AtomicU32 = Box::leak(Box::default());
            scope.spawn(move || {
                for round in 1..=2000 {
                    both.wait();
                    first.store(round, Ordering::Relaxed);
                    light();
                    seen_by_light.store(second.load(Ordering::Relaxed), Ordering::Relaxed);
                    both.wait();
                }
            });
            for round in 1..=2000 {
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
