//! The protocol between ranks and switch: an introduction (the secret, and the number of the rank
//! as u32), messages (header and data), and results (data). Numbers are little-endian.

use oxccl_plan::{DataType, ReduceOp};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// The bytes of a group's secret.
pub(crate) const SECRET_BYTES: usize = 16;

/// The bytes of a header: `count u64 · type u8 · operation u8`.
pub(crate) const HEADER_BYTES: usize = 10;

/// The longest time in which the ranks of a group have to come; callers take a function that has
/// not returned after 10 s for one that hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(8);

/// The largest message in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 30;

/// The reduction that a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
}

impl Header {
    /// Returns a header of NCCL's numbers; `None` for what is not reduced.
    pub(crate) fn new(count: usize, dtype: i32, op: i32) -> Option<Self> {
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let fits = count.checked_mul(dtype.size()).is_some_and(|bytes| bytes <= MAX_BYTES);
        (fits && op != ReduceOp::Avg).then_some(Self { count, dtype, op })
    }

    /// Returns the bytes of the data.
    pub(crate) fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&(self.count as u64).to_le_bytes());
        (bytes[8], bytes[9]) = (self.dtype as u8, self.op as u8);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let [count @ .., dtype, op] = *bytes;
        let count = usize::try_from(u64::from_le_bytes(count)).ok()?;
        Self::new(count, dtype.into(), op.into())
    }
}

/// The address of a rank, and the secret of its group if it is the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    pub(crate) secret: [u8; SECRET_BYTES],
}

/// The bytes of a place: `address 16 · port u16 · scope u32`, and the secret.
pub(crate) const PLACE_BYTES: usize = 22 + SECRET_BYTES;

impl Place {
    pub(crate) fn encode(&self) -> [u8; PLACE_BYTES] {
        let (ip, scope) = match self.address {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let mut bytes = [0; PLACE_BYTES];
        bytes[..16].copy_from_slice(&ip.octets());
        bytes[16..18].copy_from_slice(&self.address.port().to_le_bytes());
        bytes[18..22].copy_from_slice(&scope.to_le_bytes());
        bytes[22..].copy_from_slice(&self.secret);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; PLACE_BYTES]) -> Self {
        let (mut ip, mut secret) = ([0; 16], [0; SECRET_BYTES]);
        ip.copy_from_slice(&bytes[..16]);
        secret.copy_from_slice(&bytes[22..]);
        let port = u16::from_le_bytes([bytes[16], bytes[17]]);
        let scope = u32::from_le_bytes([bytes[18], bytes[19], bytes[20], bytes[21]]);
        let ip = Ipv6Addr::from(ip);
        let address = match ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
            None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
        };
        Self { address, secret }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_headers_survive_the_round_trip() {
        for address in ["192.0.2.7:9", "[fe80::1%3]:65535", "[2001:db8::5]:1"] {
            let place = Place { address: address.parse().unwrap(), secret: [7; SECRET_BYTES] };
            assert_eq!(Place::decode(&place.encode()), place);
        }
        let header = Header::new(5, 7, 0).unwrap();
        assert_eq!((Header::decode(&header.encode()), header.bytes()), (Some(header), 20));
    }

    #[test]
    fn averages_unknown_types_and_sizes_without_bound_are_refused() {
        assert!(Header::new(1, 7, 4).is_none() && Header::new(1, 12, 0).is_none());
        assert!(Header::new(1, -1, 0).is_none() && Header::new(usize::MAX, 8, 0).is_none());
        assert!(Header::decode(&[0xff; HEADER_BYTES]).is_none());
    }
}
