//! The driver of a rendezvous over TCP. The cost of an event does not grow with the number of
//! connections, because thousands of ranks come at once.

use super::auth::{Ends, Role};
use super::door::{Admission, Door};
use super::id::UniqueId;
use super::rendezvous::{Absent, Rendezvous, Status};
use super::root::{Action, BYE, JOIN, JOIN_HEADER, MAX_BLOB, MAX_RANKS, Machine, split_join};
use super::wire::{Connection, Frame, UNAUTHENTICATED, wait_for};
use crate::error::{Error, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use std::collections::{BTreeSet, HashMap};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// The number of events that are taken at a time.
const EVENTS: usize = 256;

/// The time after which a rendezvous to which no rank has come is given up.
const UNUSED: Duration = Duration::from_secs(3600);

/// The longest time that a failed rendezvous goes on to tell ranks that come later.
const TELLING: Duration = Duration::from_secs(120);

/// The longest wait at a time while no rank has come.
const IDLE: Duration = Duration::from_secs(1);

/// The longest wait at a time otherwise, because news from this process arrive without an event.
const LOOK: Duration = Duration::from_millis(20);

/// The time of the first frame, and the time at which the first of the ranks that came stops
/// waiting.
#[derive(Default)]
struct Patience {
    since: Option<Instant>,
    until: Option<Instant>,
}

impl Patience {
    fn heard(&mut self, frame: &Frame, now: Instant) {
        self.since.get_or_insert(now);
        let limit = (frame.kind == JOIN).then(|| split_join(&frame.body)).flatten();
        // A limit beyond the clock's range is no bound.
        if let Some(until) = limit.and_then(|(_, limit, _)| now.checked_add(limit)) {
            self.until = Some(self.until.map_or(until, |earlier| earlier.min(until)));
        }
    }

    /// Returns how long the ranks waited for each other, once that time is over; `None` before.
    fn over(&self, now: Instant) -> Option<Duration> {
        self.until.filter(|&until| now >= until).zip(self.since).map(|(until, since)| until - since)
    }
}

/// A connection, the rank once it has joined, and whether it has left.
struct Guest {
    connection: Connection,
    rank: Option<u32>,
    finished: bool,
    /// The events that the kernel watches the connection for.
    watched: EventFlags,
}

/// All connections of a rendezvous.
struct Guests {
    door: Door,
    epoll: OwnedFd,
    all: HashMap<u64, Guest>,
    next: u64,
    /// The ranks whose encryption differs, their addresses, and what it differs in.
    differing: Vec<(u32, String, &'static str)>,
}

fn watching(e: rustix::io::Errno) -> Error {
    Error::system(
        "watching the connections of a rendezvous",
        std::io::Error::from(e),
        "raise ulimit -n",
    )
}

impl Guests {
    fn new(listener: TcpListener, id: &UniqueId) -> Result<Self> {
        let ends = Ends { role: Role::Rendezvous, from: 0, to: u32::MAX, comm: id.comm };
        let admission = Admission { secret: id.secret, ends, nranks: MAX_RANKS };
        let door = Door::new(listener.into(), admission)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watching)?;
        Ok(Self { door, epoll, all: HashMap::new(), next: 0, differing: Vec::new() })
    }

    /// Waits for a new connection or an event on an existing one. Returns the numbers of the
    /// connections to look at.
    fn wait(&mut self, limit: Duration) -> Result<Vec<u64>> {
        let mut fds = vec![PollFd::new(&self.epoll, PollFlags::IN)];
        self.door.poll_fds(&mut fds);
        let limit = if self.door.is_idle() { limit } else { limit.min(UNAUTHENTICATED) };
        wait_for(&mut fds, limit);
        drop(fds);
        let mut ready = Vec::new();
        for connection in self.door.progress(Instant::now())? {
            if let Some(why) = connection.differs() {
                let address = connection.peer_address().to_owned();
                self.differing.push((connection.peer_rank(), address, why));
                continue;
            }
            let connection = connection.with_frames(MAX_BLOB + JOIN_HEADER);
            let (watched, data) = (EventFlags::IN, EventData::new_u64(self.next));
            epoll::add(&self.epoll, connection.socket(), data, watched).map_err(watching)?;
            let guest = Guest { connection, rank: None, finished: false, watched };
            self.all.insert(self.next, guest);
            ready.push(self.next);
            self.next += 1;
        }
        let mut events = Vec::with_capacity(EVENTS);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&now)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(watching(e)),
        }
        let known: BTreeSet<u64> = ready.iter().copied().collect();
        ready.extend(events.iter().map(|e| e.data.u64()).filter(|number| !known.contains(number)));
        Ok(ready)
    }

    /// Sends and receives what is possible now on a connection, and tells the machine of frames and
    /// of the end of the connection.
    fn progress(
        &mut self,
        number: u64,
        (machine, patience): (&mut Machine, &mut Patience),
        now: Instant,
    ) -> Result<Vec<Action>> {
        let mut actions = Vec::new();
        let Some(guest) = self.all.get_mut(&number) else { return Ok(actions) };
        let lost = loop {
            match guest.connection.progress() {
                Ok(Some(frame)) => {
                    patience.heard(&frame, now);
                    let rank = guest.connection.peer_rank();
                    if frame.kind == JOIN {
                        guest.rank = Some(rank);
                    }
                    guest.finished |= frame.kind == BYE;
                    actions.extend(machine.frame(rank, guest.connection.peer_address(), frame));
                }
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        if !lost {
            guest.watch(&self.epoll, number)?;
            return Ok(actions);
        }
        if let Some(rank) = guest.rank {
            actions.extend(machine.closed(rank, guest.finished));
        }
        self.all.remove(&number);
        Ok(actions)
    }

    /// Sends a frame to these ranks, in ascending order.
    fn send(&mut self, ranks: &[u32], frame: &Frame) -> Result<()> {
        let bytes = frame.encode();
        let named = |guest: &Guest| guest.rank.filter(|rank| ranks.binary_search(rank).is_ok());
        // A rank that was claimed twice has two connections: both sides get the frame.
        let mut all: Vec<_> =
            self.all.iter_mut().filter_map(|(n, guest)| Some((named(guest)?, *n, guest))).collect();
        // Rank 0 is told last: this thread usually runs in the process of rank 0, and may end with
        // it.
        all.sort_by_key(|(rank, ..)| std::cmp::Reverse(*rank));
        for (_, number, guest) in all {
            guest.connection.queue(bytes.clone());
            // A failure is found again at the kernel's next event.
            let _ = guest.connection.progress_handshake();
            guest.watch(&self.epoll, number)?;
        }
        Ok(())
    }
}

impl Guest {
    /// Makes the kernel report when there is room for the bytes that are left to send.
    fn watch(&mut self, epoll: &OwnedFd, number: u64) -> Result<()> {
        let wants_write = self.connection.wants_write();
        let flags = if wants_write { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        if flags == self.watched {
            return Ok(());
        }
        self.watched = flags;
        let data = EventData::new_u64(number);
        epoll::modify(epoll, self.connection.socket(), data, flags).map_err(watching)
    }
}

/// Runs a rendezvous until all ranks have left it. The rendezvous fails if a rank fails, or if a
/// rank that came has waited as long as it wants to. It then goes on to tell the ranks that come
/// later, until all have been told or no rank waits any more. Blocks: run it in a thread of its
/// own.
pub(super) fn serve(
    listener: TcpListener,
    id: &UniqueId,
    names: Vec<u32>,
    state: &Rendezvous,
) -> Result<()> {
    let mut machine = Machine::new(names);
    let mut guests = Guests::new(listener, id)?;
    let (mut patience, begun, mut failed_since) = (Patience::default(), Instant::now(), None);
    loop {
        let idle = patience.since.is_none() && guests.all.is_empty();
        let mut actions = Vec::new();
        let ready = match guests.wait(if idle { IDLE } else { LOOK }) {
            Ok(ready) => ready,
            Err(error) if machine.has_failed() => return Err(error),
            // The ranks that have come are told.
            Err(error) => {
                actions.extend(machine.broken(&error.to_string()));
                Vec::new()
            }
        };
        let now = Instant::now();
        for (rank, address, why) in guests.differing.drain(..) {
            actions.extend(machine.differs(rank, &address, why));
        }
        for Absent { rank, why, died } in state.take_absent() {
            actions.extend(machine.absent(rank, why, died));
        }
        for number in ready {
            actions.extend(guests.progress(number, (&mut machine, &mut patience), now)?);
        }
        let over = patience.over(now);
        if let Some(waited) = over {
            actions.extend(machine.deadline(waited, guests.door.ran_short()));
        }
        let mut finished = idle && (begun.elapsed() >= UNUSED || state.is_replaced());
        for action in actions {
            match action {
                Action::Send(ranks, frame) => guests.send(&ranks, &frame)?,
                Action::Turn(rank) => {
                    guests.all.retain(|_, guest| guest.rank != Some(rank) || guest.finished);
                }
                Action::Finish => finished = true,
            }
        }
        if machine.has_failed() {
            let since = *failed_since.get_or_insert_with(|| {
                guests.flush();
                state.set(Status::Failed);
                now
            });
            finished |= now.saturating_duration_since(since) >= TELLING;
            finished |= machine.has_told_all() || over.is_some() || state.is_replaced();
        }
        if finished {
            guests.flush();
            return Ok(());
        }
    }
}

impl Guests {
    /// Sends queued bytes, for two seconds at most. Connections that break are dropped.
    fn flush(&mut self) {
        let until = Instant::now() + Duration::from_secs(2);
        let waits = |guest: &&mut Guest| guest.connection.wants_write();
        while Instant::now() < until && self.all.values_mut().any(|guest| waits(&guest)) {
            for guest in self.all.values_mut().filter(waits) {
                // A failure marks the connection as broken.
                let _ = guest.connection.progress_handshake();
            }
            self.all.retain(|_, guest| !guest.connection.is_broken());
            wait_for(&mut [], Duration::from_millis(2));
        }
    }
}
