//! Jobs: several ranks of a program, each with a deadline and bound to the life of the test.

use oxccl_runtime::bootstrap::wire::wait_for;
use oxccl_runtime::bootstrap::{self, launch};
use oxccl_runtime::ras::job;
use oxccl_runtime::ras::verdict::{Patience, verdicts};
use oxccl_runtime::recorder::read::{PROC, processes};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Makes a command die with the thread that starts it.
pub fn bind_to_parent(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes one system call, which is safe between fork and exec.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            Ok(())
        })
    }
}

/// A rank that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status; None when it was killed by the deadline or a signal.
    pub status: Option<i32>,
    /// What it printed, both ways.
    pub output: String,
}

/// The ranks of a job.
pub struct Job {
    children: Vec<Child>,
    secret: PathBuf,
    deadline: Instant,
}

impl Job {
    /// Starts `nranks` ranks; `dress` may add arguments and variables for each.
    pub fn start(
        program: &Path,
        nranks: u32,
        limit: Duration,
        dress: impl Fn(u32, &mut Command),
    ) -> Self {
        let id = bootstrap::new_unique_id().expect("an id");
        let name = format!("oxccl-test-{}-{:x}", std::process::id(), id.comm);
        let secret = std::env::temp_dir().join(name);
        launch::write_private_file(&secret, launch::hex(&id.encode()).as_bytes())
            .expect("a file for the id");
        let children = (0..nranks)
            .map(|rank| {
                let mut command = Command::new(program);
                command
                    .env("OXCCL_RANK", rank.to_string())
                    .env("OXCCL_NRANKS", nranks.to_string())
                    .env("OXCCL_LOCAL_RANK", rank.to_string())
                    .env("OXCCL_SECRET_FILE", &secret)
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                dress(rank, &mut command);
                bind_to_parent(&mut command).spawn().expect("a rank starts")
            })
            .collect();
        Self { children, secret, deadline: Instant::now() + limit }
    }

    /// The process of a rank.
    pub fn child(&mut self, rank: u32) -> &mut Child {
        &mut self.children[rank as usize]
    }

    /// Waits until so many ranks have printed that they run.
    pub fn wait_until_running(&mut self, nranks: u32) {
        (0..nranks).for_each(|rank| self.wait_until_runs(rank));
    }

    /// Waits until a rank has printed that it runs.
    pub fn wait_until_runs(&mut self, rank: u32) {
        let stdout = self.child(rank).stdout.as_mut().expect("a pipe");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("the rank speaks");
        assert_eq!(line.trim(), "running");
    }

    /// Waits for all ranks; kills those that are not done in time, whose output ends with what held
    /// the job up then.
    pub fn wait(mut self) -> Vec<Ended> {
        let readers: Vec<_> = self.children.iter_mut().map(read_all).collect();
        let deadline = self.deadline;
        let late = self.children.iter_mut().find_map(|child| match has_ended(child, deadline) {
            true => None,
            false => Some(child.id()),
        });
        let held_up = late.map_or_else(String::new, held_up);
        let statuses: Vec<_> = self
            .children
            .iter_mut()
            .map(|child| (has_ended(child, deadline), wait_until(child, deadline)))
            .collect();
        let ended = statuses.into_iter().zip(readers).map(|((in_time, status), [out, err])| {
            let text = |t: std::thread::JoinHandle<String>| t.join().unwrap_or_default();
            let late = if in_time { "" } else { &held_up };
            Ended { status, output: format!("{}{}{late}", text(out), text(err)) }
        });
        ended.collect()
    }

    /// Waits for all ranks and checks that they succeeded.
    pub fn expect_success(self) {
        for (rank, ended) in self.wait().iter().enumerate() {
            assert_eq!(ended.status, Some(0), "rank {rank} failed:\n{}", ended.output);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_file(&self.secret);
    }
}

fn read_all(child: &mut Child) -> [std::thread::JoinHandle<String>; 2] {
    fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    [reader(child.stdout.take()), reader(child.stderr.take())]
}

/// Returns what holds up the job of a process.
fn held_up(pid: u32) -> String {
    let job = job::of_process(processes(Path::new(PROC)), pid);
    format!("killed by the deadline: {:#?}", verdicts(&job, Patience::default()))
}

/// Returns whether a child has ended, for which it waits until the deadline.
fn has_ended(child: &mut Child, deadline: Instant) -> bool {
    loop {
        if let Ok(Some(_)) = child.try_wait() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        // It was not waited for yet, so the number is still its own.
        let pid = Pid::from_child(child);
        let ended = pidfd_open(pid, PidfdFlags::empty()).expect("a descriptor for the child");
        wait_for(&mut [PollFd::new(&ended, PollFlags::IN)], left);
    }
}

/// The exit status of a child; None when it had to be killed.
pub fn wait_until(child: &mut Child, deadline: Instant) -> Option<i32> {
    if has_ended(child, deadline) {
        return child.wait().ok()?.code();
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}
