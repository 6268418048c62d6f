//! Thousands of seeded histories of communicators, with virtual time and network, in one process.
//! `OXCCL_HISTORIES` sets their number, `OXCCL_HISTORY_SEED` replays a single one.

use oxccl_plan::generate::{Algorithm, GENERATORS, Generator, Needs};
use oxccl_runtime::log;
use oxccl_runtime::ras::verdict::Cause;
use oxccl_tests::simulation::{Standstill, Summary, run, stand_still};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Histories in an ordinary run, and standstills.
const HISTORIES: u64 = 3000;
const STANDSTILLS: u64 = 3000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn play(seed: u64) -> Summary {
    catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|panic| {
        println!("history {seed} failed; OXCCL_HISTORY_SEED={seed} replays it");
        resume_unwind(panic)
    })
}

#[test]
fn survivors_of_any_fault_at_any_step_end_in_time_and_work_on() {
    // Every fault is logged as a warning.
    log::set(0, None);
    if let Some(seed) = number("OXCCL_HISTORY_SEED") {
        println!("{:?}", play(seed));
        return;
    }
    let (mut algorithms, mut faults) = (BTreeMap::new(), BTreeMap::new());
    let (mut direct, mut mixed, mut networked, mut writing) = (0, 0, 0, 0);
    let mut killed = [0; 3];
    for seed in 0..number("OXCCL_HISTORIES").unwrap_or(HISTORIES) {
        let summary = play(seed);
        *faults.entry((summary.fault, summary.failed)).or_insert(0) += 1;
        summary.algorithms.iter().for_each(|a| *algorithms.entry(*a).or_insert(0) += 1);
        writing += u32::from(summary.writing);
        for (operation, step) in summary.places.into_iter().filter(|_| summary.fault == "kill") {
            let counts = [true, operation, step];
            killed.iter_mut().zip(counts).for_each(|(of, counts)| *of += u32::from(counts));
        }
        match summary.links {
            (true, true) => mixed += 1,
            (true, false) => direct += 1,
            (false, true) => networked += 1,
            (false, false) => {}
        }
    }
    println!("faults, and whether somebody felt them: {faults:?}");
    println!("right results: {algorithms:?}");
    println!(
        "direct {direct}, mixed {mixed}, networked {networked}; in the middle of a write {writing}"
    );
    let [errors, operations, steps] = killed;
    println!("of {errors} errors of survivors {operations} name an operation, {steps} a step");
    // A rank that is between two operations is in none, and messages have no steps.
    assert!(operations * 20 >= errors * 19 && steps * 4 >= operations * 3 && errors > 1000);
    // Switches are networks of plugins, with tests of their own.
    for generator in GENERATORS.iter().filter(|generator| generator.needs != Needs::Switch) {
        assert!(algorithms.contains_key(&generator.algorithm), "{} never ran", generator.name);
    }
    for fault in ["kill", "abort", "revoke", "deadline"] {
        assert!(faults.contains_key(&(fault, true)), "no {fault}");
    }
    assert!(faults.contains_key(&("none", false)) && faults.contains_key(&("delay", false)));
    assert!(direct.min(mixed).min(networked).min(writing) > 0);
}

/// Requires that the rank at fault, the operation and the step are named, and nobody if nobody
/// waits for it, whether its process runs or is stopped.
fn is_named(seed: u64, found: &Standstill) {
    for verdict in found.verdicts.iter().chain(&found.stopped) {
        assert_eq!(verdict.ranks, [found.victim], "seed {seed}: {found:#?}");
        let place = |operation: &String| {
            let (_, after) = verdict.text.split_once(operation.as_str())?;
            let named = |step: &u32| after.contains(&format!(", step {step})"));
            (found.steps.iter().any(named) || operation.starts_with("send")).then_some(())
        };
        let is_named = found.operations.iter().any(|operation| place(operation).is_some());
        assert!(is_named, "seed {seed}: {found:#?}");
    }
    assert!(found.stopped.iter().all(|verdict| verdict.cause == Cause::Stopped), "{found:#?}");
    for verdicts in [&found.verdicts, &found.stopped] {
        assert_eq!(found.held, !verdicts.is_empty(), "seed {seed}: {found:#?}");
    }
}

#[test]
fn a_rank_that_stands_still_at_any_time_is_named_by_what_all_ranks_record() {
    log::set(0, None);
    let (mut held, mut causes) = (0, BTreeMap::new());
    for seed in 0..STANDSTILLS {
        let found = stand_still(seed, None);
        held += u64::from(found.held);
        for verdict in &found.verdicts {
            *causes.entry(format!("{:?}", verdict.cause)).or_insert(0) += 1;
        }
        is_named(seed, &found);
    }
    println!("{held} of {STANDSTILLS} held others up: {causes:?}");
    assert!(held > STANDSTILLS / 3, "{held}");
    for cause in [Cause::NotCalled, Cause::NotBegun, Cause::Inside] {
        assert!(causes.contains_key(&format!("{cause:?}")), "no {cause:?}: {causes:?}");
    }
}

#[test]
fn a_rank_that_stands_still_at_each_step_of_each_algorithm_is_named() {
    /// The most turns of a history that is played with a standstill after each of them.
    const TURNS: u64 = 300;
    log::set(0, None);
    let (mut held, mut played) = (BTreeMap::new(), 0);
    let missing = |held: &BTreeMap<Algorithm, u64>| {
        // A rank that is alone waits for nobody.
        let waits = |generator: &&Generator| {
            generator.needs != Needs::Switch && generator.algorithm != Algorithm::Local
        };
        let all = GENERATORS.iter().filter(waits);
        let missing = all.filter(|generator| !held.contains_key(&generator.algorithm));
        missing.map(|generator| generator.name).collect::<Vec<_>>()
    };
    for seed in 0..STANDSTILLS {
        if missing(&held).is_empty() {
            break;
        }
        let last = stand_still(seed, Some(TURNS));
        if !last.ended || last.algorithms.iter().all(|algorithm| held.contains_key(algorithm)) {
            continue;
        }
        for turns in 0..TURNS {
            let found = stand_still(seed, Some(turns));
            is_named(seed, &found);
            played += 1;
            for algorithm in found.held_in {
                *held.entry(algorithm).or_insert(0) += 1;
            }
            if found.ended {
                break;
            }
        }
    }
    println!("{played} standstills held others up in {held:?}");
    assert!(missing(&held).is_empty(), "never stood still in {:?}", missing(&held));
}

#[test]
fn a_seed_always_gives_the_same_history() {
    log::set(0, None);
    for seed in 0..100 {
        assert_eq!(play(seed), play(seed), "seed {seed}");
    }
}
