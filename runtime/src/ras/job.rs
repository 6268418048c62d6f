//! The communicators of a job, put together from what its processes record.

use crate::recorder::read::{OperationReport, Process, RankReport};
use crate::recorder::{COLLECTIVES, Kind, Stage};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The most ranks that a communicator is believed to have for each of them that has answered, where
/// no rank of this process is a member: what is told of ranks that are missing stays in proportion
/// to what others have sent.
const RANKS_PER_ANSWER: u32 = 64;

/// A rank of a communicator and its process.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The process.
    pub process: &'a Process,
    /// The record of the rank.
    pub rank: &'a RankReport,
}

/// A communicator.
#[derive(Clone, Debug)]
pub struct Comm<'a> {
    /// The number of the communicator.
    pub number: u64,
    /// The number of its ranks.
    pub nranks: u32,
    /// The ranks whose processes can be seen, in the order of their numbers.
    pub members: Vec<Member<'a>>,
}

/// Returns the processes of the job that a process belongs to: it, and all that share a
/// communicator with one of them.
pub fn of_process(processes: Vec<Process>, pid: u32) -> Vec<Process> {
    let Some(own) = processes.iter().position(|process| process.pid == pid) else {
        return Vec::new();
    };
    let mut members: HashMap<u64, Vec<usize>> = HashMap::new();
    for (number, process) in processes.iter().enumerate() {
        process.ranks.iter().for_each(|r| members.entry(r.comm).or_default().push(number));
    }
    let (mut is_found, mut found) = (vec![false; processes.len()], vec![own]);
    is_found[own] = true;
    while let Some(number) = found.pop() {
        // Each communicator is looked at once.
        let comms = processes[number].ranks.iter().filter_map(|rank| members.remove(&rank.comm));
        for other in comms.flatten() {
            if !std::mem::replace(&mut is_found[other], true) {
                found.push(other);
            }
        }
    }
    let job = processes.into_iter().zip(is_found).filter(|(_, is_found)| *is_found);
    let mut job: Vec<_> = job.map(|(process, _)| process).collect();
    job.sort_by(|a, b| (&a.address, a.pid).cmp(&(&b.address, b.pid)));
    job
}

/// Takes away what processes say of ranks that cannot be: of a communicator that has another number
/// of ranks, of one that almost nobody has answered for, or of a rank that is there already.
/// `sizes` has the numbers of ranks of the communicators that are known; of others, the number
/// counts that most of their ranks tell. Processes of which something is taken away are marked.
pub fn refuse(processes: &mut [Process], sizes: &HashMap<u64, u32>) {
    let mut claims: HashMap<u64, BTreeMap<u32, HashSet<u32>>> = HashMap::new();
    for rank in processes.iter().flat_map(|process| &process.ranks) {
        claims.entry(rank.comm).or_default().entry(rank.nranks).or_default().insert(rank.rank);
    }
    let size = |(&comm, claims): (&u64, &BTreeMap<u32, HashSet<u32>>)| {
        let (claimed, by) = claims.iter().rev().max_by_key(|(_, ranks)| ranks.len())?;
        let most = RANKS_PER_ANSWER.saturating_mul(by.len() as u32);
        let known = sizes.get(&comm).copied();
        Some((comm, known.or((*claimed <= most).then_some(*claimed))?))
    };
    let sizes: HashMap<u64, u32> = claims.iter().filter_map(size).collect();
    let mut seen = HashSet::new();
    for process in processes {
        let told = process.ranks.len();
        process.ranks.retain(|RankReport { comm, rank, nranks, .. }| {
            let is_size = sizes.get(comm) == Some(nranks) && rank < nranks;
            is_size && seen.insert((*comm, *rank))
        });
        process.left_out |= process.ranks.len() < told;
    }
}

/// Gives ranks that make the same calls the same counts, though each is read at another time:
/// `first` are the processes of this host at a first look, `now` those at a second one, with those
/// of other hosts as they were between the two. A rank of this host counts less than others only if
/// it has not caught up with them by the second look, and one of another host only if it has not
/// caught up with what ranks of this host had called by the first.
pub fn level(first: &[Process], now: &mut [Process]) {
    type Counts = [u64; COLLECTIVES];
    let raise = |most: &mut Counts, counts: &Counts| {
        most.iter_mut().zip(counts).for_each(|(most, count)| *most = (*most).max(*count));
    };
    let mut here: HashMap<u64, Counts> = HashMap::new();
    let mut local = HashSet::new();
    for rank in first.iter().flat_map(|process| &process.ranks) {
        raise(here.entry(rank.comm).or_default(), &rank.collectives_by_kind);
        local.insert((rank.comm, rank.rank));
    }
    let mut elsewhere: HashMap<u64, Counts> = HashMap::new();
    let is_local = |rank: &RankReport| local.contains(&(rank.comm, rank.rank));
    for rank in now.iter().flat_map(|process| &process.ranks).filter(|rank| !is_local(rank)) {
        raise(elsewhere.entry(rank.comm).or_default(), &rank.collectives_by_kind);
    }
    for rank in now.iter_mut().flat_map(|process| &mut process.ranks) {
        let is_local = is_local(rank);
        let Some(here) = here.get(&rank.comm) else { continue };
        let elsewhere = elsewhere.get(&rank.comm).copied().unwrap_or_default();
        for ((count, here), elsewhere) in
            rank.collectives_by_kind.iter_mut().zip(here).zip(elsewhere)
        {
            let level = (*here).max(elsewhere);
            if *count >= if is_local { level } else { *here } {
                *count = level;
            }
        }
    }
}

/// Returns the communicators of some processes, in the order of their numbers. What has no number
/// yet is a communicator of its own for each process: which ranks make one is not known.
pub fn communicators(processes: &[Process]) -> Vec<Comm<'_>> {
    let mut all: BTreeMap<(u64, Option<usize>), Vec<Member<'_>>> = BTreeMap::new();
    for (place, process) in processes.iter().enumerate() {
        for rank in &process.ranks {
            let key = (rank.comm, (rank.comm == 0).then_some(place));
            all.entry(key).or_default().push(Member { process, rank });
        }
    }
    all.into_iter()
        .map(|((number, _), mut members)| {
            members.sort_by_key(|member| member.rank.rank);
            let nranks = members.iter().map(|member| member.rank.nranks).max().unwrap_or(0);
            Comm { number, nranks, members }
        })
        .collect()
}

impl<'a> Comm<'a> {
    /// Returns a rank, if its process can be seen.
    pub fn member(&self, rank: u32) -> Option<Member<'a>> {
        let at = self.members.partition_point(|member| member.rank.rank < rank);
        self.members.get(at).filter(|member| member.rank.rank == rank).copied()
    }

    /// Returns the ranks that cannot be seen.
    pub fn unseen(&self) -> Vec<u32> {
        let mut seen = vec![false; self.nranks as usize];
        for member in &self.members {
            if let Some(seen) = seen.get_mut(member.rank.rank as usize) {
                *seen = true;
            }
        }
        (0u32..).zip(seen).filter(|(_, seen)| !seen).map(|(rank, _)| rank).collect()
    }

    /// Returns the communicator's number and name, for texts.
    pub fn title(&self) -> String {
        let name = self.members.iter().map(|member| &member.rank.name).find(|n| !n.is_empty());
        let name = name.map_or_else(String::new, |name| format!(" {name:?}"));
        format!("communicator {:016x}{name}", self.number)
    }

    /// Returns the stage of the communicator: the earliest of its ranks, or failed if one has
    /// failed.
    pub fn stage(&self) -> Stage {
        let stages = || self.members.iter().map(|member| member.rank.stage);
        let is = |wanted: Stage| stages().any(|stage| stage == wanted);
        match (is(Stage::Failed), is(Stage::Creating)) {
            (true, _) => Stage::Failed,
            (_, true) => Stage::Creating,
            _ => Stage::Running,
        }
    }
}

impl<'a> Member<'a> {
    /// Returns the rank's collective of a number, while it is recorded. On GPUs the launches of
    /// graphs are not counted, so there ranks may count differently.
    pub fn collective(&self, number: u64) -> Option<&'a OperationReport> {
        let mut operations = self.rank.operations.iter();
        operations.find(|op| op.kind == Kind::Collective && op.of_kind == number)
    }

    /// Returns the rank's operation of a number, while it is recorded.
    pub fn operation(&self, number: u64) -> Option<&'a OperationReport> {
        self.rank.operations.iter().find(|op| op.number == number)
    }

    /// Returns the operation that waits, if it is recorded; `None` in kernels.
    pub fn waiting_operation(&self) -> Option<&'a OperationReport> {
        self.operation(self.rank.waiting?.number?)
    }

    /// Returns where the rank is: its process, its host, and its GPU.
    pub fn place(&self) -> String {
        let Process { pid, host, command, .. } = self.process;
        let gpu = self.rank.gpu.map_or_else(String::new, |gpu| format!(", GPU {gpu}"));
        format!("process {pid} ({command}) on {host}{gpu}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::nccl::samples::{process, rank};
    use super::*;

    #[test]
    fn a_job_is_all_processes_that_communicators_connect() {
        let of = |pid, comms: &[u64]| {
            let ranks = comms.iter().map(|&comm| rank(comm, pid, 9, 0));
            process(pid, "10.0.0.1", ranks.collect())
        };
        let all = [of(5, &[3]), of(4, &[1]), of(3, &[2, 3]), of(2, &[7, 8]), of(1, &[1, 2])];
        let pids = |pid| of_process(all.to_vec(), pid).iter().map(|p| p.pid).collect::<Vec<_>>();
        (3..6).for_each(|pid| assert_eq!(pids(pid), [1, 3, 4, 5]));
        assert_eq!((pids(2), pids(9)), (vec![2], vec![]));
    }

    #[test]
    fn a_chain_of_very_many_processes_is_one_job() {
        // A search of a list for each of them would take minutes.
        let of = |pid: u32| {
            let ranks = [rank(pid.into(), 0, 2, 0), rank(u64::from(pid) + 1, 1, 2, 0)];
            process(pid, "10.0.0.1", ranks.to_vec())
        };
        let all = (1..40_000).map(of).collect();
        assert_eq!(of_process(all, 20_000).len(), 39_999);
    }

    #[test]
    fn who_has_caught_up_by_a_second_look_is_level_with_the_others() {
        let of = |counts: [u64; 3]| {
            let all = (0u32..).zip(counts).map(|(number, count)| {
                process(number, "10.0.0.1", vec![rank(1, number, 3, count)])
            });
            all.collect::<Vec<_>>()
        };
        let levelled = |first: &[Process], now| {
            let mut now = of(now);
            level(first, &mut now);
            now.iter().map(|process| process.ranks[0].collectives_by_kind[0]).collect::<Vec<_>>()
        };
        // While the second rank was read, the first one went on; the last one does not.
        assert_eq!(levelled(&of([10, 11, 9]), [13, 12, 9]), [11, 11, 9]);
        // The last ones are on another host, and were read between the two looks.
        assert_eq!(levelled(&of([3, 2, 0])[..2], [5, 4, 4]), [4, 4, 4]);
        assert_eq!(levelled(&of([3, 3, 0])[..2], [3, 3, 4]), [3, 3, 4]);
        assert_eq!(levelled(&of([5, 5, 0])[..2], [6, 6, 4]), [5, 5, 4]);
        // What was not there at the first look counts as it is.
        assert_eq!(levelled(&[], [3, 4, 5]), [3, 4, 5]);
    }

    #[test]
    fn what_contradicts_the_known_sizes_or_most_ranks_or_comes_twice_is_refused() {
        let of = |pid, ranks: &[(u64, u32, u32)]| {
            let ranks = ranks.iter().map(|&(comm, number, nranks)| rank(comm, number, nranks, 0));
            process(pid, "10.0.0.1", ranks.collect())
        };
        let mut all = [
            // Communicator 1 is known to have four ranks, 2 and 3 are not known.
            of(1, &[(1, 0, 4), (2, 0, 2), (3, 7, 65_536)]),
            of(2, &[(1, 1, 65_536), (1, 2, 4), (2, 1, 64)]),
            of(3, &[(1, 3, 3), (2, 1, 2), (2, 0, 2)]),
            of(4, &[(4, 0, 64), (5, 0, 65), (6, 65_535, 65_536), (6, 65_535, 65_536)]),
        ];
        refuse(&mut all, &HashMap::from([(1, 4)]));
        let left = |p: &Process| p.ranks.iter().map(|r| (r.comm, r.rank)).collect::<Vec<_>>();
        let expected = [vec![(1, 0), (2, 0)], vec![(1, 2)], vec![(2, 1)], vec![(4, 0)]];
        assert_eq!(all.each_ref().map(left), expected);
        assert!(all.iter().all(|process| process.left_out));
        let missing = communicators(&all).iter().map(|c| c.unseen().len()).collect::<Vec<_>>();
        assert_eq!(missing, [2, 0, 63]);
    }
}
