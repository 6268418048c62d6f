//! Types of `nccl_device.h`, with NCCL's layouts.

use crate::nccl::types::ncclWindow_t;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// NCCL's limit of connections for communication that kernels start.
pub const NCCL_GIN_MAX_CONNECTIONS: usize = 4;

/// Ranks at even distances.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ncclTeam {
    /// Number of members.
    pub nRanks: c_int,
    /// The calling rank's place among the members.
    pub rank: c_int,
    /// Distance of neighbours, in ranks of the communicator.
    pub stride: c_int,
}

/// Ranks at even distances.
pub type ncclTeam_t = ncclTeam;

/// A buffer of a device communicator.
pub type ncclDevResourceHandle = u32;
/// A buffer of a device communicator.
pub type ncclDevResourceHandle_t = ncclDevResourceHandle;
/// Index of a signal.
pub type ncclGinSignal_t = u32;
/// Index of a counter.
pub type ncclGinCounter_t = u32;

/// A multicast address.
#[repr(C)]
pub struct ncclMultimemHandle {
    /// Base.
    pub mcBasePtr: *mut c_void,
}

/// A multicast address.
pub type ncclMultimemHandle_t = ncclMultimemHandle;

/// A barrier of ranks that share memory.
#[repr(C)]
pub struct ncclLsaBarrierHandle {
    /// The buffer of the barriers.
    pub bufHandle: ncclDevResourceHandle_t,
    /// Number of barriers in the buffer.
    pub nBarriers: c_int,
}

/// A barrier of ranks that share memory.
pub type ncclLsaBarrierHandle_t = ncclLsaBarrierHandle;

/// A barrier over the network.
#[repr(C)]
pub struct ncclGinBarrierHandle {
    /// The first signal of the barrier.
    pub signal0: ncclGinSignal_t,
    /// Not used.
    pub unused: ncclDevResourceHandle_t,
}

/// A barrier over the network.
pub type ncclGinBarrierHandle_t = ncclGinBarrierHandle;

/// A barrier by counted transfers of NVLink switches.
#[repr(C)]
pub struct ncclCftBarrierHandle {
    /// The buffer of the barriers.
    pub bufHandle: ncclDevResourceHandle_t,
    /// Number of barriers in the buffer.
    pub nBarriers: c_int,
}

/// A barrier by counted transfers of NVLink switches.
pub type ncclCftBarrierHandle_t = ncclCftBarrierHandle;

/// The number of an endpoint of counted transfers.
pub type ncclCftLeId = u32;
/// The number of an endpoint of counted transfers.
pub type ncclCftLeId_t = ncclCftLeId;

/// The teams of counted transfers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclCftTeamMode_t {
    /// One level.
    NCCL_CFT_TEAM_FLAT = 0,
    /// Two levels, with multicast.
    NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
    /// Two levels, of which the first one shares memory.
    NCCL_CFT_TEAM_HIER_LSA = 2,
}

/// Slots of an all-to-all exchange of small elements.
#[repr(C)]
pub struct ncclLLA2AHandle {
    /// The buffer of the slots.
    pub bufHandle: ncclDevResourceHandle_t,
    /// Number of slots.
    pub nSlots: u32,
}

/// Slots of an all-to-all exchange of small elements.
pub type ncclLLA2AHandle_t = ncclLLA2AHandle;

/// Opaque.
pub struct ncclGinOutboxHandle {
    _private: [u8; 0],
}

/// Opaque.
pub struct ncclGinInboxA2AHandle {
    _private: [u8; 0],
}

/// Opaque.
pub struct ncclDevCommWindowTable {
    _private: [u8; 0],
}

/// Opaque.
pub type ncclDevCommWindowTable_t = *mut ncclDevCommWindowTable;

/// The connections between ranks of different hosts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclGinConnectionType_t {
    /// No connections.
    NCCL_GIN_CONNECTION_NONE = 0,
    /// Between all ranks.
    NCCL_GIN_CONNECTION_FULL = 1,
    /// Between ranks with equal places on their hosts.
    NCCL_GIN_CONNECTION_RAIL = 2,
    /// Between ranks at a distance of the program's.
    NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3,
}

/// The agent that moves data for kernels over the network.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclGinType_t {
    /// None.
    NCCL_GIN_TYPE_NONE = 0,
    /// A thread of the host.
    NCCL_GIN_TYPE_PROXY = 2,
    /// The device itself, on Mellanox cards.
    NCCL_GIN_TYPE_GDAKI = 3,
    /// The device itself, on other cards.
    NCCL_GIN_TYPE_GPI = 4,
    /// The device itself, on the cards of EC2.
    NCCL_GIN_TYPE_EFA_GDA = 5,
    /// Number of types.
    NCCL_GIN_MAX_TYPES = 6,
}

/// A buffer that a device communicator shall have.
#[repr(C)]
pub struct ncclDevResourceRequirements {
    /// The next one, or null.
    pub next: *mut ncclDevResourceRequirements,
    /// Bytes.
    pub bufferSize: usize,
    /// Alignment in bytes.
    pub bufferAlign: usize,
    /// Out: the buffer; may be null.
    pub outBufferHandle: *mut ncclDevResourceHandle_t,
    /// Number of signals.
    pub ginSignalCount: c_int,
    /// Number of counters.
    pub ginCounterCount: c_int,
    /// Out: the first signal; may be null.
    pub outGinSignalStart: *mut ncclGinSignal_t,
    /// Out: the first counter; may be null.
    pub outGinCounterStart: *mut ncclGinCounter_t,
}

/// A buffer that a device communicator shall have.
pub type ncclDevResourceRequirements_t = ncclDevResourceRequirements;

/// A team that a device communicator shall have.
#[repr(C)]
pub struct ncclTeamRequirements {
    /// The next one, or null.
    pub next: *mut ncclTeamRequirements,
    /// The team.
    pub team: ncclTeam_t,
    /// True if the team needs multicast.
    pub multimem: bool,
    /// Out: the multicast address; may be null.
    pub outMultimemHandle: *mut ncclMultimemHandle_t,
}

/// A team that a device communicator shall have.
pub type ncclTeamRequirements_t = ncclTeamRequirements;

/// The requirements of a device communicator; begin with NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER.
#[repr(C)]
#[allow(missing_docs, reason = "nothing here has a meaning on the host device")]
pub struct ncclDevCommRequirements {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub resourceRequirementsList: *mut ncclDevResourceRequirements_t,
    pub teamRequirementsList: *mut ncclTeamRequirements_t,
    pub lsaMultimem: bool,
    pub barrierCount: c_int,
    pub lsaBarrierCount: c_int,
    pub railGinBarrierCount: c_int,
    pub lsaLLA2ABlockCount: c_int,
    pub lsaLLA2ASlotCount: c_int,
    pub ginForceEnable: bool,
    pub ginContextCount: c_int,
    pub ginSignalCount: c_int,
    pub ginCounterCount: c_int,
    pub ginConnectionType: ncclGinConnectionType_t,
    pub ginExclusiveContexts: bool,
    pub ginQueueDepth: c_int,
    pub ginTrafficClass: c_int,
    pub worldGinBarrierCount: c_int,
    pub ginStrongSignalsRequired: bool,
    pub ginVaSignalsRequired: bool,
    pub ginCustomStride: c_int,
    pub ginType: ncclGinType_t,
    pub useRuntimeVersion: bool,
    pub cftCaps: c_int,
    pub cftBarrierCount: c_int,
}

/// The requirements of a device communicator.
pub type ncclDevCommRequirements_t = ncclDevCommRequirements;

/// The capabilities of a communicator for kernels; begin with NCCL_COMM_PROPERTIES_INITIALIZER.
#[repr(C)]
pub struct ncclCommProperties {
    /// Set by the initializer.
    pub size: usize,
    /// Set by the initializer.
    pub magic: c_uint,
    /// Set by the initializer.
    pub version: c_uint,
    /// The calling rank.
    pub rank: c_int,
    /// Number of ranks.
    pub nRanks: c_int,
    /// Index of the device.
    pub cudaDev: c_int,
    /// Index of the device for NVML; −1 on the host device.
    pub nvmlDev: c_int,
    /// True if kernels can communicate.
    pub deviceApiSupport: bool,
    /// True if there is multicast.
    pub multimemSupport: bool,
    /// The agent that moves data for kernels over the network.
    pub ginType: ncclGinType_t,
    /// Number of teams whose ranks share memory.
    pub nLsaTeams: c_int,
    /// True if ncclPutSignal and ncclSignal reach every rank.
    pub hostRmaSupport: bool,
    /// The agent that moves data for kernels between ranks with equal places on their hosts.
    pub railedGinType: ncclGinType_t,
    /// The number of the communicator for kernels; 0 if there are none.
    pub commHash: u64,
    /// The smallest distance of ranks that kernels reach over the network.
    pub ginMinStride: c_int,
    /// The connections that there are for kernels.
    pub ginConnectionType: ncclGinConnectionType_t,
    /// True for each ncclGinType_t that can be had.
    pub ginSupport: [bool; 64],
    /// Size of an ncclDevComm_t of this library's version; 0 if there are none.
    pub devCommRuntimeVersionSize: usize,
    /// True if NVLink switches count transfers.
    pub cftSupport: bool,
    /// True if they count transfers to all at once.
    pub cftMulticastSupport: bool,
    /// True if kernels can wait for a count.
    pub cftCountedSupport: bool,
}

/// The capabilities of a communicator for kernels.
pub type ncclCommProperties_t = ncclCommProperties;

/// Part of a device communicator.
#[repr(C)]
#[allow(missing_docs, reason = "nothing here has a meaning on the host device")]
pub struct ncclResourceWindow_vidmem {
    pub lsaFlatBase: *mut c_char,
    pub stride4G: u32,
    pub mcOffset4K: u32,
}

/// Part of a device communicator.
pub type ncclResourceWindow_vidmem_t = ncclResourceWindow_vidmem;

/// A communicator for kernels.
#[repr(C)]
#[allow(missing_docs, reason = "nothing here has a meaning on the host device")]
pub struct ncclDevComm {
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub nRanks: c_int,
    pub nRanks_rcp32: u32,
    pub lsaRank: c_int,
    pub lsaSize: c_int,
    pub lsaSize_rcp32: u32,
    pub windowTable: ncclDevCommWindowTable_t,
    pub resourceWindow: ncclWindow_t,
    pub resourceWindow_inlined: ncclResourceWindow_vidmem_t,
    pub hybridDenseGinBarrier: ncclGinBarrierHandle_t,
    pub lsaMultimem: ncclMultimemHandle_t,
    pub lsaBarrier: ncclLsaBarrierHandle_t,
    pub railGinBarrier: ncclGinBarrierHandle_t,
    pub ginConnectionCount: u8,
    pub backendIndex: u8,
    pub ginNetDeviceTypes: [u8; NCCL_GIN_MAX_CONNECTIONS],
    pub ginHandles: [*mut c_void; NCCL_GIN_MAX_CONNECTIONS],
    pub ginSignalCount: c_int,
    pub ginCounterCount: c_int,
    pub ginSignalShadows: *mut u64,
    pub ginContextCount: u32,
    pub ginConnectionStride: c_int,
    pub ginContextStride: c_int,
    pub ginStrongLegacySignals: bool,
    pub abortFlag: *mut u32,
    pub hybridLsaBarrier: ncclLsaBarrierHandle_t,
    pub hybridRailGinBarrier: ncclGinBarrierHandle_t,
    pub worldGinBarrier: ncclGinBarrierHandle_t,
    pub ginConnectionStride_rcp32: u32,
    pub cftRank: c_int,
    pub cftSize: c_int,
    pub cftMultimemRank: c_int,
    pub cftMultimemSize: c_int,
    pub cftMultimemSize_rcp32: u32,
    pub ucLeId: ncclCftLeId,
    pub mcLeId: ncclCftLeId,
    pub cftBarrier: ncclCftBarrierHandle_t,
    pub cftMultimemBarrier: ncclCftBarrierHandle_t,
}

/// A communicator for kernels.
pub type ncclDevComm_t = ncclDevComm;
