//! One-sided operations: writes into a peer's window, signals to a peer, and waits for signals.

use super::collective::{Budget, Visit};
use super::endpoint::{Endpoint, Place, State};
use super::pull;
use crate::error::{Error, Result};
use crate::link::direct::{Segment, reached};
use crate::op::{Awaiting, OneSided, Put, beyond};
use crate::os::copy::copy;
use crate::rank::{Awaited, broken};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are written at a time.
const STRETCH_BYTES: usize = 128 << 10;

/// A one-sided operation under way.
pub struct OneSidedTask {
    operation: Arc<OneSided>,
    /// Bytes written, or signals that came.
    done: usize,
}

impl OneSidedTask {
    /// Creates the task of an operation that has not begun.
    pub fn new(operation: Arc<OneSided>) -> Self {
        Self { operation, done: 0 }
    }

    /// Returns the name of the operation, as [`OneSided::name`] does.
    pub fn name(&self) -> &'static str {
        self.operation.name()
    }

    /// Advances the operation as far as the budget and the peers allow.
    pub fn visit(&mut self, endpoint: &Endpoint, budget: Budget) -> Visit {
        let mut state = endpoint.state();
        if let Some(ended) = endpoint.ended(&state) {
            return Visit::Done(Err(ended.into()));
        }
        let before = self.done;
        let mut polls = 0;
        loop {
            let awaited = match self.advance(endpoint, &mut state) {
                Ok(None) => return Visit::Done(Ok(())),
                Ok(Some(peer)) => Awaited { peer: peer as i32, step: -1 },
                Err(e) => return Visit::Done(Err(e.into())),
            };
            polls += 1;
            if polls > budget.polls || self.done - before >= budget.bytes {
                return Visit::Waiting { moved: self.done > before, awaited };
            }
            std::hint::spin_loop();
        }
    }

    /// Returns a peer that is waited for, or for which more is to be done; `None` if all is done.
    fn advance(&mut self, endpoint: &Endpoint, state: &mut State) -> Result<Option<u32>> {
        match &*self.operation {
            OneSided::Signal(peer, put, signal) => {
                if let Some(put) = put
                    && !write(endpoint, state, *peer, put, &mut self.done)?
                {
                    return Ok(Some(*peer));
                }
                if *peer == endpoint.rank.number {
                    *state.own_signals.entry(*signal).or_default() += 1;
                } else {
                    let (segment, own, place) = places(endpoint, *peer)?;
                    // This rank is the only writer of the word.
                    let word = segment.signal(own, place, *signal);
                    let count = word.load(Ordering::Relaxed).wrapping_add(1);
                    word.store(count, Ordering::Release);
                }
                Ok(None)
            }
            OneSided::Wait(list) => {
                while let Some(awaiting) = list.get(self.done) {
                    let Awaiting { peer, signal, count } = *awaiting;
                    let come = if peer == endpoint.rank.number {
                        state.own_signals.get(&signal).copied().unwrap_or(0)
                    } else {
                        let (segment, own, place) = places(endpoint, peer)?;
                        segment.signal(place, own, signal).load(Ordering::Acquire)
                    };
                    let taken = state.taken_signals.entry((peer, signal)).or_default();
                    if !reached(come, taken.wrapping_add(count)) {
                        return Ok(Some(peer));
                    }
                    *taken = taken.wrapping_add(count);
                    self.done += 1;
                }
                Ok(None)
            }
        }
    }
}

/// Returns the segment, and the places of this rank and a peer in it.
fn places(endpoint: &Endpoint, peer: u32) -> Result<(&Segment, usize, usize)> {
    let own = endpoint.rank.local[endpoint.rank.number as usize];
    let place = endpoint.rank.local[peer as usize];
    match (&endpoint.rank.segment, own, place) {
        (Some(segment), Some(own), Some(place)) => Ok((segment, own, place)),
        _ => Err(Error::usage(
            format!("rank {peer} is on another host than rank {}", endpoint.rank.number),
            "one-sided operations reach the ranks of the same host; use ncclSend and ncclRecv",
        )),
    }
}

/// Writes the next stretch. Returns true if everything is written; false also while the peer has
/// not registered the window.
fn write(
    endpoint: &Endpoint,
    state: &mut State,
    peer: u32,
    put: &Put,
    done: &mut usize,
) -> Result<bool> {
    let Put { from, bytes, window, own, offset } = *put;
    let stretch = (bytes - *done).min(STRETCH_BYTES);
    let from = from.0.wrapping_add(*done);
    let at = offset + *done;
    if peer == endpoint.rank.number {
        // SAFETY: the call checked the range against the window; the user vouches for both.
        unsafe { std::ptr::copy(from, own.0.wrapping_add(at), stretch) };
        *done += stretch;
        return Ok(*done == bytes);
    }
    let (segment, _, place) = places(endpoint, peer)?;
    let Some((token, len)) = segment.window(place, window) else { return Ok(false) };
    if offset.checked_add(bytes).is_none_or(|end| end > len as usize) {
        return Err(beyond(endpoint.rank.number, (bytes as u64, offset as u64), (peer, len)));
    }
    let Some(base) = state.resolve(peer, token) else {
        let what = format!("the arena of rank {peer} is not mapped here");
        return Err(Error::Internal { what });
    };
    if !endpoint.rank.begin_writing() {
        // A rank has failed. The operation waits until it learns of the failure.
        return Ok(false);
    }
    let written = match base {
        Place::Here(base) => {
            // SAFETY: within the peer's window, as checked; the user vouches for the source.
            unsafe { copy(base.wrapping_add(at), from, stretch, false) };
            Ok(())
        }
        Place::There(base) => {
            let pid = endpoint.rank.pids[peer as usize];
            // SAFETY: the user vouches for the source.
            unsafe { pull::push(pid, base + at, from, stretch, peer) }
        }
    };
    endpoint.rank.end_writing();
    written.map_err(broken(peer))?;
    *done += stretch;
    Ok(*done == bytes)
}
