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
use oxccl_tests::vcollectives::{Case, Memory, memories};
use std::ffi::c_void;

/// Makes a rank's call.
fn call(world: &World, case: &Case, rank: usize, memory: &mut Memory) {
    let (send, recv) = (memory.address(memory.from), memory.address(memory.to));
    // SAFETY: all buffers are as large as the case says.
    ok(unsafe { case.call(rank, (send, recv), world.comms[rank], world.streams[rank]) });
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

/// Every rank sends a word to itself and around the ring and all-reduces one; in another order of
/// calls on even ranks: what belongs to v-collectives must not mix with it.
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
