//! Tests with transports in memory that misbehave.

use super::*;
use oxccl_net::{Event, Observation};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver as Incoming, Sender as Outgoing, channel};
use std::time::{Duration, Instant};

/// A transport that hands messages over within the process, through one wire.
#[derive(Default)]
struct Local {
    wire: Mutex<Option<Incoming<Vec<u8>>>>,
    start: Mutex<Option<Outgoing<Vec<u8>>>>,
    fault: Fault,
    ended: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    /// Refuses every second request for lack of room.
    Reluctant,
    /// Fails when data are sent.
    Failing,
    /// Does not return when data are sent.
    Hanging,
}

impl Local {
    fn new(fault: Fault, ended: Arc<AtomicUsize>) -> Self {
        let (start, wire) = channel();
        let (wire, start) = (Mutex::new(Some(wire)), Mutex::new(Some(start)));
        Self { wire, start, fault, ended }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Net for Local {
    fn name(&self) -> &str {
        "Local"
    }

    fn devices(&self) -> usize {
        1
    }

    fn properties(&self, _device: usize) -> oxccl_net::Result<Properties> {
        Ok(Properties {
            name: "wire".to_owned(),
            pci_path: None,
            memory: oxccl_net::HOST,
            speed_mbps: 1,
            flushes_always: false,
            offloaded: false,
            max_connections: 1,
            max_bytes: 1,
        })
    }

    fn listen(&self, _device: usize) -> oxccl_net::Result<(Handle, Box<dyn Listener>)> {
        let wire = self.wire.lock().unwrap().take();
        Ok((Handle([0; 128]), Box::new(LocalListener(wire, 3))))
    }

    fn connect(&self, _device: usize, _handle: Handle) -> oxccl_net::Result<Box<dyn Connecting>> {
        Ok(Box::new(LocalConnecting(self.start.lock().unwrap().take(), self.fault)))
    }
}

struct LocalListener(Option<Incoming<Vec<u8>>>, u32);

impl Listener for LocalListener {
    fn accept(&mut self) -> oxccl_net::Result<Option<Box<dyn Receiver>>> {
        // It takes a few looks.
        self.1 = self.1.saturating_sub(1);
        let wire = if self.1 == 0 { self.0.take() } else { None };
        let end = |wire| LocalEnd { wire, posted: Vec::new(), done: 0, event: Event::default() };
        Ok(wire.map(|wire| Box::new(end(wire)) as Box<dyn Receiver>))
    }
}

struct LocalConnecting(Option<Outgoing<Vec<u8>>>, Fault);

impl Connecting for LocalConnecting {
    fn progress(&mut self) -> oxccl_net::Result<Option<Box<dyn Sender>>> {
        let (fault, asked, event) = (self.1, 0, Event::default());
        Ok(self.0.take().map(|wire| Box::new(LocalStart { wire, fault, asked, event }) as _))
    }

    fn why(&self) -> String {
        String::new()
    }
}

struct LocalStart {
    wire: Outgoing<Vec<u8>>,
    fault: Fault,
    asked: u64,
    event: Event,
}

/// What happens to messages that are observed, and their events.
static OBSERVED: Mutex<Vec<(&str, usize)>> = Mutex::new(Vec::new());

fn observe(what: &'static str, event: Event) {
    if event != Event::default() {
        OBSERVED.lock().unwrap().push((what, event.0));
    }
}

impl Connection for LocalStart {
    fn set_event(&mut self, event: Event) {
        self.event = event;
    }

    fn register(&mut self, _memory: Memory) -> oxccl_net::Result<Region> {
        Ok(Region(7))
    }
}

impl Sender for LocalStart {
    unsafe fn isend(
        &mut self,
        data: *const u8,
        len: usize,
        _tag: u32,
        region: Region,
    ) -> oxccl_net::Result<Option<Request>> {
        assert_eq!(region, Region(7));
        observe("isend", self.event);
        self.asked += 1;
        match self.fault {
            Fault::Reluctant if self.asked.is_multiple_of(2) => return Ok(None),
            Fault::Failing => return Err(oxccl_net::Error::new("isend", "it broke", "")),
            Fault::Hanging => loop {
                std::thread::park();
            },
            _ => {}
        }
        // SAFETY: readable by the contract.
        let bytes = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
        self.wire.send(bytes).unwrap();
        Ok(Some(self.asked))
    }

    fn test(&mut self, _request: Request) -> oxccl_net::Result<bool> {
        Ok(true)
    }
}

struct LocalEnd {
    wire: Incoming<Vec<u8>>,
    posted: Vec<(*mut u8, usize)>,
    done: usize,
    event: Event,
}

// SAFETY: the pointers are followed by whichever thread holds the end.
unsafe impl Send for LocalEnd {}

impl Connection for LocalEnd {
    fn set_event(&mut self, event: Event) {
        self.event = event;
    }
}

impl Receiver for LocalEnd {
    unsafe fn irecv(
        &mut self,
        data: *mut u8,
        capacity: usize,
        _tag: u32,
        _region: Region,
    ) -> oxccl_net::Result<Option<Request>> {
        observe("irecv", self.event);
        self.posted.push((data, capacity));
        Ok(Some(self.posted.len() as u64 - 1))
    }

    fn test(&mut self, request: Request) -> oxccl_net::Result<Option<usize>> {
        if request as usize != self.done {
            return Ok(None);
        }
        let Ok(bytes) = self.wire.try_recv() else { return Ok(None) };
        let (data, capacity) = self.posted[self.done];
        assert!(bytes.len() <= capacity);
        // SAFETY: writable by the contract.
        unsafe { data.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.done += 1;
        Ok(Some(bytes.len()))
    }
}

fn patience() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Returns both ends of a connection through a proxy, and the count of transports that have ended.
fn pair(fault: Fault) -> (Box<dyn Sender>, Box<dyn Receiver>, Arc<AtomicUsize>) {
    let ended = Arc::new(AtomicUsize::new(0));
    let of_net = ended.clone();
    let limit = Duration::from_millis(300);
    let current = Arc::new(CurrentCall::with_limit("net plugin Local".to_owned(), "", limit));
    let calls = current.clone();
    let make = move || {
        let net = Local::new(fault, of_net);
        Ok(Box::new(Watched(net, calls)) as Box<dyn Net>)
    };
    let proxy = Proxy::start(make, current).unwrap();
    assert_eq!((proxy.name(), proxy.devices()), ("Local", 1));
    let (handle, mut listener) = proxy.listen(0).unwrap();
    let mut connecting = proxy.connect(0, handle).unwrap();
    let (mut sender, mut receiver) = (None, None);
    let until = patience();
    while sender.is_none() || receiver.is_none() {
        assert!(Instant::now() < until);
        sender = sender.or_else(|| connecting.progress().unwrap());
        receiver = receiver.or_else(|| listener.accept().unwrap());
    }
    (sender.unwrap(), receiver.unwrap(), ended)
}

/// Notes the calls of senders, as a plugin's transport does.
struct Watched(Local, Arc<CurrentCall>);

impl Net for Watched {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn devices(&self) -> usize {
        self.0.devices()
    }

    fn properties(&self, device: usize) -> oxccl_net::Result<Properties> {
        self.0.properties(device)
    }

    fn listen(&self, device: usize) -> oxccl_net::Result<(Handle, Box<dyn Listener>)> {
        self.0.listen(device)
    }

    fn connect(&self, device: usize, handle: Handle) -> oxccl_net::Result<Box<dyn Connecting>> {
        let connecting = self.0.connect(device, handle)?;
        Ok(Box::new(WatchedConnecting(connecting, self.1.clone())))
    }
}

struct WatchedConnecting(Box<dyn Connecting>, Arc<CurrentCall>);

impl Connecting for WatchedConnecting {
    fn progress(&mut self) -> oxccl_net::Result<Option<Box<dyn Sender>>> {
        let sender = self.0.progress()?;
        Ok(sender.map(|sender| Box::new(WatchedSender(sender, self.1.clone())) as _))
    }

    fn why(&self) -> String {
        self.0.why()
    }
}

struct WatchedSender(Box<dyn Sender>, Arc<CurrentCall>);

impl Connection for WatchedSender {
    fn register(&mut self, memory: Memory) -> oxccl_net::Result<Region> {
        self.0.register(memory)
    }

    fn set_event(&mut self, event: Event) {
        self.0.set_event(event);
    }
}

impl Sender for WatchedSender {
    unsafe fn isend(
        &mut self,
        data: *const u8,
        len: usize,
        tag: u32,
        region: Region,
    ) -> oxccl_net::Result<Option<Request>> {
        // SAFETY: by the contract.
        self.1.enter("isend", || unsafe { self.0.isend(data, len, tag, region) })
    }

    fn test(&mut self, request: Request) -> oxccl_net::Result<bool> {
        self.0.test(request)
    }
}

fn register(sender: &mut dyn Sender) -> (Arc<Vec<u8>>, Region) {
    let owner = Arc::new(vec![0u8; 8]);
    let data = owner.as_ptr().cast_mut();
    let memory = Memory { data, len: 8, place: oxccl_net::Place::Host, owner: owner.clone() };
    (owner, sender.register(memory).unwrap())
}

#[test]
fn messages_pass_in_order_also_where_room_is_short_and_the_end_ends_all() {
    let (mut sender, mut receiver, ended) = pair(Fault::Reluctant);
    let (owner, region) = register(&mut *sender);
    let numbers: Vec<[u8; 2]> = (0..200u8).map(|i| [i, !i]).collect();
    let mut rooms = vec![[0u8; 2]; 200];
    let (mut posted, mut received, mut sent) = (Vec::new(), 0, Vec::new());
    let until = patience();
    while received < numbers.len() {
        assert!(Instant::now() < until, "{received} messages");
        if posted.len() < rooms.len() && posted.len() < received + oxccl_net::MAX_REQUESTS {
            let room = rooms[posted.len()].as_mut_ptr();
            // SAFETY: the rooms outlive the connection.
            posted.push(unsafe { receiver.irecv(room, 2, 0, Region(0)) }.unwrap().unwrap());
        }
        if sent.len() < numbers.len() {
            let data = numbers[sent.len()].as_ptr();
            // SAFETY: the numbers outlive the connection.
            sent.extend(unsafe { sender.isend(data, 2, 0, region) }.unwrap());
        }
        // A place is free again once its request was tested.
        for request in sent.iter().rev().take(oxccl_net::MAX_REQUESTS) {
            let _ = sender.test(*request).unwrap();
        }
        if received < posted.len()
            && let Some(len) = receiver.test(posted[received]).unwrap()
        {
            assert_eq!((len, rooms[received]), (2, numbers[received]));
            received += 1;
        }
    }
    drop((sender, receiver));
    assert_eq!(ended.load(Ordering::SeqCst), 1, "the transport ends with its last connection");
    assert_eq!(Arc::strong_count(&owner), 1, "the memory is given up");
}

/// Sends until an error comes.
fn send_until_error(sender: &mut dyn Sender, region: Region) -> String {
    let until = patience();
    let data = [0u8; 2];
    // SAFETY: static data would do; the thread is stuck or the connection has failed.
    let request = unsafe { sender.isend(Box::leak(Box::new(data)).as_ptr(), 2, 0, region) };
    let request = request.unwrap().unwrap();
    loop {
        match sender.test(request) {
            Err(error) => return error.to_string(),
            Ok(done) => assert!(!done && Instant::now() < until),
        }
    }
}

#[test]
fn an_error_reaches_whoever_waits_and_memory_can_be_given_up_then() {
    let (mut sender, _receiver, _) = pair(Fault::Failing);
    let (owner, region) = register(&mut *sender);
    assert_eq!(send_until_error(&mut *sender, region), "isend: it broke");
    sender.deregister(region).unwrap();
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn a_call_that_does_not_return_is_named_and_keeps_its_memory_only() {
    let (mut sender, receiver, ended) = pair(Fault::Hanging);
    let (owner, region) = register(&mut *sender);
    let text = send_until_error(&mut *sender, region);
    assert!(text.starts_with("isend of net plugin Local: it has not returned for 0.3 s"), "{text}");
    let start = Instant::now();
    drop((sender, receiver));
    assert!(start.elapsed() < Duration::from_secs(10), "the end does not wait for the plugin");
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    assert_eq!(Arc::strong_count(&owner), 2, "the plugin may still use the memory");
}

/// Has every message of an end observed, with the numbers after its own as events.
struct Numbering(AtomicUsize);

impl Observer for Numbering {
    fn message(&self) -> Option<Box<dyn Observation>> {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        Some(Box::new(Numbered(Event(number))))
    }
}

struct Numbered(Event);

impl Observation for Numbered {
    fn begin(&mut self) -> Event {
        observe("begin", self.0);
        self.0
    }

    fn moved(&mut self, len: usize) {
        assert_eq!(len, 2);
        observe("moved", self.0);
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        observe("over", self.0);
    }
}

#[test]
fn the_thread_tells_of_each_message_before_it_is_handed_over_and_until_it_is_done() {
    let (mut sender, mut receiver, _) = pair(Fault::Reluctant);
    let (_owner, region) = register(&mut *sender);
    assert!(sender.observe(Arc::new(Numbering(AtomicUsize::new(0)))));
    assert!(receiver.observe(Arc::new(Numbering(AtomicUsize::new(100)))));
    let (data, mut room, until) = ([1u8, 2], [0u8; 2], patience());
    for number in 1..=3 {
        // SAFETY: both outlive the requests.
        let [posted, sent] = unsafe {
            let posted = receiver.irecv(room.as_mut_ptr(), 2, 0, Region(0));
            [posted, sender.isend(data.as_ptr(), 2, 0, region)]
        };
        let (posted, sent) = (posted.unwrap().unwrap(), sent.unwrap().unwrap());
        let (mut received, mut left) = (false, false);
        while !received || !left {
            assert!(Instant::now() < until);
            received = received || receiver.test(posted).unwrap().is_some();
            left = left || sender.test(sent).unwrap();
        }
        let observed = std::mem::take(&mut *OBSERVED.lock().unwrap());
        for (event, what) in [(number, "isend"), (100 + number, "irecv")] {
            let of = observed.iter().filter(|(_, of)| *of == event).map(|(what, _)| *what);
            let mut of: Vec<_> = of.collect();
            // What was refused comes again.
            of.dedup();
            assert_eq!(of, ["begin", what, "moved", "over"]);
        }
    }
    // What was not started when the end comes is over, too.
    // SAFETY: as above.
    unsafe { receiver.irecv(room.as_mut_ptr(), 2, 0, Region(0)) }.unwrap();
    drop((sender, receiver));
    while OBSERVED.lock().unwrap().last() != Some(&("over", 104)) {
        assert!(Instant::now() < until);
    }
}

#[test]
fn who_waits_for_a_call_of_another_plugin_is_told_of_that_one() {
    let call = |label: &str| {
        let limit = Duration::from_millis(200);
        Arc::new(CurrentCall::with_limit(label.to_owned(), "", limit))
    };
    let (own, other) = (call("net plugin Local"), call("profiler plugin Other"));
    let (end, ended) = channel();
    let (of_thread, within) = (own.clone(), other.clone());
    let thread = std::thread::spawn(move || {
        of_thread.serve();
        of_thread.enter("isend", || beside(&within, "startEvent", || ended.recv().unwrap()));
    });
    let until = patience();
    let stuck = loop {
        assert!(Instant::now() < until);
        if let Some(stuck) = own.stuck() {
            break stuck.to_string();
        }
    };
    let text = "startEvent of profiler plugin Other: it has not returned for 0.2 s";
    assert!(stuck.starts_with(text), "{stuck}");
    assert!(own.is_in_other() && other.stuck().is_none());
    end.send(()).unwrap();
    thread.join().unwrap();
    assert!(!own.is_in_other() && own.stuck().is_none());
    // A thread that serves no plugin.
    assert_eq!(beside(&other, "startEvent", || 7), 7);
}

/// A plugin may block in `accept` until somebody comes.
#[test]
fn a_listener_is_asked_for_a_connection_only_while_one_is_wanted() {
    let (found, mut number) = (Search::<i32>::default(), 0);
    let search = move || -> oxccl_net::Result<Option<i32>> {
        number += 1;
        Ok(Some(number))
    };
    let mut searching = Searching { search, found: found.clone() };
    assert!(searching.poll() == Progress::Idle);
    for expected in [1, 2] {
        assert_eq!(found.ask(), None);
        assert!(searching.poll() == Progress::Moved && searching.poll() == Progress::Idle);
        assert_eq!(found.ask(), Some(Ok(expected)));
        assert!(searching.poll() == Progress::Idle);
    }
    drop(found);
    assert!(searching.poll() == Progress::Over);
}

#[test]
fn a_transport_that_cannot_be_made_says_why() {
    let current = Arc::new(CurrentCall::new("net plugin Local".to_owned(), ""));
    let make = || Err(oxccl_net::Error::new("init", "no adapter", ""));
    let text = Proxy::start(make, current).err().unwrap().to_string();
    assert!(text.contains("init") && text.contains("no adapter"), "{text}");
    let current = Arc::new(CurrentCall::new("net plugin Local".to_owned(), ""));
    let make = || panic!("this is expected here");
    let text = Proxy::start(make, current).err().unwrap().to_string();
    assert!(text.contains("the thread that calls it has ended"), "{text}");
}
