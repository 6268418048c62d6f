//! Limits of memory, files and rights.

use super::Check;
use crate::root::size;
use oxccl_plan::words::counted;

/// The size and the free space of a file system, in bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::doctor) struct Space {
    pub(in crate::doctor) total: u64,
    pub(in crate::doctor) free: u64,
}

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Judges `/dev/shm`; `None` if there is no such file system.
pub(in crate::doctor) fn shared_memory(space: Option<Space>) -> Check {
    const NAME: &str = "shared memory";
    const USERS: &str = "OxCCL keeps its own shared memory elsewhere and does not need it, but \
                         NVIDIA's NCCL and the data loaders of PyTorch do.";
    const ADVICE: &str = "Start the container with --shm-size=8g or --ipc=host, or remount \
                          /dev/shm with a larger size, and remove files that ended jobs left there.";
    let Some(Space { total, free }) = space else {
        let found = format!("/dev/shm cannot be looked at. {USERS}");
        return Check::warning(NAME, found, ADVICE);
    };
    let found = format!("/dev/shm has {}, of which {} are free.", size(total), size(free));
    let check = match total < GIB || free < GIB / 4 {
        true => Check::warning(NAME, format!("{found} {USERS}"), ADVICE),
        false => Check::ok(NAME, found),
    };
    check.fact("size", size(total))
}

/// Returns a limit as text.
fn shown(limit: Option<u64>, text: impl Fn(u64) -> String) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), text)
}

/// Judges the limit of locked memory, in bytes; `None` is no limit. Adapters for RDMA need it.
pub(in crate::doctor) fn locked_memory(limit: Option<u64>, has_rdma: bool) -> Check {
    const NAME: &str = "locked memory";
    let shown = shown(limit, size);
    let found = format!("The limit of locked memory (RLIMIT_MEMLOCK) is {shown}.");
    let check = match limit {
        Some(limit) if has_rdma && limit < GIB => {
            let found = format!("{found} Network plugins for RDMA lock the buffers that they use.");
            let advice = "Set \"* - memlock unlimited\" in /etc/security/limits.conf, \
                          LimitMEMLOCK=infinity for services, or --ulimit memlock=-1 for containers.";
            match limit < 64 * MIB {
                true => Check::failure(NAME, found, advice),
                false => Check::warning(NAME, found, advice),
            }
        }
        Some(_) if !has_rdma => {
            Check::ok(NAME, format!("{found} Only adapters for RDMA need more; there are none."))
        }
        _ => Check::ok(NAME, found),
    };
    check.fact("limit", shown)
}

/// Judges the limits of open files, the one in effect and the most that a process may set; `None`
/// is no limit.
pub(in crate::doctor) fn open_files(soft: Option<u64>, hard: Option<u64>, ranks: u32) -> Check {
    const NAME: &str = "open files";
    /// The files with which a process of a few ranks makes its communicators.
    const LEAST: u64 = 64;
    /// The files of the program beside those of each peer.
    const OWN: u64 = 256;
    const PER_PEER: u64 = 8;
    let text = |limit| shown(limit, |limit: u64| limit.to_string());
    let found = format!("A process may open {} files (RLIMIT_NOFILE).", text(soft));
    let advice = match hard.is_none_or(|hard| soft.is_some_and(|soft| soft < hard)) {
        true => "Raise the limit in the script of the job: ulimit -n \"$(ulimit -H -n)\".",
        false => {
            "Set \"* - nofile 1048576\" in /etc/security/limits.conf, LimitNOFILE= for \
                  services, or --ulimit nofile=1048576 for containers."
        }
    };
    let check = match soft {
        Some(soft) if soft < LEAST => Check::failure(
            NAME,
            format!("{found} Communicators cannot be made with so few."),
            advice,
        ),
        Some(soft) if soft < OWN + PER_PEER * u64::from(ranks) => {
            let ranks = counted(ranks, "rank", "ranks");
            let why = format!("{ranks} in several communicators may need more.");
            Check::warning(NAME, format!("{found} {why}"), advice)
        }
        _ => Check::ok(NAME, found),
    };
    check.fact("soft limit", text(soft))
}

/// Judges `kernel.yama.ptrace_scope`, of which `None` says that the kernel has none, and whether
/// this process may read the memory of all others nevertheless.
pub(in crate::doctor) fn ptrace(scope: Option<&str>, may_read_all: bool) -> Check {
    const NAME: &str = "reads of peers";
    let Some(text) = scope else {
        let found = "The kernel has no kernel.yama.ptrace_scope: ranks of a user may read each \
                     other's memory (process_vm_readv).";
        return Check::ok(NAME, found);
    };
    let found = format!("kernel.yama.ptrace_scope is {text}");
    let why = "so ranks may not read each other's memory (process_vm_readv). Buffers from malloc \
               are copied twice; those from ncclMemAlloc do not need it.";
    let advice = "Set kernel.yama.ptrace_scope=0 with sysctl, or take buffers from ncclMemAlloc.";
    let check = match (text.parse::<u32>(), may_read_all) {
        (Ok(0), _) => Check::ok(NAME, format!("{found}: ranks may read each other's memory.")),
        (Ok(1 | 2), true) => {
            Check::ok(NAME, format!("{found}, but this process has the right to read all memory."))
        }
        (Ok(1..=3), _) => Check::warning(NAME, format!("{found}, {why}"), advice),
        (Ok(_) | Err(_), _) => {
            Check::not_applicable(NAME, format!("{found:?}, which is no value that is known."))
        }
    };
    check.fact("ptrace_scope", text)
}

/// Returns whether `/proc/self/status` says that the process has the capability CAP_SYS_PTRACE.
pub(in crate::doctor) fn may_read_all(status: &str) -> bool {
    const SYS_PTRACE: u64 = 1 << 19;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & SYS_PTRACE != 0)
}

/// Judges `vm.max_map_count`.
pub(in crate::doctor) fn mappings(text: Option<&str>) -> Check {
    const NAME: &str = "mappings";
    /// The kernel's own default.
    const USUAL: u64 = 65530;
    match text.map(|text| (text, text.parse::<u64>())) {
        None => Check::not_applicable(NAME, "vm.max_map_count cannot be read."),
        Some((text, Err(_))) => {
            let found = format!("vm.max_map_count is {text:?}, which is no number.");
            Check::not_applicable(NAME, found)
        }
        Some((text, Ok(number))) => {
            let found = format!("A process may have {number} mappings (vm.max_map_count).");
            let check = match number < USUAL {
                true => Check::warning(
                    NAME,
                    format!("{found} The kernel's default is {USUAL}."),
                    "Set vm.max_map_count=65530 or more with sysctl.",
                ),
                false => Check::ok(NAME, found),
            };
            check.fact("max_map_count", text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn small_or_full_shared_memory_is_warned_of() {
        let judged = |total, free| shared_memory(Some(Space { total, free })).verdict;
        assert_eq!(judged(24 * GIB, 20 * GIB), Verdict::Ok);
        assert_eq!(judged(64 * MIB, 64 * MIB), Verdict::Warning);
        assert_eq!(judged(24 * GIB, 0), Verdict::Warning);
        assert_eq!(judged(0, u64::MAX), Verdict::Warning);
        let check = shared_memory(None);
        assert_eq!(check.verdict, Verdict::Warning);
        let check = shared_memory(Some(Space { total: 64 * MIB, free: 0 }));
        assert!(check.found.starts_with("/dev/shm has 64 MiB, of which 0 bytes are free."));
        assert_eq!(check.facts["size"], "64 MiB");
    }

    #[test]
    fn locked_memory_matters_to_rdma() {
        let judged = |limit, rdma| locked_memory(limit, rdma).verdict;
        assert_eq!(judged(None, true), Verdict::Ok);
        assert_eq!(judged(Some(65536), false), Verdict::Ok);
        assert_eq!(judged(Some(65536), true), Verdict::Failure);
        assert_eq!(judged(Some(512 * MIB), true), Verdict::Warning);
        assert_eq!(judged(Some(u64::MAX), true), Verdict::Ok);
        assert_eq!(locked_memory(None, true).facts["limit"], "unlimited");
    }

    #[test]
    fn few_open_files_fail_and_more_are_needed_with_more_ranks() {
        assert_eq!(open_files(Some(1024), Some(4096), 8).verdict, Verdict::Ok);
        assert_eq!(open_files(None, None, 8).verdict, Verdict::Ok);
        let check = open_files(Some(1024), Some(1 << 20), 512);
        assert_eq!(check.verdict, Verdict::Warning);
        assert!(check.advice.contains("ulimit -n"), "{check:?}");
        let check = open_files(Some(0), Some(0), u32::MAX);
        assert_eq!(check.verdict, Verdict::Failure);
        assert!(check.advice.contains("limits.conf"), "{check:?}");
    }

    #[test]
    fn ptrace_is_allowed_for_all_for_children_or_for_nobody() {
        assert_eq!(ptrace(None, false).verdict, Verdict::Ok);
        assert_eq!(ptrace(Some("0"), false).verdict, Verdict::Ok);
        assert_eq!(ptrace(Some("1"), false).verdict, Verdict::Warning);
        assert_eq!(ptrace(Some("1"), true).verdict, Verdict::Ok);
        assert_eq!(ptrace(Some("3"), true).verdict, Verdict::Warning);
        for text in ["", "x", "-1", "99999999999999"] {
            assert_eq!(ptrace(Some(text), true).verdict, Verdict::NotApplicable, "{text}");
        }
    }

    #[test]
    fn capabilities_are_read_from_the_status() {
        assert!(may_read_all("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        for text in ["", "CapEff:", "CapEff:\tno", "CapEff:\t0000000000000000", "CapPrm:\tffffff"] {
            assert!(!may_read_all(text), "{text}");
        }
    }

    #[test]
    fn few_mappings_are_warned_of() {
        assert_eq!(mappings(Some("65530")).verdict, Verdict::Ok);
        assert_eq!(mappings(Some("1000")).verdict, Verdict::Warning);
        for text in [None, Some(""), Some("many"), Some("-1")] {
            assert_eq!(mappings(text).verdict, Verdict::NotApplicable, "{text:?}");
        }
    }
}
