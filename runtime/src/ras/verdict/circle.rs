//! Ranks that wait for each other in circles.

use super::{
    Caller, Cause, Patience, Progress, Verdict, Wait, Waits, collective_of, operation_text,
    progress_with, span,
};
use crate::ras::job::{Comm, Member};
use crate::recorder::Kind;
use crate::recorder::read::ProcessState;
use std::collections::{HashMap, HashSet};

/// A wait of a rank of a communicator for another one, and the caller of that one's operations.
#[derive(Clone, Copy)]
struct Edge<'a, 'c> {
    comm: &'c Comm<'a>,
    from: Member<'a>,
    to: Member<'a>,
    caller: Caller,
    lasts_ns: u64,
}

/// Returns the circles of waits, one of which has lasted for long enough.
pub(super) fn circles(all: &[&Waits<'_, '_>], patience: Patience) -> Vec<Verdict> {
    let mut edges: HashMap<Caller, Vec<Edge<'_, '_>>> = HashMap::new();
    let mut starts = Vec::new();
    for waits in all {
        // Who is stopped is at fault, whatever it waited for.
        let runs = |of: &&Wait<'_>| of.from.process.state != ProcessState::Stopped;
        for wait in waits.all.iter().filter(runs) {
            let Some(to) = waits.first_of(wait) else { continue };
            let (comm, from, caller) = (waits.comm, wait.from, waits.caller(&to));
            let lasts_ns = wait.lasts_ns();
            let edge = Edge { comm, from, to, caller, lasts_ns };
            edges.entry(wait.caller).or_default().push(edge);
            if lasts_ns >= patience.waiting_ns {
                starts.push(wait.caller);
            }
        }
    }
    let mut seen = HashSet::new();
    let found = starts.into_iter().filter_map(|start| find(start, &edges, &mut seen));
    found.filter_map(|circle| told(&circle)).collect()
}

/// Returns a circle that can be reached from a caller; `seen` are those from which none can, and
/// those that are in one already.
fn find<'a, 'c>(
    start: Caller,
    edges: &HashMap<Caller, Vec<Edge<'a, 'c>>>,
    seen: &mut HashSet<Caller>,
) -> Option<Vec<Edge<'a, 'c>>> {
    if !seen.insert(start) {
        return None;
    }
    // The callers on the way, each with the number of its edges that were followed, and the edges
    // between them.
    let (mut callers, mut path) = (vec![(start, 0)], Vec::new());
    let mut places = HashMap::from([(start, 0)]);
    while let Some((caller, next)) = callers.last_mut() {
        let Some(edge) = edges.get(caller).and_then(|edges| edges.get(*next)) else {
            places.remove(caller);
            callers.pop();
            path.pop();
            continue;
        };
        *next += 1;
        if let Some(begin) = places.get(&edge.caller) {
            path.push(*edge);
            return Some(path.split_off(*begin));
        }
        if seen.insert(edge.caller) {
            places.insert(edge.caller, callers.len());
            callers.push((edge.caller, 0));
            path.push(*edge);
        }
    }
    None
}

/// Returns the verdict on a circle.
fn told(circle: &[Edge<'_, '_>]) -> Option<Verdict> {
    let progress = |edge: &Edge<'_, '_>| progress_with(&edge.from, &edge.to);
    let texts = circle.iter().map(|edge| {
        let Edge { comm, from, to, lasts_ns, .. } = edge;
        let (place, operation) = (from.place(), operation_text(from));
        let (own, title, other) = (from.rank.rank, comm.title(), to.rank.rank);
        let why = match progress(edge) {
            Some(Progress::NotCalled) | None => ", which has not called it",
            Some(Progress::NotBegun) => ", whose stream has not come to it",
            Some(Progress::Inside | Progress::Done) => "",
        };
        let waited = span(*lasts_ns);
        format!(
            "rank {own} of {title} ({place}) has waited for {waited} in {operation} for rank \
             {other}{why}"
        )
    });
    let comm = circle.first()?.comm.number;
    let is_alone = circle.iter().all(|edge| edge.comm.number == comm);
    let are_messages = circle
        .iter()
        .all(|edge| edge.from.waiting_operation().is_some_and(|op| op.kind == Kind::Exchange));
    let are_collectives = circle.iter().all(|edge| {
        let in_kernel = edge.from.rank.waiting.and_then(|waiting| waiting.collective);
        in_kernel.is_some() || collective_of(&edge.from).is_some()
    });
    // All ranks are in the collectives of a communicator in one order, and programs of collectives
    // have no circles: data that were sent have not come.
    let is_silent = is_alone && are_collectives;
    let (cause, how, advice) = match (is_alone && are_messages, is_silent) {
        (true, _) => (
            Cause::Deadlock,
            "in a circle",
            "put what each rank sends and receives into one group (ncclGroupStart, ncclGroupEnd)",
        ),
        (false, true) => (
            Cause::SilentLink,
            "in collectives of one communicator",
            "what they send does not arrive, look at the connections between them (oxccl doctor)",
        ),
        (false, false) => (
            Cause::Deadlock,
            "in a circle",
            "call in the same order on all ranks, or give each communicator a stream of its own",
        ),
    };
    // A stream that has not come to a call may wait for something else.
    let is_late = |edge| progress(edge) == Some(Progress::NotBegun);
    let more = match !is_silent && circle.iter().any(is_late) {
        true => ", and see what else these streams wait for",
        false => "",
    };
    let text = format!(
        "ranks wait for each other {how}: {}; {advice}{more}",
        texts.collect::<Vec<_>>().join("; ")
    );
    let ranks = if is_silent { silent(circle) } else { circle.iter().map(waiting).collect() };
    Some(Verdict { cause, comm, ranks, text })
}

fn waiting(edge: &Edge<'_, '_>) -> u32 {
    edge.from.rank.rank
}

/// Returns the ranks between which data get lost, of a circle in collectives of one communicator:
/// who waits for one that has done its part, else for one of another host, else all of them.
fn silent(circle: &[Edge<'_, '_>]) -> Vec<u32> {
    let is_done =
        |edge: &&Edge<'_, '_>| progress_with(&edge.from, &edge.to) == Some(Progress::Done);
    let is_apart = |edge: &&Edge<'_, '_>| edge.from.process.host != edge.to.process.host;
    let mut lost: Vec<_> = circle.iter().filter(is_done).collect();
    if lost.is_empty() {
        lost = circle.iter().filter(is_apart).collect();
    }
    if lost.is_empty() {
        return circle.iter().map(waiting).collect();
    }
    let mut ranks: Vec<_> =
        lost.iter().flat_map(|edge| [edge.from.rank.rank, edge.to.rank.rank]).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}
