//! A connection between its user and the thread that serves it.

use super::worker::{Answer, Worker};
use super::{Progress, State, Task};
use oxccl_net::{
    Connection, Event, MAX_REQUESTS, Memory, Observation, Observer, Receiver, Region, Request,
    Result, Sender,
};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The place is free; a request was posted; it is done.
const FREE: u8 = 0;
const POSTED: u8 = 1;
const DONE: u8 = 2;

/// A request on its way to the thread and back.
#[derive(Default)]
struct Place {
    state: AtomicU8,
    data: AtomicPtr<u8>,
    len: AtomicUsize,
    tag: AtomicU32,
    region: AtomicUsize,
    /// The observation of the message until the thread starts the request.
    observation: Mutex<Option<Box<dyn Observation>>>,
}

impl Place {
    fn observation(&self) -> MutexGuard<'_, Option<Box<dyn Observation>>> {
        self.observation.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A registration that is asked for, or the end of one.
enum Asked {
    Register(Memory, Answer<Result<Region>>),
    Deregister(Region, Answer<Result<()>>),
}

/// The state that the user of a connection and the thread share.
#[derive(Default)]
pub(super) struct Line {
    places: [Place; MAX_REQUESTS],
    /// The number of the next request; only its user writes it.
    next: AtomicU64,
    asked: Mutex<Option<Asked>>,
    asks: AtomicBool,
    failure: OnceLock<oxccl_net::Error>,
    closed: AtomicBool,
    /// The observer of the messages, if there is one.
    observer: OnceLock<Arc<dyn Observer>>,
}

impl Line {
    /// Returns the error with which the connection has failed, if it has.
    pub(super) fn failure(&self) -> Result<()> {
        self.failure.get().cloned().map_or(Ok(()), Err)
    }

    /// Posts a request; `None` if as many are under way as there may be.
    pub(super) fn post(
        &self,
        data: *mut u8,
        len: usize,
        tag: u32,
        region: Region,
    ) -> Option<Request> {
        let number = self.next.load(Ordering::Relaxed);
        let place = &self.places[number as usize % MAX_REQUESTS];
        if place.state.load(Ordering::Acquire) != FREE {
            return None;
        }
        place.data.store(data, Ordering::Relaxed);
        place.len.store(len, Ordering::Relaxed);
        place.tag.store(tag, Ordering::Relaxed);
        place.region.store(region.0, Ordering::Relaxed);
        if let Some(observation) = self.observer.get().and_then(|observer| observer.message()) {
            *place.observation() = Some(observation);
        }
        place.state.store(POSTED, Ordering::Release);
        self.next.store(number + 1, Ordering::Relaxed);
        Some(number)
    }

    /// Returns the size of a request's message once it is done, and frees its place.
    pub(super) fn take(&self, request: Request) -> Option<usize> {
        let place = &self.places[request as usize % MAX_REQUESTS];
        (place.state.load(Ordering::Acquire) == DONE).then(|| {
            let len = place.len.load(Ordering::Relaxed);
            place.state.store(FREE, Ordering::Release);
            len
        })
    }

    /// Has the messages from now on observed, once.
    pub(super) fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.observer.set(observer);
    }

    /// Takes the observation of a message whose request is about to be started.
    fn take_observation(&self, place: &Place) -> Option<Box<dyn Observation>> {
        self.observer.get().and_then(|_| place.observation().take())
    }

    /// Returns the error of those who ask for something on a connection that has ended.
    fn ended(&self) -> Option<oxccl_net::Error> {
        let ended = || oxccl_net::Error::new("registering memory", "the connection has ended", "");
        self.closed.load(Ordering::Acquire).then(ended)
    }

    /// Has the thread end the connection.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

/// Has the thread register memory, and waits for the answer.
pub(super) fn register<N: ?Sized + 'static>(
    line: &Line,
    worker: &Worker<State<N>>,
    memory: Memory,
) -> Result<Region> {
    line.failure()?;
    ask(line, worker, |answer| Asked::Register(memory, answer))
}

/// Has the thread deregister memory, also after a failure, and waits for the answer.
pub(super) fn deregister<N: ?Sized + 'static>(
    line: &Line,
    worker: &Worker<State<N>>,
    region: Region,
) -> Result<()> {
    ask(line, worker, |answer| Asked::Deregister(region, answer))
}

fn ask<N: ?Sized + 'static, T>(
    line: &Line,
    worker: &Worker<State<N>>,
    what: impl FnOnce(Answer<Result<T>>) -> Asked,
) -> Result<T> {
    let answer = Answer::default();
    let asked = Some(what(answer.clone()));
    *line.asked.lock().unwrap_or_else(|e| e.into_inner()) = asked;
    line.asks.store(true, Ordering::Release);
    worker.wake();
    answer.wait(|| line.ended().or_else(|| worker.trouble()))?
}

/// An end of a connection, as the thread calls it.
pub(super) trait End: Send + 'static {
    /// True for the end that sends.
    const SENDS: bool;

    fn connection(&mut self) -> &mut dyn Connection;

    /// # Safety
    /// As for `isend` and `irecv`.
    unsafe fn start(
        &mut self,
        data: *mut u8,
        len: usize,
        tag: u32,
        region: Region,
    ) -> Result<Option<Request>>;

    /// Returns the size of the message if the request is done; `len` is what was offered.
    fn test(&mut self, request: Request, len: usize) -> Result<Option<usize>>;
}

impl End for Box<dyn Sender> {
    const SENDS: bool = true;

    fn connection(&mut self) -> &mut dyn Connection {
        &mut **self
    }

    unsafe fn start(
        &mut self,
        data: *mut u8,
        len: usize,
        tag: u32,
        region: Region,
    ) -> Result<Option<Request>> {
        // SAFETY: by the contract.
        unsafe { self.isend(data, len, tag, region) }
    }

    fn test(&mut self, request: Request, len: usize) -> Result<Option<usize>> {
        Ok((**self).test(request)?.then_some(len))
    }
}

impl End for Box<dyn Receiver> {
    const SENDS: bool = false;

    fn connection(&mut self) -> &mut dyn Connection {
        &mut **self
    }

    unsafe fn start(
        &mut self,
        data: *mut u8,
        len: usize,
        tag: u32,
        region: Region,
    ) -> Result<Option<Request>> {
        // SAFETY: by the contract.
        unsafe { self.irecv(data, len, tag, region) }
    }

    fn test(&mut self, request: Request, _len: usize) -> Result<Option<usize>> {
        (**self).test(request)
    }
}

/// The thread's side of a connection.
pub(super) struct LineTask<E> {
    end: E,
    line: Arc<Line>,
    /// The number of the next request to start.
    next: u64,
    /// The observation of that request's message, once it has begun.
    begun: Option<Option<Box<dyn Observation>>>,
    /// The requests under way, the oldest first.
    under_way: VecDeque<UnderWay>,
    /// The owners of the registered memory. They are given up after the registration, or after the
    /// connection.
    owners: Vec<(Option<Region>, Arc<dyn Any + Send + Sync>)>,
}

/// A request under way.
struct UnderWay {
    /// Its place.
    index: usize,
    request: Request,
    observation: Option<Box<dyn Observation>>,
}

impl<E> Drop for LineTask<E> {
    fn drop(&mut self) {
        // Observations end in this thread, which they may hold up.
        self.line.places.iter().for_each(|place| drop(self.line.take_observation(place)));
    }
}

impl<E: End> LineTask<E> {
    pub(super) fn new(end: E, line: Arc<Line>) -> Self {
        let (next, begun, under_way, owners) = Default::default();
        Self { end, line, next, begun, under_way, owners }
    }

    fn answer(&mut self, asked: Asked) {
        match asked {
            Asked::Register(memory, answer) => {
                let owner = memory.owner.clone();
                let region = self.end.connection().register(memory);
                // A plugin that fails may use the memory all the same, until the end.
                let of = region.as_ref().ok().copied();
                let is_known = |(_, known): &(_, _)| Arc::ptr_eq(known, &owner);
                if of.is_some() || !self.owners.iter().any(is_known) {
                    self.owners.push((of, owner));
                }
                answer.set(region);
            }
            Asked::Deregister(region, answer) => {
                let done = self.end.connection().deregister(region);
                // A plugin may give the same handle several times.
                let owner = self.owners.iter().rposition(|(of, _)| *of == Some(region));
                if let Some(owner) = owner.filter(|_| done.is_ok()) {
                    self.owners.remove(owner);
                }
                answer.set(done);
            }
        }
    }

    /// Starts the requests that were posted; returns whether there were any.
    fn start(&mut self) -> Result<bool> {
        let mut moved = false;
        loop {
            let index = self.next as usize % MAX_REQUESTS;
            let place = &self.line.places[index];
            let posted = place.state.load(Ordering::Acquire) == POSTED;
            if !posted || self.under_way.len() == MAX_REQUESTS {
                return Ok(moved);
            }
            let data = place.data.load(Ordering::Relaxed);
            let len = place.len.load(Ordering::Relaxed);
            let tag = place.tag.load(Ordering::Relaxed);
            let region = Region(place.region.load(Ordering::Relaxed));
            if self.begun.is_none() {
                let mut observation = self.line.take_observation(place);
                let event = observation.as_mut().map_or(Event::default(), |of| of.begin());
                self.end.connection().set_event(event);
                self.begun = Some(observation);
            }
            // SAFETY: who posted the request keeps to the contract until it is done; the owners
            // keep the memory until the connection has ended.
            let Some(request) = (unsafe { self.end.start(data, len, tag, region)? }) else {
                return Ok(moved);
            };
            let mut observation = self.begun.take().flatten();
            if E::SENDS {
                observation.iter_mut().for_each(|of| of.moved(len));
            }
            self.under_way.push_back(UnderWay { index, request, observation });
            self.next += 1;
            moved = true;
        }
    }

    fn step(&mut self) -> Result<bool> {
        let mut moved = self.start()?;
        // As NCCL does: there are plugins that refuse a test of any other than the oldest request.
        while let Some(oldest) = self.under_way.front_mut() {
            let place = &self.line.places[oldest.index];
            let len = place.len.load(Ordering::Relaxed);
            let Some(len) = self.end.test(oldest.request, len)? else { break };
            if !E::SENDS {
                oldest.observation.iter_mut().for_each(|of| of.moved(len));
            }
            // The observation ends before whoever waits for the message goes on.
            self.under_way.pop_front();
            place.len.store(len, Ordering::Relaxed);
            place.state.store(DONE, Ordering::Release);
            moved = true;
        }
        Ok(moved)
    }
}

impl<E: End> Task for LineTask<E> {
    fn poll(&mut self) -> Progress {
        if self.line.closed.load(Ordering::Acquire) {
            return Progress::Over;
        }
        if self.line.asks.swap(false, Ordering::Acquire) {
            let asked = self.line.asked.lock().unwrap_or_else(|e| e.into_inner()).take();
            asked.into_iter().for_each(|asked| self.answer(asked));
        }
        if self.line.failure.get().is_some() {
            return Progress::Idle;
        }
        match self.step() {
            Ok(true) => Progress::Moved,
            Ok(false) => Progress::Idle,
            Err(error) => {
                let _ = self.line.failure.set(error);
                Progress::Moved
            }
        }
    }
}
