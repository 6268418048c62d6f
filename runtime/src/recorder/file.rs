//! The file of a process's recorders: memory without a name in any folder, which others of the same
//! user find among the descriptors of the process. It ends with the process.

use super::ticks::moment;
use super::{Section, section_at as at};
use crate::fork;
use crate::os::memory::{Mapping, sealed_memfd};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The name of the file, as links in `/proc` show it.
pub(super) const NAME: &str = "oxccl-recorder";
/// The first word of the file: the name of the format, with its version.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"oxccl-2\0");
/// Bytes before the first section.
const HEAD_BYTES: usize = 4096;
/// Ranks of a process that others can read at a time.
pub(super) const SECTIONS: usize = 1024;
/// Bytes of the file, which takes memory only where it is used.
pub(super) const BYTES: usize = HEAD_BYTES + SECTIONS * size_of::<Section>();

/// The head of the file.
#[repr(C)]
pub(super) struct Head {
    pub(super) magic: AtomicU64,
    /// The process: a forked child inherits the file, which does not describe it.
    pub(super) pid: AtomicU64,
    /// The moment at which the file was made: in ticks, by the monotonic clock and by the time of
    /// day, in ns.
    pub(super) moment: [AtomicU64; 3],
    /// Sections that have been used so far.
    pub(super) used: AtomicU64,
}

/// Returns where a section begins in the file.
pub(super) const fn section_at(number: usize) -> usize {
    HEAD_BYTES + number * size_of::<Section>()
}

/// Returns the head of a mapped file.
fn head(mapping: &Mapping) -> &Head {
    // SAFETY: the mapping has more bytes, and any values are right for atomic words.
    unsafe { &*mapping.base().cast::<Head>() }
}

struct File {
    /// Open as long as the process lives: others find the file by it.
    _fd: OwnedFd,
    mapping: Mapping,
    free: Mutex<Free>,
}

/// The sections that nobody uses.
#[derive(Default)]
struct Free {
    given_back: Vec<usize>,
    /// Sections so far, and takings of sections so far.
    used: usize,
    taken: u64,
}

impl File {
    fn new() -> Option<Self> {
        let fd = sealed_memfd(NAME, BYTES).ok()?;
        let mapping = Mapping::of(fd.as_fd(), BYTES).ok()?;
        let Head { magic, pid, moment: words, .. } = head(&mapping);
        let (ticks, monotonic, time) = moment();
        for (word, value) in words.iter().zip([ticks, monotonic, time]) {
            word.store(value, Ordering::Relaxed);
        }
        pid.store(u64::from(std::process::id()), Ordering::Relaxed);
        magic.store(MAGIC, Ordering::Release);
        Some(Self { _fd: fd, mapping, free: Mutex::default() })
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the file of this process; `None` where the system refuses it.
fn file() -> Option<&'static File> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    FILE.get_or_init(File::new).as_ref()
}

/// Takes a section for a rank; `None` if there is none.
pub(super) fn take() -> Option<(&'static Section, usize)> {
    if fork::forked() {
        return None;
    }
    let file = file()?;
    let mut free = file.free();
    let Free { given_back, used, taken } = &mut *free;
    let number = given_back.pop().or_else(|| (*used < SECTIONS).then_some(*used))?;
    *used = (*used).max(number + 1);
    *taken += 1;
    let section = at(&file.mapping, number);
    section.start(*taken);
    head(&file.mapping).used.store(*used as u64, Ordering::Release);
    Some((section, number))
}

/// Gives a section back that is zero again.
pub(super) fn give_back(number: usize) {
    if let Some(file) = file() {
        file.free().given_back.push(number);
    }
}
