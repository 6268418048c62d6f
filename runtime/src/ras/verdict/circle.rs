//! Ranks that wait for each other in circles.

use super::{
    Caller, Cause, Patience, Progress, Verdict, Wait, Waits, collective_of, in_kernel,
    operation_text, progress_with, span,
};
use crate::error::ONE_GROUP;
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
            let (comm, from, lasts_ns) = (waits.comm, wait.from, wait.lasts_ns());
            let edge = |to| Edge { comm, from, to, caller: waits.caller(&to), lasts_ns };
            edges.entry(wait.caller).or_default().extend(waits.awaited(wait).map(edge));
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
    let kind = Circle::of(circle);
    let (cause, how, advice) = match kind {
        Circle::Lost => (
            Cause::SilentLink,
            "in what all have called",
            "what they send does not arrive, look at the connections between them (oxccl doctor)",
        ),
        Circle::Messages => (Cause::Deadlock, "in a circle", ONE_GROUP),
        Circle::Groups => (
            Cause::Deadlock,
            "in a circle",
            "see whether each message has its counterpart in the other rank's group, and look at \
             the connections between them (oxccl doctor)",
        ),
        Circle::Order => (
            Cause::Deadlock,
            "in a circle",
            "call in the same order on all ranks, or give each communicator a stream of its own",
        ),
    };
    // A stream that has not come to a call may wait for something else.
    let is_late = |edge| progress(edge) == Some(Progress::NotBegun);
    let more = match kind != Circle::Lost && circle.iter().any(is_late) {
        true => ", and see what else these streams wait for",
        false => "",
    };
    let text = format!(
        "ranks wait for each other {how}: {}; {advice}{more}",
        texts.collect::<Vec<_>>().join("; ")
    );
    let comm = circle.first()?.comm.number;
    let all: Vec<_> = circle.iter().filter(|edge| edge.comm.number == comm).collect();
    let ranks = if kind == Circle::Lost { ends(&lost(&all)) } else { ends(&all) };
    Some(Verdict { cause, comm, ranks, text })
}

/// The kinds of circles, which have different reasons.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Circle {
    /// Ranks wait for data that others have sent.
    Lost,
    /// Messages that are called one after the other.
    Messages,
    /// Messages of groups, or of kernels, of which nothing more is known.
    Groups,
    /// Operations that are called in different orders.
    Order,
}

impl Circle {
    fn of(circle: &[Edge<'_, '_>]) -> Self {
        let is_alone = circle.iter().all(|edge| edge.comm.number == circle[0].comm.number);
        // All ranks are in the collectives of a communicator in one order, and programs of
        // collectives have no circles.
        let in_collective =
            |of: &Member<'_>| in_kernel(of).is_some() || collective_of(of).is_some();
        let message = |of: &Member<'_>| {
            let operation = of.waiting_operation().filter(|op| op.transfers == 1)?;
            Some((operation.sends?, operation.peer?))
        };
        // What the one sends the other one receives.
        let is_matched = |edge: &Edge<'_, '_>| match (message(&edge.from), message(&edge.to)) {
            (Some((sends, to)), Some((other_sends, from))) => {
                sends != other_sends && (to, from) == (edge.to.rank.rank, edge.from.rank.rank)
            }
            _ => false,
        };
        let is_message = |of: &Member<'_>| match of.waiting_operation() {
            Some(operation) => operation.kind == Kind::Exchange,
            None => of.rank.gpu.is_some() && in_kernel(of).is_none(),
        };
        let mut all = circle.iter();
        match () {
            () if !is_alone => Circle::Order,
            () if all.clone().all(|edge| in_collective(&edge.from)) => Circle::Lost,
            () if all.clone().all(is_matched) => Circle::Lost,
            () if all.clone().all(|edge| message(&edge.from).is_some()) => Circle::Messages,
            () if all.all(|edge| is_message(&edge.from)) => Circle::Groups,
            () => Circle::Order,
        }
    }
}

/// Returns between which ranks data get lost: who waits for one that has done its part, else for
/// one of another host, else all of a circle.
fn lost<'e, 'a, 'c>(circle: &[&'e Edge<'a, 'c>]) -> Vec<&'e Edge<'a, 'c>> {
    let is_done = |edge: &Edge<'_, '_>| progress_with(&edge.from, &edge.to) == Some(Progress::Done);
    let is_apart = |edge: &Edge<'_, '_>| edge.from.process.host != edge.to.process.host;
    let those = |is: &dyn Fn(&Edge<'_, '_>) -> bool| {
        let all: Vec<_> = circle.iter().copied().filter(|edge| is(edge)).collect();
        (!all.is_empty()).then_some(all)
    };
    those(&is_done).or_else(|| those(&is_apart)).unwrap_or_else(|| circle.to_vec())
}

/// Returns the ranks at both ends of some waits of one communicator, each once.
fn ends(edges: &[&Edge<'_, '_>]) -> Vec<u32> {
    let both = |edge: &&Edge<'_, '_>| [edge.from.rank.rank, edge.to.rank.rank];
    let mut ranks: Vec<_> = edges.iter().flat_map(both).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}
