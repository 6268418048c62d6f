//! Registered memory, and one-sided operations.

#![allow(clippy::too_many_arguments, reason = "C gives them one by one")]

use super::collectives::bytes;
use super::types::{
    NCCL_WIN_CFT_COUNTED, NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_GIN_ONLY, NCCL_WIN_STRICT_ORDERING,
    cudaStream_t, ncclComm_t, ncclDataType_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t,
};
use crate::boundary::boundary;
use crate::{convert, objects};
use oxccl_runtime::comm::Communicator;
use oxccl_runtime::comm::memory::{CONTEXTS, SIGNALS_PER_CONTEXT};
use oxccl_runtime::device;
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::group;
use oxccl_runtime::op::{Awaiting, OneSided};
use oxccl_twin::twin;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;

/// Checks a buffer that is to be registered.
fn buffer(function: &'static str, buff: *mut c_void, size: usize) -> Result<()> {
    if buff.is_null() {
        return Err(Error::argument(function, "buff", "null", "a buffer"));
    }
    if size == 0 || (buff as usize).checked_add(size).is_none() {
        let expected = "the size of the buffer in bytes, at least 1";
        return Err(Error::argument(function, "size", size, expected));
    }
    if let Some(left) = device::left(buff.cast::<u8>())
        && size > left
    {
        let expected = format!("at most {left}, the bytes from buff to the end of its allocation");
        return Err(Error::argument(function, "size", size, expected));
    }
    Ok(())
}

fn unknown(function: &'static str, argument: &'static str, handle: usize) -> Error {
    let got = if handle == 0 { "null".to_owned() } else { format!("{handle:#x}") };
    Error::argument(function, argument, got, "a handle that this communicator gave and still has")
}

unsafe fn comm_register(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> Result<()> {
    const FUNCTION: &str = "ncclCommRegister";
    let comm = objects::comm(comm, FUNCTION)?;
    buffer(FUNCTION, buff, size)?;
    if handle.is_null() {
        return Err(Error::argument(FUNCTION, "handle", "null", "a place for the handle"));
    }
    let made = comm.register(buff as usize, size)? as *mut c_void;
    // SAFETY: not null, and writable by the contract of the caller.
    unsafe { convert::store(handle, made, FUNCTION, "handle") }
}

unsafe fn comm_deregister(comm: ncclComm_t, handle: *mut c_void) -> Result<()> {
    const FUNCTION: &str = "ncclCommDeregister";
    let known = objects::comm(comm, FUNCTION)?.deregister(handle as u64)?;
    if known { Ok(()) } else { Err(unknown(FUNCTION, "handle", handle as usize)) }
}

unsafe fn comm_window_register(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    win: *mut ncclWindow_t,
    winFlags: c_int,
) -> Result<()> {
    const FUNCTION: &str = "ncclCommWindowRegister";
    let comm = objects::comm(comm, FUNCTION)?;
    buffer(FUNCTION, buff, size)?;
    if win.is_null() {
        return Err(Error::argument(FUNCTION, "win", "null", "a place for the handle"));
    }
    const FLAGS: c_int = NCCL_WIN_COLL_SYMMETRIC
        | NCCL_WIN_STRICT_ORDERING
        | NCCL_WIN_GIN_ONLY
        | NCCL_WIN_CFT_COUNTED;
    if winFlags & !FLAGS != 0 {
        let expected = "NCCL_WIN_COLL_SYMMETRIC (1), NCCL_WIN_STRICT_ORDERING (2), both or neither";
        return Err(Error::argument(FUNCTION, "winFlags", winFlags, expected));
    }
    let absent = [
        (NCCL_WIN_GIN_ONLY, "NCCL_WIN_GIN_ONLY: no kernels of users move data over the network"),
        (NCCL_WIN_CFT_COUNTED, "NCCL_WIN_CFT_COUNTED: no NVLink switch counts transfers"),
    ];
    if let Some((_, why)) = absent.iter().find(|(flag, _)| winFlags & flag != 0) {
        let what = format!("{FUNCTION}: a window cannot be registered with {why} here");
        return Err(Error::usage(what, "leave the flag out"));
    }
    let made = comm.register_window(buff.cast(), size)? as ncclWindow_t;
    // SAFETY: not null, and writable by the contract of the caller.
    unsafe { convert::store(win, made, FUNCTION, "win") }
}

unsafe fn comm_window_deregister(comm: ncclComm_t, win: ncclWindow_t) -> Result<()> {
    const FUNCTION: &str = "ncclCommWindowDeregister";
    let known = objects::comm(comm, FUNCTION)?.deregister_window(win as u64);
    if known { Ok(()) } else { Err(unknown(FUNCTION, "win", win as usize)) }
}

unsafe fn win_get_user_ptr(
    comm: ncclComm_t,
    win: ncclWindow_t,
    outUserPtr: *mut *mut c_void,
) -> Result<()> {
    const FUNCTION: &str = "ncclWinGetUserPtr";
    let base = objects::comm(comm, FUNCTION)?.window_base(win as u64);
    let base = base.ok_or_else(|| unknown(FUNCTION, "win", win as usize))? as *mut c_void;
    // SAFETY: passed on from the caller.
    unsafe { convert::store(outUserPtr, base, FUNCTION, "outUserPtr") }
}

fn signal(
    comm: &Communicator,
    (sigIdx, ctx): (c_int, c_int),
    function: &'static str,
) -> Result<u32> {
    comm.signal_number(sigIdx, ctx).ok_or_else(|| {
        let contexts = comm.options().rma_contexts.min(CONTEXTS as c_int);
        let got = format!("{sigIdx} in context {ctx}");
        let expected = format!(
            "0 to {}, in a context below {contexts} (numRmaCtx of the configuration, at most \
             {CONTEXTS})",
            SIGNALS_PER_CONTEXT - 1
        );
        Error::argument(function, "sigIdx", got, expected)
    })
}

fn no_flags(flags: c_uint, function: &'static str) -> Result<()> {
    if flags == 0 { Ok(()) } else { Err(Error::argument(function, "flags", flags, "0")) }
}

unsafe fn put_signal(
    localbuff: *const c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    peer: c_int,
    peerWin: ncclWindow_t,
    peerWinOffset: usize,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Result<()> {
    const FUNCTION: &str = "ncclPutSignal";
    let comm = objects::comm(comm, FUNCTION)?;
    comm.check()?;
    let dtype = convert::dtype(datatype, FUNCTION)?;
    let peer = convert::rank(peer, comm.nranks(), FUNCTION, "peer")?;
    let signal = signal(&comm, (sigIdx, ctx), FUNCTION)?;
    no_flags(flags, FUNCTION)?;
    let bytes = bytes(FUNCTION, "count", count, dtype, 1)?;
    convert::buffer(localbuff, bytes, FUNCTION, "localbuff")?;
    let stream = comm.stream(stream as usize, FUNCTION)?;
    let target = (peer, peerWin as u64, peerWinOffset);
    let put = comm.put_signal((localbuff.cast(), bytes), target, signal);
    let put = put.ok_or_else(|| unknown(FUNCTION, "peerWin", peerWin as usize))??;
    group::operation(&comm, put, stream)
}

unsafe fn signal_peer(
    peer: c_int,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Result<()> {
    const FUNCTION: &str = "ncclSignal";
    let comm = objects::comm(comm, FUNCTION)?;
    comm.check()?;
    let peer = convert::rank(peer, comm.nranks(), FUNCTION, "peer")?;
    let signal = signal(&comm, (sigIdx, ctx), FUNCTION)?;
    no_flags(flags, FUNCTION)?;
    let stream = comm.stream(stream as usize, FUNCTION)?;
    group::operation(&comm, OneSided::Signal(peer, None, signal), stream)
}

unsafe fn wait_signal(
    nDesc: c_int,
    signalDescs: *const ncclWaitSignalDesc_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Result<()> {
    const FUNCTION: &str = "ncclWaitSignal";
    let comm = objects::comm(comm, FUNCTION)?;
    comm.check()?;
    let count = usize::try_from(nDesc)
        .map_err(|_| Error::argument(FUNCTION, "nDesc", nDesc, "a number of descriptors"))?;
    if signalDescs.is_null() && count > 0 {
        return Err(Error::argument(FUNCTION, "signalDescs", "null", "nDesc descriptors"));
    }
    let mut list = Vec::new();
    for i in 0..count {
        // SAFETY: nDesc descriptors by the contract of the caller.
        let desc = unsafe { signalDescs.add(i).read() };
        let peer = convert::rank(desc.peer, comm.nranks(), FUNCTION, "signalDescs.peer")?;
        let signal = signal(&comm, (desc.sigIdx, desc.ctx), FUNCTION)?;
        let count = u64::try_from(desc.opCnt).map_err(|_| {
            let expected = "a number of signals, 0 or more";
            Error::argument(FUNCTION, "signalDescs.opCnt", desc.opCnt, expected)
        })?;
        list.push(Awaiting { peer, signal, count });
    }
    let stream = comm.stream(stream as usize, FUNCTION)?;
    group::operation(&comm, OneSided::Wait(list), stream)
}

/// Registers a buffer.
///
/// `buff`: in, `size` bytes. `handle`: out. On the host device memory from ncclMemAlloc is used in
/// place by all ranks whether registered or not; other memory is read by the system's remote reads,
/// from some MiB on and where they are allowed. A network that reduces uses either itself. Blocks:
/// for the plugin of such a network.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_register(comm, buff, size, handle) })
}

/// Ends the registration of a buffer.
///
/// `handle`: in, from ncclCommRegister on `comm`. Fails if a network that reduces uses the buffer
/// for an operation under way, or if its plugin fails. Blocks: for that plugin.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_deregister(comm, handle) })
}

/// Registers memory as a window, into which the other ranks of the host can write by ncclPutSignal.
///
/// All ranks call, in the same order. `buff`: in, `size` bytes; from ncclMemAlloc, or any memory
/// where the system lets ranks write into each other's. `win`: out, never null on success.
/// `winFlags`: NCCL_WIN_DEFAULT, or bits NCCL_WIN_COLL_SYMMETRIC and NCCL_WIN_STRICT_ORDERING; the
/// others fail with ncclInvalidUsage. Takes no address space; at most 64 at a time. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommWindowRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    win: *mut ncclWindow_t,
    winFlags: c_int,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_window_register(comm, buff, size, win, winFlags) })
}

/// Ends a window. No rank may still write into it. Its memory may be freed when no rank makes calls
/// on that rank's own memory in this window any more. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommWindowDeregister(
    comm: ncclComm_t,
    win: ncclWindow_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { comm_window_deregister(comm, win) })
}

/// Returns the memory that a window was registered with.
///
/// `outUserPtr`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclWinGetUserPtr(
    comm: ncclComm_t,
    win: ncclWindow_t,
    outUserPtr: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { win_get_user_ptr(comm, win, outUserPtr) })
}

/// Writes into the window of a rank of this host, and then increments one of that rank's signals.
///
/// `localbuff`: in, count × datatype. `peerWin`: this rank's handle of the window that `peer`
/// registered at the same place in the order of registrations. `peerWinOffset`: in bytes. `sigIdx`:
/// 0 to 15. `ctx`: below numRmaCtx, at most 4. `flags`: 0. Blocks: never; runs on `stream` once
/// `peer` has registered the window.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclPutSignal(
    localbuff: *const c_void,
    count: usize,
    datatype: MaybeUninit<ncclDataType_t>,
    peer: c_int,
    peerWin: ncclWindow_t,
    peerWinOffset: usize,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe {
        put_signal(
            localbuff,
            count,
            datatype,
            peer,
            peerWin,
            peerWinOffset,
            sigIdx,
            ctx,
            flags,
            comm,
            stream,
        )
    })
}

/// Increments a signal of a rank of this host; data put before is there when the signal is seen.
///
/// Arguments as for ncclPutSignal. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSignal(
    peer: c_int,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { signal_peer(peer, sigIdx, ctx, flags, comm, stream) })
}

/// Makes a stream wait for signals: for each descriptor, `opCnt` more than were waited for before.
///
/// `signalDescs`: in, nDesc descriptors, read before the call returns. Blocks: never; the stream
/// waits.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclWaitSignal(
    nDesc: c_int,
    signalDescs: *mut ncclWaitSignalDesc_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { wait_signal(nDesc, signalDescs, comm, stream) })
}
