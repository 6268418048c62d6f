//! The clocks of hosts, compared by what their ranks record: a collective in which every rank needs
//! what every other one has ends at about the same time everywhere, and nowhere before all have
//! called it.

use crate::op::descriptor::Descriptor;
use crate::recorder::Kind;
use crate::recorder::read::{Process, RankReport};
use oxccl_plan::Collective;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::net::IpAddr;

/// Collectives in which every rank needs what every other one has.
const TOGETHER: [Collective; 4] =
    [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];
/// The least time in which two clocks drift apart by 1 ns: 100 parts per million.
const DRIFT: u64 = 10_000;

/// A host as processes name it: by its name, and by the address by which others reach it.
pub(super) type Host<'a> = (&'a str, &'a str);

/// Returns the host of each process. One that only processes of its own host reach is on the same
/// host as those with its name that others reach, if these have one address.
pub(super) fn hosts(processes: &[Process]) -> Vec<Host<'_>> {
    let is_reached = |address: &str| {
        address.parse::<IpAddr>().map_or(!address.is_empty(), |address| !address.is_loopback())
    };
    let mut reached: HashMap<&str, HashSet<&str>> = HashMap::new();
    for process in processes.iter().filter(|process| is_reached(&process.address)) {
        reached.entry(&process.host).or_default().insert(&process.address);
    }
    let of = |process| {
        let Process { host, address, .. }: &Process = process;
        let only = reached.get(&host[..]).filter(|all| all.len() == 1);
        let only = only.and_then(|all| all.iter().next().copied());
        (&host[..], only.filter(|_| !is_reached(address)).unwrap_or(address))
    };
    processes.iter().map(of).collect()
}

/// The clock of a process's host beside that of another process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The place of that process: the first one of those whose clocks can be compared.
    pub beside: usize,
    /// By how much the clock is ahead of the other one, in ns.
    pub ahead_ns: i64,
    /// About by how much this may be wrong, in ns: the time that collectives take from the last
    /// call to the first end, what the clocks drift apart meanwhile, and the errors of GPUs' times.
    pub error_ns: u64,
}

/// The latest call, on GPUs beginning, and the first end of a collective on a host, by its clock,
/// and by how much they may be wrong, in ns.
#[derive(Clone, Copy)]
struct Times {
    called_ns: i64,
    ended_ns: i64,
    error_ns: i64,
}

/// A comparison of the clocks of two hosts by one collective, in ns.
#[derive(Clone, Copy)]
struct Sight {
    /// By how much later it ended there.
    ahead_ns: i64,
    /// The least and the most by which that clock can be ahead.
    bounds: (i64, i64),
    /// The time by the first clock.
    at_ns: i64,
    /// The time from the last call to the first end, on the host where that is shorter: ranks of
    /// the other one may have waited. With the errors of both.
    takes_ns: u64,
}

impl Sight {
    fn new(a: Times, b: Times) -> Self {
        let error_ns = a.error_ns.saturating_add(b.error_ns);
        let bounds = (
            b.called_ns.saturating_sub(a.ended_ns).saturating_sub(error_ns),
            b.ended_ns.saturating_sub(a.called_ns).saturating_add(error_ns),
        );
        let ahead_ns = b.ended_ns.saturating_sub(a.ended_ns);
        let takes_ns =
            [a, b].map(|of| u64::try_from(of.ended_ns.saturating_sub(of.called_ns)).unwrap_or(0));
        let takes_ns = takes_ns[0].min(takes_ns[1]).saturating_add_signed(error_ns);
        Self { ahead_ns, bounds, at_ns: a.ended_ns, takes_ns }
    }

    /// Returns by how much the clocks may drift apart from one collective to another.
    fn drift_ns(&self, other: &Self) -> u64 {
        self.at_ns.abs_diff(other.at_ns) / DRIFT
    }

    /// Returns whether what another collective tells can be, as far as this one tells.
    fn allows(&self, other: &Self) -> bool {
        let (least, most) = self.bounds;
        let drift_ns = i64::try_from(self.drift_ns(other)).unwrap_or(i64::MAX);
        let range = least.saturating_sub(drift_ns)..=most.saturating_add(drift_ns);
        range.contains(&other.ahead_ns)
    }
}

/// Returns by how much a clock is ahead by what collectives tell, and about by how much that may be
/// wrong; `None` where most of them contradict it, as of ranks that count differently.
fn ahead_ns(mut sights: Vec<Sight>) -> Option<(i64, u64)> {
    sights.sort_by_key(|sight| sight.ahead_ns);
    let middle = *sights.get(sights.len() / 2)?;
    let allow = sights.iter().filter(|sight| sight.allows(&middle)).count();
    let mut takes: Vec<u64> = sights.iter().map(|sight| sight.takes_ns).collect();
    let mut drifts: Vec<u64> = sights.iter().map(|sight| sight.drift_ns(&middle)).collect();
    let error_ns = median(&mut takes).saturating_add(median(&mut drifts));
    (2 * allow > sights.len()).then_some((middle.ahead_ns, error_ns))
}

/// Returns the middle one of some values.
fn median(values: &mut [u64]) -> u64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable(middle).1
}

/// Returns the clocks of the hosts of some processes, as far as the collectives tell that ranks on
/// several hosts have recorded to their end.
pub fn clocks(processes: &[Process]) -> Vec<Clock> {
    let hosts = hosts(processes);
    let mut ways: BTreeMap<Host<'_>, Vec<(Host<'_>, i64, u64)>> = BTreeMap::new();
    for ((from, to), sights) in pairs(&collectives(processes, &hosts)) {
        if let Some((ahead_ns, error_ns)) = ahead_ns(sights) {
            ways.entry(from).or_default().push((to, ahead_ns, error_ns));
            ways.entry(to).or_default().push((from, ahead_ns.saturating_neg(), error_ns));
        }
    }
    let mut known: HashMap<Host<'_>, Clock> = HashMap::new();
    for (beside, &first) in hosts.iter().enumerate() {
        // What no collective connects with hosts before it has a clock of its own.
        if known.contains_key(&first) {
            continue;
        }
        // The ways with the least error come first.
        let mut reached = BinaryHeap::from([(Reverse(0u64), first, 0i64)]);
        while let Some((Reverse(error_ns), from, ahead_ns)) = reached.pop() {
            if known.contains_key(&from) {
                continue;
            }
            known.insert(from, Clock { beside, ahead_ns, error_ns });
            for &(to, more_ns, more_error_ns) in ways.get(&from).into_iter().flatten() {
                let error_ns = error_ns.saturating_add(more_error_ns);
                reached.push((Reverse(error_ns), to, ahead_ns.saturating_add(more_ns)));
            }
        }
    }
    hosts.iter().map(|host| known[host]).collect()
}

/// Returns the times of the collectives of which the end is known, by host.
fn collectives<'a>(processes: &[Process], hosts: &[Host<'a>]) -> Vec<BTreeMap<Host<'a>, Times>> {
    let mut all: HashMap<_, BTreeMap<Host<'_>, Times>> = HashMap::new();
    for (process, host) in processes.iter().zip(hosts) {
        for rank in &process.ranks {
            // An end may be that of an operation that has failed.
            let failed_ns = rank.failure.since_ns.map_or(i64::MAX, |since| since as i64);
            for (number, own) in ended(rank).filter(|(_, of)| of.ended_ns < failed_ns) {
                let hosts = all.entry((rank.comm, number)).or_default();
                let times = hosts.entry(*host).or_insert(own);
                times.called_ns = times.called_ns.max(own.called_ns);
                times.ended_ns = times.ended_ns.min(own.ended_ns);
                times.error_ns = times.error_ns.max(own.error_ns);
            }
        }
    }
    all.into_values().collect()
}

/// Returns the collectives of a rank that say something of clocks and have ended: their numbers,
/// and their times. Kernels on GPUs have numbers, and a memory, of their own.
fn ended(rank: &RankReport) -> impl Iterator<Item = (u64, Times)> {
    let times = |called_ns: u64, ended_ns: Option<u64>, error_ns: u64| {
        let [called_ns, ended_ns, error_ns] = [called_ns, ended_ns?, error_ns].map(|ns| ns as i64);
        Some(Times { called_ns, ended_ns, error_ns })
    };
    let is_on_host = move |_: &&_| rank.gpu.is_none();
    let operations = rank.operations.iter().filter(is_on_host);
    let operations = operations.filter(|op| op.kind == Kind::Collective && waits(op.descriptor));
    let on_host = operations.map(move |op| (op.of_kind, times(op.called_ns, op.ended_ns, 0)));
    let kernels = rank.kernels.iter().filter(|run| waits(run.descriptor));
    let on_gpu = kernels.filter_map(move |run| {
        Some((run.number?, times(run.begun_ns, run.ended_ns, rank.kernels_error_ns)))
    });
    on_host.chain(on_gpu).filter_map(|(number, times)| Some((number, times?)))
}

/// Returns whether every rank waits in a collective for every other one: it has elements. A batch
/// is taken to have some.
fn waits(of: Descriptor) -> bool {
    let kind = match of.call() {
        Some((kind, .., count)) => Some(kind).filter(|_| count > 0),
        None => of.batched().map(|(kind, _)| kind),
    };
    kind.is_some_and(|kind| TOGETHER.contains(&kind))
}

/// Returns what collectives tell of the first host of each beside its other ones.
fn pairs<'a>(all: &[BTreeMap<Host<'a>, Times>]) -> BTreeMap<(Host<'a>, Host<'a>), Vec<Sight>> {
    let mut pairs: BTreeMap<_, Vec<Sight>> = BTreeMap::new();
    for hosts in all {
        let mut hosts = hosts.iter();
        let Some((&from, &a)) = hosts.next() else { continue };
        for (&to, &b) in hosts {
            pairs.entry((from, to)).or_default().push(Sight::new(a, b));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::super::nccl::samples::{self, call};
    use super::*;
    use crate::recorder::read::KernelReport;
    use crate::recorder::wire;

    const MS: u64 = 1_000_000;
    type Spans = [(u64, u64); 3];

    /// A process on a host, with collectives that were called and ended at these times in ms.
    fn process(host: &str, shift_ms: u64, spans: Option<Spans>) -> Process {
        let mut rank = RankReport { gpu: None, ..samples::rank(7, 0, 2, 0) };
        rank.operations = (0..3).map(|number| call(number, 1, 0)).collect();
        for (number, op) in rank.operations.iter_mut().enumerate() {
            let time = |ms: u64| (ms + shift_ms) * MS;
            if let Some(spans) = spans {
                let (called, ended) = spans[number];
                (op.called_ns, op.ended_ns) = (time(called), Some(time(ended)));
            }
        }
        Process { host: host.to_owned(), ..samples::process(5, "", vec![rank]) }
    }

    fn ahead_ms(processes: &[Process]) -> Vec<i64> {
        clocks(processes).iter().map(|clock| clock.ahead_ns / MS as i64).collect()
    }

    const HERE: Spans = [(100, 110), (120, 122), (140, 141)];
    /// The same with another host's calls: the second one came late to the last two.
    const THERE: Spans = [(101, 110), (121, 122), (140, 141)];

    #[test]
    fn clocks_are_compared_by_ends_within_what_is_possible() {
        let here = process("a", 0, Some(HERE));
        let beside_here = |other: Process| clocks(&[here.clone(), other])[1];
        let clock = beside_here(process("b", 5000, Some(THERE)));
        assert_eq!((clock.beside, clock.ahead_ns), (0, 5000 * MS as i64));
        // The time that they take on the host of the late rank, and next to no drift.
        assert!((MS..2 * MS).contains(&clock.error_ns), "{clock:?}");
        // One that ends late there, as for want of a processor, counts as the others do.
        let late = [(101, 190), THERE[1], THERE[2]];
        assert_eq!(ahead_ms(&[here.clone(), process("b", 0, Some(late))]), [0, 0]);
        // What is open, and what one of them has not recorded, tells nothing; nor does what cannot
        // be, as of ranks that count differently.
        let odd = [(500, 510), (10, 20), (20, 30)];
        for other in [process("b", 0, None), process("b", 0, Some(odd))] {
            assert_eq!(beside_here(other), Clock { beside: 1, ahead_ns: 0, error_ns: 0 });
        }
        // A failed operation has an end, which is that of its failure.
        let mut failed = process("b", 0, Some(THERE.map(|(called, _)| (called, called + 700))));
        failed.ranks[0].failure.since_ns = Some(101 * MS);
        assert_eq!(beside_here(failed).beside, 1);
    }

    #[test]
    fn clocks_may_drift_apart_meanwhile() {
        const SECOND: u64 = 1000 * MS;
        let of = |host: &str, drift: u64| {
            let mut process = process(host, 0, Some(HERE));
            let rank = &mut process.ranks[0];
            rank.operations = (0..64).map(|number| call(number, 1, 0)).collect();
            for (number, op) in (1u64..).zip(&mut rank.operations) {
                op.called_ns = number * SECOND + number * drift;
                op.ended_ns = Some(op.called_ns + 50_000);
            }
            process
        };
        let [_, clock] = clocks(&[of("a", 0), of("b", 20_000)])[..] else { panic!("two") };
        assert_eq!((clock.beside, clock.ahead_ns), (0, 33 * 20_000));
        assert!(clock.error_ns > 640_000, "{clock:?}");
    }

    #[test]
    fn clocks_are_compared_over_other_hosts_on_the_best_way() {
        let of = |host: &str, comms: &[u64], shift_ms: u64| {
            let mut process = process(host, shift_ms, Some(THERE));
            let rank = process.ranks.remove(0);
            let ranks = comms.iter().map(|&comm| RankReport { comm, ..rank.clone() });
            Process { ranks: ranks.collect(), ..process }
        };
        let all = [of("b", &[1, 9], 0), of("c", &[1, 2], 7000), of("a", &[2], 9000)];
        assert_eq!(ahead_ms(&all), [0, 7000, 9000]);
        let alone = of("d", &[8], 300);
        let all = [alone, of("b", &[1], 0), of("c", &[1], 5000), of("b", &[3], 0)];
        assert_eq!(ahead_ms(&all), [0, 0, 5000, 0]);
        let beside: Vec<_> = clocks(&all).iter().map(|clock| clock.beside).collect();
        assert_eq!(beside, [0, 1, 1, 1]);
        // A way of two hosts would add up their errors.
        let all = [of("a", &[1, 2], 0), of("b", &[1, 3], 5), of("c", &[2, 3], 7)];
        let errors: Vec<_> = clocks(&all).iter().map(|clock| clock.error_ns / MS).collect();
        assert_eq!((ahead_ms(&all), errors), (vec![0, 5, 7], vec![0, 1, 1]));
    }

    #[test]
    fn clocks_of_hosts_with_gpus_are_compared_by_what_kernels_tell() {
        // Of the latest calls none was told of; a process on another host tells of few.
        let of = |host: &str, shift_ms: u64, error_ns: u64| {
            let mut process = process(host, shift_ms, Some(HERE));
            let rank = &mut process.ranks[0];
            let run = |(number, (begun, ended)): (u64, (u64, u64))| KernelReport {
                number: Some(32 * number),
                call: None,
                what: String::new(),
                descriptor: rank.operations[0].descriptor,
                begun_ns: (begun + shift_ms) * MS,
                ended_ns: Some((ended + shift_ms) * MS),
            };
            rank.kernels = (0..).zip(HERE).map(run).collect();
            rank.operations.iter_mut().for_each(|op| op.ended_ns = None);
            (rank.gpu, rank.kernels_error_ns) = (Some(0), error_ns);
            wire::decode(&wire::encode(&process)).expect("a process")
        };
        let [_, clock] = clocks(&[of("a", 0, 40_000), of("b", 5000, 7000)])[..] else {
            panic!("two")
        };
        let error_ns = 2 * MS + 47_000 + 2 * MS / DRIFT;
        assert_eq!((clock.beside, clock.ahead_ns), (0, 5000 * MS as i64));
        assert!(clock.error_ns.abs_diff(error_ns) < 10_000, "{clock:?}");
    }

    #[test]
    fn rooted_collectives_tell_nothing() {
        let mut processes = [process("a", 0, Some(HERE)), process("b", 5000, Some(HERE))];
        assert_eq!(ahead_ms(&processes), [0, 5000]);
        for op in processes.iter_mut().flat_map(|process| &mut process.ranks[0].operations) {
            op.descriptor = Descriptor::from_words(Collective::Broadcast as u32, 1);
        }
        assert_eq!(ahead_ms(&processes), [0, 0]);
    }

    #[test]
    fn who_is_only_reached_from_its_own_host_is_on_that_with_its_name() {
        let of = |host: &str, address: &str| Process {
            address: address.to_owned(),
            ..process(host, 0, None)
        };
        let all = [of("a", "10.0.0.1"), of("a", "127.0.0.1"), of("a", ""), of("b", "127.0.0.1")];
        assert_eq!(
            hosts(&all),
            [("a", "10.0.0.1"); 3].into_iter().chain([("b", "127.0.0.1")]).collect::<Vec<_>>()
        );
        // Containers may have one name.
        let all = [of("a", "10.0.0.1"), of("a", "10.0.0.2"), of("a", "127.0.0.1")];
        let expected = [("a", "10.0.0.1"), ("a", "10.0.0.2"), ("a", "127.0.0.1")];
        assert_eq!(hosts(&all), expected);
    }
}
