//! The collection of what the service tells: from the memory in which the processes of this host
//! record what they do, so that none of them has to answer, and from the monitors of processes on
//! other hosts.

use crate::rank::{Member, inquiry, rosters};
use crate::ras::job::{self, communicators};
use crate::ras::nccl::event::{Event, Key, Watched};
use crate::ras::nccl::{Known, Peer, Place, Survey, by_rank, peers};
use crate::ras::verdict::{Patience, verdicts};
use crate::recorder::Stage;
use crate::recorder::read::{PROC, Process, ProcessState, Unanswered};
use crate::recorder::read::{own_pid, processes, state};
use crate::recorder::wire;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

fn here() -> Vec<Process> {
    processes(Path::new(PROC))
}

/// Returns the processes of this host, for a second look a moment later.
fn first_look() -> Vec<Process> {
    /// The time in which a rank catches up with those that are ahead of it.
    const MOMENT: Duration = Duration::from_millis(5);
    let first = here();
    std::thread::sleep(MOMENT);
    first
}

fn job_of(all: Vec<Process>) -> Vec<Process> {
    job::of_process(all, own_pid(Path::new(PROC)))
}

/// A collection that is under way.
pub(super) struct Collection {
    begun: Instant,
    /// The time at which other hosts were asked last.
    pub(super) asked: Instant,
    /// The processes of this host at that time; empty if no other host is asked.
    here: Vec<Process>,
    /// The answers from other hosts, the latest ones last.
    elsewhere: Vec<Process>,
    /// The bytes of these answers, as they came.
    bytes: usize,
    /// The number of answers below which some are missing for certain.
    expected: usize,
    /// True if there is nothing more to wait for.
    pub(super) is_complete: bool,
}

impl Collection {
    /// Begins a collection that may last so long.
    pub(super) fn begin(limit: Duration) -> Self {
        let begun = Instant::now();
        let rosters = rosters();
        let members = rosters.iter().flat_map(|roster| &roster.members);
        let awaited = members.filter(|member| !member.is_here && !member.is_dead());
        let expected =
            awaited.map(|member| (member.host, member.pid)).collect::<HashSet<_>>().len();
        let ((here, elsewhere, bytes), is_complete) = (Default::default(), expected == 0);
        let mut collection =
            Self { begun, asked: begun, here, elsewhere, bytes, expected, is_complete };
        if !is_complete {
            collection.ask(limit);
        }
        collection
    }

    /// Returns whether processes of other hosts are asked.
    pub(super) fn asks_others(&self) -> bool {
        self.expected > 0
    }

    /// Asks other hosts, again if they were asked before.
    pub(super) fn ask(&mut self, limit: Duration) {
        self.take();
        // Earlier answers count as long as they are not too many.
        if self.bytes > inquiry::KEPT_BYTES {
            (self.elsewhere, self.bytes) = Default::default();
        }
        self.elsewhere = joined(Vec::new(), &self.elsewhere);
        (self.asked, self.here) = (Instant::now(), here());
        // Without randomness the answers to two questions might be taken for one.
        let number = getrandom::u64().unwrap_or(u64::from(std::process::id()));
        inquiry::ask(number, limit);
    }

    fn take(&mut self) -> bool {
        let answers = inquiry::take();
        self.bytes += answers.iter().map(Vec::len).sum::<usize>();
        self.elsewhere.extend(answers.iter().filter_map(|answer| wire::decode(answer)));
        !answers.is_empty()
    }

    /// Takes the answers that have come. Returns whether there is nothing more to wait for.
    pub(super) fn go_on(&mut self) -> bool {
        if !self.is_complete && self.take() && self.elsewhere.len() >= self.expected {
            self.is_complete = is_complete(believed(self.here.clone(), &self.elsewhere));
        }
        self.is_complete
    }

    /// Returns the state of the job of this process, as far as it is known.
    pub(super) fn survey(&self) -> Survey {
        // Other hosts have answered between the two looks.
        let first = if self.asks_others() { self.here.clone() } else { first_look() };
        let mut all = believed(here(), &self.elsewhere);
        job::level(&first, &mut all);
        let known = known(&all);
        let own = own_pid(Path::new(PROC));
        // The processes of this host come first: another one may have a process of this number.
        if let Some(own) = all.iter_mut().find(|process| process.pid == own) {
            own.unanswered = unanswered(&known);
        }
        let job = job_of(all);
        let causes = verdicts(&job, Patience::default());
        Survey::new(&job, &known, causes, self.begun.elapsed().as_secs_f64())
    }
}

/// Returns the processes of this host and of others, without what they cannot know better than this
/// one: the numbers of ranks of its communicators.
fn believed(here: Vec<Process>, elsewhere: &[Process]) -> Vec<Process> {
    let own = own_pid(Path::new(PROC));
    let recorded = here.iter().filter(|process| process.pid == own).flat_map(|own| &own.ranks);
    // A communicator in the making has no roster.
    let mut sizes: HashMap<_, _> = recorded.map(|rank| (rank.comm, rank.nranks)).collect();
    sizes.extend(rosters().iter().map(|roster| (roster.comm, roster.members.len() as u32)));
    let mut all = joined(here, elsewhere);
    job::refuse(&mut all, &sizes);
    all
}

/// Returns the processes of this host and of others, each of which may have answered although it
/// is seen here, too, or several times: the latest answer counts. Process ids do not tell: those of
/// containers may be equal.
fn joined(mut all: Vec<Process>, elsewhere: &[Process]) -> Vec<Process> {
    let ranks = |process: &Process| {
        let ranks = process.ranks.iter().map(|rank| (rank.comm, rank.rank));
        ranks.collect::<Vec<_>>()
    };
    fn place(process: &Process) -> (&str, u32) {
        (&process.address, process.pid)
    }
    let mut seen: HashSet<_> = all.iter().flat_map(ranks).collect();
    let mut places: HashSet<_> = all.iter().map(place).collect();
    let new = elsewhere.iter().rev().filter(|process| {
        let new = ranks(process);
        let is_known = match new.is_empty() {
            true => places.contains(&place(process)),
            false => new.iter().any(|rank| seen.contains(rank)),
        };
        if !is_known {
            seen.extend(new);
            places.insert(place(process));
        }
        !is_known
    });
    let new: Vec<_> = new.cloned().collect();
    all.extend(new);
    all
}

/// Returns whether no rank is missing but those that are known to be dead, or to be no members any
/// more. Communicators in the making have no connections by which to ask.
fn is_complete(all: Vec<Process>) -> bool {
    let known = known(&all);
    let known = by_rank(&known);
    let is_missing = |comm: u64, rank: u32| {
        known.get(&(comm, rank)).is_none_or(|peer| !peer.dead && !peer.answered)
    };
    let job = job_of(all);
    let mut comms = communicators(&job).into_iter().filter(|c| c.stage() != Stage::Creating);
    !comms.any(|comm| comm.unseen().into_iter().any(|rank| is_missing(comm.number, rank)))
}

/// Returns what the ranks of this process know of their peers; `all` are the processes that have
/// answered.
fn known(all: &[Process]) -> Vec<Known> {
    let pid = own_pid(Path::new(PROC));
    let own = all.iter().find(|process| process.pid == pid).map(|process| &process.address);
    let mut places: HashMap<_, Vec<_>> = HashMap::new();
    for process in all {
        let comms: HashSet<_> = process.ranks.iter().map(|rank| rank.comm).collect();
        places.entry((&process.address[..], process.pid)).or_default().push((process, comms));
    }
    let mut known = Vec::new();
    for roster in rosters() {
        for (rank, member) in (0u32..).zip(&roster.members) {
            let Member { pid, device, is_here, .. } = *member;
            let host = own.filter(|_| is_here).cloned().unwrap_or_else(|| member.host.to_string());
            let mut processes = places.get(&(&host[..], pid)).into_iter().flatten();
            // Elsewhere, containers may have equal numbers: who is a member is another process.
            let answered = processes.any(|(process, comms)| {
                is_here || !process.left_out && !comms.contains(&roster.comm)
            });
            let dead = member.is_dead() || is_here && !answered && !is_there(pid);
            let place = Place { host, pid, device };
            known.push(Known { comm: roster.comm, rank, place, dead, answered });
        }
    }
    known
}

/// Returns the ranks of which nothing is heard, though they are not known to be dead.
fn unanswered(known: &[Known]) -> Vec<Unanswered> {
    let silent = known.iter().filter(|peer| !peer.answered && !peer.dead);
    let of = |peer: &Known| {
        let Known { comm, rank, place: Place { host, pid, .. }, .. } = peer;
        Unanswered { comm: *comm, rank: *rank, host: host.clone(), pid: *pid, cut_ns: None }
    };
    silent.map(of).collect()
}

/// Returns whether there is such a process on this host.
fn is_there(pid: u32) -> bool {
    Path::new(PROC).join(pid.to_string()).exists()
}

/// The processes on other hosts in communicators of this process, and whether each has died.
type Elsewhere = BTreeMap<Key, (Peer, bool)>;

fn elsewhere() -> Elsewhere {
    let mut all = Elsewhere::new();
    for roster in rosters() {
        for member in roster.members.iter().filter(|member| !member.is_here) {
            let Member { host, pid, device, .. } = *member;
            let key = Key::Elsewhere(host.to_string(), pid, device);
            let peer = || (Peer::of_device(host.to_string(), pid, device), false);
            all.entry(key).or_insert_with(peer).1 |= member.is_dead();
        }
    }
    all
}

/// Returns the processes to watch, which live: those of the job on this host, and some on others.
fn watchable(elsewhere: &Elsewhere) -> Vec<(Key, Peer)> {
    let here = peers(&job_of(here())).into_iter().map(|peer| (Key::Here(peer.pid), peer));
    let living = elsewhere.iter().filter(|(_, (_, dead))| !dead);
    here.chain(living.map(|(key, (peer, _))| (key.clone(), peer.clone()))).collect()
}

/// Begins to watch the processes of the job.
pub(super) fn watch() -> Watched {
    Watched::new(watchable(&elsewhere()))
}

/// Returns what has happened to the processes of the job since the last look.
pub(super) fn look(watched: &mut Watched) -> Vec<Event> {
    let elsewhere = elsewhere();
    let lives = |key: &Key| match key {
        // For want of descriptors, processes that live may not be read.
        Key::Here(pid) => state(Path::new(PROC), *pid).is_some_and(|of| of != ProcessState::Ended),
        key => elsewhere.get(key).is_none_or(|(_, dead)| !dead),
    };
    watched.look(watchable(&elsewhere), lives)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::{Rank, Roster};
    use crate::ras::nccl::json;
    use crate::ras::nccl::samples::{process, rank};
    use crate::recorder::{Memory, Recorder};

    #[test]
    fn who_claims_a_communicator_of_very_many_ranks_makes_no_large_report() {
        let (comm, recorder) = (0x6b1d, Recorder::new());
        recorder.identify(comm, (0, 3), Memory::Host(0), "");
        let own = Rank::new(0, vec![None; 3], None, vec![0; 3]);
        let member = |pid, is_here| Member::new([192, 0, 2, 1].into(), pid, 0, is_here);
        let here = member(std::process::id(), true);
        own.set_roster(Roster { comm, members: vec![here, member(7, false), member(8, false)] });
        let lies = (0..100).map(|other| rank(0x7000 + other, 65_535, 65_536, 0));
        let liar = [rank(comm, 2, 65_536, 0), rank(comm, 65_535, 65_536, 0)];
        let mut collection = Collection::begin(Duration::ZERO);
        collection.elsewhere = vec![
            process(8, "192.0.2.1", liar.into_iter().chain(lies).collect()),
            process(7, "192.0.2.1", vec![rank(comm, 1, 3, 0)]),
        ];
        let report = json::report(&collection.survey(), "");
        assert!(report.len() < 1 << 20, "{} bytes", report.len());
        let document: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        let mut comms = document["communicators"].as_array().expect("a list").iter();
        let comm = comms.find(|found| found["hash"] == format!("{comm:#x}")).expect("it is told");
        let sizes = ["size", "ranks_count", "missing_ranks_count"].map(|of| comm[of].as_u64());
        assert_eq!(sizes, [3, 2, 1].map(Some), "{comm}");
        assert_eq!(comm["missing_ranks"][0]["rank"], 2);
    }

    #[test]
    fn who_is_seen_here_and_answers_is_one_process_also_where_others_have_its_number() {
        let here = [process(1, "10.0.0.1", vec![rank(5, 0, 4, 0)])];
        let none = process(9, "10.0.0.2", Vec::new());
        let elsewhere = [
            process(77, "10.0.0.1", vec![rank(5, 0, 4, 0)]),
            process(1, "10.0.0.1", vec![rank(5, 1, 4, 0)]),
            process(1, "10.0.0.2", vec![rank(5, 2, 4, 0)]),
            process(1, "10.0.0.2", vec![rank(5, 2, 4, 0)]),
            none.clone(),
            none,
        ];
        let all = joined(here.to_vec(), &elsewhere);
        let ranks: Vec<_> = all.iter().map(|p| p.ranks.first().map(|r| r.rank)).collect();
        assert_eq!(ranks, [Some(0), None, Some(2), Some(1)]);
    }
}
