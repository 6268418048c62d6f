//! Errors of the command.

/// What went wrong, for a person.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file.
    #[error("{path}: {cause}")]
    File {
        /// Which.
        path: String,
        /// Why.
        cause: String,
    },
    /// A call of a library.
    #[error("rank {rank}: {call} returned {code}: {text}")]
    Call {
        /// The rank that called.
        rank: u32,
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// Its explanation.
        text: String,
    },
    /// A library that cannot be used.
    #[error("cannot use {path}: {why}")]
    Library {
        /// Its file.
        path: String,
        /// Why.
        why: String,
    },
    /// Options that contradict each other or the machine.
    #[error("{0}")]
    Options(String),
    /// The runtime.
    #[error(transparent)]
    Runtime(#[from] oxccl_runtime::Error),
}

pub(crate) type Result<T> = std::result::Result<T, Error>;
