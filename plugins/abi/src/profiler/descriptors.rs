//! The descriptions of events in all versions.

#![allow(missing_docs, reason = "members of unions are named as what they describe")]

use super::ncclPid_t;
use std::ffi::{c_char, c_int, c_void};

/// A group of calls, or a single call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerGroupApi_v5_t {
    /// True if the calls are captured into a graph.
    pub graphCaptured: bool,
    /// The depth of the group; 1 for a single call.
    pub groupDepth: c_int,
}

/// A call of a collective.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerCollApi_v5_t {
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The root, or 0.
    pub root: c_int,
    /// The stream.
    pub stream: *mut c_void,
    /// True if the call is captured into a graph.
    pub graphCaptured: bool,
}

/// A call of a collective.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerCollApi_v7_t {
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The root, or 0.
    pub root: c_int,
    /// The stream.
    pub stream: *mut c_void,
    /// True if the call is captured into a graph.
    pub graphCaptured: bool,
    /// The user's tag of the call, or 0.
    pub userTag: u64,
}

/// A call of send or receive.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerP2pApi_v5_t {
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The stream.
    pub stream: *mut c_void,
    /// True if the call is captured into a graph.
    pub graphCaptured: bool,
}

/// A call of send or receive.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerP2pApi_v7_t {
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The stream.
    pub stream: *mut c_void,
    /// True if the call is captured into a graph.
    pub graphCaptured: bool,
    /// The user's tag of the call, or 0.
    pub userTag: u64,
}

/// The launch of operations.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerKernelLaunch_v5_t {
    /// The stream.
    pub stream: *mut c_void,
}

/// A collective under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerColl_v1_t {
    /// The name of the communicator, or null.
    pub name: *const c_char,
    /// The number of the communicator.
    pub commHash: u64,
    /// The number of the collective among those of its function.
    pub seqNumber: u64,
    /// The number of the function.
    pub func: u8,
    /// The send buffer.
    pub sendBuff: *const c_void,
    /// The receive buffer.
    pub recvBuff: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root, or 0.
    pub root: c_int,
    /// The number of the type.
    pub datatype: u8,
    /// The number of the reduction.
    pub op: u32,
    /// Bytes that this rank moves.
    pub trafficBytes: usize,
    /// Channels.
    pub nMaxChannels: u8,
    /// Warps of a thread block.
    pub nWarps: u8,
    /// The row of the tuners' cost table.
    pub algo: u8,
    /// The column of that table.
    pub proto: u8,
    /// 1 if the network reduces.
    pub isCollnet: c_int,
    /// 1 if switches reduce.
    pub isNvls: c_int,
}

/// A collective under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerColl_v2_t {
    /// The name of the communicator, or null.
    pub name: *const c_char,
    /// The number of the communicator.
    pub commHash: u64,
    /// The number of the collective among those of its function.
    pub seqNumber: u64,
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The send buffer.
    pub sendBuff: *const c_void,
    /// The receive buffer.
    pub recvBuff: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root, or 0.
    pub root: c_int,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// Bytes that this rank moves.
    pub trafficBytes: usize,
    /// Channels.
    pub nMaxChannels: u8,
    /// Warps of a thread block.
    pub nWarps: u8,
    /// The row of the tuners' cost table.
    pub algo: *const c_char,
    /// The column of that table.
    pub proto: *const c_char,
}

/// A collective under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerColl_v3_t {
    /// The name of the communicator, or null.
    pub name: *const c_char,
    /// The number of the communicator.
    pub commHash: u64,
    /// The number of the collective among those of its function.
    pub seqNumber: u64,
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The send buffer.
    pub sendBuff: *const c_void,
    /// The receive buffer.
    pub recvBuff: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root, or 0.
    pub root: c_int,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// Channels.
    pub nMaxChannels: u8,
    /// Warps of a thread block.
    pub nWarps: u8,
    /// The row of the tuners' cost table.
    pub algo: *const c_char,
    /// The column of that table.
    pub proto: *const c_char,
}

/// A collective under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerColl_v4_t {
    /// The number of the collective among those of its function.
    pub seqNumber: u64,
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The send buffer.
    pub sendBuff: *const c_void,
    /// The receive buffer.
    pub recvBuff: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root, or 0.
    pub root: c_int,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// Channels.
    pub nChannels: u8,
    /// Warps of a thread block.
    pub nWarps: u8,
    /// The row of the tuners' cost table.
    pub algo: *const c_char,
    /// The column of that table.
    pub proto: *const c_char,
}

/// A collective under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerColl_v5_t {
    /// The number of the collective among those of its function.
    pub seqNumber: u64,
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The send buffer.
    pub sendBuff: *const c_void,
    /// The receive buffer.
    pub recvBuff: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root, or 0.
    pub root: c_int,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// Channels.
    pub nChannels: u8,
    /// Warps of a thread block.
    pub nWarps: u8,
    /// The row of the tuners' cost table.
    pub algo: *const c_char,
    /// The column of that table.
    pub proto: *const c_char,
    /// The event of the group of operations.
    pub parentGroup: *mut c_void,
}

/// A collective under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerColl_v7_t {
    /// The number of the collective among those of its function.
    pub seqNumber: u64,
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The send buffer.
    pub sendBuff: *const c_void,
    /// The receive buffer.
    pub recvBuff: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root, or 0.
    pub root: c_int,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// Channels.
    pub nChannels: u8,
    /// Warps of a thread block.
    pub nWarps: u8,
    /// The row of the tuners' cost table.
    pub algo: *const c_char,
    /// The column of that table.
    pub proto: *const c_char,
    /// The event of the group of operations.
    pub parentGroup: *mut c_void,
    /// The plan, as `oxccl plan` names it.
    pub kernelVariant: *const c_char,
    /// True if the buffers are read and written in place.
    pub isSymColl: bool,
    /// The user's tag of the call, or 0.
    pub userTag: u64,
}

/// A send or receive under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerP2p_v1_t {
    /// The name of the communicator, or null.
    pub name: *const c_char,
    /// The number of the communicator.
    pub commHash: u64,
    /// The number of the function.
    pub func: u8,
    /// The buffer.
    pub buff: *mut c_void,
    /// The number of the type.
    pub datatype: u8,
    /// The number of elements.
    pub count: usize,
    /// The other rank.
    pub peer: c_int,
}

/// A send or receive under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerP2p_v2_t {
    /// The name of the communicator, or null.
    pub name: *const c_char,
    /// The number of the communicator.
    pub commHash: u64,
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The buffer.
    pub buff: *mut c_void,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The other rank.
    pub peer: c_int,
}

/// A send or receive under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerP2p_v4_t {
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The buffer.
    pub buff: *mut c_void,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The other rank.
    pub peer: c_int,
    /// Channels.
    pub nChannels: u8,
}

/// A send or receive under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerP2p_v5_t {
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The buffer.
    pub buff: *mut c_void,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The other rank.
    pub peer: c_int,
    /// Channels.
    pub nChannels: u8,
    /// The event of the group of operations.
    pub parentGroup: *mut c_void,
}

/// A send or receive under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerP2p_v7_t {
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The buffer.
    pub buff: *mut c_void,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The other rank.
    pub peer: c_int,
    /// Channels.
    pub nChannels: u8,
    /// The event of the group of operations.
    pub parentGroup: *mut c_void,
    /// The user's tag of the call, or 0.
    pub userTag: u64,
}

/// The part of an operation in a network.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerProxyOp_v1_t {
    /// The process whose operation it is.
    pub pid: ncclPid_t,
    /// The channel.
    pub channelId: u8,
    /// The other rank.
    pub peer: c_int,
    /// Steps.
    pub nSteps: c_int,
    /// Bytes of a step.
    pub chunkSize: c_int,
    /// 1 for sends.
    pub isSend: c_int,
}

/// A step in a network.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerProxyStep_v1_t {
    /// The number of the step.
    pub step: c_int,
}

/// The work of a channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerKernelCh_v3_t {
    /// The channel.
    pub channelId: u8,
}

/// The work of a channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerKernelCh_v4_t {
    /// The channel.
    pub channelId: u8,
    /// The time of the beginning in ns, by the clock of the device.
    pub pTimer: u64,
}

/// An event of a net plugin.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerNetPlugin_v3_t {
    /// The kind of plugin and its version.
    pub id: i64,
    /// The data of the net plugin, of a type that its kind and version tell.
    pub data: *mut c_void,
}

/// A collective of copy engines.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerCeColl_v6_t {
    /// The number of the collective among those of its function.
    pub seqNumber: u64,
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The send buffer.
    pub sendBuff: *const c_void,
    /// The receive buffer.
    pub recvBuff: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root, or 0.
    pub root: c_int,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The way in which ranks wait for each other.
    pub syncStrategy: *const c_char,
    /// True if they wait within batches.
    pub intraBatchSync: bool,
    /// Copies of a batch.
    pub batchSize: u32,
    /// Batches.
    pub numBatches: u32,
    /// The number among collectives of copy engines.
    pub ceSeqNum: u32,
    /// The stream.
    pub stream: *mut c_void,
}

/// A collective of copy engines.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerCeColl_v7_t {
    /// The number of the collective among those of its function.
    pub seqNumber: u64,
    /// The function, as `AllReduce`.
    pub func: *const c_char,
    /// The send buffer.
    pub sendBuff: *const c_void,
    /// The receive buffer.
    pub recvBuff: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root, or 0.
    pub root: c_int,
    /// The type of the elements, as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The way in which ranks wait for each other.
    pub syncStrategy: *const c_char,
    /// True if they wait within batches.
    pub intraBatchSync: bool,
    /// Copies of a batch.
    pub batchSize: u32,
    /// Batches.
    pub numBatches: u32,
    /// The number among collectives of copy engines.
    pub ceSeqNum: u32,
    /// The stream.
    pub stream: *mut c_void,
    /// The user's tag of the call, or 0.
    pub userTag: u64,
}

/// A wait of copy engines.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerCeCollSync_v6_t {
    /// True at the end.
    pub isComplete: bool,
    /// Number of ranks.
    pub nRanks: c_int,
}

/// A batch of copies.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerCeCollBatch_v6_t {
    /// Copies.
    pub numOps: c_int,
    /// Bytes of all copies.
    pub totalBytes: usize,
    /// True if ranks wait within the batch.
    pub useIntraSync: bool,
}

/// A part of the work of a channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerKernelPhase_v7_t {
    /// The channel.
    pub channelId: u8,
    /// The number of the part.
    pub phaseId: u8,
    /// The name of the part.
    pub phaseName: *const c_char,
    /// The time of the beginning in ns.
    pub pTimer: u64,
}

/// The description of an event, by its kind, in version 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventBody_v1_t {
    pub coll: ncclProfilerColl_v1_t,
    pub p2p: ncclProfilerP2p_v1_t,
    pub proxyOp: ncclProfilerProxyOp_v1_t,
    pub proxyStep: ncclProfilerProxyStep_v1_t,
}

/// The description of an event, by its kind, in version 2.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventBody_v2_t {
    pub coll: ncclProfilerColl_v2_t,
    pub p2p: ncclProfilerP2p_v2_t,
    pub proxyOp: ncclProfilerProxyOp_v1_t,
    pub proxyStep: ncclProfilerProxyStep_v1_t,
}

/// The description of an event, by its kind, in version 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventBody_v3_t {
    pub coll: ncclProfilerColl_v3_t,
    pub p2p: ncclProfilerP2p_v2_t,
    pub proxyOp: ncclProfilerProxyOp_v1_t,
    pub proxyStep: ncclProfilerProxyStep_v1_t,
    pub kernelCh: ncclProfilerKernelCh_v3_t,
    pub netPlugin: ncclProfilerNetPlugin_v3_t,
}

/// The description of an event, by its kind, in version 4.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventBody_v4_t {
    pub coll: ncclProfilerColl_v4_t,
    pub p2p: ncclProfilerP2p_v4_t,
    pub proxyOp: ncclProfilerProxyOp_v1_t,
    pub proxyStep: ncclProfilerProxyStep_v1_t,
    pub kernelCh: ncclProfilerKernelCh_v4_t,
    pub netPlugin: ncclProfilerNetPlugin_v3_t,
}

/// The description of an event, by its kind, in version 5.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventBody_v5_t {
    pub groupApi: ncclProfilerGroupApi_v5_t,
    pub collApi: ncclProfilerCollApi_v5_t,
    pub p2pApi: ncclProfilerP2pApi_v5_t,
    pub kernelLaunch: ncclProfilerKernelLaunch_v5_t,
    pub coll: ncclProfilerColl_v5_t,
    pub p2p: ncclProfilerP2p_v5_t,
    pub proxyOp: ncclProfilerProxyOp_v1_t,
    pub proxyStep: ncclProfilerProxyStep_v1_t,
    pub kernelCh: ncclProfilerKernelCh_v4_t,
    pub netPlugin: ncclProfilerNetPlugin_v3_t,
}

/// The description of an event, by its kind, in version 6.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventBody_v6_t {
    pub groupApi: ncclProfilerGroupApi_v5_t,
    pub collApi: ncclProfilerCollApi_v5_t,
    pub p2pApi: ncclProfilerP2pApi_v5_t,
    pub kernelLaunch: ncclProfilerKernelLaunch_v5_t,
    pub coll: ncclProfilerColl_v5_t,
    pub p2p: ncclProfilerP2p_v5_t,
    pub proxyOp: ncclProfilerProxyOp_v1_t,
    pub proxyStep: ncclProfilerProxyStep_v1_t,
    pub kernelCh: ncclProfilerKernelCh_v4_t,
    pub netPlugin: ncclProfilerNetPlugin_v3_t,
    pub ceColl: ncclProfilerCeColl_v6_t,
    pub ceCollSync: ncclProfilerCeCollSync_v6_t,
    pub ceCollBatch: ncclProfilerCeCollBatch_v6_t,
}

/// The description of an event, by its kind, in version 7.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventBody_v7_t {
    pub groupApi: ncclProfilerGroupApi_v5_t,
    pub collApi: ncclProfilerCollApi_v7_t,
    pub p2pApi: ncclProfilerP2pApi_v7_t,
    pub kernelLaunch: ncclProfilerKernelLaunch_v5_t,
    pub coll: ncclProfilerColl_v7_t,
    pub p2p: ncclProfilerP2p_v7_t,
    pub proxyOp: ncclProfilerProxyOp_v1_t,
    pub proxyStep: ncclProfilerProxyStep_v1_t,
    pub kernelCh: ncclProfilerKernelCh_v4_t,
    pub netPlugin: ncclProfilerNetPlugin_v3_t,
    pub ceColl: ncclProfilerCeColl_v7_t,
    pub ceCollSync: ncclProfilerCeCollSync_v6_t,
    pub ceCollBatch: ncclProfilerCeCollBatch_v6_t,
    pub kernelPhase: ncclProfilerKernelPhase_v7_t,
}

/// An event that begins, in version 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerEventDescr_v1_t {
    /// The kind of the event.
    pub r#type: u8,
    /// The event that this one is a part of.
    pub parentObj: *mut c_void,
    /// The rank.
    pub rank: c_int,
    /// The description.
    pub body: ncclProfilerEventBody_v1_t,
}

/// An event that begins, in version 2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerEventDescr_v2_t {
    /// The kind of the event.
    pub r#type: u8,
    /// The event that this one is a part of.
    pub parentObj: *mut c_void,
    /// The rank.
    pub rank: c_int,
    /// The description.
    pub body: ncclProfilerEventBody_v2_t,
}

/// An event that begins, in version 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerEventDescr_v3_t {
    /// The kind of the event.
    pub r#type: u8,
    /// The event that this one is a part of.
    pub parentObj: *mut c_void,
    /// The rank.
    pub rank: c_int,
    /// The description.
    pub body: ncclProfilerEventBody_v3_t,
}

/// An event that begins, in version 4.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerEventDescr_v4_t {
    /// The kind of the event.
    pub r#type: u8,
    /// The event that this one is a part of.
    pub parentObj: *mut c_void,
    /// The rank.
    pub rank: c_int,
    /// The description.
    pub body: ncclProfilerEventBody_v4_t,
}

/// An event that begins, in version 5.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerEventDescr_v5_t {
    /// The kind of the event.
    pub r#type: u64,
    /// The event that this one is a part of.
    pub parentObj: *mut c_void,
    /// The rank.
    pub rank: c_int,
    /// The description.
    pub body: ncclProfilerEventBody_v5_t,
}

/// An event that begins, in version 6.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerEventDescr_v6_t {
    /// The kind of the event.
    pub r#type: u64,
    /// The event that this one is a part of.
    pub parentObj: *mut c_void,
    /// The rank.
    pub rank: c_int,
    /// The description.
    pub body: ncclProfilerEventBody_v6_t,
}

/// An event that begins, in version 7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerEventDescr_v7_t {
    /// The kind of the event.
    pub r#type: u64,
    /// The event that this one is a part of.
    pub parentObj: *mut c_void,
    /// The rank.
    pub rank: c_int,
    /// The description.
    pub body: ncclProfilerEventBody_v7_t,
}
