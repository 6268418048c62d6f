//! All rendezvous that this process holds, each in a thread of its own.

use super::id::UniqueId;
use super::serve;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The status of a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// Ranks meet.
    Running,
    /// The rendezvous has failed, and all ranks that have come were told.
    Failed,
    /// The thread of the rendezvous has ended.
    Over,
}

/// A rank that will never come.
pub(super) struct Absent {
    pub(super) rank: u32,
    pub(super) why: String,
    pub(super) died: bool,
}

type Work = Box<dyn FnOnce() + Send>;

/// The state that the thread of a rendezvous shares with the rest of its process.
pub(super) struct Rendezvous {
    comm: u64,
    address: SocketAddr,
    status: Mutex<Status>,
    changed: Condvar,
    /// Set once another rendezvous begins at this address, so that this one, if it has failed or is
    /// unused, can end.
    replaced: AtomicBool,
    absent: Mutex<Vec<Absent>>,
    /// The work to do when the rendezvous is over; `None` from then on.
    after: Mutex<Option<Vec<Work>>>,
}

static HELD: Mutex<Vec<Arc<Rendezvous>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Rendezvous {
    fn new(id: &UniqueId) -> Self {
        Self {
            comm: id.comm,
            address: id.address,
            status: Mutex::new(Status::Running),
            changed: Condvar::new(),
            replaced: AtomicBool::new(false),
            absent: Mutex::default(),
            after: Mutex::new(Some(Vec::new())),
        }
    }

    pub(super) fn set(&self, status: Status) {
        *lock(&self.status) = status;
        self.changed.notify_all();
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    pub(super) fn take_absent(&self) -> Vec<Absent> {
        std::mem::take(&mut *lock(&self.absent))
    }
}

/// Holds the rendezvous of an id at a listener, in a thread. `names` are the numbers by which texts
/// call the ranks; if empty, texts use their own numbers. A rendezvous of the same id that has
/// failed at this address ends.
pub fn start(listener: TcpListener, id: UniqueId, names: Vec<u32>) -> Result<()> {
    let state = Arc::new(Rendezvous::new(&id));
    replace(&id);
    lock(&HELD).push(state.clone());
    let own = Held(state.clone());
    let serve = move || {
        if let Err(e) = serve::serve(listener, &id, names, &own.0) {
            log::line(Level::Warn, Subsystem::Bootstrap, &format!("rendezvous: {e}"));
        }
    };
    let thread = std::thread::Builder::new().name("oxccl-rendezvous".to_owned());
    thread
        .spawn(serve)
        .map(drop)
        .map_err(|e| Error::system("starting a thread", e, "raise ulimit -u"))
}

/// The guard of a rendezvous, which ends the rendezvous when its thread ends, even by a panic.
struct Held(Arc<Rendezvous>);

impl Drop for Held {
    fn drop(&mut self) {
        end(&self.0);
    }
}

fn end(state: &Arc<Rendezvous>) {
    // It is found until the work is done, for which `wait` waits.
    let after = lock(&state.after).take();
    after.into_iter().flatten().for_each(|work| work());
    lock(&HELD).retain(|held| !Arc::ptr_eq(held, state));
    state.set(Status::Over);
}

/// Runs `work` when the rendezvous of an id is over, if this process holds it.
pub(super) fn when_over(id: &UniqueId, work: impl FnOnce() + Send + 'static) {
    let Some(held) = find(id) else { return };
    if let Some(after) = &mut *lock(&held.after) {
        after.push(Box::new(work));
        return;
    }
    work();
}

fn find(id: &UniqueId) -> Option<Arc<Rendezvous>> {
    let same = |held: &&Arc<Rendezvous>| held.comm == id.comm && held.address == id.address;
    lock(&HELD).iter().rev().find(same).cloned()
}

/// Ends the rendezvous of the same id, fixed at an address, that have failed or are unused, because
/// another one begins there. Other rendezvous that share a listener go on.
pub(super) fn replace(id: &UniqueId) {
    let same = |held: &&Arc<Rendezvous>| held.comm == id.comm && held.address == id.address;
    for held in lock(&HELD).iter().filter(same) {
        held.replaced.store(true, Ordering::Release);
    }
}

/// Returns whether this process holds the rendezvous of an id.
pub fn is_here(id: &UniqueId) -> bool {
    find(id).is_some()
}

/// Waits until the rendezvous of an id is over, if this process holds it: all ranks have met, or
/// will not meet any more. Blocks for as long as ranks may come.
pub fn wait(id: &UniqueId) {
    let Some(held) = find(id) else { return };
    let mut status = lock(&held.status);
    while *status != Status::Over {
        status = held.changed.wait(status).unwrap_or_else(|e| e.into_inner());
    }
}

/// Tells the rendezvous of an id, if this process holds it, that a rank will never come. Has no
/// effect if the rank has come already, or if no rank waits for it. `died` is true if the reason is
/// the death of the rank.
pub fn note_absent(id: &UniqueId, rank: u32, why: String, died: bool) {
    if let Some(held) = find(id) {
        lock(&held.absent).push(Absent { rank, why, died });
    }
}

/// Waits until a rendezvous that this process holds has told every rank that it has failed, because
/// the process may end next. Blocks for `limit` at most.
pub(super) fn wait_until_told(id: &UniqueId, limit: Duration) {
    let Some(held) = find(id) else { return };
    let until = Instant::now() + limit;
    let mut status = lock(&held.status);
    while *status == Status::Running {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let waited = held.changed.wait_timeout(status, left);
        status = waited.unwrap_or_else(|e| e.into_inner()).0;
    }
}
