//! The logger for plugins.

use crate::ncclDebugLogger_t;
use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::sync::{PoisonError, RwLock};

/// Takes a line of a plugin's log: level, subsystems, file, line, text.
pub type Sink = fn(i32, u64, &str, i32, &str);

static SINK: RwLock<Option<Sink>> = RwLock::new(None);

type CSink = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char);

unsafe extern "C" {
    fn private_oxccl_plugin_set_sink(to: CSink);
    fn private_oxccl_plugin_log(
        level: c_int,
        flags: c_ulong,
        file: *const c_char,
        line: c_int,
        fmt: *const c_char,
        ...
    );
}

unsafe extern "C" fn forward(
    level: c_int,
    flags: c_ulong,
    file: *const c_char,
    line: c_int,
    text: *const c_char,
) {
    let Some(sink) = *SINK.read().unwrap_or_else(PoisonError::into_inner) else { return };
    // SAFETY: the C function passes texts that live during the call.
    let (file, text) = unsafe { (CStr::from_ptr(file), CStr::from_ptr(text)) };
    let (file, text) = (file.to_string_lossy(), text.to_string_lossy());
    // No panic passes a plugin's frames.
    let _ = std::panic::catch_unwind(|| sink(level, flags, &file, line, &text));
}

/// Returns the logger to give to plugins. From now on it passes its lines to `sink`, also those of
/// plugins that have it already.
pub fn logger(sink: Sink) -> ncclDebugLogger_t {
    *SINK.write().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    // SAFETY: the function takes what the C function passes.
    unsafe { private_oxccl_plugin_set_sink(forward) };
    private_oxccl_plugin_log
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[test]
    fn lines_arrive_with_their_arguments_and_long_ones_are_cut() {
        let log = logger(|level, flags, file, line, text| {
            LINES.lock().unwrap().push(format!("{level} {flags} {file}:{line} {text}"));
        });
        // SAFETY: the arguments are those of the formats.
        unsafe {
            log(3, 16, c"a.c".as_ptr(), 7, c"%d of %s".as_ptr(), 5 as c_int, c"six".as_ptr());
            log(2, 1, std::ptr::null(), 0, c"%5000d".as_ptr(), 1 as c_int);
            log(2, 1, c"a.c".as_ptr(), 0, std::ptr::null());
        }
        let lines = LINES.lock().unwrap();
        assert_eq!(lines[0], "3 16 a.c:7 5 of six");
        assert_eq!((lines.len(), lines[1].len()), (2, 2047 + "2 1 :0 ".len()));
    }
}
