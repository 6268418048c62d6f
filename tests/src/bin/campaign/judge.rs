//! Judging: every survivor completes, or ends in time with an error that names who is at fault.

use crate::attempt::{INIT_LIMIT_S, Record, Seen};
use crate::plan::{Fault, Phase, Plan, sender};
use std::collections::BTreeSet;
use std::time::Duration;

/// How soon after a death its errors come.
const DEATH: Duration = Duration::from_secs(2);
/// The same after a silence: a peer is dead that was not heard for five seconds.
const SILENCE: Duration = Duration::from_secs(7);

/// How soon a rank is missed that died, or was cut off, before it had come to the rendezvous: after
/// the limit of initialisation, and what the ranks wait longer for its word.
const MISSED: Duration = Duration::from_secs(INIT_LIMIT_S + 4);

/// What an attempt, or a rank in it, comes to; the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Right,
    Late,
    Wrong,
    Lost,
    Hung,
    Crashed,
}

/// The verdict on an attempt: the worst of its ranks.
pub(crate) fn judge(plan: &Plan, record: &Record) -> Verdict {
    let ranks = (0u32..).zip(&record.ranks);
    let verdicts = ranks.map(|(rank, seen)| Judged { plan, record, rank }.verdict(seen));
    verdicts.max().unwrap_or(Verdict::Right)
}

/// What texts say of ranks that have not come.
const MISSING: [&str; 3] =
    [" did not come within ", " did not answer at the rendezvous within ", "no connection with "];

/// The ranks that a text names, but for those who report.
fn named(text: &str) -> BTreeSet<u32> {
    let mut named = BTreeSet::new();
    for (at, word) in text.match_indices("rank") {
        if text[..at].ends_with("reported by ") {
            continue;
        }
        let mut rest = text[at + word.len()..].trim_start_matches('s');
        rest = rest.trim_start_matches([' ', '[']);
        loop {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let Ok(number) = rest[..digits].parse::<u32>() else { break };
            rest = &rest[digits..];
            if !rest.starts_with(" says") {
                named.insert(number);
            }
            let next = [", ", " and "].iter().find_map(|between| rest.strip_prefix(between));
            let Some(next) = next else { break };
            rest = next;
        }
    }
    named
}

/// A rank to be judged.
struct Judged<'a> {
    plan: &'a Plan,
    record: &'a Record,
    rank: u32,
}

impl Judged<'_> {
    fn verdict(&self, seen: &Seen) -> Verdict {
        let plan = self.plan;
        let struck = self.record.struck.is_some();
        let panicked = seen.lines.iter().any(|(_, line)| line.contains("panicked at"));
        if Some(self.rank) == plan.dead || self.rank == plan.victim && struck && plan.is_deadly() {
            return if panicked { Verdict::Crashed } else { Verdict::Right };
        }
        let outcome = seen.lines.iter().find_map(|(at, line)| {
            let (kind, rest) = line.split_once(' ').unwrap_or((line.as_str(), ""));
            ["done", "excused", "code", "wrong"].contains(&kind).then_some((*at, kind, rest))
        });
        match outcome {
            _ if panicked => Verdict::Crashed,
            _ if seen.hung => Verdict::Hung,
            _ if seen.status.is_none_or(|status| status.signaled()) => Verdict::Crashed,
            None => Verdict::Crashed,
            Some((_, "done" | "excused", _)) => Verdict::Right,
            Some((_, "wrong", _)) => Verdict::Lost,
            Some((at, _, rest)) => {
                let after = self.record.struck.map(|struck| at.saturating_duration_since(struck));
                self.failed(after, rest)
            }
        }
    }

    /// The verdict on an error, so long after the fault: "CODE peer PEER: TEXT".
    fn failed(&self, after: Option<Duration>, line: &str) -> Verdict {
        let plan = self.plan;
        let after = match after {
            Some(after) if !plan.cell.fault.is_harmless() => after,
            // Nothing happened that would have had to end anything.
            _ if self.sender_is_content() => return Verdict::Lost,
            _ => return Verdict::Wrong,
        };
        if self.rank == plan.victim && plan.cell.fault == Fault::Stop {
            // The others may have gone on without it.
            return Verdict::Right;
        }
        let (head, text) = line.split_once(": ").unwrap_or((line, ""));
        let peer = head.rsplit(' ').next().and_then(|peer| peer.parse::<i32>().ok());
        let right = match peer.and_then(|peer| u32::try_from(peer).ok()) {
            Some(peer) => self.culprits().contains(&peer),
            None => self.is_named_by(text),
        };
        match right {
            false => Verdict::Wrong,
            true if after > self.limit(text) => Verdict::Late,
            true => Verdict::Right,
        }
    }

    /// Whether this rank was told something by one that succeeded and left.
    fn sender_is_content(&self) -> bool {
        let Plan { cell, seed, .. } = self.plan;
        let sender = sender(*seed, cell.layout.nranks);
        let done = |seen: &Seen| seen.lines.iter().any(|(_, line)| line == "done");
        cell.phase == Phase::Leave && done(&self.record.ranks[sender as usize])
    }

    fn limit(&self, text: &str) -> Duration {
        let Plan { cell, hold, ends, .. } = self.plan;
        if MISSING.iter().any(|missing| text.contains(missing)) {
            return MISSED;
        }
        match cell.fault {
            Fault::Kill => DEATH,
            // In initialisation, and of a process that holds a rendezvous, only the end shows.
            Fault::Stop if self.knows_an_id_alone() => *hold + DEATH,
            Fault::Stop if *ends && cell.phase == Phase::Init => *hold + DEATH,
            // Processes of one host are not given up while they live.
            Fault::Stop if *ends && cell.layout.hosts == 1 => *hold + DEATH,
            Fault::Stop if *ends => SILENCE.min(*hold + DEATH),
            _ => SILENCE,
        }
    }

    /// Who may be named: the victim; of a cut, whoever is on one of its sides and not on this host.
    fn culprits(&self) -> BTreeSet<u32> {
        let plan = self.plan;
        if plan.cell.fault != Fault::Cut {
            return BTreeSet::from([plan.victim]);
        }
        let (layout, (a, b)) = (plan.cell.layout, plan.cut);
        let of_a_side = |host: u32| host == a || b.is_none_or(|b| host == b);
        let elsewhere = |rank: &u32| {
            let host = layout.host(*rank);
            // A newcomer hears what either side has said.
            let apart = host != layout.host(self.rank) || Some(self.rank) == plan.newcomer();
            apart && of_a_side(host)
        };
        (0..plan.processes()).filter(elsewhere).collect()
    }

    /// Whether an error of a meeting names a culprit and nobody else.
    fn is_named_by(&self, text: &str) -> bool {
        // Ranks have other numbers in what is being made.
        let numbers = |rank: u32| [rank, self.plan.number_in_child(rank)];
        let culprits: BTreeSet<u32> = self.culprits().into_iter().flat_map(numbers).collect();
        let own = numbers(self.rank);
        let others: BTreeSet<u32> =
            named(text).into_iter().filter(|rank| !own.contains(rank)).collect();
        if others.is_empty() {
            // An id does not tell which rank holds its rendezvous.
            return self.knows_an_id_alone() && text.contains("rendezvous");
        }
        others.is_subset(&culprits)
    }

    /// Whether what failed may be the rendezvous of an id, of which this rank knows no more: it is
    /// the victim's, or ends because of it before a newcomer has heard of anyone.
    fn knows_an_id_alone(&self) -> bool {
        let Plan { cell, victim, .. } = self.plan;
        match cell.phase {
            Phase::Init => !cell.layout.launcher && (*victim == 0 || cell.fault == Fault::Cut),
            Phase::Grow => Some(self.rank) == self.plan.newcomer(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_in_texts_of_any_form() {
        let cases: [(&str, &[u32]); 7] = [
            ("initialisation of rank 2 of 4 failed: rank 10 has ended", &[2, 10]),
            ("ranks 1, 3 and 4 did not come", &[1, 3, 4]),
            ("ranks [0, 2] do not answer", &[0, 2]),
            ("rank 3 is gone (reported by rank 1)", &[3]),
            ("rank 1 says: rank 0's process ended", &[0]),
            ("2 of 4 ranks did not come within 8 s: ranks 1, 3; look whether", &[1, 3]),
            ("the ranks disagree", &[]),
        ];
        for (text, ranks) in cases {
            assert_eq!(named(text).into_iter().collect::<Vec<_>>(), ranks, "{text}");
        }
    }
}
