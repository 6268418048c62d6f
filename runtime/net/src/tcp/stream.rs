//! The two ends of a TCP connection.

use super::{HINT, failed};
use crate::{Connection, Error, Receiver, Region, Request, Result, Sender};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::sync::Arc;

/// Bytes of a message's length.
const HEADER: usize = 4;

struct Outgoing {
    header: [u8; HEADER],
    data: *const u8,
    len: usize,
    sent: usize,
}

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
        (&*self.0).read(into)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> std::io::Result<usize> {
        (&*self.0).read_vectored(into)
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
            // A plain write to a peer that is gone would end a C program with SIGPIPE.
            let (mut none, quiet) = (SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
            match sendmsg(&*self.stream.0, &parts, &mut none, quiet).map_err(std::io::Error::from) {
                Ok(n) => front.sent += n,
                Err(e) if blocked(&e) => return Ok(()),
                Err(e) => return Err(failed("sending to a peer")(e)),
            }
            if front.sent == front.len + HEADER {
                self.queued.pop_front();
                self.done += 1;
            }
        }
        Ok(())
    }
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
        let too_long = |_| Error::new("sending to a peer", format!("{len} bytes at once"), HINT);
        let header = u32::try_from(len).map_err(too_long)?.to_le_bytes();
        self.queued.push_back(Outgoing { header, data, len, sent: 0 });
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

struct Incoming {
    data: *mut u8,
    capacity: usize,
    header: [u8; HEADER],
    received: usize,
}

impl Incoming {
    /// Returns the length of the message, once it is known.
    fn len(&self) -> Option<usize> {
        (self.received >= HEADER).then(|| u32::from_le_bytes(self.header) as usize)
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
            reverse: None,
        }
    }

    /// Receives what has come, until so many requests are complete that were not tested.
    fn progress(&mut self, complete: usize) -> Result<()> {
        while self.sizes.len() < complete {
            let Some(front) = self.posted.front_mut() else { break };
            let rest = &self.surplus[self.used..];
            let read = match rest.is_empty() {
                true => receive(&mut self.stream, front, self.ahead),
                false => receive(&mut &*rest, front, false).inspect(|n| self.used += n),
            };
            match read {
                // The stream ends here, between two messages.
                Ok(0) if front.received == 0 => {
                    self.closed = true;
                    return Ok(());
                }
                Ok(0) => return Err(failed("receiving")(ErrorKind::UnexpectedEof.into())),
                Ok(n) => front.received += n,
                Err(e) if blocked(&e) => return Ok(()),
                Err(e) => return Err(failed("receiving from a peer")(e)),
            }
            self.finish_front()?;
        }
        Ok(())
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
        self.sizes.push_back(Some(len));
        self.posted.pop_front();
        Ok(())
    }
}

/// Reads the rest of the length or of the message. With `ahead` the length is read along with as
/// much of what follows as fits the offered memory: a message of the size that was offered for it
/// takes one call.
fn receive(stream: &mut impl Read, into: &mut Incoming, ahead: bool) -> std::io::Result<usize> {
    let header = into.received.min(HEADER);
    let at = into.received - header;
    let end = into.len().map_or(into.capacity, |len| len.min(into.capacity));
    // SAFETY: `at ≤ end ≤ capacity`, writable by the contract of `irecv`.
    let data = unsafe { std::slice::from_raw_parts_mut(into.data.add(at), end - at) };
    if header == HEADER {
        return stream.read(data);
    }
    let length = &mut into.header[header..];
    match ahead {
        true => stream.read_vectored(&mut [IoSliceMut::new(length), IoSliceMut::new(data)]),
        false => stream.read(length),
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
        self.posted.push_back(Incoming { data, capacity, header: [0; HEADER], received: 0 });
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
}
