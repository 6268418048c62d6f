//! Connections of the bootstrap: non-blocking sockets that authenticate and then carry frames of
//! bounded length. A frame is little-endian `length u32 · kind u8 · body`.

use super::auth::{Client, Progress, Server};
use super::deadline::Deadline;
use super::dial::{tolerate_full_buffer, watch_for_cuts};
use super::encryption::Cipher;
use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of unauthenticated connections that are held at a time. More wait in the kernel's
/// queue.
pub const MAX_UNAUTHENTICATED: usize = 256;
/// The time after which an unauthenticated connection makes room for one that waits in the queue.
/// Members authenticate within a round trip, and come again if they were too slow.
pub const UNAUTHENTICATED: Duration = Duration::from_millis(50);
const HEADER: usize = 5;
/// The largest size of messages that fit into the receive buffer of any system, so that a peer that
/// does not read them does not stop the connection.
const SMALL: usize = 16 << 10;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The kind of the frame, as `root.rs` defines it.
    pub kind: u8,
    /// The contents of the frame.
    pub body: Vec<u8>,
}

impl Frame {
    /// Returns the frame's bytes, which several connections can send.
    pub fn encode(&self) -> Arc<[u8]> {
        let header = [&(self.body.len() as u32).to_le_bytes()[..], &[self.kind]].concat();
        [&header[..], &self.body].concat().into()
    }
}

enum State {
    Client(Client),
    Server(Server),
    Open,
}

/// A non-blocking connection with its buffers.
pub struct Connection {
    socket: Socket,
    state: State,
    peer_rank: u32,
    /// The address of the other side. It is kept, because a connection that is gone has none any
    /// more.
    peer: String,
    since: Instant,
    outgoing: VecDeque<Arc<[u8]>>,
    /// The bytes of the first entry of `outgoing` that have been sent.
    sent: usize,
    incoming: Vec<u8>,
    /// The cipher of what follows the handshake; `None` if nothing is encrypted.
    cipher: Option<Cipher>,
    /// The bytes of an encrypted record that is not complete.
    sealed: Vec<u8>,
    /// The difference from the other side's encryption; such a connection carries nothing.
    differs: Option<&'static str>,
    max_body: usize,
    /// The kind of the error with which reading or writing failed, if it did.
    broken: Option<ErrorKind>,
    /// True while the peer may leave a large message unread for as long as it likes, where that is
    /// limited otherwise.
    tolerates: bool,
}

impl Connection {
    /// Returns a connection on a socket that this side has connected, or is connecting, to `peer`.
    pub fn client(socket: Socket, peer: String, client: Client, hello: Vec<u8>) -> Result<Self> {
        let mut connection = Self::new(socket, peer, State::Client(client))?;
        connection.queue(hello.into());
        Ok(connection)
    }

    /// Returns a connection on an accepted socket.
    pub fn accept(socket: Socket, server: Server) -> Result<Self> {
        let peer = socket.peer_addr().ok().and_then(|address| address.as_socket());
        let peer = peer.map_or_else(|| "a peer".to_owned(), |address| address.to_string());
        Self::new(socket, peer, State::Server(server))
    }

    fn new(socket: Socket, peer: String, state: State) -> Result<Self> {
        let failed = |e| Error::system("setting socket options", e, "out of kernel memory?");
        socket.set_nonblocking(true).map_err(failed)?;
        // Unix sockets do not have this option, and do not need it.
        let _ = socket.set_tcp_nodelay(true);
        Ok(Self {
            socket,
            state,
            peer_rank: 0,
            peer,
            since: Instant::now(),
            outgoing: VecDeque::new(),
            sent: 0,
            incoming: Vec::new(),
            cipher: None,
            sealed: Vec::new(),
            differs: None,
            max_body: 0,
            broken: None,
            tolerates: false,
        })
    }

    /// Lets the connection carry frames with bodies of up to `max_body` bytes; the default is 0.
    pub fn with_frames(self, max_body: usize) -> Self {
        Self { max_body, ..self }
    }

    /// Returns the time when the connection was made.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Returns whether both sides have authenticated and no bytes are left to send.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open) && self.outgoing.is_empty()
    }

    /// Returns the other side's rank, which is valid once the connection is open.
    pub fn peer_rank(&self) -> u32 {
        self.peer_rank
    }

    /// Returns whether what follows the handshake is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    /// Returns what the encryption of a client differs in, which was told so and leaves.
    pub fn differs(&self) -> Option<&'static str> {
        self.differs
    }

    /// Returns the other side's address.
    pub fn peer_address(&self) -> &str {
        &self.peer
    }

    /// Returns the socket, for use when the handshake is over and the socket is to carry something
    /// else.
    pub fn into_socket(self) -> Socket {
        self.socket
    }

    /// Returns the socket, for polling.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the descriptor and the events to poll for.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, self.wants_write());
        PollFd::new(&self.socket, events)
    }

    /// Returns whether the connection has failed or ended: the other side is gone.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Returns whether nobody listened at the other side.
    pub fn is_refused(&self) -> bool {
        self.broken == Some(ErrorKind::ConnectionRefused)
    }

    /// Returns whether there are bytes to send.
    pub fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Queues a frame.
    pub fn send(&mut self, frame: &Frame) {
        self.queue(frame.encode());
    }

    /// Queues the bytes that [`Frame::encode`] returned.
    pub fn queue(&mut self, bytes: Arc<[u8]>) {
        match self.cipher.as_mut().map(|cipher| cipher.seal(&bytes)) {
            None => self.queue_as_is(bytes),
            Some(Ok(sealed)) => self.queue_as_is(sealed.into()),
            // The other side sees that the connection ends.
            Some(Err(_)) => self.broken = Some(ErrorKind::Other),
        }
    }

    fn queue_as_is(&mut self, bytes: Arc<[u8]>) {
        let limited = || self.socket.tcp_user_timeout().is_ok_and(|limit| limit.is_some());
        if bytes.len() > SMALL && limited() {
            tolerate_full_buffer(&self.socket);
            self.tolerates = true;
        }
        if !bytes.is_empty() {
            self.outgoing.push_back(bytes);
        }
    }

    /// Sends and receives what is possible now. Returns a frame when one is complete.
    pub fn progress(&mut self) -> Result<Option<Frame>> {
        self.progress_handshake()?;
        if !self.is_open() {
            return Ok(None);
        }
        loop {
            if let Some(frame) = self.take_frame()? {
                // The peer answers what it has read.
                if std::mem::take(&mut self.tolerates) {
                    watch_for_cuts(&self.socket);
                }
                return Ok(Some(frame));
            }
            let mut buffer = [0; 16 << 10];
            let n = self.read(&mut buffer)?;
            if n == 0 {
                return Ok(None);
            }
            match &mut self.cipher {
                None => self.incoming.extend(&buffer[..n]),
                Some(cipher) => {
                    self.sealed.extend(&buffer[..n]);
                    let opened = cipher.open(&mut self.sealed, &mut self.incoming);
                    opened.inspect_err(|_| self.broken = Some(ErrorKind::InvalidData))?;
                }
            }
        }
    }

    /// Sends what is possible now and moves the handshake on. Reads nothing that follows the
    /// handshake.
    pub fn progress_handshake(&mut self) -> Result<()> {
        self.flush()?;
        if !matches!(self.state, State::Open) {
            self.handshake()?;
            self.flush()?;
        }
        Ok(())
    }

    fn handshake(&mut self) -> Result<()> {
        let mut buffer = [0; 128];
        let wants = match &self.state {
            State::Client(client) => client.wants(),
            State::Server(server) => server.wants(),
            State::Open => 0,
        };
        // Reads no more than the handshake's own bytes: what follows may not be a frame.
        let n = self.read(&mut buffer[..wants.min(128)])?;
        if n == 0 {
            return Ok(());
        }
        let progress = match &mut self.state {
            State::Client(client) => {
                let refused = |_| Error::Secret { at: self.peer.clone() };
                match client.input(&buffer[..n]).map_err(refused)? {
                    Progress::Differs(_, why) => {
                        return Err(Error::Encryption { at: self.peer.clone(), why });
                    }
                    progress => progress,
                }
            }
            State::Server(server) => server.input(&buffer[..n])?,
            State::Open => Progress::More,
        };
        match progress {
            Progress::More => {}
            Progress::Send(bytes) => self.queue_as_is(bytes.into()),
            Progress::Done(bytes, cipher) => self.open(bytes, cipher),
            Progress::Differs(bytes, why) => {
                self.differs = Some(why);
                self.open(bytes, None);
            }
        }
        Ok(())
    }

    /// Ends the handshake with its last bytes.
    fn open(&mut self, bytes: Vec<u8>, cipher: Option<Cipher>) {
        self.queue_as_is(bytes.into());
        if let State::Server(server) = &self.state {
            self.peer_rank = server.client();
        }
        (self.state, self.cipher) = (State::Open, cipher);
    }

    fn take_frame(&mut self) -> Result<Option<Frame>> {
        take_frame(&mut self.incoming, self.max_body).map_err(|len| {
            let why = format!("{} sent a frame of {len} bytes", self.peer_address());
            Error::Init { why }
        })
    }

    /// Reads into `buffer` and returns the number of bytes; 0 if there is nothing to read now.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self.socket.read(buffer) {
            Ok(0) => Err(self.closed(ErrorKind::UnexpectedEof.into())),
            Ok(n) => Ok(n),
            Err(e) if would_block(&e) => Ok(0),
            Err(e) => Err(self.closed(e)),
        }
    }

    fn flush(&mut self) -> Result<()> {
        while let Some(bytes) = self.outgoing.front() {
            // A peer that is gone must not end a C program with SIGPIPE.
            match self.socket.send_with_flags(&bytes[self.sent..], libc::MSG_NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(e) if would_block(&e) => break,
                Err(e) => return Err(self.closed(e)),
            }
            if self.sent == bytes.len() {
                self.outgoing.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }

    fn closed(&mut self, error: std::io::Error) -> Error {
        self.broken = Some(error.kind());
        let (peer, eof) = (&self.peer, error.kind() == ErrorKind::UnexpectedEof);
        let why = if eof { "it closed the connection".to_owned() } else { error.to_string() };
        Error::Init { why: format!("lost the connection to {peer}: {why}") }
    }

    /// Waits until a frame comes, at most until the deadline.
    pub fn wait_frame(&mut self, deadline: &Deadline, awaited: &str) -> Result<Frame> {
        loop {
            if let Some(frame) = self.progress()? {
                return Ok(frame);
            }
            self.wait(deadline, awaited)?;
        }
    }

    /// Waits until the handshake is over, at most until the deadline.
    pub fn wait_open(&mut self, deadline: &Deadline) -> Result<()> {
        while !self.is_open() {
            self.progress_handshake()?;
            if !self.is_open() {
                self.wait(deadline, "the handshake")?;
            }
        }
        Ok(())
    }

    fn wait(&self, deadline: &Deadline, awaited: &str) -> Result<()> {
        if deadline.passed() {
            let why = format!("timed out waiting for {awaited} from {}", self.peer_address());
            return Err(deadline.error(|| Error::Init { why }));
        }
        wait_for(&mut [self.poll_fd()], deadline.slice());
        Ok(())
    }
}

/// Takes the first frame out of `incoming`, once it is complete. Fails with the length of the body
/// if that is more than `max_body`.
pub(crate) fn take_frame(
    incoming: &mut Vec<u8>,
    max_body: usize,
) -> std::result::Result<Option<Frame>, usize> {
    let Some(header) = incoming.first_chunk::<HEADER>() else { return Ok(None) };
    let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if len > max_body {
        return Err(len);
    }
    let kind = header[4];
    if incoming.len() < HEADER + len {
        return Ok(None);
    }
    let rest = incoming.split_off(HEADER + len);
    let body = std::mem::replace(incoming, rest).split_off(HEADER);
    Ok(Some(Frame { kind, body }))
}

/// Polls descriptors. An event, an interruption and a time-out all make it return.
pub fn wait_for(fds: &mut [PollFd<'_>], limit: Duration) {
    let limit =
        Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // After an error the callers use their sockets again, which report it.
    let _ = poll(fds, Some(&limit));
}

fn would_block(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Cancel;
    use crate::bootstrap::auth::{Ends, Role};
    use crate::bootstrap::dial::Dial;
    use crate::bootstrap::encryption::Key;
    use std::net::TcpListener;

    const ENDS: Ends = Ends { role: Role::Data, from: 1, to: 0, comm: 3 };

    fn pair(max_body: usize) -> (Connection, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut dial = Dial::new(address.into(), address.to_string(), [1; 32], ENDS);
        dial.start(Instant::now()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let server = Server::new([1; 32], ENDS, 2, None).unwrap();
        let mut server = Connection::accept(socket.into(), server).unwrap().with_frames(max_body);
        loop {
            server.progress_handshake().unwrap();
            if let Some(client) = dial.progress(Instant::now()).unwrap() {
                while !server.is_open() {
                    server.progress_handshake().unwrap();
                }
                return (client.with_frames(max_body), server);
            }
        }
    }

    #[test]
    fn frames_arrive_whole_and_one_that_is_too_long_ends_the_connection() {
        let (mut client, mut server) = pair(100);
        assert_eq!(server.peer_rank(), 1);
        let deadline = Deadline::new(Duration::from_secs(10), &Cancel::default());
        for frame in [Frame { kind: 7, body: vec![] }, Frame { kind: 8, body: vec![5; 100] }] {
            client.send(&frame);
            client.progress().unwrap();
            assert_eq!(server.wait_frame(&deadline, "a frame").unwrap(), frame);
        }
        client.send(&Frame { kind: 9, body: vec![0; 101] });
        client.progress().unwrap();
        let text = server.wait_frame(&deadline, "a frame").unwrap_err().to_string();
        assert!(text.contains("a frame of 101 bytes"), "{text}");
    }

    fn encrypted_pair(max_body: usize) -> (Connection, Connection) {
        let key = Some(Key::new(b"of both"));
        let (near, far) = Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let (client, hello) = Client::new([1; 32], ENDS, key.clone()).unwrap();
        let client = Connection::client(near, "a server".to_owned(), client, hello).unwrap();
        let server = Server::new([1; 32], ENDS, 2, key).unwrap();
        let server = Connection::accept(far, server).unwrap();
        let [mut client, mut server] = [client, server].map(|side| side.with_frames(max_body));
        while !client.is_open() || !server.is_open() {
            client.progress_handshake().unwrap();
            server.progress_handshake().unwrap();
        }
        (client, server)
    }

    #[test]
    fn frames_are_whole_and_unreadable_where_both_sides_encrypt() {
        let (mut client, mut server) = encrypted_pair(1 << 20);
        assert!(client.is_encrypted() && server.is_encrypted());
        let deadline = Deadline::new(Duration::from_secs(10), &Cancel::default());
        for body in [vec![], vec![5; 100], vec![5; 1 << 18]] {
            let frame = Frame { kind: 7, body };
            client.send(&frame);
            client.progress().unwrap();
            let mut come = [std::mem::MaybeUninit::uninit(); 4096];
            wait_for(&mut [server.poll_fd()], Duration::from_secs(10));
            let n = server.socket().peek(&mut come).unwrap();
            // SAFETY: so many bytes were written.
            let come: Vec<u8> = come[..n].iter().map(|b| unsafe { b.assume_init() }).collect();
            assert!(!come.windows(16).any(|part| part == [5; 16]), "it can be read");
            let mut got = None;
            while got.is_none() {
                client.progress().unwrap();
                got = server.progress().unwrap();
            }
            assert_eq!(got.unwrap(), frame);
        }
        server.send(&Frame { kind: 8, body: vec![1] });
        server.progress().unwrap();
        assert_eq!(client.wait_frame(&deadline, "an answer").unwrap().kind, 8);
    }

    #[test]
    fn a_peer_that_does_not_read_a_large_frame_is_not_taken_for_one_that_is_out_of_reach() {
        let (mut client, mut server) = pair(1 << 20);
        let limit = |client: &Connection| client.socket.tcp_user_timeout().unwrap();
        client.send(&Frame { kind: 7, body: vec![0; 100] });
        client.progress().unwrap();
        assert!(limit(&client).is_some(), "a cut would not be noticed");
        // A frame as large as the table of a thousand ranks, sent to a rank that is stopped.
        client.send(&Frame { kind: 7, body: vec![0; 1 << 20] });
        client.progress().unwrap();
        assert_eq!(limit(&client), None);
        assert!(client.socket.keepalive().unwrap(), "a cut would not be noticed");
        // Once it has read that and answers, the limit holds again.
        let deadline = Deadline::new(Duration::from_secs(10), &Cancel::default());
        for _ in 0..2 {
            while server.progress().unwrap().is_none() {
                client.progress().unwrap();
            }
        }
        server.send(&Frame { kind: 8, body: vec![1] });
        server.progress().unwrap();
        assert_eq!(client.wait_frame(&deadline, "an answer").unwrap().kind, 8);
        assert!(limit(&client).is_some(), "a cut would not be noticed");
    }
}
