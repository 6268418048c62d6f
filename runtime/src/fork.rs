//! The effects of a fork on the library. The child has none of the library's threads. It may have
//! locks that no thread will release, and it has the parent's shared memory, sockets and operations
//! under way, which it must not touch. So once this process uses more than ids, its forked children
//! are refused everything, with a text.

use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

/// The sockets that a child closes, as it has nobody who would answer there; −1 for none.
static CLOSED: [AtomicI32; 4] = [const { AtomicI32::new(-1) }; 4];

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
    for socket in &CLOSED {
        let socket = socket.swap(-1, Ordering::Relaxed);
        if socket >= 0 {
            // SAFETY: the socket is never closed in the parent, and the child has no thread that
            // would use it.
            unsafe { libc::close(socket) };
        }
    }
}

/// Has forked children close a socket that stays open for the life of this process. Returns it if
/// there are too many.
pub(crate) fn close_in_children(
    socket: OwnedFd,
) -> std::result::Result<BorrowedFd<'static>, OwnedFd> {
    let fd = socket.as_raw_fd();
    let take = |place: &&AtomicI32| {
        place.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    match CLOSED.iter().find(take) {
        None => Err(socket),
        Some(_) => {
            let fd = socket.into_raw_fd();
            // SAFETY: nobody closes it, as its owner is gone.
            Ok(unsafe { BorrowedFd::borrow_raw(fd) })
        }
    }
}

/// Refuses children from here on. To be called before the first thread, mapping or name of the
/// process is made.
pub(crate) fn refuse_children() -> Result<()> {
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handler stores to an atomic and closes descriptors, both of which a child may do,
    // and stays: the library is never unloaded.
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
