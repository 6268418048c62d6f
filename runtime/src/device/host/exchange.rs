//! Grouped sends and receives: every lane (peer and direction) moves when it can, so that no order
//! of calls within a group can deadlock.

use super::agreement::{Doing, unexpected};
use super::collective::{Budget, Visit};
use super::endpoint::{Awaited, Endpoint, State, broken};
use super::kernels;
use crate::descriptor::{Descriptor, Label, MESSAGE_TAG};
use crate::error::{Error, Result};
use crate::link::EDGE_SLOTS;

/// A send or receive of a group.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The other side; this rank itself for a message to itself.
    pub peer: u32,
    /// Whether this rank sends.
    pub send: bool,
    /// The buffer.
    pub data: *mut u8,
    /// Its size.
    pub bytes: usize,
}

// SAFETY: by the contract of send and receive the buffer stays valid until the call is complete,
// whichever thread runs it.
unsafe impl Send for Transfer {}
// SAFETY: as above; a `Transfer` is only read.
unsafe impl Sync for Transfer {}

/// Transfers under way.
pub struct Exchange {
    transfers: Vec<(Transfer, usize)>,
    started: bool,
}

impl Exchange {
    /// Orders the transfers of a rank by rounds, so that in each round the ranks talk in pairs.
    /// The order of transfers with one peer in one direction stays.
    pub fn new(rank: u32, nranks: u32, mut transfers: Vec<Transfer>) -> Self {
        transfers.sort_by_key(|t| {
            let (to, from) = if t.send { (t.peer, rank) } else { (rank, t.peer) };
            (to + nranks - from) % nranks
        });
        Self { transfers: transfers.into_iter().map(|t| (t, 0)).collect(), started: false }
    }

    /// Goes on as far as the budget and the peers allow.
    pub fn visit(&mut self, endpoint: &Endpoint, budget: Budget) -> Visit {
        let mut state = endpoint.state();
        if let Some(ended) = endpoint.ended(&state) {
            return Visit::Done(Err(ended));
        }
        let mut moved = false;
        for _ in 0..=budget.polls {
            match self.pass(endpoint, &mut state) {
                Err(e) => return Visit::Done(Err(e)),
                Ok((_, None)) => return Visit::Done(Ok(())),
                Ok((true, Some(_))) => {
                    moved = true;
                    if budget.bytes < endpoint.edge_slot_bytes {
                        break;
                    }
                }
                Ok((false, Some(_))) => std::hint::spin_loop(),
            }
        }
        let open = self.transfers.iter().find(|(t, done)| *done < t.bytes);
        let peer = open.map_or(-1, |(t, _)| t.peer as i32);
        Visit::Waiting { moved, awaited: Awaited { peer, step: -1 } }
    }

    /// Tries every lane once; tells whether anything moved, and a peer still awaited.
    fn pass(&mut self, endpoint: &Endpoint, state: &mut State) -> Result<(bool, Option<u32>)> {
        if !self.started {
            self.started = true;
            self.copy_own(endpoint.rank);
        }
        let (mut moved, mut awaited) = (false, None);
        let mut busy: Vec<(u32, bool)> = Vec::new();
        for (transfer, done) in &mut self.transfers {
            let lane = (transfer.peer, transfer.send);
            if *done >= transfer.bytes || busy.contains(&lane) {
                continue;
            }
            // Not more than the slots of an edge at a time: a call must not go on as long as its
            // peer keeps up.
            for _ in 0..EDGE_SLOTS {
                if *done >= transfer.bytes || !piece(endpoint, state, transfer, done)? {
                    break;
                }
                moved = true;
            }
            if *done < transfer.bytes {
                busy.push(lane);
                awaited = Some(transfer.peer);
            }
        }
        let left = state.flush()?;
        Ok((moved, awaited.or(left)))
    }

    /// Messages to itself: the group's check has paired them.
    fn copy_own(&mut self, rank: u32) {
        let own = |send| move |(t, _): &&mut (Transfer, usize)| t.peer == rank && t.send == send;
        let sends: Vec<Transfer> = self
            .transfers
            .iter_mut()
            .filter(own(true))
            .map(|(t, done)| {
                *done = t.bytes;
                *t
            })
            .collect();
        let receives = self.transfers.iter_mut().filter(own(false));
        for (send, (receive, done)) in sends.iter().zip(receives) {
            // SAFETY: both buffers hold as many bytes as the call says; the sizes were compared.
            unsafe { std::ptr::copy(send.data, receive.data, receive.bytes.min(send.bytes)) };
            *done = receive.bytes;
        }
    }
}

/// Moves one slot's worth of a transfer; false when the lane is blocked.
fn piece(endpoint: &Endpoint, state: &mut State, t: &Transfer, done: &mut usize) -> Result<bool> {
    let next = state.collectives;
    let edge = &mut state.edges[t.peer as usize];
    let bytes = (t.bytes - *done).min(endpoint.edge_slot_bytes);
    let at = t.data.wrapping_add(*done);
    if t.send {
        let Some(slot) = edge.reserve().map_err(broken(t.peer))? else { return Ok(false) };
        // SAFETY: the user's buffer holds `t.bytes` bytes and the slot at least `bytes`.
        unsafe { kernels::copy(slot, at, bytes, false) };
        let label = Label::from(Descriptor::message(t.bytes as u64));
        edge.commit(bytes, &label, next).map_err(broken(t.peer))?;
    } else {
        let Some(message) = edge.peek().map_err(broken(t.peer))? else { return Ok(false) };
        if message.tag != MESSAGE_TAG {
            return Err(unexpected(endpoint, Doing::Exchange(next), t.peer, &message));
        }
        let (slot, got) = (message.data, message.len);
        if got != bytes {
            let rank = endpoint.rank;
            let what = format!(
                "rank {rank} receives {} bytes from rank {}, which sends another number: a piece \
                 of {bytes} bytes was due and one of {got} came",
                t.bytes, t.peer
            );
            return Err(Error::usage(what, "make counts and types of send and receive equal"));
        }
        // SAFETY: as above, the other way.
        unsafe { kernels::copy(at, slot, bytes, false) };
        edge.release().map_err(broken(t.peer))?;
    }
    *done += bytes;
    Ok(true)
}
