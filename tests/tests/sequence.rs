//! Random sequences of 10 000 operations on one communicator, in all layouts of ranks.

use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::group;
use oxccl_runtime::op::Call;
use oxccl_tests::job::Job;
use oxccl_tests::network::apart;
use oxccl_tests::sequence::{Player, Shape, play};
use oxccl_tests::world::players;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");
const LIMIT: Duration = Duration::from_secs(280);

fn processes(nranks: u32, arguments: [&str; 3], dress: impl Fn(u32, &mut Command)) {
    let job = Job::start(Path::new(RANK), nranks, LIMIT, |rank, command| {
        command.arg("sequence").args(arguments);
        dress(rank, command);
    });
    job.expect_success();
}

#[test]
fn four_processes() {
    processes(4, ["1", "10000", "8388608"], |_, _| ());
}

#[test]
fn registration_offset_alignment_and_place_at_random_per_rank_are_right_and_counters_tell_the_mode()
{
    // The counters are compared with what every single call has to add. Where reading in place is
    // forced, it also serves small calls of registered and other memory.
    for (seed, algorithm) in [("21", ""), ("22", "two_shot_pulled"), ("23", "one_shot_mapped")] {
        let job = Job::start(Path::new(RANK), 3, LIMIT, |_, command| {
            let arguments = ["sequence", seed, "1500", "16777216"];
            command.args(arguments).env("OXCCL_ALGORITHM", algorithm);
        });
        for (rank, ended) in job.wait().iter().enumerate() {
            assert_eq!(ended.status, Some(0), "{algorithm} {rank}: {}", ended.output);
            assert!(
                ended.output.contains("mapped true pulled true"),
                "{algorithm}: {}",
                ended.output
            );
        }
    }
}

#[test]
fn counters_just_below_their_wrap_around() {
    processes(3, ["2", "10000", "8388608"], |_, command| {
        command.env("OXCCL_COUNTER_START", "0xfffffffffffff000");
    });
}

#[test]
fn more_ranks_than_processors_each_pinned_to_one() {
    use std::os::unix::process::CommandExt;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processes(5.max(processors as u32 + 1), ["3", "10000", "8388608"], |rank, command| {
        // SAFETY: the closure makes one system call, which is safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let mut set = rustix::thread::CpuSet::new();
                set.set(rank as usize % processors);
                rustix::thread::sched_setaffinity(None, &set)?;
                Ok(())
            });
        }
    });
}

#[test]
fn every_rank_a_host_of_its_own() {
    processes(3, ["8", "1500", "8388608"], |rank, command| {
        command.env("NCCL_HOSTID", rank.to_string()).env("NCCL_SOCKET_IFNAME", "lo");
    });
}

#[test]
fn several_connections_between_hosts_carry_messages_in_turn() {
    processes(3, ["12", "1000", "2097152"], |rank, command| {
        command.env("NCCL_HOSTID", rank.to_string()).env("NCCL_SOCKET_IFNAME", "lo");
        // The least number holds.
        command
            .env("NCCL_SOCKET_NTHREADS", "2")
            .env("NCCL_NSOCKS_PERTHREAD", (3 - rank).to_string());
    });
}

#[test]
fn every_algorithm_when_forced() {
    for algorithm in [
        "one_shot",
        "one_shot_mapped",
        "two_shot",
        "two_shot_mapped",
        "two_shot_pulled",
        "one_shot_edges",
        "two_shot_edges",
        "ring",
        "tree",
        "halving",
        "bruck",
        "pairwise",
        "push",
    ] {
        processes(5, ["4", "600", "262144"], |_, command| {
            command.env("OXCCL_ALGORITHM", algorithm);
        });
    }
}

#[test]
fn every_algorithm_between_two_hosts_when_forced() {
    for algorithm in [
        "rails_one_shot",
        "rails_whole",
        "rails_two_shot",
        "rails_ring",
        "rails_tree",
        "rails_halving",
        "rails_bruck",
    ] {
        processes(4, ["9", "300", "262144"], |_, command| {
            command.env("OXCCL_ALGORITHM", algorithm).env("OXCCL_RANKS_PER_NODE", "2");
        });
    }
}

#[test]
fn hosts_with_unequal_numbers_of_ranks() {
    processes(5, ["10", "1500", "1048576"], |_, command| {
        command.env("OXCCL_RANKS_PER_NODE", "3");
    });
}

#[test]
fn four_hosts_with_networks_of_their_own() {
    apart("four_hosts_with_networks_of_their_own", 4, |network| {
        let job = Job::start(Path::new(RANK), 8, Duration::from_secs(120), |rank, command| {
            network.enter(command, rank / 2).args(["sequence", "11", "300", "262144"]);
            command.env("NCCL_COMM_ID", format!("{}:4000", network.address(0)));
        });
        job.expect_success();
    });
}

#[test]
fn a_buffer_of_more_than_four_gib() {
    let players = players(2);
    let count = (1usize << 32) + 12_345;
    let spec = Spec::new(Collective::Broadcast, 2, 1);
    let mut buffers: Vec<Vec<u8>> = (0..2).map(|_| vec![0u8; count]).collect();
    let marks = [0, 1, count / 2, (1 << 31) + 7, (1 << 32) - 1, 1 << 32, count - 1];
    for (i, at) in marks.into_iter().enumerate() {
        buffers[1][at] = i as u8 + 1;
    }
    for (player, buffer) in players.iter().zip(&mut buffers) {
        let (input, output) = (buffer.as_ptr(), buffer.as_mut_ptr());
        let (dtype, op) = (DataType::Uint8, ReduceOp::Sum);
        let call = Call { spec, input, output, count: count as u64, dtype, op, scale: None };
        group::collective(&player.comm, &call, &player.stream).expect("it launches");
    }
    players.iter().for_each(|p| assert!(p.stream.synchronize(None).expect("it works")));
    for (i, at) in marks.into_iter().enumerate() {
        assert_eq!(buffers[0][at], i as u8 + 1, "byte {at}");
    }
    assert_eq!(buffers[0].iter().filter(|&&b| b != 0).count(), marks.len());
}

#[test]
fn by_groups_64_ranks_in_one_thread() {
    let players = players(64);
    play(&players, Shape { seed: 5, operations: 10_000, max_bytes: 64 << 10 }).expect("it works");
    players.iter().for_each(|p| p.comm.destroy().expect("all is well"));
}

#[test]
fn one_rank_alone() {
    let players = players(1);
    play(&players, Shape { seed: 6, operations: 1000, max_bytes: 64 << 10 }).expect("it works");
}

#[test]
fn operations_on_several_streams_keep_the_order_of_their_calls() {
    let players = players(2);
    let count = 1usize << 18;
    let spec = Spec::new(Collective::AllReduce, 2, 0);
    std::thread::scope(|scope| {
        for player in &players {
            scope.spawn(move || {
                let second = Stream::new();
                let (dtype, op) = (DataType::Uint32, ReduceOp::Sum);
                let (x, mut y, mut z) = (vec![3u32; count], vec![0u32; count], vec![0u32; count]);
                for round in 0..200 {
                    y.fill(0);
                    z.fill(0);
                    // The second reads what the first writes, and only the second is waited for.
                    let first = Call {
                        spec,
                        input: x.as_ptr().cast(),
                        output: y.as_mut_ptr().cast(),
                        count: count as u64,
                        dtype,
                        op,
                        scale: None,
                    };
                    let next =
                        Call { input: y.as_ptr().cast(), output: z.as_mut_ptr().cast(), ..first };
                    group::collective(&player.comm, &first, &player.stream).expect("it launches");
                    group::collective(&player.comm, &next, &second).expect("it launches");
                    assert!(second.synchronize(None).expect("it works"));
                    assert!(z.iter().all(|&v| v == 12), "round {round}");
                }
                assert!(player.stream.synchronize(None).expect("it works"));
            });
        }
    });
}

#[test]
fn a_thread_per_rank() {
    let players = players(4);
    let shape = Shape { seed: 7, operations: 2000, max_bytes: 256 << 10 };
    std::thread::scope(|scope| {
        for player in &players {
            let own = Player { comm: player.comm.clone(), stream: player.stream.clone() };
            scope.spawn(move || play(&[own], shape).expect("it works"));
        }
    });
}
