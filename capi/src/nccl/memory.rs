//! Memory for buffers.

use super::types::ncclResult_t;
use crate::boundary::boundary;
use crate::convert;
use oxccl_runtime::device;
use oxccl_runtime::error::Result;
use oxccl_twin::twin;
use std::ffi::c_void;

/// Allocates memory on the calling thread's device.
///
/// # Safety
/// `ptr` is null or writable.
pub(crate) unsafe fn allocate(
    ptr: *mut *mut c_void,
    size: usize,
    function: &'static str,
) -> Result<()> {
    convert::place(ptr, function, "ptr")?;
    let made = device::allocate(size).map_err(|e| e.of(function))?;
    // SAFETY: passed on from the caller.
    unsafe { convert::store(ptr, made.cast(), function, "ptr") }
}

/// Frees memory that [`allocate`] returned, on any device.
pub(crate) fn free(ptr: *mut c_void, function: &'static str) -> Result<()> {
    device::free(ptr.cast()).map_err(|e| e.of(function))
}

/// Allocates memory of the calling thread's device that peers on this host map, so that collectives
/// use it in place.
///
/// `ptr`: out, aligned to 64 KiB, zeroed. `size`: in bytes. Blocks: on a GPU until it is zeroed.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { allocate(ptr, size, "ncclMemAlloc") })
}

/// Frees memory from ncclMemAlloc; null is ignored. No operation may still use it. Blocks: on a
/// GPU until that has done everything, as cudaFree does.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t {
    boundary(|| free(ptr, "ncclMemFree"))
}
