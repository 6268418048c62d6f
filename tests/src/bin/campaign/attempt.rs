//! An attempt: its ranks, the thread that traces the victim, and the one that hears and drives all.

use crate::plan::{Fault, GROW_ROOT, Phase, Plan};
use crate::strangers;
use crate::trace::Tracer;
use oxccl_runtime::bootstrap::{UniqueId, launch, rendezvous, session};
use oxccl_tests::job::bind_to_parent;
use oxccl_tests::network::Network;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal,
};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::os::fd::OwnedFd;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long after the fault a rank may take to end at all; without a fault, after the start.
const HUNG: Duration = Duration::from_secs(20);
/// How long the fault may take to come.
const COMES: Duration = Duration::from_secs(40);

/// What is to be known of an attempt afterwards.
pub(crate) struct Record {
    /// Stops of the victim in its phase.
    pub(crate) stops: u64,
    /// When the fault came.
    pub(crate) struck: Option<Instant>,
    /// Of each rank.
    pub(crate) ranks: Vec<Seen>,
}

/// What was seen of a rank.
#[derive(Default)]
pub(crate) struct Seen {
    /// What it said, and when.
    pub(crate) lines: Vec<(Instant, String)>,
    /// How it ended.
    pub(crate) status: Option<WaitStatus>,
    /// Whether it had to be killed.
    pub(crate) hung: bool,
}

/// How long the ranks wait for each other in initialisation.
pub(crate) const INIT_LIMIT_S: u64 = 12;

enum Event {
    Line(u32, Instant, String),
    Struck(Instant),
    Ended(u32, WaitStatus),
}

/// A rank that was started.
struct Started {
    pid: i32,
    fd: OwnedFd,
    stdin: Option<ChildStdin>,
}

#[allow(clippy::zombie_processes, reason = "`watch` waits for all children of the thread")]
fn start(plan: &Plan, rank: u32, network: Option<&Network>) -> (Started, PipeReader) {
    let layout = plan.cell.layout;
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    let dead = plan.dead.map_or_else(|| "-".to_owned(), |dead| dead.to_string());
    command.args(["rank", plan.cell.phase.name(), &rank.to_string()]);
    command.args([&layout.nranks.to_string(), &plan.seed.to_string(), &dead]);
    command.arg(plan.late_ms.to_string()).stdin(Stdio::piped());
    command.stdout(writer.try_clone().expect("a descriptor")).stderr(writer);
    command.env("OXCCL_INIT_TIMEOUT", INIT_LIMIT_S.to_string());
    let host = layout.host(rank);
    match network.filter(|_| layout.spaces) {
        Some(network) => {
            network.enter(&mut command, host);
        }
        None => {
            command.env("NCCL_SOCKET_IFNAME", "lo");
            if layout.hosts > 1 {
                command.env("NCCL_HOSTID", host.to_string());
            }
        }
    }
    let mut child = bind_to_parent(&mut command).spawn().expect("a rank starts");
    let pid = Pid::from_child(&child);
    let fd = pidfd_open(pid, PidfdFlags::empty()).expect("a descriptor for the child");
    (Started { pid: pid.as_raw_pid(), fd, stdin: child.stdin.take() }, reader)
}

/// It may have ended.
fn signal(fd: &OwnedFd, signal: Signal) {
    let _ = pidfd_send_signal(fd, signal);
}

/// A rendezvous in this process, as a launcher holds it.
fn rendezvous() -> UniqueId {
    let made = || {
        let listener = session::listen(([127, 0, 0, 1], 0).into())?;
        let id = UniqueId::new(listener.local_addr().expect("an address"))?;
        rendezvous::start(listener, id.clone(), Vec::new())?;
        Ok::<_, oxccl_runtime::Error>(id)
    };
    made().expect("a rendezvous")
}

/// Makes an attempt. Blocks until all its processes have ended.
pub(crate) fn run(plan: &Plan, network: Option<&Network>) -> Record {
    let id = plan.cell.layout.launcher.then(rendezvous);
    let (sender, receiver) = channel();
    let (mut started, readers): (Vec<_>, Vec<_>) =
        (0..plan.processes()).map(|rank| start(plan, rank, network)).unzip();
    let pids: Vec<i32> = started.iter().map(|rank| rank.pid).collect();
    let numbers: HashMap<i32, u32> = pids.iter().copied().zip(0..).collect();
    let stdins = started.iter_mut().map(|rank| rank.stdin.take()).collect();
    let fds: Vec<OwnedFd> = started.into_iter().map(|rank| rank.fd).collect();
    let known = id.as_ref().map(|id| id.address);
    let waits_count = plan.cell.phase == Phase::Operations;
    // Before any of them is told to begin. A thread traces and waits for what it started itself.
    let victim = plan.victim as usize;
    let mut tracer = Tracer::seize(pids[victim], plan.step, waits_count)
        .expect("ptrace is allowed for children here");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (reader, rank) in readers.into_iter().zip(0..) {
            let sender = sender.clone();
            scope.spawn(move || hear(reader, rank, &sender));
        }
        let (pids, over) = (&pids, &over);
        scope.spawn(move || strangers::visit_all(pids, known, plan.seed, over));
        let mut conductor = Conductor::new(plan, &fds, stdins, id.as_ref());
        let conductor = scope.spawn(move || {
            conductor.begin();
            conductor.conduct(&receiver);
            conductor.finish()
        });
        let strike = || {
            let struck = strike(plan, &fds[victim], network);
            let _ = sender.send(Event::Struck(struck));
        };
        watch(&mut tracer, &numbers, &sender, strike);
        over.store(true, Ordering::Relaxed);
        drop(sender);
        let (struck, ranks) = conductor.join().expect("the conductor does not panic");
        if let Some(network) = network.filter(|_| plan.cell.fault == Fault::Cut) {
            network.mend();
        }
        Record { stops: tracer.stops, struck, ranks }
    })
}

/// Does what is to happen to the victim, which stands at a system call; when it had happened.
fn strike(plan: &Plan, victim: &OwnedFd, network: Option<&Network>) -> Instant {
    match plan.cell.fault {
        Fault::None => {}
        Fault::Kill => signal(victim, Signal::KILL),
        Fault::Pause | Fault::Stop => signal(victim, Signal::STOP),
        Fault::Cut => network.expect("cuts need namespaces").cut(plan.cut),
    }
    Instant::now()
}

/// Waits for the children of this thread until none are left, and traces the victim.
fn watch(
    tracer: &mut Tracer,
    numbers: &HashMap<i32, u32>,
    sender: &Sender<Event>,
    strike: impl Fn(),
) {
    let options = WaitOptions::from_bits_retain((libc::__WALL | libc::__WNOTHREAD) as u32);
    loop {
        match rustix::process::wait(options) {
            Ok(Some((pid, status))) if status.stopped() => {
                tracer.stopped(pid.as_raw_pid(), status.as_raw(), &strike);
            }
            // The victim's threads have no number.
            Ok(Some((pid, status))) => {
                if let Some(rank) = numbers.get(&pid.as_raw_pid()) {
                    let _ = sender.send(Event::Ended(*rank, status));
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn hear(reader: PipeReader, rank: u32, sender: &Sender<Event>) {
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        let _ = sender.send(Event::Line(rank, Instant::now(), line));
    }
}

/// Drives the ranks and notes what they say.
struct Conductor<'a> {
    plan: &'a Plan,
    fds: &'a [OwnedFd],
    stdins: Vec<Option<ChildStdin>>,
    /// The id whose rendezvous this process holds.
    id: Option<&'a UniqueId>,
    struck: Option<Instant>,
    ranks: Vec<Seen>,
    /// When all that are left are killed.
    deadline: Instant,
    /// When the stopped victim goes on or is killed.
    release: Option<Instant>,
}

impl<'a> Conductor<'a> {
    fn new(
        plan: &'a Plan,
        fds: &'a [OwnedFd],
        stdins: Vec<Option<ChildStdin>>,
        id: Option<&'a UniqueId>,
    ) -> Self {
        let ranks = fds.iter().map(|_| Seen::default()).collect();
        let deadline = Instant::now() + COMES;
        Self { plan, fds, stdins, id, struck: None, ranks, deadline, release: None }
    }

    fn finish(self) -> (Option<Instant>, Vec<Seen>) {
        (self.struck, self.ranks)
    }

    /// Tells a rank its id, or to make one. It may have ended.
    fn tell(&mut self, rank: u32, line: &str) {
        if let Some(stdin) = &mut self.stdins[rank as usize] {
            let _ = writeln!(stdin, "{line}");
        }
    }

    /// Has the ranks of the first communicator begin.
    fn begin(&mut self) {
        match self.id {
            Some(id) => {
                let line = format!("id {}", launch::hex(&id.encode()));
                (0..self.plan.cell.layout.nranks).for_each(|rank| self.tell(rank, &line));
            }
            None => self.tell(0, "make"),
        }
    }

    fn conduct(&mut self, receiver: &Receiver<Event>) {
        loop {
            let next = self.release.map_or(self.deadline, |release| release.min(self.deadline));
            match receiver.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(event) => self.hear(event),
                Err(RecvTimeoutError::Timeout) => self.act(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Line(rank, at, line) => match line.split_once(' ') {
                Some(("id", id)) => {
                    let line = format!("id {id}");
                    let others = 1..self.plan.cell.layout.nranks;
                    others.for_each(|rank| self.tell(rank, &line));
                }
                Some(("newcomer", id)) => {
                    if let Some(newcomer) = self.plan.newcomer() {
                        self.tell(newcomer, &format!("id {id}"));
                    }
                }
                _ => self.ranks[rank as usize].lines.push((at, line)),
            },
            Event::Struck(at) => {
                self.struck = Some(at);
                self.deadline = at + HUNG;
                let stopped = matches!(self.plan.cell.fault, Fault::Pause | Fault::Stop);
                self.release = stopped.then_some(at + self.plan.hold);
            }
            Event::Ended(rank, status) => {
                self.ranks[rank as usize].status = Some(status);
                if let Some(id) = self.id {
                    // As a launcher does.
                    rendezvous::note_absent(id, rank, "ended before it joined".to_owned(), true);
                }
                if let Some(newcomer) = self.plan.newcomer().filter(|_| rank == GROW_ROOT) {
                    // Whom it has not told of the growth, nobody will.
                    self.stdins[newcomer as usize] = None;
                }
            }
        }
    }

    /// Does what is due.
    fn act(&mut self) {
        let now = Instant::now();
        if self.release.is_some_and(|release| release <= now) {
            self.release = None;
            let what = if self.plan.ends { Signal::KILL } else { Signal::CONT };
            signal(&self.fds[self.plan.victim as usize], what);
        }
        if self.deadline <= now {
            for (seen, fd) in self.ranks.iter_mut().zip(self.fds) {
                seen.hung |= seen.status.is_none();
                signal(fd, Signal::KILL);
            }
            // What is left ends now; this is for a system that is slow to end it.
            self.deadline = now + HUNG;
        }
    }
}
