//! Verdicts on states of jobs.

mod circles;

use super::*;
use crate::op::descriptor::Descriptor;
use crate::ras::nccl::samples::{call, descriptor};
use crate::recorder::read::{Awaited, Failure, KernelReport, RankReport, Unanswered};
use crate::recorder::{KernelCollective, wire};

const SECOND: u64 = 1_000_000_000;
/// The time at which all processes are read.
const NOW: u64 = 1000 * SECOND;

/// A rank with so many calls of 5 elements, of which so many are done, and the peer for which the
/// next one has waited for 3 s.
fn rank(number: u32, issued: u64, finished: u64, peer: Option<u32>) -> RankReport {
    let since_ns = NOW - 3 * SECOND;
    RankReport {
        comm: 7,
        parent: None,
        name: "tp".to_owned(),
        rank: number,
        nranks: 2,
        gpu: None,
        device: 0,
        stage: Stage::Running,
        begun_ns: 0,
        issued,
        finished,
        collectives: issued,
        collectives_by_kind: [issued, 0, 0, 0, 0, 0, 0, 0],
        bytes_by_kind: [0; 8],
        other_bytes: 0,
        waited_ns: 0,
        finalized: false,
        destroyed: false,
        aborted: false,
        waiting: peer.map(|peer| Awaited {
            number: Some(finished),
            collective: None,
            peer: Some(peer),
            step: Some(2),
            since_ns,
            looked_ns: NOW,
        }),
        failure: Failure { text: String::new(), code: 0, source: Source::Here, since_ns: None },
        operations: (0..issued).map(|number| call(number, 5, since_ns)).collect(),
        kernels: Vec::new(),
        kernels_error_ns: 0,
    }
}

fn process(pid: u32, ranks: Vec<RankReport>) -> Process {
    Process {
        pid,
        host: "node1".to_owned(),
        address: "192.0.2.1".to_owned(),
        command: "train".to_owned(),
        state: ProcessState::Alive,
        read_ns: NOW,
        clock_set_ns: 0,
        left_out: false,
        unanswered: Vec::new(),
        service: String::new(),
        ranks,
    }
}

fn found(processes: &[Process]) -> Vec<Verdict> {
    verdicts(processes, Patience::default())
}

#[track_caller]
fn one(processes: &[Process], cause: Cause, ranks: &[u32], text: &str) {
    let found = found(processes);
    let [verdict] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((verdict.cause, &verdict.ranks[..], &verdict.text[..]), (cause, ranks, text));
}

#[test]
fn a_rank_that_waits_shortly_or_has_failed_holds_nobody_up() {
    let waits = process(1, vec![rank(0, 3, 2, Some(1))]);
    let patient = Patience { waiting_ns: 4 * SECOND, ..Patience::default() };
    assert_eq!(verdicts(&[waits, process(2, vec![rank(1, 2, 2, None)])], patient), []);
    assert_eq!(found(&[]), []);
}

#[test]
fn who_has_not_called_is_named_with_its_last_call() {
    let all = [process(1, vec![rank(0, 3, 2, Some(1))]), process(2, vec![rank(1, 2, 2, None)])];
    one(
        &all,
        Cause::NotCalled,
        &[1],
        "rank 1 has not called all_reduce of 5 × float, sum (collective 2, step 2), in which rank 0 \
         waits for 3.0 s: process 2 (train) on node1, whose last operation was all_reduce of 5 × \
         float, sum, called 3.0 s ago; look at what that process does (communicator \
         0000000000000007 \"tp\")",
    );
}

#[test]
fn of_very_many_ranks_those_that_have_not_called_are_named_without_a_comparison_of_all_waits() {
    // Such a comparison would take days, and a list of who waits for whom gigabytes.
    let (half, nranks) = (3000, 6000);
    let calls = |number: u32| match number < half {
        true => rank(number, 3, 2, Some(half)),
        false => rank(number, 2, 2, None),
    };
    let of = |number| process(number, vec![RankReport { nranks, ..calls(number) }]);
    let all: Vec<_> = (0..nranks).map(of).collect();
    let found = found(&all);
    let ranks: Vec<_> = found.iter().flat_map(|verdict| verdict.ranks.clone()).collect();
    assert_eq!(ranks, (half..nranks).collect::<Vec<_>>());
    let waits = "in which ranks 0 to 2999 wait for 3.0 s";
    assert!(found.iter().all(|verdict| verdict.text.contains(waits)), "{}", found[0].text);
}

#[test]
fn a_stopped_process_is_to_be_continued() {
    let mut stopped = process(2, vec![rank(1, 3, 2, Some(0))]);
    stopped.state = ProcessState::Stopped;
    one(
        &[process(1, vec![rank(0, 3, 2, Some(1))]), stopped],
        Cause::Stopped,
        &[1],
        "rank 1 is stopped by a signal or a debugger, and holds up all_reduce of 5 × float, sum \
         (collective 2, step 2), in which rank 0 waits for 3.0 s: process 2 (train) on node1; \
         continue it with kill -CONT 2 (communicator 0000000000000007 \"tp\")",
    );
}

#[test]
fn calls_that_differ_are_told_side_by_side() {
    let mut other = rank(1, 3, 2, Some(0));
    other.operations[2] = call(2, 6, NOW - 3 * SECOND);
    one(
        &[process(1, vec![rank(0, 3, 2, Some(1))]), process(2, vec![other])],
        Cause::Differs,
        &[0, 1],
        "rank 0 calls all_reduce of 5 × float, sum (process 1 (train) on node1), and rank 1 calls \
         all_reduce of 6 × float, sum (process 2 (train) on node1), as collective 2 of \
         communicator 0000000000000007 \"tp\"; rank 0 has waited for 3.0 s: all ranks have to make \
         the same calls in the same order",
    );
}

#[test]
fn of_a_chain_over_communicators_the_end_is_named_and_of_a_circle_all_of_it() {
    let second = |mut rank: RankReport| {
        (rank.comm, rank.name) = (8, String::new());
        rank
    };
    // Rank 0 waits in the first communicator for rank 1, whose process waits in the second one.
    let waits = process(1, vec![rank(0, 3, 2, Some(1)), second(rank(0, 1, 1, None))]);
    let chain = process(2, vec![rank(1, 2, 2, None), second(rank(1, 2, 1, Some(0)))]);
    let mut last = rank(0, 1, 1, None);
    (last.comm, last.name) = (8, String::new());
    let end = process(3, vec![last]);
    let mut first = waits.clone();
    first.ranks.pop();
    let ends = found(&[first, chain.clone(), end]);
    let [verdict] = &ends[..] else { panic!("{ends:#?}") };
    assert_eq!((verdict.cause, verdict.comm, &verdict.ranks[..]), (Cause::NotCalled, 8, &[0][..]));
    // The same processes wait for each other.
    let circle = found(&[waits.clone(), chain.clone()]);
    let [verdict] = &circle[..] else { panic!("{circle:#?}") };
    assert_eq!((verdict.cause, verdict.ranks.len()), (Cause::Deadlock, 2));
    assert!(verdict.text.contains("rank 0 of communicator 0000000000000007 \"tp\" (process 1"));
    assert!(verdict.text.contains("rank 1 of communicator 0000000000000008 (process 2"));
    assert_eq!(verdict.text.matches(", which has not called it").count(), 2, "{}", verdict.text);
    assert_eq!(verdict.text.matches(" has waited for 3.0 s in ").count(), 2, "{}", verdict.text);
    assert!(verdict.text.ends_with("a stream of its own"), "{}", verdict.text);
    // One has called, and its stream waits for something.
    let mut late = chain;
    late.ranks[0] = RankReport { issued: 3, collectives: 3, ..rank(1, 3, 2, None) };
    late.ranks[0].operations[2].begun_ns = None;
    let circle = found(&[waits, late]);
    let [verdict] = &circle[..] else { panic!("{circle:#?}") };
    assert!(verdict.text.contains("for rank 1, whose stream has not come to it"));
    assert!(verdict.text.ends_with("see what else these streams wait for"), "{}", verdict.text);
}

#[test]
fn who_does_not_call_split_is_named_with_its_last_call() {
    let begun_ns = NOW - 4 * SECOND;
    let making = |number: u32, nranks: u32| RankReport {
        comm: 9,
        parent: Some(7),
        nranks,
        stage: Stage::Creating,
        begun_ns,
        ..rank(number, 0, 0, None)
    };
    let all = |nranks: u32| {
        [
            process(1, vec![rank(0, 2, 2, None), making(0, nranks)]),
            process(2, vec![rank(1, 2, 2, None)]),
        ]
    };
    one(
        &all(2),
        Cause::NotJoined,
        &[1],
        "rank 1 of communicator 0000000000000007 \"tp\" has not called ncclCommSplit, \
         ncclCommShrink or ncclCommGrow, where rank 0 waits for 4.0 s: process 2 (train) on \
         node1, whose last operation was all_reduce of 5 × float, sum, called 3.0 s ago; look at what happens there",
    );
    // Where ranks are left out, those that have come are known by their processes.
    let shrunk = found(&all(1).map(|mut process| {
        process.ranks.iter_mut().filter(|rank| rank.comm == 9).for_each(|rank| rank.nranks = 2);
        process.ranks.iter_mut().filter(|rank| rank.comm == 7).for_each(|rank| rank.nranks = 3);
        process
    }));
    let [verdict] = &shrunk[..] else { panic!("{shrunk:#?}") };
    assert_eq!((verdict.comm, &verdict.ranks[..]), (7, &[1][..]));
    // It is stopped, it is not seen here, or it is in another call.
    let mut stopped = all(2);
    stopped[1].state = ProcessState::Stopped;
    let told = found(&stopped);
    let [verdict] = &told[..] else { panic!("{told:#?}") };
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::Stopped, &[1][..]));
    assert!(verdict.text.contains("kill -CONT 2"), "{}", verdict.text);
    let told = found(&all(2)[..1]);
    let [verdict] = &told[..] else { panic!("{told:#?}") };
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::Unseen, &[1][..]));
    assert!(verdict.text.contains("ask their hosts by oxccl ras"), "{}", verdict.text);
    let mut grows = all(2);
    grows[1].ranks.push(RankReport { comm: 10, ..making(1, 2) });
    let told = found(&grows);
    let [verdict] = &told[..] else { panic!("{told:#?}") };
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::Differs, &[1][..]));
    // All have come, and one is stopped.
    let mut all = all(2);
    all[1].ranks.push(making(1, 2));
    assert_eq!(found(&all), []);
    all[1].state = ProcessState::Stopped;
    let told = found(&all);
    let [verdict] = &told[..] else { panic!("{told:#?}") };
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::Stopped, &[1][..]));
}

#[test]
fn a_circle_is_told_beside_what_holds_others_up() {
    let of = |comm: u64, pid: u32, mut rank: RankReport| {
        (rank.comm, rank.name) = (comm, String::new());
        process(pid, vec![rank])
    };
    // Ranks 0 and 1 of communicator 7 wait in it, and in 8; nobody comes to communicator 9.
    let mut all = vec![
        process(1, vec![rank(0, 3, 2, Some(1)), of(8, 1, rank(0, 1, 1, None)).ranks.remove(0)]),
        process(2, vec![rank(1, 2, 2, None), of(8, 2, rank(1, 2, 1, Some(0))).ranks.remove(0)]),
        of(9, 3, rank(0, 3, 2, Some(1))),
        of(9, 4, rank(1, 2, 2, None)),
    ];
    let causes = |all: &[Process]| found(all).iter().map(|of| of.cause).collect::<Vec<_>>();
    assert_eq!(causes(&all), [Cause::NotCalled, Cause::Deadlock]);
    // The first wait of all leads out of the circle.
    all.rotate_left(2);
    assert_eq!(causes(&all), [Cause::NotCalled, Cause::Deadlock]);
}

#[test]
fn ranks_are_late_beside_those_of_other_hosts_if_their_clocks_can_be_compared() {
    const MS: u64 = 1_000_000;
    // Calls take so long from when the last rank comes.
    let late = |number: u32, (late_ms, host, ahead_ms): (u64, &str, u64), takes: Option<u64>| {
        let mut rank = rank(number, 40, 40, None);
        for (n, op) in (0..).zip(&mut rank.operations) {
            let time = NOW - 100 * SECOND + n * SECOND + ahead_ms * MS;
            op.called_ns = time + late_ms * MS;
            op.begun_ns = Some(op.called_ns);
            op.ended_ns = takes.map(|takes| time + (5 + takes) * MS);
        }
        Process { host: host.to_owned(), ..process(number + 1, vec![rank]) }
    };
    let slow = |host: &str, ahead_ms: u64, takes: Option<u64>| {
        let all = [late(0, (0, "a", 0), takes), late(1, (5, host, ahead_ms), takes)];
        let found = found(&all);
        found.into_iter().map(|verdict| (verdict.cause, verdict.ranks)).collect::<Vec<_>>()
    };
    let named = [(Cause::Slow, vec![1])];
    assert_eq!(slow("a", 0, None), named);
    assert_eq!(slow("b", 0, None), [], "the clocks of two hosts may differ by so much");
    assert_eq!(slow("b", 0, Some(1)), named);
    assert_eq!(slow("b", 3000, Some(1)), named);
    assert_eq!(slow("b", 0, Some(5)), [], "within the error");
    // The service of another host answers with the latest 16 operations.
    let answer = |of: Process| wire::decode(&wire::encode(&of)).expect("a process");
    let mut asked = late(1, (5, "b", 3000), Some(1));
    asked.ranks[0].operations.truncate(38);
    // Where a process has many communicators, fewer, of which there are enough.
    let mut busy = asked.clone();
    let others = (100..112).map(|comm| RankReport { comm, ..busy.ranks[0].clone() });
    let others: Vec<_> = others.collect();
    busy.ranks.extend(others);
    for (asked, kept) in [(asked, 16), (busy, 8)] {
        let asked = answer(asked);
        assert_eq!(asked.ranks[0].operations.len(), kept);
        let all = [late(0, (0, "a", 0), Some(1)), asked];
        assert_eq!(found(&all).iter().map(|of| &of.ranks[..]).collect::<Vec<_>>(), [[1]]);
    }
    // All of a host are late, so that none of them is the last one.
    let on = |host: &'static str, late_ms: u64, first: u32| {
        (first..first + 3).map(move |rank| late(rank, (late_ms, host, 3000), Some(1)))
    };
    let found_between = found(&on("a", 0, 0).chain(on("b", 5, 3)).collect::<Vec<_>>());
    let [verdict] = &found_between[..] else { panic!("{found_between:#?}") };
    assert_eq!(verdict.ranks, [3, 4, 5]);
    assert!(verdict.text.starts_with("ranks 3 to 5 of communicator"), "{}", verdict.text);
    // A slow one of a host does not hide a slower one of another host.
    let mut all: Vec<_> = on("a", 0, 0).chain(on("b", 0, 3)).collect();
    all[1] = late(1, (2, "a", 3000), Some(1));
    all[4] = late(4, (5, "b", 3000), Some(1));
    let named: Vec<_> = found(&all).into_iter().map(|of| of.ranks).collect();
    assert_eq!(named, [vec![1], vec![4]]);
    // Who is the only slow one on its host is named for that.
    let third = late(2, (0, "b", 3000), Some(1));
    let all = [late(0, (0, "a", 0), Some(1)), late(1, (5, "b", 3000), Some(1)), third];
    let found = found(&all);
    let [verdict] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::Slow, &[1][..]));
}

#[test]
fn a_rank_that_does_not_answer_is_named_with_its_process_and_host() {
    let waits = |places: &[(u64, u32)], cut_ns| {
        let mut process = process(1, vec![rank(0, 3, 2, Some(1))]);
        let host = "192.0.2.2".to_owned();
        let unanswered = |&(comm, rank): &(u64, u32)| Unanswered {
            comm,
            rank,
            host: host.clone(),
            pid: 8,
            cut_ns,
        };
        process.unanswered = places.iter().map(unanswered).collect();
        let [verdict] = &found(&[process])[..] else { panic!("one verdict") };
        let cause = if cut_ns.is_some() { Cause::SilentLink } else { Cause::Unseen };
        assert_eq!((verdict.cause, &verdict.ranks[..]), (cause, &[1][..]));
        verdict.text.clone()
    };
    let comm = rank(0, 3, 2, None).comm;
    let named = " for rank 1, which does not answer (process 8 on 192.0.2.2), for 3.0 s: look ";
    let text = waits(&[(comm, 0), (comm, 1)], None);
    assert!(text.contains(named), "{text}");
    let unnamed = " for rank 1, of which nothing is seen here, for ";
    assert!(waits(&[(comm + 1, 1), (comm, 0)], None).contains(unnamed));
    let text = waits(&[(comm, 1)], Some(SECOND));
    let cut = " for rank 1, to which the connection is cut (process 8 on 192.0.2.2; no answer has \
               come for 1.0 s, and data are sent again), for 3.0 s: look at adapters";
    assert!(text.contains(cut) && text.contains("(collective 2, step "), "{text}");
}

#[test]
fn of_ranks_that_wait_for_unseen_ones_the_first_operation_and_the_cut_connection_are_told() {
    // Rank 0 is in collective 3 already; rank 4 does not answer, the connection to rank 5 is cut.
    let all = [(0, 4, 3, 4), (1, 3, 2, 4), (2, 3, 2, 5), (3, 3, 2, 5)];
    let mut processes = all.map(|(number, issued, finished, peer)| {
        let mut rank = rank(number, issued, finished, Some(peer));
        rank.nranks = 6;
        process(number + 1, vec![rank])
    });
    let told = |processes: &[Process]| {
        let mut found = found(processes);
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    };
    let Verdict { cause, ranks, text, .. } = told(&processes);
    assert_eq!((cause, &ranks[..]), (Cause::Unseen, &[4, 5][..]));
    assert!(text.starts_with("ranks 1 to 3 wait in all_reduce of 5 × float, sum (collective 2,"));
    let host = "192.0.2.2".to_owned();
    let cut = |rank: u32, cut_ns| Unanswered { comm: 7, rank, host: host.clone(), pid: 8, cut_ns };
    processes[0].unanswered = vec![cut(4, None), cut(5, None), cut(5, Some(SECOND))];
    let Verdict { cause, ranks, text, .. } = told(&processes);
    assert_eq!((cause, &ranks[..]), (Cause::SilentLink, &[5][..]));
    assert!(text.starts_with("ranks 2, 3 wait in "), "{text}");
}

#[test]
fn who_waits_for_a_rank_that_cannot_be_seen_is_not_at_fault() {
    // Rank 0 waits for rank 1 of its host, and that one for rank 2 of another one.
    let mut ranks = [rank(0, 3, 2, Some(1)), rank(1, 3, 2, Some(2))];
    ranks.iter_mut().for_each(|rank| rank.nranks = 3);
    let processes: Vec<_> = (1..).zip(ranks).map(|(pid, rank)| process(pid, vec![rank])).collect();
    let [verdict] = &found(&processes)[..] else { panic!("one verdict") };
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::Unseen, &[2][..]));
    assert!(verdict.text.starts_with("rank 1 waits in "), "{}", verdict.text);
}

#[test]
fn a_kernel_waits_for_a_rank_that_made_fewer_calls_or_whose_stream_is_held_up() {
    let on_gpu = |number: u32, issued: u64, waits: bool| {
        let mut rank = rank(number, issued, 0, waits.then_some(1 - number));
        rank.gpu = Some(number);
        rank.waiting.iter_mut().for_each(|waiting| waiting.number = None);
        process(number + 1, vec![rank])
    };
    for (calls, cause) in [(2, Cause::NotCalled), (3, Cause::NotBegun)] {
        let found = found(&[on_gpu(0, 3, true), on_gpu(1, calls, false)]);
        let [verdict] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((verdict.cause, &verdict.ranks[..]), (cause, &[1][..]), "{verdict:#?}");
    }
    // In a collective, messages do not count.
    let descriptor = descriptor(5);
    for (collectives, messages, cause) in [(2, 7, Cause::NotCalled), (3, 0, Cause::NotBegun)] {
        let [mut waits, mut awaited] = [on_gpu(0, 3, true), on_gpu(1, collectives, false)];
        waits.ranks[0].issued += 1;
        awaited.ranks[0].issued += messages;
        let inside = KernelCollective { number: 2, descriptor, peer_has_begun: Some(false) };
        let wait = waits.ranks[0].waiting.iter_mut();
        wait.for_each(|waiting| waiting.collective = Some(inside));
        let found = found(&[waits, awaited]);
        let [verdict] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((verdict.cause, &verdict.ranks[..]), (cause, &[1][..]), "{verdict:#?}");
    }
}

fn run(number: u64) -> KernelReport {
    let what = "all_reduce".to_owned();
    KernelReport {
        number: Some(number),
        call: None,
        what,
        descriptor: Descriptor::from_words(0, 1),
        begun_ns: NOW - 3 * SECOND,
        ended_ns: None,
    }
}

#[test]
fn a_kernel_tells_its_collective_and_whether_the_peer_is_in_it() {
    // The rank's GPU has run as many collectives as it called, or more: then in graphs.
    let [as_many, none, inside, untold] = [
        (Cause::NotBegun, "rank 1 has made as many calls, but no kernel of it is in"),
        (Cause::NotBegun, "rank 1 has no kernel in"),
        (Cause::Inside, "rank 1 does not go on in"),
        (Cause::NotBegun, "rank 1 does not tell whether a kernel of it is in"),
    ];
    let cases = [
        (2, Some(false), None, as_many),
        (9, Some(false), None, none),
        (9, Some(true), None, inside),
        // Of a rank on another host its own kernels may tell.
        (2, None, None, untold),
        (2, None, Some(1), untold),
        (2, None, Some(2), inside),
    ];
    for (number, peer_has_begun, latest, (cause, fact)) in cases {
        let on_gpu = |own: u32, waits: bool| {
            let mut rank = rank(own, 3, 0, waits.then_some(1));
            rank.gpu = Some(own);
            rank.kernels = latest.into_iter().map(run).collect();
            let inside = KernelCollective { number, descriptor: descriptor(6), peer_has_begun };
            let wait = rank.waiting.iter_mut();
            wait.for_each(|wait| (wait.number, wait.collective) = (None, Some(inside)));
            process(own + 1, vec![rank])
        };
        let found = found(&[on_gpu(0, true), on_gpu(1, false)]);
        let [verdict] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((verdict.cause, &verdict.ranks[..]), (cause, &[1][..]), "{verdict:#?}");
        let text = format!("{fact} all_reduce of 6 × float, sum (collective {number} on its GPU");
        assert!(verdict.text.starts_with(&text), "{}", verdict.text);
    }
}

#[test]
fn a_kernel_outside_of_collectives_carries_the_last_message_that_was_called() {
    let on_gpu = |own: u32, issued: u64, kind: Kind| {
        let mut rank = rank(own, issued, 0, (own == 0).then_some(1));
        rank.gpu = Some(own);
        rank.waiting.iter_mut().for_each(|wait| wait.number = None);
        let message = &mut rank.operations[1];
        (message.kind, message.what) = (kind, "send/recv of 20 bytes of float".to_owned());
        process(own + 1, vec![rank])
    };
    for (kind, text) in [
        (Kind::Exchange, "send/recv of 20 bytes of float (the last such call outside of graphs)"),
        (Kind::Collective, "a message or one-sided operation of a graph"),
    ] {
        let found = found(&[on_gpu(0, 3, kind), on_gpu(1, 2, kind)]);
        let [verdict] = &found[..] else { panic!("{found:#?}") };
        let begin = format!("rank 1 has not called {text}, in which rank 0 waits");
        assert!(verdict.text.starts_with(&begin), "{}", verdict.text);
    }
}

#[test]
fn one_failure_is_told_once_by_the_rank_that_found_it_and_no_abort() {
    let failed = |number: u32, text: &str, source: Source| {
        let mut rank = rank(number, 3, 2, None);
        let (text, since_ns) = (text.to_owned(), Some(NOW - 2 * SECOND));
        (rank.stage, rank.failure) = (Stage::Failed, Failure { text, code: 6, source, since_ns });
        process(number + 1, vec![rank])
    };
    one(
        &[failed(0, "rank 0 lost rank 2", Source::Peer(1)), failed(1, "it ended", Source::Here)],
        Cause::Failed,
        &[1],
        "communicator 0000000000000007 \"tp\" failed 2.0 s ago at rank 1: it ended (process 2 (train) \
         on node1)",
    );
    let both = [failed(0, "it ended", Source::Here), failed(1, "it ended", Source::Here)];
    let both = found(&both);
    assert_eq!((both.len(), &both[0].ranks[..]), (1, &[0, 1][..]));
    // What failed first is told.
    let mut later = failed(0, "rank 0 lost rank 1", Source::Here);
    later.ranks[0].failure.since_ns = Some(NOW - SECOND);
    let told = found(&[later, failed(1, "its GPU has an error", Source::Here)]);
    let [Verdict { text, .. }] = &told[..] else { panic!("{told:#?}") };
    assert!(text.contains("failed 2.0 s ago at ranks 0, 1: its GPU has an error (process 2"));
    // Who found it is not seen here.
    let heard = found(&[failed(0, "rank 0 lost rank 2", Source::Peer(1))]);
    assert_eq!((heard.len(), heard[0].cause), (1, Cause::Failed));
    assert_eq!(found(&[failed(0, "it was ended", Source::Asked)]), []);
    // The user has shrunk the communicator since.
    let mut answered = failed(0, "rank 0 lost rank 1", Source::Here);
    answered.ranks[0].aborted = true;
    assert_eq!(found(&[answered]), []);
}

#[test]
fn a_wait_for_a_rank_of_another_host_is_told_as_such() {
    let waits = process(1, vec![rank(0, 3, 2, Some(1))]);
    one(
        &[waits],
        Cause::Unseen,
        &[1],
        "rank 0 waits in all_reduce of 5 × float, sum (collective 2, step 2) for rank 1, of which \
         nothing is seen here, for 3.0 s: ask its host by oxccl ras, or look as another user \
         (communicator 0000000000000007 \"tp\")",
    );
}

#[test]
fn who_waits_for_a_shorter_time_is_not_at_fault() {
    // Rank 1 has just come, and waits for rank 2, which comes never.
    let mut all = [rank(0, 3, 2, Some(1)), rank(1, 3, 2, Some(2)), rank(2, 2, 2, None)];
    all.iter_mut().for_each(|rank| rank.nranks = 3);
    all[1].waiting.iter_mut().for_each(|waiting| waiting.since_ns = NOW - 200_000_000);
    let processes: Vec<_> = (1..).zip(all).map(|(pid, rank)| process(pid, vec![rank])).collect();
    // The less patience, the shorter are the waits that count, but not the other way.
    for waiting_ns in [SECOND, 3 * SECOND] {
        let found = verdicts(&processes, Patience { waiting_ns, ..Patience::default() });
        let [verdict] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::NotCalled, &[2][..]));
    }
}

#[test]
fn a_message_whose_other_half_is_called_is_not_called_missing() {
    let message = |number: u32, peer: Option<u32>, begun: bool| {
        let mut rank = rank(number, 3, 2, peer);
        let op = rank.operations.last_mut().expect("an operation");
        op.kind = Kind::Exchange;
        op.begun_ns = begun.then_some(NOW - 3 * SECOND);
        process(number + 1, vec![rank])
    };
    for (begun, cause) in [(false, Cause::NotBegun), (true, Cause::Inside)] {
        let found = found(&[message(0, Some(1), true), message(1, None, begun)]);
        let [verdict] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((verdict.cause, &verdict.ranks[..]), (cause, &[1][..]), "{verdict:#?}");
    }
}

#[test]
fn a_rank_that_comes_late_and_a_clock_that_was_set_are_told() {
    let called = |number: u32, late_ns: u64| {
        let mut rank = rank(number, 20, 20, None);
        for op in &mut rank.operations {
            op.called_ns = NOW - SECOND + op.number * 10_000_000 + late_ns;
        }
        process(number + 1, vec![rank])
    };
    let slow = found(&[called(0, 0), called(1, 2_000_000)]);
    let [verdict] = &slow[..] else { panic!("{slow:#?}") };
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::Slow, &[1][..]));
    let what = &called(0, 0).ranks[0].operations[0].what;
    let text = format!(
        "rank 1 of communicator 0000000000000007 \"tp\" comes later than most to the last 20 \
         collectives (most often {what}), called within 190.0 ms, by 2.0 ms in the middle: \
         process 2 (train)"
    );
    assert!(verdict.text.starts_with(&text), "{}", verdict.text);
    // One pause makes no slow rank, and GPUs are named.
    let pause = |number: u32, late_ns: u64| {
        let mut process = called(number, 0);
        process.ranks[0].operations[10].called_ns += late_ns;
        process
    };
    assert_eq!(found(&[pause(0, 0), pause(1, 200_000_000)]), []);
    let mut on_gpu = called(1, 2_000_000);
    on_gpu.ranks[0].gpu = Some(3);
    let text = &found(&[called(0, 0), on_gpu])[0].text;
    assert!(text.contains("on node1, GPU 3; look at"), "{text}");
    assert!(!verdict.cause.holds_up());
    let mut set = called(0, 0);
    set.clock_set_ns = -3600 * SECOND as i64;
    let clock = found(&[set]);
    assert_eq!(clock.len(), 1);
    assert!(clock[0].text.contains("the clock of node1 was set back by 60 min since process 1"));
}

#[test]
fn ranks_are_listed_in_words() {
    assert_eq!(list(&[3]), "rank 3");
    assert_eq!(list(&[1, 2, 5, 6, 7, 9]), "ranks 1, 2, 5 to 7, 9");
}
