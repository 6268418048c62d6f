//! Connections with the ranks of other hosts: one for control, and then one in each direction for
//! data. All are made concurrently, so that no rank waits for a rank that itself waits.

use super::Rendezvous;
use super::members::Members;
use crate::bootstrap::auth::{Ends, Role};
use crate::bootstrap::dial::Dial;
use crate::bootstrap::door::{Admission, Door};
use crate::bootstrap::wire::wait_for;
use crate::bootstrap::{Deadline, Gather, interface};
use crate::comm::Options;
use crate::comm::rank_info::RankInfo;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::link::Edge;
use crate::link::control::Control;
use crate::link::direct::{DirectEdge, Segment};
use crate::link::message::{HEADER_BYTES, Identity, Joining, MessageEdge};
use crate::plugin::net::{self, Need};
use crate::rank::Rank;
use crate::rank::monitor::{self, Sign};
use oxccl_net::Net;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest pause between two looks at connections that show nothing by descriptors.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The links to the ranks of other hosts.
#[derive(Default)]
pub(super) struct Links {
    /// The edges to each rank, one per lane.
    pub(super) edges: Vec<(u32, Vec<MessageEdge>)>,
    /// The control connections, by rank; `None` for ranks of this host.
    pub(super) controls: Vec<Option<Arc<Control>>>,
    /// The threads that make calls for the links.
    pub(super) threads: usize,
}

/// Makes all connections. Blocks for the ranks of other hosts, until the rendezvous says that one
/// of them has failed.
pub(super) fn connect(
    identity: Identity,
    members: &Members,
    control: &TcpListener,
    rendezvous: &mut Rendezvous,
    (options, lanes, slot_bytes): (&Options, usize, usize),
) -> Result<Links> {
    let need = Need {
        comm: identity.comm,
        name: options.net_name.as_deref(),
        traffic_class: options.traffic_class,
        address: interface::beside(members.address(identity.rank), Config::get())?,
        connections: 2 * members.remote().len(),
        message_bytes: HEADER_BYTES + slot_bytes,
        place: members.own_place(),
    };
    let chosen = net::choose(&need)?;
    let lanes = chosen.lanes(&need, lanes)?;
    let lanes = net::agree(&rendezvous.gather(&chosen.agreement(lanes))?)?;
    let (net, threads) = ((chosen.net, chosen.device), chosen.threads);
    let mut making = Making::new(identity, members, control, (net, (lanes, slot_bytes)))?;
    loop {
        if let Err(error) = making.progress() {
            // The connections end after the others have heard why.
            return Err(rendezvous.session.announce(error));
        }
        let missing = making.missing();
        if missing.is_empty() {
            return Ok(Links { threads, ..making.finish()? });
        }
        let explain = |verdict| explained(verdict, identity.rank, || making.lacking(&missing));
        rendezvous.session.check().map_err(explain)?;
        let deadline = rendezvous.session.deadline().clone();
        if deadline.passed() {
            return Err(making.late(&missing, &deadline));
        }
        making.wait(rendezvous, deadline.slice());
    }
}

/// Returns the verdict of the rendezvous, with what this rank lacks: the rank that the rendezvous
/// misses may be this one, which waits for others. A verdict that names a rank is returned as it
/// is.
fn explained(verdict: Error, rank: u32, lacking: impl FnOnce() -> String) -> Error {
    match verdict {
        Error::Init { why } => Error::Init { why: format!("{why}; rank {rank} has {}", lacking()) },
        named => named,
    }
}

/// Connections in the making.
struct Making {
    identity: Identity,
    remote: Vec<u32>,
    /// The network, and this rank's device.
    net: (Arc<dyn Net>, usize),
    /// The number of lanes, and the bytes of their slots.
    lanes: (usize, usize),
    door: Door,
    dials: Vec<(u32, Dial)>,
    /// The peers with a control connection.
    joining: BTreeMap<u32, Joining>,
}

impl Making {
    fn new(
        identity: Identity,
        members: &Members,
        control: &TcpListener,
        (net, lanes): ((Arc<dyn Net>, usize), (usize, usize)),
    ) -> Result<Self> {
        let Identity { comm, secret, rank, nranks } = identity;
        let remote = members.remote();
        let ends = |from, to| Ends { role: Role::Control, from, to, comm };
        let admission = Admission { secret, ends: ends(0, rank), nranks };
        let failed = |e| Error::system("dup of a listener", e, "raise ulimit -n");
        let door = Door::new(control.try_clone().map_err(failed)?.into(), admission)?;
        // Of two ranks the lower one makes the control connection.
        let dial = |&peer: &u32| {
            let at = members.address(peer);
            (peer, Dial::new(at.into(), at.to_string(), secret, ends(rank, peer)))
        };
        let dials = remote.iter().filter(|peer| rank < **peer).map(dial).collect();
        let joining = BTreeMap::new();
        Ok(Self { identity, remote, net, lanes, door, dials, joining })
    }

    fn progress(&mut self) -> Result<()> {
        let now = Instant::now();
        for (peer, mut dial) in std::mem::take(&mut self.dials) {
            match dial.progress(now)? {
                Some(open) => self.join(peer, Control::new(open.into_socket().into()))?,
                None => self.dials.push((peer, dial)),
            }
        }
        for open in self.door.progress(now)? {
            self.join(open.peer_rank(), Control::new(open.into_socket().into()))?;
        }
        self.joining.values_mut().try_for_each(|joining| joining.progress(now))
    }

    /// Begins to make the data connections with a peer. A peer that makes another control
    /// connection has lost its earlier one.
    fn join(&mut self, peer: u32, control: Control) -> Result<()> {
        let (control, net) = (Arc::new(control), self.net.clone());
        let joining = Joining::new(self.identity, peer, net, control, self.lanes)?;
        self.joining.insert(peer, joining);
        Ok(())
    }

    fn missing(&self) -> Vec<u32> {
        let complete = |peer: &u32| self.joining.get(peer).is_some_and(Joining::is_complete);
        self.remote.iter().copied().filter(|peer| !complete(peer)).collect()
    }

    fn wait(&self, rendezvous: &Rendezvous, limit: Duration) {
        let (mut fds, now) = (vec![rendezvous.session.poll_fd()], Instant::now());
        self.door.poll_fds(&mut fds);
        fds.extend(self.dials.iter().filter_map(|(_, dial)| dial.poll_fd()));
        self.joining.values().for_each(|joining| joining.poll_fds(&mut fds, now));
        // Proofs that are awaited show by no descriptor.
        let limit = if self.joining.is_empty() { limit } else { limit.min(LOOK_AGAIN) };
        wait_for(&mut fds, limit);
    }

    fn lacking(&self, missing: &[u32]) -> String {
        let dials: BTreeMap<_, _> = self.dials.iter().map(|(peer, dial)| (*peer, dial)).collect();
        let why = |peer: &u32| {
            let joining = self.joining.get(peer).map(Joining::why);
            let dial = || dials.get(peer).map(|dial| dial.why());
            let nothing = || "it has not made its control connection".to_owned();
            format!("rank {peer}: {}", joining.or_else(dial).unwrap_or_else(nothing))
        };
        let whys: Vec<_> = missing.iter().take(4).map(why).collect();
        format!("no connection with ranks {missing:?} ({})", whys.join("; "))
    }

    fn late(&self, missing: &[u32], deadline: &Deadline) -> Error {
        let Identity { rank, nranks, .. } = self.identity;
        let why = self.lacking(missing);
        deadline.error(|| Error::InitTimeout { rank, nranks, why })
    }

    fn finish(self) -> Result<Links> {
        let mut links = Links::default();
        links.controls.resize_with(self.identity.nranks as usize, || None);
        for (peer, joining) in self.joining {
            let none = || Error::init_peer(peer, "has no data connection");
            let (edges, control) = joining.finish().ok_or_else(none)?;
            links.edges.push((peer, edges));
            links.controls[peer as usize] = Some(control);
        }
        Ok(links)
    }
}

/// Returns the edges to the ranks of this host, by rank.
pub(super) fn edges(members: &Members, segment: Option<&Arc<Segment>>, start: u64) -> Vec<Edge> {
    let own = members.own_place();
    (0u32..)
        .zip(&members.local)
        .map(|(peer, place)| match (segment, place) {
            (Some(segment), &Some(place)) if peer != members.rank => {
                Edge::Direct(DirectEdge::new(segment.clone(), own, place, start))
            }
            _ => Edge::Own,
        })
        .collect()
}

/// The sign that shows the end of each peer, or the reason why nothing does.
pub(super) type Signs = Vec<(u32, std::result::Result<Sign, String>)>;

/// Returns what to watch for the end of each peer: one descriptor per process of this host, and
/// each control connection.
pub(super) fn signs(infos: &[RankInfo], controls: &[Option<Arc<Control>>], rank: u32) -> Signs {
    let own = &infos[rank as usize].process;
    let sign = |(peer, RankInfo { process, .. }): (u32, &RankInfo)| {
        let control = controls.get(peer as usize).cloned().flatten();
        let sign = match control {
            _ if peer == rank => return None,
            Some(control) => Ok(Sign::Control(control)),
            // A peer in this process needs no sign: its reports are read in memory, as those of all
            // peers.
            None if process.id == own.id => Ok(Sign::Memory),
            None if process.pid_namespace != own.pid_namespace => Ok(Sign::Pulse),
            None => watch_process(process.pid),
        };
        Some((peer, sign))
    };
    (0u32..).zip(infos).filter_map(sign).collect()
}

fn watch_process(pid: u32) -> std::result::Result<Sign, String> {
    let pid = rustix::process::Pid::from_raw(pid as i32);
    let open = |pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    match pid.map(open) {
        Some(Ok(fd)) => Ok(Sign::Process(fd)),
        Some(Err(rustix::io::Errno::SRCH)) => Err("its process ended".to_owned()),
        _ => Ok(Sign::Pulse),
    }
}

/// Makes the monitor watch all peers by these signs. A peer without a sign is taken as lost.
pub(super) fn watch(rank: &Arc<Rank>, signs: Signs) -> Result<()> {
    for (peer, sign) in signs {
        match sign {
            Ok(sign) => monitor::watch(rank, peer, sign)?,
            Err(why) => rank.lose(peer, why),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_without_a_culprit_tells_what_this_rank_lacks() {
        let lacking = || "no connection with ranks [3] (rank 3: refused)".to_owned();
        let missed = Error::Init { why: "rank 1 did not come".to_owned() };
        let text = explained(missed, 1, lacking).to_string();
        assert!(text.contains("rank 1 did not come; rank 1 has no connection with ranks [3]"));
        let named = Error::init_death(2, "its process ended");
        let text = explained(named.clone(), 1, lacking).to_string();
        assert_eq!(text, named.to_string());
    }
}
