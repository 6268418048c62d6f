//! Connections as plugins hand them out.

use oxccl_net::{
    Connecting, HANDLE_BYTES, Handle, Memory, Net, Receiver, Region, Request, Result, Sender,
};
use std::sync::{Mutex, PoisonError};

/// An end of a connection.
pub(super) enum End {
    Sends(Box<dyn Sender>),
    Receives(Box<dyn Receiver>),
}

impl End {
    /// Starts to send, or to receive, as the end does; `None` if there is no room.
    ///
    /// # Safety
    /// As for `isend` and `irecv` of plugins: the memory is the request's until it is done.
    pub(super) unsafe fn start(
        &mut self,
        (data, len, region): (*mut u8, usize, Region),
        tag: u32,
    ) -> Result<Option<Request>> {
        match self {
            // SAFETY: by the contract.
            End::Sends(end) => unsafe { end.isend(data, len, tag, region) },
            // SAFETY: likewise.
            End::Receives(end) => unsafe { end.irecv(data, len, tag, region) },
        }
    }

    pub(super) fn register(&mut self, memory: Memory) -> Result<Region> {
        match self {
            End::Sends(end) => end.register(memory),
            End::Receives(end) => end.register(memory),
        }
    }

    pub(super) fn deregister(&mut self, region: Region) -> Result<()> {
        match self {
            End::Sends(end) => end.deregister(region),
            End::Receives(end) => end.deregister(region),
        }
    }

    /// Returns the size of the message, once the request is done; `len` is what was offered.
    pub(super) fn test(&mut self, request: Request, len: usize) -> Result<Option<usize>> {
        match self {
            End::Sends(end) => Ok(end.test(request)?.then_some(len)),
            End::Receives(end) => end.test(request),
        }
    }
}

/// A request under way, as plugins hand it out.
#[derive(Clone, Copy)]
pub(super) struct UnderWay {
    pub(super) of: *const Mutex<End>,
    pub(super) number: Request,
    pub(super) len: usize,
}

/// A connection that is being made.
struct Pending {
    /// The place of the handle, and what it holds.
    place: usize,
    handle: Handle,
    connecting: Box<dyn Connecting>,
}

/// The connections that are being made, by the places of their handles. Nothing of this lies in the
/// handle, which comes from the peer.
static PENDING: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

/// Goes on to connect to a handle; returns the connection once it is made.
///
/// # Safety
/// `handle` is one of [`HANDLE_BYTES`], and is the caller's, at the same place until the connection
/// is made.
pub(super) unsafe fn connect(
    net: &dyn Net,
    device: usize,
    handle: *const u8,
) -> Result<Option<Box<dyn Sender>>> {
    let place = handle as usize;
    // SAFETY: by the contract.
    let handle = Handle(unsafe { handle.cast::<[u8; HANDLE_BYTES]>().read_unaligned() });
    let pending = || PENDING.lock().unwrap_or_else(PoisonError::into_inner);
    let earlier = {
        let mut pending = pending();
        let found = pending.iter().position(|pending| pending.place == place);
        found.map(|at| pending.swap_remove(at))
    };
    // Another handle at the place of one that was given up begins anew.
    let mut connecting = match earlier.filter(|earlier| earlier.handle == handle) {
        Some(earlier) => earlier.connecting,
        None => net.connect(device, handle.clone())?,
    };
    let made = connecting.progress()?;
    if made.is_none() {
        pending().push(Pending { place, handle, connecting });
    }
    Ok(made)
}
