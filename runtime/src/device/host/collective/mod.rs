//! The host executor: runs a rank's program as a resumable step function that never blocks.

mod entry;
mod moves;
mod packets;

use super::endpoint::{Endpoint, Place, State};
use super::kernels::fold;
use super::pull;
use super::scale::Scaled;
use super::worker::crowded;
use crate::cancel::Uncancelled;
use crate::error::{Error, Quick, Result};
use crate::link::direct::{STAGE_SLOT_BYTES, Segment};
use crate::link::{MESSAGE_BYTES, Message, Received};
use crate::op::descriptor::{Descriptor, Label};
use crate::op::{Bound, Call, Programs};
use crate::os::copy::{copy, stream_fence};
use crate::rank::agreement::{self, CurrentOp};
use crate::rank::{Awaited, Rank, broken};
use oxccl_plan::ir::{Capacity, UserMemory, inbox_place, next_round};
use oxccl_plan::{Buffer, Carrier, DataType, From, Geometry, Op, Order, Plan, Slice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of the stretches of large copies and folds: a multiple of every element's size.
const STRETCH_BYTES: usize = 128 << 10;
/// Looks at a peer that follow each other without a pause, at the beginning of a wait.
const EAGER_POLLS: u32 = 24;
/// The largest number of ranks for direct plans: each rank looks at all others.
pub const MAX_DIRECT_RANKS: usize = 64;
/// Parts begin on cache lines.
const ALIGN_BYTES: u64 = 64;

/// The limits of one visit to an operation.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The number of looks at something that is not there yet before the visit ends.
    pub polls: u32,
    /// Bytes to move before other operations get a turn.
    pub bytes: usize,
}

/// The result of a visit.
pub enum Visit {
    /// The operation is complete, or failed.
    Done(Quick<()>),
    /// The operation waits.
    Waiting {
        /// True if this visit made progress.
        moved: bool,
        /// The rank and the step that the operation waits for.
        awaited: Awaited,
    },
}

/// The result of an attempt at a step.
enum Poll {
    Ready,
    Wait(u32),
    /// More of the same step is left.
    Again,
}

/// Returns the capacity of a communicator's links for elements of a type.
pub fn capacity(edge_slot_bytes: usize, dtype: DataType) -> Capacity {
    // Every call comes here, and sizes are powers of two: shifts replace divisions.
    let shift = dtype.size().trailing_zeros();
    Capacity {
        edge_slot_elems: edge_slot_bytes as u64 >> shift,
        message_elems: edge_slot_bytes.min(MESSAGE_BYTES) as u64 >> shift,
        stage_slot_elems: STAGE_SLOT_BYTES as u64 >> shift,
        align_elems: ALIGN_BYTES >> shift,
    }
}

/// A collective under way.
pub struct Running {
    programs: Arc<Programs>,
    at: Position,
}

/// How far a collective has come.
pub struct Position {
    call: Call,
    label: Label,
    /// The same with the tag of all collectives so far, by which ranks that share memory compare.
    so_far: Label,
    /// The number of the call among the communicator's collectives.
    seq: u64,
    geometry: Geometry,
    stage: Stage,
    /// True if all peers map the buffers of this rank, and of those whose entry words were read.
    mapped_here: bool,
    /// The carrier of the data.
    carrier: Carrier,
    phase_base: u64,
    window: u64,
    /// The round of the window. Windows overlap where the program has several.
    round: u32,
    step: usize,
    /// Position within a step, in bytes or ranks.
    cursor: usize,
    /// The multiplied copy of the input, if the call multiplies it first.
    scaled: Option<Box<Scaled>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The input is being multiplied.
    Scaling,
    New,
    /// The peers can look up what this rank does.
    Announced,
    /// This rank has published its entry words. Those of all ranks decide which plan runs.
    Entered,
    Running,
    Draining,
}

impl Running {
    /// Creates the state of a call with the programs that were chosen for it.
    pub fn new(endpoint: &Endpoint, programs: Arc<Programs>, call: &Call) -> Self {
        let at = Position::new(endpoint, &programs, call, programs.descriptor(call));
        Self { programs, at }
    }

    /// Returns the step of the plan that the call has come to.
    pub fn step(&self) -> usize {
        self.at.step
    }

    /// Returns the longest time that the call waits; `None` if it has no limit of its own.
    pub fn limit(&self) -> Option<Duration> {
        self.programs.options.limit
    }

    /// Returns the name of the collective.
    pub fn name(&self) -> &'static str {
        self.at.name()
    }

    /// Advances the operation as far as the budget and the peers allow.
    pub fn visit(&mut self, endpoint: &Endpoint, budget: Budget) -> Visit {
        self.at.visit(&self.programs, endpoint, budget)
    }

    /// Returns a description of the operation, to compare it with those of other ranks.
    pub(super) fn doing(&self) -> CurrentOp {
        self.at.doing()
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.at.bound(&self.programs).plan
    }
}

impl Position {
    /// Creates the state of a call with the programs that were chosen for it, which is described
    /// so.
    #[inline]
    pub fn new(
        endpoint: &Endpoint,
        programs: &Programs,
        call: &Call,
        descriptor: Descriptor,
    ) -> Self {
        let room = capacity(endpoint.edge_slot_bytes, call.dtype);
        let carrier = programs.any.carrier;
        let label: Label = descriptor.into();
        let stage = if call.scale.is_some() { Stage::Scaling } else { Stage::New };
        let geometry = Geometry::new(&programs.any.plan.layout, call.count, &room);
        let (seq, phase_base, window, round, step, cursor) = (0, 0, 0, 0, 0, 0);
        Self {
            call: *call,
            label,
            so_far: label,
            seq,
            geometry,
            stage,
            mapped_here: false,
            carrier,
            phase_base,
            window,
            round,
            step,
            cursor,
            scaled: None,
        }
    }

    /// Keeps the state of a call that has to wait.
    pub fn keep(self, programs: Arc<Programs>) -> Running {
        Running { programs, at: self }
    }

    /// Advances the operation, of these programs, as far as the budget and the peers allow.
    pub fn visit(&mut self, programs: &Programs, endpoint: &Endpoint, budget: Budget) -> Visit {
        let mut guard = endpoint.state();
        if let Some(ended) = endpoint.ended(&guard) {
            return Visit::Done(Err(ended.into()));
        }
        // A network is used by calls of the system.
        let _whole = guard.networked.then(Uncancelled::begin);
        let (bound, state, run) = (self.bound(programs), &mut *guard, self);
        let (left, polls, moved) = (budget.bytes, 0, false);
        let mut visit = VisitState { programs, bound, run, endpoint, state, left, polls, moved };
        visit.go(budget.polls)
    }

    fn name(&self) -> &'static str {
        self.call.spec.collective.name()
    }

    /// Refuses a message that is not the next one of this operation, with `len` bytes.
    fn expect(&self, rank: &Rank, peer: u32, message: &Message, len: usize) -> Result<()> {
        if message.tag != self.label.tag {
            return Err(agreement::unexpected(rank, self.doing(), peer, message));
        }
        if let Some(got) = message.len.filter(|got| *got != len) {
            let name = self.name();
            let what = format!("{got} instead of {len} bytes of {name} from rank {peer}");
            return Err(Error::Internal { what });
        }
        Ok(())
    }

    fn doing(&self) -> CurrentOp {
        CurrentOp::Collective(self.so_far, self.seq)
    }

    /// Returns the mark of this operation's packets. Packets of another operation never match it,
    /// nor those of a rank that has made other calls before: of two roots of a broadcast each gives
    /// and takes nothing, so that only later calls can tell.
    fn packet_mark(&self) -> u64 {
        self.phase_base.wrapping_add(1).wrapping_add(u64::from(self.so_far.tag) << 32)
    }

    fn by_packets(&self) -> bool {
        self.carrier == Carrier::Packets
    }

    fn bound<'a>(&self, programs: &'a Programs) -> &'a Bound {
        match &programs.mapped {
            Some(bound) if self.carrier == bound.carrier => bound,
            _ => &programs.any,
        }
    }
}

#[cold]
fn no_segment() -> Box<Error> {
    Error::Internal { what: "a direct plan without shared memory".to_owned() }.into()
}

/// The offsets of one part of every block of a buffer, in bytes.
#[derive(Clone, Copy)]
struct Spread {
    /// The offset of the part of the first block.
    first: usize,
    /// The distance from one block to the next.
    distance: usize,
    /// The number of ranks for an inbox, in which its owner has no block.
    inbox_among: Option<u32>,
    /// The length of the part.
    len: usize,
}

impl Spread {
    /// Returns the offset of the part of a block in its owner's buffer.
    #[inline]
    fn offset(&self, owner: u32, block: u32) -> usize {
        let place = self.inbox_among.map_or(block, |nranks| inbox_place(block, owner, nranks));
        self.first + place as usize * self.distance
    }
}

/// One visit: the operation, with exclusive use of the endpoint's state.
struct VisitState<'a> {
    programs: &'a Programs,
    /// The program that runs.
    bound: &'a Bound,
    run: &'a mut Position,
    endpoint: &'a Endpoint,
    state: &'a mut State,
    /// Bytes that this visit may still move.
    left: usize,
    /// Looks in vain since something moved.
    polls: u32,
    /// True once this visit has made progress.
    moved: bool,
}

impl<'a> VisitState<'a> {
    /// Advances the operation until it is complete, has looked `looks` times in vain, or has moved
    /// as much as it may.
    fn go(&mut self, looks: u32) -> Visit {
        loop {
            let peer = match self.advance() {
                Ok(None) => return Visit::Done(Ok(())),
                Ok(Some(Poll::Wait(peer))) => peer as i32,
                Ok(Some(Poll::Ready | Poll::Again)) => return self.waiting(-1),
                Err(e) => return Visit::Done(Err(e)),
            };
            if let Err(e) = self.state.flush() {
                return Visit::Done(Err(e.into()));
            }
            self.polls += 1;
            // Where ranks take turns, the awaited one may need this processor.
            if self.polls > looks || crowded() {
                return self.waiting(peer);
            }
            // A pause takes longer than a flag needs to arrive.
            if self.polls > EAGER_POLLS {
                std::hint::spin_loop();
            }
        }
    }

    fn waiting(&self, peer: i32) -> Visit {
        let awaited = Awaited { peer, step: self.run.step as i32 };
        Visit::Waiting { moved: self.moved, awaited }
    }

    /// Notes that so many bytes have moved.
    fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Advances the operation until it has to wait or may move no more in this visit. Returns
    /// `None` if it is complete.
    fn advance(&mut self) -> Quick<Option<Poll>> {
        loop {
            let poll = match self.run.stage {
                Stage::Scaling => self.scale()?,
                Stage::New => {
                    self.announce();
                    Poll::Ready
                }
                Stage::Announced => self.begin()?,
                Stage::Entered => self.decide()?,
                Stage::Running if self.run.by_packets() => self.steps_by_packets()?,
                Stage::Running => self.steps()?,
                Stage::Draining => {
                    // Messages over a network must leave without further help of this rank.
                    return Ok(self.state.flush()?.map(Poll::Wait));
                }
            };
            if let Poll::Wait(_) = poll {
                return Ok(Some(poll));
            }
            (self.moved, self.polls) = (true, 0);
            if self.left == 0 {
                return Ok(Some(Poll::Again));
            }
        }
    }

    #[inline(always)]
    fn segment(&self) -> Quick<&'a Segment> {
        self.endpoint.rank.segment.as_deref().ok_or_else(no_segment)
    }

    fn signal(&mut self) -> Quick<()> {
        self.state.phase = self.state.phase.wrapping_add(1);
        let own = self.endpoint.rank.number as usize;
        let phase = self.state.phase;
        self.segment()?.phase(own).store(phase, Ordering::Release);
        Ok(())
    }

    fn wait(&mut self, from: From, target: u64) -> Quick<Poll> {
        let segment = self.segment()?;
        if let From::One(peer) = from {
            let has_come = self.state.has_reached(segment, peer, target);
            return Ok(if has_come { Poll::Ready } else { Poll::Wait(peer) });
        }
        let mut number = 0;
        while let Some(peer) = self.peer_behind(number) {
            if !self.state.has_reached(segment, peer, target) {
                return Ok(Poll::Wait(peer));
            }
            number += 1;
        }
        Ok(Poll::Ready)
    }

    /// Returns the peer that comes so many places behind the next rank, and `None` behind the last
    /// one: each rank starts with another peer, so that not all ask for the same line at once.
    #[inline(always)]
    fn peer_behind(&self, number: usize) -> Option<u32> {
        let Rank { number: own, nranks, .. } = *self.endpoint.rank;
        let next = own + 1 + number as u32;
        (number + 1 < nranks as usize).then(|| if next < nranks { next } else { next - nranks })
    }

    /// Multiplies the next stretch of the input. At the end, the copy becomes the call's input.
    fn scale(&mut self) -> Quick<Poll> {
        let blocks = self.run.call.spec.input_blocks(self.endpoint.rank.number);
        let (bytes, copy) =
            self.run.scaled.get_or_insert_default().stretch(&self.run.call, blocks)?;
        self.spend(bytes);
        if let Some(copy) = copy {
            self.run.call.input = copy;
            self.run.stage = Stage::New;
        }
        Ok(Poll::Ready)
    }

    fn make_scratch(&mut self) {
        let run = &*self.run;
        let layout = &self.bound.plan.layout;
        if layout.scratch_blocks == 0 {
            return;
        }
        let windows = u64::from(layout.scratch_windows).min(run.geometry.windows().max(1));
        let blocks = layout.scratch_blocks as usize * windows as usize;
        let bytes = blocks * run.geometry.scratch_block_elems() as usize * run.call.dtype.size();
        if self.state.scratch.len() * 8 < bytes {
            self.state.scratch.resize(bytes.div_ceil(8), 0);
        }
    }

    /// Takes steps until one has to wait, this visit may move no more, or a window ends.
    fn steps(&mut self) -> Quick<Poll> {
        let program = &self.bound.program;
        while self.run.step != program.round_end(self.run.round) {
            match self.execute(&program.ops[self.run.step])? {
                Poll::Ready => (self.run.step, self.run.cursor) = (self.run.step + 1, 0),
                Poll::Again => {}
                poll @ Poll::Wait(_) => return Ok(poll),
            }
            (self.moved, self.polls) = (true, 0);
            if self.left == 0 {
                return Ok(Poll::Again);
            }
        }
        if self.run.round + 1 == program.nrounds() {
            return self.end_window();
        }
        self.next_round();
        Ok(Poll::Ready)
    }

    /// Goes on to the round of a window that follows.
    fn next_round(&mut self) {
        let (program, run) = (&self.bound.program, &mut *self.run);
        let (windows, rounds) = (run.geometry.windows(), program.nrounds());
        if let Some((window, round)) = next_round(Some((run.window, run.round)), windows, rounds) {
            let step = round.checked_sub(1).map_or(0, |before| program.round_end(before));
            (run.window, run.round, run.step) = (window, round, step);
        }
    }

    fn end_window(&mut self) -> Quick<Poll> {
        let layout = &self.bound.plan.layout;
        let last = self.run.window + 1 >= self.run.geometry.windows();
        if last && layout.user_memory != UserMemory::Private && self.endpoint.rank.someone_failed()
        {
            // The failed rank's memory may already have been in use again when it was read. The
            // operation waits until it learns of the failure.
            return Ok(Poll::Wait(self.endpoint.rank.number));
        }
        if layout.uses_slots() {
            let slot = (self.state.stage_windows & 1) as usize;
            let done = u64::from(layout.done_signal);
            self.state.slot_need[slot] = self.run.phase_base.wrapping_add(done);
            self.state.stage_windows += 1;
        }
        self.run.phase_base = self.run.phase_base.wrapping_add(u64::from(layout.signals));
        if !last {
            self.next_round();
            return Ok(Poll::Ready);
        }
        self.run.step = 0;
        self.run.stage = Stage::Draining;
        Ok(Poll::Ready)
    }

    /// Executes the step's operation, whose parts are read where it lies.
    #[inline(always)]
    fn execute(&mut self, op: &Op) -> Quick<Poll> {
        match *op {
            Op::Acquire => {
                let slot = (self.state.stage_windows & 1) as usize;
                let need = self.state.slot_need[slot];
                self.wait(From::All, need)
            }
            Op::Signal => self.signal().map(|()| Poll::Ready),
            Op::Wait { from, signal } => {
                let target = self.run.phase_base.wrapping_add(u64::from(signal));
                let poll = self.wait(from, target)?;
                if matches!(poll, Poll::Ready) {
                    match from {
                        From::One(peer) => self.compare(peer)?,
                        From::All => {
                            (0..self.endpoint.rank.nranks).try_for_each(|p| self.compare(p))?
                        }
                    }
                }
                Ok(poll)
            }
            Op::Copy { src, dst } => {
                let (from, len) = self.own(src);
                let (to, _) = self.own(dst);
                self.copy(to, from, len, dst)
            }
            Op::Get { peer, src, dst } => {
                let (to, len) = self.own(dst);
                match self.of_peer(peer, src) {
                    Place::Here(from) => self.copy(to, from, len, dst),
                    Place::There(from) => {
                        let at = self.run.cursor;
                        let bytes = (len - at).min(STRETCH_BYTES);
                        let pid = self.endpoint.rank.pids[peer as usize];
                        // SAFETY: the destination is this rank's and has `len` bytes.
                        let pulled =
                            unsafe { pull::pull(pid, from + at, to.wrapping_add(at), bytes, peer) };
                        pulled.map_err(broken(peer))?;
                        Ok(self.stretch_done(bytes, len, false))
                    }
                }
            }
            Op::Put { peer, src, dst } => {
                let (from, len) = self.own(src);
                let offset = self.spread(dst).offset(peer, dst.block);
                let to = self.writable(peer, dst.buffer, offset)?;
                self.copy(to, from, len, dst)
            }
            Op::Reduce { src, own, dst, finish } => self.reduce(src, own, dst, finish),
            Op::Fold { src, count, own, at, dst, finish } => {
                Ok(self.fold((src, count), (own, at), dst, finish))
            }
            Op::Send { peer, src } => self.send(peer, src),
            Op::Recv { peer, dst } => self.receive(peer, dst),
            Op::RecvReduce { peer, local, dst, order, finish } => {
                self.receive_reduce(peer, local, dst, order, finish)
            }
        }
    }

    /// Returns where the blocks of a slice's buffer have the slice's part. Who asks for many blocks
    /// or peers asks once: it takes divisions.
    fn spread(&self, slice: Slice) -> Spread {
        let (run, nranks) = (&*self.run, self.endpoint.rank.nranks);
        let (offset, len) = run.geometry.range(run.window, slice.part, slice.parts);
        let (first, distance) = match slice.buffer {
            Buffer::Input | Buffer::Output => {
                (run.geometry.window_start(run.window) + offset, run.geometry.block_elems)
            }
            Buffer::Scratch => {
                let (layout, block) = (&self.bound.plan.layout, run.geometry.scratch_block_elems());
                let window = run.window % u64::from(layout.scratch_windows);
                (window * u64::from(layout.scratch_blocks) * block, block)
            }
            Buffer::Stage => (offset, run.geometry.window_elems),
            Buffer::Inbox => (0, run.geometry.inbox_block_elems(run.window)),
        };
        let inbox_among = (slice.buffer == Buffer::Inbox).then_some(nranks);
        let [first, distance, len] =
            [first, distance, len].map(|n| n as usize * run.call.dtype.size());
        Spread { first, distance, inbox_among, len }
    }

    /// Returns the address and the length in bytes of a slice of this rank.
    fn own(&mut self, slice: Slice) -> (*mut u8, usize) {
        let spread = self.spread(slice);
        let offset = spread.offset(self.endpoint.rank.number, slice.block);
        (self.own_buffer(slice.buffer).wrapping_add(offset), spread.len)
    }

    fn own_buffer(&mut self, buffer: Buffer) -> *mut u8 {
        match buffer {
            Buffer::Input => self.run.call.input.cast_mut(),
            Buffer::Output => self.run.call.output,
            Buffer::Scratch => self.state.scratch.as_mut_ptr().cast(),
            Buffer::Stage | Buffer::Inbox => self.stage(self.endpoint.rank.number),
        }
    }

    fn stage(&self, rank: u32) -> *mut u8 {
        let slot = (self.state.stage_windows & 1) as usize;
        let segment = self.endpoint.rank.segment.as_ref();
        segment.map_or(std::ptr::null_mut(), |s| s.stage(rank as usize, slot))
    }

    /// Returns where a slice of a peer lies.
    fn of_peer(&self, peer: u32, slice: Slice) -> Place {
        self.buffer_of(peer, slice.buffer).at(self.spread(slice).offset(peer, slice.block))
    }

    fn buffer_of(&self, peer: u32, buffer: Buffer) -> Place {
        match buffer {
            Buffer::Stage | Buffer::Inbox | Buffer::Scratch => Place::Here(self.stage(peer)),
            Buffer::Input => self.state.user[peer as usize].0,
            Buffer::Output => self.state.user[peer as usize].1,
        }
    }

    /// Returns a place of a peer's buffer that a plan writes. Only plans for mapped memory write to
    /// peers.
    fn writable(&self, peer: u32, buffer: Buffer, offset: usize) -> Quick<*mut u8> {
        match self.buffer_of(peer, buffer).at(offset) {
            Place::Here(address) => Ok(address),
            Place::There(_) => {
                let what = format!("{buffer:?} of rank {peer} is not mapped");
                Err(Error::Internal { what }.into())
            }
        }
    }

    /// Returns what makes an error of a link one of its peer. A switch has no rank to blame.
    fn broken(&self, peer: u32) -> impl Fn(Error) -> Error + use<> {
        let is_rank = peer < self.endpoint.rank.nranks;
        move |error| if is_rank { broken(peer)(error) } else { error }
    }

    fn send(&mut self, peer: u32, src: Slice) -> Quick<Poll> {
        let (from, len) = self.own(src);
        if len == 0 {
            return Ok(Poll::Ready);
        }
        let (label, begun) = (self.run.label, self.state.collectives);
        let result = self.result(peer);
        let edge = self.state.edge(peer);
        // SAFETY: the geometry keeps messages within slots; the source is this rank's. So is the
        // place of a switch's result, and the verifier showed that neither is used until that is
        // received. An operation that fails ends the edge first.
        let sent = unsafe {
            match result {
                Some(to) => edge.reduce((from, to), len, &label, begun),
                None => edge.send(from, len, &label, begun),
            }
        };
        if !sent.map_err(self.broken(peer))? {
            return Ok(Poll::Wait(peer));
        }
        self.spend(len);
        Ok(Poll::Ready)
    }

    /// Returns where the result of what this step sends goes. `None` unless the peer is a switch,
    /// and once the rank has failed: then nothing may begin to use the user's memory.
    fn result(&mut self, peer: u32) -> Option<*mut u8> {
        let rank = &self.endpoint.rank;
        if peer < rank.nranks || rank.failure().is_some() {
            return None;
        }
        let result = self.bound.program.result(self.run.step)?;
        Some(self.own(result).0)
    }

    /// Returns the data of the next message from a peer, which must be `len` bytes long.
    fn message(&mut self, peer: u32, len: usize) -> Quick<Option<*const u8>> {
        let Some(message) = self.state.edge(peer).peek().map_err(self.broken(peer))? else {
            return Ok(None);
        };
        self.run.expect(&self.endpoint.rank, peer, &message, len)?;
        Ok(Some(message.data))
    }

    fn receive(&mut self, peer: u32, dst: Slice) -> Quick<Poll> {
        let (to, len) = self.own(dst);
        if len == 0 {
            return Ok(Poll::Ready);
        }
        let (run, rank) = (&*self.run, &self.endpoint.rank);
        let expect = |message: &Message| run.expect(rank, peer, message, len);
        // SAFETY: the destination holds `len` bytes and is this rank's.
        let received = unsafe { self.state.edge(peer).receive(to, len, expect) };
        match received.map_err(self.broken(peer))? {
            None => return Ok(Poll::Wait(peer)),
            Some(Received::InPlace) => {}
            Some(Received::Slot(slot)) => {
                let streaming = self.streaming(dst);
                // SAFETY: the slot holds `len` bytes; the destination is this rank's.
                unsafe { copy(to, slot, len, streaming) };
                if streaming {
                    stream_fence();
                }
                self.state.edge(peer).release();
            }
        }
        self.spend(len);
        Ok(Poll::Ready)
    }

    fn receive_reduce(
        &mut self,
        peer: u32,
        local: Slice,
        dst: Slice,
        order: Order,
        finish: bool,
    ) -> Quick<Poll> {
        let (own, len) = self.own(local);
        let (to, _) = self.own(dst);
        if len == 0 {
            return Ok(Poll::Ready);
        }
        let Some(slot) = self.message(peer, len)? else { return Ok(Poll::Wait(peer)) };
        let own = own.cast_const();
        let srcs = match order {
            Order::IncomingFirst => [slot, own],
            Order::LocalFirst => [own, slot],
        };
        // SAFETY: slot, local slice and destination hold `len` bytes each.
        unsafe { fold(&[to], &srcs, len, self.how(finish, 0)) };
        self.state.edge(peer).release();
        self.spend(len);
        Ok(Poll::Ready)
    }
}
