//! Exports a transport of `oxccl_net` as a net plugin of NCCL, versions 11 and 12. The transport
//! must write nothing behind a message, as NCCL's protocols look there for later data. A plugin is
//! a `cdylib` that implements [`Plugin`] and defines two symbols:
//!
//! ```ignore
//! #[unsafe(no_mangle)]
//! pub static ncclNetPlugin_v12: Table<ncclNet_v12_t> = v12::<Mine>();
//! #[unsafe(no_mangle)]
//! pub static ncclNetPlugin_v11: Table<ncclNet_v11_t> = v11::<Mine>();
//! ```

mod connection;

use connection::{End, UnderWay, connect};
pub use oxccl_plugin_abi::export::Table;
pub use oxccl_plugin_abi::net::{ncclNet_v11_t, ncclNet_v12_t};

use oxccl_net::{
    Error, HANDLE_BYTES, HOST, Listener, Memory, Net, Place, Properties, Region, Result,
};
use oxccl_plugin_abi::export::{INFO, INTERNAL_ERROR, SUCCESS, SYSTEM_ERROR, WARN, say};
use oxccl_plugin_abi::net::{
    ncclNetCommConfig_v11_t, ncclNetCommConfig_v12_t, ncclNetDeviceHandle_v7_t,
    ncclNetProperties_v11_t, ncclNetProperties_v12_t, ncclNetVDeviceProps_v11_t,
    ncclNetVDeviceProps_v12_t,
};
use oxccl_plugin_abi::{
    NCCL_NET_DEVICE_HOST, ncclDebugLogger_t, ncclProfilerCallback_t, ncclResult_t,
};
use std::ffi::{CStr, CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The subsystem of networks in logs.
const NET: u64 = 0x10;

/// A transport that is exported as a plugin.
pub trait Plugin: 'static {
    /// The name of the plugin's network, by which `NCCL_NET` selects it.
    const NAME: &'static CStr;

    /// Returns the transport, which is made at the first call and stays.
    fn transport() -> Result<&'static Transport>;
}

/// The place where a plugin keeps its transport, or why there is none.
pub type Once = OnceLock<Result<Transport>>;

/// A transport with the texts of its devices.
pub struct Transport {
    net: Box<dyn Net>,
    devices: Vec<Device>,
}

impl Transport {
    /// Returns a transport for export.
    pub fn new(net: Box<dyn Net>) -> Result<Self> {
        let devices = (0..net.devices()).map(|device| Ok(Device::new(net.properties(device)?)));
        let devices = devices.collect::<Result<Vec<_>>>()?;
        Ok(Self { net, devices })
    }
}

/// A device: its properties, and the texts of them as C has them.
struct Device {
    properties: Properties,
    name: CString,
    pci_path: Option<CString>,
}

impl Device {
    fn new(properties: Properties) -> Self {
        let text = |text: &String| CString::new(text.as_str()).unwrap_or_default();
        let (name, pci_path) = (text(&properties.name), properties.pci_path.as_ref().map(text));
        Self { properties, name, pci_path }
    }
}

static LOGGER: OnceLock<ncclDebugLogger_t> = OnceLock::new();

/// Runs the body of a function: what goes wrong is logged and becomes a number.
fn run<P: Plugin>(function: &str, body: impl FnOnce() -> Result<()>) -> ncclResult_t {
    let (text, result) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return SUCCESS,
        Ok(Err(error)) if error.hint.is_empty() => (format!("{function}: {error}"), SYSTEM_ERROR),
        Ok(Err(error)) => (format!("{function}: {error}; {}", error.hint), SYSTEM_ERROR),
        Err(_) => (format!("{function}: a panic; please report it"), INTERNAL_ERROR),
    };
    if let Some(log) = LOGGER.get() {
        say(*log, (WARN, NET), P::NAME, &text);
    }
    result
}

/// Logs something that is no error of a call.
pub fn tell<P: Plugin>(text: &str) {
    if let Some(log) = LOGGER.get() {
        say(*log, (INFO, NET), P::NAME, text);
    }
}

unsafe extern "C" fn init<P: Plugin, Config>(
    context: *mut *mut c_void,
    _comm: u64,
    _config: *mut Config,
    log: ncclDebugLogger_t,
    _profiler: ncclProfilerCallback_t,
) -> ncclResult_t {
    LOGGER.get_or_init(|| log);
    run::<P>("init", || {
        P::transport()?;
        // SAFETY: a place for the context, which nothing needs.
        unsafe { context.write(null_mut()) };
        Ok(())
    })
}

unsafe extern "C" fn devices<P: Plugin>(number: *mut c_int) -> ncclResult_t {
    run::<P>("devices", || {
        let devices = P::transport()?.devices.len();
        // SAFETY: a place for the number.
        unsafe { number.write(devices as c_int) };
        Ok(())
    })
}

fn device<P: Plugin>(number: c_int) -> Result<&'static Device> {
    let none = || Error::new("getProperties", format!("there is no device {number}"), "");
    P::transport()?.devices.get(number as usize).ok_or_else(none)
}

/// Defines `getProperties` of a version: its structures, and the fields that only it has.
macro_rules! get_properties {
    ($name:ident, $properties:ident, $devices:ident $(, $field:ident: $value:expr)*) => {
        unsafe extern "C" fn $name<P: Plugin>(device: c_int, to: *mut $properties) -> ncclResult_t {
            run::<P>("getProperties", || {
                let Device { properties: of, name, pci_path } = self::device::<P>(device)?;
                let mut devices = $devices { ndevs: 1, devs: Default::default() };
                devices.devs[0] = device;
                let text = |text: &CString| text.as_ptr().cast_mut();
                let properties = $properties {
                    name: text(name),
                    pciPath: pci_path.as_ref().map_or(null_mut(), text),
                    guid: device as u64,
                    ptrSupport: of.memory,
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

unsafe extern "C" fn listen_on<P: Plugin>(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> ncclResult_t {
    run::<P>("listen", || {
        let (filled, made) = P::transport()?.net.listen(device as usize)?;
        // SAFETY: places for a handle and a pointer.
        unsafe {
            handle.cast::<[u8; HANDLE_BYTES]>().write_unaligned(filled.0);
            listener.write(Box::into_raw(Box::new(made)).cast());
        }
        Ok(())
    })
}

/// Hands out an end of a connection.
fn hand_out(end: Option<End>) -> *mut c_void {
    end.map_or(null_mut(), |end| Box::into_raw(Box::new(Mutex::new(end))).cast())
}

unsafe extern "C" fn connect_to<P: Plugin>(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    end: *mut *mut c_void,
    _on_device: *mut *mut ncclNetDeviceHandle_v7_t,
) -> ncclResult_t {
    run::<P>("connect", || {
        // SAFETY: the caller's handle, at the same place each time.
        let sender = unsafe { connect(&*P::transport()?.net, device as usize, handle.cast())? };
        // SAFETY: a place for a pointer.
        unsafe { end.write(hand_out(sender.map(End::Sends))) };
        Ok(())
    })
}

unsafe extern "C" fn accept<P: Plugin>(
    listener: *mut c_void,
    end: *mut *mut c_void,
    _on_device: *mut *mut ncclNetDeviceHandle_v7_t,
) -> ncclResult_t {
    run::<P>("accept", || {
        // SAFETY: a listener that was handed out.
        let receiver = unsafe { (*listener.cast::<Box<dyn Listener>>()).accept()? };
        // SAFETY: a place for a pointer.
        unsafe { end.write(hand_out(receiver.map(End::Receives))) };
        Ok(())
    })
}

/// Runs a function with an end that was handed out. NCCL registers memory in one thread and sends
/// in another.
///
/// # Safety
/// The end was handed out, and is open.
unsafe fn with<R>(end: *mut c_void, body: impl FnOnce(&mut End) -> Result<R>) -> Result<R> {
    // SAFETY: by the contract.
    let end = unsafe { &*end.cast::<Mutex<End>>() };
    body(&mut end.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A region as plugins hand it out: its number and one, so that none is null.
fn region_of(handle: *mut c_void) -> Region {
    Region((handle as usize).wrapping_sub(1))
}

unsafe extern "C" fn register<P: Plugin>(
    end: *mut c_void,
    data: *mut c_void,
    len: usize,
    kind: c_int,
    region: *mut *mut c_void,
) -> ncclResult_t {
    run::<P>("regMr", || {
        if kind != HOST {
            let cause = format!("kind {kind} of memory; only memory of the host is taken");
            return Err(Error::new("registering memory", cause, ""));
        }
        // NCCL keeps the memory until it is deregistered, which comes before the end is closed.
        let memory = Memory { data: data.cast(), len, place: Place::Host, owner: Arc::new(()) };
        // SAFETY: an end that was handed out.
        let Region(number) = unsafe { with(end, |end| end.register(memory))? };
        // SAFETY: a place for a pointer.
        unsafe { region.write((number + 1) as *mut c_void) };
        Ok(())
    })
}

unsafe extern "C" fn deregister<P: Plugin>(end: *mut c_void, region: *mut c_void) -> ncclResult_t {
    // SAFETY: an end that was handed out, and a region of it.
    run::<P>("deregMr", || unsafe { with(end, |end| end.deregister(region_of(region))) })
}

/// Starts a request and hands it out; null if there is no room.
///
/// # Safety
/// The end was handed out, and the memory is the request's until it is done.
unsafe fn start(
    end: *mut c_void,
    (data, len, region): (*mut c_void, usize, *mut c_void),
    tag: c_int,
    request: *mut *mut c_void,
) -> Result<()> {
    let of = end.cast::<Mutex<End>>();
    let message = (data.cast(), len, region_of(region));
    // SAFETY: by the contract.
    let number = unsafe { with(end, |end| end.start(message, tag as u32))? };
    let under_way = |number| Box::into_raw(Box::new(UnderWay { of, number, len })).cast();
    // SAFETY: a place for a pointer.
    unsafe { request.write(number.map_or(null_mut(), under_way)) };
    Ok(())
}

unsafe extern "C" fn isend<P: Plugin>(
    end: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    region: *mut c_void,
    _profiled: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by the interface of plugins.
    run::<P>("isend", || unsafe { start(end, (data, size, region), tag, request) })
}

unsafe extern "C" fn irecv<P: Plugin>(
    end: *mut c_void,
    _n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    regions: *mut *mut c_void,
    _profiled: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by the interface of plugins; a request is of one message, as `maxRecvs` says.
    run::<P>("irecv", || unsafe { start(end, (*data, *sizes, *regions), *tags, request) })
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

unsafe extern "C" fn test<P: Plugin>(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> ncclResult_t {
    run::<P>("test", || {
        let under_way = request.cast::<UnderWay>();
        // SAFETY: a request that was handed out and is not done; its connection is open.
        let UnderWay { of, number, len } = unsafe { *under_way };
        // SAFETY: as above.
        let size = unsafe { with(of.cast_mut().cast(), |end| end.test(number, len))? };
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

unsafe extern "C" fn close<P: Plugin>(end: *mut c_void) -> ncclResult_t {
    if end.is_null() {
        return SUCCESS;
    }
    // SAFETY: an end that was handed out, and is not used any more.
    let end = unsafe { Box::from_raw(end.cast::<Mutex<End>>()) };
    run::<P>("close", || {
        drop(end);
        Ok(())
    })
}

unsafe extern "C" fn close_listener<P: Plugin>(listener: *mut c_void) -> ncclResult_t {
    if listener.is_null() {
        return SUCCESS;
    }
    let listener = listener.cast::<Box<dyn Listener>>();
    // SAFETY: a listener that was handed out, and is not used any more.
    let listener = unsafe { Box::from_raw(listener) };
    run::<P>("closeListen", || {
        drop(listener);
        Ok(())
    })
}

unsafe extern "C" fn finalize(_context: *mut c_void) -> ncclResult_t {
    SUCCESS
}

/// Defines the function that returns the structure of a version.
macro_rules! version {
    ($doc:literal, $version:ident, $table:ident, $config:ident, $properties:ident) => {
        #[doc = $doc]
        pub const fn $version<P: Plugin>() -> Table<$table> {
            Table::new($table {
                name: P::NAME.as_ptr(),
                init: Some(init::<P, $config>),
                devices: Some(devices::<P>),
                getProperties: Some($properties::<P>),
                listen: Some(listen_on::<P>),
                connect: Some(connect_to::<P>),
                accept: Some(accept::<P>),
                regMr: Some(register::<P>),
                regMrDmaBuf: None,
                deregMr: Some(deregister::<P>),
                isend: Some(isend::<P>),
                irecv: Some(irecv::<P>),
                iflush: Some(flush),
                test: Some(test::<P>),
                closeSend: Some(close::<P>),
                closeRecv: Some(close::<P>),
                closeListen: Some(close_listener::<P>),
                getDeviceMr: None,
                irecvConsumed: None,
                makeVDevice: None,
                finalize: Some(finalize),
                setNetAttr: None,
            })
        }
    };
}

version!(
    "Returns the plugin in version 12.",
    v12,
    ncclNet_v12_t,
    ncclNetCommConfig_v12_t,
    properties_v12
);
version!(
    "Returns the plugin in version 11.",
    v11,
    ncclNet_v11_t,
    ncclNetCommConfig_v11_t,
    properties_v11
);
