//! Seeded random sequences of operations on one communicator, checked bit for bit against the
//! reference interpreter.
//!
//! Every rank draws the same sequence from the seed, so each knows all inputs and what every
//! output has to be. Outputs are poisoned before and surrounded by bytes that must not change.

use crate::endpoint;
use oxccl_plan::{Carrier, Collective, DataType, Geometry, Plan, ReduceOp, Spec, reference};
use oxccl_runtime::comm::Communicator;
use oxccl_runtime::device::host::arena;
use oxccl_runtime::device::host::collective::capacity;
use oxccl_runtime::device::host::endpoint::CarrierCounts;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::op::{Bound, Call, Transfer};
use oxccl_runtime::{Result, group};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// SplitMix64.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend(self.draw().to_ne_bytes());
        }
        out.truncate(len);
        out
    }
}

/// What a sequence is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Where it all comes from.
    pub seed: u64,
    /// Number of operations.
    pub operations: u32,
    /// The largest input or output in bytes.
    pub max_bytes: u64,
}

/// A rank of the communicator that lives in this thread.
pub struct Player {
    /// Its communicator.
    pub comm: Arc<Communicator>,
    /// Its stream.
    pub stream: Arc<Stream>,
}

/// Memory with a frame around it.
pub(crate) struct Framed {
    base: *mut u8,
    len: usize,
    offset: usize,
    arena: bool,
}

const FRAME: usize = 64;
const POISON: u8 = 0xc7;

impl Framed {
    pub(crate) fn new(len: usize, offset: usize, arena: bool) -> Result<Self> {
        let whole = len + offset + 2 * FRAME;
        let base = if arena {
            arena::allocate(whole)?
        } else {
            Box::into_raw(vec![0u8; whole].into_boxed_slice()).cast()
        };
        let framed = Self { base, len, offset, arena };
        framed.all().fill(POISON);
        Ok(framed)
    }

    #[allow(clippy::mut_from_ref, reason = "the frame owns its memory and tests look in turn")]
    pub(crate) fn all(&self) -> &mut [u8] {
        let whole = self.len + self.offset + 2 * FRAME;
        // SAFETY: the memory has this size and nobody else uses it while a test looks at it.
        unsafe { std::slice::from_raw_parts_mut(self.base, whole) }
    }

    pub(crate) fn inner(&self) -> &mut [u8] {
        let from = FRAME + self.offset;
        &mut self.all()[from..from + self.len]
    }

    /// Returns the address and the length of the memory between the frames.
    fn place(&self) -> (usize, usize) {
        (self.inner().as_ptr().addr(), self.len)
    }

    pub(crate) fn frame_is_whole(&self) -> bool {
        let from = FRAME + self.offset;
        let all = self.all();
        all[..from].iter().chain(&all[from + self.len..]).all(|&b| b == POISON)
    }
}

impl Drop for Framed {
    fn drop(&mut self) {
        if self.arena {
            arena::free(self.base).expect("it came from the arena");
            return;
        }
        let whole = self.len + self.offset + 2 * FRAME;
        // SAFETY: it came from a boxed slice of this length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.base, whole)) });
    }
}

/// Memory that a pending operation uses and what has to be in it afterwards.
struct Expectation {
    buffer: Framed,
    at: usize,
    bytes: Vec<u8>,
    what: String,
}

/// What the operations under way use.
#[derive(Default)]
struct Pending {
    inputs: Vec<Framed>,
    expectations: Vec<Expectation>,
    /// Buffers that are registered as long.
    registered: Vec<(Arc<Communicator>, u64)>,
}

impl Pending {
    /// Registers a buffer until its operation is over.
    fn register(&mut self, comm: &Arc<Communicator>, (at, len): (usize, usize)) -> Result<()> {
        let handle = comm.register(at, len)?;
        self.registered.push((comm.clone(), handle));
        Ok(())
    }

    /// Checks all results and lets the memory go, so that later buffers have the same addresses;
    /// how many of the outputs lie where others lay before.
    fn check(mut self, seen: &mut HashSet<usize>) -> usize {
        let outputs = self.expectations.iter().map(|e| e.buffer.inner().as_ptr().addr());
        let again = outputs.filter(|&at| !seen.insert(at)).count();
        self.expectations.iter().for_each(Expectation::check);
        for (comm, handle) in self.registered.drain(..) {
            assert!(comm.deregister(handle).expect("it is not used"), "a registration is gone");
        }
        again
    }
}

impl Drop for Pending {
    /// After a failure, too, memory goes after its registration.
    fn drop(&mut self) {
        for (comm, handle) in self.registered.drain(..) {
            let _failed = comm.deregister(handle);
        }
    }
}

/// Plays a whole sequence on the ranks of this thread. Panics where a result is wrong.
pub fn play(players: &[Player], shape: Shape) -> Result<()> {
    let mut random = Random(shape.seed);
    let (mut number, mut expected) = (0, CarrierCounts::default());
    let (mut seen, mut again) = (HashSet::new(), 0);
    let carriers = |player: &Player| endpoint(&player.comm).state().carriers;
    let before: Vec<CarrierCounts> = players.iter().map(carriers).collect();
    while number < shape.operations {
        let mut pending = Pending::default();
        let together = if random.below(4) == 0 { 1 + random.below(4) } else { 1 };
        let sleeper = random.below(200);
        let grouped = players.len() > 1 || together > 1;
        if grouped {
            group::start();
        }
        for _ in 0..together {
            let draw = random.draw();
            if draw.is_multiple_of(5) {
                exchange(players, Random(draw), shape, &mut pending, number)?;
            } else {
                let used = collective(players, Random(draw), shape, &mut pending, number)?;
                if let Some(carrier) = used {
                    expected[carrier as usize] += 1;
                }
            }
            number += 1;
        }
        if players.iter().any(|p| u64::from(p.comm.rank()) == sleeper) {
            // A late rank: the others have to wait for it.
            std::thread::sleep(Duration::from_millis(3));
        }
        if grouped {
            group::end()?;
        }
        for player in players {
            player.stream.synchronize(None)?;
        }
        again += pending.check(&mut seen);
    }
    let many = shape.operations >= 1000;
    assert!(again > 0 || !many, "no buffer was allocated where one had been");
    // Data was moved by what the choice of the plan says.
    for (player, before) in players.iter().zip(before) {
        let after = carriers(player);
        let counted: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        assert_eq!(counted, expected, "by the number of the carrier");
    }
    Ok(())
}

impl Expectation {
    fn check(&self) {
        let got = &self.buffer.inner()[self.at..self.at + self.bytes.len()];
        if let Some(i) = (0..got.len()).find(|&i| got[i] != self.bytes[i]) {
            let (got, expected) = (got[i], self.bytes[i]);
            panic!("{}: byte {i} is {got:#x}, expected {expected:#x}", self.what);
        }
        assert!(self.buffer.frame_is_whole(), "{}: bytes around the buffer changed", self.what);
    }
}

/// Mostly small sizes, now and then large ones.
fn size(random: &mut Random, max: u64) -> u64 {
    let class = random.below(1000);
    let limit = match class {
        0..=99 => 16,
        100..=699 => 4 << 10,
        700..=969 => 64 << 10,
        970..=996 => 1 << 20,
        _ => max,
    };
    random.below(limit.min(max) + 1)
}

/// Launches a collective on all ranks of this thread; how it uses the memory of others.
fn collective(
    players: &[Player],
    mut random: Random,
    shape: Shape,
    pending: &mut Pending,
    number: u32,
) -> Result<Option<Carrier>> {
    let nranks = players[0].comm.nranks();
    let kind = Collective::ALL[random.below(Collective::ALL.len() as u64) as usize];
    let spec = Spec::new(kind, nranks, random.below(u64::from(nranks)) as u32);
    let dtype = DataType::ALL[random.below(12) as usize];
    let op = ReduceOp::ALL[random.below(5) as usize];
    let blocks = u64::from(spec.input_blocks(spec.root).max(spec.output_blocks(spec.root)));
    let count = size(&mut random, shape.max_bytes) / dtype.size() as u64 / blocks;
    let mapped: Vec<bool> = match random.below(3) {
        0 => vec![true; nranks as usize],
        1 => vec![false; nranks as usize],
        _ => (0..nranks).map(|_| random.below(2) == 0).collect(),
    };
    let in_place: Vec<bool> = (0..nranks).map(|_| random.below(3) == 0).collect();
    let offsets: Vec<usize> = (0..nranks).map(|_| random.below(40) as usize).collect();
    let registered: Vec<bool> = (0..nranks).map(|_| random.below(3) == 0).collect();
    let block = count as usize * dtype.size();
    let data: Vec<Vec<u8>> =
        (0..nranks).map(|r| random.bytes(spec.input_blocks(r) as usize * block)).collect();
    let call =
        |input: *const u8, output| Call { spec, input, output, count, dtype, op, scale: None };
    let probe = call(std::ptr::null(), std::ptr::null_mut());
    let everyone = endpoint(&players[0].comm).one_process || mapped.iter().all(|&m| m);
    let self_overlap = kind == Collective::AllToAll && in_place.iter().any(|&i| i);
    let (expected, used) = expected(&players[0].comm, &probe, everyone && !self_overlap, &data)?;
    for player in players {
        let rank = player.comm.rank();
        let r = rank as usize;
        let place = spec.in_place(rank).filter(|_| in_place[r]);
        let out_bytes = spec.output_blocks(rank) as usize * block;
        // In place both lie in one buffer, as large as the larger of them.
        let len = if place.is_some() { out_bytes.max(data[r].len()) } else { out_bytes };
        let output = Framed::new(len, offsets[r], mapped[r])?;
        let (mut from, mut to, mut at) = (std::ptr::null(), output.inner().as_mut_ptr(), 0);
        if let Some((in_block, out_block)) = place {
            at = in_block as usize * block;
            let input_at = out_block as usize * block;
            output.inner()[input_at..input_at + data[r].len()].copy_from_slice(&data[r]);
            from = output.inner()[input_at..].as_ptr();
            to = output.inner()[at..].as_mut_ptr();
        } else if !data[r].is_empty() {
            let input = Framed::new(data[r].len(), offsets[r] / 2, mapped[r])?;
            input.inner().copy_from_slice(&data[r]);
            from = input.inner().as_ptr();
            let place = input.place();
            pending.inputs.push(input);
            if registered[r] {
                pending.register(&player.comm, place)?;
            }
        }
        let what =
            format!("operation {number} {kind:?} {dtype:?} {op:?} count {count} rank {rank}");
        let (bytes, place) = (expected[r].clone(), output.place());
        pending.expectations.push(Expectation { buffer: output, at, bytes, what });
        if registered[r] {
            pending.register(&player.comm, place)?;
        }
        group::collective(&player.comm, &call(from, to), &player.stream)?;
    }
    Ok(used)
}

/// What all ranks have to get, and what has to move it: by the plan for mapped memory only where
/// `mappable`. `None` where there is nothing to move.
fn expected(
    comm: &Communicator,
    call: &Call,
    mappable: bool,
    data: &[Vec<u8>],
) -> Result<(Vec<Vec<u8>>, Option<Carrier>)> {
    if call.count == 0 {
        return Ok((vec![Vec::new(); data.len()], None));
    }
    let programs = comm.programs(call)?;
    let bound = programs.mapped.as_ref().filter(|_| mappable).unwrap_or(&programs.any);
    let Bound { plan, carrier, .. } = *bound;
    let Call { count, dtype, op, .. } = *call;
    let got = outcome(&plan, endpoint(comm).edge_slot_bytes, count, dtype, op, data);
    Ok((got, Some(carrier)))
}

pub(crate) fn outcome(
    plan: &Plan,
    edge_slot_bytes: usize,
    count: u64,
    dtype: DataType,
    op: ReduceOp,
    inputs: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let geometry = Geometry::new(&plan.layout, count, &capacity(edge_slot_bytes, dtype));
    reference::interpret(plan, geometry, dtype, op, inputs).expect("the plan is verified")
}

/// Sends and receives among a random subset of the ranks, self-sends included.
fn exchange(
    players: &[Player],
    mut random: Random,
    shape: Shape,
    pending: &mut Pending,
    number: u32,
) -> Result<()> {
    let nranks = u64::from(players[0].comm.nranks());
    group::start();
    for message in 0..=random.below(6) {
        let (from, to) = (random.below(nranks) as u32, random.below(nranks) as u32);
        let bytes = size(&mut random, shape.max_bytes / 8) as usize;
        let (offset, arena) = (random.below(40) as usize, random.below(2) == 0);
        let data = random.bytes(bytes);
        for player in players {
            let rank = player.comm.rank();
            for send in [true, false] {
                let (own, peer) = if send { (from, to) } else { (to, from) };
                if own != rank {
                    continue;
                }
                let buffer = Framed::new(bytes, offset, arena)?;
                let (place, dtype) = (buffer.inner().as_mut_ptr(), DataType::Uint8);
                let transfer = Transfer { peer, send, data: place, bytes, dtype };
                group::transfer(&player.comm, transfer, &player.stream)?;
                if send {
                    buffer.inner().copy_from_slice(&data);
                    pending.inputs.push(buffer);
                } else {
                    let what = format!("operation {number} message {message} {from} to {to}");
                    let bytes = data.clone();
                    pending.expectations.push(Expectation { buffer, at: 0, bytes, what });
                }
            }
        }
    }
    group::end().map(drop)
}
