//! A switch in software, as a network that reduces (CollNet), versions 11 and 12: for trials of
//! what such networks need, without the hardware. `NCCL_NET_PLUGIN=oxccl-collnet` and
//! `NCCL_COLLNET_ENABLE=1`. The switch of a group is a thread in the process of its first rank, to
//! which all ranks connect over TCP on the interfaces that `NCCL_SOCKET_IFNAME` and
//! `NCCL_SOCKET_FAMILY` admit.

#![allow(non_upper_case_globals, reason = "the names are NCCL's")]

mod group;
mod switch;
mod wire;

use group::{Group, Listener, Request};
use oxccl_net::interface::{Interface, devices};
use oxccl_net::{HANDLE_BYTES, HOST};
use oxccl_plugin_abi::export::{INTERNAL_ERROR, SUCCESS, SYSTEM_ERROR, Table, WARN, say};
use oxccl_plugin_abi::net::{
    ncclCollNet_v11_t, ncclCollNet_v12_t, ncclNetProperties_v11_t, ncclNetProperties_v12_t,
    ncclNetSGE_v11_t, ncclNetSGE_v12_t, ncclNetVDeviceProps_v11_t, ncclNetVDeviceProps_v12_t,
};
use oxccl_plugin_abi::{
    NCCL_NET_DEVICE_HOST, ncclDataType_t, ncclDebugLogger_t, ncclRedOp_t, ncclResult_t,
};
use std::error::Error;
use std::ffi::{CStr, CString, c_int, c_void};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::OnceLock;
use wire::{Header, MAX_BYTES, PLACE_BYTES, Place};

const NAME: &CStr = c"OxCCL-Soft";
/// The subsystem of networks in logs.
const NET: u64 = 0x10;

const _: () = assert!(PLACE_BYTES <= HANDLE_BYTES);

static LOGGER: OnceLock<ncclDebugLogger_t> = OnceLock::new();

/// Runs the body of a function: what goes wrong is logged and becomes a number.
fn run(function: &str, body: impl FnOnce() -> Result<(), Box<dyn Error>>) -> ncclResult_t {
    let (text, result) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return SUCCESS,
        Ok(Err(error)) => (format!("{function}: {error}"), SYSTEM_ERROR),
        Err(_) => (format!("{function}: a panic; please report it"), INTERNAL_ERROR),
    };
    warn(&text);
    result
}

/// Writes a warning to the log of the library that loaded the plugin.
fn warn(text: &str) {
    if let Some(log) = LOGGER.get() {
        say(*log, (WARN, NET), NAME, text);
    }
}

/// Returns the devices, with their names as C has them.
fn interfaces() -> Result<&'static [(Interface, CString)], Box<dyn Error>> {
    static FOUND: OnceLock<oxccl_net::Result<Vec<(Interface, CString)>>> = OnceLock::new();
    let variable = |name| std::env::var(name).unwrap_or_default();
    let find = || {
        let all = devices(&variable("NCCL_SOCKET_IFNAME"), &variable("NCCL_SOCKET_FAMILY"))?;
        let named = |i: Interface| {
            let name = CString::new(i.name.as_str()).unwrap_or_default();
            (i, name)
        };
        Ok(all.into_iter().map(named).collect())
    };
    Ok(FOUND.get_or_init(find).as_ref().map_err(Clone::clone)?)
}

fn interface(device: c_int) -> Result<&'static (Interface, CString), Box<dyn Error>> {
    let found = usize::try_from(device).ok().and_then(|device| interfaces().ok()?.get(device));
    found.ok_or_else(|| format!("there is no device {device}").into())
}

unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _comm: u64,
    log: ncclDebugLogger_t,
) -> ncclResult_t {
    LOGGER.get_or_init(|| log);
    // SAFETY: a place for the context, which nothing needs.
    unsafe { context.write(null_mut()) };
    SUCCESS
}

unsafe extern "C" fn number_of_devices(number: *mut c_int) -> ncclResult_t {
    run("devices", || {
        let devices = interfaces()?.len();
        // SAFETY: a place for the number.
        unsafe { number.write(devices as c_int) };
        Ok(())
    })
}

/// Defines `getProperties` of a version: its structures, and the fields that only it has.
macro_rules! get_properties {
    ($name:ident, $properties:ident, $devices:ident $(, $field:ident: $value:expr)*) => {
        unsafe extern "C" fn $name(device: c_int, to: *mut $properties) -> ncclResult_t {
            run("getProperties", || {
                let mut devices = $devices { ndevs: 1, devs: Default::default() };
                devices.devs[0] = device;
                let properties = $properties {
                    name: interface(device)?.1.as_ptr().cast_mut(),
                    pciPath: null_mut(),
                    guid: device as u64,
                    ptrSupport: HOST,
                    regIsGlobal: 0,
                    forceFlush: 0,
                    speed: 10_000,
                    port: 0,
                    latency: 0.0,
                    maxComms: 1 << 16,
                    maxRecvs: 1,
                    netDeviceType: NCCL_NET_DEVICE_HOST,
                    netDeviceVersion: 0,
                    vProps: devices,
                    maxP2pBytes: MAX_BYTES,
                    maxCollBytes: MAX_BYTES,
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

unsafe extern "C" fn listen(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> ncclResult_t {
    run("listen", || {
        let made = TcpListener::bind(interface(device)?.0.address)?;
        let mut place = Place { address: made.local_addr()?, secret: Default::default() };
        getrandom::fill(&mut place.secret)?;
        let made = Listener { listener: made, place };
        // SAFETY: places for a handle and a pointer.
        unsafe {
            handle.cast::<[u8; PLACE_BYTES]>().write_unaligned(place.encode());
            listener.write(Box::into_raw(Box::new(made)).cast());
        }
        Ok(())
    })
}

unsafe extern "C" fn connect(
    handles: *mut *mut c_void,
    nranks: c_int,
    rank: c_int,
    listener: *mut c_void,
    group: *mut *mut c_void,
) -> ncclResult_t {
    run("connect", || {
        let (rank, nranks) = (usize::try_from(rank)?, usize::try_from(nranks)?);
        // SAFETY: as many handles as ranks, and a listener that was handed out.
        let (first, own) = unsafe {
            let first = (*handles).cast::<[u8; PLACE_BYTES]>().read_unaligned();
            (Place::decode(&first), &*listener.cast::<Listener>())
        };
        let made = Group::connect(own, &first, (rank, nranks))?;
        // SAFETY: a place for a pointer.
        unsafe { group.write(Box::into_raw(Box::new(made)).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn reduce_support(
    dtype: ncclDataType_t,
    op: ncclRedOp_t,
    supported: *mut c_int,
) -> ncclResult_t {
    // SAFETY: a place for the number.
    unsafe { supported.write(Header::new(0, dtype, op).is_some().into()) };
    SUCCESS
}

unsafe extern "C" fn register(
    group: *mut c_void,
    _data: *mut c_void,
    _len: usize,
    kind: c_int,
    region: *mut *mut c_void,
) -> ncclResult_t {
    run("regMr", || {
        if kind != HOST {
            return Err(format!("kind {kind} of memory; only memory of the host is taken").into());
        }
        // Nothing has to be registered; the handle is only not null.
        // SAFETY: a place for a pointer.
        unsafe { region.write(group) };
        Ok(())
    })
}

unsafe extern "C" fn deregister(_group: *mut c_void, _region: *mut c_void) -> ncclResult_t {
    SUCCESS
}

unsafe extern "C" fn iallreduce(
    group: *mut c_void,
    from: *mut c_void,
    to: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    op: ncclRedOp_t,
    _sends: *mut c_void,
    _receives: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    run("iallreduce", || {
        let header = Header::new(count, dtype, op);
        let header = header.ok_or_else(|| {
            format!("{count} elements of type {dtype} by operation {op} are not reduced")
        })?;
        // SAFETY: a group that was handed out; the memory is the request's until it is done.
        let made = unsafe { (*group.cast::<Group>()).start(header, from.cast(), to.cast()) };
        let made = made.map_or(null_mut(), |made| Box::into_raw(Box::new(made)).cast());
        // SAFETY: a place for a pointer.
        unsafe { request.write(made) };
        Ok(())
    })
}

unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    size: *mut c_int,
) -> ncclResult_t {
    run("test", || {
        // SAFETY: a request that was handed out and was not done before.
        let made = unsafe { &*request.cast::<Request>() };
        let (is_done, bytes) = (made.test()?, made.header.bytes());
        if !is_done {
            return Ok(());
        }
        // SAFETY: places for numbers, the second one may be null; the request is over.
        unsafe {
            done.write(1);
            if !size.is_null() {
                size.write(c_int::try_from(bytes).unwrap_or(c_int::MAX));
            }
            drop(Box::from_raw(request.cast::<Request>()));
        }
        Ok(())
    })
}

unsafe extern "C" fn close_group(group: *mut c_void) -> ncclResult_t {
    run("closeColl", || {
        // SAFETY: a group that was handed out and is not used any more.
        drop(unsafe { Box::from_raw(group.cast::<Group>()) });
        Ok(())
    })
}

unsafe extern "C" fn close_listener(listener: *mut c_void) -> ncclResult_t {
    run("closeListen", || {
        // SAFETY: a listener that was handed out and is not used any more.
        drop(unsafe { Box::from_raw(listener.cast::<Listener>()) });
        Ok(())
    })
}

unsafe extern "C" fn flush(
    _group: *mut c_void,
    _data: *mut c_void,
    _size: c_int,
    _region: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: a place for a pointer; memory of the host needs no flush.
    unsafe { request.write(null_mut()) };
    SUCCESS
}

/// Refuses an operation that the switch does not have, as a plugin without it would have no
/// function: callers look for one.
fn unsupported(function: &str) -> ncclResult_t {
    run(function, || Err("the switch only has all-reduce".into()))
}

unsafe extern "C" fn finalize(_context: *mut c_void) -> ncclResult_t {
    SUCCESS
}

/// Defines a function that makes the table of a version, by the names of its parts.
macro_rules! table {
    ($table:ident, $of:ident, $sge:ident, $properties:ident, $gather:ident, $scatter:ident) => {
        unsafe extern "C" fn $gather(
            _group: *mut c_void,
            _from: *mut c_void,
            _parts: c_int,
            _to: *mut $sge,
            _bytes: usize,
            _offset: usize,
            _window: usize,
            _region: *mut c_void,
            _request: *mut *mut c_void,
        ) -> ncclResult_t {
            unsupported("iallgather")
        }

        unsafe extern "C" fn $scatter(
            _group: *mut c_void,
            _parts: c_int,
            _from: *mut $sge,
            _to: *mut c_void,
            _bytes: usize,
            _offset: usize,
            _window: usize,
            _dtype: ncclDataType_t,
            _op: ncclRedOp_t,
            _region: *mut c_void,
            _request: *mut *mut c_void,
        ) -> ncclResult_t {
            unsupported("ireducescatter")
        }

        /// The switch in this version.
        #[unsafe(no_mangle)]
        pub static $table: Table<$of> = Table::new($of {
            name: NAME.as_ptr(),
            init: Some(init),
            devices: Some(number_of_devices),
            getProperties: Some($properties),
            listen: Some(listen),
            connect: Some(connect),
            reduceSupport: Some(reduce_support),
            regMr: Some(register),
            regMrDmaBuf: None,
            deregMr: Some(deregister),
            iallreduce: Some(iallreduce),
            iallgather: Some($gather),
            ireducescatter: Some($scatter),
            iflush: Some(flush),
            test: Some(test),
            closeColl: Some(close_group),
            closeListen: Some(close_listener),
            makeVDevice: None,
            finalize: Some(finalize),
        });
    };
}

table!(
    ncclCollNetPlugin_v12,
    ncclCollNet_v12_t,
    ncclNetSGE_v12_t,
    properties_v12,
    gather_v12,
    scatter_v12
);
table!(
    ncclCollNetPlugin_v11,
    ncclCollNet_v11_t,
    ncclNetSGE_v11_t,
    properties_v11,
    gather_v11,
    scatter_v11
);
