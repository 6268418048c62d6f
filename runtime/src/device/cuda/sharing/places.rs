//! The places at which peers find user memory: what is registered, checked, and offered to them.

use crate::config::Config;
use crate::device::cuda::driver::Relaxed;
use crate::device::cuda::memory::{alloc, export};
use crate::device::cuda::rank::CudaRank;
use crate::device::cuda::sharing::mapper::{self, Sharing};
use crate::device::cuda::sharing::registry::{self, Found, Key};
use crate::error::{Error, Result};
use cudarc::driver::sys::CUgraph;
use oxccl_kernels::abi;
use std::sync::Arc;

impl CudaRank {
    /// Registers a range, to be mapped by the peers in the background. Returns its name, for
    /// [`release`](Self::release); `None` if there is no peer that could map it, or no number left.
    pub fn hold(&self, base: u64, len: u64) -> Option<Key> {
        let sharing = self.sharing().filter(|s| !s.all_here() && !s.lacks_peer_access())?;
        let pieces = export::pieces(base, len);
        let key = sharing.registry().hold(base, len, pieces);
        mapper::wake();
        key
    }

    /// Registers a range as the window of a number, to be mapped by the peers in the background.
    /// Returns its name, for [`release`](Self::release); `None` for a communicator of one rank.
    pub fn hold_window(&self, base: u64, len: u64, number: u64) -> Result<Option<Key>> {
        let Some(sharing) = self.sharing() else { return Ok(None) };
        let hint = "take a window's memory from ncclMemAlloc or cudaMalloc";
        if sharing.lacks_peer_access() {
            let what = "a window on GPUs that do not reach each other";
            return Err(Error::usage(what, "use ncclSend and ncclRecv there"));
        }
        let _context = self.gpu.enter()?;
        let _relaxed = Relaxed::begin()?;
        let reached = match sharing.all_here() {
            true => export::reached_here(self.gpu, base),
            false => export::export(base, len).is_ok(),
        };
        if !reached {
            return Err(Error::usage("this memory cannot be reached by the other ranks", hint));
        }
        let pieces = export::pieces(base, len);
        let key = sharing.registry().hold_window(base, len, pieces, number);
        mapper::wake();
        let what = "255 buffers and windows are registered";
        key.map(Some).ok_or_else(|| Error::usage(what, "deregister some of them"))
    }

    /// Removes one holder of a buffer.
    pub fn release(&self, key: Key) {
        if let Some(sharing) = self.sharing() {
            sharing.registry().release(key);
            mapper::wake();
        }
    }

    /// Returns whether the peers can use a range in place, as far as that is known before a call.
    pub fn is_known(&self, at: u64, bytes: u64) -> bool {
        let Some(sharing) = self.sharing().filter(|s| !s.lacks_peer_access()) else { return false };
        let ours = || alloc::find(std::ptr::with_exposed_provenance(at as usize)).is_some();
        sharing.all_here() || sharing.registry().find(at, bytes).is_some() || ours()
    }

    /// Returns the place at which peers find user memory of an operation that is launched now. If
    /// the operation is captured, the graph keeps the memory mapped. Requires the GPU's context to
    /// be current on this thread.
    pub fn place(self: &Arc<Self>, at: u64, bytes: u64, graph: Option<CUgraph>) -> abi::Place {
        self.find_place(at, bytes, graph).unwrap_or_default()
    }

    fn find_place(
        self: &Arc<Self>,
        at: u64,
        bytes: u64,
        graph: Option<CUgraph>,
    ) -> Option<abi::Place> {
        let sharing = self.sharing().filter(|sharing| !sharing.lacks_peer_access())?;
        if sharing.all_here() {
            let place = abi::Place { reach: abi::REACH_ADDRESS, at, ..abi::Place::default() };
            return export::reached_here(self.gpu, at).then_some(place);
        }
        let known = self.find_current(sharing, at, bytes);
        let held = match (known, graph) {
            (Some(found), None) => Some((found.key, found.buffer.base)),
            (known, graph) => self.hold_allocation(at, bytes, graph, known),
        };
        let (Key { number, generation }, base) = held?;
        let reach = abi::REACH_BUFFER;
        Some(abi::Place { reach, buffer: number, generation, at: at - base })
    }

    /// Returns a buffer that holds a range and whose memory is still that which was registered; a
    /// buffer whose memory has changed is taken back. Checks the allocations that the range
    /// touches; the mapper checks the others.
    fn find_current(&self, sharing: &Sharing, at: u64, bytes: u64) -> Option<Found> {
        loop {
            let found = sharing.registry().find(at, bytes)?;
            if registry::unchanged(&found.pieces, export::id_of) {
                return Some(found);
            }
            sharing.registry().take_back(found.key);
            mapper::wake();
        }
    }

    /// Registers the allocation around a range, to be mapped by the peers, if the memory is this
    /// library's, or for a graph, which keeps it mapped. Returns the name and the address of the
    /// buffer.
    fn hold_allocation(
        self: &Arc<Self>,
        at: u64,
        bytes: u64,
        graph: Option<CUgraph>,
        known: Option<Found>,
    ) -> Option<(Key, u64)> {
        let ours = alloc::find(std::ptr::with_exposed_provenance(at as usize));
        let registers = graph.is_some() && Config::get().graph_register;
        let (base, len) = match (known, ours) {
            (Some(Found { key, buffer, .. }), _) if !registers => return Some((key, buffer.base)),
            (Some(Found { buffer, .. }), _) => (buffer.base, buffer.len),
            (None, Some((base, size, _))) => (base as u64, size as u64),
            (None, None) if !registers => return None,
            (None, None) => {
                // A range across several allocations is registered as it is.
                let whole = export::allocation(at).ok().filter(|(b, l)| at + bytes <= b + l);
                whole.unwrap_or((at, bytes))
            }
        };
        let key = self.hold(base, len)?;
        if let Some(graph) = graph.filter(|_| registers) {
            self.keep(graph, Some(key), None).ok()?;
        }
        Some((key, base))
    }
}
