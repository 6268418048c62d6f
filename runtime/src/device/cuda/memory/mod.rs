//! Memory of GPUs: allocated, kept for the next user, exported to other processes and mapped.

pub mod alloc;
pub mod closing;
pub mod export;
pub mod pool;
pub mod shared;
