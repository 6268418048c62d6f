//! The creation of a rank's part on a GPU: the ranks tell each other in rounds how their memory is
//! reached.

use crate::bootstrap::Gather;
use crate::config::Config;
use crate::device::cuda::layout::Membership;
use crate::device::cuda::network::Remote;
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::run::engines;
use crate::device::cuda::sharing::offer::Offer;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};

/// The settings by which the creator of a communicator decides on the use of its GPU.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// The most thread blocks that an operation may take.
    pub max_blocks: u32,
    /// True if copy engines are to move what they can, so that thread blocks are left for other
    /// things.
    pub spares_blocks: bool,
    /// True if graphs order themselves against other operations of the communicator.
    pub mixes_graphs: bool,
}

/// Creates a rank's part on the GPU of this number, and maps the memory of the peers of its host:
/// memory of the GPUs or, if not all of these reach each other, memory of the host. `here` tells,
/// by rank, which ranks are in this process. Blocks for all ranks.
pub fn create(
    index: i32,
    membership: Membership<'_>,
    here: &[bool],
    wishes: Wishes,
    remote: Remote,
    members: &mut dyn Gather,
) -> Result<CudaRank> {
    let start = remote.start;
    let cuda_rank = CudaRank::new(index, membership, wishes.mixes_graphs, remote);
    // The peers hear of a failure by the end of the meeting.
    let mut cuda_rank = cuda_rank?;
    // Lines take thread blocks, there is no memory in place beside them, and they end at the host.
    let other_hosts = cuda_rank.network().is_some();
    if !Config::get().wants_lines() || wishes.spares_blocks || other_hosts {
        cuda_rank.do_without_lines();
    }
    if here.len() > 1 {
        meet(&mut cuda_rank, here, wishes, members)?;
    }
    cuda_rank.start(start)?;
    Ok(cuda_rank)
}

/// Maps the memory of the peers of this host.
fn meet(
    cuda_rank: &mut CudaRank,
    here: &[bool],
    wishes: Wishes,
    members: &mut dyn Gather,
) -> Result<()> {
    cuda_rank.engine_bytes = engines::least_bytes(wishes.spares_blocks);
    let answers = members.gather(&cuda_rank.offer(wishes.max_blocks)?.encode())?;
    let offers = answers.iter().enumerate().map(|(rank, bytes)| Offer::decode(rank, bytes));
    let offers = offers.collect::<Result<Vec<_>>>()?;
    cuda_rank.share(&offers);
    let ranks = cuda_rank.ranks.clone();
    let here = |place: usize| here[ranks[place] as usize];
    let offers: Vec<Offer> = ranks.iter().map(|&rank| offers[rank as usize].clone()).collect();
    cuda_rank.meet(&offers, here);
    let connected = cuda_rank.connect(&offers, here);
    let answers = members.gather(&[u8::from(connected.is_ok())])?;
    let Some(apart) = answers.iter().position(|answer| answer != &[1]) else { return Ok(()) };
    let why = connected.map_or_else(|e| e.to_string(), |()| format!("rank {apart} says so"));
    let text = format!("GPUs do not reach each other's memory ({why}): host memory lies between");
    log::line(Level::Info, Subsystem::Init, &text);
    if let Some(place) = offers.iter().position(|offer| !offer.host_memory) {
        let rank = ranks[place];
        let what = format!("GPUs do not reach each other, and rank {rank} has NCCL_SHM_DISABLE=1");
        return Err(Error::usage(what, "allow peer access or shared memory"));
    }
    let answers = members.gather(&cuda_rank.move_to_host()?.to_le_bytes())?;
    let address = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
    let addresses: Vec<u64> = ranks.iter().map(|&rank| address(&answers[rank as usize])).collect();
    cuda_rank.connect_by_host(&offers, &addresses, here, members.deadline())
}
