//! The language of plans: operations over pieces of buffers, and the geometry that gives the
//! elements of each piece when a call is bound to a program.
//!
//! A buffer consists of equal *blocks* (all-reduce: one, output of all-gather: one per rank). A
//! call passes over the blocks in *windows* that fit the slots of staging memory and edges; in each
//! window a block is cut into *parts*. A program runs once per window. All ranks cut alike, so both
//! ends of an edge know the length of each message, and a message without elements is not sent.

use std::ops::Range;

/// The memory that a slice lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Buffer {
    /// The caller's send buffer.
    Input = 0,
    /// The caller's receive buffer.
    Output = 1,
    /// Memory of this rank alone, each block as large as a part. A slice of it is one part, as long
    /// as that of its number, and lies at the start of its block.
    Scratch = 2,
    /// Memory that all direct peers may read, one window large, in two slots that windows use in
    /// turn.
    Stage = 3,
    /// The stage's slots where the peers may write. Each block is as large as a part, as in
    /// scratch, and has one writer. Block `g · ranks + p` is the g-th block that rank p writes
    /// here.
    Inbox = 4,
}

impl Buffer {
    /// All buffers, by number.
    pub const ALL: [Buffer; 5] =
        [Buffer::Input, Buffer::Output, Buffer::Scratch, Buffer::Stage, Buffer::Inbox];
}

/// Consecutive parts of one block of a buffer in the current window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// The memory.
    pub buffer: Buffer,
    /// Block of that memory.
    pub block: u32,
    /// First part.
    pub part: u32,
    /// Number of parts.
    pub parts: u32,
}

impl Slice {
    /// Returns one part of a block.
    pub const fn part(buffer: Buffer, block: u32, part: u32) -> Self {
        Self { buffer, block, part, parts: 1 }
    }

    /// Returns a block of a plan that does not cut its blocks into parts.
    pub const fn block(buffer: Buffer, block: u32) -> Self {
        Self::part(buffer, block, 0)
    }
}

/// The order of the two operands of a fold: floating-point results depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The data that came over the edge are the first operand.
    IncomingFirst,
    /// The data that this rank holds are the first operand.
    LocalFirst,
}

/// The ranks that a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum From {
    /// Every other rank.
    All,
    /// One rank.
    One(u32),
}

/// The destination of the result of [`Op::Reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// A slice of this rank.
    Own(Slice),
    /// Two slices of this rank.
    Both(Slice, Slice),
    /// The same slice of one rank's user memory.
    Peer(u32, Slice),
    /// The same slice of the user memory of every rank, this rank included.
    Everyone(Slice),
    /// A slice of this rank, and the same slice of every other rank's inbox.
    Inboxes(Slice, Slice),
}

/// One operation. `finish` marks the fold that completes a reduction: there avg divides, before the
/// only rounding to the element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Copies within this rank.
    Copy {
        /// The slice that is copied.
        src: Slice,
        /// The destination.
        dst: Slice,
    },
    /// Puts a slice on the edge to a peer; waits for a free slot of the edge. A switch has the
    /// slice and the place of its result ([`Program::result`]) until that is received.
    Send {
        /// The receiving rank, or a switch ([`Spec::switch`](crate::Spec::switch)).
        peer: u32,
        /// The slice that is sent.
        src: Slice,
    },
    /// Takes the next message of the edge from a peer.
    Recv {
        /// The sending rank, or a switch.
        peer: u32,
        /// The destination.
        dst: Slice,
    },
    /// Takes the next message of the edge from a peer and folds it with a local slice.
    RecvReduce {
        /// The sending rank.
        peer: u32,
        /// The local operand.
        local: Slice,
        /// The destination of the result (rounded to the element type).
        dst: Slice,
        /// The order of the operands.
        order: Order,
        /// True if this completes the reduction.
        finish: bool,
    },
    /// Waits until every peer has finished reading what this rank published in the stage slot that
    /// this window uses, and the data that the peer received in its own inbox there.
    Acquire,
    /// Increments this rank's signal count, which all peers see: everything that this rank did
    /// before is visible to a peer that waits for the signal.
    Signal,
    /// Waits until the peers have signalled `signal` times in this window.
    Wait {
        /// The ranks that the wait is for.
        from: From,
        /// The number of the signal in the window, counted from 1.
        signal: u32,
    },
    /// Copies from the stage or user memory of a peer.
    Get {
        /// The peer that owns the memory.
        peer: u32,
        /// The slice in the peer's memory.
        src: Slice,
        /// The destination in this rank's memory.
        dst: Slice,
    },
    /// Copies to the inbox of a peer.
    Put {
        /// The peer that owns the inbox.
        peer: u32,
        /// The slice in this rank's memory.
        src: Slice,
        /// The destination in the peer's inbox.
        dst: Slice,
    },
    /// Folds the slices of all ranks in rank order, in the accumulation type, rounding once.
    Reduce {
        /// The slice that is read at the other ranks. For the inbox, the p-th block of this rank's
        /// own memory from there on stands for rank p.
        src: Slice,
        /// The slice that is read at this rank.
        own: Slice,
        /// The destination of the result.
        dst: Destination,
        /// True if this completes the reduction.
        finish: bool,
    },
    /// Folds consecutive blocks of scratch in their order, in the accumulation type, rounding once.
    Fold {
        /// The first block.
        src: Slice,
        /// The number of blocks.
        count: u32,
        /// The slice that is read in place of one of the blocks.
        own: Slice,
        /// The number of that block, counted from `src`.
        at: u32,
        /// The destination of the result.
        dst: Slice,
        /// True if this completes the reduction.
        finish: bool,
    },
}

/// The operations of one rank in each window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// The places in `ops` at which the rounds after the first one begin ([`Layout::rounds`]); none
    /// where windows do not overlap.
    pub rounds: Vec<usize>,
}

impl std::convert::From<Vec<Op>> for Program {
    fn from(ops: Vec<Op>) -> Self {
        Self { ops, rounds: Vec::new() }
    }
}

impl Program {
    /// Begins the next round.
    pub(crate) fn begin_round(&mut self) {
        self.rounds.push(self.ops.len());
    }

    /// Returns the number of rounds.
    pub fn nrounds(&self) -> u32 {
        self.rounds.len() as u32 + 1
    }

    /// Returns the place in `ops` behind the last operation of a round.
    pub fn round_end(&self, round: u32) -> usize {
        self.rounds.get(round as usize).copied().unwrap_or(self.ops.len())
    }

    /// Returns the places in `ops` of the operations of each round, in order.
    pub fn rounds(&self) -> impl Iterator<Item = Range<usize>> {
        let begins = std::iter::once(0).chain(self.rounds.iter().copied());
        let ends = self.rounds.iter().copied().chain([self.ops.len()]);
        begins.zip(ends).map(|(begin, end)| begin..end)
    }

    /// Returns where the result of what a step sends to a switch is received: results come in the
    /// order of what was sent.
    pub fn result(&self, step: usize) -> Option<Slice> {
        let Some(&Op::Send { peer: switch, .. }) = self.ops.get(step) else { return None };
        let sends = |op: &&Op| matches!(op, Op::Send { peer, .. } if *peer == switch);
        let before = self.ops[..step].iter().filter(sends).count();
        let mut results = self.ops.iter().filter_map(|op| match op {
            Op::Recv { peer, dst } if *peer == switch => Some(*dst),
            _ => None,
        });
        results.nth(before)
    }
}

/// The most rounds of a plan whose windows may overlap.
pub const MAX_ROUNDS: usize = 8;

/// The most messages of a window on an edge between teams where windows overlap.
pub const ROUND_MESSAGES: usize = 2;

/// The turns from a round of a window to its next one: the time that messages have to arrive. An
/// edge has [`ROUND_MESSAGES`] times as many slots at least, so that a rank waits for room only
/// while a peer is more than so many turns behind.
pub const ROUND_TURNS: usize = 2;

/// Returns how many windows are under way together in a plan of so many rounds.
pub const fn overlapping(rounds: u32) -> u32 {
    (rounds - 1) * ROUND_TURNS as u32 + 1
}

/// Returns the window and the round that an executor carries out after one, the first if that is
/// `None`, in a plan of so many rounds whose windows overlap: in each turn a window begins, and
/// those before it have their next round, the oldest first. `None` after the last one.
pub fn next_round(after: Option<(u64, u32)>, windows: u64, rounds: u32) -> Option<(u64, u32)> {
    let turns = |round: u32| u64::from(round) * ROUND_TURNS as u64;
    let of_turn = |turn: u64, before: u32| {
        let oldest = (0..before).rev().map(|round| (turn.checked_sub(turns(round)), round));
        let mut there = oldest.filter_map(|(window, round)| Some((window?, round)));
        there.find(|(window, _)| *window < windows)
    };
    let (turn, round) = match after {
        None => (0, rounds),
        Some((window, round)) => (window + turns(round), round),
    };
    let last = windows.saturating_sub(1) + turns(rounds - 1);
    of_turn(turn, round).or_else(|| (turn + 1..=last).find_map(|turn| of_turn(turn, rounds)))
}

/// The access of ranks to each other's user memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UserMemory {
    /// No access.
    Private,
    /// The ranks read it: it has to be mapped, or the system has to copy from it.
    Read,
    /// The ranks also write it: it has to be mapped.
    Written,
}

/// The facts about a plan that all its programs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The number of parts into which a block is cut in each window.
    pub parts: u32,
    /// Blocks of the stage; 0 if the plan does not use the stage.
    pub stage_blocks: u32,
    /// Blocks of scratch.
    pub scratch_blocks: u32,
    /// Blocks that the peers write into a rank's inbox; 0 if the plan does not use the inbox. A
    /// plan uses the stage's slots in one way only.
    pub inbox_blocks: u32,
    /// The most parts that one message on an edge carries; 0 if the plan uses no edges.
    pub message_parts: u32,
    /// Signals of each rank in each window.
    pub signals: u32,
    /// The signal, counted from the start of a window, by which a peer has surely read the data
    /// that were published in the window; `signals + 1` is the first signal of the next window.
    pub done_signal: u32,
    /// The access of ranks to each other's user memory; a plan with such access has one window,
    /// unless it copies to scratch.
    pub user_memory: UserMemory,
    /// The number of rounds of each program: what goes to another team in a round is received in
    /// the next one, and [`ROUND_MESSAGES`] of a window at most go over an edge. So windows may
    /// overlap ([`next_round`]). 1 where each window waits for the one before.
    pub rounds: u32,
    /// The windows that have scratch of their own, in turn: those that are under way together if a
    /// round reads what an earlier one has left in scratch, else 1.
    pub scratch_windows: u32,
}

impl Layout {
    /// Returns whether windows use the stage's slots in turn.
    pub const fn uses_slots(&self) -> bool {
        self.stage_blocks > 0 || self.inbox_blocks > 0
    }
}

/// Returns the position of a block of an inbox, as a number of blocks. The blocks of the owner
/// itself, which no rank writes, take no room.
pub const fn inbox_place(block: u32, owner: u32, nranks: u32) -> u32 {
    let (group, writer) = (block / nranks, block % nranks);
    group * (nranks - 1) + (writer + nranks - owner - 1) % nranks
}

/// The room that a communicator has for a plan, in elements of the call's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Elements in one slot of an edge.
    pub edge_slot_elems: u64,
    /// Elements of the largest message where windows do not overlap or are few: at most a slot.
    pub message_elems: u64,
    /// Elements in one slot of a rank's stage.
    pub stage_slot_elems: u64,
    /// The multiple on which part boundaries fall (a power of two).
    pub align_elems: u64,
}

/// The least windows of a call whose messages are larger than usual ones: while some windows are on
/// their way, others are folded.
const FEWEST_WINDOWS: u64 = 4;

impl Capacity {
    /// Returns the elements of the largest message in a call of `count` elements per block. Where
    /// windows overlap, a fixed number of messages is under way: those of large calls are larger,
    /// so that they fill a network that is fast and far. Elsewhere smaller ones arrive sooner.
    fn largest_message(&self, layout: &Layout, count: u64) -> u64 {
        if layout.rounds == 1 {
            return self.message_elems;
        }
        let part = count.div_ceil(u64::from(layout.parts));
        let all = part.saturating_mul(u64::from(layout.message_parts));
        (all / FEWEST_WINDOWS).min(self.edge_slot_elems).max(self.message_elems)
    }
}

/// The cut of a block of `block_elems` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Elements of a block: the count of the call.
    pub block_elems: u64,
    /// Parts per window.
    pub parts: u32,
    /// Elements of a block in each window but the last.
    pub window_elems: u64,
    /// The multiple on which part boundaries fall.
    pub align_elems: u64,
    /// How the first window is cut, so that ranges of most windows need no division.
    first: Cut,
}

/// How a window of `len` elements is cut: `share` aligned units for each part, and one more for the
/// first `rest` parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    len: u64,
    share: u64,
    rest: u64,
}

/// Returns at most `elems`, so that `blocks` blocks of that size fit the room.
fn share(elems: u64, room: u64, blocks: u32) -> u64 {
    let blocks = u64::from(blocks);
    // A small call fits and needs no division.
    if elems.checked_mul(blocks).is_some_and(|all| all <= room) { elems } else { room / blocks }
}

impl Geometry {
    /// Cuts a call of `count` elements per block such that a plan of this layout fits `room`.
    pub fn new(layout: &Layout, count: u64, room: &Capacity) -> Self {
        let parts = u64::from(layout.parts);
        let align = room.align_elems;
        let mut window = count.max(1);
        if layout.user_memory == UserMemory::Private || layout.scratch_blocks > 0 {
            if layout.stage_blocks > 0 {
                window = share(window, room.stage_slot_elems, layout.stage_blocks);
            }
            if layout.user_memory != UserMemory::Private {
                // The data copied from the others should still be in the cache when they are
                // folded.
                window = share(window, room.stage_slot_elems, layout.scratch_blocks);
            }
            if layout.inbox_blocks > 0 {
                let part = room.stage_slot_elems / u64::from(layout.inbox_blocks);
                window = window.min((part / align * align).max(1).saturating_mul(parts));
            }
            if layout.message_parts > 0 {
                let message = room.largest_message(layout, count);
                let part = message / u64::from(layout.message_parts);
                window = window.min((part / align * align).max(1).saturating_mul(parts));
            }
        }
        let unit = parts * align;
        if window < count && window > unit {
            window = window / unit * unit;
        }
        Self::of_windows(count, layout.parts, window.max(1), align)
    }

    /// Cuts a block of so many elements into windows of `window_elems`, with boundaries of parts on
    /// multiples of `align_elems`.
    pub fn of_windows(block_elems: u64, parts: u32, window_elems: u64, align_elems: u64) -> Self {
        let first = Cut { len: 0, share: 0, rest: 0 };
        let mut whole = Self { block_elems, parts, window_elems, align_elems, first };
        if parts > 1 {
            whole.first = whole.cut(block_elems.min(window_elems));
        }
        whole
    }

    fn cut(&self, len: u64) -> Cut {
        // Whole aligned units are distributed evenly: no part is more than one unit larger than
        // another, and a small call still occupies as many parts as there are units.
        let (units, parts) = (len.div_ceil(self.align_elems), u64::from(self.parts));
        Cut { len, share: units / parts, rest: units % parts }
    }

    /// Returns the number of elements that a block of scratch has room for: that of the largest
    /// part.
    pub fn scratch_block_elems(&self) -> u64 {
        self.range(0, 0, 1).1
    }

    /// Returns the distance in elements from one block of an inbox to the next, in a window:
    /// aligned, for the largest part.
    pub fn inbox_block_elems(&self, window: u64) -> u64 {
        self.range(window, 0, 1).1.next_multiple_of(self.align_elems)
    }

    /// Returns the number of windows.
    #[inline]
    pub fn windows(&self) -> u64 {
        if self.block_elems <= self.window_elems {
            // The common case, without a division.
            return self.block_elems.min(1);
        }
        self.block_elems.div_ceil(self.window_elems)
    }

    /// Returns the first element of a window.
    #[inline]
    pub fn window_start(&self, window: u64) -> u64 {
        window * self.window_elems
    }

    /// Returns the offset within the window and the length, in elements, of `parts` parts from
    /// `part` on.
    #[inline]
    pub fn range(&self, window: u64, part: u32, parts: u32) -> (u64, u64) {
        let start = self.window_start(window);
        let len = self.block_elems.saturating_sub(start).min(self.window_elems);
        if self.parts == 1 {
            return (0, len);
        }
        let cut = if len == self.first.len { self.first } else { self.cut(len) };
        let bound = |p: u64| (p * cut.share + p.min(cut.rest)) * self.align_elems;
        let first = bound(u64::from(part)).min(len);
        let last = bound(u64::from(part + parts)).min(len);
        (first, last - first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_an_inbox_lie_side_by_side_and_none_is_its_owners() {
        for nranks in 2..9 {
            for owner in 0..nranks {
                let written = (0..3 * nranks).filter(|block| block % nranks != owner);
                let mut places: Vec<_> =
                    written.map(|block| inbox_place(block, owner, nranks)).collect();
                places.sort_unstable();
                assert!(places.iter().copied().eq(0..3 * (nranks - 1)));
            }
        }
    }

    const LAYOUT: Layout = Layout {
        parts: 3,
        stage_blocks: 1,
        scratch_blocks: 0,
        inbox_blocks: 2,
        message_parts: 1,
        signals: 1,
        done_signal: 2,
        user_memory: UserMemory::Private,
        rounds: 1,
        scratch_windows: 1,
    };

    #[test]
    fn all_rounds_of_all_windows_come_once_and_in_turns() {
        for (windows, rounds) in
            (0..30u64).flat_map(|w| (1..=MAX_ROUNDS as u32).map(move |r| (w, r)))
        {
            let order: Vec<_> = std::iter::successors(next_round(None, windows, rounds), |&last| {
                next_round(Some(last), windows, rounds)
            })
            .collect();
            let turn = |&(window, round): &(u64, u32)| {
                (window + u64::from(round) * ROUND_TURNS as u64, window)
            };
            assert!(order.iter().map(turn).is_sorted(), "{order:?}");
            let mut all: Vec<_> =
                (0..windows).flat_map(|w| (0..rounds).map(move |r| (w, r))).collect();
            all.sort_by_key(turn);
            assert_eq!(order, all);
            let begins = |w: u64| order.iter().position(|at| *at == (w, 0)).unwrap();
            let ends = |w: u64| order.iter().position(|at| *at == (w, rounds - 1)).unwrap();
            let later = u64::from(overlapping(rounds));
            assert!((0..windows.saturating_sub(later)).all(|w| ends(w) < begins(w + later)));
        }
    }

    #[test]
    fn messages_of_large_calls_are_larger_where_windows_overlap() {
        let layout = Layout { parts: 2, stage_blocks: 0, inbox_blocks: 0, ..LAYOUT };
        let (edge_slot_elems, message_elems) = (512, 64);
        let room = Capacity { edge_slot_elems, message_elems, stage_slot_elems: 0, align_elems: 4 };
        let cut = |count, rounds| {
            let geometry = Geometry::new(&Layout { rounds, ..layout }, count, &room);
            (geometry.range(0, 0, 1).1, geometry.windows())
        };
        for (count, message, windows) in [
            (8, 4, 1),
            (128, 64, 1),
            (512, 64, 4),
            (1024, 128, 4),
            (4096, 512, 4),
            (1 << 14, 512, 16),
        ] {
            assert_eq!(cut(count, 3), (message, windows), "{count}");
            assert_eq!(cut(count, 1), (message.min(64), count.div_ceil(128)), "{count}");
        }
        assert_eq!(cut(u64::MAX, 3).0, 512);
    }

    #[test]
    fn parts_cover_every_element_once_and_fit_the_slots() {
        for (align, rounds) in [(1, 1), (4, 1), (16, 1), (1, 3), (4, 3), (16, 3)] {
            let (edge_slot_elems, message_elems) = (32, 16);
            let room = Capacity {
                edge_slot_elems,
                message_elems,
                stage_slot_elems: 80,
                align_elems: align,
            };
            let layout = Layout { rounds, ..LAYOUT };
            let most = if rounds == 1 { message_elems } else { edge_slot_elems };
            for count in 0..400 {
                let geometry = Geometry::new(&layout, count, &room);
                let mut next = 0;
                for window in 0..geometry.windows() {
                    for part in 0..geometry.parts {
                        let (offset, len) = geometry.range(window, part, 1);
                        assert!(len <= most, "{geometry:?}");
                        assert!(len <= geometry.scratch_block_elems(), "{geometry:?}");
                        assert!(offset + len <= room.stage_slot_elems);
                        assert_eq!(geometry.window_start(window) + offset, next);
                        next += len;
                    }
                    let inbox = geometry.inbox_block_elems(window);
                    assert!(inbox >= geometry.range(window, 0, 1).1);
                    assert!(inbox * 2 <= room.stage_slot_elems, "{geometry:?}");
                    let (_, all) = geometry.range(window, 0, geometry.parts);
                    assert_eq!(geometry.window_start(window) + all, next);
                }
                assert_eq!(next, count);
            }
        }
    }
}
