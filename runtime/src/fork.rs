//! The effects of a fork on the library. The child has none of the library's threads. It may have
//! locks that no thread will release, and it has the parent's shared memory, sockets and operations
//! under way, which it must not touch. So once this process uses more than ids, its forked children
//! are refused everything, with a text.

use crate::error::{Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Refuses children from here on. To be called before the first thread, mapping or name of the
/// process is made.
pub(crate) fn refuse_children() -> Result<()> {
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handler only stores to an atomic, and stays: the library is never unloaded.
    match REGISTERED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) }) {
        0 => Ok(()),
        &errno => {
            let cause = std::io::Error::from_raw_os_error(errno);
            Err(Error::system("pthread_atfork", cause, "free some memory"))
        }
    }
}

/// Returns whether this process is a forked child that may use nothing.
#[inline]
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Fails in a forked child that may use nothing.
#[inline]
pub fn check() -> Result<()> {
    if forked() { Err(refusal()) } else { Ok(()) }
}

#[cold]
fn refusal() -> Error {
    let what = "this process was forked from one that used OxCCL already, whose threads and shared \
                memory it cannot use";
    Error::usage(
        what,
        "fork before the first communicator or allocation, or call exec in the child",
    )
}
