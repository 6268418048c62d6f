//! Operations that the user makes, bit for bit against the reference interpreter, and group
//! simulation.

mod common;

use common::{World, datatype, fails, number, ok};
use oxccl::nccl::collectives::{ncclAllReduce, ncclRecv, ncclReduce, ncclReduceScatter, ncclSend};
use oxccl::nccl::comm::ncclCommInitRank;
use oxccl::nccl::config::ncclSimInfo_t;
use oxccl::nccl::group::{ncclGroupEnd, ncclGroupSimulateEnd, ncclGroupStart};
use oxccl::nccl::redop::{ncclRedOpCreatePreMulSum, ncclRedOpDestroy};
use oxccl::nccl::types::{ncclComm_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use oxccl::objects;
use oxccl::oxccl::graph::{
    oxcclGraphDestroy, oxcclGraphInstantiate, oxcclGraphLaunch, oxcclStreamBeginCapture,
    oxcclStreamEndCapture,
};
use oxccl::oxccl::vcollectives::oxcclReduceScatterv;
use oxccl_plan::{Collective, DataType, Geometry, ReduceOp, Spec, arith, reference};
use oxccl_runtime::device::host::collective::capacity;
use oxccl_runtime::op::Call;
use oxccl_tests::endpoint;
use oxccl_tests::sequence::Random;
use std::ffi::c_void;
use std::mem::MaybeUninit;

const DEVICE: i32 = 0;
const HOST: i32 = 1;

type Op = MaybeUninit<ncclRedOp_t>;

fn make(comm: ncclComm_t, scalar: *const u8, dtype: DataType, residence: i32) -> Op {
    let mut op = Op::uninit();
    let (scalar, dt) = (scalar.cast_mut().cast(), datatype(dtype));
    // SAFETY: the scalar is an element of the type.
    ok(unsafe { ncclRedOpCreatePreMulSum(op.as_mut_ptr(), scalar, dt, number(residence), comm) });
    op
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.draw() as u8).collect()
}

/// What all ranks have to get: their inputs, multiplied, through the plan for any memory.
fn expected(
    world: &World,
    spec: Spec,
    dtype: DataType,
    count: usize,
    inputs: &[Vec<u8>],
    scalars: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let holder = objects::holder(world.comms[0], "the test").expect("it lives");
    let comm = holder.ready().expect("it is made");
    let (input, output) = (std::ptr::null(), std::ptr::null_mut());
    let count = count as u64;
    let call = Call { spec, input, output, count, dtype, op: ReduceOp::Sum, scale: None };
    let plan = comm.programs(&call).expect("a plan").any.plan;
    let scaled: Vec<Vec<u8>> = inputs
        .iter()
        .zip(scalars)
        .map(|(input, scalar)| {
            let factors = scalar.repeat(input.len() / scalar.len());
            arith::fold(dtype, ReduceOp::Prod, &[input, &factors], None)
        })
        .collect();
    let room = capacity(endpoint(comm).edge_slot_bytes, dtype);
    let geometry = Geometry::new(&plan.layout, count, &room);
    reference::interpret(&plan, geometry, dtype, ReduceOp::Sum, &scaled).expect("a right plan")
}

/// One call of all ranks: checks results, and bytes beside them.
fn compare(world: &World, spec: Spec, dtype: DataType, count: usize, random: &mut Random) {
    let (nranks, size) = (world.comms.len(), dtype.size());
    let block = count * size;
    let inputs: Vec<Vec<u8>> =
        (0..nranks).map(|r| bytes(random, spec.input_blocks(r as u32) as usize * block)).collect();
    let scalars: Vec<Vec<u8>> = (0..nranks).map(|_| bytes(random, size)).collect();
    let expected = expected(world, spec, dtype, count, &inputs, &scalars);
    let mut sends = inputs.clone();
    let mut receives = vec![vec![0xc7u8; block + 8]; nranks];
    let mut in_place = Vec::new();
    // SAFETY: all buffers are as large as the calls say and stay until they are complete.
    unsafe {
        ok(ncclGroupStart());
        for rank in 0..nranks {
            let (comm, s) = (world.comms[rank], world.streams[rank]);
            let residence = random.below(2) as i32;
            let op = make(comm, scalars[rank].as_ptr(), dtype, residence);
            let place = spec.in_place(rank as u32).filter(|_| random.below(2) == 0);
            let own = place.map(|(block_in, _)| block_in as usize * block);
            let from: *mut u8 = sends[rank].as_mut_ptr();
            let to = own.map_or(receives[rank].as_mut_ptr(), |at| from.add(at)).cast();
            let (from, dt): (*const c_void, _) = (from.cast_const().cast(), datatype(dtype));
            let root = spec.root as i32;
            ok(match spec.collective {
                Collective::AllReduce => ncclAllReduce(from, to, count, dt, op, comm, s),
                Collective::Reduce => ncclReduce(from, to, count, dt, op, root, comm, s),
                _ => ncclReduceScatter(from, to, count, dt, op, comm, s),
            });
            // What was called keeps its scalar.
            ok(ncclRedOpDestroy(op, comm));
            in_place.push(own);
        }
        ok(ncclGroupEnd());
    }
    world.synchronize();
    for (rank, own) in in_place.into_iter().enumerate() {
        let (want, what) = (&expected[rank], format!("rank {rank}: {spec:?} {dtype:?} {count}"));
        let (mut send, mut receive) = (inputs[rank].clone(), vec![0xc7u8; block + 8]);
        match own {
            Some(at) => send[at..at + want.len()].copy_from_slice(want),
            None => receive[..want.len()].copy_from_slice(want),
        }
        assert!(sends[rank] == send && receives[rank] == receive, "{what}, in place: {own:?}");
    }
}

#[test]
fn every_type_and_reduction_equals_the_reference_bit_for_bit() {
    let reductions = [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter];
    for nranks in 1..=3 {
        let world = World::new(nranks);
        let mut random = Random(31 + nranks as u64);
        for dtype in DataType::ALL {
            for collective in reductions {
                for count in [1, 130, 9001] {
                    let root = random.below(nranks as u64) as u32;
                    let spec = Spec::new(collective, nranks as u32, root);
                    compare(&world, spec, dtype, count, &mut random);
                }
            }
        }
        // Many stretches, and plans that read or write user memory where they may.
        for collective in reductions {
            let spec = Spec::new(collective, nranks as u32, 0);
            compare(&world, spec, DataType::Float16, 3_000_001, &mut random);
        }
    }
}

#[test]
fn a_scalar_in_device_memory_is_read_at_every_replay() {
    let world = World::new(1);
    let (comm, s) = (world.comms[0], world.streams[0]);
    let (mut scalar, input, mut out) = (0u32, [1u32, 7], [0u32; 2]);
    let place = &raw mut scalar;
    let op = make(comm, place.cast_const().cast(), DataType::Uint32, DEVICE);
    let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
    let dt = datatype(DataType::Uint32);
    let (from, to): (*const c_void, *mut u32) = (input.as_ptr().cast(), out.as_mut_ptr());
    // SAFETY: scalar and buffers outlive the graph.
    unsafe {
        ok(oxcclStreamBeginCapture(s, number(0)));
        ok(ncclAllReduce(from, to.cast(), 2, dt, op, comm, s));
        ok(oxcclStreamEndCapture(s, &mut graph));
        ok(oxcclGraphInstantiate(&mut executable, graph));
        ok(ncclRedOpDestroy(op, comm));
        for factor in [3, 5, u32::MAX] {
            place.write(factor);
            ok(oxcclGraphLaunch(executable, s));
            world.synchronize();
            let got = std::slice::from_raw_parts(to, 2);
            assert_eq!(got, [factor, factor.wrapping_mul(7)]);
        }
        ok(oxcclGraphDestroy(graph, executable));
    }
}

#[test]
fn blocks_of_different_lengths_are_multiplied_too() {
    let world = World::new(3);
    let (counts, inputs) = ([2usize, 0, 3], [[1i32, 2, 3, 4, 5], [1; 5], [10; 5]]);
    let mut out = [[0i32; 3]; 3];
    // SAFETY: all buffers are large enough.
    unsafe {
        for (rank, scalar) in [2i32, -1, 100].into_iter().enumerate() {
            let (comm, s) = (world.comms[rank], world.streams[rank]);
            let op = make(comm, (&raw const scalar).cast(), DataType::Int32, HOST);
            let (from, to) = (inputs[rank].as_ptr().cast(), out[rank].as_mut_ptr().cast());
            let dt = datatype(DataType::Int32);
            ok(oxcclReduceScatterv(from, to, counts.as_ptr(), dt, op, comm, s));
        }
    }
    world.synchronize();
    assert_eq!(out, [[1001, 1003, 0], [0; 3], [1005, 1007, 1009]]);
}

#[test]
fn operations_that_do_not_fit_are_refused_with_the_reason() {
    use ncclResult_t::ncclInvalidArgument as BAD;
    let (world, other) = (World::new(1), World::new(1));
    let (comm, s) = (world.comms[0], world.streams[0]);
    let (scalar, mut x) = ([2u8; 8], [1.0f32; 4]);
    let op = make(comm, scalar.as_ptr(), DataType::Float32, HOST);
    let buffer: *mut c_void = x.as_mut_ptr().cast();
    // SAFETY: the buffer holds 4 float32 values.
    let reduce = |dtype, op: Op, comm| unsafe {
        ncclAllReduce(buffer, buffer, 1, datatype(dtype), op, comm, s)
    };
    fails(reduce(DataType::Int8, op, comm), BAD, "made for elements of type float; expected");
    fails(reduce(DataType::Int8, op, comm), BAD, "of type int8");
    fails(reduce(DataType::Float32, op, other.comms[0]), BAD, "not made on this communicator");
    fails(reduce(DataType::Float32, number(5), comm), BAD, "op is 5");
    fails(reduce(DataType::Float32, number(-1), comm), BAD, "op is -1");
    // SAFETY: wrong arguments are found before they are used.
    unsafe {
        let scalar = scalar.as_ptr().cast_mut().cast();
        let null: *mut c_void = std::ptr::null_mut();
        let dt = || datatype(DataType::Float32);
        let mut out = Op::uninit();
        let create = ncclRedOpCreatePreMulSum;
        fails(create(null.cast(), scalar, dt(), number(HOST), comm), BAD, "op is null");
        fails(create(out.as_mut_ptr(), null, dt(), number(HOST), comm), BAD, "scalar is null");
        fails(create(out.as_mut_ptr(), scalar, dt(), number(2), comm), BAD, "residence is 2");
        fails(create(out.as_mut_ptr(), scalar, number(12), number(1), comm), BAD, "datatype is 12");
        fails(create(out.as_mut_ptr(), scalar, dt(), number(1), null.cast()), BAD, "comm is null");
        fails(ncclRedOpDestroy(number(0), comm), BAD, "built in");
        fails(ncclRedOpDestroy(op, other.comms[0]), BAD, "not made on this communicator");
        ok(ncclRedOpDestroy(op, comm));
        fails(ncclRedOpDestroy(op, comm), BAD, "which was destroyed");
    }
    fails(reduce(DataType::Float32, op, comm), BAD, "which was destroyed");
    assert_eq!(x, [1.0; 4]);
}

fn sim_info() -> ncclSimInfo_t {
    let size = size_of::<ncclSimInfo_t>();
    ncclSimInfo_t { size, magic: 0x7468_5283, version: 23_007, estimatedTime: -1.0 }
}

/// The estimate of a group of all-reduces of so many bytes, and of sends around the ring.
fn simulate(world: &World, reductions: &[usize], sent: usize) -> f32 {
    let nranks = world.comms.len();
    let largest = reductions.iter().copied().max().unwrap_or(0).max(sent);
    let (input, mut out) = (vec![1u8; largest], vec![0xc7u8; largest]);
    let mut info = sim_info();
    // SAFETY: the buffers are as large as the calls say; none of them runs.
    unsafe {
        ok(ncclGroupStart());
        for (rank, (&comm, &s)) in world.comms.iter().zip(&world.streams).enumerate() {
            let (from, to): (*const c_void, *mut c_void) =
                (input.as_ptr().cast(), out.as_mut_ptr().cast());
            let dt = || datatype(DataType::Uint8);
            for &count in reductions {
                ok(ncclAllReduce(from, to, count, dt(), number(0), comm, s));
            }
            if sent > 0 {
                let (next, last) = ((rank + 1) % nranks, (rank + nranks - 1) % nranks);
                ok(ncclSend(from, sent, dt(), next as i32, comm, s));
                ok(ncclRecv(to, sent, dt(), last as i32, comm, s));
            }
        }
        ok(ncclGroupSimulateEnd(&mut info));
    }
    world.synchronize();
    assert!(out.iter().all(|&b| b == 0xc7), "something was launched");
    info.estimatedTime
}

#[test]
fn a_simulated_group_has_an_estimate_and_launches_nothing() {
    let world = World::new(3);
    let (small, large) = (simulate(&world, &[64], 0), simulate(&world, &[1 << 22], 0));
    let (both, sends) = (simulate(&world, &[64, 1 << 22], 0), simulate(&world, &[], 1 << 20));
    assert!(small > 0.0 && large > 10.0 * small && sends > small, "{small} {large} {sends}");
    assert!((both - small - large).abs() < 1e-3 * both, "{both}");
    let mixed = simulate(&world, &[64, 1 << 22], 1 << 20);
    assert!((mixed - both - sends).abs() < 1e-3 * mixed, "{mixed}");
    assert_eq!(simulate(&world, &[], 0), 0.0);
}

#[test]
fn group_simulation_checks_its_arguments_and_all_calls() {
    use ncclResult_t::{ncclInvalidArgument as BAD, ncclInvalidUsage as USAGE};
    let world = World::new(2);
    let (comm, s) = (world.comms[0], world.streams[0]);
    let mut x = [0u8; 4];
    let x: *mut c_void = x.as_mut_ptr().cast();
    let dt = || datatype(DataType::Uint8);
    let mut info = sim_info();
    // SAFETY: nothing runs; the structs are there.
    unsafe {
        fails(ncclGroupSimulateEnd(&mut info), USAGE, "without ncclGroupStart");
        ok(ncclGroupStart());
        ok(ncclGroupSimulateEnd(std::ptr::null_mut()));
        ok(ncclGroupStart());
        fails(ncclGroupSimulateEnd(&mut ncclSimInfo_t { magic: 1, ..info }), BAD, "magic 0x1");
        ok(ncclGroupStart());
        fails(ncclGroupSimulateEnd(&mut ncclSimInfo_t { size: 16, ..info }), BAD, "of 16 bytes");
        // A send to itself without its other half.
        ok(ncclGroupStart());
        ok(ncclSend(x, 1, dt(), 0, comm, s));
        fails(ncclGroupSimulateEnd(&mut info), USAGE, "to itself");
        // A call that was refused.
        ok(ncclGroupStart());
        fails(ncclSend(x, 1, dt(), 7, comm, s), BAD, "peer is 7");
        fails(ncclGroupSimulateEnd(&mut info), BAD, "peer is 7");
        // A communicator to be made.
        let (mut id, mut made) = (MaybeUninit::<ncclUniqueId>::uninit(), std::ptr::null_mut());
        ok(oxccl::nccl::comm::ncclGetUniqueId(id.as_mut_ptr()));
        ok(ncclGroupStart());
        ok(ncclCommInitRank(&mut made, 1, id.assume_init(), 0));
        fails(ncclGroupSimulateEnd(&mut info), USAGE, "none was made");
        assert!(made.is_null());
        // An inner end leaves the calls to the outer one.
        ok(ncclGroupStart());
        ok(ncclGroupStart());
        ok(ncclSend(x, 4, dt(), 1, comm, s));
        ok(ncclGroupSimulateEnd(&mut info));
        assert_eq!(info.estimatedTime, -1.0);
        ok(ncclGroupSimulateEnd(&mut info));
        assert!(info.estimatedTime > 0.0);
        fails(ncclGroupEnd(), USAGE, "without ncclGroupStart");
    }
}
