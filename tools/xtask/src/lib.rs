//! Chores of the workspace, as functions that tests call too.

pub mod abi;
pub mod environment;
pub mod headers;
pub mod tidy;
