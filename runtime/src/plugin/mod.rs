//! Plugins that are loaded while the program runs, with NCCL's names, variables and structures.

pub(crate) mod collnet;
pub(crate) mod env;
mod instance;
mod load;
pub(crate) mod net;
pub(crate) mod profiler;
pub(crate) mod tuner;

use crate::config::Config;
use crate::log::{self, Level, Subsystem};
use crate::proxy::CurrentCall;
use instance::Lifecycle;
use load::{Attempt, Found, Kind, Opened, structure, wanted};
use oxccl_plugin_abi::ncclDebugLogger_t;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A plugin that was found, and its functions.
struct Plugin<F> {
    /// The name in texts: that of the plugin, its library and version.
    label: String,
    /// The name that the plugin has given itself.
    name: String,
    /// The version of its structure.
    version: u32,
    functions: F,
    turn: Arc<Turn>,
    lifecycle: Mutex<Lifecycle>,
}

/// The right to begin or end the plugins of a library, which one communicator has at a time:
/// plugins count their users without a lock, and some begin another plugin of their library, too.
#[derive(Default)]
struct Turn {
    /// The calls of the one who has it.
    holder: Mutex<Option<Arc<CurrentCall>>>,
    free: Condvar,
}

/// The time between two looks whether the one who has the right is in a call that does not return.
const LOOK: Duration = Duration::from_millis(100);

impl Turn {
    fn holder(&self) -> MutexGuard<'_, Option<Arc<CurrentCall>>> {
        self.holder.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits for the right; `current` tells others what the caller does with it. Fails if a call of
    /// the one who has it does not return.
    fn take(&self, current: &Arc<CurrentCall>) -> oxccl_net::Result<Alone<'_>> {
        let mut holder = self.holder();
        while let Some(other) = &*holder {
            if let Some(error) = other.stuck() {
                return Err(error);
            }
            let waited = self.free.wait_timeout(holder, LOOK);
            holder = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        *holder = Some(current.clone());
        Ok(Alone(self))
    }
}

/// Returns the right to begin or end what the library of an address exports.
fn turn_of(at: *const c_void) -> Arc<Turn> {
    static TURNS: Mutex<BTreeMap<usize, Arc<Turn>>> = Mutex::new(BTreeMap::new());
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the function reads no memory at the address, and null pointers are no danger.
    let base = unsafe {
        let known = libc::dladdr(at, found.as_mut_ptr()) != 0;
        if known { found.assume_init().dli_fbase.addr() } else { 0 }
    };
    TURNS.lock().unwrap_or_else(|e| e.into_inner()).entry(base).or_default().clone()
}

/// The guard of [`Turn`].
struct Alone<'a>(&'a Turn);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        *self.0.holder() = None;
        self.0.free.notify_one();
    }
}

/// The facts about a communicator that tuners and profilers are told.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The number of the communicator.
    pub(crate) comm: u64,
    /// The name of the communicator, if it has one.
    pub(crate) name: Option<String>,
    /// The number of ranks of each host.
    pub(crate) hosts: Vec<u32>,
    /// This rank.
    pub(crate) rank: u32,
}

impl Facts {
    fn nranks(&self) -> u32 {
        self.hosts.iter().sum()
    }
}

/// Loads a library, whose plugins find the variables of files in the environment: some look for
/// them while they are loaded.
fn load(kind: &Kind, name: Option<&str>) -> Attempt {
    Config::get().export_files();
    load::load(kind, name)
}

/// Returns the error of a function that has returned this.
fn checked(current: &CurrentCall, function: &str, result: c_int) -> oxccl_net::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(current.failed(function, &format!("it returned {}", result_name(result)))),
    }
}

impl<F> Plugin<F> {
    /// Returns the plugin of a kind that a variable names, or that of a network plugin.
    fn find(
        (kind, about): (&Kind, Subsystem),
        variable: &str,
        of: impl Fn(Found) -> std::result::Result<(String, F), String>,
    ) -> Option<Self> {
        let name = wanted(kind, Some(variable)).into_iter().next()?;
        let own = Self::take((kind, about), load(kind, name.as_deref()), &of).0;
        own.or_else(|| {
            let attempts = net::libraries().iter().map(|l| structure(kind, l.clone(), false));
            attempts.filter_map(|attempt| Self::take((kind, about), attempt, &of).0).next()
        })
    }

    /// Takes the structure of an attempt, if one was found, and logs in one line what was tried,
    /// found and refused. `of` returns the name of a structure and its functions, or why it is
    /// refused.
    fn take(
        (kind, about): (&Kind, Subsystem),
        attempt: Attempt,
        of: impl FnOnce(Found) -> std::result::Result<(String, F), String>,
    ) -> (Option<Self>, Option<Opened>) {
        let Attempt { opened, found, mut line, mut warns } = attempt;
        let read = |(opened, found): (&Opened, Found)| match of(found) {
            Ok((name, functions)) => {
                let (what, file, version) = (kind.name, &opened.file, found.version);
                let label = format!("{what} plugin {name} ({file}, v{version})");
                let (turn, lifecycle) = (turn_of(found.at), Default::default());
                Some(Self { label, name, version, functions, turn, lifecycle })
            }
            Err(why) => {
                line += &format!("; refused, {why}");
                warns = true;
                None
            }
        };
        let plugin = opened.as_ref().zip(found).and_then(read);
        log::line(if warns { Level::Warn } else { Level::Info }, about, &line);
        (plugin, opened)
    }
}

/// Returns a function that every structure has.
fn need<T>(function: Option<T>, name: &str) -> std::result::Result<T, String> {
    function.ok_or_else(|| format!("it has no function {name}"))
}

/// Returns the name in a plugin's structure.
///
/// # Safety
/// The name is null or a C string.
unsafe fn name_of(name: *const c_char) -> std::result::Result<String, String> {
    match name.is_null() {
        true => Err("it has no name".to_owned()),
        // SAFETY: by the contract.
        false => Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()),
    }
}

/// Returns the name of a plugin's result.
fn result_name(result: c_int) -> String {
    let names = [
        "ncclSuccess",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
        "ncclInProgress",
        "ncclTimeout",
    ];
    let name = usize::try_from(result).ok().and_then(|result| names.get(result));
    name.map_or_else(|| format!("the unknown result {result}"), |name| (*name).to_owned())
}

/// Returns the logger for plugins.
fn logger() -> ncclDebugLogger_t {
    oxccl_plugin_abi::logger(|level, flags, file, line, text| {
        let level = match level {
            0 => return,
            1 => Level::Version,
            3 => Level::Info,
            4 => Level::Abort,
            5 => Level::Trace,
            // 2, and levels of later versions, which are for what is urgent.
            _ => Level::Warn,
        };
        let about = Subsystem::of_bits(flags).unwrap_or(Subsystem::Net);
        if log::enabled(level, about) {
            let place = if file.is_empty() { String::new() } else { format!("{file}:{line} ") };
            log::line(level, about, &format!("{place}{text}"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    static NUMBERS: [u8; 2] = [1, 2];

    #[test]
    fn plugins_of_a_library_begin_and_end_in_turn() {
        let own = turn_of((turn_of as fn(_) -> _) as *const c_void);
        let of_libc = turn_of(libc::malloc as *const c_void);
        assert!(Arc::ptr_eq(&of_libc, &turn_of(libc::free as *const c_void)));
        assert!(!Arc::ptr_eq(&own, &of_libc));
        // Two plugins of the program.
        let kind = Kind { name: "test", prefix: "", symbol: "none", versions: &[], lists: false };
        let plugin = |number: &'static u8| {
            let found = Some(Found { version: 1, at: std::ptr::from_ref(number).cast() });
            let attempt = Attempt { found, ..load(&kind, Some("STATIC_PLUGIN")) };
            let of = |_| Ok(("Test".to_owned(), ()));
            Plugin::take((&kind, Subsystem::Net), attempt, of).0.expect("it was found")
        };
        let plugins = [plugin(&NUMBERS[0]), plugin(&NUMBERS[1])];
        assert!(plugins.iter().all(|plugin| Arc::ptr_eq(&plugin.turn, &own)));
    }
}
