//! Drives a rendezvous over TCP. Each event costs what it concerns, not what there is: thousands of ranks
//! come at once.

use super::auth::{Ends, Role, Server};
use super::id::UniqueId;
use super::root::{Action, BYE, JOIN, JOIN_HEADER, MAX_BLOB, MAX_RANKS, Machine, split_join};
use super::wire::{Connection, Frame, MAX_UNAUTHENTICATED, wait_for};
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::collections::{BTreeSet, HashMap};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// The listener among what the kernel watches; connections are numbered from 0.
const LISTENER: u64 = u64::MAX;

/// Events that are taken at a time.
const EVENTS: usize = 256;

/// Notes why a connection that was no rank's yet has ended.
fn note(error: &Error) {
    log::line(Level::Info, Subsystem::Bootstrap, &format!("rendezvous: {error}"));
}

/// When the rendezvous began, and when the first of the ranks that came will wait no longer.
#[derive(Default)]
struct Patience {
    since: Option<Instant>,
    until: Option<Instant>,
}

impl Patience {
    fn heard(&mut self, frame: &Frame, now: Instant) {
        self.since.get_or_insert(now);
        let limit = (frame.kind == JOIN).then(|| split_join(&frame.body)).flatten();
        // What is beyond the clock's range is no bound.
        if let Some(until) = limit.and_then(|(_, limit, _)| now.checked_add(limit)) {
            self.until = Some(self.until.map_or(until, |earlier| earlier.min(until)));
        }
    }

    /// How long the ranks waited for each other, once it is over.
    fn over(&self, now: Instant) -> Option<Duration> {
        self.until.filter(|&until| now >= until).zip(self.since).map(|(until, since)| until - since)
    }

    /// How long to wait at a time.
    fn slice(&self, now: Instant) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(now));
        left.unwrap_or(Duration::MAX).min(Duration::from_secs(1))
    }
}

/// A connection, the rank once it has joined, and whether it has left.
struct Guest {
    connection: Connection,
    rank: Option<u32>,
    finished: bool,
    /// What the kernel watches it for.
    watched: EventFlags,
}

/// All connections of a rendezvous.
struct Guests<'a> {
    listener: &'a TcpListener,
    id: &'a UniqueId,
    epoll: OwnedFd,
    accepting: bool,
    all: HashMap<u64, Guest>,
    /// Those that have not authenticated, whose time may be over.
    strangers: BTreeSet<u64>,
    next: u64,
}

fn watching(e: rustix::io::Errno) -> Error {
    Error::system(
        "watching the connections of a rendezvous",
        std::io::Error::from(e),
        "raise ulimit -n",
    )
}

impl<'a> Guests<'a> {
    fn new(listener: &'a TcpListener, id: &'a UniqueId) -> Result<Self> {
        let failed = |e| Error::system("fcntl on the rendezvous", e, "out of memory?");
        listener.set_nonblocking(true).map_err(failed)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watching)?;
        let data = EventData::new_u64(LISTENER);
        epoll::add(&epoll, listener, data, EventFlags::IN).map_err(watching)?;
        let (all, strangers) = (HashMap::new(), BTreeSet::new());
        Ok(Self { listener, id, epoll, accepting: true, all, strangers, next: 0 })
    }

    /// Waits for a new connection or something on an old one; the numbers of those to look at.
    fn wait(&mut self, limit: Duration) -> Result<BTreeSet<u64>> {
        let mut events = Vec::with_capacity(EVENTS);
        // An interruption just returns.
        let limit = limit.try_into().ok();
        match epoll::wait(&self.epoll, spare_capacity(&mut events), limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(watching(e)),
        }
        self.admit()?;
        let mut ready: BTreeSet<u64> = events.iter().map(|e| e.data.u64()).collect();
        ready.remove(&LISTENER);
        ready.extend(&self.strangers);
        Ok(ready)
    }

    /// Takes new connections, as many as may be unauthenticated.
    fn admit(&mut self) -> Result<()> {
        // More than so many wait in the kernel's queue until others have authenticated.
        while self.strangers.len() < MAX_UNAUTHENTICATED {
            let Ok((stream, _)) = self.listener.accept() else { break };
            let ends = Ends { role: Role::Rendezvous, from: 0, to: u32::MAX, comm: self.id.comm };
            if let Ok(server) = Server::new(self.id.secret, ends, MAX_RANKS)
                && let Ok(connection) = Connection::accept(stream, server, MAX_BLOB + JOIN_HEADER)
            {
                let watched = EventFlags::IN;
                let data = EventData::new_u64(self.next);
                epoll::add(&self.epoll, connection.stream(), data, watched).map_err(watching)?;
                let guest = Guest { connection, rank: None, finished: false, watched };
                self.all.insert(self.next, guest);
                self.strangers.insert(self.next);
                self.next += 1;
            }
        }
        let accepting = self.strangers.len() < MAX_UNAUTHENTICATED;
        if accepting != self.accepting {
            self.accepting = accepting;
            let flags = if accepting { EventFlags::IN } else { EventFlags::empty() };
            let data = EventData::new_u64(LISTENER);
            epoll::modify(&self.epoll, self.listener, data, flags).map_err(watching)?;
        }
        Ok(())
    }

    /// Moves what can be moved on a connection, and tells the machine of it.
    fn progress(
        &mut self,
        number: u64,
        (machine, patience): (&mut Machine, &mut Patience),
        now: Instant,
    ) -> Result<Vec<Action>> {
        let mut actions = Vec::new();
        let Some(guest) = self.all.get_mut(&number) else { return Ok(actions) };
        let lost = loop {
            match guest.connection.progress(now) {
                Ok(Some(frame)) => {
                    patience.heard(&frame, now);
                    if frame.kind == JOIN {
                        guest.rank = Some(guest.connection.peer_rank());
                    }
                    guest.finished |= frame.kind == BYE;
                    let address = guest.connection.peer_address();
                    actions.extend(machine.frame(guest.connection.peer_rank(), &address, frame));
                }
                Ok(None) => break None,
                Err(e) => break Some(e),
            }
        };
        if lost.is_some() || guest.connection.is_authenticated() {
            self.strangers.remove(&number);
        }
        let Some(why) = lost else {
            guest.watch(&self.epoll, number)?;
            return Ok(actions);
        };
        match guest.rank {
            Some(rank) => actions.extend(machine.closed(rank, guest.finished)),
            None => note(&why),
        }
        self.all.remove(&number);
        Ok(actions)
    }

    /// Sends a frame to these ranks, in ascending order.
    fn send(&mut self, ranks: &[u32], frame: &Frame, now: Instant) -> Result<()> {
        let bytes = frame.encode();
        // Two of a rank that was claimed twice: both shall know.
        for (number, guest) in &mut self.all {
            if guest.rank.is_some_and(|rank| ranks.binary_search(&rank).is_ok()) {
                guest.connection.queue(bytes.clone());
                // What fails now is found again when the kernel shows it.
                let _ = guest.connection.progress_handshake(now);
                guest.watch(&self.epoll, *number)?;
            }
        }
        Ok(())
    }
}

impl Guest {
    /// Lets the kernel say when there is room for what is left to send.
    fn watch(&mut self, epoll: &OwnedFd, number: u64) -> Result<()> {
        let wants_write = self.connection.wants_write();
        let flags = if wants_write { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        if flags == self.watched {
            return Ok(());
        }
        self.watched = flags;
        let data = EventData::new_u64(number);
        epoll::modify(epoll, self.connection.stream(), data, flags).map_err(watching)
    }
}

/// Runs a rendezvous until all ranks have left it, it failed, or one that came has waited as long as
/// it wants to. Blocks; give it a thread.
pub fn serve(listener: TcpListener, id: &UniqueId) -> Result<()> {
    let mut machine = Machine::default();
    let mut guests = Guests::new(&listener, id)?;
    let (mut patience, mut over) = (Patience::default(), false);
    while !over {
        let idle = patience.since.is_none() && guests.all.is_empty();
        let limit = if idle { Duration::from_secs(3600) } else { patience.slice(Instant::now()) };
        let ready = guests.wait(limit)?;
        let now = Instant::now();
        let mut actions = Vec::new();
        for number in ready {
            actions.extend(guests.progress(number, (&mut machine, &mut patience), now)?);
        }
        if let Some(waited) = patience.over(now) {
            actions.extend(machine.deadline(waited));
        }
        for action in actions {
            match action {
                Action::Send(ranks, frame) => guests.send(&ranks, &frame, now)?,
                Action::Turn(rank) => {
                    guests.all.retain(|_, guest| guest.rank != Some(rank) || guest.finished);
                }
                Action::Finish => over = true,
            }
        }
    }
    flush(guests.all);
    Ok(())
}

/// What was queued last still has to leave; who does not read in time is gone.
fn flush(guests: HashMap<u64, Guest>) {
    let mut last: Vec<_> = guests.into_values().map(|g| (g.rank, g.connection)).collect();
    // Rank 0 hears it last: this thread is in its process as a rule, and may end with it.
    last.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until && last.iter().any(|(_, c)| c.wants_write()) {
        last.retain_mut(|(_, c)| c.progress(Instant::now()).is_ok());
        wait_for(&mut [], Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_strangers_are_taken_than_may_be_unauthenticated() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let id = UniqueId::new(address).unwrap();
        let mut guests = Guests::new(&listener, &id).unwrap();
        let mut strangers: Vec<_> = (0..MAX_UNAUTHENTICATED + 6)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        guests.admit().unwrap();
        assert_eq!((guests.next, guests.all.len(), guests.accepting), (64, 64, false));
        // When one of them is gone, another place is free.
        drop(strangers.remove(0));
        let (mut machine, mut patience) = (Machine::default(), Patience::default());
        while guests.all.len() == 64 {
            for number in guests.wait(Duration::from_secs(1)).unwrap() {
                let told = (&mut machine, &mut patience);
                assert_eq!(guests.progress(number, told, Instant::now()).unwrap(), []);
            }
        }
        guests.admit().unwrap();
        assert_eq!((guests.next, guests.all.len(), guests.accepting), (65, 64, false));
    }
}
