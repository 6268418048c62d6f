//! Random collectives with a count per rank, and what has to come out of them.

use crate::number;
use crate::sequence::Random;
use oxccl::nccl::types::{ncclComm_t, ncclResult_t};
use oxccl::oxccl::types::oxcclStream_t;
use oxccl::oxccl::vcollectives::*;
use oxccl_plan::DataType;
use std::ffi::c_void;

const POISON: u8 = 0xc7;
const GUARD: usize = 64;

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    AllGatherv,
    ReduceScatterv,
    AlltoAllv,
    Gatherv,
    Scatterv,
}
use Kind::*;

/// What all ranks together do; in elements.
#[derive(Debug)]
pub struct Case {
    kind: Kind,
    dtype: DataType,
    nranks: usize,
    root: usize,
    /// How much goes from a rank to a rank, and where it lies on both sides: `[from][to]`.
    counts: Vec<Vec<usize>>,
    send_at: Vec<Vec<usize>>,
    recv_at: Vec<Vec<usize>>,
    in_place: Vec<bool>,
}

/// Places for so many elements each: in random order, with gaps.
fn places(random: &mut Random, counts: &[usize]) -> Vec<usize> {
    let (mut at, mut places) = (random.below(5) as usize, vec![0; counts.len()]);
    let first = random.below(counts.len() as u64) as usize;
    for i in 0..counts.len() {
        let i = (first + i) % counts.len();
        places[i] = at;
        at += counts[i] + random.below(3) as usize;
    }
    places
}

impl Case {
    /// Draws one; all ranks draw the same.
    pub fn draw(random: &mut Random, nranks: usize) -> Self {
        let kind = [AllGatherv, ReduceScatterv, AlltoAllv, Gatherv, Scatterv];
        let kind = kind[random.below(5) as usize];
        let dtype = [DataType::Uint8, DataType::Int32, DataType::Uint64][random.below(3) as usize];
        let root = random.below(nranks as u64) as usize;
        let limit = [1, 40, 4000, 90_000][random.below(4) as usize];
        let zeros = random.below(4);
        let matrix: Vec<Vec<usize>> = (0..nranks)
            .map(|_| {
                let mut count = || match random.below(4) {
                    draw if draw < zeros => 0,
                    _ => random.below(limit) as usize,
                };
                (0..nranks).map(|_| count()).collect()
            })
            .collect();
        let count = |from: usize, to: usize| match kind {
            AlltoAllv => matrix[from][to],
            AllGatherv => matrix[0][from],
            ReduceScatterv => matrix[0][to],
            Gatherv => matrix[0][from] * usize::from(to == root),
            Scatterv => matrix[0][to] * usize::from(from == root),
        };
        let all = 0..nranks;
        let counts: Vec<Vec<usize>> =
            all.clone().map(|from| all.clone().map(|to| count(from, to)).collect()).collect();
        let (mut send_at, mut recv_at) = (counts.clone(), counts.clone());
        for rank in all.clone() {
            send_at[rank] = match kind {
                AlltoAllv | Scatterv => places(random, &counts[rank]),
                AllGatherv | Gatherv => vec![0; nranks],
                ReduceScatterv => all.clone().map(|to| counts[rank][..to].iter().sum()).collect(),
            };
            let column: Vec<usize> = counts.iter().map(|row| row[rank]).collect();
            let lands = match kind {
                ReduceScatterv | Scatterv => vec![0; nranks],
                _ => places(random, &column),
            };
            lands.iter().enumerate().for_each(|(from, at)| recv_at[from][rank] = *at);
        }
        let may = |rank| {
            kind != AlltoAllv && (rank == root || matches!(kind, AllGatherv | ReduceScatterv))
        };
        let in_place = all.map(|rank| may(rank) && random.below(2) == 0).collect();
        Self { kind, dtype, nranks, root, counts, send_at, recv_at, in_place }
    }

    fn end(counts: impl Iterator<Item = usize>, places: impl Iterator<Item = usize>) -> usize {
        counts.zip(places).map(|(count, at)| count + at).max().unwrap_or(0)
    }

    fn row(&self, rank: usize) -> usize {
        Self::end(self.counts[rank].iter().copied(), self.send_at[rank].iter().copied())
    }

    fn column(&self, rank: usize) -> usize {
        let at = |m: &[Vec<usize>]| m.iter().map(|row| row[rank]).collect::<Vec<_>>().into_iter();
        Self::end(at(&self.counts), at(&self.recv_at))
    }

    fn range(&self, at: usize, count: usize) -> std::ops::Range<usize> {
        GUARD + at * self.dtype.size()..GUARD + (at + count) * self.dtype.size()
    }

    /// Makes a rank's call, with an input and an output for it.
    ///
    /// # Safety
    /// They are as large as the case says, and stay until the call is complete.
    pub unsafe fn call(
        &self,
        rank: usize,
        (send, recv): (*const c_void, *mut c_void),
        comm: ncclComm_t,
        s: oxcclStream_t,
    ) -> ncclResult_t {
        let column = |m: &[Vec<usize>]| m.iter().map(|row| row[rank]).collect::<Vec<_>>();
        let (from, from_at) = (column(&self.counts), column(&self.recv_at));
        let (to, to_at) = (&self.counts[rank], &self.send_at[rank]);
        let (own, root, dt) = (self.counts[rank][rank], self.root, number(self.dtype as i32));
        let (n, at) = (from.as_ptr(), from_at.as_ptr());
        let (to, to_at) = (to.as_ptr(), to_at.as_ptr());
        // SAFETY: passed on from the caller; the arrays are read before the calls return.
        unsafe {
            match self.kind {
                AllGatherv => oxcclAllGatherv(send, own, recv, n, at, dt, comm, s),
                ReduceScatterv => oxcclReduceScatterv(send, recv, to, dt, number(0), comm, s),
                AlltoAllv => oxcclAlltoAllv(send, to, to_at, recv, n, at, dt, comm, s),
                Gatherv => {
                    let count = self.counts[rank][root];
                    oxcclGatherv(send, count, recv, n, at, dt, root as i32, comm, s)
                }
                Scatterv => {
                    let count = self.counts[root][rank];
                    oxcclScatterv(send, to, to_at, recv, count, dt, root as i32, comm, s)
                }
            }
        }
    }
}

/// A rank's memory before the call and what it has to be afterwards.
pub struct Memory {
    /// What it sends, between guards.
    pub send: Vec<u8>,
    /// What it receives into, between guards.
    pub recv: Vec<u8>,
    /// Both afterwards.
    pub expected: (Vec<u8>, Vec<u8>),
    /// Where the call's input is: whether in `recv`, and at which byte.
    pub from: (bool, usize),
    /// The same of its output.
    pub to: (bool, usize),
}

impl Memory {
    /// The address of such a place.
    pub fn address(&mut self, (in_recv, at): (bool, usize)) -> *mut c_void {
        let buffer = if in_recv { &mut self.recv } else { &mut self.send };
        buffer[at..].as_mut_ptr().cast()
    }
}

fn add(dtype: DataType, sum: &mut [u8], other: &[u8]) {
    for (a, b) in sum.chunks_mut(dtype.size()).zip(other.chunks(dtype.size())) {
        let wide = |bytes: &[u8]| {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(all)
        };
        let total = wide(a).wrapping_add(wide(b)).to_le_bytes();
        a.copy_from_slice(&total[..dtype.size()]);
    }
}

/// The memory of every rank, with random data.
pub fn memories(case: &Case, random: &mut Random) -> Vec<Memory> {
    let size = case.dtype.size();
    let poisoned = |elements: usize| vec![POISON; elements * size + 2 * GUARD];
    let mut sends: Vec<Vec<u8>> = Vec::new();
    for rank in 0..case.nranks {
        let mut send = poisoned(case.row(rank));
        for to in 0..case.nranks {
            let range = case.range(case.send_at[rank][to], case.counts[rank][to]);
            send[range].iter_mut().for_each(|b| *b = random.draw() as u8);
        }
        sends.push(send);
    }
    let results: Vec<Vec<u8>> = (0..case.nranks).map(|rank| result(case, &sends, rank)).collect();
    let memory = |(rank, expected): (usize, Vec<u8>)| {
        let (own_send, own_recv) = (case.send_at[rank][rank], case.recv_at[rank][rank]);
        let own = case.counts[rank][rank];
        let (send, mut recv) = (sends[rank].clone(), poisoned(case.column(rank)));
        let (mut from, mut to) = ((false, GUARD), (true, GUARD));
        let mut after = (send.clone(), expected);
        if case.in_place[rank] && matches!(case.kind, AllGatherv | Gatherv) {
            recv[case.range(own_recv, own)].copy_from_slice(&send[case.range(own_send, own)]);
            from = (true, GUARD + own_recv * size);
        } else if case.in_place[rank] {
            to = (false, GUARD + own_send * size);
            after.0[case.range(own_send, own)].copy_from_slice(&after.1[case.range(0, own)]);
            after.1 = recv.clone();
        }
        Memory { send, recv, expected: after, from, to }
    };
    results.into_iter().enumerate().map(memory).collect()
}

/// The output of a rank.
fn result(case: &Case, sends: &[Vec<u8>], rank: usize) -> Vec<u8> {
    let mut out = vec![POISON; case.column(rank) * case.dtype.size() + 2 * GUARD];
    for (from, send) in sends.iter().enumerate() {
        let count = case.counts[from][rank];
        let data = &send[case.range(case.send_at[from][rank], count)];
        let place = &mut out[case.range(case.recv_at[from][rank], count)];
        match case.kind {
            ReduceScatterv if from > 0 => add(case.dtype, place, data),
            _ => place.copy_from_slice(data),
        }
    }
    out
}
