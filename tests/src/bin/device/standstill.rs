//! Jobs that stand still, looked at from outside as `oxccl ras` does: the rank at fault and the
//! reason are named, whatever they are, and the job goes on once the reason is gone.

use crate::TWO_HOSTS;
use crate::failures::{abort_now, hear, survive, told, total};
use crate::graphs::Held;
use crate::rank::{Call, Memory, Outcome, Rank, Replay, group, ok, on_gpu, one, sum};
use oxccl::oxccl::types::oxcclCaptureMode_t::oxcclCaptureGlobal;
use oxccl_plan::Collective;
use oxccl_runtime::ras::job;
use oxccl_runtime::ras::verdict::{Cause, Patience, Verdict, verdicts};
use oxccl_runtime::recorder::read::{OperationReport, PROC, RankReport};
use oxccl_runtime::recorder::read::{own_pid, process, processes};
use oxccl_tests::sequence::Random;
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::path::Path;
use std::time::{Duration, Instant};

const COUNT: usize = 1000;
const BYTES: usize = COUNT * 4;

/// The way in which one rank holds up others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It does not make a call.
    Skips,
    /// It does not launch a graph.
    SkipsReplay,
    /// A stream of the rank is busy with something else.
    IsBusy,
    /// It does not send what the others wait for.
    SendsNothing,
    /// It does not make a call of a communicator of two.
    LeavesOneAlone,
    /// It makes no communicator with the others.
    DoesNotSplit,
    /// A signal stops it.
    Stops,
}

const ALL: [How; 7] = [
    How::Skips,
    How::SkipsReplay,
    How::IsBusy,
    How::SendsNothing,
    How::LeavesOneAlone,
    How::DoesNotSplit,
    How::Stops,
];

fn two_hosts() -> bool {
    std::env::var_os(TWO_HOSTS).is_some()
}

/// Returns whether two ranks are on different hosts.
fn are_apart(nranks: i32, pair: [i32; 2]) -> bool {
    let of = |rank: i32| rank / (nranks as u32).div_ceil(2) as i32;
    two_hosts() && of(pair[0]) != of(pair[1])
}

/// Looks at the job of this process until a verdict on it is as it should be, and all of them name
/// one process: who has no part in what stands still may go on to what the process at fault does
/// not call either.
fn look(is: impl Fn(&Verdict) -> bool) -> Outcome<Verdict> {
    let named = |verdict: &Verdict| {
        let after = verdict.text.split_once("process ").map(|(_, after)| after);
        after.and_then(|after| after.split(' ').next()?.parse::<i32>().ok())
    };
    look_at(own_pid(Path::new(PROC)), |found| {
        let first = found.first()?;
        let one = found.iter().all(|of| named(of) == named(first));
        found.iter().find(|of| is(of)).filter(|_| one).cloned()
    })
}

/// Looks at the job of a process until what is found of it is as it should be. It may take 2 s on
/// GPUs; a machine on which ranks share few processors has more time.
fn look_at(pid: u32, find: impl Fn(&[Verdict]) -> Option<Verdict>) -> Outcome<Verdict> {
    let (start, proc) = (Instant::now(), Path::new(PROC));
    let patience = Patience::default();
    let (limit_s, patience) = match on_gpu() {
        true => (2, patience),
        false => (30, Patience { waiting_ns: 300_000_000, ..patience }),
    };
    loop {
        let job = job::of_process(processes(proc), pid);
        let mut found = verdicts(&job, patience);
        found.retain(|verdict| verdict.cause.holds_up());
        if let Some(verdict) = find(&found) {
            return Ok(verdict);
        }
        if start.elapsed() > Duration::from_secs(limit_s) {
            return Err(format!("after {limit_s} s: {found:#?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A standstill, the rank at fault, and the communicator.
struct Standstill<'a> {
    how: How,
    victim: i32,
    rank: &'a Rank,
    memory: &'a Memory,
    /// A sum, captured.
    replay: &'a Replay,
    /// Collectives that ran on the communicator before.
    before: u64,
    /// True if its ranks are on two hosts.
    apart: bool,
}

impl Standstill<'_> {
    /// Plays a rank's part. Who is at fault goes on once it is named.
    fn play(&self) -> Outcome {
        let Self { how, victim, rank, .. } = *self;
        match (rank.rank == victim, how) {
            (true, How::IsBusy) => {
                let held = Held::on(rank.stream)?;
                self.call()?;
                self.explain()?;
                held.release()?;
            }
            (true, How::Stops) => {
                kill_process(getpid(), Signal::STOP).map_err(|e| e.to_string())?;
                self.call()?;
            }
            (true, _) => {
                self.explain()?;
                self.call()?;
            }
            (false, _) => self.call()?,
        }
        // Another one has to look at who is stopped.
        if how == How::Stops && rank.rank == (victim + 1) % rank.nranks {
            let text = self.explain()?.text;
            let pid = text.split_once("kill -CONT ").and_then(|(_, pid)| pid.split(' ').next());
            let pid = pid.and_then(|pid| Pid::from_raw(pid.parse().ok()?)).ok_or(text.clone())?;
            kill_process(pid, Signal::CONT).map_err(|e| e.to_string())?;
        }
        rank.synchronize()
    }

    /// Makes the call in which others wait.
    fn call(&self) -> Outcome {
        let Self { how, victim, rank, memory, .. } = *self;
        match how {
            How::SkipsReplay => self.replay.launch(rank.stream),
            How::DoesNotSplit => rank.again()?.leave(),
            How::SendsNothing if rank.rank == victim => group(|| {
                let mut others = (0..rank.nranks).filter(|other| *other != victim);
                others.try_for_each(|to| ok(rank.message(true, memory.at, BYTES, to)))
            }),
            How::SendsNothing => ok(rank.message(false, memory.part(BYTES), BYTES, victim)),
            _ => ok(rank.call(sum(COUNT), memory.at, memory.part(BYTES))),
        }
    }

    /// Waits until it is said who is at fault, in which collective and at which step, and why.
    fn explain(&self) -> Outcome<Verdict> {
        let sum = "all_reduce of 1000 × int32";
        let on_gpu = on_gpu();
        let (cause, part) = match self.how {
            // In host memory a launch of a graph is a call like others.
            How::SkipsReplay if on_gpu => (Cause::NotBegun, "whether it launches its graph"),
            How::Skips | How::SkipsReplay | How::LeavesOneAlone => (Cause::NotCalled, sum),
            How::IsBusy => (Cause::NotBegun, sum),
            How::SendsNothing => (Cause::NotCalled, "send/recv of 4000 bytes"),
            How::DoesNotSplit => (Cause::NotJoined, "has not called ncclCommSplit"),
            How::Stops => (Cause::Stopped, "kill -CONT "),
        };
        // Ranks of another host do not tell whether a kernel of theirs waits.
        let untold = "does not tell whether a kernel of it is in";
        // What goes through GPUs of one host is one step.
        let has_steps = !on_gpu || self.apart;
        let on = if on_gpu { " on its GPU" } else { "" };
        let place =
            format!("(collective {}{on}{}", self.before, if has_steps { ", step " } else { ")" });
        let is_placed = |text: &str| match self.how {
            How::SendsNothing | How::DoesNotSplit => true,
            _ => text.contains(&place),
        };
        let begin = format!("rank {} ", self.victim);
        look(|Verdict { cause: is, ranks, text, .. }| {
            let is_untold = self.how == How::SkipsReplay && self.apart && text.contains(untold);
            let why = text.contains(part) || is_untold;
            let names = text.starts_with(&begin) && why && is_placed(text);
            (*is, &ranks[..]) == (cause, &[self.victim as u32]) && names
        })
    }
}

/// Kernels tell of one of so many collectives, as `kernels/cuda/watch.cuh` has it.
const TELL_EACH: u64 = 32;

/// One rank after the other is at fault, in all ways; then the last rank calls something else, and
/// in another order; it is killed in the end.
pub(crate) fn explained(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    let call = || ok(rank.call(sum(COUNT), memory.at, memory.part(BYTES)));
    let replay = Replay::capture(rank.stream, oxcclCaptureGlobal, call)?;
    let mut before = 0;
    if on_gpu() {
        // One of `TELL_EACH` tells: messages, replays and calls are in an order without a period.
        let mut random = Random(19);
        (0..2000).try_for_each(|_| {
            let [calls, early] = [random.below(4), random.below(4)];
            before += 1 + calls + early / 2;
            (0..early % 2).try_for_each(|_| pass_on(rank, &memory))?;
            (0..early / 2).try_for_each(|_| call())?;
            replay.launch(rank.stream)?;
            (0..calls).try_for_each(|_| call())?;
            rank.synchronize()
        })?;
        // One of so many calls in a row is told of, whatever came before.
        (0..TELL_EACH).try_for_each(|_| call())?;
        before += TELL_EACH;
        rank.synchronize()?;
        kernels_tell(rank)?;
    }
    // All ranks draw the same.
    let mut random = Random(18);
    for how in ALL.into_iter().chain(ALL) {
        let victim = random.below(rank.nranks as u64) as i32;
        let pair = [victim, (victim + 1) % rank.nranks];
        let calls = random.below(70);
        (0..calls).try_for_each(|_| call())?;
        total(rank, &memory)?;
        before += calls + 1;
        // A pair is in the order of the ranks.
        let (on, victim) = match how {
            How::LeavesOneAlone => {
                let is_in = pair.contains(&rank.rank);
                let both = rank.split(if is_in { 0 } else { -1 })?;
                (both, i32::from(victim + 1 == rank.nranks))
            }
            _ => (Some(*rank), victim),
        };
        let Some(on) = on else { continue };
        let (memory, replay) = (&memory, &replay);
        let (ran, apart) = match how {
            How::LeavesOneAlone => (0, are_apart(rank.nranks, pair)),
            _ => (before, two_hosts()),
        };
        let standstill = Standstill { how, victim, rank: &on, memory, replay, before: ran, apart };
        let played = standstill.play();
        played.map_err(|e| format!("{how:?} of rank {victim}: {e}"))?;
        match how {
            How::LeavesOneAlone => on.leave()?,
            How::SendsNothing | How::DoesNotSplit => {}
            How::Skips | How::SkipsReplay | How::IsBusy | How::Stops => before += 1,
        }
    }
    differing(rank, &memory)?;
    late(rank, &memory)?;
    in_a_circle(rank, &memory)?;
    killed(rank, &memory)
}

/// The last rank calls something else than the others.
fn differing(rank: &Rank, memory: &Memory) -> Outcome {
    let of = rank.again()?;
    total(&of, memory)?;
    let collective = match of.rank + 1 == of.nranks {
        true => Collective::Broadcast,
        false => Collective::AllReduce,
    };
    let call = Call { collective, ..sum(COUNT) };
    // Who comes late hears of it at the call.
    let _ = ok(of.call(call, memory.at, memory.part(BYTES)));
    let both = ["all_reduce of 1000 × int32, sum", "broadcast of 1000 × int32, root 0"];
    told(&of, &both)?;
    if of.rank == 0 {
        look(|verdict| {
            verdict.cause == Cause::Failed && both.iter().all(|part| verdict.text.contains(part))
        })?;
    }
    // All have been told before the first one gives it up.
    total(rank, memory)?;
    abort_now(&of)?;
    of.end_stream()?;
    total(rank, memory)
}

/// The last rank comes late to all calls, which holds nobody up.
fn late(rank: &Rank, memory: &Memory) -> Outcome {
    const CALLS: usize = 64;
    let last = rank.nranks - 1;
    for _ in 0..CALLS {
        if rank.rank == last {
            // It is late, and waits for nobody.
            std::thread::sleep(Duration::from_millis(3));
        }
        ok(rank.call(sum(COUNT), memory.at, memory.part(BYTES)))?;
        rank.synchronize()?;
    }
    if rank.rank == 0 {
        let job = job::of_process(processes(Path::new(PROC)), own_pid(Path::new(PROC)));
        let found = verdicts(&job, Patience::default());
        let is_late = |of: &Verdict| (of.cause, &of.ranks[..]) == (Cause::Slow, &[last as u32]);
        if !found.iter().any(is_late) {
            return Err(format!("rank {last} was late to {CALLS} calls: {found:#?}"));
        }
    }
    total(rank, memory)
}

/// Each rank sends to the next one.
fn pass_on(rank: &Rank, memory: &Memory) -> Outcome {
    let (next, last) = ((rank.rank + 1) % rank.nranks, (rank.rank + rank.nranks - 1) % rank.nranks);
    group(|| {
        ok(rank.message(true, memory.at, BYTES, next))?;
        ok(rank.message(false, memory.part(BYTES), BYTES, last))
    })
}

/// Kernels of replays of a graph and of calls have told when they ran.
fn kernels_tell(rank: &Rank) -> Outcome {
    let (start, proc) = (Instant::now(), Path::new(PROC));
    // Returns what is wrong with a record.
    let wrong = |report: &RankReport| {
        let runs = &report.kernels;
        let (messages, collectives): (Vec<_>, Vec<_>) =
            runs.iter().partition(|run| run.number.is_none());
        let in_order = runs.is_sorted_by(|a, b| a.ended_ns.is_some_and(|end| end <= b.begun_ns))
            && collectives.is_sorted_by_key(|run| run.number);
        let messages_are_told = (1..64).contains(&messages.len())
            && messages.iter().all(|run| run.what.contains("send/recv of 4000 bytes"));
        let replays = collectives.iter().filter(|run| run.call.is_none()).count();
        // The clocks are compared to some microseconds.
        let follows = |op: &OperationReport| Some(op.begun_ns? + 1_000_000 >= op.called_ns);
        let follow: Vec<bool> = report.operations.iter().filter_map(follows).collect();
        match () {
            () if runs.len() != 64 => Some(format!("{} kernels are told", runs.len())),
            () if !in_order => Some(format!("their order is wrong: {runs:?}")),
            () if !messages_are_told => Some(format!("their messages are wrong: {messages:?}")),
            () if !(4..64).contains(&replays) => Some(format!("{replays} are of replays")),
            () if follow.is_empty() => Some("no operation has begun".to_owned()),
            () if follow.contains(&false) => Some("an operation began before its call".to_owned()),
            () => None,
        }
    };
    loop {
        let own = process(proc, own_pid(proc)).ok_or("this process records nothing")?;
        let of = own.ranks.iter().find(|of| of.rank == rank.rank as u32);
        let Some(reason) = wrong(of.ok_or("this rank records nothing")?) else { return Ok(()) };
        if start.elapsed() > Duration::from_secs(5) {
            return Err(format!("kernels do not tell when they ran: {reason}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The last rank uses two communicators in another order than the others.
fn in_a_circle(rank: &Rank, memory: &Memory) -> Outcome {
    let (first, second) = (rank.again()?, rank.again()?);
    total(rank, memory)?;
    let mut order = [&first, &second];
    if rank.rank + 1 == rank.nranks {
        order.reverse();
    }
    for of in order {
        ok(of.call_on(rank.stream, sum(COUNT), memory.at, memory.part(BYTES)))?;
    }
    if rank.rank == 0 {
        let last = rank.nranks as u32 - 1;
        look(|verdict| verdict.cause == Cause::Deadlock && verdict.ranks.contains(&last))?;
    } else {
        hear(&first)?;
    }
    // The others hear of it, and what waits is given up: the stream tells of both communicators.
    [first, second].iter().try_for_each(abort_now)?;
    let _ = [rank.synchronize(), rank.synchronize()];
    total(rank, memory)
}

/// The cable between two hosts, each with half of the ranks, is cut while all work; `main` does so
/// once all say that they run. The ranks of the other host are named, with the operation.
pub(crate) fn cut_off(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let memory = Memory::new(1 << 20)?;
    total(rank, &memory)?;
    println!("running");
    let start = Instant::now();
    while total(rank, &memory).is_ok() {
        if start.elapsed() > Duration::from_secs(60) {
            return Err("nobody noticed that the cable was cut".to_owned());
        }
    }
    let half = rank.nranks / 2;
    let other = 1 - rank.rank / half;
    let there = format!(" on the host 10.77.{other}.2");
    let parts = ["lost rank ", "of all_reduce (operation ", "has heard nothing of it for ", &there];
    told(rank, &parts)?;
    // Of both hosts, which one can look at here, one rank is cited.
    look(|Verdict { cause, text, .. }| {
        *cause == Cause::Failed && parts[..3].iter().all(|part| text.contains(part))
    })?;
    abort_now(rank)
}

/// Waits until it is told of the job of a process, whose ranks wait for each other over a cable
/// that is cut, in which collective and at which step they do, and of nothing else.
pub(crate) fn silence_is_told(pid: u32) -> Outcome {
    let parts = ["all_reduce of ", "(collective ", ", step ", "what they send does not arrive"];
    let is_told = |of: &Verdict| {
        of.cause == Cause::SilentLink && parts.iter().all(|part| of.text.contains(part))
    };
    look_at(pid, |found| found.first().filter(|_| found.iter().all(is_told)).cloned()).map(drop)
}

/// The last rank is killed while the others wait for it; they say so, with the operation, and go on
/// without it.
fn killed(rank: &Rank, memory: &Memory) -> Outcome {
    let last = rank.nranks - 1;
    if rank.rank == last {
        look(|of| (of.cause, &of.ranks[..]) == (Cause::NotCalled, &[last as u32]))?;
        kill_process(getpid(), Signal::KILL).map_err(|e| e.to_string())?;
    }
    let lost = format!("rank {last}");
    let _ = ok(rank.call(sum(COUNT), memory.at, memory.part(BYTES)));
    told(rank, &[&lost, "all_reduce (operation "])?;
    if rank.rank == 0 {
        look(|verdict| verdict.cause == Cause::Failed && verdict.text.contains(&lost))?;
    }
    survive(rank, memory)
}
