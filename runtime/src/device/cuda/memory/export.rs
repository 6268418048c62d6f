//! Memory of GPUs for other ranks: brought, whatever allocator it came from, into a form that
//! another process can map, and mapped there.

use crate::device::cuda::driver::{Gpu, cu};
use crate::device::cuda::memory::alloc;
use crate::device::cuda::memory::shared::Memory;
use crate::device::cuda::sharing::registry::{self, Piece};
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUpointer_attribute,
};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The most allocations that a buffer may lie across.
pub const MAX_SEGMENTS: usize = 64;

/// The information by which other processes map a buffer.
#[derive(Debug, Default)]
pub struct Exported {
    /// Offset of the buffer in what is mapped.
    pub offset: u64,
    /// The handle of CUDA IPC, for memory from cudaMalloc.
    pub handle: Option<[u8; 64]>,
    /// Otherwise the allocations in which the buffer lies: the bytes of each, and a descriptor.
    pub segments: Vec<(u64, Arc<OwnedFd>)>,
}

fn attribute<T: Default>(at: u64, which: CUpointer_attribute) -> Result<T> {
    let mut value = T::default();
    // SAFETY: a place as large as the attribute, by the calls below.
    unsafe { cu!(cuPointerGetAttribute((&raw mut value).cast(), which, at)) }?;
    Ok(value)
}

/// Returns whether an address is in memory from cudaMalloc.
fn is_plain(at: u64) -> bool {
    let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    attribute::<u32>(at, which).is_ok_and(|capable| capable != 0)
}

/// Returns the number of the allocation at an address, which no other allocation of the process has
/// had; `None` if there is none.
pub fn id_of(at: u64) -> Option<u64> {
    attribute(at, CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID).ok()
}

/// Returns the pieces of the allocations that a range lies across.
pub fn pieces(base: u64, len: u64) -> Vec<Piece> {
    registry::pieces(base, len, MAX_SEGMENTS, |at| {
        (id_of(at), allocation(at).ok().map(|(start, bytes)| start + bytes))
    })
}

/// Returns the address and the bytes of the allocation that holds an address.
pub fn allocation(at: u64) -> Result<(u64, u64)> {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: places for the results.
    unsafe { cu!(cuMemGetAddressRange_v2(&mut base, &mut bytes, at)) }?;
    Ok((base, bytes as u64))
}

/// Returns whether all GPUs of this process that a communicator uses reach an address of its rank
/// on `gpu`: they reach memory of this library's allocator, and memory of cudaMalloc on that GPU,
/// as peer access to it is enabled.
pub fn reached_here(gpu: &Gpu, at: u64) -> bool {
    let ours = alloc::find(std::ptr::with_exposed_provenance(at as usize)).is_some();
    let context = || attribute(at, CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT);
    ours || (is_plain(at) && context().is_ok_and(|context: usize| context == gpu.context as usize))
}

fn unfit(what: &str) -> Error {
    Error::usage(what, "take buffers from ncclMemAlloc or cudaMalloc")
}

/// Exports a buffer for other processes.
pub fn export(base: u64, len: u64) -> Result<Exported> {
    if is_plain(base) {
        let (start, bytes) = allocation(base)?;
        let offset = base - start;
        if len > bytes - offset {
            return Err(unfit("a buffer is larger than the allocation it begins in"));
        }
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: memory of cuMemAlloc, and a place for the handle.
        unsafe { cu!(cuIpcGetMemHandle(&mut handle, start)) }?;
        let handle = Some(handle.reserved.map(|b| b as u8));
        return Ok(Exported { offset, handle, segments: Vec::new() });
    }
    let mut exported = Exported::default();
    let mut at = base;
    while at < base + len {
        let (start, bytes) = allocation(at)?;
        if exported.segments.is_empty() {
            exported.offset = base - start;
        }
        exported.segments.push((bytes, Arc::new(descriptor(start)?)));
        if exported.segments.len() > MAX_SEGMENTS {
            return Err(unfit("a buffer lies across more than 64 allocations"));
        }
        at = start + bytes;
    }
    Ok(exported)
}

fn descriptor(start: u64) -> Result<OwnedFd> {
    let file = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let (mut handle, mut fd) = (0, -1i32);
    let at = std::ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: places for the results; the handle is given up at once.
    unsafe {
        cu!(cuMemRetainAllocationHandle(&mut handle, at))?;
        let made = cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, file, 0));
        cu!(cuMemRelease(handle))?;
        made?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// A peer's buffer, mapped until it is dropped.
pub enum Mapping {
    /// Memory of this process; if it is the shared memory of a rank, it is kept alive.
    Here(u64, Option<Arc<Memory>>),
    /// A mapping by CUDA IPC.
    Handle {
        /// The address of the allocation.
        base: CUdeviceptr,
        /// Offset of the buffer.
        offset: u64,
    },
    /// A mapping by descriptors.
    Range {
        /// The addresses at which the allocations are mapped.
        range: alloc::Range,
        /// Offset of the buffer.
        offset: u64,
    },
}

impl Mapping {
    /// Returns the address of the buffer.
    pub fn address(&self) -> u64 {
        match self {
            Mapping::Here(at, _) => *at,
            Mapping::Handle { base, offset } => base + offset,
            Mapping::Range { range, offset } => range.base() + offset,
        }
    }

    /// Returns whether ending the mapping waits for the kernels of the GPU and holds up launches
    /// there, as closing a handle of CUDA IPC does; unmapping does not (`tests/gpu/waits.cu`,
    /// docs/gpu-results.md).
    pub fn waits_for_kernels(&self) -> bool {
        matches!(self, Mapping::Handle { .. })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Mapping::Handle { base, .. } = self {
            // SAFETY: opened once, and used no more. It fails only with the context.
            unsafe { sys::cuIpcCloseMemHandle(*base) };
        }
    }
}

/// Maps a buffer of a rank of this process for a GPU.
pub fn map_here(gpu: &Gpu, base: u64) -> Result<Mapping> {
    let ours = alloc::find(std::ptr::with_exposed_provenance(base as usize)).is_some();
    if !ours && !is_plain(base) {
        let mut flags = 0;
        let location = alloc::location(gpu.device);
        // SAFETY: a place for the answer.
        unsafe { cu!(cuMemGetAccess(&mut flags, &location, base)) }?;
        if flags != CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u64 {
            return Err(unfit("this GPU has no access to a buffer of another one"));
        }
    }
    Ok(Mapping::Here(base, Memory::find(base)))
}

/// Maps memory of another process by its handle of CUDA IPC; the buffer begins at `offset`. Maps
/// for the GPU whose context is current on this thread.
pub fn open(handle: [u8; 64], offset: u64) -> Result<Mapping> {
    let handle = sys::CUipcMemHandle { reserved: handle.map(|b| b as _) };
    let (mut base, lazily) = (0, 1);
    // SAFETY: a handle that the rank made for us, and a place for the address.
    unsafe { cu!(cuIpcOpenMemHandle_v2(&mut base, handle, lazily)) }?;
    Ok(Mapping::Handle { base, offset })
}

/// Maps a buffer of another process for the GPU whose context is current on this thread.
pub fn map(gpu: &Gpu, exported: Exported) -> Result<Mapping> {
    let Exported { offset, handle, segments } = exported;
    if let Some(handle) = handle {
        return open(handle, offset);
    }
    let total: u64 = segments.iter().map(|(bytes, _)| bytes).sum();
    let mut range = alloc::Range::new(total as usize, 0)?;
    for (bytes, fd) in &segments {
        range.map_shared(*bytes as usize, fd.as_raw_fd())?;
    }
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    range.allow(&[CUmemAccessDesc { location: alloc::location(gpu.device), flags }])?;
    Ok(Mapping::Range { range, offset })
}
