//! Net plugins, versions 6 to 12. The structures are frozen: what they mean stands with the newest
//! version, and older ones have less.

mod types;
mod v10;
mod v11;
mod v12;
mod v6;
mod v7;
mod v8;
mod v9;

pub use types::*;
pub use v6::*;
pub use v7::*;
pub use v8::*;
pub use v9::*;
pub use v10::*;
pub use v11::*;
pub use v12::*;
