//! The declarations of `nccl_device.h`: the host's part of NCCL's interface for kernels.
//!
//! Programs learn here how ranks are grouped, and that the host device has no device-side
//! communication.

pub mod team;
pub mod types;
pub mod unavailable;
