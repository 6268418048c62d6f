//! The moves of a step within memory that this rank can address: copies and folds, a stretch at a
//! time.

use super::{Poll, STRETCH_BYTES, VisitState};
use crate::device::host::endpoint::Place;
use crate::device::host::kernels::{Fold, fold};
use crate::device::host::pull;
use crate::error::Quick;
use crate::op::Call;
use crate::os::copy::{Handover, copy, stream_fence};
use crate::rank::broken;
use oxccl_plan::{Buffer, Destination, ReduceOp, Slice};

/// Results of calls of at least this size bypass the cache where they are copied or written to all
/// ranks, unless they replace the input, which is in the cache. Other folds are slower so.
const STREAMING_BYTES: u64 = 4 << 20;
/// Bytes that the system copies at a time before a fold: a few pieces fit the second-level cache.
const PULL_BYTES: usize = 64 << 10;

impl VisitState<'_> {
    /// Returns whether the data written to a buffer are too large to keep in the cache.
    pub(super) fn streaming(&self, dst: Slice) -> bool {
        let run = &*self.run;
        let in_place = std::ptr::eq(run.call.input, run.call.output);
        let user = matches!(dst.buffer, Buffer::Input | Buffer::Output) && !in_place;
        let blocks = u64::from(run.call.spec.output_blocks(self.endpoint.rank.number).max(1));
        user && blocks * run.call.count * run.call.dtype.size() as u64 >= STREAMING_BYTES
    }

    pub(super) fn copy(
        &mut self,
        to: *mut u8,
        from: *const u8,
        len: usize,
        dst: Slice,
    ) -> Quick<Poll> {
        let at = self.run.cursor;
        let bytes = (len - at).min(STRETCH_BYTES);
        let (to, from) = (to.wrapping_add(at), from.wrapping_add(at));
        let is_published = matches!(dst.buffer, Buffer::Stage | Buffer::Inbox);
        let streaming = !is_published && self.streaming(dst);
        // SAFETY: both lie in user memory given by the caller for this call, in the stage or in
        // scratch, for `len` bytes; the verifier showed that no rank writes them now.
        unsafe {
            match self.handover().filter(|_| is_published) {
                Some(handover) => handover.copy(to, from, bytes),
                None => copy(to, from, bytes, streaming),
            }
        }
        Ok(self.stretch_done(bytes, len, streaming))
    }

    pub(super) fn stretch_done(&mut self, bytes: usize, len: usize, streaming: bool) -> Poll {
        if streaming {
            stream_fence();
        }
        self.run.cursor += bytes;
        self.spend(bytes);
        if self.run.cursor < len { Poll::Again } else { Poll::Ready }
    }

    /// Returns the choice of stores for what the peers read. `None` where this rank shares memory
    /// with none.
    fn handover(&self) -> Option<&Handover> {
        self.endpoint.rank.segment.as_ref().map(|segment| &segment.handover)
    }

    pub(super) fn how(&self, finish: bool, streaming: u64) -> Fold {
        let Call { dtype, op, spec, .. } = self.run.call;
        Fold { dtype, op, finish: finish.then_some(spec.nranks), streaming }
    }

    pub(super) fn reduce(
        &mut self,
        src: Slice,
        own: Slice,
        dst: Destination,
        finish: bool,
    ) -> Quick<Poll> {
        let mut sources = std::mem::take(&mut self.state.sources);
        let mut destinations = std::mem::take(&mut self.state.destinations);
        let poll = self.reduce_into(src, own, dst, finish, (&mut sources, &mut destinations));
        (self.state.sources, self.state.destinations) = (sources, destinations);
        poll
    }

    fn reduce_into(
        &mut self,
        src: Slice,
        own: Slice,
        dst: Destination,
        finish: bool,
        (srcs, dsts): (&mut [*const u8], &mut [*mut u8]),
    ) -> Quick<Poll> {
        let rank = self.endpoint.rank.number;
        let (mine, len) = self.own(own);
        srcs[rank as usize] = mine.wrapping_add(self.run.cursor);
        let bytes = self.sources(src, len, srcs)?;
        let at = self.run.cursor;
        let (count, streaming) = self.destinations(dst, at, dsts)?;
        let dsts = &dsts[..count];
        let writes_to_peers = matches!(dst, Destination::Peer(..) | Destination::Everyone(_));
        if writes_to_peers && !self.endpoint.rank.begin_writing() {
            // A rank has failed. The operation waits until it learns of the failure.
            return Ok(Poll::Wait(rank));
        }
        // SAFETY: sources and destinations hold `len` bytes each; the verifier showed that no
        // other rank accesses the destinations or writes the sources now.
        unsafe { fold(dsts, srcs, bytes, self.how(finish, streaming)) };
        let poll = self.stretch_done(bytes, len, streaming != 0);
        if writes_to_peers {
            self.endpoint.rank.end_writing();
        }
        Ok(poll)
    }

    /// Points `dsts` to byte `at` of the destinations. Returns how many they are, and a bit for
    /// each to which stores bypass the cache.
    fn destinations(
        &mut self,
        dst: Destination,
        at: usize,
        dsts: &mut [*mut u8],
    ) -> Quick<(usize, u64)> {
        let (nranks, rank) = (self.endpoint.rank.nranks, self.endpoint.rank.number);
        let bypasses = self.handover().is_some_and(Handover::streams);
        // A bit for each destination if what the peers read there bypasses the cache.
        let published = |slice: Slice| match slice.buffer {
            Buffer::Stage | Buffer::Inbox if bypasses => u64::MAX,
            _ => 0,
        };
        let (count, streaming) = match dst {
            Destination::Own(slice) => {
                dsts[0] = self.own(slice).0;
                (1, published(slice))
            }
            Destination::Both(one, two) => {
                (dsts[0], dsts[1]) = (self.own(one).0, self.own(two).0);
                (2, published(one) & 1 | published(two) & 2)
            }
            Destination::Peer(peer, slice) => {
                let offset = self.spread(slice).offset(peer, slice.block);
                dsts[0] = self.writable(peer, slice.buffer, offset)?;
                (1, published(slice))
            }
            Destination::Everyone(slice) => {
                let spread = self.spread(slice);
                for (peer, dst) in (0..nranks).zip(dsts.iter_mut()) {
                    *dst = self.writable(peer, slice.buffer, spread.offset(peer, slice.block))?;
                }
                (nranks as usize, if self.streaming(slice) { u64::MAX } else { 0 })
            }
            Destination::Inboxes(own, slice) => {
                let spread = self.spread(slice);
                for (peer, dst) in (0..nranks).zip(dsts.iter_mut()).filter(|(p, _)| *p != rank) {
                    *dst = self.writable(peer, slice.buffer, spread.offset(peer, slice.block))?;
                }
                dsts[rank as usize] = self.own(own).0;
                (nranks as usize, published(slice) & !(1 << rank))
            }
        };
        for dst in &mut dsts[..count] {
            *dst = dst.wrapping_add(at);
        }
        Ok((count, streaming))
    }

    /// Points `srcs` to the next stretch of the peers' slices, copied here by the system if they
    /// are not mapped. Returns the bytes of the stretch.
    fn sources(&mut self, src: Slice, len: usize, srcs: &mut [*const u8]) -> Quick<usize> {
        let (at, own, spread) = (self.run.cursor, self.endpoint.rank.number, self.spread(src));
        if src.buffer == Buffer::Inbox {
            let inbox = self.own_buffer(src.buffer);
            for (peer, from) in (0u32..).zip(srcs.iter_mut()).filter(|(p, _)| *p != own) {
                *from = inbox.wrapping_add(spread.offset(own, src.block + peer) + at).cast_const();
            }
            return Ok((len - at).min(STRETCH_BYTES));
        }
        let peers = (0..self.endpoint.rank.nranks).filter(move |&p| p != own);
        let is_pulled = |p| matches!(self.buffer_of(p, src.buffer), Place::There(_));
        let pulled = peers.clone().any(is_pulled);
        let bytes = (len - at).min(if pulled { PULL_BYTES } else { STRETCH_BYTES });
        if pulled {
            let words = srcs.len() * PULL_BYTES / 8;
            if self.state.unpacked.len() < words {
                self.state.unpacked.resize(words, 0);
            }
        }
        for peer in peers {
            let offset = spread.offset(peer, src.block);
            srcs[peer as usize] = match self.buffer_of(peer, src.buffer).at(offset) {
                Place::Here(from) => from.wrapping_add(at).cast_const(),
                Place::There(from) => {
                    let room = &mut self.state.unpacked[peer as usize * PULL_BYTES / 8..];
                    let to: *mut u8 = room.as_mut_ptr().cast();
                    let pid = self.endpoint.rank.pids[peer as usize];
                    // SAFETY: the room has PULL_BYTES bytes.
                    let pulled = unsafe { pull::pull(pid, from + at, to, bytes, peer) };
                    pulled.map_err(broken(peer))?;
                    to.cast_const()
                }
            };
        }
        Ok(bytes)
    }

    /// Folds the next stretch of `count` blocks of scratch, with `own` in place of number `at`.
    pub(super) fn fold(
        &mut self,
        (src, count): (Slice, u32),
        (own, at): (Slice, u32),
        dst: Slice,
        finish: bool,
    ) -> Poll {
        let in_place = count == 1 && own == dst;
        if in_place && self.run.call.op != ReduceOp::Avg {
            return Poll::Ready;
        }
        let mut srcs = std::mem::take(&mut self.state.sources);
        let cursor = self.run.cursor;
        let (to, len) = self.own(dst);
        let (spread, blocks) = (self.spread(src), self.own_buffer(src.buffer));
        for (number, from) in (0..count).zip(&mut srcs) {
            let offset = spread.offset(self.endpoint.rank.number, src.block + number);
            *from = blocks.wrapping_add(offset + cursor).cast_const();
        }
        if at < count {
            srcs[at as usize] = self.own(own).0.wrapping_add(cursor).cast_const();
        }
        let bytes = (len - cursor).min(STRETCH_BYTES);
        let how = self.how(finish, 0);
        // SAFETY: the slices hold `len` bytes each, and are this rank's.
        unsafe { fold(&[to.wrapping_add(cursor)], &srcs[..count as usize], bytes, how) };
        self.state.sources = srcs;
        self.stretch_done(bytes, len, false)
    }
}
