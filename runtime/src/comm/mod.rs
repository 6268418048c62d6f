//! Communicators: what a call means, which plan carries it out, and the end of it all.

mod blob;
mod create;
mod estimate;
pub mod redop;

use crate::device::host::collective::{Call, MAX_DIRECT_RANKS, Programs};
use crate::device::host::endpoint::Endpoint;
use crate::device::host::stream::Stream;
use crate::device::host::{self, worker};
use crate::error::{Error, Result};
use crate::link::direct::PeerState;
use crate::monitor;
use oxccl_plan::cost::CostModel;
use oxccl_plan::generate::{Algorithm, GENERATORS};
use oxccl_plan::select::{self, Topology};
use oxccl_plan::{Plan, Spec};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use create::{Member, create};

/// Plans that a communicator remembers before it forgets them all.
const REMEMBERED: usize = 4096;

/// A communicator.
pub struct Communicator {
    endpoint: Arc<Endpoint>,
    device: i32,
    topology: Topology,
    only: Option<Algorithm>,
    programs: Mutex<Remembered>,
    redops: redop::RedOps,
    ended: AtomicBool,
}

#[derive(Default)]
struct Remembered {
    last: Option<((Spec, u64), Arc<Programs>)>,
    by_call: HashMap<(Spec, u64), Arc<Programs>>,
    by_plans: HashMap<(Plan, Option<Plan>), Arc<Programs>>,
}

/// The algorithm that a variable names, if any.
fn algorithm_named(name: &str) -> Option<Algorithm> {
    GENERATORS.iter().find(|g| g.name == name).map(|g| g.algorithm)
}

impl Communicator {
    fn new(endpoint: Endpoint, device: i32, hosts: usize, pull: bool, algorithm: &str) -> Self {
        let direct = hosts == 1 && endpoint.local.len() <= MAX_DIRECT_RANKS;
        let model = if hosts > 1 { CostModel::TCP } else { CostModel::SHARED_MEMORY };
        let model = CostModel { edge_slot_bytes: endpoint.edge_slot_bytes as u64, ..model };
        Self {
            endpoint: Arc::new(endpoint),
            device,
            topology: Topology { direct, pull, model },
            only: algorithm_named(algorithm),
            programs: Mutex::default(),
            redops: redop::RedOps::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.endpoint.rank
    }

    /// Number of ranks.
    pub fn nranks(&self) -> u32 {
        self.endpoint.nranks
    }

    /// The device's index.
    pub fn device(&self) -> i32 {
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
        host::default_stream(self.device)
    }

    /// The latched failure, if there is one.
    pub fn failure(&self) -> Option<Error> {
        self.endpoint.failure()
    }

    /// Bounds the waiting of every operation; None takes the bound away.
    pub fn set_timeout(&self, limit: Option<Duration>) {
        let ns = limit.map_or(-1, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
        self.endpoint.timeout_ns.store(ns, Ordering::Relaxed);
    }

    /// Fails when the communicator is ended or broken.
    pub fn check(&self) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        if self.ended.load(Ordering::Acquire) {
            let hint = "no operation may follow ncclCommFinalize";
            return Err(Error::usage("the communicator is finalized", hint));
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
        let chosen = select::choose(key.0, key.1, &self.topology, self.only)
            .or_else(|| select::choose(key.0, key.1, &self.topology, None));
        let Some(choice) = chosen else {
            let what = format!("no plan serves {:?}", key.0);
            return Err(Error::Internal { what });
        };
        let plans = (choice.any_memory, choice.mapped);
        let rank = self.rank();
        let programs = memory.by_plans.entry(plans).or_insert_with(|| {
            let with_program = |plan: Plan| (plan, plan.program(rank));
            let (any, mapped) = (with_program(plans.0), plans.1.map(with_program));
            Arc::new(Programs { any, mapped })
        });
        let programs = programs.clone();
        if memory.by_call.len() >= REMEMBERED {
            memory.by_call.clear();
        }
        memory.by_call.insert(key, programs.clone());
        memory.last = Some((key, programs.clone()));
        Ok(programs)
    }

    /// Waits for all operations, and takes no more. Blocks.
    pub fn finalize(&self) {
        self.ended.store(true, Ordering::Release);
        worker::wait_idle(&self.endpoint);
    }

    /// Ends the communicator: waits for all operations and leaves in order. Blocks.
    pub fn destroy(&self) {
        self.finalize();
        monitor::forget(&self.endpoint);
        let endpoint = &self.endpoint;
        if let (Some(segment), Some(local)) =
            (&endpoint.segment, endpoint.local[self.rank() as usize])
        {
            segment.state(local).store(PeerState::Left as u64, Ordering::Release);
        }
        let hint = "make a new communicator";
        endpoint.retire(Error::usage("the communicator was destroyed", hint));
        let mut state = endpoint.state();
        state.edges.iter_mut().for_each(crate::link::Edge::farewell);
        // Connections end here, also when a graph still holds the endpoint.
        state.edges.clear();
    }

    /// Why a plan would be chosen.
    pub fn explain(&self, spec: Spec, bytes: u64) -> String {
        select::explain(spec, bytes, &self.topology)
    }
}
