//! A network that reduces, in use. All of this runs in the thread that calls the plugin.

use super::functions::{Functions, Iallreduce, Init};
use super::{Format, Reductions};
use crate::plugin::instance::Unread;
use crate::plugin::net::functions::Listen;
use crate::plugin::{Plugin, logger};
use crate::proxy::CurrentCall;
use oxccl_net::{
    Connection, HANDLE_BYTES, HOST, Handle, Memory, Receiver, Region, Request, Result, Sender,
    UNTOLD, Unstaged,
};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard};

type Instance = crate::plugin::instance::Instance<Functions>;

/// A network in use that is not connected yet.
pub(super) struct Unconnected {
    /// The context, which ends after all that was made with it.
    instance: Arc<Instance>,
    /// What `listen` has made, until the group is connected.
    listener: *mut c_void,
}

// SAFETY: the pointer is only given to the plugin, by the one thread that has the parts.
unsafe impl Send for Unconnected {}

/// Returns what a device lacks to reduce messages of `bytes` bytes.
fn lack(instance: &Instance, device: c_int, bytes: usize) -> Result<Option<String>> {
    let call = |get: &mut dyn FnMut() -> c_int| instance.call("getProperties", get);
    let told = instance.functions.get_properties.ask(device, call)?;
    let most = told.max_collective_bytes;
    Ok(if told.properties.memory & HOST == 0 {
        Some(format!("its device {device} does not take memory of the host"))
    } else if most < bytes as u64 {
        Some(format!("its device {device} reduces {most} bytes, {bytes} are needed"))
    } else {
        None
    })
}

impl Unconnected {
    /// Initialises a plugin for a communicator.
    pub(super) fn start(
        plugin: &'static Plugin<Unread<Functions>>,
        current: Arc<CurrentCall>,
        comm: u64,
    ) -> Result<Self> {
        let log = logger();
        // SAFETY: the function is the plugin's, and has the arguments of its version.
        let init = |init, context, again| unsafe {
            match init {
                Init::V8(_) if again => 0,
                Init::V8(init) => init(log),
                Init::V11(init) => init(context, comm, log),
            }
        };
        let (instance, ()) = Instance::start(plugin, current, init, |_| Ok(()))?;
        Ok(Self { instance: Arc::new(instance), listener: null_mut() })
    }

    /// Listens on one of the devices that can reduce messages of `bytes` bytes.
    pub(super) fn listen(&mut self, place: usize, bytes: usize) -> Result<Handle> {
        let instance = &self.instance;
        let (mut usable, mut why) = (Vec::new(), "it has no devices".to_owned());
        for device in 0..instance.devices(instance.functions.devices)? {
            match lack(instance, device, bytes)? {
                None => usable.push(device),
                Some(lack) => why = lack,
            }
        }
        let chosen = place.checked_rem(usable.len()).map(|at| usable[at]);
        let device = chosen.ok_or_else(|| instance.failed("devices", &why))?;
        let (mut handle, context) = (Handle([0; HANDLE_BYTES]), instance.context);
        let (at, listener) = (handle.0.as_mut_ptr().cast::<c_void>(), &mut self.listener);
        // SAFETY: as in `init`; the handle has NCCL's size.
        let listen = || unsafe {
            match instance.functions.listen {
                Listen::V6(listen) => listen(device, at, listener),
                Listen::V11(listen) => listen(context, device, at, listener),
            }
        };
        instance.call("listen", listen)?;
        match self.listener.is_null() {
            true => Err(instance.failed("listen", "it returned no listener")),
            false => Ok(handle),
        }
    }

    /// Asks which reductions the network has.
    pub(super) fn reductions(&self) -> Result<Reductions> {
        let support = self.instance.functions.reduce_support;
        let mut reductions = Reductions::default();
        for (dtype, op) in Reductions::all() {
            let mut supported = 0;
            // SAFETY: as in `init`.
            let ask = || unsafe { support(dtype as c_int, op as c_int, &mut supported) };
            self.instance.call("reduceSupport", ask)?;
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
        let (connect, mut comm) = (self.instance.functions.connect, null_mut());
        // SAFETY: as in `init`; there are as many handles.
        let connect = || unsafe { connect(places.as_mut_ptr(), nranks, rank, listener, &mut comm) };
        let returned = self.instance.current.enter_for_others("connect", connect);
        self.instance.checked("connect", returned)?;
        if comm.is_null() {
            return Err(self.instance.failed("connect", "it returned no group"));
        }
        let group = Group {
            instance: self.instance.clone(),
            comm,
            format,
            regions: Vec::new(),
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
            let close = self.instance.functions.close_listen;
            // SAFETY: the listener is the plugin's and is not used any more.
            self.instance.end("closeListen", || unsafe { close(listener) });
        }
    }
}

impl Drop for Unconnected {
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

/// An all-reduce under way, with the message that was sent, and the size of its result.
struct UnderWay {
    request: *mut c_void,
    slot: Slot,
    sent: *const u8,
    result: usize,
}

/// Memory that is registered. The owner is given up with it, or after the group has ended.
struct Registered {
    handle: *mut c_void,
    owner: Arc<dyn Any + Send + Sync>,
}

/// A group of ranks whose data the network reduces.
struct Group {
    instance: Arc<Instance>,
    comm: *mut c_void,
    format: Format,
    regions: Vec<Registered>,
    /// Slots that no all-reduce has taken, the oldest first.
    offered: VecDeque<Slot>,
    /// The sizes of results that are complete, by the numbers of their slots.
    reduced: BTreeMap<Request, usize>,
    under_way: BTreeMap<Request, UnderWay>,
    /// The number of the next request, of either end.
    next: Request,
}

// SAFETY: as for `Unconnected`.
unsafe impl Send for Group {}

impl Group {
    fn number(&mut self) -> Request {
        self.next += 1;
        self.next
    }

    fn register(&mut self, memory: &Memory) -> Result<Region> {
        let (comm, data, mut handle) = (self.comm, memory.data.cast::<c_void>(), null_mut());
        let register = self.instance.functions.reg_mr;
        // SAFETY: as in `init`; the memory lives as long as its registration, or the group.
        let reg_mr = || unsafe { register(comm, data, memory.len, HOST, &mut handle) };
        let registered = self.instance.call("regMr", reg_mr);
        // A plugin that fails may use the memory all the same.
        let handle = if registered.is_ok() { handle } else { null_mut() };
        // Without a handle nothing ends the registration before the group, so one owner is enough.
        let is_owner = |region: &Registered| Arc::ptr_eq(&region.owner, &memory.owner);
        if !handle.is_null() || !self.regions.iter().any(is_owner) {
            self.regions.push(Registered { handle, owner: memory.owner.clone() });
        }
        registered.map(|()| Region(handle as usize))
    }

    fn deregister(&mut self, Region(handle): Region) -> Result<()> {
        // A plugin may give the same handle several times, or none.
        let is_it = |region: &Registered| handle != 0 && region.handle as usize == handle;
        let Some(index) = self.regions.iter().rposition(is_it) else { return Ok(()) };
        let region = self.regions.swap_remove(index);
        let (comm, deregister) = (self.comm, self.instance.functions.dereg_mr);
        // SAFETY: the region is the plugin's and is not used any more.
        self.instance.call("deregMr", || unsafe { deregister(comm, region.handle) })
    }

    /// Starts to reduce a message into the oldest slot, or where the message says.
    ///
    /// # Safety
    /// As for [`Sender::isend`]. A message without data is as [`Format`] says, and both places are
    /// registered and nobody else's until its result is received, or the group has ended.
    unsafe fn reduce(
        &mut self,
        sent: *const u8,
        len: usize,
        region: Region,
    ) -> Result<Option<Request>> {
        let Some(slot) = self.offered.front() else { return Ok(None) };
        let header = self.format.header_bytes;
        let wrong = |cause| self.instance.failed("iallreduce", cause);
        let bytes = len.checked_sub(header).ok_or_else(|| wrong("a message without a header"))?;
        // SAFETY: readable by the contract.
        let told = unsafe { std::slice::from_raw_parts(sent, header) };
        let reduction = (self.format.reduction)(told).filter(|_| len <= slot.capacity);
        let (dtype, op) = reduction.ok_or_else(|| wrong("a message of no reduction"))?;
        let from = sent.wrapping_add(header);
        let to = slot.data.wrapping_add(header);
        let places = match bytes {
            // SAFETY: by the contract.
            0 => unsafe { from.cast::<Unstaged>().read_unaligned() },
            len => Unstaged { from, to, len, regions: [region, slot.region] },
        };
        let result = if bytes == 0 { UNTOLD } else { len };
        let (count, dtype, op) = (places.len / dtype.size(), dtype as c_int, op as c_int);
        let (from, to) = (places.from.cast_mut().cast::<c_void>(), places.to.cast::<c_void>());
        let (comm, mut request) = (self.comm, null_mut());
        let [sends, receives] = places.regions.map(|region| region.0 as *mut c_void);
        // SAFETY: as in `init`; both are registered, and stay by the contract of their ends.
        // Messages are far smaller than 2 GiB.
        let iallreduce = || unsafe {
            match self.instance.functions.iallreduce {
                Iallreduce::V8(reduce) => {
                    let count = count as c_int;
                    reduce(comm, from, to, count, dtype, op, sends, receives, &mut request)
                }
                Iallreduce::V9(reduce) => {
                    reduce(comm, from, to, count, dtype, op, sends, receives, &mut request)
                }
            }
        };
        self.instance.call("iallreduce", iallreduce)?;
        if request.is_null() {
            return Ok(None);
        }
        let number = self.number();
        let slot = self.offered.pop_front();
        self.under_way.extend(slot.map(|slot| (number, UnderWay { request, slot, sent, result })));
        Ok(Some(number))
    }

    /// Returns whether an all-reduce is done; its result then has the header of what was sent.
    fn test(&mut self, number: Request) -> Result<bool> {
        let Some(UnderWay { request, slot, sent, result }) = self.under_way.get(&number) else {
            return Ok(true);
        };
        let (test, mut done, mut size) = (self.instance.functions.test, 0, 0);
        // SAFETY: as in `init`; the request is the plugin's and was not done before.
        self.instance.call("test", || unsafe { test(*request, &mut done, &mut size) })?;
        if done == 0 {
            return Ok(false);
        }
        // SAFETY: both have room for a header, and belong to this group until both ends have heard
        // that they are done.
        unsafe { std::ptr::copy_nonoverlapping(*sent, slot.data, self.format.header_bytes) };
        self.reduced.insert(slot.number, *result);
        self.under_way.remove(&number);
        Ok(true)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let (functions, comm) = (&self.instance.functions, self.comm);
        for Registered { handle, .. } in self.regions.iter().filter(|r| !r.handle.is_null()) {
            // SAFETY: the region is the plugin's and is not used any more.
            let deregister = || unsafe { (functions.dereg_mr)(comm, *handle) };
            self.instance.end("deregMr", deregister);
        }
        // SAFETY: likewise.
        self.instance.end("closeColl", || unsafe { (functions.close_coll)(comm) });
    }
}

fn lock(group: &Mutex<Group>) -> MutexGuard<'_, Group> {
    group.lock().unwrap_or_else(|e| e.into_inner())
}

/// The sending end of an edge to a switch.
struct Contributions(Arc<Mutex<Group>>);

impl Connection for Contributions {
    fn register(&mut self, memory: Memory) -> Result<Region> {
        lock(&self.0).register(&memory)
    }

    fn deregister(&mut self, region: Region) -> Result<()> {
        lock(&self.0).deregister(region)
    }
}

impl Sender for Contributions {
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

impl Connection for Results {
    fn register(&mut self, memory: Memory) -> Result<Region> {
        lock(&self.0).register(&memory)
    }
}

impl Receiver for Results {
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
