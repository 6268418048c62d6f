//! Reading variables: by handle, as numbers or text, or by name.
//!
//! A handle is `tag | kind | row`, in the scheme of the other handles; rows live as long as the
//! library.

use super::types::ncclResult_t;
use crate::boundary::boundary;
use crate::convert;
use oxccl_runtime::config::{self, Config, Origin, Setting, Status, Value};
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::fork;
use oxccl_runtime::handle::tagged;
use oxccl_runtime::log::{self, Level};
use oxccl_twin::twin;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{forget, take};
use std::sync::OnceLock;

/// A variable; use only through its handle.
pub struct ncclParamHandle {
    _private: [u8; 0],
}

/// Handle of a variable. It lives as long as the library and needs no freeing.
pub type ncclParamHandle_t = *mut ncclParamHandle;

/// The bits that these handles begin with: the tag of all handles, and the kind 15.
const HANDLE: usize = tagged(15) as usize;

thread_local! {
    /// The keys that this thread asked for last.
    static KEYS: RefCell<Vec<*const c_char>> = const { RefCell::new(Vec::new()) };
}

/// Returns the names and values of all variables for C, in the order of the settings.
fn texts() -> &'static [(CString, CString)] {
    static TEXTS: OnceLock<Vec<(CString, CString)>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let text = |text: String| CString::new(text).expect("neither source can hold a zero byte");
        let settings = Config::get().report.settings.iter();
        settings.map(|s| (text(s.variable.name.to_owned()), text(s.value.to_string()))).collect()
    })
}

/// Returns the row of a key.
///
/// # Safety
/// `key` is null or a string.
unsafe fn row(key: *const c_char, function: &'static str) -> Result<usize> {
    if key.is_null() {
        return Err(Error::argument(function, "key", "null", "the name of a variable"));
    }
    // SAFETY: not null, and a string by the contract of the caller.
    let key = unsafe { CStr::from_ptr(key) }.to_string_lossy();
    Config::get().setting(&key).map(|(row, _)| row).ok_or_else(|| {
        let expected = match config::nearest(&key) {
            Some(near) => format!("the name of a variable; did you mean {near}?"),
            None => "the name of a variable, as `oxccl env` lists them".to_owned(),
        };
        let shown: String = key.chars().take(64).collect();
        Error::argument(function, "key", format!("{shown:?}"), expected)
    })
}

/// Returns the row and the setting of a handle.
fn bound(h: ncclParamHandle_t, function: &'static str) -> Result<(usize, &'static Setting)> {
    let row = (h as usize).wrapping_sub(HANDLE);
    Config::get().report.settings.get(row).map(|setting| (row, setting)).ok_or_else(|| {
        let got = if h.is_null() { "null".to_owned() } else { format!("{:#x}", h as usize) };
        Error::argument(function, "h", got, "a handle from ncclParamBind")
    })
}

unsafe fn bind(out: *mut ncclParamHandle_t, key: *const c_char) -> Result<()> {
    const FUNCTION: &str = "ncclParamBind";
    // SAFETY: passed on from the caller.
    unsafe {
        let row = row(key, FUNCTION)?;
        convert::store(out, (HANDLE + row) as ncclParamHandle_t, FUNCTION, "out")
    }
}

/// Reads a variable as a number of type `T`; fails if the value does not fit.
unsafe fn get_number<T: TryFrom<i128>>(
    h: ncclParamHandle_t,
    out: *mut T,
    function: &'static str,
    range: &'static str,
) -> Result<()> {
    let (_, Setting { variable, value, .. }) = bound(h, function)?;
    let refused = |expected| {
        let got = format!("that of {}={value}", variable.name);
        Error::argument(function, "h", got, expected)
    };
    let number = match value {
        Value::Text(_) => return Err(refused("a variable that holds a number")),
        Value::Unset => return Err(refused("a variable that is set or has a default")),
        value => value.number().expect("all others are numbers"),
    };
    let number = T::try_from(number).map_err(|_| refused(range))?;
    // SAFETY: passed on from the caller.
    unsafe { convert::store(out, number, function, "out") }
}

unsafe fn get_str(h: ncclParamHandle_t, out: *mut *const c_char) -> Result<()> {
    const FUNCTION: &str = "ncclParamGetStr";
    let (row, _) = bound(h, FUNCTION)?;
    // SAFETY: passed on from the caller.
    unsafe { convert::store(out, texts()[row].1.as_ptr(), FUNCTION, "out") }
}

/// Returns the length of a text as a C int.
fn length(bytes: &[u8], function: &'static str) -> Result<c_int> {
    let too_long = |_| Error::argument(function, "key", "a text beyond 2 GiB", "a shorter one");
    c_int::try_from(bytes.len()).map_err(too_long)
}

unsafe fn get(
    h: ncclParamHandle_t,
    out: *mut c_void,
    max_len: c_int,
    len: *mut c_int,
) -> Result<()> {
    const FUNCTION: &str = "ncclParamGet";
    let (row, setting) = bound(h, FUNCTION)?;
    if out.is_null() {
        return Err(Error::argument(FUNCTION, "out", "null", "a place for the value"));
    }
    let number;
    let bytes: &[u8] = match &setting.value {
        Value::Bool(value) => &[u8::from(*value)],
        Value::Int(value) => {
            number = value.to_ne_bytes();
            &number
        }
        Value::Uint(value) => {
            number = value.to_ne_bytes();
            &number
        }
        Value::Duration(value) => {
            number = (value.as_nanos() as u64).to_ne_bytes();
            &number
        }
        Value::Text(_) | Value::Unset => texts()[row].1.as_bytes_with_nul(),
    };
    // SAFETY: passed on from the caller.
    unsafe { convert::store(len, length(bytes, FUNCTION)?, FUNCTION, "len")? };
    if usize::try_from(max_len).is_ok_and(|room| room >= bytes.len()) {
        // SAFETY: not null, and writable for maxLen bytes by the contract of the caller.
        unsafe { out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        return Ok(());
    }
    let expected = format!("at least {} bytes for {}", bytes.len(), setting.variable.name);
    Err(Error::argument(FUNCTION, "maxLen", max_len, expected))
}

unsafe fn get_parameter(
    key: *const c_char,
    value: *mut *const c_char,
    value_len: *mut c_int,
) -> Result<()> {
    const FUNCTION: &str = "ncclParamGetParameter";
    if value.is_null() {
        return Err(Error::argument(FUNCTION, "value", "null", "a place for the result"));
    }
    // SAFETY: passed on from the caller.
    unsafe {
        let text = &texts()[row(key, FUNCTION)?].1;
        convert::store(value_len, length(text.as_bytes(), FUNCTION)?, FUNCTION, "valueLen")?;
        convert::store(value, text.as_ptr(), FUNCTION, "value")
    }
}

/// Returns the settings that are shown, with their rows. NCCL_PARAM_DUMP_ALL is read at each call,
/// as in NCCL.
fn shown() -> impl Iterator<Item = (usize, &'static Setting)> {
    let all = Config::fresh().param_dump_all;
    let settings = Config::get().report.settings.iter().enumerate();
    settings.filter(move |(_, setting)| all || setting.variable.is_documented())
}

unsafe fn get_all_parameter_keys(
    table: *mut *mut *const c_char,
    table_len: *mut c_int,
) -> Result<()> {
    const FUNCTION: &str = "ncclParamGetAllParameterKeys";
    if table.is_null() {
        return Err(Error::argument(FUNCTION, "table", "null", "a place for the result"));
    }
    let mut keys: Vec<_> = shown().map(|(row, _)| texts()[row].0.as_ptr()).collect();
    let count = c_int::try_from(keys.len()).expect("the table is small");
    // SAFETY: passed on from the caller.
    unsafe { convert::store(table_len, count, FUNCTION, "tableLen")? };
    let start = keys.as_mut_ptr();
    if KEYS.try_with(|kept| kept.replace(take(&mut keys))).is_err() {
        // Exit handlers run after the thread's local values are gone: their table is leaked.
        forget(keys);
    }
    // SAFETY: passed on from the caller.
    unsafe { convert::store(table, start, FUNCTION, "table") }
}

fn dump_all() -> Result<()> {
    fork::check()?;
    for (_, Setting { variable, value, origin, .. }) in shown() {
        let kind = variable.kind.name();
        let source = match origin {
            Origin::Default => "default".to_owned(),
            origin => format!("{origin}; default {:?}", variable.default),
        };
        let shown = match value {
            Value::Unset => "unset".to_owned(),
            Value::Text(text) => format!("{text:?}"),
            value => value.to_string(),
        };
        let effect = match variable.status {
            Status::Honoured => String::new(),
            Status::Plugins => " Read by network plugins.".to_owned(),
            Status::Accepted(why) => format!(" No effect: {why}."),
        };
        let (name, doc) = (variable.name, variable.doc);
        log::write(Level::Info, &format!("{name} = {shown} ({source}), {kind}: {doc}{effect}"));
    }
    Ok(())
}

pub(crate) fn reset_debug_init() -> Result<()> {
    // Another thread of the parent may have held the log's locks.
    fork::check()?;
    log::reset();
    Ok(())
}

/// Finds a variable by its full name, for example NCCL_DEBUG.
///
/// `out`: out, a handle that lives as long as the library; unchanged for an unknown name. Blocks:
/// never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamBind(
    out: *mut ncclParamHandle_t,
    key: *const c_char,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { bind(out, key) })
}

/// Reads a variable as a signed number of 8 bits; switches are 0 or 1, durations nanoseconds.
///
/// `out`: out. Texts, variables without a value and values out of range are refused. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_number(h, out, "ncclParamGetI8", "a value from -128 to 127") })
}

/// Reads a variable as a signed number of 16 bits; switches are 0 or 1, durations nanoseconds.
///
/// `out`: out. Texts, variables without a value and values out of range are refused. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_number(h, out, "ncclParamGetI16", "a value from -32768 to 32767") })
}

/// Reads a variable as a signed number of 32 bits; switches are 0 or 1, durations nanoseconds.
///
/// `out`: out. Texts, variables without a value and values out of range are refused. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_number(h, out, "ncclParamGetI32", "a value from -2^31 to 2^31 - 1") })
}

/// Reads a variable as a signed number of 64 bits; switches are 0 or 1, durations nanoseconds.
///
/// `out`: out. Texts, variables without a value and values out of range are refused. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_number(h, out, "ncclParamGetI64", "a value from -2^63 to 2^63 - 1") })
}

/// Reads a variable as an unsigned number of 8 bits; switches are 0 or 1, durations nanoseconds.
///
/// `out`: out. Texts, variables without a value and values out of range are refused. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_number(h, out, "ncclParamGetU8", "a value from 0 to 255") })
}

/// Reads a variable as an unsigned number of 16 bits; switches are 0 or 1, durations nanoseconds.
///
/// `out`: out. Texts, variables without a value and values out of range are refused. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_number(h, out, "ncclParamGetU16", "a value from 0 to 65535") })
}

/// Reads a variable as an unsigned number of 32 bits; switches are 0 or 1, durations nanoseconds.
///
/// `out`: out. Texts, variables without a value and values out of range are refused. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_number(h, out, "ncclParamGetU32", "a value from 0 to 2^32 - 1") })
}

/// Reads a variable as an unsigned number of 64 bits; switches are 0 or 1, durations nanoseconds.
///
/// `out`: out. Texts, variables without a value and values out of range are refused. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_number(h, out, "ncclParamGetU64", "a value from 0 to 2^64 - 1") })
}

/// Reads a variable of any kind as text; empty when it has no value.
///
/// `out`: out, a text that lives as long as the library. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetStr(
    h: ncclParamHandle_t,
    out: *mut *const c_char,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_str(h, out) })
}

/// Reads a variable as bytes: one for a switch, eight for a number, a text with the zero at its
/// end.
///
/// `out`: out, of `maxLen` bytes. `len`: out, the bytes written, or needed where `maxLen` is too
/// small.
/// Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGet(
    h: ncclParamHandle_t,
    out: *mut c_void,
    maxLen: c_int,
    len: *mut c_int,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get(h, out, maxLen, len) })
}

/// Reads the variable of a name as text.
///
/// `value`: out, a text that lives as long as the library. `valueLen`: out, its bytes without the
/// zero at the end. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetParameter(
    key: *const c_char,
    value: *mut *const c_char,
    valueLen: *mut c_int,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_parameter(key, value, valueLen) })
}

/// Returns the names of all variables; with NCCL_PARAM_DUMP_ALL=1 also of those that NCCL does not
/// document.
///
/// `table`: out, lives until the calling thread's next call of this function. `tableLen`: out, the
/// number of names. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetAllParameterKeys(
    table: *mut *mut *const c_char,
    tableLen: *mut c_int,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { get_all_parameter_keys(table, tableLen) })
}

/// Writes the variables of ncclParamGetAllParameterKeys with value, origin and meaning to the log,
/// whatever its level is. Blocks: for the log file.
///
/// # Safety
/// May be called at any time.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamDumpAll() {
    // The function returns nothing; the error stays for ncclGetLastError.
    let _ = boundary(dump_all);
}

/// Makes logging follow the present values of NCCL_DEBUG and of the variables that begin like it. A
/// function set by oxcclSetLog stays; `ncclParam*` still return the values read first. Blocks: for
/// files.
///
/// # Safety
/// No other thread changes the environment meanwhile.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclResetDebugInit() {
    // The function returns nothing; the error stays for ncclGetLastError.
    let _ = boundary(reset_debug_init);
}
