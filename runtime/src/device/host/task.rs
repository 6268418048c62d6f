//! Work as it is called or captured, and tasks, which are work under way.

use super::collective::{self, Budget, Position, Visit};
use super::endpoint::Endpoint;
use super::event::Record;
use super::exchange::Exchange;
use super::graph::{Graph, GraphRun};
use super::one_sided::OneSidedTask;
use super::suspicion::suspect;
use super::worker;
use crate::cancel::Uncancelled;
use crate::clock;
use crate::error::{Error, Quick, Result, Site};
use crate::log::{self, Level, Subsystem};
use crate::op::follow::Runs;
use crate::op::{Address, Call, Operation, Programs};
use crate::rank::agreement::{CurrentOp, look_around, tell};
use crate::rank::{Awaited, LEFT, Rank, VERDICT};
use crate::recorder::{Called, What};
use oxccl_plan::generate::Needs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The time in a wait between two looks whether a peer's other calls show that the wait cannot end.
const LONG: Duration = Duration::from_secs(1);

/// The longest time that a failed operation waits for peers that are writing into its memory.
pub(super) const WRITERS: Duration = Duration::from_secs(1);

/// The longest time after a failure that an operation waits for its turn: those before it end
/// within a second each, unless the thread that runs one does not return from a profiler.
const TURN: Duration = Duration::from_secs(5);

/// Visits without progress between two looks at the peers.
const IDLE_VISITS: u32 = 64;

/// Bytes that a copy moves before other work gets a turn.
const STRETCH_BYTES: usize = 1 << 20;

/// A function of the user and its argument.
#[derive(Clone, Copy)]
pub struct HostFunction {
    /// The function.
    pub function: unsafe extern "C" fn(*mut std::ffi::c_void),
    /// The argument of the function.
    pub argument: Address,
}

/// Work that a stream can be asked to do; a template that graphs replay.
#[derive(Clone)]
pub enum Work {
    /// An operation of a communicator, and who is told of its runs.
    Operation(Arc<Endpoint>, Operation, Option<Arc<dyn Runs>>),
    /// A copy of this many bytes from the second address to the first.
    Copy(Address, Address, usize),
    /// A fill of this many bytes.
    Set(Address, u8, usize),
    /// A record of an event.
    Record(Arc<Record>),
    /// A wait for a record of an event.
    Wait(Arc<Record>),
    /// A call of a function.
    Function(HostFunction),
    /// A run of a graph.
    Graph(Arc<Graph>),
}

impl Work {
    /// Returns the communicator that the work belongs to.
    pub fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        match self {
            Work::Operation(endpoint, ..) => Some(endpoint),
            _ => None,
        }
    }

    /// Calls a function with each rank whose profiler is told of this work, and may not return.
    pub fn each_told(&self, each: &mut dyn FnMut(&Arc<Rank>)) {
        match self {
            Work::Operation(endpoint, _, Some(_)) => each(&endpoint.rank),
            Work::Graph(graph) => graph.works().for_each(|work| work.each_told(each)),
            _ => {}
        }
    }

    /// Returns the work's name, type and reduction, without its buffers, counts and roots.
    fn kind(&self) -> String {
        match self {
            Work::Operation(_, Operation::Collective(_, call), _) => {
                let mut kind = format!("{} of {}", call.spec.collective.name(), call.dtype.name());
                if call.spec.collective.reduces() {
                    kind = format!("{kind}, {}", call.op.name());
                }
                kind
            }
            Work::Operation(_, operation, _) => operation.name().to_owned(),
            Work::Copy(..) => "a copy".to_owned(),
            Work::Set(..) => "a memset".to_owned(),
            Work::Record(..) => "a record of an event".to_owned(),
            Work::Wait(..) => "a wait for an event".to_owned(),
            Work::Function(_) => "a host function".to_owned(),
            Work::Graph(_) => "a graph".to_owned(),
        }
    }

    /// Returns why this work is not the work `of` a graph with other parameters: what it is, and
    /// what that is. `None` if only parameters differ.
    pub fn difference(&self, of: &Work) -> Option<(String, String)> {
        let (got, expected) = (self.kind(), of.kind());
        if got != expected {
            return Some((got, expected));
        }
        let same = self.endpoint().map(Arc::as_ptr) == of.endpoint().map(Arc::as_ptr);
        let of_another = || (format!("{got} of another communicator"), expected);
        (!same).then(of_another)
    }
}

/// The error of a task that has failed.
pub struct Failed {
    error: Error,
    /// The rank whose operation it was, if it was one.
    rank: Option<Weak<Rank>>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, rank: None }
    }
}

impl Failed {
    /// Returns the error for the user, and notes that the user is told of it: until then, the end
    /// of the communicator tells of it as well.
    pub fn tell(self) -> Error {
        let rank = self.rank.and_then(|rank| rank.upgrade());
        rank.iter().for_each(|rank| rank.set_delivered());
        self.error
    }
}

/// The result of a step.
pub enum Step {
    /// The task is complete, or failed.
    Done(std::result::Result<(), Failed>),
    /// The task waits.
    Waiting {
        /// True if this step made progress.
        moved: bool,
    },
}

enum Kind {
    Collective(collective::Running),
    Exchange(Exchange),
    OneSided(OneSidedTask),
}

/// Work under way.
pub enum Task {
    /// An operation of a communicator under way.
    Running(Box<Running>),
    /// A collective that its stream has not reached yet, with its number, and who is told of it.
    Called(Arc<Endpoint>, Arc<Programs>, Call, Called, Option<Arc<dyn Runs>>),
    /// A [`Work::Copy`] under way; the last number is the number of bytes that are done.
    Copy(Address, Address, usize, usize),
    /// A [`Work::Set`] under way; the last number is the number of bytes that are done.
    Set(Address, u8, usize, usize),
    /// Work that is not carried out, and why.
    Abandoned(Error),
    /// A [`Work::Record`].
    Record(Arc<Record>),
    /// A [`Work::Wait`].
    Wait(Arc<Record>),
    /// A [`Work::Function`]; the flag is set once the function has returned.
    Function(HostFunction, Option<Arc<AtomicBool>>),
    /// A [`Work::Graph`] under way.
    Graph(Box<GraphRun>),
}

/// An operation of a communicator under way.
pub struct Running {
    endpoint: Arc<Endpoint>,
    number: u64,
    kind: Kind,
    /// The call and the operation, until they are recorded at the first visit.
    to_begin: Option<(Called, What)>,
    /// The listener to its run, until that begins.
    runs: Option<Arc<dyn Runs>>,
    /// The guard of its run, which is dropped at the end, if there is a listener.
    run: Option<Box<dyn Send>>,
    /// True once it is recorded that nothing has moved since then.
    recorded: bool,
    waiting_since: Option<Instant>,
    /// Visits without progress since then.
    idle_visits: u32,
    /// The time of the last close look at why the operation waits.
    looked: Option<Instant>,
    /// True if that look gave rise to a suspicion.
    suspicion: bool,
    /// The operation's error and the time of it, while peers may still write into its memory.
    ending: Option<(Instant, Error)>,
    /// The error of a link that broke, and the time when it broke.
    broken: Option<(Instant, Error)>,
}

impl Task {
    /// Starts work of the stream with this number. Operations of communicators take their numbers
    /// here, in the order of calls.
    pub fn start(work: Work, stream: usize) -> Result<Self> {
        Ok(match work {
            Work::Operation(endpoint, operation, runs) => {
                Self::operation(endpoint, operation, stream, runs)
            }
            Work::Copy(to, from, bytes) => Task::Copy(to, from, bytes, 0),
            Work::Set(to, value, bytes) => Task::Set(to, value, bytes, 0),
            Work::Record(record) => Task::Record(record),
            Work::Wait(record) => Task::Wait(record),
            Work::Function(function) => Task::Function(function, None),
            Work::Graph(graph) => Task::Graph(Box::new(GraphRun::start(&graph)?)),
        })
    }

    /// Starts an operation of a communicator, as [`start`](Self::start) does. The state that a
    /// collective needs to run is made when its stream reaches it.
    pub fn operation(
        endpoint: Arc<Endpoint>,
        operation: Operation,
        stream: usize,
        runs: Option<Arc<dyn Runs>>,
    ) -> Self {
        let what = What::of(&operation);
        let kind = match operation {
            Operation::Collective(programs, call) => {
                let called = endpoint.rank.recorder.call(&what, stream);
                return Task::Called(endpoint, programs, call, called, runs);
            }
            Operation::Batch(_) => unreachable!("only GPUs have batches"),
            Operation::Exchange(transfers) => {
                let Rank { number, nranks, .. } = *endpoint.rank;
                Kind::Exchange(Exchange::new(number, nranks, &transfers))
            }
            Operation::OneSided(item) => Kind::OneSided(OneSidedTask::new(item)),
        };
        // Last: a number that is taken has to come to its end.
        let called = endpoint.rank.recorder.call(&what, stream);
        Task::Running(Box::new(Running::new(endpoint, (called, what), kind, runs)))
    }

    /// Gives up work that has not begun: what it does by itself, it does no more, the communicator
    /// of an operation fails, as its turn never comes, and who waits for an event goes on, as after
    /// any operation that has failed.
    pub(super) fn abandon(&mut self, error: &Error) {
        match self {
            Task::Copy(..) | Task::Set(..) | Task::Function(_, None) => {
                *self = Task::Abandoned(error.clone());
            }
            Task::Called(endpoint, ..) => endpoint.rank.fail(error.clone()),
            Task::Running(operation) => operation.endpoint.rank.fail(error.clone()),
            Task::Record(record) => record.reach(),
            Task::Graph(graph) => graph.abandon(error),
            _ => {}
        }
    }

    /// Advances the task. A task that panics fails, and its communicator with it; neither the
    /// thread that happens to run the task nor its stream ends. Blocks: never, but less than a
    /// second for a plugin whose network uses the memory of an operation that has failed.
    pub fn step(&mut self, budget: Budget) -> Step {
        catch_unwind(AssertUnwindSafe(|| self.go_on(budget))).unwrap_or_else(|panic| {
            let error = Error::panicked(&*panic);
            match self {
                Task::Running(operation) => operation.conclude(error),
                _ => Step::Done(Err(error.into())),
            }
        })
    }

    fn go_on(&mut self, budget: Budget) -> Step {
        if let Task::Called(endpoint, programs, call, called, runs) = self {
            let what = What::collective(programs, call);
            let running = collective::Running::new(endpoint, programs.clone(), call);
            let (recorded, kind) = ((*called, what), Kind::Collective(running));
            let operation = Running::new(endpoint.clone(), recorded, kind, runs.take());
            *self = Task::Running(Box::new(operation));
        }
        match self {
            Task::Running(operation) => operation.step(budget),
            // The task has just become an operation.
            Task::Called(..) => Step::Waiting { moved: true },
            Task::Copy(to, from, bytes, done) => {
                let n = (*bytes - *done).min(STRETCH_BYTES);
                // SAFETY: the caller vouched for both buffers; `ptr::copy` allows overlaps within
                // a stretch, and stretches run upwards.
                unsafe { std::ptr::copy(from.0.add(*done), to.0.add(*done), n) };
                stretch(*bytes, done, n)
            }
            Task::Set(to, value, bytes, done) => {
                let n = (*bytes - *done).min(STRETCH_BYTES);
                // SAFETY: the caller vouched for the buffer.
                unsafe { std::ptr::write_bytes(to.0.add(*done), *value, n) };
                stretch(*bytes, done, n)
            }
            Task::Abandoned(error) => Step::Done(Err(error.clone().into())),
            Task::Record(record) => {
                record.reach();
                Step::Done(Ok(()))
            }
            Task::Wait(record) if record.is_reached() => Step::Done(Ok(())),
            Task::Wait(..) => Step::Waiting { moved: false },
            Task::Function(function, flag) => match flag {
                None => match worker::call(*function) {
                    Ok(called) => {
                        *flag = Some(called);
                        Step::Waiting { moved: true }
                    }
                    Err(error) => Step::Done(Err(error.into())),
                },
                Some(flag) if flag.load(Ordering::Acquire) => Step::Done(Ok(())),
                Some(_) => Step::Waiting { moved: false },
            },
            Task::Graph(run) => run.step(budget),
        }
    }
}

fn stretch(bytes: usize, done: &mut usize, n: usize) -> Step {
    *done += n;
    if *done == bytes { Step::Done(Ok(())) } else { Step::Waiting { moved: true } }
}

/// Runs a collective on an idle communicator at once, for a moment. Returns its result, or the task
/// of what is left. This is the common case of small calls: it uses no queue and allocates nothing.
pub(super) fn try_now(
    endpoint: &Arc<Endpoint>,
    programs: &Arc<Programs>,
    call: &Call,
    (budget, stream): (Budget, usize),
) -> std::result::Result<Quick<()>, Box<Running>> {
    let recorder = &endpoint.rank.recorder;
    let what = What::collective(programs, call);
    let called = recorder.call(&what, stream);
    let number = called.number;
    let mut position = Position::new(endpoint, programs, call, what.descriptor());
    let mut failed = None;
    if recorder.finished.load(Ordering::Acquire) == number && endpoint.rank.failure().is_none() {
        endpoint.note_operation(number);
        endpoint.pass_followers();
        let visit = catch_unwind(AssertUnwindSafe(|| position.visit(programs, endpoint, budget)));
        let visit = visit.unwrap_or_else(|panic| Visit::Done(Err(Error::panicked(&*panic).into())));
        match visit {
            Visit::Done(Ok(())) => {
                // Clocks of hosts are compared by when operations end (`ras/clocks.rs`).
                match endpoint.one_host {
                    true => recorder.end_within_call(number),
                    false => recorder.end(number),
                }
                return Ok(Ok(()));
            }
            Visit::Done(Err(error)) => failed = Some(error),
            Visit::Waiting { .. } => {}
        }
    }
    let _whole = Uncancelled::begin();
    let (recorded, kind) = ((called, what), Kind::Collective(position.keep(programs.clone())));
    let mut operation = Running::new(endpoint.clone(), recorded, kind, None);
    match failed.map(|error| operation.conclude(*error)) {
        Some(Step::Done(result)) => Ok(result.map_err(|failed| Box::new(failed.tell()))),
        Some(Step::Waiting { .. }) | None => Err(Box::new(operation)),
    }
}

impl Running {
    fn new(
        endpoint: Arc<Endpoint>,
        recorded: (Called, What),
        kind: Kind,
        runs: Option<Arc<dyn Runs>>,
    ) -> Self {
        Self {
            endpoint,
            number: recorded.0.number,
            kind,
            to_begin: Some(recorded),
            runs,
            run: None,
            recorded: false,
            waiting_since: None,
            idle_visits: 0,
            looked: None,
            suspicion: false,
            ending: None,
            broken: None,
        }
    }

    fn step(&mut self, budget: Budget) -> Step {
        let step = self.advance(budget);
        if let Step::Done(_) = step {
            (self.runs, self.run) = (None, None);
        }
        step
    }

    fn advance(&mut self, budget: Budget) -> Step {
        if self.endpoint.rank.recorder.finished.load(Ordering::Acquire) != self.number {
            return self.wait_for_turn();
        }
        let endpoint = &self.endpoint;
        if let Some((called, what)) = self.to_begin.take() {
            endpoint.rank.recorder.begin(&called, &what);
            self.run = self.runs.take().map(|runs| runs.begin(self.number));
        }
        if let Some((since, error)) = self.ending.take() {
            return self.wait_for_writers(since, error);
        }
        if let Some(error) = endpoint.rank.failure() {
            let error = self.place(error);
            return self.wait_for_writers(clock::now(), error);
        }
        if let Some((since, error)) = self.broken.take() {
            return self.wait_for_verdict(since, error);
        }
        endpoint.note_operation(self.number);
        let visit = match &mut self.kind {
            Kind::Collective(running) => running.visit(endpoint, budget),
            Kind::Exchange(exchange) => exchange.visit(endpoint, budget),
            Kind::OneSided(acting) => acting.visit(endpoint, budget),
        };
        endpoint.tell_followers(self.number, matches!(visit, Visit::Done(_)));
        match visit {
            Visit::Done(Ok(())) => self.end(Ok(())),
            Visit::Done(Err(error)) => self.conclude(*error),
            Visit::Waiting { moved, awaited } => {
                if moved {
                    (self.waiting_since, self.looked, self.idle_visits) = (None, None, 0);
                    self.suspicion = false;
                    if std::mem::take(&mut self.recorded) {
                        self.endpoint.rank.recorder.go_on();
                    }
                } else {
                    self.wait_on(awaited);
                }
                Step::Waiting { moved }
            }
        }
    }

    /// Waits until the operations before this one have ended. An operation whose turn does not come
    /// once the communicator has failed ends without it: it has not begun, and never will.
    fn wait_for_turn(&mut self) -> Step {
        let Some(error) = self.endpoint.rank.failure() else {
            return Step::Waiting { moved: false };
        };
        let now = clock::now();
        if now - *self.waiting_since.get_or_insert(now) < TURN {
            return Step::Waiting { moved: false };
        }
        self.endpoint.rank.note_cut_short();
        Step::Done(Err(self.failed(self.place(error))))
    }

    fn end(&self, result: Result<()>) -> Step {
        let rank = &self.endpoint.rank;
        if result.is_err() {
            self.endpoint.tell_followers(self.number, true);
            rank.note_cut_short();
        }
        // Only the running operation changes the number of those that are done.
        rank.recorder.end(self.number);
        Step::Done(result.map_err(|error| self.failed(error)))
    }

    fn failed(&self, error: Error) -> Failed {
        Failed { error, rank: Some(Arc::downgrade(&self.endpoint.rank)) }
    }

    fn name(&self) -> &'static str {
        match &self.kind {
            Kind::Collective(running) => running.name(),
            Kind::Exchange(exchange) => exchange.name(),
            Kind::OneSided(acting) => acting.name(),
        }
    }

    fn conclude(&mut self, error: Error) -> Step {
        match self.place(error) {
            // Networks that reduce fail where calls differ, too, which the monitor hears of.
            error @ (Error::Remote { .. } | Error::Local { .. }) => {
                self.wait_for_verdict(clock::now(), error)
            }
            error => self.fail(error),
        }
    }

    /// Makes the communicator fail, unless it has failed already: then the operation ends with that
    /// failure, the cause of which may be that of this one as well.
    fn fail(&mut self, error: Error) -> Step {
        self.endpoint.rank.fail(error.clone());
        let first = self.endpoint.rank.failure().unwrap_or(error);
        let error = self.place(first);
        self.wait_for_writers(clock::now(), error)
    }

    /// Ends the operation with an error as soon as no peer writes into this rank's memory any more,
    /// nor a network.
    fn wait_for_writers(&mut self, since: Instant, error: Error) -> Step {
        self.endpoint.end_unstaged();
        let writers = self.endpoint.rank.writers();
        if writers.is_empty() {
            return self.end(Err(error));
        }
        if clock::now() - since < WRITERS {
            self.ending = Some((since, error));
            return Step::Waiting { moved: false };
        }
        let text = format!(
            "ranks {writers:?} do not answer and may still write into the buffers of {}: keep them",
            self.name()
        );
        log::line_of(Some(self.endpoint.rank.number), Level::Warn, Subsystem::Coll, &text);
        self.end(Err(error))
    }

    /// Looks from time to time why nothing moved in a visit.
    fn wait_on(&mut self, mut awaited: Awaited) {
        if awaited.peer >= self.endpoint.rank.nranks as i32 {
            // All ranks of the rail are awaited at a switch.
            awaited.peer = -1;
        }
        self.idle_visits += 1;
        let limit_ns = self.limit_ns();
        if limit_ns >= 0 {
            self.check_deadline(awaited, limit_ns);
        }
        if !self.idle_visits.is_multiple_of(IDLE_VISITS) {
            return;
        }
        self.endpoint.rank.waits_in(self.number, self.name());
        let (peer, step) = (awaited.peer, awaited.step);
        self.endpoint.rank.recorder.wait(self.number, peer, step, !self.recorded);
        self.recorded = true;
        let now = clock::now();
        // A limit may be set while it waits.
        self.waiting_since.get_or_insert(now);
        let long = now - *self.looked.get_or_insert(now) > LONG;
        if long {
            self.looked = Some(now);
        }
        let endpoint = &self.endpoint;
        let doing = match &self.kind {
            Kind::Collective(running) => running.doing(),
            Kind::Exchange(_) => CurrentOp::Exchange(None, endpoint.state().collectives),
            Kind::OneSided(_) => CurrentOp::OneSided(endpoint.state().collectives),
        };
        if let Some(error) = look_around(&endpoint.rank, doing, long) {
            return endpoint.rank.fail(error);
        }
        if long {
            tell(&endpoint.rank, doing);
            // What was sent before is not what a peer waits for in vain.
            endpoint.ask_taken();
        }
        // A result of a switch may come long after a peer has got it, and left.
        let at_switch = awaited.peer < 0;
        if !long && (at_switch || !self.suspicion) {
            return;
        }
        match suspect(endpoint, doing, awaited) {
            Some(error) if self.suspicion => endpoint.rank.fail(error),
            suspected => self.suspicion = suspected.is_some(),
        }
    }

    /// Adds the operation in which a rank was lost, if the error does not say it.
    fn place(&self, mut error: Error) -> Error {
        if let Error::Remote { site, .. } | Error::Reported { site, .. } = &mut error
            && site.operation.is_empty()
        {
            let (rank, peer) = (self.endpoint.rank.number as i32, site.peer);
            let step = match &self.kind {
                Kind::Collective(run) => run.step() as i32,
                Kind::Exchange(_) | Kind::OneSided(_) => -1,
            };
            *site = Site { rank, peer, step, op_seq: self.number, operation: self.name() };
        }
        error
    }

    /// Waits for the monitor's verdict on a broken link. The link may be that of a rank that only
    /// gave up; the monitor sees who went first and reports it before the operation does.
    fn wait_for_verdict(&mut self, since: Instant, mut error: Error) -> Step {
        let left = |peer: i32| u32::try_from(peer).is_ok_and(|p| self.endpoint.rank.has_left(p));
        let mut known = false;
        if let (Error::Local { .. }, Some(peer)) = (&error, self.gone_from_rail()) {
            // The network fails where a rank that it serves has gone.
            error = self.place(self.endpoint.rank.lost(peer, LEFT.to_owned()));
        }
        if let Error::Remote { site, why } = &mut error
            && left(site.peer)
        {
            // All that it sent has come before the end of the connection.
            (*why, known) = (LEFT.to_owned(), true);
        }
        if !known && clock::now() - since < VERDICT {
            self.broken = Some((since, error));
            return Step::Waiting { moved: false };
        }
        self.fail(error)
    }

    /// Returns a rank that has left which the same switch serves, if the network reduces here.
    fn gone_from_rail(&self) -> Option<u32> {
        let (rank, Kind::Collective(running)) = (&self.endpoint.rank, &self.kind) else {
            return None;
        };
        let plan = running.plan();
        let serves = plan.algorithm.generator().needs == Needs::Switch;
        let is_served = |peer: &u32| serves && plan.spec.shares_rail(rank.number, *peer);
        (0..rank.nranks).filter(is_served).find(|peer| rank.has_left(*peer))
    }

    /// Returns the limit in ns for which the operation waits; −1 for none.
    fn limit_ns(&self) -> i64 {
        let all = self.endpoint.rank.timeout_ns.load(Ordering::Relaxed);
        let Kind::Collective(running) = &self.kind else { return all };
        let own =
            running.limit().map_or(-1, |own| i64::try_from(own.as_nanos()).unwrap_or(i64::MAX));
        if own < 0 || (0..own).contains(&all) { all } else { own }
    }

    fn check_deadline(&mut self, awaited: Awaited, limit_ns: i64) {
        let now = clock::now();
        let waited = now - *self.waiting_since.get_or_insert(now);
        if waited.as_nanos() as i128 > i128::from(limit_ns) {
            let waited_ms = waited.as_millis() as u64;
            let deadline = || self.endpoint.rank.deadline_error(awaited, self.name(), waited_ms);
            // A rank that ended because of a failure is not at fault, nor is this rank, which waits
            // to be told of the failure.
            self.endpoint.rank.fail(self.endpoint.rank.hear().unwrap_or_else(deadline));
        }
    }
}
