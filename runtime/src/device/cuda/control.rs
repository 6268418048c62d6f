//! The control block, in memory of the host, by which the host and running kernels communicate.

use crate::device::cuda::driver::Gpu;
use crate::device::cuda::memory::pool::Block;
use crate::error::Result;
use crate::op::descriptor::Descriptor;
use crate::recorder::kernels::{GpuClock, KernelRun};
use crate::recorder::{KernelCollective, Recorder};
use oxccl_kernels::abi;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The [`abi::Control`] of a rank.
pub(super) struct Control {
    block: Block,
    /// The number of times that kernels had said that they wait, at the last look.
    waits: AtomicU64,
    runs: Mutex<Runs>,
}

/// The collectives and messages of which kernels have told, as far as they are recorded.
#[derive(Default)]
struct Runs {
    clock: GpuClock,
    /// The latest one, as it was recorded last.
    latest: Option<KernelRun>,
}

impl Control {
    /// Allocates the block. Requires the GPU's context to be current on this thread.
    pub(super) fn new(gpu: &'static Gpu) -> Result<Self> {
        let block = Block::on_host(gpu, size_of::<abi::Control>())?;
        let control = Self { block, waits: AtomicU64::new(0), runs: Mutex::default() };
        // SAFETY: memory of that size and alignment, which nobody else knows yet, and whose words
        // may all be zero.
        unsafe { control.pointer().write_bytes(0, 1) };
        Ok(control)
    }

    /// Returns the address of the block, for kernels.
    pub(super) fn at(&self) -> u64 {
        self.block.at()
    }

    fn pointer(&self) -> *mut abi::Control {
        std::ptr::with_exposed_provenance_mut(self.block.at() as usize)
    }

    /// Returns the block. What kernels change is read by [`word`](Self::word) and
    /// [`count`](Self::count); what belongs to a fault does not change after the fault.
    pub(super) fn words(&self) -> &abi::Control {
        // SAFETY: it lives as long as this value; words that change are accessed by atomics.
        unsafe { &*self.pointer() }
    }

    /// Makes running kernels give up.
    pub(super) fn abort(&self) {
        // SAFETY: an aligned word of the control block, which all access atomically.
        let abort = unsafe { AtomicU32::from_ptr(&raw mut (*self.pointer()).abort) };
        abort.store(1, Ordering::Release);
    }

    /// Sets the longest time that kernels wait, in ns; 0 for no limit.
    pub(super) fn set_limit(&self, limit_ns: u64) {
        // SAFETY: as above.
        let limit = unsafe { AtomicU64::from_ptr(&raw mut (*self.pointer()).limit_ns) };
        limit.store(limit_ns, Ordering::Relaxed);
    }

    /// Notes that the rank at a place has left in order.
    pub(super) fn note_left(&self, place: usize) {
        // SAFETY: as above.
        let left = unsafe { AtomicU64::from_ptr(&raw mut (*self.pointer()).left) };
        left.fetch_or(1 << place, Ordering::Release);
    }

    /// Reads a word that kernels change.
    pub(super) fn word(word: &u32, order: Ordering) -> u32 {
        // SAFETY: an aligned word of the control block, which is only read here, and which kernels
        // write in one store.
        unsafe { AtomicU32::from_ptr(std::ptr::from_ref(word).cast_mut()) }.load(order)
    }

    /// Reads a word of 64 bits that kernels change.
    pub(super) fn count(word: &u64) -> u64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(std::ptr::from_ref(word).cast_mut()) }.load(Ordering::Relaxed)
    }

    /// Records what kernels wait for, with ranks by their numbers in the communicator, which
    /// `named` returns. Calls no driver, which a launch may hold up.
    pub(super) fn record(&self, recorder: &Recorder, named: impl Fn(i32) -> i32) {
        // One after the other: what two threads have read must not be mixed up.
        let mut known = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let words = self.words();
        let waits = Self::count(&words.waits);
        let (told, again) = (self.told(), self.told());
        // What a kernel is writing just now is recorded the next time.
        if told == again && self.waits.swap(waits, Ordering::Relaxed) != waits {
            let ((peer, step), collective, waited_ns) = told;
            recorder.kernel_waits((named(peer), step), collective, waited_ns);
        }
        let Runs { clock, latest } = &mut *known;
        let runs: Vec<_> = self.words().runs.iter().map(Self::run).collect();
        let newest = runs.iter().flatten().max_by_key(|run| run.begun_ns).copied();
        if newest != *latest {
            *latest = newest;
            recorder.kernels_run(clock, &runs);
        }
    }

    /// Returns what kernels tell of a collective, or of messages; `None` if they tell of none, or
    /// are writing it.
    fn run(words: &abi::Run) -> Option<KernelRun> {
        let abi::Run { number, begun_ns, call, what, count, of, ended, ended_ns } = words;
        let words = [number, begun_ns, call, what, count, of, ended, ended_ns].map(Self::count);
        let [number, begun_ns, call, what, count, of, ended, ended_ns] = words;
        let is_whole = of == number && what >> 32 == number & u64::from(u32::MAX);
        let before = number.checked_sub(1).filter(|_| is_whole)?;
        Some(KernelRun {
            number: if number & abi::MESSAGES_BEGUN == 0 { Some(before) } else { None },
            call: call.checked_sub(1),
            descriptor: Descriptor::from_words(what as u32, count),
            begun_ns,
            // The words of the end may be those of an old one in this place.
            ended_ns: (ended == number).then_some(ended_ns),
        })
    }

    /// Returns what kernels say that they wait for: the peer by its name and the step, in which
    /// collective if in one, and for how long.
    fn told(&self) -> ((i32, i32), Option<KernelCollective>, u64) {
        let words = self.words();
        let word = |word| Self::word(word, Ordering::Relaxed);
        let [peer, step] = [&words.awaited, &words.awaited_step].map(|of| word(of) as i32);
        let number = Self::count(&words.awaited_in).checked_sub(1);
        let collective = number.map(|number| KernelCollective {
            number,
            descriptor: Descriptor::from_words(
                word(&words.awaited_what),
                Self::count(&words.awaited_count),
            ),
            // Ranks of other hosts, which have these numbers, announce nothing here.
            peer_has_begun: (peer < abi::MAX_RANKS as i32)
                .then(|| word(&words.awaited_has_begun) != 0),
        });
        ((peer, step), collective, Self::count(&words.waited_ns))
    }
}
