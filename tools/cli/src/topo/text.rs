//! A machine as a tree of texts, which is printed or drawn.

use super::paths::{self, Path};
use super::read::{Adapter, Caches, Gpu, Interface, Machine, Place, Port, Socket};
use crate::root::size;
use oxccl_plan::words::counted;
use oxccl_runtime::device::GpuLinks;

/// The kind of a part, by which it is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Machine,
    Node,
    Processors,
    Bridge,
    Gpu,
    Network,
}

/// A part of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) kind: Kind,
    pub(super) label: String,
    pub(super) children: Vec<Item>,
}

impl Item {
    fn new(kind: Kind, label: String) -> Self {
        Self { kind, label, children: Vec::new() }
    }

    fn leaves(kind: Kind, label: String, leaves: Vec<String>) -> Self {
        let children = leaves.into_iter().map(|label| Item::new(kind, label)).collect();
        Self { kind, label, children }
    }
}

/// Returns the texts that are there, behind each other.
fn joined(texts: &[Option<String>]) -> String {
    texts.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn socket(socket: &Socket) -> Item {
    let Socket { processors, count, cores, .. } = socket;
    let noun = if *count == 1 { "processor" } else { "processors" };
    let of = counted(*cores, "core", "cores");
    let label = format!("socket {}: {noun} {processors} of {of}", socket.socket);
    let caches = |caches: &Caches| {
        let Caches { level, bytes, shared_by, count } = caches;
        let shared = counted(*shared_by, "processor", "processors");
        match count {
            1 => format!("L{level} {}, of {shared}", size(*bytes)),
            _ => format!("{count} x L{level} {}, each of {shared}", size(*bytes)),
        }
    };
    Item::leaves(Kind::Processors, label, socket.caches.iter().map(caches).collect())
}

fn gpu(gpu: &Gpu) -> Item {
    let name = match gpu.gpu {
        Some(number) => format!("GPU {number}: {}", gpu.model),
        None => format!("GPU: {}", gpu.model),
    };
    let texts = [Some(name), Some(gpu.place.address.clone()), gpu.place.link.clone()];
    Item::new(Kind::Gpu, joined(&texts))
}

fn interface(interface: &Interface) -> String {
    let speed = interface.speed.map(|speed| match speed % 1000 {
        0 => format!("{} Gbit/s", speed / 1000),
        _ => format!("{speed} Mbit/s"),
    });
    let state = interface.state.clone().filter(|state| state != "unknown");
    let mtu = interface.mtu.map(|mtu| format!("MTU {mtu}"));
    joined(&[Some(interface.interface.clone()), state, mtu, speed])
}

fn port(port: &Port) -> String {
    let name = format!("{} port {}", port.adapter, port.port);
    joined(&[Some(name), port.layer.clone(), port.state.clone(), port.rate.clone()])
}

fn adapter(adapter: &Adapter) -> Item {
    let name = format!("network adapter: {}", adapter.vendor);
    let place = &adapter.place;
    let label = joined(&[Some(name), Some(place.address.clone()), place.link.clone()]);
    let ports = adapter.ports.iter().map(port);
    Item::leaves(
        Kind::Network,
        label,
        ports.chain(adapter.interfaces.iter().map(interface)).collect(),
    )
}

/// Adds a device below the root and the bridges above it.
fn add(items: &mut Vec<Item>, above: &[String], device: Item) {
    let Some((label, rest)) = above.split_first() else {
        items.push(device);
        return;
    };
    let known = items.iter().position(|item| item.kind == Kind::Bridge && item.label == *label);
    let at = known.unwrap_or_else(|| {
        items.push(Item::new(Kind::Bridge, label.clone()));
        items.len() - 1
    });
    add(&mut items[at].children, rest, device);
}

/// Leaves out the bridges that lead to one part only.
fn shortened(mut item: Item) -> Item {
    item.children = item.children.into_iter().map(shortened).collect();
    match item.kind == Kind::Bridge && item.children.len() == 1 {
        true => item.children.remove(0),
        false => item,
    }
}

/// Returns the parts that belong to a NUMA node, or to none.
fn parts(machine: &Machine, node: Option<u32>) -> Vec<Item> {
    let sockets = machine.sockets.iter().filter(|socket| socket.node == node);
    let mut items: Vec<Item> = sockets.map(socket).collect();
    let gpus = machine.gpus.iter().map(|part| (&part.place, gpu(part)));
    let adapters = machine.adapters.iter().map(|part| (&part.place, adapter(part)));
    let mut devices: Vec<(&Place, Item)> = gpus.chain(adapters).collect();
    devices.sort_by(|a, b| a.0.address.cmp(&b.0.address));
    for (place, device) in devices.into_iter().filter(|(place, _)| place.node == node) {
        let root = Some(&place.root).filter(|root| !root.is_empty());
        let root = root.map(|root| format!("PCI root {}", root.trim_start_matches("pci")));
        let bridges = place.bridges.iter().map(|bridge| format!("PCI bridge {bridge}"));
        let above: Vec<String> = root.into_iter().chain(bridges).collect();
        add(&mut items, &above, device);
    }
    items.into_iter().map(shortened).collect()
}

/// Returns the tree of a machine.
pub(super) fn tree(machine: &Machine, host: &str) -> Item {
    let processors: usize = machine.sockets.iter().map(|socket| socket.count).sum();
    let label = format!(
        "{host}: {}, {}, {}, {}",
        counted(machine.nodes.len(), "NUMA node", "NUMA nodes"),
        counted(processors, "processor", "processors"),
        counted(machine.gpus.len(), "GPU", "GPUs"),
        counted(machine.adapters.len(), "network adapter", "network adapters"),
    );
    let mut children = Vec::new();
    for node in &machine.nodes {
        let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
        let distances = (distances.len() > 1).then(|| format!("distances {}", distances.join(" ")));
        let name = Some(format!("NUMA node {}", node.node));
        let label = joined(&[name, node.memory.map(size), distances]);
        children.push(Item { kind: Kind::Node, label, children: parts(machine, Some(node.node)) });
    }
    let without = parts(machine, None);
    if !without.is_empty() {
        let label = "of no NUMA node that the system tells".to_owned();
        children.push(Item { kind: Kind::Node, label, children: without });
    }
    let interfaces: Vec<String> = machine.virtual_interfaces.iter().map(interface).collect();
    if !interfaces.is_empty() {
        let label = "interfaces without an adapter".to_owned();
        children.push(Item::leaves(Kind::Network, label, interfaces));
    }
    Item { kind: Kind::Machine, label, children }
}

/// Returns a tree with a line for each part.
pub(super) fn rendered(item: &Item) -> String {
    let mut text = format!("{}\n", item.label);
    render(item, "", &mut text);
    text
}

fn render(item: &Item, indent: &str, text: &mut String) {
    for (i, child) in item.children.iter().enumerate() {
        let is_last = i + 1 == item.children.len();
        let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        *text += &format!("{indent}{branch}{}\n", child.label);
        render(child, &format!("{indent}{below}"), text);
    }
}

/// Returns the links between the GPUs as a table; nothing for fewer than two.
pub(super) fn matrix(gpus: &[GpuLinks]) -> String {
    if gpus.len() < 2 {
        return String::new();
    }
    let columns: String = gpus.iter().map(|gpu| format!("{:>8}", gpu.index)).collect();
    let mut text = format!("\n# links between GPUs\n# GPU {columns}\n");
    for gpu in gpus {
        let links: String =
            gpu.links.iter().map(|link| format!("{:>8}", paths::name(*link))).collect();
        text += &format!("{:>6}{links}\n", gpu.index);
    }
    text
}

/// Returns a line for each path.
pub(super) fn of_paths(paths: &[Path]) -> String {
    let width = paths.iter().map(|path| path.between.chars().count()).max().unwrap_or(0);
    let mut text = "\n# paths of data between ranks\n".to_owned();
    for Path { between, path } in paths {
        text += &format!("{between:<width$}  {path}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_runtime::device::Link;

    fn part(address: &str, bridges: &[&str]) -> Gpu {
        let place = Place {
            address: address.to_owned(),
            root: "pci0000:00".to_owned(),
            bridges: bridges.iter().map(|bridge| (*bridge).to_owned()).collect(),
            ..Place::default()
        };
        Gpu { place, gpu: None, model: "X".to_owned() }
    }

    #[test]
    fn bridges_that_branch_are_shown_and_others_are_not() {
        let gpus = vec![part("3", &["0", "1"]), part("4", &["0", "2", "5"]), part("6", &["9"])];
        let machine = Machine { gpus, ..Machine::default() };
        let text = rendered(&tree(&machine, "node1"));
        let expected = "node1: 0 NUMA nodes, 0 processors, 3 GPUs, 0 network adapters\n\
                        └─ of no NUMA node that the system tells\n   \
                        └─ PCI root 0000:00\n      \
                        ├─ PCI bridge 0\n      │  ├─ GPU: X, 3\n      │  └─ GPU: X, 4\n      \
                        └─ GPU: X, 6\n";
        assert_eq!(text, expected);
        let alone = Machine { gpus: vec![part("3", &["0", "1"])], ..Machine::default() };
        let tree = tree(&alone, "node1");
        assert_eq!(tree.children[0].children[0].kind, Kind::Gpu);
    }

    #[test]
    fn links_are_a_table_of_two_gpus_at_least() {
        let gpu = |index: i32, links: [Link; 2]| GpuLinks {
            index,
            pci: String::new(),
            links: links.to_vec(),
        };
        let two = [gpu(0, [Link::Own, Link::NvLink]), gpu(1, [Link::HostMemory, Link::Own])];
        let text = matrix(&two);
        assert!(text.ends_with("     0       -  NVLink\n     1    host       -\n"), "{text}");
        assert_eq!(matrix(&two[..1]), "");
    }

    #[test]
    fn interfaces_tell_what_is_known() {
        let known = Interface {
            interface: "eth0".to_owned(),
            state: Some("up".to_owned()),
            mtu: Some(9000),
            speed: Some(100_000),
        };
        assert_eq!(interface(&known), "eth0, up, MTU 9000, 100 Gbit/s");
        let slow = Interface { speed: Some(2500), ..known.clone() };
        assert!(interface(&slow).ends_with("2500 Mbit/s"));
        let unknown = Interface { state: None, mtu: None, speed: None, ..known };
        assert_eq!(interface(&unknown), "eth0");
    }
}
