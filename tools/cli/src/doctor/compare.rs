//! The comparison of hosts: the values that differ.

use super::report::{Item, Row};

/// The values of something on all hosts.
#[derive(Debug, PartialEq, Eq)]
struct Values {
    name: String,
    /// The text for a value that a host lacks.
    without: &'static str,
    /// In the order of the hosts.
    of: Vec<Option<String>>,
}

/// The differences between hosts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Differences {
    hosts: Vec<String>,
    differing: Vec<Values>,
    compared: usize,
}

impl Differences {
    /// Compares the hosts of reports, each with the name of its file. Rows without a host, which
    /// are about a job, are left out.
    pub(super) fn of(reports: &[(&str, Vec<Row>)]) -> Self {
        let mut hosts: Vec<(&str, &str)> = Vec::new();
        let mut all: Vec<Values> = Vec::new();
        for (file, rows) in reports {
            for row in rows {
                let Some(host) = row.host.as_deref() else { continue };
                let known = hosts.iter().position(|host_of| *host_of == (*file, host));
                let place = known.unwrap_or_else(|| {
                    hosts.push((file, host));
                    hosts.len() - 1
                });
                for (name, without, value) in values(&row.item) {
                    let values = match all.iter_mut().find(|values| values.name == name) {
                        Some(values) => values,
                        None => {
                            all.push(Values { name, without, of: Vec::new() });
                            all.last_mut().expect("one was added")
                        }
                    };
                    values.of.resize(values.of.len().max(place + 1), None);
                    values.of[place] = Some(value);
                }
            }
        }
        all.iter_mut().for_each(|values| values.of.resize(hosts.len(), None));
        let compared = all.len();
        all.retain(|values| values.of.iter().any(|value| *value != values.of[0]));
        let is_twice = |host: &str| hosts.iter().filter(|(_, other)| *other == host).count() > 1;
        let name = |(file, host): &(&str, &str)| match is_twice(host) {
            true => format!("{host} in {file}"),
            false => (*host).to_owned(),
        };
        Self { hosts: hosts.iter().map(name).collect(), differing: all, compared }
    }

    pub(super) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.differing.is_empty()
    }

    /// Returns what differs, each with a line for every host.
    pub(super) fn text(&self) -> String {
        let (number, compared) = (self.differing.len(), self.compared);
        let hosts = self.hosts.len();
        let mut text = format!("# {number} of {compared} values differ between {hosts} hosts\n");
        let width = self.hosts.iter().map(|host| host.chars().count()).max().unwrap_or(0);
        for Values { name, without, of } in &self.differing {
            text += &format!("{name}\n");
            for (host, value) in self.hosts.iter().zip(of) {
                let value = value.as_deref().unwrap_or(without);
                text += &format!("    {host:<width$}  {value}\n");
            }
        }
        text
    }
}

/// Returns the values of a row that hosts should share: the name, what stands for a missing value,
/// and the value.
fn values(item: &Item) -> Vec<(String, &'static str, String)> {
    match item {
        Item::Check(check) => {
            let verdict = (check.name.clone(), "not checked", check.verdict.name().to_owned());
            let fact = |(fact, value): (&String, &String)| {
                (format!("{}: {fact}", check.name), "unknown", value.clone())
            };
            [verdict].into_iter().chain(check.facts.iter().map(fact)).collect()
        }
        Item::Variable(variable) => {
            let value = format!("{} ({})", variable.value, variable.origin);
            vec![(variable.variable.clone(), "not set", value)]
        }
        Item::Pair(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::Check;
    use super::*;
    use crate::given::Variable;

    fn check(host: &str, check: Check) -> Row {
        Row { host: Some(host.to_owned()), item: Item::Check(check) }
    }

    fn variable(host: &str, name: &str, value: &str) -> Row {
        let [variable, value, origin] = [name, value, "environment"].map(str::to_owned);
        Row {
            host: Some(host.to_owned()),
            item: Item::Variable(Variable { variable, value, origin }),
        }
    }

    #[test]
    fn verdicts_facts_and_variables_that_differ_are_listed_with_all_hosts() {
        let shm = |host, check_: Check| check(host, check_);
        let a = vec![
            shm("node1", Check::ok("MTU", "many words")),
            shm("node1", Check::ok("same", "other words")),
            variable("node1", "NCCL_DEBUG", "INFO"),
            variable("node1", "NCCL_PROTO", "Simple"),
        ];
        let b = vec![
            shm("node2", Check::warning("MTU", "words", "advice")),
            shm("node2", Check::ok("same", "words")),
            variable("node2", "NCCL_PROTO", "Simple"),
        ];
        let differences = Differences::of(&[("a", a.clone()), ("b", b)]);
        assert_eq!(
            differences.text(),
            "# 2 of 4 values differ between 2 hosts\n\
             MTU\n    node1  ok\n    node2  warning\n\
             NCCL_DEBUG\n    node1  INFO (environment)\n    node2  not set\n"
        );
        let same = Differences::of(&[("a", a.clone()), ("b", a)]);
        assert!(same.is_empty() && same.hosts == ["node1 in a", "node1 in b"]);
    }

    #[test]
    fn rows_about_the_job_and_empty_reports_have_no_host() {
        let row = Row::of_job(Item::Check(Check::ok("a", "b")));
        let none = Differences::of(&[("a", vec![row]), ("b", Vec::new())]);
        assert!(none.is_empty() && none.hosts() == 0);
        assert_eq!(none.text(), "# 0 of 0 values differ between 0 hosts\n");
    }
}
