//! Cancellation of threads. `pthread_cancel` unwinds the stack out of a system call, and the
//! process ends if the unwinding meets Rust's frames. So a thread is not cancelled within a call,
//! but after it.

use std::ffi::c_int;
use std::marker::PhantomData;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// A guard that keeps the calling thread from being cancelled as long as the guard lives.
pub struct Uncancelled {
    before: c_int,
    /// The guard belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Uncancelled {
    /// Disables cancellation from here on.
    #[inline]
    pub fn begin() -> Self {
        let mut before = 0;
        if !cfg!(miri) {
            // SAFETY: the pointer is a place for the old state; the new state is one that every
            // thread may have.
            unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        }
        Self { before, _thread: PhantomData }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        if !cfg!(miri) {
            // SAFETY: the thread had this state before; no place for the old state is passed.
            unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
        }
    }
}
