//! The access of ranks to each other's memory: what each rank offers, what the peers have mapped,
//! and where kernels find it.

mod chunks;
pub mod exchange;
pub mod mapper;
pub mod offer;
mod places;
pub mod registry;
