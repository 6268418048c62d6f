//! Ranks, sizes and the unique id from the environment that a launcher sets.
//!
//! `oxccl run` hands the id over in a file. Under the other launchers rank 0 makes the id and
//! leaves it in a file of mode 0600 in a folder of mode 0700, which `handover.rs` describes. Under
//! torchrun, ranks on several hosts meet at the address that torchrun gives them.

use super::deadline::{Cancel, Deadline};
use super::id::{ID_BYTES, SECRET_BYTES, UniqueId, random};
use super::{handover, rendezvous, session};
use crate::config::{Config, foreign_variable};
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A rank's place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The number of the rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// The rank on this host, which selects the device.
    pub local_rank: u32,
    /// The way in which the job's ranks find each other.
    pub meet: Meet,
    /// The launcher's name.
    pub launcher: &'static str,
}

/// The way in which the ranks of a job find each other if neither `NCCL_COMM_ID` nor `oxccl run`
/// tells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meet {
    /// By a file of this name, which no other job on any host has.
    Job(String),
    /// By a file of this name, which no other job of this host has.
    Host(String),
    /// By a file of this name, which ranks of this host with the same parent process have.
    Parent(String),
    /// At the address `MASTER_ADDR` and the port after `MASTER_PORT`; a value is empty if its
    /// variable is missing.
    Master(String, String),
}

/// The variables that a launcher sets.
struct Known {
    launcher: &'static str,
    /// The variable that shows that this launcher started the process.
    mark: &'static str,
    /// The variables of the rank, the number of ranks and the rank on this host.
    place: [&'static str; 3],
    /// The variables that tell jobs apart.
    job: &'static [&'static str],
    /// True if `job` tells apart the jobs of all hosts.
    everywhere: bool,
}

const TORCHRUN: Known = Known {
    launcher: "torchrun",
    mark: "TORCHELASTIC_RUN_ID",
    place: ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    job: &["TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"],
    everywhere: false,
};

const PMI: Known = Known {
    launcher: "pmi",
    mark: "MPI_LOCALRANKID",
    place: ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    job: &[],
    everywhere: false,
};

/// The known launchers. One may start another, as srun does torchrun on every host; the inner one
/// counts.
const LAUNCHERS: [Known; 6] = [
    TORCHRUN,
    Known {
        launcher: "mpirun",
        mark: "OMPI_COMM_WORLD_RANK",
        place: ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
        // Under Open MPI 4 the last is a random number; the other names may come again on other
        // hosts.
        job: &[
            "PMIX_NAMESPACE",
            "OMPI_MCA_ess_base_jobid",
            "OMPI_MCA_orte_precondition_transports",
        ],
        everywhere: true,
    },
    PMI,
    Known {
        launcher: "srun",
        mark: "SLURM_PROCID",
        place: ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
        job: &["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID"],
        everywhere: true,
    },
    // Launchers that set no more than the same ranks and sizes.
    Known { mark: "PMI_RANK", ..PMI },
    Known { mark: "RANK", ..TORCHRUN },
];

/// The longest part of a file's name that is made of a launcher's variables, in bytes.
const MAX_NAME: usize = 128;

/// Returns the place of this process in its job, if a launcher has set one.
pub fn detect() -> Result<Option<Launch>> {
    let config = Config::get();
    let own = [&config.rank, &config.nranks, &config.local_rank].map(String::as_str);
    detect_in(own, &foreign_variable)
}

pub(crate) fn detect_in(
    own: [&str; 3],
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Launch>> {
    if !own[0].is_empty() && !own[1].is_empty() {
        let values = own.map(|v| Some(v.to_owned()).filter(|v| !v.is_empty()));
        let names = ["OXCCL_RANK", "OXCCL_NRANKS", "OXCCL_LOCAL_RANK"];
        return parse(OWN, names, values, of_parent("oxccl")).map(Some);
    }
    let fits = |known: &&Known| {
        [known.mark, known.place[0], known.place[1]].iter().all(|name| lookup(name).is_some())
    };
    let Some(known) = LAUNCHERS.iter().find(fits) else {
        // Alone, the number of ranks may be a container's for all of its programs.
        if !own[0].is_empty() {
            let what = "OXCCL_RANK is set, but OXCCL_NRANKS is not".to_owned();
            return Err(Error::usage(
                what,
                "set both, or neither, or start the ranks by oxccl run",
            ));
        }
        if own[1].parse().is_ok_and(|nranks: u32| nranks > 1) {
            warn_alone(own[1]);
        }
        return Ok(None);
    };
    let values = known.place.map(lookup);
    let meet = if known.launcher == TORCHRUN.launcher && has_other_hosts(&values[1], lookup) {
        let [address, port] =
            ["MASTER_ADDR", "MASTER_PORT"].map(|name| lookup(name).unwrap_or_default());
        Meet::Master(address, port)
    } else {
        known.meet(lookup)
    };
    parse(known.launcher, known.place, values, meet).map(Some)
}

/// Logs once that this process is no rank of a job, though a variable tells its size.
fn warn_alone(nranks: &str) {
    static WARN: Once = Once::new();
    let text = format!(
        "OXCCL_NRANKS is {nranks}, but OXCCL_RANK is not set: this process is alone, and no rank of \
         a job"
    );
    WARN.call_once(|| log::line(Level::Warn, Subsystem::Init, &text));
}

/// Returns whether torchrun started ranks on other hosts too.
fn has_other_hosts(nranks: &Option<String>, lookup: &dyn Fn(&str) -> Option<String>) -> bool {
    let here = lookup("LOCAL_WORLD_SIZE");
    here.is_some_and(|here| nranks.as_ref().is_some_and(|all| all.trim() != here.trim()))
}

/// The name of `oxccl run` as a launcher.
const OWN: &str = "oxccl run";

/// Returns a file name made of the parent's pid: the launcher's daemon on this host is the parent
/// of all ranks there.
fn of_parent(launcher: &str) -> Meet {
    Meet::Parent(format!("{launcher}-{}", std::os::unix::process::parent_id()))
}

impl Known {
    fn meet(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Meet {
        let mut name = self.launcher.to_owned();
        for part in self.job.iter().filter_map(|name| lookup(name)) {
            name.push('-');
            name.extend(part.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }));
        }
        if name == self.launcher {
            return of_parent(self.launcher);
        }
        if name.len() > MAX_NAME {
            name = format!("{}-{}", self.launcher, digest(&name));
        }
        if self.everywhere { Meet::Job(name) } else { Meet::Host(name) }
    }
}

/// Returns a short name for a long one.
fn digest(text: &str) -> String {
    use sha2::Digest;
    hex(&sha2::Sha256::digest(text)[..16])
}

fn parse(
    launcher: &'static str,
    names: [&str; 3],
    values: [Option<String>; 3],
    meet: Meet,
) -> Result<Launch> {
    let wrong = |what: String| {
        Error::usage(what, "correct it, or start the ranks by oxccl run or another launcher")
    };
    let number = |i: usize| -> Result<u32> {
        let value = values[i].as_deref().unwrap_or("0");
        let parsed = value.trim().parse();
        parsed.map_err(|_| wrong(format!("{} is {value:?}; expected a number", names[i])))
    };
    let (rank, nranks, local_rank) = (number(0)?, number(1)?, number(2)?);
    for (name, value) in [(names[0], rank), (names[2], local_rank)] {
        if value >= nranks {
            let expected = format!("less than {}, which is {nranks}", names[1]);
            return Err(wrong(format!("{name} is {value}; expected {expected}")));
        }
    }
    Ok(Launch { rank, nranks, local_rank, meet, launcher })
}

/// Returns the unique id for the next communicator of a job. Every rank has to call this equally
/// often. Blocks until rank 0 has made the id, for `limit` at most.
pub fn unique_id(launch: &Launch, limit: Duration) -> Result<UniqueId> {
    // A forked child would wait for an id in vain.
    crate::fork::check()?;
    let config = Config::checked()?;
    if !config.comm_id.is_empty() {
        return super::new_unique_id();
    }
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let nth = CALLS.fetch_add(1, Ordering::Relaxed);
    if nth == 0 && launch.launcher == OWN && !config.secret_file.is_empty() {
        return parse_id(&read_private_file(&config.secret_file)?)
            .ok_or_else(|| Error::Init { why: format!("{} holds no id", config.secret_file) });
    }
    let (name, advice) = match &launch.meet {
        Meet::Job(name) => (
            name.clone(),
            "where rank 0 is on another host, set OXCCL_RENDEZVOUS to a folder that all hosts share, \
             or NCCL_COMM_ID",
        ),
        // A job of another host may have this name, or that below.
        Meet::Host(name) => (
            format!("{name}-{}", digest(&handover::place())),
            "its name is known on this host only: where rank 0 is on another one, set NCCL_COMM_ID",
        ),
        Meet::Parent(name) => (
            format!("{name}-{}", digest(&handover::place())),
            "only ranks of this host with the same parent process know its name: where rank 0 has \
             another parent, such as a wrapper of its own, or is on another host, set NCCL_COMM_ID",
        ),
        Meet::Master(address, port) => return at_master(address, port, config),
    };
    let path = folder(config)?.join(format!("{name}.{nth}"));
    if launch.rank == 0 {
        let id = super::new_unique_id()?;
        handover::leave(&path, &id)?;
        let own = id.clone();
        rendezvous::when_over(&id, move || handover::remove(&path, &own));
        return Ok(id);
    }
    let deadline = Deadline::new(limit, &Cancel::default());
    handover::take(&path, launch.rank, &deadline).map_err(|found| {
        let found = if found.is_empty() { found } else { format!(" (of the one there: {found})") };
        let (path, limit_s) = (path.display(), limit.as_millis() as f64 / 1000.0);
        let why = format!("rank 0 left no id in {path} within {limit_s} s{found}; {advice}");
        Error::InitTimeout { rank: launch.rank, nranks: launch.nranks, why }
    })
}

/// Returns the id of ranks that meet at the port after `MASTER_PORT`, where torchrun itself
/// listens.
fn at_master(address: &str, port: &str, config: &Config) -> Result<UniqueId> {
    let source = format!("torchrun's MASTER_ADDR={address} and MASTER_PORT={port}");
    match port.trim().parse::<u16>().ok().and_then(|port| port.checked_add(1)) {
        Some(next) => session::fixed_id(&source, (address.trim(), next), config),
        None => {
            let why = "the ranks of several hosts meet at the port behind MASTER_PORT, which must be \
                       1 to 65534; or set NCCL_COMM_ID";
            Err(Error::Init { why: format!("{source}: {why}") })
        }
    }
}

/// Returns bytes as hexadecimal text, as for the id in `OXCCL_SECRET_FILE`.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the id that [`hex`] has written of its bytes.
pub fn parse_id(text: &[u8]) -> Option<UniqueId> {
    let mut bytes = [0; ID_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.get(..2 * ID_BYTES)?.chunks_exact(2)) {
        let digit = |i: usize| (pair[i] as char).to_digit(16);
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    UniqueId::decode(&bytes)
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

/// Returns a secret that all processes of this user on this host share. The secret is random, made
/// when it is first needed, and kept in a file that nobody else can read.
pub(super) fn secret_of_user(config: &Config) -> Result<[u8; SECRET_BYTES]> {
    let path = folder(config)?.join("secret");
    if !path.exists() {
        // The first of concurrent writers wins: `hard_link` fails where there is a file already.
        let own = path.with_extension(hex(&random::<8>()?));
        write_private_file(&own, &random::<SECRET_BYTES>()?)?;
        let linked = std::fs::hard_link(&own, &path);
        let removed = std::fs::remove_file(&own);
        match linked {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                let hint = "set OXCCL_RENDEZVOUS to a folder of this user";
                return Err(Error::system(format!("making {}", path.display()), e, hint));
            }
            _ => {}
        }
        // A file that could not be removed does no harm.
        let _ = removed;
    }
    let bytes = read_private_file(&path)?;
    bytes.try_into().map_err(|bytes: Vec<u8>| {
        let (path, n) = (path.display(), bytes.len());
        Error::Init { why: format!("{path} has {n} bytes, not {SECRET_BYTES}: remove it") }
    })
}

const READING: &str =
    "check its mode; oxccl run removes its own when the ranks have met, or failed to";

/// Reads a file that must belong to this user, must not be a symbolic link and must be closed to
/// others.
pub fn read_private_file(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let path = path.as_ref();
    let failed = |e| Error::system(format!("reading {}", path.display()), e, READING);
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

/// Writes a file that only this user can read, and returns it. The file appears under its name when
/// it is complete, and is locked (as by flock) until what is returned is dropped: others see by
/// that whether who wrote it still runs.
pub fn write_private_file(path: &Path, bytes: &[u8]) -> Result<std::fs::File> {
    let failed = |e| Error::system(format!("writing {}", path.display()), e, "is there room?");
    // Another host may share the folder, and have a process of the same pid.
    let partial = path.with_extension(format!("{}.part", hex(&random::<8>()?)));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)
        .map_err(failed)?;
    // Not every file system has locks. Nobody else knows the name yet, so this does not wait.
    let _ = file.lock();
    file.write_all(bytes).map_err(failed)?;
    std::fs::rename(&partial, path).map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    const NONE: [&str; 3] = ["", "", ""];

    fn detected(pairs: &[(&str, &str)], own: [&str; 3]) -> Option<Launch> {
        let lookup =
            |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        detect_in(own, &lookup).unwrap()
    }

    /// Returns a launch at this place in a job.
    fn launch(place: [u32; 3], launcher: &'static str, meet: Meet) -> Option<Launch> {
        let [rank, nranks, local_rank] = place;
        Some(Launch { rank, nranks, local_rank, meet, launcher })
    }

    const OMPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("PMIX_NAMESPACE", "prte-x@1"),
    ];
    const SLURM: [(&str, &str); 3] =
        [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "9")];
    const TORCH: [(&str, &str); 4] =
        [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("MASTER_PORT", "7")];

    #[test]
    fn launchers_are_recognised() {
        assert_eq!(detected(&[], NONE), None);
        let parent = |launcher| of_parent(launcher);
        let own = detected(&[], ["3", "4", ""]);
        assert_eq!(own, launch([3, 4, 0], "oxccl run", parent("oxccl")));
        let job = |name: &str| Meet::Job(name.to_owned());
        assert_eq!(detected(&OMPI, NONE), launch([1, 2, 1], "mpirun", job("mpirun-prte_x_1")));
        assert_eq!(detected(&OMPI[..3], NONE), launch([1, 2, 1], "mpirun", parent("mpirun")));
        assert_eq!(detected(&SLURM, NONE), launch([0, 2, 0], "srun", job("srun-9")));
        let host = Meet::Host("torchrun-7".to_owned());
        assert_eq!(detected(&TORCH, NONE), launch([5, 8, 1], "torchrun", host));
        let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        assert_eq!(detected(&pmi, NONE), launch([1, 2, 0], "pmi", parent("pmi")));
        let bad = |name: &str| (name == "RANK").then(|| "x".to_owned()).or(Some("2".to_owned()));
        let none = |_: &str| None;
        let Err(half) = detect_in(["1", "", ""], &none) else { panic!("a rank of no job") };
        assert!(half.to_string().contains("OXCCL_RANK is set, but OXCCL_NRANKS is not"), "{half}");
        assert!(detect_in(["", "4", ""], &none).is_ok_and(|found| found.is_none()));
        assert!(detect_in(NONE, &bad).is_err());
    }

    #[test]
    fn ranks_that_cannot_be_are_wrong_usage() {
        let none = |_: &str| None;
        for (own, told) in [
            (
                ["5", "2", ""],
                "OXCCL_RANK is 5; expected less than OXCCL_NRANKS, which is 2; correct",
            ),
            (
                ["0", "0", ""],
                "OXCCL_RANK is 0; expected less than OXCCL_NRANKS, which is 0; correct",
            ),
            (["1", "2", "2"], "OXCCL_LOCAL_RANK is 2; expected less than OXCCL_NRANKS, which is 2"),
            (["a", "2", ""], "OXCCL_RANK is \"a\"; expected a number; correct"),
            (["0", "-1", ""], "OXCCL_NRANKS is \"-1\"; expected a number; correct"),
        ] {
            let Err(error) = detect_in(own, &none) else { panic!("{own:?} is a rank") };
            let text = error.to_string();
            assert!(error.code() == Code::InvalidUsage && text.starts_with(told), "{text}");
        }
    }

    #[test]
    fn torchruns_ranks_on_several_hosts_meet_behind_its_port() {
        let sized = |here, more: &[(&str, &str)]| {
            let torchrun = [&TORCH[..], &[("LOCAL_WORLD_SIZE", here)], more].concat();
            detected(&torchrun, NONE).unwrap().meet
        };
        assert_eq!(sized("8", &[]), Meet::Host("torchrun-7".to_owned()));
        assert_eq!(sized("4", &[]), Meet::Master(String::new(), "7".to_owned()));
        let [address, port] = ["192.0.2.1", "7"].map(str::to_owned);
        assert_eq!(sized("4", &[("MASTER_ADDR", "192.0.2.1")]), Meet::Master(address, port));
        let trusting = Config::from_lookup(|n| (n == "OXCCL_INSECURE").then(|| "1".to_owned()));
        let id = |address, port| at_master(address, port, &trusting);
        assert_eq!(id("192.0.2.1", "7").unwrap().address, "192.0.2.1:8".parse().unwrap());
        assert_eq!(id("2001:db8::1", "7").unwrap().address, "[2001:db8::1]:8".parse().unwrap());
        for port in ["65535", "", "x"] {
            let text = id("192.0.2.1", port).unwrap_err().to_string();
            assert!(text.contains("or set NCCL_COMM_ID"), "{text}");
        }
        let careful = Config::from_lookup(|_| None);
        let text = at_master("192.0.2.1", "7", &careful).unwrap_err().to_string();
        assert!(text.contains("MASTER_ADDR=192.0.2.1") && text.contains("OXCCL_SECRET_FILE"));
    }

    #[test]
    fn the_inner_one_of_two_launchers_counts() {
        let of = |pairs: &[&[(&str, &str)]]| detected(&pairs.concat(), NONE).unwrap().launcher;
        let torchrun = [&TORCH[..], &[("TORCHELASTIC_RUN_ID", "none")]].concat();
        assert_eq!(of(&[&torchrun, &SLURM]), "torchrun");
        assert_eq!(of(&[&torchrun, &OMPI]), "torchrun");
        assert_eq!(of(&[&OMPI, &SLURM]), "mpirun");
        let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        assert_eq!(of(&[&pmi, &[("MPI_LOCALRANKID", "1")], &SLURM]), "pmi");
        // srun sets these itself, also for programs that read nothing else.
        assert_eq!(of(&[&pmi, &TORCH, &SLURM]), "srun");
    }

    #[test]
    fn long_names_of_jobs_become_short_ones() {
        let long = "x".repeat(MAX_NAME);
        let name = |end: &str| {
            let id = format!("{long}{end}");
            let torchrun = [&TORCH[..3], &[("TORCHELASTIC_RUN_ID", &id)]].concat();
            detected(&torchrun, NONE).unwrap().meet
        };
        assert!(matches!(name("a"), Meet::Host(name) if name.len() < MAX_NAME));
        assert!(name("a") == name("a") && name("a") != name("b"));
    }

    #[test]
    fn files_of_others_are_not_taken() {
        let dir = std::env::temp_dir().join(format!("oxccl-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("id");
        let id = UniqueId::new("127.0.0.1:1".parse().unwrap()).unwrap();
        write_private_file(&path, hex(&id.encode()).as_bytes()).unwrap();
        let bytes = read_private_file(&path).unwrap();
        assert_eq!(parse_id(&bytes), Some(id.clone()));
        let signed = [b"+f", &bytes[2..]].concat();
        assert_eq!(parse_id(&signed), None, "a sign is no hexadecimal digit");
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
