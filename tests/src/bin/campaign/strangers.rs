//! Strangers at every port of a job: they connect and say nothing, or nonsense, or leave at once.

use oxccl_tests::sequence::Random;
use std::collections::HashSet;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Ports that are visited in an attempt.
const MOST_PORTS: usize = 40;
/// Visits of each port.
const VISITS: u64 = 6;
/// How long a stranger waits for a port.
const PATIENCE: Duration = Duration::from_millis(200);

/// Visits all ports of the processes, once each, until `over`.
pub(crate) fn visit_all(pids: &[i32], known: Option<SocketAddr>, seed: u64, over: &AtomicBool) {
    let mut random = Random(seed);
    let (mut seen, mut open) = (HashSet::new(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        let found = pids.iter().flat_map(|pid| listening(*pid).unwrap_or_default());
        for address in known.into_iter().chain(found) {
            if seen.len() < MOST_PORTS && seen.insert(address) {
                visit(address, &mut random, &mut open);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where a process listens; None when it has ended.
fn listening(pid: i32) -> Option<Vec<SocketAddr>> {
    let home = format!("/proc/{pid}");
    // The number may have become another program's.
    let own = std::fs::read_link(Path::new(&home).join("exe")).ok()?;
    if own != std::env::current_exe().ok()? {
        return None;
    }
    let mut sockets = HashSet::new();
    for entry in std::fs::read_dir(format!("{home}/fd")).ok()?.flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let name = target.to_string_lossy();
        let inode = name.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        sockets.extend(inode.map(str::to_owned));
    }
    let table = std::fs::read_to_string(format!("{home}/net/tcp")).ok()?;
    let own = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        // 0A is a socket that listens.
        (*state == "0A" && sockets.contains(*inode)).then(|| parse(address)).flatten()
    };
    Some(table.lines().filter_map(own).collect())
}

/// An address as in /proc/net/tcp: the number of an address in memory, and the port.
fn parse(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST } else { ip };
    Some(SocketAddr::from((ip, u16::from_str_radix(port, 16).ok()?)))
}

/// Some strangers, of whom the `open` ones stay.
fn visit(address: SocketAddr, random: &mut Random, open: &mut Vec<TcpStream>) {
    for visit in 0..VISITS {
        // The port may be gone, or the network.
        let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) else { return };
        match visit % 3 {
            0 => open.push(stream),
            1 => {
                let words = 1 + random.below(200);
                let bytes: Vec<u8> = (0..words).flat_map(|_| random.draw().to_ne_bytes()).collect();
                let _ = stream.set_write_timeout(Some(PATIENCE));
                let _ = stream.write_all(&bytes);
                open.push(stream);
            }
            _ => {}
        }
    }
}
