//! Answers to the question why a job does not move: what all ranks record, put together.

pub mod clocks;
pub mod job;
pub mod nccl;
pub mod service;
pub mod status;
pub mod verdict;
