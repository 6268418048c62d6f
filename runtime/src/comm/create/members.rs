//! The members of a communicator in the making, and the facts that each tells of itself.

use super::Rendezvous;
use crate::bootstrap::descriptors::Listener;
use crate::comm::rank_info::{self, RankInfo};
use crate::device::{Device, Process};
use crate::error::{Error, Result};
use crate::link::direct::Segment;
use crate::rank::Rank;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// The ranks of a communicator in the making.
pub(super) struct Members {
    /// The number of this rank.
    pub(super) rank: u32,
    /// The facts that each rank tells of itself, by rank.
    pub(super) infos: Vec<RankInfo>,
    /// The ranks of this rank's host, in ascending order.
    pub(super) ranks: Vec<u32>,
    /// The index of each rank in `ranks`; `None` for ranks of other hosts.
    pub(super) local: Vec<Option<usize>>,
}

impl Members {
    /// Publishes the facts of this rank, such as the addresses where it listens, and collects those
    /// of all members. Blocks for all ranks that meet.
    pub(super) fn meet(
        rendezvous: &mut Rendezvous,
        (rank, device): (u32, Device),
        listener: &Listener,
        control: &TcpListener,
    ) -> Result<Self> {
        let address = control.local_addr().map_err(|e| Error::system("getsockname", e, ""))?;
        let mut info = RankInfo::own(rank, *listener.name(), address, device)?;
        info.holder = rendezvous.session.is_held_here();
        let answers = rendezvous.session.gather(&info.encode())?;
        let holder = answers.iter().position(|bytes| RankInfo::is_holder(bytes));
        rendezvous.session.set_holder(holder.map(|rank| rank as u32));
        let answers = rendezvous.select(answers);
        let infos = answers.iter().enumerate().map(|(r, bytes)| RankInfo::decode(r, bytes));
        let infos = infos.collect::<Result<Vec<_>>>()?;
        let host = infos[rank as usize].host;
        same_device(&infos)?;
        rank_info::same_tuner(&infos)?;
        let (mut ranks, mut local) = (Vec::new(), Vec::new());
        for (r, info) in (0u32..).zip(&infos) {
            let here = info.host == host;
            local.push(here.then_some(ranks.len()));
            ranks.extend(here.then_some(r));
        }
        Ok(Self { rank, infos, ranks, local })
    }

    /// Returns the address where a rank takes control connections, and where it would hold a later
    /// meeting.
    pub(super) fn address(&self, rank: u32) -> SocketAddr {
        self.infos[rank as usize].control
    }

    /// Returns the ranks of other hosts.
    pub(super) fn remote(&self) -> Vec<u32> {
        (0u32..).zip(&self.local).filter(|(_, place)| place.is_none()).map(|(r, _)| r).collect()
    }

    pub(super) fn is_one_host(&self) -> bool {
        self.ranks.len() == self.infos.len()
    }

    /// Returns the number of ranks on this machine, whatever they call their hosts: they share its
    /// processors.
    pub(super) fn on_this_machine(&self) -> usize {
        let own = self.infos[self.rank as usize].machine;
        self.infos.iter().filter(|info| info.machine == own).count()
    }

    /// Returns the number of ranks of each host, in the order of their first ranks.
    pub(super) fn host_sizes(&self) -> Vec<u32> {
        let mut hosts: Vec<(u64, u32)> = Vec::new();
        for RankInfo { host, .. } in &self.infos {
            match hosts.iter_mut().find(|(known, _)| known == host) {
                Some((_, size)) => *size += 1,
                None => hosts.push((*host, 1)),
            }
        }
        hosts.into_iter().map(|(_, size)| size).collect()
    }

    pub(super) fn own_place(&self) -> usize {
        self.local[self.rank as usize].unwrap_or(0)
    }

    /// Returns the start of all counters.
    pub(super) fn counter_start(&self) -> u64 {
        self.infos[0].counter_start
    }

    pub(super) fn processes(&self) -> Vec<Process> {
        self.infos.iter().map(|info| info.process.clone()).collect()
    }

    /// Returns this rank, which shares `segment` with the ranks of its host.
    pub(super) fn own(&self, segment: Option<Arc<Segment>>) -> Rank {
        let pids = self.infos.iter().map(|info| info.process.pid as i32).collect();
        Rank::new(self.rank, self.local.clone(), segment, pids)
    }
}

/// Fails unless the data of all ranks lie in host memory, or on GPUs.
fn same_device(infos: &[RankInfo]) -> Result<()> {
    let kind = |gpu| if gpu { "a GPU" } else { "host memory" };
    for (rank, info) in infos.iter().enumerate() {
        let (gpu, first) = (info.gpu, infos[0].gpu);
        if gpu != first {
            let (own, theirs) = (kind(first), kind(gpu));
            let why = format!(
                "rank 0 uses {own} and rank {rank} {theirs}: set OXCCL_DEVICE on all alike"
            );
            return Err(Error::Init { why });
        }
    }
    Ok(())
}
