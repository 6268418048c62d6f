//! The TCP transport as a net plugin, versions 11 and 12, for NVIDIA's NCCL and whatever else loads
//! its plugins: `NCCL_NET_PLUGIN=libnccl-net-oxccl.so`. Devices are the interfaces that
//! `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY` admit.

#![allow(non_upper_case_globals, reason = "the names are NCCL's")]

use oxccl_net::Result;
use oxccl_net::interface::devices;
use oxccl_net::tcp::Tcp;
use oxccl_net_export::{
    Once, Plugin, Table, Transport, ncclNet_v11_t, ncclNet_v12_t, tell, v11, v12,
};
use std::ffi::CStr;

struct Exported;

impl Plugin for Exported {
    const NAME: &'static CStr = c"OxCCL-TCP";

    fn transport() -> Result<&'static Transport> {
        static ONCE: Once = Once::new();
        let variable = |name| std::env::var(name).unwrap_or_default();
        let make = || {
            let (names, family) = (variable("NCCL_SOCKET_IFNAME"), variable("NCCL_SOCKET_FAMILY"));
            Transport::new(Box::new(Tcp::new(devices(&names, &family)?, tell::<Exported>)))
        };
        ONCE.get_or_init(make).as_ref().map_err(Clone::clone)
    }
}

/// The plugin in version 12.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v12: Table<ncclNet_v12_t> = v12::<Exported>();

/// The plugin in version 11.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v11: Table<ncclNet_v11_t> = v11::<Exported>();
