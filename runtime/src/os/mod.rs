//! What several parts need of the operating system.

pub mod memory;
