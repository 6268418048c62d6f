//! The file with the id by which the ranks of a job meet, and with it the secret of the job.

use crate::error::Result;
use oxccl_runtime::Error;
use oxccl_runtime::bootstrap::{UniqueId, launch};
use std::fs::{DirEntry, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The advice where the file cannot be written.
const ELSEWHERE: &str = "set TMPDIR to a folder in which this user may write, with room";

/// The file; dropping this removes it.
pub(super) struct SecretFile {
    path: PathBuf,
    /// The lock by which other launchers see that this process runs.
    _locked: File,
}

impl SecretFile {
    /// Writes the file. Removes those of launchers that were killed.
    pub(super) fn new(id: &UniqueId) -> Result<Self> {
        let (folder, prefix) = (std::env::temp_dir(), prefix());
        remove_left(&folder, &prefix);
        let path = folder.join(format!("{prefix}{}-{:x}", std::process::id(), id.comm));
        let written = launch::write_private_file(&path, launch::hex(&id.encode()).as_bytes());
        let _locked = written.map_err(|error| match error {
            Error::System { call, cause, .. } => Error::System { call, cause, hint: ELSEWHERE },
            error => error,
        })?;
        Ok(Self { path, _locked })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the beginning of the names of all files of this host, which may share the folder with
/// others. The pid of the launcher and the number of the communicator follow.
fn prefix() -> String {
    let host = rustix::system::uname();
    format!("oxccl-run-{}-", host.nodename().to_string_lossy().replace('/', "_"))
}

/// Removes the files of this user's launchers that ended before they could do so themselves.
fn remove_left(folder: &Path, prefix: &str) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_named(entry, prefix) && is_left(entry)) {
        // Another launcher may have removed the file meanwhile.
        let _ = std::fs::remove_file(entry.path());
    }
}

/// Returns whether a file has the name of a launcher's.
fn is_named(entry: &DirEntry, prefix: &str) -> bool {
    let name = entry.file_name();
    let numbers = name.to_str().and_then(|name| name.strip_prefix(prefix)?.split_once('-'));
    numbers.is_some_and(|(pid, comm)| {
        pid.parse::<u32>().is_ok() && u64::from_str_radix(comm, 16).is_ok()
    })
}

/// Returns whether nobody holds the lock of a file of this user. A lock that cannot be asked for
/// counts as held.
fn is_left(entry: &DirEntry) -> bool {
    // What is no file, or a link, is not followed.
    let is_own = entry
        .metadata()
        .is_ok_and(|of| of.is_file() && of.uid() == rustix::process::geteuid().as_raw());
    is_own && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
}
