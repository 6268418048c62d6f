//! The connector: one thread per process that connects ranks of different hosts at the first use
//! of the edge between them.
//!
//! In a large communicator a rank has control connections with a few others only, over which the
//! deaths and failures of all spread, and no edges over the network. Who wants an edge to a peer
//! makes a control connection with it, if there is none, and both then make the data connections.
//! If both begin at the same time, both control connections stay: each rank tells its notices over
//! the one that it knew first, and listens to both.

use super::{Rank, VERDICT, broken, monitor, wake_pair};
use crate::bootstrap::auth::{Ends, Role};
use crate::bootstrap::dial::Dial;
use crate::bootstrap::door::Door;
use crate::bootstrap::wire::wait_for;
use crate::error::{Error, Result};
use crate::link::Lanes;
use crate::link::control::Control;
use crate::link::message::{Identity, Joining, Unconnected};
use crate::link::notice::Notice;
use crate::log::{self, Level, Subsystem};
use oxccl_net::Net;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant};

/// The longest pause between two looks at connections that show nothing by descriptors.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// The longest time that the end of a communicator waits for the network's own calls: an abort
/// takes a second at most with all that it does besides.
const CLOSING: Duration = Duration::from_millis(800);
/// The time for which no connections are taken after a shortage of descriptors.
const SHUT: Duration = Duration::from_secs(1);
/// A longer time between two looks is one in which this process did not run.
const GAP: Duration = Duration::from_secs(1);
/// The cause of the loss of a rank whose socket is closed: it listened when the communicator was
/// made.
const GONE: &str = "nobody listens at its address any more: its process ended, or it has destroyed \
                    its communicator, without this call";
/// The longest pause while nothing is under way.
const IDLE: Duration = Duration::from_millis(250);

/// The way to the ranks of other hosts: their addresses, the network, and this rank's listener.
pub struct Route {
    /// The identity of this rank.
    pub identity: Identity,
    /// The network, and this rank's device.
    pub net: (Arc<dyn Net>, usize),
    /// The number of lanes of an edge, and the bytes of their slots.
    pub lanes: (usize, usize),
    /// The addresses where the ranks take control connections, by rank.
    pub addresses: Vec<SocketAddr>,
    /// The listener for the control connections of the peers.
    pub door: Door,
    /// The time in which two ranks have to be connected: each serves the other on a thread of its
    /// own, whatever it does itself.
    pub limit: Duration,
}

/// The work that others give the connector: edges that are asked for, and notices about
/// connections.
#[derive(Default)]
struct Inbox {
    asked: Vec<u32>,
    notices: Vec<(u32, Notice)>,
}

/// The connections of a communicator that are made at first use.
pub struct Connector {
    rank: Weak<Rank>,
    inbox: Arc<Mutex<Inbox>>,
    /// Set when the communicator ends: the thread leaves `open` alone.
    closing: AtomicBool,
    /// `None` once nothing is connected any more.
    open: Mutex<Option<Open>>,
}

/// The way to the peers, and connections in the making.
struct Open {
    route: Route,
    /// The edges that have not been handed over.
    edges: BTreeMap<u32, Arc<Unconnected>>,
    peers: BTreeMap<u32, Begun>,
    /// The time before which no connections are taken, after a shortage.
    shut_until: Option<Instant>,
    looked: Instant,
}

/// A peer that is being connected.
struct Begun {
    since: Instant,
    dial: Option<Dial>,
    joining: Option<Joining>,
    /// True if the edge has been handed over.
    made: bool,
    /// The reason why the peer cannot be connected, and the time at which it was found.
    broken: Option<(Instant, Fault)>,
}

/// The reason why a connection cannot be made.
enum Fault {
    Lost(u32, String),
    Own(Error),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Connector {
    /// Makes the edges to `peers`, and connects each at its first use. Ends with the rank, or its
    /// failure.
    pub fn start(
        rank: &Arc<Rank>,
        route: Route,
        peers: &[u32],
    ) -> Result<Vec<(u32, Arc<Unconnected>)>> {
        thread()?;
        let inbox = Arc::<Mutex<Inbox>>::default();
        let edge = |&peer: &u32| {
            let inbox = inbox.clone();
            let ask = move || {
                lock(&inbox).asked.push(peer);
                wake();
            };
            (peer, Arc::new(Unconnected::new(ask)))
        };
        let edges: BTreeMap<_, _> = peers.iter().map(edge).collect();
        let all = edges.iter().map(|(peer, edge)| (*peer, edge.clone())).collect();
        let (peers, shut_until, looked) = (BTreeMap::new(), None, Instant::now());
        let open = Mutex::new(Some(Open { route, edges, peers, shut_until, looked }));
        let (rank_of, closing) = (Arc::downgrade(rank), AtomicBool::new(false));
        rank.set_connector(Arc::new(Self { rank: rank_of, inbox, closing, open }));
        Ok(all)
    }

    /// Begins to serve the peers.
    pub fn serve(self: &Arc<Self>) -> Result<()> {
        lock(&thread()?.connectors).push(Arc::downgrade(self));
        wake();
        Ok(())
    }

    /// Ends all connections in the making. A call of the network that does not return holds this up
    /// for a second at most; they end after it then.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let start = Instant::now();
        while start.elapsed() < CLOSING {
            wake();
            match self.open.try_lock() {
                Ok(mut open) => return drop(open.take()),
                Err(TryLockError::Poisoned(open)) => return drop(open.into_inner().take()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }

    /// Takes a peer's notice about connections.
    pub(super) fn hear(&self, peer: u32, notice: Notice) {
        if self.closing.load(Ordering::Acquire) {
            return;
        }
        lock(&self.inbox).notices.push((peer, notice));
        wake();
    }

    /// Returns the connections, unless the communicator ends.
    fn open(&self) -> Option<MutexGuard<'_, Option<Open>>> {
        (!self.closing.load(Ordering::Acquire)).then(|| lock(&self.open))
    }

    /// Returns whether something is asked for, heard, or under way, or all has ended.
    fn has_work(&self) -> bool {
        let inbox = lock(&self.inbox);
        let asked = !inbox.asked.is_empty() || !inbox.notices.is_empty();
        drop(inbox);
        let ended = || self.rank.upgrade().is_none_or(|rank| rank.failure().is_some());
        let under_way =
            |open: &Open| !open.peers.is_empty() || open.shut_until.is_some() || ended();
        asked || self.open().is_some_and(|open| open.as_ref().is_some_and(under_way))
    }

    /// Moves all connections on. Never blocks, unless the network's own calls do.
    fn progress(&self, now: Instant) {
        let Some((rank, mut guard)) = self.rank.upgrade().zip(self.open()) else { return };
        if rank.failure().is_some() {
            *guard = None;
        }
        let Some(open) = guard.as_mut() else { return };
        let inbox = std::mem::take(&mut *lock(&self.inbox));
        let outcome = open.advance(&rank, inbox, now);
        if self.closing.load(Ordering::Acquire) {
            *guard = None;
        }
        drop(guard);
        match outcome {
            Ok(()) => {}
            Err(Fault::Lost(peer, why)) => rank.lose(peer, why),
            Err(Fault::Own(error)) => rank.fail(error),
        }
    }

    /// Moves all connections on; a panic is a failure of the rank.
    fn progress_or_fail(&self) {
        let moved = catch_unwind(AssertUnwindSafe(|| self.progress(Instant::now())));
        if let (Err(panic), Some(rank)) = (moved, self.rank.upgrade()) {
            rank.fail(Error::panicked(&*panic));
        }
    }
}

impl Open {
    fn advance(
        &mut self,
        rank: &Arc<Rank>,
        Inbox { asked, notices }: Inbox,
        now: Instant,
    ) -> std::result::Result<(), Fault> {
        self.skip_gap(now);
        for peer in asked {
            self.begin(peer, now);
        }
        self.admit(rank, now)?;
        for (peer, notice) in notices {
            if matches!(notice, Notice::Invitation(_) | Notice::Listen) {
                self.begin(peer, now);
            }
            // Answers to connections that are complete are of no concern.
            if let Some(begun) = self.peers.get_mut(&peer) {
                let heard = self.route.join(rank, peer, begun);
                let joining = begun.joining.as_mut();
                let heard = heard.and_then(|()| joining.map_or(Ok(()), |j| j.hear(&notice)));
                begun.note(peer, heard, now);
            }
        }
        for (peer, begun) in &mut self.peers {
            begun.begin_again_without_control(rank, *peer);
            if begun.broken.is_none() {
                let moved = self.route.connect(rank, *peer, begun, now);
                begun.note(*peer, moved, now);
            }
            if begun.joining.as_ref().is_some_and(Joining::is_complete) {
                begun.made = true;
                let made = begun.joining.take().and_then(Joining::finish).map(Lanes::new);
                if let Some((edge, made)) = self.edges.remove(peer).zip(made) {
                    edge.complete(made);
                }
            }
            begun.judge(rank, *peer, self.route.limit, now)?;
        }
        let limit = self.route.limit;
        self.peers
            .retain(|_, begun| !begun.made || (begun.dial.is_some() && !begun.late(limit, now)));
        Ok(())
    }

    /// Begins to connect a peer, unless that is done.
    fn begin(&mut self, peer: u32, now: Instant) {
        if self.edges.contains_key(&peer) {
            self.peers.entry(peer).or_insert_with(|| Begun::new(now));
        }
    }

    /// Takes the control connections of peers.
    fn admit(&mut self, rank: &Arc<Rank>, now: Instant) -> std::result::Result<(), Fault> {
        if self.shut_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        self.shut_until = None;
        let members = self.route.door.progress(now).unwrap_or_else(|error| {
            // Anyone may connect when there are no descriptors: the peers come again.
            log::line(Level::Warn, Subsystem::Net, &error.to_string());
            self.shut_until = now.checked_add(SHUT);
            Vec::new()
        });
        for member in members {
            let peer = member.peer_rank();
            take_control(rank, peer, member.into_socket().into()).map_err(Fault::Own)?;
        }
        Ok(())
    }

    /// Does not count a time in which this process was stopped.
    fn skip_gap(&mut self, now: Instant) {
        let gap = now.saturating_duration_since(self.looked);
        if gap > GAP {
            self.peers.values_mut().for_each(|begun| begun.since += gap);
        }
        self.looked = now;
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>, now: Instant) {
        if self.shut_until.is_none() {
            self.route.door.poll_fds(fds);
        }
        for begun in self.peers.values() {
            fds.extend(begun.dial.as_ref().and_then(Dial::poll_fd));
            begun.joining.iter().for_each(|joining| joining.poll_fds(fds, now));
        }
    }
}

/// Takes a new control connection with a peer.
fn take_control(rank: &Arc<Rank>, peer: u32, socket: OwnedFd) -> Result<()> {
    let control = Arc::new(Control::new(socket));
    rank.add_control(peer, control.clone());
    monitor::watch(rank, peer, monitor::Sign::Control(control))
}

impl Route {
    /// Begins to make the data connections with a peer, once there is a control connection.
    fn join(&self, rank: &Rank, peer: u32, begun: &mut Begun) -> Result<()> {
        if begun.joining.is_none()
            && !begun.made
            && let Some(control) = rank.control(peer)
        {
            let net = self.net.clone();
            begun.joining = Some(Joining::new(self.identity, peer, net, control, self.lanes)?);
        }
        Ok(())
    }

    /// Moves the connections with a peer on.
    fn connect(&self, rank: &Arc<Rank>, peer: u32, begun: &mut Begun, now: Instant) -> Result<()> {
        self.join(rank, peer, begun)?;
        if begun.dial.is_none() && begun.joining.is_none() && !begun.made {
            let Identity { secret, comm, rank: own, .. } = self.identity;
            let at = self.addresses[peer as usize];
            let ends = Ends { role: Role::Control, from: own, to: peer, comm };
            begun.dial = Some(Dial::new(at.into(), at.to_string(), secret, ends));
        }
        // A dial goes on when the peer's was faster: the peer may have taken this one, too.
        let dialled = begun.dial.as_mut().map_or(Ok(None), |dial| dial.progress(now));
        let needless = begun.joining.is_some() || begun.made;
        match dialled {
            Ok(None) => {}
            Ok(Some(open)) => {
                begun.dial = None;
                take_control(rank, peer, open.into_socket().into())?;
                self.join(rank, peer, begun)?;
            }
            Err(_) if needless => begun.dial = None,
            Err(error) => return Err(error),
        }
        let joined = begun.joining.as_mut().map_or(Ok(()), |joining| joining.progress(now));
        joined.map_err(broken(peer))
    }
}

impl Begun {
    fn new(since: Instant) -> Self {
        Self { since, dial: None, joining: None, made: false, broken: None }
    }

    /// Forgets the data connections if the control connection with the peer ended before the peer
    /// used it: both ranks begin again.
    fn begin_again_without_control(&mut self, rank: &Rank, peer: u32) {
        let lost = |joining: &mut Joining| !rank.has_control(peer, joining.control());
        if self.joining.take_if(lost).is_some() {
            self.broken = None;
        }
    }

    fn late(&self, limit: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= limit
    }

    /// Notes why the peer cannot be connected, if that is so.
    fn note(&mut self, peer: u32, moved: Result<()>, now: Instant) {
        if let (Err(error), None) = (moved, &self.broken) {
            let fault = match error {
                Error::InitPeer { why, .. } | Error::Remote { why, .. } => Fault::Lost(peer, why),
                error => Fault::Own(error),
            };
            self.broken = Some((now, fault));
        }
    }

    /// Returns the fault that ends the rank. The peer may have ended because of a failure, of which
    /// the monitor hears within [`VERDICT`].
    fn judge(
        &mut self,
        rank: &Rank,
        peer: u32,
        limit: Duration,
        now: Instant,
    ) -> std::result::Result<(), Fault> {
        let due =
            |(since, _): &mut (Instant, Fault)| now.saturating_duration_since(*since) >= VERDICT;
        if let Some((_, fault)) = self.broken.take_if(due) {
            return Err(fault);
        }
        // Operations that wait for a peer that has left find that out.
        if self.made || self.broken.is_some() || rank.has_left(peer) {
            return Ok(());
        }
        let refused = self.dial.as_ref().is_some_and(|dial| dial.refusals() > 1);
        if refused && self.joining.is_none() && self.late(2 * VERDICT, now) {
            return Err(Fault::Lost(peer, GONE.to_owned()));
        }
        if !self.late(limit, now) {
            return Ok(());
        }
        let why = self.joining.as_ref().map(Joining::why);
        let why = why.or_else(|| self.dial.as_ref().map(Dial::why)).unwrap_or_default();
        let secs = limit.as_secs();
        let why = format!("no connection with it could be made in {secs} s: {why}");
        Err(Fault::Lost(peer, why))
    }
}

/// The thread, and the communicators that it serves.
struct Thread {
    connectors: Mutex<Vec<Weak<Connector>>>,
    wake: UnixStream,
    /// The number of communicators with connections under way.
    busy: AtomicUsize,
}

static THREAD: OnceLock<Result<Arc<Thread>>> = OnceLock::new();

fn thread() -> Result<&'static Arc<Thread>> {
    let made = THREAD.get_or_init(|| {
        let failed = |e| Error::system("starting the connector", e, "raise ulimit -n and -u");
        let (wake, woken) = wake_pair().map_err(failed)?;
        let busy = AtomicUsize::new(0);
        let thread = Arc::new(Thread { connectors: Mutex::default(), wake, busy });
        let own = thread.clone();
        std::thread::Builder::new()
            .name("oxccl-connector".to_owned())
            .spawn(move || run(&own, &woken))
            .map_err(failed)?;
        Ok(thread)
    });
    made.as_ref().map_err(Clone::clone)
}

fn wake() {
    if let Some(Ok(thread)) = THREAD.get() {
        let _ = (&thread.wake).write(&[1]);
    }
}

/// Returns whether connections are under way, for which notices should be read soon.
pub(super) fn is_busy() -> bool {
    matches!(THREAD.get(), Some(Ok(thread)) if thread.busy.load(Ordering::Relaxed) > 0)
}

fn run(thread: &Thread, woken: &UnixStream) {
    let mut shown = Vec::new();
    loop {
        let looked = catch_unwind(AssertUnwindSafe(|| look(thread, woken, &shown)));
        shown = looked.unwrap_or_else(|_| {
            let text = "the connector panicked and goes on; please report it";
            log::line(Level::Warn, Subsystem::Net, text);
            Vec::new()
        });
    }
}

/// Moves on those that have something to do, or whose descriptors have shown something, and waits.
/// Returns those whose descriptors then show something.
fn look(thread: &Thread, mut woken: &UnixStream, shown: &[Arc<Connector>]) -> Vec<Arc<Connector>> {
    let mut connectors = Vec::new();
    lock(&thread.connectors).retain(|connector| {
        connectors.extend(connector.upgrade());
        connector.strong_count() > 0
    });
    let due = |connector: &&Arc<Connector>| {
        connector.has_work() || shown.iter().any(|other| Arc::ptr_eq(other, connector))
    };
    connectors.iter().filter(due).for_each(|connector| connector.progress_or_fail());
    let mut shown = Vec::new();
    let all: Vec<_> = connectors.iter().map(|connector| connector.open()).collect();
    let open = || all.iter().map(|guard| guard.as_ref().and_then(|open| open.as_ref()));
    let busy = open().flatten().filter(|open| !open.peers.is_empty()).count();
    thread.busy.store(busy, Ordering::Relaxed);
    let (mut fds, now) = (vec![PollFd::new(woken, PollFlags::IN)], Instant::now());
    let mut ends = Vec::new();
    for open in open() {
        open.iter().for_each(|open| open.poll_fds(&mut fds, now));
        ends.push(fds.len());
    }
    wait_for(&mut fds, if busy > 0 { LOOK_AGAIN } else { IDLE });
    let mut first = 1;
    for (connector, end) in connectors.iter().zip(ends) {
        if fds[first..end].iter().any(|fd| !fd.revents().is_empty()) {
            shown.push(connector.clone());
        }
        first = end;
    }
    drop(fds);
    drop(all);
    let _ = woken.read(&mut [0; 64]);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::door::Admission;
    use crate::link::message::test_net::TestNet;
    use std::net::TcpListener;

    /// Two ranks of different hosts, and the edge of each to the other, of so many lanes.
    fn pair(net: &Arc<TestNet>, lanes: usize) -> [(Arc<Rank>, Arc<Unconnected>); 2] {
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
        let mut number = 0..2;
        listeners.map(|listener| {
            let own = number.next().unwrap();
            let identity = Identity { comm: 4, secret: [9; 32], rank: own, nranks: 2 };
            let ends = Ends { role: Role::Control, from: 0, to: own, comm: identity.comm };
            let admission = Admission { secret: identity.secret, ends, nranks: 2 };
            let door = Door::new(listener.into(), admission).unwrap();
            let net: Arc<dyn Net> = net.clone();
            let (addresses, limit) = (addresses.clone(), Duration::from_secs(60));
            let (net, lanes) = ((net, 0), (lanes, 64));
            let route = Route { identity, net, lanes, addresses, door, limit };
            let rank = Arc::new(Rank::new(own, vec![None; 2], None, vec![0; 2]));
            rank.set_controls(vec![None, None]);
            let edges = Connector::start(&rank, route, &[1 - own]).unwrap();
            rank.connector().unwrap().serve().unwrap();
            (rank, edges[0].1.clone())
        })
    }

    fn until(mut so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !so() {
            assert!(Instant::now() < deadline, "it does not come about");
            std::thread::yield_now();
        }
    }

    fn is_idle(rank: &Rank) -> bool {
        let connector = rank.connector().unwrap();
        // While the thread waits, it holds what it looks at.
        wake();
        lock(&connector.inbox).asked.is_empty()
            && lock(&connector.open).as_ref().is_some_and(|open| open.peers.is_empty())
    }

    #[test]
    fn two_ranks_are_connected_once_whoever_asks_and_however_often() {
        // Of two ranks that share a connection the higher one listens, also where only the lower
        // one asks.
        for (duplex, lanes, listeners) in [(true, 1, 1), (false, 1, 2), (true, 3, 3), (false, 2, 4)]
        {
            for asking in [[true, false], [false, true], [true, true]] {
                let net = TestNet::new(duplex);
                are_connected_once(pair(&net, lanes), asking);
                assert_eq!(net.listeners(), listeners, "{asking:?}");
            }
        }
    }

    fn are_connected_once(ends: [(Arc<Rank>, Arc<Unconnected>); 2], asking: [bool; 2]) {
        for ((_, edge), _) in ends.iter().zip(asking).filter(|(_, asks)| *asks) {
            edge.ask();
        }
        for (rank, edge) in &ends {
            until(|| edge.take().is_some() || rank.failure().is_some());
            // As an operation that did not see the edge come.
            lock(&rank.connector().unwrap().inbox).asked.push(1 - rank.number);
            wake();
        }
        for (rank, edge) in &ends {
            until(|| is_idle(rank));
            assert!(edge.take().is_none() && rank.failure().is_none(), "{asking:?}");
            let connector = rank.connector().unwrap();
            wake();
            assert!(lock(&connector.open).as_ref().is_some_and(|open| open.edges.is_empty()));
        }
        ends.iter().for_each(|(rank, _)| rank.leave(|_| (vec![0; 2], ())));
    }

    #[test]
    fn a_rank_that_has_ended_before_it_was_connected_is_named_long_before_the_limit() {
        let [(rank, edge), (gone, _)] = pair(&TestNet::new(true), 1);
        gone.leave(|_| (vec![0; 2], ()));
        edge.ask();
        until(|| rank.failure().is_some());
        let error = rank.failure().unwrap();
        assert_eq!(error.site().map(|site| site.peer), Some(1));
        assert!(error.to_string().contains("nobody listens at its address any more"), "{error}");
        rank.leave(|_| (vec![0; 2], ()));
    }

    /// A peer gives its connection up before it says anything, and comes again.
    #[test]
    fn the_end_of_a_connection_that_the_peer_did_not_use_is_no_death() {
        let [(rank, edge), (peer, _)] = pair(&TestNet::new(true), 1);
        let connect = || {
            let (near, far) = UnixStream::pair().unwrap();
            take_control(&rank, 1, near.into()).unwrap();
            assert!(rank.control(1).is_some());
            far
        };
        let far = connect();
        drop(far);
        until(|| rank.control(1).is_none());
        let far = connect();
        edge.ask();
        // The rank asks the peer to listen: it has begun to make the data connections.
        until(|| {
            let mut first = [0];
            (&far).read_exact(&mut first).unwrap();
            first != crate::link::notice::PULSE
        });
        drop(far);
        until(|| edge.take().is_some() || rank.failure().is_some());
        assert!(rank.failure().is_none());
        let far = connect();
        (&far).write_all(crate::link::notice::PULSE).unwrap();
        drop(far);
        until(|| rank.failure().is_some());
        [rank, peer].iter().for_each(|rank| rank.leave(|_| (vec![0; 2], ())));
    }
}
