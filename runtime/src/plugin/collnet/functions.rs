//! The functions of a network that reduces, of any version. A variant says how a function is
//! called.

use crate::plugin::instance::{Network, Structure};
use crate::plugin::load::Found;
use crate::plugin::net::functions::{Close, DeregMr, Devices, Handles, Listen, Test};
use crate::plugin::net::properties::GetProperties;
use crate::plugin::{name_of, need};
use oxccl_plugin_abi::net::*;
use oxccl_plugin_abi::{ncclDataType_t, ncclDebugLogger_t, ncclRedOp_t, ncclResult_t};
use std::ffi::{c_int, c_void};

type ReduceSupport = unsafe extern "C" fn(ncclDataType_t, ncclRedOp_t, *mut c_int) -> ncclResult_t;
type Connect = unsafe extern "C" fn(Handles, c_int, c_int, *mut c_void, Handles) -> ncclResult_t;
type RegMr = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, Handles) -> ncclResult_t;

/// `init`: once per process, or once per communicator.
#[derive(Clone, Copy)]
pub(super) enum Init {
    V8(unsafe extern "C" fn(ncclDebugLogger_t) -> ncclResult_t),
    V11(unsafe extern "C" fn(Handles, u64, ncclDebugLogger_t) -> ncclResult_t),
}

/// `iallreduce`, by the type of counts.
#[derive(Clone, Copy)]
pub(super) enum Iallreduce {
    V8(
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            *mut c_void,
            c_int,
            ncclDataType_t,
            ncclRedOp_t,
            *mut c_void,
            *mut c_void,
            Handles,
        ) -> ncclResult_t,
    ),
    V9(
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            *mut c_void,
            usize,
            ncclDataType_t,
            ncclRedOp_t,
            *mut c_void,
            *mut c_void,
            Handles,
        ) -> ncclResult_t,
    ),
}

/// The functions that are used here.
pub(super) struct Functions {
    pub(super) devices: Devices,
    pub(super) get_properties: GetProperties,
    pub(super) listen: Listen,
    pub(super) connect: Connect,
    pub(super) reduce_support: ReduceSupport,
    pub(super) reg_mr: RegMr,
    pub(super) dereg_mr: DeregMr,
    pub(super) iallreduce: Iallreduce,
    pub(super) test: Test,
    pub(super) close_coll: Close,
    pub(super) close_listen: Close,
    /// From version 11 on; `None` where contexts need no end.
    pub(super) finalize: Option<Close>,
}

/// Reads a structure; what follows its type are the variants of those functions that differ between
/// versions, `init` and then those of [`Functions`] in their order.
macro_rules! functions {
    ($at:expr, $t:ty, $init:path, $properties:path, $listen:path, $iallreduce:path,
     $finalize:expr) => {{
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
                connect: need(table.connect, "connect")?,
                reduce_support: need(table.reduceSupport, "reduceSupport")?,
                reg_mr: need(table.regMr, "regMr")?,
                dereg_mr: need(table.deregMr, "deregMr")?,
                iallreduce: $iallreduce(need(table.iallreduce, "iallreduce")?),
                test: need(table.test, "test")?,
                close_coll: need(table.closeColl, "closeColl")?,
                close_listen: need(table.closeListen, "closeListen")?,
                finalize: finalize(table),
            })
        };
        Ok(Structure { name, init, functions: functions() })
    }};
}

impl Network for Functions {
    const LOCAL: bool = true;
    type Init = Init;

    unsafe fn read(found: Found) -> Result<Structure<Self>, String> {
        use GetProperties as P;
        let Found { version, at } = found;
        match version {
            8 => functions! { at, ncclCollNet_v8_t,
            Init::V8, P::V8, Listen::V6, Iallreduce::V8, |_| None },
            9 => functions! { at, ncclCollNet_v9_t,
            Init::V8, P::V9, Listen::V6, Iallreduce::V9, |_| None },
            10 => functions! { at, ncclCollNet_v10_t,
            Init::V8, P::V10, Listen::V6, Iallreduce::V9, |_| None },
            11 => functions! { at, ncclCollNet_v11_t,
            Init::V11, P::V11, Listen::V11, Iallreduce::V9, |table| table.finalize },
            12 => functions! { at, ncclCollNet_v12_t,
            Init::V11, P::V12, Listen::V11, Iallreduce::V9, |table| table.finalize },
            other => Err(format!("version {other} is not understood")),
        }
    }

    fn finalize(&self) -> Option<Close> {
        self.finalize
    }
}
