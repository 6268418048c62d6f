//! What the monitor does for GPUs: it hears of kernels that gave up, and frees memory when no peer
//! can write there any more.

use super::seat::Seat;
use crate::exit;
use crate::rank::{Accelerator, Rank, monitor};
use rustix::process::{Pid, test_kill_process};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A seat whose communicator is gone, or a graph's reference to one.
struct Grave {
    seat: Arc<Seat>,
    /// Of the communicator, to see which peers are still there; None for a graph's reference.
    rank: Option<Arc<Rank>>,
}

impl Grave {
    /// The communicator's own reference is the last one, and stays while anyone writes there.
    fn needed(&self) -> bool {
        let Some(rank) = &self.rank else { return false };
        let out = say_out(&self.seat, rank);
        !out || Arc::strong_count(&self.seat) > 1 || inhabited(rank)
    }
}

static WATCHED: Mutex<Vec<Weak<Seat>>> = Mutex::new(Vec::new());
static GRAVES: Mutex<Vec<Grave>> = Mutex::new(Vec::new());

fn lock<T>(list: &'static Mutex<Vec<T>>) -> MutexGuard<'static, Vec<T>> {
    list.lock().unwrap_or_else(|e| e.into_inner())
}

/// Hears of the faults of a seat from now on.
pub fn watch(seat: &Arc<Seat>) {
    lock(&WATCHED).push(Arc::downgrade(seat));
    monitor::also(look);
}

/// Drops a graph's reference: where it is let go, CUDA must not be called.
pub fn bury(seat: Arc<Seat>) {
    lock(&GRAVES).push(Grave { seat, rank: None });
}

/// Tells the peers when nothing of a rank runs any more; whether that is so.
fn say_out(seat: &Seat, rank: &Rank) -> bool {
    let out = seat.is_out();
    if out {
        rank.be_out();
    }
    out
}

/// Drops the communicator's reference once all peers have left.
pub fn retire(seat: Arc<Seat>, rank: Arc<Rank>) {
    // At once where that is so: the process may end before the monitor looks.
    say_out(&seat, &rank);
    lock(&GRAVES).push(Grave { seat, rank: Some(rank) });
    monitor::also(look);
}

/// Whether a peer's kernels may still write here: also one that has failed may have some that wait
/// for their turn.
fn inhabited(rank: &Rank) -> bool {
    let mut peers = (0..rank.nranks).filter(|&peer| peer != rank.number);
    peers.any(|peer| {
        let here = rank.segment.is_some() && rank.local[peer as usize].is_some();
        let process = Pid::from_raw(rank.pids[peer as usize]);
        let lives = process.is_none_or(|pid| test_kill_process(pid).is_ok());
        here && !rank.is_out(peer) && lives
    })
}

/// Makes all running kernels give up, without a call of the driver: the process exits, and a thread
/// of the library waits for them.
pub(crate) fn give_up() {
    let seats: Vec<_> = lock(&WATCHED).iter().filter_map(Weak::upgrade).collect();
    seats.iter().for_each(|seat| seat.abort());
    // The last reference must not be dropped here.
    seats.into_iter().for_each(std::mem::forget);
}

/// Looks once; true while there is something to look at again soon.
pub fn look() -> bool {
    let places: Vec<_> = {
        let mut watched = lock(&WATCHED);
        watched.retain(|seat| seat.strong_count() > 0);
        watched.iter().filter_map(Weak::upgrade).collect()
    };
    let any = !places.is_empty();
    for seat in places {
        seat.hear();
    }
    // Not under the lock: graphs are let go in callbacks of the driver, which `needed` calls.
    let graves = std::mem::take(&mut *lock(&GRAVES));
    let (keep, free): (Vec<Grave>, Vec<Grave>) = graves.into_iter().partition(Grave::needed);
    let waiting = any || !keep.is_empty();
    lock(&GRAVES).extend(keep);
    if !free.is_empty() {
        // Freeing waits for all that the GPU does, which the monitor may have to end.
        let thread = std::thread::Builder::new().name("oxccl-free".to_owned());
        // Without a thread they are freed here.
        let _ = thread.spawn(move || {
            // What is not freed when the process exits ends with it.
            match exit::visit_driver() {
                Some(_visit) => drop(free),
                None => std::mem::forget(free),
            }
        });
    }
    waiting
}
