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
//!   at its end. Until then the program goes on, and cannot touch the buffers. An [`Event`] orders
//!   what is on several streams.
//! - In a [`group()`] the same calls are launched together: ranks exchange messages, and one thread
//!   makes the calls of several ranks.
//!
//! Lengths are checked before anything is begun, and every failure is an [`Error`]. Memory from
//! [`Buffer`] is used in place by the other ranks of the host; any other slice works, too.
//!
//! # Safety
//!
//! No collective is `unsafe`. A scope waits before it returns, also after errors and panics, and
//! has no guard that could be forgotten. Once an operation has ended, with an error or not, no
//! other rank touches its buffers. One case remains that this process cannot prevent: the *process*
//! of another rank that is stopped (`SIGSTOP`) in the midst of writing into a [`Buffer`] goes on
//! writing when it continues; the log, and the error of [`Comm::abort`], name that rank.
//!
//! A forked child cannot use what its parent made: calls fail there.
//!
//! One operation has no safe form: [`Comm::put`], which writes into the memory of another rank. Its
//! caller promises that nobody uses what it writes before its signal is seen. One option takes an
//! event of C, [`CallOptions::launch_completion_event`]; [`With::recording`] takes an [`Event`].
//! [`ffi`] has the functions of C.
//!
//! With the feature `cudarc` the module `cuda` has communicators on GPUs, for slices and streams of
//! that crate.

#![deny(missing_docs, unsafe_code)]

#[expect(unsafe_code, reason = "memory of the library becomes slices")]
mod buffer;
#[expect(unsafe_code, reason = "it asks C for errors and devices")]
mod call;
#[expect(unsafe_code, reason = "it makes, asks and ends communicators")]
mod comm;
#[cfg(feature = "cudarc")]
#[expect(unsafe_code, reason = "it passes addresses of GPUs to C, and their uses to cudarc")]
pub mod cuda;
mod element;
mod error;
#[expect(unsafe_code, reason = "it makes and asks events, and puts them on streams of C")]
mod event;
#[expect(unsafe_code, reason = "it captures and launches by functions of C")]
mod graph;
#[expect(unsafe_code, reason = "it lends buffers to C, for as long as a scope")]
mod operations;
#[expect(unsafe_code, reason = "it lends options to C, for as long as a call")]
mod options;
#[expect(unsafe_code, reason = "it makes and ends operations of users")]
mod reduction;
#[expect(unsafe_code, reason = "it tells C of a slice for as long as it borrows it")]
mod registered;
#[expect(unsafe_code, reason = "it waits for C to be done with what was lent")]
mod scope;
#[expect(unsafe_code, reason = "other ranks write into its memory, for which their callers answer")]
mod window;

pub use buffer::Buffer;
pub use capi as ffi;
pub use comm::{Comm, Id, Shrink, set_tag};
pub use element::{Element, F8E4M3, F8E5M2, ReduceOp};
pub use error::{Code, Error, Result};
pub use event::Event;
pub use graph::Graph;
pub use operations::Parts;
pub use options::{CallOptions, CtaPolicy, With, set_encryption};
pub use reduction::{MultipliedSum, Reduction};
pub use registered::Registered;
pub use scope::{Scope, Stream, group};
pub use window::{Signals, Window};
