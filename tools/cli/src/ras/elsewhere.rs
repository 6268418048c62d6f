//! Ranks on other hosts: the RAS service of a process here asks for them.

use super::of_document;
use oxccl_runtime::ras::job::communicators;
use oxccl_runtime::recorder::Stage;
use oxccl_runtime::recorder::read::Process;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The time in seconds for which a service waits for processes of other hosts.
const ANSWERS_S: u64 = 1;
/// The time for which a service is waited for: that, and some for a busy machine. A process that
/// was stopped does not answer.
const SERVICE: Duration = Duration::from_millis(1500);
/// The time for which all services are waited for.
const ALL: Duration = Duration::from_secs(3);
/// The most connections to a port: the processes of several jobs may share it, and the system
/// gives a connection to any of them.
const CONNECTIONS: usize = 16;
/// The most bytes of an answer.
const BYTES: usize = 256 << 20;

/// Returns what processes answer for running communicators with ranks that are not seen here, those
/// of this host included.
pub(super) fn ask(processes: &[Process]) -> Vec<Process> {
    let (mut wanted, services) = wanted(processes);
    let (until, mut answers) = (Instant::now() + ALL, Vec::new());
    for service in services {
        for _ in 0..CONNECTIONS {
            let left = until.saturating_duration_since(Instant::now());
            if wanted.is_empty() || left.is_zero() {
                return answers;
            }
            let limit = Instant::now() + left.min(SERVICE);
            let Ok(stream) = TcpStream::connect_timeout(&service, left.min(SERVICE)) else { break };
            let answer = answer(stream, limit).unwrap_or_default();
            let told: BTreeSet<u64> =
                answer.iter().flat_map(|process| &process.ranks).map(|rank| rank.comm).collect();
            if !wanted.is_disjoint(&told) {
                wanted.retain(|comm| !told.contains(comm));
                answers.extend(answer);
            }
        }
    }
    answers
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

/// Returns what a service answers until a time; `None` if it does not answer as it should, as one
/// of an older version.
fn answer(mut stream: TcpStream, until: Instant) -> Option<Vec<Process>> {
    let asked = format!("TIMEOUT {ANSWERS_S}\nSET FORMAT records\nSTATUS\n");
    stream.write_all(asked.as_bytes()).ok()?;
    let (mut text, mut part) = (Vec::new(), [0; 1 << 16]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || text.len() > BYTES {
            return None;
        }
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut part).ok()? {
            0 => break,
            n => text.extend_from_slice(&part[..n]),
        }
    }
    of_document(std::str::from_utf8(&text).ok()?.strip_prefix("OK\nOK\n")?)
}
