//! The facts that every rank tells the others when a communicator is made.

use crate::bootstrap::id::{ADDRESS_BYTES, decode_address, encode_address};
use crate::config::Config;
use crate::device::{Device, Process};
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use crate::plugin::tuner;
use oxccl_plan::generate::{Algorithm, GENERATORS};
use oxccl_plan::select::Policy;
use oxccl_plan::selection::Selection;
use std::net::SocketAddr;

/// The version of the wire format of the blob and of everything that ranks share, on which all
/// ranks must agree.
pub(crate) const FORMAT: u32 = 13;

/// Size of a blob in bytes.
const BYTES: usize = TUNER_AT + 16;
const FLAGS_AT: usize = 104;
const TUNER_AT: usize = FLAGS_AT + 8 + ADDRESS_BYTES;
/// The place of the device's number beside the flags.
const DEVICE_AT: u32 = 32;
/// The flag of a rank whose process holds the rendezvous.
const HOLDER: u64 = 4;
/// The flags of [`RankInfo::connects_at_first_use`]: never and always. Only one may be set.
const CONNECTS: [u64; 2] = [8, 16];

/// Facts about a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankInfo {
    pub(super) process: Process,
    /// The identity of the host: ranks with equal values share memory.
    pub(super) host: u64,
    /// The address where the rank takes control connections, and where it would hold a later
    /// meeting.
    pub(super) control: SocketAddr,
    /// Name of the socket for descriptors.
    pub(super) socket: [u8; 16],
    /// The start of all counters. For this field and the next three, rank 0's values hold for all
    /// ranks.
    pub(super) counter_start: u64,
    pub(super) algorithm: [u8; 16],
    pub(super) deterministic: bool,
    /// True if ranks of different hosts are connected at first use, false if all are connected when
    /// the communicator is made; `None` if that follows from their number.
    pub(super) connects_at_first_use: Option<bool>,
    /// True if the rank's data lies on a GPU.
    pub(super) gpu: bool,
    /// The number of the rank's device.
    pub(super) device: u32,
    /// True if the rank's process holds the rendezvous.
    pub(super) holder: bool,
    /// The identity of the machine: ranks with equal values share processors.
    pub(super) machine: u64,
    /// The beginning of the name of the rank's tuner; zeros if it has none.
    pub(super) tuner: [u8; 16],
    /// True if the rank's creator asks for a network that reduces.
    pub(super) collnet: bool,
}

fn inode(path: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map_or(0, |m| m.ino())
}

/// Returns the FNV-1a hash: a name for a host, not a secret.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn machine() -> u64 {
    hash(&std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default())
}

fn host(config: &Config, rank: u32) -> u64 {
    let mut host = match config.hostid.as_bytes() {
        // Abstract sockets, through which memory is shared, do not leave a network namespace.
        [] => {
            let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            [&boot[..], &inode("/proc/self/ns/net").to_le_bytes()].concat()
        }
        id => id.to_vec(),
    };
    if let Some(part) = u64::from(rank).checked_div(config.ranks_per_node) {
        host.extend(part.to_le_bytes());
    }
    hash(&host)
}

/// Returns the algorithm with this name, if any.
fn algorithm_named(name: &str) -> Option<Algorithm> {
    GENERATORS.iter().find(|g| g.name == name).map(|g| g.algorithm)
}

/// Returns the beginning of a name, padded with zeros.
fn padded(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

/// Fails unless all ranks have the same tuner: plans have to be chosen alike.
pub(super) fn same_tuner(infos: &[RankInfo]) -> Result<()> {
    let differs = infos.iter().position(|info| info.tuner != infos[0].tuner);
    let Some(rank) = differs else { return Ok(()) };
    let name = |rank: usize| {
        let name = String::from_utf8_lossy(&infos[rank].tuner).into_owned();
        let name = name.trim_end_matches('\0');
        if name.is_empty() { "no tuner".to_owned() } else { format!("the tuner {name}") }
    };
    let why = format!(
        "rank 0 uses {}, rank {rank} {}; set NCCL_TUNER_PLUGIN alike on all ranks, and see why one \
         was refused (NCCL_DEBUG=INFO)",
        name(0),
        name(rank)
    );
    Err(Error::Init { why })
}

/// Returns the policy with this algorithm, or with all if it is no algorithm's name.
fn policy(algorithm: &str, deterministic: bool) -> Policy {
    Policy { only: algorithm_named(algorithm).map(Selection::from), deterministic }
}

/// Returns the policy for choosing plans that the settings ask for.
///
/// # Errors
///
/// `OXCCL_ALGORITHM` names no algorithm, or one that the settings forbid.
pub fn policy_of(config: &Config) -> Result<Policy> {
    algorithm(config)?;
    Ok(policy(&config.algorithm, config.deterministic))
}

/// Returns the value of OXCCL_ALGORITHM, padded with zeros.
pub(super) fn algorithm(config: &Config) -> Result<[u8; 16]> {
    let (name, deterministic) = (config.algorithm.as_str(), config.deterministic);
    let known = algorithm_named(name).map(Algorithm::generator);
    if name.is_empty() || known.is_some_and(|g| g.canonical || !deterministic) {
        return Ok(padded(name));
    }
    let eligible = GENERATORS.iter().filter(|g| g.canonical || !deterministic);
    let names = eligible.map(|g| g.name).collect::<Vec<_>>().join(", ");
    let why = match known {
        None => "is no algorithm",
        Some(_) => "folds in an order of its own, which OXCCL_DETERMINISTIC=1 forbids",
    };
    Err(config.refused("OXCCL_ALGORITHM", why, format!("one of {names}")))
}

impl RankInfo {
    pub(super) fn own(
        rank: u32,
        socket: [u8; 16],
        control: SocketAddr,
        (device, collnet): (Device, bool),
    ) -> Result<Self> {
        let config = Config::get();
        Ok(Self {
            process: Process::own()?,
            host: host(config, rank),
            socket,
            control,
            counter_start: config.counter_start,
            algorithm: algorithm(config)?,
            deterministic: config.deterministic,
            connects_at_first_use: config.runtime_connect,
            gpu: matches!(device, Device::Cuda(_)),
            device: device.index().unsigned_abs(),
            holder: false,
            machine: machine(),
            tuner: padded(tuner::name()),
            collnet,
        })
    }

    /// Returns the policy for choosing plans, if this is rank 0's blob. Warns if `own` asks for a
    /// different value of a setting that matters for results.
    pub(super) fn policy(&self, own: &RankInfo) -> Policy {
        if own.deterministic != self.deterministic {
            let value = u8::from(self.deterministic);
            let text =
                format!("OXCCL_DETERMINISTIC differs between ranks; that of rank 0 holds: {value}");
            log::line(Level::Warn, Subsystem::Init, &text);
        }
        let name = String::from_utf8_lossy(&self.algorithm);
        policy(name.trim_end_matches('\0'), self.deterministic)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = FORMAT.to_le_bytes().to_vec();
        let Process { id, pid, pid_namespace, arena_bytes, probe } = self.process;
        out.extend(pid.to_le_bytes());
        out.extend(id);
        out.extend(self.socket);
        out.extend(self.algorithm);
        let connects = [Some(false), Some(true)].map(|value| self.connects_at_first_use == value);
        let [never, always] = connects;
        let flags = [self.deterministic, self.gpu, self.holder, never, always, self.collnet];
        let flags = (0..).zip(flags).fold(0, |bits, (i, set)| bits | u64::from(set) << i);
        let flags = flags | u64::from(self.device) << DEVICE_AT;
        let Self { host, machine, counter_start, .. } = *self;
        let words = [pid_namespace, host, arena_bytes, counter_start, probe, machine];
        for word in words.into_iter().chain([flags]) {
            out.extend(word.to_le_bytes());
        }
        out.extend(encode_address(self.control));
        out.extend(self.tuner);
        out
    }

    /// Returns whether these bytes are the blob of the rank whose process holds the rendezvous.
    pub(super) fn is_holder(bytes: &[u8]) -> bool {
        bytes.get(FLAGS_AT).is_some_and(|flags| u64::from(*flags) & HOLDER != 0)
    }

    pub(crate) fn decode(rank: usize, bytes: &[u8]) -> Result<Self> {
        let bad = |what: String| Error::Init { why: format!("rank {rank} {what}") };
        let format = bytes.first_chunk().map(|b| u32::from_le_bytes(*b));
        if format != Some(FORMAT) {
            let what =
                format!("speaks format {format:?}, this rank {FORMAT}; update the older one");
            return Err(bad(what));
        }
        let fixed = <&[u8; BYTES]>::try_from(bytes)
            .map_err(|_| bad(format!("sent {} bytes about itself, not {BYTES}", bytes.len())))?;
        let mut control = [0; ADDRESS_BYTES];
        control.copy_from_slice(&fixed[FLAGS_AT + 8..TUNER_AT]);
        let name = |at: usize| <[u8; 16]>::try_from(&fixed[at..at + 16]).unwrap_or_default();
        let word = |at: usize| {
            u64::from_le_bytes(<[u8; 8]>::try_from(&fixed[at..at + 8]).unwrap_or_default())
        };
        let pid = u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
        if i32::try_from(pid).map_or(true, |pid| pid <= 0) {
            return Err(bad(format!("says that its process has the number {pid}")));
        }
        let flags = word(FLAGS_AT);
        let [never, always] = CONNECTS.map(|flag| flags & flag != 0);
        if flags as u32 > 63 || never && always {
            return Err(bad(format!("sent unknown flags {flags:#x}")));
        }
        let (id, pid_namespace, arena_bytes, probe) = (name(8), word(56), word(72), word(88));
        Ok(Self {
            process: Process { id, pid, pid_namespace, arena_bytes, probe },
            socket: name(24),
            algorithm: name(40),
            host: word(64),
            counter_start: word(80),
            deterministic: flags & 1 != 0,
            connects_at_first_use: (never || always).then_some(always),
            gpu: flags & 2 != 0,
            device: (flags >> DEVICE_AT) as u32,
            holder: flags & HOLDER != 0,
            machine: word(96),
            tuner: name(TUNER_AT),
            collnet: flags & 32 != 0,
            control: decode_address(&control)
                .ok_or_else(|| bad("sent a bad address".to_owned()))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_survive_the_round_trip_and_other_formats_are_refused() {
        let address = "[fe80::1%3]:9".parse().unwrap();
        let blob = RankInfo::own(0, [7; 16], address, (Device::Cuda(3), true)).unwrap();
        let mut bytes = blob.encode();
        assert_eq!(RankInfo::decode(0, &bytes).unwrap(), blob);
        assert!(RankInfo::decode(0, &bytes[..80]).is_err());
        let set = RankInfo { deterministic: true, ..blob };
        let policy = RankInfo::decode(0, &set.encode()).unwrap().policy(&set);
        assert!(policy.deterministic);
        let tuned = RankInfo { tuner: padded("a name that is long"), ..set.clone() };
        assert_eq!(RankInfo::decode(1, &tuned.encode()).unwrap(), tuned);
        assert!(same_tuner(&[tuned.clone(), tuned.clone()]).is_ok());
        let text = same_tuner(&[set, tuned]).unwrap_err().to_string();
        assert!(text.contains("rank 0 uses no tuner, rank 1 the tuner a name that is "), "{text}");
        bytes[FLAGS_AT] |= CONNECTS.iter().sum::<u64>() as u8;
        let text = RankInfo::decode(2, &bytes).unwrap_err().to_string();
        assert!(text.contains("rank 2 sent unknown flags"), "{text}");
        bytes[0] = FORMAT as u8 + 1;
        let text = RankInfo::decode(3, &bytes).unwrap_err().to_string();
        assert!(text.contains(&format!("rank 3 speaks format Some({})", FORMAT + 1)), "{text}");
    }

    #[test]
    fn so_many_ranks_per_node_are_hosts_of_their_own() {
        let of = |per_node: &'static str, id: &'static str, rank| {
            let config = Config::from_lookup(|variable| match variable {
                "OXCCL_RANKS_PER_NODE" => Some(per_node.to_owned()),
                "NCCL_HOSTID" => Some(id.to_owned()),
                _ => None,
            });
            host(&config, rank)
        };
        assert!(of("2", "", 0) == of("2", "", 1) && of("2", "", 1) != of("2", "", 2));
        assert!(of("2", "a", 0) != of("2", "b", 0) && of("0", "a", 0) == of("0", "a", 9));
    }

    #[test]
    fn a_forced_algorithm_has_to_exist_and_to_be_deterministic_where_that_is_asked_for() {
        for (name, deterministic, complaint) in [
            ("ring", false, None),
            ("two_shot_edges", true, None),
            ("ring", true, Some("OXCCL_DETERMINISTIC=1 forbids")),
            ("rang", true, Some("expected one of local, one_shot")),
            ("longer than sixteen bytes", false, Some("expected one of local, one_shot")),
        ] {
            let config = Config::from_lookup(|variable| match variable {
                "OXCCL_ALGORITHM" => Some(name.to_owned()),
                "OXCCL_DETERMINISTIC" => Some(u8::from(deterministic).to_string()),
                _ => None,
            });
            let text = algorithm(&config).err().map(|e| e.to_string());
            let fits = |c: &str| text.as_ref().is_some_and(|t| t.contains(c) && t.contains(name));
            assert!(complaint.map_or(text.is_none(), fits), "{name}: {text:?}");
        }
    }
}
