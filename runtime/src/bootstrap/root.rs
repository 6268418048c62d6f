//! The rendezvous of a communicator, which collects a blob from every rank and gives all blobs to
//! every rank, in as many rounds as the ranks ask for. [`Machine`] is sans-I/O; `serve.rs` drives
//! it over TCP.

use super::wire::Frame;
use crate::error::{ENCRYPT_ALIKE, Error};
use crate::log::{self, Level, Subsystem};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Kinds of frames. A rank's first frame is `JOIN` (number of ranks, how many ms it waits for them,
/// blob); its further ones are `GATHER` (blob). The root answers `TABLE` (all blobs) or `FAILED`
/// (the rank to blame, text); ranks that come after a failure also get `FAILED`. `BYE` ends a
/// rank's part: the others go on without the rank, and its blobs are empty. A rank that cannot go
/// on sends `GIVE_UP`, which has the body of a `FAILED`. A rank that waits long for others outside
/// of rounds sends `WAITING`, which holds for the current round.
pub const JOIN: u8 = 1;
/// A rank's blob for a further round.
pub const GATHER: u8 = 2;
/// The blobs of all ranks.
pub const TABLE: u8 = 3;
/// Initialisation failed; the body says why.
pub const FAILED: u8 = 4;
/// The rank does not need the rendezvous any more.
pub const BYE: u8 = 5;
/// Initialisation failed at the rank; the body says why.
pub const GIVE_UP: u8 = 6;
/// The rank waits for other ranks, outside of rounds: it is not to blame when the time is over.
pub const WAITING: u8 = 7;

/// Bytes before the blob in a `JOIN`.
pub const JOIN_HEADER: usize = 12;
/// The largest blob of one rank in bytes.
pub const MAX_BLOB: usize = 4096;
/// The largest number of ranks of a communicator.
pub const MAX_RANKS: u32 = 1 << 16;

/// An action that the driver has to perform.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a frame to these ranks, in ascending order.
    Send(Vec<u32>, Frame),
    /// Close the connection on which this rank joined last.
    Turn(u32),
    /// End the rendezvous.
    Finish,
}

/// The rendezvous without I/O.
#[derive(Default)]
pub struct Machine {
    /// The numbers by which texts call the ranks; empty if these are their numbers in the meeting.
    names: Vec<u32>,
    nranks: Option<u32>,
    members: BTreeMap<u32, String>,
    blobs: BTreeMap<u32, Vec<u8>>,
    left: BTreeSet<u32>,
    /// The ranks that wait for others outside of rounds.
    waiting: BTreeSet<u32>,
    /// The ranks that will never come, each with the reason and whether it has died.
    absent: BTreeMap<u32, (String, bool)>,
    /// The frame that all ranks get once initialisation has failed, and the ranks that were told.
    verdict: Option<Frame>,
    told: BTreeSet<u32>,
}

impl Machine {
    /// Returns a rendezvous of ranks that texts call by these numbers, or by their own if `names`
    /// is empty.
    pub fn new(names: Vec<u32>) -> Self {
        Self { names, ..Self::default() }
    }

    /// Returns whether initialisation has failed.
    pub fn has_failed(&self) -> bool {
        self.verdict.is_some()
    }

    /// Returns whether every rank has been told that initialisation has failed.
    pub fn has_told_all(&self) -> bool {
        self.nranks.is_some_and(|n| self.told.len() as u32 >= n)
    }

    fn name(&self, rank: u32) -> u32 {
        self.names.get(rank as usize).copied().unwrap_or(rank)
    }

    /// Handles a frame from an authenticated rank at `address`.
    pub fn frame(&mut self, rank: u32, address: &str, frame: Frame) -> Vec<Action> {
        if let Some(verdict) = self.verdict.clone() {
            return self.tell_late(rank, address, &frame, verdict);
        }
        match frame.kind {
            JOIN => self.join(rank, address, &frame.body),
            GATHER => self.blob(rank, frame.body),
            BYE if !self.members.contains_key(&rank) => {
                self.blame(rank, &format!("(at {address}) left without having joined"))
            }
            BYE => {
                self.left.insert(rank);
                let all = self.nranks.is_some_and(|n| self.left.len() as u32 == n);
                if all { vec![Action::Finish] } else { self.round() }
            }
            WAITING => {
                self.waiting.insert(rank);
                Vec::new()
            }
            GIVE_UP => match split_failure(&frame.body) {
                Some((culprit, died, why)) if culprit >= 0 => self.fail(culprit, died, why),
                Some((.., why)) => self.blame(rank, &format!("gave up: {why}")),
                None => self.blame(rank, &format!("(at {address}) sent a short frame")),
            },
            kind => self.blame(rank, &format!("(at {address}) sent a frame of kind {kind}")),
        }
    }

    /// Tells a rank that comes after the failure, once. A rank that comes again wants the next
    /// communicator at this address and is turned away.
    fn tell_late(
        &mut self,
        rank: u32,
        address: &str,
        frame: &Frame,
        verdict: Frame,
    ) -> Vec<Action> {
        if frame.kind != JOIN {
            return Vec::new();
        }
        if let Some((n, ..)) = split_join(&frame.body) {
            self.nranks.get_or_insert(n);
        }
        self.members.insert(rank, address.to_owned());
        match self.told.insert(rank) {
            true => vec![Action::Send(vec![rank], verdict)],
            false => vec![Action::Turn(rank)],
        }
    }

    /// Fails because the rendezvous cannot go on.
    pub fn broken(&mut self, why: &str) -> Vec<Action> {
        self.fail(NOBODY, false, &format!("the rendezvous cannot go on: {why}"))
    }

    /// Fails because a rank came whose encryption differs; it was told so.
    pub fn differs(&mut self, rank: u32, address: &str, why: &str) -> Vec<Action> {
        if self.has_failed() {
            return Vec::new();
        }
        self.members.insert(rank, address.to_owned());
        let why = format!("(at {address}) {why}; {ENCRYPT_ALIKE}");
        self.blame(rank, &why)
    }

    /// Notes that a rank will never come, because it has died or for another reason.
    pub fn absent(&mut self, rank: u32, why: String, died: bool) -> Vec<Action> {
        if self.members.contains_key(&rank) || self.has_failed() {
            return Vec::new();
        }
        self.absent.insert(rank, (why, died));
        self.miss()
    }

    /// Fails if a rank has joined and another one will never come.
    fn miss(&mut self) -> Vec<Action> {
        let Some(n) = self.nranks else { return Vec::new() };
        let missed = self.absent.iter().find(|(rank, _)| **rank < n);
        match missed.map(|(rank, why)| (*rank, why.clone())) {
            Some((rank, (why, died))) => self.fail(self.name(rank) as i32, died, &why),
            None => Vec::new(),
        }
    }

    fn join(&mut self, rank: u32, address: &str, body: &[u8]) -> Vec<Action> {
        if self.left.contains(&rank) {
            // The rank wants the next communicator at the same address: it will come again.
            return vec![Action::Turn(rank)];
        }
        let Some((n, _, blob)) = split_join(body) else {
            return self.blame(rank, &format!("(at {address}) sent a short frame"));
        };
        // From now on the rank hears of failures, even if it is at fault itself.
        let before = self.members.insert(rank, address.to_owned());
        if n > MAX_RANKS || rank >= n {
            return self.blame(rank, &format!("(at {address}) says that nranks is {n}"));
        }
        if let Some(known) = self.nranks
            && known != n
        {
            let name = self.name(rank);
            let why = format!(
                "rank {name} says nranks is {n}, the others say {known}; give all ranks one number"
            );
            return self.fail(NOBODY, false, &why);
        }
        if let Some(other) = before {
            let name = self.name(rank);
            let why = format!(
                "rank {name} is claimed by {other} and by {address}; give each process another rank"
            );
            return self.fail(NOBODY, false, &why);
        }
        self.nranks = Some(n);
        self.absent.remove(&rank);
        let missed = self.miss();
        if missed.is_empty() { self.blob(rank, blob.to_vec()) } else { missed }
    }

    fn blob(&mut self, rank: u32, blob: Vec<u8>) -> Vec<Action> {
        if !self.members.contains_key(&rank) || blob.len() > MAX_BLOB {
            return self.blame(rank, &format!("sent a blob of {} bytes", blob.len()));
        }
        if self.blobs.insert(rank, blob).is_some() {
            return self.blame(rank, "sent two blobs in one round");
        }
        self.round()
    }

    /// Ends a round once all ranks that have not left have given their blobs.
    fn round(&mut self) -> Vec<Action> {
        let Some(n) = self.nranks else { return Vec::new() };
        if self.blobs.is_empty() || self.blobs.len() + self.left.len() < n as usize {
            return Vec::new();
        }
        let blobs = std::mem::take(&mut self.blobs);
        self.waiting.clear();
        let mut body = Vec::new();
        for rank in 0..n {
            let blob = blobs.get(&rank).map_or(&[][..], |blob| blob);
            body.extend((blob.len() as u32).to_le_bytes());
            body.extend(blob);
        }
        let frame = Frame { kind: TABLE, body };
        vec![Action::Send(blobs.into_keys().collect(), frame)]
    }

    /// Handles the end of a rank's connection.
    pub fn closed(&mut self, rank: u32, finished: bool) -> Vec<Action> {
        if finished || self.has_failed() || !self.members.contains_key(&rank) {
            return Vec::new();
        }
        let why = "ended during initialisation: its connection closed";
        self.fail(self.name(rank) as i32, true, why)
    }

    /// Fails because the time to wait for ranks is over. `ran_short` tells that the rendezvous had
    /// too few descriptors meanwhile.
    pub fn deadline(&mut self, waited: Duration, ran_short: bool) -> Vec<Action> {
        let Some(n) = self.nranks.filter(|_| !self.has_failed()) else { return Vec::new() };
        // In the first round the ranks are missing that never joined, later those that got stuck.
        let come = |r: &u32| self.blobs.contains_key(r) || self.left.contains(r);
        let mut missing: Vec<_> = (0..n).filter(|r| !come(r)).collect();
        // Ranks that wait for others are not to blame, unless all wait for each other.
        if missing.iter().any(|rank| !self.waiting.contains(rank)) {
            missing.retain(|rank| !self.waiting.contains(rank));
        }
        let missing: Vec<_> = missing.into_iter().map(|rank| self.name(rank)).collect();
        let secs = waited.as_millis() as f64 / 1000.0;
        let shown: Vec<_> = missing.iter().take(16).map(u32::to_string).collect();
        let more = if missing.len() > 16 { ", …" } else { "" };
        let (list, count) = (shown.join(", "), missing.len());
        let [word, runs, makes] = match count {
            1 => ["rank", "it runs", "makes"],
            _ => ["ranks", "they run", "make"],
        };
        let mut why = format!(
            "{count} of {n} ranks did not come within {secs} s: {word} {list}{more}; look whether \
             {runs}, and {makes} this communicator, or {LATER}"
        );
        if ran_short {
            why += "; the process that others come to had too few descriptors for them: raise \
                    ulimit -n there, or destroy communicators that are not needed";
        }
        self.fail(NOBODY, false, &why)
    }

    fn blame(&mut self, rank: u32, why: &str) -> Vec<Action> {
        self.fail(self.name(rank) as i32, false, why)
    }

    fn fail(&mut self, culprit: i32, died: bool, why: &str) -> Vec<Action> {
        let frame = Frame { kind: FAILED, body: failure(culprit, died, why) };
        let error = failure_in(&frame.body);
        log::line(Level::Warn, Subsystem::Bootstrap, &format!("rendezvous: {error}"));
        self.verdict = Some(frame.clone());
        self.told.extend(self.members.keys());
        vec![Action::Send(self.members.keys().copied().collect(), frame)]
    }
}

/// The advice where ranks may come later than they are waited for.
pub(super) const LATER: &str = "raise OXCCL_INIT_TIMEOUT";

/// The value in the place of the rank to blame if there is none.
const NOBODY: i32 = -1;

/// Returns the body of a `FAILED` or `GIVE_UP`: the rank to blame (−1 for none), whether it has
/// died, and what it did, or the whole text if no rank is to blame.
pub fn failure(culprit: i32, died: bool, why: &str) -> Vec<u8> {
    [&culprit.to_le_bytes()[..], &[u8::from(died)], why.as_bytes()].concat()
}

fn split_failure(body: &[u8]) -> Option<(i32, bool, &str)> {
    let (culprit, rest) = body.split_first_chunk()?;
    let (died, text) = rest.split_first()?;
    Some((i32::from_le_bytes(*culprit), *died != 0, std::str::from_utf8(text).ok()?))
}

/// Returns the error that the body of a `FAILED` or `GIVE_UP` stands for.
pub fn failure_in(body: &[u8]) -> Error {
    match split_failure(body) {
        Some((culprit, died, why)) => match u32::try_from(culprit) {
            Ok(culprit) if died => Error::init_death(culprit, why),
            Ok(culprit) => Error::init_peer(culprit, why),
            Err(_) => Error::Init { why: why.to_owned() },
        },
        None => Error::Init { why: "the rendezvous sent a bad frame".to_owned() },
    }
}

/// Returns the body of a `JOIN` of `nranks` ranks, in which the sender waits for the others for
/// `limit`.
pub fn join(nranks: u32, limit: Duration, blob: &[u8]) -> Vec<u8> {
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    [&nranks.to_le_bytes()[..], &limit_ms.to_le_bytes(), blob].concat()
}

/// Returns the parts of the body of a `JOIN`; `None` if the body is too short.
pub(super) fn split_join(body: &[u8]) -> Option<(u32, Duration, &[u8])> {
    let (nranks, rest) = body.split_first_chunk()?;
    let (limit_ms, blob) = rest.split_first_chunk()?;
    let limit = Duration::from_millis(u64::from_le_bytes(*limit_ms));
    Some((u32::from_le_bytes(*nranks), limit, blob))
}

/// Returns the blobs in the body of a `TABLE`; `None` if the body is malformed.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn join(n: u32, blob: &[u8]) -> Frame {
        Frame { kind: JOIN, body: super::join(n, Duration::from_secs(60), blob) }
    }

    fn failure(actions: &[Action]) -> String {
        match &actions[0] {
            Action::Send(_, Frame { kind: FAILED, body }) => failure_in(body).to_string(),
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
        let text = failure(&machine.deadline(Duration::from_secs(7), false));
        assert!(text.contains("2 of 4 ranks did not come within 7 s: ranks 1, 3"), "{text}");
        assert!(text.ends_with(", or raise OXCCL_INIT_TIMEOUT"), "{text}");
        let waits = || Frame { kind: WAITING, body: Vec::new() };
        let mut machine = Machine::default();
        (0..3).for_each(|rank| drop(machine.frame(rank, "a", join(3, b""))));
        (0..2).for_each(|rank| assert_eq!(machine.frame(rank, "a", waits()), []));
        let text = failure(&machine.deadline(Duration::from_secs(7), false));
        assert!(text.contains("1 of 3 ranks did not come within 7 s: rank 2"), "{text}");
        let mut machine = Machine::default();
        machine.frame(2, "a", join(4, b""));
        let text = failure(&machine.deadline(Duration::from_secs(7), true));
        assert!(text.contains("had too few descriptors for them: raise ulimit -n"), "{text}");
        let mut machine = Machine::default();
        machine.frame(1, "10.0.0.1:5", join(4, b""));
        let text = failure(&machine.frame(1, "10.0.0.2:6", join(4, b"")));
        assert!(text.contains("rank 1 is claimed by 10.0.0.1:5 and by 10.0.0.2:6"), "{text}");
        let mut machine = Machine::default();
        machine.frame(1, "a", join(4, b""));
        assert!(failure(&machine.frame(2, "b", join(5, b""))).contains("nranks is 5"));
        let mut machine = Machine::default();
        machine.frame(1, "a", join(4, b""));
        assert!(failure(&machine.closed(1, false)).contains("rank 1 ended"));
        assert!(machine.closed(1, false).is_empty(), "it is told once");
    }

    #[test]
    fn who_comes_to_a_failed_rendezvous_is_told_why_once() {
        let mut machine = Machine::new(vec![4, 5, 7]);
        machine.frame(1, "a", join(3, b""));
        let give_up =
            |culprit, why: &str| Frame { kind: GIVE_UP, body: super::failure(culprit, false, why) };
        let text = failure(&machine.frame(1, "a", give_up(-1, "no memory")));
        assert!(text.contains("rank 5 gave up: no memory"), "{text}");
        let late = machine.frame(2, "b", join(3, b""));
        assert!(matches!(&late[..], [Action::Send(ranks, _)] if ranks[..] == [2]), "{late:?}");
        assert!(failure(&late).contains("rank 5 gave up") && !machine.has_told_all());
        assert_eq!(machine.frame(2, "b", join(3, b"")), [Action::Turn(2)]);
        machine.frame(0, "c", join(3, b""));
        assert!(machine.has_told_all());
        let mut machine = Machine::default();
        machine.frame(0, "a", join(2, b""));
        assert!(
            failure(&machine.frame(0, "a", give_up(1, "has died"))).contains("rank 1 has died")
        );
    }

    #[test]
    fn who_will_never_come_is_named_as_soon_as_someone_waits() {
        let mut machine = Machine::default();
        assert_eq!(machine.absent(2, "exited with status 0".to_owned(), true), []);
        let text = failure(&machine.frame(0, "a", join(3, b"")));
        assert!(text.contains("rank 2 exited with status 0"), "{text}");
        let mut machine = Machine::default();
        machine.frame(1, "a", join(3, b""));
        assert_eq!(machine.absent(1, "has come before".to_owned(), true), []);
        assert!(failure(&machine.absent(0, "is gone".to_owned(), true)).contains("rank 0 is gone"));
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
