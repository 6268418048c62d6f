//! A thread that makes all calls into a plugin for one communicator.

use super::CurrentCall;
use crate::error::{Error, Result};
use crate::exit;
use crate::log::{self, Level, Subsystem};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The time for which the thread looks without a pause after something has moved.
const EAGER: Duration = Duration::from_micros(200);
/// The first and the longest pause between looks at a plugin that shows nothing new; each is twice
/// the one before.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];
/// How long the end of a communicator waits for a plugin to end: an abort takes a second at most
/// with all that it does besides.
const CLOSING: Duration = Duration::from_millis(800);
/// The same for another plugin, whose own end is waited for, too.
const CLOSING_OTHER: Duration = Duration::from_millis(200);

/// The state of the thread: a plugin in use. It is made, used and dropped there.
pub(crate) trait Serve: 'static {
    /// Does what there is to do without a call; returns whether something has moved.
    fn poll(&mut self) -> bool {
        false
    }

    /// Returns whether there may be something to do later without a call.
    fn has_tasks(&self) -> bool {
        false
    }

    /// Returns whether somebody waits for what is done without a call: if not, the thread looks
    /// only every millisecond.
    fn is_urgent(&self) -> bool {
        true
    }
}

type Call<S> = Box<dyn FnOnce(&mut S) + Send>;

/// The state that the thread and those who wait for it share.
struct Shared<S> {
    calls: Mutex<Vec<Call<S>>>,
    current: Arc<CurrentCall>,
    /// True once somebody has waited for something since the thread's last look.
    awaited: AtomicBool,
    napping: AtomicBool,
    /// True while the thread looks again by itself, within a millisecond.
    ticking: AtomicBool,
    stopping: AtomicBool,
    /// True once the thread has ended, or never began.
    ended: AtomicBool,
}

impl<S> Shared<S> {
    fn calls(&self) -> MutexGuard<'_, Vec<Call<S>>> {
        self.calls.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The thread, which ends when this is dropped.
pub(crate) struct Worker<S> {
    shared: Arc<Shared<S>>,
    thread: Thread,
}

impl<S: Serve> Worker<S> {
    /// Starts the thread, which makes its state. Fails if that fails or does not return.
    pub(crate) fn start(
        name: &str,
        make: impl FnOnce() -> oxccl_net::Result<S> + Send + 'static,
        current: Arc<CurrentCall>,
    ) -> Result<Self> {
        let flag = || AtomicBool::new(false);
        let (awaited, napping, stopping, ended) = (flag(), flag(), flag(), flag());
        let (calls, ticking) = (Mutex::default(), flag());
        let shared = Shared { calls, current, awaited, napping, ticking, stopping, ended };
        let shared = Arc::new(shared);
        let (answer, of_thread) = (Answer::default(), shared.clone());
        let give = answer.clone();
        let body = move || {
            exit::mark_own_thread();
            of_thread.current.serve();
            let worked = catch_unwind(AssertUnwindSafe(|| work(&of_thread, make, &give)));
            of_thread.ended.store(true, Ordering::Release);
            drop(worked);
        };
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        let started = started.map_err(|e| Error::system("starting a thread", e, "ulimit -u"))?;
        let worker = Self { thread: started.thread().clone(), shared };
        answer.wait(|| worker.trouble())??;
        Ok(worker)
    }

    /// Returns the texts about the plugin.
    pub(super) fn current(&self) -> &CurrentCall {
        &self.shared.current
    }

    /// Returns the error of everything that waits for the thread, if it can be waited for in vain.
    pub(super) fn trouble(&self) -> Option<oxccl_net::Error> {
        let ended = || {
            let (label, cause) = (self.current().label(), "the thread that calls it has ended");
            oxccl_net::Error::local(label, cause, "see the log")
        };
        self.shared.ended.load(Ordering::Acquire).then(ended).or_else(|| self.current().stuck())
    }

    /// Makes the thread look at once.
    pub(super) fn wake(&self) {
        self.shared.awaited.store(true, Ordering::SeqCst);
        if self.shared.napping.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
    }

    /// Makes the thread look, unless it does so by itself within a millisecond.
    pub(crate) fn wake_if_idle(&self) {
        if !self.shared.ticking.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Has the thread make a call, and waits for the answer.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut S) -> oxccl_net::Result<T> + Send + 'static,
    ) -> oxccl_net::Result<T> {
        self.call_until(call, || None)
    }

    /// Has the thread make a call, and waits for the answer as long as `stop` finds no reason
    /// against it.
    pub(super) fn call_until<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut S) -> oxccl_net::Result<T> + Send + 'static,
        mut stop: impl FnMut() -> Option<oxccl_net::Error>,
    ) -> oxccl_net::Result<T> {
        let answer = Answer::default();
        let give = answer.clone();
        self.shared.calls().push(Box::new(move |state| give.set(call(state))));
        self.wake();
        answer.wait(|| self.trouble().or_else(&mut stop))?
    }
}

impl<S> Drop for Worker<S> {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.thread.unpark();
        let start = Instant::now();
        let ended = || self.shared.ended.load(Ordering::Acquire);
        // Another plugin may be called for a moment.
        let current = &self.shared.current;
        let lasts = || current.stuck().is_some() || current.lasting(CLOSING_OTHER).is_some();
        let limit = || match current.is_in_other() && lasts() {
            true => CLOSING_OTHER,
            false => CLOSING,
        };
        while !ended() && start.elapsed() < limit() {
            std::thread::yield_now();
        }
        // A thread that is still in the plugin keeps all memory that the plugin may use.
        let left_behind = self.shared.current.lasting(limit() / 2).filter(|_| !ended());
        if let Some(error) = left_behind {
            log::line(Level::Warn, Subsystem::Net, &error.to_string());
        }
    }
}

/// Makes the state, and then the calls that are asked for, until the end.
fn work<S: Serve>(
    shared: &Shared<S>,
    make: impl FnOnce() -> oxccl_net::Result<S>,
    give: &Answer<oxccl_net::Result<()>>,
) {
    let Some(visit) = exit::visit_driver() else { return };
    let made = make();
    drop(visit);
    let mut state = match made {
        Ok(state) => state,
        Err(error) => return give.set(Err(error)),
    };
    give.set(Ok(()));
    let (mut moved_at, mut nap) = (Instant::now(), NAPS[0]);
    while !shared.stopping.load(Ordering::SeqCst) {
        // Plugins may call drivers that unload while the process exits.
        let Some(visit) = exit::visit_driver() else { return std::mem::forget(state) };
        let awaited = shared.awaited.swap(false, Ordering::SeqCst);
        let calls = std::mem::take(&mut *shared.calls());
        let mut moved = !calls.is_empty();
        if awaited {
            nap = NAPS[0];
        }
        calls.into_iter().for_each(|call| call(&mut state));
        moved |= state.poll();
        drop(visit);
        if moved {
            (moved_at, nap) = (Instant::now(), NAPS[0]);
        }
        if state.is_urgent() && moved_at.elapsed() < EAGER {
            std::thread::yield_now();
            continue;
        }
        shared.napping.store(true, Ordering::SeqCst);
        if !shared.awaited.load(Ordering::SeqCst) && !shared.stopping.load(Ordering::SeqCst) {
            match state.has_tasks() {
                false => std::thread::park(),
                true if state.is_urgent() => std::thread::park_timeout(nap),
                true => {
                    shared.ticking.store(true, Ordering::SeqCst);
                    std::thread::park_timeout(NAPS[1]);
                    shared.ticking.store(false, Ordering::SeqCst);
                }
            }
            nap = (nap * 2).min(NAPS[1]);
        }
        shared.napping.store(false, Ordering::SeqCst);
    }
    let calls = std::mem::take(&mut *shared.calls());
    let Some(_visit) = exit::visit_driver() else {
        return std::mem::forget((calls, state));
    };
    // What a call that was not made any more would have used ends here, too.
    drop(calls);
    drop(state);
}

/// An answer that one thread gives and another one waits for.
pub(super) struct Answer<T>(Arc<(Mutex<Option<T>>, Condvar)>);

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Answer<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Answer<T> {
    pub(super) fn set(&self, value: T) {
        *self.0.0.lock().unwrap_or_else(|e| e.into_inner()) = Some(value);
        self.0.1.notify_all();
    }

    /// Waits for the answer, as long as there is no trouble.
    pub(super) fn wait(
        &self,
        mut trouble: impl FnMut() -> Option<oxccl_net::Error>,
    ) -> oxccl_net::Result<T> {
        let mut value = self.0.0.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            if let Some(value) = value.take() {
                return Ok(value);
            }
            let waited = self.0.1.wait_timeout(value, Duration::from_millis(10));
            value = waited.unwrap_or_else(|e| e.into_inner()).0;
            if value.is_none()
                && let Some(error) = trouble()
            {
                return Err(error);
            }
        }
    }
}
