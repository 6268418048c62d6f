//! A little of everything, for tools that make GPUs slow.

use crate::conformance::{Buffers, Case, Manner, play};
use crate::messages::Mail;
use crate::rank::{Call, Memory, Outcome, Rank, group, one};
use crate::{registered, windows};
use oxccl_plan::{Collective, DataType, ReduceOp};

/// Collectives, messages, registered memory and a put: each a few times, in three sizes.
pub(crate) fn everything(ranks: &[Rank]) -> Outcome {
    const MOST: usize = 1 << 20;
    let rank = one(ranks)?;
    let buffers = [Buffers::new(rank.nranks as usize * MOST + 4096)?];
    let mail = Mail::new(rank, vec![1, 5000, 100_001])?;
    let foreign = Memory::foreign(registered::ROOM)?;
    rank.all_idle()?;
    let collectives = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
    let mut seed = 0;
    for bytes in [100, 100 << 10, MOST] {
        for collective in collectives {
            for manner in [Manner::Eager, Manner::Captured] {
                seed += 1;
                let (dtype, op) = (DataType::Float32, ReduceOp::Sum);
                let call = Call { collective, count: bytes / 4, dtype, op, root: 0 };
                let (in_place, skew) = (seed % 2 == 0, seed as usize % 3 * 4);
                play(&Case { call, in_place, skew, seed, manner, factors: None }, ranks, &buffers)?;
            }
        }
    }
    mail.fill(rank, 0)?;
    group(|| mail.post(rank))?;
    mail.verify(rank, 0)?;
    registered::a_few(rank, &foreign)?;
    windows::put_once(rank, &buffers[0].input)?;
    drop((buffers, mail, foreign));
    rank.leave()
}
