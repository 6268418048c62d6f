//! The structures that plugins export.

use super::*;
use crate::{ncclDebugLogger_t, ncclResult_t};
use std::ffi::{c_char, c_int, c_void};

/// The number of a process.
pub type ncclPid_t = c_int;

/// A state of an event (`ncclProfilerKernelChStop` and others).
pub type ncclProfilerEventState_t = c_int;

/// The functions of a profiler plugin, `ncclProfiler_v7`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfiler_v7_t {
    /// The name.
    pub name: *const c_char,
    /// Comes first, once for each communicator. Gives a context, and the sum of the kinds of events
    /// that it asks for, which it may change at any time; no other kinds are reported.
    pub init: Option<
        unsafe extern "C" fn(
            context: *mut *mut c_void,
            commId: u64,
            eActivationMask: *mut c_int,
            commName: *const c_char,
            nNodes: c_int,
            nranks: c_int,
            rank: c_int,
            logfn: ncclDebugLogger_t,
        ) -> ncclResult_t,
    >,
    /// Begins an event, and gives a handle for it; a null handle means that its end does not
    /// matter.
    pub startEvent: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            eHandle: *mut *mut c_void,
            eDescr: *mut ncclProfilerEventDescr_v7_t,
        ) -> ncclResult_t,
    >,
    /// Ends an event. May come from another thread.
    pub stopEvent: Option<unsafe extern "C" fn(eHandle: *mut c_void) -> ncclResult_t>,
    /// Changes the state of an event.
    pub recordEventState: Option<
        unsafe extern "C" fn(
            eHandle: *mut c_void,
            eState: ncclProfilerEventState_t,
            eStateArgs: *mut ncclProfilerEventStateArgs_v7_t,
        ) -> ncclResult_t,
    >,
    /// Comes last, once for each communicator, after the ends of all events.
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}

/// The functions of a profiler plugin, `ncclProfiler_v6`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfiler_v6_t {
    /// The same as in version 7.
    pub name: *const c_char,
    /// The same as in version 7.
    pub init: Option<
        unsafe extern "C" fn(
            context: *mut *mut c_void,
            commId: u64,
            eActivationMask: *mut c_int,
            commName: *const c_char,
            nNodes: c_int,
            nranks: c_int,
            rank: c_int,
            logfn: ncclDebugLogger_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub startEvent: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            eHandle: *mut *mut c_void,
            eDescr: *mut ncclProfilerEventDescr_v6_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub stopEvent: Option<unsafe extern "C" fn(eHandle: *mut c_void) -> ncclResult_t>,
    /// The same as in version 7.
    pub recordEventState: Option<
        unsafe extern "C" fn(
            eHandle: *mut c_void,
            eState: ncclProfilerEventState_t,
            eStateArgs: *mut ncclProfilerEventStateArgs_v6_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}

/// The functions of a profiler plugin, `ncclProfiler_v5`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfiler_v5_t {
    /// The same as in version 7.
    pub name: *const c_char,
    /// The same as in version 7.
    pub init: Option<
        unsafe extern "C" fn(
            context: *mut *mut c_void,
            commId: u64,
            eActivationMask: *mut c_int,
            commName: *const c_char,
            nNodes: c_int,
            nranks: c_int,
            rank: c_int,
            logfn: ncclDebugLogger_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub startEvent: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            eHandle: *mut *mut c_void,
            eDescr: *mut ncclProfilerEventDescr_v5_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub stopEvent: Option<unsafe extern "C" fn(eHandle: *mut c_void) -> ncclResult_t>,
    /// The same as in version 7.
    pub recordEventState: Option<
        unsafe extern "C" fn(
            eHandle: *mut c_void,
            eState: ncclProfilerEventState_t,
            eStateArgs: *mut ncclProfilerEventStateArgs_v5_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}

/// The functions of a profiler plugin, `ncclProfiler_v4`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfiler_v4_t {
    /// The same as in version 7.
    pub name: *const c_char,
    /// The same as in version 7.
    pub init: Option<
        unsafe extern "C" fn(
            context: *mut *mut c_void,
            eActivationMask: *mut c_int,
            commName: *const c_char,
            commHash: u64,
            nNodes: c_int,
            nranks: c_int,
            rank: c_int,
            logfn: ncclDebugLogger_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub startEvent: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            eHandle: *mut *mut c_void,
            eDescr: *mut ncclProfilerEventDescr_v4_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub stopEvent: Option<unsafe extern "C" fn(eHandle: *mut c_void) -> ncclResult_t>,
    /// The same as in version 7.
    pub recordEventState: Option<
        unsafe extern "C" fn(
            eHandle: *mut c_void,
            eState: ncclProfilerEventState_t,
            eStateArgs: *mut ncclProfilerEventStateArgs_v4_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}

/// The functions of a profiler plugin, `ncclProfiler_v3`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfiler_v3_t {
    /// The same as in version 7.
    pub name: *const c_char,
    /// The same as in version 7, without what is known of the communicator.
    pub init: Option<
        unsafe extern "C" fn(
            context: *mut *mut c_void,
            eActivationMask: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub startEvent: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            eHandle: *mut *mut c_void,
            eDescr: *mut ncclProfilerEventDescr_v3_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub stopEvent: Option<unsafe extern "C" fn(eHandle: *mut c_void) -> ncclResult_t>,
    /// The same as in version 7.
    pub recordEventState: Option<
        unsafe extern "C" fn(
            eHandle: *mut c_void,
            eState: ncclProfilerEventState_t,
            eStateArgs: *mut ncclProfilerEventStateArgs_v3_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}

/// The functions of a profiler plugin, `ncclProfiler_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfiler_v2_t {
    /// The same as in version 7.
    pub name: *const c_char,
    /// The same as in version 7, without what is known of the communicator.
    pub init: Option<
        unsafe extern "C" fn(
            context: *mut *mut c_void,
            eActivationMask: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub startEvent: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            eHandle: *mut *mut c_void,
            eDescr: *mut ncclProfilerEventDescr_v2_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub stopEvent: Option<unsafe extern "C" fn(eHandle: *mut c_void) -> ncclResult_t>,
    /// The same as in version 7.
    pub recordEventState: Option<
        unsafe extern "C" fn(
            eHandle: *mut c_void,
            eState: ncclProfilerEventState_t,
            eStateArgs: *mut ncclProfilerEventStateArgs_v2_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}

/// The functions of a profiler plugin, `ncclProfiler_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfiler_v1_t {
    /// The same as in version 7.
    pub name: *const c_char,
    /// The same as in version 7, without what is known of the communicator.
    pub init: Option<
        unsafe extern "C" fn(
            context: *mut *mut c_void,
            eActivationMask: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub startEvent: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            eHandle: *mut *mut c_void,
            eDescr: *mut ncclProfilerEventDescr_v1_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub stopEvent: Option<unsafe extern "C" fn(eHandle: *mut c_void) -> ncclResult_t>,
    /// The same as in version 7.
    pub recordEventState: Option<
        unsafe extern "C" fn(
            eHandle: *mut c_void,
            eState: ncclProfilerEventState_t,
            eStateArgs: *mut ncclProfilerEventStateArgs_v1_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 7.
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}
