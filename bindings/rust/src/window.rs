//! Memory into which other ranks write, and the signals that tell when they have.

use crate::buffer::Buffer;
use crate::call::{check, number};
use crate::comm::Comm;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::operations::{forms, type_of};
use crate::scope::{Scope, run};
use capi::nccl::types::{NCCL_WIN_DEFAULT, ncclWaitSignalDesc_t};
use capi::nccl::window::{
    ncclCommWindowDeregister, ncclCommWindowRegister, ncclPutSignal, ncclSignal, ncclWaitSignal,
};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{null_mut, without_provenance_mut};

/// A buffer into which the other ranks of this host write by [`Comm::put`]. It is used as a slice.
///
/// ```
/// # extern crate oxccl_rs as oxccl;
/// # fn main() -> oxccl::Result<()> {
/// # let comm = oxccl::Comm::from_rank(0, 1, oxccl::Id::new()?)?;
/// let (rank, size) = (comm.rank(), comm.size());
/// let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
/// let window = oxccl::Window::<u64>::new(&comm, 4)?;
/// // SAFETY: the next rank reads its window only behind the signal, and keeps it until then.
/// unsafe { comm.put(&[rank as u64], &window, next, 2, 0)? };
/// comm.wait_signals(&[oxccl::Signals { from: before, signal: 0, count: 1 }])?;
/// assert_eq!(window[2], before as u64);
/// # Ok(())
/// # }
/// ```
pub struct Window<'comm, T: Element> {
    comm: &'comm Comm,
    memory: Buffer<T>,
    handle: usize,
}

impl<'comm, T: Element> Window<'comm, T> {
    /// Makes a window of `len` elements, one at least, all zero. All ranks make their windows in
    /// the same order; each then names the windows of all ranks by its own. Blocks: never.
    pub fn new(comm: &'comm Comm, len: usize) -> Result<Self> {
        let mut memory = Buffer::<T>::new(len)?;
        let mut handle = null_mut();
        // SAFETY: the memory lives as long as the window, and there is a place for the handle.
        check(unsafe {
            let (at, bytes) = (memory.as_mut_ptr().cast(), size_of_val(&*memory));
            ncclCommWindowRegister(comm.raw(), at, bytes, &mut handle, NCCL_WIN_DEFAULT)
        })?;
        Ok(Self { comm, memory, handle: handle.addr() })
    }
}

impl<T: Element> Deref for Window<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory
    }
}

impl<T: Element> DerefMut for Window<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Window<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

impl<T: Element> Drop for Window<'_, T> {
    fn drop(&mut self) {
        // SAFETY: any handle may be passed.
        unsafe { ncclCommWindowDeregister(self.comm.raw(), without_provenance_mut(self.handle)) };
    }
}

/// Some of the signals that a rank sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signals {
    /// The rank that sends them.
    pub from: usize,
    /// The number of the signal, 0 to 15.
    pub signal: usize,
    /// The number of signals, of those that nobody has waited for yet.
    pub count: usize,
}

/// Returns the offset of an element of a window in bytes.
pub(crate) fn put_offset<T: Element>(at: usize) -> Result<usize> {
    let wrong = || Error::argument("put", "at", &format!("is {at}"), "an element of the window");
    at.checked_mul(size_of::<T>()).ok_or_else(wrong)
}

/// Returns signals as C has them.
pub(crate) fn signal_descriptors(signals: &[Signals]) -> Vec<ncclWaitSignalDesc_t> {
    let desc = |signals: &Signals| ncclWaitSignalDesc_t {
        opCnt: number(signals.count),
        peer: number(signals.from),
        sigIdx: number(signals.signal),
        ctx: 0,
    };
    signals.iter().map(desc).collect()
}

/// Operations of one rank on another one of its host.
impl Comm {
    /// Writes elements into the window of rank `peer`, from its element `at` on, and then counts up
    /// the signal `signal` (0 to 15) of that rank. `window` is this rank's own.
    ///
    /// Blocks until the elements have been written, at most until the peer has made its window.
    ///
    /// # Safety
    /// From this call on until the peer has waited for the signal, it keeps its window, and nobody
    /// else reads or writes these elements of it.
    pub unsafe fn put<T: Element>(
        &self,
        data: &[T],
        window: &Window<'_, T>,
        peer: usize,
        at: usize,
        signal: usize,
    ) -> Result<()> {
        // SAFETY: passed on from the caller.
        run("put", None, |scope| unsafe { self.put_on(scope, data, window, peer, at, signal) })
    }

    /// Begins [`put`](Self::put). It is complete when the scope ends. Blocks: never.
    ///
    /// # Safety
    /// As for [`put`](Self::put).
    pub unsafe fn put_on<'a, T: Element>(
        &'a self,
        scope: &'a Scope<'a, '_>,
        data: &'a [T],
        window: &'a Window<'_, T>,
        peer: usize,
        at: usize,
        signal: usize,
    ) -> Result<()> {
        let (offset, window) = (put_offset::<T>(at)?, without_provenance_mut(window.handle));
        let (len, dtype, signal) = (data.len(), type_of::<T>(), number(signal));
        let (data, peer, stream) = (data.as_ptr().cast(), number(peer), scope.enter(self)?);
        // SAFETY: the elements are borrowed until the scope ends, which waits for the stream; what
        // is written there is the caller's to promise.
        check(unsafe {
            let comm = self.raw();
            ncclPutSignal(data, len, dtype, peer, window, offset, signal, 0, 0, comm, stream)
        })
    }

    forms! {
        /// Counts up the signal `signal` (0 to 15) of rank `peer`. What was put there before is
        /// there when the signal is seen.
        ('a) &'a self, signal, signal_on[](peer: usize, signal: usize) scope {
            let stream = scope.enter(self)?;
            // SAFETY: any numbers and handles may be passed.
            check(unsafe { ncclSignal(number(peer), number(signal), 0, 0, self.raw(), stream) })
        }
    }

    forms! {
        /// Waits for signals; in a scope, what follows on its stream waits.
        ('a) &'a self, wait_signals, wait_signals_on[](signals: &[Signals]) scope {
            let stream = scope.enter(self)?;
            let mut list = signal_descriptors(signals);
            let (count, list) = (number(list.len()), list.as_mut_ptr());
            // SAFETY: the list has so many descriptors, which are read before the call returns.
            check(unsafe { ncclWaitSignal(count, list, self.raw(), stream) })
        }
    }
}
