//! The TCP transport as a net plugin, versions 11 and 12, for NVIDIA's NCCL and whatever else loads
//! its plugins: `NCCL_NET_PLUGIN=libnccl-net-oxccl.so`. Devices are the interfaces that
//! `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY` admit.

pub mod exports;

use oxccl_net::interface::{admitted, found};
use oxccl_net::tcp::Tcp;
use oxccl_net::{
    Connecting, Error, HANDLE_BYTES, HOST, Handle, Listener, Net, Receiver, Region, Request,
    Result, Sender,
};
use std::ffi::{CString, c_void};
use std::sync::OnceLock;

/// The place in a handle, behind the address, where the one who connects keeps its state.
const STATE_AT: usize = HANDLE_BYTES - size_of::<usize>();

/// The transport with its devices, and the texts about them.
struct Transport {
    tcp: Tcp,
    texts: Vec<(CString, Option<CString>)>,
}

/// Returns the transport, which is made once per process: texts about devices have to stay.
fn transport() -> Result<&'static Transport> {
    static TRANSPORT: OnceLock<Result<Transport>> = OnceLock::new();
    TRANSPORT.get_or_init(make).as_ref().map_err(Clone::clone)
}

fn make() -> Result<Transport> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let (names, family) = (variable("NCCL_SOCKET_IFNAME"), variable("NCCL_SOCKET_FAMILY"));
    let mut interfaces = admitted(&found()?, &names, &family);
    // One address of each interface, and loopback only where there is nothing else.
    let mut seen = Vec::new();
    interfaces.retain(|i| {
        !seen.contains(&i.name) && {
            seen.push(i.name.clone());
            true
        }
    });
    let beyond = interfaces.iter().filter(|i| !i.address.ip().is_loopback()).count();
    if names.is_empty() && beyond > 0 {
        interfaces.retain(|i| !i.address.ip().is_loopback());
    }
    let tcp = Tcp::new(interfaces);
    let text = |text: String| CString::new(text).unwrap_or_default();
    let texts = (0..tcp.devices()).map(|device| {
        let properties = tcp.properties(device)?;
        Ok((text(properties.name), properties.pci_path.map(text)))
    });
    let texts = texts.collect::<Result<Vec<_>>>()?;
    Ok(Transport { tcp, texts })
}

/// An end of a connection.
enum End {
    Sends(Box<dyn Sender>),
    Receives(Box<dyn Receiver>),
}

impl End {
    /// Starts to send, or to receive, as the end does; `None` if there is no room.
    ///
    /// # Safety
    /// As for `isend` and `irecv` of plugins: the memory is the request's until it is done.
    unsafe fn start(&mut self, data: *mut u8, len: usize, tag: u32) -> Result<Option<Request>> {
        match self {
            // SAFETY: by the contract.
            End::Sends(end) => unsafe { end.isend(data, len, tag, Region::default()) },
            // SAFETY: likewise.
            End::Receives(end) => unsafe { end.irecv(data, len, tag, Region::default()) },
        }
    }

    /// Returns the size of the message, once the request is done; `len` is what was offered.
    fn test(&mut self, request: Request, len: usize) -> Result<Option<usize>> {
        match self {
            End::Sends(end) => Ok(end.test(request)?.then_some(len)),
            End::Receives(end) => end.test(request),
        }
    }
}

/// A request under way, as plugins hand it out.
struct UnderWay {
    of: *mut End,
    number: Request,
    len: usize,
}

/// Goes on to connect with the state that is kept in the handle; returns the connection once it is
/// made.
///
/// # Safety
/// `handle` is one of [`HANDLE_BYTES`] that a listener of this plugin has filled in, and is the
/// caller's, at the same place until the connection is made.
unsafe fn connect(device: usize, handle: *mut u8) -> Result<Option<Box<dyn Sender>>> {
    // SAFETY: within the handle.
    let place = unsafe { handle.add(STATE_AT) }.cast::<*mut c_void>();
    // SAFETY: the listener has left zeros there, and only this function writes it.
    let mut state = unsafe { place.read_unaligned() }.cast::<Box<dyn Connecting>>();
    if state.is_null() {
        // SAFETY: by the contract.
        let copy = unsafe { handle.cast::<[u8; HANDLE_BYTES]>().read_unaligned() };
        let connecting = transport()?.tcp.connect(device, Handle(copy))?;
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
fn listen(device: usize) -> Result<(Handle, Box<dyn Listener>)> {
    let (handle, listener) = transport()?.tcp.listen(device)?;
    match handle.0[STATE_AT..].iter().all(|byte| *byte == 0) {
        true => Ok((handle, listener)),
        false => Err(Error::new("listening", "the address is too long", "")),
    }
}

/// Fails unless the memory is of a kind that TCP takes.
fn check_kind(kind: i32) -> Result<()> {
    match kind {
        HOST => Ok(()),
        other => {
            let cause = format!("kind {other} of memory; only memory of the host is taken");
            Err(Error::new("registering memory", cause, ""))
        }
    }
}
