//! The collectives, send and receive.

#![allow(clippy::too_many_arguments, reason = "C gives them one by one")]

use super::coll_config::{self, ncclCollConfig_t};
use super::redop;
use super::types::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use crate::boundary::{boundary, boundary_of_call};
use crate::{convert, objects};
use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::cancel::Uncancelled;
use oxccl_runtime::device::Stream;
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::group;
use oxccl_runtime::log::{self, Level, Subsystem};
use oxccl_runtime::op::{Call, Transfer};
use oxccl_twin::twin;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// The arguments of a collective, as C gave them.
pub(super) struct Arguments {
    function: &'static str,
    collective: Collective,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: MaybeUninit<ncclDataType_t>,
    op: Option<MaybeUninit<ncclRedOp_t>>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
}

impl Arguments {
    /// Returns the arguments for a function that does the same with options.
    pub(super) fn of(self, function: &'static str) -> Self {
        Self { function, ..self }
    }

    /// Checks the arguments and launches the call, as [`boundary_of_call`] asks for.
    fn launch(&self) -> Result<()> {
        self.submit(|comm, call, stream| group::collective(comm, call, stream))
    }

    /// Checks the arguments and launches the call with options; null for a plain call.
    ///
    /// # Safety
    /// `config` is null, or points to an ncclCollConfig_t of any version.
    pub(super) unsafe fn launch_under(&self, config: *const ncclCollConfig_t) -> Result<()> {
        if config.is_null() {
            return self.launch();
        }
        self.submit(|comm, call, stream| {
            // SAFETY: by the contract of this function.
            let (options, event) = unsafe { coll_config::read(config, comm, self.function)? };
            group::collective_under(comm, call, options, (stream, event))
        })
    }

    /// Checks the arguments, and hands the call over.
    #[inline]
    fn submit(&self, to: impl FnOnce(&objects::Called, &Call, Stream) -> Result<()>) -> Result<()> {
        let function = self.function;
        let comm = objects::comm(self.comm, function)?;
        // In host memory only some ways end in the system, and are guarded where they begin.
        let _whole = (!comm.device().is_host()).then(Uncancelled::begin);
        comm.check()?;
        let dtype = convert::dtype(self.dtype, function)?;
        let (op, scale) = match self.op {
            Some(op) => redop::resolve(op, dtype, &comm, self.comm, function)?,
            None => (ReduceOp::Sum, None),
        };
        let root = if self.collective.rooted() {
            convert::rank(self.root, comm.nranks(), function, "root")?
        } else {
            0
        };
        let spec = Spec::new(self.collective, comm.nranks(), root);
        bytes(function, self.count_name(), self.count, dtype, comm.nranks() as usize)?;
        let buffer = |ptr: *const c_void, blocks: u32, argument: &'static str| {
            let argument = if function == "ncclBcast" { "buff" } else { argument };
            let bytes = blocks as usize * self.count * dtype.size();
            convert::buffer(ptr, bytes, function, argument)
        };
        buffer(self.input, spec.input_blocks(comm.rank()), "sendbuff")?;
        buffer(self.output, spec.output_blocks(comm.rank()), "recvbuff")?;
        // Also with 0 elements: the other ranks check that all ranks make the same call.
        let (input, output) = (self.input.cast(), self.output.cast());
        let call = Call { spec, input, output, count: self.count as u64, dtype, op, scale };
        let stream = comm.stream(self.stream as usize, function)?;
        log_call(function, &comm, (self.comm, self.stream), || {
            let Call { count, dtype, op, .. } = call;
            let op = match (self.op, call.scale) {
                (None, _) => "none",
                (Some(_), Some(_)) => "premulsum",
                (Some(_), None) => op.name(),
            };
            let (from, to, dtype) = (self.input, self.output, dtype.name());
            format!(
                "sendbuff {from:p} recvbuff {to:p} count {count} datatype {dtype} op {op} root {root}"
            )
        });
        to(&comm, &call, stream)
    }

    fn count_name(&self) -> &'static str {
        match self.collective {
            Collective::AllGather => "sendcount",
            Collective::ReduceScatter => "recvcount",
            _ => "count",
        }
    }
}

/// Logs a call, where calls are logged, as NCCL does: with its arguments, which `arguments`
/// returns, and its communicator.
#[inline]
fn log_call(
    function: &str,
    comm: &objects::Called,
    (handle, stream): (ncclComm_t, cudaStream_t),
    arguments: impl FnOnce() -> String,
) {
    if log::enabled(Level::Info, Subsystem::Coll) {
        let _whole = Uncancelled::begin();
        let (nranks, arguments) = (comm.nranks(), arguments());
        let text =
            format!("{function}: {arguments} comm {handle:p} [nranks={nranks}] stream {stream:p}");
        log::line_of(Some(comm.rank()), Level::Info, Subsystem::Coll, &text);
    }
}

/// Returns the size of a buffer in bytes; fails if the address space is too small for it.
pub(crate) fn bytes(
    function: &'static str,
    argument: &'static str,
    count: usize,
    dtype: DataType,
    blocks: usize,
) -> Result<usize> {
    let bytes = count.checked_mul(dtype.size()).and_then(|b| b.checked_mul(blocks));
    bytes.filter(|&b| b <= isize::MAX as usize).ok_or_else(|| {
        let expected = "a number of elements that fits the address space";
        Error::argument(function, argument, count, expected)
    })
}

fn transfer(
    function: &'static str,
    send: bool,
    data: *mut c_void,
    count: usize,
    dtype: MaybeUninit<ncclDataType_t>,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Result<()> {
    let handles = (comm, stream);
    let comm = objects::comm(comm, function)?;
    comm.check()?;
    let dtype = convert::dtype(dtype, function)?;
    let peer = convert::rank(peer, comm.nranks(), function, "peer")?;
    let stream = comm.stream(stream as usize, function)?;
    let bytes = bytes(function, "count", count, dtype, 1)?;
    let buffer = if send { "sendbuff" } else { "recvbuff" };
    convert::buffer(data, bytes, function, buffer)?;
    log_call(function, &comm, handles, || {
        let dtype = dtype.name();
        format!("{buffer} {data:p} count {count} datatype {dtype} peer {peer}")
    });
    let transfer = Transfer { peer, send, data: data.cast(), bytes, dtype };
    group::transfer(&comm, transfer, stream)
}

pub(super) fn all_reduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    op: MaybeUninit<ncclRedOp_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Arguments {
    Arguments {
        function: "ncclAllReduce",
        collective: Collective::AllReduce,
        input: sendbuff,
        output: recvbuff,
        count,
        dtype: datatype,
        op: Some(op),
        root: 0,
        comm,
        stream,
    }
}

/// Leaves the reduction of all ranks' inputs in every rank's output.
///
/// `sendbuff`: in, count × datatype. `recvbuff`: out, count × datatype; may equal `sendbuff`.
/// Blocks: never, except for memory at the first large call on GPUs; complete when
/// oxcclStreamSynchronize on `stream` says so. 0 elements: nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    op: MaybeUninit<ncclRedOp_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    boundary_of_call(|| all_reduce(sendbuff, recvbuff, count, datatype, op, comm, stream).launch())
}

pub(super) fn broadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Arguments {
    Arguments {
        function: "ncclBroadcast",
        collective: Collective::Broadcast,
        input: sendbuff,
        output: recvbuff,
        count,
        dtype: datatype,
        op: None,
        root,
        comm,
        stream,
    }
}

/// Copies the root's input to every rank's output.
///
/// `sendbuff`: in at the root, count × datatype, ignored elsewhere. `recvbuff`: out, count ×
/// datatype; may equal `sendbuff`. Blocks: never, except for memory at the first large call on
/// GPUs; complete when oxcclStreamSynchronize on `stream` says so. 0 elements: nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    boundary_of_call(|| broadcast(sendbuff, recvbuff, count, datatype, root, comm, stream).launch())
}

pub(super) fn bcast(
    buff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Arguments {
    Arguments {
        function: "ncclBcast",
        collective: Collective::Broadcast,
        input: buff.cast_const(),
        output: buff,
        count,
        dtype: datatype,
        op: None,
        root,
        comm,
        stream,
    }
}

/// Copies the root's buffer to every rank's; ncclBroadcast in place.
///
/// `buff`: in at the root, out elsewhere, count × datatype. Blocks: never, except for memory at the
/// first large call on GPUs; complete when oxcclStreamSynchronize on `stream` says so. 0 elements:
/// nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    boundary_of_call(|| bcast(buff, count, datatype, root, comm, stream).launch())
}

pub(super) fn reduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    op: MaybeUninit<ncclRedOp_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Arguments {
    Arguments {
        function: "ncclReduce",
        collective: Collective::Reduce,
        input: sendbuff,
        output: recvbuff,
        count,
        dtype: datatype,
        op: Some(op),
        root,
        comm,
        stream,
    }
}

/// Leaves the reduction of all ranks' inputs in the root's output.
///
/// `sendbuff`: in, count × datatype. `recvbuff`: out at the root, count × datatype, ignored
/// elsewhere; may equal `sendbuff`. Blocks: never, except for memory at the first large call on
/// GPUs; complete when oxcclStreamSynchronize on `stream` says so. 0 elements: nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    op: MaybeUninit<ncclRedOp_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    boundary_of_call(|| {
        reduce(sendbuff, recvbuff, count, datatype, op, root, comm, stream).launch()
    })
}

pub(super) fn reduce_scatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    op: MaybeUninit<ncclRedOp_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Arguments {
    Arguments {
        function: "ncclReduceScatter",
        collective: Collective::ReduceScatter,
        input: sendbuff,
        output: recvbuff,
        count: recvcount,
        dtype: datatype,
        op: Some(op),
        root: 0,
        comm,
        stream,
    }
}

/// Leaves block r of the reduction of all ranks' inputs in the output of rank r.
///
/// `sendbuff`: in, ranks × recvcount × datatype. `recvbuff`: out, recvcount × datatype; in place at
/// `sendbuff + rank × recvcount`. Blocks: never, except for memory at the first large call on GPUs;
/// complete when oxcclStreamSynchronize on `stream` says so. 0 elements: nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    op: MaybeUninit<ncclRedOp_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    boundary_of_call(|| {
        reduce_scatter(sendbuff, recvbuff, recvcount, datatype, op, comm, stream).launch()
    })
}

pub(super) fn all_gather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Arguments {
    Arguments {
        function: "ncclAllGather",
        collective: Collective::AllGather,
        input: sendbuff,
        output: recvbuff,
        count: sendcount,
        dtype: datatype,
        op: None,
        root: 0,
        comm,
        stream,
    }
}

/// Leaves the inputs of all ranks, in rank order, in every rank's output.
///
/// `sendbuff`: in, sendcount × datatype. `recvbuff`: out, ranks × sendcount × datatype; in place
/// with `sendbuff` at `recvbuff + rank × sendcount`. Blocks: never, except for memory at the first
/// large call on GPUs; complete when oxcclStreamSynchronize on `stream` says so. 0 elements:
/// nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    boundary_of_call(|| all_gather(sendbuff, recvbuff, sendcount, datatype, comm, stream).launch())
}

pub(super) fn all_to_all(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Arguments {
    Arguments {
        function: "ncclAlltoAll",
        collective: Collective::AllToAll,
        input: sendbuff,
        output: recvbuff,
        count,
        dtype: datatype,
        op: None,
        root: 0,
        comm,
        stream,
    }
}

/// Leaves block r of every rank's input, in rank order, in the output of rank r.
///
/// `sendbuff`: in, ranks × count × datatype. `recvbuff`: out, ranks × count × datatype; may equal
/// `sendbuff`. Blocks: never, except for memory at the first large call on GPUs; complete when
/// oxcclStreamSynchronize on `stream` says so. 0 elements: nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    boundary_of_call(|| all_to_all(sendbuff, recvbuff, count, datatype, comm, stream).launch())
}

pub(super) fn gather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Arguments {
    Arguments {
        function: "ncclGather",
        collective: Collective::Gather,
        input: sendbuff,
        output: recvbuff,
        count,
        dtype: datatype,
        op: None,
        root,
        comm,
        stream,
    }
}

/// Leaves the inputs of all ranks, in rank order, in the root's output.
///
/// `sendbuff`: in, count × datatype. `recvbuff`: out at the root, ranks × count × datatype, ignored
/// elsewhere; in place with `sendbuff` at `recvbuff + root × count`. Blocks: never, except for
/// memory at the first large call on GPUs; complete when oxcclStreamSynchronize on `stream` says
/// so. 0 elements: nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    boundary_of_call(|| gather(sendbuff, recvbuff, count, datatype, root, comm, stream).launch())
}

pub(super) fn scatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Arguments {
    Arguments {
        function: "ncclScatter",
        collective: Collective::Scatter,
        input: sendbuff,
        output: recvbuff,
        count,
        dtype: datatype,
        op: None,
        root,
        comm,
        stream,
    }
}

/// Leaves block r of the root's input in the output of rank r.
///
/// `sendbuff`: in at the root, ranks × count × datatype, ignored elsewhere. `recvbuff`: out, count
/// × datatype; in place at `sendbuff + root × count`. Blocks: never, except for memory at the first
/// large call on GPUs; complete when oxcclStreamSynchronize on `stream` says so. 0 elements:
/// nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    boundary_of_call(|| scatter(sendbuff, recvbuff, count, datatype, root, comm, stream).launch())
}

unsafe fn send(
    sendbuff: *const c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Result<()> {
    transfer("ncclSend", true, sendbuff.cast_mut(), count, datatype, peer, comm, stream)
}

/// Sends to rank `peer`, which has to receive as much.
///
/// `sendbuff`: in, count × datatype. Sends and receives of a group make progress in any order.
/// Blocks: never, except for memory at the first large call on GPUs; complete when
/// oxcclStreamSynchronize on `stream` says so. 0 elements: nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { send(sendbuff, count, datatype, peer, comm, stream) })
}

unsafe fn recv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Result<()> {
    transfer("ncclRecv", false, recvbuff, count, datatype, peer, comm, stream)
}

/// Receives from rank `peer`, which has to send as much.
///
/// `recvbuff`: out, count × datatype. Sends and receives of a group make progress in any order.
/// Blocks: never, except for memory at the first large call on GPUs; complete when
/// oxcclStreamSynchronize on `stream` says so. 0 elements: nothing is done.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { recv(recvbuff, count, datatype, peer, comm, stream) })
}
