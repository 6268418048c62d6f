//! A rank that stands still at any step: what all ranks record says which one it is.

use super::plays::{self, Operation};
use super::world::{Place, World};
use crate::sequence::Random;
use oxccl_plan::generate::Algorithm;
use oxccl_runtime::clock;
use oxccl_runtime::device::host::collective::Budget;
use oxccl_runtime::device::host::task::{Step, Task};
use oxccl_runtime::ras::verdict::{Cause, Patience, Verdict, verdicts};
use oxccl_runtime::recorder::Stage;
use oxccl_runtime::recorder::read::{PROC, Process, ProcessState, RankReport, process};
use std::path::Path;
use std::time::Duration;

/// Turns in which nobody gets anywhere, for each rank, from which on the others stand still, too.
/// A wait is recorded in one of 64 visits.
const IDLE_TURNS: usize = 200;
/// The most bytes that a rank moves in a turn.
const BYTES: u64 = 1 << 10;

/// A standstill.
#[derive(Clone, Debug)]
pub struct Standstill {
    /// The rank that stands still.
    pub victim: u32,
    /// True if others wait for it.
    pub held: bool,
    /// The operations that others have called and that have not ended, as texts begin with them.
    pub operations: Vec<String>,
    /// The steps of collectives at which others wait, by what they record.
    pub steps: Vec<u32>,
    /// The algorithms of all operations.
    pub algorithms: Vec<Algorithm>,
    /// The algorithms of the operations in which others are.
    pub held_in: Vec<Algorithm>,
    /// True if the rank has ended all its operations before.
    pub ended: bool,
    /// The verdicts on it if its process runs.
    pub verdicts: Vec<Verdict>,
    /// The verdicts on it if its process is stopped.
    pub stopped: Vec<Verdict>,
}

struct Player {
    task: Option<(usize, Task)>,
    next: usize,
}

struct Job {
    random: Random,
    world: World,
    operations: Vec<Operation>,
    players: Vec<Player>,
    victim: usize,
    /// The most bytes that the rank at fault moves in a turn.
    victim_bytes: u64,
}

/// Returns this process, as others see it.
fn own() -> Process {
    process(Path::new(PROC), std::process::id()).expect("ranks of this process are recorded")
}

/// Returns processes as they would be with one rank of a communicator each, of which one is in a
/// state.
fn apart(all: &Process, comm: u64, victim: usize, state: ProcessState) -> Vec<Process> {
    let ranks = all.ranks.iter().filter(|report| report.comm == comm);
    let process = |report: &RankReport| Process {
        pid: 1 + report.rank,
        state: if report.rank as usize == victim { state } else { ProcessState::Alive },
        ranks: vec![report.clone()],
        ..all.clone()
    };
    ranks.map(process).collect()
}

/// Plays the standstill of a seed: after so many turns of the rank at fault, each the least that
/// one can be, or after some as the seed has it.
pub fn stand_still(seed: u64, turns: Option<u64>) -> Standstill {
    let mut random = Random(seed);
    let nranks = 2 + random.below(4) as usize;
    let direct = random.below(4) > 0;
    let hosts = (0..nranks).map(|_| if direct { 0 } else { random.below(2) as u32 }).collect();
    let edge_slot_bytes = [1 << 10, 4 << 10, 64 << 10][random.below(3) as usize];
    let place = Place { hosts, one_process: false, edge_slot_bytes };
    let operations = plays::draw(&place, 3, &mut random);
    // No communicator of a test that runs beside this one has the number.
    let comm = seed | (0x5713 + u64::from(turns.is_some())) << 48;
    let world = World::new(place, Some(comm), &mut random);
    world.endpoints.iter().for_each(|endpoint| endpoint.rank.recorder.enter(Stage::Running));
    let players = (0..nranks).map(|_| Player { task: None, next: 0 }).collect();
    let victim = random.below(nranks as u64) as usize;
    let victim_bytes = if turns.is_some() { 1 } else { BYTES };
    let mut job = Job { random, world, operations, players, victim, victim_bytes };
    let within = 1 << job.random.below(10);
    let drawn = job.random.below(within);
    let mut visits = turns.unwrap_or(drawn);
    job.until_nobody_moves(&mut visits);
    // Who was seen since then still looks.
    let stood_ns = own().read_ns;
    job.until_nobody_moves(&mut visits);
    let all = own();
    let (silent_ns, steps) = (all.read_ns - stood_ns, job.steps(&all, comm));
    let patience = Patience { waiting_ns: 0, silent_ns };
    let verdicts = |state| {
        let mut found = verdicts(&apart(&all, comm, victim, state), patience);
        found.retain(|verdict| verdict.cause != Cause::Slow);
        found
    };
    let [verdicts, stopped] = [ProcessState::Alive, ProcessState::Stopped].map(verdicts);
    let algorithms = job.operations.iter().filter_map(|operation| operation.algorithm).collect();
    let at_fault = &job.players[victim];
    let ended = at_fault.task.is_none() && at_fault.next == job.operations.len();
    let others = || job.players.iter().enumerate().filter(|(rank, _)| *rank != victim);
    let open = others().filter_map(|(_, player)| player.task.as_ref());
    let open: Vec<&Operation> = open.map(|(i, _)| &job.operations[*i]).collect();
    let operations: Vec<_> = open.iter().map(|operation| operation.recorded.clone()).collect();
    let held_in = open.iter().filter_map(|operation| operation.algorithm).collect();
    let (victim, held) = (victim as u32, !operations.is_empty());
    Standstill { victim, held, operations, steps, algorithms, held_in, ended, verdicts, stopped }
}

impl Job {
    /// Gives turns until nobody moves any more; the one at fault has so many.
    fn until_nobody_moves(&mut self, visits: &mut u64) {
        let mut idle = 0;
        while idle < IDLE_TURNS * self.players.len() {
            let rank = self.random.below(self.players.len() as u64) as usize;
            let mut moves = false;
            if rank != self.victim || *visits > 0 {
                moves = self.turn(rank);
                *visits -= u64::from(rank == self.victim);
            }
            idle = if moves { 0 } else { idle + 1 };
            if idle % (2 * self.players.len()) == 1 {
                // Messages between hosts are under way.
                clock::advance(Duration::from_micros(self.random.below(1000)));
            }
        }
    }

    /// Returns the steps of collectives at which ranks but the one at fault record that they wait.
    /// Requires that each of them is one at which its program waits for the recorded rank.
    fn steps(&self, all: &Process, comm: u64) -> Vec<u32> {
        let mut steps = Vec::new();
        for report in all.ranks.iter().filter(|report| report.comm == comm) {
            let rank = report.rank as usize;
            let open = self.players[rank].task.as_ref().filter(|_| rank != self.victim);
            let (Some((operation, _)), Some(waiting)) = (open, report.waiting) else { continue };
            if let (Some(peer), Some(step)) = (waiting.peer, waiting.step) {
                let Operation { what, parts, .. } = &self.operations[*operation];
                let waits = parts[rank].waits_for(peer, step);
                assert!(waits, "{what} of rank {rank} does not wait for {peer} at step {step}");
                steps.push(step);
            }
        }
        steps
    }

    /// Gives a rank its turn; returns whether it got anywhere.
    fn turn(&mut self, rank: usize) -> bool {
        let most = if rank == self.victim { self.victim_bytes } else { BYTES };
        let budget = Budget { polls: 0, bytes: 1 + self.random.below(most) as usize };
        let player = &mut self.players[rank];
        let Some((operation, task)) = &mut player.task else {
            let Some(operation) = self.operations.get_mut(player.next) else { return false };
            let work = operation.parts[rank].work(&self.world.endpoints[rank]);
            let start = |work| (player.next, Task::start(work, 0).expect("it starts"));
            player.task = work.map(start);
            player.next += 1;
            return true;
        };
        match task.step(budget) {
            Step::Waiting { moved } => moved,
            Step::Done(result) => {
                let what = &self.operations[*operation].what;
                result.unwrap_or_else(|failed| panic!("rank {rank} in {what}: {}", failed.tell()));
                player.task = None;
                true
            }
        }
    }
}
