//! `oxccl doctor`: checks machines before a job.

mod checks;
mod compare;
mod ranks;
mod rates;
mod read;
mod report;

use crate::error::{Error, Result};
use crate::given;
use crate::perf;
use crate::root::Root;
use crate::run::{Host, Time};
pub(crate) use checks::gpu::version as driver_version;
use checks::{Check, Verdict};
use compare::Differences;
use oxccl_runtime::bootstrap::launch;
use oxccl_runtime::config::Config;
use oxccl_runtime::device;
use ranks::Measured;
use rates::Rates;
use report::{Item, Row};
use std::path::PathBuf;
use std::process::ExitCode;

/// Examples, environment and exit codes of `oxccl doctor`, the end of its help and manual page.
const MORE: &str = "\
Examples:
  oxccl doctor
  oxccl doctor --ranks 8 --json node1.json
  oxccl doctor --host localhost:4,node1:4
  oxccl doctor --compare node1.json node2.json
  oxccl doctor --pid 4242
  srun oxccl doctor --json 'doctor-%h.json'

Under a launcher (oxccl run, mpirun, srun, torchrun) the ranks are its processes; the first one of
each host checks that host.

Environment: OXCCL_DEVICE (auto, host, cuda), and all variables of the library, which are judged.

Exit code: 0 if all is well or there are warnings, 1 if there is a failure; with --compare 0 if
nothing differs, 2 if something does, 1 after failures.";

/// Options of `oxccl doctor`.
#[derive(clap::Args)]
#[command(after_long_help = MORE)]
pub(crate) struct Options {
    /// Number of ranks on this host that exchange data, every two alone. Without this a rank for
    /// each GPU or, in host memory, for each processor, from 2 to 16.
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    /// Start no ranks: check only what can be read.
    #[arg(long)]
    no_pairs: bool,
    /// Check these hosts, each with its number of ranks (default 1), as in a,b:2, show what differs
    /// between them, and have their ranks exchange data. They are reached as by oxccl run --host.
    #[arg(long, value_name = "HOST[:RANKS]", value_delimiter = ',', conflicts_with = "ranks")]
    host: Vec<Host>,
    /// The program that starts a command on a host, called with the host and the command.
    #[arg(long, value_name = "PROGRAM", default_value = "ssh")]
    ssh: PathBuf,
    /// Time after which ranks that exchange data are stopped, which is a failure then: seconds, or
    /// with a unit as in 500ms, 2s, 1m.
    #[arg(long, value_name = "TIME", default_value_t = Time::seconds(300),
          value_parser = Time::some)]
    timeout: Time,
    /// Tell which NCCL-compatible libraries a running process has mapped, and nothing else.
    #[arg(long, value_name = "PID", conflicts_with_all = ["host", "ranks", "compare"])]
    pid: Option<u32>,
    /// Check nothing; compare files of --json, and print the checks, limits and variables that
    /// differ between hosts.
    #[arg(long, num_args = 2.., value_name = "FILE", conflicts_with_all = ["host", "ranks"])]
    compare: Vec<String>,
    /// Write one JSON object per check, variable and pair of ranks to this file; - for the standard
    /// output, without the table. %h in the name stands for the name of the host.
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// The folder that stands for /, for tests.
    #[arg(long, hide = true)]
    root: Option<PathBuf>,
    /// Write the checks of this host as JSON for the command that has started this one on several
    /// hosts, with so many ranks on each.
    #[arg(long, hide = true, value_delimiter = ',')]
    of_host: Vec<u32>,
}

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    if !options.compare.is_empty() {
        return compare(&options.compare);
    }
    let root = options.root.clone().map_or_else(Root::default, Root::from);
    let uname = rustix::system::uname();
    let host = &*uname.nodename().to_string_lossy();
    let of_host = |check| Row { host: Some(host.to_owned()), item: Item::Check(check) };
    if let Some(pid) = options.pid {
        let rows: Vec<Row> = read::process(&root, pid).into_iter().map(of_host).collect();
        return finish(options, host, &rows, "");
    }
    let launch = launch::detect()?;
    let machine = |ranks: u32| -> Vec<Row> {
        let variables = given::variables(Config::get()).into_iter().map(Item::Variable);
        let checks = read::machine(&root, ranks).into_iter().map(Item::Check);
        checks.chain(variables).map(|item| Row { host: Some(host.to_owned()), item }).collect()
    };
    if let Some(launch) = launch.as_ref().filter(|_| !options.of_host.is_empty()) {
        let ranks = options.of_host.get(launch.rank as usize).copied().unwrap_or(1);
        print!("{}", report::json(&machine(ranks)));
        return Ok(ExitCode::SUCCESS);
    }
    let ranks = options.ranks.unwrap_or_else(usual_ranks);
    let mut rows = match (&launch, options.host.is_empty()) {
        (_, false) => ranks::hosts(options)?,
        (Some(launch), true) if launch.local_rank > 0 => Vec::new(),
        (_, true) => machine(ranks),
    };
    let wanted = (options.host.is_empty() && launch.is_none()).then_some(ranks);
    let measured = match options.no_pairs {
        true => Measured::default(),
        false if wanted == Some(1) => Measured::of_one(),
        false => {
            let rates = match (&launch, options.host.is_empty()) {
                (_, false) => Rates::of_interfaces(&rows),
                (None, true) if on_gpus() => {
                    Rates::of_gpus(&root, &device::links().unwrap_or_default())
                }
                // A launcher may give ranks any GPU, and nothing tells what memory is made for.
                (_, true) => Rates::default(),
            };
            ranks::measure(options, wanted, &rates)?
        }
    };
    // All ranks of a launcher have the failure, the first one has the figures.
    if launch.as_ref().is_none_or(|launch| launch.rank == 0) {
        rows.extend(measured.checks.into_iter().map(Item::Check).map(Row::of_job));
        rows.extend(measured.pairs.into_iter().map(Item::Pair).map(Row::of_job));
    } else if rows.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    finish(options, host, &rows, &measured.tables)
}

/// Returns whether ranks use GPUs.
fn on_gpus() -> bool {
    device::current().is_ok_and(|device| !device.is_host())
}

/// Returns the number of ranks where nobody says how many, as `oxccl perf` does.
fn usual_ranks() -> u32 {
    perf::usual_processes(on_gpus().then(|| device::count(false).max(0) as u32))
}

/// Prints or writes a report; returns the exit code.
fn finish(options: &Options, host: &str, rows: &[Row], tables: &str) -> Result<ExitCode> {
    if options.json.as_deref() != Some("-") {
        print!("{}{tables}", text(options, rows));
    }
    if let Some(path) = &options.json {
        report::write(path, host, rows)?;
    }
    let is_failure = |row: &Row| row.check().is_some_and(|c| c.verdict == Verdict::Failure);
    Ok(if rows.iter().any(is_failure) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the tables of checks: of several hosts what is not well, and what differs between them.
fn text(options: &Options, rows: &[Row]) -> String {
    let mut hosts: Vec<&str> = Vec::new();
    for host in rows.iter().filter_map(|row| row.host.as_deref()) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    let of = |host: Option<&str>| -> Vec<&Check> {
        let own = rows.iter().filter(|row| row.host.as_deref() == host);
        own.filter_map(Row::check).collect()
    };
    let several = options.host.len() > 1;
    let shown = |verdict: Verdict| !several || verdict > Verdict::Ok;
    let mut text: String =
        hosts.iter().map(|host| report::table(host, &of(Some(host)), shown)).collect();
    if several {
        text += &Differences::of(&[("", rows.to_vec())]).text();
    }
    let job = of(None);
    if !job.is_empty() {
        text += &report::table("pairs of ranks", &job, |_| true);
    }
    text
}

/// Compares files of several hosts.
fn compare(files: &[String]) -> Result<ExitCode> {
    let rows: Vec<Vec<Row>> = files.iter().map(|file| report::read(file)).collect::<Result<_>>()?;
    let reports: Vec<_> = files.iter().map(String::as_str).zip(rows).collect();
    let differences = Differences::of(&reports);
    if differences.hosts() < 2 {
        let text = "--compare: the files have fewer than two hosts; expected rows of two at least";
        return Err(Error::Options(text.to_owned()));
    }
    print!("{}", differences.text());
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}
