//! Logging in NCCL's levels and subsystems: to standard error, a file, or a callback.
//!
//! A line reads `host:pid:tid [device] OXCCL INFO text`, or `[device, rank 3]` if it is about a
//! rank of this process. The time precedes the line if `NCCL_DEBUG_TIMESTAMP_LEVELS` says so. A
//! callback receives the text alone.

mod callback;

use crate::config::Config;
use crate::error::{Error, Result};
use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Once, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

pub use crate::config::{Level, Levels, Subsystem, Subsystems};
pub use callback::Callback;

/// The output of lines when there is no callback, and the format of their timestamps.
struct Output {
    /// The log file; `None` for standard error.
    file: Option<File>,
    timestamp_format: String,
    timestamp_levels: Levels,
}

thread_local! {
    /// The number of this thread's device, for the prefix of a line.
    static DEVICE: Cell<i32> = const { Cell::new(0) };
}

static CONFIGURED: Once = Once::new();
static LEVEL: AtomicI32 = AtomicI32::new(0);
static SUBSYSTEM_BITS: AtomicU64 = AtomicU64::new(0);
static OUTPUT: RwLock<Option<Arc<Output>>> = RwLock::new(None);

fn configure(config: &Config) {
    let mut trouble = None;
    let file = match config.debug_file.as_str() {
        "" => None,
        pattern => open(&expand(pattern)).unwrap_or_else(|error| {
            trouble = Some(error);
            None
        }),
    };
    let output = Output {
        file,
        timestamp_format: config.debug_timestamp_format.clone(),
        timestamp_levels: config.debug_timestamp_levels,
    };
    if let Some(error) = trouble.filter(|_| config.debug >= Level::Warn) {
        output.write(Level::Warn, None, &format!("logging to standard error: {error}"));
    }
    *OUTPUT.write().unwrap_or_else(|e| e.into_inner()) = Some(Arc::new(output));
    SUBSYSTEM_BITS.store(config.debug_subsys.bits(), Ordering::Relaxed);
    LEVEL.store(config.debug as i32, Ordering::Relaxed);
}

/// Sets the level and the callback. Without a callback, lines go to the place that NCCL_DEBUG_FILE
/// names. A callback runs in a separate thread and may call anything. Blocks until the previous
/// callback has received its lines.
pub fn set(level: i32, callback: Option<Callback>) {
    CONFIGURED.call_once(|| configure(Config::get()));
    LEVEL.store(level.max(0), Ordering::Relaxed);
    callback::POST.set(callback);
}

/// Notes the number of the calling thread's device, for the lines that the thread writes.
pub fn set_device(index: i32) {
    DEVICE.set(index);
}

/// Applies the present values of NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE. A callback
/// stays.
pub fn reset() {
    let config = Config::fresh();
    CONFIGURED.call_once(|| {});
    configure(&config);
}

/// Returns whether such lines are written, to be asked before formatting something costly.
pub fn enabled(at: Level, about: Subsystem) -> bool {
    CONFIGURED.call_once(|| configure(Config::get()));
    let level = LEVEL.load(Ordering::Relaxed);
    match at {
        Level::Version => level == at as i32 || level >= Level::Info as i32,
        Level::None | Level::Warn => at as i32 <= level,
        Level::Info | Level::Abort | Level::Trace => {
            at as i32 <= level && SUBSYSTEM_BITS.load(Ordering::Relaxed) & about as u64 != 0
        }
    }
}

/// Writes a line. Lines of level VERSION appear only with NCCL_DEBUG=VERSION, INFO and above: WARN
/// is the default, and with it a program without problems logs nothing.
pub fn line(at: Level, about: Subsystem, text: &str) {
    line_of(None, at, about, text);
}

/// Writes a line as [`line()`] does, about one rank of this process.
pub fn line_of(rank: Option<u32>, at: Level, about: Subsystem, text: &str) {
    if enabled(at, about) {
        put(at, rank, text);
    }
}

/// Writes a line whatever the level is, as the user asked for it by a call.
pub fn write(at: Level, text: &str) {
    put(at, None, text);
}

fn put(at: Level, rank: Option<u32>, text: &str) {
    CONFIGURED.call_once(|| configure(Config::get()));
    if callback::POST.take(at, text) {
        return;
    }
    let output = OUTPUT.read().unwrap_or_else(|e| e.into_inner()).clone();
    output.expect("set when logging was configured").write(at, rank, text);
}

impl Output {
    fn write(&self, at: Level, rank: Option<u32>, text: &str) {
        let time = if self.timestamp_levels.contains(at) {
            timestamp(&self.timestamp_format, SystemTime::now())
        } else {
            String::new()
        };
        let (pid, tid) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero());
        let (host, device, name) = (host(), DEVICE.get(), at.name());
        let rank = rank.map_or_else(String::new, |rank| format!(", rank {rank}"));
        let line = format!("{time}{host}:{pid}:{tid} [{device}{rank}] OXCCL {name} {text}\n");
        // The line is written in one call, so that lines of several threads and processes do not
        // mix. A full disk must not stop the program.
        let _ = match &self.file {
            Some(file) => (&mut &*file).write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }
}

fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Returns the path with `%h`, `%p` and `%%` replaced.
fn expand(pattern: &str) -> String {
    let mut path = String::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        match (c, rest.as_str().chars().next()) {
            ('%', Some('h')) => path += &host(),
            ('%', Some('p')) => path += &std::process::id().to_string(),
            ('%', Some('%')) => path.push('%'),
            _ => {
                path.push(c);
                continue;
            }
        }
        rest.next();
    }
    path
}

/// Opens a log file; `None` for standard error.
fn open(path: &str) -> Result<Option<File>> {
    let hint = "NCCL_DEBUG_FILE needs a place where this user may make a file";
    let failed = |e: std::io::Error| Error::system(format!("opening {path}"), e, hint);
    match path {
        "/dev/stderr" => return Ok(None),
        // These paths are links; links are followed nowhere else.
        "/dev/stdout" => {
            let stdout = std::io::stdout().as_fd().try_clone_to_owned();
            return stdout.map(|fd| Some(File::from(fd))).map_err(failed);
        }
        _ => {}
    }
    // Opening a pipe must not wait for its other end.
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let mut options = File::options();
    let file = options.append(true).create(true).mode(0o600).custom_flags(flags).open(path);
    let file = file.map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    let own = meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw();
    if !own && path != "/dev/null" {
        let why = "it is no regular file of this user";
        return Err(Error::system(format!("opening {path}"), why, hint));
    }
    Ok(Some(file))
}

/// Returns the local time in strftime's `format`, with `%1f` to `%9f` for the first digits of the
/// second's fraction; empty if the result does not fit 256 bytes.
pub(crate) fn timestamp(format: &str, now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = format!("{:09}", since.subsec_nanos());
    let mut pattern = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        pattern += &rest[..at];
        rest = &rest[at..];
        match rest.as_bytes() {
            [_, digits @ b'1'..=b'9', b'f', ..] => {
                pattern += &nanoseconds[..usize::from(digits - b'0')];
                rest = &rest[3..];
            }
            // The character after the sign belongs to it, even if it is another `%`.
            _ => {
                let two = rest.char_indices().nth(2).map_or(rest.len(), |(at, _)| at);
                pattern += &rest[..two];
                rest = &rest[two..];
            }
        }
    }
    pattern += rest;
    let Ok(pattern) = std::ffi::CString::new(pattern) else { return String::new() };
    let seconds = since.as_secs() as libc::time_t;
    let mut buffer = [0u8; 256];
    // SAFETY: an all-zero `tm` is valid; both pointers are to live locals; strftime gets a string
    // that ends and writes at most as many bytes as the buffer has.
    let written = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut time);
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), pattern.as_ptr(), &time)
    };
    String::from_utf8_lossy(&buffer[..written]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn file_names_carry_host_and_process() {
        let process = std::process::id();
        assert_eq!(expand("/a/%h.%p%%%x%"), format!("/a/{}.{process}%%x%", host()));
        assert_eq!(expand("%%p"), "%p");
    }

    #[test]
    fn timestamps_have_fractions_and_bounded_length() {
        let now = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        assert_eq!(timestamp("%s.%3f|%9f|%%3f ", now), "1000000000.123|123456789|%3f ");
        assert_eq!((timestamp("", now), timestamp("a\0b", now)), (String::new(), String::new()));
        assert_eq!(timestamp(&"%F".repeat(100), now), "");
        assert_eq!(timestamp("[x] ", now), "[x] ");
    }

    #[test]
    fn log_files_are_private_appended_to_and_no_links() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("oxccl-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("log");
        let text = path.to_str().unwrap();
        for (round, rank) in [(0, None), (1, Some(3))] {
            let output = Output {
                file: open(text).unwrap(),
                timestamp_format: "<%1f>".to_owned(),
                timestamp_levels: Levels::listed("WARN").unwrap(),
            };
            output.write(Level::Info, rank, &format!("round {round}"));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let tid = rustix::thread::gettid().as_raw_nonzero();
        let from = format!("{}:{}:{tid}", host(), std::process::id());
        let written = std::fs::read_to_string(&path).unwrap();
        let lines = ["[0] OXCCL INFO round 0", "[0, rank 3] OXCCL INFO round 1"];
        assert_eq!(written, lines.map(|line| format!("{from} {line}\n")).concat());
        let link = folder.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open(link.to_str().unwrap()).is_err());
        assert!(open(folder.to_str().unwrap()).is_err());
        assert!(open("/dev/null").is_ok() && open("/dev/zero").is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
