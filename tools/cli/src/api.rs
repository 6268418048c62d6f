//! The functions of an NCCL-compatible library: the built-in one, or one that was loaded.

use crate::error::{Error, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};

/// The bytes of an `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// A handle of the library.
pub(crate) type Handle = *mut c_void;

macro_rules! api {
    ($($name:ident = $path:path, $symbol:literal, ($($argument:ident: $type:ty),*);)*) => {
        /// The functions that return a result code; `None` where the library lacks one.
        #[derive(Clone, Copy)]
        struct Functions {
            $($name: Option<unsafe extern "C" fn($($type),*) -> c_int>,)*
        }

        impl Functions {
            fn built_in() -> Self {
                // SAFETY: the types differ in names only: handles are pointers, enums are ints,
                // and the id is a structure of 128 bytes.
                unsafe {
                    Self {
                        $($name: Some(std::mem::transmute::<
                            *const (),
                            unsafe extern "C" fn($($type),*) -> c_int,
                        >($path as *const ())),)*
                    }
                }
            }

            /// Looks the functions up. Those of `oxccl.h` are the built-in ones if `foreign`.
            fn of(library: &Library, foreign: bool) -> Self {
                let built_in = Self::built_in();
                // SAFETY: the symbols have these types in every NCCL-compatible library.
                unsafe {
                    Self {
                        $($name: match foreign && $symbol.starts_with("oxccl") {
                            true => built_in.$name,
                            false => library.get($symbol.as_bytes()).ok().map(|found| *found),
                        },)*
                    }
                }
            }
        }

        impl Functions {
            /// Returns whether the library has a function.
            fn has(&self, symbol: &str) -> bool {
                $(($symbol == symbol && self.$name.is_some()))||*
            }
        }

        impl Api {
            $(
                /// Calls the function of this name for a rank. Fails if the library lacks it.
                ///
                /// # Safety
                /// As that of the function in C.
                #[allow(clippy::too_many_arguments, reason = "these are the arguments in C")]
                pub(crate) unsafe fn $name(&self, rank: u32, $($argument: $type),*) -> Result<()> {
                    let function = self.functions.$name.ok_or_else(|| self.lacks($symbol))?;
                    // SAFETY: passed on from the caller.
                    let code = unsafe { function($($argument),*) };
                    self.check(rank, $symbol, code)
                }
            )*
        }
    };
}

use oxccl::nccl::{children, collectives as coll, comm, group, info, memory, window};
use oxccl::oxccl::{device, event, graph, stream};

type In = *const c_void;
type Out = *mut c_void;

api! {
    get_version = info::ncclGetVersion, "ncclGetVersion", (version: *mut c_int);
    get_unique_id = comm::ncclGetUniqueId, "ncclGetUniqueId", (id: *mut UniqueId);
    comm_init_rank = comm::ncclCommInitRank, "ncclCommInitRank",
        (comm: *mut Handle, nranks: c_int, id: UniqueId, rank: c_int);
    comm_split = children::ncclCommSplit, "ncclCommSplit",
        (comm: Handle, color: c_int, key: c_int, child: *mut Handle, config: Handle);
    comm_destroy = comm::ncclCommDestroy, "ncclCommDestroy", (comm: Handle);
    group_start = group::ncclGroupStart, "ncclGroupStart", ();
    group_end = group::ncclGroupEnd, "ncclGroupEnd", ();
    mem_alloc = memory::ncclMemAlloc, "ncclMemAlloc", (at: *mut Out, bytes: usize);
    mem_free = memory::ncclMemFree, "ncclMemFree", (at: Out);
    comm_register = window::ncclCommRegister, "ncclCommRegister",
        (comm: Handle, at: Out, bytes: usize, buffer: *mut Handle);
    comm_deregister = window::ncclCommDeregister, "ncclCommDeregister",
        (comm: Handle, buffer: Handle);
    window_register = window::ncclCommWindowRegister, "ncclCommWindowRegister",
        (comm: Handle, at: Out, bytes: usize, window: *mut Handle, flags: c_int);
    window_deregister = window::ncclCommWindowDeregister, "ncclCommWindowDeregister",
        (comm: Handle, window: Handle);
    all_reduce = coll::ncclAllReduce, "ncclAllReduce",
        (from: In, to: Out, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Handle);
    broadcast = coll::ncclBroadcast, "ncclBroadcast",
        (from: In, to: Out, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Handle);
    reduce = coll::ncclReduce, "ncclReduce",
        (from: In, to: Out, count: usize, dtype: c_int, op: c_int, root: c_int, comm: Handle,
         stream: Handle);
    all_gather = coll::ncclAllGather, "ncclAllGather",
        (from: In, to: Out, count: usize, dtype: c_int, comm: Handle, stream: Handle);
    reduce_scatter = coll::ncclReduceScatter, "ncclReduceScatter",
        (from: In, to: Out, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Handle);
    all_to_all = coll::ncclAlltoAll, "ncclAlltoAll",
        (from: In, to: Out, count: usize, dtype: c_int, comm: Handle, stream: Handle);
    gather = coll::ncclGather, "ncclGather",
        (from: In, to: Out, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Handle);
    scatter = coll::ncclScatter, "ncclScatter",
        (from: In, to: Out, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Handle);
    send = coll::ncclSend, "ncclSend",
        (from: In, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Handle);
    recv = coll::ncclRecv, "ncclRecv",
        (to: Out, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Handle);
    device_count = device::oxcclDeviceCount, "oxcclDeviceCount", (kind: c_int, count: *mut c_int);
    device_get = device::oxcclDeviceGet, "oxcclDeviceGet", (kind: *mut c_int, index: *mut c_int);
    device_set = device::oxcclDeviceSet, "oxcclDeviceSet", (kind: c_int, index: c_int);
    memcpy_async = device::oxcclMemcpyAsync, "oxcclMemcpyAsync",
        (to: Out, from: In, bytes: usize, stream: Handle);
    memset_async = device::oxcclMemsetAsync, "oxcclMemsetAsync",
        (to: Out, value: c_int, bytes: usize, stream: Handle);
    stream_create = stream::oxcclStreamCreate, "oxcclStreamCreate", (stream: *mut Handle);
    stream_destroy = stream::oxcclStreamDestroy, "oxcclStreamDestroy", (stream: Handle);
    stream_query = stream::oxcclStreamQuery, "oxcclStreamQuery", (stream: Handle);
    stream_synchronize = stream::oxcclStreamSynchronize, "oxcclStreamSynchronize",
        (stream: Handle, limit_ns: i64);
    event_create = event::oxcclEventCreate, "oxcclEventCreate", (event: *mut Handle);
    event_destroy = event::oxcclEventDestroy, "oxcclEventDestroy", (event: Handle);
    event_record = event::oxcclEventRecord, "oxcclEventRecord", (event: Handle, stream: Handle);
    event_elapsed_time = event::oxcclEventElapsedTime, "oxcclEventElapsedTime",
        (ms: *mut f32, from: Handle, to: Handle);
    begin_capture = graph::oxcclStreamBeginCapture, "oxcclStreamBeginCapture",
        (stream: Handle, mode: c_int);
    end_capture = graph::oxcclStreamEndCapture, "oxcclStreamEndCapture",
        (stream: Handle, graph: *mut Handle);
    graph_instantiate = graph::oxcclGraphInstantiate, "oxcclGraphInstantiate",
        (exec: *mut Handle, graph: Handle);
    graph_launch = graph::oxcclGraphLaunch, "oxcclGraphLaunch", (exec: Handle, stream: Handle);
    graph_destroy = graph::oxcclGraphDestroy, "oxcclGraphDestroy", (graph: Handle, exec: Handle);
}

type LastError = unsafe extern "C" fn(Handle) -> *const c_char;

/// A library's functions, which are methods here: each takes the rank that calls, for errors, and
/// the arguments that the function has in C.
#[derive(Clone, Copy)]
pub(crate) struct Api {
    /// The library's file, or "oxccl" for the built-in one.
    name: &'static str,
    foreign: bool,
    functions: Functions,
    last_error: Option<LastError>,
}

impl Api {
    /// Returns the functions of the library that this program was built with.
    pub(crate) fn built_in() -> Self {
        let (functions, last_error) = (Functions::built_in(), Some(Self::built_in_last_error()));
        Self { name: "oxccl", foreign: false, functions, last_error }
    }

    fn built_in_last_error() -> LastError {
        // SAFETY: the types differ in names only: handles are pointers.
        unsafe { std::mem::transmute::<*const (), LastError>(info::ncclGetLastError as *const ()) }
    }

    /// Loads a library from a file. What it lacks is an error only when it is called.
    ///
    /// A library without the functions of `oxccl.h`, as NVIDIA's, is used with the built-in ones,
    /// on GPUs only: their streams, events and graphs are those of the CUDA driver there
    /// (`CUstream`, `CUevent`, `CUgraph`, `CUgraphExec`), which every library for GPUs takes.
    pub(crate) fn load(path: &str) -> Result<Self> {
        // Calls within the library reach the library itself, also where another one was loaded
        // before it, for all of the program, as by LD_PRELOAD.
        let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_DEEPBIND;
        // SAFETY: loading a library runs its initialisers; the user asked for it.
        let library = unsafe { Library::open(Some(path), flags) };
        let fails = |why: String| Error::Library { path: path.to_owned(), why };
        let library = library.map_err(|e| {
            // The system's words are in its source.
            fails(std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string))
        })?;
        // SAFETY: the symbol is only looked up.
        if unsafe { library.get::<*const ()>(b"ncclCommInitRank") }.is_err() {
            return Err(fails(
                "it has no ncclCommInitRank, so it is no NCCL-compatible library".to_owned(),
            ));
        }
        // The library is never unloaded: its threads may run until the end.
        let library = Box::leak(Box::new(library));
        // SAFETY: the symbol is only looked up.
        let foreign = unsafe { library.get::<*const ()>(b"oxcclDeviceSet") }.is_err();
        let functions = Functions::of(library, foreign);
        // SAFETY: the symbol has this type in every NCCL-compatible library.
        let last_error = unsafe { library.get(b"ncclGetLastError") }.ok().map(|found| *found);
        let name = Box::leak(path.to_owned().into_boxed_str());
        Ok(Self { name, foreign, functions, last_error })
    }

    /// Returns the library's file, or "oxccl" for the built-in one.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns whether the library lacks the functions of `oxccl.h`, and takes data of GPUs only.
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Returns the library's version, as NCCL counts them.
    pub(crate) fn version(&self, rank: u32) -> Result<i32> {
        let mut version = 0;
        // SAFETY: the place is writable.
        unsafe { self.get_version(rank, &mut version) }?;
        Ok(version)
    }

    /// Returns whether the library has a function that this program calls.
    pub(crate) fn has(&self, symbol: &str) -> bool {
        self.functions.has(symbol)
    }

    fn lacks(&self, function: &str) -> Error {
        let why = format!("it has no {function}, which this measurement calls");
        Error::Library { path: self.name.to_owned(), why }
    }

    /// Turns a result code into an error.
    fn check(&self, rank: u32, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // The library that failed has the text.
        let last_error = match self.foreign && call.starts_with("oxccl") {
            true => Some(Self::built_in_last_error()),
            false => self.last_error,
        };
        let text = match last_error {
            // SAFETY: the function returns null or a text that lives for a while.
            Some(last_error) => unsafe {
                let text = last_error(std::ptr::null_mut());
                if text.is_null() { c"no text" } else { CStr::from_ptr(text) }
            },
            None => c"no text: the library has no ncclGetLastError",
        };
        Err(Error::Call { rank, call, code, text: text.to_string_lossy().into_owned() })
    }
}
