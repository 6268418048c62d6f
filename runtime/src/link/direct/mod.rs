//! The links between ranks of one host: one shared segment per communicator.
//!
//! Each rank owns a control page (signals, entry words, packets), a stage of two slots that the
//! other ranks read, and an edge to each other rank. Every word has one writer. Counters wrap
//! around: they are compared by their difference.

use super::{EDGE_SLOTS, Message};
use crate::error::Code;
use crate::op::descriptor::{Descriptor, Label};
use crate::os::copy::Handover;
use crate::os::memory::Mapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of data in a packet: a cache line without the word that says which operation filled it.
pub const PACKET_DATA: usize = 56;
/// Packets in each of a rank's two packet slots.
pub const PACKETS: usize = 147;
/// The most lines that are fetched before they are written, by the number of ranks that have copies
/// of them: 2 KiB for one reader. The more readers, the more the fetches hold up what they read
/// meanwhile (`docs/results/host-small-2026-11-26.md`).
const FETCHED: usize = 40;
/// Lines that are fetched for writing together; a core has some ten under way at a time.
const TOGETHER: usize = 8;
/// The most bytes that a rank can publish in packets: a little over 8 KiB.
pub const PACKET_BYTES: usize = PACKETS * PACKET_DATA;
/// Bytes of one of a rank's two stage slots.
pub const STAGE_SLOT_BYTES: usize = 256 << 10;

/// The size of a page; the parts of a segment are whole pages.
const PAGE: usize = 4096;

/// A rank's signals, the tags of its collectives and its entry words share a line: peers look at
/// them one after the other.
const PHASE_AT: usize = 0;
const TAGS_AT: usize = 8;
const ENTRY_AT: usize = TAGS_AT + TAGS as usize * 8;
const STATE_AT: usize = LINE;
const WRITING_AT: usize = 4 * LINE;
const OUT_AT: usize = 5 * LINE;
const PULSE_AT: usize = 6 * LINE;
const ENDING_AT: usize = 7 * LINE;
const RING_AT: usize = 1024;
const RECORD_AT: usize = 2048;
const PACKETS_AT: usize = 4096;
const CONTROL_BYTES: usize = 24 << 10;
const WINDOWS_AT: usize = 22912;
const EDGE_HEADER: usize = 4096;
const SIGNALS_AT: usize = 1024;

/// Windows that a rank can have registered at a time.
pub const WINDOWS: usize = 64;
/// Signals of a rank for each of its peers.
pub const SIGNALS: u32 = 64;
/// Collectives whose tags are kept beside a rank's signals.
const TAGS: u64 = 3;
/// Collectives whose descriptors a rank keeps for its peers to look up.
pub const RING: u64 = 64;
/// Bytes of the longest text of a failure record.
pub const RECORD_TEXT: usize = 1000;

const _: () = assert!(ENTRY_AT + 2 * 2 * 8 <= STATE_AT);
const _: () = assert!(RING_AT + RING as usize * 16 <= RECORD_AT);
const _: () = assert!(RECORD_AT + 24 + RECORD_TEXT <= PACKETS_AT);
const _: () = assert!(PACKETS_AT + 2 * PACKETS * LINE <= WINDOWS_AT);
const _: () = assert!(WINDOWS_AT + WINDOWS * 24 <= CONTROL_BYTES);
const _: () = assert!(2 * LINE + 2 * EDGE_SLOTS * 8 <= SIGNALS_AT);
const _: () = assert!(SIGNALS_AT + SIGNALS as usize * 8 <= EDGE_HEADER);

/// Returns whether `counter` has reached `target`, also across the wrap-around.
#[inline(always)]
pub fn reached(counter: u64, target: u64) -> bool {
    counter.wrapping_sub(target) as i64 >= 0
}

/// The state that a rank publishes in its state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PeerState {
    /// The rank is running, or has not arrived yet.
    Running = 0,
    /// The rank has destroyed its communicator in order.
    Left = 1,
    /// The rank's communicator failed or was aborted; its record says why. The rank expects that no
    /// peer writes into its memory any more.
    Failed = 2,
}

/// The failure record, which a rank publishes for its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The code of the error.
    pub code: Code,
    /// The rank at fault. If a time limit has passed, it is the rank that was waited for; if the
    /// calls differ, the rank that found this. −1 if there is none.
    pub culprit: i32,
    /// The rank that found the failure; the other ranks pass the record on.
    pub reporter: u32,
    /// The cause alone, as text.
    pub text: String,
}

impl Record {
    /// Returns the text, or as much of it as fits `limit` bytes.
    pub fn text(&self, limit: usize) -> &str {
        let fits = |end: &usize| *end <= limit && self.text.is_char_boundary(*end);
        &self.text[..(0..=self.text.len()).rev().find(fits).unwrap_or(0)]
    }
}

/// The division of the segment, which is the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    /// The number of ranks of this host.
    pub nlocal: usize,
    /// Bytes of an edge's slot.
    pub edge_slot_bytes: usize,
}

impl SegmentLayout {
    fn rank_bytes(&self) -> usize {
        CONTROL_BYTES + 2 * STAGE_SLOT_BYTES
    }

    fn edge_bytes(&self) -> usize {
        EDGE_HEADER + EDGE_SLOTS * self.edge_slot_bytes
    }

    /// Returns the bytes of the whole segment. It is sparse: only what is used takes memory.
    pub fn bytes(&self) -> usize {
        self.nlocal * self.rank_bytes() + self.nlocal * self.nlocal * self.edge_bytes()
    }
}

/// A mapped segment. Ranks are numbered by their place among the host's ranks.
pub struct Segment {
    mapping: Mapping,
    layout: SegmentLayout,
    /// The way in which this rank writes what its peers read.
    pub handover: Handover,
}

/// Loads up to 8 bytes as a word, zeros after them.
///
/// # Safety
/// `from` is readable for `min(bytes, 8)` bytes.
#[inline]
unsafe fn load_word(from: *const u8, bytes: usize) -> u64 {
    if bytes >= 8 {
        // SAFETY: 8 bytes are readable.
        return unsafe { from.cast::<u64>().read_unaligned() };
    }
    let mut word = [0; 8];
    for (i, byte) in word[..bytes].iter_mut().enumerate() {
        // SAFETY: `bytes` bytes are readable.
        *byte = unsafe { from.add(i).read() };
    }
    u64::from_ne_bytes(word)
}

/// Stores up to 8 bytes of a word.
///
/// # Safety
/// `to` is writable for `min(bytes, 8)` bytes.
#[inline]
unsafe fn store_word(to: *mut u8, word: u64, bytes: usize) {
    if bytes >= 8 {
        // SAFETY: 8 bytes are writable.
        return unsafe { to.cast::<u64>().write_unaligned(word) };
    }
    for (i, byte) in word.to_ne_bytes()[..bytes].iter().enumerate() {
        // SAFETY: `bytes` bytes are writable.
        unsafe { to.add(i).write(*byte) };
    }
}

/// Fetches a line into this core's cache, and takes it from the others' caches.
#[inline]
fn fetch_for_writing(line: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing that a program sees. Processors without the instruction
    // ignore it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

/// Fetches a line into this core's cache.
#[inline]
fn fetch_for_reading(line: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing that a program sees.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

impl Segment {
    /// Wraps a mapping of `layout.bytes()` bytes.
    pub fn new(mapping: Mapping, layout: SegmentLayout) -> Self {
        assert!(mapping.bytes() >= layout.bytes(), "the mapping holds the segment");
        Self { mapping, layout, handover: Handover::default() }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.layout.bytes());
        // SAFETY: callers compute offsets within the layout, which the mapping holds.
        unsafe { self.mapping.base().add(offset) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: offsets of words are multiples of 8 within the mapping, which lives as long as
        // `self`; all ranks access them atomically only.
        unsafe { &*self.at(offset).cast::<AtomicU64>() }
    }

    fn rank(&self, local: usize) -> usize {
        local * self.layout.rank_bytes()
    }

    /// Returns the signals of a rank.
    #[inline(always)]
    pub fn phase(&self, local: usize) -> &AtomicU64 {
        self.word(self.rank(local) + PHASE_AT)
    }

    /// Returns the state word of a rank, a [`PeerState`].
    pub fn state(&self, local: usize) -> &AtomicU64 {
        self.word(self.rank(local) + STATE_AT)
    }

    /// Returns the word that is set once a rank on a GPU has left and nothing of it runs there:
    /// from then on it writes nowhere.
    pub fn out(&self, local: usize) -> &AtomicU64 {
        self.word(self.rank(local) + OUT_AT)
    }

    /// Returns the word that is set once a rank's operations are over and none can follow: what it
    /// has not taken by then it never takes.
    pub fn ending(&self, local: usize) -> &AtomicU64 {
        self.word(self.rank(local) + ENDING_AT)
    }

    /// Returns the count of a rank's signs of life, for peers that cannot watch its process.
    pub fn pulse(&self, local: usize) -> &AtomicU64 {
        self.word(self.rank(local) + PULSE_AT)
    }

    /// Returns the word that is set while a rank is writing into the user memory of others.
    pub fn writing(&self, local: usize) -> &AtomicU64 {
        self.word(self.rank(local) + WRITING_AT)
    }

    fn tag(&self, local: usize, seq: u64) -> &AtomicU64 {
        self.word(self.rank(local) + TAGS_AT + 8 * (seq % TAGS) as usize)
    }

    fn ring(&self, local: usize, seq: u64, word: usize) -> &AtomicU64 {
        self.word(self.rank(local) + RING_AT + (seq % RING) as usize * 16 + word * 8)
    }

    /// Publishes the description of this rank's collective number `seq`, before its first signal.
    #[inline]
    pub fn announce(&self, local: usize, seq: u64, label: &Label) {
        let (what, count) = label.descriptor.to_words();
        // A reader takes the count only if the first word is right before and after reading it.
        self.ring(local, seq, 0).store(0, Ordering::Relaxed);
        self.ring(local, seq, 1).store(count, Ordering::Release);
        let first = (seq.wrapping_add(1) << 32) | u64::from(what);
        self.ring(local, seq, 0).store(first, Ordering::Release);
        let word = (seq.wrapping_add(1) << 32) | u64::from(label.tag);
        self.tag(local, seq).store(word, Ordering::Relaxed);
    }

    /// Returns the description of a rank's collective number `seq`. `None` if the rank has not
    /// begun it, or began it so long ago that it no longer keeps the description.
    pub fn announced(&self, local: usize, seq: u64) -> Option<Descriptor> {
        let first = self.ring(local, seq, 0).load(Ordering::Acquire);
        let count = self.ring(local, seq, 1).load(Ordering::Acquire);
        let again = self.ring(local, seq, 0).load(Ordering::Relaxed);
        let right = first >> 32 == seq.wrapping_add(1) & u64::from(u32::MAX) && first == again;
        right.then(|| Descriptor::from_words(first as u32, count))
    }

    /// Returns whether a rank has begun its collective number `seq`, or a later one.
    pub fn has_begun(&self, local: usize, seq: u64) -> bool {
        let number = (self.ring(local, seq, 0).load(Ordering::Acquire) >> 32) as u32;
        number != 0 && number.wrapping_sub(seq.wrapping_add(1) as u32) as i32 >= 0
    }

    /// Returns whether a rank that has signalled in its collective `seq` does what `label` says. Of
    /// a rank that is far ahead only the descriptor is known, or nothing.
    #[inline(always)]
    pub fn agrees(&self, local: usize, seq: u64, label: &Label) -> bool {
        let number = seq.wrapping_add(1) << 32;
        let word = self.tag(local, seq).load(Ordering::Relaxed);
        if word == number | u64::from(label.tag) {
            return true;
        }
        let is_kept = word >> 32 == number >> 32;
        !is_kept && self.announced(local, seq).is_none_or(|theirs| theirs == label.descriptor)
    }

    /// Writes this rank's failure record and sets its state.
    pub fn publish_failure(&self, local: usize, record: &Record) {
        let mut text = [0; RECORD_TEXT];
        let bytes = record.text(RECORD_TEXT).as_bytes();
        let len = bytes.len();
        text[..len].copy_from_slice(bytes);
        let at = self.rank(local) + RECORD_AT;
        let codes = (record.code as u64) << 32 | u64::from(record.culprit as u32);
        self.word(at).store(codes, Ordering::Relaxed);
        let rest = u64::from(record.reporter) << 32 | len as u64;
        self.word(at + 8).store(rest, Ordering::Relaxed);
        for (i, bytes) in text.chunks_exact(8).enumerate() {
            let value = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
            self.word(at + 16 + i * 8).store(value, Ordering::Relaxed);
        }
        self.state(local).store(PeerState::Failed as u64, Ordering::SeqCst);
    }

    /// Returns the failure record of a rank; `None` if its state does not say that it failed.
    pub fn failure(&self, local: usize) -> Option<Record> {
        if self.state(local).load(Ordering::Acquire) != PeerState::Failed as u64 {
            return None;
        }
        let at = self.rank(local) + RECORD_AT;
        let codes = self.word(at).load(Ordering::Relaxed);
        let rest = self.word(at + 8).load(Ordering::Relaxed);
        let len = (rest as u32 as usize).min(RECORD_TEXT);
        let words = (0..len.div_ceil(8))
            .flat_map(|i| self.word(at + 16 + i * 8).load(Ordering::Relaxed).to_ne_bytes());
        let bytes: Vec<u8> = words.take(len).collect();
        Some(Record {
            code: Code::from_number((codes >> 32) as i32),
            culprit: codes as u32 as i32,
            reporter: (rest >> 32) as u32,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        })
    }

    /// Returns entry word `i` of 2 in entry slot `slot` of 2.
    pub fn entry(&self, local: usize, slot: usize, i: usize) -> &AtomicU64 {
        self.word(self.rank(local) + ENTRY_AT + (slot * 2 + i) * 8)
    }

    /// Returns the start of a stage slot.
    pub fn stage(&self, local: usize, slot: usize) -> *mut u8 {
        self.at(self.rank(local) + CONTROL_BYTES + slot * STAGE_SLOT_BYTES)
    }

    /// Gives the memory of a stage slot back to the system. The slot then reads as zeros.
    pub fn release_stage(&self, local: usize, slot: usize) {
        let (at, bytes) = (self.stage(local, slot), STAGE_SLOT_BYTES);
        // SAFETY: whole pages of the segment, whose contents nobody needs any more.
        let _ = unsafe { rustix::mm::madvise(at.cast(), bytes, rustix::mm::Advice::LinuxRemove) };
    }

    /// Returns the bytes of this rank's stage, and of its other parts, that are in memory.
    pub fn resident(&self, local: usize) -> (u64, u64) {
        let count = |at: *mut u8, bytes: usize| {
            let mut pages = vec![0u8; bytes.div_ceil(PAGE)];
            // SAFETY: whole pages of the segment, and a byte for each.
            let done = unsafe { libc::mincore(at.cast(), bytes, pages.as_mut_ptr()) };
            if done != 0 {
                return 0;
            }
            (pages.iter().filter(|&&page| page & 1 == 1).count() * PAGE) as u64
        };
        let stage = count(self.stage(local, 0), 2 * STAGE_SLOT_BYTES);
        let control = count(self.at(self.rank(local)), CONTROL_BYTES);
        let edges = self.layout.nlocal * self.layout.edge_bytes();
        (stage, control + count(self.at(self.edge(local, 0)), edges))
    }

    #[inline(always)]
    fn packet(&self, local: usize, slot: usize, line: usize) -> &[AtomicU64; 8] {
        debug_assert!(slot < 2 && line < PACKETS);
        let offset = self.rank(local) + PACKETS_AT + (slot * PACKETS + line) * LINE;
        // SAFETY: a line of 8 aligned words within the mapping, accessed atomically only.
        unsafe { &*self.at(offset).cast::<[AtomicU64; 8]>() }
    }

    /// Sets the counters of a rank, before any peer reads them. All counters start at `start`, and
    /// no packet matches until the counters have wrapped around.
    pub fn initialise(&self, local: usize, start: u64) {
        for slot in 0..2 {
            for line in 0..PACKETS {
                self.packet(local, slot, line)[7].store(start, Ordering::Relaxed);
            }
        }
        for peer in 0..self.layout.nlocal {
            self.edge_word(local, peer, 0).store(start, Ordering::Relaxed);
            self.edge_word(peer, local, 1).store(start, Ordering::Relaxed);
        }
        self.phase(local).store(start, Ordering::Release);
    }

    /// Publishes bytes as packets marked `epoch`.
    ///
    /// # Safety
    /// `src` is readable for `len` ≤ [`PACKET_BYTES`] bytes; the caller is the rank `local` and has
    /// acquired the slot.
    pub unsafe fn write_packets(
        &self,
        local: usize,
        slot: usize,
        src: *const u8,
        len: usize,
        epoch: u64,
    ) {
        let lines = len.div_ceil(PACKET_DATA);
        for line in 0..lines {
            if line % TOGETHER == 0 && lines > 1 {
                // Stores wait for one line after the other.
                for next in line..lines.min(line + TOGETHER) {
                    fetch_for_writing(&self.packet(local, slot, next)[0]);
                }
            }
            let at = line * PACKET_DATA;
            let bytes = PACKET_DATA.min(len - at);
            let words = self.packet(local, slot, line);
            if bytes == PACKET_DATA {
                for (i, word) in words[..7].iter().enumerate() {
                    // SAFETY: 56 bytes from `at` on are readable.
                    let value = unsafe { src.add(at + i * 8).cast::<u64>().read_unaligned() };
                    word.store(value, Ordering::Relaxed);
                }
            } else {
                for (word, from) in words.iter().zip((0..bytes).step_by(8)) {
                    // SAFETY: `bytes` bytes from `at` on are readable.
                    let value = unsafe { load_word(src.add(at + from), bytes - from) };
                    word.store(value, Ordering::Relaxed);
                }
            }
            words[7].store(epoch, Ordering::Release);
        }
    }

    /// Copies `len` published bytes from byte `from` on, once all their packets carry `epoch`.
    /// Returns false if one of them does not yet.
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes, and `from + len` ≤ [`PACKET_BYTES`].
    pub unsafe fn read_packets(
        &self,
        local: usize,
        slot: usize,
        from: usize,
        dst: *mut u8,
        len: usize,
        epoch: u64,
    ) -> bool {
        let (mut done, mut at) = (0, from);
        while done < len {
            let (line, offset) = (at / PACKET_DATA, at % PACKET_DATA);
            let words = self.packet(local, slot, line);
            if words[7].load(Ordering::Acquire) != epoch {
                return false;
            }
            let bytes = (PACKET_DATA - offset).min(len - done);
            if bytes == PACKET_DATA {
                for (i, word) in words[..7].iter().enumerate() {
                    let value = word.load(Ordering::Relaxed);
                    // SAFETY: 56 bytes from `done` on are writable.
                    unsafe { dst.add(done + i * 8).cast::<u64>().write_unaligned(value) };
                }
            } else if offset == 0 {
                for (word, to) in words.iter().zip((0..bytes).step_by(8)) {
                    let value = word.load(Ordering::Relaxed);
                    // SAFETY: `bytes` bytes from `done` on are writable.
                    unsafe { store_word(dst.add(done + to), value, bytes - to) };
                }
            } else {
                let mut data = [0u8; PACKET_DATA];
                for (value, word) in data.chunks_exact_mut(8).zip(words) {
                    value.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                }
                // SAFETY: `bytes` bytes from `done` on are writable.
                unsafe {
                    std::ptr::copy_nonoverlapping(data.as_ptr().add(offset), dst.add(done), bytes);
                }
            }
            done += bytes;
            at += bytes;
        }
        true
    }

    /// Fetches the lines of the packets in which this rank will publish `len` bytes, for writing:
    /// the copies that readers have of a line make a write of it wait.
    #[inline]
    pub fn fetch_packets(&self, local: usize, slot: usize, len: usize) {
        let most = FETCHED / (self.layout.nlocal - 1).max(1);
        for line in 0..len.div_ceil(PACKET_DATA).min(most) {
            fetch_for_writing(&self.packet(local, slot, line)[0]);
        }
    }

    /// Fetches the packets with so many published bytes from byte `from` on, for reading.
    #[inline]
    pub fn expect_packets(&self, (local, slot): (usize, usize), from: usize, len: usize) {
        for line in from / PACKET_DATA..(from + len).div_ceil(PACKET_DATA) {
            fetch_for_reading(&self.packet(local, slot, line)[0]);
        }
    }

    /// Looks up to `looks` times whether the last packet of so many published bytes from byte
    /// `from` on carries `epoch`: packets are written in order, so the others are there mostly.
    /// Returns true for no bytes.
    #[inline]
    pub fn has_last_packet(
        &self,
        (local, slot): (usize, usize),
        from: usize,
        len: usize,
        epoch: u64,
        looks: u32,
    ) -> bool {
        if len == 0 {
            return true;
        }
        let number = &self.packet(local, slot, (from + len - 1) / PACKET_DATA)[7];
        (0..looks).any(|_| number.load(Ordering::Acquire) == epoch)
    }

    /// Returns where so many published bytes from byte `from` on lie, if one packet has them all.
    #[inline]
    pub fn in_one_packet(
        &self,
        (local, slot): (usize, usize),
        from: usize,
        len: usize,
    ) -> Option<*const u8> {
        let (line, offset) = (from / PACKET_DATA, from % PACKET_DATA);
        let fits = offset + len <= PACKET_DATA && len > 0;
        fits.then(|| self.packet(local, slot, line).as_ptr().cast::<u8>().wrapping_add(offset))
    }

    fn window_word(&self, local: usize, number: u64, word: usize) -> &AtomicU64 {
        let slot = (number % WINDOWS as u64) as usize;
        self.word(self.rank(local) + WINDOWS_AT + slot * 24 + word * 8)
    }

    /// Publishes this rank's window of a number by a token and its size. The place of the window
    /// must be free; all numbers that are equal modulo [`WINDOWS`] share it.
    pub fn open_window(&self, local: usize, number: u64, token: u64, len: u64) {
        self.window_word(local, number, 0).store(token, Ordering::Relaxed);
        self.window_word(local, number, 1).store(len, Ordering::Relaxed);
        self.window_word(local, number, 2).store(number.wrapping_add(1), Ordering::Release);
    }

    /// Removes a window of this rank.
    pub fn close_window(&self, local: usize, number: u64) {
        self.window_word(local, number, 2).store(0, Ordering::Release);
    }

    /// Returns the token and the size of a rank's window, once it is registered.
    pub fn window(&self, local: usize, number: u64) -> Option<(u64, u64)> {
        let open = self.window_word(local, number, 2).load(Ordering::Acquire);
        let word = |i| self.window_word(local, number, i).load(Ordering::Relaxed);
        (open == number.wrapping_add(1)).then(|| (word(0), word(1)))
    }

    /// Returns the count of a signal from `from` to `to`; only `from` writes it.
    pub fn signal(&self, from: usize, to: usize, signal: u32) -> &AtomicU64 {
        self.word(self.edge(from, to) + SIGNALS_AT + signal as usize * 8)
    }

    fn edge(&self, from: usize, to: usize) -> usize {
        let edges = self.layout.nlocal * self.layout.rank_bytes();
        edges + (from * self.layout.nlocal + to) * self.layout.edge_bytes()
    }

    /// Returns a counter of an edge. Word 0: messages sent, written by `from`; word 1: messages
    /// taken, written by `to`.
    fn edge_word(&self, from: usize, to: usize, word: usize) -> &AtomicU64 {
        self.word(self.edge(from, to) + word * LINE)
    }

    /// Returns the word with the length and the tag of the message in a slot.
    fn edge_len(&self, from: usize, to: usize, slot: usize) -> &AtomicU64 {
        self.word(self.edge(from, to) + 2 * LINE + slot * 8)
    }

    /// Returns the word with the bytes of the whole that the message in a slot is a piece of.
    fn edge_whole(&self, from: usize, to: usize, slot: usize) -> &AtomicU64 {
        self.word(self.edge(from, to) + 2 * LINE + (EDGE_SLOTS + slot) * 8)
    }

    fn edge_slot(&self, from: usize, to: usize, slot: usize) -> *mut u8 {
        self.at(self.edge(from, to) + EDGE_HEADER + slot * self.layout.edge_slot_bytes)
    }
}

/// The edges from and to one peer of the host.
pub struct DirectEdge {
    segment: Arc<Segment>,
    own: usize,
    peer: usize,
    sent: u64,
    taken_by_peer: u64,
    taken: u64,
    sent_by_peer: u64,
    start: u64,
}

impl DirectEdge {
    /// Creates the edges between two places of the host. All counters start at `start`.
    pub fn new(segment: Arc<Segment>, own: usize, peer: usize, start: u64) -> Self {
        let counters = (start, start, start, start);
        let (sent, taken_by_peer, taken, sent_by_peer) = counters;
        Self { segment, own, peer, sent, taken_by_peer, taken, sent_by_peer, start }
    }

    fn slot(&self, counter: u64) -> usize {
        (counter.wrapping_sub(self.start) % EDGE_SLOTS as u64) as usize
    }

    pub(super) fn reserve(&mut self) -> Option<*mut u8> {
        let full = |taken: u64| self.sent.wrapping_sub(taken) >= EDGE_SLOTS as u64;
        if full(self.taken_by_peer) {
            let taken = self.segment.edge_word(self.own, self.peer, 1).load(Ordering::Acquire);
            self.taken_by_peer = taken;
            if self.sent.wrapping_sub(taken) >= EDGE_SLOTS as u64 {
                return None;
            }
        }
        Some(self.segment.edge_slot(self.own, self.peer, self.slot(self.sent)))
    }

    pub(super) fn handover(&self) -> &Handover {
        &self.segment.handover
    }

    pub(super) fn commit(&mut self, len: usize, tag: u32, whole: u64) {
        let slot = self.slot(self.sent);
        let word = u64::from(tag) << 32 | len as u64;
        self.segment.edge_len(self.own, self.peer, slot).store(word, Ordering::Relaxed);
        self.segment.edge_whole(self.own, self.peer, slot).store(whole, Ordering::Relaxed);
        self.sent = self.sent.wrapping_add(1);
        self.segment.edge_word(self.own, self.peer, 0).store(self.sent, Ordering::Release);
    }

    pub(super) fn peek(&mut self) -> Option<Message> {
        if self.taken == self.sent_by_peer {
            let sent = self.segment.edge_word(self.peer, self.own, 0).load(Ordering::Acquire);
            self.sent_by_peer = sent;
            if self.taken == sent {
                return None;
            }
        }
        let slot = self.slot(self.taken);
        let word = self.segment.edge_len(self.peer, self.own, slot).load(Ordering::Relaxed);
        let whole = self.segment.edge_whole(self.peer, self.own, slot).load(Ordering::Relaxed);
        let tag = (word >> 32) as u32;
        Some(Message {
            data: self.segment.edge_slot(self.peer, self.own, slot),
            len: Some(word as u32 as usize),
            tag,
            descriptor: Descriptor::of_message(tag, whole),
            begun: None,
        })
    }

    /// Returns whether the peer can send no more until this rank takes a message.
    pub(super) fn is_full(&self) -> bool {
        let sent = self.segment.edge_word(self.peer, self.own, 0).load(Ordering::Acquire);
        sent.wrapping_sub(self.taken) >= EDGE_SLOTS as u64
    }

    /// Returns whether the peer has taken all messages.
    pub(super) fn is_taken(&mut self) -> bool {
        if self.taken_by_peer != self.sent {
            let taken = self.segment.edge_word(self.own, self.peer, 1).load(Ordering::Acquire);
            self.taken_by_peer = taken;
        }
        self.taken_by_peer == self.sent
    }

    pub(super) fn release(&mut self) {
        self.taken = self.taken.wrapping_add(1);
        self.segment.edge_word(self.peer, self.own, 1).store(self.taken, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::sealed_memfd;
    use rustix::fd::AsFd;

    fn segment(start: u64) -> Arc<Segment> {
        let layout = SegmentLayout { nlocal: 2, edge_slot_bytes: 4096 };
        let fd = sealed_memfd("t", layout.bytes()).unwrap();
        let mapping = Mapping::of(fd.as_fd(), layout.bytes()).unwrap();
        let segment = Arc::new(Segment::new(mapping, layout));
        (0..2).for_each(|local| segment.initialise(local, start));
        segment
    }

    #[test]
    fn packets_carry_any_range_and_only_their_epoch() {
        let segment = segment(u64::MAX);
        let data: Vec<u8> = (0..PACKET_BYTES).map(|i| (i * 7 + i / 251) as u8).collect();
        for (from, len) in [(0, 1), (0, 56), (13, 700), (PACKET_BYTES - 5, 5), (0, PACKET_BYTES)] {
            let mut out = vec![0; len];
            // SAFETY: the ranges lie within the buffers.
            unsafe {
                let read = |out: &mut Vec<u8>, epoch| {
                    segment.read_packets(1, 1, from, out.as_mut_ptr(), len, epoch)
                };
                assert!(!read(&mut out, from as u64), "a packet of no operation matched");
                assert!(!segment.has_last_packet((1, 1), from, len, from as u64, 1));
                assert!(segment.has_last_packet((1, 1), from, 0, from as u64, 1));
                segment.write_packets(1, 1, data.as_ptr(), data.len(), from as u64);
                assert!(segment.has_last_packet((1, 1), from, len, from as u64, 1));
                assert!(read(&mut out, from as u64));
            }
            assert_eq!(out, data[from..from + len]);
            segment.initialise(1, u64::MAX);
        }
    }

    #[test]
    fn an_edge_is_a_bounded_queue_also_across_the_wrap_around() {
        let start = u64::MAX - 2;
        let segment = segment(start);
        let mut a = DirectEdge::new(segment.clone(), 0, 1, start);
        let mut b = DirectEdge::new(segment, 1, 0, start);
        for round in 0..5u8 {
            for i in 0..EDGE_SLOTS as u8 {
                let slot = a.reserve().unwrap();
                // SAFETY: a reserved slot has 4096 bytes.
                unsafe { slot.write(round * 16 + i) };
                a.commit(usize::from(i) + 1, 7, 9);
            }
            assert!(a.reserve().is_none());
            for i in 0..EDGE_SLOTS as u8 {
                let Message { data, len, tag, .. } = b.peek().unwrap();
                assert_eq!(len, Some(usize::from(i) + 1));
                // SAFETY: a message has at least one byte.
                assert_eq!(unsafe { data.read() }, round * 16 + i);
                assert_eq!(tag, 7);
                b.release();
            }
            assert!(b.peek().is_none());
        }
    }

    #[test]
    fn counters_compare_across_the_wrap_around() {
        assert!(reached(3, u64::MAX) && reached(5, 5) && !reached(u64::MAX, 3) && !reached(4, 5));
    }

    #[test]
    fn ranks_look_up_what_others_do_and_why_they_failed() {
        let segment = segment(0);
        let label = |count| Label::from(Descriptor::from_words(0, count));
        for seq in [0, 1, 2, 100, u64::MAX - 1] {
            assert_eq!(segment.announced(0, seq), None);
            assert!(!segment.has_begun(0, seq));
            segment.announce(0, seq, &label(seq));
            assert_eq!(segment.announced(0, seq), Some(label(seq).descriptor));
            assert!(segment.has_begun(0, seq) && !segment.has_begun(0, seq.wrapping_add(RING)));
            assert!(segment.agrees(0, seq, &label(seq)));
            assert!(!segment.agrees(0, seq, &label(seq ^ 9)));
            assert!(!segment.agrees(0, seq, &label(seq).behind(1)), "other calls before");
        }
        // A rank that is far ahead is not at fault.
        (200..300).for_each(|seq| segment.announce(0, seq, &label(seq)));
        assert!(segment.has_begun(0, 200) && segment.agrees(0, 200, &label(1)));
        assert!(!segment.agrees(0, 250, &label(1)));
        assert_eq!(segment.failure(1), None);
        let text = "é".repeat(600);
        let record = Record { code: Code::InvalidUsage, culprit: -1, reporter: 3, text };
        segment.publish_failure(1, &record);
        let read = segment.failure(1).unwrap();
        assert_eq!((read.code, read.culprit, read.text.len()), (Code::InvalidUsage, -1, 1000));
        assert!(record.text.starts_with(&read.text));
    }
}
