//! The worker: one thread per process that advances all streams in turn and never blocks on one of
//! them. Also the way in which threads wait.
//!
//! The worker sleeps between looks, so that it takes no core from a rank pinned to the same one; a
//! thread that synchronises advances its streams itself. Calls do not wake the worker while it
//! looks regularly.

use super::collective::Budget;
use super::stream::{OWNED, Progress, Stream, VISIT};
use super::task::HostFunction;
use crate::error::{Error, Result};
use crate::fork;
use crate::log::{self, Level, Subsystem};
use crossbeam::channel::{Sender, unbounded};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The pause between looks while something waits. It is doubled up to the second value while
/// nothing moves.
const PAUSE: Duration = Duration::from_micros(20);
const LONG_PAUSE: Duration = Duration::from_millis(1);
/// The time without work after which the worker sleeps until it is woken.
const IDLE: Duration = Duration::from_millis(50);
/// A waiting thread spins this many rounds, then yields its core this many times, then sleeps.
const SPINS: u32 = 100;
const YIELDS: u32 = 2000;
pub(super) const NAP: Duration = Duration::from_micros(50);

/// True if several streams had work at the last look.
static SEVERAL: AtomicBool = AtomicBool::new(false);

struct Worker {
    streams: Mutex<Vec<Arc<Stream>>>,
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

static WORKER: Worker = Worker {
    streams: Mutex::new(Vec::new()),
    asleep: AtomicBool::new(false),
    thread: OnceLock::new(),
};

fn streams() -> MutexGuard<'static, Vec<Arc<Stream>>> {
    WORKER.streams.lock().unwrap_or_else(|e| e.into_inner())
}

/// Makes the worker advance a stream.
pub(super) fn add(stream: Arc<Stream>) {
    streams().push(stream);
    if WORKER.thread.get().is_none() {
        static START: std::sync::Once = std::sync::Once::new();
        START.call_once(|| {
            refuse_children();
            let thread = std::thread::Builder::new().name("oxccl-worker".to_owned()).spawn(run);
            match thread {
                Ok(handle) => drop(WORKER.thread.set(handle.thread().clone())),
                Err(e) => {
                    let text = format!("no worker thread ({e}): work advances in synchronize only");
                    log::line(Level::Warn, Subsystem::Init, &text);
                }
            }
        });
    }
    if WORKER.asleep.swap(false, Ordering::AcqRel)
        && let Some(thread) = WORKER.thread.get()
    {
        thread.unpark();
    }
}

/// Makes the library refuse to work in forked children, which do not have this module's threads.
fn refuse_children() {
    if let Err(e) = fork::refuse_children() {
        log::line(Level::Warn, Subsystem::Coll, &e.to_string());
    }
}

fn run() {
    let (mut pause, mut last_work) = (PAUSE, Instant::now());
    loop {
        // A task that panics fails by itself; no other panic may end this thread either.
        *lock_looking() = Some(Instant::now());
        let look = catch_unwind(help).unwrap_or_else(|_| {
            log::line(
                Level::Warn,
                Subsystem::Coll,
                "the worker panicked and goes on; please report it",
            );
            Progress::Stuck
        });
        *lock_looking() = None;
        match look {
            Progress::Moved => (pause, last_work) = (PAUSE, Instant::now()),
            Progress::Idle if last_work.elapsed() > IDLE => {
                WORKER.asleep.store(true, Ordering::Release);
                if streams().is_empty() {
                    std::thread::park();
                }
                WORKER.asleep.store(false, Ordering::Release);
                (pause, last_work) = (PAUSE, Instant::now());
                continue;
            }
            _ => pause = (pause * 2).min(LONG_PAUSE),
        }
        std::thread::sleep(pause);
    }
}

/// Since when the worker has looked at the streams; `None` while it does not.
static LOOKING: Mutex<Option<Instant>> = Mutex::new(None);

fn lock_looking() -> MutexGuard<'static, Option<Instant>> {
    LOOKING.lock().unwrap_or_else(|e| e.into_inner())
}

/// Advances every stream with open work once where the worker does not, as a profiler does not
/// return to it; for threads that only ask whether something is done.
pub(super) fn stand_in() {
    let since = *lock_looking();
    if since.is_some_and(|since| since.elapsed() > OWNED) {
        help();
    }
}

/// Advances every stream with open work once.
fn help() -> Progress {
    let list = streams().clone();
    if list.is_empty() {
        return Progress::Idle;
    }
    SEVERAL.store(list.len() > 1, Ordering::Relaxed);
    let (mut all, mut idle) = (Progress::Stuck, false);
    let look = Budget { polls: if list.len() > 1 { 2 } else { VISIT.polls }, ..VISIT };
    for stream in &list {
        let progress = stream.advance(look);
        // Others may wait for an event behind a thread that does not come back.
        stream.give_up_behind(progress);
        match progress {
            Progress::Moved => all = Progress::Moved,
            Progress::Idle => idle = true,
            Progress::Stuck | Progress::Owned => {}
        }
    }
    if idle {
        streams().retain(|s| s.advance(VISIT) != Progress::Idle || s.deactivate());
    }
    all
}

/// True once a profiler is told of work, and may not return.
pub(super) static PROFILED: AtomicBool = AtomicBool::new(false);

/// Advances every stream as [`help`] does, unless another waiting thread is doing so. `anyway`:
/// even then, as a profiler may not return to that one.
fn help_alone(anyway: bool) -> Progress {
    static HELPING: Mutex<()> = Mutex::new(());
    match HELPING.try_lock() {
        Err(TryLockError::WouldBlock) if !anyway => Progress::Stuck,
        Err(TryLockError::WouldBlock) => help(),
        Ok(_guard) => help(),
        Err(TryLockError::Poisoned(_)) => help(),
    }
}

/// Waits until `look` finds its stream idle, for at most `limit`. Returns false if the time is
/// over. All other work of this process advances meanwhile.
pub(super) fn wait_until(limit: Option<Duration>, mut look: impl FnMut() -> Progress) -> bool {
    let mut rounds = 0;
    let mut start = None;
    loop {
        match look() {
            Progress::Idle => return true,
            Progress::Moved => rounds = 0,
            Progress::Stuck | Progress::Owned => {
                rounds += 1;
                // Several ranks of one process may wait for each other.
                let several = SEVERAL.load(Ordering::Relaxed);
                let anyway = rounds > SPINS + YIELDS && PROFILED.load(Ordering::Relaxed);
                if (several || rounds % 16 == 1) && help_alone(anyway) == Progress::Moved {
                    rounds = 0;
                }
            }
        }
        if rounds > SPINS + YIELDS {
            std::thread::sleep(NAP);
        } else if rounds > SPINS || crowded() {
            std::thread::yield_now();
        }
        if let Some(limit) = limit
            && start.get_or_insert_with(Instant::now).elapsed() >= limit
        {
            return false;
        }
    }
}

/// Waits as long as `so` returns true, and advances all streams meanwhile. Blocks.
pub fn wait_while(mut so: impl FnMut() -> bool) {
    wait_until(None, || match help() {
        _ if !so() => Progress::Idle,
        Progress::Idle => Progress::Stuck,
        progress => progress,
    });
}

/// Waits as long as `so` returns true, and advances nothing: what advances may call a profiler,
/// which may not return. Blocks.
pub fn pause_while(mut so: impl FnMut() -> bool) {
    while so() {
        std::thread::sleep(NAP);
    }
}

static WAITING_THREADS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Notes that a communicator exists whose ranks on this machine have this many threads that wait
/// actively: their own, and those that call plugins.
pub fn note_waiting_threads(threads: usize) {
    WAITING_THREADS.fetch_max(threads, Ordering::Relaxed);
}

/// Returns whether more threads wait on this machine than it has processors: then spinning only
/// hinders.
pub(super) fn crowded() -> bool {
    WAITING_THREADS.load(Ordering::Relaxed) > processors()
}

/// Returns how many of so many ranks on this machine share a processor, if all are in use.
pub fn ranks_per_processor(ranks: usize) -> u8 {
    u8::try_from(ranks.div_ceil(processors()).max(1)).unwrap_or(u8::MAX)
}

fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| {
        // These are the processors of the machine, as ranks may be pinned to one processor each.
        std::fs::read_to_string("/sys/devices/system/cpu/online")
            .ok()
            .and_then(|list| count_list(&list))
            .unwrap_or(1)
    })
}

/// Returns the number of processors in a list such as `0-3,8`.
fn count_list(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(sum + last.checked_sub(first)? + 1)
    })
}

/// A function to be called, and the flag that is set when it has returned.
pub(super) type Job = (HostFunction, Arc<AtomicBool>);

/// Returns the channel to the thread that calls users' functions. Starts the thread if need be.
pub(super) fn caller() -> Result<Sender<Job>> {
    static CALLER: Mutex<Option<Sender<Job>>> = Mutex::new(None);
    let mut caller = CALLER.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(caller) = &*caller {
        return Ok(caller.clone());
    }
    refuse_children();
    let (sender, jobs) = unbounded::<Job>();
    let run = move || {
        for (function, done) in jobs {
            // SAFETY: the user gave the function with this argument to be called once.
            unsafe { (function.function)(function.argument.0.cast()) };
            done.store(true, Ordering::Release);
        }
    };
    let started = std::thread::Builder::new().name("oxccl-hostfunc".to_owned()).spawn(run);
    let hint = "raise ulimit -u";
    started.map_err(|e| Error::system("starting the thread for host functions", e, hint))?;
    Ok(caller.insert(sender).clone())
}

/// Has a user's function called. Returns the flag that is set when the function has returned.
pub(super) fn call(function: HostFunction) -> Result<Arc<AtomicBool>> {
    let done = Arc::new(AtomicBool::new(false));
    let gone = |_| Error::Internal { what: "the thread for host functions has ended".to_owned() };
    caller()?.send((function, done.clone())).map_err(gone)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    #[test]
    fn processor_lists() {
        assert_eq!(super::count_list("0-3,8\n"), Some(5));
        assert_eq!(super::count_list("0"), Some(1));
        assert_eq!(super::count_list("x"), None);
    }
}
