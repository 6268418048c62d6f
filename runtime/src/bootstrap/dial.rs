//! A connection that this side makes, tried again until the other side has authenticated.

use super::auth::{Client, Ends};
use super::encryption;
use super::id::SECRET_BYTES;
use super::wire::{Connection, wait_for};
use crate::error::{Error, Result};
use oxccl_net::Retry;
use rustix::event::PollFd;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// A connection that is being made without blocking.
pub struct Dial {
    address: SockAddr,
    /// The address, for texts.
    at: String,
    secret: [u8; SECRET_BYTES],
    ends: Ends,
    connection: Option<Connection>,
    retry: Retry,
    /// The error of the last attempt that failed.
    last: Option<String>,
    attempts: u32,
    /// The number of attempts that found nobody listening.
    refusals: u32,
}

impl Dial {
    /// Returns a dial, which begins with the first call of [`progress`](Self::progress).
    pub fn new(address: SockAddr, at: String, secret: [u8; SECRET_BYTES], ends: Ends) -> Self {
        Self {
            address,
            at,
            secret,
            ends,
            connection: None,
            retry: Retry::default(),
            last: None,
            attempts: 0,
            refusals: 0,
        }
    }

    /// Moves the connection on; returns it once both sides have authenticated. After an error that
    /// may be gone a moment later, the connection is tried again. Fails if the other side has
    /// another secret or another encryption, or if this process has no more descriptors.
    pub fn progress(&mut self, now: Instant) -> Result<Option<Connection>> {
        self.start(now)?;
        let Some(connection) = &mut self.connection else { return Ok(None) };
        match connection.progress_handshake() {
            Ok(()) if connection.is_open() => Ok(self.connection.take()),
            Ok(()) => Ok(None),
            Err(error @ (Error::Secret { .. } | Error::Encryption { .. })) => Err(error),
            Err(error) => {
                let refused = connection.is_refused();
                self.put_off(error.to_string(), refused, now);
                Ok(None)
            }
        }
    }

    /// Begins an attempt if it is time for one.
    pub(super) fn start(&mut self, now: Instant) -> Result<()> {
        if self.connection.is_some() || !self.retry.pause(now).is_zero() {
            return Ok(());
        }
        let failed = |e| Error::system(format!("connecting to {}", self.at), e, NO_SOCKET);
        let socket = Socket::new(self.address.domain(), Type::STREAM, None).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        match socket.connect(&self.address) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(e) => {
                self.put_off(e.to_string(), e.kind() == ErrorKind::ConnectionRefused, now);
                return Ok(());
            }
        }
        watch_for_cuts(&socket);
        let key = encryption::key_of(self.ends.role);
        let (client, hello) = Client::new(self.secret, self.ends, key)?;
        self.connection = Some(Connection::client(socket, self.at.clone(), client, hello)?);
        Ok(())
    }

    fn put_off(&mut self, why: String, refused: bool, now: Instant) {
        self.connection = None;
        self.last = Some(why);
        self.attempts += 1;
        self.refusals += u32::from(refused);
        self.retry.put_off(now);
    }

    /// Returns the descriptor to poll; `None` between attempts.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.connection.as_ref().map(Connection::poll_fd)
    }

    /// Returns the time until there is something to do without an event.
    pub fn pause(&self, now: Instant) -> Duration {
        match (&self.connection, &self.last) {
            (None, Some(_)) => self.retry.pause(now),
            _ => Duration::MAX,
        }
    }

    /// Returns the number of attempts that have failed so far.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns the number of attempts so far that found nobody listening.
    pub fn refusals(&self) -> u32 {
        self.refusals
    }

    /// Returns the reason why there is no connection yet.
    pub fn why(&self) -> String {
        let at = &self.at;
        match &self.last {
            Some(last) => format!("connecting to {at}: {last}"),
            None => format!("{at} does not answer"),
        }
    }

    /// Waits for an event or the next attempt, for `limit` at most.
    pub fn wait_for_event(&self, limit: Duration, now: Instant) {
        let mut fds: Vec<_> = self.poll_fd().into_iter().collect();
        wait_for(&mut fds, limit.min(self.pause(now)));
    }
}

/// The advice of errors in which no socket is available.
pub const NO_SOCKET: &str = "raise the limit of open files (ulimit -n), or fs.file-max";

/// The time after which a link that was cut is noticed while little or nothing is under way.
const CUT: Duration = Duration::from_secs(5);

/// Makes the kernel notice that the other host is out of reach. The other host's kernel answers, so
/// a stopped process does not count as out of reach. For connections that carry little: the limit
/// holds for a full buffer too, unless [`tolerate_full_buffer`] lifts it.
pub fn watch_for_cuts(socket: &Socket) {
    let second = Duration::from_secs(1);
    let keepalive = socket2::TcpKeepalive::new().with_time(second).with_interval(second);
    // Unix sockets cannot be cut. If the options are refused, only the deadline is left.
    if socket.domain().is_ok_and(|domain| domain != Domain::UNIX) {
        let _ = socket.set_tcp_keepalive(&keepalive.with_retries(4));
        let _ = socket.set_tcp_user_timeout(Some(CUT));
    }
}

/// Lets the other process leave data unread for as long as it likes. A cut is still noticed by the
/// side that waits for data, and by this side once all data have been acknowledged.
pub fn tolerate_full_buffer(socket: &Socket) {
    // Sockets other than TCP's refuse this; they have no such limit.
    let _ = socket.set_tcp_user_timeout(None);
}

/// Undoes [`watch_for_cuts`]: from now on the connection carries data that may wait long.
pub fn watch_no_more(socket: &Socket) {
    tolerate_full_buffer(socket);
    let _ = socket.set_keepalive(false);
}
