//! Starts what needs other processes: ranks that exchange data pair by pair, and the checks of
//! other hosts, both by other commands of this program.

use super::Options;
use super::checks::Check;
use super::checks::pairs::{self, Pair};
use super::checks::variables;
use super::rates::Rates;
use super::report::Row;
use crate::error::{Error, Result};
use crate::root::list;
use crate::run::Host;
use oxccl_runtime::config::Config;
use std::ffi::OsString;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The output of a process until its end.
pub(super) struct Ended {
    pub(super) success: bool,
    pub(super) out: String,
    pub(super) err: String,
}

/// Runs a command, and kills it if it takes longer than the limit. Fails with the reason if it
/// cannot be started, or did not end in time.
pub(super) fn limited(
    command: &mut Command,
    limit: Duration,
) -> std::result::Result<Ended, String> {
    const PAUSE: Duration = Duration::from_millis(5);
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |e: std::io::Error| format!("{name}: {e}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let out = child.stdout.take().map(collect);
    let err = child.stderr.take().map(collect);
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break Some(status),
            None if Instant::now() >= end => break None,
            None => thread::sleep(PAUSE),
        }
    };
    if status.is_none() {
        // It may have ended meanwhile; the ranks of a launcher end with it.
        let _ = child.kill();
        let _ = child.wait();
    }
    let text = |thread: Option<JoinHandle<Vec<u8>>>| {
        let bytes = thread.and_then(|thread| thread.join().ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (out, err) = (text(out), text(err));
    match status {
        Some(status) => Ok(Ended { success: status.success(), out, err }),
        None => Err(format!("it did not end within {limit:?}. {}", last_words(&err))),
    }
}

/// Reads all that comes, in a thread.
fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        // What came before an error counts.
        let _ = from.read_to_end(&mut all);
        all
    })
}

/// Returns the last lines of what a command said, without its name in front of them.
fn last_words(text: &str) -> String {
    const LINES: usize = 6;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    let words: Vec<&str> = last.iter().map(|line| line.trim_start_matches("oxccl: ")).collect();
    words.join("; ")
}

fn own() -> Result<OsString> {
    let failed =
        |e: std::io::Error| Error::File { path: "this program".to_owned(), cause: e.to_string() };
    Ok(std::env::current_exe().map_err(failed)?.into_os_string())
}

/// Returns `oxccl run` on hosts, which still lacks the program.
fn on_hosts(options: &Options, hosts: &[Host], tags: &str) -> Result<Command> {
    let mut command = Command::new(own()?);
    let list: Vec<String> = hosts.iter().map(|h| format!("{}:{}", h.name, h.ranks)).collect();
    command.args(["run", "--host", &list.join(",")]).arg("--ssh").arg(&options.ssh);
    command.arg(format!("--tag-output={tags}")).arg("--").arg(own()?);
    Ok(command)
}

/// The measurements of the pairs of ranks.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) pairs: Vec<Pair>,
    /// The tables, as `oxccl perf --matrix` prints them.
    pub(super) tables: String,
    pub(super) checks: Vec<Check>,
}

impl Measured {
    /// Returns that one rank alone has nobody to exchange data with.
    pub(super) fn of_one() -> Self {
        let checks = pairs::judge(&[], &|_| String::new(), &|_| None);
        Self { checks, ..Self::default() }
    }
}

/// Has every two ranks exchange data alone: so many ranks of this host, or those of the hosts that
/// the options name, or those that a launcher has started, of which this process is one then.
/// `rates` are those that their links are made for.
pub(super) fn measure(options: &Options, ranks: Option<u32>, rates: &Rates) -> Result<Measured> {
    let mut command = match options.host.is_empty() {
        true => Command::new(own()?),
        false => on_hosts(options, &options.host, "no")?,
    };
    // Large enough for the bandwidth of the link, and small enough to be checked in a short time.
    let bytes = if super::on_gpus() { "32M" } else { "4M" };
    command.args(["perf", "--matrix", "--variables", "--json", "-", "-b", "8", "-e", bytes]);
    if let Some(ranks) = ranks {
        command.args(["--ranks", &ranks.to_string()]);
    }
    // A firewall is found sooner than by a job, which has more to wait for.
    if Config::get().given("OXCCL_INIT_TIMEOUT").is_none() {
        command.env("OXCCL_INIT_TIMEOUT", "20s");
    }
    let advice = "See what oxccl perf --matrix says with NCCL_DEBUG=INFO. Between hosts, check \
                  that NCCL_SOCKET_IFNAME names an interface of one network on all of them, and \
                  that no firewall keeps them from connecting to each other at any port.";
    let places = places(&options.host);
    let failed = |why: String| Check::failure("pairs of ranks", format!("{why}{places}"), advice);
    let ended = match limited(&mut command, options.timeout.duration()) {
        Ok(ended) => ended,
        Err(why) => {
            let why = format!("Ranks that exchange data were stopped: {why}");
            return Ok(Measured { checks: vec![failed(why)], ..Measured::default() });
        }
    };
    let pairs = pairs::read(&ended.out);
    let (tables, messages): (Vec<&str>, Vec<&str>) =
        ended.err.lines().partition(|line| line.starts_with(['#', ' ']));
    let tables: String = tables
        .into_iter()
        .filter(|line| !line.starts_with("# Out of bounds"))
        .map(|line| format!("{line}\n"))
        .collect();
    let mut checks = match ended.success || !pairs.is_empty() {
        true => {
            let host = |rank| host_of(&options.host, rank);
            let rate = |pair: [u32; 2]| {
                let [a, b] = pair.map(host);
                rates.between(pair, [&a, &b])
            };
            pairs::judge(&pairs, &host, &rate)
        }
        false => Vec::new(),
    };
    checks.extend(variables::judge(&variables::read(&ended.out)));
    let is_judged = checks.iter().any(|check| check.verdict == super::checks::Verdict::Failure);
    if !ended.success && !is_judged {
        checks.push(failed(format!(
            "Ranks cannot exchange data: {}",
            last_words(&messages.join("\n"))
        )));
    }
    Ok(Measured { pairs, tables, checks })
}

/// Returns a sentence that tells which ranks are on which host; an empty text if there is one host.
fn places(hosts: &[Host]) -> String {
    let mut first = 0;
    let place = |host: &Host| {
        let own: Vec<u32> = (first..first + host.ranks).collect();
        first += host.ranks;
        format!("{} on {}", list(&own), host.name)
    };
    let places: Vec<String> = hosts.iter().map(place).collect();
    if places.is_empty() { String::new() } else { format!(" (Ranks {}.)", places.join(", ")) }
}

/// Returns the name of a rank's host; an empty one if there is one host.
fn host_of(hosts: &[Host], rank: u32) -> String {
    let mut first = 0;
    for host in hosts {
        first += host.ranks;
        if rank < first {
            return host.name.clone();
        }
    }
    String::new()
}

/// Runs the checks on each of the hosts that the options name. The rows have the hosts' names and
/// order as the options have them.
pub(super) fn hosts(options: &Options) -> Result<Vec<Row>> {
    let each: Vec<Host> =
        options.host.iter().map(|host| Host { ranks: 1, ..host.clone() }).collect();
    let mut command = on_hosts(options, &each, "yes")?;
    let ranks: Vec<String> = options.host.iter().map(|host| host.ranks.to_string()).collect();
    command.args(["doctor", "--of-host", &ranks.join(",")]);
    let stopped = |why: String| Error::Options(format!("--host: the checks failed: {why}"));
    let ended = limited(&mut command, options.timeout.duration()).map_err(stopped)?;
    if !ended.success {
        return Err(stopped(last_words(&ended.err)));
    }
    let rows = ended.out.lines().filter_map(|line| {
        let (rank, line) = line.strip_prefix('[')?.split_once("] ")?;
        let rank = rank.trim().parse::<usize>().ok()?;
        let host = options.host.get(rank)?;
        let row = serde_json::from_str::<Row>(line).ok()?;
        Some((rank, Row { host: Some(host.name.clone()), ..row }))
    });
    // The lines come in the order in which the hosts are done.
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|(rank, _)| *rank);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> std::result::Result<Ended, String> {
        limited(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn commands_end_fail_hang_or_are_missing() {
        let long = Duration::from_secs(60);
        let ended = sh("echo out; echo err >&2", long).expect("it ends");
        assert_eq!((ended.success, &*ended.out, &*ended.err), (true, "out\n", "err\n"));
        assert!(!sh("exit 3", long).expect("it ends").success);
        let why = sh("echo 'oxccl: late' >&2; exec sleep 60", Duration::from_millis(200));
        let why = why.err().expect("it is stopped");
        assert!(why.contains("did not end within 200ms. late"), "{why}");
        let missing = limited(&mut Command::new("/nonexistent/program"), long);
        assert!(missing.err().expect("no program").contains("/nonexistent/program"));
    }

    #[test]
    fn the_ranks_of_hosts_are_numbered_one_host_after_the_other() {
        let hosts = ["a:2", "b:1"].map(|text| text.parse::<Host>().expect("a host"));
        let names = [0, 1, 2, 3].map(|rank| host_of(&hosts, rank));
        assert_eq!(names, ["a", "a", "b", ""]);
        assert_eq!((&*places(&hosts), &*places(&[])), (" (Ranks 0-1 on a, 2 on b.)", ""));
    }
}
