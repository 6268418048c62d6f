//! Profiler plugins, versions 1 to 7. The structures are frozen.

mod descriptors;
mod states;
mod types;

pub use descriptors::*;
pub use states::*;
pub use types::*;
