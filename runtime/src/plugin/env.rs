//! Environment plugins, which answer for all variables. They are loaded before there are values, so
//! nothing here writes to the log.

use super::load::{Attempt, Found, Kind, load, wanted};
use crate::NCCL_VERSION;
use oxccl_plugin_abi::env::{ncclEnv_v1_t, ncclEnv_v2_t};
use oxccl_plugin_abi::{logger, ncclResult_t};
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

const KIND: Kind = Kind {
    name: "environment",
    prefix: "libnccl-env",
    symbol: "ncclEnvPlugin_v",
    versions: &[2, 1],
    lists: false,
};
/// The version of NCCL whose interface this library has.
const NCCL: [u8; 3] = numbers(NCCL_VERSION);

/// The longest time for which a function of a plugin is waited for.
const LIMIT: Duration = Duration::from_secs(10);

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

/// A question to the thread of a plugin, and where the answer goes.
enum Question {
    /// The value of a variable.
    Get(CString, SyncSender<Option<String>>),
    /// The plugin's end.
    Finalize(SyncSender<()>),
}

/// A plugin that answers for variables. Its functions run in a thread of their own, as one that
/// does not return would hold up the first call of a program for ever.
pub(crate) struct EnvPlugin {
    /// The name in texts.
    pub(crate) label: String,
    /// The way to that thread; `None` once a function has not returned, or at the end.
    ask: Mutex<Option<Sender<Question>>>,
    /// The process that has the thread; forked children do not.
    pid: u32,
    get_env: GetEnv,
}

/// A plugin is asked no more: a function has not returned.
pub(crate) struct Stuck;

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
    let load = || wanted(&KIND, variable).first().and_then(|name| start(name.as_deref()));
    PLUGIN.get_or_init(load).as_ref()
}

fn start(name: Option<&str>) -> Option<EnvPlugin> {
    let Attempt { found, line, warns, .. } = load(&KIND, name);
    let Some(found) = found else {
        note(line, warns);
        return None;
    };
    // SAFETY: the symbol's name says what the structure is.
    match unsafe { Structure::read(found) }.and_then(EnvPlugin::begin) {
        Ok(plugin) => {
            note(line, warns);
            // SAFETY: the handler stays: the library is never unloaded.
            unsafe { libc::atexit(finalize) };
            Some(plugin)
        }
        Err(why) => {
            note(format!("{line}; refused, {why}"), true);
            None
        }
    }
}

extern "C" fn finalize() {
    if let Some(plugin) = plugin(None).filter(|plugin| plugin.is_here()) {
        plugin.end();
    }
}

/// The content of a plugin's structure.
struct Structure {
    name: String,
    version: u32,
    /// `init` with the arguments of its version.
    init: Box<dyn FnOnce() -> c_int + Send>,
    get_env: GetEnv,
    finalize: Option<Finalize>,
}

impl Structure {
    /// # Safety
    /// The structure is one of an environment plugin, of the version that it is said to have.
    unsafe fn read(found: Found) -> Result<Self, String> {
        let [major, minor, patch] = NCCL;
        let suffix = || c"".as_ptr();
        let version = found.version;
        let init: Option<Box<dyn FnOnce() -> c_int + Send>>;
        let (name, get_env, finalize);
        if version == 1 {
            // SAFETY: by the contract.
            let table = unsafe { &*found.at.cast::<ncclEnv_v1_t>() };
            (name, get_env, finalize) = (table.name, table.getEnv, table.finalize);
            init = table.init.map(|init| {
                // SAFETY: the plugin's function, with the arguments of its version.
                Box::new(move || unsafe { init(major, minor, patch, suffix()) }) as Box<_>
            });
        } else {
            // SAFETY: by the contract.
            let table = unsafe { &*found.at.cast::<ncclEnv_v2_t>() };
            (name, get_env, finalize) = (table.name, table.getEnv, table.finalize);
            let log = logger(|level, _, _, _, text| note(text.to_owned(), level == 2));
            init = table.init.map(|init| {
                // SAFETY: as above.
                Box::new(move || unsafe { init(major, minor, patch, suffix(), log) }) as Box<_>
            });
        }
        let (Some(init), Some(get_env)) = (init, get_env) else {
            return Err("it lacks init or getEnv".to_owned());
        };
        // SAFETY: null or a C string by the interface.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy());
        let name = name.ok_or("it has no name")?.into_owned();
        Ok(Self { name, version, init, get_env, finalize })
    }
}

/// Waits for the answer of a function; fails with what is wrong with the function.
fn wait<T>(answer: &Receiver<T>) -> Result<T, String> {
    answer.recv_timeout(LIMIT).map_err(|error| match error {
        RecvTimeoutError::Timeout => format!("has not returned for {} s", LIMIT.as_secs()),
        RecvTimeoutError::Disconnected => "has ended its thread".to_owned(),
    })
}

/// Calls a plugin's `getEnv`.
fn value_of(get_env: GetEnv, name: &CStr) -> Option<String> {
    // SAFETY: the plugin's function, with a text that lives during the call.
    let value = unsafe { get_env(name.as_ptr()) };
    // SAFETY: null or a C string by the interface, copied before the next call.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}

impl EnvPlugin {
    /// Begins a plugin, and its thread.
    fn begin(of: Structure) -> Result<Self, String> {
        /// As much as the main thread has in most programs, in which NCCL calls the plugin.
        const STACK_BYTES: usize = 8 << 20;
        let Structure { name, version, init, get_env, finalize } = of;
        let (began, begun) = sync_channel(1);
        let (ask, questions) = channel();
        let serve = move || {
            // Who has waited for too long for an answer is not there any more.
            let _ = began.send(init());
            for question in questions {
                match question {
                    Question::Get(name, answer) => {
                        let _ = answer.send(value_of(get_env, &name));
                    }
                    Question::Finalize(answer) => {
                        // SAFETY: the plugin's function, called once.
                        let _ = finalize.map(|finalize| unsafe { finalize() });
                        let _ = answer.send(());
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("oxccl-env".to_owned());
        let thread = thread.stack_size(STACK_BYTES).spawn(serve);
        thread.map_err(|e| format!("there is no thread for {name}: {e}"))?;
        match wait(&begun) {
            Ok(0) => {
                let label = format!("env plugin {name} v{version}");
                let pid = std::process::id();
                Ok(Self { label, ask: Mutex::new(Some(ask)), pid, get_env })
            }
            Ok(result) => Err(format!("init of {name} returned {result}")),
            Err(why) => Err(format!("init of {name} {why}")),
        }
    }

    /// Returns whether this process has the plugin's thread.
    fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }

    fn ask(&self) -> MutexGuard<'_, Option<Sender<Question>>> {
        self.ask.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns whether the plugin answers, as far as is known.
    pub(crate) fn answers(&self) -> bool {
        !self.is_here() || self.ask().is_some()
    }

    /// Returns the plugin's value of a variable. Fails if it does not answer, now or before.
    pub(crate) fn get(&self, name: &str) -> Result<Option<String>, Stuck> {
        let Ok(text) = CString::new(name) else { return Ok(None) };
        if !self.is_here() {
            return Ok(value_of(self.get_env, &text));
        }
        let mut ask = self.ask();
        let (answer, answered) = sync_channel(1);
        // The thread goes on for as long as there is a way to it; else the answer is lost.
        let _ = ask.as_ref().ok_or(Stuck)?.send(Question::Get(text, answer));
        wait(&answered).map_err(|why| {
            *ask = None;
            let what = format!("getEnv of {} {why}, asked for {name}", self.label);
            note(format!("{what}: from there on the environment answers"), true);
            Stuck
        })
    }

    /// Ends the plugin with the process, unless it is in a function.
    fn end(&self) {
        let Ok(mut ask) = self.ask.try_lock() else { return };
        let (answer, answered) = sync_channel(1);
        if let Some(way) = ask.take() {
            let _ = way.send(Question::Finalize(answer));
            // No log is left that could tell of a function that does not return.
            let _ = wait(&answered);
        }
    }
}
