//! Memory that the user registers: windows, which peers write into, and buffers.

use super::Communicator;
use crate::config::Config;
use crate::device::Registration;
use crate::error::{Error, Result};
use crate::handle::tagged;
use crate::link::direct::{SIGNALS, WINDOWS};
use crate::op::{Address, OneSided, Put};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Signals of each context; contexts divide a rank's signals evenly.
pub const SIGNALS_PER_CONTEXT: u32 = 16;
/// The largest number of contexts.
pub const CONTEXTS: u32 = SIGNALS / SIGNALS_PER_CONTEXT;

/// The tags of the handles of windows and buffers. `NEXT` numbers the handles, so that no
/// communicator gives one twice.
const WINDOW: u64 = tagged(6);
const BUFFER: u64 = tagged(7);
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Returns whether a handle is a window's: the tag of buffers has one bit that the tag of windows
/// lacks.
fn is_window(handle: u64) -> bool {
    handle & BUFFER == WINDOW
}

/// A registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    base: usize,
    len: usize,
    /// The number of the window among the communicator's, equal on all ranks; 0 for a buffer.
    number: u64,
    /// The registration with the executor; `None` if it does not need to know the range.
    buffer: Option<Registration>,
}

/// The windows and buffers that a communicator has registered.
#[derive(Default)]
pub(super) struct Registry {
    ranges: HashMap<u64, Range>,
    /// Windows registered so far.
    windows: u64,
}

/// A communicator's registry.
pub(super) type Registered = Mutex<Registry>;

impl Communicator {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registered.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Registers a buffer and returns a handle for it. On a GPU the peers map the buffer, in the
    /// background. In host memory, a buffer from `ncclMemAlloc` is already mapped by all peers; the
    /// system reads other memory in place from some MiB on, where that is permitted. A network that
    /// reduces is told of either. Blocks: for that network's plugin.
    pub fn register(&self, base: usize, len: usize) -> Result<u64> {
        self.check()?;
        let handle = BUFFER | NEXT.fetch_add(1, Ordering::Relaxed);
        let buffer = match Config::get().local_register && len > 0 {
            true => self.executor.register(base, len)?,
            false => None,
        };
        self.registry().ranges.insert(handle, Range { base, len, number: 0, buffer });
        Ok(handle)
    }

    /// Ends the registration of a buffer. Returns false if `handle` is not the handle of a
    /// registered buffer. Fails if a network that reduces uses the buffer for an operation under
    /// way, or if its plugin fails; the handle stays. Blocks: for that plugin.
    pub fn deregister(&self, handle: u64) -> Result<bool> {
        if handle & BUFFER != BUFFER {
            return Ok(false);
        }
        let Some(range) = self.registry().ranges.remove(&handle) else { return Ok(false) };
        let ended = range.buffer.map_or(Ok(()), |buffer| self.executor.deregister(buffer));
        if ended.is_err() {
            self.registry().ranges.insert(handle, range);
        }
        ended.map(|()| true)
    }

    /// Registers a window, which all ranks do in the same order. Blocks: never. A peer that writes
    /// into the window waits until it is registered.
    pub fn register_window(&self, base: *mut u8, len: usize) -> Result<u64> {
        self.check()?;
        let mut registry = self.registry();
        // The number is used up even if this fails, because the other ranks count the window too.
        let number = registry.windows;
        registry.windows += 1;
        let place = |number: u64| number % WINDOWS as u64;
        let windows = registry.ranges.iter().filter(|(handle, _)| is_window(**handle));
        if windows.into_iter().any(|(_, range)| place(range.number) == place(number)) {
            let what =
                format!("window {number} has no room: {WINDOWS} may be registered at a time");
            return Err(Error::usage(what, "deregister windows in the order of their making"));
        }
        let buffer = self.executor.open_window(base, len, number, self.topology.remote_reads)?;
        let handle = WINDOW | NEXT.fetch_add(1, Ordering::Relaxed);
        registry.ranges.insert(handle, Range { base: base as usize, len, number, buffer });
        Ok(handle)
    }

    /// Ends the registration of a window. Returns false if `handle` is not the handle of a
    /// registered window.
    pub fn deregister_window(&self, handle: u64) -> bool {
        if self.window(handle).is_none() {
            return false;
        }
        let Some(range) = self.registry().ranges.remove(&handle) else { return false };
        self.executor.close_window(range.number, range.buffer);
        true
    }

    fn window(&self, handle: u64) -> Option<Range> {
        self.registry().ranges.get(&handle).copied().filter(|_| is_window(handle))
    }

    /// Returns the base address of a window; `None` if `handle` is not the handle of a registered
    /// window.
    pub fn window_base(&self, handle: u64) -> Option<usize> {
        self.window(handle).map(|range| range.base)
    }

    /// Returns the operation that writes `bytes` from `from` into a peer's window and signals the
    /// peer. `None` if `handle` is not the handle of a registered window.
    pub fn put_signal(
        &self,
        (from, bytes): (*const u8, usize),
        (peer, handle, offset): (u32, u64, usize),
        signal: u32,
    ) -> Option<Result<OneSided>> {
        let Range { base, len, number, .. } = self.window(handle)?;
        if offset.checked_add(bytes).is_none_or(|end| end > len) {
            let got = format!("{offset}, with {bytes} bytes");
            let expected = format!("a range within the window's {len} bytes");
            let function = "ncclPutSignal";
            return Some(Err(Error::argument(function, "peerWinOffset", got, expected)));
        }
        let own = Address(std::ptr::with_exposed_provenance_mut(base));
        let from = Address(from.cast_mut());
        let put = Put { from, bytes, window: number, own, offset };
        Some(Ok(OneSided::Signal(peer, Some(put), signal)))
    }

    /// Returns the number of a signal; `None` if the index or the context is out of range.
    pub fn signal_number(&self, index: i32, context: i32) -> Option<u32> {
        let index = u32::try_from(index).ok().filter(|&i| i < SIGNALS_PER_CONTEXT)?;
        let contexts = u32::try_from(self.options().rma_contexts).unwrap_or(0).min(CONTEXTS);
        let context = u32::try_from(context).ok().filter(|&c| c < contexts)?;
        Some(context * SIGNALS_PER_CONTEXT + index)
    }
}
