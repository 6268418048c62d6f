//! The members of a communicator in the making, and the facts that each tells of itself.

use super::Rendezvous;
use crate::bootstrap::descriptors::Listener;
use crate::comm::rank_info::{self, RankInfo};
use crate::comm::team;
use crate::device::{Device, Process};
use crate::error::{Error, Result};
use crate::link::direct::Segment;
use crate::rank::{self, Rank, Roster};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// The most ranks of other hosts with which a rank is connected when its communicator is made,
/// unless NCCL_RUNTIME_CONNECT tells: more take long, and descriptors and memory for edges that may
/// never be used.
const CONNECTED_PEERS: usize = 16;

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
        (rank, device, collnet): (u32, Device, bool),
        listener: &Listener,
        control: &TcpListener,
    ) -> Result<Self> {
        let address = control.local_addr().map_err(|e| Error::system("getsockname", e, ""))?;
        let mut info = RankInfo::own(rank, *listener.name(), address, (device, collnet))?;
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

    /// Returns the address where a rank would hold a later meeting.
    pub(super) fn address(&self, rank: u32) -> SocketAddr {
        self.infos[rank as usize].control
    }

    /// Returns the ranks of other hosts.
    pub(super) fn remote(&self) -> Vec<u32> {
        (0u32..).zip(&self.local).filter(|(_, place)| place.is_none()).map(|(r, _)| r).collect()
    }

    /// Returns whether ranks of different hosts are connected when their edge is used first, and
    /// not all of them now.
    pub(super) fn connects_at_first_use(&self) -> bool {
        let RankInfo { gpu, connects_at_first_use: asked, .. } = self.infos[0];
        connects_at_first_use(&self.host_sizes(), gpu, asked)
    }

    /// Returns the ranks of other hosts with which this one has a control connection, if not with
    /// all: in the order of the hosts, those at distances of powers of two.
    pub(super) fn neighbours(&self) -> Vec<u32> {
        let hosts: Vec<u64> = self.infos.iter().map(|info| info.host).collect();
        let mut peers = neighbours(&hosts, self.rank);
        if self.ask_for_switch() && !self.are_on_gpus() {
            // Those that tell each other what their switch reduces.
            let (nranks, team) = (self.infos.len() as u32, self.team());
            let rail = [(self.rank + team) % nranks, (self.rank + nranks - team) % nranks];
            peers.extend(rail.into_iter().filter(|&peer| self.local[peer as usize].is_none()));
            peers.sort_unstable();
            peers.dedup();
        }
        peers
    }

    /// Returns whether all ranks ask for a network that reduces between their hosts.
    pub(super) fn ask_for_switch(&self) -> bool {
        !self.is_one_host() && self.infos.iter().all(|info| info.collnet)
    }

    /// Returns whether some ranks are on GPUs.
    pub(super) fn are_on_gpus(&self) -> bool {
        self.infos.iter().any(|info| info.gpu)
    }

    /// Returns the number of ranks of a team ([`Spec::team`](oxccl_plan::Spec::team)).
    pub(super) fn team(&self) -> u32 {
        team::size(self.infos.iter().map(|info| info.host))
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

    /// Returns where the members of the communicator run.
    pub(super) fn roster(&self, comm: u64) -> Roster {
        let own = &self.infos[self.rank as usize];
        let namespace = |info: &RankInfo| (info.machine, info.process.pid_namespace);
        let members = self.infos.iter().map(|info| {
            let is_here = namespace(info) == namespace(own);
            rank::Member::new(info.control.ip(), info.process.pid, info.device, is_here)
        });
        Roster { comm, members: members.collect() }
    }

    /// Returns this rank, which shares `segment` with the ranks of its host.
    pub(super) fn own(&self, segment: Option<Arc<Segment>>) -> Rank {
        let pids = self.infos.iter().map(|info| info.process.pid as i32).collect();
        Rank::new(self.rank, self.local.clone(), segment, pids)
    }
}

/// Returns the ranks with which `rank` has a control connection; `hosts` holds the host of each
/// rank. A rank chooses one rank of each host at a distance of a power of two, at its own place
/// there if that host has so many; it also has connections with those that choose it.
fn neighbours(hosts: &[u64], rank: u32) -> Vec<u32> {
    let mut members: Vec<(u64, Vec<u32>)> = Vec::new();
    let mut places = Vec::new();
    for (rank, host) in (0u32..).zip(hosts) {
        let number = members.iter().position(|(known, _)| known == host);
        let number = number.unwrap_or_else(|| {
            members.push((*host, Vec::new()));
            members.len() - 1
        });
        places.push((number, members[number].1.len()));
        members[number].1.push(rank);
    }
    let chosen = |rank: u32| {
        let (number, place) = places[rank as usize];
        let distances = (0..u32::BITS).map(|power| 1usize << power);
        let hosts = distances.take_while(|distance| *distance < members.len());
        let peers = hosts.map(|distance| &members[(number + distance) % members.len()].1);
        peers.map(|ranks| ranks[place % ranks.len()]).collect::<Vec<_>>()
    };
    let own = chosen(rank);
    let chooses = |peer: &u32| own.contains(peer) || chosen(*peer).contains(&rank);
    (0..hosts.len() as u32).filter(|peer| *peer != rank && chooses(peer)).collect()
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

/// Returns whether ranks of hosts with so many each are connected when their edge is used first;
/// `asked` is what the user wants.
fn connects_at_first_use(host_sizes: &[u32], gpu: bool, asked: Option<bool>) -> bool {
    let smallest = host_sizes.iter().min().copied().unwrap_or(0);
    let many = (host_sizes.iter().sum::<u32>() - smallest) as usize > CONNECTED_PEERS;
    // The slots of GPUs are registered when a communicator is made.
    !gpu && asked.unwrap_or(many)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_more_than_sixteen_on_other_hosts_are_connected_at_first_use() {
        for (sizes, many) in [
            (&[1; 17][..], false),
            (&[1; 18], true),
            (&[8, 8, 8], false),
            (&[8, 8, 9], true),
            (&[16, 1], false),
            (&[17, 1], true),
            (&[64], false),
        ] {
            assert_eq!(connects_at_first_use(sizes, false, None), many, "{sizes:?}");
            for asked in [false, true] {
                assert_eq!(connects_at_first_use(sizes, false, Some(asked)), asked);
                assert!(!connects_at_first_use(sizes, true, Some(asked)), "slots of GPUs");
            }
            assert!(!connects_at_first_use(sizes, true, None), "slots of GPUs");
        }
    }

    #[test]
    fn neighbours_have_each_other_and_hold_all_hosts_together() {
        let shapes = [vec![1; 2], vec![1; 20], vec![1; 256], vec![4; 9], vec![3, 1, 5, 2, 2, 7]];
        for sizes in shapes {
            let host = |(number, size): (u64, &usize)| vec![number; *size];
            let hosts: Vec<u64> = (0u64..).zip(&sizes).flat_map(host).collect();
            let all: Vec<_> = (0..hosts.len() as u32).map(|r| neighbours(&hosts, r)).collect();
            for (rank, own) in (0u32..).zip(&all) {
                for peer in own {
                    assert!(all[*peer as usize].contains(&rank), "{sizes:?} {rank} {peer}");
                    assert_ne!(hosts[rank as usize], hosts[*peer as usize]);
                }
            }
            let most = 2 * (sizes.len().next_power_of_two().ilog2() as usize);
            if sizes.iter().all(|size| *size == sizes[0]) {
                assert!(all.iter().all(|own| own.len() <= most), "{sizes:?}");
            }
            // A failure that one rank knows reaches all: over connections, and within hosts.
            let mut reached = vec![0u32];
            let mut next = 0;
            while let Some(&rank) = reached.get(next) {
                let here = (0u32..).zip(&hosts).filter(|(_, h)| **h == hosts[rank as usize]);
                for peer in all[rank as usize].iter().copied().chain(here.map(|(r, _)| r)) {
                    if !reached.contains(&peer) {
                        reached.push(peer);
                    }
                }
                next += 1;
            }
            assert_eq!(reached.len(), hosts.len());
        }
    }
}
