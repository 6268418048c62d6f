//! Signs of life, in virtual time: a rank that is late lives, one that is silent is dead.

use oxccl_runtime::clock;
use oxccl_runtime::link::control::Control;
use oxccl_runtime::link::direct::{Segment, SegmentLayout};
use oxccl_runtime::os::memory::{Mapping, sealed_memfd};
use oxccl_runtime::rank::Rank;
use oxccl_runtime::rank::monitor::{self, Sign, Watch};
use rustix::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

const SLOT_BYTES: usize = 4096;

/// Two ranks, and what each of their monitors watches. Their applications do nothing at all.
fn ranks(one_host: bool) -> [(Arc<Rank>, Vec<Watch>); 2] {
    clock::advance(Duration::ZERO);
    let layout = SegmentLayout { nlocal: 2, edge_slot_bytes: SLOT_BYTES };
    let segment = one_host.then(|| {
        let fd = sealed_memfd("oxccl-heartbeats", layout.bytes()).expect("memory");
        let mapping = Mapping::of(fd.as_fd(), layout.bytes()).expect("address space");
        let segment = Arc::new(Segment::new(mapping, layout));
        (0..2).for_each(|local| segment.initialise(local, 0));
        segment
    });
    let (a, b) = UnixStream::pair().expect("descriptors");
    let controls = [a, b].map(|end| Arc::new(Control::new(end.into())));
    [0u32, 1].map(|rank| {
        let (own, peer) = (rank as usize, 1 - rank as usize);
        let local = (0..2).map(|r| (one_host || r == own).then_some(if one_host { r } else { 0 }));
        let rank = Rank::new(rank, local.collect(), segment.clone(), vec![1, 1]);
        let mut all = vec![None, None];
        if !one_host {
            all[peer] = Some(controls[own].clone());
        }
        rank.set_controls(all);
        let rank = Arc::new(rank);
        let sign = match one_host {
            true => Sign::Pulse,
            false => Sign::Control(controls[own].clone()),
        };
        let watches = vec![Watch::new(&rank, peer as u32, sign)];
        (rank, watches)
    })
}

/// Time passes, and the monitors of these ranks look every quarter of a second.
fn pass(ranks: &mut [(Arc<Rank>, Vec<Watch>); 2], looking: &[usize], time: Duration) {
    let quarter = Duration::from_millis(250);
    for _ in 0..time.as_millis() / quarter.as_millis() {
        clock::advance(quarter);
        for &rank in looking {
            monitor::look(&mut ranks[rank].1);
        }
    }
}

#[test]
fn a_late_rank_lives_a_silent_one_is_dead_and_who_was_stopped_itself_blames_nobody() {
    for one_host in [false, true] {
        let mut ranks = ranks(one_host);
        // Late: longer than any limit that a full buffer had.
        pass(&mut ranks, &[0, 1], Duration::from_secs(120));
        // Rank 0 is stopped, and goes on: it has not listened meanwhile.
        pass(&mut ranks, &[1], Duration::from_secs(4));
        clock::advance(Duration::from_secs(3600));
        pass(&mut ranks, &[0, 1], Duration::from_secs(10));
        for (rank, _) in &ranks {
            assert!(rank.failure().is_none(), "{:?}", rank.failure());
        }
        // Rank 1 is stopped, or cut off.
        pass(&mut ranks, &[0], Duration::from_secs(4));
        assert!(ranks[0].0.failure().is_none());
        pass(&mut ranks, &[0], Duration::from_secs(3));
        let error = ranks[0].0.failure().expect("it is silent").to_string();
        assert!(error.contains("lost rank 1"), "{error}");
        assert!(error.contains("has heard nothing of it for 5 s"), "{error}");
    }
}

#[test]
fn a_rank_that_is_stopped_before_its_first_sign_of_life_is_dead_too() {
    for one_host in [false, true] {
        let mut ranks = ranks(one_host);
        pass(&mut ranks, &[0], Duration::from_secs(4));
        assert!(ranks[0].0.failure().is_none());
        pass(&mut ranks, &[0], Duration::from_secs(3));
        let error = ranks[0].0.failure().expect("it is silent").to_string();
        assert!(error.contains("has heard nothing of it for 5 s"), "{error}");
    }
}
