//! The reach of ranks into each other's memory: what each offers, what of it is mapped, and where
//! kernels find it.

pub mod exchange;
pub mod mapper;
pub mod offer;
mod places;
pub mod registry;
