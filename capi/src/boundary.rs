//! The one boundary that every export crosses: no panic leaves it, and what failed is remembered
//! for `ncclGetLastError` and `oxcclLastError`.

use crate::nccl::types::ncclResult_t;
use oxccl_runtime::error::{Code, Error};
use oxccl_runtime::fork;
use oxccl_runtime::group::{self, Launched};
use oxccl_runtime::log::{self, Level, Subsystem};
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
pub(crate) fn boundary<T: Into<ncclResult_t>>(
    body: impl FnOnce() -> Result<T, Error>,
) -> ncclResult_t {
    caught(body).map_or_else(failed, T::into)
}

impl From<()> for ncclResult_t {
    fn from((): ()) -> Self {
        ncclResult_t::ncclSuccess
    }
}

impl From<Launched> for ncclResult_t {
    fn from(launched: Launched) -> Self {
        match launched {
            Launched::Done => ncclResult_t::ncclSuccess,
            Launched::InProgress => ncclResult_t::ncclInProgress,
        }
    }
}

/// Runs the body of an export that answers no code; `otherwise` is the answer of one that fails.
pub(crate) fn boundary_or<T>(otherwise: T, body: impl FnOnce() -> Result<T, Error>) -> T {
    caught(body).unwrap_or_else(|error| {
        failed(error);
        otherwise
    })
}

#[inline]
fn caught<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(Error::Internal { what: format!("a panic: {text}") })
    })
}

#[cold]
fn failed(error: Error) -> ncclResult_t {
    let code = result(error.code());
    group::note_error(&error);
    if !fork::forked() {
        // Of no subsystem, and so of one that is shown by default.
        let rank = error.site().and_then(|site| u32::try_from(site.rank).ok());
        let text = format!("a call failed: {error}");
        log::line_of(rank, Level::Info, Subsystem::Init, &text);
    }
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
