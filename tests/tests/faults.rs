//! The death of ranks, and ranks that never come.

use oxccl_runtime::bootstrap;
use oxccl_runtime::comm::{Member, create};
use oxccl_tests::job::Job;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");

#[test]
fn killing_a_rank_gives_the_others_its_number_within_five_seconds() {
    for (bytes, victim) in [("8", 2u32), ("4194304", 0), ("65536", 3)] {
        let mut job = Job::start(Path::new(RANK), 4, Duration::from_secs(60), |_, command| {
            command.args(["loop", bytes]);
        });
        let stdout = job.child(victim).stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("the rank speaks");
        assert_eq!(line.trim(), "running");
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
fn a_rank_that_never_comes_is_named_after_the_time_that_was_set() {
    let job = Job::start(Path::new(RANK), 2, Duration::from_secs(30), |_, command| {
        // Both say that there are four ranks.
        command.args(["loop", "8"]).env("OXCCL_NRANKS", "4").env("OXCCL_INIT_TIMEOUT", "1");
    });
    // The rendezvous lives in this process and has this process's limit, so it is the ranks'
    // own limit that ends the wait here.
    for ended in job.wait() {
        assert_eq!(ended.status, Some(3), "{}", ended.output);
        assert!(ended.output.contains("code 2"), "{}", ended.output);
    }
}

#[test]
fn ranks_that_disagree_about_their_number_fail_at_once() {
    let id = bootstrap::new_unique_id().expect("an id");
    let member = |rank, nranks| Member { id: id.clone(), rank, nranks, device: 0 };
    let (a, b) = (member(0, 2), member(1, 3));
    let errors = std::thread::scope(|scope| {
        let threads = [scope.spawn(|| create(&a).err()), scope.spawn(|| create(&b).err())];
        threads.map(|t| t.join().expect("no panic").expect("an error").to_string())
    });
    assert!(errors.iter().any(|e| e.contains("the others say")), "{errors:?}");
}

#[test]
fn a_rank_claimed_twice_is_an_error_that_names_both() {
    let id = bootstrap::new_unique_id().expect("an id");
    let member = || Member { id: id.clone(), rank: 1, nranks: 3, device: 0 };
    let (a, b) = (member(), member());
    let errors = std::thread::scope(|scope| {
        let threads = [scope.spawn(|| create(&a).err()), scope.spawn(|| create(&b).err())];
        threads.map(|t| t.join().expect("no panic").expect("an error").to_string())
    });
    assert!(errors.iter().any(|e| e.contains("rank 1 is claimed by")), "{errors:?}");
}
