//! Groups: calls between start and end are checked one by one and launched together.

use crate::cancel::Uncancelled;
use crate::comm::{Communicator, Holder, NO_COLOR, Origin};
use crate::device::{Event, Stream, Told};
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use crate::op::descriptor::Descriptor;
use crate::op::{Call, CallOptions, Operation, Programs, Transfer, Transfers};
use crate::plugin::profiler::{Calls, Reported};
use std::cell::RefCell;
use std::mem::{ManuallyDrop, take};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A call that was checked and waits for the end of its group.
enum Pending {
    /// A whole operation.
    Operation(Submission),
    /// A send or receive, which becomes one operation with the others of its communicator.
    Transfer(Arc<Communicator>, Transfer, Stream, Reported),
    Create(Creation),
}

impl Pending {
    fn comm(&self) -> Option<&Arc<Communicator>> {
        match self {
            Pending::Operation(Submission { comm, .. }) | Pending::Transfer(comm, ..) => Some(comm),
            Pending::Create(_) => None,
        }
    }
}

/// A communicator that is to be made.
pub struct Creation {
    /// The origin of the communicator.
    pub origin: Origin,
    /// The holder that the communicator goes into.
    pub holder: Arc<Holder>,
    /// The holder of the parent, for children.
    pub parent: Option<Arc<Holder>>,
    /// Gives the handle to the caller; false means that there is none for this rank.
    pub finish: Box<dyn FnOnce(Arc<Holder>, bool) -> Result<()>>,
}

/// The outcome of a group or a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launched {
    /// All operations are launched, and all communicators are made.
    Done,
    /// A communicator that does not block is still being made.
    InProgress,
}

#[derive(Default)]
struct Group {
    depth: u32,
    calls: Vec<Pending>,
    /// The events of the calls, for the profilers of the communicators.
    events: Events,
    error: Option<Error>,
    /// True once the log has told of a wait in the group.
    waited: bool,
}

impl Group {
    const NONE: Self = Self {
        depth: 0,
        calls: Vec::new(),
        events: Events(Vec::new()),
        error: None,
        waited: false,
    };
}

/// The events of the communicators of a group that are profiled.
#[derive(Default)]
struct Events(Vec<(Arc<Communicator>, Calls)>);

impl Events {
    /// Returns the events of a communicator, which begin with its first call; `None` if no profiler
    /// asks for any.
    fn of(&mut self, comm: &Arc<Communicator>, depth: u32, stream: &Stream) -> Option<&Calls> {
        let profiler = comm.profiler()?;
        let known = self.0.iter().position(|(known, _)| Arc::ptr_eq(known, comm));
        let at = match known {
            Some(at) => at,
            None => {
                let calls = profiler.group(depth, stream.is_capturing())?;
                self.0.push((comm.clone(), calls));
                self.0.len() - 1
            }
        };
        Some(&self.0[at].1)
    }

    fn find(&self, comm: &Arc<Communicator>) -> Option<&Calls> {
        self.0.iter().find(|(known, _)| Arc::ptr_eq(known, comm)).map(|(_, calls)| calls)
    }

    /// Begins the launch of all calls.
    fn launch(&mut self) {
        self.0.iter_mut().for_each(|(_, calls)| calls.launch());
    }

    /// Submits an operation with the events of its launch, and of its run, or those of the graph
    /// that captures it.
    fn submit(
        &self,
        comm: &Arc<Communicator>,
        operation: Operation,
        (stream, others): (&Stream, &[Stream]),
        reported: &[Reported],
        inline: bool,
    ) -> Result<()> {
        let executor = comm.executor();
        let submit = |operation, told: Told<'_>| match operation {
            Operation::Exchange(_) | Operation::Batch(_) => {
                executor.submit_on_all(operation, stream, others, told)
            }
            operation => executor.submit(operation, stream, inline, told),
        };
        let Some(calls) = self.find(comm) else { return submit(operation, Told::Nobody) };
        let _launch = calls.kernel_launch(stream.id());
        let (captured, is_host) = (stream.is_capturing(), comm.device().is_host());
        let asks = calls.asks_for_operations();
        if asks.is_none() && !(is_host && captured) {
            calls.begin_group();
            return submit(operation, Told::Nobody);
        }
        let likely = |(programs, call): (&Arc<Programs>, &Call)| {
            let bound = comm.likely(programs, call).0;
            (bound.plan.algorithm, bound.carrier)
        };
        let routes: Vec<_> = operation.collectives().map(likely).collect();
        if is_host {
            let runs = calls.runs(&operation, routes, reported, captured);
            return submit(operation, runs.map_or(Told::Nobody, Told::Runs));
        }
        let report = |operation: &Operation, channels: &dyn Fn(usize) -> Range<u8>| {
            calls.operation(operation, &routes, channels, reported)
        };
        let Some(blocks) = executor.timed_blocks(stream, asks.unwrap_or_default()) else {
            return submit(operation, Told::Nobody);
        };
        let number = executor.next_number();
        // How many channels there are is known once the operation is launched.
        let submitted = submit(operation.clone(), Told::Blocks(&blocks));
        if captured {
            if submitted.is_ok() && !blocks.have_times() {
                // Nothing tells of its runs.
                drop(report(&operation, &|_| 0..0));
            }
            let numbers = (0..operation.parts()).map(|part| blocks.of(part)).collect();
            if let Some(runs) = blocks.into_captured() {
                calls.replays(operation, routes, reported, (numbers, Box::new(runs)));
            }
            return submitted;
        }
        submitted?;
        let running = report(&operation, &|part| blocks.of(part));
        let needs_mark = blocks.need_mark();
        let marks = needs_mark && (running.has_events() || blocks.have_slot());
        let end = if marks { executor.mark(stream) } else { None };
        // Without events it is followed for the place of its times.
        if needs_mark == end.is_some() {
            running.called(number);
            let (rank, mut times) = (executor.rank().clone(), blocks.times(end));
            // What fails may never have begun.
            let is_over = move || rank.failure().map(|_| Vec::new());
            calls.follow(running, move || times().or_else(&is_over));
        }
        Ok(())
    }
}

/// A guard that drops the calls of a group that its thread did not end, when the thread ends.
struct Unended;

impl Drop for Unended {
    fn drop(&mut self) {
        // Dropped outside the borrow: a call may hold the last reference to a communicator.
        drop(GROUP.with_borrow_mut(|g| take(&mut **g)));
    }
}

thread_local! {
    /// The group of the thread. Never dropped itself: calls and groups work in exit handlers, too.
    static GROUP: RefCell<ManuallyDrop<Group>> =
        const { RefCell::new(ManuallyDrop::new(Group::NONE)) };
    static UNENDED: Unended = const { Unended };
}

/// Begins a group; groups nest.
pub fn start() {
    // In exit handlers the guard is gone already.
    let _ = UNENDED.try_with(|_| ());
    GROUP.with_borrow_mut(|g| g.depth += 1);
}

/// Returns whether this thread is within a group.
pub fn active() -> bool {
    GROUP.with_borrow(|g| g.depth > 0)
}

/// Logs, once for a group, that a function of the C interface waits in it, though its calls only
/// begin at its end.
pub fn warn_of_wait(function: &str) {
    let count = GROUP.with_borrow_mut(|g| {
        let is_news = !g.waited && !g.calls.is_empty();
        g.waited |= is_news;
        is_news.then_some(g.calls.len())
    });
    if let Some(count) = count {
        let text = format!(
            "{function} waits in a group, whose calls ({count}) begin at ncclGroupEnd: is that missing?"
        );
        log::line(Level::Warn, Subsystem::Coll, &text);
    }
}

/// Fails if the group of this thread, which is not ended yet, has calls of a communicator.
pub fn refuse_end(comm: &Arc<Communicator>, function: &str) -> Result<()> {
    let calls = |g: &Group| {
        let of = g.calls.iter().filter_map(Pending::comm);
        of.filter(|of| Arc::ptr_eq(of, comm)).count()
    };
    let count = GROUP.with_borrow(|g| calls(g));
    if count == 0 {
        return Ok(());
    }
    let what = format!("{function} in a group that has calls ({count}) of the communicator");
    Err(Error::usage(what, "call ncclGroupEnd before, at which they begin"))
}

/// Notes that a call of the group failed: nothing of the group is launched then.
pub fn note_error(error: &Error) {
    GROUP.with_borrow_mut(|g| {
        if g.depth > 0 {
            g.error.get_or_insert_with(|| error.clone());
        }
    });
}

/// Ends a group; the outermost end launches. Blocks: for communicators that are made, and for the
/// memory of the first large operation of one on a GPU.
pub fn end() -> Result<Launched> {
    match leave()? {
        Some((calls, events)) => launch(calls, events),
        None => Ok(Launched::Done),
    }
}

/// Launches the calls of a group. After a panic it is unknown which calls were launched, so the
/// communicators of all calls fail.
fn launch(calls: Vec<Pending>, mut events: Events) -> Result<Launched> {
    events.launch();
    let mut comms: Vec<Arc<Communicator>> = Vec::new();
    for comm in calls.iter().filter_map(Pending::comm) {
        if !comms.iter().any(|known| Arc::ptr_eq(known, comm)) {
            comms.push(comm.clone());
        }
    }
    let fail = |error: &Error| comms.iter().for_each(|comm| comm.fail(error.clone()));
    let launched = catch_unwind(AssertUnwindSafe(|| Prepared::new(calls)?.launch(&events, fail)));
    launched.unwrap_or_else(|panic| {
        let error = Error::panicked(&*panic);
        fail(&error);
        Err(error)
    })
}

/// Ends a group without launching anything: all calls are checked, and the outermost end returns
/// the time in µs that the calls would take by the cost model. The operations of a communicator run
/// one after the other, those of several communicators side by side. A group that makes
/// communicators is refused, and none is made. Blocks: never.
pub fn simulate_end() -> Result<Option<f64>> {
    leave()?.map(|(calls, _)| Prepared::new(calls)?.estimate_us()).transpose()
}

/// Leaves a group; returns the calls when the group is the outermost.
fn leave() -> Result<Option<(Vec<Pending>, Events)>> {
    crate::fork::check()?;
    let group = GROUP.with_borrow_mut(|g| {
        if g.depth == 0 {
            let what = "ncclGroupEnd without ncclGroupStart";
            return Err(Error::usage(what, "balance the calls"));
        }
        g.depth -= 1;
        Ok((g.depth == 0).then(|| take(&mut **g)))
    })?;
    match group {
        Some(Group { error: Some(error), .. }) => Err(error),
        group => Ok(group.map(|group| (group.calls, group.events))),
    }
}

/// Calls a collective; outside groups it is submitted at once. The calling thread may be one that
/// is to be cancelled: it is not, up to the end of the call.
#[inline]
pub fn collective(comm: &Arc<Communicator>, call: &Call, stream: impl Into<Stream>) -> Result<()> {
    let (programs, stream) = (comm.programs(call)?, stream.into());
    if !active() && !comm.is_profiled() {
        return Ok(comm.executor().launch(&programs, call, &stream)?);
    }
    let _whole = Uncancelled::begin();
    operation(comm, Operation::Collective(programs.into_owned(), *call), stream)
}

/// Calls a collective with options, as [`collective`] does. The event is recorded on the stream
/// behind the call. Fails if the options cannot be satisfied.
pub fn collective_under(
    comm: &Arc<Communicator>,
    call: &Call,
    options: CallOptions,
    (stream, event): (Stream, Option<Event>),
) -> Result<()> {
    if options.limit.is_some() && !comm.device().is_host() {
        let what = "a call on a GPU has no deadline of its own";
        return Err(Error::usage(what, "limit all of them by oxcclCommSetTimeout"));
    }
    let operation = Operation::Collective(comm.programs_under(call, options)?, *call);
    submit_or_wait(comm, operation, (stream, event))
}

/// Calls an operation; outside groups it is submitted at once. It is never combined with other
/// sends and receives of its group.
#[inline]
pub fn operation(
    comm: &Arc<Communicator>,
    operation: impl Into<Operation>,
    stream: impl Into<Stream>,
) -> Result<()> {
    let (operation, stream) = (operation.into(), stream.into());
    if !active() && !comm.is_profiled() {
        return comm.executor().submit(operation, &stream, true, Told::Nobody);
    }
    submit_or_wait(comm, operation, (stream, None))
}

/// Submits an operation, or keeps it for the end of this thread's group.
fn submit_or_wait(
    comm: &Arc<Communicator>,
    operation: Operation,
    (stream, event): (Stream, Option<Event>),
) -> Result<()> {
    let report = |calls: &Calls| match &operation {
        Operation::Collective(programs, call) => {
            vec![calls.collective(call, programs.options.tag, stream.id())]
        }
        Operation::Exchange(transfers) => {
            let transfers = transfers.list.iter();
            transfers.map(|transfer| calls.transfer(transfer, stream.id())).collect()
        }
        // Only groups have batches, and they make them when all was reported.
        Operation::Batch(_) | Operation::OneSided(_) => Vec::new(),
    };
    if !active() {
        let mut events = Events::default();
        let reported = events.of(comm, 1, &stream).map(report).unwrap_or_default();
        events.launch();
        events.submit(comm, operation, (&stream, &[]), &reported, true)?;
        return event.map_or(Ok(()), |event| stream.record(event, RECORDS));
    }
    let (comm, reported) = (comm.clone(), reported(comm, &stream, report));
    let (stream, event) = (stream.into_owned(), event.map(|event| (0, event)));
    let others = Vec::new();
    let submission = Submission { comm, operation, stream, others, reported, event };
    GROUP.with_borrow_mut(|g| g.calls.push(Pending::Operation(submission)));
    Ok(())
}

/// The function that records the event of a call.
const RECORDS: &str = "launchCompletionEvent";

/// Tells the profiler of a communicator, if it has one, of a call in this thread's group. Nothing
/// is borrowed meanwhile, as the plugin may do what it likes.
fn reported<T: Default>(
    comm: &Arc<Communicator>,
    stream: &Stream,
    report: impl FnOnce(&Calls) -> T,
) -> T {
    if !comm.is_profiled() {
        return T::default();
    }
    // A call without a group is one of its own, as with NCCL.
    let (mut events, depth) = GROUP.with_borrow_mut(|g| (take(&mut g.events), g.depth + 1));
    let reported = events.of(comm, depth, stream).map(report).unwrap_or_default();
    GROUP.with_borrow_mut(|g| g.events = events);
    reported
}

/// Calls a send or receive; outside groups it is a group of its own.
pub fn transfer(
    comm: &Arc<Communicator>,
    transfer: Transfer,
    stream: impl Into<Stream>,
) -> Result<()> {
    let stream = stream.into().into_owned();
    let report = |calls: &Calls| calls.transfer(&transfer, stream.id());
    if !active() {
        let mut events = Events::default();
        let reported = events.of(comm, 1, &stream).map(report).unwrap_or_default();
        let call = Pending::Transfer(comm.clone(), transfer, stream, reported);
        return launch(vec![call], events).map(drop);
    }
    let reported = reported(comm, &stream, report);
    let pending = Pending::Transfer(comm.clone(), transfer, stream, reported);
    GROUP.with_borrow_mut(|g| g.calls.push(pending));
    Ok(())
}

/// Makes a communicator; within a group at the end of the group, together with its other
/// communicators.
pub fn create_communicator(creation: Creation) -> Result<Launched> {
    crate::fork::check()?;
    if !active() {
        return create_all(vec![creation]);
    }
    GROUP.with_borrow_mut(|g| g.calls.push(Pending::Create(creation)));
    Ok(Launched::Done)
}

/// An operation of a group.
struct Submission {
    comm: Arc<Communicator>,
    operation: Operation,
    /// The stream of the first call, which runs the operation.
    stream: Stream,
    /// The other streams of its calls, each once.
    others: Vec<Stream>,
    /// The calls as a profiler was told of them.
    reported: Vec<Reported>,
    /// The event that is recorded behind the operation, and the place of its stream.
    event: Option<(usize, Event)>,
}

impl Submission {
    /// Adds another collective, which runs together with those of this operation.
    fn add(&mut self, other: Self) -> Result<()> {
        let Self { operation, stream, reported, event, .. } = other;
        self.operation.batch(operation)?;
        self.reported.extend(reported);
        let mut known = std::iter::once(&self.stream).chain(&self.others);
        let known = known.position(|known| *known == stream);
        let at = known.unwrap_or(self.others.len() + 1);
        if known.is_none() {
            self.others.push(stream);
        }
        self.event = self.event.take().or(event.map(|(_, event)| (at, event)));
        Ok(())
    }
}

/// Makes batches of the collectives of each communicator that run together. Calls of a group have
/// no order among each other; what is between two collectives is not the same on all ranks.
fn batches(operations: Vec<Submission>) -> Result<Vec<Submission>> {
    let mut batches: Vec<Submission> = Vec::with_capacity(operations.len());
    for submission in operations {
        let is_before = |known: &&mut Submission| {
            Arc::ptr_eq(&known.comm, &submission.comm)
                && known.operation.collectives().next().is_some()
        };
        let is_one = matches!(submission.operation, Operation::Collective(..));
        let latest = is_one.then(|| batches.iter_mut().rfind(is_before)).flatten();
        let executor = submission.comm.executor();
        let fits =
            |known: &&mut Submission| executor.can_batch(&known.operation, &submission.operation);
        match latest.filter(fits) {
            Some(known) => known.add(submission)?,
            None => batches.push(submission),
        }
    }
    for Submission { stream, others, .. } in &batches {
        check_streams(stream, others)?;
    }
    Ok(batches)
}

/// Fails if only some of the streams of one operation are captured.
fn check_streams(first: &Stream, others: &[Stream]) -> Result<()> {
    let captured = |stream: &Stream| stream.is_capturing();
    if !others.is_empty() && others.iter().any(|other| captured(other) != captured(first)) {
        let what =
            "calls of a group that run together are on streams of which only some are captured";
        return Err(Error::usage(what, "capture all of them, or none"));
    }
    Ok(())
}

/// Submits operations in their order, and collects their streams.
fn submit(operations: Vec<Submission>, events: &Events, launched: &mut Vec<Stream>) -> Result<()> {
    for Submission { comm, operation, stream, others, reported, event } in operations {
        events.submit(&comm, operation, (&stream, &others), &reported, false)?;
        if let Some((at, event)) = event {
            let on = if at == 0 { &stream } else { &others[at - 1] };
            Stream::from(on).record(event, RECORDS)?;
        }
        launched.push(stream);
    }
    Ok(())
}

/// Fails if a communicator has more than one call with an event.
fn check_events(operations: &[Submission]) -> Result<()> {
    let with = |s: &&Submission| s.event.is_some();
    for (i, one) in operations.iter().enumerate().filter(|(_, s)| with(s)) {
        if operations[..i].iter().filter(with).any(|s| Arc::ptr_eq(&s.comm, &one.comm)) {
            let what = "two calls of a group have a launchCompletionEvent on one communicator";
            return Err(Error::usage(what, "give one of them an event, or end the group between"));
        }
    }
    Ok(())
}

/// The calls of a group, checked and ready.
#[derive(Default)]
struct Prepared {
    creations: Vec<Creation>,
    /// Whole operations, in the order of calls.
    operations: Vec<Submission>,
    /// The sends and receives of each communicator.
    exchanges: Vec<Exchange>,
}

impl Prepared {
    /// Checks all calls before any is launched.
    fn new(calls: Vec<Pending>) -> Result<Self> {
        let mut prepared = Self::default();
        let Self { creations, operations, exchanges } = &mut prepared;
        for call in calls {
            match call {
                Pending::Create(creation) => creations.push(creation),
                Pending::Operation(submission) => operations.push(submission),
                Pending::Transfer(comm, transfer, stream, reported) => {
                    let known = exchanges.iter().position(|e| Arc::ptr_eq(&e.comm, &comm));
                    let at = known.unwrap_or_else(|| {
                        exchanges.push(Exchange::new(comm));
                        exchanges.len() - 1
                    });
                    exchanges[at].add(transfer, stream, reported);
                }
            }
        }
        exchanges.iter().try_for_each(Exchange::check)?;
        check_events(operations)?;
        *operations = batches(take(operations))?;
        Ok(prepared)
    }

    /// Makes the communicators, then launches the rest. If a part of the group is launched and the
    /// rest cannot be, or if the memory of a call does not come, calls `fail`, by which the
    /// communicators of all calls fail: the peers wait for the whole group.
    fn launch(mut self, events: &Events, fail: impl Fn(&Error)) -> Result<Launched> {
        let created = create_all(take(&mut self.creations))?;
        let ready = self.await_memory();
        if let Err(error) = &ready
            && !self.is_captured()
        {
            fail(error);
        }
        ready?;
        let mut launched = Vec::new();
        let outcome = self.launch_calls(events, &mut launched);
        if let Err(error) = &outcome
            && launched.first().is_some_and(|stream| !stream.is_capturing())
        {
            fail(error);
        }
        outcome.map(|()| created)
    }

    /// Returns whether the first call is captured, and so all of them.
    fn is_captured(&self) -> bool {
        let first = self.operations.first().map(|s| &s.stream);
        let first = first.or(self.exchanges.first().and_then(|e| e.streams.first()));
        first.is_some_and(Stream::is_capturing)
    }

    /// Waits for the memory of all operations, before a peer waits for a part of the group.
    fn await_memory(&self) -> Result<()> {
        let mut operations = self.operations.iter();
        operations.try_for_each(|s| s.comm.executor().prepare(&s.operation))?;
        let mut exchanges = self.exchanges.iter();
        exchanges.try_for_each(|e| e.comm.executor().prepare_messages(&e.transfers))
    }

    /// Launches collectives and puts first, in the order of calls, then the transfers of each
    /// communicator as one operation, then waits for signals, which must not delay operations that
    /// the peer waits for. Collects the streams on which something was launched.
    fn launch_calls(self, events: &Events, launched: &mut Vec<Stream>) -> Result<()> {
        let waits = |operation: &Operation| operation.only_waits();
        let (last, first): (Vec<_>, Vec<_>) =
            self.operations.into_iter().partition(|submission| waits(&submission.operation));
        submit(first, events, launched)?;
        for Exchange { comm, transfers, mut streams, reported } in self.exchanges {
            let transfers = Transfers { operation: "send/recv", list: transfers };
            let first = streams.swap_remove(0);
            events.submit(&comm, transfers.into(), (&first, &streams), &reported, true)?;
            launched.push(first);
        }
        // A wait that is refused leaves no peer waiting for the rest of the group.
        let mut waiting = Vec::new();
        submit(last, events, &mut waiting)?;
        // Advances the launched operations for a moment, as a single call would.
        launched.iter().chain(&waiting).take(64).for_each(Stream::nudge);
        Ok(())
    }

    fn estimate_us(&self) -> Result<f64> {
        if !self.creations.is_empty() {
            let what = "a group that makes communicators has no estimate; none was made";
            return Err(Error::usage(what, "make them outside the group to simulate"));
        }
        let operations = self.operations.iter();
        let operations = operations.map(|Submission { comm, operation, .. }| {
            (comm, comm.estimate_operation_us(operation))
        });
        let exchanges =
            self.exchanges.iter().map(|e| (&e.comm, e.comm.estimate_exchange_us(&e.transfers)));
        let mut sums: Vec<(&Arc<Communicator>, f64)> = Vec::new();
        for (comm, time_us) in operations.chain(exchanges) {
            match sums.iter_mut().find(|(known, _)| Arc::ptr_eq(known, comm)) {
                Some((_, sum)) => *sum += time_us,
                None => sums.push((comm, time_us)),
            }
        }
        Ok(sums.into_iter().map(|(_, sum)| sum).fold(0.0, f64::max))
    }
}

/// The sends and receives of one communicator.
struct Exchange {
    comm: Arc<Communicator>,
    transfers: Vec<Transfer>,
    /// The streams of the calls, each once. The first stream runs the transfers.
    streams: Vec<Stream>,
    /// The calls of the transfers as a profiler knows them.
    reported: Vec<Reported>,
}

impl Exchange {
    fn new(comm: Arc<Communicator>) -> Self {
        let (transfers, streams, reported) = Default::default();
        Self { comm, transfers, streams, reported }
    }

    fn add(&mut self, transfer: Transfer, stream: Stream, reported: Reported) {
        self.transfers.push(transfer);
        self.reported.push(reported);
        if !self.streams.contains(&stream) {
            self.streams.push(stream);
        }
    }

    /// Checks that messages of a rank to itself have their other half in the same group, and that
    /// all or none of the streams are captured.
    fn check(&self) -> Result<()> {
        let rank = self.comm.rank();
        if let Some((first, others)) = self.streams.split_first() {
            check_streams(first, others)?;
        }
        let own = |send: bool| {
            let of = move |t: &&Transfer| t.peer == rank && t.send == send;
            let message = |t: &Transfer| Descriptor::message(t.dtype, t.bytes as u64).to_string();
            self.transfers.iter().filter(of).map(message).collect::<Vec<_>>()
        };
        let (sent, received) = (own(true), own(false));
        if sent != received {
            let list = |of: Vec<String>| match of.is_empty() {
                true => "nothing".to_owned(),
                false => of.join(", "),
            };
            let (sent, received) = (list(sent), list(received));
            let what = format!("rank {rank} sends to itself {sent}, and receives {received}");
            let hint = "a send to itself needs an equal receive in the same group";
            return Err(Error::usage(what, hint));
        }
        Ok(())
    }
}

/// Makes communicators side by side, as their ranks may wait for each other. Communicators that do
/// not block are made in threads of their own.
fn create_all(creations: Vec<Creation>) -> Result<Launched> {
    let (blocking, others): (Vec<_>, Vec<_>) =
        creations.into_iter().partition(|c| c.holder.options().blocking);
    let launched = if others.is_empty() { Launched::Done } else { Launched::InProgress };
    for Creation { origin, holder, parent, finish } in others {
        let member = !matches!(origin, Origin::Split { color: NO_COLOR, .. });
        finish(holder.clone(), member)?;
        holder.start(parent, move |holder| holder.make(&origin).map(drop))?;
    }
    if let [_] = &blocking[..] {
        for Creation { origin, holder, finish, .. } in blocking {
            let member = holder.make(&origin)?;
            finish(holder, member)?;
        }
        return Ok(launched);
    }
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = blocking
            .iter()
            .map(|c| (c.holder.clone(), &c.origin))
            .map(|(holder, origin)| scope.spawn(move || holder.make(origin)))
            .collect();
        let panicked = || Error::Internal { what: "making a communicator panicked".to_owned() };
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    let mut outcome = Ok(launched);
    for (Creation { holder, finish, .. }, result) in blocking.into_iter().zip(results) {
        let result = result.and_then(|member| finish(holder, member));
        if outcome.is_ok() {
            outcome = result.map(|()| launched);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap;
    use crate::comm::{Member, Options, create};
    use crate::device::Device;
    use crate::device::host::stream::Stream as HostStream;
    use oxccl_plan::{Collective, DataType, ReduceOp, Spec};

    /// Returns a communicator of one rank.
    fn alone() -> Arc<Communicator> {
        let id = bootstrap::new_unique_id().unwrap();
        let (device, options) = (Device::Host(0), Options::default());
        Arc::new(create(&Member { id, rank: 0, nranks: 1, device, options }).unwrap())
    }

    /// Returns an all-reduce of no elements.
    fn call(nranks: u32) -> Call {
        let spec = Spec::new(Collective::AllReduce, nranks, 0);
        let (input, output) = (std::ptr::null(), std::ptr::null_mut());
        let (dtype, op) = (DataType::Int8, ReduceOp::Sum);
        Call { spec, input, output, count: 0, dtype, op, scale: None }
    }

    #[test]
    fn a_communicator_does_not_end_in_a_group_that_has_calls_of_it() {
        let (comm, other, stream) = (alone(), alone(), HostStream::new());
        start();
        collective(&comm, &call(1), &stream).unwrap();
        let error = refuse_end(&comm, "ncclCommDestroy").unwrap_err().to_string();
        assert!(error.contains("ncclCommDestroy in a group that has calls (1) of"), "{error}");
        refuse_end(&other, "ncclCommDestroy").unwrap();
        end().unwrap();
        refuse_end(&comm, "ncclCommDestroy").unwrap();
        assert!(stream.synchronize(None).unwrap());
    }

    #[test]
    fn a_group_that_panics_fails_its_communicators_and_the_next_one_works() {
        let (comm, other, stream) = (alone(), alone(), HostStream::new());
        let device = Device::Host(0);
        let holder = Arc::new(Holder::new(device, Options::default()));
        let origin = Origin::Id { id: bootstrap::new_unique_id().unwrap(), rank: 0, nranks: 1 };
        let finish = Box::new(|_: Arc<Holder>, _: bool| -> Result<()> { panic!("half done") });
        start();
        collective(&comm, &call(1), &stream).unwrap();
        create_communicator(Creation { origin, holder, parent: None, finish }).unwrap();
        let error = end().unwrap_err().to_string();
        assert!(error.contains("a panic: half done"), "{error}");
        let failure = comm.failure().expect("it failed").to_string();
        assert!(failure.contains("a panic: half done"), "{failure}");
        assert!(other.failure().is_none(), "it had no part in it");
        start();
        collective(&other, &call(1), &stream).unwrap();
        assert_eq!(end().unwrap(), Launched::Done);
        assert!(stream.synchronize(None).unwrap());
    }

    #[test]
    fn what_no_plan_serves_is_an_error_also_where_it_is_only_estimated() {
        let (comm, stream) = (alone(), HostStream::new());
        start();
        collective(&comm, &call(1), &stream).unwrap();
        assert!(simulate_end().unwrap().is_some_and(|time_us| time_us >= 0.0));
        start();
        let error = collective(&comm, &call(0), &stream).unwrap_err();
        assert!(error.to_string().contains("no plan serves"), "{error}");
        note_error(&error);
        assert!(simulate_end().is_err());
    }
}
