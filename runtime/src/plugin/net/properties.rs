//! The properties of devices, which each version of the interface tells in a structure of its own.

use oxccl_net::{Properties, Result};
use oxccl_plugin_abi::NCCL_NET_DEVICE_HOST;
use oxccl_plugin_abi::ncclResult_t;
use oxccl_plugin_abi::net::*;
use std::ffi::{CStr, c_char, c_int};

/// `getProperties` of nets, and of networks that reduce.
#[derive(Clone, Copy)]
pub(in crate::plugin) enum GetProperties {
    V6(unsafe extern "C" fn(c_int, *mut ncclNetProperties_v6_t) -> ncclResult_t),
    V7(unsafe extern "C" fn(c_int, *mut ncclNetProperties_v7_t) -> ncclResult_t),
    V8(unsafe extern "C" fn(c_int, *mut ncclNetProperties_v8_t) -> ncclResult_t),
    V9(unsafe extern "C" fn(c_int, *mut ncclNetProperties_v9_t) -> ncclResult_t),
    V10(unsafe extern "C" fn(c_int, *mut ncclNetProperties_v10_t) -> ncclResult_t),
    V11(unsafe extern "C" fn(c_int, *mut ncclNetProperties_v11_t) -> ncclResult_t),
    V12(unsafe extern "C" fn(c_int, *mut ncclNetProperties_v12_t) -> ncclResult_t),
}

/// The properties of a device, of the version with the most of them.
pub(in crate::plugin) struct Told {
    /// The properties that nets have.
    pub(in crate::plugin) properties: Properties,
    /// The most bytes of a collective operation.
    pub(in crate::plugin) max_collective_bytes: u64,
}

/// The most bytes of a message, and of a collective operation, of versions that do not tell.
const OLD_MAX_BYTES: [u64; 2] = [1 << 30, 512 << 20];

/// The fields that the properties of all versions have.
macro_rules! common {
    ($properties:expr) => {
        Facts {
            name: $properties.name,
            pci_path: $properties.pciPath,
            memory: $properties.ptrSupport,
            speed_mbps: $properties.speed,
            max_connections: $properties.maxComms,
            flushes_always: false,
            offload: NCCL_NET_DEVICE_HOST,
            max_bytes: OLD_MAX_BYTES,
        }
    };
}

struct Facts {
    name: *const c_char,
    pci_path: *const c_char,
    memory: c_int,
    speed_mbps: c_int,
    max_connections: c_int,
    flushes_always: bool,
    offload: c_int,
    max_bytes: [u64; 2],
}

/// Returns a text of a plugin; `None` for a null pointer.
///
/// # Safety
/// The pointer is null or a C string.
unsafe fn text(at: *const c_char) -> Option<String> {
    // SAFETY: by the contract.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

impl GetProperties {
    /// Asks for a device; `call` makes the call of the plugin's function.
    pub(in crate::plugin) fn ask(
        self,
        device: c_int,
        call: impl FnOnce(&mut dyn FnMut() -> c_int) -> Result<()>,
    ) -> Result<Told> {
        let facts = self.facts(device, call)?;
        let Facts { name, pci_path, memory, speed_mbps, max_connections, .. } = facts;
        let Facts { flushes_always, offload, max_bytes, .. } = facts;
        // SAFETY: texts of the plugin by the interface.
        let (name, pci_path) = unsafe { (text(name), text(pci_path)) };
        let [max_bytes, max_collective_bytes] = max_bytes;
        let properties = Properties {
            name: name.unwrap_or_else(|| device.to_string()),
            pci_path,
            memory,
            speed_mbps,
            flushes_always,
            offloaded: offload != NCCL_NET_DEVICE_HOST,
            max_connections,
            max_bytes,
        };
        Ok(Told { properties, max_collective_bytes })
    }

    fn facts(
        self,
        device: c_int,
        call: impl FnOnce(&mut dyn FnMut() -> c_int) -> Result<()>,
    ) -> Result<Facts> {
        /// Calls the function for properties that are zeros before.
        macro_rules! get {
            ($function:expr, $properties:ident, $facts:expr) => {{
                // SAFETY: numbers and pointers may be zero.
                let mut $properties = unsafe { std::mem::zeroed() };
                // SAFETY: the function is the plugin's, and has the arguments of its version.
                call(&mut || unsafe { $function(device, &mut $properties) }).map(|()| $facts)
            }};
        }
        /// From version 7 on there is offload.
        macro_rules! offload {
            ($get:expr) => {
                get!($get, p, Facts { offload: p.netDeviceType, ..common!(p) })
            };
        }
        /// From version 9 on there are limits of sizes, and a wish for flushes.
        macro_rules! sizes {
            ($get:expr) => {
                get!($get, p, {
                    let max_bytes = [p.maxP2pBytes as u64, p.maxCollBytes as u64];
                    let (offload, flushes_always) = (p.netDeviceType, p.forceFlush != 0);
                    Facts { flushes_always, offload, max_bytes, ..common!(p) }
                })
            };
        }
        match self {
            GetProperties::V6(get) => get!(get, p, common!(p)),
            GetProperties::V7(get) => offload!(get),
            GetProperties::V8(get) => offload!(get),
            GetProperties::V9(get) => sizes!(get),
            GetProperties::V10(get) => sizes!(get),
            GetProperties::V11(get) => sizes!(get),
            GetProperties::V12(get) => sizes!(get),
        }
    }
}
