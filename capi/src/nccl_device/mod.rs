//! What `nccl_device.h` declares: the host's part of NCCL's interface for kernels.
//!
//! Programs find out here how ranks are grouped, and that there is no device-side communication
//! on the host device.

pub mod team;
pub mod types;
pub mod unavailable;
