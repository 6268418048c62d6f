//! The structures that kernels and the host share; `kernels/cuda/abi.h` is generated from them.

mod lines;
mod messages;
mod types;

pub use lines::*;
pub use messages::*;
pub use types::*;
