//! A rank of a communicator, on any device: its identity, its connections to its peers, the
//! failures of the rank and its peers, and the agreement between them. Moving data is the task of
//! the device.

pub(crate) mod agreement;
mod connector;
mod failure;
pub mod inquiry;
pub mod monitor;
mod peers;
mod roster;

use crate::error::Error;
use crate::link::control::Control;
use crate::link::direct::Segment;
use crate::op::descriptor::Descriptor;
use crate::recorder::{Recorder, Section};
pub use connector::{Connector, Route};
pub use failure::{Awaited, Death, LEFT, VERDICT, broken};
pub use roster::{Member, Roster, rosters};
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// Returns the ends of a connection by which others wake a thread: a byte that is written to the
/// first one shows at the second one. Neither blocks.
fn wake_pair() -> std::io::Result<(UnixStream, UnixStream)> {
    let (wake, woken) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    Ok((wake, woken))
}

/// The state of a rank's messages and calls as the monitor sees it.
pub trait Links: Send + Sync {
    /// Returns the number of messages of a peer that were taken; `None` while an operation runs.
    fn taken_from(&self, peer: u32) -> Option<u64>;
    /// Returns the number of collectives begun so far; `None` while an operation runs.
    fn begun(&self) -> Option<u64>;
    /// Returns the collective with this number if it is remembered for peers of other hosts.
    fn remembered(&self, seq: u64) -> Option<Descriptor>;
}

/// The GPU that a rank's kernels run on.
pub trait Accelerator: Send + Sync {
    /// Makes running kernels give up.
    fn abort(&self);
    /// Records what running kernels wait for.
    fn record(&self);
    /// Notes that a peer has left in order: kernels wait for it no more.
    fn note_left(&self, peer: u32);
    /// Returns whether no operation is under way, nor may a graph be replayed; false also where
    /// that cannot be told at once.
    fn is_idle(&self) -> bool;
}

/// A rank of a communicator.
pub struct Rank {
    /// The number of the rank.
    pub number: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// The memory shared with the ranks of this host; `None` for a communicator of one rank and if
    /// no other rank is on this host.
    pub segment: Option<Arc<Segment>>,
    /// The places of the ranks in the segment; `None` for ranks of other hosts.
    pub local: Vec<Option<usize>>,
    /// Process ids of the ranks of this host.
    pub pids: Vec<i32>,
    /// The limit in ns for which an operation waits; −1 for none.
    pub timeout_ns: AtomicI64,
    /// The record of the rank's operations, with the numbers of those called and of those done.
    pub recorder: Recorder,
    links: OnceLock<Weak<dyn Links>>,
    accelerator: OnceLock<Weak<dyn Accelerator>>,
    /// Control connections with the ranks of other hosts, by rank, in the order in which they were
    /// made.
    controls: Mutex<Vec<Vec<Arc<Control>>>>,
    /// The connections that are made at first use; empty if all are made at once.
    connector: OnceLock<Arc<Connector>>,
    /// The peers that have died, in this order, and the reasons why they are believed dead.
    deaths: Mutex<Vec<(u32, Death)>>,
    roster: OnceLock<Arc<Roster>>,
    /// The network that carries data between hosts, as errors name it; unset on one host.
    network: OnceLock<String>,
    failed: AtomicBool,
    failure: OnceLock<Error>,
    /// Set once the user was told of the failure.
    delivered: AtomicBool,
    /// Set once an operation on host memory has ended early, because of the failure.
    cut_short: AtomicBool,
    /// Number and name of the operation that last had to wait.
    waiting: Mutex<(u64, &'static str)>,
    /// The latest notices of peers on other hosts about their operations, by rank.
    said: Mutex<HashMap<u32, agreement::Said>>,
}

impl Rank {
    /// Returns a rank that has executed nothing yet.
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
            recorder: Recorder::default(),
            links: OnceLock::new(),
            accelerator: OnceLock::new(),
            controls: Mutex::default(),
            connector: OnceLock::new(),
            deaths: Mutex::default(),
            roster: OnceLock::new(),
            network: OnceLock::new(),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            delivered: AtomicBool::new(false),
            cut_short: AtomicBool::new(false),
            waiting: Mutex::default(),
            said: Mutex::default(),
        }
    }

    /// Returns the rank with the recorder that has recorded its creation.
    pub fn recorded_by(self, recorder: Recorder) -> Self {
        Self { recorder, ..self }
    }

    /// Ties the rank to the links that move its messages.
    pub fn set_links(&self, links: Weak<dyn Links>) {
        let _ = self.links.set(links);
    }

    fn links(&self) -> Option<Arc<dyn Links>> {
        self.links.get().and_then(Weak::upgrade)
    }

    /// Ties the rank to its GPU, whose kernels end with it.
    pub fn set_accelerator(&self, accelerator: Weak<dyn Accelerator>) {
        let _ = self.accelerator.set(accelerator);
    }

    /// Notes which network carries data between hosts, as errors name it.
    pub fn set_network(&self, network: String) {
        let _ = self.network.set(network);
    }

    fn accelerator(&self) -> Option<Arc<dyn Accelerator>> {
        self.accelerator.get().and_then(Weak::upgrade)
    }

    /// Returns whether the data of the rank lie on a GPU.
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.accelerator.get().is_some()
    }

    /// Returns the segment that the rank shares with the ranks of its host, and its place there.
    #[inline]
    pub fn place(&self) -> Option<(&Arc<Segment>, usize)> {
        self.segment.as_ref().zip(self.local[self.number as usize])
    }

    /// Bounds the waiting of every operation; `None` removes the bound.
    pub fn set_limit(&self, limit: Option<Duration>) {
        let ns = limit.map_or(-1, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
        self.timeout_ns.store(ns, Ordering::Relaxed);
    }

    /// Returns whether no operation is under way, so that a failure ends none; false also where
    /// that cannot be told at once.
    fn is_idle(&self) -> bool {
        self.accelerator().map_or_else(|| !self.busy(), |accelerator| accelerator.is_idle())
    }

    /// Returns whether operations are under way or waiting.
    pub fn busy(&self) -> bool {
        let Section { issued, finished, .. } = &*self.recorder;
        issued.load(Ordering::Acquire) != finished.load(Ordering::Acquire)
    }
}
