//! Jobs between hosts that are far from each other, or whose network loses packets: a relay holds
//! the packets up, and loses some.

use oxccl_runtime::ras::verdict::{Patience, verdicts};
use oxccl_runtime::recorder::read::{PROC, processes};
use oxccl_tests::job::{Ended, Job};
use oxccl_tests::missing;
use oxccl_tests::network::{Network, apart};
use oxccl_tests::relay::{Relay, Way};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");
const LIMIT: Duration = Duration::from_secs(60);
/// The pause between two looks, which leaves the processors to the ranks.
const PAUSE: Duration = Duration::from_millis(50);

/// A way of 20 ms, which loses nothing.
fn far(seed: u64) -> Way {
    let (delay, jitter) = (Duration::from_millis(20), Duration::from_millis(2));
    Way { delay, jitter, lost_ppm: 0, seed }
}

/// A way so long that the time of everything else is no matter.
fn very_far(seed: u64) -> Way {
    Way { delay: Duration::from_millis(100), jitter: Duration::ZERO, ..far(seed) }
}

/// A way of 1 to 2 ms, which loses a packet of 100.
fn lossy(seed: u64) -> Way {
    let (delay, jitter) = (Duration::from_millis(1), Duration::from_millis(1));
    Way { delay, jitter, lost_ppm: 10_000, seed }
}

/// Runs a part of a test on a network of its own with so many hosts and a relay between them. One
/// at a time: the ranks of others would take the processors that the relay needs.
fn behind_relay(test: &str, hosts: u32, way: Way, part: impl FnOnce(&Network, &Relay)) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    apart(test, hosts, |network| match Relay::start(network, way) {
        Ok(relay) => {
            expect_delay(network, way.delay);
            part(network, &relay);
        }
        Err(reason) => missing("tun", &reason),
    });
}

/// Checks that two packets are held up which follow each other: a connection is made by them.
fn expect_delay(network: &Network, delay: Duration) {
    let address = network.address(1);
    let listener = network.on(1, || TcpListener::bind((address, 0)).expect("a port"));
    let address = listener.local_addr().expect("an address");
    let took = network.on(0, || {
        let start = Instant::now();
        TcpStream::connect(address).expect("it listens");
        start.elapsed()
    });
    assert!(took >= 2 * delay, "a round trip of {took:?}");
}

/// Starts ranks, so many on each host; the input of rank 0 may be written to.
fn start(network: &Network, (hosts, on_each): (u32, u32), arguments: &[&str]) -> Job {
    Job::start(Path::new(RANK), hosts * on_each, LIMIT, |rank, command| {
        network.enter(command, rank / on_each).args(arguments).env("NCCL_DEBUG", "WARN");
        command.env("NCCL_COMM_ID", format!("{}:4000", network.address(0)));
        if rank == 0 {
            command.stdin(Stdio::piped());
        }
    })
}

/// Waits for ranks that have to succeed and to warn of nothing.
fn expect_peace(job: Job) -> Vec<Ended> {
    let all = job.wait();
    for (rank, ended) in all.iter().enumerate() {
        assert_eq!(ended.status, Some(0), "rank {rank}: {}", ended.output);
        assert!(!ended.output.contains("WARN"), "rank {rank}: {}", ended.output);
    }
    all
}

#[test]
fn random_sequences_between_hosts_that_are_far_from_each_other() {
    let test = "random_sequences_between_hosts_that_are_far_from_each_other";
    behind_relay(test, 4, far(1), |network, relay| {
        for (shape, seed) in [((2, 2), "31"), ((4, 1), "32")] {
            expect_peace(start(network, shape, &["sequence", seed, "150", "262144"]));
        }
        let counts = relay.counts();
        assert!(counts.passed > 1000 && counts.lost == 0, "{counts:?}");
    });
}

#[test]
fn random_sequences_between_hosts_whose_network_loses_packets() {
    let test = "random_sequences_between_hosts_whose_network_loses_packets";
    behind_relay(test, 4, lossy(2), |network, relay| {
        for (shape, seed) in [((2, 2), "33"), ((4, 1), "34"), ((4, 2), "35")] {
            let (before, again) = (relay.counts(), network.sent_again());
            expect_peace(start(network, shape, &["sequence", seed, "150", "262144"]));
            let (counts, more) = (relay.counts(), network.sent_again() - again);
            // Of what is lost, only acknowledgements need not be sent again.
            assert!(counts.lost > before.lost && more > 0, "{before:?} {counts:?} {more}");
        }
    });
}

#[test]
fn nobody_is_called_dead_or_slow_where_the_network_loses_packets() {
    let test = "nobody_is_called_dead_or_slow_where_the_network_loses_packets";
    // Who gives no sign of life for 5 s is dead.
    const LONG: Duration = Duration::from_secs(7);
    const LOST: u64 = 20;
    // What is lost three times comes after 1.4 s: TCP waits for 0.2 s at first, and each time for
    // twice as long.
    let patience = Patience { waiting_ns: 3_000_000_000, ..Patience::default() };
    behind_relay(test, 4, lossy(3), |network, relay| {
        let mut job = start(network, (4, 1), &["attended"]);
        job.wait_until_running(4);
        let pids: Vec<u32> = (0..4).map(|rank| job.child(rank).id()).collect();
        let (start, before) = (Instant::now(), relay.counts().lost);
        while start.elapsed() < LONG || relay.counts().lost < before + LOST {
            assert!(start.elapsed() < LIMIT, "{:?}", relay.counts());
            let mut all = processes(Path::new(PROC));
            all.retain(|process| pids.contains(&process.pid));
            let found = verdicts(&all, patience);
            assert!(found.is_empty(), "{found:#?} on {all:#?}");
            std::thread::sleep(PAUSE);
        }
        drop(job.child(0).stdin.take());
        expect_peace(job);
        assert!(network.sent_again() > 0);
    });
}

#[test]
fn a_communicator_is_made_and_used_and_destroyed_in_few_round_trips() {
    let test = "a_communicator_is_made_and_used_and_destroyed_in_few_round_trips";
    let way = very_far(4);
    behind_relay(test, 2, way, |network, _| {
        let start_of_job = Instant::now();
        expect_peace(start(network, (2, 1), &["once"]));
        let (took, round_trip) = (start_of_job.elapsed(), 2 * way.delay);
        // Three for the rendezvous, one for each of three rounds, three for a connection of
        // control, two for one of data, and one for the end; four for a busy machine.
        assert!(took < 16 * round_trip, "{took:?}");
    });
}

/// The first calls are slower, until TCP has found out how much the way holds.
#[test]
fn large_calls_between_hosts_that_are_far_from_each_other_take_few_round_trips() {
    let test = "large_calls_between_hosts_that_are_far_from_each_other_take_few_round_trips";
    // So long that the time of everything else is little.
    let delay = Duration::from_millis(50);
    let way = Way { delay, jitter: Duration::ZERO, ..far(6) };
    behind_relay(test, 2, way, |network, _| {
        let calls = ["fastest", "4194304", "12"];
        for Ended { output, .. } in expect_peace(start(network, (2, 1), &calls)) {
            let mut lines = output.lines();
            let took = lines.find_map(|line| line.strip_prefix("fastest ")).expect("a time");
            let took = Duration::from_millis(took.parse().expect("a number"));
            // Two of four windows are on their way at a time, each with two messages one after the
            // other: two round trips, and four for a busy machine. Messages of 64 KiB take nine.
            assert!(took < 6 * 2 * delay, "{took:?}");
        }
    });
}

#[test]
fn a_connection_that_is_reset_ends_all_soon_who_name_the_rank_and_its_host() {
    let test = "a_connection_that_is_reset_ends_all_soon_who_name_the_rank_and_its_host";
    let delay = Duration::from_millis(1);
    let way = Way { delay, jitter: Duration::ZERO, ..far(5) };
    behind_relay(test, 2, way, |network, relay| {
        let mut job = start(network, (2, 1), &["loop", "65536"]);
        job.wait_until_running(2);
        relay.reset_next();
        let start = Instant::now();
        let ended = job.wait();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        assert!(relay.counts().resets > 0, "{:?}", relay.counts());
        let mut named = false;
        for (rank, ended) in (0u32..).zip(&ended) {
            let (other, output) = (1 - rank, &ended.output);
            assert_eq!(ended.status, Some(3), "rank {rank}: {output}");
            // 6 is ncclRemoteError.
            let lost = format!("code 6 peer {other}: rank {rank} lost rank {other}");
            let reset = output.contains(&lost) && output.contains("Connection reset by peer");
            assert!(reset, "rank {rank}: {output}");
            // Who hears of it from the other one is told what that one has found.
            named |= output.contains(&format!(" on the host {};", network.address(other)));
        }
        assert!(named, "{ended:?}");
    });
}
