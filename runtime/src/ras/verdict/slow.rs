//! Ranks that come late to most collectives.

use super::{Cause, Verdict, list, span, verb};
use crate::ras::clocks::{Clock, Host, clocks, hosts};
use crate::ras::job::{Comm, Member};
use crate::recorder::Kind;
use crate::recorder::read::Process;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The least number of collectives from which it is concluded that a rank is slow, between hosts
/// fewer: of what is asked there, the latest 16 operations are told. The least share of them to
/// which it comes late, and by how much: between hosts, beside the time by which their clocks may
/// differ.
const SLOW_CALLS: usize = 16;
const SLOW_CALLS_BETWEEN: usize = 8;
const SLOW_SHARE: f64 = 0.75;
const SLOW_LATE_NS: u64 = 1_000_000;

/// A rank, and by how much the clock of its host is ahead.
type Timed<'a> = (Member<'a>, i64);

/// What makes a rank a slow one among some: the least number of collectives, and the least time by
/// which it is late.
type Limits = (usize, u64);

/// Where a process is, and how its clock goes.
type Place<'a> = (Host<'a>, Clock);

/// Returns the ranks that come late to most of the latest collectives, beside others of their host
/// and beside those of other hosts. Late is who comes later than most.
pub(super) fn slow(processes: &[Process], comms: &[Comm<'_>]) -> Vec<Verdict> {
    let places = hosts(processes).into_iter().zip(clocks(processes));
    let all = processes.iter().map(std::ptr::from_ref);
    let places: HashMap<*const Process, Place<'_>> = all.zip(places).collect();
    comms.iter().flat_map(|comm| slow_in(comm, &places)).collect()
}

fn slow_in(comm: &Comm<'_>, places: &HashMap<*const Process, Place<'_>>) -> Vec<Verdict> {
    let mut on_hosts: BTreeMap<Host<'_>, Vec<Timed<'_>>> = BTreeMap::new();
    let mut between: BTreeMap<usize, (BTreeMap<Host<'_>, u64>, Vec<Timed<'_>>)> = BTreeMap::new();
    for member in &comm.members {
        let Some((host, clock)) = places.get(&std::ptr::from_ref(member.process)) else { continue };
        on_hosts.entry(*host).or_default().push((*member, 0));
        let (errors, members) = between.entry(clock.beside).or_default();
        errors.insert(*host, clock.error_ns);
        members.push((*member, clock.ahead_ns));
    }
    let among = |members: &[Timed<'_>], limits| slow_among(comm, members, limits);
    let mut found: Vec<_> = on_hosts
        .values()
        .filter_map(|members| among(members, (SLOW_CALLS, SLOW_LATE_NS)))
        .collect();
    let named: HashSet<u32> = found.iter().flat_map(|of| of.ranks.iter().copied()).collect();
    for (errors, members) in between.into_values().filter(|(errors, _)| errors.len() > 1) {
        // The clocks of two of the hosts differ by both errors.
        let mut errors: Vec<u64> = errors.into_values().collect();
        errors.sort_unstable();
        let error_ns = errors.iter().rev().take(2).fold(0, |sum, of| u64::saturating_add(sum, *of));
        let limits = (SLOW_CALLS_BETWEEN, SLOW_LATE_NS.saturating_add(error_ns));
        let is_new = |of: &Verdict| of.ranks.iter().any(|rank| !named.contains(rank));
        found.extend(among(&members, limits).filter(is_new));
    }
    found
}

/// Returns that ranks come late to most of the latest collectives of some.
fn slow_among(comm: &Comm<'_>, members: &[Timed<'_>], limits: Limits) -> Option<Verdict> {
    let (least_calls, least_ns) = limits;
    let first = members.first()?.0;
    let mut late: Vec<Vec<u64>> = vec![Vec::new(); members.len()];
    let mut times = (u64::MAX, 0);
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    let collectives = first.rank.operations.iter().filter(|op| op.kind == Kind::Collective);
    let on_gpu = first.rank.gpu.is_some();
    for op in collectives.filter(|op| on_gpu || op.number < first.rank.finished) {
        let called = |(member, ahead_ns): &Timed<'_>| {
            let called_ns = member.collective(op.of_kind)?.called_ns;
            Some(called_ns.saturating_add_signed(ahead_ns.saturating_neg()))
        };
        let Some(calls) = members.iter().map(called).collect::<Option<Vec<_>>>() else { continue };
        let mut sorted = calls.clone();
        sorted.sort_unstable();
        // Of two ranks the second one is late.
        let most = sorted[(sorted.len() - 1) / 2];
        late.iter_mut().zip(&calls).for_each(|(of, call)| of.push(call.saturating_sub(most)));
        times = (times.0.min(op.called_ns), times.1.max(op.called_ns));
        *kinds.entry(&op.what).or_default() += 1;
    }
    let calls = late[0].len();
    let is_slow = |late: &&Vec<u64>| {
        let times = late.iter().filter(|late_ns| **late_ns >= least_ns).count();
        times as f64 >= SLOW_SHARE * calls as f64
    };
    let slow: Vec<_> = members.iter().zip(&late).filter(|(_, late)| is_slow(late)).collect();
    if calls < least_calls || slow.is_empty() {
        return None;
    }
    let (ranks, places): (Vec<u32>, Vec<String>) =
        slow.iter().map(|((member, _), _)| (member.rank.rank, member.place())).unzip();
    let mut all: Vec<u64> = slow.iter().flat_map(|(_, late)| late.iter().copied()).collect();
    all.sort_unstable();
    let most = kinds.iter().max_by_key(|(_, count)| **count);
    let most = most.map_or("", |(what, _)| *what);
    let text = format!(
        "{} of {} {} later than most to the last {calls} collectives (most often {most}), called \
         within {}, by {} in the middle: {}; look at what happens there between them",
        list(&ranks),
        comm.title(),
        verb(&ranks, "comes", "come"),
        span(times.1.saturating_sub(times.0)),
        span(all[all.len() / 2]),
        places.join("; ")
    );
    Some(Verdict { cause: Cause::Slow, comm: comm.number, ranks, text })
}
