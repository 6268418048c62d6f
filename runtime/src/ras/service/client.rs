//! A client of the service: its socket, what it has said, and what it is still to be sent. Nothing
//! here blocks.

use crate::ras::nccl::conversation::{Action, Conversation, Format, Wanted};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read at a time, so that none keeps the others waiting.
const READ_BYTES: usize = 1024;
/// Bytes of answers above which nothing is read, and nothing told to who listens.
const UNREAD_BYTES: usize = 64 << 10;

/// A client.
pub(super) struct Client {
    socket: OwnedFd,
    conversation: Conversation,
    outgoing: VecDeque<Arc<[u8]>>,
    /// Bytes in `outgoing`, and those of the first part that are sent.
    bytes: usize,
    sent: usize,
    /// The report that it waits for, and since when.
    pub(super) wanted: Option<(Wanted, Instant)>,
    /// True if nothing is read any more.
    ended: bool,
    /// True if nothing can be sent any more.
    gone: bool,
    /// The time at which something was heard or sent last.
    pub(super) active: Instant,
}

impl Drop for Client {
    fn drop(&mut self) {
        // A forked child may have inherited the connection.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl Client {
    pub(super) fn new(socket: OwnedFd, limit: Duration, now: Instant) -> Self {
        Self {
            socket,
            conversation: Conversation::new(limit),
            outgoing: VecDeque::new(),
            bytes: 0,
            sent: 0,
            wanted: None,
            ended: false,
            gone: false,
            active: now,
        }
    }

    /// Returns what to wait for.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.ended && self.bytes < UNREAD_BYTES);
        flags.set(PollFlags::OUT, self.bytes > 0);
        PollFd::new(&self.socket, flags)
    }

    /// Returns whether the connection is to be closed: nothing more is said on either side.
    pub(super) fn is_over(&self) -> bool {
        self.gone || self.ended && self.bytes == 0 && self.wanted.is_none()
    }

    /// Returns whether the client has read nothing of what it was sent since a time.
    pub(super) fn is_stuck_since(&self, time: Instant) -> bool {
        self.bytes > 0 && self.active < time
    }

    /// Returns the format of events, if the client listens to a group of these.
    pub(super) fn listens_to(&self, groups: u8) -> Option<Format> {
        let listens = !self.ended && self.conversation.groups() & groups != 0;
        listens.then(|| self.conversation.format())
    }

    /// Acts on what was waited for.
    pub(super) fn visit(&mut self, shown: PollFlags, now: Instant) {
        if shown.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            self.gone = true;
        }
        if shown.contains(PollFlags::IN) && !self.ended {
            self.read(now);
        }
    }

    fn read(&mut self, now: Instant) {
        let mut bytes = [0; READ_BYTES];
        match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            // What it has asked for is still sent.
            Ok((_, 0)) => self.ended = true,
            Ok((_, n)) => {
                self.active = now;
                for action in self.conversation.hear(&bytes[..n]) {
                    self.act(action, now);
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.gone = true,
        }
    }

    fn act(&mut self, action: Action, now: Instant) {
        match action {
            Action::Say(answer) => self.say(&answer.into()),
            Action::Report(wanted) => {
                self.wanted = Some((wanted, now));
                self.ended = true;
            }
            Action::Close => self.gone = true,
        }
    }

    /// Queues an answer.
    pub(super) fn say(&mut self, answer: &Arc<[u8]>) {
        if !answer.is_empty() {
            self.bytes += answer.len();
            self.outgoing.push_back(answer.clone());
        }
    }

    /// Queues an event; a client that reads none of them is closed.
    pub(super) fn tell(&mut self, event: &Arc<[u8]>) {
        match self.bytes < UNREAD_BYTES {
            true => self.say(event),
            false => self.gone = true,
        }
    }

    /// Sends what there is room for.
    pub(super) fn flush(&mut self, now: Instant) {
        while let Some(first) = self.outgoing.front() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, &first[self.sent..], flags) {
                Ok(n) => {
                    self.active = now;
                    self.sent += n;
                    self.bytes -= n;
                    if self.sent == first.len() {
                        self.outgoing.pop_front();
                        self.sent = 0;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.gone = true;
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (Client, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        (Client::new(near.into(), Duration::from_secs(5), Instant::now()), far)
    }

    fn visit(client: &mut Client) {
        client.visit(PollFlags::IN, Instant::now());
        client.flush(Instant::now());
    }

    #[test]
    fn who_asks_and_says_no_more_still_gets_its_report() {
        let (mut client, mut far) = pair();
        far.write_all(b"SET FORMAT json\nSTATUS\n").unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        visit(&mut client);
        let (wanted, _) = client.wanted.take().expect("a report");
        assert_eq!(wanted.format, Format::Json);
        client.say(&b"report\n"[..].into());
        assert!(!client.is_over());
        client.flush(Instant::now());
        assert!(client.is_over());
        drop(client);
        let mut answer = String::new();
        far.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "OK\nreport\n");
    }

    #[test]
    fn of_who_reads_nothing_little_is_read_and_its_answers_are_bounded() {
        let (mut client, mut far) = pair();
        far.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(n) = far.write(&[b'\n'; 4096]) {
            written += n;
            while client.poll_fd_wants_input() && client.has_input() {
                visit(&mut client);
            }
        }
        assert!(client.bytes < 2 * UNREAD_BYTES, "{}", client.bytes);
        assert!(!client.poll_fd_wants_input() && written > 0);
        assert!(client.is_stuck_since(Instant::now() + Duration::from_secs(1)));
        // An event is too much for it.
        client.tell(&b"event"[..].into());
        assert!(client.is_over());
    }

    impl Client {
        fn poll_fd_wants_input(&self) -> bool {
            !self.ended && self.bytes < UNREAD_BYTES
        }

        fn has_input(&self) -> bool {
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
            rustix::net::recv(&self.socket, &mut [0; 1], flags).is_ok()
        }
    }

    #[test]
    fn too_long_a_line_and_the_end_of_the_connection_end_it() {
        let (mut client, mut far) = pair();
        far.write_all(&[b'x'; 1024]).unwrap();
        visit(&mut client);
        assert!(client.is_over());
        let (mut client, far) = pair();
        drop(far);
        visit(&mut client);
        assert!(client.is_over());
    }

    #[test]
    fn who_listens_may_say_more_until_it_asks_for_a_report() {
        let (mut client, mut far) = pair();
        far.write_all(b"MONITOR\nMONITOR all\n").unwrap();
        visit(&mut client);
        let mut answer = [0; 6];
        far.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"OK\nOK\n");
        assert_eq!(client.listens_to(1), Some(Format::Text));
        far.write_all(b"what\nset format json\nSTATUS\n").unwrap();
        visit(&mut client);
        assert_eq!(client.listens_to(1), None, "it waits for a report");
    }
}
