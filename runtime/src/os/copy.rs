//! Copies in memory whose stores go through the cache, or bypass it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The least bytes of a copy that bypasses the cache: it ends in parts of lines.
const LEAST: usize = 256;

/// Copies `len` bytes. With `streaming` the stores bypass the cache, where processors can do that;
/// [`stream_fence`] makes them visible.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes. Where they overlap, the result is right
/// only if they are equal.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, streaming: bool) {
    if std::ptr::eq(dst, src) {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if streaming && len >= LEAST && is_x86_feature_detected!("avx") {
        // SAFETY: passed on from the caller; AVX was detected.
        return unsafe { stream_copy(dst, src, len) };
    }
    let _ = streaming;
    // SAFETY: passed on from the caller.
    unsafe { std::ptr::copy(src, dst, len) };
}

/// Makes streamed stores visible to others before later stores. Called once after streaming copies.
pub fn stream_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream_copy(dst: *mut u8, src: *const u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    let head = dst.align_offset(32).min(len);
    // SAFETY: head ≤ len.
    unsafe { std::ptr::copy(src, dst, head) };
    let mut at = head;
    while at + 128 <= len {
        // SAFETY: 128 bytes from `at` lie within both buffers, and dst + at is 32-byte aligned.
        unsafe {
            let from = src.add(at).cast::<__m256i>();
            let to = dst.add(at).cast::<__m256i>();
            let lines = [
                _mm256_loadu_si256(from),
                _mm256_loadu_si256(from.add(1)),
                _mm256_loadu_si256(from.add(2)),
                _mm256_loadu_si256(from.add(3)),
            ];
            for (i, line) in lines.into_iter().enumerate() {
                _mm256_stream_si256(to.add(i), line);
            }
        }
        at += 128;
    }
    // SAFETY: the rest lies within both buffers.
    unsafe { std::ptr::copy(src.add(at), dst.add(at), len - at) };
}

/// The choice of the stores by which a rank writes memory that its peers read, over and over.
///
/// A store through the cache has to wait until the readers' copies of its line are gone. Where
/// processors share a cache that is soon; where they do not, such stores reach 2.5 to 5 GB/s, and
/// those that bypass the cache ten times as much (`docs/results/handover-2026-11-28.md`). Systems
/// move processes between processors, so it is measured again and again: some copies begin with a
/// trial of stores through the cache, and those up to the next trial go by its result.
#[derive(Debug, Default)]
pub struct Handover {
    /// Copies before the next trial.
    left: AtomicU32,
    /// True if they bypass the cache.
    streams: AtomicBool,
}

impl Handover {
    /// Bytes of a trial: more than a processor has under way at a time.
    const TRIAL_BYTES: usize = 4096;
    /// The rate below which stores through the cache are slow, in bytes per µs. Trials reach 11 to
    /// 50 GB/s between processors that share a cache, and 3 to 6 between others.
    const SLOW_BYTES_PER_US: u32 = 6000;
    /// Copies that go by the result of a trial.
    const COPIES: u32 = 16;

    /// Returns whether the stores of a fold should bypass the cache.
    #[inline]
    pub fn streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed)
    }

    /// Copies `len` bytes to memory that others read. Stores are visible before later ones.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `len` bytes, and they do not overlap.
    #[inline]
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        if len < Self::TRIAL_BYTES {
            // SAFETY: passed on from the caller.
            return unsafe { copy(dst, src, len, false) };
        }
        let left = self.left.load(Ordering::Relaxed);
        let mut done = 0;
        if left == 0 {
            done = Self::TRIAL_BYTES;
            // SAFETY: no more than `len` bytes.
            let took = unsafe { Self::try_out(dst, src) };
            self.tried(done, took);
        } else {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        let streaming = self.streams();
        // SAFETY: the rest of the caller's bytes.
        unsafe { copy(dst.add(done), src.add(done), len - done, streaming) };
        if streaming {
            stream_fence();
        }
    }

    /// Copies the bytes of a trial, and returns the time of its stores. What the loads take does
    /// not count, as they may come from memory.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for the bytes of a trial, and they do not overlap.
    unsafe fn try_out(dst: *mut u8, src: *const u8) -> Duration {
        let mut near = [0u8; Self::TRIAL_BYTES];
        // SAFETY: passed on from the caller.
        unsafe { near.as_mut_ptr().copy_from_nonoverlapping(src, Self::TRIAL_BYTES) };
        let start = Instant::now();
        // SAFETY: as above.
        unsafe { dst.copy_from_nonoverlapping(near.as_ptr(), Self::TRIAL_BYTES) };
        start.elapsed()
    }

    /// Takes note of the time of a trial.
    fn tried(&self, bytes: usize, took: Duration) {
        let due = Duration::from_micros(bytes as u64) / Self::SLOW_BYTES_PER_US;
        self.streams.store(took > due, Ordering::Relaxed);
        self.left.store(Self::COPIES, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_right_at_every_length_and_offset() {
        let src: Vec<u8> = (0..9000u32).map(|i| (i * 31 + i / 251) as u8).collect();
        let handover = Handover::default();
        for len in [0, 1, 255, 256, 257, 383, 4095, 4096, 4097, 8191, 8900] {
            for (from, to) in [(0, 0), (1, 0), (0, 31), (5, 13)] {
                for way in 0..5 {
                    let mut out = vec![0xaa; len + 64];
                    let (dst, src_at) = (out[to..].as_mut_ptr(), src[from..].as_ptr());
                    handover.left.store(u32::from(way >= 3), Ordering::Relaxed);
                    handover.streams.store(way == 4, Ordering::Relaxed);
                    // SAFETY: both buffers hold `len` bytes from the given pointers on.
                    unsafe {
                        match way {
                            0 | 1 => copy(dst, src_at, len, way == 1),
                            _ => handover.copy(dst, src_at, len),
                        }
                    }
                    stream_fence();
                    assert!(out[to..to + len] == src[from..from + len], "{len} {from} {to} {way}");
                    assert!(out[..to].iter().chain(&out[to + len..]).all(|byte| *byte == 0xaa));
                }
            }
        }
    }

    #[test]
    fn some_copies_go_by_the_result_of_a_trial_and_then_there_is_another_one() {
        let handover = Handover::default();
        let (src, mut dst) = (vec![7; 8192], vec![0; 8192]);
        for (took_ns, is_slow) in [(1001, true), (1000, false), (1001, true)] {
            handover.tried(6000, Duration::from_nanos(took_ns));
            for left in (0..=Handover::COPIES).rev() {
                assert_eq!(handover.left.load(Ordering::Relaxed), left);
                assert_eq!(handover.streams(), is_slow);
                // SAFETY: both have so many bytes.
                unsafe { handover.copy(dst.as_mut_ptr(), src.as_ptr(), 8192) };
            }
            // The last one was a trial.
            assert_eq!(handover.left.load(Ordering::Relaxed), Handover::COPIES);
        }
        // Small copies do not count.
        // SAFETY: as above.
        unsafe { handover.copy(dst.as_mut_ptr(), src.as_ptr(), 4095) };
        assert_eq!(handover.left.load(Ordering::Relaxed), Handover::COPIES);
        assert!(dst == src);
    }
}
