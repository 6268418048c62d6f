//! Memory that peers can map. Each process has one sealed memfd from which all buffers of
//! `oxcclMemAlloc` and `ncclMemAlloc` are cut.
//!
//! The file is sparse and large: peers map it once, when a communicator is made, and reach every
//! later buffer by its offset. Freed memory goes back to the system at once, by punching a hole. If
//! the arena cannot be made, buffers come from the C library and are staged.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use crate::os::memory::{Mapping, largest_file, sealed_memfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FallocateFlags;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The size of an allocation in bytes is a multiple of this: a page of every supported machine.
const GRANULE: usize = 64 << 10;

static ARENA: OnceLock<Option<Arena>> = OnceLock::new();

/// The arena of this process.
pub struct Arena {
    fd: OwnedFd,
    mapping: Mapping,
    blocks: Mutex<Blocks>,
    /// For each granule, the end offset of the buffer that the granule belongs to; 0 for none.
    /// Every call reads these words and takes no lock.
    ends: Box<[AtomicUsize]>,
}

/// The parts of the arena that are taken and those that are free: length by offset.
struct Blocks {
    taken: BTreeMap<usize, usize>,
    free: BTreeMap<usize, usize>,
}

impl Blocks {
    fn allocate(&mut self, len: usize) -> Option<usize> {
        let (&offset, &room) = self.free.iter().find(|&(_, &room)| room >= len)?;
        self.free.remove(&offset);
        if room > len {
            self.free.insert(offset + len, room - len);
        }
        self.taken.insert(offset, len);
        Some(offset)
    }

    fn release(&mut self, offset: usize) -> Option<usize> {
        let len = self.taken.remove(&offset)?;
        let (mut start, mut room) = (offset, len);
        if let Some((&before, &size)) = self.free.range(..offset).next_back()
            && before + size == offset
        {
            self.free.remove(&before);
            (start, room) = (before, room + size);
        }
        if let Some(after) = self.free.remove(&(offset + len)) {
            room += after;
        }
        self.free.insert(start, room);
        Some(len)
    }
}

impl Arena {
    /// Returns the process's arena; `None`, logged once, if it cannot be made.
    pub fn get() -> Option<&'static Arena> {
        ARENA
            .get_or_init(|| {
                let made =
                    crate::fork::refuse_children().and_then(|()| Self::new(Self::default_len()));
                if let Err(e) = &made {
                    let text = format!("no memory that peers can map, buffers will be copied: {e}");
                    log::line(Level::Warn, Subsystem::Alloc, &text);
                }
                made.ok()
            })
            .as_ref()
    }

    fn default_len() -> usize {
        let gib = 1usize << 30;
        let len = match Config::get().arena_gib as usize {
            0 => {
                let ram = rustix::system::sysinfo().totalram as usize;
                // 64 peers' arenas must fit the 47 bits of user addresses with room to spare.
                (2 * ram).next_multiple_of(gib).min(512 * gib)
            }
            wanted => wanted.min(512) * gib,
        };
        len.min(largest_file()) / GRANULE * GRANULE
    }

    fn new(len: usize) -> Result<Self> {
        if len == 0 {
            let cause = format!("files may have {} bytes", largest_file());
            return Err(Error::system("making an arena", cause, "raise ulimit -f"));
        }
        let fd = sealed_memfd("oxccl-arena", len)?;
        let mapping = Mapping::of(fd.as_fd(), len)?;
        let blocks = Blocks { taken: BTreeMap::new(), free: BTreeMap::from([(0, len)]) };
        // Zeroed memory takes no pages until it is written to.
        let ends = Box::into_raw(vec![0usize; len / GRANULE].into_boxed_slice());
        // SAFETY: both types have the same size, alignment and valid values; the first box is given
        // up.
        let ends = unsafe { Box::from_raw(ends as *mut [AtomicUsize]) };
        Ok(Self { fd, mapping, blocks: Mutex::new(blocks), ends })
    }

    /// Returns the file descriptor to pass to peers.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the size of the file in bytes.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Returns zeroed memory, aligned to 64 KiB; `None` if the arena is full.
    pub fn allocate(&self, bytes: usize) -> Option<*mut u8> {
        let len = bytes.max(1).checked_next_multiple_of(GRANULE)?;
        let offset = self.lock().allocate(len)?;
        self.set_end(offset, len, offset + bytes);
        // SAFETY: the block lies within the mapping.
        Some(unsafe { self.mapping.base().add(offset) })
    }

    /// Frees a block. Returns false if `ptr` is not the start of a block.
    pub fn free(&self, ptr: *mut u8) -> bool {
        let Some(offset) = self.offset(ptr, 0) else { return false };
        let mut blocks = self.lock();
        let Some(&len) = blocks.taken.get(&offset) else { return false };
        // The hole is punched while the block is taken, so that no other data is lost.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.fd, flags, offset as u64, len as u64).is_err() {
            // SAFETY: the block lies within the mapping and is still taken by the caller, who
            // gave it up.
            unsafe { std::ptr::write_bytes(self.mapping.base().add(offset), 0, len) };
        }
        self.set_end(offset, len, 0);
        blocks.release(offset).is_some()
    }

    fn set_end(&self, offset: usize, len: usize, end: usize) {
        let granules = &self.ends[offset / GRANULE..][..len / GRANULE];
        granules.iter().for_each(|word| word.store(end, Ordering::Relaxed));
    }

    /// Returns the bytes that are left, as [`left`] does.
    #[inline]
    fn left(&self, ptr: *const u8) -> Option<usize> {
        let offset = self.offset(ptr, 0)?;
        // The end was set before any thread was given the address.
        let end = self.ends[offset / GRANULE].load(Ordering::Relaxed);
        Some(end.saturating_sub(offset))
    }

    /// Returns the offset in the arena of `len` bytes at `ptr`; `None` if they lie elsewhere.
    pub fn offset(&self, ptr: *const u8, len: usize) -> Option<usize> {
        let offset = (ptr as usize).checked_sub(self.mapping.base() as usize)?;
        (offset < self.bytes() && len <= self.bytes() - offset).then_some(offset)
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Returns the bytes from an address to the end of the buffer from [`allocate`] that holds the
/// address; 0 if that buffer was freed. `None` for other memory, about which nothing is known.
/// Cheap enough for every call.
#[inline]
pub fn left(ptr: *const u8) -> Option<usize> {
    match ARENA.get()? {
        Some(arena) => arena.left(ptr),
        None => Staged::left(ptr),
    }
}

/// Buffers from the C library, by address, for a process without an arena.
struct Staged;

impl Staged {
    fn sizes() -> MutexGuard<'static, BTreeMap<usize, usize>> {
        static SIZES: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
        SIZES.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the layout of a buffer; `None` if the size does not fit the address space.
    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.max(1), GRANULE).ok()
    }

    /// Allocates as [`Arena::allocate`] does; `None` if there is no memory.
    fn allocate(bytes: usize) -> Option<*mut u8> {
        // SAFETY: the size is not 0.
        let ptr = unsafe { alloc_zeroed(Self::layout(bytes)?) };
        if ptr.is_null() {
            return None;
        }
        Self::sizes().insert(ptr as usize, bytes);
        Some(ptr)
    }

    /// Frees as [`Arena::free`] does.
    fn free(ptr: *mut u8) -> bool {
        let size = Self::sizes().remove(&(ptr as usize));
        let Some(layout) = size.and_then(Self::layout) else { return false };
        // SAFETY: it was allocated with this layout, and is found in the table once.
        unsafe { dealloc(ptr, layout) };
        true
    }

    #[cold]
    fn left(ptr: *const u8) -> Option<usize> {
        let sizes = Self::sizes();
        let (&base, &bytes) = sizes.range(..=ptr as usize).next_back()?;
        bytes.checked_sub(ptr as usize - base).filter(|&left| left > 0)
    }
}

/// Allocates memory for user buffers; peers map it where possible.
pub fn allocate(bytes: usize) -> Result<*mut u8> {
    crate::fork::check()?;
    if bytes > isize::MAX as usize - GRANULE {
        return Err(Error::argument("oxcclMemAlloc", "size", bytes, "less than the address space"));
    }
    let (made, cause, hint) = match Arena::get() {
        Some(arena) => {
            let hint = "reduce the size, or raise OXCCL_ARENA_GIB";
            let gib = arena.bytes() >> 30;
            let cause = match bytes > arena.bytes() {
                true => format!("all memory that peers can map is {gib} GiB"),
                false => format!("the {gib} GiB that peers can map are taken"),
            };
            (arena.allocate(bytes), cause, hint)
        }
        None => (Staged::allocate(bytes), "there is no memory".to_owned(), "reduce the size"),
    };
    made.ok_or_else(|| Error::system(format!("allocating {bytes} bytes"), cause, hint))
}

/// Frees memory from [`allocate`].
pub fn free(ptr: *mut u8) -> Result<()> {
    if ptr.is_null() {
        return Ok(());
    }
    crate::fork::check()?;
    if Arena::get().map_or_else(|| Staged::free(ptr), |arena| arena.free(ptr)) {
        return Ok(());
    }
    let got = format!("{ptr:?}");
    Err(Error::argument(
        "oxcclMemFree",
        "ptr",
        got,
        "the start of memory from ncclMemAlloc or oxcclMemAlloc",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_distinct_zeroed_reused_and_merged() {
        let arena = Arena::new(16 << 20).unwrap();
        let a = arena.allocate(1).unwrap();
        let b = arena.allocate(GRANULE + 1).unwrap();
        assert_eq!(b as usize - a as usize, GRANULE);
        // SAFETY: `a` has at least one byte.
        unsafe { a.write(7) };
        assert!(arena.free(a) && !arena.free(a));
        let again = arena.allocate(GRANULE).unwrap();
        // SAFETY: as above.
        assert_eq!((again, unsafe { again.read() }), (a, 0));
        assert!(arena.free(again) && arena.free(b));
        assert_eq!(arena.lock().free, BTreeMap::from([(0, 16 << 20)]));
        assert!(arena.allocate((16 << 20) + 1).is_none());
        assert_eq!(arena.offset(std::ptr::dangling(), 1), None);
    }

    #[test]
    fn what_is_left_of_a_buffer_is_known_until_it_is_freed() {
        let arena = Arena::new(16 << 20).unwrap();
        let before = arena.allocate(100).unwrap();
        let bytes = 3 * GRANULE + 5;
        let buffer = arena.allocate(bytes).unwrap();
        for at in [0, 1, GRANULE - 1, GRANULE, 3 * GRANULE, bytes - 1, bytes, bytes + 1] {
            let left = arena.left(buffer.wrapping_add(at));
            assert_eq!(left, Some(bytes.saturating_sub(at)), "{at}");
        }
        assert_eq!(arena.left(before), Some(100));
        assert!(arena.free(buffer));
        assert_eq!(arena.left(buffer), Some(0));
        assert_eq!(arena.left(buffer.wrapping_add(bytes - 1)), Some(0));
        assert_eq!(arena.left(before), Some(100));
        let reused = arena.allocate(7).unwrap();
        assert_eq!((reused, arena.left(reused)), (buffer, Some(7)));
        assert_eq!(arena.left(std::ptr::dangling()), None);
        assert_eq!(arena.left(arena.mapping.base().wrapping_add(16 << 20)), None);
    }

    #[test]
    fn without_an_arena_buffers_are_aligned_zeroed_and_known() {
        let ptr = Staged::allocate(100).unwrap();
        assert!((ptr as usize).is_multiple_of(GRANULE));
        // SAFETY: it has 100 bytes.
        assert!(unsafe { std::slice::from_raw_parts(ptr, 100) }.iter().all(|&byte| byte == 0));
        assert_eq!(Staged::left(ptr.wrapping_add(40)), Some(60));
        assert_eq!(Staged::left(ptr.wrapping_add(100)), None, "someone else's");
        assert!(!Staged::free(ptr.wrapping_add(1)) && Staged::free(ptr) && !Staged::free(ptr));
        assert_eq!(Staged::left(ptr), None);
        assert!(Staged::allocate(isize::MAX as usize).is_none());
    }
}
