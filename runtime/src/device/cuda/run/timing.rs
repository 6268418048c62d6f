//! The thread blocks of operations and their times by the GPU's clock, for profilers.

use crate::device::cuda::driver::{Gpu, Relaxed, cu};
use crate::device::cuda::event::Event;
use crate::device::cuda::memory::pool::Block;
use crate::device::cuda::run::captured::{Captured, CapturedBlocks};
use crate::device::cuda::stream::Stream;
use crate::error::Result;
use oxccl_kernels::abi;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// The most thread blocks of an operation whose times are told: those of a launch that sends to as
/// many ranks as it can, and receives from them. Profilers number channels by 8 bits.
const MOST_BLOCKS: u32 = (abi::QUEUES * abi::LANES) as u32;
const _: () = assert!(MOST_BLOCKS >= abi::MAX_CHANNELS as u32 && MOST_BLOCKS <= u8::MAX as u32);

/// The operations that may be under way, or whose times are not read yet, at a time. Of further
/// ones no times are told.
const SLOTS: u32 = 512;

/// Bytes of the stamps of an operation.
const SLOT_BYTES: u64 = (MOST_BLOCKS as usize * size_of::<abi::Stamp>()) as u64;

/// A mark in a stream: an event that was recorded there, and its GPU. Its context has to be current
/// on threads that ask: in their own they would get one on the first GPU.
pub struct Mark {
    event: Event,
    gpu: &'static Gpu,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Mark {}

impl Mark {
    /// Returns whether the GPU has come to the mark. What the driver does not tell any more counts
    /// as over.
    fn is_over(&self) -> bool {
        self.gpu.enter().and_then(|_context| self.event.query()).unwrap_or(true)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // An event that cannot be destroyed any more ends with the process.
        let _ = self.gpu.enter().and_then(|_context| self.event.destroy());
    }
}

/// The times and marks of a communicator. Its rank keeps them until no kernel runs any more.
#[derive(Default)]
pub struct Timing {
    /// `None` where nobody asks for times, or the driver has no memory for them.
    stamps: OnceLock<Stamps>,
    captured: OnceLock<Captured>,
    /// Marks to use again: making one takes longer than using it.
    marks: Mutex<Vec<Mark>>,
}

/// Memory of the host into which kernels write the times of their blocks.
struct Stamps {
    at: u64,
    /// The owner of the memory.
    _memory: Box<dyn Send + Sync>,
    /// The slots that no operation has. A slot into which kernels may still write stays away.
    free: Mutex<Vec<u32>>,
}

impl Stamps {
    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the address of a slot.
    fn at(&self, slot: u32) -> u64 {
        self.at + u64::from(slot) * SLOT_BYTES
    }
}

impl Timing {
    /// Allocates the memory for times. Not while operations are called: the driver may wait for the
    /// work of the GPU.
    pub fn allocate(&self, gpu: &'static Gpu) -> Result<()> {
        let (_context, _relaxed) = (gpu.enter()?, Relaxed::begin()?);
        let block = Block::on_host(gpu, SLOTS as usize * SLOT_BYTES as usize)?;
        self.keep(block.at(), Box::new(block));
        self.keep_captured(Captured::allocate(gpu)?);
        Ok(())
    }

    /// Returns the times of blocks in graphs; `None` as for the others.
    pub fn captured(&self) -> Option<&Captured> {
        self.captured.get()
    }

    pub(super) fn keep_captured(&self, captured: Captured) {
        self.captured.get_or_init(|| captured);
    }

    fn keep(&self, at: u64, _memory: Box<dyn Send + Sync>) {
        let free = Mutex::new((0..SLOTS).collect());
        self.stamps.get_or_init(|| Stamps { at, _memory, free });
    }

    /// Takes all that is to be destroyed.
    pub fn take(&self) -> impl Sized + use<> {
        std::mem::take(&mut *self.marks())
    }

    fn marks(&self) -> MutexGuard<'_, Vec<Mark>> {
        self.marks.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Marks the present end of a stream, which is not captured.
    pub fn mark(&self, gpu: &'static Gpu, stream: Stream) -> Result<Mark> {
        let free = self.marks().pop();
        let new = || Event::new(gpu.index).map(|event| Mark { event, gpu });
        let mark = free.map_or_else(new, Ok)?;
        let _context = gpu.enter()?;
        // SAFETY: a living event, and a living stream by the contract of the call.
        unsafe { cu!(cuEventRecord(mark.event.0, stream.0)) }?;
        Ok(mark)
    }
}

/// The graph of a captured operation, which is gone once this is, and the places of its launches.
type InGraph = Option<(Weak<()>, RefCell<Vec<Range<u32>>>)>;

/// The thread blocks of an operation, for a profiler that is told when it has ended, and may ask
/// for their times.
pub struct TimedBlocks {
    timing: Arc<Timing>,
    asked: bool,
    /// `None` if there is no memory, or no slot is free, and in graphs.
    slot: Option<u32>,
    in_graph: InGraph,
    /// The blocks of all launches so far.
    count: Cell<u32>,
    /// The blocks of each queue of messages in each launch, in their order.
    queues: RefCell<Vec<(u32, Range<u32>)>>,
    /// The blocks of each transfer; empty for collectives, which have all blocks.
    of_transfers: RefCell<Vec<Range<u32>>>,
}

impl TimedBlocks {
    /// Returns those of an operation that has launched nothing yet. `asked` tells whether the
    /// profiler asks for times.
    pub fn new(timing: &Arc<Timing>, asked: bool) -> Self {
        let slot = timing.stamps.get().and_then(|stamps| stamps.free().pop());
        Self::with(timing, asked, (slot, None))
    }

    /// Returns those of an operation that a graph captures, as [`new`](Self::new) does. `graph` is
    /// gone once the graph is.
    pub fn captured(timing: &Arc<Timing>, asked: bool, graph: Weak<()>) -> Self {
        Self::with(timing, asked, (None, Some((graph, RefCell::default()))))
    }

    fn with(timing: &Arc<Timing>, asked: bool, (slot, in_graph): (Option<u32>, InGraph)) -> Self {
        let (count, queues, of_transfers) = Default::default();
        Self { timing: timing.clone(), asked, slot, in_graph, count, queues, of_transfers }
    }

    /// Counts the blocks of a launch that follows; returns what its kernel is told of
    /// [`abi::Stamp`]s or [`abi::CapturedBlock`]s, 0 if no times are told.
    pub fn add(&self, blocks: u32) -> u64 {
        let first = self.count.replace(self.count.get() + blocks);
        if let Some((_, launches)) = &self.in_graph {
            let taken = self.timing.captured().and_then(|captured| captured.take(blocks));
            let Some((places, told)) = taken else { return 0 };
            launches.borrow_mut().push(places);
            return told;
        }
        let Some(slot) = self.slot() else { return 0 };
        let at = slot + u64::from(first) * size_of::<abi::Stamp>() as u64;
        let stamps = std::ptr::with_exposed_provenance_mut::<abi::Stamp>(at as usize);
        // SAFETY: so many stamps of the slot, into which no kernel writes yet; all zeros are
        // stamps.
        unsafe { stamps.write_bytes(0, blocks as usize) };
        at
    }

    /// Notes the queues of messages that the launch which follows carries. Each has so many lanes,
    /// of which a block carries so many, in the order of the queues.
    pub fn note_queues(&self, queues: impl Iterator<Item = u32>, (lanes, of_block): (u32, u32)) {
        let first = self.count.get();
        let mut end = 0;
        self.queues.borrow_mut().extend(queues.map(|queue| {
            let begin = end;
            end += lanes;
            (queue, first + begin / of_block..first + end.div_ceil(of_block))
        }));
    }

    /// Spreads transfers over the blocks of their queues, of which a launch carries up to `depth`
    /// messages each. `queues` are those of the transfers, in their order.
    pub fn spread(&self, queues: impl Iterator<Item = u32>, depth: usize) {
        let launched = self.queues.borrow();
        let mut before: Vec<u32> = Vec::new();
        let blocks = queues.map(|queue| {
            let number = before.iter().filter(|of| **of == queue).count();
            before.push(queue);
            let mut launches = launched.iter().filter(|(of, _)| *of == queue);
            // The messages of a rank to itself are copied, by no block.
            launches.nth(number / depth).map_or(0..0, |(_, blocks)| blocks.clone())
        });
        *self.of_transfers.borrow_mut() = blocks.collect();
    }

    /// Returns whether all blocks of the launches so far tell their times.
    pub fn have_times(&self) -> bool {
        let blocks_of = |launches: &RefCell<Vec<Range<u32>>>| {
            launches.borrow().iter().map(|places| places.end - places.start).sum::<u32>()
        };
        let count = self.count.get();
        match &self.in_graph {
            Some((_, launches)) => {
                (1..=MOST_BLOCKS).contains(&count) && blocks_of(launches) == count
            }
            None => self.slot().is_some(),
        }
    }

    /// Returns what reads the times of a captured operation in each run of its graph, if all of its
    /// blocks tell them, and has its places until the graph is gone; `None` for one without places.
    pub fn into_captured(mut self) -> Option<CapturedBlocks> {
        let told = self.have_times();
        let (graph, launches) = self.in_graph.take()?;
        let launches = launches.take();
        let timing = self.timing.clone();
        (!launches.is_empty()).then(|| CapturedBlocks::new(timing, graph, launches, told))
    }

    /// Returns the address of the slot; `None` if no times are told.
    fn slot(&self) -> Option<u64> {
        let slot = self.slot.filter(|_| self.count.get() <= MOST_BLOCKS)?;
        self.timing.stamps.get().map(|stamps| stamps.at(slot))
    }

    /// Returns the numbers of the blocks that carry out a part of the operation: a collective of a
    /// batch, or a transfer. None if the profiler asks for times and will not be told any.
    pub fn of(&self, part: usize) -> Range<u8> {
        if self.asked && !self.have_times() {
            return 0..0;
        }
        let of_transfers = self.of_transfers.borrow();
        let all = 0..self.count.get();
        let Range { start, end } = of_transfers.get(part).cloned().unwrap_or(all);
        let number = |number| u8::try_from(number).unwrap_or(u8::MAX);
        number(start)..number(end)
    }

    /// Returns whether the end of the operation, all launches of which are counted, is seen only by
    /// a mark behind it in its stream, which takes the driver longer: without blocks that tell
    /// their times.
    pub fn need_mark(&self) -> bool {
        self.count.get() == 0 || self.slot().is_none()
    }

    /// Returns whether a slot is taken, also where the operation has more blocks than fit there.
    pub fn have_slot(&self) -> bool {
        self.slot.is_some()
    }

    /// Returns a function that, once the operation has ended, tells when each block began and
    /// ended, in ns: nothing if there are no times. `end` is the mark behind the operation, if it
    /// [needs](Self::need_mark) one.
    pub fn times(
        self,
        end: Option<Mark>,
    ) -> impl FnMut() -> Option<Vec<(u64, u64)>> + Send + use<> {
        let mut under_way = Some((self, end));
        move || {
            let times = match under_way.as_ref()? {
                (_, Some(end)) => end.is_over().then(Vec::new)?,
                (blocks, None) => blocks.read()?,
            };
            let (blocks, end) = under_way.take()?;
            blocks.count.set(0);
            blocks.timing.marks().extend(end);
            Some(times)
        }
    }

    /// Reads the times of the operation's blocks, whose slot is free then; `None` until all have
    /// ended. A block writes each of its two times once, so no order between them matters.
    fn read(&self) -> Option<Vec<(u64, u64)>> {
        let slot = self.slot()?;
        let stamps = std::ptr::with_exposed_provenance::<abi::Stamp>(slot as usize);
        let time = |number: u32| {
            // SAFETY: one of the operation's stamps, of which a kernel writes whole words.
            let abi::Stamp { begun_ns, ended_ns } =
                unsafe { stamps.add(number as usize).read_volatile() };
            (begun_ns != 0 && ended_ns != 0).then_some((begun_ns, ended_ns.max(begun_ns)))
        };
        // The last block is mostly the last one to end.
        time(self.count.get() - 1)?;
        (0..self.count.get()).map(time).collect()
    }
}

impl Drop for TimedBlocks {
    fn drop(&mut self) {
        // Where something was launched and its end was not seen, kernels may still write.
        let unused = self.slot.filter(|_| self.count.get() == 0);
        if let Some((stamps, slot)) = self.timing.stamps.get().zip(unused) {
            stamps.free().push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(blocks: &TimedBlocks, count: usize) -> Vec<Range<u8>> {
        (0..count).map(|part| blocks.of(part)).collect()
    }

    #[test]
    fn a_transfer_has_the_blocks_of_its_queue_in_the_launch_that_takes_it() {
        let blocks = TimedBlocks::new(&Arc::default(), false);
        // Three lanes of each queue, two in a block; then one of queue 2, whose launches take two
        // messages each. Queue 8 is that of the rank itself.
        blocks.note_queues([2, 3].into_iter(), (3, 2));
        blocks.add(3);
        blocks.note_queues([2].into_iter(), (1, 2));
        blocks.add(1);
        blocks.spread([2, 8, 3, 2, 2, 3].into_iter(), 2);
        assert_eq!(parts(&blocks, 6), [0..2, 0..0, 1..3, 0..2, 3..4, 1..3]);
    }

    #[test]
    fn without_a_slot_blocks_are_counted_and_no_times_are_promised() {
        let timing = Arc::new(Timing::default());
        let launched = |asked| {
            let blocks = TimedBlocks::new(&timing, asked);
            assert_eq!((blocks.add(3), blocks.add(1)), (0, 0));
            (blocks.of(0), blocks.of(1), blocks.need_mark())
        };
        assert_eq!(launched(false), (0..4, 0..4, true));
        assert_eq!(launched(true), (0..0, 0..0, true));
    }

    #[test]
    fn an_operation_has_ended_once_all_of_its_blocks_have() {
        let timing = Arc::new(Timing::default());
        let mut memory = vec![[7u64; 2]; SLOTS as usize * MOST_BLOCKS as usize];
        let at = memory.as_mut_ptr().expose_provenance() as u64;
        timing.keep(at, Box::new(memory));
        let free = || timing.stamps.get().unwrap().free().len();
        let blocks = TimedBlocks::new(&timing, true);
        let launches = [blocks.add(2), blocks.add(1)];
        assert!(launches[1] == launches[0] + 32 && !blocks.need_mark());
        // What kernels write, in any order of the words.
        let write = |launch: usize, word: usize, ns: u64| {
            let words = std::ptr::with_exposed_provenance_mut::<u64>(launches[launch] as usize);
            // SAFETY: a word of the slot.
            unsafe { words.add(word).write_volatile(ns) };
        };
        let mut times = blocks.times(None);
        for (launch, word, ns) in [(1, 1, 90), (0, 1, 80), (0, 0, 10), (1, 0, 20), (0, 2, 15)] {
            write(launch, word, ns);
            assert_eq!((times(), free()), (None, SLOTS as usize - 1));
        }
        write(0, 3, 85);
        assert_eq!(times(), Some(vec![(10, 80), (15, 85), (20, 90)]));
        assert_eq!((times(), free()), (None, SLOTS as usize));
    }

    #[test]
    fn no_more_blocks_are_told_than_a_profiler_has_numbers_for() {
        let blocks = TimedBlocks::new(&Arc::default(), false);
        blocks.add(300);
        assert_eq!(parts(&blocks, 2), [0..255, 0..255]);
        blocks.note_queues([2].into_iter(), (1, 1));
        blocks.spread([2].into_iter(), 1);
        assert!(parts(&blocks, 1)[0].is_empty());
    }
}
