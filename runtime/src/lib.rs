//! The runtime of OxCCL: communicators, devices, links. `ARCHITECTURE.md` has the map.
//!
//! Data flows down once: `group` and `comm` decide on the operation, `oxccl_plan` on the algorithm,
//! `device` executes it, `link` moves bytes. Nothing here knows the C interface.

mod barrier;
pub mod bootstrap;
pub mod cancel;
pub mod clock;
pub mod comm;
pub mod config;
pub mod device;
pub mod error;
mod exit;
pub mod fork;
#[doc(hidden)]
#[cfg(feature = "testing")]
pub mod fuzzing;
pub mod group;
pub mod handle;
pub mod link;
pub mod log;
pub mod op;
pub mod os;
mod plugin;
mod proxy;
pub mod rank;
pub mod ras;
pub mod recorder;

pub use error::{Code, Error, Result};

/// The version of NCCL whose interface, and formats of reports, this library has.
pub const NCCL_VERSION: &str = "2.32.3";
