//! The log callback, through the C interface. It belongs to the process: this file has one test of
//! it.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{World, datatype, number, ok};
use oxccl::nccl::collectives::ncclAllReduce;
use oxccl::nccl::comm::{ncclCommDestroy, ncclCommGetAsyncError, ncclCommInitAll};
use oxccl::nccl::group::{ncclGroupEnd, ncclGroupStart};
use oxccl::nccl::lifetime::ncclCommAbort;
use oxccl::nccl::types::{ncclComm_t, ncclRedOp_t, ncclResult_t};
use oxccl::oxccl::info::oxcclSetLog;
use oxccl::oxccl::stream::{oxcclStreamDestroy, oxcclStreamSynchronize};
use oxccl::oxccl::types::oxcclStream_t;
use oxccl_plan::DataType;
use oxccl_tests::job::Job;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ncclResult_t::*;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");

/// What the callback works on.
struct Heard {
    world: World,
    sender: Sender<(ncclResult_t, String)>,
}

fn all_reduce(comm: ncclComm_t, stream: oxcclStream_t, data: &mut [f32]) -> ncclResult_t {
    let sum = number(ncclRedOp_t::ncclSum as i32);
    let (place, count) = (data.as_mut_ptr().cast(), data.len());
    // SAFETY: the data has so many elements and lives until the stream is synchronised.
    unsafe { ncclAllReduce(place, place, count, datatype(DataType::Float32), sum, comm, stream) }
}

/// Waits for rank 0's stream, on which the operation failed that the line tells of, ends rank 0's
/// communicator and makes another.
unsafe extern "C" fn hear(user: *mut c_void, _level: c_int, text: *const c_char) {
    // SAFETY: the test keeps it until it has taken the callback away; the line ends with a zero.
    let (heard, text) = unsafe { (&*user.cast::<Heard>(), CStr::from_ptr(text)) };
    let (comm, stream) = (heard.world.comms[0], heard.world.streams[0]);
    let (mut state, mut other) = (ncclSuccess, std::ptr::null_mut());
    let mut data = [1.0];
    // SAFETY: places for the results; any handle may be passed.
    let result = unsafe {
        let result = oxcclStreamSynchronize(stream, -1);
        // The second line comes when it is gone.
        if ncclCommGetAsyncError(comm, &mut state) == ncclSuccess {
            assert_eq!(all_reduce(comm, stream, &mut data), state);
            ok(oxcclStreamSynchronize(stream, -1));
            ok(ncclCommAbort(comm));
        }
        ok(ncclCommInitAll(&mut other, 1, std::ptr::null()));
        ok(ncclCommDestroy(other));
        result
    };
    let line = text.to_string_lossy().into_owned();
    heard.sender.send((result, line)).expect("the test listens");
}

/// Passes a line on.
unsafe extern "C" fn pass_on(user: *mut c_void, _level: c_int, text: *const c_char) {
    // SAFETY: as in `hear`.
    let (sender, text) = unsafe { (&*user.cast::<Sender<String>>(), CStr::from_ptr(text)) };
    sender.send(text.to_string_lossy().into_owned()).expect("the test listens");
}

/// A wait in a group for its own calls is told once.
fn a_wait_in_a_group_is_told() {
    let (world, mut data) = (World::new(2), vec![vec![1f32; 10]; 2]);
    let (sender, lines) = channel();
    // SAFETY: the sender lives until the callback is taken away; any handle may be passed.
    unsafe {
        ok(oxcclSetLog(2, Some(pass_on), (&raw const sender).cast_mut().cast()));
        ok(ncclGroupStart());
        ok(oxcclStreamSynchronize(world.streams[0], -1));
        for (rank, data) in data.iter_mut().enumerate() {
            ok(all_reduce(world.comms[rank], world.streams[rank], data));
        }
        ok(oxcclStreamSynchronize(world.streams[0], -1));
        ok(oxcclStreamSynchronize(world.streams[1], -1));
        ok(ncclGroupEnd());
        world.synchronize();
        ok(oxcclSetLog(2, None, std::ptr::null_mut()));
    }
    let lines: Vec<String> = lines.try_iter().collect();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.contains("in a group, whose calls (2) begin at ncclGroupEnd"), "{line}");
    assert_eq!(data, vec![vec![2f32; 10]; 2]);
}

/// Two ranks whose log lines go to [`hear`].
fn listen() -> (Box<Heard>, Receiver<(ncclResult_t, String)>) {
    let (sender, lines) = channel();
    let heard = Box::new(Heard { world: World::new(2), sender });
    let user = (&raw const *heard).cast_mut().cast();
    // SAFETY: it lives until the callback is taken away.
    ok(unsafe { oxcclSetLog(2, Some(hear), user) });
    (heard, lines)
}

fn end(heard: &mut Heard) {
    // SAFETY: no callback is always right; any handle may be passed.
    unsafe {
        ok(oxcclSetLog(2, None, std::ptr::null_mut()));
        for stream in std::mem::take(&mut heard.world.streams) {
            ok(oxcclStreamDestroy(stream));
        }
    }
    heard.world.comms.clear();
}

#[test]
fn a_log_callback_may_call_any_function_also_about_what_the_monitor_and_a_stream_have_found() {
    const LIMIT: Duration = Duration::from_secs(30);
    let (mut ours, mut theirs) = (vec![1f32; 1000], vec![1f32; 1000]);
    a_wait_in_a_group_is_told();

    // The monitor finds that rank 1 is gone, for which rank 0 waits.
    let (mut heard, lines) = listen();
    let World { comms, streams } = &heard.world;
    assert_eq!(all_reduce(comms[0], streams[0], &mut ours), ncclSuccess);
    // SAFETY: any handle may be passed.
    ok(unsafe { ncclCommAbort(comms[1]) });
    let (result, line) = lines.recv_timeout(LIMIT).expect("the callback returns");
    assert!(result == ncclRemoteError && line.contains("ncclCommAbort"), "{result:?} {line}");
    end(&mut heard);

    // Whoever moves the stream finds that the calls differ.
    let (mut heard, lines) = listen();
    let World { comms, streams } = &heard.world;
    let called = all_reduce(comms[0], streams[0], &mut ours);
    let differs = all_reduce(comms[1], streams[1], &mut theirs[..500]);
    let (result, line) = lines.recv_timeout(LIMIT).expect("the callback returns");
    assert!(line.contains("500") && line.contains("1000"), "{line}");
    assert!([called, result].contains(&ncclInvalidUsage), "{called:?} {result:?}");
    // SAFETY: any handle may be passed.
    unsafe {
        let waited = oxcclStreamSynchronize(streams[1], -1);
        assert!([differs, waited].contains(&ncclInvalidUsage), "{differs:?} {waited:?}");
        ok(ncclCommAbort(comms[1]));
    }
    end(&mut heard);
}

/// A stranger comes where ranks are to meet, before the second of them does.
#[test]
fn a_stranger_where_ranks_meet_is_refused_and_told_of() {
    const LIMIT: Duration = Duration::from_secs(60);
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("it has an address");
    drop(free);
    let log = std::env::temp_dir().join(format!("oxccl-test-stranger-{}", std::process::id()));
    let mut job = Job::start(Path::new("/bin/sh"), 2, LIMIT, |rank, command| {
        let come = if rank == 0 { "" } else { "read -r line && " };
        command.args(["-c", &format!("{come}exec \"$0\" attended"), RANK]).stdin(Stdio::piped());
        command.env("NCCL_COMM_ID", address.to_string()).env("NCCL_DEBUG", "INFO");
        command.env("NCCL_DEBUG_SUBSYS", "BOOTSTRAP");
        command.env("NCCL_DEBUG_FILE", if rank == 0 { &*log } else { Path::new("/dev/null") });
    });
    let begun = Instant::now();
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let mut strangers = Vec::new();
    while !said().contains("a connection was refused: ") {
        assert!(begun.elapsed() < LIMIT, "{}", said());
        if let Ok(mut stranger) = TcpStream::connect(address) {
            // It may be refused before.
            let _ = stranger.write_all(&[7; 200]);
            strangers.push(stranger);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    job.child(1).stdin.take().expect("a pipe").write_all(b"\n").expect("it listens");
    job.wait_until_running(2);
    drop(job.child(0).stdin.take());
    job.expect_success();
    std::fs::remove_file(log).expect("its own file");
}

/// Where somebody else listens at the address at which ranks are to meet, the log says so, and they
/// meet once it is free.
#[test]
fn rank_0_says_that_somebody_else_listens_where_the_ranks_are_to_meet() {
    /// The longest time until that is said, on a busy machine.
    const LIMIT: Duration = Duration::from_secs(60);
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("it has an address").to_string();
    let folder = std::env::temp_dir().join(format!("oxccl-test-turn-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let log = |rank: u32| folder.join(rank.to_string());
    let mut job = Job::start(Path::new(RANK), 2, LIMIT, |rank, command| {
        command.arg("attended").env("NCCL_COMM_ID", &address).stdin(Stdio::piped());
        command.env("NCCL_DEBUG", "WARN").env("NCCL_DEBUG_FILE", log(rank));
    });
    let line = format!("rank 0 waits to hold the rendezvous at {address}, where somebody else");
    let said = || std::fs::read_to_string(log(0)).unwrap_or_default();
    let begun = Instant::now();
    while !said().contains(&line) {
        assert!(begun.elapsed() < LIMIT, "{}", said());
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(other);
    job.wait_until_running(2);
    drop(job.child(0).stdin.take());
    job.expect_success();
    std::fs::remove_dir_all(folder).expect("its own folder");
}
