//! Memory of GPUs that other processes can map: whole allocations of the driver's virtual memory
//! management, which have handles that can be passed on.

use crate::device::cuda::driver::{self, Gpu, Relaxed, cu};
use crate::device::cuda::stream::Stream;
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUdevice_attribute, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType, CUresult,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The allocations, by address.
static BLOCKS: Mutex<BTreeMap<usize, Block>> = Mutex::new(BTreeMap::new());

struct Block {
    /// Bytes, as mapped.
    size: usize,
    /// The number of the allocation: no two allocations of the process have the same, though their
    /// addresses may be the same.
    id: u64,
    gpu: &'static Gpu,
}

/// The number of the next allocation.
static NEXT: AtomicU64 = AtomicU64::new(FIRST);
const FIRST: u64 = 1;

fn blocks() -> MutexGuard<'static, BTreeMap<usize, Block>> {
    BLOCKS.lock().unwrap_or_else(|e| e.into_inner())
}

/// Returns the allocation in which an address lies: its address, its size in bytes, and its number,
/// which no other allocation of the process has had. `None` for memory from elsewhere.
pub fn find(ptr: *const u8) -> Option<(*mut u8, usize, u64)> {
    let blocks = blocks();
    let (&base, block) = blocks.range(..=ptr as usize).next_back()?;
    let within = (ptr as usize) - base < block.size;
    within.then_some((std::ptr::with_exposed_provenance_mut(base), block.size, block.id))
}

/// Returns the bytes from an address to the end of its allocation, as mapped; `None` for memory
/// from elsewhere. Takes no lock in a process that never allocated any.
#[inline]
pub fn left(ptr: *const u8) -> Option<usize> {
    if NEXT.load(Ordering::Relaxed) == FIRST {
        return None;
    }
    let (base, size, _) = find(ptr)?;
    Some(size - (ptr as usize - base as usize))
}

fn has(gpu: &Gpu, attribute: CUdevice_attribute) -> Result<bool> {
    let mut value = 0;
    // SAFETY: a place for the value.
    unsafe { cu!(cuDeviceGetAttribute(&mut value, attribute, gpu.device)) }?;
    Ok(value != 0)
}

/// Returns the location of memory on a GPU.
pub(in crate::device::cuda) fn location(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Memory of a GPU that is not mapped yet.
struct Physical(CUmemGenericAllocationHandle);

impl Physical {
    fn new(properties: &mut CUmemAllocationProp, fabric: bool, bytes: usize) -> Result<Self> {
        let file = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut handle = 0;
        if fabric {
            let both = file | CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
            properties.requestedHandleTypes = both;
            // SAFETY: a place for the handle.
            match unsafe { sys::cuMemCreate(&mut handle, bytes, properties, 0) } {
                // The fabric's service is not there, or this process may not use it.
                CUresult::CUDA_ERROR_NOT_PERMITTED | CUresult::CUDA_ERROR_NOT_SUPPORTED => {}
                result => return driver::check(result, "cuMemCreate").map(|()| Self(handle)),
            }
        }
        properties.requestedHandleTypes = file;
        // SAFETY: as above.
        unsafe { cu!(cuMemCreate(&mut handle, bytes, properties, 0)) }?;
        Ok(Self(handle))
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: the handle is given up once; the memory lives as long as it is mapped.
        unsafe { sys::cuMemRelease(self.0) };
    }
}

/// A range of addresses, of which the first part is mapped.
pub struct Range {
    base: CUdeviceptr,
    bytes: usize,
    /// The number of bytes that are mapped, from the beginning.
    mapped: usize,
}

impl Range {
    /// Reserves addresses; an alignment of 0 stands for the driver's own.
    pub fn new(bytes: usize, alignment: usize) -> Result<Self> {
        let mut base = 0;
        // SAFETY: a place for the address.
        unsafe { cu!(cuMemAddressReserve(&mut base, bytes, alignment, 0, 0)) }?;
        Ok(Self { base, bytes, mapped: 0 })
    }

    /// Returns the address at which the range begins.
    pub fn base(&self) -> CUdeviceptr {
        self.base
    }

    /// Maps the next `bytes` bytes.
    fn map(&mut self, memory: &Physical, bytes: usize) -> Result<()> {
        let at = self.base + self.mapped as CUdeviceptr;
        // SAFETY: the range is reserved, and this part of it not mapped.
        unsafe { cu!(cuMemMap(at, bytes, 0, memory.0, 0)) }?;
        self.mapped += bytes;
        Ok(())
    }

    /// Maps memory of another process, which passed it on as a descriptor, at the next `bytes`
    /// bytes.
    pub fn map_shared(&mut self, bytes: usize, fd: i32) -> Result<()> {
        let file = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut handle = 0;
        let fd = std::ptr::without_provenance_mut(fd as usize);
        // SAFETY: a place for the handle; the descriptor goes in the pointer's place.
        unsafe { cu!(cuMemImportFromShareableHandle(&mut handle, fd, file)) }?;
        self.map(&Physical(handle), bytes)
    }

    /// Gives GPUs access to the whole range.
    pub fn allow(&self, access: &[CUmemAccessDesc]) -> Result<()> {
        // SAFETY: a mapped range, and as many entries as told.
        unsafe { cu!(cuMemSetAccess(self.base, self.bytes, access.as_ptr(), access.len())) }
    }

    fn free(mut self) -> Result<()> {
        // SAFETY: mapped, and used no more.
        unsafe { cu!(cuMemUnmap(self.base, self.mapped)) }?;
        self.mapped = 0;
        Ok(())
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: this value's alone, and used no more.
        unsafe {
            if self.mapped > 0 {
                sys::cuMemUnmap(self.base, self.mapped);
            }
            sys::cuMemAddressFree(self.base, self.bytes);
        }
    }
}

/// Returns the access entries of a GPU and of all GPUs of this process that reach it.
fn neighbourhood(gpu: &Gpu) -> Result<Vec<CUmemAccessDesc>> {
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let mut access = Vec::new();
    for index in 0..driver::count()? {
        let (mut device, mut reaches) = (0, 1);
        // SAFETY: places for the results.
        unsafe {
            cu!(cuDeviceGet(&mut device, index))?;
            if device != gpu.device {
                cu!(cuDeviceCanAccessPeer(&mut reaches, device, gpu.device))?;
            }
        }
        if reaches != 0 {
            access.push(CUmemAccessDesc { location: location(device), flags });
        }
    }
    Ok(access)
}

/// Allocates zeroed memory on the GPU of this number, at least `bytes` bytes, which the GPU's peers
/// in this process reach. Blocks until the memory is zeroed, whatever else the GPU does; does not
/// wait for other streams.
pub fn allocate(gpu: i32, bytes: usize) -> Result<*mut u8> {
    let gpu = driver::gpu(gpu)?;
    let _place = (gpu.enter()?, Relaxed::begin()?);
    let rdma = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    let fabric = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
    let mut properties = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(gpu.device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: has(gpu, rdma)?.into(),
            usage: 0,
            reserved: [0; 4],
        },
    };
    let recommended = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let mut granularity = 0;
    // SAFETY: a place for the number.
    unsafe { cu!(cuMemGetAllocationGranularity(&mut granularity, &properties, recommended)) }?;
    let bytes = bytes.max(1).checked_next_multiple_of(granularity).ok_or_else(|| {
        Error::argument("oxcclMemAlloc", "size", bytes, "less than the address space")
    })?;
    let memory = Physical::new(&mut properties, has(gpu, fabric)?, bytes)?;
    let mut range = Range::new(bytes, granularity)?;
    range.map(&memory, bytes)?;
    range.allow(&neighbourhood(gpu)?)?;
    zero(gpu, &range)?;
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let base = range.base as usize;
    blocks().insert(base, Block { size: bytes, id, gpu });
    // The table owns the memory now.
    std::mem::forget(range);
    Ok(std::ptr::with_exposed_provenance_mut(base))
}

fn zero(gpu: &Gpu, range: &Range) -> Result<()> {
    let stream = Stream::new(gpu.index)?;
    // SAFETY: mapped memory that nobody else knows; the stream is alive and done before both end.
    let zeroed = unsafe {
        cu!(cuMemsetD8Async(range.base, 0, range.bytes, stream.0))
            .and_then(|()| cu!(cuStreamSynchronize(stream.0)))
    };
    zeroed.and(stream.destroy())
}

/// Waits for everything that was launched on the GPU whose context is current on this thread.
fn wait_for_all() -> Result<()> {
    // cuMemFree waits, too, also while a thread captures, but holds up launches meanwhile, for
    // which a kernel may wait.
    // SAFETY: no arguments.
    match unsafe { sys::cuCtxSynchronize() } {
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => Err(Error::usage(
            "memory is freed while a stream of its GPU is captured; the capture is invalid now",
            "free memory before captures or after them, as with cudaFree",
        )),
        result => driver::check(result, "cuCtxSynchronize"),
    }
}

/// Frees what [`allocate`] returned. Blocks until the GPU has done what was launched before, as
/// `cudaFree` does.
pub fn free(ptr: *mut u8) -> Result<()> {
    let unknown = || {
        let expected = "the start of memory from ncclMemAlloc or oxcclMemAlloc";
        Error::argument("oxcclMemFree", "ptr", format!("{ptr:?}"), expected)
    };
    let gpu = blocks().get(&(ptr as usize)).map(|block| block.gpu).ok_or_else(unknown)?;
    let _place = (gpu.enter()?, Relaxed::begin()?);
    wait_for_all()?;
    // If two threads free the memory, one of them gets the error.
    let block = blocks().remove(&(ptr as usize)).ok_or_else(unknown)?;
    crate::device::cuda::sharing::mapper::forget(ptr as u64, block.size as u64);
    Range { base: ptr as CUdeviceptr, bytes: block.size, mapped: block.size }.free()
}
