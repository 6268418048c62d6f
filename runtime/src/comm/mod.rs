//! Communicators: their state, the choice of the plans that carry out their calls, and their end.

mod children;
mod create;
mod estimate;
mod holder;
pub mod memory;
mod options;
pub(crate) mod rank_info;
pub mod redop;
mod team;

use crate::cancel::Uncancelled;
use crate::device::{Device, Executor, Stream, wait_while};
use crate::error::{Code, Error, Quick, Result, Site};
use crate::log::{self, Level, Subsystem};
use crate::op::{BlockPolicy, Call, CallOptions, Programs};
use crate::plugin::collnet::Reductions;
use crate::plugin::profiler::Profiler;
use crate::plugin::tuner::Tuner;
use crate::rank::agreement::compare_all_past;
use crate::rank::monitor;
use crate::recorder::End;
use oxccl_plan::generate::{Algorithm, GENERATORS, Needs};
use oxccl_plan::lines;
use oxccl_plan::nccl;
use oxccl_plan::select::{Candidates, Choice, Policy, Topology};
use oxccl_plan::selection::Selection;
use oxccl_plan::words::counted;
use oxccl_plan::{ReduceOp, Spec, explain};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

pub use children::NO_COLOR;
use create::ChildMeetings;
pub use create::{Member, create};
pub use holder::{Holder, Origin};
pub use options::Options;
pub use rank_info::policy_of;
pub use team::Team;

/// The longest time that the end of a communicator waits for operations that cannot be cancelled:
/// an abort takes a second at most with all that it does besides.
const QUIET: Duration = Duration::from_millis(800);

/// The longest time that the end of a communicator waits for peers to take the messages that were
/// sent to them, if operations have no limit.
const TAKING: Duration = Duration::from_secs(60);

/// The remedy for a selection of algorithms that does not serve.
const UNSERVED: &str = "select one of them, or let the library choose by forceAlgSelection 0";

/// The number of calls whose plans a communicator remembers before it forgets all of them.
const REMEMBERED: usize = 4096;

/// A communicator.
pub struct Communicator {
    executor: Executor,
    device: Device,
    topology: Topology,
    policy: Policy,
    programs: Mutex<Remembered>,
    /// The programs of the first calls, each in its [place](Key::place).
    first_programs: Box<[OnceLock<First>; FIRST_CALLS]>,
    options: Options,
    /// `None` for a communicator of one rank.
    child_meetings: Option<ChildMeetings>,
    /// The plugin that chooses plans, if there is one.
    tuner: Option<Tuner>,
    /// The plugin that is told of calls, if there is one.
    profiler: Option<Profiler>,
    redops: redop::RedOps,
    ended: AtomicBool,
    /// True once all work is done although the communicator has failed: no failure concerns the
    /// user any more.
    settled: AtomicBool,
    left: AtomicBool,
    revoked: AtomicBool,
    suspended: AtomicBool,
    /// True once a call has selected an algorithm that writes into inboxes.
    inboxes: AtomicBool,
    registered: memory::Registered,
    /// The types and operations that the switches of the rails reduce.
    reductions: Reductions,
}

/// The memory that a communicator takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The memory that suspending gives back.
    pub releasable: u64,
    /// The memory that stays.
    pub persistent: u64,
    /// True while the communicator is suspended.
    pub suspended: bool,
}

/// The properties of a call by which its plans are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    spec: Spec,
    /// The bytes of a block.
    bytes: u64,
    /// True if switches reduce the call's type by its operation.
    switch: bool,
    /// True if a sum that is rounded before all ranks have contributed may be out of range, where
    /// the result is not: then only algorithms that round once serve.
    rounds_once: bool,
}

/// A call and its programs.
type First = (Key, Arc<Programs>);

/// Calls whose programs are found without a lock.
const FIRST_CALLS: usize = 64;

impl Key {
    /// Returns the call's place among the first ones, by multiplicative hashing.
    #[inline]
    fn place(&self) -> usize {
        let of = self.bytes ^ (self.spec.collective as u64) << 48 ^ u64::from(self.spec.root) << 52;
        let bits = FIRST_CALLS.trailing_zeros();
        (of.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }
}

/// Returns whether peers write into the slots of a rank's stage at any time.
fn inboxes(algorithm: Algorithm) -> bool {
    algorithm.generator().needs == Needs::Inbox
}

#[derive(Default)]
struct Remembered {
    by_call: HashMap<(Key, CallOptions), Arc<Programs>>,
    by_choice: HashMap<(Choice, CallOptions), Arc<Programs>>,
}

impl Remembered {
    /// Remembers the plans of a call and returns their programs. All calls with the same plans
    /// share the programs.
    fn keep(&mut self, call: (Key, CallOptions), choice: Choice, rank: u32) -> Arc<Programs> {
        // `by_choice` has at most one entry for each entry of `by_call`.
        if self.by_call.len() >= REMEMBERED {
            *self = Self::default();
        }
        let (_, options) = call;
        let made = || Arc::new(Programs::new(&choice, rank).under(options));
        let programs = self.by_choice.entry((choice, options)).or_insert_with(made).clone();
        self.by_call.insert(call, programs.clone());
        programs
    }
}

/// A communicator that has not left when it is dropped fails first, so that the peers hear of it.
/// The peers may believe that all is well, as when this rank fails after the last round of
/// initialisation.
impl Drop for Communicator {
    fn drop(&mut self) {
        if !*self.left.get_mut() {
            if self.nranks() > 1 {
                self.executor.rank().fail(Error::Aborted { by: "its being dropped" });
            }
            self.leave();
        }
    }
}

impl Communicator {
    /// Returns a communicator with the executor of its operations, the topology that plans run on,
    /// and the policy that restricts their choice.
    fn new(
        (executor, topology, mut policy): (Executor, Topology, Policy),
        device: Device,
        options: &Options,
        child_meetings: Option<ChildMeetings>,
    ) -> Self {
        let needs = |a: &Algorithm| a.generator().needs;
        let edges = |a: &Algorithm| match needs(a) {
            Needs::Edges if topology.lines => !lines::carry(*a),
            Needs::Edges | Needs::Switch => !topology.edges,
            _ => false,
        };
        if let Some(only) = policy.single().filter(edges) {
            policy.only = None;
            let text = format!("OXCCL_ALGORITHM={} has no effect on GPUs", only.name());
            log::line_of(Some(executor.rank().number), Level::Warn, Subsystem::Init, &text);
        }
        Self {
            executor,
            device,
            topology,
            policy,
            programs: Mutex::default(),
            first_programs: Box::new([const { OnceLock::new() }; FIRST_CALLS]),
            options: options.clone(),
            child_meetings,
            tuner: None,
            profiler: None,
            redops: redop::RedOps::default(),
            ended: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            left: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            inboxes: AtomicBool::new(false),
            registered: memory::Registered::default(),
            reductions: Reductions::default(),
        }
    }

    /// Returns the executor, which carries out the operations.
    #[inline]
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Returns the profiler, if there is one.
    #[inline]
    pub(crate) fn profiler(&self) -> Option<&Profiler> {
        self.profiler.as_ref()
    }

    /// Returns whether a profiler asks for events at present.
    #[inline]
    pub(crate) fn is_profiled(&self) -> bool {
        self.profiler.as_ref().is_some_and(Profiler::asks)
    }

    /// Returns the stream of a call.
    #[inline]
    pub fn stream(&self, handle: usize, function: &'static str) -> Quick<Stream> {
        Stream::of_call(self.device, handle, function)
    }

    /// Returns the options that the creator asked for.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> u32 {
        self.executor.rank().number
    }

    /// Returns the number of ranks.
    pub fn nranks(&self) -> u32 {
        self.executor.rank().nranks
    }

    /// Returns the device that holds the data.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Makes the communicator fail with an error of which the caller tells the user: all current
    /// and future operations fail, and the peers hear of the failure.
    pub fn fail(&self, error: Error) {
        self.executor.rank().fail(error);
        self.executor.rank().set_delivered();
    }

    /// Returns the reduction operations that the user made.
    pub fn redops(&self) -> &redop::RedOps {
        &self.redops
    }

    /// Returns the latched failure and notes that the user was told of it. `None` if there is no
    /// failure, if the user revoked the communicator, or if [`finalize`](Self::finalize) found that
    /// the failure has ended no operation: programs ask after it, and that another rank has ended
    /// otherwise must not look like a fault then.
    pub fn failure(&self) -> Option<Error> {
        let quiet = self.revoked.load(Ordering::Acquire) || self.settled.load(Ordering::Acquire);
        self.executor.rank().deliver().filter(|_| !quiet)
    }

    /// Returns whether the communicator has failed, without telling the user.
    pub fn has_failed(&self) -> bool {
        self.executor.rank().failure().is_some()
    }

    /// Limits the time that every operation may wait; `None` removes the limit.
    pub fn set_timeout(&self, limit: Option<Duration>) {
        self.executor.set_limit(limit);
    }

    /// Fails if the communicator is revoked, has failed, or is finalized or suspended.
    #[inline]
    pub fn check(&self) -> Quick<()> {
        if self.revoked.load(Ordering::Acquire) {
            return Err(self.revoked_error().into());
        }
        if let Some(error) = self.executor.rank().deliver() {
            return Err(error.into());
        }
        if self.ended.load(Ordering::Acquire) {
            let hint = "no operation may follow ncclCommFinalize";
            return Err(Error::usage("the communicator is finalized", hint).into());
        }
        if self.suspended.load(Ordering::Acquire) {
            return Err(
                Error::usage("the communicator is suspended", "call ncclCommResume first").into()
            );
        }
        Ok(())
    }

    /// Returns the programs for a call, chosen from facts that all ranks share.
    #[inline]
    pub fn programs(&self, call: &Call) -> Quick<Cow<'_, Arc<Programs>>> {
        let key = self.key(call);
        let first = &self.first_programs[key.place()];
        if let Some((of, programs)) = first.get()
            && *of == key
        {
            // Counting references costs more than finding the programs.
            return Ok(Cow::Borrowed(programs));
        }
        let _whole = Uncancelled::begin();
        let programs = self.remembered(key, CallOptions::default())?;
        // Another call may have its place already.
        let _ = first.set((key, programs.clone()));
        Ok(Cow::Owned(programs))
    }

    /// Returns the programs for a call with options, chosen from facts that all ranks share. Fails
    /// if the options force algorithms of which none serves.
    pub fn programs_under(&self, call: &Call, options: CallOptions) -> Result<Arc<Programs>> {
        let programs = self.remembered(self.key(call), CallOptions { tag: 0, ..options })?;
        match options.tag {
            0 => Ok(programs),
            // Each call may have a tag of its own, which is not worth remembering.
            _ => Ok(Arc::new((*programs).clone().under(options))),
        }
    }

    #[inline]
    fn key(&self, call: &Call) -> Key {
        let switch = self.reductions.contain(call.dtype, call.op);
        // Two ranks fold once, whatever the algorithm.
        let rounds_once =
            call.spec.nranks > 2 && call.op == ReduceOp::Avg && call.dtype.reaches_less_than_sums();
        let bytes = call.count * call.dtype.size() as u64;
        Key { spec: call.spec, bytes, switch, rounds_once }
    }

    /// Returns the programs of a call, which are chosen when it is made for the first time.
    fn remembered(&self, key: Key, options: CallOptions) -> Result<Arc<Programs>> {
        let memory = || self.programs.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(programs) = memory().by_call.get(&(key, options)).cloned() {
            return Ok(programs);
        }
        let choice = self.choose(key, &options)?;
        Ok(memory().keep((key, options), choice, self.rank()))
    }

    /// Returns the algorithms that may serve a call with options, or fails as
    /// [`programs_under`](Self::programs_under) does.
    fn candidates(
        &self,
        Key { spec, bytes, rounds_once, .. }: Key,
        topology: &Topology,
        options: &CallOptions,
    ) -> Result<Candidates> {
        let deterministic = self.policy.deterministic || options.deterministic || rounds_once;
        let policy = Policy { deterministic, ..self.policy };
        let of = |only| Candidates::new(spec, bytes, topology, Policy { only, ..policy });
        if let Some(selected) = options.selection.map(|selection| of(Some(selection))) {
            if let Some(candidates) = selected {
                self.note_inboxes(options);
                return Ok(candidates);
            }
            if options.forced {
                let serve = of(None).map_or_else(Vec::new, |all| all.names());
                let what = format!(
                    "no algorithm that the call selects serves {} of {} per block here; these \
                     do: {}",
                    spec.collective.name(),
                    counted(bytes, "byte", "bytes"),
                    serve.join(", ")
                );
                return Err(Error::usage(what, UNSERVED));
            }
        }
        let all = of(policy.only).or_else(|| of(None));
        all.ok_or_else(|| Error::Internal { what: format!("no plan serves {spec:?}") })
    }

    /// Notes that a call may have peers write into this rank's inboxes.
    fn note_inboxes(&self, options: &CallOptions) {
        let named = |selection: Selection| {
            GENERATORS.iter().any(|g| inboxes(g.algorithm) && selection.names(g.algorithm))
        };
        if options.selection.is_some_and(named) {
            self.inboxes.store(true, Ordering::Release);
        }
    }

    /// Chooses the plans of a call, by the cost model and the tuner. If the tuner fails, so does
    /// the communicator: the peers wait for this rank's call.
    fn choose(&self, key: Key, options: &CallOptions) -> Result<Choice> {
        let Key { spec, bytes, switch, .. } = key;
        let spares = options.policy.map(|policy| policy == BlockPolicy::Zero);
        let engine_bytes = spares.and_then(|spares| self.executor.engine_bytes(spares));
        let engine_bytes = engine_bytes.unwrap_or(self.topology.engine_bytes);
        let topology = Topology { switch, engine_bytes, ..self.topology };
        let topology = options.most_blocks().map_or(topology, |most| topology.in_blocks(most));
        let mut candidates = self.candidates(key, &topology, options)?;
        if let Some((tuner, function)) = self.tuner.as_ref().zip(nccl::tunable(spec.collective)) {
            let bytes = bytes * u64::from(spec.largest_blocks());
            let tuned = candidates.tune(|table, mapped| tuner.ask(function, bytes, table, mapped));
            tuned.inspect_err(|error| self.fail(error.clone()))?;
        }
        let choice = candidates.choose(&topology);
        if log::enabled(Level::Info, Subsystem::Tuning) {
            let (name, size) = (spec.collective.name(), counted(bytes, "byte", "bytes"));
            let text = format!("{name} of {size} per block: {choice}");
            log::line_of(Some(self.rank()), Level::Info, Subsystem::Tuning, &text);
        }
        Ok(choice)
    }

    /// Waits for all operations, and until the peers have taken the messages that were sent to
    /// them. The communicator takes no more operations. An error names a peer that has not taken
    /// its messages, or says that the calls differ or why an operation has ended early, unless the
    /// user was already told of a failure.
    /// Blocks: for the messages as long as an operation may wait, or for 60 s if operations
    /// have no limit; for the operations of a failed communicator a second at most.
    pub fn finalize(&self) -> Result<()> {
        if self.revoked.load(Ordering::Acquire) {
            return Err(self.revoked_error());
        }
        self.executor.rank().recorder.note(End::Finalize);
        self.drain();
        self.settle()
    }

    fn revoked_error(&self) -> Error {
        let hint = "destroy it, or make a new one by ncclCommSplit or ncclCommShrink";
        Error::usage("the communicator was revoked", hint)
    }

    fn drain(&self) {
        self.ended.store(true, Ordering::Release);
        let mut failed_since = None;
        wait_while(|| {
            let failed = self.executor.rank().failure().is_some();
            let since = failed.then(|| *failed_since.get_or_insert_with(Instant::now));
            // Operations that are queued behind other work end with the failure when their turn
            // comes.
            self.executor.busy() && since.is_none_or(|since| since.elapsed() < QUIET)
        });
        if failed_since.is_none() {
            self.executor.rank().set_ending();
        }
    }

    /// Waits until the peers have taken the messages that were sent to them. Until then this rank
    /// has not heard whether its messages are what the peers expect.
    fn settle(&self) -> Result<()> {
        let failure = self.executor.rank().failure();
        if matches!(failure, Some(Error::Aborted { .. })) || self.revoked.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.executor.rank().is_delivered() {
            if failure.is_some_and(|e| self.is_harmless(&e) && self.executor.untaken().is_none()) {
                self.settled.store(true, Ordering::Release);
            }
            return Ok(());
        }
        let limit_ns = self.executor.rank().timeout_ns.load(Ordering::Relaxed);
        let limit = u64::try_from(limit_ns).map_or(TAKING, Duration::from_nanos);
        let (start, mut untaken) = (Instant::now(), None);
        self.executor.ask_taken();
        wait_while(|| {
            untaken = self.executor.untaken();
            // Other failures of peers do not concern this rank once all messages have been taken.
            let concerns = |e: &Error| untaken.is_some() || e.code() == Code::InvalidUsage;
            if let Some(error) = self.executor.rank().hear().filter(concerns) {
                self.executor.rank().fail(error);
            }
            let comes = untaken.is_some_and(|(_, left)| !left);
            comes && self.executor.rank().failure().is_none() && start.elapsed() < limit
        });
        let rank = self.executor.rank();
        let differs = self.executor.collectives().and_then(|end| compare_all_past(rank, end));
        if let Some(error) = differs
            && rank.failure().is_none_or(|failure| self.is_harmless(&failure))
        {
            rank.fail(error.clone());
            rank.set_delivered();
            return Err(error);
        }
        let until = |left| match left {
            true => "before it destroyed its communicator".to_owned(),
            false => format!(
                "within {} ms, the limit of finalize and destroy",
                start.elapsed().as_millis()
            ),
        };
        let error = match (self.executor.rank().failure(), untaken) {
            (Some(error), None) if self.is_harmless(&error) => {
                self.settled.store(true, Ordering::Release);
                return Ok(());
            }
            (Some(error), _) => error,
            (None, None) => return Ok(()),
            (None, Some((peer, left))) => {
                let (rank, peer) = (self.rank() as i32, peer as i32);
                let op_seq = self.executor.rank().recorder.finished.load(Ordering::Acquire);
                let site = Site { rank, peer, step: -1, op_seq, operation: "" };
                Error::Untaken { site, until: until(left) }
            }
        };
        self.executor.rank().set_delivered();
        Err(error)
    }

    /// Returns whether a failure concerns only other ranks: all operations of this one were
    /// complete.
    fn is_harmless(&self, failure: &Error) -> bool {
        let complete = !self.executor.is_cut_short() && !self.executor.busy();
        complete && failure.code() != Code::InvalidUsage
    }

    /// Ends all operations now, with the error `why`. Returns when nothing accesses the user's
    /// memory any more. The error names the ranks that may still do so after almost a second.
    fn stop(&self, why: Error) -> Result<()> {
        self.executor.rank().recorder.note(End::Abort);
        self.executor.rank().fail(why);
        let writers = self.executor.stop(QUIET)?;
        if writers.is_empty() {
            return Ok(());
        }
        let why =
            format!("ranks {writers:?} do not answer and may still write into this rank's buffers");
        Err(self.executor.rank().lost(writers[0], why))
    }

    /// Ends all operations and the communicator, whatever the other ranks do. Blocks for a second
    /// at most.
    pub fn abort(&self) -> Result<()> {
        let stopped = self.stop(Error::Aborted { by: "ncclCommAbort" });
        self.leave();
        stopped
    }

    /// Ends all operations. Afterwards the communicator can only be destroyed or have children.
    /// Blocks for a second at most.
    pub fn revoke(&self) -> Result<()> {
        self.revoked.store(true, Ordering::Release);
        self.stop(Error::Aborted { by: "ncclCommRevoke" })
    }

    /// Gives memory back, and refuses operations until [`resume`](Self::resume) is called. No
    /// operation may be under way.
    pub fn suspend(&self) -> Result<()> {
        self.check()?;
        if self.executor.busy() {
            let hint = "synchronize its streams before";
            return Err(Error::usage("operations of the communicator are under way", hint));
        }
        self.suspended.store(true, Ordering::Release);
        let inboxes =
            self.policy.single().is_some_and(inboxes) || self.inboxes.load(Ordering::Acquire);
        self.executor.release_memory(inboxes);
        Ok(())
    }

    /// Ends the suspension, so that the communicator takes operations again.
    pub fn resume(&self) -> Result<()> {
        if self.suspended.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        Err(Error::usage("the communicator is not suspended", "call ncclCommSuspend before"))
    }

    /// Returns the memory that the communicator takes in this process.
    pub fn memory(&self) -> Memory {
        let (releasable, persistent) = self.executor.memory_bytes();
        Memory { releasable, persistent, suspended: self.suspended.load(Ordering::Acquire) }
    }

    /// Ends the communicator: waits as [`finalize`](Self::finalize) does, then leaves in order,
    /// whatever the outcome. Blocks.
    pub fn destroy(&self) -> Result<()> {
        self.executor.rank().recorder.note(End::Destroy);
        self.drain();
        let settled = self.settle();
        self.leave();
        settled
    }

    fn leave(&self) {
        self.left.store(true, Ordering::Release);
        monitor::forget(self.executor.rank());
        self.executor.leave();
    }

    /// Returns a text that says which plan would be chosen, and why.
    pub fn explain(&self, spec: Spec, bytes: u64) -> String {
        // For types and operations that the switches reduce.
        let switch = self.reductions != Reductions::default();
        explain::table(spec, bytes, &Topology { switch, ..self.topology }, self.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::select::Route;
    use oxccl_plan::{Carrier, Collective, Plan};

    #[test]
    fn what_is_remembered_of_calls_is_bounded() {
        let mut memory = Remembered::default();
        let mut kept = 0;
        for nranks in 2..120 {
            for root in 0..nranks {
                let spec = Spec::new(Collective::Broadcast, nranks, root);
                let plan = Plan::candidates(spec).next().expect("a plan");
                let any_memory = Route { plan, carrier: Carrier::Local };
                let choice = Choice { any_memory, mapped: None, engines: false };
                let key = (
                    Key { spec, bytes: 8, switch: false, rounds_once: false },
                    CallOptions::default(),
                );
                let programs = memory.keep(key, choice, 0);
                assert_eq!(programs.any.plan, plan);
                assert!(memory.by_call.contains_key(&key));
                assert!(memory.by_call.len() <= REMEMBERED);
                assert!(memory.by_choice.len() <= REMEMBERED);
                kept += 1;
            }
        }
        assert!(kept > REMEMBERED, "the bound was not reached");
    }
}
