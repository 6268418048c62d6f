//! The host device: memory that peers map, streams, events, graphs, and the executor.

pub mod arena;
pub mod collective;
pub mod endpoint;
pub mod event;
pub mod exchange;
pub mod graph;
pub mod kernels;
pub mod lock;
pub mod one_sided;
pub mod pull;
pub mod reach;
pub mod scale;
pub mod stream;
mod suspicion;
pub mod task;
pub mod worker;

use crate::link::MESSAGE_BYTES;
use crate::link::direct::PACKET_BYTES;
use collective::MAX_DIRECT_RANKS;
use oxccl_plan::carrier::Packets;
use oxccl_plan::cost::CostModel;
use oxccl_plan::select::Topology;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use stream::Stream;

/// Returns the default stream of a device of this process.
pub fn default_stream(device: i32) -> Arc<Stream> {
    static STREAMS: OnceLock<Mutex<HashMap<i32, Arc<Stream>>>> = OnceLock::new();
    let mut streams = STREAMS.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
    streams.entry(device).or_default().clone()
}

/// Returns how plans run in host memory for `nranks` ranks in teams of `team` ranks. `remote_reads`
/// is true if the system copies from the memory of other processes; up to `turns` ranks share a
/// processor.
pub fn topology(
    nranks: u32,
    team: u32,
    remote_reads: bool,
    edge_slot_bytes: usize,
    turns: u8,
) -> Topology {
    let one_host = team == nranks;
    let model = if one_host { CostModel::SHARED_MEMORY } else { CostModel::TCP };
    let model = model.in_turns(turns);
    let direct = one_host && nranks as usize <= MAX_DIRECT_RANKS;
    let published_bytes = PACKET_BYTES as u64;
    Topology {
        direct,
        team,
        edges: true,
        lines: false,
        switch: false,
        remote_reads,
        push: false,
        mapped_from_bytes: 0,
        scratch: true,
        packets: if direct { Packets::Lines { published_bytes } } else { Packets::Nowhere },
        engine_bytes: u64::MAX,
        model: CostModel {
            edge_slot_bytes: edge_slot_bytes as u64,
            message_bytes: edge_slot_bytes.min(MESSAGE_BYTES) as u64,
            ..model
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::select::{Policy, choose};
    use oxccl_plan::{Algorithm, Collective, Spec};

    #[test]
    fn where_ranks_take_turns_small_calls_take_one_exchange() {
        let chosen = |nranks, bytes, turns| {
            let topology = topology(nranks, nranks, true, 64 << 10, turns);
            let spec = Spec::new(Collective::AllReduce, nranks, 0);
            let choice = choose(spec, bytes, &topology, Policy::default()).expect("a plan");
            choice.any_memory.plan.algorithm
        };
        assert_eq!(chosen(4, 2048, 1), Algorithm::TwoShot);
        assert_eq!(chosen(4, 2048, 2), Algorithm::OneShot);
        // What all ranks of a processor read and fold takes their turns longer.
        assert_eq!(
            [512, 2048].map(|bytes| chosen(32, bytes, 2)),
            [Algorithm::OneShot, Algorithm::TwoShot]
        );
        assert_eq!(
            [2048, 8192].map(|bytes| chosen(16, bytes, 8)),
            [Algorithm::OneShot, Algorithm::TwoShot]
        );
        let near = |turns| topology(4, 2, true, 64 << 10, turns).model.near().latency_us;
        assert!(near(2) > near(1), "within hosts as well");
    }
}
