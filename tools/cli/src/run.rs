//! `oxccl run`: starts ranks on this host, as direct children with process groups of their own, and
//! through ssh on others.

mod hosts;
mod job;
mod output;
mod secret;
mod signals;

use crate::error::{Error, Result};
pub(crate) use hosts::Host;
use hosts::{Part, Seat};
use job::{Job, Member};
use output::{Output, Showing};
use oxccl_plan::words::counted;
use oxccl_runtime::bootstrap::encryption::{self, Key, LEAST_KEY_BYTES};
use oxccl_runtime::bootstrap::{self, launch, rendezvous};
use secret::SecretFile;
use signals::Signals;
pub(crate) use signals::{end_job_with_reader, end_with_reader};
use std::ffi::OsString;
use std::fmt;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::Duration;

/// Examples, environment and exit codes of `oxccl run`, the end of its help and manual page.
const MORE: &str = "\
Examples:
  oxccl run -n 4 ./program
  oxccl run -n 2 --timeout 1m --output logs python3 train.py
  oxccl run --host localhost:4,node1:4 ./program

Environment: of the ranks OXCCL_RANK, OXCCL_NRANKS, OXCCL_LOCAL_RANK, and OXCCL_SECRET_FILE with
the id by which they meet.

Exit code: 0 if all ranks ended with 0, else that of the first one that failed, or 128 and the
number of the signal that ended it or this command; 124 if the time was over; 127 if the program was
not found, 126 if it cannot be executed; 1 if ranks could not be started for another reason.";

/// Reads a number of ranks; clap takes mpirun's `-np 4` for `-n p`.
fn ranks(text: &str) -> std::result::Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("expected 1 or more".to_owned()),
        Ok(ranks) => Ok(ranks),
        Err(_) if text == "p" => Err("-np is mpirun's; here it is -n, as in -n 4".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

/// Options of `oxccl run`.
#[derive(clap::Args)]
#[command(after_long_help = MORE)]
pub(crate) struct Options {
    /// Number of ranks.
    #[arg(short = 'n', long = "ranks", default_value_t = 2, value_parser = ranks)]
    pub(crate) ranks: u32,
    /// Hosts, each with its number of ranks (default 1), as in a,b:2. Ranks of other hosts than
    /// this one are started through ssh, in the same folder, with this program at the same place.
    #[arg(long, value_name = "HOST[:RANKS]", value_delimiter = ',', conflicts_with = "ranks")]
    pub(crate) host: Vec<Host>,
    /// The program that starts a command on a host, called with the host and the command.
    #[arg(long, value_name = "PROGRAM", default_value = "ssh")]
    pub(crate) ssh: PathBuf,
    /// First rank, number and all ranks of a job of which this starts a part.
    #[arg(long, hide = true, conflicts_with = "host")]
    pub(crate) part: Option<Part>,
    /// Bind rank i to processor i, modulo their number.
    #[arg(long)]
    pub(crate) pin: bool,
    /// Time that ranks have to end, after a signal or the failure of another rank, before they are
    /// killed: seconds, or with a unit as in 500ms, 2s, 1m.
    #[arg(long, value_name = "TIME", default_value_t = Time::seconds(10))]
    pub(crate) grace: Time,
    /// Time after which the ranks are told to end (SIGTERM); the exit code is 124 then.
    #[arg(long, value_name = "TIME", value_parser = Time::some)]
    pub(crate) timeout: Option<Time>,
    /// A file of mode 0600 with the key that the ranks give to ncclSetEncryption, a line of 16
    /// bytes or more: the ranks meet at this command, which has to encrypt as well.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Write the output of rank N to the files rank-N.out and rank-N.err of this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Put the number of the rank in front of each line, as in `[2] text`.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Tag::Yes)]
    pub(crate) tag_output: Tag,
    /// The program and its arguments. Rank 0 has the standard input of this command, if it runs on
    /// this host; that of the others is empty.
    #[arg(trailing_var_arg = true, required = true)]
    pub(crate) program: Vec<OsString>,
}

impl Options {
    /// Returns the options of a program that runs on so many ranks, with nothing else asked for.
    pub(crate) fn plain(ranks: u32, pin: bool, program: Vec<OsString>) -> Self {
        let (grace, timeout, output, tag_output) = (Time::seconds(10), None, None, Tag::No);
        let (host, ssh, part, key) = (Vec::new(), PathBuf::new(), None, None);
        Self { ranks, host, ssh, part, pin, grace, timeout, key, output, tag_output, program }
    }
}

/// Whether lines have the number of their rank in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tag {
    /// All lines have.
    Yes,
    /// The ranks have the output of this command itself.
    No,
}

/// A time that a user gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(Duration);

impl Time {
    pub(crate) const fn seconds(number: u64) -> Self {
        Self(Duration::from_secs(number))
    }

    pub(crate) fn duration(self) -> Duration {
        self.0
    }

    /// Reads a time that is not zero.
    pub(crate) fn some(text: &str) -> std::result::Result<Self, String> {
        let time: Self = text.parse()?;
        if time.0.is_zero() {
            return Err("expected more than no time".to_owned());
        }
        Ok(time)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit_ms = match &text[digits.len()..] {
            "ms" => Some(1),
            "" | "s" => Some(1000),
            "m" => Some(60_000),
            _ => None,
        };
        let number = digits.parse::<u64>().ok();
        let limit_ms = number.zip(unit_ms).and_then(|(n, unit_ms)| n.checked_mul(unit_ms));
        let limit = limit_ms.map(Duration::from_millis);
        limit.map(Self).ok_or_else(|| "a time like 10, 500ms, 2s or 1m".to_owned())
    }
}

/// Runs a program on several ranks. Returns the exit code of the first rank that failed, or 128
/// plus the number of the signal that ended that rank or this process, or 124 if the time was over.
pub(crate) fn start(options: &Options) -> Result<ExitCode> {
    // Before signals are blocked: a file may be a pipe that nobody writes.
    options.key.as_deref().map_or(Ok(()), use_key)?;
    // Before any thread is started: threads inherit the mask of the one that starts them.
    let signals = Signals::block();
    let id = match options.part {
        Some(_) => hosts::id_of_part()?,
        None => bootstrap::new_unique_id()?,
    };
    let secret = SecretFile::new(&id)?;
    if rendezvous::is_here(&id) {
        let (path, id) = (secret.path().to_owned(), id.clone());
        aside(move || {
            // After this all ranks have met, or never will. The file is removed now, so that
            // nothing stays if this process is killed.
            rendezvous::wait(&id);
            let _ = std::fs::remove_file(path);
        });
    }
    let mut output = Output::new(options)?;
    let mut job = Job::new(signals, (options.grace, options.timeout), id.clone());
    let begun = hosts::seats(options)?.into_iter().try_for_each(|Seat { host, part }| {
        let Some(host) = host else {
            return (0..part.count).try_for_each(|place| {
                let child = spawn(place, part, (options, &mut output), secret.path(), signals)?;
                job.add(Member::rank(part.first + place), &child);
                Ok(())
            });
        };
        let mut child = hosts::spawn(host, part, options, &id)?;
        job.add(Member::host(host, part, child.stdin.take()), &child);
        Ok(())
    });
    let showing = match begun.and_then(|()| output.show()) {
        Ok(showing) => showing,
        Err(error) => {
            job.kill();
            return Err(error);
        }
    };
    let code = job.wait();
    let whole = showing.is_none_or(Showing::finish);
    Ok(if whole || code != ExitCode::SUCCESS { code } else { ExitCode::FAILURE })
}

/// Encrypts the connections with the ranks with the key in a file, which only this user may read.
fn use_key(path: &Path) -> Result<()> {
    let failed = |why: String| Error::Options(format!("--key {}: {why}", path.display()));
    std::fs::symlink_metadata(path).map_err(|e| failed(e.to_string()))?;
    let text = launch::read_private_file(path).map_err(|e| failed(e.to_string()))?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.len() < LEAST_KEY_BYTES || text.contains(&b'\n') || text.contains(&0) {
        let bytes = counted(text.len(), "byte", "bytes");
        let lines = counted(text.split(|byte| *byte == b'\n').count(), "line", "lines");
        return Err(failed(format!(
            "{bytes} in {lines}; expected one line of at least {LEAST_KEY_BYTES} bytes, none of them 0"
        )));
    }
    encryption::set_key(Some(Key::new(text)));
    Ok(())
}

fn spawn(
    place: u32,
    part: Part,
    (options, output): (&Options, &mut Output<'_>),
    secret: &Path,
    signals: Signals,
) -> Result<Child> {
    let Options { pin, program, .. } = options;
    let rank = part.first + place;
    let mut command = Command::new(&program[0]);
    command
        .args(&program[1..])
        .env("OXCCL_RANK", rank.to_string())
        .env("OXCCL_NRANKS", part.nranks.to_string())
        .env("OXCCL_LOCAL_RANK", place.to_string())
        .env("OXCCL_SECRET_FILE", secret)
        .stdin(match rank {
            // The terminal stops a reader that is in another group than the user's command.
            _ if options.part.is_some() => Stdio::null(),
            0 if std::io::stdin().is_terminal() => Stdio::piped(),
            0 => Stdio::inherit(),
            _ => Stdio::null(),
        })
        .process_group(0);
    output.direct(rank, &mut command)?;
    let (parent, pin) = (rustix::process::getpid(), *pin);
    // SAFETY: the closure makes only system calls that are safe between fork and exec.
    unsafe {
        command.pre_exec(move || {
            signals.restore()?;
            // No rank outlives its launcher, even if the launcher is killed.
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            if rustix::process::getppid() != Some(parent) {
                return Err(std::io::Error::other("the launcher is gone"));
            }
            if pin {
                let processors = std::thread::available_parallelism().map_or(1, usize::from);
                let mut set = rustix::thread::CpuSet::new();
                set.set(place as usize % processors);
                rustix::thread::sched_setaffinity(None, &set)?;
            }
            Ok(())
        });
    }
    let mut child = command.spawn().map_err(|e| Error::Start {
        path: program[0].to_string_lossy().into_owned(),
        cause: format!("{e}{}", advice(&e, Path::new(&program[0]))),
        code: code(&e),
    })?;
    if let Some(mut input) = child.stdin.take() {
        aside(move || {
            // The copy ends with the input or with the rank.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut input);
        });
    }
    Ok(child)
}

/// Returns what to do about a program that could not be started; empty where the error says it.
fn advice(error: &std::io::Error, program: &Path) -> String {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        // The system looks for names without a slash on the path alone.
        Some(Errno::NOENT) if program.components().count() == 1 && program.exists() => {
            format!("; for the one in this folder write ./{}", program.display())
        }
        _ => more_files(error).to_owned(),
    }
}

/// Returns what to do about an error that says that there are too many open files; empty for
/// others.
fn more_files(error: &std::io::Error) -> &'static str {
    match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::MFILE) => {
            "; the launcher needs several for each rank: raise the limit (ulimit -n)"
        }
        _ => "",
    }
}

/// Returns the exit code for a program that could not be started, as shells have them: 127 if it
/// was not found, 126 if it cannot be executed; 1 if the cause is another one, as a lack of
/// processes.
fn code(error: &std::io::Error) -> u8 {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => 127,
        Some(
            Errno::ACCESS
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::NOEXEC
            | Errno::NOTDIR
            | Errno::TOOBIG
            | Errno::TXTBSY,
        ) => 126,
        _ => 1,
    }
}

/// Does some work in a thread. If no thread can be started, the work is left undone and the job
/// still runs.
fn aside(work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().spawn(work);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_or_are_seconds() {
        for (text, limit_ms) in [("10", 10_000), ("500ms", 500), ("2s", 2000), ("1m", 60_000)] {
            assert_eq!(text.parse::<Time>(), Ok(Time(Duration::from_millis(limit_ms))), "{text}");
        }
        assert_eq!(Time::seconds(10).to_string().parse::<Time>(), Ok(Time::seconds(10)));
        for text in
            ["", "s", "-1", "1.5s", "2h", "1 s", "99999999999999999999", "18446744073709551615m"]
        {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
    }
}
