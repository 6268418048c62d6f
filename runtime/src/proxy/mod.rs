//! Threads that make all calls into plugins for one communicator. Plugins may block, or never
//! return: whoever waits for one of them goes on, and names the function.
//!
//! [`Proxy`] has the interface of the transport that it calls. Requests pass through places in
//! memory, which the thread looks at in turn; all other calls pass through a queue.

mod calls;
mod line;
mod worker;

use crate::error::Result;
pub(crate) use calls::{CurrentCall, LIMIT, beside};
use line::{Line, LineTask};
use oxccl_net::{
    Connecting, Connection, Handle, Listener, Memory, Net, Observer, Properties, Receiver, Region,
    Request, Sender,
};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
pub(crate) use worker::{Serve, Worker};

/// Work of the thread that takes several looks.
trait Task: Send {
    /// Takes a look.
    fn poll(&mut self) -> Progress;
}

#[derive(PartialEq, Eq)]
enum Progress {
    Idle,
    Moved,
    Over,
}

/// A transport on its thread, and the work there that takes several looks.
pub(crate) struct State<N: ?Sized> {
    // Dropped before the transport.
    tasks: Vec<Box<dyn Task>>,
    net: Box<N>,
}

impl<N: ?Sized + 'static> Serve for State<N> {
    fn poll(&mut self) -> bool {
        let mut moved = false;
        self.tasks.retain_mut(|task| {
            let progress = task.poll();
            moved |= progress == Progress::Moved;
            progress != Progress::Over
        });
        moved
    }

    fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }
}

type NetWorker = Worker<State<dyn Net>>;

/// A transport whose functions are all called by one thread.
pub(crate) struct Proxy {
    worker: Arc<NetWorker>,
    name: String,
    properties: Vec<Properties>,
}

impl Proxy {
    /// Starts the thread, which makes the transport. Fails if that fails or does not return.
    pub(crate) fn start(
        make: impl FnOnce() -> oxccl_net::Result<Box<dyn Net>> + Send + 'static,
        current: Arc<CurrentCall>,
    ) -> Result<Self> {
        let make = || Ok(State { tasks: Vec::new(), net: make()? });
        let worker = Arc::new(Worker::start("oxccl-proxy", make, current)?);
        let (name, properties) = worker.call(|state| {
            let net = &state.net;
            let properties = (0..net.devices()).map(|device| net.properties(device));
            Ok((net.name().to_owned(), properties.collect::<oxccl_net::Result<Vec<_>>>()?))
        })?;
        Ok(Self { worker, name, properties })
    }
}

impl Net for Proxy {
    fn name(&self) -> &str {
        &self.name
    }

    fn devices(&self) -> usize {
        self.properties.len()
    }

    fn properties(&self, device: usize) -> oxccl_net::Result<Properties> {
        let none = || oxccl_net::Error::new(&self.name, format!("there is no device {device}"), "");
        self.properties.get(device).cloned().ok_or_else(none)
    }

    fn listen(&self, device: usize) -> oxccl_net::Result<(Handle, Box<dyn Listener>)> {
        let (handle, found) = self.worker.call(move |state| {
            let (handle, mut listener) = state.net.listen(device)?;
            let found = Search::default();
            let search = move || listener.accept();
            state.tasks.push(Box::new(Searching { search, found: found.clone() }));
            Ok((handle, found))
        })?;
        Ok((handle, Box::new(ProxyListener { found, worker: self.worker.clone() })))
    }

    fn connect(&self, device: usize, handle: Handle) -> oxccl_net::Result<Box<dyn Connecting>> {
        let found = self.worker.call(move |state| {
            let mut connecting = state.net.connect(device, handle)?;
            let found = Search::default();
            let search = move || connecting.progress();
            let mut searching = Searching { search, found: found.clone() };
            // The plugin has begun when this call returns.
            searching.look();
            state.tasks.push(Box::new(searching));
            Ok(found)
        })?;
        Ok(Box::new(ProxyConnecting { found, worker: self.worker.clone() }))
    }
}

/// The result of a search that the thread makes each time that somebody asks for it: `accept` of a
/// plugin may block until somebody comes. When the one who waits for it drops it, the thread ends
/// the search, and the connection if there is one.
struct Search<T>(Arc<Mutex<Wanted<T>>>);

struct Wanted<T> {
    /// True if the thread is to look for a result.
    asked: bool,
    found: Option<oxccl_net::Result<T>>,
}

impl<T> Default for Search<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Wanted { asked: false, found: None })))
    }
}

impl<T> Clone for Search<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Search<T> {
    fn wanted(&self) -> MutexGuard<'_, Wanted<T>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the result. If there is none, the thread is to look for one.
    fn ask(&self) -> Option<oxccl_net::Result<T>> {
        let mut wanted = self.wanted();
        let found = wanted.found.take();
        wanted.asked = found.is_none();
        found
    }

    fn take(&self, worker: &NetWorker) -> oxccl_net::Result<Option<T>> {
        if let Some(result) = self.ask() {
            return result.map(Some);
        }
        worker.wake();
        worker.trouble().map_or(Ok(None), Err)
    }
}

/// A connection that the thread looks for, and keeps until somebody takes it.
struct Searching<T, F> {
    search: F,
    found: Search<T>,
}

impl<T, F: FnMut() -> oxccl_net::Result<Option<T>>> Searching<T, F> {
    fn look(&mut self) -> Progress {
        let Some(result) = (self.search)().transpose() else { return Progress::Idle };
        *self.found.wanted() = Wanted { asked: false, found: Some(result) };
        Progress::Moved
    }
}

impl<T: Send, F: FnMut() -> oxccl_net::Result<Option<T>> + Send> Task for Searching<T, F> {
    fn poll(&mut self) -> Progress {
        if Arc::strong_count(&self.found.0) == 1 {
            return Progress::Over;
        }
        let asked = self.found.wanted().asked;
        if asked { self.look() } else { Progress::Idle }
    }
}

struct ProxyListener {
    found: Search<Box<dyn Receiver>>,
    worker: Arc<NetWorker>,
}

impl Listener for ProxyListener {
    fn accept(&mut self) -> oxccl_net::Result<Option<Box<dyn Receiver>>> {
        let Some(receiver) = self.found.take(&self.worker)? else { return Ok(None) };
        Ok(Some(Box::new(Half::new(receiver, self.worker.clone())?)))
    }
}

struct ProxyConnecting {
    found: Search<Box<dyn Sender>>,
    worker: Arc<NetWorker>,
}

impl Connecting for ProxyConnecting {
    fn progress(&mut self) -> oxccl_net::Result<Option<Box<dyn Sender>>> {
        let Some(sender) = self.found.take(&self.worker)? else { return Ok(None) };
        Ok(Some(Box::new(Half::new(sender, self.worker.clone())?)))
    }

    fn why(&self) -> String {
        format!("{} has made no connection yet", self.worker.current().label())
    }
}

/// A network that reduces, all of whose functions are called by one thread. `N` is the network's
/// state there.
pub(crate) struct Reducing<N>(Arc<Worker<State<N>>>);

impl<N: 'static> Reducing<N> {
    /// Starts the thread, which makes its state. Fails if that fails or does not return.
    pub(crate) fn start(
        make: impl FnOnce() -> oxccl_net::Result<N> + Send + 'static,
        current: Arc<CurrentCall>,
    ) -> Result<Self> {
        let make = || Ok(State { tasks: Vec::new(), net: Box::new(make()?) });
        Ok(Self(Arc::new(Worker::start("oxccl-collnet", make, current)?)))
    }

    /// Has the thread make a call, and waits for the answer.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut N) -> oxccl_net::Result<T> + Send + 'static,
    ) -> oxccl_net::Result<T> {
        self.0.call(move |state| call(&mut state.net))
    }

    /// Has the thread connect, and serves both ends of what it returns. Waits as long as `stop`
    /// finds no reason against it.
    pub(crate) fn connect(
        &self,
        connect: impl FnOnce(&mut N) -> oxccl_net::Result<(Box<dyn Sender>, Box<dyn Receiver>)>
        + Send
        + 'static,
        stop: impl FnMut() -> Option<oxccl_net::Error>,
    ) -> oxccl_net::Result<Ends> {
        let (sends, receives) = (Arc::new(Line::default()), Arc::new(Line::default()));
        let of_thread = (sends.clone(), receives.clone());
        let made = move |state: &mut State<N>| {
            let (sender, receiver) = connect(&mut state.net)?;
            let ahead = receiver.ends_with_requests();
            state.tasks.push(Box::new(LineTask::new(sender, of_thread.0)));
            state.tasks.push(Box::new(LineTask::new(receiver, of_thread.1)));
            Ok(ahead)
        };
        let ends_with_requests = self.0.call_until(made, stop)?;
        let registrar = Registrar { line: sends.clone(), worker: Arc::downgrade(&self.0) };
        let half = |line| Half { line, worker: self.0.clone(), ends_with_requests };
        Ok((Box::new(half(sends)), Box::new(half(receives)), Box::new(registrar)))
    }
}

/// Both ends of an edge to a switch, and what registers memory beside them, for both.
pub(crate) type Ends = (Box<dyn Sender>, Box<dyn Receiver>, Box<dyn Connection>);

/// Registers memory with a network that reduces while others hold the ends, which keep the thread.
struct Registrar<N: 'static> {
    line: Arc<Line>,
    worker: Weak<Worker<State<N>>>,
}

impl<N: 'static> Connection for Registrar<N> {
    fn register(&mut self, memory: Memory) -> oxccl_net::Result<Region> {
        let ended = || oxccl_net::Error::new("registering memory", "the network has ended", "");
        let worker = self.worker.upgrade().ok_or_else(ended)?;
        line::register(&self.line, &worker, memory)
    }

    fn deregister(&mut self, region: Region) -> oxccl_net::Result<()> {
        // What was registered has ended with the thread.
        let Some(worker) = self.worker.upgrade() else { return Ok(()) };
        line::deregister(&self.line, &worker, region)
    }
}

/// An end of a connection that the thread serves.
struct Half<N: ?Sized + 'static> {
    line: Arc<Line>,
    worker: Arc<Worker<State<N>>>,
    ends_with_requests: bool,
}

impl<N: ?Sized + 'static> Half<N> {
    fn new<E: line::End>(end: E, worker: Arc<Worker<State<N>>>) -> oxccl_net::Result<Self> {
        let line = Arc::new(Line::default());
        let of_thread = line.clone();
        worker.call(move |state| {
            state.tasks.push(Box::new(LineTask::new(end, of_thread)));
            Ok(())
        })?;
        Ok(Self { line, worker, ends_with_requests: false })
    }

    fn start(
        &mut self,
        data: *mut u8,
        len: usize,
        tag: u32,
        region: Region,
    ) -> oxccl_net::Result<Option<Request>> {
        self.line.failure()?;
        let request = self.line.post(data, len, tag, region);
        self.worker.wake();
        Ok(request)
    }

    fn test(&mut self, request: Request) -> oxccl_net::Result<Option<usize>> {
        if let Some(len) = self.line.take(request) {
            return Ok(Some(len));
        }
        self.line.failure()?;
        self.worker.wake();
        self.worker.trouble().map_or(Ok(None), Err)
    }
}

impl<N: ?Sized + 'static> Drop for Half<N> {
    fn drop(&mut self) {
        self.line.close();
        self.worker.wake();
    }
}

impl<N: ?Sized + 'static> Connection for Half<N> {
    fn register(&mut self, memory: Memory) -> oxccl_net::Result<Region> {
        line::register(&self.line, &self.worker, memory)
    }

    fn deregister(&mut self, region: Region) -> oxccl_net::Result<()> {
        line::deregister(&self.line, &self.worker, region)
    }

    fn observe(&mut self, observer: Arc<dyn Observer>) -> bool {
        self.line.observe(observer);
        true
    }
}

impl<N: ?Sized + 'static> Sender for Half<N> {
    unsafe fn isend(
        &mut self,
        data: *const u8,
        len: usize,
        tag: u32,
        region: Region,
    ) -> oxccl_net::Result<Option<Request>> {
        self.start(data.cast_mut(), len, tag, region)
    }

    fn needs_progress(&self) -> bool {
        false
    }

    fn test(&mut self, request: Request) -> oxccl_net::Result<bool> {
        Ok(self.test(request)?.is_some())
    }
}

impl<N: ?Sized + 'static> Receiver for Half<N> {
    unsafe fn irecv(
        &mut self,
        data: *mut u8,
        capacity: usize,
        tag: u32,
        region: Region,
    ) -> oxccl_net::Result<Option<Request>> {
        self.start(data, capacity, tag, region)
    }

    fn ends_with_requests(&self) -> bool {
        self.ends_with_requests
    }

    fn test(&mut self, request: Request) -> oxccl_net::Result<Option<usize>> {
        self.test(request)
    }
}

#[cfg(test)]
mod tests;
