//! The CUDA driver: the search for it, its errors, and the context of each GPU.
//!
//! Functions are looked up by name at their first call and would panic when missing, so
//! everything that this folder calls is in `SYMBOLS` and probed once.

pub mod library;
pub mod links;

use crate::device::Device;
use crate::device::cuda::memory::closing::Closing;
use crate::device::cuda::memory::pool::Pool;
use crate::error::{Error, Result};
use crate::exit::{self, Visit};
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUresult, CUstreamCaptureMode};
use std::ffi::CStr;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, OnceLock};

/// The oldest version of the driver that is supported: CUDA 13.0, driver 580.
const OLDEST: i32 = 13000;

/// Every function of the driver that this folder calls.
const SYMBOLS: &[&str] = &[
    "cuCtxEnablePeerAccess",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetP2PAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuFuncGetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphAddDependencies_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphExecUpdate_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphRemoveDependencies_v2",
    "cuGraphRetainUserObject",
    "cuInit",
    "cuIpcCloseMemHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuKernelGetFunction",
    "cuLaunchHostFunc",
    "cuLaunchKernelEx",
    "cuLibraryGetKernel",
    "cuLibraryLoadData",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetAccess",
    "cuMemGetAddressRange_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetHandleForAddressRange",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyAsync",
    "cuMemcpyHtoD_v2",
    "cuMemsetD8Async",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyMaxActiveClusters",
    "cuPointerGetAttribute",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamGetCtx",
    "cuStreamGetId",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamUpdateCaptureDependencies_v2",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
    "cuUserObjectCreate",
    "cuUserObjectRelease",
];

fn absent(why: impl std::fmt::Display) -> Error {
    Error::usage(
        format!("there is no usable CUDA device: {why}"),
        "install an NVIDIA driver of version 580 or newer, or use the host (OXCCL_DEVICE=host)",
    )
}

/// The answers of the driver, which is asked once.
#[derive(Clone, Copy)]
struct Found {
    version: i32,
    gpus: i32,
}

fn found() -> Result<Found> {
    static FOUND: OnceLock<Result<Found>> = OnceLock::new();
    FOUND.get_or_init(probe).clone()
}

/// Returns the number of GPUs; an error if the driver is missing, too old or incomplete.
pub fn count() -> Result<i32> {
    found().map(|found| found.gpus)
}

/// Returns the versions of CUDA that the library is built for and that the driver has, as CUDA
/// numbers them: 13010 is 13.1. The latter is 0 without a driver.
pub fn versions() -> (i32, i32) {
    (sys::CUDA_VERSION as i32, found().map_or(0, |found| found.version))
}

fn probe() -> Result<Found> {
    // SAFETY: loading the driver runs its initialisers, as any CUDA program does.
    let library = unsafe { libloading::Library::new("libcuda.so.1") };
    let library = library.map_err(|_| absent("the driver's library libcuda.so.1 is not found"))?;
    for name in SYMBOLS {
        // SAFETY: the symbol is only looked up.
        let found = unsafe { library.get::<*const ()>(name.as_bytes()) };
        found.map_err(|_| absent(format!("the driver has no {name}, it is too old")))?;
    }
    // The library stays loaded: its threads may run.
    std::mem::forget(library);
    let mut version = 0;
    // SAFETY: a place for the number.
    check(unsafe { sys::cuDriverGetVersion(&mut version) }, "cuDriverGetVersion")?;
    if version < OLDEST {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(absent(format!("the driver is made for CUDA {major}.{minor}")));
    }
    // SAFETY: no arguments but 0.
    check(unsafe { sys::cuInit(0) }, "cuInit").map_err(absent)?;
    let mut gpus = 0;
    // SAFETY: a place for the number.
    check(unsafe { sys::cuDeviceGetCount(&mut gpus) }, "cuDeviceGetCount")?;
    if gpus == 0 {
        return Err(absent("the driver sees no GPU"));
    }
    Ok(Found { version, gpus })
}

/// Turns a result of the driver into an error that says what it means.
pub fn check(result: CUresult, call: &'static str) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
    // SAFETY: places for two static texts.
    let texts = unsafe {
        sys::cuGetErrorName(result, &mut name);
        sys::cuGetErrorString(result, &mut text);
        [name, text].map(|t| if t.is_null() { c"unknown" } else { CStr::from_ptr(t) })
    };
    let [name, text] = texts.map(CStr::to_string_lossy);
    Err(Error::Cuda { call, cause: format!("{name}: {text}") })
}

/// Calls a function of the driver and checks its result.
macro_rules! cu {
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::device::cuda::driver::check(
            cudarc::driver::sys::$name($($argument),*),
            stringify!($name),
        )
    };
}
pub(crate) use cu;

/// A GPU of this process, with its primary context: the one that the CUDA runtime uses too.
pub struct Gpu {
    /// The number of the GPU in this process.
    pub index: i32,
    /// The number of the GPU at the driver.
    pub device: CUdevice,
    /// The primary context of the GPU.
    pub context: CUcontext,
    /// The UUID of the GPU, the same in all processes.
    pub uuid: [u8; 16],
    /// The number of multiprocessors.
    pub multiprocessors: u32,
    /// True if blocks of a kernel may be there before the kernel before it has ended: from compute
    /// capability 9.0 on.
    pub launches_early: bool,
    /// The multiprocessors that communicators of this process may hold at a time.
    pub held: AtomicU32,
    /// The memory of ranks there.
    pub(in crate::device::cuda) pool: Mutex<Pool>,
    /// The work that waits until no communicator has a kernel there.
    pub(in crate::device::cuda) closing: Closing,
}

// SAFETY: contexts may be used from any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// Returns the GPU of this number. Its context stays until the process ends.
pub fn gpu(index: i32) -> Result<&'static Gpu> {
    static GPUS: Mutex<Vec<(i32, &'static Gpu)>> = Mutex::new(Vec::new());
    let count = count()?;
    let mut gpus = GPUS.lock().unwrap_or_else(|e| e.into_inner());
    if let Some((_, gpu)) = gpus.iter().find(|(i, _)| *i == index) {
        return Ok(gpu);
    }
    if !(0..count).contains(&index) {
        let hint = "choose one of those that are there, numbered from 0";
        return Err(Error::usage(format!("there is no GPU {index}: {count} were found"), hint));
    }
    let gpu = &*Box::leak(Box::new(open(index)?));
    gpus.push((index, gpu));
    Ok(gpu)
}

fn open(index: i32) -> Result<Gpu> {
    crate::fork::refuse_children()?;
    let (mut device, mut context) = (0, std::ptr::null_mut());
    let (mut uuid, mut multiprocessors, mut major) = (sys::CUuuid { bytes: [0; 16] }, 0, 0);
    let count = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    let capability = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    // SAFETY: places for the results.
    unsafe {
        cu!(cuDeviceGet(&mut device, index))?;
        cu!(cuDeviceGetUuid_v2(&mut uuid, device))?;
        cu!(cuDeviceGetAttribute(&mut multiprocessors, count, device))?;
        cu!(cuDeviceGetAttribute(&mut major, capability, device))?;
        cu!(cuDevicePrimaryCtxRetain(&mut context, device))?;
    }
    exit::close_before_the_driver(crate::device::cuda::reaper::give_up);
    let uuid = uuid.bytes.map(|b| b as u8);
    let (multiprocessors, launches_early) = (multiprocessors as u32, major >= 9);
    let (held, pool, closing) = (AtomicU32::new(0), Mutex::default(), Closing::default());
    Ok(Gpu { index, device, context, uuid, multiprocessors, launches_early, held, pool, closing })
}

/// Returns whether the link to the GPU of this UUID carries 128 bytes at once: within a GPU, and
/// over NVLink, which is the link with native atomics. False for a GPU that this process does not
/// see.
pub fn carries_lines(gpu: &Gpu, uuid: &[u8; 16]) -> bool {
    if gpu.uuid == *uuid {
        return true;
    }
    let atomics = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    (0..count().unwrap_or(0)).any(|index| {
        let (mut device, mut found, mut has) = (0, sys::CUuuid { bytes: [0; 16] }, 0);
        // SAFETY: places for the results.
        let asked = unsafe {
            cu!(cuDeviceGet(&mut device, index))
                .and_then(|()| cu!(cuDeviceGetUuid_v2(&mut found, device)))
                .and_then(|()| cu!(cuDeviceGetP2PAttribute(&mut has, atomics, gpu.device, device)))
        };
        asked.is_ok() && found.bytes.map(|b| b as u8) == *uuid && has == 1
    })
}

impl Gpu {
    /// Makes this GPU's context current on this thread, until the returned guard is dropped.
    pub fn enter(&self) -> Result<Entered> {
        enter(self.context)
    }

    /// Makes this GPU the thread's GPU from now on, as cudaSetDevice does.
    pub fn select(&self) -> Result<()> {
        // SAFETY: a context that lives as long as the process.
        unsafe { cu!(cuCtxSetCurrent(self.context)) }
    }
}

/// Makes a living context current on this thread, until the returned guard is dropped.
pub(in crate::device::cuda) fn enter(context: CUcontext) -> Result<Entered> {
    let visit = exit::is_own_thread().then(|| exit::visit_driver().ok_or_else(exiting));
    let visit = visit.transpose()?;
    let mut current = std::ptr::null_mut();
    // SAFETY: a place for the context, and one that is alive.
    unsafe {
        cu!(cuCtxGetCurrent(&mut current))?;
        if current == context {
            return Ok(Entered { pushed: false, _visit: visit });
        }
        cu!(cuCtxPushCurrent_v2(context))?;
    }
    Ok(Entered { pushed: true, _visit: visit })
}

fn exiting() -> Error {
    Error::usage("the process exits", "destroy or abort communicators before")
}

/// Keeps the thread's current context; if there is none, makes that of the thread's device current,
/// until the returned guard is dropped.
pub fn enter_any() -> Result<Entered> {
    let mut context = std::ptr::null_mut();
    count()?;
    // SAFETY: a place for the context.
    unsafe { cu!(cuCtxGetCurrent(&mut context)) }?;
    if !context.is_null() {
        return Ok(Entered { pushed: false, _visit: None });
    }
    match crate::device::current()? {
        Device::Cuda(index) => gpu(index)?.enter(),
        // Any GPU will do: a thread on the host device names CUDA objects by their handles.
        Device::Host(_) => gpu(0)?.enter(),
    }
}

/// The guard of `enter`: when it is dropped, the thread's context is again that of before.
#[must_use]
pub struct Entered {
    pushed: bool,
    /// Dropped after the context is popped.
    _visit: Option<Visit>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut context = std::ptr::null_mut();
            // SAFETY: what was pushed is popped by the same thread.
            unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
        }
    }
}

/// Returns the GPU of the thread's current context; `None` if the thread has no context.
pub fn current() -> Option<i32> {
    let count = count().ok()?;
    let (mut context, mut device) = (std::ptr::null_mut(), 0);
    // SAFETY: places for the results.
    unsafe {
        cu!(cuCtxGetCurrent(&mut context)).ok().filter(|()| !context.is_null())?;
        cu!(cuCtxGetDevice(&mut device)).ok()?;
    }
    (0..count).find(|&i| {
        let mut candidate = 0;
        // SAFETY: a place for the result.
        unsafe { cu!(cuDeviceGet(&mut candidate, i)) }.is_ok() && candidate == device
    })
}

/// A guard: while it lives, this thread may allocate and load though other threads capture in
/// global mode.
#[must_use]
pub struct Relaxed(CUstreamCaptureMode);

impl Relaxed {
    /// Sets the thread's capture mode to relaxed.
    pub fn begin() -> Result<Self> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a place with the new mode, which gets the old one.
        unsafe { cu!(cuThreadExchangeStreamCaptureMode(&mut mode)) }?;
        Ok(Self(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: a place with the mode that was set before.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_function_that_is_called_is_probed_and_no_other() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/device/cuda");
        let (mut called, mut folders) = (BTreeSet::new(), vec![std::path::PathBuf::from(folder)]);
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let (inner, more): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
            folders.extend(inner);
            files.extend(more);
        }
        for file in files {
            let text = std::fs::read_to_string(file).unwrap();
            for before in ["cu!(", "sys::"] {
                let calls = text.split(before).skip(1).filter_map(|call| call.split_once('('));
                let names = calls.map(|(name, _)| name.trim().to_owned());
                called.extend(names.filter(|name| {
                    name.starts_with("cu") && name.chars().all(|c| c.is_alphanumeric() || c == '_')
                }));
            }
        }
        let listed: BTreeSet<String> = SYMBOLS.iter().map(|s| (*s).to_owned()).collect();
        assert_eq!(called, listed);
    }
}
