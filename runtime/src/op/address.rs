//! Addresses of user memory.

/// An address of user memory.
#[derive(Clone, Copy, Debug)]
pub struct Address(pub *mut u8);

// SAFETY: the caller of the operation that carries it vouches for the memory until it is complete.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}
