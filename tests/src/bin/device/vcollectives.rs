//! Collectives with a count per rank.

use crate::rank::{Memory, Outcome, Rank, Replay, ok, one, sum};
use oxccl::oxccl::types::oxcclCaptureMode_t::oxcclCaptureThreadLocal;
use oxccl_tests::sequence::Random;
use oxccl_tests::vcollectives::{Case, memories};

/// Random counts, none at all among them, at random places; every third one captured.
pub(crate) fn random(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let (nranks, own) = (rank.nranks as usize, rank.rank as usize);
    let mut random = Random(29 + nranks as u64);
    let mut draw = || {
        let case = Case::draw(&mut random, nranks);
        let laid = memories(&case, &mut random).swap_remove(own);
        (case, laid)
    };
    let cases: Vec<_> = (0..60).map(|_| draw()).collect();
    let most = cases.iter().map(|(_, laid)| laid.send.len().max(laid.recv.len()));
    let most = most.max().unwrap_or(0);
    let (send, recv) = (Memory::new(most)?, Memory::new(most)?);
    for (number, (case, laid)) in cases.iter().enumerate() {
        let address = |(in_recv, at)| if in_recv { recv.part(at) } else { send.part(at) };
        let call = || {
            let buffers = (address(laid.from).cast_const(), address(laid.to));
            // SAFETY: as large as the largest case.
            ok(unsafe { case.call(own, buffers, rank.comm, rank.stream) })
        };
        let captured = number % 3 == 2;
        let replay = captured
            .then(|| Replay::capture(rank.stream, oxcclCaptureThreadLocal, call))
            .transpose()?;
        for _ in 0..2 {
            rank.upload(send.at, &laid.send)?;
            rank.upload(recv.at, &laid.recv)?;
            match &replay {
                Some(replay) => replay.launch(rank.stream)?,
                None => call()?,
            }
            rank.synchronize()?;
            for (of, expected) in [(&send, &laid.expected.0), (&recv, &laid.expected.1)] {
                let checked = rank.expect(of.at, expected);
                checked.map_err(|e| format!("{e} in call {number}: {case:?}"))?;
            }
        }
    }
    // After this sum no rank captures any more, so that memory of the GPU may be freed.
    ok(rank.call(sum(1), send.at, recv.at))?;
    rank.synchronize()?;
    rank.leave()
}
