//! Memory that a rank shares with its peers: on its GPU, or on the host where GPUs do not reach
//! each other.

use crate::device::cuda::driver::{Gpu, Relaxed, cu};
use crate::device::cuda::memory::pool::Block;
use crate::error::Result;
use crate::os::memory::{Mapping, sealed_memfd};
use cudarc::driver::sys::{self, CUdeviceptr, CUstream};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// Memory that a rank shares with its peers.
pub struct Memory {
    gpu: &'static Gpu,
    place: Place,
}

enum Place {
    Gpu(Block),
    /// `None` once the memory is released.
    Host(Option<Pinned>),
}

static SHARED: Mutex<Vec<Weak<Memory>>> = Mutex::new(Vec::new());

impl Memory {
    /// Creates zeroed memory on the GPU. Requires the GPU's context to be current on this thread.
    pub fn new(gpu: &'static Gpu, bytes: usize, stream: CUstream) -> Result<Arc<Self>> {
        Ok(Self { gpu, place: Place::Gpu(Block::on_gpu(gpu, bytes, stream)?) }.known())
    }

    /// Creates zeroed memory on the host. Requires the GPU's context to be current on this thread.
    pub fn on_host(gpu: &'static Gpu, bytes: usize) -> Result<Arc<Self>> {
        let fd = sealed_memfd("oxccl-gpu", bytes)?;
        Ok(Self { gpu, place: Place::Host(Some(Pinned::new(fd, bytes)?)) }.known())
    }

    fn known(self) -> Arc<Self> {
        let memory = Arc::new(self);
        let mut all = SHARED.lock().unwrap_or_else(|e| e.into_inner());
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&memory));
        memory
    }

    /// Returns the address of the memory for GPUs.
    pub fn at(&self) -> CUdeviceptr {
        match &self.place {
            Place::Gpu(block) => block.at(),
            Place::Host(pinned) => pinned.as_ref().map_or(0, Pinned::at),
        }
    }

    /// Returns the descriptor by which another process maps the memory; `None` for memory on a GPU.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.place {
            Place::Gpu(..) => None,
            Place::Host(pinned) => pinned.as_ref().map(|pinned| pinned.fd.as_fd()),
        }
    }

    /// Returns the shared memory of a rank of this process, by its address.
    pub fn find(address: u64) -> Option<Arc<Self>> {
        let all = SHARED.lock().unwrap_or_else(|e| e.into_inner());
        all.iter().filter_map(Weak::upgrade).find(|memory| memory.at() == address)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // All ranks of this process whose kernels may write there are gone, and the reaper has seen
        // that no other process writes there.
        if let Place::Host(pinned) = &mut self.place
            && let (Ok(_context), Ok(_relaxed)) = (self.gpu.enter(), Relaxed::begin())
        {
            *pinned = None;
        }
    }
}

/// Memory of the host that was made reachable for all GPUs of this process, until this is dropped.
pub struct Registration {
    base: *mut u8,
    at: CUdeviceptr,
}

// SAFETY: only the addresses are used.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Requires a context to be current on this thread, also when it is dropped.
    ///
    /// # Safety
    /// The memory stays until this is dropped.
    pub unsafe fn new(base: *mut u8, bytes: usize) -> Result<Self> {
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: memory that stays until it is unregistered.
        unsafe { cu!(cuMemHostRegister_v2(base.cast(), bytes, flags)) }?;
        let mut registration = Self { base, at: 0 };
        // SAFETY: registered memory, and a place for the address.
        unsafe { cu!(cuMemHostGetDevicePointer_v2(&mut registration.at, base.cast(), 0)) }?;
        Ok(registration)
    }

    /// Returns the address of the memory for GPUs.
    pub fn at(&self) -> CUdeviceptr {
        self.at
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered by `new`, and used no more.
        unsafe { sys::cuMemHostUnregister(self.base.cast()) };
    }
}

/// Memory of the host that processes share and all GPUs reach.
pub struct Pinned {
    /// Dropped before the memory.
    registration: Registration,
    memory: Mapping,
    fd: OwnedFd,
}

impl Pinned {
    /// Maps a memfd of `bytes` bytes for all GPUs of this process. Requires a context to be current
    /// on this thread.
    pub fn new(fd: OwnedFd, bytes: usize) -> Result<Self> {
        let memory = Mapping::of(fd.as_fd(), bytes)?;
        // SAFETY: mapped memory, which is dropped after the registration.
        let registration = unsafe { Registration::new(memory.base(), bytes) }?;
        Ok(Self { registration, memory, fd })
    }

    /// Returns the address of the memory for GPUs.
    pub fn at(&self) -> CUdeviceptr {
        self.registration.at()
    }

    /// Returns the address of the memory for the host.
    pub fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    /// Returns the size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}
