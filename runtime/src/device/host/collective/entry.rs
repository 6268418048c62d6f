//! The beginning of a collective: it publishes what it is and where the user's buffers lie, and
//! decides which plan runs.

use super::{Poll, Stage, VisitState, agreement, capacity};
use crate::device::host::endpoint::{HISTORY, MAPPED, Place};
use crate::error::{Error, Quick};
use crate::op::Call;
use oxccl_plan::generate::Needs;
use oxccl_plan::{Carrier, Collective, From, Geometry};
use std::sync::atomic::Ordering;

impl VisitState<'_> {
    #[inline]
    pub(super) fn announce(&mut self) {
        self.run.seq = self.state.collectives;
        self.state.collectives += 1;
        self.run.so_far = self.run.label.behind(self.state.calls_tag);
        self.state.calls_tag = self.run.so_far.tag;
        let (endpoint, run) = (self.endpoint, &mut *self.run);
        if let (Some(segment), Some(own)) =
            (&endpoint.rank.segment, endpoint.rank.local[endpoint.rank.number as usize])
        {
            segment.announce(own, run.seq, &run.so_far);
        }
        if self.state.networked {
            let entry = (run.seq, run.label.descriptor);
            let history = &mut self.state.history;
            match history.get_mut(run.seq as usize % HISTORY) {
                Some(place) => *place = entry,
                None => history.push(entry),
            }
        }
        run.stage = if run.call.count == 0 { Stage::Draining } else { Stage::Announced };
    }

    /// Fails if a peer that has signalled does something else, or did before.
    #[inline(always)]
    pub(super) fn compare(&mut self, peer: u32) -> Quick<()> {
        let (seq, known) = (self.run.seq, self.state.compared[peer as usize]);
        if known != seq && peer != self.endpoint.rank.number {
            agreement::compare(&self.endpoint.rank, self.segment()?, &self.run.so_far, seq, peer)?;
            self.state.compared[peer as usize] = seq;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn begin(&mut self) -> Quick<Poll> {
        self.make_scratch();
        let run = &*self.run;
        let reads_user = run.carrier == Carrier::RemoteRead;
        if self.programs.mapped.is_some() || reads_user {
            let slot = (self.state.entries & 1) as usize;
            let need = self.state.entry_need[slot];
            if let Poll::Wait(peer) = self.wait(From::All, need)? {
                return Ok(Poll::Wait(peer));
            }
            return self.enter(slot);
        }
        if self.bound.plan.algorithm.generator().needs == Needs::Switch {
            let (rank, team) = (&self.endpoint.rank, self.bound.plan.spec.team);
            agreement::agree_on_rail(rank, team, &run.label, run.seq)?;
        }
        self.run.phase_base = self.state.phase;
        self.run.stage = Stage::Running;
        self.count();
        Ok(Poll::Ready)
    }

    /// Publishes the location of this rank's buffers, and whether they allow the mapped plan.
    pub(super) fn enter(&mut self, slot: usize) -> Quick<Poll> {
        let (endpoint, call) = (self.endpoint, self.run.call);
        let bytes = call.count as usize * call.dtype.size();
        let rank = endpoint.rank.number;
        let buffer = |blocks: u32, ptr: *const u8| match blocks {
            0 => endpoint.token(std::ptr::null(), 0),
            n => endpoint.token(ptr, n as usize * bytes),
        };
        let mut input = buffer(call.spec.input_blocks(rank), call.input);
        let output = buffer(call.spec.output_blocks(rank), call.output);
        let same = std::ptr::eq(call.input, call.output.cast_const());
        let overwritten = same && call.spec.collective == Collective::AllToAll;
        if overwritten || call.scale.is_some() {
            // An input that is overwritten must not be read directly. A multiplied copy is freed
            // with this call, even if the call fails while other ranks still read.
            input &= !MAPPED;
        }
        let mapped = input & output & MAPPED != 0;
        self.run.mapped_here = mapped;
        let segment = self.segment()?;
        for (i, token) in [input, output].into_iter().enumerate() {
            segment.entry(rank as usize, slot, i).store(token, Ordering::Relaxed);
        }
        let base = self.state.phase;
        self.state.entry_need[slot] = base.wrapping_add(2);
        self.state.entries += 1;
        self.signal()?;
        self.run.phase_base = base;
        if !mapped && self.run.carrier != Carrier::RemoteRead {
            // One refusal decides, so this rank need not wait for the other ranks.
            self.run.phase_base = base.wrapping_add(1);
            self.run.stage = Stage::Running;
            self.count();
        } else {
            self.run.stage = Stage::Entered;
        }
        Ok(Poll::Ready)
    }

    /// Decides which plan runs. All ranks read all entry words and come to the same decision.
    pub(super) fn decide(&mut self) -> Quick<Poll> {
        let segment = self.segment()?;
        let target = self.run.phase_base.wrapping_add(1);
        let slot = (self.state.entries.wrapping_sub(1) & 1) as usize;
        // Those that were read already are counted by the cursor.
        while let Some(peer) = self.peer_behind(self.run.cursor) {
            if !self.state.has_reached(segment, peer, target) {
                return Ok(Poll::Wait(peer));
            }
            self.compare(peer)?;
            let token = |i| segment.entry(peer as usize, slot, i).load(Ordering::Relaxed);
            let (input, output) = (token(0), token(1));
            self.run.mapped_here &= input & output & MAPPED != 0;
            let places = (self.state.resolve(peer, input), self.state.resolve(peer, output));
            let (Some(input), Some(output)) = places else {
                let what = format!("the arena of rank {peer} is not mapped here");
                return Err(Error::Internal { what }.into());
            };
            self.state.user[peer as usize] = (input, output);
            self.run.cursor += 1;
        }
        let Call { input, output, .. } = self.run.call;
        let own = self.endpoint.rank.number as usize;
        self.state.user[own] = (Place::Here(input.cast_mut()), Place::Here(output));
        let mapped = self.run.mapped_here;
        self.run.cursor = 0;
        self.run.stage = Stage::Running;
        if mapped && let Some(bound) = &self.programs.mapped {
            let room = capacity(self.endpoint.edge_slot_bytes, self.run.call.dtype);
            self.run.geometry = Geometry::new(&bound.plan.layout, self.run.call.count, &room);
            (self.run.carrier, self.bound) = (bound.carrier, bound);
            // The entry signal was the first step of the program.
            self.run.step = 1;
            self.make_scratch();
        } else if self.run.carrier == Carrier::RemoteRead {
            self.run.step = 1;
        } else {
            self.run.phase_base = target;
        }
        self.count();
        Ok(Poll::Ready)
    }

    /// Counts the collective by its carrier.
    fn count(&mut self) {
        self.state.carriers[self.run.carrier as usize] += 1;
    }
}
