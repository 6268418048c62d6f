//! Calls that differ between ranks: every rank is told which, whatever the pair, with no deadline
//! set.

use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::comm::{Communicator, Holder, Options};
use oxccl_runtime::device::Device;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::op::{Call, Transfer};
use oxccl_runtime::{Code, Result, bootstrap, group};
use oxccl_tests::job::Job;
use oxccl_tests::mismatch::{Case, cases, names_both, outcome};
use oxccl_tests::world::communicators;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");

/// Rank 0 makes the first call, the others the second one.
fn differ(nranks: u32, ours: Case, theirs: Case) {
    let comms = communicators(nranks);
    std::thread::scope(|scope| {
        for comm in &comms {
            let case = if comm.rank() == 0 { ours } else { theirs };
            scope.spawn(move || {
                let error = outcome(comm, case);
                assert!(names_both(&error), "{ours:?} and {theirs:?}: {error}");
            });
        }
    });
    comms.iter().for_each(|comm| comm.destroy().expect("it is told"));
}

/// Rank 0 gives or does nothing in its call, and the others wait for nothing of it in theirs: all
/// are done, and nobody can tell that the calls were not meant to come later.
fn somebody_waits(ours: Case, theirs: Case) -> bool {
    let rank_0_only_gives = match ours {
        Case::Collective(_, 0, ..) | Case::Collective(Collective::Gather, .., 1) => true,
        Case::Collective(Collective::Broadcast, .., root) => root == 0,
        Case::Collective(..) | Case::SendToZero(..) => false,
        Case::SendFromZero(count, _) => count < 100_000,
    };
    let others_take_nothing = match theirs {
        Case::SendToZero(..) => true,
        // Of two collectives the descriptors are compared.
        Case::Collective(_, 0, ..) => matches!(ours, Case::SendFromZero(..)),
        Case::Collective(Collective::Broadcast, .., root) => {
            root != 0 && matches!(ours, Case::SendFromZero(..))
        }
        Case::Collective(..) | Case::SendFromZero(..) => false,
    };
    !(rank_0_only_gives && others_take_nothing)
}

/// All wait for messages, and none can tell that no other thread is about to send them.
fn all_receive(ours: Case, theirs: Case) -> bool {
    matches!((ours, theirs), (Case::SendToZero(..), Case::SendFromZero(..)))
}

#[test]
fn every_pair_of_differing_calls_is_reported_on_all_ranks() {
    let mut pairs = Vec::new();
    for (nranks, base) in [(2, 100), (3, 6000), (2, 300_000)] {
        let cases = cases(base);
        for (i, ours) in cases.iter().enumerate() {
            for (j, theirs) in cases.iter().enumerate() {
                // The larger ones in one order only.
                let wanted = i < j || i > j && base < 300_000;
                if wanted && somebody_waits(*ours, *theirs) && !all_receive(*ours, *theirs) {
                    pairs.push((nranks, *ours, *theirs));
                }
            }
        }
    }
    // Some pairs are only told after a second of waiting: many at a time.
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                while let Some((nranks, ours, theirs)) =
                    pairs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    differ(*nranks, *ours, *theirs);
                }
            });
        }
    });
}

/// Makes a collective of so many numbers and waits for it.
fn collective(
    (comm, stream): (&Arc<Communicator>, &Arc<Stream>),
    kind: Collective,
    root: u32,
    count: usize,
) -> Result<()> {
    let (input, mut output) = (vec![1f32; count], vec![0f32; count]);
    let call = Call {
        spec: Spec::new(kind, comm.nranks(), root),
        input: input.as_ptr().cast(),
        output: output.as_mut_ptr().cast(),
        count: count as u64,
        dtype: DataType::Float32,
        op: ReduceOp::Sum,
        scale: None,
    };
    group::collective(comm, &call, stream)?;
    assert!(stream.synchronize(Some(Duration::from_secs(60)))?, "it hangs");
    Ok(())
}

/// Each root gives and takes nothing: the next call in which one waits for the other tells, however
/// many calls follow.
#[test]
fn two_roots_of_a_small_broadcast_are_told_at_the_next_call_that_waits() {
    for (count, after) in [(1, 1), (100, 1), (4000, 1), (4000, 4000), (1, 4000)] {
        let comms = communicators(2);
        std::thread::scope(|scope| {
            for comm in &comms {
                scope.spawn(move || {
                    let on = (comm, &Stream::new());
                    let broadcast = collective(on, Collective::Broadcast, comm.rank(), count);
                    let call = |_| collective(on, Collective::AllReduce, 0, after).err();
                    let told = broadcast.err().or_else(|| (0..20_000).find_map(call));
                    assert!(told.is_some(), "{count} and {after}: nobody noticed");
                    let error = comm.failure().expect("it has failed");
                    let text = error.to_string();
                    let roots = text.contains("root 0") && text.contains("root 1");
                    assert!(names_both(&error) && roots, "{text}");
                });
            }
        });
        comms.iter().for_each(|comm| comm.destroy().expect("it is told"));
    }
}

/// More calls that wait for nobody than are remembered lie between.
#[test]
fn two_roots_of_a_broadcast_long_ago_are_told_at_the_next_call_that_waits() {
    let comms = communicators(2);
    std::thread::scope(|scope| {
        for comm in &comms {
            scope.spawn(move || {
                let on = (comm, &Stream::new());
                let nothing = |_| collective(on, Collective::AllReduce, 0, 0);
                let made = collective(on, Collective::Broadcast, comm.rank(), 1)
                    .and_then(|()| (0..100).try_for_each(nothing))
                    .and_then(|()| collective(on, Collective::AllReduce, 0, 1));
                assert!(made.is_err(), "nobody noticed");
                assert!(names_both(&comm.failure().expect("it has failed")));
            });
        }
    });
    comms.iter().for_each(|comm| comm.destroy().expect("it is told"));
}

#[test]
fn ranks_that_both_pass_an_id_for_a_growth_are_named() {
    let comms = communicators(3);
    let id = bootstrap::new_unique_id().expect("an id");
    std::thread::scope(|scope| {
        for comm in &comms {
            let id = (comm.rank() != 1).then(|| id.clone());
            scope.spawn(move || {
                let grown = Holder::new(Device::Host(0), Options::default());
                let error = grown.make(&comm.grow(4, id)).expect_err("two roots");
                let text = error.to_string();
                assert!(text.contains("ranks 0 and 2 both pass an id"), "{text}");
            });
        }
    });
    comms.iter().for_each(|comm| comm.destroy().expect("it is told"));
}

/// Sends so many bytes to the other one of two ranks, or receives them, and waits for that.
fn message(comm: &Arc<Communicator>, send: bool, bytes: usize) -> Result<()> {
    let (mut buffer, stream) = (vec![7u8; bytes], Stream::new());
    let (peer, data, dtype) = (1 - comm.rank(), buffer.as_mut_ptr(), DataType::Uint8);
    let transfer = Transfer { peer, send, data, bytes, dtype };
    group::transfer(comm, transfer, &stream)?;
    assert!(stream.synchronize(Some(Duration::from_secs(60)))?, "it hangs");
    Ok(())
}

#[test]
fn a_sender_that_is_done_hears_at_its_end_that_the_receive_differs() {
    for finalizes in [false, true] {
        let (comms, sent) = (communicators(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                message(&comms[0], true, 8).expect("it is buffered");
                sent.wait();
                let ended = if finalizes { comms[0].finalize() } else { comms[0].destroy() };
                let error = ended.expect_err("rank 1 expects more");
                assert!(names_both(&error), "{error}");
                if finalizes {
                    comms[0].destroy().expect("it is told");
                }
            });
            scope.spawn(|| {
                sent.wait();
                let error = message(&comms[1], false, 16).expect_err("rank 0 sends less");
                assert!(names_both(&error), "{error}");
                comms[1].destroy().expect("it is told");
            });
        });
    }
}

#[test]
fn an_end_waits_until_what_was_sent_is_received() {
    let (comms, sent, receives) = (communicators(2), Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            message(&comms[0], true, 8).expect("it is buffered");
            sent.wait();
            comms[0].destroy().expect("it is received");
            assert!(receives.load(Ordering::Acquire), "it did not wait");
        });
        scope.spawn(|| {
            sent.wait();
            (0..1000).for_each(|_| std::thread::yield_now());
            receives.store(true, Ordering::Release);
            message(&comms[1], false, 8).expect("it was sent");
            comms[1].destroy().expect("all is well");
        });
    });
}

#[test]
fn an_end_names_the_rank_that_does_not_receive() {
    for leaves in [false, true] {
        let comms = communicators(2);
        comms[0].set_timeout((!leaves).then(|| Duration::from_millis(50)));
        message(&comms[0], true, 8).expect("it is buffered");
        if leaves {
            comms[1].destroy().expect("it has sent nothing");
        }
        let error = comms[0].destroy().expect_err("nobody has received it");
        let expected = if leaves { "before it destroyed" } else { "did not receive within" };
        assert!(error.to_string().contains(expected), "{error}");
        let peer = error.site().map(|site| site.peer);
        assert_eq!((error.code(), peer), (Code::RemoteError, Some(1)), "{error}");
        if !leaves {
            // What was sent is still there.
            message(&comms[1], false, 8).expect("it was sent");
            comms[1].destroy().expect("all is well");
        }
    }
}

#[test]
fn an_end_tells_why_an_operation_ended_early_unless_its_stream_has() {
    for (finalizes, told) in [(false, false), (true, false), (false, true), (true, true)] {
        let (comms, called) = (communicators(3), Barrier::new(3));
        let leaves = |comm: &Arc<Communicator>| {
            let mut data = vec![1f32; 10];
            let (input, output) = (data.as_ptr().cast(), data.as_mut_ptr().cast());
            let spec = Spec::new(Collective::AllReduce, 3, 0);
            let (dtype, op) = (DataType::Float32, ReduceOp::Sum);
            let call = Call { spec, input, output, count: 10, dtype, op, scale: None };
            let stream = Stream::new();
            group::collective(comm, &call, &stream).expect("it is queued");
            called.wait();
            if told {
                stream.synchronize(None).expect_err("rank 0 does not call");
            }
            let ended = if finalizes { comm.finalize() } else { comm.destroy() };
            if told {
                ended.expect("it is told");
            } else {
                let error = ended.expect_err("the operation ended early");
                let peer = error.site().map(|site| site.peer);
                assert_eq!((error.code(), peer), (Code::RemoteError, Some(0)), "{error}");
            }
            if finalizes {
                comm.destroy().expect("it is told");
            }
        };
        std::thread::scope(|scope| {
            let leaves = &leaves;
            comms[1..].iter().for_each(|comm| drop(scope.spawn(move || leaves(comm))));
            called.wait();
            comms[0].destroy().expect("it has called nothing");
        });
    }
}

#[test]
fn an_end_tells_of_calls_that_differ_in_which_no_rank_waited_for_another() {
    let (comms, called) = (communicators(3), Barrier::new(3));
    let call = |comm: &Arc<Communicator>| {
        let (mut data, stream) = (vec![1u8; 512], Stream::new());
        // A root waits for nobody.
        let spec = Spec::new(Collective::Broadcast, 3, comm.rank() % 2);
        let (input, output) = (data.as_ptr().cast(), data.as_mut_ptr().cast());
        let (dtype, op) = (DataType::Uint8, ReduceOp::Sum);
        let call = Call { spec, input, output, count: 512, dtype, op, scale: None };
        group::collective(comm, &call, &stream).expect("it is queued");
        let told = stream.synchronize(None).err();
        called.wait();
        let error = told.or(comm.destroy().err()).expect("the roots differ");
        assert!(names_both(&error), "{error}");
    };
    std::thread::scope(|scope| {
        let call = &call;
        comms.iter().for_each(|comm| drop(scope.spawn(move || call(comm))));
    });
}

#[test]
fn ranks_that_both_end_wait_for_no_receive_of_the_other() {
    let (comms, sent) = (communicators(2), Barrier::new(2));
    let end = |comm: &Arc<Communicator>, peer: u32| {
        message(comm, true, 8).expect("it is buffered");
        sent.wait();
        let error = comm.destroy().expect_err("nobody has received it");
        assert!(error.to_string().contains("before it destroyed"), "{error}");
        assert_eq!(error.site().map(|site| site.peer), Some(peer as i32), "{error}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| end(&comms[0], 1));
        scope.spawn(|| end(&comms[1], 0));
    });
}

/// Both send more than there is room for on the way, and then would receive.
#[test]
fn ranks_that_both_send_first_are_told_to_use_a_group() {
    let comms = communicators(2);
    let end = |comm: &Arc<Communicator>| {
        let error = message(comm, true, 64 << 20).expect_err("they wait for each other");
        let text = error.to_string();
        assert!(text.starts_with("ranks 0 and 1 both send to each other before"), "{text}");
        assert!(text.contains("into one call or group"), "{text}");
    };
    std::thread::scope(|scope| {
        comms.iter().for_each(|comm| drop(scope.spawn(|| end(comm))));
    });
}

fn processes(ours: usize, theirs: usize, hosts: bool) {
    let job = Job::start(Path::new(RANK), 3, Duration::from_secs(100), |rank, command| {
        command.args(["mismatch", "6000", &format!("{ours}"), &format!("{theirs}")]);
        if hosts {
            command.env("NCCL_HOSTID", rank.to_string()).env("NCCL_SOCKET_IFNAME", "lo");
        }
    });
    job.expect_success();
}

#[test]
fn differing_calls_are_reported_between_processes() {
    for (ours, theirs) in
        [(0, 1), (0, 3), (2, 6), (6, 7), (0, 11), (4, 15), (11, 12), (12, 11), (13, 11), (14, 11)]
    {
        processes(ours, theirs, false);
    }
}

#[test]
fn differing_calls_are_reported_between_hosts() {
    // Also where no message of one reaches the other, as with 0 elements.
    for (ours, theirs) in [
        (0, 1),
        (0, 4),
        (0, 5),
        (7, 8),
        (3, 5),
        (0, 11),
        (15, 0),
        (11, 12),
        (12, 11),
        (11, 13),
        (14, 11),
    ] {
        processes(ours, theirs, true);
    }
}
