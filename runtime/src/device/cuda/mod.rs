//! The CUDA device: the driver, a rank's seat on a GPU, the order of its operations, and launches.

pub mod driver;
pub mod launch;
pub mod library;
pub mod order;
pub mod reaper;
pub mod seat;

/// Whether this build has kernels: nvcc was there.
pub fn built() -> bool {
    !oxccl_kernels::FATBIN.is_empty()
}
