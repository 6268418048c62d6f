//! Collectives with a count for every rank.

#![allow(clippy::too_many_arguments, reason = "C gives them one by one")]

use super::types::oxcclStream_t;
use crate::boundary::boundary;
use crate::nccl::redop;
use crate::nccl::types::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use crate::objects::Called;
use crate::{convert, objects};
use oxccl_plan::{Collective, DataType, Spec};
use oxccl_runtime::device::Stream;
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::group;
use oxccl_runtime::op::vcollective::{self, Part};
use oxccl_runtime::op::{Call, Transfers};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// The arguments that all of these calls have in common.
struct Common {
    function: &'static str,
    operation: &'static str,
    comm: Called,
    stream: Stream,
    dtype: DataType,
}

impl Common {
    fn new(
        (function, operation): (&'static str, &'static str),
        datatype: MaybeUninit<ncclDataType_t>,
        comm: ncclComm_t,
        stream: oxcclStream_t,
    ) -> Result<Self> {
        let comm = objects::comm(comm, function)?;
        comm.check()?;
        let dtype = convert::dtype(datatype, function)?;
        let stream = comm.stream(stream as usize, function)?;
        Ok(Self { function, operation, comm, stream, dtype })
    }

    fn rank(&self) -> usize {
        self.comm.rank() as usize
    }

    fn root(&self, root: c_int) -> Result<usize> {
        Ok(convert::rank(root, self.comm.nranks(), self.function, "root")? as usize)
    }

    /// Reads an array with a number per rank.
    ///
    /// # Safety
    /// `from` is null or has an element per rank.
    unsafe fn array(&self, argument: &'static str, from: *const usize) -> Result<Vec<usize>> {
        let nranks = self.comm.nranks() as usize;
        if from.is_null() {
            let expected = format!("an array of {nranks} numbers, one per rank");
            return Err(Error::argument(self.function, argument, "null", expected));
        }
        // SAFETY: by the contract of this function.
        Ok((0..nranks).map(|i| unsafe { from.add(i).read_unaligned() }).collect())
    }

    /// # Safety
    /// Both are null or have an element per rank.
    unsafe fn parts(
        &self,
        (counts_name, counts): (&'static str, *const usize),
        (displs_name, displs): (&'static str, *const usize),
    ) -> Result<Vec<Part>> {
        // SAFETY: passed on from the caller.
        let (counts, displs) =
            unsafe { (self.array(counts_name, counts)?, self.array(displs_name, displs)?) };
        let (counts, displs) = ((counts_name, &counts[..]), (displs_name, &displs[..]));
        vcollective::parts(self.function, counts, displs, self.dtype.size())
    }

    /// Returns the same part, the beginning of the buffer, for each of the given ranks, and empty
    /// parts for the others.
    fn same(
        &self,
        argument: &'static str,
        count: usize,
        ranks: std::ops::Range<usize>,
    ) -> Result<Vec<Part>> {
        let part = vcollective::packed(self.function, (argument, &[count]), self.dtype.size())?[0];
        let nobody = Part::default();
        let all = 0..self.comm.nranks() as usize;
        Ok(all.map(|r| if ranks.contains(&r) { part } else { nobody }).collect())
    }

    /// Returns empty parts for all ranks: those of a rank that is not the root, on the root's side.
    fn nothing(&self) -> Vec<Part> {
        vec![Part::default(); self.comm.nranks() as usize]
    }

    fn check_buffer(
        &self,
        argument: &'static str,
        base: *const c_void,
        parts: &[Part],
    ) -> Result<()> {
        parts.iter().try_for_each(|part| {
            let at = if base.is_null() { base } else { base.wrapping_byte_add(part.offset) };
            convert::buffer(at, part.bytes, self.function, argument)
        })
    }

    fn exchange(
        self,
        send: *const c_void,
        to: Vec<Part>,
        recv: *mut c_void,
        from: Vec<Part>,
    ) -> Result<()> {
        self.check_buffer("sendbuff", send, &to)?;
        self.check_buffer("recvbuff", recv, &from)?;
        let (send, recv) = ((send.cast(), &to[..]), (recv.cast(), &from[..]));
        let whose = (self.comm.rank(), self.dtype);
        let list = vcollective::transfers(self.function, whose, send, recv)?;
        if list.is_empty() {
            return Ok(());
        }
        let operation = self.operation;
        group::operation(&self.comm, Transfers { operation, list }, self.stream)
    }
}

/// Gathers the inputs of all ranks, of different lengths, in every rank's output.
///
/// `sendbuff`: in, sendcount × datatype, which must be recvcounts of this rank. `recvbuff`: out;
/// the data of rank r come at element `recvdispls[r]` and have `recvcounts[r]` elements; parts must
/// not overlap. `sendbuff` may be recvbuff + recvdispls of this rank, in place, and must not
/// overlap `recvbuff` otherwise. Counts and displacements are in elements and read before the call
/// returns; a part without elements is not looked at, and its displacement may be anything. If the
/// two ranks of a part disagree on its count, the error names both ranks where a piece has another
/// length than expected, and is otherwise as for ncclSend and ncclRecv. Cost: every rank sends its
/// data directly to every other one. Blocks: never, except for memory at the first large call on
/// GPUs; complete when oxcclStreamSynchronize on `stream` says so.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclAllGatherv(
    sendbuff: *const c_void,
    sendcount: usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    recvdispls: *const usize,
    datatype: MaybeUninit<ncclDataType_t>,
    comm: ncclComm_t,
    stream: oxcclStream_t,
) -> ncclResult_t {
    boundary(|| {
        let call = Common::new(("oxcclAllGatherv", "all_gatherv"), datatype, comm, stream)?;
        // SAFETY: passed on from the caller.
        let from = unsafe { call.parts(("recvcounts", recvcounts), ("recvdispls", recvdispls))? };
        let to = call.same("sendcount", sendcount, 0..from.len())?;
        call.exchange(sendbuff, to, recvbuff, from)
    })
}

/// Leaves in every rank's output the reduction of that rank's block of all inputs.
///
/// `sendbuff`: in; the blocks of all ranks one behind the other, `counts[r]` × datatype for rank r.
/// `recvbuff`: out, counts of this rank; may be this rank's block in `sendbuff`, in place, and must
/// not overlap it otherwise. `counts` is in elements, the same on all ranks, and read before the
/// call returns; a block may be empty. Cost: a reduce per block that is not empty, one after the
/// other: with equal counts ncclReduceScatter is the faster one. Blocks: never, except for memory
/// at the first large call on GPUs; complete when oxcclStreamSynchronize on `stream` says so.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclReduceScatterv(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    counts: *const usize,
    datatype: MaybeUninit<ncclDataType_t>,
    op: MaybeUninit<ncclRedOp_t>,
    comm: ncclComm_t,
    stream: oxcclStream_t,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclReduceScatterv";
        let call = Common::new((FUNCTION, "reduce_scatterv"), datatype, comm, stream)?;
        let dtype = call.dtype;
        let (op, scale) = redop::resolve(op, dtype, &call.comm, comm, FUNCTION)?;
        // SAFETY: passed on from the caller.
        let counts = unsafe { call.array("counts", counts)? };
        let blocks = vcollective::packed(FUNCTION, ("counts", &counts), dtype.size())?;
        call.check_buffer("sendbuff", sendbuff, &blocks)?;
        convert::buffer(recvbuff, blocks[call.rank()].bytes, FUNCTION, "recvbuff")?;
        let spec = Spec::new(Collective::ReduceScatter, call.comm.nranks(), 0);
        let (input, output) = (sendbuff.cast(), recvbuff.cast());
        let whole = Call { spec, input, output, count: 0, dtype, op, scale };
        let reductions = vcollective::reductions(FUNCTION, call.comm.rank(), whole, &blocks)?;
        group::start();
        let added = reductions
            .into_iter()
            .try_for_each(|r| group::collective(&call.comm, &r, &call.stream));
        if let Err(error) = added {
            group::note_error(&error);
        }
        group::end()
    })
}

/// Sends a separate part of every rank's input to every rank.
///
/// `sendbuff`: in; what goes to rank r begins at element `senddispls[r]` and has `sendcounts[r]`
/// elements. `recvbuff`: out; what comes from rank r lands at element `recvdispls[r]` and has
/// `recvcounts[r]` elements; parts must not overlap each other or what is sent (no in place).
/// Counts and displacements are in elements and read before the call returns; a part without
/// elements is not looked at, and its displacement may be anything. If the two ranks of a part
/// disagree on its count, the error names both ranks where a piece has another length than
/// expected, and is otherwise as for ncclSend and ncclRecv. Cost: one message to and from every
/// rank with elements. Blocks: never, except for memory at the first large call on GPUs; complete
/// when oxcclStreamSynchronize on `stream` says so.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclAlltoAllv(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    senddispls: *const usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    recvdispls: *const usize,
    datatype: MaybeUninit<ncclDataType_t>,
    comm: ncclComm_t,
    stream: oxcclStream_t,
) -> ncclResult_t {
    boundary(|| {
        let call = Common::new(("oxcclAlltoAllv", "alltoallv"), datatype, comm, stream)?;
        // SAFETY: passed on from the caller.
        let (to, from) = unsafe {
            let to = call.parts(("sendcounts", sendcounts), ("senddispls", senddispls))?;
            (to, call.parts(("recvcounts", recvcounts), ("recvdispls", recvdispls))?)
        };
        call.exchange(sendbuff, to, recvbuff, from)
    })
}

/// Gathers the inputs of all ranks, of different lengths, in the root's output.
///
/// `sendbuff`: in, sendcount × datatype. `recvbuff`, `recvcounts`, `recvdispls`: at the root as for
/// oxcclAllGatherv, in place too; ignored elsewhere. Counts and displacements are in elements and
/// read before the call returns; a part without elements is not looked at, and its displacement may
/// be anything. If the two ranks of a part disagree on its count, the error names both ranks where
/// a piece has another length than expected, and is otherwise as for ncclSend and ncclRecv. Cost:
/// one message from every rank to the root. Blocks: never, except for memory at the first large
/// call on GPUs; complete when oxcclStreamSynchronize on `stream` says so.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclGatherv(
    sendbuff: *const c_void,
    sendcount: usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    recvdispls: *const usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: oxcclStream_t,
) -> ncclResult_t {
    boundary(|| {
        let call = Common::new(("oxcclGatherv", "gatherv"), datatype, comm, stream)?;
        let root = call.root(root)?;
        let to = call.same("sendcount", sendcount, root..root + 1)?;
        let from = if call.rank() == root {
            // SAFETY: passed on from the caller.
            unsafe { call.parts(("recvcounts", recvcounts), ("recvdispls", recvdispls))? }
        } else {
            call.nothing()
        };
        call.exchange(sendbuff, to, recvbuff, from)
    })
}

/// Sends every rank its part of the root's input; the parts may differ in length.
///
/// `sendbuff`, `sendcounts`, `senddispls`: in at the root, where the part of rank r begins at
/// element `senddispls[r]` and has `sendcounts[r]` elements; ignored elsewhere. `recvbuff`: out,
/// recvcount × datatype; at the root it may be sendbuff + senddispls of the root, in place, and
/// must not overlap `sendbuff` otherwise. Counts and displacements are in elements and read before
/// the call returns; a part without elements is not looked at, and its displacement may be
/// anything. If the two ranks of a part disagree on its count, the error names both ranks where a
/// piece has another length than expected, and is otherwise as for ncclSend and ncclRecv. Cost: one
/// message from the root to every rank. Blocks: never, except for memory at the first large call on
/// GPUs; complete when oxcclStreamSynchronize on `stream` says so.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclScatterv(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    senddispls: *const usize,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: oxcclStream_t,
) -> ncclResult_t {
    boundary(|| {
        let call = Common::new(("oxcclScatterv", "scatterv"), datatype, comm, stream)?;
        let root = call.root(root)?;
        let to = if call.rank() == root {
            // SAFETY: passed on from the caller.
            unsafe { call.parts(("sendcounts", sendcounts), ("senddispls", senddispls))? }
        } else {
            call.nothing()
        };
        let from = call.same("recvcount", recvcount, root..root + 1)?;
        call.exchange(sendbuff, to, recvbuff, from)
    })
}
