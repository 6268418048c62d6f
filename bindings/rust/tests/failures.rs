//! Bad calls, failures, panics and ends: errors tell what is wrong, and nobody waits for ever.

extern crate oxccl_rs as oxccl;

mod common;

use common::{on_ranks, text};
use oxccl::{
    Buffer, Code, Comm, Element, Error, Event, Id, Parts, ReduceOp, Result, Shrink, Stream, group,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::time::Duration;

const SUM: ReduceOp = ReduceOp::Sum;

/// A communicator of this rank alone.
fn alone() -> Comm {
    Comm::from_rank(0, 1, Id::new().expect("an id")).expect("a communicator")
}

/// The message of a panic.
fn panic_of<R>(f: impl FnOnce() -> R) -> &'static str {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("a panic");
    panic.downcast_ref::<&str>().expect("a literal message")
}

#[test]
fn a_communicator_prints_as_its_rank_and_size() {
    assert_eq!(format!("{:?}", alone()), "Comm, rank 0 of 1");
}

#[test]
fn lengths_are_checked_before_the_call() {
    let wrong = |comm: Comm| -> Result<()> {
        let (one, mut two, mut three) = ([1], [0; 2], [0; 3]);
        let expected = |argument: &str, got: usize, expected: &str| {
            format!(": argument {argument} has {got} elements; expected {expected}")
        };
        let output = expected("output", 3, "1");
        assert_eq!(text(comm.all_reduce(&one, &mut three, SUM)), format!("all_reduce{output}"));
        let output = expected("output", 3, "2");
        assert_eq!(text(comm.all_gather(&one, &mut three)), format!("all_gather{output}"));
        let input = expected("input", 3, "4");
        let error = comm.reduce_scatter(&three, &mut two, SUM);
        assert_eq!(text(error), format!("reduce_scatter{input}"));
        let multiple = expected("data", 3, "a multiple of 2, the number of ranks");
        let error = comm.all_gather_in_place(&mut three);
        assert_eq!(text(error), format!("all_gather_in_place{multiple}"));
        let error = comm.all_to_all_in_place(&mut three);
        assert_eq!(text(error), format!("all_to_all_in_place{multiple}"));
        let error = comm.all_to_all(&two, &mut three);
        assert_eq!(text(error), format!("all_to_all{}", expected("output", 3, "2")));
        let root = comm.rank();
        let error = comm.gather(&one, Some(&mut three), root);
        assert_eq!(text(error), format!("gather{}", expected("output", 3, "2")));
        let missing = "gather: argument output is None; expected a buffer at the root";
        assert_eq!(text(comm.gather(&one, None, root)), missing);
        let error = comm.scatter(Some(&three[..]), &mut two, root);
        assert_eq!(text(error), format!("scatter{}", expected("input", 3, "4")));
        let error = comm.reduce(&one, Some(&mut two), SUM, root);
        assert_eq!(text(error), format!("reduce{}", expected("output", 2, "1")));
        // Nothing was begun.
        comm.all_reduce_in_place(&mut two, SUM)
    };
    assert_eq!(on_ranks(2, wrong), [Ok(()), Ok(())]);
}

#[test]
fn parts_have_to_lie_within_the_buffer_and_apart() {
    let wrong = |comm: Comm| {
        let (one, mut three) = ([1], [0; 3]);
        let mut gather = |counts: &[usize], displs: &[usize]| {
            text(comm.all_gather_v(&one, &mut three, Parts { counts, displs }))
        };
        let short = "all_gather_v: argument counts has 1 elements; expected 2";
        assert_eq!(gather(&[1], &[0, 1]), short);
        let behind = "all_gather_v: argument output has 3 elements; \
                      expected at least 4, the end of the part of rank 1";
        assert_eq!(gather(&[1, 1], &[0, 3]), behind);
        let huge = gather(&[1, usize::MAX], &[0, 3]);
        assert!(huge.contains("has 3 elements; expected at least"), "{huge}");
        let overlap = gather(&[1, 1], &[2, 2]);
        assert!(overlap.contains("such that the data of ranks 0 and 1 overlap"), "{overlap}");
        let counts = comm.reduce_scatter_v(&[1, 2, 3], &mut [0], &[1, 1], SUM);
        let text = "reduce_scatter_v: argument input has 3 elements; expected 2";
        assert_eq!(counts.map_err(|error| error.to_string()), Err(text.to_owned()));
    };
    on_ranks(2, wrong);
}

#[test]
fn wrong_ranks_are_errors_and_no_panics() {
    let comm = alone();
    for peer in [1, 1 << 40, usize::MAX] {
        let error = comm.broadcast(&mut [1], peer).expect_err("no such root");
        assert_eq!((error.code(), error.peer()), (Code::InvalidArgument, None));
        assert!(text(comm.send(&[1], peer)).contains("argument peer is"));
        assert!(text(comm.recv(&mut [1u8], peer)).contains("argument peer is"));
        assert!(text(comm.gather(&[1], None, peer)).contains("argument root is"));
        assert!(text(comm.shrink(&[peer], Shrink::Idle)).contains("ncclCommShrink"));
        assert!(text(Comm::from_rank(peer, 1, Id::new().unwrap())).contains("argument rank is"));
    }
    for size in [0, 1 << 20, usize::MAX] {
        assert!(text(Comm::from_rank(0, size, Id::new().unwrap())).contains("argument nranks is"));
        assert!(text(Comm::all_in_process(size)).contains("argument ndev is"));
    }
    let strange = Id::from_bytes([7; 128]);
    assert!(text(Comm::from_rank(0, 1, strange)).contains("argument commId is"));
    assert_eq!(format!("{strange:?}"), "Id(secret)");
    assert!(Buffer::<f64>::new(usize::MAX).is_err());
    assert!(Buffer::<f64>::new(1 << 55).is_err());
}

#[test]
fn calls_that_differ_are_errors_that_name_the_other_rank() {
    let differ = |comm: Comm| {
        let (rank, mut data) = (comm.rank(), vec![1; 1000]);
        comm.all_reduce_in_place(&mut data[..500 + 500 * rank], SUM).expect_err("they differ")
    };
    for (rank, error) in on_ranks(2, differ).iter().enumerate() {
        // Either of the two may be wrong.
        assert_eq!((error.rank(), error.peer()), (Some(rank), None), "{error}");
        assert!(error.to_string().contains(&format!("rank {}", 1 - rank)), "{error}");
        assert_eq!(error.code(), Code::InvalidUsage, "{error}");
    }
}

#[test]
fn a_limit_of_time_names_the_rank_that_was_waited_for() {
    let (waited, ended) = (Barrier::new(2), Barrier::new(2));
    let wait = |comm: Comm| -> Option<Error> {
        if comm.rank() == 1 {
            waited.wait();
            ended.wait();
            return None;
        }
        comm.set_timeout(Some(Duration::from_millis(50))).expect("a limit");
        let error = comm.recv(&mut [0u8; 4], 1).expect_err("nobody sends");
        assert_eq!(comm.async_error().map(|e| e.code()), Some(error.code()));
        waited.wait();
        ended.wait();
        Some(error)
    };
    let error = on_ranks(2, wait).swap_remove(0).expect("an error");
    assert_eq!((error.code(), error.peer()), (Code::Remote, Some(1)), "{error}");
}

/// Some error.
fn alone_error() -> Error {
    alone().broadcast(&mut [1], 1).expect_err("no such root")
}

#[test]
fn an_abort_ends_the_operations_of_other_threads() {
    let abort = |comm: Comm| {
        if comm.rank() == 1 {
            return comm.recv(&mut [0u8], 0).expect_err("rank 0 aborts").code();
        }
        let mut x = [0u8; 100];
        let error = std::thread::scope(|threads| {
            let waiting = threads.spawn(|| comm.recv(&mut x, 1));
            comm.abort().expect("the peer answers");
            waiting.join().expect("no panic").expect_err("it is aborted")
        });
        assert_eq!(comm.abort(), Ok(()), "once more");
        assert!(comm.async_error().is_some(), "{error}");
        Code::Remote
    };
    assert_eq!(on_ranks(2, abort), [Code::Remote; 2]);
}

#[test]
fn survivors_go_on_without_a_rank() {
    let survive = |comm: Comm| -> Result<i32> {
        if comm.rank() == 2 {
            return comm.abort().map(|()| 2);
        }
        let error = comm.all_reduce_in_place(&mut [1], SUM).expect_err("rank 2 has gone");
        assert_eq!((error.code(), error.peer()), (Code::Remote, Some(2)), "{error}");
        let rest = comm.shrink(&[2], Shrink::Abort)?;
        let mut count = [1];
        rest.all_reduce_in_place(&mut count, SUM)?;
        Ok(count[0])
    };
    assert_eq!(on_ranks(3, survive), [Ok(2), Ok(2), Ok(2)]);
}

#[test]
fn children_outlive_their_parent() {
    let family = |comm: Comm| -> Result<(usize, i32)> {
        let color = (comm.rank() < 3).then_some(comm.rank() % 2);
        let Some(child) = comm.split(color, -(comm.rank() as i32))? else { return Ok((9, 0)) };
        drop(comm);
        let mut sum = [1];
        child.all_reduce_in_place(&mut sum, SUM)?;
        Ok((child.rank(), sum[0]))
    };
    assert_eq!(on_ranks(4, family), [Ok((1, 2)), Ok((0, 1)), Ok((0, 2)), Ok((9, 0))]);
}

#[test]
fn a_communicator_grows() -> Result<()> {
    let old = alone();
    let id = old.growth_id()?;
    let new = std::thread::spawn(move || -> Result<usize> {
        let comm = Comm::join(1, 2, id)?;
        comm.broadcast(&mut [0u8], 0)?;
        Ok(comm.rank())
    });
    let comm = old.grow(2, Some(id))?;
    comm.broadcast(&mut [1u8], 0)?;
    assert_eq!((comm.size(), new.join().expect("no panic")), (2, Ok(1)));
    Ok(())
}

#[test]
fn a_revoked_communicator_can_only_be_split_and_shrunk() {
    let revoke = |comm: Comm| -> Result<usize> {
        comm.revoke()?;
        assert!(text(comm.all_reduce_in_place(&mut [1], SUM)).contains("revoked"));
        comm.split(Some(0), 0).map(|child| child.map_or(0, |child| child.size()))
    };
    assert_eq!(on_ranks(2, revoke), [Ok(2), Ok(2)]);
}

#[test]
fn a_suspended_communicator_takes_no_operations() {
    let comm = alone();
    assert_eq!((comm.suspend(), oxccl::set_tag(7)), (Ok(()), Ok(())));
    assert!(text(comm.all_reduce_in_place(&mut [1], SUM)).contains("suspended"));
    assert_eq!(comm.resume(), Ok(()));
    assert_eq!(comm.all_reduce_in_place(&mut [1], SUM), Ok(()));
}

#[test]
fn nothing_that_waits_is_possible_within_a_group() {
    let (comm, mut stream, mut x) = (alone(), Stream::new().unwrap(), [1]);
    let id = Id::new().unwrap();
    let refused = group(|g| {
        let errors = [
            text(comm.all_reduce_in_place(&mut [1], SUM)),
            text(group(|_| Ok(()))),
            text(g.group(|| Ok(()))),
            text(stream.scope(|_| Ok(()))),
            text(Comm::from_rank(0, 1, id)),
            text(Comm::from_env()),
            text(Comm::all_in_process(2)),
            text(comm.split(Some(0), 0)),
            text(g.capture(|| Ok(()))),
        ];
        comm.all_reduce_in_place_on(g, &mut x, SUM)?;
        Ok(errors)
    });
    for error in refused.expect("the group itself works") {
        assert!(error.contains("not possible within a group"), "{error}");
    }
    assert!(text(stream.scope(|s| s.capture(|| Err(alone_error())).map(drop))).contains("root"));
    assert_eq!(stream.scope(|s| comm.all_reduce_in_place_on(s, &mut x, SUM)), Ok(()));
}

#[test]
fn a_group_that_fails_or_panics_launches_nothing() {
    let fails = |comm: Comm| -> Result<[i32; 2]> {
        let mut x = [comm.rank() as i32 + 1; 2];
        let wrong = group(|g| {
            comm.all_reduce_in_place_on(g, &mut x, SUM)?;
            comm.broadcast_on(g, &mut [0; 0], 7)
        });
        assert!(text(wrong).contains("argument root is 7"));
        let mut stream = Stream::new()?;
        // The panic leaves the group, and is caught within the scope.
        stream.scope(|s| {
            let message = panic_of(|| {
                s.group(|| -> Result<()> {
                    comm.all_reduce_in_place_on(s, &mut x, SUM)?;
                    panic!("in a group")
                })
            });
            assert_eq!(message, "in a group");
            Ok(())
        })?;
        comm.all_reduce_in_place(&mut x, ReduceOp::Max)?;
        Ok(x)
    };
    assert_eq!(on_ranks(2, fails), [Ok([2, 2]), Ok([2, 2])]);
}

#[test]
fn a_scope_waits_after_an_error() {
    let fails = |comm: Comm| {
        let mut x = vec![1; 100_000];
        let outcome = Stream::new()?.scope(|s| {
            comm.all_reduce_in_place_on(s, &mut x, SUM)?;
            comm.broadcast_on(s, &mut [0; 0], 7)
        });
        assert!(text(outcome).contains("argument root is 7"));
        Ok(x == vec![2; 100_000])
    };
    assert_eq!(on_ranks(2, fails), [Ok::<_, Error>(true), Ok(true)]);
}

#[test]
fn a_scope_that_panics_waits_and_tells_the_other_ranks() {
    let panics = |comm: Comm| {
        let mut x = vec![1u8; 1000];
        if comm.rank() == 1 {
            let error = comm.all_reduce_in_place(&mut x, SUM).expect_err("rank 0 panics");
            return (error.code(), error.peer());
        }
        let message = panic_of(|| {
            Stream::new().expect("a stream").scope(|s| {
                comm.recv_on(s, &mut x, 1)?;
                if comm.size() == 2 {
                    panic!("in a scope");
                }
                Ok(())
            })
        });
        assert_eq!(message, "in a scope");
        // The memory is this rank's own again.
        x.fill(7);
        (Code::Remote, Some(0))
    };
    assert_eq!(on_ranks(2, panics), [(Code::Remote, Some(0)); 2]);
}

#[test]
fn a_rank_that_panics_tells_the_other_ranks() {
    let panics = |comm: Comm| {
        if comm.rank() == 0 {
            let panics = move || {
                let _comm = comm;
                panic!("a rank")
            };
            assert_eq!(panic_of(|| -> () { panics() }), "a rank");
            return Code::Remote;
        }
        comm.recv(&mut [0u8], 0).expect_err("rank 0 is gone").code()
    };
    assert_eq!(on_ranks(2, panics), [Code::Remote; 2]);
}

#[test]
fn things_may_be_dropped_in_any_order() {
    let drops = |comm: Comm| -> Result<()> {
        let (mut buffer, mut stream) = (Buffer::<i64>::new(1000)?, Stream::new()?);
        stream.scope(|s| comm.all_reduce_in_place_on(s, &mut buffer, SUM))?;
        let child = comm.split(Some(0), 0)?;
        match comm.rank() {
            0 => drop((comm, stream, buffer, child)),
            1 => drop((buffer, child, stream, comm)),
            _ => drop((stream, buffer, comm, child)),
        }
        Ok(())
    };
    assert_eq!(on_ranks(3, drops), [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn everything_may_go_to_other_threads() {
    fn shared<T: Send + Sync>() {}
    fn exchanged<T: Element>() {
        shared::<Buffer<T>>();
    }
    shared::<(Comm, Id, Stream, Event, Error)>();
    exchanged::<f32>();
    // Calls of several threads have no order here, so all are alike.
    let calls = |comm: Comm| {
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..100 {
                        let mut x = [1; 100];
                        comm.all_reduce_in_place(&mut x, SUM).expect("it works");
                        assert_eq!(x, [2; 100]);
                    }
                });
            }
        });
        comm.close()
    };
    assert_eq!(on_ranks(2, calls), [Ok(()), Ok(())]);
}

#[test]
fn a_forked_child_is_refused() {
    let comm = alone();
    let mut x = [1u8];
    comm.all_reduce_in_place(&mut x, SUM).expect("it works");
    // SAFETY: the child calls nothing but this library, which refuses it, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = comm.all_reduce_in_place(&mut x, SUM).is_err();
        // SAFETY: it ends the child without handlers.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: a place for the status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}
