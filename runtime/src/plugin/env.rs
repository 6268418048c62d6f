//! Environment plugins, which answer for all variables. They are loaded before there are values, so
//! nothing here writes to the log.

use super::load::{Attempt, Found, Kind, load, wanted};
use crate::NCCL_VERSION;
use oxccl_plugin_abi::env::{ncclEnv_v1_t, ncclEnv_v2_t};
use oxccl_plugin_abi::{logger, ncclResult_t};
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, OnceLock};

const KIND: Kind = Kind {
    name: "environment",
    prefix: "libnccl-env",
    symbol: "ncclEnvPlugin_v",
    versions: &[2, 1],
};
/// The version of NCCL whose interface this library has.
const NCCL: [u8; 3] = numbers(NCCL_VERSION);

/// Returns the three numbers of a version.
const fn numbers(version: &str) -> [u8; 3] {
    let (text, mut numbers, mut at, mut i) = (version.as_bytes(), [0; 3], 0, 0);
    while i < text.len() {
        match text[i] {
            b'.' => at += 1,
            digit => numbers[at] = numbers[at] * 10 + (digit - b'0'),
        }
        i += 1;
    }
    numbers
}

type GetEnv = unsafe extern "C" fn(*const c_char) -> *const c_char;
type Finalize = unsafe extern "C" fn() -> ncclResult_t;

/// A plugin that answers for variables.
pub(crate) struct EnvPlugin {
    /// The name in texts.
    pub(crate) label: String,
    get_env: GetEnv,
    finalize: Option<Finalize>,
}

/// Lines about plugins, and by them, from the time before there is a log; true for warnings.
static EARLY: Mutex<Vec<(String, bool)>> = Mutex::new(Vec::new());

/// Takes what was said so far: the warnings, or the other lines.
pub(crate) fn take_lines(warnings: bool) -> Vec<String> {
    let mut early = EARLY.lock().unwrap_or_else(|e| e.into_inner());
    let taken: Vec<_> = early.extract_if(.., |(_, warns)| *warns == warnings).collect();
    taken.into_iter().map(|(line, _)| line).collect()
}

fn note(line: String, warns: bool) {
    EARLY.lock().unwrap_or_else(|e| e.into_inner()).push((line, warns));
}

/// Returns the plugin that the variable `NCCL_ENV_PLUGIN` names, or the one with the usual name;
/// `None` if there is none that works. It is loaded once per process.
pub(crate) fn plugin(variable: Option<&str>) -> Option<&'static EnvPlugin> {
    static PLUGIN: OnceLock<Option<EnvPlugin>> = OnceLock::new();
    let load = || wanted(variable).first().and_then(|name| start(name.as_deref()));
    PLUGIN.get_or_init(load).as_ref()
}

fn start(name: Option<&str>) -> Option<EnvPlugin> {
    let Attempt { found, line, warns, .. } = load(&KIND, name);
    note(line, warns);
    let found = found?;
    // SAFETY: the symbol's name says what the structure is.
    match unsafe { EnvPlugin::of(found) } {
        Ok(plugin) => {
            // SAFETY: the handler stays: the library is never unloaded.
            unsafe { libc::atexit(finalize) };
            Some(plugin)
        }
        Err(why) => {
            note(format!("environment plugin: refused, {why}"), true);
            None
        }
    }
}

extern "C" fn finalize() {
    if crate::fork::forked() {
        return;
    }
    if let Some(finalize) = plugin(None).and_then(|plugin| plugin.finalize) {
        // SAFETY: the plugin's function, called once.
        unsafe { finalize() };
    }
}

/// Returns a plugin with a name and its function, initialised by `init`.
///
/// # Safety
/// The name is null or a C string.
unsafe fn checked(
    name: *const c_char,
    version: u32,
    (get_env, finalize): (Option<GetEnv>, Option<Finalize>),
    init: Option<impl FnOnce() -> c_int>,
) -> Result<EnvPlugin, String> {
    let (Some(init), Some(get_env)) = (init, get_env) else {
        return Err("it lacks init or getEnv".to_owned());
    };
    // SAFETY: by the contract.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy());
    let name = name.ok_or("it has no name")?;
    match init() {
        0 => Ok(EnvPlugin { label: format!("env plugin {name} v{version}"), get_env, finalize }),
        result => Err(format!("init of {name} returned {result}")),
    }
}

impl EnvPlugin {
    /// # Safety
    /// The structure is one of an environment plugin, of the version that it is said to have.
    unsafe fn of(found: Found) -> Result<Self, String> {
        let [major, minor, patch] = NCCL;
        let suffix = c"".as_ptr();
        let version = found.version;
        if version == 1 {
            // SAFETY: by the contract.
            let table = unsafe { &*found.at.cast::<ncclEnv_v1_t>() };
            // SAFETY: the plugin's function, with the arguments of its version.
            let init = table.init.map(|init| move || unsafe { init(major, minor, patch, suffix) });
            // SAFETY: the name is a C string by the interface.
            return unsafe { checked(table.name, version, (table.getEnv, table.finalize), init) };
        }
        // SAFETY: by the contract.
        let table = unsafe { &*found.at.cast::<ncclEnv_v2_t>() };
        let log = logger(|level, _, _, _, text| note(text.to_owned(), level == 2));
        // SAFETY: as above.
        let init = table.init.map(|init| move || unsafe { init(major, minor, patch, suffix, log) });
        // SAFETY: as above.
        unsafe { checked(table.name, version, (table.getEnv, table.finalize), init) }
    }

    /// Returns the plugin's value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        // SAFETY: the plugin's function, with a text that lives during the call.
        let value = unsafe { (self.get_env)(name.as_ptr()) };
        // SAFETY: null or a C string by the interface, copied before the next call.
        (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
    }
}
