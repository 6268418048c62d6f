//! Ranks that come late to most collectives.

use super::{Cause, Verdict, span};
use crate::ras::clocks::{Clock, clocks};
use crate::ras::job::{Comm, Member};
use crate::recorder::Kind;
use crate::recorder::read::Process;
use std::collections::{BTreeMap, HashMap};

/// The least number of collectives from which it is concluded that a rank is slow, the least share
/// of them to which it is the last to come, and the least time by which it is late on average:
/// between hosts, beside the time by which their clocks may differ.
const SLOW_CALLS: usize = 16;
const SLOW_SHARE: f64 = 0.75;
const SLOW_LATE_NS: u64 = 1_000_000;

/// A rank, and by how much the clock of its host is ahead.
type Timed<'a> = (Member<'a>, i64);

/// Returns the ranks that come late to most of the latest collectives beside others of their host,
/// or beside those of other hosts where no such rank is found.
pub(super) fn slow(processes: &[Process], comms: &[Comm<'_>]) -> Vec<Verdict> {
    let all = processes.iter().map(std::ptr::from_ref);
    let clocks: HashMap<*const Process, Clock> = all.zip(clocks(processes)).collect();
    comms.iter().flat_map(|comm| slow_in(comm, &clocks)).collect()
}

fn slow_in(comm: &Comm<'_>, clocks: &HashMap<*const Process, Clock>) -> Vec<Verdict> {
    let mut hosts: BTreeMap<(&str, &str), Vec<Timed<'_>>> = BTreeMap::new();
    let mut beside: BTreeMap<usize, (u64, Vec<Timed<'_>>)> = BTreeMap::new();
    for member in &comm.members {
        let host = (&member.process.host[..], &member.process.address[..]);
        hosts.entry(host).or_default().push((*member, 0));
        if let Some(clock) = clocks.get(&std::ptr::from_ref(member.process)) {
            let (error_ns, members) = beside.entry(clock.beside).or_default();
            *error_ns = clock.error_ns.max(*error_ns);
            members.push((*member, clock.ahead_ns));
        }
    }
    let on_hosts = hosts.values().filter_map(|members| slow_among(comm, members, SLOW_LATE_NS));
    let found: Vec<_> = on_hosts.collect();
    if !found.is_empty() || hosts.len() == 1 {
        return found;
    }
    let between = beside.values().filter_map(|(error_ns, members)| {
        slow_among(comm, members, SLOW_LATE_NS.saturating_add(*error_ns))
    });
    between.collect()
}

/// Returns the rank that comes late by so much to most of the latest collectives of some ranks.
fn slow_among(comm: &Comm<'_>, members: &[Timed<'_>], least_ns: u64) -> Option<Verdict> {
    let (first, rest) = (members.first()?.0, members.get(1..)?);
    let mut late: Vec<_> = members.iter().map(|(member, _)| (member, 0, 0)).collect();
    let mut calls = 0;
    let collectives = first.rank.operations.iter().filter(|op| op.kind == Kind::Collective);
    let on_gpu = first.rank.gpu.is_some();
    for op in collectives.filter(|op| on_gpu || op.number < first.rank.finished) {
        let called = |(member, ahead_ns): &Timed<'_>| {
            Some(member.collective(op.of_kind)?.called_ns.saturating_add_signed(-ahead_ns))
        };
        let Some(times) = members.iter().map(called).collect::<Option<Vec<_>>>() else { continue };
        let (Some(begin), Some(end)) = (times.iter().min(), times.iter().max()) else { continue };
        calls += 1;
        for ((_, last, sum), time) in late.iter_mut().zip(&times) {
            *last += usize::from(time == end && end > begin);
            *sum = u64::saturating_add(*sum, time - begin);
        }
    }
    let (member, last, sum) = late.into_iter().max_by_key(|(_, _, sum)| *sum)?;
    let (share, mean_ns) = (last as f64 / calls.max(1) as f64, sum / calls.max(1) as u64);
    if calls < SLOW_CALLS || share < SLOW_SHARE || mean_ns < least_ns || rest.is_empty() {
        return None;
    }
    let rank = member.rank.rank;
    let text = format!(
        "rank {rank} of {} comes last to {:.0} % of the last {calls} collectives, on average {} after \
         the first one: {}; look at what it does between them",
        comm.title(),
        share * 100.0,
        span(mean_ns),
        member.place()
    );
    Some(Verdict { cause: Cause::Slow, comm: comm.number, ranks: vec![rank], text })
}
