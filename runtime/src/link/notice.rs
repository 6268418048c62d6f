//! Notices that a rank sends over the control connection to peers that do not see its memory. `H`:
//! the rank lives. `G`: it leaves in order, with the number of the peer's messages that it has
//! taken (u64). `F`: it failed, with a failure record: `code u8 · culprit i32 · reporter u32 ·
//! length u16 · text`. `D`: it waits in a collective: `number u64 · what u32 · count u64`. `A`: it
//! asks for a `T` when the peer has taken a number of messages (u64). `L`: it asks the peer to
//! listen for its data. `C`: it listens for the data of the peer: `nonce · handle`. `B`: it has
//! begun to connect: `lane u32`. `Y`: it has accepted a connection: `lane u32`. `P`: a data
//! connection of the peer has proved itself: `attempt u32`. `Q`: a process asks all that it reaches
//! for their state: `question u64 · milliseconds u32`. `S`: the answer of one of them: `question
//! u64 · length u32 · state`.

use super::direct::{RECORD_TEXT, Record};
use crate::error::Code;
use crate::op::descriptor::Descriptor;
use oxccl_net::HANDLE_BYTES;
use std::time::Duration;

/// A heartbeat.
pub const PULSE: &[u8] = b"H";
/// The notice that asks the peer to listen for this rank's data.
pub const LISTEN: &[u8] = b"L";
const HEADER: usize = 12;
/// The size of the longest notice in bytes.
pub const MAX_BYTES: usize = HEADER + RECORD_TEXT;

/// The most bytes of a process's state: signs of life wait behind it.
pub const STATUS_BYTES: usize = 64 << 10;

/// Bytes of the number that a data connection's proof has to hold.
pub const NONCE_BYTES: usize = 16;

/// The place where a rank listens for a peer's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// A random number, part of the proof.
    pub nonce: [u8; NONCE_BYTES],
    /// The handle of the listener.
    pub handle: [u8; HANDLE_BYTES],
}

/// A notice of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The sender lives.
    Pulse,
    /// The sender leaves in order, and has taken this many messages of the receiver.
    Goodbye(u64),
    /// The sender asks to be told when the receiver has taken this many of its messages.
    Ask(u64),
    /// The sender has taken this many messages of the receiver.
    Taken(u64),
    /// The sender failed.
    Failed(Record),
    /// The sender waits in the collective of this number.
    Doing(u64, Descriptor),
    /// The sender asks the receiver to listen for its data.
    Listen,
    /// The sender listens for the receiver's data.
    Invitation(Invitation),
    /// The sender has begun to connect this lane to the receiver's listener.
    Begun(u32),
    /// The sender has accepted the receiver's connection of this lane.
    Accepted(u32),
    /// The data connection of this attempt of the receiver has proved itself to the sender.
    Proven(u32),
    /// A process asks for the state of the receiver's process and of all that it reaches, by a
    /// random number, and waits for so long.
    StatusWanted(u64, Duration),
    /// The state of a process, for who has asked by this number.
    Status(u64, Vec<u8>),
}

/// Returns the notice of a failure.
pub fn failed(record: &Record) -> Vec<u8> {
    let text = record.text(RECORD_TEXT).as_bytes();
    let mut bytes = vec![b'F', record.code as i32 as u8];
    bytes.extend(record.culprit.to_le_bytes());
    bytes.extend(record.reporter.to_le_bytes());
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text);
    bytes
}

fn counted(kind: u8, count: u64) -> Vec<u8> {
    [&[kind][..], &count.to_le_bytes()].concat()
}

/// Returns the notice of a rank that leaves after it has taken `taken` messages.
pub fn goodbye(taken: u64) -> Vec<u8> {
    counted(b'G', taken)
}

/// Returns the notice that asks when this many messages are taken.
pub fn ask(messages: u64) -> Vec<u8> {
    counted(b'A', messages)
}

/// Returns the notice of how many messages are taken.
pub fn taken(messages: u64) -> Vec<u8> {
    counted(b'T', messages)
}

/// Returns the notice of the collective that this rank waits in.
pub fn doing(seq: u64, descriptor: Descriptor) -> Vec<u8> {
    let (what, count) = descriptor.to_words();
    let mut bytes = vec![b'D'];
    bytes.extend(seq.to_le_bytes());
    bytes.extend(what.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes
}

/// Returns the notice of where this rank listens for the peer's data.
pub fn invitation(invitation: &Invitation) -> Vec<u8> {
    [b"C", &invitation.nonce[..], &invitation.handle].concat()
}

/// Returns the notice of a question, and of how long its answers are awaited.
pub fn status_wanted(question: u64, limit: Duration) -> Vec<u8> {
    let ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    [&b"Q"[..], &question.to_le_bytes(), &ms.to_le_bytes()].concat()
}

/// Returns the notice of a process's state, which has at most [`STATUS_BYTES`].
pub fn status(question: u64, state: &[u8]) -> Vec<u8> {
    let len = (state.len() as u32).to_le_bytes();
    [&b"S"[..], &question.to_le_bytes(), &len, state].concat()
}

fn numbered(kind: u8, number: u32) -> Vec<u8> {
    [&[kind][..], &number.to_le_bytes()].concat()
}

/// Returns the notice that this rank has begun to connect a lane.
pub fn begun(lane: u32) -> Vec<u8> {
    numbered(b'B', lane)
}

/// Returns the notice that this rank has accepted the connection of a lane.
pub fn accepted(lane: u32) -> Vec<u8> {
    numbered(b'Y', lane)
}

/// Returns the notice that the data connection of this attempt has proved itself.
pub fn proven(attempt: u32) -> Vec<u8> {
    numbered(b'P', attempt)
}

/// Reads a notice. Returns the notice and its size, `None` while it is not complete, or an error if
/// the bytes are no notice.
pub fn parse(bytes: &[u8]) -> Result<Option<(Notice, usize)>, String> {
    match bytes {
        [] => Ok(None),
        [b'H', ..] => Ok(Some((Notice::Pulse, 1))),
        [b'L', ..] => Ok(Some((Notice::Listen, 1))),
        [kind @ (b'G' | b'A' | b'T'), rest @ ..] => {
            let Some((count, _)) = rest.split_first_chunk() else { return Ok(None) };
            let count = u64::from_le_bytes(*count);
            let notice = match kind {
                b'G' => Notice::Goodbye(count),
                b'A' => Notice::Ask(count),
                _ => Notice::Taken(count),
            };
            Ok(Some((notice, 9)))
        }
        [b'F', code, a, b, c, d, e, f, g, h, low, high, text @ ..] => {
            let len = usize::from(u16::from_le_bytes([*low, *high]));
            if len > RECORD_TEXT {
                return Err(format!("a notice of {len} bytes"));
            }
            let Some(text) = text.get(..len) else { return Ok(None) };
            let record = Record {
                code: Code::from_number(i32::from(*code)),
                culprit: i32::from_le_bytes([*a, *b, *c, *d]),
                reporter: u32::from_le_bytes([*e, *f, *g, *h]),
                text: String::from_utf8_lossy(text).into_owned(),
            };
            Ok(Some((Notice::Failed(record), HEADER + len)))
        }
        [b'D', rest @ ..] => {
            let Some((seq, rest)) = rest.split_first_chunk() else { return Ok(None) };
            let Some((what, rest)) = rest.split_first_chunk() else { return Ok(None) };
            let Some((count, _)) = rest.split_first_chunk() else { return Ok(None) };
            let (what, count) = (u32::from_le_bytes(*what), u64::from_le_bytes(*count));
            let descriptor = Descriptor::from_words(what, count);
            Ok(Some((Notice::Doing(u64::from_le_bytes(*seq), descriptor), 21)))
        }
        [b'F', ..] => Ok(None),
        [b'C', rest @ ..] => {
            let Some((nonce, rest)) = rest.split_first_chunk() else { return Ok(None) };
            let Some((handle, _)) = rest.split_first_chunk() else { return Ok(None) };
            let invitation = Invitation { nonce: *nonce, handle: *handle };
            Ok(Some((Notice::Invitation(invitation), 1 + NONCE_BYTES + HANDLE_BYTES)))
        }
        [kind @ (b'B' | b'Y' | b'P'), rest @ ..] => {
            let Some((number, _)) = rest.split_first_chunk() else { return Ok(None) };
            let number = u32::from_le_bytes(*number);
            let notice = match kind {
                b'B' => Notice::Begun(number),
                b'Y' => Notice::Accepted(number),
                _ => Notice::Proven(number),
            };
            Ok(Some((notice, 5)))
        }
        [kind @ (b'Q' | b'S'), rest @ ..] => parse_question(*kind, rest),
        [other, ..] => Err(format!("a notice of kind {other}")),
    }
}

/// Reads a question, or an answer to one, after its kind.
fn parse_question(kind: u8, rest: &[u8]) -> Result<Option<(Notice, usize)>, String> {
    let Some((question, rest)) = rest.split_first_chunk() else { return Ok(None) };
    let Some((word, rest)) = rest.split_first_chunk() else { return Ok(None) };
    let (question, word) = (u64::from_le_bytes(*question), u32::from_le_bytes(*word));
    if kind == b'Q' {
        let limit = Duration::from_millis(word.into());
        return Ok(Some((Notice::StatusWanted(question, limit), 13)));
    }
    let len = word as usize;
    if len > STATUS_BYTES {
        return Err(format!("a notice of {len} bytes"));
    }
    let state = rest.get(..len);
    Ok(state.map(|state| (Notice::Status(question, state.to_vec()), 13 + len)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::DataType;

    #[test]
    fn notices_survive_the_round_trip_and_wait_for_their_last_byte() {
        let (code, text) = (Code::InvalidUsage, "ü".repeat(900));
        let record = Record { code, culprit: -1, reporter: 5, text };
        let bytes = failed(&record);
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut}");
        }
        let Ok(Some((Notice::Failed(read), len))) = parse(&bytes) else { panic!("no record") };
        assert_eq!((read.code, read.culprit, read.reporter), (record.code, -1, 5));
        assert_eq!(len, bytes.len());
        assert_eq!(read.text, "ü".repeat(500));
        let message = Descriptor::message(DataType::Int8, 9);
        let bytes = doing(7, message);
        (0..21).for_each(|cut| assert_eq!(parse(&bytes[..cut]), Ok(None)));
        let read = Notice::Doing(7, message);
        assert_eq!(parse(&bytes), Ok(Some((read, 21))));
        assert_eq!(parse(PULSE), Ok(Some((Notice::Pulse, 1))));
        assert_eq!(parse(LISTEN), Ok(Some((Notice::Listen, 1))));
        let place = Invitation { nonce: [3; NONCE_BYTES], handle: [9; HANDLE_BYTES] };
        let bytes = invitation(&place);
        (0..bytes.len()).for_each(|cut| assert_eq!(parse(&bytes[..cut]), Ok(None)));
        assert_eq!(parse(&bytes), Ok(Some((Notice::Invitation(place), bytes.len()))));
        let numbers = [
            (begun(5), Notice::Begun(5)),
            (accepted(6), Notice::Accepted(6)),
            (proven(7), Notice::Proven(7)),
        ];
        for (bytes, read) in numbers {
            (0..5).for_each(|cut| assert_eq!(parse(&bytes[..cut]), Ok(None)));
            assert_eq!(parse(&bytes), Ok(Some((read, 5))));
        }
        let (ms, state) = (Duration::from_millis(5), vec![8; 9]);
        for (bytes, read) in [
            (status_wanted(7, ms), Notice::StatusWanted(7, ms)),
            (status(u64::MAX, &state), Notice::Status(u64::MAX, state)),
        ] {
            (0..bytes.len()).for_each(|cut| assert_eq!(parse(&bytes[..cut]), Ok(None)));
            assert_eq!(parse(&bytes), Ok(Some((read, bytes.len()))));
        }
        assert!(parse(&status(1, &vec![0; STATUS_BYTES + 1])).is_err());
        let counts = [
            (goodbye(7), Notice::Goodbye(7)),
            (ask(8), Notice::Ask(8)),
            (taken(u64::MAX), Notice::Taken(u64::MAX)),
        ];
        for (bytes, read) in counts {
            (0..9).for_each(|cut| assert_eq!(parse(&bytes[..cut]), Ok(None)));
            assert_eq!(parse(&bytes), Ok(Some((read, 9))));
        }
        assert!(parse(b"x").is_err());
        assert!(parse(&[b'F', 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]).is_err());
    }
}
