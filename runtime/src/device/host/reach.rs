//! The ways in which the processes of a host reach each other's user memory: arenas that all
//! processes map, or copies by the system where it allows them.

use super::arena::Arena;
use super::endpoint::{Endpoint, PeerMemory};
use super::pull;
use crate::bootstrap::id::random;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use crate::os::memory::{Mapping, sealed_memfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A process, as the ranks of other processes know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The random name of the process.
    pub id: [u8; 16],
    /// The number of the process in its pid namespace.
    pub pid: u32,
    /// The inode of the pid namespace: a pid means something only within it.
    pub pid_namespace: u64,
    /// The size of the process's arena in bytes; 0 for none.
    pub arena_bytes: u64,
    /// The address of `id` in the process's memory. Peers read there to try whether they can.
    pub probe: u64,
}

impl Process {
    /// Returns the description of the calling process.
    pub fn own() -> Result<Self> {
        let arena_bytes = Arena::get().map_or(0, |arena| arena.bytes() as u64);
        Ok(Self { arena_bytes, ..Self::without_arena()? })
    }

    /// Returns the description of the calling process for a communicator of one rank, in which no
    /// peer maps the arena.
    pub fn without_arena() -> Result<Self> {
        static ID: OnceLock<Result<[u8; 16]>> = OnceLock::new();
        let id = ID.get_or_init(random).as_ref().map_err(Error::clone)?;
        Ok(Self {
            id: *id,
            pid: std::process::id(),
            pid_namespace: std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino()),
            arena_bytes: 0,
            probe: id.as_ptr() as u64,
        })
    }
}

/// Returns the file descriptor by which peers map this process's arena. If there is no arena, it is
/// the descriptor of an empty file, which is kept in `none`.
pub fn arena_fd(none: &mut Option<OwnedFd>) -> Result<BorrowedFd<'_>> {
    match Arena::get() {
        Some(arena) => Ok(arena.fd()),
        None => {
            let none: &OwnedFd = none.insert(sealed_memfd("oxccl-none", 0)?);
            Ok(none.as_fd())
        }
    }
}

/// Maps the arenas of the other processes, each once per process. `arenas` holds those of this
/// host, each with the number of a rank of its process.
pub(in crate::device) fn map(processes: &[Process], arenas: &[(u32, OwnedFd)]) -> Vec<PeerMemory> {
    static MAPPED: Mutex<Option<HashMap<[u8; 16], Weak<Mapping>>>> = Mutex::new(None);
    let mut mapped = MAPPED.lock().unwrap_or_else(|e| e.into_inner());
    let mapped = mapped.get_or_insert_default();
    mapped.retain(|_, mapping| mapping.strong_count() > 0);
    let arenas: HashMap<[u8; 16], &OwnedFd> =
        arenas.iter().map(|(rank, fd)| (processes[*rank as usize].id, fd)).collect();
    let mut reach = |process: &Process| -> Option<Arc<Mapping>> {
        let fd = arenas.get(&process.id)?;
        if process.arena_bytes == 0 {
            return None;
        }
        if let Some(mapping) = mapped.get(&process.id).and_then(Weak::upgrade) {
            return Some(mapping);
        }
        match Mapping::of(fd.as_fd(), process.arena_bytes as usize) {
            Ok(mapping) => {
                let mapping = Arc::new(mapping);
                mapped.insert(process.id, Arc::downgrade(&mapping));
                Some(mapping)
            }
            Err(e) => {
                let text = format!("buffers of process {} will be copied: {e}", process.pid);
                log::line(Level::Warn, Subsystem::Init, &text);
                None
            }
        }
    };
    let one_process = is_one(processes);
    let memory = |process| match reach(process) {
        _ if one_process => PeerMemory::SameProcess,
        Some(mapping) => PeerMemory::Arena(mapping),
        None => PeerMemory::Unreachable,
    };
    processes.iter().map(memory).collect()
}

/// Returns whether all ranks are in one process.
pub(in crate::device) fn is_one(processes: &[Process]) -> bool {
    processes.iter().all(|process| process.id == processes[0].id)
}

/// Returns whether the system lets this rank copy from every other rank of its host. The rules of
/// ptrace, containers and seccomp may forbid it.
pub(in crate::device) fn can_copy(processes: &[Process], endpoint: &Endpoint) -> bool {
    if processes.len() == 1 {
        return false;
    }
    let own = &processes[endpoint.rank.number as usize];
    let peers = processes.iter().enumerate().filter(|(r, _)| endpoint.rank.local[*r].is_some());
    let mut answers = peers.map(|(rank, peer)| {
        let read = pull::pulled(peer.pid as i32, peer.probe as usize, rank as u32);
        peer.pid_namespace == own.pid_namespace && read.is_ok_and(|word| word == peer.id)
    });
    let able = answers.all(|answer| answer);
    if !able {
        let text = "process_vm_readv is forbidden here: buffers from malloc are copied twice";
        log::line(Level::Info, Subsystem::Init, text);
    }
    able
}
