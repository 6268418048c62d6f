//! Standstills of real processes, seen from outside: which rank is at fault, in which operation,
//! and why.

use oxccl_runtime::ras::verdict::{Cause, Patience, Verdict, verdicts};
use oxccl_runtime::recorder::read::{Process, processes};
use oxccl_tests::job::Job;
use oxccl_tests::sequence::Random;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");
/// The least time for which something stands still, short so that the test is.
const PATIENCE: Patience = Patience { waiting_ns: 300_000_000, creating_ns: 300_000_000 };
/// The longest time until a verdict, on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Starts ranks that come to a standstill, and returns their process ids.
fn start(nranks: u32, started: u32, arguments: &[String]) -> (Job, Vec<u32>) {
    let mut job = Job::start(Path::new(RANK), started, Duration::from_secs(100), |_, command| {
        command.arg("stuck").args(arguments).env("OXCCL_NRANKS", nranks.to_string());
    });
    let pids = (0..started).map(|rank| job.child(rank).id()).collect();
    (job, pids)
}

/// Waits until all ranks have made the calls that end.
fn wait_until_running(job: &mut Job, nranks: u32) {
    for rank in 0..nranks {
        let stdout = job.child(rank).stdout.as_mut().expect("a pipe");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("the rank speaks");
        assert_eq!(line.trim(), "running");
    }
}

/// Returns the first verdicts on some processes of this machine, with what these record.
fn diagnose(pids: &[u32]) -> (Vec<Verdict>, Vec<Process>) {
    let start = Instant::now();
    loop {
        let mut all = processes(Path::new("/proc"));
        all.retain(|process| pids.contains(&process.pid));
        let mut found = verdicts(&all, PATIENCE);
        // On a busy machine a rank may be late for long.
        found.retain(|verdict| verdict.cause.holds_up());
        if !found.is_empty() {
            return (found, all);
        }
        assert!(start.elapsed() < LIMIT, "no verdict on {all:#?}");
        std::thread::yield_now();
    }
}

fn end(mut job: Job, nranks: u32) {
    for rank in 0..nranks {
        let _ = job.child(rank).kill();
    }
    job.wait();
}

/// Plays a standstill and returns the one verdict.
fn verdict(nranks: u32, how: &str, victim: u32, calls: u32, root: u32) -> (Verdict, Vec<Process>) {
    let arguments = [how.to_owned(), victim.to_string(), calls.to_string(), root.to_string()];
    let (mut job, pids) = start(nranks, nranks, &arguments);
    wait_until_running(&mut job, nranks);
    if how == "stop" {
        let pid = Pid::from_raw(pids[victim as usize] as i32).expect("a process");
        kill_process(pid, Signal::STOP).expect("it can be stopped");
    }
    let (found, all) = diagnose(&pids);
    end(job, nranks);
    let [verdict] = &found[..] else { panic!("{found:#?}") };
    (verdict.clone(), all)
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text:?} without {part:?}");
    }
}

#[test]
fn the_rank_at_fault_its_operation_and_the_reason_are_named() {
    let mut random = Random(18);
    for _ in 0..4 {
        let nranks = 2 + random.below(3) as u32;
        let (victim, calls) = (random.below(nranks.into()) as u32, random.below(80) as u32);
        for (how, cause) in [("skip", Cause::NotCalled), ("stop", Cause::Stopped)] {
            let (verdict, all) = verdict(nranks, how, victim, calls, 0);
            assert_eq!((verdict.cause, &verdict.ranks[..]), (cause, &[victim][..]), "{verdict:#?}");
            let pid = format!("process {}", all[victim as usize].pid);
            has(&verdict.text, &[&format!("rank {victim} "), &pid, "all_reduce of 1000 × float"]);
            if how == "skip" {
                has(&verdict.text, &[&format!("(collective {calls}, step ")]);
            }
        }
    }
}

#[test]
fn a_stream_that_waits_for_something_else_is_told_from_a_call_that_is_not_made() {
    // The others wait for the victim, or for the root, which waits for it.
    for (nranks, victim, root) in [(2, 0, 1), (3, 1, 0), (4, 3, 3)] {
        let (verdict, _) = verdict(nranks, "stream", victim, 3, root);
        let at_fault = (verdict.cause, &verdict.ranks[..]);
        assert_eq!(at_fault, (Cause::NotBegun, &[victim][..]), "{verdict:#?}");
        has(
            &verdict.text,
            &["reduce of 1000 × float, sum, root ", "(collective 3, step ", "stream"],
        );
    }
}

#[test]
fn a_message_that_is_not_sent_is_the_fault_of_its_sender() {
    let (verdict, all) = verdict(2, "message", 1, 2, 0);
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::NotCalled, &[1][..]), "{verdict:#?}");
    has(&verdict.text, &["send/recv of 4000 bytes of float (operation 2"]);
    let last = all[0].ranks[0].operations.last().expect("the receive");
    assert_eq!((last.peer, last.sends, last.transfers), (Some(1), Some(false), 1));
    let tags: Vec<u64> = all[0].ranks[0].operations.iter().map(|op| op.tag).collect();
    assert_eq!(tags, [100, 101, 101], "the number of the thread's latest call of oxcclTag");
}

#[test]
fn ranks_that_use_two_communicators_in_different_orders_are_a_circle() {
    let (verdict, _) = verdict(2, "circle", 1, 3, 0);
    assert_eq!(verdict.cause, Cause::Deadlock, "{verdict:#?}");
    let mut ranks = verdict.ranks;
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1]);
    has(&verdict.text, &["rank 0 of communicator", "rank 1 of communicator", "in a circle"]);
}

#[test]
fn ranks_that_do_not_come_to_the_making_of_a_communicator_are_named() {
    let (job, pids) = start(4, 2, &["skip", "0", "0", "0"].map(str::to_owned));
    let (found, _) = diagnose(&pids);
    end(job, 2);
    let [verdict] = &found[..] else { panic!("{found:#?}") };
    let at_fault = (verdict.cause, &verdict.ranks[..]);
    assert_eq!(at_fault, (Cause::NotJoined, &[2, 3][..]), "{verdict:#?}");
    has(&verdict.text, &["ranks 2, 3 of communicator", "ranks 0, 1 wait"]);
}
