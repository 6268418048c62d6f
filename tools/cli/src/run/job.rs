//! The processes of a job: how they end, and how all of them are brought to an end.
//!
//! The launcher is the subreaper of what its ranks start: a process whose parent has ended becomes
//! the launcher's child, whatever group or session it has made. So killing children until there are
//! none reaches everyone, and no number of a process that others may have taken is ever used.

use super::Grace;
use super::signals::{Signals, forwarded};
use oxccl_runtime::bootstrap::{Cancel, Deadline, UniqueId, rendezvous};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group};
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// How long to wait at a time while the job runs; its processes' ends are signals.
const IDLE: Duration = Duration::from_secs(3600);

/// What was killed has this time to be gone.
const LAST: Duration = Duration::from_secs(5);

/// What comes so soon after the first signal is the same one: `timeout` and shells send theirs to a
/// process and once more to its group.
const SAME: Duration = Duration::from_millis(200);

/// How the job ends, once that has begun.
struct End {
    code: u8,
    /// When what still runs is killed.
    until: Deadline,
}

/// The ranks that run, and what they have started.
pub(super) struct Job {
    ranks: HashMap<Pid, u32>,
    /// By which they meet.
    id: UniqueId,
    signals: Signals,
    grace: Grace,
    /// Children that this process had before, as of a shell whose place it took.
    strangers: Vec<Pid>,
    /// When the first signal to pass on came.
    signalled: Option<Instant>,
    end: Option<End>,
}

impl Job {
    /// A job without ranks, which are to meet by this id.
    pub(super) fn new(signals: Signals, grace: Grace, id: UniqueId) -> Self {
        let strangers = children();
        // A kernel that refuses it has what the ranks leave behind adopted by init.
        let _ = rustix::process::set_child_subreaper(Some(getpid()));
        let (ranks, signalled, end) = (HashMap::new(), None, None);
        Self { ranks, id, signals, grace, strangers, signalled, end }
    }

    /// Adds a rank, the leader of a process group.
    pub(super) fn add(&mut self, rank: u32, child: &Child) {
        self.ranks.insert(Pid::from_child(child), rank);
    }

    /// Waits until the job is over, and passes signals on; its exit code.
    pub(super) fn wait(mut self) -> ExitCode {
        loop {
            self.reap();
            let gone = self.ranks.is_empty();
            let limit = match &self.end {
                None if gone => return ExitCode::SUCCESS,
                None => IDLE,
                Some(end) => {
                    // What got the signal with its rank has the same time, also when the rank is
                    // gone.
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
                Some(signal) => self.forward(signal),
                None => {}
            }
        }
    }

    /// Takes the ends of processes.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.strangers.retain(|stranger| *stranger != pid);
            if let Some(rank) = self.ranks.remove(&pid) {
                self.ended(rank, ExitStatus::from_raw(status.as_raw()));
            }
        }
    }

    fn ended(&mut self, rank: u32, status: ExitStatus) {
        // The others may wait for it.
        rendezvous::note_absent(
            &self.id,
            rank,
            format!("ended with {status} before it joined"),
            true,
        );
        if status.success() || self.end.is_some() {
            return;
        }
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        self.end_within(code.and_then(|c| u8::try_from(c).ok()).unwrap_or(1), self.grace.0);
        let others = match self.ranks.len() {
            0 => String::new(),
            n => {
                format!("; the other ranks ({n}) have {} to end, then they are killed", self.grace)
            }
        };
        say(&format!("rank {rank} ended with {status}{others}"));
    }

    /// Gives what runs this time to end; the exit code is the first one that is said.
    fn end_within(&mut self, code: u8, limit: Duration) {
        let code = self.end.as_ref().map_or(code, |end| end.code);
        self.end = Some(End { code, until: Deadline::new(limit, &Cancel::default()) });
    }

    /// Passes a signal on; after another one nothing is waited for.
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
                // One that is stopped would not take it.
                self.tell(Signal::CONT);
            }
        }
    }

    /// Stops and goes on together with the ranks, which the terminal does not count to its job.
    fn stop(&self) {
        self.tell(Signal::TSTP);
        // Nobody has to allow a process to stop itself.
        let _ = kill_process(getpid(), Signal::STOP);
        self.tell(Signal::CONT);
    }

    /// Sends a signal to the groups of all ranks.
    fn tell(&self, signal: Signal) {
        for rank in self.ranks.keys() {
            // What has ended needs none.
            let _ = kill_process_group(*rank, signal);
        }
    }

    /// Kills the ranks and all that they have started. Blocks for some seconds at most.
    pub(super) fn kill(&mut self) {
        self.end_within(1, Duration::ZERO);
        if !self.ranks.is_empty() {
            say(&format!("killing the ranks that still run ({})", self.ranks.len()));
        }
        let limit = Deadline::new(LAST, &Cancel::default());
        loop {
            self.tell(Signal::KILL);
            let children = self.children();
            for child in &children {
                // What has more rights than this process stays, and is told below.
                let _ = kill_process(*child, Signal::KILL);
            }
            // The children of those that end are found in the next round.
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

    /// The job's processes that have no other parent.
    fn children(&self) -> Vec<Pid> {
        let mut children = children();
        children.retain(|child| !self.strangers.contains(child));
        children
    }
}

/// The children of this process; none where `/proc` does not tell.
fn children() -> Vec<Pid> {
    let own = getpid().as_raw_pid();
    // It may be that of a pid namespace around this one, where numbers mean other processes.
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

/// Tells the user; a terminal that is gone is no reason to end.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "oxccl: {text}");
}
