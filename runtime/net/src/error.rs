//! The error of a transport.

use std::fmt::Display;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {cause}")]
pub struct Error {
    /// The call that failed: a system call, or a function of a plugin with the plugin's name.
    pub call: String,
    /// Why it failed.
    pub cause: String,
    /// The advice to the user.
    pub hint: &'static str,
    /// True if the transport itself is at fault, whatever the connection.
    pub local: bool,
}

impl Error {
    /// Returns the error of a call.
    pub fn new(call: impl Display, cause: impl Display, hint: &'static str) -> Self {
        Self { call: call.to_string(), cause: cause.to_string(), hint, local: false }
    }

    /// Returns the error of a call that fails everything that uses the transport here.
    pub fn local(call: impl Display, cause: impl Display, hint: &'static str) -> Self {
        Self { local: true, ..Self::new(call, cause, hint) }
    }
}

/// The result of a function of a transport.
pub type Result<T> = std::result::Result<T, Error>;
