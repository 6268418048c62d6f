//! Work, as it is called or captured, and tasks: work under way.

use super::collective::{self, Budget, Visit};
use super::endpoint::Endpoint;
use super::event::Event;
use super::exchange::Exchange;
use super::graph::{Graph, GraphRun};
use super::one_sided::OneSidedTask;
use super::suspicion::suspect;
use super::worker;
use crate::clock;
use crate::error::{Error, Result, Site};
use crate::log::{self, Level, Subsystem};
use crate::op::{Address, Call, Operation, Programs};
use crate::rank::agreement::{CurrentOp, look_around, tell};
use crate::rank::{Awaited, Rank};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a broken link waits for the monitor's word on who is gone.
const VERDICT: Duration = Duration::from_secs(1);

/// Every so often in a wait it may be told from a peer's other calls that it will never end.
const LONG: Duration = Duration::from_secs(1);

/// How long a failed operation waits for peers that are writing into its memory.
const WRITERS: Duration = Duration::from_secs(1);

/// Visits without progress between two looks at the peers.
const IDLE_VISITS: u32 = 64;

/// Bytes that a copy moves before others get a turn.
const STRETCH_BYTES: usize = 1 << 20;

/// A function of the user and its argument.
#[derive(Clone, Copy)]
pub struct HostFunction {
    /// The function.
    pub function: unsafe extern "C" fn(*mut std::ffi::c_void),
    /// Its argument.
    pub argument: Address,
}

/// What a stream can be asked to do; a template that graphs replay.
#[derive(Clone)]
pub enum Work {
    /// An operation of a communicator.
    Operation(Arc<Endpoint>, Operation),
    /// Copy so many bytes from the second address to the first.
    Copy(Address, Address, usize),
    /// Set so many bytes.
    Set(Address, u8, usize),
    /// Record an event.
    Record(Arc<Event>, u64),
    /// Wait for a record of an event.
    Wait(Arc<Event>, u64),
    /// Call a function.
    Function(HostFunction),
    /// Run a graph.
    Graph(Arc<Graph>),
}

impl Work {
    /// The communicator that the work belongs to.
    pub fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        match self {
            Work::Operation(endpoint, _) => Some(endpoint),
            _ => None,
        }
    }

    /// Its name, type and operation: what stays when buffers, counts and roots change.
    fn kind(&self) -> String {
        match self {
            Work::Operation(_, Operation::Collective(_, call)) => {
                let mut kind = format!("{} of {}", call.spec.collective.name(), call.dtype.name());
                if call.spec.collective.reduces() {
                    kind = format!("{kind}, {}", call.op.name());
                }
                kind
            }
            Work::Operation(_, operation) => operation.name().to_owned(),
            Work::Copy(..) => "a copy".to_owned(),
            Work::Set(..) => "a memset".to_owned(),
            Work::Record(..) => "a record of an event".to_owned(),
            Work::Wait(..) => "a wait for an event".to_owned(),
            Work::Function(_) => "a host function".to_owned(),
            Work::Graph(_) => "a graph".to_owned(),
        }
    }

    /// What makes this more than other parameters of the work `of` a graph, and what that is.
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

/// What came of a step.
pub enum Step {
    /// The task is complete, or failed.
    Done(Result<()>),
    /// It waits.
    Waiting {
        /// Whether it got anywhere in this step.
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
    /// An operation of a communicator, with its number there.
    Running(Box<Running>),
    /// A collective that did not come up yet, with its number.
    Called(Arc<Endpoint>, Arc<Programs>, Call, u64),
    /// See [`Work::Copy`]; the number counts the bytes that are done.
    Copy(Address, Address, usize, usize),
    /// See [`Work::Set`].
    Set(Address, u8, usize, usize),
    /// See [`Work::Record`].
    Record(Arc<Event>, u64),
    /// See [`Work::Wait`].
    Wait(Arc<Event>, u64),
    /// See [`Work::Function`]; the flag is set once it has returned.
    Function(HostFunction, Option<Arc<AtomicBool>>),
    /// See [`Work::Graph`].
    Graph(Box<GraphRun>),
}

/// An operation of a communicator under way.
pub struct Running {
    endpoint: Arc<Endpoint>,
    number: u64,
    kind: Kind,
    waiting_since: Option<Instant>,
    /// Visits since then.
    idle_visits: u32,
    /// When it last looked closely why.
    looked: Option<Instant>,
    /// Whether that look gave rise to a suspicion.
    suspicion: bool,
    /// Its error, and when it was found, while peers may still write into its memory.
    ending: Option<(Instant, Error)>,
    /// A link that broke, and when.
    broken: Option<(Instant, Error)>,
}

impl Task {
    /// Starts work; operations of communicators take their number here, in the order of calls.
    pub fn start(work: Work) -> Result<Self> {
        Ok(match work {
            Work::Operation(endpoint, operation) => Self::operation(endpoint, operation),
            Work::Copy(to, from, bytes) => Task::Copy(to, from, bytes, 0),
            Work::Set(to, value, bytes) => Task::Set(to, value, bytes, 0),
            Work::Record(event, number) => Task::Record(event, number),
            Work::Wait(event, number) => Task::Wait(event, number),
            Work::Function(function) => Task::Function(function, None),
            Work::Graph(graph) => Task::Graph(Box::new(GraphRun::start(&graph)?)),
        })
    }

    /// As [`start`](Self::start), for an operation of a communicator. What a collective takes to
    /// run is made when it comes up.
    pub fn operation(endpoint: Arc<Endpoint>, operation: Operation) -> Self {
        let number = endpoint.rank.issued.fetch_add(1, Ordering::AcqRel);
        let kind = match operation {
            Operation::Collective(programs, call) => {
                return Task::Called(endpoint, programs, call, number);
            }
            Operation::Exchange(transfers) => {
                let Rank { number, nranks, .. } = *endpoint.rank;
                Kind::Exchange(Exchange::new(number, nranks, &transfers))
            }
            Operation::OneSided(item) => Kind::OneSided(OneSidedTask::new(item)),
        };
        Task::Running(Box::new(Running::new(endpoint, number, kind)))
    }

    /// Moves the task on. A task that panics fails, and with it its communicator: neither the
    /// thread that happens to run it nor its stream ends. Blocks: never.
    pub fn step(&mut self, budget: Budget) -> Step {
        catch_unwind(AssertUnwindSafe(|| self.go_on(budget))).unwrap_or_else(|panic| {
            let error = Error::panicked(&*panic);
            match self {
                Task::Running(operation) => operation.conclude(error),
                _ => Step::Done(Err(error)),
            }
        })
    }

    fn go_on(&mut self, budget: Budget) -> Step {
        if let Task::Called(endpoint, programs, call, number) = self {
            let running = collective::Running::new(endpoint, programs.clone(), *call);
            let operation = Running::new(endpoint.clone(), *number, Kind::Collective(running));
            *self = Task::Running(Box::new(operation));
        }
        match self {
            Task::Running(operation) => operation.step(budget),
            // It became an operation.
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
            Task::Record(event, number) => {
                event.reach(*number);
                Step::Done(Ok(()))
            }
            Task::Wait(event, number) if event.reached(*number) => Step::Done(Ok(())),
            Task::Wait(..) => Step::Waiting { moved: false },
            Task::Function(function, flag) => match flag {
                None => match worker::call(*function) {
                    Ok(called) => {
                        *flag = Some(called);
                        Step::Waiting { moved: true }
                    }
                    Err(error) => Step::Done(Err(error)),
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

/// Runs a collective on an idle communicator in place, for a moment; what is left of it otherwise.
/// The common case of small calls: it touches no queue and allocates nothing.
pub(super) fn try_now(
    endpoint: &Arc<Endpoint>,
    programs: Arc<Programs>,
    call: Call,
    budget: Budget,
) -> std::result::Result<Result<()>, Task> {
    let number = endpoint.rank.issued.fetch_add(1, Ordering::AcqRel);
    let mut running = collective::Running::new(endpoint, programs, call);
    let mut failed = None;
    if endpoint.rank.finished.load(Ordering::Acquire) == number && endpoint.rank.failure().is_none()
    {
        let visit = catch_unwind(AssertUnwindSafe(|| running.visit(endpoint, budget)));
        match visit.unwrap_or_else(|panic| Visit::Done(Err(Error::panicked(&*panic)))) {
            Visit::Done(Ok(())) => {
                endpoint.rank.finished.store(number + 1, Ordering::Release);
                return Ok(Ok(()));
            }
            Visit::Done(Err(error)) => failed = Some(error),
            Visit::Waiting { .. } => {}
        }
    }
    let mut operation = Running::new(endpoint.clone(), number, Kind::Collective(running));
    match failed.map(|error| operation.conclude(error)) {
        Some(Step::Done(result)) => Ok(result),
        Some(Step::Waiting { .. }) | None => Err(Task::Running(Box::new(operation))),
    }
}

impl Running {
    fn new(endpoint: Arc<Endpoint>, number: u64, kind: Kind) -> Self {
        Self {
            endpoint,
            number,
            kind,
            waiting_since: None,
            idle_visits: 0,
            looked: None,
            suspicion: false,
            ending: None,
            broken: None,
        }
    }

    fn step(&mut self, budget: Budget) -> Step {
        let endpoint = &self.endpoint;
        if endpoint.rank.finished.load(Ordering::Acquire) != self.number {
            return Step::Waiting { moved: false };
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
        let visit = match &mut self.kind {
            Kind::Collective(running) => running.visit(endpoint, budget),
            Kind::Exchange(exchange) => exchange.visit(endpoint, budget),
            Kind::OneSided(acting) => acting.visit(endpoint, budget),
        };
        match visit {
            Visit::Done(Ok(())) => self.end(Ok(())),
            Visit::Done(Err(error)) => self.conclude(error),
            Visit::Waiting { moved, awaited } => {
                if moved {
                    (self.waiting_since, self.looked, self.idle_visits) = (None, None, 0);
                    self.suspicion = false;
                } else {
                    self.wait_on(awaited);
                }
                Step::Waiting { moved }
            }
        }
    }

    fn end(&self, result: Result<()>) -> Step {
        if result.is_err() {
            // Its stream does it.
            self.endpoint.rank.set_delivered();
        }
        // Only the running operation changes it.
        self.endpoint.rank.finished.store(self.number + 1, Ordering::Release);
        Step::Done(result)
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
            error @ Error::Remote { .. } => self.wait_for_verdict(clock::now(), error),
            error => {
                self.endpoint.rank.fail(error.clone());
                self.wait_for_writers(clock::now(), error)
            }
        }
    }

    /// Ends with an error as soon as no peer writes into this rank's memory any more.
    fn wait_for_writers(&mut self, since: Instant, error: Error) -> Step {
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

    /// Nothing moved in a visit: looks from time to time why.
    fn wait_on(&mut self, awaited: Awaited) {
        self.idle_visits += 1;
        if self.endpoint.rank.timeout_ns.load(Ordering::Relaxed) >= 0 {
            self.check_deadline(awaited);
        }
        if !self.idle_visits.is_multiple_of(IDLE_VISITS) {
            return;
        }
        self.endpoint.rank.waits_in(self.number, self.name());
        let now = clock::now();
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
        if let Some(error) = look_around(&endpoint.rank, doing) {
            return endpoint.rank.fail(error);
        }
        if long {
            tell(&endpoint.rank, doing);
        }
        if !long && !self.suspicion {
            return;
        }
        match suspect(endpoint, doing, awaited) {
            Some(error) if self.suspicion => endpoint.rank.fail(error),
            suspected => self.suspicion = suspected.is_some(),
        }
    }

    /// Says in what a rank was lost, where the error does not.
    fn place(&self, mut error: Error) -> Error {
        if let Error::Remote { site, .. } | Error::Reported { site, .. } = &mut error
            && site.operation.is_empty()
        {
            let (rank, peer) = (self.endpoint.rank.number as i32, site.peer);
            *site = Site { rank, peer, step: -1, op_seq: self.number, operation: self.name() };
        }
        error
    }

    /// A link that broke may be that of a rank which only gave up: the monitor, which sees who went
    /// first, speaks before the operation does.
    fn wait_for_verdict(&mut self, since: Instant, error: Error) -> Step {
        if clock::now() - since < VERDICT {
            self.broken = Some((since, error));
            return Step::Waiting { moved: false };
        }
        self.endpoint.rank.fail(error.clone());
        self.wait_for_writers(clock::now(), error)
    }

    fn check_deadline(&mut self, awaited: Awaited) {
        let limit = self.endpoint.rank.timeout_ns.load(Ordering::Relaxed);
        let now = clock::now();
        let waited = now - *self.waiting_since.get_or_insert(now);
        if waited.as_nanos() as i128 > i128::from(limit) {
            let waited_ms = waited.as_millis() as u64;
            let deadline = || self.endpoint.rank.deadline_error(awaited, self.name(), waited_ms);
            // Who ended because of a failure is not to blame; nor this rank, which waits to hear of
            // it.
            self.endpoint.rank.fail(self.endpoint.rank.hear().unwrap_or_else(deadline));
        }
    }
}
