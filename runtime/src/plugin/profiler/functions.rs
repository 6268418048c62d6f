//! The functions of profilers, and the descriptions of events in the form of each version.

#![allow(non_snake_case, reason = "the names are NCCL's")]

use super::super::load::Found;
use super::super::{name_of, need};
use oxccl_plugin_abi::profiler::*;
use oxccl_plugin_abi::{ncclDebugLogger_t, ncclResult_t};
use std::ffi::{c_char, c_int, c_void};

type Handles = *mut *mut c_void;

/// `init`: without facts about the communicator, and with them in two orders.
#[derive(Clone, Copy)]
pub(super) enum Init {
    V1(unsafe extern "C" fn(Handles, *mut c_int) -> ncclResult_t),
    V4(
        unsafe extern "C" fn(
            Handles,
            *mut c_int,
            *const c_char,
            u64,
            c_int,
            c_int,
            c_int,
            ncclDebugLogger_t,
        ) -> ncclResult_t,
    ),
    V5(
        unsafe extern "C" fn(
            Handles,
            u64,
            *mut c_int,
            *const c_char,
            c_int,
            c_int,
            c_int,
            ncclDebugLogger_t,
        ) -> ncclResult_t,
    ),
}

/// `startEvent`, each version with a structure of its own.
#[derive(Clone, Copy)]
pub(super) enum StartEvent {
    V1(Start<ncclProfilerEventDescr_v1_t>),
    V2(Start<ncclProfilerEventDescr_v2_t>),
    V3(Start<ncclProfilerEventDescr_v3_t>),
    V4(Start<ncclProfilerEventDescr_v4_t>),
    V5(Start<ncclProfilerEventDescr_v5_t>),
    V6(Start<ncclProfilerEventDescr_v6_t>),
    V7(Start<ncclProfilerEventDescr_v7_t>),
}

type Start<D> = unsafe extern "C" fn(*mut c_void, Handles, *mut D) -> ncclResult_t;

/// `recordEventState`, by the version of the state's structure.
#[derive(Clone, Copy)]
pub(super) enum RecordEventState {
    V1(Record<ncclProfilerEventStateArgs_v1_t>),
    V2(Record<ncclProfilerEventStateArgs_v2_t>),
    V3(Record<ncclProfilerEventStateArgs_v3_t>),
    V4(Record<ncclProfilerEventStateArgs_v4_t>),
    V5(Record<ncclProfilerEventStateArgs_v5_t>),
    V7(Record<ncclProfilerEventStateArgs_v7_t>),
}

type Record<A> = unsafe extern "C" fn(*mut c_void, c_int, *mut A) -> ncclResult_t;

/// The functions of a profiler.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    pub(super) version: u32,
    pub(super) init: Init,
    start_event: StartEvent,
    pub(super) stop_event: unsafe extern "C" fn(*mut c_void) -> ncclResult_t,
    record_event_state: RecordEventState,
    pub(super) finalize: unsafe extern "C" fn(*mut c_void) -> ncclResult_t,
}

/// Takes the functions from a structure; what follows it are the variants of those that differ
/// between versions.
macro_rules! functions {
    ($version:expr, $at:expr, $t:ty, $init:path, $start:path, $record:path) => {{
        // SAFETY: by the contract the structure is of this version.
        let table = unsafe { &*$at.cast::<$t>() };
        // SAFETY: the name is a C string by the interface.
        let name = unsafe { name_of(table.name) }?;
        let functions = Functions {
            version: $version,
            init: $init(need(table.init, "init")?),
            start_event: $start(need(table.startEvent, "startEvent")?),
            stop_event: need(table.stopEvent, "stopEvent")?,
            record_event_state: $record(need(table.recordEventState, "recordEventState")?),
            finalize: need(table.finalize, "finalize")?,
        };
        Ok((name, functions))
    }};
}

/// A description of the newest version begins with the one of version 4, 5 or 6 of the same event,
/// as each version has appended fields; the kinds of version 4 fit the first byte.
const _: () = {
    use std::mem::{offset_of, size_of};
    type New = ncclProfilerEventDescr_v7_t;
    type Old = ncclProfilerEventDescr_v4_t;
    assert!(offset_of!(New, parentObj) == offset_of!(Old, parentObj));
    assert!(offset_of!(New, rank) == offset_of!(Old, rank));
    assert!(offset_of!(New, body) == offset_of!(Old, body));
    type OldColl = ncclProfilerColl_v4_t;
    assert!(offset_of!(ncclProfilerColl_v7_t, proto) == offset_of!(OldColl, proto));
    assert!(offset_of!(ncclProfilerColl_v7_t, nWarps) == offset_of!(OldColl, nWarps));
    type NewColl = ncclProfilerColl_v7_t;
    type MidColl = ncclProfilerColl_v5_t;
    assert!(offset_of!(NewColl, parentGroup) == offset_of!(MidColl, parentGroup));
    type NewP2p = ncclProfilerP2p_v7_t;
    type MidP2p = ncclProfilerP2p_v5_t;
    assert!(offset_of!(NewP2p, nChannels) == offset_of!(ncclProfilerP2p_v4_t, nChannels));
    assert!(offset_of!(NewP2p, parentGroup) == offset_of!(MidP2p, parentGroup));
    type NewApi = ncclProfilerCollApi_v7_t;
    type OldApi = ncclProfilerCollApi_v5_t;
    assert!(offset_of!(NewApi, graphCaptured) == offset_of!(OldApi, graphCaptured));
    assert!(size_of::<New>() >= size_of::<ncclProfilerEventDescr_v6_t>());
    assert!(cfg!(target_endian = "little"));
};

/// The facts about a communicator that versions 1 to 3 have in each event.
#[derive(Clone, Copy)]
pub(super) struct Comm {
    pub(super) name: *const c_char,
    pub(super) id: u64,
    pub(super) rank: c_int,
}

/// The parts of an event that only older versions ask for: numbers instead of names.
#[derive(Clone, Copy, Default)]
pub(super) struct Numbers {
    pub(super) function: u8,
    pub(super) datatype: u8,
    pub(super) op: u32,
    pub(super) algorithm: u8,
    pub(super) protocol: u8,
    pub(super) bytes: usize,
}

/// A description of an event in the form of the newest version.
#[derive(Clone, Copy)]
pub(super) enum Body {
    Group,
    GroupApi(ncclProfilerGroupApi_v5_t),
    CollApi(ncclProfilerCollApi_v7_t),
    P2pApi(ncclProfilerP2pApi_v7_t),
    KernelLaunch(ncclProfilerKernelLaunch_v5_t),
    Coll(ncclProfilerColl_v7_t, Numbers),
    P2p(ncclProfilerP2p_v7_t, Numbers),
    KernelCh(ncclProfilerKernelCh_v4_t),
    ProxyOp(ncclProfilerProxyOp_v1_t),
    ProxyStep(ncclProfilerProxyStep_v1_t),
    NetPlugin(ncclProfilerNetPlugin_v3_t),
}

impl Body {
    /// Returns the kind of the event.
    pub(super) fn kind(&self) -> c_int {
        match self {
            Body::Group => GROUP,
            Body::Coll(..) => COLL,
            Body::P2p(..) => P2P,
            Body::KernelCh(_) => KERNEL_CH,
            Body::ProxyOp(_) => PROXY_OP,
            Body::ProxyStep(_) => PROXY_STEP,
            Body::NetPlugin(_) => NET_PLUGIN,
            Body::GroupApi(_) => GROUP_API,
            Body::CollApi(_) => COLL_API,
            Body::P2pApi(_) => P2P_API,
            Body::KernelLaunch(_) => KERNEL_LAUNCH,
        }
    }

    fn newest(self) -> ncclProfilerEventBody_v7_t {
        type Union = ncclProfilerEventBody_v7_t;
        match self {
            Body::Group => Union { proxyStep: ncclProfilerProxyStep_v1_t { step: 0 } },
            Body::GroupApi(groupApi) => Union { groupApi },
            Body::CollApi(collApi) => Union { collApi },
            Body::P2pApi(p2pApi) => Union { p2pApi },
            Body::KernelLaunch(kernelLaunch) => Union { kernelLaunch },
            Body::Coll(coll, _) => Union { coll },
            Body::P2p(p2p, _) => Union { p2p },
            Body::KernelCh(kernelCh) => Union { kernelCh },
            Body::ProxyOp(proxyOp) => Union { proxyOp },
            Body::ProxyStep(proxyStep) => Union { proxyStep },
            Body::NetPlugin(netPlugin) => Union { netPlugin },
        }
    }
}

/// Kinds of events (`ncclProfileGroup` and so on).
pub(super) const GROUP: c_int = 1;
pub(super) const COLL: c_int = 1 << 1;
pub(super) const P2P: c_int = 1 << 2;
pub(super) const PROXY_OP: c_int = 1 << 3;
pub(super) const PROXY_STEP: c_int = 1 << 4;
pub(super) const KERNEL_CH: c_int = 1 << 6;
pub(super) const NET_PLUGIN: c_int = 1 << 7;
pub(super) const GROUP_API: c_int = 1 << 8;
pub(super) const COLL_API: c_int = 1 << 9;
pub(super) const P2P_API: c_int = 1 << 10;
pub(super) const KERNEL_LAUNCH: c_int = 1 << 11;
pub(super) const KERNEL_PHASE: c_int = 1 << 15;

/// States of events.
pub(super) const SEND_GPU_WAIT: c_int = 8;
pub(super) const SEND_WAIT: c_int = 9;
pub(super) const RECV_WAIT: c_int = 10;
pub(super) const RECV_FLUSH_WAIT: c_int = 11;
pub(super) const RECV_GPU_WAIT: c_int = 12;
pub(super) const PROXY_OP_IN_PROGRESS: c_int = 19;
pub(super) const SEND_PEER_WAIT: c_int = 20;
pub(super) const NET_PLUGIN_UPDATE: c_int = 21;
pub(super) const KERNEL_CH_STOP: c_int = 22;
pub(super) const GROUP_START_API_STOP: c_int = 23;
pub(super) const GROUP_END_API_START: c_int = 24;

/// Returns the description of a collective in version 1, 2 or 3. They differ in the fields that are
/// given here.
macro_rules! old_coll {
    ($t:ident, $comm:expr, $coll:expr, $func:expr, $datatype:expr, $algo:expr, $proto:expr
     $(, $field:ident: $value:expr)*) => {
        $t {
            name: $comm.name,
            commHash: $comm.id,
            seqNumber: $coll.seqNumber,
            func: $func,
            sendBuff: $coll.sendBuff,
            recvBuff: $coll.recvBuff,
            count: $coll.count,
            root: $coll.root,
            datatype: $datatype,
            nMaxChannels: $coll.nChannels,
            nWarps: $coll.nWarps,
            algo: $algo,
            proto: $proto,
            $($field: $value,)*
        }
    };
}

fn old_p2p(comm: Comm, p2p: &ncclProfilerP2p_v7_t) -> ncclProfilerP2p_v2_t {
    ncclProfilerP2p_v2_t {
        name: comm.name,
        commHash: comm.id,
        func: p2p.func,
        buff: p2p.buff,
        datatype: p2p.datatype,
        count: p2p.count,
        peer: p2p.peer,
    }
}

fn body_v1(comm: Comm, body: Body) -> ncclProfilerEventBody_v1_t {
    type Union = ncclProfilerEventBody_v1_t;
    match body {
        Body::Coll(c, n) => Union {
            coll: old_coll!(ncclProfilerColl_v1_t, comm, c, n.function, n.datatype, n.algorithm,
                n.protocol, op: n.op, trafficBytes: n.bytes, isCollnet: 0, isNvls: 0),
        },
        Body::P2p(p2p, n) => {
            let ncclProfilerP2p_v2_t { name, commHash, buff, count, peer, .. } =
                old_p2p(comm, &p2p);
            let (func, datatype) = (n.function, n.datatype);
            Union {
                p2p: ncclProfilerP2p_v1_t { name, commHash, func, buff, datatype, count, peer },
            }
        }
        Body::ProxyOp(proxyOp) => Union { proxyOp },
        Body::ProxyStep(proxyStep) => Union { proxyStep },
        _ => Union { proxyStep: ncclProfilerProxyStep_v1_t { step: 0 } },
    }
}

fn body_v2(comm: Comm, body: Body) -> ncclProfilerEventBody_v2_t {
    type Union = ncclProfilerEventBody_v2_t;
    match body {
        Body::Coll(c, n) => Union {
            coll: old_coll!(ncclProfilerColl_v2_t, comm, c, c.func, c.datatype, c.algo, c.proto,
                trafficBytes: n.bytes),
        },
        Body::P2p(p2p, _) => Union { p2p: old_p2p(comm, &p2p) },
        Body::ProxyOp(proxyOp) => Union { proxyOp },
        Body::ProxyStep(proxyStep) => Union { proxyStep },
        _ => Union { proxyStep: ncclProfilerProxyStep_v1_t { step: 0 } },
    }
}

fn body_v3(comm: Comm, body: Body) -> ncclProfilerEventBody_v3_t {
    type Union = ncclProfilerEventBody_v3_t;
    match body {
        Body::Coll(c, _) => Union {
            coll: old_coll!(ncclProfilerColl_v3_t, comm, c, c.func, c.datatype, c.algo, c.proto),
        },
        Body::P2p(p2p, _) => Union { p2p: old_p2p(comm, &p2p) },
        Body::KernelCh(ncclProfilerKernelCh_v4_t { channelId, .. }) => {
            Union { kernelCh: ncclProfilerKernelCh_v3_t { channelId } }
        }
        Body::NetPlugin(netPlugin) => Union { netPlugin },
        Body::ProxyOp(proxyOp) => Union { proxyOp },
        Body::ProxyStep(proxyStep) => Union { proxyStep },
        _ => Union { proxyStep: ncclProfilerProxyStep_v1_t { step: 0 } },
    }
}

/// Makes the structure of an older version and calls the function with it.
macro_rules! start_old {
    ($start:expr, $context:expr, $handle:expr, $t:ident, $kind:expr, $parent:expr, $comm:expr,
     $body:expr) => {{
        let (r#type, parentObj, rank) = ($kind as u8, $parent, $comm.rank);
        let mut event = $t { r#type, parentObj, rank, body: $body };
        // SAFETY: the function is the plugin's, with the structure of its version.
        unsafe { $start($context, $handle, &mut event) }
    }};
}

impl Functions {
    /// Returns the name and the functions of a structure; fails if one is missing.
    ///
    /// # Safety
    /// The structure is one of a profiler plugin, of the version that it is said to have.
    pub(super) unsafe fn of(found: Found) -> Result<(String, Self), String> {
        use {RecordEventState as R, StartEvent as S};
        let Found { version, at } = found;
        match version {
            1 => functions! { 1, at, ncclProfiler_v1_t, Init::V1, S::V1, R::V1 },
            2 => functions! { 2, at, ncclProfiler_v2_t, Init::V1, S::V2, R::V2 },
            3 => functions! { 3, at, ncclProfiler_v3_t, Init::V1, S::V3, R::V3 },
            4 => functions! { 4, at, ncclProfiler_v4_t, Init::V4, S::V4, R::V4 },
            5 => functions! { 5, at, ncclProfiler_v5_t, Init::V5, S::V5, R::V5 },
            6 => functions! { 6, at, ncclProfiler_v6_t, Init::V5, S::V6, R::V5 },
            7 => functions! { 7, at, ncclProfiler_v7_t, Init::V5, S::V7, R::V7 },
            other => Err(format!("version {other} is not understood")),
        }
    }

    /// Returns the kinds of events that a plugin of this version can ask for.
    pub(super) fn kinds(&self) -> c_int {
        match self.version {
            ..=2 => GROUP | COLL | P2P | PROXY_OP | PROXY_STEP,
            3 | 4 => GROUP | COLL | P2P | PROXY_OP | PROXY_STEP | KERNEL_CH | NET_PLUGIN,
            // Up to launches, up to those of copy engines, and up to the phases of kernels.
            5 => (1 << 12) - 1,
            6 => (1 << 15) - 1,
            _ => (1 << 16) - 1,
        }
    }

    /// Has the plugin begin an event, and write its handle, which may be null.
    pub(super) fn start(
        &self,
        context: *mut c_void,
        comm: Comm,
        at: &mut *mut c_void,
        parent: *mut c_void,
        body: Body,
    ) -> ncclResult_t {
        let kind = body.kind();
        let (r#type, parentObj, rank) = (kind as u64, parent, comm.rank);
        let mut newest =
            ncclProfilerEventDescr_v7_t { r#type, parentObj, rank, body: body.newest() };
        let event = &raw mut newest;
        match self.start_event {
            StartEvent::V1(start) => start_old!(
                start,
                context,
                at,
                ncclProfilerEventDescr_v1_t,
                kind,
                parent,
                comm,
                body_v1(comm, body)
            ),
            StartEvent::V2(start) => start_old!(
                start,
                context,
                at,
                ncclProfilerEventDescr_v2_t,
                kind,
                parent,
                comm,
                body_v2(comm, body)
            ),
            StartEvent::V3(start) => start_old!(
                start,
                context,
                at,
                ncclProfilerEventDescr_v3_t,
                kind,
                parent,
                comm,
                body_v3(comm, body)
            ),
            // SAFETY: the function is the plugin's; the structure begins as that of its version.
            StartEvent::V4(start) => unsafe { start(context, at, event.cast()) },
            // SAFETY: as above.
            StartEvent::V5(start) => unsafe { start(context, at, event.cast()) },
            // SAFETY: as above.
            StartEvent::V6(start) => unsafe { start(context, at, event.cast()) },
            // SAFETY: as above.
            StartEvent::V7(start) => unsafe { start(context, at, event) },
        }
    }

    /// Has the plugin record a state of an event; `value` is the time in ns at which the work of a
    /// channel ended, the bytes of a message, or the address of a network plugin's data.
    pub(super) fn record(&self, handle: *mut c_void, state: c_int, value: u64) -> ncclResult_t {
        // All members of the union begin at its beginning, and have eight bytes at most.
        let kernelCh = ncclProfilerKernelChState_v4_t { pTimer: value };
        let mut args = ncclProfilerEventStateArgs_v4_t { kernelCh };
        let at = &raw mut args;
        let proxyOp = ncclProfilerProxyOpState_v1_t { transSize: value as usize, steps: 0 };
        let mut old = ncclProfilerEventStateArgs_v1_t { proxyOp };
        let at_old = &raw mut old;
        match self.record_event_state {
            // SAFETY: the function is the plugin's, and so is the event; the structures of these
            // versions are equal.
            RecordEventState::V1(record) => unsafe { record(handle, state, at_old) },
            // SAFETY: as above.
            RecordEventState::V2(record) => unsafe { record(handle, state, at_old.cast()) },
            // SAFETY: as above.
            RecordEventState::V3(record) => unsafe { record(handle, state, at_old.cast()) },
            // SAFETY: as above.
            RecordEventState::V4(record) => unsafe { record(handle, state, at) },
            // SAFETY: as above.
            RecordEventState::V5(record) => unsafe { record(handle, state, at.cast()) },
            // SAFETY: as above.
            RecordEventState::V7(record) => unsafe { record(handle, state, at.cast()) },
        }
    }
}
