//! Right input with seeded changes into every reader of bytes from outside: what `fuzz/run`
//! searches longer for, in every test run.

use oxccl::nccl::config::{self, NCCL_API_MAGIC};
use oxccl_plan::DataType;
use oxccl_runtime::bootstrap::root::{self, BYE, GATHER, JOIN};
use oxccl_runtime::bootstrap::{UniqueId, launch};
use oxccl_runtime::link::direct::Record;
use oxccl_runtime::link::message::HEADER_BYTES;
use oxccl_runtime::link::notice;
use oxccl_runtime::op::descriptor::Descriptor;
use oxccl_runtime::op::{Transfer, Transfers};
use oxccl_runtime::recorder::{Memory, Recorder, What, read, wire};
use oxccl_runtime::{Code, fuzzing};
use oxccl_tests::hostile::{SIM_MAGIC, TARGETS};
use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Inputs that are right, to change a little.
fn good(target: &str) -> Vec<Vec<u8>> {
    let id = UniqueId::new("127.0.0.1:4711".parse().expect("an address")).expect("an id");
    let frame =
        |kind: u8, body: &[u8]| [&(body.len() as u32).to_le_bytes()[..], &[kind], body].concat();
    let event =
        |rank: u8, kind: u8, body: &[u8]| [&[rank, kind, body.len() as u8][..], body].concat();
    let record = {
        let (code, text) = (Code::RemoteError, "ünderneath".to_owned());
        Record { code, culprit: 3, reporter: 1, text }
    };
    match target {
        "bootstrap" => {
            let join = root::join(2, Duration::from_secs(1), &[9, 9]);
            let two = [event(0, JOIN, &join), event(1, JOIN, &join)].concat();
            let round = [event(1, GATHER, &[5]), event(0, GATHER, &[])].concat();
            let bye = [event(0, BYE, &[]), event(1, BYE, &[]), event(1, 7, &[])].concat();
            vec![
                [&[0, 2][..], &frame(1, &join), &frame(2, &[7; 300]), &frame(5, &[])].concat(),
                // A member that encrypts, but does not know the secret.
                [
                    &[1][..],
                    b"OXCCLAU3",
                    &[1, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255, 7, 0, 0, 0, 0, 0, 0, 0, 1],
                    &[0; 112],
                ]
                .concat(),
                vec![2, 200, 1, 7],
                [vec![3], two, round, bye].concat(),
            ]
        }
        "identity" => {
            let mut blob = vec![0; 150];
            blob[..4].copy_from_slice(&fuzzing::FORMAT.to_le_bytes());
            blob[4] = 77;
            vec![
                [&[0][..], &id.encode()].concat(),
                [&[1][..], &blob].concat(),
                [&[2][..], launch::hex(&id.encode()).as_bytes(), b" 12 34"].concat(),
                vec![3, 2, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0],
            ]
        }
        "message" => vec![
            [&[0][..], b"[fe80::1%3]:4711"].concat(),
            [&[2][..], &notice::failed(&record)].concat(),
            [&[2][..], &notice::goodbye(7), notice::PULSE].concat(),
            [&[2][..], &notice::status_wanted(7, Duration::MAX), &notice::status(8, b"no")]
                .concat(),
            b"\x03CLIENT PROTOCOL 2\r\nTIMEOUT 1.5\nSET FORMAT json\nMONITOR all\nSTATUS\n"
                .to_vec(),
            [vec![4], state()].concat(),
            [&[1, 3][..], &sent(&[8, 9]), &sent(&[]), &56u32.to_le_bytes(), &[7; 20]].concat(),
        ],
        "structures" => vec![
            [&[0, 0][..], &structure(96, NCCL_API_MAGIC, 23007, &[0, 2, 3, 4])].concat(),
            [&[0, 6][..], &structure(24, NCCL_API_MAGIC, 21403, &[1])].concat(),
            // More CTAs at least than at most, which is not given.
            [&[0, 6][..], &structure(40, NCCL_API_MAGIC, 21700, &[0, i32::MIN, 235, i32::MIN])]
                .concat(),
            [&[1, 0][..], &structure(24, SIM_MAGIC, 22200, &[])].concat(),
            [&[0, 2][..], &structure(120, NCCL_API_MAGIC, 23203, &[0, 2, 3, 4])].concat(),
        ],
        "launch" => vec![
            b"\x000\x002\x000".to_vec(),
            b"\x00\0\0\0RANK=1\0WORLD_SIZE=2\0LOCAL_RANK=1\0MASTER_PORT=1".to_vec(),
            b"\x01^=lo,docker\0AF_INET\0lo\0eth0\0ib0".to_vec(),
            b"\x02# a\n\nNCCL_DEBUG = INFO\r\nOXCCL_TIMEOUT=\nNCCL_DEBUG=x\nrubbish".to_vec(),
        ],
        other => panic!("no seeds for {other}"),
    }
}

/// A structure whose fields are left alone but for the first ones.
fn structure(size: usize, magic: u32, version: u32, fields: &[i32]) -> Vec<u8> {
    let mut bytes = size.to_ne_bytes().to_vec();
    bytes.extend(magic.to_ne_bytes());
    bytes.extend(version.to_ne_bytes());
    let left_alone = std::iter::repeat(&i32::MIN);
    let words = fields.iter().chain(left_alone).flat_map(|field| field.to_ne_bytes());
    let room = size - bytes.len();
    bytes.extend(words.take(room));
    bytes
}

/// The bytes by which this process tells others of a communicator of four ranks, two of them here.
fn state() -> Vec<u8> {
    let recorders = [Recorder::new(), Recorder::new()];
    for (rank, recorder) in (1..).zip(&recorders) {
        recorder.identify(0xbad, (rank, 4), Memory::Gpu(3), "tp");
        let transfer = Transfer {
            peer: 0,
            send: true,
            data: std::ptr::null_mut(),
            bytes: 8,
            dtype: DataType::Int8,
        };
        let transfers = Transfers { operation: "send/recv", list: vec![transfer] };
        let what = What::of(&transfers.into());
        let called = recorder.call(&what, 1);
        recorder.wait(called.number, 0, 1, true);
    }
    let own = read::process(Path::new("/proc"), std::process::id());
    wire::encode(&own.expect("this process has recorders"))
}

/// A message between hosts: length, header, data.
fn sent(data: &[u8]) -> Vec<u8> {
    let len = (HEADER_BYTES + data.len()) as u32;
    [&len.to_le_bytes()[..], &[6; HEADER_BYTES], data].concat()
}

#[test]
fn no_bytes_from_outside_break_a_reader() {
    for (name, target) in TARGETS {
        let good = good(name);
        good.iter().for_each(|input| target(input));
        for seed in 0..20_000u64 {
            let mut random = Random(seed);
            let mut input = good[random.below(good.len())].clone();
            for _ in 0..=random.below(4) {
                let at = random.below(input.len());
                match random.below(4) {
                    0 => input[at] = random.next() as u8,
                    1 => input[at] ^= 1 << random.below(8),
                    2 => input.truncate(at.max(1)),
                    _ => {
                        let copy = input[at..].to_vec();
                        input.extend(&copy[..random.below(copy.len() + 1)]);
                    }
                }
            }
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "{name} breaks at seed {seed}: {input:?}");
        }
    }
}

#[test]
fn what_is_right_is_taken() {
    // The replay above proves nothing when the readers refuse everything.
    assert!(fuzzing::blob(0, &good("identity")[1][1..]).is_ok());
    for image in &good("structures")[1..2] {
        // SAFETY: it has as many bytes as it says and no texts.
        let options = unsafe { config::parse(image[2..].as_ptr().cast(), "a function") };
        assert!(options.is_ok(), "{options:?}");
    }
    assert!(fuzzing::id_in_file(&good("identity")[2][1..]).is_some());
    let mut handle = [0; 128];
    handle[..16].copy_from_slice(b"[fe80::1%3]:4711");
    assert!(fuzzing::handle(handle).is_some());
    let launch = fuzzing::launch(["1", "2", ""], &|_| None).expect("it is right");
    assert_eq!(launch.map(|l| (l.rank, l.nranks)), Some((1, 2)));
}

#[test]
fn a_message_without_room_for_its_header_is_an_error() {
    for len in 0..HEADER_BYTES as u32 {
        // A good one before it comes out; its bytes shall not pass for the short one's header.
        let short = [&sent(&[8, 9])[..], &len.to_le_bytes(), &vec![5; len as usize]].concat();
        let mut incoming = fuzzing::Incoming::new(Cursor::new(short), 40);
        let first = incoming.take().expect("it is right").expect("it is there");
        let six = Descriptor::from_words(0x0606_0606, 0x0606_0606_0606_0606);
        assert_eq!(first, (six, vec![8, 9]));
        let error = incoming.take().expect_err("it is short").to_string();
        let text = format!("a message of {len} bytes is shorter than its header of 16");
        assert!(error.contains(&text), "{error}");
    }
}
