//! The thread blocks of operations in graphs and the times of their runs, for profilers.

use crate::device::cuda::driver::Gpu;
use crate::device::cuda::memory::pool::Block;
use crate::device::cuda::run::timing::Timing;
use crate::device::cuda::start::upload;
use crate::error::Result;
use crate::op::follow::Replayed;
use oxccl_kernels::abi;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The thread blocks in graphs of a communicator whose times are told at a time. Operations for
/// which there is no place tell none.
const PLACES: u32 = 4096;

/// The runs of a block that are kept, in memory of the host.
type Kept = [abi::BlockRun; abi::KEPT_RUNS];

/// Memory for the times of blocks in graphs.
pub struct Captured {
    /// The address of the places' [`abi::CapturedBlock`]s, in memory of the GPU.
    at: u64,
    /// The address of their runs, in memory of the host.
    runs: u64,
    /// The owner of the memory.
    _memory: Box<dyn Send + Sync>,
    places: Mutex<Places>,
}

/// The places that no graph has, as stretches in ascending order, no two of which meet.
struct Places(Vec<Range<u32>>);

impl Default for Places {
    fn default() -> Self {
        Self(std::iter::once(0..PLACES).collect())
    }
}

impl Places {
    /// Takes so many places in a row; `None` if there are none.
    fn take(&mut self, count: u32) -> Option<Range<u32>> {
        let at = self.0.iter().position(|free| free.end - free.start >= count)?;
        let first = self.0[at].start;
        self.0[at].start += count;
        if self.0[at].is_empty() {
            self.0.remove(at);
        }
        Some(first..first + count)
    }

    fn give(&mut self, places: Range<u32>) {
        let at = self.0.partition_point(|free| free.start < places.start);
        self.0.insert(at, places);
        let mut merged: Vec<Range<u32>> = Vec::with_capacity(self.0.len());
        for free in self.0.drain(..) {
            match merged.last_mut().filter(|last| last.end == free.start) {
                Some(last) => last.end = free.end,
                None => merged.push(free),
            }
        }
        self.0 = merged;
    }
}

impl Captured {
    /// Allocates the memory. Requires the GPU's context to be current on this thread. Not while
    /// operations are called: the driver may wait for the work of the GPU.
    pub fn allocate(gpu: &'static Gpu) -> Result<Self> {
        let host = Block::on_host(gpu, PLACES as usize * size_of::<Kept>())?;
        let of_gpu = PLACES as usize * size_of::<abi::CapturedBlock>();
        let on_gpu = Block::on_gpu(gpu, of_gpu, null_mut())?;
        let runs_of = |place: u32| host.at() + u64::from(place) * size_of::<Kept>() as u64;
        let block = |place| abi::CapturedBlock { at: runs_of(place), runs: 0 };
        upload(on_gpu.at(), &(0..PLACES).map(block).collect::<Vec<_>>())?;
        let (at, runs) = (on_gpu.at(), host.at());
        // SAFETY: memory of this size, which no kernel knows yet; all zeros are runs.
        unsafe { kept_at(runs, 0).write_bytes(0, PLACES as usize) };
        Ok(Self { at, runs, _memory: Box::new((host, on_gpu)), places: Mutex::default() })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes places for the blocks of a launch. Returns them, and what the kernel is told of them;
    /// `None` if there are none.
    pub fn take(&self, blocks: u32) -> Option<(Range<u32>, u64)> {
        let places = self.places().take(blocks)?;
        let first = u64::from(places.start) * size_of::<abi::CapturedBlock>() as u64;
        Some((places, (self.at + first) | 1))
    }

    /// Returns the last run of a block, of those that it has ended.
    fn last_run(&self, place: u32) -> u64 {
        let ended = (0..abi::KEPT_RUNS as u64).map(|run| self.run(place, run).ended.run);
        ended.max().unwrap_or_default()
    }

    /// Returns what a block has told of a run, or of an earlier one in its place.
    fn run(&self, place: u32, run: u64) -> abi::BlockRun {
        let kept = kept_at(self.runs, place).cast::<abi::BlockRun>();
        let index = (run % abi::KEPT_RUNS as u64) as usize;
        // SAFETY: a run of this place, of which a kernel writes whole words.
        unsafe { kept.add(index).read_volatile() }
    }
}

/// Returns the runs of a place.
fn kept_at(runs: u64, place: u32) -> *mut Kept {
    let first = std::ptr::with_exposed_provenance_mut::<Kept>(runs as usize);
    first.wrapping_add(place as usize)
}

/// A block of an operation, with its latest run that was told.
struct Seen {
    place: u32,
    run: u64,
    ended_ns: u64,
}

/// The thread blocks of an operation in a graph.
pub struct CapturedBlocks {
    timing: Arc<Timing>,
    /// Gone once the graph is.
    graph: Weak<()>,
    /// The places of each launch.
    launches: Vec<Range<u32>>,
    /// None if not all tell their times.
    blocks: Vec<Seen>,
    /// True if the next run's times were not in order at the last look.
    doubted: bool,
}

impl CapturedBlocks {
    /// Returns those of an operation whose graph has not run yet. Unless its runs are to be `told`,
    /// it only has the places.
    pub fn new(
        timing: Arc<Timing>,
        graph: Weak<()>,
        launches: Vec<Range<u32>>,
        told: bool,
    ) -> Self {
        let places = launches.iter().cloned().flatten().filter(|_| told);
        let seen = |place| {
            let captured = timing.captured()?;
            let run = captured.last_run(place);
            Some(Seen { place, run, ended_ns: captured.run(place, run).ended.ns })
        };
        let blocks = places.filter_map(seen).collect();
        Self { timing, graph, launches, blocks, doubted: false }
    }

    /// Returns how many runs are to be left out, as they are written over or may be meanwhile;
    /// `None` if none has ended since the latest one that was told.
    fn lost(&self, captured: &Captured) -> Option<u64> {
        let Seen { place, run, .. } = *self.blocks.first()?;
        match captured.run(place, run + 1).ended.run {
            old if old <= run => None,
            next if next == run + 1 => Some(0),
            _ => Some((captured.last_run(place) - run).saturating_sub(abi::KEPT_RUNS as u64 - 2)),
        }
    }
}

impl Replayed for CapturedBlocks {
    fn next(&mut self, before_ns: u64) -> Option<Vec<(u64, u64)>> {
        let captured = self.timing.captured()?;
        let lost = self.lost(captured)?;
        self.blocks.iter_mut().for_each(|block| block.run += lost);
        let of = |block: &Seen| {
            let abi::BlockRun { begun, ended } = captured.run(block.place, block.run + 1);
            let is_it = begun.run == block.run + 1 && ended.run == begun.run;
            is_it.then_some((begun.ns, ended.ns))
        };
        let mut times = self.blocks.iter().map(of).collect::<Option<Vec<_>>>()?;
        // The words of a time need not come together; a clock that has gone back stays so.
        let in_order =
            |(block, times): (&Seen, &(u64, u64))| block.ended_ns <= times.0 && times.0 <= times.1;
        let doubted = !self.blocks.iter().zip(&times).all(in_order);
        if doubted && !std::mem::replace(&mut self.doubted, true) {
            return None;
        }
        self.doubted = false;
        for (block, (begun_ns, ended_ns)) in self.blocks.iter().zip(&mut times) {
            *begun_ns = block.ended_ns.max(*begun_ns);
            *ended_ns = (*ended_ns).max(*begun_ns);
        }
        if times.first()?.0 >= before_ns {
            return None;
        }
        for (block, (_, ended_ns)) in self.blocks.iter_mut().zip(&times) {
            (block.run, block.ended_ns) = (block.run + 1, *ended_ns);
        }
        Some(times)
    }

    fn is_over(&self) -> bool {
        self.graph.strong_count() == 0
    }
}

impl Drop for CapturedBlocks {
    fn drop(&mut self) {
        // Where the graph is still there, its kernels may write.
        if let Some(captured) = self.timing.captured().filter(|_| self.is_over()) {
            let mut places = captured.places();
            self.launches.drain(..).for_each(|launch| places.give(launch));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning and the end of a run, in ns; `None` for what is not written.
    type Written = [Option<u64>; 2];

    /// Memory as of a GPU, and what writes the times of a run there as a kernel does.
    fn memory() -> (Arc<Timing>, impl Fn(u32, u64, Written)) {
        let mut memory = vec![[abi::BlockRun::default(); abi::KEPT_RUNS]; PLACES as usize];
        let runs = memory.as_mut_ptr().expose_provenance() as u64;
        let (at, _memory) = (1 << 20, Box::new(memory));
        let timing = Arc::new(Timing::default());
        timing.keep_captured(Captured { at, runs, _memory, places: Mutex::default() });
        let write = move |place, run: u64, times: Written| {
            let kept = kept_at(runs, place).cast::<abi::BlockTime>();
            for (i, ns) in times.into_iter().enumerate().filter_map(|(i, ns)| Some((i, ns?))) {
                let at = run as usize % abi::KEPT_RUNS * 2 + i;
                // SAFETY: a time of the memory.
                unsafe { kept.add(at).write_volatile(abi::BlockTime { ns, run }) };
            }
        };
        (timing, write)
    }

    fn blocks(timing: &Arc<Timing>, graph: &Arc<()>, counts: &[u32]) -> CapturedBlocks {
        let captured = timing.captured().unwrap();
        let launches = counts.iter().map(|&count| captured.take(count).unwrap().0).collect();
        CapturedBlocks::new(timing.clone(), Arc::downgrade(graph), launches, true)
    }

    #[test]
    fn a_run_has_ended_once_all_of_its_blocks_have() {
        let ((timing, write), graph) = (memory(), Arc::new(()));
        let mut of = blocks(&timing, &graph, &[2, 1]);
        write(0, 1, [Some(10), Some(20)]);
        write(1, 1, [Some(11), Some(21)]);
        write(2, 1, [Some(15), None]);
        assert_eq!(of.next(u64::MAX), None);
        write(2, 1, [None, Some(25)]);
        assert_eq!(of.next(10), None, "only of what began before");
        assert_eq!(of.next(11), Some(vec![(10, 20), (11, 21), (15, 25)]));
        assert_eq!(of.next(u64::MAX), None);
        write(0, 2, [Some(30), Some(40)]);
        write(2, 2, [Some(30), Some(40)]);
        assert_eq!(of.next(u64::MAX), None, "a block is not there yet");
        write(1, 2, [Some(31), Some(39)]);
        assert_eq!(of.next(u64::MAX), Some(vec![(30, 40), (31, 39), (30, 40)]));
    }

    #[test]
    fn what_is_written_over_is_left_out_and_the_latest_runs_are_told() {
        let ((timing, write), graph) = (memory(), Arc::new(()));
        let mut of = blocks(&timing, &graph, &[1]);
        let both = |run: u64| [Some(10 * run), Some(10 * run + 5)];
        (1..=40).for_each(|run| write(0, run, both(run)));
        let told: Vec<_> = std::iter::from_fn(|| of.next(u64::MAX)).collect();
        assert_eq!(told.first(), Some(&vec![(270, 275)]));
        assert_eq!((told.last(), told.len()), (Some(&vec![(400, 405)]), 14));
        // A number that comes before its time, and a clock that goes back.
        write(0, 41, [Some(410), Some(255)]);
        assert_eq!(of.next(u64::MAX), None);
        write(0, 41, both(41));
        assert_eq!(of.next(u64::MAX), Some(vec![(410, 415)]));
        write(0, 42, [Some(300), Some(302)]);
        assert_eq!(of.next(u64::MAX), None);
        assert_eq!(of.next(u64::MAX), Some(vec![(415, 415)]));
    }

    #[test]
    fn places_in_a_row_meet_again_and_those_of_what_is_not_told_come_back() {
        let ((timing, _), graph) = (memory(), Arc::new(()));
        let captured = timing.captured().unwrap();
        let launches = vec![captured.take(100).unwrap().0, captured.take(29).unwrap().0];
        let of = CapturedBlocks::new(timing.clone(), Arc::downgrade(&graph), launches, false);
        let other = blocks(&timing, &graph, &[7]);
        assert_eq!(captured.take(PLACES - 129), None);
        drop(graph);
        drop(of);
        assert_eq!(captured.take(129).map(|(places, _)| places), Some(0..129));
        captured.places().give(0..129);
        drop(other);
        assert_eq!(captured.take(PLACES).map(|(places, _)| places), Some(0..PLACES));
    }

    #[test]
    fn places_of_graphs_that_are_gone_are_used_again_from_where_they_stand() {
        let ((timing, write), graph) = (memory(), Arc::new(()));
        let captured = timing.captured().unwrap();
        let first = blocks(&timing, &graph, &[3]);
        write(1, 1, [Some(10), Some(20)]);
        drop(first);
        assert_eq!(captured.take(3).unwrap(), (3..6, (1 << 20) + 3 * 16 + 1), "the graph is there");
        let second = blocks(&timing, &graph, &[2]);
        drop(graph);
        assert!(second.is_over());
        write(6, 1, [Some(10), Some(20)]);
        drop(second);
        let graph = Arc::new(());
        let mut third = blocks(&timing, &graph, &[2]);
        assert_eq!(third.launches, vec![6..8]);
        write(6, 2, [Some(30), Some(40)]);
        write(7, 1, [Some(31), Some(41)]);
        assert_eq!(third.next(u64::MAX), Some(vec![(30, 40), (31, 41)]));
        assert_eq!(captured.take(PLACES), None);
        assert_eq!(captured.take(PLACES - 8).map(|(places, _)| places.start), Some(8));
    }
}
