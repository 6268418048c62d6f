//! Ranks that wait for others that cannot be seen.

use super::{Cause, Patience, Verdict, collective_of, in_kernel, list, operation_text, span, verb};
use crate::ras::job::{Comm, Member};
use crate::recorder::Stage;
use crate::recorder::read::Unanswered;

/// Returns that ranks wait for one that cannot be seen, if they wait for nobody else: those in the
/// first of several operations and, where connections are cut, those that wait over them.
pub(super) fn unseen(comm: &Comm<'_>, patience: Patience) -> Option<Verdict> {
    let waits = |member: &&Member<'_>| waits_unseen(comm, member, patience);
    let mut all: Vec<Member<'_>> = comm.members.iter().filter(waits).copied().collect();
    let operation = |of: &Member<'_>| (collective_of(of), in_kernel(of).map(|of| of.number));
    let first = all.iter().map(operation).min()?;
    all.retain(|of| operation(of) == first);
    if all.iter().any(|of| is_cut(comm, of)) {
        all.retain(|of| is_cut(comm, of));
    }
    let mut ranks: Vec<u32> = all.iter().filter_map(peer).collect();
    if ranks.is_empty() {
        ranks = comm.unseen();
    }
    ranks.sort_unstable();
    ranks.dedup();
    if ranks.is_empty() {
        return None;
    }
    let waiting: Vec<u32> = all.iter().map(|member| member.rank.rank).collect();
    let since = all.iter().filter_map(|m| Some(m.rank.waiting?.since_ns)).min().unwrap_or(0);
    let unanswered: Option<Vec<_>> = ranks.iter().map(|rank| unanswered(comm, *rank)).collect();
    let cut_ns = unanswered.iter().flatten().filter_map(|of| of.cut_ns).max();
    let (fact, advice) = match (&unanswered, cut_ns) {
        (Some(all), Some(cut_ns)) => (
            format!(
                "to which the connection is cut ({}; no answer has come for {}, and data are sent \
                 again)",
                places(all),
                span(cut_ns)
            ),
            "look at adapters, cables and switches on the way (oxccl doctor --host)",
        ),
        (Some(all), None) => (
            format!("which does not answer ({})", places(all)),
            "look whether that host runs, can be reached, and runs the process",
        ),
        (None, _) => (
            "of which nothing is seen here".to_owned(),
            "ask its host by oxccl ras, or look as another user",
        ),
    };
    let first = all.first()?;
    let text = format!(
        "{} {} in {} for {}, {fact}, for {}: {advice} ({})",
        list(&waiting),
        verb(&waiting, "waits", "wait"),
        operation_text(first),
        list(&ranks),
        span(first.process.read_ns.saturating_sub(since)),
        comm.title()
    );
    let cause = if cut_ns.is_some() { Cause::SilentLink } else { Cause::Unseen };
    Some(Verdict { cause, comm: comm.number, ranks, text })
}

/// Returns whether a rank has waited for long enough for one that cannot be seen.
fn waits_unseen(comm: &Comm<'_>, member: &Member<'_>, patience: Patience) -> bool {
    let Some(waiting) = member.rank.waiting else { return false };
    let waited_ns = member.process.read_ns.saturating_sub(waiting.since_ns);
    let is_seen = waiting.peer.is_some_and(|peer| comm.member(peer).is_some());
    // For a second nothing has come over a connection that is cut.
    let least_ns = patience.waiting_ns / if is_cut(comm, member) { 8 } else { 1 };
    member.rank.stage == Stage::Running && waited_ns >= least_ns && !is_seen
}

/// Returns the rank that another one waits for.
fn peer(member: &Member<'_>) -> Option<u32> {
    member.rank.waiting?.peer
}

/// Returns whether a rank waits over a connection that is cut.
fn is_cut(comm: &Comm<'_>, member: &Member<'_>) -> bool {
    let of = peer(member).and_then(|peer| unanswered(comm, peer));
    of.is_some_and(|of| of.cut_ns.is_some())
}

/// Returns a rank as a process knows it that asked for it, and got no answer; one with a cut
/// connection before others. `None` if none did.
fn unanswered<'a>(comm: &Comm<'a>, rank: u32) -> Option<&'a Unanswered> {
    let all = comm.members.iter().flat_map(|member| &member.process.unanswered);
    all.filter(|of| (of.comm, of.rank) == (comm.number, rank)).max_by_key(|of| of.cut_ns)
}

/// Returns where ranks are that do not answer.
fn places(all: &[&Unanswered]) -> String {
    let mut places: Vec<_> =
        all.iter().map(|of| format!("process {} on {}", of.pid, of.host)).collect();
    places.dedup();
    places.join(", ")
}
