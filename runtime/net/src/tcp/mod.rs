//! The TCP transport. A message is `length u32` and the bytes. A connection may be used in both
//! directions: closing it with unread bytes resets it, and data that are under way may be lost.

mod proof;
mod stream;

use crate::interface::{self, Interface};
use crate::{
    Connecting, Error, HANDLE_BYTES, HOST, Handle, Listener, Net, Properties, Receiver, Result,
    Retry, Sender,
};
use proof::{Callers, Secret};
use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Socket, Type};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Instant;
pub use stream::TcpReceiver;
#[cfg(feature = "testing")]
pub use stream::receives;
use stream::{TcpSender, TcpSocket};

/// The advice of errors of sockets.
const HINT: &str = "see the network's configuration and ulimit -n";
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// The speed in Mbit/s of interfaces that do not tell theirs, as NCCL has it.
const UNKNOWN_SPEED_MBPS: i32 = 10_000;

/// The TCP transport. Its devices are interfaces.
pub struct Tcp {
    interfaces: Vec<Interface>,
    ahead: bool,
    /// Is told of strangers; `None` where connections prove elsewhere that they are meant.
    tell: Option<fn(&str)>,
}

impl Tcp {
    /// Returns the transport with these interfaces as devices. It writes nothing behind a message:
    /// NCCL's protocols would take what they find there for data of later steps. A handle has a
    /// secret by which connections prove that they are meant; of others `tell` is told.
    pub fn new(interfaces: Vec<Interface>, tell: fn(&str)) -> Self {
        Self { interfaces, ahead: false, tell: Some(tell) }
    }

    /// Returns the transport with one device, a local address. It reads a message along with its
    /// length, and may so write what follows a message into the memory behind it. It lets strangers
    /// connect.
    pub fn at(address: SocketAddr) -> Self {
        let name = interface::name_of(address.ip()).unwrap_or_else(|| address.ip().to_string());
        Self { interfaces: vec![Interface { name, address }], ahead: true, tell: None }
    }

    fn interface(&self, device: usize) -> Result<&Interface> {
        let number = self.interfaces.len();
        let none = || Error::new(format!("device {device}"), format!("of {number} devices"), HINT);
        self.interfaces.get(device).ok_or_else(none)
    }
}

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |e| Error::new(call, e, HINT)
}

/// Returns the address that a handle holds as text, followed by a zero.
pub fn address_in(handle: &Handle) -> Option<SocketAddr> {
    let text = handle.0.split(|&b| b == 0).next().unwrap_or_default();
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn speed_mbps(interface: &str) -> i32 {
    let speed = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed"));
    let speed = speed.ok().and_then(|text| text.trim().parse().ok());
    speed.filter(|speed| *speed > 0).unwrap_or(UNKNOWN_SPEED_MBPS)
}

impl Net for Tcp {
    fn name(&self) -> &str {
        "Socket"
    }

    fn is_open_to_strangers(&self) -> bool {
        self.tell.is_none()
    }

    fn is_duplex(&self) -> bool {
        true
    }

    fn devices(&self) -> usize {
        self.interfaces.len()
    }

    fn properties(&self, device: usize) -> Result<Properties> {
        let name = self.interface(device)?.name.clone();
        let place = std::fs::canonicalize(format!("/sys/class/net/{name}/device"));
        Ok(Properties {
            pci_path: place.ok().map(|path| path.display().to_string()),
            memory: HOST,
            speed_mbps: speed_mbps(&name),
            flushes_always: false,
            offloaded: false,
            max_connections: 65536,
            // Sizes are C's integers for plugins.
            max_bytes: 1 << 30,
            name,
        })
    }

    fn listen(&self, device: usize) -> Result<(Handle, Box<dyn Listener>)> {
        let address = self.interface(device)?.address;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None);
        let socket = socket.map_err(failed("socket"))?;
        socket.set_nonblocking(true).map_err(failed("fcntl on a listener"))?;
        let listening = |e| Error::new(format!("listening on {address}"), e, HINT);
        socket.bind(&address.into()).map_err(listening)?;
        socket.listen(BACKLOG).map_err(listening)?;
        let bound = socket.local_addr().map_err(failed("getsockname"))?.as_socket();
        let text = bound.unwrap_or(address).to_string();
        let mut handle = [0; HANDLE_BYTES];
        handle[..text.len()].copy_from_slice(text.as_bytes());
        let mut handle = Handle(handle);
        let callers = match self.tell {
            Some(tell) => Some(Callers::new(Secret::draw(&mut handle)?, tell)),
            None => None,
        };
        Ok((handle, Box::new(TcpListener { socket, ahead: self.ahead, callers })))
    }

    fn connect(&self, _device: usize, handle: Handle) -> Result<Box<dyn Connecting>> {
        let none = || Error::new("connecting", "the peer sent a bad address", HINT);
        let address = address_in(&handle).ok_or_else(none)?;
        let secret = self.tell.map(|_| Secret::of(&handle));
        let (socket, retry, last) = (None, Retry::default(), None);
        Ok(Box::new(TcpConnecting { address, ahead: self.ahead, secret, socket, retry, last }))
    }
}

struct TcpListener {
    socket: Socket,
    ahead: bool,
    /// The connections that are yet to prove that they are meant, if they have to.
    callers: Option<Callers>,
}

impl Listener for TcpListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        let socket = loop {
            let (socket, from) = match self.socket.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break None,
                Err(e) if is_of_connection(&e) => continue,
                Err(e) => return Err(failed("accepting a connection")(e)),
            };
            let Some(callers) = &mut self.callers else { break Some(socket) };
            let from = from.as_socket().map_or_else(String::new, |from| from.to_string());
            callers.add(socket, from, Instant::now())?;
        };
        let proven = || self.callers.as_mut().and_then(|callers| callers.next(Instant::now()));
        let Some(socket) = socket.or_else(proven) else { return Ok(None) };
        prepare(&socket)?;
        let receiver = TcpReceiver::of_duplex(TcpSocket::new(socket), self.ahead);
        Ok(Some(Box::new(receiver)))
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.push(PollFd::new(&self.socket, PollFlags::IN));
        self.callers.iter().for_each(|callers| callers.poll_fds(fds));
    }
}

/// Returns whether the connection failed that was to be accepted, and not the listener (accept(2)).
pub fn is_of_connection(e: &std::io::Error) -> bool {
    let of_connections = [
        libc::ECONNABORTED,
        libc::EINTR,
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::ENONET,
        libc::EOPNOTSUPP,
    ];
    e.raw_os_error().is_some_and(|errno| of_connections.contains(&errno))
}

fn prepare(socket: &Socket) -> Result<()> {
    socket.set_nonblocking(true).map_err(failed("fcntl on a connection"))?;
    socket.set_tcp_nodelay(true).map_err(failed("setting TCP_NODELAY"))
}

struct TcpConnecting {
    address: SocketAddr,
    ahead: bool,
    /// The secret that the connection says first; `None` if it has nothing to prove.
    secret: Option<Secret>,
    socket: Option<Socket>,
    retry: Retry,
    /// The error of the last attempt that failed.
    last: Option<String>,
}

impl TcpConnecting {
    fn put_off(&mut self, error: &std::io::Error) {
        self.socket = None;
        self.last = Some(error.to_string());
        self.retry.put_off(Instant::now());
    }

    fn start(&mut self) -> Result<()> {
        if self.socket.is_some() || !self.retry.pause(Instant::now()).is_zero() {
            return Ok(());
        }
        let socket = Socket::new(Domain::for_address(self.address), Type::STREAM, None);
        let socket = socket.map_err(failed("socket"))?;
        prepare(&socket)?;
        match socket.connect(&self.address.into()) {
            Ok(()) => self.socket = Some(socket),
            Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => self.socket = Some(socket),
            Err(e) => self.put_off(&e),
        }
        Ok(())
    }
}

impl Connecting for TcpConnecting {
    fn progress(&mut self) -> Result<Option<Box<dyn Sender>>> {
        self.start()?;
        let Some(socket) = &self.socket else { return Ok(None) };
        match socket.take_error() {
            Ok(None) => {}
            Ok(Some(e)) | Err(e) => {
                self.put_off(&e);
                return Ok(None);
            }
        }
        // Before the connection is made, a socket has no peer.
        if socket.peer_addr().is_err() {
            return Ok(None);
        }
        if let Some(Err(e)) = self.secret.map(|secret| secret.say(socket)) {
            self.put_off(&e);
            return Ok(None);
        }
        let sender = |socket| TcpSender::new(TcpSocket::new(socket), Some(self.ahead));
        Ok(self.socket.take().map(|socket| Box::new(sender(socket)) as Box<dyn Sender>))
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.extend(self.socket.as_ref().map(|socket| PollFd::new(socket, PollFlags::OUT)));
    }

    fn why(&self) -> String {
        match &self.last {
            Some(last) => format!("connecting to {}: {last}", self.address),
            None => format!("{} does not answer", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Divided, Head, Region};
    use std::time::Duration;

    fn pair(ahead: bool) -> (Box<dyn Sender>, Box<dyn Receiver>) {
        let net = Tcp { ahead, ..Tcp::at("127.0.0.1:0".parse().unwrap()) };
        assert_eq!((net.devices(), net.name()), (1, "Socket"));
        assert_eq!(net.properties(0).unwrap().memory, HOST);
        assert!(net.properties(1).is_err() && net.listen(1).is_err());
        let (handle, mut listener) = net.listen(0).unwrap();
        let mut connecting = net.connect(0, handle).unwrap();
        let (mut sender, mut receiver) = (None, None);
        let until = Instant::now() + Duration::from_secs(30);
        while sender.is_none() || receiver.is_none() {
            assert!(Instant::now() < until, "{}", connecting.why());
            sender = sender.or_else(|| connecting.progress().unwrap());
            receiver = receiver.or_else(|| listener.accept().unwrap());
        }
        (sender.unwrap(), receiver.unwrap())
    }

    /// How many were refused: tests run side by side.
    static REFUSED: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

    fn note(text: &str) {
        REFUSED.lock().unwrap().push(text.to_owned());
    }

    #[test]
    fn strangers_are_refused_and_told_of_and_keep_nobody_out() {
        use std::io::Write;
        use std::net::TcpStream;
        let address = "127.0.0.1:0".parse().unwrap();
        let net = Tcp::new(vec![Interface { name: "lo".to_owned(), address }], note);
        assert!(!net.is_open_to_strangers());
        let (handle, mut listener) = net.listen(0).unwrap();
        let place = address_in(&handle).unwrap();
        // Some say nothing, more than are waited for; others something wrong, or too little.
        let strangers: Vec<_> = (0..100).map(|_| TcpStream::connect(place).unwrap()).collect();
        (&strangers[98]).write_all(&[7; 40]).unwrap();
        (&strangers[99]).write_all(&[7; 3]).unwrap();
        strangers[99].shutdown(std::net::Shutdown::Write).unwrap();
        let mut connecting = net.connect(0, handle.clone()).unwrap();
        let (mut sender, mut receiver) = (None, None);
        let until = Instant::now() + Duration::from_secs(30);
        let refused = |stranger: &TcpStream| {
            let text = format!("a connection from {} is refused", stranger.local_addr().unwrap());
            REFUSED.lock().unwrap().iter().any(|told| told.starts_with(&text))
        };
        while sender.is_none() || receiver.is_none() || strangers[98..].iter().any(|s| !refused(s))
        {
            assert!(Instant::now() < until, "{}", connecting.why());
            sender = sender.or_else(|| connecting.progress().unwrap());
            let accepted = listener.accept().unwrap();
            assert!(accepted.is_none() || receiver.is_none(), "a stranger got in");
            receiver = receiver.or(accepted);
        }
        assert!(refused(&strangers[0]), "the oldest one makes room");
        exchange((sender.unwrap(), receiver.unwrap()), false);
        // Who has another listener's handle is a stranger, too.
        let (other, _other_listener) = net.listen(0).unwrap();
        let mut mixed = handle;
        mixed.0[64..].copy_from_slice(&other.0[64..]);
        let mut connecting = net.connect(0, mixed).unwrap();
        while connecting.progress().unwrap().is_none() {
            assert!(Instant::now() < until, "{}", connecting.why());
        }
        let before = REFUSED.lock().unwrap().len();
        while REFUSED.lock().unwrap().len() == before {
            assert!(Instant::now() < until && listener.accept().unwrap().is_none());
        }
    }

    fn bytes(number: u8, len: usize) -> Vec<u8> {
        (0..len).map(|at| number.wrapping_mul(31).wrapping_add(at as u8)).collect()
    }

    /// Messages smaller than what is offered share reads with the messages after them; the last
    /// request is tested first.
    #[test]
    fn messages_of_any_size_arrive_in_order_and_may_be_tested_in_any() {
        for ahead in [true, false] {
            exchange(pair(ahead), ahead);
        }
    }

    fn exchange((mut sender, mut receiver): (Box<dyn Sender>, Box<dyn Receiver>), ahead: bool) {
        let sizes = [0, 1, 65536, 7, 65535, 0, 300, 4096, 65536, 3, 3, 3];
        for group in sizes.chunks(MAX) {
            let sent: Vec<_> = (0u8..).zip(group).map(|(i, &len)| bytes(i, len)).collect();
            let mut rooms = vec![vec![0xeeu8; 65536]; group.len()];
            let none = Region::default();
            // SAFETY: buffers and rooms outlive the requests, which are done below.
            let sends: Vec<_> = sent
                .iter()
                .map(|s| unsafe { sender.isend(s.as_ptr(), s.len(), 0, none) }.unwrap().unwrap())
                .collect();
            let mut receives = Vec::new();
            for room in &mut rooms {
                // SAFETY: as above.
                let request = unsafe { receiver.irecv(room.as_mut_ptr(), 65536, 0, none) };
                receives.push(request.unwrap().unwrap());
            }
            let mut open: Vec<usize> = (0..group.len()).rev().collect();
            let mut done = vec![None; group.len()];
            let mut unsent: Vec<_> = sends;
            while !open.is_empty() || !unsent.is_empty() {
                unsent.retain(|request| !sender.test(*request).unwrap());
                open.retain(|&i| {
                    done[i] = receiver.test(receives[i]).unwrap();
                    done[i].is_none()
                });
            }
            for (i, sent) in sent.iter().enumerate() {
                assert_eq!(done[i], Some(sent.len()));
                assert!(rooms[i][..sent.len()] == sent[..], "message {i}");
                assert!(ahead || rooms[i][sent.len()..].iter().all(|byte| *byte == 0xee));
            }
        }
    }

    const MAX: usize = crate::MAX_REQUESTS;

    #[test]
    fn what_leaves_at_once_is_not_copied_to_its_place() {
        const HEAD: usize = 16;
        let (mut sender, mut receiver) = pair(true);
        let message = bytes(1, HEAD + 4096);
        let mut place = message[..HEAD].to_vec();
        place.resize(message.len(), 0xee);
        // SAFETY: place and message outlive the request, which is done at once.
        let request = unsafe {
            let to = (place.as_mut_ptr(), place.len());
            sender.isend_from(message[HEAD..].as_ptr(), HEAD, to, 0, Region::default())
        };
        assert!(sender.test(request.unwrap().unwrap()).unwrap());
        assert!(place[HEAD..].iter().all(|byte| *byte == 0xee));
        let mut room = vec![0; message.len()];
        // SAFETY: the room outlives the request, which is done below.
        let request =
            unsafe { receiver.irecv(room.as_mut_ptr(), room.len(), 0, Region::default()) };
        let request = request.unwrap().unwrap();
        while receiver.test(request).unwrap().is_none() {}
        assert!(room == message);
    }

    /// More than sockets hold, of which nothing is read until all is under way.
    #[test]
    fn what_cannot_leave_at_once_is_copied_and_the_data_may_be_written_again() {
        const HEAD: usize = 16;
        let (mut sender, mut receiver) = pair(true);
        let sizes = [HEAD, 9 << 20, HEAD + 1, 5 << 20];
        let (mut places, mut sends) = (Vec::new(), Vec::new());
        for (number, len) in (0u8..).zip(sizes) {
            let message = bytes(number, len);
            let mut place = message[..HEAD].to_vec();
            place.resize(len, 0xee);
            let mut rest = message[HEAD..].to_vec();
            // SAFETY: the place outlives the request, which is done below; the rest the call.
            let request = unsafe {
                let to = (place.as_mut_ptr(), len);
                sender.isend_from(rest.as_ptr(), HEAD, to, 0, Region::default())
            };
            rest.fill(0xdd);
            sends.push(request.unwrap().unwrap());
            places.push((place, message));
        }
        assert!(sender.test(sends[0]).unwrap());
        assert!(!sender.test(sends[1]).unwrap(), "sockets hold less");
        assert_eq!(places[1].0[HEAD], 0xee, "what has left is not copied");
        for (number, (_, message)) in places.iter().enumerate() {
            let mut room = vec![0; message.len()];
            // SAFETY: the room outlives the request, which is done below.
            let request =
                unsafe { receiver.irecv(room.as_mut_ptr(), room.len(), 0, Region::default()) };
            let request = request.unwrap().unwrap();
            while receiver.test(request).unwrap().is_none() {
                let _ = sender.test(sends[number]).unwrap();
            }
            assert!(room == *message, "message {number}");
        }
        assert!(sends[1..].iter().all(|request| sender.test(*request).unwrap()));
    }

    /// A stream that gives its bytes in pieces of random sizes, with pauses.
    struct Pieces {
        bytes: Vec<u8>,
        at: usize,
        state: u64,
    }

    impl Pieces {
        fn draw(&mut self) -> usize {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            self.state as usize
        }
    }

    impl std::io::Read for Pieces {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.read_vectored(&mut [std::io::IoSliceMut::new(into)])
        }

        fn read_vectored(
            &mut self,
            into: &mut [std::io::IoSliceMut<'_>],
        ) -> std::io::Result<usize> {
            let most = match self.draw() % 4 {
                0 => return Err(ErrorKind::WouldBlock.into()),
                1 => 1 + self.draw() % 8,
                2 => 1 + self.draw() % 200,
                _ => usize::MAX,
            };
            let mut n = 0;
            for part in into {
                let len = part.len().min(most - n).min(self.bytes.len() - self.at);
                part[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
                self.at += len;
                n += len;
            }
            Ok(n)
        }
    }

    /// Messages are received whole or in two places as it comes, some looked at as a whole before.
    #[test]
    fn the_rest_of_a_message_goes_where_it_is_wanted_however_it_comes() {
        const ROOM: usize = 300;
        for seed in 1..2000u64 {
            let mut stream = Pieces { bytes: Vec::new(), at: 0, state: seed };
            let lens: Vec<usize> = (0..30)
                .map(|_| [0, 16, 17, stream.draw() % ROOM, ROOM][stream.draw() % 5])
                .collect();
            for (number, &len) in (0u8..).zip(&lens) {
                stream.bytes.extend((len as u32).to_le_bytes());
                stream.bytes.extend(bytes(number, len));
            }
            let mut own = Pieces { bytes: Vec::new(), at: 0, state: seed + 7 };
            let mut receiver = TcpReceiver::new(stream, seed % 2 == 0);
            let mut slots = vec![vec![0xeeu8; ROOM]; MAX];
            let mut requests = std::collections::VecDeque::new();
            for (number, &len) in lens.iter().enumerate() {
                while requests.len() < MAX {
                    let slot = &mut slots[(number + requests.len()) % MAX];
                    slot.fill(0xee);
                    // SAFETY: the slots outlive the receiver's use of them.
                    let offer =
                        unsafe { receiver.irecv(slot.as_mut_ptr(), ROOM, 0, Region::default()) };
                    requests.push_back(offer.unwrap().unwrap());
                }
                let request = requests.pop_front().unwrap();
                let found = take(&mut receiver, request, &slots[number % MAX], &mut own);
                assert!(found == bytes(number as u8, len), "message {number} of seed {seed}");
            }
        }
    }

    /// Takes the oldest message.
    fn take(
        receiver: &mut TcpReceiver<Pieces>,
        request: crate::Request,
        slot: &[u8],
        own: &mut Pieces,
    ) -> Vec<u8> {
        const HEAD: usize = 16;
        loop {
            if own.draw().is_multiple_of(3) {
                if let Some(len) = receiver.test(request).unwrap() {
                    return slot[..len].to_vec();
                }
                continue;
            }
            let divided = receiver.divided().unwrap();
            match divided.test_head(request, HEAD).unwrap() {
                Head::None => {}
                Head::Whole(len) => return slot[..len].to_vec(),
                Head::Begun(len) => {
                    let mut rest = vec![0; len - HEAD];
                    // SAFETY: as long as what follows the head.
                    while !unsafe { divided.test_rest(request, rest.as_mut_ptr()) }.unwrap() {}
                    return [&slot[..HEAD], &rest[..]].concat();
                }
            }
        }
    }

    /// A stream that has what was put in at once, and counts the reads that bring something.
    #[derive(Clone, Default)]
    struct Counted(std::sync::Arc<std::sync::Mutex<(Vec<u8>, usize)>>);

    impl Counted {
        /// Puts a message in.
        fn put(&self, message: &[u8]) {
            let bytes = &mut self.0.lock().unwrap().0;
            bytes.extend((message.len() as u32).to_le_bytes());
            bytes.extend(message);
        }

        /// Returns the number of reads since the last time.
        fn reads(&self) -> usize {
            std::mem::take(&mut self.0.lock().unwrap().1)
        }
    }

    impl std::io::Read for Counted {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.read_vectored(&mut [std::io::IoSliceMut::new(into)])
        }

        fn read_vectored(
            &mut self,
            into: &mut [std::io::IoSliceMut<'_>],
        ) -> std::io::Result<usize> {
            let (bytes, reads) = &mut *self.0.lock().unwrap();
            if bytes.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            *reads += 1;
            let mut came = 0;
            for part in into {
                let len = part.len().min(bytes.len());
                part[..len].copy_from_slice(&bytes[..len]);
                bytes.drain(..len);
                came += len;
            }
            Ok(came)
        }
    }

    #[test]
    fn a_message_takes_one_receive_and_several_that_have_come_may_share_one() {
        const ROOM: usize = 512 << 10;
        let stream = Counted::default();
        let mut receiver = TcpReceiver::new(stream.clone(), true);
        let mut rooms = vec![vec![0u8; ROOM]; MAX];
        let mut offer = |receiver: &mut TcpReceiver<Counted>, number: usize| {
            let room = rooms[number].as_mut_ptr();
            // SAFETY: the rooms outlive the receiver's use of them.
            let request = unsafe { receiver.irecv(room, ROOM, 0, Region::default()) };
            request.unwrap().unwrap()
        };
        // One that is not small takes another one behind one that is.
        for (len, reads) in [(0, 1), (1, 1), (252, 1), (253, 2), (4096, 1), ((64 << 10) + 16, 1)] {
            let request = offer(&mut receiver, 0);
            assert_eq!(receiver.test(request).unwrap(), None);
            stream.put(&bytes(3, len));
            assert_eq!((receiver.test(request).unwrap(), stream.reads()), (Some(len), reads));
        }
        let requests: Vec<_> = (0..MAX).map(|number| offer(&mut receiver, number)).collect();
        (0..MAX).for_each(|number| stream.put(&bytes(number as u8, 100)));
        assert!(requests.iter().all(|request| receiver.test(*request).unwrap() == Some(100)));
        assert_eq!(stream.reads(), 1);
        // In two places: the rest of one is read with the head of the next.
        const HEAD: usize = 16;
        let requests: Vec<_> = (0..MAX).map(|number| offer(&mut receiver, number)).collect();
        (0..MAX).for_each(|number| stream.put(&bytes(number as u8, ROOM)));
        let mut rest = vec![0; ROOM - HEAD];
        for (number, request) in (0u8..).zip(requests) {
            assert_eq!(receiver.test_head(request, HEAD).unwrap(), Head::Begun(ROOM));
            // SAFETY: as long as what follows the head.
            assert!(unsafe { receiver.test_rest(request, rest.as_mut_ptr()) }.unwrap());
            assert!(rest == bytes(number, ROOM)[HEAD..]);
        }
        assert_eq!(stream.reads(), 1 + MAX);
    }

    #[test]
    fn the_end_of_a_connection_is_an_error_of_requests_that_are_open() {
        let (sender, mut receiver) = pair(true);
        let mut room = [0u8; 8];
        // SAFETY: the room outlives the receiver's use of it.
        let request = unsafe { receiver.irecv(room.as_mut_ptr(), 8, 0, Region::default()) };
        let request = request.unwrap().unwrap();
        assert_eq!(receiver.test(request).unwrap(), None);
        drop(sender);
        let until = Instant::now() + Duration::from_secs(30);
        let error = loop {
            match receiver.test(request) {
                Err(error) => break error,
                Ok(done) => assert!(done.is_none() && Instant::now() < until),
            }
        };
        assert!(error.to_string().starts_with("receiving from a peer"), "{error}");
    }

    #[test]
    fn a_reset_is_an_error_of_requests_that_are_open() {
        use std::io::Write;
        let net = Tcp::at("127.0.0.1:0".parse().unwrap());
        let (handle, mut listener) = net.listen(0).unwrap();
        let peer = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        peer.connect(&address_in(&handle).unwrap().into()).unwrap();
        // The beginning of a message; without lingering, the end of the connection is a reset.
        (&peer).write_all(&[8, 0, 0, 0, 1, 2]).unwrap();
        peer.set_linger(Some(Duration::ZERO)).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        let mut receiver = loop {
            assert!(Instant::now() < until);
            if let Some(receiver) = listener.accept().unwrap() {
                break receiver;
            }
        };
        let mut room = [0u8; 8];
        // SAFETY: the room outlives the receiver's use of it.
        let request = unsafe { receiver.irecv(room.as_mut_ptr(), 8, 0, Region::default()) };
        let request = request.unwrap().unwrap();
        assert_eq!(receiver.test(request).unwrap(), None);
        drop(peer);
        let error = loop {
            match receiver.test(request) {
                Err(error) => break error,
                Ok(done) => assert!(done.is_none() && Instant::now() < until),
            }
        };
        assert!(error.to_string().contains("reset"), "{error}");
    }

    /// The end of a connection with unread data is a reset, too.
    #[test]
    fn a_reset_is_an_error_of_who_sends() {
        static MESSAGE: [u8; 8] = [1; 8];
        let (mut sender, receiver) = pair(true);
        // SAFETY: the message stays for ever.
        let mut send = || unsafe { sender.isend(MESSAGE.as_ptr(), 8, 0, Region::default()) };
        send().unwrap();
        drop(receiver);
        let until = Instant::now() + Duration::from_secs(30);
        let error = loop {
            match send() {
                Err(error) => break error,
                Ok(_) => assert!(Instant::now() < until),
            }
        };
        assert!(error.to_string().contains("Connection reset"), "{error}");
    }

    #[test]
    fn whoever_listens_later_is_found_and_a_bad_address_is_refused() {
        let net = Tcp::at("127.0.0.1:0".parse().unwrap());
        assert!(net.connect(0, Handle([b'x'; HANDLE_BYTES])).is_err());
        let (handle, listener) = net.listen(0).unwrap();
        drop(listener);
        let mut connecting = net.connect(0, handle.clone()).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while !connecting.why().contains("refused") {
            assert!(Instant::now() < until && connecting.progress().unwrap().is_none());
        }
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&address_in(&handle).unwrap().into()).unwrap();
        socket.listen(1).unwrap();
        while connecting.progress().unwrap().is_none() {
            assert!(Instant::now() < until, "{}", connecting.why());
        }
    }
}
