//! Small one-shot plans. The published data fits cache lines that carry their own signal, so that
//! nothing is copied to the stage, and nobody waits for a signal before it looks.

use super::{Poll, VisitState};
use crate::device::host::kernels::fold;
use crate::device::host::worker::{crowded, ranks_per_processor};
use crate::error::{Error, Quick};
use crate::link::direct::{PACKET_BYTES, PACKET_DATA, Segment, reached};
use oxccl_plan::{Buffer, Destination, From, Op, Slice};

/// Looks at a packet that is not there yet before other reasons to wait are looked at.
const LOOKS: u32 = 32;
/// How many peers ahead packets are fetched, where a peer has several: a processor looks ahead by
/// itself over those of one.
const AHEAD: usize = 2;
/// Words of the memory into which the packets of a rank are unpacked.
const UNPACKED: usize = PACKET_BYTES.div_ceil(64) * 8;

/// The packets of a call.
#[derive(Clone, Copy)]
struct Packets<'a> {
    segment: &'a Segment,
    slot: usize,
    mark: u64,
    /// The signal of the peers that their packets stand for.
    signal: u64,
}

impl<'a> VisitState<'a> {
    fn packets(&self) -> Quick<Packets<'a>> {
        Ok(Packets {
            segment: self.segment()?,
            slot: (self.state.stage_windows & 1) as usize,
            mark: self.run.packet_mark(),
            signal: self.run.phase_base.wrapping_add(1),
        })
    }

    /// Takes steps until one has to wait, or the call is over: it has one window.
    pub(super) fn steps_by_packets(&mut self) -> Quick<Poll> {
        let (ops, packets) = (&self.bound.program.ops, self.packets()?);
        while let Some(op) = ops.get(self.run.step) {
            let poll = match *op {
                Op::Acquire => self.publish(packets)?,
                // What is published lies in the packets, and is its own signal.
                Op::Wait { .. } => Poll::Ready,
                Op::Copy { dst, .. } if dst.buffer == Buffer::Stage => Poll::Ready,
                Op::Signal => self.signal().map(|()| Poll::Ready)?,
                Op::Get { peer, src, dst } => {
                    let to = self.own(dst).0;
                    if self.unpack(packets, peer, src, to) { Poll::Ready } else { Poll::Wait(peer) }
                }
                Op::Reduce { src, own, dst: Destination::Own(dst), finish } => {
                    self.reduce_packets(packets, src, (own, dst), finish)
                }
                Op::Copy { src, dst } => {
                    let ((from, len), (to, _)) = (self.own(src), self.own(dst));
                    self.copy(to, from, len, dst)?
                }
                _ => {
                    let what = format!("{op:?} in a plan that packets carry");
                    return Err(Error::Internal { what }.into());
                }
            };
            match poll {
                Poll::Ready => (self.run.step, self.run.cursor) = (self.run.step + 1, 0),
                Poll::Again => {}
                Poll::Wait(_) => return Ok(poll),
            }
            (self.moved, self.polls) = (true, 0);
        }
        let poll = self.end_window();
        // Where all ranks hear from all, the peers have read what was in the other slot before this
        // call, and the next call like this one will publish there.
        packets.segment.fetch_packets(self.own_number(), packets.slot ^ 1, self.published_bytes());
        poll
    }

    fn own_number(&self) -> usize {
        self.endpoint.rank.number as usize
    }

    fn published_bytes(&self) -> usize {
        let blocks = self.bound.plan.layout.stage_blocks as usize;
        blocks * self.run.call.count as usize * self.run.call.dtype.size()
    }

    /// Publishes the whole input, once the slot is free. Its blocks lie one behind the other, as in
    /// the stage.
    #[inline]
    fn publish(&mut self, packets: Packets<'_>) -> Quick<Poll> {
        let Packets { segment, slot, mark, .. } = packets;
        let poll = self.wait(From::All, self.state.slot_need[slot])?;
        if let Poll::Ready = poll {
            let (own, input, bytes) =
                (self.own_number(), self.run.call.input, self.published_bytes());
            // SAFETY: the input has that many bytes; the slot was acquired.
            unsafe { segment.write_packets(own, slot, input, bytes, mark) };
        }
        Ok(poll)
    }

    /// Returns the byte offset of a slice, and its length: there is one window, of one part.
    #[inline]
    fn extent(&self, slice: Slice) -> (usize, usize) {
        let len = self.run.call.count as usize * self.run.call.dtype.size();
        (slice.block as usize * len, len)
    }

    /// Returns whether the last packet of a peer's slice has come.
    #[inline]
    fn has_come(&self, packets: Packets<'_>, peer: u32, src: Slice) -> bool {
        let Packets { segment, slot, mark, .. } = packets;
        let (offset, len) = self.extent(src);
        // Most often a packet is under way: looks that follow each other closely see it first.
        let looks = if crowded() { 1 } else { LOOKS };
        segment.has_last_packet((peer as usize, slot), offset, len, mark, looks)
    }

    /// Notes that a peer's packets have come: it has signalled.
    #[inline]
    fn hear(&mut self, packets: Packets<'_>, peer: u32) {
        let known = &mut self.state.known[peer as usize];
        if !reached(*known, packets.signal) {
            *known = packets.signal;
        }
    }

    /// Copies a peer's slice from its packets. Returns false if they have not come.
    #[inline]
    fn unpack(&mut self, packets: Packets<'_>, peer: u32, src: Slice, to: *mut u8) -> bool {
        let Packets { segment, slot, mark, .. } = packets;
        let (offset, len) = self.extent(src);
        // SAFETY: `to` has room for the slice; what is published fits the packets.
        let read = self.has_come(packets, peer, src)
            && unsafe { segment.read_packets(peer as usize, slot, offset, to, len, mark) };
        if read && len > 0 {
            self.hear(packets, peer);
        }
        read
    }

    /// Returns where a peer's slice lies: in its packet, or in memory of this rank to which several
    /// are copied. `None` if they have not come.
    #[inline]
    fn operand(&mut self, packets: Packets<'_>, peer: u32, src: Slice) -> Option<*const u8> {
        let (offset, len) = self.extent(src);
        let place = (peer as usize, packets.slot);
        // The peer writes there again only after this rank's next signal.
        if let Some(at) = packets.segment.in_one_packet(place, offset, len) {
            return self.has_come(packets, peer, src).then(|| {
                self.hear(packets, peer);
                at
            });
        }
        let words = self.endpoint.rank.nranks as usize * UNPACKED;
        if self.state.unpacked.len() < words {
            self.state.unpacked.resize(words, 0);
        }
        let to: *mut u8 = self.state.unpacked[peer as usize * UNPACKED..].as_mut_ptr().cast();
        self.unpack(packets, peer, src, to).then(|| to.cast_const())
    }

    /// Folds the slices of all peers and this rank's own one, of its input, in rank order.
    #[inline]
    fn reduce_packets(
        &mut self,
        packets: Packets<'_>,
        src: Slice,
        (own, dst): (Slice, Slice),
        finish: bool,
    ) -> Poll {
        let (nranks, rank) = (self.endpoint.rank.nranks, self.endpoint.rank.number);
        // Each rank starts with another peer, so that not all ask for the same line at once. Those
        // that take turns on a processor do not in any case.
        let first = if ranks_per_processor(nranks as usize) > 1 { 0 } else { rank + 1 };
        let wrapped = |next: u32| if next < nranks { next } else { next - nranks };
        let several = self.extent(src).1 > PACKET_DATA;
        while self.run.cursor < nranks as usize {
            let next = first + self.run.cursor as u32;
            let peer = wrapped(next);
            if peer != rank {
                let Some(from) = self.operand(packets, peer, src) else { return Poll::Wait(peer) };
                self.state.sources[peer as usize] = from;
            }
            self.run.cursor += 1;
            // Once: a look at a line holds up who writes it.
            if several && self.run.cursor + AHEAD <= nranks as usize {
                let coming = wrapped(next + AHEAD as u32) as usize;
                let (from, len) = self.extent(src);
                packets.segment.expect_packets((coming, packets.slot), from, len);
            }
        }
        debug_assert_eq!((own.buffer, dst.buffer), (Buffer::Input, Buffer::Output));
        let ((from, len), (at, _), call) = (self.extent(own), self.extent(dst), &self.run.call);
        let (input, output, how) = (call.input, call.output, self.how(finish, 0));
        self.state.sources[rank as usize] = input.wrapping_add(from);
        // SAFETY: sources and destination hold `len` bytes each, and nobody else writes there.
        unsafe { fold(&[output.wrapping_add(at)], &self.state.sources, len, how) };
        self.spend(len);
        Poll::Ready
    }
}
