//! The network interface: what a transport offers, in the shape of NCCL's net plugins (v8 and
//! later), which will implement it too. Nothing here blocks.

use crate::error::Result;
use rustix::event::PollFd;
use std::net::SocketAddr;

/// What a listener's address looks like on the wire; NCCL's size.
pub const HANDLE_BYTES: usize = 128;

/// An address to connect to, opaque to all but its transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle(pub [u8; HANDLE_BYTES]);

/// Number of a request on its connection; requests complete in order.
pub type Request = u64;

/// Who connects to whom, and the secret they share.
#[derive(Clone, Copy)]
pub struct Identity {
    /// The communicator's number.
    pub comm: u64,
    /// Its secret.
    pub secret: [u8; 32],
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
}

/// A transport.
pub trait Net: Send + Sync {
    /// Its name, as `NCCL_NET` would choose it.
    fn name(&self) -> &'static str;
    /// Listens at a local address, on a port of its choice; the handle goes to the peers.
    fn listen(
        &self,
        identity: Identity,
        address: SocketAddr,
    ) -> Result<(Handle, Box<dyn Listener>)>;
    /// Begins to connect to rank `peer`, who sent its handle.
    fn connect(
        &self,
        identity: Identity,
        peer: u32,
        handle: &Handle,
    ) -> Result<Box<dyn Connecting>>;
}

/// Takes connections.
pub trait Listener: Send {
    /// A new connection and the rank it comes from, if one is complete.
    fn accept(&mut self) -> Result<Option<(u32, Box<dyn Receiver>)>>;
    /// What to poll for it.
    fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>);
}

/// A connection on its way.
pub trait Connecting: Send {
    /// The connection, once it is complete.
    fn progress(&mut self) -> Result<Option<Box<dyn Sender>>>;
    /// What to poll for it.
    fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>);
    /// Why it is not complete yet.
    fn why(&self) -> String;
}

/// The sending end of a connection.
pub trait Sender: Send {
    /// Starts to send; None: try again later.
    ///
    /// # Safety
    /// `data` stays readable for `len` bytes, and unchanged, until the request is done.
    unsafe fn isend(&mut self, data: *const u8, len: usize) -> Result<Option<Request>>;
    /// Whether a request is done: the data may be written again.
    fn test(&mut self, request: Request) -> Result<bool>;
}

/// The receiving end of a connection.
pub trait Receiver: Send {
    /// Offers a buffer for the next message; None: try again later.
    ///
    /// # Safety
    /// `data` stays writable for `capacity` bytes, and untouched, until the request is done.
    unsafe fn irecv(&mut self, data: *mut u8, capacity: usize) -> Result<Option<Request>>;
    /// The size of the message, once it is complete.
    fn test(&mut self, request: Request) -> Result<Option<usize>>;
}
