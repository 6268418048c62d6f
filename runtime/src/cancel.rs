//! Cancellation of threads. `pthread_cancel` unwinds the stack out of a system call, which ends the
//! process where it meets Rust's frames. So nobody is cancelled within a call, but after it.

use std::ffi::c_int;
use std::marker::PhantomData;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Keeps the calling thread from being cancelled as long as it lives.
pub struct Uncancelled {
    before: c_int,
    /// It is the thread's.
    _thread: PhantomData<*const ()>,
}

impl Uncancelled {
    /// From here on.
    #[inline]
    pub fn begin() -> Self {
        let mut before = 0;
        // SAFETY: a place for the state; the other state is one that every thread may have.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Self { before, _thread: PhantomData }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a state that the thread had; nobody asks for the one before it.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}
