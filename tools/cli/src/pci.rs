//! The devices of PCI as `/sys` shows them.

use crate::root::Root;

/// The folder in which `/sys` lists the devices.
const DEVICES: &str = "sys/bus/pci/devices";

/// A device of PCI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// The address, for example `0000:3b:00.0`.
    pub(crate) address: String,
    /// The class: two digits each for class, subclass and interface.
    pub(crate) class: u32,
    pub(crate) vendor: u32,
    /// The name of the root that the device is below, for example `pci0000:3a`; empty if unknown.
    pub(crate) root: String,
    /// The addresses of the bridges between the root and the device.
    pub(crate) bridges: Vec<String>,
    /// The NUMA node; `None` if the system tells none.
    pub(crate) node: Option<u32>,
    /// The speed and the width of the link, for example `32.0 GT/s PCIe x16`.
    pub(crate) link: Option<String>,
    /// The speed and the width that the device is made for, in the same form.
    pub(crate) made_for: Option<String>,
    /// The number of lanes in use, and the most that the device has; `None` if unknown.
    pub(crate) lanes: Option<(u32, u32)>,
}

const DISPLAY: u32 = 0x03;
const NETWORK: u32 = 0x02;
const BRIDGE: u32 = 0x0604;
/// The vendors of GPUs that compute, as others make controllers of displays only.
const NVIDIA: u32 = 0x10de;
const AMD: u32 = 0x1002;
const INTEL: u32 = 0x8086;

impl Device {
    fn read(root: &Root, address: &str) -> Option<Self> {
        let folder = format!("{DEVICES}/{address}");
        let hexadecimal = |file: &str| {
            let text = root.text(&format!("{folder}/{file}"))?;
            u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
        };
        let text = |file: &str| root.text(&format!("{folder}/{file}"));
        let link = |which: &str| {
            let [speed, width] = ["speed", "width"].map(|of| text(&format!("{which}_link_{of}")));
            match (speed?, width?) {
                (speed, width) if speed != "Unknown" && width != "0" => {
                    Some(format!("{speed} x{width}"))
                }
                _ => None,
            }
        };
        let lanes = |file: &str| root.number(&format!("{folder}/{file}")).filter(|n| *n > 0);
        let lanes = lanes("current_link_width").zip(lanes("max_link_width"));
        let place = root.link(&folder).unwrap_or_default();
        let mut bridges: Vec<String> =
            place.split('/').filter(|part| is_address(part)).map(str::to_owned).collect();
        bridges.pop();
        let above = place.split('/').find(|part| part.starts_with("pci") && part.contains(':'));
        Some(Self {
            address: address.to_owned(),
            class: hexadecimal("class")?,
            vendor: hexadecimal("vendor")?,
            root: above.unwrap_or_default().to_owned(),
            bridges,
            node: root.number(&format!("{folder}/numa_node")),
            link: link("current"),
            made_for: link("max"),
            lanes,
        })
    }

    /// Returns whether this is a GPU of NVIDIA.
    pub(crate) fn is_nvidia_gpu(&self) -> bool {
        self.class >> 16 == DISPLAY && self.vendor == NVIDIA
    }

    /// Returns whether this is a GPU.
    pub(crate) fn is_gpu(&self) -> bool {
        self.class >> 16 == DISPLAY && [NVIDIA, AMD, INTEL].contains(&self.vendor)
    }

    /// Returns whether this is a network adapter.
    pub(crate) fn is_network(&self) -> bool {
        self.class >> 16 == NETWORK
    }

    /// Returns whether this is a bridge to other devices.
    pub(crate) fn is_bridge(&self) -> bool {
        self.class >> 8 == BRIDGE
    }

    /// Returns the vendor's name; `None` for one that is not known here.
    pub(crate) fn vendor_name(&self) -> Option<&'static str> {
        let name = match self.vendor {
            NVIDIA => "NVIDIA",
            AMD => "AMD",
            INTEL => "Intel",
            0x15b3 => "Mellanox",
            0x14e4 => "Broadcom",
            0x1d0f => "Amazon",
            0x1ae0 => "Google",
            0x1af4 => "virtio",
            _ => return None,
        };
        Some(name)
    }
}

/// Returns whether a text is an address such as `0000:3b:00.0`.
pub(crate) fn is_address(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let is_hexadecimal = |part: &&str| part.chars().all(|c| c.is_ascii_hexdigit());
    parts.len() == 4
        && parts.iter().all(|part| !part.is_empty())
        && parts.iter().all(is_hexadecimal)
}

/// Returns the address of the device that a path in `/sys` leads to or through, the last one.
pub(crate) fn address_in(path: &str) -> Option<&str> {
    path.split('/').rfind(|part| is_address(part))
}

/// Returns the devices in the order of their addresses.
pub(crate) fn devices(root: &Root) -> Vec<Device> {
    let addresses = root.names(DEVICES);
    let mut found: Vec<Device> =
        addresses.iter().filter_map(|address| Device::read(root, address)).collect();
    found.sort_by(|a, b| a.address.cmp(&b.address));
    found
}

/// Returns the configuration of a device, as much of it as this process may read.
pub(crate) fn configuration(root: &Root, address: &str) -> Vec<u8> {
    std::fs::read(root.at(&format!("{DEVICES}/{address}/config"))).unwrap_or_default()
}

/// Returns the type of the device's IOMMU group: `None` if it is in no group, and within that if
/// the type cannot be read.
pub(crate) fn iommu_type(root: &Root, address: &str) -> Option<Option<String>> {
    let group = root.link_name(&format!("{DEVICES}/{address}/iommu_group"))?;
    Some(root.text(&format!("sys/kernel/iommu_groups/{group}/type")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_other_names() {
        assert!(is_address("0000:3b:00.0") && is_address("10000:e1:00.0"));
        for text in ["", "pci0000:3a", "0000:3b:00", ":::", "0000:3b:00.x", "a.b"] {
            assert!(!is_address(text), "{text}");
        }
    }
}
