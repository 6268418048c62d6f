//! The operations of a history: what each rank does, in which memory, and what has to come out.

use super::world::Place;
use crate::sequence::{Framed, Random, outcome};
use oxccl_plan::generate::{Algorithm, Needs};
use oxccl_plan::ir::{From, UserMemory};
use oxccl_plan::select::{Choice, Memory, Route};
use oxccl_plan::{Carrier, Collective, DataType, Op, Plan, ReduceOp, Spec};
use oxccl_runtime::device::host;
use oxccl_runtime::device::host::endpoint::Endpoint;
use oxccl_runtime::device::host::task::Work;
use oxccl_runtime::op::{self, Bound, Call, Programs, Transfer, Transfers};
use std::sync::Arc;

/// What a rank's memory is filled with as soon as its operation has ended.
const REPAINT: u8 = 0x3b;
/// What a late writer writes.
const STRAY: u8 = 0x99;

/// An operation of all ranks.
pub(super) struct Operation {
    pub(super) what: String,
    /// The beginning of what ranks record of it.
    pub(super) recorded: String,
    /// The algorithm that runs; None for sends and receives.
    pub(super) algorithm: Option<Algorithm>,
    /// Whether ranks write into each other's memory.
    pub(super) writes: bool,
    pub(super) parts: Vec<Part>,
}

/// What one rank has to do with an operation.
#[derive(Default)]
pub(super) struct Part {
    work: Option<Template>,
    /// The programs of a collective.
    programs: Option<Arc<Programs>>,
    buffers: Vec<Framed>,
    /// Contents after success: buffer, first byte, bytes.
    expected: Vec<(usize, usize, Vec<u8>)>,
    /// Whether the operation has ended here and its memory is the user's again.
    ended: bool,
}

enum Template {
    Collective(Arc<Programs>, Call),
    Exchange(Vec<Transfer>),
}

impl Part {
    /// The work to start; None when this rank takes no part.
    pub(super) fn work(&mut self, endpoint: &Arc<Endpoint>) -> Option<Work> {
        Some(match self.work.take()? {
            Template::Collective(programs, call) => {
                Work::Operation(endpoint.clone(), op::Operation::Collective(programs, call), None)
            }
            Template::Exchange(list) => {
                let transfers = Transfers { operation: "send/recv", list };
                Work::Operation(endpoint.clone(), transfers.into(), None)
            }
        })
    }

    /// Returns the most steps of the programs of a collective; None for sends and receives.
    pub(super) fn steps(&self) -> Option<usize> {
        let programs = self.programs.as_ref()?;
        let all = [Some(&programs.any), programs.mapped.as_ref()].into_iter().flatten();
        all.map(|bound| bound.program.ops.len()).max()
    }

    /// Returns whether the programs of a collective wait for a rank at a step; they do at the
    /// entry, and after their last step, until the peers have read.
    pub(super) fn waits_for(&self, rank: u32, step: u32) -> bool {
        let Some(programs) = &self.programs else { return false };
        let mut all = [Some(&programs.any), programs.mapped.as_ref()].into_iter().flatten();
        step == 0
            || all.any(|Bound { program, carrier, .. }| {
                let in_packets = *carrier == Carrier::Packets;
                let at = step as usize;
                at == program.ops.len()
                    || program.ops.get(at).is_some_and(|op| match op {
                        Op::Send { peer, .. }
                        | Op::Recv { peer, .. }
                        | Op::RecvReduce { peer, .. } => *peer == rank,
                        Op::Wait { from: From::One(peer), .. } => *peer == rank,
                        Op::Wait { from: From::All, .. } | Op::Acquire => true,
                        // Packets carry their own signal.
                        Op::Get { peer, .. } => in_packets && *peer == rank,
                        Op::Reduce { .. } => in_packets,
                        _ => false,
                    })
            })
    }

    /// The first result that is wrong.
    pub(super) fn wrong(&self) -> Option<String> {
        if !self.buffers.iter().all(Framed::frame_is_whole) {
            return Some("bytes around a buffer changed".to_owned());
        }
        self.expected.iter().find_map(|(buffer, at, bytes)| {
            let got = &self.buffers[*buffer].inner()[*at..*at + bytes.len()];
            let i = (0..got.len()).find(|&i| got[i] != bytes[i])?;
            Some(format!("byte {i} is {:#x}, expected {:#x}", got[i], bytes[i]))
        })
    }

    /// The user takes the memory back and uses it at once.
    pub(super) fn repaint(&mut self) {
        self.ended = true;
        self.buffers.iter().for_each(|buffer| buffer.all().fill(REPAINT));
    }

    /// Whether memory was written after it was the user's again.
    pub(super) fn strayed(&self) -> bool {
        let whole = |buffer: &Framed| buffer.all().iter().all(|&b| b == REPAINT);
        self.ended && !self.buffers.iter().all(whole)
    }

    /// What a peer does to this rank's memory that is in the middle of writing there.
    pub(super) fn write_late(&self) {
        if self.ended {
            self.buffers.iter().for_each(|buffer| buffer.all().fill(STRAY));
        }
    }
}

/// Mostly small sizes; now and then several windows.
fn size(random: &mut Random) -> u64 {
    let limit = match random.below(100) {
        0..=9 => 16,
        10..=59 => 4 << 10,
        60..=91 => 32 << 10,
        92..=98 => 200 << 10,
        _ => 700 << 10,
    };
    random.below(limit + 1)
}

/// Draws operations, of which some are the same again: there ranks run ahead of each other.
pub(super) fn draw(place: &Place, number: usize, random: &mut Random) -> Vec<Operation> {
    let mut kind = Random(random.draw());
    let mut next = || {
        if random.below(2) == 0 {
            kind = Random(random.draw());
        }
        let mut kind = kind.clone();
        match kind.below(5) {
            0 => exchange(place, random),
            _ => collective(place, kind, random),
        }
    };
    (0..number).map(|_| next().expect("memory")).collect()
}

/// Plans for any memory and for mapped memory, as a communicator could choose them.
fn plans(spec: Spec, place: &Place, random: &mut Random) -> (Plan, Option<Plan>) {
    let needs = |plan: &Plan| plan.algorithm.generator().needs;
    let usable =
        |plan: &Plan| place.direct() || matches!(needs(plan), Needs::Nothing | Needs::Edges);
    let all: Vec<Plan> = Plan::candidates(spec).filter(usable).collect();
    let pulls = |plan: &Plan| {
        plan.layout.user_memory == UserMemory::Read && spec.collective != Collective::AllToAll
    };
    let (user, private): (Vec<Plan>, Vec<Plan>) =
        all.into_iter().partition(|plan| needs(plan) == Needs::UserMemory);
    let pulled: Vec<Plan> = user.iter().copied().filter(pulls).collect();
    let mut one_of = |plans: &[Plan]| match plans.len() as u64 {
        0 => None,
        n => Some(plans[random.below(n) as usize]),
    };
    let (any, pulled, mapped) = (one_of(&private), one_of(&pulled), one_of(&user));
    // Plans that write into others' memory have the most to go wrong.
    let writes = |plan: &&Plan| plan.layout.user_memory == UserMemory::Written;
    let mapped = user.iter().find(writes).copied().filter(|_| random.below(2) == 0).or(mapped);
    let any = any.expect("a plan for any memory");
    match random.below(4) {
        0 => (any, None),
        1 => (pulled.unwrap_or(any), mapped.filter(|m| Some(*m) != pulled)),
        2 => (pulled.unwrap_or(any), None),
        _ => (any, mapped),
    }
}

fn collective(
    place: &Place,
    mut what: Random,
    random: &mut Random,
) -> oxccl_runtime::Result<Operation> {
    let nranks = place.nranks();
    // The first of them, all-reduce, has the most plans, and those that write into others' memory.
    let kind = Collective::ALL
        [(what.below(Collective::ALL.len() as u64) * u64::from(what.below(4) > 0)) as usize];
    let spec = Spec::new(kind, nranks, what.below(u64::from(nranks)) as u32);
    // Where edges alone move data, it does not matter which ranks are called a team.
    let teams: Vec<_> = (1..nranks).filter(|team| nranks.is_multiple_of(*team)).collect();
    let team = if place.direct() { nranks } else { teams[what.below(teams.len() as u64) as usize] };
    let spec = spec.in_teams(team);
    let dtype = DataType::ALL[what.below(12) as usize];
    let op = ReduceOp::ALL[what.below(5) as usize];
    let blocks = u64::from(spec.input_blocks(spec.root).max(spec.output_blocks(spec.root)));
    let count = size(&mut what) / dtype.size() as u64 / blocks;
    let plain = random.below(3) == 0;
    let mut flags = |one_in| (0..nranks).map(|_| random.below(one_in) == 0).collect::<Vec<_>>();
    let (in_place, mapped) = (flags(3), if plain { flags(2) } else { flags(1) });
    let (any, user) = plans(spec, place, &mut what);
    let everyone = place.one_process || mapped.iter().all(|&m| m);
    let overlap = kind == Collective::AllToAll && in_place.iter().any(|&i| i);
    let runs = user.filter(|_| everyone && !overlap).unwrap_or(any);
    let block = count as usize * dtype.size();
    let data: Vec<Vec<u8>> =
        (0..nranks).map(|r| random.bytes(spec.input_blocks(r) as usize * block)).collect();
    let expected = match count {
        0 => vec![Vec::new(); data.len()],
        _ => outcome(&runs, place.edge_slot_bytes, count, dtype, op, &data),
    };
    let mut parts = Vec::new();
    for ((rank, input), expected) in (0u32..).zip(&data).zip(expected) {
        let (arena, offset) = (mapped[rank as usize], random.below(40) as usize);
        let shared = spec.in_place(rank).filter(|_| in_place[rank as usize]);
        let out_bytes = spec.output_blocks(rank) as usize * block;
        // In place both lie in one buffer, as large as the larger of them.
        let len = shared.map_or(out_bytes, |_| out_bytes.max(input.len()));
        let mut buffers = vec![Framed::new(len, offset, arena)?];
        let (from, at) = match shared {
            Some((in_block, out_block)) => {
                (&mut buffers[0].inner()[out_block as usize * block..], in_block as usize * block)
            }
            None => {
                buffers.push(Framed::new(input.len(), offset / 2, arena)?);
                (buffers[1].inner(), 0)
            }
        };
        from[..input.len()].copy_from_slice(input);
        let input = if input.is_empty() { std::ptr::null() } else { from.as_ptr() };
        let output = buffers[0].inner()[at..].as_mut_ptr();
        let call = Call { spec, input, output, count, dtype, op, scale: None };
        let topology = host::topology(nranks, spec.team, true, place.edge_slot_bytes, 1);
        let route = |plan, memory| Route::new(plan, block as u64, &topology, memory);
        let any_memory = route(any, Memory::Any);
        let mapped = user.map(|plan| route(plan, Memory::Mapped));
        let programs = Programs::new(&Choice { any_memory, mapped, engines: false }, rank);
        let programs = Arc::new(programs);
        let work = Some(Template::Collective(programs.clone(), call));
        let (programs, expected) = (Some(programs), vec![(0, at, expected)]);
        parts.push(Part { work, programs, buffers, expected, ended: false });
    }
    let algorithm = (count > 0).then_some(runs.algorithm);
    let writes = count > 0 && runs.layout.user_memory == UserMemory::Written;
    let what = format!("{kind:?} of {count} {dtype:?} by {:?}", runs.algorithm);
    let recorded = format!("{} of {count} × ", kind.name());
    Ok(Operation { what, recorded, algorithm, writes, parts })
}

/// Sends and receives among random ranks, messages to oneself included.
fn exchange(place: &Place, random: &mut Random) -> oxccl_runtime::Result<Operation> {
    let nranks = u64::from(place.nranks());
    let mut parts: Vec<Part> = (0..nranks).map(|_| Part::default()).collect();
    let messages = 1 + random.below(6);
    for _ in 0..messages {
        let (from, to) = (random.below(nranks) as u32, random.below(nranks) as u32);
        let (bytes, offset) = (size(random) as usize / 2, random.below(40) as usize);
        let data = random.bytes(bytes);
        for (own, peer, send) in [(from, to, true), (to, from, false)] {
            let part = &mut parts[own as usize];
            let buffer = Framed::new(bytes, offset, false)?;
            if send {
                buffer.inner().copy_from_slice(&data);
            }
            let (place, dtype) = (buffer.inner().as_mut_ptr(), DataType::Uint8);
            let transfer = Transfer { peer, send, data: place, bytes, dtype };
            part.expected.push((part.buffers.len(), 0, data.clone()));
            part.buffers.push(buffer);
            match part.work.get_or_insert_with(|| Template::Exchange(Vec::new())) {
                Template::Exchange(transfers) => transfers.push(transfer),
                Template::Collective(..) => unreachable!("made above"),
            }
        }
    }
    let what = format!("{messages} messages");
    let recorded = "send/recv".to_owned();
    Ok(Operation { what, recorded, algorithm: None, writes: false, parts })
}
