//! The call into a plugin that is under way.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
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
    /// The latest call.
    latest: Mutex<Latest>,
}

/// The latest call of a thread.
#[derive(Clone, Default)]
struct Latest {
    function: &'static str,
    /// The plugin of the function, if it is not the one that the thread serves.
    other: Option<Arc<CurrentCall>>,
}

thread_local! {
    /// The calls of the plugin that this thread serves.
    static SERVED: OnceCell<Arc<CurrentCall>> = const { OnceCell::new() };
}

/// Makes a call of a function of another plugin than the one that this thread serves, if it serves
/// one: those who wait for the thread are told of that call then.
pub(crate) fn beside<T>(
    other: &Arc<CurrentCall>,
    function: &'static str,
    call: impl FnOnce() -> T,
) -> T {
    // At the end of a thread that serves none the place may be gone.
    let served = SERVED.try_with(|served| served.get().cloned()).ok().flatten();
    match served.filter(|served| !Arc::ptr_eq(served, other)) {
        Some(served) => served.enter_other(other, function, call),
        None => call(),
    }
}

impl CurrentCall {
    /// Returns the state of a thread that is in no call. `label` says in texts whose functions are
    /// called, and `hint` what to do about one that does not return.
    pub(crate) fn new(label: String, hint: &'static str) -> Self {
        Self::with_limit(label, hint, LIMIT)
    }

    /// Returns the same with another limit of a call.
    pub(crate) fn with_limit(label: String, hint: &'static str, limit: Duration) -> Self {
        let (since_us, latest) = Default::default();
        let (setup_limit, made) = (limit, Instant::now());
        Self { label, hint, limit, setup_limit, made, since_us, latest }
    }

    /// Notes that this thread makes the calls.
    pub(super) fn serve(self: &Arc<Self>) {
        let _ = SERVED.try_with(|served| served.set(self.clone()));
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

    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes that a call begins.
    fn begin(&self, call: Latest) {
        *self.latest() = call;
        let now_us = self.made.elapsed().as_micros() as u64;
        self.since_us.store(now_us + 1, Ordering::Release);
    }

    /// Makes a call of a function.
    pub(crate) fn enter<T>(&self, function: &'static str, call: impl FnOnce() -> T) -> T {
        self.begin(Latest { function, other: None });
        let result = call();
        self.since_us.store(0, Ordering::Release);
        result
    }

    /// Makes a call of a function of another plugin, maybe within a call of this one, whose time
    /// begins anew then.
    fn enter_other<T>(
        &self,
        other: &Arc<CurrentCall>,
        function: &'static str,
        call: impl FnOnce() -> T,
    ) -> T {
        let outer = (self.since_us.swap(0, Ordering::AcqRel) != 0).then(|| self.latest().clone());
        self.begin(Latest { function, other: Some(other.clone()) });
        let result = call();
        self.since_us.store(0, Ordering::Release);
        outer.into_iter().for_each(|outer| self.begin(outer));
        result
    }

    /// Returns whether a call of another plugin is under way.
    pub(super) fn is_in_other(&self) -> bool {
        self.since_us.load(Ordering::Acquire) != 0 && self.latest().other.is_some()
    }

    /// Makes a call of a function that waits for other ranks. Who waits for it has a limit of its
    /// own.
    pub(crate) fn enter_for_others<T>(
        &self,
        function: &'static str,
        call: impl FnOnce() -> T,
    ) -> T {
        *self.latest() = Latest { function, other: None };
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
        let Latest { function, other } = self.latest().clone();
        let limit = self.limit_of(function);
        // The call may have returned since, and the name be that of the next one.
        (is_over(limit) && self.since_us.load(Ordering::Acquire) == since_us)
            .then(|| other.as_deref().unwrap_or(self).not_returned(function, limit))
    }

    /// Returns the error of the call under way if it has taken as long as `least`, but not so long
    /// that those who wait for it are told.
    pub(super) fn lasting(&self, least: Duration) -> Option<oxccl_net::Error> {
        let since_us = self.since_us.load(Ordering::Acquire);
        let began = Duration::from_micros(since_us.checked_sub(1)?);
        let lasted = self.made.elapsed().saturating_sub(began);
        let Latest { function, other } = self.latest().clone();
        let told = lasted >= self.limit_of(function);
        // As in `stuck`.
        let is_it = self.since_us.load(Ordering::Acquire) == since_us;
        (lasted >= least && !told && is_it).then(|| {
            let cause = format!("it has not returned for {:.1} s", lasted.as_secs_f32());
            other.as_deref().unwrap_or(self).failed(function, &cause)
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
