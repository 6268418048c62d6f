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

/// Bytes that are read at a time, so that none keeps the others waiting; and bytes that are
/// discarded at a time.
const READ_BYTES: usize = 1024;
const DISCARDED_BYTES: usize = 16 << 10;
/// Bytes of answers above which nothing is read, and nothing told to who listens.
const UNREAD_BYTES: usize = 64 << 10;
/// The time for which a client may go on sending once it was told everything.
const LINGER: Duration = Duration::from_secs(2);

/// The state of what a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// Lines are obeyed.
    Obeyed,
    /// Nothing that follows is of interest. Once everything is said, it is discarded: closing a
    /// socket with unread bytes resets the connection, and may take away what was sent.
    Ignored,
    /// The client has ended it.
    Ended,
}

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
    input: Input,
    /// The time until which the client may go on sending, once everything is said.
    until: Option<Instant>,
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
            input: Input::Obeyed,
            until: None,
            gone: false,
            active: now,
        }
    }

    /// Returns what to wait for.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.listens());
        flags.set(PollFlags::OUT, self.bytes > 0);
        PollFd::new(&self.socket, flags)
    }

    /// Returns whether something is to be read.
    fn listens(&self) -> bool {
        match self.input {
            Input::Obeyed => self.bytes < UNREAD_BYTES,
            Input::Ignored => self.until.is_some(),
            Input::Ended => false,
        }
    }

    /// Returns whether everything is said that the client has asked for.
    fn has_said_all(&self) -> bool {
        self.input != Input::Obeyed && self.bytes == 0 && self.wanted.is_none()
    }

    /// Returns whether the connection is to be closed: nothing more is said on either side, or the
    /// client goes on for too long.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let ended = self.input == Input::Ended && self.has_said_all();
        self.gone || ended || self.until.is_some_and(|until| until <= now)
    }

    /// Returns the time at which the connection is closed whatever the client does.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns whether the client has read nothing of what it was sent since a time.
    pub(super) fn is_stuck_since(&self, time: Instant) -> bool {
        self.bytes > 0 && self.active < time
    }

    /// Returns the format of events, if the client listens to a group of these.
    pub(super) fn listens_to(&self, groups: u8) -> Option<Format> {
        let listens = self.input == Input::Obeyed && self.conversation.groups() & groups != 0;
        listens.then(|| self.conversation.format())
    }

    /// Acts on what was waited for.
    pub(super) fn visit(&mut self, shown: PollFlags, now: Instant) {
        // Once everything is said, the end of the client's words ends both directions.
        let hung_up = shown.contains(PollFlags::HUP) && self.until.is_none();
        if hung_up || shown.intersects(PollFlags::ERR | PollFlags::NVAL) {
            self.gone = true;
        }
        if shown.contains(PollFlags::IN) && self.listens() {
            self.read(now);
        }
    }

    fn read(&mut self, now: Instant) {
        let mut bytes = [0; DISCARDED_BYTES];
        let most = if self.input == Input::Obeyed { READ_BYTES } else { DISCARDED_BYTES };
        match rustix::net::recv(&self.socket, &mut bytes[..most], RecvFlags::DONTWAIT) {
            // What it has asked for is still sent.
            Ok((_, 0)) => self.input = Input::Ended,
            Ok(_) if self.input != Input::Obeyed => {}
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
                self.input = Input::Ignored;
            }
            Action::Close => self.input = Input::Ignored,
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

    /// Sends what there is room for, and the end of it once everything is said.
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
        if self.has_said_all() && self.until.is_none() {
            // If the client is gone, the connection has ended already.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
            self.until = Some(now + LINGER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::Timespec;
    use socket2::{Domain, Socket, Type};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    fn pair() -> (Client, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        (Client::new(near.into(), Duration::from_secs(5), Instant::now()), far)
    }

    fn is_over(client: &Client) -> bool {
        client.is_over(Instant::now())
    }

    /// Acts on what the client has sent, and sends what it is to be told.
    fn visit(client: &mut Client) {
        let mut fds = [client.poll_fd()];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        let shown = fds[0].revents();
        client.visit(shown, Instant::now());
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
        assert!(!is_over(&client));
        client.flush(Instant::now());
        visit(&mut client);
        assert!(is_over(&client));
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
            while client.listens() && client.has_input() {
                visit(&mut client);
            }
        }
        assert!(client.bytes < 2 * UNREAD_BYTES, "{}", client.bytes);
        assert!(!client.listens() && written > 0);
        assert!(client.is_stuck_since(Instant::now() + Duration::from_secs(1)));
        // An event is too much for it.
        client.tell(&b"event"[..].into());
        assert!(is_over(&client));
    }

    impl Client {
        fn has_input(&self) -> bool {
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
            let peeked = rustix::net::recv(&self.socket, &mut [0; 1], flags);
            self.input != Input::Ended && peeked.is_ok()
        }
    }

    #[test]
    fn who_says_more_than_is_heard_gets_all_of_its_report() {
        for ends in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let far = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            // It has room for a part of the report.
            far.set_recv_buffer_size(1).unwrap();
            far.connect(&listener.local_addr().unwrap().into()).unwrap();
            let mut far = TcpStream::from(far);
            let (near, now) = (listener.accept().unwrap().0, Instant::now());
            let mut client = Client::new(near.into(), Duration::from_secs(5), now);
            far.write_all(&[&b"STATUS\n"[..], &[b'x'; 3 * DISCARDED_BYTES]].concat()).unwrap();
            if ends {
                far.shutdown(std::net::Shutdown::Write).unwrap();
            }
            visit(&mut client);
            client.wanted.take().expect("a report");
            let report = "report".repeat(1000);
            client.say(&report.as_bytes().into());
            client.flush(now);
            while client.has_input() {
                assert!(!client.is_over(now));
                visit(&mut client);
            }
            // An end that it does not say is not awaited for long.
            assert_eq!(client.is_over(now), ends);
            assert!(client.is_over(client.until().expect("a limit")));
            drop(client);
            let mut answer = String::new();
            far.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, report);
        }
    }

    #[test]
    fn too_long_a_line_and_the_end_of_the_connection_end_it() {
        let (mut client, mut far) = pair();
        far.write_all(&[b'x'; 3000]).unwrap();
        visit(&mut client);
        // The client may hear of the end, and say no more, before the connection is closed.
        assert!(!is_over(&client) && far.read(&mut [0; 1]).unwrap() == 0);
        far.shutdown(std::net::Shutdown::Write).unwrap();
        (0..2).for_each(|_| visit(&mut client));
        assert!(is_over(&client));
        let (mut client, far) = pair();
        drop(far);
        visit(&mut client);
        assert!(is_over(&client));
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
