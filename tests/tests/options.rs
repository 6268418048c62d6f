//! Options of one call: they take effect or are refused, and every rank is told where they differ.

use common::{World, datatype, fails, last_error, number, ok};
use oxccl::nccl::coll_config::ncclConfigExtValue_t;
use oxccl::nccl::coll_config::{ncclCollConfig_t, ncclConfigExt, ncclConfigExtKey_t};
use oxccl::nccl::collectives::*;
use oxccl::nccl::configured::*;
use oxccl::nccl::group::{ncclGroupEnd, ncclGroupStart};
use oxccl::nccl::types::{ncclComm_t, ncclRedOp_t, ncclResult_t};
use oxccl::oxccl::event::{oxcclEventCreate, oxcclEventDestroy, oxcclEventQuery};
use oxccl::oxccl::info::oxcclTag;
use oxccl::oxccl::launch::oxcclCommSetTimeout;
use oxccl::oxccl::stream::oxcclStreamSynchronize;
use oxccl::oxccl::types::{OXCCL_VENDOR_ID, oxcclCallOption_t, oxcclStream_t};
use oxccl_plan::generate::{Algorithm, GENERATORS};
use oxccl_plan::selection::Selection;
use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::op::{Call, CallOptions};
use oxccl_runtime::recorder::read::{PROC, process};
use oxccl_tests::world::communicators;
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::{null, null_mut};

mod common;

const RANKS: usize = 3;
const COUNT: usize = 100;

fn plain() -> ncclCollConfig_t {
    ncclCollConfig_t::default()
}

fn selecting(names: &CStr, force: bool) -> ncclCollConfig_t {
    ncclCollConfig_t { algSelection: names.as_ptr(), forceAlgSelection: force.into(), ..plain() }
}

fn option(id: oxcclCallOption_t, val: ncclConfigExtValue_t) -> ncclConfigExt {
    let key = ncclConfigExtKey_t { vendorId: OXCCL_VENDOR_ID, optionId: id as c_int };
    ncclConfigExt { next: null_mut(), key, val }
}

fn sum() -> MaybeUninit<ncclRedOp_t> {
    number(ncclRedOp_t::ncclSum as i32)
}

/// The eight collectives of integers; with options, or plain ones.
fn call(
    kind: usize,
    (input, output): (&[i32], &mut [i32]),
    (comm, stream): (ncclComm_t, oxcclStream_t),
    config: Option<*const ncclCollConfig_t>,
) -> ncclResult_t {
    let (input, output) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
    let (n, dtype, root) = (COUNT, datatype(DataType::Int32), 1);
    macro_rules! either {
        ($plain:ident, $configured:ident, $($argument:expr),*) => {
            // SAFETY: buffers for all ranks' blocks, which live until the streams are done.
            unsafe {
                match config {
                    None => $plain(input, output, n, dtype, $($argument,)* comm, stream),
                    Some(config) => {
                        $configured(input, output, n, dtype, $($argument,)* comm, stream, config)
                    }
                }
            }
        };
    }
    match kind {
        0 => either!(ncclAllReduce, ncclAllReduceConfig, sum()),
        1 => either!(ncclBroadcast, ncclBroadcastConfig, root),
        2 => either!(ncclReduce, ncclReduceConfig, sum(), root),
        3 => either!(ncclAllGather, ncclAllGatherConfig,),
        4 => either!(ncclReduceScatter, ncclReduceScatterConfig, sum()),
        5 => either!(ncclAlltoAll, ncclAlltoAllConfig,),
        6 => either!(ncclGather, ncclGatherConfig, root),
        _ => either!(ncclScatter, ncclScatterConfig, root),
    }
}

/// The outputs of all ranks after a collective.
fn results(world: &World, kind: usize, config: Option<*const ncclCollConfig_t>) -> Vec<Vec<i32>> {
    let value = |rank: usize, i: usize| (rank * 1000 + i) as i32;
    let input = |rank| (0..RANKS * COUNT).map(|i| value(rank, i)).collect::<Vec<_>>();
    let inputs: Vec<_> = (0..RANKS).map(input).collect();
    let mut outputs = vec![vec![-1; RANKS * COUNT]; RANKS];
    for (rank, output) in outputs.iter_mut().enumerate() {
        let of = (world.comms[rank], world.streams[rank]);
        ok(call(kind, (&inputs[rank], output), of, config));
    }
    world.synchronize();
    outputs
}

#[test]
fn all_collectives_with_options_do_what_the_plain_ones_do() {
    let world = World::new(RANKS);
    let value = |i| ncclConfigExtValue_t { i };
    let mut last = option(oxcclCallOption_t::oxcclOptionDeterministic, value(1));
    let mut first = option(oxcclCallOption_t::oxcclOptionDeadlineMs, value(60_000));
    first.next = &mut last;
    let mut plan = option(
        oxcclCallOption_t::oxcclOptionPlan,
        ncclConfigExtValue_t { s: c"one_shot".as_ptr() },
    );
    let configs = [
        plain(),
        ncclCollConfig_t { minCTAs: 1, maxCTAs: 2, nvlsCTAs: 3, cgaClusterSize: 4, ..plain() },
        ncclCollConfig_t { CTAPolicy: 2, userProfilerTag: 5, ..plain() },
        selecting(c"", true),
        selecting(c"SYMK_ST", false),
        selecting(c"NVLS,TREE,RING,PAT", true),
        selecting(c"^two_shot", true),
        ncclCollConfig_t { ext: &mut first, ..plain() },
        ncclCollConfig_t { ext: &mut plan, ..plain() },
    ];
    for kind in 0..8 {
        let expected = results(&world, kind, None);
        assert!(expected.iter().flatten().any(|value| *value > 0), "{kind}");
        assert_eq!(results(&world, kind, Some(null())), expected, "{kind}");
        for (i, config) in configs.iter().enumerate() {
            assert_eq!(results(&world, kind, Some(config)), expected, "{kind} with options {i}");
        }
    }
}

#[test]
fn operations_are_recorded_with_the_tag_of_their_thread() {
    const TAG: u64 = 0x7a6_0f0c;
    let world = World::new(RANKS);
    let recorded = || {
        let own = process(Path::new(PROC), std::process::id()).expect("itself");
        let operations = own.ranks.iter().flat_map(|rank| &rank.operations);
        operations.filter(|operation| operation.tag == TAG).count()
    };
    // SAFETY: any number may be passed.
    ok(unsafe { oxcclTag(TAG) });
    results(&world, 0, None);
    assert_eq!(recorded(), RANKS);
    // SAFETY: as above.
    ok(unsafe { oxcclTag(0) });
    results(&world, 0, None);
    assert_eq!(recorded(), RANKS);
}

#[test]
fn a_larger_structure_of_a_later_version_is_read_as_far_as_this_one_goes() {
    #[repr(C)]
    struct Later {
        known: ncclCollConfig_t,
        unknown: [u64; 4],
    }
    let world = World::new(RANKS);
    let known = ncclCollConfig_t { size: size_of::<Later>(), version: 23300, ..plain() };
    let later = Later { known, unknown: [u64::MAX; 4] };
    let read = Some((&raw const later).cast());
    assert_eq!(results(&world, 0, read), results(&world, 0, None));
    // The first version with these options had no event; what lies there is not read.
    let earlier = ncclCollConfig_t { size: 64, launchCompletionEvent: 7 as *mut _, ..plain() };
    assert_eq!(results(&world, 0, Some(&earlier)), results(&world, 0, None));
    assert_eq!(later.unknown[0], u64::MAX);
}

/// Rank 0 calls with the first options, the others with the second ones; what each is told.
fn differing(ours: &ncclCollConfig_t, theirs: &ncclCollConfig_t) -> Vec<String> {
    let world = World::new(RANKS);
    let (input, mut output) = (vec![1; COUNT], vec![vec![0; COUNT]; RANKS]);
    let mut told = vec![String::new(); RANKS];
    for (rank, output) in output.iter_mut().enumerate() {
        let config: *const _ = if rank == 0 { ours } else { theirs };
        let of = (world.comms[rank], world.streams[rank]);
        // The last ranks may be told at the call.
        if call(0, (&input, output), of, Some(config)) != ncclResult_t::ncclSuccess {
            told[rank] = last_error();
        }
    }
    for (stream, told) in world.streams.iter().zip(&mut told).filter(|(_, told)| told.is_empty()) {
        // SAFETY: any handle may be passed.
        let waited = unsafe { oxcclStreamSynchronize(*stream, 60_000_000_000) };
        assert_eq!(waited, ncclResult_t::ncclInvalidUsage, "{}", last_error());
        *told = last_error();
    }
    told
}

#[test]
fn options_that_differ_are_named_on_all_ranks() {
    let mut event = null_mut();
    // SAFETY: a place for the handle.
    ok(unsafe { oxcclEventCreate(&mut event) });
    let (ring, tree) = (selecting(c"ring", true), selecting(c"tree", true));
    let mut plan =
        option(oxcclCallOption_t::oxcclOptionPlan, ncclConfigExtValue_t { s: c"tree".as_ptr() });
    let by_name = ncclCollConfig_t { ext: &mut plan, ..plain() };
    for (ours, theirs, texts) in [
        (ncclCollConfig_t { maxCTAs: 4, ..plain() }, plain(), ["sum, maxCTAs 4", "float, sum"]),
        (
            ncclCollConfig_t { maxCTAs: 4, ..plain() },
            ncclCollConfig_t { maxCTAs: 5, ..plain() },
            ["maxCTAs 4", "maxCTAs 5"],
        ),
        (ncclCollConfig_t { CTAPolicy: 0, ..plain() }, plain(), ["CTAPolicy DEFAULT", "sum"]),
        (
            ncclCollConfig_t { CTAPolicy: 3, ..plain() },
            ncclCollConfig_t { CTAPolicy: 1, ..plain() },
            ["CTAPolicy ZERO", "CTAPolicy EFFICIENCY"],
        ),
        (
            ncclCollConfig_t { launchCompletionEvent: event, ..plain() },
            plain(),
            ["with a launchCompletionEvent", "sum"],
        ),
        (ring, tree, ["by ring", "by tree"]),
        (ring, by_name, ["by ring", "by tree"]),
    ] {
        let told = differing(&ours, &theirs);
        let int = |text: &str| text.replace("float", "int32");
        let all = |error: &String| texts.iter().all(|text| error.contains(&int(text)));
        assert!(told.iter().all(all), "{texts:?}: {told:#?}");
    }
    // SAFETY: any handle may be passed.
    ok(unsafe { oxcclEventDestroy(event) });
}

#[test]
fn a_forced_selection_that_does_not_serve_is_refused_and_names_what_does() {
    let world = World::new(RANKS);
    let (input, mut output) = (vec![1; RANKS * COUNT], vec![0; RANKS * COUNT]);
    let of = (world.comms[0], world.streams[0]);
    for names in [c"SYMK_LL", c"rails_ring", c"COLLNET_DIRECT_SIMPLE", c"switch"] {
        let refused = call(0, (&input, &mut output), of, Some(&selecting(names, true)));
        fails(refused, ncclResult_t::ncclInvalidUsage, "all_reduce of 400 bytes per block here");
        assert!(last_error().contains("two_shot"), "{}", last_error());
    }
    let wrong = call(0, (&input, &mut output), of, Some(&selecting(c"ring,TREES", true)));
    fails(
        wrong,
        ncclResult_t::ncclInvalidArgument,
        "algSelection is \"ring,TREES\" with \"TREES\"",
    );
    let told = last_error();
    let names = ["two_shot_mapped, ", "COLLNET_DIRECT, ", "also with _LL or _LL128 or _SIMPLE"];
    assert!(names.into_iter().all(|name| told.contains(name)), "{told}");
    // Nothing was launched.
    assert_eq!(results(&world, 0, None), results(&world, 0, Some(&selecting(c"switch", false))));
}

#[test]
fn what_is_selected_is_what_runs() {
    let comms = communicators(4);
    let spec = Spec::new(Collective::AllReduce, 4, 0);
    let (input, output) = (null(), null_mut());
    let (dtype, op) = (DataType::Float32, ReduceOp::Sum);
    for count in [1, 1000, 1 << 20] {
        let call = Call { spec, input, output, count, dtype, op, scale: None };
        let chosen = |selection, deterministic, tag| {
            let forced = true;
            let options =
                CallOptions { selection, forced, deterministic, tag, ..CallOptions::default() };
            comms[0].programs_under(&call, options)
        };
        let mut served = 0;
        for generator in &GENERATORS {
            let selection = Some(Selection::from(generator.algorithm));
            let Ok(programs) = chosen(selection, false, 7) else { continue };
            served += 1;
            let mapped = programs.mapped.as_ref().map(|bound| bound.plan.algorithm);
            let runs = [Some(programs.any.plan.algorithm), mapped];
            assert!(runs.contains(&Some(generator.algorithm)), "{}", generator.name);
            assert_eq!(programs.options.tag, 7);
            // Other calls keep their own.
            let plain = comms[0].programs(&call).expect("a plan");
            assert_eq!(plain.options, CallOptions::default());
        }
        assert!(served > 4, "{served}");
        let exact = chosen(None, true, 0).expect("a plan");
        assert!(exact.any.plan.algorithm.generator().canonical);
        assert!(chosen(Some(Algorithm::Ring.into()), true, 0).is_err(), "its order is its own");
        let nccl = Selection::parse("TREE").expect("a name");
        let tree = chosen(nccl, false, 0).expect("it serves").any.plan.algorithm;
        assert!([Algorithm::Tree, Algorithm::Halving].contains(&tree), "{tree:?}");
    }
    comms.iter().for_each(|comm| comm.destroy().expect("nothing was called"));
}

#[test]
fn inboxes_that_a_call_selects_survive_a_suspension() {
    use oxccl::nccl::lifetime::{ncclCommResume, ncclCommSuspend};
    let world = World::new(RANKS);
    let push = selecting(c"push", true);
    let expected = results(&world, 0, None);
    for _ in 0..3 {
        assert_eq!(results(&world, 0, Some(&push)), expected);
        // SAFETY: any handle may be passed.
        world.comms.iter().for_each(|comm| ok(unsafe { ncclCommSuspend(*comm, 1) }));
        // SAFETY: as above.
        world.comms.iter().for_each(|comm| ok(unsafe { ncclCommResume(*comm) }));
        assert_eq!(results(&world, 0, None), expected);
    }
}

#[test]
fn a_deadline_ends_its_own_call_and_no_other() {
    let world = World::new(RANKS);
    let value = ncclConfigExtValue_t { i: 30_000 };
    let mut ext = option(oxcclCallOption_t::oxcclOptionDeadlineMs, value);
    let long = ncclCollConfig_t { ext: &mut ext, ..plain() };
    assert_eq!(results(&world, 0, Some(&long)), results(&world, 0, None));
    let mut ext = option(oxcclCallOption_t::oxcclOptionDeadlineMs, ncclConfigExtValue_t { i: 50 });
    let short = ncclCollConfig_t { ext: &mut ext, ..plain() };
    let (input, mut output) = (vec![1; COUNT], vec![0; COUNT]);
    ok(call(0, (&input, &mut output), (world.comms[0], world.streams[0]), Some(&short)));
    // SAFETY: any handle may be passed.
    let waited = unsafe { oxcclStreamSynchronize(world.streams[0], 60_000_000_000) };
    for text in [
        "the limit set by oxcclCommSetTimeout, OXCCL_TIMEOUT or the call",
        " has not called all_reduce of ",
        "look at what that process does",
    ] {
        fails(waited, ncclResult_t::ncclRemoteError, text);
    }
}

#[test]
fn a_limit_that_is_set_while_a_call_waits_counts_from_when_the_wait_began() {
    let world = World::new(RANKS);
    let (input, mut output) = (vec![1; COUNT], vec![0; COUNT]);
    ok(call(0, (&input, &mut output), (world.comms[0], world.streams[0]), None));
    // SAFETY: any handle may be passed.
    let waited = unsafe {
        assert_eq!(
            oxcclStreamSynchronize(world.streams[0], 1_500_000_000),
            ncclResult_t::ncclInProgress
        );
        ok(oxcclCommSetTimeout(world.comms[0], 200_000_000));
        oxcclStreamSynchronize(world.streams[0], 60_000_000_000)
    };
    fails(waited, ncclResult_t::ncclRemoteError, "rank 0 waited ");
    let text = last_error();
    let waited = text.split_once("waited ").and_then(|(_, rest)| rest.split_once(" ms"));
    let waited_ms: u32 = waited.expect("a time").0.parse().expect("a number");
    assert!(waited_ms >= 700, "{text}");
}

#[test]
fn the_event_is_recorded_behind_its_call() {
    let world = World::new(RANKS);
    let mut events = [null_mut(); 2];
    // SAFETY: places for the handles.
    events.iter_mut().for_each(|event| ok(unsafe { oxcclEventCreate(event) }));
    let with = |i: usize| ncclCollConfig_t { launchCompletionEvent: events[i], ..plain() };
    let (input, mut output) = (vec![2; COUNT], vec![vec![0; COUNT]; RANKS]);
    // Ranks of one process may share an event: here only the last one is asked.
    for (rank, output) in output.iter_mut().enumerate() {
        let of = (world.comms[rank], world.streams[rank]);
        let event = usize::from(rank > 0);
        // SAFETY: any handle may be passed.
        let state = unsafe { oxcclEventQuery(events[0]) };
        let expected =
            if rank == 0 { ncclResult_t::ncclSuccess } else { ncclResult_t::ncclInProgress };
        assert_eq!(state, expected, "before rank {rank} calls");
        ok(call(0, (&input, output), of, Some(&with(event))));
    }
    world.synchronize();
    // SAFETY: as above.
    ok(unsafe { oxcclEventQuery(events[0]) });
    assert!(output.iter().flatten().all(|sum| *sum == 6));
    // At most one for a communicator in a group.
    let of = (world.comms[0], world.streams[0]);
    let twice = || (0..2).for_each(|_| ok(call(0, (&input, &mut output[0]), of, Some(&with(0)))));
    fails(grouped(twice), ncclResult_t::ncclInvalidUsage, "two calls of a group");
    ok(grouped(|| {
        for (rank, output) in output.iter_mut().enumerate() {
            let of = (world.comms[rank], world.streams[rank]);
            ok(call(0, (&input, output), of, Some(&with(0))));
            ok(call(0, (&input, output), of, Some(&plain())));
        }
    }));
    world.synchronize();
    // SAFETY: any handle may be passed.
    events.iter().for_each(|event| ok(unsafe { oxcclEventDestroy(*event) }));
}

/// Makes calls in a group; what its end returns.
fn grouped(calls: impl FnOnce()) -> ncclResult_t {
    // SAFETY: may be called at any time.
    ok(unsafe { ncclGroupStart() });
    calls();
    // SAFETY: as above.
    unsafe { ncclGroupEnd() }
}
