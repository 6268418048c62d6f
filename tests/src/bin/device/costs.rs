//! What a communicator and its calls cost: `oxccl-device-tests --costs` prints times and memory,
//! and compares them with nothing.

use crate::on_demand;
use crate::rank::{Call, Memory, Outcome, Rank, ok};
use crate::windows::{Window, wait};
use oxccl::nccl::types::ncclUniqueId;
use oxccl_plan::{Collective, DataType, ReduceOp};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ROUNDS: usize = 6;

fn sum(bytes: usize) -> Call {
    let (collective, dtype, op) = (Collective::AllReduce, DataType::Float32, ReduceOp::Sum);
    Call { collective, count: bytes / 4, dtype, op, root: 0 }
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Calls that are timed together: fewer than a stream takes before it makes the caller wait.
const CALLS: u32 = 50;

/// Microseconds of the caller's thread that a call takes, and until it is done, by bytes.
fn calls(rank: &Rank, data: &Memory) -> Outcome {
    for bytes in [8, 256 << 10, 4 << 20, 32 << 20] {
        let [mut thread_us, mut done_us] = [0.0; 2];
        // What comes with the first calls is not counted.
        for _ in 0..3 {
            rank.meet(data.at)?;
            let start = Instant::now();
            for _ in 0..CALLS {
                ok(rank.call(sum(bytes), data.at, data.at))?;
            }
            thread_us = ms(start) * 1e3 / f64::from(CALLS);
            rank.synchronize()?;
            done_us = ms(start) * 1e3 / f64::from(CALLS);
        }
        if rank.rank == 0 {
            println!(
                "all-reduce of {bytes} bytes: {thread_us:.1} us of the thread, {done_us:.1} us in all"
            );
        }
    }
    Ok(())
}

/// Microseconds of a put to the next rank; every rank does so at once.
fn puts(rank: &Rank, data: &Memory) -> Outcome {
    let bytes = 32 << 20;
    let window = Window::new(rank, data.at, 2 * bytes)?;
    let (next, before) = rank.neighbours();
    let mut done_us = 0.0;
    for _ in 0..3 {
        rank.meet(data.at)?;
        let start = Instant::now();
        for _ in 0..CALLS {
            window.put((data.at, bytes), (next, bytes), (0, 0))?;
            wait(rank, &BTreeMap::from([((before, (0, 0)), 1)]))?;
        }
        rank.synchronize()?;
        done_us = ms(start) * 1e3 / f64::from(CALLS);
    }
    if rank.rank == 0 {
        println!("put of {bytes} bytes: {done_us:.1} us, {} by engines", rank.by_engines()?);
    }
    rank.meet(data.at)?;
    window.end()
}

/// Makes communicators of a rank per thread, one after the other.
pub(crate) fn print(nranks: i32) -> Outcome {
    let ids = (0..ROUNDS).map(|_| crate::rank::unique_id()).collect::<Outcome<Vec<_>>>()?;
    let met = Barrier::new(nranks as usize);
    std::thread::scope(|scope| {
        for rank in 0..nranks {
            let (ids, met) = (&ids, &met);
            scope.spawn(move || {
                // The others would wait for it.
                if let Err(text) = of_rank(rank, nranks, ids, met) {
                    eprintln!("rank {rank}: {text}");
                    std::process::exit(1);
                }
            });
        }
    });
    Ok(())
}

fn of_rank(rank: i32, nranks: i32, ids: &[ncclUniqueId], met: &Barrier) -> Outcome {
    crate::rank::choose(rank)?;
    let data = Memory::new(64 << 20)?;
    for (round, id) in ids.iter().enumerate() {
        met.wait();
        let start = Instant::now();
        let own = Rank::join(*id, nranks, rank)?;
        let made_ms = ms(start);
        let at_first = on_demand::bytes(&own)?;
        let timed = |bytes| {
            met.wait();
            let start = Instant::now();
            ok(own.call(sum(bytes), data.at, data.at))?;
            own.synchronize()?;
            Ok::<_, String>(ms(start))
        };
        let (first_ms, second_ms) = (timed(1024)?, timed(1024)?);
        timed(32 << 20)?;
        let end = Instant::now() + Duration::from_secs(5);
        while on_demand::bytes(&own)? == at_first && Instant::now() < end {
            std::thread::yield_now();
        }
        let at_last = on_demand::bytes(&own)?;
        if round + 1 == ROUNDS {
            calls(&own, &data)?;
            puts(&own, &data)?;
        }
        met.wait();
        let start = Instant::now();
        own.leave()?;
        if rank == 0 {
            println!(
                "communicator {round}: made in {made_ms:.2} ms, first operation {first_ms:.3} ms, \
                 second {second_ms:.3} ms, {at_first} bytes, {at_last} after a large operation, \
                 destroyed in {:.2} ms",
                ms(start)
            );
        }
    }
    Ok(())
}
