//! The collection of what the service tells: from the memory in which the processes of this host
//! record what they do, so that none of them has to answer.

use crate::rank::{Member, rosters};
use crate::ras::job;
use crate::ras::nccl::event::{Event, Watched};
use crate::ras::nccl::{Known, Place, Survey, peers};
use crate::ras::verdict::{Patience, verdicts};
use crate::recorder::read::{Process, ProcessState, processes};
use std::path::Path;
use std::time::Instant;

const PROC: &str = "/proc";

/// Returns the number of this process as the folder of processes has it.
fn own_pid() -> u32 {
    let own = std::fs::read_link(Path::new(PROC).join("self")).ok();
    let own = own.and_then(|path| path.to_str()?.parse().ok());
    own.unwrap_or_else(std::process::id)
}

/// Returns the state of the job of this process.
pub(super) fn survey() -> Survey {
    let start = Instant::now();
    let all = processes(Path::new(PROC));
    let known = known(&all);
    let job = job::of_process(all, own_pid());
    let causes = verdicts(&job, Patience::default());
    Survey::new(&job, &known, causes, start.elapsed().as_secs_f64())
}

/// Returns what the ranks of this process know of their peers; `all` are the processes that have
/// answered.
fn known(all: &[Process]) -> Vec<Known> {
    let pid = own_pid();
    let own = all.iter().find(|process| process.pid == pid).map(|process| &process.address);
    let mut known = Vec::new();
    for roster in rosters() {
        for (rank, member) in (0u32..).zip(&roster.members) {
            let Member { pid, device, is_here, .. } = *member;
            let host = own.filter(|_| is_here).cloned().unwrap_or_else(|| member.host.to_string());
            let answered = is_here && all.iter().any(|process| process.pid == pid);
            let dead = member.is_dead() || is_here && !answered && !is_there(pid);
            let place = Place { host, pid, device };
            known.push(Known { comm: roster.comm, rank, place, dead, answered });
        }
    }
    known
}

/// Returns whether there is such a process on this host.
fn is_there(pid: u32) -> bool {
    Path::new(PROC).join(pid.to_string()).exists()
}

/// Begins to watch the processes of the job.
pub(super) fn watch() -> Watched {
    Watched::new(peers(&job::of_process(processes(Path::new(PROC)), own_pid())))
}

/// Returns what has happened to the processes of the job since the last look.
pub(super) fn look(watched: &mut Watched) -> Vec<Event> {
    let all = processes(Path::new(PROC));
    let alive = all.iter().filter(|process| process.state != ProcessState::Ended);
    let alive: Vec<u32> = alive.map(|process| process.pid).collect();
    let job = job::of_process(all, own_pid());
    watched.look(peers(&job), |pid| alive.contains(&pid))
}
