//! The rendezvous of a communicator: collects a blob from every rank and gives everyone all of
//! them, as often as the ranks ask. [`Machine`] is sans-I/O; `serve.rs` drives it over TCP.

use super::wire::Frame;
use crate::log::{self, Level, Subsystem};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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
/// From the launcher in the name of a rank: its process ended, with the status in the body.
pub const ENDED: u8 = 6;

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
    /// Ranks whose processes ended before they joined, and how.
    absent: BTreeMap<u32, String>,
    failed: bool,
}

impl Machine {
    /// A frame came from an authenticated rank at `address`.
    pub fn frame(&mut self, rank: u32, address: &str, frame: Frame) -> Vec<Action> {
        match frame.kind {
            JOIN => self.join(rank, address, &frame.body),
            GATHER => self.blob(rank, frame.body),
            ENDED => self.absent(rank, &String::from_utf8_lossy(&frame.body)),
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
        let in_vain = self.in_vain();
        if !in_vain.is_empty() {
            return in_vain;
        }
        self.blob(rank, blob.to_vec())
    }

    /// The process of a rank ended: a rank that has not joined will not come.
    fn absent(&mut self, rank: u32, status: &str) -> Vec<Action> {
        // How one that has joined leaves, its connection says.
        if self.members.contains_key(&rank) {
            return Vec::new();
        }
        self.absent.entry(rank).or_insert_with(|| status.to_owned());
        self.in_vain()
    }

    /// Tells those who have come that one of the ranks will not; nothing where all may still come.
    fn in_vain(&mut self) -> Vec<Action> {
        let n = self.nranks.unwrap_or(0);
        let Some((rank, status)) = self.absent.first_key_value().filter(|(r, _)| **r < n) else {
            return Vec::new();
        };
        let why = format!(
            "rank {rank}'s process ended with {status} before it joined; look at its output"
        );
        let mut actions = self.fail(&why);
        // Those who come later shall hear it as well.
        let known = |r: &u32| self.members.contains_key(r) || self.absent.contains_key(r);
        if !(0..n).all(|r| known(&r)) {
            actions.retain(|action| *action != Action::Finish);
        }
        actions
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
        if !std::mem::replace(&mut self.failed, true) {
            log::line(Level::Warn, Subsystem::Bootstrap, &format!("rendezvous: {why}"));
        }
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
pub(super) fn split_join(body: &[u8]) -> Option<(u32, Duration, &[u8])> {
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
    fn who_has_come_and_who_comes_later_hear_of_a_process_that_ended() {
        let mut machine = Machine::default();
        let ended = |status: &str| Frame { kind: ENDED, body: status.as_bytes().to_vec() };
        // Nobody waits yet; and rank 7 is none of the three.
        assert_eq!(machine.frame(7, "l", ended("status 1")), []);
        assert_eq!(machine.frame(0, "a", join(3, b"")), []);
        // It has joined.
        assert_eq!(machine.frame(0, "l", ended("status 1")), []);
        let told = "rank 2's process ended with status 0 before it joined; look at its output";
        let actions = machine.frame(2, "l", ended("status 0"));
        assert_eq!((failure(&actions).as_str(), actions.len()), (told, 1));
        assert_eq!(machine.closed(0, false), []);
        let actions = machine.frame(1, "b", join(3, b""));
        assert_eq!((failure(&actions).as_str(), &actions[1..]), (told, &[Action::Finish][..]));
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
