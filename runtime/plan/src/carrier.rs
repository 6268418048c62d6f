//! Carriers: what moves the data of a plan. Which one does follows from the plan, the size and the
//! memory of a call, and what a communicator has; it is decided here alone.

use crate::generate::{Algorithm, Needs, Plan};
use crate::ir::{Buffer, Op};
use crate::packets::Room;
use crate::select::{Memory, Topology};
use crate::spec::Collective;

/// What moves the data of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Carrier {
    /// A copy of the rank itself: there is no other.
    Local = 0,
    /// Packets: lines of memory that carry data and the number of their operation.
    Packets = 1,
    /// The stage: each rank publishes its data in memory that all others read.
    Stage = 2,
    /// Inboxes: each rank writes into the stages of the others.
    Inbox = 3,
    /// Edges: messages from one rank to another.
    Edges = 4,
    /// User memory, read and written by the peers where it lies, as all map it.
    InPlace = 5,
    /// User memory that the system copies from another process.
    RemoteRead = 6,
    /// User memory in windows, which copy engines of GPUs move.
    CopyEngines = 7,
}

impl Carrier {
    /// All carriers, by number.
    pub const ALL: [Carrier; 8] = [
        Carrier::Local,
        Carrier::Packets,
        Carrier::Stage,
        Carrier::Inbox,
        Carrier::Edges,
        Carrier::InPlace,
        Carrier::RemoteRead,
        Carrier::CopyEngines,
    ];

    /// The name in `oxccl plan`.
    pub const fn name(self) -> &'static str {
        match self {
            Carrier::Local => "local copy",
            Carrier::Packets => "packets",
            Carrier::Stage => "stage",
            Carrier::Inbox => "inbox",
            Carrier::Edges => "edges",
            Carrier::InPlace => "in place",
            Carrier::RemoteRead => "remote read",
            Carrier::CopyEngines => "copy engines",
        }
    }

    /// Returns the carrier of a plan for blocks of `bytes` bytes in some kind of memory.
    pub fn of(plan: &Plan, bytes: u64, topology: &Topology, memory: Memory) -> Self {
        let packets = || topology.packets.carry(plan, bytes);
        match (plan.algorithm.generator().needs, memory) {
            (Needs::Nothing, _) => Carrier::Local,
            (Needs::Stage | Needs::Inbox, _) if packets() => Carrier::Packets,
            (Needs::Stage, _) => Carrier::Stage,
            (Needs::Inbox, _) => Carrier::Inbox,
            (Needs::Edges, _) => Carrier::Edges,
            (Needs::UserMemory, Memory::Any) => Carrier::RemoteRead,
            (Needs::UserMemory, Memory::Windows) if engines_move(plan, bytes, topology) => {
                Carrier::CopyEngines
            }
            (Needs::UserMemory, Memory::Mapped | Memory::Windows) => Carrier::InPlace,
        }
    }
}

/// Which plans packets carry: facts that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Packets {
    /// None.
    Nowhere,
    /// In shared memory: one-shot plans in which a rank publishes at most so many bytes.
    Lines {
        /// See above.
        published_bytes: u64,
    },
    /// Between GPUs: one-shot plans and pushes.
    Kernels {
        /// The room for packets.
        room: Room,
        /// Bytes of data in a packet.
        line_bytes: u64,
        /// Bytes of all ranks' blocks up to which packets go in several windows, where all ranks
        /// hear from all.
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

/// Returns whether copy engines can do all that a plan does with data, and pay.
fn engines_move(plan: &Plan, bytes: u64, topology: &Topology) -> bool {
    let moved = |op: &Op| match op {
        Op::Copy { src, dst } | Op::Get { src, dst, .. } => {
            src.buffer == Buffer::Input && dst.buffer == Buffer::Output
        }
        Op::Signal | Op::Wait { .. } => true,
        _ => false,
    };
    let spec = &plan.spec;
    // No other collective gives every rank blocks that others hold as they are.
    let gathers = matches!(spec.collective, Collective::AllGather | Collective::AllToAll);
    let pays = bytes.saturating_mul(u64::from(spec.nranks - 1)) >= topology.engine_bytes;
    gathers && pays && plan.program(0).ops.iter().all(moved)
}
