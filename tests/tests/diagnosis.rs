//! Standstills of real processes, seen from outside: which rank is at fault, in which operation,
//! and why.

use oxccl_runtime::ras::verdict::{Cause, Patience, Verdict, verdicts};
use oxccl_runtime::recorder::Stage;
use oxccl_runtime::recorder::read::{Process, processes};
use oxccl_tests::job::Job;
use oxccl_tests::network::{Network, apart};
use oxccl_tests::sequence::Random;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");
/// The longest time from when the last rank began to wait, or a signal was sent, to the verdict.
const WITHIN: Duration = Duration::from_secs(2);
/// The pause between two looks, which leaves the processors to the ranks.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest time until all ranks stand still, on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Starts ranks that come to a standstill, and returns their process ids.
fn start(nranks: u32, started: u32, arguments: &[String]) -> (Job, Vec<u32>) {
    start_with_limit(nranks, started, arguments, "")
}

/// The same, with a limit for operations.
fn start_with_limit(
    nranks: u32,
    started: u32,
    arguments: &[String],
    limit: &str,
) -> (Job, Vec<u32>) {
    let mut job = Job::start(Path::new(RANK), started, Duration::from_secs(100), |_, command| {
        command.arg("stuck").args(arguments).env("OXCCL_NRANKS", nranks.to_string());
        command.env("OXCCL_TIMEOUT", limit);
    });
    let pids = (0..started).map(|rank| job.child(rank).id()).collect();
    (job, pids)
}

/// Waits until there is one verdict on some processes of this machine, of a kind and on some ranks,
/// and returns it with what the processes record.
fn diagnose(pids: &[u32], cause: Cause, ranks: &[u32]) -> (Verdict, Vec<Process>) {
    let is = |of: &Verdict| (of.cause, &sorted(&of.ranks)[..]) == (cause, ranks);
    diagnose_within(pids, Patience::default(), ranks, is)
}

/// The same, until the only verdict is as it should be, with other patience. On a busy machine,
/// ranks that come late for want of a processor are named before, or beside `ranks`, which are at
/// fault: until all others have waited for as long as the patience lasts.
fn diagnose_within(
    pids: &[u32],
    patience: Patience,
    ranks: &[u32],
    is: impl Fn(&Verdict) -> bool,
) -> (Verdict, Vec<Process>) {
    let start = Instant::now();
    loop {
        let mut all = processes(Path::new("/proc"));
        all.retain(|process| pids.contains(&process.pid));
        let mut found = verdicts(&all, patience);
        found.retain(|verdict| verdict.cause.holds_up());
        let names_others = |of: &Verdict| of.ranks.iter().any(|rank| !ranks.contains(rank));
        // What ranks themselves have found, a cut cable after 5 s, others of them hear of later.
        let has_failed = found.iter().any(|of| of.cause == Cause::Failed);
        let is_sure = stand(&all, ranks, patience) && !has_failed;
        assert!(!is_sure || !found.iter().any(names_others), "{found:#?} on {all:#?}");
        if let [verdict] = &found[..]
            && is(verdict)
        {
            assert!(has_failed || waited(&all) <= WITHIN, "{verdict:?} on {all:#?}");
            return (verdict.clone(), all);
        }
        assert!(start.elapsed() < LIMIT, "{found:#?} on {all:#?}");
        std::thread::sleep(PAUSE);
    }
}

/// Returns the time from when the last rank began to wait, or came to the making of a communicator,
/// until this was read; zero if none waits.
fn waited(all: &[Process]) -> Duration {
    let since = |process: &Process| {
        let since = process.ranks.iter().filter_map(|rank| match rank.stage {
            Stage::Creating => Some(rank.begun_ns),
            _ => Some(rank.waiting?.since_ns),
        });
        since.max().map(|since| process.read_ns.saturating_sub(since))
    };
    Duration::from_nanos(all.iter().filter_map(since).min().unwrap_or(0))
}

/// Returns whether all ranks but some have waited for as long as the patience lasts.
fn stand(all: &[Process], but: &[u32], patience: Patience) -> bool {
    let waits = |process: &Process| {
        let mut others = process.ranks.iter().filter(|rank| !but.contains(&rank.rank));
        others.all(|rank| {
            let since_ns = rank.waiting.map(|waiting| waiting.since_ns);
            since_ns
                .is_some_and(|since| process.read_ns.saturating_sub(since) >= patience.waiting_ns)
        })
    };
    all.iter().all(waits)
}

fn sorted(ranks: &[u32]) -> Vec<u32> {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    ranks
}

fn end(mut job: Job, nranks: u32) {
    for rank in 0..nranks {
        let _ = job.child(rank).kill();
    }
    job.wait();
}

/// A standstill of some ranks: how, by which of them, after how many calls, and the root of the
/// last one.
struct Standstill {
    nranks: u32,
    how: &'static str,
    victim: u32,
    calls: u32,
    root: u32,
}

impl Standstill {
    /// Plays it, and returns the verdict once it is of this kind, on these ranks.
    fn play(self, cause: Cause, ranks: &[u32]) -> (Verdict, Vec<Process>) {
        let Self { nranks, how, victim, calls, root } = self;
        let arguments = [how.to_owned(), victim.to_string(), calls.to_string(), root.to_string()];
        let (mut job, pids) = start(nranks, nranks, &arguments);
        job.wait_until_running(nranks);
        let signal = match how {
            "stop" => Some(Signal::STOP),
            "kill" => Some(Signal::KILL),
            _ => None,
        };
        if let Some(signal) = signal {
            let pid = Pid::from_raw(pids[victim as usize] as i32).expect("a process");
            kill_process(pid, signal).expect("it can be signalled");
        }
        let start = Instant::now();
        // Ranks that send to each other find it themselves after a second.
        let patience = match how {
            "cross" => Patience { waiting_ns: 300_000_000, ..Patience::default() },
            _ => Patience::default(),
        };
        let found = diagnose_within(&pids, patience, ranks, |of| {
            (of.cause, &sorted(&of.ranks)[..]) == (cause, ranks)
        });
        assert!(signal.is_none() || start.elapsed() <= WITHIN, "{:?}: {found:?}", start.elapsed());
        end(job, nranks);
        found
    }
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
            let standstill = Standstill { nranks, how, victim, calls, root: 0 };
            let (verdict, all) = standstill.play(cause, &[victim]);
            let of_victim = |process: &&Process| process.ranks[0].rank == victim;
            let pid = all.iter().find(of_victim).map(|process| format!("process {}", process.pid));
            let pid = pid.expect("its process is seen");
            has(&verdict.text, &[&format!("rank {victim} "), &pid, "all_reduce of 1000 × float"]);
            if how == "skip" {
                has(&verdict.text, &[&format!("(collective {calls}, step ")]);
            }
        }
    }
}

#[test]
fn survivors_name_the_rank_that_was_killed_the_operation_and_the_step() {
    let mut random = Random(6);
    let drawn = [(); 2].map(|()| (random.below(2) as u32, random.below(80) as u32));
    for (victim, calls) in [(0, 3), (1, 70), (1, 0)].into_iter().chain(drawn) {
        let nranks = 2;
        let standstill = Standstill { nranks, how: "kill", victim, calls, root: 0 };
        let (verdict, all) = standstill.play(Cause::Failed, &[1 - victim]);
        let lost = format!("lost rank {victim} at step ");
        let of_survivor = |process: &&Process| process.ranks[0].rank != victim;
        let survivor = all.iter().find(of_survivor).expect("it is there");
        let last = survivor.ranks[0].operations.last().expect("its last call");
        let operation = format!("of all_reduce (operation {})", last.number);
        let process = format!("its process ended, rank {victim} being process ");
        has(&verdict.text, &[" ago at rank ", &lost, &operation, &process]);
    }
}

#[test]
fn a_stream_that_waits_for_something_else_is_told_from_a_call_that_is_not_made() {
    // The root waits for the victim, and others may wait for the root.
    for (nranks, victim, root) in [(2, 0, 1), (3, 1, 0), (4, 3, 2)] {
        let standstill = Standstill { nranks, how: "stream", victim, calls: 3, root };
        let (verdict, _) = standstill.play(Cause::NotBegun, &[victim]);
        has(
            &verdict.text,
            &["reduce of 1000 × float, sum, root ", "(collective 3, step ", "stream"],
        );
    }
}

#[test]
fn a_message_that_is_not_sent_is_the_fault_of_its_sender() {
    let standstill = Standstill { nranks: 2, how: "message", victim: 1, calls: 2, root: 0 };
    let (verdict, all) = standstill.play(Cause::NotCalled, &[1]);
    has(&verdict.text, &["send/recv of 4000 bytes of float (operation 2"]);
    let last = all[0].ranks[0].operations.last().expect("the receive");
    assert_eq!((last.peer, last.sends, last.transfers), (Some(1), Some(false), 1));
    let tags: Vec<u64> = all[0].ranks[0].operations.iter().map(|op| op.tag).collect();
    assert_eq!(tags, [100, 101, 101], "the number of the thread's latest call of oxcclTag");
}

#[test]
fn the_error_of_an_operation_that_waited_too_long_says_why() {
    let arguments = ["skip", "2", "5", "0"].map(str::to_owned);
    let (mut job, _) = start_with_limit(3, 3, &arguments, "400ms");
    let mut outputs: Vec<_> = (0..2)
        .map(|rank| BufReader::new(job.child(rank).stdout.take().expect("a pipe")).lines())
        .collect();
    let mut error = |rank: usize| {
        let mut lines = outputs[rank].by_ref().map_while(Result::ok);
        lines.find(|line| line.starts_with("code")).expect("the rank ends with an error")
    };
    for error in [error(0), error(1)] {
        // One of the two may have heard it from the other.
        has(
            &error,
            &["rank 2", "rank 2 has not called all_reduce of 1000 × float, sum (collective 5"],
        );
        has(&error, &["whose last operation was", "look at what that process does"]);
    }
    end(job, 3);
}

#[test]
fn ranks_that_use_two_communicators_in_different_orders_are_a_circle() {
    let standstill = Standstill { nranks: 2, how: "circle", victim: 1, calls: 3, root: 0 };
    let (verdict, _) = standstill.play(Cause::Deadlock, &[0, 1]);
    has(&verdict.text, &["rank 0 of communicator", "rank 1 of communicator", "in a circle"]);
}

#[test]
fn a_pair_that_stands_still_in_a_communicator_of_its_own_is_told() {
    // The rank at fault has number 1 among the two, and all others are outside of the library.
    let standstill = Standstill { nranks: 4, how: "pair", victim: 2, calls: 3, root: 1 };
    let (verdict, all) = standstill.play(Cause::NotCalled, &[1]);
    let pair = |process: &&Process| process.ranks.iter().any(|rank| rank.nranks == 2);
    let pair: Vec<_> = all.iter().filter(pair).flat_map(|of| &of.ranks).collect();
    let pair = pair.iter().find(|rank| rank.nranks == 2).expect("it was made");
    assert_eq!(verdict.comm, pair.comm, "{verdict:?}");
    has(&verdict.text, &["all_reduce of 1000 × float, sum (collective 0, step ", "rank 0 waits"]);
}

#[test]
fn ranks_that_send_to_each_other_before_they_receive_are_told_to_use_a_group() {
    let standstill = Standstill { nranks: 2, how: "cross", victim: 1, calls: 3, root: 0 };
    let (verdict, _) = standstill.play(Cause::Deadlock, &[0, 1]);
    has(&verdict.text, &["(operation 3, to rank 0", "(operation 3, to rank 1", "in a circle"]);
    has(&verdict.text, &["into one call or group (ncclGroupStart, ncclGroupEnd; SendRecv"]);
}

#[test]
fn ranks_that_do_not_come_to_the_making_of_a_communicator_are_named() {
    let (job, pids) = start(4, 2, &["skip", "0", "0", "0"].map(str::to_owned));
    let (verdict, _) = diagnose(&pids, Cause::NotJoined, &[2, 3]);
    end(job, 2);
    has(&verdict.text, &["ranks 2, 3 of communicator", "have not come", "ranks 0, 1 wait for"]);
}

#[test]
fn both_calls_are_named_where_a_rank_calls_something_else() {
    for (nranks, victim, calls) in [(2, 1, 0), (3, 0, 70)] {
        let arguments = ["other".to_owned(), victim.to_string(), calls.to_string(), "0".to_owned()];
        let (job, pids) = start(nranks, nranks, &arguments);
        let all: Vec<u32> = (0..nranks).collect();
        let failed = |verdict: &Verdict| verdict.cause == Cause::Failed;
        let (verdict, all) = diagnose_within(&pids, Patience::default(), &all, failed);
        let ranks = || all.iter().flat_map(|process| &process.ranks);
        let called = ranks().filter_map(|rank| rank.operations.last()).map(|op| op.called_ns).max();
        let found = ranks().filter_map(|rank| rank.failure.since_ns).min();
        let (called, found) = (called.expect("they called"), found.expect("one has failed"));
        assert!(found.saturating_sub(called) <= WITHIN.as_nanos() as u64, "{all:#?}");
        let other = format!("rank {victim} calls broadcast of 1000 × float, root 0");
        has(&verdict.text, &["differ", "calls all_reduce of 1000 × float, sum", &other]);
        end(job, nranks);
    }
}

/// Waits until one rank is told to be slow, of the processes of ranks of which rank 1 works longer.
/// It has to be once they have made so many calls that a verdict is to be had.
fn expect_slow(pids: &[u32]) {
    const CALLS: u64 = 20;
    let start = Instant::now();
    let mut called: Option<Instant> = None;
    let text = loop {
        let mut all = processes(Path::new("/proc"));
        all.retain(|process| pids.contains(&process.pid));
        let finished = all.iter().flat_map(|process| &process.ranks).map(|rank| rank.finished);
        if all.len() == pids.len() && finished.min().is_some_and(|least| least >= CALLS) {
            called.get_or_insert_with(Instant::now);
        }
        let found = verdicts(&all, Patience::default());
        if let [Verdict { cause: Cause::Slow, ranks, text, .. }] = &found[..]
            && ranks[..] == [1]
        {
            assert!(called.is_none_or(|called| called.elapsed() <= WITHIN), "{found:#?}");
            break text.clone();
        }
        assert!(start.elapsed() < LIMIT, "{found:#?}");
        std::thread::sleep(PAUSE);
    };
    has(
        &text,
        &[
            "rank 1 of communicator",
            "comes later than most to the last ",
            "collectives (most often all_reduce of 1000 × float, sum)",
            "ms in the middle",
        ],
    );
}

#[test]
fn a_rank_that_works_for_longer_than_the_others_is_slow_and_holds_nobody_up() {
    let arguments = ["sleep", "1", "3", "0"].map(str::to_owned);
    let (job, pids) = start(3, 3, &arguments);
    expect_slow(&pids);
    end(job, 3);
}

#[test]
fn a_slow_rank_is_named_beside_those_of_other_hosts() {
    apart("a_slow_rank_is_named_beside_those_of_other_hosts", 2, |network| {
        let mut job = Job::start(Path::new(RANK), 2, Duration::from_secs(100), |rank, command| {
            network.enter(command, rank).args(["stuck", "sleep", "1", "3", "0"]);
            command.env("NCCL_COMM_ID", format!("{}:4000", network.address(0)));
        });
        job.wait_until_running(2);
        let pids: Vec<u32> = (0..2).map(|rank| job.child(rank).id()).collect();
        expect_slow(&pids);
        end(job, 2);
    });
}

#[test]
fn who_does_not_split_a_communicator_is_named() {
    for (nranks, victim) in [(2, 0), (3, 1)] {
        let standstill = Standstill { nranks, how: "split", victim, calls: 3, root: 0 };
        let (verdict, _) = standstill.play(Cause::NotJoined, &[victim]);
        has(
            &verdict.text,
            &[&format!("rank {victim} of communicator"), "has not called ncclCommSplit"],
        );
        has(&verdict.text, &["whose last operation was all_reduce of 1000 × float"]);
    }
}

#[test]
fn a_rank_of_which_nothing_is_seen_is_named_with_the_operation_and_the_step() {
    // As on the host of rank 0, with rank 1 on another one.
    let arguments = ["skip", "1", "4", "0"].map(str::to_owned);
    let (job, pids) = start(2, 2, &arguments);
    let (verdict, _) = diagnose(&pids[..1], Cause::Unseen, &[1]);
    has(&verdict.text, &["rank 0 waits in all_reduce of 1000 × float, sum (collective 4, step "]);
    has(&verdict.text, &["for rank 1, of which nothing is seen here"]);
    end(job, 2);
}

#[test]
fn beside_a_cut_cable_both_hosts_name_the_ranks_of_the_other_one() {
    let name = "beside_a_cut_cable_both_hosts_name_the_ranks_of_the_other_one";
    apart(name, 2, cut_the_cable);
}

/// Cuts the only cable between two hosts of two ranks each, in the middle of their operations.
fn cut_the_cable(network: &Network) {
    let mut job = Job::start(Path::new(RANK), 4, Duration::from_secs(100), |rank, command| {
        network.enter(command, rank / 2).args(["stuck", "cut", "0", "5", "0"]);
        command.env("NCCL_COMM_ID", format!("{}:4000", network.address(0)));
    });
    job.wait_until_running(4);
    network.cut((0, None));
    let pids: Vec<u32> = (0..4).map(|rank| job.child(rank).id()).collect();
    for (host, beyond) in [(0, [2, 3]), (1, [0, 1])] {
        let here = [2 * host, 2 * host + 1];
        let there = format!(" on the host {}", network.address(1 - host));
        let names_them = |text: &str| {
            let lost = beyond.iter().any(|rank| text.contains(&format!("lost rank {rank}")));
            lost && text.contains("has heard nothing of it for") && text.contains(&there)
        };
        let pids = here.map(|rank| pids[rank as usize]);
        let (verdict, _) = diagnose_within(&pids, Patience::default(), &[0, 1, 2, 3], |verdict| {
            verdict.cause == Cause::Failed && verdict.ranks.iter().all(|rank| here.contains(rank))
        });
        assert!(names_them(&verdict.text), "{}", verdict.text);
        for rank in here {
            let stdout = job.child(rank).stdout.take().expect("a pipe");
            let error = BufReader::new(stdout).lines().next().expect("an error").expect("text");
            assert!(names_them(&error), "{error}");
        }
    }
    end(job, 4);
}
