//! The links between the GPUs of this process.

use super::{count, cu};
use crate::error::Result;
use cudarc::driver::sys::{CUdevice, CUdevice_P2PAttribute};
use std::ffi::CStr;

/// The way from a GPU to the memory of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It is the same GPU.
    Own,
    /// Peer access over NVLink, which is the link with native atomics.
    NvLink,
    /// Peer access over PCIe.
    Pcie,
    /// No peer access: data pass through host memory.
    HostMemory,
}

/// A GPU of this process with its links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuLinks {
    /// The number of the GPU in this process.
    pub index: i32,
    /// The address on PCI as in `/sys/bus/pci/devices`, for example `0000:3b:00.0`.
    pub pci: String,
    /// The link to each GPU, in the order of their numbers.
    pub links: Vec<Link>,
}

/// Returns the GPUs of this process; an error if there is no usable driver. Makes no context.
pub fn links() -> Result<Vec<GpuLinks>> {
    let count = count()?;
    let devices: Vec<CUdevice> = (0..count).map(device).collect::<Result<_>>()?;
    let gpu = |(index, &device): (usize, &CUdevice)| {
        let links = devices.iter().map(|&peer| link(device, peer)).collect::<Result<_>>()?;
        Ok(GpuLinks { index: index as i32, pci: address(device)?, links })
    };
    devices.iter().enumerate().map(gpu).collect()
}

fn device(index: i32) -> Result<CUdevice> {
    let mut device = 0;
    // SAFETY: a place for the result.
    unsafe { cu!(cuDeviceGet(&mut device, index)) }?;
    Ok(device)
}

fn link(device: CUdevice, peer: CUdevice) -> Result<Link> {
    if device == peer {
        return Ok(Link::Own);
    }
    let atomics = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    let (mut reaches, mut has_atomics) = (0, 0);
    // SAFETY: places for the results.
    unsafe {
        cu!(cuDeviceCanAccessPeer(&mut reaches, device, peer))?;
        cu!(cuDeviceGetP2PAttribute(&mut has_atomics, atomics, device, peer))?;
    }
    Ok(match (reaches, has_atomics) {
        (0, _) => Link::HostMemory,
        (_, 0) => Link::Pcie,
        _ => Link::NvLink,
    })
}

fn address(device: CUdevice) -> Result<String> {
    let mut text = [0; 32];
    // SAFETY: a place for a text of this length, which ends with a 0.
    let text = unsafe {
        cu!(cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device))?;
        CStr::from_ptr(text.as_ptr())
    };
    Ok(text.to_string_lossy().to_ascii_lowercase())
}
