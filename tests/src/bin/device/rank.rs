//! A rank as these tests use it: through the C interface only, on whatever device is chosen.

use cudarc::driver::sys;
use oxccl::nccl::collectives as nccl;
use oxccl::nccl::comm::{
    ncclCommDestroy, ncclCommGetAsyncError, ncclCommInitRank, ncclGetUniqueId,
};
use oxccl::nccl::info::ncclGetLastError;
use oxccl::nccl::types::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use oxccl::oxccl::device::{
    oxcclDeviceCount, oxcclDeviceSet, oxcclMemAlloc, oxcclMemFree, oxcclMemcpyAsync,
};
use oxccl::oxccl::graph::{
    oxcclGraphDestroy, oxcclGraphExecUpdate, oxcclGraphInstantiate, oxcclGraphLaunch,
    oxcclStreamBeginCapture, oxcclStreamEndCapture,
};
use oxccl::oxccl::info::oxcclCommInPlace;
use oxccl::oxccl::stream::{oxcclStreamCreate, oxcclStreamDestroy, oxcclStreamSynchronize};
use oxccl::oxccl::types::{
    oxcclCaptureMode_t, oxcclDeviceKind_t, oxcclGraph_t, oxcclGraphExec_t, oxcclStream_t,
};
use oxccl_plan::{Collective, DataType, ReduceOp};
use std::alloc::Layout;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// How long a stream may take.
const PATIENCE_NS: i64 = 60_000_000_000;

/// A failure, in words.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// The text of the last error.
pub(crate) fn last_error() -> String {
    // SAFETY: the text lives until the thread's next error.
    unsafe { CStr::from_ptr(ncclGetLastError(null_mut())) }.to_string_lossy().into_owned()
}

/// Turns a code into words.
pub(crate) fn ok(result: ncclResult_t) -> Outcome {
    match result {
        ncclResult_t::ncclSuccess => Ok(()),
        other => Err(format!("{other:?}: {}", last_error())),
    }
}

/// The kind of device that is there, and how many of them.
pub(crate) fn devices() -> (oxcclDeviceKind_t, i32) {
    let cuda = MaybeUninit::new(oxcclDeviceKind_t::oxcclDeviceCuda);
    let (mut count, host) = (0, oxcclDeviceKind_t::oxcclDeviceHost);
    // SAFETY: a place for the number.
    let result = unsafe { oxcclDeviceCount(cuda, &mut count) };
    let wanted = std::env::var("OXCCL_DEVICE").unwrap_or_default() != "host";
    if result == ncclResult_t::ncclSuccess && count > 0 && wanted {
        return (oxcclDeviceKind_t::oxcclDeviceCuda, count);
    }
    (host, 1)
}

/// Chooses the device of a rank for the calling thread.
pub(crate) fn choose(rank: i32) -> Outcome {
    let (kind, count) = devices();
    // SAFETY: any numbers may be passed.
    ok(unsafe { oxcclDeviceSet(MaybeUninit::new(kind), rank % count) })
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// This library's.
    Library,
    /// cudaMalloc's.
    Driver,
    /// malloc's, with this layout.
    System(Layout),
}

/// Memory of the chosen device.
pub(crate) struct Memory {
    pub(crate) at: *mut c_void,
    owner: Owner,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Outcome<Self> {
        let mut at = null_mut();
        // SAFETY: a place for the address.
        ok(unsafe { oxcclMemAlloc(&mut at, bytes) })?;
        Ok(Self { at, owner: Owner::Library })
    }

    /// Not from this library: what a program has that does not know it.
    pub(crate) fn foreign(bytes: usize) -> Outcome<Self> {
        if devices().0 == oxcclDeviceKind_t::oxcclDeviceCuda {
            let mut at = 0;
            // SAFETY: a place for the address; the device's context is the thread's.
            unsafe { sys::cuMemAlloc_v2(&mut at, bytes) }.result().map_err(|e| e.to_string())?;
            let at = std::ptr::with_exposed_provenance_mut(at as usize);
            return Ok(Self { at, owner: Owner::Driver });
        }
        let layout = Layout::from_size_align(bytes.max(1), 4096).map_err(|e| e.to_string())?;
        // SAFETY: not of size 0.
        let at = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok(Self { at: at.cast(), owner: Owner::System(layout) })
    }

    pub(crate) fn part(&self, offset: usize) -> *mut c_void {
        self.at.wrapping_byte_add(offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more, and it goes back to whom it came from.
        unsafe {
            match self.owner {
                Owner::Library => _ = oxcclMemFree(self.at),
                Owner::Driver => _ = sys::cuMemFree_v2(self.at as u64),
                Owner::System(layout) => std::alloc::dealloc(self.at.cast(), layout),
            }
        }
    }
}

/// A collective to call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) root: i32,
}

/// A rank with a stream.
#[derive(Clone, Copy)]
pub(crate) struct Rank {
    pub(crate) rank: i32,
    pub(crate) nranks: i32,
    pub(crate) comm: ncclComm_t,
    pub(crate) stream: oxcclStream_t,
}

// SAFETY: handles may be used from any thread.
unsafe impl Send for Rank {}
// SAFETY: as above.
unsafe impl Sync for Rank {}

/// An id for a communicator.
pub(crate) fn unique_id() -> Outcome<ncclUniqueId> {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: a place for the id.
    ok(unsafe { ncclGetUniqueId(&mut id) })?;
    Ok(id)
}

impl Rank {
    /// Joins a communicator on the rank's device; makes the device the thread's.
    pub(crate) fn join(id: ncclUniqueId, nranks: i32, rank: i32) -> Outcome<Self> {
        choose(rank)?;
        let mut comm = null_mut();
        // SAFETY: a place for the handle.
        ok(unsafe { ncclCommInitRank(&mut comm, nranks, id, rank) })?;
        Self::with(comm, nranks, rank)
    }

    /// A rank whose communicator was made; its device is the thread's.
    pub(crate) fn with(comm: ncclComm_t, nranks: i32, rank: i32) -> Outcome<Self> {
        Ok(Self { rank, nranks, comm, stream: stream()? })
    }

    /// Ends both.
    pub(crate) fn leave(self) -> Outcome {
        // SAFETY: living handles.
        unsafe {
            ok(oxcclStreamDestroy(self.stream))?;
            ok(ncclCommDestroy(self.comm))
        }
    }

    pub(crate) fn synchronize(&self) -> Outcome {
        synchronize(self.stream)
    }

    /// What ncclCommGetAsyncError says.
    pub(crate) fn async_error(&self) -> ncclResult_t {
        let mut error = ncclResult_t::ncclInternalError;
        // SAFETY: a place for the code.
        unsafe { ncclCommGetAsyncError(self.comm, &mut error) };
        error
    }

    /// Copies to the device, and waits for it.
    pub(crate) fn upload(&self, to: *mut c_void, bytes: &[u8]) -> Outcome {
        // SAFETY: the caller's memory of the device.
        ok(unsafe { oxcclMemcpyAsync(to, bytes.as_ptr().cast(), bytes.len(), self.stream) })?;
        self.synchronize()
    }

    /// Copies from the device.
    pub(crate) fn download(&self, from: *const c_void, bytes: usize) -> Outcome<Vec<u8>> {
        // The driver copies to such memory while it holds the context, which ranks may share.
        self.synchronize()?;
        let mut out = vec![0u8; bytes];
        // SAFETY: the caller's memory of the device.
        ok(unsafe { oxcclMemcpyAsync(out.as_mut_ptr().cast(), from, bytes, self.stream) })?;
        self.synchronize()?;
        Ok(out)
    }

    /// Collectives so far that used the ranks' buffers where they lie.
    pub(crate) fn in_place(&self) -> Outcome<u64> {
        let mut count = 0;
        // SAFETY: a place for the number.
        ok(unsafe { oxcclCommInPlace(self.comm, &mut count) })?;
        Ok(count)
    }

    /// Calls a collective on the rank's stream.
    pub(crate) fn call(&self, call: Call, from: *const c_void, to: *mut c_void) -> ncclResult_t {
        self.call_on(self.stream, call, from, to)
    }

    /// Calls a collective.
    pub(crate) fn call_on(
        &self,
        stream: oxcclStream_t,
        call: Call,
        from: *const c_void,
        to: *mut c_void,
    ) -> ncclResult_t {
        let Call { collective, count, dtype, op, root } = call;
        // SAFETY: the numbers are those of the header.
        let dtype = unsafe { std::mem::transmute::<i32, ncclDataType_t>(dtype as i32) };
        // SAFETY: as above.
        let op = unsafe { std::mem::transmute::<i32, ncclRedOp_t>(op as i32) };
        let (dtype, op) = (MaybeUninit::new(dtype), MaybeUninit::new(op));
        let comm = self.comm;
        // SAFETY: buffers of these sizes by the contract of the caller.
        unsafe {
            match collective {
                Collective::AllReduce => {
                    nccl::ncclAllReduce(from, to, count, dtype, op, comm, stream)
                }
                Collective::Broadcast => {
                    nccl::ncclBroadcast(from, to, count, dtype, root, comm, stream)
                }
                Collective::Reduce => {
                    nccl::ncclReduce(from, to, count, dtype, op, root, comm, stream)
                }
                Collective::AllGather => nccl::ncclAllGather(from, to, count, dtype, comm, stream),
                Collective::ReduceScatter => {
                    nccl::ncclReduceScatter(from, to, count, dtype, op, comm, stream)
                }
                Collective::AllToAll => nccl::ncclAlltoAll(from, to, count, dtype, comm, stream),
                Collective::Gather => nccl::ncclGather(from, to, count, dtype, root, comm, stream),
                Collective::Scatter => {
                    nccl::ncclScatter(from, to, count, dtype, root, comm, stream)
                }
            }
        }
    }

    /// Sends or receives bytes.
    pub(crate) fn message(
        &self,
        send: bool,
        data: *mut c_void,
        bytes: usize,
        peer: i32,
    ) -> ncclResult_t {
        let byte = MaybeUninit::new(ncclDataType_t::ncclUint8);
        // SAFETY: buffers of these sizes by the contract of the caller.
        unsafe {
            if send {
                nccl::ncclSend(data, bytes, byte, peer, self.comm, self.stream)
            } else {
                nccl::ncclRecv(data, bytes, byte, peer, self.comm, self.stream)
            }
        }
    }
}

/// A stream of the thread's device.
pub(crate) fn stream() -> Outcome<oxcclStream_t> {
    let mut stream = null_mut();
    // SAFETY: a place for the handle.
    ok(unsafe { oxcclStreamCreate(&mut stream) })?;
    Ok(stream)
}

pub(crate) fn synchronize(stream: oxcclStream_t) -> Outcome {
    // SAFETY: a living handle.
    match unsafe { oxcclStreamSynchronize(stream, PATIENCE_NS) } {
        ncclResult_t::ncclInProgress => Err("the stream hangs".to_owned()),
        other => ok(other),
    }
}

/// A graph of what was captured, ready to launch.
pub(crate) struct Replay {
    graph: oxcclGraph_t,
    exec: oxcclGraphExec_t,
}

impl Replay {
    /// Captures what `calls` puts on the stream; the modes are those of oxcclCaptureMode_t.
    pub(crate) fn capture(
        stream: oxcclStream_t,
        mode: oxcclCaptureMode_t,
        calls: impl FnOnce() -> Outcome,
    ) -> Outcome<Self> {
        let (mut graph, mut exec) = (null_mut(), null_mut());
        // SAFETY: a living stream, and places for the handles.
        unsafe {
            ok(oxcclStreamBeginCapture(stream, MaybeUninit::new(mode)))?;
            let called = calls();
            let ended = ok(oxcclStreamEndCapture(stream, &mut graph));
            called.and(ended)?;
            ok(oxcclGraphInstantiate(&mut exec, graph))?;
        }
        Ok(Self { graph, exec })
    }

    /// Takes the buffers of another capture of the same calls.
    pub(crate) fn update(&mut self, with: Self) -> Outcome {
        // SAFETY: living handles.
        ok(unsafe { oxcclGraphExecUpdate(self.exec, with.graph) })
    }

    pub(crate) fn launch(&self, stream: oxcclStream_t) -> Outcome {
        // SAFETY: living handles.
        ok(unsafe { oxcclGraphLaunch(self.exec, stream) })
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // SAFETY: living handles.
        unsafe { oxcclGraphDestroy(self.graph, self.exec) };
    }
}
