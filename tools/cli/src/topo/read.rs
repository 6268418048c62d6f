//! Reads the parts of a machine from `/sys` and `/proc`.

use crate::pci;
use crate::root::{Root, list, numbers};
use oxccl_runtime::device::GpuLinks;
use serde::Serialize;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Node {
    pub(super) node: u32,
    /// The memory in bytes; `None` if the system does not tell.
    pub(super) memory: Option<u64>,
    /// The distance to each node in the order of their numbers, as the firmware tells it.
    pub(super) distances: Vec<u32>,
}

/// Caches of the same level and size, each shared by equally many processors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Caches {
    pub(super) level: u32,
    pub(super) bytes: u64,
    /// The processors that share each of them.
    pub(super) shared_by: usize,
    pub(super) count: usize,
}

/// The processors of a socket that belong to one NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Socket {
    pub(super) node: Option<u32>,
    pub(super) socket: i32,
    /// The numbers of the processors, as a list of the kernel.
    pub(super) processors: String,
    pub(super) count: usize,
    pub(super) cores: usize,
    /// The caches from level 2 on.
    pub(super) caches: Vec<Caches>,
}

/// The place of a device on PCI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    pub(super) node: Option<u32>,
    pub(super) address: String,
    pub(super) root: String,
    pub(super) bridges: Vec<String>,
    /// The speed and width of the link.
    pub(super) link: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Gpu {
    #[serde(flatten)]
    pub(super) place: Place,
    /// The number of the GPU in this process; `None` if the driver does not show it here.
    pub(super) gpu: Option<i32>,
    /// The model, or the vendor.
    pub(super) model: String,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Interface {
    pub(super) interface: String,
    /// The state as the kernel names it, such as `up`.
    pub(super) state: Option<String>,
    pub(super) mtu: Option<u32>,
    /// The speed in Mbit/s.
    pub(super) speed: Option<u32>,
}

/// A port of an adapter for RDMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Port {
    /// The name of the adapter, such as `mlx5_0`.
    pub(super) adapter: String,
    pub(super) port: String,
    /// The state, such as `ACTIVE`.
    pub(super) state: Option<String>,
    pub(super) rate: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    pub(super) layer: Option<String>,
}

/// A network adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Adapter {
    #[serde(flatten)]
    pub(super) place: Place,
    pub(super) vendor: String,
    pub(super) interfaces: Vec<Interface>,
    pub(super) ports: Vec<Port>,
}

/// The parts of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) nodes: Vec<Node>,
    pub(super) sockets: Vec<Socket>,
    pub(super) gpus: Vec<Gpu>,
    pub(super) adapters: Vec<Adapter>,
    /// The interfaces that belong to no adapter on PCI.
    pub(super) virtual_interfaces: Vec<Interface>,
}

/// Reads a machine; `links` has the GPUs that the driver shows.
pub(super) fn machine(root: &Root, links: &[GpuLinks]) -> Machine {
    let devices = pci::devices(root);
    let nodes = nodes(root);
    // Where there is one node, all belongs to it, also what a virtual machine does not place.
    let only = (nodes.len() == 1).then(|| nodes[0].node);
    let place = |device: &pci::Device| Place {
        node: device.node.or(only),
        address: device.address.clone(),
        root: device.root.clone(),
        bridges: device.bridges.clone(),
        link: device.link.clone(),
    };
    let gpus = devices.iter().filter(|device| device.is_gpu());
    let gpus = gpus.map(|device| gpu(root, device, place(device), links)).collect();
    let network: Vec<&pci::Device> = devices.iter().filter(|device| device.is_network()).collect();
    let interfaces = with_addresses(root, "sys/class/net");
    let of_rdma = with_addresses(root, "sys/class/infiniband");
    let below = |named: &[(String, Option<String>)], address: &str| -> Vec<String> {
        let own = named.iter().filter(|(_, at)| at.as_deref() == Some(address));
        own.map(|(name, _)| name.clone()).collect()
    };
    let adapter = |device: &&pci::Device| Adapter {
        place: place(device),
        vendor: vendor(device),
        interfaces: interfaces_of(root, &below(&interfaces, &device.address)),
        ports: below(&of_rdma, &device.address).iter().flat_map(|name| ports(root, name)).collect(),
    };
    let is_on_pci = |at: &Option<String>| {
        at.as_ref().is_some_and(|at| network.iter().any(|device| device.address == *at))
    };
    let others = interfaces.iter().filter(|(_, at)| !is_on_pci(at));
    let others: Vec<String> = others.map(|(name, _)| name.clone()).collect();
    let machine = Machine {
        sockets: sockets(root, &nodes),
        nodes,
        gpus,
        adapters: network.iter().map(adapter).collect(),
        virtual_interfaces: interfaces_of(root, &others),
    };
    with_hidden(machine, links)
}

/// Adds the GPUs that the driver shows and `/sys` does not, as in some containers.
fn with_hidden(mut machine: Machine, links: &[GpuLinks]) -> Machine {
    for shown in links {
        if machine.gpus.iter().all(|gpu| gpu.place.address != shown.pci) {
            let place = Place { address: shown.pci.clone(), ..Place::default() };
            let model = "NVIDIA".to_owned();
            machine.gpus.push(Gpu { place, gpu: Some(shown.index), model });
        }
    }
    machine
}

fn vendor(device: &pci::Device) -> String {
    match device.vendor_name() {
        Some(name) => name.to_owned(),
        None => format!("vendor {:04x}", device.vendor),
    }
}

fn gpu(root: &Root, device: &pci::Device, place: Place, links: &[GpuLinks]) -> Gpu {
    let file = format!("proc/driver/nvidia/gpus/{}/information", device.address);
    let model = root.text(&file).and_then(|text| model(&text).map(str::to_owned));
    let shown = links.iter().find(|shown| shown.pci == device.address);
    Gpu {
        gpu: shown.map(|shown| shown.index),
        model: model.unwrap_or_else(|| vendor(device)),
        place,
    }
}

/// Returns the model in the text of a file `information` of NVIDIA's driver.
fn model(text: &str) -> Option<&str> {
    let name = text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim();
    (!name.is_empty()).then_some(name)
}

/// Returns the names in a folder of links, each with the address of its device on PCI.
fn with_addresses(root: &Root, folder: &str) -> Vec<(String, Option<String>)> {
    let address = |name: &String| {
        let place = root.link(&format!("{folder}/{name}"))?;
        place.rsplit('/').find(|part| pci::is_address(part)).map(str::to_owned)
    };
    let names = root.names(folder).into_iter();
    names.map(|name| (name.clone(), address(&name))).collect()
}

fn interfaces_of(root: &Root, names: &[String]) -> Vec<Interface> {
    let interface = |name: &String| Interface {
        interface: name.clone(),
        state: root.text(&format!("sys/class/net/{name}/operstate")),
        mtu: root.number(&format!("sys/class/net/{name}/mtu")),
        // Interfaces without a speed have -1 or 0, or refuse the read.
        speed: root.number(&format!("sys/class/net/{name}/speed")).filter(|speed| *speed > 0),
    };
    names.iter().map(interface).collect()
}

fn ports(root: &Root, adapter: &str) -> Vec<Port> {
    let folder = format!("sys/class/infiniband/{adapter}/ports");
    let port = |port: String| {
        let text = |file: &str| root.text(&format!("{folder}/{port}/{file}"));
        // The state has a number in front, as in `4: ACTIVE`.
        let state = text("state").map(|s| s.rsplit(':').next().unwrap_or("").trim().to_owned());
        let (rate, layer) = (text("rate"), text("link_layer"));
        Port { adapter: adapter.to_owned(), state, rate, layer, port }
    };
    root.names(&folder).into_iter().map(port).collect()
}

fn nodes(root: &Root) -> Vec<Node> {
    const FOLDER: &str = "sys/devices/system/node";
    let node = |name: String| {
        let number: u32 = name.strip_prefix("node")?.parse().ok()?;
        let memory = root.text(&format!("{FOLDER}/{name}/meminfo"));
        let distances = root.text(&format!("{FOLDER}/{name}/distance")).unwrap_or_default();
        Some(Node {
            node: number,
            memory: memory.and_then(|text| memory_bytes(&text, "MemTotal:")),
            distances: distances.split_whitespace().filter_map(|d| d.parse().ok()).collect(),
        })
    };
    root.names(FOLDER).into_iter().filter_map(node).collect()
}

/// Returns the bytes that a field has in the text of a file `meminfo`, of a node or of the host.
pub(crate) fn memory_bytes(text: &str, field: &str) -> Option<u64> {
    let (_, rest) = text.split_once(field)?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the bytes that a cache's file `size` tells, such as `32768K`.
fn cache_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M']);
    let unit = if text.ends_with('M') { 1 << 20 } else { 1 << 10 };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// The NUMA node and the socket of processors.
type Group = (Option<u32>, i32);

fn sockets(root: &Root, nodes: &[Node]) -> Vec<Socket> {
    const FOLDER: &str = "sys/devices/system/cpu";
    let list_at = |path: &str| root.text(path).and_then(|list| numbers(&list)).unwrap_or_default();
    let online = list_at(&format!("{FOLDER}/online"));
    let of_nodes: Vec<(u32, Vec<u32>)> = nodes
        .iter()
        .map(|n| (n.node, list_at(&format!("sys/devices/system/node/node{}/cpulist", n.node))))
        .collect();
    let node_of = |processor: u32| {
        of_nodes.iter().find(|(_, list)| list.contains(&processor)).map(|(node, _)| *node)
    };
    let mut groups: Vec<(Group, Vec<u32>)> = Vec::new();
    for &processor in &online {
        let file = format!("{FOLDER}/cpu{processor}/topology/physical_package_id");
        let key = (node_of(processor), root.number(&file).unwrap_or(0));
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, processors)) => processors.push(processor),
            None => groups.push((key, vec![processor])),
        }
    }
    groups.sort();
    let socket = |((node, socket), processors): (Group, Vec<u32>)| {
        let core = |p: &u32| root.number::<i64>(&format!("{FOLDER}/cpu{p}/topology/core_id"));
        let mut cores: Vec<_> = processors.iter().map(core).collect();
        cores.sort_unstable();
        cores.dedup();
        Socket {
            node,
            socket,
            processors: list(&processors),
            count: processors.len(),
            cores: cores.len(),
            caches: caches(root, &processors),
        }
    };
    groups.into_iter().map(socket).collect()
}

/// Returns the caches of some processors from level 2 on, the largest level first.
fn caches(root: &Root, processors: &[u32]) -> Vec<Caches> {
    let mut single: Vec<(u32, u64, Vec<u32>)> = Vec::new();
    for processor in processors {
        let folder = format!("sys/devices/system/cpu/cpu{processor}/cache");
        for index in root.names(&folder) {
            let text = |file: &str| root.text(&format!("{folder}/{index}/{file}"));
            let cache = || {
                let level: u32 = text("level")?.parse().ok()?;
                Some((level, cache_bytes(&text("size")?)?, numbers(&text("shared_cpu_list")?)?))
            };
            single.extend(cache().filter(|(level, ..)| *level > 1));
        }
    }
    single.sort();
    single.dedup();
    let mut all: Vec<Caches> = Vec::new();
    for (level, bytes, processors) in single {
        let shared_by = processors.len();
        let is_same =
            |c: &&mut Caches| (c.level, c.bytes, c.shared_by) == (level, bytes, shared_by);
        match all.iter_mut().find(is_same) {
            Some(caches) => caches.count += 1,
            None => all.push(Caches { level, bytes, shared_by, count: 1 }),
        }
    }
    all.sort_by(|a, b| b.cmp(a));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_runtime::device::Link;

    #[test]
    fn texts_of_the_system_are_read_or_refused() {
        assert_eq!(
            memory_bytes("Node 0 MemTotal:    20 kB\nNode 0 MemFree: 1 kB", "MemTotal:"),
            Some(20480)
        );
        assert_eq!(cache_bytes("32768K"), Some(32 << 20));
        assert_eq!(cache_bytes("2M"), Some(2 << 20));
        assert_eq!(model("Model: \t\t NVIDIA H100\nIRQ: 1\n"), Some("NVIDIA H100"));
        for text in ["", "\u{fffd}", "MemTotal:", "K", "Model:", "MemTotal: -1", "-1K", "Model: "] {
            let (memory, cache) = (memory_bytes(text, "MemTotal:"), cache_bytes(text));
            assert_eq!((memory, cache, model(text)), (None, None, None), "{text}");
        }
        assert_eq!(memory_bytes(&format!("MemTotal: {} kB", u64::MAX), "MemTotal:"), None);
        assert_eq!(cache_bytes(&format!("{}K", u64::MAX)), None);
    }

    #[test]
    fn a_gpu_that_only_the_driver_shows_is_added_once() {
        let shown = GpuLinks { index: 0, pci: "0000:01:00.0".to_owned(), links: vec![Link::Own] };
        let machine = with_hidden(Machine::default(), std::slice::from_ref(&shown));
        assert_eq!(machine.gpus[0].gpu, Some(0));
        assert_eq!(with_hidden(machine.clone(), &[shown]), machine);
    }

    #[test]
    fn a_machine_that_shows_nothing_has_no_parts() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = Root::from(folder.path().to_owned());
        assert_eq!(machine(&root, &[]), Machine::default());
    }
}
