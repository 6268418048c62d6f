//! The accepting side of connections, which holds them until they have authenticated.
//!
//! Anyone may connect. Connections of others cost a little time and never a member's place: when
//! all places are taken, a connection that has not authenticated for [`UNAUTHENTICATED`] makes room
//! for one that waits, and a member that lost its place comes again.

use super::auth::{Ends, Server};
use super::dial::{NO_SOCKET, watch_for_cuts};
use super::encryption;
use super::id::SECRET_BYTES;
use super::wire::{Connection, MAX_UNAUTHENTICATED, UNAUTHENTICATED};
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use oxccl_net::tcp::is_of_connection;
use rustix::event::{PollFd, PollFlags};
use socket2::Socket;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Instant;

/// The condition on which a connection is admitted.
#[derive(Clone, Copy)]
pub struct Admission {
    /// The communicator's secret.
    pub secret: [u8; SECRET_BYTES],
    /// The purpose and the ends of the connections; `from` is ignored.
    pub ends: Ends,
    /// Ranks below this number may come.
    pub nranks: u32,
}

/// A listener and the connections that have not authenticated yet, the oldest first.
pub struct Door {
    listener: Socket,
    admission: Admission,
    strangers: VecDeque<Connection>,
    /// True once a connection had to make room, as there were no more descriptors.
    ran_short: bool,
}

impl Door {
    /// Takes over a listener, which from here on does not block.
    pub fn new(listener: Socket, admission: Admission) -> Result<Self> {
        let failed = |e| Error::system("fcntl on a listener", e, "out of memory?");
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, admission, strangers: VecDeque::new(), ran_short: false })
    }

    /// Takes new connections and moves their handshakes on; returns those that have authenticated.
    /// Fails only where this process or system has no more descriptors. Never blocks.
    pub fn progress(&mut self, now: Instant) -> Result<Vec<Connection>> {
        while self.has_room(now) {
            match self.listener.accept() {
                Ok((socket, _)) => self.take(socket)?,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if is_shortage(&e) && self.strangers.is_empty() => {
                    return Err(Error::system("accepting a connection", e, NO_SOCKET));
                }
                // The oldest unauthenticated connection gives its descriptor back for one that may
                // be a member's.
                Err(e) if is_shortage(&e) => {
                    self.strangers.pop_front();
                    self.ran_short = true;
                }
                // The connection that waited has ended already.
                Err(e) if is_of_connection(&e) => {}
                Err(e) => return Err(Error::system("accepting a connection", e, NO_SOCKET)),
            }
        }
        let mut members = Vec::new();
        for mut connection in std::mem::take(&mut self.strangers) {
            match connection.progress_handshake() {
                Ok(()) if connection.is_open() => members.push(connection),
                Ok(()) => self.strangers.push_back(connection),
                Err(error) => note(&error),
            }
        }
        Ok(members)
    }

    fn take(&mut self, socket: Socket) -> Result<()> {
        if self.strangers.len() >= MAX_UNAUTHENTICATED {
            self.strangers.pop_front();
        }
        let Admission { secret, ends, nranks } = self.admission;
        watch_for_cuts(&socket);
        let server = Server::new(secret, ends, nranks, encryption::key_of(ends.role))?;
        match Connection::accept(socket, server) {
            Ok(connection) => self.strangers.push_back(connection),
            // The connection ended while it was accepted.
            Err(error) => note(&error),
        }
        Ok(())
    }

    /// Returns whether another connection can be taken now, if need be in the place of the oldest
    /// one.
    fn has_room(&self, now: Instant) -> bool {
        let old = |c: &Connection| now.saturating_duration_since(c.since()) >= UNAUTHENTICATED;
        self.strangers.len() < MAX_UNAUTHENTICATED || self.strangers.front().is_some_and(old)
    }

    /// Adds the descriptors to poll, the listener only while there is room.
    /// [`progress`](Self::progress) has to be called after [`UNAUTHENTICATED`] at the latest.
    pub fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.has_room(Instant::now()) {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(self.strangers.iter().map(Connection::poll_fd));
    }

    /// Returns whether a connection, which may have been a member's, had to make room for another
    /// one, as this process or system had no more descriptors.
    pub fn ran_short(&self) -> bool {
        self.ran_short
    }

    /// Returns whether there is no unauthenticated connection.
    pub fn is_idle(&self) -> bool {
        self.strangers.is_empty()
    }
}

fn is_shortage(e: &std::io::Error) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    e.raw_os_error().is_some_and(|errno| shortages.contains(&errno))
}

/// Logs why a connection ended before it had authenticated.
fn note(error: &Error) {
    log::line(Level::Info, Subsystem::Bootstrap, &format!("a connection was refused: {error}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::auth::Role;
    use crate::bootstrap::dial::Dial;
    use crate::bootstrap::wire::wait_for;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    const ENDS: Ends = Ends { role: Role::Control, from: 1, to: 0, comm: 3 };

    /// Opens far more unauthenticated connections than there are places: some silent, some closed
    /// at once and some that send garbage. The members before, among and after them all get in.
    #[test]
    fn members_get_in_whatever_strangers_do() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let secret = [1; 32];
        let admission = Admission { secret, ends: ENDS, nranks: 8 };
        let mut door = Door::new(listener.into(), admission).unwrap();
        let dial =
            |from| Dial::new(address.into(), address.to_string(), secret, Ends { from, ..ENDS });
        let mut dials: Vec<Dial> = (1..4).map(dial).collect();
        let mut strangers = Vec::new();
        let (mut members, mut clients) = (Vec::new(), Vec::new());
        let until = Instant::now() + Duration::from_secs(60);
        for round in 0u32.. {
            assert!(Instant::now() < until, "{members:?} of the members got in");
            if strangers.len() < 2 * MAX_UNAUTHENTICATED {
                let mut stranger = TcpStream::connect(address).unwrap();
                if round % 3 == 0 {
                    let _ = std::io::Write::write(&mut stranger, &[7; 200]);
                }
                if round % 3 != 1 || round % 2 == 0 {
                    strangers.push(stranger);
                }
            }
            for connection in door.progress(Instant::now()).unwrap() {
                members.push(connection.peer_rank());
                clients.push(connection);
            }
            // The second member comes when half of the other connections are there, the third after
            // all.
            let begun = 1 + strangers.len() / MAX_UNAUTHENTICATED;
            for dial in dials.iter_mut().take(begun) {
                clients.extend(dial.progress(Instant::now()).unwrap());
            }
            members.sort_unstable();
            members.dedup();
            if members == [1, 2, 3] {
                break;
            }
            let mut fds = Vec::new();
            door.poll_fds(&mut fds);
            wait_for(&mut fds, Duration::from_millis(1));
        }
    }
}
