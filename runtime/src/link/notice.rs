//! What a rank tells peers that do not see its memory, against the direction of their messages:
//! `G`: it leaves in order; `F` with a failure record: `code u8 · culprit i32 · length u16 · text`;
//! `D` with the collective that it waits in: `number u64 · what u32 · count u64`.

use super::direct::{RECORD_TEXT, Record};
use crate::descriptor::Descriptor;
use crate::error::Code;

/// It leaves in order.
pub const GOODBYE: &[u8] = b"G";
const HEADER: usize = 8;
/// The longest notice.
pub const MAX_BYTES: usize = HEADER + RECORD_TEXT;

/// A notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// See [`GOODBYE`].
    Goodbye,
    /// It failed.
    Failed(Record),
    /// It waits in the collective of this number.
    Doing(u64, Descriptor),
}

/// The bytes of a failure's notice.
pub fn failed(record: &Record) -> Vec<u8> {
    let text = record.text(RECORD_TEXT).as_bytes();
    let mut bytes = vec![b'F', record.code as i32 as u8];
    bytes.extend(record.culprit.to_le_bytes());
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text);
    bytes
}

/// The bytes that tell what this rank waits in.
pub fn doing(seq: u64, descriptor: Descriptor) -> Vec<u8> {
    let (what, count) = descriptor.to_words();
    let mut bytes = vec![b'D'];
    bytes.extend(seq.to_le_bytes());
    bytes.extend(what.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes
}

/// Reads a notice: it and its size, None while it is not complete, or an error for anything else.
pub fn parse(bytes: &[u8]) -> Result<Option<(Notice, usize)>, String> {
    match bytes {
        [] => Ok(None),
        [b'G', ..] => Ok(Some((Notice::Goodbye, 1))),
        [b'F', code, a, b, c, d, low, high, text @ ..] => {
            let len = usize::from(u16::from_le_bytes([*low, *high]));
            if len > RECORD_TEXT {
                return Err(format!("a notice of {len} bytes"));
            }
            let Some(text) = text.get(..len) else { return Ok(None) };
            let record = Record {
                code: Code::from_number(i32::from(*code)),
                culprit: i32::from_le_bytes([*a, *b, *c, *d]),
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
        [other, ..] => Err(format!("a notice of kind {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::DataType;

    #[test]
    fn notices_survive_the_round_trip_and_wait_for_their_last_byte() {
        let record = Record { code: Code::InvalidUsage, culprit: -1, text: "ü".repeat(900) };
        let bytes = failed(&record);
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut}");
        }
        let Ok(Some((Notice::Failed(read), len))) = parse(&bytes) else { panic!("no record") };
        assert_eq!((read.code, read.culprit, len), (record.code, -1, bytes.len()));
        assert_eq!(read.text, "ü".repeat(500));
        let message = Descriptor::message(DataType::Int8, 9);
        let bytes = doing(7, message);
        (0..21).for_each(|cut| assert_eq!(parse(&bytes[..cut]), Ok(None)));
        let read = Notice::Doing(7, message);
        assert_eq!(parse(&bytes), Ok(Some((read, 21))));
        assert_eq!(parse(b"G"), Ok(Some((Notice::Goodbye, 1))));
        assert!(parse(b"x").is_err());
        assert!(parse(&[b'F', 0, 0, 0, 0, 0, 255, 255]).is_err());
    }
}
