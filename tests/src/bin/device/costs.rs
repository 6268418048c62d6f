//! What a communicator costs: `oxccl-device-tests --costs` prints times and memory, and compares them
//! with nothing.

use crate::rank::{Call, Memory, Outcome, Rank, ok};
use oxccl::nccl::lifetime::ncclCommMemStats;
use oxccl::nccl::types::ncclCommMemStat_t::ncclStatGpuMemTotal;
use oxccl_plan::{Collective, DataType, ReduceOp};
use std::mem::MaybeUninit;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ROUNDS: usize = 6;

fn sum(bytes: usize) -> Call {
    let (collective, dtype, op) = (Collective::AllReduce, DataType::Float32, ReduceOp::Sum);
    Call { collective, count: bytes / 4, dtype, op, root: 0 }
}

fn memory(rank: &Rank) -> Outcome<u64> {
    let mut bytes = 0;
    // SAFETY: a place for the number.
    ok(unsafe { ncclCommMemStats(rank.comm, MaybeUninit::new(ncclStatGpuMemTotal), &mut bytes) })?;
    Ok(bytes)
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Makes communicators of a rank per thread, one after the other.
pub(crate) fn print(nranks: i32) -> Outcome {
    let ids = (0..ROUNDS).map(|_| crate::rank::unique_id()).collect::<Outcome<Vec<_>>>()?;
    let met = Barrier::new(nranks as usize);
    std::thread::scope(|scope| {
        let each = |rank: i32| {
            let (ids, met) = (&ids, &met);
            scope.spawn(move || -> Outcome {
                crate::rank::choose(rank)?;
                let data = Memory::new(64 << 20)?;
                for (round, id) in ids.iter().enumerate() {
                    met.wait();
                    let start = Instant::now();
                    let own = Rank::join(*id, nranks, rank)?;
                    let made_ms = ms(start);
                    let at_first = memory(&own)?;
                    met.wait();
                    let start = Instant::now();
                    ok(own.call(sum(1024), data.at, data.at))?;
                    own.synchronize()?;
                    let first_ms = ms(start);
                    met.wait();
                    let start = Instant::now();
                    ok(own.call(sum(1024), data.at, data.at))?;
                    own.synchronize()?;
                    let second_ms = ms(start);
                    ok(own.call(sum(32 << 20), data.at, data.at))?;
                    own.synchronize()?;
                    let end = Instant::now() + Duration::from_secs(5);
                    while memory(&own)? == at_first && Instant::now() < end {
                        std::thread::yield_now();
                    }
                    let at_last = memory(&own)?;
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
            })
        };
        let threads: Vec<_> = (0..nranks).map(each).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or(Err("a panic".to_owned())))
    })
}
