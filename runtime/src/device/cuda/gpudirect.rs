//! GPUDirect RDMA: slots of messages in the memory of a GPU, which a network's device reads and
//! writes itself, without a copy in memory of the host.

use crate::config::Config;
use crate::device::cuda::driver::{Gpu, cu};
use crate::device::cuda::memory::pool::Block;
use crate::error::Result;
use crate::link::message::{Direction, MessageEdge};
use crate::log::{self, Level, Subsystem};
use cudarc::driver::sys::{self, CUdevice_attribute, CUstream};
use oxccl_net::{CUDA, DMA_BUF, Memory, Place, Properties};
use rustix::fd::{FromRawFd, OwnedFd};
use std::ffi::CStr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The alignment of slots, a multiple of every host's pages: a dma-buf consists of whole pages.
const ALIGNMENT: u64 = 64 << 10;

/// How far a device of a network is from a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    /// The same PCI device.
    Loc,
    /// One PCI switch at most.
    Pix,
    /// Several PCI switches.
    Pxb,
    /// The processor of both.
    Phb,
    /// The link between processors; or not known.
    Sys,
}

impl Distance {
    const ALL: [(Self, &str); 5] = [
        (Self::Loc, "LOC"),
        (Self::Pix, "PIX"),
        (Self::Pxb, "PXB"),
        (Self::Phb, "PHB"),
        (Self::Sys, "SYS"),
    ];
    /// The other levels of NCCL: paths over NVLink, to a processor, and over another GPU. None of
    /// them leads from a GPU to a network's device here, so that each is as the next lower one.
    const OTHERS: [(Self, &str); 5] = [
        (Self::Loc, "NVL"),
        (Self::Loc, "NVB"),
        (Self::Loc, "C2C"),
        (Self::Pxb, "P2C"),
        (Self::Pxb, "PXN"),
    ];

    /// Returns the distance of a name, or of a number as of before NCCL 2.5.
    fn of(text: &str) -> Option<Self> {
        let (text, last) = (text.trim(), Self::ALL.len() - 1);
        let by_number = || Some(Self::ALL[text.parse::<usize>().ok()?.min(last)]);
        let mut named = Self::ALL.into_iter().chain(Self::OTHERS);
        let named = named.find(|(_, name)| name.eq_ignore_ascii_case(text));
        named.or_else(by_number).map(|(distance, _)| distance)
    }

    fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns the distance between two devices by their folders in sysfs, with the numbers of
    /// their NUMA nodes.
    fn between([a, b]: [&Path; 2], [of_a, of_b]: [i32; 2]) -> Self {
        let common: Vec<_> =
            a.components().zip(b.components()).take_while(|(a, b)| a == b).collect();
        let below = |path: &Path| path.components().count() - common.len();
        // A root of a PCI bus may have bridges below it that have roots of their own.
        let is_root = |name: Component<'_>| name.as_os_str().as_encoded_bytes().starts_with(b"pci");
        let root = common.iter().rposition(|(name, _)| is_root(*name));
        let bridges = root.map_or(0, |root| common.len() - 1 - root);
        // Below a switch are its port and the device.
        match (below(a).max(below(b)), bridges) {
            (0, _) => Self::Loc,
            (1 | 2, 1..) => Self::Pix,
            (_, 1..) => Self::Pxb,
            _ if of_a == of_b => Self::Phb,
            _ => Self::Sys,
        }
    }
}

/// A way to register memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    DmaBuf,
    Address,
}

/// The ways of a network's device to the memory of a GPU.
pub struct Reach {
    gpu: &'static Gpu,
    /// The ways to register memory that the device reads, the first to be tried first; empty if it
    /// reads from memory of the host.
    sends: Vec<Way>,
    /// The ways to register memory that the device writes, likewise.
    receives: Vec<Way>,
    /// True if what it has written must be flushed.
    flush: bool,
}

impl Reach {
    /// Returns the ways of a device to a GPU, as far as the variables allow them. Requires the
    /// GPU's context to be current on this thread.
    pub fn of(gpu: &'static Gpu, device: &Properties) -> Result<Self> {
        let config = Config::get();
        let has = |kind| device.memory & kind != 0;
        let mut ways = Vec::new();
        if config.dmabuf_enable
            && has(DMA_BUF)
            && attribute(gpu, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? != 0
        {
            ways.push(Way::DmaBuf);
        }
        if has(CUDA) {
            ways.push(Way::Address);
        }
        let mut reach = Self { gpu, sends: Vec::new(), receives: Vec::new(), flush: false };
        if ways.is_empty() {
            return Ok(reach);
        }
        let level = Distance::of(&config.net_gdr_level).ok_or_else(|| {
            let expected = "LOC, PIX, PXB, PHB or SYS".to_owned();
            config.refused("NCCL_NET_GDR_LEVEL", "is no distance", expected)
        })?;
        let text = format!("GPUDirect RDMA between GPU {} and {}", gpu.index, device.name);
        let log = |told: String| log::line(Level::Info, Subsystem::Net, &format!("{text}{told}"));
        let distance = distance(gpu, device);
        if distance > level {
            let name = distance.name();
            log(format!(" is not used: {name} is farther than NCCL_NET_GDR_LEVEL allows"));
            return Ok(reach);
        }
        if attribute(gpu, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)? == 0 {
            log(" is not used: the GPU does not support it".to_owned());
            return Ok(reach);
        }
        let generation =
            attribute(gpu, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        // Earlier GPUs are read slowly.
        let sends = config.net_gdr_read.unwrap_or(generation >= 8);
        // GPUs from Hopper on keep the order of what comes over PCI. Where a link of its own
        // leads to the processor, as in Grace, a notice overtakes the data.
        reach.flush = device.flushes_always
            || config.net_force_flush
            || generation < 9
            || !cfg!(target_arch = "x86_64");
        log(format!(
            ": {}, {}, {}, {}",
            distance.name(),
            if sends { "both directions" } else { "receives only" },
            if ways[0] == Way::DmaBuf { "by dma-buf" } else { "by address" },
            if reach.flush { "flushed" } else { "not flushed" },
        ));
        reach.sends = if sends { ways.clone() } else { Vec::new() };
        reach.receives = ways;
        Ok(reach)
    }

    /// Moves the slots of edges to the GPU, in one piece of memory, where the network's device
    /// reaches it; returns the bytes of that. What the device or the GPU refuses stays on the host.
    /// Requires the GPU's context to be current on this thread, whose stream is used. Waits for the
    /// network.
    pub fn move_slots(mut self, edges: &mut [&mut MessageEdge], stream: CUstream) -> u64 {
        if self.receives.is_empty() || edges.is_empty() {
            return 0;
        }
        let len = edges[0].memory()[0].len;
        let stride = (len as u64).next_multiple_of(ALIGNMENT);
        let directions = 1 + u64::from(!self.sends.is_empty());
        let bytes = ALIGNMENT + stride * directions * edges.len() as u64;
        let block = match Block::on_gpu(self.gpu, bytes as usize, stream) {
            Ok(block) => Arc::new(block),
            Err(error) => {
                let text = format!("messages stay in memory of the host: {error}");
                log::line(Level::Warn, Subsystem::Net, &text);
                return 0;
            }
        };
        let mut at = block.at().next_multiple_of(ALIGNMENT);
        for edge in edges {
            for direction in [Direction::Outgoing, Direction::Incoming] {
                if self.moves(edge, direction, (at, len), &block) {
                    at += stride;
                }
            }
        }
        // The edges own the block where they use it.
        if Arc::strong_count(&block) > 1 { bytes } else { 0 }
    }

    /// Moves slots of an edge to a place on the GPU, in the first way that the network takes;
    /// others are not tried again. Returns whether there is one.
    fn moves(
        &mut self,
        edge: &mut MessageEdge,
        direction: Direction,
        (at, len): (u64, usize),
        owner: &Arc<Block>,
    ) -> bool {
        let flush = self.flush;
        let ways = match direction {
            Direction::Outgoing => &mut self.sends,
            Direction::Incoming => &mut self.receives,
        };
        let data = std::ptr::with_exposed_provenance_mut(at as usize);
        while let Some(way) = ways.first() {
            let dma_buf = match way {
                Way::DmaBuf => export(at, len).map(|fd| Some(Arc::new(fd))),
                Way::Address => Ok(None),
            };
            let moved = dma_buf.and_then(|dma_buf| {
                let place = Place::Gpu { flush, dma_buf };
                edge.move_slots(direction, Memory { data, len, place, owner: owner.clone() })
            });
            let Err(error) = moved else { return true };
            ways.remove(0);
            let instead = match ways.is_empty() {
                true => "memory of the host is used",
                false => "its address is tried",
            };
            let text = format!("memory of a GPU is not registered, {instead}: {error}");
            log::line(Level::Warn, Subsystem::Net, &text);
        }
        false
    }
}

/// Returns the descriptor of a piece of a GPU's memory, for its whole pages.
fn export(at: u64, len: usize) -> Result<OwnedFd> {
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    let (mut fd, len) = (-1, len.next_multiple_of(ALIGNMENT as usize));
    let to = (&raw mut fd).cast();
    // SAFETY: a place for the descriptor, and memory of the driver.
    unsafe { cu!(cuMemGetHandleForAddressRange(to, at, len, kind, 0)) }?;
    // SAFETY: a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn attribute(gpu: &Gpu, attribute: CUdevice_attribute) -> Result<i32> {
    let mut value = 0;
    // SAFETY: a place for the value.
    unsafe { cu!(cuDeviceGetAttribute(&mut value, attribute, gpu.device)) }?;
    Ok(value)
}

/// Returns the distance between a GPU and a device of a network.
fn distance(gpu: &Gpu, device: &Properties) -> Distance {
    let folders = folder_of(gpu).zip(device.pci_path.as_ref());
    let folders = folders.and_then(|(a, b)| Some((a, std::fs::canonicalize(b).ok()?)));
    let Some((a, b)) = folders else { return Distance::Sys };
    let node = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join("numa_node")).unwrap_or_default();
        text.trim().parse().unwrap_or(-1)
    };
    Distance::between([&a, &b], [node(&a), node(&b)])
}

/// Returns the folder of a GPU in sysfs; `None` where it is not shown.
fn folder_of(gpu: &Gpu) -> Option<PathBuf> {
    let mut text = [0; 32];
    // SAFETY: a place of that size for the text.
    unsafe { cu!(cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, gpu.device)) }.ok()?;
    // SAFETY: a C string that the driver has written.
    let id = unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().ok()?.to_ascii_lowercase();
    std::fs::canonicalize(format!("/sys/bus/pci/devices/{id}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_pci_tree() {
        let distance = |a: &str, b: &str, nodes| {
            let folder = |tail: &str| PathBuf::from(format!("/sys/devices/{tail}"));
            Distance::between([&folder(a), &folder(b)], nodes).name()
        };
        // A switch at 01:00.0 with ports 02:00.0 and 02:01.0, below it another one.
        let gpu = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0";
        let near = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0";
        let far = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0/\
                   0000:05:00.0/0000:06:00.0";
        let root = "pci0000:00/0000:00:02.0/0000:07:00.0";
        let other = "pci0000:80/0000:80:01.0/0000:81:00.0";
        // Below a bridge with a root of its own, as Intel's VMD makes it, and below Hyper-V's bus.
        let domain = "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0";
        let beside = "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:07.0/10000:e2:00.0";
        let hyper_v = "LNXSYSTM:00/VMBUS:00/1a/pci0001:00/0001:00:00.0";
        let hyper_v_beside = "LNXSYSTM:00/VMBUS:00/2b/pci0002:00/0002:00:02.0";
        let both_functions = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.1";
        assert_eq!(distance(gpu, gpu, [0, 0]), "LOC");
        assert_eq!(distance(gpu, both_functions, [0, 0]), "PIX");
        assert_eq!(distance(gpu, near, [0, 0]), "PIX");
        assert_eq!(distance(gpu, far, [0, 0]), "PXB");
        assert_eq!(distance(gpu, root, [0, 0]), "PHB");
        assert_eq!(distance(domain, beside, [0, 0]), "PHB");
        assert_eq!(distance(hyper_v, hyper_v_beside, [0, 0]), "PHB");
        assert_eq!(distance(hyper_v, hyper_v_beside, [0, 1]), "SYS");
        assert_eq!(distance(gpu, other, [1, 1]), "PHB");
        assert_eq!(distance(gpu, other, [0, 1]), "SYS");
    }

    #[test]
    fn names_and_old_numbers_are_distances() {
        for (text, expected) in [
            ("LOC", Some("LOC")),
            (" pxb", Some("PXB")),
            ("1", Some("PIX")),
            ("4", Some("SYS")),
            ("9", Some("SYS")),
            ("NVL", Some("LOC")),
            ("pxn", Some("PXB")),
            ("", None),
            ("near", None),
            ("-1", None),
        ] {
            assert_eq!(Distance::of(text).map(Distance::name), expected, "{text}");
        }
        assert!(Distance::Pix < Distance::Pxb && Distance::Phb < Distance::Sys);
    }
}
