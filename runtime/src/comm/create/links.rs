//! Connections with the ranks of other hosts: one for control, and then one for data, or one in
//! each direction. All are made concurrently, so that no rank waits for a rank that itself waits.
//! In a large communicator only a few control connections are made here; the rest is made at first
//! use.

use super::members::Members;
use super::{Rendezvous, switch};
use crate::bootstrap::auth::{Ends, Role};
use crate::bootstrap::dial::Dial;
use crate::bootstrap::door::{Admission, Door};
use crate::bootstrap::id::{decode_address, encode_address};
use crate::bootstrap::wire::wait_for;
use crate::bootstrap::{Deadline, Gather, interface, session};
use crate::comm::Options;
use crate::comm::rank_info::RankInfo;
use crate::config::Config;
use crate::device::{self, Device};
use crate::error::{Error, Result};
use crate::link::control::Control;
use crate::link::direct::{DirectEdge, Segment};
use crate::link::message::{HEADER_BYTES, Identity, Joining, MessageEdge, Unconnected};
use crate::link::{Edge, MESSAGE_BYTES, edge_slot_bytes};
use crate::plugin::net::{self, Agreed, Chosen, Need};
use crate::rank::monitor::{self, Sign};
use crate::rank::{Connector, Rank, Route};
use oxccl_net::{Net, Properties};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest pause between two looks at connections that show nothing by descriptors.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The links to the ranks of other hosts.
#[derive(Default)]
pub(super) struct Links {
    /// The edges to each rank, one per lane.
    pub(super) edges: Vec<(u32, Vec<MessageEdge>)>,
    /// The network's device.
    pub(super) device: Option<Properties>,
    /// The names of the network and its device, and over TCP the address of this rank.
    pub(super) net: Option<String>,
    /// The network in errors, with its plugin.
    pub(super) label: Option<String>,
    /// The control connections, by rank; `None` for ranks of this host, and without one.
    pub(super) controls: Vec<Option<Arc<Control>>>,
    /// The way to the ranks that are connected at first use; `None` if all are connected.
    route: Option<Route>,
    /// The switch of this rank's rail; `None` without one.
    pub(super) switch: Option<switch::Switch>,
    /// The threads that make calls for the links.
    pub(super) threads: usize,
    /// Bytes of the slots of edges between hosts; `None` without some.
    pub(super) slot_bytes: Option<usize>,
}

/// Makes all connections. Blocks for the ranks of other hosts, until the rendezvous says that one
/// of them has failed. Fails if connections are to be encrypted: those for data are not.
pub(super) fn connect(
    identity: Identity,
    members: &Members,
    control: &TcpListener,
    rendezvous: &mut Rendezvous,
    (options, device): (&Options, Device),
) -> Result<Links> {
    if rendezvous.session.is_encrypted() {
        let what = "ncclSetEncryption: connections for data between hosts cannot be encrypted yet";
        return Err(Error::usage(what, "keep all ranks on one host, or encrypt below the library"));
    }
    let slot_bytes = device.edge_slot_bytes(identity.nranks, false);
    let need = Need {
        comm: identity.comm,
        name: options.net_name.as_deref(),
        traffic_class: options.traffic_class,
        address: interface::beside(members.address(identity.rank), Config::get())?,
        peers: members.remote().len(),
        message_bytes: HEADER_BYTES + slot_bytes,
        least_bytes: HEADER_BYTES + slot_bytes.min(edge_slot_bytes(identity.nranks)),
        place: members.own_place(),
        limit: options.init_limit(),
        prepare: Arc::new(move || device::prepare_thread(device)),
    };
    let chosen = net::choose(&need)?;
    let (lanes, slot_bytes) = agree(&chosen, &need, device.lanes(), rendezvous)?;
    let net_device = chosen.net.properties(chosen.device)?;
    let net_name = name_of(&chosen, &net_device, &need);
    let (net, threads, label) = ((chosen.net, chosen.device), chosen.threads, chosen.label);
    let data = (net, (lanes, slot_bytes));
    let mut making = match members.connects_at_first_use() {
        false => {
            let addresses = members.infos.iter().map(|info| info.control).collect();
            let failed = |e| Error::system("dup of a listener", e, "raise ulimit -n");
            let listener = control.try_clone().map_err(failed)?;
            Making::new(identity, members.remote(), (listener, addresses), (data, true))?
        }
        true => {
            // Later meetings listen at the other one.
            let listener = session::listen(need.address)?;
            let addresses = meet(&listener, rendezvous)?;
            Making::new(identity, members.neighbours(), (listener, addresses), (data, false))?
        }
    };
    loop {
        if let Err(error) = making.progress() {
            // The connections end after the others have heard why.
            return Err(rendezvous.session.announce(error));
        }
        let missing = making.missing();
        if missing.is_empty() {
            let links = making.finish(options.init_limit())?;
            // Messages of plans with a switch are not larger.
            let of_switch = slot_bytes.min(MESSAGE_BYTES);
            let switch = switch::connect((identity, device), members, rendezvous, of_switch)?;
            let threads = threads + usize::from(switch.is_some());
            let (device, net, label) = (Some(net_device), Some(net_name), Some(label));
            let slot_bytes = Some(slot_bytes);
            return Ok(Links { threads, switch, device, net, label, slot_bytes, ..links });
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

/// Returns the names of a network and its device, and over TCP the address of this rank.
fn name_of(chosen: &Chosen, device: &Properties, need: &Need<'_>) -> String {
    let name = format!("{} {}", chosen.net.name(), device.name);
    // Of a plugin's device the address is not known.
    match chosen.net.is_open_to_strangers() {
        true => format!("{name} ({})", need.address.ip()),
        false => name,
    }
}

/// Returns the number of lanes, at most `wanted`, and the bytes of their slots, which all ranks
/// have over the network that they have chosen. Fails if they have chosen different ones.
fn agree(
    chosen: &Chosen,
    need: &Need<'_>,
    wanted: usize,
    rendezvous: &mut Rendezvous,
) -> Result<(usize, usize)> {
    let (lanes, message_bytes) = (chosen.lanes(need, wanted)?, chosen.message_bytes(need)?);
    let own = chosen.agreement(Agreed { lanes, message_bytes });
    let Agreed { lanes, message_bytes } = net::agree(&rendezvous.gather(&own)?)?;
    // A power of two, as all slots have, so that they begin at multiples of 16 bytes.
    Ok((lanes, 1 << message_bytes.saturating_sub(HEADER_BYTES).max(1).ilog2()))
}

/// Tells the others where this rank listens; returns the addresses of all, by rank.
fn meet(listener: &TcpListener, rendezvous: &mut Rendezvous) -> Result<Vec<SocketAddr>> {
    let failed = |e| Error::system("getsockname", e, "");
    let own = encode_address(listener.local_addr().map_err(failed)?);
    let told = rendezvous.gather(&own)?;
    let address = |(rank, bytes): (usize, &Vec<u8>)| {
        let address = bytes.first_chunk().and_then(decode_address);
        address.ok_or_else(|| Error::Init { why: format!("rank {rank} sent a bad address") })
    };
    told.iter().enumerate().map(address).collect()
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

/// A network with this rank's device, and the number of lanes with the bytes of their slots.
type Data = ((Arc<dyn Net>, usize), (usize, usize));

/// Connections in the making.
struct Making {
    identity: Identity,
    peers: Vec<u32>,
    /// The addresses where the ranks take control connections, by rank.
    addresses: Vec<SocketAddr>,
    /// The network, and this rank's device.
    net: (Arc<dyn Net>, usize),
    /// The number of lanes, and the bytes of their slots.
    lanes: (usize, usize),
    /// True if data connections are made, too.
    data: bool,
    door: Door,
    dials: Vec<(u32, Dial)>,
    controls: BTreeMap<u32, Arc<Control>>,
    /// Data connections, with the peers with a control connection.
    joining: BTreeMap<u32, Joining>,
}

impl Making {
    fn new(
        identity: Identity,
        peers: Vec<u32>,
        (listener, addresses): (TcpListener, Vec<SocketAddr>),
        ((net, lanes), data): (Data, bool),
    ) -> Result<Self> {
        let Identity { comm, secret, rank, nranks } = identity;
        let ends = |from, to| Ends { role: Role::Control, from, to, comm };
        let admission = Admission { secret, ends: ends(0, rank), nranks };
        let door = Door::new(listener.into(), admission)?;
        // Of two ranks the lower one makes the control connection.
        let dial = |&peer: &u32| {
            let at = addresses[peer as usize];
            (peer, Dial::new(at.into(), at.to_string(), secret, ends(rank, peer)))
        };
        let dials = peers.iter().filter(|peer| rank < **peer).map(dial).collect();
        let (controls, joining) = Default::default();
        Ok(Self { identity, peers, addresses, net, lanes, data, door, dials, controls, joining })
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
        self.joining.values_mut().try_for_each(|joining| {
            joining.receive()?;
            joining.progress(now)
        })
    }

    /// Begins to make the data connections with a peer. A peer that makes another control
    /// connection has lost its earlier one.
    fn join(&mut self, peer: u32, control: Control) -> Result<()> {
        let control = Arc::new(control);
        self.controls.insert(peer, control.clone());
        if self.data {
            let joining = Joining::new(self.identity, peer, self.net.clone(), control, self.lanes)?;
            self.joining.insert(peer, joining);
        }
        Ok(())
    }

    fn missing(&self) -> Vec<u32> {
        let joined = |peer: &u32| self.joining.get(peer).is_some_and(Joining::is_complete);
        let complete = |peer: &u32| match self.data {
            true => joined(peer),
            false => self.controls.contains_key(peer),
        };
        self.peers.iter().copied().filter(|peer| !complete(peer)).collect()
    }

    fn wait(&self, rendezvous: &Rendezvous, limit: Duration) {
        let (mut fds, now) = (vec![rendezvous.session.poll_fd()], Instant::now());
        self.door.poll_fds(&mut fds);
        fds.extend(self.dials.iter().filter_map(|(_, dial)| dial.poll_fd()));
        fds.extend(self.joining.values().filter_map(Joining::control_fd));
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

    fn finish(self, limit: Duration) -> Result<Links> {
        let mut links = Links::default();
        links.controls.resize_with(self.identity.nranks as usize, || None);
        for (peer, control) in self.controls {
            links.controls[peer as usize] = Some(control);
        }
        for (peer, joining) in self.joining {
            let none = || Error::init_peer(peer, "has no data connection");
            links.edges.push((peer, joining.finish().ok_or_else(none)?));
        }
        let Self { identity, net, lanes, addresses, door, .. } = self;
        let route = Route { identity, net, lanes, addresses, door, limit };
        links.route = (!self.data).then_some(route);
        Ok(links)
    }
}

impl Links {
    /// Adds edges to the ranks that are connected at first use, if there are such.
    pub(super) fn add_unconnected(
        &mut self,
        rank: &Arc<Rank>,
        members: &Members,
        edges: &mut [Edge],
    ) -> Result<()> {
        let Some(route) = self.route.take() else { return Ok(()) };
        let unconnected: Vec<(u32, Arc<Unconnected>)> =
            Connector::start(rank, route, &members.remote())?;
        for (peer, edge) in unconnected {
            edges[peer as usize] = Edge::Unconnected(edge);
        }
        Ok(())
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
/// each control connection. A peer of another host without one is watched by others.
pub(super) fn signs(members: &Members, controls: &[Option<Arc<Control>>]) -> Signs {
    let Members { rank, infos, local, .. } = members;
    let own = &infos[*rank as usize].process;
    let sign = |(peer, RankInfo { process, .. }): (u32, &RankInfo)| {
        let control = controls.get(peer as usize).cloned().flatten();
        let sign = match control {
            _ if peer == *rank => return None,
            Some(control) => Ok(Sign::Control(control)),
            // Others watch it.
            None if local[peer as usize].is_none() => return None,
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
    rank.connector().map_or(Ok(()), |connector| connector.serve())
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
