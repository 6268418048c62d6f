//! Windows and one-sided operations, within a process and between processes.

use oxccl_runtime::comm::Options;
use oxccl_runtime::group;
use oxccl_runtime::op::OneSided;
use oxccl_tests::job::Job;
use oxccl_tests::sequence::Player;
use oxccl_tests::windows::play;
use oxccl_tests::world::on_threads;
use std::path::Path;
use std::time::Duration;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");

fn threads(nranks: u32, run: impl Fn(Player) + Sync) {
    let options = Options { rma_contexts: 4, ..Options::default() };
    on_threads(nranks, &options, |player| {
        let comm = player.comm.clone();
        run(player);
        comm.destroy().expect("all is well");
    });
}

#[test]
fn puts_and_signals_within_a_process() {
    for nranks in [1, 2, 4] {
        threads(nranks, |player| play(&player, 3, 200, false).expect("it works"));
    }
}

#[test]
fn puts_signals_and_repeated_registration_that_takes_no_address_space_between_processes() {
    for memory in ["mapped", "plain"] {
        let job = Job::start(Path::new(RANK), 3, Duration::from_secs(100), |_, command| {
            command.args(["windows", "7", memory]);
        });
        job.expect_success();
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    threads(2, |player| {
        let comm = &player.comm;
        let mut memory = vec![0u8; 8192];
        let window = comm.register_window(memory.as_mut_ptr(), 8192).expect("a window");
        let from = memory.as_ptr();
        assert_eq!(comm.window_base(window), Some(memory.as_ptr() as usize));
        assert!(comm.put_signal((from, 1), (0, window + 1, 0), 0).is_none());
        let error = comm.put_signal((from, 100), (0, window, 8093), 0).expect("it lives");
        let text = error.expect_err("out of range").to_string();
        assert!(text.contains("8093, with 100 bytes"), "{text}");
        assert_eq!(comm.signal_number(15, 3), Some(63));
        for (index, context) in [(16, 0), (-1, 0), (0, 4), (0, -1)] {
            assert_eq!(comm.signal_number(index, context), None);
        }
        let more: Vec<_> = (0..63)
            .map(|_| comm.register_window(memory.as_mut_ptr(), 16).expect("a window"))
            .collect();
        let text = comm.register_window(memory.as_mut_ptr(), 16).expect_err("full").to_string();
        assert!(text.contains("64 may be registered"), "{text}");
        assert!(more.into_iter().all(|window| comm.deregister_window(window)));
        // A buffer's handle is no window's.
        let buffer = comm.register(memory.as_ptr() as usize, 100).expect("a handle");
        assert!(!comm.deregister_window(buffer) && comm.window_base(buffer).is_none());
        let ended = [window, buffer, buffer].map(|handle| comm.deregister(handle).expect("unused"));
        assert_eq!(ended, [false, true, false]);
    });
}

#[test]
fn a_put_waits_until_the_peer_has_its_window() {
    let late = std::sync::Barrier::new(2);
    threads(2, |player| {
        let Player { comm, stream } = player;
        let mut memory = vec![0u8; 4096];
        if comm.rank() == 0 {
            let window = comm.register_window(memory.as_mut_ptr(), 4096).expect("a window");
            let data = [7u8; 10];
            let put = comm.put_signal((data.as_ptr(), 10), (1, window, 5), 0).expect("it lives");
            group::operation(&comm, put.expect("in range"), &stream).expect("called");
            assert!(!stream.query().expect("it waits"));
            late.wait();
            assert!(stream.synchronize(Some(Duration::from_secs(60))).expect("it works"));
        } else {
            late.wait();
            comm.register_window(memory.as_mut_ptr(), 4096).expect("a window");
            let signal = oxccl_runtime::op::Awaiting { peer: 0, signal: 0, count: 1 };
            let wait = OneSided::Wait(vec![signal]);
            group::operation(&comm, wait, &stream).expect("called");
            assert!(stream.synchronize(Some(Duration::from_secs(60))).expect("it works"));
            assert_eq!((memory[4], memory[5], memory[14], memory[15]), (0, 7, 7, 0));
        }
    });
}
