//! Listeners and connections as plugins hand them out.

use oxccl_net::{
    Connecting, Error, HANDLE_BYTES, Handle, Listener, Memory, Net, Receiver, Region, Request,
    Result, Sender,
};
use std::ffi::c_void;
use std::sync::Mutex;

/// The place in a handle, behind the address, where the one who connects keeps its state.
const STATE_AT: usize = HANDLE_BYTES - size_of::<usize>();

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

/// Goes on to connect with the state that is kept in the handle; returns the connection once it is
/// made.
///
/// # Safety
/// `handle` is one of [`HANDLE_BYTES`] that a listener of this plugin has filled in, and is the
/// caller's, at the same place until the connection is made.
pub(super) unsafe fn connect(
    net: &dyn Net,
    device: usize,
    handle: *mut u8,
) -> Result<Option<Box<dyn Sender>>> {
    // SAFETY: within the handle.
    let place = unsafe { handle.add(STATE_AT) }.cast::<*mut c_void>();
    // SAFETY: the listener has left zeros there, and only this function writes it.
    let mut state = unsafe { place.read_unaligned() }.cast::<Box<dyn Connecting>>();
    if state.is_null() {
        // SAFETY: by the contract.
        let copy = unsafe { handle.cast::<[u8; HANDLE_BYTES]>().read_unaligned() };
        let connecting = net.connect(device, Handle(copy))?;
        state = Box::into_raw(Box::new(connecting));
        // SAFETY: as above.
        unsafe { place.write_unaligned(state.cast()) };
    }
    // SAFETY: the state is that of an earlier call, and nobody else has it.
    let made = unsafe { (*state).progress() };
    if !matches!(made, Ok(None)) {
        // SAFETY: as above; it is forgotten here.
        unsafe {
            place.write_unaligned(std::ptr::null_mut());
            drop(Box::from_raw(state));
        }
    }
    made
}

/// Listens on a device; returns the listener and the handle for the peer.
pub(super) fn listen(net: &dyn Net, device: usize) -> Result<(Handle, Box<dyn Listener>)> {
    let (handle, listener) = net.listen(device)?;
    match handle.0[STATE_AT..].iter().all(|byte| *byte == 0) {
        true => Ok((handle, listener)),
        false => Err(Error::new("listening", "the address is too long", "")),
    }
}
