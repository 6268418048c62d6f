//! The messages by which ranks of different processes tell each other of their buffers, outside the
//! kernels: short messages over Unix datagram sockets, with descriptors. They are delivered whole,
//! in order, and never lost; a socket that is full takes more when its owner has read from it.

use crate::bootstrap::id::random;
use crate::device::cuda::memory::export::{Exported, MAX_SEGMENTS};
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The address at which a rank takes messages, and the key with which they have to begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// The abstract name of the socket.
    pub name: [u8; 16],
    /// A key that only the communicator's ranks know: other processes on the host see the socket
    /// too.
    pub key: [u8; 16],
}

/// A buffer that may be mapped.
#[derive(Debug, Default)]
pub struct Offered {
    /// The address of the buffer at its owner.
    pub base: u64,
    /// Bytes of the buffer.
    pub len: u64,
    /// The number of the buffer among the communicator's windows, from 1; 0 if it is no window.
    pub window: u64,
    /// The form in which other processes map the buffer.
    pub exported: Exported,
}

/// The content of a message about a buffer.
#[derive(Debug)]
pub enum BufferEvent {
    /// The buffer may be mapped.
    Offer(Offered),
    /// The receiver's buffer was mapped (true), or cannot be mapped (false).
    Answer(bool),
    /// The buffer has to be unmapped.
    Withdraw,
    /// The receiver's buffer was unmapped.
    Returned,
}

/// A message about a buffer.
#[derive(Debug)]
pub struct BufferMessage {
    /// The rank that sent it.
    pub from: u32,
    /// The number of the buffer.
    pub number: u32,
    /// The generation of the buffer.
    pub generation: u64,
    /// The content of the message.
    pub event: BufferEvent,
}

/// The socket on which a rank takes messages.
pub struct Inbound {
    /// The socket, which is readable when there is a message.
    pub socket: Arc<UnixDatagram>,
    /// The address of the socket.
    pub address: Address,
    /// The number of messages of strangers so far.
    strange: AtomicU64,
}

const WORDS: usize = 10;
const HEAD: usize = 16 + WORDS * 8 + 64;
const LONGEST: usize = HEAD + MAX_SEGMENTS * 8;

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |e| Error::system(what, e, "see ulimit -n")
}

fn socket_name(name: &[u8; 16]) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name([b"oxccl-box-", &name[..]].concat())
}

impl Inbound {
    /// Creates a socket without messages, with a random name and key.
    pub fn new() -> Result<Self> {
        let address = Address { name: random()?, key: random()? };
        let bind = || {
            let socket = UnixDatagram::bind_addr(&socket_name(&address.name)?)?;
            socket.set_nonblocking(true).map(|()| socket)
        };
        let socket = Arc::new(bind().map_err(failed("binding a Unix socket"))?);
        Ok(Self { socket, address, strange: AtomicU64::new(0) })
    }

    /// Takes the next message. `None` if there is none; `Some(None)` for a message that does not
    /// come from a rank of the communicator, which is thrown away. Blocks: never.
    pub fn take(&self) -> Option<Option<BufferMessage>> {
        let mut bytes = [0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SEGMENTS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&*self.socket, &mut slices, &mut control, flags).ok()?.bytes;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        let message = decode(&self.address.key, &bytes[..received], fds);
        if message.is_none() {
            self.note_strange();
        }
        Some(message)
    }

    /// Counts a message of a stranger. The log tells of the first one, and each time that there are
    /// twice as many.
    fn note_strange(&self) {
        let count = self.strange.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            let text = format!("messages about buffers are refused, as no rank sent them: {count}");
            log::line(Level::Info, Subsystem::Reg, &text);
        }
    }
}

/// The outcome of sending a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The datagram is in the socket.
    Delivered,
    /// The socket is full, or the system is short of something: the datagram is to be sent later.
    Later,
    /// The socket is gone, and its owner too.
    Gone,
}

impl Sent {
    fn of(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound => Sent::Gone,
            _ => Sent::Later,
        }
    }
}

/// A message as bytes, with its descriptors.
pub struct Datagram {
    bytes: Vec<u8>,
    fds: Vec<Arc<OwnedFd>>,
}

impl Datagram {
    /// Creates the datagram of a message to the socket with this key.
    pub fn new(key: &[u8; 16], message: &BufferMessage) -> Self {
        let nothing = Offered::default();
        let (kind, offered) = match &message.event {
            BufferEvent::Offer(offered) => (0, offered),
            BufferEvent::Answer(has) => (1 + u64::from(*has), &nothing),
            BufferEvent::Withdraw => (3, &nothing),
            BufferEvent::Returned => (4, &nothing),
        };
        let Offered { base, len, window, exported } = offered;
        let Exported { offset, handle, segments } = exported;
        let by_handle = u64::from(handle.is_some());
        let (from, number, count) =
            (message.from.into(), message.number.into(), segments.len() as u64);
        let words: [u64; WORDS] = [
            kind,
            from,
            number,
            message.generation,
            *base,
            *len,
            *window,
            *offset,
            by_handle,
            count,
        ];
        let mut bytes = key.to_vec();
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(handle.unwrap_or([0; 64]));
        bytes.extend(segments.iter().flat_map(|(size, _)| size.to_le_bytes()));
        Self { bytes, fds: segments.iter().map(|(_, fd)| fd.clone()).collect() }
    }

    /// Sends the datagram. Blocks: never.
    pub fn send(&self, to: &Address) -> Sent {
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.connect_addr(&socket_name(&to.name)?)?;
            Ok(socket)
        };
        let socket = match connect() {
            Ok(socket) => socket,
            Err(error) => return Sent::of(&error),
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SEGMENTS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = self.fds.iter().map(|fd| fd.as_fd()).collect();
        if !fds.is_empty() {
            // There is room for the most descriptors that a buffer has.
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        match sendmsg(&socket, &[IoSlice::new(&self.bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => Sent::Delivered,
            Err(error) => Sent::of(&error.into()),
        }
    }
}

/// Returns the message of a datagram; `None` for anything but a whole message with the right key.
pub(crate) fn decode(key: &[u8; 16], bytes: &[u8], fds: Vec<OwnedFd>) -> Option<BufferMessage> {
    let (theirs, rest) = bytes.split_first_chunk::<16>()?;
    let differing = theirs.iter().zip(key).fold(0, |bits, (a, b)| bits | (a ^ b));
    let (words, rest) = rest.split_first_chunk::<{ WORDS * 8 }>()?;
    let (handle, sizes) = rest.split_first_chunk::<64>()?;
    let mut words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let mut next = || words.next().unwrap_or_default();
    let (kind, from, number, generation) = (next(), next(), next(), next());
    let (base, len, window) = (next(), next(), next());
    let (offset, by_handle, count) = (next(), next(), next());
    if differing != 0 || sizes.len() as u64 != count.checked_mul(8)? || by_handle > 1 {
        return None;
    }
    // Descriptors are missing if this process has no room for them: the buffer cannot be mapped
    // then.
    let fds = if fds.len() as u64 == count { fds } else { Vec::new() };
    let sizes = sizes.as_chunks::<8>().0.iter().map(|size| u64::from_le_bytes(*size));
    let segments = sizes.zip(fds).map(|(size, fd)| (size, Arc::new(fd))).collect();
    let event = match kind {
        0 => {
            let handle = (by_handle == 1).then_some(*handle);
            let exported = Exported { offset, handle, segments };
            BufferEvent::Offer(Offered { base, len, window, exported })
        }
        1 | 2 => BufferEvent::Answer(kind == 2),
        3 => BufferEvent::Withdraw,
        4 => BufferEvent::Returned,
        _ => return None,
    };
    let (from, number) = (u32::try_from(from).ok()?, u32::try_from(number).ok()?);
    Some(BufferMessage { from, number, generation, event })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::sealed_memfd;

    fn offer(segments: Vec<(u64, Arc<OwnedFd>)>, handle: Option<[u8; 64]>) -> BufferMessage {
        let exported = Exported { offset: 256, handle, segments };
        let event = BufferEvent::Offer(Offered { base: 0x7f00_0000, len: 99, window: 7, exported });
        BufferMessage { from: 3, number: 255, generation: 1 << 40, event }
    }

    #[test]
    fn messages_and_their_descriptors_arrive_in_order() {
        let to = Inbound::new().unwrap();
        let file = |pages: usize| Arc::new(sealed_memfd("t", pages * 4096).unwrap());
        let key = &to.address.key;
        for message in [
            offer(vec![(4096, file(1)), (8192, file(2))], None),
            offer(Vec::new(), Some([7; 64])),
            BufferMessage { event: BufferEvent::Answer(true), ..offer(Vec::new(), None) },
        ] {
            assert_eq!(Datagram::new(key, &message).send(&to.address), Sent::Delivered);
        }
        let first = to.take().flatten().unwrap();
        assert_eq!((first.from, first.number, first.generation), (3, 255, 1 << 40));
        let BufferEvent::Offer(Offered { base, len, window, exported }) = first.event else {
            panic!("{first:?}")
        };
        assert_eq!((len, window), (99, 7));
        let sizes: Vec<_> = exported
            .segments
            .iter()
            .map(|(size, fd)| (*size, rustix::fs::fstat(fd).unwrap().st_size))
            .collect();
        assert_eq!((base, exported.offset, exported.handle), (0x7f00_0000, 256, None));
        assert_eq!(sizes, [(4096, 4096), (8192, 8192)]);
        let second = to.take().flatten().unwrap();
        assert!(
            matches!(second.event, BufferEvent::Offer(o) if o.exported.handle == Some([7; 64]))
        );
        assert!(matches!(to.take().flatten().unwrap().event, BufferEvent::Answer(true)));
        assert!(to.take().is_none());
    }

    #[test]
    fn strangers_and_garbage_are_thrown_away() {
        let to = Inbound::new().unwrap();
        let message = || BufferMessage { event: BufferEvent::Withdraw, ..offer(Vec::new(), None) };
        assert!(Datagram::new(&[0; 16], &message()).send(&to.address) == Sent::Delivered);
        let mut short = Datagram::new(&to.address.key, &message());
        short.bytes.pop();
        assert!(short.send(&to.address) == Sent::Delivered);
        let mut lying = Datagram::new(&to.address.key, &message());
        lying.bytes[16 + (WORDS - 1) * 8] = 2;
        lying.bytes.extend([0; 16]);
        assert!(lying.send(&to.address) == Sent::Delivered);
        assert!(Datagram::new(&to.address.key, &message()).send(&to.address) == Sent::Delivered);
        for strange in 1..=2 {
            assert!(matches!(to.take(), Some(None)));
            assert_eq!(to.strange.load(Ordering::Relaxed), strange);
        }
        // A message whose descriptors are missing is taken all the same.
        assert!(to.take().flatten().is_some());
        assert!(matches!(to.take().flatten().unwrap().event, BufferEvent::Withdraw));
        assert!(to.take().is_none());
    }

    #[test]
    fn a_full_box_says_so_and_takes_more_when_it_was_emptied() {
        let to = Inbound::new().unwrap();
        let datagram = Datagram::new(&to.address.key, &offer(Vec::new(), None));
        let mut sent = 0;
        while datagram.send(&to.address) == Sent::Delivered {
            sent += 1;
            assert!(sent < 100_000, "the system bounds it");
        }
        assert!(to.take().is_some());
        assert_eq!(datagram.send(&to.address), Sent::Delivered);
        let mut taken = 0;
        while to.take().is_some() {
            taken += 1;
        }
        assert_eq!(taken, sent);
        let nowhere = Address { name: [9; 16], key: [0; 16] };
        assert_eq!(datagram.send(&nowhere), Sent::Gone);
    }
}
