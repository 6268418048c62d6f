//! The two ends of a TCP connection.

use super::{HINT, failed};
use crate::{Connection, Divided, Error, Head, Receiver, Region, Request, Result, Sender};
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::sync::Arc;

/// Bytes of a message's length.
const HEADER: usize = 4;
/// The most bytes that are read along with a length: of a usual message of the library, and its
/// header. What is read beyond a shorter message is copied once more.
const AHEAD: usize = (64 << 10) + 16;

/// The most bytes, with the length, that are sent from one piece of memory, or received into one:
/// the system takes 0.25 µs longer for a list of pieces, and a copy of so few bytes less.
const SMALL: usize = 256;

struct Outgoing {
    header: [u8; HEADER],
    data: *const u8,
    len: usize,
    sent: usize,
}

/// The receives so far that have brought something, of all sockets of this process.
#[cfg(feature = "testing")]
static RECEIVES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Returns the number of system calls so far that have brought data of messages to this process.
#[cfg(feature = "testing")]
pub fn receives() -> u64 {
    RECEIVES.load(std::sync::atomic::Ordering::Relaxed)
}

/// Counts a receive that has brought so many bytes.
#[cfg(feature = "testing")]
fn count(bytes: &usize) {
    RECEIVES.fetch_add(u64::from(*bytes > 0), std::sync::atomic::Ordering::Relaxed);
}

/// Counts nothing outside of tests.
#[cfg(not(feature = "testing"))]
fn count(_bytes: &usize) {}

/// A socket, which the ends of both directions share: what goes one way acknowledges what comes the
/// other way, which saves segments and a third of the time of small messages.
#[derive(Clone)]
pub struct TcpSocket(Arc<TcpStream>);

impl TcpSocket {
    pub(super) fn new(socket: socket2::Socket) -> Self {
        Self(Arc::new(socket.into()))
    }
}

impl Read for TcpSocket {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        (&*self.0).read(into).inspect(count)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> std::io::Result<usize> {
        (&*self.0).read_vectored(into).inspect(count)
    }
}

pub(super) struct TcpSender {
    stream: TcpSocket,
    /// True if the other direction is to read messages along with their lengths; `None` once it
    /// was taken.
    reverse: Option<bool>,
    queued: VecDeque<Outgoing>,
    /// The number of requests that are complete.
    done: u64,
}

// SAFETY: the pointers are only followed under the contract of `isend`, from whichever thread
// holds the sender.
unsafe impl Send for TcpSender {}

impl TcpSender {
    pub(super) fn new(stream: TcpSocket, reverse: Option<bool>) -> Self {
        Self { stream, reverse, queued: VecDeque::new(), done: 0 }
    }

    fn progress(&mut self) -> Result<()> {
        while let Some(front) = self.queued.front_mut() {
            // SAFETY: by the contract of `isend` the data stays readable until it is done.
            let data = unsafe { std::slice::from_raw_parts(front.data, front.len) };
            let header = front.sent.min(HEADER);
            let parts =
                [IoSlice::new(&front.header[header..]), IoSlice::new(&data[front.sent - header..])];
            let sent = write(&self.stream, &parts)?;
            front.sent += sent;
            if front.sent == front.len + HEADER {
                self.queued.pop_front();
                self.done += 1;
            } else if sent == 0 {
                break;
            }
        }
        Ok(())
    }

    fn push(&mut self, message: Outgoing) -> Request {
        self.queued.push_back(message);
        self.done + self.queued.len() as u64
    }
}

/// Sends as much as the socket takes. Returns the number of bytes.
fn write(stream: &TcpSocket, parts: &[IoSlice<'_>]) -> Result<usize> {
    // A plain write to a peer that is gone would end a C program with SIGPIPE.
    let quiet = SendFlags::NOSIGNAL;
    let len = parts.iter().map(|part| part.len()).sum();
    let sent = if len <= SMALL {
        let (mut whole, mut at) = ([0; SMALL], 0);
        for part in parts {
            whole[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        send(&*stream.0, &whole[..len], quiet)
    } else {
        sendmsg(&*stream.0, parts, &mut SendAncillaryBuffer::default(), quiet)
    };
    match sent.map_err(std::io::Error::from) {
        Err(e) if blocked(&e) => Ok(0),
        sent => sent.map_err(failed("sending to a peer")),
    }
}

/// Returns the length of a message as it is sent.
fn header_of(len: usize) -> Result<[u8; HEADER]> {
    let too_long = |_| Error::new("sending to a peer", format!("{len} bytes at once"), HINT);
    Ok(u32::try_from(len).map_err(too_long)?.to_le_bytes())
}

fn blocked(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl Connection for TcpSender {}

impl Sender for TcpSender {
    fn reverse(&mut self) -> Option<Box<dyn Receiver>> {
        let ahead = self.reverse.take()?;
        Some(Box::new(TcpReceiver::new(self.stream.clone(), ahead)))
    }

    unsafe fn isend(
        &mut self,
        data: *const u8,
        len: usize,
        _tag: u32,
        _region: Region,
    ) -> Result<Option<Request>> {
        let request = self.push(Outgoing { header: header_of(len)?, data, len, sent: 0 });
        self.progress()?;
        Ok(Some(request))
    }

    unsafe fn isend_from(
        &mut self,
        from: *const u8,
        head: usize,
        (data, len): (*mut u8, usize),
        _tag: u32,
        _region: Region,
    ) -> Result<Option<Request>> {
        let header = header_of(len)?;
        self.progress()?;
        // SAFETY: readable by the contract, the latter until this returns.
        let (first, rest) = unsafe {
            (std::slice::from_raw_parts(data, head), std::slice::from_raw_parts(from, len - head))
        };
        let parts = [IoSlice::new(&header), IoSlice::new(first), IoSlice::new(rest)];
        let sent = if self.queued.is_empty() { write(&self.stream, &parts)? } else { 0 };
        let of_rest = sent.saturating_sub(HEADER + head);
        // SAFETY: the place of the bytes that have not left is writable by the contract.
        unsafe {
            let (left, to) = (from.add(of_rest), data.add(head + of_rest));
            to.copy_from_nonoverlapping(left, len - head - of_rest);
        }
        let request = self.push(Outgoing { header, data, len, sent });
        if sent == HEADER + len {
            self.queued.pop_front();
            self.done += 1;
        }
        Ok(Some(request))
    }

    fn test(&mut self, request: Request) -> Result<bool> {
        if self.done < request {
            self.progress()?;
        }
        Ok(self.done >= request)
    }
}

struct Incoming {
    data: *mut u8,
    capacity: usize,
    header: [u8; HEADER],
    received: usize,
    /// Of a message that is received in two places: the bytes of its head, and those behind it
    /// that were read along.
    divided: Option<(usize, usize)>,
}

impl Incoming {
    /// Returns the length of the message, once it is known.
    fn len(&self) -> Option<usize> {
        (self.received >= HEADER).then(|| u32::from_le_bytes(self.header) as usize)
    }

    /// Returns the places of what is still to come: of the length, and of the message's first
    /// bytes, up to `known` of them if its length is known, and up to `unknown` if not.
    fn places(&mut self, unknown: usize, known: usize) -> [IoSliceMut<'_>; 2] {
        let header = self.received.min(HEADER);
        let at = self.received - header;
        let end = self.len().map_or(unknown, |len| len.min(known)).min(self.capacity).max(at);
        // SAFETY: `at ≤ end ≤ capacity`, writable by the contract of `irecv`.
        let data = unsafe { std::slice::from_raw_parts_mut(self.data.add(at), end - at) };
        [IoSliceMut::new(&mut self.header[header..]), IoSliceMut::new(data)]
    }
}

/// The receiving end of a connection. The stream is a TCP socket outside of tests.
pub struct TcpReceiver<S> {
    stream: S,
    /// Requests that are not complete, the oldest first.
    posted: VecDeque<Incoming>,
    /// Bytes of later messages, which were read along with a message that was shorter than what was
    /// offered for it; the first have been used already.
    surplus: Vec<u8>,
    used: usize,
    /// The sizes of complete messages, until their requests are tested.
    sizes: VecDeque<Option<usize>>,
    /// The number of the request before the first one in `sizes`.
    before: u64,
    /// True if the sender has left.
    closed: bool,
    /// True if a message is read along with its length.
    ahead: bool,
    /// True if the latest message was small.
    small: bool,
    /// The socket, until its other direction is taken.
    reverse: Option<TcpSocket>,
}

// SAFETY: the pointers are only followed under the contract of `irecv`, from whichever thread
// holds the receiver.
unsafe impl<S: Send> Send for TcpReceiver<S> {}

impl TcpReceiver<TcpSocket> {
    /// Creates the receiving end of a connection that has another direction, too.
    pub(super) fn of_duplex(stream: TcpSocket, ahead: bool) -> Self {
        Self { reverse: Some(stream.clone()), ..Self::new(stream, ahead) }
    }
}

impl<S: Read> TcpReceiver<S> {
    /// Creates the receiving end of a stream that does not block. With `ahead` a message is read
    /// along with its length, and so may what follows it.
    pub fn new(stream: S, ahead: bool) -> Self {
        Self {
            stream,
            posted: VecDeque::new(),
            surplus: Vec::new(),
            used: 0,
            sizes: VecDeque::new(),
            before: 0,
            closed: false,
            ahead,
            small: false,
            reverse: None,
        }
    }

    /// Receives what has come, until so many requests are complete that were not tested.
    fn progress(&mut self, complete: usize) -> Result<()> {
        while self.sizes.len() < complete {
            let divided = self.posted.front().is_none_or(|front| front.divided.is_some());
            if divided || !self.read(usize::MAX, usize::MAX)? {
                break;
            }
            self.finish_front()?;
        }
        Ok(())
    }

    /// Reads on for the oldest request, as [`Incoming::places`] has it; nothing along with the
    /// length unless that is wanted. Returns false if nothing has come.
    fn read(&mut self, unknown: usize, known: usize) -> Result<bool> {
        let Some(front) = self.posted.front_mut() else { return Ok(false) };
        let began = front.received > 0;
        if self.ahead && self.small && !began && self.used == self.surplus.len() {
            // Into one piece of memory, as for what is sent; a larger message takes one more read.
            self.surplus.resize(SMALL, 0);
            let came = number_of(self.stream.read(&mut self.surplus));
            self.surplus.truncate(came.as_ref().map_or(0, |came| came.unwrap_or(0)));
            self.used = 0;
            if self.surplus.is_empty() {
                return self.not_ended(came?, began);
            }
        }
        let surplus = &self.surplus[self.used..];
        let read = if surplus.is_empty() {
            let unknown = if self.ahead { unknown.min(AHEAD) } else { 0 };
            self.stream.read_vectored(&mut front.places(unknown, known))
        } else {
            let mut surplus = surplus;
            surplus.read_vectored(&mut front.places(0, known)).inspect(|n| self.used += n)
        };
        let came = number_of(read)?;
        front.received += came.unwrap_or(0);
        self.not_ended(came, began)
    }

    /// Returns whether a read has brought something; notes the end of the stream between two
    /// messages.
    fn not_ended(&mut self, came: Option<usize>, began: bool) -> Result<bool> {
        match came {
            Some(0) if began => Err(failed("receiving")(ErrorKind::UnexpectedEof.into())),
            Some(0) => {
                self.closed = true;
                Ok(false)
            }
            came => Ok(came.is_some()),
        }
    }

    /// Reads the rest of the oldest request's message, and in the same call the length and the
    /// head of the next one. Returns false if nothing has come.
    fn read_rest(&mut self, rest: &mut [u8], head: usize) -> Result<bool> {
        let wanted = rest.len();
        let surplus = &self.surplus[self.used..];
        let read = match self.posted.get_mut(1).filter(|_| self.ahead) {
            _ if !surplus.is_empty() => {
                let n = wanted.min(surplus.len());
                rest[..n].copy_from_slice(&surplus[..n]);
                self.used += n;
                Ok(n)
            }
            Some(next) => {
                let [length, first] = next.places(head, 0);
                self.stream.read_vectored(&mut [IoSliceMut::new(rest), length, first])
            }
            None => self.stream.read(rest),
        };
        let came = number_of(read)?;
        let of_rest = came.unwrap_or(0).min(wanted);
        self.posted[0].received += of_rest;
        if let Some(next) = self.posted.get_mut(1) {
            next.received += came.unwrap_or(0) - of_rest;
        }
        self.not_ended(came, true)
    }

    /// Completes the oldest request if its message is there, and keeps what was read beyond it.
    fn finish_front(&mut self) -> Result<()> {
        let Some(front) = self.posted.front() else { return Ok(()) };
        let Some(len) = front.len() else { return Ok(()) };
        if len > front.capacity {
            let cause = format!("a message of {len} bytes for a slot of {}", front.capacity);
            return Err(Error::new("receiving from a peer", cause, "report it"));
        }
        let Some(beyond) = front.received.checked_sub(HEADER + len) else { return Ok(()) };
        if beyond > 0 {
            // SAFETY: these bytes have just been read into the offered memory.
            let read = unsafe { std::slice::from_raw_parts(front.data.add(len), beyond) };
            // Only the stream is read ahead, once the surplus is used up.
            self.surplus.clear();
            self.surplus.extend(read);
            self.used = 0;
        }
        self.small = HEADER + len <= SMALL;
        self.sizes.push_back(Some(len));
        self.posted.pop_front();
        Ok(())
    }
}

/// Returns the number of bytes that a read has brought; `None` if there are none now.
fn number_of(read: std::io::Result<usize>) -> Result<Option<usize>> {
    match read {
        Err(e) if blocked(&e) => Ok(None),
        read => read.map(Some).map_err(failed("receiving from a peer")),
    }
}

impl<S: Read + Send> Connection for TcpReceiver<S> {}

impl<S: Read + Send> Receiver for TcpReceiver<S> {
    fn reverse(&mut self) -> Option<Box<dyn Sender>> {
        let stream = self.reverse.take()?;
        Some(Box::new(TcpSender::new(stream, None)))
    }

    unsafe fn irecv(
        &mut self,
        data: *mut u8,
        capacity: usize,
        _tag: u32,
        _region: Region,
    ) -> Result<Option<Request>> {
        let header = [0; HEADER];
        self.posted.push_back(Incoming { data, capacity, header, received: 0, divided: None });
        Ok(Some(self.before + (self.sizes.len() + self.posted.len()) as u64))
    }

    fn ends_with_requests(&self) -> bool {
        true
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        let Some(index) = request.checked_sub(self.before + 1).map(|index| index as usize) else {
            let cause = format!("request {request} was tested again");
            return Err(Error::new("receiving from a peer", cause, "report it"));
        };
        if self.sizes.len() <= index {
            self.progress(index + 1)?;
        }
        let size = self.sizes.get_mut(index).and_then(Option::take);
        if size.is_none() && self.sizes.len() <= index && self.closed {
            return Err(failed("receiving from a peer")(ErrorKind::UnexpectedEof.into()));
        }
        while self.sizes.front().is_some_and(Option::is_none) {
            self.sizes.pop_front();
            self.before += 1;
        }
        Ok(size)
    }

    fn divided(&mut self) -> Option<&mut dyn Divided> {
        Some(self)
    }
}

impl<S: Read + Send> Divided for TcpReceiver<S> {
    fn test_head(&mut self, request: Request, head: usize) -> Result<Head> {
        while request == self.before + 1 && self.sizes.is_empty() {
            let Some(front) = self.posted.front_mut() else { break };
            let came = front.received.saturating_sub(HEADER);
            if let Some(len) = front.len().filter(|len| came >= head && *len > head) {
                front.divided = Some((head, came - head));
                return Ok(Head::Begun(len));
            }
            if !self.read(head, head)? {
                break;
            }
            self.finish_front()?;
        }
        Ok(self.test(request)?.map_or(Head::None, Head::Whole))
    }

    unsafe fn test_rest(&mut self, request: Request, to: *mut u8) -> Result<bool> {
        loop {
            let front = self.posted.front_mut().filter(|_| request == self.before + 1);
            let begun = front.and_then(|front| Some((front.divided?, front.len()?, front)));
            let Some(((head, along), len, front)) = begun else {
                let cause = format!("request {request} has no head");
                return Err(Error::new("receiving from a peer", cause, "report it"));
            };
            let at = front.received - HEADER - head;
            // SAFETY: the bytes that were read along with the head are in the offered memory; `to`
            // is writable for all behind the head by the contract.
            let rest = unsafe {
                to.copy_from_nonoverlapping(front.data.add(head), along);
                std::slice::from_raw_parts_mut(to.add(at), len - head - at)
            };
            front.divided = Some((head, 0));
            if rest.is_empty() {
                break;
            }
            if !self.read_rest(rest, head)? {
                return Ok(false);
            }
        }
        self.small = false;
        self.posted.pop_front();
        self.before += 1;
        // The next message may be there already.
        self.finish_front()?;
        Ok(true)
    }
}
