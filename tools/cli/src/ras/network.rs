//! The connections between hosts: what the kernel counts of them tells which way is cut, loses
//! data, or is slow.

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
};
use oxccl_runtime::ras::verdict::{Cause, Verdict, list, span};
use oxccl_runtime::recorder::read::{Process, Unanswered};
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;

/// The bytes from which on a way is judged, the share of them that was sent again from which on it
/// loses data, and the share of the others' rate below which it is slow.
const SENT_BYTES: u64 = 16 << 20;
const LOST_SHARE: f64 = 0.01;
const SLOW_SHARE: f64 = 0.25;
/// The fewest ways among which one is called slow.
const WAYS: usize = 3;
/// The time without an answer, and the number of times that data were sent again meanwhile, from
/// which on a way is cut: the kernel first waits for a fifth of a second, then twice as long each
/// time.
const SILENT_MS: u32 = 1000;
const UNANSWERED: u8 = 2;

/// A connection, with counts of the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Connection {
    /// The number of the socket among all files.
    inode: u32,
    from: IpAddr,
    to: IpAddr,
    sent_bytes: u64,
    again_bytes: u64,
    round_trip_us: u32,
    /// The bytes per second that arrived when the connection last carried as much as it could.
    rate: u64,
    /// True if there was too little to send for a higher rate to show, or if it was mostly the
    /// receiver that had no room.
    is_held: bool,
    /// True while data are sent again and again.
    is_unanswered: bool,
    /// The time since anything came.
    silent_ms: u32,
}

impl Connection {
    /// Reads what the kernel tells of a connection: `info` has the structure `tcp_info` of
    /// `linux/tcp.h`, which newer kernels lengthen at its end. `None` of kernels before 4.19, which
    /// do not count what is sent again.
    fn read(id: &SocketId, inode: u32, info: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            inode,
            from: id.source_address.to_canonical(),
            to: id.destination_address.to_canonical(),
            sent_bytes: long(200)?,
            again_bytes: long(208)?,
            round_trip_us: word(68)?,
            rate: long(160)?,
            is_held: info.get(7)? & 1 != 0 || long(176)? > long(168)? / 2,
            is_unanswered: *info.get(2)? >= UNANSWERED,
            silent_ms: word(52)?.min(word(56)?),
        })
    }
}

/// Returns the connections of this host; an error if the kernel tells of none.
pub(super) fn connections() -> std::io::Result<Vec<Connection>> {
    match (dump(AF_INET), dump(AF_INET6)) {
        (Err(error), Err(_)) => Err(error.into()),
        (a, b) => Ok([a, b].into_iter().flat_map(Result::unwrap_or_default).collect()),
    }
}

/// Asks the kernel for all established connections of a family.
fn dump(family: u8) -> rustix::io::Result<Vec<Connection>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO,
        states: StateFlags::ESTABLISHED,
        socket_id: SocketId::new_v4(),
    };
    let message = SockDiagMessage::InetRequest(request);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &bytes, SendFlags::empty(), &kernel)?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        // The kernel has the answer ready; it never waits for anything.
        match rustix::net::recv(&socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((length, _)) if length > 0 && read(&buffer[..length], &mut found)? => {}
            Err(error) if found.is_empty() => return Err(error),
            Ok(_) | Err(_) => return Ok(found),
        }
    }
}

/// Reads messages of the kernel. Returns whether more follow, or the kernel's error.
fn read(mut bytes: &[u8], found: &mut Vec<Connection>) -> rustix::io::Result<bool> {
    // A message begins with its length, and is aligned to four bytes.
    while let Some(length) = bytes.first_chunk().map(|length| u32::from_ne_bytes(*length)) {
        let length = (length as usize).next_multiple_of(4).max(16);
        let message = NetlinkMessage::<SockDiagMessage>::deserialize(bytes);
        bytes = bytes.get(length..).unwrap_or_default();
        // One that cannot be read is about another kind of socket.
        let Ok(message) = message else { continue };
        match message.payload {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                let InetResponse { header, nlas } = *response;
                let info = nlas.iter().find_map(|nla| match nla {
                    Nla::TcpInfo(info) => Some(info),
                    _ => None,
                });
                let read = |info: &Vec<u8>| Connection::read(&header.socket_id, header.inode, info);
                found.extend(info.and_then(read));
            }
            NetlinkPayload::Error(error) => {
                let code = error.code.map_or(0, |code| code.get().saturating_neg());
                return Err(rustix::io::Errno::from_raw_os_error(code));
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Returns the connections to other hosts of each of some processes of this one.
pub(super) fn of_processes<'a>(
    root: &Path,
    processes: &'a [Process],
    connections: &[Connection],
) -> Vec<(&'a Process, Connection)> {
    let mut by_inode: HashMap<String, &Connection> = HashMap::new();
    let own: HashSet<IpAddr> = connections.iter().map(|of| of.from).collect();
    for connection in connections.iter().filter(|of| !own.contains(&of.to)) {
        by_inode.insert(format!("socket:[{}]", connection.inode), connection);
    }
    let mut found = Vec::new();
    for process in processes {
        let folder = root.join(process.pid.to_string()).join("fd");
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        let own = names.filter_map(|name| by_inode.get(name.to_str()?).copied());
        found.extend(own.map(|connection| (process, *connection)));
    }
    found
}

/// The way from this host to another one.
#[derive(Default)]
struct Way {
    sent_bytes: u64,
    again_bytes: u64,
    round_trip_us: u32,
    rate: u64,
    is_held: bool,
    is_unanswered: bool,
    /// The time since anything came on any connection.
    silent_ms: u32,
    /// The processes, each with its ranks.
    processes: BTreeMap<u32, BTreeSet<u32>>,
}

impl Way {
    fn is_cut(&self) -> bool {
        self.is_unanswered && self.silent_ms >= SILENT_MS
    }
}

/// The ways from a host to other ones, by both addresses.
#[derive(Default)]
pub(super) struct Ways {
    host: String,
    ways: BTreeMap<(IpAddr, IpAddr), Way>,
}

impl Ways {
    /// Returns the ways of the connections of some processes of a host.
    pub(super) fn of(connections: &[(&Process, Connection)]) -> Self {
        let mut ways: BTreeMap<(IpAddr, IpAddr), Way> = BTreeMap::new();
        for (process, of) in connections {
            let none = || Way { silent_ms: u32::MAX, ..Way::default() };
            let way = ways.entry((of.from, of.to)).or_insert_with(none);
            way.sent_bytes += of.sent_bytes;
            way.again_bytes += of.again_bytes;
            way.round_trip_us = way.round_trip_us.max(of.round_trip_us);
            way.is_unanswered |= of.is_unanswered;
            way.silent_ms = way.silent_ms.min(of.silent_ms);
            if of.rate > way.rate {
                (way.rate, way.is_held) = (of.rate, of.is_held);
            }
            let ranks = way.processes.entry(process.pid).or_default();
            ranks.extend(process.ranks.iter().map(|rank| rank.rank));
        }
        ways.retain(|_, way| way.sent_bytes >= SENT_BYTES || way.is_cut());
        let host = connections.first().map_or_else(String::new, |(of, _)| of.host.clone());
        Self { host, ways }
    }

    /// Marks the ranks that do not answer, as processes know them, where the way to their host is
    /// cut.
    pub(super) fn mark(&self, processes: &mut [Process]) {
        for of in processes.iter_mut().flat_map(|process| &mut process.unanswered) {
            let host = of.host.parse::<IpAddr>();
            let is_cut = |((_, to), way): &(&(IpAddr, IpAddr), &Way)| {
                way.is_cut() && host.as_ref().is_ok_and(|host| host == to)
            };
            let silent_ms = self.ways.iter().find(is_cut).map(|(_, way)| way.silent_ms);
            of.cut_ns = silent_ms.map(|ms| u64::from(ms) * 1_000_000);
        }
    }

    /// Returns the ways that are cut, lose data, or carry far less than the others, except those
    /// that some verdicts tell of already: `processes` know the hosts of ranks.
    pub(super) fn verdicts(&self, processes: &[Process], told: &[Verdict]) -> Vec<Verdict> {
        let of_cut = told.iter().filter(|verdict| verdict.cause == Cause::SilentLink);
        let unanswered = || processes.iter().flat_map(|process| &process.unanswered);
        let beyond = of_cut.flat_map(|verdict| {
            let is_of =
                |of: &&Unanswered| of.comm == verdict.comm && verdict.ranks.contains(&of.rank);
            unanswered().filter(is_of).filter_map(|of| of.host.parse().ok())
        });
        let beyond: HashSet<IpAddr> = beyond.collect();
        let mut rates: Vec<u64> = self.ways.values().map(|way| way.rate).collect();
        rates.sort_unstable();
        let usual = rates.get(rates.len() / 2).copied().filter(|_| rates.len() >= WAYS);
        let untold = self.ways.iter().filter(|((_, to), way)| {
            let is_told = way.is_cut() && beyond.contains(to);
            !is_told
        });
        untold.filter_map(|(ends, way)| self.verdict(*ends, way, usual)).collect()
    }

    /// Returns what is wrong with a way; `usual` is the median of the rates of several.
    fn verdict(
        &self,
        (from, to): (IpAddr, IpAddr),
        way: &Way,
        usual: Option<u64>,
    ) -> Option<Verdict> {
        let share = way.again_bytes as f64 / way.sent_bytes as f64;
        let mbytes = |bytes: u64| bytes as f64 / 1e6;
        let fact = match usual {
            _ if way.is_cut() => {
                let silent = span(u64::from(way.silent_ms) * 1_000_000);
                format!("is cut: no answer has come for {silent}, and data are sent again")
            }
            _ if share >= LOST_SHARE => format!(
                "loses data: {:.1} % of {:.1} MB were sent again",
                share * 100.0,
                mbytes(way.sent_bytes)
            ),
            Some(usual) if !way.is_held && (way.rate as f64) < SLOW_SHARE * usual as f64 => {
                let (own, usual) = (mbytes(way.rate), mbytes(usual));
                format!("carries {own:.1} MB/s, where {usual:.1} MB/s are usual from this host")
            }
            _ => return None,
        };
        let named = |(pid, ranks): (&u32, &BTreeSet<u32>)| match ranks.is_empty() {
            true => pid.to_string(),
            false => format!("{pid} ({})", list(&Vec::from_iter(ranks.iter().copied()))),
        };
        let pids: Vec<String> = way.processes.iter().map(named).collect();
        let noun = if pids.len() == 1 { "process" } else { "processes" };
        let text = format!(
            "the connection from {} ({from}) to {to} {fact}, round trip {}, {noun} {}: look at \
             adapters, cables and switches on it, and at the MTU (oxccl doctor --host)",
            self.host,
            span(u64::from(way.round_trip_us) * 1000),
            pids.join(", ")
        );
        let cause = if way.is_cut() { Cause::SilentLink } else { Cause::SlowLink };
        Some(Verdict { cause, comm: 0, ranks: Vec::new(), text })
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use oxccl_runtime::recorder::read::ProcessState;
    use serde_json::{Value, json};

    fn process(pid: u32) -> Process {
        Process {
            pid,
            host: "node1".to_owned(),
            address: "192.0.2.1".to_owned(),
            command: "train".to_owned(),
            state: ProcessState::Alive,
            read_ns: 0,
            clock_set_ns: 0,
            ranks: Vec::new(),
            left_out: false,
            service: String::new(),
            unanswered: Vec::new(),
        }
    }

    fn to(host: u8, sent_bytes: u64, again_bytes: u64, rate: u64) -> Connection {
        let [from, to] = [1, host].map(|host| IpAddr::from([192, 0, 2, host]));
        Connection {
            inode: u32::from(host),
            from,
            to,
            sent_bytes,
            again_bytes,
            round_trip_us: 300,
            rate,
            is_held: false,
            is_unanswered: false,
            silent_ms: 5000,
        }
    }

    fn texts(connections: &[(&Process, Connection)]) -> Vec<String> {
        let verdicts = Ways::of(connections).verdicts(&[], &[]);
        let is_cut = |verdict: &Verdict| verdict.text.contains(" is cut: ");
        assert!(verdicts.iter().all(|verdict| verdict.cause.holds_up() == is_cut(verdict)));
        verdicts.into_iter().map(|verdict| verdict.text).collect()
    }

    #[test]
    fn a_way_that_loses_data_is_told_with_its_processes() {
        let [mut a, b] = [7, 5].map(process);
        a.ranks = sample::on_gpu("collective", (0, 0), &json!([]), &Value::Null).ranks;
        let sent = 100 << 20;
        // Nothing is concluded from a few bytes.
        let all = [
            (&a, to(2, sent, 0, 9)),
            (&b, to(2, sent, sent / 10, 9)),
            (&a, to(3, sent, sent / 200, 9)),
            (&a, to(4, 1000, 1000, 9)),
        ];
        let [text] = &texts(&all)[..] else { panic!("one") };
        assert_eq!(
            text,
            "the connection from node1 (192.0.2.1) to 192.0.2.2 loses data: 5.0 % of 209.7 MB were \
             sent again, round trip 0.3 ms, processes 5, 7 (rank 0): look at adapters, cables and \
             switches on it, and at the MTU (oxccl doctor --host)"
        );
        assert!(texts(&[]).is_empty());
    }

    #[test]
    fn a_way_on_which_no_answer_comes_is_cut_however_little_was_sent() {
        let process = process(7);
        let way = |host, is_unanswered, silent_ms| {
            let of = Connection { is_unanswered, silent_ms, ..to(host, 90, 10, 9) };
            (&process, of)
        };
        let idle = |host| way(host, false, 9000);
        let all = [
            way(2, true, 1400),
            idle(2),
            way(3, true, 999),
            // Another connection of the way hears something.
            way(4, true, 2000),
            way(4, false, 10),
            idle(5),
        ];
        let [text] = &texts(&all)[..] else { panic!("one") };
        let begin = "the connection from node1 (192.0.2.1) to 192.0.2.2 is cut: no answer has come \
                     for 1.4 s, and data are sent again, round trip 0.3 ms, process 7: look at ";
        assert!(text.starts_with(begin), "{text}");
    }

    #[test]
    fn ranks_beyond_a_cut_way_are_marked_and_told_once() {
        let mut waiting = process(7);
        let unanswered = |host| Unanswered {
            comm: 5,
            rank: host,
            host: format!("192.0.2.{host}"),
            pid: 1,
            cut_ns: None,
        };
        waiting.unanswered = vec![unanswered(2), unanswered(3)];
        let of = Connection { is_unanswered: true, silent_ms: 1200, ..to(2, 90, 10, 9) };
        let ways = Ways::of(&[(&waiting, of), (&waiting, to(3, 90, 0, 9))]);
        ways.mark(std::slice::from_mut(&mut waiting));
        let cut: Vec<_> = waiting.unanswered.iter().map(|of| of.cut_ns).collect();
        assert_eq!(cut, [Some(1_200_000_000), None]);
        let told = |comm, cause| {
            let verdict = Verdict { cause, comm, ranks: vec![2], text: String::new() };
            ways.verdicts(std::slice::from_ref(&waiting), &[verdict]).len()
        };
        assert_eq!(told(5, Cause::SilentLink), 0);
        assert_eq!((told(5, Cause::Unseen), told(6, Cause::SilentLink)), (1, 1));
    }

    #[test]
    fn a_way_is_slow_beside_others() {
        let process = process(7);
        let way = |host, rate| (&process, to(host, 100 << 20, 0, rate));
        let all = [way(2, 900_000_000), way(3, 200_000_000), way(4, 1_000_000_000)];
        let [text] = &texts(&all)[..] else { panic!("one") };
        assert!(
            text.contains("192.0.2.3 carries 200.0 MB/s, where 900.0 MB/s are usual"),
            "{text}"
        );
        assert!(texts(&all[..2]).is_empty(), "of two, none is usual");
        let mut idle = all;
        idle[1].1.is_held = true;
        assert!(texts(&idle).is_empty());
    }

    #[test]
    fn what_the_kernel_counts_is_read_of_an_own_connection() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("an address");
        let mut near = std::net::TcpStream::connect(address).expect("a connection");
        let mut far = listener.accept().expect("a connection").0;
        near.write_all(&[7; 5000]).expect("room");
        far.read_exact(&mut [0; 5000]).expect("bytes");
        let all = match connections() {
            Ok(all) => all,
            Err(error) => return oxccl_tests::missing("inet_diag", &error.to_string()),
        };
        let own = Process { pid: std::process::id(), ..process(0) };
        let mut looped = all.clone();
        // Connections of a host with itself do not count.
        assert!(of_processes(Path::new("/proc"), std::slice::from_ref(&own), &all).is_empty());
        looped.iter_mut().for_each(|of| of.to = IpAddr::from([192, 0, 2, 9]));
        let found = of_processes(Path::new("/proc"), std::slice::from_ref(&own), &looped);
        let sent: Vec<u64> = found.iter().map(|(_, of)| of.sent_bytes).collect();
        assert!(sent.contains(&5000) && sent.contains(&0), "{found:?}");
        assert!(found.iter().all(|(_, of)| of.again_bytes == 0 && of.round_trip_us > 0));
    }

    #[test]
    fn garbage_is_no_connection() {
        let mut found = Vec::new();
        for length in 0..40 {
            let _ = (read(&vec![0xff; length], &mut found), read(&vec![0; length], &mut found));
        }
        assert!(Connection::read(&SocketId::new_v4(), 1, &[0; 215]).is_none() && found.is_empty());
    }
}
