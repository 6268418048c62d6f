//! The monitor: one thread per process that notices the death of peers.
//!
//! The monitor watches peers on this host by process descriptors and by their words in shared
//! memory, and other peers by their control connections. Where neither shows a death for certain, a
//! peer that has given no sign of life for 5 s is dead. A rank that left in order, or
//! failed, announces this first: by its state word and record, or by a notice.

use super::inquiry::{self, Inquiries};
use super::{Rank, agreement, connector, wake_pair};
use crate::bootstrap::wire::wait_for;
use crate::clock;
use crate::error::{Error, Result};
use crate::exit;
use crate::link::control::Control;
use crate::link::notice::{self, Notice};
use crate::log::{self, Level, Subsystem};
use crate::recorder::kernels::LOOKS;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The time in which operations that need the dead rank no more may still complete.
const GRACE: Duration = Duration::from_millis(200);

/// The time between two signs of life.
const PULSE: Duration = Duration::from_secs(1);
/// The silence after which a peer is dead. The first silence is counted from the end of the
/// initialisation, which all ranks complete together.
const SILENCE: Duration = Duration::from_secs(5);
/// The time within which events are handled together.
const TOGETHER: Duration = Duration::from_millis(10);

/// The means by which the end of a peer shows.
pub enum Sign {
    /// The process descriptor of the peer, which becomes readable.
    Process(OwnedFd),
    /// The control connection of a peer on another host: its notices, its silence and the end of
    /// its connection.
    Control(Arc<Control>),
    /// The silence in shared memory of a peer whose process cannot be watched from here.
    Pulse,
    /// No sign: the peer lives in this process.
    Memory,
}

impl Sign {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        match self {
            Sign::Process(fd) => Some(PollFd::new(fd, PollFlags::IN)),
            Sign::Control(control) => Some(control.poll_fd()),
            Sign::Pulse | Sign::Memory => None,
        }
    }
}

/// A watched peer of a communicator.
pub struct Watch {
    rank: Weak<Rank>,
    peer: u32,
    sign: Sign,
    dead_since: Option<(Instant, String)>,
    /// The number of the first collective that has not been compared with the peer's.
    compared: u64,
    /// The number of its messages for which the peer asks to be told when they are taken.
    asked: Option<u64>,
    /// The time of the last sign of life, and the count of signs of life in shared memory.
    heard: Instant,
    pulses: u64,
    /// The time at which this rank gave its last sign of life.
    pulsed: Option<Instant>,
    looked: Instant,
    /// Questions and answers that have come, to be passed on to others.
    inquiries: Vec<Notice>,
    /// True once the peer on another host has said goodbye.
    leaves: bool,
}

impl Watch {
    /// Returns the watch of a peer of which nothing is known yet.
    pub fn new(rank: &Arc<Rank>, peer: u32, sign: Sign) -> Self {
        let (pulses, now) = (rank.pulse_of(peer), clock::now());
        Self {
            rank: Arc::downgrade(rank),
            peer,
            sign,
            dead_since: None,
            compared: 0,
            asked: None,
            heard: now,
            pulses,
            pulsed: None,
            looked: now,
            inquiries: Vec::new(),
            leaves: false,
        }
    }

    /// Returns the connection with a peer on another host.
    fn control(&self) -> Option<Arc<Control>> {
        match &self.sign {
            Sign::Control(control) => Some(control.clone()),
            _ => None,
        }
    }

    /// Gives a sign of life if it is time for one.
    fn pulse(&mut self, rank: &Rank, now: Instant) {
        if self.pulsed.is_some_and(|pulsed| now.saturating_duration_since(pulsed) < PULSE) {
            return;
        }
        self.pulsed = Some(now);
        match &self.sign {
            Sign::Control(control) => control.tell(notice::PULSE),
            // The peer may be unable to watch this process, though this process can watch the peer.
            Sign::Process(_) | Sign::Pulse => rank.pulse(),
            Sign::Memory => {}
        }
    }

    /// Returns the duration of the peer's silence if it is too long.
    fn silence(&mut self, rank: &Rank, now: Instant) -> Option<Duration> {
        match self.sign {
            Sign::Control(ref control) if control.is_used() => {}
            Sign::Control(_) => self.heard = now,
            Sign::Pulse => {
                let pulses = rank.pulse_of(self.peer);
                if pulses != self.pulses {
                    self.pulses = pulses;
                    self.heard = now;
                }
            }
            Sign::Process(_) | Sign::Memory => return None,
        }
        // A process that was stopped, or got no processor time, has not listened meanwhile.
        let gap = now.saturating_duration_since(self.looked);
        if gap > PULSE {
            self.heard += gap;
        }
        self.looked = now;
        let silence = now.saturating_duration_since(self.heard);
        (silence >= SILENCE).then_some(silence)
    }

    /// Answers a peer that asks when its messages are taken; returns whether the answer is still
    /// due.
    fn answer(&mut self, rank: &Rank) -> bool {
        let (Some(asked), Sign::Control(control)) = (self.asked, &self.sign) else { return false };
        let taken = rank.links().map(|links| links.taken_from(self.peer));
        let Some(taken) = taken.unwrap_or(Some(0)) else { return true };
        if taken >= asked {
            control.tell(&notice::taken(taken));
            self.asked = None;
        }
        taken < asked
    }
}

struct Monitor {
    watches: Mutex<Vec<Watch>>,
    wake: UnixStream,
    /// The events of the watches' descriptors. Edge-triggered: data that nobody has read yet, or
    /// ever will, wake the thread once.
    events: OwnedFd,
}

fn lock(monitor: &Monitor) -> MutexGuard<'_, Vec<Watch>> {
    monitor.watches.lock().unwrap_or_else(|e| e.into_inner())
}

fn monitor() -> Result<&'static Arc<Monitor>> {
    static MONITOR: OnceLock<Result<Arc<Monitor>>> = OnceLock::new();
    let made = MONITOR.get_or_init(|| {
        let failed = |e| Error::system("starting the monitor", e, "raise ulimit -n and -u");
        let (wake, woken) = wake_pair().map_err(failed)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let monitor = Arc::new(Monitor { watches: Mutex::default(), wake, events });
        let own = monitor.clone();
        std::thread::Builder::new()
            .name("oxccl-monitor".to_owned())
            .spawn(move || run(&own, &woken))
            .map_err(failed)?;
        Ok(monitor)
    });
    made.as_ref().map_err(Clone::clone)
}

/// The functions that the monitor's thread calls besides watching peers; each returns true while
/// there is something to look at again soon.
static ALSO: Mutex<Vec<fn() -> bool>> = Mutex::new(Vec::new());

fn also_called() -> MutexGuard<'static, Vec<fn() -> bool>> {
    ALSO.lock().unwrap_or_else(|e| e.into_inner())
}

/// Has the monitor call a function at once and with each look; starts the monitor if necessary.
pub(crate) fn also(look: fn() -> bool) {
    let mut all = also_called();
    if !all.iter().any(|known| std::ptr::fn_addr_eq(*known, look)) {
        all.push(look);
    }
    drop(all);
    wake();
}

/// Watches a peer of a communicator.
pub fn watch(rank: &Arc<Rank>, peer: u32, sign: Sign) -> Result<()> {
    let monitor = monitor()?;
    let added = sign.poll_fd().map_or(Ok(()), |fd| {
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&monitor.events, fd.as_fd(), EventData::new_u64(0), flags)
    });
    added.map_err(|e| {
        Error::system("watching a peer", std::io::Error::from(e), "raise ulimit -n")
    })?;
    lock(monitor).push(Watch::new(rank, peer, sign));
    let _ = (&monitor.wake).write(&[1]);
    Ok(())
}

/// Removes the watches of a communicator.
pub fn forget(rank: &Arc<Rank>) {
    if let Ok(monitor) = monitor() {
        let gone = Arc::downgrade(rank);
        lock(monitor).retain(|w| !w.rank.ptr_eq(&gone));
        let _ = (&monitor.wake).write(&[1]);
    }
}

pub(super) fn wake() {
    if let Ok(monitor) = monitor() {
        let _ = (&monitor.wake).write(&[1]);
    }
}

fn run(monitor: &Monitor, mut woken: &UnixStream) {
    loop {
        // The monitor writes a failure that it notices to memory from the driver. Once the process
        // exits, only communicators on host memory are watched: a call on them still ends.
        let visit = exit::visit_driver();
        let waiting = catch_unwind(AssertUnwindSafe(|| {
            let mut watches = lock(monitor);
            if visit.is_none() {
                watches.retain(|watch| watch.rank.upgrade().is_some_and(|e| !e.is_on_gpu()));
            }
            let waiting = look(&mut watches) | inquire(&mut watches, &mut inquiry::lock());
            drop(watches);
            let also = also_called().clone();
            visit.is_some() && also.iter().fold(false, |soon, look| look() | soon) || waiting
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
        let limit = if waiting { LOOKS } else { Duration::from_millis(250) };
        let own = || PollFd::new(woken, PollFlags::IN);
        // Connections in the making wait for notices.
        let together = if connector::is_busy() { Duration::ZERO } else { TOGETHER };
        wait_for(&mut [own()], together);
        wait_for(&mut [own(), PollFd::new(&monitor.events, PollFlags::IN)], limit - together);
        let _ = woken.read(&mut [0; 64]);
        let mut seen = Vec::with_capacity(64);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Further events show at the next look.
        let _ = epoll::wait(&monitor.events, rustix::buffer::spare_capacity(&mut seen), Some(&now));
    }
}

/// Returns, for each watch, whether its descriptor shows an event; does not wait.
fn poll_now(watches: &[Watch]) -> Vec<bool> {
    fn shown(watch: &Watch) -> Option<PollFd<'_>> {
        watch.sign.poll_fd().filter(|_| watch.dead_since.is_none())
    }
    let mut fds: Vec<_> = watches.iter().filter_map(shown).collect();
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    // An error shows no event; the next look comes soon.
    let _ = rustix::event::poll(&mut fds, Some(&zero));
    let mut seen = fds.iter().map(|fd| !fd.revents().is_empty());
    let mut show = |watch| shown(watch).is_some() && seen.next().unwrap_or(false);
    watches.iter().map(&mut show).collect()
}

/// Passes questions and answers on to the processes of other hosts. Returns whether something waits
/// for room in a connection.
fn inquire(watches: &mut [Watch], inquiries: &mut Inquiries) -> bool {
    let control = |watch: &Watch| watch.control().filter(|_| watch.dead_since.is_none());
    let all: Vec<_> = watches.iter().filter_map(control).collect();
    let now = clock::now();
    inquiries.go_on(&all, now);
    for watch in watches {
        let (Sign::Control(from), heard) = (&watch.sign, std::mem::take(&mut watch.inquiries))
        else {
            continue;
        };
        for notice in heard {
            inquiries.hear((from, notice), &all, inquiry::own, now);
        }
    }
    all.iter().any(|control| !control.flush())
}

/// Looks once at all watched peers, acts on what it finds, and removes the watches that are
/// decided; returns true while there is something to look at again soon. Blocks: never.
pub fn look(watches: &mut Vec<Watch>) -> bool {
    let ready = poll_now(watches);
    let now = clock::now();
    let (mut i, mut waiting) = (0, false);
    let (mut lost, mut failed, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    watches.retain_mut(|watch| {
        let ready = ready.get(i).copied().unwrap_or(false);
        i += 1;
        let Some(rank) = watch.rank.upgrade() else { return false };
        match catch_unwind(AssertUnwindSafe(|| verdict(watch, &rank, ready, now))) {
            Ok(Verdict::Alive) => waiting |= watch.answer(&rank),
            Ok(Verdict::Left) => {
                rank.note_left(watch.peer);
                // What came before its goodbye is still to be passed on.
                return !watch.inquiries.is_empty();
            }
            Ok(Verdict::Unused) => return false,
            // The death of the peer has to be noticed nevertheless, as children may be made of the
            // communicator.
            Ok(Verdict::Failed(errors)) => {
                failed.extend(errors.into_iter().map(|error| (rank.clone(), error)));
                gone.extend(watch.control().filter(|_| watch.leaves));
            }
            Ok(Verdict::Dead(why)) => watch.dead_since = Some((now, why)),
            // This communicator fails; the others stay watched.
            Err(panic) => {
                failed.push((rank, Error::panicked(&*panic)));
                return false;
            }
        }
        match &watch.dead_since {
            Some((since, why)) if now - *since >= GRACE => {
                let Some(rank) = watch.rank.upgrade() else { return false };
                // Of two connections, one may have ended before the other one told why.
                let left = matches!(watch.sign, Sign::Control(_)) && rank.has_left(watch.peer);
                if !left {
                    lost.push((*since, rank, watch.peer, why.clone()));
                }
                false
            }
            _ => true,
        }
    });
    for (rank, error) in failed {
        match rank.failure() {
            None => rank.fail(error),
            Some(_) => rank.hear_more(&error),
        }
    }
    // Operations must not take a rank that told of a failure for one that just left.
    gone.iter().for_each(|control| control.set_left());
    // The rank that ended first is to blame: others may have ended because of it.
    lost.sort_by_key(|(since, ..)| *since);
    for (_, rank, peer, why) in lost {
        rank.lose(peer, why);
    }
    waiting || watches.iter().any(|w| w.dead_since.is_some())
}

enum Verdict {
    Alive,
    Left,
    /// The connection ended before the peer used it.
    Unused,
    /// The failures, in the order in which they were heard.
    Failed(Vec<Error>),
    Dead(String),
}

fn verdict(watch: &mut Watch, rank: &Rank, ready: bool, now: Instant) -> Verdict {
    watch.pulse(rank, now);
    if watch.dead_since.is_some() {
        return Verdict::Alive;
    }
    if watch.leaves {
        // It has left after a failure, which is known now.
        return Verdict::Left;
    }
    let peer = watch.peer;
    if rank.failure().is_none() {
        // This comes first: a rank that fails may end at once.
        let begun = rank.links().and_then(|links| links.begun());
        let differs = || agreement::compare_past(rank, peer, &mut watch.compared, begun?);
        if let Some(error) = rank.hear_from(peer).or_else(differs) {
            return Verdict::Failed(vec![error]);
        }
    }
    // The graphs of a rank that has left may run on a GPU for a while.
    let out = || !rank.is_on_gpu() || rank.is_quiescent(peer);
    let left = !matches!(watch.sign, Sign::Control(_)) && rank.has_left(peer);
    if left && out() {
        return Verdict::Left;
    }
    let said = match &watch.sign {
        Sign::Process(_) if ready && left => return Verdict::Left,
        Sign::Process(_) if ready => Verdict::Dead("its process ended".to_owned()),
        Sign::Control(control) if ready => {
            let control = control.clone();
            let said = read_notices(watch, &control, rank, now);
            if matches!(said, Verdict::Unused) {
                rank.drop_control(watch.peer, &control);
            }
            said
        }
        _ => Verdict::Alive,
    };
    if !matches!(said, Verdict::Alive) {
        return said;
    }
    if let Some(silence) = watch.silence(rank, now) {
        let secs = silence.as_secs();
        return Verdict::Dead(format!(
            "rank {} has heard nothing of it for {secs} s: its process or host is stopped, or the \
             network between the two is cut",
            rank.number
        ));
    }
    Verdict::Alive
}

/// Reads the notices of a peer on another host: all that have come, also after a failure and before
/// a goodbye.
fn read_notices(watch: &mut Watch, control: &Control, rank: &Rank, now: Instant) -> Verdict {
    let (notices, ended) = control.receive();
    let mut failed = Vec::new();
    for notice in notices {
        watch.heard = now;
        control.set_used();
        match read_notice(watch, control, rank, notice) {
            Some(error) if rank.failure().is_none() => failed.push(error),
            Some(error) => rank.hear_more(&error),
            None => {}
        }
    }
    match ended {
        _ if !failed.is_empty() => Verdict::Failed(failed),
        _ if watch.leaves => {
            control.set_left();
            Verdict::Left
        }
        None => Verdict::Alive,
        Some(why) if control.is_used() => Verdict::Dead(why),
        Some(_) => Verdict::Unused,
    }
}

/// Reads a notice of a peer on another host. Returns the failure that it tells.
fn read_notice(watch: &mut Watch, control: &Control, rank: &Rank, of: Notice) -> Option<Error> {
    match of {
        Notice::Pulse => {}
        Notice::Goodbye(taken) => {
            control.set_taken(taken);
            watch.leaves = true;
        }
        Notice::Ask(messages) => {
            watch.asked = Some(messages);
            rank.note_sent(watch.peer, messages);
        }
        Notice::Taken(messages) => control.set_taken(messages),
        Notice::Failed(record) => return Some(rank.told(watch.peer, record)),
        Notice::Doing(seq, theirs) => {
            return agreement::compare_told(rank, watch.peer, seq, theirs);
        }
        // Without a connector, an answer to a connection that another attempt has replaced.
        Notice::Listen
        | Notice::Invitation(_)
        | Notice::Begun(_)
        | Notice::Accepted(_)
        | Notice::Proven(_) => {
            rank.connector().iter().for_each(|c| c.hear(watch.peer, of.clone()));
        }
        Notice::StatusWanted(..) | Notice::Status(..) => watch.inquiries.push(of),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use crate::link::direct::Record;
    use crate::rank::Accelerator;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    /// Returns a rank without peers, and the sign of a process that has ended.
    fn alone() -> (Arc<Rank>, Sign) {
        let rank = Rank::new(0, vec![Some(0)], None, vec![0]);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        let fd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        (Arc::new(rank), Sign::Process(fd))
    }

    #[test]
    fn a_panic_fails_one_communicator_and_the_others_are_watched_on() {
        let ((broken, ended), (sound, ended_too)) = (alone(), alone());
        // Peer 9 is one that the rank does not have.
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

    /// Returns rank 0 of two on different hosts with its watch of the other one, and that one's end
    /// of their connection.
    fn watched() -> (Arc<Rank>, Vec<Watch>, Control) {
        let rank = Arc::new(Rank::new(0, vec![Some(0), None], None, vec![0; 2]));
        let (near, far) = UnixStream::pair().unwrap();
        let sign = Sign::Control(Arc::new(Control::new(near.into())));
        let watches = vec![Watch::new(&rank, 1, sign)];
        (rank, watches, Control::new(far.into()))
    }

    #[test]
    fn what_a_peer_said_before_its_goodbye_is_heard() {
        let (rank, mut watches, peer) = watched();
        let mut inquiries = Inquiries::new();
        inquiries.ask(5, SILENCE);
        inquire(&mut watches, &mut inquiries);
        let (asked, _) = peer.receive();
        assert!(matches!(asked[..], [Notice::StatusWanted(5, _)]), "{asked:?}");
        peer.tell(&[notice::status(5, b"state"), notice::goodbye(0)].concat());
        peer.finish();
        // The goodbye, and then the end of the connection.
        for _ in 0..2 {
            look(&mut watches);
            inquire(&mut watches, &mut inquiries);
        }
        assert_eq!(inquiries.take(), [b"state"]);
        assert!(watches.is_empty() && rank.failure().is_none(), "{:?}", rank.failure());
    }

    /// Notes whether the peer had left when the rank failed.
    struct AtFailure {
        rank: Weak<Rank>,
        had_left: OnceLock<bool>,
    }

    impl Accelerator for AtFailure {
        fn abort(&self) {
            let rank = self.rank.upgrade().expect("a rank");
            self.had_left.set(rank.has_left(1)).expect("it fails once");
        }

        fn record(&self) {}

        fn note_left(&self, _peer: u32) {}

        fn is_idle(&self) -> bool {
            true
        }
    }

    #[test]
    fn what_a_peer_says_after_its_failure_is_heard_after_it() {
        let (rank, mut watches, peer) = watched();
        rank.set_controls(vec![None, watches[0].control()]);
        let seen = Arc::new(AtFailure { rank: Arc::downgrade(&rank), had_left: OnceLock::new() });
        let accelerator: Arc<dyn Accelerator> = seen.clone();
        rank.set_accelerator(Arc::downgrade(&accelerator));
        let text = "calls differ".to_owned();
        let record = Record { code: Code::InvalidUsage, culprit: 1, reporter: 1, text };
        peer.tell(&[notice::failed(&record), notice::goodbye(0)].concat());
        peer.finish();
        look(&mut watches);
        assert!(matches!(rank.failure(), Some(Error::Reported { .. })), "{:?}", rank.failure());
        assert_eq!(seen.had_left.get(), Some(&false), "operations would take it for the cause");
        assert!(rank.has_left(1));
        look(&mut watches);
        assert!(watches.is_empty() && rank.first_death(&[1]).is_none(), "it has left in order");
    }
}
