//! Errors of all calls.

use std::fmt;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure, one of NCCL's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// CUDA failed.
    Cuda,
    /// The operating system or the network failed.
    System,
    /// The library has a defect.
    Internal,
    /// An argument is not valid.
    InvalidArgument,
    /// The call is not allowed now, or differs from what the other ranks call.
    InvalidUsage,
    /// Another rank failed.
    Remote,
    /// A time limit has passed.
    Timeout,
}

/// The description of a failed call. Its text names the call, the cause and a remedy.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    pub(crate) code: Code,
    pub(crate) rank: Option<usize>,
    pub(crate) peer: Option<usize>,
    pub(crate) text: String,
}

impl Error {
    /// Returns the kind of the failure.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the rank that reports the failure; `None` outside a communicator.
    pub fn rank(&self) -> Option<usize> {
        self.rank
    }

    /// Returns the rank that is at fault or was waited for; `None` if it is not known, as where the
    /// ranks' calls differ.
    pub fn peer(&self) -> Option<usize> {
        self.peer
    }

    pub(crate) fn new(code: Code, text: String) -> Self {
        Self { code, rank: None, peer: None, text }
    }

    /// Returns the error of an argument, in the words of the library.
    pub(crate) fn argument(call: &str, argument: &str, got: &str, expected: &str) -> Self {
        let text = format!("{call}: argument {argument} {got}; expected {expected}");
        Self::new(Code::InvalidArgument, text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The text, as a `main` that returns an error prints it so.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
