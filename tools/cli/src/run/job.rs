//! The processes of a job: waiting for their ends, and ending all of them.
//!
//! The launcher is the subreaper of the processes that its ranks start: a process whose parent has
//! ended becomes the launcher's child, whatever group or session it has made. So killing children
//! until there are none reaches all processes, and the number of a process is never used after
//! another process may have taken it.

use super::Time;
use super::hosts::Part;
use super::signals::{Signals, forwarded};
use crate::error::say;
use oxccl_runtime::bootstrap::{Cancel, Deadline, UniqueId, rendezvous};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group};
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// The longest single wait while the job runs; the end of a process is a signal and ends a wait.
const IDLE: Duration = Duration::from_secs(3600);

/// The time that killed processes have to be gone.
const LAST: Duration = Duration::from_secs(5);

/// The time after the first signal within which another one counts as the same: `timeout` and
/// shells send a signal to a process and once more to its group.
const SAME: Duration = Duration::from_millis(200);

/// The exit code of a job whose time was over, as of `timeout` of the GNU coreutils.
const TIMED_OUT: u8 = 124;

/// The most processes that are named of those that failed after the first one, or ended before.
const SHOWN: usize = 8;

/// The exit code of shells and of the dynamic linker for what they do not find.
const NOT_FOUND: i32 = 127;

/// The end of the job, once it has begun.
struct End {
    code: u8,
    /// The time at which processes that still run are killed.
    until: Deadline,
}

/// A process of the job that this one has started: a rank, or the launcher of another host's ranks.
pub(super) struct Member {
    name: String,
    ranks: Range<u32>,
    /// The way to the launcher on another host, which ends its ranks when this is closed.
    input: Option<ChildStdin>,
}

impl Member {
    pub(super) fn rank(rank: u32) -> Self {
        Self { name: format!("rank {rank}"), ranks: rank..rank + 1, input: None }
    }

    pub(super) fn host(
        host: &str,
        Part { first, count, .. }: Part,
        input: Option<ChildStdin>,
    ) -> Self {
        let ranks = first..first + count;
        let name = match count {
            1 => format!("host {host} with rank {first}"),
            _ => format!("host {host} with the ranks {first} to {}", first + count - 1),
        };
        Self { name, ranks, input }
    }
}

/// The ranks that run, and the processes that they have started.
pub(super) struct Job {
    ranks: HashMap<Pid, Member>,
    /// The id by which the ranks meet.
    id: UniqueId,
    signals: Signals,
    grace: Time,
    /// The time at which the ranks are told to end, if there is one.
    until: Option<Deadline>,
    /// The children that this process had before the job, such as those of a shell that it
    /// replaced.
    strangers: Vec<Pid>,
    /// The time of the first signal to pass on, or of the first that kills.
    signalled: Option<Instant>,
    /// The ranks that ended well before one failed.
    well: Vec<u32>,
    /// The processes that failed after the first one, before they got a signal.
    later: Vec<String>,
    end: Option<End>,
}

impl Job {
    /// Makes a job without ranks; ranks that are added meet by this id. They have `grace` to end
    /// once they have to, which they do after `timeout` at the latest.
    pub(super) fn new(
        signals: Signals,
        (grace, timeout): (Time, Option<Time>),
        id: UniqueId,
    ) -> Self {
        let until = timeout.map(|time| Deadline::new(time.0, &Cancel::default()));
        let strangers = children();
        // If the kernel refuses this, init adopts the processes that the ranks leave behind.
        let _ = rustix::process::set_child_subreaper(Some(getpid()));
        let (ranks, well, later) = (HashMap::new(), Vec::new(), Vec::new());
        let (signalled, end) = (None, None);
        Self { ranks, id, signals, grace, until, strangers, signalled, well, later, end }
    }

    /// Adds a process, the leader of a process group.
    pub(super) fn add(&mut self, member: Member, child: &Child) {
        self.ranks.insert(Pid::from_child(child), member);
    }

    /// Waits until the job is over, and passes signals on; returns the exit code of the job.
    pub(super) fn wait(mut self) -> ExitCode {
        loop {
            self.reap();
            let gone = self.ranks.is_empty();
            let limit = match &self.end {
                None if gone => return ExitCode::SUCCESS,
                None => match &self.until {
                    Some(until) if until.passed() => {
                        self.time_out();
                        continue;
                    }
                    Some(until) => until.left().min(IDLE),
                    None => IDLE,
                },
                Some(end) => {
                    // Processes that got the signal with their rank have the same time, even when
                    // the rank is gone.
                    let rest = || self.signalled.is_some() && !self.children().is_empty();
                    if end.until.passed() || gone && !rest() {
                        let code = ExitCode::from(end.code);
                        self.kill();
                        return code;
                    }
                    end.until.left()
                }
            };
            match self.signals.take(limit) {
                Some(signal) if signal == Signal::TSTP => self.stop(),
                // Of a rank that prints for a command of this program, or of this process's own.
                Some(signal) if signal == Signal::PIPE => return self.end_with_reader(),
                Some(signal) => self.forward(signal),
                None => {}
            }
        }
    }

    /// Returns the number of ranks that run.
    fn running(&self) -> usize {
        self.ranks.values().map(|member| member.ranks.len()).sum()
    }

    /// Collects the processes that have ended.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.strangers.retain(|stranger| *stranger != pid);
            if let Some(member) = self.ranks.remove(&pid) {
                self.ended(&member, ExitStatus::from_raw(status.as_raw()));
            }
        }
    }

    fn ended(&mut self, Member { name, ranks, .. }: &Member, status: ExitStatus) {
        // The other ranks may wait for these.
        for rank in ranks.clone() {
            let why = format!("ended with {status} before it joined");
            rendezvous::note_absent(&self.id, rank, why, true);
        }
        if status.success() {
            if self.end.is_none() {
                self.well.extend(ranks.clone());
            }
            return;
        }
        if self.end.is_some() {
            // Who was to blame may end after those that heard of it.
            if self.signalled.is_none() {
                self.later.push(format!("{name} with {status}"));
            }
            return;
        }
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        self.end_within(code.and_then(|c| u8::try_from(c).ok()).unwrap_or(1), self.grace.0);
        let others = match self.running() {
            0 => String::new(),
            n => {
                format!("; the other ranks ({n}) have {} to end, then they are killed", self.grace)
            }
        };
        say(&format!("{name} ended with {status}{}{others}", self.before()));
        if code == Some(NOT_FOUND) {
            say("status 127 mostly means that a program or a shared library was not found: where \
                 liboxccl.so.2 is missing, set LD_LIBRARY_PATH to its folder");
        }
    }

    /// Returns a clause that names the ranks that ended well before one failed: the others may have
    /// waited for them. Empty if there are none.
    fn before(&mut self) -> String {
        self.well.sort_unstable();
        let shown: Vec<_> = self.well.iter().take(SHOWN).map(u32::to_string).collect();
        let shown = shown.join(", ");
        let who = match self.well.len() {
            0 => return String::new(),
            1 => format!("rank {shown}"),
            2..=SHOWN => format!("the ranks {shown}"),
            all => format!("the ranks {shown} and {} more", all - SHOWN),
        };
        format!("; {who} ended with exit status 0")
    }

    /// Tells the ranks that their time is over.
    fn time_out(&mut self) {
        self.signalled = Some(Instant::now());
        self.end_within(TIMED_OUT, self.grace.0);
        let ranks = self.running();
        say(&format!(
            "the time is over: SIGTERM to the ranks ({ranks}), which have {} to end",
            self.grace
        ));
        self.tell(Signal::TERM);
        self.tell(Signal::CONT);
    }

    /// Gives running processes this time to end; the first exit code that is passed here counts.
    fn end_within(&mut self, code: u8, limit: Duration) {
        let code = self.end.as_ref().map_or(code, |end| end.code);
        self.end = Some(End { code, until: Deadline::new(limit, &Cancel::default()) });
    }

    /// Passes a signal on; a second signal ends the job without a wait.
    fn forward(&mut self, signal: Signal) {
        let Some(name) = forwarded(signal) else { return };
        let code = 128 + signal.as_raw() as u8;
        match self.signalled {
            Some(first) if first.elapsed() < SAME => {}
            Some(_) => self.end_within(code, Duration::ZERO),
            None => {
                self.signalled = Some(Instant::now());
                self.end_within(code, self.grace.0);
                let what = "passed on to the ranks, which have";
                say(&format!("{name}: {what} {} to end; another signal kills them", self.grace));
                self.tell(signal);
                // A stopped process would not take the signal.
                self.tell(Signal::CONT);
            }
        }
    }

    /// Stops this process together with the ranks, which are not in the terminal's job, and
    /// continues with them.
    fn stop(&mut self) {
        self.tell(Signal::TSTP);
        // A process may always stop itself.
        let _ = kill_process(getpid(), Signal::STOP);
        self.tell(Signal::CONT);
    }

    /// Sends a signal to the groups of all ranks. Launchers on other hosts are told of those that
    /// they pass on; ssh itself would only end.
    fn tell(&mut self, signal: Signal) {
        for (pid, member) in &mut self.ranks {
            // A process that has ended needs no signal.
            match &mut member.input {
                Some(input) if signal != Signal::KILL => {
                    if forwarded(signal).is_some() {
                        let _ = writeln!(input, "{}", signal.as_raw());
                    }
                }
                _ => drop(kill_process_group(*pid, signal)),
            }
        }
    }

    /// Ends the job without a word, as nobody reads its output any more; returns its exit code.
    fn end_with_reader(&mut self) -> ExitCode {
        let code = 128 + Signal::PIPE.as_raw() as u8;
        self.end_within(code, Duration::ZERO);
        self.kill_all();
        ExitCode::from(code)
    }

    /// Kills the ranks and all processes that they have started. Blocks for some seconds at most.
    pub(super) fn kill(&mut self) {
        self.end_within(1, Duration::ZERO);
        self.tell_later();
        if !self.ranks.is_empty() {
            say(&format!("killing the ranks that still run ({})", self.running()));
        }
        self.kill_all();
    }

    fn kill_all(&mut self) {
        self.signalled.get_or_insert_with(Instant::now);
        let limit = Deadline::new(LAST, &Cancel::default());
        loop {
            self.tell(Signal::KILL);
            let children = self.children();
            for child in &children {
                // A process with more rights than this one stays, and is reported below.
                let _ = kill_process(*child, Signal::KILL);
            }
            // The children of processes that end are found in the next round.
            self.reap();
            if self.ranks.is_empty() && children.is_empty() {
                return;
            }
            if limit.passed() {
                let pids: Vec<_> = children.iter().map(|p| p.as_raw_pid().to_string()).collect();
                return say(&format!("these processes could not be killed: {}", pids.join(", ")));
            }
            self.signals.take(Duration::from_millis(10));
        }
    }

    /// Says which ranks failed after the first one.
    fn tell_later(&mut self) {
        let later = std::mem::take(&mut self.later);
        let more = match later.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        if !later.is_empty() {
            let shown = later[..later.len().min(SHOWN)].join(", ");
            say(&format!("after it failed: {shown}{more}"));
        }
    }

    /// Returns the job's processes whose parent is this process.
    fn children(&self) -> Vec<Pid> {
        let mut children = children();
        children.retain(|child| !self.strangers.contains(child));
        children
    }
}

/// Returns the children of this process; none if `/proc` cannot be used.
fn children() -> Vec<Pid> {
    let own = getpid().as_raw_pid();
    // `/proc` may be that of a pid namespace around this one, where numbers mean other processes.
    let link = std::fs::read_link("/proc/self").unwrap_or_default();
    if link.to_str() != Some(own.to_string().as_str()) {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent(*pid) == Some(own)).filter_map(Pid::from_raw).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The 4th field; the second may contain anything and ends at the last parenthesis.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace().nth(1)?.parse().ok()
}
