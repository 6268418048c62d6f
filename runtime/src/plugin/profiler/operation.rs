//! The events of operations: when they begin and end, and what plugins are told of them.

use super::functions::*;
use super::messages::{MESSAGES, OpEvents};
use super::{BELOW_GROUP, BELOW_OPERATION, CHANNELS, Event, Instance, Reported};
use crate::op::follow::Runs;
use crate::op::{Call, Operation, Programs, Transfer};
use oxccl_plan::generate::GENERATORS;
use oxccl_plan::nccl::{Cell, TunerAlgorithm, TunerProtocol};
use oxccl_plan::{Algorithm, Carrier, Collective, DataType};
use oxccl_plugin_abi::profiler::*;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// The number of channels that are told apart: plugins have room for so many (NVIDIA's example for
/// 32, its inspector for 64), and do not look. A part of an operation never has more.
const MOST_CHANNELS: u8 = 32;

/// The algorithm and the carrier of a collective.
pub(super) type Route = (Algorithm, Carrier);

/// An operation in host memory that runs once, until it has begun.
pub(super) struct OneRun(Mutex<Option<Running>>);

impl OneRun {
    pub(super) fn of(running: Running) -> Self {
        Self(Mutex::new(Some(running)))
    }
}

impl Runs for OneRun {
    fn begin(&self, number: u64) -> Box<dyn Send> {
        let running = self.0.lock().unwrap_or_else(|e| e.into_inner()).take();
        Box::new(running.map(|running| running.begun(number)))
    }
}

impl Instance {
    /// Begins a group of operations, if the plugin asks for that.
    pub(super) fn begin_group(self: &Arc<Self>, parent: *mut c_void) -> Option<Event> {
        self.wants(GROUP | BELOW_GROUP).then(|| self.begin(parent, Body::Group))
    }

    /// Begins an operation of a group and of calls.
    pub(super) fn operation(
        self: &Arc<Self>,
        operation: &Operation,
        routes: &[Route],
        channels: &dyn Fn(usize) -> Range<u8>,
        (group, calls): (*mut c_void, &[Reported]),
    ) -> Running {
        let instance = self.clone();
        let parent = |i: usize| match self.plugin.functions.version {
            ..=4 => group,
            _ => calls.get(i).map_or(null_mut(), |call| call.0),
        };
        let begin = |i: usize, body| self.begin(parent(i), body);
        let count = |i: usize| channels(i).len() as u8;
        let events: Vec<_> = match operation {
            Operation::Collective(..) | Operation::Batch(_)
                if self.wants(COLL | BELOW_OPERATION) =>
            {
                let coll = |i, (programs, call): (&Arc<Programs>, &Call), route: &Route| {
                    self.coll(*route, (call, programs.options.tag), (group, count(i)))
                };
                let all = operation.collectives().zip(routes).enumerate();
                all.map(|(i, (of, route))| begin(i, coll(i, of, route))).collect()
            }
            Operation::Exchange(transfers) if self.wants(P2P | BELOW_OPERATION) => {
                let all = transfers.list.iter().enumerate();
                all.map(|(i, transfer)| begin(i, p2p(transfer, (group, count(i))))).collect()
            }
            _ => Vec::new(),
        };
        let transfers = match operation {
            Operation::Exchange(transfers) if self.wants(MESSAGES) => {
                transfers.list.iter().map(|transfer| (transfer.peer, transfer.send)).collect()
            }
            _ => Vec::new(),
        };
        let numbers = (0..events.len()).map(channels).collect();
        let of = Arc::new(OpEvents::new(events, transfers));
        Running { instance, channels: Vec::new(), numbers, of }
    }

    fn coll(
        &self,
        (algorithm, carrier): Route,
        (call, tag): (&Call, u64),
        (group, channels): (*mut c_void, u8),
    ) -> Body {
        let Call { spec, input, output, count, dtype, op, .. } = *call;
        let cell = Cell::of(algorithm, carrier);
        let ((name, number), names) = (function(spec.collective), names());
        let of_function = &self.numbers[spec.collective as usize];
        let bytes = count as usize * dtype.size() * spec.largest_blocks() as usize;
        let numbers = Numbers {
            function: number,
            datatype: dtype as u8,
            op: op as u32,
            algorithm: cell.algorithm as u8,
            protocol: cell.protocol as u8,
            bytes,
        };
        let body = ncclProfilerColl_v7_t {
            seqNumber: of_function.fetch_add(1, Ordering::Relaxed),
            func: name.as_ptr(),
            sendBuff: input.cast(),
            recvBuff: output.cast(),
            count: count as usize,
            root: spec.root as c_int,
            datatype: datatype(dtype).as_ptr(),
            nChannels: channels,
            nWarps: 1,
            algo: names.algorithms[cell.algorithm as usize].as_ptr(),
            proto: names.protocols[cell.protocol as usize].as_ptr(),
            parentGroup: group,
            kernelVariant: names.plans[algorithm as usize].as_ptr(),
            isSymColl: matches!(
                carrier,
                Carrier::InPlace | Carrier::RemoteRead | Carrier::CopyEngines
            ),
            userTag: tag,
        };
        Body::Coll(body, numbers)
    }
}

/// An operation under way. Its events end when this is dropped, and its messages are over.
pub(crate) struct Running {
    instance: Arc<Instance>,
    // End before the operation.
    /// The channels that have begun, each with the time of its end in ns; 0: when this is dropped.
    channels: Vec<(Event, u64)>,
    /// The numbers of the channels of each event of the operation.
    numbers: Vec<Range<u8>>,
    of: Arc<OpEvents>,
}

impl Running {
    /// Returns whether there is anything to report at the operation's beginning or end.
    pub(crate) fn has_events(&self) -> bool {
        !self.of.events.is_empty()
    }

    /// Notes the number of the operation among those of its rank.
    pub(crate) fn called(&self, number: u64) {
        if self.instance.wants(MESSAGES) {
            self.instance.numbered.add(number, &self.of);
        }
    }

    /// Returns the operation as one that begins to move data now, with this number.
    pub(super) fn begun(mut self, number: u64) -> Self {
        self.called(number);
        let begun_ns = now_ns();
        self.begin(|_| Some((begun_ns, 0)));
        self
    }

    /// Begins the events of channels with the times of their beginnings and ends, by their numbers,
    /// if the plugin asks for them.
    pub(super) fn begin(&mut self, times: impl Fn(u8) -> Option<(u64, u64)>) {
        if !self.instance.wants(CHANNELS) {
            return;
        }
        for (event, numbers) in self.of.events.iter().zip(&self.numbers) {
            let timed = numbers.clone().filter_map(|number| Some((number, times(number)?)));
            self.channels.extend(timed.map(|(number, (begun_ns, end_ns))| {
                let channel = ncclProfilerKernelCh_v4_t {
                    channelId: number % MOST_CHANNELS,
                    pTimer: begun_ns,
                };
                (self.instance.begin(event.handle, Body::KernelCh(channel)), end_ns)
            }));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The first version with this state is 4.
        if self.instance.plugin.functions.version >= 4 {
            for (channel, end_ns) in &self.channels {
                let end_ns = if *end_ns == 0 { now_ns() } else { *end_ns };
                channel.record(KERNEL_CH_STOP, end_ns);
            }
        }
    }
}

/// Returns the time in ns, by a clock that never goes back; not 0.
fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

fn p2p(transfer: &Transfer, (group, channels): (*mut c_void, u8)) -> Body {
    let Transfer { peer, data, bytes, dtype, .. } = *transfer;
    let (name, function) = direction(transfer);
    let body = ncclProfilerP2p_v7_t {
        func: name.as_ptr(),
        buff: data.cast(),
        datatype: datatype(dtype).as_ptr(),
        count: bytes / dtype.size(),
        peer: peer as c_int,
        nChannels: channels,
        parentGroup: group,
        userTag: 0,
    };
    Body::P2p(body, Numbers { function, datatype: dtype as u8, bytes, ..Numbers::default() })
}

/// Returns NCCL's name and number of a collective.
pub(super) fn function(collective: Collective) -> (&'static CStr, u8) {
    match collective {
        Collective::Broadcast => (c"Broadcast", 0),
        Collective::Reduce => (c"Reduce", 1),
        Collective::AllGather => (c"AllGather", 2),
        Collective::ReduceScatter => (c"ReduceScatter", 3),
        Collective::AllReduce => (c"AllReduce", 4),
        Collective::AllToAll => (c"AlltoAll", 8),
        Collective::Scatter => (c"Scatter", 9),
        Collective::Gather => (c"Gather", 10),
    }
}

pub(super) fn direction(transfer: &Transfer) -> (&'static CStr, u8) {
    if transfer.send { (c"Send", 6) } else { (c"Recv", 7) }
}

/// Returns NCCL's name of a type.
pub(super) fn datatype(dtype: DataType) -> &'static CStr {
    match dtype {
        DataType::Int8 => c"ncclInt8",
        DataType::Uint8 => c"ncclUint8",
        DataType::Int32 => c"ncclInt32",
        DataType::Uint32 => c"ncclUint32",
        DataType::Int64 => c"ncclInt64",
        DataType::Uint64 => c"ncclUint64",
        DataType::Float16 => c"ncclFloat16",
        DataType::Float32 => c"ncclFloat32",
        DataType::Float64 => c"ncclFloat64",
        DataType::Bfloat16 => c"ncclBfloat16",
        DataType::Float8e4m3 => c"ncclFloat8e4m3",
        DataType::Float8e5m2 => c"ncclFloat8e5m2",
    }
}

/// Names as C has them.
struct Names {
    algorithms: [CString; TunerAlgorithm::ALL.len()],
    protocols: [CString; TunerProtocol::ALL.len()],
    plans: Vec<CString>,
}

fn names() -> &'static Names {
    static NAMES: OnceLock<Names> = OnceLock::new();
    let text = |name: &str| CString::new(name).unwrap_or_default();
    NAMES.get_or_init(|| Names {
        algorithms: TunerAlgorithm::ALL.map(|algorithm| text(algorithm.name())),
        protocols: TunerProtocol::ALL.map(|protocol| text(protocol.name())),
        plans: GENERATORS.iter().map(|generator| text(generator.name)).collect(),
    })
}
