//! The objects of verbs, each with what it needs to exist.

use crate::device::Path;
use ibverbs_sys::{
    _compat_ibv_port_attr, _ibv_query_gid_table, IBV_TRANSPORT_IB, ibv_access_flags, ibv_alloc_pd,
    ibv_close_device, ibv_context, ibv_cq, ibv_create_cq, ibv_create_qp, ibv_dealloc_pd,
    ibv_dereg_mr, ibv_destroy_cq, ibv_destroy_qp, ibv_device_attr, ibv_fork_init,
    ibv_free_device_list, ibv_get_device_list, ibv_get_device_name, ibv_gid_entry, ibv_modify_qp,
    ibv_mr, ibv_open_device, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_query_device, ibv_query_port,
    ibv_recv_wr, ibv_reg_mr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_status_str,
    ibv_wr_opcode,
};
use oxccl_net::{Error, Result};
use std::ffi::{CStr, c_int};
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The advice of errors of adapters.
pub(crate) const HINT: &str = "see ibv_devinfo, ulimit -l, and NCCL_IB_HCA and NCCL_IB_GID_INDEX; NCCL_IB_DISABLE=1 goes \
     without";

/// How often a queue pair is connected if the peer's address is not resolved in time: the kernel
/// asks for it when many hosts do, and has it the next time.
const ATTEMPTS: usize = 3;

fn failed(call: &str) -> Error {
    Error::new(call, io::Error::last_os_error(), HINT)
}

/// The error of a call that returns the number of an error, unless that is 0.
fn check(call: &str, errno: c_int) -> Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(Error::new(call, io::Error::from_raw_os_error(errno.abs()), HINT)),
    }
}

/// An adapter that is open, and the protection domain of all that is made with it.
pub(crate) struct Adapter {
    domain: NonNull<ibv_pd>,
    context: NonNull<ibv_context>,
    /// The name, for example `mlx5_0`.
    pub(crate) name: String,
}

// SAFETY: the functions of verbs may be called by any thread.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Drop for Adapter {
    fn drop(&mut self) {
        // SAFETY: what was made with them has been destroyed: it keeps the adapter.
        unsafe {
            ibv_dealloc_pd(self.domain.as_ptr());
            ibv_close_device(self.context.as_ptr());
        }
    }
}

impl Adapter {
    /// Opens all adapters of this machine that are admitted by their names and can be opened. There
    /// are none where the kernel has no support for RDMA.
    pub(crate) fn all(admits: impl Fn(&str) -> bool) -> Vec<Arc<Self>> {
        // Otherwise this process's memory may move away from the adapter's when it forks. It fails
        // where memory was registered before; then who did it has decided.
        // SAFETY: no memory is being registered.
        unsafe { ibv_fork_init() };
        let mut number = 0;
        // SAFETY: a place for the number.
        let Some(list) = NonNull::new(unsafe { ibv_get_device_list(&mut number) }) else {
            return Vec::new();
        };
        // SAFETY: the list has as many entries.
        let devices = unsafe { std::slice::from_raw_parts(list.as_ptr(), number as usize) };
        // SAFETY: entries of the list, which is there.
        let open = |device| unsafe { Self::open(device, &admits) };
        let adapters = devices.iter().filter_map(|device| open(*device)).collect();
        // SAFETY: adapters that are open do not need the list.
        unsafe { ibv_free_device_list(list.as_ptr()) };
        adapters
    }

    /// Opens an adapter; `None` if it is not admitted, or of another kind than InfiniBand and RoCE
    /// (iWARP needs another way to connect), or cannot be used by this process.
    ///
    /// # Safety
    /// The device is of a list that is there.
    unsafe fn open(
        device: *mut ibverbs_sys::ibv_device,
        admits: impl Fn(&str) -> bool,
    ) -> Option<Arc<Self>> {
        // SAFETY: by the contract; the name is a text.
        let name = unsafe { CStr::from_ptr(ibv_get_device_name(device)) };
        let name = name.to_string_lossy().into_owned();
        // SAFETY: by the contract.
        if !admits(&name) || unsafe { (*device).transport_type } != IBV_TRANSPORT_IB {
            return None;
        }
        // SAFETY: by the contract.
        let context = NonNull::new(unsafe { ibv_open_device(device) })?;
        // SAFETY: the context is open.
        match NonNull::new(unsafe { ibv_alloc_pd(context.as_ptr()) }) {
            Some(domain) => Some(Arc::new(Self { domain, context, name })),
            None => {
                // SAFETY: nothing was made with the context.
                unsafe { ibv_close_device(context.as_ptr()) };
                None
            }
        }
    }

    /// Returns the attributes of the adapter.
    pub(crate) fn attributes(&self) -> Result<ibv_device_attr> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: the context is open; a place for the attributes.
        let result = unsafe { ibv_query_device(self.context.as_ptr(), attributes.as_mut_ptr()) };
        check("ibv_query_device", result)?;
        // SAFETY: numbers, of which zeros are valid.
        Ok(unsafe { attributes.assume_init() })
    }

    /// Returns the attributes of a port, which are numbered from 1 on.
    pub(crate) fn port(&self, port: u8) -> Result<ibv_port_attr> {
        let mut attributes = MaybeUninit::<ibv_port_attr>::zeroed();
        let place = attributes.as_mut_ptr().cast::<_compat_ibv_port_attr>();
        // SAFETY: the context is open; the structure is the first part of the other.
        check("ibv_query_port", unsafe { ibv_query_port(self.context.as_ptr(), port, place) })?;
        // SAFETY: numbers, of which zeros are valid.
        Ok(unsafe { attributes.assume_init() })
    }

    /// Returns the GIDs of all ports, at most as many as asked for.
    pub(crate) fn gids(&self, most: usize) -> Result<Vec<ibv_gid_entry>> {
        let mut table = vec![ibv_gid_entry::default(); most];
        let (at, size) = (table.as_mut_ptr(), size_of::<ibv_gid_entry>());
        // SAFETY: the context is open; places for as many entries.
        let found = unsafe { _ibv_query_gid_table(self.context.as_ptr(), at, most, 0, size) };
        if found < 0 {
            check("ibv_query_gid_table", -found as c_int)?;
        }
        table.truncate(found as usize);
        Ok(table)
    }
}

/// Memory that an adapter may read and write.
pub(crate) struct MemoryRegion {
    region: NonNull<ibv_mr>,
    _adapter: Arc<Adapter>,
}

// SAFETY: as for adapters.
unsafe impl Send for MemoryRegion {}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: a region that is registered, and that no request uses.
        unsafe { ibv_dereg_mr(self.region.as_ptr()) };
    }
}

impl MemoryRegion {
    /// Registers memory, also for peers to write into. The memory stays for as long as the region:
    /// its owner sees to it.
    pub(crate) fn new(adapter: &Arc<Adapter>, data: *mut u8, len: usize) -> Result<Self> {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        // SAFETY: a protection domain; memory that is not mapped is refused.
        let region =
            unsafe { ibv_reg_mr(adapter.domain.as_ptr(), data.cast(), len, access as c_int) };
        let region = NonNull::new(region);
        let region = region.ok_or_else(|| failed(&format!("ibv_reg_mr of {len} bytes")))?;
        Ok(Self { region, _adapter: adapter.clone() })
    }

    /// Returns the key for requests of this side.
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { self.region.as_ref().lkey }
    }

    /// Returns the key for requests of the peer.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { self.region.as_ref().rkey }
    }
}

/// A queue that tells which requests are complete.
pub(crate) struct CompletionQueue {
    queue: NonNull<ibv_cq>,
    adapter: Arc<Adapter>,
}

// SAFETY: as for adapters.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for adapters.
unsafe impl Sync for CompletionQueue {}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that use the queue keep it.
        unsafe { ibv_destroy_cq(self.queue.as_ptr()) };
    }
}

/// A request that is complete.
pub(crate) struct Completion {
    /// The number that the request was given.
    pub(crate) id: u64,
    /// The data that came with a message.
    pub(crate) immediate: Option<u32>,
}

impl CompletionQueue {
    /// Makes a queue for as many requests.
    pub(crate) fn new(adapter: &Arc<Adapter>, requests: usize) -> Result<Arc<Self>> {
        let context = adapter.context.as_ptr();
        // SAFETY: the context is open; there is no channel of events.
        let queue = unsafe { ibv_create_cq(context, requests as c_int, null_mut(), null_mut(), 0) };
        let queue = NonNull::new(queue).ok_or_else(|| failed("ibv_create_cq"))?;
        Ok(Arc::new(Self { queue, adapter: adapter.clone() }))
    }

    /// Calls a function with each request that is complete. Fails if one has failed, once all that
    /// are complete have been told of.
    pub(crate) fn poll(&self, mut each: impl FnMut(Completion)) -> Result<()> {
        const AT_ONCE: usize = 16;
        let mut found = [const { MaybeUninit::<ibv_wc>::zeroed() }; AT_ONCE];
        // SAFETY: the context is open.
        let poll = unsafe { self.adapter.context.as_ref().ops.poll_cq };
        let poll = poll.ok_or_else(|| Error::new("ibv_poll_cq", "not available", HINT))?;
        let mut result = Ok(());
        loop {
            let at = found.as_mut_ptr().cast();
            // SAFETY: the queue is there, and places for as many.
            let number = unsafe { poll(self.queue.as_ptr(), AT_ONCE as c_int, at) };
            if number < 0 {
                return Err(Error::new("ibv_poll_cq", format!("it returned {number}"), HINT));
            }
            for found in &found[..number as usize] {
                // SAFETY: filled in by the call.
                match completion(unsafe { found.assume_init_ref() }) {
                    Ok(completion) => each(completion),
                    Err(error) => result = result.and(Err(error)),
                }
            }
            if (number as usize) < AT_ONCE {
                return result;
            }
        }
    }
}

fn completion(of: &ibv_wc) -> Result<Completion> {
    let Some((status, vendor)) = of.error() else {
        let immediate = of.imm_data().map(u32::from_be);
        return Ok(Completion { id: of.wr_id(), immediate });
    };
    // SAFETY: the function returns a text that stays, whatever the number.
    let text = unsafe { CStr::from_ptr(ibv_wc_status_str(status)) };
    let (text, pair) = (text.to_string_lossy(), of.qp_num);
    let cause = format!("{text} (status {status}, vendor's {vendor}), queue pair {pair}");
    Err(Error::new("a request to the adapter", cause, HINT))
}

/// Memory as requests name it: address and key.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// A reliable queue pair.
pub(crate) struct QueuePair {
    pair: NonNull<ibv_qp>,
    completions: Arc<CompletionQueue>,
}

// SAFETY: as for adapters.
unsafe impl Send for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the pair is there; its requests end with it.
        unsafe { ibv_destroy_qp(self.pair.as_ptr()) };
    }
}

impl QueuePair {
    /// Makes a queue pair with room for as many requests in each direction.
    pub(crate) fn new(completions: &Arc<CompletionQueue>, requests: u32) -> Result<Self> {
        let queue = completions.queue.as_ptr();
        let mut wanted = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: queue,
            recv_cq: queue,
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: requests,
                max_recv_wr: requests,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: the domain and the queue are there.
        let pair = unsafe { ibv_create_qp(completions.adapter.domain.as_ptr(), &mut wanted) };
        let pair = NonNull::new(pair).ok_or_else(|| failed("ibv_create_qp"))?;
        Ok(Self { pair, completions: completions.clone() })
    }

    /// Returns the number by which the peer knows the pair.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the pair is there.
        unsafe { self.pair.as_ref().qp_num }
    }

    fn modify(&mut self, mut to: ibv_qp_attr, mask: &[ibv_qp_attr_mask]) -> Result<()> {
        let mask = mask.iter().fold(ibv_qp_attr_mask::IBV_QP_STATE.0, |all, one| all | one.0);
        // SAFETY: the pair is there.
        let mut modify = || unsafe { ibv_modify_qp(self.pair.as_ptr(), &mut to, mask as c_int) };
        let mut result = modify();
        for _ in 1..ATTEMPTS {
            if io::Error::from_raw_os_error(result.abs()).kind() == io::ErrorKind::TimedOut {
                result = modify();
            }
        }
        check(&format!("ibv_modify_qp to state {}", to.qp_state), result)
    }

    /// Connects the pair with the peer's, so that requests can be posted.
    pub(crate) fn connect(&mut self, path: &Path, peer: u32) -> Result<()> {
        use ibv_qp_attr_mask as mask;
        let fields = [mask::IBV_QP_PKEY_INDEX, mask::IBV_QP_PORT, mask::IBV_QP_ACCESS_FLAGS];
        self.modify(initial(path), &fields)?;
        let fields = [
            mask::IBV_QP_AV,
            mask::IBV_QP_PATH_MTU,
            mask::IBV_QP_DEST_QPN,
            mask::IBV_QP_RQ_PSN,
            mask::IBV_QP_MAX_DEST_RD_ATOMIC,
            mask::IBV_QP_MIN_RNR_TIMER,
        ];
        self.modify(receiving(path, peer), &fields)?;
        let fields = [
            mask::IBV_QP_TIMEOUT,
            mask::IBV_QP_RETRY_CNT,
            mask::IBV_QP_RNR_RETRY,
            mask::IBV_QP_SQ_PSN,
            mask::IBV_QP_MAX_QP_RD_ATOMIC,
        ];
        self.modify(sending(path), &fields)
    }

    /// Posts a request that writes into memory of the peer. With immediate data, it also completes
    /// a request of the peer's that receives.
    ///
    /// # Safety
    /// The local memory is registered, and stays as it is until the request is complete.
    pub(crate) unsafe fn write(
        &mut self,
        id: u64,
        (from, len): (Place, usize),
        to: Place,
        immediate: Option<u32>,
    ) -> Result<()> {
        let mut part = ibv_sge { addr: from.address, length: len as u32, lkey: from.key };
        // SAFETY: numbers and pointers, of which zeros are valid.
        let mut request: ibv_send_wr = unsafe { zeroed() };
        request.wr_id = id;
        request.sg_list = &mut part;
        request.num_sge = c_int::from(len > 0);
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        if let Some(data) = immediate {
            request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
            request.__bindgen_anon_1.imm_data = data.to_be();
        }
        request.wr.rdma.remote_addr = to.address;
        request.wr.rdma.rkey = to.key;
        // SAFETY: the context is open.
        let post = unsafe { self.completions.adapter.context.as_ref().ops.post_send };
        let post = post.ok_or_else(|| Error::new("ibv_post_send", "not available", HINT))?;
        // SAFETY: the pair is there; request and part are read during the call.
        check("ibv_post_send", unsafe { post(self.pair.as_ptr(), &mut request, &mut null_mut()) })
    }

    /// Posts a request that takes the immediate data of a message.
    pub(crate) fn take(&mut self, id: u64) -> Result<()> {
        let mut request =
            ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        // SAFETY: the context is open.
        let post = unsafe { self.completions.adapter.context.as_ref().ops.post_recv };
        let post = post.ok_or_else(|| Error::new("ibv_post_recv", "not available", HINT))?;
        // SAFETY: the pair is there; the request is read during the call.
        check("ibv_post_recv", unsafe { post(self.pair.as_ptr(), &mut request, &mut null_mut()) })
    }
}

/// Returns the attributes that a queue pair is given first.
pub(crate) fn initial(path: &Path) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_INIT,
        pkey_index: path.pkey_index,
        port_num: path.port,
        qp_access_flags: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        ..attributes()
    }
}

/// Returns the attributes with which a queue pair receives from the peer's of this number.
pub(crate) fn receiving(path: &Path, peer: u32) -> ibv_qp_attr {
    let mut attributes = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTR,
        path_mtu: path.mtu,
        dest_qp_num: peer,
        max_dest_rd_atomic: 1,
        // 0.64 ms, as in NCCL; offers go out after the request that takes the message.
        min_rnr_timer: 12,
        ..attributes()
    };
    let way = &mut attributes.ah_attr;
    way.port_num = path.port;
    way.sl = path.service_level;
    way.dlid = path.lid;
    if let Some(gid) = path.gid {
        way.is_global = 1;
        way.grh.dgid.raw = gid;
        way.grh.sgid_index = path.gid_index;
        way.grh.hop_limit = 255;
        way.grh.traffic_class = path.traffic_class;
    }
    attributes
}

/// Returns the attributes with which a queue pair sends, too.
pub(crate) fn sending(path: &Path) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTS,
        timeout: path.timeout,
        retry_cnt: path.retries,
        // 7: without end. The peer has a request for each message before it is sent.
        rnr_retry: 7,
        max_rd_atomic: 1,
        ..attributes()
    }
}

fn attributes() -> ibv_qp_attr {
    // SAFETY: numbers, of which zeros are valid.
    unsafe { zeroed() }
}
