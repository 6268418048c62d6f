//! The encryption of connections with the rendezvous, by a key that all ranks have: the pattern
//! NNpsk0 of the Noise framework, as the crate `snow` has it. Sans-I/O.
//!
//! The handshake of [`auth`](super::auth) carries Noise's two messages. What follows goes in
//! records: little-endian `length u16`, then so many bytes of ciphertext.

use super::auth::Role;
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use snow::{Builder, HandshakeState, TransportState};
use std::sync::{PoisonError, RwLock};

/// The protocol, by its name in the Noise framework.
const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes of either message of the handshake: a public key, and the tag of an empty text.
pub(super) const MESSAGE_BYTES: usize = 32 + TAG_BYTES;
const TAG_BYTES: usize = 16;
/// The most bytes of a record of Noise.
const RECORD_BYTES: usize = 65535;
const LENGTH_BYTES: usize = 2;
/// The fewest bytes of a key as the user gives it.
pub const LEAST_KEY_BYTES: usize = 16;

/// The key of this process's connections; `None`: they are not encrypted.
static KEY: RwLock<Option<Key>> = RwLock::new(None);

/// A key, derived from that of the user.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Returns the key that a text of the user's stands for.
    pub fn new(text: &[u8]) -> Self {
        Self(
            Sha256::new().chain_update(b"OxCCL's connections").chain_update(text).finalize().into(),
        )
    }
}

/// Sets the key of the connections that this process makes from now on; `None`: they are not
/// encrypted.
pub fn set_key(key: Option<Key>) {
    *KEY.write().unwrap_or_else(PoisonError::into_inner) = key;
}

/// Returns the key of a connection of this process; `None` if it is not encrypted.
pub(super) fn key_of(role: Role) -> Option<Key> {
    // Descriptors pass between processes of one user on one host. Ranks of different hosts make no
    // connections with each other while there is a key.
    let encrypts = role == Role::Rendezvous;
    encrypts.then(|| KEY.read().unwrap_or_else(PoisonError::into_inner).clone()).flatten()
}

fn internal(what: &str, error: snow::Error) -> Error {
    Error::Internal { what: format!("{what}: {error}") }
}

fn altered() -> Error {
    Error::Init { why: "an encrypted connection was altered on its way".to_owned() }
}

/// A handshake that waits for the other side's message.
pub(super) struct Opening(Box<HandshakeState>);

impl Opening {
    /// Begins the handshake of a client. Returns it and its message; `bound` is what both sides
    /// know of the connection.
    pub(super) fn begin(key: &Key, bound: &[u8]) -> Result<(Self, Vec<u8>)> {
        let mut state = builder(key, bound)?
            .build_initiator()
            .map_err(|e| internal("beginning to encrypt", e))?;
        let mut message = vec![0; MESSAGE_BYTES];
        let written = state.write_message(&[], &mut message);
        written.map_err(|e| internal("beginning to encrypt", e))?;
        Ok((Self(Box::new(state)), message))
    }

    /// Answers the message of a client. Returns the cipher and the answer; `None` if the client has
    /// another key.
    pub(super) fn answer(
        key: &Key,
        bound: &[u8],
        message: &[u8],
    ) -> Result<Option<(Cipher, Vec<u8>)>> {
        let mut state =
            builder(key, bound)?.build_responder().map_err(|e| internal("encrypting", e))?;
        if state.read_message(message, &mut [0; MESSAGE_BYTES]).is_err() {
            return Ok(None);
        }
        let mut answer = vec![0; MESSAGE_BYTES];
        state.write_message(&[], &mut answer).map_err(|e| internal("encrypting", e))?;
        Ok(Some((Cipher::new(state)?, answer)))
    }

    /// Ends the handshake of a client with the server's answer.
    pub(super) fn end(mut self, answer: &[u8]) -> Result<Cipher> {
        let read = self.0.read_message(answer, &mut [0; MESSAGE_BYTES]);
        read.map_err(|_| altered())?;
        Cipher::new(*self.0)
    }
}

fn builder<'a>(key: &'a Key, bound: &'a [u8]) -> Result<Builder<'a>> {
    let protocol = PROTOCOL.parse().map_err(|e| internal("naming the protocol", e))?;
    let builder = Builder::new(protocol).psk(0, &key.0).and_then(|b| b.prologue(bound));
    builder.map_err(|e| internal("preparing to encrypt", e))
}

/// The cipher of a connection, for both directions.
pub struct Cipher(Box<TransportState>);

impl Cipher {
    fn new(state: HandshakeState) -> Result<Self> {
        let state = state.into_transport_mode().map_err(|e| internal("encrypting", e))?;
        Ok(Self(Box::new(state)))
    }

    /// Returns bytes as records.
    pub(super) fn seal(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut sealed = Vec::with_capacity(bytes.len() + 64);
        for part in bytes.chunks(RECORD_BYTES - TAG_BYTES) {
            let length = part.len() + TAG_BYTES;
            sealed.extend((length as u16).to_le_bytes());
            let at = sealed.len();
            sealed.resize(at + length, 0);
            let written = self.0.write_message(part, &mut sealed[at..]);
            written.map_err(|e| internal("encrypting", e))?;
        }
        Ok(sealed)
    }

    /// Moves the contents of all complete records from `sealed` to `opened`.
    pub(super) fn open(&mut self, sealed: &mut Vec<u8>, opened: &mut Vec<u8>) -> Result<()> {
        while let Some(length) = sealed.first_chunk::<LENGTH_BYTES>() {
            let length = usize::from(u16::from_le_bytes(*length));
            let Some(record) = sealed.get(LENGTH_BYTES..LENGTH_BYTES + length) else { break };
            let at = opened.len();
            opened.resize(at + length, 0);
            let read = self.0.read_message(record, &mut opened[at..]);
            opened.truncate(at + read.map_err(|_| altered())?);
            sealed.drain(..LENGTH_BYTES + length);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Cipher, Cipher) {
        let key = Key::new(b"of both");
        let (opening, message) = Opening::begin(&key, b"bound").unwrap();
        assert_eq!(message.len(), MESSAGE_BYTES);
        let (server, answer) = Opening::answer(&key, b"bound", &message).unwrap().expect("one key");
        assert_eq!(answer.len(), MESSAGE_BYTES);
        (opening.end(&answer).unwrap(), server)
    }

    #[test]
    fn another_key_and_another_connection_are_refused() {
        let key = Key::new(b"of one");
        let (_, message) = Opening::begin(&key, b"bound").unwrap();
        for (key, bound) in [(&Key::new(b"of another"), b"bound"), (&key, b"other")] {
            assert!(Opening::answer(key, bound, &message).unwrap().is_none());
        }
        assert!(Opening::answer(&key, b"bound", &message).unwrap().is_some());
    }

    #[test]
    fn records_of_any_length_arrive_byte_by_byte_and_show_nothing() {
        let (mut client, mut server) = pair();
        for length in [0, 1, 1000, RECORD_BYTES - TAG_BYTES, RECORD_BYTES, 200_000] {
            let text = vec![7; length];
            let sealed = client.seal(&text).unwrap();
            assert!(length < 16 || !sealed.windows(16).any(|part| part == [7; 16]));
            let (mut come, mut opened) = (Vec::new(), Vec::new());
            for byte in sealed {
                come.push(byte);
                server.open(&mut come, &mut opened).unwrap();
            }
            assert_eq!((opened == text, come.len()), (true, 0), "{length}");
            // The other direction has a key of its own.
            let mut back = server.seal(b"back").unwrap();
            let mut opened = Vec::new();
            client.open(&mut back, &mut opened).unwrap();
            assert_eq!(opened, b"back");
        }
    }

    #[test]
    fn what_is_altered_repeated_or_left_out_is_refused() {
        let alterations: [fn(&mut Vec<u8>); 4] = [
            |sealed| sealed[5] ^= 1,
            |sealed| sealed.extend_from_within(..),
            |sealed| drop(sealed.drain(..20)),
            |sealed| sealed[0] -= 1,
        ];
        for alter in alterations {
            let (mut client, mut server) = pair();
            let mut sealed = client.seal(b"one").unwrap();
            assert_eq!(sealed.len(), 21);
            sealed.extend(client.seal(b"ten").unwrap());
            alter(&mut sealed);
            // A record that is cut may wait for the rest of it.
            sealed.extend(client.seal(&[1; 70_000]).unwrap());
            assert!(server.open(&mut sealed, &mut Vec::new()).is_err());
        }
    }
}
