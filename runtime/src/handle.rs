//! Handles for C: numbers that say what they stand for and whether it still exists.
//!
//! A handle is `tag | kind | generation | slot`. Slots are reused with the next generation and
//! their table is never freed, so a dead handle is found out instead of followed. The tag makes it
//! an address that no process can have: it differs from every CUDA handle.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::thread::LocalKey;

const TAG: u64 = 0x0c << 56;
const KIND_SHIFT: u32 = 52;
const GENERATION_SHIFT: u32 = 24;
const GENERATION_MASK: u64 = (1 << 28) - 1;
const SLOT_MASK: u64 = (1 << GENERATION_SHIFT) - 1;
const CHUNK: usize = 256;
const CHUNKS: usize = 4096;

/// What all handles of a kind begin with: their uppermost 12 bits.
pub const fn tagged(kind: u64) -> u64 {
    TAG | kind << KIND_SHIFT
}

/// Whether a number may be a handle of CUDA, which are addresses in this process: no small number,
/// no kernel address, and none of ours, of whatever kind, living or not.
pub const fn may_be_cuda(handle: usize) -> bool {
    handle >= 1 << 16 && handle < 1 << 47 && handle.is_multiple_of(align_of::<usize>())
}

/// Why a handle does not stand for a living object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dead {
    /// It never was a handle of this kind.
    Alien,
    /// Its object was destroyed.
    Destroyed,
}

struct Slot<T> {
    generation: u64,
    object: Option<Arc<T>>,
}

/// Slots that are made together.
type Chunk<T> = Box<[RwLock<Slot<T>>]>;

/// All handles of one kind.
pub struct Handles<T> {
    kind: u64,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    free: Mutex<(Vec<u32>, u32)>,
    /// How many were removed so far.
    removals: AtomicU64,
}

/// What a thread looked up last: handle, number of removals then, object.
pub type Cached<T> = Option<(usize, u64, Arc<T>)>;

/// Where a thread keeps that.
pub type Cache<T> = LocalKey<Cell<Cached<T>>>;

/// An object that was looked up. It is taken out of the thread's cache and goes back at the end:
/// counting references would cost more than the look-up.
pub struct Lent<T: 'static> {
    /// There until the end.
    entry: Cached<T>,
    /// Where it goes back to.
    home: Option<&'static Cache<T>>,
}

impl<T> From<Arc<T>> for Lent<T> {
    /// One that goes nowhere.
    fn from(object: Arc<T>) -> Self {
        Self { entry: Some((0, 0, object)), home: None }
    }
}

impl<T> Deref for Lent<T> {
    type Target = Arc<T>;

    #[inline]
    fn deref(&self) -> &Arc<T> {
        &self.entry.as_ref().expect("an object is lent until the end").2
    }
}

impl<T> Drop for Lent<T> {
    #[inline]
    fn drop(&mut self) {
        let entry = self.entry.take();
        if let Some(home) = self.home {
            // A thread that ends keeps nothing.
            let _ = home.try_with(|cache| cache.set(entry));
        }
    }
}

impl<T> Handles<T> {
    /// A table of handles; each kind of object has a number below 16 of its own.
    pub const fn new(kind: u64) -> Self {
        Self {
            kind,
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new((Vec::new(), 0)),
            removals: AtomicU64::new(0),
        }
    }

    fn slot(&self, index: u32) -> Option<&RwLock<Slot<T>>> {
        let chunk = self.chunks.get(index as usize / CHUNK)?.get()?;
        chunk.get(index as usize % CHUNK)
    }

    /// A handle for an object; None when a million of them are alive.
    pub fn insert(&self, object: Arc<T>) -> Option<usize> {
        let index = {
            let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
            match free.0.pop() {
                Some(index) => index,
                None if (free.1 as usize) < CHUNK * CHUNKS => {
                    free.1 += 1;
                    free.1 - 1
                }
                None => return None,
            }
        };
        self.chunks[index as usize / CHUNK].get_or_init(|| {
            (0..CHUNK).map(|_| RwLock::new(Slot { generation: 0, object: None })).collect()
        });
        let mut slot = self.slot(index)?.write().unwrap_or_else(|e| e.into_inner());
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        slot.object = Some(object);
        let generation = slot.generation << GENERATION_SHIFT;
        Some((tagged(self.kind) | generation | u64::from(index)) as usize)
    }

    fn parse(&self, handle: usize) -> Result<(u32, u64), Dead> {
        let handle = handle as u64;
        if handle >> KIND_SHIFT != tagged(self.kind) >> KIND_SHIFT {
            return Err(Dead::Alien);
        }
        Ok(((handle & SLOT_MASK) as u32, (handle >> GENERATION_SHIFT) & GENERATION_MASK))
    }

    /// The object of a handle.
    pub fn get(&self, handle: usize) -> Result<Arc<T>, Dead> {
        let (index, generation) = self.parse(handle)?;
        let slot = self.slot(index).ok_or(Dead::Alien)?;
        let slot = slot.read().unwrap_or_else(|e| e.into_inner());
        match &slot.object {
            Some(object) if slot.generation == generation => Ok(object.clone()),
            _ => Err(Dead::Destroyed),
        }
    }

    /// As [`get`](Self::get), with what the calling thread looked up last kept in `cache`: no lock
    /// is taken while no handle of the kind was removed since. Cheap enough for every call.
    ///
    /// What is kept is what `find` finds in the object; where it fails, nothing is.
    #[inline]
    pub fn get_cached<U, E>(
        &self,
        handle: usize,
        cache: &'static Cache<U>,
        find: impl FnOnce(Arc<T>) -> Result<Arc<U>, E>,
    ) -> Result<Result<Lent<U>, E>, Dead> {
        let removals = self.removals.load(Ordering::Acquire);
        let lend = |entry| Ok(Ok(Lent { entry, home: Some(cache) }));
        // What does not fit is dropped: not to keep a removed object alive.
        let kept = cache.try_with(Cell::take).unwrap_or(None);
        if let Some((known, at, _)) = &kept
            && (*known, *at) == (handle, removals)
        {
            return lend(kept);
        }
        match find(self.get(handle)?) {
            Ok(object) => lend(Some((handle, removals, object))),
            Err(e) => Ok(Err(e)),
        }
    }

    /// Ends a handle and returns its object.
    pub fn remove(&self, handle: usize) -> Result<Arc<T>, Dead> {
        let (index, generation) = self.parse(handle)?;
        let slot = self.slot(index).ok_or(Dead::Alien)?;
        let mut slot = slot.write().unwrap_or_else(|e| e.into_inner());
        if slot.generation != generation {
            return Err(Dead::Destroyed);
        }
        let object = slot.object.take().ok_or(Dead::Destroyed)?;
        drop(slot);
        self.removals.fetch_add(1, Ordering::AcqRel);
        self.free.lock().unwrap_or_else(|e| e.into_inner()).0.push(index);
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_and_alien_handles_are_told_apart_also_when_slots_are_reused() {
        static HANDLES: Handles<u32> = Handles::new(3);
        let first = HANDLES.insert(Arc::new(7)).unwrap();
        assert_eq!(HANDLES.get(first).map(|v| *v), Ok(7));
        thread_local! {
            static CACHE: Cell<Cached<u32>> = const { Cell::new(None) };
        }
        let look = |handle| HANDLES.get_cached(handle, &CACHE, Ok::<_, ()>).map(|v| v.map(|v| **v));
        assert_eq!((look(first), look(first)), (Ok(Ok(7)), Ok(Ok(7))));
        assert_eq!(CACHE.take().map(|(handle, ..)| handle), Some(first), "it came back");
        assert_eq!(HANDLES.remove(first).map(|v| *v), Ok(7));
        assert_eq!(look(first), Err(Dead::Destroyed));
        assert_eq!(HANDLES.get(first), Err(Dead::Destroyed));
        let second = HANDLES.insert(Arc::new(8)).unwrap();
        assert_ne!(first, second);
        assert_eq!(HANDLES.get(first), Err(Dead::Destroyed));
        assert_eq!(HANDLES.remove(first), Err(Dead::Destroyed));
        assert_eq!(HANDLES.get(second).map(|v| *v), Ok(8));
        assert_eq!(HANDLES.get(0x7f00_1234_5678), Err(Dead::Alien));
        assert_eq!(Handles::<u32>::new(4).get(second), Err(Dead::Alien));
    }

    #[test]
    fn no_handle_of_ours_may_be_one_of_cuda() {
        for kind in 0..16 {
            let handles = Handles::new(kind);
            let handle = handles.insert(Arc::new(())).unwrap();
            assert!(!may_be_cuda(handle) && !may_be_cuda(tagged(kind) as usize));
            handles.remove(handle).unwrap();
            assert!(!may_be_cuda(handle));
        }
        let heap = Box::new(0u64);
        assert!(may_be_cuda(&raw const *heap as usize));
        let others = [0, 1, 2, 0xffff, 0x7f00_1234_5679, 1 << 47, usize::MAX];
        assert!(others.iter().all(|&handle| !may_be_cuda(handle)));
    }

    #[test]
    fn many_handles() {
        let handles = Handles::new(1);
        let all: Vec<_> = (0..1000).map(|i| handles.insert(Arc::new(i)).unwrap()).collect();
        assert!(all.iter().enumerate().all(|(i, &h)| handles.get(h).map(|v| *v) == Ok(i)));
    }
}
