//! Chores of the workspace, as functions that tests call too.

pub mod abi;
pub mod bindings;
pub mod deb;
pub mod environment;
pub mod go_module;
pub mod headers;
pub mod install;
pub mod model;
mod prefix;
pub mod quoted;
pub mod reference;
pub mod speed;
pub mod tidy;
pub mod wheel;
