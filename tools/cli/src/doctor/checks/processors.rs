//! The processors that this process may use.

use super::Check;
use oxccl_plan::words::counted;

/// The processors of the machine and those that this process may use.
#[derive(Clone, Copy, Debug)]
pub(in crate::doctor) struct Processors {
    /// The processors of the machine; `None` if it does not tell.
    pub(in crate::doctor) online: Option<usize>,
    /// The processors of the process's affinity.
    pub(in crate::doctor) affinity: usize,
    /// The processors' worth of time that the control group has; `None` is no limit.
    pub(in crate::doctor) quota: Option<f64>,
}

/// Returns the processors' worth of time that a file `cpu.max` allows; `None` is no limit.
pub(in crate::doctor) fn quota(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let (quota, period) = (words.next()?, words.next().unwrap_or("100000"));
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0 && quota.is_finite()).then(|| quota / period)
}

/// Returns the folder of the process's control group from the text of `/proc/self/cgroup`: `None`
/// asks for that of version 2, else it is that of a controller of version 1.
pub(in crate::doctor) fn control_group<'a>(
    text: &'a str,
    controller: Option<&str>,
) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let wanted = match controller {
            None => number == "0" && controllers.is_empty(),
            Some(name) => controllers.split(',').any(|known| known == name),
        };
        wanted.then_some(path)
    })
}

/// Judges whether each of the ranks of this host has a processor.
pub(in crate::doctor) fn processors(found: Processors, ranks: u32) -> Check {
    const NAME: &str = "processors";
    const NEEDY: &str = "rank of this host needs one of its own";
    const SHARING: &str = "ranks of this host share them, and wait for each other";
    let Processors { online, affinity, quota } = found;
    let mut text = match online {
        Some(online) => format!(
            "This process may run on {affinity} of {}.",
            counted(online, "processor", "processors")
        ),
        None => {
            format!("This process may run on {}.", counted(affinity, "processor", "processors"))
        }
    };
    if let Some(quota) = quota {
        text += &format!(" Its control group has the time of {quota:.1} processors.");
    }
    let usable = quota.map_or(affinity as f64, |quota| quota.min(affinity as f64));
    let check = match usable < f64::from(ranks) {
        true => Check::warning(
            NAME,
            format!("{text} {}.", counted(ranks, NEEDY, SHARING)),
            "Start fewer ranks, or give the job more processors (--cpus-per-task of srun, \
             --bind-to none of mpirun, --cpus of docker).",
        ),
        false => Check::ok(NAME, text),
    };
    check.fact("usable", usable)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn quotas_are_processors_or_no_limit() {
        assert_eq!(quota("200000 100000"), Some(2.0));
        assert_eq!(quota("50000"), Some(0.5));
        for text in ["max 100000", "-1 100000", "", "x y", "100 0", "inf 1", "NaN 1", "0 1"] {
            assert_eq!(quota(text), None, "{text}");
        }
    }

    #[test]
    fn control_groups_are_found_in_both_versions() {
        let text = "3:cpu,cpuacct:/a\n2:cpuset:/b\n0::/c:d\nnonsense\n";
        assert_eq!(control_group(text, None), Some("/c:d"));
        assert_eq!(control_group(text, Some("cpu")), Some("/a"));
        assert_eq!(control_group(text, Some("memory")), None);
        assert_eq!(control_group("", None), None);
    }

    #[test]
    fn ranks_without_a_processor_of_their_own_are_warned_of() {
        let judged = |affinity, quota, ranks| {
            processors(Processors { online: Some(64), affinity, quota }, ranks)
        };
        assert_eq!(judged(8, None, 8).verdict, Verdict::Ok);
        assert_eq!(judged(1, None, 8).verdict, Verdict::Warning);
        let check = judged(64, Some(2.5), 8);
        assert_eq!(check.verdict, Verdict::Warning);
        assert!(check.found.contains("the time of 2.5 processors"), "{check:?}");
        assert_eq!(judged(64, Some(64.0), 64).verdict, Verdict::Ok);
        let unknown = Processors { online: None, affinity: 0, quota: Some(f64::NAN) };
        assert_eq!(processors(unknown, 1).verdict, Verdict::Warning);
    }
}
