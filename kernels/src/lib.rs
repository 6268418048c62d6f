//! The CUDA kernels, compiled into one fat binary when nvcc is found at build time, and the
//! structures that they share with the host.

pub mod abi;

/// The fat binary; empty in a build without nvcc, which serves the host device only.
pub static FATBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));
