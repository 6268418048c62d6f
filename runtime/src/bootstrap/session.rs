//! A rank's connection to the rendezvous, and the rendezvous's thread.

use super::auth::{Ends, Role};
use super::deadline::{Cancel, Deadline};
use super::id::{FIXED, UniqueId};
use super::root::{self, BYE, ENDED, FAILED, GATHER, JOIN, MAX_BLOB, MAX_RANKS, TABLE};
use super::serve;
use super::wire::{Connection, Frame, HANDSHAKE_TIMEOUT};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a rank waits for the rendezvous to say which ranks did not come in time.
const ANSWER: Duration = Duration::from_secs(3);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Makes a unique id and starts its rendezvous in a thread of this process. Blocks: never.
pub fn new_unique_id() -> Result<UniqueId> {
    hold().map(|(id, _)| id)
}

/// Makes a unique id as [`new_unique_id`] does, and returns the thread of its rendezvous too, which ends when
/// that is over; None where a rank will hold it. Blocks: never.
pub fn hold() -> Result<(UniqueId, Option<JoinHandle<()>>)> {
    crate::fork::check()?;
    let config = Config::get();
    if !config.comm_id.is_empty() {
        // Rank 0 opens the rendezvous, on the machine that the variable names.
        return Ok((id_from_environment(config)?, None));
    }
    let listener = listen(super::interface::choose(config)?)?;
    let address = listener.local_addr().map_err(|e| Error::system("getsockname", e, ""))?;
    let id = UniqueId::new(address)?;
    let rendezvous = start_rendezvous(listener, id.clone())?;
    Ok((id, Some(rendezvous)))
}

/// Listens for members.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    let hint = "check NCCL_SOCKET_IFNAME, NCCL_COMM_ID and that the port is free";
    let bound = || {
        let kind = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(kind, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        // All ranks may come at once.
        socket.listen(BACKLOG)?;
        Ok(TcpListener::from(socket))
    };
    bound().map_err(|e: std::io::Error| Error::system(format!("listening on {address}"), e, hint))
}

/// Holds the rendezvous of an id at a listener, in a thread.
pub fn start_rendezvous(listener: TcpListener, id: UniqueId) -> Result<JoinHandle<()>> {
    let serve = move || {
        if let Err(e) = serve::serve(listener, &id) {
            log::line(Level::Warn, Subsystem::Bootstrap, &format!("rendezvous: {e}"));
        }
    };
    std::thread::Builder::new()
        .name("oxccl-rendezvous".to_owned())
        .spawn(serve)
        .map_err(|e| Error::system("starting a thread", e, "raise ulimit -u"))
}

/// The id that `NCCL_COMM_ID` and `OXCCL_SECRET_FILE` describe.
fn id_from_environment(config: &Config) -> Result<UniqueId> {
    fixed_id(&format!("NCCL_COMM_ID={}", config.comm_id), &config.comm_id, config)
}

/// The id of an address, found in `source`, at which one communicator after the other is made. Blocks
/// while the name is looked up.
pub(super) fn fixed_id(
    source: &str,
    place: impl ToSocketAddrs,
    config: &Config,
) -> Result<UniqueId> {
    let bad = |why: String| Error::Init { why: format!("{source}: {why}") };
    let address = place
        .to_socket_addrs()
        .map_err(|e| bad(e.to_string()))?
        .next()
        .ok_or_else(|| bad("no address found".to_owned()))?;
    let mut secret = [0; 32];
    if config.secret_file.is_empty() {
        if !address.ip().is_loopback() && !config.insecure {
            let why = "an address other than loopback needs OXCCL_SECRET_FILE, a file of mode 0600 \
                       with 16 random bytes or more that are the same on all hosts, or \
                       OXCCL_INSECURE=1 where everyone on the network is trusted";
            return Err(bad(why.to_owned()));
        }
        if config.insecure {
            log::line(
                Level::Warn,
                Subsystem::Bootstrap,
                "OXCCL_INSECURE=1: anyone who reaches the port can join",
            );
        }
    } else {
        let bytes = super::launch::read_private_file(&config.secret_file)?;
        if bytes.len() < 16 {
            let why = format!("{} holds fewer than 16 bytes", config.secret_file);
            return Err(bad(why));
        }
        use sha2::Digest;
        secret = sha2::Sha256::digest(&bytes).into();
    }
    Ok(UniqueId { address, comm: FIXED, secret })
}

/// Listens as soon as the rendezvous before has given up the address.
fn listen_until(address: SocketAddr, deadline: &Deadline) -> Result<TcpListener> {
    loop {
        match listen(address) {
            Err(_) if !deadline.passed() => {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

/// An open connection; tries again where the rendezvous before is just ending.
fn connect(meeting: &Meeting<'_>, deadline: &Deadline) -> Result<Connection> {
    let Meeting { id, rank, nranks, .. } = *meeting;
    let ends = Ends { role: Role::Rendezvous, from: rank, to: u32::MAX, comm: id.comm };
    let max_body = (MAX_BLOB + 4) * nranks.min(MAX_RANKS) as usize;
    loop {
        let mut connection = Connection::connect(id.address, id.secret, ends, max_body, deadline)?;
        match connection.wait_open(deadline) {
            Ok(()) => return Ok(connection),
            Err(e) if !meeting.reused => return Err(e),
            Err(e) if deadline.passed() => return Err(deadline.error(|| e)),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Whether the rendezvous of an id is held: a connection that authenticates, and no more. Blocks for
/// five seconds at most.
pub(super) fn ask(id: &UniqueId, rank: u32, deadline: &Deadline) -> Result<()> {
    visit(id, rank, deadline.left()).map(drop)
}

/// Tells the rendezvous of an id that the process of a rank ended with `status`: the others are not to
/// wait for that rank, if it has not joined. Tells nobody where the rendezvous is over, or where ranks
/// hold it, at an address that they know beforehand. Blocks for five seconds at most.
pub fn note_ended(id: &UniqueId, rank: u32, status: &str) {
    if id.comm == FIXED {
        return;
    }
    if let Ok(mut connection) = visit(id, rank, HANDSHAKE_TIMEOUT) {
        connection.send(&Frame { kind: ENDED, body: status.as_bytes().to_vec() });
        // One small frame on a fresh connection leaves at once.
        let _ = connection.progress(Instant::now());
    }
}

/// An open connection to the rendezvous of an id, where one is held now. Blocks for five seconds at most.
fn visit(id: &UniqueId, rank: u32, limit: Duration) -> Result<Connection> {
    let limit = limit.clamp(Duration::from_millis(1), HANDSHAKE_TIMEOUT);
    let deadline = Deadline::new(limit, &Cancel::default());
    let hint = "check NCCL_SOCKET_IFNAME on rank 0's host, and firewalls";
    let stream = TcpStream::connect_timeout(&id.address, limit)
        .map_err(|e| Error::system(format!("connecting to {}", id.address), e, hint))?;
    let ends = Ends { role: Role::Rendezvous, from: rank, to: u32::MAX, comm: id.comm };
    let mut connection = Connection::client(stream, id.secret, ends, 0)?;
    connection.wait_open(&deadline)?;
    Ok(connection)
}

/// Who meets where.
#[derive(Clone, Copy)]
pub struct Meeting<'a> {
    /// The rendezvous.
    pub id: &'a UniqueId,
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub nranks: u32,
    /// Whether one rendezvous after the other is held at that address.
    pub reused: bool,
    /// How long to wait for the others.
    pub limit: Duration,
    /// Set when it is to end.
    pub cancel: &'a Cancel,
}

/// A rank in conversation with the rendezvous.
pub struct Session {
    connection: Connection,
    id: UniqueId,
    rank: u32,
    nranks: u32,
    limit: Duration,
    reused: bool,
    deadline: Deadline,
    joined: bool,
}

impl Session {
    /// Connects rank `rank` of `nranks`. Blocks until the rendezvous answers or time is over.
    pub fn open(meeting: &Meeting<'_>) -> Result<Self> {
        let Meeting { id, rank, nranks, reused, limit, cancel } = *meeting;
        // A little longer than the rendezvous itself waits, whose answer says more.
        let deadline = Deadline::new(limit.saturating_add(ANSWER), cancel);
        let fixed = id.comm == FIXED;
        if rank == 0 && fixed {
            start_rendezvous(listen_until(id.address, &deadline)?, id.clone())?;
        }
        let reused = reused || fixed;
        let connection = connect(&Meeting { reused, ..*meeting }, &deadline)?;
        let id = id.clone();
        Ok(Self { connection, id, rank, nranks, limit, reused, deadline, joined: false })
    }

    /// When initialisation has to be over.
    pub fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// Gives every rank the blobs of all, in rank order. Blocks for all ranks.
    pub fn gather(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>> {
        let frame = if self.joined {
            Frame { kind: GATHER, body: blob.to_vec() }
        } else {
            Frame { kind: JOIN, body: root::join(self.nranks, self.limit, blob) }
        };
        let frame = self.ask(&frame)?;
        self.joined = true;
        match frame.kind {
            TABLE => root::split_table(&frame.body, self.nranks)
                .ok_or_else(|| Error::Init { why: "the rendezvous sent a bad table".to_owned() }),
            FAILED => Err(Error::Init { why: String::from_utf8_lossy(&frame.body).into_owned() }),
            kind => Err(Error::Init { why: format!("the rendezvous sent a frame {kind}") }),
        }
    }

    fn ask(&mut self, frame: &Frame) -> Result<Frame> {
        loop {
            self.connection.send(frame);
            let answer = self.connection.wait_frame(&self.deadline, "the other ranks' data");
            // It may have been the rendezvous of the communicator before.
            let again = !self.joined && self.reused;
            if answer.is_ok() || !again || self.deadline.passed() {
                return answer;
            }
            let (id, cancel) = (&self.id, &Cancel::default());
            let Self { rank, nranks, reused, limit, .. } = *self;
            let meeting = Meeting { id, rank, nranks, reused, limit, cancel };
            self.connection = connect(&meeting, &self.deadline)?;
        }
    }

    /// Leaves the rendezvous.
    pub fn close(mut self) {
        self.connection.send(&Frame { kind: BYE, body: Vec::new() });
        let _ = self.connection.progress(Instant::now());
    }

    /// The number of ranks that meet.
    pub fn nranks(&self) -> u32 {
        self.nranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &'static [(&str, &str)]) -> Config {
        Config::from_lookup(|name| {
            pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        })
    }

    /// As after a rendezvous that did not read in time, or that was the one before.
    #[test]
    fn who_is_dropped_before_having_joined_comes_again_where_others_meet_later() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let id = UniqueId::new(listener.local_addr().unwrap()).unwrap();
        let (limit, cancel) = (Duration::from_secs(60), Cancel::default());
        let deadline = Deadline::new(limit, &cancel);
        std::thread::scope(|scope| {
            let hold = scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                let ends = Ends { role: Role::Rendezvous, from: 0, to: u32::MAX, comm: id.comm };
                let server = super::super::auth::Server::new(id.secret, ends, 1).unwrap();
                Connection::accept(stream, server, 64).unwrap().wait_open(&deadline).unwrap();
                start_rendezvous(listener.try_clone().unwrap(), id.clone()).unwrap();
            });
            let meeting =
                Meeting { id: &id, rank: 0, nranks: 1, reused: true, limit, cancel: &cancel };
            let mut session = Session::open(&meeting).unwrap();
            hold.join().unwrap();
            assert_eq!(session.gather(b"here").unwrap(), [b"here".to_vec()]);
            session.close();
        });
    }

    #[test]
    fn who_waits_for_a_rank_whose_process_ended_hears_it() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let id = UniqueId::new(listener.local_addr().unwrap()).unwrap();
        let rendezvous = start_rendezvous(listener, id.clone()).unwrap();
        let (limit, cancel) = (Duration::from_secs(60), Cancel::default());
        let meeting =
            Meeting { id: &id, rank: 0, nranks: 2, reused: false, limit, cancel: &cancel };
        let mut session = Session::open(&meeting).unwrap();
        note_ended(&id, 1, "exit status: 0");
        let text = session.gather(b"here").unwrap_err().to_string();
        assert!(text.contains("rank 1's process ended with exit status: 0"), "{text}");
        rendezvous.join().unwrap();
        // Nobody is there any more.
        note_ended(&id, 0, "exit status: 1");
    }

    #[test]
    fn an_open_port_needs_a_secret_or_a_word_that_it_may_be_insecure() {
        let local = config(&[("NCCL_COMM_ID", "127.0.0.1:4000")]);
        assert!(id_from_environment(&local).is_ok());
        let open = config(&[("NCCL_COMM_ID", "192.0.2.1:4000")]);
        let text = id_from_environment(&open).unwrap_err().to_string();
        assert!(text.contains("OXCCL_SECRET_FILE"), "{text}");
        let open = config(&[("NCCL_COMM_ID", "192.0.2.1:4000"), ("OXCCL_INSECURE", "1")]);
        assert!(id_from_environment(&open).is_ok());
        let bad = config(&[("NCCL_COMM_ID", "nonsense")]);
        assert!(id_from_environment(&bad).is_err());
    }
}
