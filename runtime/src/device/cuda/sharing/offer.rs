//! The offers by which ranks tell each other of their memory on GPUs when a communicator is
//! created.

use crate::device::cuda::sharing::exchange::Address;
use crate::error::{Error, Result};
use oxccl_kernels::abi;

/// The description of a rank's memory on a GPU, for its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The UUID of the GPU.
    pub uuid: [u8; 16],
    /// Address of the shared memory in the rank's process.
    pub address: u64,
    /// The handle of CUDA IPC by which other processes map the shared memory.
    pub handle: [u8; 64],
    /// Number of the GPU in the rank's process.
    pub index: i32,
    /// Multiprocessors of the GPU.
    pub multiprocessors: u32,
    /// Multiprocessors that no communicator of the rank's process holds, as
    /// [`Held`](crate::device::cuda::run::held::Held) counts them.
    pub free: u32,
    /// Blocks of an exchange kernel that a multiprocessor runs at a time.
    pub exchange_blocks: u32,
    /// The most thread blocks that the creator of the communicator allows a kernel of a collective.
    pub max_blocks: u32,
    /// The address at which the rank takes messages about buffers.
    pub inbound: Address,
    /// True if the rank wants data to travel in lines.
    pub lines: bool,
    /// True if other GPUs may reach the rank's memory.
    pub peer_access: bool,
    /// True if the rank may share memory of the host.
    pub host_memory: bool,
}

const OFFER_BYTES: usize = 16 + 8 + 64 + 5 * 4 + 32 + 3;

impl Offer {
    /// Returns the offer as bytes, for [`decode`](Self::decode).
    pub fn encode(&self) -> Vec<u8> {
        let numbers = [self.multiprocessors, self.free, self.exchange_blocks, self.max_blocks]
            .map(u32::to_le_bytes);
        let (index, numbers) = (self.index.to_le_bytes(), numbers.as_flattened());
        let Address { name, key } = &self.inbound;
        let address = self.address.to_le_bytes();
        let may = [self.peer_access, self.host_memory, self.lines].map(u8::from);
        [&self.uuid[..], &address, &self.handle, &index, numbers, name, key, &may].concat()
    }

    /// Returns the offer that a rank sent as bytes.
    pub fn decode(rank: usize, bytes: &[u8]) -> Result<Self> {
        let bad = || Error::Init { why: format!("rank {rank} offered no memory on a GPU") };
        let bytes: &[u8; OFFER_BYTES] = bytes.try_into().map_err(|_| bad())?;
        let (mut uuid, mut handle) = ([0; 16], [0; 64]);
        uuid.copy_from_slice(&bytes[..16]);
        handle.copy_from_slice(&bytes[24..88]);
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let address = u64::from(word(16)) | u64::from(word(20)) << 32;
        let mut inbound = Address::default();
        inbound.name.copy_from_slice(&bytes[108..124]);
        inbound.key.copy_from_slice(&bytes[124..140]);
        let (index, multiprocessors, free) = (word(88) as i32, word(92), word(96));
        let (exchange_blocks, max_blocks) = (word(100), word(104));
        let [peer_access, host_memory, lines] = [140, 141, 142].map(|at| bytes[at] != 0);
        Ok(Self {
            uuid,
            address,
            handle,
            index,
            multiprocessors,
            free,
            exchange_blocks,
            max_blocks,
            inbound,
            lines,
            peer_access,
            host_memory,
        })
    }
}

/// The share of its GPU that each rank of a communicator takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The most ranks that share a GPU.
    pub ranks: u32,
    /// Channels that an operation may take.
    pub channels: u32,
    /// Lanes of a queue of messages.
    pub lanes: u32,
    /// Lanes of a queue of messages in lines.
    pub line_lanes: u32,
    /// The most multiprocessors of a rank's GPU that the communicator's kernels hold.
    pub held: u32,
}

/// The room that is kept for later communicators, as a number of further ranks.
const LATER: u32 = 3;
/// The thread blocks with which large calls reach their full speed, or nearly: fewer are slower,
/// and somewhat more no faster (docs/performance.md).
const FULL: u32 = 16;
/// The least that more than these gain by: two clusters.
const MORE: u32 = FULL + 8;

/// Returns the part of a GPU that each of `ranks` ranks takes of what is free: an equal part for
/// itself and for later ones, or [`FULL`] as long as later ones find something.
fn part(free: u32, ranks: u32) -> u32 {
    let part = free / (ranks + LATER);
    let is_enough = free >= ranks * FULL + MORE;
    if part >= MORE || (part < FULL && !is_enough) { part } else { FULL }
}

/// Returns the shares, computed from the offers of all ranks, so the same at all of them.
///
/// The blocks of a kernel wait for those of the peers, so all of them have to run at once, beside
/// those of the other communicators at work. What all of these hold together has to fit the GPU, or
/// a block may wait for ever for the place of a block that waits for another GPU. So each
/// communicator takes a part of what is left, and later ones find less: of 132 multiprocessors 32,
/// 25, three times 16, 6, 5 and so on. If nothing is left, a communicator takes the least that it
/// works with.
pub fn shares(offers: &[Offer]) -> Shares {
    let most = |of: &Offer| offers.iter().filter(|o| o.uuid == of.uuid).count() as u32;
    let least = |part: &dyn Fn(&Offer) -> u32| offers.iter().map(part).min().unwrap_or(0);
    let ranks = offers.iter().map(most).max().unwrap_or(1);
    let left = least(&|o| part(o.free, most(o)));
    let half = least(&|o| o.multiprocessors / most(o) / 2);
    let allowed = least(&|o| o.max_blocks);
    let channels = half.min(left).min(allowed).clamp(1, abi::MAX_CHANNELS as u32);
    // Messages with all peers that a launch may have, in both directions.
    let peers = (offers.len() - 1).min(abi::QUEUES / 2) as u32;
    let (queues, blocks) = (2 * peers, least(&|o| o.exchange_blocks).max(1));
    let exchange = |lanes: u32| (queues * lanes).div_ceil(blocks);
    let fitting = (1..=abi::LANES as u32).rev().find(|&lanes| exchange(lanes) <= left);
    let lanes = fitting.filter(|_| ranks == 1).unwrap_or(1);
    let halves = if peers > 1 { 2 * channels } else { channels };
    let line_lanes = halves.min(abi::LINE_LANES as u32);
    // A half of a block carries a lane of messages in lines, or one after the other.
    let in_lines = if offers.iter().all(|o| o.lines) { queues.div_ceil(2) } else { 0 };
    let held = channels.max(exchange(lanes)).max(in_lines);
    Shares { ranks, channels, lanes, line_lanes, held }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MULTIPROCESSORS: u32 = 132;

    fn offer(gpu: u8, max_blocks: u32) -> Offer {
        Offer {
            uuid: [gpu; 16],
            address: 0,
            handle: [0; 64],
            index: 0,
            multiprocessors: MULTIPROCESSORS,
            free: MULTIPROCESSORS,
            exchange_blocks: 3,
            max_blocks,
            inbound: Address::default(),
            lines: false,
            peer_access: true,
            host_memory: true,
        }
    }

    #[test]
    fn channels_fit_the_gpu_that_most_ranks_share_and_what_every_rank_allows() {
        let all = |gpus: [u8; 4], blocks: [u32; 4]| {
            let offers: Vec<_> = gpus.into_iter().zip(blocks).map(|(g, b)| offer(g, b)).collect();
            let Shares { ranks, channels, lanes, .. } = shares(&offers);
            (ranks, channels, lanes)
        };
        assert_eq!(all([0, 1, 2, 3], [64; 4]), (1, 32, 4));
        assert_eq!(all([0, 1, 2, 3], [64, 64, 4, 20]), (1, 4, 4));
        assert_eq!(all([5; 4], [64; 4]), (4, 16, 1));
        assert_eq!(all([0, 1, 1, 2], [64, 24, 64, 64]), (2, 24, 1));
        assert_eq!(all([0; 4], [64, 0, 64, 64]), (4, 1, 1), "at least one");
    }

    /// Returns the channels of communicators that are created one after the other and all live, as
    /// long as they fit.
    fn fitting(ranks_per_gpu: usize, nranks: usize, lines: bool) -> Vec<u32> {
        let of_rank = |rank: usize| Offer { lines, ..offer((rank / ranks_per_gpu) as u8, 64) };
        let mut offers: Vec<_> = (0..nranks).map(of_rank).collect();
        let mut channels = Vec::new();
        loop {
            let shares = shares(&offers);
            let held = shares.held * ranks_per_gpu as u32;
            if held > offers[0].free {
                return channels;
            }
            channels.push(shares.channels);
            offers.iter_mut().for_each(|offer| offer.free -= held);
        }
    }

    #[test]
    fn what_living_communicators_hold_together_fits_a_gpu() {
        let one_a_gpu = [32, 25, 16, 16, 16, 6, 5];
        for (nranks, lines) in [(2, false), (8, false), (2, true), (4, true)] {
            assert_eq!(fitting(1, nranks, lines)[..7], one_a_gpu, "{nranks} {lines}");
        }
        assert_eq!(fitting(2, 4, false)[..4], [26, 16, 9, 6]);
        assert_eq!(fitting(4, 4, false)[..3], [16, 9, 4]);
        for (ranks_per_gpu, nranks, least) in [(1, 2, 12), (1, 8, 10), (1, 16, 6), (2, 16, 2)] {
            let channels = fitting(ranks_per_gpu, nranks, false);
            assert!(channels.is_sorted_by(|a, b| a >= b), "{channels:?}");
            assert!(channels.len() >= least, "{nranks}, {ranks_per_gpu} a GPU: {channels:?}");
        }
    }

    #[test]
    fn a_rank_with_a_full_gpu_has_the_least_and_so_have_its_peers() {
        let full = Offer { free: 0, ..offer(1, 64) };
        let shares = shares(&[offer(0, 64), full, offer(2, 64)]);
        assert_eq!(shares, Shares { ranks: 1, channels: 1, lanes: 1, line_lanes: 2, held: 2 });
    }

    #[test]
    fn offers_survive_the_round_trip_and_others_are_refused() {
        let (uuid, handle) = (std::array::from_fn(|i| i as u8), std::array::from_fn(|i| !i as u8));
        let inbound = Address { name: [8; 16], key: [9; 16] };
        let (address, multiprocessors, max_blocks) = (0x7f01_0203_0405, 132, 20);
        let (free, exchange_blocks) = (101, 3);
        let (peer_access, host_memory, lines, index) = (true, false, true, 3);
        let offer = Offer {
            uuid,
            address,
            handle,
            index,
            multiprocessors,
            free,
            exchange_blocks,
            max_blocks,
            inbound,
            lines,
            peer_access,
            host_memory,
        };
        let bytes = offer.encode();
        assert_eq!(Offer::decode(0, &bytes).unwrap(), offer);
        let text = Offer::decode(2, &bytes[1..]).unwrap_err().to_string();
        assert!(text.contains("rank 2"), "{text}");
    }
}
