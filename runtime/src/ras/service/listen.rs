//! The sockets on which the service listens: all processes of a user on a host share the port.

use crate::fork;
use rustix::fd::{BorrowedFd, OwnedFd};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Connections that wait to be taken.
const BACKLOG: i32 = 1024;
/// The most addresses of a name.
const ADDRESSES: usize = 4;

/// Listens at all addresses of `host:port` at which that can be done. Returns the sockets, which
/// stay open, with their addresses; or why there are none.
pub(super) fn listen(text: &str) -> Result<(Vec<BorrowedFd<'static>>, Vec<SocketAddr>)> {
    let (mut sockets, mut at, mut failed) = (Vec::new(), Vec::new(), None);
    for address in addresses(text.trim())? {
        let too_many = |_: OwnedFd| Error::from(ErrorKind::OutOfMemory);
        let made = socket(address).and_then(|s| fork::close_in_children(s).map_err(too_many));
        match made {
            Ok(socket) => {
                sockets.push(socket);
                at.push(address);
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match sockets.is_empty() {
        true => Err(failed.unwrap_or_else(|| Error::from(ErrorKind::AddrNotAvailable))),
        false => Ok((sockets, at)),
    }
}

/// Returns the addresses of `host:port`. Blocks while a name that is no `localhost` is looked up.
fn addresses(text: &str) -> Result<Vec<SocketAddr>> {
    let port = text.strip_prefix("localhost:").and_then(|port| port.parse::<u16>().ok());
    if let Some(port) = port {
        let [four, six] = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        return Ok(vec![(four, port).into(), (six, port).into()]);
    }
    if let Ok(address) = text.parse() {
        return Ok(vec![address]);
    }
    let text = text.to_owned();
    let look_up = move || text.to_socket_addrs().map(|all| all.take(ADDRESSES).collect());
    // The resolver has memory for each thread that asks it, which goes with the thread.
    let thread = std::thread::Builder::new().name("oxccl-resolver".to_owned()).spawn(look_up)?;
    thread.join().unwrap_or_else(|_| Err(ErrorKind::Other.into()))
}

fn socket(address: SocketAddr) -> Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        // The other family may have a socket of its own.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Takes a connection; `None` if none waits.
pub(super) fn accept(listener: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    use rustix::net::SocketFlags;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::accept_with(listener, flags)?;
    // Answers are short, and awaited.
    let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn processes_share_a_port_and_what_cannot_be_had_is_said() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        // That socket does not share its port.
        let error = listen(&address.to_string()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        drop(free);
        let sockets = [socket(address).unwrap(), socket(address).unwrap()];
        drop(sockets);
        let by_default = addresses("localhost:28028").unwrap();
        assert!(!by_default.is_empty() && by_default.iter().all(|of| of.ip().is_loopback()));
        for text in ["", "localhost", "127.0.0.1:99999", "192.0.2.1:28028", "::1:x"] {
            assert!(listen(text).is_err(), "{text:?}");
        }
    }
}
