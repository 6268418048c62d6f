//! The rates that links are made for, as the system and nvidia-smi tell them.

use super::ranks;
use super::report::Row;
use crate::pci;
use crate::root::Root;
use oxccl_runtime::device::{GpuLinks, Link};
use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

/// The rate that a link is made for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rate {
    /// In one direction, in GB/s.
    pub(super) gbytes_s: f64,
    /// The least rate that data are expected to have, in GB/s: an exchange uses both directions,
    /// and needs processors, threads of GPUs, or copies.
    pub(super) least_gbytes_s: f64,
    /// The link, for texts.
    pub(super) link: String,
}

/// The share of a link's rate that data are expected to have, and what is enough over TCP.
const LEAST_SHARE: f64 = 1.0 / 3.0;
const ENOUGH_BY_TCP_GBYTES_S: f64 = 2.0;

impl Rate {
    pub(super) fn new(gbytes_s: f64, link: String) -> Self {
        Self { gbytes_s, least_gbytes_s: gbytes_s * LEAST_SHARE, link }
    }

    fn over_tcp(gbytes_s: f64, link: String) -> Self {
        let least_gbytes_s = (gbytes_s * LEAST_SHARE).min(ENOUGH_BY_TCP_GBYTES_S);
        Self { gbytes_s, least_gbytes_s, link }
    }
}

/// The rates of the links between ranks, as far as they are known.
#[derive(Default)]
pub(super) struct Rates {
    /// The rates between every two GPUs of this process.
    gpus: Vec<Vec<Option<Rate>>>,
    /// The rates of the interfaces that hosts take, in Mbit/s, by the names of the hosts.
    interfaces: HashMap<String, f64>,
}

impl Rates {
    /// Returns the rates of the GPUs of this process. Asks nvidia-smi about NVLink.
    pub(super) fn of_gpus(root: &Root, gpus: &[GpuLinks]) -> Self {
        let has_nvlink = gpus.iter().any(|gpu| gpu.links.contains(&Link::NvLink));
        let ask = |arguments: &[&str]| match has_nvlink && root.is_real() {
            true => nvidia_smi(arguments).unwrap_or_default(),
            false => String::new(),
        };
        let told = Told {
            numbers: ask(&["--query-gpu=index,pci.bus_id", "--format=csv,noheader"]),
            matrix: ask(&["topo", "-m"]),
            status: ask(&["nvlink", "-s"]),
        };
        let devices = pci::devices(root);
        let of_device = |address: &String| {
            let device = devices.iter().find(|device| device.address == *address)?;
            let link = device.made_for.clone()?;
            Some((device, Rate::new(pcie_gbytes_s(&link)?, link)))
        };
        let pcie = |gpu: &GpuLinks| {
            let (device, own) = of_device(&gpu.pci)?;
            // A slot may have fewer lanes than the card.
            let slot = device.bridges.last().and_then(of_device).map(|(_, slot)| slot);
            slower(Some(own.clone()), slot).or(Some(own))
        };
        let rate = |a: &GpuLinks, b: &GpuLinks, link: Link| match link {
            Link::NvLink => told.nvlink(&a.pci, &b.pci),
            Link::Pcie => slower(pcie(a), pcie(b)),
            // Processors copy here, at a rate that nothing tells.
            Link::HostMemory | Link::Own => None,
        };
        let row =
            |a: &GpuLinks| gpus.iter().zip(&a.links).map(|(b, link)| rate(a, b, *link)).collect();
        Self { gpus: gpus.iter().map(row).collect(), ..Self::default() }
    }

    /// Returns the rates of the interfaces that hosts take, from their checks.
    pub(super) fn of_interfaces(rows: &[Row]) -> Self {
        let rate = |row: &Row| {
            let rate =
                row.check().filter(|check| check.name == "interface")?.facts.get("Mbit/s")?;
            Some((row.host.clone()?, rate.parse().ok()?))
        };
        Self { interfaces: rows.iter().filter_map(rate).collect(), ..Self::default() }
    }

    /// Returns the rate of the link between two ranks on these hosts, whose names are empty where
    /// all are on this one.
    pub(super) fn between(&self, ranks: [u32; 2], hosts: [&str; 2]) -> Option<Rate> {
        if hosts[0] == hosts[1] {
            let count = self.gpus.len().max(1);
            let [a, b] = ranks.map(|rank| rank as usize % count);
            return self.gpus.get(a)?.get(b)?.clone();
        }
        let [a, b] = hosts.map(|host| {
            let rate = *self.interfaces.get(host)?;
            let link = format!("interface of {} Gbit/s", rate / 1e3);
            Some(Rate::over_tcp(rate / 8e3, link))
        });
        slower(a, b)
    }
}

fn slower(a: Option<Rate>, b: Option<Rate>) -> Option<Rate> {
    let (a, b) = a.zip(b)?;
    Some(if a.gbytes_s <= b.gbytes_s { a } else { b })
}

fn nvidia_smi(arguments: &[&str]) -> Option<String> {
    const LIMIT: Duration = Duration::from_secs(20);
    let ended = ranks::limited(Command::new("nvidia-smi").args(arguments), LIMIT).ok()?;
    ended.success.then_some(ended.out)
}

/// Returns the rate of a link of PCIe such as `32.0 GT/s PCIe x16` in one direction, with its
/// encoding: 8 of 10 bits up to 5 GT/s, 128 of 130 above.
fn pcie_gbytes_s(link: &str) -> Option<f64> {
    let speed: f64 = link.split(' ').next()?.parse().ok()?;
    let lanes: f64 = link.rsplit_once('x')?.1.parse().ok()?;
    let share = if speed > 5.0 { 128.0 / 130.0 } else { 0.8 };
    Some(speed * lanes * share / 8.0).filter(|rate| *rate > 0.0)
}

/// The outputs of nvidia-smi.
struct Told {
    /// A line `number, address` for each GPU.
    numbers: String,
    /// The matrix of links, with the number of NVLinks between two GPUs.
    matrix: String,
    /// The NVLinks of each GPU.
    status: String,
}

impl Told {
    /// Returns the rate of the NVLinks between two GPUs, by their addresses.
    fn nvlink(&self, a: &str, b: &str) -> Option<Rate> {
        let (a, b) = (self.number(a)?, self.number(b)?);
        let (links, each) = (self.links(a, b)?, self.gbytes_s(a)?);
        let link = format!("{links} NVLinks of {each:.1} GB/s");
        Some(Rate::new(f64::from(links) * each, link))
    }

    /// Returns the number that nvidia-smi gives the GPU with an address. It writes that with a
    /// domain of eight digits.
    fn number(&self, address: &str) -> Option<u32> {
        let same = |line: &&str| {
            let told = line.split(", ").nth(1).unwrap_or_default().trim().to_ascii_lowercase();
            let parts = |text: &str| {
                let (domain, rest) = text.split_once(':')?;
                Some((u32::from_str_radix(domain, 16).ok()?, rest.to_owned()))
            };
            parts(&told).is_some() && parts(&told) == parts(address)
        };
        self.numbers.lines().find(same)?.split(',').next()?.trim().parse().ok()
    }

    /// Returns the number of NVLinks between two GPUs.
    fn links(&self, a: u32, b: u32) -> Option<u32> {
        let row = |line: &str| -> Vec<String> {
            // The names of the columns may be underlined.
            let plain = line.replace("\u{1b}[4m", "").replace("\u{1b}[0m", "");
            plain.split('\t').map(|cell| cell.trim().to_owned()).collect()
        };
        let mut rows = self.matrix.lines().map(row).skip_while(|row| row.len() < 2);
        let column = rows.next()?.iter().position(|name| *name == format!("GPU{b}"))?;
        let cells = rows.find(|cells| cells[0] == format!("GPU{a}"))?;
        cells.get(column)?.strip_prefix("NV")?.parse().ok()
    }

    /// Returns the rate of an NVLink of a GPU, of which all that are active have the same.
    fn gbytes_s(&self, gpu: u32) -> Option<f64> {
        let begin = format!("GPU {gpu}:");
        let after = self.status.lines().skip_while(|line| !line.starts_with(&begin)).skip(1);
        let mut own = after.take_while(|line| !line.starts_with("GPU "));
        own.find_map(|line| line.split_once(": ")?.1.strip_suffix(" GB/s")?.trim().parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::Check;
    use super::super::report::Item;
    use super::*;

    fn told() -> Told {
        let status = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n\t Link 0: <inactive>\n\t Link 1: \
                      26.562 GB/s\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n\t Link 0: 25 GB/s\n";
        let matrix = "\t\u{1b}[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\u{1b}[0m\nGPU0\t X \tNV18\tPIX\tSYS\t0-51\nGPU1\tNV18\t X \tSYS\tSYS\t0-51\n";
        Told {
            numbers: "0, 00000000:5D:00.0\n1, 00000000:9B:00.0\n2, 00000000:AB:00.0\n".to_owned(),
            matrix: matrix.to_owned(),
            status: status.to_owned(),
        }
    }

    #[test]
    fn nvlinks_are_counted_and_their_rate_is_read() {
        let rate = told().nvlink("0000:5d:00.0", "0000:9b:00.0").expect("a rate");
        assert_eq!((rate.gbytes_s, &*rate.link), (18.0 * 26.562, "18 NVLinks of 26.6 GB/s"));
        let back = told().nvlink("0000:9b:00.0", "0000:5d:00.0").expect("a rate");
        assert_eq!(back.gbytes_s, 18.0 * 25.0);
        assert_eq!(told().nvlink("0000:5d:00.0", "0000:ab:00.0"), None);
        assert_eq!(told().nvlink("0000:5d:00.0", "0000:00:00.0"), None);
        for garbage in ["", "\n", "GPU0\tGPU0", "\t\t\nGPU0", "0, :", "GPU 0:\nGPU 0:\n: GB/s"] {
            let [numbers, matrix, status] = [garbage, garbage, garbage].map(str::to_owned);
            assert_eq!(Told { numbers, matrix, status }.nvlink("0000:5d:00.0", ""), None);
        }
    }

    #[test]
    fn the_rate_of_pcie_is_that_of_its_lanes() {
        let rate = |link| pcie_gbytes_s(link).map(|rate| (rate * 10.0).round() / 10.0);
        assert_eq!(rate("32.0 GT/s PCIe x16"), Some(63.0));
        assert_eq!(rate("5.0 GT/s PCIe x8"), Some(4.0));
        assert_eq!(rate("2.5 GT/s x1"), Some(0.3));
        for garbage in ["", "x", "32.0 GT/s PCIe", "0 x16", "fast x16"] {
            assert_eq!(rate(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn two_hosts_have_the_rate_of_the_slower_interface() {
        let row = |host: &str, rate: u32| Row {
            host: Some(host.to_owned()),
            item: Item::Check(Check::ok("interface", "").fact("Mbit/s", rate)),
        };
        let rates = Rates::of_interfaces(&[row("a", 25_000), row("b", 10_000)]);
        let rate = rates.between([0, 1], ["a", "b"]).expect("a rate");
        assert_eq!((rate.gbytes_s, &*rate.link), (1.25, "interface of 10 Gbit/s"));
        assert!((rate.least_gbytes_s - 0.4167).abs() < 1e-3);
        // TCP does not fill fast ones.
        let fast = Rates::of_interfaces(&[row("a", 400_000), row("b", 400_000)]);
        assert_eq!(fast.between([0, 1], ["a", "b"]).map(|rate| rate.least_gbytes_s), Some(2.0));
        assert_eq!(rates.between([0, 1], ["a", "c"]), None);
        assert_eq!(rates.between([0, 1], ["", ""]), None);
    }
}
