//! An environment plugin for NCCL, versions 1 and 2: it answers with the values that a table has
//! for this host, and with those of the process's environment for variables that the table lacks.
//! `NCCL_ENV_PLUGIN=libnccl-env-oxccl-table.so` and `NCCL_ENV_CONFIG_FILE=FILE`.

#![allow(non_upper_case_globals, reason = "the names are NCCL's")]

mod table;

use oxccl_plugin_abi::env::{ncclEnv_v1_t, ncclEnv_v2_t};
use oxccl_plugin_abi::export::{self, INFO, INTERNAL_ERROR, INVALID_USAGE, SUCCESS, Table, WARN};
use oxccl_plugin_abi::{ncclDebugLogLevel, ncclDebugLogger_t, ncclResult_t};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::null;
use std::sync::{Mutex, OnceLock, PoisonError};
use table::Values;

const NAME: &CStr = c"OxCCL-Table";
/// The subsystem of variables in logs.
const ENV: u64 = 0x80;
/// The variable with the table's file.
const FILE: &str = "NCCL_ENV_CONFIG_FILE";

/// The table's values for this host. They stay, as callers keep pointers to them.
static VALUES: OnceLock<Values> = OnceLock::new();

/// Reads the table that the environment names; returns its values for this host and a line for the
/// log.
fn values() -> Result<(Values, String), String> {
    let Some(file) = std::env::var_os(FILE).filter(|file| !file.is_empty()) else {
        let line = format!("{FILE} is not set: the environment answers");
        return Ok((Values::new(), line));
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    values_in(Path::new(&file), &host)
}

fn values_in(file: &Path, host: &str) -> Result<(Values, String), String> {
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let text = std::fs::read_to_string(file).map_err(|e| named(&e))?;
    let values = table::read(&text, host).map_err(|e| named(&e))?;
    let line = format!("{}: variables for {host}: {}", file.display(), values.len());
    Ok((values, line))
}

/// Reads the table, once per process; `say` takes a line for the log.
fn start(say: impl Fn(ncclDebugLogLevel, &str)) -> ncclResult_t {
    let begin = || {
        if VALUES.get().is_some() {
            return SUCCESS;
        }
        match values() {
            Ok((values, line)) => {
                // Another thread may have read the same meanwhile.
                let _ = VALUES.set(values);
                say(INFO, &line);
                SUCCESS
            }
            Err(why) => {
                say(WARN, &why);
                INVALID_USAGE
            }
        }
    };
    catch_unwind(AssertUnwindSafe(begin)).unwrap_or(INTERNAL_ERROR)
}

/// Returns the value of a variable, or null. Without a table the environment answers: before
/// `init`, and after one that has failed, since NCCL asks then, too.
fn value(name: &CStr) -> *const c_char {
    let of_table = || VALUES.get()?.get(name.to_str().ok()?);
    of_table().map_or_else(|| value_in_environment(name), |value| value.as_ptr())
}

/// Returns a copy of a value of the environment. The program may change that while the caller still
/// has the pointer, so each text is kept, once.
fn value_in_environment(name: &CStr) -> *const c_char {
    static KEPT: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());
    let value = std::env::var_os(OsStr::from_bytes(name.to_bytes()));
    let Some(value) = value.and_then(|value| CString::new(value.into_vec()).ok()) else {
        return null();
    };
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kept.get(value.as_c_str()) {
        return known.as_ptr();
    }
    let value: &'static CStr = Box::leak(value.into_boxed_c_str());
    kept.insert(value);
    value.as_ptr()
}

/// Writes a warning where there is no log.
fn warn(level: ncclDebugLogLevel, text: &str) {
    if level == WARN {
        // Nothing is left that could tell of an error.
        let _ = writeln!(std::io::stderr(), "{}: {text}", NAME.to_string_lossy());
    }
}

unsafe extern "C" fn init_v1(
    _major: u8,
    _minor: u8,
    _patch: u8,
    _suffix: *const c_char,
) -> ncclResult_t {
    start(warn)
}

unsafe extern "C" fn init_v2(
    _major: u8,
    _minor: u8,
    _patch: u8,
    _suffix: *const c_char,
    log: ncclDebugLogger_t,
) -> ncclResult_t {
    start(|level, text| export::say(log, (level, ENV), NAME, text))
}

/// Frees nothing: while the process exits, other threads may still read what they were answered.
unsafe extern "C" fn finalize() -> ncclResult_t {
    SUCCESS
}

unsafe extern "C" fn get_env(name: *const c_char) -> *const c_char {
    // SAFETY: a text, by the interface.
    let name = unsafe { CStr::from_ptr(name) };
    catch_unwind(|| value(name)).unwrap_or(null())
}

/// The plugin in version 2.
#[unsafe(no_mangle)]
pub static ncclEnvPlugin_v2: Table<ncclEnv_v2_t> = Table::new(ncclEnv_v2_t {
    name: NAME.as_ptr(),
    init: Some(init_v2),
    finalize: Some(finalize),
    getEnv: Some(get_env),
});

/// The plugin in version 1.
#[unsafe(no_mangle)]
pub static ncclEnvPlugin_v1: Table<ncclEnv_v1_t> = Table::new(ncclEnv_v1_t {
    name: NAME.as_ptr(),
    init: Some(init_v1),
    finalize: Some(finalize),
    getEnv: Some(get_env),
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_init_the_environment_answers_and_texts_stay() {
        // SAFETY: the names are texts, and so are the answers.
        let (path, again, none) = unsafe {
            let none = get_env(c"OXCCL_TEST_THERE_IS_NONE".as_ptr());
            (CStr::from_ptr(get_env(c"PATH".as_ptr())), get_env(c"PATH".as_ptr()), none)
        };
        assert_eq!(path.to_str().ok(), std::env::var("PATH").ok().as_deref());
        assert_eq!(path.as_ptr(), again);
        assert!(none.is_null());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let error = values_in(Path::new("/nonexistent/table"), "here").expect_err("there is none");
        assert!(error.starts_with("/nonexistent/table: "), "{error}");
        let other = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let error = values_in(Path::new(other), "here").expect_err("it is no table");
        assert!(error.ends_with("Cargo.toml: line 1 is \"[package]\"; expected HOSTS NAME=VALUE"));
    }
}
