//! Readers of bytes from outside that are private otherwise, for the fuzz targets. Not part of the
//! interface.

use crate::bootstrap::UniqueId;
use crate::bootstrap::interface;
use crate::bootstrap::launch::{self, Launch};
use crate::bootstrap::wire::{self, Frame};
use crate::comm::rank_info::{self, RankInfo};
use crate::device::{CudaOffer, decode_datagram};
use crate::error::Result;
use crate::link::Message;
use crate::link::message;
use crate::op::descriptor::Descriptor;
use oxccl_net::interface::Interface;
use oxccl_net::tcp::{TcpReceiver, address_in};
use oxccl_net::{HANDLE_BYTES, Handle};
use std::io::Read;
use std::net::SocketAddr;

/// The format of a rank's blob.
pub const FORMAT: u32 = rank_info::FORMAT;

/// Takes a frame out of received bytes, as a connection does; the error is the length of a frame
/// that is too long.
pub fn take_frame(
    incoming: &mut Vec<u8>,
    max_body: usize,
) -> std::result::Result<Option<Frame>, usize> {
    wire::take_frame(incoming, max_body)
}

/// Decodes a rank's blob and encodes it again.
pub fn blob(rank: usize, bytes: &[u8]) -> Result<Vec<u8>> {
    RankInfo::decode(rank, bytes).map(|blob| blob.encode())
}

/// Decodes the offer of a rank on a GPU and encodes it again.
pub fn offer(rank: usize, bytes: &[u8]) -> Result<Vec<u8>> {
    CudaOffer::decode(rank, bytes).map(|offer| offer.encode())
}

/// Returns whether a datagram without descriptors comes from a rank on a GPU that knows the key.
pub fn is_mail(key: &[u8; 16], bytes: &[u8]) -> bool {
    decode_datagram(key, bytes, Vec::new()).is_some()
}

/// Returns the id in the text of a file.
pub fn id_in_file(text: &[u8]) -> Option<UniqueId> {
    launch::parse_id(text)
}

/// Returns the place in a job, from this library's three variables and the launchers' variables.
pub fn launch(own: [&str; 3], lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
    launch::detect_in(own, lookup)
}

/// Returns the address to listen on.
pub fn interface(found: &[Interface], ifname: &str, family: &str) -> Result<SocketAddr> {
    interface::choose_from(found, ifname, family)
}

/// Returns the address in a peer's handle.
pub fn handle(bytes: [u8; HANDLE_BYTES]) -> Option<SocketAddr> {
    address_in(&Handle(bytes))
}

/// The receiving half of an edge whose slots have `slot_bytes`, fed by `stream`.
pub struct Incoming(message::Incoming);

impl Incoming {
    /// Returns a receiving half that offers all slots.
    pub fn new(stream: impl Read + Send + 'static, slot_bytes: usize) -> Self {
        Self(message::Incoming::new(Box::new(TcpReceiver::new(stream, true)), 0, slot_bytes))
    }

    /// Returns the next message if it is complete: its descriptor and its data.
    pub fn take(&mut self) -> Result<Option<(Descriptor, Vec<u8>)>> {
        let Some(Message { data, len, descriptor, .. }) = self.0.peek(0)? else { return Ok(None) };
        let len = len.unwrap_or_default();
        // SAFETY: a peeked message is readable until it is released.
        let message = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
        self.0.release();
        Ok(descriptor.map(|descriptor| (descriptor, message)))
    }
}
