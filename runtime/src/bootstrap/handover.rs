//! The file in which rank 0 leaves a unique id for the other ranks of its job, and the checks by
//! which these ranks recognise the id of their own job.
//!
//! The names of jobs repeat: a job is started once more, or a script runs one program after the
//! other. Therefore the file also says which process wrote it, on which host and in which pid
//! namespace. Ranks of the same host and namespace check whether that process is alive. To all
//! other ranks a pid means nothing; they ask the rendezvous. The id's secret is new every time, so
//! that only the rendezvous that the id was made for can answer. An id that passes neither check is
//! not taken, and the file is read again.

use super::deadline::Deadline;
use super::id::{ID_BYTES, UniqueId};
use super::launch::{hex, parse_id, read_private_file, write_private_file};
use super::session;
use crate::error::Result;
use crate::log::{self, Level, Subsystem};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The identity of a process, by which the same process is recognised later.
#[derive(PartialEq, Eq)]
struct Writer {
    pid: u32,
    /// The start of the process in ticks since the boot; `None` if the start cannot be looked up.
    start: Option<u64>,
    place: String,
}

impl Writer {
    fn own() -> Self {
        let pid = std::process::id();
        let start = sees_own_pids().then(|| began(pid)).flatten().map(|(start, _)| start);
        Self { pid, start, place: place() }
    }

    /// Parses the text that `Display` writes; `None` for any other text.
    fn parse(text: &str) -> Option<Self> {
        let [pid, start, place] = text.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
        Some(Self { pid: pid.parse().ok()?, start: start.parse().ok(), place: place.to_owned() })
    }

    /// Returns whether the process still runs; `None` if this process cannot know, and while the
    /// process ends.
    fn lives(&self) -> Option<bool> {
        let start = self.start.filter(|_| self.place == place() && sees_own_pids())?;
        match began(self.pid) {
            Some((began, ends)) if began == start => (!ends).then_some(true),
            _ => Some(false),
        }
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.start {
            Some(start) => write!(f, "{} {start} {}", self.pid, self.place),
            None => write!(f, "{} ? {}", self.pid, self.place),
        }
    }
}

/// Returns the scope in which a pid has one meaning: the host's name, boot and pid namespace. The
/// name distinguishes machines that were copied while they ran and so have the same boot.
pub(super) fn place() -> String {
    use std::os::unix::fs::MetadataExt;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino());
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{name}/{}/{namespace}", boot.trim()).replace(char::is_whitespace, "_")
}

/// Returns whether `/proc` shows this process's pid namespace, not one around it.
fn sees_own_pids() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    pids.is_some_and(|pids| pids.split_whitespace().count() == 1)
}

/// Returns the start of a process, in ticks since the boot, and whether the process is ending or is
/// a zombie; `None` if there is no such process.
fn began(pid: u32) -> Option<(u64, bool)> {
    /// The kernel's flag of a task that ends; it is set before the process's sockets are closed.
    const PF_EXITING: u32 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields from the third on; the second may contain spaces and ends at the last parenthesis.
    let fields: Vec<_> = stat.rsplit(')').next()?.split_whitespace().collect();
    let (state, flags, start) = (fields.first()?, fields.get(6)?, fields.get(19)?);
    let ends = matches!(*state, "Z" | "X") || flags.parse::<u32>().ok()? & PF_EXITING != 0;
    Some((start.parse().ok()?, ends))
}

/// Writes an id of this process to the file.
pub(super) fn leave(path: &Path, id: &UniqueId) -> Result<()> {
    let text = format!("{} {}", hex(&id.encode()), Writer::own());
    write_private_file(path, text.as_bytes()).map(drop)
}

/// Removes the file if it still holds this id. Called when all ranks have met, or will not meet any
/// more.
pub(super) fn remove(path: &Path, id: &UniqueId) {
    let own = read_private_file(path).is_ok_and(|bytes| parse_id(&bytes).as_ref() == Some(id));
    // A file that cannot be removed stays, as after a process that was killed.
    let _ = own.then(|| std::fs::remove_file(path));
}

/// Takes the id for `rank` as soon as the file holds one of a live job. At the deadline, fails with
/// a text that says what was found instead, which is empty if there was no file.
pub(super) fn take(
    path: &Path,
    rank: u32,
    deadline: &Deadline,
) -> std::result::Result<UniqueId, String> {
    let begin = Instant::now();
    let mut said = String::new();
    loop {
        let why = match look(path, rank, deadline) {
            Ok(id) => return Ok(id),
            Err(why) => why,
        };
        if deadline.passed() {
            return Err(why);
        }
        if why != said {
            let text = format!("not taking the id in {}: {why}", path.display());
            log::line(Level::Info, Subsystem::Bootstrap, &text);
            said = why;
        }
        // The pauses are short for ranks that start at the same time, and long where many ranks
        // wait long.
        let pause = begin.elapsed() / 16;
        std::thread::sleep(pause.clamp(Duration::from_millis(2), Duration::from_millis(100)));
    }
}

fn look(path: &Path, rank: u32, deadline: &Deadline) -> std::result::Result<UniqueId, String> {
    // An NFS client asks its server again for what is in a folder only when the folder is opened.
    let _ = path.parent().map(std::fs::File::open);
    if !path.exists() {
        return Err(String::new());
    }
    let bytes = read_private_file(path).map_err(|e| e.to_string())?;
    let writer = bytes.get(2 * ID_BYTES..).map(String::from_utf8_lossy);
    let writer = writer.and_then(|text| Writer::parse(&text));
    let (Some(id), Some(writer)) = (parse_id(&bytes), writer) else {
        return Err("it holds none".to_owned());
    };
    match writer.lives() {
        Some(true) => Ok(id),
        Some(false) => Err(format!("process {}, which left it, has ended", writer.pid)),
        None => session::ask(&id, rank, deadline).map(|()| id).map_err(|e| {
            let Writer { pid, place, .. } = &writer;
            let host = place.split('/').next().unwrap_or_default();
            format!("process {pid} on {host}, which left it, does not answer: {e}")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{Cancel, rendezvous};

    fn folder(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("oxccl-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn text(id: &UniqueId, writer: &Writer) -> String {
        format!("{} {writer}", hex(&id.encode()))
    }

    fn elsewhere(place: &str) -> Writer {
        Writer { place: place.to_owned(), ..Writer::own() }
    }

    /// Returns an id at an address where nobody listens.
    fn stale() -> UniqueId {
        let listener = session::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        UniqueId::new(listener.local_addr().unwrap()).unwrap()
    }

    #[test]
    fn on_its_own_host_an_id_counts_while_its_writer_lives() {
        let dir = folder("own");
        let path = dir.join("id");
        let deadline = Deadline::new(Duration::from_secs(60), &Cancel::default());
        assert_eq!(look(&path, 1, &deadline), Err(String::new()));
        let id = stale();
        leave(&path, &id).unwrap();
        assert_eq!(look(&path, 1, &deadline), Ok(id.clone()));
        let own = Writer::own();
        assert!(Writer::parse(&own.to_string()) == Some(Writer::own()));
        let dead = Writer { start: own.start.map(|s| s + 1), ..own };
        write_private_file(&path, text(&id, &dead).as_bytes()).unwrap();
        assert!(look(&path, 1, &deadline).unwrap_err().contains("has ended"));
        for bad in [hex(&id.encode()), format!("{} 1 2", hex(&id.encode())), "xy".to_owned()] {
            write_private_file(&path, bad.as_bytes()).unwrap();
            assert_eq!(look(&path, 1, &deadline).unwrap_err(), "it holds none");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// The writer is a process that was killed and that its parent has not waited for yet.
    #[test]
    fn the_id_of_a_process_that_ends_does_not_count() {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let dir = folder("ended");
        let path = dir.join("id");
        let deadline = Deadline::new(Duration::from_secs(60), &Cancel::default());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let start = began(child.id()).map(|(start, _)| start);
        assert!(start.is_some());
        let writer = Writer { pid: child.id(), start, place: place() };
        write_private_file(&path, text(&stale(), &writer).as_bytes()).unwrap();
        assert!(look(&path, 1, &deadline).is_ok());
        child.kill().unwrap();
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), ended).unwrap();
        assert!(look(&path, 1, &deadline).unwrap_err().contains("does not answer"));
        child.wait().unwrap();
        assert!(look(&path, 1, &deadline).unwrap_err().contains("has ended"));
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// The writer's pid and start are those of a process that lives here, this one.
    #[test]
    fn from_elsewhere_an_id_counts_while_its_rendezvous_answers() {
        let dir = folder("elsewhere");
        let path = dir.join("id");
        let deadline = Deadline::new(Duration::from_secs(60), &Cancel::default());
        let writer = elsewhere("other/boot/1");
        write_private_file(&path, text(&stale(), &writer).as_bytes()).unwrap();
        let why = look(&path, 1, &deadline).unwrap_err();
        assert!(why.contains("on other") && why.contains("does not answer"), "{why}");
        let listener = session::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let id = UniqueId::new(listener.local_addr().unwrap()).unwrap();
        rendezvous::start(listener, id.clone(), Vec::new()).unwrap();
        // Another rendezvous has taken over the address.
        let other = UniqueId::new(id.address).unwrap();
        write_private_file(&path, text(&other, &writer).as_bytes()).unwrap();
        assert!(look(&path, 1, &deadline).unwrap_err().contains("does not answer"));
        for writer in [writer, Writer { start: None, ..Writer::own() }] {
            write_private_file(&path, text(&id, &writer).as_bytes()).unwrap();
            assert_eq!(look(&path, 1, &deadline), Ok(id.clone()));
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_file_goes_with_its_rendezvous_and_that_of_another_job_stays() {
        let dir = folder("removed");
        let path = dir.join("id");
        let listener = session::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let id = UniqueId::new(listener.local_addr().unwrap()).unwrap();
        rendezvous::start(listener, id.clone(), Vec::new()).unwrap();
        leave(&path, &stale()).unwrap();
        remove(&path, &id);
        assert!(path.exists(), "another job's");
        leave(&path, &id).unwrap();
        let (file, own) = (path.clone(), id.clone());
        rendezvous::when_over(&id, move || remove(&file, &own));
        let cancel = Cancel::default();
        let limit = Duration::from_secs(60);
        let (reused, in_vain, holder) = (false, None, None);
        let (rank, nranks, cancel) = (0, 1, &cancel);
        let meeting =
            session::Meeting { id: &id, rank, nranks, reused, limit, cancel, in_vain, holder };
        let mut session = session::Session::open(&meeting).unwrap();
        session.gather(b"").unwrap();
        session.close();
        rendezvous::wait(&id);
        assert!(!path.exists());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_stale_id_is_read_again_until_the_limit() {
        let dir = folder("again");
        let path = dir.join("id");
        write_private_file(&path, text(&stale(), &elsewhere("other/boot/1")).as_bytes()).unwrap();
        let over = Deadline::new(Duration::ZERO, &Cancel::default());
        assert!(take(&path, 1, &over).unwrap_err().contains("does not answer"));
        let deadline = Deadline::new(Duration::from_secs(60), &Cancel::default());
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| take(&path, 1, &deadline));
            let id = stale();
            leave(&path, &id).unwrap();
            assert_eq!(taken.join().unwrap(), Ok(id));
        });
        std::fs::remove_dir_all(dir).unwrap();
    }
}
