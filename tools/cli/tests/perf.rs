//! The command as a user meets it.

use oxccl_tests::job::bind_to_parent;
use oxccl_tests::missing;
use std::process::{Command, Output, Stdio};

const OXCCL: &str = env!("CARGO_BIN_EXE_oxccl");

/// Runs a command that dies with the test and after two minutes.
fn output(command: &mut Command) -> std::io::Result<Output> {
    bind_to_parent(command).stdin(Stdio::null()).output()
}

fn timed(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "120", program]);
    command
}

fn oxccl(arguments: &[&str]) -> (bool, String, String) {
    let output = output(timed(OXCCL).args(arguments)).expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

fn check_table(text: &str, rows: usize) {
    let found = text.lines().filter(|l| !l.starts_with('#')).count();
    assert_eq!(found, rows, "{text}");
    assert!(text.contains("Out of bounds values : 0 OK"), "{text}");
}

#[test]
fn without_arguments_there_is_help_and_typos_are_answered() {
    let (ok, out, _) = oxccl(&[]);
    assert!(ok && out.contains("Usage: oxccl"), "{out}");
    let (ok, _, err) = oxccl(&["perf", "allreduce"]);
    assert!(!ok && err.contains("a similar value exists: 'all_reduce'"), "{err}");
    let (ok, _, err) = oxccl(&["perf", "-d", "flaot"]);
    assert!(!ok && err.contains("float"), "{err}");
}

#[test]
fn all_collectives_on_several_ranks_with_json_and_plot() {
    let folder = std::env::temp_dir().join(format!("oxccl-perf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (json, svg) = (folder.join("rows.json"), folder.join("plot.svg"));
    let (ok, out, err) = oxccl(&[
        "perf",
        "all",
        "--ranks",
        "3",
        "-b",
        "8",
        "-e",
        "64K",
        "-f",
        "8192",
        "-n",
        "5",
        "--json",
        json.to_str().expect("a path"),
        "--plot",
        svg.to_str().expect("a path"),
    ]);
    assert!(ok, "{out}{err}");
    check_table(&out, 18);
    let rows: Vec<serde_json::Value> = std::fs::read_to_string(&json)
        .expect("rows")
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object per line"))
        .collect();
    assert_eq!(rows.len(), 18 + 16);
    for key in [
        "collective",
        "lib",
        "device",
        "ranks",
        "bytes",
        "type",
        "op",
        "in_place",
        "time_us",
        "time_us_min",
        "algbw",
        "busbw",
        "wrong",
    ] {
        assert!(rows.iter().all(|row| row.get(key).is_some()), "{key}");
    }
    assert!(std::fs::read_to_string(&svg).expect("a plot").contains("<polyline"));
    std::fs::remove_dir_all(folder).expect("it can be removed");
}

#[test]
fn all_types_and_operations() {
    let (ok, out, err) = oxccl(&[
        "perf",
        "all_reduce",
        "--ranks",
        "2",
        "-b",
        "3K",
        "-e",
        "3K",
        "-n",
        "2",
        "-d",
        "all",
        "-o",
        "all",
    ]);
    assert!(ok, "{out}{err}");
    check_table(&out, 60);
}

#[test]
fn threads_groups_graphs_and_malloc() {
    let base = ["perf", "all_reduce", "-b", "8", "-e", "1M", "-f", "512", "-n", "5"];
    for more in [
        &["-t", "2", "-g", "2"][..],
        &["--ranks", "2", "-G", "3"],
        &["--ranks", "2", "-R", "0", "-m", "4"],
        &["--ranks", "2", "-z", "1", "-r", "all", "-a", "3"],
        &["-g", "8"],
    ] {
        let (ok, out, err) = oxccl(&[&base[..], more].concat());
        assert!(ok, "{more:?} {out}{err}");
        check_table(&out, 2);
    }
}

#[test]
fn a_library_from_a_file_can_be_measured_beside_the_built_in_one() {
    let test = std::env::current_exe().expect("a path");
    let library = test.parent().expect("a folder").join("liboxccl.so");
    let library = library.to_str().expect("a path");
    let (ok, out, err) = oxccl(&[
        "perf",
        "all_gather",
        "--ranks",
        "2",
        "-b",
        "1K",
        "-e",
        "1K",
        "-n",
        "5",
        "--vs",
        library,
    ]);
    assert!(ok, "{out}{err}");
    check_table(&out, 2);
    let (ok, _, err) = oxccl(&["perf", "--lib", "/nonexistent.so"]);
    assert!(!ok && err.contains("/nonexistent.so"), "{err}");
}

#[test]
fn a_rank_that_fails_ends_the_job_with_its_status() {
    let (ok, _, err) = oxccl(&["run", "-n", "2", "sh", "-c", "exit $((OXCCL_RANK * 7))"]);
    assert!(!ok && err.contains("rank 1 ended with exit status: 7"), "{err}");
    let (ok, out, _) =
        oxccl(&["run", "-n", "3", "sh", "-c", "echo rank $OXCCL_RANK of $OXCCL_NRANKS"]);
    assert!(ok && out.contains("rank 2 of 3"), "{out}");
}

#[test]
fn plans_are_explained_and_variables_listed() {
    let (ok, out, _) =
        oxccl(&["plan", "all_reduce", "-n", "5", "-b", "2K", "--explain", "--program", "1"]);
    assert!(ok && out.contains("any memory:") && out.contains("simulated"), "{out}");
    let (ok, out, _) = oxccl(&["env"]);
    assert!(ok && out.contains("NCCL_SOCKET_IFNAME"), "{out}");
}

#[test]
fn under_mpirun() {
    if output(Command::new("mpirun").arg("--version")).is_err() {
        return missing("mpirun", "Open MPI is not installed");
    }
    let mut command = timed("mpirun");
    command.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "3",
        OXCCL,
        "perf",
        "all_reduce",
    ]);
    command.args(["-b", "8", "-e", "4K", "-f", "512", "-n", "5"]);
    let output = output(&mut command).expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("3 ranks by mpirun"), "{text}");
}

/// Two hosts, as network namespaces joined by a pair of virtual interfaces.
struct Hosts(Vec<String>);

impl Hosts {
    fn new() -> Result<Self, String> {
        let id = std::process::id();
        let hosts = Self(vec![format!("oxccl-a-{id}"), format!("oxccl-b-{id}")]);
        let (a, b) = (&hosts.0[0], &hosts.0[1]);
        for line in [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add ox0 type veth peer name ox0 netns {b}"),
            format!("-n {a} addr add 192.0.2.1/24 dev ox0"),
            format!("-n {b} addr add 192.0.2.2/24 dev ox0"),
            format!("-n {a} link set ox0 up"),
            format!("-n {b} link set ox0 up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ] {
            let done = output(Command::new("ip").args(line.split(' ')));
            match done {
                Err(e) => return Err(e.to_string()),
                Ok(done) if !done.status.success() => {
                    return Err(String::from_utf8_lossy(&done.stderr).into_owned());
                }
                Ok(_) => {}
            }
        }
        Ok(hosts)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            // It may not have been made.
            let _ = output(Command::new("ip").args(["netns", "del", host]));
        }
    }
}

#[test]
fn two_hosts_run_all_collectives_over_tcp() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return missing("netns", &reason),
    };
    let secret = std::env::temp_dir().join(format!("oxccl-secret-{}", std::process::id()));
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&secret)
        .expect("a file");
    file.write_all(b"a secret of at least sixteen bytes").expect("room");
    let ranks = 4;
    let children: Vec<_> = (0..ranks)
        .map(|rank| {
            let mut command = timed("ip");
            command
                .args(["netns", "exec", &hosts.0[rank % 2], OXCCL, "perf", "all"])
                .args(["-b", "8", "-e", "1M", "-f", "512", "-n", "3", "-w", "1"])
                .env("OXCCL_RANK", rank.to_string())
                .env("OXCCL_NRANKS", ranks.to_string())
                .env("NCCL_COMM_ID", "192.0.2.1:7411")
                .env("NCCL_SOCKET_IFNAME", "ox0")
                .env("OXCCL_SECRET_FILE", &secret)
                .env("NCCL_DEBUG", "INFO");
            std::thread::spawn(move || output(&mut command).expect("it runs"))
        })
        .collect();
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.join().expect("no panic");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "rank {rank}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        if rank == 0 {
            check_table(&text, 18);
        }
    }
    std::fs::remove_file(secret).expect("it can be removed");
}
