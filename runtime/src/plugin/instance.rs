//! The use of a network's plugin by a communicator, from `init` to `finalize`.

use super::net::functions::{Close, Devices};
use super::{Plugin, checked};
use crate::exit;
use crate::log::{self, Level, Subsystem};
use crate::proxy::CurrentCall;
use oxccl_net::{Error, Result};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, PoisonError};

/// The state of a plugin in this process.
#[derive(Default)]
pub(super) struct Lifecycle {
    /// True once `init` was called.
    begun: bool,
    /// Why the plugin could not be begun: it is not tried again, as with NCCL.
    failed: Option<Error>,
}

/// The functions of networks' plugins.
pub(super) trait Network {
    /// True if the failure of a call concerns all connections of this rank.
    const LOCAL: bool;

    /// Returns the function that ends a context; `None` where contexts need no end.
    fn finalize(&self) -> Option<Close>;
}

/// A plugin in use.
pub(super) struct Instance<F: Network + 'static> {
    plugin: &'static Plugin<F>,
    pub(super) current: Arc<CurrentCall>,
    /// The communicator's context; null where versions have none.
    pub(super) context: *mut c_void,
    /// True once `init` has succeeded.
    initialised: bool,
}

// SAFETY: the context is only given to the plugin, by the one thread that has the instance's parts.
unsafe impl<F: Network> Send for Instance<F> {}
// SAFETY: as above.
unsafe impl<F: Network> Sync for Instance<F> {}

impl<F: Network> Instance<F> {
    /// Begins the use of a plugin by `init`, which is told where the context belongs and whether
    /// the process has called it before, and by `then`.
    pub(super) fn start<T>(
        plugin: &'static Plugin<F>,
        current: Arc<CurrentCall>,
        init: impl FnOnce(*mut *mut c_void, bool) -> c_int,
        then: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<(Self, T)> {
        let mut instance = Self { plugin, current, context: null_mut(), initialised: false };
        let current = instance.current.clone();
        let alone = plugin.turn.take(&current)?;
        let mut lifecycle = plugin.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &lifecycle.failed {
            return Err(error.clone());
        }
        let (again, mut context) = (std::mem::replace(&mut lifecycle.begun, true), null_mut());
        let begun = instance.call("init", || init(&mut context, again));
        let made = begun.and_then(|()| {
            (instance.context, instance.initialised) = (context, true);
            // What the plugin has registered for the end of the process runs after this.
            exit::close_before_others();
            then(&instance)
        });
        lifecycle.failed = made.as_ref().err().cloned();
        // The end of the instance takes the locks.
        drop((lifecycle, alone));
        Ok((instance, made?))
    }

    pub(super) fn functions(&self) -> &'static F {
        &self.plugin.functions
    }

    /// Calls a function of the plugin.
    pub(super) fn call(&self, function: &'static str, call: impl FnOnce() -> c_int) -> Result<()> {
        self.checked(function, self.current.enter(function, call))
    }

    /// Returns the error of a function that has returned this.
    pub(super) fn checked(&self, function: &str, result: c_int) -> Result<()> {
        checked(&self.current, function, result).map_err(|e| Error { local: F::LOCAL, ..e })
    }

    /// Returns the error of a function.
    pub(super) fn failed(&self, function: &str, cause: &str) -> Error {
        Error { local: F::LOCAL, ..self.current.failed(function, cause) }
    }

    /// Asks by the plugin's function how many devices there are.
    pub(super) fn devices(&self, devices: Devices) -> Result<c_int> {
        let mut number = 0;
        // SAFETY: the function is the plugin's.
        self.call("devices", || unsafe { devices(&mut number) })?;
        match number {
            0.. => Ok(number),
            _ => Err(self.failed("devices", &format!("it says that there are {number}"))),
        }
    }

    /// Calls a function at the end of something. Its failure is logged, as nobody waits for it.
    pub(super) fn end(&self, function: &'static str, call: impl FnOnce() -> c_int) {
        note(self.call(function, call));
    }
}

impl<F: Network> Drop for Instance<F> {
    fn drop(&mut self) {
        let finalize = self.functions().finalize().filter(|_| self.initialised);
        let Some(finalize) = finalize else { return };
        note(self.plugin.turn.take(&self.current).and_then(|_alone| {
            // SAFETY: the function is the plugin's; nothing of the context is in use any more.
            self.call("finalize", || unsafe { finalize(self.context) })
        }));
    }
}

fn note(ended: Result<()>) {
    if let Err(error) = ended {
        log::line(Level::Warn, Subsystem::Net, &error.to_string());
    }
}
