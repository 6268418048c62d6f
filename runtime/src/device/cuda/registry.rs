//! A rank's buffers that its peers map: which there are, and how far each has come. Peers map them in
//! the background, so a buffer is used in place only once all of them have said that they have it;
//! a number is given again only once all have said that they have let it go.

use oxccl_kernels::abi;

/// How far a buffer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is none of this number.
    Free,
    /// To be offered to the peers.
    Wanted,
    /// The peers of this set have not answered; whether one of the others has refused.
    Offered {
        /// A bit per rank.
        missing: u32,
        /// Whether a peer could not map it.
        refused: bool,
    },
    /// All peers have mapped it.
    Ready,
    /// Not to be had by all peers.
    Refused,
    /// To be taken back, when no operation runs that uses it.
    Leaving,
    /// The peers of this set may have it mapped still.
    Withdrawn {
        /// A bit per rank.
        missing: u32,
    },
}

/// A buffer.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Its address.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// Which one of this number it is, from 1.
    pub generation: u64,
    /// The allocation's number at the driver: an address may be given again.
    pub id: u64,
    /// How far it has come.
    pub state: State,
    holders: u32,
}

const NONE: Buffer =
    Buffer { base: 0, len: 0, generation: 0, id: 0, state: State::Free, holders: 0 };

/// The buffers of a rank by number; the first is the rank's large stage.
pub struct Registry {
    buffers: Vec<Buffer>,
    /// A bit per rank.
    peers: u32,
}

impl Registry {
    /// With no buffer yet.
    pub fn new(rank: u32, nranks: u32) -> Self {
        let peers = ((1u64 << nranks) - 1) as u32 & !(1 << rank);
        Self { buffers: vec![NONE; abi::BUFFERS], peers }
    }

    /// The buffer of a number, which is within bounds.
    pub fn get(&self, number: u32) -> Buffer {
        self.buffers[number as usize]
    }

    /// Numbers of the buffers in a state that `wanted` accepts.
    pub fn all(&self, wanted: impl Fn(State) -> bool) -> Vec<u32> {
        let numbered = self.buffers.iter().zip(0u32..);
        numbered.filter(|(buffer, _)| wanted(buffer.state)).map(|(_, number)| number).collect()
    }

    /// Whether there is something to do before long.
    pub fn waits(&self) -> bool {
        let settled = |state| matches!(state, State::Free | State::Ready | State::Refused);
        self.buffers.iter().any(|buffer| !settled(buffer.state))
    }

    /// The living buffer that holds a range, and where in it that begins. One that is settled
    /// goes before one that is under way.
    pub fn find(&self, at: u64, bytes: u64) -> Option<(u32, u64)> {
        let holds =
            |b: &Buffer| at >= b.base && at - b.base <= b.len && bytes <= b.len - (at - b.base);
        let rank = |b: &Buffer| match b.state {
            State::Ready => Some(0),
            State::Wanted | State::Offered { .. } => Some(1),
            State::Refused => Some(2),
            _ => None,
        };
        let users = self.buffers.iter().zip(0u32..).skip(1);
        let living =
            users.filter(|(b, _)| holds(b)).filter_map(|(b, n)| Some((rank(b)?, n, at - b.base)));
        living.min().map(|(_, number, offset)| (number, offset))
    }

    /// Has a range mapped by the peers, or one more holder keep it; None when all numbers are taken.
    pub fn hold(&mut self, base: u64, len: u64, id: u64) -> Option<u32> {
        let same = |b: &Buffer| (b.base, b.len, b.id) == (base, len, id) && b.holders > 0;
        let known = self.buffers.iter().skip(1).position(same);
        let free = || self.buffers.iter().skip(1).position(|b| b.state == State::Free);
        let number = known.or_else(free)? + 1;
        let buffer = &mut self.buffers[number];
        if buffer.state == State::Free {
            let generation = buffer.generation + 1;
            *buffer = Buffer { base, len, generation, id, state: State::Wanted, holders: 0 };
        }
        buffer.holders += 1;
        Some(number as u32)
    }

    /// Has the large stage mapped by the peers; it stays.
    pub fn hold_stage(&mut self, base: u64, len: u64) {
        let state = State::Wanted;
        self.buffers[abi::STAGE_BUFFER as usize] =
            Buffer { base, len, generation: 1, id: 0, state, holders: 1 };
    }

    /// One holder less: the last one takes the buffer back.
    pub fn release(&mut self, number: u32) {
        let buffer = &mut self.buffers[number as usize];
        buffer.holders = buffer.holders.saturating_sub(1);
        if buffer.holders == 0 {
            self.leave(number);
        }
    }

    fn leave(&mut self, number: u32) {
        let buffer = &mut self.buffers[number as usize];
        buffer.holders = 0;
        buffer.state = match buffer.state {
            // Nobody has heard of it.
            State::Wanted => State::Free,
            State::Offered { .. } | State::Ready | State::Refused => State::Leaving,
            state => state,
        };
    }

    /// Takes back all buffers that touch a range, whose memory is gone.
    pub fn forget(&mut self, base: u64, len: u64) {
        for number in 1..abi::BUFFERS as u32 {
            let buffer = self.get(number);
            if buffer.base < base + len && base < buffer.base + buffer.len {
                self.leave(number);
            }
        }
    }

    /// It was told to all peers, or cannot be.
    pub fn offered(&mut self, number: u32, told: bool) {
        let missing = self.peers;
        let state = if told { State::Offered { missing, refused: false } } else { State::Refused };
        let buffer = &mut self.buffers[number as usize];
        // It may have been taken back while it was made ready: then the peers have to let it go.
        buffer.state = if buffer.state == State::Wanted { state } else { State::Leaving };
    }

    /// A peer has mapped it or cannot; true when all peers have it now.
    pub fn answered(&mut self, number: u32, generation: u64, peer: u32, has: bool) -> bool {
        let buffer = &mut self.buffers[number as usize];
        let State::Offered { missing, refused } = buffer.state else { return false };
        if buffer.generation != generation {
            return false;
        }
        let (missing, refused) = (missing & !(1 << peer), refused || !has);
        buffer.state = match (missing, refused) {
            (0, false) => State::Ready,
            (0, true) => State::Refused,
            _ => State::Offered { missing, refused },
        };
        buffer.state == State::Ready
    }

    /// The peers were told to let it go.
    pub fn withdrawn(&mut self, number: u32) {
        self.buffers[number as usize].state = State::Withdrawn { missing: self.peers };
    }

    /// A peer has let it go.
    pub fn returned(&mut self, number: u32, generation: u64, peer: u32) {
        let buffer = &mut self.buffers[number as usize];
        let State::Withdrawn { missing } = buffer.state else { return };
        if buffer.generation != generation {
            return;
        }
        let missing = missing & !(1 << peer);
        buffer.state = if missing == 0 { State::Free } else { State::Withdrawn { missing } };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_ready_when_all_peers_have_it_and_its_number_is_free_when_none_has() {
        let mut registry = Registry::new(1, 4);
        let number = registry.hold(0x1000, 64, 7).unwrap();
        assert_eq!(registry.hold(0x1000, 64, 7), Some(number), "held twice");
        assert_eq!(registry.find(0x1010, 48), Some((number, 16)));
        assert_eq!(registry.find(0x1010, 49), None);
        registry.offered(number, true);
        for peer in [0, 3, 3] {
            assert!(!registry.answered(number, 1, peer, true));
        }
        assert!(!registry.answered(number, 2, 2, true), "another generation");
        assert!(registry.answered(number, 1, 2, true));
        registry.release(number);
        assert_eq!(registry.get(number).state, State::Ready, "it is held still");
        registry.release(number);
        assert_eq!(registry.all(|s| s == State::Leaving), [number]);
        assert_eq!(registry.find(0x1000, 1), None);
        // The same range anew gets another number while the old one is on its way out.
        let other = registry.hold(0x1000, 64, 7).unwrap();
        assert_ne!(other, number);
        registry.withdrawn(number);
        for peer in [0, 2, 3] {
            assert_ne!(registry.get(number).state, State::Free);
            registry.returned(number, 1, peer);
        }
        assert_eq!(registry.get(number).state, State::Free);
        assert_eq!(registry.hold(0x9000, 64, 8), Some(number));
        assert_eq!(registry.get(number).generation, 2);
    }

    #[test]
    fn what_one_peer_cannot_map_is_never_ready_and_is_taken_back_all_the_same() {
        let mut registry = Registry::new(0, 3);
        let number = registry.hold(0x1000, 64, 1).unwrap();
        registry.offered(number, true);
        assert!(!registry.answered(number, 1, 2, false));
        assert!(!registry.answered(number, 1, 1, true));
        assert_eq!(registry.get(number).state, State::Refused);
        registry.forget(0x103f, 100);
        assert_eq!(registry.get(number).state, State::Leaving);
        let unheard = registry.hold(0x5000, 64, 2).unwrap();
        registry.release(unheard);
        assert_eq!(registry.get(unheard).state, State::Free, "nobody had heard of it");
        let raced = registry.hold(0x5000, 64, 2).unwrap();
        registry.release(raced);
        registry.offered(raced, true);
        assert_eq!(registry.get(raced).state, State::Leaving, "taken back while it was offered");
    }

    #[test]
    fn numbers_run_out_and_come_back() {
        let mut registry = Registry::new(0, 2);
        let held: Vec<u32> =
            (1..abi::BUFFERS as u64).map(|i| registry.hold(i << 20, 64, i).unwrap()).collect();
        assert!(!held.contains(&abi::STAGE_BUFFER));
        assert_eq!(registry.hold(1, 64, 0), None);
        registry.release(held[9]);
        assert_eq!(registry.hold(1, 64, 0), Some(held[9]));
    }
}
