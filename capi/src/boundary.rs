//! The one boundary that every export crosses: no panic leaves it, and what failed is remembered
//! for `ncclGetLastError` and `oxcclLastError`.

use crate::nccl::types::ncclResult_t;
use oxccl_runtime::error::{Code, Error};
use oxccl_runtime::{fork, group};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

thread_local! {
    /// The last error of this thread, and its text for C.
    static LAST: RefCell<Option<(Error, CString)>> = const { RefCell::new(None) };
}

/// The last error of any thread: for those that ask from another one.
static LAST_ANYWHERE: Mutex<Option<Error>> = Mutex::new(None);

/// The code of an error, as C knows it.
pub(crate) fn result(code: Code) -> ncclResult_t {
    match code {
        Code::Success => ncclResult_t::ncclSuccess,
        Code::UnhandledCudaError => ncclResult_t::ncclUnhandledCudaError,
        Code::SystemError => ncclResult_t::ncclSystemError,
        Code::InternalError => ncclResult_t::ncclInternalError,
        Code::InvalidArgument => ncclResult_t::ncclInvalidArgument,
        Code::InvalidUsage => ncclResult_t::ncclInvalidUsage,
        Code::RemoteError => ncclResult_t::ncclRemoteError,
        Code::InProgress => ncclResult_t::ncclInProgress,
        Code::Timeout => ncclResult_t::ncclTimeout,
    }
}

/// Runs the body of an export.
#[inline]
pub(crate) fn boundary(body: impl FnOnce() -> Result<(), Error>) -> ncclResult_t {
    boundary_value(|| body().map(|()| ncclResult_t::ncclSuccess))
}

/// Runs the body of an export that may answer something else than success.
#[inline]
pub(crate) fn boundary_value(body: impl FnOnce() -> Result<ncclResult_t, Error>) -> ncclResult_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => failed(error),
        Err(panic) => failed(Error::panicked(&*panic)),
    }
}

#[cold]
fn failed(error: Error) -> ncclResult_t {
    let code = result(error.code());
    group::note_error(&error);
    remember(error);
    code
}

/// Makes an error this thread's last one; returns its text, valid until the thread's next error.
pub(crate) fn remember(error: Error) -> *const c_char {
    if let Some(mut anywhere) = anywhere() {
        *anywhere = Some(error.clone());
    }
    let text = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
    LAST.with_borrow_mut(|last| last.insert((error, text)).1.as_ptr())
}

/// The last error of this thread, or else of any thread.
pub(crate) fn last() -> Option<Error> {
    LAST.with_borrow(|last| last.as_ref().map(|(error, _)| error.clone()))
        .or_else(|| anywhere().and_then(|last| last.clone()))
}

/// None in a forked child, where another thread of the parent may have left it locked.
fn anywhere() -> Option<MutexGuard<'static, Option<Error>>> {
    (!fork::forked()).then(|| LAST_ANYWHERE.lock().unwrap_or_else(|e| e.into_inner()))
}
