//! A rank's end of a group: two threads, one that sends its messages to the switch, and one that
//! receives the results, in the same order.

use crate::switch::Switch;
use crate::wire::{Header, LIMIT, Place};
use std::io::{Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// The most all-reduces under way.
const MOST: usize = 32;

/// The states of an all-reduce.
const UNDER_WAY: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;

/// Memory of the caller, which stays until its all-reduce is done.
struct Data {
    at: *mut u8,
    len: usize,
}

// SAFETY: by the contract of `Group::start`, only the thread that has it accesses the memory.
unsafe impl Send for Data {}

/// A rank's listener, and the place where it listens.
pub(crate) struct Listener {
    pub(crate) listener: TcpListener,
    pub(crate) place: Place,
}

/// An all-reduce.
pub(crate) struct Request {
    state: Arc<AtomicU8>,
    under_way: Arc<AtomicUsize>,
    pub(crate) header: Header,
}

impl Request {
    /// Returns whether the result is there. Fails if the switch is gone.
    pub(crate) fn test(&self) -> Result<bool> {
        match self.state.load(Ordering::Acquire) {
            UNDER_WAY => Ok(false),
            DONE => Ok(true),
            _ => {
                Err(std::io::Error::other("the switch is gone: a rank has ended, or calls differ"))
            }
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A rank's end of a group.
pub(crate) struct Group {
    connection: TcpStream,
    messages: Option<Sender<(Header, Data)>>,
    results: Option<Sender<(Data, Arc<AtomicU8>)>>,
    threads: Vec<JoinHandle<()>>,
    under_way: Arc<AtomicUsize>,
    // Ends after the threads.
    _switch: Option<Switch>,
}

impl Group {
    /// Connects rank `rank` of `nranks` with the switch, which listens at `first` in the process of
    /// rank 0. Blocks until all ranks have come, for [`LIMIT`] at most.
    pub(crate) fn connect(
        own: &Listener,
        first: &Place,
        (rank, nranks): (usize, usize),
    ) -> Result<Self> {
        let start = || Switch::start(own.listener.try_clone()?, own.place.secret, nranks);
        let switch = if rank == 0 { Some(start()?) } else { None };
        let mut connection = TcpStream::connect_timeout(&first.address, LIMIT)?;
        connection.set_nodelay(true)?;
        let number = (rank as u32).to_le_bytes();
        connection.write_all(&[&first.secret[..], &number].concat())?;
        connection.set_read_timeout(Some(LIMIT))?;
        connection.read_exact(&mut [0])?;
        connection.set_read_timeout(None)?;
        let mut group = Self {
            connection,
            messages: None,
            results: None,
            threads: Vec::new(),
            under_way: Arc::default(),
            _switch: switch,
        };
        group.start_threads()?;
        Ok(group)
    }

    fn start_threads(&mut self) -> Result<()> {
        let (messages, to_send) = channel::<(Header, Data)>();
        let (results, to_receive) = channel::<(Data, Arc<AtomicU8>)>();
        let (mut sends, mut receives) =
            (self.connection.try_clone()?, self.connection.try_clone()?);
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(body)
        };
        let send = move || {
            for (header, Data { at, len }) in to_send {
                // SAFETY: readable and unchanged until the all-reduce is done.
                let data = unsafe { std::slice::from_raw_parts(at.cast_const(), len) };
                let sent = sends.write_all(&header.encode()).and_then(|()| sends.write_all(data));
                // The other thread sees the end of the connection, too.
                if sent.is_err() {
                    let _ = sends.shutdown(Shutdown::Both);
                }
            }
        };
        let receive = move || {
            for (Data { at, len }, state) in to_receive {
                // SAFETY: writable, and nobody else's, until the all-reduce is done.
                let data = unsafe { std::slice::from_raw_parts_mut(at, len) };
                let came = receives.read_exact(data).is_ok();
                state.store(if came { DONE } else { FAILED }, Ordering::Release);
            }
        };
        // What has begun ends with the group if the second thread cannot begin.
        self.threads.push(spawn("oxccl-soft-send", Box::new(send))?);
        self.messages = Some(messages);
        self.threads.push(spawn("oxccl-soft-recv", Box::new(receive))?);
        self.results = Some(results);
        Ok(())
    }

    /// Starts an all-reduce; `None` if as many are under way as there may be.
    ///
    /// # Safety
    /// Both memories hold the data of the header, and are not touched by others until the request
    /// is done or the group has ended. The result may lie in the place of the data.
    pub(crate) unsafe fn start(
        &self,
        header: Header,
        from: *mut u8,
        to: *mut u8,
    ) -> Option<Request> {
        let (messages, results) = self.messages.as_ref().zip(self.results.as_ref())?;
        if self.under_way.fetch_add(1, Ordering::AcqRel) >= MOST {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        let (state, len) = (Arc::new(AtomicU8::new(UNDER_WAY)), header.bytes());
        let request = Request { state: state.clone(), under_way: self.under_way.clone(), header };
        // The threads live as long as these channels. The result is written after all of the
        // message has left: the switch answers whole messages.
        let _ = results.send((Data { at: to, len }, state));
        let _ = messages.send((header, Data { at: from, len }));
        Some(request)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        (self.messages, self.results) = (None, None);
        // Results that are under way come to an end at once.
        let _ = self.connection.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
