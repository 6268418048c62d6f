//! The RAS service of real processes, asked as `ncclras` and other tools ask it.

use oxccl_tests::job::{Job, wait_until};
use oxccl_tests::missing;
use oxccl_tests::network::{HIDDEN, apart, can_hide};
use oxccl_tests::sequence::Random;
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");
/// The longest life of a job.
const LIFE: Duration = Duration::from_secs(100);
/// The longest time until something is as it should be, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest time that a client waits for an answer, as `ncclras` does, before it connects again:
/// the process that has taken its connection may have ended, or be stopped.
const ANSWER: Duration = Duration::from_secs(10);

/// A port that processes of this user can share, and that nobody else gets while this lives.
struct Port {
    _reserved: OwnedFd,
    address: SocketAddr,
}

impl Port {
    fn new() -> Self {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
        let socket = socket.expect("a socket");
        sockopt::set_socket_reuseport(&socket, true).expect("it can be shared");
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = rustix::net::getsockname(&socket).expect("it has an address");
        let address = SocketAddr::try_from(address).expect("an address of the internet");
        Self { _reserved: socket, address }
    }

    fn connect(&self) -> Result<TcpStream> {
        Self::prepared(TcpStream::connect(self.address)?)
    }

    /// The same, with room for little of an answer.
    fn connect_narrow(&self) -> Result<TcpStream> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        sockopt::set_socket_recv_buffer_size(&socket, 1)?;
        rustix::net::connect(&socket, &self.address)?;
        Self::prepared(socket.into())
    }

    fn prepared(stream: TcpStream) -> Result<TcpStream> {
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Starts ranks whose service is at a port, and waits until they run.
fn start(port: &Port, nranks: u32, arguments: &[&str], serving: impl Fn(u32) -> bool) -> Job {
    let mut job = Job::start(Path::new(RANK), nranks, LIFE, |rank, command| {
        command.args(arguments).env("NCCL_RAS_ADDR", port.address.to_string());
        if !serving(rank) {
            command.env("NCCL_RAS_ENABLE", "0");
        }
        if rank == 0 {
            command.stdin(Stdio::piped());
        }
    });
    job.wait_until_running(nranks);
    job
}

fn end(mut job: Job, nranks: u32) {
    for rank in 0..nranks {
        let _ = job.child(rank).kill();
    }
    job.wait();
}

/// Says a line, in pieces of so many bytes, and returns the line that answers it.
fn say(stream: &mut TcpStream, line: &str, piece: usize) -> Result<String> {
    format!("{line}\n").as_bytes().chunks(piece).try_for_each(|piece| stream.write_all(piece))?;
    let mut answer = Vec::new();
    while answer.last() != Some(&b'\n') {
        let mut byte = [0];
        match stream.read(&mut byte)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            _ => answer.push(byte[0]),
        }
    }
    Ok(String::from_utf8(answer).expect("text"))
}

/// The conversation of `ncclras -t 5 -f FORMAT`, with lines in pieces of so many bytes.
fn converse(port: &Port, format: &str, command: &str, piece: usize) -> Result<String> {
    let mut stream = port.connect()?;
    for (line, answer) in [
        ("CLIENT PROTOCOL 2", "SERVER PROTOCOL 2\n"),
        ("TIMEOUT 5", "OK\n"),
        (&format!("SET FORMAT {format}"), "OK\n"),
    ] {
        assert_eq!(say(&mut stream, line, piece)?, answer);
    }
    let line = format!("{command}\n");
    line.as_bytes().chunks(piece).try_for_each(|piece| stream.write_all(piece))?;
    let mut report = String::new();
    stream.read_to_string(&mut report)?;
    Ok(report)
}

/// Asks until a process answers, as `ncclras` does.
fn ask(port: &Port, format: &str, command: &str, piece: usize) -> String {
    let start = Instant::now();
    loop {
        match converse(port, format, command, piece) {
            Ok(report) => return report,
            Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
        }
    }
}

/// Asks for JSON until it is as it should be.
fn ask_until(port: &Port, is: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let report = ask(port, "json", "STATUS", 1024);
        let document = serde_json::from_str(&report).expect("JSON");
        check(&report, &document);
        if is(&document) {
            return document;
        }
        assert!(start.elapsed() < LIMIT, "{report}");
    }
}

/// Checks that an object has exactly these keys, with values of these kinds: `s`tring, `n`umber
/// without sign or fraction, `i`nteger, `f`raction, `b`oolean, `l`ist, `o`bject.
fn has_keys(object: &Value, keys: &[(&str, char)]) {
    let map = object.as_object().expect("an object");
    assert_eq!(map.len(), keys.len(), "{object}");
    for (key, kind) in keys {
        let value = map.get(*key).unwrap_or_else(|| panic!("{object} without {key}"));
        let fits = match kind {
            's' => value.is_string(),
            'n' => value.is_u64(),
            'i' => value.is_i64(),
            'f' => value.is_f64(),
            'b' => value.is_boolean(),
            'l' => value.is_array(),
            _ => value.is_object(),
        };
        assert!(fits, "{key} of {object} is no {kind}");
    }
}

fn list<'a>(of: &'a Value, key: &str) -> &'a Vec<Value> {
    of[key].as_array().expect("a list")
}

/// Checks the keys and kinds of a whole document, and the order of its keys.
fn check(text: &str, document: &Value) {
    let versions = [("nccl_version", 's'), ("cuda_runtime_version", 'n')];
    let more = [("cuda_driver_version", 'n'), ("timestamp", 's'), ("communicators_count", 'n')];
    let rest = [("communicators", 'l'), ("ras", 'o'), ("causes", 'l')];
    let keys: Vec<_> = versions.into_iter().chain(more).chain(rest).collect();
    has_keys(document, &keys);
    let places = keys.iter().map(|(key, _)| text.find(&format!("\n  \"{key}\": ")).expect(key));
    assert!(places.collect::<Vec<_>>().is_sorted(), "{text}");
    has_keys(&document["ras"], &[("collection_time_sec", 'f'), ("timeouts_count", 'n')]);
    for cause in list(document, "causes") {
        has_keys(cause, &[("cause", 's'), ("comm", 'n'), ("ranks", 'l'), ("text", 's')]);
    }
    let comms = list(document, "communicators");
    assert_eq!(document["communicators_count"], comms.len());
    for comm in comms {
        let sizes = [("size", 'n'), ("ranks_count", 'n'), ("missing_ranks_count", 'n')];
        let names = [("hash", 's'), ("secondary_hash", 's')];
        let lists = [("ranks", 'l'), ("missing_ranks", 'l')];
        has_keys(comm, &[&names[..], &sizes, &lists].concat());
        let place = [("rank", 'n'), ("host", 's'), ("pid", 'i'), ("cuda_dev", 'i')];
        let place = [&place[..], &[("nvml_dev", 'i'), ("status", 'o')]].concat();
        let (ranks, missing) = (list(comm, "ranks"), list(comm, "missing_ranks"));
        let counts = (&comm["ranks_count"], &comm["missing_ranks_count"]);
        assert_eq!(counts, (&Value::from(ranks.len()), &Value::from(missing.len())));
        assert_eq!(comm["size"], ranks.len() + missing.len());
        for rank in ranks {
            has_keys(rank, &[&place[..], &[("collective_counts", 'o')]].concat());
            let codes = [("init_state", 'n'), ("async_error", 'n')];
            let flags = [("finalize_called", 'b'), ("destroy_flag", 'b'), ("abort_flag", 'b')];
            has_keys(&rank["status"], &[&codes[..], &flags].concat());
            let kinds = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];
            has_keys(&rank["collective_counts"], &kinds.map(|kind| (kind, 'n')));
        }
        for rank in missing {
            has_keys(rank, &place);
            has_keys(&rank["status"], &[("unresponsive", 'b'), ("considered_dead", 'b')]);
        }
    }
}

fn pids(job: &mut Job, nranks: u32) -> Vec<u32> {
    (0..nranks).map(|rank| job.child(rank).id()).collect()
}

#[test]
fn a_stuck_job_is_told_in_nccls_words_with_the_rank_at_fault() {
    let port = Port::new();
    let mut job = start(&port, 3, &["stuck", "skip", "1", "4", "0"], |_| true);
    let pids = pids(&mut job, 3);
    let document = ask_until(&port, |document| {
        let causes = list(document, "causes");
        causes.len() == 1 && causes[0]["cause"] == "not_called"
    });
    assert_eq!(document["nccl_version"], "2.32.3");
    // There is no CUDA in host memory.
    let versions = ["cuda_runtime_version", "cuda_driver_version"].map(|of| &document[of]);
    assert_eq!(versions, [0, 0]);
    let [comm] = &list(&document, "communicators")[..] else { panic!("{document}") };
    assert_eq!((&comm["size"], &comm["missing_ranks_count"]), (&3.into(), &0.into()));
    for (number, rank) in list(comm, "ranks").iter().enumerate() {
        let calls = if number == 1 { 4 } else { 5 };
        assert_eq!((&rank["rank"], &rank["pid"]), (&number.into(), &pids[number].into()));
        assert_eq!((&rank["cuda_dev"], &rank["status"]["init_state"]), (&number.into(), &0.into()));
        assert_eq!(rank["collective_counts"]["AllReduce"], calls);
    }
    assert_eq!(document["causes"][0]["ranks"], Value::from([1]));
    // The same, byte by byte, by many clients at a time, and in text.
    let hash = comm["hash"].as_str().expect("a hash").trim_start_matches("0x").to_owned();
    std::thread::scope(|scope| {
        for client in 0..12 {
            let (port, hash, pids) = (&port, &hash, &pids);
            scope.spawn(move || match client % 3 {
                0 => check_text(&ask(port, "text", "STATUS", 1), hash, pids),
                1 => check_text(&ask(port, "TEXT", "verbose status", 3), hash, pids),
                _ => {
                    let report = ask(port, "json", "status", 1);
                    check(&report, &serde_json::from_str(&report).expect("JSON"));
                }
            });
        }
    });
    // One who reads slowly, and says more than it has to, gets all of it.
    let mut slow = port.connect_narrow().expect("a connection");
    let words = format!("SET FORMAT json\nSTATUS\n{}", "x".repeat(50_000));
    slow.write_all(words.as_bytes()).expect("it is heard");
    let mut report = String::new();
    slow.read_to_string(&mut report).expect("a whole report");
    let report = report.strip_prefix("OK\n").expect("an answer");
    check(report, &serde_json::from_str(report).expect("JSON"));
    end(job, 3);
}

/// Checks the report on three ranks, of which rank 1 has not called the fifth operation.
fn check_text(text: &str, hash: &str, pids: &[u32]) {
    let row = format!("{:5}  {:8}  {:8}  {:>8}  {:8}  {:8}", 0, 1, 1, 3, 3, 3);
    let row = format!("{row}  {:>8}  {:>6}\n", "RUNNING", "MISMATCH");
    let title = format!("#0-0 ({hash:0>16})");
    let late =
        format!("  Rank 1 has launched up to operation 4 -- GPU 1 managed by process {}", pids[1]);
    let parts = [
        "NCCL version 2.32.3 compiled with CUDA 13.0\n",
        "\nJob summary\n===========\n\n",
        "      1          3            1          3        3\n\nCommunicators... (",
        "s)\n=============\n\n",
        &row,
        "\nErrors\n======\n\nWarnings\n========\n\n",
        &format!(
            "{title} MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        ),
        "  2 ranks have launched up to operation 5\n",
        &late,
        &format!("{title} CAUSE\n  rank 1 has not called all_reduce of 1000 × float"),
    ];
    let mut rest = text;
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("{text} without {part:?}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn a_job_goes_on_beside_a_thousand_silent_clients_and_what_strangers_send() {
    let limits = getrlimit(Resource::Nofile);
    if limits.maximum.is_some_and(|most| most < 2048) {
        return missing("descriptors", "ulimit -Hn is below 2048");
    }
    setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }).expect("allowed");
    let port = Port::new();
    let mut job = start(&port, 2, &["attended"], |_| true);
    let calls = |document: &Value| -> u64 {
        let ranks = list(&document["communicators"][0], "ranks");
        let counts = ranks.iter().map(|rank| rank["collective_counts"]["AllReduce"].as_u64());
        counts.map(|count| count.expect("a number")).min().expect("ranks")
    };
    let before = calls(&ask_until(&port, |_| true));
    let mut listener = port.connect().expect("a connection");
    assert_eq!(say(&mut listener, "MONITOR", 1).expect("an answer"), "OK\n");
    let silent: Vec<_> = (0..1000).map(|_| port.connect().expect("a connection")).collect();
    let mut random = Random(28028);
    let strangers = (0..50u64).map(|_| {
        let bytes: Vec<u8> = (0..random.below(3000)).map(|_| random.below(256) as u8).collect();
        let mut stream = port.connect().expect("a connection");
        // The service may close the connection before it has heard all.
        let _ = stream.write_all(&bytes);
        stream
    });
    let strangers: Vec<_> = strangers.collect();
    // Others ask for a report, and read none.
    let greedy: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = port.connect().expect("a connection");
            let _ = stream.write_all(b"MONITOR all\nSET FORMAT json\nSTATUS\n");
            stream
        })
        .collect();
    let now = calls(&ask_until(&port, |document| calls(document) > before));
    ask_until(&port, |document| calls(document) > now);
    // The bounds hold: most of the thousand were closed, and none that waits for something.
    let is_closed = |stream: &&TcpStream| {
        stream.set_nonblocking(true).expect("a socket");
        let ended = (&mut &**stream).read(&mut [0; 1]);
        !matches!(ended, Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    assert!(silent.iter().filter(is_closed).count() >= 1000 - 2 * 128);
    assert!(!is_closed(&&listener));
    drop(job.child(0).stdin.take());
    job.expect_success();
    drop((silent, strangers, greedy));
}

#[test]
fn a_job_that_does_without_the_service_has_none() {
    let port = Port::new();
    let job = start(&port, 2, &["stuck", "skip", "0", "2", "0"], |_| false);
    let refused = port.connect().err().map(|error| error.kind());
    assert_eq!(refused, Some(ErrorKind::ConnectionRefused));
    end(job, 2);
}

#[test]
fn who_listens_hears_of_the_death_of_a_process_and_it_is_missing_then() {
    let port = Port::new();
    // Rank 0 calls nothing any more, so that it survives; it alone has a service.
    let mut job = start(&port, 3, &["stuck", "skip", "0", "2", "0"], |rank| rank == 0);
    let pids = pids(&mut job, 3);
    let mut listeners = ["SET FORMAT text", "SET FORMAT json"].map(|format| {
        let mut stream = port.connect().expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        assert_eq!(say(&mut stream, format, 1).expect("an answer"), "OK\n");
        let refused = say(&mut stream, "MONITOR some", 1).expect("an answer");
        assert_eq!(refused, "ERROR: Invalid event group 'some'\n");
        assert_eq!(say(&mut stream, "MONITOR lifecycle,trace", 1).expect("an answer"), "OK\n");
        BufReader::new(stream)
    });
    job.child(2).kill().expect("it lives");
    let [text, json] = &mut listeners;
    // Rank 1 ends because of that, and may be told of before.
    let dead = format!("] PEER_DEAD: Process {} on node ", pids[2]);
    let mut line = String::new();
    while !line.contains(&dead) {
        line.clear();
        assert!(text.read_line(&mut line).expect("an event") > 0);
        assert!(line.contains("] PEER_DEAD: Process "), "{line}");
    }
    assert!(line.ends_with(" managing GPU 2 \n") && line.starts_with('['), "{line}");
    let mut events = serde_json::Deserializer::from_reader(json).into_iter::<Value>();
    let event = events.find_map(|event| {
        let event = event.expect("JSON");
        (event["peer"]["pid"] == pids[2]).then_some(event)
    });
    let event = event.expect("an event");
    let strings = [("timestamp", 's'), ("group", 's'), ("event", 's'), ("details", 's')];
    has_keys(&event, &[&strings[..], &[("peer", 'o')]].concat());
    let peer = [("host", 's'), ("pid", 'n'), ("cuda_devs", 'l'), ("nvml_devs", 'l')];
    has_keys(&event["peer"], &peer);
    assert_eq!((&event["event"], &event["group"]), (&"PEER_DEAD".into(), &"LIFECYCLE".into()));
    assert_eq!(event["peer"]["cuda_devs"], Value::from([2]));
    let document = ask_until(&port, |document| {
        let missing = list(&document["communicators"][0], "missing_ranks");
        missing.len() == 2 && missing.iter().all(|rank| rank["status"]["considered_dead"] == true)
    });
    let comm = &document["communicators"][0];
    for (number, rank) in (1usize..).zip(list(comm, "missing_ranks")) {
        assert_eq!((&rank["rank"], &rank["pid"]), (&number.into(), &pids[number].into()));
        assert_eq!((&rank["cuda_dev"], &rank["host"]), (&number.into(), &comm["ranks"][0]["host"]));
        assert_eq!(rank["status"]["unresponsive"], true);
    }
    let text = ask(&port, "text", "STATUS", 1024);
    let process = format!("  Process {} on node ", pids[2]);
    for part in ["DEAD\n  2 job processes are considered dead", &process, "INCOMPLETE"] {
        assert!(text.contains(part), "{text} without {part:?}");
    }
    end(job, 3);
}

#[test]
fn the_ranks_of_other_hosts_are_told_or_missing_in_time() {
    if !can_hide() {
        return;
    }
    let ports = [Port::new(), Port::new(), Port::new()];
    // Rank 1 calls one operation less. Each is alone on its host, where it is process 1.
    let mut job = Job::start(Path::new("unshare"), 3, LIFE, |rank, command| {
        command.args(HIDDEN).arg(RANK).args(["stuck", "skip", "1", "3", "0"]);
        command.env("NCCL_HOSTID", format!("host {rank}"));
        command.env("NCCL_RAS_ADDR", ports[rank as usize].address.to_string());
    });
    job.wait_until_running(3);
    for port in &ports {
        let document = ask_until(port, |document| {
            let causes = list(document, "causes");
            causes.len() == 1 && causes[0]["cause"] == "not_called"
        });
        assert_eq!(document["causes"][0]["ranks"], Value::from([1]));
        assert_eq!(document["ras"]["timeouts_count"], 0);
        let [comm] = &list(&document, "communicators")[..] else { panic!("{document}") };
        let ranks = list(comm, "ranks");
        let calls: Vec<_> = ranks.iter().map(|r| &r["collective_counts"]["AllReduce"]).collect();
        assert_eq!(calls, [4, 3, 4]);
        assert!(ranks.iter().all(|rank| rank["pid"] == 1));
    }
    // One that is stopped does not answer, and the others are told nevertheless.
    let stopped = only_child(job.child(1).id());
    kill_process(stopped, Signal::STOP).expect("it can be stopped");
    let start = Instant::now();
    loop {
        let mut stream = ports[0].connect().expect("a connection");
        stream.write_all(b"TIMEOUT 0.2\nSET FORMAT json\nSTATUS\n").expect("it is heard");
        let mut report = String::new();
        stream.read_to_string(&mut report).expect("a report");
        let report = report.strip_prefix("OK\nOK\n").expect("two answers").to_owned();
        let document: Value = serde_json::from_str(&report).expect("JSON");
        check(&report, &document);
        let comm = &document["communicators"][0];
        if let [rank] = &list(comm, "missing_ranks")[..]
            && rank["rank"] == 1
        {
            assert_eq!((&rank["pid"], &rank["cuda_dev"]), (&1.into(), &1.into()));
            assert_eq!(rank["status"]["unresponsive"], true);
            if rank["status"]["considered_dead"] != true {
                let cause = &document["causes"][0];
                assert_eq!((&cause["cause"], &cause["ranks"][0]), (&"unseen".into(), &1.into()));
                let text = cause["text"].as_str().expect("a text");
                assert!(text.contains("rank 1, which does not answer (process 1 on "), "{text}");
            }
            assert!(
                document["ras"]["timeouts_count"] != 0 || rank["status"]["considered_dead"] == true
            );
            break;
        }
        // It has answered before it was stopped, or rank 2 has not got a processor in time.
        assert!(start.elapsed() < LIMIT, "{report}");
    }
    end(job, 3);
}

/// Ranks are read at different times, also on other hosts, and none of them is behind for that.
#[test]
fn ranks_of_a_running_job_count_the_same_on_several_hosts() {
    if !can_hide() {
        return;
    }
    let ports = [Port::new(), Port::new()];
    let mut job = Job::start(Path::new("unshare"), 2, LIFE, |rank, command| {
        command.args(HIDDEN).arg(RANK).args(["stuck", "stop", "0", "3", "0"]);
        command.env("NCCL_HOSTID", format!("host {rank}"));
        command.env("NCCL_RAS_ADDR", ports[rank as usize].address.to_string());
    });
    job.wait_until_running(2);
    // What a rank calls while another one has no processor may show.
    ask_until(&ports[0], |document| {
        let [comm] = &list(document, "communicators")[..] else { return false };
        let ranks = list(comm, "ranks");
        let counts = ranks.iter().map(|rank| rank["collective_counts"]["AllReduce"].as_u64());
        let counts: Vec<_> = counts.collect();
        counts.len() == 2 && counts[0] > Some(3) && counts[0] == counts[1]
    });
    end(job, 2);
}

/// Questions go from process to process: those that died are no hindrance to the rest.
#[test]
fn who_lives_is_asked_around_those_that_died() {
    if !can_hide() {
        return;
    }
    let ports: [Port; 6] = std::array::from_fn(|_| Port::new());
    let mut job = Job::start(Path::new("unshare"), 6, LIFE, |rank, command| {
        command.args(HIDDEN).arg(RANK).args(["stuck", "cut", "0", "3", "0"]);
        command.env("NCCL_HOSTID", format!("host {rank}"));
        command.env("NCCL_RAS_ADDR", ports[rank as usize].address.to_string());
    });
    job.wait_until_running(6);
    // Both neighbours of rank 2.
    for rank in [1, 3] {
        let process = only_child(job.child(rank).id());
        kill_process(process, Signal::KILL).expect("it can be killed");
    }
    for asked in [0, 2, 4, 5] {
        ask_until(&ports[asked], |document| {
            let [comm] = &list(document, "communicators")[..] else { return false };
            let numbers = |key: &str| {
                let ranks = list(comm, key).iter().map(|rank| rank["rank"].as_u64());
                ranks.collect::<Option<Vec<_>>>().expect("numbers")
            };
            let mut missing = list(comm, "missing_ranks").iter();
            missing.all(|rank| rank["status"]["considered_dead"] == true)
                && (numbers("ranks"), numbers("missing_ranks")) == (vec![0, 2, 4, 5], vec![1, 3])
        });
    }
    end(job, 6);
}

#[test]
fn who_listens_hears_of_the_death_of_a_process_on_another_host() {
    let name = "who_listens_hears_of_the_death_of_a_process_on_another_host";
    apart(name, 2, |network| {
        let mut job = Job::start(Path::new(RANK), 3, LIFE, |rank, command| {
            network.enter(command, rank / 2).args(["stuck", "cut", "0", "3", "0"]);
            command.env("NCCL_COMM_ID", format!("{}:4000", network.address(0)));
            command.env("NCCL_RAS_ADDR", "127.0.0.1:28029");
        });
        job.wait_until_running(3);
        let listen = || {
            let space = File::open(network.space(0)).expect("a namespace");
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
            let mut stream = Port::prepared(TcpStream::connect("127.0.0.1:28029")?)?;
            stream.set_read_timeout(Some(LIMIT))?;
            assert_eq!(say(&mut stream, "MONITOR", 1)?, "OK\n");
            Ok::<_, std::io::Error>(stream)
        };
        let start = Instant::now();
        let stream = loop {
            match std::thread::scope(|scope| scope.spawn(listen).join()).expect("no panic") {
                Ok(stream) => break stream,
                Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
            }
        };
        let pid = job.child(2).id();
        job.child(2).kill().expect("it lives");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an event");
        let dead =
            format!("] PEER_DEAD: Process {pid} on node {} managing GPU ", network.address(1));
        assert!(line.contains(&dead), "{line}");
        end(job, 3);
    });
}

#[test]
fn the_service_has_nccls_address_where_nobody_says_another_one() {
    apart("the_service_has_nccls_address_where_nobody_says_another_one", 1, |network| {
        let mut job = Job::start(Path::new(RANK), 2, LIFE, |_, command| {
            network.enter(command, 0).args(["stuck", "skip", "1", "3", "0"]);
            command.env_remove("NCCL_RAS_ADDR");
        });
        job.wait_until_running(2);
        let space = File::open(network.space(0)).expect("a namespace");
        // As a process of that host asks, by either family of addresses.
        let ask = |address: &str| {
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
            let mut stream = Port::prepared(TcpStream::connect(address)?)?;
            stream.write_all(b"SET FORMAT json\nSTATUS\n")?;
            let mut report = String::new();
            stream.read_to_string(&mut report)?;
            Ok::<_, std::io::Error>(report)
        };
        for address in ["127.0.0.1:28028", "[::1]:28028"] {
            let start = Instant::now();
            let report = loop {
                let report = std::thread::scope(|scope| scope.spawn(|| ask(address)).join());
                match report.expect("no panic") {
                    Ok(report) => break report,
                    // The service begins a moment after the ranks.
                    Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
                }
            };
            let report = report.strip_prefix("OK\n").expect("an answer");
            let document = serde_json::from_str(report).expect("JSON");
            check(report, &document);
            assert_eq!(document["communicators"][0]["ranks_count"], 2);
        }
        end(job, 2);
    });
}

/// Returns the only child of a process.
fn only_child(pid: u32) -> Pid {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).expect("its children");
    let child = children.trim().parse().ok().and_then(Pid::from_raw);
    child.unwrap_or_else(|| panic!("{pid} has the children {children:?}"))
}

#[test]
fn a_forked_child_does_not_keep_the_port() {
    let port = Port::new();
    let mut job = start(&port, 1, &["fork"], |_| true);
    let input = job.child(0).stdin.take();
    wait_until(job.child(0), Instant::now() + LIFE).expect("it ends");
    // The child lives, as its input has not ended.
    let refused = port.connect().map(|_| "a connection that nobody answers");
    assert_eq!(refused.expect_err("nobody listens").kind(), ErrorKind::ConnectionRefused);
    drop(input);
    job.expect_success();
}

#[test]
fn a_port_that_another_program_has_is_no_error() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it has an address").to_string();
    let folder = std::env::temp_dir().join(format!("oxccl-test-port-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let log = |rank: u32| folder.join(rank.to_string());
    let mut job = Job::start(Path::new(RANK), 2, LIFE, |rank, command| {
        command.arg("attended").env("NCCL_RAS_ADDR", &address).stdin(Stdio::piped());
        command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "RAS");
        command.env("NCCL_DEBUG_FILE", log(rank));
    });
    job.wait_until_running(2);
    let line = format!("there is no RAS service at {address}: Address already in use");
    let start = Instant::now();
    for rank in 0..2 {
        // The service says so when it comes to it: nobody waits for it.
        let said = || std::fs::read_to_string(log(rank)).unwrap_or_default();
        while !said().contains(&line) {
            assert!(start.elapsed() < LIMIT, "{}", said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    drop(job.child(0).stdin.take());
    job.expect_success();
    std::fs::remove_dir_all(folder).expect("its own folder");
}
