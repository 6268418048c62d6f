//! Tests of the command as a user runs it.

use oxccl_tests::job::bind_to_parent;
use oxccl_tests::missing;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashSet;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const OXCCL: &str = env!("CARGO_BIN_EXE_oxccl");

/// Runs a command that dies with the test; those of [`timed`] also die after two minutes.
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

/// Reads the document that `--json` wrote.
fn document(file: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(file).expect("a document");
    serde_json::from_str(&text).expect("one document")
}

fn rows(file: &Path) -> Vec<serde_json::Value> {
    document(file)["rows"].as_array().expect("rows").clone()
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
fn buffers_in_windows_are_measured_with_ranks_in_processes_and_threads() {
    for layout in [["--ranks", "2"], ["-t", "2"]] {
        let sizes = ["-b", "0", "-e", "64K", "-f", "8192", "-n", "5", "-R", "2"];
        let arguments = [&["perf", "all_gather"], &layout[..], &sizes[..]].concat();
        let (ok, out, err) = oxccl(&arguments);
        assert!(ok, "{out}{err}");
        assert!(out.contains("memory from ncclMemAlloc, in windows"), "{out}");
        check_table(&out, 2);
    }
}

#[test]
fn every_pair_is_measured_alone_for_a_table_and_a_picture() {
    let folder = Private::new("perf-matrix");
    let (json, svg) = (folder.0.join("rows.json"), folder.0.join("pairs.svg"));
    let files = ["--json", json.to_str().expect("a path"), "--plot", svg.to_str().expect("a path")];
    for layout in [&["--ranks", "3"][..], &["-t", "3"], &["-g", "3"]] {
        let base = ["perf", "--matrix", "-b", "8", "-e", "64K", "-n", "6"];
        let (ok, out, err) = oxccl(&[&base[..], layout, &files].concat());
        assert!(ok && out.contains("# Out of bounds values : 0 OK"), "{layout:?} {out}{err}");
        let rows = rows(&json);
        let pairs: Vec<_> = rows.iter().map(|row| (row["bytes"].as_u64(), &row["pair"])).collect();
        let all = [(0, 1), (0, 2), (1, 2)].map(|(a, b)| serde_json::json!([a, b]));
        let expected = [8, 65536].into_iter().flat_map(|b| all.iter().map(move |p| (Some(b), p)));
        assert_eq!(pairs, expected.collect::<Vec<_>>());
        // Two tables of three rows, with the same figure on both sides of the diagonal.
        let tables: Vec<Vec<&str>> = out
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(tables.len(), 6, "{out}");
        for (i, fields) in tables.iter().enumerate() {
            assert_eq!((fields.len(), fields[1 + i % 3]), (4, "-"), "{out}");
            let times = (0..3).filter(|b| *b != i % 3).map(|b| fields[1 + b].parse::<f64>());
            assert!(times.clone().all(|time| time.is_ok_and(|time| time > 0.0)), "{out}");
            let other = tables[i / 3 * 3 + (i + 1) % 3][1 + i % 3];
            assert_eq!(fields[1 + (i + 1) % 3], other, "{out}");
        }
        let picture = std::fs::read_to_string(&svg).expect("a picture");
        assert!(picture.contains("bandwidth of 65536 bytes each way at once"), "{picture}");
        assert!(picture.matches("<rect").count() > 12, "{picture}");
        assert!(picture.contains("sendrecv_pairs on 3 ranks, host"), "{picture}");
    }
    let (ok, _, err) = oxccl(&["perf", "--matrix", "--ranks", "1"]);
    assert!(!ok && err.contains("--matrix: there is one rank"), "{err}");
    for other in [&["--vs", "libnccl.so.2"][..], &["all_gather"]] {
        let (ok, _, err) = oxccl(&[&["perf", "--matrix"], other].concat());
        assert!(!ok && err.contains("cannot be used with"), "{err}");
    }
    let (ok, _, err) = oxccl(&["perf", "--matrix", "--ranks", "2", "--plot", "pairs.png"]);
    assert!(!ok && err.contains("--plot pairs.png: expected a name that ends with .svg"), "{err}");
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
    // Three ranks make no pairs.
    check_table(&out, 20);
    let document = document(&json);
    for key in ["date", "device", "device_name", "graph", "host", "launcher", "memory", "oxccl"] {
        assert!(!document[key].is_null(), "{key}: {document}");
    }
    assert_eq!(document["ranks"], 3);
    assert_eq!(document["libraries"][0]["lib"], "oxccl");
    assert!(document["libraries"][0]["version"].is_string(), "{document}");
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 20 + 16);
    for key in [
        "collective",
        "lib",
        "bytes",
        "count",
        "type",
        "op",
        "root",
        "in_place",
        "iterations",
        "time_us",
        "time_us_min",
        "cpu_us",
        "algbw",
        "busbw",
        "wrong",
    ] {
        assert!(rows.iter().all(|row| row.get(key).is_some()), "{key}");
    }
    assert!(std::fs::read_to_string(&svg).expect("a plot").contains("<polyline"));
    std::fs::remove_dir_all(folder).expect("it can be removed");
}

/// Whether a plan is faster is not for a test to say; each is measured, and what is written is
/// read.
#[test]
fn plans_are_measured_and_a_table_for_the_tuner_is_written() {
    let folder = std::env::temp_dir().join(format!("oxccl-perf-tune-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let table = folder.join("rules.csv");
    let file = table.to_str().expect("a path");
    let sizes = ["-b", "8", "-e", "64K", "-f", "8192", "-n", "3", "-R", "0"];
    let all = [&["perf", "all", "--ranks", "2", "--tune", file], &sizes[..]].concat();
    let (ok, out, err) = oxccl(&all);
    assert!(ok && out.contains("Out of bounds values : 0 OK"), "{out}{err}");
    // A row for each size of the collectives that have such a plan.
    let rows = |cell: &str| out.lines().filter(|l| l.contains(&format!(" | {cell} "))).count();
    let found = ["RING/SIMPLE", "TREE/SIMPLE", "PAT/SIMPLE", "PAT/LL"].map(rows);
    assert_eq!(found, [10, 6, 4, 0], "{out}");
    let text = std::fs::read_to_string(&table).expect("a table");
    let rules = oxccl_tuner_table::table::read(&text).expect("it is in its own format");
    assert!(out.contains(&format!("# {} rules in {file}", rules.len())), "{out}");
    assert!(rules.iter().all(|rule| rule.ranks == Some(2) && rule.registered == Some(0)), "{text}");
    std::fs::remove_dir_all(folder).expect("it can be removed");
    let (ok, _, err) = oxccl(&["perf", "--tune", file, "--lib", "libnccl.so.2"]);
    assert!(!ok && err.contains("--tune measures the built-in library only"), "{err}");
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
fn a_library_from_a_file_is_measured_beside_the_built_in_one_in_processes_of_its_own() {
    let test = std::env::current_exe().expect("a path");
    let library = test.parent().expect("a folder").join("liboxccl.so");
    let library = library.to_str().expect("a path");
    let folder = Private::new("perf-vs");
    let (json, svg) = (folder.0.join("rows.json"), folder.0.join("plot.svg"));
    let files = ["--json", json.to_str().expect("a path"), "--plot", svg.to_str().expect("a path")];
    let base = ["perf", "all_gather", "-b", "1K", "-e", "1K", "-n", "6", "--vs", library];
    for (layout, ranks) in [
        (&["--ranks", "2"][..], 2),
        (&["-t", "2", "-G", "2"], 2),
        (&["--ranks", "2", "-g", "2"], 4),
    ] {
        let (ok, out, err) = oxccl(&[&base[..], layout, &files].concat());
        assert!(ok, "{layout:?} {out}{err}");
        check_table(&out, 2);
        assert!(out.contains(&format!("{ranks} ranks by")), "{out}");
        assert!(out.contains("ratio") && out.contains("(all_gather, in place)"), "{out}");
        let rows = rows(&json);
        let libraries: Vec<_> = rows.iter().filter_map(|row| row["lib"].as_str()).collect();
        assert_eq!(libraries, ["oxccl", library, "oxccl", library]);
        let versions = &document(&json)["libraries"];
        assert_eq!(versions[0]["version"], versions[1]["version"]);
        for pair in rows.chunks_exact(2) {
            let time = |row: &serde_json::Value| row["time_us"].as_f64().expect("a time");
            let ratio = pair[0]["ratio"].as_f64().expect("a ratio");
            assert!((ratio - time(&pair[1]) / time(&pair[0])).abs() < 1e-9 * ratio, "{pair:?}");
            assert!(pair[1]["ratio"].is_null(), "{pair:?}");
        }
        let plot = std::fs::read_to_string(&svg).expect("a plot");
        assert!(plot.contains("time of the other library / time of the first one"), "{plot}");
    }
    // Each with the buffers that it is fastest with, and in groups.
    let others = ["--ranks", "2", "-R", "0", "--vs-register", "2", "-m", "3"];
    let (ok, out, err) = oxccl(&[&base[..], &others, &files].concat());
    assert!(ok, "{out}{err}");
    let text = format!("# memory of {library} from ncclMemAlloc, in windows\n");
    assert!(out.contains("memory from malloc;") && out.contains(&text), "{out}");
    let document = document(&json);
    assert_eq!([&document["memory"], &document["vs_memory"]], [0, 2]);
    assert_eq!(document["aggregate"], 3);
    let plot = std::fs::read_to_string(&svg).expect("a plot");
    assert!(plot.contains("in groups of 3"), "{plot}");
}

#[test]
fn what_a_library_lacks_is_named() {
    let (ok, _, err) = oxccl(&["perf", "--lib", "/nonexistent.so"]);
    assert!(!ok && err.contains("/nonexistent.so"), "{err}");
    assert!(err.contains("No such file"), "{err}");
    // The C library is no NCCL, but it can be loaded.
    let (ok, _, err) = oxccl(&["perf", "--lib", "libc.so.6", "--device", "host"]);
    assert!(!ok && err.contains("libc.so.6: it has no ncclCommInitRank"), "{err}");
    let folder = Private::new("perf-foreign");
    let [code, library] = ["other.c", "libother.so"].map(|name| folder.0.join(name));
    let library = library.to_str().expect("a path");
    std::fs::write(&code, "int ncclCommInitRank(void) { return 3; }\n").expect("a file");
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-o", library]).arg(&code);
    assert!(compiler.status().expect("a C compiler").success());
    let (ok, _, err) = oxccl(&["perf", "--lib", library, "--device", "host"]);
    assert!(!ok && err.contains("libother.so: it has no oxcclDeviceSet"), "{err}");
    assert!(err.contains("use --device cuda"), "{err}");
}

#[test]
fn partners_send_to_each_other_and_many_messages_go_to_the_next_rank() {
    for kind in ["sendrecv_pairs", "sendrecv_many"] {
        let sizes = ["-b", "256", "-e", "1M", "-f", "4096", "-n", "6"];
        let (ok, out, err) =
            oxccl(&[&["perf", kind, "--ranks", "2", "-t", "2"], &sizes[..]].concat());
        assert!(ok && out.contains(&format!("# {kind}\n")), "{out}{err}");
        check_table(&out, 2);
    }
    let (ok, _, err) = oxccl(&["perf", "sendrecv_pairs", "-g", "3"]);
    let told = "sendrecv_pairs on 3 ranks; expected an even number";
    assert!(!ok && err.contains(told), "{err}");
}

#[test]
fn two_runs_are_compared() {
    let folder = Private::new("perf-compare");
    let file = |name: &str, us: f64| {
        let path = folder.0.join(name);
        let row = serde_json::json!({"collective": "reduce", "bytes": 8, "time_us": us});
        let document = serde_json::json!({"ranks": 2, "rows": [row]});
        std::fs::write(&path, document.to_string()).expect("room");
        path.to_str().expect("a path").to_owned()
    };
    let (old, new) = (file("old.json", 4.0), file("new.json", 5.0));
    let (ok, out, _) = oxccl(&["perf", "--compare", &old, &new]);
    assert!(!ok && out.contains("bytes 8: time in µs 4.00 → 5.00, 20 % less"), "{out}");
    assert!(out.contains("collective reduce, ranks 2"), "{out}");
    assert!(out.contains("# 1 of 1 rows fell by more than 5 %"), "{out}");
    let (ok, out, _) = oxccl(&["perf", "--compare", &new, &old]);
    assert!(ok && out.contains("# 0 of 1 rows fell"), "{out}");
    for (text, part) in [
        ("speed", "expected value at line 1"),
        ("{}", "it has no list \"rows\""),
        ("{\"rows\": [{\"bytes\": 8}]}", "row 0 has no number \"time_us\": {\"bytes\":8"),
    ] {
        std::fs::write(&new, text).expect("room");
        let (ok, _, err) = oxccl(&["perf", "--compare", &old, &new]);
        assert!(!ok && err.contains(part) && err.contains("expected what --json wrote"), "{err}");
    }
}

#[test]
fn the_document_is_all_of_the_standard_output_and_whole_also_after_a_failure() {
    let small = ["perf", "--ranks", "2", "-b", "8", "-e", "64", "-n", "1", "--json", "-"];
    let (ok, out, err) = oxccl(&small);
    let document: serde_json::Value = serde_json::from_str(&out).expect("one document");
    assert!(ok && document["rows"].as_array().is_some_and(|rows| rows.len() == 4), "{out}");
    check_table(&err, 2);
    // A row a line, for who has no parser of documents.
    assert_eq!(out.lines().count(), 6, "{out}");
    let wrong = [&small[..], &["-r", "7", "--device", "host"]].concat();
    let (ok, out, err) = oxccl(&wrong);
    assert_eq!((ok, &*out, &*err), (false, "", "oxccl: -r 7: expected 0 to 1 or all\n"));
    // Where somebody else started the ranks, they find it.
    let mut rank = timed(OXCCL);
    rank.args(["perf", "-e", "64", "-r", "7", "--device", "host", "--json", "-"]);
    rank.env("OXCCL_RANK", "0").env("OXCCL_NRANKS", "1");
    let ended = output(&mut rank).expect("it runs");
    let document: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("one document");
    assert!(!ended.status.success() && document["rows"] == serde_json::json!([]), "{document}");
}

#[test]
fn operations_that_the_other_library_lacks_are_left_out() {
    let test = std::env::current_exe().expect("a path");
    let mut library =
        std::fs::read(test.parent().expect("a folder").join("liboxccl.so")).expect("a library");
    // Nobody finds the function under another name.
    let name = b"ncclAlltoAll\0";
    let places: Vec<usize> =
        (0..library.len() - name.len()).filter(|at| library[*at..].starts_with(name)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| library[*at] = b'x');
    let folder = Private::new("perf-lacks");
    let path = folder.0.join("liblacks.so");
    std::fs::write(&path, library).expect("room");
    let path = path.to_str().expect("a path");
    let small = ["--ranks", "2", "-b", "64", "-e", "64", "-n", "1", "--vs", path];
    let (ok, out, err) = oxccl(&[&["perf", "all"], &small[..]].concat());
    let told = format!("# alltoall is left out: {path} has no ncclAlltoAll");
    assert!(ok && out.contains(&told), "{out}{err}");
    // Two lines for each of the others.
    check_table(&out, 20);
    let (ok, _, err) = oxccl(&[&["perf", "alltoall"], &small[..]].concat());
    assert!(!ok && err.contains(&format!("{path}: it has no ncclAlltoAll")), "{err}");
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
fn a_rank_for_each_processor_is_measured_where_nobody_says_how_many() {
    let small = ["perf", "--device", "host", "-b", "8", "-e", "8", "-n", "1"];
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let (ok, out, err) = oxccl(&small);
    let ranks = format!("; {} ranks (", processors.clamp(2, 16));
    assert!(ok && out.contains(&ranks) && out.contains("; --ranks N)\n"), "{out}{err}");
    let (ok, out, err) = oxccl(&[&small[..], &["-t", "3"]].concat());
    assert!(ok && out.contains("; 3 ranks"), "{out}{err}");
    let (ok, _, err) = oxccl(&[&small[..], &["--ranks", "0"]].concat());
    assert!(!ok && err.contains("invalid value '0' for '--ranks"), "{err}");
    let (ok, _, err) = oxccl(&["perf", "-b", "1M", "-e", "8"]);
    assert!(!ok && err.contains("-b 1048576 is more than -e 8"), "{err}");
}

#[test]
fn a_line_tells_of_each_communicator_and_rank() {
    let mut command = timed(OXCCL);
    command.args(["perf", "--device", "host", "-b", "8", "-e", "8", "-n", "1", "--ranks", "2"]);
    command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT");
    let lines = |command: &mut Command| {
        let text = output(command).expect("it runs");
        let text = String::from_utf8_lossy(&[text.stdout, text.stderr].concat()).into_owned();
        let line = |rank| format!(": rank {rank} of 2, hosts ");
        let of = |rank| text.lines().filter(|l| l.contains(&line(rank))).count();
        let told = text.lines().filter_map(|line| line.split_once(" OXCCL INFO communicator "));
        let lines: Vec<String> = told.clone().map(|(_, line)| line.to_owned()).collect();
        assert!(of(0) > 0 && of(0) == of(1) && of(0) + of(1) == lines.len(), "{text}");
        // One line for each: the number of the communicator and the rank are told once.
        let first = |line: &str| line.split(',').next().map(str::to_owned);
        let distinct: HashSet<_> = lines.iter().map(|line| first(line)).collect();
        assert_eq!(distinct.len(), lines.len(), "{text}");
        for (prefix, line) in told {
            let rank = line.split(' ').nth(2).expect("a rank");
            assert!(prefix.ends_with(&format!(", rank {rank}]")), "{prefix} before {line}");
        }
        lines
    };
    for line in lines(&mut command) {
        let (number, told) = line.split_once(": rank ").expect("a rank");
        assert!(u64::from_str_radix(number, 16).is_ok(), "{line}");
        let by = "hosts 1, host memory, by packets, stage, in place, ";
        assert!(told.contains(by) && told.ends_with(" ms"), "{line}");
        let (_, made) = told.split_once("edges; ").expect("the last way");
        let (kib, _) = made.split_once(" KiB, made in ").expect("memory");
        assert!(kib.parse::<u64>().is_ok(), "{line}");
    }
    for line in lines(command.env("OXCCL_RANKS_PER_NODE", "1")) {
        let (_, net) = line.split_once("hosts 2, host memory, by edges, Socket ").expect("TCP");
        let (interface, rest) = net.split_once(" (").expect("an address");
        let (address, _) = rest.split_once(") between hosts; ").expect("an end");
        assert!(address.parse::<std::net::IpAddr>().is_ok(), "{line}");
        assert!(Path::new("/sys/class/net").join(interface).exists(), "{line}");
    }
}

#[test]
fn subsystems_select_lines_as_in_nccl() {
    // A line of some subsystems.
    let lines = [
        ("INIT", "OXCCL INFO communicator "),
        ("ENV", "OXCCL INFO OXCCL_DEVICE=host"),
        ("NET", "OXCCL INFO net plugin: "),
        ("TUNING", "OXCCL INFO all_reduce of 8 bytes per block: "),
    ];
    for (selection, shown) in [
        ("INIT", &["INIT"][..]),
        ("NET,ENV", &["NET", "ENV"]),
        ("tuning", &["TUNING"]),
        ("^INIT,TUNING", &["ENV", "NET"]),
        ("ALL", &["INIT", "ENV", "NET", "TUNING"]),
    ] {
        let mut command = timed(OXCCL);
        command.args(["perf", "-b", "8", "-e", "8", "-n", "1", "--ranks", "2"]);
        let set = [("OXCCL_DEVICE", "host"), ("NCCL_DEBUG", "INFO")];
        command.envs(set).env("NCCL_DEBUG_SUBSYS", selection);
        let text = output(&mut command).expect("it runs");
        let text = String::from_utf8_lossy(&[text.stdout, text.stderr].concat()).into_owned();
        let found = lines.iter().filter(|(_, line)| text.contains(line)).map(|(name, _)| *name);
        let mut found: Vec<&str> = found.collect();
        let mut shown = shown.to_vec();
        [&mut found, &mut shown].into_iter().for_each(|names| names.sort_unstable());
        assert_eq!(found, shown, "{selection}: {text}");
    }
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
        static MADE: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
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
            // The host may not have been made.
            let _ = output(Command::new("ip").args(["netns", "del", host]));
        }
    }
}

/// A folder that only this user may read; dropping this removes the folder.
struct Private(PathBuf);

impl Private {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("oxccl-{name}-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder).expect("a folder");
        Self(folder)
    }

    /// Makes a file with a job's secret.
    fn secret(&self) -> PathBuf {
        let path = self.0.join("secret");
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(&path).expect("a file");
        file.write_all(b"a secret of at least sixteen bytes").expect("room");
        path
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // Files that cannot be removed stay in the system's folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The ranks: even ones run on the first host, odd ones on the second.
const RANKS: [usize; 4] = [0, 1, 2, 3];

/// Returns the command `oxccl perf` for a rank of a host, started by another command if one is
/// given.
fn member(hosts: &Hosts, rank: usize, around: &[&str], collective: &str) -> Command {
    let mut command = timed("ip");
    command.args(["netns", "exec", &hosts.0[rank % 2]]).args(around);
    command.args([OXCCL, "perf", collective, "-b", "8", "-e", "1M", "-f", "512", "-n", "3"]);
    command.args(["-w", "1"]).env("NCCL_SOCKET_IFNAME", "ox0").env("NCCL_DEBUG", "INFO");
    command
}

/// Checks that all ranks succeeded; returns what the first one printed.
fn all_well(outputs: &[Output]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all: Vec<_> = outputs.iter().map(|o| text(&o.stdout) + &text(&o.stderr)).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{}", all.join("\n"));
    text(&outputs[0].stdout)
}

/// Runs these ranks at the same time.
fn run(ranks: &[usize], command: impl Fn(usize) -> Command) -> Vec<Output> {
    let start = |&rank| {
        let mut command = command(rank);
        std::thread::spawn(move || output(&mut command).expect("it runs"))
    };
    let running: Vec<_> = ranks.iter().map(start).collect();
    running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

#[test]
fn two_hosts_run_all_collectives_over_tcp() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return missing("netns", &reason),
    };
    let folder = Private::new("tcp");
    let secret = folder.secret();
    let command = |rank: usize| {
        let mut command = member(&hosts, rank, &[], "all");
        command
            .env("OXCCL_RANK", rank.to_string())
            .env("OXCCL_NRANKS", RANKS.len().to_string())
            .env("NCCL_COMM_ID", "192.0.2.1:7411")
            .env("OXCCL_SECRET_FILE", &secret);
        command
    };
    check_table(&all_well(&run(&RANKS, command)), 22);
}

/// Writes a program that runs a command as ssh does; the hosts are namespaces.
fn stand_in(folder: &Private) -> String {
    let path = folder.0.join("ssh");
    let script = "#!/bin/sh\nhost=$1\nshift\nexec ip netns exec \"$host\" sh -c \"$*\"\n";
    std::fs::write(&path, script).expect("room");
    std::fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("its own");
    path.display().to_string()
}

#[test]
fn ranks_are_started_on_two_hosts() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return missing("netns", &reason),
    };
    let folder = Private::new("ssh");
    let mut command = timed("ip");
    let far = format!("localhost:2,{}:2", hosts.0[1]);
    command.args(["netns", "exec", &hosts.0[0], OXCCL, "run", "--ssh", &stand_in(&folder)]);
    command.args(["--host", &far, "--tag-output=no", OXCCL, "perf", "all", "-b", "8", "-e", "1M"]);
    command.args(["-f", "512", "-n", "3", "-w", "1", "--device", "host"]);
    let ended = output(command.env("NCCL_SOCKET_IFNAME", "ox0")).expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    assert!(ended.status.success() && out.contains("; 4 ranks by oxccl run"), "{out}{err}");
    check_table(&out, 22);
}

#[test]
fn two_hosts_meet_under_torchrun_behind_its_port() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return missing("netns", &reason),
    };
    let folder = Private::new("torchrun");
    let secret = folder.secret();
    let command = |rank: usize| {
        let mut command = member(&hosts, rank, &[], "all_reduce");
        let (group, local) = ((rank % 2).to_string(), rank / 2);
        // torchrun numbers ranks host by host.
        command
            .env("RANK", (rank % 2 * 2 + local).to_string())
            .env("LOCAL_RANK", local.to_string())
            .env("GROUP_RANK", &group)
            .env("LOCAL_WORLD_SIZE", "2")
            .env("WORLD_SIZE", "4")
            .env("GROUP_WORLD_SIZE", "2")
            .env("MASTER_ADDR", "192.0.2.1")
            .env("MASTER_PORT", "7511")
            .env("TORCHELASTIC_RUN_ID", "none")
            .env("TORCHELASTIC_RESTART_COUNT", &group)
            .env("SLURM_PROCID", &group)
            .env("SLURM_NTASKS", "2")
            .env("SLURM_JOB_ID", "7");
        command
    };
    let outputs = run(&RANKS, |rank| {
        let mut command = command(rank);
        command.env("OXCCL_SECRET_FILE", &secret);
        command
    });
    let text = all_well(&outputs);
    check_table(&text, 2);
    assert!(text.contains("4 ranks by torchrun"), "{text}");
    let refused = output(&mut command(1)).expect("it runs");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("MASTER_ADDR=192.0.2.1"), "{text}");
    assert!(text.contains("needs OXCCL_SECRET_FILE"), "{text}");
}

/// Ranks 0 and 2 see each other's processes; 1 and 3 are each alone in a pid namespace, on a host
/// of another name.
#[test]
fn two_hosts_meet_by_a_shared_folder_though_an_earlier_job_used_it() {
    let apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"];
    match output(Command::new(apart[0]).args(&apart[1..]).arg("true")) {
        Ok(done) if done.status.success() => {}
        done => return missing("unshare", &format!("{done:?}")),
    }
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return missing("netns", &reason),
    };
    let folder = Private::new("shared");
    let named = ["sh", "-c", "echo other >/proc/sys/kernel/hostname; exec \"$0\" \"$@\""];
    let start = |rank: usize| {
        let around = [&apart[..], &named].concat();
        let around = if rank % 2 == 1 { &around[..] } else { &[] };
        let mut command = member(&hosts, rank, around, "all_reduce");
        command
            .env("OMPI_COMM_WORLD_RANK", rank.to_string())
            .env("OMPI_COMM_WORLD_SIZE", RANKS.len().to_string())
            .env("OMPI_COMM_WORLD_LOCAL_RANK", (rank / 2).to_string())
            .env("PMIX_NAMESPACE", "prterun-a-1@1")
            .env("OXCCL_RENDEZVOUS", &folder.0);
        command
    };
    let text = all_well(&run(&RANKS, start));
    check_table(&text, 2);
    assert!(text.contains("4 ranks by mpirun"), "{text}");
    // A job that is killed leaves its id. Rank 1 finds that id and must wait for the second job's.
    let id = folder.0.join("mpirun-prterun_a_1_1.0");
    assert!(!id.exists(), "a job that ended well left its id");
    let mut killed = start(0);
    killed.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut killed = bind_to_parent(&mut killed).spawn().expect("it starts");
    while !id.exists() {
        assert!(killed.try_wait().expect("a child").is_none(), "rank 0 ended without its peers");
        std::thread::yield_now();
    }
    // `timeout` is the leader of a group of its own.
    let group = Pid::from_child(&killed);
    kill_process_group(group, Signal::KILL).expect("it is killed");
    killed.wait().expect("its end");
    let mut first = start(1);
    first.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut first = bind_to_parent(&mut first).spawn().expect("it starts");
    let mut log = BufReader::new(first.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("not taking the id in") {
        assert!(log.read_line(&mut said).expect("text") > 0, "{said}");
    }
    assert!(said.contains("which left it, does not answer"), "{said}");
    let rest = std::thread::spawn(move || {
        log.read_to_string(&mut said).expect("text");
        said
    });
    let text = all_well(&run(&[0, 2, 3], start));
    check_table(&text, 2);
    let said = rest.join().expect("no panic");
    assert!(first.wait().expect("its end").success(), "{said}");
}

#[test]
fn who_finds_no_id_is_told_how_ranks_of_several_hosts_meet() {
    let folder = Private::new("alone");
    let alone = |variables: [(&str, &str); 3], told: &str| {
        let mut command = timed(OXCCL);
        command.args(["perf", "all_reduce"]).envs(variables).env("OXCCL_RENDEZVOUS", &folder.0);
        let output = output(command.env("OXCCL_INIT_TIMEOUT", "1")).expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("rank 0 left no id in"), "{text}");
        assert!(text.contains(told), "{text}");
    };
    let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "7")];
    alone(slurm, "set OXCCL_RENDEZVOUS to a folder that all hosts share, or NCCL_COMM_ID");
    alone([("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "7")], "where rank 0 is on another");
    let parent = "only ranks of this host with the same parent process know its name";
    alone([("OXCCL_RANK", "1"), ("OXCCL_NRANKS", "2"), ("OXCCL_LOCAL_RANK", "1")], parent);
}

#[test]
fn what_cannot_be_is_refused_before_ranks_start() {
    for (options, part) in [
        (&["-t", "0"][..], "invalid value '0' for '--nthreads"),
        (&["-g", "0"], "invalid value '0' for '--ngpus"),
        (&["--json", "/nonexistent/x.json"], "/nonexistent/x.json: No such file"),
        (&["--plot", "/nonexistent/x.svg"], "/nonexistent/x.svg: No such file"),
    ] {
        let (ok, out, err) = oxccl(&[&["perf", "--device", "host", "-e", "8"], options].concat());
        assert!(!ok && err.contains(part) && out.is_empty(), "{options:?}: {err}");
        assert!(!err.contains("lost rank"), "{err}");
    }
    for ranks in ["--ranks", "-t"] {
        let (ok, _, err) = oxccl(&["perf", "--device", "host", ranks, "2", "-e", "9T"]);
        assert!(!ok && err.contains("-e: 2 ranks have buffers of 37748736 MiB, and "), "{err}");
    }
    let own = ["perf", "--device", "host", "--ranks", "3", "-e", "8"];
    let (ok, _, err) =
        oxccl(&[&["run", "-n", "2", env!("CARGO_BIN_EXE_oxccl")], &own[..]].concat());
    assert!(!ok && err.contains("--ranks 3: oxccl run has started 2 ranks"), "{err}");
}
