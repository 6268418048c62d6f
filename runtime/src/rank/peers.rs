//! Information that the ranks of a communicator give each other beside their data: in shared
//! memory, and over the control connections between hosts.

use super::{Connector, Rank};
use crate::error::Error;
use crate::link::control::Control;
use crate::link::direct::PeerState;
use crate::link::notice;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// The longest time that the end of a communicator waits for a peer that does not read its notices.
const FLUSHING: Duration = Duration::from_secs(1);

impl Rank {
    /// Takes the control connections with the ranks of other hosts, by rank, which these use.
    pub fn set_controls(&self, controls: Vec<Option<Arc<Control>>>) {
        controls.iter().flatten().for_each(|control| control.set_used());
        *self.controls() = controls.into_iter().map(|c| c.into_iter().collect()).collect();
    }

    /// Takes one more control connection with a rank of another host.
    pub(super) fn add_control(&self, peer: u32, control: Arc<Control>) {
        if let Some(controls) = self.controls().get_mut(peer as usize) {
            controls.push(control);
        }
    }

    /// Returns whether a control connection with a peer is in use.
    pub(super) fn has_control(&self, peer: u32, control: &Arc<Control>) -> bool {
        let controls = self.controls();
        let mut of_peer = controls.get(peer as usize).into_iter().flatten();
        of_peer.any(|other| Arc::ptr_eq(other, control))
    }

    /// Takes a control connection away that has ended before the peer used it.
    pub(super) fn drop_control(&self, peer: u32, control: &Arc<Control>) {
        if let Some(controls) = self.controls().get_mut(peer as usize) {
            controls.retain(|other| !Arc::ptr_eq(other, control));
        }
    }

    fn controls(&self) -> MutexGuard<'_, Vec<Vec<Arc<Control>>>> {
        self.controls.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the first control connection with a peer of another host, until the communicator
    /// ends.
    pub fn control(&self, peer: u32) -> Option<Arc<Control>> {
        self.controls().get(peer as usize).and_then(|controls| controls.first()).cloned()
    }

    /// Returns the number of this rank's messages that a peer of another host has reported as
    /// taken.
    pub fn taken(&self, peer: u32) -> u64 {
        let controls = self.controls();
        let of_peer = controls.get(peer as usize).into_iter().flatten();
        of_peer.map(|control| control.taken()).max().unwrap_or(0)
    }

    /// Sends a notice to all ranks of other hosts with which there is a control connection.
    pub(crate) fn tell_all(&self, notice: &[u8]) {
        self.controls().iter().filter_map(|c| c.first()).for_each(|control| control.tell(notice));
    }

    pub(super) fn set_connector(&self, connector: Arc<Connector>) {
        let _ = self.connector.set(connector);
    }

    /// Returns the connections that are made at first use; `None` if all are made at once.
    pub(crate) fn connector(&self) -> Option<&Arc<Connector>> {
        self.connector.get()
    }

    /// Tells the ranks of this host that this rank is alive.
    pub(crate) fn pulse(&self) {
        if let Some((segment, own)) = self.place() {
            segment.pulse(own).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the count of signs of life of a peer of this host.
    pub(crate) fn pulse_of(&self, peer: u32) -> u64 {
        let place = self.local.get(peer as usize).copied().flatten();
        let place = self.segment.as_ref().zip(place);
        place.map_or(0, |(segment, local)| segment.pulse(local).load(Ordering::Relaxed))
    }

    /// Returns whether this rank may write into the user memory of its peers; when true,
    /// [`end_writing`](Self::end_writing) has to follow. A rank that fails first publishes the
    /// failure and then looks for ranks that write; a rank that writes first publishes that it
    /// writes and then looks for ranks that failed. So one of the two sees the other.
    pub fn begin_writing(&self) -> bool {
        let Some((segment, own)) = self.place() else {
            return false;
        };
        segment.writing(own).store(1, Ordering::Relaxed);
        let clear = !self.someone_failed();
        if !clear {
            self.end_writing();
        }
        clear
    }

    /// Returns whether a rank of this host, this rank included, has published a failure before the
    /// latest action or observation of this thread. The user memory of such a rank may be in use
    /// for something else.
    pub fn someone_failed(&self) -> bool {
        fence(Ordering::SeqCst);
        let failed = PeerState::Failed as u64;
        let places = || self.local.iter().flatten();
        self.segment.as_ref().is_some_and(|segment| {
            places().any(|&p| segment.state(p).load(Ordering::Relaxed) == failed)
        })
    }

    /// Ends the writing that [`begin_writing`](Self::begin_writing) allowed.
    pub fn end_writing(&self) {
        if let Some((segment, own)) = self.place() {
            segment.writing(own).store(0, Ordering::Release);
        }
    }

    /// Returns the peers that may still be writing into this rank's user memory, after this rank
    /// failed.
    pub fn writers(&self) -> Vec<u32> {
        let Some(segment) = &self.segment else { return Vec::new() };
        fence(Ordering::SeqCst);
        let writes = |place: &usize| segment.writing(*place).load(Ordering::Acquire) != 0;
        let peers = (0u32..).zip(&self.local).filter(|(peer, _)| *peer != self.number);
        peers.filter(|(_, place)| place.as_ref().is_some_and(writes)).map(|(p, _)| p).collect()
    }

    /// Notes that a peer has left in order: kernels wait for it no more.
    pub(crate) fn note_left(&self, peer: u32) {
        if let Some(accelerator) = self.accelerator() {
            accelerator.note_left(peer);
        }
    }

    /// Returns whether a peer has left in order.
    pub fn has_left(&self, peer: u32) -> bool {
        if let Some(controls) = self.controls().get(peer as usize).filter(|c| !c.is_empty()) {
            return controls.iter().any(|control| control.has_left());
        }
        let place = self.segment.as_ref().zip(self.local[peer as usize]);
        let left = PeerState::Left as u64;
        place.is_some_and(|(segment, place)| segment.state(place).load(Ordering::Acquire) == left)
    }

    /// Notes that this rank's operations are over, and that none can follow.
    pub(crate) fn set_ending(&self) {
        if let Some((segment, own)) = self.place() {
            segment.ending(own).store(1, Ordering::Release);
        }
    }

    /// Returns whether a peer takes no more messages: it has left or, of this host, its operations
    /// are over.
    pub fn takes_no_more(&self, peer: u32) -> bool {
        let place = self.segment.as_ref().zip(self.local[peer as usize]);
        let ends = place.map(|(segment, place)| segment.ending(place).load(Ordering::Acquire));
        ends.is_some_and(|ends| ends != 0) || self.has_left(peer)
    }

    /// Notes that nothing of this rank runs on its GPU any more, after `leave`.
    pub fn set_quiescent(&self) {
        if let Some((segment, own)) = self.place() {
            segment.out(own).store(1, Ordering::Release);
        }
    }

    /// Returns whether a peer on a GPU has left and nothing of it runs there any more.
    pub fn is_quiescent(&self, peer: u32) -> bool {
        let place = self.segment.as_ref().zip(self.local[peer as usize]);
        place.is_some_and(|(segment, local)| segment.out(local).load(Ordering::Acquire) != 0)
    }

    /// Leaves in order: the peers hear of it, and no operation can follow. `end_links` takes the
    /// links away, and returns the number of messages that were taken, by rank, with the links,
    /// which end once the peers are told.
    pub(crate) fn leave<L>(&self, end_links: impl FnOnce(bool) -> (Vec<u64>, L)) {
        let in_order = self.mark_left();
        self.connector().iter().for_each(|connector| connector.close());
        let controls = self.take_controls();
        let (taken, links) = end_links(in_order);
        for (control, taken) in controls.iter().zip(taken) {
            control.iter().for_each(|control| control.tell(&notice::goodbye(taken)));
        }
        drop(links);
        // A peer that does not read for so long is stopped or out of reach.
        let start = Instant::now();
        let left = || controls.iter().flatten().any(|control| !control.flush());
        while left() && start.elapsed() < FLUSHING {
            std::thread::yield_now();
        }
        controls.iter().flatten().for_each(|control| control.finish());
    }

    /// Publishes that this rank leaves in order: no operation can follow. The cause of an earlier
    /// failure stays readable; returns whether there was none.
    fn mark_left(&self) -> bool {
        if let Some((segment, own)) = self.place() {
            let (running, left) = (PeerState::Running as u64, PeerState::Left as u64);
            let state = segment.state(own);
            let _ = state.compare_exchange(running, left, Ordering::AcqRel, Ordering::Relaxed);
        }
        let hint = "make a new communicator";
        let first = self.failure.set(Error::usage("the communicator was destroyed", hint)).is_ok();
        self.failed.store(true, Ordering::Release);
        first
    }

    /// Takes the control connections away: nothing more is sent over them.
    pub(crate) fn take_controls(&self) -> Vec<Vec<Arc<Control>>> {
        std::mem::take(&mut *self.controls())
    }
}
