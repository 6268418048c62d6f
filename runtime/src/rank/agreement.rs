//! The agreement of the ranks of a communicator on their operations, and the facts that a waiting
//! operation can find out about its peers.

use super::Rank;
use crate::error::{Error, Result, Site};
use crate::link::direct::{RING, Segment};
use crate::link::{Message, notice};
use crate::op::descriptor::{Descriptor, Label};
use std::collections::HashMap;
use std::sync::MutexGuard;

/// The operation of a rank, as far as others can check it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CurrentOp {
    /// A collective and its number among the communicator's collectives.
    Collective(Label, u64),
    /// Sends and receives, and one of these messages; the number is that of the next collective.
    Exchange(Option<Descriptor>, u64),
    /// A one-sided operation; the number is that of the next collective.
    OneSided(u64),
}

/// What a peer does of which the tag of all collectives so far is another one.
const BEFORE: &str = "something else, or did before";

/// The knowledge of a peer's operation: its descriptor, or words about it.
type Theirs<'a> = std::result::Result<Descriptor, &'a str>;

impl CurrentOp {
    /// Returns the texts of this operation and of a peer's, as far as that is known.
    fn texts(&self, theirs: Theirs<'_>) -> [String; 2] {
        let own = match *self {
            CurrentOp::Collective(label, _) => Ok(label.descriptor),
            CurrentOp::Exchange(Some(message), _) => Ok(message),
            CurrentOp::Exchange(None, _) => Err("send/recv"),
            CurrentOp::OneSided(_) => Err("a one-sided operation"),
        };
        match (own, theirs) {
            (Ok(own), Ok(theirs)) => own.texts(theirs),
            sides => [sides.0, sides.1].map(|side| {
                side.map_or_else(ToOwned::to_owned, |descriptor| descriptor.to_string())
            }),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        match *self {
            CurrentOp::Collective(_, seq)
            | CurrentOp::Exchange(_, seq)
            | CurrentOp::OneSided(seq) => seq,
        }
    }

    fn site(&self, rank: &Rank, peer: u32) -> Site {
        let (rank, peer, op_seq) = (rank.number as i32, peer as i32, self.number());
        Site { rank, peer, step: -1, op_seq, operation: "" }
    }

    /// Returns the error for two ranks that both send before they receive.
    pub(crate) fn both_send(&self, rank: &Rank, peer: u32) -> Error {
        Error::BothSend { site: self.site(rank, peer) }
    }

    /// Returns the error that names both sides.
    pub(crate) fn differs(&self, rank: &Rank, peer: u32, theirs: Theirs<'_>) -> Error {
        let site = self.site(rank, peer);
        let is_message = matches!(self, CurrentOp::Exchange(..));
        let messages = is_message && theirs.is_ok_and(|of| of.is_message());
        let [own, theirs] = self.texts(theirs);
        Error::Mismatch { site, own, theirs, messages }
    }
}

/// Fails when a peer that has signalled in this collective executes another one, or has executed
/// another one before. `label` has the tag of all collectives so far. For direct plans only: there
/// a rank is its own place in the segment.
#[inline(always)]
pub(crate) fn compare(
    rank: &Rank,
    segment: &Segment,
    label: &Label,
    seq: u64,
    peer: u32,
) -> Result<()> {
    if segment.agrees(peer as usize, seq, label) {
        return Ok(());
    }
    Err(disagreement(rank, segment, label, seq, peer))
}

/// Returns the error for a peer that does not agree: about the first collective that differs, as
/// far as it is remembered.
#[cold]
fn disagreement(rank: &Rank, segment: &Segment, label: &Label, seq: u64, peer: u32) -> Error {
    let places = [rank.number as usize, peer as usize];
    let mut from = seq.saturating_sub(RING);
    let found = differing(rank, segment, (peer, places), &mut from, seq.wrapping_add(1));
    found.unwrap_or_else(|| CurrentOp::Collective(*label, seq).differs(rank, peer, Err(BEFORE)))
}

/// Returns the error for a message that another operation sent.
pub(crate) fn unexpected(rank: &Rank, doing: CurrentOp, peer: u32, message: &Message) -> Error {
    let seq = doing.number();
    let place = rank.segment.as_ref().zip(rank.local[peer as usize]);
    let looked_up = || place.and_then(|(segment, local)| segment.announced(local, seq));
    let theirs = message.descriptor.or_else(looked_up).ok_or("another collective");
    doing.differs(rank, peer, theirs)
}

/// Returns the error that an operation without progress can find: the failure of a peer, or a peer
/// that executes another operation, after a `long` wait also one that did so before. The label of
/// a collective has the tag of all collectives so far.
pub(crate) fn look_around(rank: &Rank, doing: CurrentOp, long: bool) -> Option<Error> {
    if let Some(error) = rank.hear() {
        return Some(error);
    }
    let CurrentOp::Collective(label, seq) = doing else { return None };
    let (segment, own) = rank.place()?;
    let mut peers = (0..rank.nranks).filter(|&p| p != rank.number);
    peers.find_map(|peer| {
        let local = rank.local[peer as usize]?;
        let mut from = if long { seq.saturating_sub(RING) } else { seq };
        let found = differing(rank, segment, (peer, [own, local]), &mut from, seq.wrapping_add(1));
        found.or_else(|| {
            // What differed may be longer ago than descriptors are kept.
            let differs =
                long && segment.has_begun(own, seq) && !segment.agrees(local, seq, &label);
            differs.then(|| doing.differs(rank, peer, Err(BEFORE)))
        })
    })
}

/// The latest notices of a peer on another host about its operations.
#[derive(Clone, Copy, Default)]
pub(super) struct Said {
    /// The last collective that it has told, by its number.
    collective: Option<(u64, Descriptor)>,
    /// The number of messages that it has sent to this rank, said since it is there.
    sent: Option<u64>,
}

impl Said {
    fn tell(&mut self, seq: u64, collective: Descriptor) {
        if self.collective.is_none_or(|(known, _)| known != seq) {
            self.sent = None;
        }
        self.collective = Some((seq, collective));
    }
}

impl Rank {
    fn said(&self) -> MutexGuard<'_, HashMap<u32, Said>> {
        self.said.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes how many messages a peer on another host has sent to this rank.
    pub(super) fn note_sent(&self, peer: u32, messages: u64) {
        self.said().entry(peer).or_default().sent = Some(messages);
    }

    /// Returns the collective of this number if a peer has announced it: in memory, or by a notice.
    fn announced_by(&self, peer: u32, seq: u64) -> Option<Descriptor> {
        let place = self.local.get(peer as usize).copied().flatten();
        // Kernels compare what ranks of a host call, and announce nothing here.
        match self.segment.as_ref().zip(place).filter(|_| !self.is_on_gpu()) {
            Some((segment, local)) => segment.announced(local, seq),
            None => {
                let told = self.said().get(&peer).and_then(|said| said.collective);
                told.filter(|(number, _)| *number == seq).map(|(_, collective)| collective)
            }
        }
    }

    /// Returns the collective of this number if a peer waits there, or is beyond it, and has sent
    /// nothing more than the `taken` messages that this rank has taken from it.
    pub(crate) fn waits_beyond(&self, peer: u32, seq: u64, taken: u64) -> Option<Descriptor> {
        let sent = self.said().get(&peer).and_then(|said| said.sent);
        let here = self.local.get(peer as usize).is_some_and(Option::is_some);
        let all_taken = here || sent.is_some_and(|sent| taken >= sent);
        self.announced_by(peer, seq).filter(|_| all_taken)
    }
}

/// Tells peers of other hosts, which cannot look it up, the collective in which this rank waits.
pub(crate) fn tell(rank: &Rank, doing: CurrentOp) {
    if let CurrentOp::Collective(label, seq) = doing {
        rank.tell_all(&notice::doing(seq, label.descriptor));
    }
}

/// Tells the next rank of a rail, in teams of `team` ranks, the collective that the rail's switch
/// reduces: the switch does not show what the others do, and mixes the data of differing calls. No
/// rank waits for this, so the communicator may fail only after such a call. Fails if the rank
/// before has told another collective already.
pub(crate) fn agree_on_rail(rank: &Rank, team: u32, label: &Label, seq: u64) -> Result<()> {
    let (number, nranks) = (rank.number, rank.nranks);
    let (next, before) = ((number + team) % nranks, (number + nranks - team) % nranks);
    if let Some(control) = rank.control(next) {
        control.tell(&notice::doing(seq, label.descriptor));
    }
    match rank.announced_by(before, seq).filter(|theirs| *theirs != label.descriptor) {
        Some(theirs) => Err(CurrentOp::Collective(*label, seq).differs(rank, before, Ok(theirs))),
        None => Ok(()),
    }
}

/// Compares collectives that may be long over: where no rank had to wait, no rank noticed that they
/// differ. `from` is the number of the first collective to compare, and is advanced; this rank has
/// begun those before `end`.
pub(crate) fn compare_past(rank: &Rank, peer: u32, from: &mut u64, end: u64) -> Option<Error> {
    let segment = rank.segment.as_ref()?;
    let (own, place) = (rank.local[rank.number as usize]?, rank.local[peer as usize]?);
    *from = (*from).max(end.saturating_sub(RING));
    differing(rank, segment, (peer, [own, place]), from, end)
}

/// Returns the error for a peer on this host of which a collective differs, as far as both ranks
/// remember theirs: at the end of a communicator, as no later call will notice. This rank has begun
/// `end` collectives.
pub(crate) fn compare_all_past(rank: &Rank, end: u64) -> Option<Error> {
    let mut peers = (0..rank.nranks).filter(|&peer| peer != rank.number);
    peers.find_map(|peer| compare_past(rank, peer, &mut 0, end))
}

/// Returns the error for the first collective before `end` that differs between this rank, whose
/// place in the segment is `own`, and a peer, as far as both remember it. Advances `from`, the
/// number of the first collective to compare.
fn differing(
    rank: &Rank,
    segment: &Segment,
    (peer, [own, place]): (u32, [usize; 2]),
    from: &mut u64,
    end: u64,
) -> Option<Error> {
    while *from < end {
        let theirs = segment.announced(place, *from);
        if let (Some(ours), Some(theirs)) = (segment.announced(own, *from), theirs)
            && ours != theirs
        {
            let doing = CurrentOp::Collective(ours.into(), *from);
            return Some(doing.differs(rank, peer, Ok(theirs)));
        }
        // A peer that is behind is looked at again later. A peer that is far ahead no longer
        // remembers this collective.
        if theirs.is_none() && segment.announced(place, from.wrapping_add(RING)).is_none() {
            return None;
        }
        *from += 1;
    }
    None
}

/// Compares a collective in which a peer on another host waits with this rank's collective of the
/// same number, and remembers it for operations that wait for this peer.
pub(crate) fn compare_told(rank: &Rank, peer: u32, seq: u64, theirs: Descriptor) -> Option<Error> {
    rank.said().entry(peer).or_default().tell(seq, theirs);
    let ours = rank.links()?.remembered(seq)?;
    (ours != theirs)
        .then(|| CurrentOp::Collective(ours.into(), seq).differs(rank, peer, Ok(theirs)))
}
