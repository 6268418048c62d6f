//! Streams: in-order queues of work that any thread may advance.
//!
//! The thread that holds a stream's `current` task owns the stream for that moment. It is a calling
//! thread within its short inline budget, a thread in synchronize, or the worker. A call never
//! waits for a peer.

use super::collective::Budget;
use super::endpoint::Endpoint;
use super::event::Event;
use super::graph::Capture;
use super::lock::{CallGuard, CallMutex};
use super::task::{Failed, Step, Task, WRITERS, Work, try_now};
use super::worker;
use crate::cancel::Uncancelled;
use crate::error::{Error, Quick, Result};
use crate::op::follow::Runs;
use crate::op::{Call, Operation, Programs};
use crate::rank::Rank;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::{Duration, Instant};

/// The limits of a call's work before it returns: 3 to 6 µs of polling, or 16 KiB of work.
const INLINE: Budget = Budget { polls: 64, bytes: 16 << 10 };
/// With `FAR_AHEAD` or more calls pending, only every `LOOK_EVERY`th call looks whether the first
/// pending one can advance.
const FAR_AHEAD: usize = 8;
const LOOK_EVERY: usize = 4;
/// The time for which a thread owns a stream at most: that which a profiler may take for a call.
/// But for that it owns it for a few microseconds.
pub(super) const OWNED: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 10_000 });
/// The most that counts of the time between two looks: the process may have been stopped.
const GAP: Duration = Duration::from_millis(100);
/// The limits of one visit by a waiting thread.
pub(super) const VISIT: Budget = Budget { polls: 32, bytes: 1 << 20 };

/// A stream of the host device.
#[derive(Default)]
pub struct Stream {
    queue: CallMutex<Queue>,
    current: Mutex<Option<Task>>,
    /// The number of tasks that are not complete: in the queue, or current.
    pending: AtomicUsize,
    /// True while the worker knows that the stream has work.
    active: AtomicBool,
    error: Mutex<Option<Failed>>,
    /// For how long each look has found the stream owned by another thread, and the last look.
    owned: Mutex<Option<(Duration, Instant)>>,
    /// The ranks whose profilers are told of work here, and may not return.
    told: Mutex<Vec<Weak<Rank>>>,
    /// True once there was one.
    is_told: AtomicBool,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    capture: Option<Capture>,
}

/// The result of a look at a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No work is left.
    Idle,
    /// Some work advanced.
    Moved,
    /// All work waits for others.
    Stuck,
    /// Another thread owns the stream.
    Owned,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Stream {
    /// Returns the locked queue, after dropping a capture that is over.
    #[inline]
    fn queue(&self) -> CallGuard<'_, Queue> {
        let mut queue = self.queue.lock();
        if queue.capture.as_ref().is_some_and(|capture| !capture.is_live()) {
            let _whole = Uncancelled::begin();
            queue.capture = None;
        }
        queue
    }

    /// Returns the number by which operations of the stream are recorded.
    fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Creates an empty stream.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Appends work to the stream, or to the graph that it captures. With `inline` the calling
    /// thread advances the work for a moment. Blocks: never.
    pub fn enqueue(self: &Arc<Self>, work: Work, inline: bool) -> Result<()> {
        let mut queue = self.queue();
        if let Some(capture) = &mut queue.capture {
            return capture.add(work);
        }
        if let Work::Function(_) = work {
            // If no thread can call the function, the user gets the error here and not later.
            worker::caller()?;
        }
        self.push(queue, work, inline)
    }

    /// Appends work to the stream, which does not capture, as [`enqueue`](Self::enqueue) does.
    fn push(
        self: &Arc<Self>,
        mut queue: CallGuard<'_, Queue>,
        work: Work,
        inline: bool,
    ) -> Result<()> {
        work.each_told(&mut |rank| self.tells(rank));
        let task = Task::start(work, self.number())?;
        if self.pending.fetch_add(1, Ordering::SeqCst) == 0
            && inline
            && let Some(mut current) = self.own()
        {
            drop(queue);
            let mut task = task;
            match task.step(INLINE) {
                Step::Done(result) => {
                    self.done(result);
                    return Ok(());
                }
                Step::Waiting { .. } => *current = Some(task),
            }
        } else {
            queue.tasks.push_back(task);
            drop(queue);
            if inline {
                // Queued work may be ready by now: in this way calls keep up with their peers.
                self.advance(INLINE);
            }
        }
        self.activate();
        Ok(())
    }

    /// Notes that work of the stream tells the profiler of a rank.
    fn tells(&self, rank: &Arc<Rank>) {
        let mut told = lock(&self.told);
        if !told.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(rank))) {
            told.retain(|known| known.strong_count() > 0);
            told.push(Arc::downgrade(rank));
            self.is_told.store(true, Ordering::Release);
            worker::PROFILED.store(true, Ordering::Relaxed);
        }
    }

    /// Enqueues a collective, inline, as [`enqueue`](Self::enqueue) does. `runs` is told of it.
    pub fn launch(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        programs: &Arc<Programs>,
        call: &Call,
        runs: Option<Arc<dyn Runs>>,
    ) -> Quick<()> {
        let mut queue = self.queue();
        if let Some(capture) = &mut queue.capture {
            let _whole = Uncancelled::begin();
            let operation = Operation::Collective(programs.clone(), *call);
            return Ok(capture.add(Work::Operation(endpoint.clone(), operation, runs))?);
        }
        // Whoever is told may not return, and is not called with the lock.
        let is_told = runs.is_some();
        if self.pending.load(Ordering::Acquire) > 0 || is_told || endpoint.is_followed() {
            let _whole = Uncancelled::begin();
            if is_told {
                self.tells(&endpoint.rank);
            }
            let operation = Operation::Collective(programs.clone(), *call);
            let task = Task::operation(endpoint.clone(), operation, self.number(), runs);
            queue.tasks.push_back(task);
            let before = self.pending.fetch_add(1, Ordering::SeqCst);
            drop(queue);
            // As in `enqueue`; a caller that is far ahead need not look every time.
            if before < FAR_AHEAD || before.is_multiple_of(LOOK_EVERY) {
                self.advance(INLINE);
            }
            self.activate();
            return Ok(());
        }
        // Nothing is pending and the lock keeps others from adding: `current` need not be owned.
        match try_now(endpoint, programs, call, (INLINE, self.number())) {
            Ok(result) => result,
            Err(task) => {
                let _whole = Uncancelled::begin();
                self.pending.fetch_add(1, Ordering::SeqCst);
                queue.tasks.push_back(Task::Running(task));
                drop(queue);
                self.activate();
                Ok(())
            }
        }
    }

    /// Makes the calling thread the stream's owner for a moment; `None` if another thread owns it.
    fn own(&self) -> Option<MutexGuard<'_, Option<Task>>> {
        match self.current.try_lock() {
            Ok(current) => Some(current),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Tells the worker that the stream has work.
    fn activate(self: &Arc<Self>) {
        // Most often the worker knows already, and a load costs less than a store.
        if !self.active.load(Ordering::SeqCst) && !self.active.swap(true, Ordering::SeqCst) {
            worker::add(self.clone());
        }
    }

    /// Makes the worker forget the stream. Returns true if it must not, as work came meanwhile.
    pub(super) fn deactivate(&self) -> bool {
        // This is sequentially consistent with `activate`: either this thread sees the work, or the
        // other thread sees that the flag is cleared.
        self.active.swap(false, Ordering::SeqCst);
        self.pending.load(Ordering::SeqCst) > 0 && !self.active.swap(true, Ordering::SeqCst)
    }

    fn done(&self, result: std::result::Result<(), Failed>) {
        if let Err(e) = result {
            lock(&self.error).get_or_insert(e);
        }
        self.pending.fetch_sub(1, Ordering::AcqRel);
    }

    /// Advances the stream as far as the budget allows. Blocks: never.
    pub fn advance(&self, budget: Budget) -> Progress {
        if self.pending.load(Ordering::Acquire) == 0 {
            return Progress::Idle;
        }
        let Some(mut current) = self.own() else { return Progress::Owned };
        let mut moved = false;
        loop {
            if current.is_none() {
                *current = self.queue().tasks.pop_front();
            }
            let Some(task) = &mut *current else {
                return if moved { Progress::Moved } else { Progress::Idle };
            };
            match task.step(budget) {
                Step::Done(result) => {
                    *current = None;
                    self.done(result);
                    moved = true;
                }
                Step::Waiting { moved: task_moved } => {
                    moved |= task_moved;
                    return if moved { Progress::Moved } else { Progress::Stuck };
                }
            }
        }
    }

    /// Returns whether all work is complete. An error of the work is delivered once, here or by
    /// [`synchronize`](Self::synchronize).
    pub fn query(&self) -> Result<bool> {
        let found = self.advance(VISIT);
        if found != Progress::Idle && self.pending.load(Ordering::Acquire) > 0 {
            worker::stand_in();
            return self.give_up_behind(found).map_or(Ok(false), Err);
        }
        self.take_error().map(|()| true)
    }

    fn take_error(&self) -> Result<()> {
        lock(&self.error).take().map_or(Ok(()), |failed| Err(failed.tell()))
    }

    /// Gives up what waits behind a thread that owns the stream and does not give it back, as a
    /// profiler does not return, once that has failed the communicator: nothing of it touches
    /// memory any more, should the thread come back after all. Returns the failure then, once no
    /// peer writes any more, or may not end. Takes what a look has found. Blocks: never.
    pub(super) fn give_up_behind(&self, found: Progress) -> Option<Error> {
        if !self.is_told.load(Ordering::Acquire) {
            return None;
        }
        let mut owned = lock(&self.owned);
        if found != Progress::Owned {
            *owned = None;
            return None;
        }
        let now = Instant::now();
        let (so_far, looked) = owned.unwrap_or((Duration::ZERO, now));
        let lasted = so_far + GAP.min(now - looked);
        *owned = Some((lasted, now));
        drop(owned);
        if lasted < OWNED {
            return None;
        }
        let told: Vec<_> = lock(&self.told).iter().filter_map(Weak::upgrade).collect();
        let (rank, error) = told.iter().find_map(|rank| Some((rank, rank.failure()?)))?;
        if !rank.writers().is_empty() && lasted < OWNED + WRITERS {
            return None;
        }
        self.queue().tasks.iter_mut().for_each(|task| task.abandon(&error));
        Some(error)
    }

    /// Waits for all work, for at most `limit`. Returns false if the time is over. Fails if the
    /// work cannot get on, as a profiler does not return.
    pub fn synchronize(&self, limit: Option<Duration>) -> Result<bool> {
        if self.is_capturing() {
            let hint = "end the capture first";
            return Err(Error::usage("the stream is being captured", hint));
        }
        let mut left = None;
        let done = worker::wait_until(limit, || {
            let found = match self.advance(VISIT) {
                _ if self.pending.load(Ordering::Acquire) == 0 => Progress::Idle,
                Progress::Idle => Progress::Stuck,
                progress => progress,
            };
            left = self.give_up_behind(found);
            if left.is_some() { Progress::Idle } else { found }
        });
        if let Some(error) = left {
            return Err(error);
        }
        if !done {
            return Ok(false);
        }
        self.take_error().map(|()| true)
    }

    /// Returns whether work is recorded instead of executed.
    pub fn is_capturing(&self) -> bool {
        self.queue().capture.is_some()
    }

    /// Begins a capture: work is recorded instead of executed.
    pub fn begin_capture(&self) -> Result<()> {
        let mut queue = self.queue();
        if queue.capture.is_some() {
            return Err(Error::usage("the stream is already being captured", "end that first"));
        }
        queue.capture = Some(Capture::new());
        Ok(())
    }

    /// Ends the capture that began on this stream.
    pub fn end_capture(&self) -> Result<super::graph::Graph> {
        let capture = self.queue().capture.take();
        let hint = "call oxcclStreamBeginCapture on the same stream first";
        let capture =
            capture.ok_or_else(|| Error::usage("the stream is not being captured", hint))?;
        capture.finish()
    }

    /// Records an event: when the stream reaches the record, or in the captured graph.
    pub fn record(self: &Arc<Self>, event: &Arc<Event>) -> Result<()> {
        let mut queue = self.queue();
        if let Some(capture) = &mut queue.capture {
            capture.record(event);
            return Ok(());
        }
        self.push(queue, Work::Record(event.announce()), true)
    }

    /// Makes later work wait for the last record of an event.
    pub fn wait_event(self: &Arc<Self>, event: &Arc<Event>) -> Result<()> {
        let mut queue = self.queue();
        if let Some(captured) = event.captured() {
            return match &mut queue.capture {
                Some(capture) => capture.join(captured),
                None => {
                    queue.capture = Some(Capture::forked(captured));
                    Ok(())
                }
            };
        }
        if queue.capture.is_some() {
            let what = "a captured stream cannot wait for an event recorded outside the capture";
            return Err(Error::usage(what, "record the event in the same capture"));
        }
        event.ahead().map_or(Ok(()), |record| self.push(queue, Work::Wait(record), true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::host::event::Record;

    #[test]
    fn a_stream_waits_for_the_record_that_was_the_last_one_when_it_was_told_to() {
        let event = Arc::new(Event::default());
        let [first, second, waiting] = [(); 3].map(|()| Stream::new());
        let held = Arc::<Record>::default();
        first.enqueue(Work::Wait(held.clone()), false).unwrap();
        first.record(&event).unwrap();
        waiting.wait_event(&event).unwrap();
        second.record(&event).unwrap();
        second.synchronize(None).unwrap();
        assert!(event.query() && !waiting.query().unwrap() && !first.query().unwrap());
        held.reach();
        assert!(waiting.synchronize(None).unwrap() && first.synchronize(None).unwrap());
    }

    #[test]
    fn who_waits_for_a_profiler_that_does_not_return_is_told_why_its_communicator_failed() {
        let (other, event) = (Stream::new(), Arc::new(Event::default()));
        let rank = Arc::new(Rank::new(0, vec![Some(0)], None, vec![0]));
        let (stream, begun) = (Stream::new(), Arc::new(AtomicBool::new(false)));
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let (own, begins) = (stream.clone(), begun.clone());
        stream.tells(&rank);
        let held = Arc::<Record>::default();
        stream.enqueue(Work::Wait(held.clone()), false).unwrap();
        let telling = std::thread::spawn(move || {
            let _owned = lock(&own.current);
            begins.store(true, Ordering::Release);
            let _ = ends.recv();
        });
        while !begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // It may be slow.
        assert!(!stream.synchronize(Some(OWNED + OWNED / 4)).unwrap());
        assert!(!stream.query().unwrap());
        stream.record(&event).unwrap();
        other.wait_event(&event).unwrap();
        rank.fail(Error::Aborted { by: "a test" });
        assert!(other.synchronize(None).unwrap());
        let error = stream.synchronize(None).unwrap_err().to_string();
        assert!(error.contains("ended by a test"), "{error}");
        drop(end);
        telling.join().unwrap();
        held.reach();
        assert!(stream.synchronize(None).unwrap());
    }
}
