//! Plans: the actions of the ranks of a communicator in a collective, as data.
//!
//! A generator ([`generate`]) is a pure function of the specification and the rank. The verifier
//! ([`verify`]) judges its program, the reference interpreter ([`mod@reference`]) gives the program
//! a meaning, and the simulator ([`simulate`]) gives it a time; [`select`] chooses among the
//! generators, and [`explain`] says why. Nothing in this crate knows a device, a clock, a socket or
//! an environment variable.

#![forbid(unsafe_code)]

pub mod arith;
pub mod carrier;
pub mod cost;
pub mod dtype;
pub mod explain;
pub mod generate;
pub mod ir;
pub mod lines;
mod listed;
pub mod machine;
pub mod nccl;
pub mod packets;
pub mod reference;
pub mod select;
pub mod selection;
pub mod simulate;
pub mod spec;
pub mod verify;
pub mod words;

pub use carrier::Carrier;
pub use dtype::{DataType, ReduceOp};
pub use generate::{Algorithm, Plan};
pub use ir::{Buffer, Destination, From, Geometry, Op, Order, Program, Slice};
pub use spec::{Collective, Spec};
