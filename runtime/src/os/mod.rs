//! Services of the operating system that several modules need.

pub mod copy;
pub mod memory;
