//! The boundary that every export crosses: no panic leaves it, no thread is cancelled within it,
//! and errors are kept for `ncclGetLastError` and `oxcclLastError`.

use crate::nccl::types::ncclResult_t;
use oxccl_runtime::cancel::Uncancelled;
use oxccl_runtime::comm::Communicator;
use oxccl_runtime::error::{Code, Error};
use oxccl_runtime::fork;
use oxccl_runtime::group::{self, Launched};
use oxccl_runtime::log::{self, Level, Subsystem};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of the text of an error with the zero at its end, as in `oxcclErrorInfo_t`.
pub(crate) const TEXT_BYTES: usize = 2048;

thread_local! {
    /// The last error of this thread.
    static LAST: RefCell<Option<Error>> = const { RefCell::new(None) };
    /// The text of that error for C. Its place is the same as long as the thread lives.
    static TEXT: RefCell<Option<Box<[u8; TEXT_BYTES]>>> = const { RefCell::new(None) };
    /// The communicator of the call that is being unwound.
    static INVOLVED: Cell<Option<Arc<Communicator>>> = const { Cell::new(None) };
}

/// The last error of any thread, for callers that ask from another thread.
static LAST_ANYWHERE: Mutex<Option<Error>> = Mutex::new(None);

/// Returns the C code of an error.
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

/// Runs the body of an export; returns its result code.
#[inline]
pub(crate) fn boundary<T: Into<ncclResult_t>>(
    body: impl FnOnce() -> Result<T, Error>,
) -> ncclResult_t {
    let _whole = Uncancelled::begin();
    boundary_of_call(body)
}

/// Runs the body of a call that most often ends without a call of the system, as [`boundary`] does.
/// The body itself keeps the thread from being cancelled in everything else: to do so here would
/// take a tenth of a small call.
#[inline]
pub(crate) fn boundary_of_call<T: Into<ncclResult_t>>(
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

/// Runs the body of an export that returns no result code; returns `otherwise` if the body fails.
pub(crate) fn boundary_or<T>(otherwise: T, body: impl FnOnce() -> Result<T, Error>) -> T {
    let _whole = Uncancelled::begin();
    caught(body).unwrap_or_else(|error| {
        failed(error);
        otherwise
    })
}

#[inline]
fn caught<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// Notes that a panic unwinds a call on this communicator.
#[cold]
pub(crate) fn involve(comm: &Arc<Communicator>) {
    let _ = INVOLVED.try_with(|involved| involved.set(Some(comm.clone())));
}

/// Returns the error of a call that panicked. The communicator of the call fails with this error:
/// work that was left half done must not be continued.
#[cold]
fn panicked(panic: &(dyn Any + Send)) -> Error {
    let _whole = Uncancelled::begin();
    let error = Error::panicked(panic);
    if let Ok(Some(comm)) = INVOLVED.try_with(Cell::take) {
        // No panic may leave `fail` either.
        let _ = catch_unwind(AssertUnwindSafe(|| comm.fail(error.clone())));
    }
    error
}

#[cold]
fn failed(error: Error) -> ncclResult_t {
    let _whole = Uncancelled::begin();
    let code = result(error.code());
    group::note_error(&error);
    if !fork::forked() {
        // The error belongs to no subsystem, so it takes one that is shown by default.
        let rank = error.site().and_then(|site| u32::try_from(site.rank).ok());
        let text = format!("a call failed: {error}");
        log::line_of(rank, Level::Info, Subsystem::Init, &text);
    }
    remember(error);
    code
}

/// Stores an error as this thread's last one. Returns the place of its text, which has that of the
/// thread's next error then, and stays until the thread ends.
pub(crate) fn remember(error: Error) -> *const c_char {
    if let Some(mut anywhere) = anywhere() {
        *anywhere = Some(error.clone());
    }
    let mut text = error.to_string().replace('\0', " ");
    let fits = (0..TEXT_BYTES).rev().find(|length| text.is_char_boundary(*length));
    text.truncate(fits.unwrap_or(0));
    let place = TEXT.try_with(|place| {
        let mut place = place.borrow_mut();
        let bytes = place.get_or_insert_with(|| Box::new([0; TEXT_BYTES]));
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes[text.len()] = 0;
        bytes.as_ptr().cast()
    });
    // In exit handlers this thread's local values are gone.
    let _ = LAST.try_with(|last| last.replace(Some(error)));
    // There the text is leaked.
    place.unwrap_or_else(|_| CString::new(text).unwrap_or_default().into_raw())
}

/// Returns the last error of this thread, or else of any thread.
pub(crate) fn last() -> Option<Error> {
    let own = LAST.try_with(|last| last.borrow().clone());
    own.ok().flatten().or_else(|| anywhere().and_then(|last| last.clone()))
}

/// Locks the last error of any thread; `None` in a forked child, where another thread of the parent
/// may have left it locked.
fn anywhere() -> Option<MutexGuard<'static, Option<Error>>> {
    (!fork::forked()).then(|| LAST_ANYWHERE.lock().unwrap_or_else(|e| e.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl::comm::{ncclCommDestroy, ncclCommGetAsyncError, ncclCommInitAll};
    use crate::nccl::types::ncclComm_t;
    use crate::objects;

    fn async_error(comm: ncclComm_t) -> ncclResult_t {
        let mut code = ncclResult_t::ncclInProgress;
        // SAFETY: a place for the result.
        let asked = unsafe { ncclCommGetAsyncError(comm, &mut code) };
        assert_eq!(asked, ncclResult_t::ncclSuccess);
        code
    }

    fn panics(comm: ncclComm_t) -> Result<(), Error> {
        let _comm = objects::comm(comm, "f")?;
        panic!("half done")
    }

    #[test]
    fn the_text_of_an_error_has_one_place_and_as_many_bytes_as_fit() {
        let read = |at: *const c_char| {
            // SAFETY: the place is this thread's, and the text ends with a zero.
            unsafe { std::ffi::CStr::from_ptr(at) }.to_str().expect("whole characters").to_owned()
        };
        let of = |why: String| Error::Init { why };
        let first = remember(of("the first".to_owned()));
        assert!(read(first).contains("the first"));
        let second = remember(of("the second".to_owned()));
        assert_eq!(first, second);
        assert!(read(first).contains("the second") && !read(first).contains("first"));
        let long = remember(of("é".repeat(5000)));
        let text = read(long);
        assert!([TEXT_BYTES - 1, TEXT_BYTES - 2].contains(&text.len()), "{}", text.len());
        assert!(text.ends_with('é'));
    }

    #[test]
    fn the_communicator_of_a_call_that_panics_fails_and_no_other_does() {
        let mut comms: [ncclComm_t; 2] = [std::ptr::null_mut(); 2];
        for comm in &mut comms {
            // SAFETY: a place for the handle.
            let made = unsafe { ncclCommInitAll(comm, 1, std::ptr::null()) };
            assert_eq!(made, ncclResult_t::ncclSuccess);
        }
        let [comm, other] = comms;
        assert!(boundary(|| Ok(objects::comm(other, "f").map(drop)?)) == ncclResult_t::ncclSuccess);
        let no_argument = || -> Result<(), Error> { panic!("of no communicator") };
        assert!(boundary(no_argument) == ncclResult_t::ncclInternalError);
        assert_eq!(async_error(other), ncclResult_t::ncclSuccess);
        assert!(boundary(|| panics(comm)) == ncclResult_t::ncclInternalError);
        assert!(last().is_some_and(|error| error.to_string().contains("a panic: half done")));
        assert_eq!(async_error(comm), ncclResult_t::ncclInternalError);
        let after = objects::comm(comm, "f").and_then(|comm| comm.check());
        assert!(after.is_err_and(|error| error.to_string().contains("a panic: half done")));
        assert_eq!(async_error(other), ncclResult_t::ncclSuccess);
        for comm in comms {
            // SAFETY: any handle may be passed.
            assert_eq!(unsafe { ncclCommDestroy(comm) }, ncclResult_t::ncclSuccess);
        }
    }
}
