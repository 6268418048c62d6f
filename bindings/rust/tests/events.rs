//! Events: between streams, within limits of time, and where they are refused.

extern crate oxccl_rs as oxccl;

mod common;

use common::{on_ranks, random, text};
use oxccl::{CallOptions, Comm, Event, Id, ReduceOp, Result, Stream, group};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const SUM: ReduceOp = ReduceOp::Sum;
/// More than anything takes here.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn a_stream_waits_for_the_event_of_another() {
    const COUNT: usize = 1000;
    let called = Barrier::new(2);
    let data = |rank: usize| -> Vec<u64> { (0..COUNT).map(|i| random(&[rank, i]) >> 8).collect() };
    let run = |comm: Comm| -> Result<()> {
        let beside = comm.split(Some(0), 0)?.expect("a part of it");
        let (begin, end, last) = (Event::new()?, Event::new()?, Event::new()?);
        let (mut x, mut y) = (data(comm.rank()), vec![u64::MAX; 2 * COUNT]);
        let (mut first, mut second) = (Stream::new()?, Stream::new()?);
        assert!(end.query()? && end.synchronize(None)?, "without a record it is complete");
        if comm.rank() == 1 {
            called.wait();
        }
        let mine = data(comm.rank());
        first.scope(|a| {
            a.record(&begin)?;
            comm.all_reduce_in_place_on(a, &mut x, SUM)?;
            a.record(&end)?;
            second.scope(|b| {
                b.wait(&end)?;
                beside.all_gather_on(b, &mine, &mut y)?;
                b.record(&last)?;
                if comm.rank() == 0 {
                    assert!(begin.synchronize(LONG)?);
                    let (start, limit) = (Instant::now(), Duration::from_millis(20));
                    assert!(!end.synchronize(Some(limit))? && start.elapsed() >= limit);
                    assert!(!end.query()? && !last.query()? && last.since(&end).is_err());
                    // Rank 1 calls now.
                    called.wait();
                }
                assert!(last.synchronize(LONG)? && end.query()?);
                Ok(())
            })
        })?;
        assert!(end.since(&begin)? >= Duration::from_millis(20 * (1 - comm.rank() as u64)));
        let (ours, theirs) = (data(0), data(1));
        let sums: Vec<u64> = ours.iter().zip(&theirs).map(|(a, b)| a + b).collect();
        assert_eq!((x, y), (sums, [ours, theirs].concat()));
        last.since(&end).map(drop)
    };
    assert_eq!(on_ranks(2, run), [Ok(()), Ok(())]);
}

#[test]
fn threads_wait_for_the_event_of_a_scope_and_it_may_end_early() -> Result<()> {
    let comm = Comm::from_rank(0, 1, Id::new()?)?;
    let (event, mut stream, mut x) = (Event::new()?, Stream::new()?, [7]);
    stream.scope(|s| {
        comm.all_reduce_in_place_on(s, &mut x, SUM)?;
        s.record(&event)?;
        std::thread::scope(|threads| {
            let waits = || -> Result<()> {
                let (mut other, mut y) = (Stream::new()?, [8]);
                other.scope(|o| {
                    o.wait(&event)?;
                    comm.all_reduce_in_place_on(o, &mut y, SUM)
                })?;
                assert!(event.synchronize(LONG)? && y == [8]);
                Ok(())
            };
            threads.spawn(waits).join().expect("no panic")
        })?;
        // The stream keeps what it waits for.
        let passing = Event::new()?;
        s.record(&passing)?;
        s.wait(&passing)
    })?;
    assert_eq!(x, [7]);
    comm.close()
}

#[test]
fn an_event_is_recorded_behind_its_call() {
    let called = Barrier::new(2);
    let states = |comm: Comm| -> Result<[bool; 3]> {
        let (options, event, mut x) = (CallOptions::new(), Event::new()?, [1]);
        let (before, mut during) = (event.query()?, false);
        Stream::new()?.scope(|s| {
            if comm.rank() == 1 {
                called.wait();
            }
            comm.with(&options).recording(&event).all_reduce_in_place_on(s, &mut x, SUM)?;
            if comm.rank() == 0 {
                during = event.query()?;
                // Rank 1 calls now.
                called.wait();
            }
            assert!(event.synchronize(LONG)?);
            Ok(())
        })?;
        assert_eq!(x, [2]);
        Ok([before, during, event.query()?])
    };
    let states = on_ranks(2, states);
    assert_eq!(states[0], Ok([true, false, true]));
    assert!(matches!(states[1], Ok([true, _, true])));
}

#[test]
fn events_are_refused_within_groups_and_captures() -> Result<()> {
    let comm = Comm::from_rank(0, 1, Id::new()?)?;
    let (event, options, mut stream, mut x) =
        (Event::new()?, CallOptions::new(), Stream::new()?, [3]);
    let with = comm.with(&options).recording(&event);
    stream.scope(|s| {
        s.group(|| {
            for refused in [s.record(&event), s.wait(&event)] {
                assert!(text(refused).contains("is not possible within a group"));
            }
            assert!(text(event.synchronize(None)).contains("within a group"));
            Ok(())
        })?;
        group(|g| {
            assert!(text(g.record(&event)).contains("record is not possible within a group"));
            Ok(())
        })?;
        s.capture(|| {
            let x = s.capture(|| Ok(()));
            assert!(x.is_err(), "a capture within a capture");
            for refused in [s.record(&event), s.wait(&event)] {
                assert!(text(refused).contains("is not possible within a capture"));
            }
            Ok(())
        })?;
        let refused = s.capture(|| with.all_reduce_in_place_on(s, &mut x, SUM));
        assert!(text(refused).contains("a call that records an event is not possible"));
        // After the captures everything is possible.
        s.record(&event)?;
        s.wait(&event)
    })?;
    let early = text(event.since(&Event::new()?));
    assert!(early.contains("oxcclEventElapsedTime"), "{early}");
    comm.close()
}
