//! The functions of an NCCL-compatible library: the built-in one, or one that was loaded.

use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_int, c_void};

/// The bytes of an `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// A handle of the library.
pub(crate) type Handle = *mut c_void;

macro_rules! api {
    ($($field:ident = $path:path, $name:literal, ($($t:ty),*);)*) => {
        /// Functions that return a result code.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, reason = "the fields carry the C names")]
        pub(crate) struct Api {
            $(pub(crate) $field: unsafe extern "C" fn($($t),*) -> c_int,)*
            last_error: unsafe extern "C" fn(Handle) -> *const c_char,
        }

        impl Api {
            /// Returns the functions of the library that this program was built with.
            pub(crate) fn built_in() -> Self {
                // SAFETY: the types differ in names only: handles are pointers, enums are ints,
                // and the id is a structure of 128 bytes.
                unsafe {
                    Self {
                        $($field: std::mem::transmute::<
                            *const (),
                            unsafe extern "C" fn($($t),*) -> c_int,
                        >($path as *const ()),)*
                        last_error: std::mem::transmute::<
                            *const (),
                            unsafe extern "C" fn(Handle) -> *const c_char,
                        >(oxccl::nccl::info::ncclGetLastError as *const ()),
                    }
                }
            }

            /// Loads a library from a file; fails if it lacks a function.
            pub(crate) fn load(path: &str) -> Result<Self> {
                let failed = |e: libloading::Error| Error::Library {
                    path: path.to_owned(),
                    why: e.to_string(),
                };
                // SAFETY: loading a library runs its initialisers; the user asked for it.
                let library = unsafe { libloading::Library::new(path) }.map_err(failed)?;
                // The library is never unloaded: its threads may run until the end.
                let library = Box::leak(Box::new(library));
                // SAFETY: the symbols have these types in every NCCL-compatible library.
                unsafe {
                    Ok(Self {
                        $($field: *library
                            .get::<unsafe extern "C" fn($($t),*) -> c_int>($name)
                            .map_err(failed)?,)*
                        last_error: *library.get(b"ncclGetLastError\0").map_err(failed)?,
                    })
                }
            }
        }
    };
}

use oxccl::nccl::{collectives as coll, comm, group, memory, window};
use oxccl::oxccl::{device, graph, stream};

type In = *const c_void;
type Out = *mut c_void;

api! {
    get_unique_id = comm::ncclGetUniqueId, b"ncclGetUniqueId\0", (*mut UniqueId);
    comm_init_rank = comm::ncclCommInitRank, b"ncclCommInitRank\0", (*mut Handle, c_int, UniqueId, c_int);
    comm_destroy = comm::ncclCommDestroy, b"ncclCommDestroy\0", (Handle);
    group_start = group::ncclGroupStart, b"ncclGroupStart\0", ();
    group_end = group::ncclGroupEnd, b"ncclGroupEnd\0", ();
    mem_alloc = memory::ncclMemAlloc, b"ncclMemAlloc\0", (*mut Out, usize);
    mem_free = memory::ncclMemFree, b"ncclMemFree\0", (Out);
    window_register = window::ncclCommWindowRegister, b"ncclCommWindowRegister\0", (Handle, Out, usize, *mut Handle, c_int);
    window_deregister = window::ncclCommWindowDeregister, b"ncclCommWindowDeregister\0", (Handle, Handle);
    all_reduce = coll::ncclAllReduce, b"ncclAllReduce\0", (In, Out, usize, c_int, c_int, Handle, Handle);
    broadcast = coll::ncclBroadcast, b"ncclBroadcast\0", (In, Out, usize, c_int, c_int, Handle, Handle);
    reduce = coll::ncclReduce, b"ncclReduce\0", (In, Out, usize, c_int, c_int, c_int, Handle, Handle);
    all_gather = coll::ncclAllGather, b"ncclAllGather\0", (In, Out, usize, c_int, Handle, Handle);
    reduce_scatter = coll::ncclReduceScatter, b"ncclReduceScatter\0", (In, Out, usize, c_int, c_int, Handle, Handle);
    all_to_all = coll::ncclAlltoAll, b"ncclAlltoAll\0", (In, Out, usize, c_int, Handle, Handle);
    gather = coll::ncclGather, b"ncclGather\0", (In, Out, usize, c_int, c_int, Handle, Handle);
    scatter = coll::ncclScatter, b"ncclScatter\0", (In, Out, usize, c_int, c_int, Handle, Handle);
    send = coll::ncclSend, b"ncclSend\0", (In, usize, c_int, c_int, Handle, Handle);
    recv = coll::ncclRecv, b"ncclRecv\0", (Out, usize, c_int, c_int, Handle, Handle);
    device_count = device::oxcclDeviceCount, b"oxcclDeviceCount\0", (c_int, *mut c_int);
    device_get = device::oxcclDeviceGet, b"oxcclDeviceGet\0", (*mut c_int, *mut c_int);
    device_set = device::oxcclDeviceSet, b"oxcclDeviceSet\0", (c_int, c_int);
    memcpy_async = device::oxcclMemcpyAsync, b"oxcclMemcpyAsync\0", (Out, In, usize, Handle);
    memset_async = device::oxcclMemsetAsync, b"oxcclMemsetAsync\0", (Out, c_int, usize, Handle);
    stream_create = stream::oxcclStreamCreate, b"oxcclStreamCreate\0", (*mut Handle);
    stream_destroy = stream::oxcclStreamDestroy, b"oxcclStreamDestroy\0", (Handle);
    stream_synchronize = stream::oxcclStreamSynchronize, b"oxcclStreamSynchronize\0", (Handle, i64);
    begin_capture = graph::oxcclStreamBeginCapture, b"oxcclStreamBeginCapture\0", (Handle, c_int);
    end_capture = graph::oxcclStreamEndCapture, b"oxcclStreamEndCapture\0", (Handle, *mut Handle);
    graph_instantiate = graph::oxcclGraphInstantiate, b"oxcclGraphInstantiate\0", (*mut Handle, Handle);
    graph_launch = graph::oxcclGraphLaunch, b"oxcclGraphLaunch\0", (Handle, Handle);
    graph_destroy = graph::oxcclGraphDestroy, b"oxcclGraphDestroy\0", (Handle, Handle);
}

impl Api {
    /// Turns a result code into an error.
    pub(crate) fn check(&self, rank: u32, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function returns null or a text that lives for a while.
        let text = unsafe {
            let text = (self.last_error)(std::ptr::null_mut());
            if text.is_null() { c"no text" } else { CStr::from_ptr(text) }
        };
        Err(Error::Call { rank, call, code, text: text.to_string_lossy().into_owned() })
    }
}
