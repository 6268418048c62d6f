//! `oxccl ras` on ranks of this machine: what it tells, and what other tools make of its dumps.

use oxccl_tests::job::{Job, bind_to_parent};
use oxccl_tests::missing;
use oxccl_tests::network::{HIDDEN, Network, apart, can_hide};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const OXCCL: &str = env!("CARGO_BIN_EXE_oxccl");
/// The pause between two looks, which leaves the processors to the ranks.
const PAUSE: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(60);

/// Two ranks that all-reduce for long, and their processes.
struct Ranks {
    launcher: Child,
    pids: Vec<u32>,
}

impl Ranks {
    fn start() -> Self {
        let mut command = Command::new(OXCCL);
        let arguments = "perf all_reduce --ranks 2 --device host -b 256K -e 256K -n 100000000 -c 0";
        command.args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
        let launcher = bind_to_parent(&mut command).spawn().expect("it starts");
        let (start, mut pids) = (Instant::now(), Vec::new());
        while pids.len() < 2 {
            assert!(start.elapsed() < LIMIT, "no ranks");
            std::thread::sleep(PAUSE);
            pids = children(launcher.id());
        }
        Self { launcher, pids }
    }

    fn ras(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(OXCCL);
        command.arg("ras").args(arguments);
        for pid in &self.pids {
            command.args(["--pid", &pid.to_string()]);
        }
        bind_to_parent(&mut command).output().expect("it runs")
    }

    /// Waits until what `oxccl ras` prints is as wanted, and returns it with the exit code.
    fn wait_for(&self, wanted: impl Fn(&str) -> bool) -> (String, Option<i32>) {
        let start = Instant::now();
        loop {
            let output = self.ras(&["--patience", "0.3"]);
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            if wanted(&printed) {
                return (printed, output.status.code());
            }
            assert!(start.elapsed() < LIMIT, "{printed}");
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for pid in &self.pids {
            let pid = Pid::from_raw(*pid as i32).expect("a process");
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.launcher.wait();
    }
}

/// Returns the children of a process.
fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let list = list.unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns whether each rank of some communicator has done more than is recorded.
fn is_full(text: &str) -> bool {
    let done = text.split(" done").filter_map(|part| part.rsplit(' ').next()?.parse().ok());
    done.filter(|done: &u64| *done > 100).count() >= 2
}

#[test]
fn a_way_between_hosts_that_loses_data_is_told() {
    apart("a_way_between_hosts_that_loses_data_is_told", 2, |network| {
        if let Err(reason) = network.narrow(1) {
            return missing("a slow cable", &reason);
        }
        let id = format!("{}:4000", network.address(0));
        let mut job = Job::start(Path::new(OXCCL), 2, 2 * LIMIT, |rank, command| {
            let arguments = "perf all_reduce --device host -b 1M -e 1M -n 100000000 -c 0";
            network.enter(command, rank).args(arguments.split(' ')).env("NCCL_COMM_ID", &id);
        });
        let pids = [0, 1].map(|rank| job.child(rank).id().to_string());
        let start = Instant::now();
        loop {
            let mut command = Command::new(OXCCL);
            command.args(["ras", "--pid", &pids[0], "--pid", &pids[1]]);
            let output = network.enter(bind_to_parent(&mut command), 0).output().expect("it runs");
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            let way = format!("({}) to {} loses data: ", network.address(0), network.address(1));
            // A link that is slow holds nothing up.
            if printed.contains(&way) && output.status.success() {
                break;
            }
            assert!(start.elapsed() < LIMIT, "{printed}");
            std::thread::sleep(PAUSE);
        }
    });
}

#[test]
fn ranks_on_another_host_are_asked_for() {
    if !can_hide() {
        return;
    }
    apart("ranks_on_another_host_are_asked_for", 2, |network| {
        let id = format!("{}:4000", network.address(0));
        // Each is alone on its host, where it is process 1.
        let mut job = Job::start(Path::new("unshare"), 2, 2 * LIMIT, |rank, command| {
            let arguments = "perf all_reduce --device host -b 1K -e 1K -n 100000000 -c 0";
            command.args(HIDDEN).arg(OXCCL).args(arguments.split(' '));
            network.enter(command, rank).env("NCCL_COMM_ID", &id);
        });
        let (launcher, start) = (job.child(0).id(), Instant::now());
        let until = |is: &dyn Fn(&[Value], &Value) -> bool| loop {
            let document = status_inside(launcher);
            let causes = &document["causes"];
            if document["processes"].as_array().is_some_and(|all| is(all, causes)) {
                return causes.clone();
            }
            assert!(start.elapsed() < LIMIT, "{document}");
            std::thread::sleep(PAUSE);
        };
        let is_rank = |of: &Value, rank: u32| {
            let address = network.address(rank).to_string();
            of["pid"] == 1 && of["address"] == address && of["ranks"][0]["rank"] == rank
        };
        // One that is stopped while a communicator is made has not joined it, which is told first.
        until(&|all, _| {
            let is_right = |rank: u32| is_rank(&all[rank as usize], rank);
            all.len() == 2 && (0..2).all(is_right) && all.iter().all(runs)
        });
        // Who was stopped does not answer, and is named.
        let other = children(job.child(1).id())[0];
        kill_process(Pid::from_raw(other as i32).expect("a process"), Signal::STOP).expect("it is");
        let causes = until(&|all, causes| {
            let is_silent = all.len() == 1 && all[0]["unanswered"][0]["rank"] == 1;
            is_silent && causes[0]["cause"] == "unseen"
        });
        let place = format!("does not answer (process 1 on {})", network.address(1));
        let text = causes[0]["text"].as_str().unwrap_or_default();
        assert!(text.contains(&place), "{causes}");
    });
}

/// Returns what `oxccl ras --json` prints beside the processes that `unshare` with the options of
/// `HIDDEN` has started; null before they run.
fn status_inside(launcher: u32) -> Value {
    let first = children(launcher).first().map_or(0, |pid| *pid);
    let mut command = Command::new("nsenter");
    command.args(["--target", &first.to_string(), "--pid", "--mount", "--net"]);
    command.args([OXCCL, "ras", "--json"]);
    let output = bind_to_parent(&mut command).output().expect("it runs");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// Returns whether a process has run operations on some communicator for a while.
fn runs(process: &Value) -> bool {
    let calls = |rank: &Value| rank["collectives"].as_u64() > Some(100);
    process["ranks"].as_array().is_some_and(|all| all.iter().any(calls))
}

#[test]
fn beside_a_cut_cable_ranks_operation_and_step_are_told_before_anything_fails() {
    const NAME: &str = "beside_a_cut_cable_ranks_operation_and_step_are_told_before_anything_fails";
    if can_hide() {
        apart(NAME, 2, cut_is_told);
    }
}

/// Cuts the cable between two hosts of two ranks each, which would give up after 5 s.
fn cut_is_told(network: &Network) {
    /// The longest time from the cut to the verdict.
    const WITHIN: Duration = Duration::from_secs(2);
    // Of two that share a process id space, each sees the other.
    const BOTH: &str = r#"OXCCL_RANK=$((2 * OXCCL_RANK)) "$0" "$@" &
        OXCCL_RANK=$((2 * OXCCL_RANK + 1)) "$0" "$@"; wait"#;
    let id = format!("{}:4000", network.address(0));
    let mut job = Job::start(Path::new("unshare"), 2, 2 * LIMIT, |host, command| {
        let arguments = "perf all_reduce --device host -b 1K -e 1K -n 100000000 -c 0";
        command.args(HIDDEN).args(["sh", "-c", BOTH, OXCCL]).args(arguments.split(' '));
        network.enter(command, host).env("NCCL_COMM_ID", &id).env("OXCCL_NRANKS", "4");
    });
    let (launcher, start) = (job.child(0).id(), Instant::now());
    let until = |is: &dyn Fn(&Value) -> bool| loop {
        let status = status_inside(launcher);
        if is(&status) {
            return status;
        }
        assert!(start.elapsed() < LIMIT, "{status}");
        std::thread::sleep(PAUSE);
    };
    until(&|status| {
        let all = status["processes"].as_array().cloned().unwrap_or_default();
        all.len() == 4 && all.iter().all(runs)
    });
    network.cut((0, None));
    let cut = Instant::now();
    // On a busy machine ranks may come late to most calls, too.
    let held_up = |status: &Value| {
        let causes = status["causes"].as_array().cloned().unwrap_or_default();
        causes.into_iter().filter(|of| of["cause"] != "slow").collect::<Vec<_>>()
    };
    let status = until(&|status| !held_up(status).is_empty());
    let after = cut.elapsed();
    let causes = held_up(&status);
    let [cause] = &causes[..] else { panic!("one cause: {causes:#?}") };
    assert!(cause["cause"] == "silent_link" && after <= WITHIN, "{after:?}: {cause}");
    let ranks = cause["ranks"].as_array().expect("ranks");
    assert!(!ranks.is_empty() && ranks.iter().all(|rank| *rank == 2 || *rank == 3), "{cause}");
    let text = cause["text"].as_str().expect("a text");
    let place = format!("on {}; no answer has come for ", network.address(1));
    for part in [
        "in all_reduce of 256 × float, sum (collective ",
        ", step ",
        "to which the connection is cut (process ",
        &place,
    ] {
        assert!(text.contains(part), "{text:?} without {part:?}");
    }
}

#[test]
fn a_stopped_rank_is_named_and_dumps_are_what_other_tools_read() {
    let ranks = Ranks::start();
    let last = "last all_reduce of 65536 × float, sum";
    let (running, _) = ranks.wait_for(|text| text.contains(last) && is_full(text));
    assert!(running.contains("rank   1  process "), "{running}");
    let victim = ranks.pids[1];
    kill_process(Pid::from_raw(victim as i32).expect("a process"), Signal::STOP).expect("stopped");
    let (stopped, code) =
        ranks.wait_for(|text| text.contains("is stopped by a signal or a debugger"));
    assert_eq!(code, Some(2), "{stopped}");
    assert!(stopped.contains(&format!("continue it with kill -CONT {victim}")), "{stopped}");

    let folder = tempfile::tempdir().expect("a folder");
    let dump = |format: &str, name: &str| {
        let path = folder.path().join(name);
        let path_text = path.to_str().expect("a path");
        let output = ranks.ras(&["dump", format, path_text, "--patience", "0.3"]);
        assert!(output.status.success(), "{output:?}");
        path
    };
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    let status: Value = serde_json::from_str(&read(&dump("json", "all.json"))).expect("JSON");
    assert_eq!(status["processes"].as_array().map(Vec::len), Some(2));
    // As on another host, where no rank of this job is.
    let of_file = |path: &Path| {
        let mut command = Command::new(OXCCL);
        command.args(["ras", "--patience", "0.3", "--pid", "1", "--from"]).arg(path);
        bind_to_parent(&mut command).output().expect("it runs")
    };
    let operations = &status["processes"][0]["ranks"][0]["operations"];
    let carriers = operations.as_array().expect("operations").iter().map(|op| &op["carrier"]);
    assert!(carriers.clone().count() > 0 && carriers.clone().all(Value::is_string), "{operations}");
    let told = of_file(&folder.path().join("all.json"));
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.code() == Some(2) && text.contains("is stopped by a signal"), "{text}");
    for garbage in ["", "{}", "{\"processes\": [7]}"] {
        let path = folder.path().join("garbage");
        std::fs::write(&path, garbage).expect("room");
        assert_eq!(of_file(&path).status.code(), Some(1), "{garbage}");
    }
    let trace: Value = serde_json::from_str(&read(&dump("chrome", "trace.json"))).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let spans = events.iter().filter(|event| event["ph"] == "X");
    assert!(
        spans.clone().count() > 64 && spans.clone().all(|span| span["dur"].as_f64() >= Some(0.0))
    );
    overlap(spans);
    let picture = read(&dump("svg", "job.svg"));
    assert!(picture.starts_with("<svg") && picture.contains("is stopped by a signal"), "{picture}");
    assert!(picture.contains("waits for rank 1 at step "), "{picture}");
    let metrics = read(&dump("prometheus", "metrics"));
    let waits = metrics.lines().filter(|line| line.starts_with("oxccl_waiting_seconds{"));
    assert!(waits.count() >= 2, "{metrics}");
    for name in ["oxccl_waited_seconds_total{", "oxccl_failed{"] {
        assert!(metrics.lines().filter(|line| line.starts_with(name)).count() >= 2, "{metrics}");
    }
    for (name, least) in [
        ("oxccl_collectives_called_total", 64.0),
        ("oxccl_bytes_total", 64.0 * 262_144.0),
        ("oxccl_bandwidth_bytes_per_second", 1e6),
    ] {
        let of_kind = |line: &&str| line.starts_with(name) && line.contains("kind=\"all_reduce\"");
        let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
        let values: Vec<_> = metrics.lines().filter(of_kind).filter_map(value).collect();
        assert!(values.iter().filter(|value| **value > least).count() >= 2, "{metrics}");
    }
    analyse(&dump("flight-recorder", "flight"), &folder.path().join("all.json"));
    missing_rank(status, folder.path());
}

/// As if rank 1 had not made its last call, which rank 0 made: PyTorch's analyser says so.
fn missing_rank(mut status: Value, folder: &Path) {
    // The latest collective that both ranks called, on the communicator of most operations.
    let ranks = |status: &Value| {
        let processes = status["processes"].as_array().expect("processes").clone();
        processes.iter().flat_map(|p| p["ranks"].as_array().expect("ranks").clone()).collect()
    };
    let all: Vec<Value> = ranks(&status);
    let busiest = all.iter().max_by_key(|rank| rank["collectives"].as_u64()).expect("a rank");
    let of_comm = all.iter().filter(|rank| rank["comm"] == busiest["comm"]);
    // Calls that run later are counted, and told of when they begin.
    let last = |rank: &Value| rank["operations"].as_array()?.last()?["of_kind"].as_u64();
    let called = of_comm.filter_map(last).min().expect("calls") + 1;
    let comm = busiest["comm"].clone();
    for process in status["processes"].as_array_mut().expect("processes") {
        for rank in process["ranks"].as_array_mut().expect("ranks") {
            let calls = if rank["rank"] == 0 { called } else { called - 1 };
            if rank["comm"] == comm {
                rank["collectives"] = calls.into();
                let operations = rank["operations"].as_array_mut().expect("operations");
                operations.retain(|op| op["of_kind"].as_u64() < Some(calls));
                let last = operations.last_mut().expect("a call");
                let issued = last["number"].as_u64().expect("a number") + 1;
                // Rank 0 is in it.
                let waits = calls == called;
                if waits {
                    last["ended_ns"] = Value::Null;
                }
                rank["finished"] = (issued - u64::from(waits)).into();
                rank["issued"] = issued.into();
            }
        }
    }
    let (file, flight) = (folder.join("missing.json"), folder.join("missing"));
    std::fs::write(&file, status.to_string()).expect("room");
    let mut dump = Command::new(OXCCL);
    dump.args(["ras", "dump", "flight-recorder"]).arg(&flight).args(["--pid", "1", "--from"]);
    let output = bind_to_parent(dump.arg(&file)).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let mut analyser = Command::new("torchfrtrace");
    match bind_to_parent(analyser.arg(&flight).args(["--prefix", "oxccl_rank_"])).output() {
        Err(error) => missing("torchfrtrace", &error.to_string()),
        Ok(output) => {
            let text =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(text.contains("Not all ranks joining collective"), "{text}");
            assert!(text.contains("missing ranks: {1}"), "{text}");
        }
    }
}

/// Checks that the spans of a collective at all ranks have a moment in common: none ends before the
/// others have begun. The clocks of processes are compared to some microseconds.
fn overlap<'a>(spans: impl Iterator<Item = &'a Value>) {
    const ERROR_US: f64 = 100.0;
    let mut common: BTreeMap<u64, (f64, f64, u32)> = BTreeMap::new();
    for span in spans.filter(|span| span["name"] == "all_reduce of 65536 × float, sum") {
        let [begin, lasts] = ["ts", "dur"].map(|key| span[key].as_f64().expect("a time"));
        let number = span["args"]["of_kind"].as_u64().expect("a number");
        let of = common.entry(number).or_insert((begin, begin + lasts, 0));
        *of = (of.0.max(begin), of.1.min(begin + lasts), of.2 + 1);
    }
    let shared = || common.values().filter(|(_, _, ranks)| *ranks == 2);
    assert!(shared().count() > 16, "{common:?}");
    assert!(shared().all(|(begin, end, _)| *begin < end + ERROR_US), "{common:?}");
}

/// Reads the files of the flight recorder as PyTorch's analyser does: what it asks for is there.
/// Has the analyser read them, too, if it is installed.
fn analyse(folder: &Path, status: &Path) {
    const SCRIPT: &str = r#"
import json, pickle, sys
# What another rank has forgotten, or was just writing when it was stopped, is left out.
known, kept, all_of = {}, [0, 0], []
for process in json.load(open(sys.argv[2]))["processes"]:
    for own in process["ranks"]:
        numbers = [op["of_kind"] for op in own["operations"] if op["kind"] == "collective"]
        first = numbers[0] if numbers else own["collectives"]
        known[own["comm"]] = max(known.get(own["comm"], 0), first)
        all_of.append((own["rank"], own["comm"], numbers))
for rank, comm, numbers in all_of:
    kept[rank] += sum(number >= known[comm] for number in numbers)
assert min(kept) > 0, kept
oldest = []
for rank in range(2):
    dump = pickle.load(open(f"{sys.argv[1]}/oxccl_rank_{rank}", "rb"))
    assert dump["version"] == "2.10", dump
    entries = dump["entries"]
    ids = [e["record_id"] for e in entries]
    assert len(ids) == kept[rank] and ids == list(range(ids[0], ids[0] + len(ids))), (ids, kept)
    oldest.append({})
    for entry in entries:
        name, description = entry["process_group"]
        group = dump["pg_config"][name]
        assert group["desc"] == description and group["ranks"] == "[0, 1]", group
        assert entry["profiling_name"] in ("nccl:all_reduce", "nccl:broadcast"), entry
        assert entry["state"] in ("scheduled", "started", "completed") and not entry["is_p2p"]
        # What a rank forgot, no other one tells.
        oldest[-1].setdefault(name, entry["collective_seq_id"])
        for side in ("input", "output"):
            assert len(entry[side + "_sizes"][0]) == len(entry[side + "_dtypes"]) == 1, entry
    assert {e["state"] for e in entries} >= {"completed"} and ids[0] == 0
assert oldest[0] == oldest[1], oldest
"#;
    let mut python = Command::new("python3");
    match bind_to_parent(python.args(["-c", SCRIPT]).arg(folder).arg(status)).output() {
        Err(error) => missing("python3", &error.to_string()),
        Ok(output) => assert!(output.status.success(), "{output:?}"),
    }
    let mut analyser = Command::new("torchfrtrace");
    match bind_to_parent(analyser.arg(folder).args(["--prefix", "oxccl_rank_"])).output() {
        Err(error) => missing("torchfrtrace", &error.to_string()),
        // The broadcasts at the beginning are complete on both ranks.
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !text.contains("broadcast"), "{text}");
        }
    }
}

#[test]
fn no_ranks_are_no_trouble() {
    let mut command = Command::new(OXCCL);
    let own = std::process::id().to_string();
    let output = command.args(["ras", "--pid", &own]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    let none = "has no ranks of a communicator that this user may see.";
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("Process {own} {none}\n"));
    let output = Command::new(OXCCL).args(["ras", "--pid", &own, "--pid", "1"]).output();
    let none_of =
        format!("None of the processes {own} and 1 has ranks of a communicator that this");
    assert!(String::from_utf8_lossy(&output.expect("it runs").stdout).starts_with(&none_of));
    let folder = tempfile::tempdir().expect("a folder");
    for (format, code) in [("svg", 1), ("chrome", 1), ("flight-recorder", 1), ("prometheus", 0)] {
        let path = folder.path().join(format);
        let mut command = Command::new(OXCCL);
        command.args(["ras", "dump", format]).arg(&path).args(["--pid", &own]);
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && text.contains(none), "{text}");
        assert_eq!(path.exists(), code == 0, "{format}");
    }
    let output = Command::new(OXCCL).args(["ras", "--pid", "999999999"]).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("--pid 999999999: there is no such process"), "{text}");
}
