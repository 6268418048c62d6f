//! Launching collectives over edges: between GPUs of several hosts.

use crate::device::cuda::layout::SCRATCH_SLOTS;
use crate::device::cuda::network::Network;
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::run::launch::{Launch, align_elems, slice};
use crate::device::cuda::run::order;
use crate::error::{Error, Result};
use crate::op::{Bound, Call, Programs};
use oxccl_kernels::abi;
use oxccl_plan::carrier::Packets;
use oxccl_plan::cost::CostModel;
use oxccl_plan::generate::Needs;
use oxccl_plan::ir::{Capacity, MAX_ROUNDS, Order, ROUND_MESSAGES, ROUND_TURNS};
use oxccl_plan::select::Topology;
use oxccl_plan::{Geometry, Op, Plan};
use std::sync::Arc;

const _: () = {
    assert!(MAX_ROUNDS == abi::MAX_ROUNDS && ROUND_TURNS == abi::ROUND_TURNS);
    assert!(abi::LANE_SLOTS >= ROUND_MESSAGES * ROUND_TURNS);
    assert!(abi::NET_SLOTS >= ROUND_MESSAGES * ROUND_TURNS);
};

/// Returns how plans run on the GPUs of several hosts, in teams of `team` ranks, with messages of
/// so many bytes.
pub fn topology(team: u32, edge_bytes: usize) -> Topology {
    Topology {
        direct: false,
        team,
        edges: true,
        lines: false,
        switch: false,
        remote_reads: false,
        push: false,
        mapped_from_bytes: u64::MAX,
        scratch: false,
        packets: Packets::Nowhere,
        engine_bytes: u64::MAX,
        model: CostModel {
            edge_slot_bytes: edge_bytes as u64,
            message_bytes: edge_bytes as u64,
            ..CostModel::GPUS_TCP
        },
    }
}

/// Launches a collective over edges.
pub fn collective(
    cuda_rank: &Arc<CudaRank>,
    network: &Network,
    head: abi::Collective,
    (programs, call): (&Programs, &Call),
    launch: &Launch<'_>,
) -> Result<()> {
    let mut argument = argument(cuda_rank, network, head, programs, call).inspect_err(|error| {
        // The peers wait for this rank, unless it is only captured.
        if order::graph_of(launch.stream).is_ok_and(|graph| graph.is_none()) {
            cuda_rank.fail(error);
        }
    })?;
    argument.followed = launch.is_followed().into();
    let function = cuda_rank.functions.edges[call.dtype as usize];
    let lanes = call.count.div_ceil(argument.share_elems).max(1) as u32;
    let shape = (lanes, abi::BLOCK_THREADS as u32);
    // SAFETY: the kernel takes this structure; what it points to is the communicator's, or the
    // user's by the contract of the call.
    cuda_rank.launch(launch.stream, || unsafe { launch.kernel(function, shape, &argument) })
}

fn argument(
    cuda_rank: &CudaRank,
    network: &Network,
    head: abi::Collective,
    programs: &Programs,
    call: &Call,
) -> Result<abi::EdgeProgram> {
    let Bound { plan, program, .. } = &programs.any;
    let unfit =
        || Error::Internal { what: format!("{} does not run over edges", plan.algorithm.name()) };
    let slot_bytes = network.data_bytes();
    let blocks = match plan.algorithm.generator().needs {
        // There is one lane to a switch: all ranks of a rail give it the same reductions in the
        // same order.
        Needs::Switch => 1,
        _ => cuda_rank.view.net_lanes.min(programs.blocks(cuda_rank.channels)),
    };
    let share = share(call, u64::from(blocks));
    let geometry = geometry(plan, call, share, slot_bytes);
    let (scratch_bytes, window_scratch_bytes) = scratch_bytes(plan, &geometry, call);
    let (nranks, rounds) = (call.spec.nranks, program.nrounds());
    let lane_scratch_bytes = lane_scratch_bytes(nranks, slot_bytes);
    let scratch_windows = plan.layout.scratch_windows;
    if u64::from(scratch_windows) * window_scratch_bytes > lane_scratch_bytes {
        return Err(unfit());
    }
    let steps = program.ops.iter().map(|op| step(*op, nranks));
    let encode = || steps.collect::<Option<_>>().ok_or_else(unfit);
    let (first_steps, steps) = network.program(cuda_rank.gpu, plan, encode)?;
    let round_ends = std::array::from_fn(|round| program.round_end(round as u32) as u32);
    Ok(abi::EdgeProgram {
        call: head,
        rank: cuda_rank.number,
        nranks,
        share_elems: share,
        lane_scratch_bytes,
        window_scratch_bytes,
        window_elems: geometry.window_elems,
        align_elems: geometry.align_elems,
        scratch_bytes,
        parts: geometry.parts,
        rounds,
        scratch_windows,
        followed: 0,
        peers: network.peers_of(nranks),
        unused: 0,
        round_ends,
        first_steps,
        steps,
        begun: network.begun_at(),
    })
}

/// The least bytes of a block that a lane moves, so that small calls wake few threads.
const LANE_BYTES: u64 = 16 << 10;

/// Returns the elements of each block that one of up to `lanes` lanes moves.
fn share(call: &Call, lanes: u64) -> u64 {
    let bytes = call.count * call.dtype.size() as u64;
    let lanes = bytes.div_ceil(LANE_BYTES).clamp(1, lanes.max(1));
    let unit = u64::from(call.spec.nranks) * align_elems(call);
    call.count.div_ceil(lanes).max(1).next_multiple_of(unit)
}

/// Returns the bytes of scratch of a lane.
fn lane_scratch_bytes(nranks: u32, slot_bytes: usize) -> u64 {
    u64::from(nranks) * (SCRATCH_SLOTS * slot_bytes) as u64
}

/// Returns the bytes from a block of scratch to the next one, and those of a window.
fn scratch_bytes(plan: &Plan, geometry: &Geometry, call: &Call) -> (u64, u64) {
    let block = geometry.scratch_block_elems() * call.dtype.size() as u64;
    let block = block.next_multiple_of(16);
    (block, u64::from(plan.layout.scratch_blocks) * block)
}

/// Returns how a plan cuts the share of a lane, with messages of `slot_bytes` bytes at most, for
/// which the scratch of all windows under way suffices.
fn geometry(plan: &Plan, call: &Call, share: u64, slot_bytes: usize) -> Geometry {
    let blocks = u64::from(plan.layout.scratch_blocks * plan.layout.scratch_windows);
    let of_scratch = lane_scratch_bytes(plan.spec.nranks, slot_bytes) / blocks.max(1);
    let message_bytes = (slot_bytes as u64).min(of_scratch / 16 * 16);
    let message_elems = message_bytes / call.dtype.size() as u64;
    let room = Capacity {
        edge_slot_elems: message_elems,
        message_elems,
        stage_slot_elems: 0,
        align_elems: align_elems(call),
    };
    Geometry::new(&plan.layout, share, &room)
}

/// Returns a step for a kernel; `None` if it needs memory that ranks share. A rank has one switch,
/// whose number behind those of the ranks is that of its rail in plans, and the first one in
/// kernels.
fn step(op: Op, nranks: u32) -> Option<abi::EdgeStep> {
    let none = abi::EdgeStep::default();
    let peer_of = |peer: u32| peer.min(nranks);
    Some(match op {
        Op::Copy { src, dst } => {
            abi::EdgeStep { kind: abi::STEP_COPY, src: slice(src), dst: slice(dst), ..none }
        }
        Op::Send { peer, src } => {
            abi::EdgeStep { kind: abi::STEP_SEND, peer: peer_of(peer), src: slice(src), ..none }
        }
        Op::Recv { peer, dst } => {
            abi::EdgeStep { kind: abi::STEP_RECEIVE, peer: peer_of(peer), dst: slice(dst), ..none }
        }
        Op::RecvReduce { peer, local, dst, order, finish } => abi::EdgeStep {
            kind: abi::STEP_RECEIVE_REDUCE,
            finish: u8::from(finish),
            incoming_first: u8::from(order == Order::IncomingFirst),
            peer,
            src: slice(local),
            dst: slice(dst),
            ..none
        },
        Op::Fold { src, count, own, at, dst, finish } => abi::EdgeStep {
            kind: abi::STEP_FOLD,
            finish: u8::from(finish),
            peer: at,
            count,
            src: slice(src),
            own: slice(own),
            dst: slice(dst),
            ..none
        },
        Op::Reduce { .. }
        | Op::Acquire
        | Op::Signal
        | Op::Wait { .. }
        | Op::Get { .. }
        | Op::Put { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use oxccl_plan::select::{Memory, Policy, candidates};
    use oxccl_plan::{Collective, DataType, ReduceOp, Spec};

    #[test]
    fn every_plan_between_hosts_has_steps_for_kernels_and_fits_their_scratch() {
        let teams = |nranks: u32| (1..nranks).filter(move |team| nranks.is_multiple_of(*team));
        let shapes = [2, 3, 4, 6, 8, 16, 40, 300].into_iter();
        for (nranks, team) in shapes.flat_map(|n| teams(n).map(move |team| (n, team))) {
            let slot_bytes = Device::Cuda(0).edge_slot_bytes(nranks, false);
            for collective in Collective::ALL {
                let spec = Spec::new(collective, nranks, nranks / 2);
                let all = |bytes| {
                    let topology = Topology { switch: true, ..topology(team, slot_bytes) };
                    candidates(spec, bytes, &topology, Memory::Any, Policy::default())
                };
                for (bytes, plan) in [8, 1 << 12, 1 << 26]
                    .into_iter()
                    .flat_map(|bytes| all(bytes).into_iter().map(move |c| (bytes, c.plan)))
                {
                    let call = Call {
                        spec,
                        input: std::ptr::null(),
                        output: std::ptr::null_mut(),
                        count: bytes,
                        dtype: DataType::Int8,
                        op: ReduceOp::Sum,
                        scale: None,
                    };
                    let share = share(&call, abi::LANES as u64);
                    let geometry = geometry(&plan, &call, share, slot_bytes);
                    let (_, scratch) = scratch_bytes(&plan, &geometry, &call);
                    let all = u64::from(plan.layout.scratch_windows) * scratch;
                    assert!(all <= lane_scratch_bytes(nranks, slot_bytes), "{plan:?}");
                    let message = geometry.range(0, 0, plan.layout.message_parts).1;
                    assert!(bytes < 1 << 26 || message >= slot_bytes as u64 / 4, "{plan:?}");
                    for rank in [0, nranks - 1] {
                        let steps = plan.program(rank).ops.into_iter().map(|op| step(op, nranks));
                        let steps: Option<Vec<_>> = steps.collect();
                        assert!(steps.is_some_and(|all| all.iter().all(|s| s.peer <= nranks)));
                    }
                }
                assert!(!all(1 << 20).is_empty(), "{spec:?}");
            }
        }
    }
}
