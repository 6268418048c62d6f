//! The clocks of hosts, compared by what their ranks record: a collective in which every rank needs
//! what every other one has ends at about the same time everywhere, and nowhere before it has begun
//! everywhere.

use crate::recorder::Kind;
use crate::recorder::read::{OperationReport, Process, RankReport};
use oxccl_plan::Collective;
use std::collections::{BTreeMap, HashMap};

/// Collectives in which every rank needs what every other one has.
const TOGETHER: [Collective; 4] =
    [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];

/// A host as processes name it.
type Host<'a> = (&'a str, &'a str);

fn host_of(process: &Process) -> Host<'_> {
    (&process.host, &process.address)
}

/// The clock of a process's host beside that of another process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The place of that process: the first one of those whose clocks can be compared.
    pub beside: usize,
    /// By how much the clock is ahead of the other one, in ns.
    pub ahead_ns: i64,
    /// About by how much this may be wrong, in ns: the time that the collectives took.
    pub error_ns: u64,
}

/// The latest beginning and the first end of a collective on a host, by its clock, in ns.
#[derive(Clone, Copy)]
struct Times {
    begun_ns: i64,
    ended_ns: i64,
}

impl Times {
    fn lasts_ns(self) -> u64 {
        u64::try_from(self.ended_ns.saturating_sub(self.begun_ns)).unwrap_or(0)
    }
}

/// What two hosts tell of the clock of the second one beside the first one's, in ns.
struct Pair {
    /// The least and the most by which it can be ahead.
    least: i64,
    most: i64,
    /// By how much later each collective ended there.
    ends: Vec<i64>,
    /// The time that each collective took from when all had begun.
    lasts: Vec<u64>,
}

impl Pair {
    fn add(&mut self, a: Times, b: Times) {
        self.least = self.least.max(b.begun_ns.saturating_sub(a.ended_ns));
        self.most = self.most.min(b.ended_ns.saturating_sub(a.begun_ns));
        self.ends.push(b.ended_ns.saturating_sub(a.ended_ns));
        self.lasts.push(a.lasts_ns().min(b.lasts_ns()));
    }

    /// Returns by how much the second clock is ahead, and about by how much that may be wrong;
    /// `None` where what they tell cannot be, as of ranks that count differently.
    fn ahead_ns(&mut self) -> Option<(i64, u64)> {
        let is_possible = self.least <= self.most;
        is_possible
            .then(|| (median(&mut self.ends).clamp(self.least, self.most), median(&mut self.lasts)))
    }
}

/// Returns the middle one of some values.
fn median<T: Ord + Copy>(values: &mut [T]) -> T {
    let middle = values.len() / 2;
    *values.select_nth_unstable(middle).1
}

/// Returns the clocks of the hosts of some processes, as far as the collectives tell that ranks on
/// several hosts have recorded from beginning to end.
pub fn clocks(processes: &[Process]) -> Vec<Clock> {
    let mut ways: BTreeMap<Host<'_>, Vec<(Host<'_>, i64, u64)>> = BTreeMap::new();
    for ((from, to), mut pair) in pairs(&collectives(processes)) {
        if let Some((ahead_ns, error_ns)) = pair.ahead_ns() {
            ways.entry(from).or_default().push((to, ahead_ns, error_ns));
            ways.entry(to).or_default().push((from, ahead_ns.saturating_neg(), error_ns));
        }
    }
    let mut known: HashMap<Host<'_>, Clock> = HashMap::new();
    let hosts: Vec<_> = processes.iter().map(host_of).collect();
    for (beside, &first) in hosts.iter().enumerate() {
        // What no collective connects with hosts before it has a clock of its own.
        if known.contains_key(&first) {
            continue;
        }
        known.insert(first, Clock { beside, ahead_ns: 0, error_ns: 0 });
        let mut reached = vec![first];
        while let Some(from) = reached.pop() {
            let clock = known[&from];
            for &(to, ahead_ns, error_ns) in ways.get(&from).into_iter().flatten() {
                known.entry(to).or_insert_with(|| {
                    reached.push(to);
                    let ahead_ns = clock.ahead_ns.saturating_add(ahead_ns);
                    Clock { beside, ahead_ns, error_ns: clock.error_ns.saturating_add(error_ns) }
                });
            }
        }
    }
    hosts.iter().map(|host| known[host]).collect()
}

/// Returns when a collective began and ended, if that is recorded: on GPUs by its kernel.
fn times(rank: &RankReport, op: &OperationReport) -> Option<Times> {
    let run = || rank.kernels.iter().find(|run| run.call == Some(op.number));
    let by_kernel = || run().and_then(|run| Some((run.begun_ns, run.ended_ns?)));
    let (begun_ns, ended_ns) = op.begun_ns.zip(op.ended_ns).or_else(by_kernel)?;
    Some(Times { begun_ns: begun_ns as i64, ended_ns: ended_ns as i64 })
}

/// Returns the times of the collectives of which beginning and end are known, by host.
fn collectives(processes: &[Process]) -> Vec<BTreeMap<Host<'_>, Times>> {
    let mut all: HashMap<_, BTreeMap<Host<'_>, Times>> = HashMap::new();
    for process in processes {
        for rank in &process.ranks {
            for op in rank.operations.iter().filter(|op| op.kind == Kind::Collective) {
                let collective = op.descriptor.call().map(|(collective, ..)| collective);
                let together = collective.is_some_and(|of| TOGETHER.contains(&of)) && op.bytes > 0;
                let Some(own) = times(rank, op).filter(|_| together) else { continue };
                let hosts = all.entry((rank.comm, op.of_kind)).or_default();
                let times = hosts.entry(host_of(process)).or_insert(own);
                times.begun_ns = times.begun_ns.max(own.begun_ns);
                times.ended_ns = times.ended_ns.min(own.ended_ns);
            }
        }
    }
    all.into_values().collect()
}

/// Returns what collectives tell of the first host of each beside its other ones.
fn pairs<'a>(all: &[BTreeMap<Host<'a>, Times>]) -> BTreeMap<(Host<'a>, Host<'a>), Pair> {
    let mut pairs = BTreeMap::new();
    for hosts in all {
        let mut hosts = hosts.iter();
        let Some((&from, &a)) = hosts.next() else { continue };
        for (&to, &b) in hosts {
            let none =
                || Pair { least: i64::MIN, most: i64::MAX, ends: Vec::new(), lasts: Vec::new() };
            pairs.entry((from, to)).or_insert_with(none).add(a, b);
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::descriptor::Descriptor;
    use crate::ras::nccl::samples::{self, call};
    use crate::recorder::read::KernelReport;

    const MS: u64 = 1_000_000;
    type Spans = [(u64, u64); 3];

    /// A process on a host, with collectives that began and ended at these times in ms.
    fn process(host: &str, shift_ms: u64, spans: Option<Spans>) -> Process {
        let mut rank = samples::rank(7, 0, 2, 0);
        rank.operations = (0..3).map(|number| call(number, 1, 0)).collect();
        for (number, op) in rank.operations.iter_mut().enumerate() {
            let span = spans.map(|spans| spans[number]);
            let time = |ms: u64| (ms + shift_ms) * MS;
            (op.begun_ns, op.ended_ns) =
                span.map(|(begun, ended)| (time(begun), time(ended))).unzip();
        }
        Process { host: host.to_owned(), ..samples::process(5, "", vec![rank]) }
    }

    fn ahead_ms(processes: &[Process]) -> Vec<i64> {
        clocks(processes).iter().map(|clock| clock.ahead_ns / MS as i64).collect()
    }

    const HERE: Spans = [(100, 110), (120, 122), (140, 141)];
    /// The same with another host's beginnings: the second one came late to the last two.
    const THERE: Spans = [(101, 110), (121, 122), (140, 141)];

    #[test]
    fn clocks_are_compared_by_ends_within_what_is_possible() {
        let here = process("a", 0, Some(HERE));
        let beside_here = |other: Process| clocks(&[here.clone(), other])[1];
        let clock = beside_here(process("b", 5000, Some(THERE)));
        let expected = Clock { beside: 0, ahead_ns: 5000 * MS as i64, error_ns: MS };
        assert_eq!(clock, expected);
        // One that ends late there, as for want of a processor, counts as the others do.
        let late = [(101, 190), THERE[1], THERE[2]];
        assert_eq!(ahead_ms(&[here.clone(), process("b", 0, Some(late))]), [0, 0]);
        // Nothing ends before it has begun everywhere.
        let ends = [(101, 113), (121, 125), (140, 144)];
        assert_eq!(ahead_ms(&[here.clone(), process("b", 0, Some(ends))]), [0, 3]);
        let ends = [(100, 109), (117, 119), (140, 149)];
        assert_eq!(ahead_ms(&[here.clone(), process("b", 0, Some(ends))]), [0, -1]);
        // What is open, and what one of them has not recorded, tells nothing; nor does what cannot
        // be, as of ranks that count differently.
        let odd = [(500, 510), (10, 20), (20, 30)];
        for other in [process("b", 0, None), process("b", 0, Some(odd))] {
            assert_eq!(beside_here(other), Clock { beside: 1, ahead_ns: 0, error_ns: 0 });
        }
    }

    #[test]
    fn clocks_are_compared_over_other_hosts() {
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
    }

    #[test]
    fn kernels_tell_when_collectives_of_gpus_begin_and_end() {
        let on_gpu = |host: &str, shift_ms: u64| {
            let mut process = process(host, shift_ms, Some(HERE));
            let rank = &mut process.ranks[0];
            let run = |op: &mut OperationReport| KernelReport {
                number: Some(op.of_kind),
                call: Some(op.number),
                what: op.what.clone(),
                begun_ns: op.begun_ns.take().expect("it began"),
                ended_ns: op.ended_ns.take(),
            };
            rank.kernels = rank.operations.iter_mut().map(run).collect();
            process
        };
        assert_eq!(ahead_ms(&[on_gpu("a", 0), on_gpu("b", 70)]), [0, 70]);
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
}
