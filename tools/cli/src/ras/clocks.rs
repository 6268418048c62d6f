//! The clocks of hosts, compared by what their ranks record: a collective in which every rank needs
//! what every other one has ends nowhere before it has begun everywhere.

use oxccl_plan::Collective;
use oxccl_runtime::recorder::Kind;
use oxccl_runtime::recorder::read::Process;
use std::collections::{BTreeMap, HashMap};

/// Collectives in which every rank needs what every other one has.
const TOGETHER: [Collective; 4] =
    [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];

/// A host as processes name it.
type Host<'a> = (&'a str, &'a str);

fn host_of(process: &Process) -> Host<'_> {
    (&process.host, &process.address)
}

/// The latest beginning and the first end of a collective on a host, by its clock, in ns.
#[derive(Clone, Copy)]
struct Times {
    begun_ns: i64,
    ended_ns: i64,
}

/// The least and the most by which a clock may be ahead of another one, in ns.
#[derive(Clone, Copy)]
struct Bounds {
    least: i64,
    most: i64,
}

/// Returns by how much the clock of each process's host is ahead of that of the first process, in
/// ns: as little as the collectives that both have recorded from beginning to end allow; 0 where
/// they tell nothing.
pub(super) fn ahead_ns(processes: &[Process]) -> Vec<i64> {
    let bounds = bounds(&collectives(processes));
    let mut known: HashMap<Host<'_>, i64> = HashMap::new();
    let hosts: Vec<_> = processes.iter().map(host_of).collect();
    for &first in &hosts {
        // What no collective connects with hosts before it has a clock of its own.
        if known.contains_key(&first) {
            continue;
        }
        known.insert(first, 0);
        let mut reached = vec![first];
        while let Some(from) = reached.pop() {
            let others = bounds.range((from, Host::default())..);
            for (&(_, to), of) in others.take_while(|((of, _), _)| *of == from) {
                if of.least <= of.most && !known.contains_key(&to) {
                    known.insert(to, known[&from].saturating_add(0.clamp(of.least, of.most)));
                    reached.push(to);
                }
            }
        }
    }
    hosts.iter().map(|host| known[host]).collect()
}

/// Returns the times of the collectives of which beginning and end are known, by host.
fn collectives(processes: &[Process]) -> Vec<BTreeMap<Host<'_>, Times>> {
    let mut all: HashMap<_, BTreeMap<Host<'_>, Times>> = HashMap::new();
    for process in processes {
        for rank in &process.ranks {
            for op in rank.operations.iter().filter(|op| op.kind == Kind::Collective) {
                let collective = op.descriptor.call().map(|(collective, ..)| collective);
                let together = collective.is_some_and(|of| TOGETHER.contains(&of));
                let times = op.begun_ns.zip(op.ended_ns).filter(|_| together && op.bytes > 0);
                let Some((begun_ns, ended_ns)) = times else { continue };
                let own = Times { begun_ns: begun_ns as i64, ended_ns: ended_ns as i64 };
                let hosts = all.entry((rank.comm, op.of_kind)).or_default();
                let times = hosts.entry(host_of(process)).or_insert(own);
                times.begun_ns = times.begun_ns.max(own.begun_ns);
                times.ended_ns = times.ended_ns.min(own.ended_ns);
            }
        }
    }
    all.into_values().collect()
}

/// Returns the bounds of how much the clock of the second host is ahead of the first one's.
fn bounds<'a>(all: &[BTreeMap<Host<'a>, Times>]) -> BTreeMap<(Host<'a>, Host<'a>), Bounds> {
    let mut bounds = BTreeMap::new();
    for hosts in all {
        for (&from, a) in hosts {
            for (&to, b) in hosts.iter().filter(|(to, _)| **to != from) {
                let none = Bounds { least: i64::MIN, most: i64::MAX };
                let of = bounds.entry((from, to)).or_insert(none);
                of.least = of.least.max(b.begun_ns.saturating_sub(a.ended_ns));
                of.most = of.most.min(b.ended_ns.saturating_sub(a.begun_ns));
            }
        }
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ras::sample;
    use oxccl_runtime::op::descriptor::Descriptor;
    use serde_json::json;

    const MS: u64 = 1_000_000;

    /// A process on a host, with collectives that began and ended at these times.
    fn process(host: &str, times: [Option<(u64, u64)>; 3]) -> Process {
        let mut process = sample::on_gpu("collective", (MS, 900 * MS), &json!([]), &json!(null));
        process.host = host.to_owned();
        for (op, times) in process.ranks[0].operations.iter_mut().zip(times) {
            (op.begun_ns, op.ended_ns) = times.unzip();
        }
        process
    }

    #[test]
    fn clocks_differ_by_as_little_as_collectives_allow() {
        let ms =
            |times: [(u64, u64); 3]| times.map(|(begun, ended)| Some((begun * MS, ended * MS)));
        let here = process("a", ms([(100, 110), (120, 122), (140, 141)]));
        let ahead = |other: &Process| ahead_ns(&[here.clone(), other.clone()]);
        let with = |shift: u64, times: [(u64, u64); 3]| {
            process("b", ms(times.map(|(begun, ended)| (begun + shift, ended + shift))))
        };
        let same = [(101, 110), (121, 122), (139, 141)];
        assert_eq!(ahead(&with(0, same)), [0, 0]);
        // 5 s ahead, or less by what the shortest one took.
        let [first, other] = ahead(&with(5000, same))[..] else { panic!("two") };
        assert_eq!((first, other), (0, 4999 * MS as i64));
        // What is open, and what one of them has not recorded, tells nothing.
        assert_eq!(ahead(&process("b", [None; 3])), [0, 0]);
        // What cannot be, as of ranks that count differently, tells nothing either.
        assert_eq!(ahead(&process("b", ms([(500, 510), (10, 20), (20, 30)]))), [0, 0]);
        // Over a third host; the first and the last one contradict each other.
        let of = |host: &str, comm: u64, shift: u64| {
            let mut process = with(shift, same);
            (process.host, process.ranks[0].comm) = (host.to_owned(), comm);
            process
        };
        let both = |mut process: Process, other: Process| {
            process.ranks.extend(other.ranks);
            process
        };
        let mut odd = of("a", 9, 0);
        odd.ranks[0].operations[2].ended_ns = Some(1);
        let b = both(of("b", 1, 0), of("b", 9, 0));
        let c = both(of("c", 1, 7000), of("c", 2, 7000));
        let all = ahead_ns(&[b, c, both(of("a", 2, 9000), odd)]);
        assert_eq!(all, [0, 6999 * MS as i64, (6999 + 1999) * MS as i64]);
        // Where nobody connects hosts, each has its own clock.
        let (second, third) = (with(5000, same), process("c", [None; 3]));
        let all = ahead_ns(&[third, here.clone(), second, here.clone()]);
        assert_eq!(all, [0, 0, 4999 * MS as i64, 0]);
    }

    #[test]
    fn rooted_collectives_tell_nothing() {
        let mut processes = [0, 5000].map(|ms| {
            let time = Some(((100 + ms) * MS, (101 + ms) * MS));
            process(if ms == 0 { "a" } else { "b" }, [time, None, None])
        });
        assert_ne!(ahead_ns(&processes), [0, 0]);
        for process in &mut processes {
            let broadcast = Descriptor::from_words(Collective::Broadcast as u32, 1);
            process.ranks[0].operations[0].descriptor = broadcast;
        }
        assert_eq!(ahead_ns(&processes), [0, 0]);
    }
}
