//! A history: operations, one trouble, and what must hold then.
//!
//! Every turn a random rank gets a random budget. Without a fault all results have to be right.
//! With one, every survivor's operations end in bounded virtual time with an error that names who
//! is to blame; what a rank's operation used is repainted as soon as it has ended, and must stay so
//! while others, the late ones too, go on; and the survivors can make a new communicator.

use super::plays::{self, Operation};
use super::world::{Place, World};
use crate::sequence::Random;
use oxccl_plan::generate::Algorithm;
use oxccl_runtime::device::host::collective::Budget;
use oxccl_runtime::device::host::task::{Failed, Step, Task};
use oxccl_runtime::error::Site;
use oxccl_runtime::{Code, Error, Result, clock};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// From a fault, or from the return of a late rank, to the end of all operations.
const BOUND: Duration = Duration::from_secs(5);
/// Deadlines are shorter by far, and what does not wait for a late rank is done by then.
const OVERDUE: Duration = Duration::from_secs(10);
/// What a writer that answers needs at most: a failed operation waits for a second.
const WRITING: Duration = Duration::from_millis(900);
/// An abort waits so long for writers.
const QUIET: Duration = Duration::from_secs(1);
/// More turns than any history needs.
const TURNS: u64 = 3_000_000;
/// Operations of a rank under way or queued.
const QUEUED: usize = 3;

/// What goes wrong in a history.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Kill(usize),
    Abort(usize),
    Revoke(Vec<usize>),
    Deadline(Vec<usize>),
}

/// A rank that does nothing for a while.
#[derive(Clone, Copy, Debug)]
struct Delay {
    rank: usize,
    lasts: Duration,
}

/// What happens, and when: so many turns after somebody has called an operation.
#[derive(Clone, Debug)]
struct Trouble {
    fault: Fault,
    delay: Option<Delay>,
    operation: usize,
    turns: u64,
    /// The late or dead rank, if this shall strike it in the middle of a write into others' memory.
    writer: Option<usize>,
}

/// What a history was, for the count of what all of them cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The fault that happened.
    pub fault: &'static str,
    /// Whether an operation ended with an error.
    pub failed: bool,
    /// Whether a rank stood still, or died, in the middle of writing into others' memory.
    pub writing: bool,
    /// Whether the ranks shared memory, and whether some did not.
    pub links: (bool, bool),
    /// The place in the first error of each rank: true if it has an operation, and a step of it.
    pub places: Vec<(bool, bool)>,
    /// The algorithms that gave right results.
    pub algorithms: Vec<Algorithm>,
    /// Turns and virtual time: equal for equal seeds.
    pub trace: (u64, Duration),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    Stands(Instant),
    Dead,
}

struct Player {
    life: Life,
    /// Under way, in the order of their calls.
    tasks: Vec<(usize, Task)>,
    /// The operations that it has begun, by the numbers that its recorder gives them.
    begun: Vec<usize>,
    next: usize,
    outcomes: Vec<Option<Result<()>>>,
    look_at: Instant,
    /// Since when its abort waits for writers.
    stops: Option<Instant>,
    leaves_at: Option<Instant>,
    left: bool,
    /// A write into others' memory: the operation, and who had called it when it began.
    write: Option<(usize, Vec<usize>)>,
}

struct History {
    random: Random,
    world: World,
    operations: Vec<Operation>,
    players: Vec<Player>,
    trouble: Trouble,
    turns: u64,
    start: Instant,
    /// When the trouble began.
    struck: Option<Instant>,
    /// When the first rank failed or died, or the late one came back after that.
    failing_since: Option<Instant>,
    /// Whether every step is as small as can be.
    fine: bool,
    writing: bool,
}

/// Plays the history of a seed. Panics where something does not hold.
pub fn run(seed: u64) -> Summary {
    let mut random = Random(seed);
    let nranks = if random.below(40) == 0 { 1 } else { 2 + random.below(5) as usize };
    let direct = random.below(5) < 3;
    let hosts: Vec<u32> =
        (0..nranks).map(|_| if direct { 0 } else { random.below(3) as u32 }).collect();
    let one_process = direct && random.below(3) == 0;
    let edge_slot_bytes = [1 << 10, 4 << 10, 64 << 10][random.below(3) as usize];
    let place = Place { hosts, one_process, edge_slot_bytes };
    let operations = 1 + random.below(6) as usize;
    let trouble = trouble(&place, operations, &mut random);
    let mut history = History::new(place, operations, trouble, random);
    history.until(|h| h.players.iter().all(|p| p.life != Life::Runs || p.done()));
    history.shrink();
    if let Some(until) = history.players.iter().find_map(Player::stands_until) {
        clock::advance(until.saturating_duration_since(clock::now()));
    }
    history.until(|h| h.players.iter().all(|p| p.life == Life::Dead || p.left));
    history.end()
}

fn trouble(place: &Place, operations: usize, random: &mut Random) -> Trouble {
    let nranks = place.hosts.len() as u64;
    let mut order: Vec<usize> = (0..nranks as usize).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    let (late, others) = order.split_last().expect("a rank");
    let some = others.len().min(1 + random.below(nranks) as usize);
    let fault = match random.below(10) {
        // The ranks of one process die together.
        0..=3 if !place.one_process && nranks > 1 => Fault::Kill(others[0]),
        4 | 5 if nranks > 1 => Fault::Abort(others[0]),
        6 if nranks > 1 => Fault::Revoke(others[..some].to_vec()),
        7 | 8 if nranks > 1 => Fault::Deadline(others[..some].to_vec()),
        _ => Fault::None,
    };
    let ms = match (random.below(3), &fault) {
        (0, _) => random.below(900),
        (_, Fault::Deadline(_)) => 1000 + random.below(100_000),
        _ => random.below(3000),
    };
    let lasts = Duration::from_millis(ms);
    let late = Delay { rank: *late, lasts };
    let delay = match fault {
        Fault::Deadline(_) => Some(late),
        _ => Some(late).filter(|_| random.below(2) == 0),
    };
    let within = 1 << random.below(10);
    let (operation, turns) = (random.below(operations as u64) as usize, random.below(within));
    let writer = match fault {
        Fault::Kill(dead) if random.below(2) == 0 => Some(dead),
        _ => delay.map(|d| d.rank).filter(|_| random.below(2) == 0),
    };
    Trouble { fault, delay, operation, turns, writer }
}

impl Player {
    fn new(operations: usize, now: Instant) -> Self {
        Self {
            life: Life::Runs,
            tasks: Vec::new(),
            begun: Vec::new(),
            next: 0,
            outcomes: (0..operations).map(|_| None).collect(),
            look_at: now,
            stops: None,
            leaves_at: None,
            left: false,
            write: None,
        }
    }

    fn done(&self) -> bool {
        self.outcomes.iter().all(Option::is_some) && self.tasks.is_empty()
    }

    fn stands_until(&self) -> Option<Instant> {
        match self.life {
            Life::Stands(until) => Some(until),
            Life::Runs | Life::Dead => None,
        }
    }
}

impl History {
    fn new(place: Place, operations: usize, trouble: Trouble, mut random: Random) -> Self {
        clock::advance(Duration::ZERO);
        let start = clock::now();
        let operations = plays::draw(&place, operations, &mut random);
        let players = place.hosts.iter().map(|_| Player::new(operations.len(), start)).collect();
        let world = World::new(place, None, &mut random);
        let fine = random.below(2) == 0;
        Self {
            random,
            world,
            operations,
            players,
            trouble,
            turns: 0,
            start,
            struck: None,
            failing_since: None,
            fine,
            writing: false,
        }
    }

    /// Gives turns until something is so. Time passes a little with every turn, and more when
    /// nobody gets anywhere.
    fn until(&mut self, so: impl Fn(&Self) -> bool) {
        let mut idle = 0;
        while !so(self) {
            let rank = self.random.below(self.players.len() as u64) as usize;
            idle = if self.turn(rank) { 0 } else { idle + 1 };
            if idle > 2 * self.players.len() {
                idle = 0;
                clock::advance(Duration::from_micros(self.random.below(2000)));
            } else if self.random.below(8) == 0 {
                clock::advance(Duration::from_micros(self.random.below(20)));
            }
            self.turns += 1;
            assert!(self.turns < TURNS, "no end in sight: {}", self.waiting());
            if self.should_end_from().is_some_and(|from| clock::now() > from + BOUND) {
                let waiting = self.players.iter().any(|p| p.life == Life::Runs && !p.done());
                assert!(!waiting, "not over {BOUND:?} after the failure: {}", self.waiting());
            }
        }
    }

    /// From when on everybody's operations have to end: a failure, or a deadline that is long over.
    fn should_end_from(&self) -> Option<Instant> {
        let (Fault::Deadline(ranks), None) = (&self.trouble.fault, self.failing_since) else {
            return self.failing_since;
        };
        let late = self.players.iter().any(|p| p.stands_until().is_some());
        let waits = late && ranks.iter().any(|&r| !self.players[r].done());
        self.struck.filter(|_| waits).map(|struck| struck + OVERDUE)
    }

    fn waiting(&self) -> String {
        let open = self.players.iter().enumerate().filter(|(_, p)| !p.done());
        let open =
            open.map(|(rank, p)| format!("rank {rank} in {:?}", p.tasks.first().map(|t| t.0)));
        format!("{} ({:?})", open.collect::<Vec<_>>().join(", "), self.trouble)
    }

    /// A rank's monitor looks, when it is time for that.
    fn look(&mut self, rank: usize, now: Instant) {
        if now >= self.players[rank].look_at {
            let most_ms = if self.world.look(rank) { 20 } else { 250 };
            let pause = Duration::from_micros(self.random.below(most_ms * 1000));
            self.players[rank].look_at = now + pause;
        }
    }

    /// A rank's turn; whether it got anywhere.
    fn turn(&mut self, rank: usize) -> bool {
        self.strike();
        let now = clock::now();
        match self.players[rank].life {
            Life::Dead => return false,
            Life::Stands(until) if now < until => {
                // The caller is late; the monitor has a thread of its own.
                self.look(rank, now);
                return false;
            }
            Life::Stands(_) => self.return_late(rank),
            Life::Runs => {}
        }
        self.look(rank, now);
        self.stop(rank);
        let queued = self.players[rank].tasks.len();
        let all_called = self.players[rank].next == self.operations.len();
        if queued == 0 && all_called {
            return self.leave(rank);
        }
        if !all_called && (queued == 0 || queued < QUEUED && self.random.below(4) == 0) {
            self.call(rank);
            return true;
        }
        // Mostly the one that runs.
        let i = (self.random.below(queued as u64) * self.random.below(2)) as usize;
        let budget = Budget {
            polls: if self.fine { 0 } else { self.random.below(64) as u32 },
            bytes: if self.fine { 0 } else { 1 << self.random.below(18) },
        };
        match self.players[rank].tasks[i].1.step(budget) {
            Step::Waiting { moved } => moved,
            Step::Done(result) => {
                let (operation, _) = self.players[rank].tasks.remove(i);
                self.ended(rank, operation, result.map_err(Failed::tell));
                true
            }
        }
    }

    /// The rank calls its next operation, which a failed communicator refuses.
    fn call(&mut self, rank: usize) {
        let operation = self.players[rank].next;
        self.players[rank].next += 1;
        let endpoint = &self.world.endpoints[rank];
        if let Some(error) = endpoint.rank.failure() {
            return self.ended(rank, operation, Err(error));
        }
        match self.operations[operation].parts[rank].work(endpoint) {
            Some(work) => {
                let task = Task::start(work, 0).expect("it starts");
                self.players[rank].tasks.push((operation, task));
                self.players[rank].begun.push(operation);
            }
            None => self.ended(rank, operation, Ok(())),
        }
    }

    fn ended(&mut self, rank: usize, operation: usize, result: Result<()>) {
        let Operation { what, parts, .. } = &self.operations[operation];
        let stopped = self.players[rank].left;
        match &result {
            Ok(()) => {
                assert!(!stopped, "rank {rank} completed {operation} ({what}) after its abort");
                let wrong = parts[rank].wrong();
                let trouble = &self.trouble;
                assert_eq!(wrong, None, "rank {rank}, operation {operation} ({what}); {trouble:?}");
            }
            Err(error) => {
                let right = stopped || self.blames(rank, error);
                let trouble = &self.trouble;
                assert!(right, "rank {rank}, operation {operation} ({what}): {error}; {trouble:?}");
                let placed = error.site().is_none_or(|site| self.is_place(rank, site));
                assert!(placed, "rank {rank}, operation {operation} ({what}): {error}");
                self.failing_since.get_or_insert_with(clock::now);
            }
        }
        if !stopped {
            self.operations[operation].parts[rank].repaint();
        }
        self.players[rank].outcomes[operation] = Some(result);
    }

    /// Returns whether a rank can be where an error says: in an operation that it has begun and not
    /// completed, of that number and name; in a collective at a step of its program, or after the
    /// last one.
    fn is_place(&self, rank: usize, site: &Site) -> bool {
        if site.operation.is_empty() {
            return site.step < 0;
        }
        let Player { begun, outcomes, .. } = &self.players[rank];
        let Some(&operation) = begun.get(site.op_seq as usize) else { return false };
        let Operation { recorded, parts, .. } = &self.operations[operation];
        let step = usize::try_from(site.step).ok();
        let steps = parts[rank].steps();
        recorded.starts_with(site.operation)
            && !matches!(outcomes[operation], Some(Ok(())))
            && step.is_none_or(|step| steps.is_some_and(|steps| step <= steps))
    }

    /// Whether an error says who is to blame.
    fn blames(&self, rank: usize, error: &Error) -> bool {
        let blamed = error.site().filter(|_| error.code() == Code::RemoteError);
        let blamed = blamed.and_then(|site| usize::try_from(site.peer).ok());
        let names = |ranks: &[usize]| blamed.is_some_and(|rank| ranks.contains(&rank));
        let asked = || matches!(error, Error::Aborted { .. });
        self.struck.is_some()
            && match &self.trouble.fault {
                Fault::None => false,
                Fault::Kill(dead) => names(&[*dead]),
                Fault::Abort(by) => {
                    if rank == *by {
                        asked()
                    } else {
                        names(&[*by])
                    }
                }
                Fault::Revoke(by) => by.contains(&rank) && asked() || names(by),
                // Nobody is lost, and nobody waits for itself.
                Fault::Deadline(ranks) => match error {
                    Error::Deadline { .. } => {
                        ranks.contains(&rank) && blamed.is_some_and(|peer| peer != rank)
                    }
                    _ => {
                        blamed.is_some() && error.to_string().contains(" gave up waiting for rank ")
                    }
                },
            }
    }

    /// The trouble begins when its time has come.
    fn strike(&mut self) {
        if self.struck.is_some() || !self.players.iter().any(|p| p.next > self.trouble.operation) {
            return;
        }
        if self.trouble.turns > 0 {
            self.trouble.turns -= 1;
            return;
        }
        if let Some(rank) = self.trouble.writer {
            let Player { tasks, outcomes, .. } = &self.players[rank];
            let writes = |i: usize| self.operations[i].writes && outcomes[i].is_none();
            let now = tasks.first().is_some_and(|(i, _)| writes(*i));
            // Anywhere in the operation.
            if (0..outcomes.len()).any(writes) && !(now && self.random.below(16) == 0) {
                return;
            }
        }
        let now = clock::now();
        self.struck = Some(now);
        if let Some(rank) = self.trouble.writer {
            self.begin_writing(rank);
        }
        if let Some(Delay { rank, lasts }) = self.trouble.delay
            && !self.players[rank].left
        {
            self.players[rank].life = Life::Stands(now + lasts);
        }
        let gone = |rank: &usize| self.players[*rank].left;
        match self.trouble.fault.clone() {
            Fault::None => {}
            Fault::Kill(rank) | Fault::Abort(rank) if gone(&rank) => {}
            Fault::Kill(rank) => {
                self.players[rank].life = Life::Dead;
                self.world.kill(rank);
                self.failing_since = Some(now);
            }
            Fault::Abort(rank) => {
                self.world.endpoints[rank].rank.fail(Error::Aborted { by: "ncclCommAbort" });
                self.players[rank].stops = Some(now);
                self.failing_since = Some(now);
            }
            Fault::Revoke(ranks) => {
                for rank in ranks.iter().filter(|rank| !self.players[**rank].left) {
                    self.world.endpoints[*rank].rank.fail(Error::Aborted { by: "ncclCommRevoke" });
                    self.failing_since = Some(now);
                }
            }
            Fault::Deadline(ranks) => {
                for rank in ranks {
                    let limit = Duration::from_millis(20 + self.random.below(500));
                    let ns = limit.as_nanos() as i64;
                    self.world.endpoints[rank].rank.timeout_ns.store(ns, Ordering::Relaxed);
                }
            }
        }
    }

    /// A rank comes to the middle of a write into its peers' memory, if it is in an operation that
    /// does this.
    fn begin_writing(&mut self, rank: usize) {
        let Some((operation, _)) = self.players[rank].tasks.first() else { return };
        let operation = *operation;
        if self.operations[operation].writes && self.world.endpoints[rank].rank.begin_writing() {
            self.writing = true;
            let called = |p: &usize| *p != rank && self.players[*p].next > operation;
            let called = (0..self.players.len()).filter(called).collect();
            self.players[rank].write = Some((operation, called));
        }
    }

    /// A late rank goes on, and first of all ends what it was writing.
    fn return_late(&mut self, rank: usize) {
        let now = clock::now();
        self.players[rank].life = Life::Runs;
        if self.failing_since.is_some() {
            self.failing_since = Some(now);
        }
        let Some((operation, peers)) = self.players[rank].write.take() else { return };
        let struck = self.struck.unwrap_or(now);
        let failed = |p: &&usize| matches!(self.players[**p].outcomes[operation], Some(Err(_)));
        for peer in peers.iter().filter(failed).filter(|_| now - struck < WRITING) {
            self.operations[operation].parts[*peer].write_late();
        }
        self.world.endpoints[rank].rank.end_writing();
    }

    /// An abort that can return does: nothing of this rank's is touched from here on.
    fn stop(&mut self, rank: usize) {
        let Some(since) = self.players[rank].stops else { return };
        let quiet = self.world.endpoints[rank].rank.writers().is_empty();
        if self.players[rank].left || !quiet && clock::now() - since < QUIET {
            return;
        }
        self.operations.iter_mut().for_each(|operation| operation.parts[rank].repaint());
        self.world.leave(rank);
        self.players[rank].left = true;
    }

    /// A rank that has nothing left to do destroys its communicator after a while.
    fn leave(&mut self, rank: usize) -> bool {
        let player = &mut self.players[rank];
        let pause = Duration::from_micros(self.random.below(200_000));
        let at = *player.leaves_at.get_or_insert_with(|| clock::now() + pause);
        if player.left || clock::now() < at {
            return false;
        }
        player.left = true;
        self.world.leave(rank);
        if self.random.below(2) == 0 {
            self.world.exit(rank);
        }
        true
    }

    /// Those who are left make a new communicator, in which everything works.
    fn shrink(&mut self) {
        let alive =
            |r: &usize| self.players[*r].life == Life::Runs && self.players[*r].stops.is_none();
        let survivors: Vec<usize> = (0..self.players.len()).filter(alive).collect();
        if self.failing_since.is_none() || survivors.is_empty() {
            return;
        }
        let hosts = survivors.iter().map(|&r| self.world.place.hosts[r]).collect();
        let place = Place { hosts, ..self.world.place };
        let calm =
            Trouble { fault: Fault::None, delay: None, operation: 0, turns: 0, writer: None };
        let random = Random(self.random.draw());
        let mut next = History::new(place, 2, calm, random);
        next.until(|h| h.players.iter().all(|p| p.left));
        next.end();
    }

    fn end(self) -> Summary {
        for (rank, player) in self.players.iter().enumerate() {
            for (number, operation) in self.operations.iter().enumerate() {
                let strayed = player.life != Life::Dead && operation.parts[rank].strayed();
                let what = &operation.what;
                assert!(
                    !strayed,
                    "the memory of rank {rank} was written after its operation {number} ({what}) had \
                     ended; {:?}",
                    self.trouble
                );
            }
        }
        let all_right =
            |i: usize| self.players.iter().all(|p| matches!(p.outcomes[i], Some(Ok(()))));
        let right = (0..self.operations.len()).filter(|&i| all_right(i));
        let failed = |p: &Player| p.outcomes.iter().any(|o| matches!(o, Some(Err(_))));
        let name = match &self.trouble.fault {
            _ if self.struck.is_none() => "none",
            Fault::None => self.trouble.delay.map_or("none", |_| "delay"),
            Fault::Kill(_) => "kill",
            Fault::Abort(_) => "abort",
            Fault::Revoke(_) => "revoke",
            Fault::Deadline(_) => "deadline",
        };
        let error = |p: &Player| {
            let error = p.outcomes.iter().find_map(|o| o.as_ref()?.as_ref().err())?;
            error.site().map(|site| (!site.operation.is_empty(), site.step >= 0))
        };
        let hosts = &self.world.place.hosts;
        Summary {
            fault: name,
            failed: self.players.iter().any(failed),
            writing: self.writing,
            links: (
                hosts.iter().enumerate().any(|(i, h)| hosts[..i].contains(h)),
                !self.world.place.direct(),
            ),
            places: self.players.iter().filter_map(error).collect(),
            algorithms: right.filter_map(|i| self.operations[i].algorithm).collect(),
            trace: (self.turns, clock::now() - self.start),
        }
    }
}
