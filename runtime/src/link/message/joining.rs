//! The making of the connections between two ranks of different hosts.
//!
//! Each rank listens and tells the peer its handle over the control connection, and connects to the
//! peer's; where connections have both directions, only the higher rank listens, and the lower one
//! asks it to, as it may not have begun. The first message of a connection proves with the
//! communicator's secret who sends; the receiver says over the control connection which attempt has
//! proved itself. Transports do not authenticate: a listener accepts until a member has come, and
//! strangers are refused.
//!
//! Elsewhere, as with plugins, the ranks also tell each other that they have begun to connect and
//! that they have accepted. `accept` of a plugin may block until the peer connects, and its first
//! `isend` until the peer has accepted; all of a rank's calls come from one thread. So a rank only
//! makes a call for which the peer has done its part, and accepts another connection only if the
//! one before is not the peer's: it proves nothing, fails, or says nothing for long.

use super::{Incoming, MessageEdge, Outgoing};
use crate::bootstrap::auth::{Ends, PROOF_BYTES, Role, is_proof, proof};
use crate::bootstrap::id::{SECRET_BYTES, random};
use crate::error::{Error, Result};
use crate::link::control::Control;
use crate::link::notice::{self, Invitation, NONCE_BYTES, Notice};
use crate::log::{self, Level, Subsystem};
use oxccl_net::{Connecting, Handle, Listener, Net, PollFd};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections that have not proved themselves and are held at a time. More wait in the system's
/// queue.
const MAX_UNPROVEN: usize = 16;
/// The time after which a connection without proof makes room for one that waits. A member proves
/// itself within a round trip, and comes again if it was too slow.
const UNPROVEN: Duration = Duration::from_millis(50);
/// The time after which a connection without proof is taken for a stranger's where `accept` may
/// block until somebody comes. A member proves itself within a round trip, and a rank that says
/// nothing for as long is dead once there is a communicator.
const SILENT: Duration = Duration::from_secs(5);
/// The longest time between two looks that counts for these: what has come to a rank that was held
/// up for longer may not have been seen yet.
const LOOK: Duration = Duration::from_secs(1);
/// The time for which the peer may still come after a connection has failed: that may have been
/// its own, or a stranger's that went away.
const FAILED: Duration = Duration::from_secs(1);
/// The time after which a member whose proof was not answered connects again; it doubles.
const AGAIN: Duration = Duration::from_secs(1);

/// Bytes of the first message of a connection.
const FIRST_BYTES: usize = 4 + PROOF_BYTES;

/// The identity of a rank that connects to its peers, and the secret that the ranks share.
#[derive(Clone, Copy)]
pub struct Identity {
    /// The communicator's number.
    pub comm: u64,
    /// The communicator's secret.
    pub secret: [u8; SECRET_BYTES],
    /// The number of this rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
}

impl Identity {
    /// Returns the first message of an attempt of rank `from` to connect to rank `to`: its
    /// number and the proof.
    fn first_message(&self, (from, to): (u32, u32), nonce: &Nonce, attempt: u32) -> Vec<u8> {
        let ends = Ends { role: Role::Data, from, to, comm: self.comm };
        let salt = [&nonce[..], &attempt.to_le_bytes()].concat();
        [&attempt.to_le_bytes()[..], &proof(&self.secret, ends, &salt)].concat()
    }

    /// Returns the attempt whose first message this is, if it is one.
    fn attempt(&self, (from, to): (u32, u32), nonce: &Nonce, bytes: &[u8]) -> Option<u32> {
        let (attempt, mac) = bytes.split_first_chunk::<4>()?;
        let ends = Ends { role: Role::Data, from, to, comm: self.comm };
        let salt = [&nonce[..], attempt].concat();
        is_proof(&self.secret, ends, &salt, mac).then(|| u32::from_le_bytes(*attempt))
    }
}

type Nonce = [u8; NONCE_BYTES];

/// The side that receives: it accepts until a connection proves itself.
struct Accepting {
    /// True once the peer may have come.
    expected: bool,
    /// The listener, until a connection has proved itself.
    listener: Option<Box<dyn Listener>>,
    nonce: Nonce,
    /// Connections without proof, the oldest first.
    unproven: VecDeque<(Instant, Incoming)>,
    /// The latest connection that has failed where it may be the peer's, and why. It stays until
    /// the peers have heard that.
    failed: Option<(Instant, Error, Incoming)>,
}

/// The side that sends.
#[derive(Default)]
struct Offering {
    /// The peer's handle and nonce, once it has told them.
    invitation: Option<Invitation>,
    connecting: Option<Box<dyn Connecting>>,
    /// A connection that is made, until the peer has accepted it.
    made: Option<Outgoing>,
    /// True once the peer has accepted, or where that is not awaited.
    accepted: bool,
    /// The ends of connections whose proof has not been answered, by attempt.
    attempts: Vec<Outgoing>,
    /// The time of the next attempt.
    again: Option<(Instant, Duration)>,
}

/// The connections with a peer in the making: one for each lane, or one in each direction.
pub struct Joining {
    with: Peer,
    lanes: Vec<Lane>,
    /// Why the control connection has ended, if it has.
    gone: Option<String>,
    /// The time of the latest look.
    looked: Option<Instant>,
}

/// The peer, and what leads to it.
struct Peer {
    identity: Identity,
    number: u32,
    net: Arc<dyn Net>,
    device: usize,
    control: Arc<Control>,
    slot_bytes: usize,
}

/// The connections of a lane.
struct Lane {
    /// `None` where this rank only connects.
    accepting: Option<Accepting>,
    /// `None` where this rank only listens.
    offering: Option<Offering>,
    /// The ends of what has been proven.
    incoming: Option<Incoming>,
    outgoing: Option<Outgoing>,
}

/// The attempts of a lane have numbers of their own: the lane stands above these bits.
const LANE_AT: u32 = 24;

impl Joining {
    /// Listens for the peer, and tells it where, over the control connection with it: both ranks
    /// tell of as many lanes, in their order.
    pub fn new(
        identity: Identity,
        peer: u32,
        (net, device): (Arc<dyn Net>, usize),
        control: Arc<Control>,
        (lanes, slot_bytes): (usize, usize),
    ) -> Result<Self> {
        let with = Peer { identity, number: peer, net, device, control, slot_bytes };
        if !with.listens() {
            with.control.tell(notice::LISTEN);
        }
        let lanes = (0..lanes).map(|_| Lane::new(&with)).collect::<Result<_>>()?;
        Ok(Self { with, lanes, gone: None, looked: None })
    }

    /// Moves all connections on, and what is to be sent over the control connection. Never blocks,
    /// unless the network's own calls do.
    pub fn progress(&mut self, now: Instant) -> Result<()> {
        self.with.control.flush();
        if self.is_complete() {
            return Ok(());
        }
        let since =
            self.looked.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        (0u32..).zip(&mut self.lanes).try_for_each(|(number, lane)| {
            lane.put_off(since.saturating_sub(LOOK));
            lane.prove(&self.with, now)?;
            lane.accept(&self.with, number, now)?;
            lane.connect(&self.with, number, now)
        })
    }

    /// Reads the control connection. Notices that come once all connections have been proven are
    /// left for the monitor.
    pub fn receive(&mut self) -> Result<()> {
        if self.is_complete() {
            return Ok(());
        }
        let (notices, ended) = self.with.control.receive();
        self.gone = self.gone.take().or(ended);
        notices.iter().try_for_each(|notice| self.hear(notice))
    }

    /// Acts on a notice of the peer; others than those about connections are of no concern here.
    pub fn hear(&mut self, notice: &Notice) -> Result<()> {
        match notice {
            Notice::Invitation(invitation) => {
                let mut offering = self.lanes.iter_mut().flat_map(|lane| &mut lane.offering);
                let Some(first) = offering.find(|offering| offering.invitation.is_none()) else {
                    let why = "tells of more lanes than this rank";
                    return Err(Error::init_peer(self.with.number, why));
                };
                first.invitation = Some(invitation.clone());
            }
            Notice::Begun(number) => {
                if let Some(accepting) = self.lane(*number)?.accepting.as_mut() {
                    accepting.expected = true;
                }
            }
            Notice::Accepted(number) => {
                if let Some(offering) = self.lane(*number)?.offering.as_mut() {
                    offering.accepted = true;
                }
            }
            Notice::Proven(attempt) => {
                let lane = self.lanes.get_mut((attempt >> LANE_AT) as usize);
                let index = (attempt & ((1 << LANE_AT) - 1)) as usize;
                let made = |lane: &&mut Lane| {
                    lane.offering.as_ref().is_some_and(|o| index < o.attempts.len())
                };
                let Some(lane) = lane.filter(made) else {
                    let why = format!("answers attempt {attempt}, which was not made");
                    return Err(Error::init_peer(self.with.number, why));
                };
                lane.is_proven(&self.with, index);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the lane of this number, of which the peer tells.
    fn lane(&mut self, number: u32) -> Result<&mut Lane> {
        let none = || Error::init_peer(self.with.number, format!("tells of a lane {number}"));
        self.lanes.get_mut(number as usize).ok_or_else(none)
    }

    /// Returns whether all connections have been proven.
    pub fn is_complete(&self) -> bool {
        self.lanes.iter().all(Lane::is_complete)
    }

    /// Returns the edge of each lane, if all connections have been proven.
    pub fn finish(self) -> Option<Vec<MessageEdge>> {
        let edge = |lane: Lane| Some(MessageEdge::new(lane.outgoing?, lane.incoming?));
        self.lanes.into_iter().map(edge).collect()
    }

    /// Returns the control connection over which this rank tells the peer.
    pub fn control(&self) -> &Arc<Control> {
        &self.with.control
    }

    /// Returns the descriptor that shows notices, as long as some are awaited.
    pub fn control_fd(&self) -> Option<PollFd<'_>> {
        (!self.is_complete() && self.gone.is_none()).then(|| self.with.control.poll_fd())
    }

    /// Appends the descriptors that show progress of the data connections. Where a transport has
    /// none, or a proof is awaited, one has to look again soon.
    pub fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>, now: Instant) {
        if self.is_complete() || self.gone.is_some() {
            return;
        }
        self.lanes.iter().for_each(|lane| lane.poll_fds(&self.with, fds, now));
    }

    /// Returns why the connections are not complete.
    pub fn why(&self) -> String {
        let lacking = self.lanes.iter().find(|lane| !lane.is_complete());
        let why = lacking.map_or_else(String::new, |lane| lane.why(self.with.net.name()));
        self.gone.iter().fold(why, |why, gone| format!("{why}; {gone}"))
    }
}

impl Peer {
    /// Returns whether this rank listens for the peer.
    fn listens(&self) -> bool {
        !self.net.is_duplex() || self.identity.rank > self.number
    }

    /// Returns whether this rank connects to the peer.
    fn connects(&self) -> bool {
        !self.net.is_duplex() || self.identity.rank < self.number
    }
}

impl Lane {
    fn new(with: &Peer) -> Result<Self> {
        let accepting = with.listens().then(|| Accepting::new(with)).transpose()?;
        let accepted = with.net.is_open_to_strangers();
        let offering = with.connects().then(|| Offering { accepted, ..Offering::default() });
        Ok(Self { accepting, offering, incoming: None, outgoing: None })
    }

    fn is_complete(&self) -> bool {
        self.incoming.is_some() && self.outgoing.is_some()
    }

    /// Takes the attempt that the peer has found to be this rank's.
    fn is_proven(&mut self, with: &Peer, attempt: usize) {
        let Some(Offering { attempts, connecting, .. }) = &mut self.offering else { return };
        let mut outgoing = attempts.swap_remove(attempt);
        attempts.clear();
        *connecting = None;
        if self.accepting.is_none()
            && let Some(receiver) = outgoing.reverse()
        {
            self.incoming = Some(Incoming::new(receiver, with.number, with.slot_bytes));
        }
        self.outgoing = Some(outgoing);
    }

    /// Takes a connection of the peer.
    fn take(&mut self, with: &Peer, mut incoming: Incoming) {
        if self.offering.is_none()
            && let Some(sender) = incoming.reverse()
        {
            self.outgoing = Some(Outgoing::new(sender, with.identity.rank, with.slot_bytes));
        }
        self.incoming = Some(incoming);
    }

    /// Moves the times on from which connections without proof are counted.
    fn put_off(&mut self, time: Duration) {
        let Some(accepting) = &mut self.accepting else { return };
        let unproven = accepting.unproven.iter_mut().map(|(since, _)| since);
        let failed = accepting.failed.iter_mut().map(|(since, ..)| since);
        unproven.chain(failed).for_each(|since| *since += time);
    }

    /// Takes connections that have been made.
    fn accept(&mut self, with: &Peer, number: u32, now: Instant) -> Result<()> {
        self.accepting.as_mut().map_or(Ok(()), |accepting| accepting.accept(with, number, now))
    }

    /// Looks for a connection that proves itself.
    fn prove(&mut self, with: &Peer, now: Instant) -> Result<()> {
        let accepting = self.accepting.as_mut().filter(|_| self.incoming.is_none());
        let proven = accepting.map_or(Ok(None), |accepting| accepting.proven(with, now))?;
        proven.into_iter().for_each(|incoming| self.take(with, incoming));
        Ok(())
    }

    /// Connects lane `number` to the peer, once it has told where it listens.
    fn connect(&mut self, with: &Peer, number: u32, now: Instant) -> Result<()> {
        let offering = self.offering.as_mut().filter(|_| self.outgoing.is_none());
        let Some(offering) = offering else { return Ok(()) };
        offering.connect(with, number, now)?;
        offering.offer(with, number << LANE_AT)
    }

    fn poll_fds<'a>(&'a self, with: &Peer, fds: &mut Vec<PollFd<'a>>, now: Instant) {
        let accepting = self.accepting.as_ref().filter(|accepting| accepting.has_room(with, now));
        if let Some(listener) = accepting.and_then(|accepting| accepting.listener.as_ref()) {
            listener.poll_fds(fds);
        }
        let connecting = self.offering.as_ref().and_then(|offering| offering.connecting.as_ref());
        if let Some(connecting) = connecting {
            connecting.poll_fds(fds);
        }
    }

    /// Returns why the connections are not complete, over the net of this name.
    fn why(&self, net: &str) -> String {
        let offering = self.offering.as_ref().filter(|_| self.outgoing.is_none());
        match offering.map(|o| (&o.connecting, &o.invitation)) {
            Some((Some(connecting), _)) => connecting.why(),
            Some((None, None)) => format!("net {net}: it has not told where it listens"),
            Some(_) if self.offering.as_ref().is_some_and(|o| !o.accepted) => {
                format!("net {net}: it has not accepted this rank's connection")
            }
            Some(_) => format!("net {net}: it does not see this rank's connection"),
            None => format!("net {net}: it has not connected to this rank"),
        }
    }
}

impl Accepting {
    /// Listens for a peer, and tells it where.
    fn new(with: &Peer) -> Result<Self> {
        let (handle, listener) = with.net.listen(with.device)?;
        let nonce = random()?;
        with.control.tell(&notice::invitation(&Invitation { nonce, handle: handle.0 }));
        let (listener, expected) = (Some(listener), with.net.is_open_to_strangers());
        Ok(Self { expected, listener, nonce, unproven: VecDeque::new(), failed: None })
    }

    /// Returns whether another connection can be taken now, if need be in the place of an old one.
    fn has_room(&self, with: &Peer, now: Instant) -> bool {
        let age = |(since, _): &(Instant, Incoming)| now.saturating_duration_since(*since);
        let (oldest, newest) = (self.unproven.front().map(age), self.unproven.back().map(age));
        self.expected
            && match with.net.is_open_to_strangers() {
                true => self.unproven.len() < MAX_UNPROVEN || oldest >= Some(UNPROVEN),
                false => newest.is_none_or(|age| age >= SILENT),
            }
    }

    /// Takes connections of lane `number` that have been made.
    fn accept(&mut self, with: &Peer, number: u32, now: Instant) -> Result<()> {
        while self.has_room(with, now) {
            let Self { listener: Some(listener), unproven, failed, .. } = self else { break };
            let receiver = match listener.accept() {
                Ok(Some(receiver)) => receiver,
                Ok(None) => break,
                // The oldest one gives its descriptor back for one that may be a member's.
                Err(_) if with.net.is_open_to_strangers() && !unproven.is_empty() => {
                    unproven.pop_front();
                    continue;
                }
                // It may be the peer's that is there, or has failed: some plugins accept once.
                Err(error) if !unproven.is_empty() || failed.is_some() => {
                    refuse(&format!("no other one can come: {error}"));
                    self.expected = false;
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            if unproven.len() >= MAX_UNPROVEN {
                unproven.pop_front();
            }
            if !with.net.is_open_to_strangers() {
                with.control.tell(&notice::accepted(number));
            }
            unproven.push_back((now, Incoming::new(receiver, with.number, with.slot_bytes)));
        }
        Ok(())
    }

    /// Looks for a connection that proves itself, and returns it. Fails where the peer connects
    /// once, if a connection has failed and no other one comes.
    fn proven(&mut self, with: &Peer, now: Instant) -> Result<Option<Incoming>> {
        let ends = (with.number, with.identity.rank);
        let Self { listener, nonce, unproven, failed, .. } = self;
        let mut proven = None;
        for (since, mut incoming) in std::mem::take(unproven) {
            let first = match incoming.take_raw(FIRST_BYTES) {
                Ok(None) => {
                    unproven.push_back((since, incoming));
                    continue;
                }
                Ok(Some(first)) => first,
                Err(error) => {
                    refuse(&error.to_string());
                    if !with.net.is_open_to_strangers() {
                        *failed = Some((now, error, incoming));
                    }
                    continue;
                }
            };
            match with.identity.attempt(ends, nonce, &first) {
                Some(attempt) if proven.is_none() => {
                    with.control.tell(&notice::proven(attempt));
                    (proven, *listener) = (Some(incoming), None);
                }
                Some(_) => {}
                None => {
                    // The peer may come behind this one, too.
                    failed.iter_mut().for_each(|(since, ..)| *since = now);
                    refuse("its first message does not prove that it knows the secret");
                }
            }
        }
        let late = |since: Instant| now.saturating_duration_since(since) >= FAILED;
        match failed {
            Some((since, error, _)) if proven.is_none() && unproven.is_empty() && late(*since) => {
                Err(error.clone())
            }
            _ => Ok(proven),
        }
    }
}

impl Offering {
    /// Connects lane `number` to the peer, once it has told where it listens.
    fn connect(&mut self, with: &Peer, number: u32, now: Instant) -> Result<()> {
        let Self { invitation, connecting, made, again, .. } = self;
        let Some(Invitation { handle, .. }) = invitation else { return Ok(()) };
        let open = with.net.is_open_to_strangers();
        let due = again.is_none_or(|(at, _)| now >= at && open);
        let begins = connecting.is_none() && due;
        if begins {
            let pause = again.map_or(AGAIN, |(_, pause)| 2 * pause);
            *again = now.checked_add(pause).map(|at| (at, pause));
            let begun = with.net.connect(with.device, Handle(*handle));
            *connecting = Some(begun.map_err(|error| Error::init_peer(with.number, error))?);
        }
        if let Some(sender) = connecting.as_mut().map_or(Ok(None), |begun| begun.progress())? {
            *connecting = None;
            *made = Some(Outgoing::new(sender, with.identity.rank, with.slot_bytes));
        }
        if begins && !open {
            with.control.tell(&notice::begun(number));
        }
        Ok(())
    }

    /// Sends the proof over a connection that is made. Attempts have numbers from `first` on.
    fn offer(&mut self, with: &Peer, first: u32) -> Result<()> {
        if let Some(Invitation { nonce, .. }) = &self.invitation
            && let Some(mut outgoing) = self.made.take_if(|_| self.accepted)
        {
            let ends = (with.identity.rank, with.number);
            let number = first + self.attempts.len() as u32;
            let sent = outgoing.send_raw(&with.identity.first_message(ends, nonce, number));
            self.attempts.push(outgoing);
            sent?;
        }
        for outgoing in &mut self.attempts {
            // An attempt that fails is made again, if strangers may have taken its place.
            match outgoing.flushed() {
                Err(error) if !with.net.is_open_to_strangers() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Logs why a connection is not taken.
fn refuse(why: &str) {
    log::line(Level::Info, Subsystem::Net, &format!("a data connection was refused: {why}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::message::test_net::TestNet;
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    const LANES: usize = 2;

    fn identity(rank: u32) -> Identity {
        Identity { comm: 5, secret: [7; 32], rank, nranks: 2 }
    }

    fn pair(net: &Arc<TestNet>) -> [Joining; 2] {
        let (a, b) = UnixStream::pair().unwrap();
        let controls = [a, b].map(|end| Arc::new(Control::new(end.into())));
        [0u32, 1].map(|rank| {
            let (own, control) = (identity(rank), controls[rank as usize].clone());
            Joining::new(own, 1 - rank, (net.clone(), 0), control, (LANES, 64)).unwrap()
        })
    }

    /// Moves both on until both are complete, while time passes `speed` times as fast; `each` sees
    /// every round.
    fn complete(
        [mut a, mut b]: [Joining; 2],
        speed: u32,
        mut each: impl FnMut(&Joining),
    ) -> [Vec<MessageEdge>; 2] {
        let start = Instant::now();
        while !a.is_complete() || !b.is_complete() {
            let passed = start.elapsed();
            assert!(passed < Duration::from_secs(60), "{} / {}", a.why(), b.why());
            for joining in [&mut a, &mut b] {
                joining.receive().unwrap();
                each(joining);
                joining.progress(start + passed * speed).unwrap();
            }
        }
        [a, b].map(|joining| joining.finish().unwrap())
    }

    /// The number of each lane goes over it, in both directions.
    fn carry([mut a, mut b]: [Vec<MessageEdge>; 2]) {
        assert_eq!([a.len(), b.len()], [LANES; 2]);
        for lane in 0..LANES {
            let (a, b) = (&mut a[lane], &mut b[lane]);
            carries(&mut a.outgoing, &mut b.incoming, lane as u8);
            carries(&mut b.outgoing, &mut a.incoming, lane as u8);
        }
    }

    fn carries(from: &mut Outgoing, to: &mut Incoming, number: u8) {
        from.send_raw(&[number; 5]).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < until && from.flushed().is_ok());
            if let Some(bytes) = to.take_raw(0).unwrap() {
                return assert_eq!(bytes, [number; 5]);
            }
        }
    }

    #[test]
    fn connections_are_made_and_carry_messages_in_both_directions() {
        for net in [TestNet::new(true), TestNet::new(false), TestNet::like_plugins()] {
            carry(complete(pair(&net), 1, |_| {}));
        }
    }

    /// Strangers take all places first: some silent, some with garbage, one with the right form and
    /// another secret.
    #[test]
    fn a_member_gets_in_whatever_strangers_do() {
        strangers_come(&TestNet::new(true), 1, &[1]);
        strangers_come(&TestNet::new(false), 1, &[1, 0]);
        // One connection is accepted at a time, and silent ones are waited for.
        strangers_come(&TestNet::like_plugins(), 100, &[1, 0]);
    }

    /// Strangers come to the ranks in `listening`.
    fn strangers_come(net: &Arc<TestNet>, speed: u32, listening: &[u32]) {
        let mut strangers = Vec::new();
        let mut invited = Vec::new();
        let edges = complete(pair(net), speed, |joining| {
            let offering = joining.lanes[LANES - 1].offering.as_ref();
            let invitation = offering.and_then(|offering| offering.invitation.as_ref());
            let Some(Invitation { handle, nonce }) = invitation else { return };
            if invited.contains(&joining.with.number) {
                return;
            }
            invited.push(joining.with.number);
            let address = oxccl_net::tcp::address_in(&Handle(*handle)).unwrap();
            for round in 0..2 * MAX_UNPROVEN {
                let mut stranger = TcpStream::connect(address).unwrap();
                let other = Identity { secret: [8; 32], ..identity(0) };
                let first = other.first_message((0, 1), nonce, 0);
                let framed = [&(first.len() as u32).to_le_bytes()[..], &first].concat();
                match round % 4 {
                    0 => stranger.write_all(&[0xff; 300]).unwrap(),
                    1 => stranger.write_all(&framed).unwrap(),
                    2 => continue,
                    _ => {}
                }
                strangers.push(stranger);
            }
        });
        assert_eq!(invited, listening);
        carry(edges);
    }

    #[test]
    fn a_connection_that_fails_is_an_error_if_the_peer_does_not_come_on_another_one() {
        let [mut a, mut b] = pair(&TestNet::like_plugins());
        let now = Instant::now();
        let invitation = loop {
            assert!(now.elapsed() < Duration::from_secs(60));
            a.receive().unwrap();
            let offering = a.lanes[0].offering.as_ref();
            if let Some(told) = offering.and_then(|offering| offering.invitation.clone()) {
                break told;
            }
        };
        let address = oxccl_net::tcp::address_in(&Handle(invitation.handle)).unwrap();
        drop(TcpStream::connect(address).unwrap());
        b.hear(&Notice::Begun(0)).unwrap();
        while b.lanes[0].accepting.as_ref().is_some_and(|accepting| accepting.failed.is_none()) {
            assert!(now.elapsed() < Duration::from_secs(60));
            b.progress(now).unwrap();
        }
        b.progress(now + FAILED / 2).unwrap();
        b.progress(now + FAILED).unwrap_err();
    }

    /// Moves both on until all connections to `b` are accepted; those without proof are the peer's.
    fn accept_all([a, b]: &mut [Joining; 2], now: Instant) {
        let is_there = |lane: &Lane| {
            let accepting = lane.accepting.as_ref();
            lane.incoming.is_some() || accepting.is_some_and(|of| !of.unproven.is_empty())
        };
        while !b.lanes.iter().all(is_there) {
            assert!(now.elapsed() < Duration::from_secs(60), "{} / {}", a.why(), b.why());
            for joining in [&mut *a, &mut *b] {
                joining.receive().unwrap();
                joining.progress(now).unwrap();
            }
        }
    }

    #[test]
    fn a_peer_that_is_slow_to_prove_itself_is_waited_for_where_a_plugin_accepts_once() {
        let mut ranks = pair(&TestNet::accepting_once());
        let now = Instant::now();
        accept_all(&mut ranks, now);
        let silent = |b: &Joining| b.lanes.iter().any(|lane| lane.incoming.is_none());
        assert!(silent(&ranks[1]), "the peer was faster than this test is made for");
        for second in 1..20 {
            ranks[1].progress(now + Duration::from_secs(second)).unwrap();
        }
        carry(complete(ranks, 1, |_| {}));
    }

    /// A rank that was stopped looks at what has come before it takes a peer for a stranger.
    #[test]
    fn time_in_which_nobody_looks_does_not_count() {
        let mut ranks = pair(&TestNet::like_plugins());
        let now = Instant::now();
        accept_all(&mut ranks, now);
        let later = now + 10 * SILENT;
        ranks[1].progress(later).unwrap();
        let accepting = ranks[1].lanes.iter().flat_map(|lane| &lane.accepting);
        assert!(accepting.into_iter().all(|accepting| !accepting.has_room(&ranks[1].with, later)));
    }

    /// A member that has come again, as it got no answer in time, does so on two connections.
    #[test]
    fn a_second_proof_replaces_nothing() {
        let [mut a, mut b] = pair(&TestNet::new(true));
        let mut late: Vec<(TcpStream, Vec<u8>)> = Vec::new();
        let until = Instant::now() + Duration::from_secs(60);
        while !a.is_complete() || !b.is_complete() {
            assert!(Instant::now() < until, "{} / {}", a.why(), b.why());
            a.receive().unwrap();
            for (lane, number) in a.lanes.iter().zip(0u32..).skip(late.len()) {
                let offering = lane.offering.as_ref().and_then(|o| o.invitation.as_ref());
                let Some(Invitation { handle, nonce }) = offering else { break };
                let address = oxccl_net::tcp::address_in(&Handle(*handle)).unwrap();
                let attempt = (number << LANE_AT) + 1;
                let first = identity(0).first_message((0, 1), nonce, attempt);
                let framed = [&(first.len() as u32).to_le_bytes()[..], &first].concat();
                late.push((TcpStream::connect(address).unwrap(), framed));
            }
            // It is accepted before the one that proves itself first.
            b.receive().unwrap();
            b.progress(Instant::now()).unwrap();
            a.progress(Instant::now()).unwrap();
        }
        assert_eq!(late.len(), LANES);
        for (stream, first) in &mut late {
            // The connection may be closed already.
            let _ = stream.write_all(first);
        }
        for lane in &mut b.lanes {
            for _ in 0..1000 {
                lane.prove(&b.with, Instant::now()).unwrap();
            }
        }
        carry([a, b].map(|joining| joining.finish().unwrap()));
    }

    #[test]
    fn a_proof_holds_for_its_ends_nonce_attempt_and_secret_only() {
        let (own, nonce) = (identity(0), [3; NONCE_BYTES]);
        let first = own.first_message((0, 1), &nonce, 2);
        assert_eq!(own.attempt((0, 1), &nonce, &first), Some(2));
        assert_eq!(own.attempt((1, 0), &nonce, &first), None);
        assert_eq!(own.attempt((0, 1), &[4; NONCE_BYTES], &first), None);
        let other = Identity { comm: 6, ..own };
        assert_eq!(other.attempt((0, 1), &nonce, &first), None);
        let other = Identity { secret: [8; 32], ..own };
        assert_eq!(other.attempt((0, 1), &nonce, &first), None);
        let another = [&3u32.to_le_bytes()[..], &first[4..]].concat();
        assert_eq!(own.attempt((0, 1), &nonce, &another), None);
        for len in 0..first.len() {
            assert_eq!(own.attempt((0, 1), &nonce, &first[..len]), None);
        }
    }

    #[test]
    fn an_answer_to_an_attempt_that_was_not_made_and_a_lane_too_many_are_errors() {
        let [mut a, _b] = pair(&TestNet::new(true));
        for attempt in [0, 1, 2 << LANE_AT, u32::MAX] {
            assert!(a.hear(&Notice::Proven(attempt)).is_err());
        }
        let invitation = Invitation { nonce: [0; NONCE_BYTES], handle: [0; 128] };
        let heard = (0..=LANES).map(|_| a.hear(&Notice::Invitation(invitation.clone())).is_ok());
        assert_eq!(heard.collect::<Vec<_>>(), [true, true, false]);
    }
}
