//! The control connection between two ranks of different hosts. It carries notices and heartbeats
//! both ways, never data, so that full buffers and waits on the path of data neither delay nor fake
//! a sign of life.

use super::notice::{self, Notice};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// One end of a control connection. Nothing here blocks.
pub struct Control {
    socket: OwnedFd,
    /// Bytes for which the socket had no room.
    outgoing: Mutex<Vec<u8>>,
    /// The received bytes of a notice that is not complete.
    incoming: Mutex<Vec<u8>>,
    /// The number of this rank's messages that the peer has reported as taken.
    taken: AtomicU64,
    left: AtomicBool,
    /// True if the peer is known to use the connection.
    used: AtomicBool,
}

impl Control {
    /// Creates the end of a connected stream socket.
    pub fn new(socket: OwnedFd) -> Self {
        let (taken, left, used) = Default::default();
        let (outgoing, incoming) = Default::default();
        Self { socket, outgoing, incoming, taken, left, used }
    }

    fn outgoing(&self) -> MutexGuard<'_, Vec<u8>> {
        self.outgoing.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sends a notice, whole and after earlier ones. Notices to a peer that is gone are dropped.
    pub fn tell(&self, notice: &[u8]) {
        let mut outgoing = self.outgoing();
        outgoing.extend(notice);
        self.flush_into(&mut outgoing);
    }

    /// Sends what could not be sent before. Returns whether nothing is left.
    pub fn flush(&self) -> bool {
        let mut outgoing = self.outgoing();
        self.flush_into(&mut outgoing);
        outgoing.is_empty()
    }

    /// Returns the number of bytes that the socket had no room for.
    pub fn waiting(&self) -> usize {
        self.outgoing().len()
    }

    fn flush_into(&self, outgoing: &mut Vec<u8>) {
        while !outgoing.is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, outgoing, flags) {
                Ok(n) => drop(outgoing.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => outgoing.clear(),
            }
        }
    }

    /// Returns the notices that have arrived, and why the connection is of no use any more, if it
    /// is not.
    pub fn receive(&self) -> (Vec<Notice>, Option<String>) {
        let mut incoming = self.incoming.lock().unwrap_or_else(|e| e.into_inner());
        let ended = self.read(&mut incoming);
        let mut notices = Vec::new();
        loop {
            match notice::parse(&incoming) {
                Ok(None) => return (notices, ended),
                Ok(Some((notice, len))) => {
                    incoming.drain(..len);
                    notices.push(notice);
                }
                Err(what) => return (notices, Some(format!("its connection carried {what}"))),
            }
        }
    }

    /// Appends what has arrived. Returns why the connection has ended, if it has.
    fn read(&self, incoming: &mut Vec<u8>) -> Option<String> {
        loop {
            let mut bytes = [0; notice::MAX_BYTES];
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Some("its connection closed".to_owned()),
                Ok((_, n)) => incoming.extend(&bytes[..n]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Err(e) => return Some(format!("its connection failed: {e}")),
            }
        }
    }

    /// Returns the descriptor to poll for notices.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.socket, PollFlags::IN)
    }

    /// Ends this direction; what was sent still arrives. Reads what has arrived, because closing a
    /// socket with unread bytes resets the connection and may discard what was sent.
    pub fn finish(&self) {
        // If the peer is gone, the connection has ended already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        self.read(&mut Vec::new());
    }

    /// Returns the number of this rank's messages that the peer has reported as taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Notes the peer's report of how many messages it has taken.
    pub fn set_taken(&self, messages: u64) {
        self.taken.fetch_max(messages, Ordering::AcqRel);
    }

    /// Returns whether the peer is known to use the connection. The end of another one tells
    /// nothing: the peer may have given it up before it knew that it was taken.
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Notes that the peer uses the connection.
    pub fn set_used(&self) {
        self.used.store(true, Ordering::Release);
    }

    /// Returns whether the peer has reported that it leaves in order.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Notes the peer's report that it leaves in order.
    pub fn set_left(&self) {
        self.left.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn notices_arrive_whole_and_in_order_also_when_there_is_no_room_for_a_while() {
        let (a, b) = UnixStream::pair().unwrap();
        let (near, far) = (Control::new(a.into()), Control::new(b.into()));
        let mut sent = 0u64;
        while near.flush() {
            near.tell(&notice::taken(sent));
            sent += 1;
        }
        let mut next = 0;
        while next < sent {
            let (notices, ended) = far.receive();
            assert_eq!(ended, None);
            for notice in notices {
                assert_eq!(notice, Notice::Taken(next));
                next += 1;
            }
            near.flush();
        }
        near.tell(b"x");
        let (notices, why) = far.receive();
        assert!(notices.is_empty() && why.is_some_and(|why| why.contains("a notice of kind")));
        near.finish();
        assert!(far.read(&mut Vec::new()).is_some_and(|why| why.contains("closed")));
    }
}
