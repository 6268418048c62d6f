//! The control block, in memory of the host, by which the host and running kernels communicate.

use crate::device::cuda::driver::Gpu;
use crate::device::cuda::memory::pool::Block;
use crate::error::Result;
use crate::recorder::Recorder;
use oxccl_kernels::abi;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The [`abi::Control`] of a rank.
pub(super) struct Control {
    block: Block,
    /// How often kernels had said that they wait, at the last look, and for how long the last one
    /// had waited.
    waits: AtomicU64,
    waited_ns: AtomicU64,
}

impl Control {
    /// Allocates the block. Requires the GPU's context to be current on this thread.
    pub(super) fn new(gpu: &'static Gpu) -> Result<Self> {
        let block = Block::on_host(gpu, size_of::<abi::Control>())?;
        let control = Self { block, waits: AtomicU64::new(0), waited_ns: AtomicU64::new(0) };
        // SAFETY: memory of that size and alignment, which nobody else knows yet.
        unsafe { control.pointer().write(abi::Control::default()) };
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

    /// Returns a word that changes.
    pub(super) fn word(word: &u32) -> &AtomicU32 {
        // SAFETY: an aligned word of the control block, which all access atomically.
        unsafe { AtomicU32::from_ptr(std::ptr::from_ref(word).cast_mut()) }
    }

    /// Returns a word of 64 bits that changes.
    pub(super) fn count(word: &u64) -> &AtomicU64 {
        // SAFETY: an aligned word of the control block, which all access atomically; kernels write
        // it in one store.
        unsafe { AtomicU64::from_ptr(std::ptr::from_ref(word).cast_mut()) }
    }

    /// Records what kernels wait for, with ranks by their numbers in the communicator, which
    /// `named` returns. Calls no driver, which a launch may hold up.
    pub(super) fn record(&self, recorder: &Recorder, named: impl Fn(i32) -> i32) {
        let words = self.words();
        let count = |word| Self::count(word).load(Ordering::Relaxed);
        let word = |word| Self::word(word).load(Ordering::Relaxed);
        let waits = count(&words.waits);
        if self.waits.swap(waits, Ordering::Relaxed) != waits {
            let waited_ns = count(&words.waited_ns);
            let first = self.waited_ns.swap(waited_ns, Ordering::Relaxed) >= waited_ns;
            let [peer, step] = [&words.awaited, &words.awaited_step].map(|w| word(w) as i32);
            recorder.kernel_waits(named(peer), step, first);
        }
    }
}
