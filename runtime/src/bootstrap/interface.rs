//! The choice of the local address to listen on, by `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY`.

use crate::config::Config;
use crate::error::{Error, Result};
use oxccl_net::interface::{Interface, admitted, found};
use std::net::SocketAddr;

/// Returns the address to use: that of the best interface which the variables admit.
pub fn choose(config: &Config) -> Result<SocketAddr> {
    choose_from(&found()?, &config.socket_ifname, &config.socket_family)
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
    let best = admitted(interfaces, ifname, family).into_iter().next();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_nothing_admits_is_an_error_that_lists_what_there_is() {
        let address = "127.0.0.1:0".parse().unwrap();
        let machine = [Interface { name: "lo".to_owned(), address }];
        let text = choose_from(&machine, "wlan", "").unwrap_err().to_string();
        assert!(text.contains("there are: lo 127.0.0.1"), "{text}");
        assert_eq!(choose_from(&machine, "", "").unwrap(), address);
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
