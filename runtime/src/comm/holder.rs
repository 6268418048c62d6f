//! The object behind a communicator's handle: the communicator, which may still be in the making,
//! and the threads at work for a non-blocking one.

use super::{Communicator, Member, Options, children, create};
use crate::bootstrap::{Cancel, UniqueId};
use crate::device::{Device, wait_while};
use crate::error::{Error, Result};
use crate::exit;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The source that a communicator is made from.
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
    /// A split: the ranks of equal color, ordered by key.
    Split {
        /// The parent.
        parent: Arc<Communicator>,
        /// The color of this rank; −1 for a rank that joins no child.
        color: i32,
        /// The key of this rank, which orders the ranks of equal color.
        key: i32,
        /// The number of the call among the splits of the parent.
        number: u64,
    },
    /// A shrink: all ranks of the parent except some.
    Shrink {
        /// The parent.
        parent: Arc<Communicator>,
        /// The excluded ranks, in ascending order.
        excluded: Vec<u32>,
        /// True if the parent's operations are ended first.
        abort: bool,
        /// The number of the call among the shrinks of the parent that exclude the same ranks.
        number: u64,
    },
    /// A growth: all ranks of the parent and additional ones.
    Grow {
        /// The parent.
        parent: Arc<Communicator>,
        /// The number of ranks after the growth.
        nranks: u32,
        /// The id that the new ranks have; given on one rank of the parent.
        id: Option<UniqueId>,
        /// The number of the call among the growths of the parent.
        number: u64,
    },
}

impl Origin {
    /// Returns the communicator that the new one is made from, if any.
    fn parent(&self) -> Option<&Arc<Communicator>> {
        match self {
            Origin::Id { .. } => None,
            Origin::Split { parent, .. }
            | Origin::Shrink { parent, .. }
            | Origin::Grow { parent, .. } => Some(parent),
        }
    }
}

/// The number of threads at work for a communicator, and the first failure of one.
#[derive(Default)]
struct Jobs {
    running: u32,
    failed: Option<Error>,
}

/// A communicator, or one that is still in the making.
pub struct Holder {
    device: Device,
    options: Options,
    ready: OnceLock<Arc<Communicator>>,
    jobs: Mutex<Jobs>,
    cancel: Cancel,
}

impl Holder {
    /// Returns a holder without a communicator.
    pub fn new(device: Device, options: Options) -> Self {
        let (ready, cancel) = (OnceLock::new(), Cancel::default());
        Self { device, options, ready, jobs: Mutex::default(), cancel }
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the options that the communicator's creator asked for.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the communicator. Before it is made, fails with the reason why its creation failed,
    /// or says that it is not ready yet.
    #[inline]
    pub fn ready(&self) -> Result<&Arc<Communicator>> {
        self.ready.get().ok_or_else(|| self.not_ready())
    }

    /// Returns why there is no communicator.
    #[cold]
    fn not_ready(&self) -> Error {
        let hint = "wait until ncclCommGetAsyncError reports ncclSuccess";
        let early = || Error::usage("the communicator is not ready yet", hint);
        self.jobs().failed.clone().unwrap_or_else(early)
    }

    /// Returns whether a thread is at work for the communicator. If none is, fails with the failure
    /// of a thread or of the communicator.
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

    /// Makes the communicator. Returns false if this rank joins none. Blocks for the other ranks.
    pub fn make(&self, origin: &Origin) -> Result<bool> {
        let made = self.make_from(origin).inspect_err(|error| {
            // The parent's other ranks hear of a death before this process may end because of it.
            if let (Some(parent), Error::InitPeer { site, why, died: true }) =
                (origin.parent(), error)
                && let Some(peer) = u32::try_from(site.peer)
                    .ok()
                    .filter(|p| *p < parent.nranks() && *p != parent.rank())
            {
                parent.executor().rank().lose(peer, why.clone());
            }
        })?;
        let Some(made) = made else { return Ok(false) };
        let made = Arc::new(made);
        if self.ready.set(made.clone()).is_err() {
            return Err(Error::Internal { what: "a communicator was made twice".to_owned() });
        }
        // Of this thread and a concurrent `abort`, at least one sees the store of the other.
        fence(Ordering::SeqCst);
        if self.cancel.load(Ordering::Acquire) {
            // The communicator was aborted while it was being completed.
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

    /// Runs `work` in a thread of its own. Until it is done, [`state`](Self::state) reports work
    /// under way for this holder and for `parent`.
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

    /// Cancels the creation if it is under way, and aborts the communicator. Blocks for a second at
    /// most.
    pub fn abort(&self) -> Result<()> {
        self.cancel.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.ready.get().map_or(Ok(()), |comm| comm.abort())
    }

    /// Destroys the communicator when its operations are complete. Waits first for the children
    /// that are being made, because the other ranks need this rank even for a child that it does
    /// not join. Blocks.
    pub fn destroy(&self) -> Result<()> {
        self.cancel.store(true, Ordering::Release);
        wait_while(|| self.jobs().running > 0);
        self.ready.get().map_or(Ok(()), |comm| comm.destroy())
    }
}
