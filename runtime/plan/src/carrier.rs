//! Carriers: the means by which the data of a plan move. The carrier follows from the plan, the
//! size and the memory of a call, and the resources of the communicator; only this module decides.
//! Whether the buffers of a call lie in such memory is known when it runs.

use crate::generate::{Algorithm, Needs, Plan};
use crate::ir::{Buffer, Op};
use crate::listed::listed;
use crate::packets::Room;
use crate::select::{Memory, Topology};
use crate::spec::Collective;

listed! {
    /// The carrier of a plan's data.
    enum Carrier,
    named
    /// Returns the name in `oxccl plan`.
    {
        /// A copy by the rank itself, in a communicator of one rank.
        Local = 0, "local copy";
        /// Packets: lines of memory that carry data and the number of their operation.
        Packets = 1, "packets";
        /// The stage: each rank publishes its data in memory that all others read.
        Stage = 2, "stage";
        /// Inboxes: each rank writes into the stages of the others.
        Inbox = 3, "inbox";
        /// Edges: messages from one rank to another.
        Edges = 4, "edges";
        /// User memory that all ranks map: the peers read and write it in place.
        InPlace = 5, "in place";
        /// User memory that the system copies from another process: remote read.
        RemoteRead = 6, "remote read";
        /// User memory in windows, which the copy engines of GPUs move. A rank takes it instead of
        /// [`InPlace`](Carrier::InPlace), whatever its peers do.
        CopyEngines = 7, "copy engines";
        /// Lines: edges between GPUs, in memory that the receiver maps for the sender.
        Lines = 8, "lines";
    }
}

impl Carrier {
    /// Returns the carrier of a plan for blocks of `bytes` bytes in this kind of memory.
    pub fn of(plan: &Plan, bytes: u64, topology: &Topology, memory: Memory) -> Self {
        let packets = || topology.packets.carry(plan, bytes);
        match (plan.algorithm.generator().needs, memory) {
            (Needs::Nothing, _) => Carrier::Local,
            (Needs::Stage | Needs::Inbox, _) if packets() => Carrier::Packets,
            (Needs::Stage, _) => Carrier::Stage,
            (Needs::Inbox, _) => Carrier::Inbox,
            (Needs::Edges, _) if topology.lines => Carrier::Lines,
            (Needs::Edges | Needs::Switch, _) => Carrier::Edges,
            (Needs::UserMemory, Memory::Any) => Carrier::RemoteRead,
            (Needs::UserMemory, Memory::Windows) if engines_move(plan, bytes, topology) => {
                Carrier::CopyEngines
            }
            (Needs::UserMemory, Memory::Mapped | Memory::Windows) => Carrier::InPlace,
        }
    }
}

/// The plans that packets carry: facts that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Packets {
    /// No plans.
    Nowhere,
    /// Packets in shared memory: one-shot plans in which a rank publishes at most so many bytes.
    Lines {
        /// The most bytes that a rank publishes.
        published_bytes: u64,
    },
    /// Packets between GPUs: one-shot plans and pushes.
    Kernels {
        /// The room for packets.
        room: Room,
        /// Bytes of data in a packet.
        line_bytes: u64,
        /// The most bytes of all ranks' blocks for which packets go in several windows, where all
        /// ranks hear from all.
        windows_bytes: u64,
    },
}

impl Packets {
    /// Returns whether packets carry a plan for blocks of `bytes` bytes.
    pub fn carry(&self, plan: &Plan, bytes: u64) -> bool {
        let Plan { spec, algorithm, layout } = plan;
        match *self {
            Packets::Nowhere => false,
            Packets::Lines { published_bytes } => {
                let published = u64::from(layout.stage_blocks).saturating_mul(bytes);
                *algorithm == Algorithm::OneShot && published <= published_bytes
            }
            Packets::Kernels { room, line_bytes, windows_bytes } => {
                let lines = |bytes: u64| bytes.div_ceil(line_bytes);
                let most = windows_bytes / u64::from(spec.nranks);
                let fitting = [Algorithm::OneShot, Algorithm::Push].contains(algorithm);
                fitting && room.fits(spec.collective, lines(bytes), lines(most))
            }
        }
    }
}

/// Returns whether copy engines can execute all data movement of a plan, and pay.
fn engines_move(plan: &Plan, bytes: u64, topology: &Topology) -> bool {
    let moved = |op: &Op| match op {
        Op::Copy { src, dst } | Op::Get { src, dst, .. } => {
            src.buffer == Buffer::Input && dst.buffer == Buffer::Output
        }
        Op::Signal | Op::Wait { .. } => true,
        _ => false,
    };
    let spec = &plan.spec;
    // No other collective gives every rank blocks that others hold unchanged.
    let gathers = matches!(spec.collective, Collective::AllGather | Collective::AllToAll);
    let pays = bytes.saturating_mul(u64::from(spec.nranks - 1)) >= topology.engine_bytes;
    gathers && pays && plan.program(0).ops.iter().all(moved)
}
