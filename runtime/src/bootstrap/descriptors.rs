//! Passing file descriptors between the ranks of one host, over an abstract Unix socket.
//!
//! The lowest rank of the host is the leader: it makes the communicator's shared segment, collects
//! every process's arena and hands everyone everything. Both sides check the other's user id by
//! `SO_PEERCRED` and authenticate with the communicator's secret.

use super::auth::{Client, Ends, Progress, Role, Server};
use super::deadline::Deadline;
use super::id::{SECRET_BYTES, random};
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Who takes part.
#[derive(Clone)]
pub struct Group<'a> {
    /// This rank.
    pub rank: u32,
    /// The ranks of this host; the first is the leader.
    pub ranks: &'a [u32],
    /// Those of them whose descriptors everyone gets: one per process, the leader first.
    pub shown: &'a [u32],
    /// The communicator's number.
    pub comm: u64,
    /// Its secret.
    pub secret: [u8; SECRET_BYTES],
    /// When it has to be done.
    pub deadline: Deadline,
}

/// The leader's socket, whose name the others learn through the rendezvous.
pub struct Listener {
    socket: UnixListener,
    name: [u8; 16],
}

impl Listener {
    /// Listens under a random abstract name.
    pub fn new() -> Result<Self> {
        let name: [u8; 16] = random()?;
        let socket = address(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(|e| Error::system("listening on a Unix socket", e, "see ulimit -n"))?;
        Ok(Self { socket, name })
    }

    /// Its name.
    pub fn name(&self) -> &[u8; 16] {
        &self.name
    }
}

fn address(name: &[u8; 16]) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name([b"oxccl-", &name[..]].concat())
}

fn lost(rank: u32, e: impl std::fmt::Display) -> Error {
    Error::Init { why: format!("passing descriptors to or from rank {rank}: {e}") }
}

/// The leader's part: takes a descriptor from every other rank of the host, then gives every rank
/// those of `group.shown`, in that order, and `segment` behind them.
pub fn lead(
    group: &Group<'_>,
    listener: &Listener,
    own: BorrowedFd<'_>,
    segment: BorrowedFd<'_>,
) -> Result<Vec<OwnedFd>> {
    let mut streams: Vec<Option<(UnixStream, OwnedFd)>> = Vec::new();
    streams.resize_with(group.ranks.len(), || None);
    let failed = |e| Error::system("accepting on a Unix socket", e, "see ulimit -n");
    listener.socket.set_nonblocking(true).map_err(failed)?;
    while streams.iter().skip(1).any(Option::is_none) {
        if group.deadline.passed() {
            let missing = group.ranks.iter().zip(&streams).skip(1).find(|(_, s)| s.is_none());
            let rank = missing.map_or(0, |(r, _)| *r);
            return Err(group.deadline.error(|| lost(rank, "it did not come in time")));
        }
        let events = rustix::event::PollFlags::IN;
        let mut fds = [rustix::event::PollFd::new(&listener.socket, events)];
        super::wire::wait_for(&mut fds, group.deadline.slice());
        let Ok((stream, _)) = listener.socket.accept() else { continue };
        // A stranger is turned away and does not stop the members.
        match greet_client(group, &stream).and_then(|rank| Ok((rank, receive_one(&stream, rank)?)))
        {
            Ok((rank, fd)) => {
                let Some(i) = group.ranks.iter().position(|&r| r == rank) else { continue };
                if streams[i].replace((stream, fd)).is_some() {
                    return Err(lost(rank, "two processes claim this rank"));
                }
            }
            Err(e) => log::line(Level::Warn, Subsystem::Bootstrap, &e.to_string()),
        }
    }
    let others: Vec<_> = streams.into_iter().skip(1).flatten().collect();
    let mut all: Vec<BorrowedFd<'_>> = vec![own];
    let ranked = others.iter().zip(&group.ranks[1..]);
    let shown = ranked.filter(|(_, rank)| group.shown.contains(rank));
    all.extend(shown.map(|((_, fd), _)| fd.as_fd()));
    all.push(segment);
    for ((stream, _), &rank) in others.iter().zip(&group.ranks[1..]) {
        all.iter().try_for_each(|fd| send_one(stream, *fd, rank))?;
    }
    all.iter().map(|fd| fd.try_clone_to_owned().map_err(|e| lost(group.rank, e))).collect()
}

/// The others' part.
pub fn follow(group: &Group<'_>, name: &[u8; 16], own: BorrowedFd<'_>) -> Result<Vec<OwnedFd>> {
    let leader = group.ranks[0];
    let stream = address(name)
        .and_then(|address| UnixStream::connect_addr(&address))
        .map_err(|e| lost(leader, e))?;
    greet_server(group, &stream, leader)?;
    send_one(&stream, own, leader)?;
    // The leader answers once everybody has come.
    set_timeout(&stream, group.deadline.left().max(Duration::from_secs(1)), leader)?;
    (0..=group.shown.len()).map(|_| receive_one(&stream, leader)).collect()
}

fn set_timeout(stream: &UnixStream, limit: Duration, peer: u32) -> Result<()> {
    stream.set_read_timeout(Some(limit)).map_err(|e| lost(peer, e))?;
    stream.set_write_timeout(Some(limit)).map_err(|e| lost(peer, e))
}

fn check_user(stream: &UnixStream, peer: u32) -> Result<()> {
    let theirs = user_of(stream).map_err(|e| lost(peer, e))?;
    let ours = rustix::process::geteuid().as_raw();
    if theirs != ours {
        return Err(lost(peer, format!("it runs as user {theirs}, this process as user {ours}")));
    }
    Ok(())
}

/// The user id of the other end. Not by rustix, whose type has no room for the pid 0 that a process of
/// another pid namespace is shown with.
fn user_of(stream: &UnixStream) -> std::io::Result<u32> {
    let mut theirs = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of_val(&theirs) as libc::socklen_t;
    let place = (&raw mut theirs).cast();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the place is writable and as large as the length says.
    match unsafe { libc::getsockopt(stream.as_raw_fd(), level, name, place, &mut len) } {
        0 => Ok(theirs.uid),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Sends a short message. Not by `write`: on Unix sockets not every supported standard library keeps
/// SIGPIPE from ending a C program.
fn say(stream: &UnixStream, bytes: &[u8], peer: u32) -> Result<()> {
    match rustix::net::send(stream, bytes, SendFlags::NOSIGNAL) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(n) => Err(lost(peer, format!("{n} of {} bytes could be sent", bytes.len()))),
        Err(e) => Err(lost(peer, e)),
    }
}

fn greet_client(group: &Group<'_>, mut stream: &UnixStream) -> Result<u32> {
    check_user(stream, group.rank)?;
    set_timeout(stream, super::wire::HANDSHAKE_TIMEOUT, group.rank)?;
    let ends = Ends { role: Role::Descriptors, from: 0, to: group.rank, comm: group.comm };
    let mut server = Server::new(group.secret, ends, u32::MAX)?;
    loop {
        let mut buffer = vec![0; server.wants()];
        stream.read_exact(&mut buffer).map_err(|e| lost(group.rank, e))?;
        match server.input(&buffer)? {
            Progress::Send(bytes) => say(stream, &bytes, group.rank)?,
            Progress::Done(_) => return Ok(server.client()),
            Progress::More => {}
        }
    }
}

fn greet_server(group: &Group<'_>, mut stream: &UnixStream, leader: u32) -> Result<()> {
    check_user(stream, leader)?;
    set_timeout(stream, super::wire::HANDSHAKE_TIMEOUT, leader)?;
    let ends = Ends { role: Role::Descriptors, from: group.rank, to: leader, comm: group.comm };
    let (mut client, hello) = Client::new(group.secret, ends)?;
    say(stream, &hello, leader)?;
    let mut buffer = vec![0; client.wants()];
    stream.read_exact(&mut buffer).map_err(|e| lost(leader, e))?;
    match client.input(&buffer)? {
        Progress::Done(proof) => say(stream, &proof, leader),
        _ => Err(lost(leader, "a short handshake")),
    }
}

/// One descriptor with one byte: no message can swallow another's descriptor.
fn send_one(stream: &UnixStream, fd: BorrowedFd<'_>, peer: u32) -> Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(lost(peer, "no room for a descriptor"));
    }
    let deadline = Instant::now() + super::wire::HANDSHAKE_TIMEOUT;
    loop {
        match sendmsg(stream, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            // Too many descriptors are under way: the receivers take them soon.
            Err(Errno::TOOMANYREFS) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            sent => return sent.map(drop).map_err(|e| lost(peer, e)),
        }
    }
}

fn receive_one(stream: &UnixStream, peer: u32) -> Result<OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    loop {
        match recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Err(Errno::INTR) => {}
            received => break received.map(drop).map_err(|e| lost(peer, e))?,
        }
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(lost(peer, "it sent no descriptor"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Cancel;
    use crate::device::host::arena::sealed_memfd;

    fn group(rank: u32, ranks: &[u32], secret: u8) -> Group<'_> {
        let deadline = Deadline::new(Duration::from_secs(20), &Cancel::default());
        // Rank 7 lives in the process of rank 5.
        Group { rank, ranks, shown: &[2, 5], comm: 5, secret: [secret; 32], deadline }
    }

    fn size(fd: &OwnedFd) -> i64 {
        rustix::fs::fstat(fd).unwrap().st_size
    }

    #[test]
    fn everyone_gets_every_process_s_descriptor_in_order() {
        let ranks = [2, 5, 7];
        let listener = Listener::new().unwrap();
        let name = *listener.name();
        let results: Vec<Vec<i64>> = std::thread::scope(|scope| {
            let followers: Vec<_> = [5, 7]
                .map(|rank| {
                    scope.spawn(move || {
                        let own = sealed_memfd("t", rank as usize * 4096).unwrap();
                        follow(&group(rank, &ranks, 1), &name, own.as_fd()).unwrap()
                    })
                })
                .into_iter()
                .collect();
            // A stranger with another secret is turned away without harm to the members.
            let refused = scope.spawn(move || {
                let own = sealed_memfd("t", 4096).unwrap();
                follow(&group(5, &ranks, 9), &name, own.as_fd()).is_err()
            });
            let own = sealed_memfd("t", 2 * 4096).unwrap();
            let segment = sealed_memfd("t", 99 * 4096).unwrap();
            let led = lead(&group(2, &ranks, 1), &listener, own.as_fd(), segment.as_fd()).unwrap();
            drop(listener);
            assert!(refused.join().unwrap());
            let mut all = vec![led];
            all.extend(followers.into_iter().map(|f| f.join().unwrap()));
            all.iter().map(|fds| fds.iter().map(size).collect()).collect()
        });
        for sizes in results {
            assert_eq!(sizes, [2, 5, 99].map(|pages| pages * 4096));
        }
    }
}
