//! The choice of the local address to listen on, by `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY`.

use crate::config::Config;
use crate::error::{Error, Result};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The name, for example `eth0`.
    pub name: String,
    /// The address with port 0; link-local addresses carry their scope.
    pub address: SocketAddr,
}

/// Returns the address to use: of the interfaces that the variables admit, the first in the order
/// `ib*`, others, `docker*`, loopback, `virbr*`.
pub fn choose(config: &Config) -> Result<SocketAddr> {
    let failed = |e| Error::system("listing network interfaces", e, "is /proc/net readable?");
    let found = if_addrs::get_if_addrs().map_err(failed)?;
    let interfaces: Vec<_> = found
        .into_iter()
        .map(|i| {
            let scope = i.index.unwrap_or(0);
            let address = match i.ip() {
                IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                    SocketAddr::V6(SocketAddrV6::new(ip, 0, 0, scope))
                }
                ip => SocketAddr::new(ip, 0),
            };
            Interface { name: i.name, address }
        })
        .collect();
    choose_from(&interfaces, &config.socket_ifname, &config.socket_family)
}

/// Returns the address to use for connections that belong to a rendezvous at `address`. If that is
/// a loopback address, all stays on loopback, as nobody else can come to the rendezvous either.
pub fn beside(address: SocketAddr, config: &Config) -> Result<SocketAddr> {
    match address.ip() {
        ip if ip.is_loopback() => Ok(SocketAddr::new(ip, 0)),
        _ => choose(config),
    }
}

pub(crate) fn choose_from(
    interfaces: &[Interface],
    ifname: &str,
    family: &str,
) -> Result<SocketAddr> {
    let of_family = |i: &&Interface| match family {
        "AF_INET" => i.address.is_ipv4(),
        "AF_INET6" => i.address.is_ipv6(),
        _ => true,
    };
    let admitted: Vec<_> =
        interfaces.iter().filter(of_family).filter(|i| admits(ifname, &i.name)).collect();
    let class = |i: &Interface| {
        let last = ["docker", "lo", "virbr"].iter().position(|p| i.name.starts_with(p));
        match last {
            Some(place) => 2 + place,
            None => usize::from(!i.name.starts_with("ib")),
        }
    };
    // IPv4 first within a class: link-local IPv6 addresses are everywhere and reach little.
    let best = admitted.into_iter().min_by_key(|i| (class(i), i.address.is_ipv6()));
    best.map(|i| i.address).ok_or_else(|| {
        let all: Vec<_> =
            interfaces.iter().map(|i| format!("{} {}", i.name, i.address.ip())).collect();
        let why = format!(
            "no interface admitted by NCCL_SOCKET_IFNAME={ifname:?} and \
             NCCL_SOCKET_FAMILY={family:?}; there are: {}",
            all.join(", ")
        );
        Error::Init { why }
    })
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
        choose_from(&machine(), ifname, family)
            .map_or_else(|e| e.to_string(), |a| a.ip().to_string())
    }

    #[test]
    fn names_families_and_the_default_order() {
        assert_eq!(chosen("", ""), "192.0.2.5");
        assert_eq!(chosen("eth1", ""), "198.51.100.7");
        assert_eq!(chosen("^eth", ""), "172.17.0.1");
        assert_eq!(chosen("^=eth0", ""), "198.51.100.7");
        assert_eq!(chosen("=lo", "AF_INET6"), "::1");
        assert_eq!(chosen("eth", "AF_INET6"), "fe80::1");
        assert!(chosen("wlan", "").contains("there are: lo 127.0.0.1"));
    }

    #[test]
    fn what_belongs_to_a_rendezvous_on_loopback_stays_there() {
        let config = Config::from_lookup(|_| None);
        for at in ["127.0.0.1:4000", "127.0.0.9:1", "[::1]:7"] {
            let at: SocketAddr = at.parse().unwrap();
            assert_eq!(beside(at, &config).unwrap(), SocketAddr::new(at.ip(), 0));
        }
        let elsewhere = "192.0.2.7:4000".parse().unwrap();
        assert_eq!(beside(elsewhere, &config).ok(), choose(&config).ok());
    }
}
