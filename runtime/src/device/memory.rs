//! Memory for buffers, of both devices.

use super::{Device, cuda, host};
use crate::error::Result;
use crate::fork;

/// Allocates zeroed memory on the calling thread's device. The ranks of this host map the memory,
/// so that operations use it in place. Blocks: on a GPU until the memory is zeroed.
pub fn allocate(bytes: usize) -> Result<*mut u8> {
    fork::check()?;
    match super::current()? {
        Device::Host(_) => host::arena::allocate(bytes),
        Device::Cuda(gpu) => cuda::memory::alloc::allocate(gpu, bytes),
    }
}

/// Frees memory from [`allocate`], of either device.
pub fn free(ptr: *mut u8) -> Result<()> {
    fork::check()?;
    match cuda::memory::alloc::find(ptr) {
        Some(_) => cuda::memory::alloc::free(ptr),
        None => host::arena::free(ptr),
    }
}

/// Returns the bytes from an address to the end of its allocation if this library made the
/// allocation; `None` for other memory, about which nothing is known.
#[inline]
pub fn left(ptr: *const u8) -> Option<usize> {
    host::arena::left(ptr).or_else(|| cuda::memory::alloc::left(ptr))
}
