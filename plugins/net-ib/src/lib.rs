//! InfiniBand and RoCE as a net plugin, versions 11 and 12, for OxCCL and NVIDIA's NCCL:
//! `NCCL_NET_PLUGIN=libnccl-net-oxccl-ib.so`. Devices are the active ports that `NCCL_IB_HCA`
//! admits.
//!
//! A connection has one or more reliable queue pairs, which go one way. The receiver writes an
//! *offer* (address, key and size of its memory) into a ring at the sender; the sender writes the
//! message into that memory, and its size goes along as immediate data, which completes the
//! receiver's request. Queue pairs are set up over two TCP connections, which are closed then.

#![allow(non_upper_case_globals, reason = "the names are NCCL's")]

mod connection;
mod device;
mod options;
mod setup;
mod verbs;

use device::{Device, Ib};
use options::Options;
use oxccl_net::Result;
use oxccl_net::interface::devices;
use oxccl_net::tcp::Tcp;
use oxccl_net_export::{
    Once, Plugin, Table, Transport, ncclNet_v11_t, ncclNet_v12_t, tell, v11, v12,
};
use std::ffi::CStr;

struct Exported;

impl Plugin for Exported {
    const NAME: &'static CStr = c"OxCCL-IB";

    fn transport() -> Result<&'static Transport> {
        static ONCE: Once = Once::new();
        ONCE.get_or_init(make).as_ref().map_err(Clone::clone)
    }
}

fn make() -> Result<Transport> {
    let variable = |name: &str| std::env::var(name).ok();
    let options = Options::read(variable)?;
    let names = variable("NCCL_SOCKET_IFNAME").unwrap_or_default();
    let family = variable("NCCL_SOCKET_FAMILY").unwrap_or_default();
    let tcp = Tcp::new(devices(&names, &family)?, tell::<Exported>);
    let devices = if options.disabled { Vec::new() } else { Device::all(&options)? };
    Transport::new(Box::new(Ib::new(devices, options, tcp)))
}

/// The plugin in version 12.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v12: Table<ncclNet_v12_t> = v12::<Exported>();

/// The plugin in version 11.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v11: Table<ncclNet_v11_t> = v11::<Exported>();
