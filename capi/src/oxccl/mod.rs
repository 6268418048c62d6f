//! The declarations of `oxccl.h` beyond `nccl.h`, which portable programs need on every device.

pub mod device;
pub mod event;
pub mod graph;
pub mod info;
pub mod launch;
pub mod stream;
pub mod types;
pub mod vcollectives;
