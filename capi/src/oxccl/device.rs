//! Devices, memory, copies.

use super::types::{oxcclDeviceKind_t, oxcclStream_t};
use crate::boundary::boundary;
use crate::nccl::memory;
use crate::nccl::types::ncclResult_t;
use crate::{convert, objects};
use oxccl_runtime::device::{self, Device};
use oxccl_runtime::error::{Error, Result};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// Returns true for the host, false for CUDA.
fn is_host(kind: MaybeUninit<oxcclDeviceKind_t>, function: &'static str) -> Result<bool> {
    // SAFETY: C passed an initialised int; any int is a valid i32.
    match unsafe { kind.as_ptr().cast::<i32>().read() } {
        0 => Ok(true),
        1 => Ok(false),
        other => {
            let expected = "oxcclDeviceHost (0) or oxcclDeviceCuda (1)";
            Err(Error::argument(function, "kind", other, expected))
        }
    }
}

fn check_buffer(
    function: &'static str,
    argument: &'static str,
    ptr: *const c_void,
    bytes: usize,
) -> Result<()> {
    if bytes > isize::MAX as usize {
        let expected = "a number of bytes that fits the address space";
        return Err(Error::argument(function, "bytes", bytes, expected));
    }
    convert::buffer(ptr, bytes, function, argument)
}

/// Returns the number of devices of a kind: the host's processors, or the GPUs that the CUDA driver
/// shows; 0 GPUs without a driver of version 580 or newer.
///
/// `count`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclDeviceCount(
    kind: MaybeUninit<oxcclDeviceKind_t>,
    count: *mut c_int,
) -> ncclResult_t {
    boundary(|| {
        let host = is_host(kind, "oxcclDeviceCount")?;
        // SAFETY: passed on from the caller.
        unsafe { convert::store(count, device::count(host), "oxcclDeviceCount", "count") }
    })
}

/// Chooses the calling thread's device, for communicators and default streams to come.
///
/// `index`: from 0 on; the host takes any, so that a laptop can stand for a larger machine.
/// Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclDeviceSet(
    kind: MaybeUninit<oxcclDeviceKind_t>,
    index: c_int,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclDeviceSet";
        if index < 0 {
            return Err(Error::argument(FUNCTION, "index", index, "0 or more"));
        }
        let host = is_host(kind, FUNCTION)?;
        device::choose(Device::numbered(host, index))
    })
}

/// Returns the calling thread's device. `kind`, `index`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclDeviceGet(
    kind: *mut oxcclDeviceKind_t,
    index: *mut c_int,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclDeviceGet";
        if index.is_null() {
            return Err(Error::argument(FUNCTION, "index", "null", "a place for the result"));
        }
        let device = device::current()?;
        let found = match device.is_host() {
            true => oxcclDeviceKind_t::oxcclDeviceHost,
            false => oxcclDeviceKind_t::oxcclDeviceCuda,
        };
        // SAFETY: passed on from the caller.
        unsafe {
            convert::store(kind, found, FUNCTION, "kind")?;
            convert::store(index, device.index(), FUNCTION, "index")
        }
    })
}

/// Allocates memory of the calling thread's device; same as ncclMemAlloc.
///
/// `ptr`: out, aligned to 64 KiB, zeroed. `size`: in bytes. Blocks: on a GPU until it is zeroed.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { memory::allocate(ptr, size, "oxcclMemAlloc") })
}

/// Frees memory from oxcclMemAlloc or ncclMemAlloc, of any device; null is ignored. Blocks: on
/// a GPU until that has done everything, as cudaFree does.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclMemFree(ptr: *mut c_void) -> ncclResult_t {
    boundary(|| memory::free(ptr, "oxcclMemFree"))
}

/// Copies `bytes` bytes, in the order of the stream; the buffers must not overlap. On a stream of
/// CUDA each buffer may be memory of the host or of any GPU.
///
/// `dst`: out. `src`: in. Blocks: never; but a stream of CUDA may wait for its turn where memory of
/// the host is not pinned.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclMemcpyAsync(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: oxcclStream_t,
) -> ncclResult_t {
    boundary(|| {
        check_buffer("oxcclMemcpyAsync", "dst", dst, bytes)?;
        check_buffer("oxcclMemcpyAsync", "src", src, bytes)?;
        let stream = objects::stream(stream, "oxcclMemcpyAsync")?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: passed on from the caller.
        unsafe { stream.copy(dst.cast(), src.cast(), bytes) }
    })
}

/// Sets `bytes` bytes to the low 8 bits of `value`, in the order of the stream.
///
/// `dst`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclMemsetAsync(
    dst: *mut c_void,
    value: c_int,
    bytes: usize,
    stream: oxcclStream_t,
) -> ncclResult_t {
    boundary(|| {
        check_buffer("oxcclMemsetAsync", "dst", dst, bytes)?;
        let stream = objects::stream(stream, "oxcclMemsetAsync")?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: passed on from the caller.
        unsafe { stream.set(dst.cast(), value as u8, bytes) }
    })
}
