//! A rank as these tests use it: through the C interface only, on whatever device is chosen.

use cudarc::driver::sys;
use oxccl::nccl::children::{ncclCommShrink, ncclCommSplit};
use oxccl::nccl::collectives as nccl;
use oxccl::nccl::comm::{
    ncclCommCount, ncclCommDestroy, ncclCommFinalize, ncclCommGetAsyncError, ncclCommInitRank,
    ncclCommUserRank, ncclGetUniqueId,
};
use oxccl::nccl::group::{ncclGroupEnd, ncclGroupStart};
use oxccl::nccl::info::ncclGetLastError;
use oxccl::nccl::types::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use oxccl::oxccl::device::{
    oxcclDeviceCount, oxcclDeviceSet, oxcclMemAlloc, oxcclMemFree, oxcclMemcpyAsync,
};
use oxccl::oxccl::graph::{
    oxcclGraphDestroy, oxcclGraphExecUpdate, oxcclGraphInstantiate, oxcclGraphLaunch,
    oxcclStreamBeginCapture, oxcclStreamEndCapture,
};
use oxccl::oxccl::info::{oxcclCommByCopyEngines, oxcclCommInPlace};
use oxccl::oxccl::stream::{oxcclStreamCreate, oxcclStreamDestroy, oxcclStreamSynchronize};
use oxccl::oxccl::types::{
    oxcclCaptureMode_t, oxcclDeviceKind_t, oxcclGraph_t, oxcclGraphExec_t, oxcclStream_t,
};
use oxccl_plan::{Collective, DataType, ReduceOp};
use oxccl_tests::number;
use std::alloc::Layout;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

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

/// Returns whether the ranks are on GPUs.
pub(crate) fn on_gpu() -> bool {
    devices().0 == oxcclDeviceKind_t::oxcclDeviceCuda
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
    /// Pieces of virtual memory, so many bytes in all.
    Pieces(usize),
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

    /// As allocators have it that grow: pieces of a GPU's virtual memory one after the other, which
    /// only the thread's device reaches.
    pub(crate) fn in_pieces(bytes: usize) -> Outcome<Self> {
        const PIECE: usize = 2 << 20;
        if devices().0 != oxcclDeviceKind_t::oxcclDeviceCuda {
            return Self::foreign(bytes);
        }
        let bytes = bytes.next_multiple_of(PIECE);
        let ok = |result: sys::CUresult| result.result().map_err(|e| e.to_string());
        let (mut base, mut device, mut piece) = (0, 0, 0);
        // SAFETY: all zeroes are a value of this structure; places for the results, and a range
        // that is reserved.
        unsafe {
            ok(sys::cuCtxGetDevice(&mut device))?;
            let mut kind: sys::CUmemAllocationProp = std::mem::zeroed();
            kind.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
            kind.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            kind.location.id = device;
            kind.requestedHandleTypes =
                sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            ok(sys::cuMemAddressReserve(&mut base, bytes, 0, 0, 0))?;
            for at in (0..bytes).step_by(PIECE) {
                ok(sys::cuMemCreate(&mut piece, PIECE, &kind, 0))?;
                ok(sys::cuMemMap(base + at as u64, PIECE, 0, piece, 0))?;
                ok(sys::cuMemRelease(piece))?;
            }
            let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            let access = sys::CUmemAccessDesc { location: kind.location, flags };
            ok(sys::cuMemSetAccess(base, bytes, &access, 1))?;
        }
        let at = std::ptr::with_exposed_provenance_mut(base as usize);
        Ok(Self { at, owner: Owner::Pieces(bytes) })
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
                Owner::Pieces(bytes) => {
                    sys::cuMemUnmap(self.at as u64, bytes);
                    sys::cuMemAddressFree(self.at as u64, bytes);
                }
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

/// A sum of int32 on all ranks.
pub(crate) fn sum(count: usize) -> Call {
    let (collective, dtype, op) = (Collective::AllReduce, DataType::Int32, ReduceOp::Sum);
    Call { collective, count, dtype, op, root: 0 }
}

/// So many times the same int32.
pub(crate) fn words(value: i32, count: usize) -> Vec<u8> {
    value.to_ne_bytes().repeat(count)
}

/// Runs calls as a group.
pub(crate) fn group(calls: impl FnOnce() -> Outcome) -> Outcome {
    // SAFETY: no arguments.
    ok(unsafe { ncclGroupStart() })?;
    let called = calls();
    // SAFETY: as above.
    called.and(ok(unsafe { ncclGroupEnd() }))
}

/// The rank of a test whose ranks have a thread each.
pub(crate) fn one(ranks: &[Rank]) -> Outcome<&Rank> {
    match ranks {
        [rank] => Ok(rank),
        _ => Err("one rank per thread".to_owned()),
    }
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
        Self::join_on(rank, id, nranks, rank)
    }

    /// Joins on the device of rank `of` of another communicator.
    pub(crate) fn join_on(of: i32, id: ncclUniqueId, nranks: i32, rank: i32) -> Outcome<Self> {
        choose(of)?;
        let mut comm = null_mut();
        // SAFETY: a place for the handle.
        ok(unsafe { ncclCommInitRank(&mut comm, nranks, id, rank) })?;
        Self::with(comm, nranks, rank)
    }

    /// A rank whose communicator was made; its device is the thread's.
    pub(crate) fn with(comm: ncclComm_t, nranks: i32, rank: i32) -> Outcome<Self> {
        Ok(Self { rank, nranks, comm, stream: stream()? })
    }

    fn of(comm: ncclComm_t) -> Outcome<Self> {
        let (mut rank, mut nranks) = (0, 0);
        // SAFETY: places for the numbers.
        unsafe {
            ok(ncclCommUserRank(comm, &mut rank))?;
            ok(ncclCommCount(comm, &mut nranks))?;
        }
        Self::with(comm, nranks, rank)
    }

    /// This rank among those with its color, with a stream of its own; None for the color −1.
    pub(crate) fn split(&self, color: i32) -> Outcome<Option<Self>> {
        let mut comm = null_mut();
        // SAFETY: a place for the handle.
        ok(unsafe { ncclCommSplit(self.comm, color, self.rank, &mut comm, null_mut()) })?;
        (!comm.is_null()).then(|| Self::of(comm)).transpose()
    }

    /// This rank among all of its communicator.
    pub(crate) fn again(&self) -> Outcome<Self> {
        self.split(0)?.ok_or_else(|| "no child for a color".to_owned())
    }

    /// This rank among all but the last one; `flags` as for ncclCommShrink.
    pub(crate) fn without_last(&self, flags: i32) -> Outcome<Self> {
        let (mut last, mut comm) = (self.nranks - 1, null_mut());
        // SAFETY: a rank to leave out, and a place for the handle.
        ok(unsafe { ncclCommShrink(self.comm, &mut last, 1, &mut comm, null_mut(), flags) })?;
        Self::of(comm)
    }

    /// The next rank and the one before.
    pub(crate) fn neighbours(&self) -> (i32, i32) {
        ((self.rank + 1) % self.nranks, (self.rank + self.nranks - 1) % self.nranks)
    }

    /// Ends its stream.
    pub(crate) fn end_stream(&self) -> Outcome {
        // SAFETY: a living handle.
        ok(unsafe { oxcclStreamDestroy(self.stream) })
    }

    /// Ends its communicator.
    pub(crate) fn end_communicator(&self) -> Outcome {
        // SAFETY: a living handle.
        ok(unsafe { ncclCommDestroy(self.comm) })
    }

    /// Finalizes its communicator, which a rank that has heard of a failure may do.
    pub(crate) fn finalize(&self) -> Outcome {
        // SAFETY: a living handle.
        ok(unsafe { ncclCommFinalize(self.comm) })
    }

    /// Ends both.
    pub(crate) fn leave(self) -> Outcome {
        self.end_stream()?;
        self.end_communicator()
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

    /// Compares bytes of the device.
    pub(crate) fn expect(&self, at: *const c_void, expected: &[u8]) -> Outcome {
        let found = self.download(at, expected.len())?;
        if found == expected {
            return Ok(());
        }
        let i = (0..found.len()).find(|&i| found[i] != expected[i]).unwrap_or(0);
        let (rank, bytes, got, want) = (self.rank, found.len(), found[i], expected[i]);
        Err(format!("rank {rank}: byte {i} of {bytes} is {got:#04x} instead of {want:#04x}"))
    }

    /// Waits for all ranks; `scratch` holds a word.
    pub(crate) fn meet(&self, scratch: *mut c_void) -> Outcome {
        ok(self.call(sum(1), scratch, scratch))?;
        self.synchronize()
    }

    /// Waits for the threads of all ranks if they share a GPU, but not for ever. Allocating,
    /// freeing and instantiating graphs may wait for all that a GPU does, and keep others out
    /// meanwhile: none may wait in an operation for who does so.
    pub(crate) fn all_idle(&self) -> Outcome {
        static MET: (Mutex<i32>, Condvar) = (Mutex::new(0), Condvar::new());
        let (kind, count) = devices();
        if kind == oxcclDeviceKind_t::oxcclDeviceHost || count >= self.nranks {
            return Ok(());
        }
        let mut came = MET.0.lock().unwrap_or_else(|e| e.into_inner());
        let last = *came - *came % self.nranks + self.nranks;
        *came += 1;
        MET.1.notify_all();
        let limit = Duration::from_nanos(PATIENCE_NS as u64);
        let waited = MET.1.wait_timeout_while(came, limit, |came| *came < last);
        match waited.is_ok_and(|(_, limit)| !limit.timed_out()) {
            true => Ok(()),
            false => Err("the other ranks did not come".to_owned()),
        }
    }

    /// Collectives so far that used the ranks' buffers where they lie.
    pub(crate) fn in_place(&self) -> Outcome<u64> {
        let mut count = 0;
        // SAFETY: a place for the number.
        ok(unsafe { oxcclCommInPlace(self.comm, &mut count) })?;
        Ok(count)
    }

    /// Operations so far whose data copy engines moved.
    pub(crate) fn by_engines(&self) -> Outcome<u64> {
        let mut count = 0;
        // SAFETY: a place for the number.
        ok(unsafe { oxcclCommByCopyEngines(self.comm, &mut count) })?;
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
        self.call_with(stream, (call, number(call.op as i32)), from, to)
    }

    /// Calls a collective with an operation of the user.
    pub(crate) fn call_with(
        &self,
        stream: oxcclStream_t,
        (call, op): (Call, MaybeUninit<ncclRedOp_t>),
        from: *const c_void,
        to: *mut c_void,
    ) -> ncclResult_t {
        let Call { collective, count, dtype, root, .. } = call;
        let dtype: MaybeUninit<ncclDataType_t> = number(dtype as i32);
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
        self.message_of(send, data, (DataType::Uint8, bytes), peer)
    }

    /// Sends or receives elements.
    pub(crate) fn message_of(
        &self,
        send: bool,
        data: *mut c_void,
        (dtype, count): (DataType, usize),
        peer: i32,
    ) -> ncclResult_t {
        let dtype = number(dtype as i32);
        // SAFETY: buffers of these sizes by the contract of the caller.
        unsafe {
            if send {
                nccl::ncclSend(data, count, dtype, peer, self.comm, self.stream)
            } else {
                nccl::ncclRecv(data, count, dtype, peer, self.comm, self.stream)
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
        let replay = Self { graph, exec };
        if on_gpu() { replay.expect_no_host_node().map(|()| replay) } else { Ok(replay) }
    }

    /// Fails if a replay would call a function of the host: the GPU would wait for a processor.
    fn expect_no_host_node(&self) -> Outcome {
        use sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST as HOST;
        let graph = self.graph.cast();
        let count = |nodes: &mut [sys::CUgraphNode]| {
            let mut len = nodes.len();
            let at = if nodes.is_empty() { null_mut() } else { nodes.as_mut_ptr() };
            // SAFETY: a living graph, and room for as many nodes as are asked for.
            let listed = unsafe { sys::cuGraphGetNodes(graph, at, &mut len) };
            listed.result().map(|()| len).map_err(|e| e.to_string())
        };
        let mut nodes = vec![null_mut(); count(&mut [])?];
        count(&mut nodes)?;
        for node in nodes {
            let mut kind = HOST;
            // SAFETY: a node of the graph, and a place for its type.
            let told = unsafe { sys::cuGraphNodeGetType(node, &mut kind) };
            told.result().map_err(|e| e.to_string())?;
            if kind == HOST {
                return Err("the captured graph has a host node".to_owned());
            }
        }
        Ok(())
    }

    /// Takes the buffers of another capture of the same calls.
    pub(crate) fn update(&mut self, with: Self) -> Outcome {
        // SAFETY: living handles.
        ok(unsafe { oxcclGraphExecUpdate(self.exec, with.graph) })
    }

    /// Does what the first launch would do but for running: it may wait for the GPU, too.
    pub(crate) fn upload(&self, stream: oxcclStream_t) -> Outcome {
        if devices().0 == oxcclDeviceKind_t::oxcclDeviceCuda {
            // SAFETY: living handles of CUDA.
            let uploaded = unsafe { sys::cuGraphUpload(self.exec.cast(), stream.cast()) };
            uploaded.result().map_err(|e| e.to_string())?;
        }
        synchronize(stream)
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
