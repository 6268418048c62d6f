//! Rails: collectives in teams of ranks, between which the links are slower than within them.
//!
//! The ranks with the same place in their teams are a *rail*. A team divides the data among its
//! ranks, each rail carries out the collective on its share by an algorithm over edges, and the
//! team puts the shares together. So every rank moves its part of the data between the teams, and
//! an element passes there as rarely as with one rank per team. Reductions are folded in each team
//! first, in rank order.
//!
//! Small all-reduces have a form without shares: each rank of a team folds all of the data, and
//! passes them on along its rail. That takes more traffic, and leaves nothing to put together.

use super::{
    Algorithm, Generator, Needs, bruck, edge_layout, halving, keeps_scratch, one_shot_edges, others,
};
use super::{ring, switch, tree, two_shot_edges};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Program, Slice};
use crate::spec::{Collective, Spec};

/// The form of an algorithm over rails.
struct Form {
    /// The algorithm between the teams.
    along: &'static Generator,
    /// True if each rank passes on all that its team has folded, instead of its share.
    whole: bool,
}

/// Makes the row of an algorithm in which `along` runs on the rails.
macro_rules! rails {
    ($row:ident, $algorithm:ident, $name:literal, $along:ident, whole: $whole:literal) => {
        pub(super) const $row: Generator = {
            const FORM: Form = Form { along: &$along::GENERATOR, whole: $whole };
            Generator {
                algorithm: Algorithm::$algorithm,
                name: $name,
                needs: FORM.along.needs,
                canonical: false,
                layout: |spec| layout(spec, &FORM),
                program: |spec, rank| program(spec, rank, &FORM),
                cost_us: |spec, bytes, model| cost_us(spec, bytes, model, &FORM),
            }
        };
    };
}

rails!(RING, RailsRing, "rails_ring", ring, whole: false);
rails!(TREE, RailsTree, "rails_tree", tree, whole: false);
rails!(HALVING, RailsHalving, "rails_halving", halving, whole: false);
rails!(BRUCK, RailsBruck, "rails_bruck", bruck, whole: false);
rails!(TWO_SHOT, RailsTwoShot, "rails_two_shot", two_shot_edges, whole: false);
rails!(ONE_SHOT, RailsOneShot, "rails_one_shot", one_shot_edges, whole: false);
rails!(SWITCH, RailsSwitch, "rails_switch", switch, whole: false);
rails!(WHOLE, RailsWhole, "rails_whole", one_shot_edges, whole: true);

/// Returns what each rail carries out, and its layout; `None` if the ranks form one team, or teams
/// of one rank, or if the algorithm does not serve.
fn along(spec: &Spec, form: &Form) -> Option<(Spec, Layout)> {
    let shaped = 1 < spec.team && spec.team < spec.nranks;
    let teams = spec.nranks / spec.team;
    let rail = Spec::new(spec.collective, teams, spec.root / spec.team).in_teams(1);
    // Exchanges between pairs gain nothing: what one rank sends another passes a rail once anyway.
    let gains = match spec.collective {
        Collective::AllReduce => true,
        Collective::AllToAll | Collective::Gather | Collective::Scatter => false,
        _ => !form.whole,
    };
    let layout = if shaped && gains { (form.along.layout)(&rail) } else { None };
    layout.map(|layout| (rail, layout))
}

fn layout(spec: &Spec, form: &Form) -> Option<Layout> {
    let (rail, along) = along(spec, form)?;
    let room = spec.team.max(along.scratch_blocks);
    let (parts, scratch_blocks) = match spec.collective {
        Collective::AllReduce if form.whole => (along.parts, room),
        Collective::AllReduce => (spec.team * along.parts, room),
        Collective::Reduce => (spec.team * along.parts, room + along.parts),
        Collective::ReduceScatter => (along.parts, room + rail.nranks),
        Collective::Broadcast => (spec.team * along.parts, along.scratch_blocks),
        _ => (along.parts, along.scratch_blocks),
    };
    let layout = edge_layout(parts, along.message_parts, scratch_blocks);
    let layout = Layout { rounds: along.rounds, ..layout };
    // What the team has folded for the rail stays in scratch.
    let folded = matches!(spec.collective, Collective::Reduce | Collective::ReduceScatter);
    let keeps = folded || along.scratch_windows > 1;
    Some(if keeps { keeps_scratch(layout) } else { layout })
}

/// A rank's view: its team, its rail, and the places of the data.
struct Rails {
    spec: Spec,
    rail: Spec,
    /// The number of parts of a share.
    parts: u32,
    /// The rank's team, and its place there.
    team: u32,
    place: u32,
    /// The first block of scratch that holds what the team has folded for the rail.
    folded: u32,
    /// True if each rank passes on all of the data.
    whole: bool,
}

/// Returns the program of a rank: the team divides the data in the first round of the rail, and
/// puts them together in the last one.
fn program(spec: &Spec, rank: u32, form: &Form) -> Program {
    let Some((rail, layout)) = along(spec, form) else { return Program::default() };
    let rails = Rails {
        spec: *spec,
        rail,
        parts: layout.parts,
        team: rank / spec.team,
        place: rank % spec.team,
        folded: spec.team.max(layout.scratch_blocks),
        whole: form.whole,
    };
    let mut program = Program::from(rails.divide());
    let along = (form.along.program)(&rail, rails.team);
    for (number, round) in along.rounds().enumerate() {
        if number > 0 {
            program.begin_round();
        }
        program.ops.extend(along.ops[round].iter().filter_map(|op| rails.on_rail(*op)));
    }
    if !rails.whole {
        program.ops.extend(rails.join());
    }
    program
}

impl Rails {
    fn rank(&self, place: u32) -> u32 {
        self.team * self.spec.team + place
    }

    /// Returns the other places of the team.
    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        others(self.place, self.spec.team)
    }

    /// Returns whether this rank belongs to the root's team.
    fn with_root(&self) -> bool {
        self.team == self.rail.root
    }

    fn is_root(&self) -> bool {
        self.with_root() && self.rank(self.place) == self.spec.root
    }

    /// Returns the first part of a place's share.
    fn first_part(&self, place: u32) -> u32 {
        if self.whole { 0 } else { place * self.parts }
    }

    /// Returns part `part` of a place's share.
    fn share(&self, buffer: Buffer, place: u32, part: u32) -> Slice {
        Slice::part(buffer, 0, self.first_part(place) + part)
    }

    /// Returns the place of what the team has folded of this rank's share.
    fn partial(&self, part: u32) -> Slice {
        let share = self.share(Buffer::Output, self.place, part);
        match self.spec.collective {
            Collective::Reduce => {
                Slice { buffer: Buffer::Scratch, block: self.folded + part, ..share }
            }
            _ => share,
        }
    }

    /// Returns the operations with which each rank of a team gets what it passes along its rail.
    fn divide(&self) -> Vec<Op> {
        let input = |place, part| self.share(Buffer::Input, place, part);
        let block = |team, place| Slice::block(Buffer::Input, team * self.spec.team + place);
        match self.spec.collective {
            Collective::AllReduce | Collective::Reduce => (0..self.parts)
                .flat_map(|part| self.fold(|place| input(place, part), self.partial(part)))
                .collect(),
            Collective::ReduceScatter => (0..self.rail.nranks)
                .flat_map(|team| {
                    let dst = Slice::block(Buffer::Scratch, self.folded + team);
                    self.fold(|place| block(team, place), dst)
                })
                .collect(),
            Collective::Broadcast if self.is_root() => {
                let all = (0..self.parts).flat_map(|part| self.others().map(move |p| (p, part)));
                let send =
                    |(place, part)| Op::Send { peer: self.rank(place), src: input(place, part) };
                all.map(send).collect()
            }
            Collective::Broadcast if self.with_root() => {
                let dst = |part| self.share(Buffer::Output, self.place, part);
                let peer = self.spec.root;
                (0..self.parts).map(|part| Op::Recv { peer, dst: dst(part) }).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the operations in which each rank of the team gets one slice of all inputs, `of` its
    /// place, and folds them.
    fn fold(&self, of: impl Fn(u32) -> Slice, dst: Slice) -> Vec<Op> {
        let own = of(self.place);
        let came = |place| Slice { buffer: Buffer::Scratch, block: place, ..own };
        let send = |place| Op::Send { peer: self.rank(place), src: of(place) };
        let receive = |place| Op::Recv { peer: self.rank(place), dst: came(place) };
        let mut ops: Vec<_> = self.others().map(send).collect();
        ops.extend(self.others().map(receive));
        let (count, at) = (self.spec.team, self.place);
        ops.push(Op::Fold { src: came(0), count, own, at, dst, finish: false });
        ops
    }

    /// Returns a slice of the rail's collective as one of this rank's.
    fn slice(&self, slice: Slice) -> Slice {
        let Slice { buffer, block, part, .. } = slice;
        let first = match self.spec.collective {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => {
                self.first_part(self.place)
            }
            _ => 0,
        };
        let of_share = Slice { part: first + part, ..slice };
        match (self.spec.collective, buffer) {
            (_, Buffer::Scratch) => of_share,
            (Collective::Reduce, Buffer::Output) if self.is_root() => of_share,
            (Collective::AllReduce | Collective::Reduce, _) => {
                Slice { parts: slice.parts, ..self.partial(part) }
            }
            (Collective::Broadcast, Buffer::Input) if self.is_root() => of_share,
            (Collective::Broadcast, _) => Slice { buffer: Buffer::Output, ..of_share },
            (Collective::ReduceScatter, Buffer::Input) => {
                Slice { buffer: Buffer::Scratch, block: self.folded + block, ..slice }
            }
            (Collective::AllGather, Buffer::Output) => {
                Slice { block: block * self.spec.team + self.place, ..slice }
            }
            _ => slice,
        }
    }

    /// Returns an operation of the rail's collective as one of this rank's; `None` for copies to
    /// where the data already are, or get by [`join`](Self::join).
    fn on_rail(&self, op: Op) -> Option<Op> {
        let slice = |s| self.slice(s);
        // Also of the switch, whose number follows those of the teams.
        let peer_of = |team: u32| team * self.spec.team + self.place;
        Some(match op {
            Op::Copy { .. } if self.spec.collective == Collective::Broadcast => return None,
            Op::Copy { src, dst } => Op::Copy { src: slice(src), dst: slice(dst) },
            Op::Send { peer, src } => Op::Send { peer: peer_of(peer), src: slice(src) },
            Op::Recv { peer, dst } => Op::Recv { peer: peer_of(peer), dst: slice(dst) },
            Op::RecvReduce { peer, local, dst, order, finish } => {
                let (peer, local, dst) = (peer_of(peer), slice(local), slice(dst));
                Op::RecvReduce { peer, local, dst, order, finish }
            }
            Op::Fold { src, count, own, at, dst, finish } => {
                let (src, own, dst) = (slice(src), slice(own), slice(dst));
                Op::Fold { src, count, own, at, dst, finish }
            }
            // Algorithms over edges have no others.
            other => other,
        })
    }

    /// Returns the operations with which a team puts together what its ranks have.
    fn join(&self) -> Vec<Op> {
        let output = |place, part| self.share(Buffer::Output, place, part);
        let parts = 0..self.parts;
        match self.spec.collective {
            Collective::Broadcast if self.is_root() => {
                let all = |buffer| Slice {
                    parts: self.spec.team * self.parts,
                    ..self.share(buffer, 0, 0)
                };
                let sends = parts.flat_map(|p| self.others().map(move |place| (place, p)));
                let own = |p| self.share(Buffer::Input, self.place, p);
                let send = |(place, p)| Op::Send { peer: self.rank(place), src: own(p) };
                let copy = Op::Copy { src: all(Buffer::Input), dst: all(Buffer::Output) };
                sends.map(send).chain([copy]).collect()
            }
            Collective::AllReduce | Collective::Broadcast => {
                parts.flat_map(|p| self.exchange(|place| output(place, p))).collect()
            }
            Collective::AllGather => (0..self.rail.nranks)
                .flat_map(|team| {
                    let block = |place| Slice::block(Buffer::Output, team * self.spec.team + place);
                    self.exchange(block)
                })
                .collect(),
            Collective::Reduce if self.is_root() => {
                let all = parts.flat_map(|p| self.others().map(move |place| (place, p)));
                let receive =
                    |(place, p)| Op::Recv { peer: self.rank(place), dst: output(place, p) };
                all.map(receive).collect()
            }
            Collective::Reduce if self.with_root() => {
                let peer = self.spec.root;
                parts.map(|p| Op::Send { peer, src: self.partial(p) }).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the operations in which each rank of the team gives its slice to all others. The
    /// root of a broadcast has the others' slices already.
    fn exchange(&self, of: impl Fn(u32) -> Slice) -> Vec<Op> {
        let broadcast = self.spec.collective == Collective::Broadcast;
        let lacks = |place: &u32| !(broadcast && self.rank(*place) == self.spec.root);
        let own = of(self.place);
        let send = |place| Op::Send { peer: self.rank(place), src: own };
        let receive = |place| Op::Recv { peer: self.rank(place), dst: of(place) };
        self.others().filter(lacks).map(send).chain(self.others().map(receive)).collect()
    }
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel, form: &Form) -> f64 {
    let Some((rail, layout)) = along(spec, form) else { return f64::INFINITY };
    // Plans with a switch have one lane for everything.
    let one_lane = model.in_one_lane();
    let model = if form.along.needs == Needs::Switch { &one_lane } else { model };
    let near = model.near();
    let (team, teams) = (u64::from(spec.team), f64::from(rail.nranks));
    let share = if form.whole { bytes } else { bytes.div_ceil(team) };
    let peers = (team - 1) as f64;
    let part = share.div_ceil(u64::from(layout.parts));
    let windows = part.div_ceil(model.bytes_at_a_time()).max(1) as f64;
    let send = |bytes| near.latency_us + peers * near.send_us(bytes);
    let receive = |bytes| peers * near.receive_us(bytes, false);
    let fold = |bytes| {
        let all = near.read_us(bytes * team, spec.team - 1, true);
        send(bytes) + receive(bytes) + all
    };
    let along_us = |bytes| (form.along.cost_us)(&rail, bytes, model);
    let latencies = (windows - 1.0) * near.latency_us;
    match spec.collective {
        Collective::AllReduce if form.whole => fold(bytes) + along_us(bytes) + latencies,
        Collective::AllReduce => {
            fold(share) + along_us(share) + send(share) + receive(share) + 2.0 * latencies
        }
        Collective::Reduce => fold(share) + along_us(share) + receive(share) + 2.0 * latencies,
        Collective::ReduceScatter => teams * fold(bytes) + along_us(bytes),
        Collective::AllGather => along_us(bytes) + teams * (send(bytes) + receive(bytes)),
        _ => send(share) + along_us(share) + send(share) + receive(share) + 2.0 * latencies,
    }
}
