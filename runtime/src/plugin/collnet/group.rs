//! A network that reduces, in use. All of this runs in the thread that calls the plugin.

use super::functions::{Functions, Iallreduce, Init};
use super::{Format, HINT, Reductions};
use crate::exit;
use crate::log::{self, Level, Subsystem};
use crate::plugin::net::functions::Listen;
use crate::plugin::{Plugin, checked, logger};
use crate::proxy::CurrentCall;
use oxccl_net::{
    Error, HANDLE_BYTES, HOST, Handle, Memory, Receiver, Region, Request, Result, Sender,
};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard};

/// The use of a plugin by a communicator.
pub(super) struct Instance {
    calls: Arc<Calls>,
    /// What `listen` has made, until the group is connected.
    listener: *mut c_void,
}

/// The context of a communicator, which ends after all that was made with it.
struct Calls {
    plugin: &'static Plugin<Functions>,
    current: Arc<CurrentCall>,
    context: *mut c_void,
    /// True once `init` has succeeded.
    initialised: bool,
}

// SAFETY: the pointers are only given to the plugin, by the one thread that has the parts.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Send for Calls {}
// SAFETY: as above.
unsafe impl Sync for Calls {}

impl Calls {
    /// Calls a function of the plugin.
    fn call(&self, function: &'static str, call: impl FnOnce() -> c_int) -> Result<()> {
        checked(&self.current, function, self.current.enter(function, call), HINT)
    }

    fn failed(&self, function: &str, cause: impl Into<String>) -> Error {
        Error::local(format!("{function} of {}", self.current.label()), cause.into(), HINT)
    }

    fn functions(&self) -> &'static Functions {
        &self.plugin.functions
    }

    /// Calls `init`, unless it is called once per process and has been.
    fn init(&mut self, comm: u64, begun: &mut bool) -> Result<()> {
        let (log, mut context, again) = (logger(), null_mut(), std::mem::replace(begun, true));
        // SAFETY: the function is the plugin's, and has the arguments of its version.
        let init = || unsafe {
            match self.functions().init {
                Init::V8(_) if again => 0,
                Init::V8(init) => init(log),
                Init::V11(init) => init(&mut context, comm, log),
            }
        };
        self.call("init", init)?;
        (self.context, self.initialised) = (context, true);
        // What the plugin has registered for the end of the process runs after this.
        exit::close_before_others();
        Ok(())
    }

    fn devices(&self) -> Result<usize> {
        let mut number = 0;
        // SAFETY: as in `init`.
        self.call("devices", || unsafe { (self.functions().devices)(&mut number) })?;
        let wrong = |_| self.failed("devices", format!("it says that there are {number}"));
        usize::try_from(number).map_err(wrong)
    }

    /// Returns what a device lacks to reduce messages of `bytes` bytes.
    fn lack(&self, device: c_int, bytes: usize) -> Result<Option<String>> {
        let call = |get: &mut dyn FnMut() -> c_int| self.call("getProperties", get);
        let told = self.functions().get_properties.ask(device, call)?;
        let most = told.max_collective_bytes;
        Ok(if told.properties.memory & HOST == 0 {
            Some(format!("its device {device} does not take memory of the host"))
        } else if most < bytes as u64 {
            Some(format!("its device {device} reduces {most} bytes, {bytes} are needed"))
        } else {
            None
        })
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let finalize = self.functions().finalize.filter(|_| self.initialised);
        let Some(finalize) = finalize else { return };
        note(self.plugin.turn.take(&self.current).and_then(|_alone| {
            // SAFETY: as in `init`; nothing of the context is in use any more.
            self.call("finalize", || unsafe { finalize(self.context) })
        }));
    }
}

/// Logs the failure of a call at the end of something, which nobody waits for.
fn note(ended: Result<()>) {
    if let Err(error) = ended {
        log::line(Level::Warn, Subsystem::Net, &error.to_string());
    }
}

impl Instance {
    /// Initialises a plugin for a communicator. A plugin that fails at that is not tried again in
    /// this process, as with NCCL.
    pub(super) fn start(
        plugin: &'static Plugin<Functions>,
        current: Arc<CurrentCall>,
        comm: u64,
    ) -> Result<Self> {
        let mut calls = Calls { plugin, current, context: null_mut(), initialised: false };
        let current = calls.current.clone();
        let alone = plugin.turn.take(&current)?;
        let mut lifecycle = plugin.functions.lifecycle();
        if let Some(error) = &lifecycle.failed {
            return Err(error.clone());
        }
        let made = calls.init(comm, &mut lifecycle.begun);
        lifecycle.failed = made.as_ref().err().cloned();
        // The end of the instance takes the locks.
        drop((lifecycle, alone));
        made?;
        Ok(Self { calls: Arc::new(calls), listener: null_mut() })
    }

    /// Listens on one of the devices that can reduce messages of `bytes` bytes.
    pub(super) fn listen(&mut self, place: usize, bytes: usize) -> Result<Handle> {
        let calls = &self.calls;
        let (mut usable, mut why) = (Vec::new(), "it has no devices".to_owned());
        for device in 0..calls.devices()? as c_int {
            match calls.lack(device, bytes)? {
                None => usable.push(device),
                Some(lack) => why = lack,
            }
        }
        let chosen = place.checked_rem(usable.len()).map(|at| usable[at]);
        let device = chosen.ok_or_else(|| calls.failed("devices", why))?;
        let (mut handle, context) = (Handle([0; HANDLE_BYTES]), calls.context);
        let (at, listener) = (handle.0.as_mut_ptr().cast::<c_void>(), &mut self.listener);
        // SAFETY: as in `init`; the handle has NCCL's size.
        let listen = || unsafe {
            match calls.functions().listen {
                Listen::V6(listen) => listen(device, at, listener),
                Listen::V11(listen) => listen(context, device, at, listener),
            }
        };
        calls.call("listen", listen)?;
        match self.listener.is_null() {
            true => Err(calls.failed("listen", "it returned no listener")),
            false => Ok(handle),
        }
    }

    /// Asks which reductions the network has.
    pub(super) fn reductions(&self) -> Result<Reductions> {
        let support = self.calls.functions().reduce_support;
        let mut reductions = Reductions::default();
        for (dtype, op) in Reductions::all() {
            let mut supported = 0;
            // SAFETY: as in `init`.
            let ask = || unsafe { support(dtype as c_int, op as c_int, &mut supported) };
            self.calls.call("reduceSupport", ask)?;
            if supported != 0 {
                reductions.0 |= Reductions::bit(dtype, op);
            }
        }
        Ok(reductions)
    }

    /// Makes a group of the ranks with these handles. May block until all of them have come.
    pub(super) fn connect(
        &mut self,
        mut handles: Vec<Handle>,
        rank: usize,
        format: Format,
    ) -> Result<(Box<dyn Sender>, Box<dyn Receiver>)> {
        let at = |handle: &mut Handle| handle.0.as_mut_ptr().cast::<c_void>();
        let mut places: Vec<_> = handles.iter_mut().map(at).collect();
        let (nranks, rank, listener) = (places.len() as c_int, rank as c_int, self.listener);
        let (connect, mut comm) = (self.calls.functions().connect, null_mut());
        // SAFETY: as in `init`; there are as many handles.
        let connect = || unsafe { connect(places.as_mut_ptr(), nranks, rank, listener, &mut comm) };
        let (current, function) = (&self.calls.current, "connect");
        checked(current, function, current.enter_for_others(function, connect), HINT)?;
        if comm.is_null() {
            return Err(self.calls.failed("connect", "it returned no group"));
        }
        let group = Group {
            calls: self.calls.clone(),
            comm,
            format,
            regions: Vec::new(),
            owners: Vec::new(),
            offered: VecDeque::new(),
            reduced: BTreeMap::new(),
            under_way: BTreeMap::new(),
            next: 0,
        };
        let group = Arc::new(Mutex::new(group));
        self.close_listener();
        Ok((Box::new(Contributions(group.clone())), Box::new(Results(group))))
    }

    fn close_listener(&mut self) {
        let listener = std::mem::replace(&mut self.listener, null_mut());
        if !listener.is_null() {
            let close = self.calls.functions().close_listen;
            // SAFETY: the listener is the plugin's and is not used any more.
            note(self.calls.call("closeListen", || unsafe { close(listener) }));
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.close_listener();
    }
}

/// A slot for a result.
struct Slot {
    number: Request,
    data: *mut u8,
    capacity: usize,
    region: Region,
}

/// An all-reduce under way.
struct UnderWay {
    request: *mut c_void,
    slot: Slot,
    sent: *const u8,
    len: usize,
}

/// A group of ranks whose data the network reduces.
struct Group {
    calls: Arc<Calls>,
    comm: *mut c_void,
    format: Format,
    regions: Vec<*mut c_void>,
    /// The owners of the registered memory. They are given up after the group has ended.
    owners: Vec<Arc<dyn Any + Send + Sync>>,
    /// Slots that no all-reduce has taken, the oldest first.
    offered: VecDeque<Slot>,
    /// The sizes of results that are complete, by the numbers of their slots.
    reduced: BTreeMap<Request, usize>,
    under_way: BTreeMap<Request, UnderWay>,
    /// The number of the next request, of either end.
    next: Request,
}

// SAFETY: as for `Instance`.
unsafe impl Send for Group {}

impl Group {
    fn number(&mut self) -> Request {
        self.next += 1;
        self.next
    }

    fn register(&mut self, memory: &Memory) -> Result<Region> {
        let (comm, data, mut region) = (self.comm, memory.data.cast::<c_void>(), null_mut());
        let register = self.calls.functions().reg_mr;
        // SAFETY: as in `init`; the memory lives as long as the group.
        let reg_mr = || unsafe { register(comm, data, memory.len, HOST, &mut region) };
        self.owners.push(memory.owner.clone());
        self.calls.call("regMr", reg_mr)?;
        self.regions.push(region);
        Ok(Region(region as usize))
    }

    /// Starts to reduce a message into the oldest slot.
    ///
    /// # Safety
    /// As for [`Sender::isend`].
    unsafe fn reduce(
        &mut self,
        sent: *const u8,
        len: usize,
        region: Region,
    ) -> Result<Option<Request>> {
        let Some(slot) = self.offered.front() else { return Ok(None) };
        let header = self.format.header_bytes;
        let wrong = |cause| self.calls.failed("iallreduce", cause);
        let bytes = len.checked_sub(header).ok_or_else(|| wrong("a message without a header"))?;
        // SAFETY: readable by the contract.
        let told = unsafe { std::slice::from_raw_parts(sent, header) };
        let reduction = (self.format.reduction)(told).filter(|_| len <= slot.capacity);
        let (dtype, op) = reduction.ok_or_else(|| wrong("a message of no reduction"))?;
        let (count, dtype, op) = (bytes / dtype.size(), dtype as c_int, op as c_int);
        let from = sent.wrapping_add(header).cast_mut().cast::<c_void>();
        let to = slot.data.wrapping_add(header).cast::<c_void>();
        let (comm, mut request) = (self.comm, null_mut());
        let regions = [region, slot.region].map(|region| region.0 as *mut c_void);
        let [sends, receives] = regions;
        // SAFETY: as in `init`; both are registered, and stay by the contract of their ends.
        // Messages are far smaller than 2 GiB.
        let iallreduce = || unsafe {
            match self.calls.functions().iallreduce {
                Iallreduce::V8(reduce) => {
                    let count = count as c_int;
                    reduce(comm, from, to, count, dtype, op, sends, receives, &mut request)
                }
                Iallreduce::V9(reduce) => {
                    reduce(comm, from, to, count, dtype, op, sends, receives, &mut request)
                }
            }
        };
        self.calls.call("iallreduce", iallreduce)?;
        if request.is_null() {
            return Ok(None);
        }
        let number = self.number();
        let slot = self.offered.pop_front();
        self.under_way.extend(slot.map(|slot| (number, UnderWay { request, slot, sent, len })));
        Ok(Some(number))
    }

    /// Returns whether an all-reduce is done; its result then has the header of what was sent.
    fn test(&mut self, number: Request) -> Result<bool> {
        let Some(UnderWay { request, slot, sent, len }) = self.under_way.get(&number) else {
            return Ok(true);
        };
        let (test, mut done, mut size) = (self.calls.functions().test, 0, 0);
        // SAFETY: as in `init`; the request is the plugin's and was not done before.
        self.calls.call("test", || unsafe { test(*request, &mut done, &mut size) })?;
        if done == 0 {
            return Ok(false);
        }
        // SAFETY: both have room for a header, and belong to this group until both ends have heard
        // that they are done.
        unsafe { std::ptr::copy_nonoverlapping(*sent, slot.data, self.format.header_bytes) };
        self.reduced.insert(slot.number, *len);
        self.under_way.remove(&number);
        Ok(true)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let (functions, comm) = (self.calls.functions(), self.comm);
        for region in self.regions.drain(..).filter(|region| !region.is_null()) {
            // SAFETY: the region is the plugin's and is not used any more.
            let deregister = || unsafe { (functions.dereg_mr)(comm, region) };
            note(self.calls.call("deregMr", deregister));
        }
        // SAFETY: likewise.
        note(self.calls.call("closeColl", || unsafe { (functions.close_coll)(comm) }));
    }
}

fn lock(group: &Mutex<Group>) -> MutexGuard<'_, Group> {
    group.lock().unwrap_or_else(|e| e.into_inner())
}

/// The sending end of an edge to a switch.
struct Contributions(Arc<Mutex<Group>>);

impl Sender for Contributions {
    fn register(&mut self, memory: Memory) -> Result<Region> {
        lock(&self.0).register(&memory)
    }

    unsafe fn isend(
        &mut self,
        data: *const u8,
        len: usize,
        _tag: u32,
        region: Region,
    ) -> Result<Option<Request>> {
        // SAFETY: by the contract.
        unsafe { lock(&self.0).reduce(data, len, region) }
    }

    fn test(&mut self, request: Request) -> Result<bool> {
        lock(&self.0).test(request)
    }
}

/// The receiving end of an edge to a switch.
struct Results(Arc<Mutex<Group>>);

impl Receiver for Results {
    fn register(&mut self, memory: Memory) -> Result<Region> {
        lock(&self.0).register(&memory)
    }

    unsafe fn irecv(
        &mut self,
        data: *mut u8,
        capacity: usize,
        _tag: u32,
        region: Region,
    ) -> Result<Option<Request>> {
        let mut group = lock(&self.0);
        let number = group.number();
        group.offered.push_back(Slot { number, data, capacity, region });
        Ok(Some(number))
    }

    /// Slots that are offered are not known to the plugin.
    fn ends_with_requests(&self) -> bool {
        true
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        Ok(lock(&self.0).reduced.remove(&request))
    }
}
