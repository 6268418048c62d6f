//! Small one-shot plans. The published data fits cache lines that carry their own signal.

use super::{Poll, VisitState};
use crate::device::host::worker::{crowded, ranks_per_processor};
use crate::error::Quick;
use crate::link::direct::PACKET_BYTES;
use oxccl_plan::Slice;

/// Looks at a packet that is not there yet before other reasons to wait are looked at.
const LOOKS: u32 = 32;

impl VisitState<'_> {
    fn published_bytes(&self) -> usize {
        let blocks = self.run.plan().layout.stage_blocks as usize;
        blocks * self.run.call.count as usize * self.run.call.dtype.size()
    }

    /// Publishes the whole input. Its blocks lie one behind the other, as in the stage.
    #[inline]
    pub(super) fn publish_packets(&mut self) -> Quick<()> {
        let (run, bytes) = (&*self.run, self.published_bytes());
        let slot = (self.state.stage_windows & 1) as usize;
        let (own, epoch) = (self.endpoint.rank.number as usize, run.packet_mark());
        // SAFETY: the input has that many bytes; the slot was acquired.
        unsafe { self.segment()?.write_packets(own, slot, run.call.input, bytes, epoch) };
        Ok(())
    }

    /// Fetches the lines in which the next call like this one would publish, for writing. Where all
    /// ranks hear from all, the peers have read what was there before this call.
    #[inline]
    pub(super) fn fetch_next_packets(&self) -> Quick<()> {
        let slot = (self.state.stage_windows & 1) as usize;
        let own = self.endpoint.rank.number as usize;
        self.segment()?.fetch_packets(own, slot, self.published_bytes());
        Ok(())
    }

    #[inline]
    pub(super) fn unpack(&mut self, peer: u32, src: Slice, to: *mut u8) -> Quick<bool> {
        let (offset, len) = self.range(peer, src);
        let slot = (self.state.stage_windows & 1) as usize;
        let epoch = self.run.phase_base.wrapping_add(1);
        let mark = self.run.packet_mark();
        let segment = self.segment()?;
        // Most often a packet is under way: looks that follow each other closely see it first.
        let looks = if crowded() { 1 } else { LOOKS };
        if !segment.has_last_packet((peer as usize, slot), offset, len, mark, looks) {
            return Ok(false);
        }
        // SAFETY: `to` has room for the slice; what is published fits the packets.
        let read = unsafe { segment.read_packets(peer as usize, slot, offset, to, len, mark) };
        if read && len > 0 {
            let known = &mut self.state.known[peer as usize];
            if !crate::link::direct::reached(*known, epoch) {
                *known = epoch;
            }
        }
        Ok(read)
    }

    #[inline]
    pub(super) fn get_packets(&mut self, peer: u32, src: Slice, dst: Slice) -> Quick<Poll> {
        let (to, _) = self.own(dst);
        Ok(if self.unpack(peer, src, to)? { Poll::Ready } else { Poll::Wait(peer) })
    }

    #[inline]
    pub(super) fn unpack_all(&mut self, src: Slice, srcs: &mut [*const u8]) -> Quick<Poll> {
        let (nranks, rank) = (self.endpoint.rank.nranks, self.endpoint.rank.number);
        let words = PACKET_BYTES.div_ceil(64) * 8;
        if self.state.unpacked.len() < nranks as usize * words {
            self.state.unpacked.resize(nranks as usize * words, 0);
        }
        // Each rank starts with another peer, so that not all ask for the same line at once. Those
        // that take turns on a processor do not in any case.
        let first = if ranks_per_processor(nranks as usize) > 1 { 0 } else { rank + 1 };
        while self.run.cursor < nranks as usize {
            let peer = (first + self.run.cursor as u32) % nranks;
            if peer == rank {
                self.run.cursor += 1;
                continue;
            }
            let to: *mut u8 = self.state.unpacked[peer as usize * words..].as_mut_ptr().cast();
            if !self.unpack(peer, src, to)? {
                return Ok(Poll::Wait(peer));
            }
            self.run.cursor += 1;
        }
        for (peer, from) in srcs.iter_mut().enumerate().take(nranks as usize) {
            *from = self.state.unpacked[peer * words..].as_ptr().cast();
        }
        Ok(Poll::Ready)
    }
}
