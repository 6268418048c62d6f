//! The memory in which ranks work on a GPU, kept for the next rank while there are any on the GPU:
//! the driver frees memory when all kernels of a GPU have ended, and launches nothing there
//! meanwhile. A kernel that waits for a rank whose launch waits for the driver would never end.

use crate::device::cuda::driver::{Gpu, Relaxed, cu};
use crate::error::Result;
use cudarc::driver::sys::{self, CUdeviceptr, CUstream};
use std::ptr::null_mut;
use std::sync::MutexGuard;

/// The items that are kept, and the number of items in use.
struct Kept<T> {
    taken: usize,
    kept: Vec<T>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { taken: 0, kept: Vec::new() }
    }
}

impl<T> Kept<T> {
    /// Counts one more item in use; returns a kept item that fits, if there is one.
    fn take(&mut self, fits: impl FnMut(&T) -> bool) -> Option<T> {
        self.taken += 1;
        let index = self.kept.iter().position(fits)?;
        Some(self.kept.swap_remove(index))
    }

    /// Counts one item less in use, and keeps it. With the last one, returns all kept items, which
    /// are to be freed.
    fn give(&mut self, item: Option<T>) -> Vec<T> {
        self.taken -= 1;
        self.kept.extend(item);
        if self.taken == 0 { std::mem::take(&mut self.kept) } else { Vec::new() }
    }
}

/// The pool of the ranks' memory on a GPU.
#[derive(Default)]
pub(in crate::device::cuda) struct Pool(Kept<Piece>);

fn pool(gpu: &Gpu) -> MutexGuard<'_, Pool> {
    gpu.pool.lock().unwrap_or_else(|e| e.into_inner())
}

/// An allocation of the driver: memory of the GPU, or of the host.
struct Piece {
    at: u64,
    on_host: bool,
    bytes: usize,
}

impl Piece {
    fn new(on_host: bool, bytes: usize) -> Result<Self> {
        let (mut at, mut pointer) = (0, null_mut());
        // SAFETY: places for the address.
        unsafe {
            if on_host {
                // Portable, so that every context of the process may use it, and mapped.
                let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
                cu!(cuMemHostAlloc(&mut pointer, bytes, flags))?;
                at = pointer.expose_provenance() as u64;
            } else {
                cu!(cuMemAlloc_v2(&mut at, bytes))?;
            }
        }
        Ok(Self { at, on_host, bytes })
    }

    fn free(self) {
        // SAFETY: memory of these functions, which nobody uses any more.
        unsafe {
            match self.on_host {
                true => sys::cuMemFreeHost(std::ptr::with_exposed_provenance_mut(self.at as usize)),
                false => sys::cuMemFree_v2(self.at),
            }
        };
    }
}

/// Memory in use. When it is dropped, it is kept for the next block of its size. If it was the last
/// one in use on its GPU, all kept memory is freed, which waits for the work of the GPU.
pub(in crate::device::cuda) struct Block {
    gpu: &'static Gpu,
    /// `Some` until the block is dropped.
    piece: Option<Piece>,
}

impl Block {
    /// Returns zeroed memory on the GPU. Requires the GPU's context to be current on this thread.
    pub(in crate::device::cuda) fn on_gpu(
        gpu: &'static Gpu,
        bytes: usize,
        stream: CUstream,
    ) -> Result<Self> {
        let block = Self::take(gpu, false, bytes)?;
        // SAFETY: memory of that size.
        unsafe {
            cu!(cuMemsetD8Async(block.at(), 0, bytes, stream))?;
            cu!(cuStreamSynchronize(stream))?;
        }
        Ok(block)
    }

    /// Returns memory of the host, which all GPUs reach; its contents are undefined. Requires the
    /// GPU's context to be current on this thread.
    pub(in crate::device::cuda) fn on_host(gpu: &'static Gpu, bytes: usize) -> Result<Self> {
        Self::take(gpu, true, bytes)
    }

    fn take(gpu: &'static Gpu, on_host: bool, bytes: usize) -> Result<Self> {
        let fits = |kept: &Piece| kept.bytes == bytes && kept.on_host == on_host;
        let kept = pool(gpu).0.take(fits);
        // The block is counted from here on, also if the driver has no memory.
        let mut block = Self { gpu, piece: kept };
        if block.piece.is_none() {
            block.piece = Some(Piece::new(on_host, bytes)?);
        }
        Ok(block)
    }

    /// Returns the address of the block for GPUs; memory of the host has the same address on the
    /// host.
    pub(in crate::device::cuda) fn at(&self) -> CUdeviceptr {
        self.piece.as_ref().map_or(0, |piece| piece.at)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // The lock is held until all are freed, so that nobody takes a block meanwhile: freeing
        // would wait for that rank's kernels, and keep other ranks from launching what these
        // kernels wait for.
        let mut pool = pool(self.gpu);
        let idle = pool.0.give(self.piece.take());
        if idle.is_empty() {
            return;
        }
        let (Ok(_context), Ok(_relaxed)) = (self.gpu.enter(), Relaxed::begin()) else { return };
        idle.into_iter().for_each(Piece::free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_used_again_and_freed_with_the_last_one_in_use() {
        let mut pool = Kept::default();
        assert_eq!(pool.take(|_| true), None);
        assert_eq!(pool.take(|_| true), None);
        assert_eq!(pool.take(|_| true), None, "in use: three");
        assert!(pool.give(Some(7)).is_empty());
        assert_eq!(pool.take(|&item| item == 8), None, "it does not fit");
        assert_eq!(pool.take(|&item| item == 7), Some(7));
        assert_eq!(pool.take(|&item| item == 7), None, "it is in use");
        assert!(pool.give(None).is_empty(), "what could not be made");
        assert!(pool.give(Some(7)).is_empty() && pool.give(Some(8)).is_empty());
        assert!(pool.give(Some(9)).is_empty());
        assert_eq!(pool.give(Some(10)), [7, 8, 9, 10]);
        assert_eq!(pool.take(|_| true), None, "nothing is kept");
    }
}
