//! The unique id: the address of the rendezvous, and the secret by which its members know each
//! other. The secret is never sent, logged or hashed into logs.

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Size of `ncclUniqueId`.
pub const ID_BYTES: usize = 128;
/// Size of the secret.
pub const SECRET_BYTES: usize = 32;
const MAGIC: &[u8; 8] = b"OXCCLID1";

/// Size of an encoded address.
pub const ADDRESS_BYTES: usize = 22;

/// Encodes an address in bytes: IPv6 (or mapped IPv4) 16 · scope 4 · port 2.
pub fn encode_address(address: SocketAddr) -> [u8; ADDRESS_BYTES] {
    let (ip, scope) = match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..20].copy_from_slice(&scope.to_le_bytes());
    bytes[20..].copy_from_slice(&address.port().to_le_bytes());
    bytes
}

/// Returns the address that [`encode_address`] encoded; `None` for any other bytes.
pub fn decode_address(bytes: &[u8; ADDRESS_BYTES]) -> Option<SocketAddr> {
    let mut ip = [0; 16];
    ip.copy_from_slice(&bytes[..16]);
    let scope = u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
    let port = u16::from_le_bytes([bytes[20], bytes[21]]);
    let ip = Ipv6Addr::from(ip);
    match ip.to_ipv4_mapped() {
        Some(_) if scope != 0 => None,
        Some(v4) => Some(SocketAddr::new(IpAddr::V4(v4), port)),
        None => Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope))),
    }
}

/// The number of every communicator that is made at an address known beforehand, where
/// communicators follow each other. Other communicators have random numbers.
pub const FIXED: u64 = 0;

/// A decoded `ncclUniqueId`.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    /// The address where the rendezvous listens.
    pub address: SocketAddr,
    /// The communicator's number, bound into every authentication.
    pub comm: u64,
    /// The secret that the members share.
    pub secret: [u8; SECRET_BYTES],
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UniqueId").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Returns bytes from the system's random generator.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::system("getrandom", e, "the system has no random generator"))?;
    Ok(bytes)
}

impl UniqueId {
    /// Returns a new id for a rendezvous at this address.
    pub fn new(address: SocketAddr) -> Result<Self> {
        Ok(Self { address, comm: u64::from_le_bytes(random()?), secret: random()? })
    }

    /// Returns the id for a further meeting of the same members at another address. Only processes
    /// that know this id can derive that one.
    pub fn derive(&self, purpose: &str, number: u64, address: SocketAddr) -> Self {
        let digest = |part: &[u8]| {
            let mut hash = Sha256::new_with_prefix(self.secret);
            hash.update(self.comm.to_le_bytes());
            hash.update(number.to_le_bytes());
            hash.update(part);
            hash.update(purpose.as_bytes());
            <[u8; 32]>::from(hash.finalize())
        };
        let [a, b, c, d, e, f, g, h, ..] = digest(b"number");
        let comm = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Self { address, comm, secret: digest(b"secret") }
    }

    /// Returns this id with another number and secret, for processes that know `salt` too.
    pub fn salted(&self, salt: &[u8]) -> Self {
        let salt: String = salt.iter().map(|byte| format!("{byte:02x}")).collect();
        self.derive(&salt, 0, self.address)
    }

    /// Encodes the id in bytes: magic 8 · comm 8 · secret 32 · IPv6 (or mapped IPv4) 16 ·
    /// scope 4 · port 2 · zeros.
    pub fn encode(&self) -> [u8; ID_BYTES] {
        let mut bytes = [0; ID_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.comm.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.secret);
        bytes[48..70].copy_from_slice(&encode_address(self.address));
        bytes
    }

    /// Returns the id that [`encode`](Self::encode) encoded; `None` for any other bytes.
    pub fn decode(bytes: &[u8; ID_BYTES]) -> Option<Self> {
        if &bytes[..8] != MAGIC || bytes[70..].iter().any(|&b| b != 0) {
            return None;
        }
        let field = |at: usize| <[u8; 8]>::try_from(&bytes[at..at + 8]).unwrap_or_default();
        let mut secret = [0; SECRET_BYTES];
        secret.copy_from_slice(&bytes[16..48]);
        let mut address = [0; ADDRESS_BYTES];
        address.copy_from_slice(&bytes[48..70]);
        let address = decode_address(&address)?;
        Some(Self { address, comm: u64::from_le_bytes(field(8)), secret })
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
            assert!(UniqueId::decode(&bytes).is_none());
            assert!(!format!("{id:?}").contains("secret"));
        }
        assert!(UniqueId::decode(&[0; ID_BYTES]).is_none());
    }
}
