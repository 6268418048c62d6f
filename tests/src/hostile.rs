//! What bytes from outside may do: every reader of such bytes, with what has to hold whatever they
//! are. The fuzz targets in `fuzz/` call these functions; `tests/hostile.rs` replays seeded inputs.

use oxccl::nccl::config;
use oxccl_net::interface::Interface;
use oxccl_runtime::bootstrap::auth::{Client, Ends, Progress, Role, Server};
use oxccl_runtime::bootstrap::encryption::Key;
use oxccl_runtime::bootstrap::launch::{self, Meet};
use oxccl_runtime::bootstrap::root::{self, Action, Machine};
use oxccl_runtime::bootstrap::wire::Frame;
use oxccl_runtime::bootstrap::{ID_BYTES, UniqueId};
use oxccl_runtime::config::file::{self, Entry};
use oxccl_runtime::link::message::HEADER_BYTES;
use oxccl_runtime::link::notice::{self, Notice};
use oxccl_runtime::ras::nccl::conversation::{self, Conversation};
use oxccl_runtime::ras::nccl::{Survey, json, text};
use oxccl_runtime::ras::verdict::{Patience, verdicts};
use oxccl_runtime::recorder::wire;
use oxccl_runtime::{Code, Result, fuzzing};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A reader of bytes from outside.
pub type Target = fn(&[u8]);

/// All of them, by name.
pub const TARGETS: [(&str, Target); 5] = [
    ("bootstrap", bootstrap),
    ("identity", identity),
    ("message", message),
    ("launch", launched),
    ("structures", structures),
];

/// Frames, both sides of the handshake, and the rendezvous; the first byte chooses.
pub fn bootstrap(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    match choice % 4 {
        0 => frames(data),
        1 => server(data),
        2 => tampered_handshake(data),
        _ => rendezvous(data),
    }
}

/// Ids, what ranks say about themselves, also on GPUs, and tables of that; the first byte chooses.
pub fn identity(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    match choice % 6 {
        0 => id(data),
        1 => {
            if let Ok(again) = fuzzing::blob(3, data) {
                assert_eq!(again, data, "a blob means what it says and nothing else");
            }
        }
        2 => {
            if let Some(id) = fuzzing::id_in_file(data) {
                let text = launch::hex(&id.encode());
                assert!(data[..2 * ID_BYTES].eq_ignore_ascii_case(text.as_bytes()));
            }
        }
        3 => {
            if let Ok(again) = fuzzing::offer(3, data) {
                let once_more = fuzzing::offer(3, &again);
                assert!(once_more.is_ok_and(|bytes| bytes == again), "an offer stays what it is");
            }
        }
        4 => {
            let knows_the_key = data.starts_with(&[7; 16]);
            assert!(knows_the_key || !fuzzing::is_mail(&[7; 16], data));
        }
        _ => table(data),
    }
}

/// Handles of connections, streams of messages, notices, what clients of the RAS service say, and
/// states of processes; the first byte chooses.
pub fn message(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    match choice % 5 {
        0 => handle(data),
        1 => messages(data),
        2 => notices(data),
        3 => client(data),
        _ => state(data),
    }
}

/// Plays a client of the RAS service: its words mean the same in whatever pieces they come, and
/// every answer is a short line.
fn client(data: &[u8]) {
    let conversation = || Conversation::new(Duration::from_secs(5));
    let actions = conversation().hear(data);
    let mut slow = conversation();
    let in_pieces: Vec<_> = data.chunks(3).flat_map(|piece| slow.hear(piece)).collect();
    assert_eq!(actions, in_pieces);
    for action in &actions {
        if let conversation::Action::Say(answer) = action {
            assert!(answer.ends_with(b"\n") && answer.len() <= 1058, "{answer:?}");
        }
    }
}

/// The state of a process of another host: a report can be made of it.
fn state(data: &[u8]) {
    let Some(process) = wire::decode(data) else { return };
    let job = [process];
    assert!(wire::encode(&job[0]).len() <= notice::STATUS_BYTES);
    let causes = verdicts(&job, Patience::default());
    let survey = Survey::new(&job, &[], causes, 0.0);
    for verbose in [false, true] {
        let text = text::report(&survey, verbose);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
    assert!(json::report(&survey, "now").ends_with("]\n}\n"));
}

fn handle(data: &[u8]) {
    let mut bytes = [0; 128];
    bytes.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    if let Some(address) = fuzzing::handle(bytes) {
        let text = address.to_string();
        let mut again = [0; 128];
        again[..text.len()].copy_from_slice(text.as_bytes());
        assert_eq!(fuzzing::handle(again), Some(address));
    }
}

/// The launchers' variables, the choice of an interface, and configuration files; the first byte
/// chooses.
pub fn launched(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    if choice % 3 == 2 {
        return configuration_file(data);
    }
    let text = String::from_utf8_lossy(data);
    let fields: Vec<&str> = text.split('\0').collect();
    let field = |i: usize| fields.get(i).copied().unwrap_or_default();
    if choice % 3 == 0 {
        let lookup = |name: &str| {
            let value = fields.iter().find_map(|f| f.strip_prefix(name)?.strip_prefix('='));
            value.map(str::to_owned).filter(|v| !v.is_empty())
        };
        let own = [field(0), field(1), field(2)];
        if let Ok(Some(launch)) = fuzzing::launch(own, &lookup) {
            assert!(launch.rank < launch.nranks && launch.local_rank < launch.nranks);
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let (Meet::Job(name) | Meet::Host(name) | Meet::Parent(name)) = launch.meet else {
                return;
            };
            assert!(name.len() < 200 && name.chars().all(plain), "{name:?} becomes a file's name");
        }
    } else {
        let found: Vec<_> = fields
            .iter()
            .skip(2)
            .zip(["192.0.2.1:0", "[fe80::1%2]:0", "127.0.0.1:0", "[2001:db8::1]:0"])
            .map(|(name, address)| Interface {
                name: (*name).to_owned(),
                address: address.parse().expect("an address"),
            })
            .collect();
        if let Ok(chosen) = fuzzing::interface(&found, field(0), field(1)) {
            assert!(found.iter().any(|i| i.address == chosen));
        }
    }
}

/// What NCCL_SIM_INFO_INITIALIZER sets.
pub const SIM_MAGIC: u32 = 0x7468_5283;

/// ncclConfig_t and ncclSimInfo_t in memory of exactly the size that they say. The first byte
/// chooses; the second sets the right magic and gives texts or does not.
pub fn structures(data: &[u8]) {
    let &[choice, how, ref image @ ..] = data else { return };
    let mut size = [0; 8];
    size.iter_mut().zip(image).for_each(|(to, from)| *to = *from);
    let size = usize::from_ne_bytes(size);
    let len = if (8..=4096).contains(&size) { size } else { 8 };
    let mut exact = image[..len.min(image.len())].to_vec();
    exact.resize(len, 0);
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = exact.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    let magic = if choice % 2 == 0 { config::NCCL_API_MAGIC } else { SIM_MAGIC };
    if how & 1 == 0 {
        put(8, &magic.to_ne_bytes());
    }
    if choice % 2 == 1 {
        return estimate(exact.into_boxed_slice());
    }
    let texts = [c"Socket", c"a name \xff"].map(|text| text.to_owned());
    let given = [how & 2 == 0, how & 4 == 0];
    let places =
        [offset_of!(config::ncclConfig_t, netName), offset_of!(config::ncclConfig_t, commName)];
    for ((text, given), at) in texts.iter().zip(given).zip(places) {
        let address = if given { text.as_ptr() as usize } else { 0 };
        put(at, &address.to_ne_bytes());
    }
    options(&exact.into_boxed_slice(), given);
}

/// Only what an initializer made is taken; then the options are within their limits.
fn options(image: &[u8], given: [bool; 2]) {
    let function = "ncclCommInitRankConfig";
    // SAFETY: the image has as many bytes as it says, and its texts end with a zero byte.
    match unsafe { config::parse(image.as_ptr().cast(), function) } {
        Ok(options) => {
            assert!(image.len() >= 24 && image.len().is_multiple_of(8));
            assert!(1 <= options.min_ctas && options.min_ctas <= options.max_ctas);
            assert!((0..=2).contains(&options.graph_usage_mode));
            let texts = [options.net_name, options.name];
            assert!(texts.iter().zip(given).all(|(text, given)| given || text.is_none()));
        }
        Err(error) => {
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.to_string().starts_with(function), "{error}");
        }
    }
}

/// Only the estimate is written, and only where it has a place.
fn estimate(mut image: Box<[u8]>) {
    let mut expected = image.clone();
    // SAFETY: the image has as many bytes as it says.
    let stored =
        unsafe { config::store_estimate(image.as_mut_ptr().cast(), 1.5, "ncclGroupSimulateEnd") };
    match stored {
        Ok(()) => expected[16..20].copy_from_slice(&1.5f32.to_ne_bytes()),
        Err(error) => assert_eq!(error.code(), Code::InvalidArgument),
    }
    assert_eq!(image, expected);
}

/// A file's variables have names of their own and values without what no environment could hold;
/// written again they are the same.
fn configuration_file(data: &[u8]) {
    let parsed = file::parse(data);
    assert!(parsed.complaints.len() <= 8);
    let mut again = String::new();
    let mut names = BTreeSet::new();
    for Entry { line, name, value } in &parsed.entries {
        let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(!name.is_empty() && name.chars().all(of_name), "{name:?}");
        assert!(names.insert(name), "{name} twice");
        assert!((1..=data.len()).contains(line));
        again += &format!("{name}={value}\n");
    }
    let lines = file::parse(again.as_bytes());
    assert_eq!(lines.complaints, []);
    let pairs = |entries: &[Entry]| -> Vec<_> {
        entries.iter().map(|e| (e.name.clone(), e.value.clone())).collect()
    };
    assert_eq!(pairs(&lines.entries), pairs(&parsed.entries));
    assert!(!again.contains('\0'));
}

/// A notice is there with its last byte and not before; one that was read says the same again.
fn notices(data: &[u8]) {
    const LONGEST: usize = notice::STATUS_BYTES + 13;
    match notice::parse(data) {
        Ok(None) => assert!(data.len() < LONGEST),
        Ok(Some((read, len))) => {
            assert!(len <= data.len().min(LONGEST));
            for cut in 0..len {
                assert_eq!(notice::parse(&data[..cut]), Ok(None));
            }
            let Notice::Failed(record) = read else { return };
            let Ok(Some((Notice::Failed(again), _))) = notice::parse(&notice::failed(&record))
            else {
                panic!("{record:?} cannot be read again");
            };
            assert_eq!((again.code, again.culprit), (record.code, record.culprit));
            assert!(record.text.starts_with(&again.text));
        }
        Err(text) => assert!(text.starts_with("a notice of "), "{text}"),
    }
}

/// Frames come out as they went in, however the bytes are cut.
fn frames(data: &[u8]) {
    const MAX_BODY: usize = 300;
    let Some((&cut, stream)) = data.split_first() else { return };
    let (mut incoming, mut again) = (Vec::new(), Vec::new());
    for chunk in stream.chunks(usize::from(cut) + 1) {
        incoming.extend(chunk);
        loop {
            match fuzzing::take_frame(&mut incoming, MAX_BODY) {
                Ok(Some(Frame { kind, body })) => {
                    again.extend((body.len() as u32).to_le_bytes());
                    again.push(kind);
                    again.extend(body);
                }
                Ok(None) => break,
                Err(len) => {
                    assert!(len > MAX_BODY);
                    return;
                }
            }
        }
        assert!(incoming.len() < 5 + MAX_BODY, "a frame that was complete was not taken");
    }
    again.extend(incoming);
    assert_eq!(again, stream);
}

const ENDS: Ends = Ends { role: Role::Rendezvous, from: 1, to: u32::MAX, comm: 7 };

/// Nobody gets in without the secret.
fn server(data: &[u8]) {
    let key = data.first().is_some_and(|byte| byte % 2 == 0).then(|| Key::new(b"of members"));
    let Ok(mut server) = Server::new([1; 32], ENDS, 4, key) else { return };
    let mut rest = data;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(server.wants().min(rest.len()));
        assert!(!now.is_empty(), "the machine wants nothing and did not say that it is done");
        match server.input(now) {
            Ok(Progress::Done(..) | Progress::Differs(..)) => {
                panic!("authenticated without the secret")
            }
            Ok(Progress::Send(bytes)) => assert_eq!(bytes.len(), 64),
            Ok(Progress::More) => {}
            Err(_) => return,
        }
        rest = later;
    }
}

/// One changed byte anywhere in the handshake and it fails; none, and it succeeds.
fn tampered_handshake(data: &[u8]) {
    let &[place, change, cut, ..] = data else { return };
    let key = (cut & 32 != 0).then(|| Key::new(b"of both"));
    let client = Client::new([1; 32], ENDS, key.clone());
    let made = client.and_then(|c| Ok((c, Server::new([1; 32], ENDS, 4, key)?)));
    let Ok(((mut client, hello), mut server)) = made else { return };
    let mut position = 0;
    let mut over_the_wire = |bytes: Vec<u8>| -> Vec<u8> {
        bytes
            .into_iter()
            .map(|b| {
                position += 1;
                if position - 1 == usize::from(place) { b ^ change } else { b }
            })
            .collect()
    };
    let step = usize::from(cut % 32) + 1;
    let (mut to_server, mut accepted) = (over_the_wire(hello), false);
    let outcome = (|| -> Result<()> {
        loop {
            let mut to_client = Vec::new();
            for chunk in std::mem::take(&mut to_server).chunks(step) {
                let mut chunk = chunk;
                while !chunk.is_empty() {
                    let (now, later) = chunk.split_at(server.wants().min(chunk.len()));
                    match server.input(now)? {
                        Progress::More => {}
                        Progress::Send(reply)
                        | Progress::Done(reply, _)
                        | Progress::Differs(reply, _) => {
                            to_client = over_the_wire(reply);
                        }
                    }
                    chunk = later;
                }
            }
            if to_client.is_empty() {
                return Ok(());
            }
            for chunk in to_client.chunks(step) {
                match client.input(chunk)? {
                    Progress::More => {}
                    Progress::Send(proof) => to_server = over_the_wire(proof),
                    Progress::Done(..) => accepted = true,
                    Progress::Differs(..) => {}
                }
            }
        }
    })();
    let intact = change == 0 || usize::from(place) >= position;
    assert_eq!(outcome.is_ok() && accepted, intact, "byte {place} of {position} ^ {change}");
}

/// The rendezvous answers members only, with whole tables, whatever they send.
fn rendezvous(data: &[u8]) {
    let mut machine = Machine::default();
    let mut joined = BTreeSet::new();
    let mut rest = data;
    while let [rank, what, len, tail @ ..] = rest {
        let (rank, what) = (u32::from(*rank) << (what >> 6), what & 63);
        let (body, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        let actions = match what {
            0 => machine.closed(rank, false),
            7 => machine.closed(rank, true),
            8 => machine.deadline(Duration::from_secs(1), false),
            9 => machine.absent(rank, "is not there".to_owned(), true),
            kind => {
                if kind == root::JOIN {
                    joined.insert(rank);
                }
                machine.frame(rank, "somewhere", Frame { kind, body: body.to_vec() })
            }
        };
        assert!(actions.len() <= 2, "{actions:?}");
        for action in actions {
            if let Action::Send(to, frame) = action {
                assert!(to.iter().all(|rank| joined.contains(rank)), "one of {to:?} never joined");
                let tables = frame.kind == root::TABLE;
                let whole = (1..256).any(|n| root::split_table(&frame.body, n).is_some());
                assert!(!tables || whole, "{:?}", frame.body);
            }
        }
    }
}

fn id(data: &[u8]) {
    let mut bytes = [0; ID_BYTES];
    bytes.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    if let Some(id) = UniqueId::decode(&bytes) {
        assert_eq!(id.encode(), bytes, "an id means what it says and nothing else");
    }
}

fn table(data: &[u8]) {
    let Some((&[a, b], body)) = data.split_first_chunk::<2>() else { return };
    let nranks = u32::from(a) | u32::from(b) << 8;
    if let Some(blobs) = root::split_table(body, nranks) {
        assert_eq!(blobs.len(), nranks as usize);
        let parts = blobs.iter().flat_map(|blob| {
            (blob.len() as u32).to_le_bytes().into_iter().chain(blob.iter().copied())
        });
        assert!(parts.eq(body.iter().copied()));
    }
}

/// A stream that gives what it has in pieces, and then nothing for now.
struct Pieces {
    left: Vec<u8>,
    piece: usize,
    pause: bool,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.pause = !self.pause;
        if self.pause || self.left.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let n = self.piece.min(buffer.len()).min(self.left.len());
        buffer[..n].copy_from_slice(&self.left[..n]);
        self.left.drain(..n);
        Ok(n)
    }
}

/// Messages come out as they were sent; one that is longer than its slot or shorter than its header
/// is an error.
fn messages(data: &[u8]) {
    const SLOT: usize = 40;
    let Some((&piece, stream)) = data.split_first() else { return };
    let piece = usize::from(piece) + 1;
    let looks = 2 * (stream.len() + 8);
    let pieces = Pieces { left: stream.to_vec(), piece, pause: false };
    let mut incoming = fuzzing::Incoming::new(pieces, SLOT);
    let lengths = HEADER_BYTES..=HEADER_BYTES + SLOT;
    let mut rest = stream;
    for _ in 0..looks {
        match incoming.take() {
            Ok(None) => {}
            Ok(Some((descriptor, data))) => {
                let (what, count) = descriptor.to_words();
                let Some(Ok((message, tail))) = first_message(rest, &lengths) else {
                    panic!("a message came out of {rest:?}");
                };
                let (header, sent) = message.split_at(HEADER_BYTES);
                assert_eq!(
                    (&header[..4], &header[8..]),
                    (&what.to_le_bytes()[..], &count.to_le_bytes()[..])
                );
                assert_eq!(data, sent);
                rest = tail;
            }
            Err(_) => {
                // A later message may be the one that is too long: those before it are not lost
                // to the rank, which fails as a whole.
                assert!(has_bad_message(rest, &lengths));
                return;
            }
        }
    }
    assert!(first_message(rest, &lengths).is_none(), "a complete message was not handed over");
}

/// A message and what follows it.
type First<'a> = (&'a [u8], &'a [u8]);

/// The first message of a stream; an error for a length that none has, None for one that is not
/// complete. A short length is looked at when all of the message is there.
fn first_message<'a>(
    stream: &'a [u8],
    lengths: &RangeInclusive<usize>,
) -> Option<Result<First<'a>, usize>> {
    let (len, tail) = stream.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > *lengths.end() {
        return Some(Err(len));
    }
    let parts = tail.split_at_checked(len)?;
    Some(if len < *lengths.start() { Err(len) } else { Ok(parts) })
}

fn has_bad_message(mut stream: &[u8], lengths: &RangeInclusive<usize>) -> bool {
    while let Some(message) = first_message(stream, lengths) {
        let Ok((_, tail)) = message else { return true };
        stream = tail;
    }
    false
}
