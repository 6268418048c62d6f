//! Beginning and end: bad arguments under valgrind and AddressSanitizer, forks, exits with work
//! pending, a thousand communicators, 256 ranks, panics.

use oxccl_plan::{Buffer, Collective, DataType, Op, Program as Steps, ReduceOp, Slice, Spec};
use oxccl_runtime::comm::{Communicator, Member, Options, create};
use oxccl_runtime::device::Device;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::device::host::task::{HostFunction, Work};
use oxccl_runtime::op::{self, Address, Call, Programs};
use oxccl_runtime::{Error, bootstrap, group};
use oxccl_tests::c::{C11, Program, expect_success, run};
use oxccl_tests::endpoint;
use oxccl_tests::job::Job;
use oxccl_tests::missing;
use oxccl_tests::sequence::{Player, Random, Shape, play};
use oxccl_tests::world::on_threads;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");
const NAMED: &str = "no failures; all bad arguments are named";

#[test]
fn every_bad_argument_of_every_function_is_named() {
    run("bad_arguments.c", C11, NAMED);
}

#[test]
fn every_bad_argument_under_valgrind_without_a_leak() {
    if let Err(e) = Command::new("valgrind").arg("--version").output() {
        return missing("valgrind", &e.to_string());
    }
    let Some(program) = Program::build("bad_arguments.c", C11) else { return };
    let mut command = Command::new("valgrind");
    command.args(["--leak-check=full", "--show-leak-kinds=definite"]);
    command.args(["--errors-for-leak-kinds=definite", "--error-exitcode=9"]);
    // An arena of its usual size does not fit beside valgrind's own memory.
    let text = expect_success(command.arg(program.path()).env("OXCCL_ARENA_GIB", "1"), NAMED);
    assert!(text.contains("ERROR SUMMARY: 0 errors"), "{text}");
    let none = ["definitely lost: 0 bytes", "no leaks are possible"];
    assert!(none.iter().any(|n| text.contains(n)), "{text}");
}

#[test]
fn every_bad_argument_with_address_sanitizer_on_the_c_side() {
    let flags = [C11.1, &["-fsanitize=address", "-fno-omit-frame-pointer"]].concat();
    let probe = std::env::temp_dir().join(format!("oxccl-asan-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-fsanitize=address", "-x", "c", "-", "-o"]).arg(&probe);
    if !compiles(&mut compiler, "int main(void) { return 0; }") {
        return missing("asan", "cc has no AddressSanitizer");
    }
    let _ = std::fs::remove_file(probe);
    let Some(program) = Program::build("bad_arguments.c", ("cc", &flags)) else { return };
    expect_success(&mut Command::new(program.path()), NAMED);
}

fn compiles(compiler: &mut Command, source: &str) -> bool {
    use std::io::Write;
    compiler.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = compiler.spawn() else { return false };
    // A compiler that reads nothing fails below.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(source.as_bytes()));
    child.wait().is_ok_and(|status| status.success())
}

#[test]
fn a_forked_child_gets_errors_and_the_parent_is_not_disturbed() {
    run("fork.c", C11, "forks do no harm");
}

#[test]
fn a_thousand_communicators_leave_nothing_behind() {
    let Some(program) = Program::build("churn.c", C11) else { return };
    for ranks in ["threads", "processes", "alone"] {
        let mut command = Command::new(program.path());
        let text = expect_success(command.arg(ranks), "nothing is left behind");
        println!("{text}");
    }
}

#[test]
fn a_process_that_ends_with_work_pending_ends_cleanly_and_its_peers_hear_of_it() {
    let Some(program) = Program::build("exits.c", C11) else { return };
    for how in ["return", "exit", "_exit", "thread", "function", "dlclose"] {
        for hosts in ["one", "two"] {
            let limit = Duration::from_secs(30);
            let job = Job::start(&program.path(), 2, limit, |rank, command| {
                command.arg(program.library()).arg(how);
                if hosts == "two" {
                    command.env("NCCL_HOSTID", rank.to_string()).env("NCCL_SOCKET_IFNAME", "lo");
                }
            });
            let ended = job.wait();
            for (rank, ended) in ended.iter().enumerate() {
                let text = &ended.output;
                assert_eq!(ended.status, Some(0), "{how}, {hosts} hosts, rank {rank}: {text}");
            }
            assert!(ended[1].output.contains("rank 0 is gone"), "{how}: {}", ended[1].output);
        }
    }
}

/// Has `adverse.c` make its calls; it defines a function of the C library, which the library has to
/// find.
fn adverse(how: &str) {
    adverse_under(how, &[]);
}

fn adverse_under(how: &str, env: &[(&str, &str)]) {
    let flags = [C11.1, &["-rdynamic"]].concat();
    let Some(program) = Program::build("adverse.c", ("cc", &flags)) else { return };
    let mut command = Command::new(program.path());
    expect_success(command.arg(how).envs(env.iter().copied()), "it went well");
}

#[test]
fn host_functions_that_no_thread_can_call_are_errors_and_run_once_there_is_one() {
    adverse("no-threads");
}

#[test]
fn calls_and_groups_work_in_exit_handlers_and_destructors_of_keys() {
    adverse("at-exit");
}

#[test]
fn a_thread_that_waits_is_cancelled_after_the_call() {
    adverse("cancellation");
}

#[test]
fn no_small_call_ends_a_thread_that_is_to_be_cancelled() {
    adverse("small-calls");
    // With lines of the log, which calls of the system write.
    adverse_under("small-calls", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "COLL,INIT")]);
}

#[test]
fn without_an_arena_there_is_memory_that_is_copied() {
    adverse("no-arena");
}

#[test]
fn processes_256_of_one_machine_make_a_communicator() {
    let limit = Duration::from_secs(60);
    let job = Job::start(Path::new(RANK), 256, limit, |_, command| {
        command.arg("once");
    });
    job.expect_success();
}

#[test]
fn threads_256_of_one_process_make_a_communicator() {
    // A process of its own, because of the descriptors: some thousand, for the moment of creation.
    let limits = getrlimit(Resource::Nofile);
    if limits.maximum.is_some_and(|n| n < 4096) {
        return missing("descriptors", "ulimit -Hn is below 4096");
    }
    let raised = Rlimit { current: limits.maximum, ..limits };
    setrlimit(Resource::Nofile, raised).expect("the limit can be raised");
    let sums = on_threads(256, &Options::default(), |Player { comm, stream }| {
        let (input, mut sum) = (u64::from(comm.rank()), 0u64);
        let spec = Spec::new(Collective::AllReduce, 256, 0);
        let (input, output) = ((&raw const input).cast(), (&raw mut sum).cast());
        let (dtype, op) = (DataType::Uint64, ReduceOp::Sum);
        let call = Call { spec, input, output, count: 1, dtype, op, scale: None };
        group::collective(&comm, &call, &stream).expect("it is launched");
        stream.synchronize(None).expect("it succeeds");
        comm.destroy().expect("all is well");
        sum
    });
    assert_eq!(sums, [255 * 128; 256]);
}

#[test]
fn each_of_256_hosts_is_connected_with_those_that_it_needs() {
    let limits = getrlimit(Resource::Nofile);
    if limits.maximum.is_some_and(|n| n < 16384) {
        return missing("descriptors", "ulimit -Hn is below 16384");
    }
    let job = Job::start(Path::new(RANK), 1, Duration::from_secs(100), |_, command| {
        command.args(["hosts", "256"]).env("OXCCL_RANKS_PER_NODE", "1");
    });
    let ended = job.wait();
    assert_eq!(ended[0].status, Some(0), "{ended:?}");
    let words: Vec<&str> = ended[0].output.split_whitespace().collect();
    let number = |after: &str| -> u64 {
        let at = words.iter().position(|word| *word == after).expect("it is told");
        words[at + 1].parse().expect("a number")
    };
    assert!(number("descriptors") <= 96 && number("bytes") <= 16 << 20, "{words:?}");
}

/// Returns how many connections of TCP a process has, by the sockets that it holds.
fn connections(pid: u32) -> usize {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).expect("connections");
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Its state, which is that of an established one, and its number.
        (words.get(3) == Some(&"01")).then(|| words.get(9).map(|inode| format!("socket:[{inode}]")))
    };
    let established: HashSet<String> = table.lines().filter_map(of_line).flatten().collect();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors");
    let targets = open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|to| to.to_str().is_some_and(|to| established.contains(to))).count()
}

/// Returns how many connections each of two hosts has for a communicator, with these variables.
fn connected_with(variables: [(&str, &str); 2]) -> usize {
    const LIMIT: Duration = Duration::from_secs(60);
    let mut job = Job::start(Path::new(RANK), 2, LIMIT, |rank, command| {
        command.arg("attended").envs(variables).stdin(Stdio::piped());
        command.env("NCCL_HOSTID", rank.to_string()).env("NCCL_SOCKET_IFNAME", "lo");
        command.env("NCCL_SOCKET_FAMILY", "AF_INET");
    });
    job.wait_until_running(2);
    let pids = [0, 1].map(|rank| job.child(rank).id());
    // Those by which the communicator was made end soon.
    let (begun, mut last, mut looks) = (Instant::now(), [0; 2], 0);
    while looks < 20 {
        assert!(begun.elapsed() < LIMIT, "{last:?} connections, and others again and again");
        std::thread::sleep(Duration::from_millis(20));
        let now = pids.map(connections);
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
    }
    drop(job.child(0).stdin.take());
    job.expect_success();
    assert_eq!(last[0], last[1]);
    last[0]
}

#[test]
fn two_variables_say_how_many_connections_two_hosts_have_for_data() {
    let connected = |threads, each| {
        connected_with([("NCCL_SOCKET_NTHREADS", threads), ("NCCL_NSOCKS_PERTHREAD", each)])
    };
    // One for data, and the others.
    let others = connected("0", "0") - 1;
    for (threads, each, lanes) in [
        ("1", "0", 1),
        ("2", "0", 2),
        ("0", "3", 3),
        ("2", "3", 6),
        ("17", "1", 16),
        ("16", "9", 64),
    ] {
        assert_eq!(connected(threads, each) - others, lanes, "{threads} threads, {each} each");
    }
}

#[test]
fn a_small_message_between_hosts_takes_one_receive() {
    const CALLS: u64 = 1000;
    let job = Job::start(Path::new(RANK), 2, Duration::from_secs(60), |rank, command| {
        command.args(["receives", &CALLS.to_string()]);
        command.env("NCCL_HOSTID", rank.to_string()).env("NCCL_SOCKET_IFNAME", "lo");
    });
    for (rank, ended) in job.wait().iter().enumerate() {
        assert_eq!(ended.status, Some(0), "rank {rank}: {}", ended.output);
        let words: Vec<&str> = ended.output.split_whitespace().collect();
        let &["messages", messages, "receives", receives] = &words[..] else {
            panic!("rank {rank}: {}", ended.output)
        };
        let [messages, receives] =
            [messages, receives].map(|n| n.parse::<u64>().expect("a number"));
        // In each call the ranks exchange one message. The next one may have come along with it, as
        // the other rank may be ahead by a call, but by no more.
        assert_eq!(messages, CALLS, "rank {rank}");
        assert!(receives <= messages && 2 * receives >= messages, "rank {rank}: {receives}");
    }
}

#[test]
fn options_drawn_at_random_per_rank_make_a_working_communicator() {
    // What a rank asks for is its own affair, or is made equal when the ranks meet.
    const RANGES: [(&str, u64, u64); 12] = [
        ("cgaClusterSize", 0, 8),
        ("maxCTAs", 8, 64),
        ("minCTAs", 1, 8),
        ("splitShare", 0, 1),
        ("collnetEnable", 0, 1),
        ("CTAPolicy", 0, 2),
        ("nvlsCTAs", 1, 16),
        ("nChannelsPerNetPeer", 1, 64),
        ("nvlinkCentricSched", 0, 1),
        ("graphUsageMode", 0, 2),
        ("numRmaCtx", 0, 9),
        ("maxP2pPeers", 1, 9),
    ];
    for seed in 0..20 {
        let id = bootstrap::new_unique_id().expect("an id");
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (mut random, id) = (Random(seed << 8 | u64::from(rank)), id.clone());
                scope.spawn(move || {
                    let mut options = Options::default();
                    for (name, min, max) in RANGES {
                        if random.below(2) == 0 {
                            let value = min + random.below(max - min + 1);
                            options.set(name, value as i32, "a test").expect("within the range");
                        }
                    }
                    let device = Device::Host(rank as i32);
                    let member = Member { id, rank, nranks: 3, device, options };
                    let comm = Arc::new(create(&member).expect("a communicator"));
                    let player = Player { comm: comm.clone(), stream: Stream::new() };
                    let shape = Shape { seed, operations: 20, max_bytes: 1 << 20 };
                    play(&[player], shape).expect("it works");
                    comm.destroy().expect("all is well");
                });
            }
        });
    }
}

/// A communicator of one rank, and a call of it with a program that no generator makes: it reads
/// from a rank that does not exist.
fn broken() -> (Arc<Communicator>, Call, Arc<Programs>) {
    let id = bootstrap::new_unique_id().expect("an id");
    let comm = create(&Member {
        id,
        rank: 0,
        nranks: 1,
        device: Device::Host(0),
        options: Options::default(),
    })
    .expect("a communicator");
    let spec = Spec::new(Collective::AllReduce, 1, 0);
    let data = Box::leak(Box::new(0u64));
    let (input, output) = ((&raw const *data).cast(), (&raw mut *data).cast());
    let (dtype, op) = (DataType::Uint64, ReduceOp::Sum);
    let call = Call { spec, input, output, count: 1, dtype, op, scale: None };
    let programs = comm.programs(&call).expect("a plan");
    let src = Slice { buffer: Buffer::Input, block: 0, part: 0, parts: 1 };
    let ops = vec![Op::Get { peer: 99, src, dst: Slice { buffer: Buffer::Output, ..src } }];
    let mut programs = Programs::clone(&programs);
    programs.any.program = Steps::from(ops);
    (Arc::new(comm), call, Arc::new(programs))
}

unsafe extern "C" fn tell(sender: *mut std::ffi::c_void) {
    // SAFETY: the test keeps the sender until it has heard.
    let sender = unsafe { &*sender.cast::<Sender<()>>() };
    sender.send(()).expect("the test listens");
}

#[test]
fn a_panic_in_the_worker_fails_the_operation_and_the_worker_goes_on() {
    let (comm, call, programs) = broken();
    let stream = Stream::new();
    // Not inline, and nobody synchronises: only the worker moves the stream on.
    let operation = op::Operation::Collective(programs, call);
    let work = Work::Operation(endpoint(&comm).clone(), operation, None);
    stream.enqueue(work, false).expect("it is taken");
    let (sender, heard) = channel::<()>();
    let argument = Address((&raw const sender).cast_mut().cast());
    let function = HostFunction { function: tell, argument };
    stream.enqueue(Work::Function(function), false).expect("it is taken");
    heard.recv_timeout(Duration::from_secs(30)).expect("the worker goes on");
    let error = stream.synchronize(None).expect_err("the operation failed");
    assert!(matches!(&error, Error::Internal { what } if what.contains("a panic")), "{error}");
    assert!(comm.failure().is_some(), "its communicator is sound");
    let later = group::collective(&comm, &call, &stream).and_then(|()| stream.synchronize(None));
    assert!(later.is_err(), "an operation after the failed one succeeds");
    comm.destroy().expect("it is told");
}

#[test]
fn a_panic_in_a_call_is_an_error_and_later_calls_do_not_hang() {
    let (comm, call, programs) = broken();
    let stream = Stream::new();
    let error = stream.launch(endpoint(&comm), &programs, &call, None).expect_err("it panics");
    assert!(matches!(&*error, Error::Internal { what } if what.contains("a panic")), "{error}");
    let later = group::collective(&comm, &call, &stream).and_then(|()| stream.synchronize(None));
    assert!(later.is_err(), "an operation after the failed one succeeds");
    comm.destroy().expect("it is told");
}
