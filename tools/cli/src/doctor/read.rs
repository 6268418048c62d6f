//! Reads what the checks judge.

use super::checks::gpu::Iommu;
use super::checks::limits::{self, Space};
use super::checks::network::{self, Interface};
use super::checks::processors::{self, Processors};
use super::checks::{Check, environment, gpu, libraries};
use super::ranks;
use crate::pci;
use crate::root::{Root, numbers};
use oxccl_net::interface::{admitted, found};
use oxccl_runtime::config::Config;
use oxccl_runtime::device;
use rustix::process::{Resource, getrlimit};
use std::process::Command;
use std::time::Duration;

/// Checks this machine, for so many ranks on it.
pub(super) fn machine(root: &Root, ranks: u32) -> Vec<Check> {
    let config = Config::get();
    let devices = pci::devices(root);
    let adapters = root.names("sys/class/infiniband");
    let device = device::current().map(|_| ()).map_err(|e| e.to_string());
    let mut checks = vec![environment(config, device)];
    checks.extend(limits_of(root, ranks, !adapters.is_empty()));
    checks.push(processors::processors(processors_of(root), ranks));
    checks.extend(network_of(root, config));
    checks.extend(gpus_of(root, &devices, &adapters));
    checks
}

fn limits_of(root: &Root, ranks: u32, has_rdma: bool) -> Vec<Check> {
    let files = getrlimit(Resource::Nofile);
    let space = rustix::fs::statvfs(root.at("dev/shm")).ok().map(|found| Space {
        total: found.f_blocks.saturating_mul(found.f_frsize),
        free: found.f_bavail.saturating_mul(found.f_frsize),
    });
    let scope = root.text("proc/sys/kernel/yama/ptrace_scope");
    let status = root.text("proc/self/status").unwrap_or_default();
    vec![
        limits::shared_memory(space),
        limits::locked_memory(getrlimit(Resource::Memlock).current, has_rdma),
        limits::open_files(files.current, files.maximum, ranks),
        limits::ptrace(scope.as_deref(), limits::may_read_all(&status)),
        limits::mappings(root.text("proc/sys/vm/max_map_count").as_deref()),
    ]
}

fn processors_of(root: &Root) -> Processors {
    let online = root.text("sys/devices/system/cpu/online").and_then(|list| numbers(&list));
    let affinity = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize);
    let groups = root.text("proc/self/cgroup").unwrap_or_default();
    let of_version_2 = above(processors::control_group(&groups, None)).filter_map(|folder| {
        processors::quota(&root.text(&format!("sys/fs/cgroup{folder}/cpu.max"))?)
    });
    let of_version_1 =
        above(processors::control_group(&groups, Some("cpu"))).filter_map(|folder| {
            let file =
                |name: &str| root.text(&format!("sys/fs/cgroup/cpu{folder}/cpu.cfs_{name}_us"));
            processors::quota(&format!("{} {}", file("quota")?, file("period")?))
        });
    let quota = of_version_2.chain(of_version_1).reduce(f64::min);
    Processors { online: online.map(|list| list.len()), affinity, quota }
}

/// Returns a folder and those above it, up to the first, whose name is empty. A container shows its
/// own group as the first.
fn above(folder: Option<&str>) -> impl Iterator<Item = &str> {
    let folder = folder.unwrap_or_default().trim_end_matches('/');
    let ends = folder.match_indices('/').map(|(at, _)| at).chain([folder.len()]);
    ends.map(move |end| &folder[..end])
}

fn network_of(root: &Root, config: &Config) -> Vec<Check> {
    let (names, family) = (&config.socket_ifname, &config.socket_family);
    let interfaces = match found() {
        Ok(found) => admitted(&found, names, family),
        Err(error) => {
            let text = format!("The network interfaces cannot be listed: {error}.");
            return vec![Check::failure("interface", text, "Is /proc/net readable?")];
        }
    };
    let interface = |found: oxccl_net::interface::Interface| Interface {
        state: state(root, &found.name),
        mtu: root.number(&format!("sys/class/net/{}/mtu", found.name)),
        // Interfaces without an adapter tell some number.
        mbits_s: root
            .link(&format!("sys/class/net/{}/device", found.name))
            .and_then(|_| root.number(&format!("sys/class/net/{}/speed", found.name)))
            .filter(|rate| *rate > 0),
        name: found.name,
        address: found.address.ip(),
    };
    let interfaces: Vec<Interface> = interfaces.into_iter().map(interface).collect();
    let values = [("NCCL_SOCKET_IFNAME", names), ("NCCL_SOCKET_FAMILY", family)];
    let given = values.iter().filter(|(_, value)| !value.is_empty());
    let given: Vec<String> = given.map(|(name, value)| format!("{name}={value}")).collect();
    let variables = match given.is_empty() {
        true => "its own order, as NCCL_SOCKET_IFNAME is not set".to_owned(),
        false => given.join(" and "),
    };
    vec![network::interface(&interfaces, &variables), network::mtu(&interfaces)]
}

/// Returns the state of an interface. One with a carrier is up: its state follows later.
fn state(root: &Root, interface: &str) -> Option<String> {
    let file = |name: &str| root.text(&format!("sys/class/net/{interface}/{name}"));
    match file("operstate") {
        Some(state) if state == "down" && file("carrier").as_deref() == Some("1") => {
            Some("up".to_owned())
        }
        state => state,
    }
}

fn gpus_of(root: &Root, devices: &[pci::Device], adapters: &[String]) -> Vec<Check> {
    let gpus: Vec<&pci::Device> = devices.iter().filter(|d| d.is_nvidia_gpu()).collect();
    let count = gpus.len();
    let version = root.text("proc/driver/nvidia/version");
    let modules = root.text("proc/modules");
    let links =
        adapters.iter().filter_map(|name| root.link(&format!("sys/class/infiniband/{name}")));
    let links: Vec<String> = links.collect();
    let of_adapters = links.iter().filter_map(|link| pci::address_in(link).map(str::to_owned));
    let judged = gpus.iter().map(|gpu| gpu.address.clone()).chain(of_adapters);
    let judged: Vec<String> = judged.collect();
    let iommu = Iommu {
        units: root.names("sys/class/iommu").len(),
        types: judged.iter().filter_map(|address| pci::iommu_type(root, address)).collect(),
    };
    let lanes = devices.iter().filter(|device| judged.contains(&device.address));
    let lanes = lanes
        .filter_map(|device| device.lanes.map(|(used, most)| (device.address.clone(), used, most)));
    let lanes: Vec<_> = lanes.collect();
    let is_above = |bridge: &&pci::Device| gpus.iter().any(|g| g.bridges.contains(&bridge.address));
    let bridges = devices.iter().filter(|device| device.is_bridge()).filter(is_above);
    let bridges: Vec<(String, Vec<u8>)> = bridges
        .map(|bridge| (bridge.address.clone(), pci::configuration(root, &bridge.address)))
        .collect();
    // Nothing is read that no GPU needs: a machine may have many messages.
    let log = match count {
        0 => Ok(Vec::new()),
        _ => root.records("dev/kmsg").map_err(|e| e.to_string()),
    };
    let log = log.map(|log| String::from_utf8_lossy(&log).into_owned());
    let errors = if count == 0 { Ok(String::new()) } else { memory_errors(root) };
    vec![
        gpu::driver(version.as_deref(), count),
        gpu::modules(modules.as_deref(), count),
        peers_of(root, count),
        gpu::gpudirect(modules.as_deref(), version.as_deref(), (count, adapters.len())),
        gpu::iommu(&iommu, count + adapters.len()),
        gpu::acs(&bridges, count),
        gpu::lanes(&lanes),
        gpu::ecc(errors.as_deref().map_err(String::as_str), count),
        gpu::xid(log.as_deref().map_err(String::as_str), count),
    ]
}

/// Judges the links between the GPUs that the driver shows to this process.
fn peers_of(root: &Root, gpus: usize) -> Check {
    let links = match root.is_real() {
        true => device::links(),
        false => Ok(Vec::new()),
    };
    match links {
        Ok(links) => gpu::peer_access(&links, Config::get().forbids_peer_access()),
        Err(_) if gpus == 0 => gpu::peer_access(&[], false),
        Err(error) => {
            let text = format!("The GPUs cannot be used here: {error}");
            let advice = "Give the job or the container its GPUs, if it is to use them.";
            Check::warning("peer access", text, advice)
        }
    }
}

/// Returns a line `index, errors` for each GPU from nvidia-smi.
fn memory_errors(root: &Root) -> Result<String, String> {
    const LIMIT: Duration = Duration::from_secs(20);
    if !root.is_real() {
        return Err("the machine is not this one".to_owned());
    }
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=index,ecc.errors.uncorrected.volatile.total"]);
    command.arg("--format=csv,noheader");
    let ended = ranks::limited(&mut command, LIMIT)?;
    match ended.success {
        true => Ok(ended.out),
        false => Err(format!("{} {}", ended.out.trim(), ended.err.trim()).trim().to_owned()),
    }
}

/// Checks the libraries that a process has mapped.
pub(super) fn process(root: &Root, pid: u32) -> Vec<Check> {
    let maps = std::fs::read(root.at(&format!("proc/{pid}/maps")));
    let maps = maps.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let maps = maps.map_err(|e| e.to_string());
    libraries::mapped(pid, maps.as_deref().map_err(String::as_str))
}
