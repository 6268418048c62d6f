//! The functions of the CUDA driver that no library for collectives has: memory that no library
//! knows, the name of a GPU, and the kernels of a graph.

use crate::api::Handle;
use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
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

/// A kernel in a graph: `CUDA_KERNEL_NODE_PARAMS_v2` of `cuda.h`.
#[repr(C)]
struct KernelNode {
    function: *mut c_void,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: *mut c_void,
    context: *mut c_void,
}

/// Returns the thread blocks of the kernel that has most of them in a graph of the driver
/// (`CUgraph`), which is alive; 0 if it has no kernel.
pub(super) fn most_blocks(graph: Handle) -> Result<u32> {
    type Nodes = unsafe extern "C" fn(Handle, *mut Handle, *mut usize) -> c_int;
    type Kind = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
    type Kernel = unsafe extern "C" fn(Handle, *mut KernelNode) -> c_int;
    const KERNEL: c_int = 0;
    let mut count = 0;
    // SAFETY: a living graph, and a place for the number of its nodes.
    call::<Nodes>("cuGraphGetNodes", |nodes| unsafe { nodes(graph, null_mut(), &mut count) })?;
    let mut all = vec![null_mut(); count];
    let list = all.as_mut_ptr();
    // SAFETY: as above, and places for the nodes.
    call::<Nodes>("cuGraphGetNodes", |nodes| unsafe { nodes(graph, list, &mut count) })?;
    let mut most = 0;
    for node in all {
        let mut kind = KERNEL;
        // SAFETY: a node of the graph, and a place for its kind.
        call::<Kind>("cuGraphNodeGetType", |of| unsafe { of(node, &mut kind) })?;
        if kind != KERNEL {
            continue;
        }
        let mut kernel = KernelNode {
            function: null_mut(),
            grid: [0; 3],
            block: [0; 3],
            shared_bytes: 0,
            parameters: null_mut(),
            extra: null_mut(),
            kernel: null_mut(),
            context: null_mut(),
        };
        let name = "cuGraphKernelNodeGetParams_v2";
        // SAFETY: a node with a kernel, and a place for what is told of it.
        call::<Kernel>(name, |of| unsafe { of(node, &mut kernel) })?;
        most = most.max(kernel.grid.iter().product());
    }
    Ok(most)
}
