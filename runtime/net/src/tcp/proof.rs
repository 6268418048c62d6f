//! Proofs that who connects has got the handle of a listener: a secret that is in the handle is the
//! first that a connection says. Strangers do not know it.

use super::{HINT, failed};
use crate::{Error, HANDLE_BYTES, Handle, Result};
use rustix::event::{PollFd, PollFlags};
use socket2::Socket;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

const SECRET_BYTES: usize = 16;
/// The place of the secret in a handle, behind the longest address.
const SECRET_AT: usize = HANDLE_BYTES - SECRET_BYTES;
/// The time in which the secret has to be said.
const LIMIT: Duration = Duration::from_secs(5);
/// The most connections that are yet to say it; where more come, the oldest one is refused.
const MOST: usize = 64;

/// The secret of a listener.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// Draws a secret and adds it to a handle.
    pub(super) fn draw(handle: &mut Handle) -> Result<Self> {
        let mut secret = Self::default();
        getrandom::fill(&mut secret.0).map_err(|e| Error::new("making a secret", e, HINT))?;
        handle.0[SECRET_AT..].copy_from_slice(&secret.0);
        Ok(secret)
    }

    /// Returns the secret in a handle.
    pub(super) fn of(handle: &Handle) -> Self {
        let mut secret = Self::default();
        secret.0.copy_from_slice(&handle.0[SECRET_AT..]);
        secret
    }

    /// Says the secret over a new connection, which has room for it.
    pub(super) fn say(self, mut socket: &Socket) -> std::io::Result<()> {
        match socket.write(&self.0)? {
            SECRET_BYTES => Ok(()),
            _ => Err(ErrorKind::WriteZero.into()),
        }
    }

    /// Returns whether it is another one, in a time that does not depend on where they differ.
    fn is(self, other: [u8; SECRET_BYTES]) -> bool {
        self.0.iter().zip(other).fold(0, |differs, (own, other)| differs | (own ^ other)) == 0
    }
}

/// A connection that is yet to say the secret.
struct Caller {
    socket: Socket,
    from: String,
    said: [u8; SECRET_BYTES],
    bytes: usize,
    until: Instant,
}

impl Caller {
    /// Reads what the caller says. Returns whether it is the secret, once that is known.
    fn hear(&mut self, secret: Secret, now: Instant) -> Option<bool> {
        loop {
            match (&self.socket).read(&mut self.said[self.bytes..]) {
                Ok(0) => return Some(false),
                Ok(bytes) => self.bytes += bytes,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    return (now >= self.until).then_some(false);
                }
                Err(_) => return Some(false),
            }
            if self.bytes == SECRET_BYTES {
                return Some(secret.is(self.said));
            }
        }
    }
}

/// The connections of a listener that are yet to say its secret.
pub(super) struct Callers {
    secret: Secret,
    all: VecDeque<Caller>,
    /// Is told of those that are refused.
    tell: fn(&str),
}

impl Callers {
    pub(super) fn new(secret: Secret, tell: fn(&str)) -> Self {
        Self { secret, all: VecDeque::new(), tell }
    }

    /// Takes a connection.
    pub(super) fn add(&mut self, socket: Socket, from: String, now: Instant) -> Result<()> {
        // What follows the secret stays in the socket.
        socket.set_nonblocking(true).map_err(failed("fcntl on a connection"))?;
        self.all.push_back(Caller { socket, from, said: [0; 16], bytes: 0, until: now + LIMIT });
        if self.all.len() > MOST
            && let Some(oldest) = self.all.pop_front()
        {
            self.refuse(&oldest);
        }
        Ok(())
    }

    /// Returns a connection that has said the secret. Those that say something else are closed.
    pub(super) fn next(&mut self, now: Instant) -> Option<Socket> {
        for _ in 0..self.all.len() {
            let mut caller = self.all.pop_front()?;
            match caller.hear(self.secret, now) {
                Some(true) => return Some(caller.socket),
                Some(false) => self.refuse(&caller),
                None => self.all.push_back(caller),
            }
        }
        None
    }

    fn refuse(&self, caller: &Caller) {
        let from = &caller.from;
        (self.tell)(&format!("a connection from {from} is refused: it does not know the secret"));
    }

    pub(super) fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.extend(self.all.iter().map(|caller| PollFd::new(&caller.socket, PollFlags::IN)));
    }
}
