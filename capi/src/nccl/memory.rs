//! Memory for buffers.

use super::types::ncclResult_t;
use crate::boundary::boundary;
use crate::convert;
use oxccl_runtime::device::host::arena;
use oxccl_runtime::error::{Error, Result};
use std::ffi::c_void;

unsafe fn mem_alloc(ptr: *mut *mut c_void, size: usize) -> Result<()> {
    if ptr.is_null() {
        return Err(Error::argument("ncclMemAlloc", "ptr", "null", "a place for the address"));
    }
    let made = arena::allocate(size).map_err(|e| e.of("ncclMemAlloc"))?;
    // SAFETY: passed on from the caller.
    unsafe { convert::store(ptr, made.cast(), "ncclMemAlloc", "ptr") }
}

unsafe fn mem_free(ptr: *mut c_void) -> Result<()> {
    arena::free(ptr.cast()).map_err(|e| e.of("ncclMemFree"))
}

/// Allocates memory that peers on this host map, so that collectives use it in place.
///
/// `ptr`: out, aligned to 64 KiB, zeroed. `size`: in bytes. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { mem_alloc(ptr, size) })
}

/// Same as ncclMemAlloc, for wrappers that replace it.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { mem_alloc(ptr, size) })
}

/// Frees memory from ncclMemAlloc; null is ignored. No operation may still use it. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { mem_free(ptr) })
}

/// Same as ncclMemFree, for wrappers that replace it.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclMemFree(ptr: *mut c_void) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { mem_free(ptr) })
}
