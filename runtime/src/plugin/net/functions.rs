//! The functions of a net plugin of any version. A variant says how a function is called.

use super::properties::GetProperties;
use crate::plugin::instance::{Network, Structure};
use crate::plugin::load::Found;
use crate::plugin::{name_of, need};
use oxccl_plugin_abi::net::*;
use oxccl_plugin_abi::{ncclDebugLogger_t, ncclProfilerCallback_t, ncclResult_t};
use std::ffi::{c_int, c_void};

pub(in crate::plugin) type Handles = *mut *mut c_void;

pub(in crate::plugin) type Devices = unsafe extern "C" fn(*mut c_int) -> ncclResult_t;
pub(in crate::plugin) type Close = unsafe extern "C" fn(*mut c_void) -> ncclResult_t;
pub(in crate::plugin) type DeregMr = unsafe extern "C" fn(*mut c_void, *mut c_void) -> ncclResult_t;
pub(in crate::plugin) type Test =
    unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> ncclResult_t;

/// `init`: once per process, or once per communicator.
#[derive(Clone, Copy)]
pub(super) enum Init {
    V6(unsafe extern "C" fn(ncclDebugLogger_t) -> ncclResult_t),
    V10(unsafe extern "C" fn(ncclDebugLogger_t, ncclProfilerCallback_t) -> ncclResult_t),
    V11(
        unsafe extern "C" fn(
            Handles,
            u64,
            *mut ncclNetCommConfig_v11_t,
            ncclDebugLogger_t,
            ncclProfilerCallback_t,
        ) -> ncclResult_t,
    ),
    V12(
        unsafe extern "C" fn(
            Handles,
            u64,
            *mut ncclNetCommConfig_v12_t,
            ncclDebugLogger_t,
            ncclProfilerCallback_t,
        ) -> ncclResult_t,
    ),
}

/// `listen`, with a context or without.
#[derive(Clone, Copy)]
pub(in crate::plugin) enum Listen {
    V6(unsafe extern "C" fn(c_int, *mut c_void, Handles) -> ncclResult_t),
    V11(unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, Handles) -> ncclResult_t),
}

type DeviceHandle = *mut *mut ncclNetDeviceHandle_v7_t;

/// `connect`: the plain one, with a handle for GPUs, with a configuration, with a context.
#[derive(Clone, Copy)]
pub(super) enum Connect {
    V6(unsafe extern "C" fn(c_int, *mut c_void, Handles) -> ncclResult_t),
    V7(unsafe extern "C" fn(c_int, *mut c_void, Handles, DeviceHandle) -> ncclResult_t),
    V10(
        unsafe extern "C" fn(
            c_int,
            *mut ncclNetCommConfig_v10_t,
            *mut c_void,
            Handles,
            DeviceHandle,
        ) -> ncclResult_t,
    ),
    V11(
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            *mut c_void,
            Handles,
            DeviceHandle,
        ) -> ncclResult_t,
    ),
}

/// `accept`, with a handle for GPUs or without.
#[derive(Clone, Copy)]
pub(super) enum Accept {
    V6(unsafe extern "C" fn(*mut c_void, Handles) -> ncclResult_t),
    V7(unsafe extern "C" fn(*mut c_void, Handles, DeviceHandle) -> ncclResult_t),
}

/// `regMr`, by the type of sizes.
#[derive(Clone, Copy)]
pub(super) enum RegMr {
    V6(unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, c_int, Handles) -> ncclResult_t),
    V8(unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, Handles) -> ncclResult_t),
}

/// `regMrDmaBuf`.
pub(super) type RegMrDmaBuf = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    u64,
    c_int,
    Handles,
) -> ncclResult_t;

/// `iflush`.
pub(super) type Iflush =
    unsafe extern "C" fn(*mut c_void, c_int, Handles, *mut c_int, Handles, Handles) -> ncclResult_t;

/// `isend`, by the type of sizes, and with a handle for profilers.
#[derive(Clone, Copy)]
pub(super) enum Isend {
    V6(
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            c_int,
            c_int,
            *mut c_void,
            Handles,
        ) -> ncclResult_t,
    ),
    V9(
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            usize,
            c_int,
            *mut c_void,
            Handles,
        ) -> ncclResult_t,
    ),
    V10(
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            usize,
            c_int,
            *mut c_void,
            *mut c_void,
            Handles,
        ) -> ncclResult_t,
    ),
}

/// `irecv`, likewise.
#[derive(Clone, Copy)]
pub(super) enum Irecv {
    V6(
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            Handles,
            *mut c_int,
            *mut c_int,
            Handles,
            Handles,
        ) -> ncclResult_t,
    ),
    V9(
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            Handles,
            *mut usize,
            *mut c_int,
            Handles,
            Handles,
        ) -> ncclResult_t,
    ),
    V10(
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            Handles,
            *mut usize,
            *mut c_int,
            Handles,
            Handles,
            Handles,
        ) -> ncclResult_t,
    ),
}

/// The functions of a plugin that are used here.
pub(super) struct Functions {
    pub(super) devices: Devices,
    pub(super) get_properties: GetProperties,
    pub(super) listen: Listen,
    pub(super) connect: Connect,
    pub(super) accept: Accept,
    pub(super) reg_mr: RegMr,
    /// Absent where memory is not registered by a dma-buf.
    pub(super) reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub(super) dereg_mr: DeregMr,
    pub(super) isend: Isend,
    pub(super) irecv: Irecv,
    /// Absent where memory of GPUs is not received into.
    pub(super) iflush: Option<Iflush>,
    pub(super) test: Test,
    pub(super) close_send: Close,
    pub(super) close_recv: Close,
    pub(super) close_listen: Close,
    /// From version 11 on; `None` where contexts need no end.
    pub(super) finalize: Option<Close>,
}

/// Reads a structure; what follows its type are the variants of those functions that differ between
/// versions, `init` and then those of [`Functions`] in their order.
macro_rules! functions {
    ($at:expr, $t:ty, $init:path, $properties:path, $listen:path, $connect:path, $accept:path,
     $reg_mr:path, $isend:path, $irecv:path, $finalize:expr) => {{
        // SAFETY: by the contract the structure is of this version.
        let table = unsafe { &*$at.cast::<$t>() };
        let finalize: fn(&$t) -> Option<Close> = $finalize;
        // SAFETY: the name is a C string by the interface.
        let name = unsafe { name_of(table.name) }?;
        let init = $init(need(table.init, "init")?);
        let functions = || {
            Ok(Functions {
                devices: need(table.devices, "devices")?,
                get_properties: $properties(need(table.getProperties, "getProperties")?),
                listen: $listen(need(table.listen, "listen")?),
                connect: $connect(need(table.connect, "connect")?),
                accept: $accept(need(table.accept, "accept")?),
                reg_mr: $reg_mr(need(table.regMr, "regMr")?),
                reg_mr_dma_buf: table.regMrDmaBuf,
                dereg_mr: need(table.deregMr, "deregMr")?,
                isend: $isend(need(table.isend, "isend")?),
                irecv: $irecv(need(table.irecv, "irecv")?),
                iflush: table.iflush,
                test: need(table.test, "test")?,
                close_send: need(table.closeSend, "closeSend")?,
                close_recv: need(table.closeRecv, "closeRecv")?,
                close_listen: need(table.closeListen, "closeListen")?,
                finalize: finalize(table),
            })
        };
        Ok(Structure { name, init, functions: functions() })
    }};
}

impl Network for Functions {
    const LOCAL: bool = false;
    type Init = Init;

    unsafe fn read(found: Found) -> Result<Structure<Self>, String> {
        use GetProperties as P;
        let Found { version, at } = found;
        match version {
            6 => functions! { at, ncclNet_v6_t,
            Init::V6, P::V6, Listen::V6, Connect::V6, Accept::V6, RegMr::V6, Isend::V6,
            Irecv::V6, |_| None },
            7 => functions! { at, ncclNet_v7_t,
            Init::V6, P::V7, Listen::V6, Connect::V7, Accept::V7, RegMr::V6, Isend::V6,
            Irecv::V6, |_| None },
            8 => functions! { at, ncclNet_v8_t,
            Init::V6, P::V8, Listen::V6, Connect::V7, Accept::V7, RegMr::V8, Isend::V6,
            Irecv::V6, |_| None },
            9 => functions! { at, ncclNet_v9_t,
            Init::V6, P::V9, Listen::V6, Connect::V7, Accept::V7, RegMr::V8, Isend::V9,
            Irecv::V9, |_| None },
            10 => functions! { at, ncclNet_v10_t,
            Init::V10, P::V10, Listen::V6, Connect::V10, Accept::V7, RegMr::V8,
            Isend::V10, Irecv::V10, |_| None },
            11 => functions! { at, ncclNet_v11_t,
            Init::V11, P::V11, Listen::V11, Connect::V11, Accept::V7, RegMr::V8,
            Isend::V10, Irecv::V10, |table| table.finalize },
            12 => functions! { at, ncclNet_v12_t,
            Init::V12, P::V12, Listen::V11, Connect::V11, Accept::V7, RegMr::V8,
            Isend::V10, Irecv::V10, |table| table.finalize },
            other => Err(format!("version {other} is not understood")),
        }
    }

    fn finalize(&self) -> Option<Close> {
        self.finalize
    }
}
