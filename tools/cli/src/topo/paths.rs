//! The paths that data take between ranks, by the class of the pair.

use oxccl_runtime::device::{GpuLinks, Link};
use serde::Serialize;

/// The path between ranks of a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Path {
    /// The pairs of ranks.
    pub(super) between: String,
    pub(super) path: String,
}

/// The facts about the network between hosts.
pub(super) struct Network {
    /// The interfaces that the library's own transport takes, the best first.
    pub(super) interfaces: Vec<String>,
    /// The value of `NCCL_NET_PLUGIN`.
    pub(super) plugin: String,
}

/// Returns the name of a link.
pub(super) fn name(link: Link) -> &'static str {
    match link {
        Link::Own => "-",
        Link::NvLink => "NVLink",
        Link::Pcie => "PCIe",
        Link::HostMemory => "host",
    }
}

/// Returns the pairs of GPUs, the lower number first, each with the worse of its two directions.
pub(super) fn pairs(gpus: &[GpuLinks]) -> Vec<([i32; 2], Link)> {
    let worse = |a: Link, b: Link| {
        let order = [Link::HostMemory, Link::Pcie, Link::NvLink];
        order.into_iter().find(|link| [a, b].contains(link)).unwrap_or(a)
    };
    let mut all = Vec::new();
    for (i, a) in gpus.iter().enumerate() {
        for (j, b) in gpus.iter().enumerate().skip(i + 1) {
            if let (Some(&there), Some(&back)) = (a.links.get(j), b.links.get(i)) {
                all.push(([a.index, b.index], worse(there, back)));
            }
        }
    }
    all
}

fn between_gpus(gpus: &[GpuLinks], forbidden: bool) -> Vec<Path> {
    let pairs = pairs(gpus);
    if pairs.is_empty() {
        return Vec::new();
    }
    let path = |between: String, path: &str| Path { between, path: path.to_owned() };
    if forbidden {
        let way = "host memory, as NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access";
        return vec![path("GPUs of this host".to_owned(), way)];
    }
    let of = |wanted: Link| -> Vec<String> {
        let pairs = pairs.iter().filter(|(_, link)| *link == wanted);
        pairs.map(|([a, b], _)| format!("{a}-{b}")).collect()
    };
    let mut paths = Vec::new();
    for (link, way) in [
        (Link::NvLink, "direct, over NVLink: GPUs write to each other's memory"),
        (Link::Pcie, "direct, over PCIe: GPUs write to each other's memory"),
        (
            Link::HostMemory,
            "host memory, also for all other GPUs of a communicator with such a pair",
        ),
    ] {
        let of = of(link);
        let between = match of.len() == pairs.len() {
            true => "all GPUs of this host".to_owned(),
            false => format!("GPUs {}", of.join(", ")),
        };
        if !of.is_empty() {
            paths.push(path(between, way));
        }
    }
    paths
}

/// Returns the paths between ranks of this host and to other hosts. `gpus` is an error if there are
/// GPUs and the driver cannot be asked for their links; `forbidden` says that variables forbid peer
/// access.
pub(super) fn paths(
    gpus: Result<&[GpuLinks], &str>,
    forbidden: bool,
    network: &Network,
) -> Vec<Path> {
    let path = |between: &str, path: String| Path { between: between.to_owned(), path };
    let mut paths = vec![path("host memory of this host", "shared memory".to_owned())];
    match gpus {
        Ok(gpus) => paths.extend(between_gpus(gpus, forbidden)),
        Err(why) => {
            let text = format!("not known, as the driver cannot be asked: {why}");
            paths.push(path("GPUs of this host", text));
        }
    }
    let tcp = match network.interfaces.as_slice() {
        [] => "no interface, so other hosts cannot be reached by TCP".to_owned(),
        names => format!("the network, by TCP over {}", names.join(", ")),
    };
    let way = match network.plugin.as_str() {
        "none" => tcp,
        "" => format!("{tcp}; libnccl-net.so instead, if it is there"),
        plugin => format!("the network, by NCCL_NET_PLUGIN={plugin} if it can be used; else {tcp}"),
    };
    paths.push(path("this host and others", way));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(links: &[&[Link]]) -> Vec<GpuLinks> {
        let gpu = |(i, links): (usize, &&[Link])| GpuLinks {
            index: i as i32,
            pci: format!("0000:0{i}:00.0"),
            links: links.to_vec(),
        };
        links.iter().enumerate().map(gpu).collect()
    }

    fn network(plugin: &str) -> Network {
        Network { interfaces: vec!["ib0".to_owned()], plugin: plugin.to_owned() }
    }

    #[test]
    fn each_class_of_pairs_has_a_path() {
        use Link::{HostMemory, NvLink, Own, Pcie};
        let all = gpus(&[&[Own, NvLink, Pcie], &[NvLink, Own, Pcie], &[Pcie, HostMemory, Own]]);
        let found = paths(Ok(&all), false, &network("none"));
        let between: Vec<&str> = found.iter().map(|path| &*path.between).collect();
        let this = "host memory of this host";
        assert_eq!(between, [this, "GPUs 0-1", "GPUs 0-2", "GPUs 1-2", "this host and others"]);
        assert!(found[1].path.contains("NVLink") && found[2].path.contains("over PCIe"));
        assert!(found[3].path.starts_with("host memory"), "{found:?}");
        assert_eq!(found[4].path, "the network, by TCP over ib0");
        let even = gpus(&[&[Own, NvLink], &[NvLink, Own]]);
        assert_eq!(paths(Ok(&even), false, &network(""))[1].between, "all GPUs of this host");
        let found = paths(Ok(&even), true, &network(""));
        assert!(found.len() == 3 && found[1].path.contains("NCCL_P2P_DISABLE"), "{found:?}");
    }

    #[test]
    fn what_is_missing_is_said() {
        let none = Network { interfaces: Vec::new(), plugin: "ib".to_owned() };
        let found = paths(Err("no driver"), false, &none);
        assert!(found[1].path.contains("no driver"), "{found:?}");
        assert!(
            found[2].path.contains("NCCL_NET_PLUGIN=ib") && found[2].path.contains("no interf")
        );
        assert_eq!(paths(Ok(&[]), true, &network("")).len(), 2);
        let torn = gpus(&[&[], &[Link::NvLink]]);
        assert!(pairs(&torn).is_empty());
    }
}
