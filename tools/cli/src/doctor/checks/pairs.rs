//! Checks of the exchanges between every two ranks.

use super::Check;
use crate::doctor::rates::Rate;
use serde::{Deserialize, Serialize};

/// The figures of two ranks that exchanged data alone, of the fastest of several rounds: what else
/// runs on the machine disturbs one of them at times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::doctor) struct Pair {
    pub(in crate::doctor) pair: [u32; 2],
    /// The time of an exchange of 8 bytes.
    pub(in crate::doctor) time_us: f64,
    /// The bandwidth of large data in each direction, in GB/s.
    pub(in crate::doctor) algbw: f64,
    /// The wrong elements.
    pub(in crate::doctor) wrong: u64,
}

/// A row of `oxccl perf --json`, as far as it matters here.
#[derive(Deserialize)]
struct Row {
    pair: [u32; 2],
    bytes: u64,
    time_us_min: f64,
    wrong: u64,
}

/// Returns the pairs in the output of `oxccl perf --matrix --json -`. Each row is a line, and other
/// lines are left out, so that what ranks print besides does no harm, nor a run that was cut off. A
/// pair has rows of two sizes.
pub(in crate::doctor) fn read(output: &str) -> Vec<Pair> {
    let row = |line: &str| serde_json::from_str(line.trim().trim_end_matches(',')).ok();
    let rows: Vec<Row> = output.lines().filter_map(row).collect();
    let mut pairs: Vec<Pair> = Vec::new();
    for small in &rows {
        let large = rows.iter().find(|row| row.pair == small.pair && row.bytes > small.bytes);
        if let Some(large) = large {
            let (pair, wrong) = (small.pair, small.wrong + large.wrong);
            let algbw = large.bytes as f64 / large.time_us_min / 1e3;
            pairs.push(Pair { pair, time_us: small.time_us_min, algbw, wrong });
        }
    }
    pairs
}

/// Returns the middle one of some numbers; of an even number of them the lower one of the two.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// Judges the pairs; `host` tells the host of a rank, as pairs within a host are compared with each
/// other, and those between hosts. `rate` tells the rate that the link of two ranks is made for.
pub(in crate::doctor) fn judge(
    pairs: &[Pair],
    host: &dyn Fn(u32) -> String,
    rate: &dyn Fn([u32; 2]) -> Option<Rate>,
) -> Vec<Check> {
    if pairs.is_empty() {
        return vec![Check::not_applicable("pairs of ranks", "There is one rank.")];
    }
    let wrong: Vec<String> = pairs
        .iter()
        .filter(|pair| pair.wrong > 0)
        .map(|Pair { pair: [a, b], wrong, .. }| format!("ranks {a} and {b}: {wrong}"))
        .collect();
    let mut checks = vec![match wrong.is_empty() {
        true => Check::ok(
            "data of pairs",
            "Every two ranks exchanged fresh random data alone, and what arrived was right.",
        ),
        false => Check::failure(
            "data of pairs",
            format!("Elements that arrived wrong: {}.", wrong.join(", ")),
            "Do not use these GPUs or hosts: see ECC, Xid messages, IOMMU and PCI ACS.",
        ),
    }];
    for within in [true, false] {
        let of_class = |pair: &&Pair| (host(pair.pair[0]) == host(pair.pair[1])) == within;
        let class: Vec<&Pair> = pairs.iter().filter(of_class).collect();
        if !class.is_empty() {
            checks.push(speed(within, &class, host, rate));
        }
    }
    checks
}

/// Judges the speed of pairs within a host, or of those between hosts.
fn speed(
    within: bool,
    class: &[&Pair],
    host: &dyn Fn(u32) -> String,
    rate: &dyn Fn([u32; 2]) -> Option<Rate>,
) -> Check {
    /// The share of the median below which a pair is slow.
    const SLOW: f64 = 0.5;
    let usual = median(class.iter().map(|pair| pair.algbw));
    let mut found = format!(
        "The median of the best rounds is {:.1} us for 8 bytes, and {usual:.2} GB/s each way.",
        median(class.iter().map(|pair| pair.time_us))
    );
    let ranks = |pair: &Pair| {
        let [a, b] = pair.pair;
        let text = match within {
            true => format!("ranks {a} and {b}"),
            false => format!("ranks {a} ({}) and {b} ({})", host(a), host(b)),
        };
        format!("{text} {:.2}", pair.algbw)
    };
    let slow = class.iter().filter(|pair| pair.algbw < SLOW * usual);
    let slow: Vec<String> = slow.map(|pair| ranks(pair)).collect();
    let rates = || class.iter().filter_map(|pair| Some((*pair, rate(pair.pair)?)));
    let poor = rates().filter(|(pair, rate)| pair.algbw < rate.least_gbytes_s);
    let poor: Vec<String> = poor
        .map(|(pair, Rate { gbytes_s, link, .. })| {
            format!("{} of {gbytes_s:.1} GB/s ({link})", ranks(pair))
        })
        .collect();
    let fastest = rates().max_by(|(_, a), (_, b)| a.gbytes_s.total_cmp(&b.gbytes_s));
    if let Some((_, Rate { gbytes_s, link, .. })) = fastest.filter(|_| poor.is_empty()) {
        found += &format!(" The fastest link is made for {gbytes_s:.1} GB/s ({link}).");
    }
    if !slow.is_empty() {
        found += &format!(" Pairs with less than half of that: {}.", slow.join(", "));
    }
    if !poor.is_empty() {
        let of = "Pairs with less than is expected of what their links are made for";
        found += &format!(" {of}: {}.", poor.join(", "));
    }
    let name = if within { "speed within a host" } else { "speed between hosts" };
    let is_well = slow.is_empty() && poor.is_empty();
    let advice = "Measure again when the machine is idle (oxccl perf --matrix); then compare the \
                  links of these ranks with those of the others (oxccl topo). Adapters for RDMA \
                  need a plugin: TCP does not fill fast ones.";
    if is_well { Check::ok(name, found) } else { Check::warning(name, found, advice) }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn pair(pair: [u32; 2], algbw: f64) -> Pair {
        Pair { pair, time_us: 1.0, algbw, wrong: 0 }
    }

    fn verdicts(pairs: &[Pair], host: &dyn Fn(u32) -> String) -> Vec<Verdict> {
        judge(pairs, host, &|_| None).iter().map(|check| check.verdict).collect()
    }

    #[test]
    fn a_pair_below_half_of_the_median_is_slow() {
        let (ok, warning) = (Verdict::Ok, Verdict::Warning);
        let host = |_: u32| "a".to_owned();
        let even = [pair([0, 1], 10.0), pair([0, 2], 9.0), pair([1, 2], 11.0)];
        assert_eq!(verdicts(&even, &host), [ok, ok]);
        let odd = [pair([0, 1], 10.0), pair([0, 2], 4.0), pair([1, 2], 11.0)];
        assert_eq!(verdicts(&odd, &host), [ok, warning]);
        let found = &judge(&odd, &host, &|_| None)[1].found;
        assert!(found.ends_with("less than half of that: ranks 0 and 2 4.00."), "{found}");
        let wrong = Pair { wrong: 3, ..pair([0, 1], 10.0) };
        assert_eq!(verdicts(&[wrong], &host), [Verdict::Failure, ok]);
        assert_eq!(verdicts(&[], &host), [Verdict::NotApplicable]);
        let nonsense = [pair([0, 0], f64::NAN), pair([7, 7], -1.0)];
        assert_eq!(verdicts(&nonsense, &host).len(), 2);
    }

    #[test]
    fn a_pair_below_a_third_of_what_its_link_is_made_for_is_slow() {
        let rate = |ranks: [u32; 2]| {
            let link = "18 NVLinks of 25.0 GB/s".to_owned();
            (ranks != [1, 2]).then_some(Rate::new(450.0, link))
        };
        let speed = |pairs: &[Pair]| judge(pairs, &|_| String::new(), &rate)[1].clone();
        let well = speed(&[pair([0, 1], 151.0)]);
        assert_eq!(well.verdict, Verdict::Ok);
        let made = "The fastest link is made for 450.0 GB/s (18 NVLinks of 25.0 GB/s).";
        assert!(well.found.ends_with(made), "{well:?}");
        let poor = speed(&[pair([0, 1], 149.0), pair([0, 2], 151.0), pair([1, 2], 140.0)]);
        assert_eq!(poor.verdict, Verdict::Warning);
        let named = "made for: ranks 0 and 1 149.00 of 450.0 GB/s (18 NVLinks of 25.0 GB/s).";
        assert!(poor.found.ends_with(named), "{poor:?}");
    }

    #[test]
    fn pairs_between_hosts_are_compared_with_each_other() {
        let host = |rank: u32| format!("n{}", rank / 2);
        let mut pairs = vec![pair([0, 1], 100.0), pair([2, 3], 90.0)];
        pairs.extend([[0, 2], [0, 3], [1, 2]].map(|ranks| pair(ranks, 1.0)));
        assert_eq!(verdicts(&pairs, &host), [Verdict::Ok; 3]);
        pairs.push(pair([1, 3], 0.1));
        let checks = judge(&pairs, &host, &|_| None);
        assert_eq!(checks[2].verdict, Verdict::Warning);
        assert!(checks[2].found.contains("ranks 1 (n0) and 3 (n1) 0.10"), "{checks:?}");
    }

    #[test]
    fn rows_are_found_among_other_lines() {
        let row = |pair: [u32; 2], bytes: u32, time_us_min: f64| {
            let row = serde_json::json!({
                "pair": pair, "bytes": bytes, "time_us_min": time_us_min, "wrong": 1
            });
            row.to_string()
        };
        let rows = [row([0, 1], 8, 2.0), row([0, 1], 4000, 0.5), row([0, 2], 8, 1.0)];
        let text = format!("# head\n{}\n     0   -  1.0\n", rows.join("\n"));
        let expected = Pair { pair: [0, 1], time_us: 2.0, algbw: 8.0, wrong: 2 };
        assert_eq!(read(&text), [expected]);
        for text in ["", "{}", "{\"pair\":[0]}", "[0,1]", "nonsense"] {
            assert!(read(text).is_empty(), "{text}");
        }
    }
}
