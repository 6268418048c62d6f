//! Options of one call, and the encryption of connections.

extern crate oxccl_rs as oxccl;

mod common;

use common::{on_ranks, text};
use oxccl::ffi::nccl::types::ncclResult_t;
use oxccl::ffi::oxccl::event::{oxcclEventCreate, oxcclEventDestroy, oxcclEventQuery};
use oxccl::{
    Buffer, CallOptions, Code, Comm, CtaPolicy, Id, ReduceOp, Result, Stream, group, set_encryption,
};
use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::Duration;

const SUM: ReduceOp = ReduceOp::Sum;

/// Returns options that serve every collective, one after the other.
fn all() -> [CallOptions; 4] {
    let new = CallOptions::new;
    [
        new().min_ctas(1).max_ctas(4).cta_policy(CtaPolicy::Efficiency).tag(1 << 40),
        new().algorithms("^ring").or_automatic().nvls_ctas(4).cga_cluster_size(2),
        new().plan("one_shot").deterministic(true),
        new().algorithms("one_shot,ring").deadline(Duration::from_secs(60)),
    ]
}

#[test]
fn calls_with_options_do_what_they_do_without() {
    let work = |comm: Comm| -> Result<Vec<i32>> {
        let mut sums = Vec::new();
        for options in all() {
            let (mine, mut sum) = ([comm.rank() as i32 + 1], [0]);
            comm.with(&options).all_reduce(&mine, &mut sum, SUM)?;
            sums.extend(sum);
            let (mut x, mut y) = (mine, mine);
            Stream::new()?.scope(|s| {
                comm.with(&options).all_reduce_in_place_on(s, &mut x, SUM)?;
                // The options are read before the call returns.
                comm.with(&CallOptions::new().tag(7)).broadcast_on(s, &mut y, 1)
            })?;
            sums.extend(x.into_iter().chain(y));
            group(|g| comm.with(&options).all_reduce_in_place_on(g, &mut x, ReduceOp::Max))?;
            sums.extend(x);
        }
        Ok(sums)
    };
    let expected = [6, 6, 2, 6].repeat(all().len());
    assert_eq!(on_ranks(3, work), vec![Ok(expected); 3]);
}

#[test]
fn the_event_is_recorded_behind_its_call() {
    let called = Barrier::new(2);
    let done = |event| {
        // SAFETY: any handle may be passed.
        match unsafe { oxcclEventQuery(event) } {
            ncclResult_t::ncclSuccess => true,
            ncclResult_t::ncclInProgress => false,
            code => panic!("{code:?}"),
        }
    };
    let states = |comm: Comm| -> Result<[bool; 3]> {
        let mut event = null_mut();
        // SAFETY: a place for the handle.
        assert_eq!(unsafe { oxcclEventCreate(&mut event) }, ncclResult_t::ncclSuccess);
        // SAFETY: it is no event of CUDA.
        let with_event = unsafe { CallOptions::new().launch_completion_event(event) };
        let (before, mut during, mut x) = (done(event), false, [1]);
        Stream::new()?.scope(|s| {
            if comm.rank() == 1 {
                called.wait();
            }
            comm.with(&with_event).all_reduce_in_place_on(s, &mut x, SUM)?;
            if comm.rank() == 0 {
                during = done(event);
                // Rank 1 calls now.
                called.wait();
            }
            Ok(())
        })?;
        let after = done(event);
        assert_eq!(x, [2]);
        // SAFETY: any handle may be passed.
        assert_eq!(unsafe { oxcclEventDestroy(event) }, ncclResult_t::ncclSuccess);
        Ok([before, during, after])
    };
    assert_eq!(on_ranks(2, states), [Ok([true, false, true]), Ok([true, false, true])]);
}

#[test]
fn a_plan_by_name_is_what_runs() {
    const COUNT: usize = 1 << 18;
    let in_place = |comm: Comm| -> Result<[u64; 2]> {
        let mut data = Buffer::<f32>::new(COUNT)?;
        // This plan copies through a stage whatever memory it is given.
        comm.with(&CallOptions::new().plan("ring")).all_reduce_in_place(&mut data, SUM)?;
        let ring = comm.in_place()?;
        comm.with(&CallOptions::new().plan("two_shot_mapped"))
            .all_reduce_in_place(&mut data, SUM)?;
        Ok([ring, comm.in_place()?])
    };
    assert_eq!(on_ranks(2, in_place), [Ok([0, 1]), Ok([0, 1])]);
}

#[test]
fn wrong_options_are_named_and_nothing_is_begun() {
    let comm = Comm::from_rank(0, 1, Id::new().expect("an id")).expect("a communicator");
    let error = |options: CallOptions| text(comm.with(&options).broadcast(&mut [1], 0));
    let new = CallOptions::new;
    for (options, part) in [
        (new().plan("no_such"), "argument oxcclOptionPlan is \"no_such\""),
        (new().algorithms("no_such"), "argument algSelection is \"no_such\""),
        (new().max_ctas(65), "argument maxCTAs is 65"),
        (new().min_ctas(3).max_ctas(2), "argument minCTAs is 3"),
        (new().nvls_ctas(0), "argument nvlsCTAs is 0"),
        (new().tag(1 << 63), "argument userProfilerTag is 0x8000000000000000"),
        (new().deadline(Duration::ZERO), "argument oxcclOptionDeadlineMs is 0"),
        (new().plan("ring").algorithms("tree"), "algSelection or this option, not both"),
        (new().plan("a\0b"), "CallOptions: argument plan is \"a\\0b\"; expected a text without"),
    ] {
        let text = error(options.clone());
        assert!(text.contains(part), "{options:?}: {text}");
    }
    assert_eq!(comm.with(&new()).broadcast(&mut [1], 0), Ok(()));
}

#[test]
fn calls_with_differing_options_differ() {
    let differ = |comm: Comm| {
        let name = if comm.rank() == 0 { "ring" } else { "one_shot" };
        text(comm.with(&CallOptions::new().plan(name)).all_reduce_in_place(&mut [1], SUM))
    };
    for text in on_ranks(2, differ) {
        assert!(text.contains("ring") && text.contains("one_shot"), "{text}");
    }
}

#[test]
fn a_deadline_ends_a_call_that_waits_for_a_rank() {
    let over = Barrier::new(2);
    let wait = |comm: Comm| {
        let error = (comm.rank() == 0).then(|| {
            let soon = CallOptions::new().deadline(Duration::from_millis(50));
            comm.with(&soon).broadcast(&mut [1], 1).expect_err("nobody answers")
        });
        over.wait();
        error.map(|error| (error.code(), error.peer()))
    };
    assert_eq!(on_ranks(2, wait), [Some((Code::Remote, Some(1))), None]);
}

#[test]
fn ranks_with_one_key_meet_and_a_short_key_is_refused() -> Result<()> {
    let short = text(set_encryption(Some("short")));
    assert!(short.contains("argument psk is a text of 5 bytes"), "{short}");
    assert!(text(set_encryption(Some("a\0b"))).contains("a text without zeros"));
    set_encryption(Some("a key that only these ranks have"))?;
    let sums = on_ranks(2, |comm| {
        let mut x = [1];
        comm.all_reduce_in_place(&mut x, SUM).map(|()| x)
    });
    set_encryption(None)?;
    assert_eq!(sums, [Ok([2]), Ok([2])]);
    Ok(())
}
