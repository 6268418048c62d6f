//! Collectives with a count per rank, against a plain reference.

mod common;

use common::{World, datatype, fails, last_error, number, ok};
use oxccl::nccl::collectives::{ncclAllReduce, ncclRecv, ncclSend};
use oxccl::nccl::comm::ncclCommGetAsyncError;
use oxccl::nccl::group::{ncclGroupEnd, ncclGroupStart};
use oxccl::nccl::types::ncclResult_t;
use oxccl::oxccl::graph::{
    oxcclGraphDestroy, oxcclGraphInstantiate, oxcclGraphLaunch, oxcclStreamBeginCapture,
    oxcclStreamEndCapture,
};
use oxccl::oxccl::stream::oxcclStreamSynchronize;
use oxccl::oxccl::vcollectives::*;
use oxccl_plan::DataType;
use oxccl_tests::sequence::Random;
use std::ffi::c_void;

const POISON: u8 = 0xc7;
const GUARD: usize = 64;

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
struct Case {
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
    fn draw(random: &mut Random, nranks: usize) -> Self {
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
}

/// A rank's memory before the call and what it has to be afterwards.
struct Memory {
    send: Vec<u8>,
    recv: Vec<u8>,
    expected: (Vec<u8>, Vec<u8>),
    /// Offsets of the call's buffers: in which of the two, and where.
    from: (bool, usize),
    to: (bool, usize),
}

impl Memory {
    fn address(&mut self, (in_recv, at): (bool, usize)) -> *mut c_void {
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

fn memories(case: &Case, random: &mut Random) -> Vec<Memory> {
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

/// Makes a rank's call.
fn call(world: &World, case: &Case, rank: usize, memory: &mut Memory) {
    let (send, recv) = (memory.address(memory.from), memory.address(memory.to));
    let (comm, s, dt) = (world.comms[rank], world.streams[rank], datatype(case.dtype));
    let column = |m: &[Vec<usize>]| m.iter().map(|row| row[rank]).collect::<Vec<_>>();
    let (from, from_at) = (column(&case.counts), column(&case.recv_at));
    let (to, to_at) = (&case.counts[rank], &case.send_at[rank]);
    let (own, root) = (case.counts[rank][rank], case.root);
    let (n, at) = (from.as_ptr(), from_at.as_ptr());
    // The arrays are gone when the call has returned. SAFETY: all buffers are as large as the case says.
    ok(unsafe {
        match case.kind {
            AllGatherv => oxcclAllGatherv(send, own, recv, n, at, dt, comm, s),
            ReduceScatterv => oxcclReduceScatterv(send, recv, to.as_ptr(), dt, number(0), comm, s),
            AlltoAllv => {
                oxcclAlltoAllv(send, to.as_ptr(), to_at.as_ptr(), recv, n, at, dt, comm, s)
            }
            Gatherv => {
                let count = case.counts[rank][root];
                oxcclGatherv(send, count, recv, n, at, dt, root as i32, comm, s)
            }
            Scatterv => {
                let count = case.counts[root][rank];
                let (to, to_at) = (to.as_ptr(), to_at.as_ptr());
                oxcclScatterv(send, to, to_at, recv, count, dt, root as i32, comm, s)
            }
        }
    });
}

fn check(case: &Case, rank: usize, memory: &Memory) {
    for (name, got, expected) in
        [("send", &memory.send, &memory.expected.0), ("receive", &memory.recv, &memory.expected.1)]
    {
        let wrong = (0..got.len()).find(|&i| got[i] != expected[i]);
        assert!(wrong.is_none(), "rank {rank}: byte {wrong:?} of the {name} buffer: {case:?}");
    }
}

#[test]
fn random_counts_on_one_to_five_ranks_in_threads() {
    for nranks in 1..=5 {
        let world = World::new(nranks);
        let mut random = Random(17 + nranks as u64);
        for _ in 0..120 {
            let case = Case::draw(&mut random, nranks);
            let mut memories = memories(&case, &mut random);
            std::thread::scope(|scope| {
                for (rank, memory) in memories.iter_mut().enumerate() {
                    let (world, case) = (&world, &case);
                    scope.spawn(move || {
                        call(world, case, rank, memory);
                        // SAFETY: any handle may be passed.
                        ok(unsafe { oxcclStreamSynchronize(world.streams[rank], -1) });
                        check(case, rank, memory);
                    });
                }
            });
        }
    }
}

/// Every rank sends a word to itself and around the ring and all-reduces one; in another order of calls on
/// even ranks: what belongs to v-collectives must not mix with it.
#[test]
fn in_groups_with_all_reduce_and_send_and_receive() {
    for nranks in 1..=5usize {
        let world = World::new(nranks);
        let mut random = Random(170 + nranks as u64);
        for round in 0..60u64 {
            let cases = [Case::draw(&mut random, nranks), Case::draw(&mut random, nranks)];
            let mut first = memories(&cases[0], &mut random);
            let mut second = memories(&cases[1], &mut random);
            let words: Vec<u64> = (0..nranks as u64).map(|r| round * 100 + r).collect();
            let mut got = vec![[0u64; 3]; nranks];
            // SAFETY: all buffers stay until the streams are synchronised.
            unsafe {
                ok(ncclGroupStart());
                for rank in 0..nranks {
                    let (comm, s) = (world.comms[rank], world.streams[rank]);
                    let dt = || datatype(DataType::Uint64);
                    let word: *const c_void = (&raw const words[rank]).cast();
                    let place: *mut u64 = got[rank].as_mut_ptr();
                    let (next, last) = ((rank + 1) % nranks, (rank + nranks - 1) % nranks);
                    let send = |to: usize| ok(ncclSend(word, 1, dt(), to as i32, comm, s));
                    let receive = |i: usize, from: usize| {
                        ok(ncclRecv(place.add(i).cast(), 1, dt(), from as i32, comm, s));
                    };
                    send(rank);
                    if rank % 2 == 0 {
                        send(next);
                    }
                    call(&world, &cases[0], rank, &mut first[rank]);
                    ok(ncclAllReduce(word, place.cast(), 1, dt(), number(0), comm, s));
                    receive(1, rank);
                    call(&world, &cases[1], rank, &mut second[rank]);
                    receive(2, last);
                    if rank % 2 == 1 {
                        send(next);
                    }
                }
                ok(ncclGroupEnd());
            }
            world.synchronize();
            for rank in 0..nranks {
                check(&cases[0], rank, &first[rank]);
                check(&cases[1], rank, &second[rank]);
                let last = (rank + nranks - 1) % nranks;
                assert_eq!(got[rank], [words.iter().sum(), words[rank], words[last]]);
            }
        }
    }
}

#[test]
fn captured_and_replayed_three_times_with_changed_data() {
    const N: usize = 3;
    let world = World::new(N);
    let mut random = Random(23);
    for _ in 0..20 {
        let case = Case::draw(&mut random, N);
        let mut fixed = memories(&case, &mut random);
        let mut graphs = vec![std::ptr::null_mut(); N];
        let mut executables = vec![std::ptr::null_mut(); N];
        // SAFETY: all outputs have room; the buffers stay in place until the graphs are destroyed.
        unsafe {
            world.streams.iter().for_each(|s| ok(oxcclStreamBeginCapture(*s, number(0))));
            for (rank, memory) in fixed.iter_mut().enumerate() {
                call(&world, &case, rank, memory);
                ok(oxcclStreamEndCapture(world.streams[rank], &mut graphs[rank]));
                ok(oxcclGraphInstantiate(&mut executables[rank], graphs[rank]));
            }
        }
        for _ in 0..3 {
            for (memory, fresh) in fixed.iter_mut().zip(memories(&case, &mut random)) {
                memory.send.copy_from_slice(&fresh.send);
                memory.recv.copy_from_slice(&fresh.recv);
                memory.expected = fresh.expected;
            }
            for (executable, stream) in executables.iter().zip(&world.streams) {
                // SAFETY: as above.
                ok(unsafe { oxcclGraphLaunch(*executable, *stream) });
            }
            world.synchronize();
            fixed.iter().enumerate().for_each(|(rank, memory)| check(&case, rank, memory));
        }
        for (graph, executable) in graphs.into_iter().zip(executables) {
            // SAFETY: any handle may be passed.
            ok(unsafe { oxcclGraphDestroy(graph, executable) });
        }
    }
}

#[test]
fn bad_arguments_are_named() {
    use ncclResult_t::{ncclInvalidArgument as BAD, ncclSuccess};
    let world = World::new(2);
    let (comm, s) = (world.comms[0], world.streams[0]);
    let dt = || datatype(DataType::Int32);
    let mut memory = [0i32; 64];
    let (from, to): (*const c_void, *mut c_void) =
        (memory[32..].as_ptr().cast(), memory.as_mut_ptr().cast());
    let none = std::ptr::null();
    let gather = |send, n, recv, counts: &[usize; 2], at: &[usize; 2]| {
        // SAFETY: what is wrong is found before any buffer is touched.
        unsafe { oxcclAllGatherv(send, n, recv, counts.as_ptr(), at.as_ptr(), dt(), comm, s) }
    };
    fails(gather(none, 1, to, &[1, 1], &[0, 1]), BAD, "sendbuff is null");
    fails(gather(from, 1, std::ptr::null_mut(), &[1, 1], &[0, 1]), BAD, "recvbuff is null");
    fails(gather(from, 2, to, &[1, 1], &[0, 1]), BAD, "4 bytes for rank 0 itself");
    fails(gather(from, 1, to, &[1, 2], &[1, 0]), BAD, "ranks 1 and 0 overlap");
    fails(gather(from, 1, to, &[1, usize::MAX / 2], &[0, 1]), BAD, "for rank 1");
    fails(gather(from, 1, to, &[1, 1], &[0, usize::MAX]), BAD, "recvdispls");
    fails(gather(to.cast_const(), 1, to, &[1, 1], &[1, 0]), BAD, "data of rank 1");
    // SAFETY: as above.
    unsafe {
        let (c, x) = ([1usize, 1], [usize::MAX / 8, usize::MAX / 8]);
        let null = std::ptr::null::<usize>();
        fails(
            oxcclAllGatherv(from, 1, to, null, c.as_ptr(), dt(), comm, s),
            BAD,
            "recvcounts is null",
        );
        fails(
            oxcclAllGatherv(from, 1, to, c.as_ptr(), null, dt(), comm, s),
            BAD,
            "recvdispls is null",
        );
        fails(oxcclReduceScatterv(from, to, null, dt(), number(0), comm, s), BAD, "counts is null");
        fails(oxcclReduceScatterv(from, to, x.as_ptr(), dt(), number(0), comm, s), BAD, "counts");
        fails(
            oxcclReduceScatterv(from, to, c.as_ptr(), dt(), number(99), comm, s),
            BAD,
            "op is 99",
        );
        let into = from.cast_mut().byte_add(4);
        fails(
            oxcclReduceScatterv(from, into, c.as_ptr(), dt(), number(0), comm, s),
            BAD,
            "recvbuff",
        );
        fails(
            oxcclGatherv(from, 1, to, c.as_ptr(), c.as_ptr(), dt(), 2, comm, s),
            BAD,
            "root is 2",
        );
        fails(
            oxcclScatterv(from, null, c.as_ptr(), to, 1, dt(), 0, comm, s),
            BAD,
            "sendcounts is null",
        );
        // Nothing anywhere, without buffers; and no arrays where this rank is not the root.
        let zero = [0usize; 2];
        let nowhere = std::ptr::null_mut();
        let result = oxcclAllGatherv(none, 0, nowhere, zero.as_ptr(), c.as_ptr(), dt(), comm, s);
        assert_eq!(result, ncclSuccess, "{}", last_error());
        ok(oxcclGatherv(none, 0, nowhere, null, null, dt(), 1, comm, s));
        ok(oxcclReduceScatterv(none, nowhere, zero.as_ptr(), dt(), number(0), comm, s));
    }
    world.synchronize();
}

#[test]
fn counts_that_disagree_name_both_ranks() {
    let world = World::new(2);
    let dt = || datatype(DataType::Uint8);
    let (data, mut out) = ([1u8; 16], [[0u8; 16]; 2]);
    for (rank, counts) in [[3usize, 5], [3, 4]].iter().enumerate() {
        let (at, own) = ([0usize, 8], counts[rank]);
        let (from, to) = (data.as_ptr().cast(), out[rank].as_mut_ptr().cast());
        let (comm, s) = (world.comms[rank], world.streams[rank]);
        // SAFETY: all buffers are large enough.
        ok(unsafe { oxcclAllGatherv(from, own, to, counts.as_ptr(), at.as_ptr(), dt(), comm, s) });
    }
    // SAFETY: any handle may be passed.
    let result = unsafe { oxcclStreamSynchronize(world.streams[0], -1) };
    fails(result, ncclResult_t::ncclInvalidUsage, "rank 0 calls send/recv of 5 bytes of uint8");
    assert!(last_error().contains("rank 1 calls send/recv of 4 bytes of uint8"));
    assert_eq!(out[0][8..], [0; 8]);
    // Rank 1 has what was due to it, but hears that rank 0 has not.
    let mut state = ncclResult_t::ncclSuccess;
    while state == ncclResult_t::ncclSuccess {
        // SAFETY: a place for the result.
        ok(unsafe { ncclCommGetAsyncError(world.comms[1], &mut state) });
    }
    assert_eq!(state, ncclResult_t::ncclInvalidUsage);
}
