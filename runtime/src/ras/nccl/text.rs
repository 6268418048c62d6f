//! The state of a job as the text that NCCL's service writes; the causes of a standstill are among
//! the warnings.

use super::{COMPILED_WITH, COUNTED, CommState, Peer, Place, State, Survey};
use super::{Missing, Troubles};
use crate::NCCL_VERSION;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{Display, Write};

/// The most ranks that are listed one by one, unless all of them are asked for.
const LISTED: usize = 10;

/// Decides which of several groups are so small that their members are listed one by one.
#[derive(Clone, Copy)]
struct Lister {
    verbose: bool,
    /// The number of all members, if they are a part of something.
    total: Option<usize>,
}

impl Lister {
    fn lists(self, count: usize) -> bool {
        let part = |share: usize| count.saturating_mul(share);
        count == 1
            || match self.verbose {
                true => self.total.is_none_or(|total| part(2) < total),
                false => count <= LISTED && self.total.is_none_or(|total| part(4) <= total),
            }
    }
}

/// Returns `word`, or its plural.
fn some(count: usize, word: &str) -> String {
    let ending = match count {
        1 => "",
        _ if word.ends_with('s') => "es",
        _ => "s",
    };
    format!("{word}{ending}")
}

/// Groups members by a value: the most frequent value first, of equally frequent ones the greatest.
fn grouped<K: Ord + Copy, T>(members: impl IntoIterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let mut groups: BTreeMap<K, Vec<T>> = BTreeMap::new();
    for (value, member) in members {
        groups.entry(value).or_default().push(member);
    }
    let mut groups: Vec<_> = groups.into_iter().rev().collect();
    groups.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
    groups
}

fn joined<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter().map(|one| one.to_string()).collect::<Vec<_>>().join(",")
}

impl Peer {
    /// Returns the process for texts.
    pub(super) fn line(&self) -> String {
        let Self { host, pid, devices, .. } = self;
        let gpus = some(devices.len().max(1), "GPU");
        format!("Process {pid} on node {host} managing {gpus} {}", joined(devices))
    }
}

/// Returns the state of a job; with `verbose` more ranks are listed one by one.
pub fn report(survey: &Survey, verbose: bool) -> String {
    let mut report = Text { survey, verbose, groups: groups(survey), out: String::new() };
    report.all();
    report.out
}

/// Communicators that look alike: each by its place in the survey.
struct Group {
    state: State,
    troubles: Troubles,
    size: u32,
    hosts: usize,
    comms: Vec<usize>,
}

/// Returns the communicators in groups, in the order of NCCL's table.
fn groups(survey: &Survey) -> Vec<Group> {
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (number, comm) in survey.comms.iter().enumerate() {
        let order = (comm.size, comm.ranks_of_hosts().len(), comm.state(), comm.troubles());
        groups.entry(order).or_default().push(number);
    }
    let group = |((size, hosts, state, troubles), mut comms): (_, Vec<usize>)| {
        comms.sort_by_key(|&number| survey.comms[number].answers.len());
        Group { state, troubles, size, hosts, comms }
    };
    groups.into_iter().rev().map(group).collect()
}

struct Text<'a> {
    survey: &'a Survey,
    verbose: bool,
    groups: Vec<Group>,
    out: String,
}

impl Text<'_> {
    fn line(&mut self, line: impl Display) {
        // A text has room for everything.
        let _ = writeln!(self.out, "{line}");
    }

    fn all(&mut self) {
        self.line(format_args!("NCCL version {NCCL_VERSION} compiled with CUDA {COMPILED_WITH}"));
        let (runtime, driver) = self.survey.cuda_versions;
        self.line(format_args!("CUDA runtime version {runtime}, driver version {driver}\n"));
        self.line("Job summary\n===========\n");
        self.summary();
        let seconds = self.survey.seconds;
        self.line(format_args!("\nCommunicators... ({seconds:.3}s)\n=============\n"));
        self.table();
        self.line("\nErrors\n======\n");
        self.silent_and_dead();
        self.of_comms(Self::incomplete);
        self.of_comms(Self::errors);
        self.line("Warnings\n========\n");
        if self.survey.timeouts > 0 {
            let timeouts = self.survey.timeouts;
            let what = some(timeouts, "communication timeout");
            self.line("TIMEOUT");
            let during = "while gathering communicator data";
            self.line(format_args!("  Encountered {timeouts} {what} {during}\n"));
        }
        self.of_comms(Self::mismatch);
        self.causes();
    }

    fn lister(&self, total: Option<usize>) -> Lister {
        Lister { verbose: self.verbose, total }
    }

    fn summary(&mut self) {
        let peers = &self.survey.peers;
        let mut of_hosts: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        peers.iter().for_each(|peer| of_hosts.entry(&peer.host).or_default().push(peer.pid));
        let nodes = grouped(of_hosts.iter().map(|(host, pids)| (pids.len(), *host)));
        let gpus = grouped(peers.iter().map(|peer| (peer.devices.len(), ())));
        let all: usize = peers.iter().map(|peer| peer.devices.len()).sum();
        let (hosts, processes) = (of_hosts.len(), peers.len());
        let per_process = gpus.first().map_or(0, |(count, _)| *count);
        if nodes.len() <= 1 && gpus.len() <= 1 {
            let per_node = nodes.first().map_or(0, |(count, _)| *count);
            self.line("  Nodes  Processes         GPUs  Processes     GPUs");
            self.line("(total)   per node  per process    (total)  (total)");
            let total = format_args!("  {processes:9}  {all:7}").to_string();
            return self.line(format_args!("{hosts:7}  {per_node:9}  {per_process:11}{total}"));
        }
        let same = gpus.len() <= 1;
        self.line(if same { "  Nodes  Processes         GPUs" } else { "  Nodes  Processes" });
        self.line(if same { "          per node  per process" } else { "          per node" });
        for (per_node, hosts) in &nodes {
            let gpus = if same { format!("  {per_process:11}") } else { String::new() };
            self.line(format_args!("{:7}  {per_node:9}{gpus}", hosts.len()));
        }
        if !same {
            self.line("\n         Processes         GPUs\n                    per process");
            for (per_process, processes) in &gpus {
                self.line(format_args!("         {:9}  {per_process:11}", processes.len()));
            }
        }
        self.line("\n  Nodes  Processes         GPUs\n(total)    (total)      (total)");
        self.line(format_args!("{hosts:7}  {processes:9}  {all:11}"));
        let lister = self.lister(Some(hosts));
        for (_, outliers) in nodes.iter().filter(|(_, hosts)| same && lister.lists(hosts.len())) {
            self.line(format_args!("\nThe outlier {}:", some(outliers.len(), "node")));
            for host in outliers {
                let pids = &of_hosts[host];
                let running = some(pids.len(), "process");
                self.line(format_args!("  Node {host} running {running} {}", joined(pids)));
            }
        }
    }

    fn table(&mut self) {
        if self.groups.is_empty() {
            return self.line("No communicator data collected!");
        }
        self.line("Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors");
        self.line("    #  in group  per comm  per node  per comm  in group");
        let mut rows = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            let comms = || group.comms.iter().map(|&comm| &self.survey.comms[comm]);
            let on_hosts: Vec<_> = comms().map(CommState::ranks_of_hosts).collect();
            let counts = || on_hosts.iter().flat_map(|hosts| hosts.values());
            let (least, most) = (counts().min().unwrap_or(&0), counts().max().unwrap_or(&0));
            let per_node =
                if least == most { least.to_string() } else { format!("{least}-{most}") };
            let places: BTreeSet<&Place> =
                comms().flat_map(|comm| &comm.answers).map(|answer| &answer.place).collect();
            let Group { state, troubles, size, hosts, comms } = group;
            rows.push(format!(
                "{number:5}  {:8}  {hosts:8}  {per_node:>8}  {size:8}  {:8}  {:>8}  {:>6}",
                comms.len(),
                places.len(),
                state.name(),
                troubles.names()
            ));
        }
        rows.into_iter().for_each(|row| self.line(row));
    }

    /// Writes something about every communicator, in the order of the table.
    fn of_comms(&mut self, write: fn(&mut Self, &CommState, &str)) {
        let survey = self.survey;
        for number in 0..self.groups.len() {
            for place in 0..self.groups[number].comms.len() {
                let comm = &survey.comms[self.groups[number].comms[place]];
                write(self, comm, &format!("#{number}-{place} ({:016x})", comm.number));
            }
        }
    }

    fn silent_and_dead(&mut self) {
        let survey = self.survey;
        let peers = |dead| survey.peers.iter().filter(move |p| !p.answered && p.dead == dead);
        let unknown = |missing: &&Missing| missing.unresponsive && missing.place.is_none();
        // Ranks of several communicators may be in one process: at least so many are unknown.
        let unknown = survey.comms.iter().map(|comm| comm.missing.iter().filter(unknown).count());
        let unknown = unknown.max().unwrap_or(0);
        let silent: Vec<_> = peers(false).collect();
        let count = silent.len() + unknown;
        if count > 0 {
            self.line("INCOMPLETE");
            let from = format!("{count} job {}", some(count, "process"));
            self.line(format_args!("  Missing communicator data from {from}"));
            self.processes(&silent);
            if unknown > 0 {
                let what = format!("{unknown} {}", some(unknown, "process"));
                self.line(format_args!("  [could not find information on {what}]"));
            }
            self.line("");
        }
        let dead: Vec<_> = peers(true).collect();
        if !dead.is_empty() {
            let are = match dead.len() {
                1 => "process is",
                _ => "processes are",
            };
            self.line("DEAD");
            let considered = "considered dead (unreachable via the RAS network)";
            self.line(format_args!("  {} job {are} {considered}", dead.len()));
            self.processes(&dead);
            self.line("");
        }
    }

    fn processes(&mut self, peers: &[&Peer]) {
        if self.lister(None).lists(peers.len()) {
            peers.iter().for_each(|peer| self.line(format_args!("  {}", peer.line())));
        }
    }

    fn incomplete(&mut self, comm: &CommState, title: &str) {
        let missing: Vec<_> = comm.missing.iter().filter(|m| m.unresponsive).collect();
        if missing.is_empty() {
            return;
        }
        self.line(format_args!("{title} INCOMPLETE"));
        let from = format!("{} {}", missing.len(), some(missing.len(), "rank"));
        self.line(format_args!("  Missing communicator data from {from}"));
        if self.lister(Some(comm.size as usize)).lists(missing.len()) {
            missing.iter().for_each(|m| self.line(rank_line(m.rank, "", comm)));
        }
        self.line("");
    }

    fn errors(&mut self, comm: &CommState, title: &str) {
        if !comm.troubles().error {
            return;
        }
        self.line(format_args!("{title} ERROR"));
        let of_init = comm.answers.iter().map(|answer| (answer.init_state, answer.rank));
        let later = comm.answers.iter().map(|answer| (answer.async_error, answer.rank));
        let kinds: [(&str, Vec<_>); 2] =
            [("Initialization error", of_init.collect()), ("Asynchronous error", later.collect())];
        for (kind, failed) in kinds {
            let failed = failed.into_iter();
            let failed: Vec<_> = failed.filter(|(code, _)| ![0, 7].contains(code)).collect();
            if failed.is_empty() {
                continue;
            }
            let count = failed.len();
            let (kind, rank) = (some(count, kind), some(count, "rank"));
            self.line(format_args!("  {kind} on {count} {rank}"));
            self.breakdown(comm, failed, None, |code, _| format!("reported {}", error_name(code)));
        }
        self.line("");
    }

    /// Writes what ranks have in common: the ranks by a value each, and the words about it.
    fn breakdown<K: Ord + Copy>(
        &mut self,
        comm: &CommState,
        ranks: Vec<(K, u32)>,
        total: Option<usize>,
        words: impl Fn(K, usize) -> String,
    ) {
        let lister = self.lister(total);
        for (value, ranks) in grouped(ranks) {
            let words = words(value, ranks.len());
            if let [rank] = ranks[..] {
                self.line(rank_line(rank, &words, comm));
                continue;
            }
            self.line(format_args!("  {} ranks {words}", ranks.len()));
            if lister.lists(ranks.len()) {
                ranks.iter().for_each(|&rank| self.line(rank_line(rank, "", comm)));
            }
        }
    }

    fn mismatch(&mut self, comm: &CommState, title: &str) {
        if !comm.troubles().mismatch {
            return;
        }
        self.line(format_args!("{title} MISMATCH"));
        let (states, total) = (comm.states(), Some(comm.size as usize));
        if states.iter().any(|(state, _)| Some(*state) != states.first().map(|s| s.0)) {
            self.line("  Communicator ranks have different status");
            self.breakdown(comm, states, total, |state, count| {
                let have = if count == 1 { "has" } else { "have" };
                format!("{have} status {}", state.name())
            });
        }
        for (at, (_, function)) in COUNTED.iter().enumerate() {
            let counts = comm.answers.iter().map(|answer| (answer.counts[at], answer.rank));
            let counts: Vec<_> = counts.collect();
            if counts.iter().all(|(count, _)| Some(*count) == counts.first().map(|c| c.0)) {
                continue;
            }
            let differ = "Communicator ranks have different";
            self.line(format_args!("  {differ} {function} operation counts"));
            self.breakdown(comm, counts, total, |calls, ranks| {
                let have = if ranks == 1 { "has" } else { "have" };
                match calls {
                    0 => format!("{have} not launched any operations"),
                    _ => format!("{have} launched up to operation {calls}"),
                }
            });
            self.line("");
        }
    }

    fn causes(&mut self) {
        let survey = self.survey;
        let mut titles = HashMap::new();
        for (number, group) in self.groups.iter().enumerate() {
            for (place, &comm) in group.comms.iter().enumerate() {
                titles.insert(survey.comms[comm].number, (number, place));
            }
        }
        for cause in &survey.causes {
            let title = titles.get(&cause.comm);
            let title = title.map(|(group, at)| format!("#{group}-{at} ({:016x}) ", cause.comm));
            self.line(format_args!("{}CAUSE", title.unwrap_or_default()));
            self.line(format_args!("  {}\n", cause.text));
        }
    }
}

/// Returns the line about a rank, with its place.
fn rank_line(rank: u32, words: &str, comm: &CommState) -> String {
    let blank = if words.is_empty() { "" } else { " " };
    let place = match comm.place_of(rank) {
        None => "[process information not found]".to_owned(),
        Some(Place { host, pid, device }) => {
            format!("GPU {device} managed by process {pid} on node {host}")
        }
    };
    format!("  Rank {rank}{blank}{words} -- {place}")
}

fn error_name(code: u32) -> &'static str {
    match code {
        1 => "Unhandled CUDA error",
        2 => "System error",
        3 => "Internal error",
        4 => "Invalid argument",
        5 => "Invalid usage",
        6 => "Remote process error",
        7 => "NCCL operation in progress",
        _ => "Unexpected error",
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn a_job_without_troubles_is_told_as_by_nccl() {
        let text = report(&samples::healthy(), false);
        assert_eq!(text, include_str!("samples/healthy.txt"));
        assert_eq!(text, report(&samples::healthy(), true));
    }

    #[test]
    fn what_is_missing_is_told_as_by_nccl() {
        assert_eq!(report(&samples::incomplete(), false), include_str!("samples/incomplete.txt"));
    }

    #[test]
    fn errors_differing_states_and_counts_are_told_as_by_nccl() {
        assert_eq!(report(&samples::differing(), false), include_str!("samples/differing.txt"));
        assert_eq!(report(&samples::differing(), true), include_str!("samples/verbose.txt"));
    }

    #[test]
    fn a_job_of_no_regular_shape_is_told_as_by_nccl() {
        let text = report(&samples::irregular(), false);
        assert_eq!(text, include_str!("samples/irregular.txt"));
        let empty = report(&Survey::new(&[], &[], Vec::new(), 0.0), false);
        assert!(empty.contains("=============\n\nNo communicator data collected!\n\nErrors\n"));
        assert!(empty.ends_with("Errors\n======\n\nWarnings\n========\n\n"), "{empty}");
    }

    #[test]
    fn a_job_of_very_many_ranks_is_told_without_a_search_for_each() {
        // Such a search would take minutes.
        let text = report(&samples::vast(), true);
        let found = text.lines().filter(|line| line.starts_with("  Rank ")).count();
        assert_eq!(found, 20_000);
        let last = "  Rank 59999 -- GPU 7 managed by process 59999 on node 10.0.0.2\n";
        assert!(text.contains(last), "{}", &text[..2000]);
    }

    #[test]
    fn outliers_are_few_and_a_small_part() {
        let lists = |verbose, total, count| Lister { verbose, total }.lists(count);
        let cases = [(Some(2), 1), (Some(8), 2), (Some(40), 10), (None, 10)];
        assert!(cases.iter().all(|&(total, count)| lists(false, total, count)));
        let cases = [(Some(7), 2), (Some(100), 11), (None, 11)];
        assert!(!cases.iter().any(|&(total, count)| lists(false, total, count)));
        let cases = [(Some(2), 1), (Some(100), 49), (None, 1000)];
        assert!(cases.iter().all(|&(total, count)| lists(true, total, count)));
        assert!(!lists(true, Some(100), 50));
    }
}
