//! `oxccl run`: ranks on this host, as direct children.

use crate::error::{Error, Result};
use oxccl_runtime::bootstrap::{self, launch};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// Options of `oxccl run`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of ranks.
    #[arg(short = 'n', long = "ranks", default_value_t = 2)]
    ranks: u32,
    /// Bind rank i to processor i, modulo their number.
    #[arg(long)]
    pin: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<OsString>,
}

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    start(options.ranks, options.pin, &options.program)
}

/// Removes the file with the secret when the job is over.
struct SecretFile(PathBuf);

impl Drop for SecretFile {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs a program on `ranks` ranks of this host and returns the first failure's status.
pub(crate) fn start(ranks: u32, pin: bool, program: &[OsString]) -> Result<ExitCode> {
    let id = bootstrap::new_unique_id()?;
    let name = format!("oxccl-run-{}-{:x}", std::process::id(), id.comm);
    let secret = SecretFile(std::env::temp_dir().join(name));
    launch::write_private_file(&secret.0, launch::hex(&id.encode()).as_bytes())?;
    let mut children = Vec::new();
    for rank in 0..ranks {
        match spawn(rank, ranks, pin, program, &secret.0) {
            Ok(child) => children.push((rank, child)),
            Err(error) => {
                end(&mut children);
                return Err(error);
            }
        }
    }
    wait(children)
}

fn spawn(
    rank: u32,
    ranks: u32,
    pin: bool,
    program: &[OsString],
    secret: &std::path::Path,
) -> Result<Child> {
    let mut command = Command::new(&program[0]);
    command
        .args(&program[1..])
        .env("OXCCL_RANK", rank.to_string())
        .env("OXCCL_NRANKS", ranks.to_string())
        .env("OXCCL_LOCAL_RANK", rank.to_string())
        .env("OXCCL_SECRET_FILE", secret);
    let parent = rustix::process::getpid();
    // SAFETY: the closure makes only system calls that are safe between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // No rank outlives its launcher, also when that is killed.
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            if rustix::process::getppid() != Some(parent) {
                return Err(std::io::Error::other("the launcher is gone"));
            }
            if pin {
                let processors = std::thread::available_parallelism().map_or(1, usize::from);
                let mut set = rustix::thread::CpuSet::new();
                set.set(rank as usize % processors);
                rustix::thread::sched_setaffinity(None, &set)?;
            }
            Ok(())
        });
    }
    command.spawn().map_err(|e| Error::File {
        path: program[0].to_string_lossy().into_owned(),
        cause: e.to_string(),
    })
}

/// After the first failure the others get this time to report theirs.
const GRACE: Duration = Duration::from_secs(10);

fn wait(mut children: Vec<(u32, Child)>) -> Result<ExitCode> {
    let mut failure: Option<(u32, ExitStatus, Instant)> = None;
    while !children.is_empty() {
        let mut i = 0;
        while i < children.len() {
            let (rank, child) = &mut children[i];
            match child.try_wait() {
                Ok(None) => {
                    i += 1;
                    continue;
                }
                Ok(Some(status)) if !status.success() => {
                    failure.get_or_insert((*rank, status, Instant::now()));
                }
                _ => {}
            }
            children.swap_remove(i);
        }
        if failure.as_ref().is_some_and(|(_, _, at)| at.elapsed() > GRACE) {
            end(&mut children);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let Some((rank, status, _)) = failure else { return Ok(ExitCode::SUCCESS) };
    eprintln!("oxccl: rank {rank} ended with {status}");
    Ok(ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1)))
}

fn end(children: &mut Vec<(u32, Child)>) {
    for (_, child) in children.iter_mut() {
        // A child that has ended meanwhile needs no end.
        let _ = child.kill();
        let _ = child.wait();
    }
    children.clear();
}
