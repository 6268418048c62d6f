//! The rendezvous of a communicator: collects a blob from every rank and gives everyone all of
//! them, as often as the ranks ask. [`Machine`] is sans-I/O; [`serve`] drives it over TCP.

use super::auth::{Ends, Role, Server};
use super::id::UniqueId;
use super::wire::{Connection, Frame, MAX_UNAUTHENTICATED, wait_for};
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Kinds of frames. A rank's first frame is `JOIN` (number of ranks, how many ms it waits for them,
/// blob), the others `GATHER` (blob); the root answers `TABLE` (all blobs) or `FAILED` (text). `BYE` ends a rank's part: the
/// others go on without it, and its blobs are empty.
pub const JOIN: u8 = 1;
/// A further round.
pub const GATHER: u8 = 2;
/// All ranks' blobs.
pub const TABLE: u8 = 3;
/// Initialisation failed; the body says why.
pub const FAILED: u8 = 4;
/// This rank needs the rendezvous no more.
pub const BYE: u8 = 5;

/// Bytes before the blob in a `JOIN`.
pub const JOIN_HEADER: usize = 12;
/// The largest blob of one rank in bytes.
pub const MAX_BLOB: usize = 4096;
/// The largest communicator.
pub const MAX_RANKS: u32 = 1 << 16;

/// What the driver is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a frame to these ranks, in ascending order.
    Send(Vec<u32>, Frame),
    /// Close the connection on which this rank joined last.
    Turn(u32),
    /// Everything is over.
    Finish,
}

/// The rendezvous without I/O.
#[derive(Default)]
pub struct Machine {
    nranks: Option<u32>,
    members: BTreeMap<u32, String>,
    blobs: BTreeMap<u32, Vec<u8>>,
    left: BTreeSet<u32>,
    failed: bool,
}

impl Machine {
    /// A frame came from an authenticated rank at `address`.
    pub fn frame(&mut self, rank: u32, address: &str, frame: Frame) -> Vec<Action> {
        match frame.kind {
            JOIN => self.join(rank, address, &frame.body),
            GATHER => self.blob(rank, frame.body),
            BYE if !self.members.contains_key(&rank) => {
                self.fail(&format!("rank {rank} at {address} left without having joined"))
            }
            BYE => {
                self.left.insert(rank);
                let all = self.nranks.is_some_and(|n| self.left.len() as u32 == n);
                if all { vec![Action::Finish] } else { self.round() }
            }
            kind => self.fail(&format!("rank {rank} at {address} sent a frame of kind {kind}")),
        }
    }

    fn join(&mut self, rank: u32, address: &str, body: &[u8]) -> Vec<Action> {
        if self.left.contains(&rank) {
            // It wants the next communicator at the same address: it will come again.
            return vec![Action::Turn(rank)];
        }
        let Some((n, _, blob)) = split_join(body) else {
            return self.fail(&format!("rank {rank} at {address} sent a short frame"));
        };
        // From now on it hears what fails, also when it is at fault itself.
        let before = self.members.insert(rank, address.to_owned());
        if n > MAX_RANKS || rank >= n {
            return self.fail(&format!("rank {rank} at {address} claims {n} ranks"));
        }
        if let Some(known) = self.nranks
            && known != n
        {
            let others = "the others say";
            return self.fail(&format!("rank {rank} says nranks is {n}, {others} {known}"));
        }
        if let Some(other) = before {
            return self.fail(&format!("rank {rank} is claimed by {other} and by {address}"));
        }
        self.nranks = Some(n);
        self.blob(rank, blob.to_vec())
    }

    fn blob(&mut self, rank: u32, blob: Vec<u8>) -> Vec<Action> {
        if !self.members.contains_key(&rank) || blob.len() > MAX_BLOB {
            return self.fail(&format!("rank {rank} sent a blob of {} bytes", blob.len()));
        }
        if self.blobs.insert(rank, blob).is_some() {
            return self.fail(&format!("rank {rank} sent two blobs in one round"));
        }
        self.round()
    }

    /// Ends a round once all who are still there have given their blobs.
    fn round(&mut self) -> Vec<Action> {
        let Some(n) = self.nranks else { return Vec::new() };
        if self.blobs.is_empty() || self.blobs.len() + self.left.len() < n as usize {
            return Vec::new();
        }
        let blobs = std::mem::take(&mut self.blobs);
        let mut body = Vec::new();
        for rank in 0..n {
            let blob = blobs.get(&rank).map_or(&[][..], |blob| blob);
            body.extend((blob.len() as u32).to_le_bytes());
            body.extend(blob);
        }
        let frame = Frame { kind: TABLE, body };
        vec![Action::Send(blobs.into_keys().collect(), frame)]
    }

    /// The connection of a rank closed.
    pub fn closed(&mut self, rank: u32, finished: bool) -> Vec<Action> {
        if finished || self.failed || !self.members.contains_key(&rank) {
            return Vec::new();
        }
        self.fail(&format!("rank {rank} closed its connection during initialisation"))
    }

    /// The time to wait for ranks is over.
    pub fn deadline(&mut self, waited: Duration) -> Vec<Action> {
        let Some(n) = self.nranks else { return Vec::new() };
        // In the first round those are missing that never joined, later those that got stuck.
        let come = |r: &u32| self.blobs.contains_key(r) || self.left.contains(r);
        let missing: Vec<_> = (0..n).filter(|r| !come(r)).collect();
        let shown: Vec<_> = missing.iter().take(16).map(u32::to_string).collect();
        let more = if missing.len() > 16 { ", …" } else { "" };
        let (secs, list) = (waited.as_millis() as f64 / 1000.0, shown.join(", "));
        self.fail(&format!(
            "{} of {n} ranks did not come within {secs} s: {list}{more}",
            missing.len()
        ))
    }

    fn fail(&mut self, why: &str) -> Vec<Action> {
        self.failed = true;
        log::line(Level::Warn, Subsystem::Bootstrap, &format!("rendezvous: {why}"));
        let frame = Frame { kind: FAILED, body: why.as_bytes().to_vec() };
        vec![Action::Send(self.members.keys().copied().collect(), frame), Action::Finish]
    }
}

/// The body of a `JOIN` of `nranks` ranks, of which the sender waits for the others so long.
pub fn join(nranks: u32, limit: Duration, blob: &[u8]) -> Vec<u8> {
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    [&nranks.to_le_bytes()[..], &limit_ms.to_le_bytes(), blob].concat()
}

/// The parts of such a body; None when it is too short.
fn split_join(body: &[u8]) -> Option<(u32, Duration, &[u8])> {
    let (nranks, rest) = body.split_first_chunk()?;
    let (limit_ms, blob) = rest.split_first_chunk()?;
    let limit = Duration::from_millis(u64::from_le_bytes(*limit_ms));
    Some((u32::from_le_bytes(*nranks), limit, blob))
}

/// Splits the body of a `TABLE`.
pub fn split_table(body: &[u8], nranks: u32) -> Option<Vec<Vec<u8>>> {
    let (mut rest, mut blobs) = (body, Vec::new());
    for _ in 0..nranks {
        let (len, tail) = rest.split_first_chunk::<4>()?;
        let (blob, tail) = tail.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        blobs.push(blob.to_vec());
        rest = tail;
    }
    rest.is_empty().then_some(blobs)
}

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

/// Runs a rendezvous until all ranks have left it, it failed, or one that came has waited as long as
/// it wants to. Blocks; give it a thread.
pub fn serve(listener: TcpListener, id: &UniqueId) -> Result<()> {
    let mut machine = Machine::default();
    let mut connections = Connections::new();
    let (mut next, mut patience, mut over) = (0u64, Patience::default(), false);
    listener
        .set_nonblocking(true)
        .map_err(|e| crate::Error::system("fcntl on the rendezvous", e, "out of memory?"))?;
    while !over {
        let idle = patience.since.is_none() && connections.is_empty();
        let limit = if idle { Duration::from_secs(3600) } else { patience.slice(Instant::now()) };
        let ready = wait_for_any(&listener, &connections, limit);
        next = admit(&listener, id, next, &mut connections);
        let mut actions = Vec::new();
        let now = Instant::now();
        connections.retain(|number, (connection, rank, finished)| {
            // To ask all of them would cost a system call for each. Strangers' time may be over.
            if connection.is_authenticated() && !ready.contains(number) {
                return true;
            }
            loop {
                match connection.progress(now) {
                    Ok(Some(frame)) => {
                        patience.heard(&frame, now);
                        if frame.kind == JOIN {
                            *rank = Some(connection.peer_rank());
                        }
                        *finished |= frame.kind == BYE;
                        let address = connection.peer_address();
                        actions.extend(machine.frame(connection.peer_rank(), &address, frame));
                    }
                    Ok(None) => return true,
                    Err(e) => {
                        match rank {
                            Some(rank) => actions.extend(machine.closed(*rank, *finished)),
                            None => note(&e),
                        }
                        return false;
                    }
                }
            }
        });
        if let Some(waited) = patience.over(now) {
            actions.extend(machine.deadline(waited));
        }
        for action in actions {
            match action {
                Action::Send(ranks, frame) => {
                    let bytes = frame.encode();
                    // Two of a rank that was claimed twice: both shall know.
                    for (connection, rank, _) in connections.values_mut() {
                        if rank.is_some_and(|rank| ranks.binary_search(&rank).is_ok()) {
                            connection.queue(bytes.clone());
                        }
                    }
                }
                Action::Turn(rank) => {
                    connections.retain(|_, (_, r, finished)| *r != Some(rank) || *finished);
                }
                Action::Finish => over = true,
            }
        }
    }
    flush(connections);
    Ok(())
}

/// What was queued last still has to leave; who does not read in time is gone.
fn flush(connections: Connections) {
    let mut last: Vec<_> = connections.into_values().map(|(c, rank, _)| (rank, c)).collect();
    // Rank 0 hears it last: this thread is in its process as a rule, and may end with it.
    last.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until && last.iter().any(|(_, c)| c.wants_write()) {
        last.retain_mut(|(_, c)| c.progress(Instant::now()).is_ok());
        wait_for(&mut [], Duration::from_millis(2));
    }
}

/// Waits for a new connection or something on an old one; the numbers of those that show it.
fn wait_for_any(
    listener: &TcpListener,
    connections: &Connections,
    limit: Duration,
) -> HashSet<u64> {
    let flags = |c: &Connection| {
        if c.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    };
    let full = strangers(connections) >= MAX_UNAUTHENTICATED;
    let accept = if full { PollFlags::empty() } else { PollFlags::IN };
    let mut fds = vec![PollFd::new(listener, accept)];
    fds.extend(connections.values().map(|(c, ..)| PollFd::new(c.stream(), flags(c))));
    wait_for(&mut fds, limit);
    let polled = connections.keys().zip(&fds[1..]);
    polled.filter(|(_, fd)| !fd.revents().is_empty()).map(|(&number, _)| number).collect()
}

/// Connections by number, with the rank once it has joined, and whether it has left.
type Connections = HashMap<u64, (Connection, Option<u32>, bool)>;

/// Takes new connections, as many as may be unauthenticated; the next free number.
fn admit(
    listener: &TcpListener,
    id: &UniqueId,
    mut next: u64,
    connections: &mut Connections,
) -> u64 {
    // More than so many wait in the kernel's queue until others have authenticated.
    while strangers(connections) < MAX_UNAUTHENTICATED {
        let Ok((stream, _)) = listener.accept() else { break };
        let ends = Ends { role: Role::Rendezvous, from: 0, to: u32::MAX, comm: id.comm };
        if let Ok(server) = Server::new(id.secret, ends, MAX_RANKS)
            && let Ok(connection) = Connection::accept(stream, server, MAX_BLOB + JOIN_HEADER)
        {
            connections.insert(next, (connection, None, false));
            next += 1;
        }
    }
    next
}

fn strangers(connections: &Connections) -> usize {
    connections.values().filter(|(c, ..)| !c.is_authenticated()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(n: u32, blob: &[u8]) -> Frame {
        Frame { kind: JOIN, body: super::join(n, Duration::from_secs(60), blob) }
    }

    fn failure(actions: &[Action]) -> String {
        match &actions[0] {
            Action::Send(_, Frame { kind: FAILED, body }) => String::from_utf8_lossy(body).into(),
            other => panic!("no failure but {other:?}"),
        }
    }

    #[test]
    fn everyone_gets_every_blob_in_rank_order_in_every_round() {
        let mut machine = Machine::default();
        assert_eq!(machine.frame(1, "b", join(2, b"one")), []);
        let actions = machine.frame(0, "a", join(2, b"zero"));
        let [Action::Send(ranks, table)] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(ranks[..], [0, 1]);
        assert_eq!(split_table(&table.body, 2).unwrap(), [b"zero".to_vec(), b"one".to_vec()]);
        assert_eq!(split_table(&table.body, 3), None);
        let gather = |blob: &[u8]| Frame { kind: GATHER, body: blob.to_vec() };
        assert_eq!(machine.frame(0, "a", gather(b"x")), []);
        let actions = machine.frame(1, "b", gather(b""));
        assert!(matches!(&actions[..], [Action::Send(ranks, _)] if ranks[..] == [0, 1]));
        let bye = Frame { kind: BYE, body: Vec::new() };
        assert_eq!(machine.frame(0, "a", bye.clone()), []);
        assert_eq!(machine.closed(0, true), []);
        assert_eq!(machine.frame(1, "b", bye), [Action::Finish]);
    }

    #[test]
    fn failures_name_the_ranks() {
        let mut machine = Machine::default();
        machine.frame(2, "a", join(4, b""));
        machine.frame(0, "b", join(4, b""));
        let text = failure(&machine.deadline(Duration::from_secs(7)));
        assert_eq!(text, "2 of 4 ranks did not come within 7 s: 1, 3");
        let mut machine = Machine::default();
        machine.frame(1, "10.0.0.1:5", join(4, b""));
        let text = failure(&machine.frame(1, "10.0.0.2:6", join(4, b"")));
        assert_eq!(text, "rank 1 is claimed by 10.0.0.1:5 and by 10.0.0.2:6");
        let mut machine = Machine::default();
        machine.frame(1, "a", join(4, b""));
        assert!(failure(&machine.frame(2, "b", join(5, b""))).contains("nranks is 5"));
        let mut machine = Machine::default();
        machine.frame(1, "a", join(4, b""));
        assert!(failure(&machine.closed(1, false)).contains("rank 1 closed"));
    }

    #[test]
    fn no_more_strangers_are_taken_than_may_be_unauthenticated() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let id = UniqueId::new(address).unwrap();
        let strangers: Vec<_> = (0..MAX_UNAUTHENTICATED + 6)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        let mut connections = Connections::new();
        let next = admit(&listener, &id, 0, &mut connections);
        assert_eq!((next, connections.len()), (64, 64));
        // When one of them is gone, another place is free.
        connections.remove(&0);
        assert_eq!(admit(&listener, &id, next, &mut connections), 65);
        drop(strangers);
    }

    #[test]
    fn oversized_and_repeated_blobs_are_refused() {
        let mut machine = Machine::default();
        machine.frame(1, "a", join(2, b""));
        let again = Frame { kind: GATHER, body: Vec::new() };
        assert!(failure(&machine.frame(1, "a", again)).contains("two blobs"));
        let mut machine = Machine::default();
        let large = machine.frame(0, "a", join(2, &[0; MAX_BLOB + 1]));
        assert!(failure(&large).contains("4097 bytes"));
    }
}
