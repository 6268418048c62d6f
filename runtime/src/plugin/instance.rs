//! The use of a network's plugin by a communicator, from `init` to `finalize`.

use super::load::Found;
use super::net::functions::{Close, Devices};
use super::{Plugin, checked};
use crate::exit;
use crate::log::{self, Level, Subsystem};
use crate::proxy::CurrentCall;
use oxccl_net::{Error, Result};
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
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

/// The functions of networks' plugins but for `init`.
pub(super) trait Network: Sized + Send + Sync {
    /// True if the failure of a call concerns all connections of this rank.
    const LOCAL: bool;
    /// `init` of any version.
    type Init: Send + Sync;

    /// Reads a structure; fails if it has no name or no `init`.
    ///
    /// # Safety
    /// The structure is one of these networks' plugins, of the version that it is said to have.
    unsafe fn read(found: Found) -> std::result::Result<Structure<Self>, String>;

    /// Returns the function that ends a context; `None` where contexts need no end.
    fn finalize(&self) -> Option<Close>;
}

/// The content of a structure at the time of a reading.
pub(super) struct Structure<F: Network> {
    /// The name that the plugin gives itself.
    pub(super) name: String,
    /// `init`, the function that begins the plugin.
    pub(super) init: F::Init,
    /// The other functions, or which one of those is missing that all versions have.
    pub(super) functions: std::result::Result<F, String>,
}

/// A structure that is read anew for each communicator: there are plugins that set all but `init`
/// in it once that is called, NVIDIA's for InfiniBand among them.
pub(super) struct Unread<F> {
    found: Found,
    of: PhantomData<F>,
}

impl<F: Network> Unread<F> {
    /// Returns a structure with the name in it; fails if it has no name or no `init`.
    ///
    /// # Safety
    /// As for [`Network::read`].
    pub(super) unsafe fn of(found: Found) -> std::result::Result<(String, Self), String> {
        let unread = Self { found, of: PhantomData };
        Ok((unread.read()?.name, unread))
    }

    fn read(&self) -> std::result::Result<Structure<F>, String> {
        // SAFETY: by the contract of `of`.
        unsafe { F::read(self.found) }
    }
}

/// A plugin in use.
pub(super) struct Instance<F: Network + 'static> {
    plugin: &'static Plugin<Unread<F>>,
    /// The name that the plugin gives itself once it has begun.
    pub(super) name: String,
    pub(super) functions: F,
    pub(super) current: Arc<CurrentCall>,
    /// The communicator's context; null where versions have none.
    pub(super) context: *mut c_void,
}

// SAFETY: the context is only given to the plugin, by the one thread that has the instance's parts.
unsafe impl<F: Network> Send for Instance<F> {}
// SAFETY: as above.
unsafe impl<F: Network> Sync for Instance<F> {}

impl<F: Network> Instance<F> {
    /// Begins the use of a plugin by `init`, which is told where the context belongs and whether
    /// the process has called it before, and by `then`.
    pub(super) fn start<T>(
        plugin: &'static Plugin<Unread<F>>,
        current: Arc<CurrentCall>,
        init: impl FnOnce(F::Init, *mut *mut c_void, bool) -> c_int,
        then: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<(Self, T)> {
        let alone = plugin.turn.take(&current)?;
        let mut lifecycle = plugin.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &lifecycle.failed {
            return Err(error.clone());
        }
        let again = std::mem::replace(&mut lifecycle.begun, true);
        let begun = Self::begin(plugin, current.clone(), |with, at| init(with, at, again));
        let made = begun.as_ref().map_err(Error::clone).and_then(then);
        lifecycle.failed = made.as_ref().err().cloned();
        // The end of the instance takes the locks.
        drop((lifecycle, alone));
        Ok((begun?, made?))
    }

    /// Calls `init`, and then takes the functions.
    fn begin(
        plugin: &'static Plugin<Unread<F>>,
        current: Arc<CurrentCall>,
        init: impl FnOnce(F::Init, *mut *mut c_void) -> c_int,
    ) -> Result<Self> {
        let refused = |why: String| Error { local: F::LOCAL, ..current.failed("init", &why) };
        let (with, mut context) = (plugin.functions.read().map_err(refused)?.init, null_mut());
        let returned = current.enter("init", || init(with, &mut context));
        checked(&current, "init", returned).map_err(|e| Error { local: F::LOCAL, ..e })?;
        // What the plugin has registered for the end of the process runs after this.
        exit::close_before_others();
        let Structure { name, functions, .. } = plugin.functions.read().map_err(refused)?;
        let functions = functions.map_err(refused)?;
        Ok(Self { plugin, name, functions, current, context })
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
        let Some(finalize) = self.functions.finalize() else { return };
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
