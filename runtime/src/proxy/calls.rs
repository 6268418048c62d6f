//! The call into a plugin that is under way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The time after which a call that has not returned fails what waits for it. Registrations and
/// messages of real networks take milliseconds.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// The functions that may wait for a peer or a fabric until the communicator is made.
const SETUP: [&str; 4] = ["init", "listen", "connect", "accept"];

/// The call of a function of a plugin that is under way in one thread, if there is one.
pub(crate) struct CurrentCall {
    label: String,
    /// The advice of the error of a call that does not return.
    hint: &'static str,
    limit: Duration,
    /// The limit of calls that belong to the making of a communicator.
    setup_limit: Duration,
    made: Instant,
    /// When the call began, in microseconds since `made`, plus one; 0 while there is none.
    since_us: AtomicU64,
    /// The function of the latest call.
    function: Mutex<&'static str>,
}

impl CurrentCall {
    /// Returns the state of a thread that is in no call. `label` says in texts whose functions are
    /// called, and `hint` what to do about one that does not return.
    pub(crate) fn new(label: String, hint: &'static str) -> Self {
        Self::with_limit(label, hint, LIMIT)
    }

    /// Returns the same with another limit of a call.
    pub(crate) fn with_limit(label: String, hint: &'static str, limit: Duration) -> Self {
        let (since_us, function) = Default::default();
        let (setup_limit, made) = (limit, Instant::now());
        Self { label, hint, limit, setup_limit, made, since_us, function }
    }

    /// Returns the same with another limit of the calls that belong to the making of a
    /// communicator.
    pub(crate) fn with_setup(self, limit: Duration) -> Self {
        Self { setup_limit: limit, ..self }
    }

    fn limit_of(&self, function: &str) -> Duration {
        if SETUP.contains(&function) { self.setup_limit } else { self.limit }
    }

    /// Returns whose functions are called.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    fn function(&self) -> MutexGuard<'_, &'static str> {
        self.function.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes a call of a function.
    pub(crate) fn enter<T>(&self, function: &'static str, call: impl FnOnce() -> T) -> T {
        *self.function() = function;
        let now_us = self.made.elapsed().as_micros() as u64;
        self.since_us.store(now_us + 1, Ordering::Release);
        let result = call();
        self.since_us.store(0, Ordering::Release);
        result
    }

    /// Makes a call of a function that waits for other ranks. Who waits for it has a limit of its
    /// own.
    pub(crate) fn enter_for_others<T>(
        &self,
        function: &'static str,
        call: impl FnOnce() -> T,
    ) -> T {
        *self.function() = function;
        call()
    }

    /// Returns the error of those who wait, if a call has taken too long. Takes no lock unless one
    /// has, as waiting ranks ask often.
    pub(crate) fn stuck(&self) -> Option<oxccl_net::Error> {
        let since_us = self.since_us.load(Ordering::Acquire);
        let is_over = |limit| {
            let began = Duration::from_micros(since_us - 1);
            self.made.elapsed().saturating_sub(began) >= limit
        };
        if since_us == 0 || !is_over(self.limit.min(self.setup_limit)) {
            return None;
        }
        let function = *self.function();
        let limit = self.limit_of(function);
        // The call may have returned since, and the name be that of the next one.
        (is_over(limit) && self.since_us.load(Ordering::Acquire) == since_us)
            .then(|| self.not_returned(function, limit))
    }

    /// Returns the error of the call under way if it has taken as long as `least`, but not so long
    /// that those who wait for it are told.
    pub(super) fn lasting(&self, least: Duration) -> Option<oxccl_net::Error> {
        let since_us = self.since_us.load(Ordering::Acquire);
        let began = Duration::from_micros(since_us.checked_sub(1)?);
        let lasted = self.made.elapsed().saturating_sub(began);
        let function = *self.function();
        let told = lasted >= self.limit_of(function);
        // As in `stuck`.
        let is_it = self.since_us.load(Ordering::Acquire) == since_us;
        (lasted >= least && !told && is_it).then(|| {
            let cause = format!("it has not returned for {:.1} s", lasted.as_secs_f32());
            self.failed(function, &cause)
        })
    }

    /// Returns the error of a function that has not returned for so long.
    pub(crate) fn not_returned(&self, function: &str, time: Duration) -> oxccl_net::Error {
        self.failed(function, &format!("it has not returned for {} s", time.as_secs_f32()))
    }

    /// Returns the error of a function, with which everything fails that uses the plugin here.
    pub(crate) fn failed(&self, function: &str, cause: &str) -> oxccl_net::Error {
        oxccl_net::Error::local(format!("{function} of {}", self.label), cause, self.hint)
    }
}
