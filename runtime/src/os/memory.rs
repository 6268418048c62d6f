//! Memory that processes share: sealed memfds and their mappings.

use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A shared mapping of a whole memfd.
pub struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory that stays at its address until the value is dropped. The
// code that hands out pointers into the mapping is responsible for the accesses to each part and
// for their order.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods of `&Mapping` only return addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a memfd after checking that the memfd is that large and sealed, so that
    /// no peer can make an access fault by truncating it.
    pub fn of(fd: BorrowedFd<'_>, len: usize) -> Result<Self> {
        let hint = "the peer may be of another version";
        let size = rustix::fs::fstat(fd).map_err(|e| Error::system("fstat of a memfd", e, hint))?;
        let seals = rustix::fs::fcntl_get_seals(fd)
            .map_err(|e| Error::system("reading the seals of a memfd", e, hint))?;
        let wanted = SealFlags::SHRINK | SealFlags::GROW;
        if size.st_size as usize != len || !seals.contains(wanted) {
            let got = format!("{} bytes, seals {seals:?}", size.st_size);
            let what = format!("a memfd of {len} bytes sealed against resizing");
            return Err(Error::Init { why: format!("received {got}; expected {what}") });
        }
        // Most of it is for the memory of ncclMemAlloc, of this rank and its peers.
        let room = "raise ulimit -v, or set OXCCL_ARENA_GIB=1 on all ranks, which leaves \
                    ncclMemAlloc 1 GiB";
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let flags = flags | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses overlaps no other mapping.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) }
            .map_err(|e| Error::system(format!("mmap of {len} bytes"), e, room))?;
        Ok(Self { base: base.cast(), len })
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of a mapping that this value owns alone.
        if let Err(e) = unsafe { rustix::mm::munmap(self.base.cast(), self.len) } {
            log::line(Level::Warn, Subsystem::Alloc, &format!("munmap failed: {e}"));
        }
    }
}

/// Returns the size of the largest file that this process may make; the system ends a process that
/// exceeds this limit.
pub(crate) fn largest_file() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    limit.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX)
}

/// Returns a new memfd of fixed size.
pub fn sealed_memfd(name: &str, len: usize) -> Result<OwnedFd> {
    if len > largest_file() {
        let call = format!("making shared memory of {len} bytes");
        let cause = format!("files may have {} bytes", largest_file());
        return Err(Error::system(call, cause, "raise ulimit -f"));
    }
    let failed = |call: &str, e| Error::system(call, e, "check memory limits and seccomp rules");
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|e| failed("memfd_create", e))?;
    rustix::fs::ftruncate(&fd, len as u64).map_err(|e| failed("ftruncate of a memfd", e))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).map_err(|e| failed("sealing a memfd", e))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn unsealed_or_short_files_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("t", flags).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(Mapping::of(fd.as_fd(), 4096).is_err());
        let sealed = sealed_memfd("t", 4096).unwrap();
        assert!(Mapping::of(sealed.as_fd(), 8192).is_err());
        assert!(Mapping::of(sealed.as_fd(), 4096).is_ok());
        assert!(rustix::fs::ftruncate(&sealed, 0).is_err());
    }

    #[test]
    fn who_lacks_address_space_is_told_how_to_need_less() {
        // More than any process has.
        let len = 1 << 50;
        let fd = sealed_memfd("t", len).unwrap();
        let Err(error) = Mapping::of(fd.as_fd(), len) else { panic!("a mapping of 1 PiB") };
        let text = error.to_string();
        assert!(text.contains("raise ulimit -v, or set OXCCL_ARENA_GIB=1 on all ranks"), "{text}");
    }
}
