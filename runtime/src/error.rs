//! Typed errors: the failure, the argument, rank or peer concerned, the expectation, and the
//! remedy.

use std::any::Any;
use std::fmt::Display;

/// The advice where only a part of the ranks encrypts, or with other keys.
pub(crate) const ENCRYPT_ALIKE: &str = "call ncclSetEncryption alike on all ranks before they make \
     communicators, and give their key to `oxccl run` by --key FILE";

/// The result of most functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The result of functions that every small call goes through. It fits into registers, where one
/// with the [`Error`] itself is written to memory by parts and read again as a whole, for which the
/// processor waits.
pub type Quick<T> = Result<T, Box<Error>>;

impl From<Box<Error>> for Error {
    #[cold]
    fn from(error: Box<Error>) -> Self {
        *error
    }
}

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

/// The place in an operation where an error occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The rank that reports; −1 outside a communicator.
    pub rank: i32,
    /// The rank at fault or waited for; −1 if unknown.
    pub peer: i32,
    /// Index of the plan's operation; −1 outside a plan.
    pub step: i32,
    /// Sequence number of the operation on its communicator, counted from 0.
    pub op_seq: u64,
    /// Name of the operation, for example `all_reduce`; empty if there is none or it is unknown.
    pub operation: &'static str,
}

impl Site {
    /// Returns the part of a text that names the operation; empty if the operation is unknown.
    fn within(&self) -> String {
        let Site { step, op_seq, operation, .. } = self;
        if operation.is_empty() {
            String::new()
        } else if *step < 0 {
            // Only collectives have steps.
            format!(" in {operation} (operation {op_seq})")
        } else {
            format!(" at step {step} of {operation} (operation {op_seq})")
        }
    }

    /// Returns the part of a text that names the awaited rank; a rank that waits for a signal of
    /// its own waits for itself.
    fn awaited(&self) -> String {
        match self.peer {
            -1 => String::new(),
            peer if peer == self.rank => " for itself".to_owned(),
            peer => format!(" for rank {peer}"),
        }
    }
}

/// The remedy for the loss of a rank.
const LOST: &str = "destroy or abort this communicator, the survivors can make a new one";

/// All errors of the library.
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
    /// A failure of this rank itself in the middle of its connections: no peer is to blame.
    #[error("{call}: {cause}; {hint}")]
    Local { call: String, cause: String, hint: &'static str },
    #[error("{call} failed: {cause}")]
    Cuda { call: &'static str, cause: String },
    #[error(
        "rank {} lost rank {}{}: {why}; {}",
        site.rank, site.peer, site.within(), LOST
    )]
    Remote { site: Site, why: String },
    #[error(
        "rank {} waited {waited_ms} ms{}{}{}, the limit set by oxcclCommSetTimeout, OXCCL_TIMEOUT \
         or the call; {}",
        site.rank, site.awaited(), through(over), site.within(),
        if found.is_empty() { "look at what that rank is doing" } else { found }
    )]
    Deadline {
        site: Site,
        waited_ms: u64,
        /// The network between the two ranks, with its plugin; empty on one host.
        over: String,
        /// The cause of the standstill, as the processes of this host record it; empty if unknown.
        found: String,
    },
    #[error(
        "the ranks' calls differ: rank {} calls {own}, rank {} calls {theirs}{}",
        site.rank, site.peer, differ(site, *messages)
    )]
    Mismatch {
        site: Site,
        own: String,
        theirs: String,
        /// True if they are the two ends of a message.
        messages: bool,
    },
    #[error(
        "ranks {} and {} both send to each other before they receive what has come (send/recv, \
         operation {}); {ONE_GROUP}",
        site.rank.min(site.peer), site.rank.max(site.peer), site.op_seq
    )]
    BothSend { site: Site },
    #[error("the communicator was ended by {by}; its operations are not complete")]
    Aborted { by: &'static str },
    #[error(
        "rank {} has sent to rank {} what that rank did not receive {until}; give every send a \
         receive of the same size and type",
        site.rank, site.peer
    )]
    Untaken { site: Site, until: String },
    /// The failure record of a peer, whose text is passed on unchanged. `code` gives the kind:
    /// `InvalidUsage` is the same mistake on all sides, which `peer` reports; `Timeout` means that
    /// a rank gave up waiting for `peer`; `RemoteError` means that `peer` is lost or, if `lost` is
    /// not set, has ended its communicator. The rank `via` passed it on, or is the reporter.
    #[error("{}", reported(site, *code, text))]
    Reported { site: Site, code: Code, reporter: u32, via: u32, lost: bool, text: String },
    #[error("initialisation failed: {why}")]
    Init { why: String },
    #[error("initialisation of rank {rank} of {nranks} failed: {why}")]
    InitTimeout { rank: u32, nranks: u32, why: String },
    #[error("initialisation failed: rank {} {why}; look at that rank's own output", site.peer)]
    InitPeer { site: Site, why: String, died: bool },
    #[error(
        "{at} does not know the secret of this rank; give all ranks the same unique id, or \
         OXCCL_SECRET_FILE with the same contents, and no two jobs the same address"
    )]
    Secret { at: String },
    #[error("{at} {why}; {ENCRYPT_ALIKE}")]
    Encryption { at: String, why: &'static str },
    #[error("internal error of OxCCL: {what}; please report it")]
    Internal { what: String },
}

impl Code {
    /// Returns the code with this number; an internal error for other numbers.
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

/// Returns the part of a text that names the network between two ranks; empty if there is none.
fn through(network: &str) -> String {
    if network.is_empty() { String::new() } else { format!(" over {network}") }
}

/// The remedy for a rank that was awaited for too long, where it is not known what it does.
const LOOK: &str = "; look at what the awaited rank is doing";

/// Returns the text of [`Error::Reported`].
fn reported(site: &Site, code: Code, text: &str) -> String {
    let Site { rank, peer, .. } = site;
    match code {
        Code::InvalidUsage => format!("{text} (reported by rank {peer})"),
        Code::Timeout if rank == peer => {
            let text = text.strip_suffix(LOOK).unwrap_or(text);
            format!("this rank, {rank}, was awaited: {text}; come in time, or raise that limit")
        }
        Code::Timeout => text.to_owned(),
        _ => format!("rank {rank} lost rank {peer}{}: {text}; {LOST}", site.within()),
    }
}

impl From<oxccl_net::Error> for Error {
    fn from(error: oxccl_net::Error) -> Self {
        if error.local {
            let oxccl_net::Error { call, cause, hint, .. } = error;
            return Error::Local { call, cause, hint };
        }
        Error::system(error.call, error.cause, error.hint)
    }
}

/// The advice for ranks whose sends and receives wait for each other.
pub(crate) const ONE_GROUP: &str = "put what each rank sends and receives into one call or \
     group (ncclGroupStart, ncclGroupEnd; SendRecv in Go, send_recv in Python, Sendrecv! in Julia; \
     group in C++ and Rust)";

/// Returns where calls differ, and what to do.
fn differ(site: &Site, messages: bool) -> String {
    match messages {
        true => "; give every send a receive of the same size and type".to_owned(),
        false => format!(
            " (collective {} of the communicator); give all ranks the same calls in the same order",
            site.op_seq
        ),
    }
}

impl Error {
    /// Returns the error of a bad argument.
    pub fn argument(
        function: &'static str,
        argument: &'static str,
        got: impl Display,
        expected: impl Display,
    ) -> Self {
        let (got, expected) = (got.to_string(), expected.to_string());
        Error::Argument { function, argument, got, expected }
    }

    /// Renames the function of an argument error, for a function that stands for another one.
    pub fn of(mut self, name: &'static str) -> Self {
        if let Error::Argument { function, .. } = &mut self {
            *function = name;
        }
        self
    }

    /// Returns the error of a failed system call.
    pub fn system(call: impl Display, cause: impl Display, hint: &'static str) -> Self {
        Error::System { call: call.to_string(), cause: cause.to_string(), hint }
    }

    /// Returns the error of a call that is not allowed now.
    pub fn usage(what: impl Display, hint: &'static str) -> Self {
        Error::Usage { what: what.to_string(), hint }
    }

    /// Returns the error of an initialisation that failed because of one rank.
    pub fn init_peer(peer: u32, why: impl Display) -> Self {
        let site = Site { rank: -1, peer: peer as i32, step: -1, ..Site::default() };
        Error::InitPeer { site, why: why.to_string(), died: false }
    }

    /// Returns the error of an initialisation that failed because that rank died or is out of
    /// reach.
    pub fn init_death(peer: u32, why: impl Display) -> Self {
        match Self::init_peer(peer, why) {
            Error::InitPeer { site, why, .. } => Error::InitPeer { site, why, died: true },
            other => other,
        }
    }

    /// Returns the error for a caught panic.
    pub fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Error::Internal { what: format!("a panic: {text}") }
    }

    /// Returns the code that C callers get.
    pub fn code(&self) -> Code {
        match self {
            Error::Argument { .. } | Error::Variable { .. } => Code::InvalidArgument,
            Error::Usage { .. }
            | Error::Mismatch { .. }
            | Error::BothSend { .. }
            | Error::Aborted { .. }
            | Error::Secret { .. }
            | Error::Encryption { .. } => Code::InvalidUsage,
            // An exceeded limit is ncclRemoteError on all ranks.
            Error::Reported { code: Code::InvalidUsage, .. } => Code::InvalidUsage,
            Error::Reported { .. } | Error::Untaken { .. } => Code::RemoteError,
            Error::Cuda { .. } => Code::UnhandledCudaError,
            Error::System { .. }
            | Error::Local { .. }
            | Error::Init { .. }
            | Error::InitTimeout { .. } => Code::SystemError,
            Error::Remote { .. } | Error::Deadline { .. } | Error::InitPeer { .. } => {
                Code::RemoteError
            }
            Error::Internal { .. } => Code::InternalError,
        }
    }

    /// Returns the place where the error occurred, for errors of operations.
    pub fn site(&self) -> Option<&Site> {
        match self {
            Error::Remote { site, .. }
            | Error::Deadline { site, .. }
            | Error::Mismatch { site, .. }
            | Error::BothSend { site }
            | Error::InitPeer { site, .. }
            | Error::Untaken { site, .. }
            | Error::Reported { site, .. } => Some(site),
            _ => None,
        }
    }

    /// Returns the text that the peers of a rank that fails with this error are told: only the
    /// cause, with ranks by their numbers. Each peer adds the consequences at its side.
    pub fn cause(&self, rank: u32) -> String {
        match self {
            Error::Remote { why, .. } => format!("{why} (reported by rank {rank})"),
            Error::Deadline { site, waited_ms, over, found } => format!(
                "rank {rank} gave up waiting{}{} after {waited_ms} ms{}{}",
                site.awaited(),
                through(over),
                site.within(),
                if found.is_empty() { LOOK.to_owned() } else { format!(": {found}") }
            ),
            Error::Aborted { by } => format!("it was ended by {by}"),
            Error::Reported { text, .. } => text.clone(),
            // The same mistake on all sides.
            error if error.code() == Code::InvalidUsage => error.to_string(),
            Error::System { call, cause, .. } => format!("its {call} failed: {cause}"),
            Error::Local { call, cause, .. } => format!("{call}: {cause}"),
            error => format!("it failed: {error}"),
        }
    }
}
