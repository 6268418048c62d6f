//! A rank's connection to the rendezvous.

use super::auth::{Ends, Role};
use super::deadline::{Cancel, Deadline, InVain};
use super::dial::Dial;
use super::id::{FIXED, SECRET_BYTES, UniqueId};
use super::root::{
    self, BYE, FAILED, GATHER, GIVE_UP, JOIN, LATER, MAX_BLOB, MAX_RANKS, TABLE, WAITING, failure,
    failure_in,
};
use super::wire::{Connection, Frame};
use super::{interface, launch, rendezvous};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use rustix::event::PollFd;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The time beyond its limit that a rank waits for the rendezvous to say which ranks did not come.
const ANSWER: Duration = Duration::from_secs(3);

/// The longest time that a rank that has lost another one waits for the rendezvous to say which
/// rank failed first, and that a process that holds the rendezvous waits until all others have
/// heard of the failure.
const VERDICT: Duration = Duration::from_secs(2);
/// The time within which a rank that fails may find that another one has failed before.
const EARLIER: Duration = Duration::from_millis(200);

/// The longest time to ask whether a rendezvous is held.
const ASK: Duration = Duration::from_secs(5);

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// The number of refused attempts after which nobody is assumed to listen at an address where the
/// listener existed before the id.
const REFUSALS: u32 = 5;

/// The longest pause before a rank that was turned away comes again.
const LONGEST: Duration = Duration::from_millis(200);

/// The time after which a rank tells the rendezvous that it waits for others.
const LONG: Duration = Duration::from_secs(1);

/// The advice where the process that made a unique id has ended.
const AGAIN: &str = "look at its output, and start all ranks again with a new id";

/// Makes a unique id and starts its rendezvous in a thread of this process. Blocks: never.
pub fn new_unique_id() -> Result<UniqueId> {
    crate::fork::check()?;
    let config = Config::checked()?;
    if !config.comm_id.is_empty() {
        // Rank 0 opens the rendezvous, on the machine that the variable names.
        return id_from_environment(config);
    }
    let listener = listen(interface::choose(config)?)?;
    let address = listener.local_addr().map_err(|e| Error::system("getsockname", e, ""))?;
    let id = UniqueId::new(address)?;
    rendezvous::start(listener, id.clone(), Vec::new())?;
    Ok(id)
}

/// Listens for members at an address.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    bind(address).map_err(not_listening(address))
}

fn not_listening(address: SocketAddr) -> impl Fn(std::io::Error) -> Error {
    let hint = "check NCCL_SOCKET_IFNAME, NCCL_COMM_ID, that the port is free, and that one process \
                alone is rank 0";
    move |e| Error::system(format!("listening on {address}"), e, hint)
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let kind = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(kind, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    // All ranks may come at once.
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Returns the id that `NCCL_COMM_ID` and `OXCCL_SECRET_FILE` describe.
fn id_from_environment(config: &Config) -> Result<UniqueId> {
    fixed_id(&format!("NCCL_COMM_ID={}", config.comm_id), &config.comm_id, config)
}

/// Returns the id of an address, found in `source`, at which communicators are made one after the
/// other. Blocks while the name is looked up.
pub(super) fn fixed_id(
    source: &str,
    place: impl ToSocketAddrs,
    config: &Config,
) -> Result<UniqueId> {
    let bad = |why: String| Error::Init { why: format!("{source}: {why}") };
    let address = place
        .to_socket_addrs()
        .map_err(|e| bad(format!("{e}; expected HOST:PORT")))?
        .next()
        .ok_or_else(|| bad("no address found".to_owned()))?;
    let secret = if !config.secret_file.is_empty() {
        secret_in_file(&config.secret_file)?
    } else if config.insecure {
        let text = "OXCCL_INSECURE=1: anyone who reaches the port can join";
        log::line(Level::Warn, Subsystem::Bootstrap, text);
        [0; SECRET_BYTES]
    } else if address.ip().is_loopback() {
        // All users of this host can reach a listener on loopback.
        launch::secret_of_user(config)?
    } else {
        let why = "an address other than loopback needs OXCCL_SECRET_FILE, a file of mode 0600 \
                   with 16 random bytes or more that are the same on all hosts, or \
                   OXCCL_INSECURE=1 where everyone on the network is trusted";
        return Err(bad(why.to_owned()));
    };
    Ok(UniqueId { address, comm: FIXED, secret })
}

fn secret_in_file(path: &str) -> Result<[u8; SECRET_BYTES]> {
    use sha2::Digest;
    let bytes = launch::read_private_file(path)?;
    if bytes.len() < 16 {
        let expected = "16 random bytes or more, the same on all hosts";
        let got = format!("{path}, which holds {} bytes", bytes.len());
        return Err(Error::argument("initialisation", "OXCCL_SECRET_FILE", got, expected));
    }
    Ok(sha2::Sha256::digest(&bytes).into())
}

/// The time after which rank 0 says that it waits for its turn: earlier ones take milliseconds.
const TURN: Duration = Duration::from_secs(1);

/// Listens at the address of an id as soon as the previous rendezvous has released it. Blocks until
/// the deadline at most.
fn listen_until(id: &UniqueId, deadline: &Deadline) -> Result<TcpListener> {
    let (begun, mut says_so) = (Instant::now(), false);
    loop {
        rendezvous::replace(id);
        match bind(id.address) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && !deadline.passed() => {
                if begun.elapsed() > TURN && !says_so {
                    says_so = true;
                    let text = format!(
                        "rank 0 waits to hold the rendezvous at {}, where somebody else listens: \
                         another communicator that is being made, another process that is rank 0, \
                         too, or another program",
                        id.address
                    );
                    log::line(Level::Warn, Subsystem::Bootstrap, &text);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome.map_err(not_listening(id.address)),
        }
    }
}

fn dial(id: &UniqueId, rank: u32) -> Dial {
    let ends = Ends { role: Role::Rendezvous, from: rank, to: u32::MAX, comm: id.comm };
    Dial::new(id.address.into(), id.address.to_string(), id.secret, ends)
}

/// Returns an open connection to the rendezvous. Tries again until the deadline, also if the
/// previous rendezvous is just ending or the connection was lost before it was open.
fn connect(meeting: &Meeting<'_>, deadline: &Deadline) -> Result<Connection> {
    let Meeting { id, rank, nranks, reused, .. } = *meeting;
    let max_body = (MAX_BLOB + 4) * nranks.min(MAX_RANKS) as usize;
    let mut dial = dial(id, rank);
    loop {
        let now = Instant::now();
        if let Some(connection) = dial.progress(now)? {
            return Ok(connection.with_frames(max_body));
        }
        if !reused && dial.refusals() >= REFUSALS {
            // The listener existed before the id, so it is gone.
            if let Some(holder) = meeting.holder {
                let why = format!("ended: its process held the rendezvous at {}", id.address);
                return Err(Error::init_death(holder, why));
            }
            let why = format!(
                "nobody holds the rendezvous at {} any more: all ranks of the unique id have met \
                 already, or the process that made it has ended; {AGAIN}",
                id.address
            );
            return Err(Error::Init { why });
        }
        if deadline.passed() {
            return Err(deadline.error(|| unanswered(meeting, &dial)));
        }
        dial.wait_for_event(deadline.slice(), now);
    }
}

/// Returns the error of a rank that did not reach the rendezvous in time.
fn unanswered(meeting: &Meeting<'_>, dial: &Dial) -> Error {
    let whose = match meeting.holder {
        Some(holder) => format!("rank {holder}"),
        None if meeting.id.comm == FIXED => "rank 0".to_owned(),
        None => "rank 0, or who else made the unique id,".to_owned(),
    };
    let why = format!(
        "{whose} did not answer at the rendezvous within {} s ({}); look whether it runs, and \
         makes this communicator, and at NCCL_SOCKET_IFNAME and firewalls, or {LATER}",
        meeting.limit.as_millis() as f64 / 1000.0,
        dial.why()
    );
    Error::Init { why }
}

/// Succeeds if the rendezvous of an id is held: the connection authenticates and does no more.
/// Blocks for five seconds at most.
pub(super) fn ask(id: &UniqueId, rank: u32, deadline: &Deadline) -> Result<()> {
    let limit = deadline.left().clamp(Duration::from_millis(1), ASK);
    let mut dial = dial(id, rank);
    let until = Instant::now() + limit;
    loop {
        let now = Instant::now();
        if dial.progress(now)?.is_some() {
            return Ok(());
        }
        if now >= until || dial.attempts() > 0 {
            let hint = "check NCCL_SOCKET_IFNAME on rank 0's host, and firewalls";
            return Err(Error::system(dial.why(), "no answer", hint));
        }
        dial.wait_for_event(until - now, now);
    }
}

/// The parameters of a meeting of ranks.
#[derive(Clone)]
pub struct Meeting<'a> {
    /// The id of the rendezvous.
    pub id: &'a UniqueId,
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub nranks: u32,
    /// True if one rendezvous after the other is held at the address.
    pub reused: bool,
    /// The longest time to wait for the other ranks.
    pub limit: Duration,
    /// Set when the meeting is to end.
    pub cancel: &'a Cancel,
    /// The check that finds out that one of the ranks will not come.
    pub in_vain: Option<InVain>,
    /// The rank whose process holds the rendezvous, if that is known beforehand.
    pub holder: Option<u32>,
}

/// A rank's connection to the rendezvous, and its progress there.
pub struct Session {
    connection: Connection,
    id: UniqueId,
    rank: u32,
    nranks: u32,
    limit: Duration,
    reused: bool,
    deadline: Deadline,
    /// The pause before the rank connects again.
    pause: Duration,
    joined: bool,
    /// True once the rendezvous may know of this rank.
    told: bool,
    /// True once this rank has told the others that it has failed.
    announced: bool,
    holder: Option<u32>,
    /// The time since which the rank waits for others outside of rounds, and whether it has said
    /// so.
    waits: Option<Instant>,
    says_so: bool,
    /// The failure that the rendezvous has reported.
    verdict: Option<Error>,
}

impl Session {
    /// Connects a rank to the rendezvous. Blocks until the rendezvous answers or the time is over.
    pub fn open(meeting: &Meeting<'_>) -> Result<Self> {
        let Meeting { id, rank, nranks, limit, cancel, holder, .. } = *meeting;
        // A little longer than the rendezvous itself waits, because its answer says more.
        let deadline = Deadline::new(limit.saturating_add(ANSWER), cancel);
        let deadline = deadline.unless(meeting.in_vain.clone());
        let fixed = id.comm == FIXED;
        if rank == 0 && fixed {
            rendezvous::start(listen_until(id, &deadline)?, id.clone(), Vec::new())?;
        }
        let reused = meeting.reused || fixed;
        let connection = connect(&Meeting { reused, ..meeting.clone() }, &deadline)?;
        let (id, verdict) = (id.clone(), None);
        let (joined, told, announced) = (false, false, false);
        Ok(Self {
            connection,
            id,
            rank,
            nranks,
            limit,
            reused,
            deadline,
            pause: Duration::from_millis(2),
            joined,
            told,
            announced,
            holder,
            waits: None,
            says_so: false,
            verdict,
        })
    }

    /// Returns the deadline of initialisation.
    pub fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// Returns the time for which the rendezvous still waits for its ranks.
    pub fn left(&self) -> Duration {
        self.deadline.left().saturating_sub(ANSWER)
    }

    /// Returns whether this process holds the rendezvous.
    pub fn is_held_here(&self) -> bool {
        rendezvous::is_here(&self.id)
    }

    /// Notes which rank's process holds the rendezvous, unless that is known already.
    pub fn set_holder(&mut self, rank: Option<u32>) {
        self.holder = self.holder.or(rank);
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
        (self.waits, self.says_so) = (None, false);
        match frame.kind {
            TABLE => root::split_table(&frame.body, self.nranks)
                .ok_or_else(|| Error::Init { why: "the rendezvous sent a bad table".to_owned() }),
            _ => Err(self.fail(&frame)),
        }
    }

    fn ask(&mut self, frame: &Frame) -> Result<Frame> {
        loop {
            self.connection.send(frame);
            self.told = true;
            let answer = self.connection.wait_frame(&self.deadline, "the other ranks' data");
            // The other side may have been the rendezvous of the previous communicator.
            let again = !self.joined && self.reused;
            if answer.is_ok() || !again || self.deadline.passed() {
                return answer.map_err(|error| self.lost(error));
            }
            let (id, cancel) = (&self.id, &Cancel::default());
            let Self { rank, nranks, reused, limit, holder, .. } = *self;
            let in_vain = None;
            let meeting = Meeting { id, rank, nranks, reused, limit, cancel, in_vain, holder };
            // The rank may be turned away again and again, until the previous rendezvous is over.
            std::thread::sleep(self.pause.min(self.deadline.slice()));
            self.pause = (self.pause * 2).min(LONGEST);
            self.connection = connect(&meeting, &self.deadline)?;
        }
    }

    /// Records and returns the error for a frame that is no answer.
    fn fail(&mut self, frame: &Frame) -> Error {
        let error = match frame.kind {
            // If the link between this rank and another one is cut, the frame may be the other
            // rank's view.
            FAILED => self.deadline.finding().unwrap_or_else(|| failure_in(&frame.body)),
            kind => Error::Init { why: format!("the rendezvous sent a frame {kind}") },
        };
        self.verdict = Some(error.clone());
        error
    }

    /// Returns the error for the end of the connection to the rendezvous.
    fn lost(&self, error: Error) -> Error {
        if !self.connection.is_broken() {
            return error;
        }
        let at = self.id.address;
        match self.holder {
            Some(holder) => {
                Error::init_death(holder, format!("ended: its process held the rendezvous at {at}"))
            }
            None => Error::Init {
                why: format!(
                    "the process that made the unique id and held the rendezvous at {at} ended; \
                     {AGAIN}"
                ),
            },
        }
    }

    /// Fails if the rendezvous has said that initialisation has failed, or has ended itself. To be
    /// called while waiting for something else. Blocks: never.
    pub fn check(&mut self) -> Result<()> {
        if let Some(verdict) = &self.verdict {
            return Err(verdict.clone());
        }
        let waits = *self.waits.get_or_insert_with(Instant::now);
        if !self.says_so && waits.elapsed() > LONG {
            self.connection.send(&Frame { kind: WAITING, body: Vec::new() });
            self.says_so = true;
        }
        match self.connection.progress() {
            Ok(None) => Ok(()),
            Ok(Some(frame)) => Err(self.fail(&frame)),
            Err(error) => Err(self.lost(error)),
        }
    }

    /// Returns whether the rendezvous has said why initialisation failed.
    pub fn has_verdict(&self) -> bool {
        self.verdict.is_some()
    }

    /// Returns the descriptor to poll while waiting for something else.
    pub fn poll_fd(&self) -> PollFd<'_> {
        self.connection.poll_fd()
    }

    /// Tells the others that this rank has failed, unless another rank has failed before, whose
    /// error is then returned. For errors that may be consequences of another rank's failure, and
    /// that cause more of them as soon as this rank ends its connections. Blocks for 0.2 s.
    pub fn announce(&mut self, error: Error) -> Error {
        if let Some(earlier) = self.wait_for_verdict(EARLIER) {
            return earlier;
        }
        let rank = self.rank;
        self.tell(-1, false, &format!("rank {rank}: {error}"));
        self.announced = true;
        error
    }

    /// Ends a meeting that has failed at this rank; returns the error to report. If this rank only
    /// lost another one, what is known of deaths or else the rendezvous says which rank failed
    /// first. Otherwise this rank tells the others what happened. Blocks for 4 s at most.
    pub fn give_up(mut self, mut error: Error) -> Error {
        let decided = self.verdict.is_some() || self.announced;
        let mut earlier = None;
        if !decided && matches!(error, Error::InitPeer { .. }) {
            match self.deadline.finding() {
                Some(found) => error = found,
                None => earlier = self.wait_for_verdict(VERDICT),
            }
        }
        if !decided && earlier.is_none() {
            self.tell_of(&error);
        }
        if self.told {
            rendezvous::wait_until_told(&self.id, VERDICT);
        }
        earlier.unwrap_or(error)
    }

    /// Tells the others of the error that ends this rank's part.
    fn tell_of(&mut self, error: &Error) {
        match error {
            Error::InitPeer { site, why, died: true } => self.tell(site.peer, true, why),
            // The blame is the view of one rank: the others hear of which.
            Error::InitPeer { site, why, died: false } => {
                self.tell(-1, false, &format!("rank {} {why}", site.peer));
            }
            Error::Init { why } => self.tell(-1, false, why),
            other => self.tell(-1, false, &other.to_string()),
        }
    }

    fn wait_for_verdict(&mut self, limit: Duration) -> Option<Error> {
        let until = Instant::now() + limit;
        while self.told && !self.connection.is_broken() {
            if let Err(error) = self.check() {
                return self.verdict.clone().or(Some(error));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            super::wire::wait_for(&mut [self.connection.poll_fd()], left);
        }
        None
    }

    fn tell(&mut self, culprit: i32, died: bool, why: &str) {
        if !self.told {
            // The others would wait for this rank.
            rendezvous::note_absent(&self.id, self.rank, format!("gave up: {why}"), false);
            return;
        }
        self.connection.send(&Frame { kind: GIVE_UP, body: failure(culprit, died, why) });
        // If the frame cannot be sent, the end of the connection says as much.
        let _ = self.connection.progress_handshake();
    }

    /// Leaves the rendezvous.
    pub fn close(mut self) {
        self.connection.send(&Frame { kind: BYE, body: Vec::new() });
        let _ = self.connection.progress_handshake();
    }

    /// Returns whether the connection is encrypted; then those of all ranks are.
    pub fn is_encrypted(&self) -> bool {
        self.connection.is_encrypted()
    }

    /// Returns the number of ranks that meet.
    pub fn nranks(&self) -> u32 {
        self.nranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn config(pairs: &'static [(&str, &str)]) -> Config {
        Config::from_lookup(|name| {
            pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        })
    }

    fn meeting<'a>(id: &'a UniqueId, rank: u32, nranks: u32, cancel: &'a Cancel) -> Meeting<'a> {
        let limit = Duration::from_secs(60);
        Meeting { id, rank, nranks, reused: true, limit, cancel, in_vain: None, holder: None }
    }

    /// The first connection ends as by a rendezvous that did not read in time, or by the previous
    /// one.
    #[test]
    fn who_is_dropped_before_having_joined_comes_again_where_others_meet_later() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let id = UniqueId::new(listener.local_addr().unwrap()).unwrap();
        let cancel = Cancel::default();
        let deadline = Deadline::new(Duration::from_secs(60), &cancel);
        std::thread::scope(|scope| {
            let hold = scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                let ends = Ends { role: Role::Rendezvous, from: 0, to: u32::MAX, comm: id.comm };
                let server = super::super::auth::Server::new(id.secret, ends, 1, None).unwrap();
                let mut connection = Connection::accept(stream.into(), server).unwrap();
                connection.wait_open(&deadline).unwrap();
                rendezvous::start(listener.try_clone().unwrap(), id.clone(), Vec::new()).unwrap();
            });
            let mut session = Session::open(&meeting(&id, 0, 1, &cancel)).unwrap();
            hold.join().unwrap();
            assert_eq!(session.gather(b"here").unwrap(), [b"here".to_vec()]);
            session.close();
        });
    }

    #[test]
    fn what_fails_at_one_rank_is_told_to_all_also_to_those_who_come_later() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let id = UniqueId::new(listener.local_addr().unwrap()).unwrap();
        rendezvous::start(listener, id.clone(), Vec::new()).unwrap();
        let cancel = Cancel::default();
        std::thread::scope(|scope| {
            let rank = |rank| {
                let (id, cancel) = (&id, &cancel);
                scope.spawn(move || {
                    let mut session = Session::open(&meeting(id, rank, 3, cancel)).unwrap();
                    session.gather(b"here").unwrap();
                    session
                })
            };
            let [first, second, third] = [0, 1, 2].map(rank).map(|thread| thread.join().unwrap());
            let own = Error::Init { why: "no memory".to_owned() };
            assert!(first.give_up(own).to_string().contains("no memory"));
            for mut session in [second, third] {
                let error = session.gather(b"again").unwrap_err();
                assert!(error.to_string().contains("rank 0 gave up"), "{error}");
                assert_eq!(error.site().map(|site| site.peer), Some(0));
                let told = session.give_up(Error::init_peer(1, "is out of reach"));
                assert!(told.to_string().contains("out of reach"), "{told}");
            }
        });
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let id = UniqueId::new(listener.local_addr().unwrap()).unwrap();
        rendezvous::start(listener, id.clone(), Vec::new()).unwrap();
        rendezvous::note_absent(&id, 1, "exited with status 0".to_owned(), true);
        let mut waiting = Session::open(&meeting(&id, 0, 3, &cancel)).unwrap();
        let mut late = Session::open(&meeting(&id, 2, 3, &cancel)).unwrap();
        for session in [&mut waiting, &mut late] {
            let error = session.gather(b"here").unwrap_err().to_string();
            assert!(error.contains("rank 1 exited with status 0"), "{error}");
        }
    }

    /// A rank that hears of a death leaves, and so takes its connections from ranks that have not
    /// looked yet.
    #[test]
    fn a_death_that_is_known_is_the_cause_of_other_losses() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let id = UniqueId::new(listener.local_addr().unwrap()).unwrap();
        rendezvous::start(listener, id.clone(), Vec::new()).unwrap();
        let cancel = Cancel::default();
        let known = Arc::new(std::sync::Mutex::new(None));
        let found = known.clone();
        let in_vain: Option<InVain> = Some(Arc::new(move || found.lock().unwrap().clone()));
        let meeting = Meeting { in_vain, ..meeting(&id, 0, 3, &cancel) };
        let [first, second] = [(), ()].map(|()| Session::open(&meeting).unwrap());
        *known.lock().unwrap() = Some(Error::init_death(1, "its process ended"));
        let lost = Error::init_peer(2, "did not pass its descriptors on");
        let told = first.give_up(lost);
        assert_eq!(told.site().map(|site| site.peer), Some(1), "{told}");
        // A failure of this rank's own stays what it is.
        let own = second.give_up(Error::Init { why: "no memory".to_owned() });
        assert!(own.to_string().contains("no memory"), "{own}");
    }

    #[test]
    fn ranks_hear_at_once_that_who_made_the_id_has_ended_and_in_time_that_rank_0_does_not_come() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let id = UniqueId::new(listener.local_addr().unwrap()).unwrap();
        drop(listener);
        let cancel = Cancel::default();
        let begun = Instant::now();
        let ended = Meeting { reused: false, ..meeting(&id, 1, 2, &cancel) };
        let text = Session::open(&ended).err().unwrap().to_string();
        assert!(text.contains("nobody holds the rendezvous") && text.ends_with(AGAIN), "{text}");
        assert!(begun.elapsed() < Duration::from_secs(30));
        let limit = Duration::from_millis(100);
        let fixed = UniqueId { comm: FIXED, ..id };
        let late = Meeting { limit, ..meeting(&fixed, 1, 2, &cancel) };
        let text = Session::open(&late).err().unwrap().to_string();
        let named = "rank 0 did not answer at the rendezvous within 0.1 s (connecting to 127.";
        assert!(text.contains(named) && text.ends_with(LATER), "{text}");
    }

    #[test]
    fn who_has_another_secret_is_told_so_at_once() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let id = UniqueId::new(listener.local_addr().unwrap()).unwrap();
        rendezvous::start(listener, id.clone(), Vec::new()).unwrap();
        let other = UniqueId { secret: [9; SECRET_BYTES], ..id };
        let cancel = Cancel::default();
        let refused = Session::open(&meeting(&other, 1, 2, &cancel)).err().unwrap();
        assert!(matches!(refused, Error::Secret { .. }), "{refused}");
    }

    #[test]
    fn an_open_port_needs_a_secret_or_a_word_that_it_may_be_insecure() {
        let local = config(&[("NCCL_COMM_ID", "127.0.0.1:4000")]);
        let [first, second] = [(), ()].map(|()| id_from_environment(&local).unwrap());
        assert!(first.secret != [0; SECRET_BYTES] && first.secret == second.secret);
        let open = config(&[("NCCL_COMM_ID", "192.0.2.1:4000")]);
        let text = id_from_environment(&open).unwrap_err().to_string();
        assert!(text.contains("OXCCL_SECRET_FILE"), "{text}");
        let open = config(&[("NCCL_COMM_ID", "192.0.2.1:4000"), ("OXCCL_INSECURE", "1")]);
        assert!(id_from_environment(&open).is_ok());
        let bad = config(&[("NCCL_COMM_ID", "nonsense")]);
        assert!(id_from_environment(&bad).is_err());
    }
}
