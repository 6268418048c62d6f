//! The times of attempts that are made again and again.

use std::time::{Duration, Instant};

/// The first and the longest pause between attempts.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(200)];

/// When to make the next attempt: the pauses double from 2 ms up to 200 ms.
#[derive(Clone, Debug)]
pub struct Retry {
    /// The earliest time of the next attempt, if one has failed.
    again: Option<Instant>,
    pause: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { again: None, pause: PAUSES[0] }
    }
}

impl Retry {
    /// Puts the next attempt off, as one has failed.
    pub fn put_off(&mut self, now: Instant) {
        self.again = now.checked_add(self.pause);
        self.pause = (self.pause * 2).min(PAUSES[1]);
    }

    /// Returns the time until the next attempt; zero if it is due.
    pub fn pause(&self, now: Instant) -> Duration {
        self.again.map_or(Duration::ZERO, |again| again.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let (mut retry, start) = (Retry::default(), Instant::now());
        assert_eq!(retry.pause(start), Duration::ZERO);
        let pauses_ms = [2, 4, 8, 16, 32, 64, 128, 200, 200];
        for ms in pauses_ms.map(Duration::from_millis) {
            retry.put_off(start);
            assert_eq!(retry.pause(start), ms);
            assert_eq!(retry.pause(start + ms), Duration::ZERO);
        }
    }
}
