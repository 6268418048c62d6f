//! Every generator under the verifier: exhaustively for small communicators, by seeded samples for
//! large ones, in sequences; and broken plans of every kind, which it has to refuse.

use oxccl_plan::generate::Needs;
use oxccl_plan::ir::{Capacity, ROUND_MESSAGES, ROUND_TURNS, UserMemory, overlapping};
use oxccl_plan::lines::{self, Phases};
use oxccl_plan::machine::{Fault, Transfer};
use oxccl_plan::verify::{Conditions, Step, verify, verify_programs, verify_sequence};
use oxccl_plan::{Algorithm, Buffer, Collective, Destination, Op, Plan, Program, Slice, Spec};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Slot size of the exhaustive tests, in elements.
const SLOT: u64 = 4;

fn specs(nranks: u32) -> Vec<Spec> {
    let mut specs = Vec::new();
    for collective in Collective::ALL {
        let roots = if collective.rooted() { nranks } else { 1 };
        specs.extend((0..roots).map(|root| Spec::new(collective, nranks, root)));
    }
    specs
}

/// All sizes of teams in which these ranks may be.
fn teams(nranks: u32) -> impl Iterator<Item = u32> {
    (1..=nranks).filter(move |team| nranks.is_multiple_of(*team))
}

/// The plans that there are between teams alone: on rails, or by a network that reduces. `spec` is
/// that of one team.
fn between_teams(spec: Spec, team: u32) -> impl Iterator<Item = Plan> {
    let in_one_team = move |plan: &Plan| Plan::new(spec, plan.algorithm).is_some();
    Plan::candidates(spec.in_teams(team)).filter(move |plan| !in_one_team(plan))
}

/// Verifies a plan for counts around the limits of parts and windows.
fn verify_counts(plan: &Plan) -> usize {
    let window = SLOT * u64::from(plan.layout.parts);
    let counts = [0, 1, SLOT - 1, SLOT, SLOT + 1, 2 * SLOT + 1, window, 2 * window + 1];
    for count in counts {
        let conditions = Conditions::tight(SLOT, plan.spec.nranks);
        verify(plan, count, &conditions)
            .unwrap_or_else(|fault| panic!("{plan:?} count {count}: {fault}"));
    }
    counts.len()
}

#[test]
fn every_generator_for_1_to_16_ranks_all_roots_and_chunk_counts() {
    let mut verified = 0;
    for nranks in 1..=16 {
        for spec in specs(nranks) {
            let plans: Vec<_> = Plan::candidates(spec).collect();
            assert!(!plans.is_empty(), "nothing serves {spec:?}");
            verified += plans.iter().map(verify_counts).sum::<usize>();
        }
    }
    println!("{verified} plans verified");
    assert!(verified > 10_000);
}

#[test]
fn every_plan_between_2_to_8_teams_of_1_to_8_ranks() {
    let mut verified = 0;
    let shapes = (1..=8).flat_map(|team| (2..=8).map(move |teams| (team, teams * team)));
    for (team, nranks) in shapes.filter(|(_, nranks)| *nranks <= 32) {
        // Of many roots, the first and one in the midst.
        let roots = [0, nranks / 2 - 1];
        let specs = specs(nranks).into_iter();
        for spec in specs.filter(|s| nranks <= 16 || roots.contains(&s.root)) {
            let plans = between_teams(spec, team);
            verified += plans.map(|plan| verify_counts(&plan)).sum::<usize>();
        }
    }
    println!("{verified} plans verified");
    assert!(verified > 10_000);
}

/// Verifies a plan whose windows overlap, with so many of them and a part of one.
fn verify_overlap(plan: &Plan, windows: u64) -> Result<(), Fault> {
    let conditions = Conditions::tight(SLOT, plan.spec.nranks);
    let count = windows * SLOT / u64::from(plan.layout.message_parts);
    let count = count * u64::from(plan.layout.parts) + 1;
    let edge_slots = ROUND_MESSAGES * ROUND_TURNS;
    verify(plan, count, &Conditions { overlap: true, races: false, edge_slots, ..conditions })
}

#[test]
fn windows_of_every_plan_in_rounds_may_overlap() {
    let mut verified = 0;
    let shapes = (2..=16).flat_map(|n| teams(n).map(move |team| (n, team)));
    for (nranks, team) in shapes {
        let roots = [0, nranks / 2, nranks - 1];
        let specs = specs(nranks).into_iter().filter(|spec| roots.contains(&spec.root));
        let plans = specs.flat_map(|spec| Plan::candidates(spec.in_teams(team)));
        for plan in plans.filter(|plan| plan.layout.rounds > 1) {
            for windows in [1, 2, u64::from(overlapping(plan.layout.rounds)) + 2] {
                verify_overlap(&plan, windows)
                    .unwrap_or_else(|fault| panic!("{plan:?} windows {windows}: {fault}"));
                verified += 1;
            }
        }
    }
    println!("{verified} plans verified");
    assert!(verified > 1_000);
}

#[test]
fn plans_between_teams_have_these_rounds() {
    let rounds = |collective, (nranks, team), algorithm| {
        let spec = Spec::new(collective, nranks, 0).in_teams(team);
        Plan::new(spec, algorithm).map(|plan| (plan.layout.rounds, plan.layout.scratch_windows))
    };
    let of = |nranks, algorithm| rounds(Collective::AllReduce, (nranks, 1), algorithm);
    assert_eq!([2, 3].map(|n| of(n, Algorithm::Ring)), [Some((3, 1)), Some((1, 1))]);
    assert_eq!([2, 8, 6].map(|n| of(n, Algorithm::Halving)), [3, 7, 1].map(|n| Some((n, 1))));
    assert_eq!([2, 40].map(|n| of(n, Algorithm::TwoShotEdges)), [Some((3, 1)); 2]);
    assert_eq!([2, 40].map(|n| of(n, Algorithm::OneShotEdges)), [Some((2, 1)); 2]);
    let of = |shape, algorithm| rounds(Collective::ReduceScatter, shape, algorithm);
    assert_eq!(of((2, 1), Algorithm::Ring), Some((2, 3)));
    assert_eq!(of((4, 1), Algorithm::Bruck), Some((4, 7)));
    assert_eq!(of((4, 1), Algorithm::TwoShotEdges), Some((2, 1)));
    assert_eq!(of((8, 4), Algorithm::RailsTwoShot), Some((2, 3)));
    assert_eq!(of((8, 8), Algorithm::TwoShotEdges), Some((1, 1)));
    let all_to_all = |team| rounds(Collective::AllToAll, (8, team), Algorithm::Pairwise);
    assert_eq!([1, 4, 8].map(all_to_all), [2, 2, 1].map(|n| Some((n, 1))));
}

#[test]
fn windows_that_must_not_overlap_are_told() {
    let declare = |plan: Plan, rounds: u32| {
        let mut layout = plan.layout;
        layout.rounds = rounds;
        verify_overlap(&Plan { layout, ..plan }, 20)
    };
    let plan = |nranks, algorithm| {
        let spec = Spec::new(Collective::AllReduce, nranks, 0).in_teams(1);
        Plan::new(spec, algorithm).expect("a plan")
    };
    // More messages than an edge has slots.
    let ring = plan(6, Algorithm::Ring);
    assert_eq!(ring.layout.rounds, 1);
    assert!(matches!(declare(ring, 11), Err(Fault::Deadlock { .. })));
    // Ranks with other rounds than the rest.
    let halving = plan(6, Algorithm::Halving);
    assert_eq!(halving.layout.rounds, 1);
    assert!(matches!(declare(halving, 5), Err(Fault::RoundCount { .. })));
    let two_shot = plan(4, Algorithm::TwoShotEdges);
    assert!(matches!(declare(two_shot, 2), Err(Fault::RoundCount { got: 3, expected: 2, .. })));
    assert_eq!(declare(two_shot, 3), Ok(()));
}

#[test]
fn every_collective_has_a_plan_over_edges_alone() {
    for spec in specs(7) {
        assert!(
            Plan::candidates(spec)
                .any(|p| p.layout.stage_blocks == 0 && p.layout.user_memory == UserMemory::Private)
        );
    }
}

/// Between teams there are edges alone: of the plans for one team, those over edges serve there,
/// and the verifier refuses the others.
#[test]
fn the_plans_that_stay_within_reach_are_those_that_serve_between_teams() {
    let (mut over_edges, mut direct) = (0, 0);
    let shapes = (2..=12).flat_map(|n| teams(n).map(move |team| (n, team)));
    for (nranks, team) in shapes.filter(|(nranks, team)| team < nranks) {
        for plan in specs(nranks).into_iter().flat_map(Plan::candidates) {
            let spec = plan.spec.in_teams(team);
            let serves = Plan::new(spec, plan.algorithm).is_some();
            match verify(&Plan { spec, ..plan }, 1, &Conditions::tight(SLOT, nranks)) {
                Ok(()) if serves => over_edges += 1,
                Err(Fault::OutOfReach { .. }) if !serves => direct += 1,
                verdict => panic!("{plan:?} in teams of {team}: {serves} {verdict:?}"),
            }
        }
    }
    assert!(over_edges > 1_000 && direct > 1_000, "{over_edges} {direct}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 12,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_261_121),
        ..Default::default()
    })]

    #[test]
    fn every_generator_for_large_communicators(
        nranks in 17u32..=1024, root in 0u32..1024, count in 1u64..3000, which in 0usize..8,
    ) {
        let collective = Collective::ALL[which];
        // All-to-all has n² messages per window.
        let nranks = if collective == Collective::AllToAll { nranks % 200 + 2 } else { nranks };
        let spec = Spec::new(collective, nranks, root % nranks);
        let sizes: Vec<_> = teams(nranks).collect();
        let between = between_teams(spec, sizes[count as usize % sizes.len()]);
        for plan in Plan::candidates(spec).chain(between) {
            let room = Capacity {
                edge_slot_elems: u64::from(nranks) * 4,
                message_elems: u64::from(nranks) * 4,
                stage_slot_elems: u64::from(nranks) * 4,
                align_elems: 2,
            };
            let count = if plan.layout.stage_blocks > 1 || collective == Collective::AllGather
                || collective == Collective::ReduceScatter { count.min(8) } else { count };
            let (edge_slots, races, overlap) = (2, nranks <= 40, false);
            let conditions = Conditions { room, edge_slots, races, overlap };
            // Every rank reads from every other: n² accesses per part.
            let edges = [Algorithm::OneShotEdges, Algorithm::TwoShotEdges];
            let all_pairs = plan.layout.signals > 0 || edges.contains(&plan.algorithm);
            if all_pairs && nranks > 256 {
                continue;
            }
            prop_assert_eq!(verify(&plan, count, &conditions), Ok(()), "{:?}", plan);
        }
    }

    #[test]
    fn grouped_send_recv_over_random_matrices(
        nranks in 1u32..9, seed in any::<u64>(), messages in 0usize..40,
    ) {
        let mut random = Random(seed);
        let mut transfers = vec![Vec::new(); nranks as usize];
        for _ in 0..messages {
            let (from, to) = (random.below(nranks), random.below(nranks));
            let pieces = u64::from(random.below(5));
            transfers[from as usize].push(Transfer { peer: to, send: true, pieces });
            transfers[to as usize].push(Transfer { peer: from, send: false, pieces });
        }
        // Unequal groupings: every rank may see its peers' lanes interleaved in another order.
        for (rank, list) in transfers.iter_mut().enumerate() {
            list.sort_by_key(|t| (t.peer + rank as u32 * 3) % nranks);
        }
        let conditions = Conditions::tight(SLOT, nranks);
        let steps = [Step::Exchange(transfers.clone()), Step::Exchange(transfers)];
        prop_assert_eq!(verify_sequence((nranks, nranks), &steps, &conditions), Ok(()));
    }
}

/// SplitMix64: small, seeded, good enough to pick test cases.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(bound)) as u32
    }
}

/// One operation class per generator and collective, and send/recv among a subset.
fn classes(nranks: u32, team: u32) -> Vec<Box<dyn Fn() -> Step>> {
    let mut classes: Vec<Box<dyn Fn() -> Step>> = Vec::new();
    for collective in Collective::ALL {
        let spec = Spec::new(collective, nranks, nranks - 1).in_teams(team);
        for plan in Plan::candidates(spec) {
            // Three windows: both stage slots are used and one again.
            let count = 2 * SLOT * u64::from(plan.layout.parts) + 1;
            classes.push(Box::new(move || Step::Collective { plan, count }));
        }
    }
    classes.push(Box::new(move || {
        let mut transfers = vec![Vec::new(); nranks as usize];
        if nranks > 1 {
            transfers[0].push(Transfer { peer: 1, send: true, pieces: 3 });
            transfers[1].push(Transfer { peer: 0, send: false, pieces: 3 });
        }
        Step::Exchange(transfers)
    }));
    classes
}

#[test]
fn all_triples_of_operation_classes() {
    let mut verified = 0;
    for nranks in 2..=5 {
        let classes = classes(nranks, nranks);
        let conditions = Conditions::tight(SLOT, nranks);
        for a in &classes {
            for b in &classes {
                for c in &classes {
                    // A fourth operation finds what the third left behind.
                    let steps = [a(), b(), c(), a()];
                    verify_sequence((nranks, nranks), &steps, &conditions)
                        .expect("a sequence is right");
                    verified += 1;
                }
            }
        }
    }
    println!("{verified} sequences verified");
    assert!(verified > 50_000);
}

/// Between teams pairs are enough: edges are empty after each operation, and there are no stages,
/// whose slots are used in turn.
#[test]
fn all_pairs_of_operation_classes_between_teams() {
    let mut verified = 0;
    for (nranks, team) in [(4, 1), (4, 2), (6, 2), (6, 3)] {
        let classes = classes(nranks, team);
        let tight = Conditions::tight(SLOT, nranks);
        let (overlap, edge_slots) = (true, ROUND_MESSAGES * ROUND_TURNS);
        let overlapping = Conditions { overlap, edge_slots, ..tight };
        for a in &classes {
            for b in &classes {
                let steps = [a(), b(), a()];
                for conditions in [tight, overlapping] {
                    verify_sequence((nranks, team), &steps, &conditions)
                        .expect("a sequence is right");
                    verified += 1;
                }
            }
        }
    }
    println!("{verified} sequences verified");
    assert!(verified > 3_000);
}

fn broken(plan: &Plan, change: impl FnOnce(&mut Vec<Program>)) -> Fault {
    let mut programs: Vec<_> = (0..plan.spec.nranks).map(|r| plan.program(r)).collect();
    change(&mut programs);
    let count = 2 * SLOT * u64::from(plan.layout.parts) + 1;
    let fault = verify_programs(plan, &programs, count, &Conditions::tight(SLOT, 4));
    fault.expect_err("a broken plan was accepted")
}

fn plan(collective: Collective, algorithm: Algorithm) -> Plan {
    Plan::new(Spec::new(collective, 4, 0), algorithm).expect("it serves")
}

#[test]
fn a_missing_contribution_is_named() {
    let fault = broken(&plan(Collective::AllReduce, Algorithm::Ring), |programs| {
        let Some(Op::RecvReduce { peer, dst, .. }) =
            programs[2].ops.iter().copied().find(|op| matches!(op, Op::RecvReduce { .. }))
        else {
            panic!("a ring reduces")
        };
        programs[2].ops[1] = Op::Recv { peer, dst };
    });
    assert!(matches!(fault, Fault::Missing { missing: 2, .. }), "{fault}");
    assert!(fault.to_string().contains("missing contribution of rank 2"), "{fault}");
    assert!(fault.to_string().contains("step"), "{fault}");
}

#[test]
fn a_double_contribution_is_named() {
    let fault = broken(&plan(Collective::AllReduce, Algorithm::Ring), |programs| {
        // Rank 2 folds its own input into a part that is already complete.
        let complete = |op: &&mut Op| matches!(op, Op::Recv { .. });
        let op = programs[2].ops.iter_mut().find(complete).expect("a ring collects");
        if let Op::Recv { peer, dst } = *op {
            let local = Slice { buffer: Buffer::Input, ..dst };
            let order = oxccl_plan::Order::LocalFirst;
            *op = Op::RecvReduce { peer, local, dst, order, finish: false };
        }
    });
    assert!(matches!(fault, Fault::Double { twice: 2, times: 2, .. }), "{fault}");
}

#[test]
fn a_lost_signal_is_named() {
    let fault = broken(&plan(Collective::AllReduce, Algorithm::TwoShot), |programs| {
        let ops = &mut programs[3].ops;
        let at = ops.iter().rposition(|op| *op == Op::Signal).expect("two-shot signals");
        ops.remove(at);
    });
    let named = matches!(fault, Fault::SignalCount { rank: 3, .. } | Fault::Deadlock { .. });
    assert!(named, "{fault}");
    let fault = broken(&plan(Collective::Broadcast, Algorithm::Tree), |programs| {
        programs[0].ops.retain(|op| !matches!(op, Op::Send { .. }));
    });
    assert!(matches!(fault, Fault::Deadlock { .. }), "{fault}");
    assert!(fault.to_string().contains("rank 0 has ended its program"), "{fault}");
}

#[test]
fn a_message_that_nobody_takes_is_named() {
    let fault = broken(&plan(Collective::Gather, Algorithm::Pairwise), |programs| {
        programs[0].ops.pop();
        programs[3].ops.truncate(1);
    });
    assert!(matches!(fault, Fault::Unmatched { .. } | Fault::Deadlock { .. }), "{fault}");
}

#[test]
fn early_reuse_of_a_slot_is_named() {
    let mut early = plan(Collective::Gather, Algorithm::OneShot);
    early.layout.done_signal = 1;
    let fault = broken(&early, |_| ());
    assert!(matches!(fault, Fault::Race { .. } | Fault::Empty { .. }), "{fault}");
    for algorithm in [Algorithm::OneShot, Algorithm::Push] {
        let fault = broken(&plan(Collective::AllGather, algorithm), |programs| {
            programs[1].ops.remove(0);
        });
        assert_eq!(fault, Fault::NotAcquired { rank: 1, step: 0 });
    }
    for (algorithm, block) in [(Algorithm::Push, 3), (Algorithm::Push, 4), (Algorithm::OneShot, 1)]
    {
        let fault = broken(&plan(Collective::AllGather, algorithm), |programs| {
            let far = |op: &mut Op| match op {
                Op::Put { peer: 3, dst, .. } => dst.block = block,
                Op::Copy { dst, .. } if dst.buffer == Buffer::Stage => dst.block = block,
                _ => {}
            };
            programs[1].ops.iter_mut().for_each(far);
        });
        assert!(matches!(fault, Fault::NoRoom { rank: 1, .. }), "{fault}");
    }
    // Everyone hears from everyone: without that, what is in the inbox is read early or
    // overwritten.
    let fault = broken(&plan(Collective::ReduceScatter, Algorithm::Push), |programs| {
        programs[1].ops.retain(|op| !matches!(op, Op::Wait { .. }));
    });
    assert!(matches!(fault, Fault::Race { .. } | Fault::Empty { .. }), "{fault}");
    let fault = broken(&plan(Collective::AllToAll, Algorithm::Push), |programs| {
        // Rank 1 writes into rank 2's block at rank 3.
        let put = |op: &&mut Op| matches!(op, Op::Put { peer: 3, .. });
        if let Some(Op::Put { dst, .. }) = programs[1].ops.iter_mut().find(put) {
            dst.block = 2;
        }
    });
    assert!(matches!(fault, Fault::Race { .. }), "{fault}");
    let fault = broken(&plan(Collective::AllReduce, Algorithm::TwoShot), |programs| {
        // The result of part 2 overwrites what rank 1 staged for rank 2, before it was read.
        let into = |op: &&mut Op| matches!(op, Op::Reduce { .. });
        let op = programs[1].ops.iter_mut().find(into).expect("it reduces");
        if let Op::Reduce { dst, .. } = op {
            *dst = Destination::Own(Slice::part(Buffer::Stage, 0, 2));
        }
    });
    assert!(matches!(fault, Fault::Race { .. }), "{fault}");
}

#[test]
fn an_access_to_memory_of_another_team_is_named() {
    let spec = Spec::new(Collective::Gather, 4, 0).in_teams(2);
    let plan = Plan::new(spec, Algorithm::Pairwise).expect("it serves");
    // In place of its first receive, the root does something else.
    let fault = |op| broken(&plan, |programs| programs[0].ops[1] = op);
    let (src, output) = (Slice::block(Buffer::Input, 0), |b| Slice::block(Buffer::Output, b));
    let accesses = |peer| {
        [
            Op::Get { peer, src, dst: output(peer) },
            Op::Put { peer, src, dst: Slice::block(Buffer::Inbox, 0) },
            Op::Wait { from: oxccl_plan::From::One(peer), signal: 1 },
        ]
    };
    let reduce = |dst| Op::Reduce { src, own: src, dst, finish: true };
    let of_all = [
        Op::Signal,
        Op::Wait { from: oxccl_plan::From::All, signal: 1 },
        Op::Acquire,
        reduce(Destination::Own(output(0))),
    ];
    for op in accesses(2).into_iter().chain(of_all) {
        assert_eq!(fault(op), Fault::OutOfReach { rank: 0, step: 1, peer: 2 }, "{op:?}");
    }
    // The same within the team is wrong for other reasons.
    for op in accesses(1) {
        let fault = fault(op);
        assert!(!matches!(fault, Fault::OutOfReach { .. }), "{op:?}: {fault}");
    }
}

#[test]
fn a_missing_exit_wait_is_a_race_with_the_caller() {
    let fault = broken(&plan(Collective::AllGather, Algorithm::OneShotMapped), |programs| {
        programs[2].ops.pop();
    });
    assert!(matches!(fault, Fault::Race { rank: 2, .. }), "{fault}");
    assert!(fault.to_string().contains("the call returns"), "{fault}");
}

#[test]
fn a_canonical_plan_that_folds_in_another_order_is_named() {
    // What comes from ranks 2 and 3 lies in each other's blocks: complete, but in another order.
    let fault = broken(&plan(Collective::AllReduce, Algorithm::TwoShotEdges), |programs| {
        for op in &mut programs[0].ops {
            if let Op::Recv { peer: 2..=3, dst } = op
                && dst.buffer == Buffer::Scratch
            {
                dst.block = 5 - dst.block;
            }
        }
    });
    assert!(fault.to_string().contains("not folded at once in rank order"), "{fault}");
}

#[test]
fn canonical_is_said_of_all_plans_that_are_and_every_reduction_has_one_over_any_link() {
    for spec in specs(5).into_iter().filter(|s| s.collective.reduces()) {
        let mut anywhere = false;
        for plan in Plan::candidates(spec) {
            let by_steps =
                |r| plan.program(r).ops.iter().any(|op| matches!(op, Op::RecvReduce { .. }));
            let generator = plan.algorithm.generator();
            assert_eq!(generator.canonical, !(0..5).any(by_steps), "{plan:?}");
            anywhere |= generator.canonical && generator.needs == Needs::Edges;
        }
        assert!(anywhere, "{spec:?}");
    }
}

#[test]
fn a_deadlock_is_named() {
    let fault = broken(&plan(Collective::AllToAll, Algorithm::Pairwise), |programs| {
        for program in programs.iter_mut() {
            program.ops.sort_by_key(|op| !matches!(op, Op::Recv { .. }));
        }
    });
    assert!(matches!(fault, Fault::Deadlock { step: 0, .. }), "{fault}");
}

#[test]
fn a_write_to_the_input_is_named() {
    let fault = broken(&plan(Collective::AllReduce, Algorithm::Halving), |programs| {
        for op in &mut programs[0].ops {
            if let Op::Recv { dst, .. } = op {
                dst.buffer = Buffer::Input;
            }
        }
    });
    assert!(matches!(fault, Fault::InputWritten { rank: 0, .. }), "{fault}");
}

#[test]
fn a_use_of_what_a_switch_still_has_is_named() {
    let spec = Spec::new(Collective::AllReduce, 4, 0).in_teams(1);
    let plan = Plan::new(spec, Algorithm::Switch).expect("it serves");
    let [input, output] = [Buffer::Input, Buffer::Output].map(|b| Slice::part(b, 0, 0));
    let results = [0, 1, 2].map(|step| plan.program(2).result(step));
    assert_eq!(results, [Some(output), Some(Slice { part: 1, ..output }), None]);
    let fault = |op| broken(&plan, |programs| programs[2].ops.insert(1, op));
    let lent = Fault::Lent { rank: 2, step: 1, lent: 0 };
    let scratch = Slice::block(Buffer::Scratch, 0);
    assert_eq!(fault(Op::Copy { src: input, dst: scratch }), lent);
    assert_eq!(fault(Op::Copy { src: Slice { part: 1, ..input }, dst: output }), lent);
}

#[test]
fn what_lines_carry_is_right_in_the_order_of_the_phases() {
    let mut verified = 0;
    for nranks in 2..=16 {
        for plan in specs(nranks).into_iter().flat_map(Plan::candidates) {
            if !lines::carry_plan(&plan) {
                continue;
            }
            let of = |rank| Phases::of(&plan.program(rank).ops).expect("phases");
            let phases: Vec<_> = (0..nranks).map(of).collect();
            let passes = |phases: &Phases| phases.middle.as_ref().is_some_and(|m| !m.to.is_empty());
            assert!(nranks > 2 || !phases.iter().any(passes), "{plan:?}");
            for (phases, rank) in phases.iter().zip(0..) {
                let (mut kernels, mut plans) = (phases.program().ops, plan.program(rank).ops);
                kernels.sort_by_key(|op| format!("{op:?}"));
                plans.sort_by_key(|op| format!("{op:?}"));
                assert_eq!(kernels, plans);
            }
            let programs: Vec<_> = phases.iter().map(Phases::program).collect();
            for (count, edge_slots) in [(1, 1), (SLOT, 2), (9 * SLOT + 1, 1), (9 * SLOT + 1, 2)] {
                // Two messages of a window are on an edge where a result follows a contribution.
                let conditions = Conditions { edge_slots, ..Conditions::tight(SLOT, nranks) };
                verify_programs(&plan, &programs, count, &conditions)
                    .unwrap_or_else(|fault| panic!("{plan:?} count {count}: {fault}"));
                verified += 1;
            }
        }
    }
    println!("{verified} plans verified");
    assert!(verified > 1_000);
}
