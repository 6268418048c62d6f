//! The safe interface of OxCCL: collectives between processes, threads and hosts on slices in host
//! memory.
//!
//! A program depends on this package under the name `oxccl`:
//!
//! ```toml
//! [dependencies]
//! oxccl = { package = "oxccl-rs", path = "…/bindings/rust" }
//! ```
//!
//! A communicator is made of the processes that a launcher started ([`Comm::from_env`]), or of
//! ranks that share an [`Id`]. Here they are threads of one process:
//!
//! ```
//! # extern crate oxccl_rs as oxccl;
//! use oxccl::{Comm, Id, ReduceOp};
//!
//! fn main() -> oxccl::Result<()> {
//!     let id = Id::new()?;
//!     let rank = |rank: usize| -> oxccl::Result<f32> {
//!         let comm = Comm::from_rank(rank, 4, id)?;
//!         let (mine, mut sum) = ([rank as f32], [0.0]);
//!         comm.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;
//!         Ok(sum[0])
//!     };
//!     std::thread::scope(|threads| {
//!         let ranks: Vec<_> = (0..4).map(|r| threads.spawn(move || rank(r))).collect();
//!         for rank in ranks {
//!             assert_eq!(rank.join().expect("no panic")?, 6.0);
//!         }
//!         Ok(())
//!     })
//! }
//! ```
//!
//! # Three forms of each operation
//!
//! - [`Comm::all_reduce`] and the like wait until the operation is complete.
//! - [`Comm::all_reduce_on`] and the like begin it in the scope of a [`Stream`], which waits for it
//!   at its end. Until then the program goes on, and cannot touch the buffers.
//! - In a [`group()`] the same calls are launched together: ranks exchange messages, and one thread
//!   makes the calls of several ranks.
//!
//! Lengths are checked before anything is begun, and every failure is an [`Error`]. Memory from
//! [`Buffer`] is used in place by the other ranks of the host; any other slice works, too.
//!
//! # Safety
//!
//! No function here is `unsafe`. A scope waits before it returns, also after errors and panics, and
//! has no guard that could be forgotten. Once an operation has ended, with an error or not, no
//! other rank touches its buffers. One case remains that this process cannot prevent: the *process*
//! of another rank that is stopped (`SIGSTOP`) in the midst of writing into a [`Buffer`] goes on
//! writing when it continues; the log, and the error of [`Comm::abort`], name that rank.
//!
//! A forked child cannot use what its parent made: calls fail there.
//!
//! Memory of GPUs, windows and registered buffers have no safe form. [`ffi`] has the functions of C
//! for them.

#![deny(missing_docs, unsafe_code)]

#[expect(unsafe_code, reason = "memory of the library becomes slices")]
mod buffer;
#[expect(unsafe_code, reason = "it asks C for errors and devices")]
mod call;
#[expect(unsafe_code, reason = "it makes, asks and ends communicators")]
mod comm;
mod element;
mod error;
#[expect(unsafe_code, reason = "it captures and launches by functions of C")]
mod graph;
#[expect(unsafe_code, reason = "it lends buffers to C, for as long as a scope")]
mod operations;
#[expect(unsafe_code, reason = "it lends options to C, for as long as a call")]
mod options;
#[expect(unsafe_code, reason = "it waits for C to be done with what was lent")]
mod scope;

pub use buffer::Buffer;
pub use capi as ffi;
pub use comm::{Comm, Id, Shrink, set_tag};
pub use element::{Element, ReduceOp};
pub use error::{Code, Error, Result};
pub use graph::Graph;
pub use operations::Parts;
pub use options::{CallOptions, CtaPolicy, With, set_encryption};
pub use scope::{Scope, Stream, group};
