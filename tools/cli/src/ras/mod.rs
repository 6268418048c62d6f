//! `oxccl ras`: what the ranks on this machine do, and why a job does not move.

mod chrome;
mod elsewhere;
mod flight;
mod network;
mod prometheus;
#[cfg(test)]
mod sample;
mod svg;

use crate::error::{Error, Result, say};
use clap::{Args, Subcommand, ValueEnum};
use network::Ways;
use oxccl_plan::words::counted;
use oxccl_runtime::ras::job::{self, Comm, Member, communicators};
use oxccl_runtime::ras::status;
use oxccl_runtime::ras::verdict::{Patience, Verdict, span, verdicts};
use oxccl_runtime::recorder::Stage;
use oxccl_runtime::recorder::read::{self, Awaited, PROC, Process, RankReport};
use oxccl_runtime::recorder::wire;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Examples, environment and exit codes of `oxccl ras`, the end of its help and manual page.
const MORE: &str = "\
Examples:
  oxccl ras
  oxccl ras --pid 4711 --pid 4712 --json
  oxccl ras dump flight-recorder traces/
  oxccl ras dump chrome trace.json
  oxccl ras dump svg job.svg
  ssh node2 oxccl ras --json >node2.json; oxccl ras --from node2.json

It reads what the processes of this user on this machine record, so it also answers while all of
them are stuck. Processes of other users need privileges. Where ranks are on other hosts, the RAS
service of a process here is asked for them, for up to 3 s.

Environment: none. NCCL_RAS_ADDR and its kin are those of the service, see oxccl env ras.

Exit code: 0 if nothing holds a job up, and after a dump; 2 if something does; 1 if the command
failed.";

/// Examples, environment and exit codes of `oxccl ras dump`, the end of its help and manual page.
const DUMPS: &str = "\
Examples:
  oxccl ras dump chrome trace.json
  oxccl ras dump flight-recorder traces/ && torchfrtrace traces/ -p oxccl_rank_
  oxccl ras dump prometheus /var/lib/node_exporter/oxccl.prom

Environment: none.

Exit code: 0 after a dump; 1 if it could not be written, or if no rank is seen of which a picture,
a trace or a flight recorder could tell. Documents and metrics without ranks are written.";

/// Options of `oxccl ras`.
#[derive(Args)]
#[command(after_long_help = MORE, args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    /// Print all that is known as a JSON document.
    #[arg(long)]
    json: bool,
    /// The time in seconds from which on an operation counts as held up.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", global = true)]
    patience: f64,
    /// Only processes with these numbers, of those on this machine.
    #[arg(long, value_name = "PID", global = true)]
    pid: Vec<u32>,
    /// A file that oxccl ras --json has written on another host, which is told of as well.
    #[arg(long, value_name = "FILE", global = true)]
    from: Vec<PathBuf>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Write what is recorded in a format that other tools read.
    #[command(after_long_help = DUMPS)]
    Dump {
        /// The format.
        format: Format,
        /// The file, or for the flight recorder the folder, to write; - is the standard output.
        path: PathBuf,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A JSON document, as `oxccl ras --json` prints it.
    Json,
    /// A file for each rank, which PyTorch's analyser of flight recorders reads (torchfrtrace).
    FlightRecorder,
    /// Trace events of all ranks on one time axis, for Perfetto and Chrome.
    Chrome,
    /// Counters in the text format of Prometheus.
    Prometheus,
    /// A picture of the latest collectives of all ranks, and of who waits for whom.
    Svg,
}

/// Returns the text where there is nothing to tell of, among these processes or, without any, among
/// all of this user.
fn nobody(pids: &[u32]) -> String {
    let numbers: Vec<_> = pids.iter().map(u32::to_string).collect();
    match &numbers[..] {
        [] => "No process of this user on this machine has ranks of a communicator.".to_owned(),
        [pid] => format!("Process {pid} has no ranks of a communicator that this user may see."),
        [pids @ .., last] => {
            let pids = pids.join(", ");
            format!(
                "None of the processes {pids} and {last} has ranks of a communicator that this \
                 user may see."
            )
        }
    }
}

/// The most ranks of a communicator that have a line each though none of them waits.
const FEW: usize = 8;

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    let is_wanted = |pid: u32| options.pid.is_empty() || options.pid.contains(&pid);
    let look = || {
        let mut processes = read::processes(Path::new(PROC));
        processes.retain(|process| is_wanted(process.pid));
        processes
    };
    let mut processes = look();
    // Each host has a collector of metrics.
    let is_metrics =
        matches!(options.action, Some(Action::Dump { format: Format::Prometheus, .. }));
    let mut answers = if is_metrics { Vec::new() } else { elsewhere::ask(&processes) };
    if !answers.is_empty() {
        // As they are once the others have answered.
        processes = look();
    }
    let here = processes.len();
    let runs = |pid: &u32| Path::new(PROC).join(pid.to_string()).exists();
    if let (Some(pid), true) = (options.pid.iter().find(|pid| !runs(pid)), options.from.is_empty())
    {
        return Err(Error::Options(format!("--pid {pid}: there is no such process on this host")));
    }
    let addresses: HashSet<_> = processes.iter().map(|process| process.address.clone()).collect();
    answers.retain(|of| is_wanted(of.pid) || !addresses.contains(&of.address));
    add(&mut processes, answers);
    for path in &options.from {
        add(&mut processes, of_file(path)?);
    }
    let waiting_ns = (options.patience.max(0.0) * 1e9) as u64;
    let patience = Patience { waiting_ns, ..Patience::default() };
    let ways = ways(&processes[..here]);
    ways.mark(&mut processes);
    let mut causes = verdicts(&processes, patience);
    causes.extend(ways.verdicts(&processes, &causes));
    if let Some(Action::Dump { format, path }) = &options.action {
        return dump((&processes, &causes), *format, path, &options.pid);
    }
    match options.json {
        true => println!("{}", status::json(&processes, &causes)),
        false => print!("{}", text((&processes, &causes), &options.pid)),
    }
    let held_up = causes.iter().any(|verdict| verdict.cause.holds_up());
    Ok(if held_up { ExitCode::from(2) } else { ExitCode::SUCCESS })
}

/// Adds processes that others have told of, without what cannot be, and ranks that are there.
fn add(processes: &mut Vec<Process>, told: Vec<Process>) {
    let (seen, mut all) = (processes.len(), processes.clone());
    let ranks = processes.iter().flat_map(|process| &process.ranks);
    let sizes: HashMap<_, _> = ranks.map(|rank| (rank.comm, rank.nranks)).collect();
    all.extend(told.iter().cloned());
    job::refuse(&mut all, &sizes);
    processes.extend(all.drain(seen..).filter(|process| !process.ranks.is_empty()));
    // What somebody knows of ranks that do not answer, who is seen here, too, knows.
    let is_one = |a: &Process, b: &Process| {
        let mut ranks = a.ranks.iter().map(|rank| (rank.comm, rank.rank));
        ranks.any(|rank| b.ranks.iter().any(|of| (of.comm, of.rank) == rank))
    };
    for process in told.iter().filter(|process| !process.unanswered.is_empty()) {
        let here = processes[..seen].iter_mut().filter(|here| is_one(here, process));
        here.for_each(|here| here.unanswered.clone_from(&process.unanswered));
    }
}

/// Returns the processes of a file that `oxccl ras --json` has written.
fn of_file(path: &Path) -> Result<Vec<Process>> {
    let failed = |cause: String| Error::File { path: path.display().to_string(), cause };
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    of_document(&text).ok_or_else(|| failed("it is not what oxccl ras --json writes".to_owned()))
}

/// Returns the processes of a document that `oxccl ras --json` has written, or the service; `None`
/// if it is none.
fn of_document(text: &str) -> Option<Vec<Process>> {
    let document: serde_json::Value = serde_json::from_str(text).ok()?;
    let processes = document["processes"].as_array()?;
    processes.iter().map(|of| wire::decode(of.to_string().as_bytes())).collect()
}

/// Returns the ways from this host to other ones, as far as the kernel tells of them.
fn ways(processes: &[Process]) -> Ways {
    match network::connections() {
        Ok(all) => Ways::of(&network::of_processes(Path::new(PROC), processes, &all)),
        Err(error) => {
            if communicators(processes).iter().any(|comm| !comm.unseen().is_empty()) {
                say(&format!("the kernel does not tell of TCP connections: {error}"));
            }
            Ways::default()
        }
    }
}

/// Writes what some processes record, and what holds them up, in a format. The user asked for the
/// processes `pids`, or for all if it is empty.
fn dump(
    (processes, causes): (&[Process], &[Verdict]),
    format: Format,
    path: &Path,
    pids: &[u32],
) -> Result<ExitCode> {
    fn failed(path: &Path, cause: impl ToString) -> Error {
        Error::File { path: path.display().to_string(), cause: cause.to_string() }
    }
    let write = |path: &Path, bytes: &[u8]| {
        let written = match path.as_os_str() == "-" {
            true => std::io::stdout().write_all(bytes),
            false => std::fs::write(path, bytes),
        };
        written.map_err(|e| failed(path, e))
    };
    let is_empty = communicators(processes).is_empty();
    if is_empty && !matches!(format, Format::Json | Format::Prometheus) {
        let text = format!("{} Nothing is written to {}.", nobody(pids), path.display());
        return Err(Error::Options(text));
    }
    match format {
        Format::Json => write(path, (status::json(processes, causes) + "\n").as_bytes())?,
        Format::Chrome => write(path, chrome::events(processes).as_bytes())?,
        Format::Prometheus => write(path, prometheus::metrics(processes).as_bytes())?,
        Format::Svg => {
            let svg = svg::picture(processes, causes).map_err(|e| failed(path, e))?;
            write(path, svg.as_bytes())?;
        }
        Format::FlightRecorder => {
            std::fs::create_dir_all(path).map_err(|e| failed(path, e))?;
            for (name, bytes) in flight::files(processes) {
                write(&path.join(name), &bytes)?;
            }
        }
    }
    if is_empty {
        say(&nobody(pids));
    }
    Ok(ExitCode::SUCCESS)
}

fn text((processes, causes): (&[Process], &[Verdict]), pids: &[u32]) -> String {
    let comms = communicators(processes);
    if comms.is_empty() {
        return nobody(pids) + "\n";
    }
    let mut lines = vec![];
    if !causes.iter().any(|verdict| verdict.cause.holds_up()) {
        lines.push("Nothing holds a job up.".to_owned());
    }
    lines.extend(causes.iter().map(|verdict| format!("* {}", verdict.text)));
    for comm in &comms {
        lines.push(String::new());
        lines.push(head(comm));
        // Of many ranks that wait for nobody, their numbers tell enough.
        let is_named = causes.iter().any(|verdict| verdict.comm == comm.number);
        let waits = comm.members.iter().any(|member| member.rank.waiting.is_some());
        match comm.members.len() <= FEW || is_named || waits {
            true => lines.extend(comm.members.iter().map(row)),
            false => lines.push(rows_in_short(&comm.members)),
        }
    }
    lines.join("\n") + "\n"
}

/// Returns the line about a communicator.
fn head(comm: &Comm<'_>) -> String {
    let unseen = comm.unseen().len();
    let unseen = match (unseen, comm.stage()) {
        (0, _) => String::new(),
        (_, Stage::Creating) => format!(", {unseen} of them have not come, or are elsewhere"),
        _ => format!(", {unseen} of them not seen"),
    };
    let stage = comm.stage().name();
    format!("{}: {}{unseen}, {stage}", comm.title(), counted(comm.nranks, "rank", "ranks"))
}

/// Returns the line about ranks that wait for nobody.
fn rows_in_short(members: &[Member<'_>]) -> String {
    let range = |of: fn(&Member<'_>) -> u64| {
        let numbers = || members.iter().map(of);
        let (least, most) = (numbers().min().unwrap_or(0), numbers().max().unwrap_or(0));
        if least == most { most.to_string() } else { format!("{least} to {most}") }
    };
    let called = range(|member| member.rank.issued);
    let done = range(|member| member.rank.finished);
    let done = match members.iter().any(|member| member.rank.gpu.is_some()) {
        true => " outside of graphs".to_owned(),
        false => format!(", {done} done"),
    };
    let seen = counted(members.len(), "rank is seen", "ranks are seen");
    format!("  {seen}: {called} called{done}")
}

/// Returns the line about a rank.
fn row(member: &Member<'_>) -> String {
    let rank = member.rank;
    let counts = match rank.gpu {
        Some(_) => format!("{} called outside of graphs{}", rank.issued, on_gpu(rank)),
        None => format!("{} called, {} done", rank.issued, rank.finished),
    };
    let waits = rank.waiting.map(|waiting| {
        let called = || member.waiting_operation().map(|op| op.what.clone());
        let in_kernel = waiting.collective.map(|inside| inside.descriptor.to_string());
        let what = in_kernel.or_else(called).unwrap_or_else(|| "a kernel".to_owned());
        format!("; {what} {}", wait(member, &waiting))
    });
    let last = || rank.operations.last().map(|op| format!("; last {}", op.what));
    let now = waits.or_else(last).unwrap_or_default();
    format!("  rank {:>3}  {}: {counts}{now}", rank.rank, member.place())
}

/// Returns the words for the collectives that a rank's kernels tell of.
fn on_gpu(rank: &RankReport) -> String {
    let mut ended = rank.kernels.iter().rev().filter(|run| run.ended_ns.is_some());
    match ended.find_map(|run| Some(run.number?.saturating_add(1))) {
        Some(ended) => {
            let ended = counted(ended, "collective", "collectives");
            format!(", {ended} or more done on its GPU")
        }
        None => String::new(),
    }
}

/// Returns the words for whom a rank waits, and for how long.
fn wait(member: &Member<'_>, waiting: &Awaited) -> String {
    let peer = waiting.peer.map_or_else(String::new, |peer| format!(" for rank {peer}"));
    let step = waiting.step.map_or_else(String::new, |step| format!(" at step {step}"));
    let since = span(member.process.read_ns.saturating_sub(waiting.since_ns));
    format!("waits{peer}{step} for {since}")
}
