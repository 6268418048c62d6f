//! Tests of `oxccl doctor` with planted faults.

use oxccl_tests::job::bind_to_parent;
use oxccl_tests::missing;
use oxccl_tests::network::apart;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

const OXCCL: &str = env!("CARGO_BIN_EXE_oxccl");

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    /// Returns the rows of `--json -`.
    fn rows(&self) -> Vec<Value> {
        let row = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        self.out.lines().map(row).collect()
    }

    /// Returns the verdict of a check, and what was found.
    fn check(&self, name: &str) -> (String, String) {
        let rows = self.rows();
        let row = rows.iter().find(|row| row["check"] == name);
        let row = row.unwrap_or_else(|| panic!("{name}: {self:?}"));
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        (text("verdict"), text("found"))
    }
}

impl std::fmt::Debug for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}\n{}{}", self.code, self.out, self.err)
    }
}

fn ended(command: &mut Command) -> Ended {
    let output = bind_to_parent(command).stdin(Stdio::null()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// A command that ends after two minutes.
fn timed(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "120", program]).env("OXCCL_DEVICE", "host");
    command
}

fn doctor(arguments: &[&str]) -> Ended {
    ended(timed(OXCCL).arg("doctor").args(arguments))
}

/// Writes files of a machine, with their folders.
fn plant(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        std::fs::write(path, text).expect("room");
    }
}

#[test]
fn this_machine_is_checked_and_its_ranks_exchange_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("%h.json").display().to_string();
    let found = doctor(&["--ranks", "3", "--json", &json]);
    assert!([Some(0), Some(1)].contains(&found.code), "{found:?}");
    for text in ["shared memory", "open files", "interface", "# pairs of ranks: 0 failures"] {
        assert!(found.out.contains(text), "{text}: {found:?}");
    }
    assert!(found.out.contains("# bandwidth of 4194304 bytes each way at once"), "{found:?}");
    let file = std::fs::read_dir(folder.path()).expect("a folder").next().expect("a file");
    let out = std::fs::read_to_string(file.expect("an entry").path()).expect("rows");
    let written = Ended { code: None, out, err: String::new() };
    assert_eq!(written.check("data of pairs").0, "ok");
    let rows = written.rows();
    let pairs: Vec<&Value> = rows.iter().map(|row| &row["pair"]).filter(|p| !p.is_null()).collect();
    assert_eq!(pairs, [&serde_json::json!([0, 1]), &[0, 2].into(), &[1, 2].into()]);
    assert!(rows.iter().all(|row| row["check"].is_null() || row["verdict"].is_string()));
}

#[test]
fn one_rank_has_nobody_to_exchange_data_with() {
    let one = doctor(&["-n", "1", "--json", "-"]);
    let found = ("not_applicable".to_owned(), "There is one rank.".to_owned());
    assert_eq!(one.check("pairs of ranks"), found);
    let wrong = doctor(&["--timeout", "0"]);
    assert!(wrong.code == Some(1) && wrong.err.contains("expected more than no time"), "{wrong:?}");
}

#[test]
fn faults_of_a_planted_machine_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let gpu = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
    let adapter = "sys/devices/pci0000:00/0000:00:02.0";
    plant(
        root,
        &[
            ("proc/sys/kernel/yama/ptrace_scope", "3\n"),
            ("proc/sys/vm/max_map_count", "1000\n"),
            ("proc/self/cgroup", "0::/job\n"),
            ("sys/fs/cgroup/job/cpu.max", "150000 100000\n"),
            ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64  535.54.03  x\n"),
            ("proc/modules", "nvidia 1 0 - Live 0x0\n"),
            ("dev/kmsg", "4,1,1,-;NVRM: Xid (PCI:0000:01:00): 79, it has fallen off the bus.\n"),
            ("sys/devices/pci0000:00/0000:00:01.0/class", "0x060400\n"),
            ("sys/devices/pci0000:00/0000:00:01.0/vendor", "0x8086\n"),
            ("sys/devices/pci0000:00/0000:00:01.0/config", "short"),
            (&format!("{gpu}/class"), "0x030200\n"),
            (&format!("{gpu}/vendor"), "0x10de\n"),
            (&format!("{gpu}/current_link_width"), "8\n"),
            (&format!("{gpu}/max_link_width"), "16\n"),
            (&format!("{adapter}/class"), "0x020700\n"),
            (&format!("{adapter}/vendor"), "0x15b3\n"),
            ("sys/class/iommu/dmar0/uevent", ""),
            ("sys/kernel/iommu_groups/5/type", "DMA-FQ\n"),
            ("sys/class/infiniband/mlx5_0/node_type", "1: CA\n"),
        ],
    );
    symlink("../../../../kernel/iommu_groups/5", root.join(gpu).join("iommu_group"))
        .expect("a link");
    std::fs::create_dir_all(root.join("sys/bus/pci/devices")).expect("a folder");
    for device in [gpu, adapter, "sys/devices/pci0000:00/0000:00:01.0"] {
        let device = device.strip_prefix("sys/").expect("below /sys");
        let address = device.rsplit('/').next().expect("an address");
        let link = root.join("sys/bus/pci/devices").join(address);
        symlink(format!("../../../{device}"), link).expect("a link");
    }
    let place = root.display().to_string();
    let script = format!(
        "ulimit -S -n 50; ulimit -l 64; exec {OXCCL} doctor --no-pairs -n 2 --json - --root {place}"
    );
    let mut command = timed("sh");
    command.args(["-c", &script]).env("NCCL_SOCKET_IFNAME", "=nosuch").env("OXCCL_TIMEOUT", "soon");
    let found = ended(&mut command);
    assert_eq!(found.code, Some(1), "{found:?}");
    for (name, verdict, text) in [
        ("environment", "failure", "OXCCL_TIMEOUT=soon"),
        ("shared memory", "warning", "/dev/shm cannot be looked at"),
        ("locked memory", "failure", "is 64 KiB"),
        ("open files", "failure", "A process may open 50 files"),
        ("reads of peers", "warning", "ptrace_scope is 3"),
        ("mappings", "warning", "1000 mappings"),
        ("processors", "warning", "the time of 1.5 processors"),
        ("interface", "failure", "NCCL_SOCKET_IFNAME==nosuch"),
        ("NVIDIA driver", "failure", "535.54.03"),
        ("NVIDIA modules", "failure", "nvidia_uvm"),
        ("GPUDirect RDMA", "warning", "nvidia_peermem"),
        ("IOMMU", "warning", "translates"),
        ("PCI ACS", "not_applicable", "only to root"),
        ("PCI lanes", "warning", "0000:01:00.0 (8 of 16)"),
        ("ECC", "not_applicable", "nvidia-smi"),
        ("Xid messages", "warning", "79, it has fallen off the bus"),
    ] {
        let (judged, why) = found.check(name);
        assert!(judged == verdict && why.contains(text), "{name}: {judged} {why}");
    }
}

#[test]
fn a_small_file_system_of_shared_memory_is_warned_of() {
    let mount = "mount -t tmpfs -o size=64k none /dev/shm";
    let script = |rest: &str| format!("{mount} && {rest}");
    let unshare = |script: &str| {
        let mut command = timed("unshare");
        ended(command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]))
    };
    let tried = unshare(mount);
    if tried.code != Some(0) {
        return missing("unshare", &tried.err);
    }
    let found = unshare(&script(&format!("exec {OXCCL} doctor --no-pairs --json -")));
    let (verdict, why) = found.check("shared memory");
    assert!(verdict == "warning" && why.starts_with("/dev/shm has 64 KiB"), "{found:?}");
}

#[test]
fn what_differs_between_hosts_is_told_from_their_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [a, b, bad] = ["a", "b", "bad"].map(path);
    let row = |host: &str, check: &str, verdict: &str, mtu: u32| {
        format!(
            "{{\"host\":\"{host}\",\"check\":\"{check}\",\"verdict\":\"{verdict}\",\"found\":\"x\",\
             \"facts\":{{\"MTU\":\"{mtu}\"}}}}\n"
        )
    };
    let variable = "{\"host\":\"node2\",\"variable\":\"NCCL_PROTO\",\"value\":\"LL\",\
                    \"origin\":\"environment\"}\n";
    std::fs::write(&a, row("node1", "MTU", "ok", 9000)).expect("room");
    std::fs::write(&b, row("node2", "MTU", "ok", 1500) + variable).expect("room");
    let found = doctor(&["--compare", &a, &b]);
    let expected = "# 2 of 3 values differ between 2 hosts\n\
                    MTU: MTU\n    node1  9000\n    node2  1500\n\
                    NCCL_PROTO\n    node1  not set\n    node2  LL (environment)\n";
    assert_eq!((found.code, found.out.as_str()), (Some(2), expected), "{found:?}");
    let same = doctor(&["--compare", &a, &a]);
    assert_eq!(same.code, Some(1), "one host, twice in one file: {same:?}");
    std::fs::write(&bad, "nonsense\n").expect("room");
    let found = doctor(&["--compare", &a, &bad]);
    assert!(found.code == Some(1) && found.err.contains("line 1 is \"nonsense\""), "{found:?}");
}

#[test]
fn the_libraries_of_a_process_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = |path: &str| format!("7f00-7f01 r-xp 00000000 08:02 123 {path}\n");
    let maps = ["/a/libnccl.so.2.27.5", "/b/liboxccl.so", "/c/libcudart.so.13"].map(line).concat();
    plant(folder.path(), &[("proc/42/maps", &maps)]);
    let root = folder.path().display().to_string();
    let found = doctor(&["--pid", "42", "--root", &root, "--json", "-"]);
    let (verdict, why) = found.check("NCCL libraries");
    assert!(verdict == "warning" && why.contains("/b/liboxccl.so, /a/libnccl.so.2.27.5"), "{why}");
    assert_eq!((found.code, found.check("CUDA runtime").0.as_str()), (Some(0), "ok"));
    let found = doctor(&["--pid", "43", "--root", &root]);
    assert!(found.code == Some(1) && found.out.contains("mappings of process 43"), "{found:?}");
    let own = doctor(&["--pid", &std::process::id().to_string()]);
    assert!(own.code == Some(0) && own.out.contains("NCCL libraries"), "{own:?}");
}

/// Writes a program that runs a command as ssh does on a host; for host "far" it is started in a way
/// of its own.
fn stand_in(folder: &Path, far: &str) -> String {
    let path = folder.join("ssh");
    let script = format!(
        "#!/bin/sh\ncase $1 in far) how='{far}';; esac\nshift\n\
         exec $how setsid --wait sh -c \"$*\"\n"
    );
    std::fs::write(&path, script).expect("room");
    std::fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("its own");
    path.display().to_string()
}

#[test]
fn several_hosts_are_checked_compared_and_exchange_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("rows").display().to_string();
    let ssh = stand_in(folder.path(), "env NCCL_IB_HCA=mlx5_7");
    let on = ["--host", "localhost:2,far:1", "--ssh", &ssh, "--json", &json];
    let found = doctor(&on);
    assert!(found.out.contains("values differ between 2 hosts"), "{found:?}");
    let variable = "NCCL_IB_HCA\n    localhost  not set\n    far        mlx5_7 (environment)\n";
    assert!(found.out.contains(variable), "{found:?}");
    let out = std::fs::read_to_string(&json).expect("rows");
    let written = Ended { code: None, out, err: String::new() };
    assert_eq!(written.check("data of pairs").0, "ok", "{found:?}");
    let hosts: Vec<Value> = written.rows().iter().map(|row| row["host"].clone()).collect();
    assert!(hosts.contains(&"localhost".into()) && hosts.contains(&"far".into()), "{found:?}");
    let missing = doctor(&["--host", "localhost,far", "--ssh", "/nonexistent/ssh"]);
    assert!(missing.code == Some(1) && missing.err.contains("/nonexistent/ssh"), "{missing:?}");
}

#[test]
fn a_firewall_and_a_wrong_mtu_between_hosts_are_found() {
    apart("a_firewall_and_a_wrong_mtu_between_hosts_are_found", 2, |network| {
        let folder = tempfile::tempdir().expect("a folder");
        // The system shows each host its own interfaces.
        let own = folder.path().join("own");
        std::fs::write(&own, "#!/bin/sh\nmount -t sysfs sysfs /sys && exec \"$@\"\n")
            .expect("room");
        std::fs::set_permissions(&own, Permissions::from_mode(0o700)).expect("its own");
        let own = own.display().to_string();
        let far = format!("nsenter --net={} unshare --mount {own}", network.space(1));
        let ssh = stand_in(folder.path(), &far);
        let doctor = || {
            let mut command = timed("unshare");
            command.args(["--mount", &own, OXCCL, "doctor", "--host", "near,far", "--ssh", &ssh]);
            // Ranks that cannot connect give up soon.
            let command = command.env("OXCCL_INIT_TIMEOUT", "2s");
            let found = ended(network.enter(command, 0));
            let words: Vec<_> = found.out.split_whitespace().collect();
            (words.join(" "), found)
        };
        network.set_mtu(1, 1400);
        let (text, found) = doctor();
        assert!(text.contains("ok data of pairs"), "{found:?}");
        assert!(text.contains("MTU: bytes near 1500 far 1400"), "{found:?}");
        network.block();
        let (text, found) = doctor();
        let parts = [
            "failure pairs of ranks",
            "1 of 2 ranks did not come",
            "no firewall keeps them from connecting",
        ];
        assert!(parts.iter().all(|part| text.contains(part)), "{found:?}");
        assert_eq!(found.code, Some(1));
    });
}

#[test]
fn under_a_launcher_its_ranks_exchange_data_and_the_first_one_reports() {
    let mut command = timed(OXCCL);
    command.args(["run", "-n", "3", "--tag-output=no", OXCCL, "doctor"]);
    let found = ended(&mut command);
    assert_eq!(found.out.matches("shared memory").count(), 1, "{found:?}");
    assert_eq!(found.out.matches("# pairs of ranks").count(), 1, "{found:?}");
    assert!(found.out.contains("data of pairs"), "{found:?}");
}

#[test]
fn a_variable_that_one_rank_of_a_host_lacks_is_found() {
    let mut command = timed(OXCCL);
    let script = "[ $OXCCL_RANK = 1 ] && export LD_LIBRARY_PATH=/none || export NCCL_DEBUG=WARN
                  exec \"$0\" doctor";
    command.args(["run", "-n", "3", "--tag-output=no", "sh", "-c", script, OXCCL]);
    let found = ended(command.env_remove("NCCL_DEBUG").env("LD_LIBRARY_PATH", ""));
    let words = found.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let path = "LD_LIBRARY_PATH is not set on ranks 0,2, /none (environment) on rank 1; ";
    let differ = "NCCL_DEBUG is not set on rank 1, WARN (environment) on ranks 0,2.";
    assert!(words.contains(&format!("{path}{differ}")), "{found:?}");
    assert_eq!(found.code, Some(0));
}

#[test]
fn ranks_that_cannot_exchange_data_are_a_failure_with_the_reason() {
    let mut command = timed(OXCCL);
    let arguments = ["doctor", "-n", "2", "--json", "-"];
    let found = ended(command.args(arguments).env("OXCCL_ALGORITHM", "nosuch"));
    let (verdict, why) = found.check("pairs of ranks");
    assert!(verdict == "failure" && why.contains("OXCCL_ALGORITHM=nosuch"), "{found:?}");
    assert_eq!(found.code, Some(1));
    let found = doctor(&["-n", "2", "--timeout", "1ms", "--json", "-"]);
    let (verdict, why) = found.check("pairs of ranks");
    assert!(verdict == "failure" && why.contains("did not end within 1ms"), "{found:?}");
}
