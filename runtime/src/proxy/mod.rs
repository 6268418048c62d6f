//! A thread that makes all calls into a network plugin for one communicator. Plugins may block, or
//! never return: whoever waits for one of them goes on, and names the function.
//!
//! [`Proxy`] has the interface of the transport that it calls. Requests pass through places in
//! memory, which the thread looks at in turn; all other calls pass through a queue.

mod calls;
mod line;

use crate::error::{Error, Result};
use crate::exit;
pub(crate) use calls::CurrentCall;
use line::{Answer, Line, LineTask, ask};
use oxccl_net::{
    Connecting, Handle, Listener, Memory, Net, Properties, Receiver, Region, Request, Sender,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The time for which the thread looks without a pause after something has moved.
const EAGER: Duration = Duration::from_micros(200);
/// The first and the longest pause between looks at a plugin that shows nothing new; each is twice
/// the one before.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];
/// How long the end of a communicator waits for a plugin to close its connections.
const CLOSING: Duration = Duration::from_secs(1);

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

/// The parts of the thread that a call on it may use.
struct Context<'a> {
    net: &'a dyn Net,
    tasks: &'a mut Vec<Box<dyn Task>>,
}

type Call = Box<dyn FnOnce(&mut Context<'_>) + Send>;

/// The state that the thread and those who wait for it share.
struct Shared {
    calls: Mutex<Vec<Call>>,
    current: Arc<CurrentCall>,
    /// True once somebody has waited for something since the thread's last look.
    awaited: AtomicBool,
    napping: AtomicBool,
    stopping: AtomicBool,
    /// True once the thread has ended, or never began.
    ended: AtomicBool,
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the error of everything that waits for the thread, if it can be waited for in vain.
    fn trouble(&self) -> Option<oxccl_net::Error> {
        let ended = || {
            let (label, cause) = (self.current.label(), "the thread that calls it has ended");
            oxccl_net::Error::local(label, cause, "see the log")
        };
        self.ended.load(Ordering::Acquire).then(ended).or_else(|| self.current.stuck())
    }
}

/// The thread's end: dropped with the last part of the transport that is in use.
struct Worker {
    shared: Arc<Shared>,
    thread: Thread,
}

impl Worker {
    /// Makes the thread look at once.
    fn wake(&self) {
        self.shared.awaited.store(true, Ordering::SeqCst);
        if self.shared.napping.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
    }

    /// Has the thread make a call, and waits for the answer.
    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Context<'_>) -> oxccl_net::Result<T> + Send + 'static,
    ) -> oxccl_net::Result<T> {
        let answer = Answer::default();
        let give = answer.clone();
        self.shared.calls().push(Box::new(move |context| give.set(call(context))));
        self.wake();
        answer.wait(|| self.shared.trouble())?
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.thread.unpark();
        let start = Instant::now();
        while !self.shared.ended.load(Ordering::Acquire) && start.elapsed() < CLOSING {
            std::thread::yield_now();
        }
        // A thread that is still in the plugin keeps all memory that the plugin may use.
    }
}

/// A transport whose functions are all called by one thread.
pub(crate) struct Proxy {
    worker: Arc<Worker>,
    name: String,
    properties: Vec<Properties>,
}

impl Proxy {
    /// Starts the thread, which makes the transport. Fails if that fails or does not return.
    pub(crate) fn start(
        make: impl FnOnce() -> oxccl_net::Result<Box<dyn Net>> + Send + 'static,
        current: Arc<CurrentCall>,
    ) -> Result<Self> {
        let flag = || AtomicBool::new(false);
        let (awaited, napping, stopping, ended) = (flag(), flag(), flag(), flag());
        let calls = Mutex::default();
        let shared = Arc::new(Shared { calls, current, awaited, napping, stopping, ended });
        let (answer, of_thread) = (Answer::default(), shared.clone());
        let give = answer.clone();
        let body = move || {
            exit::mark_own_thread();
            let worked = catch_unwind(AssertUnwindSafe(|| work(&of_thread, make, &give)));
            of_thread.ended.store(true, Ordering::Release);
            drop(worked);
        };
        let started = std::thread::Builder::new().name("oxccl-proxy".to_owned()).spawn(body);
        let started = started.map_err(|e| Error::system("starting a thread", e, "ulimit -u"))?;
        let worker = Arc::new(Worker { thread: started.thread().clone(), shared });
        let (name, properties) = answer.wait(|| worker.shared.trouble())??;
        Ok(Self { worker, name, properties })
    }
}

type Facts = (String, Vec<Properties>);

/// Makes the transport, and then the calls that are asked for, until the end.
fn work(
    shared: &Shared,
    make: impl FnOnce() -> oxccl_net::Result<Box<dyn Net>>,
    give: &Answer<oxccl_net::Result<Facts>>,
) {
    let Some(visit) = exit::visit_driver() else { return };
    let made = make().and_then(|net| {
        let properties = (0..net.devices()).map(|device| net.properties(device));
        let properties = properties.collect::<oxccl_net::Result<Vec<_>>>()?;
        Ok((net, properties))
    });
    drop(visit);
    let net = match made {
        Ok((net, properties)) => {
            give.set(Ok((net.name().to_owned(), properties)));
            net
        }
        Err(error) => return give.set(Err(error)),
    };
    let mut tasks: Vec<Box<dyn Task>> = Vec::new();
    let (mut moved_at, mut nap) = (Instant::now(), NAPS[0]);
    while !shared.stopping.load(Ordering::SeqCst) {
        // Plugins may call drivers that unload while the process exits.
        let Some(visit) = exit::visit_driver() else { return std::mem::forget((tasks, net)) };
        let awaited = shared.awaited.swap(false, Ordering::SeqCst);
        let calls = std::mem::take(&mut *shared.calls());
        let mut moved = !calls.is_empty();
        if awaited {
            nap = NAPS[0];
        }
        for call in calls {
            call(&mut Context { net: &*net, tasks: &mut tasks });
        }
        tasks.retain_mut(|task| {
            let progress = task.poll();
            moved |= progress == Progress::Moved;
            progress != Progress::Over
        });
        drop(visit);
        if moved {
            (moved_at, nap) = (Instant::now(), NAPS[0]);
        }
        if moved_at.elapsed() < EAGER {
            std::thread::yield_now();
            continue;
        }
        shared.napping.store(true, Ordering::SeqCst);
        if !shared.awaited.load(Ordering::SeqCst) && !shared.stopping.load(Ordering::SeqCst) {
            match tasks.is_empty() {
                true => std::thread::park(),
                false => std::thread::park_timeout(nap),
            }
            nap = (nap * 2).min(NAPS[1]);
        }
        shared.napping.store(false, Ordering::SeqCst);
    }
    let calls = std::mem::take(&mut *shared.calls());
    let Some(_visit) = exit::visit_driver() else {
        return std::mem::forget((calls, tasks, net));
    };
    // What a call that was not made any more would have used ends here, too.
    drop(calls);
    drop(tasks);
    drop(net);
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
        let (handle, found) = self.worker.call(move |context| {
            let (handle, mut listener) = context.net.listen(device)?;
            let found = Search::default();
            let search = Some(move || listener.accept());
            context.tasks.push(Box::new(Searching { search, found: found.clone() }));
            Ok((handle, found))
        })?;
        Ok((handle, Box::new(ProxyListener { found, worker: self.worker.clone() })))
    }

    fn connect(&self, device: usize, handle: Handle) -> oxccl_net::Result<Box<dyn Connecting>> {
        let found = self.worker.call(move |context| {
            let mut connecting = context.net.connect(device, handle)?;
            let found = Search::default();
            let search = Some(move || connecting.progress());
            context.tasks.push(Box::new(Searching { search, found: found.clone() }));
            Ok(found)
        })?;
        Ok(Box::new(ProxyConnecting { found, worker: self.worker.clone() }))
    }
}

/// The result of a search that the thread makes. When the one who waits for it drops it, the thread
/// ends the search, and the connection if there is one.
struct Search<T>(Arc<Mutex<Option<oxccl_net::Result<T>>>>);

impl<T> Default for Search<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Search<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Search<T> {
    fn take(&self, worker: &Worker) -> oxccl_net::Result<Option<T>> {
        worker.wake();
        match self.0.lock().unwrap_or_else(|e| e.into_inner()).take() {
            Some(result) => result.map(Some),
            None => worker.shared.trouble().map_or(Ok(None), Err),
        }
    }
}

/// A connection that the thread looks for, and keeps until somebody takes it.
struct Searching<T, F> {
    /// The function that looks for it, until it is found.
    search: Option<F>,
    found: Search<T>,
}

impl<T: Send, F: FnMut() -> oxccl_net::Result<Option<T>> + Send> Task for Searching<T, F> {
    fn poll(&mut self) -> Progress {
        if Arc::strong_count(&self.found.0) == 1 {
            return Progress::Over;
        }
        let result = self.search.as_mut().and_then(|search| search().transpose());
        let Some(result) = result else { return Progress::Idle };
        *self.found.0.lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
        self.search = None;
        Progress::Moved
    }
}

struct ProxyListener {
    found: Search<Box<dyn Receiver>>,
    worker: Arc<Worker>,
}

impl Listener for ProxyListener {
    fn accept(&mut self) -> oxccl_net::Result<Option<Box<dyn Receiver>>> {
        let Some(receiver) = self.found.take(&self.worker)? else { return Ok(None) };
        Ok(Some(Box::new(Half::new(receiver, self.worker.clone())?)))
    }
}

struct ProxyConnecting {
    found: Search<Box<dyn Sender>>,
    worker: Arc<Worker>,
}

impl Connecting for ProxyConnecting {
    fn progress(&mut self) -> oxccl_net::Result<Option<Box<dyn Sender>>> {
        let Some(sender) = self.found.take(&self.worker)? else { return Ok(None) };
        Ok(Some(Box::new(Half::new(sender, self.worker.clone())?)))
    }

    fn why(&self) -> String {
        format!("{} has made no connection yet", self.worker.shared.current.label())
    }
}

/// An end of a connection that the thread serves.
struct Half {
    line: Arc<Line>,
    worker: Arc<Worker>,
}

impl Half {
    fn new<E: line::End>(end: E, worker: Arc<Worker>) -> oxccl_net::Result<Self> {
        let line = Arc::new(Line::default());
        let of_thread = line.clone();
        worker.call(move |context| {
            context.tasks.push(Box::new(LineTask::new(end, of_thread)));
            Ok(())
        })?;
        Ok(Self { line, worker })
    }

    fn register(&mut self, memory: Memory) -> oxccl_net::Result<Region> {
        ask(&self.line, &self.worker, memory)
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
        self.worker.shared.trouble().map_or(Ok(None), Err)
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.line.close();
        self.worker.wake();
    }
}

impl Sender for Half {
    fn register(&mut self, memory: Memory) -> oxccl_net::Result<Region> {
        self.register(memory)
    }

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

impl Receiver for Half {
    fn register(&mut self, memory: Memory) -> oxccl_net::Result<Region> {
        self.register(memory)
    }

    unsafe fn irecv(
        &mut self,
        data: *mut u8,
        capacity: usize,
        tag: u32,
        region: Region,
    ) -> oxccl_net::Result<Option<Request>> {
        self.start(data, capacity, tag, region)
    }

    fn test(&mut self, request: Request) -> oxccl_net::Result<Option<usize>> {
        self.test(request)
    }
}

#[cfg(test)]
mod tests;
