//! A net plugin as a transport. All of this runs in the thread that calls the plugin.

use super::functions::{Accept, Connect, Functions, Init, Irecv, Isend, Listen, RegMr};
use crate::plugin::instance::Unread;
use crate::plugin::profiler::net_event;
use crate::plugin::{Plugin, logger};
use crate::proxy::CurrentCall;
use oxccl_net::{
    CUDA, Connecting, Connection, DMA_BUF, Event, HANDLE_BYTES, HOST, Handle, Listener,
    MAX_REQUESTS, Memory, Net, Place, Properties, Receiver, Region, Request, Result, Sender,
    UNTOLD,
};
use oxccl_plugin_abi::net::{
    ncclNetCommConfig_v10_t, ncclNetCommConfig_v11_t, ncclNetCommConfig_v12_t,
};
use rustix::fd::AsRawFd;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// Sizes that `test` may write: one per message of a request, and some more for plugins that always
/// write as many as they have.
const SIZES: usize = 32;

/// The value given to `test` in place of a size. It stays there if the plugin writes none.
const UNWRITTEN: c_int = c_int::MIN;

type Instance = crate::plugin::instance::Instance<Functions>;

/// A plugin in use.
pub(super) struct PluginNet {
    instance: Arc<Instance>,
    properties: Vec<Properties>,
    traffic_class: c_int,
}

impl PluginNet {
    /// Initialises a plugin for a communicator, and asks for its devices. A plugin that fails at
    /// that is not tried again in this process, as with NCCL.
    pub(super) fn start(
        plugin: &'static Plugin<Unread<Functions>>,
        current: Arc<CurrentCall>,
        comm: u64,
        traffic_class: i32,
    ) -> Result<Self> {
        let log = logger();
        let mut v11 = ncclNetCommConfig_v11_t { trafficClass: traffic_class };
        let mut v12 = ncclNetCommConfig_v12_t { trafficClass: traffic_class };
        // Some plugins call it without asking.
        let profiler = Some(net_event as _);
        // SAFETY: the function is the plugin's, and has the arguments of its version.
        let init = |init: Init, at: *mut *mut c_void, again| unsafe {
            match init {
                Init::V6(_) | Init::V10(_) if again => 0,
                Init::V6(init) => init(log),
                Init::V10(init) => init(log, profiler),
                Init::V11(init) => init(at, comm, &mut v11, log, profiler),
                Init::V12(init) => init(at, comm, &mut v12, log, profiler),
            }
        };
        let (instance, properties) = Instance::start(plugin, current, init, properties)?;
        Ok(Self { instance: Arc::new(instance), properties, traffic_class })
    }
}

/// Returns what is known of each device.
fn properties(plugin: &Instance) -> Result<Vec<Properties>> {
    let ask = |device| {
        let call = |get: &mut dyn FnMut() -> c_int| plugin.call("getProperties", get);
        let mut known = plugin.functions.get_properties.ask(device, call)?.properties;
        if plugin.functions.reg_mr_dma_buf.is_none() {
            known.memory &= !DMA_BUF;
        }
        Ok(known)
    };
    (0..plugin.devices(plugin.functions.devices)?).map(ask).collect()
}

impl Net for PluginNet {
    fn name(&self) -> &str {
        &self.instance.name
    }

    fn devices(&self) -> usize {
        self.properties.len()
    }

    fn properties(&self, device: usize) -> Result<Properties> {
        let none =
            || self.instance.failed("getProperties", &format!("there is no device {device}"));
        self.properties.get(device).cloned().ok_or_else(none)
    }

    fn listen(&self, device: usize) -> Result<(Handle, Box<dyn Listener>)> {
        let instance = self.instance.clone();
        let (mut handle, mut listener) = (Handle([0; HANDLE_BYTES]), null_mut());
        let (at, device) = (handle.0.as_mut_ptr().cast::<c_void>(), device as c_int);
        // SAFETY: as in `init`; the handle has NCCL's size.
        let listen = || unsafe {
            match instance.functions.listen {
                Listen::V6(listen) => listen(device, at, &mut listener),
                Listen::V11(listen) => listen(instance.context, device, at, &mut listener),
            }
        };
        instance.call("listen", listen)?;
        if listener.is_null() {
            return Err(instance.failed("listen", "it returned no listener"));
        }
        Ok((handle, Box::new(PluginListener { instance, listener })))
    }

    fn connect(&self, device: usize, handle: Handle) -> Result<Box<dyn Connecting>> {
        let config = ncclNetCommConfig_v10_t { trafficClass: self.traffic_class };
        let (instance, handle) = (self.instance.clone(), Box::new(handle));
        Ok(Box::new(PluginConnecting { instance, device: device as c_int, config, handle }))
    }
}

struct PluginListener {
    instance: Arc<Instance>,
    listener: *mut c_void,
}

// SAFETY: as for `Instance`.
unsafe impl Send for PluginListener {}

impl Listener for PluginListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        let (instance, listener) = (&self.instance, self.listener);
        let (mut comm, mut device) = (null_mut(), null_mut());
        // SAFETY: as in `init`; the listener is the plugin's.
        let accept = || unsafe {
            match instance.functions.accept {
                Accept::V6(accept) => accept(listener, &mut comm),
                Accept::V7(accept) => accept(listener, &mut comm, &mut device),
            }
        };
        instance.call("accept", accept)?;
        let receiving = |comm| PluginConnection::new(instance.clone(), comm, false);
        Ok((!comm.is_null()).then(|| Box::new(receiving(comm)) as Box<dyn Receiver>))
    }
}

impl Drop for PluginListener {
    fn drop(&mut self) {
        let (close, listener) = (self.instance.functions.close_listen, self.listener);
        // SAFETY: the listener is the plugin's and is not used any more.
        self.instance.end("closeListen", || unsafe { close(listener) });
    }
}

struct PluginConnecting {
    instance: Arc<Instance>,
    device: c_int,
    config: ncclNetCommConfig_v10_t,
    /// The plugin may keep its state in it: it stays where it is.
    handle: Box<Handle>,
}

impl Connecting for PluginConnecting {
    fn progress(&mut self) -> Result<Option<Box<dyn Sender>>> {
        let (instance, device, config) = (&self.instance, self.device, &mut self.config);
        let handle = self.handle.0.as_mut_ptr().cast::<c_void>();
        let (mut comm, mut on_gpu) = (null_mut(), null_mut());
        // SAFETY: as in `init`; the handle stays where it is.
        let connect = || unsafe {
            match instance.functions.connect {
                Connect::V6(connect) => connect(device, handle, &mut comm),
                Connect::V7(connect) => connect(device, handle, &mut comm, &mut on_gpu),
                Connect::V10(connect) => connect(device, config, handle, &mut comm, &mut on_gpu),
                Connect::V11(connect) => {
                    connect(instance.context, device, handle, &mut comm, &mut on_gpu)
                }
            }
        };
        instance.call("connect", connect)?;
        let sending = |comm| PluginConnection::new(instance.clone(), comm, true);
        Ok((!comm.is_null()).then(|| Box::new(sending(comm)) as Box<dyn Sender>))
    }

    fn why(&self) -> String {
        format!("{} has made no connection yet", self.instance.current.label())
    }
}

/// An end of a connection.
struct PluginConnection {
    instance: Arc<Instance>,
    comm: *mut c_void,
    sends: bool,
    regions: Vec<Registered>,
    /// The event of the next message.
    event: Event,
    /// The messages under way to this end, by the number of their request.
    receives: [Option<Receive>; MAX_REQUESTS],
}

/// Memory that is registered.
struct Registered {
    handle: *mut c_void,
    /// True if messages that have come there must be flushed.
    flush: bool,
}

/// A message under way to this end.
#[derive(Clone, Copy)]
enum Receive {
    /// The message may not have come yet.
    Message { request: *mut c_void, capacity: usize, flush: Option<Unflushed> },
    /// The message, of this size, has come and is being flushed.
    Flush { request: *mut c_void, len: usize },
}

/// The memory of a message that must be flushed, and the handle of that.
#[derive(Clone, Copy)]
struct Unflushed {
    data: *mut c_void,
    capacity: usize,
    handle: *mut c_void,
}

// SAFETY: as for `Instance`.
unsafe impl Send for PluginConnection {}

impl PluginConnection {
    fn new(instance: Arc<Instance>, comm: *mut c_void, sends: bool) -> Self {
        let (regions, event, receives) = Default::default();
        Self { instance, comm, sends, regions, event, receives }
    }

    /// Returns the size of the first message of a request that is done.
    fn size(&self, request: *mut c_void) -> Result<Option<c_int>> {
        let (mut done, mut sizes) = (0, [UNWRITTEN; SIZES]);
        let test = self.instance.functions.test;
        self.instance.call("test", || {
            // SAFETY: as in `init`; the request is the plugin's and was not done before.
            unsafe { test(request, &mut done, sizes.as_mut_ptr()) }
        })?;
        Ok((done != 0).then_some(sizes[0]))
    }

    /// Takes a message that has come to a place of `capacity` bytes. Returns its size if it needs
    /// no flush, or else the flush. There are plugins that tell the size of the place, so that
    /// tells nothing.
    fn arrived(
        &self,
        size: c_int,
        capacity: usize,
        flush: Option<Unflushed>,
    ) -> Result<(Option<usize>, Option<Receive>)> {
        let negative =
            |_| self.instance.failed("test", &format!("it says that {size} bytes have arrived"));
        let len = match size {
            UNWRITTEN => UNTOLD,
            size => usize::try_from(size).map_err(negative)?,
        };
        let len = if len == capacity { UNTOLD } else { len };
        let flush = flush.map_or(Ok(None), |flush| self.flush(flush, len))?;
        Ok(match flush {
            Some(request) => (None, Some(Receive::Flush { request, len })),
            None => (Some(len), None),
        })
    }

    /// Begins to flush a message that has come; `None` where there is nothing to wait for.
    fn flush(
        &self,
        Unflushed { mut data, capacity, mut handle }: Unflushed,
        len: usize,
    ) -> Result<Option<*mut c_void>> {
        let Some(iflush) = self.instance.functions.iflush else { return Ok(None) };
        let (comm, mut size, mut request) = (self.comm, len.min(capacity) as c_int, null_mut());
        // SAFETY: as in `init`; the arrays have one entry each, and the message is in registered
        // memory, which stays until its request is done.
        let iflush = || unsafe { iflush(comm, 1, &mut data, &mut size, &mut handle, &mut request) };
        self.instance.call("iflush", iflush)?;
        Ok((!request.is_null()).then_some(request))
    }
}

impl Drop for PluginConnection {
    fn drop(&mut self) {
        let functions = &self.instance.functions;
        let comm = self.comm;
        for Registered { handle, .. } in self.regions.drain(..).filter(|r| !r.handle.is_null()) {
            // SAFETY: the region is the plugin's and is not used any more.
            let deregister = || unsafe { (functions.dereg_mr)(comm, handle) };
            self.instance.end("deregMr", deregister);
        }
        let (function, close) = match self.sends {
            true => ("closeSend", functions.close_send),
            false => ("closeRecv", functions.close_recv),
        };
        // SAFETY: likewise.
        self.instance.end(function, || unsafe { close(comm) });
    }
}

impl Connection for PluginConnection {
    fn register(&mut self, memory: Memory) -> Result<Region> {
        let (comm, data, len) = (self.comm, memory.data.cast::<c_void>(), memory.len);
        let functions = &self.instance.functions;
        let (kind, flush, dma_buf) = match &memory.place {
            Place::Host => (HOST, false, None),
            Place::Gpu { flush, dma_buf } => (CUDA, *flush && !self.sends, dma_buf.as_ref()),
        };
        if flush && functions.iflush.is_none() {
            let cause = "memory that must be flushed, without iflush";
            return Err(self.instance.failed("regMr", cause));
        }
        let mut handle = null_mut();
        // Versions 6 and 7 take sizes below 2 GiB; slots are far smaller.
        let small = c_int::try_from(len).unwrap_or(c_int::MAX);
        // SAFETY: as in `init`; the memory lives as long as this end, and the descriptor during
        // the call.
        let reg_mr = || unsafe {
            match functions.reg_mr {
                RegMr::V6(register) => register(comm, data, small, kind, &mut handle),
                RegMr::V8(register) => register(comm, data, len, kind, &mut handle),
            }
        };
        match functions.reg_mr_dma_buf.zip(dma_buf) {
            Some((register, fd)) => {
                let fd = fd.as_raw_fd();
                // SAFETY: as above.
                let reg_mr = || unsafe { register(comm, data, len, kind, 0, fd, &mut handle) };
                self.instance.call("regMrDmaBuf", reg_mr)?;
            }
            None => self.instance.call("regMr", reg_mr)?,
        }
        self.regions.push(Registered { handle, flush });
        Ok(Region(handle as usize))
    }

    fn deregister(&mut self, Region(handle): Region) -> Result<()> {
        let is_it = |region: &Registered| region.handle as usize == handle;
        let Some(index) = self.regions.iter().position(is_it) else { return Ok(()) };
        let Registered { handle, .. } = self.regions.swap_remove(index);
        let (comm, deregister) = (self.comm, self.instance.functions.dereg_mr);
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: the region is the plugin's and is not used any more.
        self.instance.call("deregMr", || unsafe { deregister(comm, handle) })
    }

    fn set_event(&mut self, event: Event) {
        self.event = event;
    }
}

impl Sender for PluginConnection {
    unsafe fn isend(
        &mut self,
        data: *const u8,
        len: usize,
        tag: u32,
        region: Region,
    ) -> Result<Option<Request>> {
        let (comm, data, tag) = (self.comm, data.cast_mut().cast::<c_void>(), tag as c_int);
        let (region, event) = (region.0 as *mut c_void, self.event.0 as *mut c_void);
        let mut made = null_mut();
        // SAFETY: as in `init`; the memory is registered, and stays by the contract. Messages are
        // far smaller than 2 GiB.
        let isend = || unsafe {
            match self.instance.functions.isend {
                Isend::V6(send) => send(comm, data, len as c_int, tag, region, &mut made),
                Isend::V9(send) => send(comm, data, len, tag, region, &mut made),
                Isend::V10(send) => send(comm, data, len, tag, region, event, &mut made),
            }
        };
        self.instance.call("isend", isend)?;
        Ok((!made.is_null()).then_some(made as Request))
    }

    fn test(&mut self, request: Request) -> Result<bool> {
        Ok(self.size(request as *mut c_void)?.is_some())
    }
}

impl Receiver for PluginConnection {
    unsafe fn irecv(
        &mut self,
        data: *mut u8,
        capacity: usize,
        tag: u32,
        region: Region,
    ) -> Result<Option<Request>> {
        let free = self.receives.iter().position(Option::is_none);
        let Some(number) = free else { return Ok(None) };
        let (to, mut tag) = (data.cast::<c_void>(), tag as c_int);
        let (mut data, handle) = (to, region.0 as *mut c_void);
        let mut region = handle;
        let (mut small, mut size) = (capacity as c_int, capacity);
        let mut event = self.event.0 as *mut c_void;
        let (comm, mut made) = (self.comm, null_mut());
        // SAFETY: as for `isend`; the arrays have one entry each.
        let irecv = || unsafe {
            let (data, tag, region) = (&mut data, &mut tag, &mut region);
            match self.instance.functions.irecv {
                Irecv::V6(receive) => receive(comm, 1, data, &mut small, tag, region, &mut made),
                Irecv::V9(receive) => receive(comm, 1, data, &mut size, tag, region, &mut made),
                Irecv::V10(receive) => {
                    receive(comm, 1, data, &mut size, tag, region, &mut event, &mut made)
                }
            }
        };
        self.instance.call("irecv", irecv)?;
        if made.is_null() {
            return Ok(None);
        }
        let flushed = self.regions.iter().any(|r| r.handle == handle && r.flush);
        let flush = flushed.then_some(Unflushed { data: to, capacity, handle });
        self.receives[number] = Some(Receive::Message { request: made, capacity, flush });
        Ok(Some(number as Request))
    }

    fn test(&mut self, number: Request) -> Result<Option<usize>> {
        let unknown = || self.instance.failed("test", &format!("request {number} was done"));
        let place = self.receives.get(number as usize).copied().flatten().ok_or_else(unknown)?;
        let (done, next) = match place {
            Receive::Flush { request, len } => (self.size(request)?.map(|_| len), None),
            Receive::Message { request, capacity, flush } => match self.size(request)? {
                Some(size) => self.arrived(size, capacity, flush)?,
                None => return Ok(None),
            },
        };
        if done.is_some() || next.is_some() {
            self.receives[number as usize] = next;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests;
