//! The states of events in all versions.

#![allow(missing_docs, reason = "members of unions are named as what they describe")]

use std::ffi::{c_int, c_void};

/// The new state of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerProxyOpState_v1_t {
    /// Bytes moved.
    pub transSize: usize,
    /// Steps done.
    pub steps: c_int,
}

/// The new state of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerProxyCtrlState_v1_t {
    /// Operations taken.
    pub appendedProxyOps: c_int,
}

/// The new state of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerProxyStepState_v4_t {
    /// Bytes moved.
    pub transSize: usize,
}

/// The new state of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerNetPluginState_v4_t {
    /// The data of the net plugin, of a type that its kind and version tell.
    pub data: *mut c_void,
}

/// The new state of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclProfilerKernelChState_v4_t {
    /// The time of the end in ns.
    pub pTimer: u64,
}

/// The new state of an event, by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventStateArgs_v1_t {
    pub proxyOp: ncclProfilerProxyOpState_v1_t,
    pub proxyCtrl: ncclProfilerProxyCtrlState_v1_t,
}

/// The new state of an event, by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventStateArgs_v2_t {
    pub proxyOp: ncclProfilerProxyOpState_v1_t,
    pub proxyCtrl: ncclProfilerProxyCtrlState_v1_t,
}

/// The new state of an event, by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventStateArgs_v3_t {
    pub proxyOp: ncclProfilerProxyOpState_v1_t,
    pub proxyCtrl: ncclProfilerProxyCtrlState_v1_t,
}

/// The new state of an event, by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventStateArgs_v4_t {
    pub proxyStep: ncclProfilerProxyStepState_v4_t,
    pub proxyCtrl: ncclProfilerProxyCtrlState_v1_t,
    pub netPlugin: ncclProfilerNetPluginState_v4_t,
    pub kernelCh: ncclProfilerKernelChState_v4_t,
}

/// The new state of an event, by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventStateArgs_v5_t {
    pub proxyStep: ncclProfilerProxyStepState_v4_t,
    pub proxyCtrl: ncclProfilerProxyCtrlState_v1_t,
    pub netPlugin: ncclProfilerNetPluginState_v4_t,
    pub kernelCh: ncclProfilerKernelChState_v4_t,
}

/// The same as in version 5.
pub type ncclProfilerEventStateArgs_v6_t = ncclProfilerEventStateArgs_v5_t;

/// The new state of an event, by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclProfilerEventStateArgs_v7_t {
    pub proxyStep: ncclProfilerProxyStepState_v4_t,
    pub proxyCtrl: ncclProfilerProxyCtrlState_v1_t,
    pub netPlugin: ncclProfilerNetPluginState_v4_t,
    pub kernelCh: ncclProfilerKernelChState_v4_t,
}
