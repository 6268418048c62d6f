//! Collectives with a count for every rank, translated into transfers or reductions.
//!
//! The translation from counts to operations that a group can launch is pure; nothing here knows a
//! communicator.

use crate::error::{Error, Result};
use crate::op::{Call, Transfer};
use oxccl_plan::words::counted;
use oxccl_plan::{Collective, DataType, Spec};

/// The part of a buffer that belongs to one rank, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The offset from the beginning of the buffer.
    pub offset: usize,
    /// The size of the part.
    pub bytes: usize,
}

/// A number per rank, with the name of the argument that holds the numbers.
pub type Named<'a> = (&'static str, &'a [usize]);

/// Returns the parts of a buffer, from counts and displacements in elements of `size` bytes.
pub fn parts(
    function: &'static str,
    counts: Named<'_>,
    displs: Named<'_>,
    size: usize,
) -> Result<Vec<Part>> {
    let both = counts.1.iter().zip(displs.1).enumerate();
    let part = |(rank, (&count, &displ)): (usize, (&usize, &usize))| {
        let bytes = in_bytes(function, counts.0, rank, count, size)?;
        let offset = match bytes {
            // A part without data may have any displacement.
            0 => 0,
            _ => in_bytes(function, displs.0, rank, displ, size)?,
        };
        if offset.checked_add(bytes).is_none_or(|end| end > isize::MAX as usize) {
            let elements = counted(count, "element", "elements");
            let got = format!("{displ} for rank {rank}, with {elements} from there");
            return Err(too_large(function, displs.0, got));
        }
        Ok(Part { offset, bytes })
    };
    both.map(part).collect()
}

/// Returns the parts of a buffer in which they lie one after the other, in the order of ranks.
pub fn packed(function: &'static str, counts: Named<'_>, size: usize) -> Result<Vec<Part>> {
    let mut offset = 0usize;
    let mut parts = Vec::new();
    for (rank, &count) in counts.1.iter().enumerate() {
        let bytes = in_bytes(function, counts.0, rank, count, size)?;
        parts.push(Part { offset, bytes });
        offset = offset.checked_add(bytes).filter(|&end| end <= isize::MAX as usize).ok_or_else(
            || too_large(function, counts.0, format!("{count} for rank {rank}, beyond all others")),
        )?;
    }
    Ok(parts)
}

fn in_bytes(
    function: &'static str,
    argument: &'static str,
    rank: usize,
    elements: usize,
    size: usize,
) -> Result<usize> {
    let bytes = elements.checked_mul(size).filter(|&b| b <= isize::MAX as usize);
    bytes.ok_or_else(|| too_large(function, argument, format!("{elements} for rank {rank}")))
}

fn too_large(function: &'static str, argument: &'static str, got: String) -> Error {
    Error::argument(function, argument, got, "elements that fit the address space")
}

/// Returns the sends and receives of a rank; `send` and `recv` give the parts that go to and come
/// from every rank. The part that the rank keeps is a message to itself.
///
/// Fails if a rank sends itself another number of bytes than it receives, if the data of two ranks
/// would come to the same place, or if data would come to a place that is yet to be sent. The part
/// that the rank keeps may stay where it is (in place).
pub fn transfers(
    function: &'static str,
    (rank, dtype): (u32, DataType),
    send: (*const u8, &[Part]),
    recv: (*mut u8, &[Part]),
) -> Result<Vec<Transfer>> {
    let kept = (send.1[rank as usize].bytes, recv.1[rank as usize].bytes);
    if kept.0 != kept.1 {
        let size = |bytes: usize| counted(bytes, "byte", "bytes");
        let got = format!("{} for rank {rank} itself", size(kept.1));
        let expected = format!("{}, what it sends to itself", size(kept.0));
        return Err(Error::argument(function, "recvcounts", got, expected));
    }
    let direction = |base: *mut u8, parts, send| {
        let numbered = (0u32..).zip(parts).filter(|(_, part): &(u32, &Part)| part.bytes > 0);
        numbered.map(move |(peer, part)| {
            let data = base.wrapping_add(part.offset);
            Transfer { peer, send, data, bytes: part.bytes, dtype }
        })
    };
    let sends: Vec<_> = direction(send.0.cast_mut(), send.1, true).collect();
    let mut receives: Vec<_> = direction(recv.0, recv.1, false).collect();
    check_apart(function, rank, &sends, &mut receives)?;
    Ok(sends.into_iter().chain(receives).collect())
}

/// Returns the begin and the end of the data of a transfer.
fn span(t: &Transfer) -> (usize, usize) {
    (t.data.addr(), t.data.addr().wrapping_add(t.bytes))
}

/// Checks that no receive overlaps another receive or a send; sorts the receives by address to
/// compare each with its neighbours.
fn check_apart(
    function: &'static str,
    rank: u32,
    sends: &[Transfer],
    receives: &mut [Transfer],
) -> Result<()> {
    receives.sort_by_key(span);
    if let Some([a, b]) = receives.windows(2).find(|w| span(&w[0]).1 > span(&w[1]).0) {
        let got = format!("such that the data of ranks {} and {} overlap", a.peer, b.peer);
        let expected = "a place of its own for the data of every rank";
        return Err(Error::argument(function, "the receive displacements", got, expected));
    }
    // Data that stay where they are overwrite nothing.
    let stays = sends
        .iter()
        .find(|s| s.peer == rank)
        .filter(|s| receives.iter().any(|r| r.peer == rank && std::ptr::eq(r.data, s.data)));
    for send in sends {
        let (begin, end) = span(send);
        let first = receives.partition_point(|r| span(r).1 <= begin);
        let stays = |r: &&Transfer| stays.is_some() && r.peer == rank;
        let mut over = receives[first..].iter().take_while(|r| span(r).0 < end);
        if let Some(r) = over.find(|r| !stays(r)) {
            let got = format!("where data of rank {} come, too", r.peer);
            let got = format!("such that data for rank {} lie {got}", send.peer);
            let expected =
                "apart from recvbuff, or in place: what this rank keeps at its own place";
            return Err(Error::argument(function, "sendbuff", got, expected));
        }
    }
    Ok(())
}

/// Returns the reductions that leave the block of every rank with that rank. `whole` is the call as
/// a reduce-scatter whose count is ignored; its output is this rank's block.
///
/// Fails if the output overlaps the input, except in place: there the output may be this rank's
/// block of the input.
pub fn reductions(
    function: &'static str,
    rank: u32,
    whole: Call,
    blocks: &[Part],
) -> Result<Vec<Call>> {
    let own = blocks[rank as usize];
    let total: usize = blocks.iter().map(|b| b.bytes).sum();
    let (from, to) = (whole.input.addr(), whole.output.addr());
    let in_place = to == from.wrapping_add(own.offset);
    let overlap = to < from.wrapping_add(total) && from < to.wrapping_add(own.bytes);
    if own.bytes > 0 && overlap && !in_place {
        let got = format!("within sendbuff, but not at the block of rank {rank}");
        let expected = "apart from sendbuff, or this rank's block of it";
        return Err(Error::argument(function, "recvbuff", got, expected));
    }
    let nranks = blocks.len() as u32;
    let owned = (0u32..).zip(blocks).filter(|(_, block)| block.bytes > 0);
    let reduce = |(owner, block): (u32, &Part)| Call {
        spec: Spec::new(Collective::Reduce, nranks, owner),
        input: whole.input.wrapping_add(block.offset),
        output: if owner == rank { whole.output } else { std::ptr::null_mut() },
        count: (block.bytes / whole.dtype.size()) as u64,
        ..whole
    };
    Ok(owned.map(reduce).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::ReduceOp;

    const F: &str = "f";

    fn part(offset: usize, bytes: usize) -> Part {
        Part { offset, bytes }
    }

    #[test]
    fn counts_become_bytes_and_what_cannot_exist_is_refused() {
        let made = parts(F, ("c", &[3, 0]), ("d", &[5, usize::MAX]), 4).unwrap();
        assert_eq!(made, [part(20, 12), part(0, 0)]);
        let error = |c: &[usize], d: &[usize]| parts(F, ("c", c), ("d", d), 8).unwrap_err();
        let text = error(&[1, usize::MAX / 8], &[0, 0]).to_string();
        assert!(text.contains("argument c") && text.contains("for rank 1"), "{text}");
        let text = error(&[1, 1], &[usize::MAX / 16 - 1, usize::MAX / 16]).to_string();
        assert!(text.contains("argument d") && text.contains("for rank 1"), "{text}");
        assert_eq!(
            packed(F, ("c", &[2, 0, 1]), 8).unwrap(),
            [part(0, 16), part(16, 0), part(16, 8)]
        );
        assert!(packed(F, ("c", &[1 << 59, 1 << 59]), 8).is_err());
    }

    #[test]
    fn what_goes_to_and_comes_from_nobody_is_no_transfer() {
        let (from, mut to) = ([0u8; 8], [0u8; 8]);
        let (send, recv) =
            ([part(0, 2), part(2, 0), part(2, 3)], [part(0, 0), part(0, 0), part(1, 3)]);
        let made =
            transfers(F, (2, DataType::Uint8), (from.as_ptr(), &send), (to.as_mut_ptr(), &recv))
                .unwrap();
        let seen: Vec<_> = made.iter().map(|t| (t.peer, t.send, t.bytes)).collect();
        assert_eq!(seen, [(0, true, 2), (2, true, 3), (2, false, 3)]);
        assert_eq!(made[1].data.cast_const(), from[2..].as_ptr());
        assert_eq!(made[2].data, to[1..].as_mut_ptr());
    }

    #[test]
    fn overlaps_name_both_ranks_and_in_place_is_none() {
        let mut buffer = [0u8; 32];
        let base = buffer.as_mut_ptr();
        let text = |send: &[Part], recv: &[Part], at: usize| {
            let from = base.wrapping_add(at).cast_const();
            transfers(F, (1, DataType::Uint8), (from, send), (base, recv))
                .map_err(|e| e.to_string())
        };
        let all = [part(0, 4); 3];
        let gathered = [part(0, 5), part(8, 4), part(4, 4)];
        let wrong = text(&all, &gathered, 16).unwrap_err();
        assert!(wrong.contains("ranks 0 and 2 overlap"), "{wrong}");
        let gathered = [part(0, 4), part(8, 4), part(4, 4)];
        // In place, at the rank's own part; and then one byte beside that part.
        assert_eq!(text(&all, &gathered, 8).unwrap().len(), 6);
        let wrong = text(&all, &gathered, 7).unwrap_err();
        assert!(wrong.contains("data for rank 0 lie where data of rank 2 come"), "{wrong}");
        let wrong = text(&[part(0, 1), part(1, 3), part(0, 1)], &gathered, 16).unwrap_err();
        assert!(wrong.contains("4 bytes for rank 1 itself"), "{wrong}");
    }

    #[test]
    fn each_block_is_reduced_to_its_owner() {
        let (input, mut output) = ([0u8; 64], [0u8; 64]);
        let whole = Call {
            spec: Spec::new(Collective::ReduceScatter, 3, 0),
            input: input.as_ptr(),
            output: output.as_mut_ptr(),
            count: 0,
            dtype: DataType::Int32,
            op: ReduceOp::Max,
            scale: None,
        };
        let blocks = [part(0, 8), part(8, 0), part(8, 4)];
        let calls = reductions(F, 2, whole, &blocks).unwrap();
        let seen: Vec<_> = calls.iter().map(|c| (c.spec.root, c.count, c.output)).collect();
        assert_eq!(seen, [(0, 2, std::ptr::null_mut()), (2, 1, output.as_mut_ptr())]);
        assert_eq!(calls[1].input, input[8..].as_ptr());
        let at = |offset: usize| Call { output: input[offset..].as_ptr().cast_mut(), ..whole };
        assert!(reductions(F, 2, at(8), &blocks).is_ok());
        assert!(reductions(F, 2, at(0), &blocks).is_err());
    }
}
