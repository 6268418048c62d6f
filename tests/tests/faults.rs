//! The death of ranks, and ranks that never come.

use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::comm::{Member, Options, create};
use oxccl_runtime::device::Device;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::op::Call;
use oxccl_runtime::{Code, bootstrap, group};
use oxccl_tests::job::{Job, bind_to_parent, wait_until};
use oxccl_tests::missing;
use oxccl_tests::world::communicators;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn killing_a_rank_of_another_host_is_noticed_over_tcp() {
    // Every rank claims to be a host of its own. Of many, few have a connection with the victim.
    for (nranks, victim, limit) in [(3, 1, 5), (20, 7, 30)] {
        let every = Duration::from_secs(100);
        let mut job = Job::start(Path::new(RANK), nranks, every, |rank, command| {
            command.args(["loop", "65536"]).env("NCCL_HOSTID", rank.to_string());
            command.env("NCCL_SOCKET_IFNAME", "lo");
        });
        job.wait_until_runs(victim);
        job.child(victim).kill().expect("it can be killed");
        let start = Instant::now();
        let ended = job.wait();
        assert!(start.elapsed() < Duration::from_secs(limit), "{:?}", start.elapsed());
        for (rank, ended) in (0u32..).zip(&ended).filter(|(rank, _)| *rank != victim) {
            let expected = format!("code 6 peer {victim}: ");
            assert!(ended.output.contains(&expected), "rank {rank}: {}", ended.output);
        }
    }
}

#[test]
fn killing_a_rank_gives_the_others_its_number_within_five_seconds() {
    for (bytes, victim) in [("8", 2u32), ("4194304", 0), ("65536", 3)] {
        let mut job = Job::start(Path::new(RANK), 4, Duration::from_secs(60), |_, command| {
            command.args(["loop", bytes]);
        });
        job.wait_until_runs(victim);
        job.child(victim).kill().expect("it can be killed");
        let start = Instant::now();
        let ended = job.wait();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        for (rank, ended) in ended.iter().enumerate().filter(|(r, _)| *r as u32 != victim) {
            // 6 is ncclRemoteError.
            let expected = format!("code 6 peer {victim}: ");
            assert!(ended.output.contains(&expected), "rank {rank}: {}", ended.output);
        }
    }
}

#[test]
fn a_split_with_a_dead_rank_ends_at_once_and_names_it() {
    for hosts in [1, 3] {
        let mut job = Job::start(Path::new(RANK), 3, Duration::from_secs(60), |rank, command| {
            command.arg("split-with-dead").env("NCCL_SOCKET_IFNAME", "lo");
            command.env("NCCL_HOSTID", (rank % hosts).to_string());
        });
        job.wait_until_runs(1);
        job.child(1).kill().expect("it can be killed");
        for (rank, ended) in job.wait().iter().enumerate().filter(|(rank, _)| *rank != 1) {
            assert_eq!(ended.status, Some(0), "rank {rank}, {hosts} hosts: {}", ended.output);
        }
    }
}

#[test]
fn killed_ranks_are_shrunk_away_and_a_joiner_grows_the_rest() {
    for victim in [0, 2] {
        let name = format!("oxccl-survivors-{}-{victim}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let mut job = Job::start(Path::new(RANK), 4, Duration::from_secs(60), |_, command| {
            command.arg("survive").arg(&file);
        });
        job.wait_until_runs(victim);
        job.child(victim).kill().expect("it can be killed");
        // The second of those that are left has the id.
        let lines = job.child(if victim == 0 { 2 } else { 1 }).stdout.take().expect("a pipe");
        let mut lines = BufReader::new(lines).lines().map_while(Result::ok);
        let killed = format!("killed {victim}");
        assert!(lines.any(|line| line == killed), "rank {victim} is not named");
        let joiner = Job::start(Path::new(RANK), 1, Duration::from_secs(60), |_, command| {
            command.arg("once").env("OXCCL_SECRET_FILE", &file);
            command.envs([("OXCCL_RANK", "3"), ("OXCCL_NRANKS", "4")]);
        });
        joiner.expect_success();
        for (rank, ended) in job.wait().iter().enumerate() {
            let expected = (rank as u32 != victim).then_some(0);
            assert_eq!(ended.status, expected, "rank {rank}: {}", ended.output);
        }
        std::fs::remove_file(file).expect("it can be removed");
    }
}

/// The others end an operation in which rank 1 is stopped; it goes on when they have repainted
/// their buffers. Tells which of them have: one into whose buffers rank 1 was writing cannot.
fn repainted(how: &str, place: &str) -> [bool; 2] {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    let mut job = Job::start(Path::new(RANK), 3, Duration::from_secs(60), |_, command| {
        command.args(["repaint", how, place]);
    });
    job.wait_until_runs(1);
    let stopped = Pid::from_child(job.child(1));
    if place == "within" {
        kill_process(stopped, Signal::STOP).expect("it stops");
    }
    let status = waitpid(Some(stopped), WaitOptions::UNTRACED).expect("it is our child");
    assert!(status.is_some_and(|(_, status)| status.stopped()), "{how}: {status:?}");
    let repainted = [0, 2].map(|rank| {
        let lines = job.child(rank).stdout.take().expect("a pipe");
        let mut lines = BufReader::new(lines).lines().map_while(Result::ok);
        let ended = lines.find(|line| line == "repainted" || line == "exposed");
        ended.unwrap_or_else(|| panic!("rank {rank}: no {how}")) == "repainted"
    });
    kill_process(stopped, Signal::CONT).expect("it goes on");
    for (rank, ended) in job.wait().iter().enumerate() {
        assert_eq!(ended.status, Some(0), "{how}, rank {rank}: {}", ended.output);
    }
    repainted
}

#[test]
fn after_abort_timeout_or_shrink_no_peer_that_goes_on_writes_into_the_buffers() {
    for how in ["abort", "timeout", "shrink"] {
        // Between two operations it writes nowhere: all buffers are looked at.
        assert_eq!(repainted(how, "between"), [true; 2], "{how}");
        // Where it stops now is chance, and so is what can be looked at.
        repainted(how, "within");
    }
}

#[test]
fn a_limit_of_operations_names_operation_number_step_and_rank() {
    let mut job = Job::start(Path::new(RANK), 2, Duration::from_secs(60), |_, command| {
        command.args(["loop", "100000"]).env("OXCCL_TIMEOUT", "300ms");
    });
    job.wait_until_runs(1);
    let stopped = rustix::process::Pid::from_child(job.child(1));
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).expect("it stops");
    let lines = job.child(0).stdout.take().expect("a pipe");
    let mut lines = BufReader::new(lines).lines().map_while(Result::ok);
    let error = lines.find(|line| line.starts_with("code")).expect("rank 0 ends with an error");
    // 6 is ncclRemoteError.
    assert!(error.starts_with("code 6 peer 1: rank 0 waited "), "{error}");
    let (limit, culprit) = error.split_once("; ").expect("the limit, then what holds it up");
    for part in ["ms for rank 1 at step ", " of all_reduce (operation ", "OXCCL_TIMEOUT"] {
        assert!(limit.contains(part), "{error}");
    }
    let stops = "rank 1 is stopped by a signal or a debugger, and holds up all_reduce of ";
    assert!(culprit.starts_with(stops) && culprit.contains("kill -CONT"), "{error}");
    rustix::process::kill_process(stopped, rustix::process::Signal::CONT).expect("it goes on");
    job.wait();
}

#[test]
fn a_limit_names_who_waited_and_who_was_awaited_on_all_ranks() {
    let comms = communicators(3);
    comms[0].set_timeout(Some(Duration::from_millis(50)));
    let (spec, mut data) = (Spec::new(Collective::AllReduce, 3, 0), [1u64; 2]);
    let streams = [Stream::new(), Stream::new()];
    // Rank 2 never comes.
    for rank in [1, 0] {
        let place = &raw mut data[rank];
        let (input, output) = (place.cast_const().cast(), place.cast());
        let (dtype, op) = (DataType::Uint64, ReduceOp::Sum);
        let call = Call { spec, input, output, count: 1, dtype, op, scale: None };
        group::collective(&comms[rank], &call, &streams[rank]).expect("it is called");
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    for (rank, comm) in comms.iter().enumerate() {
        let error = loop {
            match comm.failure() {
                Some(error) => break error,
                None => std::thread::yield_now(),
            }
            assert!(Instant::now() < deadline, "rank {rank} was told nothing");
        };
        let text = error.to_string();
        let blamed = error.site().map(|site| site.peer);
        assert_eq!((error.code(), blamed), (Code::RemoteError, Some(2)), "{text}");
        let expected = match rank {
            0 => "rank 0 waited ",
            1 => "rank 0 gave up waiting for rank 2 after ",
            _ => "this rank, 2, was awaited: rank 0 gave up waiting for rank 2 after ",
        };
        assert!(text.starts_with(expected), "rank {rank}: {text}");
        assert!(text.contains(" of all_reduce (operation 0)"), "rank {rank}: {text}");
    }
    for stream in streams {
        stream.synchronize(None).expect_err("rank 2 did not come");
    }
    comms.iter().for_each(|comm| comm.destroy().expect("it is told"));
}

#[test]
fn no_communicator_is_made_with_a_variable_that_cannot_be_read() {
    for (name, value, expected) in [
        ("OXCCL_TIMEOUT", "2x", "cannot be read; expected a duration "),
        ("OXCCL_INIT_TIMEOUT", "soon", "cannot be read; expected a duration "),
        ("OXCCL_DETERMINISTIC", "perhaps", "cannot be read; expected 0 or 1"),
        ("OXCCL_COUNTER_START", "-1", "cannot be read; expected a number from 0 "),
        ("OXCCL_ALGORITHM", "rang", "is no algorithm; expected one of local, "),
        ("NCCL_COMM_BLOCKING", "perhaps", "cannot be read; expected 0 or 1; using no value"),
    ] {
        let job = Job::start(Path::new(RANK), 1, Duration::from_secs(30), |_, command| {
            command.arg("once").env(name, value);
        });
        let ended = &job.wait()[0];
        // NCCL's own are as NCCL has them; 4 is ncclInvalidArgument.
        let own = name.starts_with("OXCCL_");
        assert_eq!(ended.status, Some(if own { 3 } else { 0 }), "{}", ended.output);
        let before = if own { "code 4 peer -1: " } else { "WARN " };
        let text = format!("{before}{name}={value} (environment) {expected}");
        assert!(ended.output.contains(&text), "{text}: {}", ended.output);
    }
}

#[test]
fn a_rank_that_never_comes_is_named_after_the_time_that_was_set() {
    let address = format!("127.0.0.1:{}", free_port());
    let job = Job::start(Path::new(RANK), 2, Duration::from_secs(30), |_, command| {
        // Both say that there are four ranks; rank 0 runs the rendezvous. Both have to start in
        // time.
        command.args(["loop", "8"]).env("OXCCL_NRANKS", "4").env("OXCCL_INIT_TIMEOUT", "5");
        command.env("NCCL_COMM_ID", &address);
    });
    for ended in job.wait() {
        assert_eq!(ended.status, Some(3), "{}", ended.output);
        let expected = "2 of 4 ranks did not come within 5 s: ranks 2, 3;";
        let named = ended.output.contains("code 2") && ended.output.contains(expected);
        assert!(named, "{}", ended.output);
    }
}

#[test]
fn ranks_that_disagree_about_their_number_fail_at_once() {
    let id = bootstrap::new_unique_id().expect("an id");
    let options = Options::default;
    let member = |rank, nranks| Member {
        id: id.clone(),
        rank,
        nranks,
        device: Device::Host(0),
        options: options(),
    };
    let (a, b) = (member(0, 2), member(1, 3));
    let errors = std::thread::scope(|scope| {
        let threads = [scope.spawn(|| create(&a).err()), scope.spawn(|| create(&b).err())];
        threads.map(|t| t.join().expect("no panic").expect("an error").to_string())
    });
    assert!(errors.iter().all(|e| e.contains("the others say")), "{errors:?}");
}

#[test]
fn a_communicator_that_is_dropped_after_the_last_barrier_of_its_making_is_told_to_the_others() {
    let id = bootstrap::new_unique_id().expect("an id");
    let member = |rank| {
        let (id, device, options) = (id.clone(), Device::Host(0), Options::default());
        create(&Member { id, rank, nranks: 3, device, options }).expect("a communicator")
    };
    let (member, gone) = (&member, &Barrier::new(3));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // As where what follows the last barrier fails: neither abort nor destroy is called.
            drop(member(1));
            gone.wait();
        });
        for rank in [0, 2] {
            scope.spawn(move || {
                let comm = Arc::new(member(rank));
                // The process lives on, and nothing was called: only rank 1 can have told it.
                gone.wait();
                let (spec, mut data) = (Spec::new(Collective::AllReduce, 3, 0), 1u64);
                let (input, output) = ((&raw const data).cast(), (&raw mut data).cast());
                let (dtype, op) = (DataType::Uint64, ReduceOp::Sum);
                let call = Call { spec, input, output, count: 1, dtype, op, scale: None };
                let stream = Stream::new();
                let called = group::collective(&comm, &call, &stream);
                let error = called.and_then(|()| stream.synchronize(None)).expect_err("rank 1");
                let peer = error.site().map(|site| site.peer);
                assert_eq!((error.code(), peer), (Code::RemoteError, Some(1)), "{error}");
                comm.destroy().expect("it is told");
            });
        }
    });
}

#[test]
fn a_rank_claimed_twice_is_an_error_that_names_both() {
    let id = bootstrap::new_unique_id().expect("an id");
    let options = Options::default;
    let member = || Member {
        id: id.clone(),
        rank: 1,
        nranks: 3,
        device: Device::Host(0),
        options: options(),
    };
    let (a, b) = (member(), member());
    let errors = std::thread::scope(|scope| {
        let threads = [scope.spawn(|| create(&a).err()), scope.spawn(|| create(&b).err())];
        threads.map(|t| t.join().expect("no panic").expect("an error").to_string())
    });
    assert!(errors.iter().all(|e| e.contains("rank 1 is claimed by")), "{errors:?}");
}

#[test]
fn a_limit_of_files_makes_the_arena_smaller_or_is_named() {
    let run = |blocks: &str| {
        let script = format!("ulimit -f {blocks}; exec {RANK} once");
        let job = Job::start(Path::new("sh"), 2, Duration::from_secs(60), |_, command| {
            command.args(["-c", &script]);
        });
        job.wait()
    };
    // In blocks of 512 bytes: 64 MiB, and half a MiB, which the segment of two ranks does not fit.
    for (rank, ended) in run("131072").iter().enumerate() {
        assert_eq!(ended.status, Some(0), "rank {rank}: {}", ended.output);
    }
    let ended = run("1024");
    assert_eq!(ended[0].status, Some(3), "{}", ended[0].output);
    assert!(ended[0].output.contains("raise ulimit -f"), "{}", ended[0].output);
    let told = "rank 0 gave up: making shared memory of";
    assert!(ended[1].output.contains(told), "{}", ended[1].output);
}

/// Two processes as two hosts, in a network where few connections wait to be accepted: more ranks
/// connect to each than that.
#[test]
fn more_ranks_than_a_backlog_meet_across_hosts() {
    let script = format!(
        "ip link set lo up; echo 4 >/proc/sys/net/core/somaxconn || exit 77
         for host in 0 1; do
           export NCCL_HOSTID=$host OXCCL_RANK=$host OXCCL_NRANKS=2
           NCCL_COMM_ID=127.0.0.1:4000 {RANK} crowd 12 &
         done
         wait %1 && wait %2"
    );
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", &script]).env("OXCCL_INIT_TIMEOUT", "20");
    let Ok(mut child) = bind_to_parent(&mut command).spawn() else {
        return missing("unshare", "it cannot be run");
    };
    match wait_until(&mut child, Instant::now() + Duration::from_secs(60)) {
        Some(0) => {}
        Some(77) => missing("unshare", "there are no user and network namespaces to be had"),
        other => panic!("{other:?}"),
    }
}
