//! Groups of calls, through the C interface.

mod common;

use common::{World, datatype, fails, number, ok};
use oxccl::nccl::collectives::{ncclAllReduce, ncclRecv, ncclSend};
use oxccl::nccl::comm::{ncclCommInitRank, ncclGetUniqueId};
use oxccl::nccl::group::{ncclGroupEnd, ncclGroupStart};
use oxccl::nccl::types::{ncclRedOp_t, ncclResult_t, ncclUniqueId};
use oxccl::oxccl::graph::{oxcclGraphDestroy, oxcclStreamBeginCapture, oxcclStreamEndCapture};
use oxccl::oxccl::stream::{oxcclStreamCreate, oxcclStreamDestroy, oxcclStreamQuery};
use oxccl_plan::DataType;

use ncclResult_t::*;

const COUNT: usize = 1000;

/// A buffer per rank: rank + 1 everywhere.
fn buffers(nranks: usize) -> Vec<Vec<i32>> {
    (1..=nranks as i32).map(|value| vec![value; COUNT]).collect()
}

/// Calls a sum in place on a rank.
fn sum(world: &World, rank: usize, buffer: &mut [i32]) -> ncclResult_t {
    let place = buffer.as_mut_ptr().cast();
    let (dtype, op) = (datatype(DataType::Int32), number(ncclRedOp_t::ncclSum as i32));
    let (comm, stream) = (world.comms[rank], world.streams[rank]);
    // SAFETY: the tests keep the buffers until the streams are synchronised.
    unsafe { ncclAllReduce(place, place, buffer.len(), dtype, op, comm, stream) }
}

fn sum_all(world: &World, buffers: &mut [Vec<i32>]) {
    for (rank, buffer) in buffers.iter_mut().enumerate() {
        ok(sum(world, rank, buffer));
    }
}

fn start() {
    // SAFETY: nothing is passed.
    ok(unsafe { ncclGroupStart() });
}

fn end() -> ncclResult_t {
    // SAFETY: nothing is passed.
    unsafe { ncclGroupEnd() }
}

/// Nothing is under way, and every rank's buffer is as it was.
fn untouched(world: &World, data: &[Vec<i32>]) {
    for (rank, stream) in world.streams.iter().enumerate() {
        // SAFETY: any handle may be passed.
        ok(unsafe { oxcclStreamQuery(*stream) });
        assert!(data[rank].iter().all(|&v| v == rank as i32 + 1), "rank {rank}");
    }
}

#[test]
fn nested_groups_of_several_communicators_are_launched_at_the_outermost_end() {
    let (three, two) = (World::new(3), World::new(2));
    let (mut first, mut second, mut third) = (buffers(3), buffers(3), buffers(2));
    start();
    sum_all(&three, &mut first);
    start();
    sum_all(&two, &mut third);
    start();
    sum_all(&three, &mut second);
    ok(end());
    ok(end());
    untouched(&three, &first);
    untouched(&two, &third);
    ok(end());
    [&three, &two].into_iter().for_each(World::synchronize);
    for (buffers, sum) in [(first, 6), (second, 6), (third, 3)] {
        assert!(buffers.iter().flatten().all(|&v| v == sum));
    }
}

#[test]
fn an_error_in_the_middle_of_a_group_launches_nothing_and_the_next_group_works() {
    let world = World::new(2);
    let mut data = buffers(2);
    let (mut id, mut made) = (ncclUniqueId { internal: [0; 128] }, std::ptr::null_mut());
    // SAFETY: a place for the id.
    ok(unsafe { ncclGetUniqueId(&mut id) });
    start();
    sum_all(&world, &mut data);
    start();
    // SAFETY: a place for the handle; no buffer is touched, as there is no rank 2.
    unsafe {
        ok(ncclCommInitRank(&mut made, 1, id, 0));
        let (from, dtype) = (data[0].as_ptr().cast(), datatype(DataType::Int32));
        let sent = ncclSend(from, COUNT, dtype, 2, world.comms[0], world.streams[0]);
        fails(sent, ncclInvalidArgument, "peer is 2");
    }
    sum_all(&world, &mut data);
    ok(end());
    fails(end(), ncclInvalidArgument, "peer is 2");
    assert!(made.is_null(), "a communicator was made");
    untouched(&world, &data);
    start();
    sum_all(&world, &mut data);
    ok(end());
    world.synchronize();
    assert!(data.iter().flatten().all(|&v| v == 3));
}

#[test]
fn messages_to_oneself_need_their_other_half_in_the_group_and_keep_their_order() {
    let world = World::new(2);
    let (comm, stream) = (world.comms[0], world.streams[0]);
    let (from, mut to) = (buffers(2), vec![vec![0; COUNT]; 2]);
    let dtype = || datatype(DataType::Int32);
    start();
    for message in 0..2 {
        // SAFETY: the buffers live until the stream is synchronised.
        unsafe {
            let (from, to) = (from[message].as_ptr().cast(), to[message].as_mut_ptr().cast());
            ok(ncclRecv(to, COUNT, dtype(), 0, comm, stream));
            ok(ncclSend(from, COUNT, dtype(), 0, comm, stream));
        }
    }
    ok(end());
    world.synchronize();
    assert_eq!(from, to);
    start();
    // SAFETY: as above.
    ok(unsafe { ncclSend(from[0].as_ptr().cast(), COUNT, dtype(), 0, comm, stream) });
    fails(end(), ncclInvalidUsage, "to itself");
    start();
    // SAFETY: as above.
    unsafe {
        let (from, to) = (from[0].as_ptr().cast(), to[0].as_mut_ptr().cast());
        ok(ncclSend(from, COUNT, dtype(), 0, comm, stream));
        ok(ncclRecv(to, COUNT, datatype(DataType::Uint32), 0, comm, stream));
    }
    fails(end(), ncclInvalidUsage, "to itself");
}

#[test]
fn a_group_on_streams_of_which_some_are_captured_launches_nothing() {
    let world = World::new(2);
    let mut data = buffers(2);
    let (comm, mut captured) = (world.comms[0], std::ptr::null_mut());
    let (from, mut to) = (vec![1; COUNT], vec![0; COUNT]);
    // SAFETY: the handles are alive, and the buffers outlive what is launched: nothing.
    unsafe {
        ok(oxcclStreamCreate(&mut captured));
        ok(oxcclStreamBeginCapture(captured, number(0)));
        start();
        sum_all(&world, &mut data);
        ok(ncclSend(from.as_ptr().cast(), COUNT, datatype(DataType::Int32), 1, comm, captured));
        let dtype = datatype(DataType::Int32);
        ok(ncclRecv(to.as_mut_ptr().cast(), COUNT, dtype, 1, comm, world.streams[0]));
        fails(end(), ncclInvalidUsage, "only some are captured");
        let mut graph = std::ptr::null_mut();
        ok(oxcclStreamEndCapture(captured, &mut graph));
        ok(oxcclGraphDestroy(graph, std::ptr::null_mut()));
        ok(oxcclStreamDestroy(captured));
    }
    untouched(&world, &data);
    assert_eq!(to, vec![0; COUNT]);
}
