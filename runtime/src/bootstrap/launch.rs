//! Ranks, sizes and the unique id from the environment that a launcher sets.
//!
//! `oxccl run` hands the id over in a file. Under the other launchers rank 0 makes it and leaves
//! it in a file of mode 0600 in a folder of mode 0700; the name comes from the job, the contents
//! tell which process wrote it, so that what an earlier job left behind is not taken for it.

use super::deadline::{Cancel, Deadline};
use super::id::{ID_BYTES, UniqueId};
use crate::config::{Config, launcher_variable};
use crate::error::{Error, Result};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A rank's place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Rank on this host: the device to use.
    pub local_rank: u32,
    /// A name that the job's processes on this host share.
    pub job: String,
    /// The launcher's name.
    pub launcher: &'static str,
}

/// Names of the launchers' variables: rank, size, local rank, and those that tell jobs apart.
const LAUNCHERS: [(&str, [&str; 3], &[&str]); 4] = [
    (
        "mpirun",
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
        &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    ),
    ("srun", ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"], &["SLURM_JOB_ID", "SLURM_STEP_ID"]),
    ("pmi", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"], &[]),
    (
        "torchrun",
        ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
        &["TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"],
    ),
];

/// The place of this process, if a launcher has set one.
pub fn detect() -> Result<Option<Launch>> {
    let config = Config::get();
    let own = [&config.rank, &config.nranks, &config.local_rank].map(String::as_str);
    detect_in(own, &launcher_variable)
}

pub(crate) fn detect_in(
    own: [&str; 3],
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Launch>> {
    if !own[0].is_empty() && !own[1].is_empty() {
        let values = own.map(|v| Some(v.to_owned()).filter(|v| !v.is_empty()));
        return parse(
            "oxccl run",
            ["OXCCL_RANK", "OXCCL_NRANKS", "OXCCL_LOCAL_RANK"],
            values,
            "oxccl".to_owned(),
        )
        .map(Some);
    }
    for (launcher, names, job) in LAUNCHERS {
        let values = names.map(lookup);
        if values[0].is_none() || values[1].is_none() {
            continue;
        }
        let mut key = launcher.to_owned();
        let parts: Vec<_> = job.iter().filter_map(|name| lookup(name)).collect();
        if parts.is_empty() {
            // The launcher's daemon on this host is everyone's parent.
            key += &format!("-{}", std::os::unix::process::parent_id());
        }
        for part in parts {
            key.push('-');
            key.extend(part.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }));
        }
        return parse(launcher, names, values, key).map(Some);
    }
    Ok(None)
}

fn parse(
    launcher: &'static str,
    names: [&str; 3],
    values: [Option<String>; 3],
    job: String,
) -> Result<Launch> {
    let number = |i: usize| -> Result<u32> {
        let value = values[i].as_deref().unwrap_or("0");
        value.trim().parse().map_err(|_| Error::Init {
            why: format!("{}={value} is no number (it is set by {launcher})", names[i]),
        })
    };
    let (rank, nranks, local_rank) = (number(0)?, number(1)?, number(2)?);
    for (name, value) in [(names[0], rank), (names[2], local_rank)] {
        if value >= nranks {
            let why = format!("{name}={value} is not below {}={nranks}", names[1]);
            return Err(Error::Init { why });
        }
    }
    Ok(Launch { rank, nranks, local_rank, job, launcher })
}

/// The unique id for the next communicator of a job. Every rank has to call it equally often.
/// Blocks until rank 0 has made it, for `limit` at most.
pub fn unique_id(launch: &Launch, limit: Duration) -> Result<UniqueId> {
    let config = Config::get();
    if !config.comm_id.is_empty() {
        return super::new_unique_id();
    }
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let nth = CALLS.fetch_add(1, Ordering::Relaxed);
    if nth == 0 && launch.job == "oxccl" && !config.secret_file.is_empty() {
        return parse_id(&read_private_file(&config.secret_file)?)
            .ok_or_else(|| Error::Init { why: format!("{} holds no id", config.secret_file) });
    }
    let mut name = launch.job.clone();
    if launch.job == "oxccl" {
        name += &format!("-{}", std::os::unix::process::parent_id());
    }
    let path = folder(config)?.join(format!("{name}.{nth}"));
    if launch.rank == 0 {
        let id = super::new_unique_id()?;
        let text = format!("{}{}", hex(&id.encode()), writer(std::process::id()));
        write_private_file(&path, text.as_bytes())?;
        return Ok(id);
    }
    let deadline = Deadline::new(limit, &Cancel::default());
    loop {
        if let Ok(bytes) = read_private_file(&path)
            && let Some(id) = parse_id(&bytes)
            && is_written_by_the_living(&bytes)
        {
            return Ok(id);
        }
        if deadline.passed() {
            let limit_s = limit.as_millis() as f64 / 1000.0;
            let why = format!("rank 0 left no id in {} within {limit_s} s", path.display());
            return Err(Error::InitTimeout { rank: launch.rank, nranks: launch.nranks, why });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The id as text for `OXCCL_SECRET_FILE`.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn parse_id(text: &[u8]) -> Option<UniqueId> {
    let mut bytes = [0; ID_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.get(..2 * ID_BYTES)?.chunks_exact(2)) {
        let digit = |i: usize| (pair[i] as char).to_digit(16);
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    UniqueId::decode(&bytes)
}

/// ` pid start-time`: names a process for good.
fn writer(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The 22nd field; the second may contain spaces and ends at the last parenthesis.
    let start = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19));
    format!(" {pid} {}", start.unwrap_or("0"))
}

fn is_written_by_the_living(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&text[2 * ID_BYTES..]);
    let pid = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid: u32| writer(pid) == text)
}

fn folder(config: &Config) -> Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let path = if config.rendezvous.is_empty() {
        std::env::temp_dir().join(format!("oxccl-{uid}"))
    } else {
        PathBuf::from(&config.rendezvous)
    };
    let failed = |e| Error::system(format!("making {}", path.display()), e, "set OXCCL_RENDEZVOUS");
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(&path).map_err(failed)?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o077 != 0 {
        let why = format!("{} must be a folder of this user with mode 0700", path.display());
        return Err(Error::Init { why });
    }
    Ok(path)
}

/// Reads a file that must belong to this user, be no link and be closed to others.
pub fn read_private_file(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let path = path.as_ref();
    let failed = |e| Error::system(format!("reading {}", path.display()), e, "check its mode");
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC).bits() as i32;
    let mut file =
        std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        let why = format!("{} must belong to this user and have mode 0600", path.display());
        return Err(Error::Init { why });
    }
    let mut bytes = Vec::new();
    (&mut file).take(4096).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Writes a file that only this user can read; appears under its name when complete.
pub fn write_private_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e| Error::system(format!("writing {}", path.display()), e, "is there room?");
    let partial = path.with_extension(format!("{}.part", std::process::id()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)
        .map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    std::fs::rename(&partial, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detected(pairs: &[(&str, &str)], own: [&str; 3]) -> Option<(u32, u32, u32, String)> {
        let lookup =
            |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let launch = detect_in(own, &lookup).unwrap()?;
        Some((launch.rank, launch.nranks, launch.local_rank, launch.job))
    }

    #[test]
    fn launchers_are_recognised() {
        let none = ["", "", ""];
        assert_eq!(detected(&[], none), None);
        assert_eq!(detected(&[], ["3", "4", ""]), Some((3, 4, 0, "oxccl".to_owned())));
        let ompi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("PMIX_NAMESPACE", "prte-x@1"),
        ];
        assert_eq!(detected(&ompi, none), Some((1, 2, 1, "mpirun-prte_x_1".to_owned())));
        let torch = [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("MASTER_PORT", "7")];
        assert_eq!(detected(&torch, none), Some((5, 8, 1, "torchrun-7".to_owned())));
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "9")];
        assert_eq!(detected(&slurm, none), Some((0, 2, 0, "srun-9".to_owned())));
        let bad = |name: &str| (name == "RANK").then(|| "x".to_owned()).or(Some("2".to_owned()));
        assert!(detect_in(none, &bad).is_err());
    }

    #[test]
    fn files_of_others_or_of_the_dead_are_not_taken() {
        let dir = std::env::temp_dir().join(format!("oxccl-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("id");
        let id = UniqueId::new("127.0.0.1:1".parse().unwrap()).unwrap();
        let text = format!("{}{}", hex(&id.encode()), writer(std::process::id()));
        write_private_file(&path, text.as_bytes()).unwrap();
        let bytes = read_private_file(&path).unwrap();
        assert_eq!(parse_id(&bytes), Some(id.clone()));
        assert!(is_written_by_the_living(&bytes));
        let signed = [b"+f", &bytes[2..]].concat();
        assert_eq!(parse_id(&signed), None, "a sign is no hexadecimal digit");
        let dead = format!("{} {} 1", hex(&id.encode()), std::process::id());
        assert!(!is_written_by_the_living(dead.as_bytes()));
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_private_file(&path).is_err());
        let link = dir.join("link");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(read_private_file(&path).is_ok() && read_private_file(&link).is_err());
        let place = dir.join("open").display().to_string();
        let rendezvous =
            || Config::from_lookup(|name| (name == "OXCCL_RENDEZVOUS").then(|| place.clone()));
        assert!(folder(&rendezvous()).is_ok());
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(folder(&rendezvous()).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
