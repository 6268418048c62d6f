//! The making of both connections between two ranks of different hosts.
//!
//! Each rank listens and tells the peer its handle over the control connection, and connects to the
//! peer's. The first message of a connection proves with the communicator's secret who sends; the
//! receiver says over the control connection which attempt has proved itself. Transports do not
//! authenticate: where strangers reach a listener, it accepts until a member has come.

use super::{Incoming, MessageEdge, Outgoing};
use crate::bootstrap::auth::{Ends, Role, is_proof, proof};
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
/// The time after which a member whose proof was not answered connects again; it doubles.
const AGAIN: Duration = Duration::from_secs(1);

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
    /// The listener, until a connection has proved itself.
    listener: Option<Box<dyn Listener>>,
    nonce: Nonce,
    /// Connections without proof, the oldest first.
    unproven: VecDeque<(Instant, Incoming)>,
    /// The end of the proven connection.
    proven: Option<Incoming>,
}

/// The side that sends.
struct Offering {
    /// The peer's handle and nonce, once it has told them.
    invitation: Option<Invitation>,
    connecting: Option<Box<dyn Connecting>>,
    /// The ends of connections whose proof has not been answered, by attempt.
    attempts: Vec<Outgoing>,
    /// The time of the next attempt.
    again: Option<(Instant, Duration)>,
    /// The end of the proven connection.
    proven: Option<Outgoing>,
}

/// Both connections with a peer in the making.
pub struct Joining {
    identity: Identity,
    peer: u32,
    net: Arc<dyn Net>,
    device: usize,
    control: Arc<Control>,
    slot_bytes: usize,
    accepting: Accepting,
    offering: Offering,
    /// Why the control connection has ended, if it has.
    gone: Option<String>,
}

impl Joining {
    /// Listens for the peer, and tells it where, over the control connection with it.
    pub fn new(
        identity: Identity,
        peer: u32,
        (net, device): (Arc<dyn Net>, usize),
        control: Arc<Control>,
        slot_bytes: usize,
    ) -> Result<Self> {
        let (handle, listener) = net.listen(device)?;
        let nonce = random()?;
        control.tell(&notice::invitation(&Invitation { nonce, handle: handle.0 }));
        let (unproven, attempts) = Default::default();
        let (listener, proven) = (Some(listener), None);
        let accepting = Accepting { listener, nonce, unproven, proven };
        let (invitation, connecting, again, proven) = (None, None, None, None);
        let offering = Offering { invitation, connecting, attempts, again, proven };
        let gone = None;
        Ok(Self { identity, peer, net, device, control, slot_bytes, accepting, offering, gone })
    }

    /// Moves both connections on, and the control connection. Never blocks. Notices that come once
    /// both connections have been proven are left for the monitor.
    pub fn progress(&mut self, now: Instant) -> Result<()> {
        self.control.flush();
        if self.is_complete() {
            return Ok(());
        }
        self.receive()?;
        self.accept(now)?;
        self.prove()?;
        self.connect(now)
    }

    fn receive(&mut self) -> Result<()> {
        let (notices, ended) = self.control.receive();
        self.gone = self.gone.take().or(ended);
        notices.iter().try_for_each(|notice| self.hear(notice))
    }

    /// Acts on a notice of the peer; others than those about connections are of no concern here.
    fn hear(&mut self, notice: &Notice) -> Result<()> {
        match notice {
            Notice::Invitation(invitation) => self.offering.invitation = Some(invitation.clone()),
            Notice::Proven(attempt) => {
                let attempts = &mut self.offering.attempts;
                let index = *attempt as usize;
                if index >= attempts.len() {
                    let why = format!("answers attempt {attempt}, which was not made");
                    return Err(Error::init_peer(self.peer, why));
                }
                self.offering.proven = Some(attempts.swap_remove(index));
                attempts.clear();
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns whether another connection can be taken now, if need be in the place of an old one.
    fn has_room(&self, now: Instant) -> bool {
        let unproven = &self.accepting.unproven;
        let old = |(since, _): &(Instant, _)| now.saturating_duration_since(*since) >= UNPROVEN;
        // A transport without strangers makes one connection per listener.
        let most = if self.net.is_open_to_strangers() { MAX_UNPROVEN } else { 1 };
        unproven.len() < most || (most > 1 && unproven.front().is_some_and(old))
    }

    /// Takes connections that have been made.
    fn accept(&mut self, now: Instant) -> Result<()> {
        while self.has_room(now) {
            let Accepting { listener: Some(listener), unproven, .. } = &mut self.accepting else {
                break;
            };
            let receiver = match listener.accept() {
                Ok(Some(receiver)) => receiver,
                Ok(None) => break,
                // The oldest one gives its descriptor back for one that may be a member's.
                Err(_) if self.net.is_open_to_strangers() && !unproven.is_empty() => {
                    unproven.pop_front();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if unproven.len() >= MAX_UNPROVEN {
                unproven.pop_front();
            }
            unproven.push_back((now, Incoming::new(receiver, self.peer, self.slot_bytes)));
        }
        Ok(())
    }

    /// Looks for a connection that proves itself.
    fn prove(&mut self) -> Result<()> {
        let ends = (self.peer, self.identity.rank);
        let Accepting { listener, nonce, unproven, proven } = &mut self.accepting;
        for (since, mut incoming) in std::mem::take(unproven) {
            let first = match incoming.take_raw() {
                Ok(None) => {
                    unproven.push_back((since, incoming));
                    continue;
                }
                Ok(Some(first)) => first,
                Err(error) if self.net.is_open_to_strangers() => {
                    refuse(&error.to_string());
                    continue;
                }
                Err(error) => {
                    // The connection stays until the peers have heard why this rank ends it.
                    unproven.push_back((since, incoming));
                    return Err(error);
                }
            };
            match self.identity.attempt(ends, nonce, &first) {
                Some(attempt) if proven.is_none() => {
                    self.control.tell(&notice::proven(attempt));
                    (*proven, *listener) = (Some(incoming), None);
                }
                Some(_) => {}
                None => refuse("its first message does not prove that it knows the secret"),
            }
        }
        Ok(())
    }

    /// Connects to the peer, once it has told where it listens.
    fn connect(&mut self, now: Instant) -> Result<()> {
        let Offering { invitation, connecting, attempts, again, proven } = &mut self.offering;
        let Some(Invitation { nonce, handle }) = invitation else { return Ok(()) };
        if proven.is_some() {
            *connecting = None;
            return Ok(());
        }
        let due = again.is_none_or(|(at, _)| now >= at && self.net.is_open_to_strangers());
        if connecting.is_none() && due {
            let pause = again.map_or(AGAIN, |(_, pause)| 2 * pause);
            *again = now.checked_add(pause).map(|at| (at, pause));
            let begun = self.net.connect(self.device, Handle(*handle));
            *connecting = Some(begun.map_err(|error| Error::init_peer(self.peer, error))?);
        }
        let made = connecting.as_mut().map_or(Ok(None), |begun| begun.progress())?;
        if let Some(sender) = made {
            *connecting = None;
            let mut outgoing = Outgoing::new(sender, self.identity.rank, self.slot_bytes);
            let ends = (self.identity.rank, self.peer);
            let number = attempts.len() as u32;
            let sent = outgoing.send_raw(&self.identity.first_message(ends, nonce, number));
            attempts.push(outgoing);
            sent?;
        }
        for outgoing in attempts {
            // An attempt that fails is made again, if strangers may have taken its place.
            match outgoing.flushed() {
                Err(error) if !self.net.is_open_to_strangers() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns whether both connections have been proven.
    pub fn is_complete(&self) -> bool {
        self.accepting.proven.is_some() && self.offering.proven.is_some()
    }

    /// Returns the edge, and the control connection, if both connections have been proven.
    pub fn finish(self) -> Option<(MessageEdge, Arc<Control>)> {
        let (outgoing, incoming) = self.offering.proven.zip(self.accepting.proven)?;
        Some((MessageEdge::new(outgoing, incoming), self.control))
    }

    /// Appends the descriptors that show progress. Where a transport has none, or a proof is
    /// awaited, one has to look again soon.
    pub fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>, now: Instant) {
        if self.is_complete() || self.gone.is_some() {
            return;
        }
        fds.push(self.control.poll_fd());
        if let Some(listener) = self.accepting.listener.as_ref().filter(|_| self.has_room(now)) {
            listener.poll_fds(fds);
        }
        if let Some(connecting) = &self.offering.connecting {
            connecting.poll_fds(fds);
        }
    }

    /// Returns why the connections are not complete.
    pub fn why(&self) -> String {
        let net = self.net.name();
        let Offering { invitation, connecting, proven, .. } = &self.offering;
        let why = match (connecting, invitation) {
            (Some(connecting), _) => connecting.why(),
            (None, None) => format!("net {net}: it has not told where it listens"),
            _ if proven.is_none() => format!("net {net}: it does not see this rank's connection"),
            _ => format!("net {net}: it has not connected to this rank"),
        };
        self.gone.iter().fold(why, |why, gone| format!("{why}; {gone}"))
    }
}

/// Logs why a connection is not taken.
fn refuse(why: &str) {
    log::line(Level::Info, Subsystem::Net, &format!("a data connection was refused: {why}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_net::tcp::Tcp;
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    fn identity(rank: u32) -> Identity {
        Identity { comm: 5, secret: [7; 32], rank, nranks: 2 }
    }

    fn pair() -> [Joining; 2] {
        let (a, b) = UnixStream::pair().unwrap();
        let controls = [a, b].map(|end| Arc::new(Control::new(end.into())));
        let net: Arc<dyn Net> = Arc::new(Tcp::at("127.0.0.1:0".parse().unwrap()));
        [0u32, 1].map(|rank| {
            let control = controls[rank as usize].clone();
            Joining::new(identity(rank), 1 - rank, (net.clone(), 0), control, 64).unwrap()
        })
    }

    /// Moves both on until both are complete; `each` sees every round.
    fn complete([mut a, mut b]: [Joining; 2], mut each: impl FnMut(&Joining)) -> [MessageEdge; 2] {
        let until = Instant::now() + Duration::from_secs(60);
        while !a.is_complete() || !b.is_complete() {
            assert!(Instant::now() < until, "{} / {}", a.why(), b.why());
            for joining in [&mut a, &mut b] {
                joining.receive().unwrap();
                each(joining);
                joining.progress(Instant::now()).unwrap();
            }
        }
        [a, b].map(|joining| joining.finish().unwrap().0)
    }

    fn carries(from: &mut Outgoing, to: &mut Incoming) {
        from.send_raw(b"hello").unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < until && from.flushed().is_ok());
            if let Some(bytes) = to.take_raw().unwrap() {
                return assert_eq!(bytes, b"hello");
            }
        }
    }

    #[test]
    fn both_connections_are_made_and_carry_messages() {
        let [mut a, mut b] = complete(pair(), |_| {});
        carries(&mut a.outgoing, &mut b.incoming);
        carries(&mut b.outgoing, &mut a.incoming);
    }

    /// Strangers take all places first: some silent, some with garbage, one with the right form and
    /// another secret.
    #[test]
    fn a_member_gets_in_whatever_strangers_do() {
        let mut strangers = Vec::new();
        let mut invited = Vec::new();
        let [mut a, mut b] = complete(pair(), |joining| {
            let Some(Invitation { handle, nonce }) = &joining.offering.invitation else { return };
            if invited.contains(&joining.peer) {
                return;
            }
            invited.push(joining.peer);
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
        assert_eq!(invited.len(), 2);
        carries(&mut a.outgoing, &mut b.incoming);
        carries(&mut b.outgoing, &mut a.incoming);
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
    fn an_answer_to_an_attempt_that_was_not_made_is_an_error() {
        let [mut a, _b] = pair();
        assert!(a.hear(&Notice::Proven(0)).is_err());
    }
}
