//! Why a job does not move: which rank is at fault, in which operation, and what to do.

mod circle;
mod making;
mod slow;
mod unseen;

use super::job::{Comm, Member, communicators};
use crate::recorder::read::{Process, ProcessState};
use crate::recorder::{KernelCollective, Kind, Source, Stage};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The kind of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A communicator has failed, and says why.
    Failed,
    /// A rank does not come to the making of its communicator.
    NotJoined,
    /// A process is stopped.
    Stopped,
    /// Ranks call different operations.
    Differs,
    /// A rank has not called what the others wait in.
    NotCalled,
    /// A rank has called the operation, but its stream has not come to it.
    NotBegun,
    /// A rank is in the operation and waits for nobody, or for something beside the ranks.
    Inside,
    /// Ranks wait for one that cannot be seen: it is on another host, of another user, or gone.
    Unseen,
    /// Ranks wait for each other in a circle.
    Deadlock,
    /// The way to another host is cut: nothing comes from it, though data are sent again.
    SilentLink,
    /// A rank comes late to most collectives.
    Slow,
    /// The way to another host loses data, or carries far less than others.
    SlowLink,
    /// The time of day of a host was set while the job ran.
    ClockSet,
}

impl Cause {
    /// Returns whether it holds the job up; other causes make it slower, or mislead.
    pub fn holds_up(self) -> bool {
        !matches!(self, Cause::Slow | Cause::SlowLink | Cause::ClockSet)
    }
}

/// A cause that holds a job up, with the ranks at fault.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The kind of the cause.
    pub cause: Cause,
    /// The number of the communicator; 0 for what concerns a whole host.
    pub comm: u64,
    /// The ranks at fault.
    pub ranks: Vec<u32>,
    /// The sentence that tells all of it.
    pub text: String,
}

/// The times from which on something counts, in ns.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The least time for which an operation waits, or a communicator is in the making.
    pub waiting_ns: u64,
    /// The time after which a rank that waits, but does not look any more, is one that does not go
    /// on: it records one look of 64, which are a millisecond apart if it gets processor time.
    pub silent_ns: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { waiting_ns: 1_000_000_000, silent_ns: 1_000_000_000 }
    }
}

/// The time after which a rank waits, if others have waited for long enough.
const LEAST_WAIT_NS: u64 = 125_000_000;
/// The least step of a host's time of day that is worth a word.
const CLOCK_STEP_NS: u64 = 1_000_000_000;

/// Returns what holds a job up, as far as its processes tell: the causes, not their effects.
pub fn verdicts(processes: &[Process], patience: Patience) -> Vec<Verdict> {
    let comms = communicators(processes);
    let mut found = Vec::new();
    comms.iter().for_each(|comm| found.extend(failed(comm)));
    comms.iter().for_each(|comm| found.extend(making::held_up(comm, &comms, patience)));
    found.extend(standstill(&comms, patience));
    found.extend(slow::slow(processes, &comms));
    found.extend(clocks(processes));
    found
}

/// Returns a time span for texts.
pub fn span(ns: u64) -> String {
    match ns as f64 / 1e9 {
        s if s >= 600.0 => format!("{:.0} min", s / 60.0),
        s if s >= 1.0 => format!("{s:.1} s"),
        s => format!("{:.1} ms", s * 1e3),
    }
}

/// Returns `rank 3` or `ranks 1, 3, 5 to 9`.
pub fn list(ranks: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let texts = parts.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    });
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", texts.collect::<Vec<_>>().join(", "))
}

/// Returns a word for one rank, or for several.
fn verb(ranks: &[u32], one: &'static str, several: &'static str) -> &'static str {
    if ranks.len() == 1 { one } else { several }
}

/// Returns the failure of a communicator, in the words of a rank that found it or, if none is seen,
/// of one that heard of it. What the user asked for is no failure, nor what the user has answered
/// by giving up the communicator.
fn failed(comm: &Comm<'_>) -> Option<Verdict> {
    let failed = |source: fn(Source) -> bool| {
        let is = move |member: &&Member<'_>| {
            let is_open = member.rank.stage == Stage::Failed && !member.rank.aborted;
            is_open && source(member.rank.failure.source)
        };
        comm.members.iter().filter(is).collect::<Vec<_>>()
    };
    let found = failed(|source| source == Source::Here);
    let heard = failed(|source| matches!(source, Source::Peer(_)));
    let by = if found.is_empty() { heard } else { found };
    let age = |of: &Member<'_>| Some(of.process.read_ns.saturating_sub(of.rank.failure.since_ns?));
    // Those that failed later may have failed by it.
    let first = by.iter().rev().max_by_key(|of| age(of))?;
    let (since, ranks) = (age(first), by.iter().map(|member| member.rank.rank).collect::<Vec<_>>());
    let text = format!(
        "{} failed {}at {}: {} ({})",
        comm.title(),
        since.map_or_else(String::new, |since| span(since) + " ago "),
        list(&ranks),
        first.rank.failure.text,
        first.place()
    );
    Some(Verdict { cause: Cause::Failed, comm: comm.number, ranks, text })
}

/// A rank that waits for others.
#[derive(Clone, Copy)]
struct Wait<'a> {
    from: Member<'a>,
    caller: Caller,
    since_ns: u64,
    /// The number of the collective in which it waits; `None` in other operations, and in kernels.
    number: Option<u64>,
    /// The rank that it waits for, if that can be seen and is not behind in the collective.
    named: Option<Member<'a>>,
}

impl Wait<'_> {
    fn lasts_ns(&self) -> u64 {
        self.from.process.read_ns.saturating_sub(self.since_ns)
    }

    /// Returns the collective in which it waits, by its number among those that the rank called, or
    /// among those of its GPU.
    fn place(&self) -> (Option<u64>, Option<u64>) {
        (self.number, in_kernel(&self.from).map(|collective| collective.number))
    }

    fn is_for(&self, to: &Member<'_>) -> bool {
        let is_named = self.named.is_some_and(|named| named.rank.rank == to.rank.rank);
        is_named || self.number.is_some_and(|number| is_behind(to, number))
    }
}

/// The caller of a rank's operations: what its process does with its device or, where a process has
/// several ranks of one communicator on a device, a thread of which nothing but this rank is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Caller {
    Device(u32, u64, u32),
    Rank(u64, u32),
}

/// Returns a number for the name of a host: processes of different hosts may have one number.
fn host_number(host: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    host.hash(&mut hasher);
    hasher.finish()
}

/// The ranks of a communicator that wait for others, in the order of their numbers.
struct Waits<'a, 'c> {
    comm: &'c Comm<'a>,
    all: Vec<Wait<'a>>,
    /// The ranks that are behind in the collectives in which others wait, by their numbers: all who
    /// wait in one wait for all of them.
    behind: HashMap<u64, Vec<Member<'a>>>,
    /// The number of ranks on each device of each process.
    devices: HashMap<(u32, &'a str, u32), usize>,
}

impl<'a, 'c> Waits<'a, 'c> {
    /// Returns the waits that last for a part of the least time that counts, or for
    /// `LEAST_WAIT_NS`: of ranks that wait for each other, one began first.
    fn of(comm: &'c Comm<'a>, patience: Patience) -> Self {
        let (behind, mut devices) = (HashMap::new(), HashMap::new());
        for Member { process, rank, .. } in &comm.members {
            *devices.entry((process.pid, &process.host[..], rank.device)).or_default() += 1;
        }
        let mut waits = Self { comm, all: Vec::new(), behind, devices };
        for &from in &comm.members {
            let Some(waiting) = from.rank.waiting else { continue };
            let waited_ns = from.process.read_ns.saturating_sub(waiting.since_ns);
            let silent_ns = from.process.read_ns.saturating_sub(waiting.looked_ns);
            let is_short = waited_ns < (patience.waiting_ns / 8).min(LEAST_WAIT_NS);
            if from.rank.stage != Stage::Running || is_short || silent_ns > patience.silent_ns {
                continue;
            }
            // Who waits for one of several looks at the first of them: others may be behind, too.
            let number = collective_of(&from);
            let are_behind = number.is_some_and(|number| {
                let members = || comm.members.iter().filter(|member| is_behind(member, number));
                let behind = waits.behind.entry(number);
                !behind.or_insert_with(|| members().copied().collect()).is_empty()
            });
            let named = waiting.peer.and_then(|peer| comm.member(peer));
            let named = named.filter(|peer| number.is_none_or(|number| !is_behind(peer, number)));
            // Who waits for a rank that cannot be seen waits for nobody here, and is not at fault.
            if are_behind || waiting.peer.is_some() {
                let (caller, since_ns) = (waits.caller(&from), waiting.since_ns);
                waits.all.push(Wait { from, caller, since_ns, number, named });
            }
        }
        waits
    }

    fn caller(&self, member: &Member<'_>) -> Caller {
        let (Process { pid, host, .. }, device) = (member.process, member.rank.device);
        match self.devices.get(&(*pid, &host[..], device)) {
            Some(1) => Caller::Device(*pid, host_number(host), device),
            _ => Caller::Rank(self.comm.number, member.rank.rank),
        }
    }

    /// Returns the ranks that a rank waits for because they are behind in its collective.
    fn behind(&self, wait: &Wait<'a>) -> &[Member<'a>] {
        wait.number.and_then(|number| self.behind.get(&number)).map_or(&[], |behind| behind)
    }

    /// Returns the ranks that a rank waits for, but for itself.
    fn awaited(&self, wait: &Wait<'a>) -> impl Iterator<Item = Member<'a>> {
        let own = wait.from.rank.rank;
        let all = self.behind(wait).iter().copied().chain(wait.named);
        all.filter(move |of| of.rank.rank != own)
    }

    /// Returns what holds up the ranks at the ends of chains of waits; `waiting` are the callers
    /// that wait in any communicator.
    fn causes(&self, waiting: &HashSet<Caller>, patience: Patience) -> Vec<Verdict> {
        let (mut found, mut seen, mut known) = (Vec::new(), HashSet::new(), HashSet::new());
        for wait in self.all.iter().filter(|wait| wait.lasts_ns() >= patience.waiting_ns) {
            let is_new = wait.number.is_some_and(|number| seen.insert(number));
            let behind = if is_new { self.behind(wait) } else { &[] };
            for to in behind.iter().chain(&wait.named) {
                let stands = to.process.state != ProcessState::Stopped;
                let goes_on = stands && waiting.contains(&self.caller(to));
                // Who has failed is told with the failure, unless its user has answered that.
                let fails = to.rank.stage == Stage::Failed && !to.rank.aborted;
                if !goes_on && !fails && known.insert(to.rank.rank) {
                    found.push(self.blame(wait, to));
                }
            }
        }
        found
    }

    /// Returns what holds up a rank for which others wait, one of them in `held`.
    fn blame(&self, held: &Wait<'a>, to: &Member<'a>) -> Verdict {
        // Others may wait for it in another operation.
        let same = || self.all.iter().filter(|of| of.place() == held.place() && of.is_for(to));
        let waiting: Vec<_> = same().map(|wait| wait.from.rank.rank).collect();
        let since_ns = same().map(|wait| wait.since_ns).min().unwrap_or(held.since_ns);
        let (cause, text) = blame(&held.from, to, &waiting, since_ns);
        let text = format!("{text} ({})", self.comm.title());
        Verdict { cause, comm: self.comm.number, ranks: vec![to.rank.rank], text }
    }

    /// Returns that two ranks call different collectives under one number.
    fn differs(&self) -> Option<Verdict> {
        let mut seen = HashSet::new();
        self.all.iter().find_map(|wait| {
            let Wait { from, number, .. } = wait;
            let number = number.filter(|number| seen.insert(*number))?;
            let own = from.collective(number)?.descriptor;
            let other = self.comm.members.iter().find_map(|member| {
                let theirs = member.collective(number)?.descriptor;
                (theirs != own).then_some((member, theirs))
            });
            let (other, theirs) = other?;
            let [own_text, their_text] = own.texts(theirs);
            let ranks = vec![from.rank.rank, other.rank.rank];
            let (place, their_place) = (from.place(), other.place());
            let text = format!(
                "rank {0} calls {own_text} ({place}), and rank {1} calls {their_text} \
                 ({their_place}), as collective {number} of {2}; rank {0} has waited for {3}: all \
                 ranks have to make the same calls in the same order",
                ranks[0],
                ranks[1],
                self.comm.title(),
                span(wait.lasts_ns())
            );
            Some(Verdict { cause: Cause::Differs, comm: self.comm.number, ranks, text })
        })
    }
}

/// Returns whether a rank has not called a collective in which another one waits, or its stream has
/// not come to it. Of kernels only the named rank's progress is known.
fn is_behind(member: &Member<'_>, number: u64) -> bool {
    progress(member, number) < Progress::Inside
}

/// Returns the collective in which a kernel of a rank waits.
fn in_kernel(waits: &Member<'_>) -> Option<KernelCollective> {
    waits.rank.waiting?.collective
}

/// Returns the progress of a rank with what a kernel of another one waits for: whether it has begun
/// tells that kernel, or the other rank's, and whether it has called tell the numbers of calls
/// outside of graphs, of which only those of collectives are the same on all ranks. `None` if the
/// rank has not called it.
fn progress_on_gpu(waits: &Member<'_>, to: &Member<'_>) -> Option<Progress> {
    let called = match in_kernel(waits) {
        Some(of) => {
            let waits_in = in_kernel(to).map(|own| own.number);
            let runs = || to.rank.kernels.iter().any(|run| run.number >= Some(of.number));
            if of.peer_has_begun == Some(true) || waits_in >= Some(of.number) || runs() {
                return Some(Progress::Inside);
            }
            to.rank.collectives >= waits.rank.collectives
        }
        None => to.rank.issued >= waits.rank.issued,
    };
    called.then_some(Progress::NotBegun)
}

/// Returns the progress of a rank with the operation in which another one waits for it; `None` if
/// it has not called it.
fn progress_with(from: &Member<'_>, to: &Member<'_>) -> Option<Progress> {
    match collective_of(from) {
        Some(number) => Some(progress(to, number)),
        None if to.rank.gpu.is_some() => progress_on_gpu(from, to),
        // It may be in the other half of a message, or before it.
        None => to.operation(to.rank.finished).map(|op| match op.begun_ns {
            Some(_) => Progress::Inside,
            None => Progress::NotBegun,
        }),
    }
}

/// Returns the number of the collective in which a rank waits; `None` for other operations, and in
/// kernels.
fn collective_of(waits: &Member<'_>) -> Option<u64> {
    let operation = waits.waiting_operation()?;
    (operation.kind == Kind::Collective).then_some(operation.of_kind)
}

/// The progress of a rank with a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    NotCalled,
    NotBegun,
    Inside,
    Done,
}

fn progress(member: &Member<'_>, number: u64) -> Progress {
    let rank = member.rank;
    if rank.collectives <= number {
        return Progress::NotCalled;
    }
    match member.collective(number) {
        Some(op) if op.number < rank.finished => Progress::Done,
        Some(op) if op.number == rank.finished && op.begun_ns.is_some() => Progress::Inside,
        // The first visit of a call that returns at once is not recorded.
        Some(op) if op.number == rank.finished && rank.waiting.is_some() => Progress::Inside,
        Some(_) => Progress::NotBegun,
        // It is so long over that it is not recorded any more.
        None => Progress::Done,
    }
}

/// Returns the causes of a standstill: where chains of waits end, and where they are circles.
fn standstill(comms: &[Comm<'_>], patience: Patience) -> Vec<Verdict> {
    let all: Vec<_> = comms.iter().map(|comm| Waits::of(comm, patience)).collect();
    let mut found: Vec<Verdict> = all.iter().filter_map(Waits::differs).collect();
    let different: HashSet<u64> = found.iter().map(|verdict| verdict.comm).collect();
    let waits = || all.iter().flat_map(|waits| &waits.all);
    let waiting: HashSet<Caller> = waits().map(|wait| wait.caller).collect();
    for waits in all.iter().filter(|waits| !different.contains(&waits.comm.number)) {
        found.extend(waits.causes(&waiting, patience));
    }
    let told: HashSet<u64> = found.iter().map(|verdict| verdict.comm).collect();
    let untold = comms.iter().filter(|comm| !told.contains(&comm.number));
    found.extend(untold.filter_map(|comm| unseen::unseen(comm, patience)));
    let alike: Vec<_> = all.iter().filter(|of| !different.contains(&of.comm.number)).collect();
    found.extend(circle::circles(&alike, patience));
    found
}

/// Returns whether a kernel of a graph waits, as far as it is known: more collectives have run on
/// the GPU than were called outside of graphs.
fn in_a_graph(waits: &Member<'_>) -> bool {
    in_kernel(waits).is_some_and(|collective| collective.number >= waits.rank.collectives)
}

/// Returns the words for the operation in which a rank waits.
fn operation_text(waits: &Member<'_>) -> String {
    let number = collective_of(waits);
    let what = match number {
        Some(number) => waits.collective(number).map(|op| op.what.clone()),
        None => waits.waiting_operation().map(|op| op.what.clone()),
    };
    let operation = waits.waiting_operation().map_or(0, |op| op.number);
    let step = waits.rank.waiting.and_then(|waiting| waiting.step);
    let step = step.map_or_else(String::new, |step| format!(", step {step}"));
    if let Some(inside) = in_kernel(waits) {
        return format!("{} (collective {} on its GPU{step})", inside.descriptor, inside.number);
    }
    match (what, number) {
        (Some(what), Some(number)) => format!("{what} (collective {number}{step})"),
        (Some(what), None) => format!("{what} (operation {operation}{}{step})", way(waits)),
        (None, Some(number)) => format!("collective {number}{step}"),
        // A kernel that is in no collective carries messages, or a one-sided operation.
        (None, None) => {
            let mut operations = waits.rank.operations.iter().rev();
            match operations.find(|op| op.kind != Kind::Collective) {
                Some(last) => format!("{} (the last such call outside of graphs)", last.what),
                None => "a message or one-sided operation of a graph".to_owned(),
            }
        }
    }
}

/// Returns the words for the direction and the other end of the message in which a rank waits, if
/// it is one.
fn way(waits: &Member<'_>) -> String {
    let Some(op) = waits.waiting_operation().filter(|op| op.transfers == 1) else {
        return String::new();
    };
    match (op.sends, op.peer) {
        (Some(true), Some(peer)) => format!(", to rank {peer}"),
        (Some(false), Some(peer)) => format!(", from rank {peer}"),
        _ => String::new(),
    }
}

/// Returns what holds up a rank for which others wait, one of them in `from`, since a time.
fn blame(from: &Member<'_>, to: &Member<'_>, waiting: &[u32], since_ns: u64) -> (Cause, String) {
    let waited = span(from.process.read_ns.saturating_sub(since_ns));
    let (who, operation) = (to.rank.rank, operation_text(from));
    let wait = verb(waiting, "waits", "wait");
    let effect = format!("{operation}, in which {} {wait} for {waited}", list(waiting));
    let place = to.place();
    match (to.process.state, progress_with(from, to)) {
        (ProcessState::Stopped, _) => (Cause::Stopped, stopped(to, &effect)),
        (_, Some(Progress::NotBegun)) => {
            let on_gpu = to.rank.gpu.is_some();
            let untold = in_kernel(from).is_some_and(|of| of.peer_has_begun.is_none());
            let (fact, remedy) = match (on_gpu, in_a_graph(from)) {
                (true, _) if untold => (
                    "does not tell whether a kernel of it is in",
                    "look at what its GPU and its stream wait for",
                ),
                (false, _) => (
                    "has called, but its stream has not come to",
                    "look at what its stream waits for",
                ),
                (true, false) => (
                    "has made as many calls, but no kernel of it is in",
                    "look at what its stream waits for",
                ),
                (true, true) => (
                    "has no kernel in",
                    "look at whether it launches its graph, and at what its stream waits for",
                ),
            };
            (Cause::NotBegun, format!("rank {who} {fact} {effect}: {place}; {remedy}"))
        }
        (_, Some(Progress::Inside | Progress::Done)) => {
            let remedy = match to.rank.gpu {
                None => "look at whether that process gets processor time",
                Some(_) => "look at what else its GPU runs, and at its errors (oxccl doctor)",
            };
            (Cause::Inside, format!("rank {who} does not go on in {effect}: {place}; {remedy}"))
        }
        (_, Some(Progress::NotCalled) | None) => {
            let remedy = "look at what that process does";
            let last = last_call(to);
            (Cause::NotCalled, format!("rank {who} has not called {effect}: {last}; {remedy}"))
        }
    }
}

/// Returns that a rank's process is stopped, and what it holds up.
fn stopped(member: &Member<'_>, effect: &str) -> String {
    format!(
        "rank {} is stopped by a signal or a debugger, and holds up {effect}: {}; continue it with \
         kill -CONT {}",
        member.rank.rank,
        member.place(),
        member.process.pid
    )
}

/// Returns where a rank is outside of the library, and since when.
fn last_call(member: &Member<'_>) -> String {
    let mut text = member.place();
    match member.rank.operations.last() {
        None => text.push_str(", which has called nothing yet"),
        Some(op) => {
            let time = op.ended_ns.map_or(("called", op.called_ns), |ended| ("done", ended));
            let ago = span(member.process.read_ns.saturating_sub(time.1));
            let _ = write!(text, ", whose last operation was {}, {} {ago} ago", op.what, time.0);
        }
    }
    text
}

/// Returns the hosts whose time of day was set.
fn clocks(processes: &[Process]) -> Vec<Verdict> {
    let set = |process: &&Process| process.clock_set_ns.unsigned_abs() >= CLOCK_STEP_NS;
    let mut hosts: Vec<&Process> = processes.iter().filter(set).collect();
    hosts.sort_by(|a, b| (&a.host, a.pid).cmp(&(&b.host, b.pid)));
    hosts.dedup_by_key(|process| process.host.clone());
    let verdict = |process: &Process| {
        let by = span(process.clock_set_ns.unsigned_abs());
        let way = if process.clock_set_ns < 0 { "back" } else { "forward" };
        let text = format!(
            "the clock of {} was set {way} by {by} since process {} began: compare times of hosts \
             with care, and keep it by NTP or PTP",
            process.host, process.pid
        );
        Verdict { cause: Cause::ClockSet, comm: 0, ranks: Vec::new(), text }
    };
    hosts.into_iter().map(verdict).collect()
}

#[cfg(test)]
mod tests;
