//! Encrypted connections: all ranks have the key, or all are told who has not.
//!
//! The rendezvous of a job is held by this process, whose key is that of all its jobs at a time: so
//! there is one test.

use oxccl_runtime::bootstrap::encryption::{Key, set_key};
use oxccl_tests::job::{Ended, Job};
use std::path::Path;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");

/// Runs three ranks, each with its key, beside a rendezvous with this key.
fn run(holder: Option<&str>, keys: [Option<&str>; 3], hosts: bool, command: &[&str]) -> Vec<Ended> {
    set_key(holder.map(|key| Key::new(key.as_bytes())));
    let job = Job::start(Path::new(RANK), 3, Duration::from_secs(60), |rank, rank_command| {
        rank_command.args(command).env("NCCL_SOCKET_IFNAME", "lo");
        rank_command.envs(keys[rank as usize].map(|key| ("OXCCL_TEST_KEY", key)));
        if hosts {
            rank_command.env("NCCL_HOSTID", rank.to_string());
        }
    });
    job.wait()
}

#[test]
fn ranks_with_one_key_meet_and_any_other_one_is_named_on_all_ranks_in_time() {
    let (key, other) = (Some("the key of all ranks"), Some("the key of nobody else"));
    for command in [&["once"][..], &["sequence", "3", "40", "5000"], &["crowd", "3"]] {
        for ended in run(key, [key; 3], false, command) {
            assert_eq!(ended.status, Some(0), "{command:?}: {}", ended.output);
        }
    }
    let keys = "has another key for encrypted connections";
    let modes = "encrypts its connections, and this side does not, or the other way round";
    for (holder, odd, text) in [(key, other, keys), (key, None, modes), (None, key, modes)] {
        let begun = Instant::now();
        let ended = run(holder, [holder, odd, holder], false, &["once"]);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        for (rank, ended) in ended.iter().enumerate() {
            let output = &ended.output;
            assert!(ended.status.is_some_and(|status| status != 0), "rank {rank}: {output}");
            assert!(output.contains(text), "rank {rank}: {output}");
            assert!(output.contains("ncclSetEncryption alike on all ranks"), "{output}");
            assert!(rank == 1 || output.contains("rank 1 (at "), "rank {rank}: {output}");
        }
    }
    // Between hosts data would go unencrypted.
    for ended in run(key, [key; 3], true, &["once"]) {
        assert!(ended.status.is_some_and(|status| status != 0), "{}", ended.output);
        let text = "connections for data between hosts cannot be encrypted yet";
        assert!(ended.output.contains(text), "{}", ended.output);
    }
    for ended in run(None, [None; 3], true, &["once"]) {
        assert_eq!(ended.status, Some(0), "{}", ended.output);
    }
}
