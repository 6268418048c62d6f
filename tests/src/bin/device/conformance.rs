//! Every collective against the fold in rank order, or that in a chain where a large reduce may go
//! so, on random data with poisoned outputs.

use crate::rank::{Call, Memory, Outcome, Rank, Replay, group, ok};
use oxccl::oxccl::types::oxcclCaptureMode_t;
use oxccl_plan::{Collective, DataType, ReduceOp, Spec, arith};
use oxccl_tests::deterministic::{edge, element};
use oxccl_tests::sequence::Random;
use std::ffi::c_void;

const POISON: u8 = 0xa5;
/// The least bytes of a reduce that may go in a chain.
const CHAIN_BYTES: usize = 768 << 10;
/// Bytes after an output that nobody may write.
const GUARD: usize = 64;

/// How a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Eager,
    Captured,
}

/// A call with what makes its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) call: Call,
    pub(crate) in_place: bool,
    /// Bytes by which buffers are off alignment, a multiple of the element's size.
    pub(crate) skew: usize,
    pub(crate) seed: u64,
    pub(crate) manner: Manner,
    /// What makes the ranks' factors, where inputs are multiplied first.
    pub(crate) factors: Option<u64>,
}

impl Case {
    fn spec(&self, nranks: i32) -> Spec {
        Spec::new(self.call.collective, nranks as u32, self.call.root as u32)
    }

    fn block(&self) -> usize {
        self.call.count * self.call.dtype.size()
    }

    /// A block of what a rank contributes; every rank can tell.
    fn input_block(&self, rank: u32, block: u32) -> Vec<u8> {
        let seed = self.seed.wrapping_mul(0x9e37_79b9);
        let mut random = Random(seed ^ u64::from(rank) << 40 ^ u64::from(block) << 48);
        let bytes = self.block();
        let mut out = Vec::with_capacity(bytes + 8);
        while out.len() < bytes {
            if self.seed.is_multiple_of(2) {
                match random.below(4) {
                    0 => edge(&mut random, self.call.dtype, &mut out),
                    _ => out.extend(random.draw().to_ne_bytes()),
                }
            } else {
                element(&mut random, self.call.dtype, &mut out);
            }
        }
        out.truncate(bytes);
        out
    }

    /// All of it.
    fn input(&self, nranks: i32, rank: u32) -> Vec<u8> {
        let blocks = self.spec(nranks).input_blocks(rank);
        (0..blocks).map(|block| self.input_block(rank, block)).collect::<Vec<_>>().concat()
    }

    /// What a rank's input is multiplied by.
    pub(crate) fn factor(&self, rank: u32) -> Vec<u8> {
        let seed = self.factors.unwrap_or(0).wrapping_mul(0x9e37_79b9);
        let (mut random, mut out) = (Random(seed ^ u64::from(rank) << 48), Vec::new());
        element(&mut random, self.call.dtype, &mut out);
        out
    }

    /// A block of what a rank gives to the others.
    fn given(&self, rank: u32, block: u32) -> Vec<u8> {
        let data = self.input_block(rank, block);
        if self.factors.is_none() {
            return data;
        }
        let factors = self.factor(rank).repeat(self.call.count);
        arith::fold(self.call.dtype, ReduceOp::Prod, &[&data, &factors], None)
    }

    /// What a rank has to get.
    fn expected(&self, nranks: i32, rank: u32) -> Vec<u8> {
        let spec = self.spec(nranks);
        let blocks = spec.output_blocks(rank);
        let mut out = Vec::new();
        for number in 0..blocks {
            let of = |source: u32, from: u32| self.given(from, source);
            let source = spec.source_block(rank);
            match spec.source_rank(number) {
                Some(from) => {
                    let source = match self.call.collective {
                        Collective::AllToAll => rank,
                        _ => source,
                    };
                    out.extend(of(source, from));
                }
                None => {
                    let inputs: Vec<_> = (0..nranks as u32).map(|from| of(source, from)).collect();
                    let operands: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                    let finish = Some(nranks as u32);
                    out.extend(arith::fold(self.call.dtype, self.call.op, &operands, finish));
                }
            }
        }
        out
    }
}

impl Case {
    /// Returns what the root of a reduce gets of a chain that ends there, where each rank rounds;
    /// `None` if the call may not go so.
    fn expected_of_chain(&self, nranks: i32, rank: u32) -> Option<Vec<u8>> {
        let Call { collective, dtype, op, root, .. } = self.call;
        let is_root = collective == Collective::Reduce && root as u32 == rank;
        if !is_root || nranks <= 2 || self.block() < CHAIN_BYTES {
            return None;
        }
        let mut ranks = (1..=nranks as u32).map(|ahead| (rank + ahead) % nranks as u32);
        let first = self.given(ranks.next()?, 0);
        Some(ranks.fold(first, |so_far, next| {
            let finish = (next == rank).then_some(nranks as u32);
            arith::fold(dtype, op, &[&so_far, &self.given(next, 0)], finish)
        }))
    }
}

/// Buffers of a rank.
pub(crate) struct Buffers {
    pub(crate) input: Memory,
    pub(crate) output: Memory,
}

impl Buffers {
    pub(crate) fn new(bytes: usize) -> Outcome<Self> {
        Ok(Self { input: Memory::new(bytes)?, output: Memory::new(bytes)? })
    }
}

/// Where a case's data lies at a rank.
pub(crate) struct Laid {
    pub(crate) from: *const c_void,
    pub(crate) to: *mut c_void,
    /// The output with its guard.
    bytes: usize,
}

/// Lays a case's data out, with poisoned outputs.
pub(crate) fn lay(case: &Case, rank: &Rank, buffers: &Buffers) -> Outcome<Laid> {
    let (own, nranks) = (rank.rank as u32, rank.nranks);
    let (spec, block) = (case.spec(nranks), case.block());
    let input = case.input(nranks, own);
    let to = buffers.output.at.wrapping_byte_add(case.skew);
    let bytes = spec.output_blocks(own) as usize * block + GUARD;
    let (mut from, mut to) = (buffers.input.at.wrapping_byte_add(case.skew), to);
    if case.in_place
        && let Some((i, o)) = spec.in_place(own)
    {
        // The smaller one lies within the larger one.
        if spec.input_blocks(own) > spec.output_blocks(own) {
            from = to;
            to = to.wrapping_byte_add(i as usize * block);
        } else {
            from = to.wrapping_byte_add(o as usize * block);
        }
    }
    let room = bytes.max(input.len() + GUARD);
    rank.upload(buffers.output.at.wrapping_byte_add(case.skew), &vec![POISON; room])?;
    rank.upload(from, &input)?;
    Ok(Laid { from, to, bytes })
}

/// Checks what a rank has got.
pub(crate) fn verify(case: &Case, rank: &Rank, laid: &Laid) -> Outcome {
    let (spec, own) = (case.spec(rank.nranks), rank.rank as u32);
    let found = rank.download(laid.to, laid.bytes)?;
    let expected = case.expected(rank.nranks, own);
    let is_chained = || {
        let chained = case.expected_of_chain(rank.nranks, own);
        chained.is_some_and(|bytes| found.starts_with(&bytes))
    };
    if let Some(at) = (0..expected.len()).find(|&i| found[i] != expected[i])
        && !is_chained()
    {
        let (got, want) = (found[at], expected[at]);
        return Err(format!(
            "rank {}: byte {at} of {} is {got:#04x} instead of {want:#04x} in {case:?}",
            rank.rank,
            expected.len()
        ));
    }
    // In place the input may follow.
    let nested = case.in_place && spec.input_blocks(own) > spec.output_blocks(own);
    if !nested && found[expected.len()..].iter().any(|&b| b != POISON) {
        return Err(format!(
            "rank {}: bytes behind the output were written in {case:?}",
            rank.rank
        ));
    }
    Ok(())
}

/// Plays a case on a rank, whose call `run` makes.
pub(crate) fn play_one(
    case: &Case,
    rank: &Rank,
    buffers: &Buffers,
    run: impl FnOnce(&Laid) -> Outcome,
) -> Outcome {
    let laid = lay(case, rank, buffers)?;
    run(&laid)?;
    rank.synchronize()?;
    verify(case, rank, &laid)
}

/// Plays a case on the ranks of this thread.
pub(crate) fn play(case: &Case, ranks: &[Rank], buffers: &[Buffers]) -> Outcome {
    let mut laid = Vec::new();
    for (rank, buffers) in ranks.iter().zip(buffers) {
        crate::rank::choose(rank.rank)?;
        laid.push(lay(case, rank, buffers)?);
    }
    let call = |rank: &Rank, laid: &Laid| ok(rank.call(case.call, laid.from, laid.to));
    match (case.manner, ranks) {
        (Manner::Captured, [rank]) => {
            let mode = oxcclCaptureMode_t::oxcclCaptureGlobal;
            let replay = Replay::capture(rank.stream, mode, || call(rank, &laid[0]))?;
            replay.launch(rank.stream)?;
            rank.synchronize()?;
        }
        (_, [rank]) => call(rank, &laid[0])?,
        _ => {
            let mut all = ranks.iter().zip(&laid);
            group(|| all.try_for_each(|(rank, laid)| call(rank, laid)))?;
        }
    }
    ranks.iter().zip(&laid).try_for_each(|(rank, laid)| {
        rank.synchronize()?;
        verify(case, rank, laid)
    })
}

/// All products of small cases: collectives, types, operations, sizes around the edges of lines.
pub(crate) fn small(nranks: i32, single: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in Collective::ALL {
        let ops = if collective.reduces() { &ReduceOp::ALL[..] } else { &ReduceOp::ALL[..1] };
        for dtype in DataType::ALL {
            for &op in ops {
                for count in [0, 1, 3, 16, 129, 1000] {
                    let number = cases.len() as u64;
                    let root = (number % nranks as u64) as i32;
                    let call = Call { collective, count, dtype, op, root };
                    let captured = single && number.is_multiple_of(3);
                    let manner = if captured { Manner::Captured } else { Manner::Eager };
                    // In place, all-to-all is not defined.
                    let in_place = number % 4 == 1 && collective != Collective::AllToAll;
                    let skew = if number % 5 == 2 { dtype.size() } else { 0 };
                    cases.push(Case { call, in_place, skew, seed: number, manner, factors: None });
                }
            }
        }
    }
    cases
}

/// Larger cases, drawn: up to `bytes` per block.
pub(crate) fn large(nranks: i32, single: bool, bytes: usize, cases: u64) -> Vec<Case> {
    let mut random = Random(bytes as u64);
    let draw = |i: u64| {
        let collective = Collective::ALL[i as usize % Collective::ALL.len()];
        let dtype = DataType::ALL[random.below(12) as usize];
        let op = ReduceOp::ALL[random.below(5) as usize];
        let most = bytes / dtype.size();
        // Sizes of all magnitudes, often next to a power of two.
        let power = 1usize << random.below(u64::from(usize::BITS - most.leading_zeros()));
        let count = (power + random.below(power as u64) as usize * (i % 2) as usize + 1
            - random.below(3) as usize)
            .clamp(1, most);
        let root = random.below(nranks as u64) as i32;
        let call = Call { collective, count, dtype, op, root };
        let captured = single && random.below(3) == 0;
        Case {
            call,
            in_place: random.below(4) == 0 && collective != Collective::AllToAll,
            skew: random.below(2) as usize * dtype.size() * random.below(16) as usize,
            seed: i * 7 + bytes as u64 % 2,
            manner: if captured { Manner::Captured } else { Manner::Eager },
            factors: None,
        }
    };
    (0..cases).map(draw).collect()
}

/// Calls of all kinds with so many bytes per block and a little more, which go through what lies
/// between the ranks in many rounds: aligned or not, and in place, where a result must not be
/// stored over data that were not sent yet. All-reduces of all types by one operation, and of small
/// types, which are folded several at a time, by all follow; among more than two ranks also
/// reduces, which go in a chain.
pub(crate) fn many_rounds(nranks: i32, bytes: usize) -> Vec<Case> {
    const KINDS: usize = Collective::ALL.len();
    const TYPES: usize = DataType::ALL.len();
    let case = |i: usize, collective, [in_place, skewed]: [bool; 2]| {
        let dtype = DataType::ALL[i % TYPES];
        let op = ReduceOp::ALL[i % ReduceOp::ALL.len()];
        let (count, root) = (bytes / dtype.size() + 3, i as i32 % nranks);
        Case {
            call: Call { collective, count, dtype, op, root },
            in_place: in_place && collective != Collective::AllToAll,
            skew: usize::from(skewed) * dtype.size(),
            seed: i as u64,
            manner: if i.is_multiple_of(5) { Manner::Captured } else { Manner::Eager },
            factors: None,
        }
    };
    let all = (0..4 * KINDS)
        .map(|i| case(i, Collective::ALL[i % KINDS], [i / KINDS % 2 == 1, i / KINDS / 2 == 1]));
    // The two lengths have no common factor: each type meets each operation.
    let folds = (0..TYPES * ReduceOp::ALL.len())
        .filter(|i| *i < TYPES || DataType::ALL[i % TYPES].size() <= 2);
    let folds = folds.flat_map(|i| {
        let kinds = [Collective::AllReduce, Collective::Reduce];
        let kinds = kinds.into_iter().take(if nranks > 2 { 2 } else { 1 });
        kinds.map(move |kind| case(i, kind, [i % 2 == 0, i % 3 == 0]))
    });
    all.chain(folds).collect()
}
