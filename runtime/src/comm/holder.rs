//! What a handle stands for: a communicator that may still be in the making, and what is under way
//! for one that does not block.

use super::{Communicator, Member, Options, children, create};
use crate::bootstrap::{Cancel, UniqueId};
use crate::error::{Error, Result};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Where a communicator comes from.
#[derive(Clone)]
pub enum Origin {
    /// A unique id.
    Id {
        /// The id.
        id: UniqueId,
        /// This rank.
        rank: u32,
        /// The number of ranks.
        nranks: u32,
    },
    /// Ranks of equal color, ordered by key.
    Split {
        /// The parent.
        parent: Arc<Communicator>,
        /// −1 for a rank that joins none.
        color: i32,
        /// Its place among equals.
        key: i32,
    },
    /// All ranks but some.
    Shrink {
        /// The parent.
        parent: Arc<Communicator>,
        /// Who stays out, in ascending order.
        excluded: Vec<u32>,
        /// Whether the parent's operations are ended first.
        abort: bool,
    },
    /// All ranks and more.
    Grow {
        /// The parent.
        parent: Arc<Communicator>,
        /// The number of ranks then.
        nranks: u32,
        /// Given on one rank.
        id: Option<UniqueId>,
    },
}

enum Job {
    None,
    Running,
    Failed(Error),
}

/// A communicator or its future.
pub struct Holder {
    device: i32,
    options: Options,
    ready: OnceLock<Arc<Communicator>>,
    job: Mutex<Job>,
    cancel: Cancel,
}

impl Holder {
    /// An empty one.
    pub fn new(device: i32, options: Options) -> Self {
        let (ready, cancel) = (OnceLock::new(), Cancel::default());
        Self { device, options, ready, job: Mutex::new(Job::None), cancel }
    }

    fn job(&self) -> MutexGuard<'_, Job> {
        self.job.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What its creator asked for.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The communicator, once it is made.
    pub fn ready(&self) -> Result<&Arc<Communicator>> {
        if let Some(comm) = self.ready.get() {
            return Ok(comm);
        }
        Err(match &*self.job() {
            Job::Failed(error) => error.clone(),
            Job::Running | Job::None => {
                let hint = "wait until ncclCommGetAsyncError reports ncclSuccess";
                Error::usage("the communicator is not ready yet", hint)
            }
        })
    }

    /// Whether something is under way, or how it or the communicator failed.
    pub fn state(&self) -> Result<bool> {
        match &*self.job() {
            Job::Running => return Ok(true),
            Job::Failed(error) => return Err(error.clone()),
            Job::None => {}
        }
        let failed = self.ready.get().and_then(|comm| comm.failure());
        failed.map_or(Ok(false), Err)
    }

    /// Makes the communicator; false when this rank joins none. Blocks for the other ranks.
    pub fn make(&self, origin: &Origin) -> Result<bool> {
        let (device, options, cancel) = (self.device, &self.options, &self.cancel);
        let made = match origin {
            Origin::Id { id, rank, nranks } => {
                let (id, options) = (id.clone(), options.clone());
                let member = Member { id, rank: *rank, nranks: *nranks, device, options };
                Some(create::join(&member, cancel)?)
            }
            Origin::Split { parent, color, key } => {
                children::split(parent, (*color, *key), device, options, cancel)?
            }
            Origin::Shrink { parent, excluded, abort } => {
                Some(children::shrink(parent, excluded, *abort, device, options, cancel)?)
            }
            Origin::Grow { parent, nranks, id } => {
                Some(children::grow(parent, *nranks, id.as_ref(), device, options, cancel)?)
            }
        };
        let Some(made) = made else { return Ok(false) };
        let made = Arc::new(made);
        if self.ready.set(made.clone()).is_err() {
            return Err(Error::Internal { what: "a communicator was made twice".to_owned() });
        }
        if self.cancel.load(Ordering::Acquire) {
            // It was aborted when it was just done.
            made.abort()?;
        }
        Ok(true)
    }

    /// Does something in a thread of its own; until it is done, [`state`](Self::state) says so, here
    /// and of the parent.
    pub fn start(
        self: &Arc<Self>,
        parent: Option<Arc<Holder>>,
        work: impl FnOnce(&Self) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        *self.job() = Job::Running;
        if let Some(parent) = &parent {
            *parent.job() = Job::Running;
        }
        let own = self.clone();
        let run = move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&own)));
            let panicked = || Error::Internal { what: "the library's thread panicked".to_owned() };
            let outcome = outcome.unwrap_or_else(|_| Err(panicked()));
            *own.job() = outcome.map_or_else(Job::Failed, |()| Job::None);
            if let Some(parent) = &parent {
                *parent.job() = Job::None;
            }
        };
        let spawned = std::thread::Builder::new().name("oxccl-init".to_owned()).spawn(run);
        spawned.map(drop).map_err(|e| {
            *self.job() = Job::None;
            Error::system("starting a thread", e, "raise ulimit -u")
        })
    }

    /// Ends what is under way, and the communicator. Blocks for a second at most.
    pub fn abort(&self) -> Result<()> {
        self.cancel.store(true, Ordering::Release);
        self.ready.get().map_or(Ok(()), |comm| comm.abort())
    }

    /// Ends the communicator when its operations are complete. Blocks.
    pub fn destroy(&self) {
        self.cancel.store(true, Ordering::Release);
        if let Some(comm) = self.ready.get() {
            comm.destroy();
        }
    }
}
