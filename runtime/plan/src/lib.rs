//! Plans: what the ranks of a communicator do to carry out a collective, as data.
//!
//! A generator ([`generate`]) is a pure function of the specification and the rank. Its program is
//! judged by the verifier ([`verify`]), given a meaning by the reference interpreter
//! ([`reference`]) and a time by the simulator ([`simulate`]); [`select`] chooses among the
//! generators. Nothing here knows a device, a clock, a socket or an environment variable.

#![forbid(unsafe_code)]

pub mod arith;
pub mod carrier;
pub mod cost;
pub mod dtype;
pub mod generate;
pub mod ir;
pub mod machine;
pub mod packets;
pub mod reference;
pub mod select;
pub mod simulate;
pub mod spec;
pub mod verify;

pub use carrier::Carrier;
pub use dtype::{DataType, ReduceOp};
pub use generate::{Algorithm, Plan};
pub use ir::{Buffer, Destination, From, Geometry, Op, Order, Program, Slice};
pub use spec::{Collective, Spec};
