//! The C interface: exports only. The runtime makes the decisions; this crate checks for null,
//! catches panics, and converts error codes and handles. `nccl/` becomes `nccl.h`, `nccl_device/`
//! becomes `nccl_device.h`, `oxccl/` becomes `oxccl.h`.

#![allow(non_camel_case_types, reason = "the types carry their C names")]
#![allow(non_snake_case, reason = "the functions carry their C names")]
#![allow(non_upper_case_globals, reason = "the constants carry their C names")]

mod boundary;
mod convert;
pub mod internal;
pub mod nccl;
pub mod nccl_device;
pub mod objects;
pub mod oxccl;
