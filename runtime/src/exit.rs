//! Exclusion of the library's own threads from the CUDA driver while the process exits: the driver
//! unloads in an exit handler of its own, and a call during the unloading crashes the process.
//!
//! A thread of the library holds a [`Visit`] while it may call the driver or touch memory from the
//! driver. An exit handler, registered after the driver's and therefore run before it, lets no
//! further visit begin and waits for those under way.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// The longest time that the exit handler waits for visits under way. Only a free that waits for a
/// kernel takes long; after this time the exit goes on, as it must not hang.
const LIMIT: Duration = Duration::from_secs(4);
/// The time after which the exit handler makes kernels give up for which a visit may wait.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    closed: bool,
    visits: usize,
}

/// A gate that counts visits until it is closed.
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// True once the exit handler runs.
    ends: AtomicBool,
}

static DRIVER: Gate = Gate::new();
/// The function that makes kernels give up for which a visit may wait.
static GIVE_UP: OnceLock<fn()> = OnceLock::new();

thread_local! {
    /// True if this thread belongs to the library. Users' threads are left alone: the order of
    /// their calls while the process exits is the user's responsibility.
    static OWN: Cell<bool> = const { Cell::new(false) };
}

impl Gate {
    const fn new() -> Self {
        let state = Mutex::new(State { closed: false, visits: 0 });
        Self { state, changed: Condvar::new(), ends: AtomicBool::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn visit(&'static self) -> Option<Visit> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        state.visits += 1;
        Some(Visit(self))
    }

    /// Refuses visits from now on and waits for those under way; returns whether all of them ended
    /// in time.
    fn close(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.state();
        state.closed = true;
        while state.visits > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        true
    }

    /// Closes the gate and waits for the visits under way, and once more after `give_up` where they
    /// take longer. Does nothing when it is called again, as the exit handler is for each of its
    /// registrations: a visit that does not end would hold the exit up each time.
    fn end(&self, limits: [Duration; 2], give_up: impl FnOnce()) {
        if self.ends.swap(true, Ordering::SeqCst) || self.close(limits[0]) {
            return;
        }
        give_up();
        self.close(limits[1]);
    }
}

/// A stay of one of the library's threads in the driver.
#[must_use]
pub(crate) struct Visit(&'static Gate);

impl Drop for Visit {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.visits -= 1;
        // A notification is a system call, and only the exit handler waits for one.
        if state.closed {
            self.0.changed.notify_all();
        }
    }
}

/// Begins a visit; `None` once the process exits, when the thread has to end or to wait for ever.
pub(crate) fn visit_driver() -> Option<Visit> {
    DRIVER.visit()
}

/// Marks the calling thread as one of the library's.
pub(crate) fn mark_own_thread() {
    OWN.set(true);
}

/// Returns whether the calling thread is one of the library's.
pub(crate) fn is_own_thread() -> bool {
    OWN.get()
}

extern "C" fn close() {
    // A forked child has none of these threads, but may have inherited the count of their visits.
    if crate::fork::forked() {
        return;
    }
    DRIVER.end([PATIENCE, LIMIT], || {
        if let Some(give_up) = GIVE_UP.get() {
            give_up();
        }
    });
}

/// Registers the exit handler to run before those that are registered already. To be called after
/// the driver has registered its own: once the driver is initialised, and each time it has made a
/// context. `give_up` makes kernels give up for which a visit may wait.
pub(crate) fn close_before_the_driver(give_up: fn()) {
    GIVE_UP.get_or_init(|| give_up);
    close_before_others();
}

/// Registers the exit handler to run before those that are registered already.
pub(crate) fn close_before_others() {
    // SAFETY: the function lives as long as the library, which is never unloaded. It may be
    // registered repeatedly. If the registration finds no room, the process exits as without it.
    unsafe { libc::atexit(close) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_is_in_the_driver_after_the_gate_is_closed() {
        static GATE: Gate = Gate::new();
        static UNLOADED: AtomicBool = AtomicBool::new(false);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    let mut calls = 0u64;
                    while let Some(_visit) = GATE.visit() {
                        // A call of the driver, which is unloaded after its handler.
                        assert!(!UNLOADED.load(Ordering::SeqCst));
                        std::thread::yield_now();
                        assert!(!UNLOADED.load(Ordering::SeqCst));
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        while GATE.state().visits == 0 {
            std::thread::yield_now();
        }
        assert!(GATE.close(Duration::from_secs(60)));
        UNLOADED.store(true, Ordering::SeqCst);
        let calls: Vec<u64> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert!(calls.iter().any(|&n| n > 0));
        assert!(GATE.close(Duration::ZERO) && GATE.visit().is_none());
    }

    #[test]
    fn a_visit_that_does_not_end_holds_the_exit_up_for_a_bounded_time() {
        static GATE: Gate = Gate::new();
        let visit = GATE.visit();
        let mut given_up = false;
        GATE.end([Duration::from_millis(1); 2], || given_up = true);
        assert!(given_up && GATE.visit().is_none());
        // The next registration of the handler waits no more.
        GATE.end([Duration::MAX; 2], || unreachable!("it has given up before"));
        drop(visit);
        assert!(GATE.close(Duration::ZERO));
    }
}
