//! Communicators made from others. The ranks meet again at an address that every rank published
//! when the parent was made. The parent's data path is not used, because it may have failed.

use super::create::{ChildMeetings, Rendezvous, alone, assemble, identified, join, recorder_of};
use super::{Communicator, Member, Options, Origin};
use crate::bootstrap::deadline::InVain;
use crate::bootstrap::rendezvous;
use crate::bootstrap::session::{Meeting, Session};
use crate::bootstrap::{Cancel, ID_BYTES, UniqueId};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::rank::Death;
use crate::recorder::Recorder;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The color of a rank that joins no child: `NCCL_SPLIT_NOCOLOR`.
pub const NO_COLOR: i32 = -1;

/// Returns a check that finds out whether one of these ranks of the parent has died.
fn deaths(parent: &Communicator, ranks: &[u32]) -> InVain {
    let (own, ranks) = (parent.executor.rank().clone(), ranks.to_vec());
    Arc::new(move || {
        let (rank, Death { why, mutual }) = own.first_death(&ranks)?;
        let why = format!("is lost: {why}");
        // The loss is mutual: other ranks may take this rank for the lost one.
        Some(if mutual { Error::init_peer(rank, why) } else { Error::init_death(rank, why) })
    })
}

/// Meets with `ranks` of the parent, of which the first holds the rendezvous. Returns the session,
/// this rank as a member of the meeting, and its record. The meeting ends when one of them dies.
fn meet(
    parent: &Communicator,
    child_meetings: &ChildMeetings,
    (purpose, number): (&str, u64),
    ranks: &[u32],
    (device, options, cancel): (Device, &Options, &Cancel),
) -> Result<(Session, Member, Recorder)> {
    let (leader, own) = (ranks[0], parent.rank());
    let id = child_meetings.id.derive(purpose, number, child_meetings.addresses[leader as usize]);
    let place = |rank| ranks.iter().position(|&r| r == rank).unwrap_or(0) as u32;
    if own == leader {
        let failed = |e| Error::system("dup of a listener", e, "raise ulimit -n");
        let listener = child_meetings.listener.try_clone().map_err(failed)?;
        rendezvous::start(listener, id.clone(), ranks.to_vec())?;
    }
    let (rank, nranks, options) = (place(own), ranks.len() as u32, options.clone());
    let limit = options.init_limit();
    let member = Member { id, rank, nranks, device, options };
    let recorder = recorder_of(&member, Some(parent.executor.rank().recorder.comm()));
    let id = &member.id;
    let (in_vain, holder) = (Some(deaths(parent, ranks)), Some(leader));
    let meeting = Meeting { id, rank, nranks, reused: true, limit, cancel, in_vain, holder };
    let session = Session::open(&meeting).inspect_err(|error| {
        // This has no effect if another process holds the rendezvous.
        let (absent, why, died) = match error {
            Error::InitPeer { site, why, died } => (site.peer as u32, why.clone(), *died),
            other => (own, format!("gave up: {other}"), false),
        };
        rendezvous::note_absent(id, place(absent), why, died);
    })?;
    Ok((session, member, recorder))
}

/// Gives every rank the blobs of all ranks. A failure ends the meeting. Blocks for all ranks that
/// meet.
fn gather(mut session: Session, blob: &[u8]) -> Result<(Session, Vec<Vec<u8>>)> {
    match session.gather(blob) {
        Ok(answers) => Ok((session, answers)),
        Err(error) => Err(session.give_up(error)),
    }
}

/// Splits a communicator by color; ranks are ordered by key, then by their rank in the parent.
/// Returns `None` for a rank without a color. Blocks for all ranks of the parent.
pub(super) fn split(
    parent: &Communicator,
    (color, key, number): (i32, i32, u64),
    device: Device,
    options: &Options,
    cancel: &Cancel,
) -> Result<Option<Communicator>> {
    let begun = Instant::now();
    let Some(child_meetings) = &parent.child_meetings else {
        return if color == NO_COLOR { Ok(None) } else { alone(device, options).map(Some) };
    };
    let everyone: Vec<u32> = (0..parent.nranks()).collect();
    let wait = (device, options, cancel);
    let (session, met, recorder) =
        meet(parent, child_meetings, ("split", number), &everyone, wait)?;
    let own = [color.to_le_bytes(), key.to_le_bytes()].concat();
    let (session, answers) = gather(session, &own)?;
    if color == NO_COLOR {
        session.close();
        return Ok(None);
    }
    let mut members = Vec::new();
    for (rank, answer) in (0u32..).zip(&answers) {
        let Ok(words) = <&[u8; 8]>::try_from(&answer[..]) else {
            let why = "sent no color: is it in another call than ncclCommSplit?";
            return Err(session.give_up(Error::init_peer(rank, why)));
        };
        let [a, b, c, d, key @ ..] = *words;
        if i32::from_le_bytes([a, b, c, d]) == color {
            members.push((i32::from_le_bytes(key), rank));
        }
    }
    members.sort_unstable();
    let participants: Vec<u32> = members.into_iter().map(|(_, rank)| rank).collect();
    let rank = participants.iter().position(|&r| r == parent.rank()).unwrap_or(0) as u32;
    let id = met.id.derive("color", color as u64, met.id.address);
    let (nranks, names) = (participants.len() as u32, participants.clone());
    let member = Member { id, rank, nranks, ..met };
    let recorder = identified(recorder, member.id.comm, &member);
    let rendezvous = Rendezvous { session, participants, names, begun, recorder };
    assemble(rendezvous, &member).map(Some)
}

/// Makes a communicator without some ranks of the parent. With `abort` the parent's operations end
/// first, and the child is made only once the operations of all survivors have ended. Blocks for
/// the survivors.
pub(super) fn shrink(
    parent: &Communicator,
    (excluded, number): (&[u32], u64),
    abort: bool,
    device: Device,
    options: &Options,
    cancel: &Cancel,
) -> Result<Communicator> {
    let begun = Instant::now();
    if abort {
        parent.stop(Error::Aborted { by: "ncclCommShrink with NCCL_SHRINK_ABORT" })?;
    }
    let survivors: Vec<u32> = (0..parent.nranks()).filter(|r| !excluded.contains(r)).collect();
    let Some(child_meetings) = parent.child_meetings.as_ref().filter(|_| survivors.len() > 1)
    else {
        return alone(device, options);
    };
    // A rank that excludes other ranks must not join by accident.
    let purpose = format!("shrink without {excluded:?}");
    let wait = (device, options, cancel);
    let (session, member, recorder) =
        meet(parent, child_meetings, (&purpose, number), &survivors, wait)?;
    let participants = (0..member.nranks).collect();
    let rendezvous = Rendezvous { session, participants, names: survivors, begun, recorder };
    assemble(rendezvous, &member)
}

/// Makes a communicator of `nranks` ranks, the first of which are the parent's. One rank of the
/// parent, the root, passes the id that the new ranks have; the parent's other ranks learn the id
/// here. Blocks for all ranks.
pub(super) fn grow(
    parent: &Communicator,
    nranks: u32,
    (id, number): (Option<&UniqueId>, u64),
    device: Device,
    options: &Options,
    cancel: &Cancel,
) -> Result<Communicator> {
    let (mut known, mut holder) = (id.cloned(), id.map(|_| parent.rank()));
    if let Some(child_meetings) = &parent.child_meetings {
        let everyone: Vec<u32> = (0..parent.nranks()).collect();
        let wait = (device, options, cancel);
        let (session, ..) = meet(parent, child_meetings, ("grow", number), &everyone, wait)?;
        let own = id.map_or(Vec::new(), |id| id.encode().to_vec());
        let (session, answers) = gather(session, &own)?;
        session.close();
        let mut roots = (0u32..).zip(&answers).filter(|(_, answer)| !answer.is_empty());
        let (first, second) = (roots.next(), roots.next());
        if let (Some((a, _)), Some((b, _))) = (first, second) {
            let what = format!("ranks {a} and {b} both pass an id to ncclCommGrow");
            return Err(Error::usage(what, "pass it on one rank, and null on the others"));
        }
        if let Some((rank, bytes)) = first {
            let id = <&[u8; ID_BYTES]>::try_from(&bytes[..]).ok().and_then(UniqueId::decode);
            let bad = || Error::Init { why: format!("rank {rank} sent a bad id") };
            known = Some(id.ok_or_else(bad)?);
            holder = Some(rank);
        }
    }
    let Some(id) = known else {
        let hint = "make it by ncclCommGetUniqueId on one rank and pass it there";
        return Err(Error::usage("no rank passed an id to ncclCommGrow", hint));
    };
    let (rank, options) = (parent.rank(), options.clone());
    let everyone: Vec<u32> = (0..parent.nranks()).collect();
    let in_vain = Some(deaths(parent, &everyone));
    join(&Member { id, rank, nranks, device, options }, cancel, (in_vain, holder))
}

/// Meetings are numbered in the order of the calls, not of the threads that make the children.
impl Communicator {
    /// Returns the origin of a split.
    pub fn split(self: &Arc<Self>, color: i32, key: i32) -> Origin {
        let number =
            self.child_meetings.as_ref().map_or(0, |f| f.splits.fetch_add(1, Ordering::AcqRel));
        Origin::Split { parent: self.clone(), color, key, number }
    }

    /// Returns the origin of a shrink without these ranks, which are in ascending order.
    pub fn shrink(self: &Arc<Self>, excluded: Vec<u32>, abort: bool) -> Origin {
        let number = self.child_meetings.as_ref().map_or(0, |child_meetings| {
            let mut shrinks = child_meetings.shrinks.lock().unwrap_or_else(|e| e.into_inner());
            let count = shrinks.entry(excluded.clone()).or_default();
            *count += 1;
            *count
        });
        Origin::Shrink { parent: self.clone(), excluded, abort, number }
    }

    /// Returns the origin of a growth to `nranks` ranks.
    pub fn grow(self: &Arc<Self>, nranks: u32, id: Option<UniqueId>) -> Origin {
        let number =
            self.child_meetings.as_ref().map_or(0, |f| f.grows.fetch_add(1, Ordering::AcqRel));
        Origin::Grow { parent: self.clone(), nranks, id, number }
    }
}
