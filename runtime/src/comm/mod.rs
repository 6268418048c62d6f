//! Communicators: what a call means, which plan carries it out, and the end of it all.

mod children;
mod connect;
mod create;
mod estimate;
mod holder;
pub mod memory;
mod options;
pub(crate) mod rank_info;
pub mod redop;
mod team;

use crate::device::Device;
use crate::device::cuda::driver::Entered;
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::stream::Stream as CudaStream;
use crate::device::cuda::{self, launch, reaper};
use crate::device::host::collective::MAX_DIRECT_RANKS;
use crate::device::host::endpoint::Endpoint;
use crate::device::host::stream::Stream;
use crate::device::host::{self, worker};
use crate::error::{Code, Error, Result, Site};
use crate::log::{self, Level, Subsystem};
use crate::op::{Call, OneSided, Programs, Transfer};
use crate::rank::monitor;
use oxccl_plan::cost::CostModel;
use oxccl_plan::generate::{Algorithm, Needs};
use oxccl_plan::select::{self, Policy, Topology};
use oxccl_plan::{Plan, Program, Spec};
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
    endpoint: Arc<Endpoint>,
    /// Of a communicator on a GPU.
    cuda_rank: Option<Arc<CudaRank>>,
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
    by_plans: HashMap<(Plan, Option<Plan>), Arc<Programs>>,
}

impl Remembered {
    /// Keeps the plans of a call, and their programs once for all calls that they serve.
    fn keep(
        &mut self,
        call: (Spec, u64),
        plans: (Plan, Option<Plan>),
        program: impl Fn(Plan) -> Program,
    ) -> Arc<Programs> {
        // Each call has brought at most one entry of the other table.
        if self.by_call.len() >= REMEMBERED {
            *self = Self::default();
        }
        let programs = self.by_plans.entry(plans).or_insert_with(|| {
            let with_program = |plan: Plan| (plan, program(plan));
            let (any, mapped) = (with_program(plans.0), plans.1.map(with_program));
            Arc::new(Programs { any, mapped })
        });
        let programs = programs.clone();
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
                self.endpoint.rank.fail(Error::Aborted { by: "its being dropped" });
            }
            self.leave();
        }
    }
}

impl Communicator {
    fn new(
        endpoint: Endpoint,
        device: Device,
        options: &Options,
        child_meetings: Option<ChildMeetings>,
    ) -> Self {
        let model = CostModel::SHARED_MEMORY;
        Self {
            endpoint: endpoint.share(),
            cuda_rank: None,
            device,
            topology: Topology {
                direct: false,
                pull: false,
                push: false,
                mapped_from_bytes: 0,
                model,
            },
            policy: Policy::default(),
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

    /// With what is known about the ways between the ranks.
    fn with_topology(mut self, hosts: usize, pull: bool, policy: Policy) -> Self {
        let direct = hosts == 1 && self.endpoint.rank.local.len() <= MAX_DIRECT_RANKS;
        let model = if hosts > 1 { CostModel::TCP } else { CostModel::SHARED_MEMORY };
        let edge_slot_bytes = self.endpoint.edge_slot_bytes as u64;
        let model = CostModel { edge_slot_bytes, ..model };
        self.topology = Topology { direct, pull, push: false, mapped_from_bytes: 0, model };
        self.policy = policy;
        self
    }

    /// On a GPU: the ranks reach each other's memory there.
    fn with_cuda_rank(mut self, cuda_rank: CudaRank) -> Self {
        self.topology = Topology::GPUS;
        let edges = |a: Algorithm| a.generator().needs == Needs::Edges;
        if let Some(only) = self.policy.only.filter(|a| edges(*a)) {
            let text = format!("OXCCL_ALGORITHM={} has no effect on GPUs", only.name());
            log::line_of(Some(self.rank()), Level::Warn, Subsystem::Init, &text);
            self.policy.only = None;
        }
        self.cuda_rank = Some(cuda_rank.attach(&self.endpoint.rank));
        self
    }

    /// Its place on a GPU, if it is on one.
    pub fn cuda_rank(&self) -> Option<&Arc<CudaRank>> {
        self.cuda_rank.as_ref()
    }

    fn on_gpu(&self) -> Result<&Arc<CudaRank>> {
        let missing = || Error::Internal { what: "a host communicator on a GPU".to_owned() };
        self.cuda_rank.as_ref().ok_or_else(missing)
    }

    /// Launches a collective on its GPU. Blocks: never.
    pub fn run_on_gpu(&self, call: &Call, stream: CudaStream) -> Result<()> {
        launch::run(self.on_gpu()?, &*self.programs(call)?, call, stream)
    }

    /// Launches a one-sided operation on its GPU. Blocks: never.
    pub fn one_sided_on_gpu(&self, item: &OneSided, stream: CudaStream) -> Result<()> {
        cuda::one_sided::run(self.on_gpu()?, item, stream)
    }

    /// Launches sends and receives on its GPU. Blocks: never.
    pub fn exchange_on_gpu(&self, transfers: &[Transfer], stream: CudaStream) -> Result<()> {
        launch::exchange(self.on_gpu()?, transfers, stream)
    }

    /// Makes its GPU's context the thread's.
    pub fn enter_gpu(&self) -> Result<Entered> {
        self.on_gpu()?.gpu.enter()
    }

    /// What its creator asked for.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.endpoint.rank.number
    }

    /// Number of ranks.
    pub fn nranks(&self) -> u32 {
        self.endpoint.rank.nranks
    }

    /// Where its data lies.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The place of this rank in the executor.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The operations that the user made.
    pub fn redops(&self) -> &redop::RedOps {
        &self.redops
    }

    /// The device's default stream.
    pub fn default_stream(&self) -> Arc<Stream> {
        host::default_stream(self.device.index())
    }

    /// The latched failure, if there is one that was not asked for; the user is told of it.
    pub fn failure(&self) -> Option<Error> {
        self.endpoint.rank.deliver().filter(|_| !self.revoked.load(Ordering::Acquire))
    }

    /// Bounds the waiting of every operation; None takes the bound away.
    pub fn set_timeout(&self, limit: Option<Duration>) {
        let ns = limit.map_or(-1, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
        self.endpoint.rank.timeout_ns.store(ns, Ordering::Relaxed);
        if let Some(cuda_rank) = &self.cuda_rank {
            cuda_rank.set_limit(u64::try_from(ns).ok());
        }
    }

    /// Fails when the communicator is ended or broken.
    pub fn check(&self) -> Result<()> {
        if self.revoked.load(Ordering::Acquire) {
            return Err(self.revoked_error());
        }
        if let Some(error) = self.endpoint.rank.deliver() {
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
        let plans = (choice.any_memory, choice.mapped);
        let rank = self.rank();
        Ok(memory.keep(key, plans, |plan| plan.program(rank)))
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
        worker::wait_while(|| {
            let failed = self.endpoint.rank.failure().is_some();
            let since = failed.then(|| *failed_since.get_or_insert_with(Instant::now));
            // What is still queued behind other work ends with the failure when it comes up.
            self.busy() && since.is_none_or(|since| since.elapsed() < QUIET)
        });
    }

    /// Waits until the peers have taken what was sent to them: until then a rank has not heard
    /// whether its messages are what they expect.
    fn settle(&self) -> Result<()> {
        let endpoint = &self.endpoint;
        let asked = matches!(endpoint.rank.failure(), Some(Error::Aborted { .. }));
        if asked || endpoint.rank.is_delivered() || self.revoked.load(Ordering::Acquire) {
            return Ok(());
        }
        let limit_ns = endpoint.rank.timeout_ns.load(Ordering::Relaxed);
        let limit = u64::try_from(limit_ns).map_or(TAKING, Duration::from_nanos);
        let (start, mut untaken) = (Instant::now(), None);
        endpoint.ask_taken();
        worker::wait_while(|| {
            untaken = endpoint.untaken();
            // Another failure of a peer that has taken everything is none of this rank's.
            let concerns = |e: &Error| untaken.is_some() || e.code() == Code::InvalidUsage;
            if let Some(error) = endpoint.rank.hear().filter(concerns) {
                endpoint.rank.fail(error);
            }
            let comes = untaken.is_some_and(|(_, left)| !left);
            comes && endpoint.rank.failure().is_none() && start.elapsed() < limit
        });
        let until = |left| match left {
            true => "before it destroyed its communicator".to_owned(),
            false => format!(
                "within {} ms, the limit of finalize and destroy",
                start.elapsed().as_millis()
            ),
        };
        let error = match (endpoint.rank.failure(), untaken) {
            (Some(error), None) if error.code() != Code::InvalidUsage => return Ok(()),
            (Some(error), _) => error,
            (None, None) => return Ok(()),
            (None, Some((peer, left))) => {
                let (rank, peer) = (self.rank() as i32, peer as i32);
                let op_seq = endpoint.rank.finished.load(Ordering::Acquire);
                let site = Site { rank, peer, step: -1, op_seq, operation: "" };
                Error::Untaken { site, until: until(left) }
            }
        };
        endpoint.rank.set_delivered();
        Err(error)
    }

    /// Ends all operations now, with `why`. Returns when nothing touches the user's memory any
    /// more; the ranks that may still do so after a second are named in the error.
    fn stop(&self, why: Error) -> Result<()> {
        self.endpoint.rank.fail(why);
        let start = Instant::now();
        // A visit under way ends before the state can be had.
        drop(self.endpoint.state());
        worker::wait_while(|| !self.endpoint.rank.writers().is_empty() && start.elapsed() < QUIET);
        // Those that run look at the word of the host twice per millisecond; those that wait for
        // their turn end when it comes.
        let sharing = self.cuda_rank.as_ref().and_then(|cuda_rank| cuda_rank.sharing());
        if let Some(cuda_rank) = &self.cuda_rank {
            cuda_rank.close()?;
        }
        if let Some(sharing) = sharing {
            sharing.fence();
        }
        let running = || self.cuda_rank.as_ref().is_some_and(|cuda_rank| cuda_rank.busy());
        // Who has left may be freeing memory, during which the driver lets nobody answer.
        let inside = |peer: &u32| !self.endpoint.rank.is_quiescent(*peer);
        let asked = || sharing.is_some_and(|sharing| sharing.fenced().iter().any(inside));
        worker::wait_while(|| (running() || asked()) && start.elapsed() < QUIET);
        let mut writers = self.endpoint.rank.writers();
        let missing = sharing.map_or_else(Vec::new, |sharing| sharing.end_fence());
        writers.extend(missing.into_iter().filter(inside));
        if writers.is_empty() {
            return Ok(());
        }
        let why =
            format!("ranks {writers:?} do not answer and may still write into this rank's buffers");
        Err(self.endpoint.rank.lost(writers[0], why))
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
        if self.busy() {
            let hint = "synchronize its streams before";
            return Err(Error::usage("operations of the communicator are under way", hint));
        }
        self.suspended.store(true, Ordering::Release);
        let inboxes = |algorithm: Algorithm| algorithm.generator().needs == Needs::Inbox;
        self.endpoint.release_memory(self.policy.only.is_some_and(inboxes));
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
        let (releasable, persistent) = self.endpoint.memory_bytes();
        let persistent =
            persistent + self.cuda_rank.as_ref().map_or(0, |cuda_rank| cuda_rank.bytes());
        Memory { releasable, persistent, suspended: self.suspended.load(Ordering::Acquire) }
    }

    /// Collectives so far that read or wrote the other ranks' user memory where it lies.
    pub fn in_place(&self) -> u64 {
        match &self.cuda_rank {
            Some(cuda_rank) => cuda_rank.in_place(),
            None => {
                let modes = self.endpoint.state().modes;
                modes.mapped + modes.pulled
            }
        }
    }

    /// Operations so far whose data copy engines of a GPU moved.
    pub fn by_copy_engines(&self) -> u64 {
        self.cuda_rank.as_ref().map_or(0, |cuda_rank| cuda_rank.by_engines())
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
        monitor::forget(&self.endpoint.rank);
        self.endpoint.leave();
        if let Some(cuda_rank) = &self.cuda_rank {
            // What cannot be closed any more ends with the process.
            let closed = cuda_rank.close();
            if let Err(error) = closed {
                let rank = Some(self.rank());
                log::line_of(rank, Level::Info, Subsystem::Init, &error.to_string());
            }
            reaper::retire(cuda_rank.clone(), self.endpoint.rank.clone());
        }
    }

    /// Whether operations are under way.
    fn busy(&self) -> bool {
        self.endpoint.rank.busy()
            || self.cuda_rank.as_ref().is_some_and(|cuda_rank| cuda_rank.busy())
    }

    /// Why a plan would be chosen.
    pub fn explain(&self, spec: Spec, bytes: u64) -> String {
        select::explain(spec, bytes, &self.topology, self.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::Collective;

    #[test]
    fn what_is_remembered_of_calls_is_bounded() {
        let mut memory = Remembered::default();
        let mut kept = 0;
        for nranks in 2..120 {
            for root in 0..nranks {
                let spec = Spec::new(Collective::Broadcast, nranks, root);
                let plan = Plan::candidates(spec).next().expect("a plan");
                let programs =
                    memory.keep((spec, 8), (plan, None), |_| Program { ops: Vec::new() });
                assert_eq!(programs.any.0, plan);
                assert!(memory.by_call.contains_key(&(spec, 8)));
                assert!(memory.by_call.len() <= REMEMBERED);
                assert!(memory.by_plans.len() <= REMEMBERED);
                kept += 1;
            }
        }
        assert!(kept > REMEMBERED, "the bound was not reached");
    }
}
