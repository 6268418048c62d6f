//! The registry of a rank's buffers that its peers map, with the state of each. Peers map buffers
//! in the background, so a buffer is used in place only once all peers have said that they have
//! mapped it. A number is used again only once all peers have said that they have unmapped its
//! buffer.

use oxccl_kernels::abi;

/// The state of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No buffer has this number.
    Free,
    /// The buffer is to be offered to the peers.
    Wanted,
    /// The buffer was offered, and some peers have not answered.
    Offered {
        /// A bit per peer that has not answered.
        missing: u32,
        /// True if a peer could not map the buffer.
        refused: bool,
    },
    /// All peers have mapped the buffer.
    Ready,
    /// The buffer cannot be mapped by all peers.
    Refused,
    /// The buffer is to be taken back once no operation that uses it runs.
    Leaving,
    /// The buffer was taken back, and some peers may still have it mapped.
    Withdrawn {
        /// A bit per peer that may still have it mapped.
        missing: u32,
    },
}

/// A registered buffer.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// The address of the buffer.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// The generation of the buffer: the count of buffers that have had this number, from 1.
    pub generation: u64,
    /// The number of the buffer among the communicator's windows, from 1; 0 if it is no window.
    pub window: u64,
    /// The state of the buffer.
    pub state: State,
    holders: u32,
}

impl Buffer {
    fn holds(&self, at: u64, bytes: u64) -> bool {
        at >= self.base && at - self.base <= self.len && bytes <= self.len - (at - self.base)
    }
}

/// A part of a buffer that is memory of one allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The address of the part.
    pub at: u64,
    /// The allocation's number at the driver, if there is one: addresses are used again.
    pub id: Option<u64>,
}

/// Returns the pieces of the allocations that a range lies across, at most `most` of them. `look`
/// returns the number and the end of the allocation at an address.
pub fn pieces(
    base: u64,
    len: u64,
    most: usize,
    look: impl Fn(u64) -> (Option<u64>, Option<u64>),
) -> Vec<Piece> {
    let (mut at, mut all) = (base, Vec::new());
    while all.len() < most {
        let (id, end) = look(at);
        all.push(Piece { at, id });
        match end {
            Some(end) if end > at && end < base.saturating_add(len) => at = end,
            _ => break,
        }
    }
    all
}

/// Returns whether the memory is still that which was registered.
pub fn unchanged(pieces: &[Piece], id_of: impl Fn(u64) -> Option<u64>) -> bool {
    pieces.iter().all(|piece| id_of(piece.at) == piece.id)
}

/// The name of a buffer: numbers are used again, so they do not suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The number of the buffer.
    pub number: u32,
    /// The generation of the buffer.
    pub generation: u64,
}

/// A buffer that holds a range.
#[derive(Clone, Debug)]
pub struct Found {
    /// The name of the buffer.
    pub key: Key,
    /// The buffer in its present state.
    pub buffer: Buffer,
    /// The registered pieces of the buffer in which the range lies.
    pub pieces: Vec<Piece>,
}

const NONE: Buffer =
    Buffer { base: 0, len: 0, generation: 0, window: 0, state: State::Free, holders: 0 };

/// The buffers of a rank by number; the first is what the rank makes on demand.
pub struct Registry {
    buffers: Vec<Buffer>,
    /// The pieces of each buffer as they were registered, by address.
    pieces: Vec<Vec<Piece>>,
    /// A bit per peer.
    peers: u32,
}

impl Registry {
    /// Creates a registry without buffers.
    pub fn new(rank: u32, nranks: u32) -> Self {
        let peers = ((1u64 << nranks) - 1) as u32 & !(1 << rank);
        let pieces = vec![Vec::new(); abi::BUFFERS];
        Self { buffers: vec![NONE; abi::BUFFERS], pieces, peers }
    }

    /// Returns the buffer of a number, which is within bounds.
    pub fn get(&self, number: u32) -> Buffer {
        self.buffers[number as usize]
    }

    /// Returns the numbers of the buffers whose state `wanted` accepts.
    pub fn all(&self, wanted: impl Fn(State) -> bool) -> Vec<u32> {
        let numbered = self.buffers.iter().zip(0u32..);
        numbered.filter(|(buffer, _)| wanted(buffer.state)).map(|(_, number)| number).collect()
    }

    /// Returns the living buffer that holds a range. A ready buffer is preferred to one that is
    /// being offered, and that one to a refused one; among equals a window is preferred.
    pub fn find(&self, at: u64, bytes: u64) -> Option<Found> {
        let rank = |b: &Buffer| match b.state {
            State::Ready => Some(0),
            State::Wanted | State::Offered { .. } => Some(1),
            State::Refused => Some(2),
            _ => None,
        };
        let users = self.buffers.iter().zip(0u32..).skip(1);
        let living = users.filter(|(b, _)| b.holds(at, bytes));
        let ranked = living.filter_map(|(&buffer, number)| Some((rank(&buffer)?, buffer, number)));
        // The order in which `window` finds buffers.
        let order =
            |(rank, b, number): &(u32, Buffer, u32)| (*rank, b.window == 0, b.window, *number);
        let (_, buffer, number) = ranked.min_by_key(order)?;
        let key = Key { number, generation: buffer.generation };
        Some(Found { key, buffer, pieces: self.touched(number, at, bytes) })
    }

    /// Returns the pieces of a buffer in which a range lies.
    fn touched(&self, number: u32, at: u64, bytes: u64) -> Vec<Piece> {
        let all = &self.pieces[number as usize];
        let first = all.partition_point(|piece| piece.at <= at).saturating_sub(1);
        let end = all.partition_point(|piece| piece.at < at.saturating_add(bytes));
        all.get(first..end).unwrap_or_default().to_vec()
    }

    /// Returns all living buffers of users, with their pieces as they were registered.
    pub fn living(&self) -> Vec<(Key, Vec<Piece>)> {
        let gone = |state| matches!(state, State::Free | State::Leaving | State::Withdrawn { .. });
        let users = self.buffers.iter().zip(0u32..).skip(1).filter(|(b, _)| !gone(b.state));
        let named = users.map(|(b, number)| {
            let key = Key { number, generation: b.generation };
            (key, self.pieces[number as usize].clone())
        });
        named.collect()
    }

    /// Returns the first window that holds a range and that all peers have mapped.
    pub fn window(&self, at: u64, bytes: u64) -> Option<Buffer> {
        let all = self.buffers.iter().filter(|b| b.window > 0 && b.state == State::Ready);
        all.copied().filter(|b| b.holds(at, bytes)).min_by_key(|b| b.window)
    }

    /// Registers a range, to be mapped by the peers, or adds a holder to the buffer that is this
    /// range already. `None` when all numbers are taken.
    pub fn hold(&mut self, base: u64, len: u64, pieces: Vec<Piece>) -> Option<Key> {
        let known = &self.pieces;
        let same = |b: &Buffer, number: u32| {
            (b.base, b.len) == (base, len) && b.holders > 0 && known[number as usize] == pieces
        };
        match self.buffers.iter_mut().zip(0u32..).skip(1).find(|(b, number)| same(b, *number)) {
            Some((buffer, number)) => {
                buffer.holders += 1;
                Some(Key { number, generation: buffer.generation })
            }
            None => self.hold_window(base, len, pieces, 0),
        }
    }

    /// Registers a range as the window of this number, with one holder; `None` when all numbers are
    /// taken.
    pub fn hold_window(
        &mut self,
        base: u64,
        len: u64,
        pieces: Vec<Piece>,
        window: u64,
    ) -> Option<Key> {
        let mut users = self.buffers.iter_mut().zip(0u32..).skip(1);
        let (buffer, number) = users.find(|(b, _)| b.state == State::Free)?;
        let (generation, state) = (buffer.generation + 1, State::Wanted);
        *buffer = Buffer { base, len, generation, window, state, holders: 1 };
        self.pieces[number as usize] = pieces;
        Some(Key { number, generation })
    }

    /// Registers what was made on demand, to be mapped by the peers; it stays registered.
    pub fn hold_on_demand(&mut self, base: u64, len: u64) {
        let state = State::Wanted;
        self.buffers[abi::ON_DEMAND_BUFFER as usize] =
            Buffer { base, len, generation: 1, window: 0, state, holders: 1 };
    }

    /// Returns the buffer of this name, if it still exists.
    fn named(&mut self, key: Key) -> Option<&mut Buffer> {
        let buffer = self.buffers.get_mut(key.number as usize)?;
        (buffer.generation == key.generation).then_some(buffer)
    }

    /// Removes one holder of a buffer; the buffer is taken back with the last one.
    pub fn release(&mut self, key: Key) {
        let Some(buffer) = self.named(key).filter(|buffer| buffer.holders > 0) else { return };
        buffer.holders -= 1;
        if buffer.holders == 0 {
            self.leave(key.number);
        }
    }

    /// Takes a buffer back, whoever holds it.
    pub fn take_back(&mut self, key: Key) {
        if self.named(key).is_some() {
            self.leave(key.number);
        }
    }

    fn leave(&mut self, number: u32) {
        let buffer = &mut self.buffers[number as usize];
        buffer.holders = 0;
        buffer.state = match buffer.state {
            // No peer has heard of the buffer.
            State::Wanted => State::Free,
            State::Offered { .. } | State::Ready | State::Refused => State::Leaving,
            state => state,
        };
    }

    /// Takes back all buffers that touch a range of memory that is gone.
    pub fn forget(&mut self, base: u64, len: u64) {
        for number in 1..abi::BUFFERS as u32 {
            let buffer = self.get(number);
            if buffer.base < base + len && base < buffer.base + buffer.len {
                self.leave(number);
            }
        }
    }

    /// Notes that a buffer was offered to all peers, or that it cannot be. Another buffer that has
    /// got the same number meanwhile is offered later, and takes the place of this one at the
    /// peers.
    pub fn offered(&mut self, key: Key, told: bool) {
        let missing = self.peers;
        let Some(buffer) = self.named(key) else { return };
        buffer.state = match (buffer.state, told) {
            (State::Wanted, true) => State::Offered { missing, refused: false },
            (State::Wanted, false) => State::Refused,
            // The buffer was taken back while it was offered: the peers have to unmap it.
            (State::Free, true) => State::Leaving,
            (state, _) => state,
        };
    }

    /// Notes that a peer has mapped a buffer or cannot; returns true if all peers have it mapped
    /// now.
    pub fn answered(&mut self, key: Key, peer: u32, has: bool) -> bool {
        let Some(buffer) = self.named(key) else { return false };
        let State::Offered { missing, refused } = buffer.state else { return false };
        let (missing, refused) = (missing & !(1 << peer), refused || !has);
        buffer.state = match (missing, refused) {
            (0, false) => State::Ready,
            (0, true) => State::Refused,
            _ => State::Offered { missing, refused },
        };
        buffer.state == State::Ready
    }

    /// Returns the buffers that are to be taken back. They are not found any more; the caller
    /// withdraws them when no operation that may use them runs.
    pub fn leaving(&mut self) -> Vec<Key> {
        let mut keys = Vec::new();
        for (buffer, number) in self.buffers.iter_mut().zip(0u32..) {
            if buffer.state == State::Leaving {
                buffer.state = State::Withdrawn { missing: self.peers };
                keys.push(Key { number, generation: buffer.generation });
            }
        }
        keys
    }

    /// Notes that a peer has unmapped a buffer.
    pub fn returned(&mut self, key: Key, peer: u32) {
        let Some(buffer) = self.named(key) else { return };
        let State::Withdrawn { missing } = buffer.state else { return };
        let missing = missing & !(1 << peer);
        buffer.state = if missing == 0 { State::Free } else { State::Withdrawn { missing } };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PEERS: [u32; 3] = [0, 2, 3];

    /// Returns the piece of one allocation.
    fn piece(at: u64, id: u64) -> Vec<Piece> {
        vec![Piece { at, id: Some(id) }]
    }

    #[test]
    fn a_buffer_is_ready_when_all_peers_have_it_and_its_number_is_free_when_none_has() {
        let mut registry = Registry::new(1, 4);
        let key = registry.hold(0x1000, 64, piece(0x1000, 7)).unwrap();
        assert_eq!(registry.hold(0x1000, 64, piece(0x1000, 7)), Some(key), "held twice");
        let found = registry.find(0x1010, 48).unwrap();
        assert_eq!((found.key, found.buffer.base), (key, 0x1000));
        assert!(registry.find(0x1010, 49).is_none());
        registry.offered(key, true);
        for peer in [0, 3, 3] {
            assert!(!registry.answered(key, peer, true));
        }
        let other = Key { generation: 2, ..key };
        assert!(!registry.answered(other, 2, true), "another generation");
        assert!(registry.answered(key, 2, true));
        registry.release(key);
        assert_eq!(registry.get(key.number).state, State::Ready, "it is held still");
        registry.release(other);
        assert_eq!(registry.get(key.number).state, State::Ready, "another generation");
        registry.release(key);
        assert_eq!(registry.get(key.number).state, State::Leaving);
        assert!(registry.find(0x1000, 1).is_none());
        // The same range gets another number while the old buffer is on its way out.
        assert_ne!(registry.hold(0x1000, 64, piece(0x1000, 7)).unwrap().number, key.number);
        assert_eq!(registry.leaving(), [key]);
        assert_eq!(registry.leaving(), []);
        for peer in PEERS {
            assert_ne!(registry.get(key.number).state, State::Free);
            registry.returned(key, peer);
        }
        assert_eq!(registry.get(key.number).state, State::Free);
        assert_eq!(registry.hold(0x9000, 64, piece(0x9000, 8)), Some(other));
        registry.release(key);
        assert_eq!(
            registry.get(key.number).state,
            State::Wanted,
            "not what the old one's holder had"
        );
    }

    #[test]
    fn a_window_is_found_by_what_lies_within_it_once_all_peers_have_it() {
        let mut registry = Registry::new(0, 2);
        registry.hold(0x1000, 64, piece(0x1000, 7)).unwrap();
        let key = registry.hold_window(0x1000, 64, piece(0x1000, 7), 3).unwrap();
        for number in registry.all(|state| state == State::Wanted) {
            assert!(registry.window(0x1000, 64).is_none());
            let key = Key { number, generation: 1 };
            registry.offered(key, true);
            registry.answered(key, 1, true);
        }
        let found = registry.window(0x1010, 48).map(|buffer| (buffer.base, buffer.window));
        assert_eq!(found, Some((0x1000, 3)), "not the buffer at the same place");
        assert_eq!(registry.find(0x1010, 48).map(|found| found.key), Some(key), "the same");
        assert!(registry.window(0x1010, 49).is_none());
        registry.release(key);
        assert!(registry.window(0x1000, 64).is_none());
    }

    #[test]
    fn what_one_peer_cannot_map_is_never_ready_and_is_taken_back_all_the_same() {
        let mut registry = Registry::new(0, 3);
        let key = registry.hold(0x1000, 64, piece(0x1000, 1)).unwrap();
        registry.offered(key, true);
        assert!(!registry.answered(key, 2, false));
        assert!(!registry.answered(key, 1, true));
        assert_eq!(registry.get(key.number).state, State::Refused);
        registry.forget(0x103f, 100);
        assert_eq!(registry.get(key.number).state, State::Leaving);
        let unheard = registry.hold(0x5000, 64, piece(0x5000, 2)).unwrap();
        registry.release(unheard);
        assert_eq!(registry.get(unheard.number).state, State::Free, "nobody had heard of it");
        let raced = registry.hold(0x5000, 64, piece(0x5000, 2)).unwrap();
        registry.release(raced);
        registry.offered(raced, true);
        assert_eq!(registry.get(raced.number).state, State::Leaving, "while it was offered");
    }

    #[test]
    fn a_buffer_that_got_the_number_of_one_that_was_just_being_offered_is_offered_itself() {
        let mut registry = Registry::new(0, 2);
        let first = registry.hold(0x1000, 64, piece(0x1000, 1)).unwrap();
        registry.release(first);
        let second = registry.hold(0x2000, 64, piece(0x2000, 2)).unwrap();
        assert_eq!(first.number, second.number);
        registry.offered(first, true);
        assert_eq!(registry.get(second.number).state, State::Wanted);
        assert!(!registry.answered(first, 1, true));
    }

    #[test]
    fn numbers_run_out_and_come_back() {
        let mut registry = Registry::new(0, 2);
        let held: Vec<Key> = (1..abi::BUFFERS as u64)
            .map(|i| registry.hold(i << 20, 64, piece(i << 20, i)).unwrap())
            .collect();
        assert!(held.iter().all(|key| key.number != abi::ON_DEMAND_BUFFER));
        assert_eq!(registry.hold(1, 64, piece(1, 0)), None);
        registry.release(held[9]);
        assert_eq!(registry.hold(1, 64, piece(1, 0)).unwrap().number, held[9].number);
    }

    /// Allocations by address, with their bytes and numbers, as the driver knows them.
    struct Memory(BTreeMap<u64, (u64, u64)>);

    impl Memory {
        fn at(&self, at: u64) -> Option<(u64, u64)> {
            let (start, &(bytes, id)) = self.0.range(..=at).next_back()?;
            (at < start + bytes).then_some((id, start + bytes))
        }

        fn look(&self, at: u64) -> (Option<u64>, Option<u64>) {
            self.at(at).unzip()
        }

        fn id_of(&self, at: u64) -> Option<u64> {
            self.look(at).0
        }
    }

    #[test]
    fn a_piece_that_is_mapped_anew_is_noticed_by_who_touches_it_and_by_who_looks_at_all() {
        let pages = (0..5u64).map(|i| (0x10_0000 + i * 0x1000, (0x1000, 100 + i)));
        let mut memory = Memory(pages.collect());
        // The buffer begins and ends within an allocation.
        let (base, len) = (0x10_0800, 0x3800);
        let all = pieces(base, len, 64, |at| memory.look(at));
        let seen: Vec<_> = all.iter().map(|piece| (piece.at, piece.id)).collect();
        let id = |i: u64| Some(100 + i);
        let starts = [base, 0x10_1000, 0x10_2000, 0x10_3000];
        assert_eq!(seen, starts.into_iter().zip((0..4).map(id)).collect::<Vec<_>>());
        assert_eq!(pieces(base, len, 2, |at| memory.look(at)), all[..2]);
        let mut registry = Registry::new(0, 2);
        let key = registry.hold(base, len, all.clone()).unwrap();
        assert_eq!(registry.hold(base, len, all.clone()), Some(key), "the same memory");
        let current = |registry: &Registry, memory: &Memory, at, bytes| {
            let found = registry.find(at, bytes).expect("it is registered");
            unchanged(&found.pieces, |at| memory.id_of(at))
        };
        assert_eq!(registry.find(0x10_1800, 0x1000).map(|found| found.pieces.len()), Some(2));
        assert_eq!(registry.find(0x10_1000, 0x1000).map(|found| found.pieces.len()), Some(1));
        assert!(current(&registry, &memory, base, len));
        memory.0.insert(0x10_2000, (0x1000, 200));
        assert!(!current(&registry, &memory, base, len), "the first piece is what it was");
        assert!(!current(&registry, &memory, 0x10_2fff, 1));
        assert!(current(&registry, &memory, 0x10_1000, 0x1000), "another piece");
        let again = pieces(base, len, 64, |at| memory.look(at));
        assert_ne!(registry.hold(base, len, again), Some(key), "other memory");
        let stale = |registry: &Registry, memory: &Memory| -> Vec<Key> {
            let changed = |all: &[Piece]| !unchanged(all, |at| memory.id_of(at));
            let living = registry.living().into_iter();
            living.filter(|(_, all)| changed(all)).map(|(key, _)| key).collect()
        };
        assert_eq!(stale(&registry, &memory), [key]);
        registry.take_back(key);
        assert_eq!(stale(&registry, &memory), []);
        memory.0.remove(&0x10_3000);
        assert_eq!(stale(&registry, &memory).len(), 1, "what is freed, and never called with");
    }
}
