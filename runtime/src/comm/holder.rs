//! What a handle stands for: a communicator that may still be in the making, and what is under way
//! for one that does not block.

use super::{Communicator, Member, Options, children, create};
use crate::bootstrap::{Cancel, UniqueId};
use crate::device::{Device, wait_while};
use crate::error::{Error, Result};
use crate::exit;
use std::sync::atomic::{Ordering, fence};
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
        /// Number of the call on the parent.
        number: u64,
    },
    /// All ranks but some.
    Shrink {
        /// The parent.
        parent: Arc<Communicator>,
        /// Who stays out, in ascending order.
        excluded: Vec<u32>,
        /// Whether the parent's operations are ended first.
        abort: bool,
        /// Number of the call with these ranks.
        number: u64,
    },
    /// All ranks and more.
    Grow {
        /// The parent.
        parent: Arc<Communicator>,
        /// The number of ranks then.
        nranks: u32,
        /// Given on one rank.
        id: Option<UniqueId>,
        /// Number of the call on the parent.
        number: u64,
    },
}

impl Origin {
    /// The communicator that it is made from, if any.
    fn parent(&self) -> Option<&Arc<Communicator>> {
        match self {
            Origin::Id { .. } => None,
            Origin::Split { parent, .. }
            | Origin::Shrink { parent, .. }
            | Origin::Grow { parent, .. } => Some(parent),
        }
    }
}

/// What is under way in threads, and how the last of it failed.
#[derive(Default)]
struct Jobs {
    running: u32,
    failed: Option<Error>,
}

/// A communicator or its future.
pub struct Holder {
    device: Device,
    options: Options,
    ready: OnceLock<Arc<Communicator>>,
    jobs: Mutex<Jobs>,
    cancel: Cancel,
}

impl Holder {
    /// An empty one.
    pub fn new(device: Device, options: Options) -> Self {
        let (ready, cancel) = (OnceLock::new(), Cancel::default());
        Self { device, options, ready, jobs: Mutex::default(), cancel }
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(|e| e.into_inner())
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
        let hint = "wait until ncclCommGetAsyncError reports ncclSuccess";
        let early = || Error::usage("the communicator is not ready yet", hint);
        Err(self.jobs().failed.clone().unwrap_or_else(early))
    }

    /// Whether something is under way, or how it or the communicator failed.
    pub fn state(&self) -> Result<bool> {
        let jobs = self.jobs();
        if jobs.running > 0 {
            return Ok(true);
        }
        if let Some(error) = &jobs.failed {
            return Err(error.clone());
        }
        drop(jobs);
        let failed = self.ready.get().and_then(|comm| comm.failure());
        failed.map_or(Ok(false), Err)
    }

    /// Makes the communicator; false when this rank joins none. Blocks for the other ranks.
    pub fn make(&self, origin: &Origin) -> Result<bool> {
        let made = self.make_from(origin).inspect_err(|error| {
            // The others of the parent hear of a death before this process may end because of it.
            if let (Some(parent), Error::InitPeer { site, why, died: true }) =
                (origin.parent(), error)
                && let Some(peer) = u32::try_from(site.peer)
                    .ok()
                    .filter(|p| *p < parent.nranks() && *p != parent.rank())
            {
                parent.rank.lose(peer, why.clone());
            }
        })?;
        let Some(made) = made else { return Ok(false) };
        let made = Arc::new(made);
        if self.ready.set(made.clone()).is_err() {
            return Err(Error::Internal { what: "a communicator was made twice".to_owned() });
        }
        // One of this and an abort at the same time sees the other.
        fence(Ordering::SeqCst);
        if self.cancel.load(Ordering::Acquire) {
            // It was aborted when it was just done.
            made.abort()?;
        }
        Ok(true)
    }

    fn make_from(&self, origin: &Origin) -> Result<Option<Communicator>> {
        let (device, options, cancel) = (self.device, &self.options, &self.cancel);
        match origin {
            Origin::Id { id, rank, nranks } => {
                let (id, options) = (id.clone(), options.clone());
                let member = Member { id, rank: *rank, nranks: *nranks, device, options };
                create::join(&member, cancel, (None, None)).map(Some)
            }
            Origin::Split { parent, color, key, number } => {
                children::split(parent, (*color, *key, *number), device, options, cancel)
            }
            Origin::Shrink { parent, excluded, abort, number } => {
                let whom = (&excluded[..], *number);
                children::shrink(parent, whom, *abort, device, options, cancel).map(Some)
            }
            Origin::Grow { parent, nranks, id, number } => {
                let id = (id.as_ref(), *number);
                children::grow(parent, *nranks, id, device, options, cancel).map(Some)
            }
        }
    }

    /// Does something in a thread of its own; until it is done, [`state`](Self::state) says so,
    /// here and of the parent.
    pub fn start(
        self: &Arc<Self>,
        parent: Option<Arc<Holder>>,
        work: impl FnOnce(&Self) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.jobs().running += 1;
        if let Some(parent) = &parent {
            parent.jobs().running += 1;
        }
        let (own, of) = (self.clone(), parent.clone());
        let run = move || {
            exit::mark_own_thread();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&own)));
            let panicked = || Error::Internal { what: "the library's thread panicked".to_owned() };
            let outcome = outcome.unwrap_or_else(|_| Err(panicked()));
            own.over(outcome.err());
            if let Some(parent) = &of {
                parent.over(None);
            }
        };
        let spawned = std::thread::Builder::new().name("oxccl-init".to_owned()).spawn(run);
        spawned.map(drop).map_err(|e| {
            let error = Error::system("starting a thread", e, "raise ulimit -u");
            self.over(Some(error.clone()));
            if let Some(parent) = &parent {
                parent.over(None);
            }
            error
        })
    }

    fn over(&self, failed: Option<Error>) {
        let mut jobs = self.jobs();
        jobs.running -= 1;
        if jobs.failed.is_none() {
            jobs.failed = failed;
        }
    }

    /// Ends what is under way, and the communicator. Blocks for a second at most.
    pub fn abort(&self) -> Result<()> {
        self.cancel.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.ready.get().map_or(Ok(()), |comm| comm.abort())
    }

    /// Ends the communicator when its operations are complete, and the children that are being
    /// made: the others need this rank also for one that it is no member of. Blocks.
    pub fn destroy(&self) -> Result<()> {
        self.cancel.store(true, Ordering::Release);
        wait_while(|| self.jobs().running > 0);
        self.ready.get().map_or(Ok(()), |comm| comm.destroy())
    }
}
