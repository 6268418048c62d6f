//! The language of plans: operations over pieces of buffers, and the geometry that gives a piece
//! its elements when a call is bound to a program.
//!
//! A buffer is made of equal *blocks* (all-reduce: one, all-gather's output: one per rank). A call
//! passes over the blocks in *windows* that fit the slots of staging memory and edges; in each
//! window a block is cut into *parts*. A program is run once per window. All ranks cut alike, so
//! both ends of an edge know the length of what crosses it, and nothing crosses for no elements.

/// Which memory a slice lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Buffer {
    /// The caller's send buffer.
    Input = 0,
    /// The caller's receive buffer.
    Output = 1,
    /// Memory of this rank alone, each block as large as a part: a slice of it is one part,
    /// whichever, and lies at the start of its block.
    Scratch = 2,
    /// Memory that all direct peers may read, one window large, in two slots used in turn.
    Stage = 3,
    /// The stage's slots where the peers may write: each block is as large as a part, as in
    /// scratch, and has one writer. Block `g · ranks + p` is rank p's, the g-th of its blocks here.
    Inbox = 4,
}

impl Buffer {
    /// All of them, by number.
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
    /// One part of a block.
    pub const fn part(buffer: Buffer, block: u32, part: u32) -> Self {
        Self { buffer, block, part, parts: 1 }
    }

    /// A block of a plan that does not cut its blocks into parts.
    pub const fn block(buffer: Buffer, block: u32) -> Self {
        Self::part(buffer, block, 0)
    }
}

/// In which order the two operands of a fold stand: floating-point results depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// What came over the edge first.
    IncomingFirst,
    /// What this rank holds first.
    LocalFirst,
}

/// Whom a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum From {
    /// Every other rank.
    All,
    /// One rank.
    One(u32),
}

/// Where the result of [`Op::Reduce`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// A slice of this rank.
    Own(Slice),
    /// Two slices of this rank.
    Both(Slice, Slice),
    /// The same slice of one rank's user memory.
    Peer(u32, Slice),
    /// The same slice of every rank's user memory, this one's included.
    Everyone(Slice),
    /// A slice of this rank, and the same slice of every other rank's inbox.
    Inboxes(Slice, Slice),
}

/// One operation. `finish` marks the fold that completes a reduction: there avg divides, before
/// the one rounding to the element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Copy within this rank.
    Copy {
        /// What is copied.
        src: Slice,
        /// Where to.
        dst: Slice,
    },
    /// Put a slice on the edge to a peer; waits for a free slot of the edge.
    Send {
        /// Whom to.
        peer: u32,
        /// What.
        src: Slice,
    },
    /// Take the next message of the edge from a peer.
    Recv {
        /// Whom from.
        peer: u32,
        /// Where to.
        dst: Slice,
    },
    /// Take the next message of the edge from a peer and fold it with a local slice.
    RecvReduce {
        /// Whom from.
        peer: u32,
        /// The local operand.
        local: Slice,
        /// Where the result goes (rounded to the element type).
        dst: Slice,
        /// Which operand is the left one.
        order: Order,
        /// Whether this completes the reduction.
        finish: bool,
    },
    /// Wait until every peer has finished reading what this rank had published in the stage slot
    /// that this window uses, and what it had been sent there.
    Acquire,
    /// Count one up where all peers can see it: all that this rank did before is visible to whom
    /// waits for it.
    Signal,
    /// Wait until the peers have signalled `signal` times in this window.
    Wait {
        /// Whom for.
        from: From,
        /// Which signal of the window, counted from 1.
        signal: u32,
    },
    /// Copy from a peer's stage or user memory.
    Get {
        /// Whose memory.
        peer: u32,
        /// What, in the peer's memory.
        src: Slice,
        /// Where to, in this rank's.
        dst: Slice,
    },
    /// Copy to a peer's inbox.
    Put {
        /// Whose inbox.
        peer: u32,
        /// What, in this rank's memory.
        src: Slice,
        /// Where to, in the peer's.
        dst: Slice,
    },
    /// Fold the slices of all ranks in rank order, in the accumulation type, rounding once.
    Reduce {
        /// What is read at the other ranks; of scratch and the inbox, the p-th block of this rank's
        /// own from there on stands for rank p.
        src: Slice,
        /// What is read at this one.
        own: Slice,
        /// Where the result goes.
        dst: Destination,
        /// Whether this completes the reduction.
        finish: bool,
    },
}

/// What one rank does in each window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The operations, in order.
    pub ops: Vec<Op>,
}

/// How ranks access each other's user memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UserMemory {
    /// Not at all.
    Private,
    /// They read it: it has to be mapped, or the system has to copy from it.
    Read,
    /// They write it too: it has to be mapped.
    Written,
}

/// The facts about a plan that all its programs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Parts that a block is cut into in each window.
    pub parts: u32,
    /// Blocks of the stage; 0 when the plan does not use the stage.
    pub stage_blocks: u32,
    /// Blocks of scratch.
    pub scratch_blocks: u32,
    /// Blocks that the peers write into a rank's inbox; 0 when the plan does not use it. A plan
    /// uses the stage's slots in one way.
    pub inbox_blocks: u32,
    /// The most parts that one message on an edge carries; 0 when the plan uses no edges.
    pub message_parts: u32,
    /// Signals of each rank in each window.
    pub signals: u32,
    /// The signal, counted from the start of a window, by which a peer has surely read what was
    /// published in it; `signals + 1` is the first of the next window.
    pub done_signal: u32,
    /// How ranks access each other's user memory; such a plan has one window, unless
    /// it copies to scratch.
    pub user_memory: UserMemory,
}

impl Layout {
    /// Whether windows take the stage's slots in turn.
    pub const fn uses_slots(&self) -> bool {
        self.stage_blocks > 0 || self.inbox_blocks > 0
    }
}

/// Where a block of an inbox lies, as a number of blocks: those of its owner itself, which nobody
/// writes, take no room.
pub const fn inbox_place(block: u32, owner: u32, nranks: u32) -> u32 {
    let (group, writer) = (block / nranks, block % nranks);
    group * (nranks - 1) + (writer + nranks - owner - 1) % nranks
}

/// The room that a communicator has for a plan, in elements of the call's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Elements in one slot of an edge.
    pub edge_slot_elems: u64,
    /// Elements in one slot of a rank's stage.
    pub stage_slot_elems: u64,
    /// Part boundaries fall on multiples of this (a power of two).
    pub align_elems: u64,
}

/// How a block of `block_elems` elements is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Elements of a block: the count of the call.
    pub block_elems: u64,
    /// Parts per window.
    pub parts: u32,
    /// Elements of a block in each window but the last.
    pub window_elems: u64,
    /// Part boundaries fall on multiples of this.
    pub align_elems: u64,
}

/// At most `elems`, of which `blocks` fit so much room.
fn share(elems: u64, room: u64, blocks: u32) -> u64 {
    let blocks = u64::from(blocks);
    // Small calls fit, and divide nothing.
    if elems.checked_mul(blocks).is_some_and(|all| all <= room) { elems } else { room / blocks }
}

impl Geometry {
    /// Cuts a call of `count` elements per block so that a plan of this layout fits `room`.
    pub fn new(layout: &Layout, count: u64, room: &Capacity) -> Self {
        let parts = u64::from(layout.parts);
        let align = room.align_elems;
        let mut window = count.max(1);
        if layout.user_memory == UserMemory::Private || layout.scratch_blocks > 0 {
            if layout.stage_blocks > 0 {
                window = share(window, room.stage_slot_elems, layout.stage_blocks);
            }
            if layout.user_memory != UserMemory::Private {
                // What is copied from the others should still be in the cache when it is folded.
                window = share(window, room.stage_slot_elems, layout.scratch_blocks);
            }
            if layout.inbox_blocks > 0 {
                let part = room.stage_slot_elems / u64::from(layout.inbox_blocks);
                window = window.min((part / align * align).max(1) * parts);
            }
            if layout.message_parts > 0 {
                let part = room.edge_slot_elems / u64::from(layout.message_parts);
                window = window.min((part / align * align).max(1) * parts);
            }
        }
        let unit = parts * align;
        if window < count && window > unit {
            window = window / unit * unit;
        }
        Self {
            block_elems: count,
            parts: layout.parts,
            window_elems: window.max(1),
            align_elems: align,
        }
    }

    /// Elements that a block of scratch has room for: the largest part's.
    pub fn scratch_block_elems(&self) -> u64 {
        self.range(0, 0, 1).1
    }

    /// Elements from one block of an inbox to the next, in a window: aligned, for the largest part.
    pub fn inbox_block_elems(&self, window: u64) -> u64 {
        self.range(window, 0, 1).1.next_multiple_of(self.align_elems)
    }

    /// Number of windows.
    pub fn windows(&self) -> u64 {
        if self.block_elems <= self.window_elems {
            // The common case, without a division.
            return self.block_elems.min(1);
        }
        self.block_elems.div_ceil(self.window_elems)
    }

    /// First element of a window.
    pub fn window_start(&self, window: u64) -> u64 {
        window * self.window_elems
    }

    /// Offset within the window and length, in elements, of `parts` parts from `part` on.
    pub fn range(&self, window: u64, part: u32, parts: u32) -> (u64, u64) {
        let start = self.window_start(window);
        let len = self.block_elems.saturating_sub(start).min(self.window_elems);
        if self.parts == 1 {
            return (0, len);
        }
        // Whole aligned units dealt out evenly, so that no part is more than a unit larger than
        // another and small calls still occupy as many parts as there are units.
        let units = len.div_ceil(self.align_elems);
        let (share, rest) = (units / u64::from(self.parts), units % u64::from(self.parts));
        let bound = |p: u64| (p * share + p.min(rest)) * self.align_elems;
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
    };

    #[test]
    fn parts_cover_every_element_once_and_fit_the_slots() {
        for align in [1, 4, 16] {
            let room = Capacity { edge_slot_elems: 32, stage_slot_elems: 80, align_elems: align };
            for count in 0..400 {
                let geometry = Geometry::new(&LAYOUT, count, &room);
                let mut next = 0;
                for window in 0..geometry.windows() {
                    for part in 0..geometry.parts {
                        let (offset, len) = geometry.range(window, part, 1);
                        assert!(len <= room.edge_slot_elems, "{geometry:?}");
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
