//! Tuner plugins, versions 2 to 6. The structures are frozen.

mod types;

pub use types::*;
