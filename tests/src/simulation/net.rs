//! A network in memory: ordered messages that take random virtual time, and connections that break.
//!
//! As with TCP, what a sender starts leaves only with its further help, in pieces that the wire has
//! room for, and what the wire has taken arrives even when the sender has gone.

use crate::sequence::Random;
use oxccl_net::{Connection, Error, Receiver, Region, Request, Result, Sender};
use oxccl_runtime::clock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Messages that a wire holds.
const ROOM: usize = 6;

/// One direction between two ranks.
#[derive(Clone)]
pub(super) struct Wire(Arc<Mutex<Inside>>);

struct Inside {
    random: Random,
    arriving: VecDeque<(Instant, Vec<u8>)>,
    sender_gone: bool,
    receiver_gone: bool,
}

impl Wire {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().expect("no panic while it is held")
    }

    /// Loses a random tail of what is on its way, as the death of the sender's host does.
    pub(super) fn cut(&self) {
        let mut inside = self.inside();
        let most = inside.arriving.len() as u64;
        let kept = inside.random.below(most + 1) as usize;
        inside.arriving.truncate(kept);
    }
}

/// A connection: the wire and both ends.
pub(super) fn connect(random: Random) -> (Wire, Box<dyn Sender>, Box<dyn Receiver>) {
    let wire = Wire(Arc::new(Mutex::new(Inside {
        random,
        arriving: VecDeque::new(),
        sender_gone: false,
        receiver_gone: false,
    })));
    let sender = SimSender { wire: wire.clone(), queued: VecDeque::new(), done: 0 };
    let receiver = SimReceiver { wire: wire.clone(), posted: VecDeque::new(), first: 0 };
    (wire, Box::new(sender), Box::new(receiver))
}

fn broken(call: &str) -> Error {
    Error::new(call, "the simulated connection is gone", "")
}

struct SimSender {
    wire: Wire,
    queued: VecDeque<(*const u8, usize)>,
    done: u64,
}

// SAFETY: the pointers are only followed under the contract of `isend`.
unsafe impl Send for SimSender {}

impl SimSender {
    fn progress(&mut self) -> Result<()> {
        let mut inside = self.wire.inside();
        while let Some(&(data, len)) = self.queued.front() {
            if inside.receiver_gone {
                return Err(broken("sending to a peer"));
            }
            if inside.arriving.len() >= ROOM || inside.random.below(4) == 0 {
                return Ok(());
            }
            let most_us = if inside.random.below(16) == 0 { 50_000 } else { 200 };
            let delay = Duration::from_micros(inside.random.below(most_us));
            let last = inside.arriving.back().map(|(at, _)| *at);
            let at = (clock::now() + delay).max(last.unwrap_or_else(clock::now));
            // SAFETY: by the contract of `isend` the data stays readable until it is done.
            let bytes = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
            inside.arriving.push_back((at, bytes));
            self.queued.pop_front();
            self.done += 1;
        }
        Ok(())
    }
}

impl Connection for SimSender {}

impl Sender for SimSender {
    unsafe fn isend(
        &mut self,
        data: *const u8,
        len: usize,
        _tag: u32,
        _region: Region,
    ) -> Result<Option<Request>> {
        self.queued.push_back((data, len));
        let request = self.done + self.queued.len() as u64;
        self.progress()?;
        Ok(Some(request))
    }

    fn test(&mut self, request: Request) -> Result<bool> {
        if self.done < request {
            self.progress()?;
        }
        Ok(self.done >= request)
    }
}

impl Drop for SimSender {
    fn drop(&mut self) {
        self.wire.inside().sender_gone = true;
    }
}

struct SimReceiver {
    wire: Wire,
    posted: VecDeque<(*mut u8, usize)>,
    /// Requests that are complete.
    first: u64,
}

// SAFETY: the pointers are only followed under the contract of `irecv`.
unsafe impl Send for SimReceiver {}

impl Connection for SimReceiver {}

impl Receiver for SimReceiver {
    unsafe fn irecv(
        &mut self,
        data: *mut u8,
        capacity: usize,
        _tag: u32,
        _region: Region,
    ) -> Result<Option<Request>> {
        self.posted.push_back((data, capacity));
        Ok(Some(self.first + self.posted.len() as u64))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        assert_eq!(request, self.first + 1, "requests are tested in order");
        let mut inside = self.wire.inside();
        match inside.arriving.front() {
            None if inside.sender_gone => return Err(broken("receiving from a peer")),
            Some((at, _)) if *at <= clock::now() => {}
            _ => return Ok(None),
        }
        let (Some((_, bytes)), Some((data, capacity))) =
            (inside.arriving.pop_front(), self.posted.pop_front())
        else {
            return Ok(None);
        };
        assert!(bytes.len() <= capacity, "a message of {} bytes for {capacity}", bytes.len());
        // SAFETY: writable for `capacity` bytes by the contract of `irecv`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len()) };
        self.first += 1;
        Ok(Some(bytes.len()))
    }
}

impl Drop for SimReceiver {
    fn drop(&mut self) {
        self.wire.inside().receiver_gone = true;
    }
}
