//! Why a communicator in the making does not come about.

use super::{Cause, Patience, Verdict, last_call, list, span, stopped, verb};
use crate::ras::job::{Comm, Member};
use crate::recorder::Stage;
use crate::recorder::read::{Process, ProcessState};

/// The functions that make a communicator of another one.
const FUNCTIONS: &str = "ncclCommSplit, ncclCommShrink or ncclCommGrow";

/// A communicator in the making.
struct Making<'a, 'c> {
    comm: &'c Comm<'a>,
    all: &'c [Comm<'a>],
    /// The words for those who wait, and for how long.
    effect: String,
}

/// Returns what holds up the making of a communicator, which is one of all.
pub(super) fn held_up(comm: &Comm<'_>, all: &[Comm<'_>], patience: Patience) -> Vec<Verdict> {
    let members = &comm.members;
    if members.iter().any(|member| member.rank.stage != Stage::Creating) {
        return Vec::new();
    }
    let parent = members.iter().find_map(|member| member.rank.parent);
    let age = |member: &Member<'_>| member.process.read_ns.saturating_sub(member.rank.begun_ns);
    let longest_ns = members.iter().map(age).max().unwrap_or(0);
    if longest_ns < patience.waiting_ns {
        return Vec::new();
    }
    let parent = all.iter().find(|of| Some(of.number) == parent);
    let come = match parent {
        Some(parent) => parent.members.iter().filter(|of| has_come(comm, of)).collect::<Vec<_>>(),
        None => members.iter().collect(),
    };
    let come: Vec<u32> = come.iter().map(|member| member.rank.rank).collect();
    let wait = verb(&come, "waits", "wait");
    let effect = format!("{} {wait} for {}", list(&come), span(longest_ns));
    let making = Making { comm, all, effect };
    let mut found: Vec<Verdict> =
        members.iter().filter_map(|member| making.stopped(comm, member)).collect();
    if !comm.unseen().is_empty() {
        match parent {
            Some(parent) => found.extend(making.of_parent(parent)),
            None => found.push(making.not_come()),
        }
    }
    found
}

fn is_same(a: &Process, b: &Process) -> bool {
    (a.pid, &a.host) == (b.pid, &b.host)
}

/// Returns whether a rank of the parent is in the making: by its number, which is the same where
/// nobody is left out, or by its process.
fn has_come(comm: &Comm<'_>, of_parent: &Member<'_>) -> bool {
    match comm.nranks == of_parent.rank.nranks {
        true => comm.member(of_parent.rank.rank).is_some(),
        false => comm.members.iter().any(|member| is_same(member.process, of_parent.process)),
    }
}

impl<'a> Making<'a, '_> {
    /// Returns that ranks with an id of their own have not come.
    fn not_come(&self) -> Verdict {
        let missing = self.comm.unseen();
        let text = format!(
            "{} of {} in the making {} not come, as far as this machine shows, where {}: start the \
             missing processes, or give all of them one id",
            list(&missing),
            self.comm.title(),
            verb(&missing, "has", "have"),
            self.effect
        );
        Verdict { cause: Cause::NotJoined, comm: self.comm.number, ranks: missing, text }
    }

    /// Returns that a process is stopped; the rank has its number in `of`.
    fn stopped(&self, of: &Comm<'_>, member: &Member<'_>) -> Option<Verdict> {
        if member.process.state != ProcessState::Stopped {
            return None;
        }
        let effect = format!("the making of a communicator, in which {}", self.effect);
        let text = format!("{} ({})", stopped(member, &effect), of.title());
        let ranks = vec![member.rank.rank];
        Some(Verdict { cause: Cause::Stopped, comm: of.number, ranks, text })
    }

    /// Returns what ranks of the parent do, for which others wait.
    fn of_parent(&self, parent: &Comm<'a>) -> Vec<Verdict> {
        let seen = parent.members.iter().filter(|of| !has_come(self.comm, of)).copied();
        let seen: Vec<Member<'a>> = seen.collect();
        let (title, effect) = (parent.title(), &self.effect);
        let verdict = |cause, ranks, text| Verdict { cause, comm: parent.number, ranks, text };
        if seen.is_empty() {
            let ranks = parent.unseen();
            let text = format!(
                "{} of {title} {} awaited in {FUNCTIONS}, where {effect}, and nothing is seen of them \
                 here: ask their hosts by oxccl ras, or look as another user",
                list(&ranks),
                verb(&ranks, "is", "are")
            );
            return vec![verdict(Cause::Unseen, ranks, text)];
        }
        let mut found: Vec<_> =
            seen.iter().filter_map(|member| self.stopped(parent, member)).collect();
        let runs = seen.into_iter().filter(|of| of.process.state != ProcessState::Stopped);
        let numbers = |of: &[Member<'a>]| of.iter().map(|of| of.rank.rank).collect::<Vec<_>>();
        let (elsewhere, late): (Vec<_>, Vec<_>) =
            runs.partition(|of| self.other_of(parent, of).is_some());
        // The other ones say it, too.
        let others: Vec<_> = elsewhere.iter().filter_map(|of| self.other_of(parent, of)).collect();
        if others.iter().any(|other| *other > self.comm.number) {
            let ranks = numbers(&elsewhere);
            let text = format!(
                "{effect} in one of {FUNCTIONS} of {title}, and {} in another one, or in another call \
                 of it: all ranks have to make the same calls in the same order",
                list(&ranks)
            );
            found.push(verdict(Cause::Differs, ranks, text));
        }
        if !late.is_empty() {
            let ranks = numbers(&late);
            let places: Vec<_> = late.iter().map(|member| last_call(member)).collect();
            let text = format!(
                "{} of {title} {} not called {FUNCTIONS}, where {effect}: {}; look at what happens \
                 there",
                list(&ranks),
                verb(&ranks, "has", "have"),
                places.join("; ")
            );
            found.push(verdict(Cause::NotJoined, ranks, text));
        }
        found
    }

    /// Returns the number of another communicator in the making of the parent in which a rank is.
    fn other_of(&self, parent: &Comm<'_>, member: &Member<'_>) -> Option<u64> {
        let is_in = |of: &&Comm<'_>| {
            of.number != self.comm.number
                && of.members.iter().any(|other| {
                    let is_making = other.rank.stage == Stage::Creating;
                    is_making
                        && other.rank.parent == Some(parent.number)
                        && is_same(other.process, member.process)
                })
        };
        self.all.iter().find(is_in).map(|of| of.number)
    }
}
