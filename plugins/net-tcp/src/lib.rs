//! The TCP transport as a net plugin, versions 11 and 12, for NVIDIA's NCCL and whatever else loads
//! its plugins: `NCCL_NET_PLUGIN=libnccl-net-oxccl.so`. Devices are the interfaces that
//! `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY` admit.

pub mod exports;

use oxccl_net::interface::{Interface, admitted, found};
use oxccl_net::tcp::Tcp;
use oxccl_net::{
    Connecting, Error, HANDLE_BYTES, HOST, Handle, Listener, Net, Properties, Receiver, Region,
    Request, Result, Sender,
};
use std::ffi::{CString, c_void};
use std::sync::OnceLock;

/// The place in a handle, behind the address, where the one who connects keeps its state.
const STATE_AT: usize = HANDLE_BYTES - size_of::<usize>();

/// The transport with its devices.
struct Transport {
    tcp: Tcp,
    devices: Vec<Device>,
}

/// A device: its properties, and the texts of them as C has them.
struct Device {
    properties: Properties,
    name: CString,
    pci_path: Option<CString>,
}

impl Device {
    fn new(properties: Properties) -> Self {
        let text = |text: &String| CString::new(text.as_str()).unwrap_or_default();
        let (name, pci_path) = (text(&properties.name), properties.pci_path.as_ref().map(text));
        Self { properties, name, pci_path }
    }
}

/// Returns the transport, which is made once per process: texts about devices have to stay.
fn transport() -> Result<&'static Transport> {
    static TRANSPORT: OnceLock<Result<Transport>> = OnceLock::new();
    TRANSPORT.get_or_init(make).as_ref().map_err(Clone::clone)
}

fn make() -> Result<Transport> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let (names, family) = (variable("NCCL_SOCKET_IFNAME"), variable("NCCL_SOCKET_FAMILY"));
    let tcp = Tcp::new(chosen(&found()?, &names, &family));
    let devices = (0..tcp.devices()).map(|device| Ok(Device::new(tcp.properties(device)?)));
    let devices = devices.collect::<Result<Vec<_>>>()?;
    Ok(Transport { tcp, devices })
}

/// Returns the interfaces that become devices: of those that the variables admit one address each,
/// and loopback only where it is asked for or there is nothing else.
fn chosen(found: &[Interface], names: &str, family: &str) -> Vec<Interface> {
    let mut chosen: Vec<Interface> = Vec::new();
    for interface in admitted(found, names, family) {
        if chosen.iter().all(|other| other.name != interface.name) {
            chosen.push(interface);
        }
    }
    let is_beyond = |i: &Interface| !i.address.ip().is_loopback();
    if names.is_empty() && chosen.iter().any(is_beyond) {
        chosen.retain(is_beyond);
    }
    chosen
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(found: &[(&str, &str)], names: &str) -> Vec<String> {
        let interface = |(name, ip): &(&str, &str)| Interface {
            name: (*name).to_owned(),
            address: std::net::SocketAddr::new(ip.parse().unwrap(), 0),
        };
        let found: Vec<_> = found.iter().map(interface).collect();
        let chosen = chosen(&found, names, "");
        chosen.iter().map(|i| format!("{} {}", i.name, i.address.ip())).collect()
    }

    #[test]
    fn a_device_is_an_interface_and_loopback_only_where_it_has_to_be() {
        let machine = [
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("eth0", "fe80::1"),
            ("eth0", "192.0.2.5"),
            ("ib0", "198.51.100.7"),
        ];
        assert_eq!(names(&machine, ""), ["ib0 198.51.100.7", "eth0 192.0.2.5"]);
        assert_eq!(names(&machine, "lo,eth"), ["eth0 192.0.2.5", "lo 127.0.0.1"]);
        assert_eq!(names(&machine[..2], ""), ["lo 127.0.0.1"]);
        assert!(names(&[], "").is_empty());
    }
}
