//! The options of the plugin, read from NCCL's variables.

use oxccl_net::{Error, Result};
use std::net::IpAddr;
use std::str::FromStr;

/// The most queue pairs of a connection.
pub(crate) const MAX_QUEUE_PAIRS: usize = 16;

/// The advice of errors about variables.
const HINT: &str = "see the book's page about plugins";

/// The options of the plugin, by the variable of each.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// `NCCL_IB_DISABLE`: there are no devices.
    pub(crate) disabled: bool,
    /// `NCCL_IB_HCA`: the adapters and ports to use.
    pub(crate) adapters: Adapters,
    /// `NCCL_IB_GID_INDEX`: the place in the port's table of GIDs; `None` chooses one.
    pub(crate) gid_index: Option<u32>,
    /// `NCCL_IB_ROCE_VERSION_NUM`: 1 or 2, for the choice of a GID.
    pub(crate) roce_version: u32,
    /// `NCCL_IB_ADDR_FAMILY`: whether a GID that holds an IPv6 address is chosen.
    pub(crate) ipv6: bool,
    /// `NCCL_IB_ADDR_RANGE`: the network in which the GID's address has to be.
    pub(crate) network: Option<Network>,
    /// `NCCL_IB_TC`: the traffic class of packets with a global header.
    pub(crate) traffic_class: u8,
    /// `NCCL_IB_FIFO_TC`: that of the packets by which receivers offer memory, as NCCL's do.
    pub(crate) offer_traffic_class: u8,
    /// `NCCL_IB_SL`: the service level.
    pub(crate) service_level: u8,
    /// `NCCL_IB_PKEY`: the place in the port's table of partition keys.
    pub(crate) pkey_index: u16,
    /// `NCCL_IB_TIMEOUT`: an unacknowledged packet is sent again after 4.096 µs · 2^n.
    pub(crate) timeout: u8,
    /// `NCCL_IB_RETRY_CNT`: how often it is sent again.
    pub(crate) retries: u8,
    /// `NCCL_IB_QPS_PER_CONNECTION`: the queue pairs of a connection.
    pub(crate) queue_pairs: usize,
    /// `NCCL_IB_SPLIT_DATA_ON_QPS`: whether each message goes over all queue pairs, not over each
    /// in turn.
    pub(crate) split: bool,
}

impl Options {
    /// Reads the variables through a function that returns a variable's value.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let text = |name: &str| variable(name).unwrap_or_default();
        let gid_index: i64 = number(&variable, "NCCL_IB_GID_INDEX", -1, -1..=65535)?;
        let range = text("NCCL_IB_ADDR_RANGE");
        let network = (!range.is_empty()).then(|| Network::read(&range)).transpose()?;
        let family = text("NCCL_IB_ADDR_FAMILY");
        let traffic_class = number(&variable, "NCCL_IB_TC", 0, 0..=255)?;
        Ok(Self {
            disabled: number(&variable, "NCCL_IB_DISABLE", 0, 0..=1)? == 1,
            adapters: Adapters::from(text("NCCL_IB_HCA").as_str()),
            gid_index: u32::try_from(gid_index).ok(),
            roce_version: number(&variable, "NCCL_IB_ROCE_VERSION_NUM", 2, 1..=2)?,
            ipv6: network.as_ref().map_or(family == "AF_INET6", Network::is_ipv6),
            network,
            traffic_class,
            offer_traffic_class: number(&variable, "NCCL_IB_FIFO_TC", traffic_class, 0..=255)?,
            service_level: number(&variable, "NCCL_IB_SL", 0, 0..=15)?,
            pkey_index: number(&variable, "NCCL_IB_PKEY", 0, 0..=u16::MAX)?,
            timeout: number(&variable, "NCCL_IB_TIMEOUT", 20, 1..=31)?,
            retries: number(&variable, "NCCL_IB_RETRY_CNT", 7, 0..=7)?,
            queue_pairs: number(&variable, "NCCL_IB_QPS_PER_CONNECTION", 1, 1..=MAX_QUEUE_PAIRS)?,
            split: number(&variable, "NCCL_IB_SPLIT_DATA_ON_QPS", 0, 0..=1)? == 1,
        })
    }
}

#[cfg(test)]
impl Options {
    /// Reads these variables, beside which none are set.
    pub(crate) fn of(variables: &[(&str, &str)]) -> Result<Self> {
        Self::read(|name| {
            let found = variables.iter().find(|(of, _)| *of == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }
}

/// Reads a variable that is a number within limits.
fn number<T: FromStr + PartialOrd + std::fmt::Debug>(
    variable: impl Fn(&str) -> Option<String>,
    name: &str,
    default: T,
    limits: std::ops::RangeInclusive<T>,
) -> Result<T> {
    let Some(text) = variable(name).filter(|text| !text.is_empty()) else { return Ok(default) };
    let read = text.trim().parse().ok().filter(|value| limits.contains(value));
    let wrong = || {
        let (first, last) = (limits.start(), limits.end());
        let cause = format!("it is {text:?}; a number from {first:?} to {last:?} is expected");
        Error::new(format!("reading {name}"), cause, HINT)
    };
    read.ok_or_else(wrong)
}

/// A network that `NCCL_IB_ADDR_RANGE` names: an address, `/`, and how many of its first bits
/// count.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    text: String,
    address: IpAddr,
    bits: u32,
}

impl Network {
    fn read(text: &str) -> Result<Self> {
        let network = text.trim().split_once('/').and_then(|(address, bits)| {
            let address: IpAddr = address.parse().ok()?;
            let (bits, most) = (bits.parse().ok()?, if address.is_ipv4() { 32 } else { 128 });
            (bits <= most).then(|| Self { text: text.trim().to_owned(), address, bits })
        });
        network.ok_or_else(|| {
            let cause = format!(
                "it is {text:?}; a network such as 192.0.2.0/24 or 2001:db8::/32 is expected"
            );
            Error::new("reading NCCL_IB_ADDR_RANGE", cause, HINT)
        })
    }

    fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }

    /// Returns whether an address is in the network.
    pub(crate) fn holds(&self, address: IpAddr) -> bool {
        let differ = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        differ >= self.bits
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// The adapters and ports that `NCCL_IB_HCA` admits: `name[:port]`, separated by commas. Names are
/// prefixes, or whole after `=`; a leading `^` excludes what is listed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adapters {
    excludes: bool,
    exact: bool,
    listed: Vec<(String, Option<u8>)>,
}

impl From<&str> for Adapters {
    fn from(text: &str) -> Self {
        let (excludes, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let entry = |entry: &str| {
            // Rail and plane may follow, which say nothing about the choice.
            let mut parts = entry.split(':');
            let name = parts.next().unwrap_or_default().trim().to_owned();
            (name, parts.next().and_then(|port| port.trim().parse().ok()))
        };
        let listed = text.split(',').filter(|part| !part.trim().is_empty()).map(entry).collect();
        Self { excludes, exact, listed }
    }
}

impl Adapters {
    /// Returns whether any port of an adapter may be admitted.
    pub(crate) fn admit_adapter(&self, adapter: &str) -> bool {
        (1..=u8::MAX).any(|port| self.admit(adapter, port))
    }

    /// Returns whether a port of an adapter is admitted.
    pub(crate) fn admit(&self, adapter: &str, port: u8) -> bool {
        let is = |(name, of): &(String, Option<u8>)| {
            let named = if self.exact { adapter == name } else { adapter.starts_with(name) };
            named && of.is_none_or(|of| of == port)
        };
        self.listed.is_empty() || self.listed.iter().any(is) != self.excludes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_admitted_as_in_nccl() {
        let admitted = |text: &str| {
            let adapters = Adapters::from(text);
            let ports = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("rxe0", 1)];
            let is = ports.iter().filter(|(name, port)| adapters.admit(name, *port));
            is.map(|(name, port)| format!("{name}:{port}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(admitted(""), "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1 rxe0:1");
        assert_eq!(admitted("mlx5_1"), "mlx5_1:1 mlx5_1:2 mlx5_10:1");
        assert_eq!(admitted("=mlx5_1"), "mlx5_1:1 mlx5_1:2");
        assert_eq!(admitted("=mlx5_1:2,rxe0"), "mlx5_1:2 rxe0:1");
        assert_eq!(admitted("^mlx5"), "rxe0:1");
        assert_eq!(admitted("^=mlx5_1:1,rxe0:2"), "mlx5_0:1 mlx5_1:2 mlx5_10:1 rxe0:1");
        assert_eq!(admitted("rxe0:1:0:1"), "rxe0:1");
    }

    #[test]
    fn numbers_have_nccls_defaults_and_wrong_ones_are_named() {
        let options = Options::of(&[]).unwrap();
        assert_eq!((options.timeout, options.retries, options.queue_pairs), (20, 7, 1));
        assert_eq!((options.gid_index, options.roce_version, options.disabled), (None, 2, false));
        let variables = [("NCCL_IB_GID_INDEX", "3"), ("NCCL_IB_TIMEOUT", " 14 ")];
        let options = Options::of(&variables).unwrap();
        assert_eq!((options.gid_index, options.timeout), (Some(3), 14));
        let variables = [("NCCL_IB_QPS_PER_CONNECTION", "4"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")];
        let options = Options::of(&variables).unwrap();
        assert_eq!((options.queue_pairs, options.split), (4, true));
        assert!(Options::of(&[("NCCL_IB_DISABLE", "1")]).unwrap().disabled);
        let error = Options::of(&[("NCCL_IB_RETRY_CNT", "8")]).unwrap_err().to_string();
        assert!(error.contains("reading NCCL_IB_RETRY_CNT: it is \"8\""), "{error}");
        assert!(error.contains("from 0 to 7"), "{error}");
    }

    #[test]
    fn traffic_classes_of_offers_are_those_of_data_unless_they_are_set() {
        let classes = |variables: &[(&str, &str)]| {
            let options = Options::of(variables).unwrap();
            (options.traffic_class, options.offer_traffic_class)
        };
        assert_eq!(classes(&[("NCCL_IB_TC", "106")]), (106, 106));
        assert_eq!(classes(&[("NCCL_IB_TC", "106"), ("NCCL_IB_FIFO_TC", "192")]), (106, 192));
    }

    #[test]
    fn networks_hold_the_addresses_with_their_first_bits() {
        let holds = |text: &str, address: &str| {
            Network::read(text).unwrap().holds(address.parse().unwrap())
        };
        assert!(holds("192.0.2.77/24", "192.0.2.1") && !holds("192.0.2.0/24", "192.0.3.1"));
        assert!(holds("192.0.2.0/23", "192.0.3.1") && holds("0.0.0.0/0", "198.51.100.1"));
        assert!(holds("192.0.2.1/32", "192.0.2.1") && !holds("192.0.2.1/32", "192.0.2.0"));
        assert!(holds("2001:db8::/32", "2001:db8:1::1") && !holds("::/0", "192.0.2.1"));
        for wrong in ["192.0.2.0", "192.0.2.0/33", "::/129", "here/8", "192.0.2.0/-1", "/"] {
            let error = Options::of(&[("NCCL_IB_ADDR_RANGE", wrong)]).unwrap_err().to_string();
            assert!(
                error.contains(&format!("reading NCCL_IB_ADDR_RANGE: it is {wrong:?}")),
                "{error}"
            );
        }
        let variables =
            [("NCCL_IB_ADDR_RANGE", "2001:db8::/32"), ("NCCL_IB_ADDR_FAMILY", "AF_INET")];
        assert!(Options::of(&variables).unwrap().ipv6);
    }
}
