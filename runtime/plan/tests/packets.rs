//! A model of what carries packets (`kernels/cuda/packets.cuh`) under sequences of operations.
//!
//! Thread blocks are a Kahn network, as ranks are in the abstract machine: one schedule finds every
//! deadlock, and vector clocks tell whether a half is written before the writer knows it read.

use oxccl_plan::packets::Room;
use oxccl_plan::{Collective, Spec};

const RANKS: usize = 5;
const CHANNELS: usize = 4;
/// Lines of a rank that a channel has room for in a half: at first, and behind the large stage.
const LINES: [u64; 2] = [2, 5];
/// Windows after which flags begin anew.
const FLAGS: u64 = 8;
const CLEARED_EVERY: u64 = FLAGS / 2;

/// How many windows each rank's channels have ended, as far as someone knows.
type Clock = [u8; RANKS * CHANNELS];

fn join(clock: &mut Clock, other: &Clock) {
    clock.iter_mut().zip(other).for_each(|(own, theirs)| *own = (*own).max(*theirs));
}

#[derive(Clone, Copy)]
struct Rules {
    /// By how much a channel's number advances, for its own lines, a full share, the room.
    count: fn(u64, u64, u64) -> u64,
    clears: bool,
    /// Whether a rank has mapped all large stages: by operation, rank and channel.
    ready: fn(usize, usize, usize) -> bool,
}

/// As in `run_windows`.
const RULES: Rules =
    Rules { count: |own, _, room| own.div_ceil(room), clears: true, ready: |_, _, _| false };

#[derive(Clone, Copy, Debug)]
struct Call {
    spec: Spec,
    lines: u64,
}

impl Call {
    fn new(collective: Collective, nranks: usize, root: usize, lines: u64) -> Self {
        Self { spec: Spec::new(collective, nranks as u32, root as u32), lines }
    }

    /// Whether a rank sends to another one (`block_for`, `comes_from`).
    fn sends(&self, from: usize, to: usize) -> bool {
        let comes = |block| self.spec.source_rank(block).is_none_or(|rank| rank as usize == from);
        from != to && (0..self.spec.output_blocks(to as u32)).any(comes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// A half is written for which the reader may not be done with what was there.
    Overwritten,
    /// What lies there from long ago has the flag of what comes.
    Stale,
    Deadlock,
}

/// The packets of a rank in a half.
#[derive(Clone, Default)]
struct Slots {
    /// By line; 0 for none.
    numbers: [u64; LINES[1] as usize],
    clock: Clock,
    ready: bool,
    unread: bool,
    /// How many windows the reader has ended when it is done with what was there.
    done: u8,
}

/// A channel of a rank (`Counters`), and the thread block that runs it (`PacketRun`).
#[derive(Clone, Copy, Default)]
struct Channel {
    number: u64,
    large: bool,
    clock: Clock,
    own: u64,
    left: u64,
    sent: bool,
    ready: bool,
    all_ready: bool,
}

impl Channel {
    fn room(&self) -> u64 {
        LINES[usize::from(self.large)]
    }

    fn lines(&self) -> usize {
        self.left.min(self.room()) as usize
    }

    /// Where the reader, a channel of a rank, finds another rank's packets of this window.
    fn slots(&self, reader: usize, from: usize) -> usize {
        let half = (self.number & 1) as usize;
        ((usize::from(self.large) * RANKS * CHANNELS + reader) * 2 + half) * RANKS + from
    }
}

#[derive(Clone)]
struct Machine {
    rules: Rules,
    nranks: usize,
    room: Room,
    operations: usize,
    /// By rank × `CHANNELS` + channel.
    channels: Vec<Channel>,
    /// What each rank knows at the end of a kernel.
    ranks: Vec<Clock>,
    slots: Vec<Slots>,
}

impl Machine {
    fn new(nranks: usize, channels: usize, movers: u64, rules: Rules) -> Self {
        let room = Room { channels: channels as u64, lines: LINES[0], movers };
        let (ranks, slots) = (vec![Clock::default(); nranks], 2 * RANKS * CHANNELS * 2 * RANKS);
        let (channels, slots) =
            (vec![Channel::default(); nranks * CHANNELS], vec![Slots::default(); slots]);
        Self { rules, nranks, room, operations: 0, channels, ranks, slots }
    }

    /// One operation, to its end at all ranks.
    fn run(&mut self, call: &Call) -> Result<(), Fault> {
        let blocks = self.room.blocks(call.lines, self.nranks as u32) as usize;
        let share = call.lines.div_ceil(blocks as u64);
        let begun = self.ranks.clone();
        let used = |index: &usize| index % CHANNELS < blocks;
        let used: Vec<usize> = (0..self.channels.len()).filter(used).collect();
        for &index in &used {
            let (rank, channel) = (index / CHANNELS, index % CHANNELS);
            let own = share.min(call.lines.saturating_sub(channel as u64 * share));
            let ready = (self.rules.ready)(self.operations, rank, channel);
            let state = &mut self.channels[index];
            (state.clock, state.own, state.left) = (begun[rank], own, own);
            (state.ready, state.all_ready) = (ready, ready);
        }
        let start: Vec<u64> = self.channels.iter().map(|channel| channel.number).collect();
        while used.iter().any(|&index| self.channels[index].left > 0) {
            let mut moved = false;
            for &index in &used {
                while self.step(call, index)? {
                    moved = true;
                }
            }
            if !moved {
                return Err(Fault::Deadlock);
            }
        }
        for index in used {
            let state = &mut self.channels[index];
            state.number = start[index] + (self.rules.count)(state.own, share, state.room());
            state.large |= state.own > 0 && !call.spec.collective.rooted() && state.all_ready;
            join(&mut self.ranks[index / CHANNELS], &state.clock);
        }
        // No kernel ends before those of all peers have begun (`announce`).
        self.ranks.iter_mut().for_each(|clock| begun.iter().for_each(|peer| join(clock, peer)));
        self.operations += 1;
        Ok(())
    }

    /// What a thread block does next (`PacketRun::run`); false when it has to wait, or is done.
    fn step(&mut self, call: &Call, index: usize) -> Result<bool, Fault> {
        let state = &mut self.channels[index];
        if state.left > 0 && !state.sent {
            state.number += 1;
            state.sent = true;
            return self.send(call, index).map(|()| true);
        }
        if state.left == 0 || !self.receive(call, index) {
            return Ok(false);
        }
        if self.rules.clears && self.channels[index].number % CLEARED_EVERY < 2 {
            self.clear_half(index)?;
        }
        let state = &mut self.channels[index];
        state.clock[index] += 1;
        state.left -= state.lines() as u64;
        state.sent = false;
        Ok(true)
    }

    fn send(&mut self, call: &Call, index: usize) -> Result<(), Fault> {
        let (own, rank) = (self.channels[index], index / CHANNELS);
        for to in (0..self.nranks).filter(|&to| call.sends(rank, to)) {
            let reader = to * CHANNELS + index % CHANNELS;
            let slots = &mut self.slots[own.slots(reader, rank)];
            if slots.unread || own.clock[reader] < slots.done {
                return Err(Fault::Overwritten);
            }
            let lines = &mut slots.numbers[..own.lines()];
            if lines.iter().any(|&old| old != 0 && old % FLAGS == own.number % FLAGS) {
                return Err(Fault::Stale);
            }
            lines.fill(own.number);
            (slots.clock, slots.ready, slots.unread) = (own.clock, own.ready, true);
        }
        Ok(())
    }

    /// False when not all packets of the window are there.
    fn receive(&mut self, call: &Call, index: usize) -> bool {
        let own = &mut self.channels[index];
        let peers = (0..self.nranks).filter(|&from| call.sends(from, index / CHANNELS));
        let places: Vec<usize> = peers.map(|from| own.slots(index, from)).collect();
        let has_come = |&at: &usize| {
            self.slots[at].numbers[..own.lines()].iter().all(|number| *number == own.number)
        };
        if !places.iter().all(has_come) {
            return false;
        }
        for at in places {
            let slots = &mut self.slots[at];
            join(&mut own.clock, &slots.clock);
            own.all_ready &= slots.ready;
            (slots.unread, slots.done) = (false, own.clock[index] + 1);
        }
        true
    }

    fn clear_half(&mut self, index: usize) -> Result<(), Fault> {
        let own = self.channels[index];
        for from in 0..self.nranks {
            let slots = &mut self.slots[own.slots(index, from)];
            if slots.unread {
                return Err(Fault::Overwritten);
            }
            slots.numbers.fill(own.number);
            slots.done = own.clock[index] + 1;
        }
        Ok(())
    }
}

/// Runs a sequence of operations up to its first fault.
fn verify(mut machine: Machine, calls: &[Call]) -> Result<(), Fault> {
    calls.iter().try_for_each(|call| machine.run(call))
}

/// Calls that differ in who sends to whom, of all lengths around the room's boundaries.
fn calls(nranks: usize, room: &Room) -> Vec<Call> {
    let all = room.all_lines();
    let mut calls: Vec<Call> = Vec::new();
    for (collective, root) in Collective::ALL.into_iter().flat_map(|c| [(c, 0), (c, nranks - 1)]) {
        for lines in [0, 1, all - 1, all, all + 1, 2 * all + 1] {
            let call = Call::new(collective, nranks, root, lines);
            let pairs = (0..nranks * nranks).map(|pair| (pair / nranks, pair % nranks));
            let known = calls.iter().any(|other| {
                let same = |(a, b)| call.sends(a, b) == other.sends(a, b);
                other.lines == lines && (lines == 0 || pairs.clone().all(same))
            });
            if room.fits(collective, lines, u64::MAX) && !known {
                calls.push(call);
            }
        }
    }
    calls
}

/// Runs all sequences of up to so many more operations; how many there are.
fn explore(machine: &Machine, calls: &[Call], more: usize, before: &mut Vec<Call>) -> u64 {
    let mut verified = 0;
    for &call in calls {
        let mut next = machine.clone();
        before.push(call);
        next.run(&call).unwrap_or_else(|fault| panic!("{fault:?} in {:?}: {before:?}", next.room));
        verified += 1;
        if more > 1 {
            verified += explore(&next, calls, more - 1, before);
        }
        before.pop();
    }
    verified
}

#[test]
fn no_half_is_overwritten_unread_in_any_sequence_of_three_operations() {
    let readiness: [fn(usize, usize, usize) -> bool; 3] =
        [|_, _, _| false, |_, _, _| true, |at, rank, channel| at > 0 || (rank + channel) % 2 == 0];
    let mut verified = 0;
    for (nranks, channels) in (2..=RANKS).flat_map(|n| (1..=CHANNELS).map(move |c| (n, c))) {
        // As many thread blocks as there are channels, and as few as there may be.
        for (movers, ready) in [1, u64::MAX].into_iter().flat_map(|m| readiness.map(|r| (m, r))) {
            let machine = Machine::new(nranks, channels, movers, Rules { ready, ..RULES });
            let calls = calls(nranks, &machine.room);
            verified += explore(&machine, &calls, 3, &mut Vec::new());
        }
    }
    println!("{verified} sequences verified");
    assert!(verified > 100_000);
}

#[test]
fn counting_the_windows_of_a_full_share_overwrites_what_is_not_read() {
    let full = Rules { count: |_, share, room| share.div_ceil(room).max(1), ..RULES };
    // The second of two thread blocks has 1, 2, 3 windows where a full share has one more.
    for lines in [5, 9, 13] {
        let calls = [Call::new(Collective::AllReduce, 2, 0, lines); 2];
        let verify = |rules| verify(Machine::new(2, 2, 1, rules), &calls);
        assert_eq!(verify(full), Err(Fault::Overwritten), "{lines} lines");
        assert_eq!(verify(RULES), Ok(()), "{lines} lines");
    }
}

#[test]
fn rooted_collectives_have_one_window_or_would_overwrite_what_is_not_read() {
    let machine = Machine::new(3, 1, 1, RULES);
    let call = Call::new(Collective::Broadcast, 3, 0, 2 * LINES[0] + 1);
    assert!(!machine.room.fits(call.spec.collective, call.lines, u64::MAX));
    assert_eq!(verify(machine, &[call]), Err(Fault::Overwritten));
    for (nranks, channels) in (2..=16).flat_map(|n| (1..=32).map(move |channels| (n, channels))) {
        let room = Room { channels, lines: 128, movers: 480 };
        let one = |lines: u64| lines.div_ceil(room.blocks(lines, nranks)) <= room.lines;
        assert!((0..=room.all_lines()).all(one), "{nranks} ranks, {channels} channels");
    }
}

#[test]
fn no_packet_of_long_ago_is_taken_for_a_new_one() {
    for collective in Collective::ALL {
        let [one, two] = [1, 2].map(|lines| Call::new(collective, 3, 0, lines));
        let first_fault = |rules| {
            let calls = |between| [vec![two], vec![one; between], vec![two]].concat();
            (0..40).find_map(|n| verify(Machine::new(3, 1, 1, rules), &calls(n)).err())
        };
        let never = Rules { clears: false, ..RULES };
        assert_eq!(first_fault(never), Some(Fault::Stale), "{collective:?}");
        assert_eq!(first_fault(RULES), None, "{collective:?}");
    }
}
