//! Windows: random puts and signals, compared with what every rank knows to be written.

use crate::failures::{abort_now, told};
use crate::rank::{Memory, Outcome, Rank, Replay, group, ok, one};
use oxccl::nccl::types::{NCCL_WIN_DEFAULT, ncclWaitSignalDesc_t, ncclWindow_t};
use oxccl::nccl::window::{
    ncclCommWindowDeregister, ncclCommWindowRegister, ncclPutSignal, ncclSignal, ncclWaitSignal,
};
use oxccl::oxccl::types::oxcclCaptureMode_t::oxcclCaptureThreadLocal;
use oxccl_plan::DataType;
use oxccl_tests::number;
use oxccl_tests::sequence::Random;
use std::collections::BTreeMap;
use std::ffi::c_void;

/// Bytes of a window that each rank may write.
const SHARE: usize = 300_000;
/// Bytes around a window that nobody may write, as many as windows are aligned to.
const GUARD: usize = 4096;
/// As many as main.rs asks for.
const CONTEXTS: u64 = 4;
/// More windows are made one after the other than may be there at a time.
const GENERATIONS: u64 = 25;

/// A window of a rank.
pub(crate) struct Window<'a> {
    rank: &'a Rank,
    handle: ncclWindow_t,
}

impl<'a> Window<'a> {
    pub(crate) fn new(rank: &'a Rank, at: *mut c_void, bytes: usize) -> Outcome<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: memory that outlives the window, and a place for the handle.
        ok(unsafe { ncclCommWindowRegister(rank.comm, at, bytes, &mut handle, NCCL_WIN_DEFAULT) })?;
        Ok(Self { rank, handle })
    }

    /// Puts bytes at an offset into the window of a peer.
    pub(crate) fn put(
        &self,
        (from, bytes): (*const c_void, usize),
        (peer, offset): (i32, usize),
        (index, context): Signal,
    ) -> Outcome {
        let (byte, handle) = (number(DataType::Uint8 as i32), self.handle);
        let Rank { comm, stream, .. } = *self.rank;
        // SAFETY: the source has so many bytes, and stays until the put is complete.
        ok(unsafe {
            ncclPutSignal(from, bytes, byte, peer, handle, offset, index, context, 0, comm, stream)
        })
    }

    pub(crate) fn end(self) -> Outcome {
        // SAFETY: a handle of this communicator.
        ok(unsafe { ncclCommWindowDeregister(self.rank.comm, self.handle) })
    }
}

/// Index and context.
pub(crate) type Signal = (i32, i32);

pub(crate) fn wait(rank: &Rank, awaited: &BTreeMap<(i32, Signal), i32>) -> Outcome {
    let one = |(&(peer, (index, context)), &count): (&(i32, Signal), &i32)| ncclWaitSignalDesc_t {
        opCnt: count,
        peer,
        sigIdx: index,
        ctx: context,
    };
    let mut list: Vec<_> = awaited.iter().map(one).collect();
    // SAFETY: descriptors that are read at once.
    ok(unsafe { ncclWaitSignal(list.len() as i32, list.as_mut_ptr(), rank.comm, rank.stream) })
}

/// What a rank does to another one, or to itself.
struct Action {
    from: i32,
    to: i32,
    signal: Signal,
    /// The place in the source, that in the share of the window, and how many bytes; None for a
    /// signal alone.
    put: Option<(usize, usize, usize)>,
}

impl Action {
    fn draw(random: &mut Random, nranks: i32) -> Self {
        let mut below = |bound: u64| random.below(bound);
        let (from, to) = (below(nranks as u64) as i32, below(nranks as u64) as i32);
        let signal = ([0, 1, 15][below(3) as usize], below(CONTEXTS) as i32);
        let (source, at) = (below(SHARE as u64 + 1) as usize, below(SHARE as u64 + 1) as usize);
        let most = SHARE - source.max(at);
        let most = [0, 16, 200, 20_000, SHARE, SHARE][below(6) as usize].min(most);
        let bytes = below(most as u64 + 1) as usize;
        let put = (below(5) > 0).then_some((source, at, bytes));
        Self { from, to, signal, put }
    }

    fn call(&self, window: &Window<'_>, source: &Memory) -> Outcome {
        let Rank { rank, comm, stream, .. } = *window.rank;
        match self.put {
            Some((from, at, bytes)) => {
                let at = rank as usize * SHARE + at;
                window.put((source.part(from), bytes), (self.to, at), self.signal)
            }
            None => {
                let (index, context) = self.signal;
                // SAFETY: any numbers may be passed.
                ok(unsafe { ncclSignal(self.to, index, context, 0, comm, stream) })
            }
        }
    }
}

/// What a rank puts.
fn source(rank: i32) -> Vec<u8> {
    let mut random = Random(rank as u64 + 77);
    (0..SHARE).map(|_| random.draw() as u8).collect()
}

/// Memory in which a rank has windows, and what has to be in it.
struct Target {
    memory: Memory,
    /// Where windows begin: not at the same place on all ranks.
    base: usize,
    model: Vec<u8>,
}

impl Target {
    fn new(rank: &Rank) -> Outcome<Self> {
        let base = GUARD * (1 + rank.rank as usize % 3);
        let model = vec![0xa5; base + SHARE * rank.nranks as usize + GUARD];
        let memory = Memory::new(model.len())?;
        rank.upload(memory.at, &model)?;
        Ok(Self { memory, base, model })
    }

    fn window<'a>(&self, rank: &'a Rank) -> Outcome<Window<'a>> {
        let bytes = SHARE * rank.nranks as usize;
        Window::new(rank, self.memory.part(self.base), bytes)
    }

    /// Writes what others put.
    fn apply(&mut self, action: &Action, sources: &[Vec<u8>]) {
        let Some((from, at, bytes)) = action.put else { return };
        let start = self.base + action.from as usize * SHARE + at;
        let source = &sources[action.from as usize];
        self.model[start..start + bytes].copy_from_slice(&source[from..from + bytes]);
    }
}

/// Puts of all sizes at odd places, and signals, grouped or not, into windows that come and go;
/// then one put that is captured.
pub(crate) fn random(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let sources: Vec<_> = (0..rank.nranks).map(source).collect();
    let from = Memory::new(SHARE)?;
    rank.upload(from.at, &sources[rank.rank as usize])?;
    let scratch = Memory::new(4)?;
    // Two windows over the same memory, and one apart.
    let mut targets = [Target::new(rank)?, Target::new(rank)?];
    let mut random = Random(3);
    for generation in 0..GENERATIONS {
        let windows = [0, 0, 1].map(|of| targets[of].window(rank).map(|window| (of, window)));
        let windows = windows.into_iter().collect::<Outcome<Vec<_>>>()?;
        for round in 0..6 {
            let number = 1 + random.below(8);
            let actions: Vec<_> =
                (0..number).map(|_| Action::draw(&mut random, rank.nranks)).collect();
            let (of, window) = &windows[random.below(3) as usize];
            let calls = || act(rank, &actions, window, &from);
            if random.below(2) == 0 {
                group(calls)?
            } else {
                calls()?
            }
            rank.synchronize()?;
            let target = &mut targets[*of];
            let put = actions.iter().filter(|action| action.to == rank.rank);
            put.for_each(|action| target.apply(action, &sources));
            let checked = rank.expect(target.memory.at, &target.model);
            checked.map_err(|e| format!("{e} in round {round} of {generation}"))?;
            rank.meet(scratch.at)?;
        }
        windows.into_iter().try_for_each(|(_, window)| window.end())?;
    }
    captured(rank, &targets[0], &from, &scratch)?;
    rank.leave()
}

/// A rank's part of what all do: its puts and signals, and the wait for those of others.
fn act(rank: &Rank, actions: &[Action], window: &Window<'_>, from: &Memory) -> Outcome {
    let mut own = actions.iter().filter(|action| action.from == rank.rank);
    own.try_for_each(|action| action.call(window, from))?;
    let mut awaited = BTreeMap::new();
    for action in actions.iter().filter(|action| action.to == rank.rank) {
        *awaited.entry((action.from, action.signal)).or_default() += 1;
    }
    if awaited.is_empty() { Ok(()) } else { wait(rank, &awaited) }
}

/// A put to the next rank, captured and replayed with other data each time.
fn captured(rank: &Rank, target: &Target, from: &Memory, scratch: &Memory) -> Outcome {
    const BYTES: usize = 70_001;
    let window = target.window(rank)?;
    let (next, before) = rank.neighbours();
    let (offset, signal) = (13, (7, 2));
    let replay = Replay::capture(rank.stream, oxcclCaptureThreadLocal, || {
        window.put((from.part(3), BYTES), (next, offset), signal)?;
        wait(rank, &BTreeMap::from([((before, signal), 1)]))
    })?;
    let data = |of: i32, round: u64| {
        let mut random = Random(round << 8 | of as u64);
        (0..BYTES).map(|_| random.draw() as u8).collect::<Vec<_>>()
    };
    let mut model = target.model.clone();
    let start = target.base + offset;
    for round in 0..50 {
        rank.upload(from.part(3), &data(rank.rank, round))?;
        replay.launch(rank.stream)?;
        rank.synchronize()?;
        model[start..start + BYTES].copy_from_slice(&data(before, round));
        let checked = rank.expect(target.memory.at, &model);
        checked.map_err(|e| format!("{e} in replay {round}"))?;
        rank.meet(scratch.at)?;
    }
    drop(replay);
    window.end()
}

/// Puts once to the next rank; `memory` holds 10 000 bytes.
pub(crate) fn put_once(rank: &Rank, memory: &Memory) -> Outcome {
    const BYTES: usize = 5000;
    let (next, before) = rank.neighbours();
    let own = |of: i32| vec![of as u8 + 1; BYTES];
    rank.upload(memory.part(BYTES), &own(rank.rank))?;
    let window = Window::new(rank, memory.at, BYTES)?;
    window.put((memory.part(BYTES), BYTES), (next, 0), (0, 0))?;
    wait(rank, &BTreeMap::from([((before, (0, 0)), 1)]))?;
    rank.synchronize()?;
    rank.expect(memory.at, &own(before))?;
    // All have what was put before any window goes.
    rank.meet(memory.part(BYTES))?;
    window.end()
}

/// The last rank's window is smaller than what rank 0 takes it for.
pub(crate) fn outside(ranks: &[Rank]) -> Outcome {
    const BYTES: usize = 100_000;
    let rank = one(ranks)?;
    let last = rank.nranks - 1;
    let memory = Memory::new(2 * BYTES)?;
    rank.upload(memory.at, &vec![0xa5; 2 * BYTES])?;
    let bytes = if rank.rank == last { BYTES } else { 2 * BYTES };
    // Who comes late hears of it at one of these.
    let called = Window::new(rank, memory.at, bytes).and_then(|window| match rank.rank {
        0 => window.put((memory.at, 5000), (last, BYTES - 4999), (0, 0)),
        _ => wait(rank, &BTreeMap::from([((0, (0, 0)), 1)])),
    });
    let parts = ["rank 0 puts 5000 bytes at offset 95001", &format!("rank {last}"), "100000"];
    told(rank, &parts).map_err(|e| format!("{e}; called: {called:?}"))?;
    abort_now(rank)?;
    rank.expect(memory.at, &vec![0xa5; 2 * BYTES])
}
