//! The signals that `oxccl run` takes one by one, in the thread that waits for the ranks.

use rustix::process::Signal;
use std::io;
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The signals that are passed on to the ranks.
const FORWARDED: [(Signal, &str); 4] = [
    (Signal::HUP, "SIGHUP"),
    (Signal::INT, "SIGINT"),
    (Signal::QUIT, "SIGQUIT"),
    (Signal::TERM, "SIGTERM"),
];

/// Returns the name of a signal that is passed on to the ranks; `None` for other signals.
pub(super) fn forwarded(signal: Signal) -> Option<&'static str> {
    FORWARDED.iter().find(|(known, _)| *known == signal).map(|(_, name)| *name)
}

/// The signals that are blocked, to be taken one by one.
#[derive(Clone, Copy)]
pub(super) struct Signals {
    taken: libc::sigset_t,
    /// The mask before, with the signals that were blocked already.
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals in this thread, and in those that it starts from now on. Signals that
    /// this process was started to ignore, as by nohup, stay ignored.
    pub(super) fn block() -> Self {
        // SAFETY: all zeros is a value of this type.
        let (mut taken, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { zeroed() };
        // SAFETY: the set can be written; no thread relies on another disposition of SIGCHLD,
        // without which, where the parent ignored it, the ends of children would be lost.
        unsafe {
            libc::sigemptyset(&mut taken);
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
        // With SIGTTIN blocked, a read of the terminal in the background fails, and does not stop
        // this process.
        let others = [Signal::CHILD, Signal::TSTP, Signal::TTIN, Signal::PIPE];
        for signal in FORWARDED.iter().map(|(signal, _)| *signal).chain(others) {
            if !is_ignored(signal) {
                // SAFETY: the set was made empty before.
                unsafe { libc::sigaddset(&mut taken, signal.as_raw()) };
            }
        }
        // SAFETY: one set is complete, the other can be written.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &taken, &mut before) };
        Self { taken, before }
    }

    /// Restores the mask before, in a child before its program begins; safe between fork and exec.
    pub(super) fn restore(&self) -> io::Result<()> {
        // SAFETY: the set is complete, and the old mask is not asked for.
        let code =
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
        if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
    }

    /// Takes the next signal; `None` if none comes within the limit. Blocks.
    pub(super) fn take(&self, limit: Duration) -> Option<Signal> {
        let (tv_sec, tv_nsec) = (limit.as_secs() as i64, i64::from(limit.subsec_nanos()));
        let limit = libc::timespec { tv_sec, tv_nsec };
        // SAFETY: set and limit are complete, and nothing but the number is asked for.
        let number = unsafe { libc::sigtimedwait(&self.taken, ptr::null_mut(), &limit) };
        Signal::from_named_raw(number)
    }
}

/// Makes this process end when nobody reads its output any more, as other commands do. `oxccl run`
/// does not: it has ranks to end.
pub(crate) fn end_with_reader() {
    // SAFETY: no thread has been started, and nothing here relies on a write that fails.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// The time in ms that a rank waits to be ended by its launcher.
const WAIT_MS: libc::c_int = 1000;

/// The launcher of a command of its own, as told by it to this rank.
static LAUNCHER: AtomicI32 = AtomicI32::new(0);

/// Makes the launcher, if it is this process's parent, end all ranks when nobody reads the output
/// any more, before any of them could tell of the others' ends.
pub(crate) fn end_job_with_reader(launcher: i32) {
    extern "C" fn tell(signal: libc::c_int) {
        // SAFETY: the calls are safe in a handler.
        unsafe {
            let parent = libc::getppid();
            if parent == LAUNCHER.load(Ordering::Relaxed) {
                libc::kill(parent, signal);
                libc::poll(ptr::null_mut(), 0, WAIT_MS);
            }
            libc::_exit(128 + signal);
        }
    }
    LAUNCHER.store(launcher, Ordering::Relaxed);
    // SAFETY: the handler makes only calls that are safe in one.
    unsafe { libc::signal(libc::SIGPIPE, tell as *const () as libc::sighandler_t) };
}

fn is_ignored(signal: Signal) -> bool {
    // SAFETY: all zeros is a value of this type, and it can be written; nothing is changed.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        let known = libc::sigaction(signal.as_raw(), ptr::null(), &mut action) == 0;
        known && action.sa_sigaction == libc::SIG_IGN
    }
}
