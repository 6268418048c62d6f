//! `OXCCL_DETERMINISTIC`: the same bits of a reduction by every algorithm that may serve it, for
//! any memory, split and grouping, on one host and on several.

use oxccl_plan::generate::GENERATORS;
use oxccl_plan::{Collective, Plan, Spec};
use oxccl_tests::job::{Ended, Job};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");
const LIMIT: Duration = Duration::from_secs(120);
const SETTING: &str = "OXCCL_DETERMINISTIC";

/// Runs the reductions: `threads` ranks in each of the processes.
fn run(processes: u32, threads: u32, dress: impl Fn(u32, &mut Command)) -> Vec<Ended> {
    run_kind("deterministic", (processes, threads), dress)
}

fn run_kind(
    kind: &str,
    (processes, threads): (u32, u32),
    dress: impl Fn(u32, &mut Command),
) -> Vec<Ended> {
    let threads = threads.to_string();
    let job = Job::start(Path::new(RANK), processes, LIMIT, |rank, command| {
        command.args([kind, "20261121", &threads]).env_remove("OXCCL_ALGORITHM");
        dress(rank, command);
    });
    job.wait()
}

/// Every rank has compared something and found the bits of the fold in rank order.
fn expect_equal(what: &str, ended: &[Ended]) {
    let mut compared = 0;
    for Ended { status, output } in ended {
        assert_eq!(*status, Some(0), "{what}: {output}");
        for line in output.lines().filter(|line| line.ends_with(" differ")) {
            assert!(line.starts_with("0 of "), "{what}: {output}");
            compared += 1;
        }
    }
    assert!(compared >= ended.len(), "{what}: {ended:?}");
}

/// Those that reduce on several ranks.
fn reducing(canonical: bool) -> impl Iterator<Item = &'static str> {
    let spec = Spec::new(Collective::AllReduce, 5, 0);
    let serves = Plan::candidates(spec).map(|plan| plan.algorithm.generator());
    serves.filter(move |g| g.canonical == canonical).map(|g| g.name)
}

/// A rank of another host than all others, as far as the library can tell.
fn own_host(rank: u32, command: &mut Command) {
    command.env("NCCL_HOSTID", rank.to_string()).env("NCCL_SOCKET_IFNAME", "lo");
}

#[test]
fn every_eligible_algorithm_gives_the_same_bits() {
    assert!(reducing(true).count() >= 6, "{:?}", reducing(true).collect::<Vec<_>>());
    for name in reducing(true) {
        let forced = |_, command: &mut Command| {
            command.env(SETTING, "1").env("OXCCL_ALGORITHM", name);
        };
        expect_equal(&format!("{name}, processes"), &run(3, 1, forced));
        expect_equal(&format!("{name}, threads"), &run(1, 5, forced));
    }
}

#[test]
fn every_number_of_ranks_gives_the_same_bits() {
    for nranks in 2..=5 {
        let set = |_, command: &mut Command| {
            command.env(SETTING, "1");
        };
        expect_equal(&format!("{nranks} threads"), &run(1, nranks, set));
    }
}

#[test]
fn several_hosts_give_the_bits_of_one() {
    for nranks in [2, 5] {
        let ended = run(nranks, 1, |rank, command| {
            own_host(rank, command);
            command.env(SETTING, "1");
        });
        expect_equal(&format!("{nranks} hosts"), &ended);
    }
    let ended = run(4, 1, |rank, command| {
        own_host(rank / 2, command);
        command.env(SETTING, "1");
    });
    expect_equal("two hosts of two ranks", &ended);
}

#[test]
fn rank_0_decides_for_all_and_the_others_say_so() {
    let ended = run(3, 1, |rank, command| {
        own_host(rank, command);
        command.env(SETTING, if rank == 0 { "1" } else { "0" });
    });
    expect_equal("rank 0 alone", &ended);
    let warned = |e: &Ended| e.output.contains("OXCCL_DETERMINISTIC differs between ranks");
    assert_eq!(ended.iter().map(warned).collect::<Vec<_>>(), [false, true, true], "{ended:?}");
}

#[test]
fn other_algorithms_give_other_bits() {
    for name in reducing(false) {
        let ended = run(1, 5, |_, command| {
            command.env(SETTING, "0").env("OXCCL_ALGORITHM", name);
        });
        assert_eq!(ended[0].status, Some(0), "{ended:?}");
        let differ = |line: &str| line.ends_with(" differ") && !line.starts_with("0 of ");
        assert!(ended[0].output.lines().any(differ), "{name}: {ended:?}");
    }
}

/// Also by algorithms that round before all ranks have contributed, and by those between hosts.
#[test]
fn averages_stay_in_range_where_sums_do_not() {
    for name in reducing(false) {
        let forced = |_, command: &mut Command| {
            command.env("OXCCL_ALGORITHM", name);
        };
        for threads in [2, 5] {
            let what = format!("{name}, {threads} threads");
            expect_equal(&what, &run_kind("averages", (1, threads), forced));
        }
    }
    expect_equal("three hosts", &run_kind("averages", (3, 1), own_host));
    let two_each = |rank, command: &mut Command| own_host(rank / 2, command);
    expect_equal("two hosts of two ranks", &run_kind("averages", (4, 1), two_each));
}

#[test]
fn a_forced_algorithm_with_an_order_of_its_own_is_refused() {
    let other = GENERATORS.iter().filter(|g| !g.canonical).map(|g| g.name);
    for name in other {
        let ended = run(1, 2, |_, command| {
            command.env(SETTING, "1").env("OXCCL_ALGORITHM", name);
        });
        let text = format!("OXCCL_ALGORITHM={name} (environment) folds in an order of its own");
        assert_eq!(ended[0].status, Some(3), "{ended:?}");
        assert!(ended[0].output.contains(&text), "{ended:?}");
        assert!(ended[0].output.contains("two_shot_edges"), "{ended:?}");
    }
}
