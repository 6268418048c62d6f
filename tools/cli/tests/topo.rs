//! Tests of `oxccl topo` on planted machines.

use oxccl_tests::job::bind_to_parent;
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

const OXCCL: &str = env!("CARGO_BIN_EXE_oxccl");

/// Runs `oxccl topo`; returns what it printed.
fn topo(arguments: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "60", OXCCL, "topo"]).args(arguments);
    let output = bind_to_parent(&mut command).stdin(Stdio::null()).output().expect("it runs");
    let [out, err] = [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b));
    assert!(output.status.success(), "{out}{err}");
    out.into_owned()
}

fn plant(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
    std::fs::write(path, text).expect("room");
}

/// Plants a device of PCI below the folders of its root and bridges, and its link.
fn device(root: &Path, above: &str, address: &str, class: &str, (vendor, node): (&str, &str)) {
    let folder = format!("devices/{above}/{address}");
    for (file, text) in [("class", class), ("vendor", vendor), ("numa_node", node)] {
        plant(root, &format!("sys/{folder}/{file}"), text);
    }
    let links = root.join("sys/bus/pci/devices");
    std::fs::create_dir_all(&links).expect("folders");
    symlink(format!("../../../{folder}"), links.join(address)).expect("a link");
}

/// Plants a name in a class, which leads to its device.
fn of_class(root: &Path, class: &str, name: &str, device: &str, files: &[(&str, &str)]) {
    for (file, text) in files {
        plant(root, &format!("sys/devices/{device}/{class}/{name}/{file}"), text);
    }
    let folder = root.join("sys/class").join(class);
    std::fs::create_dir_all(&folder).expect("folders");
    let target = format!("../../devices/{device}/{class}/{name}");
    symlink(target, folder.join(name)).expect("a link");
}

/// Plants two sockets of two processors, and on the first node a switch of PCI with two GPUs and an
/// adapter, on the second one an adapter alone.
fn machine(root: &Path) {
    plant(root, "sys/devices/system/cpu/online", "0-3\n");
    for processor in 0..4 {
        let folder = format!("sys/devices/system/cpu/cpu{processor}");
        let (socket, pair) = (processor / 2, if processor < 2 { "0-1" } else { "2-3" });
        let own = processor.to_string();
        plant(root, &format!("{folder}/topology/physical_package_id"), &socket.to_string());
        plant(root, &format!("{folder}/topology/core_id"), &own);
        for (index, level, size, shared) in
            [(0, "1", "32K", &*own), (2, "2", "1024K", &own), (3, "3", "16M", pair)]
        {
            for (file, text) in [("level", level), ("size", size), ("shared_cpu_list", shared)] {
                plant(root, &format!("{folder}/cache/index{index}/{file}"), text);
            }
        }
    }
    for (node, processors, distance) in [("node0", "0-1", "10 21"), ("node1", "2-3", "21 10")] {
        let folder = format!("sys/devices/system/node/{node}");
        plant(root, &format!("{folder}/cpulist"), processors);
        plant(root, &format!("{folder}/distance"), distance);
        plant(root, &format!("{folder}/meminfo"), "Node 0 MemTotal: 1048576 kB\n");
    }
    let switch = "pci0000:10/0000:10:00.0/0000:11:00.0";
    for (gpu, bridge) in [("0000:13:00.0", "0000:12:00.0"), ("0000:14:00.0", "0000:12:01.0")] {
        device(root, &format!("{switch}/{bridge}"), gpu, "0x030200", ("0x10de", "0"));
    }
    let information = "proc/driver/nvidia/gpus/0000:13:00.0/information";
    plant(root, information, "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n");
    let near = format!("{switch}/0000:12:02.0");
    device(root, &near, "0000:15:00.0", "0x020700", ("0x15b3", "0"));
    let near = format!("{near}/0000:15:00.0");
    of_class(root, "net", "ib0", &near, &[("mtu", "4092"), ("operstate", "up")]);
    let port = [
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/rate", "400 Gb/sec (4X NDR)"),
        ("ports/1/link_layer", "InfiniBand"),
    ];
    of_class(root, "infiniband", "mlx5_0", &near, &port);
    device(root, "pci0000:80", "0000:80:00.0", "0x020000", ("0x8086", "1"));
    let files = [("mtu", "1500"), ("operstate", "down"), ("speed", "25000")];
    of_class(root, "net", "eth0", "pci0000:80/0000:80:00.0", &files);
    of_class(root, "net", "lo", "virtual", &[("mtu", "65536"), ("operstate", "unknown")]);
}

const TREE: &str = "\
├─ NUMA node 0, 1 GiB, distances 10 21
│  ├─ socket 0: processors 0-1 of 2 cores
│  │  ├─ L3 16 MiB, of 2 processors
│  │  └─ 2 x L2 1 MiB, each of 1 processor
│  └─ PCI bridge 0000:11:00.0
│     ├─ GPU: NVIDIA H100 80GB HBM3, 0000:13:00.0
│     ├─ GPU: NVIDIA, 0000:14:00.0
│     └─ network adapter: Mellanox, 0000:15:00.0
│        ├─ mlx5_0 port 1, InfiniBand, ACTIVE, 400 Gb/sec (4X NDR)
│        └─ ib0, up, MTU 4092
├─ NUMA node 1, 1 GiB, distances 21 10
│  ├─ socket 1: processors 2-3 of 2 cores
│  │  ├─ L3 16 MiB, of 2 processors
│  │  └─ 2 x L2 1 MiB, each of 1 processor
│  └─ network adapter: Intel, 0000:80:00.0
│     └─ eth0, down, MTU 1500, 25 Gbit/s
└─ interfaces without an adapter
   └─ lo, MTU 65536
";

#[test]
fn a_planted_machine_is_a_tree_rows_and_a_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    machine(folder.path());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (root, svg, json) = (path(""), path("machine.svg"), path("machine.json"));
    let out = topo(&["--root", &root, "--svg", &svg, "--json", &json]);
    let (head, rest) = out.split_once('\n').expect("lines");
    assert!(head.ends_with(": 2 NUMA nodes, 4 processors, 2 GPUs, 2 network adapters"), "{out}");
    let paths = rest.strip_prefix(TREE).unwrap_or_else(|| panic!("{out}"));
    assert!(paths.starts_with("\n# paths of data between ranks\nhost memory"), "{paths}");
    assert!(paths.contains("GPUs of this host         not known"), "{paths}");
    let rows = std::fs::read_to_string(&json).expect("rows");
    let rows: Vec<Value> = rows.lines().map(|l| serde_json::from_str(l).expect("a row")).collect();
    let of = |kind: &str| rows.iter().filter(|row| row["kind"] == kind).count();
    let kinds = ["numa_node", "socket", "gpu", "adapter", "virtual_interface", "path"];
    assert_eq!(kinds.map(of), [2, 2, 2, 2, 1, 3], "{rows:?}");
    let gpu = rows.iter().find(|row| row["address"] == "0000:13:00.0").expect("a GPU");
    let (model, bridge) = (&gpu["model"], &gpu["bridges"][1]);
    assert_eq!((model, bridge), (&"NVIDIA H100 80GB HBM3".into(), &"0000:11:00.0".into()));
    assert_eq!(gpu["node"], 0);
    let svg = std::fs::read_to_string(&svg).expect("a picture");
    for text in ["<svg", "NVIDIA H100 80GB HBM3", "NUMA node 1", "mlx5_0 port 1", "</svg>"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
}

#[test]
fn this_machine_and_one_that_shows_nothing_have_paths() {
    let out = topo(&[]);
    assert!(out.contains(" NUMA node") && out.contains("\n# paths of data"), "{out}");
    assert!(out.contains("this host and others"), "{out}");
    let folder = tempfile::tempdir().expect("a folder");
    let out = topo(&["--root", &folder.path().display().to_string(), "--json", "-"]);
    assert!(out.lines().all(|line| line.starts_with("{\"kind\":\"path\"")), "{out}");
    assert_eq!(out.lines().count(), 2, "{out}");
}

#[test]
fn garbage_in_files_of_the_system_breaks_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let garbage = ["", "\u{0}\u{1}", "-1", "99999999999999999999", "0-4294967295", "x: y\n"];
    machine(root);
    for (i, text) in garbage.into_iter().enumerate() {
        for file in [
            "sys/devices/system/node/node0/cpulist",
            "sys/devices/system/node/node0/meminfo",
            "sys/devices/system/cpu/cpu0/cache/index3/size",
            "sys/devices/system/cpu/cpu1/topology/physical_package_id",
            "sys/devices/pci0000:80/0000:80:00.0/numa_node",
            "sys/devices/pci0000:80/0000:80:00.0/net/eth0/mtu",
            "proc/driver/nvidia/gpus/0000:13:00.0/information",
        ] {
            plant(root, file, text);
        }
        if i % 2 == 1 {
            plant(root, "sys/devices/system/cpu/online", text);
        }
        let out = topo(&["--root", &root.display().to_string()]);
        assert!(out.contains("2 NUMA nodes") && out.contains("# paths of data"), "{out}");
    }
}
