//! Limits of operations, through the C interface: whatever waits, it ends, and the rank that did
//! not come is named.

mod common;

use common::{World, datatype, fails, last_error, number, ok};
use oxccl::nccl::collectives::{ncclAllReduce, ncclRecv, ncclSend};
use oxccl::nccl::types::{ncclComm_t, ncclRedOp_t, ncclResult_t, ncclWaitSignalDesc_t};
use oxccl::nccl::window::{ncclCommWindowRegister, ncclPutSignal, ncclWaitSignal};
use oxccl::oxccl::launch::oxcclCommSetTimeout;
use oxccl::oxccl::stream::oxcclStreamSynchronize;
use oxccl::oxccl::types::oxcclStream_t;
use oxccl::oxccl::vcollectives::oxcclAlltoAllv;
use oxccl_plan::DataType;

const BYTES: usize = 1 << 20;
const ONE: usize = 1;

/// Of three ranks rank 0 calls something that waits for rank 2 alone.
fn waits_for_rank_2(
    name: &str,
    call: impl FnOnce(ncclComm_t, oxcclStream_t, *mut u8) -> ncclResult_t,
) {
    let world = World::new(3);
    let mut memory = vec![0u8; BYTES];
    let (comm, stream) = (world.comms[0], world.streams[0]);
    // SAFETY: any handle may be passed.
    ok(unsafe { oxcclCommSetTimeout(comm, 50_000_000) });
    ok(call(comm, stream, memory.as_mut_ptr()));
    // SAFETY: as above.
    let result = unsafe { oxcclStreamSynchronize(stream, -1) };
    fails(result, ncclResult_t::ncclRemoteError, "rank 0 waited ");
    let text = last_error();
    for part in ["ms for rank 2", &format!("{name} (operation 0"), "OXCCL_TIMEOUT"] {
        assert!(text.contains(part), "{name}: no {part:?} in {text}");
    }
    assert!(memory.iter().all(|&byte| byte == 0), "{name}");
}

#[test]
fn limits_of_messages_and_signals_name_the_rank_that_is_waited_for() {
    let dtype = || datatype(DataType::Uint8);
    // SAFETY: buffers live until the operation has ended, and arrays have an entry for each rank.
    unsafe {
        waits_for_rank_2("send/recv", |comm, stream, to| {
            ncclRecv(to.cast(), BYTES, dtype(), 2, comm, stream)
        });
        waits_for_rank_2("send/recv", |comm, stream, to| {
            ncclRecv(to.cast(), 0, dtype(), 2, comm, stream)
        });
        // More than the peer's slots hold.
        waits_for_rank_2("send/recv", |comm, stream, from| {
            ncclSend(from.cast(), BYTES, dtype(), 2, comm, stream)
        });
        waits_for_rank_2("alltoallv", |comm, stream, at| {
            let (counts, displs) = ([0, 0, ONE], [0, 0, 0]);
            let (counts, displs, none) = (counts.as_ptr(), displs.as_ptr(), [0; 3].as_ptr());
            let to = at.cast();
            oxcclAlltoAllv(to, none, none, to, counts, displs, dtype(), comm, stream)
        });
        waits_for_rank_2("wait_signal", |comm, stream, _| {
            let mut awaited = ncclWaitSignalDesc_t { opCnt: 1, peer: 2, sigIdx: 0, ctx: 0 };
            ncclWaitSignal(1, &mut awaited, comm, stream)
        });
        // Rank 2 has not registered the window.
        waits_for_rank_2("put_signal", |comm, stream, at| {
            let mut window = std::ptr::null_mut();
            ok(ncclCommWindowRegister(comm, at.cast(), BYTES, &mut window, 0));
            ncclPutSignal(at.cast(), 8, dtype(), 2, window, 0, 0, 0, 0, comm, stream)
        });
    }
}

#[test]
fn without_a_limit_nothing_ends_before_its_time() {
    let world = World::new(2);
    let mut data = [1f32, 1.0];
    let (dtype, sum) = (|| datatype(DataType::Float32), || number(ncclRedOp_t::ncclSum as i32));
    for (rank, place) in data.iter_mut().enumerate() {
        let (comm, stream) = (world.comms[rank], world.streams[rank]);
        let place = (&raw mut *place).cast();
        // SAFETY: the data live until the streams are synchronised.
        unsafe {
            ok(ncclAllReduce(place, place, 1, dtype(), sum(), comm, stream));
            // Of the wait alone, not of the operation.
            let limit = oxcclStreamSynchronize(stream, 50_000_000);
            assert_eq!(limit == ncclResult_t::ncclSuccess, rank == 1, "{limit:?}");
        }
    }
    world.synchronize();
    assert_eq!(data, [2.0, 2.0]);
}
