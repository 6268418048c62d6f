//! The monitor: one thread per process that notices the death of peers.
//!
//! Peers on this host are watched by process descriptors and by what they say in shared memory,
//! others by their connections. A rank that left in order, or failed, says so before: by its state
//! word and record, or by a notice on the connection.

use crate::clock;
use crate::device::cuda::reaper;
use crate::device::host::agreement;
use crate::device::host::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::exit;
use crate::link::direct::PeerState;
use crate::link::notice::{self, Notice};
use crate::log::{self, Level, Subsystem};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::net::RecvFlags;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Operations that need the dead rank no more may still complete in this time.
const GRACE: Duration = Duration::from_millis(200);

/// What shows the end of a peer.
pub enum Sign {
    /// Its process descriptor becomes readable.
    Process(OwnedFd),
    /// Its connection ends.
    Connection(OwnedFd),
    /// Nothing: it lives in this process, or where this one cannot see it.
    Memory,
}

/// A peer of a communicator that is watched.
pub struct Watch {
    endpoint: Weak<Endpoint>,
    peer: u32,
    sign: Sign,
    dead_since: Option<(Instant, String)>,
    /// Collectives before this one were compared with the peer's.
    compared: u64,
}

impl Watch {
    /// A peer that nothing is known of yet.
    pub fn new(endpoint: &Arc<Endpoint>, peer: u32, sign: Sign) -> Self {
        let endpoint = Arc::downgrade(endpoint);
        Self { endpoint, peer, sign, dead_since: None, compared: 0 }
    }
}

struct Monitor {
    watches: Mutex<Vec<Watch>>,
    wake: UnixStream,
}

fn lock(monitor: &Monitor) -> MutexGuard<'_, Vec<Watch>> {
    monitor.watches.lock().unwrap_or_else(|e| e.into_inner())
}

fn monitor() -> Result<&'static Arc<Monitor>> {
    static MONITOR: OnceLock<Result<Arc<Monitor>>> = OnceLock::new();
    let made = MONITOR.get_or_init(|| {
        let failed = |e| Error::system("starting the monitor", e, "raise ulimit -n and -u");
        let (wake, woken) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        woken.set_nonblocking(true).map_err(failed)?;
        let monitor = Arc::new(Monitor { watches: Mutex::default(), wake });
        let own = monitor.clone();
        std::thread::Builder::new()
            .name("oxccl-monitor".to_owned())
            .spawn(move || run(&own, &woken))
            .map_err(failed)?;
        Ok(monitor)
    });
    made.as_ref().map_err(Clone::clone)
}

/// Watches a peer of a communicator.
pub fn watch(endpoint: &Arc<Endpoint>, peer: u32, sign: Sign) -> Result<()> {
    let monitor = monitor()?;
    lock(monitor).push(Watch::new(endpoint, peer, sign));
    let _ = (&monitor.wake).write(&[1]);
    Ok(())
}

/// Forgets a communicator.
pub fn forget(endpoint: &Arc<Endpoint>) {
    if let Ok(monitor) = monitor() {
        let gone = Arc::downgrade(endpoint);
        lock(monitor).retain(|w| !w.endpoint.ptr_eq(&gone));
        let _ = (&monitor.wake).write(&[1]);
    }
}

/// Has it look at once, and starts it if need be.
pub fn wake() {
    if let Ok(monitor) = monitor() {
        let _ = (&monitor.wake).write(&[1]);
    }
}

fn run(monitor: &Monitor, mut woken: &UnixStream) {
    loop {
        // A failure that it notices is written to memory that the driver gave.
        let Some(visit) = exit::visit_driver() else { return };
        let waiting = catch_unwind(AssertUnwindSafe(|| {
            let waiting = look(&mut lock(monitor));
            reaper::look() || waiting
        }));
        let waiting = waiting.unwrap_or_else(|_| {
            log::line(
                Level::Warn,
                Subsystem::Ras,
                "the monitor panicked and goes on; please report it",
            );
            true
        });
        drop(visit);
        let limit = if waiting { Duration::from_millis(20) } else { Duration::from_millis(250) };
        crate::bootstrap::wire::wait_for(&mut [PollFd::new(woken, PollFlags::IN)], limit);
        let _ = woken.read(&mut [0; 64]);
    }
}

/// Which watches show something, without waiting.
fn poll_now(watches: &[Watch]) -> Vec<bool> {
    let open = |watch: &&Watch| watch.dead_since.is_none();
    let mut fds: Vec<_> = watches
        .iter()
        .filter(open)
        .filter_map(|watch| match &watch.sign {
            Sign::Process(fd) => Some(PollFd::new(fd, PollFlags::IN)),
            Sign::Connection(fd) => Some(PollFd::new(fd, PollFlags::IN | PollFlags::RDHUP)),
            Sign::Memory => None,
        })
        .collect();
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    // An error shows nothing; the next look comes soon.
    let _ = rustix::event::poll(&mut fds, Some(&zero));
    let mut seen = fds.iter().map(|fd| !fd.revents().is_empty());
    let mut show = |watch: &Watch| match watch.sign {
        Sign::Memory => true,
        _ if watch.dead_since.is_some() => false,
        _ => seen.next().unwrap_or(false),
    };
    watches.iter().map(&mut show).collect()
}

/// Looks once at all that is watched and draws the conclusions, forgetting what is decided; true
/// while a death waits for its grace to end. Blocks: never.
pub fn look(watches: &mut Vec<Watch>) -> bool {
    let ready = poll_now(watches);
    let now = clock::now();
    let mut i = 0;
    let (mut lost, mut failed) = (Vec::new(), Vec::new());
    watches.retain_mut(|watch| {
        let ready = ready.get(i).copied().unwrap_or(false);
        i += 1;
        let Some(endpoint) = watch.endpoint.upgrade() else { return false };
        match catch_unwind(AssertUnwindSafe(|| verdict(watch, &endpoint, ready))) {
            Ok(Verdict::Alive) => {}
            Ok(Verdict::Left) => return false,
            Ok(Verdict::Failed(error)) => {
                failed.push((endpoint, error));
                return false;
            }
            Ok(Verdict::Dead(why)) => watch.dead_since = Some((now, why)),
            // The one communicator fails; the others are watched on.
            Err(panic) => {
                failed.push((endpoint, Error::panicked(&*panic)));
                return false;
            }
        }
        match &watch.dead_since {
            Some((since, why)) if now - *since >= GRACE => {
                lost.push((*since, endpoint, watch.peer, why.clone()));
                false
            }
            _ => true,
        }
    });
    for (endpoint, error) in failed {
        endpoint.fail(error);
    }
    // Who went first is to blame: others may have ended because of it.
    lost.sort_by_key(|(since, ..)| *since);
    for (_, endpoint, peer, why) in lost {
        endpoint.lose(peer, why);
    }
    watches.iter().any(|w| w.dead_since.is_some())
}

enum Verdict {
    Alive,
    Left,
    Failed(Error),
    Dead(String),
}

fn verdict(watch: &mut Watch, endpoint: &Endpoint, ready: bool) -> Verdict {
    if endpoint.failure().is_some() {
        return Verdict::Left;
    }
    let differs = || agreement::compare_past(endpoint, watch.peer, &mut watch.compared);
    if let Some(error) = endpoint.hear_from(watch.peer).or_else(differs) {
        return Verdict::Failed(error);
    }
    if !ready || watch.dead_since.is_some() {
        return Verdict::Alive;
    }
    match &watch.sign {
        Sign::Process(_) => {
            let left =
                endpoint.segment.as_ref().zip(endpoint.local[watch.peer as usize]).is_some_and(
                    |(segment, local)| {
                        segment.state(local).load(Ordering::Acquire) == PeerState::Left as u64
                    },
                );
            if left { Verdict::Left } else { Verdict::Dead("its process ended".to_owned()) }
        }
        Sign::Memory => Verdict::Alive,
        Sign::Connection(fd) => read_notices(fd, watch.peer, endpoint),
    }
}

/// What a peer of another host has to say.
fn read_notices(fd: &OwnedFd, peer: u32, endpoint: &Endpoint) -> Verdict {
    loop {
        let mut bytes = [0; notice::MAX_BYTES];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let n = match rustix::net::recv(fd, &mut bytes, flags) {
            Ok((_, 0)) => return Verdict::Dead("its connection closed".to_owned()),
            Ok((_, n)) => n,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Verdict::Alive,
            Err(e) => return Verdict::Dead(format!("its connection failed: {e}")),
        };
        match notice::parse(&bytes[..n]) {
            Ok(None) => return Verdict::Alive,
            Ok(Some((Notice::Goodbye, _))) => return Verdict::Left,
            Ok(Some((Notice::Failed(record), _))) => {
                return Verdict::Failed(endpoint.told(peer, record));
            }
            Ok(Some((Notice::Doing(seq, theirs), len))) => {
                if let Some(error) = agreement::compare_told(endpoint, peer, seq, theirs) {
                    return Verdict::Failed(error);
                }
                // They are there, as the look before showed.
                let _ = rustix::net::recv(fd, &mut bytes[..len], RecvFlags::DONTWAIT);
            }
            Err(what) => return Verdict::Dead(format!("its connection carried {what}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::host::endpoint::PeerMemory;
    use crate::link::Edge;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    /// An endpoint without peers, and the sign of a process that has ended.
    fn alone() -> (Arc<Endpoint>, Sign) {
        let (memory, edges) = (vec![PeerMemory::Unreachable], vec![Edge::Own]);
        let endpoint = Endpoint::new(0, vec![Some(0)], None, true, vec![0], 64, edges, memory, 0);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        let fd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        (Arc::new(endpoint), Sign::Process(fd))
    }

    #[test]
    fn a_panic_fails_one_communicator_and_the_others_are_watched_on() {
        let ((broken, ended), (sound, ended_too)) = (alone(), alone());
        // A peer that the endpoint does not have.
        watch(&broken, 9, ended).unwrap();
        watch(&sound, 0, ended_too).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while broken.failure().is_none() || sound.failure().is_none() {
            assert!(Instant::now() < deadline, "the monitor is gone");
            std::thread::yield_now();
        }
        assert!(matches!(broken.failure(), Some(Error::Internal { .. })), "{:?}", broken.failure());
        assert!(matches!(sound.failure(), Some(Error::Remote { .. })), "{:?}", sound.failure());
    }
}
