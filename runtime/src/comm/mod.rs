//! Communicators: what a call means, which plan carries it out, and the end of it all.

mod children;
mod create;
mod estimate;
mod holder;
pub mod memory;
mod options;
pub(crate) mod rank_info;
pub mod redop;
mod team;

use crate::device::{Device, Executor, Stream, wait_while};
use crate::error::{Code, Error, Result, Site};
use crate::log::{self, Level, Subsystem};
use crate::op::{Call, Programs};
use crate::rank::{Rank, monitor};
use oxccl_plan::Spec;
use oxccl_plan::generate::{Algorithm, Needs};
use oxccl_plan::select::{self, Choice, Policy, Topology};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use children::NO_COLOR;
use create::ChildMeetings;
pub use create::{Member, create};
pub use holder::{Holder, Origin};
pub use options::Options;
pub use team::Team;

/// How long an end waits for what cannot be hurried.
const QUIET: Duration = Duration::from_secs(1);

/// How long an end waits for peers to take what was sent to them, where operations have no limit.
const TAKING: Duration = Duration::from_secs(60);

/// Plans that a communicator remembers before it forgets them all.
const REMEMBERED: usize = 4096;

/// A communicator.
pub struct Communicator {
    rank: Arc<Rank>,
    executor: Executor,
    device: Device,
    topology: Topology,
    policy: Policy,
    programs: Mutex<Remembered>,
    options: Options,
    /// See [`Team`].
    lsa_size: u32,
    /// None for one rank alone.
    child_meetings: Option<ChildMeetings>,
    redops: redop::RedOps,
    ended: AtomicBool,
    left: AtomicBool,
    revoked: AtomicBool,
    suspended: AtomicBool,
    registered: memory::Registered,
}

/// The memory that a communicator takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What suspending gives back.
    pub releasable: u64,
    /// What stays.
    pub persistent: u64,
    /// Whether it is suspended.
    pub suspended: bool,
}

#[derive(Default)]
struct Remembered {
    last: Option<((Spec, u64), Arc<Programs>)>,
    by_call: HashMap<(Spec, u64), Arc<Programs>>,
    by_choice: HashMap<Choice, Arc<Programs>>,
}

impl Remembered {
    /// Keeps the plans of a call, and their programs once for all calls that they serve.
    fn keep(&mut self, call: (Spec, u64), choice: Choice, rank: u32) -> Arc<Programs> {
        // Each call has brought at most one entry of the other table.
        if self.by_call.len() >= REMEMBERED {
            *self = Self::default();
        }
        let made = || Arc::new(Programs::new(&choice, rank));
        let programs = self.by_choice.entry(choice).or_insert_with(made).clone();
        self.by_call.insert(call, programs.clone());
        self.last = Some((call, programs.clone()));
        programs
    }
}

/// The others may believe that all is well, as when this rank fails after init's last round: they
/// hear of it.
impl Drop for Communicator {
    fn drop(&mut self) {
        if !*self.left.get_mut() {
            if self.nranks() > 1 {
                self.rank.fail(Error::Aborted { by: "its being dropped" });
            }
            self.leave();
        }
    }
}

impl Communicator {
    /// With what carries operations out, how plans run there, and what restricts their choice.
    fn new(
        (executor, topology, mut policy): (Executor, Topology, Policy),
        device: Device,
        options: &Options,
        child_meetings: Option<ChildMeetings>,
    ) -> Self {
        let rank = executor.rank().clone();
        let edges = |a: &Algorithm| !device.is_host() && a.generator().needs == Needs::Edges;
        if let Some(only) = policy.only.take_if(|a| edges(a)) {
            let text = format!("OXCCL_ALGORITHM={} has no effect on GPUs", only.name());
            log::line_of(Some(rank.number), Level::Warn, Subsystem::Init, &text);
        }
        Self {
            rank,
            executor,
            device,
            topology,
            policy,
            programs: Mutex::default(),
            options: options.clone(),
            lsa_size: 1,
            child_meetings,
            redops: redop::RedOps::default(),
            ended: AtomicBool::new(false),
            left: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            registered: memory::Registered::default(),
        }
    }

    /// What carries its operations out.
    #[inline]
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Looks up the stream of a call.
    #[inline]
    pub fn stream(&self, handle: usize, function: &'static str) -> Result<Stream> {
        Stream::of_call(self.device, handle, function)
    }

    /// What its creator asked for.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank.number
    }

    /// Number of ranks.
    pub fn nranks(&self) -> u32 {
        self.rank.nranks
    }

    /// Where its data lies.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Has it fail: all operations under way and to come do so, and the peers hear of it.
    pub fn fail(&self, error: Error) {
        self.rank.fail(error);
    }

    /// The operations that the user made.
    pub fn redops(&self) -> &redop::RedOps {
        &self.redops
    }

    /// The latched failure, if there is one that was not asked for; the user is told of it.
    pub fn failure(&self) -> Option<Error> {
        self.rank.deliver().filter(|_| !self.revoked.load(Ordering::Acquire))
    }

    /// Bounds the waiting of every operation; `None` takes the bound away.
    pub fn set_timeout(&self, limit: Option<Duration>) {
        self.executor.set_limit(limit);
    }

    /// Fails when the communicator is ended or broken.
    pub fn check(&self) -> Result<()> {
        if self.revoked.load(Ordering::Acquire) {
            return Err(self.revoked_error());
        }
        if let Some(error) = self.rank.deliver() {
            return Err(error);
        }
        if self.ended.load(Ordering::Acquire) {
            let hint = "no operation may follow ncclCommFinalize";
            return Err(Error::usage("the communicator is finalized", hint));
        }
        if self.suspended.load(Ordering::Acquire) {
            return Err(Error::usage("the communicator is suspended", "call ncclCommResume first"));
        }
        Ok(())
    }

    /// The programs for a call: from facts that all ranks share.
    pub fn programs(&self, call: &Call) -> Result<Arc<Programs>> {
        let key = (call.spec, call.count * call.dtype.size() as u64);
        let mut memory = self.programs.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((last, programs)) = &memory.last
            && *last == key
        {
            return Ok(programs.clone());
        }
        if let Some(programs) = memory.by_call.get(&key).cloned() {
            memory.last = Some((key, programs.clone()));
            return Ok(programs);
        }
        let chosen = select::choose(key.0, key.1, &self.topology, self.policy).or_else(|| {
            let policy = Policy { only: None, ..self.policy };
            select::choose(key.0, key.1, &self.topology, policy)
        });
        let Some(choice) = chosen else {
            let what = format!("no plan serves {:?}", key.0);
            return Err(Error::Internal { what });
        };
        Ok(memory.keep(key, choice, self.rank()))
    }

    /// Waits for all operations, and until the peers have taken what was sent to them; takes no
    /// more operations. An error tells who has not, or that the calls differ, unless the user
    /// knows. Blocks; for what was sent as long as an operation may wait, else for [`TAKING`]; of a
    /// failed communicator at most for [`QUIET`].
    pub fn finalize(&self) -> Result<()> {
        if self.revoked.load(Ordering::Acquire) {
            return Err(self.revoked_error());
        }
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
            let failed = self.rank.failure().is_some();
            let since = failed.then(|| *failed_since.get_or_insert_with(Instant::now));
            // What is still queued behind other work ends with the failure when it comes up.
            self.executor.busy() && since.is_none_or(|since| since.elapsed() < QUIET)
        });
    }

    /// Waits until the peers have taken what was sent to them: until then a rank has not heard
    /// whether its messages are what they expect.
    fn settle(&self) -> Result<()> {
        let asked = matches!(self.rank.failure(), Some(Error::Aborted { .. }));
        if asked || self.rank.is_delivered() || self.revoked.load(Ordering::Acquire) {
            return Ok(());
        }
        let limit_ns = self.rank.timeout_ns.load(Ordering::Relaxed);
        let limit = u64::try_from(limit_ns).map_or(TAKING, Duration::from_nanos);
        let (start, mut untaken) = (Instant::now(), None);
        self.executor.ask_taken();
        wait_while(|| {
            untaken = self.executor.untaken();
            // Another failure of a peer that has taken everything is none of this rank's.
            let concerns = |e: &Error| untaken.is_some() || e.code() == Code::InvalidUsage;
            if let Some(error) = self.rank.hear().filter(concerns) {
                self.rank.fail(error);
            }
            let comes = untaken.is_some_and(|(_, left)| !left);
            comes && self.rank.failure().is_none() && start.elapsed() < limit
        });
        let until = |left| match left {
            true => "before it destroyed its communicator".to_owned(),
            false => format!(
                "within {} ms, the limit of finalize and destroy",
                start.elapsed().as_millis()
            ),
        };
        let error = match (self.rank.failure(), untaken) {
            (Some(error), None) if error.code() != Code::InvalidUsage => return Ok(()),
            (Some(error), _) => error,
            (None, None) => return Ok(()),
            (None, Some((peer, left))) => {
                let (rank, peer) = (self.rank() as i32, peer as i32);
                let op_seq = self.rank.finished.load(Ordering::Acquire);
                let site = Site { rank, peer, step: -1, op_seq, operation: "" };
                Error::Untaken { site, until: until(left) }
            }
        };
        self.rank.set_delivered();
        Err(error)
    }

    /// Ends all operations now, with `why`. Returns when nothing touches the user's memory any
    /// more; the ranks that may still do so after a second are named in the error.
    fn stop(&self, why: Error) -> Result<()> {
        self.rank.fail(why);
        let writers = self.executor.stop(QUIET)?;
        if writers.is_empty() {
            return Ok(());
        }
        let why =
            format!("ranks {writers:?} do not answer and may still write into this rank's buffers");
        Err(self.rank.lost(writers[0], why))
    }

    /// Ends all operations and the communicator, whatever the other ranks do. Blocks for a second
    /// at most.
    pub fn abort(&self) -> Result<()> {
        let stopped = self.stop(Error::Aborted { by: "ncclCommAbort" });
        self.leave();
        stopped
    }

    /// Ends all operations; the communicator can only be destroyed after, or have children. Blocks
    /// for a second at most.
    pub fn revoke(&self) -> Result<()> {
        self.revoked.store(true, Ordering::Release);
        self.stop(Error::Aborted { by: "ncclCommRevoke" })
    }

    /// Gives memory back; operations are refused until [`resume`](Self::resume). None may be under
    /// way.
    pub fn suspend(&self) -> Result<()> {
        self.check()?;
        if self.executor.busy() {
            let hint = "synchronize its streams before";
            return Err(Error::usage("operations of the communicator are under way", hint));
        }
        self.suspended.store(true, Ordering::Release);
        let inboxes = |algorithm: Algorithm| algorithm.generator().needs == Needs::Inbox;
        self.executor.release_memory(self.policy.only.is_some_and(inboxes));
        Ok(())
    }

    /// Takes operations again.
    pub fn resume(&self) -> Result<()> {
        if self.suspended.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        Err(Error::usage("the communicator is not suspended", "call ncclCommSuspend before"))
    }

    /// What it takes in this process.
    pub fn memory(&self) -> Memory {
        let (releasable, persistent) = self.executor.memory_bytes();
        Memory { releasable, persistent, suspended: self.suspended.load(Ordering::Acquire) }
    }

    /// Ends the communicator: waits as [`finalize`](Self::finalize) does and leaves in order,
    /// whatever the outcome. Blocks.
    pub fn destroy(&self) -> Result<()> {
        self.drain();
        let settled = self.settle();
        self.leave();
        settled
    }

    fn leave(&self) {
        self.left.store(true, Ordering::Release);
        monitor::forget(&self.rank);
        self.executor.leave();
    }

    /// Why a plan would be chosen.
    pub fn explain(&self, spec: Spec, bytes: u64) -> String {
        select::explain(spec, bytes, &self.topology, self.policy)
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
                let programs = memory.keep((spec, 8), choice, 0);
                assert_eq!(programs.any.plan, plan);
                assert!(memory.by_call.contains_key(&(spec, 8)));
                assert!(memory.by_call.len() <= REMEMBERED);
                assert!(memory.by_choice.len() <= REMEMBERED);
                kept += 1;
            }
        }
        assert!(kept > REMEMBERED, "the bound was not reached");
    }
}
