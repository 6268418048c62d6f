//! What ranks tell each other of their seats when a communicator is made.

use super::mail::Address;
use crate::error::{Error, Result};
use oxccl_kernels::abi;

/// What a rank tells the others of its seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The GPU.
    pub uuid: [u8; 16],
    /// Address of the shared memory in the rank's process.
    pub address: u64,
    /// By which other processes map it.
    pub handle: [u8; 64],
    /// Number of the GPU in the rank's process.
    pub index: i32,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// The most thread blocks that its creator allows a kernel of a collective.
    pub max_blocks: u32,
    /// Where it is told of buffers.
    pub mail: Address,
    /// Whether other GPUs may reach its memory.
    pub peer_access: bool,
    /// Whether it may share memory of the host.
    pub host_memory: bool,
}

const OFFER_BYTES: usize = 16 + 8 + 64 + 4 + 4 + 4 + 32 + 2;

impl Offer {
    /// As bytes, for [`decode`](Self::decode).
    pub fn encode(&self) -> Vec<u8> {
        let (index, sms) = (self.index.to_le_bytes(), self.multiprocessors.to_le_bytes());
        let blocks = self.max_blocks.to_le_bytes();
        let Address { name, key } = &self.mail;
        let address = self.address.to_le_bytes();
        let may = [u8::from(self.peer_access), u8::from(self.host_memory)];
        [&self.uuid[..], &address, &self.handle, &index, &sms, &blocks, name, key, &may].concat()
    }

    /// What a rank sent.
    pub fn decode(rank: usize, bytes: &[u8]) -> Result<Self> {
        let bad = || Error::Init { why: format!("rank {rank} sent no seat on a GPU") };
        let bytes: &[u8; OFFER_BYTES] = bytes.try_into().map_err(|_| bad())?;
        let (mut uuid, mut handle) = ([0; 16], [0; 64]);
        uuid.copy_from_slice(&bytes[..16]);
        handle.copy_from_slice(&bytes[24..88]);
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let address = u64::from(word(16)) | u64::from(word(20)) << 32;
        let mut mail = Address::default();
        mail.name.copy_from_slice(&bytes[100..116]);
        mail.key.copy_from_slice(&bytes[116..132]);
        let (index, multiprocessors, max_blocks) = (word(88) as i32, word(92), word(96));
        let (peer_access, host_memory) = (bytes[132] != 0, bytes[133] != 0);
        Ok(Self {
            uuid,
            address,
            handle,
            index,
            multiprocessors,
            max_blocks,
            mail,
            peer_access,
            host_memory,
        })
    }
}

/// The most ranks that share a GPU, and the channels that an operation may take: the same on all ranks.
pub fn shares(offers: &[Offer]) -> (u32, u32) {
    let most = |of: &Offer| offers.iter().filter(|o| o.uuid == of.uuid).count() as u32;
    let shares = offers.iter().map(|o| (most(o), o.multiprocessors / most(o)));
    let (ranks, share) = shares.fold((1, u32::MAX), |(r, s), (a, b)| (r.max(a), s.min(b)));
    let allowed = offers.iter().map(|o| o.max_blocks).min().unwrap_or(u32::MAX);
    // All blocks of all ranks on a GPU have to run at once, beside another communicator's.
    (ranks, (share / 2).min(allowed).clamp(1, abi::MAX_CHANNELS as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_fit_the_gpu_that_most_ranks_share_and_what_every_rank_allows() {
        let offer = |gpu: u8, max_blocks| Offer {
            uuid: [gpu; 16],
            address: 0,
            handle: [0; 64],
            index: 0,
            multiprocessors: 132,
            max_blocks,
            mail: Address::default(),
            peer_access: true,
            host_memory: true,
        };
        let all = |gpus: [u8; 4], blocks: [u32; 4]| {
            let offers: Vec<_> = gpus.into_iter().zip(blocks).map(|(g, b)| offer(g, b)).collect();
            shares(&offers)
        };
        assert_eq!(all([0, 1, 2, 3], [64; 4]), (1, 32));
        assert_eq!(all([0, 1, 2, 3], [64, 64, 4, 20]), (1, 4));
        assert_eq!(all([5; 4], [64; 4]), (4, 16));
        assert_eq!(all([0, 1, 1, 2], [64, 24, 64, 64]), (2, 24));
        assert_eq!(all([0; 4], [64, 0, 64, 64]), (4, 1), "at least one");
    }

    #[test]
    fn offers_survive_the_round_trip_and_others_are_refused() {
        let (uuid, handle) = (std::array::from_fn(|i| i as u8), std::array::from_fn(|i| !i as u8));
        let mail = Address { name: [8; 16], key: [9; 16] };
        let (address, multiprocessors, max_blocks) = (0x7f01_0203_0405, 132, 20);
        let (peer_access, host_memory, index) = (true, false, 3);
        let offer = Offer {
            uuid,
            address,
            handle,
            index,
            multiprocessors,
            max_blocks,
            mail,
            peer_access,
            host_memory,
        };
        let bytes = offer.encode();
        assert_eq!(Offer::decode(0, &bytes).unwrap(), offer);
        let text = Offer::decode(2, &bytes[1..]).unwrap_err().to_string();
        assert!(text.contains("rank 2"), "{text}");
    }
}
