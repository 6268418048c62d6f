//! Memory that a rank shares with its peers: on its GPU, or on the host where GPUs do not reach each
//! other.

use super::driver::{Gpu, Relaxed, cu};
use crate::device::host::arena::{Mapping, sealed_memfd};
use crate::error::Result;
use cudarc::driver::sys::{self, CUdeviceptr, CUstream};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// Memory that a rank shares with its peers.
pub struct Memory {
    gpu: &'static Gpu,
    at: CUdeviceptr,
    /// Of memory on the host.
    pinned: Option<Pinned>,
}

static SHARED: Mutex<Vec<Weak<Memory>>> = Mutex::new(Vec::new());

impl Memory {
    /// Zeroed, on the GPU whose context is the thread's.
    pub fn new(gpu: &'static Gpu, bytes: usize, stream: CUstream) -> Result<Arc<Self>> {
        let at = zeroed(bytes, stream)?;
        Ok(Self { gpu, at, pinned: None }.known())
    }

    /// Zeroed, on the host. The GPU's context is the thread's.
    pub fn on_host(gpu: &'static Gpu, bytes: usize) -> Result<Arc<Self>> {
        let fd = sealed_memfd("oxccl-gpu", bytes)?;
        let pinned = Pinned::new(fd, bytes)?;
        Ok(Self { gpu, at: pinned.at, pinned: Some(pinned) }.known())
    }

    fn known(self) -> Arc<Self> {
        let memory = Arc::new(self);
        let mut all = SHARED.lock().unwrap_or_else(|e| e.into_inner());
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&memory));
        memory
    }

    /// Where it is.
    pub fn at(&self) -> CUdeviceptr {
        self.at
    }

    /// By which another process maps it; None of memory on a GPU.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pinned.as_ref().map(|pinned| pinned.fd.as_fd())
    }

    /// That of another rank of this process.
    pub fn find(address: u64) -> Option<Arc<Self>> {
        let all = SHARED.lock().unwrap_or_else(|e| e.into_inner());
        all.iter().filter_map(Weak::upgrade).find(|memory| memory.at == address)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let (Ok(_context), Ok(_relaxed)) = (self.gpu.enter(), Relaxed::begin())
            && self.pinned.take().is_none()
        {
            // SAFETY: all seats whose kernels may write there are gone, and the reaper saw that no
            // other process writes there.
            unsafe { sys::cuMemFree_v2(self.at) };
        }
    }
}

/// Zeroed memory of the GPU whose context is the thread's.
pub(super) fn zeroed(bytes: usize, stream: CUstream) -> Result<CUdeviceptr> {
    let mut at = 0;
    // SAFETY: a place for the address, and memory of that size.
    unsafe {
        cu!(cuMemAlloc_v2(&mut at, bytes))?;
        cu!(cuMemsetD8Async(at, 0, bytes, stream))?;
        cu!(cuStreamSynchronize(stream))?;
    }
    Ok(at)
}

/// Memory of the host that processes share and all GPUs reach.
pub struct Pinned {
    memory: Mapping,
    fd: OwnedFd,
    /// Its address for GPUs.
    pub at: CUdeviceptr,
}

impl Pinned {
    /// Maps a memfd of `bytes` bytes, for all GPUs of this process. A context is the thread's.
    pub fn new(fd: OwnedFd, bytes: usize) -> Result<Self> {
        let memory = Mapping::of(fd.as_fd(), bytes)?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let mut at = 0;
        // SAFETY: mapped memory, which stays until it is unregistered; a place for the address.
        unsafe {
            cu!(cuMemHostRegister_v2(memory.base().cast(), bytes, flags))?;
            cu!(cuMemHostGetDevicePointer_v2(&mut at, memory.base().cast(), 0))?;
        }
        Ok(Self { memory, fd, at })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: registered by `new`, and used no more.
        unsafe { sys::cuMemHostUnregister(self.memory.base().cast()) };
    }
}
