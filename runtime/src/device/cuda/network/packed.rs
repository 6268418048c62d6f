//! Small messages as packets beside the slots, as `lanes.cuh` has them.

use super::word;
use oxccl_kernels::abi::{NET_PACKED_BYTES, PackedMessage};
use std::iter::repeat;
use std::sync::atomic::Ordering;

/// A message that a kernel has written as packets.
pub(super) struct Packed {
    /// The first word of its descriptor; in the upper half the bytes of data.
    pub(super) what: u64,
    /// The second word.
    pub(super) count: u64,
    data: [u8; NET_PACKED_BYTES],
}

impl Packed {
    /// Returns message `number`, once all of its packets have come.
    pub(super) fn read(from: &PackedMessage, number: u64) -> Option<Self> {
        let [count, what] = [word_of(from, number, 0)?, word_of(from, number, 1)?];
        let mut packed = Self { what, count, data: [0; NET_PACKED_BYTES] };
        let words = packed.len().div_ceil(8);
        for (i, to) in packed.data.chunks_mut(8).take(words).enumerate() {
            to.copy_from_slice(&word_of(from, number, i + 2)?.to_le_bytes());
        }
        Some(packed)
    }

    /// Returns the data.
    pub(super) fn data(&self) -> &[u8] {
        &self.data[..self.len()]
    }

    fn len(&self) -> usize {
        ((self.what >> 32) as usize).min(NET_PACKED_BYTES)
    }
}

/// Returns what a packet of message `number` holds, if it has come.
fn word_of(from: &PackedMessage, number: u64, packet: usize) -> Option<u64> {
    let [low, high] =
        from.packets[packet].each_ref().map(|half| word(half).load(Ordering::Acquire));
    let flag = number as u32;
    let has_come = (low >> 32) as u32 == flag && (high >> 32) as u32 | 1 == !flag | 1;
    has_come.then(|| u64::from(low as u32) | high << 32)
}

/// Marks the packets of a slot as those of message `number`, which has other words than any message
/// that is awaited. So whoever looks for the next message there finds no older one, whose number
/// may end in the same 32 bits.
pub(super) fn pass(slot: &PackedMessage, number: u64) {
    write(slot, number, [u64::MAX; 2], &[]);
}

/// Writes message `number`, of up to [`NET_PACKED_BYTES`], for a kernel.
pub(super) fn write(to: &PackedMessage, number: u64, [what, count]: [u64; 2], data: &[u8]) {
    let bytes = |chunk: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    };
    let words = [count, what].into_iter().chain(data.chunks(8).map(bytes)).chain(repeat(0));
    for ([low, high], data) in to.packets.iter().zip(words) {
        let flag = u64::from(number as u32);
        word(low).store(flag << 32 | u64::from(data as u32), Ordering::Relaxed);
        word(high).store((!flag & !1) << 32 | data >> 32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_kernels::abi::NET_SLOTS;

    /// Messages of every size, at numbers that wrap around, over those of the slot before.
    #[test]
    fn a_message_is_read_once_all_of_its_packets_have_come() {
        let message = PackedMessage::default();
        let mut number = u64::from(u32::MAX) - 239;
        pass(&message, number - NET_SLOTS as u64);
        for len in 0..=NET_PACKED_BYTES {
            let data: Vec<u8> = (0..len).map(|i| (i + len) as u8).collect();
            let words = [7 | (len as u64) << 32, number ^ 0x5555];
            let halves = || message.packets.iter().flatten().map(word);
            let before: Vec<_> = halves().map(|half| half.load(Ordering::Relaxed)).collect();
            write(&message, number, words, &data);
            // Without one of its halves, which is as it was before, the message is not there.
            for (half, before) in halves().zip(before).take(2 * (2 + len.div_ceil(8))) {
                let new = half.swap(before, Ordering::Relaxed);
                assert!(Packed::read(&message, number).is_none(), "{len}");
                half.store(new, Ordering::Relaxed);
            }
            let read = Packed::read(&message, number).unwrap();
            assert_eq!((read.what, read.count, read.data()), (words[0], words[1], &data[..]));
            assert!(Packed::read(&message, number + 1).is_none());
            number += NET_SLOTS as u64;
        }
    }
}
