//! What `nccl.h` declares.

pub mod collectives;
pub mod comm;
pub mod config;
pub mod group;
pub mod info;
pub mod memory;
pub mod types;
