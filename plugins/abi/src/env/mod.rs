//! Environment plugins.

mod types;

pub use types::*;
