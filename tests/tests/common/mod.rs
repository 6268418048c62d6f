//! All ranks of a communicator in this process, by the exports of the library.

use oxccl::nccl::comm::{ncclCommDestroy, ncclCommInitAll};
use oxccl::nccl::info::ncclGetLastError;
use oxccl::nccl::types::{ncclComm_t, ncclDataType_t, ncclResult_t};
use oxccl::oxccl::stream::{oxcclStreamCreate, oxcclStreamDestroy, oxcclStreamSynchronize};
use oxccl::oxccl::types::oxcclStream_t;
use oxccl_plan::DataType;
pub(crate) use oxccl_tests::number;
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// The text of this thread's last error.
pub(crate) fn last_error() -> String {
    // SAFETY: the text stays until the thread's next error.
    let text = unsafe { CStr::from_ptr(ncclGetLastError(std::ptr::null_mut())) };
    text.to_string_lossy().into_owned()
}

/// Fails the test unless a call succeeded.
#[track_caller]
pub(crate) fn ok(result: ncclResult_t) {
    assert_eq!(result, ncclResult_t::ncclSuccess, "{}", last_error());
}

/// Fails the test unless a call failed with this code and a text that contains this.
#[track_caller]
pub(crate) fn fails(result: ncclResult_t, code: ncclResult_t, text: &str) {
    let got = last_error();
    assert!(result == code && got.contains(text), "{result:?}: {got}; expected {code:?}: {text}");
}

/// A type as C passes it.
pub(crate) fn datatype(dtype: DataType) -> MaybeUninit<ncclDataType_t> {
    number(dtype as i32)
}

/// The ranks, each with a stream.
pub(crate) struct World {
    /// Handles, by rank.
    pub(crate) comms: Vec<ncclComm_t>,
    /// Streams, by rank.
    pub(crate) streams: Vec<oxcclStream_t>,
}

// SAFETY: handles are numbers that any thread may use.
unsafe impl Sync for World {}

impl World {
    /// Makes them.
    pub(crate) fn new(nranks: usize) -> Self {
        let mut comms = vec![std::ptr::null_mut(); nranks];
        let mut streams = vec![std::ptr::null_mut(); nranks];
        // SAFETY: all outputs have room.
        unsafe {
            ok(ncclCommInitAll(comms.as_mut_ptr(), nranks as i32, std::ptr::null()));
            streams.iter_mut().for_each(|s| ok(oxcclStreamCreate(s)));
        }
        Self { comms, streams }
    }

    /// Waits for all streams.
    pub(crate) fn synchronize(&self) {
        // SAFETY: any handle may be passed.
        self.streams.iter().for_each(|s| ok(unsafe { oxcclStreamSynchronize(*s, -1) }));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A second panic would hide the first.
            return;
        }
        // SAFETY: any handle may be passed.
        unsafe {
            self.comms.iter().for_each(|c| ok(ncclCommDestroy(*c)));
            self.streams.iter().for_each(|s| ok(oxcclStreamDestroy(*s)));
        }
    }
}
