//! The lock that every call takes. Mostly nobody waits for it, and it ends with a plain store,
//! where the end of a lock with sleepers takes as long as its begin.

use super::worker::NAP;
use crate::cancel::Uncancelled;
use crossbeam::utils::Backoff;
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// The right to use what a [`CallMutex`] protects.
pub type CallGuard<'a, T> = SpinMutexGuard<'a, T>;

/// A lock whose holders go on soon: after a moment, or once a plugin returns.
#[derive(Debug, Default)]
pub struct CallMutex<T>(SpinMutex<T>);

impl<T> CallMutex<T> {
    /// Protects a value.
    pub const fn new(value: T) -> Self {
        Self(SpinMutex::new(value))
    }

    /// Locks. Blocks while another thread has the lock; also where that thread panicked before.
    #[inline]
    pub fn lock(&self) -> CallGuard<'_, T> {
        self.0.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Locks unless another thread has the lock. Blocks: never.
    pub fn try_lock(&self) -> Option<CallGuard<'_, T>> {
        self.0.try_lock()
    }

    #[cold]
    fn wait(&self) -> CallGuard<'_, T> {
        let _whole = Uncancelled::begin();
        let backoff = Backoff::new();
        loop {
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
            if backoff.is_completed() {
                std::thread::sleep(NAP);
            } else {
                backoff.snooze();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn threads_wait_for_each_other_also_for_long_and_after_a_panic() {
        static LOCK: CallMutex<u32> = CallMutex::new(0);
        let ((locked, is_locked), (go_on, goes_on)) = (channel(), channel::<()>());
        let holder = std::thread::spawn(move || {
            let mut held = LOCK.lock();
            locked.send(()).unwrap();
            goes_on.recv().unwrap();
            *held += 1;
            panic!("while the lock is held");
        });
        is_locked.recv().unwrap();
        assert!(LOCK.try_lock().is_none());
        let adding = std::thread::spawn(|| (0..10_000).for_each(|_| *LOCK.lock() += 1));
        go_on.send(()).unwrap();
        (0..10_000).for_each(|_| *LOCK.lock() += 1);
        adding.join().unwrap();
        assert!(holder.join().is_err());
        assert_eq!(*LOCK.lock(), 20_001);
    }
}
