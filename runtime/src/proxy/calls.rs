//! The call into a plugin that is under way.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The time after which a call that has not returned fails what waits for it. Connections and
/// registrations of real networks take milliseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// The call of a function of a plugin that is under way in one thread, if there is one.
pub(crate) struct CurrentCall {
    label: String,
    limit: Duration,
    call: Mutex<Option<(&'static str, Instant)>>,
}

impl CurrentCall {
    /// Returns the state of a thread that is in no call. `label` says in texts whose functions are
    /// called.
    pub(crate) fn new(label: String) -> Self {
        Self::with_limit(label, LIMIT)
    }

    /// Returns the same with another limit of a call.
    pub(super) fn with_limit(label: String, limit: Duration) -> Self {
        Self { label, limit, call: Mutex::new(None) }
    }

    /// Returns whose functions are called.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    fn call(&self) -> MutexGuard<'_, Option<(&'static str, Instant)>> {
        self.call.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes a call of a function.
    pub(crate) fn enter<T>(&self, function: &'static str, call: impl FnOnce() -> T) -> T {
        *self.call() = Some((function, Instant::now()));
        let result = call();
        *self.call() = None;
        result
    }

    /// Returns the error of those who wait, if a call has taken too long.
    pub(super) fn stuck(&self) -> Option<oxccl_net::Error> {
        let (function, since) = (*self.call())?;
        (since.elapsed() >= self.limit).then(|| {
            let call = format!("{function} of {}", self.label);
            let cause = format!("it has not returned for {} s", self.limit.as_secs_f32());
            oxccl_net::Error::local(
                call,
                cause,
                "ask the vendor; NCCL_NET_PLUGIN=none goes without",
            )
        })
    }
}
