//! The clock of the recorder: the processor's time stamp counter where it can be trusted, since a
//! call of the system's clock takes twice as long.

use libc::{CLOCK_MONOTONIC, CLOCK_REALTIME, clockid_t, timespec};

/// Returns the time of a clock of the system in ns. By the C library: what rustix does instead of
/// it does not work under valgrind.
pub(super) fn clock_ns(clock: clockid_t) -> u64 {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time, of a clock that every system has.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the time in ticks of this process, whose rate [`Scale`] tells.
#[inline]
pub(super) fn ticks() -> u64 {
    ticks_by(counts())
}

/// Returns the time in ticks: by the counter, or in ns by the system's clock.
#[inline]
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
fn ticks_by(counter: bool) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if counter {
        // SAFETY: every processor of this architecture has the instruction.
        return unsafe { std::arch::x86_64::_rdtsc() };
    }
    clock_ns(CLOCK_MONOTONIC)
}

/// Returns whether this process takes the counter: whether the system kept its own time by it when
/// this was asked first. It then runs at one rate, and on all processors alike.
#[inline]
pub(super) fn counts() -> bool {
    use std::sync::LazyLock;
    const SOURCE: &str =
        concat!("/sys/devices/system/clocksource/", "clocksource0/current_clocksource");
    static COUNTS: LazyLock<bool> =
        LazyLock::new(|| std::fs::read_to_string(SOURCE).is_ok_and(|name| name.trim() == "tsc"));
    *COUNTS
}

/// Two moments, by ticks and by the time of day in ns, between and beside which times are
/// interpolated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) first: (u64, u64),
    pub(super) last: (u64, u64),
}

/// Returns the present moment by ticks, by the monotonic clock and by the time of day, in ns. The
/// ticks are those of a process that takes the counter, or that does not.
pub(super) fn moment(counter: bool) -> (u64, u64, u64) {
    let before = ticks_by(counter);
    let monotonic = clock_ns(CLOCK_MONOTONIC);
    let after = ticks_by(counter);
    // The middle of both is off by less than the clocks take.
    (before + (after - before) / 2, monotonic, clock_ns(CLOCK_REALTIME))
}

impl Scale {
    /// Returns the ns of a tick.
    fn rate(&self) -> f64 {
        let (first, last) = (self.first, self.last);
        let run = last.0.wrapping_sub(first.0) as f64;
        if run > 0.0 { last.1.wrapping_sub(first.1) as f64 / run } else { 1.0 }
    }

    /// Returns the ns of so many ticks.
    pub(super) fn span_ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * self.rate()) as u64
    }

    /// Returns a time in ns; `None` for a time that was not recorded.
    pub(super) fn ns(&self, ticks: u64) -> Option<u64> {
        let last = self.last;
        // Counted from the last moment, where times matter most.
        let back = last.0.wrapping_sub(ticks) as i64 as f64 * self.rate();
        (ticks != 0).then(|| (last.1 as i64).wrapping_sub(back as i64).max(0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_and_beside_two_moments_are_interpolated() {
        let scale = Scale { first: (1000, 50_000), last: (3000, 51_000) };
        let expected = [(3000, 51_000), (1000, 50_000), (2000, 50_500), (3200, 51_100)];
        for (ticks, ns) in expected {
            assert_eq!(scale.ns(ticks), Some(ns));
        }
        assert_eq!((scale.ns(0), scale.span_ns(100)), (None, 50));
        // Moments of a file of garbage give a time, whatever it is worth.
        assert!(Scale { first: (5, 9), last: (5, 7) }.ns(u64::MAX).is_some());
        assert!(Scale { first: (u64::MAX, 0), last: (0, u64::MAX) }.ns(1).is_some());
    }

    #[test]
    fn ticks_advance_with_the_clock() {
        let (first, mono, _) = moment(counts());
        while clock_ns(CLOCK_MONOTONIC) < mono + 1_000_000 {
            std::hint::spin_loop();
        }
        let (last, later, _) = moment(counts());
        let scale = Scale { first: (first, mono), last: (last, later) };
        let now = scale.ns(ticks()).expect("a time");
        let clock = clock_ns(CLOCK_MONOTONIC);
        assert!(now.abs_diff(clock) < 1_000_000_000, "{now} {clock}");
    }
}
