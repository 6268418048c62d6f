//! The suspicions of an operation that makes no progress about the ranks that it waits for.

use super::endpoint::Endpoint;
use crate::error::Error;
use crate::link::{Edge, Message};
use crate::rank::agreement::{CurrentOp, unexpected};
use crate::rank::{Awaited, LEFT, Rank};

/// Returns what an operation that has waited long must suspect: a peer that left, or one that is in
/// another kind of call. The suspicion holds only if the operation makes no progress after this
/// look either: the look may have seen newer state than the operation.
pub(super) fn suspect(endpoint: &Endpoint, doing: CurrentOp, awaited: Awaited) -> Option<Error> {
    let peers = || (0..endpoint.rank.nranks).filter(|&p| p != endpoint.rank.number);
    let awaited = u32::try_from(awaited.peer).ok();
    match doing {
        // A window may still be registered at any time.
        CurrentOp::OneSided(_) => {}
        CurrentOp::Exchange(_, next) => {
            let awaited = awaited?;
            let taken = endpoint.state().edges.get(awaited as usize).map(|edge| edge.messages().1);
            let taken = taken.unwrap_or_default();
            if let Some(theirs) = endpoint.rank.waits_beyond(awaited, next, taken) {
                return Some(doing.differs(&endpoint.rank, awaited, Ok(theirs)));
            }
            // An exchange takes all that it has to receive: if the edge is full, both only send.
            let state = endpoint.state();
            if state.edges.get(awaited as usize).is_some_and(Edge::is_full) {
                return Some(doing.both_send(&endpoint.rank, awaited));
            }
        }
        CurrentOp::Collective(_, seq) => {
            let mut state = endpoint.state();
            for peer in peers().filter(|&p| (p as usize) < state.edges.len()).collect::<Vec<_>>() {
                // A broken link is reported by the operation that uses it.
                if let Ok(Some(message)) = state.edges[peer as usize].look()
                    && message.descriptor.is_some_and(|d| d.is_message())
                    && !is_ahead(&endpoint.rank, seq, peer, &message)
                {
                    return Some(unexpected(&endpoint.rank, doing, peer, &message));
                }
            }
        }
    }
    let gone = match (awaited, doing) {
        (Some(awaited), _) => Some(awaited).filter(|&p| endpoint.rank.has_left(p)),
        // At a switch all ranks of the rail are awaited.
        (None, CurrentOp::Collective(..)) => peers().find(|&p| endpoint.rank.has_left(p)),
        (None, _) => None,
    };
    gone.map(|peer| endpoint.rank.lost(peer, LEFT.to_owned()))
}

/// Returns whether a peer sent a message after it had begun the collective `seq`. Such a peer has
/// completed that collective, or waits in it for others as this rank does.
fn is_ahead(rank: &Rank, seq: u64, peer: u32, message: &Message) -> bool {
    if let Some(begun) = message.begun {
        return begun.wrapping_sub(seq.wrapping_add(1) as u32) as i32 >= 0;
    }
    let place = rank.segment.as_ref().zip(rank.local[peer as usize]);
    place.is_some_and(|(segment, local)| segment.has_begun(local, seq))
}
