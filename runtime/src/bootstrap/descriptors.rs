//! The exchange of file descriptors between the ranks of one host, over an abstract Unix socket.
//!
//! The lowest rank of the host is the leader: it makes the communicator's shared segment, collects
//! every process's arena and passes all descriptors to every rank. Both sides check the other's
//! user id by `SO_PEERCRED` and authenticate with the communicator's secret. While ranks wait for
//! each other, they hear what the rendezvous says of ranks that fail.

use super::auth::{Ends, Role};
use super::deadline::Deadline;
use super::dial::Dial;
use super::door::{Admission, Door};
use super::id::{SECRET_BYTES, random};
use super::session::Session;
use super::wire::wait_for;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use socket2::{SockAddr, Socket};
use std::ffi::OsStr;
use std::io::{IoSlice, IoSliceMut};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

/// The number of refused attempts after which nobody is assumed to listen.
const REFUSALS: u32 = 5;

/// The ranks that take part in an exchange.
#[derive(Clone)]
pub struct Group<'a> {
    /// This rank.
    pub rank: u32,
    /// The ranks of this host; the first is the leader.
    pub ranks: &'a [u32],
    /// The ranks among `ranks` whose descriptors every rank gets: one per process, the leader
    /// first.
    pub shown: &'a [u32],
    /// The communicator's number.
    pub comm: u64,
    /// The communicator's secret.
    pub secret: [u8; SECRET_BYTES],
    /// The deadline of the exchange.
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

    /// Returns the name of the socket.
    pub fn name(&self) -> &[u8; 16] {
        &self.name
    }
}

fn abstract_name(name: &[u8; 16]) -> Vec<u8> {
    [b"oxccl-", &name[..]].concat()
}

fn address(name: &[u8; 16]) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(abstract_name(name))
}

/// Returns the error for a rank that went away. Only the rendezvous knows which rank went first.
fn lost(rank: u32, e: impl std::fmt::Display) -> Error {
    Error::init_peer(rank, format!("did not pass its descriptors on: {e}"))
}

/// The conditions that end the waiting for other ranks.
struct Waiting<'a, 's> {
    deadline: &'a Deadline,
    session: Option<&'s mut Session>,
}

impl Waiting<'_, '_> {
    /// Fails once the rendezvous reports a failure, or with the error of `late` when the time is
    /// over.
    fn check(&mut self, late: impl FnOnce() -> Error) -> Result<()> {
        if let Some(session) = &mut self.session {
            session.check()?;
        }
        if self.deadline.passed() {
            return Err(self.deadline.error(late));
        }
        Ok(())
    }

    /// Blocks until there is an event, or for a moment.
    fn wait<'f>(&'f self, mut fds: Vec<PollFd<'f>>) {
        fds.extend(self.session.as_ref().map(|session| session.poll_fd()));
        wait_for(&mut fds, self.deadline.slice());
    }
}

/// A rank of the host, as seen by the leader.
struct Member {
    socket: Socket,
    /// The rank's index among the ranks of the host.
    place: usize,
    /// The descriptor that the rank gave.
    given: Option<OwnedFd>,
    /// The number of descriptors that the rank has got.
    got: usize,
}

/// Runs the leader's part: takes a descriptor from every other rank of the host, then gives every
/// rank the descriptors of `group.shown`, in that order, and `segment` after them. Blocks for these
/// ranks, until `session` hears of a failure.
pub fn lead(
    group: &Group<'_>,
    listener: Listener,
    (own, segment): (BorrowedFd<'_>, BorrowedFd<'_>),
    session: Option<&mut Session>,
) -> Result<Vec<OwnedFd>> {
    let mut waiting = Waiting { deadline: &group.deadline, session };
    let mut members = collect(group, listener, &mut waiting)?;
    let mut all: Vec<OwnedFd> = Vec::new();
    let copy = |fd: BorrowedFd<'_>| {
        fd.try_clone_to_owned()
            .map_err(|e| Error::system("dup of a descriptor", e, super::dial::NO_SOCKET))
    };
    all.push(copy(own)?);
    for member in &mut members {
        if let Some(fd) =
            member.given.take().filter(|_| group.shown.contains(&group.ranks[member.place]))
        {
            all.push(fd);
        }
    }
    all.push(copy(segment)?);
    while let Some(first) = members.iter().find(|member| member.got < all.len()) {
        let rank = group.ranks[first.place];
        waiting.check(|| lost(rank, "it does not read in time"))?;
        for member in &mut members {
            while member.got < all.len()
                && send_one(&member.socket, all[member.got].as_fd(), group.ranks[member.place])?
            {
                member.got += 1;
            }
        }
        let open = members.iter().filter(|member| member.got < all.len());
        let fds: Vec<_> = open.map(|m| PollFd::new(&m.socket, PollFlags::OUT)).collect();
        if !fds.is_empty() {
            waiting.wait(fds);
        }
    }
    Ok(all)
}

/// Waits for the other ranks of the host, each with its descriptor, and returns them in the order
/// of `group.ranks`.
fn collect(
    group: &Group<'_>,
    listener: Listener,
    waiting: &mut Waiting<'_, '_>,
) -> Result<Vec<Member>> {
    let ends = Ends { role: Role::Descriptors, from: 0, to: group.rank, comm: group.comm };
    let admission = Admission { secret: group.secret, ends, nranks: u32::MAX };
    let mut door = Door::new(OwnedFd::from(listener.socket).into(), admission)?;
    let mut members: Vec<Member> = Vec::new();
    loop {
        for connection in door.progress(Instant::now())? {
            let rank = connection.peer_rank();
            let socket = connection.into_socket();
            if let Err(error) = check_user(&socket, rank) {
                // A process of another user is turned away and does not stop the members.
                log::line(Level::Warn, Subsystem::Bootstrap, &error.to_string());
                continue;
            }
            let Some(place) = group.ranks.iter().position(|&r| r == rank) else { continue };
            if members.iter().any(|member| member.place == place) {
                return Err(lost(rank, "two processes claim to be it"));
            }
            members.push(Member { socket, place, given: None, got: 0 });
        }
        for member in members.iter_mut().filter(|member| member.given.is_none()) {
            member.given = receive_one(&member.socket, group.ranks[member.place])?;
        }
        let come = |place: &usize| members.iter().any(|m| m.place == *place && m.given.is_some());
        let Some(missing) = (1..group.ranks.len()).find(|place| !come(place)) else { break };
        waiting.check(|| lost(group.ranks[missing], "it did not come in time"))?;
        let mut fds = Vec::new();
        door.poll_fds(&mut fds);
        let silent = members.iter().filter(|member| member.given.is_none());
        fds.extend(silent.map(|m| PollFd::new(&m.socket, PollFlags::IN)));
        waiting.wait(fds);
    }
    members.sort_by_key(|member| member.place);
    Ok(members)
}

/// Runs the part of a rank that is not the leader: gives the leader `own` and returns the
/// descriptors that the leader gives. Blocks for the ranks of the host, until `session` hears of a
/// failure.
pub fn follow(
    group: &Group<'_>,
    name: &[u8; 16],
    own: BorrowedFd<'_>,
    session: Option<&mut Session>,
) -> Result<Vec<OwnedFd>> {
    let leader = group.ranks[0];
    let mut waiting = Waiting { deadline: &group.deadline, session };
    let ends = Ends { role: Role::Descriptors, from: group.rank, to: leader, comm: group.comm };
    // A leading zero makes the name an abstract one.
    let path = [&[0][..], &abstract_name(name)].concat();
    let address = SockAddr::unix(OsStr::from_bytes(&path)).map_err(|e| lost(leader, e))?;
    let mut dial = Dial::new(address, format!("rank {leader}'s socket"), group.secret, ends);
    let socket = loop {
        let now = Instant::now();
        if let Some(connection) = dial.progress(now)? {
            break connection.into_socket();
        }
        if dial.refusals() >= REFUSALS {
            // The leader listens until all ranks have come.
            return Err(lost(leader, dial.why()));
        }
        waiting.check(|| lost(leader, dial.why()))?;
        match dial.poll_fd() {
            Some(fd) => waiting.wait(vec![fd]),
            None => wait_for(&mut [], dial.pause(now).min(Duration::from_millis(50))),
        }
    };
    check_user(&socket, leader)?;
    let sent_late = || lost(leader, "it does not read in time");
    while !send_one(&socket, own, leader)? {
        waiting.check(sent_late)?;
        waiting.wait(vec![PollFd::new(&socket, PollFlags::OUT)]);
    }
    // The leader answers once all ranks have come.
    let mut all = Vec::new();
    while all.len() <= group.shown.len() {
        match receive_one(&socket, leader)? {
            Some(fd) => all.push(fd),
            None => {
                waiting.check(|| lost(leader, "it did not answer in time"))?;
                waiting.wait(vec![PollFd::new(&socket, PollFlags::IN)]);
            }
        }
    }
    Ok(all)
}

fn check_user(socket: &Socket, peer: u32) -> Result<()> {
    let theirs = user_of(socket).map_err(|e| lost(peer, e))?;
    let ours = rustix::process::geteuid().as_raw();
    if theirs != ours {
        return Err(lost(peer, format!("it runs as user {theirs}, this process as user {ours}")));
    }
    Ok(())
}

/// Returns the user id of the other end. This does not use rustix, whose type has no room for the
/// pid 0 that a process of another pid namespace is shown with.
fn user_of(socket: &Socket) -> std::io::Result<u32> {
    let mut theirs = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of_val(&theirs) as libc::socklen_t;
    let place = (&raw mut theirs).cast();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the place is writable and as large as the length says.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, place, &mut len) } {
        0 => Ok(theirs.uid),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Sends one descriptor with one byte, so that no message can swallow another's descriptor. Returns
/// false if it cannot be sent now.
fn send_one(socket: &Socket, fd: BorrowedFd<'_>, peer: u32) -> Result<bool> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(lost(peer, "no room for a descriptor"));
    }
    match sendmsg(socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL) {
        Ok(_) => Ok(true),
        Err(Errno::INTR | Errno::AGAIN) => Ok(false),
        // Too many descriptors are in flight, and the receivers take them soon. Polling would not
        // wait, because the socket has room.
        Err(Errno::TOOMANYREFS) => {
            std::thread::sleep(Duration::from_millis(1));
            Ok(false)
        }
        Err(e) => Err(lost(peer, e)),
    }
}

/// Returns the next descriptor; `None` if there is none yet.
fn receive_one(socket: &Socket, peer: u32) -> Result<Option<OwnedFd>> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
        Err(Errno::INTR | Errno::AGAIN) => return Ok(None),
        Ok(message) if message.bytes == 0 => return Err(lost(peer, "its connection ended")),
        Ok(_) => {}
        Err(e) => return Err(lost(peer, e)),
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(Some(fd));
        }
    }
    // The kernel drops descriptors that this process has no room for.
    let cause = "a descriptor that was passed got lost";
    Err(Error::system("receiving descriptors", cause, super::dial::NO_SOCKET))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Cancel;
    use crate::os::memory::sealed_memfd;

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
                        follow(&group(rank, &ranks, 1), &name, own.as_fd(), None).unwrap()
                    })
                })
                .into_iter()
                .collect();
            // A process with another secret is turned away without harm to the members.
            let refused = scope.spawn(move || {
                let own = sealed_memfd("t", 4096).unwrap();
                follow(&group(5, &ranks, 9), &name, own.as_fd(), None).is_err()
            });
            let own = sealed_memfd("t", 2 * 4096).unwrap();
            let segment = sealed_memfd("t", 99 * 4096).unwrap();
            let given = (own.as_fd(), segment.as_fd());
            let led = lead(&group(2, &ranks, 1), listener, given, None).unwrap();
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
