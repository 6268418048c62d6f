//! Whether the ranks of a communicator do the same, and what an operation that waits can find out
//! about those it waits for.

use super::endpoint::{Awaited, Endpoint};
use crate::error::{Error, Result, Site};
use crate::link::direct::{RING, Segment};
use crate::link::{Edge, Message, notice};
use crate::op::descriptor::{Descriptor, Label};

/// What an operation does, as others can check.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doing {
    /// A collective and its number among the communicator's.
    Collective(Label, u64),
    /// Sends and receives, and one of them; the number is that of the next collective.
    Exchange(Option<Descriptor>, u64),
    /// A one-sided operation; the number as above.
    OneSided(u64),
}

impl Doing {
    fn name(&self) -> String {
        match self {
            Doing::Collective(label, _) => label.descriptor.to_string(),
            Doing::Exchange(Some(message), _) => message.to_string(),
            Doing::Exchange(None, _) => "send/recv".to_owned(),
            Doing::OneSided(_) => "a one-sided operation".to_owned(),
        }
    }

    fn number(&self) -> u64 {
        match *self {
            Doing::Collective(_, seq) | Doing::Exchange(_, seq) | Doing::OneSided(seq) => seq,
        }
    }

    /// The error that names both sides.
    fn differs(&self, endpoint: &Endpoint, peer: u32, theirs: String) -> Error {
        let seq = self.number();
        let site = Site {
            rank: endpoint.rank as i32,
            peer: peer as i32,
            step: -1,
            op_seq: seq,
            operation: "",
        };
        Error::Mismatch { site, own: self.name(), theirs }
    }
}

/// Fails when a peer that has signalled in this collective does another one. Direct plans only:
/// there a rank is its own place in the segment.
#[inline(always)]
pub(super) fn compare(
    endpoint: &Endpoint,
    segment: &Segment,
    label: &Label,
    seq: u64,
    peer: u32,
) -> Result<()> {
    if segment.agrees(peer as usize, seq, label) {
        return Ok(());
    }
    let theirs = segment.announced(peer as usize, seq);
    let theirs = theirs.map_or_else(|| "something else".to_owned(), |d| d.to_string());
    Err(Doing::Collective(*label, seq).differs(endpoint, peer, theirs))
}

/// The error for a message that another operation sent.
pub(super) fn unexpected(endpoint: &Endpoint, doing: Doing, peer: u32, message: &Message) -> Error {
    let seq = doing.number();
    let place = endpoint.segment.as_ref().zip(endpoint.local[peer as usize]);
    let looked_up = || place.and_then(|(segment, local)| segment.announced(local, seq));
    let theirs = match message.descriptor {
        Some(descriptor) => descriptor.to_string(),
        None => looked_up().map_or_else(|| "another collective".to_owned(), |d| d.to_string()),
    };
    doing.differs(endpoint, peer, theirs)
}

/// What an operation that gets nowhere can learn: a peer's failure, or a peer that does something
/// else.
pub(super) fn look_around(endpoint: &Endpoint, doing: Doing) -> Option<Error> {
    if let Some(error) = endpoint.hear() {
        return Some(error);
    }
    let peers = (0..endpoint.nranks).filter(|&p| p != endpoint.rank);
    if let (Doing::Collective(label, seq), Some(segment)) = (doing, &endpoint.segment) {
        for peer in peers {
            let place = endpoint.local[peer as usize];
            let theirs = place.and_then(|local| segment.announced(local, seq));
            if let Some(theirs) = theirs.filter(|d| *d != label.descriptor) {
                return Some(doing.differs(endpoint, peer, theirs.to_string()));
            }
        }
    }
    None
}

/// Tells peers of other hosts, who cannot look it up, what this rank waits in.
pub(super) fn tell(endpoint: &Endpoint, doing: Doing) {
    if let Doing::Collective(label, seq) = doing {
        endpoint.tell_all(&notice::doing(seq, label.descriptor));
    }
}

/// What an operation that has waited long must suspect: a peer that left, or is in another kind of
/// call. It is so if the operation gets nowhere after this look either: what the look saw may be
/// newer than what the operation saw.
pub(super) fn suspect(endpoint: &Endpoint, doing: Doing, awaited: Awaited) -> Option<Error> {
    let peers = (0..endpoint.nranks).filter(|&p| p != endpoint.rank);
    let awaited = u32::try_from(awaited.peer).ok()?;
    let place = endpoint.segment.as_ref().zip(endpoint.local[awaited as usize]);
    match doing {
        // A window may be registered at any time.
        Doing::OneSided(_) => {}
        Doing::Exchange(_, next) => {
            if let Some(theirs) = place.and_then(|(segment, local)| segment.announced(local, next))
            {
                return Some(doing.differs(endpoint, awaited, theirs.to_string()));
            }
            // What it would receive moves: so both only send.
            let state = endpoint.state();
            if state.edges.get(awaited as usize).is_some_and(Edge::is_full) {
                let theirs = "send/recv in another order: both send first".to_owned();
                return Some(doing.differs(endpoint, awaited, theirs));
            }
        }
        Doing::Collective(_, seq) => {
            let mut state = endpoint.state();
            for peer in peers.filter(|&p| (p as usize) < state.edges.len()).collect::<Vec<_>>() {
                // A broken link is reported by who uses it.
                if let Ok(Some(message)) = state.edges[peer as usize].peek()
                    && message.descriptor.is_some_and(|d| d.is_message())
                    && !is_ahead(endpoint, seq, peer, &message)
                {
                    return Some(unexpected(endpoint, doing, peer, &message));
                }
            }
        }
    }
    endpoint.has_left(awaited).then(|| {
        endpoint.lost(awaited, "it has destroyed its communicator, without this call".to_owned())
    })
}

/// Whether a peer sent a message after it had begun the collective `seq`: it is done with that, or
/// in it, and waits for others as this rank does.
fn is_ahead(endpoint: &Endpoint, seq: u64, peer: u32, message: &Message) -> bool {
    if let Some(begun) = message.begun {
        return begun.wrapping_sub(seq.wrapping_add(1) as u32) as i32 >= 0;
    }
    let place = endpoint.segment.as_ref().zip(endpoint.local[peer as usize]);
    place.is_some_and(|(segment, local)| segment.has_begun(local, seq))
}

/// Compares collectives that may be long over: where nobody had to wait, nobody noticed that they
/// differ. `from` is the first one to compare, and is moved on.
pub(crate) fn compare_past(endpoint: &Endpoint, peer: u32, from: &mut u64) -> Option<Error> {
    let segment = endpoint.segment.as_ref()?;
    let (own, place) = (endpoint.local[endpoint.rank as usize]?, endpoint.local[peer as usize]?);
    let end = endpoint.try_state()?.collectives;
    *from = (*from).max(end.saturating_sub(RING));
    while *from < end {
        let theirs = segment.announced(place, *from);
        if let (Some(ours), Some(theirs)) = (segment.announced(own, *from), theirs)
            && ours != theirs
        {
            let doing = Doing::Collective(ours.into(), *from);
            return Some(doing.differs(endpoint, peer, theirs.to_string()));
        }
        // A peer that is behind is looked at again; one that is far ahead has left it behind.
        if theirs.is_none() && segment.announced(place, from.wrapping_add(RING)).is_none() {
            return None;
        }
        *from += 1;
    }
    None
}

/// Compares a collective that a peer on another host waits in with this rank's of the same number.
pub(crate) fn compare_told(
    endpoint: &Endpoint,
    peer: u32,
    seq: u64,
    theirs: Descriptor,
) -> Option<Error> {
    let state = endpoint.state();
    let (_, ours) = *state.history.iter().find(|(number, _)| *number == seq)?;
    (ours != theirs)
        .then(|| Doing::Collective(ours.into(), seq).differs(endpoint, peer, theirs.to_string()))
}
