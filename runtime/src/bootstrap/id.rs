//! The unique id: where the rendezvous listens, and the secret by which its members know each
//! other. The secret is never sent, logged or hashed into logs.

use crate::error::{Error, Result};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Size of `ncclUniqueId`.
pub const ID_BYTES: usize = 128;
/// Size of the secret.
pub const SECRET_BYTES: usize = 32;
const MAGIC: &[u8; 8] = b"OXCCLID1";

/// A decoded `ncclUniqueId`.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    /// Where the rendezvous listens.
    pub address: SocketAddr,
    /// The communicator's number, bound into every authentication.
    pub comm: u64,
    /// The secret.
    pub secret: [u8; SECRET_BYTES],
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UniqueId").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Bytes from the system's random generator.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::system("getrandom", e, "the system has no random generator"))?;
    Ok(bytes)
}

impl UniqueId {
    /// A new id for a rendezvous at this address.
    pub fn new(address: SocketAddr) -> Result<Self> {
        Ok(Self { address, comm: u64::from_le_bytes(random()?), secret: random()? })
    }

    /// magic 8 · comm 8 · secret 32 · IPv6 (or mapped IPv4) 16 · scope 4 · port 2 · zeros.
    pub fn encode(&self) -> [u8; ID_BYTES] {
        let (ip, scope) = match self.address {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let mut bytes = [0; ID_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.comm.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.secret);
        bytes[48..64].copy_from_slice(&ip.octets());
        bytes[64..68].copy_from_slice(&scope.to_le_bytes());
        bytes[68..70].copy_from_slice(&self.address.port().to_le_bytes());
        bytes
    }

    /// Reads an id; fails on anything that [`encode`](Self::encode) did not write.
    pub fn decode(bytes: &[u8; ID_BYTES]) -> Result<Self> {
        let bad = || {
            let expected = "an id from this library's ncclGetUniqueId, copied whole (128 bytes)";
            Error::argument("ncclCommInitRank", "commId", "something else", expected)
        };
        if &bytes[..8] != MAGIC || bytes[70..].iter().any(|&b| b != 0) {
            return Err(bad());
        }
        let field = |at: usize| <[u8; 8]>::try_from(&bytes[at..at + 8]).unwrap_or_default();
        let mut ip = [0; 16];
        ip.copy_from_slice(&bytes[48..64]);
        let mut secret = [0; SECRET_BYTES];
        secret.copy_from_slice(&bytes[16..48]);
        let scope = u32::from_le_bytes([bytes[64], bytes[65], bytes[66], bytes[67]]);
        let port = u16::from_le_bytes([bytes[68], bytes[69]]);
        let ip = Ipv6Addr::from(ip);
        let address = match ip.to_ipv4_mapped() {
            Some(_) if scope != 0 => return Err(bad()),
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
            None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
        };
        Ok(Self { address, comm: u64::from_le_bytes(field(8)), secret })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_the_round_trip_and_garbage_is_refused() {
        for address in ["127.0.0.1:4711", "[fe80::1%3]:9", "[::1]:65535"] {
            let id = UniqueId::new(address.parse().unwrap()).unwrap();
            assert_eq!(UniqueId::decode(&id.encode()).unwrap(), id);
            let mut bytes = id.encode();
            bytes[127] = 1;
            assert!(UniqueId::decode(&bytes).is_err());
            assert!(!format!("{id:?}").contains("secret"));
        }
        assert!(UniqueId::decode(&[0; ID_BYTES]).is_err());
    }
}
