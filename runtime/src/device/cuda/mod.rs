//! The CUDA device: driver, memory, a rank's place on a GPU, and the launches.

pub mod driver;

/// Whether this build has kernels: nvcc was there.
pub fn built() -> bool {
    !oxccl_kernels::FATBIN.is_empty()
}
