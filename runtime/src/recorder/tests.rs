//! Tests that others read what is recorded.

use super::read::{OperationReport, Process, RankReport, process};
use super::*;
use crate::op::{Call, CallOptions, Operation, Programs, Transfer, Transfers};
use oxccl_plan::select::{Choice, Route};
use oxccl_plan::{Algorithm, Carrier, Collective, DataType, Plan, ReduceOp, Spec};
use std::path::Path;
use std::sync::Arc;

/// A group of one message of so many bytes.
fn message(bytes: usize) -> What {
    let (data, dtype) = (std::ptr::null_mut(), DataType::Uint8);
    let transfer = Transfer { peer: 3, send: true, data, bytes, dtype };
    What::of(&Transfers { operation: "send/recv", list: vec![transfer] }.into())
}

/// A reduction of 5 elements, and the programs that may serve it.
fn reduction() -> (Programs, Call) {
    let spec = Spec::new(Collective::Reduce, 2, 1);
    let (input, output) = (std::ptr::null(), std::ptr::null_mut());
    let (dtype, op) = (DataType::Float32, ReduceOp::Max);
    let call = Call { spec, input, output, count: 5, dtype, op, scale: None };
    let plan = Plan::new(spec, Algorithm::Ring).expect("a plan");
    let any_memory = Route { plan, carrier: Carrier::Edges };
    let mapped = Plan::new(spec, Algorithm::TwoShotMapped).expect("a plan");
    let mapped = Some(Route { plan: mapped, carrier: Carrier::InPlace });
    (Programs::new(&Choice { any_memory, mapped, engines: true }, 0), call)
}

#[test]
fn collectives_that_run_together_are_one_operation_and_count_each() {
    let comm = 0x1234_5678_abcd;
    let recorder = Recorder::new();
    recorder.identify(comm, (0, 2), Memory::Gpu(0), "");
    recorder.enter(Stage::Running);
    let (programs, call) = reduction();
    let one = || Operation::Collective(Arc::new(programs.clone()), call);
    let mut batch = one();
    batch.batch(one()).expect("a batch");
    batch.batch(one()).expect("a batch");
    for operation in [one(), batch, one()] {
        recorder.call_on_gpu(&What::of(&operation), 0, Tick::now());
    }
    let rank = rank_of(comm).expect("it is there");
    assert_eq!((rank.issued, rank.collectives), (3, 3));
    assert_eq!(rank.collectives_by_kind[Collective::Reduce as usize], 5);
    assert_eq!(rank.bytes_by_kind[Collective::Reduce as usize], 100);
    let said = rank.operations.iter().map(|op| (op.of_kind, &op.what[..], op.transfers));
    let reduce = "reduce of 5 × float, max, root 1";
    let all = [(0, reduce, 0), (1, "a group of 3 reduce of float", 3), (2, reduce, 0)];
    assert_eq!(said.collect::<Vec<_>>(), all);
}

/// This process, as others see it.
fn own() -> Process {
    process(Path::new("/proc"), std::process::id()).expect("this process has a recorder")
}

fn rank_of(comm: u64) -> Option<RankReport> {
    own().ranks.into_iter().find(|rank| rank.comm == comm)
}

#[test]
fn what_a_rank_records_is_read_from_outside_until_the_recorder_is_dropped() {
    let comm = 0x1234_5678_9abc;
    let recorder = Recorder::new();
    recorder.identify(comm, (1, 4), Memory::Gpu(2), "tensor parallel");
    let creating = rank_of(comm).expect("it is there");
    assert_eq!((creating.rank, creating.nranks, creating.gpu), (1, 4, Some(2)));
    assert_eq!((creating.stage, &creating.name[..]), (Stage::Creating, "tensor parallel"));
    recorder.enter(Stage::Running);
    set_tag(77);
    let called = recorder.call(&message(10), 5);
    recorder.begin(&called, &message(10));
    recorder.wait(called.number, 3, 2, true);
    let waits = rank_of(comm).expect("it is there");
    let awaited = waits.waiting.expect("it waits");
    assert_eq!((awaited.number, awaited.peer, awaited.step), (Some(0), Some(3), Some(2)));
    let [op] = &waits.operations[..] else { panic!("{waits:?}") };
    assert_eq!((op.kind, op.bytes, op.peer, op.sends), (Kind::Exchange, 10, Some(3), Some(true)));
    assert_eq!((op.tag, op.stream, op.transfers, op.ended_ns), (77, 5, 1, None));
    assert!(op.begun_ns.is_some_and(|begun| begun >= op.called_ns && begun >= waits.begun_ns));
    assert!(awaited.since_ns >= op.called_ns && own().read_ns >= awaited.since_ns);
    recorder.go_on();
    let moved = rank_of(comm).expect("it is there");
    assert_eq!(moved.waiting, None, "something has moved");
    assert!(moved.waited_ns > 0 && waits.waited_ns == 0, "{moved:?}");
    // It waits once more until its end.
    recorder.wait(called.number, 3, 2, true);
    recorder.end(called.number);
    recorder.fail("it is over", 6, Source::Peer(2));
    recorder.note(End::Destroy);
    recorder.enter(Stage::Running);
    let failed = rank_of(comm).expect("it is there");
    assert_eq!((failed.stage, &failed.failure.text[..]), (Stage::Failed, "it is over"));
    assert_eq!((failed.failure.source, failed.failure.code), (Source::Peer(2), 6));
    let failed_ns = failed.failure.since_ns.expect("a time");
    assert!(moved.failure.since_ns.is_none() && failed_ns >= failed.begun_ns, "{failed:?}");
    let ends = (failed.finalized, failed.destroyed, failed.aborted);
    assert_eq!(ends, (false, true, false));
    assert_eq!((failed.issued, failed.finished, failed.waiting), (1, 1, None));
    assert!(failed.waited_ns > moved.waited_ns, "the wait until the end counts");
    assert!(failed.operations[0].ended_ns.is_some());
    set_tag(0);
    drop(recorder);
    assert_eq!(rank_of(comm), None);
    // The next one begins with nothing of it.
    let recorders: Vec<_> = (0..4).map(|_| Recorder::new()).collect();
    for (number, recorder) in (comm..).zip(&recorders) {
        recorder.identify(number, (0, 1), Memory::Host(0), "");
        let fresh = rank_of(number).expect("it is there");
        assert_eq!((fresh.issued, &fresh.failure.text[..], fresh.operations.len()), (0, "", 0));
        assert_eq!((fresh.stage, fresh.waiting), (Stage::Creating, None));
        assert_eq!((fresh.failure.code, fresh.destroyed, fresh.collectives), (0, false, 0));
    }
}

#[test]
fn of_a_caller_far_ahead_the_operations_under_way_and_after_it_stay() {
    let comm = 0xabc_dead;
    let recorder = Recorder::new();
    recorder.identify(comm, (0, 2), Memory::Host(1), "");
    let bytes = |number: u64| 100 + number as usize;
    let all: Vec<_> = (0..200).map(|n| recorder.call(&message(bytes(n)), 1)).collect();
    let numbers =
        |rank: &RankReport| rank.operations.iter().map(|op| op.number).collect::<Vec<_>>();
    let first = rank_of(comm).expect("it is there");
    assert_eq!(numbers(&first), (0..64).collect::<Vec<_>>());
    for (n, called) in (0..).zip(&all[..100]) {
        recorder.begin(called, &message(bytes(n)));
        recorder.end(called.number);
    }
    let later = rank_of(comm).expect("it is there");
    assert_eq!(numbers(&later), (36..100).collect::<Vec<_>>());
    assert!(later.operations.iter().all(|op| op.bytes == 100 + op.number));
    assert!(later.operations.iter().all(|op| op.ended_ns >= op.begun_ns));
    assert_eq!((later.issued, later.finished), (200, 100));
}

#[test]
fn calls_on_a_gpu_replace_the_oldest_and_kernels_say_what_they_await() {
    let comm = 0xabc_beef;
    let recorder = Recorder::new();
    recorder.identify(comm, (0, 2), Memory::Gpu(0), "");
    (0..70).for_each(|n| recorder.call_on_gpu(&message(n), 1, Tick::now()));
    let descriptor = Descriptor::from_words(0x5, 7);
    let inside = KernelCollective { number: 0, descriptor, peer_has_begun: Some(true) };
    recorder.kernel_waits((1, 4), Some(inside), 1);
    let waits = || rank_of(comm).and_then(|rank| rank.waiting).expect("it waits");
    assert_eq!((waits().collective, waits().step), (Some(inside), Some(4)));
    recorder.kernel_waits((1, -1), None, 3_000_000_000);
    let rank = rank_of(comm).expect("it is there");
    let numbers: Vec<_> = rank.operations.iter().map(|op| op.number).collect();
    assert_eq!(numbers, (6..70).collect::<Vec<_>>());
    let waiting = rank.waiting.expect("it waits");
    assert_eq!((waiting.number, waiting.peer, waiting.step), (None, Some(1), None));
    assert_eq!(waiting.collective, None);
    assert!(waiting.since_ns < rank.begun_ns, "it waited before anything was recorded");
}

#[test]
fn kernels_tell_when_collectives_began_and_ended_by_the_time_of_day() {
    let comm = 0xabc_d0d0;
    let recorder = Recorder::new();
    recorder.identify(comm, (0, 2), Memory::Gpu(0), "");
    let (programs, reduce) = reduction();
    let what = What::collective(&programs, &reduce);
    recorder.call_on_gpu(&message(4), 1, Tick::now());
    recorder.call_on_gpu(&what, 1, Tick::now());
    // The clock of the GPU is an hour behind, and the first collective of a graph ran before.
    let gpu_ns = || ticks::clock_ns(libc::CLOCK_MONOTONIC) - 3_600_000_000_000;
    let descriptor = Descriptor::from_words(0x5, 7);
    let (before, begun_ns) = (gpu_ns() - 1_000_000, gpu_ns());
    let run = |number, call, begun_ns, ended_ns| {
        Some(kernels::KernelRun { number, call, descriptor, begun_ns, ended_ns })
    };
    let runs =
        [run(Some(70), None, before, Some(before + 9000)), run(Some(71), Some(1), begun_ns, None)];
    let mut clock = kernels::GpuClock::default();
    recorder.kernels_run(&mut clock, &runs);
    let report = rank_of(comm).expect("it is there");
    let [graph, call] = &report.kernels[..] else { panic!("{report:?}") };
    assert_eq!(
        (graph.number, graph.call, graph.what == descriptor.to_string()),
        (Some(70), None, true)
    );
    assert_eq!(graph.ended_ns, Some(graph.begun_ns + 9000));
    assert_eq!((call.number, call.call, call.ended_ns), (Some(71), Some(1), None));
    assert_eq!(call.begun_ns, graph.begun_ns + begun_ns - before);
    // The call is told of with the times of its kernel.
    let op = &report.operations[1];
    assert_eq!((op.begun_ns, op.ended_ns), (Some(call.begun_ns), None));
    let late_ns = call.begun_ns.abs_diff(op.called_ns);
    assert!(late_ns < 2_000_000_000, "{late_ns} ns after its call");
    assert_eq!(report.operations[0].begun_ns, None);
    // Kernels of messages have no number.
    let ended = run(Some(71), Some(1), begun_ns, Some(begun_ns + 5000));
    let messages = run(None, Some(0), begun_ns + 6000, Some(begun_ns + 7000));
    recorder.kernels_run(&mut clock, &[messages, ended]);
    let report = rank_of(comm).expect("it is there");
    let lasts = |op: &OperationReport| op.ended_ns.zip(op.begun_ns).map(|(end, begin)| end - begin);
    assert_eq!(report.operations.iter().map(lasts).collect::<Vec<_>>(), [Some(1000), Some(5000)]);
    assert_eq!(report.kernels.iter().map(|run| run.number).collect::<Vec<_>>(), [Some(71), None]);
}

#[test]
fn collectives_are_counted_apart_and_described_as_their_descriptors_say() {
    let comm = 0xabc_c0de;
    let recorder = Recorder::new();
    recorder.identify(comm, (0, 2), Memory::Host(1), "");
    let (programs, call) = reduction();
    let what = What::collective(&programs, &call);
    recorder.call(&message(1), 1);
    let called = recorder.call(&what, 1);
    assert_eq!((called.number, called.of_kind), (1, 0));
    let rank = rank_of(comm).expect("it is there");
    let op = &rank.operations[1];
    assert_eq!((op.kind, op.of_kind, op.bytes), (Kind::Collective, 0, 20));
    assert_eq!(op.what, "reduce of 5 × float, max, root 1");
    assert_eq!(op.plan.as_deref(), Some("ring or two_shot_mapped"));
    assert_eq!(op.carrier.as_deref(), Some("edges or in place or copy engines"));
    let message = &rank.operations[0];
    assert_eq!((&message.plan, &message.carrier), (&None, &None));
    assert_eq!((rank.collectives, rank.device, rank.gpu), (1, 1, None));
    let mut counts = [0; COLLECTIVES];
    counts[Collective::Reduce as usize] = 1;
    assert_eq!(rank.collectives_by_kind, counts);
    assert_eq!(rank.bytes_by_kind, counts.map(|count| 20 * count));
    assert_eq!(rank.other_bytes, rank.operations[0].bytes);
    // The tag of a call goes before that of its thread.
    set_tag(77);
    let tagged = programs.under(CallOptions { tag: 5, ..CallOptions::default() });
    recorder.call(&What::collective(&tagged, &call), 1);
    recorder.call(&what, 1);
    set_tag(0);
    let tags: Vec<_> =
        rank_of(comm).expect("it is there").operations.iter().map(|o| o.tag).collect();
    assert_eq!(tags, [0, 0, 5, 77]);
}
