//! The network interface: the functions of a transport, in the shape of NCCL's net plugins (v8 and
//! later), which will implement it too. No function here blocks.

use crate::error::Result;
use rustix::event::PollFd;
use std::net::SocketAddr;

/// The size of a listener's address on the wire, in bytes; it is NCCL's.
pub const HANDLE_BYTES: usize = 128;

/// An address to connect to, opaque to everything but its transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle(pub [u8; HANDLE_BYTES]);

/// The number of a request on its connection. Requests complete in order.
pub type Request = u64;

/// The identity of a rank that connects to its peers, and the secret that the ranks share.
#[derive(Clone, Copy)]
pub struct Identity {
    /// The communicator's number.
    pub comm: u64,
    /// The communicator's secret.
    pub secret: [u8; 32],
    /// The number of this rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
}

/// A transport.
pub trait Net: Send + Sync {
    /// Returns the name of the transport, by which `NCCL_NET` would select it.
    fn name(&self) -> &'static str;
    /// Listens at a local address, on a port of its choice. The handle is for the peers.
    fn listen(
        &self,
        identity: Identity,
        address: SocketAddr,
    ) -> Result<(Handle, Box<dyn Listener>)>;
    /// Begins to connect to rank `peer`, which sent its handle.
    fn connect(
        &self,
        identity: Identity,
        peer: u32,
        handle: &Handle,
    ) -> Result<Box<dyn Connecting>>;
}

/// A listener, which accepts connections.
pub trait Listener: Send {
    /// Returns a new connection and the rank that it comes from, if one is complete.
    fn accept(&mut self) -> Result<Option<(u32, Box<dyn Receiver>)>>;
    /// Appends the descriptors to poll for new connections.
    fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>);
}

/// A connection that is being made.
pub trait Connecting: Send {
    /// Returns the connection, once it is complete.
    fn progress(&mut self) -> Result<Option<Box<dyn Sender>>>;
    /// Appends the descriptors to poll for the connection.
    fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>);
    /// Returns why the connection is not complete yet.
    fn why(&self) -> String;
}

/// The sending end of a connection.
pub trait Sender: Send {
    /// Starts to send. `None` means that the caller must try again later.
    ///
    /// # Safety
    /// `data` stays readable for `len` bytes, and unchanged, until the request is done.
    unsafe fn isend(&mut self, data: *const u8, len: usize) -> Result<Option<Request>>;
    /// Returns whether a request is done, so that its data may be written again.
    fn test(&mut self, request: Request) -> Result<bool>;
}

/// The receiving end of a connection.
pub trait Receiver: Send {
    /// Offers a buffer for the next message. `None` means that the caller must try again later.
    ///
    /// # Safety
    /// `data` stays writable for `capacity` bytes, and untouched, until the request is done.
    unsafe fn irecv(&mut self, data: *mut u8, capacity: usize) -> Result<Option<Request>>;
    /// Returns the size of the message, once it is complete.
    fn test(&mut self, request: Request) -> Result<Option<usize>>;
}
