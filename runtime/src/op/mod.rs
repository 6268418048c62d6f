//! Operations of a communicator, as their callers describe them. Nothing here knows a device, and
//! nothing here executes an operation.

mod address;
mod batch;
mod collective;
pub mod descriptor;
pub mod follow;
mod one_sided;
mod operation;
mod options;
mod transfer;
pub mod vcollective;

pub use address::Address;
pub use batch::Batch;
pub use collective::{Bound, Call, Programs, Scale};
pub(crate) use one_sided::beyond;
pub use one_sided::{Awaiting, OneSided, Put};
pub use operation::Operation;
pub use options::{BlockPolicy, CallOptions, EFFICIENT_BLOCKS};
pub use transfer::{Transfer, Transfers};
