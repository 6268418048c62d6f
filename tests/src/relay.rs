//! A relay between the hosts of a network, in user space: it holds their packets up, loses some,
//! and resets a connection.
//!
//! The router sends what comes from a host to a TUN device, whatever its destination. A thread
//! reads the packets there and writes them back when they are due: what comes from the device goes
//! to its destination, as it would have gone without the relay.

use crate::network::{Network, ip};
use crate::sequence::Random;
use oxccl_runtime::bootstrap::wire::wait_for;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The name of the device.
const DEVICE: &str = "relay";
/// The table of the way to the device, and the place of the rules that name it: behind those that
/// cut.
const TABLE: u32 = 77;
const RULES: &str = "pref 200";
/// More than a packet has.
const PACKET_BYTES: usize = 64 << 10;
/// The most packets that are read before those that are due leave.
const TOGETHER: usize = 64;
/// The longest wait while no packet is held up.
const IDLE: Duration = Duration::from_secs(1);
/// The least size of a packet of data. The connections of control send smaller ones once the
/// communicator is made.
const DATA_BYTES: usize = 1000;

/// The delays and losses of a relay.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The least time for which a packet is held up.
    pub delay: Duration,
    /// The longest time beyond it, drawn for each packet. The packets keep their order.
    pub jitter: Duration,
    /// How many of a million packets are lost.
    pub lost_ppm: u64,
    /// The seed from which times and losses are drawn.
    pub seed: u64,
}

/// The numbers of packets so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Those that were held up, and then passed on.
    pub passed: u64,
    /// Those that were lost.
    pub lost: u64,
    /// Those in whose place a reset was sent.
    pub resets: u64,
}

/// A relay that runs until it is dropped.
pub struct Relay {
    shared: Arc<Mutex<Shared>>,
    /// The pipe whose end tells the thread to end; `None` once it has been told.
    running: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// The state that a relay and its thread share.
#[derive(Default)]
struct Shared {
    counts: Counts,
    reset: Reset,
}

/// The connection that is reset.
#[derive(Default)]
enum Reset {
    #[default]
    None,
    /// The one that sends the next packet of data.
    Next,
    /// This one: packets of both directions become resets, until the ends know.
    Of(Connection),
}

/// The ends of a connection, each an address and a port, the lower one first.
type Connection = [Vec<u8>; 2];

impl Relay {
    /// Puts a relay between the hosts of the calling thread's network. An error if the system has
    /// no TUN devices, or does not permit them.
    pub fn start(network: &Network, way: Way) -> Result<Self, String> {
        let tun = open()?;
        let mut names = vec!["all".to_owned(), DEVICE.to_owned()];
        names.extend((0..network.hosts()).map(|host| format!("h{host}")));
        for name in names {
            // The packets come back from another device than the one that leads to their source.
            let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
            std::fs::write(&path, "0").map_err(|e| format!("{path}: {e}"))?;
        }
        ip(&format!("link set {DEVICE} txqueuelen 10000 up"))?;
        ip(&format!("route add default dev {DEVICE} table {TABLE}"))?;
        for host in 0..network.hosts() {
            ip(&format!("rule add {RULES} iif h{host} lookup {TABLE}"))?;
        }
        let (stop, running) = std::io::pipe().map_err(|e| format!("a pipe: {e}"))?;
        let shared = Arc::<Mutex<Shared>>::default();
        let (random, held) = (Random(way.seed), VecDeque::new());
        let mut worker = Worker { tun, stop, shared: shared.clone(), way, random, held };
        let thread = Some(std::thread::spawn(move || worker.run()));
        Ok(Self { shared, running: Some(running), thread })
    }

    /// Returns the numbers of packets so far.
    pub fn counts(&self) -> Counts {
        lock(&self.shared).counts
    }

    /// Resets, for both ends, the connection that sends the next packet of data.
    pub fn reset_next(&self) {
        lock(&self.shared).reset = Reset::Next;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.running.take());
        let ended = self.thread.take().map_or(Ok(()), JoinHandle::join);
        // A second panic would hide the first.
        assert!(ended.is_ok() || std::thread::panicking(), "the relay panicked");
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(|e| e.into_inner())
}

/// Makes a TUN device in the network of the calling thread.
fn open() -> Result<File, String> {
    const PATH: &str = "/dev/net/tun";
    let mut options = File::options();
    let tun = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(PATH);
    let tun = tun.map_err(|e| format!("{PATH}: {e}"))?;
    // SAFETY: a request is made of integers and pointers, which may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(DEVICE.bytes()) {
        *to = from as libc::c_char;
    }
    // Packets of IP, and nothing before them.
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the call reads and writes a request, which outlives it.
    let made = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    match made {
        0 => Ok(tun),
        _ => Err(format!("{PATH}: TUNSETIFF: {}", std::io::Error::last_os_error())),
    }
}

/// The thread of a relay.
struct Worker {
    tun: File,
    stop: PipeReader,
    shared: Arc<Mutex<Shared>>,
    way: Way,
    random: Random,
    /// Packets, and when they are due, in this order.
    held: VecDeque<(Instant, Vec<u8>)>,
}

impl Worker {
    fn run(&mut self) {
        let mut room = vec![0; PACKET_BYTES];
        loop {
            let pause = self.pass_on();
            let (tun, stop) = (&self.tun, &self.stop);
            let mut fds = [PollFd::new(tun, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            wait_for(&mut fds, pause);
            if !fds[1].revents().is_empty() {
                return;
            }
            for _ in 0..TOGETHER {
                // An error is that nothing has come.
                let Ok(bytes) = (&self.tun).read(&mut room) else { break };
                self.take(&room[..bytes]);
            }
        }
    }

    /// Passes the packets on that are due. Returns the time until the next one is.
    fn pass_on(&mut self) -> Duration {
        let now = Instant::now();
        while self.held.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, packet)) = self.held.pop_front() else { break };
            if (&self.tun).write(&packet).is_ok() {
                lock(&self.shared).counts.passed += 1;
            }
        }
        self.held.front().map_or(IDLE, |(due, _)| due.saturating_duration_since(now))
    }

    /// Takes a packet: it is held up, or lost.
    fn take(&mut self, packet: &[u8]) {
        // The device's own: it looks for neighbours by IPv6.
        if packet.first().is_none_or(|first| first >> 4 != 4) {
            return;
        }
        let mut shared = lock(&self.shared);
        if self.random.below(1_000_000) < self.way.lost_ppm {
            shared.counts.lost += 1;
            return;
        }
        let beyond = self.random.below(self.way.jitter.as_nanos() as u64 + 1);
        let due = Instant::now() + self.way.delay + Duration::from_nanos(beyond);
        let due = self.held.back().map_or(due, |(last, _)| due.max(*last));
        self.held.push_back((due, shared.reset_or(packet)));
    }
}

impl Shared {
    /// Returns what is sent for a packet: itself, or the reset of its connection.
    fn reset_or(&mut self, packet: &[u8]) -> Vec<u8> {
        let connection = match &self.reset {
            Reset::None => None,
            _ => connection(packet),
        };
        let Some(connection) = connection else { return packet.to_vec() };
        if matches!(self.reset, Reset::Next) && packet.len() >= DATA_BYTES {
            self.reset = Reset::Of(connection.clone());
        }
        match &self.reset {
            Reset::Of(of) if *of == connection => {
                self.counts.resets += 1;
                reset(packet)
            }
            _ => packet.to_vec(),
        }
    }
}

/// Bytes of the headers of IP without options, and of TCP without any.
const IP_BYTES: usize = 20;
const TCP_BYTES: usize = 20;
const HEADER_BYTES: usize = IP_BYTES + TCP_BYTES;
/// TCP's number in the header of IP.
const TCP: u8 = 6;

/// Returns the connection of a packet; `None` if it is not of TCP.
fn connection(packet: &[u8]) -> Option<Connection> {
    let is_tcp = packet.len() >= HEADER_BYTES && packet[0] == 0x45 && packet[9] == TCP;
    let end = |address: usize, port: usize| {
        [&packet[address..address + 4], &packet[port..port + 2]].concat()
    };
    let mut ends = is_tcp.then(|| [end(12, IP_BYTES), end(16, IP_BYTES + 2)])?;
    ends.sort();
    Some(ends)
}

/// Returns the packet by which the sender of a packet of TCP would reset the connection in its
/// place: with its number in the sequence, which is what the other end waits for.
fn reset(packet: &[u8]) -> Vec<u8> {
    let mut out = packet[..HEADER_BYTES].to_vec();
    out[2..4].copy_from_slice(&(HEADER_BYTES as u16).to_be_bytes());
    out[10..12].fill(0);
    let sum = checksum(&out[..IP_BYTES]);
    out[10..12].copy_from_slice(&sum);
    // It acknowledges nothing, has no options, and the only flag is RST.
    let tcp = &mut out[IP_BYTES..];
    tcp[8..].fill(0);
    (tcp[12], tcp[13]) = ((TCP_BYTES as u8 / 4) << 4, 1 << 2);
    // The sum is also of the addresses, the protocol and the size.
    let sum = checksum(&[&out[12..], &[0, TCP, 0, TCP_BYTES as u8]].concat());
    out[IP_BYTES + 16..IP_BYTES + 18].copy_from_slice(&sum);
    out
}

/// Returns the checksum of IP and TCP over an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let word = |two: &[u8]| u32::from(u16::from_be_bytes([two[0], two[1]]));
    let sum: u32 = bytes.chunks_exact(2).map(word).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (!(sum as u16)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_has_the_ends_and_the_number_of_its_packet_and_right_sums() {
        let ip: [u8; 20] =
            [0x45, 0, 5, 220, 7, 7, 64, 0, 63, TCP, 1, 2, 10, 77, 0, 2, 10, 77, 1, 2];
        let tcp: [u8; 20] = [156, 64, 15, 160, 1, 2, 3, 4, 5, 6, 7, 8, 128, 24, 1, 0, 9, 9, 0, 0];
        let packet = [&ip[..], &tcp, &[7; 1460]].concat();
        let out = reset(&packet);
        assert_eq!(connection(&out), connection(&packet));
        assert_eq!((out.len(), &out[2..4], &out[24..28]), (40, &[0, 40][..], &[1, 2, 3, 4][..]));
        assert_eq!((&out[28..32], &out[32..34]), (&[0; 4][..], &[0x50, 4][..]));
        // Over what has the right sum, the sum is zero.
        assert_eq!(checksum(&out[..20]), [0, 0]);
        assert_eq!(checksum(&[&out[12..], &[0, TCP, 0, 20]].concat()), [0, 0]);
        let back = [&out[..12], &out[16..20], &out[12..16], &out[22..24], &out[20..22], &out[24..]];
        assert_eq!(connection(&back.concat()), connection(&packet));
        assert_eq!(connection(&out[..39]), None);
    }
}
