//! Grouped sends and receives. Every lane (peer and direction) moves when it can, so that no order
//! of calls within a group can deadlock.

use super::collective::{Budget, Visit};
use super::endpoint::{Endpoint, State};
use crate::error::Result;
use crate::link::{EDGE_SLOTS, MESSAGE_BYTES, Message, Received};
use crate::op::descriptor::{Descriptor, Label};
use crate::op::{Transfer, Transfers};
use crate::os::copy::copy;
use crate::rank::agreement::{CurrentOp, unexpected};
use crate::rank::{Awaited, broken};

/// A transfer under way. A transfer of 0 bytes is a message too, as the other side may expect more.
struct TransferProgress {
    transfer: Transfer,
    /// Bytes that have been moved.
    done: usize,
    /// True if the last piece has been moved.
    over: bool,
}

/// The sends and receives of a group, under way.
pub struct Exchange {
    operation: &'static str,
    /// The transfers with other ranks.
    transfers: Vec<TransferProgress>,
    /// The messages of the rank to itself: source, destination, bytes moved.
    own: Vec<(Transfer, Transfer, usize)>,
}

impl Exchange {
    /// Orders the transfers of a rank by rounds, so that in each round the ranks talk in pairs.
    /// The order of transfers with one peer in one direction stays.
    pub fn new(rank: u32, nranks: u32, transfers: &Transfers) -> Self {
        let own = |send| transfers.list.iter().filter(move |t| t.peer == rank && t.send == send);
        let pairs = own(true).zip(own(false)).map(|(from, to)| (*from, *to, 0)).collect();
        let others = transfers.list.iter().filter(|t| t.peer != rank);
        let begun = |t: &Transfer| TransferProgress { transfer: *t, done: 0, over: false };
        let mut others: Vec<_> = others.map(begun).collect();
        others.sort_by_key(|TransferProgress { transfer: t, .. }| {
            let (to, from) = if t.send { (t.peer, rank) } else { (rank, t.peer) };
            (to + nranks - from) % nranks
        });
        Self { operation: transfers.operation, transfers: others, own: pairs }
    }

    /// Returns the name of the operation.
    pub fn name(&self) -> &'static str {
        self.operation
    }

    /// Advances the transfers as far as the budget and the peers allow.
    pub fn visit(&mut self, endpoint: &Endpoint, budget: Budget) -> Visit {
        let mut state = endpoint.state();
        if let Some(ended) = endpoint.ended(&state) {
            return Visit::Done(Err(ended.into()));
        }
        let (mut spent, mut polls) = (0, 0);
        loop {
            let awaited = match self.pass(endpoint, &mut state) {
                Err(e) => return Visit::Done(Err(e.into())),
                Ok((_, None)) => return Visit::Done(Ok(())),
                Ok((bytes, Some(peer))) => {
                    spent += bytes;
                    Awaited { peer: peer as i32, step: -1 }
                }
            };
            polls += 1;
            if polls > budget.polls || spent >= budget.bytes {
                return Visit::Waiting { moved: spent > 0, awaited };
            }
            std::hint::spin_loop();
        }
    }

    /// Tries every lane once. Returns the bytes that were moved, and a peer that is still awaited.
    fn pass(&mut self, endpoint: &Endpoint, state: &mut State) -> Result<(usize, Option<u32>)> {
        let (mut moved, mut awaited) = self.copy_own(endpoint);
        let mut busy: Vec<(u32, bool)> = Vec::new();
        for moving in &mut self.transfers {
            let Transfer { peer, send, .. } = moving.transfer;
            if moving.over || busy.contains(&(peer, send)) {
                continue;
            }
            // At most as many pieces as an edge has slots move at a time: a call must not run for
            // as long as its peer keeps up.
            let before = moving.done;
            for _ in 0..EDGE_SLOTS {
                if moving.over || !piece(endpoint, state, moving)? {
                    break;
                }
            }
            moved += moving.done - before;
            if !moving.over {
                busy.push((peer, send));
                awaited = Some(peer);
            }
        }
        let left = state.flush()?;
        Ok((moved, awaited.or(left)))
    }

    /// Moves messages of the rank to itself, at most as much as on a lane at a time. Returns the
    /// same as [`pass`](Self::pass).
    fn copy_own(&mut self, endpoint: &Endpoint) -> (usize, Option<u32>) {
        let limit = EDGE_SLOTS * piece_bytes(endpoint);
        let mut moved = 0;
        for (from, to, done) in &mut self.own {
            let bytes = (from.bytes - *done).min(limit - moved);
            if bytes > 0 && !std::ptr::eq(from.data, to.data) {
                // SAFETY: both buffers hold as many bytes as the call says; the sizes were
                // compared.
                unsafe { std::ptr::copy(from.data.add(*done), to.data.add(*done), bytes) };
            }
            moved += bytes;
            *done += bytes;
            if *done < from.bytes {
                return (moved, Some(endpoint.rank.number));
            }
        }
        (moved, None)
    }
}

/// Returns the size of the pieces of large transfers: as many are under way as connections take, so
/// that they need not be larger than usual messages.
fn piece_bytes(endpoint: &Endpoint) -> usize {
    endpoint.edge_slot_bytes.min(MESSAGE_BYTES)
}

/// Moves one piece of a transfer. Returns false if the lane is blocked.
fn piece(endpoint: &Endpoint, state: &mut State, moving: &mut TransferProgress) -> Result<bool> {
    let TransferProgress { transfer: t, done, over } = moving;
    let next = state.collectives;
    let edge = &mut state.edges[t.peer as usize];
    let bytes = (t.bytes - *done).min(piece_bytes(endpoint));
    let at = t.data.wrapping_add(*done);
    let whole = Descriptor::message(t.dtype, t.bytes as u64);
    if t.send {
        // SAFETY: the user's buffer holds `t.bytes` bytes, and a slot at least `bytes`.
        let sent = unsafe { edge.send(at, bytes, &Label::from(whole), next) };
        if !sent.map_err(broken(t.peer))? {
            return Ok(false);
        }
    } else {
        // Every piece carries the size of the whole: a mismatch is found before any write.
        let expect = |message: &Message| {
            if message.descriptor == Some(whole) && message.len.is_none_or(|got| got == bytes) {
                return Ok(());
            }
            let doing = CurrentOp::Exchange(Some(whole), next);
            Err(unexpected(&endpoint.rank, doing, t.peer, message))
        };
        // SAFETY: as above, the other way.
        match unsafe { edge.receive(at, bytes, expect) }.map_err(broken(t.peer))? {
            None => return Ok(false),
            Some(Received::InPlace) => {}
            Some(Received::Slot(slot)) => {
                // SAFETY: the slot holds as many bytes.
                unsafe { copy(at, slot, bytes, false) };
                edge.release();
            }
        }
    }
    *done += bytes;
    *over = *done == t.bytes;
    Ok(true)
}
