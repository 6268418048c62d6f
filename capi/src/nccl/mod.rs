//! The declarations of `nccl.h`.

pub mod children;
pub mod coll_config;
pub mod collectives;
pub mod comm;
pub mod config;
pub mod configured;
pub mod encryption;
pub mod group;
pub mod info;
pub mod lifetime;
pub mod memory;
pub mod param;
pub mod redop;
pub mod types;
pub mod window;
