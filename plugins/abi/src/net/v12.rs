//! Version 12.

use super::ncclNetDeviceHandle_v12_t;
use crate::{
    ncclDataType_t, ncclDebugLogger_t, ncclNetDeviceType, ncclProfilerCallback_t, ncclRedOp_t,
    ncclResult_t,
};
use std::ffi::{c_char, c_int, c_void};

/// The devices that a device consists of.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetVDeviceProps_v12_t {
    /// The number of devices.
    pub ndevs: c_int,
    /// The numbers of the devices.
    pub devs: [c_int; 8],
}

/// The wishes of a communicator.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetCommConfig_v12_t {
    /// The traffic class, or -1.
    pub trafficClass: c_int,
}

/// The properties of a device, as a plugin tells them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetProperties_v12_t {
    /// The name, a text of the plugin.
    pub name: *mut c_char,
    /// The device's place in sysfs, or null.
    pub pciPath: *mut c_char,
    /// The same number for devices that share a physical one.
    pub guid: u64,
    /// The kinds of memory: a sum of `NCCL_PTR_*`.
    pub ptrSupport: c_int,
    /// 1 if a registration holds for all connections of the device.
    pub regIsGlobal: c_int,
    /// 1 if received data on GPUs must be flushed always.
    pub forceFlush: c_int,
    /// The speed in Mbit/s.
    pub speed: c_int,
    /// The number of the port.
    pub port: c_int,
    /// The latency in µs.
    pub latency: f32,
    /// The most connections.
    pub maxComms: c_int,
    /// The most messages of one `irecv`.
    pub maxRecvs: c_int,
    /// The kind of offload to GPUs.
    pub netDeviceType: ncclNetDeviceType,
    /// The version of the offload.
    pub netDeviceVersion: c_int,
    /// The devices that this one consists of.
    pub vProps: ncclNetVDeviceProps_v12_t,
    /// The most bytes of a message.
    pub maxP2pBytes: usize,
    /// The most bytes of a collective.
    pub maxCollBytes: usize,
    /// The most messages of one request.
    pub maxMultiRequestSize: c_int,
    /// The number of the rail, or -1.
    pub railId: i16,
    /// The number of the plane, or -1.
    pub planeId: i16,
}

/// The expected use of one direction; -1 where it is not known.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetCommAttr_v12_t {
    /// The most peers at a time.
    pub maxConcurrentPeers: i32,
    /// The least peers at a time.
    pub minConcurrentPeers: i32,
    /// The most connections with a peer.
    pub maxFlowsPerPeer: i32,
    /// The least connections with a peer.
    pub minFlowsPerPeer: i32,
}

/// The expected use of a communicator; -1 where it is not known.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetAttr_v12_t {
    /// Sending.
    pub sendCommAttr: ncclNetCommAttr_v12_t,
    /// Receiving.
    pub recvCommAttr: ncclNetCommAttr_v12_t,
    /// A bit per operation.
    pub op: u32,
    /// A bit per algorithm.
    pub algo: u32,
    /// A bit per protocol.
    pub proto: u32,
}

/// The functions of a net plugin, `ncclNetPlugin_v12`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNet_v12_t {
    /// The name, by which `NCCL_NET` selects the plugin.
    pub name: *const c_char,
    /// Begins the use of the plugin: by a communicator from version 11 on, which gets a context;
    /// by the process before. The logger may be called until the end.
    pub init: Option<
        unsafe extern "C" fn(
            ctx: *mut *mut c_void,
            commId: u64,
            config: *mut ncclNetCommConfig_v12_t,
            logFunction: ncclDebugLogger_t,
            profFunction: ncclProfilerCallback_t,
        ) -> ncclResult_t,
    >,
    /// Tells the number of devices.
    pub devices: Option<unsafe extern "C" fn(ndev: *mut c_int) -> ncclResult_t>,
    /// Tells what is known of a device. The texts belong to the plugin.
    pub getProperties: Option<
        unsafe extern "C" fn(dev: c_int, props: *mut ncclNetProperties_v12_t) -> ncclResult_t,
    >,
    /// Listens on a device for one connection, and fills in the handle, of
    /// `NCCL_NET_HANDLE_MAXSIZE` bytes, which is brought to the peer.
    pub listen: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            dev: c_int,
            handle: *mut c_void,
            listenComm: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Connects to a handle. Does not block: without a connection yet it succeeds and leaves
    /// `sendComm` null, and is called again with the same handle at the same place.
    pub connect: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            dev: c_int,
            handle: *mut c_void,
            sendComm: *mut *mut c_void,
            sendDevComm: *mut *mut ncclNetDeviceHandle_v12_t,
        ) -> ncclResult_t,
    >,
    /// Accepts the connection of a listener, likewise without blocking.
    pub accept: Option<
        unsafe extern "C" fn(
            listenComm: *mut c_void,
            recvComm: *mut *mut c_void,
            recvDevComm: *mut *mut ncclNetDeviceHandle_v12_t,
        ) -> ncclResult_t,
    >,
    /// Registers memory of a kind (`NCCL_PTR_*`) with a connection.
    pub regMr: Option<
        unsafe extern "C" fn(
            comm: *mut c_void,
            data: *mut c_void,
            size: usize,
            kind: c_int,
            mhandle: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Registers memory of a GPU by its dma-buf; may be null.
    pub regMrDmaBuf: Option<
        unsafe extern "C" fn(
            comm: *mut c_void,
            data: *mut c_void,
            size: usize,
            kind: c_int,
            offset: u64,
            fd: c_int,
            mhandle: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Ends a registration.
    pub deregMr:
        Option<unsafe extern "C" fn(comm: *mut c_void, mhandle: *mut c_void) -> ncclResult_t>,
    /// Starts to send. Without room it succeeds and leaves `request` null, to be tried again.
    pub isend: Option<
        unsafe extern "C" fn(
            sendComm: *mut c_void,
            data: *mut c_void,
            size: usize,
            tag: c_int,
            mhandle: *mut c_void,
            phandle: *mut c_void,
            request: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Offers memory for `n` messages, matched by their tags, likewise.
    pub irecv: Option<
        unsafe extern "C" fn(
            recvComm: *mut c_void,
            n: c_int,
            data: *mut *mut c_void,
            sizes: *mut usize,
            tags: *mut c_int,
            mhandles: *mut *mut c_void,
            phandles: *mut *mut c_void,
            request: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Makes received data visible to the GPU; may leave `request` null where nothing is to do.
    pub iflush: Option<
        unsafe extern "C" fn(
            recvComm: *mut c_void,
            n: c_int,
            data: *mut *mut c_void,
            sizes: *mut c_int,
            mhandles: *mut *mut c_void,
            request: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Tells whether a request is done, and then the sizes of the messages received.
    pub test: Option<
        unsafe extern "C" fn(
            request: *mut c_void,
            done: *mut c_int,
            sizes: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// Ends a connection.
    pub closeSend: Option<unsafe extern "C" fn(sendComm: *mut c_void) -> ncclResult_t>,
    /// Ends a connection.
    pub closeRecv: Option<unsafe extern "C" fn(recvComm: *mut c_void) -> ncclResult_t>,
    /// Ends a listener.
    pub closeListen: Option<unsafe extern "C" fn(listenComm: *mut c_void) -> ncclResult_t>,
    /// For offload to GPUs; may be null.
    pub getDeviceMr: Option<
        unsafe extern "C" fn(
            comm: *mut c_void,
            mhandle: *mut c_void,
            dptr_mhandle: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// For offload to GPUs; may be null.
    pub irecvConsumed: Option<
        unsafe extern "C" fn(recvComm: *mut c_void, n: c_int, request: *mut c_void) -> ncclResult_t,
    >,
    /// Makes one device of several; may be null.
    pub makeVDevice: Option<
        unsafe extern "C" fn(d: *mut c_int, props: *mut ncclNetVDeviceProps_v12_t) -> ncclResult_t,
    >,
    /// Ends a context.
    pub finalize: Option<unsafe extern "C" fn(ctx: *mut c_void) -> ncclResult_t>,
    /// Tells what a communicator will do; may be null.
    pub setNetAttr: Option<
        unsafe extern "C" fn(ctx: *mut c_void, netAttr: *mut ncclNetAttr_v12_t) -> ncclResult_t,
    >,
}

/// A part of the data of an all-gather or a reduce-scatter in the network.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetSGE_v12_t {
    /// The registration of the memory.
    pub mhandle: *mut c_void,
    /// The first byte.
    pub address: *mut c_void,
    /// The number of bytes.
    pub size: usize,
}

/// The functions of a network that reduces, `ncclCollNetPlugin_v12`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclCollNet_v12_t {
    /// The name, in logs.
    pub name: *const c_char,
    /// Begins the use of the network by a communicator.
    pub init: Option<
        unsafe extern "C" fn(
            ctx: *mut *mut c_void,
            commId: u64,
            logFunction: ncclDebugLogger_t,
        ) -> ncclResult_t,
    >,
    /// Tells the number of devices that reduce. If there are none, the other functions may be null.
    pub devices: Option<unsafe extern "C" fn(ndev: *mut c_int) -> ncclResult_t>,
    /// Tells the properties of a device.
    pub getProperties: Option<
        unsafe extern "C" fn(dev: c_int, props: *mut ncclNetProperties_v12_t) -> ncclResult_t,
    >,
    /// Makes what the ranks need to find each other: a handle of at most
    /// `NCCL_NET_HANDLE_MAXSIZE` bytes, which all ranks get.
    pub listen: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            dev: c_int,
            handle: *mut c_void,
            listenComm: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Makes a group of the ranks with these handles, of which this is number `rank`. May block
    /// until all have called it.
    pub connect: Option<
        unsafe extern "C" fn(
            handles: *mut *mut c_void,
            nranks: c_int,
            rank: c_int,
            listenComm: *mut c_void,
            collComm: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Sets `supported` to 1 if the network reduces a type by an operation, else to 0.
    pub reduceSupport: Option<
        unsafe extern "C" fn(
            dataType: ncclDataType_t,
            redOp: ncclRedOp_t,
            supported: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// Registers memory, of a kind `NCCL_PTR_*`.
    pub regMr: Option<
        unsafe extern "C" fn(
            collComm: *mut c_void,
            data: *mut c_void,
            size: usize,
            kind: c_int,
            mhandle: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Registers memory of a GPU by a dma-buf; null if the network cannot.
    pub regMrDmaBuf: Option<
        unsafe extern "C" fn(
            collComm: *mut c_void,
            data: *mut c_void,
            size: usize,
            kind: c_int,
            offset: u64,
            fd: c_int,
            mhandle: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Gives up registered memory.
    pub deregMr:
        Option<unsafe extern "C" fn(collComm: *mut c_void, mhandle: *mut c_void) -> ncclResult_t>,
    /// Starts an all-reduce of `count` elements. A null request: there is no room now.
    pub iallreduce: Option<
        unsafe extern "C" fn(
            collComm: *mut c_void,
            sendData: *mut c_void,
            recvData: *mut c_void,
            count: usize,
            dataType: ncclDataType_t,
            redOp: ncclRedOp_t,
            sendMhandle: *mut c_void,
            recvMhandle: *mut c_void,
            request: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Starts an all-gather; not used here.
    pub iallgather: Option<
        unsafe extern "C" fn(
            collComm: *mut c_void,
            sendData: *mut c_void,
            nRecvParts: c_int,
            recvParts: *mut ncclNetSGE_v12_t,
            bytesPerRank: usize,
            windowOffset: usize,
            windowBytes: usize,
            sendMhandle: *mut c_void,
            request: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Starts a reduce-scatter; not used here.
    pub ireducescatter: Option<
        unsafe extern "C" fn(
            collComm: *mut c_void,
            nSendParts: c_int,
            sendParts: *mut ncclNetSGE_v12_t,
            recvData: *mut c_void,
            bytesPerRank: usize,
            windowOffset: usize,
            windowBytes: usize,
            dataType: ncclDataType_t,
            redOp: ncclRedOp_t,
            recvMhandle: *mut c_void,
            request: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Makes data that have come visible to the GPU.
    pub iflush: Option<
        unsafe extern "C" fn(
            collComm: *mut c_void,
            data: *mut c_void,
            size: c_int,
            mhandle: *mut c_void,
            request: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Sets `done` to 1 once a request is complete, which ends the request.
    pub test: Option<
        unsafe extern "C" fn(
            request: *mut c_void,
            done: *mut c_int,
            size: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// Ends a group.
    pub closeColl: Option<unsafe extern "C" fn(collComm: *mut c_void) -> ncclResult_t>,
    /// Ends what `listen` has made.
    pub closeListen: Option<unsafe extern "C" fn(listenComm: *mut c_void) -> ncclResult_t>,
    /// Makes one device of several.
    pub makeVDevice: Option<
        unsafe extern "C" fn(d: *mut c_int, props: *mut ncclNetVDeviceProps_v12_t) -> ncclResult_t,
    >,
    /// Ends the use of the network by a communicator.
    pub finalize: Option<unsafe extern "C" fn(ctx: *mut c_void) -> ncclResult_t>,
}
