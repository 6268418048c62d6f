//! Mutual authentication by challenge and response, for every socket of the library but those that
//! carry data: the first message of these has a [`proof`]. Sans-I/O.
//!
//! ```text
//! client → server   hello: magic, role, from, to, communicator, whether it encrypts, nonce
//! server → client   nonce, HMAC(secret, "server", hello, nonce)
//! client → server   HMAC(secret, "client", hello, nonce), Noise's first message if it encrypts
//! server → client   welcome, Noise's second message if both encrypt
//! ```
//! The welcome tells the client that the server has accepted the connection. Until then the server
//! may have dropped the connection to make room for another one. Instead of it the client may be
//! told that only one side encrypts, or that the keys differ.

//! The proofs are HMAC-SHA-256 over both nonces. Role, ranks and communicator are bound in, so that
//! no message can be replayed on another connection or reflected to its sender.

use super::encryption::{Cipher, Key, MESSAGE_BYTES, Opening};
use super::id::{SECRET_BYTES, random};
use crate::error::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const MAGIC: &[u8; 8] = b"OXCCLAU3";
const NONCE: usize = 32;
const MAC: usize = 32;
/// Bytes of a [`proof`].
pub const PROOF_BYTES: usize = MAC;
const WELCOME: u8 = 1;
/// The answers to a client whose encryption differs.
const OTHER_MODE: u8 = 2;
const OTHER_KEY: u8 = 3;
const HELLO: usize = 8 + 4 + 4 + 4 + 8 + 1 + NONCE;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    /// From a rank to the rendezvous.
    Rendezvous = 1,
    /// Data from one rank to another.
    Data = 2,
    /// File descriptors between ranks of one host.
    Descriptors = 3,
    /// Notices and heartbeats between ranks of different hosts.
    Control = 4,
}

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The purpose of the connection.
    pub role: Role,
    /// Rank of the client.
    pub from: u32,
    /// Rank of the server; `u32::MAX` for the rendezvous.
    pub to: u32,
    /// The communicator's number.
    pub comm: u64,
}

impl Ends {
    fn hello(&self, encrypts: bool, nonce: &[u8; NONCE]) -> Vec<u8> {
        let mut hello = MAGIC.to_vec();
        for field in [self.role as u32, self.from, self.to] {
            hello.extend(field.to_le_bytes());
        }
        hello.extend(self.comm.to_le_bytes());
        hello.push(encrypts.into());
        hello.extend(nonce);
        hello
    }
}

fn code(secret: &[u8; SECRET_BYTES], side: &[u8], hello: &[u8], nonce: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    for part in [side, hello, nonce] {
        mac.update(part);
    }
    mac
}

fn message_code(secret: &[u8; SECRET_BYTES], ends: Ends, salt: &[u8]) -> Hmac<Sha256> {
    code(secret, b"message", &ends.hello(false, &[0; NONCE]), salt)
}

/// Returns the proof that a message comes from `ends.from`, for connections that carry no
/// handshake. The salt comes from the receiver, so that the proof is of use for one connection
/// only.
pub fn proof(secret: &[u8; SECRET_BYTES], ends: Ends, salt: &[u8]) -> [u8; PROOF_BYTES] {
    message_code(secret, ends, salt).finalize().into_bytes().into()
}

/// Returns whether these bytes are the [`proof`].
pub fn is_proof(secret: &[u8; SECRET_BYTES], ends: Ends, salt: &[u8], bytes: &[u8]) -> bool {
    message_code(secret, ends, salt).verify_slice(bytes).is_ok()
}

fn refused(why: &str) -> Error {
    Error::Init { why: format!("a peer failed to authenticate: {why}") }
}

/// The difference in which one side of a connection encrypts and the other one does not.
const ONE_SIDE: &str = "encrypts its connections, and this side does not, or the other way round";
/// The difference of keys.
const KEYS: &str = "has another key for encrypted connections";

/// The next step of a handshake.
pub enum Progress {
    /// More bytes from the other side are needed.
    More,
    /// These bytes have to be sent; then more bytes from the other side are needed.
    Send(Vec<u8>),
    /// These bytes have to be sent; the other side is who it claims to be. What follows is
    /// encrypted if there is a cipher.
    Done(Vec<u8>, Option<Cipher>),
    /// These bytes have to be sent; the other side is who it claims to be, but its encryption
    /// differs, as the text says.
    Differs(Vec<u8>, &'static str),
}

/// The client's side of a handshake.
pub struct Client {
    secret: [u8; SECRET_BYTES],
    hello: Vec<u8>,
    received: Vec<u8>,
    key: Option<Key>,
    /// True once the server has proved itself and this side's proof was returned for sending.
    proved: bool,
    opening: Option<Opening>,
}

impl Client {
    /// Starts a handshake. The bytes are the first message. What follows the handshake is encrypted
    /// if there is a key.
    pub fn new(
        secret: [u8; SECRET_BYTES],
        ends: Ends,
        key: Option<Key>,
    ) -> Result<(Self, Vec<u8>)> {
        let hello = ends.hello(key.is_some(), &random()?);
        let (received, proved, opening) = (Vec::new(), false, None);
        Ok((Self { secret, hello: hello.clone(), received, key, proved, opening }, hello))
    }

    /// Returns the maximum number of bytes to read next.
    pub fn wants(&self) -> usize {
        match (self.proved, self.received.first(), &self.opening) {
            (false, ..) => NONCE + MAC - self.received.len(),
            (true, Some(&WELCOME), Some(_)) => 1 + MESSAGE_BYTES - self.received.len(),
            (true, ..) => 1,
        }
    }

    /// Handles the server's last message.
    fn end(&mut self) -> Result<Progress> {
        match (&self.received[..], self.opening.is_some()) {
            ([], _) => Ok(Progress::More),
            ([WELCOME], false) => Ok(Progress::Done(Vec::new(), None)),
            ([WELCOME, message @ ..], true) if message.len() < MESSAGE_BYTES => Ok(Progress::More),
            ([WELCOME, message @ ..], true) => {
                let cipher = self.opening.take().map(|opening| opening.end(message)).transpose()?;
                Ok(Progress::Done(Vec::new(), cipher))
            }
            ([OTHER_MODE], _) => Ok(Progress::Differs(Vec::new(), ONE_SIDE)),
            ([OTHER_KEY], _) => Ok(Progress::Differs(Vec::new(), KEYS)),
            _ => Err(refused("the server sent no welcome")),
        }
    }

    /// Handles bytes from the server.
    pub fn input(&mut self, bytes: &[u8]) -> Result<Progress> {
        self.received.extend(bytes);
        if self.proved {
            return self.end();
        }
        if self.received.len() < NONCE + MAC {
            return Ok(Progress::More);
        }
        let (nonce, mac) = self.received.split_at(NONCE);
        code(&self.secret, b"server", &self.hello, nonce)
            .verify_slice(mac)
            .map_err(|_| refused("the server does not know the secret"))?;
        let proof = code(&self.secret, b"client", &self.hello, nonce).finalize().into_bytes();
        let mut proof = proof.to_vec();
        if let Some(key) = &self.key {
            let (opening, message) = Opening::begin(key, &bound(&self.hello, nonce))?;
            self.opening = Some(opening);
            proof.extend(message);
        }
        (self.proved, self.received) = (true, Vec::new());
        Ok(Progress::Send(proof))
    }
}

/// Returns what the encryption of a connection is bound to.
fn bound(hello: &[u8], nonce: &[u8]) -> Vec<u8> {
    [hello, nonce].concat()
}

/// The server's side of a handshake.
pub struct Server {
    secret: [u8; SECRET_BYTES],
    /// The ends that are acceptable; `from` is learnt from the client.
    ends: Ends,
    nranks: u32,
    nonce: [u8; NONCE],
    received: Vec<u8>,
    greeted: bool,
    key: Option<Key>,
    /// True if the client encrypts.
    encrypts: bool,
}

impl Server {
    /// Starts a handshake with a client. `ends.from` is ignored: any rank below `nranks` may come.
    /// The client has to encrypt with the same key, if there is one.
    pub fn new(
        secret: [u8; SECRET_BYTES],
        ends: Ends,
        nranks: u32,
        key: Option<Key>,
    ) -> Result<Self> {
        let (nonce, received) = (random()?, Vec::new());
        Ok(Self { secret, ends, nranks, nonce, received, greeted: false, key, encrypts: false })
    }

    /// Returns the maximum number of bytes to read next.
    pub fn wants(&self) -> usize {
        HELLO + self.proof_bytes() - self.received.len()
    }

    /// Returns the number of bytes of the client's second message; 0 before its first one.
    fn proof_bytes(&self) -> usize {
        match (self.greeted, self.encrypts) {
            (false, _) => 0,
            (true, false) => MAC,
            (true, true) => MAC + MESSAGE_BYTES,
        }
    }

    /// Returns the client's rank, which is valid once the client has authenticated.
    pub fn client(&self) -> u32 {
        self.ends.from
    }

    /// Handles bytes from the client.
    pub fn input(&mut self, bytes: &[u8]) -> Result<Progress> {
        self.received.extend(bytes);
        if self.received.len() < HELLO {
            return Ok(Progress::More);
        }
        let (hello, proof) = self.received.split_at(HELLO);
        if !self.greeted {
            let from = u32::from_le_bytes([hello[12], hello[13], hello[14], hello[15]]);
            let nonce = <[u8; NONCE]>::try_from(&hello[HELLO - NONCE..]).unwrap_or_default();
            self.ends.from = from;
            self.encrypts = hello[HELLO - NONCE - 1] == 1;
            if hello != self.ends.hello(self.encrypts, &nonce) {
                return Err(refused("it belongs to another communicator, rank or purpose"));
            }
            if from >= self.nranks {
                return Err(refused("its rank is out of range"));
            }
            self.greeted = true;
            let mac = code(&self.secret, b"server", hello, &self.nonce).finalize().into_bytes();
            let mut reply = self.nonce.to_vec();
            reply.extend(mac);
            return Ok(Progress::Send(reply));
        }
        if proof.len() < self.proof_bytes() {
            return Ok(Progress::More);
        }
        let (proof, message) = proof.split_at(MAC);
        code(&self.secret, b"client", hello, &self.nonce)
            .verify_slice(proof)
            .map_err(|_| refused("the client does not know the secret"))?;
        match (&self.key, self.encrypts) {
            (None, false) => Ok(Progress::Done(vec![WELCOME], None)),
            (None, true) | (Some(_), false) => Ok(Progress::Differs(vec![OTHER_MODE], ONE_SIDE)),
            (Some(key), true) => match Opening::answer(key, &bound(hello, &self.nonce), message)? {
                None => Ok(Progress::Differs(vec![OTHER_KEY], KEYS)),
                Some((cipher, answer)) => {
                    let welcome = [&[WELCOME], &answer[..]].concat();
                    Ok(Progress::Done(welcome, Some(cipher)))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: Ends = Ends { role: Role::Data, from: 3, to: 1, comm: 9 };

    fn talk(client: [u8; 32], server: [u8; 32], ends: Ends, accept: Ends) -> Result<u32> {
        let (mut client, hello) = Client::new(client, ends, None)?;
        let mut server = Server::new(server, accept, 8, None)?;
        converse(&mut client, hello, &mut server).map(|_| server.client())
    }

    /// Lets both sides talk. Returns whether the client encrypts in the end, or the difference.
    fn converse(
        client: &mut Client,
        hello: Vec<u8>,
        server: &mut Server,
    ) -> Result<(bool, Option<&'static str>)> {
        // Byte by byte: TCP keeps no message boundaries.
        let mut to_server = hello;
        loop {
            let mut to_client = Vec::new();
            for byte in to_server.drain(..) {
                match server.input(&[byte])? {
                    Progress::More => {}
                    Progress::Send(reply)
                    | Progress::Done(reply, _)
                    | Progress::Differs(reply, _) => to_client = reply,
                }
            }
            for byte in to_client {
                match client.input(&[byte])? {
                    Progress::More => {}
                    Progress::Send(proof) => to_server = proof,
                    Progress::Done(_, cipher) => return Ok((cipher.is_some(), None)),
                    Progress::Differs(_, why) => return Ok((false, Some(why))),
                }
            }
        }
    }

    #[test]
    fn equal_secrets_and_ends_authenticate() {
        let accept = Ends { from: 0, ..ENDS };
        assert_eq!(talk([5; 32], [5; 32], ENDS, accept).unwrap(), 3);
    }

    #[test]
    fn both_sides_encrypt_with_one_key_or_are_told_what_differs() {
        let keys = [None, Some(Key::new(b"one")), Some(Key::new(b"another"))];
        for (i, ours) in keys.iter().enumerate() {
            for (j, theirs) in keys.iter().enumerate() {
                let (mut client, hello) = Client::new([5; 32], ENDS, ours.clone()).unwrap();
                let mut server = Server::new([5; 32], ENDS, 8, theirs.clone()).unwrap();
                let expected = match (i, j) {
                    (0, 0) => (false, None),
                    (i, j) if i == j => (true, None),
                    (0, _) | (_, 0) => (false, Some(ONE_SIDE)),
                    _ => (false, Some(KEYS)),
                };
                let told = converse(&mut client, hello, &mut server).unwrap();
                assert_eq!(told, expected, "{i} {j}");
            }
        }
        // Only who knows the secret is told.
        let (mut client, hello) = Client::new([6; 32], ENDS, None).unwrap();
        let mut server = Server::new([5; 32], ENDS, 8, keys[1].clone()).unwrap();
        assert!(converse(&mut client, hello, &mut server).is_err());
    }

    #[test]
    fn every_difference_is_refused() {
        let accept = Ends { from: 0, ..ENDS };
        assert!(talk([5; 32], [6; 32], ENDS, accept).is_err());
        assert!(talk([5; 32], [5; 32], Ends { comm: 8, ..ENDS }, accept).is_err());
        assert!(talk([5; 32], [5; 32], Ends { to: 2, ..ENDS }, accept).is_err());
        assert!(talk([5; 32], [5; 32], Ends { role: Role::Rendezvous, ..ENDS }, accept).is_err());
        assert!(talk([5; 32], [5; 32], Ends { from: 8, ..ENDS }, accept).is_err());
    }

    #[test]
    fn a_client_without_the_secret_cannot_reflect_the_servers_proof() {
        let mut server = Server::new([5; 32], ENDS, 8, None).unwrap();
        let (_, hello) = Client::new([0; 32], ENDS, None).unwrap();
        let Progress::Send(reply) = server.input(&hello).unwrap() else { panic!("no reply") };
        assert!(server.input(&reply[NONCE..]).is_err());
        assert!(!reply.windows(32).any(|w| w == [5; 32]), "the secret is on the wire");
    }
}
