//! The TCP transport. A message is `length u32` and the bytes. Nothing goes the other way: closing
//! a socket with unread bytes would reset the connection, and data might be lost.

use super::net::{
    Connecting, HANDLE_BYTES, Handle, Identity, Listener, Net, Receiver, Request, Sender,
};
use crate::bootstrap::auth::{Ends, Role};
use crate::bootstrap::dial::{Dial, watch_no_more};
use crate::bootstrap::door::{Admission, Door};
use crate::bootstrap::session;
use crate::bootstrap::wire::Connection;
use crate::error::{Error, Result};
use rustix::event::PollFd;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// The TCP transport.
pub struct Tcp;

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |e| Error::system(call, e, "see the network's configuration and ulimit -n")
}

/// Returns the address that a peer's handle holds as text, followed by zeros.
pub(crate) fn address_in(handle: &Handle) -> Option<SocketAddr> {
    let text = handle.0.split(|&b| b == 0).next().unwrap_or_default();
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Returns the stream of a connection that carries data from now on. The control connection decides
/// whether the peer lives, as a full buffer is no sign of death.
fn stream_of(connection: Connection) -> TcpStream {
    let socket = connection.into_socket();
    watch_no_more(&socket);
    socket.into()
}

impl Net for Tcp {
    fn name(&self) -> &'static str {
        "Socket"
    }

    fn listen(
        &self,
        identity: Identity,
        address: SocketAddr,
    ) -> Result<(Handle, Box<dyn Listener>)> {
        let listener = session::listen(address)?;
        let address = listener.local_addr().map_err(failed("getsockname"))?.to_string();
        let mut handle = [0; HANDLE_BYTES];
        handle[..address.len()].copy_from_slice(address.as_bytes());
        let Identity { comm, secret, rank, nranks } = identity;
        let ends = Ends { role: Role::Data, from: 0, to: rank, comm };
        let door = Door::new(listener.into(), Admission { secret, ends, nranks })?;
        Ok((Handle(handle), Box::new(TcpAccept { door, arrived: VecDeque::new() })))
    }

    fn connect(
        &self,
        identity: Identity,
        peer: u32,
        handle: &Handle,
    ) -> Result<Box<dyn Connecting>> {
        let Some(address) = address_in(handle) else {
            return Err(Error::init_peer(peer, "sent a bad address"));
        };
        let Identity { comm, secret, rank, .. } = identity;
        let ends = Ends { role: Role::Data, from: rank, to: peer, comm };
        Ok(Box::new(TcpConnecting(Dial::new(address.into(), address.to_string(), secret, ends))))
    }
}

struct TcpAccept {
    door: Door,
    arrived: VecDeque<Connection>,
}

impl Listener for TcpAccept {
    fn accept(&mut self) -> Result<Option<(u32, Box<dyn Receiver>)>> {
        if self.arrived.is_empty() {
            self.arrived.extend(self.door.progress(Instant::now())?);
        }
        let Some(connection) = self.arrived.pop_front() else { return Ok(None) };
        let rank = connection.peer_rank();
        Ok(Some((rank, Box::new(TcpReceiver::new(stream_of(connection))))))
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        self.door.poll_fds(fds);
    }
}

struct TcpConnecting(Dial);

impl Connecting for TcpConnecting {
    fn progress(&mut self) -> Result<Option<Box<dyn Sender>>> {
        let Some(connection) = self.0.progress(Instant::now())? else { return Ok(None) };
        let stream = stream_of(connection);
        Ok(Some(Box::new(TcpSender { stream, queued: VecDeque::new(), done: 0 })))
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.extend(self.0.poll_fd());
    }

    fn why(&self) -> String {
        self.0.why()
    }
}

struct Outgoing {
    header: [u8; 4],
    data: *const u8,
    len: usize,
    sent: usize,
}

struct TcpSender {
    stream: TcpStream,
    queued: VecDeque<Outgoing>,
    /// The number of requests that are complete.
    done: u64,
}

// SAFETY: the pointers are only followed under the contract of `isend`, from whichever thread
// holds the sender.
unsafe impl Send for TcpSender {}

impl TcpSender {
    fn progress(&mut self) -> Result<()> {
        while let Some(front) = self.queued.front_mut() {
            // SAFETY: by the contract of `isend` the data stays readable until it is done.
            let data = unsafe { std::slice::from_raw_parts(front.data, front.len) };
            let header = front.sent.min(4);
            let parts =
                [IoSlice::new(&front.header[header..]), IoSlice::new(&data[front.sent - header..])];
            // A plain write to a peer that is gone would end a C program with SIGPIPE.
            let (mut none, quiet) = (SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
            match sendmsg(&self.stream, &parts, &mut none, quiet).map_err(std::io::Error::from) {
                Ok(n) => front.sent += n,
                Err(e) if blocked(&e) => return Ok(()),
                Err(e) => return Err(failed("sending to a peer")(e)),
            }
            if front.sent == front.len + 4 {
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

impl Sender for TcpSender {
    unsafe fn isend(&mut self, data: *const u8, len: usize) -> Result<Option<Request>> {
        let header = (len as u32).to_le_bytes();
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
    header: [u8; 4],
    received: usize,
}

/// The receiving end of a connection. The stream is a TCP socket outside of tests.
pub(crate) struct TcpReceiver<S> {
    stream: S,
    posted: VecDeque<Incoming>,
    /// The number of requests that are complete, and the number before the first posted request's.
    done: u64,
    first: u64,
    /// True if the sender has left.
    closed: bool,
}

// SAFETY: the pointers are only followed under the contract of `irecv`, from whichever thread
// holds the receiver.
unsafe impl<S: Send> Send for TcpReceiver<S> {}

impl<S: Read> TcpReceiver<S> {
    /// Creates the receiving end of a stream that does not block.
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, posted: VecDeque::new(), done: 0, first: 0, closed: false }
    }

    fn progress(&mut self) -> Result<()> {
        while let Some(front) = self.posted.get_mut((self.done - self.first) as usize) {
            let len = u32::from_le_bytes(front.header) as usize;
            if front.received >= 4 && len > front.capacity {
                let cause = format!("a message of {len} bytes for a slot of {}", front.capacity);
                return Err(Error::system("receiving from a peer", cause, "report it"));
            }
            let result = if front.received < 4 {
                self.stream.read(&mut front.header[front.received..])
            } else {
                let at = front.received - 4;
                // SAFETY: `at < len ≤ capacity`, writable by the contract of `irecv`.
                let rest = unsafe { std::slice::from_raw_parts_mut(front.data.add(at), len - at) };
                self.stream.read(rest)
            };
            match result {
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
            // An empty message consists of its header; for others the header was complete before
            // the data.
            let len = u32::from_le_bytes(front.header) as usize;
            if front.received == len + 4 {
                self.done += 1;
            }
        }
        Ok(())
    }
}

impl<S: Read + Send> Receiver for TcpReceiver<S> {
    unsafe fn irecv(&mut self, data: *mut u8, capacity: usize) -> Result<Option<Request>> {
        self.posted.push_back(Incoming { data, capacity, header: [0; 4], received: 0 });
        Ok(Some(self.first + self.posted.len() as u64))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        if self.done < request {
            self.progress()?;
        }
        if self.done < request && self.closed {
            return Err(failed("receiving from a peer")(ErrorKind::UnexpectedEof.into()));
        }
        if self.done < request {
            return Ok(None);
        }
        // Requests are tested in order.
        self.first += 1;
        Ok(self.posted.pop_front().map(|done| done.received - 4))
    }
}
