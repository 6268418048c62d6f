//! The proxies, with the kernels' side played by the tests.

use super::*;
use crate::link::message::{Direction, Incoming, Outgoing};
use crate::op::follow::TOLD;
use links::KnownCalls;
use oxccl_net::{Connection, Receiver, Region, Request, Sender};
use std::collections::VecDeque;

type Pipe = Arc<Mutex<VecDeque<Vec<u8>>>>;

struct Entry(Pipe);

impl Connection for Entry {}

impl Sender for Entry {
    unsafe fn isend(
        &mut self,
        data: *const u8,
        len: usize,
        _tag: u32,
        _region: Region,
    ) -> oxccl_net::Result<Option<Request>> {
        // SAFETY: readable by the contract.
        let bytes = unsafe { std::slice::from_raw_parts(data, len) };
        self.0.lock().unwrap().push_back(bytes.to_vec());
        Ok(Some(1))
    }

    fn test(&mut self, _request: Request) -> oxccl_net::Result<bool> {
        Ok(true)
    }
}

/// Completes its requests in order, and lets a connection end with requests.
struct Exit(Pipe, VecDeque<*mut u8>);

// SAFETY: used by one thread.
unsafe impl Send for Exit {}

impl Connection for Exit {}

impl Receiver for Exit {
    unsafe fn irecv(
        &mut self,
        data: *mut u8,
        _capacity: usize,
        _tag: u32,
        _region: Region,
    ) -> oxccl_net::Result<Option<Request>> {
        self.1.push_back(data);
        Ok(Some(1))
    }

    fn ends_with_requests(&self) -> bool {
        true
    }

    fn test(&mut self, _request: Request) -> oxccl_net::Result<Option<usize>> {
        let Some(bytes) = self.0.lock().unwrap().pop_front() else { return Ok(None) };
        let to = self.1.pop_front().unwrap();
        // SAFETY: writable until the request is done, and messages fit.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(Some(bytes.len()))
    }
}

/// Memory that counts as a GPU's.
fn as_of_a_gpu(like: &Memory) -> Memory {
    let owner = Arc::new(vec![0u8; like.len]);
    let place = Place::Gpu { flush: false, dma_buf: None };
    Memory { data: owner.as_ptr().cast_mut(), len: like.len, place, owner }
}

/// An edge whose messages come back, its words, and the memory of its slots: on the GPU, where
/// that is asked for.
fn echo(
    start: u64,
    words: &abi::NetWords,
    [sends, receives]: [bool; 2],
) -> (Served, Shared, [Memory; 2]) {
    let pipe = Pipe::default();
    let outgoing = Outgoing::new(Box::new(Entry(pipe.clone())), 0, 64);
    let incoming = Incoming::new(Box::new(Exit(pipe, VecDeque::new())), 0, 64);
    let mut edge = MessageEdge::new(outgoing, incoming);
    if sends {
        edge.move_slots(Direction::Outgoing, as_of_a_gpu(&edge.memory()[0])).unwrap();
    }
    if receives {
        edge.move_slots(Direction::Incoming, as_of_a_gpu(&edge.memory()[1])).unwrap();
    }
    let memory = edge.memory();
    (Served::new(edge, start), Shared::new((0, 0), None, words, start), memory)
}

fn slot(memory: &Memory, number: u64) -> *mut u8 {
    let slot = number as usize % EDGE_SLOTS * (HEADER_BYTES + 64);
    memory.data.wrapping_add(slot + HEADER_BYTES)
}

/// The words of the header in front of a slot's data.
fn header(memory: &Memory, number: u64) -> *mut [u64; 2] {
    slot(memory, number).wrapping_sub(HEADER_BYTES).cast()
}

/// Checks that no outgoing slot has the mark or the packets of an older message than its last.
fn expect_no_older(words: &abi::NetWords, start: u64, written: u64) {
    for message in written.saturating_sub(EDGE_SLOTS as u64)..written {
        let slot = (start.wrapping_add(message) % 4) as usize;
        let number = start.wrapping_add(message + 1);
        let mark = word(&words.outgoing[slot].mark).load(Ordering::Relaxed);
        assert_eq!(mark as u32, number as u32);
        assert!(Packed::read(&words.outgoing_packed[slot], number).is_some());
    }
}

/// Tells that message `message` is that of operation `message`, if five do not divide it.
fn tell_call(words: &abi::NetWords, start: u64, message: u64) {
    let number = start.wrapping_add(message);
    if !message.is_multiple_of(5) {
        let call = number.wrapping_add(1) << 48 | (message + 1);
        word(&words.outgoing_calls[number as usize % abi::NET_CALLS])
            .store(call, Ordering::Relaxed);
    }
}

/// Checks that the operations of the latest messages are known, and no older ones.
fn expect_operations(shared: &Shared, words: &abi::NetWords, written: u64) {
    let mut known = KnownCalls::default();
    for asked in [written.saturating_sub(2), written] {
        known.read(shared.start, &words.outgoing_calls, asked);
    }
    let operations = known.operations;
    for message in written.saturating_sub(TOLD as u64)..written {
        let expected = if message.is_multiple_of(5) { 0 } else { message + 1 };
        assert_eq!(operations[message as usize % TOLD], expected, "{message} of {written}");
    }
}

/// The kernels' side, played by this thread; the counters wrap around.
#[test]
fn messages_go_from_marks_to_marks_and_no_more_than_there_are_slots() {
    let starts = [0, u64::MAX - 5, u64::from(u32::MAX) - 3, 0, 1, 2];
    for (i, start) in starts.into_iter().enumerate() {
        let on_gpu = [[false, false], [true, true], [true, false], [false, true]][i % 4];
        let words = words_from(start);
        let (mut served, shared, [outgoing, incoming]) = echo(start, &words, on_gpu);
        served.progress(&shared).unwrap();
        assert_eq!(word(&words.room).load(Ordering::Relaxed), start.wrapping_add(4));
        let what = u64::from(Descriptor::message(oxccl_plan::DataType::Int8, 1).to_words().0);
        let (mut written, mut taken) = (0u64, 0u64);
        for round in 0..40u64 {
            // As many as fit, then as many as have come.
            let room = word(&words.room).load(Ordering::Relaxed).wrapping_sub(start);
            let fits = room.min(taken + EDGE_SLOTS as u64);
            for message in written..fits {
                let number = start.wrapping_add(message);
                tell_call(&words, start, message);
                // SAFETY: a free slot.
                unsafe { slot(&outgoing, message).write(message as u8) };
                let there = &words.outgoing[(number % 4) as usize];
                if message % 3 == 0 && !on_gpu[0] {
                    let there = &words.outgoing_packed[(number % 4) as usize];
                    let words = [what | 1 << 32, 1];
                    packed::write(there, number.wrapping_add(1), words, &[message as u8]);
                    continue;
                }
                if on_gpu[0] {
                    // SAFETY: the header of that slot.
                    unsafe { header(&outgoing, message).write_unaligned([what, 1]) };
                }
                word(&there.what).store(what | 1 << 32, Ordering::Relaxed);
                word(&there.count).store(1, Ordering::Relaxed);
                let mark = mark_of(number.wrapping_add(1), 1, what | 1 << 32);
                word(&there.mark).store(mark, Ordering::Relaxed);
            }
            written = written.max(fits);
            assert_eq!(shared.written(), written, "round {round} from {start}");
            expect_operations(&shared, &words, written);
            word(&words.wanted).store(start.wrapping_add(taken + 1), Ordering::Relaxed);
            while served.progress(&shared).unwrap() {}
            expect_no_older(&words, start, written);
            while taken < written {
                let number = start.wrapping_add(taken);
                let here = &words.incoming[(number % 4) as usize];
                // SAFETY: a slot with a message, and its header.
                let (data, header) = unsafe {
                    let header = header(&incoming, taken).read_unaligned();
                    (slot(&incoming, taken).read(), header)
                };
                let told = if on_gpu[1] { [0, 0] } else { [what, 1] };
                assert_eq!((data, header), (taken as u8, [what, 1]), "{on_gpu:?}");
                assert_eq!([here.what, here.count], [told[0] | 1 << 32, told[1]]);
                let number = number.wrapping_add(1);
                let small = &words.incoming_packed[(number.wrapping_sub(1) % 4) as usize];
                let small = Packed::read(small, number).expect("packets of this number");
                let expected = if on_gpu[1] { u64::MAX } else { what | 1 << 32 };
                assert_eq!(small.what, expected);
                assert!(on_gpu[1] || small.data() == [taken as u8]);
                let expected = mark_of(number, here.count, here.what);
                assert_eq!(word(&here.mark).load(Ordering::Relaxed), expected);
                taken += 1;
            }
            word(&words.taken).store(start.wrapping_add(taken), Ordering::Relaxed);
            while served.progress(&shared).unwrap() {}
        }
        assert!(written >= 100, "{written}");
        assert_eq!(shared.taken.load(Ordering::Relaxed), taken);
    }
}

/// A switch has no slot for a result before this side offers one, and a result may come long after
/// a rank of the rail has left.
#[test]
fn what_a_switch_owes_is_looked_for_at_once_and_awaited_longer() {
    let what = u64::from(Descriptor::message(oxccl_plan::DataType::Int8, 1).to_words().0);
    for rail in [None, Some(Rail { rank: 3, team: 2 })] {
        let words = words_from(0);
        let (mut served, _, _) = echo(0, &words, [false, false]);
        let shared = Shared::new((8, 0), rail, &words, 0);
        while served.progress(&shared).unwrap() {}
        packed::write(&words.outgoing_packed[0], 1, [what | 1 << 32, 1], &[7]);
        while served.progress(&shared).unwrap() {}
        assert_eq!((served.sent, served.arrived), (1, u64::from(rail.is_some())));
        let (start, left) = (Instant::now(), word(&words.left));
        let told_after = [Duration::ZERO, QUIET, LONG].into_iter().find(|time| {
            served.note_left(&shared, false, start + *time);
            left.load(Ordering::Relaxed) == 1
        });
        assert_eq!(told_after, Some(if rail.is_some() { LONG } else { QUIET }));
    }
    let rail = Rail { rank: 3, team: 2 };
    assert_eq!([1, 2, 3, 5].map(|rank| rail.has(rank)), [true, false, true, true]);
}
