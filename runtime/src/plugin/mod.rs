//! Plugins that are loaded while the program runs, with NCCL's names, variables and structures.

pub(crate) mod env;
mod load;
pub(crate) mod net;

use crate::log::{self, Level, Subsystem};
use oxccl_plugin_abi::ncclDebugLogger_t;
use std::ffi::c_int;

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
