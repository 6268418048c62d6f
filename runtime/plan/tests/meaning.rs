//! What plans compute and how long they take: the reference interpreter against the definition of
//! the collectives, the closed cost formulas against the simulator.

use oxccl_plan::carrier::{Carrier, Packets};
use oxccl_plan::cost::CostModel;
use oxccl_plan::ir::{Capacity, UserMemory};
use oxccl_plan::select::{self, Memory, Policy, Route, Topology};
use oxccl_plan::{
    Algorithm, Collective, DataType, Geometry, Plan, ReduceOp, Spec, arith, explain, reference,
    simulate,
};

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// The definition: for integers the order of folding does not matter.
fn expected(spec: &Spec, inputs: &[Vec<u8>], op: ReduceOp, block_bytes: usize) -> Vec<Vec<u8>> {
    let block = |rank: u32, block: u32| {
        let at = block as usize * block_bytes;
        &inputs[rank as usize][at..at + block_bytes]
    };
    (0..spec.nranks)
        .map(|rank| {
            let source = spec.source_block(rank);
            let blocks = (0..spec.output_blocks(rank)).flat_map(|b| match spec.source_rank(b) {
                Some(from) => block(from, source).to_vec(),
                None if spec.nranks == 1 => block(0, source).to_vec(),
                None => {
                    let all: Vec<_> = (0..spec.nranks).map(|r| block(r, source)).collect();
                    arith::fold(DataType::Int32, op, &all, Some(spec.nranks))
                }
            });
            blocks.collect()
        })
        .collect()
}

#[test]
fn every_plan_computes_its_collective() {
    let (edge_slot_elems, message_elems, stage_slot_elems) = (64, 16, 64);
    let room = Capacity { edge_slot_elems, message_elems, stage_slot_elems, align_elems: 2 };
    let one_team = [1, 2, 3, 5, 8, 13].map(|nranks| (nranks, nranks));
    let several = [(2, 1), (5, 1), (8, 1), (4, 2), (12, 4), (12, 3)];
    for (nranks, team) in one_team.into_iter().chain(several) {
        for collective in Collective::ALL {
            let spec = Spec::new(collective, nranks, nranks / 2).in_teams(team);
            for plan in Plan::candidates(spec) {
                for (i, op) in ReduceOp::ALL.into_iter().enumerate() {
                    let count = 37 * i as u64 + 1;
                    let geometry = Geometry::new(&plan.layout, count, &room);
                    let inputs: Vec<_> = (0..nranks)
                        .map(|r| {
                            let len = spec.input_blocks(r) as usize * count as usize * 4;
                            bytes(u64::from(r) * 77 + i as u64, len)
                        })
                        .collect();
                    let got = reference::interpret(&plan, geometry, DataType::Int32, op, &inputs)
                        .unwrap();
                    let expected = expected(&spec, &inputs, op, count as usize * 4);
                    assert_eq!(got, expected, "{plan:?} {op:?}");
                }
            }
        }
    }
}

#[test]
fn canonical_float_results_are_the_rank_order_fold_with_one_rounding() {
    let (nranks, count) = (5, 100);
    let spec = Spec::new(Collective::AllReduce, nranks, 0);
    for dtype in [DataType::Float16, DataType::Bfloat16, DataType::Float8e4m3, DataType::Float32] {
        let inputs: Vec<_> =
            (0..nranks).map(|r| bytes(u64::from(r), count * dtype.size())).collect();
        let operands: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
        let expected = arith::fold(dtype, ReduceOp::Avg, &operands, Some(nranks));
        for plan in Plan::candidates(spec).filter(|p| p.algorithm.generator().canonical) {
            let (edge_slot_elems, message_elems, stage_slot_elems) = (8, 8, 32);
            let room =
                Capacity { edge_slot_elems, message_elems, stage_slot_elems, align_elems: 1 };
            let geometry = Geometry::new(&plan.layout, count as u64, &room);
            let got = reference::interpret(&plan, geometry, dtype, ReduceOp::Avg, &inputs).unwrap();
            assert!(got.iter().all(|output| *output == expected), "{dtype:?} {plan:?}");
        }
    }
}

#[test]
fn the_cost_formulas_stay_within_a_factor_of_the_simulator() {
    let flat = [2, 3, 4, 8].into_iter();
    let shared = flat.clone().map(|n| (CostModel::SHARED_MEMORY, n, n));
    let hosts = flat.map(|n| (n, 1)).chain([(4, 2), (6, 2), (6, 3), (16, 2), (16, 4), (16, 8)]);
    let networks = hosts.map(|(nranks, team)| (CostModel::TCP, nranks, team));
    for (model, nranks, team) in shared.chain(networks) {
        for collective in Collective::ALL {
            let spec = Spec::new(collective, nranks, 0).in_teams(team);
            // The formulas of plans without rails take all links for those between teams.
            let rails = |plan: &Plan| Plan::new(spec.in_teams(1), plan.algorithm).is_none();
            let one_link = team == 1 || team == nranks;
            for plan in Plan::candidates(spec).filter(|plan| one_link || rails(plan)) {
                for bytes in [8, 4 << 10, 256 << 10, 8 << 20] {
                    let simulated = simulate::time_us(&plan, bytes, &model).unwrap();
                    let blocks = spec.input_blocks(0).max(spec.output_blocks(0));
                    let model = model.for_buffer(bytes * u64::from(blocks));
                    let formula = (plan.algorithm.generator().cost_us)(&plan.spec, bytes, &model);
                    let ratio = formula / simulated;
                    assert!(
                        (0.1..8.0).contains(&ratio),
                        "{plan:?} {bytes}: formula {formula:.2} simulated {simulated:.2}"
                    );
                }
            }
        }
    }
}

/// Ranks of one host in host memory.
const fn direct(nranks: u32) -> Topology {
    Topology {
        team: nranks,
        push: false,
        remote_reads: false,
        direct: true,
        edges: true,
        lines: false,
        switch: false,
        mapped_from_bytes: 0,
        scratch: true,
        packets: Packets::Lines { published_bytes: 16 << 10 },
        engine_bytes: u64::MAX,
        model: CostModel::SHARED_MEMORY,
    }
}

/// The same, where the system copies from the memory of other processes.
const fn remote(nranks: u32) -> Topology {
    Topology { remote_reads: true, ..direct(nranks) }
}

/// Ranks on hosts of their own.
const NETWORK: Topology =
    Topology { direct: false, model: CostModel::TCP, packets: Packets::Nowhere, ..direct(1) };

/// Plans of two rounds have one message time between hosts: what is sent in the first round is
/// received in the second one.
#[test]
fn small_calls_between_hosts_take_one_message_time() {
    let choose = |collective, hosts, team| {
        let spec = Spec::new(collective, hosts * team, 0);
        let topology = Topology { team, ..NETWORK };
        select::choose(spec, 8, &topology, Policy::default()).unwrap().any_memory.plan
    };
    for hosts in [2, 3, 4, 8] {
        let plan = choose(Collective::AllReduce, hosts, 1);
        assert_eq!(plan.algorithm, Algorithm::OneShotEdges, "{hosts} hosts");
        for team in [2, 3, 4, 8] {
            let plan = choose(Collective::AllReduce, hosts, team);
            let is_rails = plan.algorithm.name().starts_with("rails_");
            assert!(is_rails && plan.layout.rounds == 2, "{hosts} hosts: {plan:?}");
        }
    }
    let others = [
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::ReduceScatter,
    ];
    for collective in others {
        for team in [1, 2, 4] {
            let plan = choose(collective, 4, team);
            assert_eq!(plan.layout.rounds, 2, "{plan:?}");
        }
    }
}

#[test]
fn explanations_have_the_times_by_which_plans_are_chosen() {
    for (topology, bytes) in [direct(4), remote(4), NETWORK]
        .iter()
        .flat_map(|topology| [1, 1 << 10, 1 << 20, 1 << 30].map(|bytes| (topology, bytes)))
    {
        for collective in Collective::ALL {
            let spec = Spec::new(collective, 4, 1);
            let chosen = select::choose(spec, bytes, topology, Policy::default()).unwrap();
            let plan = chosen.any_memory.plan;
            let text = explain::table(spec, bytes, topology, Policy::default());
            let rows = text.lines().skip_while(|line| *line != " any memory:").skip(1);
            let rows: Vec<_> = rows.take_while(|line| line.starts_with("  ")).collect();
            assert!(
                rows[0].contains(plan.algorithm.name()) && rows[0].ends_with("chosen"),
                "{text}"
            );
            let before = |line: &str, word: &str| -> Option<f64> {
                line.split_once(word)?.0.split_whitespace().next_back()?.parse().ok()
            };
            let costs: Vec<f64> = rows.iter().filter_map(|row| before(row, " us")).collect();
            assert!(costs.len() == rows.len() && costs.is_sorted(), "{text}");
            let cost_us = select::cost_us(&plan, bytes, topology, Memory::Any);
            assert!((costs[0] - cost_us).abs() < 0.01, "{cost_us} is chosen: {text}");
            // What is said of each plan adds up to its time.
            let reasons = explain::reasons(spec, bytes, topology, Policy::default());
            let parts = reasons.lines().filter_map(|line| {
                let fixed_us = before(line, " us for any size + ")?;
                Some(fixed_us + before(line.split_once(" + ")?.1, " us")?)
            });
            let parts: Vec<f64> = parts.take(costs.len()).collect();
            assert_eq!(parts.len(), costs.len(), "{reasons}");
            for (part, cost) in parts.iter().zip(&costs) {
                assert!((part - cost).abs() < 0.02, "{part} for {cost}: {reasons}");
            }
        }
    }
}

#[test]
fn the_choice_is_right_at_the_ends_and_explained() {
    let spec = Spec::new(Collective::AllReduce, 8, 0);
    let small = select::choose(spec, 8, &direct(8), Policy::default()).unwrap();
    assert_eq!((small.any_memory.plan.algorithm, small.mapped), (Algorithm::OneShot, None));
    assert_eq!(small.any_memory.carrier, Carrier::Packets);
    let large = select::choose(spec, 64 << 20, &direct(8), Policy::default()).unwrap();
    assert_eq!(large.any_memory.plan.layout.user_memory, UserMemory::Private);
    let mapped = large.mapped.map(|route| (route.plan.algorithm, route.carrier));
    assert_eq!(mapped, Some((Algorithm::TwoShotMapped, Carrier::InPlace)));
    for collective in Collective::ALL {
        for bytes in [1, 1 << 10, 1 << 20, 1 << 30] {
            let choice =
                select::choose(Spec::new(collective, 5, 2), bytes, &NETWORK, Policy::default())
                    .unwrap();
            assert!(choice.any_memory.plan.layout.stage_blocks == 0 && choice.mapped.is_none());
            assert_eq!(choice.any_memory.carrier, Carrier::Edges);
        }
    }
    let read = select::choose(spec, 64 << 20, &remote(8), Policy::default()).unwrap();
    assert_eq!(read.any_memory.plan.layout.user_memory, UserMemory::Read);
    assert_eq!(read.any_memory.carrier, Carrier::RemoteRead);
    for collective in Collective::ALL {
        for bytes in [1, 1 << 10, 1 << 20, 1 << 30] {
            let spec = Spec::new(collective, 5, 2);
            let choice = select::choose(spec, bytes, &remote(5), Policy::default()).unwrap();
            let any = choice.any_memory.plan;
            assert_ne!(any.layout.user_memory, UserMemory::Written, "{any:?}");
        }
    }
    let text = explain::table(spec, 64 << 20, &direct(8), Policy::default());
    assert!(text.contains("two_shot_mapped") && text.contains("any memory:"), "{text}");
    for topology in [&NETWORK, &direct(5), &remote(5)] {
        for bytes in [1, 1 << 10, 1 << 20, 1 << 30] {
            let deterministic = Policy { deterministic: true, ..Policy::default() };
            for collective in Collective::ALL {
                let spec = Spec::new(collective, 5, 2);
                let free = select::choose(spec, bytes, topology, Policy::default());
                let choice = select::choose(spec, bytes, topology, deterministic);
                if !collective.reduces() {
                    assert_eq!(choice, free);
                    continue;
                }
                let choice = choice.unwrap();
                let canonical = |route: Route| route.plan.algorithm.generator().canonical;
                assert!(canonical(choice.any_memory) && choice.mapped.is_none_or(canonical));
            }
            let ring = Policy { only: Some(Algorithm::Ring.into()), ..deterministic };
            let spec = Spec::new(Collective::AllReduce, 5, 0);
            assert!(select::choose(spec, bytes, topology, ring).is_none());
        }
    }
    let forced = Policy { only: Some(Algorithm::OneShot.into()), ..Policy::default() };
    assert!(select::choose(spec, 8, &NETWORK, forced).is_none());
}
