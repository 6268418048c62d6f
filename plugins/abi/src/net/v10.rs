//! Version 10.

#![allow(missing_docs, reason = "the meaning of the fields is that in version 12")]

use super::ncclNetDeviceHandle_v10_t;
use crate::{
    ncclDataType_t, ncclDebugLogger_t, ncclNetDeviceType, ncclProfilerCallback_t, ncclRedOp_t,
    ncclResult_t,
};
use std::ffi::{c_char, c_int, c_void};

/// The devices that a device consists of.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetVDeviceProps_v10_t {
    pub ndevs: c_int,
    pub devs: [c_int; 4],
}

/// The wishes of a communicator.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetCommConfig_v10_t {
    pub trafficClass: c_int,
}

/// The properties of a device, as a plugin tells them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetProperties_v10_t {
    pub name: *mut c_char,
    pub pciPath: *mut c_char,
    pub guid: u64,
    pub ptrSupport: c_int,
    pub regIsGlobal: c_int,
    pub forceFlush: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub maxComms: c_int,
    pub maxRecvs: c_int,
    pub netDeviceType: ncclNetDeviceType,
    pub netDeviceVersion: c_int,
    pub vProps: ncclNetVDeviceProps_v10_t,
    pub maxP2pBytes: usize,
    pub maxCollBytes: usize,
}

/// The functions of a net plugin, `ncclNetPlugin_v10`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNet_v10_t {
    pub name: *const c_char,
    pub init: Option<
        unsafe extern "C" fn(
            logFunction: ncclDebugLogger_t,
            profFunction: ncclProfilerCallback_t,
        ) -> ncclResult_t,
    >,
    pub devices: Option<unsafe extern "C" fn(ndev: *mut c_int) -> ncclResult_t>,
    pub getProperties: Option<
        unsafe extern "C" fn(dev: c_int, props: *mut ncclNetProperties_v10_t) -> ncclResult_t,
    >,
    pub listen: Option<
        unsafe extern "C" fn(
            dev: c_int,
            handle: *mut c_void,
            listenComm: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    pub connect: Option<
        unsafe extern "C" fn(
            dev: c_int,
            config: *mut ncclNetCommConfig_v10_t,
            handle: *mut c_void,
            sendComm: *mut *mut c_void,
            sendDevComm: *mut *mut ncclNetDeviceHandle_v10_t,
        ) -> ncclResult_t,
    >,
    pub accept: Option<
        unsafe extern "C" fn(
            listenComm: *mut c_void,
            recvComm: *mut *mut c_void,
            recvDevComm: *mut *mut ncclNetDeviceHandle_v10_t,
        ) -> ncclResult_t,
    >,
    pub regMr: Option<
        unsafe extern "C" fn(
            comm: *mut c_void,
            data: *mut c_void,
            size: usize,
            kind: c_int,
            mhandle: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
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
    pub deregMr:
        Option<unsafe extern "C" fn(comm: *mut c_void, mhandle: *mut c_void) -> ncclResult_t>,
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
    pub test: Option<
        unsafe extern "C" fn(
            request: *mut c_void,
            done: *mut c_int,
            sizes: *mut c_int,
        ) -> ncclResult_t,
    >,
    pub closeSend: Option<unsafe extern "C" fn(sendComm: *mut c_void) -> ncclResult_t>,
    pub closeRecv: Option<unsafe extern "C" fn(recvComm: *mut c_void) -> ncclResult_t>,
    pub closeListen: Option<unsafe extern "C" fn(listenComm: *mut c_void) -> ncclResult_t>,
    pub getDeviceMr: Option<
        unsafe extern "C" fn(
            comm: *mut c_void,
            mhandle: *mut c_void,
            dptr_mhandle: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    pub irecvConsumed: Option<
        unsafe extern "C" fn(recvComm: *mut c_void, n: c_int, request: *mut c_void) -> ncclResult_t,
    >,
    pub makeVDevice: Option<
        unsafe extern "C" fn(d: *mut c_int, props: *mut ncclNetVDeviceProps_v10_t) -> ncclResult_t,
    >,
}

/// A part of the data of an all-gather or a reduce-scatter in the network.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclNetSGE_v10_t {
    pub mhandle: *mut c_void,
    pub address: *mut c_void,
    pub size: usize,
}

/// The functions of a network that reduces, `ncclCollNetPlugin_v10`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclCollNet_v10_t {
    pub name: *const c_char,
    pub init: Option<unsafe extern "C" fn(logFunction: ncclDebugLogger_t) -> ncclResult_t>,
    pub devices: Option<unsafe extern "C" fn(ndev: *mut c_int) -> ncclResult_t>,
    pub getProperties: Option<
        unsafe extern "C" fn(dev: c_int, props: *mut ncclNetProperties_v10_t) -> ncclResult_t,
    >,
    pub listen: Option<
        unsafe extern "C" fn(
            dev: c_int,
            handle: *mut c_void,
            listenComm: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    pub connect: Option<
        unsafe extern "C" fn(
            handles: *mut *mut c_void,
            nranks: c_int,
            rank: c_int,
            listenComm: *mut c_void,
            collComm: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    pub reduceSupport: Option<
        unsafe extern "C" fn(
            dataType: ncclDataType_t,
            redOp: ncclRedOp_t,
            supported: *mut c_int,
        ) -> ncclResult_t,
    >,
    pub regMr: Option<
        unsafe extern "C" fn(
            collComm: *mut c_void,
            data: *mut c_void,
            size: usize,
            kind: c_int,
            mhandle: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
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
    pub deregMr:
        Option<unsafe extern "C" fn(collComm: *mut c_void, mhandle: *mut c_void) -> ncclResult_t>,
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
    pub iallgather: Option<
        unsafe extern "C" fn(
            collComm: *mut c_void,
            sendData: *mut c_void,
            nRecvParts: c_int,
            recvParts: *mut ncclNetSGE_v10_t,
            bytesPerRank: usize,
            windowOffset: usize,
            windowBytes: usize,
            sendMhandle: *mut c_void,
            request: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    pub ireducescatter: Option<
        unsafe extern "C" fn(
            collComm: *mut c_void,
            nSendParts: c_int,
            sendParts: *mut ncclNetSGE_v10_t,
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
    pub iflush: Option<
        unsafe extern "C" fn(
            collComm: *mut c_void,
            data: *mut c_void,
            size: c_int,
            mhandle: *mut c_void,
            request: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    pub test: Option<
        unsafe extern "C" fn(
            request: *mut c_void,
            done: *mut c_int,
            size: *mut c_int,
        ) -> ncclResult_t,
    >,
    pub closeColl: Option<unsafe extern "C" fn(collComm: *mut c_void) -> ncclResult_t>,
    pub closeListen: Option<unsafe extern "C" fn(listenComm: *mut c_void) -> ncclResult_t>,
    pub makeVDevice: Option<
        unsafe extern "C" fn(d: *mut c_int, props: *mut ncclNetVDeviceProps_v10_t) -> ncclResult_t,
    >,
}
