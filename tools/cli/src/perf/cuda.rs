//! The functions of the CUDA driver that no library for collectives has: memory that no library
//! knows, and the name of a GPU.

use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

/// The driver's library, once it was loaded, or why it cannot be.
static DRIVER: OnceLock<std::result::Result<Library, String>> = OnceLock::new();

/// Calls a function of the driver, by name; `F` is its type, as `cuda.h` has it.
fn call<F: Copy>(name: &'static str, with: impl FnOnce(F) -> c_int) -> Result<()> {
    const FILE: &str = "libcuda.so.1";
    let failed = |why: String| Error::Library { path: FILE.to_owned(), why };
    // SAFETY: loading the driver runs its initialisers, as any CUDA program does.
    let open = || unsafe { Library::new(FILE) }.map_err(|e| e.to_string());
    let driver = DRIVER.get_or_init(open).as_ref().map_err(|why| failed(why.clone()))?;
    // SAFETY: the caller names the function's type.
    let function = unsafe { driver.get::<F>(name.as_bytes()) };
    match with(*function.map_err(|e| failed(e.to_string()))?) {
        0 => Ok(()),
        code => Err(Error::Driver { call: name, code }),
    }
}

/// Allocates memory on the calling thread's GPU, as cudaMalloc does.
pub(super) fn allocate(bytes: usize) -> Result<*mut u8> {
    let mut at = 0u64;
    type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
    // SAFETY: a place for the address.
    call::<Allocate>("cuMemAlloc_v2", |allocate| unsafe { allocate(&mut at, bytes) })?;
    Ok(std::ptr::with_exposed_provenance_mut(at as usize))
}

/// Frees memory from [`allocate`], of any GPU. The calling thread has a GPU.
pub(super) fn free(at: *mut u8) -> Result<()> {
    type Free = unsafe extern "C" fn(u64) -> c_int;
    // SAFETY: the caller gives up what it allocated.
    call::<Free>("cuMemFree_v2", |free| unsafe { free(at as u64) })
}

/// Returns the name of the calling thread's GPU, such as "NVIDIA H100 80GB HBM3".
pub(super) fn name() -> Result<String> {
    type Current = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    let (mut gpu, mut text) = (0, [0; 256]);
    // SAFETY: a place for the number.
    call::<Current>("cuCtxGetDevice", |current| unsafe { current(&mut gpu) })?;
    let (at, len) = (text.as_mut_ptr(), text.len() as c_int);
    // SAFETY: a place for the text, which ends with a 0.
    call::<Name>("cuDeviceGetName", |name| unsafe { name(at, len, gpu) })?;
    // SAFETY: the driver wrote a text there.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}
