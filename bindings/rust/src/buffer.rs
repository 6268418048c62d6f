//! Memory that peers use in place.

use crate::call::{HOST, check, on_device};
use crate::element::Element;
use crate::error::{Code, Error, Result};
use capi::oxccl::device::{oxcclMemAlloc, oxcclMemFree};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use std::slice;

/// Elements in memory that the other ranks of this host map, so that collectives on it need no
/// copies. It is used as a slice, and any slice of it has this property.
///
/// ```
/// # extern crate oxccl_rs as oxccl;
/// # fn main() -> oxccl::Result<()> {
/// let mut buffer = oxccl::Buffer::<f32>::new(1000)?;
/// buffer[0] = 1.0;
/// assert_eq!(buffer.iter().sum::<f32>(), 1.0);
/// # Ok(())
/// # }
/// ```
pub struct Buffer<T: Element> {
    data: NonNull<T>,
    len: usize,
    elements: PhantomData<T>,
}

// SAFETY: a buffer owns its elements as a `Vec` does, and any thread may free the memory.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: a shared buffer lends its elements to be read only.
unsafe impl<T: Element> Sync for Buffer<T> {}

impl<T: Element> Buffer<T> {
    /// Allocates a buffer of `len` elements, all zero. Fails with [`System`](crate::Code::System)
    /// or [`InvalidArgument`](crate::Code::InvalidArgument) if there is not as much memory.
    /// Blocks: never.
    pub fn new(len: usize) -> Result<Self> {
        let mut data = NonNull::dangling();
        if len > 0 {
            // The library refuses a number of bytes that does not fit the address space.
            let bytes = len.saturating_mul(size_of::<T>());
            let address = on_device(HOST, || {
                let mut place = null_mut();
                // SAFETY: a place for the result.
                check(unsafe { oxcclMemAlloc(&mut place, bytes) })?;
                Ok(place.expose_provenance())
            })?;
            let none = || Error::new(Code::Internal, "there is no memory at null".to_owned());
            data = NonNull::new(with_exposed_provenance_mut(address)).ok_or_else(none)?;
        }
        Ok(Self { data, len, elements: PhantomData })
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements, which are aligned to 64 KiB, were zeroed, and are this buffer's.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the buffer is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the memory is this buffer's own, and operations borrow it until they end.
            unsafe { oxcclMemFree(self.data.as_ptr().cast()) };
        }
    }
}
