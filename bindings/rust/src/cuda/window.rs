//! Memory of GPUs into which other ranks write, and the signals that tell when they have.

use super::{Comm, Group, On, gpu_of, group};
use crate::call::{check, number, on_device};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::operations::type_of;
use crate::window::{Signals, put_offset, signal_descriptors};
use capi::nccl::types::NCCL_WIN_DEFAULT;
use capi::nccl::window::{
    ncclCommWindowDeregister, ncclCommWindowRegister, ncclPutSignal, ncclSignal, ncclWaitSignal,
};
use capi::oxccl::device::{oxcclMemAlloc, oxcclMemFree};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{null_mut, with_exposed_provenance_mut, without_provenance_mut};
use std::sync::Arc;

/// Memory of a GPU into which the other ranks of this host write by [`Comm::put`]. It is used as a
/// slice, which cannot be exchanged for another one.
///
/// Collectives use windows as any slices; all-gathers and all-to-alls between windows can be moved
/// by copy engines, which [`Comm::by_copy_engines`] counts.
///
/// ```no_run
/// # extern crate oxccl_rs as oxccl;
/// # use oxccl::{Signals, cuda};
/// # fn f(comm: &cuda::Comm) -> Result<(), Box<dyn std::error::Error>> {
/// let (rank, size) = (comm.rank(), comm.size());
/// let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
/// let mine = comm.stream().clone_htod(&[rank as u64])?;
/// let window = cuda::Window::<u64>::new(comm, 4)?;
/// // SAFETY: the next rank reads its window only behind the signal, and keeps it until then.
/// unsafe { comm.put(&mine, &window, next, 2, 0)? };
/// comm.wait_signals(&[Signals { from: before, signal: 0, count: 1 }])?;
/// assert_eq!(comm.stream().clone_dtoh(&*window)?[2], before as u64);
/// # Ok(())
/// # }
/// ```
///
/// A window ends before its communicator:
///
/// ```compile_fail,E0505
/// # extern crate oxccl_rs as oxccl;
/// # use oxccl::cuda;
/// # fn f(comm: cuda::Comm) -> oxccl::Result<()> {
/// let window = cuda::Window::<u64>::new(&comm, 4)?;
/// comm.close()?;
/// drop(window);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Window<'comm, T: Element> {
    comm: &'comm Comm,
    /// Memory of the library, which `cudarc` must not free.
    memory: ManuallyDrop<CudaSlice<T>>,
    handle: usize,
}

impl<'comm, T: Element> Window<'comm, T> {
    /// Makes a window of `len` elements, one at least, all zero. All ranks make their windows in
    /// the same order; each then names the windows of all ranks by its own.
    ///
    /// Blocks until the GPU has zeroed the memory. To drop the window blocks until the GPU has done
    /// everything, as `cudaFree` does.
    pub fn new(comm: &'comm Comm, len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::argument("Window::new", "len", "is 0", "at least 1"));
        }
        // The library refuses a number of bytes that does not fit the address space.
        let bytes = len.saturating_mul(size_of::<T>());
        let address = on_device(gpu_of(&comm.stream), || {
            let mut place = null_mut();
            // SAFETY: a place for the result.
            check(unsafe { oxcclMemAlloc(&mut place, bytes) })?;
            Ok(place.expose_provenance())
        })?;
        // SAFETY: as many elements, which were zeroed, and are this window's.
        let memory = unsafe { comm.stream.upgrade_device_ptr(address as CUdeviceptr, len) };
        let mut window = Self { comm, memory: ManuallyDrop::new(memory), handle: 0 };
        let mut handle = null_mut();
        // SAFETY: the memory lives as long as the window, and there is a place for the handle.
        check(unsafe {
            let at = with_exposed_provenance_mut(address);
            ncclCommWindowRegister(comm.comm.raw(), at, bytes, &mut handle, NCCL_WIN_DEFAULT)
        })?;
        window.handle = handle.addr();
        Ok(window)
    }
}

impl<T: Element> Deref for Window<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.memory
    }
}

impl<T: Element> DeviceSlice<T> for Window<'_, T> {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.memory.stream()
    }
}

impl<T: Element> DevicePtr<T> for Window<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.memory.device_ptr(stream)
    }
}

impl<T: Element> DevicePtrMut<T> for Window<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.memory.device_ptr_mut(stream)
    }
}

impl<T: Element> Drop for Window<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the slice is not used again.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        // The stream now waits for the last uses on other streams.
        let address = memory.leak() as usize;
        // After an error of CUDA nothing uses the memory any more, and the next call tells it.
        let _ = self.comm.stream.synchronize();
        // SAFETY: any handle may be passed, and nothing uses the memory, which is this window's.
        unsafe {
            ncclCommWindowDeregister(self.comm.comm.raw(), without_provenance_mut(self.handle));
            oxcclMemFree(with_exposed_provenance_mut(address));
        }
    }
}

/// Operations of one rank on another one of its host.
impl Comm {
    /// Queues a write of elements into the window of rank `peer`, from its element `at` on, which
    /// then counts up the signal `signal` (0 to 15) of that rank. `window` is this rank's own.
    /// Blocks: never.
    ///
    /// # Safety
    /// From this call on until the peer has waited for the signal, it keeps its window, and nobody
    /// else reads or writes these elements of it. What the peer puts on its communicator's stream
    /// behind [`wait_signals`](Self::wait_signals) has waited.
    pub unsafe fn put<T: Element>(
        &self,
        data: &impl DevicePtr<T>,
        window: &Window<'_, T>,
        peer: usize,
        at: usize,
        signal: usize,
    ) -> Result<()> {
        // SAFETY: passed on from the caller.
        group(|group| unsafe { self.put_on(group, data, window, peer, at, signal) })
    }

    /// Puts [`put`](Self::put) into a group, at whose end it is launched.
    ///
    /// # Safety
    /// As for [`put`](Self::put).
    pub unsafe fn put_on<'g, T: Element>(
        &'g self,
        group: &Group<'g>,
        data: &'g impl DevicePtr<T>,
        window: &'g Window<'_, T>,
        peer: usize,
        at: usize,
        signal: usize,
    ) -> Result<()> {
        let (offset, window) = (put_offset::<T>(at)?, without_provenance_mut(window.handle));
        let on = On { group, stream: group.enter(self)? };
        let (len, data, comm, stream) = (data.len(), on.input(data), self.comm.raw(), self.raw());
        let (dtype, peer, signal) = (type_of::<T>(), number(peer), number(signal));
        // SAFETY: the slice is on a GPU and has so many elements. What uses it later is queued
        // behind this, by the group's guards; what is written there is the caller's to promise.
        check(unsafe {
            ncclPutSignal(data, len, dtype, peer, window, offset, signal, 0, 0, comm, stream)
        })
    }

    forms! {
        /// Counts up the signal `signal` (0 to 15) of rank `peer`. What was put there before is
        /// there when the signal is seen.
        ('g) &'g self, signal, signal_on[](peer: usize, signal: usize) group {
            group.enter(self)?;
            let (comm, stream) = (self.comm.raw(), self.raw());
            // SAFETY: any numbers and handles may be passed.
            check(unsafe { ncclSignal(number(peer), number(signal), 0, 0, comm, stream) })
        }
    }

    forms! {
        /// Lets what follows on the communicator's stream wait for signals.
        ('g) &'g self, wait_signals, wait_signals_on[](signals: &[Signals]) group {
            group.enter(self)?;
            let mut list = signal_descriptors(signals);
            let (count, list) = (number(list.len()), list.as_mut_ptr());
            // SAFETY: the list has so many descriptors, which are read before the call returns.
            check(unsafe { ncclWaitSignal(count, list, self.comm.raw(), self.raw()) })
        }
    }
}
