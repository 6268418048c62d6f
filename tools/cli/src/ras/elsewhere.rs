//! Ranks on other hosts: the RAS service of a process here asks for them.

use super::of_document;
use oxccl_runtime::ras::job::{self, communicators};
use oxccl_runtime::recorder::Stage;
use oxccl_runtime::recorder::read::Process;
use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The time for which the service waits for processes of other hosts.
const ANSWERS: Duration = Duration::from_secs(2);
/// The time for which the service is waited for: that, and some for a busy machine.
const SERVICE: Duration = Duration::from_secs(3);
/// The most connections to a port: the processes of several jobs may share it, and the system
/// gives a connection to any of them.
const CONNECTIONS: usize = 16;
/// The most bytes of an answer.
const BYTES: u64 = 256 << 20;

/// Adds what processes of other hosts answer, as far as ranks of running communicators are not seen
/// here. A rank that is seen here counts as it is seen.
pub(super) fn ask(processes: &mut Vec<Process>) {
    let (wanted, services) = wanted(processes);
    let (mut wanted, until) = (wanted, Instant::now() + SERVICE);
    for service in services {
        for _ in 0..CONNECTIONS {
            let left = until.saturating_duration_since(Instant::now());
            if wanted.is_empty() || left.is_zero() {
                return;
            }
            let Some(answer) = answer(service, left) else { break };
            let told: BTreeSet<u64> =
                answer.iter().flat_map(|process| &process.ranks).map(|rank| rank.comm).collect();
            if wanted.is_disjoint(&told) {
                continue;
            }
            wanted.retain(|comm| !told.contains(comm));
            add(processes, answer);
        }
    }
}

/// Returns the running communicators with ranks that are not seen, and the services to ask.
fn wanted(processes: &[Process]) -> (BTreeSet<u64>, BTreeSet<SocketAddr>) {
    let comms = communicators(processes);
    let mut comms: Vec<_> = comms.iter().filter(|comm| comm.stage() != Stage::Creating).collect();
    comms.retain(|comm| !comm.unseen().is_empty());
    let members = comms.iter().flat_map(|comm| &comm.members);
    let services = members.filter_map(|member| member.process.service.parse().ok()).collect();
    (comms.iter().map(|comm| comm.number).collect(), services)
}

/// Adds the processes of an answer.
fn add(processes: &mut Vec<Process>, answer: Vec<Process>) {
    for process in &answer {
        let is_it = |of: &&mut Process| (&of.address, of.pid) == (&process.address, process.pid);
        if let Some(here) = processes.iter_mut().find(is_it) {
            here.unanswered.clone_from(&process.unanswered);
        }
    }
    processes.extend(answer);
    job::refuse(processes, &HashMap::new());
    processes.retain(|process| !process.ranks.is_empty());
}

/// Returns what a service answers within a time; `None` if it does not answer as it should, as one
/// of an older version.
fn answer(service: SocketAddr, limit: Duration) -> Option<Vec<Process>> {
    let mut stream = TcpStream::connect_timeout(&service, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    let asked = format!("TIMEOUT {}\nSET FORMAT records\nSTATUS\n", ANSWERS.as_secs());
    stream.write_all(asked.as_bytes()).ok()?;
    let (mut text, until) = (Vec::new(), Instant::now() + limit);
    let mut part = [0; 1 << 16];
    loop {
        match stream.read(&mut part).ok()? {
            0 => break,
            n => text.extend_from_slice(&part[..n]),
        }
        if text.len() as u64 > BYTES || Instant::now() > until {
            return None;
        }
    }
    of_document(std::str::from_utf8(&text).ok()?.strip_prefix("OK\nOK\n")?)
}
