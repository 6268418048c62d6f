//! Devices: the active ports of the adapters.

use crate::options::{Network, Options};
use crate::setup;
use crate::verbs::{Adapter, HINT};
use ibverbs_sys::{
    IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND,
    ibv_gid_entry, ibv_port_attr, ibv_port_state,
};
use oxccl_net::tcp::Tcp;
use oxccl_net::{Connecting, Error, HOST, Handle, Listener, Net, Properties, Result};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// The most bytes of a message; sizes are C's integers for plugins.
const MAX_BYTES: u64 = 1 << 30;

/// The mark of ports that need a global header for every packet (`IBV_QPF_GRH_REQUIRED`).
const GRH_REQUIRED: u8 = 1;

/// A port of an adapter.
pub(crate) struct Device {
    pub(crate) adapter: Arc<Adapter>,
    port: Port,
    max_connections: i32,
}

/// The facts about a port.
struct Port {
    number: u8,
    ethernet: bool,
    attributes: ibv_port_attr,
    /// The GID, and its place in the port's table.
    gid: (u8, [u8; 16]),
}

/// The address of a port, as peers are told it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PortAddress {
    lid: u16,
    gid: [u8; 16],
    ethernet: bool,
    mtu: u32,
}

/// The attributes of a way from a port to one of a peer.
pub(crate) struct Path {
    pub(crate) port: u8,
    pub(crate) mtu: u32,
    pub(crate) lid: u16,
    /// The peer's GID; `None` within a subnet of InfiniBand.
    pub(crate) gid: Option<[u8; 16]>,
    pub(crate) gid_index: u8,
    pub(crate) pkey_index: u16,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
}

impl Device {
    /// Returns the ports that are active and admitted. Fails only if there are none left.
    pub(crate) fn all(options: &Options) -> Result<Vec<Arc<Self>>> {
        let (mut devices, mut trouble) = (Vec::new(), Ok(()));
        for adapter in Adapter::all(|name| options.adapters.admit_adapter(name)) {
            match Self::of(&adapter, options) {
                Ok(of) => of.into_iter().for_each(|device| match device {
                    Ok(device) => devices.push(Arc::new(device)),
                    Err(error) => trouble = trouble.clone().and(Err(error)),
                }),
                Err(error) => trouble = trouble.and(Err(error)),
            }
        }
        // Other ports serve in place of one that cannot.
        if devices.is_empty() { trouble.map(|()| devices) } else { Ok(devices) }
    }

    /// Returns the ports of an adapter that are active and admitted.
    fn of(adapter: &Arc<Adapter>, options: &Options) -> Result<Vec<Result<Self>>> {
        let attributes = adapter.attributes()?;
        let most = attributes.max_qp / options.queue_pairs as i32;
        let ports = 1..=attributes.phys_port_cnt;
        let ports = ports.filter(|port| options.adapters.admit(&adapter.name, *port));
        let device = |port| Self::new(adapter, port, most, options).transpose();
        Ok(ports.filter_map(device).collect())
    }

    /// Returns a port; `None` if it is not active, or neither InfiniBand nor Ethernet.
    fn new(
        adapter: &Arc<Adapter>,
        port: u8,
        max_connections: i32,
        options: &Options,
    ) -> Result<Option<Self>> {
        let attributes = adapter.port(port)?;
        if attributes.state != ibv_port_state::IBV_PORT_ACTIVE {
            return Ok(None);
        }
        let ethernet = match u32::from(attributes.link_layer) {
            IBV_LINK_LAYER_ETHERNET => true,
            IBV_LINK_LAYER_INFINIBAND => false,
            _ => return Ok(None),
        };
        let most = usize::try_from(attributes.gid_tbl_len).unwrap_or(0);
        let mut table = adapter.gids(most * usize::from(adapter.attributes()?.phys_port_cnt))?;
        table.retain(|entry| entry.port_num == u32::from(port));
        let wanted = Wanted::new(ethernet, options);
        let gid = choose(&table, &wanted).ok_or_else(|| {
            let place = wanted.index.map(|index| format!(" at place {index}"));
            let network = wanted.network.as_ref();
            let network = network.map(|network| format!(" in NCCL_IB_ADDR_RANGE={network}"));
            let which = place.or(network).unwrap_or_default();
            let call = format!("port {port} of {}", adapter.name);
            Error::new(call, format!("it has no GID{which}"), HINT)
        })?;
        if options.pkey_index > 0 && options.pkey_index >= attributes.pkey_tbl_len {
            let call = format!("port {port} of {}", adapter.name);
            let (index, last) = (options.pkey_index, attributes.pkey_tbl_len.saturating_sub(1));
            let cause =
                format!("NCCL_IB_PKEY={index}: its partition keys are at places 0 to {last}");
            return Err(Error::new(call, cause, HINT));
        }
        let (adapter, port) = (adapter.clone(), Port { number: port, ethernet, attributes, gid });
        Ok(Some(Self { adapter, port, max_connections }))
    }

    /// Returns the address for peers.
    pub(crate) fn address(&self) -> PortAddress {
        let Port { ethernet, ref attributes, gid: (_, gid), .. } = self.port;
        PortAddress { lid: attributes.lid, gid, ethernet, mtu: attributes.active_mtu }
    }

    /// Returns the device's name for texts.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.adapter.name, self.port.number)
    }

    /// Returns the way to a peer for packets of a traffic class. Fails unless both are InfiniBand,
    /// or both Ethernet.
    pub(crate) fn path(
        &self,
        to: &PortAddress,
        traffic_class: u8,
        options: &Options,
    ) -> Result<Path> {
        if to.ethernet != self.port.ethernet {
            let layer = |ethernet| if ethernet { "Ethernet" } else { "InfiniBand" };
            let (own, theirs) = (layer(self.port.ethernet), layer(to.ethernet));
            let cause = format!("this side has {own}, the peer {theirs}");
            return Err(Error::new(format!("connecting {}", self.name()), cause, HINT));
        }
        Ok(self.port.path(to, traffic_class, options))
    }

    /// Returns the most bytes of a message.
    pub(crate) fn max_bytes(&self) -> u64 {
        MAX_BYTES.min(u64::from(self.port.attributes.max_msg_sz))
    }

    fn properties(&self) -> Properties {
        let name = &self.adapter.name;
        let place = std::fs::canonicalize(format!("/sys/class/infiniband/{name}/device"));
        let ibv_port_attr { active_speed, active_width, .. } = self.port.attributes;
        Properties {
            name: self.name(),
            pci_path: place.ok().map(|path| path.display().to_string()),
            memory: HOST,
            speed_mbps: speed_mbps(active_speed, active_width),
            flushes_always: false,
            offloaded: false,
            max_connections: self.max_connections,
            max_bytes: self.max_bytes(),
        }
    }
}

impl Port {
    /// Returns the way to a port of the same kind.
    fn path(&self, to: &PortAddress, traffic_class: u8, options: &Options) -> Path {
        let subnet = |gid: &[u8; 16]| gid[..8].to_owned();
        let required = self.attributes.flags & GRH_REQUIRED != 0;
        let global = self.ethernet || required || subnet(&to.gid) != subnet(&self.gid.1);
        Path {
            port: self.number,
            mtu: self.attributes.active_mtu.min(to.mtu),
            lid: to.lid,
            gid: global.then_some(to.gid),
            gid_index: self.gid.0,
            pkey_index: options.pkey_index,
            service_level: options.service_level,
            traffic_class,
            timeout: options.timeout,
            retries: options.retries,
        }
    }
}

/// Returns the speed of a port from the two numbers of its attributes, which are powers of two
/// (`ibv_query_port(3)`; the speeds are those of NCCL).
fn speed_mbps(speed: u8, width: u8) -> i32 {
    let lane = match speed {
        1 => 2500,
        2 => 5000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 200_000,
    };
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    lane * lanes
}

/// The demands on a GID.
struct Wanted {
    /// The place in the table; `None` chooses by what follows.
    index: Option<u32>,
    roce_version: u32,
    ipv6: bool,
    /// The network without which none serves.
    network: Option<Network>,
}

impl Wanted {
    fn new(ethernet: bool, options: &Options) -> Self {
        let index = if ethernet { options.gid_index } else { Some(0) };
        let &Options { roce_version, ipv6, .. } = options;
        Self { index, roce_version, ipv6, network: options.network.clone() }
    }
}

/// Chooses a GID of a port: one of the version of RoCE and the address family asked for, with an
/// address that is valid beyond the link; the first of those that have most of this.
fn choose(table: &[ibv_gid_entry], wanted: &Wanted) -> Option<(u8, [u8; 16])> {
    // SAFETY: any bytes are a GID.
    let raw = |entry: &ibv_gid_entry| unsafe { entry.gid.raw };
    let is_there = |entry: &&ibv_gid_entry| raw(entry) != [0; 16] && entry.gid_index <= 255;
    let is_within = |entry: &&ibv_gid_entry| {
        let address = Ipv6Addr::from(raw(entry));
        let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
        wanted.network.as_ref().is_none_or(|network| network.holds(address))
    };
    let merit = |entry: &&ibv_gid_entry| {
        let address = Ipv6Addr::from(raw(entry));
        let kind =
            if wanted.roce_version == 1 { IBV_GID_TYPE_ROCE_V1 } else { IBV_GID_TYPE_ROCE_V2 };
        (
            entry.gid_type == kind,
            address.to_ipv4_mapped().is_some() != wanted.ipv6,
            !address.is_unicast_link_local(),
            std::cmp::Reverse(entry.gid_index),
        )
    };
    let mut there = table.iter().filter(is_there);
    let chosen = match wanted.index {
        Some(index) => there.find(|entry| entry.gid_index == index),
        None => there.filter(is_within).max_by_key(merit),
    };
    chosen.map(|entry| (entry.gid_index as u8, raw(entry)))
}

/// The transport.
pub(crate) struct Ib {
    devices: Vec<Arc<Device>>,
    options: Arc<Options>,
    /// The way for what peers tell each other to connect.
    tcp: Arc<Tcp>,
}

impl Ib {
    pub(crate) fn new(devices: Vec<Arc<Device>>, options: Options, tcp: Tcp) -> Self {
        Self { devices, options: Arc::new(options), tcp: Arc::new(tcp) }
    }

    fn device(&self, device: usize) -> Result<Arc<Device>> {
        let number = self.devices.len();
        let none = || Error::new(format!("device {device}"), format!("of {number} devices"), HINT);
        self.devices.get(device).cloned().ok_or_else(none)
    }
}

impl Net for Ib {
    fn name(&self) -> &str {
        "OxCCL-IB"
    }

    fn devices(&self) -> usize {
        self.devices.len()
    }

    fn properties(&self, device: usize) -> Result<Properties> {
        Ok(self.device(device)?.properties())
    }

    fn listen(&self, device: usize) -> Result<(Handle, Box<dyn Listener>)> {
        setup::listen(self.device(device)?, self.options.clone(), self.tcp.clone())
    }

    fn connect(&self, device: usize, handle: Handle) -> Result<Box<dyn Connecting>> {
        setup::connect((self.device(device)?, self.options.clone()), &self.tcp, handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs;

    fn entry(index: u32, gid_type: u32, address: &str) -> ibv_gid_entry {
        let address: std::net::IpAddr = address.parse().unwrap();
        let mut entry =
            ibv_gid_entry { gid_index: index, port_num: 1, gid_type, ..Default::default() };
        entry.gid.raw = match address {
            std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(address) => address.octets(),
        };
        entry
    }

    fn table() -> [ibv_gid_entry; 7] {
        [
            entry(0, IBV_GID_TYPE_ROCE_V1, "fe80::1"),
            entry(1, IBV_GID_TYPE_ROCE_V2, "fe80::1"),
            entry(2, IBV_GID_TYPE_ROCE_V1, "192.0.2.1"),
            entry(3, IBV_GID_TYPE_ROCE_V2, "192.0.2.1"),
            entry(4, IBV_GID_TYPE_ROCE_V2, "192.0.2.9"),
            entry(5, IBV_GID_TYPE_ROCE_V2, "2001:db8::1"),
            entry(6, IBV_GID_TYPE_ROCE_V2, "::"),
        ]
    }

    #[test]
    fn a_gid_is_chosen_by_version_family_and_reach() {
        let chosen = |index, roce_version, ipv6| {
            let wanted = Wanted { index, roce_version, ipv6, network: None };
            choose(&table(), &wanted).map(|(index, _)| index)
        };
        assert_eq!(chosen(None, 2, false), Some(3));
        assert_eq!(chosen(None, 1, false), Some(2));
        assert_eq!(chosen(None, 2, true), Some(5));
        assert_eq!(chosen(None, 1, true), Some(0));
        assert_eq!(chosen(Some(4), 2, false), Some(4));
        // A place without an address, and one beyond the table.
        assert_eq!((chosen(Some(6), 2, false), chosen(Some(9), 2, false)), (None, None));
    }

    #[test]
    fn variables_choose_the_gid() {
        let chosen = |ethernet, variables: &[(&str, &str)]| {
            let wanted = Wanted::new(ethernet, &Options::of(variables).unwrap());
            choose(&table(), &wanted).map(|(index, _)| index)
        };
        assert_eq!(chosen(true, &[]), Some(3));
        assert_eq!(chosen(true, &[("NCCL_IB_ROCE_VERSION_NUM", "1")]), Some(2));
        assert_eq!(chosen(true, &[("NCCL_IB_ADDR_FAMILY", "AF_INET6")]), Some(5));
        assert_eq!(chosen(true, &[("NCCL_IB_GID_INDEX", "4")]), Some(4));
        assert_eq!(chosen(false, &[("NCCL_IB_GID_INDEX", "4")]), Some(0));
        let within = |network| chosen(true, &[("NCCL_IB_ADDR_RANGE", network)]);
        assert_eq!(within("192.0.2.8/29"), Some(4));
        assert_eq!((within("2001:db8::/32"), within("198.51.100.0/24")), (Some(5), None));
    }

    #[test]
    fn variables_reach_the_attributes_of_queue_pairs() {
        let variables = [
            ("NCCL_IB_SL", "3"),
            ("NCCL_IB_PKEY", "6"),
            ("NCCL_IB_TIMEOUT", "14"),
            ("NCCL_IB_RETRY_CNT", "5"),
        ];
        let options = Options::of(&variables).unwrap();
        // SAFETY: numbers, of which zeros are valid.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        attributes.active_mtu = 5;
        let mut port = Port { number: 2, ethernet: true, attributes, gid: (9, [1; 16]) };
        let mut to = PortAddress { lid: 4, gid: [2; 16], ethernet: true, mtu: 3 };
        let path = port.path(&to, 106, &options);
        let initial = verbs::initial(&path);
        assert_eq!((initial.port_num, initial.pkey_index), (2, 6));
        let receiving = verbs::receiving(&path, 77);
        assert_eq!((receiving.dest_qp_num, receiving.path_mtu), (77, 3));
        let way = receiving.ah_attr;
        assert_eq!((way.port_num, way.dlid, way.sl, way.is_global), (2, 4, 3, 1));
        assert_eq!((way.grh.sgid_index, way.grh.traffic_class), (9, 106));
        // SAFETY: any bytes are a GID.
        assert_eq!(unsafe { way.grh.dgid.raw }, [2; 16]);
        let sending = verbs::sending(&path);
        assert_eq!((sending.timeout, sending.retry_cnt), (14, 5));
        // Within a subnet of InfiniBand the number of the port is enough.
        (port.ethernet, to.ethernet, to.gid) = (false, false, [1; 16]);
        let way = verbs::receiving(&port.path(&to, 106, &options), 77).ah_attr;
        assert_eq!((way.dlid, way.sl, way.is_global, way.grh.traffic_class), (4, 3, 0, 0));
    }

    #[test]
    fn speeds_are_those_of_lanes_times_their_number() {
        assert_eq!(speed_mbps(32, 2), 100_000);
        assert_eq!(speed_mbps(128, 2), 400_000);
        assert_eq!(speed_mbps(1, 1), 2500);
    }
}
