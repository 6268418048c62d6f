//! Memory of GPUs, with functions that write down how they are called.

use super::*;
use crate::plugin::load::Found;
use crate::plugin::net::functions::Handles;
use oxccl_plugin_abi::net::{ncclNet_v9_t, ncclNetDeviceHandle_v7_t, ncclNetProperties_v9_t};
use oxccl_plugin_abi::{ncclDebugLogger_t, ncclResult_t};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The calls so far, and the requests that are not done.
#[derive(Default)]
struct Fake {
    calls: Vec<String>,
    under_way: Vec<usize>,
    /// True if a flush is over at once.
    flushes_at_once: bool,
    /// The function that misbehaves, if one does.
    fault: Option<(&'static str, Fault)>,
}

#[derive(Clone, Copy)]
enum Fault {
    Fails,
    DoesNotReturn,
}

/// Returns the state of the plugin that this thread calls.
fn fake() -> MutexGuard<'static, Fake> {
    thread_local! {
        static FAKE: &'static Mutex<Fake> = Box::leak(Box::default());
    }
    FAKE.with(|fake| *fake).lock().unwrap()
}

/// Returns the result of a function, if it returns.
fn result_of(function: &str) -> ncclResult_t {
    let fault = fake().fault.filter(|(at_fault, _)| *at_fault == function);
    match fault {
        None => 0,
        Some((_, Fault::Fails)) => 2,
        Some((_, Fault::DoesNotReturn)) => loop {
            std::thread::park();
        },
    }
}

fn note(call: String) {
    fake().calls.push(call);
}

fn calls() -> Vec<String> {
    std::mem::take(&mut fake().calls)
}

/// Begins a request of this number.
unsafe fn begin(number: usize, request: Handles) {
    fake().under_way.push(number);
    // SAFETY: a place for a pointer.
    unsafe { request.write(number as *mut c_void) };
}

unsafe extern "C" fn init(_log: ncclDebugLogger_t) -> ncclResult_t {
    0
}

unsafe extern "C" fn devices(_number: *mut c_int) -> ncclResult_t {
    0
}

unsafe extern "C" fn properties(_at: c_int, _to: *mut ncclNetProperties_v9_t) -> ncclResult_t {
    0
}

unsafe extern "C" fn listen(_at: c_int, _handle: *mut c_void, _to: Handles) -> ncclResult_t {
    0
}

unsafe extern "C" fn connect(
    _at: c_int,
    _handle: *mut c_void,
    _to: Handles,
    _on_gpu: *mut *mut ncclNetDeviceHandle_v7_t,
) -> ncclResult_t {
    0
}

unsafe extern "C" fn accept(
    _listener: *mut c_void,
    _to: Handles,
    _on_gpu: *mut *mut ncclNetDeviceHandle_v7_t,
) -> ncclResult_t {
    0
}

unsafe extern "C" fn register(
    _comm: *mut c_void,
    data: *mut c_void,
    len: usize,
    kind: c_int,
    handle: Handles,
) -> ncclResult_t {
    note(format!("regMr {len} of kind {kind}"));
    // SAFETY: a place for a pointer.
    unsafe { handle.write(data) };
    0
}

unsafe extern "C" fn register_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    len: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    handle: Handles,
) -> ncclResult_t {
    note(format!("regMrDmaBuf from {offset}, {}", if fd >= 0 { "open" } else { "closed" }));
    match result_of("regMrDmaBuf") {
        // SAFETY: as here.
        0 => unsafe { register(comm, data, len, kind, handle) },
        failed => failed,
    }
}

unsafe extern "C" fn deregister(_comm: *mut c_void, handle: *mut c_void) -> ncclResult_t {
    note(format!("deregMr {:#x}", handle as usize));
    0
}

unsafe extern "C" fn isend(
    _comm: *mut c_void,
    _data: *mut c_void,
    _len: usize,
    _tag: c_int,
    _handle: *mut c_void,
    _request: Handles,
) -> ncclResult_t {
    0
}

unsafe extern "C" fn irecv(
    _comm: *mut c_void,
    _n: c_int,
    data: Handles,
    _sizes: *mut usize,
    _tags: *mut c_int,
    _handles: Handles,
    request: Handles,
) -> ncclResult_t {
    // SAFETY: arrays of one entry; the request has the number of the slot.
    unsafe { begin(*data as usize, request) };
    0
}

unsafe extern "C" fn iflush(
    _comm: *mut c_void,
    n: c_int,
    data: Handles,
    sizes: *mut c_int,
    handles: Handles,
    request: Handles,
) -> ncclResult_t {
    // SAFETY: arrays of one entry.
    let (data, size, handle) = unsafe { (*data as usize, *sizes, *handles as usize) };
    note(format!("iflush {n}: {size} at {data:#x} in {handle:#x}"));
    if !fake().flushes_at_once {
        // SAFETY: a place for a pointer.
        unsafe { begin(data + 1, request) };
    }
    result_of("iflush")
}

/// A request is done once it is not under way any more; each message has 40 bytes.
unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> ncclResult_t {
    // SAFETY: places for numbers.
    unsafe {
        *done = c_int::from(!fake().under_way.contains(&(request as usize)));
        *sizes = 40;
    }
    0
}

unsafe extern "C" fn close(_end: *mut c_void) -> ncclResult_t {
    note("close".to_owned());
    0
}

fn connection(current: Arc<CurrentCall>) -> PluginConnection {
    let table: &'static ncclNet_v9_t = Box::leak(Box::new(ncclNet_v9_t {
        name: c"Fake".as_ptr(),
        init: Some(init),
        devices: Some(devices),
        getProperties: Some(properties),
        listen: Some(listen),
        connect: Some(connect),
        accept: Some(accept),
        regMr: Some(register),
        regMrDmaBuf: Some(register_dma_buf),
        deregMr: Some(deregister),
        isend: Some(isend),
        irecv: Some(irecv),
        iflush: Some(iflush),
        test: Some(test),
        closeSend: Some(close),
        closeRecv: Some(close),
        closeListen: Some(close),
        getDeviceMr: None,
        irecvConsumed: None,
        makeVDevice: None,
    }));
    let found = Found { version: 9, at: std::ptr::from_ref(table).cast() };
    // SAFETY: it is of this version.
    let (name, functions) = unsafe { Unread::of(found) }.unwrap();
    let (turn, lifecycle) = Default::default();
    let label = "net plugin Fake".to_owned();
    let plugin = Plugin { label, name, version: 9, functions, turn, lifecycle };
    let plugin = Box::leak(Box::new(plugin));
    let made = PluginNet::start(plugin, current, 0, -1).map(|net| net.instance);
    PluginConnection::new(made.unwrap(), null_mut(), false)
}

/// Memory at an address that nobody follows.
fn memory(at: usize, place: Place) -> Memory {
    Memory { data: at as *mut u8, len: 64, place, owner: Arc::new(()) }
}

#[test]
fn messages_that_come_to_a_gpu_are_there_once_they_are_flushed() {
    let mut connection = connection(Arc::new(CurrentCall::new("Fake".to_owned(), "")));
    let file = std::fs::File::open("/dev/null").unwrap();
    let on_gpu = |dma_buf| Place::Gpu { flush: true, dma_buf };
    let gpu = memory(0x1000, on_gpu(Some(Arc::new(file.into()))));
    let gpu = connection.register(gpu).unwrap();
    let other = connection.register(memory(0x2000, on_gpu(None))).unwrap();
    let host = connection.register(memory(0x3000, Place::Host)).unwrap();
    let expected = [
        "regMrDmaBuf from 0, open",
        "regMr 64 of kind 2",
        "regMr 64 of kind 2",
        "regMr 64 of kind 1",
    ];
    assert_eq!(calls(), expected);
    let mut receive = |at: usize, region| {
        // SAFETY: nobody follows the address.
        let request = unsafe { connection.irecv(at as *mut u8, 64, 0, region) };
        request.unwrap().unwrap()
    };
    let requests = [receive(0x1000, gpu), receive(0x1010, gpu), receive(0x3000, host)];
    let come = |number: usize| fake().under_way.retain(|other| *other != number);
    for request in requests {
        assert_eq!(Receiver::test(&mut connection, request).unwrap(), None);
    }
    // The second one comes first, and is flushed by itself.
    come(0x1010);
    assert_eq!(Receiver::test(&mut connection, requests[0]).unwrap(), None);
    for _ in 0..2 {
        assert_eq!(Receiver::test(&mut connection, requests[1]).unwrap(), None);
    }
    assert_eq!(calls(), ["iflush 1: 40 at 0x1010 in 0x1000"]);
    come(0x1011);
    assert_eq!(Receiver::test(&mut connection, requests[1]).unwrap(), Some(40));
    come(0x3000);
    assert_eq!(Receiver::test(&mut connection, requests[2]).unwrap(), Some(40));
    assert!(calls().is_empty(), "memory of the host");
    fake().flushes_at_once = true;
    come(0x1000);
    assert_eq!(Receiver::test(&mut connection, requests[0]).unwrap(), Some(40));
    assert_eq!(calls(), ["iflush 1: 40 at 0x1000 in 0x1000"]);
    connection.deregister(host).unwrap();
    assert_eq!(calls(), ["deregMr 0x3000"]);
    assert_eq!(other, Region(0x2000));
    drop(connection);
    assert_eq!(calls(), ["deregMr 0x1000", "deregMr 0x2000", "close"]);
}

/// Receives a message into memory of a GPU that is registered by its dma-buf.
fn receive(connection: &mut PluginConnection) -> Result<Option<usize>> {
    let file = std::fs::File::open("/dev/null").unwrap();
    let place = Place::Gpu { flush: true, dma_buf: Some(Arc::new(file.into())) };
    let region = connection.register(memory(0x1000, place))?;
    // SAFETY: nobody follows the address.
    let request = unsafe { connection.irecv(0x1000 as *mut u8, 64, 0, region) }?;
    fake().under_way.clear();
    Receiver::test(connection, request.expect("there is room"))
}

/// The functions for memory of GPUs that fail or do not return.
const ON_GPUS: [&str; 2] = ["regMrDmaBuf", "iflush"];

#[test]
fn functions_for_memory_of_gpus_that_fail_are_named() {
    for function in ON_GPUS {
        let mut connection = connection(Arc::new(CurrentCall::new("Fake".to_owned(), "")));
        fake().fault = Some((function, Fault::Fails));
        let error = receive(&mut connection).unwrap_err().to_string();
        assert_eq!(error, format!("{function} of Fake: it returned ncclSystemError"));
    }
}

/// Those who wait for the thread are told.
#[test]
fn functions_for_memory_of_gpus_that_do_not_return_are_named() {
    for function in ON_GPUS {
        let limit = Duration::from_millis(50);
        let current = Arc::new(CurrentCall::with_limit("Fake".to_owned(), "", limit));
        let calls = current.clone();
        // The thread stays in the function.
        std::thread::spawn(move || {
            fake().fault = Some((function, Fault::DoesNotReturn));
            receive(&mut connection(calls))
        });
        let text = format!("{function} of Fake: it has not returned for 0.05 s");
        let until = Instant::now() + Duration::from_secs(60);
        while current.stuck().is_none_or(|error| error.to_string() != text) {
            assert!(Instant::now() < until, "{:?}", current.stuck());
            std::thread::yield_now();
        }
    }
}
