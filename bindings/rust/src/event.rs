//! Events: marks in streams.

use crate::call::{HOST, check, done, on_device};
use crate::error::Result;
use crate::options::With;
use crate::scope::{Scope, outside_capture, outside_group};
use capi::oxccl::event::{
    oxcclEventCreate, oxcclEventDestroy, oxcclEventElapsedTime, oxcclEventQuery, oxcclEventRecord,
};
use capi::oxccl::stream::oxcclStreamWaitEvent;
use capi::oxccl::types::oxcclEvent_t;
use std::ptr::{null_mut, without_provenance_mut};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time between two looks of a thread that waits for an event.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// A mark in a [`Stream`](crate::Stream): other streams wait for it, threads ask for it, and the
/// time between two of them is measured.
///
/// An event stands for its last record, and is complete before the first one. It may be used by
/// any thread, and dropped while streams still wait for it.
///
/// ```
/// # extern crate oxccl_rs as oxccl;
/// # fn main() -> oxccl::Result<()> {
/// # let comm = oxccl::Comm::from_rank(0, 1, oxccl::Id::new()?)?;
/// use oxccl::{Event, ReduceOp, Stream};
///
/// let (mut first, mut second) = (Stream::new()?, Stream::new()?);
/// let (event, mut x, mut y) = (Event::new()?, [1.0], [2.0]);
/// first.scope(|a| {
///     comm.all_reduce_in_place_on(a, &mut x, ReduceOp::Sum)?;
///     a.record(&event)?;
///     second.scope(|b| {
///         b.wait(&event)?;
///         // It begins behind the first one.
///         comm.all_reduce_in_place_on(b, &mut y, ReduceOp::Sum)
///     })
/// })?;
/// assert!(event.query()?);
/// # Ok(())
/// # }
/// ```
///
/// An event gives no buffer back: what an operation writes can be read when its scope has ended.
///
/// ```compile_fail,E0502
/// # extern crate oxccl_rs as oxccl;
/// # fn f(comm: oxccl::Comm, mut stream: oxccl::Stream) -> oxccl::Result<()> {
/// let (event, mut sums) = (oxccl::Event::new()?, [1.0]);
/// stream.scope(|s| {
///     comm.all_reduce_in_place_on(s, &mut sums, oxccl::ReduceOp::Sum)?;
///     s.record(&event)?;
///     event.synchronize(None)?;
///     println!("{sums:?}");
///     Ok(())
/// })
/// # }
/// ```
///
/// A buffer has to live longer than the scope of its operation, also where a scope within that one
/// waits for the event:
///
/// ```compile_fail,E0597
/// # extern crate oxccl_rs as oxccl;
/// # fn f(comm: oxccl::Comm, mut a: oxccl::Stream, mut b: oxccl::Stream) -> oxccl::Result<()> {
/// let event = oxccl::Event::new()?;
/// a.scope(|a| {
///     b.scope(|b| {
///         let mut sums = [1.0];
///         comm.all_reduce_in_place_on(a, &mut sums, oxccl::ReduceOp::Sum)?;
///         a.record(&event)?;
///         b.wait(&event)
///     })
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct Event {
    handle: usize,
}

impl Event {
    /// Makes an event. Blocks: never. Fails in a forked child.
    pub fn new() -> Result<Self> {
        let handle = on_device(HOST, || {
            let mut place = null_mut();
            // SAFETY: a place for the handle.
            check(unsafe { oxcclEventCreate(&mut place) })?;
            Ok(place.addr())
        })?;
        Ok(Self { handle })
    }

    /// Returns true when the stream has reached the last record of the event. Blocks: never.
    ///
    /// Operations that failed count as reached; the end of their scope returns the error.
    pub fn query(&self) -> Result<bool> {
        // SAFETY: any handle may be passed.
        done(unsafe { oxcclEventQuery(self.raw()) })
    }

    /// Waits until the stream has reached the last record of the event, at most for `limit`.
    /// Returns false when the time is over.
    ///
    /// Blocks, up to the limit. It cannot be called within a group.
    pub fn synchronize(&self, limit: Option<Duration>) -> Result<bool> {
        outside_group("synchronize")?;
        let start = Instant::now();
        while !self.query()? {
            let left = limit.map_or(LOOK_EVERY, |limit| limit.saturating_sub(start.elapsed()));
            if left.is_zero() {
                return Ok(false);
            }
            // The library's own threads do the work meanwhile.
            sleep(left.min(LOOK_EVERY));
        }
        Ok(true)
    }

    /// Returns the time from another event to this one. Blocks: never. Fails while one of them was
    /// not recorded, or was not reached.
    pub fn since(&self, start: &Event) -> Result<Duration> {
        let mut ms = 0.0;
        // SAFETY: any handles may be passed, and there is a place for the result.
        check(unsafe { oxcclEventElapsedTime(&mut ms, start.raw(), self.raw()) })?;
        Ok(Duration::from_secs_f64(f64::from(ms) / 1e3))
    }

    pub(crate) fn raw(&self) -> oxcclEvent_t {
        without_provenance_mut(self.handle)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: any handle may be passed; streams that wait for the event keep it.
        unsafe { oxcclEventDestroy(self.raw()) };
    }
}

/// Events.
impl Scope<'_, '_> {
    /// Records an event: it is complete when all operations that were begun in this scope before
    /// are. Blocks: never.
    ///
    /// Fails within a group, whose operations are launched at its end, and within
    /// [`capture`](Self::capture).
    pub fn record(&self, event: &Event) -> Result<()> {
        outside_capture(self.captures(), "record")?;
        let stream = self.own_stream("record")?;
        // SAFETY: any handles may be passed.
        check(unsafe { oxcclEventRecord(event.raw(), stream.raw()) })
    }

    /// Lets the operations that are begun in this scope from now on wait for the last record of an
    /// event. Blocks: never.
    ///
    /// Fails within a group, whose operations are launched at its end, and within
    /// [`capture`](Self::capture).
    pub fn wait(&self, event: &Event) -> Result<()> {
        outside_capture(self.captures(), "wait")?;
        let stream = self.own_stream("wait")?;
        // SAFETY: any handles may be passed.
        check(unsafe { oxcclStreamWaitEvent(stream.raw(), event.raw()) })
    }
}

impl<'comm> With<'comm, '_> {
    /// Records an event behind the calls that are made with what this returns, in place of
    /// [`launch_completion_event`](crate::CallOptions::launch_completion_event).
    ///
    /// Either all ranks record one, each its own, or none; in a group at most one call of a
    /// communicator does. Fails within [`capture`](Scope::capture).
    ///
    /// ```
    /// # extern crate oxccl_rs as oxccl;
    /// # fn main() -> oxccl::Result<()> {
    /// # let comm = oxccl::Comm::from_rank(0, 1, oxccl::Id::new()?)?;
    /// use oxccl::{CallOptions, Event, ReduceOp};
    ///
    /// let (options, event, mut x) = (CallOptions::new(), Event::new()?, [1]);
    /// comm.with(&options).recording(&event).all_reduce_in_place(&mut x, ReduceOp::Sum)?;
    /// assert!(event.query()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The event has to live until its calls are launched:
    ///
    /// ```compile_fail,E0505
    /// # extern crate oxccl_rs as oxccl;
    /// # fn f(comm: oxccl::Comm, mut stream: oxccl::Stream) -> oxccl::Result<()> {
    /// let (options, event, mut x) = (oxccl::CallOptions::new(), oxccl::Event::new()?, [1]);
    /// stream.scope(|s| {
    ///     let with = comm.with(&options).recording(&event);
    ///     drop(event);
    ///     with.all_reduce_in_place_on(s, &mut x, oxccl::ReduceOp::Sum)
    /// })
    /// # }
    /// ```
    pub fn recording(self, event: &'comm Event) -> Self {
        self.with_event(event.raw().addr())
    }
}
