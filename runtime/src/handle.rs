//! Handles for C: numbers that contain the kind of their object and show whether it still exists.
//!
//! A handle is `tag | kind | generation | slot`. Slots are reused with the next generation and
//! their table is never freed, so a dead handle is detected instead of followed. The tag makes the
//! handle an address that no process can have: it differs from every CUDA handle.

use crate::cancel::Uncancelled;
use crate::error::{Error, Result};
use crate::fork;
use std::cell::Cell;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};
use std::thread::LocalKey;

const TAG: u64 = 0x0c << 56;
const KIND_SHIFT: u32 = 52;
const GENERATION_SHIFT: u32 = 24;
const GENERATION_MASK: u64 = (1 << 28) - 1;
const SLOT_MASK: u64 = (1 << GENERATION_SHIFT) - 1;
const CHUNK: usize = 256;
const CHUNKS: usize = 4096;

/// Returns the beginning of all handles of a kind: their uppermost 12 bits.
pub const fn tagged(kind: u64) -> u64 {
    TAG | kind << KIND_SHIFT
}

/// Returns whether a number may be a handle of CUDA, which is an address in this process: no small
/// number, no kernel address, and no handle of this library, whatever its kind and whether living
/// or not.
pub const fn may_be_cuda(handle: usize) -> bool {
    handle >= 1 << 16 && handle < 1 << 47 && handle.is_multiple_of(align_of::<usize>())
}

/// The reason why a handle does not stand for a living object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dead {
    /// The number never was a handle of this kind.
    Alien,
    /// The object of the handle was destroyed.
    Destroyed,
}

/// The names by which an error refers to an argument: the function of the C interface, and the
/// argument.
pub type Named = (&'static str, &'static str);

impl Dead {
    /// Returns the error for a handle that was passed as this argument.
    #[cold]
    pub fn error(self, handle: usize, (function, argument): Named) -> Error {
        let got = match self {
            Dead::Alien if handle == 0 => "null".to_owned(),
            Dead::Alien => format!("{handle:#x}, which is no handle of that kind"),
            Dead::Destroyed => format!("{handle:#x}, which was destroyed"),
        };
        let expected = match handle {
            // Objects of C++ and Julia have none after they were closed or moved from.
            0 => "a living handle (an object that was closed, aborted or moved from has none)",
            _ => "a living handle from this library",
        };
        Error::argument(function, argument, got, expected)
    }
}

struct Slot<T> {
    generation: u64,
    object: Option<Arc<T>>,
}

/// Slots that are allocated together.
type Chunk<T> = Box<[RwLock<Slot<T>>]>;

/// All handles of one kind.
pub struct Handles<T: 'static> {
    kind: u64,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    free: Mutex<(Vec<u32>, u32)>,
    /// The number of handles removed so far.
    removals: AtomicU64,
    places: Mutex<Places<T>>,
}

/// A look-up, which belongs to a thread's place between its calls.
struct Entry<T: 'static> {
    handle: usize,
    /// The number of removals at the look-up.
    removals: u64,
    object: Arc<T>,
    /// The table, and the place that the look-up goes back to; `None` for an object that goes back
    /// to no place.
    home: Option<(&'static Handles<T>, &'static Place<T>)>,
}

impl<T> Entry<T> {
    /// Forgets a look-up. The object may end with it, in calls of the system.
    #[cold]
    fn end(self: Box<Self>) {
        let _whole = Uncancelled::begin();
        drop(self);
    }
}

/// The place where a thread keeps its last look-up between its calls. Other threads access the
/// place only when a handle is removed, so it stays in the processor's own cache.
#[repr(align(128))]
struct Place<T: 'static> {
    entry: AtomicPtr<Entry<T>>,
    owns: PhantomData<Entry<T>>,
}

impl<T: 'static> Place<T> {
    const fn new() -> Self {
        Self { entry: AtomicPtr::new(null_mut()), owns: PhantomData }
    }

    #[inline]
    fn take(&self) -> Option<Box<Entry<T>>> {
        let old = self.entry.swap(null_mut(), Ordering::SeqCst);
        // SAFETY: a non-null pointer came from a box in `keep`, and only the caller that takes it
        // out has it.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }

    /// Keeps a look-up of the calling thread, whose place this is, unless a handle was removed
    /// meanwhile. A removal first counts itself and then empties the places, so one of the two
    /// sees the other. Only a removal in the nanoseconds in which this store is on its way does
    /// not: then the object is kept until the next removal, the thread's next look-up, or its end.
    /// A store that waits until all see it would take as long as the rest of a look-up.
    #[inline]
    fn keep(&self, entry: Box<Entry<T>>, removals: &AtomicU64) {
        if !self.entry.load(Ordering::Relaxed).is_null() {
            // That of a call within this one. Only this thread keeps look-ups here.
            return entry.end();
        }
        let then = entry.removals;
        self.entry.store(Box::into_raw(entry), Ordering::Release);
        if removals.load(Ordering::SeqCst) != then {
            self.take().into_iter().for_each(Entry::end);
        }
    }
}

/// The places of all threads. They are never freed, but used again by later threads.
struct Places<T: 'static> {
    all: Vec<&'static Place<T>>,
    free: Vec<&'static Place<T>>,
}

/// The calling thread's place in a table, made when it is first needed.
pub struct Cache<T: 'static>(Cell<Option<(&'static Handles<T>, &'static Place<T>)>>);

impl<T> Cache<T> {
    /// Returns a cache that has no place yet.
    pub const fn new() -> Self {
        Self(Cell::new(None))
    }

    #[inline]
    fn place(&self, table: &'static Handles<T>) -> &'static Place<T> {
        match self.0.get() {
            Some((_, place)) => place,
            None => {
                let place = table.take_place();
                self.0.set(Some((table, place)));
                place
            }
        }
    }
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Cache<T> {
    fn drop(&mut self) {
        let taken = self.0.take();
        // A thread of the parent may have held the lock of the places at the fork.
        if let Some((table, place)) = taken.filter(|_| !fork::forked()) {
            drop(place.take());
            table.places().free.push(place);
        }
    }
}

/// An object that was looked up. The look-up is taken out of the thread's place and goes back at
/// the end: counting references, which threads may share, would cost more than the look-up. A
/// single pointer, which is passed on in a register; present until the end. It belongs to its
/// thread, as the place does.
pub struct Lent<T: 'static>(Option<Box<Entry<T>>>, PhantomData<*const ()>);

impl<T> From<Arc<T>> for Lent<T> {
    /// Returns an object that goes back to no place.
    fn from(object: Arc<T>) -> Self {
        Self(Some(Box::new(Entry { handle: 0, removals: 0, object, home: None })), PhantomData)
    }
}

impl<T> Deref for Lent<T> {
    type Target = Arc<T>;

    #[inline]
    fn deref(&self) -> &Arc<T> {
        &self.0.as_ref().expect("an object is lent until the end").object
    }
}

impl<T> Drop for Lent<T> {
    #[inline]
    fn drop(&mut self) {
        let Some(entry) = self.0.take() else { return };
        match entry.home {
            Some((table, place)) => place.keep(entry, &table.removals),
            None => entry.end(),
        }
    }
}

impl<T> Handles<T> {
    /// Returns a table of handles; each kind of object has a number of its own below 16.
    pub const fn new(kind: u64) -> Self {
        Self {
            kind,
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new((Vec::new(), 0)),
            removals: AtomicU64::new(0),
            places: Mutex::new(Places { all: Vec::new(), free: Vec::new() }),
        }
    }

    fn places(&self) -> MutexGuard<'_, Places<T>> {
        self.places.lock().unwrap_or_else(|e| e.into_inner())
    }

    #[cold]
    fn take_place(&self) -> &'static Place<T> {
        let mut places = self.places();
        places.free.pop().unwrap_or_else(|| {
            let place: &'static Place<T> = Box::leak(Box::new(Place::new()));
            places.all.push(place);
            place
        })
    }

    fn slot(&self, index: u32) -> Option<&RwLock<Slot<T>>> {
        let chunk = self.chunks.get(index as usize / CHUNK)?.get()?;
        chunk.get(index as usize % CHUNK)
    }

    /// Returns a handle for an object. Fails while a million handles of the kind are alive.
    pub fn insert(&self, object: Arc<T>) -> Result<usize> {
        let full = || Error::usage("there are a million objects of one kind", "destroy some");
        let index = {
            let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
            match free.0.pop() {
                Some(index) => index,
                None if (free.1 as usize) < CHUNK * CHUNKS => {
                    free.1 += 1;
                    free.1 - 1
                }
                None => return Err(full()),
            }
        };
        self.chunks[index as usize / CHUNK].get_or_init(|| {
            (0..CHUNK).map(|_| RwLock::new(Slot { generation: 0, object: None })).collect()
        });
        let mut slot =
            self.slot(index).ok_or_else(full)?.write().unwrap_or_else(|e| e.into_inner());
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        slot.object = Some(object);
        let generation = slot.generation << GENERATION_SHIFT;
        Ok((tagged(self.kind) | generation | u64::from(index)) as usize)
    }

    fn parse(&self, handle: usize) -> std::result::Result<(u32, u64), Dead> {
        let handle = handle as u64;
        if handle >> KIND_SHIFT != tagged(self.kind) >> KIND_SHIFT {
            return Err(Dead::Alien);
        }
        Ok(((handle & SLOT_MASK) as u32, (handle >> GENERATION_SHIFT) & GENERATION_MASK))
    }

    /// Returns the object of a handle.
    pub fn get(&self, handle: usize) -> std::result::Result<Arc<T>, Dead> {
        let (index, generation) = self.parse(handle)?;
        let slot = self.slot(index).ok_or(Dead::Alien)?;
        let slot = slot.read().unwrap_or_else(|e| e.into_inner());
        match &slot.object {
            Some(object) if slot.generation == generation => Ok(object.clone()),
            _ => Err(Dead::Destroyed),
        }
    }

    /// Returns the same as [`get`](Self::get), with the calling thread's last look-up kept in
    /// `cache`, which belongs to this table alone. Takes no lock if the last look-up was of this
    /// handle and no handle of the kind was removed since; cheap enough for every call. The kept
    /// object does not outlive the handle, but for the moment that `Place::keep` tells of.
    #[inline]
    pub fn get_cached(
        &'static self,
        handle: usize,
        cache: &'static LocalKey<Cache<T>>,
    ) -> std::result::Result<Lent<T>, Dead> {
        self.cached(handle, cache, || self.get(handle))
    }

    /// Returns an object that lives as long as the process and has a number, which is no handle,
    /// instead of one: as [`get_cached`](Self::get_cached) does, and else by `find`.
    #[inline]
    pub fn lasting_cached(
        &'static self,
        number: usize,
        cache: &'static LocalKey<Cache<T>>,
        find: impl FnOnce() -> Arc<T>,
    ) -> Lent<T> {
        let found = self.cached(number, cache, || Ok::<_, Infallible>(find()));
        found.unwrap_or_else(|never| match never {})
    }

    #[inline]
    fn cached<E>(
        &'static self,
        key: usize,
        cache: &'static LocalKey<Cache<T>>,
        find: impl FnOnce() -> std::result::Result<Arc<T>, E>,
    ) -> std::result::Result<Lent<T>, E> {
        // A thread that ends keeps no look-up.
        let Ok(place) = cache.try_with(|cache| cache.place(self)) else {
            return find().map(Lent::from);
        };
        let removals = self.removals.load(Ordering::SeqCst);
        let mut kept = place.take();
        if let Some(entry) = kept.take_if(|e| (e.handle, e.removals) == (key, removals)) {
            return Ok(Lent(Some(entry), PhantomData));
        }
        // Objects are looked for, and may end, before the guard does.
        let _whole = Uncancelled::begin();
        let kept = kept;
        let (object, home) = (find()?, Some((self, place)));
        let entry = Entry { handle: key, removals, object, home };
        let entry = match kept {
            Some(mut room) => {
                *room = entry;
                room
            }
            None => Box::new(entry),
        };
        Ok(Lent(Some(entry), PhantomData))
    }

    /// Ends a handle and returns its object, which is then kept only by threads that are in a call
    /// with it, or just leave one.
    pub fn remove(&self, handle: usize) -> std::result::Result<Arc<T>, Dead> {
        let (index, generation) = self.parse(handle)?;
        let slot = self.slot(index).ok_or(Dead::Alien)?;
        let mut slot = slot.write().unwrap_or_else(|e| e.into_inner());
        if slot.generation != generation {
            return Err(Dead::Destroyed);
        }
        let object = slot.object.take().ok_or(Dead::Destroyed)?;
        drop(slot);
        self.removals.fetch_add(1, Ordering::SeqCst);
        // Dropped without the lock.
        let kept: Vec<_> = self.places().all.iter().filter_map(|place| place.take()).collect();
        drop(kept);
        self.free.lock().unwrap_or_else(|e| e.into_inner()).0.push(index);
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    #[test]
    fn dead_and_alien_handles_are_told_apart_also_when_slots_are_reused() {
        static HANDLES: Handles<u32> = Handles::new(3);
        let first = HANDLES.insert(Arc::new(7)).unwrap();
        assert_eq!(HANDLES.get(first).map(|v| *v), Ok(7));
        thread_local! {
            static CACHE: Cache<u32> = const { Cache::new() };
        }
        let look = |handle| HANDLES.get_cached(handle, &CACHE).map(|v| **v);
        assert_eq!((look(first), look(first)), (Ok(7), Ok(7)));
        let kept = CACHE.with(|cache| cache.place(&HANDLES).take());
        assert_eq!(kept.map(|entry| entry.handle), Some(first), "it came back");
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
    fn an_object_goes_with_its_handle_whatever_threads_have_looked_it_up() {
        static HANDLES: Handles<u32> = Handles::new(3);
        thread_local! {
            static CACHE: Cache<u32> = const { Cache::new() };
        }
        let look = |handle| HANDLES.get_cached(handle, &CACHE);
        let objects: Vec<_> = (0..2).map(Arc::new).collect();
        let handles: Vec<_> =
            objects.iter().map(|object| HANDLES.insert(object.clone()).unwrap()).collect();
        let (weak, first): (Vec<_>, _) = (objects.iter().map(Arc::downgrade).collect(), handles[0]);
        drop(objects);
        std::thread::scope(|scope| {
            let ((removed, wait), (looked_up, ready)) = (channel(), channel());
            // This thread has called, and never calls again.
            scope.spawn(move || {
                assert_eq!(look(first).map(|v| **v), Ok(0));
                looked_up.send(()).unwrap();
                wait.recv().unwrap();
            });
            ready.recv().unwrap();
            let within = look(first).unwrap();
            drop(HANDLES.remove(first).unwrap());
            assert_eq!(weak[0].strong_count(), 1, "this call's alone");
            drop(within);
            assert_eq!(weak[0].strong_count(), 0, "nor does it come back after the call");
            assert_eq!(look(handles[1]).map(|v| **v), Ok(1));
            assert_eq!(weak[1].strong_count(), 2, "what is alive is kept");
            removed.send(()).unwrap();
        });
        drop(HANDLES.remove(handles[1]).unwrap());
        assert_eq!(weak[1].strong_count(), 0);
    }

    #[test]
    fn threads_that_have_ended_keep_nothing_and_leave_their_places_to_others() {
        static HANDLES: Handles<u32> = Handles::new(3);
        thread_local! {
            static CACHE: Cache<u32> = const { Cache::new() };
        }
        let object = Arc::new(5);
        let handle = HANDLES.insert(object.clone()).unwrap();
        for _ in 0..8 {
            let look = move || HANDLES.get_cached(handle, &CACHE).map(|v| **v);
            assert_eq!(std::thread::spawn(look).join().unwrap(), Ok(5));
            assert_eq!(Arc::strong_count(&object), 2, "this one and the table's");
        }
        assert_eq!(HANDLES.places().all.len(), 1);
    }

    #[test]
    fn removals_while_threads_look_up_leave_nothing_behind_the_next_one() {
        static HANDLES: Handles<u32> = Handles::new(3);
        thread_local! {
            static CACHE: Cache<u32> = const { Cache::new() };
        }
        for round in 0..500u32 {
            let object = Arc::new(round);
            let handle = HANDLES.insert(object.clone()).unwrap();
            let (start, done, end) = (Barrier::new(3), Barrier::new(3), Barrier::new(3));
            let left = std::thread::scope(|scope| {
                let look = || {
                    start.wait();
                    (0..1 + round % 8).for_each(|_| drop(HANDLES.get_cached(handle, &CACHE)));
                    done.wait();
                    end.wait();
                };
                scope.spawn(look);
                scope.spawn(look);
                start.wait();
                drop(HANDLES.remove(handle));
                done.wait();
                // What a call that ended just then has kept goes with the next handle.
                drop(HANDLES.remove(HANDLES.insert(Arc::new(round)).unwrap()));
                let left = Arc::strong_count(&object);
                end.wait();
                left
            });
            assert_eq!(left, 1, "round {round}");
        }
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
