//! Sums of multiplied inputs.

use crate::conformance::{Buffers, Case, Laid, Manner, play_one};
use crate::rank::{Call, Memory, Outcome, Rank, Replay, ok, on_gpu, one};
use oxccl::nccl::redop::{ncclRedOpCreatePreMulSum, ncclRedOpDestroy};
use oxccl::nccl::types::ncclRedOp_t;
use oxccl::oxccl::types::oxcclCaptureMode_t::oxcclCaptureThreadLocal;
use oxccl_plan::{Collective, DataType, ReduceOp};
use oxccl_tests::number;
use std::ffi::c_void;
use std::mem::MaybeUninit;

const DTYPES: [DataType; 4] =
    [DataType::Float32, DataType::Float64, DataType::Int32, DataType::Bfloat16];
const COLLECTIVES: [Collective; 3] =
    [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter];

/// Where a scalar is.
#[derive(Clone, Copy)]
enum Residence {
    Device,
    Host,
}

/// A sum of inputs that are multiplied by a scalar each.
struct Op<'a> {
    rank: &'a Rank,
    number: MaybeUninit<ncclRedOp_t>,
}

impl<'a> Op<'a> {
    fn new(
        rank: &'a Rank,
        dtype: DataType,
        scalar: *mut c_void,
        residence: Residence,
    ) -> Outcome<Self> {
        let mut op = MaybeUninit::<ncclRedOp_t>::uninit();
        let (dtype, residence) = (number(dtype as i32), number(residence as i32));
        // SAFETY: the scalar is an element of the type, and outlives the calls that read it.
        ok(unsafe {
            ncclRedOpCreatePreMulSum(op.as_mut_ptr(), scalar, dtype, residence, rank.comm)
        })?;
        Ok(Self { rank, number: op })
    }

    fn call(&self, case: &Case, laid: &Laid) -> Outcome {
        let call = (case.call, self.number);
        ok(self.rank.call_with(self.rank.stream, call, laid.from, laid.to))
    }

    /// What was called before keeps its scalar.
    fn destroy(self) -> Outcome {
        // SAFETY: any handle may be passed.
        ok(unsafe { ncclRedOpDestroy(self.number, self.rank.comm) })
    }
}

/// Every type and reduction, with scalars by value and in memory of the device.
pub(crate) fn multiplied(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    // Several slots of the links, and more than rings of GPUs carry.
    let (most, beyond_rings) =
        if on_gpu() { (300_000, (9 << 20) + 4) } else { (60_000, (1 << 20) + 4) };
    let buffers = Buffers::new((rank.nranks as usize * most * 8).max(beyond_rings) + 4096)?;
    let scalar = Memory::new(64)?;
    let mut seed = 0;
    for count in [1, 1000, most] {
        for dtype in DTYPES {
            for collective in COLLECTIVES {
                seed += 1;
                let root = (seed % rank.nranks as u64) as i32;
                let call = Call { collective, count, dtype, op: ReduceOp::Sum, root };
                let (in_place, skew) = (seed % 3 == 0, seed as usize % 4 * dtype.size());
                let (manner, factors) = (Manner::Eager, Some(seed));
                let case = Case { call, in_place, skew, seed, manner, factors };
                by_value(rank, &case, &buffers)?;
                in_memory(rank, &case, &buffers, &scalar)?;
            }
        }
    }
    for dtype in [DataType::Float32, DataType::Bfloat16] {
        let (collective, count) = (Collective::AllReduce, beyond_rings / dtype.size());
        let call = Call { collective, count, dtype, op: ReduceOp::Sum, root: 0 };
        let (in_place, skew, manner, factors) = (true, 0, Manner::Eager, Some(7));
        by_value(rank, &Case { call, in_place, skew, seed: 7, manner, factors }, &buffers)?;
    }
    rank.leave()
}

fn by_value(rank: &Rank, case: &Case, buffers: &Buffers) -> Outcome {
    let mut factor = case.factor(rank.rank as u32);
    let op = Op::new(rank, case.call.dtype, factor.as_mut_ptr().cast(), Residence::Host)?;
    drop(factor);
    play_one(case, rank, buffers, |laid| {
        op.call(case, laid)?;
        op.destroy()
    })
}

/// The scalar changes between two calls, and between replays.
fn in_memory(rank: &Rank, case: &Case, buffers: &Buffers, scalar: &Memory) -> Outcome {
    let at = scalar.part(3 * case.call.dtype.size());
    let with = |factors: u64| {
        let case = Case { factors: Some(factors << 32 | case.seed), ..*case };
        rank.upload(at, &case.factor(rank.rank as u32)).map(|()| case)
    };
    let op = Op::new(rank, case.call.dtype, at, Residence::Device)?;
    for factors in 1..3 {
        let case = with(factors)?;
        play_one(&case, rank, buffers, |laid| op.call(&case, laid))?;
    }
    let (first, mut replay) = (with(3)?, None);
    play_one(&first, rank, buffers, |laid| {
        let captured =
            Replay::capture(rank.stream, oxcclCaptureThreadLocal, || op.call(&first, laid))?;
        op.destroy()?;
        replay.insert(captured).launch(rank.stream)
    })?;
    let Some(replay) = replay else { return Err("nothing was captured".to_owned()) };
    for factors in 4..6 {
        // The same buffers at the same place.
        play_one(&with(factors)?, rank, buffers, |_| replay.launch(rank.stream))?;
    }
    Ok(())
}
