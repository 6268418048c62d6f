//! Conversion of C arguments to the runtime's types, with errors that name the argument.

use crate::nccl::types::ncclDataType_t;
use oxccl_plan::DataType;
use oxccl_plan::words::counted;
use oxccl_runtime::device;
use oxccl_runtime::error::{Error, Result};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Returns the number of an enumerator that C passed.
pub(crate) fn number<E>(value: MaybeUninit<E>) -> i32 {
    const { assert!(size_of::<E>() == size_of::<i32>()) };
    // SAFETY: both enums are 32 bits wide and C passed an initialised int; any int is a valid i32.
    unsafe { value.as_ptr().cast::<i32>().read() }
}

/// Converts a data type.
pub(crate) fn dtype(
    value: MaybeUninit<ncclDataType_t>,
    function: &'static str,
) -> Result<DataType> {
    let number = number(value);
    DataType::from_number(number).ok_or_else(|| {
        let expected = "an ncclDataType_t, 0 (ncclInt8) to 11 (ncclFloat8e5m2)";
        Error::argument(function, "datatype", number, expected)
    })
}

/// Converts a rank of a communicator.
pub(crate) fn rank(
    value: i32,
    nranks: u32,
    function: &'static str,
    argument: &'static str,
) -> Result<u32> {
    let rank = u32::try_from(value).ok().filter(|&r| r < nranks);
    let expected = || format!("a rank of the communicator, 0 to {}", nranks - 1);
    rank.ok_or_else(|| Error::argument(function, argument, value, expected()))
}

/// Fails if a buffer is missing, or is known to be shorter than the part that a call accesses.
#[inline]
pub(crate) fn buffer(
    ptr: *const c_void,
    bytes: usize,
    function: &'static str,
    argument: &'static str,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let left = if ptr.is_null() { Some(0) } else { device::left(ptr.cast()) };
    match left {
        Some(left) if left < bytes => Err(short((ptr, bytes, left), function, argument)),
        _ => Ok(()),
    }
}

#[cold]
fn short(
    (ptr, bytes, left): (*const c_void, usize, usize),
    function: &'static str,
    argument: &'static str,
) -> Error {
    let size = |bytes: usize| counted(bytes, "byte", "bytes");
    if ptr.is_null() {
        return Error::argument(function, argument, "null", format!("a buffer of {}", size(bytes)));
    }
    let got = format!("{ptr:?}, of which the call touches {}", size(bytes));
    let expected = match left {
        0 => "an address within memory from ncclMemAlloc that is not freed".to_owned(),
        left => format!("at most the {} from there to the end of its allocation", size(left)),
    };
    Error::argument(function, argument, got, expected)
}

/// Converts a time limit in nanoseconds; `None` for no limit.
pub(crate) fn limit(ns: i64, function: &'static str) -> Result<Option<Duration>> {
    let bad = || Error::argument(function, "timeoutNs", ns, "nanoseconds, or -1 for no bound");
    if ns < -1 { Err(bad()) } else { Ok(u64::try_from(ns).ok().map(Duration::from_nanos)) }
}

/// Fails if the place for a result is null; for functions that must not begin without one.
pub(crate) fn place<T>(out: *mut T, function: &'static str, argument: &'static str) -> Result<()> {
    if out.is_null() {
        return Err(Error::argument(function, argument, "null", "a place for the result"));
    }
    Ok(())
}

/// Stores a result for the caller.
///
/// # Safety
/// `out` is null or writable.
pub(crate) unsafe fn store<T>(
    out: *mut T,
    value: T,
    function: &'static str,
    argument: &'static str,
) -> Result<()> {
    place(out, function, argument)?;
    // SAFETY: not null, and writable by the contract of the caller.
    unsafe { out.write(value) };
    Ok(())
}
