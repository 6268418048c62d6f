//! User-made reduction operations.

use super::types::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};
use crate::boundary::boundary;
use crate::{convert, objects};
use oxccl_plan::{DataType, ReduceOp};
use oxccl_runtime::comm::Communicator;
use oxccl_runtime::comm::redop::PreMulSum;
use oxccl_runtime::error::{Error, Quick, Result};
use oxccl_runtime::op::{Address, Scale};
use oxccl_twin::twin;
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Converts between the index of a user's operation and its number in C, in both directions. A hash
/// of the handle keeps operations of different communicators apart; numbers of built-in operations
/// stay free.
fn mangle(handle: ncclComm_t, number: u32) -> u32 {
    let handle = handle as u64;
    let hash = (handle ^ (handle >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    match hash as u32 ^ number {
        0..ncclRedOp_t::NUM_BUILT_IN => number,
        mangled => mangled,
    }
}

impl ncclRedOp_t {
    const NUM_BUILT_IN: u32 = ncclRedOp_t::ncclNumOps as u32;
}

/// Returns the index of a user's operation; `None` for a number that no such operation has.
fn index(handle: ncclComm_t, number: i32) -> Option<u32> {
    let number = u32::try_from(number).ok().filter(|&n| n >= ncclRedOp_t::NUM_BUILT_IN)?;
    Some(mangle(handle, number) - ncclRedOp_t::NUM_BUILT_IN)
}

fn unknown(function: &'static str, number: i32, why: &str) -> Error {
    let expected = "an ncclRedOp_t, 0 (ncclSum) to 4 (ncclAvg), or one that \
                    ncclRedOpCreatePreMulSum made for this communicator";
    Error::argument(function, "op", format!("{number}{why}"), expected)
}

/// Returns the meaning of a call's operation: the reduction, and the factor of each element before
/// it.
#[inline]
pub(crate) fn resolve(
    value: MaybeUninit<ncclRedOp_t>,
    dtype: DataType,
    comm: &Communicator,
    handle: ncclComm_t,
    function: &'static str,
) -> Quick<(ReduceOp, Option<Scale>)> {
    let number = convert::number(value);
    match ReduceOp::from_number(number) {
        Some(op) => Ok((op, None)),
        None => user_op(number, dtype, comm, handle, function),
    }
}

#[cold]
fn user_op(
    number: i32,
    dtype: DataType,
    comm: &Communicator,
    handle: ncclComm_t,
    function: &'static str,
) -> Quick<(ReduceOp, Option<Scale>)> {
    let index = index(handle, number).ok_or_else(|| unknown(function, number, ""))?;
    let found = comm.redops().get(index);
    let op = found.map_err(|why| unknown(function, number, &format!(", {why}")))?;
    if op.dtype != dtype {
        let got = format!("{number}, made for elements of type {}", op.dtype.name());
        let expected = format!("an operation for the call's elements, of type {}", dtype.name());
        return Err(Error::argument(function, "op", got, expected).into());
    }
    Ok((ReduceOp::Sum, Some(op.scale)))
}

unsafe fn create_pre_mul_sum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: MaybeUninit<ncclDataType_t>,
    residence: MaybeUninit<ncclScalarResidence_t>,
    comm: ncclComm_t,
) -> Result<()> {
    const FUNCTION: &str = "ncclRedOpCreatePreMulSum";
    let found = objects::comm(comm, FUNCTION)?;
    found.check()?;
    let dtype = convert::dtype(datatype, FUNCTION)?;
    if op.is_null() {
        return Err(Error::argument(FUNCTION, "op", "null", "a place for the operation"));
    }
    if scalar.is_null() {
        return Err(Error::argument(FUNCTION, "scalar", "null", "the address of the scalar"));
    }
    let scale = match convert::number(residence) {
        0 => Scale::At(Address(scalar.cast())),
        1 => {
            let mut bytes = [0u8; 8];
            let from = scalar.cast_const().cast::<u8>();
            // SAFETY: one element by the contract of the caller; no type is larger than 8 bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), dtype.size()) };
            Scale::Value(u64::from_ne_bytes(bytes))
        }
        other => {
            let expected = "0 (ncclScalarDevice) or 1 (ncclScalarHostImmediate)";
            return Err(Error::argument(FUNCTION, "residence", other, expected));
        }
    };
    let index = found.redops().create(PreMulSum { dtype, scale })?;
    let number = mangle(comm, index + ncclRedOp_t::NUM_BUILT_IN);
    // SAFETY: not null, and writable by the contract of the caller. The number is no enumerator, so
    // it is stored as what it is.
    unsafe { op.cast::<u32>().write(number) };
    Ok(())
}

unsafe fn red_op_destroy(op: MaybeUninit<ncclRedOp_t>, comm: ncclComm_t) -> Result<()> {
    const FUNCTION: &str = "ncclRedOpDestroy";
    let found = objects::comm(comm, FUNCTION)?;
    let number = convert::number(op);
    if ReduceOp::from_number(number).is_some() {
        let got = format!("{number}, which is built in");
        let expected = "an operation that ncclRedOpCreatePreMulSum made";
        return Err(Error::argument(FUNCTION, "op", got, expected));
    }
    let index = index(comm, number).ok_or_else(|| unknown(FUNCTION, number, ""))?;
    let destroyed = found.redops().destroy(index);
    destroyed.map_err(|why| unknown(FUNCTION, number, &format!(", {why}")))
}

/// Makes a reduction operation: a sum in which the elements of every rank are first multiplied by a
/// scalar of that rank, which may differ from the others'.
///
/// `op`: out, valid in calls on `comm` with `datatype` until ncclRedOpDestroy or the end of `comm`.
/// `scalar`: in, one element of `datatype`. `residence`: ncclScalarHostImmediate reads the scalar
/// before this call returns; ncclScalarDevice reads it whenever an operation that uses it runs
/// (also when a graph is replayed), so it must stay until those are complete; on the host device
/// that is any memory of the process. The product is rounded once to `datatype`: 16- and 8-bit
/// floats are multiplied in float32, integers wrap. An operation that uses it copies its input.
/// Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: MaybeUninit<ncclDataType_t>,
    residence: MaybeUninit<ncclScalarResidence_t>,
    comm: ncclComm_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { create_pre_mul_sum(op, scalar, datatype, residence, comm) })
}

/// Destroys an operation that ncclRedOpCreatePreMulSum made; earlier calls keep its scalar.
///
/// `op`: in, of `comm`. Its number is never used again on `comm`. Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpDestroy(
    op: MaybeUninit<ncclRedOp_t>,
    comm: ncclComm_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { red_op_destroy(op, comm) })
}
