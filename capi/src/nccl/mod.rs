//! What `nccl.h` declares.

pub mod collectives;
pub mod comm;
pub mod group;
pub mod info;
pub mod memory;
pub mod redop;
pub mod types;
