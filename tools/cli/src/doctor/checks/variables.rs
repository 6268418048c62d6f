//! The check of the variables that the ranks of a job are given.

use super::Check;
use crate::given::Variable;
use crate::root::list;
use oxccl_plan::words::counted;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The variables that a rank is given.
#[derive(Debug, PartialEq, Deserialize)]
pub(in crate::doctor) struct OfRank {
    rank: u32,
    variables: Vec<Variable>,
}

/// Returns the variables of ranks in the output of `oxccl perf --matrix --variables`, where each
/// rank is a line.
pub(in crate::doctor) fn read(output: &str) -> Vec<OfRank> {
    output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Judges whether all ranks are given the same; `None` for fewer than two ranks.
pub(in crate::doctor) fn judge(ranks: &[OfRank]) -> Option<Check> {
    const NAME: &str = "variables of ranks";
    if ranks.len() < 2 {
        return None;
    }
    let all = ranks.iter().flat_map(|of| &of.variables);
    let names: BTreeSet<&str> = all.map(|given| &*given.variable).collect();
    let differing: Vec<String> = names.iter().filter_map(|name| difference(name, ranks)).collect();
    Some(match differing.is_empty() {
        true => {
            let same = counted(names.len(), "variable", "variables");
            Check::ok(NAME, format!("All ranks are given the same {same}."))
        }
        false => Check::warning(
            NAME,
            format!("Ranks are given different values: {}.", differing.join("; ")),
            "Give all ranks the same, unless this is meant: a launcher may pass on only some \
             variables, and a file may be on some hosts only.",
        ),
    })
}

/// Returns which ranks are given which value of a variable; `None` if all are given the same,
/// wherever they have it from.
fn difference(name: &str, ranks: &[OfRank]) -> Option<String> {
    let given = |of: &OfRank| of.variables.iter().find(|given| given.variable == name).cloned();
    let first = ranks.first().and_then(given).map(|given| given.value);
    if ranks.iter().all(|of| given(of).map(|given| given.value) == first) {
        return None;
    }
    let value = |of: &OfRank| given(of).map(|given| format!("{} ({})", given.value, given.origin));
    let mut values: BTreeMap<Option<String>, Vec<u32>> = BTreeMap::new();
    ranks.iter().for_each(|of| values.entry(value(of)).or_default().push(of.rank));
    let text = |(value, ranks): (&Option<String>, &Vec<u32>)| {
        let whose = if ranks.len() == 1 { "rank" } else { "ranks" };
        format!("{} on {whose} {}", value.as_deref().unwrap_or("not set"), list(ranks))
    };
    let texts: Vec<String> = values.iter().map(text).collect();
    Some(format!("{name} is {}", texts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn of(rank: u32, variables: &[(&str, &str)]) -> OfRank {
        let variable = |(name, value): &(&str, &str)| {
            let [variable, value, origin] = [*name, *value, "environment"].map(str::to_owned);
            Variable { variable, value, origin }
        };
        OfRank { rank, variables: variables.iter().map(variable).collect() }
    }

    #[test]
    fn ranks_with_other_values_are_named_side_by_side() {
        let (info, tcp) = (("NCCL_DEBUG", "INFO"), ("NCCL_NET", "Socket"));
        let same = judge(&[of(0, &[info, tcp]), of(1, &[tcp, info])]).expect("a check");
        assert_eq!(
            same,
            Check::ok("variables of ranks", "All ranks are given the same 2 variables.")
        );
        let check = judge(&[of(0, &[info]), of(1, &[]), of(2, &[info, tcp])]).expect("a check");
        assert_eq!(check.verdict, Verdict::Warning);
        assert_eq!(
            check.found,
            "Ranks are given different values: NCCL_DEBUG is not set on rank 1, INFO (environment) \
             on ranks 0,2; NCCL_NET is not set on ranks 0-1, Socket (environment) on rank 2."
        );
        assert_eq!(judge(&[of(0, &[info])]), None);
        let one = judge(&[of(0, &[info]), of(1, &[info])]).expect("a check");
        assert_eq!(one.found, "All ranks are given the same 1 variable.");
        let mut file = of(1, &[info]);
        file.variables[0].origin = "nccl.conf:1".to_owned();
        let same = judge(&[of(0, &[info]), file]).expect("a check");
        assert_eq!(same.verdict, Verdict::Ok, "wherever it comes from");
    }

    #[test]
    fn lines_of_ranks_are_found_among_others() {
        let lines = "[\n{\"pair\": [0, 1]},\n{\"rank\": 3, \"variables\": []}\n]\n";
        assert_eq!(read(lines), [of(3, &[])]);
    }
}
