//! The streams of a communicator on which its failure is delivered.

use crate::device::cuda::run::order;
use crate::device::cuda::stream::Stream;
use std::sync::{Mutex, MutexGuard};

/// The number of streams that are remembered: the last ones that the communicator used.
const REMEMBERED: usize = 64;

/// A stream on which something was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    stream: Stream,
    /// The number of the stream, which is never used again, unlike its handle; `None` for a stream
    /// that is captured, which the driver does not number.
    number: Option<u64>,
    /// True once the communicator's failure was delivered there.
    told: bool,
}

/// The streams on which a communicator has launched something.
#[derive(Default)]
pub struct LaunchedStreams(Mutex<Vec<Known>>);

impl LaunchedStreams {
    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes a launch on a stream of this number, `None` if the stream is captured.
    pub fn note(&self, stream: Stream, number: Option<u64>) {
        let mut all = self.known();
        let new = Known { stream, number, told: false };
        if all.last() == Some(&new) {
            return;
        }
        // Different streams may have one handle: every thread has its own default stream.
        let apart = |old: &Known| old.number.zip(number).is_some_and(|(a, b)| a != b);
        all.retain(|old| old.stream != stream || apart(old));
        // Nothing tells when a stream was destroyed, so the oldest one is dropped.
        if all.len() == REMEMBERED {
            all.remove(0);
        }
        all.push(new);
    }

    /// Returns whether the failure is to be delivered on a stream now: it is delivered once.
    pub fn tell(&self, stream: Stream) -> bool {
        self.tell_numbered(stream, || order::number_of(stream).ok())
    }

    fn tell_numbered(&self, stream: Stream, number: impl FnOnce() -> Option<u64>) -> bool {
        let mut all = self.known();
        let mut untold = all.iter_mut().filter(|known| known.stream == stream && !known.told);
        let Some(first) = untold.next() else { return false };
        let number = number();
        let same = |known: &&mut Known| known.number.is_none() || known.number == number;
        let Some(known) = std::iter::once(first).chain(untold).find(same) else { return false };
        known.told = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(handle: usize) -> Stream {
        Stream(std::ptr::without_provenance_mut(handle))
    }

    #[test]
    fn a_failure_is_told_once_on_each_stream_and_not_on_one_that_got_the_handle() {
        let (used, first, second) = (LaunchedStreams::default(), stream(0x1000), stream(0x2000));
        used.note(first, Some(7));
        used.note(second, Some(8));
        let tell = |stream, number| used.tell_numbered(stream, || Some(number));
        assert!(!tell(first, 9), "another stream's handle once");
        assert!(!tell(stream(0x3000), 7));
        assert!(tell(first, 7) && !tell(first, 7));
        assert!(tell(second, 8));
        used.note(second, Some(8));
        assert!(tell(second, 8), "something was launched there since");
        used.note(first, None);
        assert!(tell(first, 10), "captured: only the handle is known");
    }

    #[test]
    fn streams_of_threads_are_known_apart_and_the_oldest_is_forgotten() {
        let (used, one) = (LaunchedStreams::default(), stream(2));
        for number in 0..=REMEMBERED as u64 {
            used.note(one, Some(number));
        }
        let tell = |number| used.tell_numbered(one, || Some(number));
        assert!(!tell(0) && tell(1) && tell(REMEMBERED as u64));
    }
}
