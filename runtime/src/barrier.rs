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
    use std::sync::atomic::AtomicU32;

    /// Enough for the system to answer meanwhile, and for both to be at it at once often.
    const ROUNDS: u32 = if cfg!(miri) { 50 } else { 150_000 };

    /// Waits for a round without sleeping, so that both threads go on together.
    fn wait_for(word: &AtomicU32, round: u32) {
        let mut looks = 0u32;
        while word.load(Ordering::Acquire) != round {
            looks += 1;
            match looks % 1024 {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    #[test]
    fn one_of_two_threads_sees_what_the_other_did_before_its_barrier() {
        let words: [CachePadded<AtomicU32>; 5] = Default::default();
        let [first, second, go, done, seen_by_light] = &words;
        let (mut missed, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    wait_for(go, round);
                    first.store(round, Ordering::Relaxed);
                    light();
                    let seen = second.load(Ordering::Relaxed);
                    seen_by_light.store(seen, Ordering::Relaxed);
                    done.store(round, Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                go.store(round, Ordering::Release);
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                second.store(round, Ordering::Relaxed);
                refused += u32::from(!heavy());
                let seen = first.load(Ordering::Relaxed);
                wait_for(done, round);
                let both = [seen, seen_by_light.load(Ordering::Relaxed)];
                missed += u32::from(!both.contains(&round));
            }
        });
        assert_eq!((missed, refused), (0, 0), "rounds in which neither saw the other");
    }
}
