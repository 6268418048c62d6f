//! Chores of the workspace, as functions that tests call too.

pub mod abi;
pub mod headers;
pub mod tidy;
