//! The interfaces of this machine, and the choice by `NCCL_SOCKET_IFNAME` and
//! `NCCL_SOCKET_FAMILY`.

use crate::{Error, Result};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The name, for example `eth0`.
    pub name: String,
    /// The address with port 0; link-local addresses carry their scope.
    pub address: SocketAddr,
}

/// Returns the interfaces of this machine, with each of their addresses.
pub fn found() -> Result<Vec<Interface>> {
    let failed = |e| Error::new("listing network interfaces", e, "is /proc/net readable?");
    let found = if_addrs::get_if_addrs().map_err(failed)?;
    let interface = |i: if_addrs::Interface| {
        let scope = i.index.unwrap_or(0);
        let address = match i.ip() {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddr::V6(SocketAddrV6::new(ip, 0, 0, scope))
            }
            ip => SocketAddr::new(ip, 0),
        };
        Interface { name: i.name, address }
    };
    Ok(found.into_iter().map(interface).collect())
}

/// Returns the name of the interface of this machine that has an address; `None` if none has.
pub fn name_of(ip: IpAddr) -> Option<String> {
    let found = found().ok()?;
    found.into_iter().find(|interface| interface.address.ip() == ip).map(|interface| interface.name)
}

/// Returns the interfaces that the two variables admit, the best first: `ib*`, others, `docker*`,
/// loopback, `virbr*`.
pub fn admitted(interfaces: &[Interface], ifname: &str, family: &str) -> Vec<Interface> {
    let of_family = |i: &&Interface| match family {
        "AF_INET" => i.address.is_ipv4(),
        "AF_INET6" => i.address.is_ipv6(),
        _ => true,
    };
    let admitted = interfaces.iter().filter(of_family).filter(|i| admits(ifname, &i.name));
    let mut admitted: Vec<_> = admitted.cloned().collect();
    let class = |i: &Interface| {
        let last = ["docker", "lo", "virbr"].iter().position(|p| i.name.starts_with(p));
        match last {
            Some(place) => 2 + place,
            None => usize::from(!i.name.starts_with("ib")),
        }
    };
    // IPv4 first within a class: link-local IPv6 addresses are everywhere and reach little.
    admitted.sort_by_key(|i| (class(i), i.address.is_ipv6()));
    admitted
}

/// Returns whether NCCL's filter admits a name: the filter lists prefixes, `^` excludes them, and
/// `=` (also after `^`) compares whole names.
fn admits(filter: &str, name: &str) -> bool {
    if filter.is_empty() {
        return true;
    }
    let (exclude, filter) = filter.strip_prefix('^').map_or((false, filter), |f| (true, f));
    let (exact, filter) = filter.strip_prefix('=').map_or((false, filter), |f| (true, f));
    let listed = filter
        .split(',')
        .filter(|part| !part.is_empty())
        .any(|part| if exact { name == part } else { name.starts_with(part) });
    listed != exclude
}

/// Returns the interfaces of this machine that are devices of a plugin, the best first: of those
/// that the two variables admit one address each, and loopback only where it is asked for or there
/// is nothing else.
pub fn devices(ifname: &str, family: &str) -> Result<Vec<Interface>> {
    Ok(chosen(&found()?, ifname, family))
}

fn chosen(found: &[Interface], names: &str, family: &str) -> Vec<Interface> {
    let mut chosen: Vec<Interface> = Vec::new();
    for interface in admitted(found, names, family) {
        if chosen.iter().all(|other| other.name != interface.name) {
            chosen.push(interface);
        }
    }
    let is_beyond = |i: &Interface| !i.address.ip().is_loopback();
    if names.is_empty() && chosen.iter().any(is_beyond) {
        chosen.retain(is_beyond);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Vec<Interface> {
        [
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "192.0.2.5"),
            ("eth1", "198.51.100.7"),
        ]
        .map(|(name, ip)| {
            let address = SocketAddr::new(ip.parse().unwrap(), 0);
            Interface { name: name.to_owned(), address }
        })
        .to_vec()
    }

    fn chosen(ifname: &str, family: &str) -> String {
        let first = admitted(&machine(), ifname, family).into_iter().next();
        first.map_or_else(|| "none".to_owned(), |i| i.address.ip().to_string())
    }

    #[test]
    fn names_families_and_the_default_order() {
        assert_eq!(chosen("", ""), "192.0.2.5");
        assert_eq!(chosen("eth1", ""), "198.51.100.7");
        assert_eq!(chosen("^eth", ""), "172.17.0.1");
        assert_eq!(chosen("^=eth0", ""), "198.51.100.7");
        assert_eq!(chosen("=lo", "AF_INET6"), "::1");
        assert_eq!(chosen("eth", "AF_INET6"), "fe80::1");
        assert_eq!(chosen("wlan", ""), "none");
    }

    fn names(found: &[(&str, &str)], names: &str) -> Vec<String> {
        let interface = |(name, ip): &(&str, &str)| Interface {
            name: (*name).to_owned(),
            address: SocketAddr::new(ip.parse().unwrap(), 0),
        };
        let found: Vec<_> = found.iter().map(interface).collect();
        let chosen = super::chosen(&found, names, "");
        chosen.iter().map(|i| format!("{} {}", i.name, i.address.ip())).collect()
    }

    #[test]
    fn a_device_is_an_interface_and_loopback_only_where_it_has_to_be() {
        let machine = [
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("eth0", "fe80::1"),
            ("eth0", "192.0.2.5"),
            ("ib0", "198.51.100.7"),
        ];
        assert_eq!(names(&machine, ""), ["ib0 198.51.100.7", "eth0 192.0.2.5"]);
        assert_eq!(names(&machine, "lo,eth"), ["eth0 192.0.2.5", "lo 127.0.0.1"]);
        assert_eq!(names(&machine[..2], ""), ["lo 127.0.0.1"]);
        assert!(names(&[], "").is_empty());
    }
}
