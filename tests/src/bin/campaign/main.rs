//! A campaign of faults: kills, stops and cuts of the network at every step of every phase of a
//! job, on one host and on several, with strangers at every port.
//!
//! `oxccl-campaign --seed 1 --attempts 2000` prints a table, and of each attempt that went wrong
//! what was said and the options that repeat it. It fails when there was one. `--jobs` attempts run
//! at a time.

mod attempt;
mod judge;
mod plan;
mod rank;
mod strangers;
mod trace;

use attempt::Record;
use judge::{Verdict, judge};
use oxccl_tests::network::{self, Network};
use oxccl_tests::sequence::Random;
use plan::{Cell, Fault, LAYOUTS, Phase, Plan};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// What is asked for.
struct Asked {
    seed: u64,
    attempts: u64,
    jobs: u64,
    /// One attempt, whose seed this is then, with its step.
    only: Option<(Cell, Option<u64>)>,
}

const USAGE: &str = "oxccl-campaign [--seed N] [--attempts N] [--jobs N] \
                     [--only \"PHASE LAYOUT FAULT STEP\"]";

impl Asked {
    fn parse(arguments: &[String]) -> Option<Self> {
        let jobs = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let mut asked = Self { seed: 1, attempts: 2000, jobs, only: None };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return None };
            match name.as_str() {
                "--seed" => asked.seed = value.parse().ok()?,
                "--attempts" => asked.attempts = value.parse().ok()?,
                "--jobs" => asked.jobs = value.parse().ok().filter(|jobs| *jobs > 0)?,
                "--only" => asked.only = Some(parse_only(value)?),
                _ => return None,
            }
        }
        Some(asked)
    }
}

fn parse_only(text: &str) -> Option<(Cell, Option<u64>)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [phase, layout, fault, step] = words[..] else { return None };
    let layout = LAYOUTS.iter().find(|known| known.name == layout)?;
    let cell = Cell { phase: Phase::parse(phase)?, layout, fault: Fault::parse(fault)? };
    let step = if step == "-" { None } else { Some(step.parse().ok()?) };
    Some((cell, step))
}

/// What became of the attempts so far.
#[derive(Default)]
struct Tally {
    /// Of each row, in the table's order: how often each verdict was found.
    rows: BTreeMap<(Phase, usize, Fault), [u64; 6]>,
}

/// The verdicts in the order of the table's columns.
const COLUMNS: [(Verdict, &str); 6] = [
    (Verdict::Right, "right"),
    (Verdict::Wrong, "wrong"),
    (Verdict::Late, "late"),
    (Verdict::Hung, "hung"),
    (Verdict::Lost, "lost"),
    (Verdict::Crashed, "crashed"),
];

impl Tally {
    fn add(&mut self, cell: Cell, verdict: Verdict) {
        let layout = LAYOUTS.iter().position(|layout| layout.name == cell.layout.name);
        let layout = layout.expect("a layout of the list");
        let row = self.rows.entry((cell.phase, layout, cell.fault)).or_default();
        for (count, (column, _)) in row.iter_mut().zip(COLUMNS) {
            *count += u64::from(column == verdict);
        }
    }

    /// How often each verdict was found in all.
    fn sums(&self) -> [u64; 6] {
        let mut sums = [0u64; 6];
        for row in self.rows.values() {
            sums.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
        }
        sums
    }

    fn table(&self) -> String {
        let names = COLUMNS.map(|(_, name)| name).join(" | ");
        let mut table = format!("| phase | layout | fault | attempts | {names} |\n");
        table.push_str("|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n");
        let mut line = |name: &str, counts: &[u64; 6]| {
            let (attempts, counts) = (counts.iter().sum::<u64>(), counts.map(|n| n.to_string()));
            let _ = writeln!(table, "| {name} | {attempts} | {} |", counts.join(" | "));
        };
        for ((phase, layout, fault), counts) in &self.rows {
            let names = [phase.name(), LAYOUTS[*layout].name, fault.name()];
            line(&names.join(" | "), counts);
        }
        line("all | | ", &self.sums());
        table
    }
}

/// The state that the threads share.
struct Campaign<'a> {
    asked: &'a Asked,
    /// The rows, in the order in which they come up.
    cells: Vec<Cell>,
    next: AtomicU64,
    tally: Mutex<Tally>,
    /// The victim's steps: of a phase, a layout and a victim.
    steps: Mutex<HashMap<(Phase, &'static str, u32), u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Campaign<'_> {
    /// Makes an attempt, judges and counts it; tells how many steps the victim had.
    fn attempt(&self, plan: &Plan, network: Option<&Network>) -> u64 {
        let record = attempt::run(plan, network);
        let verdict = judge(plan, &record);
        lock(&self.tally).add(plan.cell, verdict);
        if verdict != Verdict::Right || self.asked.only.is_some() {
            println!("{}", describe(plan, &record, verdict));
        }
        record.stops
    }

    /// The number of steps of a plan's victim, which a run without a fault has counted.
    fn count(&self, plan: &Plan, network: Option<&Network>) -> u64 {
        let key = (plan.cell.phase, plan.cell.layout.name, plan.victim);
        if let Some(steps) = lock(&self.steps).get(&key) {
            return *steps;
        }
        let steps = self.attempt(&plan.counting(), network);
        lock(&self.steps).insert(key, steps);
        steps
    }

    /// Makes attempts, one after the other, until there are enough.
    fn work(&self, network: Option<&Network>) {
        let rows = self.cells.len() as u64;
        let rounds = self.asked.attempts.div_ceil(rows);
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.asked.attempts {
                return;
            }
            let mut random = Random(self.asked.seed.wrapping_add(index << 32));
            let mut plan = Plan::new(self.cells[(index % rows) as usize], random.draw());
            if plan.cell.fault != Fault::None {
                // Each of a row's attempts has a part of the phase for itself.
                let steps = self.count(&plan, network).max(1);
                plan.step = Some((steps * (index / rows) + random.below(steps)) / rounds);
            }
            self.attempt(&plan, network);
        }
    }
}

/// All that is known of an attempt, and how to repeat it.
fn describe(plan: &Plan, record: &Record, verdict: Verdict) -> String {
    let step = plan.step.map_or_else(|| "-".to_owned(), |step| step.to_string());
    let (name, seed) = (plan.cell.name(), plan.seed);
    let mut text = format!("{verdict:?}: --seed {seed} --only \"{name} {step}\"\n");
    let Plan { victim, dead, hold, ends, cut, .. } = plan;
    let _ = match plan.cell.fault {
        Fault::Cut => writeln!(text, "  host {} is cut off from {:?} (None: all)", cut.0, cut.1),
        Fault::Pause | Fault::Stop => {
            writeln!(text, "  rank {victim} is stopped for {hold:?}, then killed: {ends}")
        }
        _ => writeln!(text, "  rank {victim} is the victim"),
    };
    if let Some(dead) = dead {
        let _ = writeln!(text, "  rank {dead} ended before");
    }
    for (rank, seen) in record.ranks.iter().enumerate() {
        let status = seen.status.map(|status| status.as_raw());
        let _ = writeln!(text, "  rank {rank}: status {status:?}, hung: {}", seen.hung);
        for (at, line) in &seen.lines {
            let after = record.struck.map(|struck| {
                let before = struck.saturating_duration_since(*at);
                at.saturating_duration_since(struck).as_secs_f64() - before.as_secs_f64()
            });
            let after = after.map_or_else(String::new, |after| format!("{after:+.3} s "));
            let _ = writeln!(text, "    {after}{line}");
        }
    }
    text
}

/// Runs the campaign; whether all went right.
fn campaign(asked: &Asked) -> bool {
    let spaces = network::leave_the_machine();
    if let Err(reason) = &spaces {
        oxccl_tests::missing("netns", reason);
    }
    let spaces = spaces.is_ok();
    let mut cells = Cell::all(spaces);
    let mut random = Random(asked.seed);
    for i in (1..cells.len()).rev() {
        cells.swap(i, random.below(i as u64 + 1) as usize);
    }
    let campaign = Campaign {
        asked,
        cells,
        next: AtomicU64::new(0),
        tally: Mutex::default(),
        steps: Mutex::default(),
    };
    let only = asked.only.map(|(cell, step)| Plan { step, ..Plan::new(cell, asked.seed) });
    let jobs = if only.is_some() { 1 } else { asked.jobs };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            // Its namespaces go with the thread.
            scope.spawn(|| {
                let network = spaces.then(|| Network::new(plan::SPACES).expect("hosts"));
                match &only {
                    Some(plan) => {
                        campaign.attempt(plan, network.as_ref());
                    }
                    None => campaign.work(network.as_ref()),
                }
            });
        }
    });
    let tally = lock(&campaign.tally);
    println!("{}", tally.table());
    let [_, faults @ ..] = tally.sums();
    faults == [0; 5]
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("rank", rest)) = arguments.split_first().map(|(first, rest)| (&**first, rest)) {
        return rank::main(rest);
    }
    let Some(asked) = Asked::parse(&arguments) else {
        eprintln!("usage: {USAGE}");
        return ExitCode::from(2);
    };
    if campaign(&asked) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
