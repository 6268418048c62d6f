//! Conformance, graphs, registration and failures on the device that is there: GPUs where there are
//! any, host memory otherwise. `oxccl-device-tests [TEXT ...]` runs every test in a process of its
//! own and prints a table (`--costs`: what a communicator costs); with more than one GPU a rank per
//! GPU, else four ranks on the one.

mod children;
mod conformance;
mod costs;
mod engines;
mod failures;
mod graphs;
mod groups;
mod messages;
mod on_demand;
mod options;
mod order;
mod rank;
mod registered;
mod scaled;
mod short;
mod standstill;
mod vcollectives;
mod windows;

use oxccl::nccl::comm::ncclCommInitAll;
use oxccl::nccl::lifetime::ncclCommAbort;
use oxccl::oxccl::types::oxcclDeviceKind_t;
use oxccl_tests::job::{Ended, Job, bind_to_parent, wait_until};
use oxccl_tests::missing;
use oxccl_tests::network::Network;
use rank::{Outcome, Rank, devices, last_error, ok, unique_id};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How ranks are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A thread each.
    Threads,
    /// All in one thread.
    Single,
    /// A process each.
    Processes,
}

/// A test: what the ranks of one thread do.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) layouts: &'static [Layout],
    pub(crate) body: fn(&[Rank]) -> Outcome,
}

const THREADS: &[Layout] = &[Layout::Threads];
const SINGLE: &[Layout] = &[Layout::Single];
const PROCESSES: &[Layout] = &[Layout::Processes];
const APART: &[Layout] = &[Layout::Threads, Layout::Processes];
const ALL: &[Layout] = &[Layout::Threads, Layout::Single, Layout::Processes];

const TESTS: &[Test] = &[
    Test { name: "every collective, type and operation", layouts: ALL, body: order::small },
    Test { name: "large and odd sizes", layouts: ALL, body: order::large },
    Test { name: "many rounds", layouts: APART, body: order::many_rounds },
    Test { name: "send and receive", layouts: ALL, body: messages::sizes },
    Test { name: "1500 messages with every peer", layouts: APART, body: messages::many },
    Test { name: "groups of collectives", layouts: ALL, body: groups::random },
    Test { name: "groups in order with calls", layouts: APART, body: groups::ordered },
    Test { name: "groups with puts between", layouts: APART, body: groups::puts_between },
    Test { name: "multiplied inputs", layouts: APART, body: scaled::multiplied },
    Test { name: "a count per rank", layouts: APART, body: vcollectives::random },
    Test { name: "in packets and through the stage", layouts: APART, body: order::sequence },
    Test { name: "staged in one shot", layouts: THREADS, body: order::large },
    Test { name: "staged in two shots", layouts: THREADS, body: order::large },
    Test { name: "written into inboxes", layouts: APART, body: order::large },
    Test { name: "results collected by reading", layouts: THREADS, body: order::large },
    Test { name: "small calls through host memory", layouts: APART, body: order::small },
    Test { name: "large calls through host memory", layouts: APART, body: order::large },
    Test { name: "two streams, random delays", layouts: APART, body: order::two_streams },
    Test { name: "a sequence of 10 000", layouts: APART, body: order::sequence },
    Test { name: "counters beyond 32 bits", layouts: THREADS, body: order::sequence },
    Test { name: "counters beyond 64 bits", layouts: APART, body: order::sequence },
    Test {
        name: "counters beyond 64 bits, many rounds",
        layouts: THREADS,
        body: order::many_rounds,
    },
    Test { name: "four thread blocks", layouts: THREADS, body: order::large },
    Test { name: "options of each call", layouts: APART, body: options::random },
    Test { name: "options of each call in packets", layouts: APART, body: options::random },
    Test { name: "no packet is torn", layouts: APART, body: order::chained },
    Test { name: "the first operation captured", layouts: THREADS, body: graphs::first_captured },
    Test { name: "others work during a capture", layouts: SINGLE, body: graphs::others_work },
    Test { name: "100 000 replays", layouts: THREADS, body: graphs::replays },
    Test { name: "captured and eager mixed", layouts: APART, body: graphs::mixed },
    Test { name: "captured beside allocations", layouts: APART, body: graphs::allocating },
    Test { name: "messages captured", layouts: APART, body: graphs::messages },
    Test { name: "destroyed before its graphs", layouts: THREADS, body: graphs::destroyed_first },
    Test { name: "captured on some ranks only", layouts: THREADS, body: graphs::some_captured },
    Test { name: "graphs are updated", layouts: APART, body: graphs::updated },
    Test { name: "two graphs on two streams", layouts: APART, body: graphs::two_at_once },
    Test {
        name: "graphs of all ranks from one thread",
        layouts: SINGLE,
        body: graphs::one_launcher,
    },
    Test { name: "captured in opposite order", layouts: APART, body: graphs::opposite },
    Test { name: "aborted while graphs run", layouts: THREADS, body: graphs::aborted },
    Test { name: "library memory in place", layouts: APART, body: registered::from_library },
    Test { name: "registered memory in place", layouts: APART, body: registered::foreign },
    Test { name: "memory in pieces in place", layouts: PROCESSES, body: registered::in_pieces },
    Test { name: "captured memory in place", layouts: APART, body: registered::captured },
    Test { name: "memory used again", layouts: APART, body: registered::reused },
    Test { name: "each rank registers as it likes", layouts: APART, body: registered::random },
    Test { name: "windows", layouts: APART, body: windows::random },
    Test { name: "copy engines", layouts: APART, body: engines::gathers },
    Test { name: "copy engines put", layouts: APART, body: engines::puts },
    Test { name: "copy engines sent astray", layouts: APART, body: engines::astray },
    Test { name: "copy engines beside windows", layouts: APART, body: engines::beside },
    Test { name: "copy engines and an abort", layouts: APART, body: engines::aborted },
    Test { name: "memory as operations need it", layouts: APART, body: on_demand::grows },
    Test { name: "two ranks begin with chunks", layouts: APART, body: on_demand::pairs_first },
    Test { name: "chunks begin beside others", layouts: SINGLE, body: on_demand::beside_small },
    Test { name: "chunks begin in a capture", layouts: APART, body: on_demand::captured },
    Test { name: "split and shrunk", layouts: APART, body: children::split_and_shrunk },
    Test {
        name: "streams one after the other",
        layouts: APART,
        body: children::one_after_the_other,
    },
    Test { name: "suspended and resumed", layouts: APART, body: children::suspended },
    Test { name: "suspended, with inboxes", layouts: APART, body: children::suspended },
    Test { name: "a short run of everything", layouts: THREADS, body: short::everything },
    Test { name: "differing calls are told", layouts: APART, body: failures::mismatch },
    Test { name: "groups that differ", layouts: APART, body: groups::differing },
    Test { name: "options that differ", layouts: APART, body: options::differing },
    Test { name: "roots that differ", layouts: APART, body: failures::roots },
    Test { name: "roots that differ and wait for nobody", layouts: APART, body: failures::crossed },
    Test { name: "two roots of a small broadcast", layouts: APART, body: failures::two_roots },
    Test { name: "who only sends hears of others", layouts: APART, body: failures::sends_only },
    Test { name: "a message that nobody receives", layouts: APART, body: failures::stray },
    Test { name: "a message beside results", layouts: APART, body: failures::stray_beside_results },
    Test { name: "messages that differ", layouts: APART, body: failures::messages },
    Test { name: "a put outside a window is told", layouts: APART, body: windows::outside },
    Test { name: "a rank that has left is awaited", layouts: APART, body: failures::left_behind },
    Test { name: "who has left has no chunks", layouts: APART, body: on_demand::left_behind },
    Test { name: "a full GPU has no chunks", layouts: APART, body: on_demand::full },
    Test { name: "who is stopped has no chunks", layouts: PROCESSES, body: on_demand::stopped },
    Test { name: "half of a group", layouts: APART, body: failures::half_a_group },
    Test { name: "abort ends a running kernel", layouts: APART, body: failures::abort },
    Test { name: "abort of what may stand", layouts: THREADS, body: failures::abort_what_stands },
    Test { name: "abort when all is done", layouts: APART, body: failures::abort_at_the_end },
    Test { name: "a limit ends a wait", layouts: APART, body: failures::limit },
    Test { name: "a deadline names who takes no part", layouts: APART, body: failures::deadline },
    Test { name: CUT, layouts: PROCESSES, body: standstill::cut_off },
    Test { name: KILLED[3], layouts: PROCESSES, body: on_demand::killed },
    Test { name: KILLED[2], layouts: PROCESSES, body: standstill::explained },
    Test { name: KILLED[1], layouts: PROCESSES, body: engines::killed },
    Test { name: KILLED[0], layouts: PROCESSES, body: failures::killed },
];

/// The tests that are run a second time between two hosts, each with half of the ranks.
const BETWEEN_HOSTS: [&str; 33] = [
    "every collective, type and operation",
    "groups of collectives",
    "groups in order with calls",
    "large and odd sizes",
    "send and receive",
    "1500 messages with every peer",
    "multiplied inputs",
    "a count per rank",
    "large calls through host memory",
    "two streams, random delays",
    "counters beyond 32 bits",
    "counters beyond 64 bits",
    "the first operation captured",
    "others work during a capture",
    "captured and eager mixed",
    "messages captured",
    "destroyed before its graphs",
    "graphs are updated",
    "two graphs on two streams",
    "aborted while graphs run",
    "split and shrunk",
    "options of each call",
    "differing calls are told",
    "options that differ",
    "roots that differ",
    "who only sends hears of others",
    "messages that differ",
    "a rank that has left is awaited",
    "abort ends a running kernel",
    "abort of what may stand",
    "a limit ends a wait",
    KILLED[2],
    KILLED[0],
];

/// The tests whose last rank does not end by itself.
const KILLED: [&str; 4] = [
    "a killed process is told",
    "copy engines and a killed process",
    "standstills are explained",
    "a process killed before chunks is told",
];

/// The test whose ranks are on two hosts with a cable between them.
const CUT: &str = "a cut cable is told";

/// Variables that tests are run with, by how their names begin.
const SETTINGS: [(&str, &str, &str); 21] = [
    // Through the stage also where buffers are mapped.
    ("staged in one shot", "OXCCL_ALGORITHM", "one_shot"),
    ("staged in two shots", "OXCCL_ALGORITHM", "two_shot"),
    ("written into inboxes", "OXCCL_ALGORITHM", "push"),
    ("suspended, with inboxes", "OXCCL_ALGORITHM", "push"),
    ("results collected by reading", "OXCCL_ALGORITHM", "two_shot_pulled"),
    // These are about what there is without lines.
    ("library memory in place", "NCCL_PROTO", "Simple"),
    ("registered memory in place", "NCCL_PROTO", "Simple"),
    ("memory in pieces in place", "NCCL_PROTO", "Simple"),
    ("captured memory in place", "NCCL_PROTO", "Simple"),
    ("memory used again", "NCCL_PROTO", "Simple"),
    ("each rank registers", "NCCL_PROTO", "Simple"),
    ("in packets", "NCCL_PROTO", "LL"),
    ("options of each call in packets", "NCCL_PROTO", "LL"),
    ("small calls through host memory", "NCCL_P2P_DISABLE", "1"),
    ("large calls through host memory", "NCCL_P2P_LEVEL", "LOC"),
    ("counters beyond 32 bits", "OXCCL_COUNTER_START", "4294966296"),
    ("counters beyond 64 bits", "OXCCL_COUNTER_START", "18446744073709550616"),
    ("four thread blocks", "NCCL_MAX_CTAS", "4"),
    ("windows", "NCCL_NUM_RMA_CTX", "4"),
    ("copy engines", "NCCL_CTA_POLICY", "ZERO"),
    // The fold in rank order is what the results are compared with.
    ("multiplied inputs", "OXCCL_DETERMINISTIC", "1"),
];

/// Tells the ranks of a test that they are on two hosts.
pub(crate) const TWO_HOSTS: &str = "OXCCL_TEST_TWO_HOSTS";

/// Sets the variables of a test for a process of all ranks, or of one of them.
fn set(test: &Test, hosts: u32, rank: Option<u32>, command: &mut Command) {
    if hosts > 1 {
        let each = (nranks() as u32).div_ceil(hosts);
        match rank {
            Some(rank) => command.env("NCCL_HOSTID", format!("host {}", rank / each)),
            None => command.env("OXCCL_RANKS_PER_NODE", each.to_string()),
        };
        command.env("NCCL_SOCKET_IFNAME", "lo").env(TWO_HOSTS, "1");
        // The fold in rank order is what the results are compared with; who has a network reduce
        // chooses tests whose results are exact.
        if std::env::var_os("NCCL_COLLNET_ENABLE").is_none() {
            command.env("OXCCL_DETERMINISTIC", "1");
        }
    }
    for (_, name, value) in SETTINGS.iter().filter(|(of, ..)| test.name.starts_with(of)) {
        command.env(name, value);
    }
}

/// How long a test may take.
const LIMIT: Duration = Duration::from_secs(120);

fn nranks() -> i32 {
    let (_, count) = devices();
    std::env::var("OXCCL_TEST_RANKS").ok().and_then(|n| n.parse().ok()).unwrap_or(match count {
        1 => 4,
        n => n,
    })
}

fn in_threads(test: &Test, nranks: i32) -> Outcome {
    let id = unique_id()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..nranks)
            .map(|rank| {
                scope.spawn(move || {
                    let rank = Rank::join(id, nranks, rank)?;
                    let result = (test.body)(&[rank]);
                    if result.is_err() {
                        // The others need not wait. SAFETY: any handle may be passed.
                        unsafe { ncclCommAbort(rank.comm) };
                    }
                    result
                })
            })
            .collect();
        let results = threads.into_iter().map(|t| t.join().unwrap_or(Err("a panic".to_owned())));
        let failed: Vec<String> = results.filter_map(Result::err).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join(" | ")) }
    })
}

fn in_one_thread(test: &Test, nranks: i32) -> Outcome {
    let mut comms = vec![std::ptr::null_mut(); nranks as usize];
    let (_, count) = devices();
    let list: Vec<i32> = (0..nranks).map(|rank| rank % count).collect();
    rank::choose(0)?;
    // SAFETY: room for the handles and a device each.
    ok(unsafe { ncclCommInitAll(comms.as_mut_ptr(), nranks, list.as_ptr()) })?;
    let make = |(rank, comm)| {
        rank::choose(rank)?;
        Rank::with(comm, nranks, rank)
    };
    let ranks = (0..nranks).zip(comms).map(make).collect::<Outcome<Vec<_>>>()?;
    (test.body)(&ranks)
}

/// This process is one rank of a job.
fn as_a_rank(test: &Test) -> Outcome {
    let mut comm = std::ptr::null_mut();
    // SAFETY: a place for the handle, and no configuration.
    let made = unsafe { oxccl::oxccl::launch::oxcclCommInitEnv(&mut comm, std::ptr::null()) };
    ok(made)?;
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let (rank, nranks) = (number("OXCCL_RANK"), number("OXCCL_NRANKS"));
    rank::choose(rank)?;
    (test.body)(&[Rank::with(comm, nranks, rank)?])
}

/// Runs a test in a process of its own, or a job of them.
fn run(test: &Test, layout: Layout, hosts: u32, nranks: i32) -> Outcome {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    if test.name == CUT {
        return cut(test, &program, nranks as u32);
    }
    if layout == Layout::Processes {
        let job = Job::start(&program, nranks as u32, LIMIT, |rank, command| {
            command.arg("--rank").arg(test.name);
            set(test, hosts, Some(rank), command);
        });
        let ended = job.wait();
        let right = |rank: usize| match KILLED.contains(&test.name) && rank + 1 == nranks as usize {
            true => None,
            false => Some(0),
        };
        return judge(&ended, right);
    }
    let mut command = Command::new(program);
    command.arg("--one").arg(test.name).arg(format!("{layout:?}")).stdout(Stdio::null());
    set(test, hosts, None, &mut command);
    one_process(command)
}

/// Returns what ranks printed that did not end as they should.
fn judge(ended: &[Ended], right: impl Fn(usize) -> Option<i32>) -> Outcome {
    let failed = ended.iter().enumerate().filter(|(rank, e)| e.status != right(*rank));
    let text: Vec<_> = failed.map(|(_, e)| format!("{:?}: {}", e.status, e.output)).collect();
    if text.is_empty() { Ok(()) } else { Err(text.join(" | ")) }
}

/// Runs a test on two hosts that are network namespaces, and cuts the cable between them once all
/// ranks run. Before they fail it is told why nothing moves.
fn cut(test: &Test, program: &Path, nranks: u32) -> Outcome {
    // The network is gone with the thread.
    let play = || {
        let network = Network::new(2)?;
        let mut job = Job::start(program, nranks, LIMIT, |rank, command| {
            network.enter(command, rank / nranks.div_ceil(2)).arg("--rank").arg(test.name);
            command.env("NCCL_COMM_ID", format!("{}:4000", network.address(0)));
        });
        job.wait_until_running(nranks);
        network.cut((0, None));
        let told = standstill::silence_is_told(job.child(0).id());
        judge(&job.wait(), |_| Some(0)).and(told)
    };
    std::thread::scope(|scope| scope.spawn(play).join().unwrap_or(Err("a panic".to_owned())))
}

/// Runs a process, all ranks of which are its threads.
fn one_process(mut command: Command) -> Outcome {
    // Ranks that share a GPU need hardware queues of their own.
    command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = bind_to_parent(&mut command).spawn().map_err(|e| e.to_string())?;
    let reader = child.stderr.take().map(|mut err| {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = std::io::Read::read_to_string(&mut err, &mut text);
            text
        })
    });
    let status = wait_until(&mut child, Instant::now() + LIMIT);
    let text = reader.and_then(|r| r.join().ok()).unwrap_or_default();
    match status {
        Some(0) => Ok(()),
        status => Err(format!("{status:?}: {text}")),
    }
}

/// Why a test does not run here.
fn skipped(test: &Test, layout: Layout, nranks: i32) -> Option<String> {
    let (kind, count) = devices();
    let cuda = kind == oxcclDeviceKind_t::oxcclDeviceCuda;
    let foreign =
        ["registered memory in place", "memory in pieces in place", "captured memory in place"];
    if !cuda && foreign.contains(&test.name) {
        return Some("of host memory, only what ncclMemAlloc gives can be mapped".into());
    }
    if !cuda && test.name.starts_with("copy engines") {
        return Some("host memory has none".into());
    }
    if test.name == "a full GPU has no chunks" && (!cuda || count < nranks) {
        return Some("needs a GPU for each rank to fill".into());
    }
    if test.name == "memory as operations need it" && (!cuda || nranks > 4) {
        return Some("its bounds are those of two to four GPUs".into());
    }
    if test.name == CUT && nranks % 2 != 0 {
        return Some("needs two halves".into());
    }
    let network = || std::thread::spawn(|| Network::new(2).map(drop)).join();
    if test.name == CUT
        && let Ok(Err(reason)) = network()
    {
        missing("netns", &reason);
        return Some(format!("there is no network of its own: {reason}"));
    }
    let least = match test.name {
        "a message beside results" => 3,
        "groups that differ" => 2,
        _ => 0,
    };
    let without_lines = !cuda || nranks < least || std::env::var_os("NCCL_PROTO").is_some();
    if least > 0 && without_lines {
        return Some(format!("needs lines between {least} ranks"));
    }
    if !cuda && test.name.ends_with("through host memory") {
        return Some("it is host memory anyway".into());
    }
    (cuda && layout == Layout::Processes && count < nranks)
        .then(|| "processes share a GPU by turns: a rank would wait for one that cannot run".into())
}

/// Runs the tests whose name and layout contain one of some texts; all if there are none.
fn table(wanted: &[&str]) -> ExitCode {
    let (kind, count) = devices();
    let nranks = nranks();
    println!("{nranks} ranks on {count} devices ({kind:?})");
    let mut failures = 0;
    let twice = |test: &&Test| BETWEEN_HOSTS.contains(&test.name);
    let all = TESTS.iter().map(|test| (test, 1));
    for (test, hosts) in all.chain(TESTS.iter().filter(twice).map(|test| (test, 2))) {
        let name = match hosts {
            1 => test.name.to_owned(),
            _ => format!("{}, two hosts", test.name),
        };
        for &layout in test.layouts {
            let row = format!("{name} {layout:?}");
            if !wanted.is_empty() && !wanted.iter().any(|text| row.contains(text)) {
                continue;
            }
            let start = Instant::now();
            let (verdict, text) = match skipped(test, layout, nranks) {
                Some(reason) => ("skipped", reason),
                None => match run(test, layout, hosts, nranks) {
                    Ok(()) => ("passed", String::new()),
                    // The log mostly says the same once more, so it comes last.
                    Err(text) => {
                        let (log, mut lines): (Vec<_>, Vec<_>) =
                            text.lines().partition(|line| line.contains(" OXCCL WARN "));
                        lines.extend(log);
                        ("FAILED", lines.concat().chars().take(4000).collect())
                    }
                },
            };
            failures += u32::from(verdict == "FAILED");
            let (layout, seconds) = (format!("{layout:?}"), start.elapsed().as_secs_f64());
            println!("| {name:<49} | {layout:<9} | {verdict:<7} | {seconds:>6.1} s | {text}");
        }
    }
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let find = |name: &str| TESTS.iter().find(|t| t.name == name).expect("a known test");
    let outcome = match arguments[..] {
        ["--costs"] => std::env::current_exe().map_err(|e| e.to_string()).and_then(|program| {
            let mut command = Command::new(program);
            command.arg("--costs-of-threads");
            one_process(command)
        }),
        ["--costs-of-threads"] => costs::print(nranks()),
        ["--rank", name] => as_a_rank(find(name)),
        ["--one", name, "Single"] => in_one_thread(find(name), nranks()),
        ["--one", name, _] => in_threads(find(name), nranks()),
        ref wanted => return table(wanted),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text} (last error: {})", last_error());
            ExitCode::FAILURE
        }
    }
}
