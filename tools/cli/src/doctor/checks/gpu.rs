//! The driver of NVIDIA, its modules, and what lies between GPUs and adapters.

use super::Check;
use oxccl_plan::words::counted;
use oxccl_runtime::device::{GpuLinks, Link};

/// The oldest version of the driver that the library takes.
const OLDEST: u32 = 580;
const NO_GPU: &str = "There is no GPU of NVIDIA.";

/// Returns the version in the text of `/proc/driver/nvidia/version`, such as `580.65.06`.
pub(crate) fn version(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version = |word: &&str| {
        let mut parts = word.split('.');
        let number = |part: &str| part.parse::<u32>().is_ok();
        word.contains('.') && parts.all(number)
    };
    line.split_whitespace().find(is_version)
}

/// Judges the version of the driver; `None` if there is no driver. `gpus` are those of NVIDIA that
/// the machine has.
pub(in crate::doctor) fn driver(text: Option<&str>, gpus: usize) -> Check {
    const NAME: &str = "NVIDIA driver";
    let install = "Install an NVIDIA driver of version 580 or newer, and start containers with \
                   --gpus all.";
    let shown = counted(gpus, "GPU of NVIDIA", "GPUs of NVIDIA");
    match (text.map(version), gpus) {
        (None, 0) => Check::not_applicable(NAME, NO_GPU),
        (None, _) => Check::failure(
            NAME,
            format!("The machine has {shown}, but no driver: ranks would use host memory."),
            install,
        ),
        (Some(None), _) => {
            let found = "The version of the driver in /proc/driver/nvidia/version cannot be read.";
            Check::not_applicable(NAME, found)
        }
        (Some(Some(version)), _) => {
            let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
            let found = format!("The driver has version {version}.");
            let check = match major.is_some_and(|major| major >= OLDEST) {
                true => Check::ok(NAME, found),
                false => Check::failure(
                    NAME,
                    format!("{found} The library needs {OLDEST}: ranks would use host memory."),
                    install,
                ),
            };
            check.fact("version", version)
        }
    }
}

/// Returns whether `/proc/modules` lists a module.
fn has_module(modules: &str, name: &str) -> bool {
    modules.lines().any(|line| line.split_whitespace().next() == Some(name))
}

/// Judges the kernel modules of the driver, from `/proc/modules`.
pub(in crate::doctor) fn modules(modules: Option<&str>, gpus: usize) -> Check {
    const NAME: &str = "NVIDIA modules";
    if gpus == 0 {
        return Check::not_applicable(NAME, NO_GPU);
    }
    let Some(modules) = modules else {
        return Check::not_applicable(NAME, "/proc/modules cannot be read.");
    };
    let needed = ["nvidia", "nvidia_uvm"];
    let missing: Vec<&str> = needed.into_iter().filter(|name| !has_module(modules, name)).collect();
    match missing.is_empty() {
        true => Check::ok(NAME, "The kernel has loaded nvidia and nvidia_uvm."),
        false => Check::failure(
            NAME,
            format!("The kernel has not loaded {}: CUDA cannot start.", missing.join(" and ")),
            "Load them with modprobe, or run nvidia-smi and nvidia-modprobe -u as root.",
        ),
    }
}

/// Judges whether adapters for RDMA reach the memory of GPUs: by the module nvidia_peermem, or by
/// dma-buf with the open kernel modules, which the text of the driver's version tells.
pub(in crate::doctor) fn gpudirect(
    modules: Option<&str>,
    driver: Option<&str>,
    (gpus, adapters): (usize, usize),
) -> Check {
    const NAME: &str = "GPUDirect RDMA";
    if gpus == 0 || adapters == 0 {
        let found = "The machine does not have both GPUs of NVIDIA and adapters for RDMA.";
        return Check::not_applicable(NAME, found);
    }
    if driver.is_some_and(|text| text.contains("Open Kernel Module")) {
        let found = "Adapters reach the memory of GPUs by dma-buf, with the open kernel modules.";
        return Check::ok(NAME, found);
    }
    match modules {
        Some(modules) if has_module(modules, "nvidia_peermem") => {
            let found = "Adapters reach the memory of GPUs by the module nvidia_peermem.";
            Check::ok(NAME, found)
        }
        _ => Check::warning(
            NAME,
            "The driver has neither open kernel modules nor the module nvidia_peermem: messages of \
             GPUs pass through host memory.",
            "Load nvidia_peermem with modprobe, or install the open kernel modules of the driver.",
        ),
    }
}

/// The IOMMUs of the machine.
#[derive(Clone, Debug, Default)]
pub(in crate::doctor) struct Iommu {
    /// The number of IOMMUs.
    pub(in crate::doctor) units: usize,
    /// The types of the groups with GPUs or adapters, such as `DMA` or `identity`; `None` for a
    /// type that cannot be read.
    pub(in crate::doctor) types: Vec<Option<String>>,
}

/// Judges whether an IOMMU translates what GPUs and adapters access.
pub(in crate::doctor) fn iommu(found: &Iommu, devices: usize) -> Check {
    const NAME: &str = "IOMMU";
    if devices == 0 {
        let found = "There is no GPU and no adapter for RDMA.";
        return Check::not_applicable(NAME, found);
    }
    if found.units == 0 && found.types.is_empty() {
        return Check::ok(NAME, "The system shows no IOMMU.");
    }
    let known: Vec<&str> = found.types.iter().flatten().map(String::as_str).collect();
    if known.iter().any(|kind| kind.starts_with("DMA")) {
        let text = "An IOMMU translates the accesses of GPUs or adapters: peer access over PCIe is \
                    slow, or does not work.";
        let advice = "Boot with iommu=pt, or disable VT-d or AMD-Vi in the firmware, unless the \
                      machine passes devices to virtual machines.";
        return Check::warning(NAME, text, advice).fact("translates", "yes");
    }
    if known.len() < found.types.len() {
        return Check::not_applicable(NAME, "There is an IOMMU whose mode cannot be read.");
    }
    let text = "An IOMMU is there and does not translate the accesses of GPUs and adapters.";
    Check::ok(NAME, text).fact("translates", "no")
}

/// Judges whether GPUs and adapters use all lanes that they have. `lanes` are the address, the
/// lanes in use, and the most, of each that tells. Speeds are not judged: idle GPUs lower them.
pub(in crate::doctor) fn lanes(lanes: &[(String, u32, u32)]) -> Check {
    const NAME: &str = "PCI lanes";
    if lanes.is_empty() {
        return Check::not_applicable(NAME, "No GPU and no adapter for RDMA tells its lanes.");
    }
    let fewer = lanes.iter().filter(|(_, used, most)| used < most);
    let fewer: Vec<String> =
        fewer.map(|(address, used, most)| format!("{address} ({used} of {most})")).collect();
    if fewer.is_empty() {
        let count = lanes.len();
        let found = format!("GPUs and adapters use all of their lanes, as {count} of them tell.");
        return Check::ok(NAME, found);
    }
    let found =
        format!("These GPUs or adapters do not use all of their lanes: {}.", fewer.join(", "));
    let advice =
        "Seat the card anew, and compare its slot with the card: some slots have fewer lanes.";
    Check::warning(NAME, found, advice)
}

/// Returns the control word of ACS in the configuration of a PCI device; `None` if the device has
/// none. Fails if the part with extended capabilities was not readable.
fn acs_control(config: &[u8]) -> Result<Option<u16>, ()> {
    /// The first extended capability.
    const FIRST: usize = 0x100;
    const ACS: u32 = 0xd;
    /// More capabilities than fit.
    const MOST: usize = 1024;
    let word = |at: usize| -> Result<u32, ()> {
        let bytes = config.get(at..at + 4).ok_or(())?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let mut at = FIRST;
    for _ in 0..MOST {
        let head = word(at)?;
        if head == 0 || head == u32::MAX {
            break;
        }
        if head & 0xffff == ACS {
            return Ok(Some((word(at + 4)? >> 16) as u16));
        }
        at = (head >> 20) as usize & !3;
        if at < FIRST {
            break;
        }
    }
    Ok(None)
}

/// Judges Access Control Services from the configuration of each bridge of PCI, with its address.
pub(in crate::doctor) fn acs(bridges: &[(String, Vec<u8>)], gpus: usize) -> Check {
    const NAME: &str = "PCI ACS";
    /// Requests or completions are redirected to the root, or their sources are validated.
    const REDIRECTS: u16 = 0b1101;
    if gpus == 0 {
        return Check::not_applicable(NAME, NO_GPU);
    }
    if bridges.is_empty() {
        return Check::not_applicable(NAME, "The system shows no bridge of PCI.");
    }
    let read = bridges.iter().map(|(address, config)| (address, acs_control(config)));
    let on: Vec<&str> = read
        .clone()
        .filter(|(_, control)| control.is_ok_and(|c| c.is_some_and(|c| c & REDIRECTS != 0)))
        .map(|(address, _)| address.as_str())
        .collect();
    if !on.is_empty() {
        let found = format!(
            "ACS sends what GPUs exchange below these bridges to the root of PCI: {}.",
            on.join(", ")
        );
        let advice = "Disable ACS in the firmware, or on these bridges as root with setpci -s \
                      ADDRESS ECAP_ACS+6.w=0, unless the machine passes devices to virtual machines.";
        return Check::warning(NAME, found, advice);
    }
    match read.filter(|(_, control)| control.is_err()).count() {
        0 => Check::ok(NAME, "No bridge of PCI redirects what GPUs exchange."),
        hidden => Check::not_applicable(
            NAME,
            format!(
                "The system shows the settings of {} only to root: run this as root to see them.",
                counted(hidden, "bridge", "bridges")
            ),
        ),
    }
}

/// Judges the messages of the kernel about failures of GPUs. `log` is the text of `/dev/kmsg`, or
/// why that cannot be read.
pub(in crate::doctor) fn xid(log: Result<&str, &str>, gpus: usize) -> Check {
    const NAME: &str = "Xid messages";
    /// The messages that are shown.
    const SHOWN: usize = 3;
    if gpus == 0 {
        return Check::not_applicable(NAME, NO_GPU);
    }
    let log = match log {
        Ok(log) => log,
        Err(why) => {
            let found = format!("The kernel's messages cannot be read ({why}): run this as root.");
            return Check::not_applicable(NAME, found);
        }
    };
    let messages: Vec<&str> =
        log.lines().filter_map(|line| Some(&line[line.find("NVRM: Xid")?..])).collect();
    if messages.is_empty() {
        let found = "The kernel has no message about a failure of a GPU (Xid) since it started, or \
                     has dropped it.";
        return Check::ok(NAME, found);
    }
    let last = messages[messages.len().saturating_sub(SHOWN)..].join("; ");
    let count = counted(messages.len(), "message", "messages");
    let advice = "Look the number after the address up in NVIDIA's list of Xid errors; 48, 63, 64, \
                  74, 79, 94 and 95 tell of memory, NVLink or a GPU that is lost.";
    Check::warning(NAME, format!("The kernel has {count} about GPUs, the last: {last}."), advice)
}

/// Judges the errors in memory that nvidia-smi tells, as a line `index, uncorrected` for each GPU,
/// or why it cannot be asked.
pub(in crate::doctor) fn ecc(lines: Result<&str, &str>, gpus: usize) -> Check {
    const NAME: &str = "ECC";
    if gpus == 0 {
        return Check::not_applicable(NAME, NO_GPU);
    }
    let lines = match lines {
        Ok(lines) => lines,
        Err(why) => {
            return Check::not_applicable(NAME, format!("nvidia-smi cannot be asked: {why}."));
        }
    };
    let rows = lines.lines().filter_map(|line| line.split_once(','));
    let rows: Vec<(&str, Option<u64>)> =
        rows.map(|(gpu, count)| (gpu.trim(), count.trim().parse().ok())).collect();
    let bad = rows.iter().filter(|(_, count)| count.is_some_and(|count| count > 0));
    let bad: Vec<String> =
        bad.map(|(gpu, count)| format!("GPU {gpu} has {}", count.unwrap_or(0))).collect();
    if !bad.is_empty() {
        let found = format!("Errors in memory that could not be corrected: {}.", bad.join(", "));
        let advice = "Reset these GPUs when no job uses them (nvidia-smi -r), and have those that \
                      show errors again replaced.";
        return Check::failure(NAME, found, advice);
    }
    match rows.iter().filter(|(_, count)| count.is_some()).count() {
        0 => Check::not_applicable(NAME, "nvidia-smi tells of no ECC."),
        known => Check::ok(
            NAME,
            format!(
                "{} without errors that could not be corrected.",
                counted(known, "GPU", "GPUs")
            ),
        ),
    }
}

/// Judges how the GPUs of this process reach each other; `forbidden` says that variables keep the
/// library from using that.
pub(in crate::doctor) fn peer_access(gpus: &[GpuLinks], forbidden: bool) -> Check {
    const NAME: &str = "peer access";
    if gpus.len() < 2 {
        let found = "This process sees fewer than two GPUs.";
        return Check::not_applicable(NAME, found);
    }
    let pairs = || gpus.iter().flat_map(|gpu| gpu.links.iter().enumerate().map(move |l| (gpu, l)));
    let count = |wanted: Link| {
        pairs().filter(|(gpu, (peer, link))| (*peer as i32) > gpu.index && **link == wanted).count()
    };
    let [nvlink, pcie] = [count(Link::NvLink), count(Link::Pcie)];
    let apart: Vec<String> = pairs()
        .filter(|(gpu, (peer, link))| (*peer as i32) > gpu.index && **link == Link::HostMemory)
        .map(|(gpu, (peer, _))| format!("{} and {peer}", gpu.index))
        .collect();
    let check = if forbidden {
        Check::warning(
            NAME,
            "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access: data pass through host memory.",
            "Unset these variables, unless peer access fails on this machine.",
        )
    } else if !apart.is_empty() {
        Check::warning(
            NAME,
            format!(
                "Some GPUs do not reach each other's memory, and their data pass through host \
                 memory: {}.",
                apart.join(", ")
            ),
            "See IOMMU and PCI ACS, and whether the virtual machine or container hides the links.",
        )
    } else {
        let [nvlink, pcie] = [nvlink, pcie].map(|number| counted(number, "pair", "pairs"));
        let text = format!("All GPUs reach each other: {nvlink} over NVLink, {pcie} over PCIe.");
        Check::ok(NAME, text)
    };
    check.fact("pairs over NVLink", nvlink).fact("pairs over PCIe", pcie).fact("GPUs", gpus.len())
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    const VERSION: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 \
                           07:00:00 UTC 2025\nGCC version:  gcc version 13.3.0\n";
    const OPEN: &str =
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release";
    const GARBAGE: [&str; 4] = ["", "\u{fffd}\n\n:", "NVRM version:", "nvidia"];

    #[test]
    fn the_driver_is_new_old_missing_or_not_readable() {
        let check = driver(Some(VERSION), 8);
        assert_eq!((check.verdict, &*check.facts["version"]), (Verdict::Ok, "580.65.06"));
        assert_eq!(driver(Some(OPEN), 8).verdict, Verdict::Failure);
        assert_eq!(driver(None, 8).verdict, Verdict::Failure);
        assert_eq!(driver(None, 0).verdict, Verdict::NotApplicable);
        for text in GARBAGE {
            assert_eq!(driver(Some(text), 1).verdict, Verdict::NotApplicable, "{text}");
        }
    }

    #[test]
    fn modules_are_there_or_named() {
        let text = "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0 (POE)\n";
        assert_eq!(modules(Some(text), 1).verdict, Verdict::Ok);
        assert_eq!(modules(Some(text), 0).verdict, Verdict::NotApplicable);
        assert_eq!(modules(None, 1).verdict, Verdict::NotApplicable);
        let check = modules(Some("nvidia_drm 1\nnvidia 2\n"), 1);
        assert_eq!(check.verdict, Verdict::Failure);
        assert!(check.found.contains("not loaded nvidia_uvm"), "{check:?}");
        assert_eq!(modules(Some(""), 1).verdict, Verdict::Failure);
        let judged = |modules, driver, both| gpudirect(modules, driver, both).verdict;
        assert_eq!(judged(Some("nvidia_peermem 1"), Some(VERSION), (8, 8)), Verdict::Ok);
        assert_eq!(judged(Some("nvidia 1"), Some(OPEN), (8, 8)), Verdict::Ok);
        assert_eq!(judged(Some("nvidia 1"), Some(VERSION), (8, 8)), Verdict::Warning);
        assert_eq!(judged(None, None, (8, 8)), Verdict::Warning);
        assert_eq!(judged(None, None, (8, 0)), Verdict::NotApplicable);
    }

    #[test]
    fn an_iommu_translates_or_does_not() {
        let of = |types: &[Option<&str>]| {
            let types = types.iter().map(|kind| kind.map(str::to_owned)).collect();
            iommu(&Iommu { units: 1, types }, 1).verdict
        };
        assert_eq!(of(&[Some("identity")]), Verdict::Ok);
        assert_eq!(of(&[Some("identity"), Some("DMA-FQ")]), Verdict::Warning);
        assert_eq!(of(&[None, Some("identity")]), Verdict::NotApplicable);
        assert_eq!(of(&[Some("?")]), Verdict::Ok);
        assert_eq!(iommu(&Iommu::default(), 1).verdict, Verdict::Ok);
        assert_eq!(iommu(&Iommu::default(), 0).verdict, Verdict::NotApplicable);
    }

    /// Returns the configuration of a device with ACS as its second extended capability.
    fn config(control: u16) -> Vec<u8> {
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&(0x1_u32 | 1 << 16 | 0x148 << 20).to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&(0xd_u32 | 1 << 16).to_le_bytes());
        config[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        config
    }

    #[test]
    fn acs_is_read_from_the_configuration_of_bridges() {
        let of = |configs: &[Vec<u8>]| {
            let named = configs.iter().map(|config| ("0000:00:01.0".to_owned(), config.clone()));
            acs(&named.collect::<Vec<_>>(), 2)
        };
        assert_eq!(of(&[config(0)]).verdict, Verdict::Ok);
        let check = of(&[config(0x1d), config(0)]);
        assert_eq!(check.verdict, Verdict::Warning);
        assert!(check.found.ends_with("0000:00:01.0."), "{check:?}");
        assert_eq!(of(&[vec![0; 4096], vec![0xff; 4096]]).verdict, Verdict::Ok);
        // A list that goes in a circle, and one that leads outside.
        let [mut circle, mut outside] = [vec![0; 4096], vec![0; 4096]];
        circle[0x100..0x104].copy_from_slice(&(0x1_u32 | 0x100 << 20).to_le_bytes());
        outside[0x100..0x104].copy_from_slice(&(0x1_u32 | 0xfff << 20).to_le_bytes());
        assert_eq!(of(&[circle, outside]).verdict, Verdict::Ok);
        for hidden in [vec![], vec![0; 64], vec![0; 256]] {
            let check = of(&[hidden, config(0)]);
            assert_eq!(check.verdict, Verdict::NotApplicable);
            assert!(check.found.contains("1 bridge only to root"), "{check:?}");
        }
        assert_eq!(acs(&[], 2).verdict, Verdict::NotApplicable);
        assert_eq!(acs(&[], 0).verdict, Verdict::NotApplicable);
    }

    #[test]
    fn messages_about_failed_gpus_are_shown() {
        let line = "6,1,2,-;NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus.";
        assert_eq!(xid(Ok("6,1,1,-;usb: new device\n"), 1).verdict, Verdict::Ok);
        let check = xid(Ok(&format!("6,1,1,-;x\n{line}\n{line}\n")), 1);
        assert_eq!(check.verdict, Verdict::Warning);
        assert!(check.found.contains("2 messages about GPUs"), "{check:?}");
        assert!(check.found.contains("NVRM: Xid (PCI:0000:07:00): 79"), "{check:?}");
        assert_eq!(xid(Err("no permission"), 1).verdict, Verdict::NotApplicable);
        assert_eq!(xid(Ok(line), 0).verdict, Verdict::NotApplicable);
        GARBAGE.iter().for_each(|text| assert_eq!(xid(Ok(text), 1).verdict, Verdict::Ok));
    }

    #[test]
    fn errors_in_memory_are_failures() {
        assert_eq!(ecc(Ok("0, 0\n1, 0\n"), 2).verdict, Verdict::Ok);
        let check = ecc(Ok("0, 0\n1, 7\n"), 2);
        assert_eq!(check.verdict, Verdict::Failure);
        assert!(check.found.contains("GPU 1 has 7"), "{check:?}");
        assert_eq!(ecc(Ok("0, [N/A]\n"), 1).verdict, Verdict::NotApplicable);
        assert_eq!(ecc(Err("it is missing"), 1).verdict, Verdict::NotApplicable);
        for text in GARBAGE.into_iter().chain(["a, b", ",", "0, -1"]) {
            assert_eq!(ecc(Ok(text), 1).verdict, Verdict::NotApplicable, "{text}");
        }
    }

    #[test]
    fn gpus_that_do_not_reach_each_other_are_named() {
        let of = |links: [[Link; 3]; 3]| -> Vec<GpuLinks> {
            let gpu = |(index, links): (usize, [Link; 3])| GpuLinks {
                index: index as i32,
                pci: format!("0000:0{index}:00.0"),
                links: links.to_vec(),
            };
            links.into_iter().enumerate().map(gpu).collect()
        };
        let (own, nv, none) = (Link::Own, Link::NvLink, Link::HostMemory);
        let all = of([[own, nv, Link::Pcie], [nv, own, nv], [Link::Pcie, nv, own]]);
        let check = peer_access(&all, false);
        assert_eq!(check.verdict, Verdict::Ok);
        assert!(check.found.contains("2 pairs over NVLink, 1 pair over PCIe"), "{check:?}");
        assert_eq!(peer_access(&all, true).verdict, Verdict::Warning);
        let check = peer_access(&of([[own, nv, none], [nv, own, none], [none, none, own]]), false);
        assert_eq!(check.verdict, Verdict::Warning);
        assert!(check.found.ends_with("0 and 2, 1 and 2."), "{check:?}");
        assert_eq!(peer_access(&all[..1], false).verdict, Verdict::NotApplicable);
        assert_eq!(peer_access(&[], true).verdict, Verdict::NotApplicable);
    }
}
