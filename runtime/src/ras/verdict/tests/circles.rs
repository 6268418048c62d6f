//! Ranks that wait for each other in circles.

use super::*;

#[test]
fn ranks_that_wait_for_each_other_in_one_collective_have_a_silent_connection() {
    let host = |number: u32, peer| {
        let host = format!("node{number}");
        Process { host, ..process(number + 1, vec![rank(number, 3, 2, Some(peer))]) }
    };
    let [verdict] = &found(&[host(0, 1), host(1, 0)])[..] else { panic!("one verdict") };
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::SilentLink, &[0, 1][..]));
    for part in ["in what all have called: rank 0 of ", "on node1", "does not arrive"] {
        assert!(verdict.text.contains(part), "{} without {part}", verdict.text);
    }
}

#[test]
fn a_silent_connection_is_told_though_some_ranks_are_in_the_next_collective() {
    // Rank 1 has done collective 2, whose data have not come to rank 3.
    let waits = [(0, 4, 3, 2), (1, 4, 3, 2), (2, 3, 2, 3), (3, 3, 2, 1)];
    let processes = waits.map(|(number, issued, finished, peer)| {
        let mut rank = rank(number, issued, finished, Some(peer));
        rank.nranks = 4;
        process(number + 1, vec![rank])
    });
    let found = found(&processes);
    let [verdict] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::SilentLink, &[1, 3][..]));
    for part in ["for rank 2, which has not called it", "what they send does not arrive"] {
        assert!(verdict.text.contains(part), "{} without {part}", verdict.text);
    }
}

#[test]
fn kernels_of_two_hosts_that_wait_for_each_other_have_a_silent_connection() {
    let host = |own: u32| {
        let mut rank = rank(own, 3, 0, Some(1 - own));
        rank.gpu = Some(own);
        // A kernel does not know whether one of another host has begun.
        let inside =
            KernelCollective { number: 2, descriptor: descriptor(6), peer_has_begun: None };
        let wait = rank.waiting.iter_mut();
        wait.for_each(|wait| (wait.number, wait.collective) = (None, Some(inside)));
        Process { host: format!("node{own}"), ..process(own + 1, vec![rank]) }
    };
    let found = found(&[host(0), host(1)]);
    let [verdict] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((verdict.cause, &verdict.ranks[..]), (Cause::SilentLink, &[0, 1][..]));
}

#[test]
fn messages_that_both_sides_have_called_have_a_silent_connection() {
    // The direction of the message of each rank, its peer, and the number of those in its group.
    let all = |of: [(bool, u32, u32); 2]| {
        let ranks = (0..2).zip(of).map(|(number, (sends, peer, transfers))| {
            let mut rank = rank(number, 3, 2, Some(1 - number));
            let op = rank.operations.last_mut().expect("an operation");
            op.kind = Kind::Exchange;
            (op.sends, op.peer, op.transfers) = (Some(sends), Some(peer), transfers);
            process(number + 1, vec![rank])
        });
        let mut found = found(&ranks.collect::<Vec<_>>());
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    };
    for (of, cause, advice) in [
        ([(true, 1, 1), (false, 0, 1)], Cause::SilentLink, "what they send does not arrive"),
        ([(false, 1, 1), (true, 0, 1)], Cause::SilentLink, "what they send does not arrive"),
        ([(true, 1, 1), (true, 0, 1)], Cause::Deadlock, "into one call or group"),
        ([(false, 1, 1), (false, 0, 1)], Cause::Deadlock, "into one call or group"),
        ([(true, 1, 2), (true, 0, 2)], Cause::Deadlock, "its counterpart in the other rank's"),
        ([(true, 1, 1), (true, 0, 2)], Cause::Deadlock, "its counterpart in the other rank's"),
    ] {
        let verdict = all(of);
        assert_eq!((verdict.cause, &verdict.ranks[..]), (cause, &[0, 1][..]), "{of:?}");
        assert!(verdict.text.contains(advice), "{of:?}: {}", verdict.text);
    }
}

/// A rank of communicator 8, in which the ranks have other numbers.
fn second(number: u32, issued: u64, finished: u64, peer: Option<u32>) -> RankReport {
    RankReport { comm: 8, name: String::new(), ..rank(number, issued, finished, peer) }
}

#[test]
fn a_circle_has_the_ranks_of_its_communicator_and_is_found_between_threads() {
    // Ranks 0 and 1 of communicator 7 are ranks 3 and 2 of communicator 8.
    let wait = [rank(0, 3, 2, Some(1)), second(3, 1, 1, None)];
    let waits = [rank(1, 2, 2, None), second(2, 2, 1, Some(3))];
    let apart = [process(1, wait.to_vec()), process(2, waits.to_vec())];
    // Threads of a process have a device each.
    let on = |device: u32, ranks: [RankReport; 2]| ranks.map(|of| RankReport { device, ..of });
    let threads = process(1, [on(0, wait.clone()), on(1, waits.clone())].concat());
    for all in [&apart[..], &[threads][..]] {
        let found = found(all);
        let circle = found.iter().find(|of| of.cause == Cause::Deadlock).expect("a circle");
        let ranks = if circle.comm == 7 { [0, 1] } else { [2, 3] };
        assert_eq!(&circle.ranks[..], &ranks[..], "{circle:#?}");
    }
    // Of threads on one device it is not known which one waits elsewhere.
    let one = process(1, [on(0, wait), on(0, waits)].concat());
    assert!(found(&[one]).iter().all(|of| of.cause == Cause::NotCalled));
}

#[test]
fn a_circle_is_found_through_any_of_the_ranks_that_are_behind() {
    // Ranks 1 and 2 have not called what rank 0 waits in: rank 1 waits in communicator 9 for one
    // that does not call, rank 2 in communicator 8 for rank 0.
    let of = |mut rank: RankReport, comm: u64, nranks: u32| {
        (rank.comm, rank.nranks) = (comm, nranks);
        rank
    };
    let all = [
        process(1, vec![of(rank(0, 3, 2, Some(1)), 7, 3), second(0, 1, 1, None)]),
        process(2, vec![of(rank(1, 2, 2, None), 7, 3), of(rank(0, 3, 2, Some(1)), 9, 2)]),
        process(3, vec![of(rank(2, 2, 2, None), 7, 3), second(1, 2, 1, Some(0))]),
        process(4, vec![of(rank(1, 2, 2, None), 9, 2)]),
    ];
    let found = found(&all);
    let causes: Vec<_> = found.iter().map(|of| (of.cause, of.comm)).collect();
    assert!(causes.contains(&(Cause::NotCalled, 9)), "{found:#?}");
    assert!(causes.iter().any(|(cause, _)| *cause == Cause::Deadlock), "{found:#?}");
}

#[test]
fn a_rank_that_waits_for_itself_is_no_circle() {
    assert!(
        found(&[process(1, vec![rank(0, 3, 2, Some(0))])])
            .iter()
            .all(|of| { of.cause == Cause::Inside && of.ranks == [0] })
    );
}
