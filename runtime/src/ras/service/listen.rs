//! The sockets on which the service listens: all processes of a user on a host share the port.

use crate::fork;
use rustix::fd::{BorrowedFd, OwnedFd};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, ToSocketAddrs};

/// Connections that wait to be taken.
const BACKLOG: i32 = 1024;
/// The most addresses of a name.
const ADDRESSES: usize = 4;

/// Listens at all addresses of `host:port` at which that can be done. Returns the sockets, which
/// stay open, with their addresses; or why there are none.
pub(super) fn listen(text: &str) -> Result<(Vec<BorrowedFd<'static>>, Vec<SocketAddr>)> {
    let (mut sockets, mut at, mut failed) = (Vec::new(), Vec::new(), None);
    for address in text.trim().to_socket_addrs()?.take(ADDRESSES) {
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
        for text in ["", "localhost", "127.0.0.1:99999", "192.0.2.1:28028", "::1:x"] {
            assert!(listen(text).is_err(), "{text:?}");
        }
    }
}
