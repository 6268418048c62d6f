//! Profiler plugins, which are told of calls and operations.
//!
//! The events of a call: the group of calls (`GroupApi`) has the calls (`CollApi`, `P2pApi`) and
//! the launch (`KernelLaunch`); the group of operations (`Group`) has the operations (`Coll`,
//! `P2p`), and an operation has the work of its channels (`KernelCh`) and its messages between
//! hosts (`ProxyOp`, `ProxyStep`), of which network plugins tell parts (`NetPlugin`). A single call
//! is a group of its own. An event is reported if the plugin asks for its kind, or for that of a
//! part of it.

mod calls;
mod functions;
mod messages;
mod net_events;
mod operation;
mod replays;

use super::load::Kind;
use super::{Facts, Plugin, checked, logger, result_name};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use crate::op::follow::{Look, Replayed, Runs, Watcher};
use crate::op::{Call, Operation, Transfer};
use crate::proxy::{self, CurrentCall, LIMIT, Serve, Worker};
use calls::{Function, Looks, UnderWay};
use functions::*;
use messages::{Followed, MESSAGES, Messages, Numbered};
pub(super) use net_events::net_event;
pub(crate) use operation::Running;
use operation::{OneRun, Route, datatype, direction, function};
use oxccl_plan::Collective;
use oxccl_plugin_abi::ncclResult_t;
use oxccl_plugin_abi::profiler::*;
use replays::{InGraph, Replays, merge};
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::ffi::{CString, c_int, c_void};
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

const KIND: Kind = Kind {
    name: "profiler",
    prefix: "libnccl-profiler",
    symbol: "ncclProfiler_v",
    versions: &[7, 6, 5, 4, 3, 2, 1],
    lists: false,
};

/// The advice of errors about profilers.
const HINT: &str = "ask the vendor; NCCL_PROFILER_PLUGIN=none goes without";

/// How long the end of a communicator waits for the ends of its events, which come with those of
/// its operations.
const ENDING: Duration = Duration::from_millis(100);

/// Returns the profiler that `NCCL_PROFILER_PLUGIN` names, or that of a network plugin, loaded once
/// per process.
fn plugin() -> Option<&'static Plugin<Functions>> {
    static PLUGIN: OnceLock<Option<Plugin<Functions>>> = OnceLock::new();
    let find = || {
        // SAFETY: the symbol's name says what the structure is.
        let of = |found| unsafe { Functions::of(found) };
        Plugin::find((&KIND, Subsystem::Profile), &Config::get().profiler_plugin, of)
    };
    PLUGIN.get_or_init(find).as_ref()
}

/// The kinds of events that the plugin asks for. It may change them at any time, and those that ask
/// with the first communicator only mean all: as with NCCL, there is one place in the process.
static MASK: AtomicI32 = AtomicI32::new(0);

/// The plugin's state for a communicator. Events come from whichever thread calls, or completes an
/// operation.
struct Instance {
    plugin: &'static Plugin<Functions>,
    context: *mut c_void,
    /// The facts that older versions have in each event.
    comm: Comm,
    /// The text that `comm` points to.
    _name: Option<CString>,
    /// Operations on a GPU, the oldest first, each with what tells its times once it has ended.
    followed: Mutex<VecDeque<(Running, Times)>>,
    /// Those that had ended at the last look, with the times of their channels: what they have
    /// noted of messages may be seen later than that.
    ended: Mutex<Vec<Ended>>,
    /// Operations in graphs of a GPU.
    replayed: Mutex<Vec<InGraph>>,
    /// The operations by their numbers, for those who know of messages only that.
    numbered: Numbered,
    /// The lanes of GPUs with ranks of other hosts.
    looked_at: Mutex<Vec<(Followed, Look)>>,
    /// The numbers of the collectives so far, by function.
    numbers: [AtomicU64; Collective::ALL.len()],
    /// True once the log has a line about a call that failed.
    complained: AtomicBool,
    /// The texts about the plugin.
    current: Arc<CurrentCall>,
    /// The calls about events. They are closed when the plugin is about to end, or one of them does
    /// not return: it hears of no events any more.
    calls: UnderWay,
    looks: Mutex<Looks>,
    /// The error of a call that does not return, and what makes the communicator fail with it.
    stuck: OnceLock<Error>,
    fail: OnceLock<Fail>,
}

/// Makes a communicator fail.
type Fail = Box<dyn Fn(&Error) + Send + Sync>;

/// The instances at whose calls [`look`] looks.
static WATCHED: Mutex<Vec<Weak<Instance>>> = Mutex::new(Vec::new());

fn watched() -> MutexGuard<'static, Vec<Weak<Instance>>> {
    WATCHED.lock().unwrap_or_else(|e| e.into_inner())
}

/// Looks whether a call about an event does not return: then its communicator fails. To be called
/// every second or more often; returns whether the next look has to come sooner. Blocks: never.
pub(crate) fn look() -> bool {
    let living: Vec<_> = {
        let mut watched = watched();
        watched.retain(|instance| instance.strong_count() > 0);
        watched.iter().filter_map(Weak::upgrade).collect()
    };
    let now = Instant::now();
    living.iter().for_each(|instance| instance.look(now));
    false
}

// SAFETY: the pointers are the plugin's, whose functions any thread may call, as with NCCL.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl Instance {
    fn start(
        plugin: &'static Plugin<Functions>,
        current: &Arc<CurrentCall>,
        facts: &Facts,
    ) -> oxccl_net::Result<Self> {
        let name = facts.name.as_ref().and_then(|name| CString::new(name.as_str()).ok());
        let mut context = null_mut();
        let (at, mask_at) = (&mut context, MASK.as_ptr());
        let name_at = name.as_ref().map_or(null(), |name| name.as_ptr());
        let (nhosts, nranks) = (facts.hosts.len() as c_int, facts.nranks() as c_int);
        let (rank, comm, log) = (facts.rank as c_int, facts.comm, logger());
        let alone = plugin.turn.take(current)?;
        let result = current.enter("init", || match plugin.functions.init {
            // SAFETY: the function is the plugin's, and has the arguments of its version; mask and
            // name stay for as long as the context.
            Init::V1(init) => unsafe { init(at, mask_at) },
            // SAFETY: as above.
            Init::V4(init) => unsafe {
                init(at, mask_at, name_at, comm, nhosts, nranks, rank, log)
            },
            // SAFETY: as above.
            Init::V5(init) => unsafe {
                init(at, comm, mask_at, name_at, nhosts, nranks, rank, log)
            },
        });
        drop(alone);
        checked(current, "init", result)?;
        let comm = Comm { name: name_at, id: comm, rank };
        Ok(Self {
            plugin,
            context,
            comm,
            _name: name,
            followed: Mutex::default(),
            ended: Mutex::default(),
            replayed: Mutex::default(),
            numbered: Numbered::default(),
            looked_at: Mutex::default(),
            numbers: Default::default(),
            complained: AtomicBool::new(false),
            current: current.clone(),
            calls: UnderWay::default(),
            looks: Mutex::default(),
            stuck: OnceLock::new(),
            fail: OnceLock::new(),
        })
    }

    fn wants(&self, kinds: c_int) -> bool {
        MASK.load(Ordering::Relaxed) & kinds & self.plugin.functions.kinds() != 0
    }

    /// Makes a call about an event, unless the plugin hears of none any more. Returns whether it
    /// was made without an error; the log has the first one: nothing depends on it.
    fn tell(&self, function: Function, call: impl FnOnce(&Functions) -> ncclResult_t) -> bool {
        let make = || self.calls.call(function, || call(&self.plugin.functions));
        let result = proxy::beside(&self.current, function.name(), make);
        if let Some(failed) = result.filter(|result| *result != 0) {
            self.complain(function, failed);
        }
        result == Some(0)
    }

    /// Makes the communicator fail if a call does not return. Nothing may be expected of the plugin
    /// then, so it is called no more.
    fn look(&self, now: Instant) {
        let mut looks = self.looks.lock().unwrap_or_else(|e| e.into_inner());
        let stuck = looks.look(&self.calls, now).filter(|_| self.stuck.get().is_none());
        let Some(function) = stuck else { return };
        self.calls.close();
        let error = self.current.not_returned(function.name(), LIMIT).into();
        let error = self.stuck.get_or_init(|| error);
        self.fail.get().iter().for_each(|fail| fail(error));
    }

    fn followed(&self) -> MutexGuard<'_, VecDeque<(Running, Times)>> {
        self.followed.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Only for the thread of the profiler once there are operations: it holds the lock in calls of
    /// the plugin, which may not return.
    fn looked_at(&self) -> MutexGuard<'_, Vec<(Followed, Look)>> {
        self.looked_at.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Reports the messages of GPUs, and ends the events of operations that have ended; returns
    /// whether there were any.
    fn end_followed(&self) -> bool {
        let mut ended: Vec<_> = std::iter::from_fn(|| self.take_ended()).collect();
        let replayed = self.take_replayed();
        if !replayed.is_empty() {
            // What ran before one of these has ended by now.
            ended.extend(std::iter::from_fn(|| self.take_ended()));
            ended = merge(ended, replayed, Ended::begun_ns);
        }
        let mut moved = !ended.is_empty();
        let mut looked_at = self.looked_at();
        for (followed, look) in looked_at.iter_mut() {
            moved |= followed.has_noted(look);
        }
        // They end one look later where messages are looked at.
        let waits = !looked_at.is_empty() && self.wants(MESSAGES);
        drop(looked_at);
        let before = std::mem::take(&mut *self.ended());
        if waits {
            self.ended().append(&mut ended);
        }
        before.into_iter().chain(ended).for_each(Ended::tell);
        moved
    }

    fn ended(&self) -> MutexGuard<'_, Vec<Ended>> {
        self.ended.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes the oldest operation if it has ended, with the times of its channels.
    fn take_ended(&self) -> Option<Ended> {
        let mut followed = self.followed();
        let times = followed.front_mut().and_then(|(_, times)| times())?;
        followed.pop_front().map(|(running, _)| Ended { what: What::Begun(running), times })
    }

    fn complain(&self, function: Function, result: ncclResult_t) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            let (function, name) = (function.name(), result_name(result));
            let text =
                format!("{function} of {} returned {name}; events are missing", self.plugin.label);
            log::line(Level::Warn, Subsystem::Profile, &text);
        }
    }

    fn begin(self: &Arc<Self>, parent: *mut c_void, body: Body) -> Event {
        Event { instance: self.clone(), handle: self.start_event(parent, body) }
    }

    /// Begins an event. Returns its handle; null if the plugin has no use for its end.
    fn start_event(&self, parent: *mut c_void, body: Body) -> *mut c_void {
        let mut handle = null_mut();
        let begun = self.tell(Function::StartEvent, |functions| {
            functions.start(self.context, self.comm, &mut handle, parent, body)
        });
        if begun { handle } else { null_mut() }
    }

    /// Records a state of an event, unless the handle is null.
    fn record(&self, handle: *mut c_void, state: c_int, value: u64) {
        if !handle.is_null() {
            let record = |functions: &Functions| functions.record(handle, state, value);
            self.tell(Function::RecordEventState, record);
        }
    }

    /// Ends an event that has not ended, unless the handle is null.
    fn stop(&self, handle: *mut c_void) {
        if !handle.is_null() {
            // SAFETY: the handle is that of an event that has not ended.
            let stop = |functions: &Functions| unsafe { (functions.stop_event)(handle) };
            self.tell(Function::StopEvent, stop);
        }
    }
}

/// An event that has begun; it ends when this is dropped.
struct Event {
    instance: Arc<Instance>,
    /// Null if the plugin has no use for its end.
    handle: *mut c_void,
}

// SAFETY: the handle is the plugin's, which takes it from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    fn record(&self, state: c_int, value: u64) {
        self.instance.record(self.handle, state, value);
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.instance.stop(self.handle);
    }
}

/// Returns the handle of an event; null if there is none.
fn handle(event: Option<&Event>) -> *mut c_void {
    event.map_or(null_mut(), |event| event.handle)
}

/// The end of a profiler, which comes after the ends of all events.
struct Keeper {
    instance: Arc<Instance>,
    current: Arc<CurrentCall>,
}

/// An operation that has ended.
struct Ended {
    what: What,
    times: ChannelTimes,
}

/// The operation that has ended.
enum What {
    /// An operation whose events began with its launch.
    Begun(Running),
    /// A run of an operation in a graph, whose events begin when it is told.
    Run(Arc<Replays>),
}

impl Ended {
    /// Returns when the first channel began, in ns; `None` if no times are known.
    fn begun_ns(&self) -> Option<u64> {
        self.times.first().map(|(begun_ns, _)| *begun_ns)
    }

    /// Tells the plugin of the channels, and ends all events.
    fn tell(self) {
        let begun = match self.what {
            What::Begun(running) => Some((running, None)),
            What::Run(replays) => replays.begin_run(),
        };
        // The group ends last.
        let Some((mut running, _group)) = begun else { return };
        running.begin(|channel| self.times.get(usize::from(channel)).copied());
        drop(running);
    }
}

/// When each channel of an operation began and ended, in ns.
type ChannelTimes = Vec<(u64, u64)>;

/// Returns the times of an operation's channels once the operation has ended.
type Times = Box<dyn FnMut() -> Option<ChannelTimes> + Send>;

impl Serve for Keeper {
    fn poll(&mut self) -> bool {
        self.instance.end_followed()
    }

    fn has_tasks(&self) -> bool {
        let is_open = || self.instance.looked_at().iter().any(|(lane, _)| lane.is_open());
        let any = !self.instance.followed().is_empty() || !self.instance.ended().is_empty();
        any || !self.instance.replayed().is_empty() || is_open()
    }

    fn is_urgent(&self) -> bool {
        self.instance.wants(MESSAGES) && !self.instance.looked_at().is_empty()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let start = Instant::now();
        self.instance.end_followed();
        // What is under way of messages ends with the communicator.
        drop(std::mem::take(&mut *self.instance.looked_at()));
        while Arc::strong_count(&self.instance) > 1 && start.elapsed() < ENDING {
            self.instance.end_followed();
            std::thread::yield_now();
        }
        // Dropped outside of the lock: the plugin hears of it.
        let lost = std::mem::take(&mut *self.instance.followed());
        drop(lost);
        self.instance.replayed().clear();
        let Instance { plugin, context, calls, stuck, .. } = &*self.instance;
        // Events that are still open belong to work that waits in streams: they are lost.
        calls.close();
        while let Some(function) = calls.any() {
            if start.elapsed() > 2 * ENDING {
                // Nothing is ended that is in use; what does not return may be known already.
                let error = self.current.not_returned(function.name(), 2 * ENDING);
                let level = if stuck.get().is_some() { Level::Info } else { Level::Warn };
                return log::line(level, Subsystem::Profile, &error.to_string());
            }
            std::thread::yield_now();
        }
        let finalized = plugin.turn.take(&self.current).and_then(|_alone| {
            // SAFETY: the function is the plugin's, and nothing of the context is in use any more.
            let end = || unsafe { (plugin.functions.finalize)(*context) };
            checked(&self.current, "finalize", self.current.enter("finalize", end))
        });
        if let Err(error) = finalized {
            log::line(Level::Warn, Subsystem::Profile, &error.to_string());
        }
    }
}

/// The kinds of events below a group of operations.
const BELOW_GROUP: c_int = COLL | P2P | BELOW_OPERATION;
/// The kinds of events below an operation.
const BELOW_OPERATION: c_int = CHANNELS | MESSAGES;
/// The kinds of events of channels, and of parts of them.
const CHANNELS: c_int = KERNEL_CH | KERNEL_PHASE;
/// The kinds of events that are reported where a plugin asks for them.
const REPORTED: c_int = GROUP_API | COLL_API | P2P_API | KERNEL_LAUNCH | GROUP | BELOW_GROUP;

/// A profiler in use by a communicator.
pub(crate) struct Profiler {
    // Dropped before the worker, which waits for it.
    instance: Arc<Instance>,
    worker: Arc<Worker<Keeper>>,
}

impl Profiler {
    /// Starts the profiler of this process for a communicator; `None` if there is none. Blocks
    /// while the plugin starts. If it fails or does not return, the log says so, and there is none.
    pub(crate) fn start(facts: &Facts) -> Option<Self> {
        let plugin = plugin()?;
        match Self::try_start(plugin, facts) {
            Ok(profiler) => {
                let text = format!("{} is used", plugin.label);
                log::line(Level::Info, Subsystem::Profile, &text);
                Some(profiler)
            }
            Err(error) => {
                let text = format!("{}: refused, {error}", plugin.label);
                log::line(Level::Warn, Subsystem::Profile, &text);
                None
            }
        }
    }

    /// Has `fail` called if a call about an event does not return.
    pub(crate) fn watch(&self, fail: impl Fn(&Error) + Send + Sync + 'static) {
        self.instance.fail.get_or_init(|| Box::new(fail));
        watched().push(Arc::downgrade(&self.instance));
    }

    fn try_start(plugin: &'static Plugin<Functions>, facts: &Facts) -> Result<Self> {
        let current = Arc::new(CurrentCall::new(plugin.label.clone(), HINT));
        let (of_thread, facts) = (current.clone(), facts.clone());
        let make = move || {
            let instance = Arc::new(Instance::start(plugin, &of_thread, &facts)?);
            Ok(Keeper { instance, current: of_thread })
        };
        let worker = Worker::start("oxccl-profiler", make, current)?;
        let instance = worker.call(|keeper: &mut Keeper| Ok(keeper.instance.clone()))?;
        Ok(Self { instance, worker: Arc::new(worker) })
    }

    /// Returns who has the messages of the communicator followed.
    pub(crate) fn messages(&self) -> Arc<dyn Watcher> {
        Arc::new(Messages(Arc::downgrade(&self.instance)))
    }

    /// Returns whether the plugin asks for events at present.
    #[inline]
    pub(crate) fn asks(&self) -> bool {
        self.instance.wants(REPORTED)
    }

    /// Begins a group of calls, or a single call; `None` if the plugin asks for no events.
    pub(crate) fn group(&self, depth: u32, captured: bool) -> Option<Calls> {
        let instance = &self.instance;
        if !self.asks() {
            return None;
        }
        // Older versions have no events of calls.
        let api = (instance.plugin.functions.version >= 5).then(|| {
            let body =
                ncclProfilerGroupApi_v5_t { graphCaptured: captured, groupDepth: depth as c_int };
            let event = instance.begin(null_mut(), Body::GroupApi(body));
            event.record(GROUP_START_API_STOP, 0);
            event
        });
        let (instance, worker) = (instance.clone(), self.worker.clone());
        Some(Calls { instance, captured, launched: false, group: OnceCell::new(), api, worker })
    }
}

/// A call, as the parent of its operation; null if it was not reported.
#[derive(Clone, Copy)]
pub(crate) struct Reported(*mut c_void);

impl Default for Reported {
    fn default() -> Self {
        Self(null_mut())
    }
}

// SAFETY: as for events.
unsafe impl Send for Reported {}
// SAFETY: as above.
unsafe impl Sync for Reported {}

/// The events of a communicator's calls in one group.
pub(crate) struct Calls {
    instance: Arc<Instance>,
    captured: bool,
    launched: bool,
    // Ends before the group of calls.
    group: OnceCell<Option<Event>>,
    api: Option<Event>,
    // Ends last, and waits for the events.
    worker: Arc<Worker<Keeper>>,
}

impl Drop for Calls {
    fn drop(&mut self) {
        // Calls that are not launched, for example after an error, end in order, too.
        if !self.launched {
            self.end_calls();
        }
    }
}

impl Calls {
    /// Reports a call.
    pub(crate) fn collective(&self, call: &Call, tag: u64, stream: *mut c_void) -> Reported {
        let below = COLL | BELOW_OPERATION;
        self.call(COLL_API | below, || {
            Body::CollApi(ncclProfilerCollApi_v7_t {
                func: function(call.spec.collective).0.as_ptr(),
                count: call.count as usize,
                datatype: datatype(call.dtype).as_ptr(),
                root: call.spec.root as c_int,
                stream,
                graphCaptured: self.captured,
                userTag: tag,
            })
        })
    }

    /// Reports a call of send or receive.
    pub(crate) fn transfer(&self, transfer: &Transfer, stream: *mut c_void) -> Reported {
        self.call(P2P_API | P2P | BELOW_OPERATION, || {
            Body::P2pApi(ncclProfilerP2pApi_v7_t {
                func: direction(transfer).0.as_ptr(),
                count: transfer.bytes / transfer.dtype.size(),
                datatype: datatype(transfer.dtype).as_ptr(),
                stream,
                graphCaptured: self.captured,
                userTag: 0,
            })
        })
    }

    fn call(&self, kinds: c_int, body: impl FnOnce() -> Body) -> Reported {
        let reports = self.api.is_some() && self.instance.wants(kinds);
        let event = reports.then(|| self.instance.begin(handle(self.api.as_ref()), body()));
        // The call returns; the plugin keeps what its operation refers to.
        Reported(handle(event.as_ref()))
    }

    /// Begins the launch of the calls.
    pub(crate) fn launch(&mut self) {
        self.launched = true;
        self.end_calls();
    }

    fn end_calls(&self) {
        if let Some(api) = &self.api {
            api.record(GROUP_END_API_START, 0);
        }
    }

    /// Begins the launch of one operation; it ends when the result is dropped.
    pub(crate) fn kernel_launch(&self, stream: *mut c_void) -> impl Sized + use<> {
        let reports = self.api.is_some() && self.instance.wants(KERNEL_LAUNCH);
        reports.then(|| {
            let body = Body::KernelLaunch(ncclProfilerKernelLaunch_v5_t { stream });
            self.instance.begin(handle(self.api.as_ref()), body)
        })
    }

    /// Returns whether the plugin asks for the times of channels; `None` if it asks for nothing of
    /// operations.
    pub(crate) fn asks_for_operations(&self) -> Option<bool> {
        self.instance.wants(BELOW_GROUP).then(|| self.instance.wants(CHANNELS))
    }

    /// Has the events of an operation on a GPU end when it has ended. Then `times` tells when each
    /// of its channels began and ended, in ns, if the plugin had asked for that.
    pub(crate) fn follow(
        &self,
        running: Running,
        times: impl FnMut() -> Option<ChannelTimes> + Send + 'static,
    ) {
        self.instance.followed().push_back((running, Box::new(times)));
        self.worker.wake_if_idle();
    }

    /// Begins an operation of the calls that were reported, which are `calls`. `routes` are the
    /// plans and carriers of its collectives, and `channels` returns the numbers of the channels
    /// that carry out one of its collectives or transfers.
    pub(crate) fn operation(
        &self,
        operation: &Operation,
        routes: &[Route],
        channels: &dyn Fn(usize) -> Range<u8>,
        calls: &[Reported],
    ) -> Running {
        self.instance.operation(operation, routes, channels, (self.group(), calls))
    }

    /// Has the events of an operation that a graph on a GPU has captured begin and end with each
    /// run of the graph. The rest is as for [`operation`](Self::operation).
    pub(crate) fn replays(
        &self,
        operation: Operation,
        routes: Vec<Route>,
        calls: &[Reported],
        (numbers, runs): (Vec<Range<u8>>, Box<dyn Replayed>),
    ) {
        let replays = Arc::new(self.replays_of(operation, routes, calls, numbers));
        self.instance.replayed().push(InGraph { replays, runs });
        self.worker.wake_if_idle();
    }

    fn replays_of(
        &self,
        operation: Operation,
        routes: Vec<Route>,
        calls: &[Reported],
        numbers: Vec<Range<u8>>,
    ) -> Replays {
        let of_group = Reported(handle(self.api.as_ref()));
        let (instance, calls) = (Arc::downgrade(&self.instance), calls.to_vec());
        Replays { instance, operation, routes, numbers, of_group, calls }
    }

    /// Begins the group of operations, of which nothing else is asked for.
    pub(crate) fn begin_group(&self) {
        self.group();
    }

    /// Returns the event of the group of operations, which begins with the first of them.
    fn group(&self) -> *mut c_void {
        let begin = || self.instance.begin_group(handle(self.api.as_ref()));
        handle(self.group.get_or_init(begin).as_ref())
    }

    /// Returns who is told of the runs of an operation in host memory: of one, for which its events
    /// begin now, or if a graph captures it, of those of the graph. `None` if nobody is. The rest
    /// is as for [`operation`](Self::operation).
    pub(crate) fn runs(
        &self,
        operation: &Operation,
        routes: Vec<Route>,
        calls: &[Reported],
        captured: bool,
    ) -> Option<Arc<dyn Runs>> {
        if !captured {
            let running = self.operation(operation, &routes, &|_| 0..1, calls);
            return running
                .has_events()
                .then(|| -> Arc<dyn Runs> { Arc::new(OneRun::of(running)) });
        }
        let replays = || -> Arc<dyn Runs> {
            let numbers = vec![0..1; operation.parts()];
            Arc::new(self.replays_of(operation.clone(), routes, calls, numbers))
        };
        self.instance.wants(GROUP | BELOW_GROUP).then(replays)
    }
}
