//! The abstract machine that runs the programs of all ranks in one thread.
//!
//! Programs are a Kahn network: every counter and edge has one writer and waits are monotone. So
//! the order in which ranks are stepped decides nothing, and one schedule finds every deadlock. The
//! meaning of a value is left to a [`Values`]: symbols for the verifier, bytes for the reference
//! interpreter. Only ranks of one team reach each other's memory. Vector clocks order accesses to
//! it, and a clock per rank counts model time. State that outlives an operation (signals, stage
//! slots, edges) is kept, so that sequences of operations are checked too.

use crate::cost::CostModel;
use crate::generate::Plan;
use crate::ir::{Buffer, From, Geometry, Op, next_round};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use step::Step;

mod exchange;
mod step;
mod switch;

/// The values that the machine computes with.
pub trait Values {
    /// The contents of one part of a buffer.
    type Value: Clone;
    /// Returns the user's data in a part of the input of `at.rank`.
    fn input(&mut self, at: Place) -> Self::Value;
    /// Folds the operands from left to right, in one rounding; `finish` completes the reduction.
    fn fold(&mut self, operands: &[Self::Value], finish: bool) -> Self::Value;
}

/// A part of a user buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The rank that owns the buffer.
    pub rank: u32,
    /// The block of the buffer.
    pub block: u32,
    /// The window.
    pub window: u64,
    /// The part of the block in the window.
    pub part: u32,
}

/// The reason why a set of programs is wrong. `step` is the index of an operation in its rank's
/// program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Fault {
    #[error("deadlock: rank {rank} step {step} (window {window}) waits for ever: {awaited}")]
    Deadlock { rank: u32, step: usize, window: u64, awaited: String },
    #[error("rank {rank} step {step} never takes place for its peer: {what}")]
    Unmatched { rank: u32, step: usize, what: String },
    #[error("rank {rank} step {step}: {what} before rank {other} step {other_step} is known done")]
    Race { rank: u32, step: usize, what: String, other: u32, other_step: usize },
    #[error("rank {rank} step {step} reads {what}, which holds nothing yet")]
    Empty { rank: u32, step: usize, what: String },
    #[error("rank {rank} step {step} writes its input")]
    InputWritten { rank: u32, step: usize },
    #[error("rank {rank} step {step} uses the stage without having acquired its slot")]
    NotAcquired { rank: u32, step: usize },
    #[error("rank {rank} step {step} uses what step {lent} gave to a switch, before its result")]
    Lent { rank: u32, step: usize, lent: usize },
    #[error("rank {rank} step {step} uses {what}, for which the layout has no room")]
    NoRoom { rank: u32, step: usize, what: String },
    #[error("rank {rank} step {step} reaches for memory of rank {peer}, which is of another team")]
    OutOfReach { rank: u32, step: usize, peer: u32 },
    #[error("rank {rank} signals {got} times in a window; the plan says {expected}")]
    SignalCount { rank: u32, got: u64, expected: u32 },
    #[error("rank {rank} has {got} rounds; the plan says {expected}")]
    RoundCount { rank: u32, got: u32, expected: u32 },
    #[error("rank {rank} step {step}: message of {got} parts where {expected} are awaited")]
    Length { rank: u32, step: usize, got: usize, expected: usize },
    #[error(
        "rank {rank} output block {block} part {part}: missing contribution of rank {missing} (last written by step {step})"
    )]
    Missing { rank: u32, block: u32, part: u32, missing: u32, step: usize },
    #[error(
        "rank {rank} output block {block} part {part}: rank {twice} contributes {times} times (last written by step {step})"
    )]
    Double { rank: u32, block: u32, part: u32, twice: u32, times: u32, step: usize },
    #[error(
        "rank {rank} output block {block} part {part} holds the wrong data: {what} (last written by step {step})"
    )]
    Wrong { rank: u32, block: u32, part: u32, what: String, step: usize },
}

type Clock = Vec<u32>;

#[derive(Clone, Copy)]
struct Access {
    rank: u32,
    clock: u32,
    step: usize,
}

/// A part of a user buffer.
struct Cell<V> {
    value: Option<V>,
    write: Access,
    reads: Vec<Access>,
    /// The step that has given it to a switch, until the result is received.
    lent: Option<usize>,
}

/// One slot of a rank's stage.
struct Slot<V> {
    /// The number of the (operation, window) that filled the slot.
    generation: u64,
    cells: Vec<Option<(V, Access)>>,
    /// The last read of each cell by each rank.
    reads: Vec<(usize, Access)>,
    /// The last access of each rank before this generation.
    earlier: Vec<Access>,
}

impl<V> Slot<V> {
    /// Makes room for a generation; the accesses of earlier generations are kept for comparison.
    fn enter(&mut self, generation: u64) {
        if self.generation == generation {
            return;
        }
        self.generation = generation;
        let writes = self.cells.drain(..).flatten().map(|(_, write)| write);
        for access in writes.chain(self.reads.drain(..).map(|(_, read)| read)) {
            match self.earlier.iter_mut().find(|known| known.rank == access.rank) {
                Some(known) if known.clock >= access.clock => {}
                Some(known) => *known = access,
                None => self.earlier.push(access),
            }
        }
    }
}

struct Message<V> {
    values: Vec<V>,
    piece: (u64, u64),
    clock: Option<Clock>,
    ready_us: f64,
    step: usize,
}

struct Edge<V> {
    queue: VecDeque<Message<V>>,
    /// The times at which the last messages were taken, for the time at which slots become free.
    taken_us: VecDeque<f64>,
}

impl<V> Default for Edge<V> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), taken_us: VecDeque::new() }
    }
}

struct Rank {
    phase: u64,
    /// Clock and time of every signal, by phase.
    signals: Vec<(Clock, f64)>,
    clock: Clock,
    now_us: f64,
    stage_windows: u64,
    slot_need: [u64; 2],
    /// The generation of each slot that the rank may write.
    acquired: [u64; 2],
}

/// A grouped send or receive of `pieces` slots' worth of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The peer of the transfer.
    pub peer: u32,
    /// True if this rank sends.
    pub send: bool,
    /// Messages that the edge carries for this transfer.
    pub pieces: u64,
}

/// One operation on all ranks.
pub enum Work<'a> {
    /// A collective.
    Collective {
        /// The plan, shared by all ranks.
        plan: &'a Plan,
        /// The programs, by rank.
        programs: &'a [crate::ir::Program],
        /// The cut of the call into windows and parts.
        geometry: Geometry,
        /// True for each rank that calls in place.
        in_place: &'a [bool],
    },
    /// Grouped sends and receives, by rank.
    Exchange(&'a [Vec<Transfer>]),
}

/// The limits of a run, and the things to compute besides the values.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Messages that an edge holds before its sender waits.
    pub edge_slots: usize,
    /// True if the order of accesses to shared memory is checked.
    pub races: bool,
    /// The costs with which times are computed, and the bytes of an element; `None` computes no
    /// times.
    pub costs: Option<(&'a CostModel, u64)>,
    /// The number of ranks of a team, within which ranks reach each other's memory and the near
    /// costs hold.
    pub team: u32,
    /// True if the windows of a collective overlap as far as its plan allows
    /// ([`Layout::rounds`](crate::ir::Layout::rounds)).
    pub overlap: bool,
}

impl Options<'_> {
    /// Returns the ranks of the team of a rank.
    fn team_of(&self, rank: u32) -> Range<u32> {
        let first = rank - rank % self.team;
        first..first + self.team
    }

    /// Returns the costs between two ranks, and the bytes of an element.
    fn between(&self, one: u32, other: u32) -> Option<(CostModel, u64)> {
        let near = self.team_of(one).contains(&other);
        self.costs.map(|(model, bytes)| (if near { model.near() } else { *model }, bytes))
    }
}

/// The machine: ranks with the state that outlives operations.
pub struct Machine<'a, V: Values> {
    values: V,
    options: Options<'a>,
    ranks: Vec<Rank>,
    edges: HashMap<(u32, u32), Edge<V::Value>>,
    stage: Vec<[Slot<V::Value>; 2]>,
}

/// A cell of a rank: the index of its memory, and its own there.
type Location = (usize, usize);

/// The state of one collective while it runs.
struct Running<'a, V> {
    plan: &'a Plan,
    programs: &'a [crate::ir::Program],
    geometry: Geometry,
    in_place: &'a [bool],
    /// Input, output and scratch of each rank.
    memory: Vec<[Vec<Cell<V>>; 3]>,
    /// The cells that a switch has of a rank, by rank and switch: a list for each message whose
    /// result was not received yet.
    lent: HashMap<(u32, u32), VecDeque<Vec<Location>>>,
    phase_base: u64,
    stage_base: u64,
    /// The number of rounds in which the programs run: 1 unless windows overlap.
    rounds: u32,
    /// The place of each rank; `None` once it has ended its program.
    at: Vec<Option<At>>,
}

/// The place of a rank in a collective.
#[derive(Clone, Copy)]
struct At {
    window: u64,
    round: u32,
    step: usize,
}

/// The output of a collective: for each rank the value and the last writing step of each part,
/// indexed by `(window · blocks + block) · parts + part`.
pub type Outputs<V> = Vec<Vec<Option<(V, usize)>>>;

impl<'a, V: Values> Machine<'a, V> {
    /// Returns a machine with fresh state.
    pub fn new(nranks: u32, values: V, options: Options<'a>) -> Self {
        let clock = || vec![0; if options.races { nranks as usize } else { 0 }];
        let slot =
            || Slot { generation: 0, cells: Vec::new(), reads: Vec::new(), earlier: Vec::new() };
        let rank = || Rank {
            phase: 0,
            signals: vec![(clock(), 0.0)],
            clock: clock(),
            now_us: 0.0,
            stage_windows: 0,
            slot_need: [0; 2],
            acquired: [0; 2],
        };
        Self {
            values,
            options,
            ranks: (0..nranks).map(|_| rank()).collect(),
            edges: HashMap::new(),
            stage: (0..nranks).map(|_| [slot(), slot()]).collect(),
        }
    }

    /// Returns the values that the machine computes with.
    pub fn values(&mut self) -> &mut V {
        &mut self.values
    }

    /// Returns the model time at which the last rank was done, in µs.
    pub fn now_us(&self) -> f64 {
        self.ranks.iter().fold(0.0, |t, r| r.now_us.max(t))
    }

    /// Runs one operation to its end on all ranks.
    pub fn run(&mut self, work: &Work<'_>) -> Result<Outputs<V::Value>, Fault> {
        match work {
            Work::Collective { plan, programs, geometry, in_place } => {
                let mut run = self.start(plan, programs, *geometry, in_place)?;
                self.run_collective(&mut run)
            }
            Work::Exchange(transfers) => self.run_exchange(transfers).map(|()| Vec::new()),
        }
    }

    fn start<'b>(
        &mut self,
        plan: &'b Plan,
        programs: &'b [crate::ir::Program],
        geometry: Geometry,
        in_place: &'b [bool],
    ) -> Result<Running<'b, V::Value>, Fault> {
        let spec = &plan.spec;
        let rounds = if self.options.overlap { plan.layout.rounds } else { 1 };
        let windows = geometry.windows() as usize;
        let parts = geometry.parts as usize;
        let mut memory = Vec::new();
        for rank in 0..spec.nranks {
            let own = self.access(rank, usize::MAX);
            let cells = |count: usize| {
                let empty = || Cell { value: None, write: own, reads: Vec::new(), lent: None };
                (0..count).map(|_| empty()).collect::<Vec<_>>()
            };
            memory.push([
                cells(spec.input_blocks(rank) as usize * windows * parts),
                cells(spec.output_blocks(rank) as usize * windows * parts),
                cells(plan.layout.scratch_blocks as usize * windows),
            ]);
        }
        let phase_base = self.ranks[0].phase;
        let stage_base = self.ranks[0].stage_windows;
        for (rank, program) in (0u32..).zip(programs).filter(|_| rounds > 1) {
            let (got, expected) = (program.nrounds(), rounds);
            if got != expected {
                return Err(Fault::RoundCount { rank, got, expected });
            }
        }
        let first = next_round(None, geometry.windows(), rounds);
        let first = first.map(|(window, round)| At { window, round, step: 0 });
        let at = vec![first; programs.len()];
        let mut run = Running {
            plan,
            programs,
            geometry,
            in_place,
            memory,
            lent: HashMap::new(),
            phase_base,
            stage_base,
            rounds,
            at,
        };
        for rank in 0..spec.nranks {
            for block in 0..spec.input_blocks(rank) {
                for window in 0..geometry.windows() {
                    for part in 0..geometry.parts {
                        let place = Place { rank, block, window, part };
                        let value = self.values.input(place);
                        let (buffer, i) = run.locate(rank, Buffer::Input, block, window, part);
                        run.memory[rank as usize][buffer][i].value = Some(value);
                    }
                }
            }
        }
        Ok(run)
    }

    fn run_collective(
        &mut self,
        run: &mut Running<'_, V::Value>,
    ) -> Result<Outputs<V::Value>, Fault> {
        loop {
            let (mut moved, mut done) = (false, true);
            for rank in 0..run.plan.spec.nranks {
                while let Some(at) = run.at[rank as usize] {
                    if !self.step(run, rank, at)? {
                        done = false;
                        break;
                    }
                    moved = true;
                }
            }
            if done {
                return self.finish(run);
            }
            if !moved {
                return Err(self.deadlock(run));
            }
        }
    }

    /// Names the blocked rank whose awaited partner cannot move any more, or else the first blocked
    /// rank.
    fn deadlock(&self, run: &Running<'_, V::Value>) -> Fault {
        let blocked = |r: u32| run.at[r as usize].is_some();
        let at = |r: u32| run.at[r as usize].unwrap_or(At { window: 0, round: 0, step: 0 });
        let partner = |r: u32| {
            let peer = match run.programs[r as usize].ops.get(at(r).step) {
                Some(Op::Send { peer, .. } | Op::Recv { peer, .. }) => Some(*peer),
                Some(Op::RecvReduce { peer, .. }) => Some(*peer),
                Some(Op::Wait { from: From::One(peer), .. }) => Some(*peer),
                _ => None,
            };
            // A switch has no program.
            peer.filter(|peer| *peer < run.plan.spec.nranks)
        };
        let ranks = 0..run.plan.spec.nranks;
        let orphan = ranks.clone().find(|&r| blocked(r) && partner(r).is_some_and(|p| !blocked(p)));
        let rank = orphan.or_else(|| ranks.clone().find(|&r| blocked(r))).unwrap_or(0);
        let At { window, step, .. } = at(rank);
        let op = run.programs[rank as usize].ops.get(step);
        let awaited = match partner(rank) {
            Some(p) if !blocked(p) => format!("{op:?}, but rank {p} has ended its program"),
            Some(p) => format!("{op:?}, while rank {p} is at step {}", at(p).step),
            None => format!("{op:?}"),
        };
        Fault::Deadlock { rank, step, window, awaited }
    }

    /// Executes one operation of one rank; false when the operation has to wait.
    fn step(&mut self, run: &mut Running<'_, V::Value>, rank: u32, at: At) -> Result<bool, Fault> {
        let At { window, round, step } = at;
        if step == run.round_end(rank, round) {
            if round + 1 == run.rounds {
                self.end_window(run, rank, window)?;
            }
            let next = next_round(Some((window, round)), run.geometry.windows(), run.rounds);
            let begin = |round: u32| round.checked_sub(1).map_or(0, |r| run.round_end(rank, r));
            run.at[rank as usize] =
                next.map(|(window, round)| At { window, round, step: begin(round) });
            return Ok(true);
        }
        let op = run.programs[rank as usize].ops[step];
        let moved = Step { machine: self, run, rank, step, window }.execute(op)?;
        if moved {
            run.at[rank as usize] = Some(At { step: step + 1, ..at });
            if self.options.races {
                self.ranks[rank as usize].clock[rank as usize] += 1;
            }
        }
        Ok(moved)
    }

    fn end_window(
        &mut self,
        run: &Running<'_, V::Value>,
        rank: u32,
        window: u64,
    ) -> Result<(), Fault> {
        let layout = &run.plan.layout;
        let base = run.phase_base + window * u64::from(layout.signals);
        let state = &mut self.ranks[rank as usize];
        if state.phase != base + u64::from(layout.signals) {
            let got = state.phase - base;
            return Err(Fault::SignalCount { rank, got, expected: layout.signals });
        }
        if layout.uses_slots() {
            let slot = (state.stage_windows & 1) as usize;
            state.slot_need[slot] = base + u64::from(layout.done_signal);
            state.stage_windows += 1;
        }
        Ok(())
    }

    fn finish(&mut self, run: &mut Running<'_, V::Value>) -> Result<Outputs<V::Value>, Fault> {
        for (&(from, to), edge) in &self.edges {
            if let Some(message) = edge.queue.front() {
                let what = format!("rank {to} never takes the message sent to it");
                return Err(Fault::Unmatched { rank: from, step: message.step, what });
            }
        }
        let spec = run.plan.spec;
        let mut outputs = Vec::new();
        for rank in 0..spec.nranks {
            // The caller may now change both buffers: no rank may still access them.
            for buffer in 0..2 {
                for i in 0..run.memory[rank as usize][buffer].len() {
                    let cell = &run.memory[rank as usize][buffer][i];
                    self.check_order(rank, usize::MAX, cell.write, "the call returns")?;
                    for &read in &cell.reads {
                        self.check_order(rank, usize::MAX, read, "the call returns")?;
                    }
                }
            }
            let mut parts = Vec::new();
            for window in 0..run.geometry.windows() {
                for block in 0..spec.output_blocks(rank) {
                    for part in 0..run.geometry.parts {
                        let (buffer, i) = run.locate(rank, Buffer::Output, block, window, part);
                        let cell = &run.memory[rank as usize][buffer][i];
                        parts.push(cell.value.clone().map(|v| (v, cell.write.step)));
                    }
                }
            }
            outputs.push(parts);
        }
        Ok(outputs)
    }

    fn access(&self, rank: u32, step: usize) -> Access {
        let clock = &self.ranks[rank as usize].clock;
        Access { rank, clock: clock.get(rank as usize).copied().unwrap_or(0), step }
    }

    fn check_order(&self, rank: u32, step: usize, other: Access, what: &str) -> Result<(), Fault> {
        let known = self.ranks[rank as usize].clock.get(other.rank as usize);
        if other.rank == rank || known.is_none_or(|&k| k >= other.clock) {
            return Ok(());
        }
        let what = what.to_owned();
        Err(Fault::Race { rank, step, what, other: other.rank, other_step: other.step })
    }

    fn join(&mut self, rank: u32, clock: &Clock) {
        for (mine, theirs) in self.ranks[rank as usize].clock.iter_mut().zip(clock) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Puts a message on an edge; false when all slots of the edge are taken.
    fn send(
        &mut self,
        from: u32,
        to: u32,
        message: (Vec<V::Value>, (u64, u64)),
        step: usize,
        elems: u64,
    ) -> bool {
        let slots = self.options.edge_slots;
        let edge = self.edges.entry((from, to)).or_default();
        if edge.queue.len() >= slots {
            return false;
        }
        let mut ready_us = 0.0;
        if let Some((model, elem_bytes)) = self.options.between(from, to) {
            let rank = &mut self.ranks[from as usize];
            if edge.taken_us.len() + edge.queue.len() >= slots {
                rank.now_us = rank.now_us.max(edge.taken_us.pop_front().unwrap_or(0.0));
            }
            rank.now_us += model.send_us(elems * elem_bytes);
            ready_us = rank.now_us + model.latency_us;
        }
        let clock = self.options.races.then(|| self.ranks[from as usize].clock.clone());
        let (values, piece) = message;
        edge.queue.push_back(Message { values, piece, clock, ready_us, step });
        if self.options.races {
            self.ranks[from as usize].clock[from as usize] += 1;
        }
        true
    }

    fn receive(&mut self, from: u32, to: u32, elems: u64, fold: bool) -> Option<Message<V::Value>> {
        let edge = self.edges.get_mut(&(from, to))?;
        let message = edge.queue.pop_front()?;
        if let Some((model, elem_bytes)) = self.options.between(from, to) {
            let rank = &mut self.ranks[to as usize];
            rank.now_us =
                rank.now_us.max(message.ready_us) + model.receive_us(elems * elem_bytes, fold);
            edge.taken_us.push_back(rank.now_us);
        }
        if let Some(clock) = &message.clock {
            let clock = clock.clone();
            self.join(to, &clock);
        }
        Some(message)
    }

    fn spend(&mut self, rank: u32, cost: impl FnOnce(&CostModel, u64) -> f64) {
        if let Some((model, elem_bytes)) = self.options.costs {
            self.ranks[rank as usize].now_us += cost(model, elem_bytes);
        }
    }
}

impl<V> Running<'_, V> {
    /// Returns the step behind the last one of a round of a rank.
    fn round_end(&self, rank: u32, round: u32) -> usize {
        let program = &self.programs[rank as usize];
        if self.rounds > 1 { program.round_end(round) } else { program.ops.len() }
    }

    /// Returns the location of a part of a buffer, with in-place calls considered.
    fn locate(&self, rank: u32, buffer: Buffer, block: u32, window: u64, part: u32) -> Location {
        let spec = &self.plan.spec;
        if buffer == Buffer::Scratch {
            // Windows under way together may have scratch of their own, which later ones use again.
            let all = u64::from(self.plan.layout.scratch_windows);
            let window = if self.rounds > 1 { window % all } else { window };
            let cell = u64::from(block) * self.geometry.windows() + window;
            return (buffer as usize, cell as usize);
        }
        let (mut buffer, mut block) = (buffer as usize, block);
        if self.in_place[rank as usize]
            && let Some((input, output)) = spec.in_place(rank)
        {
            let into_output = spec.output_blocks(rank) >= spec.input_blocks(rank);
            if buffer == 0 && into_output {
                (buffer, block) = (1, block + output - input);
            } else if buffer == 1 && !into_output {
                (buffer, block) = (0, block + input - output);
            }
        }
        let windows = self.geometry.windows();
        let index = (u64::from(block) * windows + window) * u64::from(self.geometry.parts);
        (buffer, (index + u64::from(part)) as usize)
    }
}
