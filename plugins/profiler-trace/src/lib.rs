//! A profiler plugin for NCCL, versions 5 to 7: it writes a trace for Perfetto and Chrome, and a
//! page with a table and plots. `NCCL_PROFILER_PLUGIN=libnccl-profiler-oxccl-trace.so` and
//! `NCCL_PROFILE_DUMP_FILE=FILE`; each process writes `FILE-HOST-PROCESS.json` and `.html` when its
//! last communicator ends.

#![allow(non_upper_case_globals, reason = "the names are NCCL's")]

mod output;
mod record;

use oxccl_plugin_abi::export::{self, INFO, INTERNAL_ERROR, SUCCESS, Table, WARN};
use oxccl_plugin_abi::profiler::{
    ncclProfiler_v5_t, ncclProfiler_v6_t, ncclProfiler_v7_t, ncclProfilerColl_v5_t,
    ncclProfilerColl_v7_t, ncclProfilerEventDescr_v5_t, ncclProfilerEventDescr_v6_t,
    ncclProfilerEventDescr_v7_t, ncclProfilerEventState_t, ncclProfilerEventStateArgs_v5_t,
    ncclProfilerEventStateArgs_v6_t, ncclProfilerEventStateArgs_v7_t,
};
use oxccl_plugin_abi::{ncclDebugLogger_t, ncclResult_t};
use record::{Comm, Event, Operation, Record, What};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{BufWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const NAME: &CStr = c"OxCCL-Trace";
/// The subsystem of profilers in logs.
const PROFILE: u64 = 0x4000;
/// The variable with the beginning of the files' names.
const FILE: &str = "NCCL_PROFILE_DUMP_FILE";

// The kinds of events (`ncclProfileColl` and others).
const COLL: u64 = 1 << 1;
const P2P: u64 = 1 << 2;
const KERNEL_CHANNEL: u64 = 1 << 6;
const GROUP_API: u64 = 1 << 8;
const COLL_API: u64 = 1 << 9;
const P2P_API: u64 = 1 << 10;
const KERNEL_LAUNCH: u64 = 1 << 11;
const CE_COLL: u64 = 1 << 12;
const WANTED: u64 =
    COLL | P2P | KERNEL_CHANNEL | GROUP_API | COLL_API | P2P_API | KERNEL_LAUNCH | CE_COLL;
/// The state that has the GPU's time of a channel's end (`ncclProfilerKernelChStop`).
const CHANNEL_STOPS: ncclProfilerEventState_t = 22;

static LOGGER: OnceLock<ncclDebugLogger_t> = OnceLock::new();

fn say(level: c_int, text: &str) {
    if let Some(log) = LOGGER.get() {
        export::say(*log, (level, PROFILE), NAME, text);
    }
}

fn record() -> MutexGuard<'static, Record> {
    static RECORD: OnceLock<Mutex<Record>> = OnceLock::new();
    let record = RECORD.get_or_init(Mutex::default);
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the body of a function; no panic leaves it.
fn run(body: impl FnOnce()) -> ncclResult_t {
    catch_unwind(AssertUnwindSafe(body)).map_or(INTERNAL_ERROR, |()| SUCCESS)
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns a text of the caller's, or an empty one for null.
///
/// # Safety
/// `text` is null or a text.
unsafe fn text<'a>(text: *const c_char) -> std::borrow::Cow<'a, str> {
    if text.is_null() {
        return "".into();
    }
    // SAFETY: by the contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy()
}

/// A number as a pointer. Contexts and handles are numbers, which nobody follows.
fn handle(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(number as usize)
}

#[allow(clippy::too_many_arguments, reason = "the interface is NCCL's")]
unsafe extern "C" fn init(
    context: *mut *mut c_void,
    number: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    nranks: c_int,
    rank: c_int,
    log: ncclDebugLogger_t,
) -> ncclResult_t {
    LOGGER.get_or_init(|| log);
    run(|| {
        let wanted = std::env::var_os(FILE).is_some();
        if !wanted {
            say(INFO, &format!("{FILE} is not set: nothing is recorded"));
        }
        // SAFETY: null or a text.
        let name = unsafe { text(name) }.into_owned();
        let mut record = record();
        record.comms.push(Comm { name, number, rank, nranks, nodes });
        record.live += 1;
        // SAFETY: places for a pointer and a number.
        unsafe {
            context.write(handle(record.comms.len() as u64));
            mask.write(if wanted { WANTED as c_int } else { 0 });
        }
    })
}

/// Begins an event of what a closure reads from a description.
///
/// # Safety
/// `to` is a place for a pointer.
unsafe fn begin(
    context: *mut c_void,
    to: *mut *mut c_void,
    parent: *mut c_void,
    (gpu_ns, what): (u64, impl FnOnce(&mut Record) -> Option<What>),
) -> ncclResult_t {
    run(|| {
        let began_ns = now_ns();
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let mut record = record();
        let comm = (context as usize).saturating_sub(1);
        let event = what(&mut record).map(|what| {
            let (id, parent, ended_ns) = (0, parent as u64, 0);
            Event { id, parent, comm, thread, began_ns, ended_ns, gpu_ns: (gpu_ns, 0), what }
        });
        let id = event.and_then(|event| record.begin(event));
        // SAFETY: by the contract.
        unsafe { to.write(id.map_or(null_mut(), handle)) };
    })
}

unsafe extern "C" fn stop_event(event: *mut c_void) -> ncclResult_t {
    run(|| record().end(event as u64, now_ns()))
}

unsafe extern "C" fn finalize(_context: *mut c_void) -> ncclResult_t {
    run(|| {
        let mut record = record();
        record.live = record.live.saturating_sub(1);
        if record.live > 0 {
            return;
        }
        if let Some(file) = std::env::var_os(FILE) {
            match write(&record, Path::new(&file)) {
                Ok(name) => say(INFO, &format!("{} events are in {name}", record.events.len())),
                Err(error) => say(WARN, &error),
            }
        }
        if record.dropped > 0 {
            say(WARN, &format!("{} events were not kept: there are too many", record.dropped));
        }
    })
}

/// Writes the two files; returns the name of the trace.
fn write(record: &Record, beginning: &Path) -> Result<String, String> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let process = std::process::id();
    let name = |end: &str| format!("{}-{host}-{process}.{end}", beginning.display());
    let put = |name: String, content: &dyn Fn(&mut dyn Write) -> std::io::Result<()>| {
        // Under its name when it is whole: the process may end meanwhile.
        let unfinished = format!("{name}.part");
        let written = std::fs::File::create(&unfinished).and_then(|file| {
            let mut file = BufWriter::new(file);
            content(&mut file)?;
            file.flush()?;
            std::fs::rename(&unfinished, &name)
        });
        written.map_err(|e| format!("{name}: {e}")).map(|()| name)
    };
    let trace = put(name("json"), &|file| output::trace(record, (process, &host), file))?;
    let page = output::page(record, process, &host);
    put(name("html"), &|file| file.write_all(page.as_bytes()))?;
    Ok(trace)
}

/// Reads a call from a description.
macro_rules! call {
    ($api:expr, $name:ident) => {{
        let api = $api;
        let (function, dtype) = ($name(api.func), $name(api.datatype));
        What::Call { function, dtype, count: api.count as u64, captured: api.graphCaptured }
    }};
}

/// Reads a collective of copy engines from a description; there is none before version 6.
macro_rules! copies {
    (none, $body:ident, $name:ident) => {
        return None
    };
    (some, $body:ident, $name:ident) => {{
        let coll = $body.ceColl;
        What::Operation(Operation {
            function: $name(coll.func),
            count: coll.count as u64,
            dtype: $name(coll.datatype),
            other: coll.root,
            algorithm: $name(c"copy engines".as_ptr()),
            protocol: $name(coll.syncStrategy),
            channels: 0,
            variant: $name(null()),
        })
    }};
}

/// Defines what differs between the versions: the types of descriptions and states.
macro_rules! version {
    ($doc:literal, $symbol:ident: $table:ident, $start:ident: $description:ident,
     $state:ident: $arguments:ident, $variant:expr, $copies:ident) => {
        unsafe extern "C" fn $start(
            context: *mut c_void,
            to: *mut *mut c_void,
            of: *mut $description,
        ) -> ncclResult_t {
            // SAFETY: the description is of this version, and its body of the kind that it says.
            unsafe {
                let (kind, body) = ((*of).r#type, &(*of).body);
                let gpu_ns = if kind == KERNEL_CHANNEL { body.kernelCh.pTimer } else { 0 };
                let read = |record: &mut Record| {
                    let mut name = |at| record.name(&text(at));
                    Some(match kind {
                        GROUP_API => {
                            let api = body.groupApi;
                            What::Group { depth: api.groupDepth, captured: api.graphCaptured }
                        }
                        COLL_API => call!(body.collApi, name),
                        P2P_API => call!(body.p2pApi, name),
                        KERNEL_LAUNCH => What::Launch,
                        KERNEL_CHANNEL => What::Channel { number: body.kernelCh.channelId },
                        COLL => What::Operation(Operation {
                            function: name(body.coll.func),
                            count: body.coll.count as u64,
                            dtype: name(body.coll.datatype),
                            other: body.coll.root,
                            algorithm: name(body.coll.algo),
                            protocol: name(body.coll.proto),
                            channels: body.coll.nChannels,
                            variant: name($variant(&body.coll)),
                        }),
                        P2P => What::Operation(Operation {
                            function: name(body.p2p.func),
                            count: body.p2p.count as u64,
                            dtype: name(body.p2p.datatype),
                            other: body.p2p.peer,
                            algorithm: name(null()),
                            protocol: name(null()),
                            channels: body.p2p.nChannels,
                            variant: name(null()),
                        }),
                        CE_COLL => copies!($copies, body, name),
                        _ => return None,
                    })
                };
                begin(context, to, (*of).parentObj, (gpu_ns, read))
            }
        }

        unsafe extern "C" fn $state(
            event: *mut c_void,
            state: ncclProfilerEventState_t,
            arguments: *mut $arguments,
        ) -> ncclResult_t {
            if state != CHANNEL_STOPS || arguments.is_null() {
                return SUCCESS;
            }
            // SAFETY: the arguments are those of the state.
            let ended = unsafe { (*arguments).kernelCh.pTimer };
            run(|| {
                if let Some(event) = record().open(event as u64) {
                    event.gpu_ns.1 = ended;
                }
            })
        }

        #[doc = $doc]
        #[unsafe(no_mangle)]
        pub static $symbol: Table<$table> = Table::new($table {
            name: NAME.as_ptr(),
            init: Some(init),
            startEvent: Some($start),
            stopEvent: Some(stop_event),
            recordEventState: Some($state),
            finalize: Some(finalize),
        });
    };
}

version!(
    "The plugin in version 7.",
    ncclProfiler_v7: ncclProfiler_v7_t,
    start_v7: ncclProfilerEventDescr_v7_t,
    state_v7: ncclProfilerEventStateArgs_v7_t,
    |coll: &ncclProfilerColl_v7_t| coll.kernelVariant,
    some
);
version!(
    "The plugin in version 6.",
    ncclProfiler_v6: ncclProfiler_v6_t,
    start_v6: ncclProfilerEventDescr_v6_t,
    state_v6: ncclProfilerEventStateArgs_v6_t,
    |_: &ncclProfilerColl_v5_t| null(),
    some
);
version!(
    "The plugin in version 5.",
    ncclProfiler_v5: ncclProfiler_v5_t,
    start_v5: ncclProfilerEventDescr_v5_t,
    state_v5: ncclProfilerEventStateArgs_v5_t,
    |_: &ncclProfilerColl_v5_t| null(),
    none
);
