//! Logging in NCCL's levels, to standard error or to a callback.

use crate::config::Config;
use std::sync::RwLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// Levels, with the numbers that plugins get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names are NCCL's")]
pub enum Level {
    None = 0,
    Version = 1,
    Warn = 2,
    Info = 3,
    Trace = 5,
}

/// Receives a level and a line.
pub type Callback = Box<dyn Fn(i32, &str) + Send + Sync>;

/// −1: not read from the configuration yet.
static LEVEL: AtomicI32 = AtomicI32::new(-1);
static CALLBACK: RwLock<Option<Callback>> = RwLock::new(None);

fn level() -> i32 {
    match LEVEL.load(Ordering::Relaxed) {
        -1 => {
            let level = match Config::get().debug.to_ascii_uppercase().as_str() {
                "NONE" => Level::None,
                "VERSION" => Level::Version,
                "INFO" => Level::Info,
                "TRACE" => Level::Trace,
                _ => Level::Warn,
            };
            LEVEL.store(level as i32, Ordering::Relaxed);
            level as i32
        }
        level => level,
    }
}

/// Sets the level, and where lines go: standard error without a callback.
pub fn set(level: i32, callback: Option<Callback>) {
    LEVEL.store(level.max(0), Ordering::Relaxed);
    *CALLBACK.write().unwrap_or_else(|e| e.into_inner()) = callback;
}

/// Whether lines of this level are written; check before formatting something costly.
pub fn enabled(at: Level) -> bool {
    at as i32 <= level()
}

/// Writes a line.
pub fn line(at: Level, text: &str) {
    if !enabled(at) {
        return;
    }
    match &*CALLBACK.read().unwrap_or_else(|e| e.into_inner()) {
        Some(callback) => callback(at as i32, text),
        None => eprintln!("oxccl[{}] {at:?}: {text}", std::process::id()),
    }
}
