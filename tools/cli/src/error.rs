//! Errors of the command.

use std::io::Write;

/// An error of the command, with a text for people.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file that cannot be used.
    #[error("{path}: {cause}")]
    File {
        /// The path of the file.
        path: String,
        /// The reason.
        cause: String,
    },
    /// A program that cannot be started.
    #[error("{path}: cannot be started: {cause}")]
    Start {
        /// The program, as the user gave it.
        path: String,
        /// The reason, and what to do.
        cause: String,
        /// The exit code of this command.
        code: u8,
    },
    /// A call of a library.
    #[error("rank {rank}: {call} returned {code}: {text}")]
    Call {
        /// The rank that called.
        rank: u32,
        /// The function.
        call: &'static str,
        /// The result code.
        code: i32,
        /// The library's text for the error.
        text: String,
    },
    /// A call of the CUDA driver.
    #[error("{call} returned {code}, a CUresult of cuda.h")]
    Driver {
        /// The function.
        call: &'static str,
        /// The result code.
        code: i32,
    },
    /// A library that cannot be used.
    #[error("cannot use {path}: {why}")]
    Library {
        /// The file of the library.
        path: String,
        /// The reason.
        why: String,
    },
    /// Options that contradict each other or the machine.
    #[error("{0}")]
    Options(String),
    /// An error of the runtime.
    #[error(transparent)]
    Runtime(#[from] oxccl_runtime::Error),
}

impl Error {
    /// Returns the exit code of a command that fails with this error.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Error::Start { code, .. } => *code,
            _ => 1,
        }
    }
}

/// Prints a line for the user, at once, as several processes may write to one terminal; one that is
/// gone is ignored.
pub(crate) fn say(text: &str) {
    let _ = std::io::stderr().write_all(format!("oxccl: {text}\n").as_bytes());
}

/// Writes to the standard output; where that fails, as on a full disk, ends this process with a
/// line that says so.
pub(crate) fn print(text: std::fmt::Arguments<'_>) {
    if let Err(error) = std::io::stdout().write_fmt(text) {
        say(&format!("standard output: {error}"));
        std::process::exit(1);
    }
}

/// Returns a new file for an option's value, of which `-` is the standard output.
pub(crate) fn writer(path: &str) -> Result<Box<dyn Write>> {
    if path == "-" {
        return Ok(Box::new(std::io::stdout()));
    }
    let failed = |e: std::io::Error| Error::File { path: path.to_owned(), cause: e.to_string() };
    Ok(Box::new(std::fs::File::create(path).map_err(failed)?))
}

/// Fails if an option's value is the path of a file that cannot be written to.
pub(crate) fn can_write(path: &str) -> Result<()> {
    let failed = |e: std::io::Error| Error::File { path: path.to_owned(), cause: e.to_string() };
    if path == "-" {
        return Ok(());
    }
    std::fs::OpenOptions::new().append(true).create(true).open(path).map(drop).map_err(failed)
}

pub(crate) type Result<T> = std::result::Result<T, Error>;
