//! Handles for C: numbers that contain the kind of their object and show whether it still exists.
//!
//! A handle is `tag | kind | generation | slot`. Slots are reused with the next generation and
//! their table is never freed, so a dead handle is detected instead of followed. The tag makes the
//! handle an address that no process can have: it differs from every CUDA handle.

use crate::barrier;
use crate::cancel::Uncancelled;
use crate::error::{Error, Result};
use crate::fork;
use std::cell::{Cell, UnsafeCell};
use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// The object of a look-up, and the handle or number that named it.
type Kept<T> = Option<(usize, Arc<T>)>;

/// The place where a thread keeps its last look-up. Other threads access it only when a handle is
/// removed, so it stays in the processor's own cache, and a look-up takes no locked instruction:
/// either a removal sees that the thread is in a call, or that call sees the removal
/// ([`barrier`]).
#[repr(align(128))]
struct Place<T: 'static> {
    /// `None` for the place of a single look-up, which goes with it.
    table: Option<&'static Handles<T>>,
    /// True while the thread uses what is kept, which only the thread tells.
    used: AtomicBool,
    /// The number of removals when the thread looked up what is kept. A later removal may have
    /// taken that out. Changed with `changing` locked, by the thread.
    looked_up: AtomicU64,
    /// The right to change what is kept. A removal has it only while the thread is in no call that
    /// began before.
    changing: Mutex<()>,
    kept: UnsafeCell<Kept<T>>,
}

// SAFETY: what is kept is changed only with the lock, by a removal only while the thread does not
// read it, as `kept` says.
unsafe impl<T: Send + Sync> Sync for Place<T> {}

impl<T: 'static> Place<T> {
    fn new(table: Option<&'static Handles<T>>, kept: Kept<T>) -> Self {
        Self {
            table,
            used: AtomicBool::new(false),
            looked_up: AtomicU64::new(u64::MAX),
            changing: Mutex::new(()),
            kept: UnsafeCell::new(kept),
        }
    }

    /// Begins a use by the thread of the place, which is one of this table. Returns the number of
    /// removals so far: what was looked up after as many stays.
    #[inline]
    fn begin(&self, table: &Handles<T>) -> u64 {
        self.used.store(true, Ordering::Relaxed);
        barrier::light();
        table.removals.load(Ordering::Acquire)
    }

    /// Ends the use, and what is kept if a handle was removed meanwhile.
    #[inline]
    fn end(&self, table: &Handles<T>) {
        let then = self.looked_up.load(Ordering::Relaxed);
        self.used.store(false, Ordering::Release);
        barrier::light();
        if table.removals.load(Ordering::Acquire) != then {
            self.clear(then);
        }
    }

    #[cold]
    fn clear(&self, removals: u64) {
        let _whole = Uncancelled::begin();
        drop(self.change(None, removals));
    }

    /// Returns the object that the thread keeps.
    ///
    /// # Safety
    /// The thread of this place calls it between [`begin`](Self::begin) and [`end`](Self::end), and
    /// has looked up or changed what is kept since.
    #[inline]
    unsafe fn kept(&self) -> Option<&(usize, Arc<T>)> {
        // SAFETY: only a removal changes it elsewhere, where it sees that this thread has not begun
        // and that the look-up was before it; then this thread, which begins later, sees the
        // removal, and locks before it looks.
        unsafe { (*self.kept.get()).as_ref() }
    }

    /// Keeps something else, looked up after so many removals, and returns what was kept.
    fn change(&self, kept: Kept<T>, removals: u64) -> Kept<T> {
        let _changing = self.changing.lock().unwrap_or_else(|e| e.into_inner());
        self.looked_up.store(removals, Ordering::Relaxed);
        // SAFETY: this thread has the lock, and is the one that reads it otherwise.
        std::mem::replace(unsafe { &mut *self.kept.get() }, kept)
    }

    /// Returns what is kept, for a removal that is the one of this number, unless the thread uses
    /// it, or has looked it up later. Then it is no object that was removed.
    fn take_before(&self, removal: u64) -> Kept<T> {
        let _changing = self.changing.lock().unwrap_or_else(|e| e.into_inner());
        let is_later = self.looked_up.load(Ordering::Relaxed) >= removal;
        if is_later || self.used.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: this thread has the lock, and the place's own one reads only after it has locked,
        // as its use begins behind the barrier of this removal.
        unsafe { (*self.kept.get()).take() }
    }
}

/// The places of all threads. They are never freed, but used again by later threads.
struct Places<T: 'static> {
    all: Vec<&'static Place<T>>,
    free: Vec<&'static Place<T>>,
}

/// The calling thread's place in a table, made when it is first needed.
pub struct Cache<T: 'static>(Cell<Option<&'static Place<T>>>);

impl<T> Cache<T> {
    /// Returns a cache that has no place yet.
    pub const fn new() -> Self {
        Self(Cell::new(None))
    }

    #[inline]
    fn place(&self, table: &'static Handles<T>) -> &'static Place<T> {
        self.0.get().unwrap_or_else(|| {
            let place = table.take_place();
            self.0.set(Some(place));
            place
        })
    }
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Cache<T> {
    fn drop(&mut self) {
        // A thread of the parent may have held the lock of the places at the fork.
        if let Some(place) = self.0.take().filter(|_| !fork::forked()) {
            // A call may have ended the thread.
            place.used.store(false, Ordering::Release);
            drop(place.change(None, u64::MAX));
            if let Some(table) = place.table {
                table.places().free.push(place);
            }
        }
    }
}

/// An object that was looked up. The thread's place keeps it, also after the call: counting
/// references, which threads may share, would cost more than the look-up. It belongs to its thread,
/// as the place does. A single pointer, which is passed on in a register.
pub struct Lent<T: 'static>(NonNull<Place<T>>, PhantomData<*const ()>);

impl<T> From<Arc<T>> for Lent<T> {
    /// Returns an object that no thread keeps.
    fn from(object: Arc<T>) -> Self {
        let place = Box::new(Place::new(None, Some((0, object))));
        Self(NonNull::from(Box::leak(place)), PhantomData)
    }
}

impl<T> Lent<T> {
    #[inline]
    fn place(&self) -> &Place<T> {
        // SAFETY: places of threads stay, and that of a single look-up stays until its end.
        unsafe { self.0.as_ref() }
    }

    /// Ends the place of a single look-up.
    #[cold]
    fn end_alone(&mut self) {
        let _whole = Uncancelled::begin();
        // SAFETY: it came from a box in `from`, and this is the end of its only user.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T> Deref for Lent<T> {
    type Target = Arc<T>;

    #[inline]
    fn deref(&self) -> &Arc<T> {
        // SAFETY: the use ends with this, which is of the thread of the place, and nothing else is
        // kept until then.
        &unsafe { self.place().kept() }.expect("an object is kept until the end").1
    }
}

impl<T> Drop for Lent<T> {
    #[inline]
    fn drop(&mut self) {
        match self.place().table {
            Some(table) => self.place().end(table),
            None => self.end_alone(),
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
    fn take_place(&'static self) -> &'static Place<T> {
        let mut places = self.places();
        places.free.pop().unwrap_or_else(|| {
            let place: &'static Place<T> = Box::leak(Box::new(Place::new(Some(self), None)));
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
    /// object does not outlive the handle.
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
        // A thread that ends keeps no look-up, and the place of a call has that of no other one
        // within it.
        let place = match cache.try_with(|cache| cache.place(self)) {
            Ok(place) if !place.used.load(Ordering::Relaxed) => place,
            _ => return find().map(Lent::from),
        };
        let removals = place.begin(self);
        // From here on it ends the use.
        let lent = Lent(NonNull::from(place), PhantomData);
        if place.looked_up.load(Ordering::Relaxed) == removals
            // SAFETY: this thread owns the place, and no handle was removed since it looked up.
            && unsafe { place.kept() }.is_some_and(|kept| kept.0 == key)
        {
            return Ok(lent);
        }
        // Objects are looked for, and may end.
        let _whole = Uncancelled::begin();
        let (kept, result) = match find() {
            Ok(object) => (Some((key, object)), Ok(lent)),
            Err(error) => (None, Err(error)),
        };
        drop(place.change(kept, removals));
        result
    }

    /// Ends a handle and returns its object, which is then kept only by threads that are in a call
    /// with it. Blocks: some microseconds, while the system interrupts the threads.
    pub fn remove(&self, handle: usize) -> std::result::Result<Arc<T>, Dead> {
        let (index, generation) = self.parse(handle)?;
        let slot = self.slot(index).ok_or(Dead::Alien)?;
        let mut slot = slot.write().unwrap_or_else(|e| e.into_inner());
        if slot.generation != generation {
            return Err(Dead::Destroyed);
        }
        let object = slot.object.take().ok_or(Dead::Destroyed)?;
        drop(slot);
        let removal = self.removals.fetch_add(1, Ordering::SeqCst) + 1;
        let places = self.places();
        // A place that is made later sees the removal. Where the system refuses, threads that look
        // up again drop what they keep.
        let kept: Vec<_> = match !places.all.is_empty() && barrier::heavy() {
            true => places.all.iter().filter_map(|place| place.take_before(removal)).collect(),
            false => Vec::new(),
        };
        // Dropped without the lock.
        drop(places);
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
        let kept = CACHE.with(|cache| cache.place(&HANDLES).take_before(1));
        assert_eq!(kept.map(|kept| kept.0), Some(first), "it is kept");
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
    fn removals_while_threads_look_up_leave_nothing_behind() {
        static HANDLES: Handles<u32> = Handles::new(3);
        thread_local! {
            static CACHE: Cache<u32> = const { Cache::new() };
        }
        for round in 0..if cfg!(miri) { 8u32 } else { 500 } {
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
