//! The structures that are exported, and their functions.

use super::{Device, End, UnderWay, check_kind, connect, listen, transport};
use oxccl_net::{Error, Listener, Result};
use oxccl_plugin_abi::net::*;
use oxccl_plugin_abi::{
    NCCL_NET_DEVICE_HOST, ncclDebugLogger_t, ncclProfilerCallback_t, ncclResult_t,
};
use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::OnceLock;

const SUCCESS: ncclResult_t = 0;
const SYSTEM_ERROR: ncclResult_t = 2;
const INTERNAL_ERROR: ncclResult_t = 3;
/// The level of warnings, and the subsystem of networks.
const WARN: c_int = 2;
const NET: u64 = 0x10;

static LOGGER: OnceLock<ncclDebugLogger_t> = OnceLock::new();

/// Runs the body of a function: what goes wrong is logged and becomes a number.
fn run(function: &str, body: impl FnOnce() -> Result<()>) -> ncclResult_t {
    let (text, result) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return SUCCESS,
        Ok(Err(error)) => (format!("{function}: {error}"), SYSTEM_ERROR),
        Err(_) => (format!("{function}: a panic; please report it"), INTERNAL_ERROR),
    };
    if let (Some(log), Ok(text)) = (LOGGER.get(), CString::new(text)) {
        let file = c"oxccl-net-tcp".as_ptr();
        // SAFETY: the format takes one text.
        unsafe { log(WARN, NET, file, 0, c"%s".as_ptr(), text.as_ptr()) };
    }
    result
}

unsafe extern "C" fn init<Config>(
    context: *mut *mut c_void,
    _comm: u64,
    _config: *mut Config,
    log: ncclDebugLogger_t,
    _profiler: ncclProfilerCallback_t,
) -> ncclResult_t {
    LOGGER.get_or_init(|| log);
    run("init", || {
        transport()?;
        // SAFETY: a place for the context, which nothing needs.
        unsafe { context.write(null_mut()) };
        Ok(())
    })
}

unsafe extern "C" fn devices(number: *mut c_int) -> ncclResult_t {
    run("devices", || {
        let devices = transport()?.devices.len();
        // SAFETY: a place for the number.
        unsafe { number.write(devices as c_int) };
        Ok(())
    })
}

fn device(number: c_int) -> Result<&'static Device> {
    let none = || Error::new("getProperties", format!("there is no device {number}"), "");
    transport()?.devices.get(number as usize).ok_or_else(none)
}

/// Defines `getProperties` of a version: its structures, and the fields that only it has.
macro_rules! get_properties {
    ($name:ident, $properties:ident, $devices:ident $(, $field:ident: $value:expr)*) => {
        unsafe extern "C" fn $name(device: c_int, to: *mut $properties) -> ncclResult_t {
            run("getProperties", || {
                let Device { properties: of, name, pci_path } = self::device(device)?;
                let mut devices = $devices { ndevs: 1, devs: Default::default() };
                devices.devs[0] = device;
                let text = |text: &CString| text.as_ptr().cast_mut();
                let properties = $properties {
                    name: text(name),
                    pciPath: pci_path.as_ref().map_or(null_mut(), text),
                    guid: device as u64,
                    ptrSupport: NCCL_PTR_HOST,
                    regIsGlobal: 0,
                    forceFlush: 0,
                    speed: of.speed_mbps,
                    port: 0,
                    latency: 0.0,
                    maxComms: of.max_connections,
                    maxRecvs: 1,
                    netDeviceType: NCCL_NET_DEVICE_HOST,
                    netDeviceVersion: 0,
                    vProps: devices,
                    maxP2pBytes: of.max_bytes as usize,
                    maxCollBytes: of.max_bytes as usize,
                    maxMultiRequestSize: 1,
                    $($field: $value,)*
                };
                // SAFETY: a place for the properties.
                unsafe { to.write(properties) };
                Ok(())
            })
        }
    };
}

get_properties!(properties_v11, ncclNetProperties_v11_t, ncclNetVDeviceProps_v11_t);
get_properties!(
    properties_v12,
    ncclNetProperties_v12_t,
    ncclNetVDeviceProps_v12_t,
    railId: -1,
    planeId: -1
);

unsafe extern "C" fn listen_on(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> ncclResult_t {
    run("listen", || {
        let (filled, made) = listen(device as usize)?;
        // SAFETY: places for a handle and a pointer.
        unsafe {
            handle.cast::<[u8; oxccl_net::HANDLE_BYTES]>().write_unaligned(filled.0);
            listener.write(Box::into_raw(Box::new(made)).cast());
        }
        Ok(())
    })
}

/// Hands out an end of a connection.
fn hand_out(end: Option<End>) -> *mut c_void {
    end.map_or(null_mut(), |end| Box::into_raw(Box::new(end)).cast())
}

unsafe extern "C" fn connect_to(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    end: *mut *mut c_void,
    _on_device: *mut *mut ncclNetDeviceHandle_v7_t,
) -> ncclResult_t {
    run("connect", || {
        // SAFETY: the caller's handle, at the same place each time.
        let sender = unsafe { connect(device as usize, handle.cast())? };
        // SAFETY: a place for a pointer.
        unsafe { end.write(hand_out(sender.map(End::Sends))) };
        Ok(())
    })
}

unsafe extern "C" fn accept(
    listener: *mut c_void,
    end: *mut *mut c_void,
    _on_device: *mut *mut ncclNetDeviceHandle_v7_t,
) -> ncclResult_t {
    run("accept", || {
        // SAFETY: a listener that was handed out.
        let receiver = unsafe { (*listener.cast::<Box<dyn Listener>>()).accept()? };
        // SAFETY: a place for a pointer.
        unsafe { end.write(hand_out(receiver.map(End::Receives))) };
        Ok(())
    })
}

unsafe extern "C" fn register(
    _end: *mut c_void,
    data: *mut c_void,
    _size: usize,
    kind: c_int,
    region: *mut *mut c_void,
) -> ncclResult_t {
    run("regMr", || {
        check_kind(kind)?;
        // SAFETY: a place for a pointer; nothing has to be registered.
        unsafe { region.write(data) };
        Ok(())
    })
}

unsafe extern "C" fn deregister(_end: *mut c_void, _region: *mut c_void) -> ncclResult_t {
    SUCCESS
}

/// Starts a request and hands it out; null if there is no room.
///
/// # Safety
/// The end was handed out, and the memory is the request's until it is done.
unsafe fn start(
    end: *mut c_void,
    (data, len): (*mut c_void, usize),
    tag: c_int,
    request: *mut *mut c_void,
) -> Result<()> {
    let of = end.cast::<End>();
    // SAFETY: by the contract.
    let number = unsafe { (*of).start(data.cast(), len, tag as u32)? };
    let under_way = |number| Box::into_raw(Box::new(UnderWay { of, number, len })).cast();
    // SAFETY: a place for a pointer.
    unsafe { request.write(number.map_or(null_mut(), under_way)) };
    Ok(())
}

unsafe extern "C" fn isend(
    end: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    _region: *mut c_void,
    _profiled: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by the interface of plugins.
    run("isend", || unsafe { start(end, (data, size), tag, request) })
}

unsafe extern "C" fn irecv(
    end: *mut c_void,
    _n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    _regions: *mut *mut c_void,
    _profiled: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by the interface of plugins; a request is of one message, as `maxRecvs` says.
    run("irecv", || unsafe { start(end, (*data, *sizes), *tags, request) })
}

unsafe extern "C" fn flush(
    _end: *mut c_void,
    _n: c_int,
    _data: *mut *mut c_void,
    _sizes: *mut c_int,
    _regions: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: a place for a pointer; memory of the host needs no flush.
    unsafe { request.write(null_mut()) };
    SUCCESS
}

unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> ncclResult_t {
    run("test", || {
        let under_way = request.cast::<UnderWay>();
        // SAFETY: a request that was handed out and is not done; its connection is open.
        let size = unsafe { (*(*under_way).of).test((*under_way).number, (*under_way).len)? };
        // SAFETY: a place for a number, and for a size unless that is null.
        unsafe {
            done.write(c_int::from(size.is_some()));
            if let Some(size) = size {
                drop(Box::from_raw(under_way));
                if !sizes.is_null() {
                    sizes.write(size as c_int);
                }
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn close(end: *mut c_void) -> ncclResult_t {
    // SAFETY: an end that was handed out, and is not used any more.
    let end = unsafe { Box::from_raw(end.cast::<End>()) };
    run("close", || {
        drop(end);
        Ok(())
    })
}

unsafe extern "C" fn close_listener(listener: *mut c_void) -> ncclResult_t {
    let listener = listener.cast::<Box<dyn Listener>>();
    // SAFETY: a listener that was handed out, and is not used any more.
    let listener = unsafe { Box::from_raw(listener) };
    run("closeListen", || {
        drop(listener);
        Ok(())
    })
}

unsafe extern "C" fn finalize(_context: *mut c_void) -> ncclResult_t {
    SUCCESS
}

/// A structure whose pointers are to functions and constant texts.
#[repr(transparent)]
pub struct Table<T>(T);

// SAFETY: nothing of a table is ever written.
unsafe impl<T> Sync for Table<T> {}

/// Defines the structure of a version.
macro_rules! plugin {
    ($doc:literal, $name:ident, $table:ident, $config:ident, $properties:ident) => {
        #[doc = $doc]
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "the name is NCCL's")]
        pub static $name: Table<$table> = Table($table {
            name: c"OxCCL-TCP".as_ptr(),
            init: Some(init::<$config>),
            devices: Some(devices),
            getProperties: Some($properties),
            listen: Some(listen_on),
            connect: Some(connect_to),
            accept: Some(accept),
            regMr: Some(register),
            regMrDmaBuf: None,
            deregMr: Some(deregister),
            isend: Some(isend),
            irecv: Some(irecv),
            iflush: Some(flush),
            test: Some(test),
            closeSend: Some(close),
            closeRecv: Some(close),
            closeListen: Some(close_listener),
            getDeviceMr: None,
            irecvConsumed: None,
            makeVDevice: None,
            finalize: Some(finalize),
            setNetAttr: None,
        });
    };
}

plugin!(
    "The plugin in version 12.",
    ncclNetPlugin_v12,
    ncclNet_v12_t,
    ncclNetCommConfig_v12_t,
    properties_v12
);
plugin!(
    "The plugin in version 11.",
    ncclNetPlugin_v11,
    ncclNet_v11_t,
    ncclNetCommConfig_v11_t,
    properties_v11
);
