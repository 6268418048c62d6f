//! Slices that a communicator is told of before they are used.

use crate::call::check;
use crate::comm::Comm;
use crate::element::Element;
use crate::error::Result;
use capi::nccl::window::{ncclCommDeregister, ncclCommRegister};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{null_mut, without_provenance_mut};

/// A registered slice, made by [`Comm::register`] and used as the slice itself. The registration
/// ends when it is dropped.
pub struct Registered<'a, T: Element> {
    comm: &'a Comm,
    data: &'a mut [T],
    handle: usize,
}

impl Comm {
    /// Registers a slice of at least one element with this communicator. Blocks: for the plugin of
    /// a network that reduces.
    ///
    /// Large operations on registered memory may be read by the other ranks of the host without a
    /// copy in between, where the system allows it. A [`Buffer`](crate::Buffer) is used in place
    /// without this. A network that reduces needs no copy of either once it is registered.
    ///
    /// The slice stays borrowed while it is registered, so its memory cannot be freed:
    ///
    /// ```compile_fail,E0505
    /// # extern crate oxccl_rs as oxccl;
    /// # fn f(comm: oxccl::Comm) -> oxccl::Result<()> {
    /// let mut data = vec![1.0; 1000];
    /// let mut registered = comm.register(&mut data)?;
    /// drop(data);
    /// comm.all_reduce_in_place(&mut registered, oxccl::ReduceOp::Sum)
    /// # }
    /// ```
    pub fn register<'a, T: Element>(&'a self, data: &'a mut [T]) -> Result<Registered<'a, T>> {
        let mut handle = null_mut();
        // SAFETY: the slice is borrowed while it is registered; there is a place for the handle.
        check(unsafe {
            let (at, bytes) = (data.as_mut_ptr().cast(), size_of_val(data));
            ncclCommRegister(self.raw(), at, bytes, &mut handle)
        })?;
        Ok(Registered { comm: self, data, handle: handle.addr() })
    }
}

impl<T: Element> Deref for Registered<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.data
    }
}

impl<T: Element> DerefMut for Registered<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.data
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Registered<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.data.fmt(f)
    }
}

impl<T: Element> Drop for Registered<'_, T> {
    fn drop(&mut self) {
        // SAFETY: any handle may be passed.
        unsafe { ncclCommDeregister(self.comm.raw(), without_provenance_mut(self.handle)) };
    }
}
