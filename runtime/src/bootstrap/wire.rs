//! Connections of the bootstrap: non-blocking sockets that authenticate and then carry frames of
//! bounded length. Little-endian `length u32 · kind u8 · body`.

use super::auth::{Client, Ends, Progress, Server};
use super::deadline::Deadline;
use super::id::SECRET_BYTES;
use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An unauthenticated connection is dropped after this time.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// More unauthenticated connections than this are refused.
pub const MAX_UNAUTHENTICATED: usize = 64;
const HEADER: usize = 5;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is; see `root.rs`.
    pub kind: u8,
    /// Its contents.
    pub body: Vec<u8>,
}

impl Frame {
    /// The frame's bytes, which several connections can send.
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
    stream: TcpStream,
    state: State,
    peer_rank: u32,
    since: Instant,
    outgoing: VecDeque<Arc<[u8]>>,
    /// Bytes of the first of them that have been sent.
    sent: usize,
    incoming: Vec<u8>,
    max_body: usize,
}

impl Connection {
    /// Connects as a client; retries until the deadline where nobody listens yet.
    pub fn connect(
        address: SocketAddr,
        secret: [u8; SECRET_BYTES],
        ends: Ends,
        max_body: usize,
        deadline: &Deadline,
    ) -> Result<Self> {
        let mut pause = Duration::from_millis(2);
        let stream = loop {
            let left = deadline.left();
            let attempt = left.min(Duration::from_secs(5)).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, attempt) {
                Ok(stream) => break stream,
                Err(e) if left.is_zero() => {
                    let hint = "check that rank 0 runs, and NCCL_SOCKET_IFNAME and firewalls";
                    let failed = || Error::system(format!("connecting to {address}"), e, hint);
                    return Err(deadline.error(failed));
                }
                Err(_) => std::thread::sleep(pause.min(left)),
            }
            pause = (pause * 2).min(Duration::from_millis(200));
        };
        Self::client(stream, secret, ends, max_body)
    }

    /// Takes a stream that this side has connected.
    pub fn client(
        stream: TcpStream,
        secret: [u8; SECRET_BYTES],
        ends: Ends,
        max_body: usize,
    ) -> Result<Self> {
        let (client, hello) = Client::new(secret, ends)?;
        let mut connection = Self::new(stream, State::Client(client), max_body)?;
        connection.peer_rank = ends.to;
        connection.queue(hello.into());
        Ok(connection)
    }

    /// Takes an accepted stream.
    pub fn accept(stream: TcpStream, server: Server, max_body: usize) -> Result<Self> {
        Self::new(stream, State::Server(server), max_body)
    }

    fn new(stream: TcpStream, state: State, max_body: usize) -> Result<Self> {
        let failed = |e| Error::system("setting socket options", e, "out of kernel memory?");
        stream.set_nonblocking(true).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Self {
            stream,
            state,
            peer_rank: 0,
            since: Instant::now(),
            outgoing: VecDeque::new(),
            sent: 0,
            incoming: Vec::new(),
            max_body,
        })
    }

    /// Whether both sides have authenticated and nothing of that is left to send.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open) && self.outgoing.is_empty()
    }

    /// Whether the other side has authenticated.
    pub fn is_authenticated(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// The other side's rank, once it is open.
    pub fn peer_rank(&self) -> u32 {
        self.peer_rank
    }

    /// The other side's address.
    pub fn peer_address(&self) -> String {
        self.stream.peer_addr().map_or_else(|e| e.to_string(), |a| a.to_string())
    }

    /// The stream, when the handshake is over and it is to carry something else.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// The stream, to poll.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether there are bytes to send.
    pub fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Queues a frame.
    pub fn send(&mut self, frame: &Frame) {
        self.queue(frame.encode());
    }

    /// Queues what [`Frame::encode`] made.
    pub fn queue(&mut self, bytes: Arc<[u8]>) {
        if !bytes.is_empty() {
            self.outgoing.push_back(bytes);
        }
    }

    /// Moves what can be moved; returns a frame when one is complete.
    pub fn progress(&mut self, now: Instant) -> Result<Option<Frame>> {
        self.progress_handshake(now)?;
        if !self.is_open() {
            return Ok(None);
        }
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Some(frame));
            }
            let mut buffer = [0; 16 << 10];
            match self.read(&mut buffer)? {
                0 => return Ok(None),
                n => self.incoming.extend(&buffer[..n]),
            }
        }
    }

    /// Moves the handshake on; once it is over it reads nothing that follows it.
    pub fn progress_handshake(&mut self, now: Instant) -> Result<()> {
        self.flush()?;
        if !matches!(self.state, State::Open) {
            self.handshake(now)?;
            self.flush()?;
        }
        Ok(())
    }

    fn handshake(&mut self, now: Instant) -> Result<()> {
        let mut buffer = [0; 128];
        let wants = match &self.state {
            State::Client(client) => client.wants(),
            State::Server(server) => server.wants(),
            State::Open => 0,
        };
        // No more than the handshake's own bytes: what follows may not be a frame.
        let n = self.read(&mut buffer[..wants.min(128)])?;
        if n == 0 {
            // Only now: what came in time may be read late, where this process was stopped or starved.
            if now.saturating_duration_since(self.since) > HANDSHAKE_TIMEOUT {
                let why = format!("{} did not authenticate in time", self.peer_address());
                return Err(Error::Init { why });
            }
            return Ok(());
        }
        let progress = match &mut self.state {
            State::Client(client) => client.input(&buffer[..n])?,
            State::Server(server) => server.input(&buffer[..n])?,
            State::Open => Progress::More,
        };
        match progress {
            Progress::More => {}
            Progress::Send(bytes) => self.queue(bytes.into()),
            Progress::Done(bytes) => {
                self.queue(bytes.into());
                if let State::Server(server) = &self.state {
                    self.peer_rank = server.client();
                }
                self.state = State::Open;
            }
        }
        Ok(())
    }

    fn take_frame(&mut self) -> Result<Option<Frame>> {
        take_frame(&mut self.incoming, self.max_body).map_err(|len| {
            let why = format!("{} sent a frame of {len} bytes", self.peer_address());
            Error::Init { why }
        })
    }

    /// 0 when there is nothing to read now.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self.stream.read(buffer) {
            Ok(0) => Err(self.closed("it closed the connection")),
            Ok(n) => Ok(n),
            Err(e) if would_block(&e) => Ok(0),
            Err(e) => Err(self.closed(&e.to_string())),
        }
    }

    fn flush(&mut self) -> Result<()> {
        while let Some(bytes) = self.outgoing.front() {
            match self.stream.write(&bytes[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if would_block(&e) => break,
                Err(e) => return Err(self.closed(&e.to_string())),
            }
            if self.sent == bytes.len() {
                self.outgoing.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }

    fn closed(&self, why: &str) -> Error {
        let peer = self.peer_address();
        Error::Init { why: format!("lost the connection to {peer}: {why}") }
    }

    /// Waits until a frame comes, at most until the deadline.
    pub fn wait_frame(&mut self, deadline: &Deadline, awaited: &str) -> Result<Frame> {
        loop {
            if let Some(frame) = self.progress(Instant::now())? {
                return Ok(frame);
            }
            self.wait(deadline, awaited)?;
        }
    }

    /// Waits until the handshake is over, at most until the deadline.
    pub fn wait_open(&mut self, deadline: &Deadline) -> Result<()> {
        while !self.is_open() {
            self.progress_handshake(Instant::now())?;
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
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, self.wants_write());
        wait_for(&mut [PollFd::new(&self.stream, events)], deadline.slice());
        Ok(())
    }
}

/// Takes the first frame out of what came in, once it is complete; fails with its length when that is
/// more than `max_body`.
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

/// Polls descriptors; interruptions and time-outs alike just return.
pub fn wait_for(fds: &mut [PollFd<'_>], limit: Duration) {
    let limit =
        Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // An error leaves the callers polling their sockets again, which will report it.
    let _ = poll(fds, Some(&limit));
}

fn would_block(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Cancel;
    use crate::bootstrap::auth::Role;
    use std::net::TcpListener;

    const ENDS: Ends = Ends { role: Role::Data, from: 1, to: 0, comm: 3 };

    fn pair(max_body: usize) -> (Connection, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let deadline = Deadline::new(Duration::from_secs(10), &Cancel::default());
        let address = listener.local_addr().unwrap();
        let client = Connection::connect(address, [1; 32], ENDS, max_body, &deadline).unwrap();
        let server = Server::new([1; 32], ENDS, 2).unwrap();
        let server = Connection::accept(listener.accept().unwrap().0, server, max_body).unwrap();
        (client, server)
    }

    fn open(client: &mut Connection, server: &mut Connection) {
        let now = Instant::now();
        while !client.is_open() || !server.is_open() {
            client.progress_handshake(now).unwrap();
            server.progress_handshake(now).unwrap();
        }
    }

    #[test]
    fn frames_arrive_whole_and_one_that_is_too_long_ends_the_connection() {
        let (mut client, mut server) = pair(100);
        open(&mut client, &mut server);
        assert_eq!(server.peer_rank(), 1);
        let deadline = Deadline::new(Duration::from_secs(10), &Cancel::default());
        for frame in [Frame { kind: 7, body: vec![] }, Frame { kind: 8, body: vec![5; 100] }] {
            client.send(&frame);
            client.progress(Instant::now()).unwrap();
            assert_eq!(server.wait_frame(&deadline, "a frame").unwrap(), frame);
        }
        client.send(&Frame { kind: 9, body: vec![0; 101] });
        client.progress(Instant::now()).unwrap();
        let text = server.wait_frame(&deadline, "a frame").unwrap_err().to_string();
        assert!(text.contains("a frame of 101 bytes"), "{text}");
    }

    #[test]
    fn who_does_not_authenticate_in_time_is_dropped() {
        let (_client, mut server) = pair(100);
        let late = Instant::now() + HANDSHAKE_TIMEOUT + Duration::from_secs(1);
        let text = server.progress_handshake(late).unwrap_err().to_string();
        assert!(text.contains("did not authenticate in time"), "{text}");
    }
}
