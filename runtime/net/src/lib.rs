//! The network interface: what a transport between hosts offers, in the shape of NCCL's net
//! plugins, and the TCP transport. Plugins that are loaded at run time implement the same traits,
//! and a transport of this interface can be exported as a plugin.
//!
//! No function here blocks. A connection carries messages in one direction, in order, and may have
//! another direction. It may be used by one thread at a time.

mod error;
pub mod interface;
mod retry;
pub mod tcp;

pub use error::{Error, Result};
pub use retry::Retry;
pub use rustix::event::PollFd;
use rustix::fd::OwnedFd;
use std::any::Any;
use std::sync::Arc;

/// The size of a listener's address on the wire, in bytes (`NCCL_NET_HANDLE_MAXSIZE`).
pub const HANDLE_BYTES: usize = 128;

/// The most requests that a connection may have under way. It is less than NCCL's limit (8 in
/// version 6 of its interface, 32 from version 9 on), so that every plugin has room.
pub const MAX_REQUESTS: usize = 4;

/// An address to connect to, opaque to everything but its transport.
///
/// Plugins read it as a structure of theirs, hence the alignment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Handle(pub [u8; HANDLE_BYTES]);

/// A message under way. Requests are independent of each other: they may complete, and be tested,
/// in any order. The number is over once its test has said that it is done.
pub type Request = u64;

/// Memory that a connection can send from, or receive into. The value is the transport's; 0 where
/// nothing has to be registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region(pub usize);

/// The places of a message's data and of its result, in registered memory that a network which
/// reduces reads and writes itself.
#[derive(Clone, Copy, Debug)]
pub struct Unstaged {
    /// The first byte of the data.
    pub from: *const u8,
    /// The first byte of the result, which may be that of the data.
    pub to: *mut u8,
    /// The number of bytes of either.
    pub len: usize,
    /// The registrations of the data and of the result.
    pub regions: [Region; 2],
}

/// Memory to register.
#[derive(Clone)]
pub struct Memory {
    /// The first byte.
    pub data: *mut u8,
    /// The number of bytes.
    pub len: usize,
    /// The place of the memory.
    pub place: Place,
    /// The owner of the memory. A transport that works in the background keeps it for as long as it
    /// may use the memory.
    pub owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointer is followed only while the owner lives, by whichever thread holds the
// connection.
unsafe impl Send for Memory {}

/// The place of memory.
#[derive(Clone, Debug)]
pub enum Place {
    /// The host.
    Host,
    /// A GPU, to whose memory the transport has a way of its own (GPUDirect RDMA).
    Gpu {
        /// True if data that the device has written must be flushed before the GPU reads them.
        flush: bool,
        /// The descriptor by which the memory can be registered; the memory begins at its first
        /// byte. `None` where it is registered by its address.
        dma_buf: Option<Arc<OwnedFd>>,
    },
}

/// The number by which network plugins know the event of a message; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event(pub usize);

/// Somebody who has each message of an end of a connection observed, for a profiler.
pub trait Observer: Send + Sync {
    /// Returns the observation of the message that is handed over or awaited now; `None` if nobody
    /// asks for it. Never blocks.
    fn message(&self) -> Option<Box<dyn Observation>>;
}

/// The observation of one message by the thread that calls a transport, until it drops this.
/// Neither the functions nor the drop need ever return: nobody may wait for a lock that the thread
/// holds.
pub trait Observation: Send {
    /// Notes that the message is about to be handed to the transport. Returns its event.
    fn begin(&mut self) -> Event;

    /// Notes that the transport has taken the message, or that it has come: `len` bytes, or
    /// [`UNTOLD`].
    fn moved(&mut self, len: usize);
}

/// The properties of a device of a transport.
#[derive(Clone, Debug, PartialEq)]
pub struct Properties {
    /// The name of the device, for example `eth0`.
    pub name: String,
    /// The device's place in sysfs; `None` if it has none.
    pub pci_path: Option<String>,
    /// The kinds of memory that can be registered: a sum of `NCCL_PTR_HOST`, `NCCL_PTR_CUDA`
    /// and `NCCL_PTR_DMABUF`.
    pub memory: i32,
    /// The speed in Mbit/s.
    pub speed_mbps: i32,
    /// True if data that have come to the memory of a GPU must be flushed on every GPU.
    pub flushes_always: bool,
    /// True if the device is served by kernels of GPUs, which is not supported.
    pub offloaded: bool,
    /// The connections that the device is meant for. It may carry more.
    pub max_connections: i32,
    /// The most bytes of a message.
    pub max_bytes: u64,
}

/// The size of a message whose transport does not tell it, as some plugins for NCCL do not.
pub const UNTOLD: usize = usize::MAX;

/// The memory of the host (`NCCL_PTR_HOST`).
pub const HOST: i32 = 1;
/// The memory of GPUs (`NCCL_PTR_CUDA`).
pub const CUDA: i32 = 2;
/// Memory of GPUs by its dma-buf (`NCCL_PTR_DMABUF`).
pub const DMA_BUF: i32 = 4;

/// A transport.
pub trait Net: Send + Sync {
    /// Returns the name of the transport, by which `NCCL_NET` selects it.
    fn name(&self) -> &str;

    /// Returns whether listeners may be asked for further connections at any time, and members
    /// connect again, as strangers come, too. Elsewhere `accept` may block until somebody comes.
    fn is_open_to_strangers(&self) -> bool {
        false
    }

    /// Returns whether each connection has a [reverse](Sender::reverse) direction, too.
    fn is_duplex(&self) -> bool {
        false
    }

    /// Returns the number of devices.
    fn devices(&self) -> usize;

    /// Returns what is known of a device.
    fn properties(&self, device: usize) -> Result<Properties>;

    /// Listens for a connection. The handle is for the peer.
    fn listen(&self, device: usize) -> Result<(Handle, Box<dyn Listener>)>;

    /// Begins to connect to the listener of a handle.
    fn connect(&self, device: usize, handle: Handle) -> Result<Box<dyn Connecting>>;
}

/// A listener, which accepts connections. Strangers may come, too.
pub trait Listener: Send {
    /// Returns a new connection if one has been made.
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>>;

    /// Appends the descriptors that show new connections; none where one has to ask.
    fn poll_fds<'a>(&'a self, _fds: &mut Vec<PollFd<'a>>) {}
}

/// A connection that is being made.
pub trait Connecting: Send {
    /// Returns the connection, once it has been made.
    fn progress(&mut self) -> Result<Option<Box<dyn Sender>>>;

    /// Appends the descriptors that show progress; none where one has to ask.
    fn poll_fds<'a>(&'a self, _fds: &mut Vec<PollFd<'a>>) {}

    /// Returns why the connection has not been made yet.
    fn why(&self) -> String;
}

/// An end of a connection, and the memory that it may use.
pub trait Connection: Send {
    /// Registers memory for messages, until the connection ends.
    fn register(&mut self, _memory: Memory) -> Result<Region> {
        Ok(Region::default())
    }

    /// Gives up registered memory that no request uses.
    fn deregister(&mut self, _region: Region) -> Result<()> {
        Ok(())
    }

    /// Has the messages from now on observed. Returns false where that is not possible, as no
    /// thread but its user's calls the transport.
    fn observe(&mut self, _observer: Arc<dyn Observer>) -> bool {
        false
    }

    /// Sets the event of the next message.
    fn set_event(&mut self, _event: Event) {}
}

/// The sending end of a connection. When it is dropped, the connection ends; messages that were
/// started may be lost.
pub trait Sender: Connection {
    /// Returns the receiving end of the other direction, once, if the connection has one.
    fn reverse(&mut self) -> Option<Box<dyn Receiver>> {
        None
    }

    /// Starts to send a message from registered memory. `None`: there is no room now, and the same
    /// has to be tried again before anything else is sent. At most [`MAX_REQUESTS`] at a time.
    ///
    /// # Safety
    /// `data` stays readable for `len` bytes, and unchanged, until the request is done.
    unsafe fn isend(
        &mut self,
        data: *const u8,
        len: usize,
        tag: u32,
        region: Region,
    ) -> Result<Option<Request>>;

    /// Starts to send a message as [`isend`](Self::isend) does, of which only the first `head`
    /// bytes are in place: the others are at `from`, and leave from there if they can at once, or
    /// are copied to their place. `from` is not used after the call.
    ///
    /// # Safety
    /// That of `isend`; `data` is writable, too, and `from` is readable for `len - head` bytes.
    unsafe fn isend_from(
        &mut self,
        from: *const u8,
        head: usize,
        (data, len): (*mut u8, usize),
        tag: u32,
        region: Region,
    ) -> Result<Option<Request>> {
        // SAFETY: passed on from the caller.
        unsafe {
            data.add(head).copy_from_nonoverlapping(from, len - head);
            self.isend(data, len, tag, region)
        }
    }

    /// Returns whether requests need calls of [`test`](Self::test) to get on.
    fn needs_progress(&self) -> bool {
        true
    }

    /// Returns whether a request is done, so that its data may be written again.
    fn test(&mut self, request: Request) -> Result<bool>;
}

/// The receiving end of a connection.
pub trait Receiver: Connection {
    /// Returns the sending end of the other direction, once, if the connection has one.
    fn reverse(&mut self) -> Option<Box<dyn Sender>> {
        None
    }

    /// Offers registered memory for the next message. `None`: there is no room now, and the same
    /// has to be tried again before anything else is offered. At most [`MAX_REQUESTS`] at a time.
    ///
    /// # Safety
    /// `data` stays writable for `capacity` bytes, and untouched, until the request is done. All of
    /// it may be written, whatever the size of the message.
    unsafe fn irecv(
        &mut self,
        data: *mut u8,
        capacity: usize,
        tag: u32,
        region: Region,
    ) -> Result<Option<Request>>;

    /// Returns whether the connection may end while requests are under way.
    fn ends_with_requests(&self) -> bool {
        false
    }

    /// Returns the size of the message once it is complete, and flushed where that is needed:
    /// [`UNTOLD`] where the transport does not know it.
    fn test(&mut self, request: Request) -> Result<Option<usize>>;

    /// Returns the way to receive messages in two places; `None` if there is none.
    fn divided(&mut self) -> Option<&mut dyn Divided> {
        None
    }
}

/// The receiving end of a connection that receives the head of a message first, and the rest of it
/// wherever the holder wants it then.
pub trait Divided {
    /// Looks for the first `head` bytes of the message of the oldest request, in the memory that
    /// was offered.
    fn test_head(&mut self, request: Request, head: usize) -> Result<Head>;

    /// Receives what follows these bytes, once [`test_head`](Self::test_head) has said that they
    /// are there. Returns true when the message is complete, and its request over. Until then
    /// nothing else is to be asked of the request than this, with the same place.
    ///
    /// # Safety
    /// `to` is writable for what follows the head.
    unsafe fn test_rest(&mut self, request: Request, to: *mut u8) -> Result<bool>;
}

/// What is there of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Less than its head, or a part of a message that is not longer than a head.
    None,
    /// The head of a message of this size.
    Begun(usize),
    /// A whole message of this size in the memory that was offered; its request is over.
    Whole(usize),
}
