//! A rank of a communicator, on whatever device: who it is, how it reaches its peers, what it and
//! they have failed of, and what they agree on. How its data moves is the device's concern.

pub(crate) mod agreement;
mod failure;
pub mod monitor;
mod peers;

use crate::error::Error;
use crate::link::control::Control;
use crate::link::direct::Segment;
use crate::op::descriptor::Descriptor;
pub use failure::{Awaited, Death};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// What a rank's messages and calls look like from outside, for the monitor.
pub trait Links: Send + Sync {
    /// Messages of a peer that were taken; `None` while an operation runs.
    fn taken_from(&self, peer: u32) -> Option<u64>;
    /// Collectives begun so far; `None` while an operation runs.
    fn begun(&self) -> Option<u64>;
    /// The collective of this number, where it is remembered for peers of other hosts.
    fn remembered(&self, seq: u64) -> Option<Descriptor>;
}

/// The GPU that a rank's kernels run on.
pub trait Accelerator: Send + Sync {
    /// Makes running kernels give up.
    fn abort(&self);
    /// A peer has left in order: kernels wait for it no more.
    fn note_left(&self, peer: u32);
}

/// A rank of a communicator.
pub struct Rank {
    /// Its number.
    pub number: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Memory shared with the ranks of this host; `None` for one rank and where there is no other.
    pub segment: Option<Arc<Segment>>,
    /// Places of the ranks in the segment; `None` for ranks elsewhere.
    pub local: Vec<Option<usize>>,
    /// Process ids of the ranks of this host.
    pub pids: Vec<i32>,
    /// Limit for an operation's waiting in ns; −1 for none.
    pub timeout_ns: AtomicI64,
    /// Operations called, and operations done: they run in the order of their calls.
    pub issued: AtomicU64,
    /// See `issued`.
    pub finished: AtomicU64,
    links: OnceLock<Weak<dyn Links>>,
    accelerator: OnceLock<Weak<dyn Accelerator>>,
    /// Control connections with the ranks of other hosts, by rank.
    controls: Mutex<Vec<Option<Arc<Control>>>>,
    /// Peers that have died, in this order, and why that is believed.
    deaths: Mutex<Vec<(u32, Death)>>,
    failed: AtomicBool,
    failure: OnceLock<Error>,
    /// Whether the user was told of the failure.
    delivered: AtomicBool,
    /// Number and name of the operation that last had to wait.
    waiting: Mutex<(u64, &'static str)>,
}

impl Rank {
    /// A rank that has done nothing yet.
    pub fn new(
        number: u32,
        local: Vec<Option<usize>>,
        segment: Option<Arc<Segment>>,
        pids: Vec<i32>,
    ) -> Self {
        Self {
            number,
            nranks: local.len() as u32,
            segment,
            local,
            pids,
            timeout_ns: AtomicI64::new(-1),
            issued: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            links: OnceLock::new(),
            accelerator: OnceLock::new(),
            controls: Mutex::default(),
            deaths: Mutex::default(),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            delivered: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// Ties it to what moves its messages.
    pub fn set_links(&self, links: Weak<dyn Links>) {
        let _ = self.links.set(links);
    }

    fn links(&self) -> Option<Arc<dyn Links>> {
        self.links.get().and_then(Weak::upgrade)
    }

    /// Ties it to its GPU, whose kernels end with it.
    pub fn set_accelerator(&self, accelerator: Weak<dyn Accelerator>) {
        let _ = self.accelerator.set(accelerator);
    }

    fn accelerator(&self) -> Option<Arc<dyn Accelerator>> {
        self.accelerator.get().and_then(Weak::upgrade)
    }

    /// Whether its data lies on a GPU.
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.accelerator.get().is_some()
    }

    /// The segment that it shares with the ranks of its host, and its place there.
    #[inline]
    pub fn place(&self) -> Option<(&Arc<Segment>, usize)> {
        self.segment.as_ref().zip(self.local[self.number as usize])
    }

    /// Bounds the waiting of every operation; `None` takes the bound away.
    pub fn set_limit(&self, limit: Option<Duration>) {
        let ns = limit.map_or(-1, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
        self.timeout_ns.store(ns, Ordering::Relaxed);
    }

    /// Whether operations are under way or waiting.
    pub fn busy(&self) -> bool {
        self.issued.load(Ordering::Acquire) != self.finished.load(Ordering::Acquire)
    }
}
