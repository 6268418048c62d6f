//! Typed errors: what failed, at which argument, rank or peer, what was expected, what to do.

use std::any::Any;
use std::fmt::Display;

/// The result of most functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The result codes of `nccl.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names are those of nccl.h")]
pub enum Code {
    Success = 0,
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    InProgress = 7,
    Timeout = 8,
}

/// Where in an operation an error struck.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Rank that reports; −1 outside a communicator.
    pub rank: i32,
    /// Rank at fault or waited for; −1 when unknown.
    pub peer: i32,
    /// Index of the plan's operation; −1 outside a plan.
    pub step: i32,
    /// Sequence number of the operation on its communicator, counted from 0.
    pub op_seq: u64,
    /// Name of the operation, for example `all_reduce`.
    pub operation: &'static str,
}

/// Everything that can go wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    #[error("{function}: argument {argument} is {got}; expected {expected}")]
    Argument { function: &'static str, argument: &'static str, got: String, expected: String },
    #[error("{given} {why}; expected {expected}")]
    Variable { given: String, why: &'static str, expected: String },
    #[error("{what}; {hint}")]
    Usage { what: String, hint: &'static str },
    #[error("{call} failed: {cause}; {hint}")]
    System { call: String, cause: String, hint: &'static str },
    #[error("{call} failed: {cause}")]
    Cuda { call: &'static str, cause: String },
    #[error(
        "rank {} lost rank {} in {} (operation {}): {why}; destroy or abort this communicator, \
         the survivors can make a new one",
        site.rank, site.peer, site.operation, site.op_seq
    )]
    Remote { site: Site, why: String },
    #[error(
        "rank {} waited {waited_ms} ms for rank {}{} of {} (operation {}), the limit set by \
         oxcclCommSetTimeout or OXCCL_TIMEOUT; look at what that rank is doing",
        site.rank, site.peer, at_step(site.step), site.operation, site.op_seq
    )]
    Deadline { site: Site, waited_ms: u64 },
    #[error(
        "the ranks' calls differ: rank {} calls {own}, rank {} calls {theirs} (collective {} of \
         the communicator); give all ranks the same calls in the same order",
        site.rank, site.peer, site.op_seq
    )]
    Mismatch { site: Site, own: String, theirs: String },
    #[error("the communicator was ended by {by}; its operations are not complete")]
    Aborted { by: &'static str },
    #[error("{text} (reported by rank {})", site.peer)]
    Reported { site: Site, code: Code, text: String },
    #[error("initialisation failed: {why}")]
    Init { why: String },
    #[error("initialisation of rank {rank} of {nranks} failed: {why}")]
    InitTimeout { rank: u32, nranks: u32, why: String },
    #[error("internal error of OxCCL: {what}; please report it")]
    Internal { what: String },
}

impl Code {
    /// The code with this number; an internal error for others.
    pub fn from_number(number: i32) -> Self {
        [
            Code::Success,
            Code::UnhandledCudaError,
            Code::SystemError,
            Code::InternalError,
            Code::InvalidArgument,
            Code::InvalidUsage,
            Code::RemoteError,
            Code::InProgress,
            Code::Timeout,
        ]
        .into_iter()
        .find(|code| *code as i32 == number)
        .unwrap_or(Code::InternalError)
    }
}

/// Only collectives have steps.
fn at_step(step: i32) -> String {
    if step < 0 { String::new() } else { format!(" at step {step}") }
}

impl Error {
    /// A bad argument.
    pub fn argument(
        function: &'static str,
        argument: &'static str,
        got: impl Display,
        expected: impl Display,
    ) -> Self {
        let (got, expected) = (got.to_string(), expected.to_string());
        Error::Argument { function, argument, got, expected }
    }

    /// The same for a function that stands for another one.
    pub fn of(mut self, name: &'static str) -> Self {
        if let Error::Argument { function, .. } = &mut self {
            *function = name;
        }
        self
    }

    /// A failed system call.
    pub fn system(call: impl Display, cause: impl Display, hint: &'static str) -> Self {
        Error::System { call: call.to_string(), cause: cause.to_string(), hint }
    }

    /// A call that is not allowed now.
    pub fn usage(what: impl Display, hint: &'static str) -> Self {
        Error::Usage { what: what.to_string(), hint }
    }

    /// What a caught panic becomes.
    pub fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Error::Internal { what: format!("a panic: {text}") }
    }

    /// The code that C callers get.
    pub fn code(&self) -> Code {
        match self {
            Error::Argument { .. } | Error::Variable { .. } => Code::InvalidArgument,
            Error::Usage { .. } | Error::Mismatch { .. } | Error::Aborted { .. } => {
                Code::InvalidUsage
            }
            Error::Reported { code, .. } => *code,
            Error::Cuda { .. } => Code::UnhandledCudaError,
            Error::System { .. } | Error::Init { .. } | Error::InitTimeout { .. } => {
                Code::SystemError
            }
            Error::Remote { .. } | Error::Deadline { .. } => Code::RemoteError,
            Error::Internal { .. } => Code::InternalError,
        }
    }

    /// Where it struck, for errors of operations.
    pub fn site(&self) -> Option<&Site> {
        match self {
            Error::Remote { site, .. }
            | Error::Deadline { site, .. }
            | Error::Mismatch { site, .. }
            | Error::Reported { site, .. } => Some(site),
            _ => None,
        }
    }
}
