//! The file of a process's recorders: memory without a name in any folder, which others of the same
//! user find among the descriptors of the process. It ends with the process.

use super::text::Text;
use super::ticks::{Scale, counts, moment};
use super::{Section, section_at as at};
use crate::fork;
use crate::os::memory::{Mapping, sealed_memfd};
use rustix::fd::{AsFd, OwnedFd};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The name of the file, as links in `/proc` show it.
pub(super) const NAME: &str = "oxccl-recorder";
/// The first word of the file: the name of the format, with its version.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"oxccl-8\0");
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
    /// 1 if ticks are those of the processor's counter, 0 if they are ns of the monotonic clock.
    pub(super) counter: AtomicU64,
    /// Sections that have been used so far.
    pub(super) used: AtomicU64,
    /// The address of the host.
    pub(super) address: Text<6>,
    /// The address and port at which the RAS service of the process listens; empty if it does not.
    pub(super) service: Text<8>,
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
        let Head { magic, pid, moment: words, counter, .. } = head(&mapping);
        let (ticks, monotonic, time) = moment(counts());
        counter.store(counts().into(), Ordering::Relaxed);
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

/// Records the address by which other hosts reach this one. One that only this host reaches is
/// replaced.
pub(super) fn set_address(address: IpAddr) {
    if fork::forked() {
        return;
    }
    let Some(file) = file() else { return };
    // One after the other: of two threads, none may replace the better address.
    let _free = file.free();
    let own = &head(&file.mapping).address;
    record(own, address);
}

/// Records the address at which the RAS service of this process listens.
pub(super) fn set_service(address: SocketAddr) {
    if !fork::forked()
        && let Some(file) = file()
    {
        head(&file.mapping).service.write(&address.to_string());
    }
}

fn record(own: &Text<6>, address: IpAddr) {
    if own.read().is_empty() || !address.is_loopback() {
        own.write(&address.to_string());
    }
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

/// Returns how ticks of this process become times of the monotonic clock; `None` without a file.
pub(super) fn monotonic() -> Option<Scale> {
    let head = head(&file()?.mapping);
    let word = |at: usize| head.moment[at].load(Ordering::Relaxed);
    let (ticks, monotonic, _) = moment(counts());
    Some(Scale { first: (word(0), word(1)), last: (ticks, monotonic) })
}

/// Gives a section back that is zero again.
pub(super) fn give_back(number: usize) {
    if let Some(file) = file() {
        file.free().given_back.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::process;
    use super::*;
    use std::path::Path;

    #[test]
    fn a_clock_that_was_set_since_the_process_began_is_told() {
        const SECOND: u64 = 1_000_000_000;
        let time = &head(&file().expect("a file").mapping).moment[2];
        let set_ns =
            || process(Path::new("/proc"), std::process::id()).expect("itself").clock_set_ns;
        let off_by = |ns: i64| (set_ns() - ns).unsigned_abs();
        assert!(off_by(0) < SECOND);
        // As if the clock had been behind, or ahead, at the beginning.
        time.fetch_sub(3600 * SECOND, Ordering::Relaxed);
        assert!(off_by(3600 * SECOND as i64) < SECOND);
        time.fetch_add(7200 * SECOND, Ordering::Relaxed);
        assert!(off_by(-3600 * SECOND as i64) < SECOND);
        time.fetch_sub(3600 * SECOND, Ordering::Relaxed);
    }

    #[test]
    fn the_address_that_more_hosts_reach_is_recorded() {
        let text = Text([const { AtomicU64::new(0) }; 6]);
        for (address, recorded) in [
            ("127.0.0.1", "127.0.0.1"),
            ("192.0.2.7", "192.0.2.7"),
            ("::1", "192.0.2.7"),
            ("2001:db8:1111:2222:3333:4444:5555:6666", "2001:db8:1111:2222:3333:4444:5555:6666"),
        ] {
            record(&text, address.parse().expect("an address"));
            assert_eq!(text.read(), recorded);
        }
    }
}
